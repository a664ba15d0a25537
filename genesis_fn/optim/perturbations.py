"""Derivatives of functions that have none, from their values at random points around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree, lax, random, tree, vmap
from genesis_fn.extend import as_array
from genesis_fn.optim.annotations import Number
from genesis_fn.optim.state import tree_math
from genesis_fn.optim.state.tree_random import random_like


class Noise(Protocol):
    """A distribution of real numbers that are independent of each other."""

    def sample(
        self, key: Key, sample_shape: tuple[int, ...] = (), dtype: DTypeLike = float
    ) -> Array:
        """Random numbers of a shape and dtype."""
        ...

    def log_prob(self, inputs: Array) -> Array:
        """The logarithm of the density at each element, up to a constant."""
        ...


class Normal:
    """The normal distribution of mean 0 and variance 1.

        density exp(-x**2 / 2) / sqrt(2 pi)

    >>> optim.perturbations.Normal().log_prob(jnp.array([0.0, 2.0]))
    Array([-0., -2.], dtype=float32)
    """

    def sample(
        self, key: Key, sample_shape: tuple[int, ...] = (), dtype: DTypeLike = float
    ) -> Array:
        """Returns random numbers of this distribution."""
        return random.normal(key, sample_shape, dtype)

    def log_prob(self, inputs: ArrayLike) -> Array:
        """Returns the logarithm of the density at each element, but for a constant."""
        return -0.5 * as_array(inputs) ** 2


class Gumbel:
    """The Gumbel distribution, of the largest of many numbers.

        density exp(-x - exp(-x))

    >>> optim.perturbations.Gumbel().log_prob(jnp.array([0.0]))
    Array([-1.], dtype=float32)
    """

    def sample(
        self, key: Key, sample_shape: tuple[int, ...] = (), dtype: DTypeLike = float
    ) -> Array:
        """Returns random numbers of this distribution."""
        return random.gumbel(key, sample_shape, dtype)

    def log_prob(self, inputs: ArrayLike) -> Array:
        """Returns the logarithm of the density at each element."""
        x = as_array(inputs)
        return -x - jnp.exp(-x)


_GUMBEL = Gumbel()


def make_perturbed_fun(
    fun: Callable[[Any], PyTree],
    num_samples: int = 1000,
    sigma: Number = 0.1,
    noise: Noise = _GUMBEL,
    use_baseline: bool = True,
) -> Callable[[Key, Any], PyTree]:
    """Smooths a function by random noise on its argument, so that it has derivatives.

        f_sigma(x) = E f(x + sigma z),  of which the mean over samples of z is taken;
        its derivative = E f(x + sigma z) (derivative of log p by x at fixed x + sigma z)

    `fun` itself is never differentiated. Derivatives of every order are unbiased, by forward and
    reverse mode.

    Source: Berthet et al., "Learning with differentiable perturbed optimizers", 2020; Foerster et
    al., "DiCE: the infinitely differentiable Monte Carlo estimator", 2018.

    Args:
        fun: function of a tree of floating arrays that gives a tree of arrays.
        num_samples: number of samples.
        sigma: positive scale of the noise.
        noise: distribution of z, by default `Gumbel()`: an object with the methods
            `sample(key, shape, dtype)` and `log_prob(z)`.
        use_baseline: whether f(x) is subtracted from the values that make up derivatives, which
            lessens their variance.

    Returns:
        The function (key, x) -> tree of the means.

    >>> largest = optim.perturbations.make_perturbed_fun(jnp.max, 1000, 0.1)
    >>> weights = gf.grad(largest, argnums=1)(random.key(0), jnp.array([1.0, 1.0, 0.0]))
    >>> abs(weights - jnp.array([0.5, 0.5, 0.0])).max() < 0.2
    Array(True, dtype=bool)
    """

    def at_sample(key: Key, x: PyTree, baseline: PyTree) -> PyTree:
        z = random_like(key, x, noise.sample)
        point = lax.stop_gradient(tree.map(lambda x, z: as_array(x) + sigma * z, x, z))
        # The same z, now as the function of x that it is where the point is fixed.
        z = tree.map(lambda x, y: (y - x) / sigma, x, point)
        one = _one_with_derivatives_of(tree_math.sum(tree.map(noise.log_prob, z)))
        values = tree_math.scale(one, fun(point))
        return tree_math.add_scale(values, 1 - one, baseline) if use_baseline else values

    def perturbed(key: Key, x: PyTree) -> PyTree:
        baseline = fun(lax.stop_gradient(x)) if use_baseline else None
        keys = random.split(key, num_samples)
        values = vmap(at_sample, (0, None, None))(keys, x, baseline)
        return tree.map(lambda v: jnp.mean(v, axis=0), values)

    return perturbed


def _one_with_derivatives_of(log_prob: Array) -> Array:
    """Returns 1, whose derivative is that of the logarithm, and so on for higher ones (DiCE)."""
    return jnp.exp(log_prob - lax.stop_gradient(log_prob))
