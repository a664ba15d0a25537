"""MoMo: momentum whose step ends where a model of the loss reaches its lower bound."""

from __future__ import annotations

from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, PyTree, dtypes
from genesis_fn.extend import as_array
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Number, Params, ScalarOrSchedule, Updates
from genesis_fn.optim.contrib.complex_parameters import require_real
from genesis_fn.optim.numerics import one_minus_power, safe_increment
from genesis_fn.optim.state import tree_math
from genesis_fn.optim.transforms.transform import moment, times
from genesis_fn.optim.tree_map_updates import (
    init_moments,
    map_updates,
    wide_dtype,
    widest_float,
    zero_count,
)


class MomoState(NamedTuple):
    """The momentum, means of the loss and of <g, p>, the lower bound, steps taken."""

    exp_avg: PyTree
    barf: Array
    gamma: Array
    lb: Array
    count: Any


def _rate(learning_rate: ScalarOrSchedule, count: Any, like: Array) -> Array:
    """Returns the learning rate as a scalar of the dtype of `like`."""
    rate = learning_rate(count) if callable(learning_rate) else learning_rate
    return jnp.asarray(rate, dtype=like.dtype)


def _inner(grads: Updates, params: Params, like: Array) -> Array:
    """Returns the inner product over the leaves that have gradients, in the dtype of `like`."""
    products = map_updates(lambda g, p: jnp.sum(g * p), grads, extras=(params,))
    return tree_math.sum(products).astype(like.dtype)


def _polyak(gap: Array, square: Array, most: Array) -> Array:
    """Returns min(most, max(gap, 0) / square), and 0 where there is no direction to step in."""
    still = square <= float(dtypes.finfo(square.dtype).eps)
    step = jnp.maximum(gap, 0.0) / jnp.where(still, 1.0, square)
    return jnp.minimum(most, jnp.where(still, 0.0, step))


def momo(
    learning_rate: ScalarOrSchedule = 1.0,
    beta: Number = 0.9,
    lower_bound: Number = 0.0,
    weight_decay: Number = 0.0,
    adapt_lower_bound: bool = False,
) -> base.GradientTransformationExtraArgs:
    """MoMo: SGD with momentum, with a Polyak step: `update(grads, state, params, value=loss)`.

        m, f, c: moving means of g, of the loss and of <g, p>, which begin at their first values,
        a = 1 + lr weight_decay,  h = a (f - lower_bound - c) + <m, p>,
        update = -min(lr, max(h, 0) / |m|**2) m - (lr weight_decay / a) p

    With `adapt_lower_bound` the state's bound is lowered where h would be negative, and raised
    after each step to max(lower_bound, f + <m, p> - c - min(...) |m|**2 / 2).

    Source: Schaipp et al., "MoMo: momentum models for adaptive learning rates", 2023. `update`
    needs the parameters.

    Args:
        learning_rate: largest step, or a schedule of it; 1.0 mostly does.
        beta: decay rate of the means, in [0, 1).
        lower_bound: least value that the loss can have; 0 for most losses.
        weight_decay: number >= 0: the strength of the decay, which is a proximal step.
        adapt_lower_bound: whether the bound is estimated; `lower_bound` is then the least estimate.

    Returns:
        The transformation, whose states are MomoState(exp_avg, barf, gamma, lb, count): m, f, c,
        and the bound.

    Raises:
        DTypeError: a parameter is complex.

    >>> loss, w = lambda w: jnp.sum(w**2), jnp.array([1.0, 2.0, 3.0])
    >>> tx = optim.contrib.momo()
    >>> value, grads = gf.value_and_grad(loss)(w)
    >>> updates, state = tx.update(grads, tx.init(w), w, value=value)
    >>> loss(optim.apply_updates(w, updates))
    Array(3.5, dtype=float32)
    """

    def init(params: Params) -> MomoState:
        require_real(params, "momo")
        dtype = wide_dtype(widest_float(params))
        bound = jnp.asarray(lower_bound, dtype=dtype)
        zero = jnp.zeros((), dtype)
        return MomoState(init_moments(params), zero, jnp.zeros((), dtype), bound, zero_count())

    def update(
        updates: Updates,
        state: MomoState,
        params: Params | None = None,
        *,
        value: ArrayLike,
        **extra: Any,
    ) -> tuple[Updates, MomoState]:
        base.require_params(params, "momo")
        like = state.barf
        decay = jnp.where(state.count == 0, 0.0, jnp.asarray(beta, dtype=like.dtype))
        rate = _rate(learning_rate, state.count, like)
        shrink = 1 + rate * weight_decay

        def mean(g: Array, m: Array) -> tuple[Array, Array]:
            m = moment(g, m, decay.astype(g.dtype))
            return m, m

        averages, m = map_updates(mean, updates, state.exp_avg)
        barf = moment(jnp.asarray(value, dtype=like.dtype), state.barf, decay)
        gamma = moment(_inner(updates, params, like), state.gamma, decay)
        product = _inner(averages, params, like)
        square = tree_math.norm(averages, squared=True).astype(like.dtype)

        bound = state.lb
        if adapt_lower_bound:
            cap = shrink * (barf - gamma) + product
            lower = jnp.maximum(cap / (2 * shrink), lower_bound)
            bound = jnp.where(cap < shrink * bound, lower, bound)
        step = _polyak(shrink * (barf - bound - gamma) + product, square, rate)
        new = map_updates(
            lambda a, p: -times(rate * weight_decay / shrink, p) - times(step, a),
            averages,
            extras=(params,),
        )
        kept = state.lb
        if adapt_lower_bound:
            kept = jnp.maximum(barf + product - gamma - 0.5 * step * square, lower_bound)
        return new, MomoState(m, barf, gamma, kept, safe_increment(state.count))

    return base.GradientTransformationExtraArgs(init, update, state=MomoState)


