"""Q of a QR factorization from its reflectors, many small matrices at once.

H_i = I - tau_i v_i v_i^H, with v_i zero above its i-th element, which is one; Q = H_1 H_2 ... H_k
(LAPACK Users' Guide, "QR Factorization").
"""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.kernels.plan import BufferArg
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv, next_power_of_two

MOST_ROWS = 512
"""A program holds some columns of Q whole."""


@triton.jit
def reflectors_kernel(
    factors,
    scales,
    out,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    REFLECTORS: tl.constexpr,
    STRIDE: tl.constexpr,
    COMPLEX: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Columns of Q [ROWS, COLUMNS], row-major, from factors whose column i begins at i * ROWS.
    Complex elements are two numbers."""
    ACROSS: tl.constexpr = (COLUMNS + BLOCK - 1) // BLOCK
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    matrix = (tl.program_id(0) // ACROSS).to(tl.int64)
    factors += matrix * STRIDE * PARTS
    scales += matrix * REFLECTORS * PARTS
    out += matrix * (ROWS * COLUMNS * PARTS)
    row = tl.arange(0, ROW_BLOCK)
    column = (tl.program_id(0) % ACROSS) * BLOCK + tl.arange(0, BLOCK)
    kind = out.dtype.element_ty
    real = (row[:, None] == column[None, :]).to(kind)
    imaginary = tl.zeros((ROW_BLOCK, BLOCK), kind)
    for step in range(REFLECTORS):
        i = REFLECTORS - 1 - step
        below = (row > i) & (row < ROWS)
        at = (i * ROWS + row) * PARTS
        v = tl.where(row == i, 1.0, tl.load(factors + at, below, other=0.0))
        tau = tl.load(scales + i * PARTS)
        if COMPLEX:
            w = tl.load(factors + at + 1, below, other=0.0)
            sigma = tl.load(scales + i * PARTS + 1)
            # v^H Q, times tau
            a = tl.sum(v[:, None] * real + w[:, None] * imaginary, 0)
            b = tl.sum(v[:, None] * imaginary - w[:, None] * real, 0)
            c = tau * a - sigma * b
            d = tau * b + sigma * a
            real -= v[:, None] * c[None, :] - w[:, None] * d[None, :]
            imaginary -= v[:, None] * d[None, :] + w[:, None] * c[None, :]
        else:
            real -= v[:, None] * (tau * tl.sum(v[:, None] * real, 0))[None, :]
    to = (row[:, None] * COLUMNS + column[None, :]) * PARTS
    inside = (row < ROWS)[:, None] & (column < COLUMNS)[None, :]
    tl.store(out + to, real, inside)
    if COMPLEX:
        tl.store(out + to + 1, imaginary, inside)


def add_reflectors(
    builder: PlanBuilder,
    factors: BufferArg,
    scales: BufferArg,
    out: BufferArg,
    shape: tuple[int, int, int, int],
    stride: int,
    is_complex: bool,
) -> None:
    """Append Q [rows, columns] of each of several matrices, `shape` = (matrices, rows, columns,
    reflectors), whose factors are `stride` elements apart. Buffers are of floats."""
    matrices, rows, columns, reflectors = shape
    row_block = next_power_of_two(rows)
    # Some 4096 numbers a program, which a reduction over rows keeps in few warps.
    block = min(next_power_of_two(columns), max(4, 4096 // row_block), 64)
    builder.launch(
        reflectors_kernel,
        (matrices * cdiv(columns, block),),
        {"factors": factors, "scales": scales, "out": out},
        {
            "ROWS": rows,
            "COLUMNS": columns,
            "REFLECTORS": reflectors,
            "STRIDE": stride,
            "COMPLEX": is_complex,
            "ROW_BLOCK": row_block,
            "BLOCK": block,
        },
        num_warps=max(1, min(4, row_block * block // 512)),
    )
