"""What jit keeps for a function: its traced programs and their executables; and what functions of
one meaning share."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from typing import Any

from genesis_fn.core import device as devices
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import Tracer
from genesis_fn.core.static import meaning
from genesis_fn.transforms.flat import FlatFunction
from genesis_fn.transforms.guard import builder
from genesis_fn.transforms.key_uses import of_arguments
from genesis_fn.transforms.reads import Reads

_FUNCTIONS = 512  # meanings whose programs are kept for new function objects
CAPACITY = 256  # programs per function
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

    def current(self) -> bool:
        """Whether what was read while tracing is as it was."""
        return self.reads is None or self.reads.same()


class Entry:
    """A compiled program for one signature. `call` is what was generated for calls like the first:
    (settings, structure of the arguments, function)."""

    __slots__ = (
        "program", "executable", "dynamic", "plain", "donated", "device", "call", "__weakref__",
    )  # fmt: skip

    def __init__(
        self, program: Program, executable: Any, dynamic: list[int], plain: bool,
        donated: list[int], device: devices.Device,
    ) -> None:  # fmt: skip
        self.program, self.executable, self.device = program, executable, device
        self.dynamic, self.plain, self.donated = dynamic, plain, donated
        self.call: tuple[Any, Any, Callable] | None = None


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


class Shelf:
    """What functions of one meaning share: {key: program or entry}."""

    def __init__(self, found: MutableMapping[Any, Any], base: Any = None) -> None:
        self.found, self.base = found, base

    def get(self, *key: Any) -> Any:
        """What is kept under a key, or None."""
        with _lock:
            return self.found.get((self.base, key))

    def put(self, value: Any, *key: Any) -> None:
        """Keep a program or entry for others."""
        with _lock:
            self.found[self.base, key] = value
            if isinstance(self.found, OrderedDict) and len(self.found) > 3 * CAPACITY:
                self.found.popitem(last=False)


# What keeps nothing of its user alive is kept for later functions. The rest, such as programs of a
# function that closes over arrays, is shared as long as a function that uses it lives.
SHARED: OrderedDict[Any, Shelf] = OrderedDict()
_alive: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def shelf_of(fun: Callable, options: dict[str, Any]) -> Shelf | None:
    """Where programs of functions that do what `fun` does now are kept; None where that cannot be
    told. Asked for whenever `fun` would be traced: what it reads may have changed since."""
    known = meaning(fun)
    if known is None:
        return None
    key = (known[0], tuple(sorted((k, repr(v)) for k, v in options.items())))
    if known[1]:
        return Shelf(_alive, key)
    with _lock:
        found = SHARED.get(key)
        if found is None:
            found = SHARED[key] = Shelf(OrderedDict())
            if len(SHARED) > _FUNCTIONS:
                SHARED.popitem(last=False)
        else:
            SHARED.move_to_end(key)
        return found


def forget(cache: Cache) -> None:
    """Nobody shares the programs of this cache any more."""
    mine = {id(x) for x in (*cache.programs.values(), *cache.entries.values())}
    with _lock:
        for found in [_alive, *(shelf.found for shelf in SHARED.values())]:
            for key in [k for k, v in found.items() if id(v) in mine]:
                del found[key]


def forget_all() -> None:
    """Nothing is shared any more."""
    with _lock:
        SHARED.clear()
        _alive.clear()


__all__ = [
    "CAPACITY", "LARGE", "SHARED", "Cache", "Entry", "Program", "Shelf", "forget", "forget_all",
    "shelf_of",
]  # fmt: skip
