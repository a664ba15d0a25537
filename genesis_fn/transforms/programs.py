"""What jit keeps for a function: its traced programs and their executables."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from genesis_fn.core import device as devices
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import Tracer
from genesis_fn.transforms.flat import FlatFunction
from genesis_fn.transforms.guard import builder

_FUNCTIONS = 512  # whose caches are kept for new function objects of the same code


class Program:
    """One trace of a function: its jaxpr, captured values, output structure, and what it was
    for."""

    __slots__ = ("jaxpr", "captured", "flat", "weak", "build", "keys", "paths", "cacheable")

    def __init__(
        self, jaxpr: Jaxpr, captured: list, flat: FlatFunction, keys: tuple, paths: list[str]
    ) -> None:
        self.jaxpr, self.captured, self.flat = jaxpr, captured, flat
        self.keys, self.paths = keys, paths
        self.weak = any(flat.weak)
        self.build = builder(flat.out_tree)
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
        self.keep: Any = None  # what keys by id refer to

    def clear(self) -> None:
        """Forget everything."""
        self.entries.clear()
        self.programs.clear()
        self.guards.clear()
        self.fast.clear()


SHARED: OrderedDict[Any, Cache] = OrderedDict()


def cache_for(fun: Callable, options: dict[str, Any]) -> Cache:
    """The cache for a function; a new function object of the same code, closure and defaults (a
    lambda made in a loop) gets the one it had before."""
    code = getattr(fun, "__code__", None)
    if code is None:
        return Cache()
    cells = [c.cell_contents for c in fun.__closure__ or () if _filled(c)]
    keep = (cells, fun.__globals__, fun.__defaults__, fun.__kwdefaults__)
    kwdefaults = tuple(sorted((k, id(v)) for k, v in (fun.__kwdefaults__ or {}).items()))
    key = (
        code, tuple(map(id, cells)), id(fun.__globals__), tuple(map(id, fun.__defaults__ or ())),
        kwdefaults, tuple(sorted((k, repr(v)) for k, v in options.items())),
    )  # fmt: skip
    found = SHARED.get(key)
    if found is None:
        found = SHARED[key] = Cache()
        found.keep = keep
        while len(SHARED) > _FUNCTIONS:
            SHARED.popitem(last=False)
    else:
        SHARED.move_to_end(key)
    return found


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


__all__ = ["SHARED", "Cache", "Entry", "Program", "cache_for"]
