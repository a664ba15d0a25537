"""AdEMAMix: Adam with a fast and a slow mean of gradients, and its simplified form."""

from __future__ import annotations

from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, DTypeLike, PyTree
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Mask, Number, Params, ScalarOrSchedule, Updates
from genesis_fn.optim.numerics import abs_sq, one_minus_power, safe_increment
from genesis_fn.optim.optimizers.adaptive import init_squares
from genesis_fn.optim.optimizers.moments import first_moment
from genesis_fn.optim.transforms.combine import optimizer
from genesis_fn.optim.transforms.transform import (
    add_decayed_weights,
    moment,
    scale_by_learning_rate,
    times,
)
from genesis_fn.optim.tree_map_updates import init_moments, map_updates, zero_count


class ScaleByAdemamixState(NamedTuple):
    """Steps taken, the steps of the slow mean, the fast and the slow mean, the second moment."""

    count: Any
    count_m2: Any
    m1: PyTree
    m2: PyTree
    nu: PyTree


def scale_by_ademamix(
    b1: Number = 0.9,
    b2: Number = 0.999,
    b3: ScalarOrSchedule = 0.9999,
    alpha: ScalarOrSchedule = 6.0,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    mu_dtype: DTypeLike | None = None,
) -> base.GradientTransformation:
    """Scales updates as Adam does, with a slow mean of gradients added to the fast one.

        m1 <- b1 m1 + (1 - b1) g,  m2 <- b3 m2 + (1 - b3) g,  v <- b2 v + (1 - b2) |g|**2,
        update = (m1 / (1 - b1**t) + alpha m2) / (sqrt(v / (1 - b2**t) + eps_root) + eps)

    Source: Pagliardini, Ablin & Grangier, "The AdEMAMix optimizer: better, faster, older", 2024.

    Args:
        b1, b2: decay rates of the fast mean and of the second moment, in [0, 1).
        b3: decay rate of the slow mean, in [0, 1), or a schedule of it.
        alpha: number >= 0: the weight of the slow mean, or a schedule of it.
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        mu_dtype: dtype of both means; None: the parameters', and at least float32.

    Returns:
        The transformation, whose states are ScaleByAdemamixState(count, count_m2, m1, m2, nu).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.contrib.scale_by_ademamix(b3=0.9)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 1.6, -1.6], dtype=float32)
    """

    def init(params: Params) -> ScaleByAdemamixState:
        fast, slow = (init_moments(params, dtype=mu_dtype) for _ in range(2))
        return ScaleByAdemamixState(zero_count(), zero_count(), fast, slow, init_squares(params))

    def update(
        updates: Updates, state: ScaleByAdemamixState, params: Params | None = None
    ) -> tuple[Updates, ScaleByAdemamixState]:
        decay: Any = b3(state.count_m2) if callable(b3) else b3
        weight: Any = alpha(state.count_m2) if callable(alpha) else alpha
        count = safe_increment(state.count)
        first, second = first_moment(b1, count, False), one_minus_power(b2, count)

        def leaf(g: Array, m1: Array, m2: Array, nu: Array) -> tuple[Array, ...]:
            m1, nu = moment(g, m1, b1), moment(abs_sq(g), nu, b2)
            m2 = times(1 - decay, g) + times(decay, m2)
            root = jnp.sqrt(nu / second(nu.dtype) + eps_root)
            return (first(g, m1) + times(weight, m2)) / (root + eps), m1, m2, nu

        updates, *moments = map_updates(leaf, updates, state.m1, state.m2, state.nu)
        return updates, ScaleByAdemamixState(count, safe_increment(state.count_m2), *moments)

    return base.GradientTransformation(init, update, state=ScaleByAdemamixState)


def ademamix(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.999,
    b3: ScalarOrSchedule = 0.9999,
    alpha: ScalarOrSchedule = 5.0,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    mu_dtype: DTypeLike | None = None,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
) -> base.GradientTransformationExtraArgs:
    """AdEMAMix: AdamW with a slow mean of gradients, of thousands of steps, beside the fast one.

        m1 <- b1 m1 + (1 - b1) g,  m2 <- b3 m2 + (1 - b3) g,  v <- b2 v + (1 - b2) |g|**2,
        update = -lr (o + weight_decay p),
        o = (m1 / (1 - b1**t) + alpha m2) / (sqrt(v / (1 - b2**t) + eps_root) + eps)

    Source: Pagliardini, Ablin & Grangier, "The AdEMAMix optimizer: better, faster, older", 2024.
    `update` needs the parameters.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the fast mean and of the second moment, in [0, 1).
        b3: decay rate of the slow mean, in [0, 1), or a schedule of it.
        alpha: number >= 0: the weight of the slow mean, or a schedule of it.
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        mu_dtype: dtype of both means; None: the parameters', and at least float32.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the update
            before the learning rate.
        mask: which parameters decay: a tree of bools, or a function that gives it, of the
            parameters or of (path, leaf); None: all.

    Returns:
        The transformation, whose states have the fields `ademamix`, `decay`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.contrib.ademamix(0.1, b3=0.9)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.15,  0.15], dtype=float32)
    """
    return optimizer(
        "ademamix",
        ademamix=scale_by_ademamix(b1, b2, b3, alpha, eps, eps_root, mu_dtype),
        decay=add_decayed_weights(weight_decay, mask),
        schedule=scale_by_learning_rate(learning_rate),
    )


