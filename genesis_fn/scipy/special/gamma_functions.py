"""The gamma function, its logarithm, its derivatives, and what is a quotient of gamma functions."""

from __future__ import annotations

import math
import operator

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core import dtypes, errors
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.special import log_beta
from genesis_fn.scipy.special.derivatives import with_slopes
from genesis_fn.scipy.special.operands import (
    inexact,
    real_operand,
    reals_together,
    rounded_once,
    together,
    wide,
)


def gammaln(x: ArrayLike) -> Array:
    """log |gamma(x)|."""
    return lax.lgamma(inexact(x))


def digamma(x: ArrayLike) -> Array:
    """The derivative of gammaln."""
    return lax.digamma(inexact(x))


psi = digamma


def polygamma(n: ArrayLike, x: ArrayLike) -> Array:
    """The n-th derivative of digamma, for an integer n or an array of integers."""
    x = inexact(x)
    if type(n) is int:
        return lax.polygamma(n, x)
    n = as_array(n)
    if not dtypes.is_integer(n.dtype):
        raise errors.DTypeError(
            f"polygamma takes integers for n, got {n.aval}\n  at {where().describe()}"
        )
    n, x = np.broadcast_arrays(n.astype(x.dtype), x)
    return lax.polygamma(n, x)


def gamma(x: ArrayLike) -> Array:
    """The gamma function."""
    x = inexact(x)
    if dtypes.is_complex(x.dtype):
        return _complex_gamma(x)
    return _gamma_sign(x) * np.exp(lax.lgamma(x))


def _gamma_sign(x: Array) -> Array:
    """The sign of gamma(x): that of x at the poles 0 and -0.0, NaN at the others."""
    odd = np.where(x < 0, np.floor(x) % 2 != 0, np.signbit(x))
    sign = np.where(odd, -1.0, 1.0).astype(x.dtype)
    return np.where((x < 0) & (np.floor(x) == x), np.nan, sign)


# Lanczos' approximation with g = 7 and 9 terms (Godfrey's coefficients), good to 15 digits.
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313,
    -176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6,
    1.5056327351493116e-7,
)  # fmt: skip


def _complex_gamma(z: Array) -> Array:
    left = np.real(z) < 0.5
    w = np.where(left, 1.0 - z, z) - 1.0
    total = _LANCZOS[0]
    for k, c in enumerate(_LANCZOS[1:], 1):
        total = total + c / (w + k)
    t = w + 7.5
    y = math.sqrt(2 * math.pi) * np.exp((w + 0.5) * np.log(t) - t) * total
    # gamma(z) gamma(1 - z) = pi / sin(pi z)
    sine = np.sin(math.pi * np.where(left, z, 0.5))
    pole = (np.imag(z) == 0) & (np.real(z) <= 0) & (np.floor(np.real(z)) == np.real(z))
    y = np.where(left, math.pi / (sine * y), y)
    return np.where(pole, complex(math.nan, math.nan), y)


def betaln(a: ArrayLike, b: ArrayLike) -> Array:
    """log |B(a, b)|."""
    a, b = together(real_operand(a, "betaln"), real_operand(b, "betaln"))
    return log_beta(wide(a), wide(b)).astype(a.dtype)


def beta(a: ArrayLike, b: ArrayLike) -> Array:
    """B(a, b) = gamma(a) gamma(b) / gamma(a + b)."""
    a, b = together(real_operand(a, "beta"), real_operand(b, "beta"))
    d = a.dtype
    a, b = wide(a), wide(b)
    sign = _gamma_sign(a) * _gamma_sign(b) * _gamma_sign(a + b)
    sign = np.where((a == 0) & (b == 0), 1.0, sign)
    return (sign * np.exp(log_beta(a, b))).astype(d)


def zeta(x: ArrayLike, q: ArrayLike = 1.0) -> Array:
    """The Hurwitz zeta function: the sum of (q + k)^-x over k >= 0."""
    return lax.zeta(*together(x, q))


