"""Reductions by segment: out[s] combines data[i] over all i with segment_ids[i] == s."""

from __future__ import annotations

from enum import Enum

import genesis_fn.numpy as np
from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.dtypes import DType
from genesis_fn.core.types.annotations import Array, ArrayLike, Scalar
from genesis_fn.lax.creation import index_array
from genesis_fn.lax.promotion import strong
from genesis_fn.primitives.indexing import scatter as scatters


def _segments(ids: ArrayLike, count: int | None) -> tuple[Array, int]:
    """(ids, number of segments)."""
    ids = as_array(ids) if count is None else index_array(ids)
    if not dtypes.is_integer(ids.dtype):
        raise errors.DTypeError(
            f"segment ids must be integers, got {ids.aval}\n  at {where(depth=4).describe()}"
        )
    if count is None:
        if type(ids) is not ArrayImpl:
            raise errors.ConcretizationTypeError(
                f"num_segments must be given in traced code\n  at {where(depth=4).describe()}"
            )
        count = int(np.max(ids)) + 1 if ids.size else 0
    return ids, int(count)


def _extremes(dtype: DType) -> tuple[Scalar, Scalar]:
    if dtype == dtypes.BOOL:
        return False, True
    if dtypes.is_integer(dtype):
        return dtypes.iinfo(dtype).min, dtypes.iinfo(dtype).max
    return -float("inf"), float("inf")


def _combine(
    how: str,
    start: Scalar,
    data: ArrayLike,
    ids: ArrayLike,
    count: int | None,
    indices_are_sorted: bool,
    unique_indices: bool,
) -> Array:
    data = as_array(data)
    ids, count = _segments(ids, count)
    out = np.full((count, *data.shape[ids.ndim :]), start, dtype=data.dtype)
    # Negative ids stay what they are: they belong to no segment, and are not counted from the end.
    return getattr(out.at[ids], how)(
        data,
        mode="drop",
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        wrap_negative_indices=False,
    )


def _added(
    data: ArrayLike,
    ids: ArrayLike,
    count: int | None,
    indices_are_sorted: bool,
    unique_indices: bool,
    deterministic: bool | None,
) -> Array:
    ids, count = _segments(ids, count)
    summed = scatters.segment_sum(
        as_array(data),
        ids,
        count,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        deterministic=deterministic,
        mode="drop",
    )
    return strong(summed)


def segment_sum(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str | Enum | None = None,
    *,
    deterministic: bool | None = None,
) -> Array:
    """The sums over segments; ids outside [0, num_segments) belong to none, empty ones are 0.

    `indices_are_sorted` and `unique_indices` are promises about the ids, which save work.
    `deterministic=False` allows another order of the sums in every run, which is faster on a GPU;
    None is as the setting `deterministic` says.
    """
    return _added(
        data, segment_ids, num_segments, indices_are_sorted, unique_indices, deterministic
    )


def segment_prod(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str | Enum | None = None,
) -> Array:
    """The products over segments; an empty one is 1."""
    return _combine(
        "multiply", 1, data, segment_ids, num_segments, indices_are_sorted, unique_indices
    )


def segment_max(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str | Enum | None = None,
) -> Array:
    """The greatest values of segments; an empty one is the least value of the dtype."""
    data = as_array(data)
    return _combine(
        "max",
        _extremes(data.dtype)[0],
        data,
        segment_ids,
        num_segments,
        indices_are_sorted,
        unique_indices,
    )


def segment_min(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str | Enum | None = None,
) -> Array:
    """The least values of segments; an empty one is the greatest value of the dtype."""
    data = as_array(data)
    return _combine(
        "min",
        _extremes(data.dtype)[1],
        data,
        segment_ids,
        num_segments,
        indices_are_sorted,
        unique_indices,
    )
