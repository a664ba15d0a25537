"""Householder reflections I - tau v v^H: reductions of matrices by them, and their products.

Reflections are stored as LAPACK does (Anderson et al., "LAPACK Users' Guide", 1999, section 5.4):
v_i is one at its own row, zero above, and stands below in column i of a matrix. All run on the
device, by one loop over columns, and have derivatives of any order.
"""

from __future__ import annotations

from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.linalg.matrices import (
    adjoint,
    as_dtype,
    conjugate,
    exchange,
    identity,
    one_dtype,
    operand,
    positions,
    product,
    real,
    square,
)
from genesis_fn.primitives import elementwise as ops, linalg, shape as shapes
from genesis_fn.primitives.factories import full, zero_of
from genesis_fn.primitives.indexing.indexing import dynamic_index_in_dim
from genesis_fn.primitives.reductions.reduce import argmax, reduce_max, reduce_sum
from genesis_fn.primitives.sort import take_along
from genesis_fn.transforms.control_flow.scanning import scan


def _reflector(x: Array, row: Any) -> tuple[Array, Array, Array]:
    """(v, tau, beta) with (I - tau v v^H)^H x = (x above row, beta, zeros below), beta real.

    Of vectors x[..., m]. LAPACK's larfg: tau is 0 where nothing stands below and x[row] is real.
    """
    at, below = positions(x, -1) == row, positions(x, -1) > row
    last = (x.ndim - 1,)
    head = reduce_sum(ops.select(at, x, 0), last)
    tail = ops.select(below, x, 0)
    # Squares are of numbers scaled to about one; the scale cancels, so it has no derivative.
    size = reduce_max(ops.abs(ops.select(at | below, x, 0)), last)
    scale = ops.stop_gradient(ops.select(size > 0, size, 1))
    scaled = tail / as_dtype(scale, x)[..., None]
    rest = reduce_sum(real(scaled * conjugate(scaled)), last)
    scaled_head = head / as_dtype(scale, x)
    is_complex = dtypes.is_complex(x.aval.dtype)
    trivial = rest == 0
    if is_complex:
        trivial = trivial & (ops.imag(head) == 0)
    square_norm = rest + real(scaled_head * conjugate(scaled_head))
    norm = scale * ops.sqrt(ops.select(trivial, 1, square_norm))
    beta = ops.select(real(head) >= 0, -norm, norm)
    beta = ops.select(trivial, real(head), beta)
    length = as_dtype(ops.select(trivial, 1, beta), x)
    tau = ops.select(trivial, 0, (length - head) / length)
    below_head = tail / ops.select(trivial, 1, head - length)[..., None]
    return ops.select(at, 1, below_head), tau, beta


def _column(x: Array, j: Any) -> Array:
    return dynamic_index_in_dim(x, j, x.ndim - 1, keepdims=False)


def _outer(v: Array, w: Array) -> Array:
    return v[..., :, None] * w[..., None, :]


def _with_reflection(x: Array, j: Any, row: Any, v: Array, beta: Array) -> Array:
    """`x` whose column j, from `row` on, holds beta and the reflection below it."""
    shape, i = x.aval.shape, positions(x, -2)
    beta = shapes.broadcast_in_dim(as_dtype(beta, x), shape, range(x.ndim - 2))
    held = ops.select(i == row, beta, shapes.broadcast_in_dim(v, shape, range(x.ndim - 1)))
    return ops.select((positions(x, -1) == j) & (i >= row), held, x)


def _reflect_rows(x: Array, j: Any, v: Array, tau: Array) -> Array:
    """(I - tau v v^H)^H x, in the columns right of j."""
    w = product(conjugate(v)[..., None, :], x)[..., 0, :]
    w = ops.select(positions(w, -1) > j, w, 0)
    return x - _outer(conjugate(tau)[..., None] * v, w)


def _steps(count: int) -> Array:
    return shapes.broadcasted_iota(dtypes.I32, (count,), 0)


def _factored(x: Array, j: Any) -> tuple[Array, Array]:
    """Column j of `x` reflected to zeros below the diagonal, and tau."""
    v, tau, beta = _reflector(_column(x, j), j)
    return _with_reflection(_reflect_rows(x, j, v, tau), j, j, v, beta), tau


def qr_reflections(x: Array) -> tuple[Array, Array]:
    """(packed, taus) of x[..., m, n] = Q R, as LAPACK's geqrf gives them: R from the diagonal
    upwards, the reflections below, whose product Q is; taus[..., min(m, n)]."""
    return _over_columns(_factored, x, min(x.aval.shape[-2:]))


def _over_columns(step: Any, x: Array, count: int) -> tuple[Array, Array]:
    """(x, taus[..., count]) after `step` of each column j: (x, j) -> (x, tau)."""
    if count == 0 or not x.size:
        return x, full((*x.aval.shape[:-2], count), zero_of(x), x.aval.dtype)
    packed, taus = scan(step, x, _steps(count))
    return packed, shapes.transpose(taus, (*range(1, taus.ndim), 0))


