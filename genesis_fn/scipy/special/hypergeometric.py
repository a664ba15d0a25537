"""The confluent and Gauss's hypergeometric function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special.derivatives import with_slopes
from genesis_fn.scipy.special.gamma_functions import gammasgn
from genesis_fn.scipy.special.operands import reals_together, rounded_once
from genesis_fn.scipy.special.series import power_series
from genesis_fn.transforms.autodiff.derivatives import jvp


def _is_pole(x: Array) -> Array:
    """Whether `x` is 0, -1, -2, ...: where gamma(x) is infinite and a series ends."""
    return (x <= 0) & (np.floor(x) == x)


def _by(f: Callable[..., Array], i: int) -> Callable[..., Array]:
    """The derivative of `f` by its i-th argument, computed forwards."""

    def slope(y: Array, *xs: Array) -> Array:
        along = lambda x: f(*xs[:i], x, *xs[i + 1 :])
        return jvp(along, (xs[i],), (np.ones_like(xs[i]),))[1]

    return slope


# ---- 1F1 ----


def _confluent_ratio(k: Array, a: Array, b: Array, x: Array) -> Array:
    # A pole beyond the end of a series is none of its terms.
    below = np.where(b + k == 0, 1.0, b + k)
    return (a + k) / below * (x / (k + 1))


_confluent = power_series(_confluent_ratio, 3)
_falling = power_series(lambda k, a, b, x: (1 - a + k) * (b - a + k) / ((k + 1) * x), 3)


def _hyp1f1(a: Array, b: Array, x: Array) -> Array:
    ends = _is_pole(a)
    # The terms have a pole, unless the series ends before it.
    infinite = _is_pole(b) & ~(ends & (a >= b)) & (x != 0)
    above = np.isposinf(x) & ~ends & ~_is_pole(b)
    bad = np.isnan(a) | np.isnan(b) | np.isnan(x) | (np.isinf(x) & ~above)
    sign = gammasgn(np.where(above, a, 1.0)) * gammasgn(np.where(above, b, 1.0))
    plain = bad | infinite | above
    a, b, x = [np.where(plain, 1.0, v) for v in (a, b, x)]
    # exp(x) 1F1(b - a, b, -x), whose terms do not alternate (Kummer; Abramowitz and Stegun 13.1.27)
    turned = (x < 0) & ~ends
    p, z = np.where(turned, b - a, a), np.where(turned, -x, x)
    # Far out by exp(z) z^(p - b) gamma(b) / gamma(p) and a series in 1 / z (13.5.1)
    size = np.maximum(np.abs(1 - p), np.abs(b - p))
    far = (z > 60) & (z > 2 * size * size) & ~_is_pole(p) & ~_is_pole(b)
    near = _confluent(*[np.where(far, 1.0, v) for v in (p, b, z)])
    near = near * np.exp(np.where(turned, x, 0.0))
    p, q, z = np.where(far, p, 1.0), np.where(far, b, 1.0), np.where(far, z, 60.0)
    log = (p - q) * np.log(z) + lax.lgamma(q) - lax.lgamma(p) + np.where(turned, 0.0, z)
    away = gammasgn(p) * gammasgn(q) * np.exp(log) * _falling(p, q, z)
    y = np.where(far, away, near)
    y = np.where(infinite, np.inf, np.where(above, sign * np.inf, y))
    return np.where(bad, np.nan, y)


def _hyp1f1_by_x(y: Array, a: Array, b: Array, x: Array) -> Array:
    return a / b * _hyp1f1_differentiable(a + 1, b + 1, x)


_hyp1f1_differentiable = with_slopes(_hyp1f1, _by(_hyp1f1, 0), _by(_hyp1f1, 1), _hyp1f1_by_x)


def hyp1f1(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Kummer's confluent hypergeometric function 1F1(a; b; x).

        sum over k of (a)_k / (b)_k x^k / k!

    By that series, for negative `x` by Kummer's transformation of it, and for large |x| by the
    asymptotic series (Abramowitz and Stegun 13.1.2, 13.1.27 and 13.5.1). Terms that cancel, of `a`
    or b - a far below 0, cost digits.

    Args:
        a: real numbers.
        b: real numbers.
        x: real numbers.

    Returns:
        The function's values; infinite where `b` is 0, -1, ... and the series does not end before,
        NaN where it did not settle.

    >>> round(float(hyp1f1(1.0, 2.0, 1.0)), 4)
    1.7183
    """
    a, b, x = reals_together("hyp1f1", a, b, x)
    return rounded_once(_hyp1f1_differentiable, a, b, x)


# ---- 2F1 ----

_gauss = power_series(lambda k, a, b, c, x: (a + k) * (b + k) / (c + k) * (x / (k + 1)), 4)
_NEAR = 0.75  # up to here the series is summed, beyond it the function is continued
_TERMS = 60
_STEPS = 1100  # of halving, down to the smallest numbers


def _continued(a: Array, b: Array, c: Array, s: Array) -> Array:
    """2F1(a, b; c; 1 - s) for s below 1/4: from 1/2 on by Taylor's series, each from the last's
    values, which halve the distance to the singularity at 1. The coefficients follow from one
    another by the differential equation (Abramowitz and Stegun 15.5.1)."""
    half = np.full_like(s, 0.5)

    def more(state: tuple[Any, ...]) -> Any:
        k, at, _, _ = state
        return (k < _STEPS) & np.any(at > s)

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        k, at, value, slope = state
        h = at - np.maximum(0.5 * at, s)
        scale = at * (1 - at)
        linear = c - (a + b + 1) * (1 - at)

        def term(j: Any, sums: tuple[Any, ...]) -> tuple[Any, ...]:
            first, second, total, derivative = sums
            n = np.asarray(j, at.dtype)
            up = (n + a) * (n + b) * (h * h) * first
            up = up - (n + 1) * ((2 * at - 1) * n + linear) * h * second
            third = up / (scale * (n + 1) * (n + 2))
            return second, third, total + third, derivative + (n + 2) * third

        start = (value, slope * h, value + slope * h, slope * h)
        _, _, total, derivative = lax.fori_loop(0, _TERMS, term, start)
        moves = h > 0
        derivative = np.where(moves, derivative / np.where(moves, h, 1.0), slope)
        return k + 1, at - h, np.where(moves, total, value), derivative

    value = _gauss(a, b, c, half)
    slope = a * b / c * _gauss(a + 1, b + 1, c + 1, half)
    start = np.asarray(0.0, s.dtype), half, value, slope
    return lax.while_loop(more, step, start)[2]


