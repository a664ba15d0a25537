"""Singular value decompositions of many small matrices, each in the registers of some lanes of a
warp, by Jacobi's method on one side.

Lanes hold columns of a tall matrix A, and those of V. A round makes N / 2 pairs of columns
orthogonal that have none in common, a sweep every pair once (Hestenes, "Inversion of matrices by
biorthogonalization and related results", 1958); in the end A V has the singular values for
lengths. Left vectors are Q of its QR factorization, which is right where values are zero, too.

Columns stay in their lanes, and pairs are of seats, of which the lower one gets the longer column
(de Rijk, "A one-sided Jacobi algorithm for computing the singular value decomposition on a vector
computer", 1989): 16 columns with values from 1 to 1e-12 take 9 sweeps in float64 where they took
14, those of normal numbers 8 as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.language.language import sqrt
from genesis_fn.kernels.linalg.small.eigh import rotation, turned
from genesis_fn.kernels.linalg.small.elements import conjugated
from genesis_fn.kernels.linalg.small.qr import factored
from genesis_fn.kernels.linalg.small.rows import LANES, at_lane, read_rows, write_rows
from genesis_fn.kernels.linalg.small.scale import scales
from genesis_fn.kernels.plan import BufferArg, Plan, Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv, next_power_of_two

MOST_SWEEPS = 20
"""A matrix of 32 columns takes some 8 in float32, one of 16 as many in float64; some take 14."""


@triton.jit
def opponent(seat, turn, N: tl.constexpr):
    """The seat that a seat meets in a round of N seats, N even: one of those but the last whose
    sum is `turn`, modulo N - 1; who would meet itself meets the last."""
    across = (turn + (N - 1) - seat) % (N - 1)
    across = tl.where(across == seat, N - 1, across)
    across = tl.where(seat == N - 1, turn * (N // 2) % (N - 1), across)
    return tl.where(seat < N, across, seat)


@triton.jit
def sum_of_products(x, y):
    """Of the numbers of two columns. The sums of even and of odd numbers are two chains, which
    hide half of an addition's latency."""
    even = x[0] * y[0]
    odd = tl.zeros_like(even)
    for i in tl.static_range(1, len(x)):
        if i % 2 == 0:
            even = tl.fma(x[i], y[i], even)
        else:
            odd = tl.fma(x[i], y[i], odd)
    return even + odd


