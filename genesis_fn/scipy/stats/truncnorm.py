"""The normal distribution between two ends."""

from __future__ import annotations

import math

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.nn import log1mexp
from genesis_fn.scipy.special import erf, log_ndtr, ndtr
from genesis_fn.scipy.stats.operands import in_floats, positive


def _log_mass(a: Array, b: Array) -> Array:
    """The logarithm of the standard normal's probability of [a, b], for a < b."""
    mirrored = a > 0
    a, b = np.where(mirrored, -b, a), np.where(mirrored, -a, b)
    # In the lower tail as a difference of logarithms, which may be far below those of floats.
    tail = b <= 0
    top, bottom = np.where(tail, b, -1.0), np.where(tail, a, -2.0)
    endless = np.isneginf(bottom)
    high = log_ndtr(top)
    gap = high - log_ndtr(np.where(endless, top - 1.0, bottom))
    low = high + np.where(endless, 0.0, log1mexp(gap))
    # Around 0 as a sum of two parts, or as 1 less what lies outside.
    left, right = np.where(tail, -1.0, a), np.where(tail, 1.0, b)
    mass = 0.5 * (erf(right * math.sqrt(0.5)) - erf(left * math.sqrt(0.5)))
    narrow = mass < 0.5
    outside = np.where(narrow, 0.5, ndtr(left) + ndtr(-right))
    around = np.where(narrow, np.log(np.where(narrow, mass, 1.0)), np.log1p(-outside))
    return np.where(tail, low, around)


def _ends(a: Array, b: Array) -> tuple[Array, Array]:
    """The ends, NaN where they are in no order."""
    ordered = a < b
    return np.where(ordered, a, np.nan), np.where(ordered, b, np.nan)


def _standardized(x: Array, loc: Array, scale: Array) -> Array:
    """(x - loc) / scale, 0 at infinite x, where the quotient has no derivative."""
    return (np.where(np.isinf(x), loc, x) - loc) / scale


def _between(a: Array, b: Array) -> Array:
    """A point between the ends."""
    low, high = np.isfinite(a), np.isfinite(b)
    near_one = np.where(low, a + 1.0, np.where(high, b - 1.0, 0.0))
    return np.where(low & high, 0.5 * (a + b), near_one)


def _log_density(x: Array, a: Array, b: Array, loc: Array, scale: Array) -> Array:
    a, b = _ends(a, b)
    scale = positive(scale)
    z = _standardized(x, loc, scale)
    outside = (z < a) | (z > b) | np.isinf(x)
    z = np.where(outside, _between(a, b), z)
    value = -0.5 * (z * z + math.log(2 * math.pi)) - _log_mass(a, b) - np.log(scale)
    return np.where(outside & ~np.isnan(value), -math.inf, value)


def _density(*operands: Array) -> Array:
    return np.exp(_log_density(*operands))


def _log_lower(x: Array, a: Array, b: Array, loc: Array, scale: Array) -> Array:
    a, b = _ends(a, b)
    z = _standardized(x, loc, positive(scale))
    compared = np.where(np.isinf(x) & (scale > 0), x, z)
    below, above = compared <= a, compared >= b
    z = np.where(below | above, _between(a, b), z)
    whole = _log_mass(a, b)
    value = _log_mass(a, z) - whole
    # Near 0 by what lies above, in which nothing cancels.
    near = value > -0.1
    rest = np.where(near, _log_mass(z, b) - whole, -1.0)
    value = np.where(near, np.log1p(-np.exp(rest)), value)
    return np.where(below, -math.inf, np.where(above, 0.0, value))


def _lower(*operands: Array) -> Array:
    return np.exp(_log_lower(*operands))


def _log_upper(x: Array, a: Array, b: Array, loc: Array, scale: Array) -> Array:
    return _log_lower(-x, -b, -a, -loc, scale)


def _upper(*operands: Array) -> Array:
    return np.exp(_log_upper(*operands))


def logpdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """The logarithm of the density of a truncated normal distribution.

        log(phi(z) / (scale (Phi(b) - Phi(a)))) where a <= z <= b, else -inf,
        z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the lower end, in standard deviations from `loc`; may be -inf.
        b: the upper end, likewise; may be inf. a < b.
        loc: mean of the normal distribution that is cut.
        scale: its standard deviation, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.truncnorm.logpdf(jnp.array([-0.5, 1.0]), -1.0, 2.0)
    Array([-0.84377223, -1.2187722 ], dtype=float32)
    """
    return in_floats("truncnorm.logpdf", _log_density, x, a, b, loc, scale)


def pdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """The density of a truncated normal distribution.

        phi(z) / (scale (Phi(b) - Phi(a))) where a <= z <= b, else 0,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the lower end, in standard deviations from `loc`; may be -inf.
        b: the upper end, likewise; may be inf. a < b.
        loc: mean of the normal distribution that is cut.
        scale: its standard deviation, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.truncnorm.pdf(jnp.array([-0.5, 1.0]), -1.0, 2.0)
    Array([0.4300851 , 0.29559287], dtype=float32)
    """
    return in_floats("truncnorm.pdf", _density, x, a, b, loc, scale)


def logsf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """The logarithm of the probability of more than `x` under a truncated normal distribution.

        log((Phi(b) - Phi(z)) / (Phi(b) - Phi(a))) where a <= z <= b,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the lower end, in standard deviations from `loc`; may be -inf.
        b: the upper end, likewise; may be inf. a < b.
        loc: mean of the normal distribution that is cut.
        scale: its standard deviation, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.truncnorm.logsf(jnp.array([-0.5, 1.0]), -1.0, 2.0)
    Array([-0.20223503, -1.795632  ], dtype=float32)
    """
    return in_floats("truncnorm.logsf", _log_upper, x, a, b, loc, scale)


def sf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than `x` under a truncated normal distribution.

        (Phi(b) - Phi(z)) / (Phi(b) - Phi(a)) where a <= z <= b,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the lower end, in standard deviations from `loc`; may be -inf.
        b: the upper end, likewise; may be inf. a < b.
        loc: mean of the normal distribution that is cut.
        scale: its standard deviation, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.truncnorm.sf(jnp.array([-0.5, 1.0]), -1.0, 2.0)
    Array([0.81690294, 0.1660225 ], dtype=float32)
    """
    return in_floats("truncnorm.sf", _upper, x, a, b, loc, scale)


def logcdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """The logarithm of the probability of at most `x` under a truncated normal distribution.

        log((Phi(z) - Phi(a)) / (Phi(b) - Phi(a))) where a <= z <= b,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the lower end, in standard deviations from `loc`; may be -inf.
        b: the upper end, likewise; may be inf. a < b.
        loc: mean of the normal distribution that is cut.
        scale: its standard deviation, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.truncnorm.logcdf(jnp.array([-0.5, 1.0]), -1.0, 2.0)
    Array([-1.6977388 , -0.18154885], dtype=float32)
    """
    return in_floats("truncnorm.logcdf", _log_lower, x, a, b, loc, scale)


def cdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """The probability of at most `x` under a truncated normal distribution.

        (Phi(z) - Phi(a)) / (Phi(b) - Phi(a)) where a <= z <= b,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the lower end, in standard deviations from `loc`; may be -inf.
        b: the upper end, likewise; may be inf. a < b.
        loc: mean of the normal distribution that is cut.
        scale: its standard deviation, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.truncnorm.cdf(jnp.array([-0.5, 1.0]), -1.0, 2.0)
    Array([0.18309708, 0.8339775 ], dtype=float32)
    """
    return in_floats("truncnorm.cdf", _lower, x, a, b, loc, scale)
