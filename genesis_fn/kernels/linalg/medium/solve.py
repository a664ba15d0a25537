"""Solutions of systems of equations, each in the registers of a program's warps."""

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
    of_rows,
    read_square,
    rows_and_warps,
)
from genesis_fn.kernels.linalg.medium.lu import eliminate
from genesis_fn.kernels.linalg.medium.substitution import substitute
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import PlanBuilder


@triton.jit
def medium_solve_kernel(
    a, b, out, N: tl.constexpr, SLICES: tl.constexpr, WARPS: tl.constexpr, COMPLEX: tl.constexpr,
    GROUPS: tl.constexpr, EACH: tl.constexpr, SIDES: tl.constexpr, SIDE_GROUPS: tl.constexpr,
    SIDES_EACH: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """X of A X = B, or A^T X = B, with SIDES columns; NaN if A is singular."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    RIGHT: tl.constexpr = SIDES * PARTS
    matrix = tl.program_id(0).to(tl.int64)
    block = read_square(a + matrix * (N * N * PARTS), N, SLICES, WARPS, COMPLEX, EACH, TRANSPOSED)
    columns = columns_of(block, SLICES, WARPS, EACH, PARTS, TRANSPOSED)[: GROUPS * PARTS]
    # A column is read as a row.
    SIDE_ROWS: tl.constexpr = SIDES_EACH * WARPS if SIDES == 1 else SLICES * 32
    SIDE_WIDTH: tl.constexpr = (SLICES * 32 if SIDES == 1 else SIDES_EACH * WARPS) * PARTS
    SIDE_LENGTH: tl.constexpr = (N if SIDES == 1 else SIDES) * PARTS
    i, number = tl.arange(0, SIDE_ROWS)[:, None], tl.arange(0, SIDE_WIDTH)[None, :]
    inside = (i < (1 if SIDES == 1 else N)) & (number < SIDE_LENGTH)
    given = tl.load(b + matrix * (N * RIGHT) + (i * SIDE_LENGTH + number), inside, other=0.0)
    sides = columns_of(given, SLICES, WARPS, SIDES_EACH, PARTS, SIDES == 1)[: SIDE_GROUPS * PARTS]
    row, warp = rows_and_warps(SLICES, WARPS)
    columns, sides, position, _, order, singular = eliminate(
        columns, sides, row, warp, GROUPS, WARPS, COMPLEX
    )
    sides = substitute(columns, sides, position, order, warp, GROUPS, WARPS, False, COMPLEX)
    solution = ()
    for j in tl.static_range(SIDE_GROUPS * PARTS):
        solution = solution + (tl.where(singular, float("nan"), sides[j]),)
    solved = block_of_columns(solution, SLICES, WARPS, SIDES_EACH, PARTS, False)
    number = tl.arange(0, SIDES_EACH * WARPS * PARTS)[None, :]
    inside = (tl.arange(0, SLICES * 32) < N)[:, None] & (number < RIGHT)
    to = of_rows(position)[:, None] * RIGHT + number
    tl.store(out + matrix * (N * RIGHT) + to, solved, inside)


@dataclass(frozen=True, slots=True)
class MediumSolve:
    """`count` systems of matrices [n, n], or of their transposes, with right sides [n, columns];
    numbers are of type `name`, two of them an element if `is_complex`."""

    count: int
    n: int
    columns: int
    name: str
    is_complex: bool = False
    transposed: bool = False

    def __post_init__(self) -> None:
        self.spread.check(self)

    @property
    def spread(self) -> Spread:
        """Over warps."""
        return Spread(self.n, self.columns, self.name, self.is_complex)


def plan_medium_solve(spec: MediumSolve, target: Target) -> Plan:
    """(matrices, right sides) -> solutions."""
    builder = PlanBuilder(2, 1)
    spread = spec.spread
    builder.launch(
        medium_solve_kernel,
        (spec.count,),
        {
            "a": BufferArg(0, spec.name),
            "b": BufferArg(1, spec.name),
            "out": BufferArg(2, spec.name),
        },
        {**spread.constants(), **spread.side_constants(), "TRANSPOSED": spec.transposed},
        num_warps=WARPS,
    )
    return builder.build()
