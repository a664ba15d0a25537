"""Gather, scatter, rows of tables and dynamic slices.

Whole rows along axis 0 use the row kernels. Any other gather is one kernel with the shapes in its
text, and so is a scatter that sets few elements and none of them twice. Any other scatter computes
the row that each update goes to and becomes a scatter of rows, as deterministic as that. A checked
index out of range is reported, and clamped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from genesis_fn.backends.cuda.codegen.kernel_text import add_copy, add_elements, coordinates, offset
from genesis_fn.backends.cuda.codegen.loops import SITES
from genesis_fn.backends.cuda.lowerings.call import Call, Contents, Lowered, lowers
from genesis_fn.backends.cuda.lowerings.shape import add_fill
from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import Primitive
from genesis_fn.kernels.indexing.scatter import (
    GatherRows,
    ScatterRows,
    SortRows,
    plan_gather_rows,
    plan_scatter_rows,
    plan_sort_rows,
)
from genesis_fn.kernels.language.dtypes import NAMES
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import INT32_MAX, PlanBuilder, dense
from genesis_fn.primitives.indexing.constants import constant_p
from genesis_fn.primitives.indexing.gather import fill_value, gather_p, take_rows_p
from genesis_fn.primitives.indexing.gather_dims import window_sizes
from genesis_fn.primitives.indexing.indexing import dynamic_slice_p, dynamic_update_slice_p
from genesis_fn.primitives.indexing.scatter import scatter_p, segment_sum_p


def out_of_range(call: Call, component: int, index: int) -> errors.IndexOutOfRange:
    """The error for a checked index: the message that the CPU gives."""
    assert call.prim.visits is not None
    array, windows = call.prim.visits(*call.avals, **call.params)
    axis, size = windows[min(component, len(windows) - 1)]
    return errors.IndexOutOfRange.at(index, axis, array, size)


@lowers(constant_p)
def _constant(call: Call) -> Lowered:
    return Contents(call.params["numbers"])


# ---- index components ----


def index_lines(pointer: str, position: str, kind: DType, name: str) -> list[str]:
    """Define `name`: the index at a position as int64, saturated for uint64."""
    text = f"tl.load({pointer} + {position}, inside, other=0)"
    if kind == dtypes.U64:
        return [
            f"{name} = {text}",
            f"{name} = tl.where({name} > 0x7FFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF, {name})"
            ".to(tl.int64)",
        ]
    return [f"{name} = {text}.to(tl.int64)"]


@dataclass
class _Window:
    """Lines, and the offset in the operand of each element of a gather's result."""

    lines: list[str]
    offset: str


def _window(call: Call, shape: Sequence[int], sizes: Sequence[int], mode: str) -> _Window:
    """For elements `i` of `shape`, the result of a gather or the updates of a scatter.

    Leaves `valid` in scope: whether the whole window lies inside the operand.
    """
    operand, indices = call.operands[:2]
    window, collapsed, mapped, batching, index_batching = call.params["dimension_numbers"]
    lines, index = coordinates("i", shape, "c")
    batch = iter([p for d, p in enumerate(index) if d not in window])
    inside = iter([index[d] for d in window])
    batch_index = list(batch)
    kept = [d for d in range(operand.ndim) if d not in collapsed and d not in batching]
    within = {d: next(inside) for d in kept}
    components = indices.shape[-1]
    vectors = dense(indices.shape[:-1])
    at = offset(batch_index, [s * components for s in vectors])
    checked = mode == "check" and bool(mapped)
    lines.append("valid = inside")
    starts: dict[int, str] = {}
    for k, d in enumerate(mapped):
        bound = operand.shape[d] - sizes[d]
        lines += index_lines("indices", f"({at} + i * 0 + {k})", indices.dtype, f"s{k}")
        lines.append(f"fits = (s{k} >= 0) & (s{k} <= {bound})")
        if checked:
            site = call.site * SITES + min(k, SITES - 1)
            lines.append(f"flag_error(error, inside & (fits == 0), s{k}, {site})")
        lines.append("valid = valid & fits")
        lines.append(f"s{k} = tl.minimum(tl.maximum(s{k}, 0), {max(bound, 0)})")
        starts[d] = f"s{k}"
    terms = []
    for d, step in enumerate(dense(operand.shape)):
        parts = [starts.get(d, "0"), within.get(d, "0")]
        if d in batching:
            parts.append(batch_index[index_batching[batching.index(d)]])
        total = " + ".join([p for p in parts if p != "0"])
        if total:
            terms.append(f"({total}) * {step}" if step != 1 else f"({total})")
    return _Window(lines, " + ".join(["i * 0", *terms]))


