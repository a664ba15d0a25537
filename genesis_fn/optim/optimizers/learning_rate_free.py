"""Prodigy: Adam that estimates its own learning rate (Mishchenko & Defazio 2023)."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, PyTree, tree
from genesis_fn.dtypes import DType
from genesis_fn.extend import as_array
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Number, Params, ScalarOrSchedule, Updates
from genesis_fn.optim.numerics import one_minus_power, safe_increment
from genesis_fn.optim.transforms.transform import times
from genesis_fn.optim.tree_map_updates import (
    F32,
    init_leaves,
    init_moments,
    map_updates,
    widest_float,
    zero_count,
)


class ProdigyState(NamedTuple):
    """Moments, the sum s, the first parameters, the estimate d, its numerator r, steps taken."""

    exp_avg: PyTree
    exp_avg_sq: PyTree
    grad_sum: PyTree
    params0: Params
    estim_lr: Array
    numerator_weighted: Array
    count: Any


def prodigy(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[Number, Number] = (0.9, 0.999),
    beta3: Number | None = None,
    eps: Number = 1e-8,
    estim_lr0: Number = 1e-6,
    estim_lr_coef: Number = 1.0,
    weight_decay: Number = 0.0,
    safeguard_warmup: bool = False,
) -> base.GradientTransformationExtraArgs:
    """Prodigy: Adam with an estimate d of the distance to the solution as its learning rate.

        m, v: moving means of d g and (d g)**2;  rate = lr d sqrt(1 - beta2**t) / (1 - beta1**t),
        update = -rate (m / (sqrt(v) + d eps) + weight_decay p),
        r <- beta3 r + (d / estim_lr0) rate <g, p0 - p>,  s <- beta3 s + (rate / estim_lr0) d g,
        d <- max(d, estim_lr_coef r / |s|_1)

    Source: Mishchenko & Defazio, "Prodigy: an expeditiously adaptive parameter-free learner", 2023.
    `update` needs the parameters.

    Args:
        learning_rate: factor of the estimate, or a schedule of it; 1.0 mostly does.
        betas: decay rates of the first and second moments, in [0, 1).
        beta3: decay rate of the estimate's sums, in [0, 1); None: sqrt(beta2).
        eps: positive number added to the denominator, in units of d.
        estim_lr0: first estimate, positive and small.
        estim_lr_coef: positive factor of new estimates.
        weight_decay: number >= 0: the share of the parameter added to the update before the rate.
        safeguard_warmup: whether the schedule stays out of the estimate, for a warm-up.

    Returns:
        The transformation, whose states are ProdigyState(..., estim_lr, ...), with d as `estim_lr`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.prodigy(estim_lr0=0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1,  0.1], dtype=float32)
    """
    beta1, beta2 = betas
    sum_decay = beta2**0.5 if beta3 is None else beta3

    def init(params: Params) -> ProdigyState:
        dtype = widest_float(params)
        dtype = F32 if dtype.itemsize < 4 else dtype
        start = init_leaves(lambda p: jnp.array(p, copy=True), params)
        first, second, total = (init_moments(params) for _ in range(3))
        estimate = jnp.full((), estim_lr0, dtype=dtype)
        numerator = jnp.zeros((), dtype)
        return ProdigyState(first, second, total, start, estimate, numerator, zero_count())

    def update(
        updates: Updates, state: ProdigyState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, ProdigyState]:
        base.require_params(params, "prodigy")
        count = safe_increment(state.count)
        schedule: Any = learning_rate(state.count) if callable(learning_rate) else learning_rate
        d, dtype = state.estim_lr, state.estim_lr.dtype
        corrected = one_minus_power(beta2, count)(dtype) ** 0.5 / one_minus_power(beta1, count)(
            dtype
        )
        rate = times(schedule, d * corrected)
        rise = d if safeguard_warmup else rate

        def moments(g: Array, m: Array, v: Array, s: Array, p0: Array, p: Any) -> tuple[Array, ...]:
            scaled: Any = times(d, g)
            m = beta1 * m + (1 - beta1) * scaled
            v = beta2 * v + (1 - beta2) * scaled * scaled
            s = sum_decay * s + times(rise / estim_lr0, scaled)
            root = jnp.sqrt(v) + (d * eps).astype(v.dtype)
            return -times(rate, weight_decay * p + m / root), m, v, s

        def dot(g: Array, p0: Array, p: Any) -> Array:
            return jnp.sum(g * (p0 - p))

        start = state.params0
        progress = _total(map_updates(dot, updates, extras=(start, params)), dtype)
        new, m, v, s = map_updates(
            moments,
            updates,
            state.exp_avg,
            state.exp_avg_sq,
            state.grad_sum,
            extras=(start, params),
        )
        numerator = sum_decay * state.numerator_weighted + (d / estim_lr0) * rate * progress
        length = _total(map_updates(lambda x: jnp.sum(jnp.abs(x)), s), dtype)
        # Before the first gradient that is not zero there is nothing to estimate from.
        ratio = jnp.where(length > 0, numerator / jnp.where(length > 0, length, 1.0), 0.0)
        estimate = jnp.maximum(d, estim_lr_coef * ratio)
        return new, ProdigyState(m, v, s, start, estimate, numerator, count)

    return base.GradientTransformationExtraArgs(init, update, state=ProdigyState)


def _total(scalars: PyTree, dtype: DType) -> Array:
    totals = [as_array(x).astype(dtype) for x in tree.leaves(scalars)]
    return functools.reduce(jnp.add, totals, jnp.zeros((), dtype))
