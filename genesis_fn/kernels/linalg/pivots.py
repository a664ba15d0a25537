"""The permutation that the exchanges of an LU factorization make."""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.kernels.plan import BufferArg, Scalar
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


def add_permutation(
    builder: PlanBuilder,
    swaps: BufferArg,
    pivots: BufferArg,
    order: BufferArg,
    shape: tuple[int, int, int],
) -> None:
    """Append the pivots, counted from 0, and the permutation of `shape` = (matrices, rows,
    exchanges): `swaps` counts from 1, as LAPACK does."""
    matrices, rows, count = shape
    builder.launch(
        permutation_kernel,
        (matrices,),
        {
            "swaps": swaps,
            "pivots": pivots,
            "order": order,
            "rows": Scalar(rows),
            "count": Scalar(count),
        },
        {"BLOCK": next_power_of_two(rows)},
        num_warps=1 if rows <= 1024 else 4,
    )