@triton.jit
def imaginary_unit_times(column):
    """The numbers of i x, of complex elements."""
    result = ()
    for i in tl.static_range(len(column) // 2):
        result = result + (-column[2 * i + 1], column[2 * i])
    return result


@triton.jit
def inner_product(x, y, COMPLEX: tl.constexpr):
    """The parts of x^H y. That of y^H x is its conjugate to the last bit, so that the lanes of a
    pair turn by the same angle: an even number's sum of one is an odd number's of the other."""
    if COMPLEX:
        return (sum_of_products(x, y), sum_of_products(imaginary_unit_times(x), y))
    else:
        return (sum_of_products(x, y),)


@triton.jit
def turned_column(less, x, s, y, COMPLEX: tl.constexpr):
    """(1 + less) x + s y, of columns."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    result = ()
    for i in tl.static_range(len(x) // PARTS):
        mine = x[i * PARTS : (i + 1) * PARTS]
        result = result + turned(less, mine, s, y[i * PARTS : (i + 1) * PARTS], COMPLEX)
    return result


@triton.jit
def column_of(column, lane):
    """The numbers of a lane's column."""
    result = ()
    for i in tl.static_range(len(column)):
        result = result + (at_lane(column[i], lane),)
    return result


@triton.jit
def is_above_rounding(product, own, other, COMPLEX: tl.constexpr):
    """Whether an inner product, of columns whose squared lengths are given, is more than 8
    roundings of them. Columns that are rounding beside the largest number, which is 1, do not
    count."""
    # Where values are in clusters, a sweep does not leave the square of what it finds: ending at
    # 2^-16 instead, products were off by 30 roundings in float32, at 2^-40 by 2000 in float64.
    LIMIT: tl.constexpr = 2.0**-98 if own.dtype == tl.float64 else 2.0**-40
    ROUNDING: tl.constexpr = 2.0**-104 if own.dtype == tl.float64 else 2.0**-46
    square = product[0] * product[0]
    if COMPLEX:
        square = tl.fma(product[1], product[1], square)
    return (square > LIMIT * (own * other)) & (tl.minimum(own, other) > ROUNDING)


@triton.jit
def sweep_of_columns(
    columns, vectors, seat, holder, line, first, N: tl.constexpr, VECTORS: tl.constexpr,
    COMPLEX: tl.constexpr,
):  # fmt: skip
    """Makes all pairs of N columns orthogonal, N even, with their seats and the lanes that hold
    those; 1 where an inner product was above what rounding leaves."""
    unfinished = tl.zeros_like(line)
    for turn in range(N - 1):
        met_at = opponent(line, turn, N)  # of the seat, not of the column, that has this number
        across = at_lane(holder, first + met_at)
        met = at_lane(met_at, first + seat)
        partner = at_lane(across, first + seat)
        is_lower = seat < met
        others = column_of(columns, partner)
        product = inner_product(columns, others, COMPLEX)
        own = sum_of_products(columns, columns)
        other = at_lane(own, partner)
        # Both columns of a pair turn by what the lower one's product says.
        element = (product[0],)
        if COMPLEX:
            element = element + (tl.where(is_lower, product[1], -product[1]),)
        lower, upper = tl.where(is_lower, own, other), tl.where(is_lower, other, own)
        less, s, _ = rotation(element, lower, upper, COMPLEX)
        mine = (tl.where(is_lower, -s[0], s[0]),)
        if COMPLEX:
            mine = mine + (s[1],)
        columns = turned_column(less, columns, mine, others, COMPLEX)
        if VECTORS:
            vectors = turned_column(less, vectors, mine, column_of(vectors, partner), COMPLEX)
        # A sweep that leaves all columns at their seats has seen all pairs, so only those exchange
        # them that ask for another one.
        above = is_above_rounding(product, own, other, COMPLEX)
        unfinished = unfinished | above.to(tl.int32)
        exchange = (above & (lower <= upper)).to(tl.int32)
        seat = tl.where(exchange > 0, met, seat)
        holder = tl.where(at_lane(exchange, holder) > 0, across, holder)
    return columns, vectors, seat, holder, unfinished


@triton.jit
def where_finite(flawed, vectors):
    """The vectors, NaN where `flawed`."""
    result = ()
    for i in tl.static_range(len(vectors)):
        result = result + (tl.where(flawed, float("nan"), vectors[i]),)
    return result


@triton.jit
def small_svd_kernel(
    x,
    values,
    right,
    images,
    count,
    M: tl.constexpr,
    N: tl.constexpr,
    EVEN: tl.constexpr,
    LINES: tl.constexpr,
    WIDE: tl.constexpr,
    COMPLEX: tl.constexpr,
    VECTORS: tl.constexpr,
    WIDTH: tl.constexpr,
    RIGHT_WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    SWEEPS: tl.constexpr,
):
    """Descending singular values of `count` matrices A [M, N], which are transposes of what is read
    if WIDE; with VECTORS, too, conj(V), then, and V^H otherwise, and A V, but for a factor. NaN of
    matrices that hold a number that is not finite."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    ROW: tl.constexpr = N * PARTS
    lane = tl.arange(0, 32)
    line, first = lane % LINES, lane // LINES * LINES
    matrix = (tl.program_id(0) * (32 // LINES) + lane // LINES).to(tl.int64)
    inside = (matrix < count) & (line < N)
    start = matrix * (M * ROW)
    # Rows of a wide matrix are the columns of its transpose.
    columns = read_rows(
        x, start + line * (M * PARTS if WIDE else PARTS), inside, PARTS * M, WIDTH,
        min(WIDTH, GROUP) if WIDE else PARTS, min(WIDTH, GROUP) if WIDE else ROW,
    )[: PARTS * M]  # fmt: skip
    down, up, flawed = scales(columns, LINES)
    scaled = ()
    vectors = ()
    for i in tl.static_range(PARTS * M):
        scaled = scaled + (tl.where(flawed, 0.0, columns[i] * down),)
    for i in tl.static_range(ROW if VECTORS else 0):
        is_one = (line == i // PARTS) & (i % PARTS == 0)
        vectors = vectors + (tl.where(is_one, 1.0, tl.zeros_like(down)),)
    columns = scaled
    seat = line
    holder = lane
    unfinished = 1
    sweeps = 0
    while (unfinished > 0) & (sweeps < SWEEPS):
        columns, vectors, seat, holder, above = sweep_of_columns(
            columns, vectors, seat, holder, line, first, EVEN, VECTORS, COMPLEX
        )
        # An integer's reduction, which the compiler knows to be the same in all lanes.
        unfinished = tl.max(above, 0)
        sweeps += 1
    length = sqrt(sum_of_products(columns, columns))
    rank = tl.zeros_like(line)
    for k in tl.static_range(N):
        other = at_lane(length, first + k)
        rank += ((other > length) | ((other == length) & (k < line))).to(tl.int32)
    tl.store(values + matrix * N + rank, tl.where(flawed, float("nan"), length * up), inside)
    if VECTORS:
        conjugates = conjugated(vectors) if COMPLEX else vectors
        write_rows(
            right, matrix * (N * ROW) + rank * (PARTS if WIDE else ROW), inside,
            where_finite(flawed, conjugates), ROW, RIGHT_WIDTH,
            PARTS if WIDE else min(RIGHT_WIDTH, GROUP), ROW if WIDE else min(RIGHT_WIDTH, GROUP),
        )  # fmt: skip
        write_rows(
            images, start + rank * PARTS, inside, where_finite(flawed, columns), PARTS * M, WIDTH,
            PARTS, ROW,
        )  # fmt: skip


@triton.jit
def small_left_vectors_kernel(
    images,
    left,
    count,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    LINES: tl.constexpr,
    WIDE: tl.constexpr,
    COMPLEX: tl.constexpr,
    WIDTH: tl.constexpr,
    LEFT_WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Q [M, K] of `count` matrices [M, N] of orthogonal columns, the first of which are those with
    length 1; its transpose if WIDE. NaN of matrices that hold a number that is not finite."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    lane = tl.arange(0, 32)
    line, first = lane % LINES, lane // LINES * LINES
    matrix = (tl.program_id(0) * (32 // LINES) + lane // LINES).to(tl.int64)
    rows = read_rows(
        images, matrix * (M * N * PARTS) + line * PARTS, (matrix < count) & (line < N), PARTS * M,
        WIDTH, PARTS, N * PARTS,
    )[: PARTS * M]  # fmt: skip
    rows, q, _, flawed = factored(rows, line, first, M, N, LINES, COMPLEX)
    signed = ()
    for k in tl.static_range(K):
        for part in tl.static_range(PARTS):
            number = q[k * PARTS + part]
            if k < N:
                # R's diagonal is real, of either sign.
                is_turned = at_lane(rows[k * PARTS], first + k) < 0
                signed = signed + (tl.where(is_turned, -number, number),)
            else:
                signed = signed + (number,)
    write_rows(
        left, matrix * (M * K * PARTS) + line * (PARTS if WIDE else K * PARTS),
        (matrix < count) & (line < M), where_finite(flawed, signed), PARTS * K, LEFT_WIDTH,
        PARTS if WIDE else min(LEFT_WIDTH, GROUP), M * PARTS if WIDE else min(LEFT_WIDTH, GROUP),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SmallSvd:
    """Decompositions of `count` matrices [m, n]: with `vectors`, or values alone; [m, m] left and
    [n, n] right vectors if `full`, else min(m, n) of each. Numbers are of type `name`, two of them
    an element if `is_complex`."""

    count: int
    m: int
    n: int
    name: str
    is_complex: bool = False
    vectors: bool = True
    full: bool = False

    def __post_init__(self) -> None:
        if max(self.m, self.n) > LANES:
            raise ValueError(f"{self}: at most {LANES} rows and columns")


def plan_small_svd(spec: SmallSvd, target: Target) -> Plan:
    """matrices -> (descending values, U, V^H), or the values alone."""
    builder = PlanBuilder(1, 3 if spec.vectors else 1)
    tall, thin, wide = max(spec.m, spec.n), min(spec.m, spec.n), spec.m < spec.n
    parts = 2 if spec.is_complex else 1
    even = thin + thin % 2
    lines = next_power_of_two(even)
    shared: dict[str, Any] = {
        "M": tall, "N": thin, "WIDE": wide, "COMPLEX": spec.is_complex,
        "WIDTH": next_power_of_two(tall) * parts, "GROUP": 16 // ITEMSIZE[spec.name],
    }  # fmt: skip
    constants = shared | {
        "EVEN": even, "LINES": lines, "VECTORS": spec.vectors,
        "RIGHT_WIDTH": next_power_of_two(thin) * parts, "SWEEPS": MOST_SWEEPS,
    }  # fmt: skip
    x, values, count = BufferArg(0, spec.name), BufferArg(1, spec.name), Scalar(spec.count)
    programs = (cdiv(spec.count, LANES // lines),)
    if not spec.vectors:
        constants |= {"right": None, "images": None}
        arguments = {"x": x, "values": values, "count": count}
        builder.launch(small_svd_kernel, programs, arguments, constants, num_warps=1)
        return builder.build()
    # A^T = U S V^H is A = conj(V) S U^T.
    left, right = [BufferArg(i, spec.name) for i in ((3, 2) if wide else (2, 3))]
    images = builder.workspace(spec.count * tall * thin * parts, spec.name)
    arguments = {"x": x, "values": values, "right": right, "images": images, "count": count}
    builder.launch(small_svd_kernel, programs, arguments, constants, num_warps=1)
    k = tall if spec.full else thin
    rows = next_power_of_two(tall)
    builder.launch(
        small_left_vectors_kernel,
        (cdiv(spec.count, LANES // rows),),
        {"images": images, "left": left, "count": count},
        shared | {"K": k, "LINES": rows, "LEFT_WIDTH": next_power_of_two(k) * parts},
        num_warps=1,
    )
    return builder.build()
