"""Transformations that scale, decay, accumulate and record updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, DTypeLike, PyTree, dtypes, tree
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import as_array, real_of
from genesis_fn.optim import base
from genesis_fn.optim.annotations import (
    Mask,
    Number,
    OptState,
    Params,
    ScalarOrSchedule,
    Schedule,
    Updates,
)
from genesis_fn.optim.numerics import (
    one_minus_power,
    safe_increment,
    safe_norm,
    safe_root_mean_squares,
)
from genesis_fn.optim.state import tree_math
from genesis_fn.optim.transforms.masking import masked
from genesis_fn.optim.tree_map_updates import (
    BOOL,
    F32,
    init_leaves,
    init_moments,
    map_updates,
    widen,
    zero_count,
)


def moment(g: Array, m: Array, decay: Number) -> Array:
    """Returns decay * m + (1 - decay) * g: one step of an exponential moving average."""
    return (1 - decay) * g + decay * m


def times(factor: Number, u: Array) -> Array:
    """Returns factor * u in the dtype of u; `factor` is a number or a scalar array."""
    if hasattr(factor, "dtype"):
        factor = as_array(factor).astype(real_of(u.dtype))
    return factor * u


def recorded(value: ArrayLike) -> Array:
    """Converts a hyperparameter's value to a float32 scalar, for the state."""
    return as_array(value).astype(F32)


# ---- learning rates and other factors ----


def scale(step_size: Number) -> base.GradientTransformation:
    """Multiplies updates by `step_size`, a number or a scalar array."""
    return base.per_leaf(lambda u: times(step_size, u))


class ScaleByScheduleState(NamedTuple):
    """Steps taken, and the latest factor."""

    count: Any
    step_size: Array


class ScaleByLearningRateState(NamedTuple):
    """Steps taken, and the latest learning rate (before the first step, that of the first step)."""

    count: Any
    learning_rate: Array


