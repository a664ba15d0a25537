"""The negative binomial distribution: failures before the n-th success."""

from __future__ import annotations

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special import betaln, xlog1py, xlogy
from genesis_fn.scipy.stats.lattice import Lattice
from genesis_fn.scipy.stats.operands import positive, proportion

_family = Lattice("nbinom", 0.0)


def _log_mass(k: Array, n: Array, p: Array) -> Array:
    n, p = positive(n), positive(proportion(p))
    # log of n + k - 1 over k, of the beta function, as in `binom`.
    ways = -np.log(n + k) - betaln(n, k + 1.0)
    return ways + xlogy(n, p) + xlog1py(k, -p)


def logpmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of `k` under a negative binomial distribution.

        log(Gamma(y + n) / (y! Gamma(n)) p^n (1 - p)^y) for y = k - loc in 0, 1, ..., else -inf

    Args:
        k: points, of any shape.
        n: how many successes, positive, not only an integer.
        p: probability of a success, in (0, 1].
        loc: shift of the points, an integer.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.nbinom.logpmf(jnp.array([-1, 0, 3]), 5, 0.3)
    Array([      -inf, -6.019864 , -3.5345411], dtype=float32)
    """
    return _family.logpmf(_log_mass, k, loc, n, p)


def pmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of `k` under a negative binomial distribution.

        Gamma(y + n) / (y! Gamma(n)) p^n (1 - p)^y for y = k - loc in 0, 1, ..., else 0

    Args:
        k: points, of any shape.
        n: how many successes, positive, not only an integer.
        p: probability of a success, in (0, 1].
        loc: shift of the points, an integer.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.nbinom.pmf(jnp.array([-1, 0, 3]), 5, 0.3)
    Array([0.        , 0.00243   , 0.02917214], dtype=float32)
    """
    return _family.pmf(_log_mass, k, loc, n, p)
