"""Long rows radix-sorted from the low digit up.

Merrill & Grimshaw 2011, "High performance and scalable radix sorting": each pass counts digits by
tile, scans the counts, and moves each element to the position given by the scan and by its rank
among the tile's equal digits. Keys move as they are: digits are taken of their ordered form.
"""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.plan import BufferArg, Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv, raw_dtype
from genesis_fn.kernels.rows.scan import Scan, add_scan
from genesis_fn.kernels.sort.sort_keys import key_constants, ordered

RADIX_BLOCK = 1024  # the tile of a radix pass, of one warp, which needs no barrier
DIGIT_BITS = 8  # of a pass at most
LEAST_DIGIT_BITS = 5  # a counter for each lane of a warp


def _ranks_text(rows: int, bits: int) -> str:
    """PTX that ranks `rows` x 32 digits of so many bits: the first operands become how many equal
    to each of the others come before it.

    Counters are in shared memory. A vote for each bit tells each lane which lanes have its digit;
    the first of these advances the counter.
    """
    lines = [
        f".shared .align 4 .b32 digits[{1 << bits}];",
        ".reg .b32 table, lane, under, peers, vote, place, base, zero;",
        ".reg .pred one, leads;",
        "mov.u32 under, %lanemask_lt;",
        "mov.u32 zero, 0;",
        "mov.u32 lane, %laneid;",
        "mov.u32 table, digits;",
        "mad.lo.u32 lane, lane, 4, table;",
        *(f"st.shared.u32 [lane + {128 * i}], zero;" for i in range(1 << bits - 5)),
        "bar.warp.sync 0xffffffff;",
    ]
    for i in range(rows):
        lines.append("mov.u32 peers, 0xffffffff;")
        for bit in range(bits):
            lines += [
                f"and.b32 vote, ${rows + i}, {1 << bit};",
                "setp.ne.u32 one, vote, 0;",
                "vote.sync.ballot.b32 vote, one, 0xffffffff;",
                "@!one not.b32 vote, vote;",
                "and.b32 peers, peers, vote;",
            ]
        lines += [
            f"mad.lo.u32 place, ${rows + i}, 4, table;",
            "ld.shared.u32 base, [place];",
            "and.b32 lane, peers, under;",
            "setp.eq.u32 leads, lane, 0;",
            "popc.b32 lane, lane;",
            f"add.u32 ${i}, base, lane;",
            "popc.b32 peers, peers;",
            "add.u32 base, base, peers;",
            "bar.warp.sync 0xffffffff;",
            "@leads st.shared.u32 [place], base;",
            "bar.warp.sync 0xffffffff;",
        ]
    return "{\n" + "\n".join(lines) + "\n}"


def _places_text(rows: int) -> str:
    lines = ["mov.u32 $0, %laneid;", *(f"add.u32 ${i}, $0, {32 * i};" for i in range(1, rows))]
    return "\n".join(lines)


def _operands_text(rows: int) -> str:
    # Early outputs: they must not share registers with inputs that are still to be read.
    return ",".join(["=&r"] * rows + ["r"] * rows)


# By rows of a tile and bits of a digit.
RANKS_16_5 = tl.constexpr(_ranks_text(16, 5))
RANKS_16_6 = tl.constexpr(_ranks_text(16, 6))
RANKS_16_7 = tl.constexpr(_ranks_text(16, 7))
RANKS_16_8 = tl.constexpr(_ranks_text(16, 8))
RANKS_32_5 = tl.constexpr(_ranks_text(32, 5))
RANKS_32_6 = tl.constexpr(_ranks_text(32, 6))
RANKS_32_7 = tl.constexpr(_ranks_text(32, 7))
RANKS_32_8 = tl.constexpr(_ranks_text(32, 8))
PLACES_16 = tl.constexpr(_places_text(16))
OPERANDS_16 = tl.constexpr(_operands_text(16))
PLACES_32 = tl.constexpr(_places_text(32))
OPERANDS_32 = tl.constexpr(_operands_text(32))


@triton.jit
def digit_of(
    bits,
    shift,
    KIND: tl.constexpr,
    INF: tl.constexpr,
    DESCENDING: tl.constexpr,
    DIGITS: tl.constexpr,
):
    """The digit, from bit `shift` on, of the unsigned integers that order as raw `bits` do."""
    if KIND != "plain":
        TOP: tl.constexpr = -(1 << (bits.dtype.primitive_bitwidth - 1))
        bits = (ordered(bits, KIND, INF, DESCENDING) ^ TOP).to(bits.dtype)
    if bits.dtype.primitive_bitwidth < 32:
        bits = bits.to(tl.int32)
    return ((bits >> shift) & (DIGITS - 1)).to(tl.int32)


