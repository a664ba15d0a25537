"""What is JAX's alone in `jax.lax`."""

from __future__ import annotations

from typing import Any

from genesis_fn.primitives import stop_gradient_p as stop_gradient_p
from genesis_fn.transforms.control_flow import conditionals


def cond(pred: Any, *args: Any, **kwargs: Any) -> Any:
    """`genesis_fn.lax.cond`, or JAX's first form of it, in which each branch has an operand of its
    own: cond(pred, true_operand, true_fun, false_operand, false_fun)."""
    if len(args) == 4 and not kwargs and callable(args[1]) and callable(args[3]):
        own, true_fun, other, false_fun = args
        return conditionals.cond(
            pred, lambda x, y: true_fun(x), lambda x, y: false_fun(y), own, other
        )
    return conditionals.cond(pred, *args, **kwargs)
