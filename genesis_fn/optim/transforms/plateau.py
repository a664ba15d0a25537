"""`reduce_on_plateau`: scales updates down when the loss stops falling."""

from __future__ import annotations

from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import as_array
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Params, Updates
from genesis_fn.optim.numerics import safe_increment
from genesis_fn.optim.transforms.transform import times
from genesis_fn.optim.tree_map_updates import I32, map_updates, wide_dtype, widest_float, zero_count


class ReduceLROnPlateauState(NamedTuple):
    """Scale, best mean, means without progress, cooldown left, losses in the mean, the mean."""

    scale: Array
    best_value: Array
    plateau_count: Array
    cooldown_count: Array
    count: Any
    avg_value: Array


def reduce_on_plateau(
    factor: float = 0.1,
    patience: int = 10,
    rtol: float = 1e-4,
    atol: float = 0.0,
    cooldown: int = 0,
    accumulation_size: int = 1,
    min_scale: float = 0.0,
) -> base.GradientTransformationExtraArgs:
    """Multiplies updates by a scale, which shrinks by `factor` when the loss has stopped falling.

        update = scale u,
        scale <- max(factor scale, min_scale) after `patience` means in a row without progress

    `update` takes the loss as `value=`. Losses are averaged over `accumulation_size` calls; a mean
    is progress if it is below (1 - rtol) * best - atol.

    Args:
        factor: what the scale is multiplied by, in (0, 1).
        patience: positive number of means without progress after which the scale shrinks.
        rtol, atol: relative, in [0, 1], and absolute progress that counts, >= 0; one is positive.
        cooldown: number of means after a reduction that are not counted, >= 0.
        accumulation_size: positive number of losses in a mean.
        min_scale: least scale, >= 0.

    Returns:
        The transformation, whose states are ReduceLROnPlateauState(scale, best_value,
        plateau_count, cooldown_count, count, avg_value).

    Raises:
        ArgumentError: a number is out of its range.

    >>> tx, g = optim.reduce_on_plateau(factor=0.5, patience=2), jnp.array([4.0])
    >>> state = tx.init(g)
    >>> for loss in (3.0, 3.0, 3.0):
    ...     updates, state = tx.update(g, state, value=loss)
    >>> updates, state.scale
    (Array([2.], dtype=float32), Array(0.5, dtype=float32))
    """
    if not 0.0 < factor < 1.0:
        raise ArgumentError(f"reduce_on_plateau: factor must be in (0, 1), got {factor}")
    if not 0.0 <= rtol <= 1.0 or atol < 0.0 or rtol == atol == 0.0:
        raise ArgumentError(
            "reduce_on_plateau: rtol must be in [0, 1], atol not negative, one of them positive; "
            f"got rtol={rtol}, atol={atol}"
        )
    name = "reduce_on_plateau"
    base.require_positive(name, patience=patience, accumulation_size=accumulation_size)
    base.require_not_negative(name, cooldown=cooldown, min_scale=min_scale)

    def init(params: Params) -> ReduceLROnPlateauState:
        dtype = wide_dtype(widest_float(params))
        return ReduceLROnPlateauState(
            jnp.ones((), dtype),
            jnp.full((), float("inf"), dtype=dtype),
            zero_count(),
            zero_count(),
            zero_count(),
            jnp.zeros((), dtype),
        )

    def update(
        updates: Updates,
        state: ReduceLROnPlateauState,
        params: Params | None = None,
        *,
        value: ArrayLike,
        **extra: Any,
    ) -> tuple[Updates, ReduceLROnPlateauState]:
        dtype = state.avg_value.dtype
        count = safe_increment(state.count)
        seen = state.count.astype(dtype) * state.avg_value + as_array(value).astype(dtype)
        mean = seen / count.astype(dtype)
        judged = count == accumulation_size
        better = mean < (1 - rtol) * state.best_value - atol
        resting = state.cooldown_count > 0
        stuck = jnp.where(better, 0, safe_increment(state.plateau_count))
        reduce = judged & ~resting & (stuck == patience)
        plateau = jnp.where(resting | (stuck == patience), 0, stuck)
        rest = jnp.where(resting, state.cooldown_count - 1, jnp.where(reduce, cooldown, 0))
        least = jnp.maximum(jnp.where(reduce, state.scale * factor, state.scale), min_scale)
        new = ReduceLROnPlateauState(
            jnp.where(judged & ~resting, least, state.scale),
            jnp.where(judged & better, mean, state.best_value),
            jnp.where(judged, plateau, state.plateau_count).astype(I32),
            jnp.where(judged, rest, state.cooldown_count).astype(I32),
            jnp.where(judged, 0, count).astype(I32),
            jnp.where(judged, 0.0, mean),
        )
        return map_updates(lambda u: times(new.scale, u), updates), new

    return base.GradientTransformationExtraArgs(init, update, state=ReduceLROnPlateauState)
