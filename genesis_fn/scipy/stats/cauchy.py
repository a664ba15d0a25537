"""The Cauchy distribution."""

from __future__ import annotations

import math

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.stats.location_scale import LocationScale
from genesis_fn.scipy.stats.tails import log_part

_family = LocationScale("cauchy")


def _log_density(z: Array) -> Array:
    # For large z by 1 / z, whose square does not overflow.
    far = np.abs(z) > 1e9
    near = np.where(far, 0.0, z)
    away = np.abs(np.where(far, z, 1.0))
    return np.where(far, -2.0 * np.log(away), -np.log1p(near * near)) - math.log(math.pi)


def _lower(z: Array) -> Array:
    # Of arctan2, as 1/2 + arctan(z) / pi cancels in the lower tail.
    return np.arctan2(np.ones_like(z), -z) / math.pi


def _upper(z: Array) -> Array:
    return np.arctan2(np.ones_like(z), z) / math.pi


def _log_lower(z: Array) -> Array:
    return log_part(_lower(z), _upper(z))


def _log_upper(z: Array) -> Array:
    return log_part(_upper(z), _lower(z))


def _quantile(q: Array) -> Array:
    # In the tails by the cotangent of the smaller probability, which is exact near 0 and 1.
    upper = q > 0.5
    tail = np.abs(q - 0.5) > 0.25
    far = 1.0 / np.tan(math.pi * np.where(tail, np.where(upper, 1.0 - q, q), 0.25))
    near = np.tan(math.pi * np.where(tail, 0.0, q - 0.5))
    return np.where(tail, np.where(upper, far, -far), near)


def _upper_quantile(q: Array) -> Array:
    return -_quantile(q)


def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density of a Cauchy distribution.

        -log(pi scale (1 + z^2)),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: median.
        scale: half the distance between the quartiles, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.cauchy.logpdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([-2.5310242, -2.0610206], dtype=float32)
    """
    return _family.logpdf(_log_density, x, loc, scale)


def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density of a Cauchy distribution.

        1 / (pi scale (1 + z^2)),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: median.
        scale: half the distance between the quartiles, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.cauchy.pdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.07957748, 0.12732396], dtype=float32)
    """
    return _family.pdf(_log_density, x, loc, scale)


def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most `x` under a Cauchy distribution.

        1/2 + arctan(z) / pi,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: median.
        scale: half the distance between the quartiles, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.cauchy.cdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.25      , 0.64758354], dtype=float32)
    """
    return _family.cdf(_lower, x, loc, scale)


def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the probability of at most `x` under a Cauchy distribution.

        log(1/2 + arctan(z) / pi),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: median.
        scale: half the distance between the quartiles, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.cauchy.logcdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([-1.3862944 , -0.43450737], dtype=float32)
    """
    return _family.logcdf(_log_lower, x, loc, scale)


def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than `x` under a Cauchy distribution.

        1/2 - arctan(z) / pi,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: median.
        scale: half the distance between the quartiles, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.cauchy.sf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.75     , 0.3524164], dtype=float32)
    """
    return _family.sf(_upper, x, loc, scale)


def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the probability of more than `x` under a Cauchy distribution.

        log(1/2 - arctan(z) / pi),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: median.
        scale: half the distance between the quartiles, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.cauchy.logsf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([-0.2876821, -1.0429418], dtype=float32)
    """
    return _family.logsf(_log_upper, x, loc, scale)


def isf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The upper quantile of a Cauchy distribution at probability `q`: the inverse of `sf`.

        loc + scale tan(pi (1/2 - q))

    Args:
        q: probabilities; outside of [0, 1] the result is NaN.
        loc: median.
        scale: half the distance between the quartiles, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.cauchy.isf(jnp.array([0.1, 0.5]), 1.0, 2.0)
    Array([7.155367, 1.      ], dtype=float32)
    """
    return _family.isf(_upper_quantile, q, loc, scale)


def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The quantile of a Cauchy distribution at probability `q`: the inverse of `cdf`.

        loc + scale tan(pi (q - 1/2))

    Args:
        q: probabilities; outside of [0, 1] the result is NaN.
        loc: median.
        scale: half the distance between the quartiles, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.cauchy.ppf(jnp.array([0.1, 0.5]), 1.0, 2.0)
    Array([-5.155367,  1.      ], dtype=float32)
    """
    return _family.ppf(_quantile, q, loc, scale)
