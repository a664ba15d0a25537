"""Solutions of many small systems, each in the registers of some lanes of a warp."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.linalg.small.lu import eliminate
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
"""Numbers of a row of right sides, which stand in registers beside the row of the matrix."""


@triton.jit
def small_solve_kernel(
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
    SIDES: tl.constexpr,
    SIDES_WIDTH: tl.constexpr,
    SIDES_GROUP: tl.constexpr,
):
    """X of `count` systems A X = B, or A^T X = B, with SIDES columns; NaN of singular ones."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    NUMBERS: tl.constexpr = PARTS * N
    RIGHT: tl.constexpr = PARTS * SIDES
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
    to = matrix * N * RIGHT
    given = read_rows(b, to + row * RIGHT, inside, RIGHT, SIDES_WIDTH, SIDES_GROUP, SIDES_GROUP)
    columns, sides, position, _, order, singular = eliminate(
        columns[:NUMBERS], given[:RIGHT], row, first, N, ROWS, RIGHT, COMPLEX
    )
    sides = substitute(columns, sides, position, order, first, N, False, False, COMPLEX)
    solution = ()
    for j in tl.static_range(RIGHT):
        solution = solution + (tl.where(singular, float("nan"), sides[j]),)
    write_rows(
        out, to + position * RIGHT, inside, solution, RIGHT, SIDES_WIDTH, SIDES_GROUP, SIDES_GROUP
    )


@dataclass(frozen=True, slots=True)
class SmallSolve:
    """`count` systems of matrices [n, n], or of their transposes, with right sides [n, columns];
    numbers are of type `name`, two of them an element if `is_complex`."""

    count: int
    n: int
    columns: int
    name: str
    is_complex: bool = False
    transposed: bool = False

    def __post_init__(self) -> None:
        if self.n > LANES or self.columns * (1 + self.is_complex) > MOST_SIDES:
            raise ValueError(f"{self}: at most {LANES} rows, and {MOST_SIDES} numbers on the right")


def plan_small_solve(spec: SmallSolve, target: Target) -> Plan:
    """(matrices, right sides) -> solutions."""
    builder = PlanBuilder(2, 1)
    constants = row_constants(spec.n, spec.name, spec.is_complex)
    builder.launch(
        small_solve_kernel,
        (cdiv(spec.count, LANES // constants["ROWS"]),),
        {
            "a": BufferArg(0, spec.name),
            "b": BufferArg(1, spec.name),
            "out": BufferArg(2, spec.name),
            "count": Scalar(spec.count),
        },
        {
            **constants,
            "TRANSPOSED": spec.transposed,
            **side_constants(spec.columns, spec.name, spec.is_complex),
        },
        num_warps=1,
    )
    return builder.build()
