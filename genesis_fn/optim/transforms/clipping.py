"""Transformations that limit gradients: by element, array, tree, unit or example."""

from __future__ import annotations

from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, PyTree, tree
from genesis_fn.errors import ShapeError
from genesis_fn.extend import as_array, real_of
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Number, OptState, Params, Updates
from genesis_fn.optim.numerics import abs_sq
from genesis_fn.optim.state import tree_math
from genesis_fn.optim.tree_map_updates import F32, map_updates, widen

# The states of transformations that keep nothing, by their names in optax.
ClipState = base.EmptyState
AdaptiveGradClipState = base.EmptyState


def clip(max_delta: Number) -> base.GradientTransformation:
    """Limits every element.

        update = min(max(u, -max_delta), max_delta)

    Source: Mikolov, "Statistical language models based on neural networks", 2012.

    Args:
        max_delta: number >= 0, in units of the updates.

    Returns:
        The transformation, without a state.

    Raises:
        ArgumentError: `max_delta` is negative.

    >>> tx, g = optim.clip(1.0), jnp.array([0.5, -3.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates
    Array([ 0.5, -1. ], dtype=float32)
    """
    base.require_not_negative("clip", max_delta=max_delta)
    return base.per_leaf(lambda u: jnp.clip(u, -max_delta, max_delta))


def clip_by_block_rms(threshold: Number) -> base.GradientTransformation:
    """Limits the root mean square of each array.

        update = u / max(1, sqrt(mean(|u|**2)) / threshold)

    Source: Shazeer & Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018.

    Args:
        threshold: positive number, in units of the updates.

    Returns:
        The transformation, without a state.

    >>> tx, g = optim.clip_by_block_rms(1.0), jnp.array([1.0, -7.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates.round(4)
    Array([ 0.2, -1.4], dtype=float32)
    """

    def leaf(u: Array) -> Array:
        return u / jnp.maximum(1.0, jnp.sqrt(jnp.mean(abs_sq(u))) / threshold)

    return base.per_leaf(leaf)


class ClipByGlobalNormState(NamedTuple):
    """The norm of the latest gradients before clipping."""

    global_norm: Array


