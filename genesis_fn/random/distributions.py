"""Continuous distributions, vectors and matrices, with the signatures of `jax.random`.

Float parameters are differentiable where the sample is a smooth function of them.
"""

from __future__ import annotations

import math

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn.core import dtypes
from genesis_fn.core.convert import as_array
from genesis_fn.core.dtypes import DType
from genesis_fn.core.types.annotations import Array, ArrayLike, DTypeLike, Key, Shape, ShapeLike
from genesis_fn.lax.fused.softmax import softmax_last
from genesis_fn.primitives import elementwise as ops
from genesis_fn.random.gamma_variates import as_dtype, log_approximate_gamma, log_standard_gamma
from genesis_fn.random.keys import split, take_key
from genesis_fn.random.samplers import (
    dtype_or,
    exponential,
    float_dtype,
    normal,
    rademacher,
    shape_of,
    uniform,
)


def working_dtype(dtype: DType) -> DType:
    """The dtype that samples of `dtype` are computed in: float32 for 16-bit floats."""
    return dtypes.F32 if dtype.itemsize < 4 else dtype


def broadcast_parameters(
    name: str, dtype: DTypeLike | None, shape: ShapeLike | None, *values: ArrayLike
) -> tuple[DType, Shape, list[Array]]:
    """(dtype of the sample, its shape, the parameters broadcast to it in the working dtype)."""
    dtype, shape = float_dtype(dtype, name), shape_of(shape, *values)
    work = working_dtype(dtype)
    return dtype, shape, [jnp.broadcast_to(as_dtype(v, work), shape) for v in values]


def is_approximate(method: str, name: str) -> bool:
    """Whether the sampler `name` draws approximately. Raises ValueError for an unknown method."""
    if method not in ("exact", "approximate"):
        raise ValueError(f'random.{name}: method is "exact" or "approximate", got {method!r}')
    return method == "approximate"


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
        DTypeError: `dtype` is not floating.

    >>> random.cauchy(random.key(0), (3,))
    Array([-0.32823476,  2.5378194 ,  0.9140319 ], dtype=float32)
    """
    dtype = float_dtype(dtype, "cauchy")
    u = uniform(take_key(key, "cauchy"), shape, dtype, float(dtypes.finfo(dtype).eps), 1.0)
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
        DTypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.lognormal(random.key(0), 0.5, (3,))
    Array([0.8799343, 1.8018168, 1.3703852], dtype=float32)
    """
    dtype, shape, (sigma,) = broadcast_parameters("lognormal", dtype, shape, sigma)
    return ops.convert(jnp.exp(normal(take_key(key, "lognormal"), shape, dtype) * sigma), dtype)


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
        DTypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.pareto(random.key(0), 3.0, (3,))
    Array([1.1850036, 2.030338 , 1.5582649], dtype=float32)
    """
    dtype, shape, (b,) = broadcast_parameters("pareto", dtype, shape, b)
    e = exponential(take_key(key, "pareto"), shape, working_dtype(dtype))
    return ops.convert(jnp.exp(e / b), dtype)


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
        DTypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.rayleigh(random.key(0), 1.0, (3,))
    Array([1.3554907, 0.5044651, 0.7834737], dtype=float32)
    """
    dtype, shape, (scale,) = broadcast_parameters("rayleigh", dtype, shape, scale)
    u = uniform(take_key(key, "rayleigh"), shape, working_dtype(dtype))
    # A uniform of 0 would be an infinite sample.
    u = jnp.maximum(u, float(dtypes.finfo(working_dtype(dtype)).tiny))
    return ops.convert(scale * jnp.sqrt(-2 * jnp.log(u)), dtype)


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
        DTypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.weibull_min(random.key(0), 1.0, 2.0, (3,))
    Array([0.71360886, 1.4576032 , 1.1535678 ], dtype=float32)
    """
    dtype, shape, (scale, concentration) = broadcast_parameters(
        "weibull_min", dtype, shape or None, scale, concentration
    )
    e = exponential(take_key(key, "weibull_min"), shape, working_dtype(dtype))
    return ops.convert(e ** (1 / concentration) * scale, dtype)


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
        DTypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.triangular(random.key(0), 0.0, 1.0, 4.0, (3,))
    Array([1.3145871, 2.8026032, 2.2191443], dtype=float32)
    """
    dtype, shape, (left, mode, right) = broadcast_parameters(
        "triangular", dtype, shape, left, mode, right
    )
    u = uniform(take_key(key, "triangular"), shape, working_dtype(dtype))
    rising = u < (mode - left) / (right - left)
    # Each root only where it is used: its derivative at 0 is infinite.
    up = jnp.where(rising, u * (right - left) * (mode - left), 1)
    down = jnp.where(rising, 1, (1 - u) * (right - left) * (right - mode))
    return ops.convert(jnp.where(rising, left + jnp.sqrt(up), right - jnp.sqrt(down)), dtype)


