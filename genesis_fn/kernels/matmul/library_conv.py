"""Which convolutions a library computes instead of our kernel, and as which of its routines.

A program has one kind of convolution, of which both gradients are cases. A library has three
routines with kernels of their own, so a gradient is found again by its form: that of the image has
gaps between the elements of what it reads, that of the filter slides one image over another.
"""

from __future__ import annotations

import math
from dataclasses import replace

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.matmul.conv import Convolution
from genesis_fn.kernels.plan_builder import INT32_MAX, dense
from genesis_fn.kernels.routines import Conv, Laid

KINDS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
PRECISIONS = ("default", "tf32", "ieee")  # a library has no product of three in TF32
LEAST_OPERATIONS = 1e8  # smaller ones take a few microseconds in either way


def pays(spec: Convolution, routine: Conv, target: Target) -> bool:
    """Whether a library's routine is faster than our kernel, by what was measured on an H200."""
    image, output = routine.image.sizes[1], routine.output.sizes[1]
    operations = 2 * spec.rows * spec.depth * spec.groups * spec.out_channels
    if operations < LEAST_OPERATIONS or target.generation < 8:
        return False
    # Tensor cores read the channels of a pixel in whole 16 bytes.
    aligned = 16 // ITEMSIZE[spec.dtype]
    return image % aligned == 0 and output % aligned == 0 and routine.groups == 1


def routine_of(spec: Convolution, repeatable: bool = True) -> Conv | None:
    """The library's routine for a convolution; None where it has none.

    It reads and writes what the convolution does, in the same order; only the gradient of an image
    takes the filter of `unflipped` instead of the right operand.
    """
    kind, result = KINDS.get(spec.dtype), KINDS.get(spec.out_dtype or spec.dtype)
    if kind is None or result not in (kind, "float32") or spec.precision not in PRECISIONS:
        return None
    if max(spec.lhs_dilation) > 1:
        found = _image_gradient(spec, kind, result)
    elif math.prod(spec.rhs_spatial) > math.prod(spec.out_spatial):
        found = _filter_gradient(spec, kind, result)
    else:
        found = _convolution(spec, kind, result)
    if found is None or max(map(_extent, (found.image, found.filter, found.output))) > INT32_MAX:
        return None
    after = _after(found)
    if after is None or min(found.before) < 0:
        return None
    exact = spec.dtype == "fp32" and spec.precision == "ieee"
    return _of_fewest_axes(replace(found, after=after, exact=exact, repeatable=repeatable))


def unflipped(spec: Convolution) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """(shape, strides, first element) by which the right operand of a convolution with gaps is the
    filter that its library's routine takes, [channels out, taps, channels in]."""
    groups, outer, inner, *taps = spec.rhs_strides
    shape = (spec.groups, spec.in_channels, *spec.rhs_spatial, spec.out_channels)
    strides = (groups, inner, *[-s for s in taps], outer)
    first = sum([(n - 1) * s for n, s in zip(spec.rhs_spatial, taps)])
    return shape, strides, first


def _convolution(spec: Convolution, kind: str, result: str) -> Conv | None:
    """The convolution itself."""
    image = _grouped(spec.lhs_strides[1:3], spec.in_channels, spec.groups)
    output = _grouped(spec.out_strides[1:3], spec.out_channels, spec.groups)
    outer = _grouped(spec.rhs_strides[:2], spec.out_channels, spec.groups)
    inner = (spec.in_channels, spec.rhs_strides[2])
    if not (image and output and outer):
        return None
    return Conv(
        kind,
        result,
        "output",
        _image(spec.batch, image, spec.lhs_spatial, spec.lhs_strides),
        _laid((outer, inner), spec.rhs_spatial, spec.rhs_strides),
        _image(spec.batch, output, spec.out_spatial, spec.out_strides),
        spec.strides,
        spec.rhs_dilation,
        spec.padding,
        (),
    )


