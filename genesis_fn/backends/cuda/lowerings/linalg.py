"""Decompositions and solves, by routines of libraries on column-major matrices.

Memory of a row-major matrix A is, to a library, that of its transpose: what a solve needs is chosen
so that matrices are read where they are. Decompositions work in copies, which are transposed where
the factors would be other ones. One large matrix, or a few, are factored one by one, many small
ones by batched routines, which take tables of addresses, and those of at most 32 or 64 rows by
kernels of our own, which read and write them once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from genesis_fn.backends.cuda import libraries
from genesis_fn.backends.cuda.codegen.kernel_text import add_copy
from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, lowers_by_library
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.kernels import routines as r
from genesis_fn.kernels.language.dtypes import NAMES
from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.linalg.matrices import (
    WORDS,
    Addresses,
    MatrixNumbers,
    Transpose,
    plan_addresses,
    plan_flaws,
    plan_poison,
    plan_transpose,
)
from genesis_fn.kernels.linalg.medium.cholesky import MediumCholesky, plan_medium_cholesky
from genesis_fn.kernels.linalg.medium.columns import Spread
from genesis_fn.kernels.linalg.medium.lu import MediumLu, plan_medium_lu
from genesis_fn.kernels.linalg.medium.solve import MediumSolve, plan_medium_solve
from genesis_fn.kernels.linalg.medium.triangular import (
    MOST_SIDES_TOGETHER,
    MediumTriangular,
    plan_medium_triangular,
)
from genesis_fn.kernels.linalg.pivots import RowSwaps, plan_permutation
from genesis_fn.kernels.linalg.reflectors import MOST_ROWS, Reflectors, plan_reflectors
from genesis_fn.kernels.linalg.small.cholesky import SmallCholesky, plan_small_cholesky
from genesis_fn.kernels.linalg.small.eigh import SmallEigh, plan_small_eigh
from genesis_fn.kernels.linalg.small.lu import SmallLu, plan_small_lu
from genesis_fn.kernels.linalg.small.panels import PanelCholesky, plan_panel_cholesky
from genesis_fn.kernels.linalg.small.qr import SmallQr, plan_small_qr
from genesis_fn.kernels.linalg.small.rows import LANES
from genesis_fn.kernels.linalg.small.solve import MOST_SIDES, SmallSolve, plan_small_solve
from genesis_fn.kernels.linalg.small.svd import SmallSvd, plan_small_svd
from genesis_fn.kernels.linalg.small.triangular import SmallTriangular, plan_small_triangular
from genesis_fn.kernels.linalg.vectors import (
    ComplexNumbers,
    Signs,
    Vectors,
    plan_align_signs,
    plan_complex_vectors,
    plan_conjugate,
)
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import PlanBuilder
from genesis_fn.primitives.linalg import (
    cholesky_p,
    eig_p,
    eigh_p,
    lu_p,
    qr_p,
    solve_p,
    svd_p,
    triangular_solve_p,
)

_BATCHED = 64  # batched routines are faster from one matrix for each so many rows on (measured)
# The most rows of matrices that kernels hold in registers: they read and write a matrix once, where
# a routine has transposes around it. 28 us for 4096 Cholesky factors of 32 x 32, where that takes
# 106, and 16 us for one, where that takes 24 (H200).
_IN_REGISTERS = LANES
# Bytes of a row: 1024 complex128 matrices with 512 take 3.2 ms, by a routine 2.0.
_EIGH_IN_REGISTERS = 256
# The most numbers in a row of a single matrix for decompositions that take 4 to 8 seconds to
# compile for more, and are 20 to 240 us faster then.
_ONE_IN_REGISTERS = 32
# The most matrices of 33 to 64 rows that programs factor: 128 in 36 us, by a routine in 50, but
# 1024 in 172, by a routine in 142 (H200).
_CHOLESKY_IN_PROGRAMS = 256
_CHOLESKY_IN_PANELS = 128  # rows of float32 matrices that a program factors
_FEW_COLUMNS = 64  # fewer right sides are solved from the left, in a copy (measured)
_MOST_SCRATCH = 256 << 20  # bytes that batched eigenproblems may ask for at a time


def _is_batched(count: int, rows: int) -> bool:
    return count > 1 and count * _BATCHED > rows


@dataclass(frozen=True)
class _Solver:
    """Appends routines on matrices of one dtype, `count` of them, to the plan of a call."""

    call: Call
    builder: PlanBuilder
    kind: r.Kind
    count: int

    @property
    def bytes(self) -> int:
        """The bytes of an element."""
        return WORDS[self.kind].bytes

    @property
    def real(self) -> str:
        """The name of the type of an element's parts."""
        return NAMES[dtypes.real_of(dtypes.NAMES[self.kind])]

    @property
    def parts(self) -> int:
        """The numbers that an element consists of."""
        return self.bytes // ITEMSIZE[self.real]

    def fits_registers(self, n: int) -> bool:
        """Whether kernels of ours take matrices of `n` rows."""
        return n <= _IN_REGISTERS

    def fits_program(self, n: int, sides: int = 0) -> bool:
        """Whether the warps of a program hold matrices of `n` rows, with so many right sides."""
        return Spread(n, sides, self.real, self.parts == 2).fits

    def pays_to_compile(self, n: int) -> bool:
        """Whether kernels that take seconds to compile for long rows do, too."""
        return self.fits_registers(n) and (self.count > 1 or n * self.parts <= _ONE_IN_REGISTERS)

    def matrices(self, elements: int) -> BufferArg:
        """A workspace for a matrix of so many elements each."""
        return self.builder.workspace(max(self.count * elements * self.parts, 1), self.real)

    def info(self) -> BufferArg:
        """A workspace for what a routine says of each matrix."""
        return self.builder.workspace(self.count, "i32")

    def operand(self, position: int) -> BufferArg:
        """An operand's memory, as floats."""
        return BufferArg(self.call.number(position), self.real)

    def result(self, number: int = 0, name: str | None = None) -> BufferArg:
        """A result's memory, as floats."""
        return BufferArg(len(self.call.operands) + number, name or self.real)

    def include(self, plan: Plan, *buffers: BufferArg) -> None:
        """Append kernels."""
        self.builder.include(plan, buffers)

    def copy(
        self, source: BufferArg, out: BufferArg, elements: int, stride: int | None = None
    ) -> None:
        """Append a copy of so many elements of each matrix, to where they are `stride` apart."""
        words = WORDS[self.kind]
        size, step = elements * words.count, (elements if stride is None else stride) * words.count
        read, write = [BufferArg(b.index, words.name, b.offset) for b in (source, out)]
        add_copy(self.builder, read, write, (self.count, size), (size, 1), (step, 1))

    def transpose(
        self,
        source: BufferArg,
        out: BufferArg,
        rows: int,
        columns: int,
        info: BufferArg | None = None,
        **layout: Any,
    ) -> None:
        """Append transposes of [rows, columns], those of failed matrices NaN; `layout` as
        `Transpose` has it."""
        poisoned = info is not None
        spec = Transpose(self.count, rows, columns, self.kind, poisoned=poisoned, **layout)
        between = [] if info is None else [info]
        self.include(plan_transpose(spec, self.call.target), source, *between, out)

    def addresses(self, first: BufferArg, elements: int) -> BufferArg:
        """A table of the addresses of matrices of so many elements."""
        table = self.builder.workspace(self.count, "i64")
        spec = Addresses(self.count, elements * self.bytes)
        self.include(plan_addresses(spec, self.call.target), first, table)
        return table

    def of_matrix(self, buffer: BufferArg, number: int, size: int) -> BufferArg:
        """A matrix's part of a buffer with `size` bytes for each."""
        return BufferArg(buffer.index, buffer.dtype, buffer.offset + number * size)

    def run(self, routine: r.Routine, *buffers: BufferArg) -> None:
        """Append a routine."""
        self.builder.call(routine, buffers, libraries.scratch(routine, self.call.target))

    def flawed(self, elements: int, *, infinities: bool = False) -> BufferArg:
        """Append what marks the matrices of the first operand, of so many elements each, that hold
        NaN, or infinities, too: what a routine does with these is its own matter."""
        info, numbers = self.info(), MatrixNumbers(self.count, elements * self.parts, self.real)
        self.builder.clear(info)
        plan = plan_flaws(numbers, self.call.target, infinities=infinities)
        self.include(plan, self.operand(0), info)
        return info

    def finite(self, matrices: BufferArg, elements: int) -> BufferArg:
        """Append zeros for copies of operands that are not finite, of which routines fail or do
        not end; which these are."""
        flawed = self.flawed(elements, infinities=True)
        numbers = MatrixNumbers(self.count, elements * self.parts, self.real)
        self.include(plan_poison(numbers, self.call.target, 0.0), flawed, matrices)
        return flawed

    def poison(self, info: BufferArg, out: BufferArg, elements: int, parts: int = 0) -> None:
        """Append NaN for the results of matrices whose routine failed."""
        if elements:
            numbers = MatrixNumbers(self.count, elements * (parts or self.parts), self.real)
            self.include(plan_poison(numbers, self.call.target), info, out)


