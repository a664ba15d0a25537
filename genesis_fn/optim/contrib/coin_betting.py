"""COCOB and Mechanic: step sizes won by betting on the gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, PyTree
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Mask, Number, OptState, Params, ScalarOrSchedule, Updates
from genesis_fn.optim.contrib.complex_parameters import require_real
from genesis_fn.optim.numerics import root, safe_increment
from genesis_fn.optim.state import tree_math
from genesis_fn.optim.transforms.combine import optimizer
from genesis_fn.optim.transforms.transform import add_decayed_weights, scale_by_learning_rate, times
from genesis_fn.optim.tree_map_updates import (
    init_leaves,
    init_moments,
    map_updates,
    select,
    wide_dtype,
    widest_float,
    zero_count,
)


class COCOBState(NamedTuple):
    """The first parameters, and the gradients' sum, largest size, sum of sizes, and the reward."""

    init_particles: Params
    cumulative_gradients: PyTree
    scale: PyTree
    subgradients: PyTree
    reward: PyTree


def scale_by_cocob(alpha: Number = 100.0, eps: Number = 1e-8) -> base.GradientTransformation:
    """Bets a share of the reward so far on the next gradient, for each element.

        L <- max(L, |g|),  G <- G + |g|,  R <- max(R - g (p - p0), 0),  C <- C - g,
        update = p0 + C (L + R) / (L max(G + L, alpha L)) - p

    Source: Orabona & Tommasi, "Training deep networks without learning rates through coin betting",
    2017. `update` needs the parameters.

    Args:
        alpha: number >= 0: bets are small while G < (alpha - 1) L, in the first steps.
        eps: positive first value of L.

    Returns:
        The transformation, whose states are COCOBState(init_particles, cumulative_gradients, scale,
        subgradients, reward).

    Raises:
        DTypeError: a parameter is complex.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.contrib.scale_by_cocob()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.01,  0.01], dtype=float32)
    """

    def init(params: Params) -> COCOBState:
        require_real(params, "cocob")
        start = init_leaves(lambda p: jnp.array(p, copy=True), params)
        sums, sizes, reward = (init_moments(params) for _ in range(3))
        return COCOBState(start, sums, init_moments(params, eps), sizes, reward)

    def update(
        updates: Updates, state: COCOBState, params: Params | None = None
    ) -> tuple[Updates, COCOBState]:
        base.require_params(params, "cocob")

        def leaf(
            g: Array, total: Array, most: Array, sizes: Array, reward: Array, p0: Array, p: Array
        ) -> tuple[Array, ...]:
            most, sizes = jnp.maximum(most, jnp.abs(g)), sizes + jnp.abs(g)
            reward, total = jnp.maximum(reward - g * (p - p0), 0.0), total - g
            share = total / (most * jnp.maximum(sizes + most, alpha * most))
            return p0 + share * (most + reward) - p, total, most, sizes, reward

        _, *states = state
        new, *states = map_updates(leaf, updates, *states, extras=(state.init_particles, params))
        return new, COCOBState(state.init_particles, *states)

    return base.GradientTransformation(init, update, state=COCOBState)


def cocob(
    learning_rate: ScalarOrSchedule = 1.0,
    alpha: Number = 100.0,
    eps: Number = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
) -> base.GradientTransformationExtraArgs:
    """COCOB: no learning rate, but bets of the reward so far on the next gradient.

        g <- learning_rate (g + weight_decay p),
        L <- max(L, |g|),  G <- G + |g|,  R <- max(R - g (p - p0), 0),  C <- C - g,
        p <- p0 + C (L + R) / (L max(G + L, alpha L)), elementwise

    Source: Orabona & Tommasi, "Training deep networks without learning rates through coin betting",
    2017. `update` needs the parameters.

    Args:
        learning_rate: factor of the gradients, or a schedule of it; steps hardly depend on it.
        alpha: number >= 0: bets are small while G < (alpha - 1) L, in the first steps.
        eps: positive first value of L.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the gradient.
        mask: which parameters decay: a tree of bools, or a function that gives it, of the
            parameters or of (path, leaf); None: all.

    Returns:
        The transformation, whose states have the fields `decay`, `schedule`, `cocob`.

    Raises:
        DTypeError: a parameter is complex.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.contrib.cocob()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.01,  0.01], dtype=float32)
    """
    return optimizer(
        "cocob",
        decay=add_decayed_weights(weight_decay, mask),
        schedule=scale_by_learning_rate(learning_rate, flip_sign=False),
        cocob=scale_by_cocob(alpha, eps),
    )


