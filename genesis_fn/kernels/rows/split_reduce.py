"""The second kernel of a split reduction: it adds the partial sums of the first."""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.kernels.language.language import cast
from genesis_fn.kernels.plan import BufferArg
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv, next_power_of_two


@triton.jit
def sum_partials_kernel(
    partials,
    out,
    COUNT: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """out[c] = the sum of partials[i, c] over i, in a fixed order."""
    column = tl.program_id(0) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK)
    row = tl.arange(0, ROW_BLOCK)
    inside = column < COLUMNS
    # A running sum for each row of the block, reduced at the end: loads do not wait for each other.
    total = tl.zeros((ROW_BLOCK, COLUMN_BLOCK), partials.dtype.element_ty)
    for start in range(0, COUNT, ROW_BLOCK):
        r = start + row
        base = r.to(tl.int64) * COLUMNS if WIDE else r * COLUMNS
        mask = (r < COUNT)[:, None] & inside[None, :]
        total += tl.load(partials + base[:, None] + column[None, :], mask, other=0.0)
    tl.store(out + column, cast(tl.sum(total, 0), out.dtype.element_ty), inside)


def add_sum_of_partials(
    builder: PlanBuilder, partials: BufferArg, out: BufferArg, count: int, columns: int
) -> None:
    """Append out[c] = sum of partials[i, c] over i < count, in an order fixed by the shape."""
    # Narrow tiles, so that few columns still make many programs; 32 bytes are one sector.
    row_block = min(next_power_of_two(count), 256)
    column_block = min(next_power_of_two(columns), max(8, 2048 // row_block))
    builder.launch(
        sum_partials_kernel,
        (cdiv(columns, column_block),),
        {"partials": partials, "out": out},
        {
            "COUNT": count,
            "COLUMNS": columns,
            "ROW_BLOCK": row_block,
            "COLUMN_BLOCK": column_block,
            "WIDE": count * columns > 2**31 - 1,
        },
        num_warps=4,
    )
