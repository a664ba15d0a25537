"""The wrapped Cauchy distribution of angles from 0 to 2 pi."""

from __future__ import annotations

import math

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.stats.operands import in_floats


def _log_density(x: Array, c: Array) -> Array:
    c = np.where((c > 0) & (c < 1), c, np.nan)
    outside = (x < 0) | (x > 2 * math.pi)
    # 1 + c^2 - 2 c cos(x) without cancellation.
    sine = np.sin(0.5 * np.where(outside, math.pi, x))
    spread = (1.0 - c) ** 2 + 4.0 * c * sine * sine
    value = np.log1p(-c * c) - math.log(2 * math.pi) - np.log(spread)
    return np.where(outside & ~np.isnan(c), -math.inf, value)


def _density(x: Array, c: Array) -> Array:
    return np.exp(_log_density(x, c))


def logpdf(x: ArrayLike, c: ArrayLike) -> Array:
    """The logarithm of the density of a wrapped Cauchy distribution.

        log((1 - c^2) / (2 pi (1 + c^2 - 2 c cos(x)))) where 0 <= x <= 2 pi, else -inf

    Args:
        x: points, of any shape.
        c: concentration, between 0 and 1.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.wrapcauchy.logpdf(jnp.array([1.0, 2.0]), 0.5)
    Array([-1.782643 , -2.6360726], dtype=float32)
    """
    return in_floats("wrapcauchy.logpdf", _log_density, x, c)


def pdf(x: ArrayLike, c: ArrayLike) -> Array:
    """The density of a wrapped Cauchy distribution.

        (1 - c^2) / (2 pi (1 + c^2 - 2 c cos(x))) where 0 <= x <= 2 pi, else 0

    Args:
        x: points, of any shape.
        c: concentration, between 0 and 1.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.wrapcauchy.pdf(jnp.array([1.0, 2.0]), 0.5)
    Array([0.16819303, 0.07164209], dtype=float32)
    """
    return in_floats("wrapcauchy.pdf", _density, x, c)