def _solver(call: Call, matrices: Aval) -> _Solver:
    kind = matrices.dtype.name
    count = math.prod(matrices.shape[:-2])
    return _Solver(call, PlanBuilder(len(call.operands), len(call.outs)), kind, count)


@lowers_by_library(cholesky_p)
def _cholesky(call: Call) -> Lowered:
    x = call.operands[0]
    s, n = _solver(call, x), x.shape[-1]
    if s.fits_registers(n):
        small = SmallCholesky(s.count, n, s.real, s.parts == 2)
        s.include(plan_small_cholesky(small, call.target), s.operand(0), s.result())
        return s.builder.build()
    if s.kind == "float32" and s.count > 1 and n <= _CHOLESKY_IN_PANELS:
        plan = plan_panel_cholesky(PanelCholesky(s.count, n), call.target)
        s.include(plan, s.operand(0), s.result())
        return s.builder.build()
    if s.fits_program(n) and s.bytes <= 8 and 1 < s.count <= _CHOLESKY_IN_PROGRAMS:
        medium = MediumCholesky(s.count, n, s.real, s.parts == 2)
        s.include(plan_medium_cholesky(medium, call.target), s.operand(0), s.result())
        return s.builder.build()
    # The library factors a lower triangle 2.6 times as fast as an upper one, so it pays to
    # transpose the matrix and its factor.
    held, info = s.matrices(n * n), s.info()
    s.transpose(s.operand(0), held, n, n)
    if _is_batched(s.count, n):
        s.run(r.Cholesky(s.kind, n, s.count), s.addresses(held, n * n), info)
    else:
        for k in range(s.count):
            matrix = s.of_matrix(held, k, n * n * s.bytes)
            s.run(r.Cholesky(s.kind, n), matrix, s.of_matrix(info, k, 4))
    s.transpose(held, s.result(), n, n, info, triangle="upper")
    return s.builder.build()


