"""The logistic distribution."""

from __future__ import annotations

from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.nn import softplus
from genesis_fn.scipy.special import expit, logit
from genesis_fn.scipy.stats.location_scale import LocationScale

_family = LocationScale("logistic")


def _log_density(z: Array) -> Array:
    return -z - 2.0 * softplus(-z)


def _upper(z: Array) -> Array:
    return expit(-z)


def _upper_quantile(q: Array) -> Array:
    return -logit(q)


def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density of a logistic distribution.

        -z - 2 log(1 + exp(-z)) - log(scale),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mean.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.logistic.logpdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([-2.3196707, -2.1413012], dtype=float32)
    """
    return _family.logpdf(_log_density, x, loc, scale)


def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density of a logistic distribution.

        exp(-z) / (scale (1 + exp(-z))^2),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mean.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.logistic.pdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.09830596, 0.11750185], dtype=float32)
    """
    return _family.pdf(_log_density, x, loc, scale)


def ppf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The quantile of a logistic distribution at probability `x`: the inverse of `cdf`.

        loc + scale log(x / (1 - x))

    Args:
        x: probabilities; outside of [0, 1] the result is NaN.
        loc: mean.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.logistic.ppf(jnp.array([0.1, 0.5]), 1.0, 2.0)
    Array([-3.3944492,  1.       ], dtype=float32)
    """
    return _family.ppf(logit, x, loc, scale)


def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than `x` under a logistic distribution.

        1 / (1 + exp(z)),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mean.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.logistic.sf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.7310586 , 0.37754068], dtype=float32)
    """
    return _family.sf(_upper, x, loc, scale)


def isf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The upper quantile of a logistic distribution at probability `x`: the inverse of `sf`.

        loc - scale log(x / (1 - x))

    Args:
        x: probabilities; outside of [0, 1] the result is NaN.
        loc: mean.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.logistic.isf(jnp.array([0.1, 0.5]), 1.0, 2.0)
    Array([5.394449, 1.      ], dtype=float32)
    """
    return _family.isf(_upper_quantile, x, loc, scale)


def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most `x` under a logistic distribution.

        1 / (1 + exp(-z)),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mean.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.logistic.cdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.26894143, 0.62245935], dtype=float32)
    """
    return _family.cdf(expit, x, loc, scale)
