"""Convolutions of 0 to 3 spatial dimensions, with strides, dilations, groups and any layout."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.primitive import Primitive, bind, is_linear, typeof
from genesis_fn.core.types.annotations import Array, DTypeLike
from genesis_fn.primitives import shape as shapes
from genesis_fn.primitives.dot_general import PrecisionLike, canonical_precision
from genesis_fn.primitives.elementwise import add, convert, eq
from genesis_fn.primitives.factories import move_batch, zeros


class ConvDimensionNumbers(NamedTuple):
    """The positions of the dimensions of each operand and of the result.

    lhs_spec: (batch, feature, *spatial); rhs_spec: (out feature, in feature, *spatial);
    out_spec: (batch, feature, *spatial).
    """

    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]


# Layouts as strings, ("NHWC", "HWIO", "NHWC"), or as positions; None is NCHW and OIHW.
ConvDimensionNumbersLike: TypeAlias = ConvDimensionNumbers | Sequence[str] | None
ConvGeneralDilatedDimensionNumbers = ConvDimensionNumbersLike  # by JAX's name


def conv_dimension_numbers(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    dimension_numbers: ConvDimensionNumbersLike = None,
) -> ConvDimensionNumbers:
    """Parse layouts such as ("NHWC", "HWIO", "NHWC"); None is NCHW, OIHW, NCHW.

    Raises ValueError for strings that do not fit the ranks or each other.
    """
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    if len(lhs_shape) != len(rhs_shape):
        raise errors.ShapeError(
            f"convolution operands must have one rank, got {(*lhs_shape,)} and {(*rhs_shape,)}"
        )
    n = len(lhs_shape)
    if dimension_numbers is None:
        return ConvDimensionNumbers(*[tuple(range(n))] * 3)
    if not isinstance(dimension_numbers, (list, tuple)) or len(dimension_numbers) != 3:
        raise TypeError(
            "dimension_numbers must be three strings, a ConvDimensionNumbers or None, got "
            f"{dimension_numbers!r}"
        )
    lhs, rhs, out = dimension_numbers
    for spec, first in ((lhs, "NC"), (rhs, "OI"), (out, "NC")):
        spatial = set(spec) - set(first)
        if len(spec) != n or len(set(spec)) != n or len(spatial) != n - 2:
            raise ValueError(
                f"convolution layout {spec!r} must name {n} dimensions once each, with {first!r}"
            )
    order = [c for c in rhs if c not in "OI"]
    if any(sorted(c for c in s if c not in "NC") != sorted(order) for s in (lhs, out)):
        raise ValueError(
            f"convolution layouts {dimension_numbers} name different spatial dimensions"
        )
    positions = lambda spec, first: tuple(map(spec.index, (*first, *order)))
    return ConvDimensionNumbers(positions(lhs, "NC"), positions(rhs, "OI"), positions(out, "NC"))


def padtype_to_pads(
    in_shape: Sequence[int],
    window_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str,
) -> list[tuple[int, int]]:
    """Return the (low, high) padding of each dimension for "SAME", "SAME_LOWER" or "VALID"."""
    name = padding.upper()
    if name == "VALID":
        return [(0, 0)] * len(in_shape)
    if name not in ("SAME", "SAME_LOWER"):
        raise ValueError(f"padding {padding!r} is not 'SAME', 'SAME_LOWER', 'VALID' or pairs")
    pads = []
    for n, w, s in zip(*map(shapes.ints, (in_shape, window_shape, window_strides))):
        total = max(0, (-(-n // s) - 1) * s + w - n)
        small, large = total // 2, total - total // 2
        pads.append((small, large) if name == "SAME" else (large, small))
    return pads


def _pairs(padding: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    try:
        return tuple([(int(low), int(high)) for low, high in padding])
    except TypeError:
        raise errors.ArgumentError(
            f"padding is a (low, high) pair for each spatial dimension, got {padding!r}"
        ) from None


def dilated(n: int, d: int) -> int:
    """The length of n elements with d - 1 gaps between neighbours."""
    return 0 if n == 0 else (n - 1) * d + 1


# ---- shape ----


def _conv_shape(
    x: Aval,
    w: Aval,
    *,
    window_strides: tuple[Any, ...],
    padding: tuple[Any, ...],
    lhs_dilation: tuple[Any, ...],
    rhs_dilation: tuple[Any, ...],
    dimension_numbers: ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
    precision: str,
    preferred_element_type: Any,
) -> Aval:
    what = f"convolution of {x} with {w}"
    if x.ndim != w.ndim or not 2 <= x.ndim <= 5:
        raise errors.ShapeError(f"{what}: operands must have one rank, from 2 to 5")
    lhs, rhs, out = dimension_numbers
    n = x.ndim - 2
    if any(sorted(s) != list(range(n + 2)) for s in dimension_numbers):
        raise errors.ShapeError(f"{what}: {dimension_numbers} does not fit rank {n + 2}")
    for words, values in (
        ("window_strides", window_strides),
        ("padding", padding),
        ("lhs_dilation", lhs_dilation),
        ("rhs_dilation", rhs_dilation),
    ):
        if len(values) != n:
            raise errors.ShapeError(f"{what}: {words} {values} must have {n} entries")
        if words != "padding" and any(v < 1 for v in values):
            raise errors.ShapeError(f"{what}: {words} {values} must be positive")
    g, b = feature_group_count, batch_group_count
    batch, features = x.shape[lhs[0]], x.shape[lhs[1]]
    out_features, in_features = w.shape[rhs[0]], w.shape[rhs[1]]
    if g < 1 or b < 1 or (g > 1 and b > 1):
        raise errors.ShapeError(
            f"{what}: feature_group_count {g} and batch_group_count {b} must be positive, one 1"
        )
    if features != in_features * g:
        raise errors.ShapeError(
            f"{what}: the left operand has {features} features (dimension {lhs[1]}), the kernel "
            f"{in_features} input features (dimension {rhs[1]}) in {g} groups"
        )
    if out_features % (g * b) or batch % b:
        raise errors.ShapeError(
            f"{what}: {out_features} output features and a batch of {batch} do not divide into "
            f"{g * b} groups"
        )
    shape = [0] * (n + 2)
    shape[out[0]], shape[out[1]] = batch // b, out_features
    for i in range(n):
        low, high = padding[i]
        space = dilated(x.shape[lhs[i + 2]], lhs_dilation[i]) + low + high
        window = dilated(w.shape[rhs[i + 2]], rhs_dilation[i])
        shape[out[i + 2]] = max(0, (space - window) // window_strides[i] + 1)
    if x.dtype != w.dtype and not (dtypes.is_float(x.dtype) and dtypes.is_float(w.dtype)):
        raise errors.DTypeError(f"{what}: dtypes differ; convert one with .astype(...)")
    dtype = x.dtype if x.dtype == w.dtype else dtypes.promote_types(x.dtype, w.dtype)
    preferred = dtype if preferred_element_type is None else preferred_element_type
    if dtypes.kind_rank(preferred) < dtypes.kind_rank(dtype):
        raise errors.DTypeError(
            f"{what}: preferred_element_type {preferred.name} cannot hold products of {dtype.name}"
        )
    return aval(tuple(shape), preferred)


# ---- derivatives ----


def _conv_linearize(nonzero: Any, x: Any, w: Any, **params: Any) -> Any:
    def tangent(tx: Any, tw: Any) -> Any:
        first = None if tx is None else bind(conv_p, tx, w, **params)
        second = None if tw is None else bind(conv_p, x, tw, **params)
        return second if first is None else first if second is None else add(first, second)

    return bind(conv_p, x, w, **params), tangent


def _swap(spec: tuple[int, ...]) -> tuple[int, ...]:
    return (spec[1], spec[0], *spec[2:])


def _merge_axis(x: Any, source: int, target: int) -> Any:
    """Merge axis `source` into `target` (counted without it), as its slower part."""
    order = [i for i in range(typeof(x).ndim) if i != source]
    order.insert(target, source)
    x = shapes.transpose(x, order)
    s = typeof(x).shape
    return shapes.reshape(x, (*s[:target], s[target] * s[target + 1], *s[target + 2 :]))


def _split_axis(x: Any, axis: int, size: int) -> Any:
    """Split axis `axis` into (size, rest)."""
    s = typeof(x).shape
    return shapes.reshape(x, (*s[:axis], size, s[axis] // size, *s[axis + 1 :]))


def _conv_transpose_rule(ct: Any, x: Any, w: Any, **params: Any) -> list[Any]:
    if is_linear(x):
        return [_cotangent_of_input(ct, x.aval, w, **params), None]
    return [None, _cotangent_of_kernel(ct, x, w.aval, **params)]


def _spatial(shape: Sequence[int], spec: Sequence[int]) -> list[int]:
    return [shape[i] for i in spec[2:]]


def _cotangent_of_input(
    ct: Any,
    x: Aval,
    w: Any,
    *,
    window_strides: tuple[Any, ...],
    padding: tuple[Any, ...],
    lhs_dilation: tuple[Any, ...],
    rhs_dilation: tuple[Any, ...],
    dimension_numbers: ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
    precision: str,
    preferred_element_type: Any,
) -> Any:
    """Convolve ct with the flipped kernel, stride and input dilation exchanged."""
    if x.size == 0 or typeof(ct).size == 0:
        return zeros(x)
    lhs, rhs, out = dimension_numbers
    windows = _spatial(typeof(w).shape, rhs)
    groups = max(feature_group_count, batch_group_count)
    w = shapes.rev(w, rhs[2:])
    if groups > 1:  # groups of output features become groups of input features
        w = _merge_axis(_split_axis(w, rhs[0], groups), rhs[0], rhs[1])
    pads = []
    for n, k, m, (low, _), s, a, b in zip(
        _spatial(x.shape, lhs),
        windows,
        _spatial(typeof(ct).shape, out),
        padding,
        window_strides,
        lhs_dilation,
        rhs_dilation,
    ):
        # A full correlation pads by the window's length - 1, less what the forward pass padded.
        before = dilated(k, b) - low - 1
        pads.append((before, dilated(n, a) + dilated(k, b) - 1 - dilated(m, s) - before))
    back = bind(
        conv_p,
        ct,
        w,
        window_strides=lhs_dilation,
        padding=tuple(pads),
        lhs_dilation=window_strides,
        rhs_dilation=rhs_dilation,
        dimension_numbers=ConvDimensionNumbers(out, _swap(rhs), lhs),
        feature_group_count=groups,
        batch_group_count=1,
        precision=precision,
        preferred_element_type=x.dtype,
    )
    if batch_group_count > 1:
        back = _merge_axis(_split_axis(back, lhs[1], batch_group_count), lhs[1], lhs[0])
    return back


def _cotangent_of_kernel(
    ct: Any,
    x: Any,
    w: Aval,
    *,
    window_strides: tuple[Any, ...],
    padding: tuple[Any, ...],
    lhs_dilation: tuple[Any, ...],
    rhs_dilation: tuple[Any, ...],
    dimension_numbers: ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
    precision: str,
    preferred_element_type: Any,
) -> Any:
    """Convolve the input with ct, batch and features exchanged, stride and kernel dilation too."""
    if w.size == 0 or typeof(ct).size == 0 or typeof(x).size == 0:
        return zeros(w)
    lhs, rhs, out = dimension_numbers
    pads = []
    for n, k, m, (low, _), s, a, b in zip(
        _spatial(typeof(x).shape, lhs),
        _spatial(w.shape, rhs),
        _spatial(typeof(ct).shape, out),
        padding,
        window_strides,
        lhs_dilation,
        rhs_dilation,
    ):
        pads.append((low, dilated(m, s) - dilated(n, a) + dilated(k, b) - low - 1))
    return bind(
        conv_p,
        x,
        ct,
        window_strides=rhs_dilation,
        padding=tuple(pads),
        lhs_dilation=lhs_dilation,
        rhs_dilation=window_strides,
        dimension_numbers=ConvDimensionNumbers(_swap(lhs), _swap(out), _swap(rhs)),
        feature_group_count=batch_group_count,
        batch_group_count=feature_group_count,
        precision=precision,
        preferred_element_type=w.dtype,
    )


# ---- batching ----


def _conv_batch(
    size: int,
    xs: Sequence[Any],
    dims: Sequence[Any],
    *,
    dimension_numbers: ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
    **params: Any,
) -> Any:
    """Merge the batch into N, the output features, or (both operands batched) the groups."""
    (x, w), (dx, dw) = xs, dims
    lhs, rhs, out = dimension_numbers
    if size == 0:
        one = [
            v if d is None else v.update((*v.shape[:d], *v.shape[d + 1 :]))
            for v, d in zip(map(typeof, xs), dims)
        ]
        y = _conv_shape(
            *one,
            dimension_numbers=dimension_numbers,
            feature_group_count=feature_group_count,
            batch_group_count=batch_group_count,
            **params,
        )
        return zeros(y.update((0, *y.shape))), 0
    f, b = feature_group_count, batch_group_count
    run = functools.partial(bind, conv_p, dimension_numbers=dimension_numbers, **params)
    if dx is not None and dw is not None:
        w = _merge_axis(w, dw, rhs[0])
        if b > 1:
            y = run(
                _merge_axis(x, dx, lhs[0]), w, feature_group_count=f, batch_group_count=b * size
            )
        else:
            y = run(
                _merge_axis(x, dx, lhs[1]), w, feature_group_count=f * size, batch_group_count=b
            )
        return _split_axis(y, out[1], size), out[1]
    if dx is not None:
        # With batch groups: [groups, size, N], so that each group holds its slice of every example.
        x = move_batch(x, dx, 0, size)
        if b > 1:
            x = _merge_axis(_split_axis(x, lhs[0] + 1, b), 0, lhs[0] + 1)
            x = _merge_axis(x, lhs[0], lhs[0])
        else:
            x = _merge_axis(x, 0, lhs[0])
        y = run(x, w, feature_group_count=f, batch_group_count=b)
        return _split_axis(y, out[0], size), out[0]
    groups = max(f, b)
    w = move_batch(w, dw, 0, size)
    if groups == 1:
        y = run(x, _merge_axis(w, 0, rhs[0]), feature_group_count=1, batch_group_count=1)
        return _split_axis(y, out[1], size), out[1]
    w = _merge_axis(_split_axis(w, rhs[0] + 1, groups), 0, rhs[0] + 1)  # [groups, size * features]
    y = run(x, _merge_axis(w, rhs[0], rhs[0]), feature_group_count=f, batch_group_count=b)
    y = _split_axis(_split_axis(y, out[1], groups), out[1] + 1, size)  # [groups, size, features]
    y = move_batch(y, out[1] + 1, 0, size)
    return _merge_axis(y, out[1] + 1, out[1] + 1), 0


def _conv_flops(
    ins: Sequence[Aval],
    outs: Sequence[Aval],
    *,
    dimension_numbers: ConvDimensionNumbers,
    lhs_dilation: Sequence[int],
    **_: Any,
) -> int:
    """2 for each product of an element of the input, or of its padding, with one of the kernel. The
    zeros between the elements of a dilated input, as of a transposed convolution, take none."""
    lhs, rhs, out = dimension_numbers
    flops = 2 * math.prod([outs[0].shape[i] for i in out[:2]]) * ins[1].shape[rhs[1]]
    for i, taps, o, d in zip(lhs[2:], rhs[2:], out[2:], lhs_dilation):
        places = outs[0].shape[o] if d == 1 else min(outs[0].shape[o], ins[0].shape[i])
        flops *= ins[1].shape[taps] * places
    return flops


conv_p = Primitive(
    "conv_general_dilated",
    _conv_shape,
    linearize=_conv_linearize,
    transpose=_conv_transpose_rule,
    batch=_conv_batch,
    precision="low",
    flops=_conv_flops,
)


# ---- what is called ----


def _ones_or(value: Any, n: int) -> tuple[int, ...]:
    return (1,) * n if value is None else tuple([int(v) for v in value])


def conv_general_dilated(
    lhs: Array,
    rhs: Array,
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
    x, w = typeof(lhs), typeof(rhs)
    numbers = conv_dimension_numbers(x.shape, w.shape, dimension_numbers)
    n = x.ndim - 2
    strides = _ones_or(window_strides, n)
    a, b = _ones_or(lhs_dilation, n), _ones_or(rhs_dilation, n)
    if isinstance(padding, str):
        if any(d != 1 for d in a) and padding.upper() != "VALID":
            raise ValueError(
                f"padding {padding!r} with lhs_dilation {a}: give pairs, or use conv_transpose"
            )
        windows = [dilated(k, d) for k, d in zip(_spatial(w.shape, numbers.rhs_spec), b)]
        padding = padtype_to_pads(_spatial(x.shape, numbers.lhs_spec), windows, strides, padding)
    return bind(
        conv_p,
        lhs,
        rhs,
        window_strides=strides,
        padding=_pairs(padding),
        lhs_dilation=a,
        rhs_dilation=b,
        dimension_numbers=numbers,
        feature_group_count=int(feature_group_count),
        batch_group_count=int(batch_group_count),
        precision=canonical_precision(precision),
        preferred_element_type=(
            None if preferred_element_type is None else dtypes.dtype(preferred_element_type)
        ),
    )


def conv(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: str,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Apply `conv_general_dilated` in NCHW and OIHW layout without dilation."""
    return conv_general_dilated(
        lhs,
        rhs,
        window_strides,
        padding,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def conv_with_general_padding(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Apply `conv_general_dilated` in NCHW and OIHW layout."""
    return conv_general_dilated(
        lhs,
        rhs,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


_CHANNELS_LAST = {
    2: ("NC", "IO", "NC"), 3: ("NHC", "HIO", "NHC"), 4: ("NHWC", "HWIO", "NHWC"),
    5: ("NHWDC", "HWDIO", "NHWDC"),
}  # fmt: skip


def conv_transpose(
    lhs: Array,
    rhs: Array,
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
    x, w = typeof(lhs), typeof(rhs)
    if dimension_numbers is None:
        dimension_numbers = _CHANNELS_LAST.get(x.ndim)
    numbers = conv_dimension_numbers(x.shape, w.shape, dimension_numbers)
    n = x.ndim - 2
    b = _ones_or(rhs_dilation, n)
    sizes = [dilated(k, d) for k, d in zip(_spatial(w.shape, numbers.rhs_spec), b)]
    if isinstance(padding, str):
        padding = [_enlarging_pads(k, s, padding.upper()) for k, s in zip(sizes, strides)]
    elif use_consistent_padding:
        padding = [(k - low - 1, k - high - 1) for k, (low, high) in zip(sizes, padding)]
    if transpose_kernel:
        out, into, *spatial = numbers.rhs_spec
        rhs = shapes.rev(rhs, spatial)
        order = list(range(w.ndim))
        order[out], order[into] = into, out
        rhs = shapes.transpose(rhs, order)
    return conv_general_dilated(
        lhs,
        rhs,
        (1,) * n,
        padding,
        strides,
        b,
        numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def _enlarging_pads(k: int, s: int, padding: str) -> tuple[int, int]:
    if padding == "SAME":
        total = k + s - 2
        low = k - 1 if s > k - 1 else -(-total // 2)
    elif padding == "VALID":
        total, low = k + s - 2 + max(k - s, 0), k - 1
    else:
        raise ValueError(f"padding {padding!r} is not 'SAME', 'VALID' or pairs")
    return low, total - low


def conv_general_dilated_patches(
    lhs: Array,
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
    x = typeof(lhs)
    window = tuple(filter_shape)
    numbers = conv_dimension_numbers(x.shape, (1, 1, *window), dimension_numbers)
    channels, size = x.shape[numbers.lhs_spec[1]], math.prod(window)
    rows = shapes.broadcasted_iota(dtypes.I32, (channels, size, size), 1)
    cols = shapes.broadcasted_iota(dtypes.I32, (channels, size, size), 2)
    kernel = shapes.reshape(convert(eq(rows, cols), x.dtype), (channels * size, 1, *window))
    order = sorted(range(x.ndim), key=numbers.rhs_spec.__getitem__)
    kernel = shapes.transpose(kernel, order)
    return conv_general_dilated(
        lhs,
        kernel,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        numbers,
        channels,
        1,
        precision,
        preferred_element_type,
    )
