"""Arrays with their elements repeated, moved, inserted or removed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np

from genesis_fn.core import dtypes
from genesis_fn.core.array import Array
from genesis_fn.core.primitive import Tracer, with_weak
from genesis_fn.core.types.annotations import ArrayLike, Axis
from genesis_fn.lax.creation import asarray
from genesis_fn.lax.promotion import broadcast, value
from genesis_fn.numpy.arrays.conversion import concrete, host
from genesis_fn.numpy.indexing.selection import take
from genesis_fn.numpy.manipulation.shapes import (
    broadcast_to,
    concatenate,
    front_axes,
    moveaxis,
    ndim,
    on_axis,
    ravel,
)
from genesis_fn.numpy.manipulation.sorting import argsort, searchsorted, sort
from genesis_fn.numpy.mathematics.composed import remainder, where
from genesis_fn.numpy.mathematics.ufuncs import maximum, minimum
from genesis_fn.primitives import shape as p
from genesis_fn.primitives.elementwise import convert
from genesis_fn.primitives.indexing.indexing import dynamic_slice_in_dim
from genesis_fn.primitives.reductions.cumulative import cumsum
from genesis_fn.primitives.shape import canonical_axes, canonical_axis


def repeat(
    a: ArrayLike,
    repeats: ArrayLike | Sequence[int],
    axis: int | None = None,
    *,
    total_repeat_length: int | None = None,
) -> Array:
    """Each element (or slice along `axis`) of `a` repeated `repeats` times, in order.

    Traced `repeats` need `total_repeat_length`; the last element fills what is left over.
    """
    a, axis = on_axis("repeat", a, axis)
    n = a.aval.shape[axis]
    if not _is_traced(repeats):
        counts = host(concrete(repeats, "index")) if isinstance(repeats, Array) else repeats
        counts = np.asarray(counts)
        if counts.ndim == 0 or counts.size == 1:
            count = int(counts.reshape(()))
            if total_repeat_length is None:
                front, back = a.aval.shape[:axis], a.aval.shape[axis + 1 :]
                wide = p.broadcast_in_dim(
                    a, (*front, n, count, *back), [*range(axis + 1), *range(axis + 2, a.ndim + 1)]
                )
                return p.reshape(wide, (*front, n * count, *back))
            counts = np.full(n, count)
        if counts.shape != (n,):
            raise ValueError(f"repeat: {counts.shape} repeats for {n} elements along axis {axis}")
        positions = np.repeat(np.arange(n), counts)
        if total_repeat_length is not None:
            positions = positions[:total_repeat_length]
            missing = total_repeat_length - len(positions)
            positions = np.concatenate([positions, np.full(missing, max(n - 1, 0), np.int64)])
        index: Any = asarray(positions.astype(np.int32))
    else:
        if total_repeat_length is None:
            concrete(repeats, "index")
        ends = cumsum(broadcast(repeats, (n,)), 0)
        # Result i repeats the element whose range, up to `ends`, holds i.
        results = p.iota(dtypes.I32, total_repeat_length)  # pyright: ignore[reportArgumentType]
        index = minimum(searchsorted(ends, results, side="right"), n - 1)
    return take(a, index, axis, mode="clip")


def roll(a: ArrayLike, shift: ArrayLike | Sequence[int], axis: Axis = None) -> Array:
    """`a` with elements moved cyclically by `shift` along `axis` (flattened for None)."""
    a = value(a, "roll")
    if axis is None:
        return p.reshape(roll(ravel(a), shift, 0), a.aval.shape)
    axes = (
        canonical_axes(axis, a.ndim, "roll")
        if isinstance(axis, int)
        else tuple([canonical_axis(x, a.ndim, "roll") for x in axis])
    )
    steps: Any = shift
    shifts = list(steps) if ndim(shift) else [steps] * len(axes)
    if len(axes) == 1 and len(shifts) > 1:
        axes = axes * len(shifts)
    if len(shifts) != len(axes):
        raise ValueError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    for s, ax in zip(shifts, axes):
        n = a.aval.shape[ax]
        if n < 2:
            continue
        if isinstance(s, Tracer) and s.concrete() is None:
            start = remainder(-s, n)
            a = dynamic_slice_in_dim(concatenate([a, a], ax), start, n, ax)
            continue
        s = operator.index(s) % n
        if s:
            head, tail = p.split(a, (n - s, s), ax)
            a = p.concatenate([tail, head], ax)
    return a


# ---- inserting and removing ----


def kept(x: Array, positions: np.ndarray | Sequence[int], axis: int) -> Array:
    """The elements of `x` at the known `positions` along `axis`."""
    return take(x, asarray(np.asarray(positions, np.int32)), axis, mode="clip")


def delete(
    arr: ArrayLike,
    obj: slice | ArrayLike | Sequence[int],
    axis: int | None = None,
    *,
    assume_unique_indices: bool = False,
) -> Array:
    """`arr` without the slices at index, slice or indices `obj` along `axis`; None flattens.

    The indices must be known while tracing, unless `obj` is a traced scalar, or
    `assume_unique_indices` says that no two are the same.
    """
    x, axis = on_axis("delete", arr, axis)
    n = x.aval.shape[axis]
    if _is_traced(obj) and obj.ndim == 0:
        positions = p.iota(dtypes.I32, n - 1)
        i = where(obj < 0, obj + n, obj)
        return take(x, positions + (positions >= i), axis, mode="clip")
    if assume_unique_indices and _is_traced(obj) and dtypes.is_integer(obj.dtype):
        count = obj.size
        gone = sort(ravel(where(obj < 0, obj + n, obj))) - p.iota(obj.dtype, count)
        positions = p.iota(dtypes.I32, n - count)
        return take(x, positions + searchsorted(gone, positions, "right"), axis, mode="clip")
    if isinstance(obj, slice):
        return kept(x, np.delete(np.arange(n), obj), axis)
    indices = host(concrete(obj, "index")) if isinstance(obj, Array) else np.asarray(obj)
    if indices.size == 0:
        indices = indices.astype(np.int64)
    return kept(x, np.delete(np.arange(n), indices), axis)


def _is_traced(x: Any) -> TypeGuard[Tracer]:
    return isinstance(x, Tracer) and x.concrete() is None


def insert(
    arr: ArrayLike,
    obj: slice | ArrayLike | Sequence[int],
    values: ArrayLike | Sequence[Any],
    axis: int | None = None,
) -> Array:
    """`arr` with `values` inserted before the indices `obj` along `axis`; None flattens.

    Indices outside are an error where they are known, and clamped where they are traced.
    """
    x, axis = on_axis("insert", arr, axis)
    n = x.aval.shape[axis]
    traced = obj if _is_traced(obj) else None
    if isinstance(obj, slice):
        indices: Any = np.arange(*obj.indices(n))
    elif traced is not None:
        if not dtypes.is_integer(traced.dtype):
            raise TypeError(f"insert: the indices must be integers, got {traced.aval}")
        indices = traced
    else:
        indices = host(concrete(obj, "index")) if isinstance(obj, Array) else np.asarray(obj)
    new = convert(asarray(values), x.dtype)
    scalar = indices.ndim == 0 or indices.size == 1
    if indices.ndim == 0:
        # NumPy: a scalar index inserts the values as given, with their leading axis at `axis`.
        new = moveaxis(front_axes(new, x.ndim), 0, axis) if new.ndim else front_axes(new, x.ndim)
    new = front_axes(new, x.ndim)
    count = new.aval.shape[axis] if scalar else indices.size
    shape = list(x.aval.shape)
    shape[axis] = count
    new = broadcast_to(new, shape)
    if traced is not None:
        at = ravel(minimum(maximum(where(traced < 0, traced + n, traced), 0), n))
        # A new slice belongs before the one at its index, after what was inserted there earlier.
        order = concatenate([2 * p.iota(at.dtype, n) + 1, broadcast_to(2 * at, (count,))])
        return take(concatenate([x, new], axis), argsort(order), axis, mode="clip")
    origin = np.insert(
        np.arange(n),
        np.repeat(indices.reshape(-1), count) if scalar else indices,
        n + np.arange(count),
    )
    return with_weak(kept(concatenate([x, new], axis), origin, axis), x.weak)


def trim_zeros(filt: ArrayLike, trim: str = "fb", axis: int | Sequence[int] | None = None) -> Array:
    """An array without leading ("f") and trailing ("b") zeros along `axis`, one or several, by
    default every axis; needs concrete values."""
    x = value(filt, "trim_zeros")
    if not x.ndim:
        return x
    found = np.nonzero(host(concrete(x, "index")))
    given = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    axes = {canonical_axis(i, x.ndim, "trim_zeros") for i in given}
    if not axes or not {*trim.lower()} & {*"fb"}:
        return x
    if not found or not found[0].size:
        return p.slice(
            x, (0,) * x.ndim, [0 if i in axes else n for i, n in enumerate(x.aval.shape)]
        )
    whole = [
        (i, n) if a in axes else (np.array([0, n - 1]), n)
        for a, (i, n) in enumerate(zip(found, x.aval.shape))
    ]
    first = [int(i.min()) if "f" in trim.lower() else 0 for i, _ in whole]
    last = [int(i.max()) + 1 if "b" in trim.lower() else n for i, n in whole]
    return p.slice(x, first, last)
