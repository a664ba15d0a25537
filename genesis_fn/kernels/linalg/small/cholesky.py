"""Cholesky factors of many small matrices, each in the registers of some lanes of a warp."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.language import sqrt
from genesis_fn.kernels.linalg.small.elements import (
    add_product,
    conjugate,
    element_at,
    kept,
    negative,
    where_parts,
)
from genesis_fn.kernels.linalg.small.rows import (
    LANES,
    RING,
    at_lane,
    read_rows,
    row_constants,
    write_rows,
)
from genesis_fn.kernels.plan import BufferArg, Plan, Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv


@triton.jit
def eliminate_some(
    columns, failed, row, first, START: tl.constexpr, END: tl.constexpr, N: tl.constexpr,
    COMPLEX: tl.constexpr,
):  # fmt: skip
    """Steps START to END of a factorization, on the columns from START on; those of these steps end
    behind the others, zero above the diagonal."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    zero = tl.zeros_like(columns[0])
    for k in range(START, END):
        # The first column is the k-th: they rotate.
        pivot = at_lane(columns[0], first + k)
        failed = failed | ~(pivot > 0)
        root = sqrt(tl.where(pivot > 0, pivot, 1.0))  # of what is not positive, no matter
        scale = 1.0 / root
        scaled = (columns[0] * scale,)
        diagonal = (root,)
        if COMPLEX:
            scaled = scaled + (columns[1] * scale,)
            diagonal = diagonal + (zero,)
        # Above may stand NaN: zero times that would reach columns that are done.
        below = kept(row > k, scaled, COMPLEX)
        less = negative(below, COMPLEX)
        rotated = ()
        for j in tl.static_range(1, N - START):
            if j < N - END + 1:
                across = element_at(below, first + k + j, COMPLEX)
            else:  # columns that are done have come round: k + j may be no row
                across = element_at(below, (first + k + j) % 32, COMPLEX)
                across = kept(j < N - k, across, COMPLEX)
            entry = columns[j * PARTS : (j + 1) * PARTS]
            rotated = rotated + add_product(entry, less, conjugate(across, COMPLEX), COMPLEX)
        columns = rotated + where_parts(row == k, diagonal, below, COMPLEX)
    return columns, failed


@triton.jit
def small_cholesky_kernel(
    x,
    out,
    count,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    COMPLEX: tl.constexpr,
):
    """L of `count` matrices [N, N], zero above the diagonal; NaN where one is not positive."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    NUMBERS: tl.constexpr = PARTS * N
    lane = tl.arange(0, 32)
    row, first = lane % ROWS, lane // ROWS * ROWS
    matrix = tl.program_id(0) * (32 // ROWS) + lane // ROWS
    inside = (matrix < count) & (row < N)
    start = (matrix.to(tl.int64) * N + row) * NUMBERS
    columns = read_rows(x, start, inside, NUMBERS, WIDTH, GROUP, GROUP)[:NUMBERS]
    failed = lane < 0
    done = ()
    for some in tl.static_range(0, N, RING):
        columns, failed = eliminate_some(
            columns, failed, row, first, some, min(some + RING, N), N, COMPLEX
        )
        done = done + columns[PARTS * max(N - some - RING, 0) :]
        columns = columns[: PARTS * max(N - some - RING, 0)]
    factors = ()
    for j in tl.static_range(NUMBERS):
        value = tl.where(failed & (row >= j // PARTS), float("nan"), done[j])
        factors = factors + (value,)
    write_rows(out, start, inside, factors, NUMBERS, WIDTH, GROUP, GROUP)


@dataclass(frozen=True, slots=True)
class SmallCholesky:
    """Cholesky factors of `count` matrices [n, n]; numbers are of type `name`, two of them an
    element if `is_complex`."""

    count: int
    n: int
    name: str
    is_complex: bool = False

    def __post_init__(self) -> None:
        if self.n > LANES:
            raise ValueError(f"{self}: at most {LANES} rows")


def plan_small_cholesky(spec: SmallCholesky, target: Target) -> Plan:
    """matrices, of which lower triangles are read -> factors, zero above the diagonal."""
    builder = PlanBuilder(1, 1)
    constants = row_constants(spec.n, spec.name, spec.is_complex)
    builder.launch(
        small_cholesky_kernel,
        (cdiv(spec.count, LANES // constants["ROWS"]),),
        {"x": BufferArg(0, spec.name), "out": BufferArg(1, spec.name), "count": Scalar(spec.count)},
        constants,
        num_warps=1,
    )
    return builder.build()
