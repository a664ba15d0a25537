"""Schedule-free optimizers: averages of iterates in place of schedules (Defazio et al. 2024)."""

from __future__ import annotations

from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, DTypeLike, tree
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import as_array, real_of
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Number, OptState, Params, ScalarOrSchedule, Updates
from genesis_fn.optim.numerics import safe_increment
from genesis_fn.optim.optimizers.adaptive import scale_by_rms
from genesis_fn.optim.optimizers.alias import sgd
from genesis_fn.optim.schedules import warmup_constant_schedule
from genesis_fn.optim.transforms.combine import chain
from genesis_fn.optim.transforms.transform import add_decayed_weights, scale_by_learning_rate
from genesis_fn.optim.tree_map_updates import (
    I32,
    init_leaves,
    is_none,
    map_updates,
    wide_dtype,
    widen,
    widest_float,
)


class ScheduleFreeState(NamedTuple):
    """b1, the sum of weights, the next step (from 1), the largest rate, the base's state, and z."""

    b1: Array
    weight_sum: Array
    step_count: Array
    max_lr: Array
    base_optimizer_state: OptState
    z: Params


def _average(y: Array, z: Array, b1: Number) -> Array:
    """Returns the average x of which the parameters are y = b1 * x + (1 - b1) * z."""
    return (y - (1.0 - b1) * z) / b1


def schedule_free_eval_params(state: ScheduleFreeState, params: Params) -> Params:
    """Gives the averaged parameters of `schedule_free`, which are the ones to evaluate and to keep.

        x = (y - (1 - b1) z) / b1,  y the parameters and z of the state

    Source: Defazio et al., "The road less scheduled", 2024.

    Args:
        state: ScheduleFreeState of `schedule_free` or one of its optimizers.
        params: the parameters that gradients are taken at.

    Returns:
        The averages x, a tree like `params`.

    Raises:
        ArgumentError: `state` is another optimizer's.

    >>> w, tx = jnp.array([1.0, -2.0]), optim.schedule_free_sgd(0.1)
    >>> updates, state = tx.update(w, tx.init(w), w)
    >>> optim.schedule_free_eval_params(state, optim.apply_updates(w, updates)).round(4)
    Array([ 0.9, -1.8], dtype=float32)
    """
    if not (hasattr(state, "b1") and hasattr(state, "z")):
        raise ArgumentError("schedule_free_eval_params takes the state of schedule_free")

    def leaf(y: Array | None, z: Array | None) -> Array | None:
        if y is None or z is None:
            return y
        return _average(widen(as_array(y)), widen(z), state.b1).astype(y.dtype)

    return tree.map(leaf, params, state.z, is_leaf=is_none)


def schedule_free(
    base_optimizer: base.GradientTransformation,
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    weight_lr_power: Number = 2.0,
    state_dtype: DTypeLike | None = None,
) -> base.GradientTransformationExtraArgs:
    """Averages the iterates of an optimizer, which takes the place of a learning-rate schedule.

        z <- z + update of the base optimizer,  x <- (1 - c) x + c z,
        parameters y = b1 x + (1 - b1) z,
        c = weight / sum of weights,  weight = (largest learning rate so far)**weight_lr_power

    Gradients are taken at y; evaluate x, by `schedule_free_eval_params`.

    Source: Defazio et al., "The road less scheduled", 2024. `update` needs the parameters.

    Args:
        base_optimizer: transformation without momentum: b1 stands for it.
        learning_rate: its learning rate, or the schedule of it, for the weights.
        b1: share of the average in the parameters, in (0, 1].
        weight_lr_power: exponent of the learning rate in the average's weights, >= 0; 0 weighs all
            alike.
        state_dtype: dtype of z; None: the parameters', and at least float32.

    Returns:
        The transformation, whose states are ScheduleFreeState(..., z).

    Raises:
        ArgumentError: `b1` is not in (0, 1].

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.schedule_free(optim.sgd(0.1), 0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.05,  0.3 ], dtype=float32)
    """
    if isinstance(b1, (int, float)) and not 0 < b1 <= 1:
        raise ArgumentError(f"schedule_free: b1 must be in (0, 1], got {b1}: averages divide by it")
    inner = base.with_extra_args_support(base_optimizer)

    def init(params: Params) -> ScheduleFreeState:
        dtype = wide_dtype(widest_float(params))
        # A copy: the parameters may be donated to the same call as this state.
        z = init_leaves(
            lambda p: jnp.array(p, dtype=state_dtype or wide_dtype(p.dtype), copy=True), params
        )
        return ScheduleFreeState(
            as_array(b1, dtype),
            jnp.zeros((), dtype),
            jnp.ones((), I32),
            jnp.zeros((), dtype),
            inner.init(params),
            z,
        )

    def update(
        updates: Updates, state: ScheduleFreeState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, ScheduleFreeState]:
        base.require_params(params, "schedule_free")
        # Leaves that are frozen in z are frozen for the base optimizer too.
        updates = map_updates(lambda g, _: g, updates, extras=(params,))
        lr = learning_rate(state.step_count) if callable(learning_rate) else learning_rate
        dtype = state.max_lr.dtype
        max_lr = jnp.maximum(
            state.max_lr, as_array(lr).astype(dtype) if hasattr(lr, "dtype") else lr
        )
        weight = max_lr**weight_lr_power
        total = state.weight_sum + weight
        share = jnp.where(total == 0, 0.0, weight / jnp.where(total == 0, 1.0, total))
        steps, base_state = inner.update(updates, state.base_optimizer_state, params, **extra)

        def leaf(u: Array, z: Array, y: Array) -> tuple[Array, ...]:
            c = share.astype(real_of(u.dtype))
            x = _average(y, z, b1)
            z = z + u
            x = (1.0 - c) * x + c * z
            return b1 * x + (1.0 - b1) * z - y, z

        updates, z = map_updates(leaf, steps, state.z, extras=(params,))
        count = safe_increment(state.step_count)
        return updates, ScheduleFreeState(state.b1, total, count, max_lr, base_state, z)

    return base.GradientTransformationExtraArgs(init, update, state=ScheduleFreeState)


