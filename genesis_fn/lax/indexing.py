"""lax functions that read and write at indices: dynamic slices, gather, scatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from genesis_fn.core.array import from_numpy
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.creation import index_array
from genesis_fn.lax.operands import array
from genesis_fn.lax.promotion import broadcast, promote_arrays
from genesis_fn.primitives import shape as shapes
from genesis_fn.primitives.elementwise import gt, select
from genesis_fn.primitives.indexing import (
    gather as gathers,
    indexing as slices,
    scatter as scatters,
)
from genesis_fn.primitives.indexing.gather_dims import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
)


def dynamic_slice(
    operand: ArrayLike,
    start_indices: Array | Sequence[ArrayLike],
    slice_sizes: Sequence[int],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Array:
    """Return operand[s : s + size] along every dimension, for starts s that may be values.

    `start_indices`: one integer per dimension, or a 1-d array of them; negative ones count from the
    end unless `allow_negative_indices` is False. A start is then moved until the slice fits.
    """
    return slices.dynamic_slice(
        array(operand), start_indices, slice_sizes, allow_negative_indices=allow_negative_indices
    )


def dynamic_slice_in_dim(
    operand: ArrayLike,
    start_index: ArrayLike,
    slice_size: int,
    axis: int = 0,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Return operand[start : start + size] along one axis."""
    return slices.dynamic_slice_in_dim(
        array(operand), start_index, slice_size, axis, allow_negative_indices=allow_negative_indices
    )


def dynamic_index_in_dim(
    operand: ArrayLike,
    index: ArrayLike,
    axis: int = 0,
    keepdims: bool = True,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Return operand[index], clamped, along one axis, which is kept with length 1 or dropped."""
    return slices.dynamic_index_in_dim(
        array(operand), index, axis, keepdims, allow_negative_indices=allow_negative_indices
    )


def dynamic_update_slice(
    operand: ArrayLike,
    update: ArrayLike,
    start_indices: Array | Sequence[ArrayLike],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Array:
    """Return `operand` with `update` in place of the slice of its shape at `start_indices`.

    Starts are treated as in `dynamic_slice`.
    """
    return slices.dynamic_update_slice(
        array(operand), array(update), start_indices, allow_negative_indices=allow_negative_indices
    )


def dynamic_update_slice_in_dim(
    operand: ArrayLike,
    update: ArrayLike,
    start_index: ArrayLike,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Return `operand` with `update` written from `start_index` on along one axis."""
    return slices.dynamic_update_slice_in_dim(
        array(operand),
        array(update),
        start_index,
        axis,
        allow_negative_indices=allow_negative_indices,
    )


def dynamic_update_index_in_dim(
    operand: ArrayLike,
    update: ArrayLike,
    index: ArrayLike,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Return `operand` with `update`, which may lack the axis, written at `index` along it."""
    return slices.dynamic_update_index_in_dim(
        array(operand), array(update), index, axis, allow_negative_indices=allow_negative_indices
    )


def scatter(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Return `operand` with the windows `updates` in place of its own values.

    `dimension_numbers` maps dimensions of windows and indices to those of the operand; see
    ScatterDimensionNumbers. `mode` says what an index out of bounds does; None drops its window.
    `unique_indices` promises that no two windows overlap.
    """
    return scatters.scatter(
        array(operand),
        index_array(scatter_indices),
        array(updates),
        dimension_numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode=mode,
    )


def scatter_add(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Return `operand` with the windows `updates` added.

    Arguments as in `scatter`.
    """
    return scatters.scatter_add(
        array(operand),
        index_array(scatter_indices),
        array(updates),
        dimension_numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode=mode,
    )


def scatter_sub(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Return `operand` with the windows `updates` subtracted.

    Arguments as in `scatter`.
    """
    return scatters.scatter_sub(
        array(operand),
        index_array(scatter_indices),
        array(updates),
        dimension_numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode=mode,
    )


def scatter_mul(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Return `operand` multiplied by the windows `updates`.

    Arguments as in `scatter`.
    """
    return scatters.scatter_mul(
        array(operand),
        index_array(scatter_indices),
        array(updates),
        dimension_numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode=mode,
    )


def scatter_min(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Return the minimum of `operand` and the windows `updates`.

    Arguments as in `scatter`.
    """
    return scatters.scatter_min(
        array(operand),
        index_array(scatter_indices),
        array(updates),
        dimension_numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode=mode,
    )


def scatter_max(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Return the maximum of `operand` and the windows `updates`.

    Arguments as in `scatter`.
    """
    return scatters.scatter_max(
        array(operand),
        index_array(scatter_indices),
        array(updates),
        dimension_numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode=mode,
    )


def gather(
    operand: ArrayLike,
    start_indices: ArrayLike,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: str | GatherScatterMode | None = None,
    fill_value: ArrayLike | None = None,
) -> Array:
    """Windows of `operand` at `start_indices`; see GatherDimensionNumbers.

    `mode` None clips: a window is moved inside the operand.
    """
    return gathers.gather(
        array(operand),
        index_array(start_indices),
        dimension_numbers,
        slice_sizes,
        unique_indices=unique_indices,
        indices_are_sorted=indices_are_sorted,
        mode="clip" if mode is None else mode,
        fill_value=fill_value,
    )


def index_take(src: ArrayLike, idxs: Sequence[Any], axes: Sequence[int]) -> Array:
    """src[idxs[0], idxs[1], ...] along `axes`, for vectors of indices that wrap around."""
    return gathers.index_take(array(src), [array(i) for i in idxs], axes)


def scatter_apply(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    func: Callable[[Array], ArrayLike],
    dimension_numbers: ScatterDimensionNumbers,
    *,
    update_shape: Sequence[int] = (),
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """`operand` with `func` applied to the indexed windows, once to each element."""
    operand, scatter_indices = array(operand), index_array(scatter_indices)
    counts = scatters.scatter_add(
        shapes.broadcast_in_dim(from_numpy(np.zeros((), np.int32)), operand.aval.shape, ()),
        scatter_indices,
        shapes.broadcast_in_dim(from_numpy(np.ones((), np.int32)), tuple(update_shape), ()),
        dimension_numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode=mode,
    )
    new, old = promote_arrays("scatter_apply", (func(operand), operand))
    shape = counts.aval.shape  # `func` may give one number for all elements
    return select(gt(counts, 0), broadcast(new, shape), broadcast(old, shape))
