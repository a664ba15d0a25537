"""What jit keeps for a function: its traced programs and their executables; and what functions of
one meaning share."""

from __future__ import annotations

import copy
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from genesis_fn.core import device as devices
from genesis_fn.core.array import Array
from genesis_fn.core.executable import Executable
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import Tracer
from genesis_fn.core.static import Meaning, meaning
from genesis_fn.transforms.flat import FlatFunction
from genesis_fn.transforms.guard import bound, builder
from genesis_fn.transforms.key_uses import of_arguments
from genesis_fn.transforms.reads import Reads

_FUNCTIONS = 512  # meanings whose programs are kept for new function objects
CAPACITY = 256  # programs per function
_SMALL = 1 << 16  # bytes of captured arrays that may outlive the functions that captured them
LARGE = 64 << 20  # bytes of captured arrays that are worth a warning


class Program:
    """One trace of a function: its jaxpr, captured values, output structure, and what it was
    for. `reads` is what it depends on beside its arguments."""

    __slots__ = (
        "jaxpr", "captured", "in_tree", "out_tree", "outs_weak", "weak", "build", "keys", "paths",
        "cacheable", "key_uses", "reads", "__weakref__",
    )  # fmt: skip

    def __init__(
        self, jaxpr: Jaxpr, captured: list, flat: FlatFunction, keys: tuple, paths: list[str],
        reads: Reads | None = None,
    ) -> None:  # fmt: skip
        self.jaxpr, self.captured, self.reads = jaxpr, captured, reads
        self.in_tree, self.out_tree, self.outs_weak = flat.in_tree, flat.out_tree, flat.weak
        self.keys, self.paths = keys, paths
        self.weak = any(flat.weak)
        self.build = builder(flat.out_tree)
        self.key_uses = of_arguments(jaxpr, len(captured))  # None: it uses and returns no keys
        # A program that captured a tracer is good for the trace it was made under only.
        self.cacheable = not any(isinstance(x, Tracer) for x in captured)

    def with_captured(self, captured: list) -> Program:
        """The same program for arrays that are held elsewhere."""
        found = copy.copy(self)
        found.captured = captured
        return found

    def current(self) -> bool:
        """Whether what was read while tracing is as it was."""
        return self.reads is None or self.reads.same()


class Entry:
    """A compiled program for one signature. `call` is what was generated for calls like the first:
    (settings, function, structure of the arguments)."""

    __slots__ = (
        "program", "executable", "dynamic", "plain", "donated", "device", "call", "__weakref__",
    )  # fmt: skip

    def __init__(
        self, program: Program, executable: Executable, dynamic: list[int], plain: bool,
        donated: list[int], device: devices.Device,
    ) -> None:  # fmt: skip
        self.program, self.executable, self.device = program, executable, device
        self.dynamic, self.plain, self.donated = dynamic, plain, donated
        self.call: tuple[Any, Callable, Any] | None = None

    def with_program(self, program: Program) -> Entry:
        """The same for another copy of the program."""
        found = copy.copy(self)
        found.program = program
        if self.call is not None:
            settings, call, form = self.call
            found.call = settings, bound(call, program.captured), form
        return found


