"""Stacks of matrices between row-major and column-major order, and tables of their addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import triton
import triton.language as tl

from genesis_fn.kernels.plan import BufferArg, Scalar
from genesis_fn.kernels.plan_builder import INT32_MAX, PlanBuilder, cdiv

_TRIANGLES = {None: 0, "upper": 1, "lower": 2}


@dataclass(frozen=True, slots=True)
class Words:
    """An element as integers that are moved: `count` of the type `name`."""

    name: str
    count: int = 1

    @property
    def bytes(self) -> int:
        """The bytes of an element."""
        return self.count * int(self.name[1:]) // 8


WORDS = {
    "float32": Words("i32"), "float64": Words("i64"), "complex64": Words("i64"),
    "complex128": Words("i64", 2),
}  # fmt: skip


@triton.jit
def transpose_kernel(
    source,
    out,
    rows,
    columns,
    source_stride,
    out_stride,
    source_matrix,
    out_matrix,
    TRIANGLE: tl.constexpr,
    WORDS: tl.constexpr,
    TILE: tl.constexpr,
):
    """out[m, j, i] = source[m, i, j], or zero outside of a triangle of the source."""
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
        tl.store(out + write * WORDS + word, tl.trans(value), tl.trans(inside))


def add_transpose(
    builder: PlanBuilder,
    source: BufferArg,
    out: BufferArg,
    shape: tuple[int, int, int],
    words: Words,
    *,
    source_stride: int | None = None,
    out_stride: int | None = None,
    source_matrix: int | None = None,
    out_matrix: int | None = None,
    triangle: Literal["upper", "lower"] | None = None,
) -> None:
    """Append out[m, j, i] = source[m, i, j] of matrices [count, rows, columns] = `shape`.

    Strides are in elements, from row to row and from matrix to matrix; dense where not given.
    Elements outside of the source's `triangle` become zero.
    """
    count, rows, columns = shape
    source_stride = columns if source_stride is None else source_stride
    out_stride = rows if out_stride is None else out_stride
    source_matrix = rows * source_stride if source_matrix is None else source_matrix
    out_matrix = columns * out_stride if out_matrix is None else out_matrix
    tile = 8 if max(rows, columns) <= 8 else 32
    builder.launch(
        transpose_kernel,
        (count * cdiv(rows, tile) * cdiv(columns, tile),),
        {
            "source": BufferArg(source.index, words.name, source.offset),
            "out": BufferArg(out.index, words.name, out.offset),
            "rows": Scalar(rows),
            "columns": Scalar(columns),
            "source_stride": _long(source_stride),
            "out_stride": _long(out_stride),
            "source_matrix": _long(
                rows * source_stride if source_matrix is None else source_matrix
            ),
            "out_matrix": _long(out_matrix),
        },
        {"TRIANGLE": _TRIANGLES[triangle], "WORDS": words.count, "TILE": tile},
        num_warps=1 if tile == 8 else 4,
    )


def _long(value: int) -> Scalar:
    return Scalar(value, "i32" if value <= INT32_MAX else "i64")


@triton.jit
def addresses_kernel(first, table, count, stride, BLOCK: tl.constexpr):
    """table[i] = the address of byte i * stride of a buffer."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(table + i, first.to(tl.int64) + i.to(tl.int64) * stride, i < count)


def add_addresses(builder: PlanBuilder, first: BufferArg, count: int, stride: int) -> BufferArg:
    """Append what makes a table of the addresses of `count` matrices, `stride` bytes apart."""
    table = builder.workspace(count, "i64")
    builder.launch(
        addresses_kernel,
        (cdiv(count, 256),),
        {
            "first": BufferArg(first.index, "u8", first.offset),
            "table": table,
            "count": Scalar(count),
            "stride": _long(stride),
        },
        {"BLOCK": 256},
    )
    return table


@triton.jit
def poison_kernel(info, out, size, BLOCK: tl.constexpr):
    """out[m, :size] = NaN where info[m] is not zero."""
    across = tl.cdiv(size, BLOCK)
    matrix = (tl.program_id(0) // across).to(tl.int64)
    at = (tl.program_id(0) % across).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if tl.load(info + matrix) != 0:
        nan = tl.full((BLOCK,), float("nan"), out.dtype.element_ty)
        tl.store(out + matrix * size + at, nan, at < size)


def add_poison(
    builder: PlanBuilder, info: BufferArg, out: BufferArg, count: int, size: int
) -> None:
    """Append NaN for all `size` numbers of each of `count` results whose routine failed."""
    if size:
        builder.launch(
            poison_kernel,
            (count * cdiv(size, 4096),),
            {"info": info, "out": out, "size": _long(size)},
            {"BLOCK": 4096},
            num_warps=8,
        )