# ---- gather ----


def _reads_rows(call: Call) -> bool:
    operand, indices = call.operands
    numbers, sizes = call.params["dimension_numbers"], call.params["slice_sizes"]
    batch = indices.ndim - 1
    window = tuple(range(batch, batch + operand.ndim - 1))
    return (
        tuple(numbers) == (window, (0,), (0,), (), ())
        and tuple(sizes) == (1, *operand.shape[1:])
        and operand.size > 0
    )


@lowers(take_rows_p)
def _take_rows(call: Call) -> Lowered:
    return _rows(call)


def _rows(call: Call) -> Lowered:
    table, indices = call.operands
    mode, fill = call.params["mode"], call.params["fill_value"]
    plain = mode != "fill" or _is_zero_bits(fill)
    if not plain or indices.dtype == dtypes.U64 or call.out.size == 0:
        return _gather_rows_general(call)
    site = call.site * SITES if mode == "check" else 0
    return plan_gather_rows(
        GatherRows(
            table.shape[0],
            math.prod(table.shape[1:]),
            indices.size,
            NAMES[table.dtype],
            NAMES[indices.dtype],
            "fill" if mode == "fill" else "clip",
            site=site,
        ),
        call.target,
    )


def _is_zero_bits(value: Any) -> bool:
    return value is not None and value == 0 and str(value)[0] != "-"


def _gather_rows_general(call: Call) -> Lowered:
    """Rows with a fill value of one's own, or uint64 indices."""
    table, indices = call.operands
    mode = call.params["mode"]
    if call.out.size == 0:
        return Plan(2, 1 + (mode == "check"), ())
    columns = math.prod(table.shape[1:])
    lines = [
        f"row = i // {columns}",
        *index_lines("indices", "row", indices.dtype, "s0"),
        f"fits = (s0 >= 0) & (s0 < {table.shape[0]})",
    ]
    if mode == "check":
        lines.append(f"flag_error(error, inside & (fits == 0), s0, {call.site * SITES})")
    lines += [
        "valid = inside & fits",
        f"s0 = tl.minimum(tl.maximum(s0, 0), {max(table.shape[0] - 1, 0)})",
    ]
    return _read(call, lines, f"s0 * {columns} + i % {columns}", mode == "check")


@lowers(gather_p)
def _gather(call: Call) -> Lowered:
    mode = call.params["mode"]
    if call.out.size == 0:
        return Plan(2, 1 + (mode == "check"), ())
    if _reads_rows(call):
        return _rows(call)
    window = _window(call, call.out.shape, call.params["slice_sizes"], mode)
    return _read(call, window.lines, window.offset, mode == "check")


def _read(call: Call, lines: list[str], address: str, checked: bool) -> Plan:
    """out[i] = operand[address], or the fill value where not `valid` in mode "fill"."""
    operand = call.operands[0]
    builder = PlanBuilder(2, 1 + checked)
    buffers = {"x": call.read(0, True), "indices": call.read(1), "y": call.write(0, True)}
    if call.params["mode"] == "fill":
        value = fill_value(call.params["fill_value"], operand.dtype)
        width = operand.dtype.itemsize
        bits = int(np.asarray(value).astype(operand.dtype).view(f"i{width}"))
        same = f"tl.full((), {bits}, tl.int{8 * width})"
        lines = [
            *lines,
            f"v = tl.load(x + {address}, valid, other=0)",
            f"tl.store(y + i, tl.where(valid, v, {same}), inside)",
        ]
    else:
        lines = [*lines, f"tl.store(y + i, tl.load(x + {address}, inside), inside)"]
    if checked:
        buffers["error"] = BufferArg(3, "i64")
    wide = max(operand.size, call.out.size, call.operands[1].size) > INT32_MAX
    add_elements(builder, "gather", buffers, call.out.size, lines, wide=wide)
    return builder.build()