class ScaleBySimplifiedAdEMAMixState(NamedTuple):
    """Steps taken, the sum of gradients, and the second moment."""

    t: Any
    m: PyTree
    n: PyTree


def scale_by_simplified_ademamix(
    b1: Number = 0.99,
    b2: Number = 0.95,
    alpha: ScalarOrSchedule = 0.0,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
) -> base.GradientTransformation:
    """Scales a decaying sum of gradients, and the gradient once more, by the second moment's root.

        m <- b1 m + g,  n <- b2 n + (1 - b2) |g|**2,
        update = (m + alpha g) / (sqrt(n / (1 - b2**t) + eps_root) + eps)

    The sum grows to 1 / (1 - b1) gradients: learning rates are smaller by as much than Adam's.

    Source: Morwani et al., "Connections between schedule-free optimizers, AdEMAMix, and accelerated
    SGD variants", 2025.

    Args:
        b1, b2: decay rates of the sum and of the second moment, in [0, 1).
        alpha: number >= 0: the weight of the gradient, or a schedule of it.
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.

    Returns:
        The transformation, whose states are ScaleBySimplifiedAdEMAMixState(t, m, n).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.contrib.scale_by_simplified_ademamix(alpha=0.5)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 1.5, -1.5], dtype=float32)
    """

    def init(params: Params) -> ScaleBySimplifiedAdEMAMixState:
        sums, squares = init_moments(params), init_squares(params)
        return ScaleBySimplifiedAdEMAMixState(zero_count(), sums, squares)

    def update(
        updates: Updates, state: ScaleBySimplifiedAdEMAMixState, params: Params | None = None
    ) -> tuple[Updates, ScaleBySimplifiedAdEMAMixState]:
        weight: Any = alpha(state.t) if callable(alpha) else alpha
        t = safe_increment(state.t)
        second = one_minus_power(b2, t)

        def leaf(g: Array, m: Array, n: Array) -> tuple[Array, ...]:
            m, n = g + b1 * m, moment(abs_sq(g), n, b2)
            root = jnp.sqrt(n / second(n.dtype) + eps_root)
            return (m + times(weight, g)) / (root + eps), m, n

        updates, m, n = map_updates(leaf, updates, state.m, state.n)
        return updates, ScaleBySimplifiedAdEMAMixState(t, m, n)

    return base.GradientTransformation(init, update, state=ScaleBySimplifiedAdEMAMixState)


def simplified_ademamix(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.99,
    b2: Number = 0.95,
    alpha: ScalarOrSchedule = 0.0,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
) -> base.GradientTransformationExtraArgs:
    """AdEMAMix with one sum of gradients, to which the current gradient is added once more.

        m <- b1 m + g,  n <- b2 n + (1 - b2) |g|**2,
        update = -lr ((m + alpha g) / (sqrt(n / (1 - b2**t) + eps_root) + eps) + weight_decay p)

    The sum grows to 1 / (1 - b1) gradients: learning rates are smaller by as much than Adam's.

    Source: Morwani et al., "Connections between schedule-free optimizers, AdEMAMix, and accelerated
    SGD variants", 2025. `update` needs the parameters.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the sum and of the second moment, in [0, 1).
        alpha: number >= 0: the weight of the gradient, or a schedule of it.
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the update
            before the learning rate.
        mask: which parameters decay: a tree of bools, or a function that gives it, of the
            parameters or of (path, leaf); None: all.

    Returns:
        The transformation, whose states have the fields `ademamix`, `decay`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.contrib.simplified_ademamix(0.1, alpha=0.5)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.15,  0.15], dtype=float32)
    """
    return optimizer(
        "simplified_ademamix",
        ademamix=scale_by_simplified_ademamix(b1, b2, alpha, eps, eps_root),
        decay=add_decayed_weights(weight_decay, mask),
        schedule=scale_by_learning_rate(learning_rate),
    )
