"""Step sizes along a direction that satisfy the strong Wolfe conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core.types.annotations import Array

ValueAndGrad = Callable[[Array], tuple[Array, Array]]
SUFFICIENT_DECREASE, CURVATURE = 1e-4, 0.9
MOST_ZOOMS = 30


class Point(NamedTuple):
    """A step size: the value, the slope and the gradient of the function there."""

    step: Array
    value: Array
    slope: Array
    gradient: Array


class Step(NamedTuple):
    """What a line search found: a point, the evaluations that it took, and its end.

    `status` is 0 where both conditions hold, 1 where the bracket shrank to nothing, and 3 where
    none was found; `point` is then the lowest one seen that decreases enough.
    """

    point: Point
    evaluations: Array
    status: Array


class _State(NamedTuple):
    """A search: its bracket, the next trial, and what was counted."""

    low: Point  # decreases enough, the lowest such; while no bracket is found, the last trial
    high: Point  # the other end of the bracket
    third: Point  # what the bracket lost last, for a cubic
    bracketed: Array
    done: Array
    trial: Array
    trials: Array  # before the bracket, from 1 on
    zooms: Array


def _chosen(condition: Array, a: Point, b: Point) -> Point:
    return Point(*[np.where(condition, x, y) for x, y in zip(a, b)])


def _between(low: Point, high: Point, third: Point, zooms: Array) -> Array:
    """The next trial: the minimum of the cubic through three points and the slope at the lowest,
    if it lies well inside of the bracket; else that of a parabola; else the middle."""
    width = high.step - low.step
    other = third.step - low.step
    # value - low.value - slope t = a t^3 + b t^2 at both ends
    at_high = (high.value - low.value - low.slope * width) / width**2
    at_third = (third.value - low.value - low.slope * other) / other**2
    a = (at_high - at_third) / (width - other)
    b = at_high - a * width
    cubic = (-b + np.sqrt(b * b - 3 * a * low.slope)) / (3 * a)
    parabola = -low.slope / (2 * at_high)
    # NaNs compare as false.
    use_cubic = (zooms > 0) & (cubic / width > 0.2) & (cubic / width < 0.8)
    use_parabola = (parabola / width > 0.1) & (parabola / width < 0.9)
    t = np.where(use_cubic, cubic, np.where(use_parabola, parabola, width / 2))
    return low.step + t


def line_search(
    fun: ValueAndGrad, x: Array, direction: Array, value: Array, gradient: Array, first: Array,
    maxiter: int,
) -> Step:  # fmt: skip
    """A step t with

        f(x + t p) <= f(x) + c1 t f'(x) p   and   |f'(x + t p) p| <= c2 |f'(x) p|

    Source: Nocedal and Wright (1999), "Numerical Optimization", algorithms 3.5 and 3.6. Both are
    one loop here that evaluates the function once in each round, so that searches that are batched
    wait for no others' inner loops.

    Args:
        fun: x -> (value, gradient), of a vector.
        x: where to start, [n].
        direction: p, [n], along which the function decreases at first.
        value: f(x).
        gradient: f'(x), [n].
        first: the step size to try first.
        maxiter: the most steps, each twice the one before, until a bracket is found.
    """
    dot = lambda g: np.vdot(g, direction, precision="highest")
    origin = Point(np.zeros_like(value), value, dot(gradient), gradient)
    eps = float(np.finfo(x.dtype).eps)

    def round_(s: _State) -> _State:
        f, g = fun(x + s.trial * direction)
        point = Point(s.trial, f, dot(g), g)
        # A NaN is as good as infinity.
        decreases = f <= origin.value + SUFFICIENT_DECREASE * s.trial * origin.slope
        later = s.bracketed | (s.trials > 1)
        worse = ~decreases | (later & ~(f < s.low.value))
        done = ~worse & (np.abs(point.slope) <= -CURVATURE * origin.slope)
        # Whether the minimum lies between the new point and the old lowest one. While there is no
        # bracket, slopes are measured against the direction of the search.
        ahead = np.where(s.bracketed, s.high.step - s.low.step, 1.0)
        behind = ~worse & ~done & (point.slope * ahead >= 0)
        bracketed = s.bracketed | worse | behind
        low = _chosen(worse, s.low, point)
        high = _chosen(worse, point, _chosen(behind, s.low, s.high))
        third = _chosen(worse | behind, s.high, s.low)
        fresh = bracketed & ~s.bracketed
        third = _chosen(fresh, origin, third)
        zooms = np.where(bracketed & ~fresh, s.zooms + 1, s.zooms)
        # The third point tells something once the bracket has shrunk.
        trial = np.where(bracketed, _between(low, high, third, zooms), 2 * s.trial)
        return _State(low, high, third, bracketed, done, trial, s.trials + ~s.bracketed, zooms)

    def _width(s: _State) -> Array:
        return np.abs(s.high.step - s.low.step) / np.maximum(s.low.step, s.high.step)

    def unfinished(s: _State) -> Array:
        zooming = (s.zooms < MOST_ZOOMS) & (_width(s) > 4 * eps)
        return ~s.done & np.where(s.bracketed, zooming, s.trials <= maxiter)

    false, zero = np.zeros((), bool), np.zeros((), "int32")
    start = _State(origin, origin, origin, false, false, first.astype(value.dtype), zero + 1, zero)
    end: Any = lax.while_loop(unfinished, round_, start)
    status = np.where(end.done, 0, np.where(end.bracketed, 1, 3)).astype("int32")
    # Trials: those before a bracket, the one that found it included, and the zooms.
    return Step(end.low, end.trials - 1 + end.zooms, status)
