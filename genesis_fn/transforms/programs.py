"""What jit keeps for a function: its traced programs and their executables."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from genesis_fn.core import device as devices
from genesis_fn.core.array import Array
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import Tracer
from genesis_fn.transforms.flat import FlatFunction
from genesis_fn.transforms.guard import builder
from genesis_fn.transforms.key_uses import of_arguments
from genesis_fn.transforms.meaning import meaning

_FUNCTIONS = 512  # whose caches are kept for new function objects of the same meaning
_ALIKE = 8  # of them of one code: their captured values stay alive
LARGE = 64 << 20  # bytes of arrays from outside that only their own function may keep alive


class Program:
    """One trace of a function: its jaxpr, captured values, output structure, and what it was
    for."""

    __slots__ = (
        "jaxpr", "captured", "flat", "weak", "build", "keys", "paths", "cacheable",
        "key_uses",
    )  # fmt: skip

    def __init__(
        self, jaxpr: Jaxpr, captured: list, flat: FlatFunction, keys: tuple, paths: list[str]
    ) -> None:
        self.jaxpr, self.captured, self.flat = jaxpr, captured, flat
        self.keys, self.paths = keys, paths
        self.weak = any(flat.weak)
        self.build = builder(flat.out_tree)
        self.key_uses = of_arguments(jaxpr, len(captured))  # None: it uses and returns no keys
        # A program that captured a tracer is good for the trace it was made under only.
        self.cacheable = not any(isinstance(x, Tracer) for x in captured)


class Entry:
    """A compiled program for one signature."""

    __slots__ = ("program", "executable", "dynamic", "plain", "donated", "device")

    def __init__(
        self, program: Program, executable: Any, dynamic: list[int], plain: bool,
        donated: list[int], device: devices.Device,
    ) -> None:  # fmt: skip
        self.program, self.executable, self.device = program, executable, device
        self.dynamic, self.plain, self.donated = dynamic, plain, donated


class Cache:
    """Programs and executables of one function; shared by `jit`s of equal functions."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.fast: list[tuple[Any, Callable]] = []  # (settings, what `caller` made), newest first
        self.guards: list[tuple[Callable, Any]] = []  # (pull, treedef), most recently hit first
        self.entries: OrderedDict[Any, Entry] = OrderedDict()
        self.programs: OrderedDict[Any, Program] = OrderedDict()
        self.key: Any = None  # its place among SHARED
        self.keep: Any = None  # what keys by id refer to

    def clear(self) -> None:
        """Forget everything."""
        self.entries.clear()
        self.programs.clear()
        self.guards.clear()
        self.fast.clear()


SHARED: OrderedDict[Any, Cache] = OrderedDict()
_shared = threading.Lock()


def cache_for(fun: Callable, options: dict[str, Any]) -> Cache:
    """The cache for a function; a new function object that means the same (a lambda made in a loop)
    gets the one it had before. A function whose meaning cannot be told has its own, and so has one
    that reads large arrays: they go with it."""
    seen = meaning(fun)
    if seen is None or sum([x.nbytes for x in seen.held if type(x) is Array]) > LARGE:
        return Cache()
    key = (seen.key, tuple(sorted((k, repr(v)) for k, v in options.items())))
    with _shared:
        found = SHARED.get(key)
        if found is None:
            found = SHARED[key] = Cache()
            found.key, found.keep = key, seen.held
            alike = [k for k in SHARED if k[0][0] == key[0][0]]
            for old in alike[:-_ALIKE] or list(SHARED)[:-_FUNCTIONS]:
                del SHARED[old]
        else:
            SHARED.move_to_end(key)
        return found


def before_trace(fun: Callable, cache: Cache) -> None:
    """No longer share the cache of a function that means something else than when it was given to
    `jit`: what is traced now is right for this function object only."""
    if cache.key is not None:
        seen = meaning(fun)
        if seen is None or seen.key != cache.key[0]:
            with _shared:
                SHARED.pop(cache.key, None)
                cache.key = None


__all__ = ["SHARED", "Cache", "Entry", "Program", "before_trace", "cache_for"]
