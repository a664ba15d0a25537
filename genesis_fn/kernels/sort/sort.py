"""Sorting of any length: stable, by one or several keys, with payloads.

A sort computes a permutation and gathers every operand through it. Short rows are sorted inside one
program, long ones by a radix sort.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import INT32_MAX, PlanBuilder, cdiv, raw_dtype
from genesis_fn.kernels.sort import block_sort
from genesis_fn.kernels.sort.block_sort import add_block_sort
from genesis_fn.kernels.sort.radix_sort import add_radix_sort


@dataclass(frozen=True, slots=True)
class Sort:
    """A stable sort of the rows of `operands` (element types) by the first `num_keys` of them.

    Rows compare by the first key, ties by the next, and so on.
    """

    rows: int
    length: int
    operands: tuple[str, ...]
    num_keys: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.num_keys <= len(self.operands):
            raise ValueError(f"{len(self.operands)} operands cannot have {self.num_keys} keys")
        if self.length > INT32_MAX:
            raise ValueError(f"a sort along {self.length} elements is longer than 2^31 - 1")

    @property
    def in_one_program(self) -> bool:
        """Whether one program sorts a row, which by one key is one launch."""
        return self.length <= block_sort.BLOCK


@triton.jit
def permute_kernel(
    x, order, y, LENGTH: tl.constexpr, KEPT: tl.constexpr, CAST: tl.constexpr, BLOCK: tl.constexpr
):
    """y[row, i] = x[row, order[row, i]] for i < KEPT, or order[row, i] itself if CAST."""
    TILES: tl.constexpr = (KEPT + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // TILES).to(tl.int64)
    position = (tl.program_id(0) % TILES) * BLOCK + tl.arange(0, BLOCK)
    inside = position < KEPT
    value = tl.load(order + row * LENGTH + position, inside, other=0)
    if not CAST:
        value = tl.load(x + row * LENGTH + value, inside, other=0)
    tl.store(y + row * KEPT + position, value.to(y.dtype.element_ty), inside)


def add_permutation(
    builder: PlanBuilder,
    rows: int,
    length: int,
    order: BufferArg,
    y: BufferArg,
    *,
    x: BufferArg | None = None,
    kept: int | None = None,
) -> None:
    """Append y = x permuted along its rows by `order`, cut to `kept` elements; without x, y =
    order."""
    kept = length if kept is None else kept
    raw = raw_dtype(y.dtype)
    builder.launch(
        permute_kernel,
        (cdiv(kept, 1024) * rows,),
        {
            "x": BufferArg(x.index, raw) if x else order,
            "order": order,
            "y": BufferArg(y.index, raw),
        },
        {"LENGTH": length, "KEPT": kept, "CAST": x is None, "BLOCK": 1024},
    )


def plan_sort(spec: Sort, target: Target) -> Plan:
    """operands, each [rows, length] -> the sorted operands."""
    count, rows, length = len(spec.operands), spec.rows, spec.length
    builder = PlanBuilder(count, count)
    if 0 in (rows, length):
        return builder.build()
    inputs = [BufferArg(i, dtype) for i, dtype in enumerate(spec.operands)]
    outputs = [BufferArg(count + i, dtype) for i, dtype in enumerate(spec.operands)]
    keys = list(zip(inputs, spec.operands, strict=True))[: spec.num_keys]
    before: BufferArg | None = None
    # The last key first: each later sort is stable, so it keeps the order of the earlier ones. The
    # first key's sort puts its own operand in order.
    for key in reversed(keys):
        values = outputs[0] if key is keys[0] else None
        order = None if count == 1 else builder.workspace(rows * length, "i32")
        if spec.in_one_program:
            add_block_sort(builder, rows, length, key, before=before, values=values, order=order)
        else:
            add_radix_sort(builder, target, rows, length, key, order, before=before, values=values)
        before = order
    for x, y in zip(inputs[1:], outputs[1:], strict=True):
        assert before is not None  # with several operands every sort writes its permutation
        add_permutation(builder, rows, length, before, y, x=x)
    return builder.build()
