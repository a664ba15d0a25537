"""Gathering rows by index, and scattering rows into an array.

A scatter sorts its indices (stably, so equal ones keep their order), and combines the updates of
each row in the order that `sorted_runs` says: the result depends on the operands alone. An
embedding's gradient is such a sum, into zeros. Sums of few columns are exact instead
(`exact_sums`). What has one result in every order (sums and extremes of integers), or may have any
(sums that need not be deterministic), is combined in memory by atomics, and where no index occurs
twice nothing is combined at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.indexing.by_atomics import EXTREMES, add_extremes, add_winners
from genesis_fn.kernels.indexing.computed_updates import ComputedUpdates, kernel_of
from genesis_fn.kernels.indexing.exact_sums import add_exact_sums, sums_exactly
from genesis_fn.kernels.indexing.sorted_runs import (
    Runs,
    add_sorted_runs,
    in_range,
    merge,
    row_of,
    stored_update,
)
from genesis_fn.kernels.language.element_types import FLOATING, ITEMSIZE
from genesis_fn.kernels.language.language import cast, up
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import (
    INT32_MAX,
    PlanBuilder,
    cdiv,
    next_power_of_two,
    raw_dtype,
)
from genesis_fn.kernels.sort import block_sort
from genesis_fn.kernels.sort.radix_sort import add_radix_sort

POINTERS = ("index", "updates", "out", "error")
CONSTANTS = (
    "ROWS", "COLUMNS", "COUNT", "CLIP", "SITE", "OPERATION", "KEEP", "ATOMIC", "ROW_BLOCK",
    "COLUMN_BLOCK",
)  # fmt: skip
"""The parameters of `scatter_unordered`, in order."""

OPERATIONS = ("add", "mul", "min", "max", "set")
BASES = ("zeros", "operand", "output")
MOST_UPDATES = 1 << 30  # positions in their list, and twice the number of its chunks, are int32
ATOMIC_INTEGERS = ("i32", "u32", "i64", "u64")
ATOMIC_FLOATS = ("fp32", "fp64")
NARROW_FLOATS = ("bf16", "fp16")  # added by atomics in float32, and rounded in the end
ATOMIC_ROWS = 1024  # into fewer rows, atomics would wait for each other
# Bytes of numbers of updates, one for each row, that are cleared in the time of a sort: its
# launches, and what it moves for each update.
MOST_WINNERS, SORTED_BYTES = 1 << 26, 64


@dataclass(frozen=True, slots=True)
class GatherRows:
    """y[i] = x[index[i]], rows of `columns` elements; x has `rows` of them, y has `count`.

    An index out of range reads the nearest row ("clip") or zeros ("fill") and, if `site` > 0,
    raises the error word.
    """

    rows: int
    columns: int
    count: int
    dtype: str
    index_dtype: str = "i32"
    mode: str = "clip"
    site: int = 0

    def __post_init__(self) -> None:
        if self.mode not in ("clip", "fill"):
            raise ValueError(f"a gather's mode is 'clip' or 'fill', not {self.mode!r}")
        if self.count and self.columns and not self.rows:
            raise ValueError("cannot gather from an array without rows")


@dataclass(frozen=True, slots=True)
class ScatterRows:
    """out = base, then out[index[i]] = operation(out[index[i]], updates[i]) for each i in order.

    Rows have `columns` elements; out has `rows` of them, updates `count`. The base is "zeros", an
    "operand", or what the "output" buffer holds. An index out of range is dropped or clipped, as
    `mode` says, and raises the error word if `site` > 0. `unique` promises that no index occurs
    twice, `sorted` that they ascend. Sums of narrow floats are kept in float32. Without
    `deterministic` a sum of floats may be taken in another order in every run. `entries`: the index
    is what `plan_sort_rows` made of it. `updates` are computed by these lines, if given.
    """

    rows: int
    columns: int
    count: int
    dtype: str
    operation: str = "add"
    base: str = "zeros"
    index_dtype: str = "i32"
    mode: str = "drop"
    unique: bool = False
    sorted: bool = False
    deterministic: bool = True
    site: int = 0
    entries: bool = False
    updates: ComputedUpdates | None = None

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise ValueError(
                f"a scatter's operation is one of {OPERATIONS}, not {self.operation!r}"
            )
        if self.base not in BASES:
            raise ValueError(f"a scatter's base is one of {BASES}, not {self.base!r}")
        if self.mode not in ("clip", "drop"):
            raise ValueError(f"a scatter's mode is 'clip' or 'drop', not {self.mode!r}")
        if self.rows >= INT32_MAX:
            raise ValueError(f"a scatter into {self.rows} rows is longer than 2^31 - 2")
        if self.count > MOST_UPDATES:
            raise ValueError(f"a scatter of {self.count} updates has more than {MOST_UPDATES}")

    @property
    def accumulator(self) -> str:
        """The type that updates are combined in."""
        if self.operation == "set":
            return raw_dtype(self.dtype)
        if self.dtype in FLOATING:
            return "fp64" if self.dtype == "fp64" else "fp32"
        return "i8" if self.dtype == "i1" else self.dtype

    @property
    def sorts(self) -> bool:
        """Whether the plan sorts the indices."""
        return _method(self) == "entries" and not (self.entries or self.sorted)


@dataclass(frozen=True, slots=True)
class SortRows:
    """entries = `row << 32 | number` of `count` indices, ascending: the order in which the updates
    of a scatter into `rows` rows are combined. Modes and `site` as of `ScatterRows`."""

    rows: int
    count: int
    index_dtype: str = "i32"
    mode: str = "drop"
    site: int = 0


@triton.jit
def gather_rows_kernel(
    x,
    index,
    y,
    error,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COUNT: tl.constexpr,
    FILL: tl.constexpr,
    SITE: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
):
    """y[i] = x[index[i]], zeros for a bad index if FILL; `error` hears of bad indices."""
    row = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    exists = row < COUNT
    i = tl.load(index + row, exists, other=0)
    good = in_range(i, exists, error, ROWS, SITE)
    i = tl.minimum(tl.maximum(i, 0), ROWS - 1)
    column = (tl.program_id(1) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK))[None, :]
    mask = exists[:, None] & (column < COLUMNS)
    readable = mask & good[:, None] if FILL else mask
    v = tl.load(x + (i.to(tl.int64) * COLUMNS)[:, None] + column, readable, other=0)
    tl.store(y + (row.to(tl.int64) * COLUMNS)[:, None] + column, v, mask)


@triton.jit
def scatter_entries_kernel(
    index,
    updates,
    entries,
    error,
    ROWS: tl.constexpr,
    COUNT: tl.constexpr,
    CLIP: tl.constexpr,
    SITE: tl.constexpr,
    SORTED: tl.constexpr,
    SORTS: tl.constexpr,
    CARRIED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """entries = row << 32 | number of the update, or with CARRIED its bits, as it has one column.

    With SORTS one program has all of them, and puts them in order.
    """
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = position < COUNT
    i = tl.load(index + position, inside, other=0)
    row = row_of(i, inside, error, ROWS, CLIP, SITE)
    if not SORTED:
        # Keys of a sort are not negative.
        row = tl.where(row < 0, ROWS, row)
    low = position
    if CARRIED:
        low = tl.load(updates + position, inside, other=0).to(tl.int32)
    if SORTS:
        # Behind the last entry none is looked at.
        named = tl.where(inside, (row.to(tl.int64) << 32) | position, 0x7FFFFFFFFFFFFFFF)
        named = tl.sort(named)
        if CARRIED:
            source = (named & 0xFFFFFFFF).to(tl.int32)
            low = tl.load(updates + source, inside, other=0).to(tl.int32)
            named = (named & -0x100000000) | (low.to(tl.int64) & 0xFFFFFFFF)
        tl.store(entries + position, named, inside)
    else:
        packed = (row.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
        tl.store(entries + position, packed, inside)


@triton.jit
def scatter_unordered(
    index,
    operands,
    out,
    error,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COUNT: tl.constexpr,
    CLIP: tl.constexpr,
    SITE: tl.constexpr,
    OPERATION: tl.constexpr,
    KEEP: tl.constexpr,
    ATOMIC: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    UPDATE: tl.constexpr,
):
    """Updates into their rows of `out`, in any order: by atomics, or no two into one row. UPDATE as
    in `walk_runs`."""
    position = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    exists = position < COUNT
    i = tl.load(index + position, exists, other=-1)
    row = row_of(i, exists, error, ROWS, CLIP, SITE)
    wanted = (exists & (row >= 0) & (row < ROWS))[:, None]
    column = tl.program_id(1) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK)[None, :]
    mask = wanted & (column < COLUMNS)
    # Made with its axis, from which Triton tells that accesses are aligned.
    source = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)[:, None]
    if COUNT * COLUMNS > 0x7FFFFFFF:
        source = source.to(tl.int64)
    value = up(UPDATE(source, column, wanted, operands, COLUMNS))
    at = out + row[:, None].to(tl.int64) * COLUMNS + column
    if ATOMIC:
        # Nothing is read back, so these are reductions, of 16 bytes each where rows allow it.
        if OPERATION == "add":
            tl.atomic_add(at, value, mask, sem="relaxed")
        elif OPERATION == "max":
            tl.atomic_max(at, value, mask, sem="relaxed")
        else:
            tl.static_assert(OPERATION == "min")
            tl.atomic_min(at, value, mask, sem="relaxed")
    else:
        if KEEP:
            there = up(tl.load(at, mask, other=0)).to(value.dtype)
            value = merge(there, value, OPERATION)
        elif OPERATION == "add":
            value += tl.zeros_like(value)  # 0 + -0 is 0
        tl.store(at, cast(value, out.dtype.element_ty), mask)


@triton.jit
def scatter_unordered_kernel(
    index,
    updates,
    out,
    error,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COUNT: tl.constexpr,
    CLIP: tl.constexpr,
    SITE: tl.constexpr,
    OPERATION: tl.constexpr,
    KEEP: tl.constexpr,
    ATOMIC: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
):
    """`scatter_unordered` of updates in memory."""
    scatter_unordered(
        index, (updates,), out, error, ROWS, COLUMNS, COUNT, CLIP, SITE, OPERATION, KEEP, ATOMIC,
        ROW_BLOCK, COLUMN_BLOCK, stored_update,
    )  # fmt: skip


@triton.jit
def rounded_sums_kernel(
    sums, base, out, SIZE: tl.constexpr, HAS_BASE: tl.constexpr, BLOCK: tl.constexpr
):
    """out = base + sums, or the sums alone, rounded once."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(sums + at, at < SIZE, other=0)
    if HAS_BASE:
        value += up(tl.load(base + at, at < SIZE, other=0))
    tl.store(out + at, cast(value, out.dtype.element_ty), at < SIZE)


