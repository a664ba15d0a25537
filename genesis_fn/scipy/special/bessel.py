"""Bessel functions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special.derivatives import with_slopes
from genesis_fn.scipy.special.operands import inexact, real_operand, rounded_once


def i0e(x: ArrayLike) -> Array:
    """exp(-|x|) I_0(x)."""
    return lax.bessel_i0e(inexact(x))


def i0(x: ArrayLike) -> Array:
    """The modified Bessel function I_0."""
    x = inexact(x)
    return np.exp(np.abs(x)) * lax.bessel_i0e(x)


def i1e(x: ArrayLike) -> Array:
    """exp(-|x|) I_1(x)."""
    return lax.bessel_i1e(inexact(x))


def i1(x: ArrayLike) -> Array:
    """The modified Bessel function I_1."""
    x = inexact(x)
    return np.exp(np.abs(x)) * lax.bessel_i1e(x)


# ---- Bessel functions of the first kind ----

_HANKEL = 25.0  # from here on Hankel's asymptotic series has double precision


def bessel_jn(z: ArrayLike, *, v: int, n_iter: int = 50) -> Array:
    """The Bessel functions of the first kind J_0(z), ..., J_v(z).

    By Miller's recurrence from a high order downwards where the order may exceed the argument, and
    otherwise upwards from Hankel's series (Abramowitz and Stegun 9.1.27, 9.2.5, 9.12).

    Args:
        z: real numbers.
        v: the highest order, a whole number >= 0.
        n_iter: the order at which the recurrence begins, at least; it begins higher where more is
            needed for all digits.

    Returns:
        [v + 1, *z.shape], in the dtype of `z`.

    Raises:
        ValueError: for a negative `v`.

    >>> [round(float(j), 4) for j in bessel_jn(1.0, v=1)]
    [0.7652, 0.4401]
    """
    z, v = real_operand(z, "bessel_jn"), operator.index(v)
    if v < 0:
        raise ValueError(f"bessel_jn: v is the highest order, >= 0, got {v}")
    return rounded_once(_orders(v, operator.index(n_iter)), z)


def _orders(v: int, begin: int) -> Callable[[Array], Array]:
    def slope(y: Array, z: Array) -> Array:
        # J_n' = (J_(n-1) - J_(n+1)) / 2, with J_(-1) = -J_1.
        ys = _bessel_jn(z, v + 1, begin)
        return 0.5 * (np.concatenate([-ys[1:2], ys[:v]]) - ys[1:])

    return with_slopes(lambda z: _bessel_jn(z, v, begin), slope)


def _bessel_jn(z: Array, v: int, begin: int) -> Array:
    x = np.abs(z)
    down = _downwards(np.minimum(x, float(max(v, _HANKEL))), v, begin)
    up = _upwards(np.maximum(x, _HANKEL), v)
    order = np.arange(v + 1).reshape((v + 1,) + (1,) * z.ndim)
    y = np.where((x > _HANKEL) & (order <= x), up, down)
    y = np.where(np.isinf(x), 0.0, y)
    return np.where((z < 0) & (order % 2 == 1), -y, np.where(np.isnan(z), np.nan, y))


def _downwards(x: Array, v: int, begin: int) -> Array:
    """J_0 ... J_v by J_(n-1) = 2 n / x J_n - J_(n+1) from above, scaled by 1 = J_0 + 2 J_2 + ..."""
    top = max(begin, v + 30 + 4 * math.isqrt(v), int(_HANKEL) + 40)
    zero = x == 0
    # J_n falls like (x / 2)^n / n!: the ratios J_n / J_(n-1) neither over- nor underflow.
    inverse = 2 / np.where(zero, 1.0, x)

    def step(state: tuple[Array, Array], n: Array) -> tuple[tuple[Array, Array], Array]:
        ratio, total = state
        ratio = 1 / (n * inverse - ratio)
        # `total` is 2 (J_2 + J_4 + ...) from this order on, as a part of the order before.
        total = ratio * (total + np.where(n % 2 == 0, 2.0, 0.0))
        return (ratio, total), ratio

    orders = np.arange(1, top + 1).astype(x.dtype)
    none = np.zeros_like(x)
    (_, total), ratios = lax.scan(step, (none, none), orders, reverse=True)
    first = 1 / (1 + total)
    ys = np.concatenate([first[None], first * np.cumprod(ratios[:v], 0)])
    order = np.arange(v + 1).reshape((v + 1,) + (1,) * x.ndim)
    return np.where(zero, np.where(order == 0, 1.0, 0.0), ys)


def _upwards(x: Array, v: int) -> Array:
    """J_0 ... J_v by Hankel's series for J_0 and J_1 and the recurrence, for orders below x."""
    first = [_hankel(x, n) for n in range(min(v, 1) + 1)]
    if v < 2:
        return np.stack(first)

    def step(state: tuple[Array, Array], n: Array) -> tuple[tuple[Array, Array], Array]:
        before, last = state
        following = 2 * n / x * last - before
        return (last, following), following

    _, rest = lax.scan(step, (first[0], first[1]), np.arange(1, v).astype(x.dtype))
    return np.concatenate([np.stack(first), rest])


def _hankel(x: Array, n: int) -> Array:
    coefficients = [1.0]
    for k in range(1, 25):
        sign = 1 if k % 2 else -1  # both series alternate
        coefficients.append(coefficients[-1] * sign * (4 * n * n - (2 * k - 1) ** 2) / k)
    r = 1 / (8 * x)
    p, q = np.zeros_like(x), np.zeros_like(x)
    for even, odd in zip(coefficients[22::-2], coefficients[23::-2], strict=True):
        p, q = p * r * r + even, q * r * r + odd
    q = q * r
    # cos and sin of x - pi / 4, or of x - 3 pi / 4, times sqrt(2), from those of x
    c, s = np.cos(x), np.sin(x)
    first, second = (c + s, s - c) if n == 0 else (s - c, -(s + c))
    return (p * first - q * second) / np.sqrt(math.pi * x)
