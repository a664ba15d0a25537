"""The ends of half spectra that real signals have, for a library's transform that relies on it."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.plan import BufferArg, Plan, Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv

_ROWS = 256  # of a program
MOST_DIMENSIONS = 3


@triton.jit
def real_ends_kernel(
    x, out, rows, numbers, first, second, factor, ENDS: tl.constexpr, ROWS: tl.constexpr
):
    """The first and, of two ENDS, the last element of rows of half spectra, times a factor, which
    is a float64's bits. Rows [.., first, second] have so many numbers, two of them an element.

    A real signal's coefficients (k1, k2, k3) and (-k1, -k2, -k3) are conjugates. A half spectrum
    has both where k3 is 0, or half of an even length: they become what their real signal has, half
    of one and of the other's conjugate.
    """
    scale = factor.to(tl.int64).to(tl.float64, bitcast=True).to(x.dtype.element_ty)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k2 = row % second
    k1 = row // second % first
    opposite = row - k1 * second - k2
    opposite += (first - k1) % first * second + (second - k2) % second
    at = tl.arange(0, 2 * ENDS)
    column = at % 2 + at // 2 * (numbers - 2)
    inside = (row < rows)[:, None]
    here = row.to(tl.int64)[:, None] * numbers + column[None, :]
    there = opposite.to(tl.int64)[:, None] * numbers + column[None, :]
    value, other = tl.load(x + here, inside), tl.load(x + there, inside)
    is_imaginary = (at % 2 == 1)[None, :]
    both = 0.5 * value + 0.5 * tl.where(is_imaginary, -other, other)
    # One that is its own opposite is real, though its imaginary part be infinite.
    both = tl.where(is_imaginary & (row == opposite)[:, None], 0.0, both)
    tl.store(out + here, both * scale, inside)


@dataclass(frozen=True, slots=True)
class RealEnds:
    """The ends of the spectra of `count` real signals of up to three dimensions, `lengths`, of
    numbers of type `name`, times a factor."""

    count: int
    lengths: tuple[int, ...]
    name: str
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= len(self.lengths) <= MOST_DIMENSIONS:
            raise ValueError(f"{self}: one to {MOST_DIMENSIONS} dimensions")


def plan_real_ends(spec: RealEnds, target: Target) -> Plan:
    """half spectra -> the same ones, of which the ends are written."""
    builder = PlanBuilder(1, 1)
    first, second = (1, 1, *spec.lengths[:-1])[-2:]
    rows, length = spec.count * first * second, spec.lengths[-1]
    (bits,) = struct.unpack("<q", struct.pack("<d", spec.factor))
    builder.launch(
        real_ends_kernel,
        (cdiv(rows, _ROWS),),
        {
            "x": BufferArg(0, spec.name),
            "out": BufferArg(1, spec.name),
            "rows": Scalar(rows),
            "numbers": Scalar(2 * (length // 2 + 1)),
            "first": Scalar(first),
            "second": Scalar(second),
            "factor": Scalar(bits, "i64"),
        },
        {"ENDS": 2 - length % 2, "ROWS": _ROWS},
    )
    return builder.build()
