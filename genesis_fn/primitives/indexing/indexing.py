"""Slices at positions that are values.

A dynamic slice keeps its length: a negative start counts from the end, then the start moves until
the slice lies inside the operand. The primitives do both. Starts that are all Python integers need
no primitive of their own: that is a static slice.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.primitive import Primitive, bind, is_linear, no_flops, typeof
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.primitives.elementwise import add, convert, lt, max as max_, select
from genesis_fn.primitives.factories import PRIM, full, instantiate, move_batch, zeros
from genesis_fn.primitives.indexing.gather import gather
from genesis_fn.primitives.indexing.gather_dims import (
    GatherDimensionNumbers,
    ScatterDimensionNumbers,
)
from genesis_fn.primitives.indexing.scatter import scatter
from genesis_fn.primitives.shape import (
    broadcast_in_dim,
    canonical_axis,
    concatenate,
    expand_dims,
    ints,
    reshape,
    slice as static_slice,
    slice_in_dim,
    squeeze,
)

# ---- what both primitives share ----


def _check_starts(name: str, operand: Aval, starts: Sequence[Any]) -> None:
    if len(starts) != operand.ndim:
        raise errors.ShapeError(
            f"{name}: {operand} needs {operand.ndim} start indices, got {len(starts)}"
        )
    for i, s in enumerate(starts):
        if type(s) is Aval and s.shape:
            raise errors.ShapeError(f"{name}: start index {i} must be a scalar, got {s}")
        if not (dtypes.is_integer(s.dtype) if type(s) is Aval else type(s) is int):
            raise errors.DTypeError(f"{name}: start index {i} must be an integer, got {s}")


def _vectors(
    operand: Aval,
    starts: Sequence[Any],
    dims: Sequence[int | None],
    sizes: Sequence[int],
    size: int,
) -> tuple[Any, tuple[int, ...]]:
    """(index vectors [size, K], the operand dimensions they are for): those where a slice can
    move."""
    mapped = tuple([d for d, n in enumerate(operand.shape) if n != sizes[d]])
    moving = {d: _from_front(starts[d], operand.shape[d]) for d in mapped}
    index_dtypes = {typeof(s).dtype for s in moving.values() if hasattr(s, "aval")}
    dtype = index_dtypes.pop() if len(index_dtypes) == 1 else dtypes.I64
    columns = []
    for d, s in moving.items():
        if type(s) is int:
            columns.append(full((size, 1), min(max(s, 0), operand.shape[d] - sizes[d]), dtype))
        else:
            columns.append(
                broadcast_in_dim(convert(s, dtype), (size, 1), () if dims[d] is None else (0,))
            )
    return concatenate(columns, 1) if columns else full((size, 0), 0, dtypes.I32), mapped


def _from_front(s: Any, n: int) -> Any:
    """The start `s` along a dimension of length n, counted from the end where it is negative."""
    if not hasattr(s, "aval"):
        return s + n if s < 0 else s
    dtype = typeof(s).dtype
    if dtypes.is_unsigned(dtype):
        return s
    if n > dtypes.iinfo(dtype).max:
        s = convert(s, dtypes.I32 if n < 2**31 else dtypes.I64)
    return select(lt(s, 0), add(s, n), s)


# ---- dynamic_slice ----


def _slice_shape(operand: Aval, *starts: Any, slice_sizes: tuple[int, ...]) -> Aval:
    _check_starts("dynamic_slice", operand, starts)
    if len(slice_sizes) != operand.ndim:
        raise errors.ShapeError(
            f"dynamic_slice: {operand} needs {operand.ndim} slice sizes, got {list(slice_sizes)}"
        )
    if any(not 0 <= size <= n for size, n in zip(slice_sizes, operand.shape)):
        raise errors.ShapeError(
            f"dynamic_slice: a slice of {list(slice_sizes)} does not fit in {operand}"
        )
    return operand.update(slice_sizes)


def _slice_linearize(nonzero: Any, x: Any, *starts: Any, slice_sizes: tuple[int, ...]) -> Any:
    def again(t: Any, *_: Any) -> Any:
        return None if t is None else bind(dynamic_slice_p, t, *starts, slice_sizes=slice_sizes)

    return bind(dynamic_slice_p, x, *starts, slice_sizes=slice_sizes), again


def _slice_transpose(ct: Any, x: Any, *starts: Any, slice_sizes: tuple[int, ...]) -> list[Any]:
    return [bind(dynamic_update_slice_p, zeros(x.aval), ct, *starts), *[None] * len(starts)]


def _slice_batch(
    size: int, xs: Sequence[Any], dims: Sequence[int | None], *, slice_sizes: tuple[int, ...]
) -> Any:
    (x, *starts), (d, *start_dims) = xs, dims
    if all(i is None for i in start_dims):  # the batch is one more dimension, taken whole
        starts.insert(d, 0)  # pyright: ignore[reportArgumentType]
        sizes = (*slice_sizes[:d], size, *slice_sizes[d:])
        return bind(dynamic_slice_p, x, *starts, slice_sizes=sizes), d
    if d is not None:
        x = move_batch(x, d, 0, size)
    aval = typeof(x)
    example = aval if d is None else aval.update(aval.shape[1:])
    vectors, mapped = _vectors(example, starts, start_dims, slice_sizes, size)
    window = tuple(range(1, example.ndim + 1))
    if d is None:
        numbers, sizes = GatherDimensionNumbers(window, (), mapped), slice_sizes
    else:
        shifted = tuple([m + 1 for m in mapped])
        numbers = GatherDimensionNumbers(window, (), shifted, (0,), (0,))
        sizes = (min(size, 1), *slice_sizes)
    return gather(x, vectors, numbers, sizes, mode="clip"), 0


dynamic_slice_p = Primitive(
    "dynamic_slice",
    _slice_shape,
    linearize=_slice_linearize,
    transpose=_slice_transpose,
    batch=_slice_batch,
    weak=slice(1),
    bounded=True,
    flops=no_flops,
)
PRIM["dynamic_slice"] = dynamic_slice_p

# ---- dynamic_update_slice ----


def _update_shape(operand: Aval, update: Aval, *starts: Any) -> Aval:
    _check_starts("dynamic_update_slice", operand, starts)
    if operand.dtype != update.dtype:
        raise errors.DTypeError(
            f"dynamic_update_slice: the update {update} must have the dtype of {operand}"
        )
    if operand.ndim != update.ndim or any(m > n for m, n in zip(update.shape, operand.shape)):
        raise errors.ShapeError(
            f"dynamic_update_slice: an update {update} does not fit in {operand}"
        )
    return operand


def _update_linearize(nonzero: Any, x: Any, u: Any, *starts: Any) -> Any:
    avals = typeof(x), typeof(u)

    def tangent(tx: Any, tu: Any, *_: Any) -> Any:
        if tx is None and tu is None:
            return None
        return bind(
            dynamic_update_slice_p, instantiate(tx, avals[0]), instantiate(tu, avals[1]), *starts
        )

    return bind(dynamic_update_slice_p, x, u, *starts), tangent


def _update_transpose(ct: Any, x: Any, u: Any, *starts: Any) -> list[Any]:
    aval = u.aval if is_linear(u) else typeof(u)
    return [
        bind(dynamic_update_slice_p, ct, zeros(aval), *starts) if is_linear(x) else None,
        bind(dynamic_slice_p, ct, *starts, slice_sizes=aval.shape) if is_linear(u) else None,
        *[None] * len(starts),
    ]


def _update_batch(size: int, xs: Sequence[Any], dims: Sequence[int | None]) -> Any:
    (x, u, *starts), (d, update_dim, *start_dims) = xs, dims
    x, u = move_batch(x, d, 0, size), move_batch(u, update_dim, 0, size)
    if all(i is None for i in start_dims):
        return bind(dynamic_update_slice_p, x, u, 0, *starts), 0
    if size == 1:  # one example has one start: no scatter
        single = [s if i is None else reshape(s, ()) for s, i in zip(starts, start_dims)]
        return bind(dynamic_update_slice_p, x, u, 0, *single), 0
    kind, window = typeof(x), typeof(u).shape
    example = kind.update(kind.shape[1:])
    vectors, mapped = _vectors(example, starts, start_dims, window[1:], size)
    numbers = ScatterDimensionNumbers(
        tuple(range(1, kind.ndim)), (), tuple([m + 1 for m in mapped]), (0,), (0,)
    )
    return scatter(x, vectors, u, numbers, unique_indices=True, mode="clip"), 0


dynamic_update_slice_p = Primitive(
    "dynamic_update_slice",
    _update_shape,
    linearize=_update_linearize,
    transpose=_update_transpose,
    batch=_update_batch,
    updates=0,
    weak=slice(1),
    bounded=True,
    flops=no_flops,
)
PRIM["dynamic_update_slice"] = dynamic_update_slice_p


# ---- public functions ----


def _starts(
    operand: Any, start_indices: Any, sizes: Sequence[int], allow_negative: bool | Sequence[bool]
) -> list[Any]:
    """Return one start per dimension, Python ints among them clamped. A dimension that the slice
    takes whole starts at 0, whatever its start index is."""
    shape = typeof(operand).shape
    if hasattr(start_indices, "aval"):
        start_indices = [
            reshape(slice_in_dim(start_indices, i, i + 1), ())
            for i in range(typeof(start_indices).shape[0])
        ]
    start_indices = list(start_indices)
    if not len(start_indices) == len(shape) == len(sizes):
        raise errors.ShapeError(
            f"a dynamic slice of {typeof(operand)} needs {len(shape)} start indices and sizes, got "
            f"{len(start_indices)} and {len(sizes)}"
        )
    allowed = [allow_negative] * len(shape) if isinstance(allow_negative, bool) else allow_negative
    starts: list[Any] = []
    for s, n, size, negative in zip(start_indices, shape, sizes, allowed, strict=True):
        if n == size:
            starts.append(0)
        elif not hasattr(s, "aval"):
            s = operator.index(s)
            starts.append(min(max(s + n if s < 0 and negative else s, 0), max(n - size, 0)))
        else:
            starts.append(s if negative else max_(s, 0))
    return starts


def dynamic_slice(
    operand: Array,
    start_indices: Array | Sequence[ArrayLike],
    slice_sizes: Sequence[int],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Array:
    """Return operand[s : s + size] along every dimension, for starts s that may be values.

    `start_indices`: one integer per dimension, or a 1-d array of them; negative ones count from the
    end unless `allow_negative_indices` is False. A start is then moved until the slice fits.
    """
    sizes = ints(slice_sizes)
    starts = _starts(operand, start_indices, sizes, allow_negative_indices)
    shape = typeof(operand).shape
    if all([type(s) is int for s in starts]) and all(
        [0 <= size <= n for size, n in zip(sizes, shape)]
    ):
        return static_slice(operand, starts, [s + n for s, n in zip(starts, sizes)])
    return bind(dynamic_slice_p, operand, *starts, slice_sizes=sizes)


def dynamic_update_slice(
    operand: Array,
    update: Array,
    start_indices: Array | Sequence[ArrayLike],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Array:
    """Return `operand` with `update` in place of the slice of its shape at `start_indices`.

    Starts are treated as in `dynamic_slice`.
    """
    sizes = typeof(update).shape
    if len(sizes) != len(typeof(operand).shape):
        raise errors.ShapeError(
            f"dynamic_update_slice: an update {typeof(update)} does not fit in {typeof(operand)}"
        )
    starts = _starts(operand, start_indices, sizes, allow_negative_indices)
    return bind(dynamic_update_slice_p, operand, update, *starts)


def _along(operand: Any, axis: int, start: Any) -> tuple[int, list[Any]]:
    ndim = len(typeof(operand).shape)
    axis = canonical_axis(axis, ndim, "a dynamic slice")
    return axis, [start if i == axis else 0 for i in range(ndim)]


def dynamic_slice_in_dim(
    operand: Array,
    start_index: ArrayLike,
    slice_size: int,
    axis: int = 0,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Return operand[start : start + size] along one axis."""
    axis, starts = _along(operand, axis, start_index)
    sizes = [slice_size if i == axis else n for i, n in enumerate(typeof(operand).shape)]
    return dynamic_slice(operand, starts, sizes, allow_negative_indices=allow_negative_indices)


def dynamic_index_in_dim(
    operand: Array,
    index: ArrayLike,
    axis: int = 0,
    keepdims: bool = True,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Return operand[index], clamped, along one axis, which is kept with length 1 or dropped."""
    taken = dynamic_slice_in_dim(
        operand, index, 1, axis, allow_negative_indices=allow_negative_indices
    )
    return taken if keepdims else squeeze(taken, axis)


def dynamic_update_slice_in_dim(
    operand: Array,
    update: Array,
    start_index: ArrayLike,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Return `operand` with `update` written from `start_index` on along one axis."""
    _, starts = _along(operand, axis, start_index)
    return dynamic_update_slice(
        operand, update, starts, allow_negative_indices=allow_negative_indices
    )


def dynamic_update_index_in_dim(
    operand: Array,
    update: Array,
    index: ArrayLike,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Return `operand` with `update`, which may lack the axis, written at `index` along it."""
    shape = typeof(operand).shape
    axis = canonical_axis(axis, len(shape), "dynamic_update_index_in_dim")
    if len(typeof(update).shape) != len(shape):
        update = expand_dims(update, axis)
    return dynamic_update_slice_in_dim(
        operand, update, index, axis, allow_negative_indices=allow_negative_indices
    )
