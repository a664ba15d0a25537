"""Gathering rows by index, and scattering rows into an array without float atomics.

A scatter sorts its indices (stably, so equal ones keep their order), then walks the sorted list in
chunks: a run of one index inside a chunk is combined in registers and written once; runs that cross
chunks leave partial results, which a second kernel combines in order. The result depends on the
operands alone. An embedding's gradient is such a sum, into zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.element_types import FLOATING
from genesis_fn.kernels.language.error_word import flag_error
from genesis_fn.kernels.language.language import cast, up
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import (
    INT32_MAX,
    PlanBuilder,
    cdiv,
    next_power_of_two,
    raw_dtype,
)
from genesis_fn.kernels.rows.scan import combine, reduced
from genesis_fn.kernels.sort import block_sort
from genesis_fn.kernels.sort.block_sort import add_block_sort
from genesis_fn.kernels.sort.radix_sort import add_radix_sort

OPERATIONS = ("add", "mul", "min", "max", "set")
BASES = ("zeros", "operand", "output")
CHUNK = 16  # sorted updates that a program walks


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
    twice. Sums of narrow floats are kept in float32.
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
    site: int = 0

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

    @property
    def accumulator(self) -> str:
        """The type that updates are combined in."""
        if self.operation == "set":
            return raw_dtype(self.dtype)
        if self.dtype in FLOATING:
            return "fp64" if self.dtype == "fp64" else "fp32"
        return "i8" if self.dtype == "i1" else self.dtype


@triton.jit
def in_range(index, valid, error, ROWS: tl.constexpr, SITE: tl.constexpr):
    """Whether each index is in range; reports those that are not to the error word."""
    good = (index >= 0) & (index < ROWS)
    flag_error(error, valid & (good == 0), index, SITE)
    return good


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
def scatter_keys_kernel(
    index,
    keys,
    error,
    ROWS: tl.constexpr,
    COUNT: tl.constexpr,
    CLIP: tl.constexpr,
    SITE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """keys = the row that each update goes to, ROWS for those that go nowhere."""
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = position < COUNT
    i = tl.load(index + position, inside, other=0)
    good = in_range(i, inside, error, ROWS, SITE)
    if CLIP:
        i = tl.minimum(tl.maximum(i, 0), ROWS - 1)
    else:
        i = tl.where(good, i, ROWS)
    tl.store(keys + position, i.to(tl.int32), inside)


@triton.jit
def merge(a, b, OPERATION: tl.constexpr):
    """a OPERATION b, where b comes later."""
    if OPERATION == "set":
        return b
    else:
        return combine(a, b, OPERATION)


@triton.jit
def write_row(
    out,
    key,
    value,
    column,
    inside,
    COLUMNS: tl.constexpr,
    OPERATION: tl.constexpr,
    KEEP: tl.constexpr,
):
    """out[key] = value, merged with what is there if KEEP."""
    at = out + key.to(tl.int64) * COLUMNS + column
    if KEEP:
        there = up(tl.load(at, inside, other=0.0)).to(value.dtype)
        value = merge(there, value, OPERATION)
    tl.store(at, cast(value, out.dtype.element_ty), inside)


@triton.jit
def scatter_unique_kernel(
    updates,
    keys,
    out,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OPERATION: tl.constexpr,
    KEEP: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
):
    """Updates with distinct keys into their rows of `out`; keys of ROWS and above are dropped."""
    row = tl.program_id(0)
    key = tl.load(keys + row)
    if key < ROWS:
        column = tl.program_id(1) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK)
        inside = column < COLUMNS
        value = up(tl.load(updates + row.to(tl.int64) * COLUMNS + column, inside, other=0.0))
        write_row(out, key, value, column, inside, COLUMNS, OPERATION, KEEP)


@triton.jit
def scatter_chunk_kernel(
    updates,
    keys,
    order,
    out,
    partials,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COUNT: tl.constexpr,
    OPERATION: tl.constexpr,
    KEEP: tl.constexpr,
    CHUNK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
):
    """Runs of equal keys of a chunk into `out`, or into `partials` where a run leaves it."""
    # Each update's key is keys[order[i]]; the keys ascend along i.
    ACC: tl.constexpr = partials.dtype.element_ty
    chunk = tl.program_id(0)
    column = tl.program_id(1) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK)
    inside = column < COLUMNS
    first = chunk * CHUNK
    last = tl.minimum(first + CHUNK, COUNT)
    source = tl.load(order + first)
    key = tl.load(keys + source)
    # Does the first run begin in an earlier chunk? (`first < 0` is a false that is no constant, as
    # a variable that a branch assigns must be.)
    continues = first < 0
    if first > 0:
        continues = tl.load(keys + tl.load(order + first - 1)) == key
    value = up(tl.load(updates + source.to(tl.int64) * COLUMNS + column, inside, other=0.0)).to(ACC)
    # Two slots a chunk: what its first run continues from before, and what its last run begins.
    partial = partials + chunk.to(tl.int64) * 2 * COLUMNS + column
    for i in range(first + 1, last):
        source = tl.load(order + i)
        next_key = tl.load(keys + source)
        row = up(tl.load(updates + source.to(tl.int64) * COLUMNS + column, inside, other=0.0)).to(
            ACC
        )
        if next_key != key:
            if continues:
                tl.store(partial, value, inside)
            else:
                write_row(out, key, value, column, inside, COLUMNS, OPERATION, KEEP)
            continues = first < 0
            value = row
        else:
            value = merge(value, row, OPERATION)
        key = next_key
    goes_on = first < 0
    if last < COUNT:
        goes_on = tl.load(keys + tl.load(order + last)) == key
    if continues:
        tl.store(partial, value, inside)
    elif goes_on:
        tl.store(partial + COLUMNS, value, inside)
    elif key < ROWS:
        write_row(out, key, value, column, inside, COLUMNS, OPERATION, KEEP)


@triton.jit
def scatter_join_kernel(
    keys,
    order,
    out,
    partials,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COUNT: tl.constexpr,
    OPERATION: tl.constexpr,
    KEEP: tl.constexpr,
    CHUNK: tl.constexpr,
    SPAN: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
):
    """The run that begins in a chunk and goes on, with what the following chunks left of it."""
    # Exactly one program has the beginning of a run, so each row of `out` has one writer.
    chunk = tl.program_id(0)
    first = chunk * CHUNK
    following = first + CHUNK
    key = tl.load(keys + tl.load(order + following - 1))
    goes_on = tl.load(keys + tl.load(order + following)) == key
    starts_before = first < 0
    if first > 0:
        starts_before = tl.load(keys + tl.load(order + first - 1)) == key
    if goes_on & (starts_before == 0) & (key < ROWS):
        column = tl.program_id(1) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK)
        inside = column < COLUMNS
        at = partials + chunk.to(tl.int64) * 2 * COLUMNS + COLUMNS + column
        value = tl.load(at, inside, other=0)
        # SPAN chunks at a time, until one begins with another key: a run may be as long as the
        # list.
        lane = tl.arange(0, SPAN)
        here = chunk + 1
        more = here == here
        while more:
            start = (here + lane) * CHUNK
            exists = start < COUNT
            head = tl.load(keys + tl.load(order + start, exists, other=0), exists, other=ROWS + 1)
            same = exists & (head == key)
            count = tl.sum(same.to(tl.int32), 0)
            base = (here + lane).to(tl.int64) * 2 * COLUMNS
            mask = same[:, None] & inside[None, :]
            rows = tl.load(partials + base[:, None] + column[None, :], mask, other=0)
            if OPERATION == "set":
                latest = (lane == count - 1)[:, None] & mask
                found = tl.sum(tl.where(latest, rows, tl.zeros_like(rows)), 0).to(value.dtype)
                value = tl.where(count > 0, found, value)
            else:
                if OPERATION == "mul":
                    rows = tl.where(mask, rows, tl.full(rows.shape, 1, rows.dtype))
                elif OPERATION != "add":
                    # Lanes of other runs repeat the value so far.
                    rows = tl.where(mask, rows, value[None, :])
                value = combine(value, reduced(rows, 0, OPERATION), OPERATION)
            here += SPAN
            more = count == SPAN
        write_row(out, key, value, column, inside, COLUMNS, OPERATION, KEEP)


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


@triton.jit
def copy_kernel(x, y, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """y = x, element by element."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < SIZE, other=0), at < SIZE)


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


