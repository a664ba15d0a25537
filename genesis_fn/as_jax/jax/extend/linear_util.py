"""The names of `jax.extend.linear_util` that libraries import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis_fn.as_jax.stubs import stub


class WrappedFun:
    """A function that `call_wrapped` calls."""

    def __init__(self, f: Callable[..., Any], debug_info: Any = None) -> None:
        self.f, self.debug_info = f, debug_info
        self.call_wrapped = f


def wrap_init(f: Callable[..., Any], params: Any = None, *, debug_info: Any = None) -> WrappedFun:
    """A function of arrays as `jax.interpreters` and `jax.api_util` take it."""
    return WrappedFun(f, debug_info)


def transformation(gen: Callable[..., Any]) -> Any:
    """Decorates what libraries define and the library cannot run."""
    return stub(f"{gen.__module__}.{gen.__qualname__}")


transformation_with_aux = transformation