@lowers_by_library(triangular_solve_p)
def _triangular(call: Call) -> Lowered:
    a, b = call.operands
    s, p = _solver(call, a), call.params
    rows, columns = b.shape[-2:]
    left, transposed = p["left_side"], p["transpose_a"]
    conjugated = p["conjugate_a"] and dtypes.is_complex(a.dtype)
    n, others = (rows, columns) if left else (columns, rows)
    # X op(A) = B is op(A)^T X^T = B^T.
    of_transpose = transposed == left
    triangle = (
        s.count, n, others, s.real, s.parts == 2, p["lower"] != of_transpose, of_transpose,
        conjugated,
    )  # fmt: skip
    buffers = s.operand(0), s.operand(1), s.result()
    if s.fits_registers(n):
        small = SmallTriangular(*triangle, unit=p["unit_diagonal"], left=left)
        s.include(plan_small_triangular(small, call.target), *buffers)
        return s.builder.build()
    # A routine takes 14 us for one, where a program takes 16, and for many in float64 as long. It
    # keeps unit diagonals, too, which derivatives of LU factors have.
    several = s.count > 1 and s.real == "fp32" and not p["unit_diagonal"]
    if several and s.fits_program(n, min(others, MOST_SIDES_TOGETHER)):
        medium = MediumTriangular(*triangle, left=left)
        s.include(plan_medium_triangular(medium, call.target), *buffers)
        return s.builder.build()
    # In memory A is M = A^T. Right sides as they are in memory are B^T, and solve
    # X^T op(A)^T = B^T; a transposed copy of them is B. Of op(A) and op(A)^T, one may be conj(M),
    # which libraries do not have.
    as_is: r.Operation | None
    turned: r.Operation | None
    if conjugated:
        as_is, turned = ("C", None) if transposed else (None, "C")
    else:
        as_is, turned = ("T", "N") if transposed else ("N", "T")
    lower = not p["lower"]
    batched = _is_batched(s.count, n)
    # A solve from the left is the fastest, but for a lower triangle's transpose (measured).
    faster = left and not batched and not (lower and turned == "T" and others >= _FEW_COLUMNS)
    turn = as_is is None or (turned is not None and faster)
    out = s.result()
    work = out if not turn or others == 1 else s.matrices(rows * columns)
    if turn and others > 1:
        s.transpose(s.operand(1), work, rows, columns)
    else:
        s.copy(s.operand(1), work, rows * columns)
    operation = turned if turn else as_is
    assert operation is not None
    # `turn` solves for B in columns; without it the sides change.
    sides = (left, rows, columns) if turn else (not left, columns, rows)
    count = s.count if batched else 1
    routine = r.TriangularSolve(
        s.kind, sides[0], lower, operation, p["unit_diagonal"], *sides[1:], batch=count
    )
    if batched:
        tables = s.addresses(s.operand(0), n * n), s.addresses(work, rows * columns)
        s.run(routine, *tables)
    else:
        for k in range(s.count):
            triangle = s.of_matrix(s.operand(0), k, n * n * s.bytes)
            s.run(routine, triangle, s.of_matrix(work, k, rows * columns * s.bytes))
    if work is not out:
        s.transpose(work, out, columns, rows)
    return s.builder.build()


