"""L-BFGS: steps along an inverse Hessian that the latest gradients tell of (Liu & Nocedal 1989)."""

from __future__ import annotations

from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, PyTree, lax, tree
from genesis_fn.errors import ArgumentError
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Params, ScalarOrSchedule, Updates
from genesis_fn.optim.linesearch.objective import scaled
from genesis_fn.optim.linesearch.zoom import scale_by_zoom_linesearch
from genesis_fn.optim.numerics import safe_increment
from genesis_fn.optim.state import tree_math
from genesis_fn.optim.transforms.combine import optimizer
from genesis_fn.optim.transforms.transform import scale, scale_by_learning_rate
from genesis_fn.optim.tree_map_updates import (
    init_leaves,
    init_moments,
    map_updates,
    wide_dtype,
    widest_float,
    zero_count,
)


class ScaleByLBFGSState(NamedTuple):
    """Steps taken, the latest parameters and gradients, and what they changed by before.

    Differences are stacked along a first axis of `memory_size`, which is written in turn;
    `weights_memory` has the reciprocals of their inner products.
    """

    count: Any
    params: Params
    updates: Updates
    diff_params_memory: PyTree
    diff_updates_memory: PyTree
    weights_memory: Array


def scale_by_lbfgs(
    memory_size: int = 10, scale_init_precond: bool = True
) -> base.GradientTransformation:
    """Multiplies updates by an approximation of the inverse Hessian, made of the latest steps.

        update = H g,  H <- V' H V + r s s',  V = 1 - r y s',  r = 1 / s'y
        for each of the last `memory_size` pairs s, y of differences of the parameters and of g,
        oldest first, from H = c;  c = s'y / y'y of the latest pair, and min(1, 1 / |g|) at the
        first step;  c = 1 without `scale_init_precond`

    Source: Nocedal & Wright, "Numerical optimization", 1999, algorithm 7.4; Liu & Nocedal, "On the
    limited memory BFGS method for large scale optimization", 1989. `update` needs the parameters.
    Of complex parameters the gradients are the conjugates of what `genesis_fn.grad` gives.

    Args:
        memory_size: number of pairs that are kept, positive.
        scale_init_precond: whether H starts at the scale of the latest pair.

    Returns:
        The transformation, whose states are ScaleByLBFGSState(count, params, updates,
        diff_params_memory, diff_updates_memory, weights_memory).

    Raises:
        ArgumentError: `memory_size` is not positive, or `update` is called without the parameters.

    >>> tx, w = optim.scale_by_lbfgs(), jnp.array([3.0, -1.0])
    >>> updates, state = tx.update(4 * w, tx.init(w), w)
    >>> w = w - updates
    >>> updates, state = tx.update(4 * w, state, w)
    >>> (w - updates).round(4)
    Array([0., 0.], dtype=float32)
    """
    if memory_size < 1:
        raise ArgumentError(f"scale_by_lbfgs: memory_size must be positive, got {memory_size}")

    def init(params: Params) -> ScaleByLBFGSState:
        def memory(p: Array) -> Array:
            return jnp.zeros((memory_size, *p.shape), wide_dtype(p.dtype))

        zeros, differences = init_moments(params), init_leaves(memory, params)
        weights = jnp.zeros((memory_size,), wide_dtype(widest_float(params)))
        return ScaleByLBFGSState(zero_count(), zeros, zeros, differences, differences, weights)

    def update(
        updates: Updates, state: ScaleByLBFGSState, params: Params | None = None
    ) -> tuple[Updates, ScaleByLBFGSState]:
        params = base.require_params(params, "scale_by_lbfgs")
        # Wide, and None where a leaf is frozen, as the state is.
        _, g, w = map_updates(
            lambda u, _, __, p: (u, u, p), updates, state.updates, state.params, extras=(params,)
        )
        begun = state.count > 0
        y, s = (
            tree.map(lambda new, old: jnp.where(begun, new - old, jnp.zeros_like(new)), *pair)
            for pair in ((g, state.updates), (w, state.params))
        )
        curvature = jnp.real(tree_math.vdot(y, s))
        weight = jnp.where(curvature == 0.0, 0.0, 1.0 / curvature)
        index = state.count % memory_size
        latest = (state.count - 1) % memory_size
        memory = _Memory(
            _written(state.diff_params_memory, latest, s),
            _written(state.diff_updates_memory, latest, y),
            _written(state.weights_memory, latest, weight),
        )
        factor = 1.0
        if scale_init_precond:
            square = tree_math.norm(y, squared=True)
            by_latest = jnp.where(square > 0.0, curvature / square, 1.0)
            first = jnp.minimum(1.0, 1.0 / tree_math.norm(g))
            factor = jnp.where(begun, by_latest, first)
        new = _inverse_hessian_times(g, memory, factor, index)
        return new, ScaleByLBFGSState(safe_increment(state.count), w, g, *memory)

    return base.GradientTransformation(init, update, state=ScaleByLBFGSState)