@triton.jit
def copy_kernel(x, y, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """y = x, element by element."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < SIZE, other=0), at < SIZE)


def plan_gather_rows(spec: GatherRows, target: Target) -> Plan:
    """x [rows, columns], index [count] -> y [count, columns][, error word]."""
    builder = PlanBuilder(2, 1 + (spec.site > 0))
    if 0 in (spec.count, spec.columns):
        return builder.build()
    raw = raw_dtype(spec.dtype)
    column_block = min(next_power_of_two(spec.columns), 2048)
    row_block = max(1, min(next_power_of_two(spec.count), 2048 // column_block))
    warps = max(1, min(8, row_block * column_block // 256))
    builder.launch(
        gather_rows_kernel,
        (cdiv(spec.count, row_block), cdiv(spec.columns, column_block)),
        {
            "x": BufferArg(0, raw),
            "index": BufferArg(1, spec.index_dtype),
            "y": BufferArg(2, raw),
            "error": BufferArg(3, "i64") if spec.site else BufferArg(2, raw),
        },
        {
            "ROWS": spec.rows,
            "COLUMNS": spec.columns,
            "COUNT": spec.count,
            "FILL": spec.mode == "fill",
            "SITE": spec.site,
            "ROW_BLOCK": row_block,
            "COLUMN_BLOCK": column_block,
        },
        num_warps=warps,
    )
    return builder.build()


def _add_base(builder: PlanBuilder, spec: ScatterRows, out: BufferArg) -> None:
    if spec.base == "zeros":
        builder.clear(out)
    elif spec.base == "operand":
        raw, size = raw_dtype(spec.dtype), spec.rows * spec.columns
        builder.launch(
            copy_kernel,
            (cdiv(size, 4096),),
            {"x": BufferArg(0, raw), "y": BufferArg(out.index, raw)},
            {"SIZE": size, "BLOCK": 4096},
        )


def _uses_atomics(spec: ScatterRows) -> bool:
    """Whether updates are combined in memory, in no order."""
    if spec.rows < ATOMIC_ROWS:
        return False  # they would wait for each other, and few rows are sorted in one pass
    if spec.dtype in ATOMIC_INTEGERS:
        return spec.operation in ("add", "min", "max")  # of which every order has one result
    if spec.deterministic or spec.operation != "add":
        return False
    # Rounding walks all rows, which few updates do not make up for.
    return spec.dtype in ATOMIC_FLOATS or (spec.dtype in NARROW_FLOATS and spec.count >= spec.rows)


def _one_counts(spec: ScatterRows) -> bool:
    """Whether one update of each element counts, and atomics find it in less time than a sort."""
    if spec.rows < ATOMIC_ROWS or spec.count <= block_sort.BLOCK or spec.updates is not None:
        return False
    if spec.operation == "set":
        return 4 * spec.rows <= max(MOST_WINNERS, SORTED_BYTES * spec.count)
    return spec.operation in ("min", "max") and spec.dtype in EXTREMES


def _method(spec: ScatterRows) -> str:
    """How updates are combined: "unordered" where each has a row of its own, "atomics", "exact",
    "winners" or "extremes" where one of them counts, or in the order of a list of "entries" or,
    where indices ascend, of "rows"."""
    if spec.entries:
        return "entries"
    if spec.unique:
        return "unordered"
    if _uses_atomics(spec):
        return "atomics"
    # Indices that are checked are read by a kernel of its own.
    if spec.sorted and not spec.site:
        return "rows"
    if _one_counts(spec):
        return "winners" if spec.operation == "set" else "extremes"
    exact = spec.operation == "add" and spec.rows >= ATOMIC_ROWS and not spec.sorted
    return "exact" if exact and sums_exactly(spec) else "entries"


def plan_sort_rows(spec: SortRows, target: Target) -> Plan:
    """index [count] -> entries [count], int64 [, error word]."""
    builder = PlanBuilder(1, 1 + (spec.site > 0))
    index, entries = BufferArg(0, spec.index_dtype), BufferArg(1, "i64")
    error = BufferArg(2, "i64") if spec.site else index
    _add_entries(builder, target, spec, index, None, error, entries)
    return builder.build()


def plan_scatter_rows(spec: ScatterRows, target: Target) -> Plan:
    """[operand,] index [count], updates [count, columns] -> out [rows, columns][, error word].

    The inputs of computed updates take the place of the updates, one that is carried is the last.
    """
    has_operand = spec.base == "operand"
    computed = spec.updates.inputs if spec.updates is not None else None
    through = spec.updates.carried if spec.updates is not None else ""
    inputs = 1 + has_operand + (1 if computed is None else len(computed)) + bool(through)
    builder = PlanBuilder(inputs, 1 + (spec.site > 0))
    index = BufferArg(has_operand, "i64" if spec.entries else spec.index_dtype)
    copies = spec.operation == "set"
    stored = {"i1": "i8"}.get(spec.dtype, spec.dtype)
    out = BufferArg(inputs, raw_dtype(spec.dtype) if copies else stored)
    first = 1 + has_operand
    updates = {"updates": BufferArg(first, out.dtype)}
    if computed is not None:
        updates = {name: BufferArg(first + i, kind) for i, (name, kind) in enumerate(computed)}
    error = BufferArg(out.index + 1, "i64") if spec.site else index
    method = _method(spec)
    if through and not spec.sorts:
        raise ValueError("only a list that is sorted carries what updates are computed from")
    narrow = method == "atomics" and spec.dtype in NARROW_FLOATS and spec.columns > 0
    if narrow:
        sums = builder.workspace(spec.rows * spec.columns, "fp32")
        builder.clear(sums)
    else:
        sums = out
        if method not in ("exact", "extremes"):
            _add_base(builder, spec, out)
    if 0 in (spec.count, spec.columns):
        return builder.build()
    # With a base of zeros a sum need not read it.
    keep = not copies and not (spec.base == "zeros" and spec.operation == "add")
    if method in ("unordered", "atomics"):
        _add_unordered(builder, spec, index, updates, sums, error, keep)
        if narrow:
            size = spec.rows * spec.columns
            base = {"zeros": sums, "operand": BufferArg(0, out.dtype), "output": out}[spec.base]
            builder.launch(
                rounded_sums_kernel,
                (cdiv(size, 2048),),
                {"sums": sums, "base": base, "out": out},
                {"SIZE": size, "HAS_BASE": spec.base != "zeros", "BLOCK": 2048},
            )
        return builder.build()
    if method == "exact":
        add_exact_sums(builder, spec, index, updates, out, error)
        return builder.build()
    if method in ("winners", "extremes"):
        clip, given = spec.mode == "clip", {"index": index, **updates, "out": out, "error": error}
        sizes = spec.rows, spec.columns, spec.count, clip, spec.site
        if method == "winners":
            add_winners(builder, *sizes, given)
        else:
            base = {"zeros": None, "operand": BufferArg(0, out.dtype), "output": out}[spec.base]
            add_extremes(builder, *sizes, spec.operation, base, given)
        return builder.build()
    carried = False
    entries, kind = index, "rows" if method == "rows" else "entries"
    if not spec.entries and kind == "entries":
        # An update of one column is sorted with its row, instead of being read by its number later.
        carried = spec.columns == 1 and ITEMSIZE[spec.dtype] <= 4 and computed is None
        raw = BufferArg(first, raw_dtype(spec.dtype)) if carried else None
        if through:
            raw = BufferArg(inputs - 1, through)
        entries = builder.workspace(spec.count, "i64")
        _add_entries(builder, target, spec, index, raw, error, entries)
    runs = Runs(
        spec.rows,
        spec.columns,
        spec.count,
        spec.accumulator,
        spec.operation,
        kind,
        keep,
        spec.mode == "clip",
        carried,
        spec.updates,
    )
    add_sorted_runs(builder, runs, entries, updates, out)
    return builder.build()


def _add_entries(
    builder: PlanBuilder,
    target: Target,
    spec: ScatterRows | SortRows,
    index: BufferArg,
    carried: BufferArg | None,
    error: BufferArg,
    entries: BufferArg,
) -> None:
    """Append the list of entries, in order: `row << 32 | number`, or the bits of `carried`."""
    in_order = type(spec) is ScatterRows and spec.sorted
    in_block = not in_order and spec.count <= block_sort.BLOCK
    block = max(2, next_power_of_two(spec.count)) if in_block else 1024
    done = in_order or in_block
    made = entries if done else builder.workspace(spec.count, "i64")
    builder.launch(
        scatter_entries_kernel,
        (cdiv(spec.count, block),),
        {"index": index, "updates": carried or index, "entries": made, "error": error},
        {
            "ROWS": spec.rows,
            "COUNT": spec.count,
            "CLIP": spec.mode == "clip",
            "SITE": spec.site,
            "SORTED": in_order,
            "SORTS": in_block,
            "CARRIED": carried is not None,
            "BLOCK": block,
        },
        num_warps=max(1, min(8, block // 128)),
    )
    if not done:
        # Stable: equal rows keep the order of their updates, which fixes the order of sums and has
        # the last of a "set" win. Rows are at most `rows`: passes for the bits of that only. None
        # is more than the last one where all are clipped into the result.
        most = spec.rows - (spec.mode == "clip")
        bits = (32, 32 + max(1, most.bit_length()))
        add_radix_sort(
            builder, target, 1, spec.count, (made, "i64"), None, values=entries, bits=bits
        )


def _add_unordered(
    builder: PlanBuilder,
    spec: ScatterRows,
    index: BufferArg,
    updates: Mapping[str, BufferArg],
    out: BufferArg,
    error: BufferArg,
    keep: bool,
) -> None:
    """Append one launch that combines updates where their rows are."""
    kernel = scatter_unordered_kernel
    if spec.updates is not None:
        kernel = kernel_of(scatter_unordered, POINTERS, CONSTANTS, spec.updates)
    column_block = min(next_power_of_two(spec.columns), 1024)
    row_block = max(1, min(next_power_of_two(spec.count), 2048 // column_block))
    builder.launch(
        kernel,
        (cdiv(spec.count, row_block), cdiv(spec.columns, column_block)),
        {"index": index, **updates, "out": out, "error": error},
        {
            "ROWS": spec.rows,
            "COLUMNS": spec.columns,
            "COUNT": spec.count,
            "CLIP": spec.mode == "clip",
            "SITE": spec.site,
            "OPERATION": spec.operation,
            "KEEP": keep,
            "ATOMIC": not spec.unique,
            "ROW_BLOCK": row_block,
            "COLUMN_BLOCK": column_block,
        },
        num_warps=max(1, min(8, row_block * column_block // 256)),
    )
