"""Eager reductions over any axes, with run-time sizes: sum, product, extremes, logic, argmax.

A program accumulates tiles of [kept, reduced] elements, element by element, and reduces the tile
once at the end. A reduction with few results is split along the reduced axis, and a second launch
combines the partial results: the order depends on shapes and the GPU only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from genesis_fn.backends.cuda.codegen.kernel_text import (
    Strided,
    collapsed,
    extent,
    indented,
    source_kernel,
)
from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, lowers
from genesis_fn.compiler.target import Target
from genesis_fn.core import dtypes
from genesis_fn.core.backend.lowering import Reduce
from genesis_fn.core.dtypes import DType
from genesis_fn.kernels.language.dtypes import MEMORY, NAMES
from genesis_fn.kernels.language.expressions import literal, loaded, register, stored
from genesis_fn.kernels.plan import Argument, BufferArg, Scalar
from genesis_fn.kernels.plan_builder import INT32_MAX, PlanBuilder, cdiv, dense, next_power_of_two

TILE = 2048
_COMBINE = {
    "add": "acc + v", "multiply": "acc * v", "maximum": "maximum(acc, v)",
    "minimum": "minimum(acc, v)", "bit_and": "acc & v", "bit_or": "acc | v", "bit_xor": "acc ^ v",
}  # fmt: skip
# Of booleans, as integers of 0 and 1.
_LOGIC = {"add": "maximum", "bit_or": "maximum", "multiply": "minimum", "bit_and": "minimum"}


@dataclass(frozen=True)
class ReductionSpec:
    """A reduction: how it combines elements, in which dtype it accumulates, its identity."""

    combine: str
    accumulator: DType
    identity: Any


def reduction_spec(how: Reduce, kind: DType) -> ReductionSpec:
    """How elements of `kind` are reduced."""
    if kind == dtypes.BOOL:
        logic = _LOGIC.get(how.combine, how.combine)
        return ReductionSpec(logic, dtypes.I32, {"maximum": 0, "minimum": 1}.get(logic, 0))
    if dtypes.is_float(kind):
        wide = dtypes.F64 if kind == dtypes.F64 else dtypes.F32
    elif kind.itemsize < 4:
        wide = dtypes.U32 if dtypes.is_unsigned(kind) else dtypes.I32
    else:
        wide = kind
    return ReductionSpec(how.combine, wide, how.identity(kind))


def reduction_text(
    reduction: ReductionSpec, source: DType, result: DType, column: Strided, row: Strided
) -> list[str]:
    """The body of the kernel that reduces views of `source` into `result`."""
    acc = reduction.accumulator
    value = loaded("tl.load(x + ko0[:, None] + ro0[None, :], here)", source)
    if register(source) != MEMORY[acc]:
        value = f"({value}).to({MEMORY[acc]})"
    identity = literal(reduction.identity, acc)
    total = stored(total_text(reduction, result), result)
    lines = [
        *_walk(column),
        f"acc = tl.full((BK, BR), 0, {MEMORY[acc]}) + {identity}",
        "for r0 in range(begin, end, BR):",
        *_inside(row),
        f"    v = {value}",
        f"    v = tl.where(here, v, {identity})",
        f"    acc = {accumulation(reduction)}",
        f"tl.store(y + split * K + k, {total}, kin)",
    ]
    return lines


def accumulation(reduction: ReductionSpec) -> str:
    """Text of the tile `acc` with the values `v` taken in."""
    return _COMBINE[reduction.combine]


def total_text(reduction: ReductionSpec, result: DType) -> str:
    """Text of the tile `acc` reduced along its second axis, as a register value of `result`."""
    total = _final(reduction)
    if result == dtypes.BOOL:
        return f"(({total}) & 1) != 0" if reduction.combine == "bit_xor" else f"({total}) != 0"
    return f"({total}).to({register(result)})"


def _walk(column: Strided) -> list[str]:
    return [
        "k = tl.program_id(0).to(PER.dtype) * BK + tl.arange(0, BK)",
        "split = tl.program_id(1).to(PER.dtype)",
        "kin = k < K",
        *column.lines("k"),
        "begin = split * PER",
        "end = tl.minimum(begin + PER, R)",
    ]


def _inside(row: Strided) -> list[str]:
    return [
        "    r = r0 + tl.arange(0, BR)",
        "    here = kin[:, None] & (r < end)[None, :]",
        *[f"    {line}" for line in row.lines("r")],
    ]


def _final(reduction: ReductionSpec) -> str:
    """Text of the tile's reduction along its second axis."""
    combine, acc = reduction.combine, reduction.accumulator
    if combine in ("maximum", "minimum"):
        name = combine[:3]
        if not dtypes.is_float(acc):
            return f"tl.{name}(acc, 1)"
        sign = "-" if name == "max" else ""
        clean = f'tl.{name}(tl.where(acc != acc, float("{sign}inf"), acc), 1)'
        return f'tl.where(tl.max((acc != acc).to(tl.int32), 1) != 0, float("nan"), {clean})'
    if combine == "add":
        return "tl.sum(acc, 1)"
    if combine == "bit_xor":
        return "tl.xor_sum(acc, 1)"
    return f"tl.reduce(acc, 1, {combine})"


