"""Fourier transforms, by a library's routines of up to three dimensions."""

from __future__ import annotations

import math
from dataclasses import replace

from genesis_fn.backends.cuda import libraries
from genesis_fn.backends.cuda.codegen.kernel_text import add_elements
from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, lowers_by_library
from genesis_fn.backends.cuda.lowerings.elementwise import run_time_scalar
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.kernels.language.dtypes import NAMES
from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.linalg.matrices import Transpose, plan_transpose
from genesis_fn.kernels.plan import BufferArg
from genesis_fn.kernels.plan_builder import PlanBuilder
from genesis_fn.kernels.real_ends import RealEnds, plan_real_ends
from genesis_fn.kernels.routines import Fft
from genesis_fn.primitives.fft import FftType, fft_p

_MOST = 3  # dimensions of one routine
_MOST_CALLS = 16  # of a routine on interleaved transforms; more are moved together first


@lowers_by_library(fft_p)
def _fft(call: Call) -> Lowered:
    x, out = call.operands[0], call.out
    builder = PlanBuilder(1, 1)
    kind, lengths = call.params["fft_type"], call.params["fft_lengths"]
    real_kind = dtypes.real_of(x.dtype)
    real = NAMES[real_kind]
    source, result = BufferArg(0, real), BufferArg(1, real)
    transforms = _Transforms(builder, call, real_kind.name)
    backward = kind in (FftType.IFFT, FftType.IRFFT) and call.params.get("scaled", True)
    factor = 1 / math.prod(lengths) if backward else 1.0
    if kind is FftType.RFFT:
        last, before = lengths[-_MOST:], lengths[:-_MOST]
        transforms.add(Fft(transforms.kind, "r2c", last, x.size // math.prod(last)), source, result)
        transforms.add_complex(out, before, (result, result), len(last), inverse=False)
    elif kind is FftType.IRFFT:
        last, before = lengths[-_MOST:], lengths[:-_MOST]
        held = builder.workspace(2 * x.size, real)  # the library overwrites its source
        spectrum = source
        if before:
            spectrum = builder.workspace(2 * x.size, real)
            transforms.add_complex(x, before, (source, spectrum), len(last), inverse=True)
        _add_scaled(builder, spectrum, held, 2 * x.size, factor, real_kind)
        # NumPy's transform ignores what would make the signal complex, the library's does not.
        count = out.size // math.prod(last)
        ends = plan_real_ends(RealEnds(count, last, real, factor), call.target)
        builder.include(ends, [spectrum, held])
        transforms.add(Fft(transforms.kind, "c2r", last, count), held, result)
    else:
        inverse = kind is FftType.IFFT
        last, before = lengths[-_MOST:], lengths[:-_MOST]
        batch = x.size // math.prod(last)
        routine = Fft(transforms.kind, "c2c", last, batch, inverse)
        scaled = replace(routine, factor=factor)
        if factor != 1.0 and libraries.scales(scaled, call.target):
            routine, factor = scaled, 1.0
        transforms.add(routine, source, result)
        transforms.add_complex(out, before, (result, result), len(last), inverse)
        if factor != 1.0:
            _add_scaled(builder, result, result, 2 * out.size, factor, real_kind)
    return builder.build()


class _Transforms:
    """Appends transforms of one kind of numbers to a plan."""

    def __init__(self, builder: PlanBuilder, call: Call, kind: str) -> None:
        self.builder, self.target = builder, call.target
        self.kind = kind

    def add(self, routine: Fft, source: BufferArg, result: BufferArg) -> None:
        """Append one routine."""
        self.builder.call(routine, [source, result], libraries.scratch(routine, self.target))

    def add_complex(
        self,
        x: Aval,
        lengths: tuple[int, ...],
        buffers: tuple[BufferArg, BufferArg],
        behind: int,
        inverse: bool,
    ) -> None:
        """Append the complex transform, from one of `buffers` to the other, of the shape of `x`,
        along as many dimensions as there are `lengths`, ahead of the last `behind`."""
        axes = range(x.ndim - behind - len(lengths), x.ndim - behind)
        for first in range(0, len(lengths), _MOST):
            self._along(x, tuple(axes[first : first + _MOST]), buffers, inverse)
            buffers = buffers[1], buffers[1]

    def _along(
        self, x: Aval, axes: tuple[int, ...], buffers: tuple[BufferArg, BufferArg], inverse: bool
    ) -> None:
        lengths = tuple([x.shape[a] for a in axes])
        outer, inner = math.prod(x.shape[: axes[0]]), math.prod(x.shape[axes[-1] + 1 :])
        if outer <= _MOST_CALLS:
            routine = Fft(self.kind, "c2c", lengths, inner, inverse, interleaved=inner > 1)
            size = math.prod(lengths) * inner * 2 * ITEMSIZE[buffers[0].dtype]
            for k in range(outer):
                parts = [BufferArg(p.index, p.dtype, p.offset + k * size) for p in buffers]
                self.add(routine, *parts)
            return
        # Moved behind the others, and back.
        routine = Fft(self.kind, "c2c", lengths, outer * inner, inverse)
        moved = self.builder.workspace(2 * x.size, buffers[0].dtype)
        kind, length = dtypes.complex_of(dtypes.NAMES[self.kind]).name, math.prod(lengths)
        behind, back = [
            plan_transpose(Transpose(outer, *shape, kind), self.target)
            for shape in ((length, inner), (inner, length))
        ]
        self.builder.include(behind, [buffers[0], moved])
        self.add(routine, moved, moved)
        self.builder.include(back, [moved, buffers[1]])


def _add_scaled(
    builder: PlanBuilder, x: BufferArg, y: BufferArg, count: int, factor: float, kind: dtypes.DType
) -> None:
    """Append y[:count] = x[:count] * factor."""
    scalar, text = run_time_scalar(factor, kind)
    line = f"tl.store(y + i, tl.load(x + i, inside) * {text.format('s')}, inside)"
    add_elements(builder, "scale", {"x": x, "y": y}, count, [line], scalars={"s": scalar})