def _scaled_by(
    value_at: Schedule, make: type, sign: int, *, constant: bool = False
) -> base.GradientTransformation:
    def init(params: Params) -> OptState:
        count = zero_count()
        return make(count, recorded(value_at(count)))

    def update(
        updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        if constant:
            # No state is read but the count: an empty one will do, as where optax has none.
            state = init(None) if base.is_empty(state) else state
            base.check_state(state, make, "scale_by_learning_rate")
        value = value_at(state.count)
        # The factor is one scalar, so that leaves see a single multiplication.
        factor = value if sign == 1 else -value
        new = map_updates(lambda u: times(factor, u), updates)
        return new, make(safe_increment(state.count), recorded(value))

    return base.GradientTransformation(init, update, state=make, reads_state=not constant)


def scale_by_schedule(step_size_fn: Schedule) -> base.GradientTransformation:
    """Multiplies updates by `step_size_fn(step)`, which the state keeps; steps count from 0.

    Args:
        step_size_fn: schedule, or any function of an int32 scalar.
    """
    return _scaled_by(step_size_fn, ScaleByScheduleState, 1)


def scale_by_learning_rate(
    learning_rate: ScalarOrSchedule | None = None, *, flip_sign: bool = True
) -> base.GradientTransformation:
    """Multiplies updates by minus the learning rate, which is kept as `state.learning_rate`.

    Args:
        learning_rate: number, or a schedule of the step; None gives `identity()`.
        flip_sign: whether the sign is turned, for descent.
    """
    if learning_rate is None:
        return base.identity()
    sign = -1 if flip_sign else 1
    if callable(learning_rate):
        return _scaled_by(learning_rate, ScaleByLearningRateState, sign)
    return _scaled_by(lambda count: learning_rate, ScaleByLearningRateState, sign, constant=True)


class WeightDecaySchedule(NamedTuple):
    """Steps taken, and the latest weight decay."""

    count: Any
    weight_decay: Array


def add_decayed_weights(
    weight_decay: ScalarOrSchedule = 0.0, mask: Mask | None = None
) -> base.GradientTransformation:
    """Adds weight decay to updates: u + weight_decay p. `update` needs the parameters.

    Args:
        weight_decay: number >= 0, or a schedule of the step.
        mask: which parameters decay: a tree of bools, or a function that gives it, of the
            parameters or of (path, leaf); None: all.
    """
    constant: Any = weight_decay
    decay_at: Schedule | None = weight_decay if callable(weight_decay) else None
    nothing = isinstance(weight_decay, (int, float)) and weight_decay == 0.0

    def init(params: Params) -> OptState:
        if decay_at is None:
            return base.EmptyState()
        return WeightDecaySchedule(zero_count(), recorded(decay_at(zero_count())))

    def update(
        updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        base.require_params(params, "add_decayed_weights")
        if nothing:
            return updates, state
        decay = constant if decay_at is None else decay_at(state.count)
        if decay_at is not None:
            state = WeightDecaySchedule(safe_increment(state.count), recorded(decay))
        return map_updates(lambda u, p: u + times(decay, p), updates, extras=(params,)), state

    tx = base.GradientTransformation(
        init, update, state=None if decay_at is None else WeightDecaySchedule
    )
    return tx if mask is None else masked(tx, mask)


# ---- factors from norms ----


def scale_by_param_block_norm(min_scale: float = 1e-3) -> base.GradientTransformation:
    """Multiplies each array's update by max(|p|, min_scale). `update` needs the parameters.

    Args:
        min_scale: least factor, positive.
    """
    return base.per_leaf(
        lambda u, p: u * safe_norm(p, min_scale), params_for="scale_by_param_block_norm"
    )


def scale_by_param_block_rms(min_scale: float = 1e-3) -> base.GradientTransformation:
    """Multiplies each array's update by max(rms(p), min_scale). `update` needs the parameters.

    Args:
        min_scale: least factor, positive.
    """
    return base.per_leaf(
        lambda u, p: u * safe_root_mean_squares(p, min_scale), params_for="scale_by_param_block_rms"
    )


def scale_by_trust_ratio(
    min_norm: Number = 0.0, trust_coefficient: Number = 1.0, eps: Number = 0.0
) -> base.GradientTransformation:
    """Multiplies each array's update u by trust_coefficient |p| / (|u| + eps).

    The factor is 1 where either norm is zero. `update` needs the parameters.

    Source: You et al., "Large batch training of convolutional networks", 2017.

    Args:
        min_norm: least value that both norms are taken to have, >= 0.
        trust_coefficient: positive factor.
        eps: number >= 0 added to the norm of the update.
    """

    def leaf(u: Array, p: Array) -> Array:
        of_param, of_update = safe_norm(p, min_norm), safe_norm(u, min_norm)
        zero = (of_param == 0.0) | (of_update == 0.0)
        ratio = trust_coefficient * of_param / jnp.where(zero, 1.0, of_update + eps)
        return times(jnp.where(zero, 1.0, ratio), u)

    return base.per_leaf(leaf, params_for="scale_by_trust_ratio")


def normalize_by_update_norm(
    scale_factor: Number = 1.0, eps: Number = 1e-6
) -> base.GradientTransformation:
    """Multiplies updates by scale_factor / (norm of all of them + eps).

    Args:
        scale_factor: the norm of the result, positive.
        eps: number >= 0 added to the norm.
    """

    def update(
        updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        norm = (tree_math.norm(updates) + eps) / scale_factor
        return map_updates(lambda u: u / norm.astype(real_of(u.dtype)), updates), state

    return base.GradientTransformation(base.init_empty_state, update)


def normalize() -> base.GradientTransformation:
    """Divides updates by the norm of all of them."""
    return normalize_by_update_norm(eps=0.0)


def scale_by_polyak(
    f_min: Number = 0.0, max_learning_rate: Number = 1.0, eps: Number = 0.0, variant: str = "sps"
) -> base.GradientTransformationExtraArgs:
    """Multiplies updates u by Polyak's step size: `update` takes the loss as `value=`.

        u min((value - f_min) / (|u|**2 + eps), max_learning_rate)

    Source: Loizou et al., "Stochastic Polyak step-size for SGD", 2021; "sps+": Garrigos et al.,
    "Function value learning", 2023.

    Args:
        f_min: least value of the loss.
        max_learning_rate: largest step size, positive.
        eps: number >= 0 added to the squared norm.
        variant: "sps", or "sps+", where a loss below `f_min` gives no step.

    Raises:
        ArgumentError: `variant` is neither.
    """
    if variant not in ("sps", "sps+"):
        raise ArgumentError(f'scale_by_polyak: variant is "sps" or "sps+", got {variant!r}')

    def update(
        updates: Updates,
        state: OptState,
        params: Params | None = None,
        *,
        value: ArrayLike,
        **extra: Any,
    ) -> tuple[Updates, OptState]:
        square = tree_math.norm(updates, squared=True)
        gap = (as_array(value) - f_min).astype(square.dtype)
        gap = jnp.maximum(gap, 0.0) if variant == "sps+" else gap
        tiny = square + eps <= float(dtypes.finfo(F32).eps)
        step = jnp.minimum(gap / jnp.where(tiny, 1.0, square + eps), max_learning_rate)
        step = jnp.where(tiny, 0.0, step)
        return map_updates(lambda u: times(step, u), updates), state

    return base.GradientTransformationExtraArgs(base.init_empty_state, update)


# ---- signs, means, limits ----


def scale_by_sign() -> base.GradientTransformation:
    """Replaces every update by its sign."""
    return base.per_leaf(lambda u: jnp.sign(u))


def centralize() -> base.GradientTransformation:
    """Subtracts from updates of two or more dimensions their mean over all but the first.

    Source: Yong et al., "Gradient centralization", 2020.
    """

    def leaf(u: Array) -> Array:
        return u - jnp.mean(u, axis=tuple(range(1, u.ndim)), keepdims=True) if u.ndim > 1 else u

    return base.per_leaf(leaf)


def keep_params_nonnegative() -> base.GradientTransformation:
    """Limits updates so that no parameter becomes negative: -p where p + u < 0, else u."""
    return base.per_leaf(
        lambda u, p: jnp.where(p + u < 0.0, -p, u), params_for="keep_params_nonnegative"
    )


class ZeroNansState(NamedTuple):
    """Per leaf, whether the latest updates had a NaN."""

    found_nan: PyTree


def zero_nans() -> base.GradientTransformation:
    """Replaces NaNs in updates by zeros; the state says which leaves had some."""

    def init(params: Params) -> ZeroNansState:
        return ZeroNansState(init_leaves(lambda p: jnp.zeros((), BOOL), params))

    def update(
        updates: Updates, state: ZeroNansState, params: Params | None = None
    ) -> tuple[Updates, ZeroNansState]:
        def leaf(u: Array, _: Array) -> tuple[Array, ...]:
            nan = jnp.isnan(u)
            return jnp.where(nan, 0.0, u), jnp.any(nan)

        # The state only records the latest updates: its old value is not read.
        updates, found = map_updates(leaf, updates, init(map_updates(widen, updates)).found_nan)
        return updates, ZeroNansState(found)

    return base.GradientTransformation(init, update, state=ZeroNansState, reads_state=False)


# ---- accumulators ----


class TraceState(NamedTuple):
    """The decaying sum of updates."""

    trace: PyTree


def trace(
    decay: Number, nesterov: bool = False, accumulator_dtype: DTypeLike | None = None
) -> base.GradientTransformation:
    """Accumulates momentum: t <- u + decay t, which is the update.

    Args:
        decay: decay rate of the sum, in [0, 1).
        nesterov: whether the update is u + decay t, with the new t.
        accumulator_dtype: dtype of t; None: the parameters', and at least float32.
    """

    def init(params: Params) -> TraceState:
        return TraceState(init_moments(params, dtype=accumulator_dtype))

    def update(
        updates: Updates, state: TraceState, params: Params | None = None
    ) -> tuple[Updates, TraceState]:
        def leaf(u: Array, t: Array) -> tuple[Array, ...]:
            t = u + decay * t
            return (u + decay * t if nesterov else t), t

        updates, new = map_updates(leaf, updates, state.trace)
        return updates, TraceState(new)

    return base.GradientTransformation(init, update, state=TraceState)


class EmaState(NamedTuple):
    """Steps taken and the exponential moving average of updates."""

    count: Any
    ema: PyTree


def ema(
    decay: Number, debias: bool = True, accumulator_dtype: DTypeLike | None = None
) -> base.GradientTransformation:
    """Replaces updates by their exponential moving average: m <- decay m + (1 - decay) u.

    Args:
        decay: decay rate, in [0, 1).
        debias: whether m is divided by 1 - decay**t at step t = 1, 2, ...
        accumulator_dtype: dtype of m; None: the parameters', and at least float32.
    """

    def init(params: Params) -> EmaState:
        return EmaState(zero_count(), init_moments(params, dtype=accumulator_dtype))

    def update(
        updates: Updates, state: EmaState, params: Params | None = None
    ) -> tuple[Updates, EmaState]:
        count = safe_increment(state.count)
        correction = one_minus_power(decay, count)

        def leaf(u: Array, m: Array) -> tuple[Array, ...]:
            m = moment(u, m, decay)
            return (m / correction(m.dtype) if debias else m), m

        updates, new = map_updates(leaf, updates, state.ema)
        return updates, EmaState(count, new)

    return base.GradientTransformation(init, update, state=EmaState)


class ApplyEvery(NamedTuple):
    """Steps since the latest nonzero update and the sum of updates since."""

    count: Any
    grad_acc: PyTree


def apply_every(k: int = 1) -> base.GradientTransformation:
    """Returns the sum of the last k updates at every k-th step, zeros between; see `MultiSteps`.

    Args:
        k: positive number of steps.

    Raises:
        ArgumentError: `k` is not positive.
    """
    base.require_positive("apply_every", k=k)

    def init(params: Params) -> ApplyEvery:
        return ApplyEvery(zero_count(), init_moments(params))

    def update(
        updates: Updates, state: ApplyEvery, params: Params | None = None
    ) -> tuple[Updates, ApplyEvery]:
        position = state.count % k

        def leaf(u: Array, total: Array) -> tuple[Array, ...]:
            total = u + jnp.where(position != 0, total, 0.0)
            return jnp.where(position == k - 1, total, 0.0), total

        updates, total = map_updates(leaf, updates, state.grad_acc)
        return updates, ApplyEvery(safe_increment(state.count) % k, total)

    return base.GradientTransformation(init, update, state=ApplyEvery)


# ---- recording ----


class SnapshotState(NamedTuple):
    """The latest measurement, by name."""

    measurement: dict[str, Any]


def snapshot(
    measure_name: str, measure: Callable[[Updates], PyTree]
) -> base.GradientTransformation:
    """Records `measure(updates)` in the state, where `optim.describe` finds it; updates pass.

    Args:
        measure_name: its name in the state.
        measure: function of the updates that gives a tree of arrays of constant shapes.
    """

    def init(params: Params) -> SnapshotState:
        zeros = tree.map(lambda x: jnp.zeros_like(as_array(x)), measure(params))
        return SnapshotState({measure_name: zeros})

    def update(
        updates: Updates, state: SnapshotState, params: Params | None = None
    ) -> tuple[Updates, SnapshotState]:
        return updates, SnapshotState({measure_name: measure(updates)})

    return base.GradientTransformation(init, update, state=SnapshotState, reads_state=False)


class MonitorState(NamedTuple):
    """The latest measurements, by name, and the states of those that have one."""

    measurements: dict[str, Any]
    measure_states: tuple[Any, ...]


def monitor(
    measures: dict[str, Callable[[Updates], PyTree] | base.GradientTransformation],
) -> base.GradientTransformationExtraArgs:
    """Records several measurements in the state, where `optim.describe` finds them; updates pass.

    Before the first update a measurement is that of the parameters, so that the state's structure
    never changes.

    Args:
        measures: by name, functions of the updates, or transformations such as `measure_with_ema`.
    """
    txs = {
        name: base.with_extra_args_support(
            base.stateless(lambda u, _, m=m: m(u)) if callable(m) else m
        )
        for name, m in measures.items()
    }

    def init(params: Params) -> MonitorState:
        states = {name: tx.init(params) for name, tx in txs.items()}
        first = {name: tx.update(params, states[name], params)[0] for name, tx in txs.items()}
        return MonitorState(first, tuple(states.values()))

    def update(
        updates: Updates, state: MonitorState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, MonitorState]:
        measured, states = {}, []
        for (name, tx), s in zip(txs.items(), state.measure_states, strict=True):
            measured[name], s = tx.update(updates, s, params, **extra)
            states.append(s)
        return updates, MonitorState(measured, tuple(states))

    return base.GradientTransformationExtraArgs(init, update, state=MonitorState)


def measure_with_ema(
    measure: Callable[[Updates], PyTree],
    decay: Number,
    debias: bool = True,
    accumulator_dtype: DTypeLike | None = None,
) -> base.GradientTransformation:
    """Makes a measure for `monitor`: the moving average of `measure(updates)`.

    Args:
        measure: function of the updates that gives a tree of arrays.
        decay, debias, accumulator_dtype: as of `ema`.
    """
    average = ema(decay, debias, accumulator_dtype)

    def update(
        updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        return average.update(measure(updates), state)

    return base.GradientTransformation(
        lambda params: average.init(measure(params)), update, state=EmaState
    )