# ---- the logarithm in the complex plane ----

# B_2k / (2k (2k - 1)) for k = 1, 2, ...
_STIRLING = (
    1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400,
    43867 / 244188,
)  # fmt: skip
_SHIFTS = 9


def _stirling(z: Array) -> Array:
    """log(gamma(z)) for Re z > 9 (Abramowitz and Stegun 6.1.41)."""
    r = 1 / z
    square = r * r
    total = _STIRLING[-1]
    for c in _STIRLING[-2::-1]:
        total = total * square + c
    return (z - 0.5) * np.log(z) - z + 0.5 * math.log(2 * math.pi) + total * r


def _right_half(z: Array) -> Array:
    """log(gamma(z)) for Re z > 0: from log(gamma(z + 9)) by the recurrence, whose logarithms add up
    to the principal branch."""
    low = np.real(z) < _SHIFTS
    logs = np.zeros_like(z)
    near = np.where(low, z, 1.0)
    for k in range(_SHIFTS):
        logs = logs + np.log(near + k)
    return np.where(low, _stirling(near + _SHIFTS) - logs, _stirling(np.where(low, 9.0, z)))


def _log_sine(x: Array, y: Array) -> Array:
    """log(sin(pi z)) for z = x + i y with y >= 0, continued from z = 1/2 within the half plane:
    -i pi (z - 1/2) - log(2) + log(1 - exp(2 pi i z))."""
    turn = x - np.floor(x)
    size = np.exp(-2 * math.pi * y)
    sine = np.sin(math.pi * turn)
    # 1 - cos as a square, which keeps its digits next to a pole
    real = 2 * size * sine * sine - np.expm1(-2 * math.pi * y)
    imag = -size * np.sin(2 * math.pi * turn)
    rest = np.log(lax.complex(real, imag))
    return lax.complex(math.pi * y - math.log(2), (0.5 - x) * math.pi) + rest


def _complex_loggamma(z: Array) -> Array:
    x, y = np.real(z), np.imag(z)
    left = x < 0.5
    lower = np.signbit(y)
    upper = lax.complex(x, np.abs(y))
    mirrored = _right_half(np.where(left, 1 - upper, upper))
    sine = _log_sine(np.where(left, x, 0.5), np.where(left, np.abs(y), 0.0))
    result = np.where(left, math.log(math.pi) - sine - mirrored, mirrored)
    result = np.where(lower, np.conj(result), result)
    pole = (y == 0) & (x <= 0) & (np.floor(x) == x)
    return np.where(pole, complex(math.inf, 0), result)


def loggamma(x: ArrayLike) -> Array:
    """The principal branch of log(gamma(x)), which has one cut, along the negative real axis.

    By Stirling's series, the recurrence and the reflection (Hare, "Computing the principal branch
    of log-Gamma", 1997).

    Args:
        x: real or complex numbers.

    Returns:
        The logarithm in the dtype of `x`: for real numbers NaN from 0 on downwards, where
        `gammaln` is log |gamma(x)|.

    >>> round(float(loggamma(-1.5 + 0.5j).imag), 3)
    -5.927
    """
    x = inexact(x)
    if dtypes.is_complex(x.dtype):
        return _complex_loggamma(x)
    positive = x > 0
    value = np.where(positive, lax.lgamma(np.where(positive, x, 1.0)), np.nan)
    return np.where(x == 0, np.inf, value)


def gammasgn(x: ArrayLike) -> Array:
    """The sign of gamma(x).

    Args:
        x: real numbers.

    Returns:
        1 or -1; that of `x` at the poles 0.0 and -0.0, and NaN at the others.

    >>> gammasgn(-0.5)
    Array(-1., dtype=float32)
    """
    x = real_operand(x, "gammasgn")
    return np.where(np.isnan(x) | np.isneginf(x), np.nan, _gamma_sign(x)).astype(x.dtype)


