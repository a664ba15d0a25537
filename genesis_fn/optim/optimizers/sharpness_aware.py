"""Sharpness-aware minimization (Foret et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, tree
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import as_array
from genesis_fn.lax import pmean
from genesis_fn.optim import base
from genesis_fn.optim.annotations import OptState, Params, Updates
from genesis_fn.optim.tree_map_updates import is_none, map_updates, select, zero_count

NormalizeState = base.EmptyState  # of `normalize`, which SAM climbs by


class SAMState(NamedTuple):
    """Calls since the latest step, both optimizers' states, and the parameters at that step."""

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
    batch_axis_name: str | None = None,
) -> base.GradientTransformationExtraArgs:
    """Sharpness-aware minimization: steps by the gradients at a worse point nearby.

    The adversarial optimizer climbs for `sync_period` - 1 calls; the last call returns to where the
    climb began and steps from there. With `opaque_mode` each call climbs and steps: `update(grads,
    state, params, grad_fn=)` takes a function (params, i) of the gradients at the climb's i-th
    step.

        p' = p + rho g / |g|,  p <- p - lr gradient(p'),
        for sam(sgd(lr), chain(normalize(), sgd(rho)))

    Source: Foret et al., "Sharpness-aware minimization for efficiently improving generalization",
    2021.

    Args:
        optimizer: transformation of the steps.
        adv_optimizer: transformation whose updates are climbed, with their sign turned.
        sync_period: positive number of calls, or with `opaque_mode` of gradients, for each step.
        reset_state: whether each climb begins with a fresh state.
        opaque_mode: whether each call makes a whole step.
        batch_axis_name: name of a mapped axis over which the climb's gradients are averaged, with
            `opaque_mode`; None: of no axis.

    Returns:
        The transformation, whose states are SAMState(steps_since_sync, opt_state, adv_state,
        cache).

    Raises:
        ArgumentError: `sync_period` is not positive.

    >>> w = jnp.array([3.0, 4.0])
    >>> tx = optim.sam(optim.sgd(0.1), optim.chain(optim.normalize(), optim.sgd(0.5)))
    >>> climb, state = tx.update(2 * w, tx.init(w), w)
    >>> climb.round(4)
    Array([0.3, 0.4], dtype=float32)
    >>> w = optim.apply_updates(w, climb)
    >>> step, state = tx.update(2 * w, state, w)
    >>> optim.apply_updates(w, step).round(4)
    Array([2.34, 3.12], dtype=float32)
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
        **extra: Any,
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
        **extra: Any,
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
            if batch_axis_name is not None:
                updates = pmean(updates, batch_axis_name)
        adv_state = adv_optimizer.init(params) if reset_state else adv_state
        new, opt_state = optimizer.update(updates, state.opt_state, params)
        return new, SAMState(zero_count(), opt_state, adv_state, None)

    update = opaque if opaque_mode else transparent
    return base.GradientTransformationExtraArgs(init, update, state=SAMState)
