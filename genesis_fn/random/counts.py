"""Distributions of counts: geometric, Poisson, binomial, multinomial.

Counts have no derivative in their parameters. Samplers by rejection draw for all elements at once
and repeat until every element has accepted a proposal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn.core import dtypes, errors
from genesis_fn.core.dtypes import DType
from genesis_fn.core.types.annotations import Array, ArrayLike, DTypeLike, Key, ShapeLike
from genesis_fn.primitives import elementwise as ops
from genesis_fn.random.distributions import broadcast_parameters, is_approximate
from genesis_fn.random.gamma_variates import as_dtype, sum_of_powers
from genesis_fn.random.keys import split, take_key
from genesis_fn.random.samplers import as_float, dtype_or, normal, shape_of, uniform
from genesis_fn.transforms.control_flow.loops import while_loop
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.keys.key_reuse import unmarked


def _integer_dtype(dtype: DTypeLike | None, name: str) -> DType:
    dtype = dtype_or(dtype, dtypes.default_int())
    if not dtypes.is_integer(dtype):
        raise errors.DTypeError(f"random.{name}: dtype must be an integer type, got {dtype.name}")
    return dtype


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
        DTypeError: `dtype` is no integer dtype.
        ValueError: `p` does not broadcast to `shape`.

    >>> random.geometric(random.key(0), 0.25, (4,))
    Array([4, 1, 2, 2], dtype=int32)
    """
    dtype = _integer_dtype(dtype, "geometric")
    p = as_float(p)
    shape = shape_of(shape, p)
    u = uniform(take_key(key, "geometric"), shape, p.dtype)
    u = jnp.where(u == 0, 1, u)
    return ops.convert(jnp.floor(jnp.log(u) / jnp.log1p(-p)) + 1, dtype)


def poisson(
    key: Key,
    lam: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    *,
    method: str = "exact",
) -> Array:
    """Poisson counts with mean `lam`.

    Products of uniforms for means below 10 (Knuth), transformed rejection above (PTRS: Hoermann,
    "The transformed rejection method for generating Poisson random variables", 1993).

    Args:
        key: random key; the call uses it up.
        lam: mean, not negative; counts have no derivative in it.
        shape: of the result; None takes what the parameters broadcast to.
        dtype: integer dtype; int32 by default.
        method: "exact", or "approximate", by one formula without a loop, which is right to 1e-4 of
            probability.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        DTypeError: `dtype` is no integer dtype.
        ValueError: `lam` does not broadcast to `shape`, or the method is another.

    >>> random.poisson(random.key(0), 4.0, (4,))
    Array([2, 5, 8, 4], dtype=int32)
    """
    approximate = is_approximate(method, "poisson")
    dtype = _integer_dtype(dtype, "poisson")
    mean: Array = jnp.broadcast_to(as_dtype(lam, dtypes.F32), shape_of(shape, lam))
    mean = ops.stop_gradient(mean)  # counts have no derivative
    key = take_key(key, "poisson")
    if approximate:
        return ops.convert(poisson_of_normal(normal(key, mean.shape, mean.dtype), mean), dtype)
    few = jnp.isnan(mean) | (mean < 10)
    low = _poisson_by_products(unmarked(key), jnp.where(few, mean, 0.0))
    high = _poisson_by_rejection(unmarked(key), jnp.where(few, 1e5, mean))
    return ops.convert(jnp.where(few, jnp.where(mean == 0, 0.0, low), high), dtype)


# Below this mean the distribution function is summed, up to as many terms; the rest is 4e-5 of it.
_FEW, _TERMS = 7.0, 20


def poisson_of_normal(z: Array, lam: Array) -> Array:
    """The Poisson count at the quantile that `z` is of the normal distribution, nearly."""
    chance = ops.erfc(-z * math.sqrt(0.5)) * 0.5
    few = lam < _FEW
    term = jnp.exp(-jnp.where(few, lam, 1.0))
    below = term
    small = (below < chance).astype(lam.dtype)
    for k in range(1, _TERMS - 1):
        term = term * lam / k
        below = below + term
        small = small + (below < chance)
    count = jnp.where(few, small, _poisson_of_normal_by_tails(z, jnp.where(few, _FEW, lam)))
    return jnp.where(lam >= 0, count, -1.0)  # as the exact samplers say: of NaN, too


