"""Sums of few columns in any order, exact and rounded once.

Neal 2015, "Fast exact summation using small and large superaccumulators". A float is an integer
times a power of two. Each element of the result has several int64 accumulators, for a window of
exponents each, to which integers are added by atomics: no bit is lost, so that every order gives
the same sum. A sort of the indices, which fixes an order, takes longer where rows are short.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from genesis_fn.kernels.indexing.computed_updates import kernel_of
from genesis_fn.kernels.indexing.sorted_runs import nearest_row, stored_update
from genesis_fn.kernels.language.error_word import flag_error
from genesis_fn.kernels.language.language import cast, up
from genesis_fn.kernels.plan import BufferArg
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv, next_power_of_two

if TYPE_CHECKING:
    from genesis_fn.kernels.indexing.scatter import ScatterRows

POINTERS = ("index", "updates", "sums", "flags", "error")
CONSTANTS = (
    "ROWS", "COLUMNS", "COUNT", "CLIP", "SITE", "WIDTH", "ROW_BLOCK", "COLUMN_BLOCK",
)  # fmt: skip
"""The parameters of `exact_sums`, in order."""

DTYPES = ("fp32", "bf16", "fp16")
# On an H200 an element of 2^24 x 1 takes 12 ps, by a sort 75; of 2^22 x 4 16 and 26. Of 8 columns a
# sort is faster. Accumulators are cleared and read for each element of the result.
MOST_COLUMNS = 4
LEAST_UPDATES = 4  # for each row
NARROW_COUNT = 1 << 24  # updates of which accumulators of 16 exponents never overflow

POSITIVE, NEGATIVE, NAN = tl.constexpr(1), tl.constexpr(2), tl.constexpr(4)  # infinities and NaN


def sums_exactly(spec: ScatterRows) -> bool:
    """Whether a sum in a fixed order is better taken exactly."""
    return (
        spec.dtype in DTYPES
        and spec.base == "zeros"
        and 0 < spec.columns <= MOST_COLUMNS
        and spec.count >= LEAST_UPDATES * spec.rows
    )


@triton.jit
def exact_sums(
    index,
    operands,
    sums,
    flags,
    error,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COUNT: tl.constexpr,
    CLIP: tl.constexpr,
    SITE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    UPDATE: tl.constexpr,
):
    """Updates into `sums` [windows of WIDTH exponents, ROWS, COLUMNS]; infinities and NaN into the
    bits of `flags` [ROWS, COLUMNS]. UPDATE as in `walk_runs`."""
    position = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    exists = position < COUNT
    i = tl.load(index + position, exists, other=-1)
    if SITE > 0:
        at = i.to(tl.int64)
        flag_error(error, exists & ((at < 0) | (at >= ROWS)), at, SITE)
    row = nearest_row(i, ROWS, CLIP)
    wanted = (exists & (row >= 0) & (row < ROWS))[:, None]
    column = tl.arange(0, COLUMN_BLOCK)[None, :]
    source = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)[:, None]
    if COUNT * COLUMNS > 0x7FFFFFFF:
        source = source.to(tl.int64)
    value = up(UPDATE(source, column, wanted, operands, COLUMNS))
    # |value| = mantissa * 2^(exponent - 150), where subnormal numbers have the exponent 1.
    bits = value.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) & 0xFF
    mantissa = bits & 0x7FFFFF
    mantissa = tl.where(exponent == 0, mantissa, mantissa | 0x800000)
    signed = tl.where(bits < 0, -mantissa, mantissa).to(tl.int64)
    window = tl.maximum(exponent, 1)
    term = signed << (window % WIDTH).to(tl.int64)
    inside = wanted & (column < COLUMNS)
    at = row[:, None].to(tl.int64) * COLUMNS + column
    finite = exponent < 255
    address = sums + (window // WIDTH).to(tl.int64) * (ROWS * COLUMNS) + at
    tl.atomic_add(address, term, inside & finite & (mantissa != 0), sem="relaxed")
    infinite = tl.where(bits < 0, NEGATIVE, POSITIVE)
    flag = tl.where(mantissa == 0x800000, infinite, NAN)
    tl.atomic_or(flags + at, flag, inside & (finite == 0), sem="relaxed")


@triton.jit
def exact_sums_kernel(
    index,
    updates,
    sums,
    flags,
    error,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COUNT: tl.constexpr,
    CLIP: tl.constexpr,
    SITE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
):
    """`exact_sums` of updates in memory."""
    exact_sums(
        index, (updates,), sums, flags, error, ROWS, COLUMNS, COUNT, CLIP, SITE, WIDTH, ROW_BLOCK,
        COLUMN_BLOCK, stored_update,
    )  # fmt: skip


@triton.jit
def rounded_exact_kernel(
    sums, flags, out, SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """The accumulators of each element as one float."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    # In digits between -half and half the first one that is not 0 outweighs all below it, so that
    # float64 loses less than 2^-52 of the sum.
    HALF: tl.constexpr = 1 << (WIDTH - 1)
    carry = tl.zeros((BLOCK,), tl.int64)
    total = tl.zeros((BLOCK,), tl.float64)
    unit = tl.full((BLOCK,), 7.006492321624085e-46, tl.float64)  # 2^-150
    for window in range(256 // WIDTH):
        carry += tl.load(sums + window * SIZE + at, inside, other=0)
        digit = ((carry + HALF) & (2 * HALF - 1)) - HALF
        total += digit.to(tl.float64) * unit
        carry = (carry - digit) >> WIDTH
        unit = unit * (2 * HALF)
    total += carry.to(tl.float64) * unit
    value = total.to(tl.float32)
    flag = tl.load(flags + at, inside, other=0)
    value = tl.where(flag == POSITIVE, float("inf"), value)
    value = tl.where(flag == NEGATIVE, float("-inf"), value)
    value = tl.where(flag >= POSITIVE + NEGATIVE, float("nan"), value)
    tl.store(out + at, cast(value, out.dtype.element_ty), inside)


def add_exact_sums(
    builder: PlanBuilder,
    spec: ScatterRows,
    index: BufferArg,
    updates: Mapping[str, BufferArg],
    out: BufferArg,
    error: BufferArg,
) -> None:
    """Append out = the sums of the updates of each row. `updates` are their pointers by name, as of
    `add_sorted_runs`."""
    # 24 bits of a mantissa, shifted by up to 15, and added 2^24 times: 63 bits. Otherwise 24 + 7 of
    # as many as 2^30.
    width = 16 if spec.count <= NARROW_COUNT else 8
    size = spec.rows * spec.columns
    sums = builder.workspace(256 // width * size, "i64")
    flags = builder.workspace(size, "i32")
    builder.clear(sums)
    builder.clear(flags)
    kernel = exact_sums_kernel
    if spec.updates is not None:
        kernel = kernel_of(exact_sums, POINTERS, CONSTANTS, spec.updates)
    column_block = next_power_of_two(spec.columns)
    row_block = max(1, min(next_power_of_two(spec.count), 1024 // column_block))
    builder.launch(
        kernel,
        (cdiv(spec.count, row_block),),
        {"index": index, **updates, "sums": sums, "flags": flags, "error": error},
        {
            "ROWS": spec.rows,
            "COLUMNS": spec.columns,
            "COUNT": spec.count,
            "CLIP": spec.mode == "clip",
            "SITE": spec.site,
            "WIDTH": width,
            "ROW_BLOCK": row_block,
            "COLUMN_BLOCK": column_block,
        },
        num_warps=max(1, min(4, row_block * column_block // 256)),
    )
    builder.launch(
        rounded_exact_kernel,
        (cdiv(size, 512),),
        {"sums": sums, "flags": flags, "out": out},
        {"SIZE": size, "WIDTH": width, "BLOCK": 512},
    )