def _position_key(greatest: bool, source: DType) -> tuple[list[str], str]:
    """(lines that map a register value v to an integer key, largest where wanted; its type)."""
    flip = "" if greatest else "~"
    if dtypes.is_float(source):
        integer, top = ("i64", 2**63 - 1) if source == dtypes.F64 else ("i32", 2**31 - 1)
        t = f"tl.int{integer[1:]}"
        mask = f"tl.full((), {top}, {t})"
        lines = [
            "    nan = v != v",
            "    v = tl.where(v == 0, v - v, v)",
            f"    b = v.to({t}, bitcast=True)",
            f"    b = {flip}tl.where(b < 0, b ^ {mask}, b)",
            f"    key = tl.where(nan, {mask}, b)",
        ]
        return lines, integer
    if source == dtypes.U64:
        lines = [
            "    b = v.to(tl.int64, bitcast=True) ^ tl.full((), -9223372036854775808, tl.int64)"
        ]
        return [*lines, f"    key = {flip}b"], "i64"
    integer = "i64" if source in (dtypes.I64, dtypes.U32) else "i32"
    return [f"    key = {flip}v.to(tl.int{integer[1:]})"], integer


def position_text(
    source: DType,
    result: DType,
    greatest: bool,
    first: bool,
    last: bool,
    column: Strided,
    row: Strided,
) -> tuple[list[str], str]:
    """(body, key type) of one launch of an argmax or argmin: from values (`first`) or partial keys,
    to partial keys and positions or (`last`) the position alone."""
    to_key, integer = _position_key(greatest, source)
    key = f"tl.int{integer[1:]}"
    if first:
        value = loaded("tl.load(x + ko0[:, None] + ro0[None, :], here)", source)
        load = [
            f"    v = {value}",
            *to_key,
            "    at = tl.broadcast_to(r[None, :], (BK, BR)).to(tl.int64)",
        ]
    else:
        load = [
            "    key = tl.load(x + ko0[:, None] + ro0[None, :], here)",
            "    at = tl.load(p + ko0[:, None] + ro0[None, :], here)",
        ]
    write = (
        [f"tl.store(y + k, position.to({MEMORY[result]}), kin)"]
        if last
        else ["tl.store(y + split * K + k, top, kin)", "tl.store(q + split * K + k, position, kin)"]
    )
    lines = [
        *_walk(column),
        f"best = tl.full((BK, BR), {-(2 ** (int(integer[1:]) - 1))}, {key})",
        "where = tl.full((BK, BR), 9223372036854775807, tl.int64)",
        "for r0 in range(begin, end, BR):",
        *_inside(row),
        *load,
        "    better = here & ((key > best) | (where == 9223372036854775807))",
        "    best = tl.where(better, key, best)",
        "    where = tl.where(better, at, where)",
        "top = tl.max(best, 1)",
        "position = tl.min(tl.where(best == top[:, None], where, 9223372036854775807), 1)",
        *write,
    ]
    return lines, integer


