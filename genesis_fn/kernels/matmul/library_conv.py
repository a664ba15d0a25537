"""Which convolutions a library computes instead of our kernel, and as which of its routines.

A program has one kind of convolution, of which both gradients are cases. A library has three
routines with kernels of their own, so a gradient is found again by its form (`form_of`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from genesis_fn.compiler.convolution_form import Form, form_of
from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.matmul.conv import LARGE, Convolution
from genesis_fn.kernels.plan_builder import INT32_MAX, cdiv, dense
from genesis_fn.kernels.routines import ConvolutionRoutine, Laid

KINDS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
TF32 = ("default", "tf32")  # precisions of float32 that a library has


@dataclass(frozen=True, slots=True)
class LibraryConvolution:
    """A convolution as a library's routine.

    The routine reads and writes what the convolution does, in the same order, but for the filter,
    which is [outputs, taps, inputs] to it.
    """

    spec: Convolution
    routine: ConvolutionRoutine

    @classmethod
    def of(
        cls, spec: Convolution, repeatable: bool = True, turned: bool = False
    ) -> LibraryConvolution | None:
        """A convolution as its routine; None where the library has none. One whose taps are
        `turned` in memory is the gradient of an image."""
        form = form_of(spec.lhs_dilation, spec.rhs_spatial, spec.out_spatial)
        routine = _routine(spec, "image" if turned else form, repeatable)
        return None if routine is None else cls(spec, routine)

    def pays(self, target: Target) -> bool:
        """Whether the routine is faster than our kernel, whose filter is laid for it.

        By what was measured on an H200 (benchmarks/kernels/conv_bench.py), in microseconds of the
        routine and of the kernel, of which the ratios matter:

            filter's gradient    45 and 71 in 16 bits, 447 and 1748 in TF32, and so for all shapes;
                                 of 3 channels 296 and 509 in 16 bits, but 74 and 21 in TF32
            image's gradient     37 and 148 with steps of 2 x 2, of which the kernel multiplies the
                                 gaps; with steps of 2 along one axis 38 and 29, but 25 and 27 of 80
                                 channels, with which the kernel fills 128, and 18 and 28 of half as
                                 many tiles, which are fewer than processors (the 38, 25 and 18 as
                                 torch calls it); without steps as the output
            output               107 and 169 in 16 bits, 200 and 249 in TF32;
                                 of 64 channels 39 and 46, with steps of 2 slower (29 and 16, 80
                                 channels), of 3 channels 446 and 125, with gaps 81 and 45
            in 2, 32 and 256 groups of 256 channels 61 and 71, 53 and 69, 28 and 412
        """
        spec, routine = self.spec, self.routine
        batch, channels = routine.image.sizes[:2]
        steps = max(routine.steps) > 1
        # Groups of one image each are the gradients of examples, as `vmap` makes them: small.
        examples = routine.form == "filter" and batch == 1 < routine.groups
        if spec.operations < LARGE or not target.library_convolutions or examples:
            return False
        wide = [_aligned(c, spec.dtype) for c in (channels, routine.output.sizes[1])]
        if routine.form == "filter":
            return wide[0] or spec.dtype != "fp32"
        if not all(wide) or max(routine.dilation) > 1:
            return False
        if routine.form == "image" and steps:
            columns = cdiv(spec.out_channels, 128)
            # Of what the kernel multiplies, how much there is for each product of the result.
            more = math.prod(routine.steps) * columns * 128 / spec.out_channels
            return more > 2 or cdiv(spec.rows, 128) * columns * spec.groups < target.processors
        read = spec.in_channels * spec.groups
        return spec.dtype != "fp32" or read >= (128 if steps else 64)

    def filter_view(self, turned: bool = False) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """(shape, strides, first element) by which the routine's filter, [outputs, taps, inputs],
        is the convolution's right operand, or, of a gradient, its result. The taps of the gradient
        of an image are in reversed order, unless they are `turned` in memory."""
        spec, form = self.spec, self.routine.form
        if form == "output":
            groups, outputs, inputs, *taps = spec.rhs_strides
            sizes = (spec.groups, spec.out_channels, *spec.rhs_spatial, spec.in_channels)
        elif form == "image":
            groups, inputs, outputs, *taps = spec.rhs_strides
            sizes = (spec.groups, spec.in_channels, *spec.rhs_spatial, spec.out_channels)
            if turned:
                return sizes, (groups, outputs, *taps, inputs), 0
            first = sum([(n - 1) * s for n, s in zip(spec.rhs_spatial, taps)])
            return sizes, (groups, outputs, *[-s for s in taps], inputs), first
        else:
            inputs, groups, outputs, *taps = spec.out_strides
            sizes = (spec.groups, spec.out_channels, *spec.out_spatial, spec.batch)
        return sizes, (groups, outputs, *taps, inputs), 0


def _aligned(channels: int, dtype: str) -> bool:
    """Whether tensor cores can read the channels of a pixel in whole 16 bytes."""
    return channels * ITEMSIZE[dtype] % 16 == 0


def _routine(spec: Convolution, form: Form, repeatable: bool) -> ConvolutionRoutine | None:
    kind, result = KINDS.get(spec.dtype), KINDS.get(spec.out_dtype or spec.dtype)
    if kind is None or result not in (kind, "float32"):
        return None
    if spec.dtype == "fp32" and spec.precision not in TF32:
        return None
    made = {"output": _convolution, "image": _image_gradient, "filter": _filter_gradient}
    found = made[form](spec, kind, result)
    if found is None or max(map(_extent, (found.image, found.filter, found.output))) > INT32_MAX:
        return None
    after = _after(found)
    if after is None or min(found.before) < 0:
        return None
    found = _of_fewest_axes(replace(found, after=after, repeatable=repeatable))
    return found if all(map(_is_channels_last, (found.image, found.output))) else None


def _convolution(spec: Convolution, kind: str, result: str) -> ConvolutionRoutine | None:
    """The convolution itself."""
    image = _grouped(spec.lhs_strides[1:3], spec.in_channels, spec.groups)
    output = _grouped(spec.out_strides[1:3], spec.out_channels, spec.groups)
    if not (image and output):
        return None
    return ConvolutionRoutine(
        kind,
        result,
        "output",
        _image(spec.batch, image, spec.lhs_spatial, spec.lhs_strides),
        _filter(output[0], spec.rhs_spatial, spec.in_channels),
        _image(spec.batch, output, spec.out_spatial, spec.out_strides),
        spec.strides,
        spec.rhs_dilation,
        spec.padding,
        (),
    )


def _image_gradient(spec: Convolution, kind: str, result: str) -> ConvolutionRoutine | None:
    """A convolution with gaps in its left operand, as the gradient of a convolution with steps."""
    output = _grouped(spec.lhs_strides[1:3], spec.in_channels, spec.groups)
    image = _grouped(spec.out_strides[1:3], spec.out_channels, spec.groups)
    if max(spec.strides) > 1 or not (image and output):
        return None
    taps = zip(spec.rhs_spatial, spec.rhs_dilation, spec.padding)
    return ConvolutionRoutine(
        kind,
        result,
        "image",
        _image(spec.batch, image, spec.out_spatial, spec.out_strides),
        _filter(output[0], spec.rhs_spatial, spec.out_channels),
        _image(spec.batch, output, spec.lhs_spatial, spec.lhs_strides),
        spec.lhs_dilation,
        spec.rhs_dilation,
        # A full correlation pads by the window's length - 1, less what the forward pass padded.
        tuple([(k - 1) * d - p for k, d, p in taps]),
        (),
    )


def _filter_gradient(spec: Convolution, kind: str, result: str) -> ConvolutionRoutine | None:
    """A convolution whose windows are larger than its result, as the gradient of a filter: what it
    sums over are the images of a batch."""
    image = _grouped((spec.lhs_strides[1], spec.lhs_strides[0]), spec.batch, spec.groups)
    output = _grouped(spec.rhs_strides[:2], spec.out_channels, spec.groups)
    if not (image and output):
        return None
    read = (spec.lhs_strides[2], *spec.lhs_strides[1:]), (spec.rhs_strides[2], *spec.rhs_strides)
    return ConvolutionRoutine(
        kind,
        result,
        "filter",
        _image(spec.in_channels, image, spec.lhs_spatial, read[0]),
        _filter(output[0], spec.out_spatial, spec.batch),
        _image(spec.in_channels, output, spec.rhs_spatial, read[1]),
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
    """Images of a batch, which lie `strides[0]` apart; the last strides are those of the spatial
    axes."""
    size, step = channels
    return Laid((batch, size, *spatial), (strides[0], step, *strides[-3:]))


def _filter(outputs: int, taps: tuple[int, ...], inputs: int) -> Laid:
    """A dense filter, inputs last."""
    whole, *strides, one = dense((outputs, *taps, inputs))
    return Laid((outputs, inputs, *taps), (whole, one, *strides))


def _is_channels_last(x: Laid) -> bool:
    """Whether images are dense, channels last: cuDNN takes other strides, and some of its engines
    have given wrong results for those of a filter."""
    batch, channels, *spatial = zip(x.sizes, x.strides)
    size = 1
    for n, step in (channels, *reversed(spatial), batch):
        if n > 1 and step != size:
            return False
        size *= n
    return True


def _extent(x: Laid) -> int:
    return sum([n * s for n, s in zip(x.sizes, x.strides)])


def _after(conv: ConvolutionRoutine) -> tuple[int, ...] | None:
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


def _of_fewest_axes(conv: ConvolutionRoutine) -> ConvolutionRoutine:
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
