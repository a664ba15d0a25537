"""The chi-squared distribution on [loc, inf): of a sum of squares of standard normals."""

from __future__ import annotations

import math

from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special import gammainc, gammaincc, gammaln, xlogy
from genesis_fn.scipy.stats.location_scale import LocationScale
from genesis_fn.scipy.stats.operands import positive
from genesis_fn.scipy.stats.tails import log_part

_family = LocationScale("chi2", low=0.0, inside=1.0, flat=True)


def _log_density(z: Array, df: Array) -> Array:
    half = 0.5 * positive(df)
    return xlogy(half - 1.0, z) - 0.5 * z - half * math.log(2.0) - gammaln(half)


def _lower(z: Array, df: Array) -> Array:
    return gammainc(0.5 * positive(df), 0.5 * z)


def _log_lower(z: Array, df: Array) -> Array:
    return log_part(_lower(z, df), _upper(z, df))


def _upper(z: Array, df: Array) -> Array:
    return gammaincc(0.5 * positive(df), 0.5 * z)


def _log_upper(z: Array, df: Array) -> Array:
    return log_part(_upper(z, df), _lower(z, df))


def logpdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density of a chi-squared distribution.

        (k - 1) log(z) - z / 2 - log(2^k Gamma(k) scale) where z >= 0, else -inf,
        k = df / 2,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        df: degrees of freedom, positive.
        loc: where the distribution begins.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.chi2.logpdf(jnp.array([0.5, 2.0]), 3.0)
    Array([-1.5155121, -1.5723649], dtype=float32)
    """
    return _family.logpdf(_log_density, x, loc, scale, df)


def pdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density of a chi-squared distribution.

        z^(k - 1) exp(-z / 2) / (2^k Gamma(k) scale) where z >= 0, else 0,
        k = df / 2,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        df: degrees of freedom, positive.
        loc: where the distribution begins.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.chi2.pdf(jnp.array([0.5, 2.0]), 3.0)
    Array([0.21969564, 0.20755376], dtype=float32)
    """
    return _family.pdf(_log_density, x, loc, scale, df)


def cdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most `x` under a chi-squared distribution.

        P(df / 2, z / 2), the regularized lower incomplete gamma function,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        df: degrees of freedom, positive.
        loc: where the distribution begins.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.chi2.cdf(jnp.array([0.5, 2.0]), 3.0)
    Array([0.08110859, 0.42759326], dtype=float32)
    """
    return _family.cdf(_lower, x, loc, scale, df)


def logcdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the probability of at most `x` under a chi-squared distribution.

        log(P(df / 2, z / 2)), of the regularized lower incomplete gamma function,
        z = (x - loc) / scale

    Args:
        x: points, of any shape.
        df: degrees of freedom, positive.
        loc: where the distribution begins.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.chi2.logcdf(jnp.array([0.5, 2.0]), 3.0)
    Array([-2.5119665 , -0.84958285], dtype=float32)
    """
    return _family.logcdf(_log_lower, x, loc, scale, df)


def sf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than `x` under a chi-squared distribution.

        Q(df / 2, z / 2), the regularized upper incomplete gamma function,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        df: degrees of freedom, positive.
        loc: where the distribution begins.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.chi2.sf(jnp.array([0.5, 2.0]), 3.0)
    Array([0.91889143, 0.57240677], dtype=float32)
    """
    return _family.sf(_upper, x, loc, scale, df)


def logsf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the probability of more than `x` under a chi-squared distribution.

        log(Q(df / 2, z / 2)), of the regularized upper incomplete gamma function,
        z = (x - loc) / scale

    Args:
        x: points, of any shape.
        df: degrees of freedom, positive.
        loc: where the distribution begins.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.chi2.logsf(jnp.array([0.5, 2.0]), 3.0)
    Array([-0.08458732, -0.55790544], dtype=float32)
    """
    return _family.logsf(_log_upper, x, loc, scale, df)
