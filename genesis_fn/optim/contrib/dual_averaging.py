"""MADGRAD: momentum towards the averages of dual averaging (Defazio & Jelassi 2021)."""

from __future__ import annotations

from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, PyTree
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Number, Params, ScalarOrSchedule, Updates
from genesis_fn.optim.contrib.complex_parameters import require_real
from genesis_fn.optim.numerics import safe_increment
from genesis_fn.optim.transforms.combine import optimizer
from genesis_fn.optim.transforms.transform import add_decayed_weights, times
from genesis_fn.optim.tree_map_updates import init_leaves, init_moments, map_updates, zero_count


class MadgradState(NamedTuple):
    """Steps taken, the weighted sums of squares and of gradients, the first parameters."""

    count: Any
    grad_sum_sq: PyTree
    s: PyTree
    x0: Params


def scale_by_madgrad(
    learning_rate: ScalarOrSchedule, momentum: Number = 0.9, eps: Number = 1e-6
) -> base.GradientTransformation:
    """Moves towards the point of dual averaging with a cube root; the learning rate is part of it.

        c = (lr + eps) sqrt(t),  v <- v + c g**2,  s <- s + c g,
        update = (1 - momentum) (p0 - s / (cbrt(v) + eps) - p), at step t = 1, 2, ...

    Source: Defazio & Jelassi, "Adaptivity without compromise: a momentumized, adaptive, dual
    averaged gradient method for stochastic optimization", 2021. `update` needs the parameters.

    Args:
        learning_rate: positive number, or a schedule of the step.
        momentum: share of the parameters that is kept, in [0, 1).
        eps: positive number added to the learning rate and to the denominator.

    Returns:
        The transformation, whose states are MadgradState(count, grad_sum_sq, s, x0).

    Raises:
        DTypeError: a parameter is complex.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.contrib.scale_by_madgrad(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.0171,  0.0311], dtype=float32)
    """

    def init(params: Params) -> MadgradState:
        require_real(params, "madgrad")
        start = init_leaves(lambda p: jnp.array(p, copy=True), params)
        return MadgradState(zero_count(), init_moments(params), init_moments(params), start)

    def update(
        updates: Updates, state: MadgradState, params: Params | None = None
    ) -> tuple[Updates, MadgradState]:
        base.require_params(params, "madgrad")
        rate: Any = learning_rate(state.count) if callable(learning_rate) else learning_rate
        count = safe_increment(state.count)

        def leaf(g: Array, squares: Array, s: Array, x0: Array, p: Array) -> tuple[Array, ...]:
            weight = times(rate + eps, jnp.sqrt(count.astype(g.dtype)))
            squares, s = squares + weight * g * g, s + weight * g
            z = x0 - s / (jnp.cbrt(squares) + eps)
            return (1 - momentum) * (z - p), squares, s

        new, squares, s = map_updates(
            leaf, updates, state.grad_sum_sq, state.s, extras=(state.x0, params)
        )
        return new, MadgradState(count, squares, s, state.x0)

    return base.GradientTransformation(init, update, state=MadgradState)


def madgrad(
    learning_rate: ScalarOrSchedule,
    momentum: Number = 0.9,
    weight_decay: ScalarOrSchedule = 0.0,
    eps: Number = 1e-6,
) -> base.GradientTransformationExtraArgs:
    """MADGRAD: dual averaging with a cube root in place of Adagrad's square root, and momentum.

        g <- g + weight_decay p,  c = (lr + eps) sqrt(t),  v <- v + c g**2,  s <- s + c g,
        update = (1 - momentum) (p0 - s / (cbrt(v) + eps) - p), at step t = 1, 2, ...

    Source: Defazio & Jelassi, "Adaptivity without compromise: a momentumized, adaptive, dual
    averaged gradient method for stochastic optimization", 2021. `update` needs the parameters.

    Args:
        learning_rate: positive number, or a schedule of the step.
        momentum: share of the parameters that is kept, in [0, 1).
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the gradient.
        eps: positive number added to the learning rate and to the denominator.

    Returns:
        The transformation, whose states have the fields `decay`, `madgrad`.

    Raises:
        DTypeError: a parameter is complex.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.contrib.madgrad(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.0171,  0.0311], dtype=float32)
    """
    return optimizer(
        "madgrad",
        decay=add_decayed_weights(weight_decay),
        madgrad=scale_by_madgrad(learning_rate, momentum, eps),
    )
