"""lax functions on whole arrays: shapes, reductions, sorting, FFT."""

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
from genesis_fn.lax.creation import asarray
from genesis_fn.lax.operands import array as to_array  # `squeeze` has a parameter `array`
from genesis_fn.lax.promotion import promote_arrays, scalar_as
from genesis_fn.primitives import fft as transforms, shape as shapes, sort as sorts
from genesis_fn.primitives.conv import dilated
from genesis_fn.primitives.elementwise import convert
from genesis_fn.primitives.fft import FftType
from genesis_fn.primitives.reductions import (
    complex_order,
    cumulative,
    reduce as reductions,
    reduce_generic,
    reduce_window as windows,
)
from genesis_fn.primitives.shape import canonical_axis
from genesis_fn.transforms.control_flow.associative import associative_scan

# ---- shape ----


def broadcast(operand: ArrayLike, sizes: Sequence[int]) -> Array:
    """`operand` repeated along new leading dimensions of lengths `sizes`."""
    return shapes.broadcast(to_array(operand), sizes)


def broadcast_in_dim(
    operand: ArrayLike, shape: Sequence[int], broadcast_dimensions: Sequence[int]
) -> Array:
    """Repeat `operand` to `shape`: its dimension i, of length 1 or the result's, becomes dimension
    `broadcast_dimensions[i]`.
    """
    return shapes.broadcast_in_dim(to_array(operand), shape, broadcast_dimensions)


def reshape(
    operand: ArrayLike, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None
) -> Array:
    """`operand` with the same elements in row-major order and another shape.

    `dimensions`: the order in which the operand's dimensions are read, slowest first.
    """
    return shapes.reshape(to_array(operand), new_sizes, dimensions)


def collapse(operand: ArrayLike, start_dimension: int, stop_dimension: int | None = None) -> Array:
    """`operand` with the dimensions from `start_dimension` up to `stop_dimension` merged in one."""
    return shapes.collapse(to_array(operand), start_dimension, stop_dimension)


def squeeze(array: ArrayLike, dimensions: int | Sequence[int]) -> Array:
    """`array` without `dimensions`, each of length 1."""
    return shapes.squeeze(to_array(array), dimensions)


def expand_dims(array: ArrayLike, dimensions: int | Sequence[int]) -> Array:
    """Add dimensions of length 1 at these positions of the result."""
    return shapes.expand_dims(to_array(array), dimensions)


def transpose(operand: ArrayLike, permutation: Sequence[int]) -> Array:
    """`operand` with its axes reordered: axis i of the result is axis `permutation[i]`."""
    return shapes.transpose(to_array(operand), permutation)


def rev(operand: ArrayLike, dimensions: Sequence[int]) -> Array:
    """`operand` with the order of elements reversed along `dimensions`."""
    return shapes.rev(to_array(operand), dimensions)


def tile(operand: ArrayLike, reps: Sequence[int]) -> Array:
    """Repeat `operand` `reps[i]` times along each dimension i."""
    return shapes.tile(to_array(operand), reps)


def split(operand: ArrayLike, sizes: Sequence[int], axis: int = 0) -> list[Array]:
    """`operand` cut along `axis` into parts of these lengths."""
    return shapes.split(to_array(operand), sizes, axis)


