"""The Bernoulli distribution on 0 and 1."""

from __future__ import annotations

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special import xlog1py, xlogy
from genesis_fn.scipy.stats.lattice import Lattice
from genesis_fn.scipy.stats.operands import in_floats, proportion

_family = Lattice("bernoulli", 0.0, lambda p: 1.0)


def _log_mass(k: Array, p: Array) -> Array:
    p = proportion(p)
    return xlogy(k, p) + xlog1py(1.0 - k, -p)


def _lower(k: Array, p: Array) -> Array:
    p = proportion(p)
    value = np.where(k < 0, 0.0, np.where(k < 1, 1.0 - p, 1.0))
    return np.where(np.isnan(k) | np.isnan(p), np.nan, value)


def _quantile(q: Array, p: Array) -> Array:
    q, p = proportion(q), proportion(p)
    value = np.where(q <= 1.0 - p, 0.0, 1.0)
    return np.where(np.isnan(q) | np.isnan(p), np.nan, value)


def logpmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of `k` under a Bernoulli distribution.

        log(p) at k - loc = 1, log(1 - p) at k - loc = 0, else -inf

    Args:
        k: points, of any shape.
        p: probability of a success, in [0, 1].
        loc: shift of the points, an integer.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.bernoulli.logpmf(jnp.array([0, 1, 2]), 0.3)
    Array([-0.35667497, -1.2039728 ,        -inf], dtype=float32)
    """
    return _family.logpmf(_log_mass, k, loc, p)


def pmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of `k` under a Bernoulli distribution.

        p at k - loc = 1, 1 - p at k - loc = 0, else 0

    Args:
        k: points, of any shape.
        p: probability of a success, in [0, 1].
        loc: shift of the points, an integer.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.bernoulli.pmf(jnp.array([0, 1, 2]), 0.3)
    Array([0.7       , 0.29999998, 0.        ], dtype=float32)
    """
    return _family.pmf(_log_mass, k, loc, p)


def cdf(k: ArrayLike, p: ArrayLike) -> Array:
    """The probability of at most `k` under a Bernoulli distribution.

        0 for k < 0, 1 - p for 0 <= k < 1, 1 from 1 on

    Args:
        k: points, of any shape.
        p: probability of a success, in [0, 1].

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.bernoulli.cdf(jnp.array([0, 1, 2]), 0.3)
    Array([0.7, 1. , 1. ], dtype=float32)
    """
    return in_floats("bernoulli.cdf", _lower, k, p)


def ppf(q: ArrayLike, p: ArrayLike) -> Array:
    """The quantile of a Bernoulli distribution at probability `q`: the inverse of `cdf`.

        0 where q <= 1 - p, else 1

    Args:
        q: probabilities; outside of [0, 1] the result is NaN.
        p: probability of a success, in [0, 1].

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.bernoulli.ppf(jnp.array([0.5, 0.9]), 0.3)
    Array([0., 1.], dtype=float32)
    """
    return in_floats("bernoulli.ppf", _quantile, q, p)
