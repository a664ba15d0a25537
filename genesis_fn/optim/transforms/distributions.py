"""`multi_normal`: a normal distribution of independent numbers, by mean and log deviation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, Key, random
from genesis_fn.extend import as_array


class MultiNormalDiagFromLogScale:
    """Independent normal numbers of means `loc` and standard deviations exp(log_scale)."""

    def __init__(self, loc: ArrayLike, log_scale: ArrayLike) -> None:
        self._loc, self._log_scale = as_array(loc), as_array(log_scale)
        self._shape = jnp.broadcast_shapes(self._loc.shape, self._log_scale.shape)

    def sample(self, shape: Sequence[int], key: Key) -> Array:
        """Returns random numbers, `shape` followed by the parameters' shape."""
        return random.normal(key, (*shape, *self._shape)) * jnp.exp(self._log_scale) + self._loc

    def log_prob(self, x: ArrayLike) -> Array:
        """Returns the logarithm of the density, summed over the last axes, the parameters'."""
        z = (as_array(x) - self._loc) * jnp.exp(-self._log_scale)
        of_each = -0.5 * z**2 - self._log_scale - 0.5 * math.log(2 * math.pi)
        return jnp.sum(of_each, axis=tuple(range(-len(self._shape), 0)))

    @property
    def log_scale(self) -> Array:
        """The logarithms of the standard deviations."""
        return self._log_scale

    @property
    def params(self) -> list[Array]:
        """The means and the logarithms of the standard deviations."""
        return [self._loc, self._log_scale]


def multi_normal(loc: ArrayLike, log_scale: ArrayLike) -> MultiNormalDiagFromLogScale:
    """Makes the normal distribution of independent numbers.

        log density = sum over i of -((x_i - loc_i) / s_i)**2 / 2 - log s_i - log(2 pi) / 2,
        s = exp(log_scale)

    Args:
        loc: array of the means.
        log_scale: array of the logarithms of the standard deviations, which broadcasts with `loc`.

    Returns:
        The distribution: `sample(shape, key)`, `log_prob(x)`, and its `params` and `log_scale`.

    >>> normal = optim.multi_normal(jnp.zeros(2), jnp.zeros(2))
    >>> normal.log_prob(jnp.array([1.0, 1.0])).round(4)
    Array(-2.8379, dtype=float32)
    >>> normal.sample((3,), random.key(0)).shape
    (3, 2)
    """
    return MultiNormalDiagFromLogScale(loc, log_scale)
