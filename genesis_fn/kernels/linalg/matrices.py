"""Stacks of matrices between row-major and column-major order, and tables of their addresses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.plan import BufferArg, Plan, Scalar
from genesis_fn.kernels.plan_builder import INT32_MAX, PlanBuilder, cdiv

_TRIANGLES = {None: 0, "upper": 1, "lower": 2}


@dataclass(frozen=True, slots=True)
class Words:
    """An element as integers that are moved: `count` of the type `name`. `nan` is NaN as one."""

    name: str
    nan: int
    count: int = 1

    @property
    def bytes(self) -> int:
        """The bytes of an element."""
        return self.count * int(self.name[1:]) // 8


_NAN32, _NAN64 = 0x7FC00000, 0x7FF8000000000000
WORDS = {
    "float32": Words("i32", _NAN32), "float64": Words("i64", _NAN64),
    "complex64": Words("i64", _NAN32 << 32 | _NAN32), "complex128": Words("i64", _NAN64, 2),
}  # fmt: skip


@triton.jit
def transpose_kernel(
    source,
    out,
    info,
    rows,
    columns,
    source_stride,
    out_stride,
    source_matrix,
    out_matrix,
    TRIANGLE: tl.constexpr,
    POISON: tl.constexpr,
    NAN: tl.constexpr,
    WORDS: tl.constexpr,
    TILE: tl.constexpr,
):
    """out[m, j, i] = source[m, i, j], or zero outside of a triangle of the source; with POISON, NaN
    in place of elements where info[m] is not zero."""
    across = tl.cdiv(columns, TILE)
    tiles = tl.cdiv(rows, TILE) * across
    matrix = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    i = (tile // across) * TILE + tl.arange(0, TILE)
    j = (tile % across) * TILE + tl.arange(0, TILE)
    read = matrix * source_matrix + i.to(tl.int64)[:, None] * source_stride + j[None, :]
    write = matrix * out_matrix + j.to(tl.int64)[:, None] * out_stride + i[None, :]
    inside = (i < rows)[:, None] & (j < columns)[None, :]
    kept = inside
    if TRIANGLE == 1:
        kept = inside & (i[:, None] <= j[None, :])
    elif TRIANGLE == 2:
        kept = inside & (i[:, None] >= j[None, :])
    for word in tl.static_range(WORDS):
        value = tl.load(source + read * WORDS + word, kept, other=0)
        if POISON:
            value = tl.where(kept & (tl.load(info + matrix) != 0), NAN, value)
        tl.store(out + write * WORDS + word, tl.trans(value), tl.trans(inside))


@dataclass(frozen=True, slots=True)
class Transpose:
    """out[m, j, i] = source[m, i, j] of matrices [count, rows, columns].

    Strides are in elements, from row to row and from matrix to matrix; dense where not given.
    Elements outside of the source's `triangle` become zero. With `poisoned`, an int32 for each
    matrix says whether NaN takes the place of its elements.
    """

    count: int
    rows: int
    columns: int
    kind: str
    source_stride: int | None = None
    source_matrix: int | None = None
    out_matrix: int | None = None
    triangle: Literal["upper", "lower"] | None = None
    poisoned: bool = False


def plan_transpose(spec: Transpose, target: Target) -> Plan:
    """source [, info] -> out."""
    builder = PlanBuilder(1 + spec.poisoned, 1)
    words, rows, columns = WORDS[spec.kind], spec.rows, spec.columns
    source_stride = columns if spec.source_stride is None else spec.source_stride
    source_matrix = rows * source_stride if spec.source_matrix is None else spec.source_matrix
    out_matrix = columns * rows if spec.out_matrix is None else spec.out_matrix
    tile = 8 if max(rows, columns) <= 8 else 32
    builder.launch(
        transpose_kernel,
        (spec.count * cdiv(rows, tile) * cdiv(columns, tile),),
        {
            "source": BufferArg(0, words.name),
            "out": BufferArg(1 + spec.poisoned, words.name),
            "info": BufferArg(1, "i32"),
            "rows": Scalar(rows),
            "columns": Scalar(columns),
            "source_stride": _long(source_stride),
            "out_stride": _long(rows),
            "source_matrix": _long(source_matrix),
            "out_matrix": _long(out_matrix),
        },
        {
            "TRIANGLE": _TRIANGLES[spec.triangle],
            "POISON": spec.poisoned,
            "NAN": words.nan,
            "WORDS": words.count,
            "TILE": tile,
        },
        num_warps=1 if tile == 8 else 4,
    )
    return builder.build()


def _long(value: int) -> Scalar:
    return Scalar(value, "i32" if value <= INT32_MAX else "i64")


@triton.jit
def addresses_kernel(first, table, count, stride, BLOCK: tl.constexpr):
    """table[i] = the address of byte i * stride of a buffer."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(table + i, first.to(tl.int64) + i.to(tl.int64) * stride, i < count)


