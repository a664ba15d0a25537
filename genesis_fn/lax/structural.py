"""lax functions on whole arrays: shapes, indexing, contractions, reductions, sorting, FFT."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, cast, overload

import numpy as np

from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.array import from_numpy
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import SCALARS
from genesis_fn.core.types.annotations import Array, ArrayLike, DTypeLike, PyTree
from genesis_fn.lax.operands import array, on_arrays
from genesis_fn.lax.promotion import promote_arrays, scalar_as
from genesis_fn.primitives import (
    conv,
    dot_general as contract,
    fft as transforms,
    shape as shapes,
    sort as sorts,
)
from genesis_fn.primitives.dot_general import DotDimensionNumbers, PrecisionLike
from genesis_fn.primitives.elementwise import convert, gt, select
from genesis_fn.primitives.fft import FftType
from genesis_fn.primitives.indexing import gather, indexing, scatter
from genesis_fn.primitives.indexing.gather_dims import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
)
from genesis_fn.primitives.reductions import (
    cumulative,
    reduce,
    reduce_generic,
    reduce_window as windows,
)
from genesis_fn.primitives.shape import canonical_axis

# ---- shape ----

broadcast = on_arrays(shapes.broadcast)
broadcast_in_dim = on_arrays(shapes.broadcast_in_dim)
reshape = on_arrays(shapes.reshape)
collapse = on_arrays(shapes.collapse)
squeeze = on_arrays(shapes.squeeze)
expand_dims = on_arrays(shapes.expand_dims)
transpose = on_arrays(shapes.transpose)
rev = on_arrays(shapes.rev)
tile = on_arrays(shapes.tile)
split = on_arrays(shapes.split)
slice = on_arrays(shapes.slice)
slice_in_dim = on_arrays(shapes.slice_in_dim)
index_in_dim = on_arrays(shapes.index_in_dim)
reduce_precision = on_arrays(shapes.reduce_precision)
broadcasted_iota, iota = shapes.broadcasted_iota, shapes.iota


def broadcast_to_rank(x: ArrayLike, rank: int) -> Array:
    """`x` with leading axes of length 1 up to `rank` axes."""
    x = array(x)
    missing = rank - len(x.aval.shape)
    if missing < 0:
        raise errors.ShapeError(f"broadcast_to_rank: {x.aval} has more than {rank} axes")
    return shapes.expand_dims(x, tuple(range(missing))) if missing else x


def concatenate(operands: Sequence[Any], dimension: int) -> Array:
    """Arrays of one dtype joined along `dimension`."""
    if not isinstance(operands, (list, tuple)) or not operands:
        raise TypeError("concatenate takes a non-empty sequence of arrays")
    return shapes.concatenate([array(x) for x in operands], dimension)


def stack(operands: Sequence[Any], axis: int = 0) -> Array:
    """Arrays of one shape joined along a new axis, in their common dtype."""
    xs = promote_arrays("stack", operands)
    if not xs:
        raise ValueError("stack needs at least one array")
    for x in xs:
        if x.aval.shape != xs[0].aval.shape:
            raise errors.ShapeError(
                f"stack: shapes differ: {xs[0].aval} and {x.aval}\n  at {where().describe()}"
            )
    axis = canonical_axis(axis, xs[0].ndim + 1, "stack")
    return shapes.concatenate([shapes.expand_dims(x, (axis,)) for x in xs], axis)


def unstack(x: ArrayLike, axis: int = 0) -> tuple[Array, ...]:
    """The slices of an array along `axis`, without that axis."""
    x = array(x)
    if x.ndim == 0:
        raise ValueError("unstack needs at least one dimension")
    axis = canonical_axis(axis, x.ndim, "unstack")
    n = x.aval.shape[axis]
    parts = shapes.split(x, (1,) * n, axis) if n else ()
    return tuple([shapes.squeeze(part, (axis,)) for part in parts])


def pad(
    operand: ArrayLike, padding_value: ArrayLike, padding_config: Sequence[Sequence[int]]
) -> Array:
    """`operand` with (low, high, interior) copies of a scalar around and between its elements."""
    operand = array(operand)
    if type(padding_value) in SCALARS:
        padding_value = scalar_as(padding_value, operand.aval.dtype)
    elif isinstance(padding_value, np.generic) or (
        isinstance(padding_value, np.ndarray) and not padding_value.ndim
    ):
        padding_value = scalar_as(padding_value.item(), operand.aval.dtype)
    return shapes.pad(operand, padding_value, padding_config)


def shape_as_value(shape: Sequence[int]) -> Array:
    """A shape as an int32 vector."""
    return from_numpy(np.asarray([operator.index(n) for n in shape], np.int32))


def optimization_barrier(operand: PyTree) -> PyTree:
    """The same pytree of arrays; no computation moves across."""
    leaves, treedef = tree.flatten(operand)
    return tree.unflatten(treedef, shapes.optimization_barrier([array(x) for x in leaves]))


# ---- indexing ----

dynamic_slice = on_arrays(indexing.dynamic_slice)
dynamic_slice_in_dim = on_arrays(indexing.dynamic_slice_in_dim)
dynamic_index_in_dim = on_arrays(indexing.dynamic_index_in_dim)
dynamic_update_slice = on_arrays(indexing.dynamic_update_slice, 2)
dynamic_update_slice_in_dim = on_arrays(indexing.dynamic_update_slice_in_dim, 2)
dynamic_update_index_in_dim = on_arrays(indexing.dynamic_update_index_in_dim, 2)
scatter_ = on_arrays(scatter.scatter, 3)
scatter_add = on_arrays(scatter.scatter_add, 3)
scatter_sub = on_arrays(scatter.scatter_sub, 3)
scatter_mul = on_arrays(scatter.scatter_mul, 3)
scatter_min = on_arrays(scatter.scatter_min, 3)
scatter_max = on_arrays(scatter.scatter_max, 3)


def gather_(
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
    return gather.gather(
        array(operand),
        array(start_indices),
        dimension_numbers,
        slice_sizes,
        unique_indices=unique_indices,
        indices_are_sorted=indices_are_sorted,
        mode="clip" if mode is None else mode,
        fill_value=fill_value,
    )


def index_take(src: ArrayLike, idxs: Sequence[Any], axes: Sequence[int]) -> Array:
    """src[idxs[0], idxs[1], ...] along `axes`, for vectors of indices that wrap around."""
    return gather.index_take(array(src), [array(i) for i in idxs], axes)


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
    operand, scatter_indices = array(operand), array(scatter_indices)
    counts = scatter.scatter_add(
        shapes.broadcast_in_dim(from_numpy(np.zeros((), np.int32)), operand.aval.shape, ()),
        scatter_indices,
        shapes.broadcast_in_dim(from_numpy(np.ones((), np.int32)), tuple(update_shape), ()),
        dimension_numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode=mode,
    )
    x, y = promote_arrays("scatter_apply", (func(operand), operand))
    return select(gt(counts, 0), x, y)


# ---- contraction, convolution ----

dot_general_ = on_arrays(contract.dot_general, 2)
batch_matmul = on_arrays(contract.batch_matmul, 2)
conv_general_dilated = on_arrays(conv.conv_general_dilated, 2)
conv_ = on_arrays(conv.conv, 2)
conv_with_general_padding = on_arrays(conv.conv_with_general_padding, 2)
conv_transpose = on_arrays(conv.conv_transpose, 2)
conv_general_dilated_patches = on_arrays(conv.conv_general_dilated_patches)


def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: DotDimensionNumbers,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    *,
    out_sharding: None = None,
) -> Array:
    """Products summed over contracting dimensions: [batch, lhs free, rhs free].

    `dimension_numbers` is ((lhs contracting, rhs contracting), (lhs batch, rhs batch)).
    """
    preferred = None if preferred_element_type is None else dtypes.dtype(preferred_element_type)
    return dot_general_(lhs, rhs, dimension_numbers, precision, preferred)


def dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    *,
    dimension_numbers: DotDimensionNumbers | None = None,
) -> Array:
    """The product of two vectors or matrices; with `dimension_numbers`, `dot_general`."""
    if dimension_numbers is not None:
        return dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type)
    preferred = None if preferred_element_type is None else dtypes.dtype(preferred_element_type)
    return contract.dot(array(lhs), array(rhs), precision, preferred)


# ---- reductions ----


def reduce_sum(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """The sum over `axes`."""
    return reduce.reduce_sum(array(operand), axes)


reduce_max = on_arrays(reduce.reduce_max)
reduce_min = on_arrays(reduce.reduce_min)
reduce_prod = on_arrays(reduce_generic.reduce_prod)
reduce_and = on_arrays(reduce.reduce_and)
reduce_or = on_arrays(reduce.reduce_or)
reduce_xor = on_arrays(reduce.reduce_xor)
argmax = on_arrays(reduce.argmax)
argmin = on_arrays(reduce.argmin)
cumsum = on_arrays(cumulative.cumsum)
cumprod = on_arrays(cumulative.cumprod)
cummax = on_arrays(cumulative.cummax)
cummin = on_arrays(cumulative.cummin)
cumlogsumexp = on_arrays(cumulative.cumlogsumexp)
linear_recurrence = on_arrays(cumulative.linear_recurrence, 2)


def _initial(value: Any, x: Any) -> Any:
    """An initial value in the dtype of its operand."""
    if type(value) in SCALARS:
        return scalar_as(value, x.aval.dtype)
    if isinstance(value, (np.generic, np.ndarray)):
        return scalar_as(np.asarray(value).item(), x.aval.dtype)
    return convert(value, x.aval.dtype) if getattr(value, "weak", False) else value


def reduce_(
    operands: PyTree,
    init_values: PyTree,
    computation: Callable[..., Any],
    dimensions: Sequence[int],
) -> PyTree:
    """`computation` repeated over `dimensions` starting at `init_values`; arrays or pytrees.

    `computation(a, b)` is associative and commutative, of two arrays or two pytrees.
    """
    leaves, treedef = tree.flatten(operands)
    inits = tree.leaves(init_values)
    xs = [array(x) for x in leaves]
    if len(inits) != len(xs):
        raise errors.ShapeError(f"reduce: {len(xs)} operands but {len(inits)} initial values")
    starts = [_initial(i, x) for i, x in zip(inits, xs, strict=True)]
    if len(xs) == 1 and not isinstance(operands, (tuple, list, dict)):
        return reduce_generic.reduce(xs[0], starts[0], computation, dimensions)

    def combine(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
        both = [tree.unflatten(treedef, list(v)) for v in (a, b)]
        return tuple(tree.leaves(computation(*both)))

    found = reduce_generic.reduce(tuple(xs), tuple(starts), combine, dimensions)
    return tree.unflatten(treedef, list(found))


def reduce_window(
    operand: PyTree,
    init_value: PyTree,
    computation: Callable[..., Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> PyTree:
    """`computation` (add, max, min, ...) over every window of `operand`, an array or a pytree of
    arrays of one shape with as many initial values."""
    leaves, treedef = tree.flatten(operand)
    xs, inits = [array(x) for x in leaves], tree.leaves(init_value)
    if len(inits) != len(xs):
        raise errors.ShapeError(
            f"reduce_window: {len(xs)} operands but {len(inits)} initial values"
        )
    starts = [_initial(i, x) for i, x in zip(inits, xs)]
    options = window_dimensions, window_strides, padding, base_dilation, window_dilation
    if len(xs) == 1 and not isinstance(operand, (tuple, list, dict)):
        return windows.reduce_window(xs[0], starts[0], computation, *options)

    def combine(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        both = [tree.unflatten(treedef, list(v)) for v in (a, b)]
        return tree.leaves(computation(*both))

    return tree.unflatten(treedef, windows.reduce_windows(xs, starts, combine, *options))


def reduce_window_shape_tuple(
    operand_shape: Sequence[int],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """The shape of a reduction over windows."""
    ones = (1,) * len(operand_shape)
    result = []
    for n, w, s, (low, high), b, d in zip(
        operand_shape,
        window_dimensions,
        window_strides,
        padding,
        base_dilation or ones,
        window_dilation or ones,
        strict=True,
    ):
        whole = conv.dilated(n, b) + low + high
        result.append(max(0, (whole - conv.dilated(w, d)) // s + 1))
    return tuple(result)


# ---- sorting ----


@overload
def sort(
    operand: ArrayLike, dimension: int = -1, is_stable: bool = True, num_keys: int = 1
) -> Array: ...


@overload
def sort(
    operand: Sequence[ArrayLike], dimension: int = -1, is_stable: bool = True, num_keys: int = 1
) -> tuple[Array, ...]: ...


def sort(
    operand: ArrayLike | Sequence[ArrayLike],
    dimension: int = -1,
    is_stable: bool = True,
    num_keys: int = 1,
) -> Array | tuple[Array, ...]:
    """`operand`, or several arrays permuted alike, in ascending order along `dimension`."""
    if isinstance(operand, (tuple, list)):
        found = sorts.sort([array(x) for x in operand], dimension, is_stable, num_keys)
        return tuple(found)
    return sorts.sort(array(cast(ArrayLike, operand)), dimension, is_stable, num_keys)


def sort_key_val(
    keys: ArrayLike, values: ArrayLike, dimension: int = -1, is_stable: bool = True
) -> tuple[Array, Array]:
    """(keys in ascending order, values permuted alike)."""
    ordered, permuted = sort((keys, values), dimension, is_stable)
    return ordered, permuted


top_k = on_arrays(sorts.top_k)


def approx_max_k(
    operand: ArrayLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> tuple[Array, Array]:
    """(the k greatest elements, their positions): exact, so any `recall_target` is met."""
    return sorts.top_k(array(operand), k, axis=reduction_dimension)


def approx_min_k(
    operand: ArrayLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> tuple[Array, Array]:
    """(the k least elements, their positions): exact, so any `recall_target` is met."""
    operand = array(operand)
    axis = shapes.canonical_axis(reduction_dimension, operand.ndim, "approx_min_k")
    positions = shapes.broadcasted_iota(dtypes.I32, operand.aval.shape, axis)
    values, index = sorts.sort([operand, positions], axis, True, 1)
    return shapes.slice_in_dim(values, 0, k, axis=axis), shapes.slice_in_dim(index, 0, k, axis=axis)


# ---- transforms ----


def fft(x: ArrayLike, fft_type: FftType | str, fft_lengths: Sequence[int]) -> Array:
    """The discrete Fourier transform over the last axes, as many as there are lengths, of one of
    the FftType kinds."""
    if not len(fft_lengths):  # over no axes
        return array(x)
    return transforms.fft(array(x), fft_type, fft_lengths)