def plan_scatter_rows(spec: ScatterRows, target: Target) -> Plan:
    """[operand,] index [count], updates [count, columns] -> out [rows, columns][, error word]."""
    has_operand = spec.base == "operand"
    builder = PlanBuilder(2 + has_operand, 1 + (spec.site > 0))
    index = BufferArg(has_operand, spec.index_dtype)
    copies = spec.operation == "set"
    stored = {"i1": "i8"}.get(spec.dtype, spec.dtype)
    out = BufferArg(2 + has_operand, raw_dtype(spec.dtype) if copies else stored)
    updates = BufferArg(1 + has_operand, out.dtype)
    _add_base(builder, spec, out)
    if 0 in (spec.count, spec.columns):
        return builder.build()
    keys = builder.workspace(spec.count, "i32")
    builder.launch(
        scatter_keys_kernel,
        (cdiv(spec.count, 1024),),
        {
            "index": index,
            "keys": keys,
            "error": BufferArg(out.index + 1, "i64") if spec.site else keys,
        },
        {
            "ROWS": spec.rows,
            "COUNT": spec.count,
            "CLIP": spec.mode == "clip",
            "SITE": spec.site,
            "BLOCK": 1024,
        },
    )
    column_block = min(next_power_of_two(spec.columns), 1024)
    columns = cdiv(spec.columns, column_block)
    warps = max(1, min(4, column_block // 128))
    # With a base of zeros a sum need not read it.
    keep = not copies and not (spec.base == "zeros" and spec.operation == "add")
    constants = {
        "ROWS": spec.rows,
        "COLUMNS": spec.columns,
        "OPERATION": spec.operation,
        "KEEP": keep,
        "COLUMN_BLOCK": column_block,
    }
    if spec.unique:
        builder.launch(
            scatter_unique_kernel,
            (spec.count, columns),
            {"updates": updates, "keys": keys, "out": out},
            constants,
            num_warps=warps,
        )
        return builder.build()
    # Stable sorts: equal indices keep the order of their updates, which fixes the order of sums and
    # makes the last of a "set" win.
    order = builder.workspace(spec.count, "i32")
    if spec.count <= block_sort.BLOCK:
        add_block_sort(builder, 1, spec.count, (keys, "i32"), order=order)
    else:
        # Keys are at most `rows`: a pass of the radix sort for each of their digits only.
        bits = max(1, spec.rows.bit_length())
        add_radix_sort(builder, target, 1, spec.count, (keys, "i32"), order, bits=bits)
    chunks = cdiv(spec.count, CHUNK)
    partials = builder.workspace(2 * chunks * spec.columns, spec.accumulator)
    arguments = {"keys": keys, "order": order, "out": out, "partials": partials}
    constants |= {"COUNT": spec.count, "CHUNK": CHUNK}
    builder.launch(
        scatter_chunk_kernel,
        (chunks, columns),
        {"updates": updates} | arguments,
        constants,
        num_warps=warps,
    )
    builder.launch(
        scatter_join_kernel,
        (chunks - 1, columns),
        arguments,
        constants | {"SPAN": 8},
        num_warps=warps,
    )
    return builder.build()