@lowers_by_library(solve_p)
def _solve(call: Call) -> Lowered:
    a, b = call.operands
    s = _solver(call, a)
    n, columns = b.shape[-2:]
    if s.fits_registers(n) and columns * s.parts <= MOST_SIDES:
        transposed = call.params["transpose_a"]
        small = SmallSolve(s.count, n, columns, s.real, s.parts == 2, transposed)
        buffers = s.operand(0), s.operand(1), s.result()
        s.include(plan_small_solve(small, call.target), *buffers)
        return s.builder.build()
    if s.fits_program(n, columns):
        medium = MediumSolve(s.count, n, columns, s.real, s.parts == 2, call.params["transpose_a"])
        buffers = s.operand(0), s.operand(1), s.result()
        s.include(plan_medium_solve(medium, call.target), *buffers)
        return s.builder.build()
    # Of A in memory, the library factors the transpose, and solves with that one's transpose.
    held, info, out = s.matrices(n * n), s.info(), s.result()
    s.copy(s.operand(0), held, n * n)
    work = s.matrices(n * columns) if columns > 1 else out
    if columns > 1:
        s.transpose(s.operand(1), work, n, columns)
    else:
        s.copy(s.operand(1), work, n)
    operation = "N" if call.params["transpose_a"] else "T"
    checked = s.builder.workspace(s.count, "i32")
    if _is_batched(s.count, n):
        pivots = s.builder.workspace(s.count * n, "i32")
        factors, sides = s.addresses(held, n * n), s.addresses(work, n * columns)
        s.run(r.LuFactor(s.kind, n, n, s.count), factors, pivots, info)
        solve = r.LuSolve(s.kind, n, columns, operation, s.count)
        s.run(solve, factors, pivots, sides, checked)
    else:
        pivots = s.builder.workspace(n, "i64")
        for k in range(s.count):
            matrix = s.of_matrix(held, k, n * n * s.bytes)
            sides = s.of_matrix(work, k, n * columns * s.bytes)
            s.run(r.LuFactor(s.kind, n, n), matrix, pivots, s.of_matrix(info, k, 4))
            s.run(r.LuSolve(s.kind, n, columns, operation), matrix, pivots, sides, checked)
    if columns > 1:
        s.transpose(work, out, columns, n)
    s.poison(info, out, n * columns)
    return s.builder.build()