class MomoAdamState(NamedTuple):
    """Both moments, means of the loss and of <g, p>, the lower bound, steps taken."""

    exp_avg: PyTree
    exp_avg_sq: PyTree
    barf: Array
    gamma: Array
    lb: Array
    count: Any


def momo_adam(
    learning_rate: ScalarOrSchedule = 1e-2,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    lower_bound: Number = 0.0,
    weight_decay: Number = 0.0,
    adapt_lower_bound: bool = False,
) -> base.GradientTransformationExtraArgs:
    """MoMo-Adam: AdamW with a Polyak step: `update(grads, state, params, value=loss)`.

        m, v, f, c: moving means of g, g**2, the loss and <g, p>, which begin at 0,
        d = eps + sqrt(v / (1 - b2**t)),  k = 1 - b1**t,  a = 1 + lr weight_decay,
        h = a (f - k lower_bound - c) + <m, p>,
        update = -min(lr / k, max(h, 0) / <m, m / d>) m / d - (lr weight_decay / a) p

    With `adapt_lower_bound` the state's bound is lowered where h would be negative, and raised
    after each step to max(lower_bound, (f + <m, p> - c - min(...) <m, m / d> / 2) / k).

    Source: Schaipp et al., "MoMo: momentum models for adaptive learning rates", 2023. `update`
    needs the parameters.

    Args:
        learning_rate: largest step, or a schedule of it.
        b1, b2: decay rates of the means and of the second moment, in [0, 1).
        eps: positive number added to the denominator.
        lower_bound: least value that the loss can have; 0 for most losses.
        weight_decay: number >= 0: the strength of the decay, which is a proximal step.
        adapt_lower_bound: whether the bound is estimated; `lower_bound` is then the least estimate.

    Returns:
        The transformation, whose states are MomoAdamState(exp_avg, exp_avg_sq, barf, gamma, lb,
        count): m, v, f, c, and the bound.

    Raises:
        DTypeError: a parameter is complex.

    >>> loss, w = lambda w: jnp.sum(w**2), jnp.array([1.0, 2.0, 3.0])
    >>> tx = optim.contrib.momo_adam(0.1)
    >>> value, grads = gf.value_and_grad(loss)(w)
    >>> updates, state = tx.update(grads, tx.init(w), w, value=value)
    >>> updates.round(4)
    Array([-0.1, -0.1, -0.1], dtype=float32)
    """

    def init(params: Params) -> MomoAdamState:
        require_real(params, "momo_adam")
        dtype = wide_dtype(widest_float(params))
        bound = jnp.asarray(lower_bound, dtype=dtype)
        loss, product = jnp.zeros((), dtype), jnp.zeros((), dtype)
        first, second = init_moments(params), init_moments(params)
        return MomoAdamState(first, second, loss, product, bound, zero_count())

    def update(
        updates: Updates,
        state: MomoAdamState,
        params: Params | None = None,
        *,
        value: ArrayLike,
        **extra: Any,
    ) -> tuple[Updates, MomoAdamState]:
        base.require_params(params, "momo_adam")
        like = state.barf
        rate = _rate(learning_rate, state.count, like)
        count = safe_increment(state.count)
        shrink = 1 + rate * weight_decay
        first, second = one_minus_power(b1, count), one_minus_power(b2, count)
        bias = as_array(first(like.dtype))

        def means(g: Array, m: Array, v: Array) -> tuple[Array, ...]:
            m, v = moment(g, m, b1), moment(g * g, v, b2)
            return m, m, v

        averages, m, v = map_updates(means, updates, state.exp_avg, state.exp_avg_sq)
        scaled = map_updates(
            lambda a, nu: a / (eps + jnp.sqrt(nu / second(nu.dtype))), averages, extras=(v,)
        )
        barf = moment(jnp.asarray(value, dtype=like.dtype), state.barf, b1)
        gamma = moment(_inner(updates, params, like), state.gamma, b1)
        product = _inner(averages, params, like)
        square = _inner(averages, scaled, like)

        bound = state.lb
        if adapt_lower_bound:
            cap = shrink * (barf - gamma) + product
            lower = jnp.maximum(cap / (2 * bias * shrink), lower_bound)
            bound = jnp.where(cap < shrink * bias * bound, lower, bound)
        gap = shrink * (barf - bias * bound - gamma) + product
        step = _polyak(gap, square, rate / bias)
        new = map_updates(
            lambda d, p: -times(rate * weight_decay / shrink, p) - times(step, d),
            scaled,
            extras=(params,),
        )
        kept = state.lb
        if adapt_lower_bound:
            reached = (barf + product - gamma - 0.5 * step * square) / bias
            kept = jnp.maximum(reached, lower_bound)
        return new, MomoAdamState(m, v, barf, gamma, kept, count)

    return base.GradientTransformationExtraArgs(init, update, state=MomoAdamState)
