"""Contractions and convolutions, also locally connected, of ragged groups, and of block-scaled
operands."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from genesis_fn.core import dtypes, errors
from genesis_fn.core.convert import as_array
from genesis_fn.core.primitive import typeof
from genesis_fn.core.types.annotations import Array, ArrayLike, DTypeLike
from genesis_fn.lax.operands import array
from genesis_fn.primitives import (
    conv as convolutions,
    dot_general as contractions,
    elementwise as ops,
    ragged_dot as ragged,
)
from genesis_fn.primitives.conv import ConvDimensionNumbersLike, conv_dimension_numbers
from genesis_fn.primitives.dot_general import DotDimensionNumbers, PrecisionLike, free_dims
from genesis_fn.primitives.shape import broadcast_in_dim, reshape, transpose

# ---- contraction, convolution ----


def batch_matmul(lhs: ArrayLike, rhs: ArrayLike, precision: PrecisionLike = None) -> Array:
    """Multiply lhs[..., m, k] by rhs[..., k, n], for equal leading dimensions."""
    return contractions.batch_matmul(array(lhs), array(rhs), precision)


def conv_general_dilated(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: ConvDimensionNumbersLike = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Convolve `lhs` with the kernel `rhs`; correlate, that is: the kernel is not flipped.

    `padding`: "SAME", "SAME_LOWER", "VALID" or (low, high) pairs, which may be negative.
    `lhs_dilation` and `rhs_dilation` put zeros between elements. Layouts: see
    `conv_dimension_numbers`. Raises ShapeError, DTypeError, ValueError.
    """
    return convolutions.conv_general_dilated(
        array(lhs),
        array(rhs),
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        dimension_numbers,
        feature_group_count,
        batch_group_count,
        precision,
        preferred_element_type,
    )


