"""Transformations that scale, decay and accumulate updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn.core import dtypes, tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.dtypes import DTypeLike
from genesis_fn.core.errors import ArgumentError
from genesis_fn.optim import base
from genesis_fn.optim.numerics import (
    one_minus_power,
    safe_increment,
    safe_norm,
    safe_root_mean_squares,
)
from genesis_fn.optim.state import tree_math
from genesis_fn.optim.transforms.masking import masked
from genesis_fn.optim.tree_map_updates import (
    init_leaves,
    init_moments,
    map_updates,
    widen,
    zero_count,
)


def moment(g: Any, m: Any, decay: Any) -> Any:
    """decay * m + (1 - decay) * g: one step of an exponential moving average."""
    return (1 - decay) * g + decay * m


def times(factor: Any, u: Any) -> Any:
    """factor * u in the dtype of u; `factor` is a number or a scalar array."""
    if hasattr(factor, "dtype"):
        factor = as_array(factor).astype(dtypes.real_of(u.dtype))
    return factor * u


def recorded(value: Any) -> Any:
    """A hyperparameter's value as a float32 scalar, for the state."""
    return as_array(value).astype(dtypes.F32)


# ---- learning rates and other factors ----


def scale(step_size: Any) -> base.GradientTransformation:
    """Updates times `step_size`."""
    return base.per_leaf(lambda u: times(step_size, u))


class ScaleByScheduleState(NamedTuple):
    """Steps taken, and the factor last used."""

    count: Any
    step_size: Any


class ScaleByLearningRateState(NamedTuple):
    """Steps taken, and the learning rate last used (before the first step, the first one's)."""

    count: Any
    learning_rate: Any


def _scaled_by(
    value_at: Callable[[Any], Any], make: type, sign: int, *, constant: bool = False
) -> base.GradientTransformation:
    def init(params: Any) -> Any:
        count = zero_count()
        return make(count, recorded(value_at(count)))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, ...]:
        if constant and base.is_empty(state):
            state = init(None)
        value = value_at(state.count)
        # The factor is one scalar, so that leaves see a single multiplication.
        factor = value if sign == 1 else -value
        new = map_updates(lambda u: times(factor, u), updates)
        return new, make(safe_increment(state.count), recorded(value))

    return base.GradientTransformation(init, update, state=make, reads_state=not constant)


def scale_by_schedule(step_size_fn: base.Schedule) -> base.GradientTransformation:
    """Updates times `step_size_fn(step)`; steps count from 0. The factor is kept in the state."""
    return _scaled_by(step_size_fn, ScaleByScheduleState, 1)


def scale_by_learning_rate(
    learning_rate: base.ScalarOrSchedule | None = None, *, flip_sign: bool = True
) -> base.GradientTransformation:
    """Updates times minus the learning rate, a number or a schedule; None gives `identity()`.

    The value is kept in the state, as `state.learning_rate`.
    """
    if learning_rate is None:
        return base.identity()
    sign = -1 if flip_sign else 1
    if callable(learning_rate):
        return _scaled_by(learning_rate, ScaleByLearningRateState, sign)
    return _scaled_by(lambda count: learning_rate, ScaleByLearningRateState, sign, constant=True)


class WeightDecaySchedule(NamedTuple):
    """Steps taken, and the decay last used."""

    count: Any
    weight_decay: Any


def add_decayed_weights(weight_decay: Any = 0.0, mask: Any = None) -> base.GradientTransformation:
    """Updates plus `weight_decay` (a number or schedule) times parameters, where `mask` is true."""
    decay_at: base.Schedule | None = weight_decay if callable(weight_decay) else None
    nothing = isinstance(weight_decay, (int, float)) and weight_decay == 0.0

    def init(params: Any) -> Any:
        if decay_at is None:
            return base.EmptyState()
        return WeightDecaySchedule(zero_count(), recorded(decay_at(zero_count())))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, ...]:
        base.require_params(params, "add_decayed_weights")
        if nothing:
            return updates, state
        decay = weight_decay if decay_at is None else decay_at(state.count)
        if decay_at is not None:
            state = WeightDecaySchedule(safe_increment(state.count), recorded(decay))
        return map_updates(lambda u, p: u + times(decay, p), updates, extras=(params,)), state

    tx = base.GradientTransformation(
        init, update, state=None if decay_at is None else WeightDecaySchedule
    )
    return tx if mask is None else masked(tx, mask)


# ---- factors from norms ----


def scale_by_param_block_norm(min_scale: float = 1e-3) -> base.GradientTransformation:
    """Each leaf's update times max(norm of the parameter, min_scale)."""
    return base.per_leaf(
        lambda u, p: u * safe_norm(p, min_scale), params_for="scale_by_param_block_norm"
    )


def scale_by_param_block_rms(min_scale: float = 1e-3) -> base.GradientTransformation:
    """Each leaf's update times max(rms of the parameter, min_scale)."""
    return base.per_leaf(
        lambda u, p: u * safe_root_mean_squares(p, min_scale), params_for="scale_by_param_block_rms"
    )


