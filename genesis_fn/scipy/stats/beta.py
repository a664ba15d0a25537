"""The beta distribution on [loc, loc + scale]."""

from __future__ import annotations

from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special import betainc, betaln, xlog1py, xlogy
from genesis_fn.scipy.stats.location_scale import LocationScale
from genesis_fn.scipy.stats.operands import positive
from genesis_fn.scipy.stats.tails import log_part

_family = LocationScale("beta", low=0.0, inside=0.5, high=1.0, flat=True)


def _log_density(z: Array, a: Array, b: Array) -> Array:
    a, b = positive(a), positive(b)
    return xlogy(a - 1.0, z) + xlog1py(b - 1.0, -z) - betaln(a, b)


def _lower(z: Array, a: Array, b: Array) -> Array:
    return betainc(positive(a), positive(b), z)


def _log_lower(z: Array, a: Array, b: Array) -> Array:
    return log_part(_lower(z, a, b), _upper(z, a, b))


def _upper(z: Array, a: Array, b: Array) -> Array:
    return _lower(1.0 - z, b, a)


def _log_upper(z: Array, a: Array, b: Array) -> Array:
    return log_part(_upper(z, a, b), _lower(z, a, b))


def logpdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """The logarithm of the density of a beta distribution.

        (a - 1) log(z) + (b - 1) log(1 - z) - log(B(a, b) scale) where 0 <= z <= 1, else -inf,
        z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the first shape, positive.
        b: the second shape, positive.
        loc: where the distribution begins.
        scale: the length, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.beta.logpdf(jnp.array([0.2, 0.7]), 2.0, 3.0)
    Array([ 0.42918158, -0.27971387], dtype=float32)
    """
    return _family.logpdf(_log_density, x, loc, scale, a, b)


def pdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """The density of a beta distribution.

        z^(a - 1) (1 - z)^(b - 1) / (B(a, b) scale) where 0 <= z <= 1, else 0,
        z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the first shape, positive.
        b: the second shape, positive.
        loc: where the distribution begins.
        scale: the length, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.beta.pdf(jnp.array([0.2, 0.7]), 2.0, 3.0)
    Array([1.5359999 , 0.75600004], dtype=float32)
    """
    return _family.pdf(_log_density, x, loc, scale, a, b)


def cdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """The probability of at most `x` under a beta distribution.

        I_z(a, b), the regularized incomplete beta function,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the first shape, positive.
        b: the second shape, positive.
        loc: where the distribution begins.
        scale: the length, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.beta.cdf(jnp.array([0.2, 0.7]), 2.0, 3.0)
    Array([0.18079999, 0.9163    ], dtype=float32)
    """
    return _family.cdf(_lower, x, loc, scale, a, b)


def logcdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """The logarithm of the probability of at most `x` under a beta distribution.

        log(I_z(a, b)), of the regularized incomplete beta function,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the first shape, positive.
        b: the second shape, positive.
        loc: where the distribution begins.
        scale: the length, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.beta.logcdf(jnp.array([0.2, 0.7]), 2.0, 3.0)
    Array([-1.7103639 , -0.08741146], dtype=float32)
    """
    return _family.logcdf(_log_lower, x, loc, scale, a, b)


def sf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than `x` under a beta distribution.

        1 - I_z(a, b) = I_(1-z)(b, a), of the regularized incomplete beta function,
        z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the first shape, positive.
        b: the second shape, positive.
        loc: where the distribution begins.
        scale: the length, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.beta.sf(jnp.array([0.2, 0.7]), 2.0, 3.0)
    Array([0.81920004, 0.0837    ], dtype=float32)
    """
    return _family.sf(_upper, x, loc, scale, a, b)


def logsf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """The logarithm of the probability of more than `x` under a beta distribution.

        log(I_(1-z)(b, a)), of the regularized incomplete beta function,   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        a: the first shape, positive.
        b: the second shape, positive.
        loc: where the distribution begins.
        scale: the length, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.beta.logsf(jnp.array([0.2, 0.7]), 2.0, 3.0)
    Array([-0.19942701, -2.4805162 ], dtype=float32)
    """
    return _family.logsf(_log_upper, x, loc, scale, a, b)