def conv(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Apply `conv_general_dilated` in NCHW and OIHW layout without dilation."""
    return convolutions.conv(
        array(lhs), array(rhs), window_strides, padding, precision, preferred_element_type
    )


def conv_with_general_padding(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Apply `conv_general_dilated` in NCHW and OIHW layout."""
    return convolutions.conv_with_general_padding(
        array(lhs),
        array(rhs),
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        precision,
        preferred_element_type,
    )


def conv_transpose(
    lhs: ArrayLike,
    rhs: ArrayLike,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: ConvDimensionNumbersLike = None,
    transpose_kernel: bool = False,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    use_consistent_padding: bool = False,
) -> Array:
    """Convolve so that lengths grow by `strides`: "SAME" gives n * stride, "VALID" all positions
    reached.

    Layouts are channels-last by default. With `transpose_kernel` it is the gradient of the
    convolution with kernel `rhs`. Pairs are the padding of this convolution, or, with
    `use_consistent_padding`, as the names are, that of the one whose gradient it is.
    """
    return convolutions.conv_transpose(
        array(lhs),
        array(rhs),
        strides,
        padding,
        rhs_dilation,
        dimension_numbers,
        transpose_kernel,
        precision,
        preferred_element_type,
        use_consistent_padding,
    )


def conv_general_dilated_patches(
    lhs: ArrayLike,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: ConvDimensionNumbersLike = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Extract the windows of `lhs` as features: (channel, *window) in row-major order."""
    return convolutions.conv_general_dilated_patches(
        array(lhs),
        filter_shape,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        dimension_numbers,
        precision,
        preferred_element_type,
    )


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

    `dimension_numbers` is ((lhs contracting, rhs contracting), (lhs batch, rhs batch)). 16- and
    8-bit floats accumulate in float32 and are rounded once, to the operands' dtype or to
    `preferred_element_type`; integers wrap. Raises ShapeError, DTypeError.
    """
    preferred = None if preferred_element_type is None else dtypes.dtype(preferred_element_type)
    return contractions.dot_general(array(lhs), array(rhs), dimension_numbers, precision, preferred)


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
    return contractions.dot(array(lhs), array(rhs), precision, preferred)


def conv_general_dilated_local(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: ConvDimensionNumbersLike = None,
    precision: PrecisionLike = None,
) -> Array:
    """A locally connected convolution: each position of the result has a kernel of its own.

    The spatial axes of `rhs` are those of the result; its input axis runs over (channel, *window).
    """
    lhs, rhs = array(lhs), array(rhs)
    patches = conv_general_dilated_patches(
        lhs,
        filter_shape,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        dimension_numbers,
        precision,
    )
    shape = (1, 1, *filter_shape)
    _, rhs_spec, out_spec = conv_dimension_numbers(typeof(lhs).shape, shape, dimension_numbers)
    positions = sorted(zip(out_spec[2:], rhs_spec[2:]))
    numbers = (
        ((out_spec[1],), (rhs_spec[1],)),
        (tuple([a for a, _ in positions]), tuple([b for _, b in positions])),
    )
    out = dot_general(patches, rhs, numbers, precision=precision)  # [positions, batch, features]
    order = [0] * len(out_spec)
    for source, (target, _) in enumerate(positions):
        order[target] = source
    order[out_spec[0]], order[out_spec[1]] = len(positions), len(positions) + 1
    return transpose(out, order)


class RaggedDotDimensionNumbers(NamedTuple):
    """Dimension numbers of `ragged_dot_general`.

    * `dot_dimension_numbers`: as for `dot_general`.
    * `lhs_ragged_dimensions`: the one dimension of `lhs` that is cut into groups.
    * `rhs_group_dimensions`: the dimension of `rhs` over groups, if `lhs` is cut in a free one.
    """

    dot_dimension_numbers: tuple[Any, ...]
    lhs_ragged_dimensions: Sequence[int]
    rhs_group_dimensions: Sequence[int]


def ragged_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: None = None,
) -> Array:
    """Rows of `lhs` times their group's matrix of `rhs`: the products of a mixture of experts.

    The first `group_sizes[0]` rows belong to group 0, and so on; rows of no group give zeros. The
    work is that of one product of all rows. `jnp.swapaxes(w, 1, 2)` as `rhs` costs nothing in
    compiled programs: kernels read `w` as it is.

    Args:
        lhs: array [m, k], its rows sorted by group.
        rhs: array [groups, k, n].
        group_sizes: integers [groups], the number of rows of each group, which may be 0 (as
            negative ones count). Rows beyond m are ignored.
        precision: as for `dot_general`.
        preferred_element_type: dtype of the result; None: that of the operands.
        group_offset: None, since groups are not split over devices.

    Returns:
        An array [m, n].

    Raises:
        ShapeError: the shapes do not fit one another.
        DTypeError: `group_sizes` are no integers, or the dtype of the result cannot hold products.
        ValueError: `group_offset` is not None.

    >>> weights = jnp.array([[[1.0], [2.0]], [[3.0], [4.0]]])
    >>> lax.ragged_dot(jnp.ones((3, 2)), weights, jnp.array([1, 2]))
    Array([[3.], [7.], [7.]], dtype=float32)
    """
    if group_offset is not None:
        raise ValueError("ragged_dot: group_offset is for groups split over devices; pass None")
    operands = array(lhs), array(rhs), as_array(group_sizes)
    return ragged.ragged_dot(*operands, precision, preferred_element_type)


def ragged_dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    ragged_dot_dimension_numbers: RaggedDotDimensionNumbers,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: None = None,
) -> Array:
    """`dot_general` by groups, which follow one another along a dimension of `lhs`.

    Cut in a free dimension of `lhs`, each group is multiplied by its own part of `rhs`: [batch, lhs
    free, rhs free]. Cut in a contracting one, every group has a result: [groups, batch, lhs free,
    rhs free]. In a batch dimension the groups change nothing. Elements of no group give zeros.
    `group_sizes` is [groups], or [*batch, groups].
    """
    lhs, rhs, sizes = array(lhs), array(rhs), as_array(group_sizes)
    if group_offset is not None:
        raise ValueError("ragged_dot_general: group_offset is for groups split over devices")
    (contract, batch), cuts, group = ragged_dot_dimension_numbers
    if len(cuts) != 1:
        raise errors.ShapeError(f"ragged_dot_general: one dimension is ragged, got {list(cuts)}")
    (cut,) = cuts
    if cut in batch[0]:
        return dot_general(lhs, rhs, (contract, batch), precision, preferred_element_type)
    free = cut not in contract[0]
    if free != (len(group) == 1):
        raise errors.ShapeError(
            f"ragged_dot_general: rhs_group_dimensions {list(group)} must name one dimension where "
            f"lhs is ragged in a free dimension, and none where in a contracting one ({cut})"
        )
    dims = _RaggedDims(cut, tuple(group), *map(tuple, (*contract, *batch)))
    outer = tuple([typeof(lhs).shape[d] for d in dims.lhs_batch])
    if typeof(sizes).shape[:-1] not in ((), outer) or typeof(sizes).ndim == 0:
        raise errors.ShapeError(
            f"ragged_dot_general: group_sizes {typeof(sizes)} is no vector, nor one for each of "
            f"the batch {list(outer)}"
        )
    product = _by_rows if free else _by_depth
    return product(lhs, rhs, sizes, dims, precision, preferred_element_type)


class _RaggedDims(NamedTuple):
    """The dimensions of a product whose left operand is cut into groups along `cut`."""

    cut: int
    group: tuple[int, ...]
    lhs_contract: tuple[int, ...]
    rhs_contract: tuple[int, ...]
    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]


