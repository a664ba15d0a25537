"""Updates of which only one counts, found by atomics on integers, in which no order is better than
another: nothing is sorted, and every run gives the same.

Of those that set a row the last one wins: the largest number of an update that names the row. An
extreme of floats is that of integers in the same order, the bits of a float with those of a
negative one turned; NaN is beyond all.
"""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from genesis_fn.kernels.indexing.sorted_runs import nearest_row, row_of
from genesis_fn.kernels.language.language import cast, up
from genesis_fn.kernels.plan import BufferArg
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv, next_power_of_two

_BLOCK = 1024
EXTREMES = {"bf16": "i32", "fp16": "i32", "fp32": "i32", "fp64": "i64"}
"""The floats of which extremes are taken so, and the integers that they are taken of."""


@triton.jit
def winners_kernel(
    index,
    winners,
    error,
    ROWS: tl.constexpr,
    COUNT: tl.constexpr,
    CLIP: tl.constexpr,
    SITE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """winners[row] = 1 + the number of the last update that names the row, at least what it was."""
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = position < COUNT
    i = tl.load(index + position, exists, other=-1)
    row = row_of(i, exists, error, ROWS, CLIP, SITE)
    wanted = exists & (row >= 0) & (row < ROWS)
    tl.atomic_max(winners + row, position + 1, wanted, sem="relaxed")


@triton.jit
def set_winners_kernel(
    index,
    updates,
    winners,
    out,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COUNT: tl.constexpr,
    CLIP: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
):
    """out[row] = the update that has won the row."""
    position = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)[:, None]
    column = tl.program_id(1) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK)[None, :]
    exists = position < COUNT
    row = nearest_row(tl.load(index + position, exists, other=-1), ROWS, CLIP)
    known = exists & (row >= 0) & (row < ROWS)
    wins = known & (tl.load(winners + row, known, other=0) == position + 1)
    mask = wins & (column < COLUMNS)
    value = tl.load(updates + position.to(tl.int64) * COLUMNS + column, mask, other=0)
    tl.store(out + row.to(tl.int64) * COLUMNS + column, value, mask)


@triton.jit
def ordered_key(x, LARGEST: tl.constexpr):
    """The integer of a float in the order of floats, beyond all others in the direction of the
    extreme for NaN."""
    if x.dtype == tl.float64:
        bits = x.to(tl.int64, bitcast=True)
        key = bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)
        beyond = 0x7FFFFFFFFFFFFFFF if LARGEST else -0x8000000000000000
    else:
        bits = x.to(tl.int32, bitcast=True)
        key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        beyond = 0x7FFFFFFF if LARGEST else -0x80000000
    return tl.where(x == x, key, tl.full((), beyond, key.dtype))


@triton.jit
def float_of_key(key):
    """The float that `ordered_key` has made an integer of."""
    if key.dtype == tl.int64:
        value = (key ^ ((key >> 63) & 0x7FFFFFFFFFFFFFFF)).to(tl.float64, bitcast=True)
    else:
        value = (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return value


@triton.jit
def keys_kernel(x, keys, SIZE: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    """The integers of an array of floats."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(keys + at, ordered_key(up(tl.load(x + at, at < SIZE)), LARGEST), at < SIZE)


@triton.jit
def extreme_keys_kernel(
    index,
    updates,
    keys,
    error,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COUNT: tl.constexpr,
    CLIP: tl.constexpr,
    SITE: tl.constexpr,
    LARGEST: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
):
    """The largest, or smallest, integers of the updates of each row and of what `keys` were."""
    position = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    column = tl.program_id(1) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK)[None, :]
    exists = position < COUNT
    i = tl.load(index + position, exists, other=-1)
    row = row_of(i, exists, error, ROWS, CLIP, SITE)
    mask = (exists & (row >= 0) & (row < ROWS))[:, None] & (column < COLUMNS)
    source = updates + position[:, None].to(tl.int64) * COLUMNS + column
    key = ordered_key(up(tl.load(source, mask, other=0)), LARGEST)
    at = keys + row[:, None].to(tl.int64) * COLUMNS + column
    if LARGEST:
        tl.atomic_max(at, key, mask, sem="relaxed")
    else:
        tl.atomic_min(at, key, mask, sem="relaxed")


@triton.jit
def floats_kernel(keys, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """The floats of an array of integers."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = float_of_key(tl.load(keys + at, at < SIZE, other=0))
    tl.store(out + at, cast(value, out.dtype.element_ty), at < SIZE)


def _tile(count: int, columns: int) -> tuple[int, int]:
    """(updates, columns) of a program."""
    column_block = min(next_power_of_two(columns), 1024)
    return max(1, min(next_power_of_two(count), 2048 // column_block)), column_block


def add_winners(
    builder: PlanBuilder,
    rows: int,
    columns: int,
    count: int,
    clip: bool,
    site: int,
    arguments: Mapping[str, BufferArg],
) -> None:
    """Append the setting of rows of `out`, which holds its base, by `index` and `updates`; indices
    out of range raise the `error` word if `site` > 0."""
    winners = builder.workspace(rows, "i32")
    builder.clear(winners)
    index, updates, out = arguments["index"], arguments["updates"], arguments["out"]
    constants = {"ROWS": rows, "COUNT": count, "CLIP": clip}
    builder.launch(
        winners_kernel,
        (cdiv(count, _BLOCK),),
        {"index": index, "winners": winners, "error": arguments["error"]},
        {**constants, "SITE": site, "BLOCK": _BLOCK},
    )
    row_block, column_block = _tile(count, columns)
    builder.launch(
        set_winners_kernel,
        (cdiv(count, row_block), cdiv(columns, column_block)),
        {"index": index, "updates": updates, "winners": winners, "out": out},
        {**constants, "COLUMNS": columns, "ROW_BLOCK": row_block, "COLUMN_BLOCK": column_block},
        num_warps=max(1, min(8, row_block * column_block // 256)),
    )


def add_extremes(
    builder: PlanBuilder,
    rows: int,
    columns: int,
    count: int,
    clip: bool,
    site: int,
    operation: str,
    base: BufferArg | None,
    arguments: Mapping[str, BufferArg],
) -> None:
    """Append the extremes ("min" or "max") of `updates` and of the floats of `base`, None for
    zeros, into `out`; indices out of range raise the `error` word if `site` > 0."""
    out, size, largest = arguments["out"], rows * columns, operation == "max"
    keys = builder.workspace(size, EXTREMES[out.dtype])
    grid = (cdiv(size, _BLOCK),)
    if base is None:  # zeros are their own integers
        builder.clear(keys)
    else:
        held = {"x": base, "keys": keys}
        builder.launch(keys_kernel, grid, held, {"SIZE": size, "LARGEST": largest, "BLOCK": _BLOCK})
    row_block, column_block = _tile(count, columns)
    builder.launch(
        extreme_keys_kernel,
        (cdiv(count, row_block), cdiv(columns, column_block)),
        {
            "index": arguments["index"],
            "updates": arguments["updates"],
            "keys": keys,
            "error": arguments["error"],
        },
        {
            "ROWS": rows,
            "COLUMNS": columns,
            "COUNT": count,
            "CLIP": clip,
            "SITE": site,
            "LARGEST": largest,
            "ROW_BLOCK": row_block,
            "COLUMN_BLOCK": column_block,
        },
        num_warps=max(1, min(8, row_block * column_block // 256)),
    )
    builder.launch(floats_kernel, grid, {"keys": keys, "out": out}, {"SIZE": size, "BLOCK": _BLOCK})
