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

# The states of transformations that keep nothing, by their names in optax.
AddDecayedWeightsState = base.EmptyState
NonNegativeParamsState = base.EmptyState
ScaleByTrustRatioState = base.EmptyState
ScaleState = base.EmptyState


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
    """Multiplies updates by a number.

        update = step_size u

    Args:
        step_size: number or scalar array.

    Returns:
        The transformation, without a state.

    >>> tx, g = optim.scale(0.1), jnp.array([0.5, -3.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates.round(4)
    Array([ 0.05, -0.3 ], dtype=float32)
    """
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
    """Multiplies updates by a schedule's value, which the state keeps.

        update = step_size_fn(step) u,  step = 0, 1, ...

    Args:
        step_size_fn: schedule, or any function of an int32 scalar.

    Returns:
        The transformation, whose states are ScaleByScheduleState(count, step_size).

    >>> tx, g = optim.scale_by_schedule(lambda step: 0.5**step), jnp.array([4.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates, state = tx.update(g, state)
    >>> updates, state.step_size
    (Array([2.], dtype=float32), Array(0.5, dtype=float32))
    """
    return _scaled_by(step_size_fn, ScaleByScheduleState, 1)


def scale_by_learning_rate(
    learning_rate: ScalarOrSchedule | None = None, *, flip_sign: bool = True
) -> base.GradientTransformation:
    """Multiplies updates by minus the learning rate, which the state keeps.

        update = -learning_rate u

    Args:
        learning_rate: number, or a schedule of the step; None gives `identity()`.
        flip_sign: whether the sign is turned, for descent.

    Returns:
        The transformation, whose states are ScaleByLearningRateState(count, learning_rate).

    >>> tx, g = optim.scale_by_learning_rate(0.1), jnp.array([0.5, -3.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates.round(4), state.learning_rate
    (Array([-0.05,  0.3 ], dtype=float32), Array(0.1, dtype=float32))
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
    """Adds weight decay to updates. `update` needs the parameters.

        update = u + weight_decay p

    Source: Loshchilov & Hutter, "Decoupled weight decay regularization", 2017.

    Args:
        weight_decay: number >= 0, or a schedule of the step.
        mask: which parameters decay: a tree of bools, or a function that gives it, of the
            parameters or of (path, leaf); None: all.

    Returns:
        The transformation, without a state; of a schedule the states are
        WeightDecaySchedule(count, weight_decay). With a mask they are MaskedState(inner_state).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.add_decayed_weights(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 0.6, -3.2], dtype=float32)
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
    """Multiplies each array's update by the norm of its parameter. `update` needs the parameters.

        update = u max(|p|, min_scale)

    Args:
        min_scale: least factor, positive.

    Returns:
        The transformation, without a state.

    >>> w, g = jnp.array([3.0, -4.0]), jnp.array([0.5, -1.0])
    >>> tx = optim.scale_by_param_block_norm()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 2.5, -5. ], dtype=float32)
    """
    return base.per_leaf(
        lambda u, p: u * safe_norm(p, min_scale), params_for="scale_by_param_block_norm"
    )


def scale_by_param_block_rms(min_scale: float = 1e-3) -> base.GradientTransformation:
    """Multiplies each array's update by the root mean square of its parameter.

        update = u max(sqrt(mean(|p|**2)), min_scale)

    Source: Shazeer & Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018.
    `update` needs the parameters.

    Args:
        min_scale: least factor, positive.

    Returns:
        The transformation, without a state.

    >>> w, g = jnp.array([1.0, -7.0]), jnp.array([0.5, -1.0])
    >>> tx = optim.scale_by_param_block_rms()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 2.5, -5. ], dtype=float32)
    """
    return base.per_leaf(
        lambda u, p: u * safe_root_mean_squares(p, min_scale), params_for="scale_by_param_block_rms"
    )


