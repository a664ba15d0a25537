"""The normal distribution."""

from __future__ import annotations

import math

from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special import log_ndtr, ndtr, ndtri
from genesis_fn.scipy.stats.location_scale import LocationScale

_family = LocationScale("norm")


def _log_density(z: Array) -> Array:
    return -0.5 * (z * z + math.log(2 * math.pi))


def _upper(z: Array) -> Array:
    return ndtr(-z)


def _log_upper(z: Array) -> Array:
    return log_ndtr(-z)


def _upper_quantile(q: Array) -> Array:
    return -ndtri(q)


def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density of a normal distribution.

        -(z^2 + log(2 pi)) / 2 - log(scale),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mean.
        scale: standard deviation, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.norm.logpdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([-2.1120858, -1.7370857], dtype=float32)
    """
    return _family.logpdf(_log_density, x, loc, scale)


def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density of a normal distribution.

        exp(-z^2 / 2) / (scale sqrt(2 pi)),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mean.
        scale: standard deviation, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.norm.pdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.12098535, 0.17603266], dtype=float32)
    """
    return _family.pdf(_log_density, x, loc, scale)


def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most `x` under a normal distribution.

        Phi(z) = (1 + erf(z / sqrt(2))) / 2,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mean.
        scale: standard deviation, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.norm.cdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.15865526, 0.69146246], dtype=float32)
    """
    return _family.cdf(ndtr, x, loc, scale)


def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the probability of at most `x` under a normal distribution.

        log(Phi(z)),   z = (x - loc) / scale

        accurate far in the lower tail, too.

    Args:
        x: points, of any shape.
        loc: mean.
        scale: standard deviation, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.norm.logcdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([-1.8410217 , -0.36894643], dtype=float32)
    """
    return _family.logcdf(log_ndtr, x, loc, scale)


def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The quantile of a normal distribution at probability `q`: the inverse of `cdf`.

        loc + scale Phi^-1(q)

    Args:
        q: probabilities; outside of [0, 1] the result is NaN.
        loc: mean.
        scale: standard deviation, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.norm.ppf(jnp.array([0.1, 0.5]), 1.0, 2.0)
    Array([-1.5631032,  1.       ], dtype=float32)
    """
    return _family.ppf(ndtri, q, loc, scale)


def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the probability of more than `x` under a normal distribution.

        log(1 - Phi(z)) = log(Phi(-z)),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mean.
        scale: standard deviation, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.norm.logsf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([-0.17275378, -1.1759118 ], dtype=float32)
    """
    return _family.logsf(_log_upper, x, loc, scale)


def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than `x` under a normal distribution.

        1 - Phi(z) = Phi(-z),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mean.
        scale: standard deviation, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.norm.sf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.8413447 , 0.30853754], dtype=float32)
    """
    return _family.sf(_upper, x, loc, scale)


def isf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The upper quantile of a normal distribution at probability `q`: the inverse of `sf`.

        loc - scale Phi^-1(q)

    Args:
        q: probabilities; outside of [0, 1] the result is NaN.
        loc: mean.
        scale: standard deviation, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.norm.isf(jnp.array([0.1, 0.5]), 1.0, 2.0)
    Array([3.5631032, 1.       ], dtype=float32)
    """
    return _family.isf(_upper_quantile, q, loc, scale)
