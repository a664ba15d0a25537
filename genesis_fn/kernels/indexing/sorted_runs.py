"""Updates combined by the row they go to, in an order that depends on the indices alone.

Updates are entries of a list, sorted by row and, of one row, by their number: a run is the entries
of one row. Each program walks a chunk of the list. A run inside of a chunk is combined in the order
of its updates and written once; of a run that crosses chunks each leaves a piece, and the pieces
are a list of the same kind, at most two of a chunk, which the next launch walks. So no run, however
long, is the work of one program, and no sum depends on which program comes first.
"""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.language.language import cast, up
from genesis_fn.kernels.plan import BufferArg
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv, next_power_of_two
from genesis_fn.kernels.rows.scan import combine

PIECES_CHUNK = 32  # pieces that a program walks: an even number, both pieces of sixteen chunks
LEAST_CHUNK, LARGEST_CHUNK = 8, 64  # updates that a program walks
WALKED = 1 << 20  # elements that are walked at once, of which a GPU wants about so many

NOTHING = tl.constexpr(-2)  # the key of no row: what lies behind the end, a piece that is not there


@triton.jit
def merge(a, b, OPERATION: tl.constexpr):
    """a OPERATION b, where b comes later."""
    if OPERATION == "set":
        return b
    else:
        return combine(a, b, OPERATION)


@triton.jit
def key_at(entries, position, COUNT: tl.constexpr, PIECES: tl.constexpr):
    """(the row that an entry goes to, the number of its update); NOTHING outside of the list."""
    exists = (position >= 0) & (position < COUNT)
    if PIECES:
        return tl.load(entries + position, exists, other=NOTHING), position
    else:
        entry = tl.load(entries + position, exists, other=0)
        key = tl.where(exists, (entry >> 32).to(tl.int32), NOTHING)
        return key, (entry & 0xFFFFFFFF).to(tl.int32)


@triton.jit
def update_of(
    source,
    key,
    begins,
    updates,
    out,
    column,
    inside,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OPERATION: tl.constexpr,
    KEEP: tl.constexpr,
    CARRIED: tl.constexpr,
    ACC: tl.constexpr,
):
    """Update number `source`; where a run begins and the result is kept, merged with that."""
    wanted = (key >= 0) & (key < ROWS) & inside
    if CARRIED:
        # The only element of the update is in the place of its number.
        TYPE: tl.constexpr = updates.dtype.element_ty
        if TYPE.primitive_bitwidth == 32:
            row = source.to(TYPE, bitcast=True)
        elif TYPE.primitive_bitwidth == 16:
            row = source.to(tl.int16).to(TYPE, bitcast=True)
        else:
            row = source.to(tl.int8).to(TYPE, bitcast=True)
    else:
        row = tl.load(updates + source.to(tl.int64) * COLUMNS + column, wanted, other=0)
    row = up(row).to(ACC)
    if KEEP:
        at = out + key.to(tl.int64) * COLUMNS + column
        there = up(tl.load(at, wanted & begins, other=0)).to(ACC)
        row = tl.where(begins, merge(there, row, OPERATION), row)
    return row


@triton.jit
def write_row(out, key, value, mask, column, COLUMNS: tl.constexpr):
    """out[key] = value where `mask`."""
    at = out + key.to(tl.int64) * COLUMNS + column
    tl.store(at, cast(value, out.dtype.element_ty), mask)


