"""Half spectra, made ready for a library's transform to real signals, which overwrites them."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.plan import BufferArg, Plan, Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv, next_power_of_two

_BLOCK = 2048  # numbers of a program
MOST_DIMENSIONS = 3


@triton.jit
def half_spectrum_kernel(
    x,
    out,
    rows,
    numbers,
    first,
    second,
    factor,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """out = factor * x of half spectra [rows, numbers / 2], whose last dimension is the halved one,
    and whose rows are [.., first, second]; `factor` is a float64's bits.

    A real signal's coefficients (k1, k2, k3) and (-k1, -k2, -k3) are conjugates, both of which a
    half spectrum has where k3 is 0, or half of an EVEN length. Here both become what their real
    signal has: half of one and of the other's conjugate.
    """
    scale = factor.to(tl.int64).to(tl.float64, bitcast=True).to(x.dtype.element_ty)
    across = tl.cdiv(numbers, WIDTH)
    row = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % across) * WIDTH + tl.arange(0, WIDTH)
    k2 = row % second
    k1 = row // second % first
    opposite = row - k1 * second - k2
    opposite += (first - k1) % first * second + (second - k2) % second
    inside = (row < rows)[:, None] & (column < numbers)[None, :]
    is_end = column < 2
    if EVEN:
        is_end = is_end | (column >= numbers - 2)
    value = tl.load(x + row.to(tl.int64)[:, None] * numbers + column[None, :], inside)
    other = tl.load(
        x + opposite.to(tl.int64)[:, None] * numbers + column[None, :],
        inside & is_end[None, :],
        other=0.0,
    )
    is_imaginary = (column % 2 == 1)[None, :]
    both = 0.5 * value + 0.5 * tl.where(is_imaginary, -other, other)
    # One that is its own opposite is real, though its imaginary part be infinite.
    both = tl.where(is_imaginary & (row == opposite)[:, None], 0.0, both)
    result = tl.where(is_end[None, :], both, value) * scale
    tl.store(out + row.to(tl.int64)[:, None] * numbers + column[None, :], result, inside)


@dataclass(frozen=True, slots=True)
class HalfSpectra:
    """The spectra of `count` real signals of up to three dimensions, `lengths`, of numbers of type
    `name`."""

    count: int
    lengths: tuple[int, ...]
    name: str
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= len(self.lengths) <= MOST_DIMENSIONS:
            raise ValueError(f"{self}: one to {MOST_DIMENSIONS} dimensions")


def plan_half_spectra(spec: HalfSpectra, target: Target) -> Plan:
    """half spectra -> half spectra of real signals, times the factor."""
    builder = PlanBuilder(1, 1)
    first, second = (1, 1, *spec.lengths[:-1])[-2:]
    rows, numbers = spec.count * first * second, 2 * (spec.lengths[-1] // 2 + 1)
    width = min(next_power_of_two(numbers), _BLOCK)
    (bits,) = struct.unpack("<q", struct.pack("<d", spec.factor))
    builder.launch(
        half_spectrum_kernel,
        (cdiv(rows, _BLOCK // width) * cdiv(numbers, width),),
        {
            "x": BufferArg(0, spec.name),
            "out": BufferArg(1, spec.name),
            "rows": Scalar(rows),
            "numbers": Scalar(numbers),
            "first": Scalar(first),
            "second": Scalar(second),
            "factor": Scalar(bits, "i64"),
        },
        {"EVEN": spec.lengths[-1] % 2 == 0, "ROWS": _BLOCK // width, "WIDTH": width},
    )
    return builder.build()
