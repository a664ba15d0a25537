"""Eigenvalues and vectors of many small Hermitian matrices, each in the registers of some lanes of
a warp, by Jacobi's method.

A round rotates N / 2 pairs of rows and columns that have none in common, a sweep every pair once,
in the order of a round-robin tournament (Brent and Luk, "The solution of singular-value and
symmetric eigenvalue problems on multiprocessor arrays", 1985). Columns move to the seats of the
tournament, where pairs are neighbours; rows stay in their lanes, which know where their columns
are.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.language import rsqrt, sqrt
from genesis_fn.kernels.linalg.small.elements import add_product, element_at
from genesis_fn.kernels.linalg.small.rows import LANES, at_lane, block_of, over_rows, vectors_of
from genesis_fn.kernels.linalg.small.scale import scales
from genesis_fn.kernels.plan import BufferArg, Plan, Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv, next_power_of_two

MOST_SWEEPS = 20
"""A matrix of 32 rows takes some 7 in float32, and 9 in float64."""


@triton.jit
def slice_of(columns, j, PARTS: tl.constexpr):
    """The parts of column j."""
    return columns[j * PARTS : (j + 1) * PARTS]


@triton.jit
def seat_before(seat, N: tl.constexpr):
    """Of N seats, where a column comes from: the first stays, the others go round, even seats
    upwards and odd ones downwards."""
    below = tl.where(seat == N - 1, N - 2, seat + 2)
    above = tl.where(seat == 2, 1, seat - 2)
    return tl.where(seat == 0, 0, tl.where(seat % 2 == 0, above, below))


@triton.jit
def seat_after(seat, N: tl.constexpr):
    """Where a column goes to."""
    above = tl.where(seat == N - 2, N - 1, seat + 2)
    below = tl.where(seat == 1, 2, seat - 2)
    return tl.where(seat == 0, 0, tl.where(seat % 2 == 0, above, below))


@triton.jit
def moved(columns, N: tl.constexpr, PARTS: tl.constexpr):
    """The columns of a round in the seats of the next one."""
    result = slice_of(columns, 0, PARTS) + slice_of(columns, min(3, N - 1), PARTS)
    for i in tl.static_range(1, N // 2):
        result = result + slice_of(columns, max(2 * i - 2, 1), PARTS)
        result = result + slice_of(
            columns, min(2 * i + 3, N - 2 + (2 * i + 3) % N // (N - 1)), PARTS
        )
    return result


@triton.jit
def at_seat(columns, seat, PARTS: tl.constexpr):
    """The parts of each lane's element in the column at its seat."""
    level = columns
    bit = 1
    for _ in tl.static_range((len(columns) // PARTS - 1).bit_length()):
        odd = (seat & bit) != 0
        chosen = ()
        for i in tl.static_range(len(level) // PARTS // 2):
            for part in tl.static_range(PARTS):
                left = level[2 * i * PARTS + part]
                chosen = chosen + (tl.where(odd, level[(2 * i + 1) * PARTS + part], left),)
        if len(level) // PARTS % 2 == 1:
            chosen = chosen + level[len(level) - PARTS :]
        level = chosen
        bit = bit * 2
    return level


@triton.jit
def rotation(a, p, q, COMPLEX: tl.constexpr):
    """(c - 1, the parts of s, t |a|) of the rotation [[c, s], [-conj(s), c]] that makes [[p, a],
    [conj(a), q]] diagonal, p - t |a| and q + t |a|. The smaller of two angles."""
    if COMPLEX:
        # The larger part first, so that no square is lost.
        large = tl.maximum(tl.abs(a[0]), tl.abs(a[1]))
        ratio = tl.minimum(tl.abs(a[0]), tl.abs(a[1])) / tl.where(large == 0, 1.0, large)
        size = large * sqrt(1.0 + ratio * ratio)
    else:
        size = tl.abs(a[0])
    none = size == 0
    divisor = tl.where(none, 1.0, size)
    tau = (q - p) * 0.5 / divisor
    t = 1.0 / (tl.abs(tau) + sqrt(1.0 + tau * tau))
    t = tl.where(none, 0.0, tl.where(tau < 0, -t, t))
    c = rsqrt(1.0 + t * t)
    s = t * c
    less = -s * s / (1.0 + c)  # fits the s that was rounded, so that lengths stay what they are
    if COMPLEX:
        return less, (s * (a[0] / divisor), s * (a[1] / divisor)), t * size
    else:
        return less, (tl.where(a[0] < 0, -s, s),), t * size


@triton.jit
def turned(less, x, s, y, COMPLEX: tl.constexpr):
    """The parts of (1 + less) x + s y."""
    if COMPLEX:
        scaled = (tl.fma(less, x[0], x[0]), tl.fma(less, x[1], x[1]))
    else:
        scaled = (tl.fma(less, x[0], x[0]),)
    return add_product(scaled, s, y, COMPLEX)


@triton.jit
def turned_pair(less, s, x, y, COMPLEX: tl.constexpr):
    """The parts of c x - conj(s) y and of s x + c y, where `less` is c - 1."""
    back = (-s[0], s[1]) if COMPLEX else (-s[0],)
    return turned(less, x, back, y, COMPLEX) + turned(less, y, s, x, COMPLEX)


@triton.jit
def sweep(columns, vectors, diagonal, row, first, N: tl.constexpr, COMPLEX: tl.constexpr):
    """Rotates all pairs of N rows and columns, N even, and the columns of `vectors` with them."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    seat = row % N  # of each row's column
    holder = row % N  # of the column at each seat
    for _ in range(N - 1):
        partner = at_lane(holder, first + (seat ^ 1))
        partner = first + tl.where(row < N, partner, row)  # lanes without a row are left alone
        is_first = seat % 2 == 0
        element = at_seat(columns, seat ^ 1, PARTS)
        # Both rows of a pair turn by what the first one's element says.
        element = element_at(element, tl.where(is_first, first + row, partner), COMPLEX)
        other = at_lane(diagonal, partner)
        less, s, change = rotation(
            element, tl.where(is_first, diagonal, other), tl.where(is_first, other, diagonal),
            COMPLEX,
        )  # fmt: skip
        diagonal = diagonal + tl.where(is_first, -change, change)
        less_at = at_lane(less, first + holder)
        s_at = element_at(s, first + holder, COMPLEX)
        mine = (tl.where(is_first, -s[0], s[0]),)
        if COMPLEX:
            mine = mine + (-s[1],)
        new_columns = ()
        new_vectors = ()
        for i in tl.static_range(N // 2):
            pair_less = at_lane(less_at, first + 2 * i)
            pair_s = element_at(s_at, first + 2 * i, COMPLEX)
            left = slice_of(columns, 2 * i, PARTS)
            right = slice_of(columns, 2 * i + 1, PARTS)
            pair = turned_pair(pair_less, pair_s, left, right, COMPLEX)
            for j in tl.static_range(2):
                own = slice_of(pair, j, PARTS)
                across = element_at(own, partner, COMPLEX)
                new_columns = new_columns + turned(less, own, mine, across, COMPLEX)
            left = slice_of(vectors, 2 * i, PARTS)
            right = slice_of(vectors, 2 * i + 1, PARTS)
            new_vectors = new_vectors + turned_pair(pair_less, pair_s, left, right, COMPLEX)
        columns = moved(new_columns, N, PARTS)
        vectors = moved(new_vectors, N, PARTS)
        if N > 2:
            seat = seat_after(seat, N)
            holder = at_lane(holder, first + seat_before(row, N) % N)
    return columns, vectors, diagonal


@triton.jit
def is_unfinished(
    columns, diagonal, row, N: tl.constexpr, ROWS: tl.constexpr, COMPLEX: tl.constexpr
):
    """Whether, in any matrix of a warp, some element beside the diagonal is more than what rounding
    leaves there."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    PRECISION: tl.constexpr = 2.0**-50 if diagonal.dtype == tl.float64 else 2.0**-21
    off_diagonal = tl.zeros_like(diagonal)
    for j in tl.static_range(N * PARTS):
        off_diagonal = tl.maximum(
            off_diagonal, tl.where(row == j // PARTS, 0.0, tl.abs(columns[j]))
        )
    # Elements are rounded at the size of the eigenvalues, which are on the diagonal in the end.
    KIND: tl.constexpr = tl.int64 if diagonal.dtype == tl.float64 else tl.int32
    largest = over_rows(tl.abs(diagonal).to(KIND, bitcast=True), ROWS, True)
    above = off_diagonal > largest.to(diagonal.dtype, bitcast=True) * PRECISION
    # As an integer, whose reduction is one instruction; the compiler knows that lanes agree on it.
    return tl.max(above.to(tl.int32), 0)


@triton.jit
def small_eigh_kernel(
    x,
    out,
    values,
    count,
    N: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COMPLEX: tl.constexpr,
    WIDTH: tl.constexpr,
    SWEEPS: tl.constexpr,
):
    """Vectors as columns and ascending values of `count` matrices [N, N], of which the lower
    triangles are read; NaN of those that hold a number that is not finite."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    NUMBERS: tl.constexpr = PARTS * N
    lane = tl.arange(0, 32)
    row, first = lane % ROWS, lane // ROWS * ROWS
    matrix = (tl.program_id(0) * (32 // ROWS) + lane // ROWS).to(tl.int64)
    inside = (matrix < count) & (row < N)
    start = matrix * N * NUMBERS
    j = tl.arange(0, WIDTH)[None, :] // PARTS
    part = tl.arange(0, WIDTH)[None, :] % PARTS
    lower = tl.maximum(row[:, None], j) * NUMBERS + tl.minimum(row[:, None], j) * PARTS + part
    mask = inside[:, None] & (j < N)
    columns = vectors_of(tl.load(x + start[:, None] + lower, mask, other=0.0), WIDTH)
    columns = columns[: EVEN * PARTS]
    down, up, flawed = scales(columns, ROWS)
    scaled = ()
    vectors = ()
    for k in tl.static_range(EVEN):
        real = tl.where(flawed, 0.0, columns[k * PARTS] * down)
        one = tl.where(row == k, 1.0, tl.zeros_like(real))
        scaled = scaled + (real,)
        vectors = vectors + (one,)
        if COMPLEX:
            imaginary = tl.where(row < k, -columns[k * PARTS + 1], columns[k * PARTS + 1])
            imaginary = tl.where(flawed | (row == k), 0.0, imaginary * down)
            scaled = scaled + (imaginary,)
            vectors = vectors + (tl.zeros_like(real),)
    columns = scaled
    diagonal = at_seat(columns, row, PARTS)[0]
    unfinished = is_unfinished(columns, diagonal, row, EVEN, ROWS, COMPLEX)
    sweeps = 0
    while (unfinished > 0) & (sweeps < SWEEPS):
        columns, vectors, diagonal = sweep(columns, vectors, diagonal, row, first, EVEN, COMPLEX)
        unfinished = is_unfinished(columns, diagonal, row, EVEN, ROWS, COMPLEX)
        sweeps += 1
    rank = tl.zeros_like(row)
    for k in tl.static_range(N):
        other = at_lane(diagonal, first + k)
        rank += ((other < diagonal) | ((other == diagonal) & (k < row))).to(tl.int32)
    eigenvalue = tl.where(flawed, float("nan"), diagonal * up)
    tl.store(values + matrix * N + rank, eigenvalue, inside)
    results = ()
    seats = ()
    for k in tl.static_range(EVEN):
        at = at_lane(rank, first + k) * PARTS
        for p in tl.static_range(PARTS):
            results = results + (tl.where(flawed, float("nan"), vectors[k * PARTS + p]),)
            seats = seats + (at + p,)
    to = start[:, None] + (row * NUMBERS)[:, None] + block_of(seats, WIDTH)
    tl.store(out + to, block_of(results, WIDTH), mask)


@dataclass(frozen=True, slots=True)
class SmallEigh:
    """Eigenproblems of `count` Hermitian matrices [n, n]; numbers are of type `name`, two of them
    an element if `is_complex`."""

    count: int
    n: int
    name: str
    is_complex: bool = False

    def __post_init__(self) -> None:
        if self.n > LANES:
            raise ValueError(f"{self}: at most {LANES} rows")


def plan_small_eigh(spec: SmallEigh, target: Target) -> Plan:
    """matrices, of which lower triangles are read -> (vectors as columns, ascending values)."""
    builder = PlanBuilder(1, 2)
    even = spec.n + spec.n % 2
    rows = next_power_of_two(even)
    builder.launch(
        small_eigh_kernel,
        (cdiv(spec.count, LANES // rows),),
        {
            "x": BufferArg(0, spec.name),
            "out": BufferArg(1, spec.name),
            "values": BufferArg(2, spec.name),
            "count": Scalar(spec.count),
        },
        {
            "N": spec.n,
            "EVEN": even,
            "ROWS": rows,
            "COMPLEX": spec.is_complex,
            "WIDTH": rows * (2 if spec.is_complex else 1),
            "SWEEPS": MOST_SWEEPS,
        },
        num_warps=1,
    )
    return builder.build()
