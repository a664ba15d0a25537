"""Second moments in less memory than the parameters: those of Adafactor and SM3."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, PyTree, dtypes
from genesis_fn.errors import DTypeError
from genesis_fn.extend import real_of
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Number, Params, Updates
from genesis_fn.optim.numerics import abs_sq, safe_increment
from genesis_fn.optim.transforms.transform import moment
from genesis_fn.optim.tree_map_updates import (
    init_leaves,
    init_moments,
    map_updates,
    wide_dtype,
    zero_count,
)


class FactoredState(NamedTuple):
    """Steps taken; row and column means of the second moments; whole ones where not factored.

    Fields that a leaf does not use are a single zero.
    """

    count: Any
    v_row: PyTree
    v_col: PyTree
    v: PyTree


def _decay_rate_pow(i: Array, exponent: Number = 0.8) -> Array:
    """Returns 1 - (i + 1)**-exponent: 0 at the first step."""
    return 1.0 - (i + 1.0) ** (-exponent)


def _factored_dims(shape: tuple[int, ...], factored: bool, least: int) -> tuple[int, int] | None:
    """Returns the second largest and the largest dimension, if both are at least `least`."""
    if not factored or len(shape) < 2:
        return None
    second, first = sorted(range(len(shape)), key=lambda d: shape[d])[-2:]
    return None if shape[second] < least else (second, first)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def scale_by_factored_rms(
    factored: bool = True,
    decay_rate: Number = 0.8,
    step_offset: int = 0,
    min_dim_size_to_factor: int = 128,
    epsilon: Number = 1e-30,
    decay_rate_fn: Callable[[Any, Any], Number] = _decay_rate_pow,
) -> base.GradientTransformation:
    """Divides updates by the root of their mean square, kept as a row times a column.

        v <- d v + (1 - d) (g**2 + epsilon),  update = g / sqrt(v),
        d = decay_rate_fn(t, decay_rate)

    Of arrays whose two largest dimensions have `min_dim_size_to_factor` elements, only the means of
    v over each of the two are kept, and v is row * column / mean(row).

    Source: Shazeer & Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018.

    Args:
        factored: whether v is factored at all.
        decay_rate: exponent of the decay, in (0, 1].
        step_offset: step from which the decay counts, for fine-tuning.
        min_dim_size_to_factor: least size of the second largest dimension of a factored array.
        epsilon: positive number added to squared gradients.
        decay_rate_fn: function (step, decay_rate) -> d in [0, 1), the step a float scalar from 0;
            by default 1 - (step + 1)**-decay_rate.

    Returns:
        The transformation, whose states are FactoredState(count, v_row, v_col, v).

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_factored_rms()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 1., -1.], dtype=float32)
    """

    def init(params: Params) -> FactoredState:
        def leaf(which: int) -> Callable[[Any], Any]:
            def zeros(p: Array) -> Array:
                dims = _factored_dims(p.shape, factored, min_dim_size_to_factor)
                shapes = ((1,), (1,), p.shape)
                if dims is not None:
                    shapes = (_without(p.shape, dims[1]), _without(p.shape, dims[0]), (1,))
                return jnp.zeros(shapes[which], real_of(wide_dtype(p.dtype)))

            return zeros

        return FactoredState(zero_count(), *[init_leaves(leaf(i), params) for i in range(3)])

    def update(
        updates: Updates, state: FactoredState, params: Params | None = None
    ) -> tuple[Updates, FactoredState]:
        def leaf(g: Array, v_row: Array, v_col: Array, v: Array) -> tuple[Array, ...]:
            step = (state.count - step_offset).astype(v.dtype)
            decay = decay_rate_fn(step, decay_rate)
            square = abs_sq(g) + epsilon
            dims = _factored_dims(g.shape, factored, min_dim_size_to_factor)
            if dims is None:
                v = moment(square, v, decay)
                return g / jnp.sqrt(v), v_row, v_col, v
            d1, d0 = dims
            v_row = moment(jnp.mean(square, axis=d0), v_row, decay)
            v_col = moment(jnp.mean(square, axis=d1), v_col, decay)
            rows = jnp.mean(v_row, axis=d1 - 1 if d1 > d0 else d1, keepdims=True)
            by_row = jnp.expand_dims(jnp.sqrt(rows / v_row), d0)
            by_col = jnp.expand_dims(1.0 / jnp.sqrt(v_col), d1)
            return g * by_row * by_col, v_row, v_col, v

        updates, *kept = map_updates(leaf, updates, state.v_row, state.v_col, state.v)
        return updates, FactoredState(safe_increment(state.count), *kept)

    return base.GradientTransformation(init, update, state=FactoredState)


class ScaleBySM3State(NamedTuple):
    """Per leaf: accumulators, one vector per dimension; and the momentum."""

    mu: PyTree
    nu: PyTree


def scale_by_sm3(
    b1: Number = 0.9, b2: Number = 1.0, eps: Number = 1e-8
) -> base.GradientTransformation:
    """Scales updates as SM3 does: Adagrad with one accumulator per row and column.

        v = |g|**2 + min over dimensions of their accumulators,
        u = g / sqrt(v + eps), 0 while v is 0,
        accumulator of a dimension <- max of v over the others,
        update = m,  m <- b1 m + (1 - b1) u

    Source: Anil et al., "Memory-efficient adaptive optimization", 2019.

    Args:
        b1: decay rate of the mean of updates, in [0, 1).
        b2: decay rate of the accumulators, which are then means: (1 - b2) |g|**2 + b2 min(...); 1
            sums.
        eps: positive number added inside the root.

    Returns:
        The transformation, whose states are ScaleBySM3State(mu, nu).

    Raises:
        DTypeError: `init` is called with complex parameters.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.scale_by_sm3()
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([ 0.1, -0.1], dtype=float32)
    """

    def vectors(p: Array) -> list[Array]:
        if dtypes.is_complex(p.dtype):
            raise DTypeError("scale_by_sm3 does not take complex parameters")
        return [jnp.zeros(s, wide_dtype(p.dtype)) for s in ([(n,) for n in p.shape] or [()])]

    def init(params: Params) -> ScaleBySM3State:
        return ScaleBySM3State(init_leaves(vectors, params), init_moments(params))

    def update(
        updates: Updates, state: ScaleBySM3State, params: Params | None = None
    ) -> tuple[Updates, ScaleBySM3State]:
        fresh = jnp.where(b2 == 1.0, 1.0, 1.0 - b2) if hasattr(b2, "dtype") else 1.0 - b2 or 1.0

        def leaf(g: Array, bounds: list[Array], m: Array) -> tuple[PyTree, ...]:
            axes = range(g.ndim)
            shaped = [
                v.reshape([1] * i + [-1] + [1] * (g.ndim - i - 1)) if g.ndim else v
                for i, v in enumerate(bounds)
            ]
            total = fresh * g * g + b2 * functools.reduce(jnp.minimum, shaped)
            step = g * jnp.where(total > 0, 1.0 / jnp.sqrt(total + eps), 0.0)
            bounds = (
                [total]
                if g.ndim < 2
                else [
                    jnp.max(total, axis=tuple(j for j in axes if j != i), initial=0.0) for i in axes
                ]
            )
            m = moment(step, m, b1)
            return m, bounds, m

        updates, mu, nu = map_updates(leaf, updates, state.mu, state.nu)
        return updates, ScaleBySM3State(mu, nu)

    return base.GradientTransformation(init, update, state=ScaleBySM3State)
