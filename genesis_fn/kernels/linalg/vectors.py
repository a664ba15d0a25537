"""Vectors as this library has them, from what routines leave."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.plan import BufferArg, Plan, Scalar
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
        element = vectors + line * rows * PARTS + at
        inside = at < rows * PARTS
        tl.store(element, -tl.load(element, inside), inside)


@dataclass(frozen=True, slots=True)
class Signs:
    """Column-major vectors [rows, columns] of `matrices`, and QR factors with so many rows and
    elements a matrix; numbers are of type `name`, `parts` of them an element."""

    matrices: int
    rows: int
    columns: int
    factor_rows: int
    factor_elements: int
    name: str
    parts: int = 1


def plan_align_signs(spec: Signs, target: Target) -> Plan:
    """factors -> vectors, of which those change their sign where the diagonal is negative."""
    builder = PlanBuilder(1, 1)
    builder.launch(
        align_signs_kernel,
        (spec.matrices * spec.columns * cdiv(spec.rows * spec.parts, 1024),),
        {
            "factors": BufferArg(0, spec.name),
            "vectors": BufferArg(1, spec.name),
            "rows": Scalar(spec.rows),
            "columns": Scalar(spec.columns),
            "factors_stride": Scalar(spec.factor_rows),
            "factors_matrix": Scalar(spec.factor_elements, "i64"),
        },
        {"PARTS": spec.parts, "BLOCK": 1024},
    )
    return builder.build()


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
    element = out + 2 * (i.to(tl.int64)[:, None] * n + j[None, :])
    tl.store(element, real, inside)
    tl.store(element + 1, tl.where(sign < 0, -part, part), inside)


@dataclass(frozen=True, slots=True)
class Vectors:
    """Eigenvectors of `matrices`, n x n; numbers are of type `name`."""

    matrices: int
    n: int
    name: str


def plan_complex_vectors(spec: Vectors, target: Target) -> Plan:
    """(real vectors, column-major, complex values) -> complex vectors, one in each column."""
    builder = PlanBuilder(2, 1)
    builder.launch(
        complex_vectors_kernel,
        (spec.matrices * cdiv(spec.n, 32) ** 2,),
        {
            "vectors": BufferArg(0, spec.name),
            "values": BufferArg(1, spec.name),
            "out": BufferArg(2, spec.name),
            "n": Scalar(spec.n),
        },
        {"BLOCK": 32},
    )
    return builder.build()


@triton.jit
def conjugate_kernel(x, count, BLOCK: tl.constexpr):
    """Negates every second of 2 * count numbers."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    element = x + 2 * at + 1
    tl.store(element, -tl.load(element, at < count), at < count)


@dataclass(frozen=True, slots=True)
class ComplexNumbers:
    """`count` complex numbers, of floats `name`."""

    count: int
    name: str


def plan_conjugate(spec: ComplexNumbers, target: Target) -> Plan:
    """-> the numbers, conjugated in element."""
    builder = PlanBuilder(0, 1)
    count = Scalar(spec.count, "i64" if spec.count > INT32_MAX else "i32")
    builder.launch(
        conjugate_kernel,
        (cdiv(spec.count, 1024),),
        {"x": BufferArg(0, spec.name), "count": count},
        {"BLOCK": 1024},
    )
    return builder.build()