@triton.jit
def advanced(
    run,
    value,
    whole,
    left,
    key,
    row,
    begins,
    pieces,
    out,
    place,
    column,
    inside,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OPERATION: tl.constexpr,
):
    """The state of a walk one entry later. A run that ends before that entry is written."""
    ends = (key != run) & (key != NOTHING)
    written = ends & (run >= 0) & (run < ROWS)
    write_row(out, run, value, written & whole & inside, column, COLUMNS)
    broken = written & (whole == 0)
    tl.store(pieces + place.to(tl.int64) * COLUMNS + column, value, broken & inside)
    joined = tl.where(key == NOTHING, value, merge(value, row, OPERATION))
    value = tl.where(ends, row, joined)
    left = tl.where(broken, run, left)
    whole = tl.where(ends, begins, whole)
    return tl.where(key == NOTHING, run, key), value, whole, left


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
    PIECES: tl.constexpr,
    CARRIED: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNK_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
):
    """Runs that lie in a chunk into `out`; what a chunk has of the others into `pieces`."""
    # `entries` are `row << 32 | number of the update`, ascending, or with PIECES the rows alone, of
    # the pieces that another launch left: `updates` has them in the same order. A chunk leaves at
    # most two: of a run that began before it, and, in the odd place, of one that begins in it.
    ACC: tl.constexpr = pieces.dtype.element_ty
    chunk = (tl.program_id(0) * CHUNK_BLOCK + tl.arange(0, CHUNK_BLOCK))[:, None]
    column = (tl.program_id(1) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK))[None, :]
    inside = column < COLUMNS
    first = chunk * CHUNK
    place = 2 * chunk
    run = tl.full((CHUNK_BLOCK, 1), NOTHING, tl.int32)
    left = run
    whole = run != run
    value = tl.zeros((CHUNK_BLOCK, COLUMN_BLOCK), ACC)
    # Of a list of updates a run begins where the row changes. (Of pieces this is not looked at.)
    before, _ = key_at(entries, first - 1, COUNT, PIECES)
    for start in range(0, CHUNK, 4):
        # Everything is read before anything is written, behind which no read would be moved.
        at = first + start
        k0, s0 = key_at(entries, at, COUNT, PIECES)
        k1, s1 = key_at(entries, at + 1, COUNT, PIECES)
        k2, s2 = key_at(entries, at + 2, COUNT, PIECES)
        k3, s3 = key_at(entries, at + 3, COUNT, PIECES)
        if PIECES:
            b0 = k0 != k0
            b1 = k1 == k1
            b2 = b0
            b3 = b1
        else:
            b0 = k0 != before
            b1 = k1 != k0
            b2 = k2 != k1
            b3 = k3 != k2
            before = k3
        r0 = update_of(
            s0, k0, b0, updates, out, column, inside, ROWS, COLUMNS, OPERATION, KEEP, CARRIED, ACC
        )
        r1 = update_of(
            s1, k1, b1, updates, out, column, inside, ROWS, COLUMNS, OPERATION, KEEP, CARRIED, ACC
        )
        r2 = update_of(
            s2, k2, b2, updates, out, column, inside, ROWS, COLUMNS, OPERATION, KEEP, CARRIED, ACC
        )
        r3 = update_of(
            s3, k3, b3, updates, out, column, inside, ROWS, COLUMNS, OPERATION, KEEP, CARRIED, ACC
        )
        run, value, whole, left = advanced(
            run, value, whole, left, k0, r0, b0,
            pieces, out, place, column, inside, ROWS, COLUMNS, OPERATION,
        )  # fmt: skip
        run, value, whole, left = advanced(
            run, value, whole, left, k1, r1, b1,
            pieces, out, place, column, inside, ROWS, COLUMNS, OPERATION,
        )  # fmt: skip
        run, value, whole, left = advanced(
            run, value, whole, left, k2, r2, b2,
            pieces, out, place, column, inside, ROWS, COLUMNS, OPERATION,
        )  # fmt: skip
        run, value, whole, left = advanced(
            run, value, whole, left, k3, r3, b3,
            pieces, out, place, column, inside, ROWS, COLUMNS, OPERATION,
        )  # fmt: skip
    after, _ = key_at(entries, first + CHUNK, COUNT, PIECES)
    goes_on = after == run
    written = (run >= 0) & (run < ROWS)
    write_row(out, run, value, written & whole & (goes_on == 0) & inside, column, COLUMNS)
    broken = written & (whole == 0)
    begun = written & whole & goes_on
    mine = place + tl.where(begun, 1, 0)
    tl.store(
        pieces + mine.to(tl.int64) * COLUMNS + column, value, (broken | begun) & inside
    )
    if tl.program_id(1) == 0:  # programs for other columns of the chunk have the same keys
        tl.store(piece_keys + place, tl.where(broken, run, left), first < COUNT)
        tl.store(piece_keys + place + 1, tl.where(begun, run, NOTHING), first < COUNT)


def _tile(columns: int, itemsize: int) -> tuple[int, int, int]:
    """(chunks, columns, warps) of a program: a warp reads a row, or as many narrow rows as it has
    room for, up to 16 bytes a thread."""
    wide = 128 if itemsize >= 4 else 256
    column_block = min(next_power_of_two(columns), 4 * wide)
    chunks = max(1, 64 // column_block)
    return chunks, column_block, max(1, column_block // wide)


def add_sorted_runs(
    builder: PlanBuilder,
    shape: tuple[int, int, int],
    entries: BufferArg,
    updates: BufferArg,
    out: BufferArg,
    accumulator: str,
    *,
    operation: str,
    keep: bool,
    carried: bool,
) -> None:
    """Append out[row] = operation over the updates of each row that has some, in `accumulator`.

    `shape` is (rows, columns, updates). `entries` are `row << 32 | number of the update`,
    ascending; rows outside of the result are passed over. With `keep` each result is merged with
    what `out` holds. With `carried` the number of an update is its bits, of its only column.
    """
    rows, columns, count = shape
    # The longest walks that leave the GPU enough of them.
    chunk = LARGEST_CHUNK
    while chunk > LEAST_CHUNK and count * columns < WALKED * chunk:
        chunk //= 2
    of_pieces = False
    while True:
        chunks = cdiv(count, chunk)
        chunk_block, column_block, warps = _tile(columns, ITEMSIZE[updates.dtype])
        pieces = builder.workspace(2 * chunks * columns, accumulator)
        piece_keys = builder.workspace(2 * chunks, "i32")
        builder.launch(
            walk_runs_kernel,
            (cdiv(chunks, chunk_block), cdiv(columns, column_block)),
            {
                "entries": entries,
                "updates": updates,
                "out": out,
                "pieces": pieces,
                "piece_keys": piece_keys,
            },
            {
                "ROWS": rows,
                "COLUMNS": columns,
                "COUNT": count,
                "OPERATION": operation,
                "KEEP": keep and not of_pieces,
                "PIECES": of_pieces,
                "CARRIED": carried and not of_pieces,
                "CHUNK": chunk,
                "CHUNK_BLOCK": chunk_block,
                "COLUMN_BLOCK": column_block,
            },
            num_warps=warps,
        )
        if chunks == 1:
            return
        entries, updates, count, chunk, of_pieces = (
            piece_keys, pieces, 2 * chunks, PIECES_CHUNK, True,
        )  # fmt: skip
