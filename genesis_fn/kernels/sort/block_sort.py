"""Rows sorted inside one program, by integers that hold a key's bits above its position.

Equal keys then order by position, which makes the sort stable, and the sorted integers carry the
permutation. A 64-bit key leaves no bits for positions: it is sorted by its low half, then by its
high half, like the digits of a radix sort.
"""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.plan import BufferArg, Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv, next_power_of_two, raw_dtype
from genesis_fn.kernels.sort.sort_keys import key_constants, ordered

BLOCK = 2048  # the longest row that one program sorts


@triton.jit
def smallest(x, COUNT: tl.constexpr):
    """The COUNT (a power of two) smallest integers of each row, ascending."""
    if COUNT == 1:
        return tl.min(x, 1, keep_dims=True)
    elif COUNT == x.shape[1]:
        return tl.sort(x, dim=1)
    else:
        return ~tl.topk(~x, COUNT, dim=1)


@triton.jit
def block_sort_kernel(
    keys,
    before,
    names,
    values,
    order,
    rows,
    LENGTH: tl.constexpr,
    STRIDE: tl.constexpr,
    KIND: tl.constexpr,
    INF: tl.constexpr,
    DESCENDING: tl.constexpr,
    PART: tl.constexpr,
    HAS_BEFORE: tl.constexpr,
    HAS_NAMES: tl.constexpr,
    HAS_VALUES: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    KEPT: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    TILES: tl.constexpr,
    TOP: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
):
    """Sorts tiles of rows in registers."""
    # PART is "narrow" (8 or 16 bits, packed into 32), "word" (32 bits), or "low" / "high" (a half
    # of 64 bits). Rows of STRIDE elements are cut into TILES of LENGTH, of which KEPT come out,
    # into rows of OUT_STRIDE.
    pair = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    row = (pair // TILES).to(tl.int64)[:, None]
    first = ((pair % TILES) * LENGTH)[:, None]
    lane = tl.arange(0, COLUMN_BLOCK)[None, :]
    inside = (pair < rows * TILES)[:, None] & (lane < LENGTH) & (first + lane < STRIDE)
    column = first + lane
    source = column
    if HAS_BEFORE:
        source = tl.load(before + row * STRIDE + column, inside, other=0)
    bits = tl.load(keys + row * STRIDE + source, inside, other=0)
    key = ordered(bits, KIND, INF, DESCENDING)
    if PART == "narrow":
        packed = (key.to(tl.int32) << 16) | lane
        # Lanes past the end come last.
        packed = tl.where(inside, packed, 0x7FFFFFFF)
        position = smallest(packed, TOP) & 0xFFFF
    else:
        if PART == "low":
            # The lower half compares as unsigned: flip its top bit.
            half = (key & 0xFFFFFFFF) ^ 0x80000000
            packed = (half << 32) | lane
        elif PART == "high":
            packed = ((key >> 32) << 32) | lane
        else:
            packed = (key.to(tl.int64) << 32) | lane
        packed = tl.where(inside, packed, 0x7FFFFFFFFFFFFFFF)
        position = (smallest(packed, TOP) & 0xFFFFFFFF).to(tl.int32)
    rank = tl.arange(0, TOP)[None, :]
    valid = (pair < rows * TILES)[:, None] & (rank < KEPT) & (first + rank < STRIDE)
    target = row * OUT_STRIDE + ((pair % TILES) * KEPT)[:, None] + rank
    chosen = first + position
    if HAS_BEFORE:
        chosen = tl.load(before + row * STRIDE + chosen, valid, other=0)
    if HAS_VALUES:
        tl.store(values + target, tl.load(keys + row * STRIDE + chosen, valid, other=0), valid)
    if HAS_NAMES:
        chosen = tl.load(names + row * STRIDE + chosen, valid, other=0)
    if HAS_ORDER:
        tl.store(order + target, chosen.to(order.dtype.element_ty), valid)


def kept_length(length: int, kept: int) -> int:
    """The elements that remain of a row of `length` if each of its tiles keeps `kept`."""
    tiles = max(1, cdiv(length, BLOCK))
    return (tiles - 1) * kept + min(kept, length - (tiles - 1) * BLOCK)


def add_block_sort(
    builder: PlanBuilder,
    rows: int,
    length: int,
    key: tuple[BufferArg, str],
    *,
    descending: bool = False,
    before: BufferArg | None = None,
    names: BufferArg | None = None,
    values: BufferArg | None = None,
    order: BufferArg | None = None,
    kept: int | None = None,
) -> None:
    """Append the stable sort of each row's keys, taken in the order `before`, inside one program.

    `key` is a buffer and the element type of its bits. Writes the sorted keys to `values` and the
    permutation, through the table `names` if there is one, to `order`. Rows longer than `BLOCK` are
    cut into tiles sorted each on its own; `kept` elements of each tile are written.
    """
    keys, dtype = key
    raw = raw_dtype(dtype)
    tiles = max(1, cdiv(length, BLOCK))
    if tiles == 1:
        column_block, tile = max(2, next_power_of_two(length)), length
    else:
        column_block = tile = BLOCK
    row_block = max(1, min(next_power_of_two(rows), 1024 // column_block))
    kept = tile if kept is None else kept
    size = ITEMSIZE[dtype]
    parts = ("narrow",) if size < 4 else ("word",) if size == 4 else ("low", "high")
    for i, part in enumerate(parts):
        last = i == len(parts) - 1
        target = order if last else builder.workspace(rows * length, "i32")
        width = kept if last else tile
        builder.launch(
            block_sort_kernel,
            (cdiv(rows * tiles, row_block),),
            {
                "keys": BufferArg(keys.index, raw, keys.offset),
                "before": before or keys,
                "names": names or keys,
                "values": BufferArg(values.index, raw) if last and values else keys,
                "order": target or keys,
                "rows": Scalar(rows),
            },
            {
                "LENGTH": tile,
                "STRIDE": length,
                **key_constants(dtype),
                "DESCENDING": descending,
                "PART": part,
                "HAS_BEFORE": before is not None,
                "HAS_NAMES": last and names is not None,
                "HAS_VALUES": last and values is not None,
                "HAS_ORDER": target is not None,
                "KEPT": width,
                "OUT_STRIDE": kept_length(length, width),
                "TILES": tiles,
                "TOP": min(column_block, next_power_of_two(width)),
                "ROW_BLOCK": row_block,
                "COLUMN_BLOCK": column_block,
            },
            num_warps=max(1, min(8, row_block * column_block // 128)),
        )
        before = target