@triton.jit
def lane_places(lane, BLOCK: tl.constexpr):
    """The position of each element of a tile that one warp holds: coalesced, a lane has every
    32nd."""
    if BLOCK == 512:
        return tl.inline_asm_elementwise(PLACES_16, OPERANDS_16, [lane], tl.int32, True, 16)
    else:
        return tl.inline_asm_elementwise(PLACES_32, OPERANDS_32, [lane], tl.int32, True, 32)


@triton.jit
def ranks_in_warp(digit, BLOCK: tl.constexpr, DIGITS: tl.constexpr):
    """The number of earlier elements of a tile in the order of `lane_places` that have the same
    digit: the rank that makes the sort stable."""
    if BLOCK == 512:
        if DIGITS == 32:
            return tl.inline_asm_elementwise(RANKS_16_5, OPERANDS_16, [digit], tl.int32, False, 16)
        elif DIGITS == 64:
            return tl.inline_asm_elementwise(RANKS_16_6, OPERANDS_16, [digit], tl.int32, False, 16)
        elif DIGITS == 128:
            return tl.inline_asm_elementwise(RANKS_16_7, OPERANDS_16, [digit], tl.int32, False, 16)
        else:
            tl.static_assert(DIGITS == 256)
            return tl.inline_asm_elementwise(RANKS_16_8, OPERANDS_16, [digit], tl.int32, False, 16)
    else:
        tl.static_assert(BLOCK == 1024, "a warp's votes rank 16 or 32 x 32 digits")
        if DIGITS == 32:
            return tl.inline_asm_elementwise(RANKS_32_5, OPERANDS_32, [digit], tl.int32, False, 32)
        elif DIGITS == 64:
            return tl.inline_asm_elementwise(RANKS_32_6, OPERANDS_32, [digit], tl.int32, False, 32)
        elif DIGITS == 128:
            return tl.inline_asm_elementwise(RANKS_32_7, OPERANDS_32, [digit], tl.int32, False, 32)
        else:
            tl.static_assert(DIGITS == 256)
            return tl.inline_asm_elementwise(RANKS_32_8, OPERANDS_32, [digit], tl.int32, False, 32)