# ---- scatter ----


@lowers(scatter_p)
def _scatter(call: Call) -> Lowered:
    operand, indices, updates = call.operands
    mode, kind = call.params["mode"], call.params["kind"]
    checked = mode == "check"
    builder = PlanBuilder(3, 1 + checked)
    out = call.write(0)
    if operand.size == 0:
        return builder.build()
    if updates.size == 0:
        if call.in_place:
            return builder.build()
        add_copy(builder, call.read(0, True), call.write(0, True), (operand.size,), (1,))
        return builder.build()
    window = call.params["dimension_numbers"][0]
    sizes = window_sizes(operand, updates, call.params["dimension_numbers"])
    few = updates.nbytes <= call.target.launch_bytes
    if kind == "set" and call.params["unique_indices"] and few:
        return _set_elements(call, builder, sizes)
    columns, run = _trailing(operand, call.params["dimension_numbers"], sizes)
    rows, count = operand.size // columns, updates.size // columns
    # Updates in the order of batch dimensions, then window dimensions: the last one wins.
    order = [d for d in range(updates.ndim) if d not in window] + list(window)
    shape = [updates.shape[d] for d in order]
    held = call.read(2)
    if order != list(range(updates.ndim)):
        held = builder.workspace(updates.size, held.dtype)
        raw = call.read(2, True)
        steps = dense(updates.shape)
        add_copy(builder, raw, BufferArg(held.index, raw.dtype), shape, [steps[d] for d in order])
    targets = builder.workspace(count, "i32")
    lines, names = coordinates("i", shape[: len(shape) - run], "u")
    at = dict(zip(order, names + ["0"] * run))
    steps = dense(updates.shape)
    lines = [*lines, f"j = {offset([at[d] for d in range(updates.ndim)], steps)} + i * 0"]
    found = _window(call, updates.shape, sizes, mode)
    inner = _renamed(found.lines)
    address = found.offset.replace("i * 0", "j * 0")
    drop = mode in ("fill", "check")
    target = f"({address}) // {columns}"
    chosen = f"tl.where(valid, {target}, -1)" if drop else target
    buffers = {"indices": call.read(1), "targets": targets}
    if checked:
        buffers["error"] = BufferArg(4, "i64")
    add_elements(
        builder,
        "scatter_targets",
        buffers,
        count,
        [*lines, *inner, f"tl.store(targets + i, ({chosen}).to(tl.int32), inside)"],
        wide=max(operand.size, updates.size, indices.size) > INT32_MAX,
    )
    base = "output" if call.in_place else "operand"
    spec = ScatterRows(
        rows,
        columns,
        count,
        NAMES[operand.dtype],
        operation=kind,
        base=base,
        index_dtype="i32",
        mode="drop",
        unique=call.params["unique_indices"],
        # A row for each index: sorted indices have the updates of a row beside each other.
        sorted=call.params["indices_are_sorted"] and count * indices.shape[-1] == indices.size,
        deterministic=call.params["deterministic"],
    )
    if operand.dtype == dtypes.BOOL:
        spec, held, out = _boolean(spec, held, out)
    given = [] if call.in_place else [_as(call.read(0), spec)]
    builder.include(plan_scatter_rows(spec, call.target), [*given, targets, held, out])
    return builder.build()


def _set_elements(call: Call, builder: PlanBuilder, sizes: Sequence[int]) -> Plan:
    """The scatter of few updates that go to places of their own: each element finds its place in
    one launch, where rows take three. (Keys and values of several sequences go into a cache so.)"""
    operand, indices, updates = call.operands
    mode = call.params["mode"]
    if not call.in_place:
        add_copy(builder, call.read(0, True), call.write(0, True), (operand.size,), (1,))
    found = _window(call, updates.shape, sizes, mode)
    written = "inside" if mode == "clip" else "valid"
    buffers = {"u": call.read(2, True), "indices": call.read(1), "y": call.write(0, True)}
    if mode == "check":
        buffers["error"] = BufferArg(4, "i64")
    lines = [*found.lines, f"tl.store(y + {found.offset}, tl.load(u + i, inside), {written})"]
    wide = max(operand.size, updates.size, indices.size) > INT32_MAX
    add_elements(builder, "scatter", buffers, updates.size, lines, wide=wide)
    return builder.build()


