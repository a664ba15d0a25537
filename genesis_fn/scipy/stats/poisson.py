"""The Poisson distribution."""

from __future__ import annotations

import math

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special import gammaincc, gammaln, xlogy
from genesis_fn.scipy.stats.lattice import Lattice
from genesis_fn.scipy.stats.operands import in_floats

_family = Lattice("poisson", 0.0)


def _rate(mu: Array) -> Array:
    return np.where(mu >= 0, mu, np.nan)


def _log_mass(k: Array, mu: Array) -> Array:
    mu = _rate(mu)
    return xlogy(k, mu) - mu - gammaln(k + 1.0)


def _lower(k: Array, mu: Array, loc: Array) -> Array:
    y = np.floor(k - loc)
    none, every = y < 0, np.isposinf(y)
    value = gammaincc(np.where(none | every, 0.0, y) + 1.0, _rate(mu))
    valid = ~np.isnan(value)
    return np.where(none & valid, 0.0, np.where(every & valid, 1.0, value))


def logpmf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of `k` under a Poisson distribution.

        log(mu^y exp(-mu) / y!) for y = k - loc in 0, 1, ..., else -inf

    Args:
        k: points, of any shape.
        mu: mean, at least 0.
        loc: shift of the points, an integer.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.poisson.logpmf(jnp.array([-1, 0, 3]), 2.0)
    Array([     -inf, -2.      , -1.712318], dtype=float32)
    """
    return _family.logpmf(_log_mass, k, loc, mu)


def pmf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of `k` under a Poisson distribution.

        mu^y exp(-mu) / y! for y = k - loc in 0, 1, ..., else 0

    Args:
        k: points, of any shape.
        mu: mean, at least 0.
        loc: shift of the points, an integer.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.poisson.pmf(jnp.array([-1, 0, 3]), 2.0)
    Array([0.        , 0.13533528, 0.18044704], dtype=float32)
    """
    return _family.pmf(_log_mass, k, loc, mu)


def cdf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of at most `k` under a Poisson distribution.

        Q(floor(y) + 1, mu), the regularized upper incomplete gamma function, y = k - loc >= 0

    Args:
        k: points, of any shape.
        mu: mean, at least 0.
        loc: shift of the points, an integer.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.poisson.cdf(jnp.array([-1, 0, 3]), 2.0)
    Array([0.        , 0.13533528, 0.85712343], dtype=float32)
    """
    return in_floats("poisson.cdf", _lower, k, mu, loc)


# Up to this mean the entropy is summed over as many points as carry mass; beyond it the expansion
# is exact to ten digits.
_SUMMED, _POINTS = 100.0, 250


def _entropy(mu: Array, loc: Array) -> Array:
    mu = _rate(mu)
    summed, expanded = (mu > 0) & (mu < _SUMMED), mu >= _SUMMED
    few = np.where(summed, mu, 1.0)
    k = np.arange(_POINTS, dtype=mu.dtype).reshape(-1, *[1] * mu.ndim)
    log_mass = _log_mass(k, few)
    total = -np.sum(np.exp(log_mass) * log_mass, axis=0)
    many = np.where(expanded, mu, _SUMMED)
    r = 1.0 / many
    series = r * (1 / 12 + r * (1 / 24 + r * (19 / 360)))
    expansion = 0.5 * np.log(2 * math.pi * math.e * many) - series
    value = np.where(expanded, expansion, np.where(summed, total, 0.0 * mu))
    return np.broadcast_to(value, np.broadcast_shapes(mu.shape, loc.shape))


def entropy(mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The entropy of a Poisson distribution, in nats.

        -sum_k p(k) log(p(k))

    From a mean of 100 on it is log(2 pi e mu) / 2 - 1 / (12 mu) - 1 / (24 mu^2) - 19 / (360 mu^3).

    Source: Evans, Boersma, Blachman, Jagers, "The entropy of a Poisson distribution: problem 87-6"
    (SIAM Review, 1988).

    Args:
        mu: mean, at least 0.
        loc: shift of the points, which changes only the shape of the result.

    Returns:
        Floats of the shape to which the operands broadcast, in their common dtype (float32 for
        integers); NaN where a parameter is not as said above.

    Raises:
        TypeError: an operand is complex, or a list.

    >>> gf.scipy.stats.poisson.entropy(jnp.array([0.0, 1.0, 200.0]))
    Array([0.       , 1.3048424, 4.0676794], dtype=float32)
    """
    return in_floats("poisson.entropy", _entropy, mu, loc)
