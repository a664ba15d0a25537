"""Updates combined by the row they go to, in an order that depends on the indices alone.

Updates are entries of a list, sorted by row and, of one row, by their number: a run is the entries
of one row. Each program walks a chunk of the list. A run inside of a chunk is combined in the order
of its updates and written once; of a run that crosses chunks each leaves a piece, and the pieces
are a list of the same kind, at most two of a chunk, which the next launch walks. So no run, however
long, is the work of one program, and no sum depends on which program comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from genesis_fn.kernels.indexing.computed_updates import ComputedUpdates, kernel_of
from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.language.error_word import flag_error
from genesis_fn.kernels.language.language import cast, up
from genesis_fn.kernels.plan import BufferArg
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv, next_power_of_two
from genesis_fn.kernels.rows.scan import combine

POINTERS = ("entries", "updates", "out", "pieces", "piece_keys")
CONSTANTS = (
    "ROWS", "COLUMNS", "COUNT", "OPERATION", "KEEP", "LIST", "CLIP", "CHUNK", "CHUNK_BLOCK",
    "COLUMN_BLOCK",
)  # fmt: skip
"""The parameters of `walk_runs`, in order."""

PIECES_CHUNK = 32  # pieces that a program walks: an even number, both pieces of sixteen chunks
LEAST_CHUNK, LARGEST_CHUNK = 8, 64  # updates that a program walks
WALKED = 1 << 20  # elements that are walked at once, of which a GPU wants about so many

# The key of no row: of what lies behind the end, goes nowhere, or is a piece that is not there.
NOTHING = tl.constexpr(-1)


@triton.jit
def merge(a, b, OPERATION: tl.constexpr):
    """a OPERATION b, where b comes later."""
    if OPERATION == "set":
        return b
    else:
        return combine(a, b, OPERATION)


@triton.jit
def nearest_row(index, ROWS: tl.constexpr, CLIP: tl.constexpr):
    """The row that each index names; -1 or ROWS for those that go nowhere, below or above."""
    index = index.to(tl.int64)  # narrow indices have no room for ROWS
    least: tl.constexpr = 0 if CLIP else -1
    most: tl.constexpr = ROWS - 1 if CLIP else ROWS
    return tl.minimum(tl.maximum(index, least), most).to(tl.int32)


@triton.jit
def in_range(index, valid, error, ROWS: tl.constexpr, SITE: tl.constexpr):
    """Whether each index is in range; reports those that are not to the error word."""
    good = (index >= 0) & (index < ROWS)
    flag_error(error, valid & (good == 0), index, SITE)
    return good


@triton.jit
def row_of(index, inside, error, ROWS: tl.constexpr, CLIP: tl.constexpr, SITE: tl.constexpr):
    """`nearest_row`; reports indices that are out of range to the error word."""
    in_range(index.to(tl.int64), inside, error, ROWS, SITE)
    return nearest_row(index, ROWS, CLIP)


@triton.jit
def key_at(
    entries, position, ROWS: tl.constexpr, COUNT: tl.constexpr, LIST: tl.constexpr,
    CLIP: tl.constexpr,
):  # fmt: skip
    """(the row that an entry goes to or NOTHING, the number of its update)."""
    exists = (position >= 0) & (position < COUNT)
    if LIST == "pieces":
        return tl.load(entries + position, exists, other=NOTHING), position
    else:
        if LIST == "rows":
            key, number = tl.load(entries + position, exists, other=0), position
            key = nearest_row(key, ROWS, CLIP)
        else:
            tl.static_assert(LIST == "entries")
            entry = tl.load(entries + position, exists, other=0)
            key, number = (entry >> 32).to(tl.int32), (entry & 0xFFFFFFFF).to(tl.int32)
        # One comparison: as unsigned, -1 is the largest of all.
        known = exists & (key.to(tl.uint32, bitcast=True) < ROWS)
        return tl.where(known, key, NOTHING), number


@triton.jit
def stored_update(source, column, wanted, operands, COLUMNS: tl.constexpr):
    """The elements of updates that are in memory, the only operand."""
    (updates,) = operands
    # What does not vary by entry comes first: it is computed once.
    at = updates + column + source.to(tl.int64) * COLUMNS
    return tl.load(at, wanted & (column < COLUMNS), other=0)


@triton.jit
def carried_update(source, column, wanted, operands, COLUMNS: tl.constexpr):
    """The only element of an update, whose bits are in the slot of its number."""
    source = source.to(tl.int32)
    TYPE: tl.constexpr = operands[0].dtype.element_ty
    if TYPE.primitive_bitwidth == 32:
        value = source.to(TYPE, bitcast=True)
    elif TYPE.primitive_bitwidth == 16:
        value = source.to(tl.int16).to(TYPE, bitcast=True)
    else:
        value = source.to(tl.int8).to(TYPE, bitcast=True)
    return tl.where(wanted, value, tl.zeros_like(value))


@triton.jit
def read_entry(
    key,
    source,
    before,
    operands,
    out,
    column,
    COLUMNS: tl.constexpr,
    OPERATION: tl.constexpr,
    KEEP: tl.constexpr,
    ACC: tl.constexpr,
    UPDATE: tl.constexpr,
):
    """The value of an entry behind one of the row `before`. Where a run begins and the result is
    kept, it is merged with that."""
    value = up(UPDATE(source, column, key >= 0, operands, COLUMNS)).to(ACC)
    if KEEP:
        begins = (key >= 0) & (key != before)
        at = out + column + key.to(tl.int64) * COLUMNS
        there = up(tl.load(at, begins & (column < COLUMNS), other=0)).to(ACC)
        value = tl.where(begins, merge(there, value, OPERATION), value)
    return value


@triton.jit
def advanced(
    run,
    value,
    whole,
    key,
    row,
    out,
    piece,
    column,
    COLUMNS: tl.constexpr,
    OPERATION: tl.constexpr,
    FROM_ZERO: tl.constexpr,
    FIRST: tl.constexpr,
    start,
):
    """The state of a walk one entry later: the row of its run, the value, and whether it has all of
    the run so far. A run that ends here is written: to `out`, or to `piece` what is left of one
    that began before the chunk. The FIRST entry of the chunk, at `start` 0, ends none."""
    ends = (key != run) & (key >= 0)
    written = ends & (run >= 0) & (column < COLUMNS)
    at = out + column + run.to(tl.int64) * COLUMNS
    tl.store(at, cast(value, out.dtype.element_ty), written & whole)
    tl.store(piece, value, written & (whole == 0))
    if FROM_ZERO:
        # What is not there was read as 0. And 0 + -0 is 0, as where the sum began in memory.
        value = tl.where(ends, 0, value) + row
    else:
        joined = tl.where(key >= 0, merge(value, row, OPERATION), value)
        begins = ends
        if FIRST:
            begins = ends | (tl.zeros_like(key) + start == 0)
        value = tl.where(begins, row, joined)
    return tl.where(key >= 0, key, run), value, whole | ends


@triton.jit
def walk_runs(
    entries,
    operands,
    out,
    pieces,
    piece_keys,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COUNT: tl.constexpr,
    OPERATION: tl.constexpr,
    KEEP: tl.constexpr,
    LIST: tl.constexpr,
    CLIP: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNK_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    UPDATE: tl.constexpr,
):
    """Runs that lie in a chunk into `out`; what a chunk has of the others into `pieces`.

    UPDATE(numbers [n, 1], columns [1, m], which are wanted [n, 1], operands, COLUMNS) are elements
    of updates, 0 where they are not wanted.
    """
    # `entries` are, as LIST says, "entries" `row << 32 | number of the update`, ascending, or
    # "rows" alone, of updates in the same order, or those of "pieces" that another launch left. A
    # chunk leaves at most two: of a run that began before it, and, in the odd slot, of one that
    # begins in it.
    ACC: tl.constexpr = pieces.dtype.element_ty
    FROM_ZERO: tl.constexpr = OPERATION == "add" and not KEEP
    chunk = tl.program_id(0) * CHUNK_BLOCK + tl.arange(0, CHUNK_BLOCK)[:, None]
    column = tl.arange(0, COLUMN_BLOCK)[None, :]
    if COLUMNS > COLUMN_BLOCK:
        column = tl.program_id(1) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK)[None, :]
    first = chunk * CHUNK
    piece = pieces + column + (2 * chunk).to(tl.int64) * COLUMNS
    key, _ = key_at(entries, first - 1, ROWS, COUNT, LIST, CLIP)
    k0, s0 = key_at(entries, first, ROWS, COUNT, LIST, CLIP)
    k1, s1 = key_at(entries, first + 1, ROWS, COUNT, LIST, CLIP)
    k2, s2 = key_at(entries, first + 2, ROWS, COUNT, LIST, CLIP)
    k3, s3 = key_at(entries, first + 3, ROWS, COUNT, LIST, CLIP)
    # Only the first run of a chunk may have begun before it: if the entry ahead has its row, or if
    # a list of pieces has one in an even slot there, as no piece is the first of its chunk but one
    # that goes on from the chunk before.
    first_run = k0
    run = k0
    begun_here = k0 < 0 if LIST == "pieces" else k0 != key
    whole = begun_here
    value = tl.zeros((CHUNK_BLOCK, COLUMN_BLOCK), ACC)
    for start in range(0, CHUNK, 4):
        # Four are read before anything is written, behind which no read would be moved, and so are
        # the entries of the next four: an update waits for its own, which says where it is.
        v0 = read_entry(k0, s0, key, operands, out, column, COLUMNS, OPERATION, KEEP, ACC, UPDATE)
        v1 = read_entry(k1, s1, k0, operands, out, column, COLUMNS, OPERATION, KEEP, ACC, UPDATE)
        v2 = read_entry(k2, s2, k1, operands, out, column, COLUMNS, OPERATION, KEEP, ACC, UPDATE)
        v3 = read_entry(k3, s3, k2, operands, out, column, COLUMNS, OPERATION, KEEP, ACC, UPDATE)
        after = first + start + 4
        n0, t0 = key_at(entries, after, ROWS, COUNT, LIST, CLIP)
        n1, t1 = key_at(entries, after + 1, ROWS, COUNT, LIST, CLIP)
        n2, t2 = key_at(entries, after + 2, ROWS, COUNT, LIST, CLIP)
        n3, t3 = key_at(entries, after + 3, ROWS, COUNT, LIST, CLIP)
        key = k3
        run, value, whole = advanced(
            run, value, whole, k0, v0,
            out, piece, column, COLUMNS, OPERATION, FROM_ZERO, True, start,
        )  # fmt: skip
        run, value, whole = advanced(
            run, value, whole, k1, v1,
            out, piece, column, COLUMNS, OPERATION, FROM_ZERO, False, start,
        )  # fmt: skip
        run, value, whole = advanced(
            run, value, whole, k2, v2,
            out, piece, column, COLUMNS, OPERATION, FROM_ZERO, False, start,
        )  # fmt: skip
        run, value, whole = advanced(
            run, value, whole, k3, v3,
            out, piece, column, COLUMNS, OPERATION, FROM_ZERO, False, start,
        )  # fmt: skip
        k0, s0 = n0, t0
        k1, s1 = n1, t1
        k2, s2 = n2, t2
        k3, s3 = n3, t3
    # What is ahead now is the first entry behind the chunk.
    goes_on = k0 == run
    written = (run >= 0) & (column < COLUMNS)
    at = out + column + run.to(tl.int64) * COLUMNS
    tl.store(at, cast(value, out.dtype.element_ty), written & whole & (goes_on == 0))
    begun = (run >= 0) & whole & goes_on
    left = written & ((whole == 0) | begun)
    tl.store(piece + tl.where(begun, COLUMNS, 0), value, left)
    if tl.program_id(1) == 0:  # programs for other columns of the chunk have the same keys
        keys = piece_keys + 2 * chunk
        tl.store(keys, tl.where(begun_here, NOTHING, first_run), first < COUNT)
        tl.store(keys + 1, tl.where(begun, run, NOTHING), first < COUNT)


@triton.jit
def walk_runs_kernel(
    entries,
    updates,
    out,
    pieces,
    piece_keys,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COUNT: tl.constexpr,
    OPERATION: tl.constexpr,
    KEEP: tl.constexpr,
    LIST: tl.constexpr,
    CLIP: tl.constexpr,
    CARRIED: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNK_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
):
    """`walk_runs` of updates in memory, or with CARRIED in the slots of their numbers."""
    if CARRIED:
        walk_runs(
            entries, (updates,), out, pieces, piece_keys, ROWS, COLUMNS, COUNT, OPERATION, KEEP,
            LIST, CLIP, CHUNK, CHUNK_BLOCK, COLUMN_BLOCK, carried_update,
        )  # fmt: skip
    else:
        walk_runs(
            entries, (updates,), out, pieces, piece_keys, ROWS, COLUMNS, COUNT, OPERATION, KEEP,
            LIST, CLIP, CHUNK, CHUNK_BLOCK, COLUMN_BLOCK, stored_update,
        )  # fmt: skip


def _tile(columns: int, itemsize: int) -> tuple[int, int, int]:
    """(chunks, columns, warps) of a program: a warp reads a row, or as many narrow rows as it has
    room for, up to 16 bytes a thread. Of 64 floats it walks two chunks side by side: 0.363 ms for
    2^21 rows at random on an H200, where one takes 0.427."""
    wide = 128 if itemsize >= 4 else 256
    column_block = min(next_power_of_two(columns), 4 * wide)
    chunks = 2 if column_block == 64 else max(1, 64 // column_block)
    return chunks, column_block, max(1, column_block // wide)


@dataclass(frozen=True, slots=True)
class Runs:
    """out[row] = operation over the updates of each row that has some, in type `accumulator`.

    `keep`: each result is merged with what the output holds. The list is of "entries", `row << 32 |
    number of the update`, ascending, or of "rows", of updates in the same order; rows outside of
    the result are passed over, or with `clip` become the nearest. `carried`: the number of an
    update is its bits, of its only column. `updates` are computed, if given.
    """

    rows: int
    columns: int
    count: int
    accumulator: str
    operation: str
    list: str = "entries"
    keep: bool = False
    clip: bool = False
    carried: bool = False
    updates: ComputedUpdates | None = None


def add_sorted_runs(
    builder: PlanBuilder,
    runs: Runs,
    entries: BufferArg,
    updates: Mapping[str, BufferArg],
    out: BufferArg,
) -> None:
    """Append the walks over a list. `updates` are their pointers by name: "updates" of those in
    memory, else those of the lines that compute them."""
    count, kernel = runs.count, walk_runs_kernel
    constants: dict[str, Any] = {"LIST": runs.list, "KEEP": runs.keep, "CLIP": runs.clip}
    if runs.updates is not None:
        kernel = kernel_of(walk_runs, POINTERS, CONSTANTS, runs.updates)
    else:
        constants["CARRIED"] = runs.carried
    # The longest walks that leave the GPU enough of them.
    chunk = LARGEST_CHUNK
    while chunk > LEAST_CHUNK and count * runs.columns < WALKED * chunk:
        chunk //= 2
    while True:
        chunks = cdiv(count, chunk)
        # Updates that are computed of nothing in memory, as of a number, are as wide as their sums.
        widths = [ITEMSIZE[b.dtype] for b in updates.values()]
        itemsize = max(widths, default=ITEMSIZE[runs.accumulator])
        chunk_block, column_block, warps = _tile(runs.columns, itemsize)
        pieces = builder.workspace(2 * chunks * runs.columns, runs.accumulator)
        piece_keys = builder.workspace(2 * chunks, "i32")
        builder.launch(
            kernel,
            (cdiv(chunks, chunk_block), cdiv(runs.columns, column_block)),
            {"entries": entries, **updates, "out": out, "pieces": pieces, "piece_keys": piece_keys},
            {
                "ROWS": runs.rows,
                "COLUMNS": runs.columns,
                "COUNT": count,
                "OPERATION": runs.operation,
                "CHUNK": chunk,
                "CHUNK_BLOCK": chunk_block,
                "COLUMN_BLOCK": column_block,
                **constants,
            },
            num_warps=warps,
        )
        if chunks == 1:
            return
        # Only the first walk has what the updates are merged with.
        constants = {"LIST": "pieces", "KEEP": False, "CLIP": False, "CARRIED": False}
        entries, updates, kernel = piece_keys, {"updates": pieces}, walk_runs_kernel
        count, chunk = 2 * chunks, PIECES_CHUNK