def scale_by_trust_ratio(
    min_norm: Any = 0.0, trust_coefficient: Any = 1.0, eps: Any = 0.0
) -> base.GradientTransformation:
    """Each leaf's update u times trust_coefficient * |p| / (|u| + eps) (You et al. 2017).

    The factor is 1 where either norm is zero.
    """

    def leaf(u: Any, p: Any) -> Any:
        of_param, of_update = safe_norm(p, min_norm), safe_norm(u, min_norm)
        zero = (of_param == 0.0) | (of_update == 0.0)
        ratio = trust_coefficient * of_param / jnp.where(zero, 1.0, of_update + eps)
        return times(jnp.where(zero, 1.0, ratio), u)

    return base.per_leaf(leaf, params_for="scale_by_trust_ratio")


def normalize_by_update_norm(
    scale_factor: Any = 1.0, eps: Any = 1e-6
) -> base.GradientTransformation:
    """Updates times scale_factor / (global norm + eps)."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, ...]:
        norm = (tree_math.norm(updates) + eps) / scale_factor
        return map_updates(lambda u: u / norm.astype(dtypes.real_of(u.dtype)), updates), state

    return base.GradientTransformation(base.init_empty_state, update)


def normalize() -> base.GradientTransformation:
    """Updates divided by their global norm."""
    return normalize_by_update_norm(eps=0.0)


def scale_by_polyak(
    f_min: Any = 0.0, max_learning_rate: Any = 1.0, eps: Any = 0.0, variant: str = "sps"
) -> base.GradientTransformationExtraArgs:
    """Updates u times Polyak's step (value - f_min) / (|u|**2 + eps), at most max_learning_rate.

    `update` takes the loss as `value=`. Variant "sps+" makes a negative gap zero (Garrigos et al.
    2023).
    """
    if variant not in ("sps", "sps+"):
        raise ArgumentError(f'scale_by_polyak: variant is "sps" or "sps+", got {variant!r}')

    def update(
        updates: Any, state: Any, params: Any = None, *, value: Any, **extra: Any
    ) -> tuple[Any, ...]:
        square = tree_math.norm(updates, squared=True)
        gap = (as_array(value) - f_min).astype(square.dtype)
        gap = jnp.maximum(gap, 0.0) if variant == "sps+" else gap
        tiny = square + eps <= float(dtypes.finfo(dtypes.F32).eps)
        step = jnp.minimum(gap / jnp.where(tiny, 1.0, square + eps), max_learning_rate)
        step = jnp.where(tiny, 0.0, step)
        return map_updates(lambda u: times(step, u), updates), state

    return base.GradientTransformationExtraArgs(base.init_empty_state, update)


# ---- signs, means, limits ----


def scale_by_sign() -> base.GradientTransformation:
    """The sign of every update."""
    return base.per_leaf(lambda u: jnp.sign(u))


def centralize() -> base.GradientTransformation:
    """Updates of two or more dimensions minus their mean over all but the first one
    (Yong et al. 2020)."""

    def leaf(u: Any) -> Any:
        return u - jnp.mean(u, axis=tuple(range(1, u.ndim)), keepdims=True) if u.ndim > 1 else u

    return base.per_leaf(leaf)


def keep_params_nonnegative() -> base.GradientTransformation:
    """Updates limited so that no parameter becomes negative."""
    return base.per_leaf(
        lambda u, p: jnp.where(p + u < 0.0, -p, u), params_for="keep_params_nonnegative"
    )


class ZeroNansState(NamedTuple):
    """Per leaf, whether the latest updates had a NaN."""

    found_nan: Any


def zero_nans() -> base.GradientTransformation:
    """Updates with NaNs replaced by zeros; the state says which leaves had some."""

    def init(params: Any) -> ZeroNansState:
        return ZeroNansState(init_leaves(lambda p: jnp.zeros((), dtypes.BOOL), params))

    def update(updates: Any, state: ZeroNansState, params: Any = None) -> tuple[Any, ...]:
        def leaf(u: Any, _: Any) -> tuple[Any, ...]:
            nan = jnp.isnan(u)
            return jnp.where(nan, 0.0, u), jnp.any(nan)

        # The state is a record of the latest updates, and what it was does not matter.
        updates, found = map_updates(leaf, updates, init(map_updates(widen, updates)).found_nan)
        return updates, ZeroNansState(found)

    return base.GradientTransformation(init, update, state=ZeroNansState, reads_state=False)


# ---- accumulators ----


class TraceState(NamedTuple):
    """The decaying sum of updates."""

    trace: Any


def trace(
    decay: Any, nesterov: bool = False, accumulator_dtype: DTypeLike | None = None
) -> base.GradientTransformation:
    """Momentum: trace = update + decay * trace; with `nesterov`, update + decay * the new trace."""

    def init(params: Any) -> TraceState:
        return TraceState(init_moments(params, dtype=accumulator_dtype))

    def update(updates: Any, state: TraceState, params: Any = None) -> tuple[Any, ...]:
        def leaf(u: Any, t: Any) -> tuple[Any, ...]:
            t = u + decay * t
            return (u + decay * t if nesterov else t), t

        updates, new = map_updates(leaf, updates, state.trace)
        return updates, TraceState(new)

    return base.GradientTransformation(init, update, state=TraceState)


class EmaState(NamedTuple):
    """Steps taken and the exponential moving average of updates."""

    count: Any
    ema: Any


def ema(
    decay: Any, debias: bool = True, accumulator_dtype: DTypeLike | None = None
) -> base.GradientTransformation:
    """The exponential moving average of updates, divided by 1 - decay**step with `debias`."""

    def init(params: Any) -> EmaState:
        return EmaState(zero_count(), init_moments(params, dtype=accumulator_dtype))

    def update(updates: Any, state: EmaState, params: Any = None) -> tuple[Any, ...]:
        count = safe_increment(state.count)
        correction = one_minus_power(decay, count)

        def leaf(u: Any, m: Any) -> tuple[Any, ...]:
            m = moment(u, m, decay)
            return (m / correction(m.dtype) if debias else m), m

        updates, new = map_updates(leaf, updates, state.ema)
        return updates, EmaState(count, new)

    return base.GradientTransformation(init, update, state=EmaState)


class ApplyEvery(NamedTuple):
    """Steps since the last emission and the sum of updates since."""

    count: Any
    grad_acc: Any


def apply_every(k: int = 1) -> base.GradientTransformation:
    """The sum of the last k updates at every k-th step, zeros between."""

    def init(params: Any) -> ApplyEvery:
        return ApplyEvery(zero_count(), init_moments(params))

    def update(updates: Any, state: ApplyEvery, params: Any = None) -> tuple[Any, ...]:
        position = state.count % k

        def leaf(u: Any, total: Any) -> tuple[Any, ...]:
            total = u + jnp.where(position != 0, total, 0.0)
            return jnp.where(position == k - 1, total, 0.0), total

        updates, total = map_updates(leaf, updates, state.grad_acc)
        return updates, ApplyEvery(safe_increment(state.count) % k, total)

    return base.GradientTransformation(init, update, state=ApplyEvery)


# ---- recording ----


class SnapshotState(NamedTuple):
    """The latest measurement, by name."""

    measurement: dict[str, Any]


def snapshot(measure_name: str, measure: Callable[[Any], Any]) -> base.GradientTransformation:
    """Updates as they are; `measure(updates)` is kept in the state, where `describe` finds it."""

    def init(params: Any) -> SnapshotState:
        zeros = tree.map(lambda x: jnp.zeros_like(as_array(x)), measure(params))
        return SnapshotState({measure_name: zeros})

    def update(updates: Any, state: SnapshotState, params: Any = None) -> tuple[Any, ...]:
        return updates, SnapshotState({measure_name: measure(updates)})

    return base.GradientTransformation(init, update, state=SnapshotState, reads_state=False)


class MonitorState(NamedTuple):
    """The latest measurements, by name, and the states of those that have one."""

    measurements: dict[str, Any]
    measure_states: tuple[Any, ...]


def monitor(measures: dict[str, Any]) -> base.GradientTransformationExtraArgs:
    """Updates as they are; each measure, a function of updates or a transformation, is recorded.

    Before the first update a measurement is that of the parameters, so that the state's structure
    never changes.
    """
    txs = {
        name: base.with_extra_args_support(
            base.stateless(lambda u, _, m=m: m(u)) if callable(m) else m
        )
        for name, m in measures.items()
    }

    def init(params: Any) -> MonitorState:
        states = {name: tx.init(params) for name, tx in txs.items()}
        first = {name: tx.update(params, states[name], params)[0] for name, tx in txs.items()}
        return MonitorState(first, tuple(states.values()))

    def update(
        updates: Any, state: MonitorState, params: Any = None, **extra: Any
    ) -> tuple[Any, ...]:
        measured, states = {}, []
        for (name, tx), s in zip(txs.items(), state.measure_states, strict=True):
            measured[name], s = tx.update(updates, s, params, **extra)
            states.append(s)
        return updates, MonitorState(measured, tuple(states))

    return base.GradientTransformationExtraArgs(init, update, state=MonitorState)


def measure_with_ema(
    measure: Callable[[Any], Any],
    decay: Any,
    debias: bool = True,
    accumulator_dtype: DTypeLike | None = None,
) -> base.GradientTransformation:
    """A measure for `monitor`: the moving average of `measure(updates)`."""
    average = ema(decay, debias, accumulator_dtype)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, ...]:
        return average.update(measure(updates), state)

    return base.GradientTransformation(
        lambda params: average.init(measure(params)), update, state=EmaState
    )
