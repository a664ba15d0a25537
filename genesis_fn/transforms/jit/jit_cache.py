"""What jit keeps: the programs of a function with what they are compiled to, and those that
functions of one meaning share."""

from __future__ import annotations

import copy
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core.array import Array
from genesis_fn.core.backend.executable import Executable
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import Tracer
from genesis_fn.core.static import Meaning, meaning
from genesis_fn.transforms.custom.custom_call import CustomCall
from genesis_fn.transforms.jit.call_codegen import builder
from genesis_fn.transforms.jit.reads import Reads
from genesis_fn.transforms.keys.key_uses import of_arguments
from genesis_fn.transforms.staging.api_util import FlatFunction

CAPACITY = 256  # programs per function
LARGE = 64 << 20  # bytes of captured arrays that are worth a warning
_VARIANTS = 4  # programs of one key, traced while objects that they read were others
_CALLS = 16  # forms of calls that a program has generated functions for
_FAST = 32  # generated functions that a call tries, newest first
_FUNCTIONS = 512  # meanings whose programs are kept for new function objects
_SMALL = 1 << 16  # bytes of captured arrays that may outlive the functions that captured them


class Program:
    """One trace of a function: its jaxpr, captured values, output structure, and what it was
    for. `reads` is what it depends on beside its arguments.

    `executables` are {(device, donated): executable}, `calls` {form of a call: what was generated
    for it, or None}. Both do without the captured arrays, so that copies of a program for other
    arrays share them.
    """

    __slots__ = (
        "jaxpr", "captured", "in_tree", "out_tree", "outs_weak", "build", "keys", "paths",
        "cacheable", "key_uses", "reads", "executables", "calls", "__weakref__",
    )  # fmt: skip

    def __init__(
        self, jaxpr: Jaxpr, captured: list, flat: FlatFunction, keys: tuple, paths: list[str],
        reads: Reads | None = None,
    ) -> None:  # fmt: skip
        self.jaxpr, self.captured, self.reads = jaxpr, captured, reads
        self.in_tree, self.out_tree, self.outs_weak = flat.in_tree, flat.out_tree, flat.weak
        self.keys, self.paths = keys, paths
        self.build = builder(flat.out_tree)
        self.key_uses = of_arguments(jaxpr, len(captured))  # None: it uses and returns no keys
        # A program that captured a tracer is good for the trace it was made under only.
        self.cacheable = not any(isinstance(x, Tracer) for x in captured)
        self.executables: dict[Any, Executable] = {}
        self.calls: OrderedDict[Any, Callable | None] = OrderedDict()

    def mask(self, donated: Sequence[int]) -> list[bool]:
        """Which inputs are donated, of those after the captured ones; empty if none are."""
        if not donated:
            return []
        count = len(self.captured)
        return [i - count in donated for i in range(len(self.jaxpr.invars))]

    def with_captured(self, captured: list) -> Program:
        """The same program for arrays that are held elsewhere."""
        found = copy.copy(self)
        found.captured = captured
        return found

    def add_call(self, form: Any, call: Callable | None) -> None:
        """Keep what was generated for a form of a call."""
        self.calls[form] = call
        if len(self.calls) > _CALLS:
            self.calls.popitem(last=False)


class Cache:
    """Programs of one function: {key: those traced while what they read was another, newest first},
    and the generated calls that it tries first: (settings, call), newest first."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.fast: list[tuple[Any, Callable]] = []
        self.variants: OrderedDict[Any, list[Program]] = OrderedDict()

    @property
    def programs(self) -> list[Program]:
        """All programs, newest last."""
        return [p for found in self.variants.values() for p in reversed(found)]

    def put(self, key: Any, program: Program) -> None:
        """Keep a program."""
        self.variants[key] = [program, *self.variants.pop(key, ())][:_VARIANTS]
        if len(self.variants) > CAPACITY:
            self.variants.popitem(last=False)

    def add_fast(self, settings: Any, call: Callable) -> None:
        """Try a generated call before all others."""
        self.fast.insert(0, (settings, call))
        del self.fast[_FAST:]

    def clear(self) -> None:
        """Forget everything."""
        self.variants.clear()
        self.fast.clear()


class Shelf:
    """What functions of one meaning share: programs, by their keys, without the arrays that only
    the functions keep alive. `lent` are objects that those hold and the shelf does not."""

    def __init__(self, key: Any, lent: list[Any]) -> None:
        gone = lambda _: _gone.append(key)
        self.lent = {id(x): weakref.ref(x, gone) for x in lent}
        self.found: OrderedDict[Any, tuple[Program, list[Any]]] = OrderedDict()

    def get(self, key: Any) -> Program | None:
        """The program of a key, with its arrays; None where one of them is gone."""
        with _lock:
            found = self.found.get(key)
        if found is None or not found[1]:
            return found and found[0]
        arrays = [x() if type(x) is weakref.ref else x for x in found[1]]
        return None if any(x is None for x in arrays) else found[0].with_captured(arrays)

    def put(self, key: Any, program: Program) -> None:
        """Keep a program for others: not where it would keep large arrays alive."""
        captured = [self.lent.get(id(x), x) for x in program.captured]
        size = sum(x.nbytes for x in captured if type(x) is not weakref.ref)
        if size > _SMALL or (self.lent and not _alone(program.jaxpr)):
            return
        with _lock:
            self.found[key] = (program.with_captured([]) if captured else program), captured
            if len(self.found) > CAPACITY:
                self.found.popitem(last=False)


def _alone(jaxpr: Jaxpr) -> bool:
    """Whether no function in a program, such as a rule of its own, holds arrays."""

    def light(x: Any) -> bool:
        if type(x) is tuple:
            return all(map(light, x))
        if type(x) is Jaxpr:
            return _alone(x)
        if type(x) is Array:
            return False
        if isinstance(x, CustomCall):
            return light(x.batch)
        if callable(x) and not isinstance(x, type):
            known = meaning(x)
            return known is not None and not known.lent and not known.keeps
        return True

    return all(light(v) for e in jaxpr.eqns for v in e.params.values())


# What keeps nothing of its user alive but small arrays is kept for later functions, and until one
# of the objects that it was lent is gone.
SHARED: OrderedDict[Any, Shelf] = OrderedDict()
# Keys of shelves that were lent what is gone. A reference may die at any time, in the middle of a
# change of SHARED too, so that only the next search takes them out.
_gone: deque[Any] = deque()
_lock = threading.RLock()


def shelf_of(known: Meaning, options: tuple) -> Shelf | None:
    """Where programs of functions of this meaning are kept; None where they cannot be."""
    if known.keeps:
        return None
    key = known.key, options
    with _lock:
        while _gone:
            SHARED.pop(_gone.popleft(), None)
        found = SHARED.get(key)
        if found is None:
            found = SHARED[key] = Shelf(key, known.lent)
            if len(SHARED) > _FUNCTIONS:
                SHARED.popitem(last=False)
        else:
            SHARED.move_to_end(key)
        return found


def forget(cache: Cache) -> None:
    """Nobody shares the programs of this cache any more."""
    mine = {id(x.jaxpr) for x in cache.programs}
    with _lock:
        for shelf in SHARED.values():
            for key in [k for k, (p, _) in shelf.found.items() if id(p.jaxpr) in mine]:
                del shelf.found[key]


def forget_all() -> None:
    """Nothing is shared any more."""
    with _lock:
        SHARED.clear()
        _gone.clear()