def column_order(x: Array) -> Array:
    """The order p of columns, int32 [..., n], in which the QR decomposition of x[..., p] takes the
    column of greatest rest at each step (Businger and Golub, 1965)."""

    def step(carry: tuple[Array, Array], j: Any) -> tuple[tuple[Array, Array], None]:
        x, order = carry
        rest = ops.select(positions(x, -2) >= j, x, 0)
        norms = reduce_sum(real(rest * conjugate(rest)), (x.ndim - 2,))
        norms = ops.select(positions(norms, -1) >= j, norms, -1)
        swap = exchange(order, j, argmax(norms, norms.ndim - 1, dtypes.I32))
        x = take_along(x, shapes.broadcast_in_dim(swap, x.aval.shape, _all_but_rows(x)), x.ndim - 1)
        return (_factored(x, j)[0], take_along(order, swap, order.ndim - 1)), None

    *batch, m, n = x.aval.shape
    order = shapes.broadcasted_iota(dtypes.I32, (*batch, n), len(batch))
    if not x.size:
        return order
    x = ops.stop_gradient(x)
    (_, order), _ = scan(step, (x, order), _steps(min(m, n)))
    return order


def _all_but_rows(x: Array) -> tuple[int, ...]:
    return (*range(x.ndim - 2), x.ndim - 1)


# ---- products ----


def _checked(name: str, a: ArrayLike, taus: ArrayLike) -> tuple[Array, Array]:
    a, taus = operand(name, a), operand(name, taus, 1)
    one_dtype(name, a, taus)
    (*batch, m, n), (*others, k) = a.aval.shape, taus.aval.shape
    if batch != others or k > min(m, n):
        raise errors.ShapeError(
            f"{name}: taus {taus.aval} do not fit reflections {a.aval}: at most min(m, n) = "
            f"{min(m, n)} of them, in the same leading dimensions\n  at {where().describe()}"
        )
    return a, taus


def _reflections(a: Array, k: int) -> Array:
    """The vectors v_i as columns [..., m, k]."""
    a = a[..., :, :k]
    return linalg.tril(a, -1) + identity(a)


def _apply(a: Array, taus: Array, c: Array, by_adjoint: bool) -> Array:
    """Q c, or Q^H c, for Q = H_1 ... H_k.

    Q = I - V T V^H (Schreiber and Van Loan, 1989) with T = D (I + S D)^-1, where D holds taus and
    S is V^H V above the diagonal (Joffrain et al., 2006): products and one triangular solve in
    place of a loop.
    """
    v = _reflections(a, taus.aval.shape[-1])
    coefficients = product(adjoint(v), c)
    upper = linalg.triu(product(adjoint(v), v), 1) * taus[..., None, :]
    if by_adjoint:
        coefficients = conjugate(taus)[..., :, None] * coefficients
    coefficients = linalg.triangular_solve(
        upper,
        coefficients,
        left_side=True,
        transpose_a=by_adjoint,
        conjugate_a=by_adjoint,
        unit_diagonal=True,
    )
    if not by_adjoint:
        coefficients = taus[..., :, None] * coefficients
    return c - product(v, coefficients)


def householder_product(a: ArrayLike, taus: ArrayLike) -> Array:
    """The product H_1 H_2 ... H_k of reflections, its first n columns.

    H_i = I - taus[i] v_i v_i^H, where v_i is one at row i, zero above, and a[i + 1:, i] below.

    Args:
        a: reflections [..., m, n] with m >= n, of which the part below the diagonal is read;
            float32, float64 or complex.
        taus: their factors [..., k] with k <= n, of the same dtype.

    Returns:
        Matrices [..., m, n] with orthonormal columns, if the reflections come from a decomposition.

    Raises:
        ShapeError, DTypeError: the operands do not fit each other.

    >>> packed, taus = jnp.linalg.qr(jnp.array([[3.0, 1.0], [4.0, 2.0]]), mode="raw")
    >>> lax.linalg.householder_product(packed.mT, taus)
    Array([[-0.6, -0.8],
           [-0.8,  0.6]], dtype=float32)
    """
    a, taus = _checked("householder_product", a, taus)
    m, n = a.aval.shape[-2:]
    if m < n:
        raise errors.ShapeError(
            f"householder_product takes reflections with at least as many rows as columns, got "
            f"{a.aval}\n  at {where().describe()}"
        )
    return _apply(a, taus, identity(a), False)


