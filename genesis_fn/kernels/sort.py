"""Sorting of any length: stable, by one or several keys, with payloads; argsort and top_k.

A sort computes a permutation and gathers every operand through it. Keys become signed integers that
order as JAX orders values: NaNs equal and last, -0 equal to 0. Short rows are sorted inside one
program, by integers that hold a key's bits above its position. Long rows are radix-sorted from the
low digit up (Merrill & Grimshaw 2011, "High performance and scalable radix sorting"): each pass
counts digits by tile, scans the counts, and moves each element to the place that they and its rank
among the tile's equal digits give. Keys move as they are: digits are taken of their ordered form.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from genesis_fn.kernels.launch import Buf, Plan, Scalar
from genesis_fn.kernels.planning import (
    FLOATING,
    INT32_MAX,
    ITEMSIZE,
    UNSIGNED,
    PlanBuilder,
    cdiv,
    next_power_of_two,
    raw_dtype,
)
from genesis_fn.kernels.scan import Scan, add_scan

BLOCK = 2048  # the longest row that one program sorts
RADIX_BLOCK = 1024  # the tile of a radix pass: one warp sorts it without a barrier
DIGIT_BITS = 8
MANY_TILES = 264  # of rows of a top_k: two for each SM of an H100 or H200
INFINITY = {
    "fp64": 0x7FF0000000000000,
    "fp32": 0x7F800000,
    "bf16": 0x7F80,
    "fp16": 0x7C00,
    "fp8e5": 0x7C,
    "fp8e4nv": 0x7E,  # no infinity: the largest finite number
}


def ranks_text(ranks: str) -> str:
    """PTX that ranks 32 x 32 digits: $0.. become how many equal to each of $32.. come before it.

    Counters lie in shared memory. Lanes learn who holds their digit from one "match" instruction or
    from eight votes ("ballot"); the first of them moves the counter on.
    """
    lines = [
        ".shared .align 4 .b32 digits[256];",
        ".reg .b32 table, lane, under, peers, vote, place, base, zero;",
        ".reg .pred one, leads;",
        "mov.u32 under, %lanemask_lt;",
        "mov.u32 zero, 0;",
        "mov.u32 lane, %laneid;",
        "mov.u32 table, digits;",
        "mad.lo.u32 lane, lane, 4, table;",
        *(f"st.shared.u32 [lane + {128 * i}], zero;" for i in range(8)),
        "bar.warp.sync 0xffffffff;",
    ]
    for i in range(32):
        if ranks == "match":
            lines.append(f"match.any.sync.b32 peers, ${32 + i}, 0xffffffff;")
        else:
            lines.append("mov.u32 peers, 0xffffffff;")
            for bit in range(DIGIT_BITS):
                lines += [
                    f"and.b32 vote, ${32 + i}, {1 << bit};",
                    "setp.ne.u32 one, vote, 0;",
                    "vote.sync.ballot.b32 vote, one, 0xffffffff;",
                    "@!one not.b32 vote, vote;",
                    "and.b32 peers, peers, vote;",
                ]
        lines += [
            f"mad.lo.u32 place, ${32 + i}, 4, table;",
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


def _places_text() -> str:
    lines = ["mov.u32 $0, %laneid;", *(f"add.u32 ${i}, $0, {32 * i};" for i in range(1, 32))]
    return "\n".join(lines)


MATCH = tl.constexpr(ranks_text("match"))
BALLOT = tl.constexpr(ranks_text("ballot"))
PLACES = tl.constexpr(_places_text())
# Early outputs: they must not share registers with inputs that are still to be read.
OPERANDS = tl.constexpr(",".join(["=&r"] * 32 + ["r"] * 32))


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


@dataclass(frozen=True, slots=True)
class RadixTile:
    """How a radix pass moves a tile of `block` elements, by a program of `warps` warps.

    `ranks` "sort" puts the tile in order in registers and writes runs of equal digits; "ballot" and
    "match" count, in tiles of 1024 of one warp, by instructions that Triton's interpreter lacks.
    """

    block: int
    warps: int = 1
    ranks: str = "sort"

    def __post_init__(self) -> None:
        if self.ranks != "sort" and (self.block, self.warps) != (1024, 1):
            raise ValueError(f"lanes are counted in tiles of 1024 of one warp, not {self}")


@dataclass(frozen=True, slots=True)
class TopK:
    """The `k` largest of each row, largest first, equal values by position; NaN is the largest."""

    rows: int
    length: int
    k: int
    dtype: str
    indices: str = "i32"

    def __post_init__(self) -> None:
        if not 0 <= self.k <= self.length:
            raise ValueError(f"k = {self.k} is not between 0 and the length {self.length}")


@triton.jit
def ordered(bits, KIND: tl.constexpr, INF: tl.constexpr, DESCENDING: tl.constexpr):
    """Signed integers, as wide as the raw `bits`, that order as the values do."""
    WIDTH: tl.constexpr = bits.dtype.primitive_bitwidth
    LARGEST: tl.constexpr = (1 << (WIDTH - 1)) - 1
    key = bits
    if KIND == "float":
        magnitude = bits & LARGEST
        key = tl.where(bits < 0, -magnitude, magnitude)
        key = tl.where(magnitude > INF, LARGEST, key).to(bits.dtype)
    elif KIND == "unsigned":
        key = bits ^ (-LARGEST - 1)
    if DESCENDING:
        key = ~key
    return key


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
    place = first + lane
    source = place
    if HAS_BEFORE:
        source = tl.load(before + row * STRIDE + place, inside, other=0)
    bits = tl.load(keys + row * STRIDE + source, inside, other=0)
    key = ordered(bits, KIND, INF, DESCENDING)
    if PART == "narrow":
        packed = (key.to(tl.int32) << 16) | lane
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
def lane_places(lane):
    """The place of each element of a tile of 1024 that one warp holds, neighbours side by side."""
    return tl.inline_asm_elementwise(PLACES, OPERANDS, [lane], tl.int32, True, 32)


@triton.jit
def ranks_in_warp(digit, TEXT: tl.constexpr):
    """How many earlier elements of a tile in the order of `lane_places` have the same digit."""
    return tl.inline_asm_elementwise(TEXT, OPERANDS, [digit], tl.int32, False, 32)


@triton.jit
def radix_start_kernel(keys, order, out, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    """out = the keys in the order `order`."""
    TILES: tl.constexpr = (LENGTH + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // TILES).to(tl.int64)
    place = (tl.program_id(0) % TILES) * BLOCK + tl.arange(0, BLOCK)
    inside = place < LENGTH
    source = tl.load(order + row * LENGTH + place, inside, other=0)
    tl.store(out + row * LENGTH + place, tl.load(keys + row * LENGTH + source, inside), inside)


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
    place = tile * BLOCK + tl.arange(0, BLOCK)
    inside = place < LENGTH
    bits = tl.load(keys + row * LENGTH + place, inside, other=0)
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
    RANKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One pass of a radix sort: moves a tile's elements to their digit's place in the row."""
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
    if RANKS != "sort":
        source = lane_places(lane)
        bits = tl.load(keys + first + source, source < length, other=0)
        digit = digit_of(bits, shift, KIND, INF, DESCENDING, DIGITS)
        digit = tl.where(source < length, digit, DIGITS - 1)
        if RANKS == "match":
            rank = ranks_in_warp(digit, MATCH)
        else:
            rank = ranks_in_warp(digit, BALLOT)
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


