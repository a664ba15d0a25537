"""Sets, counting and searching by value. Results whose size depends on values take `size=` under a
trace: further elements are dropped, missing ones are `fill_value`."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast, overload

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where as user_line
from genesis_fn.core.primitive import Tracer, with_weak
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.lax.creation import asarray
from genesis_fn.lax.promotion import (
    inexact_dtype,
    inexact_value,
    promote_arrays,
    result_type,
    strong,
    value,
)
from genesis_fn.numpy.arrays.conversion import concrete, host
from genesis_fn.numpy.arrays.grids import linspace
from genesis_fn.numpy.indexing.selection import nonzero, take
from genesis_fn.numpy.manipulation.shapes import (
    broadcast_to,
    concatenate,
    flip,
    moveaxis,
    ndim,
    ravel,
)
from genesis_fn.numpy.manipulation.sorting import argsort, lexsort, searchsorted, sort
from genesis_fn.numpy.mathematics.composed import isnan, where
from genesis_fn.numpy.mathematics.reductions import any as any_of, cumsum, sum as sum_over
from genesis_fn.numpy.mathematics.ufuncs import (
    add,
    equal,
    greater_equal,
    less,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    not_equal,
    subtract,
)
from genesis_fn.primitives import elementwise as p
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.indexing.scatter import segment_sum
from genesis_fn.primitives.shape import iota, reshape, slice_in_dim


def flatnonzero(
    a: ArrayLike,
    *,
    size: int | None = None,
    fill_value: ArrayLike | Sequence[ArrayLike] | None = None,
) -> Array:
    """The int32 positions of nonzero elements in the flattened array."""
    return nonzero(ravel(a), size=size, fill_value=fill_value)[0]


def argwhere(
    a: ArrayLike,
    *,
    size: int | None = None,
    fill_value: ArrayLike | Sequence[ArrayLike] | None = None,
) -> Array:
    """The index vectors of nonzero elements, one per row."""
    a = value(a, "argwhere")
    if a.ndim == 0:
        found = nonzero(reshape(a, (1,)), size=size, fill_value=fill_value)[0]
        return full((found.size, 0), 0, dtypes.default_int())
    columns = nonzero(a, size=size, fill_value=fill_value)
    return concatenate([reshape(c, (c.size, 1)) for c in columns], 1)


# ---- unique ----


class UniqueAll(NamedTuple):
    """Results of `unique_all`."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """Results of `unique_counts`."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """Results of `unique_inverse`."""

    values: Array
    inverse_indices: Array


@overload
def unique(
    ar: ArrayLike,
    return_index: Literal[False] = False,
    return_inverse: Literal[False] = False,
    return_counts: Literal[False] = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: ArrayLike | Sequence[Any] | None = None,
    sorted: bool = True,
) -> Array: ...


@overload
def unique(
    ar: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: ArrayLike | Sequence[Any] | None = None,
    sorted: bool = True,
) -> PyTree: ...


def unique(
    ar: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: ArrayLike | Sequence[Any] | None = None,
    sorted: bool = True,
) -> PyTree:
    """The sorted distinct elements of `ar` (slices along `axis`), and on request the first index,
    the index of each element among them, and counts.

    Under a trace give `size`; missing elements are `fill_value`, by default the least.
    """
    ar = value(ar, "unique")
    shape = ar.aval.shape
    if axis is None:
        rows, kept = reshape(ar, (ar.size, 1)), None
    else:
        axis = operator.index(axis) % ar.ndim
        moved = moveaxis(ar, axis, 0)
        kept = moved.aval.shape
        rows = reshape(moved, (kept[0], int(np.prod(kept[1:]))))
    order, first = _runs(rows, equal_nan)
    n = rows.aval.shape[0]
    index_type = dtypes.default_int()
    run = p.sub(cumsum(p.convert(first, index_type), 0), 1) if n else full((0,), 0, index_type)
    if n:
        # One more than is asked for: where the last one that is kept ends.
        (starts,) = nonzero(first, size=None if size is None else size + 1, fill_value=n)
        if size is None:
            ends = concatenate([starts[1:], full((1,), n, index_type)])
        else:
            starts, ends = starts[:size], starts[1:]
    else:
        starts = ends = full((size or 0,), 0, index_type)
    count = starts.aval.shape[0]
    where_first = take(order, starts, mode="clip") if n else starts
    values = take(rows, where_first, 0, mode="clip") if n else rows
    if size is not None and n and count:
        missing = greater_equal(starts, n)
        if fill_value is None:
            fill = slice_in_dim(values, 0, 1)
        else:
            fill = p.convert(asarray(fill_value), rows.dtype)
            width = (1,) if kept is None else kept[1:]
            fill = reshape(broadcast_to(fill, width), (1, rows.aval.shape[1]))
        values = where(reshape(missing, (count, 1)), fill, values)
        where_first = where(missing, slice_in_dim(where_first, 0, 1), where_first)
    values = (
        reshape(values, (count,))
        if kept is None
        else moveaxis(reshape(values, (count, *kept[1:])), 0, cast(int, axis))
    )
    result = [strong(values) if dtypes.is_complex(values.dtype) else values]
    if return_index:
        result.append(where_first)
    if return_inverse:
        inverse = full((n,), 0, index_type).at[order].set(run) if n else order
        result.append(reshape(inverse, shape if kept is None else (n,)))
    if return_counts:
        result.append(subtract(ends, starts))
    return result[0] if len(result) == 1 else tuple(result)


def _runs(rows: Any, equal_nan: bool) -> tuple[Array, Array]:
    """(positions that sort the rows, which sorted rows differ from the one before)."""
    n, width = rows.aval.shape
    if not n or not width:
        return iota(dtypes.default_int(), n), p.eq(iota(dtypes.I32, n), 0)
    columns = [reshape(slice_in_dim(rows, i, i + 1, axis=1), (n,)) for i in range(width)]
    if equal_nan and dtypes.is_complex(rows.dtype):  # NaN in either part, so that all come last
        columns = [where(isnan(c), complex(math.nan, math.nan), c) for c in columns]
    order = argsort(columns[0]) if width == 1 else lexsort(columns[::-1])
    ordered = take(rows, order, 0, mode="clip")
    before, after = slice_in_dim(ordered, 0, n - 1), slice_in_dim(ordered, 1, n)
    differ = not_equal(before, after)
    if equal_nan:
        differ = logical_and(differ, logical_not(logical_and(isnan(before), isnan(after))))
    return order, concatenate([full((1,), True, dtypes.BOOL), any_of(differ, 1)])


def unique_values(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> Array:
    """The sorted distinct elements; NaNs are distinct."""
    return unique(x, equal_nan=False, size=size, fill_value=fill_value)


def unique_counts(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueCounts:
    """(distinct elements, how often each occurs)."""
    return UniqueCounts(
        *unique(x, return_counts=True, equal_nan=False, size=size, fill_value=fill_value)
    )


def unique_inverse(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueInverse:
    """(distinct elements, the position of each element of `x` among them)."""
    return UniqueInverse(
        *unique(x, return_inverse=True, equal_nan=False, size=size, fill_value=fill_value)
    )


def unique_all(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueAll:
    """(distinct elements, first indices, inverse, counts)."""
    return UniqueAll(
        *unique(x, True, True, True, equal_nan=False, size=size, fill_value=fill_value)
    )


# ---- membership ----


def isin(
    element: ArrayLike | Sequence[Any],
    test_elements: ArrayLike | Sequence[Any],
    assume_unique: bool = False,
    invert: bool = False,
    *,
    method: str = "auto",
) -> Array:
    """Whether each of `element` is among `test_elements` (or is not, with `invert`)."""
    x, tests = promote_arrays("isin", (asarray(element), asarray(test_elements)))
    tests = ravel(tests)
    if not tests.size:
        found = full(x.aval.shape, False, dtypes.BOOL)
    elif dtypes.is_complex(x.dtype):
        wide = reshape(x, (*x.aval.shape, 1))
        found = any_of(equal(wide, tests), -1)
    else:
        tests = sort(tests)
        index = minimum(searchsorted(tests, x), tests.size - 1)
        found = equal(take(tests, index, mode="clip"), x)
    return strong(logical_not(found) if invert else found)


in1d = isin


def _vector(x: Any, assume_unique: bool) -> Array:
    x = ravel(asarray(x))
    return x if assume_unique else unique(x)


@overload
def intersect1d(
    ar1: ArrayLike | Sequence[Any],
    ar2: ArrayLike | Sequence[Any],
    assume_unique: bool = False,
    return_indices: Literal[False] = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array: ...


@overload
def intersect1d(
    ar1: ArrayLike | Sequence[Any],
    ar2: ArrayLike | Sequence[Any],
    assume_unique: bool = False,
    *,
    return_indices: Literal[True],
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> tuple[Array, Array, Array]: ...


@overload
def intersect1d(
    ar1: ArrayLike | Sequence[Any],
    ar2: ArrayLike | Sequence[Any],
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> PyTree: ...


def intersect1d(
    ar1: ArrayLike | Sequence[Any],
    ar2: ArrayLike | Sequence[Any],
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> PyTree:
    """The sorted elements that are in both; with `return_indices`, where they are first."""
    x, y = promote_arrays("intersect1d", (ravel(asarray(ar1)), ravel(asarray(ar2))))
    if size is None:
        xs, i = unique(x, return_index=True)
        ys, j = unique(y, return_index=True)
        kept = isin(xs, ys)
        (at,) = nonzero(kept)
        values = take(xs, at)
        values = strong(values)
        if not return_indices:
            return values
        return values, take(i, at), take(j, searchsorted(ys, values))
    both = logical_and(_firsts(x), isin(x, y))
    values, i = _packed(x, both, size, fill_value)
    values = strong(values)
    if not return_indices:
        return values
    ordered = argsort(y)
    j = take(ordered, minimum(searchsorted(take(y, ordered), values), max(y.size - 1, 0)))
    missing = greater_equal(i, x.size)
    return values, i, where(missing, y.size, j)


def _firsts(x: Any) -> Array:
    """Which elements of a vector have no equal before them."""
    order, first = _runs(reshape(x, (x.size, 1)), True)
    return full((x.size,), False, dtypes.BOOL).at[order].set(first)


def _packed(x: Any, mask: Any, size: int, fill_value: Any) -> tuple[Array, Array]:
    """(the selected elements sorted, filled up to `size`; their positions)."""
    order = argsort(x)
    (slots,) = nonzero(take(mask, order), size=size, fill_value=x.size)
    missing = greater_equal(slots, x.size)
    values = take(x, take(order, slots, mode="clip"), mode="clip")
    if fill_value is None:
        fill = sort(where(mask, x, values[0] if size else x))[0]
    else:
        fill = fill_value
    return where(missing, fill, values), where(missing, x.size, take(order, slots, mode="clip"))


def union1d(
    ar1: ArrayLike | Sequence[Any],
    ar2: ArrayLike | Sequence[Any],
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array:
    """The sorted elements that are in either."""
    x, y = promote_arrays("union1d", (ravel(asarray(ar1)), ravel(asarray(ar2))))
    return unique(concatenate([x, y]), size=size, fill_value=fill_value)


def setdiff1d(
    ar1: ArrayLike | Sequence[Any],
    ar2: ArrayLike | Sequence[Any],
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array:
    """The elements of `ar1` that are not in `ar2`, sorted and distinct unless `assume_unique`."""
    x = ravel(asarray(ar1))
    if size is None:
        x = _vector(x, assume_unique)
        return take(x, nonzero(isin(x, ar2, invert=True))[0])
    keep = logical_and(_firsts(x), isin(x, ar2, invert=True))
    fill = asarray(0 if fill_value is None else fill_value, x.dtype)
    return with_weak(_packed(x, keep, size, fill)[0], x.weak and not dtypes.is_complex(x.dtype))


def setxor1d(
    ar1: ArrayLike | Sequence[Any],
    ar2: ArrayLike | Sequence[Any],
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array:
    """The sorted elements that are in exactly one of the two."""
    x, y = promote_arrays("setxor1d", (ravel(asarray(ar1)), ravel(asarray(ar2))))
    both = concatenate([x, y])
    if assume_unique:
        order = argsort(both)
        ordered = take(both, order)
        ends = full((min(both.size, 1),), True, dtypes.BOOL)
        new = concatenate([ends, not_equal(ordered[1:], ordered[:-1]), ends])
        alone = logical_and(new[1:], new[:-1])  # equal to neither neighbour
        if size is None:
            return ordered[alone]
        alone = full((both.size,), False, dtypes.BOOL).at[order].set(alone)
        return _packed(both, alone, size, fill_value)[0]
    if size is None:
        x, y = unique(x), unique(y)
        return sort(concatenate([x[isin(x, y, invert=True)], y[isin(y, x, invert=True)]]))
    once = concatenate([isin(x, y, invert=True), isin(y, x, invert=True)])
    return _packed(both, logical_and(once, _firsts(both)), size, fill_value)[0]


# ---- counting ----


def bincount(
    x: ArrayLike | Sequence[Any],
    weights: ArrayLike | Sequence[Any] | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
) -> Array:
    """How often each integer from 0 occurs in the vector `x`, or the sum of its weights.

    Under a trace give `length`, the length of the result; larger values are dropped, and negative
    ones count as 0.
    """
    x = asarray(x)
    if x.dtype == dtypes.BOOL:
        x = p.convert(x, dtypes.I32)
    if x.ndim != 1 or not (dtypes.is_integer(x.dtype) or not x.size):
        raise TypeError(f"bincount takes a vector of integers, got {x.aval}")
    minlength = operator.index(minlength)
    if length is None:
        if isinstance(x, Tracer) and x.concrete() is None:
            raise errors.ConcretizationTypeError(
                f"bincount of the traced {x.aval}: the length of the result depends on values\n"
                f"  made at {x.origin()}\n  used at {user_line(depth=3).describe()}\n  give length="
            )
        values = host(concrete(x, "index"))
        length = max(minlength, int(values.max()) + 1 if values.size else 0)
    data = full(x.aval.shape, 1, dtypes.default_int()) if weights is None else asarray(weights)
    if data.aval.shape != x.aval.shape:
        raise errors.ShapeError(f"bincount: weights {data.aval} do not fit {x.aval}")
    ids = p.convert(x, dtypes.I32) if x.dtype != dtypes.I32 else x
    return strong(segment_sum(data, maximum(ids, 0), length, mode="drop"))


def digitize(
    x: ArrayLike | Sequence[Any],
    bins: int | ArrayLike | Sequence[Any],
    right: bool = False,
    *,
    method: str | None = None,
) -> Array:
    """The bin of each element of `x` among the monotonic edges `bins`, as int32."""
    x, bins = asarray(x), asarray(bins)
    if bins.ndim != 1:
        raise ValueError(f"digitize: bins must be a vector, got {bins.aval}")
    side = "left" if right else "right"
    if not bins.size:
        return full(x.aval.shape, 0, dtypes.I32)
    rising = greater_equal(bins[-1], bins[0])
    up = searchsorted(bins, x, side=side)
    down = subtract(bins.size, searchsorted(flip(bins), x, side=side))
    return where(rising, up, down)


def histogram_bin_edges(
    a: ArrayLike | Sequence[Any],
    bins: int | ArrayLike | Sequence[Any] = 10,
    range: Sequence[ArrayLike] | None = None,
    weights: ArrayLike | None = None,
) -> Array:
    """The edges of `bins` equal bins over `range`, by default from the least to the greatest."""
    if isinstance(bins, str):
        raise ValueError(f"histogram: bins must be a number or edges, got {bins!r}")
    if ndim(bins):
        return asarray(bins)
    a = ravel(inexact_value(asarray(a)))
    if range is None:
        low, high = (a.min(), a.max()) if a.size else (asarray(0.0, a.dtype), asarray(1.0, a.dtype))
    else:
        low, high = [p.convert(asarray(r), a.dtype) for r in range]
    flat = equal(low, high)
    low, high = where(flat, subtract(low, 0.5), low), where(flat, add(high, 0.5), high)
    return linspace(low, high, operator.index(cast(int, bins)) + 1)


def histogram(
    a: ArrayLike | Sequence[Any],
    bins: int | ArrayLike | Sequence[Any] = 10,
    range: Sequence[ArrayLike] | None = None,
    weights: ArrayLike | Sequence[Any] | None = None,
    density: bool | None = None,
) -> tuple[Array, Array]:
    """(how many elements of `a` fall in each bin, the bins' edges); the last bin is closed."""
    a = asarray(a)
    edges = histogram_bin_edges(a, bins, range)
    # Edges and weights are made to fit, whatever their dtypes are.
    d = inexact_dtype(result_type(a, edges))
    flat, edges = p.convert(ravel(a), d), p.convert(edges, d)
    if weights is None:
        w = full(flat.aval.shape, 1.0, flat.dtype)
    else:
        d = inexact_dtype(result_type(a, asarray(weights)))
        w = strong(ravel(p.convert(asarray(weights), d)))
    n = edges.size - 1
    index = subtract(searchsorted(edges, flat, side="right"), 1)
    index = where(equal(flat, edges[-1]), n - 1, index)
    outside = logical_or(
        less(flat, edges[0]), p.gt(flat, full(flat.aval.shape, 0.0, flat.dtype) + edges[-1])
    )
    counts = segment_sum(w, where(logical_or(outside, isnan(flat)), n, index), n, mode="drop")
    if density:
        widths = subtract(edges[1:], edges[:-1])
        counts = counts / widths / sum_over(counts)
    return counts, edges
