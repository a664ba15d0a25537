"""The geometric distribution: trials up to the first success."""

from __future__ import annotations

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special import xlog1py
from genesis_fn.scipy.stats.lattice import Lattice
from genesis_fn.scipy.stats.operands import positive, proportion

_family = Lattice("geom", 1.0)


def _log_mass(k: Array, p: Array) -> Array:
    p = positive(proportion(p))
    return xlog1py(k - 1.0, -p) + np.log(p)


def logpmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of `k` under a geometric distribution.

        log(p (1 - p)^(y - 1)) for y = k - loc in 1, 2, ..., else -inf

    Args:
        k: points, of any shape.
        p: probability of a success, in (0, 1].
        loc: shift of the points, an integer.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.geom.logpmf(jnp.array([0, 1, 3]), 0.3)
    Array([      -inf, -1.2039728, -1.9173228], dtype=float32)
    """
    return _family.logpmf(_log_mass, k, loc, p)


def pmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of `k` under a geometric distribution.

        p (1 - p)^(y - 1) for y = k - loc in 1, 2, ..., else 0

    Args:
        k: points, of any shape.
        p: probability of a success, in (0, 1].
        loc: shift of the points, an integer.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.geom.pmf(jnp.array([0, 1, 3]), 0.3)
    Array([0.        , 0.29999998, 0.14699998], dtype=float32)
    """
    return _family.pmf(_log_mass, k, loc, p)