def _warmed_up(learning_rate: Number, warmup_steps: int | None) -> ScalarOrSchedule:
    if not warmup_steps:
        return learning_rate
    return warmup_constant_schedule(0, learning_rate, warmup_steps)


def schedule_free_sgd(
    learning_rate: Number = 1.0,
    warmup_steps: int | None = None,
    b1: Number = 0.9,
    weight_decay: ScalarOrSchedule | None = None,
    weight_lr_power: Number = 2.0,
    state_dtype: DTypeLike | None = None,
) -> base.GradientTransformationExtraArgs:
    """SGD without a schedule: `schedule_free` around `sgd`.

        z <- z - lr (g + weight_decay y),  x <- (1 - c) x + c z,  parameters y = b1 x + (1 - b1) z

    Source: Defazio et al., "The road less scheduled", 2024. `update` needs the parameters.

    Args:
        learning_rate: positive number.
        warmup_steps: steps in which the learning rate rises from 0; None or 0: no warm-up.
        b1: share of the average in the parameters, in (0, 1].
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the gradient;
            None: no decay.
        weight_lr_power: exponent of the learning rate in the average's weights, >= 0; 0 weighs all
            alike.
        state_dtype: dtype of z; None: the parameters', and at least float32.

    Returns:
        The transformation, whose states are ScheduleFreeState(..., z).

    Raises:
        ArgumentError: `b1` is not in (0, 1].

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.schedule_free_sgd(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.05,  0.3 ], dtype=float32)
    """
    rate = _warmed_up(learning_rate, warmup_steps)
    optimizer = sgd(rate)
    if weight_decay is not None:
        optimizer = chain(decay=add_decayed_weights(weight_decay), sgd=optimizer)
    return schedule_free(optimizer, rate, b1, weight_lr_power, state_dtype)


def schedule_free_adamw(
    learning_rate: Number = 0.0025,
    warmup_steps: int | None = None,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_lr_power: Number = 2.0,
    state_dtype: DTypeLike | None = None,
) -> base.GradientTransformationExtraArgs:
    """AdamW without a schedule: `schedule_free` around RMSProp with weight decay.

        z <- z - lr (g / (sqrt(v_hat) + eps) + weight_decay y),  v <- b2 v + (1 - b2) |g|**2,
        x <- (1 - c) x + c z,  parameters y = b1 x + (1 - b1) z

    Source: Defazio et al., "The road less scheduled", 2024. `update` needs the parameters.

    Args:
        learning_rate: positive number.
        warmup_steps: steps in which the learning rate rises from 0; None or 0: no warm-up.
        b1: share of the average in the parameters, in (0, 1].
        b2: decay rate of the second moment, in [0, 1).
        eps: positive number added to the denominator.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the step.
        weight_lr_power: exponent of the learning rate in the average's weights, >= 0; 0 weighs all
            alike.
        state_dtype: dtype of z; None: the parameters', and at least float32.

    Returns:
        The transformation, whose states are ScheduleFreeState(..., z).

    Raises:
        ArgumentError: `b1` is not in (0, 1].

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.schedule_free_adamw(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1,  0.1], dtype=float32)
    """
    rate = _warmed_up(learning_rate, warmup_steps)
    optimizer = chain(
        rms=scale_by_rms(decay=b2, eps=eps, eps_in_sqrt=False, bias_correction=True),
        decay=add_decayed_weights(weight_decay),
        schedule=scale_by_learning_rate(rate),
    )
    return schedule_free(optimizer, rate, b1, weight_lr_power, state_dtype)