def scale_by_trust_ratio(
    min_norm: Number = 0.0, trust_coefficient: Number = 1.0, eps: Number = 0.0
) -> base.GradientTransformation:
    """Makes each array's step proportional to the norm of its parameter.

        update = u trust_coefficient |p| / (|u| + eps), and u where a norm is 0

    Source: You et al., "Large batch training of convolutional networks", 2017. `update` needs the
    parameters.

    Args:
        min_norm: least value that both norms are taken to have, >= 0.
        trust_coefficient: positive factor.
        eps: number >= 0 added to the norm of the update.

    Returns:
        The transformation, without a state.

    >>> w, g = jnp.array([3.0, -4.0]), jnp.array([0.6, -0.8])
    >>> tx = optim.scale_by_trust_ratio()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 3., -4.], dtype=float32)
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
    """Divides updates by the norm of all of them.

        update = scale_factor u / (|u| + eps),  |u| the norm of the whole tree

    Source: Hazan et al., "Beyond convexity: stochastic quasi-convex optimization", 2015.

    Args:
        scale_factor: positive number: the norm of the result, but for `eps`.
        eps: number >= 0 added to the norm; with 0 the update of zero gradients is NaN.

    Returns:
        The transformation, without a state.

    >>> tx, g = optim.normalize_by_update_norm(10.0), jnp.array([0.3, -0.4])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates.round(4)
    Array([ 6., -8.], dtype=float32)
    """

    def update(
        updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        norm = (tree_math.norm(updates) + eps) / scale_factor
        return map_updates(lambda u: u / norm.astype(real_of(u.dtype)), updates), state

    return base.GradientTransformation(base.init_empty_state, update)


def normalize() -> base.GradientTransformation:
    """Divides updates by the norm of all of them.

        update = u / |u|,  |u| the norm of the whole tree; NaN where it is 0

    Source: Hazan et al., "Beyond convexity: stochastic quasi-convex optimization", 2015.

    Returns:
        The transformation, without a state.

    >>> tx, g = optim.normalize(), jnp.array([3.0, -4.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates.round(4)
    Array([ 0.6, -0.8], dtype=float32)
    """
    return normalize_by_update_norm(eps=0.0)


def scale_by_polyak(
    f_min: Number = 0.0, max_learning_rate: Number = 1.0, eps: Number = 0.0, variant: str = "sps"
) -> base.GradientTransformationExtraArgs:
    """Multiplies updates by Polyak's step size: `update` takes the loss as `value=`.

        update = u min((value - f_min) / (|u|**2 + eps), max_learning_rate),
        0 where |u|**2 + eps <= 2**-23;  "sps+": max(value - f_min, 0) for value - f_min

    Source: Loizou et al., "Stochastic Polyak step-size for SGD", 2021; "sps+": Garrigos et al.,
    "Function value learning", 2023.

    Args:
        f_min: least value of the loss.
        max_learning_rate: largest step size, positive.
        eps: number >= 0 added to the squared norm.
        variant: "sps", or "sps+", where a loss below `f_min` gives no step.

    Returns:
        The transformation, without a state.

    Raises:
        ArgumentError: `variant` is neither.

    >>> tx, g = optim.scale_by_polyak(), jnp.array([3.0, -4.0])
    >>> updates, state = tx.update(g, tx.init(g), value=5.0)
    >>> updates.round(4)
    Array([ 0.6, -0.8], dtype=float32)
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
    """Replaces every element of an update by its sign.

        update = sign(u)

    Source: Bernstein et al., "signSGD: compressed optimisation for non-convex problems", 2018.

    Returns:
        The transformation, without a state.

    >>> tx, g = optim.scale_by_sign(), jnp.array([0.5, 0.0, -3.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates
    Array([ 1.,  0., -1.], dtype=float32)
    """
    return base.per_leaf(lambda u: jnp.sign(u))


def centralize() -> base.GradientTransformation:
    """Subtracts from updates of two or more dimensions their mean over all but the first.

        update = u - mean(u over the dimensions 1, 2, ...); scalars and vectors pass

    Source: Yong et al., "Gradient centralization", 2020.

    Returns:
        The transformation, without a state.

    >>> tx, g = optim.centralize(), jnp.array([[1.0, 3.0], [0.0, 8.0]])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates
    Array([[-1.,  1.],
           [-4.,  4.]], dtype=float32)
    """

    def leaf(u: Array) -> Array:
        return u - jnp.mean(u, axis=tuple(range(1, u.ndim)), keepdims=True) if u.ndim > 1 else u

    return base.per_leaf(leaf)


def keep_params_nonnegative() -> base.GradientTransformation:
    """Limits updates so that no parameter becomes negative. `update` needs the parameters.

        update = -p where p + u < 0, else u

    Returns:
        The transformation, without a state.

    >>> w, tx = jnp.array([1.0, 1.0]), optim.keep_params_nonnegative()
    >>> updates, state = tx.update(jnp.array([-3.0, -0.5]), tx.init(w), w)
    >>> updates
    Array([-1. , -0.5], dtype=float32)
    """
    return base.per_leaf(
        lambda u, p: jnp.where(p + u < 0.0, -p, u), params_for="keep_params_nonnegative"
    )


class ZeroNansState(NamedTuple):
    """Per leaf, whether the latest updates had a NaN."""

    found_nan: PyTree


def zero_nans() -> base.GradientTransformation:
    """Replaces NaNs in updates by zeros; the state says which leaves had some.

        update = 0 where u is NaN, else u

    Returns:
        The transformation, whose states are ZeroNansState(found_nan).

    >>> tx, g = optim.zero_nans(), jnp.array([jnp.nan, 2.0])
    >>> tx.update(g, tx.init(g))
    (Array([0., 2.], dtype=float32), ZeroNansState(found_nan=Array(True, dtype=bool)))
    """

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
    """Accumulates momentum.

        t <- u + decay t,  update = t, or with `nesterov` u + decay t

    Source: Polyak, "Some methods of speeding up the convergence of iteration methods", 1964;
    `nesterov` as in Sutskever et al., "On the importance of initialization and momentum", 2013.

    Args:
        decay: decay rate of the sum, in [0, 1).
        nesterov: whether the update is taken one step ahead, with the new t.
        accumulator_dtype: dtype of t; None: the parameters', and at least float32.

    Returns:
        The transformation, whose states are TraceState(trace); trace is t.

    >>> tx, g = optim.trace(0.5), jnp.array([1.0, -2.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates, state = tx.update(g, state)
    >>> updates
    Array([ 1.5, -3. ], dtype=float32)
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
    """Replaces updates by their exponential moving average.

        m <- decay m + (1 - decay) u,
        update = m, or with `debias` m / (1 - decay**t) at step t = 1, 2, ...

    Source of `debias`: Kingma & Ba, "Adam: a method for stochastic optimization", 2014.

    Args:
        decay: decay rate, in [0, 1).
        debias: whether m is divided by the sum of its weights.
        accumulator_dtype: dtype of m; None: the parameters', and at least float32.

    Returns:
        The transformation, whose states are EmaState(count, ema); ema is m.

    >>> tx, g = optim.ema(0.9), jnp.array([1.0, -2.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates.round(4), state.ema.round(4)
    (Array([ 1., -2.], dtype=float32), Array([ 0.1, -0.2], dtype=float32))
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
    """Gives the sum of k updates at every k-th step; see `MultiSteps`, which has means.

        update = sum of the last k u at step t = k, 2 k, ..., else 0

    Args:
        k: positive number of steps.

    Returns:
        The transformation, whose states are ApplyEvery(count, grad_acc).

    Raises:
        ArgumentError: `k` is not positive.

    >>> tx, g = optim.apply_every(2), jnp.array([1.0, -2.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates, tx.update(3 * g, state)[0]
    (Array([0., 0.], dtype=float32), Array([ 4., -8.], dtype=float32))
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

    Before the first update the measurement is zero.

    Args:
        measure_name: its name in the state.
        measure: function of the updates that gives a tree of arrays of constant shapes.

    Returns:
        The transformation, whose states are SnapshotState(measurement), a dict with that name.

    >>> tx, g = optim.snapshot("largest", lambda u: abs(u).max()), jnp.array([0.5, -3.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> state.measurement
    {'largest': Array(3., dtype=float32)}
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

    Returns:
        The transformation, whose states are MonitorState(measurements, measure_states).

    >>> tx, g = optim.monitor({"norm": optim.global_norm}), jnp.array([3.0, -4.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> state.measurements
    {'norm': Array(5., dtype=float32)}
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

        m <- decay m + (1 - decay) measure(u),
        measurement = m, or with `debias` m / (1 - decay**t) at step t = 1, 2, ...

    Args:
        measure: function of the updates that gives a tree of arrays.
        decay: decay rate, in [0, 1).
        debias: whether m is divided by the sum of its weights.
        accumulator_dtype: dtype of m; None: the measurements', and at least float32.

    Returns:
        The transformation from updates to the average, whose states are EmaState(count, ema).

    >>> norm, g = optim.measure_with_ema(optim.global_norm, 0.5), jnp.array([3.0, -4.0])
    >>> tx = optim.monitor({"norm": norm})
    >>> updates, state = tx.update(g, tx.init(g))
    >>> tx.update(3 * g, state)[1].measurements["norm"].round(4)
    Array(11.6667, dtype=float32)
    """
    average = ema(decay, debias, accumulator_dtype)

    def update(
        updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        return average.update(measure(updates), state)

    return base.GradientTransformation(
        lambda params: average.init(measure(params)), update, state=EmaState
    )
