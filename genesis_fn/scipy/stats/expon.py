"""The exponential distribution on [loc, inf)."""

from __future__ import annotations

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.nn import log1mexp
from genesis_fn.scipy.stats.location_scale import LocationScale

_family = LocationScale("expon", low=0.0, inside=1.0)


def _log_upper(z: Array) -> Array:
    return -z


def _upper(z: Array) -> Array:
    return np.exp(-z)


def _lower(z: Array) -> Array:
    return -np.expm1(-z)


def _quantile(q: Array) -> Array:
    return -np.log1p(-q)


def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density of an exponential distribution.

        -z - log(scale) where z >= 0, else -inf,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: where the distribution begins.
        scale: mean of x - loc, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.expon.logpdf(jnp.array([0.5, 2.0]), 1.0, 2.0)
    Array([      -inf, -1.1931472], dtype=float32)
    """
    return _family.logpdf(_log_upper, x, loc, scale)


def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density of an exponential distribution.

        exp(-z) / scale where z >= 0, else 0,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: where the distribution begins.
        scale: mean of x - loc, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.expon.pdf(jnp.array([0.5, 2.0]), 1.0, 2.0)
    Array([0.        , 0.30326533], dtype=float32)
    """
    return _family.pdf(_log_upper, x, loc, scale)


def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most `x` under an exponential distribution.

        1 - exp(-z) where z >= 0, else 0,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: where the distribution begins.
        scale: mean of x - loc, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.expon.cdf(jnp.array([0.5, 2.0]), 1.0, 2.0)
    Array([0.        , 0.39346933], dtype=float32)
    """
    return _family.cdf(_lower, x, loc, scale)


def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the probability of at most `x` under an exponential distribution.

        log(1 - exp(-z)) where z >= 0, else -inf,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: where the distribution begins.
        scale: mean of x - loc, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.expon.logcdf(jnp.array([0.5, 2.0]), 1.0, 2.0)
    Array([       -inf, -0.93275213], dtype=float32)
    """
    return _family.logcdf(log1mexp, x, loc, scale)


def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the probability of more than `x` under an exponential distribution.

        -z where z >= 0, else 0,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: where the distribution begins.
        scale: mean of x - loc, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.expon.logsf(jnp.array([0.5, 2.0]), 1.0, 2.0)
    Array([ 0. , -0.5], dtype=float32)
    """
    return _family.logsf(_log_upper, x, loc, scale)


def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than `x` under an exponential distribution.

        exp(-z) where z >= 0, else 1,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: where the distribution begins.
        scale: mean of x - loc, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.expon.sf(jnp.array([0.5, 2.0]), 1.0, 2.0)
    Array([1.        , 0.60653067], dtype=float32)
    """
    return _family.sf(_upper, x, loc, scale)


def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The quantile of an exponential distribution at probability `q`: the inverse of `cdf`.

        loc - scale log(1 - q)

    Args:
        q: probabilities; outside of [0, 1] the result is NaN.
        loc: where the distribution begins.
        scale: mean of x - loc, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.expon.ppf(jnp.array([0.1, 0.5]), 1.0, 2.0)
    Array([1.210721 , 2.3862944], dtype=float32)
    """
    return _family.ppf(_quantile, q, loc, scale)