@lowers_by_library(lu_p)
def _lu(call: Call) -> Lowered:
    x = call.operands[0]
    s = _solver(call, x)
    m, n = x.shape[-2:]
    if m == n and s.fits_registers(n):
        small = SmallLu(s.count, n, s.real, s.parts == 2)
        buffers = s.operand(0), s.result(), s.result(1, "i32"), s.result(2, "i32")
        s.include(plan_small_lu(small, call.target), *buffers)
        return s.builder.build()
    if m == n and s.fits_program(n):
        medium = MediumLu(s.count, n, s.real, s.parts == 2)
        buffers = s.operand(0), s.result(), s.result(1, "i32"), s.result(2, "i32")
        s.include(plan_medium_lu(medium, call.target), *buffers)
        return s.builder.build()
    exchanges = min(m, n)
    held, info = s.matrices(m * n), s.info()
    s.transpose(s.operand(0), held, m, n)
    if m == n and _is_batched(s.count, n):
        swaps = s.builder.workspace(s.count * exchanges, "i32")
        s.run(r.LuFactor(s.kind, n, n, s.count), s.addresses(held, n * n), swaps, info)
    else:
        swaps = s.builder.workspace(s.count * exchanges, "i64")
        for k in range(s.count):
            s.run(
                r.LuFactor(s.kind, m, n),
                s.of_matrix(held, k, m * n * s.bytes),
                s.of_matrix(swaps, k, 8 * exchanges),
                s.of_matrix(info, k, 4),
            )
    s.transpose(held, s.result(), n, m, s.flawed(m * n))
    pivots, order = s.result(1, "i32"), s.result(2, "i32")
    spec = RowSwaps(s.count, m, exchanges, swaps.dtype)
    s.include(plan_permutation(spec, call.target), swaps, pivots, order)
    return s.builder.build()


@lowers_by_library(qr_p)
def _qr(call: Call) -> Lowered:
    x = call.operands[0]
    s = _solver(call, x)
    m, n = x.shape[-2:]
    full = call.params["full_matrices"]
    k = m if full else min(m, n)
    if s.pays_to_compile(max(m, n)):
        plan = plan_small_qr(SmallQr(s.count, m, n, s.real, s.parts == 2, full), call.target)
        s.include(plan, s.operand(0), s.result(0), s.result(1))
        return s.builder.build()
    _add_qr(s, s.operand(0), (m, n, k), s.result(0), s.result(1))
    flawed = s.flawed(m * n)
    s.poison(flawed, s.result(0), m * k)
    s.poison(flawed, s.result(1), k * n)
    return s.builder.build()


def _add_qr(
    s: _Solver, source: BufferArg, shape: tuple[int, int, int], q: BufferArg, upper: BufferArg
) -> None:
    """Append Q [m, k] and R [k, n] of row-major matrices [m, n]."""
    m, n, k = shape
    wide = m * max(k, n)  # elements of a matrix with room for Q
    held = s.matrices(wide)
    s.transpose(source, held, m, n, out_matrix=wide)
    scales = _add_reflections(s, held, wide, (m, n))
    s.transpose(held, upper, n, k, source_stride=m, source_matrix=wide, triangle="lower")
    _add_q(s, held, wide, scales, (m, k, min(m, n)), q)


def _add_reflections(s: _Solver, held: BufferArg, stride: int, shape: tuple[int, int]) -> BufferArg:
    """Append the QR factorization in place of column-major matrices, `stride` elements apart; the
    scales of the reflectors."""
    m, n = shape
    reflectors = min(m, n)
    scales = s.matrices(reflectors)
    if _is_batched(s.count, n) and m <= MOST_ROWS:
        tables = s.addresses(held, stride), s.addresses(scales, reflectors)
        s.run(r.QrFactor(s.kind, m, n, s.count), *tables, s.info())
        return scales
    info = s.info()
    for i in range(s.count):
        matrix = s.of_matrix(held, i, stride * s.bytes)
        scale = s.of_matrix(scales, i, reflectors * s.bytes)
        s.run(r.QrFactor(s.kind, m, n), matrix, scale, s.of_matrix(info, i, 4))
    return scales


