"""Reductions by segment: out[s] combines data[i] over all i with segment_ids[i] == s."""

from __future__ import annotations

from typing import Any

import genesis_fn.numpy as np
from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where


def _segments(ids: Any, count: int | None) -> tuple[Any, int]:
    """(ids with those of no segment moved past the end, number of segments)."""
    ids = as_array(ids)
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
    return np.where(ids < 0, count, ids), int(count)


def _extremes(kind: Any) -> tuple[Any, Any]:
    if kind == dtypes.BOOL:
        return False, True
    if dtypes.is_integer(kind):
        return dtypes.iinfo(kind).min, dtypes.iinfo(kind).max
    return -float("inf"), float("inf")


def _combine(how: str, start: Any, data: Any, ids: Any, count: int | None) -> Any:
    data = as_array(data)
    ids, count = _segments(ids, count)
    out = np.full((count, *data.shape[ids.ndim :]), start, dtype=data.dtype)
    return getattr(out.at[ids], how)(data, mode="drop")


def segment_sum(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
) -> Any:
    """The sums over segments; ids outside [0, num_segments) belong to none, empty ones are 0."""
    return _combine("add", 0, data, segment_ids, num_segments)


def segment_prod(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
) -> Any:
    """The products over segments; an empty one is 1."""
    return _combine("multiply", 1, data, segment_ids, num_segments)


def segment_max(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
) -> Any:
    """The greatest values of segments; an empty one is the least value of the dtype."""
    data = as_array(data)
    return _combine("max", _extremes(data.dtype)[0], data, segment_ids, num_segments)


def segment_min(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
) -> Any:
    """The least values of segments; an empty one is the greatest value of the dtype."""
    data = as_array(data)
    return _combine("min", _extremes(data.dtype)[1], data, segment_ids, num_segments)
