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
def read_entry(
    entries,
    position,
    before,
    updates,
    out,
    column,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COUNT: tl.constexpr,
    OPERATION: tl.constexpr,
    KEEP: tl.constexpr,
    PIECES: tl.constexpr,
    CARRIED: tl.constexpr,
    ACC: tl.constexpr,
):
    """(row that it goes to, value, whether a run begins with it): the entry behind one of the row
    `before`. Where a run begins and the result is kept, the value is merged with that."""
    key, source = key_at(entries, position, COUNT, PIECES)
    # Of the two pieces of a chunk the second began in it.
    begins = position % 2 == 1 if PIECES else key != before
    wanted = (key >= 0) & (key < ROWS) & (column < COLUMNS)
    if CARRIED:
        # The only element of the update is in the slot of its number.
        TYPE: tl.constexpr = updates.dtype.element_ty
        if TYPE.primitive_bitwidth == 32:
            value = source.to(TYPE, bitcast=True)
        elif TYPE.primitive_bitwidth == 16:
            value = source.to(tl.int16).to(TYPE, bitcast=True)
        else:
            value = source.to(tl.int8).to(TYPE, bitcast=True)
    else:
        value = tl.load(updates + source.to(tl.int64) * COLUMNS + column, wanted, other=0)
    value = up(value).to(ACC)
    if OPERATION == "add" and not PIECES:
        value += tl.zeros_like(value)  # 0 + -0 is 0, as where the sum began with a zero in memory
    if KEEP:
        at = out + key.to(tl.int64) * COLUMNS + column
        there = up(tl.load(at, wanted & begins, other=0)).to(ACC)
        value = tl.where(begins, merge(there, value, OPERATION), value)
    return key, value, begins


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
    slot,
    column,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OPERATION: tl.constexpr,
):
    """The state of a walk one entry later: the row of its run, the value, whether it has all of the
    run so far, and the run that began before the chunk. A run that ends here is written."""
    inside = column < COLUMNS
    ends = (key != run) & (key != NOTHING)
    written = ends & (run >= 0) & (run < ROWS)
    write_row(out, run, value, written & whole & inside, column, COLUMNS)
    broken = written & (whole == 0)
    tl.store(pieces + slot.to(tl.int64) * COLUMNS + column, value, broken & inside)
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
    # most two: of a run that began before it, and, in the odd slot, of one that begins in it.
    ACC: tl.constexpr = pieces.dtype.element_ty
    chunk = tl.program_id(0) * CHUNK_BLOCK + tl.arange(0, CHUNK_BLOCK)[:, None]
    column = tl.program_id(1) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK)[None, :]
    inside = column < COLUMNS
    first = chunk * CHUNK
    slot = 2 * chunk
    run = tl.full((CHUNK_BLOCK, 1), NOTHING, tl.int32)
    left = run
    whole = run != run
    value = tl.zeros((CHUNK_BLOCK, COLUMN_BLOCK), ACC)
    # Of a list of updates a run begins where the row changes.
    key, _ = key_at(entries, first - 1, COUNT, PIECES)
    for start in range(0, CHUNK, 8):
        # Eight are read before anything is written, behind which no read would be moved.
        at = first + start
        k0, v0, b0 = read_entry(
            entries, at, key, updates, out, column,
            ROWS, COLUMNS, COUNT, OPERATION, KEEP, PIECES, CARRIED, ACC,
        )  # fmt: skip
        k1, v1, b1 = read_entry(
            entries, at + 1, k0, updates, out, column,
            ROWS, COLUMNS, COUNT, OPERATION, KEEP, PIECES, CARRIED, ACC,
        )  # fmt: skip
        k2, v2, b2 = read_entry(
            entries, at + 2, k1, updates, out, column,
            ROWS, COLUMNS, COUNT, OPERATION, KEEP, PIECES, CARRIED, ACC,
        )  # fmt: skip
        k3, v3, b3 = read_entry(
            entries, at + 3, k2, updates, out, column,
            ROWS, COLUMNS, COUNT, OPERATION, KEEP, PIECES, CARRIED, ACC,
        )  # fmt: skip
        k4, v4, b4 = read_entry(
            entries, at + 4, k3, updates, out, column,
            ROWS, COLUMNS, COUNT, OPERATION, KEEP, PIECES, CARRIED, ACC,
        )  # fmt: skip
        k5, v5, b5 = read_entry(
            entries, at + 5, k4, updates, out, column,
            ROWS, COLUMNS, COUNT, OPERATION, KEEP, PIECES, CARRIED, ACC,
        )  # fmt: skip
        k6, v6, b6 = read_entry(
            entries, at + 6, k5, updates, out, column,
            ROWS, COLUMNS, COUNT, OPERATION, KEEP, PIECES, CARRIED, ACC,
        )  # fmt: skip
        k7, v7, b7 = read_entry(
            entries, at + 7, k6, updates, out, column,
            ROWS, COLUMNS, COUNT, OPERATION, KEEP, PIECES, CARRIED, ACC,
        )  # fmt: skip
        key = k7
        run, value, whole, left = advanced(
            run, value, whole, left, k0, v0, b0,
            pieces, out, slot, column, ROWS, COLUMNS, OPERATION,
        )  # fmt: skip
        run, value, whole, left = advanced(
            run, value, whole, left, k1, v1, b1,
            pieces, out, slot, column, ROWS, COLUMNS, OPERATION,
        )  # fmt: skip
        run, value, whole, left = advanced(
            run, value, whole, left, k2, v2, b2,
            pieces, out, slot, column, ROWS, COLUMNS, OPERATION,
        )  # fmt: skip
        run, value, whole, left = advanced(
            run, value, whole, left, k3, v3, b3,
            pieces, out, slot, column, ROWS, COLUMNS, OPERATION,
        )  # fmt: skip
        run, value, whole, left = advanced(
            run, value, whole, left, k4, v4, b4,
            pieces, out, slot, column, ROWS, COLUMNS, OPERATION,
        )  # fmt: skip
        run, value, whole, left = advanced(
            run, value, whole, left, k5, v5, b5,
            pieces, out, slot, column, ROWS, COLUMNS, OPERATION,
        )  # fmt: skip
        run, value, whole, left = advanced(
            run, value, whole, left, k6, v6, b6,
            pieces, out, slot, column, ROWS, COLUMNS, OPERATION,
        )  # fmt: skip
        run, value, whole, left = advanced(
            run, value, whole, left, k7, v7, b7,
            pieces, out, slot, column, ROWS, COLUMNS, OPERATION,
        )  # fmt: skip
    after, _ = key_at(entries, first + CHUNK, COUNT, PIECES)
    goes_on = after == run
    written = (run >= 0) & (run < ROWS)
    write_row(out, run, value, written & whole & (goes_on == 0) & inside, column, COLUMNS)
    broken = written & (whole == 0)
    begun = written & whole & goes_on
    mine = slot + tl.where(begun, 1, 0)
    tl.store(pieces + mine.to(tl.int64) * COLUMNS + column, value, (broken | begun) & inside)
    if tl.program_id(1) == 0:  # programs for other columns of the chunk have the same keys
        tl.store(piece_keys + slot, tl.where(broken, run, left), first < COUNT)
        tl.store(piece_keys + slot + 1, tl.where(begun, run, NOTHING), first < COUNT)


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