def slice(
    operand: ArrayLike,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Array:
    """operand[start:limit:stride] along every dimension; the bounds are not clamped."""
    return shapes.slice(to_array(operand), start_indices, limit_indices, strides)


def slice_in_dim(
    operand: ArrayLike,
    start_index: int | None,
    limit_index: int | None,
    stride: int = 1,
    axis: int = 0,
) -> Array:
    """operand[start:limit:stride] along one axis; negative bounds count from the end."""
    return shapes.slice_in_dim(to_array(operand), start_index, limit_index, stride, axis)


def index_in_dim(operand: ArrayLike, index: int, axis: int = 0, keepdims: bool = True) -> Array:
    """operand[index] along one axis, which is kept with length 1 or dropped."""
    return shapes.index_in_dim(to_array(operand), index, axis, keepdims)


def reduce_precision(operand: ArrayLike, exponent_bits: int, mantissa_bits: int) -> Array:
    """Round `operand` to a float format with these bits, in its own dtype. What is too large
    becomes infinite, what is too small for a normal number becomes zero.
    """
    return shapes.reduce_precision(to_array(operand), exponent_bits, mantissa_bits)


broadcasted_iota, iota = shapes.broadcasted_iota, shapes.iota


def broadcast_to_rank(x: ArrayLike, rank: int) -> Array:
    """`x` with leading axes of length 1 up to `rank` axes."""
    x = to_array(x)
    missing = rank - len(x.aval.shape)
    if missing < 0:
        raise errors.ShapeError(f"broadcast_to_rank: {x.aval} has more than {rank} axes")
    return shapes.expand_dims(x, tuple(range(missing))) if missing else x


def broadcast_like(arr: ArrayLike, like_arr: ArrayLike) -> Array:
    """`arr` repeated to the shape of `like_arr`, as `broadcast_to` does; the dtype is its own."""
    x, shape = to_array(arr), to_array(like_arr).aval.shape
    missing = len(shape) - x.aval.ndim
    if missing < 0 or any(n not in (1, m) for n, m in zip(x.aval.shape, shape[missing:])):
        raise errors.ShapeError(f"broadcast_like: {x.aval} does not broadcast to {list(shape)}")
    return shapes.broadcast_in_dim(x, shape, tuple(range(missing, len(shape))))


def concatenate(operands: Sequence[Any], dimension: int) -> Array:
    """Arrays of one dtype joined along `dimension`."""
    if not isinstance(operands, (list, tuple)) or not operands:
        raise TypeError("concatenate takes a non-empty sequence of arrays")
    return shapes.concatenate([to_array(x) for x in operands], dimension)


def arrays_of(sequence: Any, name: str) -> list[Array]:
    """The arrays of a sequence (or the rows of an array) in one dtype, for the function `name`."""
    if isinstance(sequence, (Array, np.ndarray)):
        sequence = unstack(sequence)
    if not isinstance(sequence, (list, tuple)):
        raise TypeError(f"{name} takes a sequence of arrays, got {type(sequence).__name__}")
    if not sequence:
        raise ValueError(f"{name} needs at least one array")
    return promote_arrays(
        name, [asarray(x) if isinstance(x, (list, tuple)) else x for x in sequence]
    )


def stack(operands: ArrayLike | Sequence[Any], axis: int = 0) -> Array:
    """Arrays of one shape joined along a new axis, in their common dtype."""
    xs = arrays_of(operands, "stack")
    for x in xs:
        if x.aval.shape != xs[0].aval.shape:
            raise errors.ShapeError(
                f"stack: shapes differ: {xs[0].aval} and {x.aval}\n  at {where().describe()}"
            )
    axis = canonical_axis(axis, xs[0].ndim + 1, "stack")
    return shapes.concatenate([shapes.expand_dims(x, (axis,)) for x in xs], axis)


def unstack(x: ArrayLike, axis: int = 0) -> tuple[Array, ...]:
    """The slices of an array along `axis`, without that axis."""
    x = to_array(x)
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
    operand = to_array(operand)
    if type(padding_value) in SCALARS:
        padding_value = scalar_as(padding_value, operand.aval.dtype)
    elif shape := getattr(padding_value, "shape", ()):
        raise errors.ShapeError(f"pad: padding_value is a scalar, got one of shape {list(shape)}")
    elif isinstance(padding_value, (np.generic, np.ndarray)):
        padding_value = scalar_as(padding_value.item(), operand.aval.dtype)
    return shapes.pad(operand, padding_value, padding_config)


def shape_as_value(shape: Sequence[int]) -> Array:
    """A shape as an int32 vector."""
    return from_numpy(np.asarray([operator.index(n) for n in shape], np.int32))


def optimization_barrier(operand: PyTree) -> PyTree:
    """The same pytree of arrays; no computation moves across."""
    leaves, treedef = tree.flatten(operand)
    return tree.unflatten(treedef, shapes.optimization_barrier([to_array(x) for x in leaves]))


# ---- reductions ----


def reduce_sum(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """The sum over `axes`."""
    return reductions.reduce_sum(to_array(operand), axes)


def reduce_max(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """The maximum over `axes`; NaN if one is there. Over nothing: the dtype's least value."""
    x = to_array(operand)
    if dtypes.is_complex(x.aval.dtype):
        return complex_order.reduced(True, x, axes)
    return reductions.reduce_max(x, axes)


def reduce_min(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """The minimum over `axes`; NaN if one is there. Over nothing: the dtype's greatest value."""
    x = to_array(operand)
    if dtypes.is_complex(x.aval.dtype):
        return complex_order.reduced(False, x, axes)
    return reductions.reduce_min(x, axes)


def reduce_prod(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """The product over `axes`, in the dtype of `operand`; 16-bit floats multiply in float32."""
    return reduce_generic.reduce_prod(to_array(operand), axes)


def reduce_and(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """The bitwise (of booleans: logical) and over `axes`."""
    return reductions.reduce_and(to_array(operand), axes)


def reduce_or(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """The bitwise (of booleans: logical) or over `axes`."""
    return reductions.reduce_or(to_array(operand), axes)


def reduce_xor(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """The bitwise (of booleans: logical) exclusive or over `axes`."""
    return reductions.reduce_xor(to_array(operand), axes)


def argmax(operand: ArrayLike, axis: int, index_dtype: DTypeLike = dtypes.I32) -> Array:
    """The first position of the maximum along `axis`, or of the first NaN."""
    return reductions.argmax(to_array(operand), axis, index_dtype)


def argmin(operand: ArrayLike, axis: int, index_dtype: DTypeLike = dtypes.I32) -> Array:
    """The first position of the minimum along `axis`, or of the first NaN."""
    return reductions.argmin(to_array(operand), axis, index_dtype)


def cumsum(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """The sum of each element and those before it (`reverse`: after it) along `axis`."""
    return cumulative.cumsum(to_array(operand), axis, reverse)


def cumprod(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """The product of each element and those before it (`reverse`: after it) along `axis`."""
    return cumulative.cumprod(to_array(operand), axis, reverse)


def cummax(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """The maximum of each element and those before it (`reverse`: after); NaN once one is met."""
    x = to_array(operand)
    if dtypes.is_complex(x.aval.dtype):
        return associative_scan(complex_order.maximum, x, reverse=reverse, axis=axis)
    return cumulative.cummax(x, axis, reverse)


def cummin(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """The minimum of each element and those before it (`reverse`: after); NaN once one is met."""
    x = to_array(operand)
    if dtypes.is_complex(x.aval.dtype):
        return associative_scan(complex_order.minimum, x, reverse=reverse, axis=axis)
    return cumulative.cummin(x, axis, reverse)


def cumlogsumexp(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """log of the sum of the exponentials of each element and those before it (`reverse`: after)."""
    return cumulative.cumlogsumexp(to_array(operand), axis, reverse)


def linear_recurrence(a: ArrayLike, b: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """h along `axis` with h_k = a_k h_{k-1} + b_k and h_{-1} = 0 (`reverse`: from the far end).

    a and b have one shape and floating dtype. Linear in b; differentiable in both, to any order.
    """
    return cumulative.linear_recurrence(to_array(a), to_array(b), axis, reverse)


def _initial(name: str, value: Any, x: Any) -> Any:
    """An initial value in the dtype of its operand."""
    if type(value) in SCALARS:
        return scalar_as(value, x.aval.dtype)
    shape = getattr(value, "shape", ())
    if shape:
        raise errors.ShapeError(
            f"{name}: an initial value is a scalar, got one of shape {list(shape)} for {x.aval}"
        )
    if isinstance(value, (np.generic, np.ndarray)):
        return scalar_as(np.asarray(value).item(), x.aval.dtype)
    return convert(value, x.aval.dtype) if getattr(value, "weak", False) else value


def reduce(
    operands: PyTree,
    init_values: PyTree,
    computation: Callable[..., Any],
    dimensions: Sequence[int],
) -> PyTree:
    """`computation` repeated over `dimensions` starting at `init_values`; arrays or pytrees.

    `computation(a, b)` is associative and commutative, of two arrays or two pytrees.
    """
    leaves, treedef = tree.flatten(operands)
    inits, given = tree.flatten(init_values)
    xs = [to_array(x) for x in leaves]
    if len(inits) != len(xs):
        raise errors.ShapeError(f"reduce: {len(xs)} operands but {len(inits)} initial values")
    if given != treedef:
        raise errors.TreeError(
            f"reduce: operands {treedef} and initial values {given} differ in structure"
        )
    starts = [_initial("reduce", i, x) for i, x in zip(inits, xs, strict=True)]
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
    xs, inits = [to_array(x) for x in leaves], tree.leaves(init_value)
    if len(inits) != len(xs):
        raise errors.ShapeError(
            f"reduce_window: {len(xs)} operands but {len(inits)} initial values"
        )
    starts = [_initial("reduce_window", i, x) for i, x in zip(inits, xs)]
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
        whole = dilated(n, b) + low + high
        result.append(max(0, (whole - dilated(w, d)) // s + 1))
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
        found = sorts.sort([to_array(x) for x in operand], dimension, is_stable, num_keys)
        return tuple(found)
    return sorts.sort(to_array(cast(ArrayLike, operand)), dimension, is_stable, num_keys)


def sort_key_val(
    keys: ArrayLike, values: ArrayLike, dimension: int = -1, is_stable: bool = True
) -> tuple[Array, Array]:
    """(keys in ascending order, values permuted alike)."""
    ordered, permuted = sort((keys, values), dimension, is_stable)
    return ordered, permuted


def top_k(
    operand: ArrayLike, k: int, *, axis: int = -1, is_stable: bool = True
) -> tuple[Array, Array]:
    """(the k greatest elements along `axis` in descending order, their int32 positions).

    Of equal elements the earlier comes first, though `is_stable` should not ask for it; NaN is
    greatest. Raises ShapeError if k is too large, or `axis` too long for int32.
    """
    return sorts.top_k(to_array(operand), k, axis=axis)


def approx_max_k(
    operand: ArrayLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> tuple[Array, Array]:
    """(the k greatest elements, their positions): exact, so any `recall_target` is met."""
    return sorts.top_k(to_array(operand), k, axis=reduction_dimension)


def approx_min_k(
    operand: ArrayLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> tuple[Array, Array]:
    """(the k least elements, their positions): exact, so any `recall_target` is met."""
    operand = to_array(operand)
    axis = shapes.canonical_axis(reduction_dimension, operand.ndim, "approx_min_k")
    positions = shapes.broadcasted_iota(dtypes.I32, operand.aval.shape, axis)
    values, index = sorts.sort([operand, positions], axis, True, 1)
    return shapes.slice_in_dim(values, 0, k, axis=axis), shapes.slice_in_dim(index, 0, k, axis=axis)


# ---- transforms ----


def fft(x: ArrayLike, fft_type: FftType | str, fft_lengths: Sequence[int]) -> Array:
    """The discrete Fourier transform over the last axes, as many as there are lengths, of one of
    the FftType kinds."""
    if not len(fft_lengths):  # over no axes
        return to_array(x)
    return transforms.fft(to_array(x), fft_type, fft_lengths)
