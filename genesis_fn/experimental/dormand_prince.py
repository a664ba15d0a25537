"""Steps of the method of Dormand and Prince of order 5, with errors from one of order 4.

Source: Dormand and Prince (1980), "A family of embedded Runge-Kutta formulae"; between steps, the
value in their middle of Shampine (1986), "Some practical Runge-Kutta formulas".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as onp

import genesis_fn.numpy as np
from genesis_fn.core import dtypes
from genesis_fn.core.array import from_numpy
from genesis_fn.core.types.annotations import Array

Slope = Callable[[Array, Array], Array]  # (y, t) -> dy/dt

# Row i: what the slopes before it add to stage i; the last row is the solution.
_STAGES = [
    [1 / 5],
    [3 / 40, 9 / 40],
    [44 / 45, -56 / 15, 32 / 9],
    [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
    [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
    [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
]
_TIMES = [1 / 5, 3 / 10, 4 / 5, 8 / 9, 1, 1]
_FOURTH_ORDER = onp.array(
    [5179 / 57600, 0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40]
)
_ERROR = onp.array([*_STAGES[-1], 0.0]) - _FOURTH_ORDER
_MIDDLE = onp.array([
    6025192743 / 30085553152, 0, 51252292925 / 65400821598, -2691868925 / 45128329728,
    187940372067 / 1594534317056, -1776094331 / 19743644256, 11237099 / 235043384,
]) / 2  # fmt: skip


class Stepped(NamedTuple):
    """A step from y to `y`, with the slope there, an estimate of its error, and the coefficients
    [5, n] of a polynomial through it, in the part of the step that has gone, the highest first."""

    y: Array
    slope: Array
    error: Array
    polynomial: Array


def _sum(weights: onp.ndarray | list[float], slopes: list[Array]) -> Array:
    """Few products, which are one kernel in a compiled program."""
    terms = [float(w) * k for w, k in zip(weights, slopes) if w != 0]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def step(f: Slope, y: Array, slope: Array, t: Array, dt: Array) -> Stepped:
    """One step of length dt from y at t, where the slope is known."""
    h = dt.astype(y.dtype)
    slopes, at = [slope], y
    for weights, part in zip(_STAGES, _TIMES):
        at = y + h * _sum(weights, slopes)
        slopes.append(f(at, t + part * dt))
    middle = y + h * _sum(_MIDDLE, slopes)
    start, end = h * slopes[0], h * slopes[-1]
    # The polynomial with these values and slopes at both ends, and the value in the middle.
    polynomial = np.stack([
        2 * (end - start) - 8 * (y + at) + 16 * middle,
        5 * start - 3 * end + 18 * y + 14 * at - 32 * middle,
        end - 4 * start - 11 * y - 5 * at + 16 * middle,
        start,
        y,
    ])  # fmt: skip
    return Stepped(at, slopes[-1], h * _sum(_ERROR, slopes), polynomial)


def error_ratio(error: Array, before: Array, after: Array, rtol: float, atol: float) -> Array:
    """The root mean square of errors in units of what is tolerated."""
    scale = atol + rtol * np.maximum(np.abs(before), np.abs(after))
    return np.sqrt(np.mean(np.square(np.abs(error) / scale)))


def next_step(dt: Array, ratio: Array) -> Array:
    """The length that the error asks for: 0.2 to 10 times the last one, no shorter after a step
    that was good enough.

    Source: Hairer, Nørsett and Wanner (1993), "Solving ordinary differential equations I", II.4.
    """
    shortest = np.where(ratio <= 1, 1.0, 0.2)
    # A NaN is as bad as infinity.
    wanted = np.where(np.isnan(ratio), 0.0, 0.9 * np.maximum(ratio, 1e-10) ** -0.2)
    return dt * np.clip(wanted, shortest, 10.0).astype(dt.dtype)


def first_step(f: Slope, y: Array, slope: Array, t: Array, rtol: float, atol: float) -> Array:
    """A length to start with, from the sizes of the slope and of its change over a short step.

    Source: Hairer, Nørsett and Wanner (1993), "Solving ordinary differential equations I", II.4.
    """
    scale = atol + rtol * np.abs(y)
    size = lambda v: np.sqrt(np.mean(np.square(np.abs(v) / scale)))
    d0, d1 = size(y), size(slope)
    flat = (d0 < 1e-5) | (d1 < 1e-5)
    h0 = np.where(flat, 1e-6, 0.01 * d0 / np.where(flat, 1.0, d1)).astype(t.dtype)
    ahead = f(y + h0.astype(y.dtype) * slope, t + h0)
    d2 = size(ahead - slope) / h0
    steepest = np.maximum(d1, d2)
    still = steepest <= 1e-15
    h1 = np.where(
        still, np.maximum(1e-6, h0 * 1e-3), (0.01 / np.where(still, 1.0, steepest)) ** 0.2
    )
    return np.minimum(100 * h0, h1).astype(t.dtype)


def polynomial_at(polynomial: Array, part: Array) -> Array:
    """Its value where `part` of the step has gone."""
    value, x = polynomial[0], part.astype(polynomial.dtype)
    for n in range(1, 5):
        value = value * x + polynomial[n]
    return value


def constant(y: Array) -> Array:
    """The polynomial that is y throughout."""
    return np.stack([np.zeros_like(y)] * 4 + [y])


def resolution(dtype: dtypes.DType) -> Array:
    """The least relative difference of two times."""
    return from_numpy(onp.asarray(np.finfo(dtype).eps, dtype))