def _add_q(
    s: _Solver,
    held: BufferArg,
    stride: int,
    scales: BufferArg,
    shape: tuple[int, int, int],
    q: BufferArg,
) -> None:
    """Append Q [m, k], row-major, of so many reflectors; overwrites them."""
    m, k, reflectors = shape
    if s.count > 1 and m <= MOST_ROWS:
        spec = Reflectors(s.count, m, k, reflectors, stride, s.real, s.parts == 2)
        s.include(plan_reflectors(spec, s.call.target), held, scales, q)
        return
    info = s.info()
    for i in range(s.count):
        matrix = s.of_matrix(held, i, stride * s.bytes)
        scale = s.of_matrix(scales, i, reflectors * s.bytes)
        s.run(r.QrVectors(s.kind, m, k, reflectors), matrix, scale, s.of_matrix(info, i, 4))
    s.transpose(held, q, k, m, source_matrix=stride)


@lowers_by_library(eigh_p)
def _eigh(call: Call) -> Lowered:
    x = call.operands[0]
    s, n = _solver(call, x), x.shape[-1]
    values = s.result(1)
    if s.pays_to_compile(n) and n * s.bytes <= _EIGH_IN_REGISTERS:
        plan = plan_small_eigh(SmallEigh(s.count, n, s.real, s.parts == 2), call.target)
        s.include(plan, s.operand(0), s.result(), values)
        return s.builder.build()
    held, info = s.matrices(n * n), s.info()
    s.transpose(s.operand(0), held, n, n)
    flawed = s.finite(held, n * n)
    sizes = [n * n * s.bytes, n * ITEMSIZE[s.real], 4]
    small = s.count > 1 and n <= r.JACOBI_EIGH
    routine = lambda batch: (r.JacobiEigh if small else r.Eigh)(s.kind, n, batch)
    for at, batch in _portions(s, routine, n):
        parts = [s.of_matrix(b, at, size) for b, size in zip((held, values, info), sizes)]
        s.run(routine(batch), *parts)
    for failed in (flawed, info):
        s.poison(failed, held, n * n)
        s.poison(failed, values, n, 1)
    s.transpose(held, s.result(), n, n)
    return s.builder.build()


