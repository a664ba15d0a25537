"""Matrices in the registers of several warps: each holds all rows of every so many-th column.

A number is a vector [SLICES, WARPS, 32]: lane l of warp w has rows l, 32 + l, ... of column
j * WARPS + w in the j-th vector, so that a row is read with shuffles, of each warp's own columns.
Between warps goes one column a step, that of the pivot. Loops over columns are run-time loops, and
carry vectors as a tuple that rotates by one each `WARPS` steps, so that the step's column is always
in the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.linalg.small.elements import add_product
from genesis_fn.kernels.linalg.small.rows import block_of, vectors_of
from genesis_fn.kernels.plan_builder import cdiv, next_power_of_two

MOST_ROWS = 64

WARPS = 4
"""Of a program. With more, a step takes longer, as it waits for all; with two, of which each has
twice as much, many matrices take 0.5 to 0.9 of the time, and kernels up to 9 s to compile."""

RING: tl.constexpr = tl.constexpr(8)
"""The vectors that rotate before those that are done are left out."""

_REGISTERS = 128  # of a thread, for what is held; a step needs almost as many


@triton.jit
def rows_and_warps(SLICES: tl.constexpr, WARPS: tl.constexpr):
    """(row, warp) of each number of a vector."""
    zero = tl.zeros((SLICES, WARPS, 32), tl.int32)
    of_slice = tl.arange(0, SLICES)[:, None, None] * 32
    row = zero + of_slice + tl.arange(0, 32)[None, None, :]
    return row, zero + tl.arange(0, WARPS)[None, :, None]


@triton.jit
def settled(x):
    """The vector itself, with rows in lanes: Triton may have it otherwise, as it stands in memory,
    but not what it gathers from lanes."""
    lane = tl.broadcast_to(tl.arange(0, 32)[None, None, :], x.shape)
    return tl.gather(x, lane, 2)


@triton.jit
def columns_of(
    block, SLICES: tl.constexpr, WARPS: tl.constexpr, EACH: tl.constexpr, PARTS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """The vectors of a block [rows, numbers of EACH * WARPS columns] or, if TRANSPOSED, of
    [EACH * WARPS columns, numbers of rows]."""
    if TRANSPOSED:
        spread = tl.reshape(block, (EACH, WARPS, SLICES, 32, PARTS))
        spread = tl.permute(spread, (2, 1, 3, 0, 4))
    else:
        spread = tl.reshape(block, (SLICES, 32, EACH, WARPS, PARTS))
        spread = tl.permute(spread, (0, 3, 1, 2, 4))
    lines = tl.reshape(spread, (SLICES * WARPS * 32, EACH * PARTS))
    columns = ()
    vectors = vectors_of(lines, EACH * PARTS)
    for j in tl.static_range(EACH * PARTS):
        columns = columns + (settled(tl.reshape(vectors[j], (SLICES, WARPS, 32))),)
    return columns


@triton.jit
def block_of_columns(
    columns, SLICES: tl.constexpr, WARPS: tl.constexpr, EACH: tl.constexpr, PARTS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """The block that `columns_of` takes, of vectors, and of zeros behind them."""
    vectors = ()
    for j in tl.static_range(len(columns)):
        vectors = vectors + (tl.reshape(settled(columns[j]), (SLICES * WARPS * 32,)),)
    lines = block_of(vectors, EACH * PARTS)
    spread = tl.reshape(lines, (SLICES, WARPS, 32, EACH, PARTS))
    if TRANSPOSED:
        spread = tl.permute(spread, (3, 1, 0, 2, 4))
        return tl.reshape(spread, (EACH * WARPS, SLICES * 32 * PARTS))
    else:
        spread = tl.permute(spread, (0, 2, 3, 1, 4))
        return tl.reshape(spread, (SLICES * 32, EACH * WARPS * PARTS))


@triton.jit
def read_square(
    x, N: tl.constexpr, SLICES: tl.constexpr, WARPS: tl.constexpr, COMPLEX: tl.constexpr,
    EACH: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """A matrix [N, N] as a block that `columns_of` takes, an identity behind it."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    ROWS: tl.constexpr = EACH * WARPS if TRANSPOSED else SLICES * 32
    WIDTH: tl.constexpr = SLICES * 32 * PARTS if TRANSPOSED else EACH * WARPS * PARTS
    row, number = tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)[None, :]
    inside = (row < N) & (number < N * PARTS)
    block = tl.load(x + row * (N * PARTS) + number, inside, other=0.0)
    return tl.where((row >= N) & (number == row * PARTS), 1.0, block)


@triton.jit
def of_rows(numbers):
    """The numbers [rows] that all warps have alike."""
    SLICES: tl.constexpr = numbers.shape[0]
    return tl.reshape(tl.max(numbers, 1), (SLICES * 32,))


