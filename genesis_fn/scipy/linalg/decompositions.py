"""Decompositions of matrices, with SciPy's names."""

from __future__ import annotations

from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn import lax
from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.lax.linalg.matrices import adjoint, product, square
from genesis_fn.lax.linalg.polar import differentiable
from genesis_fn.lax.linalg.reflections import column_order, qr_reflections
from genesis_fn.lax.promotion import promote_arrays


def _inexact(name: str, *xs: ArrayLike) -> list[Array]:
    return promote_arrays(name, xs, inexact=True)


def _square(name: str, a: ArrayLike) -> Array:
    return square(name, _inexact(name, a)[0])


def _refused(name: str, said: str) -> errors.ArgumentError:
    return errors.ArgumentError(f"{name}: {said}\n  at {where().describe()}")


def cholesky(
    a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> Array:
    """The Cholesky factor of Hermitian positive definite matrices: U with a = U^H U, or L with
    a = L L^H.

    Args:
        a: matrices [..., n, n], of which one triangle is read.
        lower: whether that is the lower triangle, and L is given.
        overwrite_a, check_finite: SciPy's, of no effect.

    Returns:
        The factor [..., n, n]; NaN where a matrix is not positive definite.

    >>> scipy.linalg.cholesky(jnp.array([[4.0, 2.0], [2.0, 2.0]]))
    Array([[2., 1.],
           [0., 1.]], dtype=float32)
    """
    a = _square("cholesky", a)
    factor = lax.linalg.cholesky(a if lower else adjoint(a), symmetrize_input=False)
    return factor if lower else adjoint(factor)


def cho_factor(
    a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Array, bool]:
    """The Cholesky factor as `cho_solve` takes it.

    Args:
        a: matrices [..., n, n], of which one triangle is read.
        lower: whether that is the lower triangle, and the lower factor is given.
        overwrite_a, check_finite: SciPy's, of no effect.

    Returns:
        (factor [..., n, n], `lower`).

    >>> scipy.linalg.cho_factor(jnp.array([[4.0, 2.0], [2.0, 2.0]]), lower=True)
    (Array([[2., 0.], [1., 1.]], dtype=float32), True)
    """
    return cholesky(a, lower), lower


def eigh(
    a: ArrayLike,
    b: ArrayLike | None = None,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: int = 1,
    check_finite: bool = True,
) -> PyTree:
    """Eigenvalues and eigenvectors of Hermitian matrices, or of pairs of them.

    Args:
        a: Hermitian matrices [..., n, n], of which one triangle is read.
        b: Hermitian positive definite matrices [..., n, n], given whole; ones on the diagonal by
            default.
        lower: whether the lower triangle of `a` is read.
        eigvals_only: whether values alone are given.
        overwrite_a, overwrite_b, turbo, check_finite: SciPy's, of no effect.
        eigvals: None; index the result for some of the values.
        type: the problem with `b`: 1 for a v = w b v, 2 for a b v = w v, 3 for b a v = w v.

    Returns:
        (values [..., n] ascending, vectors as columns [..., n, n]), or the values. Vectors have
        v^H b v = 1, or v^H b^-1 v = 1 for type 3.

    Raises:
        ArgumentError: `eigvals` or `type` is none of these.

    >>> scipy.linalg.eigh(jnp.array([[2.0, 1.0], [1.0, 2.0]]), eigvals_only=True)
    Array([1., 3.], dtype=float32)
    """
    if eigvals is not None:
        raise _refused("eigh", f"eigvals={eigvals!r} is not there; index the result")
    if type not in (1, 2, 3):
        raise _refused("eigh", f"type {type!r} is none of 1, 2, 3")
    if b is None:
        a = _square("eigh", a)
        vectors, values = lax.linalg.eigh(a, lower=lower, symmetrize_input=False)
        return values if eigvals_only else (values, vectors)
    a, b = _inexact("eigh", a, b)
    if square("eigh", a).shape != square("eigh", b).shape:
        raise errors.ShapeError(f"eigh: {a.aval} and {b.aval} differ\n  at {where().describe()}")
    factor = lax.linalg.cholesky(b)
    below = jnp.tril(a, -1) if lower else adjoint(jnp.triu(a, 1))
    whole = below + adjoint(below) + jnp.eye(a.shape[-1], dtype=a.dtype) * jnp.real(a)
    if type == 1:
        half = lax.linalg.triangular_solve(factor, whole, left_side=True, lower=True)
        options: dict[str, Any] = {"lower": True, "transpose_a": True, "conjugate_a": True}
        reduced = lax.linalg.triangular_solve(factor, half, **options)
    else:
        reduced = product(adjoint(factor), product(whole, factor))
    vectors, values = lax.linalg.eigh(reduced)
    if eigvals_only:
        return values
    if type == 3:
        return values, product(factor, vectors)
    options = {"left_side": True, "lower": True, "transpose_a": True, "conjugate_a": True}
    return values, lax.linalg.triangular_solve(factor, vectors, **options)


def eigh_tridiagonal(
    d: ArrayLike,
    e: ArrayLike,
    *,
    eigvals_only: bool = False,
    select: str = "a",
    select_range: tuple[float, float] | None = None,
    tol: float | None = None,
    key: Array | None = None,
) -> PyTree:
    """Eigenvalues and eigenvectors of a Hermitian tridiagonal matrix.

    They are those of the whole matrix, by `eigh`: in the memory of n^2 elements, exact to rounding,
    and differentiable.

    Args:
        d: the real diagonal [n], float32 or float64; of complex numbers the real part counts.
        e: the superdiagonal [n - 1], of the same dtype.
        eigvals_only: whether values alone are given.
        select: "a" for all values, "i" for those with positions in `select_range`.
        select_range: (first, last) position, both included, for "i".
        tol: how exact JAX's bisection is; of no effect.
        key: a random key for JAX's inverse iteration; of no effect.

    Returns:
        (values [k] ascending, vectors as columns [n, k]), or the values.

    Raises:
        ShapeError, DTypeError: the diagonals do not fit each other.
        ArgumentError: `select` or its range is none of these.

    >>> scipy.linalg.eigh_tridiagonal(jnp.array([2.0, 2.0]), jnp.array([1.0]), eigvals_only=True)
    Array([1., 3.], dtype=float32)
    """
    name = "eigh_tridiagonal"
    d, e = jnp.asarray(d), jnp.asarray(e)
    if d.dtype != e.dtype or d.dtype not in (dtypes.F32, dtypes.F64, dtypes.C64, dtypes.C128):
        raise errors.DTypeError(
            f"{name} takes diagonals of one dtype, float32, float64 or complex, got {d.aval} and "
            f"{e.aval}\n  at {where().describe()}"
        )
    if d.ndim != 1 or e.shape != (max(d.size - 1, 0),):
        raise errors.ShapeError(
            f"{name}: diagonals {d.aval} and {e.aval} do not fit: [n] and [n - 1]\n"
            f"  at {where().describe()}"
        )
    start, end = _selected(name, select, select_range, d.size)
    upper = jnp.pad(jnp.diag(e), ((0, 1), (1, 0))) if e.size else jnp.zeros((d.size,) * 2, d.dtype)
    whole = jnp.diag(jnp.real(d).astype(d.dtype)) + upper + adjoint(upper)
    vectors, values = lax.linalg.eigh(whole)
    values, vectors = values[start:end], vectors[:, start:end]
    return values if eigvals_only else (values, vectors)


def _selected(
    name: str, select: str, select_range: tuple[float, float] | None, count: int
) -> tuple[int, int]:
    if select == "a":
        return 0, count
    if select != "i":
        raise _refused(
            name, f"select {select!r} is none of 'a', 'i': how many values lie between two numbers "
            "is no shape; compute all and use where()"
        )  # fmt: skip
    if select_range is None:
        raise _refused(name, "select='i' needs select_range=(first, last)")
    first, last = (int(x) for x in select_range)
    if not 0 <= first <= last < count:
        raise _refused(name, f"select_range {select_range} is no range of {count} values")
    return first, last + 1


def hessenberg(
    a: ArrayLike, *, calc_q: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> PyTree:
    """a = Q H Q^H with unitary Q and zeros in H below its first subdiagonal, by Householder
    reflections on the device.

    Args:
        a: matrices [..., n, n].
        calc_q: whether Q is given too.
        overwrite_a, check_finite: SciPy's, of no effect.

    Returns:
        H[..., n, n], or (H, Q).

    >>> scipy.linalg.hessenberg(jnp.array([[1., 2., 3.], [3., 4., 0.], [4., 0., 1.]]))
    Array([[ 1.  , -3.6 ,  0.2 ],
           [-5.  ,  2.08,  1.44],
           [ 0.  ,  1.44,  2.92]], dtype=float32)
    """
    a = _square("hessenberg", a)
    if not a.size:
        return (a, a) if calc_q else a
    packed, taus = lax.linalg.hessenberg(a)
    h = jnp.triu(packed, -1)
    if not calc_q:
        return h
    inner = lax.linalg.householder_product(packed[..., 1:, :-1], taus)
    edges = [(0, 0)] * (a.ndim - 2) + [(1, 0), (1, 0)]
    first = jnp.zeros(a.shape[-2:], a.dtype).at[0, 0].set(1)
    return h, jnp.pad(inner, edges) + first


def lu(
    a: ArrayLike, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> PyTree:
    """a = P L U with a permutation P, unit lower triangular L and upper triangular U.

    Args:
        a: matrices [..., m, n].
        permute_l: whether P L is given in place of both.
        overwrite_a, check_finite: SciPy's, of no effect.

    Returns:
        (P [..., m, m], L [..., m, k], U [..., k, n]), or (P L, U), with k = min(m, n).

    >>> p, l, u = scipy.linalg.lu(jnp.array([[1.0, 2.0], [2.0, 2.0]]))
    >>> l, u
    (Array([[1. , 0. ], [0.5, 1. ]], dtype=float32), Array([[2., 2.], [0., 1.]], dtype=float32))
    """
    (a,) = _inexact("lu", a)
    packed, _, order = lax.linalg.lu(a)
    m, n = a.shape[-2:]
    k = min(m, n)
    lower = jnp.tril(packed[..., :, :k], -1) + jnp.eye(m, k, dtype=a.dtype)
    upper = jnp.triu(packed[..., :k, :])
    if permute_l:
        place = jnp.argsort(order, -1)[..., :, None]
        return jnp.take_along_axis(lower, place, -2), upper
    p = order[..., None, :] == jnp.arange(m)[:, None]
    return p.astype(dtypes.real_of(a.dtype)), lower, upper


def lu_factor(
    a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Array, Array]:
    """The LU decomposition as `lu_solve` takes it.

    Args:
        a: matrices [..., m, n].
        overwrite_a, check_finite: SciPy's, of no effect.

    Returns:
        (packed factors [..., m, n], int32 pivots [..., min(m, n)]): U and below it L without its
        unit diagonal; row i was exchanged with row pivots[i].

    >>> scipy.linalg.lu_factor(jnp.array([[1.0, 2.0], [2.0, 2.0]]))
    (Array([[2. , 2. ], [0.5, 1. ]], dtype=float32), Array([1, 1], dtype=int32))
    """
    packed, pivots, _ = lax.linalg.lu(_inexact("lu_factor", a)[0])
    return packed, pivots


def polar(
    a: ArrayLike,
    side: str = "right",
    *,
    method: str = "qdwh",
    eps: float | None = None,
    max_iterations: int | None = None,
) -> tuple[Array, Array]:
    """a = U P, or P U, with orthonormal rows or columns of U and Hermitian positive semidefinite P.

    Differentiable where `a` has full rank.

    Args:
        a: matrices [..., m, n].
        side: "right" for U P, "left" for P U.
        method: "qdwh", by `lax.linalg.qdwh`, or "svd".
        eps, max_iterations: those of "qdwh".

    Returns:
        (U [..., m, n], P), P of the columns' size for "right", of the rows' for "left".

    Raises:
        ShapeError, DTypeError: `a` holds no matrices, or of another dtype.
        ArgumentError: `side` or `method` is none of these.

    >>> scipy.linalg.polar(jnp.array([[0.0, 2.0], [3.0, 0.0]]), method="svd")
    (Array([[0., 1.], [1., 0.]], dtype=float32), Array([[3., 0.], [0., 2.]], dtype=float32))
    """
    (a,) = _inexact("polar", a)
    if a.ndim < 2:
        raise errors.ShapeError(f"polar takes matrices, got {a.aval}\n  at {where().describe()}")
    if side not in ("right", "left"):
        raise _refused("polar", f"side {side!r} is none of 'right', 'left'")
    if method not in ("qdwh", "svd"):
        raise _refused("polar", f"method {method!r} is none of 'qdwh', 'svd'")
    wide = a.shape[-2] < a.shape[-1]
    tall = adjoint(a) if wide else a
    if method == "svd":
        u, p = differentiable(_polar_by_svd)(tall)
    else:

        def one(x: Array) -> tuple[Array, Array]:
            return lax.linalg.qdwh(x, eps=eps, max_iterations=max_iterations)[:2]

        u, p = jnp.vectorize(one, signature="(m,n)->(m,n),(n,n)")(tall)
    u = adjoint(u) if wide else u
    if side == "right" and wide:
        p = product(adjoint(u), product(p, u))
    elif side == "left" and not wide:
        p = product(u, product(p, adjoint(u)))
    return u, p


def _polar_by_svd(a: Array) -> tuple[Array, Array]:
    u, s, vh = lax.linalg.svd(a, full_matrices=False)
    return product(u, vh), product(adjoint(vh) * s[..., None, :], vh)


def qr(
    a: ArrayLike,
    overwrite_a: bool = False,
    lwork: int | None = None,
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
) -> tuple[Array, ...]:
    """a = Q R with orthonormal columns of Q and upper triangular R.

    Args:
        a: matrices [..., m, n].
        overwrite_a, lwork, check_finite: SciPy's, of no effect.
        mode: "full" for Q[..., m, m] and R[..., m, n]; "economic" for Q[..., m, k] and
            R[..., k, n] with k = min(m, n); "r" for R[..., m, n] alone.
        pivoting: whether columns are taken in the order of what is left of them, a[..., p] = Q R.

    Returns:
        (Q, R), or (R,) of mode "r"; with `pivoting` the order p, int32 [..., n], after them.

    Raises:
        ArgumentError: `mode` is none of these.

    >>> q, r = scipy.linalg.qr(jnp.array([[3.0, 1.0], [4.0, 2.0]]))
    >>> r
    Array([[-5. , -2.2],
           [ 0. ,  0.4]], dtype=float32)
    """
    if mode not in ("full", "economic", "r"):
        raise _refused("qr", f"mode {mode!r} is none of 'full', 'economic', 'r'")
    (a,) = _inexact("qr", a)
    q, r, *order = lax.linalg.qr(a, pivoting=bool(pivoting), full_matrices=mode == "full")
    if mode != "r":
        return q, r, *order
    # Rows of zeros are added here: the small R has a derivative where the full Q has none.
    edges = [(0, 0)] * (a.ndim - 2) + [(0, a.shape[-2] - r.shape[-2]), (0, 0)]
    return jnp.pad(r, edges), *order


def qr_multiply(
    a: ArrayLike,
    c: ArrayLike,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
) -> tuple[Array, ...]:
    """c Q, or Q c, and R, for a = Q R with k = min(m, n) columns of Q, which is not formed.

    Args:
        a: matrices [..., m, n].
        c: matrices [..., p, m] for "right", [..., k, p] for "left"; a vector counts as a row or as
            a column, and the product is one too.
        mode: "right" for c Q, "left" for Q c.
        pivoting: whether columns of `a` are exchanged, as by `qr`.
        conjugate: whether Q is replaced by its elementwise conjugate.
        overwrite_a, overwrite_c: SciPy's, of no effect.

    Returns:
        (product, R [..., k, n]), and with `pivoting` the order of columns, int32 [..., n].

    Raises:
        ShapeError: `c` does not fit Q.
        ArgumentError: `mode` is none of these.

    >>> a, b = jnp.array([[1., 1.], [1., 2.], [1., 3.]]), jnp.array([1.0, 2.0, 3.0])
    >>> projected, r = scipy.linalg.qr_multiply(a, b)
    >>> jnp.round(scipy.linalg.solve_triangular(r, projected), 4) + 0.0
    Array([0., 1.], dtype=float32)
    """
    if mode not in ("right", "left"):
        raise _refused("qr_multiply", f"mode {mode!r} is none of 'right', 'left'")
    a, c = _inexact("qr_multiply", a, c)
    left, vector = mode == "left", c.ndim == 1
    if vector:
        c = c[:, None] if left else c[None, :]
    m, n = a.shape[-2:]
    k = min(m, n)
    if c.shape[-2 if left else -1] != (k if left else m):
        raise errors.ShapeError(
            f"qr_multiply: {c.aval} does not fit Q of {m} rows and {k} columns, mode {mode!r}\n"
            f"  at {where().describe()}"
        )
    batch = jnp.broadcast_shapes(a.shape[:-2], c.shape[:-2])
    a, c = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, c))
    order = []
    if pivoting:
        order = [column_order(a)]
        a = jnp.take_along_axis(a, order[0][..., None, :], -1)
    packed, taus = qr_reflections(a)
    if left:
        c = jnp.pad(c, [(0, 0)] * (c.ndim - 2) + [(0, m - k), (0, 0)])
    c = jnp.conj(c) if conjugate else c
    result = lax.linalg.ormqr(packed, taus, c, left=left)
    result = jnp.conj(result) if conjugate else result
    result = result if left else result[..., :k]
    return jnp.ravel(result) if vector else result, jnp.triu(packed[..., :k, :]), *order


def schur(a: ArrayLike, output: str = "real") -> tuple[Array, Array]:
    """a = Z T Z^H with unitary Z and triangular T, by LAPACK on the host.

    The complex form has a derivative where eigenvalues are distinct; see `lax.linalg.schur`.

    Args:
        a: matrices [..., n, n].
        output: "real", where the T of real matrices has blocks of 2 x 2 for pairs of complex
            eigenvalues; or "complex".

    Returns:
        (T, Z), each [..., n, n].

    Raises:
        ArgumentError: `output` is none of these.

    >>> t, z = scipy.linalg.schur(jnp.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> jnp.diag(t)
    Array([3., 1.], dtype=float32)
    """
    if output not in ("real", "complex"):
        raise _refused("schur", f"output {output!r} is none of 'real', 'complex'")
    a = _square("schur", a)
    return lax.linalg.schur(a.astype(dtypes.complex_of(a.dtype)) if output == "complex" else a)


def rsf2csf(T: ArrayLike, Z: ArrayLike, check_finite: bool = True) -> tuple[Array, Array]:
    """The complex Schur form from the real one, by a rotation for each block of 2 x 2 (Golub and
    Van Loan, "Matrix Computations", 2013, section 7.4), on the device.

    Args:
        T: real Schur forms [..., n, n].
        Z: their vectors [..., n, n].
        check_finite: SciPy's, of no effect.

    Returns:
        (T, Z), complex, with triangular T.

    Raises:
        ShapeError: the matrices are not square, or differ in size.

    >>> t, z = scipy.linalg.rsf2csf(jnp.array([[1.0, 2.0], [-2.0, 1.0]]), jnp.eye(2))
    >>> jnp.diag(t)
    Array([1.+2.j, 1.-2.j], dtype=complex64)
    """
    t, z = _inexact("rsf2csf", T, Z)
    if square("rsf2csf", t).shape[-1] != square("rsf2csf", z).shape[-1]:
        raise errors.ShapeError(
            f"rsf2csf: {t.aval} and {z.aval} differ in size\n  at {where().describe()}"
        )
    kind = dtypes.complex_of(t.dtype)
    both = jnp.vectorize(_triangular_form, signature="(n,n),(n,n)->(n,n),(n,n)")
    return both(t.astype(kind), z.astype(kind))


def _triangular_form(t: Array, z: Array) -> tuple[Array, Array]:
    n, eps = t.shape[-1], float(dtypes.finfo(t.dtype).eps)
    if n < 2:
        return t, z
    row, column = jnp.arange(n)[:, None], jnp.arange(n)[None, :]

    def step(both: tuple[Array, Array], m: Any) -> tuple[tuple[Array, Array], None]:
        t, z = both
        (a, b), (c, d) = lax.dynamic_slice(t, (m - 1, m - 1), (2, 2))
        turned = jnp.abs(c) > eps * (jnp.abs(a) + jnp.abs(d))
        half = (a - d) / 2
        mu = jnp.where(turned, half + jnp.sqrt(half * half + b * c), 1)
        c = jnp.where(turned, c, 0)
        length = jnp.hypot(jnp.abs(mu), jnp.abs(c))
        cosine, sine = mu / length, c / length
        turn = jnp.stack([jnp.stack([jnp.conj(cosine), sine]), jnp.stack([-sine, cosine])])
        back = adjoint(turn)
        rows = lax.dynamic_slice_in_dim(t, m - 1, 2, 0)
        rows = jnp.where(column >= m - 1, product(turn, rows), rows)
        t = lax.dynamic_update_slice_in_dim(t, rows, m - 1, 0)
        columns = lax.dynamic_slice_in_dim(t, m - 1, 2, 1)
        columns = jnp.where(row <= m, product(columns, back), columns)
        t = lax.dynamic_update_slice_in_dim(t, columns, m - 1, 1)
        t = jnp.where((row == m) & (column == m - 1), 0, t)
        columns = product(lax.dynamic_slice_in_dim(z, m - 1, 2, 1), back)
        return (t, lax.dynamic_update_slice_in_dim(z, columns, m - 1, 1)), None

    both, _ = lax.scan(step, (t, z), jnp.arange(1, n), reverse=True)
    return both


def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> PyTree:
    """a = U diag(s) V^H with unitary U and V.

    Args:
        a: matrices [..., m, n].
        full_matrices: whether U and V are square; else they have k = min(m, n) columns.
        compute_uv: whether they are given at all.
        overwrite_a, check_finite, lapack_driver: SciPy's, of no effect.

    Returns:
        (U, s, V^H) with s[..., k] descending, or s.

    >>> scipy.linalg.svd(jnp.array([[0.0, 2.0], [3.0, 0.0]]), compute_uv=False)
    Array([3., 2.], dtype=float32)
    """
    (a,) = _inexact("svd", a)
    return lax.linalg.svd(a, full_matrices=bool(full_matrices), compute_uv=bool(compute_uv))