@triton.jit
def group_maxima_kernel(
    keys,
    maxima,
    LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    KIND: tl.constexpr,
    INF: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
):
    """maxima[row, i] = the largest ordered key of the row's i-th GROUP neighbours."""
    row = tl.program_id(1).to(tl.int64)
    group = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    least: tl.constexpr = -(1 << (keys.dtype.element_ty.primitive_bitwidth - 1))
    largest = tl.zeros((ROW_BLOCK,), tl.int64)
    for start in tl.static_range(0, GROUP, COLUMN_BLOCK):
        place = group[:, None] * GROUP + (start + tl.arange(0, COLUMN_BLOCK))[None, :]
        inside = place < LENGTH
        bits = tl.load(keys + row * LENGTH + place, inside, other=0)
        key = ordered(bits, KIND, INF, False)
        found = tl.max(tl.where(inside, key, least), 1)
        largest = found if start == 0 else tl.maximum(largest, found)
    tl.store(maxima + row * GROUPS + group, largest.to(maxima.dtype.element_ty), group < GROUPS)


@triton.jit
def take_groups_kernel(
    keys,
    names,
    chosen,
    best,
    places,
    LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    COUNT: tl.constexpr,
    COUNT_PADDED: tl.constexpr,
    HAS_NAMES: tl.constexpr,
    WORST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The elements of a row's COUNT chosen groups, in their order in the row."""
    row = tl.program_id(1).to(tl.int64)
    slot = tl.arange(0, COUNT_PADDED)
    group = tl.sort(tl.load(chosen + row * COUNT + slot, slot < COUNT, other=GROUPS))
    to = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.gather(group, tl.minimum(to // GROUP, COUNT_PADDED - 1), 0) * GROUP + to % GROUP
    inside = (to < COUNT * GROUP) & (place < LENGTH)
    # What the last group lacks comes after everything in the row and orders after it.
    bits = tl.load(keys + row * LENGTH + place, inside, other=0)
    bits = tl.where(inside, bits, tl.full((BLOCK,), WORST, bits.dtype))
    if HAS_NAMES:
        place = tl.load(names + row * LENGTH + place, inside, other=0)
    tl.store(best + row * (COUNT * GROUP) + to, bits, to < COUNT * GROUP)
    tl.store(places + row * (COUNT * GROUP) + to, place, to < COUNT * GROUP)


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


def _kind(dtype: str) -> dict[str, str | int]:
    if dtype in FLOATING:
        return {"KIND": "float", "INF": INFINITY[dtype]}
    return {"KIND": "unsigned" if dtype in UNSIGNED else "signed", "INF": 0}


def kept_length(length: int, kept: int) -> int:
    """How many elements of a row of `length` remain if each of its tiles keeps `kept`."""
    tiles = max(1, cdiv(length, BLOCK))
    return (tiles - 1) * kept + min(kept, length - (tiles - 1) * BLOCK)


def add_block_sort(
    builder: PlanBuilder,
    rows: int,
    length: int,
    key: tuple[Buf, str],
    *,
    descending: bool,
    before: Buf | None = None,
    names: Buf | None = None,
    values: Buf | None = None,
    order: Buf | None = None,
    kept: int | None = None,
    warps: int | None = None,
) -> None:
    """Append the stable sort of each row's keys, taken in the order `before`, inside one program.

    `key` is a buffer and the element type that its bits stand for. Writes the sorted keys to
    `values` and the permutation, through the table `names` if given, to `order`. Rows longer than
    `BLOCK` are cut into tiles sorted each on its own; `kept` elements of each tile are written.
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
                "keys": Buf(keys.index, raw, keys.offset),
                "before": before or keys,
                "names": names or keys,
                "values": Buf(values.index, raw) if last and values else keys,
                "order": target or keys,
                "rows": Scalar(rows),
            },
            {
                "LENGTH": tile,
                "STRIDE": length,
                **_kind(dtype),
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
            num_warps=warps or max(1, min(8, row_block * column_block // 128)),
        )
        before = target


def default_tile() -> RadixTile:
    """The tile of a radix pass: counted by votes on a GPU, sorted in the interpreter."""
    interpreted = isinstance(radix_move_kernel, InterpretedFunction)
    return RadixTile(RADIX_BLOCK) if interpreted else RadixTile(1024, 1, "ballot")


def add_radix_sort(
    builder: PlanBuilder,
    rows: int,
    length: int,
    key: tuple[Buf, str],
    order: Buf | None,
    *,
    values: Buf | None = None,
    descending: bool = False,
    before: Buf | None = None,
    bits: int | None = None,
    tile: RadixTile | None = None,
) -> None:
    """Append the stable sort of keys taken in the order `before`: the permutation goes to `order`
    (i32 or i64), the keys to `values`, either of which may be left out.

    With `bits`, the keys are non-negative and only their low `bits` bits are looked at.
    """
    keys, dtype = key
    raw, tile = raw_dtype(dtype), tile or default_tile()
    total, block, digits = rows * length, tile.block, 1 << DIGIT_BITS
    keys = Buf(keys.index, raw, keys.offset)
    kind = _kind(dtype) if bits is None else {"KIND": "plain", "INF": 0}
    if before is not None:
        started = builder.workspace(total, raw)
        builder.launch(
            radix_start_kernel,
            (cdiv(length, 1024) * rows,),
            {"keys": keys, "order": before, "out": started},
            {"LENGTH": length, "BLOCK": 1024},
        )
        keys = started
    passes = cdiv(8 * ITEMSIZE[dtype] if bits is None else bits, DIGIT_BITS)
    tiles = cdiv(length, block)
    counts = builder.workspace(rows * digits * tiles, "i32")
    sums = builder.workspace(rows * digits * tiles, "i32")
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
        shift = Scalar(i * DIGIT_BITS)
        builder.launch(
            radix_count_kernel,
            (tiles * rows,),
            {"keys": keys, "counts": counts, "shift": shift},
            constants,
            num_warps=tile.warps,
        )
        add_scan(builder, Scan(rows, tiles, digits, "i32"), counts, sums)
        keys_out = (values and Buf(values.index, raw)) if last else spare_keys[i % 2]
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
                "RANKS": tile.ranks,
            },
            num_warps=tile.warps,
        )
        keys, before = keys_out or keys, order_out


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
        if length <= BLOCK:
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
    if length <= BLOCK:
        add_block_sort(builder, rows, length, key, descending=descending, order=out)
    else:
        add_radix_sort(builder, rows, length, key, out, descending=descending)
    return builder.build()


def plan_top_k(spec: TopK) -> Plan:
    """x [rows, length] -> values, indices, both [rows, k]: the largest of each row.

    Long rows shrink until one program can sort what is left. Many of them are cut into groups, of
    which the k with the largest maxima hold the k largest elements; of few, each tile keeps its own
    k largest. k above half a tile takes a full sort.
    """
    builder = PlanBuilder(1, 2)
    if 0 in (spec.rows, spec.k):
        return builder.build()
    key, values, indices = (
        (Buf(0, spec.dtype), spec.dtype),
        Buf(1, spec.dtype),
        Buf(2, spec.indices),
    )
    if spec.length > BLOCK and spec.k > BLOCK // 2:
        order = builder.workspace(spec.rows * spec.length, "i32")
        add_radix_sort(builder, spec.rows, spec.length, key, order, descending=True)
        shape = (spec.rows, spec.length, order)
        add_permutation(builder, *shape, values, x=key[0], kept=spec.k)
        add_permutation(builder, *shape, indices, kept=spec.k)
        return builder.build()
    length, names = spec.length, None
    while length > BLOCK:
        group = next_power_of_two(cdiv(length, BLOCK))
        many = spec.rows * cdiv(length, BLOCK) > MANY_TILES
        grouped = many and 2 * spec.k * group <= length
        remaining = spec.k * group if grouped else kept_length(length, spec.k)
        best = builder.workspace(spec.rows * remaining, raw_dtype(spec.dtype))
        places = builder.workspace(spec.rows * remaining, "i32")
        if grouped:
            add_best_groups(builder, spec.rows, length, key, names, group, spec.k, best, places)
        else:
            add_block_sort(
                builder,
                spec.rows,
                length,
                key,
                descending=True,
                names=names,
                values=best,
                order=places,
                kept=spec.k,
            )
        key, names, length = (best, spec.dtype), places, remaining
    add_block_sort(
        builder,
        spec.rows,
        length,
        key,
        descending=True,
        names=names,
        values=values,
        order=indices,
        kept=spec.k,
    )
    return builder.build()


def add_best_groups(
    builder: PlanBuilder,
    rows: int,
    length: int,
    key: tuple[Buf, str],
    names: Buf | None,
    group: int,
    count: int,
    best: Buf,
    places: Buf,
) -> None:
    """Append the `count` groups of `group` neighbours with the largest maxima, in their order in
    the row: their elements go to `best`, their positions, through `names` if given, to `places`."""
    keys, dtype = key
    raw, kind = raw_dtype(dtype), _kind(dtype)
    keys = Buf(keys.index, raw, keys.offset)
    groups = cdiv(length, group)
    maxima, chosen = builder.workspace(rows * groups, raw), builder.workspace(rows * count, "i32")
    column_block = min(group, 1024)
    row_block = max(1, min(next_power_of_two(groups), 2048 // column_block))
    sizes = {"LENGTH": length, "GROUP": group, "GROUPS": groups}
    builder.launch(
        group_maxima_kernel,
        (cdiv(groups, row_block), rows),
        {"keys": keys, "maxima": maxima},
        {**sizes, **kind, "ROW_BLOCK": row_block, "COLUMN_BLOCK": column_block},
        num_warps=4,
    )
    ordered_key = (maxima, raw)
    add_block_sort(builder, rows, groups, ordered_key, descending=True, order=chosen, kept=count)
    bits = 8 * ITEMSIZE[dtype]
    worst = {
        "float": kind["INF"] - (1 << (bits - 1)),
        "signed": -(1 << (bits - 1)),
        "unsigned": 0,
    }[kind["KIND"]]
    builder.launch(
        take_groups_kernel,
        (cdiv(count * group, 1024), rows),
        {"keys": keys, "names": names or chosen, "chosen": chosen, "best": best, "places": places},
        {
            **sizes,
            "COUNT": count,
            "COUNT_PADDED": max(2, next_power_of_two(count)),
            "HAS_NAMES": names is not None,
            "WORST": worst,
            "BLOCK": 1024,
        },
        num_warps=4,
    )
