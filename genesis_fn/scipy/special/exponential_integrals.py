"""Exponential, sine and cosine integrals, and Spence's function."""

from __future__ import annotations

import math
from typing import Any

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.special import upper_fraction
from genesis_fn.scipy.special.derivatives import with_slopes
from genesis_fn.scipy.special.operands import real_operand, reals_together, rounded_once

_EULER = 0.57721566490153286061

# ---- E_n ----


def _expn(n: Array, x: Array) -> Array:
    """E_n(x) for integers n."""
    bad = (n < 0) | (x < 0) | np.isnan(x)
    plain = bad | (x == 0) | (n == 0) | np.isinf(x)
    order = np.where(plain, 1, n).astype(x.dtype)
    beyond = ~plain & (x > 1)
    above = np.where(beyond, x, 2.0)
    fraction = np.exp(-above) * upper_fraction(1 - order, above)
    y = np.where(beyond, fraction, _expn_series(order, np.where(plain | beyond, 1.0, x)))
    y = np.where(n == 0, np.exp(-x) / np.where(x == 0, 1.0, x), y)
    y = np.where(np.isinf(x), 0.0, y)
    at_zero = np.where(n > 1, 1 / np.maximum(n - 1, 1).astype(x.dtype), np.inf)
    return np.where(bad, np.nan, np.where(x == 0, at_zero, y))


def _expn_series(n: Array, x: Array) -> Array:
    """E_n(x) for 0 < x <= 1 and n >= 1 (Abramowitz and Stegun 5.1.12)."""
    total, power = np.zeros_like(x), np.ones_like(x)
    for k in range(20 if x.dtype == np.float64 else 12):
        gap = n - 1 - k
        none = gap == 0
        total = total + np.where(none, 0.0, power / np.where(none, 1.0, gap))
        power = power * x * (-1 / (k + 1))
    # (-x)^(n - 1) / (n - 1)! (psi(n) - log(x))
    log = np.log(x)
    size = np.exp((n - 1) * log - lax.lgamma(n))
    odd = n - 2 * np.floor(0.5 * n)
    psi = np.where(n == 1, -_EULER, lax.digamma(n))
    return total + np.where(odd == 1, size, -size) * (psi - log)


def expn(n: ArrayLike, x: ArrayLike) -> Array:
    """The exponential integral E_n(x), x^(n - 1) times the integral of exp(-t) / t^n from x on.

    By its series up to x = 1 and by its continued fraction beyond (Abramowitz and Stegun 5.1.12 and
    5.1.22).

    Args:
        n: whole numbers >= 0, as integers or floats, by which there is no derivative.
        x: real numbers >= 0.

    Returns:
        E_n(x), with the derivative -E_(n-1)(x) by `x`; NaN for negative `n` or `x`, and
        where `n` is not whole.

    Raises:
        DTypeError: for complex operands.

    >>> round(float(expn(2, 1.0)), 4)
    0.1485
    """
    n, x = reals_together("expn", n, x)
    whole = (np.floor(n) == n) & np.isfinite(n)
    order = np.where(whole, np.clip(n, -1.0, 2.0**30), 1.0).astype("int32")
    y = rounded_once(lambda x: _expn_differentiable(order, x), x)
    return np.where(whole, y, np.where(np.isposinf(n) & (x >= 0), 0.0, np.nan))


def _expn_slope(y: Array, n: Array, x: Array) -> Array:
    before = _expn_differentiable(np.maximum(n - 1, 0), x)
    first = np.exp(-x) * (1 + 1 / x) / x  # E_(-1)
    return -np.where(n == 0, first, before)


def _none(y: Array, n: Array, x: Array) -> Array:
    return np.zeros_like(x)


_expn_differentiable = with_slopes(_expn, _none, _expn_slope)
_exp1_differentiable = with_slopes(
    lambda x: _expn(np.ones(x.shape, "int32"), x),
    lambda y, x: np.where(x > 0, -np.exp(-x) / x, np.nan),
)


def exp1(x: ArrayLike) -> Array:
    """The exponential integral E_1(x), that of exp(-t) / t from x on.

    Args:
        x: real numbers >= 0.

    Returns:
        E_1(x); infinite at 0, NaN below.

    >>> round(float(exp1(1.0)), 4)
    0.2194
    """
    x = real_operand(x, "exp1")
    return rounded_once(_exp1_differentiable, x)


# ---- Ei ----


def _expi(x: Array) -> Array:
    negative, zero = x < 0, x == 0
    below = -_expn(np.ones(x.shape, "int32"), np.where(negative, -x, 1.0))
    large = x >= 40
    inside = np.where(negative | zero | large | np.isnan(x), 1.0, x)

    def more(state: tuple[Any, ...]) -> Any:
        k, term, total = state
        return (k < 200) & np.any(term > 0.02 * eps * total)

    def following(state: tuple[Any, ...]) -> tuple[Any, ...]:
        k, term, total = state
        term = term * inside / (k + 1)
        return k + 1, term, total + term / (k + 1)

    eps = float(np.finfo(x.dtype).eps)
    start = np.asarray(1.0, x.dtype), inside, inside
    series = lax.while_loop(more, following, start)[2]
    series = series + _EULER + np.log(inside)
    far = np.where(large, x, 40.0)
    tail = np.ones_like(x)
    for k in range(40, 0, -1):
        tail = 1 + k * tail / far
    # exp(x) / x, also where only the exponential overflows
    half = np.exp(0.5 * far)
    tail = np.where(np.isinf(far), np.inf, half / far * half * tail)
    y = np.where(negative, below, np.where(large, tail, series))
    return np.where(zero, -np.inf, np.where(np.isnan(x), np.nan, y))


_expi_differentiable = with_slopes(_expi, lambda y, x: np.exp(x) / x)


