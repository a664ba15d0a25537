"""Shape primitives: broadcasting, reshaping, transposition, slices, padding, concatenation.

Most are views on the CPU, and index expressions on the GPU.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Index, IndexGuard
from genesis_fn.core.backend.lowering import (
    IN_KERNELS,
    Elementwise,
    Piece,
    Source,
    View,
    moved,
    same,
)
from genesis_fn.core.dtypes import DType, DTypeLike
from genesis_fn.core.primitive import Primitive, bind, is_linear, typeof, with_weak
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.primitives.elementwise import select
from genesis_fn.primitives.factories import (
    PRIM,
    full,
    instantiate,
    linear,
    move_batch,
    no_tangent,
    zero,
    zero_of,
)
from genesis_fn.primitives.reductions.reduce import reduce_sum


def canonical_axis(axis: int, ndim: int, name: str) -> int:
    """Count `axis` from the front. Raises AxisError where there is no such axis,
    ArgumentError for what is no integer."""
    try:
        index = operator.index(axis)
    except TypeError:
        raise errors.ArgumentError(f"{name}: an axis is an integer, got {axis!r}") from None
    if not -ndim <= index < ndim:
        raise errors.AxisError(f"{name}: axis {axis} does not exist in {ndim} dimensions")
    return index + ndim if index < 0 else index


def canonical_axes(axes: int | Sequence[int], ndim: int, name: str) -> tuple[int, ...]:
    """Count several axes from the front. Raises ShapeError for repeated or missing ones."""
    several = axes if isinstance(axes, (tuple, list, range)) else (axes,)
    result = tuple([canonical_axis(a, ndim, name) for a in several])  # pyright: ignore[reportArgumentType]
    if len(set(result)) != len(result):
        raise errors.ShapeError(f"{name}: axes {list(several)} repeat")
    return result


def ints(values: Sequence[int]) -> tuple[int, ...]:
    """Convert to a tuple of plain Python ints."""
    return tuple([operator.index(v) for v in values])


# ---- broadcast_in_dim ----


def _broadcast_shape(x: Aval, *, shape: tuple[int, ...], dims: tuple[int, ...]) -> Aval:
    fits = len(dims) == x.ndim and all(
        d < len(shape) and n in (1, shape[d]) for n, d in zip(x.shape, dims)
    )
    if not fits or list(dims) != sorted(set(dims)):
        raise errors.ShapeError(
            f"broadcast_in_dim: {x} does not fit {list(shape)} along dimensions {list(dims)}"
        )
    return x.update(shape)


def _broadcast_index(at: Index, x: Aval, *, shape: tuple[int, ...], dims: tuple[int, ...]) -> Index:
    return tuple([at[d] if n != 1 else ix.ZERO for n, d in zip(x.shape, dims)])


def _broadcast_transpose(ct: Any, x: Aval, *, shape: tuple[int, ...], dims: tuple[int, ...]):
    new = tuple([d for d in range(len(shape)) if d not in dims])
    # Summed over new dimensions, and over those that were repeated from length 1.
    grown = tuple([d for n, d in zip(x.shape, dims) if n != shape[d]])
    return reshape(reduce_sum(ct, (*new, *grown)), x.shape)


def _broadcast_batch(
    size: int, x: Any, d: int, *, shape: tuple[Any, ...], dims: tuple[Any, ...]
) -> Any:
    x = move_batch(x, d, 0, size)
    return broadcast_in_dim(x, (size, *shape), (0, *(i + 1 for i in dims))), 0


broadcast_in_dim_p = linear(
    "broadcast_in_dim",
    _broadcast_shape,
    transpose=_broadcast_transpose,
    batch=_broadcast_batch,
    lowering=moved(_broadcast_index),
)
PRIM["broadcast_in_dim"] = broadcast_in_dim_p


def broadcast_in_dim(
    operand: Array, shape: Sequence[int], broadcast_dimensions: Sequence[int]
) -> Array:
    """Repeat `operand` to `shape`: its dimension i, of length 1 or the result's, becomes dimension
    `broadcast_dimensions[i]`.
    """
    dims = ints(broadcast_dimensions)
    order = sorted(range(len(dims)), key=dims.__getitem__)
    if order != list(range(len(dims))) and len(dims) == len(typeof(operand).shape):
        operand, dims = transpose(operand, order), tuple([dims[i] for i in order])
    return bind(broadcast_in_dim_p, operand, shape=ints(shape), dims=dims)


def broadcast(operand: Array, sizes: Sequence[int]) -> Array:
    """`operand` repeated along new leading dimensions of lengths `sizes`."""
    sizes, shape = ints(sizes), typeof(operand).shape
    return broadcast_in_dim(operand, (*sizes, *shape), range(len(sizes), len(sizes) + len(shape)))


def tile(operand: Array, reps: Sequence[int]) -> Array:
    """Repeat `operand` `reps[i]` times along each dimension i."""
    reps, shape = ints(reps), typeof(operand).shape
    if len(reps) != len(shape) or any(r < 0 for r in reps):
        raise errors.ShapeError(
            f"tile: {typeof(operand)} needs {len(shape)} repetition counts of 0 or more, got {reps}"
        )
    pairs = [n for pair in zip(reps, shape) for n in pair]
    spread = broadcast_in_dim(operand, pairs, range(1, 2 * len(shape), 2))
    return reshape(spread, [r * n for r, n in zip(reps, shape)])


# ---- reshape, transpose ----


def _reshape_shape(x: Aval, *, shape: tuple[int, ...]) -> Aval:
    result = x.update(shape)
    if result.size != x.size:
        raise errors.ShapeError(f"reshape: {x} has {x.size} elements, {list(shape)} {result.size}")
    return result


reshape_p = linear(
    "reshape",
    _reshape_shape,
    transpose=lambda ct, x, *, shape: reshape(ct, x.shape),
    batch=lambda size, x, d, *, shape: (reshape(move_batch(x, d, 0, size), (size, *shape)), 0),
    lowering=moved(lambda at, x, *, shape: ix.unravel(ix.ravel(at, shape), x.shape)),
)


def reshape(
    operand: Array, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None
) -> Array:
    """`operand` with the same elements in row-major order and another shape.

    `dimensions`: the order in which the operand's dimensions are read, slowest first.
    """
    if dimensions is not None:
        operand = transpose(operand, dimensions)
    shape = ints(new_sizes)
    return operand if typeof(operand).shape == shape else bind(reshape_p, operand, shape=shape)


def squeeze(array: Array, dimensions: int | Sequence[int]) -> Array:
    """`array` without `dimensions`, each of length 1."""
    shape = typeof(array).shape
    axes = canonical_axes(dimensions, len(shape), "squeeze")
    if any(shape[a] != 1 for a in axes):
        raise errors.ShapeError(
            f"squeeze: dimensions {list(axes)} of {typeof(array)} must have length 1"
        )
    return reshape(array, [n for i, n in enumerate(shape) if i not in axes])


def expand_dims(array: Array, dimensions: int | Sequence[int]) -> Array:
    """Add dimensions of length 1 at these positions of the result."""
    count = len(dimensions) if isinstance(dimensions, (tuple, list, range)) else 1
    shape = typeof(array).shape
    axes = canonical_axes(dimensions, len(shape) + count, "expand_dims")
    old = iter(shape)
    return reshape(array, [1 if i in axes else next(old) for i in range(len(shape) + count)])


def collapse(operand: Array, start_dimension: int, stop_dimension: int | None = None) -> Array:
    """`operand` with the dimensions from `start_dimension` up to `stop_dimension` merged in one."""
    shape = typeof(operand).shape
    low, high, _ = builtins.slice(start_dimension, stop_dimension).indices(len(shape))
    if high < low:
        raise errors.ShapeError(
            f"collapse: {typeof(operand)} has no dimensions from {start_dimension} "
            f"up to {stop_dimension}"
        )
    return reshape(operand, (*shape[:low], math.prod(shape[low:high]), *shape[high:]))


def _transpose_shape(x: Aval, *, permutation: tuple[int, ...]) -> Aval:
    if sorted(permutation) != list(range(x.ndim)):
        raise errors.ShapeError(f"transpose: {permutation} is no permutation of the axes of {x}")
    return x.update(tuple([x.shape[i] for i in permutation]))


def _inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(permutation)), key=permutation.__getitem__))


transpose_p = linear(
    "transpose",
    _transpose_shape,
    transpose=lambda ct, x, *, permutation: transpose(ct, _inverse(permutation)),
    batch=lambda size, x, d, *, permutation: (
        transpose(x, (d, *(i + (i >= d) for i in permutation))),
        0,
    ),
    lowering=moved(lambda at, x, *, permutation: tuple([at[d] for d in _inverse(permutation)])),
)
PRIM["transpose"] = transpose_p


def transpose(operand: Array, permutation: Sequence[int]) -> Array:
    """`operand` with its axes reordered: axis i of the result is axis `permutation[i]`."""
    permutation = ints(permutation)
    if permutation == tuple(range(len(typeof(operand).shape))):
        return operand
    return bind(transpose_p, operand, permutation=permutation)


# ---- slice ----


def _slice_shape(
    x: Aval, *, start: tuple[int, ...], limit: tuple[int, ...], strides: tuple[int, ...]
) -> Aval:
    if not len(start) == len(limit) == len(strides) == x.ndim:
        raise errors.ShapeError(
            f"slice: {x} needs {x.ndim} start and limit indices and strides, got start "
            f"{list(start)}, limit {list(limit)}, strides {list(strides)}"
        )
    for i, (n, low, high, step) in enumerate(zip(x.shape, start, limit, strides)):
        if not 0 <= low <= high <= n:
            raise errors.ShapeError(
                f"slice: [{low}:{high}] along dimension {i} of {x} must satisfy "
                f"0 <= start <= limit <= {n}"
            )
        if step < 1:
            raise errors.ShapeError(
                f"slice: the stride {step} along dimension {i} of {x} must be positive; "
                "rev(...) reverses"
            )
    return x.update(
        tuple([-((low - high) // step) for low, high, step in zip(start, limit, strides)])
    )


def _slice_index(
    at: Index, x: Aval, *, start: tuple[Any, ...], limit: tuple[Any, ...], strides: tuple[Any, ...]
) -> Index:
    return tuple([ix.shift(ix.scale(i, s), a) for i, a, s in zip(at, start, strides)])


def _slice_transpose(
    ct: Any, x: Aval, *, start: tuple[Any, ...], limit: tuple[Any, ...], strides: tuple[Any, ...]
) -> Any:
    reached = [
        low + (n - 1) * step + 1 if n else low
        for low, n, step in zip(start, typeof(ct).shape, strides)
    ]
    config = [(a, n - r, s - 1) for a, n, r, s in zip(start, x.shape, reached, strides)]
    return pad(ct, zero_of(ct), config)


def _slice_batch(
    size: int,
    x: Any,
    d: int,
    *,
    start: tuple[Any, ...],
    limit: tuple[Any, ...],
    strides: tuple[Any, ...],
) -> Any:
    whole = [(*v[:d], n, *v[d:]) for v, n in ((start, 0), (limit, size), (strides, 1))]
    return slice(x, *whole), d


slice_p = linear(
    "slice",
    _slice_shape,
    transpose=_slice_transpose,
    batch=_slice_batch,
    lowering=moved(_slice_index),
)


def slice(
    operand: Array,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Array:
    """operand[start:limit:stride] along every dimension; the bounds are not clamped."""
    start, limit, shape = ints(start_indices), ints(limit_indices), typeof(operand).shape
    strides = (1,) * len(start) if strides is None else ints(strides)
    if limit == shape and not any(start) and strides == (1,) * len(shape):
        return operand
    return bind(slice_p, operand, start=start, limit=limit, strides=strides)


def slice_in_dim(
    operand: Array, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0
) -> Array:
    """operand[start:limit:stride] along one axis; negative bounds count from the end."""
    shape = typeof(operand).shape
    axis = canonical_axis(axis, len(shape), "slice_in_dim")
    n = shape[axis]
    low = 0 if start_index is None else operator.index(start_index)
    high = n if limit_index is None else operator.index(limit_index)
    low, high = (low + n if low < 0 else low), (high + n if high < 0 else high)
    start = [low if i == axis else 0 for i in range(len(shape))]
    limit = [high if i == axis else m for i, m in enumerate(shape)]
    strides = [stride if i == axis else 1 for i in range(len(shape))]
    return slice(operand, start, limit, strides)


def index_in_dim(operand: Array, index: int, axis: int = 0, keepdims: bool = True) -> Array:
    """operand[index] along one axis, which is kept with length 1 or dropped."""
    shape = typeof(operand).shape
    axis, index = canonical_axis(axis, len(shape), "index_in_dim"), operator.index(index)
    n = shape[axis]
    if not -n <= index < n:
        raise errors.IndexOutOfRange.at(index, axis, typeof(operand))
    index = index + n if index < 0 else index
    taken = slice_in_dim(operand, index, index + 1, 1, axis)
    return taken if keepdims else squeeze(taken, axis)


# ---- pad ----


def _pad_shape(x: Aval, value: Any, *, config: tuple[tuple[int, int, int], ...]) -> Aval:
    if type(x) is not Aval:
        raise errors.ShapeError(f"pad: the operand must be an array, got {x!r}")
    if type(value) is Aval and value.shape:
        raise errors.ShapeError(f"pad: the padding value must be a scalar, got {value}")
    if type(value) is Aval and value.dtype != x.dtype:
        raise errors.DTypeError(f"pad: the padding value {value} must have the dtype of {x}")
    if len(config) != x.ndim:
        raise errors.ShapeError(
            f"pad: {x} needs {x.ndim} (low, high, interior) triples, got {len(config)}"
        )
    shape = []
    for i, (n, (low, high, interior)) in enumerate(zip(x.shape, config)):
        if interior < 0:
            raise errors.ShapeError(
                f"pad: the interior padding {interior} along dimension {i} must not be negative"
            )
        length = low + high + n + max(n - 1, 0) * interior
        if length < 0:
            raise errors.ShapeError(
                f"pad: ({low}, {high}, {interior}) takes more from dimension {i} of {x} than it has"
            )
        shape.append(length)
    return x.update(tuple(shape))


def _pad_linearize(nonzero: Any, x: Any, value: Any, *, config: tuple[Any, ...]) -> Any:
    out = bind(pad_p, x, value, config=config)
    aval = typeof(x)

    def tangent(tx: Any, tv: Any) -> Any:
        return pad(instantiate(tx, aval), zero(aval.dtype) if tv is None else tv, config)

    return out, tangent


def _pad_transpose(ct: Any, x: Any, value: Any, *, config: tuple[Any, ...]) -> list[Any]:
    back = spread = None
    if is_linear(x):
        whole = pad(ct, zero_of(ct), [(-low, -high, 0) for low, high, _ in config])
        inner = typeof(whole).shape
        back = slice(whole, (0,) * len(inner), inner, [i + 1 for _, _, i in config])
    if is_linear(value):
        outside = pad(
            full(typeof(x).shape if not is_linear(x) else x.aval.shape, False, dtypes.BOOL),
            True,
            config,
        )
        spread = reduce_sum(select(outside, ct, zero_of(ct)), range(len(typeof(ct).shape)))
    return [back, spread]


def _pad_batch(
    size: int, xs: Sequence[Any], dims: Sequence[Any], *, config: tuple[Any, ...]
) -> Any:
    (x, value), (d, value_dim) = xs, dims
    if value_dim is None:
        return pad(x, value, (*config[:d], (0, 0, 0), *config[d:])), d
    # One padding value per example: pad with anything, then choose.
    x = move_batch(x, d, 0, size)
    wide = ((0, 0, 0), *config)
    padded = pad(x, zero_of(x), wide)
    outside = pad(full(typeof(x).shape, False, dtypes.BOOL), True, wide)
    values = broadcast_in_dim(value, typeof(padded).shape, (0,))
    return select(outside, values, padded), 0


def _pad_pieces(k: int, at: Index, x: Aval, value: Any, *, config: tuple[Any, ...]) -> list[Piece]:
    conditions, inner = [], []
    for i, n, (low, _, interior) in zip(at, x.shape, config):
        t, step = ix.shift(i, -low), interior + 1
        conditions.append(IndexGuard(t, 0, (n - 1) * step + 1 if n else 0))
        if interior:
            conditions.append(IndexGuard(ix.mod(t, step), 0, 1))
        inner.append(ix.div(t, step))
    return [(0, tuple(inner), conditions), (1, (), ())]


pad_p = Primitive(
    "pad",
    _pad_shape,
    linearize=_pad_linearize,
    transpose=_pad_transpose,
    batch=_pad_batch,
    lowering=View(_pad_pieces, joins=True, shares=False),
)


def pad(operand: Array, padding_value: ArrayLike, padding_config: Sequence[Sequence[int]]) -> Array:
    """`operand` with (low, high, interior) copies of `padding_value` before, after and between the
    elements of each dimension. Negative low and high remove elements."""
    config = tuple([ints(each) for each in padding_config])
    for each in config:
        if len(each) != 3:
            raise errors.ShapeError(
                f"pad: padding_config holds (low, high, interior) triples, got {list(each)}"
            )
    return bind(pad_p, operand, padding_value, config=config)


# ---- concatenate and split ----


def _concatenate_shape(*xs: Aval, dimension: int) -> Aval:
    if not xs:
        raise errors.ShapeError("concatenate takes at least one array")
    first = xs[0]
    listing = ", ".join(map(str, xs[:8])) + (", ..." if len(xs) > 8 else "")
    if not 0 <= dimension < first.ndim:
        raise errors.AxisError(f"concatenate: dimension {dimension} does not exist in {first}")
    for x in xs:
        if x.dtype != first.dtype:
            raise errors.DTypeError(f"concatenate: dtypes differ: {listing}")
        if x.ndim != first.ndim or any(
            a != b for i, (a, b) in enumerate(zip(x.shape, first.shape)) if i != dimension
        ):
            raise errors.ShapeError(
                f"concatenate along dimension {dimension}: shapes differ elsewhere: {listing}"
            )
    shape = list(first.shape)
    shape[dimension] = sum([x.shape[dimension] for x in xs])
    return first.update(tuple(shape))


def _concatenate_linearize(nonzero: Any, *xs: Any, dimension: int) -> Any:
    avals = [typeof(x) for x in xs]

    def tangent(*ts: Any) -> Any:
        return concatenate([instantiate(t, k) for t, k in zip(ts, avals)], dimension)

    return concatenate(xs, dimension), tangent


def _concatenate_transpose(ct: Any, *xs: Any, dimension: int) -> list[Any]:
    sizes = [(x.aval if is_linear(x) else typeof(x)).shape[dimension] for x in xs]
    if all(map(is_linear, xs)):
        return split(ct, sizes, dimension)
    ends = np.cumsum(sizes).tolist()
    return [
        slice_in_dim(ct, end - n, end, 1, dimension) if is_linear(x) else None
        for x, n, end in zip(xs, sizes, ends)
    ]


def _concatenate_batch(size: int, xs: Sequence[Any], dims: Sequence[Any], *, dimension: int) -> Any:
    xs = [move_batch(x, d, 0, size) for x, d in zip(xs, dims)]
    return concatenate(xs, dimension + 1), 0


def _concatenate_pieces(k: int, at: Index, *xs: Aval, dimension: int) -> list[Piece]:
    d, begin, pieces = dimension, 0, []
    for n, x in enumerate(xs):
        end = begin + x.shape[d]
        index = (*at[:d], ix.shift(at[d], -begin), *at[d + 1 :])
        pieces.append((n, index, (IndexGuard(at[d], begin, end),)))
        begin = end
    return pieces


concatenate_p = Primitive(
    "concatenate",
    _concatenate_shape,
    linearize=_concatenate_linearize,
    transpose=_concatenate_transpose,
    batch=_concatenate_batch,
    lowering=View(_concatenate_pieces, joins=True, shares=False),
)


def concatenate(operands: Sequence[Array], dimension: int) -> Array:
    """Concatenate arrays of one dtype along `dimension`; the other dimensions agree."""
    operands = list(operands)
    if len(operands) == 1:
        dimension = canonical_axis(dimension, len(typeof(operands[0]).shape), "concatenate")
        return operands[0]
    if operands:
        dimension = canonical_axis(dimension, len(typeof(operands[0]).shape), "concatenate")
    return bind(concatenate_p, *operands, dimension=dimension)


def _split_shape(x: Aval, *, sizes: tuple[int, ...], axis: int) -> list[Aval]:
    if not 0 <= axis < x.ndim:
        raise errors.AxisError(f"split: axis {axis} does not exist in {x}")
    if any(n < 0 for n in sizes) or sum(sizes) != x.shape[axis]:
        raise errors.ShapeError(
            f"split: sizes {list(sizes)} must not be negative and must add up to the length "
            f"{x.shape[axis]} of axis {axis} of {x}"
        )
    return [x.update((*x.shape[:axis], n, *x.shape[axis + 1 :])) for n in sizes]


def _split_pieces(k: int, at: Index, x: Aval, *, sizes: tuple[int, ...], axis: int) -> list[Piece]:
    return [(0, (*at[:axis], ix.shift(at[axis], sum(sizes[:k])), *at[axis + 1 :]), ())]


def _split_linearize(nonzero: Any, x: Any, *, sizes: tuple[Any, ...], axis: int) -> Any:
    return split(x, sizes, axis), lambda t: split(t, sizes, axis)


def _split_transpose(cts: Sequence[Any], x: Any, *, sizes: tuple[Any, ...], axis: int) -> list[Any]:
    avals = _split_shape(x.aval, sizes=sizes, axis=axis)
    return [concatenate([instantiate(ct, k) for ct, k in zip(cts, avals)], axis)]


def _split_batch(
    size: int, xs: Sequence[Any], dims: Sequence[Any], *, sizes: tuple[Any, ...], axis: int
) -> Any:
    (x,), (d,) = xs, dims
    return split(x, sizes, axis + (d <= axis)), [d] * len(sizes)


split_p = Primitive(
    "split",
    _split_shape,
    multi=True,
    linearize=_split_linearize,
    transpose=_split_transpose,
    batch=_split_batch,
    lowering=View(_split_pieces),
)


def split(operand: Array, sizes: Sequence[int], axis: int = 0) -> list[Array]:
    """`operand` cut along `axis` into parts of these lengths."""
    axis = canonical_axis(axis, len(typeof(operand).shape), "split")
    parts = bind(split_p, operand, sizes=ints(sizes), axis=axis)
    return [with_weak(x, operand.weak) for x in parts]


# ---- rev ----


def _rev_shape(x: Aval, *, dimensions: tuple[int, ...]) -> Aval:
    if len(set(dimensions)) != len(dimensions) or any(not 0 <= d < x.ndim for d in dimensions):
        raise errors.ShapeError(f"rev: dimensions {list(dimensions)} do not fit {x}")
    return x


def _rev_index(at: Index, x: Aval, *, dimensions: tuple[int, ...]) -> Index:
    return tuple(
        [
            ix.shift(ix.scale(i, -1), n - 1) if d in dimensions else i
            for d, (i, n) in enumerate(zip(at, x.shape))
        ]
    )


rev_p = linear(
    "rev",
    _rev_shape,
    transpose=lambda ct, x, *, dimensions: rev(ct, dimensions),
    batch=lambda size, x, d, *, dimensions: (rev(x, [i + (i >= d) for i in dimensions]), d),
    lowering=moved(_rev_index, shares=False),
)


def rev(operand: Array, dimensions: Sequence[int]) -> Array:
    """`operand` with the order of elements reversed along `dimensions`."""
    axes = canonical_axes(tuple(dimensions), len(typeof(operand).shape), "rev")
    return bind(rev_p, operand, dimensions=axes) if axes else operand


# ---- iota ----


def _iota_shape(*, dtype: DType, shape: tuple[int, ...], dimension: int) -> Aval:
    if not 0 <= dimension < len(shape):
        raise errors.AxisError(f"iota: dimension {dimension} does not exist in {list(shape)}")
    if dtype == dtypes.BOOL:
        raise errors.DTypeError("iota counts in numbers, not in booleans")
    return aval(shape, dtype)


iota_p = Primitive(
    "iota", _iota_shape, lowering=Source(lambda at, *, dimension, **_: at[dimension])
)
iota_p.linearize = no_tangent(iota_p)
iota_p.batch = lambda size, xs, dims, /, **params: (bind(iota_p, **params), None)


def broadcasted_iota(dtype: DTypeLike, shape: Sequence[int], dimension: int) -> Array:
    """An array of `shape` whose elements count 0, 1, ... along `dimension`."""
    shape = ints(shape)
    axis = canonical_axis(dimension, len(shape), "broadcasted_iota")
    return bind(iota_p, dtype=dtypes.dtype(dtype), shape=shape, dimension=axis)


def iota(dtype: DTypeLike, size: int | Sequence[int], dimension: int = 0) -> Array:
    """[0, 1, ..., size - 1]; for a shape as `size`, an array that counts along `dimension`."""
    shape = size if isinstance(size, (tuple, list)) else (size,)
    return broadcasted_iota(dtype, shape, dimension)  # pyright: ignore[reportArgumentType]


# ---- copies and barriers ----

copy_p = linear(
    "copy",
    lambda x: x,
    transpose=lambda ct, x: ct,
    batch=lambda size, x, d: (copy(x), d),
    lowering=same(shares=False),
)


def copy(x: Array) -> Array:
    """Copy `x` to memory of its own."""
    return bind(copy_p, x)


def _barrier_or_none(values: Sequence[Any]) -> list[Any]:
    """Pass the values that are not None through a barrier."""
    passed = iter(optimization_barrier([v for v in values if v is not None]))
    return [None if v is None else next(passed) for v in values]


barrier_p = Primitive(
    "optimization_barrier",
    lambda *xs: list(xs),
    multi=True,
    linearize=lambda nonzero, *xs: (optimization_barrier(xs), lambda *ts: _barrier_or_none(ts)),
    transpose=lambda cts, *xs: _barrier_or_none(
        [c if is_linear(x) else None for c, x in zip(cts, xs)]
    ),
    batch=lambda size, xs, dims: (optimization_barrier(xs), list(dims)),
    lowering=same(),
)


def optimization_barrier(operands: Sequence[Array]) -> list[Array]:
    """Return the same arrays behind a barrier: no computation after it starts before all of them
    are there."""
    operands = list(operands)
    return bind(barrier_p, *operands) if operands else []


# ---- reduce_precision ----


def _precision_shape(x: Aval, *, exponent_bits: int, mantissa_bits: int) -> Aval:
    if not dtypes.is_float(x.dtype):
        raise errors.DTypeError(f"reduce_precision takes floats, got {x}")
    if exponent_bits < 1 or mantissa_bits < 0:
        raise errors.ShapeError(
            f"reduce_precision: exponent_bits {exponent_bits} must be positive and mantissa_bits "
            f"{mantissa_bits} not negative"
        )
    return x


reduce_precision_p = linear(
    "reduce_precision",
    _precision_shape,
    transpose=lambda ct, x, **bits: reduce_precision(ct, **bits),
    batch=lambda size, x, d, **bits: (reduce_precision(x, **bits), d),
    lowering=Elementwise(IN_KERNELS),
)


def reduce_precision(operand: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """Round `operand` to a float format with these bits, in its own dtype. What is too large
    becomes infinite, what is too small for a normal number becomes zero."""
    return bind(
        reduce_precision_p,
        operand,
        exponent_bits=operator.index(exponent_bits),
        mantissa_bits=operator.index(mantissa_bits),
    )
