"""The von Mises distribution of angles."""

from __future__ import annotations

import math

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special import i0e
from genesis_fn.scipy.stats.operands import in_floats


def _log_density(x: Array, kappa: Array) -> Array:
    kappa = np.where(kappa >= 0, kappa, np.nan)
    # cos(x) - 1 without cancellation.
    sine = np.sin(0.5 * x)
    return -2.0 * kappa * sine * sine - np.log(2 * math.pi * i0e(kappa))


def _density(x: Array, kappa: Array) -> Array:
    return np.exp(_log_density(x, kappa))


def logpdf(x: ArrayLike, kappa: ArrayLike) -> Array:
    """The logarithm of the density of a von Mises distribution.

        kappa cos(x) - log(2 pi I_0(kappa))

    Args:
        x: points, of any shape.
        kappa: concentration, at least 0, which makes angles uniform (as SciPy has it; JAX has NaN
            at 0).

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.vonmises.logpdf(jnp.array([-1.0, 2.0]), 1.5)
    Array([-1.526211 , -2.9608846], dtype=float32)
    """
    return in_floats("vonmises.logpdf", _log_density, x, kappa)


def pdf(x: ArrayLike, kappa: ArrayLike) -> Array:
    """The density of a von Mises distribution.

        exp(kappa cos(x)) / (2 pi I_0(kappa))

    Args:
        x: points, of any shape.
        kappa: concentration, at least 0, which makes angles uniform (as SciPy has it; JAX has NaN
            at 0).

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.vonmises.pdf(jnp.array([-1.0, 2.0]), 1.5)
    Array([0.21735767, 0.0517731 ], dtype=float32)
    """
    return in_floats("vonmises.pdf", _density, x, kappa)