def _hyp2f1(a: Array, b: Array, c: Array, x: Array) -> Array:
    bad = np.isnan(a) | np.isnan(b) | np.isnan(c) | np.isnan(x)
    ends_a, ends_b = _is_pole(a), _is_pole(b)
    pole = _is_pole(c)
    ends = (ends_a & (~pole | (a >= c))) | (ends_b & (~pole | (b >= c)))
    infinite = pole & ~ends & (x != 0)
    at_one = (x == 1) & ~ends
    beyond = ((x > 1) | np.isinf(x)) & ~ends
    plain = bad | infinite | at_one | beyond
    p, q, r, z = [np.where(plain, v, u) for u, v in ((a, 1.0), (b, 1.0), (c, 2.0), (x, 0.0))]
    # (1 - x)^(c - a - b) 2F1(c - a, c - b; c; x) where that series ends (Euler)
    euler = ~ends & (_is_pole(r - p) | _is_pole(r - q)) & (z > 0)
    # (1 - x)^-a 2F1(a, c - b; c; x / (x - 1)) for negative x (Pfaff)
    pfaff = ~ends & (z < 0)
    base = np.where(euler | pfaff, 1 - z, 1.0)
    scale = base ** np.where(euler, r - p - q, np.where(pfaff, -p, 0.0))
    first = np.where(euler, r - p, p)
    second = np.where(euler | pfaff, r - q, q)
    y = np.where(pfaff, -z / base, z)
    s = np.where(pfaff, 1 / base, 1 - z)
    ends = ends | euler
    far = ~ends & (y > _NEAR)
    # Euler's again, where the function grows towards 1: what is continued does not.
    power = r - first - second
    grows = far & (power < 0)
    scale = scale * np.where(grows, s, 1.0) ** np.where(grows, power, 0.0)
    first, second = np.where(grows, r - first, first), np.where(grows, r - second, second)
    near = _gauss(first, second, r, np.where(far, 0.0, y))
    away = _continued(first, second, r, np.where(far, s, 0.5))
    value = scale * np.where(far, away, near)
    value = np.where(at_one, _gauss_at_one(a, b, c, at_one), value)
    value = np.where(infinite | (beyond & (x > 1)), np.inf, value)
    return np.where(bad | (beyond & (x < 0)), np.nan, value)


def _gauss_at_one(a: Array, b: Array, c: Array, used: Array) -> Array:
    """gamma(c) gamma(c - a - b) / (gamma(c - a) gamma(c - b)) (Abramowitz and Stegun 15.1.20)."""
    a, b, c = [np.where(used, v, u) for u, v in ((1.0, a), (1.0, b), (3.0, c))]
    rest = c - a - b
    finite = rest > 0
    over = gammasgn(c) * gammasgn(c - a) * gammasgn(c - b)
    log = lax.lgamma(c) + lax.lgamma(np.where(finite, rest, 1.0))
    log = log - lax.lgamma(c - a) - lax.lgamma(c - b)
    none = _is_pole(c - a) | _is_pole(c - b)
    value = np.where(none, 0.0, over * np.exp(np.where(none, 0.0, log)))
    # The sum of the terms, which in the end have the sign of gamma(c) / (gamma(a) gamma(b))
    endless = gammasgn(c) * gammasgn(a) * gammasgn(b) * np.inf
    return np.where(finite, value, endless)


def _hyp2f1_by_x(y: Array, a: Array, b: Array, c: Array, x: Array) -> Array:
    return a * b / c * _hyp2f1_differentiable(a + 1, b + 1, c + 1, x)


_hyp2f1_differentiable = with_slopes(
    _hyp2f1, _by(_hyp2f1, 0), _by(_hyp2f1, 1), _by(_hyp2f1, 2), _hyp2f1_by_x
)


def hyp2f1(a: ArrayLike, b: ArrayLike, c: ArrayLike, x: ArrayLike) -> Array:
    """Gauss's hypergeometric function 2F1(a, b; c; x), for x up to 1.

        sum over k of (a)_k (b)_k / (c)_k x^k / k!

    By that series, by Pfaff's and Euler's transformations of it, near 1 by Taylor's series from
    point to point, and at 1 by Gauss's sum (Abramowitz and Stegun 15.1.1, 15.3.3, 15.3.4, 15.5.1
    and 15.1.20).

    Args:
        a: real numbers.
        b: real numbers.
        c: real numbers.
        x: real numbers; above 1 only where `a` or `b` is 0, -1, ...: the series ends.

    Returns:
        The function's values; infinite where the series does not end and `c` is 0, -1, ... or `x`
        is above 1 (SciPy's convention: they are complex there); NaN where it did not settle.

    >>> round(float(hyp2f1(1.0, 1.0, 2.0, 0.5)), 4)
    1.3863
    """
    a, b, c, x = reals_together("hyp2f1", a, b, c, x)
    return rounded_once(_hyp2f1_differentiable, a, b, c, x)
