"""Triangular solves of many small matrices, each in the registers of some lanes of a warp."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.linalg.small.elements import conjugated
from genesis_fn.kernels.linalg.small.rows import (
    LANES,
    read_rows,
    row_constants,
    side_constants,
    write_rows,
)
from genesis_fn.kernels.linalg.small.substitution import substitute
from genesis_fn.kernels.plan import BufferArg, Plan, Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv

MOST_SIDES = 32
"""Numbers of right sides that a program holds of each row."""


@triton.jit
def small_triangular_kernel(
    a,
    b,
    out,
    count,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    COMPLEX: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    CONJUGATED: tl.constexpr,
    LOWER: tl.constexpr,
    UNIT: tl.constexpr,
    LEFT: tl.constexpr,
    OTHERS: tl.constexpr,
    SIDES: tl.constexpr,
    SIDES_WIDTH: tl.constexpr,
    SIDES_GROUP: tl.constexpr,
):
    """X of `count` systems T X = B with OTHERS columns, or X T^T = B with as many rows unless LEFT,
    for SIDES of these. T is LOWER or upper, of A or, if TRANSPOSED, of A^T."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    NUMBERS: tl.constexpr = PARTS * N
    lane = tl.arange(0, 32)
    row, first = lane % ROWS, lane // ROWS * ROWS
    matrix = (tl.program_id(0) * (32 // ROWS) + lane // ROWS).to(tl.int64)
    inside = (matrix < count) & (row < N)
    if TRANSPOSED:
        start = matrix * N * NUMBERS + row * PARTS
        columns = read_rows(a, start, inside, NUMBERS, WIDTH, PARTS, NUMBERS)
    else:
        start = (matrix * N + row) * NUMBERS
        columns = read_rows(a, start, inside, NUMBERS, WIDTH, GROUP, GROUP)
    if CONJUGATED:
        columns = conjugated(columns)
    side = tl.program_id(1) * SIDES
    numbers = tl.minimum(OTHERS - side, SIDES) * PARTS
    if LEFT:
        at = (matrix * N + row) * (OTHERS * PARTS) + side * PARTS
    else:
        at = (matrix * OTHERS + side) * NUMBERS + row * PARTS
    STRIDE: tl.constexpr = SIDES_GROUP if LEFT else NUMBERS
    sides = read_rows(b, at, inside, numbers, SIDES_WIDTH, SIDES_GROUP, STRIDE)
    solved = substitute(
        columns[:NUMBERS], sides[: PARTS * SIDES], row, row, first, N, LOWER, UNIT, COMPLEX
    )
    write_rows(out, at, inside, solved, numbers, SIDES_WIDTH, SIDES_GROUP, STRIDE)


@dataclass(frozen=True, slots=True)
class SmallTriangular:
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
    unit: bool = False
    left: bool = True

    def __post_init__(self) -> None:
        if self.n > LANES:
            raise ValueError(f"{self}: at most {LANES} rows")


def plan_small_triangular(spec: SmallTriangular, target: Target) -> Plan:
    """(matrices, right sides) -> solutions. Elements of the other triangle are not used, and those
    of the diagonal not if it is a unit one."""
    builder = PlanBuilder(2, 1)
    constants = row_constants(spec.n, spec.name, spec.is_complex)
    parts = 2 if spec.is_complex else 1
    sides = min(spec.others, MOST_SIDES // parts)
    together = side_constants(sides, spec.name, spec.is_complex)
    if not spec.left:
        together["SIDES_GROUP"] = parts
    builder.launch(
        small_triangular_kernel,
        (cdiv(spec.count, LANES // constants["ROWS"]), cdiv(spec.others, sides)),
        {
            "a": BufferArg(0, spec.name),
            "b": BufferArg(1, spec.name),
            "out": BufferArg(2, spec.name),
            "count": Scalar(spec.count),
        },
        {
            **constants,
            "TRANSPOSED": spec.transposed,
            "CONJUGATED": spec.conjugated and spec.is_complex,
            "LOWER": spec.lower,
            "UNIT": spec.unit,
            "LEFT": spec.left,
            "OTHERS": spec.others,
            **together,
        },
        num_warps=1,
    )
    return builder.build()