def maxwell(key: Key, shape: ShapeLike = (), dtype: DTypeLike | None = None) -> Array:
    """Maxwell with scale 1: the length of a vector of three standard normals.

    Args:
        key: random key; the call uses it up.
        shape: of the result.
        dtype: floating dtype; float32 by default.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        DTypeError: `dtype` is not floating.

    >>> random.maxwell(random.key(0), (3,))
    Array([1.3598875, 1.965345 , 2.7767236], dtype=float32)
    """
    dtype = float_dtype(dtype, "maxwell")
    x = normal(take_key(key, "maxwell"), (*shape_of(shape), 3), dtype)
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
        DTypeError: `dtype` is not floating.

    >>> random.double_sided_maxwell(random.key(0), 0.0, 1.0, (3,))
    Array([ 1.5027572,  2.2894933, -2.095855 ], dtype=float32)
    """
    dtype = float_dtype(dtype, "double_sided_maxwell")
    loc, scale = as_dtype(loc, dtype), as_dtype(scale, dtype)
    natural = np.broadcast_shapes(loc.shape, scale.shape)
    shape = (*shape_of(shape or natural), *natural)
    first, second = split(key)
    return rademacher(second, shape, dtype) * maxwell(first, shape, dtype) * scale + loc


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
        DTypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.wald(random.key(0), 2.0, (3,))
    Array([1.0964541 , 0.35281503, 3.4332693 ], dtype=float32)
    """
    dtype, shape, (mean,) = broadcast_parameters("wald", dtype, shape, mean)
    first, second = split(key)
    y = jnp.square(normal(first, shape, working_dtype(dtype)))
    u = uniform(second, shape, working_dtype(dtype))
    # The smaller root, as mean**2 over the larger: the textbook difference cancels.
    large = mean + 0.5 * mean * (mean * y + jnp.sqrt(4 * mean * y + jnp.square(mean * y)))
    x = jnp.square(mean) / large
    return ops.convert(jnp.where(u <= mean / (mean + x), x, large), dtype)


# ---- by gamma variates ----


def loggamma(
    key: Key,
    a: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    *,
    method: str = "exact",
) -> Array:
    """log(x) of a Gamma(a, 1) sample x, finite also where x underflows.

    Method and derivative: see `gamma_variates.py`.

    Args:
        key: random key; the call uses it up.
        a: shape parameter, not negative; the result is differentiable in it.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.
        method: "exact", by rejection, or "approximate", by one formula without a loop, which is
            right to 3e-5 of probability and whose derivative is the formula's.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        DTypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`, or the method is another.

    >>> random.loggamma(random.key(0), 0.5, (3,))
    Array([ 0.42814928,  0.32364097, -3.1398957 ], dtype=float32)
    """
    draw = log_approximate_gamma if is_approximate(method, "loggamma") else log_standard_gamma
    dtype, shape, (a,) = broadcast_parameters("loggamma", dtype, shape, a)
    return ops.convert(draw(take_key(key, "loggamma"), a), dtype)


def gamma(
    key: Key,
    a: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    *,
    method: str = "exact",
) -> Array:
    """Gamma with shape parameter `a` and scale 1.

    Source: Marsaglia and Tsang, "A simple method for generating gamma variables", 2000.

    Args:
        key: random key; the call uses it up.
        a: shape parameter, not negative; the result is differentiable in it.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.
        method: "exact", by rejection, or "approximate", by one formula without a loop, which is
            right to 3e-5 of probability and whose derivative is the formula's.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        DTypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`, or the method is another.

    >>> random.gamma(random.key(0), 2.0, (3,))
    Array([2.268854 , 2.721225 , 1.4449768], dtype=float32)
    """
    draw = log_approximate_gamma if is_approximate(method, "gamma") else log_standard_gamma
    dtype, shape, (a,) = broadcast_parameters("gamma", dtype, shape, a)
    return ops.convert(jnp.exp(draw(take_key(key, "gamma"), a)), dtype)


def chisquare(
    key: Key,
    df: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    *,
    method: str = "exact",
) -> Array:
    """Chi-square: twice a Gamma(df / 2) sample.

    Args:
        key: random key; the call uses it up.
        df: degrees of freedom, positive.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.
        method: "exact", by rejection, or "approximate", by one formula without a loop, which is
            right to 3e-5 of probability and whose derivative is the formula's.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        DTypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`, or the method is another.

    >>> random.chisquare(random.key(0), 3.0, (3,))
    Array([3.3616571, 4.1561146, 1.9657819], dtype=float32)
    """
    is_approximate(method, "chisquare")
    dtype, shape, (df,) = broadcast_parameters("chisquare", dtype, shape, df)
    half = gamma(take_key(key, "chisquare"), df / 2, shape, df.dtype, method=method)
    return ops.convert(2 * half, dtype)


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
        DTypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.f(random.key(0), 3.0, 5.0, (3,))
    Array([1.6909221, 1.417355 , 3.4001505], dtype=float32)
    """
    dtype, shape, (dfnum, dfden) = broadcast_parameters("f", dtype, shape, dfnum, dfden)
    first, second = split(key)
    low = loggamma(first, dfden / 2, shape, dfden.dtype) - jnp.log(dfden)
    high = loggamma(second, dfnum / 2, shape, dfnum.dtype) - jnp.log(dfnum)
    return ops.convert(jnp.exp(high - low), dtype)


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
        DTypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.t(random.key(0), 4.0, (3,))
    Array([-0.6190525, -1.3615644,  0.2718189], dtype=float32)
    """
    dtype, shape, (df,) = broadcast_parameters("t", dtype, shape, df)
    first, second = split(key)
    n = normal(first, shape, df.dtype)
    log_g = loggamma(second, df / 2, shape, df.dtype)
    return ops.convert(n * jnp.exp(0.5 * (jnp.log(df / 2) - log_g)), dtype)


