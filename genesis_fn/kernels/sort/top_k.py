"""The largest elements of each row, without sorting all of it."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv, next_power_of_two, raw_dtype
from genesis_fn.kernels.sort import block_sort
from genesis_fn.kernels.sort.block_sort import add_block_sort, kept_length
from genesis_fn.kernels.sort.radix_sort import add_radix_sort
from genesis_fn.kernels.sort.sort import add_permutation
from genesis_fn.kernels.sort.sort_keys import key_constants, ordered

MANY_TILES = 2  # of rows of a top_k, for each multiprocessor


@dataclass(frozen=True, slots=True)
class TopK:
    """The `k` largest of each row, largest first, equal values by position; NaN is the largest."""

    rows: int
    length: int
    k: int
    dtype: str

    def __post_init__(self) -> None:
        if not 0 <= self.k <= self.length:
            raise ValueError(f"k = {self.k} is not between 0 and the length {self.length}")


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
        position = group[:, None] * GROUP + (start + tl.arange(0, COLUMN_BLOCK))[None, :]
        inside = position < LENGTH
        bits = tl.load(keys + row * LENGTH + position, inside, other=0)
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
    positions,
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
    # In the order of the row, so that equal elements keep the order of their positions.
    group = tl.sort(tl.load(chosen + row * COUNT + slot, slot < COUNT, other=GROUPS))
    to = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    position = tl.gather(group, tl.minimum(to // GROUP, COUNT_PADDED - 1), 0) * GROUP + to % GROUP
    inside = (to < COUNT * GROUP) & (position < LENGTH)
    # What the last group lacks comes after everything in the row and orders after it.
    bits = tl.load(keys + row * LENGTH + position, inside, other=0)
    bits = tl.where(inside, bits, tl.full((BLOCK,), WORST, bits.dtype))
    if HAS_NAMES:
        position = tl.load(names + row * LENGTH + position, inside, other=0)
    tl.store(best + row * (COUNT * GROUP) + to, bits, to < COUNT * GROUP)
    tl.store(positions + row * (COUNT * GROUP) + to, position, to < COUNT * GROUP)


def plan_top_k(spec: TopK, target: Target) -> Plan:
    """x [rows, length] -> values, indices (i32), both [rows, k]: the largest of each row.

    Long rows shrink until one program can sort what is left. Many of them are cut into groups, of
    which the k with the largest maxima hold the k largest elements; of few, each tile keeps its own
    k largest. k above half a tile takes a full sort.
    """
    builder = PlanBuilder(1, 2)
    if 0 in (spec.rows, spec.k):
        return builder.build()
    key, values, indices = (
        (BufferArg(0, spec.dtype), spec.dtype),
        BufferArg(1, spec.dtype),
        BufferArg(2, "i32"),
    )
    # Tiles that keep more than half of themselves would not shrink the row fast enough.
    if spec.length > block_sort.BLOCK and spec.k > block_sort.BLOCK // 2:
        order = builder.workspace(spec.rows * spec.length, "i32")
        shape = spec.rows, spec.length
        add_radix_sort(builder, target, *shape, key, order, descending=True)
        add_permutation(builder, *shape, order, values, x=key[0], kept=spec.k)
        add_permutation(builder, *shape, order, indices, kept=spec.k)
        return builder.build()
    length, names = spec.length, None

    def add_best(values: BufferArg, order: BufferArg) -> None:
        add_block_sort(
            builder,
            spec.rows,
            length,
            key,
            descending=True,
            names=names,
            values=values,
            order=order,
            kept=spec.k,
        )

    # Each round leaves at most a part of the row, with the position of each element in `names`.
    while length > block_sort.BLOCK:
        group = next_power_of_two(cdiv(length, block_sort.BLOCK))
        many = spec.rows * cdiv(length, block_sort.BLOCK) > MANY_TILES * target.processors
        grouped = many and 2 * spec.k * group <= length
        remaining = spec.k * group if grouped else kept_length(length, spec.k)
        best = builder.workspace(spec.rows * remaining, raw_dtype(spec.dtype))
        positions = builder.workspace(spec.rows * remaining, "i32")
        if grouped:
            add_best_groups(builder, spec.rows, length, key, names, group, spec.k, best, positions)
        else:
            add_best(best, positions)
        key, names, length = (best, spec.dtype), positions, remaining
    add_best(values, indices)
    return builder.build()


def add_best_groups(
    builder: PlanBuilder,
    rows: int,
    length: int,
    key: tuple[BufferArg, str],
    names: BufferArg | None,
    group: int,
    count: int,
    best: BufferArg,
    positions: BufferArg,
) -> None:
    """Append the `count` groups of `group` neighbours with the largest maxima, in their order in
    the row: their elements go to `best`, their positions, through the table `names` if there is
    one, to `positions`. They hold the `count` largest elements: one of another group is no larger
    than any of these groups' maxima, which are `count` elements."""
    keys, dtype = key
    raw, kind = raw_dtype(dtype), key_constants(dtype)
    keys = BufferArg(keys.index, raw, keys.offset)
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
    # The bits that order before all others; of floats, those of the least number.
    bits = 8 * ITEMSIZE[dtype]
    worst = {"float": kind["INF"] - (1 << (bits - 1)), "signed": -(1 << (bits - 1)), "unsigned": 0}[
        kind["KIND"]
    ]
    builder.launch(
        take_groups_kernel,
        (cdiv(count * group, 1024), rows),
        {
            "keys": keys,
            "names": names or chosen,
            "chosen": chosen,
            "best": best,
            "positions": positions,
        },
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
