"""Cholesky factors of many matrices of more rows than a warp has lanes, each by one program.

A program takes panels of 32 columns from the left. It subtracts the product of the panels that are
done, and eliminates with rows in lanes: each warp holds 32 rows of the panel, and beside them the
block of the diagonal, which all warps factor, so that none waits for another.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.language import dot, sqrt
from genesis_fn.kernels.linalg.small.rows import RING, block_of, vectors_of
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import PlanBuilder, next_power_of_two

PANEL: tl.constexpr = tl.constexpr(32)
MOST_ROWS = 128
"""Of a matrix: warps hold 32 each."""


@triton.jit
def lanes_of(block, WARPS: tl.constexpr):
    """The columns of a block, each [WARPS, 32]."""
    vectors = vectors_of(block, 32)
    lanes = ()
    for j in tl.static_range(PANEL):
        lanes = lanes + (tl.reshape(vectors[j], (WARPS, 32)),)
    return lanes


@triton.jit
def eliminate_some(block, rows, failed, zero, START: tl.constexpr, END: tl.constexpr):
    """Steps START to END of a panel, on the columns from START on of the block of its diagonal and
    of its rows; those of these steps end behind the others."""
    for k in range(START, END):
        # The first column is the k-th: they rotate.
        pivot = tl.gather(block[0], zero + k, 1)
        failed = failed | ~(pivot > 0)
        scale = 1.0 / sqrt(tl.where(pivot > 0, pivot, 1.0))  # of what is not positive, no matter
        column = block[0] * scale
        mine = rows[0] * scale
        new_block = ()
        new_rows = ()
        for j in tl.static_range(1, PANEL - START):
            less = tl.gather(column, (zero + k + j) % 32, 1)
            if j > PANEL - END:  # columns that are done have come round
                less = tl.where(j < PANEL - k, less, 0.0)
            new_block = new_block + (tl.fma(-column, less, block[j]),)
            new_rows = new_rows + (tl.fma(-mine, less, rows[j]),)
        block = new_block + (column,)
        rows = new_rows + (mine,)
    return block, rows, failed


@triton.jit
def panel_cholesky_kernel(x, out, N: tl.constexpr, ROWS: tl.constexpr):
    """L of a matrix [N, N], zero above the diagonal; NaN where it is not positive."""
    WARPS: tl.constexpr = ROWS // 32
    x += tl.program_id(0).to(tl.int64) * (N * N)
    out += tl.program_id(0).to(tl.int64) * (N * N)
    row = tl.arange(0, ROWS)
    of_panel = tl.arange(0, PANEL)
    zero = tl.zeros((WARPS, 32), tl.int32)
    failed = zero > 0
    for start in range(0, N, PANEL):
        column = start + of_panel
        at = row[:, None] * N + column[None, :]
        inside = (row < N)[:, None] & (column < N)[None, :]
        lower = row[:, None] >= column[None, :]
        panel = tl.load(x + at, inside & lower, other=0.0)
        for done in range(0, start, PANEL):
            left = tl.load(
                out + row[:, None] * N + (done + of_panel)[None, :], (row < N)[:, None], other=0.0
            )
            right = tl.load(
                out + column[None, :] * N + (done + of_panel)[:, None],
                (column < N)[None, :],
                other=0.0,
            )
            panel = dot(-left, right, panel, "ieee")
        # Through memory, since every warp reads the block of the diagonal.
        tl.store(out + at, panel, inside)
        tl.debug_barrier()
        first = start + row % 32
        diagonal = tl.load(
            out + first[:, None] * N + column[None, :],
            (first < N)[:, None] & (column < N)[None, :],
            other=0.0,
        )
        # Behind the last column of the matrix stand those of an identity.
        beyond = (first[:, None] == column[None, :]) & (column >= N)[None, :]
        block = lanes_of(tl.where(beyond, 1.0, diagonal), WARPS)
        rows = lanes_of(panel, WARPS)
        rows_done = ()
        for some in tl.static_range(0, PANEL, RING):
            block, rows, failed = eliminate_some(block, rows, failed, zero, some, some + RING)
            rows_done = rows_done + rows[PANEL - some - RING :]
            rows = rows[: PANEL - some - RING]
            block = block[: PANEL - some - RING]
        vectors = ()
        for j in tl.static_range(PANEL):
            vectors = vectors + (tl.reshape(rows_done[j], (ROWS,)),)
        factor = tl.where(lower, block_of(vectors, 32), 0.0)
        tl.debug_barrier()  # all warps have read what this overwrites
        tl.store(out + at, factor, inside)
        tl.debug_barrier()
    is_failed = tl.reshape(failed, (ROWS,))[:, None]
    for start in range(0, N, PANEL):
        column = start + of_panel
        lower = (row[:, None] >= column[None, :]) & (row < N)[:, None] & (column < N)[None, :]
        at = row[:, None] * N + column[None, :]
        tl.store(
            out + at, tl.full((ROWS, PANEL), float("nan"), x.dtype.element_ty), lower & is_failed
        )


@dataclass(frozen=True, slots=True)
class PanelCholesky:
    """Cholesky factors of `count` float32 matrices [n, n]."""

    count: int
    n: int

    def __post_init__(self) -> None:
        if self.n > MOST_ROWS:
            raise ValueError(f"{self}: at most {MOST_ROWS} rows")


def plan_panel_cholesky(spec: PanelCholesky, target: Target) -> Plan:
    """matrices, of which lower triangles are read -> factors, zero above the diagonal."""
    builder = PlanBuilder(1, 1)
    rows = max(64, next_power_of_two(spec.n))
    builder.launch(
        panel_cholesky_kernel,
        (spec.count,),
        {"x": BufferArg(0, "fp32"), "out": BufferArg(1, "fp32")},
        {"N": spec.n, "ROWS": rows},
        num_warps=rows // 32,
    )
    return builder.build()
