"""The Pareto distribution on [loc + scale, inf)."""

from __future__ import annotations

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.nn import log1mexp
from genesis_fn.scipy.stats.location_scale import LocationScale
from genesis_fn.scipy.stats.operands import positive

_family = LocationScale("pareto", low=1.0, inside=2.0)


def _log_density(z: Array, b: Array) -> Array:
    b = positive(b)
    return np.log(b) - (b + 1.0) * np.log(z)


def _log_upper(z: Array, b: Array) -> Array:
    return -positive(b) * np.log(z)


def _upper(z: Array, b: Array) -> Array:
    return np.exp(_log_upper(z, b))


def _lower(z: Array, b: Array) -> Array:
    return -np.expm1(_log_upper(z, b))


def _log_lower(z: Array, b: Array) -> Array:
    return log1mexp(-_log_upper(z, b))


def _quantile(q: Array, b: Array) -> Array:
    return np.exp(-np.log1p(-q) / positive(b))


def logpdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density of a Pareto distribution.

        log(b) - (b + 1) log(z) - log(scale) where z >= 1, else -inf,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        b: the exponent of the upper tail, positive.
        loc: shift of the points.
        scale: the lowest point with `loc` 0, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.pareto.logpdf(jnp.array([1.5, 4.0]), 2.0)
    Array([-0.5232482, -3.465736 ], dtype=float32)
    """
    return _family.logpdf(_log_density, x, loc, scale, b)


def pdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density of a Pareto distribution.

        b / (scale z^(b + 1)) where z >= 1, else 0,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        b: the exponent of the upper tail, positive.
        loc: shift of the points.
        scale: the lowest point with `loc` 0, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.pareto.pdf(jnp.array([1.5, 4.0]), 2.0)
    Array([0.59259254, 0.03125   ], dtype=float32)
    """
    return _family.pdf(_log_density, x, loc, scale, b)


def cdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most `x` under a Pareto distribution.

        1 - z^-b where z >= 1, else 0,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        b: the exponent of the upper tail, positive.
        loc: shift of the points.
        scale: the lowest point with `loc` 0, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.pareto.cdf(jnp.array([1.5, 4.0]), 2.0)
    Array([0.5555556, 0.9375   ], dtype=float32)
    """
    return _family.cdf(_lower, x, loc, scale, b)


def logcdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the probability of at most `x` under a Pareto distribution.

        log(1 - z^-b) where z >= 1, else -inf,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        b: the exponent of the upper tail, positive.
        loc: shift of the points.
        scale: the lowest point with `loc` 0, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.pareto.logcdf(jnp.array([1.5, 4.0]), 2.0)
    Array([-0.5877866 , -0.06453852], dtype=float32)
    """
    return _family.logcdf(_log_lower, x, loc, scale, b)


def logsf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the probability of more than `x` under a Pareto distribution.

        -b log(z) where z >= 1, else 0,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        b: the exponent of the upper tail, positive.
        loc: shift of the points.
        scale: the lowest point with `loc` 0, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.pareto.logsf(jnp.array([1.5, 4.0]), 2.0)
    Array([-0.81093025, -2.7725887 ], dtype=float32)
    """
    return _family.logsf(_log_upper, x, loc, scale, b)


def sf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than `x` under a Pareto distribution.

        z^-b where z >= 1, else 1,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        b: the exponent of the upper tail, positive.
        loc: shift of the points.
        scale: the lowest point with `loc` 0, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.pareto.sf(jnp.array([1.5, 4.0]), 2.0)
    Array([0.44444442, 0.0625    ], dtype=float32)
    """
    return _family.sf(_upper, x, loc, scale, b)


def ppf(q: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The quantile of a Pareto distribution at probability `q`: the inverse of `cdf`.

        loc + scale (1 - q)^(-1 / b)

    Args:
        q: probabilities; outside of [0, 1] the result is NaN.
        b: the exponent of the upper tail, positive.
        loc: shift of the points.
        scale: the lowest point with `loc` 0, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.pareto.ppf(jnp.array([0.1, 0.5]), 2.0)
    Array([1.0540925, 1.4142135], dtype=float32)
    """
    return _family.ppf(_quantile, q, loc, scale, b)
