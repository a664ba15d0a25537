"""LU factors of many small matrices, each in the registers of some lanes of a warp.

Rows stay in their lanes: what an exchange moves is the number of a row's position.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.linalg.small.elements import (
    add_product,
    add_products,
    element_at,
    is_zero,
    kept,
    negative,
    product,
    reciprocal,
    where_parts,
)
from genesis_fn.kernels.linalg.small.rows import (
    LANES,
    RING,
    over_rows,
    read_rows,
    row_constants,
    write_rows,
)
from genesis_fn.kernels.plan import BufferArg, Plan, Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv


@triton.jit
def choose_pivot(column, position, row, k, ROWS: tl.constexpr, COMPLEX: tl.constexpr):
    """(row, position) of the pivot: the largest by LAPACK's measure of the rows in positions from
    k on, of equals the first."""
    size = tl.abs(column[0])
    if COMPLEX:
        size = size + tl.abs(column[1])
    # Bits of numbers that are not negative are ordered as they are.
    bits = size.to(tl.int64 if size.dtype == tl.float64 else tl.int32, bitcast=True)
    bits = tl.where(position >= k, bits, -1)
    candidate = bits == over_rows(bits, ROWS, True)
    found = over_rows(tl.where(candidate, position * 32 + row, 1024), ROWS, False)
    return found % 32, found // 32


@triton.jit
def eliminate_some(
    columns, sides, position, pivots, order, singular, row, first, START: tl.constexpr,
    END: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, RIGHT: tl.constexpr,
    COMPLEX: tl.constexpr,
):  # fmt: skip
    """Steps START to END of `eliminate`, on the columns from START on; those of these steps end
    behind the others."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    LATER: tl.constexpr = N - END
    for k in range(START, END):
        # The first column is the k-th: they rotate.
        column = columns[:PARTS]
        chosen, former = choose_pivot(column, position, row, k, ROWS, COMPLEX)
        position = tl.where(row == chosen, k, tl.where(position == k, former, position))
        pivots = tl.where(row == k, former, pivots)
        order = tl.where(row == k, chosen, order)
        holder = first + chosen
        pivot = element_at(column, holder, COMPLEX)
        zero = is_zero(pivot, COMPLEX)
        singular = singular | zero
        below = position > k
        divisor = (tl.where(zero, 1.0, pivot[0]),) + pivot[1:]  # nothing but zeros stands below
        scaled = product(column, reciprocal(divisor, COMPLEX), COMPLEX)
        less = kept(below, negative(scaled, COMPLEX), COMPLEX)
        rotated = add_products(columns[PARTS:], less, holder, PARTS * LATER, COMPLEX)
        for j in tl.static_range(LATER + 1, N - START):
            entry = columns[j * PARTS : (j + 1) * PARTS]
            above = kept(j < N - k, element_at(entry, holder, COMPLEX), COMPLEX)
            rotated = rotated + add_product(entry, less, above, COMPLEX)
        columns = rotated + where_parts(below, scaled, column, COMPLEX)
        sides = add_products(sides, less, holder, RIGHT, COMPLEX)
    return columns, sides, position, pivots, order, singular


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
    factors = ()
    for start in tl.static_range(0, N, RING):
        columns, sides, position, pivots, order, singular = eliminate_some(
            columns, sides, position, pivots, order, singular, row, first, start,
            min(start + RING, N), N, ROWS, RIGHT, COMPLEX,
        )  # fmt: skip
        factors = factors + columns[PARTS * max(N - start - RING, 0) :]
        columns = columns[: PARTS * max(N - start - RING, 0)]
    return factors, sides, position, pivots, order, singular


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
    write_rows(out, start + position * NUMBERS, inside, factors, NUMBERS, WIDTH, GROUP, GROUP)
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
