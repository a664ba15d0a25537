"""Sorting of any length: stable, by one or several keys, with payloads; argsort.

A sort computes a permutation and gathers every operand through it. Short rows are sorted inside one
program, long ones by a radix sort.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.kernels import block_sort
from genesis_fn.kernels.block_sort import add_block_sort
from genesis_fn.kernels.launch import Buf, Plan
from genesis_fn.kernels.planning import INT32_MAX, PlanBuilder, cdiv, raw_dtype
from genesis_fn.kernels.radix_sort import RadixTile, add_radix_sort


@dataclass(frozen=True, slots=True)
class Sort:
    """A stable sort of the rows of `operands` (element types) by the first `num_keys` of them.

    Rows compare by the first key, ties by the next, and so on. `descending` reverses the order of
    values but keeps the order of equals. With `indices` ("i32" or "i64") the permutation is the
    last output.
    """

    rows: int
    length: int
    operands: tuple[str, ...]
    num_keys: int = 1
    descending: bool = False
    indices: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.num_keys <= len(self.operands):
            raise ValueError(f"{len(self.operands)} operands cannot have {self.num_keys} keys")
        if self.length > INT32_MAX:
            raise ValueError(f"a sort along {self.length} elements is longer than 2^31 - 1")


@triton.jit
def permute_kernel(
    x, order, y, LENGTH: tl.constexpr, KEPT: tl.constexpr, CAST: tl.constexpr, BLOCK: tl.constexpr
):
    """y[row, i] = x[row, order[row, i]] for i < KEPT, or order[row, i] itself if CAST."""
    TILES: tl.constexpr = (KEPT + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // TILES).to(tl.int64)
    place = (tl.program_id(0) % TILES) * BLOCK + tl.arange(0, BLOCK)
    inside = place < KEPT
    value = tl.load(order + row * LENGTH + place, inside, other=0)
    if not CAST:
        value = tl.load(x + row * LENGTH + value, inside, other=0)
    tl.store(y + row * KEPT + place, value.to(y.dtype.element_ty), inside)


def add_permutation(
    builder: PlanBuilder,
    rows: int,
    length: int,
    order: Buf,
    y: Buf,
    *,
    x: Buf | None = None,
    kept: int | None = None,
) -> None:
    """Append y = x permuted along its rows by `order`, cut to `kept`; without x, y = order."""
    kept = length if kept is None else kept
    raw = raw_dtype(y.dtype)
    builder.launch(
        permute_kernel,
        (cdiv(kept, 1024) * rows,),
        {"x": Buf(x.index, raw) if x else order, "order": order, "y": Buf(y.index, raw)},
        {"LENGTH": length, "KEPT": kept, "CAST": x is None, "BLOCK": 1024},
    )


def plan_sort(spec: Sort, tile: RadixTile | None = None, warps: int | None = None) -> Plan:
    """operands, each [rows, length] -> the sorted operands[, indices].

    `tile` is the one of long rows' passes, `warps` the size of a program that sorts short rows.
    """
    count = len(spec.operands)
    builder = PlanBuilder(count, count + (spec.indices is not None))
    if 0 in (spec.rows, spec.length):
        return builder.build()
    inputs = [Buf(i, dtype) for i, dtype in enumerate(spec.operands)]
    outputs = [Buf(count + i, dtype) for i, dtype in enumerate(spec.operands)]
    indices = Buf(2 * count, spec.indices) if spec.indices else None
    keys = list(zip(inputs, spec.operands, strict=True))[: spec.num_keys]
    rows, length = spec.rows, spec.length
    before: Buf | None = None
    # The last key first: each later sort is stable, so it keeps the order of the earlier ones. The
    # first key's sort puts its own operand in order.
    for key in reversed(keys):
        last = key is keys[0]
        order = builder.workspace(rows * length, "i32")
        if last and count == 1:
            order = indices
        options = {
            "descending": spec.descending,
            "before": before,
            "values": outputs[0] if last else None,
        }
        if length <= block_sort.BLOCK:
            add_block_sort(builder, rows, length, key, order=order, warps=warps, **options)
        else:
            add_radix_sort(builder, rows, length, key, order, tile=tile, **options)
        before = order
    for x, y in zip(inputs[1:], outputs[1:], strict=True):
        add_permutation(builder, rows, length, before, y, x=x)
    if indices and count > 1:
        add_permutation(builder, rows, length, before, indices)
    return builder.build()


def plan_argsort(
    rows: int, length: int, dtype: str, *, descending: bool = False, indices: str = "i32"
) -> Plan:
    """x [rows, length] -> indices [rows, length]: the stable order of each row's values."""
    builder = PlanBuilder(1, 1)
    if 0 in (rows, length):
        return builder.build()
    key, out = (Buf(0, dtype), dtype), Buf(1, indices)
    if length <= block_sort.BLOCK:
        add_block_sort(builder, rows, length, key, descending=descending, order=out)
    else:
        add_radix_sort(builder, rows, length, key, out, descending=descending)
    return builder.build()
