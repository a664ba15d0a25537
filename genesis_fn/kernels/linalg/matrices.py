"""Stacks of matrices between row-major and column-major order, and tables of their addresses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.plan import BufferArg, Plan, Scalar
from genesis_fn.kernels.plan_builder import INT32_MAX, PlanBuilder, cdiv, next_power_of_two

_SIDE = 32  # of a tile of a large matrix
_TILE = _SIDE * _SIDE
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
    count,
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
    MATRICES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """out[m, j, i] = source[m, i, j], or zero outside of a triangle of the source; with POISON, NaN
    in place of elements where info[m] is not zero."""
    across = tl.cdiv(columns, COLUMNS)
    tiles = tl.cdiv(rows, ROWS) * across
    matrix = tl.program_id(0) // tiles * MATRICES
    tile = tl.program_id(0) % tiles
    row, column = tile // across * ROWS, tile % across * COLUMNS
    # Where a tile begins takes 64 bits; offsets within it have the bits of the strides.
    read_from = matrix.to(tl.int64) * source_matrix + row.to(tl.int64) * source_stride + column
    write_from = matrix.to(tl.int64) * out_matrix + column.to(tl.int64) * out_stride + row
    # Rows of all matrices stand below one another, in words: two axes, of which the compiler lets
    # neighbouring threads read a row's neighbouring bytes.
    m, i = tl.arange(0, MATRICES * ROWS) // ROWS, tl.arange(0, MATRICES * ROWS) % ROWS
    at = tl.arange(0, COLUMNS * WORDS)
    read = ((m * source_matrix + i * source_stride) * WORDS)[:, None] + at[None, :]
    present = matrix + m < count
    inside = (present & (row + i < rows))[:, None] & (column + at // WORDS < columns)[None, :]
    # Tiles that touch a triangle are read whole: masks of single elements would split accesses
    # of 16 bytes.
    if TRIANGLE == 1:
        inside = inside & (row < column + COLUMNS)
    elif TRIANGLE == 2:
        inside = inside & (column < row + ROWS)
    value = tl.load(source + read_from * WORDS + read, inside)
    # Without a barrier here ptxas puts each load's store to shared memory, which waits for it,
    # before the next load, to save registers: up to eight trips to memory one after another.
    tl.debug_barrier()
    if POISON:
        failed = tl.load(info + matrix + m, present, other=0) != 0
        value = tl.where(failed[:, None], NAN, value)
    if TRIANGLE == 1:
        value = tl.where((row + i)[:, None] <= (column + at // WORDS)[None, :], value, 0)
    elif TRIANGLE == 2:
        value = tl.where((row + i)[:, None] >= (column + at // WORDS)[None, :], value, 0)
    value = tl.permute(tl.reshape(value, (MATRICES, ROWS, COLUMNS, WORDS)), (0, 2, 1, 3))
    m, j = tl.arange(0, MATRICES * COLUMNS) // COLUMNS, tl.arange(0, MATRICES * COLUMNS) % COLUMNS
    at = tl.arange(0, ROWS * WORDS)
    write = ((m * out_matrix + j * out_stride) * WORDS)[:, None] + at[None, :]
    inside = ((matrix + m < count) & (column + j < columns))[:, None]
    inside &= (row + at // WORDS < rows)[None, :]
    value = tl.reshape(value, (MATRICES * COLUMNS, ROWS * WORDS))
    tl.store(out + write_from * WORDS + write, value, inside)


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
    matrices, tile_rows, tile_columns = _tile(spec.count, rows, columns)
    source_reach = matrices * source_matrix + tile_rows * source_stride + tile_columns
    out_reach = matrices * out_matrix + tile_columns * rows + tile_rows
    # The bits of strides are those of offsets within a tile, in words.
    source_bits = _long(source_reach * words.count).dtype
    out_bits = _long(out_reach * words.count).dtype
    builder.launch(
        transpose_kernel,
        (cdiv(spec.count, matrices) * cdiv(rows, tile_rows) * cdiv(columns, tile_columns),),
        {
            "source": BufferArg(0, words.name),
            "out": BufferArg(1 + spec.poisoned, words.name),
            "info": BufferArg(1, "i32"),
            "count": Scalar(spec.count),
            "rows": Scalar(rows),
            "columns": Scalar(columns),
            "source_stride": Scalar(source_stride, source_bits),
            "out_stride": Scalar(rows, out_bits),
            "source_matrix": Scalar(source_matrix, source_bits),
            "out_matrix": Scalar(out_matrix, out_bits),
        },
        {
            "TRIANGLE": _TRIANGLES[spec.triangle],
            "POISON": spec.poisoned,
            "NAN": words.nan,
            "WORDS": words.count,
            "MATRICES": matrices,
            "ROWS": tile_rows,
            "COLUMNS": tile_columns,
        },
    )
    return builder.build()


def _tile(count: int, rows: int, columns: int) -> tuple[int, int, int]:
    """The matrices, rows and columns of a program: `_TILE` elements, as square as they come."""
    count, rows, columns = map(next_power_of_two, (count, rows, columns))
    tile_rows = min(rows, max(_SIDE, _TILE // columns))
    tile_columns = min(columns, _TILE // tile_rows)
    return min(count, _TILE // (tile_rows * tile_columns)), tile_rows, tile_columns


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
