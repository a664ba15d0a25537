"""The gamma distribution on [loc, inf)."""

from __future__ import annotations

from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special import gammainc, gammaincc, gammaln, xlogy
from genesis_fn.scipy.stats.location_scale import LocationScale
from genesis_fn.scipy.stats.operands import positive
from genesis_fn.scipy.stats.tails import log_part

_family = LocationScale("gamma", low=0.0, inside=1.0, flat=True)


def _log_density(z: Array, a: Array) -> Array:
    a = positive(a)
    return xlogy(a - 1.0, z) - z - gammaln(a)


def _lower(z: Array, a: Array) -> Array:
    return gammainc(positive(a), z)


def _log_lower(z: Array, a: Array) -> Array:
    return log_part(_lower(z, a), _upper(z, a))


def _upper(z: Array, a: Array) -> Array:
    return gammaincc(positive(a), z)


def _log_upper(z: Array, a: Array) -> Array:
    return log_part(_upper(z, a), _lower(z, a))


def logpdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density of a gamma distribution.

        (a - 1) log(z) - z - log(Gamma(a) scale) where z >= 0, else -inf,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the shape, positive.
        loc: where the distribution begins.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gamma.logpdf(jnp.array([0.5, 2.0]), 1.5)
    Array([-0.72579134, -1.5326442 ], dtype=float32)
    """
    return _family.logpdf(_log_density, x, loc, scale, a)


def pdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density of a gamma distribution.

        z^(a - 1) exp(-z) / (Gamma(a) scale) where z >= 0, else 0,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the shape, positive.
        loc: where the distribution begins.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gamma.pdf(jnp.array([0.5, 2.0]), 1.5)
    Array([0.48394147, 0.21596387], dtype=float32)
    """
    return _family.pdf(_log_density, x, loc, scale, a)


def cdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most `x` under a gamma distribution.

        P(a, z), the regularized lower incomplete gamma function,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the shape, positive.
        loc: where the distribution begins.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gamma.cdf(jnp.array([0.5, 2.0]), 1.5)
    Array([0.19874807, 0.7385358 ], dtype=float32)
    """
    return _family.cdf(_lower, x, loc, scale, a)


def logcdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the probability of at most `x` under a gamma distribution.

        log(P(a, z)), of the regularized lower incomplete gamma function,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the shape, positive.
        loc: where the distribution begins.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gamma.logcdf(jnp.array([0.5, 2.0]), 1.5)
    Array([-1.6157173 , -0.30308563], dtype=float32)
    """
    return _family.logcdf(_log_lower, x, loc, scale, a)


def sf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than `x` under a gamma distribution.

        Q(a, z), the regularized upper incomplete gamma function,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the shape, positive.
        loc: where the distribution begins.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gamma.sf(jnp.array([0.5, 2.0]), 1.5)
    Array([0.80125195, 0.26146415], dtype=float32)
    """
    return _family.sf(_upper, x, loc, scale, a)


def logsf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the probability of more than `x` under a gamma distribution.

        log(Q(a, z)), of the regularized upper incomplete gamma function,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the shape, positive.
        loc: where the distribution begins.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gamma.logsf(jnp.array([0.5, 2.0]), 1.5)
    Array([-0.22157986, -1.3414581 ], dtype=float32)
    """
    return _family.logsf(_log_upper, x, loc, scale, a)
