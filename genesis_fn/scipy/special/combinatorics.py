"""Factorials, binomial coefficients and Bernoulli's numbers."""

from __future__ import annotations

import math
import operator

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.special import log_beta
from genesis_fn.scipy.special.derivatives import with_slopes
from genesis_fn.scipy.special.operands import inexact, reals_together, rounded_once


def factorial(n: ArrayLike, exact: bool = False) -> Array:
    """n! = gamma(n + 1); 0 for negative n."""
    n = inexact(n)
    return np.where(n < 0, 0.0, np.exp(lax.lgamma(n + 1)))


def _choose(n: Array, k: Array) -> Array:
    """n! / (k! (n - k)!) for 0 <= k <= n."""
    y = np.exp(-log_beta(n - k + 1, k + 1)) / (n + 1)
    # Of whole numbers the coefficient is whole: where rounding left less than 1/2, exactly.
    whole = (np.floor(n) == n) & (np.floor(k) == k)
    exact = whole & (y < 0.01 / float(np.finfo(y.dtype).eps))
    return np.where(exact, np.round(np.where(exact, y, 0.0)), y)


_choose_differentiable = with_slopes(
    _choose,
    lambda y, n, k: y * (lax.digamma(n + 1) - lax.digamma(n - k + 1)),
    lambda y, n, k: y * (lax.digamma(n - k + 1) - lax.digamma(k + 1)),
)


def comb(N: ArrayLike, k: ArrayLike, *, repetition: bool = False) -> Array:
    """The number of combinations of `N` things taken `k` at a time: N! / (k! (N - k)!).

    Args:
        N: real numbers.
        k: real numbers.
        repetition: whether a thing may be taken more than once.

    Returns:
        The binomial coefficient of `N` and `k`, or with `repetition` of N + k - 1 and k: a float,
        whole for whole numbers as far as its dtype goes; 0 unless 0 <= k <= N.

    >>> round(float(comb(5, 2)), 4)
    10.0
    """
    n, k = reals_together("comb", N, k)
    if repetition:
        inside = ((n > 0) & (k >= 0)) | ((n == 0) & (k == 0))
        n = n + k - 1
    else:
        inside = (k <= n) & (n >= 0) & (k >= 0)
    y = rounded_once(
        _choose_differentiable, np.where(inside & (k > 0), n, 1.0), np.where(inside, k, 0.0)
    )
    return np.where(inside, y, np.where(np.isnan(n) | np.isnan(k), np.nan, 0.0))


def bernoulli(n: int) -> Array:
    """Bernoulli's numbers B_0 to B_n, with B_1 = -1/2.

    For even k >= 4 by 2 k! zeta(k) / (2 pi)^k, with alternating signs (Abramowitz and Stegun
    23.2.16).

    Args:
        n: the index of the last one, >= 0.

    Returns:
        A float vector [n + 1].

    Raises:
        ValueError: for a negative `n`.

    >>> [round(float(b), 4) for b in bernoulli(4)]
    [1.0, -0.5, 0.1667, 0.0, -0.0333]
    """
    n = operator.index(n)
    if n < 0:
        raise ValueError(f"bernoulli: n counts from 0, got {n}")
    numbers = [1.0, -0.5, 1 / 6]
    size = 1 / math.pi**2  # 2 k! / (2 pi)^k
    for k in range(3, n + 1):
        if k % 2:
            numbers.append(0.0)
            continue
        size *= (k - 1) * k / (2 * math.pi) ** 2
        zeta = 1 + math.fsum([float(j) ** -k for j in range(2, 2 + min(2000, 3 + 10 ** (16 // k)))])
        numbers.append((-1) ** (k // 2 + 1) * size * zeta)
    return np.asarray(numbers[: n + 1], dtype=float)
