"""QR factorizations of many small matrices, each in the registers of some lanes of a warp.

Lanes hold the columns of A, and rows of Q: a reflector, which is a column of A, goes to all lanes,
each of which has its products with its own column and with its own row in registers. Reflectors are
LAPACK's (`larfg`), and so are signs.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.language import sqrt
from genesis_fn.kernels.linalg.small.elements import (
    add_product,
    conjugate,
    element_at,
    kept,
    negative,
    product,
    reciprocal,
    where_parts,
)
from genesis_fn.kernels.linalg.small.rows import (
    LANES,
    RING,
    at_lane,
    group_of,
    over_rows,
    read_rows,
    write_rows,
)
from genesis_fn.kernels.linalg.small.scale import scales
from genesis_fn.kernels.plan import BufferArg, Plan, Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv, next_power_of_two


@triton.jit
def reflector(alpha, tail, COMPLEX: tl.constexpr):
    """(beta, the parts of tau, those of 1 / (alpha - beta)) of the reflection I - tau v v^H that
    takes a vector to (beta, 0): v is 1 and, of the elements but the first, alpha, each over alpha -
    beta; the sum of their squares is `tail`. tau is zero where there is nothing to do."""
    # Columns are of size one: squares below this are of their rounding, and lose digits, so that
    # reflections by them would not be orthogonal.
    VANISHING: tl.constexpr = 2.0**-900 if tail.dtype == tl.float64 else 2.0**-100
    if COMPLEX:
        square = alpha[0] * alpha[0] + (alpha[1] * alpha[1] + tail)
        none = (square < VANISHING) | ((tail == 0) & (alpha[1] == 0))
    else:
        square = alpha[0] * alpha[0] + tail
        none = (square < VANISHING) | (tail == 0)
    norm = sqrt(square)
    beta = tl.where(alpha[0] < 0, norm, -norm)
    divisor = tl.where(none, 1.0, beta)
    tau = (tl.where(none, 0.0, (beta - alpha[0]) / divisor),)
    first = (tl.where(none, 1.0, alpha[0] - beta),)
    if COMPLEX:
        tau = tau + (tl.where(none, 0.0, -alpha[1] / divisor),)
        first = first + (alpha[1],)
    return tl.where(none, alpha[0], beta), tau, reciprocal(first, COMPLEX)


@triton.jit
def reflect_some(
    rows, q, column, first, START: tl.constexpr, END: tl.constexpr, M: tl.constexpr,
    COMPLEX: tl.constexpr,
):  # fmt: skip
    """Steps START to END of a factorization, on the rows of A and the columns of Q from START on;
    those of these steps end behind the others."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    LEFT: tl.constexpr = M - START
    for k in range(START, END):
        # The first row of A, and column of Q, is the k-th: they rotate.
        holder = first + k
        alpha = element_at(rows[:PARTS], holder, COMPLEX)
        zero = tl.zeros_like(rows[0])
        of_column = (zero, zero) if COMPLEX else (zero,)
        of_row = of_column
        below = ()
        for i in tl.static_range(1, LEFT):
            row = rows[i * PARTS : (i + 1) * PARTS]
            x = element_at(row, holder, COMPLEX)
            if i > M - END:  # rows that are done have come round
                x = kept(i < M - k, x, COMPLEX)
            of_column = add_product(of_column, conjugate(x, COMPLEX), row, COMPLEX)
            of_row = add_product(of_row, x, q[i * PARTS : (i + 1) * PARTS], COMPLEX)
            below = below + x
        tail = at_lane(of_column[0], holder)
        beta, tau, scale = reflector(alpha, tail, COMPLEX)
        across = conjugate(scale, COMPLEX)
        # conj(tau) v^H A, and tau Q v; the elements of v but the first are `below`, scaled.
        down = add_product(rows[:PARTS], across, of_column, COMPLEX)
        down = negative(product(conjugate(tau, COMPLEX), down, COMPLEX), COMPLEX)
        along = add_product(q[:PARTS], scale, of_row, COMPLEX)
        along = negative(product(tau, along, COMPLEX), COMPLEX)
        down_scaled = product(scale, down, COMPLEX)
        along_scaled = product(across, along, COMPLEX)
        new_rows = ()
        new_q = ()
        for i in tl.static_range(1, LEFT):
            x = below[(i - 1) * PARTS : i * PARTS]
            row = rows[i * PARTS : (i + 1) * PARTS]
            new_rows = new_rows + add_product(row, x, down_scaled, COMPLEX)
            mine = q[i * PARTS : (i + 1) * PARTS]
            new_q = new_q + add_product(mine, conjugate(x, COMPLEX), along_scaled, COMPLEX)
        last = (rows[0] + down[0],)
        last_q = (q[0] + along[0],)
        diagonal = (beta,)
        if COMPLEX:
            last = last + (rows[1] + down[1],)
            last_q = last_q + (q[1] + along[1],)
            diagonal = diagonal + (zero,)
        rows = new_rows + where_parts(column == k, diagonal, last, COMPLEX)
        q = new_q + last_q
    return rows, q