def multigammaln(a: ArrayLike, d: int) -> Array:
    """The logarithm of the multivariate gamma function:

        d (d - 1) / 4 log(pi) + sum over i < d of log(gamma(a - i / 2))

    Args:
        a: real numbers > (d - 1) / 2.
        d: the dimension, a whole number.

    Returns:
        The logarithm, in the shape of `a`.

    >>> round(float(multigammaln(3.0, 2)), 4)
    1.5502
    """
    a, count = real_operand(a, "multigammaln"), operator.index(d)
    total = np.full_like(a, 0.25 * count * (count - 1) * math.log(math.pi))
    for i in range(count):
        total = total + lax.lgamma(a - 0.5 * i)
    return total


# ---- quotients ----


def _poch(z: Array, m: Array) -> Array:
    end = z + m
    pole, pole_at_end = [(v <= 0) & (np.floor(v) == v) for v in (z, end)]
    both = pole & pole_at_end
    # gamma(z + m) / gamma(z) = (-1)^m gamma(1 - z) / gamma(1 - z - m) between two poles
    first = np.where(both, 1 - end, np.where(pole, 1.0, z))
    step = np.where(both, m, np.where(pole, 1.0, m))
    last = first + step
    # gamma(p + q) / gamma(p) or its inverse, for large p by B(p, q), which keeps the digits
    positive = (first > 0) & (last > 0) & (step != 0)
    p = np.where(positive, np.minimum(first, last), 1.0)
    q = np.where(positive, np.abs(step), 1.0)
    smooth = lax.lgamma(q) - log_beta(p, q)
    smooth = np.where(step < 0, -smooth, smooth)
    plain = lax.lgamma(np.where(positive, 1.0, last)) - lax.lgamma(np.where(positive, 1.0, first))
    sign = np.where(positive, 1.0, _gamma_sign(last) * _gamma_sign(first))
    y = sign * np.exp(np.where(positive, smooth, plain))
    # A few factors are multiplied: exact where the product is.
    whole = (np.floor(m) == m) & (m >= 0) & (m <= 12)
    product = np.ones_like(z)
    for k in range(12):
        product = product * np.where(whole & (m > k), z + k, 1.0)
    odd = np.floor(m) - 2 * np.floor(0.5 * m) == 1
    y = np.where(both & odd, -y, y)
    y = np.where(pole & ~pole_at_end, 0.0, np.where(pole_at_end & ~pole, np.inf, y))
    y = np.where(whole, product, y)
    return np.where(np.isnan(z) | np.isnan(m), np.nan, np.where(m == 0, 1.0, y))


_poch_differentiable = with_slopes(
    _poch,
    lambda y, z, m: y * (lax.digamma(z + m) - lax.digamma(z)),
    lambda y, z, m: y * lax.digamma(z + m),
)


def poch(z: ArrayLike, m: ArrayLike) -> Array:
    """Pochhammer's symbol, the rising factorial gamma(z + m) / gamma(z).

    Args:
        z: real numbers.
        m: real numbers.

    Returns:
        The quotient: for whole m >= 0 the product z (z + 1) ... (z + m - 1).

    >>> round(float(poch(3.0, 2)), 4)
    12.0
    """
    z, m = reals_together("poch", z, m)
    return rounded_once(_poch_differentiable, z, m)


# ---- regularized incomplete functions ----


def gammainc(a: ArrayLike, x: ArrayLike) -> Array:
    """The regularized lower incomplete gamma function P(a, x)."""
    return lax.igamma(*together(a, x))


def gammaincc(a: ArrayLike, x: ArrayLike) -> Array:
    """The regularized upper incomplete gamma function Q(a, x)."""
    return lax.igammac(*together(a, x))


def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """The regularized incomplete beta function I_x(a, b)."""
    return lax.betainc(*together(a, b, x))
