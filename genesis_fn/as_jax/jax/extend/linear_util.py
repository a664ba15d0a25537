"""The names of `jax.extend.linear_util` that libraries import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis_fn.as_jax.stubs import stub

wrap_init = stub("jax.extend.linear_util.wrap_init", "the function itself")
WrappedFun = stub("jax.extend.linear_util.WrappedFun")


def transformation(gen: Callable[..., Any]) -> Any:
    """Decorates what libraries define and the library cannot run."""
    return stub(f"{gen.__module__}.{gen.__qualname__}")


transformation_with_aux = transformation