@triton.jit
def radix_start_kernel(keys, order, out, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    """out = the keys in the order `order`."""
    TILES: tl.constexpr = (LENGTH + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // TILES).to(tl.int64)
    position = (tl.program_id(0) % TILES) * BLOCK + tl.arange(0, BLOCK)
    inside = position < LENGTH
    source = tl.load(order + row * LENGTH + position, inside, other=0)
    tl.store(out + row * LENGTH + position, tl.load(keys + row * LENGTH + source, inside), inside)


@triton.jit
def radix_count_kernel(
    keys,
    counts,
    shift,
    LENGTH: tl.constexpr,
    TILES: tl.constexpr,
    DIGITS: tl.constexpr,
    KIND: tl.constexpr,
    INF: tl.constexpr,
    DESCENDING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """counts[row, tile, digit] = how many keys of the tile have the digit at bit `shift`."""
    tile = tl.program_id(0) % TILES
    row = (tl.program_id(0) // TILES).to(tl.int64)
    position = tile * BLOCK + tl.arange(0, BLOCK)
    inside = position < LENGTH
    bits = tl.load(keys + row * LENGTH + position, inside, other=0)
    digit = digit_of(bits, shift, KIND, INF, DESCENDING, DIGITS)
    count = tl.histogram(digit, DIGITS, mask=inside)
    tl.store(counts + (row * TILES + tile) * DIGITS + tl.arange(0, DIGITS), count)


@triton.jit
def radix_move_kernel(
    keys,
    order,
    counts,
    sums,
    keys_out,
    order_out,
    shift,
    LENGTH: tl.constexpr,
    TILES: tl.constexpr,
    DIGITS: tl.constexpr,
    KIND: tl.constexpr,
    INF: tl.constexpr,
    DESCENDING: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    MOVES_ORDER: tl.constexpr,
    MOVES_KEYS: tl.constexpr,
    VOTES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One pass of a radix sort: moves a tile's elements to their positions in the row."""
    # `sums` is `counts` running over the tiles of a row.
    tile = tl.program_id(0) % TILES
    row = (tl.program_id(0) // TILES).to(tl.int64)
    first = row * LENGTH + tile * BLOCK
    length = LENGTH - tile * BLOCK
    value = tl.arange(0, DIGITS)
    # Where the tile's elements of each digit go: in their row, less where they are in the tile.
    cell = (row * TILES + tile) * DIGITS + value
    count = tl.load(counts + cell)
    whole = tl.load(sums + (row * TILES + TILES - 1) * DIGITS + value)
    begin = tl.load(sums + cell) - count + (tl.cumsum(whole, 0) - whole)
    lane = tl.arange(0, BLOCK)
    # Lanes past the end have the largest digit and position: they come last and are not stored.
    if VOTES:
        source = lane_places(lane, BLOCK)
        bits = tl.load(keys + first + source, source < length, other=0)
        digit = digit_of(bits, shift, KIND, INF, DESCENDING, DIGITS)
        digit = tl.where(source < length, digit, DIGITS - 1)
        rank = ranks_in_warp(digit, BLOCK, DIGITS)
    else:
        bits = tl.load(keys + first + lane, lane < length, other=0)
        digit = digit_of(bits, shift, KIND, INF, DESCENDING, DIGITS)
        digit = tl.where(lane < length, digit, DIGITS - 1)
        packed = tl.sort((digit << 16) | lane)
        source = packed & 0xFFFF
        digit = packed >> 16
        rank = lane
        begin -= tl.cumsum(count, 0) - count
        if MOVES_KEYS:
            bits = tl.load(keys + first + source, source < length, other=0)
    inside = source < length
    target = row * LENGTH + tl.gather(begin, digit, 0) + rank
    if MOVES_ORDER:
        moved = tile * BLOCK + source
        if HAS_ORDER:
            moved = tl.load(order + first + source, inside, other=0)
        tl.store(order_out + target, moved.to(order_out.dtype.element_ty), inside)
    if MOVES_KEYS:
        tl.store(keys_out + target, bits, inside)


def add_radix_sort(
    builder: PlanBuilder,
    target: Target,
    rows: int,
    length: int,
    key: tuple[BufferArg, str],
    order: BufferArg | None,
    *,
    values: BufferArg | None = None,
    descending: bool = False,
    before: BufferArg | None = None,
    bits: tuple[int, int] | None = None,
) -> None:
    """Append the stable sort of keys taken in the order `before`: the permutation goes to `order`
    (i32 or i64), the keys to `values`, either of which may be left out.

    With `bits`, a number of the first bit and one behind the last, the keys are non-negative
    integers and only these bits of them are looked at.
    """
    keys, dtype = key
    raw = raw_dtype(dtype)
    first, end = bits or (0, 8 * ITEMSIZE[dtype])
    passes = cdiv(end - first, DIGIT_BITS)
    # As wide as the passes need: narrower digits take fewer votes, and a smaller table of counts.
    width = max(cdiv(end - first, passes), LEAST_DIGIT_BITS)
    total, digits = rows * length, 1 << width
    keys = BufferArg(keys.index, raw, keys.offset)
    kind = key_constants(dtype) if bits is None else {"KIND": "plain", "INF": 0}
    if before is not None:
        started = builder.workspace(total, raw)
        builder.launch(
            radix_start_kernel,
            (cdiv(length, 1024) * rows,),
            {"keys": keys, "order": before, "out": started},
            {"LENGTH": length, "BLOCK": 1024},
        )
        keys = started
    # The registers of 1024 keys of 64 bits would leave room for few warps.
    block = RADIX_BLOCK // 2 if ITEMSIZE[dtype] == 8 else RADIX_BLOCK
    tiles = cdiv(length, block)
    counts = builder.workspace(rows * digits * tiles, "i32")
    sums = builder.workspace(rows * digits * tiles, "i32")
    # The keys of a pass are written to one of two buffers in turn; the first pass reads the operand
    # and the last one writes the results.
    spares = min(2, passes - 1)
    spare_keys = [builder.workspace(total, raw) for _ in range(spares)]
    spare_order = [builder.workspace(total, "i32") for _ in range(spares if order else 0)]
    constants = {
        "LENGTH": length,
        "TILES": tiles,
        "DIGITS": digits,
        **kind,
        "DESCENDING": descending,
        "BLOCK": block,
    }
    for i in range(passes):
        last = i == passes - 1
        # At run time: one compiled kernel serves all passes.
        shift = Scalar(first + i * width)
        builder.launch(
            radix_count_kernel,
            (tiles * rows,),
            {"keys": keys, "counts": counts, "shift": shift},
            constants,
            num_warps=1,
        )
        add_scan(builder, target, Scan(rows, tiles, digits, "i32"), counts, sums)
        keys_out = (values and BufferArg(values.index, raw)) if last else spare_keys[i % 2]
        order_out = order if last or not order else spare_order[i % 2]
        builder.launch(
            radix_move_kernel,
            (tiles * rows,),
            {
                "keys": keys,
                "order": before or keys,
                "counts": counts,
                "sums": sums,
                "keys_out": keys_out or keys,
                "order_out": order_out or keys,
                "shift": shift,
            },
            constants
            | {
                "HAS_ORDER": before is not None,
                "MOVES_ORDER": order is not None,
                "MOVES_KEYS": keys_out is not None,
                # Triton's interpreter has no votes: it sorts the tile.
                "VOTES": not target.interpreted,
            },
            num_warps=1,
        )
        keys, before = keys_out or keys, order_out
