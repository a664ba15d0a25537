"""The uniform distribution on [loc, loc + scale]."""

from __future__ import annotations

from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.stats.location_scale import LocationScale

_family = LocationScale("uniform", low=0.0, inside=0.5, high=1.0)


def _log_density(z: Array) -> Array:
    return 0.0 * z  # NaN at NaN


def _itself(z: Array) -> Array:
    return z


def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density of a uniform distribution.

        -log(scale) in [loc, loc + scale], else -inf

    Args:
        x: points, of any shape.
        loc: the lower end.
        scale: the length, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.uniform.logpdf(jnp.array([0.5, 2.0, 4.0]), 1.0, 2.0)
    Array([      -inf, -0.6931472,       -inf], dtype=float32)
    """
    return _family.logpdf(_log_density, x, loc, scale)


def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density of a uniform distribution.

        1 / scale in [loc, loc + scale], else 0

    Args:
        x: points, of any shape.
        loc: the lower end.
        scale: the length, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.uniform.pdf(jnp.array([0.5, 2.0, 4.0]), 1.0, 2.0)
    Array([0. , 0.5, 0. ], dtype=float32)
    """
    return _family.pdf(_log_density, x, loc, scale)


def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most `x` under a uniform distribution.

        (x - loc) / scale in [loc, loc + scale], 0 below and 1 above

    Args:
        x: points, of any shape.
        loc: the lower end.
        scale: the length, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.uniform.cdf(jnp.array([0.5, 2.0, 4.0]), 1.0, 2.0)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    return _family.cdf(_itself, x, loc, scale)


def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The quantile of a uniform distribution at probability `q`: the inverse of `cdf`.

        loc + scale q

    Args:
        q: probabilities; outside of [0, 1] the result is NaN.
        loc: the lower end.
        scale: the length, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.uniform.ppf(jnp.array([0.1, 0.5]), 1.0, 2.0)
    Array([1.2, 2. ], dtype=float32)
    """
    return _family.ppf(_itself, q, loc, scale)
