"""`scale_by_zoom_linesearch`: a step size that satisfies the strong Wolfe conditions.

An interval that holds such a step size is sought by enlarging the step, then narrowed by
interpolation (Nocedal & Wright 1999, algorithms 3.5 and 3.6). Both phases evaluate the objective
once per iteration, so one loop runs them: a flag says which of them an iteration belongs to.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, value_and_grad
from genesis_fn.dtypes import DType
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
from genesis_fn.optim.tree_map_updates import BOOL, select, zero_count


class ZoomLinesearchInfo(NamedTuple):
    """Step sizes that were tried, and by how much the last one misses the two conditions.

    A positive `decrease_error` says that none decreased the objective enough; a positive
    `curvature_error` alone is harmless, and may come of a largest step size that is too small.
    """

    num_linesearch_steps: Array
    decrease_error: Array
    curvature_error: Array


class ScaleByZoomLinesearchState(NamedTuple):
    """The step size found, value and gradient of the objective there, and how the search went."""

    learning_rate: Array
    value: Array
    grad: Updates
    info: ZoomLinesearchInfo


class _Point(NamedTuple):
    """A step size t, and value and slope of t -> f(w + t u) there."""

    stepsize: Array
    value: Array
    slope: Array


class _Reached(NamedTuple):
    """A step size to which the search may go, and value and gradient of the objective there."""

    stepsize: Array
    value: Array
    grad: Updates


class _Errors(NamedTuple):
    """By how much a step size misses the conditions of decrease and of curvature."""

    decrease: Array
    curvature: Array


class _Trial(NamedTuple):
    """A step size that was tried: what was found there, and what it means for the search.

    `enough` says that the objective decreases enough, `done` that both conditions hold, `last` that
    no further step size may be tried.
    """

    point: _Point
    grad: Updates
    errors: _Errors
    enough: Array
    done: Array
    last: Array

    def reached(self) -> _Reached:
        return _Reached(self.point.stepsize, self.point.value, self.grad)


class _Search(NamedTuple):
    """The search after `count` evaluations.

    `low` and `high` are the ends of the interval, f(low) <= f(high), whichever is the larger step;
    `third` is the end that was given up last, which the cubic goes through too. `safe` decreases
    the objective enough, for where no step satisfies the curvature condition; its step size is 0
    as long as there is none.
    """

    count: Any
    point: _Point
    grad: Updates
    errors: _Errors
    low: _Point
    high: _Point
    third: _Point
    safe: _Reached
    interval_found: Array
    done: Array
    failed: Array


class _Conditions(NamedTuple):
    """The conditions on a step size, as measured from the start of the search."""

    start: _Point
    slope_rtol: Number
    curv_rtol: Number
    approx_dec_rtol: Number | None

    def errors(self, at: _Point) -> _Errors:
        """Returns by how much they are missed; inf where that is NaN."""
        _, value, slope = self.start
        # (3.7a) of Nocedal & Wright.
        decrease = at.value - value - self.slope_rtol * at.stepsize * slope
        if self.approx_dec_rtol is not None:
            # (23), (26), (27) of Hager & Zhang: near a minimum, where values differ by rounding
            # alone, slopes tell of a decrease.
            by_slope = at.slope - (2 * self.slope_rtol - 1.0) * slope
            near = at.value - value - self.approx_dec_rtol * jnp.abs(value)
            decrease = jnp.minimum(jnp.maximum(by_slope, near), decrease)
        # (3.7b) of Nocedal & Wright.
        curvature = jnp.abs(at.slope) - self.curv_rtol * jnp.abs(slope)
        # In the value's dtype, whatever that of the options.
        return _Errors(*(_excess(e).astype(value.dtype) for e in (decrease, curvature)))


def _excess(x: Array) -> Array:
    return jnp.where(jnp.isnan(x), float("inf"), jnp.maximum(x, 0.0)).astype(x.dtype)


def scale_by_zoom_linesearch(
    max_linesearch_steps: int | Array,
    max_learning_rate: Number | None = None,
    tol: Number = 0.0,
    increase_factor: Number = 2.0,
    slope_rtol: Number = 1e-4,
    curv_rtol: Number = 0.9,
    approx_dec_rtol: Number | None = 1e-6,
    stepsize_precision: Number = 1e-5,
    initial_guess_strategy: str = "keep",
    verbose: bool = False,
) -> base.GradientTransformationExtraArgs:
    """Multiplies updates by a step size t that satisfies the strong Wolfe conditions.

        f(w + t u) <= f(w) + t slope_rtol <u, grad f(w)> + tol         (decrease)
        |<u, grad f(w + t u)>| <= curv_rtol |<u, grad f(w)>| + tol     (curvature)

    The decrease is also enough where <u, grad f(w + t u)> <= (2 slope_rtol - 1) <u, grad f(w)> and
    f(w + t u) <= f(w) + approx_dec_rtol |f(w)|, which rounding cannot hide near a minimum. Where
    the search ends without such a t, it takes the best t that decreases the objective enough, else
    the last one, or 0 where the objective is not finite there. u must be a direction of descent.

    `update` needs the parameters, and by name `value` and `grad`, the objective and its gradient at
    them, `value_fn`, the objective, a function of the parameters, and its further arguments. For
    complex parameters `grad`, as the updates, is the conjugate of what `genesis_fn.grad` gives.

    Source: Nocedal & Wright, "Numerical optimization", 1999, algorithms 3.5 and 3.6; Hager & Zhang,
    "Algorithm 851: CG_DESCENT, a conjugate gradient method with guaranteed descent", 2006.

    Args:
        max_linesearch_steps: largest number of step sizes that are tried.
        max_learning_rate: largest t; None: any.
        tol: tolerance of both conditions.
        increase_factor: what t is multiplied by until an interval is found.
        slope_rtol: part of the decrease along the slope that is asked for, in (0, 1).
        curv_rtol: part of the slope that may remain, in (slope_rtol, 1); inf: any.
        approx_dec_rtol: tolerance of the other condition of decrease; None: it is not used.
        stepsize_precision: length of the interval at which the search takes what it has.
        initial_guess_strategy: "keep" starts at the latest t, "one" at 1.
        verbose: whether to print what the search met where it fails.

    Returns:
        The transformation, whose states are ScaleByZoomLinesearchState(learning_rate, value, grad,
        info); info has num_linesearch_steps, decrease_error and curvature_error.

    Raises:
        ArgumentError: `initial_guess_strategy` is neither; or `update` is called without the
            parameters, or with arguments that `value_fn` does not take.

    >>> f = lambda w: jnp.sum(w**2)
    >>> w = jnp.array([1.0, 2.0])
    >>> tx = optim.chain(optim.sgd(1.0), optim.scale_by_zoom_linesearch(15))
    >>> value, g = gf.value_and_grad(f)(w)
    >>> updates, state = tx.update(g, tx.init(w), w, value=value, grad=g, value_fn=f)
    >>> updates, state[1].info.num_linesearch_steps
    (Array([-1., -2.], dtype=float32), Array(2, dtype=int32))
    """
    name = "scale_by_zoom_linesearch"
    if initial_guess_strategy not in ("keep", "one"):
        raise ArgumentError(
            f'{name}: initial_guess_strategy is "keep" or "one", got {initial_guess_strategy!r}'
        )

    def init(params: Params) -> ScaleByZoomLinesearchState:
        dtype = real_scalar_dtype(params)
        unknown = jnp.full((), float("inf"), dtype)
        return ScaleByZoomLinesearchState(
            jnp.ones((), dtype),
            unknown,
            tree_math.zeros_like(params),
            ZoomLinesearchInfo(zero_count(), unknown, unknown),
        )

    def update(
        updates: Updates,
        state: ScaleByZoomLinesearchState,
        params: Params | None = None,
        *,
        value: ArrayLike,
        grad: Updates,
        value_fn: Objective,
        **extra: Any,
    ) -> tuple[Updates, ScaleByZoomLinesearchState]:
        params = base.require_params(params, name)
        value_and_gradient = value_and_grad(of_parameters(value_fn, extra, name))
        latest = as_array(state.learning_rate)  # a number, where someone has put it into the state
        dtype = latest.dtype
        start = _Point(
            jnp.zeros((), dtype), as_array(value).astype(dtype), slope_along(updates, grad, dtype)
        )
        conditions = _Conditions(start, slope_rtol, curv_rtol, approx_dec_rtol)
        guess = jnp.ones((), dtype) if initial_guess_strategy == "one" else latest

        def iteration(search: _Search) -> _Search:
            larger, at_most = _larger_stepsize(
                search, guess, increase_factor, max_learning_rate, dtype
            )
            inside = _interpolated(search.low, search.high, search.third)
            stepsize = jnp.where(search.interval_found, inside, larger).astype(dtype)
            value, gradient = value_and_gradient(point_along(params, stepsize, updates))
            slope = slope_along(updates, tree_math.conj(gradient), dtype)
            point = _Point(stepsize, value.astype(dtype), slope)
            errors = conditions.errors(point)
            trial = _Trial(
                point,
                as_like(gradient, params),
                errors,
                enough=errors.decrease <= tol,
                done=jnp.maximum(errors.decrease, errors.curvature) <= tol,
                last=search.count + 1 >= max_linesearch_steps,
            )
            narrow = jnp.abs(search.high.stepsize - search.low.stepsize) <= stepsize_precision
            zoomed, bracketed = _zoomed(search, trial, narrow), _bracketed(search, trial, at_most)
            return select(search.interval_found, zoomed, bracketed)

        unknown = jnp.full((), float("inf"), dtype)
        no = jnp.zeros((), BOOL)
        # The gradients kept are those that `value_and_grad` gives.
        first_grad = as_like(tree_math.conj(grad), params)
        search = while_loop(
            _goes_on,
            iteration,
            _Search(
                zero_count(),
                start,
                first_grad,
                _Errors(unknown, unknown),
                low=start,
                high=start,
                third=start,
                safe=_Reached(start.stepsize, start.value, first_grad),
                interval_found=no,
                done=no,
                failed=no,
            ),
        )
        if verbose:
            _report(search, start, stepsize_precision)
        stepsize, end_value, end_grad = _end(search)
        info = ZoomLinesearchInfo(search.count, search.errors.decrease, search.errors.curvature)
        new = ScaleByZoomLinesearchState(stepsize, end_value, end_grad, info)
        return scaled(stepsize, updates), new

    return base.GradientTransformationExtraArgs(init, update, state=ScaleByZoomLinesearchState)


def _goes_on(search: _Search) -> Array:
    return ~(search.done | search.failed)


def _end(search: _Search) -> _Reached:
    """Returns where the search goes: to its last point, or if it failed to the safe one."""
    last = _Reached(search.point.stepsize, search.point.value, search.grad)
    no_value = jnp.isinf(search.errors.decrease)
    use_safe = search.failed & ((search.safe.stepsize > 0.0) | no_value)
    return select(use_safe, search.safe, last)


def _larger_stepsize(
    search: _Search, guess: Array, factor: Number, largest: Number | None, dtype: DType
) -> tuple[Array, Array]:
    """Returns the next step size while no interval is found, and whether it is the largest."""
    stepsize = jnp.where(search.count == 0, guess, factor * search.point.stepsize).astype(dtype)
    if largest is None:
        return stepsize, jnp.zeros((), BOOL)
    return jnp.minimum(stepsize, largest), stepsize >= largest


def _bracketed(search: _Search, trial: _Trial, at_most: Array) -> _Search:
    """Algorithm 3.5: whether the new point and the one before it enclose what is sought."""
    before, point = search.point, trial.point
    rises = (trial.errors.decrease > 0.0) | ((point.value >= before.value) & (search.count > 0))
    turns = (point.slope >= 0.0) & ~rises
    low, high = select(turns, (point, before), (before, point))
    found = rises | turns | trial.done
    # At the largest step size, where the objective is low enough but still falls, nothing is left.
    done = trial.done | (at_most & ~found)
    return _Search(
        search.count + 1,
        point,
        trial.grad,
        trial.errors,
        low,
        high,
        third=low,
        safe=select(trial.enough, trial.reached(), search.safe),
        interval_found=found,
        done=done,
        failed=trial.last & ~done,
    )


def _zoomed(search: _Search, trial: _Trial, narrow: Array) -> _Search:
    """Algorithm 3.6: the part of the interval, cut at the new point, that holds what is sought."""
    low, high, point = search.low, search.high, trial.point
    rises = (trial.errors.decrease > 0.0) | (point.value >= low.value)
    turns = (point.slope * (high.stepsize - low.stepsize) >= 0.0) & ~rises
    better = trial.enough & (point.value < search.safe.value)
    safe = select(better, trial.reached(), search.safe)
    # Without a safe step the search goes on: very steep functions need very small steps.
    gives_up = trial.last | (narrow & (safe.stepsize > 0.0))
    return _Search(
        search.count + 1,
        point,
        trial.grad,
        trial.errors,
        low=select(rises, low, point),
        high=select(rises, point, select(turns, low, high)),
        third=select(rises | turns, high, low),
        safe=safe,
        interval_found=search.interval_found,
        done=trial.done,
        failed=gives_up & ~trial.done,
    )


def _interpolated(low: _Point, high: _Point, third: _Point) -> Array:
    """Returns a step size between low and high: a cubic's minimum, a quadratic's, or the middle.

    A minimum counts where it is not next to an end: 0.2, or 0.1 of the interval from it.
    """
    length = jnp.abs(high.stepsize - low.stepsize)
    left = jnp.minimum(high.stepsize, low.stepsize)
    right = jnp.maximum(high.stepsize, low.stepsize)

    def inside(t: Array, part: float) -> Array:
        return (t > left + part * length) & (t < right - part * length)

    cubic, quadratic = _cubic_minimum(low, high, third), _quadratic_minimum(low, high)
    middle = (low.stepsize + high.stepsize) / 2.0
    other = jnp.where(inside(quadratic, 0.1), quadratic, middle)
    return jnp.where(inside(cubic, 0.2), cubic, other)


def _cubic_minimum(low: _Point, high: _Point, third: _Point) -> Array:
    """Where p(t) = a d**3 + b d**2 + c d + e, d = t - low, is least; NaN where it is nowhere.

    p has the values of the three points, and the slope of the first.
    """
    p, q = high.stepsize - low.stepsize, third.stepsize - low.stepsize
    c = low.slope
    over_p, over_q = high.value - low.value - c * p, third.value - low.value - c * q
    divisor = (p * q) ** 2 * (p - q)
    a = (q**2 * over_p - p**2 * over_q) / divisor
    b = (p**3 * over_q - q**3 * over_p) / divisor
    return low.stepsize + (-b + jnp.sqrt(b * b - 3.0 * a * c)) / (3.0 * a)


def _quadratic_minimum(low: _Point, high: _Point) -> Array:
    """Where the quadratic with two values, and the slope of the first point, is stationary."""
    p = high.stepsize - low.stepsize
    b = (high.value - low.value - low.slope * p) / p**2
    return low.stepsize - low.slope / (2.0 * b)


def _report(search: _Search, start: _Point, precision: Number) -> None:
    """Prints what the search met: where it failed, or ended at the largest step size."""
    missed = search.failed | (jnp.maximum(*search.errors) > 0.0)
    print_where(
        missed,
        "scale_by_zoom_linesearch: no step size satisfies both conditions\n"
        "  value {value}, slope along the updates {slope}; the step size {stepsize} misses the "
        "decrease by {decrease}, the curvature by {curvature}",
        value=start.value,
        slope=start.slope,
        stepsize=search.point.stepsize,
        decrease=search.errors.decrease,
        curvature=search.errors.curvature,
    )
    at_most = missed & ~search.failed
    print_where(at_most, "  the largest step size is taken: a larger one may be needed")
    length = jnp.abs(search.high.stepsize - search.low.stepsize)
    print_where(
        search.failed & (length <= precision), "  the interval became too short: {length}",
        length=length,
    )  # fmt: skip
    safe = search.failed & (search.safe.stepsize > 0.0)
    print_where(
        safe,
        "  the step size {stepsize} is taken, which decreases the objective enough",
        stepsize=search.safe.stepsize,
    )
    lost = search.failed & ~safe
    ascends = lost & ~(start.slope < 0.0)
    print_where(ascends, "  the updates are no direction of descent: the slope is not negative")
    no_value = jnp.isinf(search.errors.decrease)
    print_where(lost & no_value, "  the objective is not finite: the step is 0")
    print_where(
        lost & ~no_value & ~ascends,
        "  no step size decreases the objective enough: allow more steps, or scale the parameters",
    )
