"""The names of JAX's traceback filter that libraries import. Nothing is filtered here: errors name
the user's line themselves."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

_exclude_paths: list[str] = []


def register_exclusion(path: str) -> None:
    """Keep a path that a library does not want to see in tracebacks."""
    _exclude_paths.append(path)


def include_frame(frame: FrameType) -> bool:
    """Whether a frame is of none of those paths."""
    return not frame.f_code.co_filename.startswith(tuple(_exclude_paths) or ("\0",))


def api_boundary(fun: F, **options: object) -> F:
    """The function itself."""
    return fun
