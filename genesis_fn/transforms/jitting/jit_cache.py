"""What jit keeps: the programs of a function with what they are compiled to, and those that
functions of one meaning share."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from genesis_fn.core import tree
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.backend.executable import Executable
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import with_weak_types
from genesis_fn.core.static import Fingerprint, fingerprint_of
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.transforms.custom.custom_call import CustomCall
from genesis_fn.transforms.jitting.argspec import ProgramKey
from genesis_fn.transforms.jitting.guards import Guard
from genesis_fn.transforms.keys.key_uses import Uses

CAPACITY = 256  # programs per function
LARGE = 64 << 20  # bytes of captured arrays that are worth a warning
_VARIANTS = 4  # programs of one key, traced while objects that they read were others
_CALLS = 16  # forms of calls that a program has generated functions for
FAST = 32  # generated functions that a call tries, newest first
MOST_SHARED = 4096  # programs that are kept for new function objects
_SMALL = 1 << 16  # bytes of captured arrays that may outlive the functions that captured them


@dataclasses.dataclass(slots=True, eq=False)
class Program:
    """One trace of a function: its jaxpr, captured values, output structure, and what it was
    for. `guards` tell whether what it read beside its arguments is as it was; `key_uses` is None
    where it neither uses nor returns random keys.

    `executables` are {(device, donated): executable}, `calls` {form of a call: what was generated
    for it}. Both do without the captured arrays, so that copies of a program for other
    arrays share them.
    """

    jaxpr: Jaxpr
    captured: Sequence[Any]
    key: ProgramKey
    paths: list[str]
    out_tree: tree.PyTreeDef
    outs_weak: Sequence[bool]
    guards: list[Guard]
    key_uses: Uses | None
    executables: dict[Any, Executable] = dataclasses.field(default_factory=dict)
    calls: OrderedDict[Any, Callable[..., Any]] = dataclasses.field(default_factory=OrderedDict)

    def output(self, outs: Sequence[Any]) -> PyTree:
        """What the function returns, of the program's results."""
        return tree.unflatten(self.out_tree, with_weak_types(outs, self.outs_weak))

    def add_call(self, form: Hashable, call: Callable[..., Any]) -> None:
        """Keep what was generated for a form of a call."""
        self.calls[form] = call
        if len(self.calls) > _CALLS:
            self.calls.popitem(last=False)


class Cache:
    """Programs of one function: {key: those traced while what they read was another, newest first},
    and the generated calls that it tries first: (settings, call), newest first."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.fast: list[tuple[Any, Callable[..., Any]]] = []
        self.variants: OrderedDict[ProgramKey, list[Program]] = OrderedDict()

    @property
    def programs(self) -> list[Program]:
        """All programs, newest last."""
        return [p for found in self.variants.values() for p in reversed(found)]

    def put(self, program: Program) -> None:
        """Keep a program."""
        key = program.key
        self.variants[key] = [program, *self.variants.pop(key, ())][:_VARIANTS]
        if len(self.variants) > CAPACITY:
            self.variants.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self.variants.clear()
        self.fast.clear()


# ---- what functions of one meaning share ----


class _Shared(NamedTuple):
    """A program without its captured arrays, and those: small ones, and references to what only
    the functions keep alive. `lent` are references to all that their meaning compares by identity;
    the program is forgotten with the first of them that is gone."""

    program: Program
    captured: list[Any]
    lent: list[weakref.ref]


# {(meaning of functions, key): their program}, the last used last.
SHARED: OrderedDict[Any, _Shared] = OrderedDict()
# Keys of programs that were lent what is gone. A reference may die at any time, in the middle of a
# change of SHARED too, so that only the next search takes them out.
_gone: deque[Any] = deque()
_lock = threading.RLock()


def shared(known: Fingerprint, key: ProgramKey) -> Program | None:
    """The program that functions of this meaning have for a key."""
    name = known.key, key
    with _lock:
        while _gone:
            SHARED.pop(_gone.popleft(), None)
        found = SHARED.get(name)
        if found is None:
            return None
        SHARED.move_to_end(name)
    captured = [x() if type(x) is weakref.ref else x for x in found.captured]
    if any(x is None for x in captured):
        return None
    return dataclasses.replace(found.program, captured=captured) if captured else found.program


def share(known: Fingerprint, program: Program) -> None:
    """Keep a program for others: not where it would keep large arrays alive."""
    name = known.key, program.key
    lent = {id(x): weakref.ref(x, lambda _: _gone.append(name)) for x in known.lent}
    captured: list[Any] = [lent.get(id(x), x) for x in program.captured]
    size = sum(x.nbytes for x in captured if type(x) is not weakref.ref)
    if size > _SMALL or (lent and not _holds_no_arrays(program.jaxpr)):
        return
    program = dataclasses.replace(program, captured=[]) if captured else program
    with _lock:
        SHARED[name] = _Shared(program, captured, list(lent.values()))
        if len(SHARED) > MOST_SHARED:
            SHARED.popitem(last=False)


def _holds_no_arrays(jaxpr: Jaxpr) -> bool:
    """Whether no function in a program, such as a rule of its own, holds arrays."""

    def light(x: Any) -> bool:
        if type(x) is tuple:
            return all(map(light, x))
        if type(x) is Jaxpr:
            return _holds_no_arrays(x)
        if isinstance(x, CustomCall):
            return light(x.batch)
        if callable(x) and not isinstance(x, type):
            known = fingerprint_of(x)
            return known is not None and not known.lent and not known.keeps
        return type(x) is not ArrayImpl

    return all(light(v) for e in jaxpr.eqns for v in e.params.values())


def forget(cache: Cache) -> None:
    """Nobody shares the programs of this cache any more."""
    mine = {id(x.jaxpr) for x in cache.programs}
    with _lock:
        for name in [k for k, x in SHARED.items() if id(x.program.jaxpr) in mine]:
            del SHARED[name]


def forget_all() -> None:
    """Nothing is shared any more."""
    with _lock:
        SHARED.clear()
        _gone.clear()
