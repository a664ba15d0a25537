"""The right-skewed Gumbel distribution, of largest values."""

from __future__ import annotations

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.stats.location_scale import LocationScale
from genesis_fn.scipy.stats.tails import log1mexp_of_exp

_family = LocationScale("gumbel_r")


def _log_density(z: Array) -> Array:
    return -z - np.exp(-z)


def _log_lower(z: Array) -> Array:
    return -np.exp(-z)


def _lower(z: Array) -> Array:
    return np.exp(-np.exp(-z))


def _quantile(p: Array) -> Array:
    return -np.log(-np.log(p))


def _upper(z: Array) -> Array:
    return -np.expm1(-np.exp(-z))


def _log_upper(z: Array) -> Array:
    return log1mexp_of_exp(-z)


def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density of a right-skewed Gumbel distribution.

        -z - exp(-z) - log(scale),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mode.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gumbel_r.logpdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([-2.411429 , -1.7996778], dtype=float32)
    """
    return _family.logpdf(_log_density, x, loc, scale)


def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density of a right-skewed Gumbel distribution.

        exp(-z - exp(-z)) / scale,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mode.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gumbel_r.pdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.08968705, 0.16535215], dtype=float32)
    """
    return _family.pdf(_log_density, x, loc, scale)


def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the probability of at most `x` under a right-skewed Gumbel distribution.

        -exp(-z),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mode.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gumbel_r.logcdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([-2.7182817 , -0.60653067], dtype=float32)
    """
    return _family.logcdf(_log_lower, x, loc, scale)


def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most `x` under a right-skewed Gumbel distribution.

        exp(-exp(-z)),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mode.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gumbel_r.cdf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.06598804, 0.5452392 ], dtype=float32)
    """
    return _family.cdf(_lower, x, loc, scale)


def ppf(p: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The quantile of a right-skewed Gumbel distribution at probability `p`: the inverse of `cdf`.

        loc - scale log(-log(p))

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

    >>> gf.scipy.stats.gumbel_r.ppf(jnp.array([0.1, 0.5]), 1.0, 2.0)
    Array([-0.66806495,  1.7330258 ], dtype=float32)
    """
    return _family.ppf(_quantile, p, loc, scale)


def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than `x` under a right-skewed Gumbel distribution.

        1 - exp(-exp(-z)),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mode.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gumbel_r.sf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([0.93401194, 0.4547608 ], dtype=float32)
    """
    return _family.sf(_upper, x, loc, scale)


def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the probability of more than `x` under a right-skewed Gumbel distribution.

        log(1 - exp(-exp(-z))),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        loc: mode.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gumbel_r.logsf(jnp.array([-1.0, 2.0]), 1.0, 2.0)
    Array([-0.06826603, -0.7879837 ], dtype=float32)
    """
    return _family.logsf(_log_upper, x, loc, scale)