def expi(x: ArrayLike) -> Array:
    """The exponential integral Ei(x), the principal value of that of exp(t) / t up to x.

    By its power series, from 40 on by the asymptotic one (Abramowitz and Stegun 5.1.10 and 5.1.51),
    and as -E_1(-x) for negative x.

    Args:
        x: real numbers.

    Returns:
        Ei(x); minus infinity at 0.

    >>> round(float(expi(1.0)), 4)
    1.8951
    """
    return rounded_once(_expi_differentiable, real_operand(x, "expi"))


# ---- Si and Ci ----

_SPLIT = 6.0


def _sici(x: Array) -> list[Array]:
    a = np.abs(x)
    small = a <= _SPLIT
    b = np.where(small, a, 0.0)
    square = b * b
    count = 20
    sine = np.zeros_like(b)
    cosine = np.zeros_like(b)
    for k in range(count, -1, -1):
        sign = (-1) ** k
        sine = sine * square + sign / (math.factorial(2 * k + 1) * (2 * k + 1))
        cosine = cosine * square - sign / (math.factorial(2 * k + 2) * (2 * k + 2))
    sine, cosine = sine * b, cosine * square
    cosine = cosine + _EULER + np.log(np.where(small, a, 1.0))
    # E_1(i x) = -Ci(x) + i (Si(x) - pi / 2), by its continued fraction from the end
    c = np.where(small, _SPLIT, a)
    near = np.minimum(c, 1e15)
    real, imag = _fraction(near)
    real, imag = real * (near / c), imag * (near / c)
    p, q = np.cos(c), np.sin(c)
    far_cosine = -(p * real + q * imag)
    far_sine = 0.5 * math.pi + (p * imag - q * real)
    s = np.where(small, sine, far_sine)
    t = np.where(small, cosine, far_cosine)
    s = np.where(np.isinf(x), 0.5 * math.pi, s)
    t = np.where(np.isinf(x), 0.0, t)
    s = np.where(x < 0, -s, s)
    t = np.where(np.isneginf(x), np.nan, t)
    return [np.where(np.isnan(x), np.nan, y) for y in (s, t)]


def _fraction(x: Array) -> tuple[Array, Array]:
    """The parts of exp(i x) E_1(i x), for x of 6 and more (Numerical Recipes 6.8)."""
    count = 48

    def step(i: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        p, q = state
        k = np.asarray(count - i, x.dtype)
        scale = k * k / (p * p + q * q)
        return 2 * k - 1 - p * scale, x + q * scale

    p, q = lax.fori_loop(0, count, step, (np.full_like(x, 2.0 * count + 1), x))
    norm = 1 / (p * p + q * q)
    return p * norm, -q * norm


_sine_integral = with_slopes(lambda x: _sici(x)[0], lambda y, x: np.sinc(x / math.pi))
_cosine_integral = with_slopes(lambda x: _sici(x)[1], lambda y, x: np.cos(x) / x)


def sici(x: ArrayLike) -> tuple[Array, Array]:
    """The sine and the cosine integral: of sin(t) / t from 0 to x, and of -cos(t) / t from x on.

    By their power series up to 6 and by the continued fraction of E_1 beyond (Numerical Recipes
    6.8).

    Args:
        x: real numbers.

    Returns:
        (Si, Ci); for negative `x`, Ci is the real part, Ci(|x|).

    >>> [round(float(y), 4) for y in sici(1.0)]
    [0.9461, 0.3374]
    """
    x = real_operand(x, "sici")
    return rounded_once(_sine_integral, x), rounded_once(_cosine_integral, x)


# ---- Spence's function ----

# B_k / (k + 1)! for k = 2, 4, ...
_DEBYE = [
    b / math.factorial(2 * j + 1)
    for j, b in enumerate(
        (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798), 1
    )
]


def _dilogarithm(u: Array) -> Array:
    """Li_2(z) by u = -log(1 - z), for -1 <= z <= 1/2 (Lewin, "Polylogarithms and Associated
    Functions", 1981)."""
    square = u * u
    total = np.zeros_like(u)
    for c in _DEBYE[::-1]:
        total = total * square + c
    return u * (1 - 0.25 * u + square * total)


def _spence(x: Array) -> Array:
    # spence(x) + spence(1 / x) = -log(x)^2 / 2
    above = x > 2
    y = np.where(above, 1 / np.where(above, x, 2.0), np.where((x >= 0) & ~above, x, 1.0))
    low = y < 0.5
    z = np.where(low, y, 0.25)
    # Li_2(1 - z) + Li_2(z) = pi^2 / 6 - log(z) log(1 - z)
    rest = np.log1p(-z)
    zero = z == 0
    product = np.where(zero, 0.0, np.log(np.where(zero, 1.0, z)) * rest)
    near_one = math.pi**2 / 6 - product - _dilogarithm(-rest)
    value = np.where(low, near_one, _dilogarithm(-np.log(np.where(low, 1.0, y))))
    log = np.log(np.where(above, x, 1.0))
    value = np.where(above, -0.5 * log * log - value, value)
    return np.where((x >= 0), value, np.nan)


def _spence_slope(y: Array, x: Array) -> Array:
    one = x == 1
    gap = np.where(one, 1.0, 1 - x)
    return np.where(one, -1.0, np.log(x) / gap)


_spence_differentiable = with_slopes(_spence, _spence_slope)


def spence(x: ArrayLike) -> Array:
    """Spence's function, the integral of log(t) / (1 - t) from 1 to x: the dilogarithm of 1 - x.

    Args:
        x: real numbers >= 0.

    Returns:
        The function's values; NaN for negative `x`.

    >>> round(float(spence(0.0)), 4)
    1.6449
    """
    return rounded_once(_spence_differentiable, real_operand(x, "spence"))