@triton.jit
def factored(
    rows, line, first, M: tl.constexpr, N: tl.constexpr, LINES: tl.constexpr,
    COMPLEX: tl.constexpr,
):  # fmt: skip
    """(R but for a factor of each column, Q, that factor, whether some number of a matrix is not
    finite); of R, elements below the diagonal are anything."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    STEPS: tl.constexpr = min(M, N)
    # Complex rows are four times the code: half as many loops are as fast (1024 of 32 x 32 in
    # complex64: 57 us), and take 4 seconds to compile for 7.
    SOME: tl.constexpr = 2 * RING if COMPLEX else RING
    # Columns that are scaled have the same Q.
    down, up, flawed = scales(rows, 1)
    flawed = over_rows(flawed.to(tl.int32), LINES, True) > 0
    scaled = ()
    q = ()
    for i in tl.static_range(M):
        for part in tl.static_range(PARTS):
            scaled = scaled + (rows[i * PARTS + part] * down,)
            q = q + (tl.where((line == i) & (part == 0), 1.0, tl.zeros_like(down)),)
    rows = scaled
    done = ()
    done_q = ()
    for some in tl.static_range(0, STEPS, SOME):
        rows, q = reflect_some(rows, q, line, first, some, min(some + SOME, STEPS), M, COMPLEX)
        done = done + rows[PARTS * (M - min(some + SOME, STEPS)) :]
        done_q = done_q + q[PARTS * (M - min(some + SOME, STEPS)) :]
        rows = rows[: PARTS * (M - min(some + SOME, STEPS))]
        q = q[: PARTS * (M - min(some + SOME, STEPS))]
    return done + rows, done_q + q, up, flawed


@triton.jit
def small_qr_kernel(
    x,
    out,
    upper,
    count,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    LINES: tl.constexpr,
    COMPLEX: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Q [M, K] and R [K, N] of `count` matrices [M, N], each in LINES lanes; NaN of those that hold
    a number that is not finite."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    lane = tl.arange(0, 32)
    line, first = lane % LINES, lane // LINES * LINES
    matrix = (tl.program_id(0) * (32 // LINES) + lane // LINES).to(tl.int64)
    is_column = (matrix < count) & (line < N)
    start = matrix * (M * N * PARTS) + line * PARTS
    rows = read_rows(
        x, start, is_column, PARTS * M, WIDTH, PARTS, N * PARTS
    )[: PARTS * M]  # fmt: skip
    rows, q, up, flawed = factored(rows, line, first, M, N, LINES, COMPLEX)
    triangle = ()
    vectors = ()
    for i in tl.static_range(K):
        for part in tl.static_range(PARTS):
            entry = tl.where(line < i, 0.0, rows[i * PARTS + part] * up)
            triangle = triangle + (tl.where(flawed, float("nan"), entry),)
            vectors = vectors + (tl.where(flawed, float("nan"), q[i * PARTS + part]),)
    at = matrix * (K * N * PARTS) + line * PARTS
    write_rows(upper, at, is_column, triangle, PARTS * K, WIDTH, PARTS, N * PARTS)
    at = (matrix * M + line) * (K * PARTS)
    is_row = (matrix < count) & (line < M)
    write_rows(out, at, is_row, vectors, PARTS * K, WIDTH, GROUP, GROUP)


@dataclass(frozen=True, slots=True)
class SmallQr:
    """Factorizations of `count` matrices [m, n], with Q [m, m] if `full`, else [m, min(m, n)];
    numbers are of type `name`, two of them an element if `is_complex`."""

    count: int
    m: int
    n: int
    name: str
    is_complex: bool = False
    full: bool = False

    def __post_init__(self) -> None:
        if max(self.m, self.n) > LANES:
            raise ValueError(f"{self}: at most {LANES} rows and columns")


def plan_small_qr(spec: SmallQr, target: Target) -> Plan:
    """matrices -> (Q, R), R's diagonal as LAPACK's `geqrf` has it."""
    builder = PlanBuilder(1, 2)
    lines = next_power_of_two(max(spec.m, spec.n))
    width = next_power_of_two(spec.m) * (2 if spec.is_complex else 1)
    builder.launch(
        small_qr_kernel,
        (cdiv(spec.count, LANES // lines),),
        {
            "x": BufferArg(0, spec.name),
            "out": BufferArg(1, spec.name),
            "upper": BufferArg(2, spec.name),
            "count": Scalar(spec.count),
        },
        {
            "M": spec.m,
            "N": spec.n,
            "K": spec.m if spec.full else min(spec.m, spec.n),
            "LINES": lines,
            "COMPLEX": spec.is_complex,
            "WIDTH": width,
            "GROUP": group_of(width, spec.name),
        },
        num_warps=1,
    )
    return builder.build()
