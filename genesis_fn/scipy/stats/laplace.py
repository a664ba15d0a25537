"""The Laplace distribution."""

from __future__ import annotations

import math

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.stats.location_scale import LocationScale

_family = LocationScale("laplace")


def _log_density(z: Array) -> Array:
    return -np.abs(z) - math.log(2.0)


def _lower(z: Array) -> Array:
    # Each branch at points of its own: the other's exponential may overflow.
    negative = z < 0
    below, above = np.where(negative, z, 0.0), np.where(negative, 0.0, z)
    return np.where(negative, 0.5 * np.exp(below), 1.0 - 0.5 * np.exp(-above))


def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density of a Laplace distribution.

        -|z| - log(2 scale),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: median.
        scale: mean of |x - loc|, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.laplace.logpdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([-2.3862944, -1.8862944], dtype=float32)
    """
    return _family.logpdf(_log_density, x, loc, scale)


def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density of a Laplace distribution.

        exp(-|z|) / (2 scale),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: median.
        scale: mean of |x - loc|, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.laplace.pdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.09196986, 0.15163267], dtype=float32)
    """
    return _family.pdf(_log_density, x, loc, scale)


def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most `x` under a Laplace distribution.

        exp(z) / 2 where z <= 0, else 1 - exp(-z) / 2,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: median.
        scale: mean of |x - loc|, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.laplace.cdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.18393973, 0.69673467], dtype=float32)
    """
    return _family.cdf(_lower, x, loc, scale)