class MechanicState(NamedTuple):
    """The base's state, steps taken; reward, largest bet, variance and scale; first parameters."""

    base_optimizer_state: OptState
    count: Any
    r: Array
    m: Array
    v: Array
    s: Array
    x0: Params


def mechanize(
    base_optimizer: base.GradientTransformation,
    weight_decay: Number = 1e-2,
    eps: Number = 1e-8,
    s_init: Number = 1e-6,
    num_betas: int = 6,
) -> base.GradientTransformationExtraArgs:
    """Mechanic: learns a factor of another optimizer's updates, which stands for its learning rate.

        D = (sum of the updates so far, their sign turned) = (p0 - p) / (sum of s),
        h = <g + weight_decay (sum of s) |g| p / |p|, D>, and with b_i = 1 - 0.1**i, i = 1, 2, ...:
        r_i <- b_i r_i + clip(h, -m_i, m_i) s_i,  m_i <- max(b_i m_i, |h| + eps),
        v_i <- b_i**2 v_i + h**2,
        s_i <- (s_init m_i / num_betas + max(r_i, 0)) / (sqrt(v_i) + eps),
        p <- p0 - (sum of s) (D - update of the base optimizer)

    Source: Cutkosky, Defazio & Mehta, "Mechanic: a learning rate tuner", 2023. `update` needs the
    parameters.

    Args:
        base_optimizer: transformation whose learning rate is a schedule with a peak of 1, or 1.
        weight_decay: number >= 0: the strength of the decay, relative to the gradients' norm.
        eps: positive number added to denominators.
        s_init: positive first value of each s_i.
        num_betas: positive number of decay rates.

    Returns:
        The transformation, whose states are MechanicState(base_optimizer_state, count, r, m, v, s,
        x0); x0 is p0.

    Raises:
        ArgumentError: `num_betas` is not positive.
        DTypeError: a parameter is complex.

    >>> loss, w = lambda w: jnp.sum((w - 3.0) ** 2), jnp.array([1.0, -2.0])
    >>> tx = optim.contrib.mechanize(optim.sgd(1.0), s_init=1e-2)
    >>> state = tx.init(w)
    >>> for _ in range(20):
    ...     updates, state = tx.update(gf.grad(loss)(w), state, w)
    ...     w = optim.apply_updates(w, updates)
    >>> loss(w) < 1.0
    Array(True, dtype=bool)
    """
    base.require_positive("mechanize", num_betas=num_betas)
    inner = base.with_extra_args_support(base_optimizer)

    def init(params: Params) -> MechanicState:
        require_real(params, "mechanize")
        dtype = wide_dtype(widest_float(params))
        r, m, v = (jnp.zeros((num_betas,), dtype) for _ in range(3))
        scales = jnp.asarray(s_init, dtype=dtype) * jnp.ones((num_betas,), dtype)
        start = init_leaves(lambda p: jnp.array(p, copy=True), params)
        return MechanicState(inner.init(params), zero_count(), r, m, v, scales, start)

    def update(
        updates: Updates, state: MechanicState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, MechanicState]:
        base.require_params(params, "mechanize")
        dtype = state.s.dtype
        steps, base_state = inner.update(updates, state.base_optimizer_state, params, **extra)
        # The first gradients may be of other parameters than `init` was called with.
        start = select(state.count == 0, init_leaves(lambda p: p, params), state.x0)
        grads = map_updates(lambda g, p: g, updates, extras=(params,))
        used = map_updates(lambda g, p: p, grads, extras=(params,))
        scale = jnp.sum(state.s)
        ratio = tree_math.norm(grads) / (tree_math.norm(used) + eps)
        decay = weight_decay * scale * ratio.astype(dtype)

        moved = map_updates(
            lambda g, x0, p: (x0 - p) / (scale + eps).astype(g.dtype), grads, extras=(start, params)
        )
        decayed = map_updates(lambda g, p: g + times(decay, p), grads, extras=(params,))
        h = tree_math.vdot(decayed, moved).astype(dtype)

        betas = jnp.asarray([1.0 - 0.1**i for i in range(1, num_betas + 1)], dtype=dtype)
        m = jnp.maximum(betas * state.m, jnp.abs(h) + eps)
        v = betas**2 * state.v + h * h
        r = betas * state.r + jnp.clip(h, -state.m, state.m) * state.s
        scales = (s_init / num_betas * m + jnp.maximum(r, 0.0)) / (root(v) + eps)
        factor = jnp.sum(scales)

        new = map_updates(
            lambda u, d, x0, p: x0 - times(factor, d - u) - p, steps, extras=(moved, start, params)
        )
        count = safe_increment(state.count)
        return new, MechanicState(base_state, count, r, m, v, scales, start)

    return base.GradientTransformationExtraArgs(init, update, state=MechanicState)
