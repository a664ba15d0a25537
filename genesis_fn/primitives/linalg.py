"""Dense linear algebra on the last two dimensions: factorizations, triangular and general solves.

Leading dimensions are a batch. float32, float64, complex64 and complex128. Derivatives follow
Giles, "An extended collection of matrix derivative results" (2008), and for the QR and singular
value decompositions Walter and Lehmann (2010) and Townsend (2016). They are written in
differentiable operations, so that any order is available.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.dtypes import I32
from genesis_fn.core.primitive import Primitive, bind, is_linear, typeof, with_weak
from genesis_fn.core.types.annotations import Array, PyTree
from genesis_fn.primitives import shape as shapes
from genesis_fn.primitives.dot_general import batch_matmul
from genesis_fn.primitives.elementwise import (
    add,
    conj,
    convert,
    div,
    eq,
    ge,
    gt,
    mul,
    neg,
    real,
    select,
    sub,
)
from genesis_fn.primitives.factories import full, move_batch, zero_of
from genesis_fn.primitives.reductions.reduce import reduce_sum
from genesis_fn.primitives.sort import take_along

_DTYPES = (dtypes.F32, dtypes.F64, dtypes.C64, dtypes.C128)


def _matrices(name: str, x: Aval, square: bool = False) -> tuple[int, int]:
    """(rows, columns). Raises ShapeError or DTypeError for what is no stack of matrices."""
    if x.ndim < 2:
        raise errors.ShapeError(f"{name} takes matrices [..., m, n], got {x}")
    if square and x.shape[-1] != x.shape[-2]:
        raise errors.ShapeError(f"{name} takes square matrices [..., n, n], got {x}")
    if x.dtype not in _DTYPES:
        raise errors.DTypeError(
            f"{name} takes float32, float64 or complex matrices, got {x}; convert with .astype(...)"
        )
    return x.shape[-2], x.shape[-1]


def _batch_leading(prim: Primitive) -> Callable[..., Any]:
    """The batching rule of operations on the last two dimensions."""

    def batch(size: int, xs: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        out = bind(prim, *[move_batch(x, d, 0, size) for x, d in zip(xs, dims)], **params)
        return (out, [0] * len(out)) if prim.multi else (out, 0)

    return batch


# ---- small operations on matrices ----


def _mm(x: Any, y: Any) -> Any:
    return batch_matmul(x, y, "highest")


def _t(x: Any) -> Any:
    n = typeof(x).ndim
    return shapes.transpose(x, (*range(n - 2), n - 1, n - 2))


def _conj(x: Any) -> Any:
    return conj(x) if dtypes.is_complex(typeof(x).dtype) else x


def _h(x: Any) -> Any:
    """The conjugate transpose."""
    return _conj(_t(x))


def _real(x: Any) -> Any:
    return real(x) if dtypes.is_complex(typeof(x).dtype) else x


def _like(x: Any, dtype: Any) -> Any:
    """Convert real `x` to `dtype`, which may be complex."""
    return convert(x, dtype)


def _row_and_column(x: Any) -> tuple[Any, Any]:
    """The (row, column) indices of every element."""
    s = typeof(x).shape
    row, column = [shapes.broadcasted_iota(I32, s, len(s) - i) for i in (2, 1)]
    return row, column


def tril(x: Array, k: int = 0) -> Array:
    """`x` with zeros above its k-th diagonal."""
    i, j = _row_and_column(x)
    return select(ge(add(i, k), j), x, zero_of(x))


def triu(x: Array, k: int = 0) -> Array:
    """`x` with zeros below its k-th diagonal."""
    i, j = _row_and_column(x)
    return select(ge(j, add(i, k)), x, zero_of(x))


def _eye(x: Any) -> Any:
    """Identity matrices like `x`."""
    i, j = _row_and_column(x)
    return convert(eq(i, j), typeof(x).dtype)


def _diagonal(x: Any) -> Any:
    """x[..., i, i], of square matrices."""
    n = typeof(x).ndim
    i, j = _row_and_column(x)
    return reduce_sum(select(eq(i, j), x, zero_of(x)), (n - 1,))


def _by_column(v: Any, shape: Sequence[int]) -> Any:
    """v[..., j] at [..., i, j]."""
    n = len(shape)
    return shapes.broadcast_in_dim(v, shape, (*range(n - 2), n - 1))


def _by_row(v: Any, shape: Sequence[int]) -> Any:
    """v[..., i] at [..., i, j]."""
    return shapes.broadcast_in_dim(v, shape, range(len(shape) - 1))


def _half(x: Any) -> Any:
    return mul(x, 0.5)


def _cubic(multiple: float) -> Callable[..., float]:
    """The `flops` of a decomposition: a multiple of n^3, by Golub and Van Loan, "Matrix
    Computations"."""

    def flops(ins: Sequence[Aval], outs: Sequence[Aval], **_: Any) -> float:
        *batch, rows, columns = ins[0].shape
        return multiple * math.prod(batch) * max(rows, columns) * min(rows, columns) ** 2

    return flops


