"""Transformations around others: accumulation, guards, float32 masters, hyperparameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, DTypeLike, PyTree, dtypes, tree
from genesis_fn.errors import ArgumentError, ShapeError
from genesis_fn.extend import as_array
from genesis_fn.optim import base
from genesis_fn.optim.annotations import (
    ConditionFn,
    Number,
    OptState,
    Params,
    ShouldSkipUpdateFunction,
    Updates,
)
from genesis_fn.optim.numerics import safe_increment
from genesis_fn.optim.state import tree_math
from genesis_fn.optim.state.state_access import ParamsPlaceholder
from genesis_fn.optim.tree_map_updates import (
    BOOL,
    F32,
    I32,
    as_gradient,
    init_leaves,
    init_moments,
    is_none,
    map_updates,
    select,
    wide_dtype,
    zero_count,
)


def _zeros(updates: Updates) -> Updates:
    """Returns zero updates; None where a leaf is frozen."""
    return map_updates(jnp.zeros_like, updates)


# ---- accumulation of gradients ----


def _all_finite(updates: Updates) -> Array:
    finite = [jnp.all(jnp.isfinite(as_array(u))) for u in tree.leaves(updates)]
    return functools.reduce(jnp.logical_and, finite, jnp.ones((), BOOL))


def skip_not_finite(updates: Updates, gradient_step: Array, params: Params) -> tuple[Array, PyTree]:
    """Decides for `MultiSteps` to skip gradients of which some element is not finite.

        skip = (number of elements that are NaN or infinite) > 0

    Args:
        updates: tree of gradients.
        gradient_step: not read: `MultiSteps` passes it.
        params: not read: `MultiSteps` passes them.

    Returns:
        (whether to skip, {"should_skip": ..., "num_not_finite": ...} for the state).

    >>> skip, record = optim.skip_not_finite(jnp.array([1.0, jnp.nan]), jnp.array(0), None)
    >>> bool(skip), int(record["num_not_finite"])
    (True, 1)
    """
    bad = [jnp.sum(~jnp.isfinite(as_array(u))) for u in tree.leaves(updates)]
    count = functools.reduce(jnp.add, bad) if bad else zero_count()
    skip = count > 0
    return skip, {"should_skip": skip, "num_not_finite": count}


def skip_large_updates(
    updates: Updates, gradient_step: Array, params: Params, max_squared_norm: Number
) -> tuple[Array, PyTree]:
    """Decides for `MultiSteps` to skip gradients of a large norm.

        skip = not (|g|**2 < max_squared_norm),  |g| the norm of the whole tree; NaN is skipped

    Args:
        updates: tree of gradients.
        gradient_step: not read: `MultiSteps` passes it.
        params: not read: `MultiSteps` passes them.
        max_squared_norm: least squared norm that is skipped, positive; `MultiSteps` takes this
            function with it, as `functools.partial` gives it.

    Returns:
        (whether to skip, {"should_skip": ..., "norm_squared": ...} for the state).

    >>> skip, record = optim.skip_large_updates(jnp.array([3.0, 4.0]), jnp.array(0), None, 16.0)
    >>> bool(skip), float(record["norm_squared"])
    (True, 25.0)
    """
    square = tree_math.norm(updates, squared=True)
    skip = ~(square < max_squared_norm)
    return skip, {"should_skip": skip, "norm_squared": square}


class MultiStepsState(NamedTuple):
    """Calls since the latest step, steps, inner state, accumulated gradients, record of skips."""

    mini_step: Array
    gradient_step: Array
    inner_opt_state: OptState
    acc_grads: PyTree
    skip_state: PyTree = ()


class MultiSteps:
    """Accumulates the gradients of k calls for one step of `opt`; updates between are zero.

        update = that of `opt` for (g_1 + ... + g_k) / k at every k-th call, else 0

    The accumulator is float32 or wider.

    Args:
        opt: transformation that makes the steps.
        every_k_schedule: k, a positive integer or a function of the number of steps made.
        use_grad_mean: whether gradients are averaged, or summed.
        should_skip_update_fn: function (updates, step, params) -> (whether to ignore these
            gradients, tree to keep in the state), as `skip_not_finite`; None ignores none.
        accumulator_dtype: dtype of the accumulated gradients; None: the parameters', and at least
            float32.

    Raises:
        ArgumentError: `every_k_schedule` is neither a positive integer nor a function.

    >>> tx, g = optim.MultiSteps(optim.sgd(0.1), 2), jnp.array([1.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates
    Array([0.], dtype=float32)
    >>> tx.update(3 * g, state)[0]
    Array([-0.2], dtype=float32)
    """

    def __init__(
        self,
        opt: base.GradientTransformation,
        every_k_schedule: int | Callable[[Any], int | Array],
        use_grad_mean: bool = True,
        should_skip_update_fn: ShouldSkipUpdateFunction | None = None,
        accumulator_dtype: DTypeLike | None = None,
    ) -> None:
        if not callable(every_k_schedule) and not (every_k_schedule == int(every_k_schedule) > 0):
            raise ArgumentError(
                f"MultiSteps: every_k_schedule must be positive and whole, got {every_k_schedule}"
            )
        self._opt = base.with_extra_args_support(opt)
        self._every_k: Callable[..., Any] = (
            every_k_schedule if callable(every_k_schedule) else lambda step: every_k_schedule
        )
        self._mean, self._skip_fn = use_grad_mean, should_skip_update_fn
        self._dtype = accumulator_dtype

    @property
    def inner_opt(self) -> base.GradientTransformationExtraArgs:
        """The transformation that makes the steps."""
        return self._opt

    def init(self, params: Params) -> MultiStepsState:
        """Returns the state before any gradient."""
        skip_state = ()
        if self._skip_fn is not None:
            _, skip_state = self._skip_fn(init_moments(params), zero_count(), params)
        return MultiStepsState(
            zero_count(),
            zero_count(),
            self._opt.init(params),
            init_moments(params, dtype=self._dtype),
            skip_state,
        )

    def update(
        self, updates: Updates, state: MultiStepsState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, MultiStepsState]:
        """Returns (updates, state): the inner updates at every k-th call, else zeros."""
        base.check_state(state, MultiStepsState, "MultiSteps")
        k = self._every_k(state.gradient_step)
        before = state.mini_step

        def accumulate(g: Array, total: Array) -> tuple[Array, ...]:
            total = (
                total + (g - total) / (before + 1).astype(total.dtype) if self._mean else total + g
            )
            return total, total

        sums, kept = map_updates(accumulate, updates, state.acc_grads)
        stepped, inner = self._opt.update(sums, state.inner_opt_state, params, **extra)
        emit = before == k - 1
        take, skip_state = emit, state.skip_state
        zeros = _zeros(kept)
        next_mini = jnp.where(emit, 0, safe_increment(before)).astype(before.dtype)
        next_sums = select(emit, zeros, kept)
        if self._skip_fn is not None:
            skip, skip_state = self._skip_fn(updates, state.gradient_step, params)
            if skip.dtype != BOOL or skip.shape != ():
                raise ShapeError(
                    "MultiSteps: should_skip_update_fn must return a boolean scalar first, it "
                    f"returned {skip.aval}"
                )
            take = emit & ~skip
            next_mini = jnp.where(skip, before, next_mini)
            next_sums = select(skip, state.acc_grads, next_sums)
        step = state.gradient_step
        new = MultiStepsState(
            next_mini,
            jnp.where(take, safe_increment(step), step),
            select(take, inner, state.inner_opt_state),
            next_sums,
            skip_state,
        )
        return map_updates(lambda u: jnp.where(take, u, 0.0), stepped), new

    def has_updated(self, state: MultiStepsState) -> Array:
        """Whether the latest call made a step."""
        return (state.mini_step == 0) & (state.gradient_step > 0)

    def gradient_transformation(self) -> base.GradientTransformationExtraArgs:
        """Returns `init` and `update` as a transformation."""
        return base.GradientTransformationExtraArgs(self.init, self.update, state=MultiStepsState)


# ---- guards ----


class ApplyIfFiniteState(NamedTuple):
    """Consecutive and total non-finite updates, whether the last was finite, the inner state."""

    notfinite_count: Array
    last_finite: Array
    total_notfinite: Array
    inner_state: OptState


def apply_if_finite(
    inner: base.GradientTransformation, max_consecutive_errors: int
) -> base.GradientTransformationExtraArgs:
    """Applies `inner`; where some gradient is not finite, updates are zero and its state is kept.

        update = that of `inner` where all gradients are finite, or more than
        max_consecutive_errors calls in a row were not; else 0

    There is no host synchronization: the choice is a select in the same program.

    Args:
        inner: transformation.
        max_consecutive_errors: number of such steps in a row after which they are let through.

    Returns:
        The transformation, whose states are ApplyIfFiniteState(notfinite_count, last_finite,
        total_notfinite, inner_state).

    >>> tx, g = optim.apply_if_finite(optim.sgd(0.1), 3), jnp.array([1.0, jnp.inf])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates, state.notfinite_count
    (Array([0., 0.], dtype=float32), Array(1, dtype=int32))
    """
    inner = base.with_extra_args_support(inner)

    def init(params: Params) -> ApplyIfFiniteState:
        return ApplyIfFiniteState(
            zero_count(), jnp.ones((), BOOL), zero_count(), inner.init(params)
        )

    def update(
        updates: Updates, state: ApplyIfFiniteState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, ApplyIfFiniteState]:
        finite = _all_finite(updates)
        bad = jnp.where(finite, 0, safe_increment(state.notfinite_count))
        take = finite | (bad > max_consecutive_errors)
        new, inner_state = inner.update(updates, state.inner_state, params, **extra)
        total = state.total_notfinite
        kept = ApplyIfFiniteState(
            bad.astype(I32),
            finite,
            jnp.where(finite, total, safe_increment(total)),
            select(take, inner_state, state.inner_state),
        )
        return map_updates(lambda u: jnp.where(take, u, 0.0), new), kept

    return base.GradientTransformationExtraArgs(init, update, state=ApplyIfFiniteState)


class ConditionallyTransformState(NamedTuple):
    """The inner state and the calls so far."""

    inner_state: OptState
    step: Array


class ConditionallyMaskState(NamedTuple):
    """The calls so far and the inner state."""

    step: Array
    inner_state: OptState


def conditionally_transform(
    inner: base.GradientTransformation,
    should_transform_fn: ConditionFn,
    forward_extra_args: bool = False,
) -> base.GradientTransformationExtraArgs:
    """Applies `inner` at the steps where a condition holds; at others updates pass unchanged.

        update = that of `inner` where should_transform_fn(step), else u,  step = 0, 1, ...

    At the other steps the state of `inner` is kept.

    Args:
        inner: transformation.
        should_transform_fn: function of the step, an int32 scalar from 0, that gives a boolean.
        forward_extra_args: whether it also takes the extra arguments of `update`.

    Returns:
        The transformation, whose states are ConditionallyTransformState(inner_state, step).

    >>> tx = optim.conditionally_transform(optim.scale(0.5), lambda step: step >= 1)
    >>> g = jnp.array([4.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates, tx.update(g, state)[0]
    (Array([4.], dtype=float32), Array([2.], dtype=float32))
    """
    return _conditional(inner, should_transform_fn, forward_extra_args, zero=False)


def conditionally_mask(
    inner: base.GradientTransformation,
    should_transform_fn: ConditionFn,
    forward_extra_args: bool = False,
) -> base.GradientTransformationExtraArgs:
    """Applies `inner` at the steps where a condition holds; at others updates are zero.

        update = that of `inner` where should_transform_fn(step), else 0,  step = 0, 1, ...

    At the other steps the state of `inner` is kept.

    Args:
        inner: transformation.
        should_transform_fn: function of the step, an int32 scalar from 0, that gives a boolean.
        forward_extra_args: whether it also takes the extra arguments of `update`.

    Returns:
        The transformation, whose states are ConditionallyMaskState(step, inner_state).

    >>> tx = optim.conditionally_mask(optim.scale(0.5), lambda step: step >= 1)
    >>> g = jnp.array([4.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates, tx.update(g, state)[0]
    (Array([0.], dtype=float32), Array([2.], dtype=float32))
    """
    return _conditional(inner, should_transform_fn, forward_extra_args, zero=True)


maybe_update = conditionally_transform


def _conditional(
    inner: base.GradientTransformation, condition: ConditionFn, forward: bool, zero: bool
) -> base.GradientTransformationExtraArgs:
    tx = base.with_extra_args_support(inner)
    state_class = ConditionallyMaskState if zero else ConditionallyTransformState
    name = "conditionally_mask" if zero else "conditionally_transform"

    def init(params: Params) -> OptState:
        return state_class(step=zero_count(), inner_state=tx.init(params))

    def update(
        updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        take = as_array(condition(state.step, **(extra if forward else {})))
        new, inner_state = tx.update(updates, state.inner_state, params, **extra)
        other = _zeros(updates) if zero else updates
        chosen = map_updates(
            lambda u, v: jnp.where(take, u, as_array(v).astype(u.dtype)), new, extras=(other,)
        )
        kept = select(take, inner_state, state.inner_state)
        return chosen, state_class(step=safe_increment(state.step), inner_state=kept)

    update.__qualname__ = name  # which errors name
    return base.GradientTransformationExtraArgs(init, update, state=state_class)


# ---- masters of low-precision parameters ----


class WithMasterState(NamedTuple):
    """Float32 copies of the narrower parameters (None for others), and the inner state."""

    master: Params
    inner_state: OptState


def with_master(inner: base.GradientTransformation) -> base.GradientTransformationExtraArgs:
    """Applies `inner` to float32 copies of bfloat16, float16 and 8-bit parameters.

        m <- m + (update of `inner` at m),  update = m - p,  m the copy of p

    Small updates accumulate in the copies; `apply_updates` then gives the copies rounded to the
    parameters' dtypes. Wider parameters are not copied. `update` needs the parameters.

    Source: Micikevicius et al., "Mixed precision training", 2017.

    Args:
        inner: transformation.

    Returns:
        The transformation, whose states are WithMasterState(master, inner_state); master is m, and
        None for wider parameters.

    >>> w, g = jnp.ones(1, "bfloat16"), jnp.array([0.01])
    >>> tx = optim.with_master(optim.sgd(0.1))
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> optim.apply_updates(w, updates), state.master
    (Array([1.], dtype=bfloat16), Array([0.999], dtype=float32))
    """
    inner = base.with_extra_args_support(inner)

    def narrow(p: Array) -> bool:
        return wide_dtype(p.dtype) != p.dtype

    def init(params: Params) -> WithMasterState:
        master = init_leaves(lambda p: p.astype(F32) if narrow(p) else None, params)
        return WithMasterState(master, inner.init(_masters(params, master)))

    def _masters(params: Params, master: Params) -> Params:
        return tree.map(lambda p, m: p if m is None else m, params, master, is_leaf=is_none)

    def update(
        updates: Updates, state: WithMasterState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, WithMasterState]:
        base.require_params(params, "with_master")
        full = _masters(params, state.master)
        steps, inner_state = inner.update(
            map_updates(lambda g: g, updates), state.inner_state, full, **extra
        )

        def leaf(u: Array, m: Array | None, p: Array) -> tuple[Array | None, ...]:
            if m is None:
                return u, None
            moved = m + u
            return moved - p, moved

        new, master = map_updates(
            leaf, steps, state.master, extras=(params,), stateless_leaves=True
        )
        return new, WithMasterState(master, inner_state)

    return base.GradientTransformationExtraArgs(init, update, state=WithMasterState)


# ---- dtypes of updates ----


def with_update_dtype(
    inner: base.GradientTransformation, update_dtype: DTypeLike | str = "param"
) -> base.GradientTransformationExtraArgs:
    """Converts the updates of `inner` to `update_dtype`.

    Without it updates are float32 or wider, and `apply_updates` rounds their sum with the parameter
    once. States stay as wide as they are. Integer parameters' updates stay floating.

    Args:
        inner: transformation.
        update_dtype: dtype, or "param" for that of each parameter, as optax has it; of the gradient
            where `update` is called without parameters.

    Returns:
        The transformation, with the states of `inner`.

    >>> w, g = jnp.ones(1, "bfloat16"), jnp.array([0.5])
    >>> tx = optim.with_update_dtype(optim.scale(2.0))
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates
    Array([1.], dtype=bfloat16)
    """
    tx = base.with_extra_args_support(inner)
    fixed = None if update_dtype == "param" else dtypes.dtype(update_dtype)

    def cast(u: Array | None, like: ArrayLike | None) -> Array | None:
        if u is None:
            return None
        dtype = fixed or as_array(u if like is None else like).dtype
        return u.astype(dtype) if dtypes.is_inexact(dtype) else u

    def update(
        updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        new, state = tx.update(updates, state, params, **extra)
        like = updates if params is None else params
        return tree.map(cast, new, like, is_leaf=is_none), state

    return base.GradientTransformationExtraArgs(tx.init, update)


# ---- lookahead ----


class LookaheadState(NamedTuple):
    """The fast optimizer's state and the steps since the latest synchronization."""

    fast_state: OptState
    steps_since_sync: Array


class LookaheadParams(NamedTuple):
    """Parameters that the fast optimizer moves, and the slow ones that follow them."""

    fast: Params
    slow: Params

    @classmethod
    def init_synced(cls, params: Params) -> LookaheadParams:
        """Returns both, equal to `params`."""
        return cls(fast=params, slow=params)


def lookahead(
    fast_optimizer: base.GradientTransformation,
    sync_period: int,
    slow_step_size: Number,
    reset_state: bool = False,
) -> base.GradientTransformation:
    """Moves slow parameters towards fast ones every `sync_period` steps, and resets these to them.

        slow <- slow + slow_step_size (fast - slow),  fast <- slow

    Parameters and updates are LookaheadParams, gradients those of the fast parameters.

    Source: Zhang et al., "Lookahead optimizer: k steps forward, 1 step back", 2019.

    Args:
        fast_optimizer: transformation of the fast parameters.
        sync_period: positive number of its steps between synchronizations.
        slow_step_size: share that the slow parameters move, in (0, 1].
        reset_state: whether its state is made anew at each synchronization.

    Returns:
        The transformation, whose states are LookaheadState(fast_state, steps_since_sync).

    Raises:
        ArgumentError: `sync_period` is not positive; or `update` is called with other parameters
            than LookaheadParams.

    >>> params = optim.LookaheadParams.init_synced(jnp.array([1.0]))
    >>> tx = optim.lookahead(optim.sgd(1.0), sync_period=1, slow_step_size=0.5)
    >>> updates, state = tx.update(jnp.array([4.0]), tx.init(params), params)
    >>> optim.apply_updates(params, updates)
    LookaheadParams(fast=Array([-1.], dtype=float32), slow=Array([-1.], dtype=float32))
    """
    if sync_period < 1:
        raise ArgumentError(f"lookahead: sync_period must be positive, got {sync_period}")

    def init(params: Params) -> LookaheadState:
        return LookaheadState(fast_optimizer.init(getattr(params, "fast", params)), zero_count())

    def update(
        updates: Updates, state: LookaheadState, params: Params | None = None
    ) -> tuple[Updates, LookaheadState]:
        if not isinstance(params, LookaheadParams):
            raise ArgumentError("lookahead: parameters must be LookaheadParams(fast, slow)")
        steps, fast_state = fast_optimizer.update(updates, state.fast_state, params.fast)
        sync = state.steps_since_sync == sync_period - 1

        def ahead(u: Array, f: Array, s: Array) -> Array:
            return jnp.where(sync, f + u - s, 0.0)

        both = (params.fast, params.slow)
        slow = map_updates(lambda u, f, s: slow_step_size * ahead(u, f, s), steps, extras=both)
        fast = map_updates(
            lambda u, f, s: u - (1 - slow_step_size) * ahead(u, f, s), steps, extras=both
        )
        if reset_state:
            fast_state = select(sync, fast_optimizer.init(params.fast), fast_state)
        since = (state.steps_since_sync + 1) % sync_period
        return LookaheadParams(fast, slow), LookaheadState(fast_state, since)

    return base.GradientTransformation(init, update, state=LookaheadState)


# ---- one long vector ----


def flatten(inner: base.GradientTransformation) -> base.GradientTransformationExtraArgs:
    """Applies `inner` to all leaves as one vector, of the widest dtype among them.

    Norms and trust ratios are then of the whole tree.

    Args:
        inner: transformation.

    Returns:
        The transformation, whose states are those of `inner` for one vector.

    >>> tx = optim.flatten(optim.clip_by_block_rms(1.0))
    >>> g = {"b": jnp.array([7.0]), "w": jnp.array([1.0])}
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates["b"].round(4), updates["w"].round(4)
    (Array([1.4], dtype=float32), Array([0.2], dtype=float32))
    """
    inner = base.with_extra_args_support(inner)

    def concatenated(values: Sequence[Any], like: Sequence[Any]) -> Array:
        arrays = [as_array(x) for x, g in zip(values, like, strict=True) if g is not None]
        if not arrays:
            return jnp.zeros((0,))
        dtype = functools.reduce(dtypes.promote_types, [wide_dtype(x.dtype) for x in arrays])
        return jnp.concatenate([x.astype(dtype).reshape(-1) for x in arrays])

    def init(params: Params) -> OptState:
        if isinstance(params, ParamsPlaceholder):
            return inner.init(params)
        leaves = tree.leaves(init_leaves(lambda p: p, params))
        return inner.init(concatenated(leaves, leaves))

    def update(
        updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        leaves, treedef = tree.flatten(updates, is_none)
        if params is None:
            gradients: list[Any] = [as_gradient(u) for u in leaves]
        else:
            used = map_updates(lambda g, _: g, updates, extras=(params,))
            gradients = treedef.flatten_up_to(used)
            params = concatenated(treedef.flatten_up_to(params), gradients)
        new, state = inner.update(concatenated(gradients, gradients), state, params, **extra)
        result: list[Any] = []
        offset = 0
        for g in gradients:
            size = 0 if g is None else g.size
            result.append(None if g is None else new[offset : offset + size].reshape(g.shape))
            offset += size
        return tree.unflatten(treedef, result), state

    return base.GradientTransformationExtraArgs(init, update)
