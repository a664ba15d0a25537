"""The generalized normal distribution, of which the Laplace and the normal are members."""

from __future__ import annotations

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special import gammainc, gammaincc, gammaln
from genesis_fn.scipy.stats.location_scale import LocationScale
from genesis_fn.scipy.stats.operands import positive

_family = LocationScale("gennorm")


def _log_density(x: Array, beta: Array) -> Array:
    beta = positive(beta)
    return np.log(0.5 * beta) - gammaln(1.0 / beta) - np.abs(x) ** beta


def _lower(x: Array, beta: Array) -> Array:
    beta = positive(beta)
    middle = x == 0
    away = np.where(middle, 1.0, x)
    a, z = 1.0 / beta, np.abs(away) ** beta
    # Each side by the function that does not cancel there.
    value = np.where(x < 0, 0.5 * gammaincc(a, z), 0.5 + 0.5 * gammainc(a, z))
    # At 0, where |x|^beta has no derivative by x, but the integral of the density has.
    return np.where(middle, 0.5 + x * np.exp(_log_density(np.ones_like(x), beta) + 1.0), value)


def logpdf(x: ArrayLike, beta: ArrayLike) -> Array:
    """The logarithm of the density of a generalized normal distribution.

        log(beta / 2) - log(Gamma(1 / beta)) - |x|^beta

    Args:
        x: points, of any shape.
        beta: the shape, positive: 1 makes a Laplace, 2 a normal distribution of variance 1/2.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gennorm.logpdf(jnp.array([-1.0, 2.0]), 1.5)
    Array([-1.5908322, -3.4192593], dtype=float32)
    """
    return _family.logpdf(_log_density, x, 0.0, 1.0, beta)


def cdf(x: ArrayLike, beta: ArrayLike) -> Array:
    """The probability of at most `x` under a generalized normal distribution.

        1/2 + sign(x) P(1 / beta, |x|^beta) / 2

        of the regularized lower incomplete gamma function P.

    Args:
        x: points, of any shape.
        beta: the shape, positive: 1 makes a Laplace, 2 a normal distribution of variance 1/2.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gennorm.cdf(jnp.array([-1.0, 2.0]), 1.5)
    Array([0.11240877, 0.9858804 ], dtype=float32)
    """
    return _family.cdf(_lower, x, 0.0, 1.0, beta)


def pdf(x: ArrayLike, beta: ArrayLike) -> Array:
    """The density of a generalized normal distribution.

        beta / (2 Gamma(1 / beta)) exp(-|x|^beta)

    Args:
        x: points, of any shape.
        beta: the shape, positive: 1 makes a Laplace, 2 a normal distribution of variance 1/2.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.gennorm.pdf(jnp.array([-1.0, 2.0]), 1.5)
    Array([0.20375597, 0.03273667], dtype=float32)
    """
    return _family.pdf(_log_density, x, 0.0, 1.0, beta)
