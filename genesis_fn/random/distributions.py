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
    """Cauchy with location 0 and scale 1: tan(pi (u - 1/2))."""
    kind = float_dtype(dtype, "cauchy")
    u = uniform(own(key, "cauchy"), shape, kind, float(dtypes.finfo(kind).eps), 1.0)
    return ops.tan(ops.mul(ops.sub(u, 0.5), math.pi))


def lognormal(
    key: Key, sigma: ArrayLike = 1.0, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """exp(sigma * normal)."""
    kind, shape, (sigma,) = _parameters("lognormal", dtype, shape, sigma)
    return ops.convert(jnp.exp(normal(own(key, "lognormal"), shape, kind) * sigma), kind)


def pareto(
    key: Key, b: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """Pareto with density b / x**(b + 1) for x >= 1."""
    kind, shape, (b,) = _parameters("pareto", dtype, shape, b)
    e = exponential(own(key, "pareto"), shape, _work(kind))
    return ops.convert(jnp.exp(e / b), kind)


def rayleigh(
    key: Key, scale: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """Rayleigh: scale * sqrt(-2 log(u))."""
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
    """Weibull: scale * (-log(1 - u))**(1 / concentration)."""
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
    """Triangular on [left, right] with its peak at `mode`."""
    kind, shape, (left, mode, right) = _parameters("triangular", dtype, shape, left, mode, right)
    u = uniform(own(key, "triangular"), shape, _work(kind))
    rising = u < (mode - left) / (right - left)
    # Each root only where it is used: its derivative at 0 is infinite.
    up = jnp.where(rising, u * (right - left) * (mode - left), 1)
    down = jnp.where(rising, 1, (1 - u) * (right - left) * (right - mode))
    return ops.convert(jnp.where(rising, left + jnp.sqrt(up), right - jnp.sqrt(down)), kind)


def maxwell(key: Key, shape: ShapeLike = (), dtype: DTypeLike | None = None) -> Array:
    """Maxwell: the length of a vector of three normals."""
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
    """loc + scale * (a Maxwell sample with a random sign), of `shape` + the parameters' shape."""
    kind = float_dtype(dtype, "double_sided_maxwell")
    loc, scale = as_kind(loc, kind), as_kind(scale, kind)
    natural = np.broadcast_shapes(loc.shape, scale.shape)
    shape = (*shape_of(shape or natural), *natural)
    first, second = split(key)
    return rademacher(second, shape, kind) * maxwell(first, shape, kind) * scale + loc


def wald(
    key: Key, mean: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """Inverse Gaussian with the given mean and scale 1 (Michael, Schucany and Haas, 1976)."""
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
    """How many trials of success probability `p` until the first success: 1, 2, ..."""
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
    """The logarithm of a Gamma(a, 1) sample, finite also where the sample underflows."""
    kind, shape, (a,) = _parameters("loggamma", dtype, shape, a)
    return ops.convert(log_standard_gamma(own(key, "loggamma"), a), kind)


def gamma(
    key: Key, a: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """Gamma with shape parameter `a` and scale 1, differentiable in `a`."""
    kind, shape, (a,) = _parameters("gamma", dtype, shape, a)
    return ops.convert(jnp.exp(log_standard_gamma(own(key, "gamma"), a)), kind)


def chisquare(
    key: Key, df: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """Chi-square with `df` degrees of freedom: twice a Gamma(df / 2)."""
    kind, shape, (df,) = _parameters("chisquare", dtype, shape, df)
    return ops.convert(2 * gamma(own(key, "chisquare"), df / 2, shape, df.dtype), kind)


def f(
    key: Key,
    dfnum: ArrayLike,
    dfden: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
) -> Array:
    """F: the ratio of two chi-squares, each over its degrees of freedom."""
    kind, shape, (dfnum, dfden) = _parameters("f", dtype, shape, dfnum, dfden)
    first, second = split(key)
    low = loggamma(first, dfden / 2, shape, dfden.dtype) - jnp.log(dfden)
    high = loggamma(second, dfnum / 2, shape, dfnum.dtype) - jnp.log(dfnum)
    return ops.convert(jnp.exp(high - low), kind)


def t(
    key: Key, df: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """Student's t with `df` degrees of freedom."""
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
    """Beta(a, b) on (0, 1), differentiable in both."""
    kind, shape, (a, b) = _parameters("beta", dtype, shape, a, b)
    first, second = split(key)
    x, y = loggamma(first, a, shape, a.dtype), loggamma(second, b, shape, a.dtype)
    return ops.convert(ops.logistic(x - y), kind)


def dirichlet(
    key: Key, alpha: ArrayLike, shape: ShapeLike | None = None, dtype: DTypeLike | None = None
) -> Array:
    """Dirichlet over the last axis of `alpha`; `shape` is the batch shape."""
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
    """Density proportional to exp(-|x|**p)."""
    kind = float_dtype(dtype, "generalized_normal")
    shape = shape_of(shape, p)
    first, second = split(key)
    p = as_kind(p, _work(kind))
    size = jnp.exp(loggamma(first, jnp.broadcast_to(1 / p, shape), shape, _work(kind)) / p)
    return ops.convert(rademacher(second, shape, _work(kind)) * size, kind)


def ball(
    key: Key, d: int, p: ArrayLike = 2, shape: ShapeLike = (), dtype: DTypeLike | None = None
) -> Array:
    """Uniform in the unit ball of the p-norm in `d` dimensions (Barthe et al., 2005)."""
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
    """Normal vectors of the given mean [..., n] and covariance [..., n, n]; `shape` is the batch.

    `method` is "cholesky", "eigh" or "svd"; the last two take semi-definite covariances.
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
    """Matrices [*shape, n, m] (m = n by default) with orthonormal rows or columns, uniform among
    them (Mezzadri, 2007)."""
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
    """Poisson with mean `lam`.

    Products of uniforms below 10 (Knuth), transformed rejection above (PTRS: Hoermann, 1993).
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
    """The number of successes in `n` trials of probability `p`, as floats; NaN for a bad n or p.

    Waiting times between successes where n * min(p, 1 - p) <= 10, else Hoermann's BTRS (1993).
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
    """Counts over the last axis of `p` of `n` draws: one binomial per class from what is left."""
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
