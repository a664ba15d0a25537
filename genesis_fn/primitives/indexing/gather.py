"""Gather: windows read at positions that are values, and its common case, rows of a table."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.primitive import Primitive, bind, no_flops, typeof
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.primitives.elementwise import add, convert, lt, rem, select
from genesis_fn.primitives.factories import PRIM, move_batch
from genesis_fn.primitives.indexing.gather_dims import (
    GatherDimensionNumbers,
    GatherScatterMode,
    canonical,
    mode_name,
    windowed_shape,
)
from genesis_fn.primitives.shape import canonical_axes, concatenate, expand_dims, ints

# ---- gather ----


def _gather_shape(
    operand: Aval,
    indices: Aval,
    *,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: tuple[int, ...],
    unique_indices: bool,
    indices_are_sorted: bool,
    mode: str,
    fill_value: Any,
) -> Aval:
    return operand.update(
        windowed_shape("gather", operand, indices, dimension_numbers, slice_sizes)
    )


def _gather_linearize(nonzero: Any, operand: Any, indices: Any, **params: Any) -> Any:
    out = bind(gather_p, operand, indices, **params)
    again = {**params, "fill_value": 0 if params["mode"] == "fill" else None}
    return out, lambda t, _: None if t is None else bind(gather_p, t, indices, **again)


def shift_dims(dims: Sequence[int]) -> tuple[int, ...]:
    """Shift dimensions behind a new leading one."""
    return tuple([d + 1 for d in dims])


def _gather_batch(
    size: int,
    xs: Sequence[Any],
    dims: Sequence[int | None],
    *,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: tuple[int, ...],
    **params: Any,
) -> Any:
    (operand, indices), (operand_dim, indices_dim) = xs, dims
    offset, collapsed, mapped, batching, index_batching = dimension_numbers
    if operand_dim is None:
        # More index vectors into the same operand.
        indices = move_batch(indices, indices_dim, 0, size)
        numbers = GatherDimensionNumbers(
            shift_dims(offset), collapsed, mapped, batching, shift_dims(index_batching)
        )
        params.update(unique_indices=False, indices_are_sorted=False)
    elif indices_dim is None:
        # The batch is one more window dimension, taken whole.
        operand = move_batch(operand, operand_dim, 0, size)
        slice_sizes = (size, *slice_sizes)
        numbers = GatherDimensionNumbers(
            (0, *shift_dims(offset)),
            shift_dims(collapsed),
            shift_dims(mapped),
            shift_dims(batching),
            index_batching,
        )
    else:
        operand = move_batch(operand, operand_dim, 0, size)
        indices = move_batch(indices, indices_dim, 0, size)
        slice_sizes = (min(size, 1), *slice_sizes)  # 0 where the batch is empty
        numbers = GatherDimensionNumbers(
            shift_dims(offset),
            shift_dims(collapsed),
            shift_dims(mapped),
            (0, *shift_dims(batching)),
            (0, *shift_dims(index_batching)),
        )
        params.update(indices_are_sorted=False)
    return bind(
        gather_p, operand, indices, dimension_numbers=numbers, slice_sizes=slice_sizes, **params
    ), 0


def _gather_visits(operand: Aval, indices: Aval, **params: Any) -> tuple[Aval, list[Any]]:
    mapped = params["dimension_numbers"].start_index_map
    return operand, [(d, params["slice_sizes"][d]) for d in mapped]


gather_p = Primitive(
    "gather",
    _gather_shape,
    linearize=_gather_linearize,
    batch=_gather_batch,
    visits=_gather_visits,
    weak=slice(1),
    bounded=True,
    flops=no_flops,
)
PRIM["gather"] = gather_p


def gather(
    operand: Array,
    start_indices: Array,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: str | GatherScatterMode | None = None,
    fill_value: ArrayLike | None = None,
) -> Array:
    """Read the windows of `operand` of lengths `slice_sizes` that start at `start_indices`.

    `dimension_numbers` maps dimensions of windows and index vectors to those of operand and result;
    see GatherDimensionNumbers. `mode` says what an index out of bounds does; None checks. In mode
    "fill" it reads `fill_value`: by default NaN, the least signed or greatest unsigned integer, or
    True. `unique_indices` promises that no two windows overlap.
    """
    mode = "check" if mode is None else mode_name(mode)
    return bind(
        gather_p,
        operand,
        start_indices,
        dimension_numbers=canonical(dimension_numbers),
        slice_sizes=ints(slice_sizes),
        unique_indices=bool(unique_indices),
        indices_are_sorted=bool(indices_are_sorted),
        mode=mode,
        fill_value=_python_number(fill_value) if mode == "fill" else None,
    )


def fill_value(value: bool | int | float | None, kind: dtypes.DType) -> bool | int | float:
    """What an index out of range reads: `value`, or if None the default for the dtype."""
    if value is not None:
        return value
    if dtypes.is_float(kind):
        return math.nan
    if kind == dtypes.BOOL:
        return True
    return int(dtypes.iinfo(kind).max if dtypes.is_unsigned(kind) else dtypes.iinfo(kind).min)


def _python_number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def index_take(src: Array, idxs: Sequence[Array], axes: Sequence[int]) -> Array:
    """Return src[idxs[0], idxs[1], ...] along `axes`: one element or window per position in the 1-d
    `idxs`. Indices wrap around the axis, negative ones included.
    """
    shape = typeof(src).shape
    axes = canonical_axes(tuple(axes), len(shape), "index_take")
    vectors = concatenate(
        [expand_dims(_wrapped(i, shape[a]), (1,)) for i, a in zip(idxs, axes, strict=True)], 1
    )
    numbers = GatherDimensionNumbers(tuple(range(1, len(shape) - len(axes) + 1)), axes, axes)
    if list(axes) != sorted(axes):
        numbers = numbers._replace(collapsed_slice_dims=tuple(sorted(axes)))
    sizes = [1 if i in axes else n for i, n in enumerate(shape)]
    return gather(src, vectors, numbers, sizes, mode="promise_in_bounds")


def _wrapped(index: Any, n: int) -> Any:
    dtype = typeof(index).dtype
    if n > dtypes.iinfo(dtype).max:
        index = convert(index, dtypes.I32 if n < 2**31 else dtypes.I64)
    index = rem(index, n)
    if dtypes.is_unsigned(dtype):
        return index
    return select(lt(index, 0), add(index, n), index)


# ---- rows of a table ----


def _take_shape(table: Aval, indices: Aval, *, mode: str, fill_value: Any) -> Aval:
    if not table.ndim:
        raise errors.ShapeError("take_rows: a table has at least one dimension")
    if not dtypes.is_integer(indices.dtype):
        raise errors.DTypeError(f"take_rows: indices must be integers, got {indices}")
    if not table.shape[0] and indices.size:
        raise errors.ShapeError(f"take_rows: {indices} cannot index the empty axis 0 of {table}")
    return table.update((*indices.shape, *table.shape[1:]))


def _take_linearize(nonzero: Any, table: Any, indices: Any, *, mode: str, fill_value: Any) -> Any:
    return take_rows(
        table, indices, mode=mode, fill_value=fill_value
    ), lambda t, _: None if t is None else take_rows(t, indices, mode=mode, fill_value=0)


def _take_batch(
    size: int, xs: Sequence[Any], dims: Sequence[int | None], *, mode: str, fill_value: Any
) -> Any:
    (table, indices), (table_dim, indices_dim) = xs, dims
    taken = functools.partial(take_rows, mode=mode, fill_value=fill_value)
    if table_dim is None:
        return taken(table, move_batch(indices, indices_dim, 0, size)), 0
    if indices_dim is None:
        return taken(move_batch(table, table_dim, 1, size), indices), len(typeof(indices).shape)
    table = move_batch(table, table_dim, 0, size)
    indices = move_batch(indices, indices_dim, 0, size)
    whole, count = typeof(table).shape, len(typeof(indices).shape)
    numbers = GatherDimensionNumbers(
        tuple(range(count, count + len(whole) - 2)), (1,), (1,), (0,), (0,)
    )
    return gather(
        table,
        expand_dims(indices, (-1,)),
        numbers,
        (min(size, 1), 1, *whole[2:]),
        mode=mode,
        fill_value=fill_value,
    ), 0


take_rows_p = Primitive(
    "take_rows",
    _take_shape,
    linearize=_take_linearize,
    batch=_take_batch,
    visits=lambda table, indices, **_: (table, [(0, 1)]),
    weak=slice(1),
    bounded=True,
    flops=no_flops,
)
PRIM["take_rows"] = take_rows_p


def take_rows(
    table: Array,
    indices: Array,
    *,
    mode: str | GatherScatterMode = "check",
    fill_value: ArrayLike | None = None,
) -> Array:
    """Return table[indices]: one row of the table, along its axis 0, per index.

    The derivative adds rows up by index, in float32 for 16-bit floats. Modes as in `gather`;
    negative indices are out of range.
    """
    mode = mode_name(mode)
    fill_value = _python_number(fill_value) if mode == "fill" else None
    return bind(take_rows_p, table, indices, mode=mode, fill_value=fill_value)