def _by_rows(
    lhs: Array, rhs: Array, sizes: Array, dims: _RaggedDims, precision: Any, preferred: Any
) -> Array:
    """[batch, lhs free, rhs free], of a left operand that is cut along a free dimension."""
    cut, batch = dims.cut, len(dims.lhs_batch)
    free = free_dims(lhs.ndim, (*dims.lhs_batch, *dims.lhs_contract))
    others = [d for d in free if d != cut]
    columns = free_dims(rhs.ndim, (*dims.rhs_batch, *dims.rhs_contract, *dims.group))
    x, shape = _merged(lhs, dims.lhs_batch, (cut, *others), dims.lhs_contract)
    w, wide = _merged(rhs, dims.rhs_batch, dims.group, dims.rhs_contract, columns)
    sizes = _sizes_of_batch(
        sizes, shape[:batch], math.prod(shape[batch + 1 : lhs.ndim - len(dims.lhs_contract)])
    )
    out = ragged.ragged_dot(x, w, sizes, precision, preferred)
    rows = shape[: batch + len(free)]
    out = reshape(out, (*rows, *wide[rhs.ndim - len(columns) :]))
    # The dimension that is cut came first among the free ones.
    place = batch + free.index(cut)
    order = [d for d in range(out.ndim) if d != batch]
    order.insert(place, batch)
    return transpose(out, order)


def _by_depth(
    lhs: Array, rhs: Array, sizes: Array, dims: _RaggedDims, precision: Any, preferred: Any
) -> Array:
    """[groups, batch, lhs free, rhs free], of a left operand cut along a contracting dimension."""
    batch = len(dims.lhs_batch)
    # Contracting dimensions in one order, in which the one that is cut comes first.
    pairs = sorted(zip(dims.lhs_contract, dims.rhs_contract), key=lambda p: p[0] != dims.cut)
    lhs_contract, rhs_contract = [i for i, _ in pairs], [j for _, j in pairs]
    rows = free_dims(lhs.ndim, (*dims.lhs_batch, *lhs_contract))
    columns = free_dims(rhs.ndim, (*dims.rhs_batch, *rhs_contract))
    x, shape = _merged(lhs, dims.lhs_batch, lhs_contract, rows)
    y, wide = _merged(rhs, dims.rhs_batch, rhs_contract, columns)
    depth = batch + len(pairs)
    groups = typeof(sizes).shape[-1]
    sizes = _sizes_of_batch(sizes, shape[:batch], math.prod(shape[batch + 1 : depth]))
    out = ragged.ragged_contraction(x, y, sizes, precision, preferred)
    out = reshape(out, (*shape[:batch], groups, *shape[depth:], *wide[depth:]))
    return transpose(out, (batch, *range(batch), *range(batch + 1, out.ndim)))


def _merged(x: Array, batch: Sequence[int], *axes: Sequence[int]) -> tuple[Array, tuple[int, ...]]:
    """`x` with its batch dimensions (if it has any) as one and each of `axes` as one, and its shape
    before they were."""
    order = [*batch, *[d for these in axes for d in these]]
    if order != list(range(x.ndim)):
        x = transpose(x, order)
    sizes = iter(x.shape)
    found = [math.prod(itertools.islice(sizes, len(these))) for these in (batch, *axes)]
    return reshape(x, found if batch else found[1:]), x.shape


def _sizes_of_batch(sizes: Array, batch: Sequence[int], rows: int) -> Array:
    """Sizes for each product of a batch, of groups whose elements are `rows` rows each."""
    if rows != 1:
        sizes = ops.mul(sizes, rows)
    groups = sizes.shape[-1]
    if not batch:
        return sizes
    sizes = broadcast_in_dim(
        sizes, (*batch, groups), range(len(batch) + 1 - sizes.ndim, len(batch) + 1)
    )
    return reshape(sizes, (math.prod(batch), groups))


def scaled_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    *,
    lhs_scale: ArrayLike | None = None,
    rhs_scale: ArrayLike | None = None,
    dimension_numbers: DotDimensionNumbers | None = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """dot_general(lhs * lhs_scale, rhs * rhs_scale): one scale per block of contracted elements.

    A scale has its operand's shape, but for contracting dimensions, which it divides.
    """
    lhs, rhs = array(lhs), array(rhs)
    if dimension_numbers is None:
        n = typeof(lhs).ndim - 2  # leading batch dimensions
        dimension_numbers = (((n + 1,), (n,)), (tuple(range(n)), tuple(range(n))))
    d = dtypes.dtype("bfloat16" if preferred_element_type is None else preferred_element_type)
    wide = d if d in (dtypes.F32, dtypes.F64) else dtypes.F32
    x, y = _rescaled(lhs, lhs_scale, wide), _rescaled(rhs, rhs_scale, wide)
    return ops.convert(dot_general(x, y, dimension_numbers, preferred_element_type=wide), d)


def _rescaled(x: Any, scale: Any, d: Any) -> Array:
    x = ops.convert(x, d)
    if scale is None:
        return x
    scale = ops.convert(array(scale), d)
    shape, blocks = typeof(x).shape, typeof(scale).shape
    if len(shape) != len(blocks) or any(b == 0 or n % b for n, b in zip(shape, blocks)):
        raise errors.ShapeError(f"scaled_dot: a scale {typeof(scale)} does not divide {typeof(x)}")
    split = tuple([k for n, b in zip(shape, blocks) for k in (b, n // b)])
    spread = broadcast_in_dim(scale, split, tuple(range(0, 2 * len(shape), 2)))
    return ops.mul(x, reshape(spread, shape))
