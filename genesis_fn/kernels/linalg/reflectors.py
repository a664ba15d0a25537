"""Q of a QR factorization from its reflectors, many small matrices at once.

H_i = I - tau_i v_i v_i^H, with v_i zero above its i-th element, which is one; Q = H_1 H_2 ... H_k
(LAPACK Users' Guide, "QR Factorization").
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.plan import BufferArg, Plan
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


@dataclass(frozen=True, slots=True)
class Reflectors:
    """Q [rows, columns] of each of `matrices`, whose factors are `stride` elements apart; numbers
    are of type `name`, two of them an element if `is_complex`."""

    matrices: int
    rows: int
    columns: int
    reflectors: int
    stride: int
    name: str
    is_complex: bool = False

    def __post_init__(self) -> None:
        if self.rows > MOST_ROWS:
            raise ValueError(f"{self}: at most {MOST_ROWS} rows")


def plan_reflectors(spec: Reflectors, target: Target) -> Plan:
    """(factors, column-major, scales) -> Q, row-major."""
    builder = PlanBuilder(2, 1)
    row_block = next_power_of_two(spec.rows)
    # Some 4096 registers of numbers a program: a reduction over rows keeps them in few warps.
    numbers = 4096 // ((2 if spec.is_complex else 1) * (2 if spec.name == "fp64" else 1))
    block = min(next_power_of_two(spec.columns), max(2, numbers // row_block), 64)
    builder.launch(
        reflectors_kernel,
        (spec.matrices * cdiv(spec.columns, block),),
        {
            "factors": BufferArg(0, spec.name),
            "scales": BufferArg(1, spec.name),
            "out": BufferArg(2, spec.name),
        },
        {
            "ROWS": spec.rows,
            "COLUMNS": spec.columns,
            "REFLECTORS": spec.reflectors,
            "STRIDE": spec.stride,
            "COMPLEX": spec.is_complex,
            "ROW_BLOCK": row_block,
            "BLOCK": block,
        },
        num_warps=max(1, min(4, row_block * block // 512)),
    )
    return builder.build()