def _boolean(
    spec: ScatterRows, held: BufferArg, out: BufferArg
) -> tuple[ScatterRows, BufferArg, BufferArg]:
    """Booleans as bytes: adding is taking the maximum, multiplying the minimum."""
    operation = {"add": "max", "mul": "min"}.get(spec.operation, spec.operation)
    changed = replace(spec, dtype="u8", operation=operation)
    return changed, BufferArg(held.index, "u8", held.offset), BufferArg(out.index, "u8")


def _as(operand: BufferArg, spec: ScatterRows) -> BufferArg:
    return BufferArg(operand.index, spec.dtype, operand.offset)


def _renamed(lines: Sequence[str]) -> list[str]:
    """The lines of `_window` with `j` as the element instead of `i`."""
    return [re.sub(r"\bi\b", "j", line) for line in lines]


def _trailing(operand: Aval, numbers: Any, sizes: Sequence[int]) -> tuple[int, int]:
    """(elements, update dimensions) at the end of the operand that every window covers whole."""
    _, collapsed, mapped, batching, _ = numbers
    columns, run = 1, 0
    for d in range(operand.ndim - 1, -1, -1):
        if d in mapped or d in collapsed or d in batching or sizes[d] != operand.shape[d]:
            break
        columns *= operand.shape[d]
        run += 1
    return columns, run


# ---- slices at positions that are values ----


def _starts(call: Call, first: int, operand: Aval, sizes: Sequence[int]):
    """(buffers, lines, names): the start along each axis, counted from the front and clamped."""
    buffers: dict[str, BufferArg] = {}
    lines, names = [], []
    for d, (n, size) in enumerate(zip(operand.shape, sizes)):
        s = call.avals[first + d]
        if n == size:
            names.append("0")
        elif type(s) is Aval:
            buffers[f"p{d}"] = call.read(first + d)
            lines += index_lines(f"p{d}", "i * 0", s.dtype, f"s{d}")
            lines.append(f"s{d} = tl.where(s{d} < 0, s{d} + {n}, s{d})")
            lines.append(f"s{d} = tl.minimum(tl.maximum(s{d}, 0), {n - size})")
            names.append(f"s{d}")
        else:
            names.append(str(min(max(s + n if s < 0 else s, 0), n - size)))
    return buffers, lines, names


@lowers(dynamic_slice_p)
def _dynamic_slice(call: Call) -> Lowered:
    operand, sizes = call.operands[0], call.params["slice_sizes"]
    builder = PlanBuilder(len(call.operands), 1)
    if call.out.size == 0:
        return builder.build()
    buffers, lines, names = _starts(call, 1, operand, sizes)
    at, index = coordinates("i", sizes, "c")
    steps = dense(operand.shape)
    first = offset(names, steps)
    lines = [
        *lines,
        *at,
        f"v = tl.load(x + ({first} + {offset(index, steps)} + i * 0), inside)",
        "tl.store(y + i, v, inside)",
    ]
    add_elements(
        builder,
        "dynamic_slice",
        {"x": call.read(0, True), **buffers, "y": call.write(0, True)},
        call.out.size,
        lines,
        wide=operand.size > INT32_MAX,
    )
    return builder.build()


@lowers(dynamic_update_slice_p)
def _dynamic_update_slice(call: Call) -> Lowered:
    operand, update = call.operands[:2]
    builder = PlanBuilder(len(call.operands), 1)
    if operand.size == 0:
        return builder.build()
    if not call.in_place:
        add_copy(builder, call.read(0, True), call.write(0, True), (operand.size,), (1,))
    if update.size == 0:
        return builder.build()
    buffers, lines, names = _starts(call, 2, operand, update.shape)
    at, index = coordinates("i", update.shape, "c")
    steps = dense(operand.shape)
    first = offset(names, steps)
    lines = [
        *lines,
        *at,
        "v = tl.load(u + i, inside)",
        f"tl.store(y + ({first} + {offset(index, steps)} + i * 0), v, inside)",
    ]
    add_elements(
        builder,
        "dynamic_update_slice",
        {"u": call.read(1, True), **buffers, "y": call.write(0, True)},
        update.size,
        lines,
        wide=operand.size > INT32_MAX,
    )
    return builder.build()