def _poisson_of_normal_by_tails(z: Array, lam: Array) -> Array:
    """The smallest k >= 0 whose tail is that of `z`: Cornish and Fisher's guess, put right by the
    tails of the counts around it."""
    root = jnp.sqrt(lam)
    guess = lam + root * z + (z * z - 4) / 6 + z * (1 - z * z) / (72 * root)
    k = jnp.ceil(guess + 0.6)  # the guess errs by less than one count about 0.6 below
    before = _tail_as_normal(k - 1, lam) >= z
    k = jnp.where(_tail_as_normal(k, lam) >= z, k - before, k + 1)
    return jnp.maximum(k, 0.0)


def _tail_as_normal(k: Array, lam: Array) -> Array:
    """The z with Pr[Poisson(lam) <= k] = Phi(z), to 6e-5 of probability.

    Source: Peizer and Pratt, "A normal approximation for binomial, F, beta, and other common,
    related tail probabilities", 1968.
    """
    inside = k >= 0
    k = jnp.where(inside, k, 0.0)
    d = (k + 0.5) / lam - 1
    # The deviance 2 ((1 + d) log(1 + d) - d) over d**2, which cancels next to 0.
    near = jnp.abs(d) < 0.25
    far = jnp.where(near, 1.0, d)
    series = sum_of_powers(d, [2 * (-1) ** n / ((n + 1) * (n + 2)) for n in range(11)])
    deviance = jnp.where(near, series, 2 * ((1 + far) * jnp.log1p(far) - far) / (far * far))
    distance = k - lam + 2 / 3 + 0.02 / (k + 1)
    return jnp.where(inside, distance * jnp.sqrt(deviance / lam), -np.inf)


def _poisson_by_products(key: Key, lam: Array) -> Array:
    def unfinished(state: tuple[Any, ...]) -> Array:
        return jnp.any(state[2] > -lam)

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        k, count, log_product = state
        k, sub = split(k)
        count = jnp.where(log_product > -lam, count + 1, count)
        return k, count, log_product + jnp.log(uniform(sub, lam.shape, lam.dtype))

    zeros = jnp.zeros_like(lam)
    return while_loop(unfinished, step, (key, zeros, zeros))[1] - 1


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

    def unfinished(state: tuple[Any, ...]) -> Array:
        return ~jnp.all(state[2])

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        k, value, done = state
        k, first, second = split(k, 3)
        u, v = uniform(first, like.shape, like.dtype), uniform(second, like.shape, like.dtype)
        fresh, accepted = attempt(u, v)
        # As JAX does: a later acceptance replaces an earlier one, which is as random.
        return k, jnp.where(accepted, fresh, value), done | accepted

    state = (key, jnp.full_like(like, -1), jnp.zeros(like.shape, bool))
    return while_loop(unfinished, step, state)[1]


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
        DTypeError: `dtype` is not floating.
        ValueError: the parameters do not broadcast to `shape`.

    >>> random.binomial(random.key(0), 10, 0.5, (4,))
    Array([2., 6., 2., 3.], dtype=float32)
    """
    dtype, shape, parameters = broadcast_parameters("binomial", dtype, shape, n, p)
    trials, chance = [ops.stop_gradient(v) for v in parameters]  # counts have no derivative
    key = take_key(key, "binomial")
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
    return ops.convert(jnp.where(bad, np.nan, count), dtype)


def _binomial_by_waiting(key: Key, n: Array, p: Array) -> Array:
    log_miss = jnp.log1p(-p)

    def unfinished(state: tuple[Any, ...]) -> Array:
        return jnp.any(state[2] <= n)

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        k, count, trials = state
        sub, k = split(k)
        count = jnp.where(trials <= n, count + 1, count)
        wait = jnp.ceil(jnp.log(uniform(sub, n.shape, n.dtype)) / log_miss)
        return k, count, trials + wait

    zeros = jnp.zeros_like(n)
    return while_loop(unfinished, step, (key, zeros, zeros))[1] - 1


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
    p = as_float(p)
    shape = p.shape if shape is None else tuple(shape)
    chances = jnp.moveaxis(jnp.broadcast_to(p, shape), -1, 0)
    left = jnp.flip(jnp.cumsum(jnp.flip(chances, 0), 0), 0)
    ratios = jnp.clip(chances / jnp.where(left == 0, 1, left), 0, 1)
    keys = split(key, shape[-1])

    def draw(remaining: Array, x: tuple[Any, ...]) -> tuple[Any, ...]:
        ratio, k = x
        count = binomial(k, remaining, ratio, dtype=remaining.dtype)
        return remaining - count, count

    start = jnp.broadcast_to(as_dtype(n, chances.dtype), shape[:-1])
    _, counts = scan(draw, start, (ratios, keys), unroll=unroll)
    return ops.convert(jnp.moveaxis(counts, 0, -1), dtype_or(dtype, dtypes.default_float()))
