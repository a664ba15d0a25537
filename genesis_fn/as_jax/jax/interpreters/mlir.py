"""The names of JAX's lowering that libraries import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis_fn.as_jax.stubs import stub

emit_python_callback = stub("jax.interpreters.mlir.emit_python_callback", "jax.pure_callback")


def lower_fun(fun: Callable[..., Any], multiple_results: bool = True) -> Callable[..., Any]:
    """The function itself: lowerings that libraries register are read by nothing."""
    return fun


def register_lowering(prim: Any, rule: Any, *args: Any, **kwargs: Any) -> Any:
    """Nothing: operations of JAX's `Primitive` refuse when they are used."""
    return rule
