"""`scale_by_backtracking_linesearch`: a step is shortened until the objective decreases enough."""

from __future__ import annotations

from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, value_and_grad
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import as_array
from genesis_fn.lax import while_loop
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Number, Params, Updates
from genesis_fn.optim.linesearch.objective import (
    Objective,
    as_like,
    of_parameters,
    point_along,
    print_where,
    real_scalar_dtype,
    scaled,
    slope_along,
)
from genesis_fn.optim.state import tree_math
from genesis_fn.optim.tree_map_updates import zero_count


class BacktrackingLinesearchInfo(NamedTuple):
    """Step sizes that were tried, and by how much the last one decreases the objective too little.

    A positive `decrease_error` says that none decreased it enough.
    """

    num_linesearch_steps: Array
    decrease_error: Array


class ScaleByBacktrackingLinesearchState(NamedTuple):
    """The step size found, value and gradient of the objective there, and how the search went.

    The gradient is None without `store_grad`.
    """

    learning_rate: Array
    value: Array
    grad: Updates | None
    info: BacktrackingLinesearchInfo


def scale_by_backtracking_linesearch(
    max_backtracking_steps: int | Array,
    slope_rtol: Number = 1e-4,
    decrease_factor: Number = 0.8,
    increase_factor: Number = 1.5,
    max_learning_rate: Number = 1.0,
    atol: Number = 0.0,
    rtol: Number = 0.0,
    store_grad: bool = False,
    verbose: bool = False,
) -> base.GradientTransformationExtraArgs:
    """Multiplies updates by a step size t that decreases the objective enough (Armijo's condition).

        f(w + t u) <= (1 + rtol) f(w) + t slope_rtol <u, grad f(w)> + atol

    t starts at min(increase_factor times the latest t, max_learning_rate) and is multiplied by
    decrease_factor until that holds. It is 0 where the objective is not finite at the last t tried,
    and that last t where the condition fails at all of them. u must be a direction of descent.

    `update` needs the parameters, and by name `value` and `grad`, the objective and its gradient at
    them, `value_fn`, the objective, a function of the parameters, and its further arguments. For
    complex parameters `grad`, as the updates, is the conjugate of what `genesis_fn.grad` gives.

    Source: Nocedal & Wright, "Numerical optimization", 1999, algorithm 3.1; Vaswani et al.,
    "Painless stochastic gradient", 2019.

    Args:
        max_backtracking_steps: largest number of times that t is decreased, >= 0.
        slope_rtol: part of the decrease along the slope that is asked for, in (0, 1).
        decrease_factor: what t is multiplied by, in (0, 1).
        increase_factor: what the latest t is multiplied by for the first guess; inf starts at
            `max_learning_rate`.
        max_learning_rate: largest t.
        atol: absolute tolerance of the condition.
        rtol: tolerance of the condition relative to the value.
        store_grad: whether the state keeps the gradient where the search ends, for
            `value_and_grad_from_state`.
        verbose: whether to print what the search met where it fails.

    Returns:
        The transformation, whose states are ScaleByBacktrackingLinesearchState(learning_rate,
        value, grad, info); info has num_linesearch_steps and decrease_error.

    Raises:
        ArgumentError: `max_backtracking_steps` is negative; or `update` is called without the
            parameters, or with arguments that `value_fn` does not take.

    >>> f = lambda w: jnp.sum(w**2)
    >>> w = jnp.array([1.0, 2.0])
    >>> tx = optim.chain(optim.sgd(1.0), optim.scale_by_backtracking_linesearch(15))
    >>> value, g = gf.value_and_grad(f)(w)
    >>> updates, state = tx.update(g, tx.init(w), w, value=value, grad=g, value_fn=f)
    >>> updates.round(4), state[1].info.num_linesearch_steps
    (Array([-1.6, -3.2], dtype=float32), Array(2, dtype=int32))
    """
    name = "scale_by_backtracking_linesearch"
    if isinstance(max_backtracking_steps, int) and max_backtracking_steps < 0:
        raise ArgumentError(f"{name}: max_backtracking_steps is {max_backtracking_steps}, not >= 0")

    def init(params: Params) -> ScaleByBacktrackingLinesearchState:
        dtype = real_scalar_dtype(params)
        unknown = jnp.full((), float("inf"), dtype)
        return ScaleByBacktrackingLinesearchState(
            jnp.ones((), dtype),
            unknown,
            tree_math.zeros_like(params) if store_grad else None,
            BacktrackingLinesearchInfo(zero_count(), unknown),
        )

    def update(
        updates: Updates,
        state: ScaleByBacktrackingLinesearchState,
        params: Params | None = None,
        *,
        value: ArrayLike,
        grad: Updates,
        value_fn: Objective,
        **extra: Any,
    ) -> tuple[Updates, ScaleByBacktrackingLinesearchState]:
        params = base.require_params(params, name)
        objective = of_parameters(value_fn, extra, name)
        latest = as_array(state.learning_rate)  # a number, where someone has put it into the state
        dtype = latest.dtype
        start = as_array(value).astype(dtype)
        slope = slope_along(updates, grad, dtype)

        def lacking(stepsize: Array, reached: Array) -> Array:
            """By how much the condition is missed at a step size; inf where that is unknown."""
            error = reached - (1.0 + rtol) * start - stepsize * slope_rtol * slope
            return jnp.where(jnp.isnan(error), float("inf"), jnp.maximum(error, 0.0))

        def goes_on(search: tuple[Array, ...]) -> Array:
            _, _, error, tried = search
            return ~(error <= atol) & (tried <= max_backtracking_steps)

        def attempt(search: tuple[Array, ...]) -> tuple[Array, ...]:
            stepsize, _, _, tried = search
            stepsize = jnp.where(tried > 0, decrease_factor * stepsize, stepsize).astype(dtype)
            reached = as_array(objective(point_along(params, stepsize, updates))).astype(dtype)
            return stepsize, reached, lacking(stepsize, reached).astype(dtype), tried + 1

        guess = jnp.minimum(increase_factor * latest, max_learning_rate).astype(dtype)
        unknown = jnp.full((), float("inf"), dtype)
        found = while_loop(goes_on, attempt, (guess, start, unknown, zero_count()))
        stepsize, reached, error, tried = found
        if verbose:
            _report(error > atol, start, slope, stepsize, error)
        end_grad = None
        if store_grad:
            _, at_end = value_and_grad(objective)(point_along(params, stepsize, updates))
            end_grad = as_like(at_end, params)
        # No step at all is better than one to where the objective is infinite or NaN.
        stepsize = jnp.where(jnp.isinf(error), 0.0, stepsize).astype(dtype)
        info = BacktrackingLinesearchInfo(tried, error)
        new = ScaleByBacktrackingLinesearchState(stepsize, reached, end_grad, info)
        return scaled(stepsize, updates), new

    return base.GradientTransformationExtraArgs(
        init, update, state=ScaleByBacktrackingLinesearchState
    )


def _report(failed: Array, value: Array, slope: Array, stepsize: Array, error: Array) -> None:
    print_where(
        failed,
        "scale_by_backtracking_linesearch: no step size decreases the objective enough\n"
        "  value {value}, slope along the updates {slope}, last step size {stepsize}, which misses "
        "the condition by {error}",
        value=value,
        slope=slope,
        stepsize=stepsize,
        error=error,
    )
    print_where(
        failed & jnp.isinf(error),
        "  the objective is not finite there: the step is 0, and the parameters stay",
    )