class _ReductionTiling:
    """The tiles of [kept, reduced] elements, and the splits of the reduced axis: about as many as
    make `programs` programs in all."""

    def __init__(self, kept: int, reduced: int, along: bool, programs: int) -> None:
        if along:
            self.br = min(1024, max(16, next_power_of_two(reduced)))
            self.bk = max(1, min(TILE // self.br, next_power_of_two(kept)))
        else:
            self.bk = min(128, max(16, next_power_of_two(kept)))
            self.br = max(1, min(TILE // self.bk, next_power_of_two(reduced)))
        columns = cdiv(kept, self.bk)
        most = reduced // (4 * self.br)
        self.parts = max(1, min(most, programs // max(columns, 1)))
        self.per = max(1, cdiv(cdiv(reduced, self.parts), self.br)) * self.br
        self.parts = max(1, cdiv(reduced, self.per))
        self.grid = (columns, self.parts)


def splits(kept: int, reduced: int, along: bool, target: Target) -> bool:
    """Whether a reduction of these sizes has too few results to keep a GPU busy without a split."""
    return _ReductionTiling(kept, reduced, along, 8 * target.processors).parts > 1


@lowers(Reduce)
def _reduce(call: Call) -> Lowered:
    """A second launch combines the partial results of split rows; positions count along the row."""
    how, params, x = call.prim.lowering, call.params, call.operands[0]
    assert type(how) is Reduce
    kind, result, shape = x.dtype, call.out.dtype, x.shape
    axes = [params["axis"]] if how.position else sorted(params["axes"])
    source, target, strides = call.read(0), call.write(), dense(shape)
    builder = PlanBuilder(1, 1)
    kept_axes = [d for d in range(len(shape)) if d not in axes]
    kept_shape, axes_shape = [shape[d] for d in kept_axes], [shape[d] for d in axes]
    kept, reduced = math.prod(kept_shape), math.prod(axes_shape)
    if kept == 0:
        return builder.build()
    columns, (kept_steps,) = collapsed(kept_shape, [strides[d] for d in kept_axes])
    rows, (row_steps,) = collapsed(axes_shape, [strides[d] for d in axes])
    along = bool(row_steps) and row_steps[-1] == 1
    wide = max(extent(shape, strides), kept, reduced) > INT32_MAX - 2 * TILE
    number = "i64" if wide else "i32"
    split = _ReductionTiling(kept, reduced, along, 8 * call.target.processors)
    column, row = Strided("k", columns, kept_steps), Strided("r", rows, row_steps)
    partial = [Strided("k", [kept], [1]), Strided("r", [split.parts], [kept])]

    def launch(
        name: str,
        buffers: dict[str, BufferArg],
        lines: list[str],
        at: tuple[Any, ...],
        cut: _ReductionTiling,
        length: int,
    ) -> None:
        scalars = {
            **at[0].scalars(number),
            **at[1].scalars(number),
            "K": Scalar(kept, number),
            "R": Scalar(length, number),
            "PER": Scalar(cut.per, number),
        }
        names = ", ".join([*buffers, *scalars, "BK: tl.constexpr", "BR: tl.constexpr"])
        arguments: dict[str, Argument] = {**buffers, **scalars}
        kernel = source_kernel(name, names, indented(lines))
        builder.launch(kernel, cut.grid, arguments, {"BK": cut.bk, "BR": cut.br})

    def second() -> _ReductionTiling:
        cut = _ReductionTiling(kept, split.parts, False, 1)
        cut.parts, cut.per, cut.grid = 1, split.parts, (cdiv(kept, cut.bk), 1)
        return cut

    once = split.parts == 1
    name = call.prim.name
    if how.position:
        greatest = how.combine == "maximum"
        lines, integer = position_text(kind, result, greatest, True, once, column, row)
        if once:
            buffers = {"x": source, "y": target}
            launch(name, buffers, lines, (column, row), split, reduced)
            return builder.build()
        keys = builder.workspace(split.parts * kept, integer)
        positions = builder.workspace(split.parts * kept, "i64")
        buffers = {"x": source, "y": keys, "q": positions}
        launch(name, buffers, lines, (column, row), split, reduced)
        lines, _ = position_text(kind, result, greatest, False, True, *partial)
        buffers = {"x": keys, "p": positions, "y": target}
        launch(name, buffers, lines, tuple(partial), second(), split.parts)
        return builder.build()
    reduction = reduction_spec(how, kind)
    if once:
        lines = reduction_text(reduction, kind, result, column, row)
        launch(name, {"x": source, "y": target}, lines, (column, row), split, reduced)
        return builder.build()
    acc = reduction.accumulator
    held = builder.workspace(split.parts * kept, NAMES[acc])
    lines = reduction_text(reduction, kind, acc, column, row)
    launch(name, {"x": source, "y": held}, lines, (column, row), split, reduced)
    lines = reduction_text(reduction, acc, result, *partial)
    launch(name, {"x": held, "y": target}, lines, tuple(partial), second(), split.parts)
    return builder.build()
