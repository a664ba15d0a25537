"""Triangular solves, each in the registers of a program's warps."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.linalg.medium.columns import (
    WARPS,
    Spread,
    block_of_columns,
    columns_of,
    read_square,
    rows_and_warps,
)
from genesis_fn.kernels.linalg.medium.substitution import substitute
from genesis_fn.kernels.linalg.small.elements import conjugated
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv

MOST_SIDES_TOGETHER = 64
"""Right sides that a program solves."""


@triton.jit
def medium_triangular_kernel(
    a, b, out, N: tl.constexpr, SLICES: tl.constexpr, WARPS: tl.constexpr, COMPLEX: tl.constexpr,
    GROUPS: tl.constexpr, EACH: tl.constexpr, SIDES: tl.constexpr, SIDE_GROUPS: tl.constexpr,
    SIDES_EACH: tl.constexpr, TRANSPOSED: tl.constexpr, CONJUGATED: tl.constexpr,
    LOWER: tl.constexpr, LEFT: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """X of T X = B with OTHERS columns, or X T^T = B with as many rows unless LEFT, for SIDES of
    these. T is LOWER or upper, of A or, if TRANSPOSED, of A^T."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    matrix = tl.program_id(0).to(tl.int64)
    block = read_square(a + matrix * (N * N * PARTS), N, SLICES, WARPS, COMPLEX, EACH, TRANSPOSED)
    columns = columns_of(block, SLICES, WARPS, EACH, PARTS, TRANSPOSED)[: GROUPS * PARTS]
    if CONJUGATED:
        columns = conjugated(columns)
    side = tl.program_id(1) * SIDES
    these = tl.minimum(OTHERS - side, SIDES)
    ROWS: tl.constexpr = SLICES * 32 if LEFT else SIDES_EACH * WARPS
    WIDTH: tl.constexpr = (SIDES_EACH * WARPS if LEFT else SLICES * 32) * PARTS
    i, number = tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)[None, :]
    start = matrix * (N * OTHERS * PARTS)
    if LEFT:
        inside = (i < N) & (number < these * PARTS)
        at = start + side * PARTS + (i * (OTHERS * PARTS) + number)
    else:
        inside = (i < these) & (number < N * PARTS)
        at = start + side * (N * PARTS) + (i * (N * PARTS) + number)
    given = tl.load(b + at, inside, other=0.0)
    sides = columns_of(given, SLICES, WARPS, SIDES_EACH, PARTS, not LEFT)[: SIDE_GROUPS * PARTS]
    row, warp = rows_and_warps(SLICES, WARPS)
    solved = substitute(columns, sides, row, row, warp, GROUPS, WARPS, LOWER, COMPLEX)
    solution = block_of_columns(solved, SLICES, WARPS, SIDES_EACH, PARTS, not LEFT)
    tl.store(out + at, solution, inside)


@dataclass(frozen=True, slots=True)
class MediumTriangular:
    """`count` systems T X = B of right sides [n, others], or X T^T = B of [others, n] unless
    `left`. T is a triangle of a matrix [n, n] or, if `transposed`, of its transpose, conjugated or
    not; numbers are of type `name`, two of them an element if `is_complex`."""

    count: int
    n: int
    others: int
    name: str
    is_complex: bool = False
    lower: bool = True
    transposed: bool = False
    conjugated: bool = False
    left: bool = True

    def __post_init__(self) -> None:
        self.spread.check(self)

    @property
    def spread(self) -> Spread:
        """Over warps, of the right sides that a program takes."""
        return Spread(self.n, min(self.others, MOST_SIDES_TOGETHER), self.name, self.is_complex)


def plan_medium_triangular(spec: MediumTriangular, target: Target) -> Plan:
    """(matrices, right sides) -> solutions. Elements of the other triangle are not used."""
    builder = PlanBuilder(2, 1)
    spread = spec.spread
    builder.launch(
        medium_triangular_kernel,
        (spec.count, cdiv(spec.others, spread.sides)),
        {
            "a": BufferArg(0, spec.name),
            "b": BufferArg(1, spec.name),
            "out": BufferArg(2, spec.name),
        },
        {
            **spread.constants(),
            **spread.side_constants(),
            "TRANSPOSED": spec.transposed,
            "CONJUGATED": spec.conjugated and spec.is_complex,
            "LOWER": spec.lower,
            "LEFT": spec.left and spec.others > 1,  # a column is read as a row
            "OTHERS": spec.others,
        },
        num_warps=WARPS,
    )
    return builder.build()
