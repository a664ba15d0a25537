"""ACProp and ADOPT: gradients over the second moment as it was before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn import Array, DTypeLike
from genesis_fn.extend import as_array, real_of
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Mask, Number, Params, ScalarOrSchedule, Updates
from genesis_fn.optim.numerics import abs_sq, one_minus_power, safe_increment
from genesis_fn.optim.optimizers.adaptive import init_squares
from genesis_fn.optim.optimizers.moments import ScaleByAdamState, ScaleByBeliefState
from genesis_fn.optim.transforms.combine import optimizer
from genesis_fn.optim.transforms.transform import (
    add_decayed_weights,
    moment,
    scale_by_learning_rate,
)
from genesis_fn.optim.tree_map_updates import init_moments, map_updates, zero_count


def scale_by_acprop(
    b1: Number = 0.9, b2: Number = 0.999, eps: Number = 1e-16, eps_root: Number = 1e-16
) -> base.GradientTransformation:
    """Scales updates as AdaBelief does, by the deviations known before them.

        update = g / (sqrt(v_hat) + eps),  v_hat = v / (1 - b2**(t - 1)), and 1 at step t = 1,
        v <- b2 v + (1 - b2) |g - m|**2 + eps_root,  m <- b1 m + (1 - b1) g,  v by the old m

    Source: Zhuang et al., "Momentum centering and asynchronous update for adaptive gradient
    methods", 2021.

    Args:
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: positive number added to the second moment at every step.

    Returns:
        The transformation, whose states are ScaleByBeliefState(count, mu, nu).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.contrib.scale_by_acprop()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates, state = tx.update(g, state, w)
    >>> updates.round(4)
    Array([ 1., -1.], dtype=float32)
    """

    def init(params: Params) -> ScaleByBeliefState:
        return ScaleByBeliefState(zero_count(), init_moments(params), init_squares(params))

    def update(
        updates: Updates, state: ScaleByBeliefState, params: Params | None = None
    ) -> tuple[Updates, ScaleByBeliefState]:
        count = safe_increment(state.count)
        first = state.count == 0
        second = one_minus_power(b2, jnp.maximum(state.count, 1))

        def leaf(g: Array, mu: Array, nu: Array) -> tuple[Array, ...]:
            seen = jnp.where(first, 1.0, nu / second(nu.dtype))
            deviation = moment(abs_sq(g - mu), nu, b2) + eps_root
            return g / (jnp.sqrt(seen) + eps), moment(g, mu, b1), deviation

        updates, mu, nu = map_updates(leaf, updates, state.mu, state.nu)
        return updates, ScaleByBeliefState(count, mu, nu)

    return base.GradientTransformation(init, update, state=ScaleByBeliefState)


def acprop(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-16,
    eps_root: Number = 1e-16,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
) -> base.GradientTransformationExtraArgs:
    """ACProp: AdaBelief whose denominator does not know the gradient that it divides.

        update = -lr (g / (sqrt(v_hat) + eps) + weight_decay p),
        v_hat = v / (1 - b2**(t - 1)), and 1 at step t = 1,
        v <- b2 v + (1 - b2) |g - m|**2 + eps_root,  m <- b1 m + (1 - b1) g,  v by the old m

    Source: Zhuang et al., "Momentum centering and asynchronous update for adaptive gradient
    methods", 2021. `update` needs the parameters.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: positive number added to the second moment at every step.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the update
            before the learning rate.
        mask: which parameters decay: a tree of bools, or a function that gives it, of the
            parameters or of (path, leaf); None: all.

    Returns:
        The transformation, whose states have the fields `acprop`, `decay`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.contrib.acprop(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.05,  0.3 ], dtype=float32)
    """
    return optimizer(
        "acprop",
        acprop=scale_by_acprop(b1, b2, eps, eps_root),
        decay=add_decayed_weights(weight_decay, mask),
        schedule=scale_by_learning_rate(learning_rate),
    )


def scale_by_adopt(
    b1: Number = 0.9,
    b2: Number = 0.9999,
    eps: Number = 1e-6,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Array], Any] = lambda x: x**0.25,
) -> base.GradientTransformation:
    """Takes the moving mean of gradients that were divided by the second moment before them.

        m <- b1 m + (1 - b1) clip(g / max(sqrt(v), eps), -c, c),  c = clip_value_fn(t),  update = m,
        then v <- b2 v + (1 - b2) |g|**2,  at step t = 0, 1, ...; step 0 only makes v = |g|**2

    Source: Taniguchi et al., "ADOPT: modified Adam can converge with any beta2 with the optimal
    rate", 2024.

    Args:
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive least denominator.
        mu_dtype: dtype of the first moment; None: the parameters', and at least float32.
        nesterov: whether the first moment is taken one step ahead.
        use_clipping: whether the divided gradients are limited; only where they are real.
        clip_value_fn: function of the steps taken, an int32 scalar, that gives their limit c.

    Returns:
        The transformation, whose states are ScaleByAdamState(count, mu, nu).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.contrib.scale_by_adopt()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates, state = tx.update(g, state, w)
    >>> updates.round(4)
    Array([ 0.1, -0.1], dtype=float32)
    """

    def init(params: Params) -> ScaleByAdamState:
        mu = init_moments(params, dtype=mu_dtype)
        return ScaleByAdamState(zero_count(), mu, init_squares(params))

    def update(
        updates: Updates, state: ScaleByAdamState, params: Params | None = None
    ) -> tuple[Updates, ScaleByAdamState]:
        begun = state.count > 0
        limit = as_array(clip_value_fn(state.count)) if use_clipping else None

        def leaf(g: Array, mu: Array, nu: Array) -> tuple[Array, ...]:
            divided = g / jnp.maximum(jnp.sqrt(nu), eps)
            if limit is not None:
                most = limit.astype(real_of(g.dtype))
                divided = jnp.clip(divided, -most, most)
            mu = jnp.where(begun, moment(divided, mu, b1), mu)
            new = jnp.where(begun, moment(divided, mu, b1), mu) if nesterov else mu
            square = abs_sq(g)
            return new, mu, jnp.where(begun, moment(square, nu, b2), square)

        updates, mu, nu = map_updates(leaf, updates, state.mu, state.nu)
        return updates, ScaleByAdamState(safe_increment(state.count), mu, nu)

    return base.GradientTransformation(init, update, state=ScaleByAdamState)


def adopt(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.9999,
    eps: Number = 1e-6,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Array], Any] = lambda x: x**0.25,
) -> base.GradientTransformationExtraArgs:
    """ADOPT: Adam that divides by the second moment and averages then; it converges for any b2.

        m <- b1 m + (1 - b1) clip(g / max(sqrt(v), eps), -c, c),  c = clip_value_fn(t),
        update = -lr m,  then v <- b2 v + (1 - b2) |g|**2,  at step t = 0, 1, ...;
        step 0 only makes v = |g|**2

    Source: Taniguchi et al., "ADOPT: modified Adam can converge with any beta2 with the optimal
    rate", 2024.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive least denominator.
        mu_dtype: dtype of the first moment; None: the parameters', and at least float32.
        nesterov: whether the first moment is taken one step ahead.
        use_clipping: whether the divided gradients are limited; only where they are real.
        clip_value_fn: function of the steps taken, an int32 scalar, that gives their limit c.

    Returns:
        The transformation, whose states have the fields `adopt`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.contrib.adopt(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates, state = tx.update(g, state, w)
    >>> updates.round(4)
    Array([-0.01,  0.01], dtype=float32)
    """
    return optimizer(
        "adopt",
        adopt=scale_by_adopt(
            b1,
            b2,
            eps,
            mu_dtype,
            nesterov=nesterov,
            use_clipping=use_clipping,
            clip_value_fn=clip_value_fn,
        ),
        schedule=scale_by_learning_rate(learning_rate),
    )
