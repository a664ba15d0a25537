"""Sorting of any length: stable, by one or several keys, with payloads; argsort and top_k.

A sort computes a permutation and gathers every operand through it. Keys become signed integers that
order as JAX orders values: NaNs equal and last, -0 equal to 0. Short rows are sorted inside one
program, by integers that hold a key's bits above its position. Long rows are radix-sorted from the
low digit up (Merrill & Grimshaw 2011, "High performance and scalable radix sorting"): each pass
counts digits by tile, scans the counts, and moves each tile, first sorted by digit on chip, to its
places.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

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

BLOCK = 2048  # the longest row that one program sorts, and the tile of a radix pass
DIGIT_BITS = 8
INFINITY = {
    "fp64": 0x7FF0000000000000,
    "fp32": 0x7F800000,
    "bf16": 0x7F80,
    "fp16": 0x7C00,
    "fp8e5": 0x7C,
    "fp8e4nv": 0x7E,  # no infinity: the largest finite number
}


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
def radix_start_kernel(
    keys,
    order,
    out,
    LENGTH: tl.constexpr,
    KIND: tl.constexpr,
    INF: tl.constexpr,
    DESCENDING: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = the ordered keys, with the sign bit flipped so that digits compare as unsigned."""
    TILES: tl.constexpr = (LENGTH + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // TILES).to(tl.int64)
    place = (tl.program_id(0) % TILES) * BLOCK + tl.arange(0, BLOCK)
    inside = place < LENGTH
    source = place
    if HAS_ORDER:
        source = tl.load(order + row * LENGTH + place, inside, other=0)
    bits = tl.load(keys + row * LENGTH + source, inside, other=0)
    TOP: tl.constexpr = -(1 << (bits.dtype.primitive_bitwidth - 1))
    key = ordered(bits, KIND, INF, DESCENDING) ^ TOP
    tl.store(out + row * LENGTH + place, key.to(bits.dtype), inside)


@triton.jit
def digit_of(bits, shift, DIGITS: tl.constexpr):
    """The digit of each key that starts at bit `shift`, as int32."""
    if bits.dtype.primitive_bitwidth < 32:
        bits = bits.to(tl.int32)
    return ((bits >> shift) & (DIGITS - 1)).to(tl.int32)


@triton.jit
def radix_count_kernel(
    keys,
    counts,
    starts,
    shift,
    LENGTH: tl.constexpr,
    TILES: tl.constexpr,
    DIGITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tile = tl.program_id(0) % TILES
    row = (tl.program_id(0) // TILES).to(tl.int64)
    place = tile * BLOCK + tl.arange(0, BLOCK)
    inside = place < LENGTH
    bits = tl.load(keys + row * LENGTH + place, inside, other=0)
    digit = digit_of(bits, shift, DIGITS)
    count = tl.histogram(digit, DIGITS, mask=inside)
    value = tl.arange(0, DIGITS)
    tl.store(counts + (row * DIGITS + value) * TILES + tile, count)
    tl.store(starts + (row * TILES + tile) * DIGITS + value, tl.cumsum(count, 0) - count)


@triton.jit
def radix_move_kernel(
    keys,
    order,
    counts,
    sums,
    starts,
    keys_out,
    order_out,
    shift,
    LENGTH: tl.constexpr,
    TILES: tl.constexpr,
    DIGITS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    LAST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tile = tl.program_id(0) % TILES
    row = (tl.program_id(0) // TILES).to(tl.int64)
    first = tile * BLOCK
    lane = tl.arange(0, BLOCK)
    inside = first + lane < LENGTH
    keys += row * LENGTH + first
    bits = tl.load(keys + lane, inside, other=0)
    digit = tl.where(inside, digit_of(bits, shift, DIGITS), DIGITS - 1)
    # Lanes past the end have the largest digit and position: they come last and are not stored.
    packed = tl.sort((digit << 16) | lane)
    position = packed & 0xFFFF
    digit = packed >> 16
    cell = (row * DIGITS + digit) * TILES + tile
    before = tl.load(sums + cell) - tl.load(counts + cell)
    within = lane - tl.load(starts + (row * TILES + tile) * DIGITS + digit)
    target = row * LENGTH + before + within
    moved = first + position
    if HAS_ORDER:
        moved = tl.load(order + row * LENGTH + moved, inside, other=0)
    tl.store(order_out + target, moved.to(order_out.dtype.element_ty), inside)
    if not LAST:
        tl.store(keys_out + target, tl.load(keys + position, inside, other=0), inside)


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
            num_warps=max(1, min(8, row_block * column_block // 128)),
        )
        before = target


def add_radix_sort(
    builder: PlanBuilder,
    rows: int,
    length: int,
    key: tuple[Buf, str],
    order: Buf,
    *,
    descending: bool = False,
    before: Buf | None = None,
    bits: int | None = None,
) -> None:
    """Append order (i32) = the permutation that stably sorts keys taken in the order `before`.

    With `bits`, the keys are non-negative and only their low `bits` bits are looked at.
    """
    keys, dtype = key
    raw = raw_dtype(dtype)
    total = rows * length
    if bits is None:
        bits = 8 * ITEMSIZE[dtype]
        started = builder.workspace(total, raw)
        builder.launch(
            radix_start_kernel,
            (cdiv(length, 1024) * rows,),
            {"keys": Buf(keys.index, raw), "order": before or keys, "out": started},
            {
                "LENGTH": length,
                **_kind(dtype),
                "DESCENDING": descending,
                "HAS_ORDER": before is not None,
                "BLOCK": 1024,
            },
        )
        keys = started
    passes = cdiv(bits, DIGIT_BITS)
    tiles, digits = cdiv(length, BLOCK), 1 << DIGIT_BITS
    counts = builder.workspace(rows * digits * tiles, "i32")
    sums = builder.workspace(rows * digits * tiles, "i32")
    starts = builder.workspace(rows * digits * tiles, "i32")
    spare_keys = [builder.workspace(total, raw) for _ in range(min(2, passes - 1))]
    spare_order = [builder.workspace(total, "i32") for _ in range(min(2, passes - 1))]
    for i in range(passes):
        last = i == passes - 1
        # At run time: one compiled kernel serves all passes.
        shift = Scalar(i * DIGIT_BITS)
        constants = {
            "LENGTH": length,
            "TILES": tiles,
            "DIGITS": digits,
            "BLOCK": BLOCK,
        }
        builder.launch(
            radix_count_kernel,
            (tiles * rows,),
            {"keys": Buf(keys.index, raw), "counts": counts, "starts": starts, "shift": shift},
            constants,
            num_warps=4,
        )
        add_scan(builder, Scan(rows, digits * tiles, 1, "i32"), counts, sums)
        keys_out = keys if last else spare_keys[i % 2]
        order_out = order if last else spare_order[i % 2]
        builder.launch(
            radix_move_kernel,
            (tiles * rows,),
            {
                "keys": Buf(keys.index, raw),
                "order": before or keys,
                "counts": counts,
                "sums": sums,
                "starts": starts,
                "keys_out": keys_out,
                "order_out": order_out,
                "shift": shift,
            },
            constants | {"HAS_ORDER": before is not None, "LAST": last},
            num_warps=8,
        )
        keys, before = keys_out, order_out


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


def plan_sort(spec: Sort) -> Plan:
    """operands, each [rows, length] -> the sorted operands[, indices]."""
    count = len(spec.operands)
    builder = PlanBuilder(count, count + (spec.indices is not None))
    if 0 in (spec.rows, spec.length):
        return builder.build()
    inputs = [Buf(i, dtype) for i, dtype in enumerate(spec.operands)]
    outputs = [Buf(count + i, dtype) for i, dtype in enumerate(spec.operands)]
    indices = Buf(2 * count, spec.indices) if spec.indices else None
    keys = list(zip(inputs, spec.operands, strict=True))[: spec.num_keys]
    alone = count == 1 and spec.length <= BLOCK
    order: Buf | None = None
    if alone:
        add_block_sort(
            builder,
            spec.rows,
            spec.length,
            keys[0],
            descending=spec.descending,
            values=outputs[0],
            order=indices,
        )
        return builder.build()
    # The last key first: each later sort is stable, so it keeps the order of the earlier ones.
    for key in reversed(keys):
        before, order = order, builder.workspace(spec.rows * spec.length, "i32")
        options = {"descending": spec.descending, "before": before}
        if spec.length <= BLOCK:
            add_block_sort(builder, spec.rows, spec.length, key, order=order, **options)
        else:
            add_radix_sort(builder, spec.rows, spec.length, key, order, **options)
    assert order is not None
    for x, y in zip(inputs, outputs, strict=True):
        add_permutation(builder, spec.rows, spec.length, order, y, x=x)
    if indices:
        add_permutation(builder, spec.rows, spec.length, order, indices)
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
        return builder.build()
    order = out if indices == "i32" else builder.workspace(rows * length, "i32")
    add_radix_sort(builder, rows, length, key, order, descending=descending)
    if order is not out:
        add_permutation(builder, rows, length, order, out)
    return builder.build()


def plan_top_k(spec: TopK) -> Plan:
    """x [rows, length] -> values, indices, both [rows, k]: the largest of each row.

    Tiles of a long row keep their own k largest until one tile is left; k above half a tile takes a
    full sort.
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
        remaining = kept_length(length, spec.k)
        best = builder.workspace(spec.rows * remaining, raw_dtype(spec.dtype))
        places = builder.workspace(spec.rows * remaining, "i32")
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
