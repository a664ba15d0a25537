"""Cholesky factors of matrices, each in the registers of a program's warps."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.language import sqrt
from genesis_fn.kernels.linalg.medium.columns import (
    RING,
    WARPS,
    Spread,
    block_of_columns,
    columns_of,
    element_at,
    element_of_warp,
    read_square,
    rows_and_warps,
)
from genesis_fn.kernels.linalg.small.elements import (
    add_product,
    conjugate,
    kept,
    negative,
    where_parts,
)
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import PlanBuilder


@triton.jit
def eliminate_some(
    columns, failed, row, warp, START: tl.constexpr, END: tl.constexpr, GROUPS: tl.constexpr,
    WARPS: tl.constexpr, COMPLEX: tl.constexpr,
):  # fmt: skip
    """Steps of the groups START to END of a factorization, on the vectors from START on; those of
    these groups end behind the others, zero above the diagonal."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    of_lanes = tl.broadcast_to(tl.arange(0, WARPS)[:, None], (WARPS, 32))
    for group in range(START, END):
        for owner in range(WARPS):
            k = group * WARPS + owner
            own = columns[:PARTS]
            column = element_of_warp(own, warp == owner, COMPLEX)
            (pivot,) = element_at(column[:1], tl.zeros_like(of_lanes) + k, False)
            failed = failed | ~(pivot > 0)
            root = sqrt(tl.where(pivot > 0, pivot, 1.0))  # of what is not positive, no matter
            scale = 1.0 / root
            scaled = (column[0] * scale,)
            diagonal = (root,)
            if COMPLEX:
                scaled = scaled + (column[1] * scale,)
                diagonal = diagonal + (tl.zeros_like(root),)
            below = kept(row > k, scaled, COMPLEX)
            less = negative(below, COMPLEX)
            updated = ()
            for j in tl.static_range(GROUPS - START):
                # Columns that are done have come round, and are added zeros, which stand in
                # `below` where their diagonal is.
                across = element_at(below, (group + j) % GROUPS * WARPS + of_lanes, COMPLEX)
                entry = columns[j * PARTS : (j + 1) * PARTS]
                updated = updated + add_product(entry, less, conjugate(across, COMPLEX), COMPLEX)
            done = where_parts(row == k, diagonal, below, COMPLEX)
            first = where_parts(warp == owner, done, updated[:PARTS], COMPLEX)
            columns = first + updated[PARTS:]
        columns = columns[PARTS:] + columns[:PARTS]
    return columns, failed


@triton.jit
def medium_cholesky_kernel(
    x, out, N: tl.constexpr, SLICES: tl.constexpr, WARPS: tl.constexpr, COMPLEX: tl.constexpr,
    GROUPS: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """L of a matrix [N, N], zero above the diagonal; NaN where it is not positive."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    start = tl.program_id(0).to(tl.int64) * (N * N * PARTS)
    block = read_square(x + start, N, SLICES, WARPS, COMPLEX, EACH, False)
    columns = columns_of(block, SLICES, WARPS, EACH, PARTS, False)[: GROUPS * PARTS]
    row, warp = rows_and_warps(SLICES, WARPS)
    failed = row < 0
    factors = ()
    for some in tl.static_range(0, GROUPS, RING):
        columns, failed = eliminate_some(
            columns, failed, row, warp, some, min(some + RING, GROUPS), GROUPS, WARPS, COMPLEX
        )
        factors = factors + columns[PARTS * max(GROUPS - some - RING, 0) :]
        columns = columns[: PARTS * max(GROUPS - some - RING, 0)]
    marked = ()
    for j in tl.static_range(GROUPS * PARTS):
        lower = row >= j // PARTS * WARPS + warp
        marked = marked + (tl.where(failed & lower, float("nan"), factors[j]),)
    i = tl.arange(0, SLICES * 32)[:, None]
    number = tl.arange(0, EACH * WARPS * PARTS)[None, :]
    inside = (i < N) & (number < N * PARTS)
    factor = block_of_columns(marked, SLICES, WARPS, EACH, PARTS, False)
    tl.store(out + start + (i * (N * PARTS) + number), factor, inside)


@dataclass(frozen=True, slots=True)
class MediumCholesky:
    """Cholesky factors of `count` matrices [n, n]; numbers are of type `name`, two of them an
    element if `is_complex`."""

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


def plan_medium_cholesky(spec: MediumCholesky, target: Target) -> Plan:
    """matrices, of which lower triangles are read -> factors, zero above the diagonal."""
    builder = PlanBuilder(1, 1)
    builder.launch(
        medium_cholesky_kernel,
        (spec.count,),
        {"x": BufferArg(0, spec.name), "out": BufferArg(1, spec.name)},
        spec.spread.constants(),
        num_warps=WARPS,
    )
    return builder.build()
