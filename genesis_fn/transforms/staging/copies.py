"""Pickling and copying of transformed functions: by name where they can be imported, else by what
they transform. Traced programs are not copied."""

from __future__ import annotations

import abc
import copy
import sys
from collections.abc import Callable
from typing import Any


def importable(f: object) -> str | None:
    """The qualified name by which another process can import `f`; None if there is none, or if the
    pickler is one that sends functions by value, as cloudpickle does for the main program."""
    caller = sys._getframe(2).f_globals.get("__name__", "")  # pyright: ignore[reportPrivateUsage]
    if "cloudpickle" in caller or caller.partition(".")[0] == "dill":
        return None
    name = getattr(f, "__qualname__", None)
    value: Any = sys.modules.get(getattr(f, "__module__", None) or "")
    for part in (name or "").split("."):
        value = getattr(value, part, None)
    return name if value is f and value is not None else None


class Copied(abc.ABC):
    """Base of callables that are copied and pickled by transforming the function again."""

    @abc.abstractmethod
    def _parts(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """(function, its arguments) that makes another one."""

    def __reduce__(self) -> Any:
        name = importable(self)
        return self._parts() if name is None else name

    def __copy__(self) -> Any:
        remake, parts = self._parts()
        return remake(*parts)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        remake, parts = self._parts()
        copied = memo[id(self)] = remake(*[copy.deepcopy(p, memo) for p in parts])
        return copied
