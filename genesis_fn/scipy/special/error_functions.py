"""Error functions: erf and its inverse, the Faddeeva function, Dawson's and Fresnel's integrals."""

from __future__ import annotations

import math
from typing import Any

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core import dtypes
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special.derivatives import with_slopes
from genesis_fn.scipy.special.operands import inexact, real_operand, rounded_once


def erf(x: ArrayLike) -> Array:
    """The error function."""
    return lax.erf(inexact(x))


def erfc(x: ArrayLike) -> Array:
    """1 - erf(x), accurate for large x."""
    return lax.erfc(inexact(x))


def erfinv(x: ArrayLike) -> Array:
    """The inverse of erf."""
    return lax.erf_inv(inexact(x))


# ---- the Faddeeva function ----

# w(z) = (i z / pi) times the integral of exp(-t^2) / (z^2 - t^2) over the line, by the trapezoidal
# rule on t = k h or on t = (k + 1/2) h, with what the poles at t = z and -z contribute: Al Azah and
# Chandler-Wilde, "Computation of the complex error function using modified trapezoidal rules"
# (SIAM Journal on Numerical Analysis 59, 2021). With 12 points it is good to double precision.
_POINTS = 12
_STEP = math.sqrt(math.pi / _POINTS)
_FAR = math.pi / _STEP  # from this height on the poles contribute nothing
_WHOLE = [k * _STEP for k in range(1, _POINTS + 1)]
_HALVES = [(k + 0.5) * _STEP for k in range(_POINTS)]
_LARGE = 1e3  # from here on three terms of the asymptotic series are enough
_ROOT = math.sqrt(math.pi)


def _sums(x: Array, y: Array, points: list[float]) -> tuple[Array, Array]:
    """The real and the imaginary part of 2 i h z / pi times the sum of exp(-t^2) / (z^2 - t^2),
    z = x + i y; apart, so that a small real part keeps its digits."""
    square = x * x + y * y
    real, imag = np.zeros_like(x), np.zeros_like(x)
    for t in points:
        below, above = x - t, x + t
        scale = (below * below + y * y) * (above * above + y * y)
        scale = (2 * _STEP / math.pi * math.exp(-t * t)) / scale
        real = real + scale * (square + t * t)
        imag = imag + scale * (square - t * t)
    return y * real, x * imag


def _pole(x: Array, y: Array, sign: float) -> tuple[Array, Array]:
    """The parts of 2 exp(-z^2) / (1 + sign exp(-2 pi i z / h)), y not negative. Both are divided by
    exp(2 pi y / h), whose square has no place in float32."""
    fall = (2 * math.pi / _STEP) * y
    size = 2 * np.exp(np.minimum((y - x) * (y + x) - fall, 80.0))  # what is above is not used
    turn, angle = 2 * x * y, (-2 * math.pi / _STEP) * x
    real, imag = size * np.cos(turn), -size * np.sin(turn)
    below, beside = np.exp(-fall) + sign * np.cos(angle), sign * np.sin(angle)
    scale = 1 / (below * below + beside * beside)
    return (real * below + imag * beside) * scale, (imag * below - real * beside) * scale


def _asymptotic(x: Array, y: Array) -> tuple[Array, Array]:
    """The parts of i / (sqrt(pi) z) (1 + 1 / (2 z^2) + 3 / (4 z^4)), for large z."""
    # In units of the larger part: squares of the numbers themselves would overflow.
    unit = np.maximum(x, y)
    infinite = np.isinf(unit)
    unit = np.where(infinite, 1.0, unit)
    p, q = np.where(infinite, 1.0, x / unit), np.where(infinite, 0.0, -y / unit)
    norm = p * p + q * q
    p, q = p / norm / unit, q / norm / unit  # 1 / z
    a, b = p * p - q * q, 2 * p * q
    real, imag = 1 + 0.5 * a + 0.75 * (a * a - b * b), 0.5 * b + 1.5 * a * b
    parts = -(p * imag + q * real) / _ROOT, (p * real - q * imag) / _ROOT
    return np.where(infinite, 0.0, parts[0]), np.where(infinite, 0.0, parts[1])


