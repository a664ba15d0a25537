"""The binomial distribution: successes among n trials."""

from __future__ import annotations

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special import betaln, xlog1py, xlogy
from genesis_fn.scipy.stats.lattice import Lattice
from genesis_fn.scipy.stats.operands import count, proportion

_family = Lattice("binom", 0.0, lambda n, p: n)


def _log_mass(k: Array, n: Array, p: Array) -> Array:
    n, p = count(n), proportion(p)
    # log of n over k, of the beta function, in which logarithms of gamma functions do not cancel.
    ways = -np.log1p(n) - betaln(n - k + 1.0, k + 1.0)
    return ways + xlogy(k, p) + xlog1py(n - k, -p)


def logpmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of `k` under a binomial distribution.

        log(C(n, y) p^y (1 - p)^(n - y)) for y = k - loc in 0, ..., n, else -inf

    Args:
        k: points, of any shape.
        n: how many trials, an integer from 0 on.
        p: probability of a success, in [0, 1].
        loc: shift of the points, an integer.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.binom.logpmf(jnp.array([0, 2, 6]), 5, 0.3)
    Array([-1.7833748, -1.1753855,       -inf], dtype=float32)
    """
    return _family.logpmf(_log_mass, k, loc, n, p)


def pmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of `k` under a binomial distribution.

        C(n, y) p^y (1 - p)^(n - y) for y = k - loc in 0, ..., n, else 0

    Args:
        k: points, of any shape.
        n: how many trials, an integer from 0 on.
        p: probability of a success, in [0, 1].
        loc: shift of the points, an integer.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.binom.pmf(jnp.array([0, 2, 6]), 5, 0.3)
    Array([0.16806999, 0.30869997, 0.        ], dtype=float32)
    """
    return _family.pmf(_log_mass, k, loc, n, p)