class Cache:
    """Programs and executables of one function."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.fast: list[tuple[Any, Callable]] = []  # (settings, what `caller` made), newest first
        self.guards: list[tuple[Callable, Any]] = []  # (pull, treedef), most recently hit first
        self.entries: OrderedDict[Any, Entry] = OrderedDict()
        self.programs: OrderedDict[Any, Program] = OrderedDict()

    def clear(self) -> None:
        """Forget everything."""
        self.entries.clear()
        self.programs.clear()
        self.guards.clear()
        self.fast.clear()


class _Kept:
    """An entry (of the program of `program_key`) or a program alone, without the arrays that only
    the functions which use it keep alive. `captured` has them, or weak references to them."""

    __slots__ = ("program_key", "captured", "program", "entry")

    def __init__(
        self, program_key: Any, captured: list[Any], program: Program, entry: Entry | None
    ) -> None:
        self.program_key, self.captured = program_key, captured
        self.program = program.with_captured([]) if captured else program
        self.entry = entry.with_program(self.program) if entry and captured else entry

    def taken(self, program: Program | None) -> Program | None:
        """The program for a function, which may have one of this key already; None where it
        traced that itself, or where an array is gone."""
        if program is not None:
            return program if program.jaxpr is self.program.jaxpr else None
        if not self.captured:
            return self.program
        captured = [x() if type(x) is weakref.ref else x for x in self.captured]
        return None if any(x is None for x in captured) else self.program.with_captured(captured)

    def entry_of(self, program: Program) -> Entry | None:
        """The entry for what `taken` gave."""
        if self.entry is None or program is self.program:
            return self.entry
        return self.entry.with_program(program)


class Shelf:
    """What functions of one meaning share: programs and entries, by their keys. `lent` are arrays
    that the functions hold and the shelf does not."""

    def __init__(self, key: Any, lent: list[Any]) -> None:
        self.lent = {id(x): weakref.ref(x, _gone.append) for x in lent}
        self.found: OrderedDict[Any, _Kept] = OrderedDict()
        _lent.update((id(ref), key) for ref in self.lent.values())

    def get(self, key: Any) -> _Kept | None:
        """What is kept under a key."""
        with _lock:
            return self.found.get(key)

    def put(self, key: Any, program_key: Any, program: Program, entry: Entry | None = None) -> None:
        """Keep a program, or an entry, for others: not where it would keep large arrays alive."""
        captured, size = [], 0
        for x in program.captured:
            lent = self.lent.get(id(x))
            if lent is None:
                size += x.nbytes
            captured.append(x if lent is None else lent)
        if size > _SMALL or (self.lent and not _alone(program.jaxpr)):
            return
        if captured and not self.lent:
            captured = []  # nothing to leave out
        kept = _Kept(program_key, captured, program, entry)
        with _lock:
            self.found[key] = kept
            if len(self.found) > 3 * CAPACITY:
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
        if callable(x) and not isinstance(x, type):
            known = meaning(x)
            return known is not None and not known.lent and not known.keeps
        return True

    return all(light(v) for e in jaxpr.eqns for v in e.params.values())


# What keeps nothing of its user alive but small arrays is kept for later functions, and until one
# of the objects that it was lent is gone.
SHARED: OrderedDict[Any, Shelf] = OrderedDict()
_lent: dict[int, Any] = {}  # id of a reference that a shelf holds -> key of the shelf
_gone: deque[weakref.ref] = deque()
_lock = threading.RLock()


def _forget_gone() -> None:
    while _gone:
        _drop(_lent.get(id(_gone.popleft())))


def _drop(key: Any) -> None:
    shelf = SHARED.pop(key, None)
    for ref in shelf.lent.values() if shelf is not None else ():
        _lent.pop(id(ref), None)


def shelf_of(known: Meaning, options: tuple) -> Shelf | None:
    """Where programs of functions of this meaning are kept; None where they cannot be."""
    if known.keeps:
        return None
    key = known.key, options
    with _lock:
        _forget_gone()
        found = SHARED.get(key)
        if found is None:
            found = SHARED[key] = Shelf(key, known.lent)
            if len(SHARED) > _FUNCTIONS:
                _drop(next(iter(SHARED)))
        else:
            SHARED.move_to_end(key)
        return found


def forget(cache: Cache) -> None:
    """Nobody shares the programs of this cache any more."""
    mine = {id(x.jaxpr) for x in cache.programs.values()}
    with _lock:
        for shelf in SHARED.values():
            for key in [k for k, v in shelf.found.items() if id(v.program.jaxpr) in mine]:
                del shelf.found[key]


def forget_all() -> None:
    """Nothing is shared any more."""
    with _lock:
        SHARED.clear()
        _lent.clear()
        _gone.clear()


__all__ = [
    "CAPACITY", "LARGE", "SHARED", "Cache", "Entry", "Program", "Shelf", "forget", "forget_all",
    "shelf_of",
]  # fmt: skip
