"""More distributions, with the signatures of `jax.random`.

Float parameters are differentiable where the sample is a smooth function of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn.core import dtypes
from genesis_fn.core.convert import as_array
from genesis_fn.core.dtypes import DType
from genesis_fn.core.types.annotations import Array, ArrayLike, DTypeLike, Key, Shape, ShapeLike
from genesis_fn.lax.fused.softmax import softmax_last
from genesis_fn.primitives import elementwise as ops
from genesis_fn.random.gamma_variates import as_kind, log_standard_gamma
from genesis_fn.random.keys import own, split
from genesis_fn.random.samplers import (
    dtype_or,
    exponential,
    float_dtype,
    normal,
    rademacher,
    shape_of,
    uniform,
)
from genesis_fn.transforms.control_flow.loops import while_loop
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.keys.key_reuse import unmarked


def _work(kind: DType) -> DType:
    """The type that samples of `kind` are computed in: 16-bit floats are too coarse for it."""
    return dtypes.F32 if kind.itemsize < 4 else kind


def _parameters(
    name: str, dtype: DTypeLike | None, shape: ShapeLike | None, *values: ArrayLike
) -> tuple[DType, Shape, list[Array]]:
    """(dtype of the sample, its shape, the parameters broadcast to it in the working dtype)."""
    kind = float_dtype(dtype, name)
    sizes = shape_of(shape, *values)
    return kind, sizes, [jnp.broadcast_to(as_kind(v, _work(kind)), sizes) for v in values]


# ---- by inversion and by transforming normals ----


def cauchy(key: Key, shape: ShapeLike = (), dtype: DTypeLike | None = None) -> Array:
    """Cauchy with location 0 and scale 1: tan(pi (u - 1/2)) of a uniform u.

    Args:
        key: random key; the call uses it up.
        shape: of the result.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is not floating.

    >>> random.cauchy(random.key(0), (3,))
    Array([-0.32823476,  2.5378194 ,  0.9140319 ], dtype=float32)
    """
    kind = float_dtype(dtype, "cauchy")
    u = uniform(own(key, "cauchy"), shape, kind, float(dtypes.finfo(kind).eps), 1.0)
    return ops.tan(ops.mul(ops.sub(u, 0.5), math.pi))


def lognormal(
    key: Key, sigma: ArrayLike = 1.0, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """exp(sigma * x) of a standard normal x.

    Args:
        key: random key; the call uses it up.
        sigma: standard deviation of the logarithm.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.lognormal(random.key(0), 0.5, (3,))
    Array([0.8799343, 1.8018168, 1.3703852], dtype=float32)
    """
    kind, shape, (sigma,) = _parameters("lognormal", dtype, shape, sigma)
    return ops.convert(jnp.exp(normal(own(key, "lognormal"), shape, kind) * sigma), kind)


def pareto(
    key: Key, b: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """Pareto with density b / x**(b + 1) for x >= 1.

    Args:
        key: random key; the call uses it up.
        b: the exponent, positive.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.pareto(random.key(0), 3.0, (3,))
    Array([1.1850036, 2.030338 , 1.5582649], dtype=float32)
    """
    kind, shape, (b,) = _parameters("pareto", dtype, shape, b)
    e = exponential(own(key, "pareto"), shape, _work(kind))
    return ops.convert(jnp.exp(e / b), kind)


def rayleigh(
    key: Key, scale: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """Rayleigh: scale * sqrt(-2 log(u)) of a uniform u.

    Args:
        key: random key; the call uses it up.
        scale: the mode, positive.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.rayleigh(random.key(0), 1.0, (3,))
    Array([1.3554907, 0.5044651, 0.7834737], dtype=float32)
    """
    kind, shape, (scale,) = _parameters("rayleigh", dtype, shape, scale)
    u = uniform(own(key, "rayleigh"), shape, _work(kind))
    # A uniform of 0 would be an infinite sample.
    u = jnp.maximum(u, float(dtypes.finfo(_work(kind)).tiny))
    return ops.convert(scale * jnp.sqrt(-2 * jnp.log(u)), kind)


def weibull_min(
    key: Key,
    scale: ArrayLike,
    concentration: ArrayLike,
    shape: ShapeLike = (),
    dtype: DTypeLike | None = None,
) -> Array:
    """Weibull: scale * (-log(1 - u))**(1 / concentration) of a uniform u.

    Args:
        key: random key; the call uses it up.
        scale, concentration: positive parameters.
        shape: of the result; () takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.weibull_min(random.key(0), 1.0, 2.0, (3,))
    Array([0.71360886, 1.4576032 , 1.1535678 ], dtype=float32)
    """
    kind, shape, (scale, concentration) = _parameters(
        "weibull_min", dtype, shape or None, scale, concentration
    )
    e = exponential(own(key, "weibull_min"), shape, _work(kind))
    return ops.convert(e ** (1 / concentration) * scale, kind)


def triangular(
    key: Key,
    left: ArrayLike,
    mode: ArrayLike,
    right: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
) -> Array:
    """Triangular on [left, right] with its peak at `mode`.

    Args:
        key: random key; the call uses it up.
        left, mode, right: left <= mode <= right.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.triangular(random.key(0), 0.0, 1.0, 4.0, (3,))
    Array([1.3145871, 2.8026032, 2.2191443], dtype=float32)
    """
    kind, shape, (left, mode, right) = _parameters("triangular", dtype, shape, left, mode, right)
    u = uniform(own(key, "triangular"), shape, _work(kind))
    rising = u < (mode - left) / (right - left)
    # Each root only where it is used: its derivative at 0 is infinite.
    up = jnp.where(rising, u * (right - left) * (mode - left), 1)
    down = jnp.where(rising, 1, (1 - u) * (right - left) * (right - mode))
    return ops.convert(jnp.where(rising, left + jnp.sqrt(up), right - jnp.sqrt(down)), kind)


def maxwell(key: Key, shape: ShapeLike = (), dtype: DTypeLike | None = None) -> Array:
    """Maxwell with scale 1: the length of a vector of three standard normals.

    Args:
        key: random key; the call uses it up.
        shape: of the result.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is not floating.

    >>> random.maxwell(random.key(0), (3,))
    Array([1.3598875, 1.965345 , 2.7767236], dtype=float32)
    """
    kind = float_dtype(dtype, "maxwell")
    x = normal(own(key, "maxwell"), (*shape_of(shape), 3), kind)
    return jnp.sqrt(jnp.sum(x * x, -1))


def double_sided_maxwell(
    key: Key,
    loc: ArrayLike,
    scale: ArrayLike,
    shape: ShapeLike = (),
    dtype: DTypeLike | None = None,
) -> Array:
    """loc + scale * x, with x a Maxwell sample of random sign.

    Args:
        key: random key; the call uses it up.
        loc, scale: parameters, which broadcast together.
        shape: leading axes of the result, before those of the parameters.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` followed by the shape of the parameters.

    Raises:
        TypeError: `dtype` is not floating.

    >>> random.double_sided_maxwell(random.key(0), 0.0, 1.0, (3,))
    Array([ 1.5027572,  2.2894933, -2.095855 ], dtype=float32)
    """
    kind = float_dtype(dtype, "double_sided_maxwell")
    loc, scale = as_kind(loc, kind), as_kind(scale, kind)
    natural = np.broadcast_shapes(loc.shape, scale.shape)
    shape = (*shape_of(shape or natural), *natural)
    first, second = split(key)
    return rademacher(second, shape, kind) * maxwell(first, shape, kind) * scale + loc


def wald(
    key: Key, mean: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """Inverse Gaussian with the mean `mean` and scale 1.

    Source: Michael, Schucany and Haas, "Generating Random Variates Using Transformations with
    Multiple Roots", 1976.

    Args:
        key: random key; the call uses it up.
        mean: positive.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.wald(random.key(0), 2.0, (3,))
    Array([1.0964541 , 0.35281503, 3.4332693 ], dtype=float32)
    """
    kind, shape, (mean,) = _parameters("wald", dtype, shape, mean)
    first, second = split(key)
    y = jnp.square(normal(first, shape, _work(kind)))
    u = uniform(second, shape, _work(kind))
    # The smaller root, as mean**2 over the larger: the textbook difference cancels.
    large = mean + 0.5 * mean * (mean * y + jnp.sqrt(4 * mean * y + jnp.square(mean * y)))
    x = jnp.square(mean) / large
    return ops.convert(jnp.where(u <= mean / (mean + x), x, large), kind)


def geometric(
    key: Key, p: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """The number of trials up to the first success: 1, 2, ...

    Args:
        key: random key; the call uses it up.
        p: probability of success of a trial, in (0, 1).
        shape: of the result; None takes what the parameters broadcast to.
        dtype: integer dtype; int32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is no integer dtype.
        ValueError: `p` does not broadcast to `shape`.

    >>> random.geometric(random.key(0), 0.25, (4,))
    Array([4, 1, 2, 2], dtype=int32)
    """
    kind = _integer_dtype(dtype, "geometric")
    p = as_kind(p, dtypes.F32) if not dtypes.is_float(as_array(p).dtype) else as_array(p)
    shape = shape_of(shape, p)
    u = uniform(own(key, "geometric"), shape, p.dtype)
    u = jnp.where(u == 0, 1, u)
    return ops.convert(jnp.floor(jnp.log(u) / jnp.log1p(-p)) + 1, kind)


def _integer_dtype(dtype: DTypeLike | None, name: str) -> DType:
    kind = dtype_or(dtype, dtypes.I32)
    if not dtypes.is_integer(kind):
        raise TypeError(f"random.{name}: dtype must be an integer type, got {kind.name}")
    return kind


# ---- by gamma variates ----


def loggamma(
    key: Key, a: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """log(x) of a Gamma(a, 1) sample x, finite also where x underflows.

    Method and derivative: see `gamma_variates.py`.

    Args:
        key: random key; the call uses it up.
        a: shape parameter, not negative; the result is differentiable in it.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.loggamma(random.key(0), 0.5, (3,))
    Array([ 0.42814928,  0.32364097, -3.1398957 ], dtype=float32)
    """
    kind, shape, (a,) = _parameters("loggamma", dtype, shape, a)
    return ops.convert(log_standard_gamma(own(key, "loggamma"), a), kind)


def gamma(
    key: Key, a: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """Gamma with shape parameter `a` and scale 1.

    Source: Marsaglia and Tsang, "A simple method for generating gamma variables", 2000.

    Args:
        key: random key; the call uses it up.
        a: shape parameter, not negative; the result is differentiable in it.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.gamma(random.key(0), 2.0, (3,))
    Array([2.268854 , 2.721225 , 1.4449768], dtype=float32)
    """
    kind, shape, (a,) = _parameters("gamma", dtype, shape, a)
    return ops.convert(jnp.exp(log_standard_gamma(own(key, "gamma"), a)), kind)


def chisquare(
    key: Key, df: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """Chi-square: twice a Gamma(df / 2) sample.

    Args:
        key: random key; the call uses it up.
        df: degrees of freedom, positive.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.chisquare(random.key(0), 3.0, (3,))
    Array([3.3616571, 4.1561146, 1.9657819], dtype=float32)
    """
    kind, shape, (df,) = _parameters("chisquare", dtype, shape, df)
    return ops.convert(2 * gamma(own(key, "chisquare"), df / 2, shape, df.dtype), kind)


def f(
    key: Key,
    dfnum: ArrayLike,
    dfden: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
) -> Array:
    """F: the ratio of two chi-square samples, each divided by its degrees of freedom.

    Args:
        key: random key; the call uses it up.
        dfnum, dfden: degrees of freedom of numerator and denominator, positive.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.f(random.key(0), 3.0, 5.0, (3,))
    Array([1.6909221, 1.417355 , 3.4001505], dtype=float32)
    """
    kind, shape, (dfnum, dfden) = _parameters("f", dtype, shape, dfnum, dfden)
    first, second = split(key)
    low = loggamma(first, dfden / 2, shape, dfden.dtype) - jnp.log(dfden)
    high = loggamma(second, dfnum / 2, shape, dfnum.dtype) - jnp.log(dfnum)
    return ops.convert(jnp.exp(high - low), kind)


def t(
    key: Key, df: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """Student's t: a standard normal over sqrt(chi-square / df).

    Args:
        key: random key; the call uses it up.
        df: degrees of freedom, positive.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.t(random.key(0), 4.0, (3,))
    Array([-0.6190525, -1.3615644,  0.2718189], dtype=float32)
    """
    kind, shape, (df,) = _parameters("t", dtype, shape, df)
    first, second = split(key)
    n = normal(first, shape, df.dtype)
    log_g = loggamma(second, df / 2, shape, df.dtype)
    return ops.convert(n * jnp.exp(0.5 * (jnp.log(df / 2) - log_g)), kind)


def beta(
    key: Key,
    a: ArrayLike,
    b: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
) -> Array:
    """Beta(a, b) on (0, 1).

    Args:
        key: random key; the call uses it up.
        a, b: positive parameters; the result is differentiable in both.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.beta(random.key(0), 2.0, 3.0, (3,))
    Array([0.17111863, 0.29518193, 0.17733727], dtype=float32)
    """
    kind, shape, (a, b) = _parameters("beta", dtype, shape, a, b)
    first, second = split(key)
    x, y = loggamma(first, a, shape, a.dtype), loggamma(second, b, shape, a.dtype)
    return ops.convert(ops.logistic(x - y), kind)


def dirichlet(
    key: Key, alpha: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """Dirichlet: vectors of positive numbers that sum to 1.

    Args:
        key: random key; the call uses it up.
        alpha: positive concentrations [..., n].
        shape: batch shape of the result; None takes that of `alpha`, [...].
        dtype: floating dtype; float32 by default.

    Returns:
        An array [*shape, n].

    Raises:
        ValueError: `alpha` has no axis, or does not broadcast.
        TypeError: `dtype` is not floating.

    >>> random.dirichlet(random.key(0), jnp.ones(3))
    Array([0.35681987, 0.46652716, 0.17665298], dtype=float32)
    """
    alpha = as_array(alpha)
    if alpha.ndim < 1:
        raise ValueError("random.dirichlet: alpha needs at least one dimension")
    lead = alpha.shape[:-1]
    shape = lead if shape is None else shape_of(shape, jnp.zeros(lead))
    kind, shape, (a,) = _parameters("dirichlet", dtype, (*shape, alpha.shape[-1]), alpha)
    log_g = loggamma(own(key, "dirichlet"), a, shape, a.dtype)
    return ops.convert(softmax_last(log_g), kind)


def generalized_normal(
    key: Key, p: ArrayLike, shape: ShapeLike = (), dtype: DTypeLike | None = None
) -> Array:
    """Density proportional to exp(-|x|**p).

    Args:
        key: random key; the call uses it up.
        p: exponent, positive; 2 is a normal of variance 1/2, 1 the Laplace distribution.
        shape: of the result.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.generalized_normal(random.key(0), 1.0, (3,))
    Array([ 0.03364656,  0.4624077 , -0.38055855], dtype=float32)
    """
    kind = float_dtype(dtype, "generalized_normal")
    shape = shape_of(shape, p)
    first, second = split(key)
    p = as_kind(p, _work(kind))
    size = jnp.exp(loggamma(first, jnp.broadcast_to(1 / p, shape), shape, _work(kind)) / p)
    return ops.convert(rademacher(second, shape, _work(kind)) * size, kind)


def ball(
    key: Key, d: int, p: ArrayLike = 2, shape: ShapeLike = (), dtype: DTypeLike | None = None
) -> Array:
    """Uniform in the unit ball of the p-norm in `d` dimensions.

    Source: Barthe et al., "A probabilistic approach to the geometry of the l_p^n-ball", 2005.

    Args:
        key: random key; the call uses it up.
        d: number of dimensions.
        p: exponent of the norm.
        shape: batch shape.
        dtype: floating dtype; float32 by default.

    Returns:
        An array [*shape, d].

    Raises:
        TypeError: `dtype` is not floating.

    >>> random.ball(random.key(0), 2, shape=(3,)).shape
    (3, 2)
    """
    kind = float_dtype(dtype, "ball")
    shape, work = shape_of(shape), _work(float_dtype(dtype, "ball"))
    first, second = split(key)
    g = generalized_normal(first, p, (*shape, d), work)
    e = exponential(second, shape, work)
    length = (jnp.sum(jnp.abs(g) ** p, -1) + e) ** (1 / p)  # pyright: ignore[reportOperatorIssue]  # p is a number or an array
    return ops.convert(g / length[..., None], kind)


# ---- vectors and matrices ----


def multivariate_normal(
    key: Key,
    mean: ArrayLike,
    cov: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    method: str = "cholesky",
) -> Array:
    """Normal vectors of mean `mean` and covariance `cov`.

    Args:
        key: random key; the call uses it up.
        mean: array [..., n].
        cov: symmetric positive definite matrices [..., n, n].
        shape: batch shape; None takes what those of `mean` and `cov` broadcast to.
        dtype: floating dtype; float32 by default.
        method: "cholesky", or "eigh" or "svd", which also take semi-definite covariances.

    Returns:
        An array [*shape, n].

    Raises:
        ValueError: shapes do not fit, or `method` is another.
        TypeError: `dtype` is not floating.

    >>> random.multivariate_normal(random.key(0), jnp.zeros(2), jnp.eye(2), (3,)).shape
    (3, 2)
    """
    kind = float_dtype(dtype, "multivariate_normal")
    mean, cov = as_kind(mean, _work(kind)), as_kind(cov, _work(kind))
    n = mean.shape[-1] if mean.ndim else 0
    if mean.ndim < 1 or cov.shape[-2:] != (n, n):
        raise ValueError(
            f"random.multivariate_normal: mean {mean.shape} and cov {cov.shape} are not [..., n] "
            "and [..., n, n]"
        )
    if method not in ("cholesky", "eigh", "svd"):
        raise ValueError(f"random.multivariate_normal: there is no method {method!r}")
    shape = shape_of(shape, jnp.zeros(mean.shape[:-1]), jnp.zeros(cov.shape[:-2]))
    if method == "cholesky":
        factor = jnp.linalg.cholesky(cov)
    elif method == "eigh":
        values, vectors = jnp.linalg.eigh(cov)
        factor = vectors * jnp.sqrt(jnp.maximum(values, 0))[..., None, :]
    else:
        vectors, values, _ = jnp.linalg.svd(cov)
        factor = vectors * jnp.sqrt(values)[..., None, :]
    x = normal(own(key, "multivariate_normal"), (*shape, n), _work(kind))
    return ops.convert(mean + jnp.einsum("...ij,...j->...i", factor, x), kind)


def orthogonal(
    key: Key, n: int, shape: ShapeLike = (), dtype: DTypeLike | None = None, m: int | None = None
) -> Array:
    """Matrices with orthonormal rows or columns, uniformly distributed (Haar).

    Source: Mezzadri, "How to generate random matrices from the classical compact groups", 2007.

    Args:
        key: random key; the call uses it up.
        n: number of rows.
        shape: batch shape.
        dtype: floating or complex dtype; float32 by default.
        m: number of columns; None means n.

    Returns:
        An array [*shape, n, m].

    >>> random.orthogonal(random.key(0), 3).shape
    (3, 3)
    """
    kind = dtype_or(dtype, dtypes.F32)
    m = n if m is None else m
    work = dtypes.promote_types(kind, dtypes.F32)
    z = normal(own(key, "orthogonal"), (*shape_of(shape), max(n, m), min(n, m)), work)
    q, r = jnp.linalg.qr(z)
    q = q * jnp.expand_dims(jnp.sign(jnp.diagonal(r, 0, -2, -1)), -2)
    return ops.convert(jnp.swapaxes(q, -1, -2) if n < m else q, kind)


# ---- counts ----


def poisson(
    key: Key, lam: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """Poisson counts with mean `lam`.

    Products of uniforms for means below 10 (Knuth), transformed rejection above (PTRS: Hoermann,
    "The transformed rejection method for generating Poisson random variables", 1993).

    Args:
        key: random key; the call uses it up.
        lam: mean, not negative; counts have no derivative in it.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: integer dtype; int32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: `dtype` is no integer dtype.
        ValueError: `lam` does not broadcast to `shape`.

    >>> random.poisson(random.key(0), 4.0, (4,))
    Array([2, 5, 8, 4], dtype=int32)
    """
    kind = _integer_dtype(dtype, "poisson")
    mean: Array = jnp.broadcast_to(as_kind(lam, dtypes.F32), shape_of(shape, lam))
    mean = ops.stop_gradient(mean)  # counts have no derivative
    key = own(key, "poisson")
    few = jnp.isnan(mean) | (mean < 10)
    low = _poisson_by_products(unmarked(key), jnp.where(few, mean, 0.0))
    high = _poisson_by_rejection(unmarked(key), jnp.where(few, 1e5, mean))
    return ops.convert(jnp.where(few, jnp.where(mean == 0, 0.0, low), high), kind)


def _poisson_by_products(key: Key, lam: Array) -> Array:
    def going(state: tuple[Any, ...]) -> Array:
        return jnp.any(state[2] > -lam)

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        k, count, log_product = state
        k, sub = split(k)
        count = jnp.where(log_product > -lam, count + 1, count)
        return k, count, log_product + jnp.log(uniform(sub, lam.shape, lam.dtype))

    zeros = jnp.zeros_like(lam)
    return while_loop(going, step, (key, zeros, zeros))[1] - 1


def _poisson_by_rejection(key: Key, lam: Array) -> Array:
    log_lam = jnp.log(lam)
    b = 0.931 + 2.53 * jnp.sqrt(lam)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    v_r = 0.9277 - 3.6224 / (b - 2)

    def attempt(u: Array, v: Array) -> tuple[Any, Any]:
        u = u - 0.5
        us = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * a / us + b) * u + lam + 0.43)
        bound = k * log_lam - lam - ops.lgamma(k + 1)
        inside = jnp.log(v * inverse_alpha / (a / (us * us) + b)) <= bound
        refused = (k < 0) | ((us < 0.013) & (v > us))
        return k, ((us >= 0.07) & (v <= v_r)) | (~refused & inside)

    return _until_accepted(key, attempt, lam)


def _until_accepted(
    key: Key, attempt: Callable[[Array, Array], tuple[Array, Array]], like: Array
) -> Array:
    """An accepted proposal of `attempt(u, v) -> (value, accepted)` for each element."""

    def going(state: tuple[Any, ...]) -> Array:
        return ~jnp.all(state[2])

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        k, value, done = state
        k, first, second = split(k, 3)
        u, v = uniform(first, like.shape, like.dtype), uniform(second, like.shape, like.dtype)
        fresh, accepted = attempt(u, v)
        # As JAX does: a later acceptance replaces an earlier one, which is as random.
        return k, jnp.where(accepted, fresh, value), done | accepted

    state = (key, jnp.full_like(like, -1), jnp.zeros(like.shape, bool))
    return while_loop(going, step, state)[1]


def binomial(
    key: Key,
    n: ArrayLike,
    p: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
) -> Array:
    """The number of successes in `n` trials of probability `p`.

    Waiting times between successes where n * min(p, 1 - p) <= 10, else BTRS (Hoermann, "The
    generation of binomial random variates", 1993).

    Args:
        key: random key; the call uses it up.
        n: number of trials, not negative.
        p: probability of success, in [0, 1].
        shape: of the result; None takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.

    Returns:
        Counts as floats, of `shape` and `dtype`; NaN where `n` or `p` is out of range. They have no
        derivative.

    Raises:
        TypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.binomial(random.key(0), 10, 0.5, (4,))
    Array([2., 6., 2., 3.], dtype=float32)
    """
    kind, shape, parameters = _parameters("binomial", dtype, shape, n, p)
    trials, chance = [ops.stop_gradient(v) for v in parameters]  # counts have no derivative
    key = own(key, "binomial")
    bad = ~((trials >= 0) & (chance >= 0) & (chance <= 1))
    trials = jnp.floor(trials)
    flipped = chance >= 0.5
    q = jnp.where(bad, 0.01, jnp.where(flipped, 1 - chance, chance))
    few = bad | jnp.isinf(trials) | (trials * q <= 10)
    waited = jnp.where(few & ~bad & (trials < np.inf), trials, 0.0)
    low = _binomial_by_waiting(unmarked(key), waited, q)
    high = _binomial_by_rejection(
        unmarked(key), jnp.where(few, 1e4, trials), jnp.where(few, 0.5, q)
    )
    count = jnp.where(few, low, high)
    count = jnp.where(flipped, trials - count, count)
    count = jnp.where(jnp.isinf(trials), jnp.where(chance > 0, np.inf, 0.0), count)
    return ops.convert(jnp.where(bad, np.nan, count), kind)


def _binomial_by_waiting(key: Key, n: Array, p: Array) -> Array:
    log_miss = jnp.log1p(-p)

    def going(state: tuple[Any, ...]) -> Array:
        return jnp.any(state[2] <= n)

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        k, count, trials = state
        sub, k = split(k)
        count = jnp.where(trials <= n, count + 1, count)
        wait = jnp.ceil(jnp.log(uniform(sub, n.shape, n.dtype)) / log_miss)
        return k, count, trials + wait

    zeros = jnp.zeros_like(n)
    return while_loop(going, step, (key, zeros, zeros))[1] - 1


def _binomial_by_rejection(key: Key, n: Array, p: Array) -> Array:
    deviation = jnp.sqrt(n * p * (1 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    centre, v_r = n * p + 0.5, 0.92 - 4.2 / b
    odds, alpha = p / (1 - p), (2.83 + 5.1 / b) * deviation
    mode = jnp.floor((n + 1) * p)
    at_mode = (mode + 0.5) * jnp.log((mode + 1) / (odds * (n - mode + 1)))
    at_mode = at_mode + _stirling_tail(mode) + _stirling_tail(n - mode)

    def attempt(u: Array, v: Array) -> tuple[Any, Any]:
        u = u - 0.5
        us = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * a / us + b) * u + centre)
        outside = (k < 0) | (k > n)
        inner = jnp.clip(k, 0, n)
        bound = (
            at_mode
            + (n + 1) * jnp.log((n - mode + 1) / (n - inner + 1))
            + (inner + 0.5) * jnp.log(odds * (n - inner + 1) / (inner + 1))
            - _stirling_tail(inner)
            - _stirling_tail(n - inner)
        )
        inside = jnp.log(v * alpha / (a / (us * us) + b)) <= bound
        return k, ((us >= 0.07) & (v <= v_r)) | (~outside & inside)

    return _until_accepted(key, attempt, p)


# log(k!) minus Stirling's formula for it, for k = 0 ... 9; the series is exact enough beyond.
_TAIL = [
    math.lgamma(k + 1) - ((k + 0.5) * math.log(k + 1) - (k + 1) + 0.5 * math.log(2 * math.pi))
    for k in range(10)
]


def _stirling_tail(k: Key) -> Array:
    square = (k + 1) * (k + 1)
    series = (1 / 12 - (1 / 360 - 1 / 1260 / square) / square) / (k + 1)
    index = jnp.astype(jnp.clip(k, 0, 9), jnp.int32)
    return jnp.where(k <= 9, jnp.take(jnp.asarray(_TAIL, k.dtype), index, 0), series)


def multinomial(
    key: Key,
    n: ArrayLike,
    p: ArrayLike,
    *,
    shape: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    unroll: int = 1,
) -> Array:
    """Counts of `n` draws from the classes of probabilities `p`.

    One binomial per class, from the draws that the classes before it left.

    Args:
        key: random key; the call uses it up.
        n: number of draws, an integer or an array [...].
        p: probabilities [..., classes].
        shape: of the result, [..., classes]; None takes that of `p`.
        dtype: of the result; float32 by default.
        unroll: how many classes a step of the loop draws.

    Returns:
        An array of `shape` and `dtype`.

    >>> random.multinomial(random.key(0), 10, jnp.array([0.2, 0.3, 0.5]))
    Array([2., 6., 2.], dtype=float32)
    """
    p = as_array(p)
    p = p if dtypes.is_float(p.dtype) else ops.convert(p, dtypes.F32)
    shape = p.shape if shape is None else tuple(shape)
    chances = jnp.moveaxis(jnp.broadcast_to(p, shape), -1, 0)
    left = jnp.flip(jnp.cumsum(jnp.flip(chances, 0), 0), 0)
    ratios = jnp.clip(chances / jnp.where(left == 0, 1, left), 0, 1)
    keys = split(key, shape[-1])

    def draw(remaining: Array, x: tuple[Any, ...]) -> tuple[Any, ...]:
        ratio, k = x
        count = binomial(k, remaining, ratio, dtype=remaining.dtype)
        return remaining - count, count

    start = jnp.broadcast_to(as_kind(n, chances.dtype), shape[:-1])
    _, counts = scan(draw, start, (ratios, keys), unroll=unroll)
    return ops.convert(jnp.moveaxis(counts, 0, -1), dtype_or(dtype, dtypes.F32))