# ---- Cholesky ----


def _cholesky_shape(x: Aval) -> Aval:
    _matrices("cholesky", x, square=True)
    return x


# Zero above the diagonal, NaN elsewhere of a matrix that is not positive definite.
cholesky_p = Primitive("cholesky", _cholesky_shape, flops=_cubic(1 / 3), precision="high")
cholesky_p.batch = _batch_leading(cholesky_p)


def _cholesky_linearize(nonzero: Any, x: Any) -> Any:
    factor = bind(cholesky_p, x)

    def tangent(t: Any) -> Any:
        # L' = L Phi(L^-1 A' L^-H), Phi the lower triangle with half the diagonal.
        inner = triangular_solve(
            factor, t, left_side=False, lower=True, transpose_a=True, conjugate_a=True
        )
        inner = triangular_solve(factor, inner, left_side=True, lower=True)
        return _mm(factor, sub(tril(inner), _half(mul(inner, _eye(inner)))))

    return factor, tangent


cholesky_p.linearize = _cholesky_linearize


def cholesky(x: Array, *, symmetrize_input: bool = True) -> Array:
    """The lower triangular L with L L^H = x, of Hermitian positive definite x[..., n, n].

    NaN where a matrix is not positive definite. With `symmetrize_input`, (x + x^H) / 2 is factored;
    else the lower triangle is read.
    """
    _matrices("cholesky", typeof(x), square=True)
    return bind(cholesky_p, _half(add(x, _h(x))) if symmetrize_input else x)


# ---- triangular solve ----


def _triangular_shape(
    a: Aval,
    b: Aval,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
) -> Aval:
    n, _ = _matrices("triangular_solve", a, square=True)
    _matrices("triangular_solve", b)
    if a.shape[:-2] != b.shape[:-2] or b.shape[-2 if left_side else -1] != n or a.dtype != b.dtype:
        side = "left" if left_side else "right"
        raise errors.ShapeError(f"triangular_solve: {a} on the {side} does not fit {b}")
    return b


triangular_solve_p = Primitive(
    "triangular_solve",
    _triangular_shape,
    flops=lambda ins, outs, **_: ins[1].size * ins[0].shape[-2],
    precision="high",
)
triangular_solve_p.batch = _batch_leading(triangular_solve_p)


def _triangular_linearize(nonzero: Any, a: Any, b: Any, **params: Any) -> Any:
    x = bind(triangular_solve_p, a, b, **params)

    def tangent(ta: Any, tb: Any) -> Any:
        # op(A) X = B: X' = op(A)^-1 (B' - op(A') X); on the right likewise.
        right = tb
        if ta is not None:
            ta = (
                tril(ta, -params["unit_diagonal"])
                if params["lower"]
                else triu(ta, +params["unit_diagonal"])
            )
            ta = _conj(ta) if params["conjugate_a"] else ta
            ta = _t(ta) if params["transpose_a"] else ta
            product = _mm(ta, x) if params["left_side"] else _mm(x, ta)
            right = neg(product) if tb is None else sub(tb, product)
        return bind(triangular_solve_p, a, right, **params)

    return x, tangent


