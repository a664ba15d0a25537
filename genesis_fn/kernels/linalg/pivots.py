"""The permutation that the exchanges of an LU factorization make."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.plan import BufferArg, Plan, Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder, next_power_of_two


@triton.jit
def permutation_kernel(swaps, pivots, order, rows, count, BLOCK: tl.constexpr):
    """pivots = swaps - 1, and the order of `rows` rows after all `count` exchanges of a matrix."""
    matrix = tl.program_id(0).to(tl.int64)
    swaps += matrix * count
    pivots += matrix * count
    order += matrix * rows
    i = tl.arange(0, BLOCK)
    tl.store(order + i, i, i < rows)
    found = tl.load(swaps + i, i < count, other=1).to(tl.int32) - 1
    tl.store(pivots + i, found, i < count)
    # One exchange after the other, through memory: the first levels of cache hold the order.
    for step in range(count):
        tl.debug_barrier()
        other = tl.load(swaps + step).to(tl.int32) - 1
        mine = tl.load(order + step)
        theirs = tl.load(order + other)
        tl.debug_barrier()
        tl.store(order + step, theirs)
        tl.store(order + other, mine)


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
        {"BLOCK": next_power_of_two(spec.rows)},
        num_warps=1 if spec.rows <= 1024 else 4,
    )
    return builder.build()
