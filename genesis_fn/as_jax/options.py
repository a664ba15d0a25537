"""Arguments of JAX's that functions of the library lack, taken as long as they ask for nothing.

Libraries pass them on with their default (`spmd_axis_name=None`). A value that asks for something
raises, by name, but for those that only say how XLA is to compute the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from genesis_fn.as_jax.stubs import MissingError
from genesis_fn.lax import dot_general

# {function: the arguments that it takes in JAX, and not here}.
LACKING = {
    "jax.grad": ("reduce_axes",),
    "jax.value_and_grad": ("reduce_axes",),
    "jax.vjp": ("reduce_axes",),
    "jax.vmap": ("spmd_axis_name", "sum_match"),
    "jax.lax.scan": ("_split_transpose",),
    "jax.numpy.einsum": ("_dot_general",),
}
_HINTS = {"_split_transpose"}  # how the same is computed


def with_options(full: str, value: Any) -> Any:
    """What a module of JAX's shows as `full`: `value`, or a function over it that takes more."""
    return _taking(full, value, LACKING[full]) if full in LACKING else value


def _taking(full: str, fun: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name in names:
            if name in kwargs and not _asks_for_nothing(name, kwargs.pop(name)):
                raise MissingError(f"genesis_fn.as_jax: {full} has no argument {name}")
        return fun(*args, **kwargs)

    return call


def _asks_for_nothing(name: str, value: Any) -> bool:
    if getattr(value, "__wrapped__", value) is dot_general:  # as jax.lax shows it
        return True
    return name in _HINTS or value is None or value in ((), False)
