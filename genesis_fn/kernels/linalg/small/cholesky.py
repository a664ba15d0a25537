"""Cholesky factors of many small matrices, each in the registers of some lanes of a warp."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.language import sqrt
from genesis_fn.kernels.linalg.small.rows import (
    LANES,
    at_lane,
    read_rows,
    row_constants,
    write_rows,
)
from genesis_fn.kernels.plan import BufferArg, Plan, Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv


@triton.jit
def small_cholesky_kernel(
    x,
    out,
    count,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    COMPLEX: tl.constexpr,
):
    """L of `count` matrices [N, N], zero above the diagonal; NaN where one is not positive."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    NUMBERS: tl.constexpr = PARTS * N
    lane = tl.arange(0, 32)
    row, first = lane % ROWS, lane // ROWS * ROWS
    matrix = tl.program_id(0) * (32 // ROWS) + lane // ROWS
    inside = (matrix < count) & (row < N)
    start = (matrix.to(tl.int64) * N + row) * NUMBERS
    columns = read_rows(x, start, inside, NUMBERS, WIDTH, GROUP, GROUP)
    zero = tl.zeros((32,), x.dtype.element_ty)
    failed = lane < 0
    result = ()
    for k in tl.static_range(N):
        pivot = at_lane(columns[k * PARTS], first + k)
        failed = failed | ~(pivot > 0)
        scale = 1.0 / sqrt(tl.where(pivot > 0, pivot, 1.0))  # of what is not positive, no matter
        real = columns[k * PARTS] * scale
        result = result + (tl.where(row < k, zero, real),)
        imaginary = zero
        if COMPLEX:
            imaginary = tl.where(row > k, columns[k * PARTS + 1] * scale, zero)
            result = result + (imaginary,)
        updated = columns[: (k + 1) * PARTS]
        for j in tl.static_range(k + 1, N):
            a = at_lane(real, first + j)
            if COMPLEX:
                b = at_lane(imaginary, first + j)
                updated = updated + (
                    tl.fma(-real, a, tl.fma(-imaginary, b, columns[j * 2])),
                    tl.fma(-imaginary, a, tl.fma(real, b, columns[j * 2 + 1])),
                )
            else:
                updated = updated + (tl.fma(-real, a, columns[j]),)
        columns = updated
    factors = ()
    for j in tl.static_range(N):
        for part in tl.static_range(PARTS):
            value = tl.where(failed & (row >= j), float("nan"), result[j * PARTS + part])
            factors = factors + (value,)
    write_rows(out, start, inside, factors, NUMBERS, WIDTH, GROUP, GROUP)


@dataclass(frozen=True, slots=True)
class SmallCholesky:
    """Cholesky factors of `count` matrices [n, n]; numbers are of type `name`, two of them an
    element if `is_complex`."""

    count: int
    n: int
    name: str
    is_complex: bool = False

    def __post_init__(self) -> None:
        if self.n > LANES:
            raise ValueError(f"{self}: at most {LANES} rows")


def plan_small_cholesky(spec: SmallCholesky, target: Target) -> Plan:
    """matrices, of which lower triangles are read -> factors, zero above the diagonal."""
    builder = PlanBuilder(1, 1)
    constants = row_constants(spec.n, spec.name, spec.is_complex)
    builder.launch(
        small_cholesky_kernel,
        (cdiv(spec.count, LANES // constants["ROWS"]),),
        {"x": BufferArg(0, spec.name), "out": BufferArg(1, spec.name), "count": Scalar(spec.count)},
        constants,
        num_warps=1,
    )
    return builder.build()
