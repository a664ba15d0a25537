"""LU factors of many small matrices, each in the registers of some lanes of a warp.

Rows stay in their lanes: what an exchange moves is the number of a row's position.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.linalg.small_rows import (
    LANES,
    at_lane,
    over_rows,
    read_rows,
    row_constants,
    write_rows,
)
from genesis_fn.kernels.plan import BufferArg, Plan, Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv


@triton.jit
def is_zero(x, COMPLEX: tl.constexpr):
    """Whether all parts are."""
    if COMPLEX:
        return (x[0] == 0) & (x[1] == 0)
    else:
        return x[0] == 0


@triton.jit
def reciprocal(pivot, zero, COMPLEX: tl.constexpr):
    """The parts of 1 / pivot, of 1 / 1 where it is `zero`: nothing but zeros stands below."""
    if COMPLEX:
        # Scaled, so that squares neither overflow nor vanish.
        scale = 1.0 / tl.where(zero, 1.0, tl.abs(pivot[0]) + tl.abs(pivot[1]))
        a, b = tl.where(zero, 1.0, pivot[0] * scale), pivot[1] * scale
        inverse = scale / (a * a + b * b)
        return (a * inverse, -b * inverse)
    else:
        return (1.0 / tl.where(zero, 1.0, pivot[0]),)


@triton.jit
def product(x, y, COMPLEX: tl.constexpr):
    """The parts of x * y."""
    if COMPLEX:
        return (x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0])
    else:
        return (x[0] * y[0],)


@triton.jit
def add_product(x, y, z, COMPLEX: tl.constexpr):
    """The parts of x + y * z. Fused, since Triton's passes take a time that is quadratic in the
    number of operations."""
    if COMPLEX:
        return (
            tl.fma(y[0], z[0], tl.fma(-y[1], z[1], x[0])),
            tl.fma(y[0], z[1], tl.fma(y[1], z[0], x[1])),
        )
    else:
        return (tl.fma(y[0], z[0], x[0]),)


@triton.jit
def element_at(element, lane, COMPLEX: tl.constexpr):
    """The parts of a lane's element."""
    if COMPLEX:
        return (at_lane(element[0], lane), at_lane(element[1], lane))
    else:
        return (at_lane(element[0], lane),)


@triton.jit
def eliminate(
    columns, sides, row, first, N: tl.constexpr, ROWS: tl.constexpr, RIGHT: tl.constexpr,
    COMPLEX: tl.constexpr,
):  # fmt: skip
    """P A = L U of rows in lanes, and L^-1 P B of RIGHT numbers for each row.

    Also the position that each row ends in, the pivots, the row that ends in each position, and
    whether a pivot was zero. Rows that are done are added zeros, and become NaN where the row of a
    later pivot has an infinity.
    """
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    position = row
    pivots = row
    order = row
    singular = row < 0
    for k in tl.static_range(N):
        column = columns[k * PARTS : (k + 1) * PARTS]
        # The largest, by LAPACK's measure, of the rows that are left, of equals the first: bits of
        # numbers that are not negative are ordered as they are.
        size = tl.abs(column[0])
        if COMPLEX:
            size = size + tl.abs(column[1])
        bits = size.to(tl.int64 if size.dtype == tl.float64 else tl.int32, bitcast=True)
        bits = tl.where(position >= k, bits, -1)
        candidate = bits == over_rows(bits, ROWS, True)
        found = over_rows(tl.where(candidate, position * 32 + row, 1024), ROWS, False)
        chosen = found % 32
        former = found // 32
        position = tl.where(row == chosen, k, tl.where(position == k, former, position))
        pivots = tl.where(row == k, former, pivots)
        order = tl.where(row == k, chosen, order)
        pivot = element_at(column, first + chosen, COMPLEX)
        zero = is_zero(pivot, COMPLEX)
        singular = singular | zero
        below = position > k
        scaled = product(column, reciprocal(pivot, zero, COMPLEX), COMPLEX)
        multiplier = ()
        less = ()
        for part in tl.static_range(PARTS):
            multiplier = multiplier + (tl.where(below, scaled[part], column[part]),)
            less = less + (tl.where(below, -scaled[part], 0.0),)
        updated = columns[: k * PARTS] + multiplier
        for j in tl.static_range(k + 1, N):
            entry = columns[j * PARTS : (j + 1) * PARTS]
            above = element_at(entry, first + chosen, COMPLEX)
            updated = updated + add_product(entry, less, above, COMPLEX)
        columns = updated
        solved = ()
        for j in tl.static_range(RIGHT // PARTS):
            entry = sides[j * PARTS : (j + 1) * PARTS]
            above = element_at(entry, first + chosen, COMPLEX)
            solved = solved + add_product(entry, less, above, COMPLEX)
        sides = solved
    return columns, sides, position, pivots, order, singular


@triton.jit
def small_lu_kernel(
    x,
    out,
    pivots,
    order,
    count,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    COMPLEX: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    """L and U of `count` matrices [N, N] in one, pivots from 0, and the order of rows; NaN where a
    matrix holds one."""
    NUMBERS: tl.constexpr = 2 * N if COMPLEX else N
    lane = tl.arange(0, 32)
    row, first = lane % ROWS, lane // ROWS * ROWS
    matrix = (tl.program_id(0) * (32 // ROWS) + lane // ROWS).to(tl.int64)
    inside = (matrix < count) & (row < N)
    start = matrix * N * NUMBERS
    columns = read_rows(x, start + row * NUMBERS, inside, NUMBERS, WIDTH, GROUP, GROUP)
    flawed = lane < 0
    for j in tl.static_range(NUMBERS):
        flawed = flawed | (columns[j] != columns[j])
    columns, _, position, swaps, rows, _ = eliminate(
        columns[:NUMBERS], (), row, first, N, ROWS, 0, COMPLEX
    )
    flawed = over_rows(flawed.to(tl.int32), ROWS, True) > 0
    factors = ()
    for j in tl.static_range(NUMBERS):
        factors = factors + (tl.where(flawed, float("nan"), columns[j]),)
    write_rows(out, start + position * NUMBERS, inside, factors, NUMBERS, WIDTH, GROUP)
    tl.store(pivots + matrix * N + row, swaps, inside)
    tl.store(order + matrix * N + row, rows, inside)


@dataclass(frozen=True, slots=True)
class SmallLu:
    """LU factors of `count` matrices [n, n]; numbers are of type `name`, two of them an element if
    `is_complex`."""

    count: int
    n: int
    name: str
    is_complex: bool = False

    def __post_init__(self) -> None:
        if self.n > LANES:
            raise ValueError(f"{self}: at most {LANES} rows")


def plan_small_lu(spec: SmallLu, target: Target) -> Plan:
    """matrices -> (factors, pivots, order of rows), the last two int32."""
    builder = PlanBuilder(1, 3)
    constants = row_constants(spec.n, spec.name, spec.is_complex)
    builder.launch(
        small_lu_kernel,
        (cdiv(spec.count, LANES // constants["ROWS"]),),
        {
            "x": BufferArg(0, spec.name),
            "out": BufferArg(1, spec.name),
            "pivots": BufferArg(2, "i32"),
            "order": BufferArg(3, "i32"),
            "count": Scalar(spec.count),
        },
        constants,
        num_warps=1,
    )
    return builder.build()
