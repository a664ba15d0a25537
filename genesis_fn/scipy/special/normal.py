"""The normal distribution's functions, and Owen's T."""

from __future__ import annotations

import math
from typing import Any

import numpy

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core import dtypes
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special.derivatives import with_slopes
from genesis_fn.scipy.special.operands import (
    inexact,
    real_operand,
    reals_together,
    rounded_once,
    wide,
)
from genesis_fn.transforms.custom.derivative_rules import custom_jvp


def ndtr(x: ArrayLike) -> Array:
    """The normal distribution function."""
    return 0.5 * lax.erfc(-inexact(x) * math.sqrt(0.5))


# Acklam's rational approximation of the lower tail in q = sqrt(-2 log(p)), relative error 1e-9.
_TAIL_ABOVE = (
    -7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838, -2.549732539343734,
    4.374664141464968, 2.938163982698783,
)  # fmt: skip


_TAIL_BELOW = (
    7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996, 3.754408661907416, 1.0,
)  # fmt: skip


@custom_jvp
def _ndtri(p: Array) -> Array:
    upper = p > 0.5
    small = np.where(upper, 1.0 - p, p)
    tail = (small > 0) & (small < 0.02)
    logarithm = np.log(np.where(tail, small, 0.02))
    x = _tail(logarithm)
    # Newton's steps on log(ndtr(x)) = log(p).
    for _ in range(2 if p.dtype == dtypes.F64 else 1):
        value = log_ndtr(x)
        x = x - (value - logarithm) * np.exp(value + 0.5 * x * x + 0.5 * math.log(2 * math.pi))
    x = np.where(upper, -x, x)
    inside = (p >= 0) & (p <= 1)
    middle = math.sqrt(2.0) * lax.erf_inv(2.0 * np.where(inside & ~tail, p, 0.5) - 1.0)
    return np.where(inside, np.where(tail, x, middle), np.nan)


def _tail(logarithm: Array) -> Array:
    q = np.sqrt(-2.0 * logarithm)
    above, below = [np.polyval(np.asarray(c, q.dtype), q) for c in (_TAIL_ABOVE, _TAIL_BELOW)]
    return above / below


@_ndtri.defjvp
def _ndtri_rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    x = _ndtri(*primals)
    return x, tangents[0] * math.sqrt(2 * math.pi) * np.exp(0.5 * x * x)


def ndtri(p: ArrayLike) -> Array:
    """The inverse of the normal distribution function; NaN outside of [0, 1]."""
    p = real_operand(p, "ndtri")
    return _ndtri(wide(p)).astype(p.dtype)


def log_ndtr(x: ArrayLike) -> Array:
    """log ndtr(x); below -10 by the asymptotic series (Abramowitz and Stegun 26.2.12)."""
    d = inexact(x).dtype
    x = wide(real_operand(x, "log_ndtr"))
    low = x < -10.0
    near, far = np.where(low, 0.0, x), np.where(low, x, -10.0)
    r = 1.0 / (far * far)
    series = np.log1p(-r * (1.0 - 3.0 * r * (1.0 - 5.0 * r * (1.0 - 7.0 * r * (1.0 - 9.0 * r)))))
    tail = -0.5 * far * far - np.log(-far) - 0.5 * math.log(2 * math.pi) + series
    upper = np.log1p(-ndtr(-np.where(near > 0, near, 0.0)))
    lower = np.log(ndtr(np.where(near > 0, 0.0, near)))
    return np.where(low, tail, np.where(x > 0, upper, lower)).astype(d)


# ---- Owen's T ----


def _owens_t(h: Array, a: Array) -> Array:
    h, b = np.abs(h), np.abs(a)
    # T(h, a) + T(h a, 1 / a) = (Q(h) + Q(h a)) / 2 - Q(h) Q(h a), Q the upper tail
    steep = b > 1
    safe = np.where(steep, b, 1.0)
    product = np.where(h == 0, 0.0, h * np.where(steep, safe, b))
    first, second = np.where(steep, product, h), np.where(steep, 1 / safe, b)
    infinite = np.isinf(first)
    small = _by_quadrature(np.where(infinite, 0.0, first), second)
    small = np.where(infinite, 0.0, small)
    root = math.sqrt(0.5)
    p, q = 0.5 * lax.erfc(h * root), 0.5 * lax.erfc(product * root)
    y = np.where(steep, 0.5 * (p + q) - p * q - small, small)
    y = np.where(np.isnan(h) | np.isnan(a), np.nan, y)
    return np.where(a < 0, -y, y)


def _by_quadrature(h: Array, a: Array) -> Array:
    """The integral of exp(-h^2 (1 + t^2) / 2) / (1 + t^2) / (2 pi) from 0 to `a` <= 1, by Gauss and
    Legendre with 32 points on what of it counts: up to 9 / h."""
    nodes, weights = numpy.polynomial.legendre.leggauss(32)
    reach = np.minimum(a, 9.0 / np.maximum(h, 1e-3))
    total = np.zeros_like(h)
    for t, w in zip(nodes, weights, strict=True):
        x = reach * float(0.5 * (t + 1))
        below = 1 + x * x
        total = total + float(w) * np.exp(-0.5 * h * h * below) / below
    return total * reach * (0.25 / math.pi)


def _owens_t_by_h(y: Array, h: Array, a: Array) -> Array:
    tail = lax.erf(a * h * math.sqrt(0.5))
    return np.exp(-0.5 * h * h) * tail * (-0.5 / math.sqrt(2 * math.pi))


def _owens_t_by_a(y: Array, h: Array, a: Array) -> Array:
    below = 1 + a * a
    return np.exp(-0.5 * h * h * below) / (2 * math.pi * below)


_owens_t_differentiable = with_slopes(_owens_t, _owens_t_by_h, _owens_t_by_a)


def owens_t(h: ArrayLike, a: ArrayLike) -> Array:
    """Owen's T: the probability of X > h and 0 < Y < a X for independent normal X and Y, h > 0.

    By quadrature of Owen's integral (Owen, "Tables for computing bivariate normal probabilities",
    1956).

    Args:
        h: real numbers.
        a: real numbers.

    Returns:
        T(h, a), even in `h` and odd in `a`.

    >>> round(float(owens_t(1.0, 0.5)), 4)
    0.0431
    """
    h, a = reals_together("owens_t", h, a)
    return rounded_once(_owens_t_differentiable, h, a)