def ormqr(
    a: ArrayLike, taus: ArrayLike, c: ArrayLike, *, left: bool = True, transpose: bool = False
) -> Array:
    """Q c, Q^H c, c Q or c Q^H for the product Q of reflections, which is not formed.

    Args:
        a: reflections [..., m, n], as `jnp.linalg.qr(..., mode="raw")` gives them transposed.
        taus: their factors [..., k], k <= min(m, n).
        c: matrices [..., m, p], or with `left` False [..., p, m], of the dtype of `a`.
        left: whether Q stands left of `c`.
        transpose: whether Q^H is applied in place of Q (Q^T, of real numbers).

    Returns:
        The product, in the shape of `c`.

    Raises:
        ShapeError, DTypeError: the operands do not fit each other.

    >>> packed, taus = jnp.linalg.qr(jnp.array([[3.0, 1.0], [4.0, 2.0]]), mode="raw")
    >>> lax.linalg.ormqr(packed.mT, taus, jnp.array([[5.0], [0.0]]), transpose=True)
    Array([[-3.],
           [-4.]], dtype=float32)
    """
    a, taus = _checked("ormqr", a, taus)
    c = operand("ormqr", c)
    one_dtype("ormqr", a, c)
    side = -2 if left else -1
    same_batch = c.aval.shape[:-2] == a.aval.shape[:-2]
    if not same_batch or c.aval.shape[side] != a.aval.shape[-2]:
        raise errors.ShapeError(
            f"ormqr: reflections {a.aval} do not fit {c.aval} with left={left}\n"
            f"  at {where().describe()}"
        )
    if left:
        return _apply(a, taus, c, transpose)
    return adjoint(_apply(a, taus, adjoint(c), not transpose))


# ---- reductions by similarity ----


def hessenberg(a: ArrayLike) -> tuple[Array, Array]:
    """Reduce square matrices to upper Hessenberg form H with a = Q H Q^H (Golub and Van Loan,
    "Matrix Computations", 2013, algorithm 7.4.2).

    Args:
        a: matrices [..., n, n], n >= 1; float32, float64 or complex.

    Returns:
        (packed, taus): packed[..., n, n] holds H from the first subdiagonal upwards and below it
        the reflections whose product Q is, with the factors taus[..., n - 1].

    Raises:
        ShapeError, DTypeError: `a` holds no square matrices, or of another dtype.

    >>> packed, taus = lax.linalg.hessenberg(jnp.array([[1., 2., 3.], [3., 4., 0.], [4., 0., 1.]]))
    >>> jnp.triu(packed, -1)
    Array([[ 1.  , -3.6 ,  0.2 ],
           [-5.  ,  2.08,  1.44],
           [ 0.  ,  1.44,  2.92]], dtype=float32)
    """
    return _reduced(_with_rows("hessenberg", a))


def _with_rows(name: str, a: ArrayLike) -> Array:
    a = square(name, a)
    if not a.aval.shape[-1]:
        raise errors.ShapeError(
            f"{name} takes matrices of at least one row, got {a.aval}\n  at {where().describe()}"
        )
    return a


def _reduced(a: Array) -> tuple[Array, Array]:
    def step(x: Array, j: Any) -> tuple[Array, Array]:
        v, tau, beta = _reflector(_column(x, j), j + 1)
        # v is zero up to row j, and columns up to j hold what is finished.
        right = product(x, v[..., :, None])[..., 0]
        x = x - _outer(tau[..., None] * right, conjugate(v))
        x = _reflect_rows(x, j, v, tau)
        return _with_reflection(x, j, j + 1, v, beta), tau

    return _over_columns(step, a, a.aval.shape[-1] - 1)


def tridiagonal(a: ArrayLike, *, lower: bool = True) -> tuple[Array, Array, Array, Array]:
    """Reduce Hermitian matrices to real symmetric tridiagonal form T with a = Q T Q^H.

    Args:
        a: matrices [..., n, n], n >= 1, of which one triangle is read; float32, float64 or complex.
        lower: whether that is the lower triangle; the upper one else.

    Returns:
        (packed, d, e, taus): the diagonal d[..., n] and subdiagonal e[..., n - 1] of T, real;
        packed[..., n, n] holds both and beyond them, in the triangle that was read, the reflections
        with the factors taus[..., n - 1]. With `lower`, Q = H_1 ... H_(n-1); else
        Q = H_(n-1) ... H_1. The other triangle is that of `a`.

    Raises:
        ShapeError, DTypeError: `a` holds no square matrices, or of another dtype.

    >>> _, d, e, _ = lax.linalg.tridiagonal(jnp.array([[1., 3., 4.], [3., 2., 0.], [4., 0., 1.]]))
    >>> d, e
    (Array([1.  , 1.36, 1.64], dtype=float32), Array([-5.  , -0.48], dtype=float32))
    """
    a = _with_rows("tridiagonal", a)
    if not lower:  # the lower triangle of the matrix read from its end
        packed, d, e, taus = tridiagonal(_reversed(a, 2), lower=True)
        return _reversed(packed, 2), _reversed(d, 1), _reversed(e, 1), _reversed(taus, 1)
    below = linalg.tril(a, -1)
    middle = ops.select(positions(a, -1) == positions(a, -2), as_dtype(real(a), a), 0)
    packed, taus = _reduced(below + middle + adjoint(below))
    d = real(_diagonal(packed))
    e = real(_diagonal(packed[..., 1:, :-1]))
    return linalg.tril(packed) + linalg.triu(a, 1), d, e, taus


def _reversed(x: Array, count: int) -> Array:
    return shapes.rev(x, range(x.ndim - count, x.ndim))


def _diagonal(x: Array) -> Array:
    at = positions(x, -1) == positions(x, -2)
    return reduce_sum(ops.select(at, x, 0), (x.ndim - 1,))
