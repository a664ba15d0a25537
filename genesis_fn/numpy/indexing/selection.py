"""Selecting elements by positions, conditions and axes: take, put, where, nonzero, choose."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import from_numpy
from genesis_fn.core.diagnostics.source_info import where as user_line
from genesis_fn.core.primitive import Tracer, with_weak
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.creation import asarray, index_array
from genesis_fn.lax.promotion import broadcast, scalar_as, value
from genesis_fn.numpy.arrays.conversion import concrete, host
from genesis_fn.numpy.indexing.index_expressions import (
    Indexer,
    bad_index,
    checked_mode,
    gathered,
    take_indexed,
)
from genesis_fn.numpy.indexing.updates import Update
from genesis_fn.numpy.manipulation.shapes import (
    broadcast_arrays,
    moveaxis,
    on_axis,
    ravel,
    resize,
    stack,
)
from genesis_fn.numpy.mathematics.composed import remainder, where as choice
from genesis_fn.numpy.mathematics.ufuncs import add, equal, less, maximum, minimum, truth
from genesis_fn.primitives import elementwise as p
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.indexing.gather_dims import GatherScatterMode
from genesis_fn.primitives.reductions.cumulative import cumsum
from genesis_fn.primitives.reductions.reduce import reduce_or, reduce_sum
from genesis_fn.primitives.shape import canonical_axis, iota, reshape


def take(
    a: ArrayLike,
    indices: ArrayLike | Sequence[Any],
    axis: int | None = None,
    out: None = None,
    mode: str | GatherScatterMode | None = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: ArrayLike | None = None,
) -> Array:
    """Elements of `a` (slices along `axis`) at `indices`; axis None reads the flattened array.

    Without `mode`, out of bounds raises IndexError. Modes: "fill" (NaN, or `fill_value`), "clip"
    (negative indices become 0), "wrap", "promise_in_bounds".
    """
    a, axis = on_axis("take", a, axis)
    indices = index_array(indices)
    if not dtypes.is_integer(indices.dtype):
        if indices.size:
            raise TypeError(f"take: indices must be integers, got {indices.aval}")
        indices = p.convert(indices, dtypes.I32)
    n = a.aval.shape[axis]
    if mode == "wrap":
        if not n and indices.size:
            raise bad_index(f"take: axis {axis} of {a.aval} is empty")
        indices, mode = remainder(indices, max(n, 1)), "promise_in_bounds"
    elif mode == "clip":
        if n:
            indices = minimum(maximum(indices, 0), n - 1)
            mode = "promise_in_bounds"
    if mode is None and fill_value is not None:
        mode = "fill"
    if indices.dtype.itemsize < 4:
        indices = p.convert(indices, dtypes.I32)
    batch = indices.aval.shape
    shape = a.aval.shape
    plan = Indexer(
        tuple([(0, m, 1) for m in shape]),
        (),
        ((axis, indices),),
        axis,
        (*shape[:axis], *batch, *shape[axis + 1 :]),
        (axis,),
    )
    return reshape(
        gathered(a, a, plan, checked_mode(mode), fill_value, indices_are_sorted, unique_indices),
        plan.shape,
    )


def _along(name: str, arr: Any, indices: Any, axis: Any) -> tuple[Array, Array, int]:
    arr, indices = value(arr, name), value(indices, name)
    if not dtypes.is_integer(indices.dtype):
        raise TypeError(f"{name}: indices must be integers, got {indices.aval}")
    if axis is None:
        arr, axis = ravel(arr), 0
        indices = ravel(indices)
    if arr.ndim != indices.ndim:
        raise errors.ShapeError(
            f"{name}: {arr.aval} and indices {indices.aval} differ in dimensions"
        )
    return arr, indices, canonical_axis(axis, arr.ndim, name)


def _along_index(x: Any, indices: Any, axis: int) -> tuple[Any, ...]:
    """An open grid over the other axes, with `indices` along `axis`; broadcast axes read 0."""
    index: list[Any] = []
    for a in range(x.ndim):
        if a == axis:
            index.append(indices)
        elif x.aval.shape[a] == 1:
            index.append(full((1,) * x.ndim, 0, dtypes.I32))
        else:
            n = x.aval.shape[a]
            index.append(reshape(iota(dtypes.I32, n), [n if i == a else 1 for i in range(x.ndim)]))
    return tuple(index)


def take_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    axis: int | None = -1,
    mode: str | GatherScatterMode | None = None,
    fill_value: ArrayLike | None = None,
    *,
    wrap_negative_indices: bool | None = None,
) -> Array:
    """arr[..., indices[..., i, ...], ...] along `axis`; the other axes broadcast.

    Without `mode`, out of bounds raises IndexError. Mode "one_hot" sums over a mask instead of
    gathering, and gives 0 out of bounds. Without `wrap_negative_indices`, by default in mode
    "promise_in_bounds", negative indices do not count from the end: they are out of bounds.
    """
    arr, indices, axis = _along("take_along_axis", arr, indices, axis)
    for a, (n, m) in enumerate(zip(arr.aval.shape, indices.aval.shape)):
        if a != axis and n != m and 1 not in (n, m):
            raise errors.ShapeError(
                f"take_along_axis: {arr.aval} and indices {indices.aval} differ along axis {a}"
            )
    if wrap_negative_indices is None:
        wrap_negative_indices = mode not in (
            "promise_in_bounds",
            GatherScatterMode.PROMISE_IN_BOUNDS,
        )
    if not wrap_negative_indices and not dtypes.is_unsigned(indices.dtype):
        indices = _unwrapped(indices, arr.aval.shape[axis], mode)
    if mode == "one_hot":
        return _by_one_hot(arr, indices, axis)
    index = _along_index(arr, indices, axis)
    return take_indexed(arr, index, checked_mode(mode), fill_value, False, False)


def _unwrapped(indices: Any, n: int, mode: Any) -> Array:
    """Negative indices as others out of bounds: the first where they are clipped."""
    if mode in ("clip", GatherScatterMode.CLIP):
        return maximum(indices, 0)
    indices = p.convert(indices, dtypes.I64 if n > 2**31 - 2 else dtypes.I32)
    return choice(less(indices, 0), n, indices)


def _by_one_hot(arr: Any, indices: Any, axis: int) -> Array:
    n = arr.aval.shape[axis]
    indices = choice(less(indices, 0), add(indices, n), indices)
    values, chosen = moveaxis(arr, axis, -1), moveaxis(indices, axis, -1)
    mask = equal(chosen[..., None], iota(dtypes.I32, n))
    if arr.dtype == dtypes.BOOL:
        return moveaxis(reduce_or(mask & values[..., None, :], (mask.ndim - 1,)), -1, axis)
    picked = choice(mask, values[..., None, :], scalar_as(0, arr.dtype))
    return moveaxis(reduce_sum(picked, (picked.ndim - 1,)), -1, axis)


def put_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    axis: int | None,
    inplace: bool = False,
    *,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """`arr` with `values` at positions `indices` along `axis`: the inverse of take_along_axis."""
    _no_inplace("put_along_axis", inplace)
    shape = value(arr).aval.shape
    arr, indices, axis = _along("put_along_axis", arr, indices, axis)
    result = Update(arr, _along_index(arr, indices, axis)).set(values, mode=mode)
    return reshape(result, shape)


def _no_inplace(name: str, inplace: bool) -> None:
    if inplace:
        raise ValueError(f"{name}: arrays are immutable; pass inplace=False and use the result")


def put(
    a: ArrayLike,
    ind: ArrayLike | Sequence[Any],
    v: ArrayLike | Sequence[Any],
    mode: str | None = None,
    *,
    inplace: bool = True,
) -> Array:
    """`a` with the flattened elements `ind` replaced by `v`, repeated as needed (inplace=False)."""
    _no_inplace("put", inplace)
    a, ind, v = value(a, "put"), ravel(asarray(ind)), ravel(asarray(v))
    if not ind.size or not v.size:
        return a
    if mode == "clip":
        ind, mode = minimum(maximum(ind, 0), a.size - 1), None
    elif mode == "wrap":
        ind, mode = remainder(ind, a.size), None
    return reshape(Update(ravel(a), ind).set(resize(v, ind.size), mode=mode), a.aval.shape)


def place(
    arr: ArrayLike, mask: ArrayLike, vals: ArrayLike | Sequence[Any], *, inplace: bool = True
) -> Array:
    """`arr` with elements where `mask` replaced by `vals` in turn (inplace=False)."""
    _no_inplace("place", inplace)
    arr, mask, vals = value(arr, "place"), ravel(truth(mask)), ravel(asarray(vals))
    if arr.size != mask.size:
        raise ValueError(f"place: {arr.aval} and the mask {mask.aval} differ in size")
    if not vals.size:
        return arr
    nth = remainder(p.sub(cumsum(p.convert(mask, dtypes.I32)), 1), vals.size)
    new = p.convert(take(vals, nth, mode="clip"), arr.dtype)
    return with_weak(reshape(choice(mask, new, ravel(arr)), arr.aval.shape), arr.weak)


def fill_diagonal(
    a: ArrayLike, val: ArrayLike | Sequence[Any], wrap: bool = False, *, inplace: bool = True
) -> Array:
    """`a` with its main diagonal set to `val`, repeated as needed (inplace=False)."""
    _no_inplace("fill_diagonal", inplace)
    a = value(a, "fill_diagonal")
    if a.ndim < 2:
        raise ValueError(f"fill_diagonal takes at least 2 dimensions, got {a.aval}")
    if a.ndim > 2 and len(set(a.aval.shape)) > 1:
        raise ValueError(f"fill_diagonal: all axes of {a.aval} must have one length")
    if a.ndim == 2 and not wrap:
        n = min(a.aval.shape)
        index: Any = (iota(dtypes.I32, n),) * 2
        count = n
    elif a.ndim == 2:
        rows, columns = a.aval.shape
        flat = np.arange(0, rows * columns, columns + 1)
        index = tuple([from_numpy(i.astype(np.int32)) for i in np.divmod(flat, columns)])
        count = flat.size
    else:
        count = a.aval.shape[0]
        index = (iota(dtypes.I32, count),) * a.ndim
    val = asarray(val)
    values = val if val.ndim == 0 else resize(ravel(val), count)
    return Update(a, index).set(values)


def nonzero(
    a: ArrayLike,
    *,
    size: int | None = None,
    fill_value: ArrayLike | Sequence[ArrayLike] | None = None,
) -> tuple[Array, ...]:
    """The indices of nonzero elements, one vector per axis.

    Under a trace `size` gives their number: further ones are dropped, missing ones are `fill_value`
    (a number, or one per axis; 0 by default).
    """
    a, index_type = value(a, "nonzero"), dtypes.default_int()
    if a.ndim == 0:
        raise ValueError("nonzero of a scalar: use atleast_1d(x)")
    if size is None:
        if isinstance(a, Tracer) and a.concrete() is None:
            raise errors.ConcretizationTypeError(
                f"nonzero of the traced {a.aval}: the number of results would depend on values\n"
                f"  made at {a.origin()}\n  used at {user_line(depth=3).describe()}\n"
                "  give size= (and fill_value=), or use jnp.where(mask, x, y)"
            )
        found = np.nonzero(host(concrete(a, "index")))
        return tuple([from_numpy(i.astype(index_type)) for i in found])
    size = operator.index(size)
    mask = ravel(truth(a))
    if fill_value is None:
        fills: Any = (0,) * a.ndim
    elif isinstance(fill_value, (tuple, list)):
        fills = tuple(fill_value)
        if len(fills) != a.ndim:
            raise ValueError(f"nonzero: {len(fills)} fill values for {a.ndim} axes")
    else:
        fills = (fill_value,) * a.ndim
    if not a.size or not size:
        return tuple([broadcast(asarray(f, index_type), (size,)) for f in fills])
    # The k-th nonzero element stands where the running count first exceeds k.
    rank = cumsum(p.convert(mask, index_type))
    slot = p.select(mask, p.sub(rank, 1), full((a.size,), size, index_type))
    flat = Update(full((size,), 0, index_type), slot).set(iota(index_type, a.size), mode="drop")
    missing = p.ge(iota(index_type, size), broadcast(rank[a.size - 1], (size,)))
    result, stride = [], a.size
    for n, f in zip(a.aval.shape, fills):
        stride //= max(n, 1)
        result.append(choice(missing, f, p.rem(p.div(flat, stride), full((size,), n, index_type))))
    return tuple([p.convert(r, index_type) for r in result])


@overload
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike, /) -> Array: ...


@overload
def where(
    condition: ArrayLike,
    x: None = None,
    y: None = None,
    /,
    *,
    size: int | None = None,
    fill_value: ArrayLike | Sequence[ArrayLike] | None = None,
) -> tuple[Array, ...]: ...


def where(
    condition: ArrayLike,
    x: ArrayLike | None = None,
    y: ArrayLike | None = None,
    /,
    *,
    size: int | None = None,
    fill_value: ArrayLike | Sequence[ArrayLike] | None = None,
) -> Array | tuple[Array, ...]:
    """x where condition, else y, elementwise; with condition only, `nonzero(condition)`."""
    if x is None and y is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if x is None or y is None:
        raise ValueError("where takes the condition alone, or both x and y")
    return choice(condition, x, y)


def compress(
    condition: ArrayLike | Sequence[Any],
    a: ArrayLike,
    axis: int | None = None,
    *,
    size: int | None = None,
    fill_value: ArrayLike = 0,
    out: None = None,
) -> Array:
    """Slices of `a` along `axis` (elements for None) where the vector `condition` is true."""
    condition = truth(asarray(condition))
    if condition.ndim != 1:
        raise ValueError(f"compress: the condition must be a vector, got {condition.aval}")
    a, axis = on_axis("compress", a, axis)
    n = a.aval.shape[axis]
    if size is None:
        (index,) = nonzero(condition)
        return take(a, index, axis)
    (index,) = nonzero(condition[:n], size=size, fill_value=n)
    return take(a, index, axis, mode="fill", fill_value=fill_value)


def extract(
    condition: ArrayLike, arr: ArrayLike, *, size: int | None = None, fill_value: ArrayLike = 0
) -> Array:
    """The elements of `arr` where `condition` is true, as a vector."""
    return compress(ravel(condition), ravel(arr), size=size, fill_value=fill_value)


def choose(
    a: ArrayLike, choices: ArrayLike | Sequence[Any], out: None = None, mode: str = "raise"
) -> Array:
    """choices[a[i]][i], elementwise. Mode "raise" checks, "clip" and "wrap" bring `a` in range."""
    rows: Any = choices  # of an array, its rows
    a, *xs = broadcast_arrays(a, *[asarray(c) for c in rows])
    if mode == "clip":
        a = minimum(maximum(a, 0), len(xs) - 1)
    elif mode == "wrap":
        a = remainder(a, len(xs))
    elif mode != "raise":
        raise ValueError(f"choose: mode {mode!r} is none of 'raise', 'clip', 'wrap'")
    table = stack(xs)
    return reshape(take_along_axis(table, reshape(a, (1, *a.aval.shape)), 0), a.aval.shape)
