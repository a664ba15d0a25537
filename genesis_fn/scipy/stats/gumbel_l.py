"""The left-skewed Gumbel distribution, of smallest values."""

from __future__ import annotations

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.stats.location_scale import LocationScale
from genesis_fn.scipy.stats.tails import log1mexp_of_exp

_family = LocationScale("gumbel_l")


def _log_density(z: Array) -> Array:
    return z - np.exp(z)


def _lower(z: Array) -> Array:
    return -np.expm1(-np.exp(z))


def _quantile(p: Array) -> Array:
    return np.log(-np.log1p(-p))


def _upper(z: Array) -> Array:
    return np.exp(-np.exp(z))


def _log_upper(z: Array) -> Array:
    return -np.exp(z)


def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density of a left-skewed Gumbel distribution.

        z - exp(z) - log(scale),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mode.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gumbel_l.logpdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([-2.0610266, -1.8418684], dtype=float32)
    """
    return _family.logpdf(_log_density, x, loc, scale)


def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density of a left-skewed Gumbel distribution.

        exp(z - exp(z)) / scale,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mode.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gumbel_l.pdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.1273232 , 0.15852097], dtype=float32)
    """
    return _family.pdf(_log_density, x, loc, scale)


def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the probability of at most `x` under a left-skewed Gumbel distribution.

        log(1 - exp(-exp(z))),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mode.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gumbel_l.logcdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([-1.178307 , -0.2135592], dtype=float32)
    """
    return _family.logcdf(log1mexp_of_exp, x, loc, scale)


def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most `x` under a left-skewed Gumbel distribution.

        1 - exp(-exp(z)),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mode.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gumbel_l.cdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.30779937, 0.8077043 ], dtype=float32)
    """
    return _family.cdf(_lower, x, loc, scale)


def ppf(p: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The quantile of a left-skewed Gumbel distribution at probability `p`: the inverse of `cdf`.

        loc + scale log(-log(1 - p))

        -inf at 0 and inf at 1, as SciPy has it; JAX has NaN there.

    Args:
        p: probabilities; outside of [0, 1] the result is NaN.
        loc: mode.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gumbel_l.ppf(jnp.array([0.1, 0.5]), 1.0, 2.0)
    Array([-3.5007348 ,  0.26697415], dtype=float32)
    """
    return _family.ppf(_quantile, p, loc, scale)


def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than `x` under a left-skewed Gumbel distribution.

        exp(-exp(z)),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mode.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gumbel_l.sf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.6922006 , 0.19229566], dtype=float32)
    """
    return _family.sf(_upper, x, loc, scale)


def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the probability of more than `x` under a left-skewed Gumbel distribution.

        -exp(z),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mode.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gumbel_l.logsf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([-0.36787945, -1.6487212 ], dtype=float32)
    """
    return _family.logsf(_log_upper, x, loc, scale)