def clip_by_global_norm(
    max_norm: Number, ord: float | str | Array = 2
) -> base.GradientTransformation:
    """Limits the norm of all arrays together.

        update = u min(1, max_norm / |u|),  |u| the norm of the whole tree

    The norm before clipping is kept in the state, where `optim.describe` finds it as "grad_norm".
    The state is not read: None will do for one.

    Source: Pascanu et al., "On the difficulty of training recurrent neural networks", 2013.

    Args:
        max_norm: number >= 0, in units of the updates.
        ord: order of the norm: 1, 2 or inf.

    Returns:
        The transformation, whose states are ClipByGlobalNormState(global_norm).

    Raises:
        ArgumentError: `max_norm` is negative, which would turn the sign of updates; or `update` is
            called where `ord` is another order.

    >>> tx, g = optim.clip_by_global_norm(1.0), jnp.array([3.0, 4.0])
    >>> tx.update(g, tx.init(g))
    (Array([0.6, 0.8], dtype=float32), ClipByGlobalNormState(global_norm=Array(5., dtype=float32)))
    """
    base.require_not_negative("clip_by_global_norm", max_norm=max_norm)

    def init(params: Params) -> ClipByGlobalNormState:
        return ClipByGlobalNormState(jnp.zeros((), F32))

    def update(
        updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        norm = tree_math.norm(updates, ord)
        small = norm < max_norm

        def leaf(u: Array) -> Array:
            return jnp.where(small, u, u / norm.astype(real_of(u.dtype)) * max_norm)

        return map_updates(leaf, updates), ClipByGlobalNormState(norm.astype(F32))

    return base.GradientTransformation(init, update, state=ClipByGlobalNormState, reads_state=False)


def unitwise_norm(x: ArrayLike, axis: int | tuple[int, ...] | None = None) -> Array:
    """Computes the norms of output units, broadcast to the shape of x.

        sqrt(sum of |x|**2 over `axis`)

    Args:
        x: array of a layer's parameters or updates.
        axis: axes that are reduced; None: all where at most one dimension is not 1, else axis 0 of
            two or three dimensions, all but the last axis of four or five.

    Returns:
        An array of the shape of `x`.

    Raises:
        ShapeError: `axis` is None for more dimensions.

    >>> optim.unitwise_norm(jnp.array([[3.0, 5.0], [4.0, 12.0]]))
    Array([[ 5., 13.],
           [ 5., 13.]], dtype=float32)
    """
    x = as_array(x)
    if axis is None:
        by_rank = {2: 0, 3: 0, 4: (0, 1, 2), 5: (0, 1, 2, 3)}
        if sum(n != 1 for n in x.shape) <= 1:
            axis = tuple(range(x.ndim))
        elif x.ndim in by_rank:
            axis = by_rank[x.ndim]
        else:
            raise ShapeError(f"unitwise_norm of {x.shape}: name the axis to reduce over")
    return jnp.broadcast_to(jnp.sqrt(jnp.sum(abs_sq(x), axis=axis, keepdims=True)), x.shape)


def unitwise_clip(
    g_norm: ArrayLike, max_norm: ArrayLike, grad: ArrayLike, div_eps: Number = 1e-6
) -> Array:
    """Limits gradients by norms of their units.

        grad where g_norm < max_norm, else grad max_norm / max(g_norm, div_eps)

    Source: Brock et al., "High-performance large-scale image recognition without normalization",
    2021.

    Args:
        g_norm, max_norm, grad: arrays of one shape: the norms, their limits and the gradients.
        div_eps: positive least divisor.

    Returns:
        An array of the same shape.

    Raises:
        ShapeError: the shapes differ.

    >>> optim.unitwise_clip(jnp.array([2.0, 10.0]), jnp.array([5.0, 5.0]), jnp.array([2.0, -10.0]))
    Array([ 2., -5.], dtype=float32)
    """
    g_norm, max_norm, grad = as_array(g_norm), as_array(max_norm), as_array(grad)
    if not g_norm.shape == max_norm.shape == grad.shape:
        raise ShapeError(
            f"unitwise_clip: shapes differ: {g_norm.shape}, {max_norm.shape}, {grad.shape}"
        )
    return jnp.where(g_norm < max_norm, grad, grad * (max_norm / jnp.maximum(g_norm, div_eps)))


def adaptive_grad_clip(
    clipping: Number, eps: Number = 1e-3, axis: int | tuple[int, ...] | None = None
) -> base.GradientTransformation:
    """Limits the norm of each unit's gradient to a share of its parameters' norm.

        update = u min(1, clipping max(|p|, eps) / |u|) per unit, see `unitwise_norm`

    Source: Brock et al., "High-performance large-scale image recognition without normalization",
    2021. `update` needs the parameters.

    Args:
        clipping: largest ratio of the norms, positive.
        eps: least norm that parameters are taken to have, positive.
        axis: axes that make up a unit; None: those of `unitwise_norm`.

    Returns:
        The transformation, without a state.

    >>> w, g = jnp.array([3.0, -4.0]), jnp.array([0.6, -0.8])
    >>> tx = optim.adaptive_grad_clip(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 0.3, -0.4], dtype=float32)
    """

    def leaf(u: Array, p: Array) -> Array:
        most = clipping * jnp.maximum(unitwise_norm(p, axis), eps)
        return unitwise_clip(unitwise_norm(u, axis), most, u)

    return base.per_leaf(leaf, params_for="adaptive_grad_clip")


# ---- gradients per example ----


def _batch_size(grads: Updates, name: str) -> int:
    sizes = {path: as_array(g).shape[:1] for path, g in _by_path(grads)}
    if not sizes or () in sizes.values() or len(set(sizes.values())) != 1:
        raise ShapeError(f"{name} takes gradients with a leading batch dimension, got {sizes}")
    return next(iter(sizes.values()))[0]


def _by_path(t: PyTree) -> list[tuple[str, Any]]:
    return [(tree.keystr(p), x) for p, x in tree.leaves_with_path(t)]


def per_example_global_norm_clip(grads: Updates, l2_norm_clip: Number) -> tuple[Updates, Array]:
    """Clips each example's gradients to a global norm and sums them, as for private training.

        sum_i g_i min(1, l2_norm_clip / |g_i|)

    Source: Abadi et al., "Deep learning with differential privacy", 2016.

    Args:
        grads: tree of arrays [batch, ...], as from `vmap(grad(f))`.
        l2_norm_clip: positive limit of each example's norm.

    Returns:
        (the sums, a tree without the batch dimension; how many examples were clipped).

    Raises:
        ShapeError: `grads` have no common batch dimension.

    >>> optim.per_example_global_norm_clip(jnp.array([[6.0, 8.0], [0.0, 2.0]]), 5.0)
    (Array([3., 6.], dtype=float32), Array(1, dtype=int32))
    """
    n = _batch_size(grads, "per_example_global_norm_clip")
    flat = [abs_sq(widen(as_array(g))).reshape((n, -1)) for g in tree.leaves(grads)]
    square = jnp.sum(flat[0], axis=1)
    for x in flat[1:]:
        square = square + jnp.sum(x, axis=1)
    norms = jnp.sqrt(square)
    factors = jnp.minimum(l2_norm_clip / jnp.where(norms == 0, 1.0, norms), 1.0)
    factors = jnp.where(norms == 0, 1.0, factors)

    def total(g: ArrayLike) -> Array:
        g = widen(as_array(g))
        return jnp.sum(factors.reshape((n, *[1] * (g.ndim - 1))) * g, axis=0)

    return tree.map(total, grads), jnp.sum(factors < 1.0)


def per_example_layer_norm_clip(
    grads: Updates, global_l2_norm_clip: Number, uniform: bool = True
) -> tuple[Updates, PyTree]:
    """Clips each example's gradients array by array and sums them, as for private training.

        sum_i g_ij min(1, c_j / |g_ij|) for example i and array j of n,
        c_j = global_l2_norm_clip sqrt(1 / n), or without `uniform`
        c_j = global_l2_norm_clip sqrt(size of array j / size of all)

    Source: McMahan et al., "Learning differentially private recurrent language models", 2018.

    Args:
        grads: tree of arrays [batch, ...], as from `vmap(grad(f))`.
        global_l2_norm_clip: positive limit of each example's norm, which the arrays share.
        uniform: whether arrays have equal limits; otherwise by the roots of their sizes.

    Returns:
        (the sums, a tree without the batch dimension; per array how many examples were clipped).

    Raises:
        ShapeError: `grads` have no common batch dimension.

    >>> grads = {"w": jnp.array([[3.0, 4.0]]), "b": jnp.array([[0.5]])}
    >>> sums, clipped = optim.per_example_layer_norm_clip(grads, 2.0**0.5)
    >>> sums["w"].round(4), sums["b"], int(clipped["w"]), int(clipped["b"])
    (Array([0.6, 0.8], dtype=float32), Array([0.5], dtype=float32), 1, 0)
    """
    n = _batch_size(grads, "per_example_layer_norm_clip")
    leaves, treedef = tree.flatten(grads)
    sizes = [as_array(g).size // n for g in leaves]
    shares = [1.0 / len(leaves)] * len(leaves) if uniform else [s / sum(sizes) for s in sizes]
    clipped = [
        per_example_global_norm_clip(g, global_l2_norm_clip * share**0.5)
        for g, share in zip(leaves, shares, strict=True)
    ]
    sums, counts = (tree.unflatten(treedef, [c[i] for c in clipped]) for i in range(2))
    return sums, counts