def _portions(s: _Solver, routine: Callable[[int], r.Routine], n: int) -> Iterator[tuple[int, int]]:
    """(first matrix, how many) of each batch of eigenproblems of size `n`: as many at once as
    scratch memory allows, one of those that no batched routine solves."""
    at = 0
    while at < s.count:
        batch = s.count - at if n <= r.CAPTURED_EIGH else 1
        while batch > 1 and libraries.scratch(routine(batch), s.call.target) > _MOST_SCRATCH:
            batch = -(-batch // 2)
        yield at, batch
        at += batch


@lowers_by_library(eig_p)
def _eig(call: Call) -> Lowered:
    x = call.operands[0]
    s, n = _solver(call, x), x.shape[-1]
    vectors, is_complex = call.params["compute_vectors"], s.parts == 2
    held, found, info = s.matrices(n * n), s.matrices(n * n), s.info()
    values = s.result()
    s.transpose(s.operand(0), held, n, n)
    flawed = s.finite(held, n * n)
    for k in range(s.count):
        s.run(
            r.Eig(s.kind, n, vectors),
            s.of_matrix(held, k, n * n * s.bytes),
            s.of_matrix(values, k, 2 * n * ITEMSIZE[s.real]),
            s.of_matrix(found, k, n * n * s.bytes),
            s.of_matrix(info, k, 4),
        )
    if vectors and is_complex:
        s.transpose(found, s.result(1), n, n)
    elif vectors:
        plan = plan_complex_vectors(Vectors(s.count, n, s.real), call.target)
        s.include(plan, found, values, s.result(1))
    for failed in (flawed, info):
        s.poison(failed, values, n, 2)
        if vectors:
            s.poison(failed, s.result(1), n * n, 2)
    return s.builder.build()


@lowers_by_library(svd_p)
def _svd(call: Call) -> Lowered:
    x = call.operands[0]
    s = _solver(call, x)
    m, n = x.shape[-2:]
    tall, thin = max(m, n), min(m, n)
    vectors, full = call.params["compute_uv"], call.params["full_matrices"]
    if s.pays_to_compile(tall):
        small = SmallSvd(s.count, m, n, s.real, s.parts == 2, vectors, full)
        results = [s.result(i) for i in range(len(call.outs))]
        s.include(plan_small_svd(small, call.target), s.operand(0), *results)
        return s.builder.build()
    # A row-major matrix with m < n is, to the library, its transpose, which is tall: its left and
    # right vectors change places.
    held, values, info = s.matrices(m * n), s.result(0), s.info()
    if m < n:
        s.copy(s.operand(0), held, m * n)
    else:
        s.transpose(s.operand(0), held, m, n)
    flawed = s.finite(held, m * n)
    left, right = s.matrices(tall * thin), s.matrices(thin * thin)
    # In float32, wider eigenvectors of A^H A are right to the last bit, and several times as fast
    # as other methods; left vectors follow from A V by a QR factorization, which is right where
    # singular values are zero, too. There is no wider format for float64.
    narrow = s.real == "fp32"
    find = _add_gram_svd if narrow else _add_jacobi_svd
    find(s, (held, values, left, right, info), (tall, thin), vectors)
    # The narrow one's says that singular values are zero.
    failures = [flawed] if narrow else [flawed, info]
    for failed in failures:
        s.poison(failed, values, thin, 1)
    if not vectors:
        return s.builder.build()
    if narrow or full:
        k = tall if full else thin
        wide = tall * k
        work = s.matrices(wide)
        if narrow:
            product = r.Product(s.kind, tall, thin, thin, s.count)
            s.run(product, held, right, left)
        s.copy(left, work, tall * thin, wide)
        scales = _add_reflections(s, work, wide, (tall, thin))
        signs = Signs(s.count, thin, thin, tall, wide, s.real, s.parts)
        s.include(plan_align_signs(signs, call.target), work, right)
        q = s.result(1) if m >= n else s.matrices(wide)
        _add_q(s, work, wide, scales, (tall, k, thin), q)
        if m < n:
            s.transpose(q, s.result(2), tall, k)
    elif m >= n:
        s.transpose(left, s.result(1), thin, tall)
    else:
        s.copy(left, s.result(2), tall * thin)
    if s.parts == 2:
        numbers = ComplexNumbers(s.count * thin * thin, s.real)
        s.include(plan_conjugate(numbers, call.target), right)
    if m >= n:
        s.copy(right, s.result(2), thin * thin)
    else:
        s.transpose(right, s.result(1), thin, thin)
    for failed in failures:
        s.poison(failed, s.result(1), m * (m if full else thin))
        s.poison(failed, s.result(2), (n if full else thin) * n)
    return s.builder.build()


_Svd = tuple[BufferArg, BufferArg, BufferArg, BufferArg, BufferArg]


def _add_gram_svd(s: _Solver, buffers: _Svd, shape: tuple[int, int], vectors: bool) -> None:
    """Append singular values and right vectors, in as many routines as scratch memory allows."""
    tall, thin = shape
    sizes = _sizes(s, shape)
    routine = lambda batch: r.GramSvd(s.kind, tall, thin, batch, vectors)
    for at, batch in _portions(s, routine, thin):
        parts = [s.of_matrix(b, at, size) for b, size in zip(buffers, sizes)]
        s.run(routine(batch), *parts)


def _add_jacobi_svd(s: _Solver, buffers: _Svd, shape: tuple[int, int], vectors: bool) -> None:
    """Append singular values and vectors of one matrix after the other."""
    sizes = _sizes(s, shape)
    for k in range(s.count):
        parts = [s.of_matrix(b, k, size) for b, size in zip(buffers, sizes)]
        s.run(r.JacobiSvd(s.kind, *shape, vectors), *parts)


def _sizes(s: _Solver, shape: tuple[int, int]) -> list[int]:
    """The bytes of a matrix, its values, U, V, and what the routine says."""
    tall, thin = shape
    u, v = [k * thin * s.bytes for k in shape]
    return [tall * thin * s.bytes, thin * ITEMSIZE[s.real], u, v, 4]