@triton.jit
def bits_of(x):
    """The bits of numbers, of which sums with zeros are exact and cheap."""
    return x.to(tl.int64 if x.dtype.primitive_bitwidth == 64 else tl.int32, bitcast=True)


@triton.jit
def at_row(x, row):
    """x[row], [WARPS, 32], of each warp's own column; row numbers are [WARPS, 32], too."""
    this = tl.arange(0, x.shape[0])[:, None, None] == (row // 32)[None, :, :]
    lanes = tl.sum(tl.where(this, bits_of(x), 0), 0)
    return tl.gather(lanes, row % 32, 1).to(x.dtype, bitcast=True)


@triton.jit
def element_at(element, row, COMPLEX: tl.constexpr):
    """The parts of a row's element, for all rows."""
    real = tl.broadcast_to(at_row(element[0], row)[None, :, :], element[0].shape)
    if COMPLEX:
        return (real, tl.broadcast_to(at_row(element[1], row)[None, :, :], element[1].shape))
    else:
        return (real,)


@triton.jit
def of_warp(x, is_owner):
    """The vector of the warp that `is_owner`, in all of them."""
    # As a sum: Triton would gather along warps in another layout, and go on in that.
    total = tl.sum(tl.where(is_owner, bits_of(x), 0), 1)[:, None, :]
    return tl.where(is_owner, x, tl.broadcast_to(total, x.shape).to(x.dtype, bitcast=True))


@triton.jit
def element_of_warp(element, is_owner, COMPLEX: tl.constexpr):
    """The parts of the elements of the warp that `is_owner`, in all of them."""
    if COMPLEX:
        return (of_warp(element[0], is_owner), of_warp(element[1], is_owner))
    else:
        return (of_warp(element[0], is_owner),)


@triton.jit
def over_rows(x, LARGEST: tl.constexpr):
    """The largest (or smallest) of each warp's integers, [WARPS, 32]."""
    lanes = tl.max(x, 0) if LARGEST else tl.min(x, 0)
    found = (tl.max(lanes, 1) if LARGEST else tl.min(lanes, 1))[:, None]
    return tl.broadcast_to(found, lanes.shape)


@triton.jit
def add_products(columns, factor, row, COMPLEX: tl.constexpr):
    """columns[j] + factor * (columns[j] of `row`)."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    sums = ()
    for j in tl.static_range(len(columns) // PARTS):
        entry = columns[j * PARTS : (j + 1) * PARTS]
        sums = sums + add_product(entry, factor, element_at(entry, row, COMPLEX), COMPLEX)
    return sums


@dataclass(frozen=True, slots=True)
class Spread:
    """Matrices [n, n] and, beside them, [n, sides], over warps; numbers are of type `name`, two of
    them an element if `is_complex`."""

    n: int
    sides: int
    name: str
    is_complex: bool

    @property
    def words(self) -> int:
        """The registers, of all threads, that a matrix and its sides take."""
        columns = next_power_of_two(self.n) + (next_power_of_two(self.sides) if self.sides else 0)
        return 32 * self.slices * columns * self.parts * ITEMSIZE[self.name] // 4

    @property
    def slices(self) -> int:
        """The rows of each lane."""
        return next_power_of_two(cdiv(self.n, 32))

    @property
    def parts(self) -> int:
        """The numbers of an element."""
        return 2 if self.is_complex else 1

    @property
    def fits(self) -> bool:
        """Whether the registers of a program hold them."""
        return self.n <= MOST_ROWS and self.words <= _REGISTERS * 32 * WARPS

    def check(self, spec: object) -> None:
        """Raises what `spec` is refused for."""
        if not self.fits:
            raise ValueError(
                f"{spec}: at most {MOST_ROWS} rows, and {_REGISTERS} registers of a thread for "
                "the matrix and what stands beside it"
            )

    def constants(self) -> dict[str, int]:
        """Those of kernels over matrices."""
        return {
            "N": self.n, "SLICES": self.slices, "WARPS": WARPS, "COMPLEX": self.is_complex,
            "GROUPS": cdiv(self.n, WARPS), "EACH": _each(self.n),
        }  # fmt: skip

    def side_constants(self) -> dict[str, int]:
        """Those of kernels over right sides."""
        groups = cdiv(self.sides, WARPS)
        return {"SIDES": self.sides, "SIDE_GROUPS": groups, "SIDES_EACH": _each(self.sides)}


def _each(columns: int) -> int:
    """The vectors of so many columns, two at least: Triton would have one laid out as in memory."""
    return max(cdiv(next_power_of_two(columns), WARPS), 2)