def _first_quadrant(x: Array, y: Array) -> tuple[Array, Array]:
    """The parts of w(x + i y) for x and y that are not negative."""
    large = (x > _LARGE) | (y > _LARGE)
    far = _asymptotic(np.where(large, x, _LARGE), np.where(large, y, 0.0))
    x, y = np.where(large, 1.0, x), np.where(large, 1.0, y)
    part = x / _STEP - np.floor(x / _STEP)
    high = y >= np.maximum(x, _FAR)
    # Between two points of the rule that is used: near one, the sum and the pole cancel.
    whole = ~high & (y < x) & (part >= 0.25) & (part <= 0.75)
    u, v = np.where(whole, 0.0, x), np.where(whole, 1.0, y)
    by_halves, at_halves = _sums(u, v, _HALVES), _pole(u, v, 1.0)
    u, v = np.where(whole, x, 0.5 * _STEP), np.where(whole, y, 0.0)
    by_whole, at_whole = _sums(u, v, _WHOLE), _pole(u, v, -1.0)
    norm = (_STEP / math.pi) / (u * u + v * v)
    middle = v * norm, u * norm  # i h / (pi z)
    parts = []
    for i in range(2):
        halves = by_halves[i] + np.where(high, 0.0, at_halves[i])
        near = np.where(whole, by_whole[i] + at_whole[i] + middle[i], halves)
        parts.append(np.where(large, far[i], near))
    return parts[0], parts[1]


def _wofz_parts(x: Array, y: Array) -> tuple[Array, Array]:
    """The parts of w(x + i y): w(-z) = 2 exp(-z^2) - w(z), and w of -conj(z) is conj(w(z))."""
    a, b = np.abs(x), np.abs(y)
    real, imag = _first_quadrant(a, b)
    imag = np.where(x < 0, -imag, imag)
    lower = y < 0
    # w(x - i b) = 2 exp(-z^2) - conj(w(x + i b))
    log, turn = np.where(lower, (b - a) * (b + a), 0.0), 2 * x * b
    none = np.exp(log) == 0.0
    size, turn = 2 * np.exp(log), np.where(lower & ~none, turn, 0.0)
    sine = np.where(turn == 0.0, 0.0, size * np.sin(turn))
    return (np.where(lower, size * np.cos(turn) - real, real), np.where(lower, sine + imag, imag))


def _descending(r: Any) -> Any:
    """1 + 3 r + 15 r^2 + 105 r^3 + ..., for |r| up to 1/128: with r = 1 / (2 z^2) what the
    derivative of 1 / z becomes in those of the functions below, where their terms cancel."""
    total = 1.0
    for k in range(16, 0, -1):
        total = 1.0 + (2 * k + 1) * r * total
    return total


_CANCELS = 8.0


def _wofz(z: Array) -> Array:
    return lax.complex(*_wofz_parts(np.real(z), np.imag(z)))


def _wofz_slope(w: Array, z: Array) -> Array:
    far = np.abs(z) > _CANCELS
    u = np.where(far, z, _CANCELS)
    r = 1 / u
    tail = (-1j / _ROOT) * r * r * _descending(0.5 * r * r)
    below = np.where(np.imag(z) < 0, z, 1.0)
    tail = tail - np.where(np.imag(z) < 0, 4 * below * np.exp(-below * below), 0.0)
    return np.where(far, tail, (2j / _ROOT) - 2 * z * w)


_wofz_differentiable = with_slopes(_wofz, _wofz_slope)


def wofz(z: ArrayLike) -> Array:
    """The Faddeeva function w(z) = exp(-z^2) erfc(-i z), complex.

    By modified trapezoidal rules (Al Azah and Chandler-Wilde, 2021); each part has the digits of
    its dtype but where it is next to a zero.

    Args:
        z: real or complex numbers; real ones are taken as complex.

    Returns:
        w(z), complex64 or complex128.

    >>> round(float(wofz(1j).real), 4)
    0.4276
    """
    z = inexact(z)
    if not dtypes.is_complex(z.dtype):
        z = z.astype("complex128" if z.dtype == dtypes.F64 else "complex64")
    return _wofz_differentiable(z)


# ---- on the axes ----


def _erfcx(x: Array) -> Array:
    a = np.abs(x)
    y = _first_quadrant(np.zeros_like(a), a)[0]
    negative = x < 0
    b = np.where(negative, np.minimum(a, 1e3), 0.0)
    return np.where(negative, 2 * np.exp(b * b) - y, y)


def _erfcx_slope(y: Array, x: Array) -> Array:
    far = x > _CANCELS
    r = 1 / np.where(far, x, _CANCELS)
    return np.where(far, -r * r * _descending(-0.5 * r * r) / _ROOT, 2 * x * y - 2 / _ROOT)


_erfcx_differentiable = with_slopes(_erfcx, _erfcx_slope)