def _triangular_transpose(
    ct: Any, a: Any, b: Any, *, transpose_a: bool, **params: Any
) -> list[Any]:
    if is_linear(a):
        raise errors.NotDifferentiableError("triangular_solve is not linear in its matrix")
    return [None, bind(triangular_solve_p, a, ct, transpose_a=not transpose_a, **params)]


triangular_solve_p.linearize = _triangular_linearize
triangular_solve_p.transpose = _triangular_transpose


def triangular_solve(
    a: Array,
    b: Array,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Array:
    """Solve op(a) X = b (`left_side`) or X op(a) = b for X, with triangular a[..., n, n].

    op transposes with `transpose_a` and conjugates with `conjugate_a`; the other triangle of `a` is
    not read.
    """
    vector = typeof(b).ndim == typeof(a).ndim - 1
    if vector:
        b = shapes.expand_dims(b, -1 if left_side else -2)
    x = bind(
        triangular_solve_p,
        a,
        b,
        left_side=bool(left_side),
        lower=bool(lower),
        transpose_a=bool(transpose_a),
        conjugate_a=bool(conjugate_a),
        unit_diagonal=bool(unit_diagonal),
    )
    return shapes.squeeze(x, -1 if left_side else -2) if vector else x


# ---- general solve ----


def _solve_shape(a: Aval, b: Aval, *, transpose_a: bool) -> Aval:
    n, _ = _matrices("solve", a, square=True)
    _matrices("solve", b)
    if a.shape[:-2] != b.shape[:-2] or b.shape[-2] != n or a.dtype != b.dtype:
        raise errors.ShapeError(f"solve: {a} does not fit {b}")
    return b


def _solve_linearize(nonzero: Any, a: Any, b: Any, *, transpose_a: bool) -> Any:
    x = bind(solve_p, a, b, transpose_a=transpose_a)

    def tangent(ta: Any, tb: Any) -> Any:
        right = tb
        if ta is not None:
            product = _mm(_t(ta) if transpose_a else ta, x)
            right = neg(product) if tb is None else sub(tb, product)
        return bind(solve_p, a, right, transpose_a=transpose_a)

    return x, tangent


def _solve_transpose(ct: Any, a: Any, b: Any, *, transpose_a: bool) -> list[Any]:
    if is_linear(a):
        raise errors.NotDifferentiableError("solve is not linear in its matrix")
    return [None, bind(solve_p, a, ct, transpose_a=not transpose_a)]


solve_p = Primitive(
    "solve",
    _solve_shape,
    linearize=_solve_linearize,
    transpose=_solve_transpose,
    precision="high",
    flops=_cubic(2 / 3),
)
solve_p.batch = _batch_leading(solve_p)


def solve(a: Array, b: Array) -> Array:
    """Solve a X = b for X, with a[..., n, n] and b[..., n, k] or b[..., n]; NaN where a is
    singular."""
    vector = typeof(b).ndim == typeof(a).ndim - 1
    x = bind(solve_p, a, shapes.expand_dims(b, -1) if vector else b, transpose_a=False)
    return shapes.squeeze(x, -1) if vector else x


# ---- LU ----


def _lu_shape(x: Aval) -> list[Aval]:
    m, n = _matrices("lu", x)
    lead = x.shape[:-2]
    return [x, x.update((*lead, min(m, n)), I32), x.update((*lead, m), I32)]


lu_p = Primitive("lu", _lu_shape, flops=_cubic(2 / 3), multi=True, precision="high")
lu_p.batch = _batch_leading(lu_p)


def _lu_linearize(nonzero: Any, x: Any) -> Any:
    factors, pivots, order = bind(lu_p, x)
    aval = typeof(x)
    m, n = aval.shape[-2:]
    k = min(m, n)

    def tangent(t: Any) -> list[Any]:
        index = shapes.broadcast_in_dim(order, aval.shape, range(aval.ndim - 1))
        t = take_along(t, index, aval.ndim - 2)
        lower, upper = _square_factors(factors, m, n, k)
        inner = triangular_solve(lower, t, left_side=True, lower=True, unit_diagonal=True)
        inner = triangular_solve(upper, inner, left_side=False, lower=False)
        first, second = _mm(lower, tril(inner, -1)), _mm(triu(inner), upper)
        return [add(first, second), None, None]

    return [factors, pivots, order], tangent


def _square_factors(factors: Any, m: int, n: int, k: int) -> tuple[Any, Any]:
    """L[m, m] and U[n, n] from packed factors[m, n], completed by identities."""
    lead = typeof(factors).shape[:-2]
    dtype = typeof(factors).dtype

    def completed(part: Any, rows: int, cols: int) -> Any:
        size = max(rows, cols)
        config = [(0, 0, 0)] * len(lead) + [(0, size - rows, 0), (0, size - cols, 0)]
        return shapes.pad(part, full((), zero_of(factors), dtype), config)

    ndim = len(lead) + 2
    lower = tril(shapes.slice_in_dim(factors, 0, k, 1, ndim - 1), -1)
    upper = triu(shapes.slice_in_dim(factors, 0, k, 1, ndim - 2))
    lower, upper = completed(lower, m, k), completed(upper, k, n)
    lower = add(lower, _eye(lower))
    if n > k:
        i, _ = _row_and_column(upper)
        beyond = select(gt(i, k - 1), _eye(upper), zero_of(upper))
        upper = add(upper, beyond)
    return lower, upper


lu_p.linearize = _lu_linearize


def lu(x: Array) -> tuple[Array, Array, Array]:
    """(packed factors, pivots, permutation) with x[permutation] = L U, by partial pivoting.

    The factors hold U above L, whose unit diagonal is left out; row i was exchanged with pivots[i].
    """
    factors, pivots, permutation = bind(lu_p, x)
    return factors, pivots, permutation


# ---- QR ----


def _qr_shape(x: Aval, *, full_matrices: bool) -> list[Aval]:
    m, n = _matrices("qr", x)
    k = m if full_matrices else min(m, n)
    return [x.update((*x.shape[:-2], m, k)), x.update((*x.shape[:-2], k, n))]


qr_p = Primitive("qr", _qr_shape, flops=_cubic(4 / 3), multi=True, precision="high")
qr_p.batch = _batch_leading(qr_p)


def _qr_linearize(nonzero: Any, x: Any, *, full_matrices: bool) -> Any:
    m, n = typeof(x).shape[-2:]
    if m < n or (full_matrices and m != n):
        raise errors.NotDifferentiableError(
            f"qr has no derivative for {typeof(x)} with full_matrices={full_matrices}: it needs at "
            "least as many rows as columns, and full_matrices=False"
        )
    q, r = bind(qr_p, x, full_matrices=full_matrices)

    def tangent(t: Any) -> list[Any]:
        s = triangular_solve(r, t, left_side=False, lower=False)  # A' R^-1
        inner = _mm(_h(q), s)
        below = tril(inner, -1)
        skew = sub(below, _h(below))  # skew: Q^H Q' off its diagonal
        if dtypes.is_complex(typeof(x).dtype):
            # R keeps a real diagonal, so Q takes the phase.
            phase = _like(_real(inner), typeof(x).dtype)
            skew = add(skew, mul(_eye(inner), sub(inner, phase)))
        return [add(_mm(q, sub(skew, inner)), s), _mm(sub(inner, skew), r)]

    return [q, r], tangent


qr_p.linearize = _qr_linearize


def qr(x: Array, *, full_matrices: bool = True) -> tuple[Array, Array]:
    """(Q, R) with x = Q R, Q's columns orthonormal and R upper triangular."""
    q, r = bind(qr_p, x, full_matrices=bool(full_matrices))
    return with_weak(q, x.weak), with_weak(r, x.weak)


# ---- Hermitian eigenvalues ----


def _eigh_shape(x: Aval) -> list[Aval]:
    _matrices("eigh", x, square=True)
    return [x, x.update(x.shape[:-1], dtypes.real_of(x.dtype))]


eigh_p = Primitive("eigh", _eigh_shape, flops=_cubic(9), multi=True, precision="high")
eigh_p.batch = _batch_leading(eigh_p)


def _inverse_gaps(w: Any, shape: Sequence[int]) -> Any:
    """1 / (w_j - w_i), and 0 on the diagonal."""
    gap = sub(_by_column(w, shape), _by_row(w, shape))
    i, j = _row_and_column(gap)
    same = eq(i, j)
    return select(
        same, 0.0, div(full(typeof(gap).shape, 1.0, typeof(gap).dtype), select(same, 1.0, gap))
    )


def _eigh_linearize(nonzero: Any, x: Any) -> Any:
    v, w = bind(eigh_p, x)

    def tangent(t: Any) -> list[Any]:
        # Only the lower triangle is read; the derivative is that of the Hermitian matrix.
        t = _half(add(t, _h(t)))
        inner = _mm(_h(v), _mm(t, v))
        gaps = _like(_inverse_gaps(w, typeof(x).shape), typeof(x).dtype)
        return [_mm(v, mul(gaps, inner)), _real(_diagonal(inner))]

    return [v, w], tangent


eigh_p.linearize = _eigh_linearize


def eigh(x: Array, *, lower: bool = True, symmetrize_input: bool = True) -> tuple[Array, Array]:
    """(eigenvectors as columns, eigenvalues ascending) of Hermitian x[..., n, n].

    With `symmetrize_input`, of (x + x^H) / 2; else one triangle is read.
    """
    _matrices("eigh", typeof(x), square=True)
    if symmetrize_input:
        x = _half(add(x, _h(x)))
    elif not lower:
        x = _h(x)
    v, w = bind(eigh_p, x)
    return with_weak(v, x.weak), with_weak(w, x.weak)


# ---- eigenvalues of general matrices ----


def _eig_shape(x: Aval, *, compute_vectors: bool) -> list[Aval]:
    _matrices("eig", x, square=True)
    kind = dtypes.complex_of(x.dtype)
    values = x.update(x.shape[:-1], kind)
    return [values, x.update(x.shape, kind)] if compute_vectors else [values]


eig_p = Primitive("eig", _eig_shape, flops=_cubic(25), multi=True, precision="high")
eig_p.batch = _batch_leading(eig_p)


def _eig_linearize(nonzero: Any, x: Any, *, compute_vectors: bool) -> Any:
    w, v = bind(eig_p, x, compute_vectors=True)

    def tangent(t: Any) -> list[Any]:
        inner = bind(solve_p, v, _mm(convert(t, typeof(v).dtype), v), transpose_a=False)
        dw = _diagonal(inner)
        if not compute_vectors:
            return [dw]
        dv = _mm(v, mul(_inverse_gaps(w, typeof(v).shape), inner))
        # Vectors keep their length, and the component along themselves is a free phase.
        along = _like(_real(_diagonal(_mm(_h(v), dv))), typeof(v).dtype)
        return [dw, sub(dv, mul(v, _by_column(along, typeof(v).shape)))]

    return ([w, v] if compute_vectors else [w]), tangent


eig_p.linearize = _eig_linearize


def eig(x: Array, *, compute_vectors: bool = True) -> tuple[Array, ...]:
    """(eigenvalues, right eigenvectors as columns of length one) of x[..., n, n], both complex, in
    no order; the eigenvalues alone without `compute_vectors`. NaN where x is not finite."""
    return tuple(bind(eig_p, x, compute_vectors=bool(compute_vectors)))


# ---- singular values ----


def _svd_shape(x: Aval, *, full_matrices: bool, compute_uv: bool) -> list[Aval]:
    m, n = _matrices("svd", x)
    lead, k = x.shape[:-2], min(m, n)
    s = x.update((*lead, k), dtypes.real_of(x.dtype))
    if not compute_uv:
        return [s]
    a, b = (m, n) if full_matrices else (k, k)
    return [s, x.update((*lead, m, a)), x.update((*lead, b, n))]


svd_p = Primitive("svd", _svd_shape, flops=_cubic(22), multi=True, precision="high")
svd_p.batch = _batch_leading(svd_p)


def _svd_linearize(nonzero: Any, x: Any, *, full_matrices: bool, compute_uv: bool) -> Any:
    m, n = typeof(x).shape[-2:]
    if full_matrices and compute_uv and m != n:
        raise errors.NotDifferentiableError(
            f"svd of {typeof(x)} has no derivative with full_matrices=True; pass False"
        )
    s, u, vh = bind(svd_p, x, full_matrices=False, compute_uv=True)
    dtype = typeof(x).dtype
    k = min(m, n)
    square = (*typeof(x).shape[:-2], k, k)

    def tangent(t: Any) -> list[Any]:
        inner = _mm(_mm(_h(u), t), _h(vh))  # U^H A' V
        ds = _real(_diagonal(inner))
        if not compute_uv:
            return [ds]
        s_row, s_col = _by_row(s, square), _by_column(s, square)
        i, j = _row_and_column(s_row)
        same = eq(i, j)
        # Difference of squares as a product, which keeps close values apart.
        gap = select(same, 1.0, mul(sub(s_col, s_row), add(s_col, s_row)))
        one = full(square, 1.0, typeof(s).dtype)
        weights = _like(select(same, 0.0, div(one, gap)), dtype)
        scaled_r = mul(inner, _like(s_col, dtype))  # inner S
        scaled_l = mul(_like(s_row, dtype), inner)  # S inner
        skew_u = mul(weights, add(scaled_r, _h(scaled_r)))
        skew_v = mul(weights, add(scaled_l, _h(scaled_l)))
        inverse = _like(select(same, div(one, s_col), 0.0), dtype)
        if dtypes.is_complex(dtype):
            # The phase that U and V share is free; U takes it.
            phase = _half(mul(inverse, sub(inner, _h(inner))))
            skew_u = add(skew_u, phase)
        du, dv = _mm(u, skew_u), _mm(_h(vh), skew_v)
        scale = _like(
            shapes.broadcast_in_dim(
                div(full(typeof(s).shape, 1.0, typeof(s).dtype), s),
                (*square[:-2], 1, k),
                (*range(len(square) - 2), len(square) - 1),
            ),
            dtype,
        )
        if m > k:
            outside = sub(_mm(t, _h(vh)), _mm(u, inner))
            du = add(du, mul(outside, _spread_columns(scale, typeof(outside).shape)))
        if n > k:
            outside = sub(_mm(_h(t), u), _mm(_h(vh), _h(inner)))
            dv = add(dv, mul(outside, _spread_columns(scale, typeof(outside).shape)))
        return [ds, du, _h(dv)]

    return ([s, u, vh] if compute_uv else [s]), tangent


def _spread_columns(row: Any, shape: Sequence[int]) -> Any:
    return shapes.broadcast_in_dim(row, shape, range(len(shape)))


svd_p.linearize = _svd_linearize


@overload
def svd(
    x: Array, *, full_matrices: bool = True, compute_uv: Literal[True] = True
) -> tuple[Array, Array, Array]: ...
@overload
def svd(x: Array, *, full_matrices: bool = True, compute_uv: Literal[False]) -> Array: ...
@overload
def svd(x: Array, *, full_matrices: bool = True, compute_uv: bool) -> PyTree: ...
def svd(x: Array, *, full_matrices: bool = True, compute_uv: bool = True) -> PyTree:
    """(U, s, V^H) with x = U diag(s) V^H, s descending; s alone without `compute_uv`."""
    outs = bind(svd_p, x, full_matrices=bool(full_matrices), compute_uv=bool(compute_uv))
    outs = [with_weak(o, x.weak) for o in outs]
    return (outs[1], outs[0], outs[2]) if compute_uv else outs[0]


def svdvals(x: Array) -> Array:
    """The singular values of x[..., m, n] in descending order."""
    return svd(x, full_matrices=False, compute_uv=False)
