"""The Dirichlet distribution on points of a simplex."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import genesis_fn.numpy as np
from genesis_fn.core import dtypes, errors
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.promotion import promote_arrays
from genesis_fn.scipy.special import gammaln, xlogy
from genesis_fn.scipy.stats.operands import in_floats, positive


def _log_density(x: Array, alpha: Array, name: str, rounding: float) -> Array:
    if alpha.ndim != 1:
        raise errors.ShapeError(
            f"{name}: alpha has one dimension, got {alpha.aval}; several take vmap"
        )
    size = alpha.shape[0]
    if x.ndim < 1 or x.shape[0] not in (size, size - 1):
        raise errors.ShapeError(
            f"{name}: the first axis of x has as many entries as alpha or one fewer, got x "
            f"{x.aval} and alpha {alpha.aval}"
        )
    alpha = positive(alpha)
    if x.shape[0] != size:
        x = np.concatenate([x, 1.0 - np.sum(x, axis=0, keepdims=True)], axis=0)
    off = np.abs(np.sum(x, axis=0) - 1.0)
    within = ~(np.any(x < 0, axis=0) | (off >= max(1e-6, size * rounding)))
    x = np.where(within, x, 1.0 / size)
    norm = np.sum(gammaln(alpha)) - gammaln(np.sum(alpha))
    powers = xlogy(alpha.reshape(-1, *[1] * (x.ndim - 1)) - 1.0, x)
    value = np.sum(powers, axis=0) - norm
    return np.where(within | np.isnan(value), value, -math.inf)


def _density(x: Array, alpha: Array, name: str, rounding: float) -> Array:
    return np.exp(_log_density(x, alpha, name, rounding))


def _evaluated(name: str, formula: Callable[..., Array], x: ArrayLike, alpha: ArrayLike) -> Array:
    """`formula`, told by how much entries of the operands' common dtype may be off."""
    dtype = promote_arrays(name, (x, alpha), inexact=True)[0].dtype
    rounding = float(dtypes.finfo(dtypes.real_of(dtype)).eps)
    return in_floats(name, partial(formula, name=name, rounding=rounding), x, alpha)


def logpdf(x: ArrayLike, alpha: ArrayLike) -> Array:
    """The logarithm of the density of a Dirichlet distribution.

        sum_i (alpha_i - 1) log(x_i) - log(B(alpha)),
        B(alpha) = prod_i Gamma(alpha_i) / Gamma(sum alpha)

    Args:
        x: points along the first axis, of K entries, or of the first K - 1, from which the last
            follows.
        alpha: K concentrations, positive.

    Returns:
        Floats of the shape of `x` without its first axis; -inf where an entry is negative or they
        do not sum to 1 within max(1e-6, K roundings); NaN where a concentration is not positive.

    Raises:
        TypeError: an operand is complex, or a list.
        ValueError: `alpha` has not one dimension, or `x` another number of entries.

    >>> gf.scipy.stats.dirichlet.logpdf(jnp.array([0.2, 0.3, 0.5]), jnp.array([1.0, 2.0, 3.0]))
    Array(1.5040774, dtype=float32)
    """
    return _evaluated("dirichlet.logpdf", _log_density, x, alpha)


def pdf(x: ArrayLike, alpha: ArrayLike) -> Array:
    """The density of a Dirichlet distribution.

        prod_i x_i^(alpha_i - 1) / B(alpha),   B(alpha) = prod_i Gamma(alpha_i) / Gamma(sum alpha)

    Args:
        x: points along the first axis, of K entries, or of the first K - 1, from which the last
            follows.
        alpha: K concentrations, positive.

    Returns:
        Floats of the shape of `x` without its first axis; 0 where an entry is negative or they
        do not sum to 1 within max(1e-6, K roundings); NaN where a concentration is not positive.

    Raises:
        TypeError: an operand is complex, or a list.
        ValueError: `alpha` has not one dimension, or `x` another number of entries.

    >>> gf.scipy.stats.dirichlet.pdf(jnp.array([0.2, 0.3, 0.5]), jnp.array([1.0, 2.0, 3.0]))
    Array(4.5, dtype=float32)
    """
    return _evaluated("dirichlet.pdf", _density, x, alpha)
