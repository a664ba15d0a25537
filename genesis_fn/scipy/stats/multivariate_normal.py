"""The multivariate normal distribution."""

from __future__ import annotations

import math
from functools import partial

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core import errors
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.stats.operands import in_floats

_LOG_2_PI = math.log(2 * math.pi)


def _log_density(x: Array, mean: Array, cov: Array, name: str) -> Array:
    difference = x - mean
    if mean.ndim == 0:
        return -0.5 * (difference * difference / cov + _LOG_2_PI + np.log(cov))
    size = mean.shape[-1]
    if cov.ndim == 0:
        squares = np.sum(difference * difference, axis=-1)
        return -0.5 * (squares / cov + size * (_LOG_2_PI + np.log(cov)))
    if cov.ndim < 2 or cov.shape[-2:] != (size, size):
        raise errors.ShapeError(
            f"{name}: cov is a number or [..., n, n] for a mean [..., n], got cov {cov.aval} and "
            f"mean {mean.aval}"
        )
    factor = lax.linalg.cholesky(cov)
    whitened = _solved(factor, difference)
    logarithms = np.log(np.diagonal(factor, axis1=-2, axis2=-1))
    squares = np.sum(whitened * whitened, axis=-1)
    return -0.5 * (squares + size * _LOG_2_PI) - np.sum(logarithms, axis=-1)


def _solved(factor: Array, rows: Array) -> Array:
    """L^-1 y of a lower triangular L[..., n, n] and rows y[..., n]."""
    size = factor.shape[-1]
    if factor.ndim == 2:  # one system with a right-hand side for each row
        columns = rows.reshape(-1, size).T
        solution = lax.linalg.triangular_solve(factor, columns, left_side=True, lower=True)
        return solution.T.reshape(rows.shape)
    shape = np.broadcast_shapes(factor.shape[:-2], rows.shape[:-1])
    factor = np.broadcast_to(factor, (*shape, size, size))
    column = np.broadcast_to(rows, (*shape, size))[..., None]
    return lax.linalg.triangular_solve(factor, column, left_side=True, lower=True)[..., 0]


def _density(x: Array, mean: Array, cov: Array, name: str) -> Array:
    return np.exp(_log_density(x, mean, cov, name))


def logpdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike, allow_singular: None = None) -> Array:
    """The logarithm of the density of a multivariate normal distribution.

        -((x - mean)^T cov^-1 (x - mean) + log(det(cov)) + n log(2 pi)) / 2

    by the Cholesky factor of `cov`.

    Args:
        x: points [..., n].
        mean: means [..., n], or a number of the distribution of one dimension.
        cov: covariance matrices [..., n, n], or a number that multiplies the identity.
        allow_singular: only None; a singular covariance has no density.

    Returns:
        Floats of the shape to which the leading axes broadcast, in the operands' common dtype
        (float32 for integers); NaN where `cov` is not positive definite.

    Raises:
        TypeError: an operand is complex, or a list.
        ValueError: `cov` is no [n, n] for a mean [n], or `allow_singular` is given.

    >>> gf.scipy.stats.multivariate_normal.logpdf(jnp.array([1.0, 2.0]), jnp.zeros(2), jnp.eye(2))
    Array(-4.3378773, dtype=float32)
    """
    name = "multivariate_normal.logpdf"
    if allow_singular is not None:
        raise errors.ArgumentError(
            f"{name} takes no allow_singular, got {allow_singular!r}: there is no density of a "
            "singular covariance; add a small multiple of the identity to it"
        )
    return in_floats(name, partial(_log_density, name=name), x, mean, cov)


def pdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike) -> Array:
    """The density of a multivariate normal distribution.

        exp(-(x - mean)^T cov^-1 (x - mean) / 2) / sqrt((2 pi)^n det(cov))

    Args:
        x: points [..., n].
        mean: means [..., n], or a number of the distribution of one dimension.
        cov: covariance matrices [..., n, n], or a number that multiplies the identity.

    Returns:
        Floats of the shape to which the leading axes broadcast, in the operands' common dtype
        (float32 for integers); NaN where `cov` is not positive definite.

    Raises:
        TypeError: an operand is complex, or a list.
        ValueError: `cov` is no [n, n] for a mean [n].

    >>> gf.scipy.stats.multivariate_normal.pdf(jnp.array([1.0, 2.0]), jnp.zeros(2), jnp.eye(2))
    Array(0.01306423, dtype=float32)
    """
    name = "multivariate_normal.pdf"
    return in_floats(name, partial(_density, name=name), x, mean, cov)
