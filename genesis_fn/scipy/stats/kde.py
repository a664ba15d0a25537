"""Estimates of densities by Gaussian kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import genesis_fn.numpy as np
from genesis_fn import lax, random
from genesis_fn.core import dtypes, errors
from genesis_fn.core.types.annotations import Array, ArrayLike, Key, Shape
from genesis_fn.lax.promotion import promote_arrays
from genesis_fn.scipy.special import logsumexp, ndtr
from genesis_fn.tree_util import register_pytree_node_class


@register_pytree_node_class
class gaussian_kde:
    """A density estimated from points: the mean of normal densities around them.

        p(x) = sum_i w_i N(x; x_i, covariance),   covariance = factor^2 cov(dataset)

    An instance is a node of trees, and may be an argument and a result of compiled functions. It
    does not change: another bandwidth needs another instance.

    Source: Scott, "Multivariate Density Estimation" (1992), for the bandwidth; Silverman, "Density
    Estimation for Statistics and Data Analysis" (1986), for the other.

    Args:
        dataset: points [d, n], or [n] of one dimension; integers become float32.
        bw_method: the bandwidth: "scott" (None as well), n_eff^(-1 / (d + 4)), "silverman",
            (n_eff (d + 2) / 4)^(-1 / (d + 4)), a number, or a function of the instance.
        weights: weights [n], which are divided by their sum; None makes them equal.

    Attributes:
        dataset: the points [d, n].
        weights: the weights [n], of sum 1.
        neff: how many points of equal weight are as good: 1 / sum(weights^2).
        covariance: of each kernel, [d, d].
        inv_cov: its inverse.

    Raises:
        TypeError: the points are complex.
        ValueError: there are fewer than two values, `weights` are not [n], or there is no such
            `bw_method`.

    >>> kde = gf.scipy.stats.gaussian_kde(jnp.array([0.0, 1.0, 1.5, 4.0]))
    >>> kde.evaluate(jnp.array([0.5, 2.0]))
    Array([0.20267248, 0.17546111], dtype=float32)
    """

    def __init__(
        self,
        dataset: ArrayLike,
        bw_method: str | ArrayLike | Callable[[Any], ArrayLike] | None = None,
        weights: ArrayLike | None = None,
    ) -> None:
        given = (dataset,) if weights is None else (dataset, weights)
        arrays = promote_arrays("gaussian_kde", given, inexact=True)
        self.dataset = np.atleast_2d(arrays[0])
        _check_real(self.dataset)
        if self.dataset.ndim != 2 or self.dataset.size < 2:
            raise errors.ShapeError(
                f"gaussian_kde: dataset is [d, n] or [n], of two values or more, got "
                f"{arrays[0].aval}"
            )
        if weights is None:
            self.weights = np.full(self.n, 1.0 / self.n, self.dataset.dtype)
        else:
            shares = np.atleast_1d(arrays[1])
            if shares.shape != (self.n,):
                raise errors.ShapeError(
                    f"gaussian_kde: weights are [{self.n}], one for each point of dataset "
                    f"{self.dataset.aval}, got {shares.aval}"
                )
            self.weights = shares / np.sum(shares)
        self.neff = 1.0 / np.sum(self.weights**2)
        factor = self._factor(bw_method)
        covariance = np.cov(self.dataset, rowvar=True, bias=False, aweights=self.weights)
        covariance = covariance.reshape(self.d, self.d)
        self.covariance = covariance * factor**2
        self.inv_cov = np.linalg.inv(covariance) / factor**2

    def _factor(self, bw_method: Any) -> Any:
        if bw_method is None or isinstance(bw_method, str) and bw_method == "scott":
            return self.neff ** (-1.0 / (self.d + 4))
        if isinstance(bw_method, str) and bw_method == "silverman":
            return (self.neff * (self.d + 2) / 4.0) ** (-1.0 / (self.d + 4))
        if callable(bw_method):
            return bw_method(self)
        if not isinstance(bw_method, str) and np.ndim(bw_method) == 0:
            return bw_method
        raise errors.ArgumentError(
            "gaussian_kde: bw_method is 'scott', 'silverman', a number or a function, got "
            f"{bw_method!r}"
        )

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """(the arrays, no static data)."""
        return (self.neff, self.dataset, self.weights, self.covariance, self.inv_cov), None

    @classmethod
    def tree_unflatten(cls, aux_data: None, children: Any) -> gaussian_kde:
        """The instance of which `tree_flatten` gave the arrays."""
        kde = object.__new__(cls)
        kde.neff, kde.dataset, kde.weights, kde.covariance, kde.inv_cov = children
        return kde

    @property
    def d(self) -> int:
        """The dimension of the points."""
        return self.dataset.shape[0]

    @property
    def n(self) -> int:
        """How many points there are."""
        return self.dataset.shape[1]

    def evaluate(self, points: ArrayLike) -> Array:
        """The density at `points` [d, m], or [m] of one dimension: [m]."""
        return np.exp(self.logpdf(points))

    def __call__(self, points: ArrayLike) -> Array:
        """The density at `points`, as `evaluate`."""
        return self.evaluate(points)

    def pdf(self, x: ArrayLike) -> Array:
        """The density at `x`, as `evaluate`."""
        return self.evaluate(x)

    def logpdf(self, x: ArrayLike) -> Array:
        """The logarithm of the density at `x` [d, m], or [m] of one dimension: [m]."""
        log_kernels = _log_kernels(self._points(x), self.dataset, self.covariance)
        return logsumexp(log_kernels, axis=1, b=self.weights)

    def integrate_gaussian(self, mean: ArrayLike, cov: ArrayLike) -> Array:
        """The integral of the density times that of a normal with `mean` [d] and `cov` [d, d].

        Raises:
            ValueError: they have other shapes.
        """
        mean, cov = promote_arrays("gaussian_kde.integrate_gaussian", (mean, cov), inexact=True)
        mean, cov = np.atleast_1d(np.squeeze(mean)), np.atleast_2d(cov)
        if mean.shape != (self.d,) or cov.shape != (self.d, self.d):
            raise errors.ShapeError(
                f"gaussian_kde.integrate_gaussian: mean is [{self.d}] and cov [{self.d}, {self.d}] "
                f"for points of {self.d} dimensions, got {mean.aval} and {cov.aval}"
            )
        log_kernels = _log_kernels(mean[:, None], self.dataset, self.covariance + cov)
        return np.sum(np.exp(log_kernels[0]) * self.weights)

    def integrate_box_1d(self, low: ArrayLike, high: ArrayLike) -> Array:
        """The integral of the density from `low` to `high`, for points of one dimension.

        Raises:
            ValueError: the points have more dimensions, or an end is no number.
        """
        if self.d != 1 or np.ndim(low) != 0 or np.ndim(high) != 0:
            raise errors.ShapeError(
                "gaussian_kde.integrate_box_1d integrates between two numbers a density of one "
                f"dimension, got ends of {np.ndim(low)} and {np.ndim(high)} and points of "
                f"{self.d} dimensions"
            )
        sigma = np.sqrt(self.covariance[0, 0])
        above, below = [(end - self.dataset[0]) / sigma for end in (high, low)]
        # Above the mean by upper tails, in which differences do not cancel.
        upper = below > 0
        parts = ndtr(np.where(upper, -below, above)) - ndtr(np.where(upper, -above, below))
        return np.sum(self.weights * parts)

    def integrate_kde(self, other: gaussian_kde) -> Array:
        """The integral of the product of two estimates.

        Raises:
            ValueError: their points have different dimensions.
        """
        if other.d != self.d:
            raise errors.ShapeError(
                f"gaussian_kde.integrate_kde: points of {self.d} dimensions and of {other.d}"
            )
        covariance = self.covariance + other.covariance
        kernels = np.exp(_log_kernels(self.dataset, other.dataset, covariance))
        return np.sum(self.weights[:, None] * kernels * other.weights)

    def integrate_box(
        self, low_bounds: ArrayLike, high_bounds: ArrayLike, maxpts: int | None = None
    ) -> Array:
        """The integral over a box, which only one dimension has: refused, as JAX refuses it.

        Raises:
            ValueError: always; `integrate_box_1d` integrates in one dimension.
        """
        raise errors.ArgumentError(
            "gaussian_kde.integrate_box: boxes of several dimensions are not integrated; "
            "integrate_box_1d is for one"
        )

    def set_bandwidth(self, bw_method: Any = None) -> None:
        """Refused, as an estimate does not change.

        Raises:
            ValueError: always; make another `gaussian_kde`.
        """
        raise errors.ArgumentError(
            "gaussian_kde.set_bandwidth: an estimate does not change; make another, "
            "gaussian_kde(dataset, bw_method)"
        )

    def resample(self, key: Key, shape: Shape = ()) -> Array:
        """Points [d, *shape] drawn from the estimate; the call uses up the random `key`."""
        index_key, noise_key = random.split(key)
        index = random.choice(index_key, self.n, shape=shape, p=self.weights)
        zero = np.zeros(self.d, self.covariance.dtype)
        noise = random.multivariate_normal(
            noise_key, zero, self.covariance, shape=shape, dtype=self.dataset.dtype
        )
        return self.dataset[:, index] + np.moveaxis(noise, -1, 0)

    def _points(self, points: ArrayLike) -> Array:
        (x,) = promote_arrays("gaussian_kde", (points,), inexact=True)
        _check_real(x)
        x = np.atleast_2d(x)
        if x.ndim == 2 and x.shape == (1, self.d) and self.d != 1:
            x = x.T  # one point, flat
        if x.ndim != 2 or x.shape[0] != self.d:
            raise errors.ShapeError(
                f"gaussian_kde: points are [{self.d}, m] for a dataset {self.dataset.aval}, got "
                f"{x.aval}"
            )
        return x


def _check_real(x: Array) -> None:
    if dtypes.is_complex(x.dtype):
        raise errors.DTypeError(
            f"gaussian_kde takes real points, got {x.aval}; stack real and imaginary parts as two "
            "dimensions"
        )


def _log_kernels(points: Array, centers: Array, covariance: Array) -> Array:
    """log N(points[:, i]; centers[:, j], covariance) as [i, j]."""
    factor = lax.linalg.cholesky(covariance)
    a, b = [
        lax.linalg.triangular_solve(factor, x.astype(factor.dtype), left_side=True, lower=True)
        for x in (points, centers)
    ]
    # One dimension after the other: no array of all differences.
    squares = sum(((p[:, None] - q) ** 2 for p, q in zip(a, b)), start=0.0)
    norm = np.sum(np.log(np.diagonal(factor))) + 0.5 * len(a) * math.log(2 * math.pi)
    return -0.5 * squares - norm