# ---- sums by segment ----

# Those of the same ids, as in a forward pass and its gradient, share the sort of them: a step of
# its own, of which `ordered_sum_p` takes the result.

sort_rows_p = Primitive(
    "sort_rows", lambda ids, *, rows, mode: Aval((ids.size,), dtypes.I64), listed=False
)
"""The order in which a sum into `rows` segments adds what has these ids: `SortRows`."""

ordered_sum_p = Primitive(
    "ordered_sum",
    lambda data, order, *, num_segments, axes: data.update((num_segments, *data.shape[axes:])),
    flops=lambda ins, outs, **_: ins[0].size,
    listed=False,
)
"""`segment_sum` of data whose first `axes` axes are those of the ids, in the order of `sort_rows`
instead of the ids."""


def scatter_of(
    prim: Primitive, avals: Sequence[Aval], params: dict[str, Any], site: int = 0
) -> ScatterRows:
    """The scatter that a sum of `segment_sum_p` or `ordered_sum_p` is; unsigned ids as int64."""
    data, ids = avals
    if prim is ordered_sum_p:
        columns = math.prod(data.shape[params["axes"] :])
        spec = ScatterRows(
            params["num_segments"], columns, ids.size, NAMES[data.dtype], entries=True
        )
    else:
        spec = ScatterRows(
            params["num_segments"],
            math.prod(data.shape[ids.ndim :]),
            ids.size,
            NAMES[data.dtype],
            index_dtype="i64" if dtypes.is_unsigned(ids.dtype) else NAMES[ids.dtype],
            mode="clip" if params["mode"] == "clip" else "drop",
            unique=params["unique_indices"],
            sorted=params["indices_are_sorted"],
            deterministic=params["deterministic"],
            site=site,
        )
    # Booleans as bytes: adding is taking the maximum.
    return replace(spec, dtype="u8", operation="max") if data.dtype == dtypes.BOOL else spec


@lowers(segment_sum_p)
def _segment_sum(call: Call) -> Lowered:
    data, ids = call.operands
    checked = call.params["mode"] == "check"
    count = ids.size
    builder = PlanBuilder(2, 1 + checked)
    if 0 in (call.out.size, count):
        add_fill(builder, call.write(), call.out.size, 0, call.out.dtype)
        return builder.build()
    index = call.read(1)
    if dtypes.is_unsigned(ids.dtype):
        # As int64, so that nothing wraps into the range.
        index = builder.workspace(count, "i64")
        add_elements(
            builder,
            "widen",
            {"x": call.read(1), "y": index},
            count,
            [*index_lines("x", "i", ids.dtype, "v"), "tl.store(y + i, v, inside)"],
        )
    spec = scatter_of(call.prim, (data, ids), call.params, call.site * SITES if checked else 0)
    held, out = [BufferArg(b.index, spec.dtype) for b in (call.read(0), call.write())]
    buffers = [index, held, out, *([BufferArg(3, "i64")] if checked else [])]
    builder.include(plan_scatter_rows(spec, call.target), buffers)
    return builder.build()


@lowers(sort_rows_p)
def _sort_rows(call: Call) -> Lowered:
    (ids,) = call.operands
    mode = "clip" if call.params["mode"] == "clip" else "drop"
    spec = SortRows(call.params["rows"], ids.size, NAMES[ids.dtype], mode)
    return plan_sort_rows(spec, call.target)


@lowers(ordered_sum_p)
def _ordered_sum(call: Call) -> Lowered:
    builder = PlanBuilder(2, 1)
    plan = plan_scatter_rows(scatter_of(call.prim, call.operands, call.params), call.target)
    builder.include(plan, [call.read(1), call.read(0), call.write()])
    return builder.build()