def _image_gradient(spec: Convolution, kind: str, result: str) -> Conv | None:
    """A convolution with gaps in its left operand, as the gradient of a convolution with steps."""
    output = _grouped(spec.lhs_strides[1:3], spec.in_channels, spec.groups)
    image = _grouped(spec.out_strides[1:3], spec.out_channels, spec.groups)
    if max(spec.strides) > 1 or not (image and output):
        return None
    taps, inner = spec.rhs_spatial, spec.out_channels
    sizes = (spec.groups * spec.in_channels, *taps, inner)
    strides = dense(sizes)
    before = zip(taps, spec.rhs_dilation, spec.padding)
    return Conv(
        kind,
        result,
        "image",
        _image(spec.batch, image, spec.out_spatial, spec.out_strides),
        Laid((sizes[0], inner, *taps), (strides[0], 1, *strides[1:-1])),
        _image(spec.batch, output, spec.lhs_spatial, spec.lhs_strides),
        spec.lhs_dilation,
        spec.rhs_dilation,
        tuple([(k - 1) * d - p for k, d, p in before]),
        (),
    )


def _filter_gradient(spec: Convolution, kind: str, result: str) -> Conv | None:
    """A convolution whose windows are larger than its result, as the gradient of a filter: what it
    sums over are the images of a batch."""
    images, summed = [(spec.in_channels, x[2]) for x in (spec.lhs_strides, spec.rhs_strides)]
    inner = (spec.batch, spec.out_strides[0])
    image = _grouped((spec.lhs_strides[1], spec.lhs_strides[0]), spec.batch, spec.groups)
    output = _grouped(spec.rhs_strides[:2], spec.out_channels, spec.groups)
    outer = _grouped(spec.out_strides[1:3], spec.out_channels, spec.groups)
    if not (image and output and outer):
        return None
    return Conv(
        kind,
        result,
        "filter",
        _laid((images, image), spec.lhs_spatial, spec.lhs_strides),
        _laid((outer, inner), spec.out_spatial, spec.out_strides),
        _laid((summed, output), spec.rhs_spatial, spec.rhs_strides),
        spec.rhs_dilation,
        spec.strides,
        spec.padding,
        (),
    )


Axis = tuple[int, int]
"""A size and a stride."""


def _grouped(strides: tuple[int, ...], channels: int, groups: int) -> Axis | None:
    """The axis of all channels, whose groups lie `strides[0]` apart; None where one stride does not
    reach all of them."""
    group, step = strides
    return (groups * channels, step) if groups == 1 or group == channels * step else None


def _image(batch: int, channels: Axis, spatial: tuple[int, ...], strides: tuple[int, ...]) -> Laid:
    return _laid(((batch, strides[0]), channels), spatial, strides)


def _laid(first: tuple[Axis, Axis], spatial: tuple[int, ...], strides: tuple[int, ...]) -> Laid:
    """An array of these two axes and the spatial ones, whose strides are the last."""
    (n, at_n), (c, at_c) = first
    return Laid((n, c, *spatial), (at_n, at_c, *strides[3:]))


def _extent(x: Laid) -> int:
    return sum([n * s for n, s in zip(x.sizes, x.strides)])


def _after(conv: Conv) -> tuple[int, ...] | None:
    """The padding behind the last element with which an output of this size comes about; None where
    that cuts off elements that a window could reach."""
    found = []
    for n, m, k, step, gap, before in zip(
        conv.image.sizes[2:],
        conv.output.sizes[2:],
        conv.filter.sizes[2:],
        conv.steps,
        conv.dilation,
        conv.before,
    ):
        missing = (m - 1) * step + (k - 1) * gap + 1 - before - n
        if missing <= -step:
            return None
        found.append(max(0, missing))
    return tuple(found)


def _of_fewest_axes(conv: Conv) -> Conv:
    """Of two spatial axes, as libraries have them at least, where the first of three is no more
    than a name. Strides along axes of length 1 are those of a dense array."""
    unit = all([x.sizes[2] == 1 for x in (conv.image, conv.filter, conv.output)])
    first = 3 if unit and conv.before[0] == conv.after[0] == 0 else 2

    def spatial(x: Laid) -> Laid:
        sizes, strides = list(x.sizes), list(x.strides)
        for d in reversed(range(2, len(sizes) - 1)):
            if sizes[d] == 1:
                strides[d] = sizes[d + 1] * strides[d + 1]
        return Laid((*sizes[:2], *sizes[first:]), (*strides[:2], *strides[first:]))

    image, filter_, output = map(spatial, (conv.image, conv.filter, conv.output))
    steps, dilation, before, after = [
        x[first - 2 :] for x in (conv.steps, conv.dilation, conv.before, conv.after)
    ]
    return replace(
        conv,
        image=image,
        filter=filter_,
        output=output,
        steps=steps,
        dilation=dilation,
        before=before,
        after=after,
    )
