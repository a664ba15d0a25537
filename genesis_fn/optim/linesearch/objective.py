"""What line searches share: the objective along a direction, and values and gradients kept."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, debug, tree, value_and_grad
from genesis_fn.dtypes import DType
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import as_array, real_of
from genesis_fn.lax import cond
from genesis_fn.optim import base
from genesis_fn.optim.annotations import OptState, Params, Updates
from genesis_fn.optim.state import state_access, tree_math
from genesis_fn.optim.tree_map_updates import is_none, wide_dtype, widest_float

Objective = Callable[..., Any]  # that gives a scalar


def real_scalar_dtype(params: Params) -> DType:
    """Returns the dtype of step sizes, values and slopes: the parameters' widest, or float32."""
    return wide_dtype(widest_float(params))


def slope_along(updates: Updates, grad: Updates, dtype: DType) -> Array:
    """Returns the derivative of t -> f(w + t u) at 0, with `grad` the direction of ascent at w.

    For complex parameters that is the conjugate of what `genesis_fn.grad` gives.
    """
    return jnp.real(tree_math.vdot(updates, grad)).astype(dtype)


def point_along(params: Params, stepsize: ArrayLike, updates: Updates) -> Params:
    """Returns params + stepsize * updates in the parameters' dtypes."""
    return base.apply_updates(params, scaled(stepsize, updates))


def scaled(stepsize: ArrayLike, updates: Updates) -> Updates:
    """Returns stepsize * updates, each leaf in its own dtype; None where a leaf is frozen."""

    def at(u: ArrayLike | None) -> Array | None:
        if u is None:
            return None
        u = as_array(u)
        return u * as_array(stepsize).astype(real_of(u.dtype))

    return tree.map(at, updates, is_leaf=is_none)


def as_like(values: Updates, params: Params) -> Updates:
    """Converts arrays to the dtypes of the parameters; None where a parameter is None."""
    return tree.map(
        lambda p, x: None if p is None else as_array(x).astype(as_array(p).dtype),
        params,
        values,
        is_leaf=is_none,
    )


def of_parameters(value_fn: Objective, extra: dict[str, Any], name: str) -> Objective:
    """Returns `value_fn` as a function of the parameters alone, its other arguments from `extra`.

    Raises:
        ArgumentError: `extra` has an argument that `value_fn` does not take.
    """
    parameters = inspect.signature(value_fn).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [] if takes_all else sorted({*extra} - {*parameters})
    if unknown:
        raise ArgumentError(
            f"{name}: update got {', '.join(unknown)}, which value_fn does not take; it takes "
            f"{', '.join(parameters)}\n"
            "  give update the arguments of value_fn by their names, and no others"
        )
    return lambda params: value_fn(params, **extra)


def print_where(condition: Array, text: str, **values: Any) -> None:
    """Prints `text`, with the values in its braces, where the condition holds at run time."""
    cond(condition, lambda: debug.print(text, **values), lambda: None)


def value_and_grad_from_state(value_fn: Objective) -> Callable[..., tuple[Array, Updates]]:
    """Makes a function like `value_and_grad(value_fn)` that first looks into an optimizer's state.

        (value, grad) of the state where that value is finite, else of value_fn(params)

    A line search evaluates the objective where it ends, so that the next step needs no evaluation
    of its own. The state's value is infinite before the first step.

    Args:
        value_fn: function (params, ...) -> scalar, the one that is given to `update`.

    Returns:
        The function (params, *args, state, **kwargs) -> (value, gradient), of the dtypes that the
        state has; `args` and `kwargs` go to `value_fn`.

    Raises:
        ArgumentError: the function is called with a state that has no value, or no gradient (see
            `store_grad`).
        KeyError: or with one that has several.

    >>> f = lambda w: jnp.sum(w**2)
    >>> tx, w = optim.lbfgs(), jnp.array([1.0, 2.0])
    >>> value, grad = optim.value_and_grad_from_state(f)(w, state=tx.init(w))
    >>> value, grad
    (Array(5., dtype=float32), Array([2., 4.], dtype=float32))
    """

    def from_state(
        params: Params, *args: Any, state: OptState, **kwargs: Any
    ) -> tuple[Array, Updates]:
        value, grad = (state_access.get(state, name) for name in ("value", "grad"))
        if value is None or grad is None:
            raise ArgumentError(
                "value_and_grad_from_state: the state keeps no "
                f"{'value' if value is None else 'gradient'}\n"
                "  take a line search that does: optim.scale_by_zoom_linesearch, or "
                "optim.scale_by_backtracking_linesearch(..., store_grad=True)"
            )

        def computed() -> tuple[Array, Updates]:
            new_value, new_grad = value_and_grad(value_fn)(params, *args, **kwargs)
            return new_value.astype(value.dtype), as_like(new_grad, grad)

        return cond(jnp.isfinite(value), lambda: (value, grad), computed)

    return from_state