def erfcx(x: ArrayLike) -> Array:
    """exp(x^2) erfc(x), which neither over- nor underflows for large x.

    Args:
        x: real or complex numbers.

    Returns:
        The function's values: w(i x), by modified trapezoidal rules (Al Azah and Chandler-Wilde,
        2021).

    >>> round(float(erfcx(100.0)), 4)
    0.0056
    """
    x = inexact(x)
    if dtypes.is_complex(x.dtype):
        return _wofz_differentiable(lax.complex(-np.imag(x), np.real(x)))
    return rounded_once(_erfcx_differentiable, x)


def _dawsn(x: Array) -> Array:
    a = np.abs(x)
    y = 0.5 * _ROOT * _first_quadrant(a, np.zeros_like(a))[1]
    return np.where(x < 0, -y, y)


def _dawsn_slope(y: Array, x: Array) -> Array:
    far = np.abs(x) > _CANCELS
    r = 1 / np.where(far, x, _CANCELS)
    return np.where(far, -0.5 * r * r * _descending(0.5 * r * r), 1 - 2 * x * y)


_dawsn_differentiable = with_slopes(_dawsn, _dawsn_slope)


def dawsn(x: ArrayLike) -> Array:
    """Dawson's integral: exp(-x^2) times the integral of exp(t^2) from 0 to x.

    Args:
        x: real numbers.

    Returns:
        The function's values, those of sqrt(pi) / 2 Im w(x).

    >>> round(float(dawsn(1.0)), 4)
    0.5381
    """
    return rounded_once(_dawsn_differentiable, real_operand(x, "dawsn"))


# ---- Fresnel's integrals ----


def _fresnel(x: Array) -> list[Array]:
    a = np.abs(x)
    # Below 1.6 by the power series of integrals of sin(pi t^2 / 2) and cos(pi t^2 / 2).
    small = a < 1.6
    b = np.where(small, a, 0.0)
    angle = (0.5 * math.pi) * b * b
    square = angle * angle
    sine, cosine = np.zeros_like(b), np.zeros_like(b)
    for k in range(14, -1, -1):
        sign = (-1) ** k
        sine = sine * square + sign / (math.factorial(2 * k + 1) * (4 * k + 3))
        cosine = cosine * square + sign / (math.factorial(2 * k) * (4 * k + 1))
    sine, cosine = sine * angle * b, cosine * b
    # C + i S = (1 + i) / 2 (1 - exp(i pi x^2 / 2) w((1 + i) sqrt(pi) x / 2)), and nothing but 1/2
    # is left from about 1e8 on.
    c = np.clip(np.where(small, 1.6, a), 1.6, 1e15)
    diagonal = (0.5 * _ROOT) * c
    real, imag = _first_quadrant(diagonal, diagonal)
    turn = 0.5 * math.pi * _square_modulo_4(c)
    p, q = np.cos(turn), np.sin(turn)
    real, imag = p * real - q * imag, p * imag + q * real
    s = np.where(small, sine, np.where(a < 1e15, 0.5 * (1 - real - imag), 0.5))
    t = np.where(small, cosine, np.where(a < 1e15, 0.5 * (1 - real + imag), 0.5))
    return [np.where(np.isnan(x), np.nan, np.where(x < 0, -y, y)) for y in (s, t)]


def _square_modulo_4(x: Array) -> Array:
    """x^2 up to multiples of 4, whose rounding an angle in units of pi / 2 would show."""
    whole = np.floor(x + 0.5)
    rest = x - whole
    odd = whole - 2 * np.floor(0.5 * whole)
    cross = 2 * rest * whole
    cross = cross - 4 * np.floor(0.25 * cross)
    return odd + cross + rest * rest


_fresnel_sine = with_slopes(
    lambda x: _fresnel(x)[0], lambda y, x: np.sin(0.5 * math.pi * _square_modulo_4(x))
)
_fresnel_cosine = with_slopes(
    lambda x: _fresnel(x)[1], lambda y, x: np.cos(0.5 * math.pi * _square_modulo_4(x))
)


def fresnel(x: ArrayLike) -> tuple[Array, Array]:
    """Fresnel's integrals of sin(pi t^2 / 2) and of cos(pi t^2 / 2) from 0 to x.

    Args:
        x: real numbers.

    Returns:
        (S, C), each in the shape of `x`.

    >>> [round(float(y), 4) for y in fresnel(1.0)]
    [0.4383, 0.7799]
    """
    x = real_operand(x, "fresnel")
    return rounded_once(_fresnel_sine, x), rounded_once(_fresnel_cosine, x)
