"""Student's t distribution."""

from __future__ import annotations

import math

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special import betaln
from genesis_fn.scipy.stats.location_scale import LocationScale
from genesis_fn.scipy.stats.operands import positive

_family = LocationScale("t")


def _log_density(z: Array, df: Array) -> Array:
    df = positive(df)
    normal = np.isposinf(df)
    df = np.where(normal, 1.0, df)
    # By log B, in which log Gamma((df + 1) / 2) - log Gamma(df / 2) does not cancel.
    norm = 0.5 * np.log(df) + betaln(0.5 * df, np.full_like(df, 0.5))
    value = -norm - 0.5 * (df + 1.0) * np.log1p(z * z / df)
    return np.where(normal, -0.5 * (z * z + math.log(2 * math.pi)), value)


def logpdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density of Student's t distribution.

        -(df + 1) / 2 log(1 + z^2 / df) - log(sqrt(df) B(df / 2, 1 / 2) scale),
        z = (x - loc) / scale

    Args:
        x: points, of any shape.
        df: degrees of freedom, positive; inf makes a normal distribution.
        loc: median.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.t.logpdf(jnp.array([-1.0, 2.0]), 3.0)
    Array([-1.5762529, -2.6954846], dtype=float32)
    """
    return _family.logpdf(_log_density, x, loc, scale, df)


def pdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density of Student's t distribution.

        (1 + z^2 / df)^(-(df + 1) / 2) / (sqrt(df) B(df / 2, 1 / 2) scale),   z = (x - loc) / scale

    Args:
        x: points, of any shape.
        df: degrees of freedom, positive; inf makes a normal distribution.
        loc: median.
        scale: factor of the points, positive.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.t.pdf(jnp.array([-1.0, 2.0]), 3.0)
    Array([0.20674835, 0.06750966], dtype=float32)
    """
    return _family.pdf(_log_density, x, loc, scale, df)
