"""Vectors as this library has them, from what routines leave."""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.kernels.plan import BufferArg, Scalar
from genesis_fn.kernels.plan_builder import INT32_MAX, PlanBuilder, cdiv


@triton.jit
def align_signs_kernel(
    factors,
    vectors,
    rows,
    columns,
    factors_stride,
    factors_matrix,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """vectors[m, j, :rows] changes its sign where the diagonal of R, factors[m, j, j], is
    negative. Elements have PARTS numbers, the first of which is real."""
    across = tl.cdiv(rows * PARTS, BLOCK)
    line = (tl.program_id(0) // across).to(tl.int64)
    matrix, j = line // columns, line % columns
    at = (tl.program_id(0) % across) * BLOCK + tl.arange(0, BLOCK)
    diagonal = tl.load(factors + (matrix * factors_matrix + j * factors_stride + j) * PARTS)
    if diagonal < 0:
        place = vectors + line * rows * PARTS + at
        inside = at < rows * PARTS
        tl.store(place, -tl.load(place, inside), inside)


def add_align_signs(
    builder: PlanBuilder,
    factors: BufferArg,
    vectors: BufferArg,
    shape: tuple[int, int, int],
    factors_shape: tuple[int, int],
    parts: int,
) -> None:
    """Append the change of sign of columns of column-major `vectors`, (matrices, rows, columns) =
    `shape`, where a QR factorization has a negative diagonal: its (rows, elements a matrix) are
    `factors_shape`. Buffers are of floats."""
    matrices, rows, columns = shape
    builder.launch(
        align_signs_kernel,
        (matrices * columns * cdiv(rows * parts, 1024),),
        {
            "factors": factors,
            "vectors": vectors,
            "rows": Scalar(rows),
            "columns": Scalar(columns),
            "factors_stride": Scalar(factors_shape[0]),
            "factors_matrix": Scalar(factors_shape[1], "i64"),
        },
        {"PARTS": parts, "BLOCK": 1024},
    )


@triton.jit
def complex_vectors_kernel(vectors, values, out, n, BLOCK: tl.constexpr):
    """out[i, j], complex and row-major, from the column-major real vectors of a real matrix:
    columns j and j + 1 are the real and imaginary parts of a pair of complex vectors."""
    across = tl.cdiv(n, BLOCK)
    matrix = (tl.program_id(0) // (across * across)).to(tl.int64)
    vectors += matrix * n * n
    values += matrix * 2 * n
    out += matrix * 2 * n * n
    i = (tl.program_id(0) // across % across) * BLOCK + tl.arange(0, BLOCK)
    j = (tl.program_id(0) % across) * BLOCK + tl.arange(0, BLOCK)
    sign = tl.load(values + 2 * j + 1, j < n, other=0.0)[None, :]
    inside = (i < n)[:, None] & (j < n)[None, :]
    at = j.to(tl.int64)[None, :] * n + i[:, None]
    real = tl.load(vectors + tl.where(sign < 0, at - n, at), inside, other=0.0)
    part = tl.load(vectors + tl.where(sign > 0, at + n, at), inside & (sign != 0), other=0.0)
    place = out + 2 * (i.to(tl.int64)[:, None] * n + j[None, :])
    tl.store(place, real, inside)
    tl.store(place + 1, tl.where(sign < 0, -part, part), inside)


def add_complex_vectors(
    builder: PlanBuilder,
    vectors: BufferArg,
    values: BufferArg,
    out: BufferArg,
    shape: tuple[int, int],
) -> None:
    """Append the complex eigenvectors of real n x n matrices, one in each column; `shape` =
    (matrices, n). Buffers are of floats."""
    matrices, n = shape
    builder.launch(
        complex_vectors_kernel,
        (matrices * cdiv(n, 32) ** 2,),
        {"vectors": vectors, "values": values, "out": out, "n": Scalar(n)},
        {"BLOCK": 32},
    )


@triton.jit
def conjugate_kernel(x, count, BLOCK: tl.constexpr):
    """Negates every second of 2 * count numbers."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = x + 2 * at + 1
    tl.store(place, -tl.load(place, at < count), at < count)


def add_conjugate(builder: PlanBuilder, x: BufferArg, count: int) -> None:
    """Append the conjugation, in place, of `count` complex numbers in a buffer of floats."""
    builder.launch(
        conjugate_kernel,
        (cdiv(count, 1024),),
        {"x": x, "count": Scalar(count, "i64" if count > INT32_MAX else "i32")},
        {"BLOCK": 1024},
    )