def beta(
    key: Key,
    a: ArrayLike,
    b: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    *,
    method: str = "exact",
) -> Array:
    """Beta(a, b) on (0, 1).

    Args:
        key: random key; the call uses it up.
        a, b: positive parameters; the result is differentiable in both.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: floating dtype; float32 by default.
        method: "exact", by rejection, or "approximate", by one formula without a loop, which is
            right to 3e-5 of probability and whose derivative is the formula's.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        DTypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`, or the method is another.

    >>> random.beta(random.key(0), 2.0, 3.0, (3,))
    Array([0.17111863, 0.29518193, 0.17733727], dtype=float32)
    """
    is_approximate(method, "beta")
    dtype, shape, (a, b) = broadcast_parameters("beta", dtype, shape, a, b)
    first, second = split(key)
    x = loggamma(first, a, shape, a.dtype, method=method)
    y = loggamma(second, b, shape, a.dtype, method=method)
    return ops.convert(ops.logistic(x - y), dtype)


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
        DTypeError: `dtype` is not floating.

    >>> random.dirichlet(random.key(0), jnp.ones(3))
    Array([0.35681987, 0.46652716, 0.17665298], dtype=float32)
    """
    alpha = as_array(alpha)
    if alpha.ndim < 1:
        raise ValueError("random.dirichlet: alpha needs at least one dimension")
    lead = alpha.shape[:-1]
    shape = lead if shape is None else shape_of(shape, jnp.zeros(lead))
    dtype, shape, (a,) = broadcast_parameters("dirichlet", dtype, (*shape, alpha.shape[-1]), alpha)
    log_g = loggamma(take_key(key, "dirichlet"), a, shape, a.dtype)
    return ops.convert(softmax_last(log_g), dtype)


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
        DTypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.generalized_normal(random.key(0), 1.0, (3,))
    Array([ 0.03364656,  0.4624077 , -0.38055855], dtype=float32)
    """
    dtype = float_dtype(dtype, "generalized_normal")
    shape = shape_of(shape, p)
    first, second = split(key)
    p = as_dtype(p, working_dtype(dtype))
    size = jnp.exp(loggamma(first, jnp.broadcast_to(1 / p, shape), shape, working_dtype(dtype)) / p)
    return ops.convert(rademacher(second, shape, working_dtype(dtype)) * size, dtype)


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
        DTypeError: `dtype` is not floating.

    >>> random.ball(random.key(0), 2, shape=(3,)).shape
    (3, 2)
    """
    dtype = float_dtype(dtype, "ball")
    shape, work = shape_of(shape), working_dtype(float_dtype(dtype, "ball"))
    first, second = split(key)
    g = generalized_normal(first, p, (*shape, d), work)
    e = exponential(second, shape, work)
    length = (jnp.sum(jnp.abs(g) ** p, -1) + e) ** (1 / p)  # pyright: ignore[reportOperatorIssue]  # p is a number or an array
    return ops.convert(g / length[..., None], dtype)


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
        DTypeError: `dtype` is not floating.

    >>> random.multivariate_normal(random.key(0), jnp.zeros(2), jnp.eye(2), (3,)).shape
    (3, 2)
    """
    dtype = float_dtype(dtype, "multivariate_normal")
    mean, cov = as_dtype(mean, working_dtype(dtype)), as_dtype(cov, working_dtype(dtype))
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
    x = normal(take_key(key, "multivariate_normal"), (*shape, n), working_dtype(dtype))
    return ops.convert(mean + jnp.einsum("...ij,...j->...i", factor, x), dtype)


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
    dtype = dtype_or(dtype, dtypes.default_float())
    m = n if m is None else m
    work = dtypes.promote_types(dtype, dtypes.F32)
    z = normal(take_key(key, "orthogonal"), (*shape_of(shape), max(n, m), min(n, m)), work)
    q, r = jnp.linalg.qr(z)
    q = q * jnp.expand_dims(jnp.sign(jnp.diagonal(r, 0, -2, -1)), -2)
    return ops.convert(jnp.swapaxes(q, -1, -2) if n < m else q, dtype)
