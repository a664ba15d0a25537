"""What a function means now: its code and everything that the code reads from outside.

Two function objects of one meaning may share traced programs. Containers and objects are read
down to what they hold, so that a change in place is a change of meaning.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from genesis_fn.core.array import Array

_CONSTANT = (
    Array, bool, bytes, complex, float, int, str, np.dtype, np.generic, np.ufunc, range, slice,
    type(None), type(Ellipsis), types.BuiltinFunctionType, types.MethodDescriptorType,
)  # fmt: skip
_LIMIT = 4096  # values that are looked at before a function counts as one of a kind
_PYTHON_CLASS = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class _OneOfAKind(Exception):
    """Something is read whose changes cannot be seen, or too much is."""


class Meaning:
    """`key`, equal for functions of one meaning while the values that it names by identity are
    `held`."""

    __slots__ = ("globals", "held", "key", "seen")

    def __init__(self, fun: Any) -> None:
        self.globals = getattr(fun, "__globals__", None)
        self.held: list[Any] = []
        self.seen: set[int] = set()  # containers, functions and code, which may hold themselves
        self._read(fun)
        self.key = tuple(map(id, self.held))

    def _read(self, x: Any) -> None:
        kind = type(x)
        if kind is types.FunctionType:
            # A new function object of the same code and surroundings is the same function.
            self._function(x)
        elif kind is types.MethodType:
            self._all((x.__func__, x.__self__))
        else:
            self.held.append(x)
            if not isinstance(x, _CONSTANT):
                self._inside(x, kind)
        if len(self.held) > _LIMIT:
            raise _OneOfAKind

    def _inside(self, x: Any, kind: type) -> None:
        if id(x) in self.seen:
            return
        self.seen.add(id(x))
        if isinstance(x, types.ModuleType):
            return  # the names that code mentions follow
        if isinstance(x, type):
            self.held += [v for c in x.__mro__[:-1] for v in vars(c).values()]
        elif isinstance(x, functools.partial):
            self._all((x.func, *x.args, *x.keywords, *x.keywords.values()))
        elif kind.__module__.partition(".")[0] == "genesis_fn" and callable(x):
            return  # such as a jitted function: it has a cache of its own
        elif isinstance(x, dict):
            self._all(x)
            self._all(x.values())
        elif isinstance(x, (tuple, list, frozenset)):
            self._all(x)
        elif all(c.__flags__ & _PYTHON_CLASS for c in kind.__mro__[:-1]) and hasattr(x, "__dict__"):
            self._all(vars(x))
            self._all(vars(x).values())
        else:
            raise _OneOfAKind

    def _all(self, values: Iterable[Any]) -> None:
        for v in values:
            self._read(v)

    def _function(self, f: Any) -> None:
        self.held.append(f.__code__)
        if id(f) in self.seen:
            return
        self.seen.add(id(f))
        for cell in f.__closure__ or ():
            try:
                inside = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            self._read(inside)
        self._all(f.__defaults__ or ())
        self._all((f.__kwdefaults__ or {}).values())
        self.held.append(f.__globals__)
        if f.__globals__ is self.globals:  # what other modules hold counts as constant
            self._names(f.__code__)

    def _names(self, code: types.CodeType) -> None:
        """The values of the globals that `code` and the functions in it mention, and the values of
        these names in modules among them."""
        if id(code) in self.seen:
            return
        self.seen.add(id(code))
        found = self.globals or {}
        for name in code.co_names:
            if name not in found:
                continue
            x = found[name]
            self._read(x)
            if isinstance(x, types.ModuleType):
                inside = vars(x)
                self.held += [inside[n] for n in code.co_names if n in inside]
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self._names(inner)


def meaning(fun: Callable) -> Meaning | None:
    """The meaning of a Python function or method; None where it cannot be told."""
    if not hasattr(fun, "__code__"):
        return None
    try:
        return Meaning(fun)
    except (_OneOfAKind, RecursionError):
        return None


__all__ = ["Meaning", "meaning"]
