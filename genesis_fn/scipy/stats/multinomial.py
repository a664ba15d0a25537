"""The multinomial distribution: how often each of several outcomes comes in n trials."""

from __future__ import annotations

import math
from collections.abc import Callable

import genesis_fn.numpy as np
from genesis_fn.core import dtypes, errors
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.promotion import inexact_value, value
from genesis_fn.scipy.special import gammaln, xlogy
from genesis_fn.scipy.stats.operands import in_floats, proportion


def _log_mass(p: Array, x: Array, n: Array) -> Array:
    p = proportion(p)
    possible = np.all(x >= 0, axis=-1) & (np.sum(x, axis=-1) == n)
    x = np.where(possible[..., None], x, 0.0)
    terms = xlogy(x, p) - gammaln(x + 1.0)
    found = gammaln(np.where(possible, n, 0.0) + 1.0) + np.sum(terms, axis=-1)
    return np.where(possible | np.isnan(found), found, -math.inf)


def _mass(p: Array, x: Array, n: Array) -> Array:
    return np.exp(_log_mass(p, x, n))


def _evaluated(
    name: str, formula: Callable[..., Array], x: ArrayLike, n: ArrayLike, p: ArrayLike
) -> Array:
    """`formula` of integers `x` and `n` in the dtype of `p`."""
    x, n, p = value(x, name), value(n, name), inexact_value(p, name)
    for what, counts in (("x", x), ("n", n)):
        if not dtypes.is_integer(counts.dtype):
            raise errors.DTypeError(
                f"{name} takes integers for {what}, got {counts.aval}; convert with "
                ".astype('int32')"
            )
    # Of 16-bit floats the operands are widened here: counts above 256 are no bfloat16.
    return in_floats(name, formula, p.astype(dtypes.widened(p.dtype)), x, n).astype(p.dtype)


def logpmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """The logarithm of the probability of `x` under a multinomial distribution.

        log(n! prod_i p_i^x_i / x_i!)

    Args:
        x: counts of the outcomes along the last axis, integers.
        n: how many trials, integers.

    Args:
        p: probabilities of the outcomes along the last axis, which are taken as they are.

    Returns:
        Floats of the dtype of `p` and the shape to which `n` and the other axes broadcast; -inf
        where counts are negative or do not sum to `n`, NaN where a probability is outside [0, 1].

    Raises:
        TypeError: `x` or `n` are no integers, or `p` is complex.

    >>> gf.scipy.stats.multinomial.logpmf(jnp.array([1, 2]), 3, jnp.array([0.4, 0.6]))
    Array(-0.8393295, dtype=float32)
    """
    return _evaluated("multinomial.logpmf", _log_mass, x, n, p)


def pmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """The probability of `x` under a multinomial distribution.

        n! prod_i p_i^x_i / x_i!

    Args:
        x: counts of the outcomes along the last axis, integers.
        n: how many trials, integers.

    Args:
        p: probabilities of the outcomes along the last axis, which are taken as they are.

    Returns:
        Floats of the dtype of `p` and the shape to which `n` and the other axes broadcast; 0 where
        counts are negative or do not sum to `n`, NaN where a probability is outside [0, 1].

    Raises:
        TypeError: `x` or `n` are no integers, or `p` is complex.

    >>> gf.scipy.stats.multinomial.pmf(jnp.array([1, 2]), 3, jnp.array([0.4, 0.6]))
    Array(0.4320001, dtype=float32)
    """
    return _evaluated("multinomial.pmf", _mass, x, n, p)