class _Memory(NamedTuple):
    """Differences of parameters and of gradients, stacked, and 1 / (their inner products)."""

    s: PyTree
    y: PyTree
    weights: Array

    def pair(self, i: Array) -> tuple[PyTree, PyTree, Array]:
        return (*tree.map(lambda x: x[i], (self.s, self.y)), self.weights[i])


def _written(memory: PyTree, index: Array, values: PyTree) -> PyTree:
    return tree.map(lambda m, x: m.at[index].set(x.astype(m.dtype)), memory, values)


def _inverse_hessian_times(
    g: Updates, memory: _Memory, factor: float | Array, oldest: Array
) -> Updates:
    """Algorithm 7.4 of Nocedal & Wright, the recursion of two loops over the pairs."""
    size = memory.weights.shape[0]
    by_age = (oldest + jnp.arange(size)) % size

    def plus(v: Updates, a: Array, x: Updates) -> Updates:
        return tree.map(jnp.add, v, scaled(a, x))

    def newest_first(v: Updates, i: Array) -> tuple[Updates, Array]:
        s, y, weight = memory.pair(i)
        a = weight * jnp.real(tree_math.vdot(s, v))
        return plus(v, -a, y), a

    def oldest_first(v: Updates, i_and_a: tuple[Array, Array]) -> tuple[Updates, None]:
        i, a = i_and_a
        s, y, weight = memory.pair(i)
        b = weight * jnp.real(tree_math.vdot(y, v))
        return plus(v, a - b, s), None

    v, a = lax.scan(newest_first, g, by_age, reverse=True)
    v, _ = lax.scan(oldest_first, scaled(factor, v), (by_age, a))
    return v


_STRONG_WOLFE = scale_by_zoom_linesearch(max_linesearch_steps=20, initial_guess_strategy="one")


def lbfgs(
    learning_rate: ScalarOrSchedule | None = None,
    memory_size: int = 10,
    scale_init_precond: bool = True,
    linesearch: base.GradientTransformation | None = _STRONG_WOLFE,
) -> base.GradientTransformationExtraArgs:
    """L-BFGS, a quasi-Newton method for smooth objectives without noise.

        update = -t H g,  H of `scale_by_lbfgs`, t of `linesearch`

    With a line search `update` needs the parameters, and by name `value` and `grad`, the objective
    and its gradient at them, and `value_fn`, the objective; `value_and_grad_from_state` gives the
    first two without a new evaluation.

    Source: Nocedal & Wright, "Numerical optimization", 1999, algorithm 7.5; Liu & Nocedal, "On the
    limited memory BFGS method for large scale optimization", 1989.

    Args:
        learning_rate: number or schedule that multiplies updates before the line search; None: 1.
        memory_size: number of pairs that are kept, positive; each takes twice the parameters.
        scale_init_precond: as of `scale_by_lbfgs`.
        linesearch: transformation that finds t, by default `scale_by_zoom_linesearch` of at most 20
            steps that starts at 1; None: t = 1.

    Returns:
        The transformation, whose states have the fields `lbfgs`, `schedule` and `linesearch`.

    Raises:
        ArgumentError: `memory_size` is not positive.

    >>> f = lambda w: jnp.sum((w - 3.0) ** 2)
    >>> tx, w = optim.lbfgs(), jnp.zeros(2)
    >>> state, value_and_grad = tx.init(w), optim.value_and_grad_from_state(f)
    >>> for _ in range(3):
    ...     value, g = value_and_grad(w, state=state)
    ...     updates, state = tx.update(g, state, w, value=value, grad=g, value_fn=f)
    ...     w = optim.apply_updates(w, updates)
    >>> w.round(4)
    Array([3., 3.], dtype=float32)
    """
    return optimizer(
        "lbfgs",
        lbfgs=scale_by_lbfgs(memory_size, scale_init_precond),
        schedule=scale(-1.0) if learning_rate is None else scale_by_learning_rate(learning_rate),
        linesearch=base.identity() if linesearch is None else linesearch,
    )
