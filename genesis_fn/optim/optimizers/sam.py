"""Sharpness-aware minimization (Foret et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, tree
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import as_array
from genesis_fn.optim import base
from genesis_fn.optim.annotations import OptState, Params, Updates
from genesis_fn.optim.tree_map_updates import is_none, map_updates, select, zero_count


class SAMState(NamedTuple):
    """Steps since the last real one, both optimizers' states, and the parameters at that step."""

    steps_since_sync: Array
    opt_state: OptState
    adv_state: OptState
    cache: Params


def sam(
    optimizer: base.GradientTransformation,
    adv_optimizer: base.GradientTransformation,
    sync_period: int = 2,
    reset_state: bool = True,
    opaque_mode: bool = False,
) -> base.GradientTransformationExtraArgs:
    """`optimizer` on gradients taken where `adv_optimizer` (an ascent) has led.

    Every `sync_period`-th call is a real step from where the ascent began; with `opaque_mode` each
    call is, and `update` takes `grad_fn=`, a function (params, i) of the ascent's i-th step.
    """
    if sync_period < 1:
        raise ArgumentError(f"sam: sync_period must be positive, got {sync_period}")

    def init(params: Params) -> SAMState:
        copy = tree.map(lambda p: jnp.array(as_array(p), copy=True), params)
        return SAMState(
            zero_count(),
            optimizer.init(params),
            adv_optimizer.init(params),
            None if opaque_mode else copy,
        )

    def transparent(
        updates: Updates,
        state: SAMState,
        params: Params | None = None,
        *,
        grad_fn: Callable[..., Updates] | None = None,
    ) -> tuple[Any, ...]:
        base.require_params(params, "sam")
        first, last = state.steps_since_sync == 0, state.steps_since_sync == sync_period - 1
        start_params = select(first, params, state.cache)
        climb, adv_state = adv_optimizer.update(updates, state.adv_state, params)
        steps, opt_state = optimizer.update(updates, state.opt_state, start_params)

        def leaf(u: Array, ascent: Array, start: Array, p: Array) -> Array:
            return jnp.where(last, start - p + u, -ascent)

        new = map_updates(leaf, steps, extras=(climb, start_params, params))
        after = adv_optimizer.init(params) if reset_state else state.adv_state
        return new, SAMState(
            (state.steps_since_sync + 1) % sync_period,
            select(last, opt_state, state.opt_state),
            select(last, after, adv_state),
            start_params,
        )

    def opaque(
        updates: Updates,
        state: SAMState,
        params: Params | None = None,
        *,
        grad_fn: Callable[..., Updates] | None = None,
    ) -> tuple[Any, ...]:
        base.require_params(params, "sam")
        if grad_fn is None:
            raise ArgumentError("sam with opaque_mode=True: pass update(..., grad_fn=)")
        there, adv_state = params, state.adv_state
        for i in range(sync_period - 1):
            climb, adv_state = adv_optimizer.update(updates, adv_state, there)
            negative = tree.map(lambda u: None if u is None else -u, climb, is_leaf=is_none)
            there = base.apply_updates(there, negative)
            updates = grad_fn(there, i)
        adv_state = adv_optimizer.init(params) if reset_state else adv_state
        new, opt_state = optimizer.update(updates, state.opt_state, params)
        return new, SAMState(zero_count(), opt_state, adv_state, None)

    update = opaque if opaque_mode else transparent
    return base.GradientTransformationExtraArgs(init, update, state=SAMState)
