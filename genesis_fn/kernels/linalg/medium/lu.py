"""LU factors of matrices, each in the registers of a program's warps.

Rows stay in their lanes: what an exchange moves is the number of a row's position.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.linalg.medium.columns import (
    RING,
    WARPS,
    Spread,
    add_products,
    bits_of,
    block_of_columns,
    columns_of,
    element_at,
    element_of_warp,
    of_rows,
    over_rows,
    read_square,
    rows_and_warps,
)
from genesis_fn.kernels.linalg.small.elements import (
    add_product,
    is_zero,
    kept,
    negative,
    product,
    reciprocal,
    where_parts,
)
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import PlanBuilder


@triton.jit
def choose_pivot(column, position, row, k, COMPLEX: tl.constexpr):
    """(row, position) of the pivot, [WARPS, 32]: the largest by LAPACK's measure of the rows in
    positions from k on, of equals the first."""
    size = tl.abs(column[0])
    if COMPLEX:
        size = size + tl.abs(column[1])
    # Bits of numbers that are not negative are ordered as they are.
    bits = tl.where(position >= k, bits_of(size), -1)
    candidate = bits == over_rows(bits, True)[None, :, :]
    found = over_rows(tl.where(candidate, position * 1024 + row, 1024 * 1024), False)
    return found % 1024, found // 1024


@triton.jit
def eliminate_some(
    columns, sides, position, pivots, order, singular, row, warp, START: tl.constexpr,
    END: tl.constexpr, GROUPS: tl.constexpr, WARPS: tl.constexpr, COMPLEX: tl.constexpr,
):  # fmt: skip
    """Steps of the groups START to END of `eliminate`, on the vectors from START on; those of these
    groups end behind the others."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    for group in range(START, END):
        for owner in range(WARPS):
            k = group * WARPS + owner
            own = columns[:PARTS]
            column = element_of_warp(own, warp == owner, COMPLEX)
            chosen, former = choose_pivot(column, position, row, k, COMPLEX)
            here = row == chosen[None, :, :]
            former = former[None, :, :]
            position = tl.where(here, k, tl.where(position == k, former, position))
            pivots = tl.where(row == k, former, pivots)
            order = tl.where(row == k, chosen[None, :, :], order)
            pivot = element_at(column, chosen, COMPLEX)
            zero = is_zero(pivot, COMPLEX)
            singular = singular | zero
            below = position > k
            divisor = (tl.where(zero, 1.0, pivot[0]),) + pivot[1:]  # only zeros stand below
            scaled = product(column, reciprocal(divisor, COMPLEX), COMPLEX)
            less = kept(below, negative(scaled, COMPLEX), COMPLEX)
            above = kept(warp > owner, element_at(own, chosen, COMPLEX), COMPLEX)
            rest = add_product(own, less, above, COMPLEX)
            updated = where_parts((warp == owner) & below, scaled, rest, COMPLEX)
            for j in tl.static_range(1, GROUPS - START):
                entry = columns[j * PARTS : (j + 1) * PARTS]
                above = element_at(entry, chosen, COMPLEX)
                if j > GROUPS - END:  # columns that are done have come round
                    above = kept(j < GROUPS - group, above, COMPLEX)
                updated = updated + add_product(entry, less, above, COMPLEX)
            columns = updated
            sides = add_products(sides, less, chosen, COMPLEX)
        columns = columns[PARTS:] + columns[:PARTS]
    return columns, sides, position, pivots, order, singular


@triton.jit
def eliminate(
    columns, sides, row, warp, GROUPS: tl.constexpr, WARPS: tl.constexpr, COMPLEX: tl.constexpr
):
    """P A = L U of GROUPS vectors of columns, and L^-1 P B of those of `sides`.

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
    for start in tl.static_range(0, GROUPS, RING):
        columns, sides, position, pivots, order, singular = eliminate_some(
            columns, sides, position, pivots, order, singular, row, warp, start,
            min(start + RING, GROUPS), GROUPS, WARPS, COMPLEX,
        )  # fmt: skip
        factors = factors + columns[PARTS * max(GROUPS - start - RING, 0) :]
        columns = columns[: PARTS * max(GROUPS - start - RING, 0)]
    return factors, sides, position, pivots, order, singular


@triton.jit
def medium_lu_kernel(
    x, out, pivots, order, N: tl.constexpr, SLICES: tl.constexpr, WARPS: tl.constexpr,
    COMPLEX: tl.constexpr, GROUPS: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """L and U of a matrix [N, N] in one, pivots from 0, and the order of rows; NaN where the matrix
    holds one."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    matrix = tl.program_id(0).to(tl.int64)
    block = read_square(x + matrix * (N * N * PARTS), N, SLICES, WARPS, COMPLEX, EACH, False)
    flawed = tl.max(tl.max((block != block).to(tl.int32), 1), 0) > 0
    row, warp = rows_and_warps(SLICES, WARPS)
    columns = columns_of(block, SLICES, WARPS, EACH, PARTS, False)[: GROUPS * PARTS]
    columns, _, position, swaps, rows, _ = eliminate(columns, (), row, warp, GROUPS, WARPS, COMPLEX)
    factors = block_of_columns(columns, SLICES, WARPS, EACH, PARTS, False)
    factors = tl.where(flawed, float("nan"), factors)
    i, to = tl.arange(0, SLICES * 32), of_rows(position)
    number = tl.arange(0, EACH * WARPS * PARTS)[None, :]
    inside = (i < N)[:, None] & (number < N * PARTS)
    tl.store(out + matrix * (N * N * PARTS) + to[:, None] * (N * PARTS) + number, factors, inside)
    tl.store(pivots + matrix * N + i, of_rows(swaps), i < N)
    tl.store(order + matrix * N + i, of_rows(rows), i < N)


@dataclass(frozen=True, slots=True)
class MediumLu:
    """LU factors of `count` matrices [n, n]; numbers are of type `name`, two of them an element if
    `is_complex`."""

    count: int
    n: int
    name: str
    is_complex: bool = False

    def __post_init__(self) -> None:
        self.spread.check(self)

    @property
    def spread(self) -> Spread:
        """Over warps."""
        return Spread(self.n, 0, self.name, self.is_complex)


def plan_medium_lu(spec: MediumLu, target: Target) -> Plan:
    """matrices -> (factors, pivots, order of rows), the last two int32."""
    builder = PlanBuilder(1, 3)
    builder.launch(
        medium_lu_kernel,
        (spec.count,),
        {
            "x": BufferArg(0, spec.name),
            "out": BufferArg(1, spec.name),
            "pivots": BufferArg(2, "i32"),
            "order": BufferArg(3, "i32"),
        },
        spec.spread.constants(),
        num_warps=WARPS,
    )
    return builder.build()
