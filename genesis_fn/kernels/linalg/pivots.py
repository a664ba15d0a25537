"""The permutation that the exchanges of an LU factorization make."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.plan import BufferArg, Plan, Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder, next_power_of_two

_UNROLLED: tl.constexpr = tl.constexpr(8)  # steps whose loads are in flight together


@triton.jit
def permutation_kernel(swaps, pivots, order, rows, count, BLOCK: tl.constexpr):
    """pivots = swaps - 1, and the order of `rows` rows after all `count` exchanges of a matrix."""
    matrix = tl.program_id(0).to(tl.int64)
    swaps += matrix * count
    pivots += matrix * count
    order += matrix * rows
    i = tl.arange(0, BLOCK)
    found = tl.load(swaps + i, i < count, other=1).to(tl.int32) - 1
    tl.store(pivots + i, found, i < count)
    # Each row is followed back to where it was, from the last exchange to the first: rows do not
    # wait for one another, as they would for the order that each exchange leaves in memory.
    row = i
    for start in range(0, count, _UNROLLED):
        for k in tl.static_range(_UNROLLED):
            step = count - 1 - start - k
            other = tl.load(swaps + step, step >= 0, other=0).to(tl.int32) - 1
            row = tl.where(row == step, other, tl.where(row == other, step, row))
    tl.store(order + i, row, i < rows)


@dataclass(frozen=True, slots=True)
class RowSwaps:
    """The exchanges of rows of `matrices`, counted from 1 as LAPACK does, in integers `name`."""

    matrices: int
    rows: int
    count: int
    name: str


def plan_permutation(spec: RowSwaps, target: Target) -> Plan:
    """exchanges -> (the same as int32 counted from 0, the order of rows after them)."""
    builder = PlanBuilder(1, 2)
    block = next_power_of_two(spec.rows)
    builder.launch(
        permutation_kernel,
        (spec.matrices,),
        {
            "swaps": BufferArg(0, spec.name),
            "pivots": BufferArg(1, "i32"),
            "order": BufferArg(2, "i32"),
            "rows": Scalar(spec.rows),
            "count": Scalar(spec.count),
        },
        {"BLOCK": block},
        num_warps=min(max(block // 128, 1), 16),
    )
    return builder.build()
