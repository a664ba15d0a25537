"""Bessel functions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special.operands import inexact, real_operand, rounded_once
from genesis_fn.transforms.custom.derivative_rules import custom_jvp


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

    >>> bessel_jn(1.0, v=1)
    Array([0.765198, 0.440051], dtype=float32)
    """
    z, v = real_operand(z, "bessel_jn"), operator.index(v)
    if v < 0:
        raise ValueError(f"bessel_jn: v is the highest order, >= 0, got {v}")
    return rounded_once(_orders(v, operator.index(n_iter)), z)


def _orders(v: int, begin: int) -> Callable[[Array], Array]:
    def slope(y: Array, z: Array) -> Array:
        # J_n' = (J_(n-1) - J_(n+1)) / 2, with J_(-1) = -J_1
        ys = _orders(v + 1, begin)(z)
        above = ys[1:]
        below = np.concatenate([-ys[1:2], ys[:v]]) if v else -ys[1:2]
        return 0.5 * (below - above)

    call = custom_jvp(lambda z: _bessel_jn(z, v, begin))

    @call.defjvp
    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        y = call(*primals)
        return y, tangents[0] * slope(y, *primals)

    return call


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
    top += top % 2
    zero = x == 0
    # J_n falls like (x / 2)^n / n!: the ratios J_n / J_(n-1) neither over- nor underflow.
    inverse = 2 / np.where(zero, 1.0, x)
    ratio = np.zeros_like(x)
    ratios: list[Array] = []
    total = np.zeros_like(x)  # 2 (J_2 + J_4 + ...) / J_0, summed from within
    for n in range(top, 0, -1):
        ratio = 1 / (n * inverse - ratio)
        total = ratio * (total + (2.0 if n % 2 == 0 else 0.0))
        if n <= v:
            ratios.append(ratio)
    y = 1 / (1 + total)
    ys = [y]
    for ratio in ratios[::-1]:
        ys.append(ys[-1] * ratio)
    return np.stack([np.where(zero, 1.0 if n == 0 else 0.0, y) for n, y in enumerate(ys)])


def _upwards(x: Array, v: int) -> Array:
    """J_0 ... J_v by Hankel's series for J_0 and J_1 and the recurrence, for orders below x."""
    ys = [_hankel(x, n) for n in range(min(v, 1) + 1)]
    for n in range(1, v):
        ys.append(2 * n / x * ys[-1] - ys[-2])
    return np.stack(ys)


def _hankel(x: Array, n: int) -> Array:
    p, q = np.ones_like(x), np.zeros_like(x)
    term = np.ones_like(x)
    for k in range(1, 25):
        term = term * (4 * n * n - (2 * k - 1) ** 2) / (8 * k * x)
        sign = -1.0 if k % 4 in (2, 3) else 1.0
        if k % 2:
            q = q + sign * term
        else:
            p = p + sign * term
    # cos and sin of x - pi / 4 from those of x, which are exact for any x
    c, s = np.cos(x), np.sin(x)
    if n == 0:
        first, second = c + s, s - c
    else:
        first, second = s - c, -(s + c)
    return (p * first - q * second) / np.sqrt(math.pi * x)