@dataclass(frozen=True, slots=True)
class Addresses:
    """A table of the addresses of `count` matrices, `stride` bytes apart."""

    count: int
    stride: int


def plan_addresses(spec: Addresses, target: Target) -> Plan:
    """matrices -> table (int64)."""
    builder = PlanBuilder(1, 1)
    builder.launch(
        addresses_kernel,
        (cdiv(spec.count, 256),),
        {
            "first": BufferArg(0, "u8"),
            "table": BufferArg(1, "i64"),
            "count": Scalar(spec.count),
            "stride": _long(spec.stride),
        },
        {"BLOCK": 256},
    )
    return builder.build()


@triton.jit
def poison_kernel(info, out, size, VALUE: tl.constexpr, BLOCK: tl.constexpr):
    """out[m, :size] = VALUE where info[m] is not zero."""
    across = tl.cdiv(size, BLOCK)
    matrix = (tl.program_id(0) // across).to(tl.int64)
    at = (tl.program_id(0) % across).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if tl.load(info + matrix) != 0:
        value = tl.full((BLOCK,), VALUE, out.dtype.element_ty)
        tl.store(out + matrix * size + at, value, at < size)


@dataclass(frozen=True, slots=True)
class MatrixNumbers:
    """`size` floats for each of `count` matrices, of type `name`."""

    count: int
    size: int
    name: str


def plan_poison(spec: MatrixNumbers, target: Target, value: float = math.nan) -> Plan:
    """info (an int32 for each matrix) -> `value` for all numbers of those where it is not zero;
    others stay."""
    builder = PlanBuilder(1, 1)
    builder.launch(
        poison_kernel,
        (spec.count * cdiv(spec.size, 4096),),
        {"info": BufferArg(0, "i32"), "out": BufferArg(1, spec.name), "size": _long(spec.size)},
        {"VALUE": value, "BLOCK": 4096},
        num_warps=8,
    )
    return builder.build()


@triton.jit
def flaws_kernel(x, info, size, INFINITIES: tl.constexpr, BLOCK: tl.constexpr):
    """info[m] = 1 where one of x[m, :size] is NaN, or an infinity."""
    across = tl.cdiv(size, BLOCK)
    matrix = (tl.program_id(0) // across).to(tl.int64)
    at = (tl.program_id(0) % across).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + matrix * size + at, at < size, other=0.0)
    # An infinity minus itself is NaN.
    wrong = (value - value != 0) if INFINITIES else (value != value)
    if tl.max(wrong.to(tl.int32), 0) > 0:
        tl.store(info + matrix, 1)


def plan_flaws(spec: MatrixNumbers, target: Target, *, infinities: bool) -> Plan:
    """numbers -> info, set for matrices that hold NaN, or infinities, too; others stay."""
    builder = PlanBuilder(1, 1)
    builder.launch(
        flaws_kernel,
        (spec.count * cdiv(spec.size, 4096),),
        {"x": BufferArg(0, spec.name), "info": BufferArg(1, "i32"), "size": _long(spec.size)},
        {"INFINITIES": infinities, "BLOCK": 4096},
        num_warps=8,
    )
    return builder.build()
