"""The beta-binomial distribution: successes in n trials of a beta distributed probability."""

from __future__ import annotations

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special import betaln
from genesis_fn.scipy.stats.lattice import Lattice
from genesis_fn.scipy.stats.operands import count, positive

_family = Lattice("betabinom", 0.0, lambda n, a, b: n)


def _log_mass(k: Array, n: Array, a: Array, b: Array) -> Array:
    n, a, b = count(n), positive(a), positive(b)
    ways = -np.log1p(n) - betaln(n - k + 1.0, k + 1.0)
    return ways + betaln(k + a, n - k + b) - betaln(a, b)


def logpmf(k: ArrayLike, n: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of `k` under a beta-binomial distribution.

        log(C(n, y) B(y + a, n - y + b) / B(a, b)) for y = k - loc in 0, ..., n, else -inf

    Args:
        k: points, of any shape.
        n: how many trials, an integer from 0 on.
        a: the beta distribution's first shape, positive.
        b: its second shape, positive.
        loc: shift of the points, an integer.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.betabinom.logpmf(jnp.array([0, 2, 6]), 5, 2.0, 3.0)
    Array([-1.791759 , -1.4350843,       -inf], dtype=float32)
    """
    return _family.logpmf(_log_mass, k, loc, n, a, b)


def pmf(k: ArrayLike, n: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of `k` under a beta-binomial distribution.

        C(n, y) B(y + a, n - y + b) / B(a, b) for y = k - loc in 0, ..., n, else 0

    Args:
        k: points, of any shape.
        n: how many trials, an integer from 0 on.
        a: the beta distribution's first shape, positive.
        b: its second shape, positive.
        loc: shift of the points, an integer.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.betabinom.pmf(jnp.array([0, 2, 6]), 5, 2.0, 3.0)
    Array([0.16666675, 0.23809528, 0.        ], dtype=float32)
    """
    return _family.pmf(_log_mass, k, loc, n, a, b)
