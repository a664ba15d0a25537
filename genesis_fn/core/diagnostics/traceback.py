"""Tracebacks without the library's own frames.

An exception that leaves a transformed function keeps the user's frames and loses those in between
that are the library's own. `GENESIS_TRACEBACK=full` keeps all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from genesis_fn.core.configuration import environment
from genesis_fn.core.diagnostics.source_info import is_internal

E = TypeVar("E", bound=BaseException)
_FULL = environment.text("GENESIS_TRACEBACK").lower() == "full"


def trimmed(error: E) -> E:
    """`error` with the library's frames taken out of its traceback, and of its causes'."""
    if not _FULL:
        seen: BaseException | None = error
        while seen is not None:
            seen.__traceback__ = _users(seen.__traceback__)
            seen = seen.__cause__
    return error


def _users(tb: TracebackType | None) -> TracebackType | None:
    frames = []
    while tb is not None:
        if not is_internal(tb.tb_frame.f_code):
            frames.append(tb)
        tb = tb.tb_next
    result: TracebackType | None = None
    for t in reversed(frames):
        result = TracebackType(result, t.tb_frame, t.tb_lasti, t.tb_lineno)
    return result


def boundary(fun: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: `functools.wraps(fun)` of a function that users call, with trimmed errors."""

    def decorate(call: Callable[..., Any]) -> Callable[..., Any]:
        # What a transformed function keeps is not for its wrapper, nor for copies of that.
        own = type(fun).__module__.startswith("genesis_fn.")

        @functools.wraps(fun, updated=() if own else ("__dict__",))
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return call(*args, **kwargs)
            except Exception as error:
                raise trimmed(error)  # noqa: B904

        return guarded

    return decorate
