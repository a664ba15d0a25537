"""Solutions of linear and Sylvester equations, inverses and determinants, with SciPy's names."""

from __future__ import annotations

from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn import lax
from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import warn, where
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.linalg.matrices import adjoint, product, transpose
from genesis_fn.lax.promotion import promote_arrays
from genesis_fn.scipy.linalg.decompositions import cho_factor


def det(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """The determinant.

    Args:
        a: matrices [..., n, n].
        overwrite_a, check_finite: SciPy's, of no effect.

    Returns:
        Numbers [...].

    >>> scipy.linalg.det(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    Array(-2., dtype=float32)
    """
    return jnp.linalg.det(a)


def inv(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """The inverse; NaN or infinity where there is none.

    Args:
        a: matrices [..., n, n].
        overwrite_a, check_finite: SciPy's, of no effect.

    Returns:
        Matrices [..., n, n].

    >>> scipy.linalg.inv(jnp.array([[2.0, 0.0], [0.0, 4.0]]))
    Array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    return jnp.linalg.inv(a)


def _system(name: str, a: ArrayLike, b: ArrayLike) -> tuple[Array, Array, bool]:
    """(a [..., n, n], b [..., n, k], whether b were vectors), in one dtype and leading shape."""
    a, b = promote_arrays(name, (a, b), inexact=True)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2] or not b.ndim:
        raise errors.ShapeError(
            f"{name} takes square matrices and right-hand sides, got {a.aval} and {b.aval}\n"
            f"  at {where().describe()}"
        )
    vectors = b.ndim == 1
    if not vectors and a.ndim == b.ndim + 1 and a.shape[-1] == b.shape[-1]:
        vectors = True
        warn(
            f"{name}: right-hand sides {b.aval} count as vectors for {a.aval}, and in a later "
            "version as matrices; pass b[..., None] and squeeze the result",
            FutureWarning,
        )
    b = b[..., None] if vectors else b
    if b.shape[-2] != a.shape[-1]:
        raise errors.ShapeError(
            f"{name}: {a.aval} and right-hand sides {b.aval} differ in rows\n"
            f"  at {where().describe()}"
        )
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = jnp.broadcast_to(a, (*batch, *a.shape[-2:]))
    return a, jnp.broadcast_to(b, (*batch, *b.shape[-2:])), vectors


def _answer(x: Array, vectors: bool) -> Array:
    return x[..., 0] if vectors else x


def _substitute(a: Array, b: Array, lower: bool, turned: bool, **options: bool) -> Array:
    """Solve with a triangle, or with its adjoint."""
    return lax.linalg.triangular_solve(
        a, b, left_side=True, lower=lower, transpose_a=turned, conjugate_a=turned, **options
    )


def cho_solve(
    c_and_lower: tuple[ArrayLike, bool],
    b: ArrayLike,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Array:
    """Solve A x = b, given the Cholesky factor of A.

    Args:
        c_and_lower: (factor [..., n, n], whether it is the lower one), as of `cho_factor`.
        b: right-hand sides [n] or [..., n, k].
        overwrite_b, check_finite: SciPy's, of no effect.

    Returns:
        x, in the shape of `b` with the leading dimensions of both.

    >>> factor = scipy.linalg.cho_factor(jnp.array([[4.0, 0.0], [0.0, 2.0]]))
    >>> scipy.linalg.cho_solve(factor, jnp.array([4.0, 4.0]))
    Array([1., 2.], dtype=float32)
    """
    c, lower = c_and_lower
    c, b, vectors = _system("cho_solve", c, b)
    return _answer(_cho_solve(c, b, lower), vectors)


def _cho_solve(c: Array, b: Array, lower: bool) -> Array:
    return _substitute(c, _substitute(c, b, lower, not lower), lower, bool(lower))


def lu_solve(
    lu_and_piv: tuple[ArrayLike, ArrayLike],
    b: ArrayLike,
    trans: int = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Array:
    """Solve A x = b, given the LU decomposition of A.

    Args:
        lu_and_piv: (packed factors [..., n, n], int32 pivots [..., n]), as of `lu_factor`.
        b: right-hand sides [n] or [..., n, k].
        trans: 0 for A x = b, 1 for A^T x = b, 2 for A^H x = b.
        overwrite_b, check_finite: SciPy's, of no effect.

    Returns:
        x, in the shape of `b` with the leading dimensions of both.

    Raises:
        ArgumentError: `trans` is none of these.

    >>> factors = scipy.linalg.lu_factor(jnp.array([[0.0, 1.0], [2.0, 0.0]]))
    >>> scipy.linalg.lu_solve(factors, jnp.array([3.0, 4.0]))
    Array([2., 3.], dtype=float32)
    """
    factors, pivots = lu_and_piv
    factors, b, vectors = _system("lu_solve", factors, b)
    if trans not in (0, 1, 2):
        raise errors.ArgumentError(
            f"lu_solve: trans {trans!r} is none of 0, 1, 2\n  at {where().describe()}"
        )
    n = factors.shape[-1]
    order = lax.linalg.lu_pivots_to_permutation(jnp.asarray(pivots, dtype="int32"), n)
    order = jnp.broadcast_to(order, (*b.shape[:-2], n))
    lower, upper = {"lower": True, "unit_diagonal": True}, {"lower": False}
    if trans == 0:
        b = jnp.take_along_axis(b, order[..., None], -2)
        y = lax.linalg.triangular_solve(factors, b, left_side=True, **lower)
        return _answer(lax.linalg.triangular_solve(factors, y, left_side=True, **upper), vectors)
    turned = {"left_side": True, "transpose_a": True, "conjugate_a": trans == 2}
    y = lax.linalg.triangular_solve(factors, b, **turned, **upper)
    x = lax.linalg.triangular_solve(factors, y, **turned, **lower)
    x = jnp.take_along_axis(x, jnp.argsort(order, -1)[..., None], -2)
    return _answer(x, vectors)


def solve(
    a: ArrayLike,
    b: ArrayLike,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    debug: bool = False,
    check_finite: bool = True,
    assume_a: str = "gen",
) -> Array:
    """Solve a x = b; NaN or infinity where `a` is singular.

    Args:
        a: matrices [..., n, n], given whole.
        b: right-hand sides [n] or [..., n, k].
        lower: which triangle the Cholesky decomposition of "pos" reads.
        overwrite_a, overwrite_b, debug, check_finite: SciPy's, of no effect.
        assume_a: "gen"; "sym" or "her", which are solved as "gen"; or "pos", for Hermitian positive
            definite matrices, by Cholesky decomposition.

    Returns:
        x, in the shape of `b` with the leading dimensions of both.

    Raises:
        ArgumentError: `assume_a` is none of these.

    >>> scipy.linalg.solve(jnp.array([[2.0, 1.0], [1.0, 2.0]]), jnp.array([3.0, 3.0]))
    Array([1., 1.], dtype=float32)
    """
    if assume_a not in ("gen", "sym", "her", "pos"):
        raise errors.ArgumentError(
            f"solve: assume_a {assume_a!r} is none of 'gen', 'sym', 'her', 'pos'\n"
            f"  at {where().describe()}"
        )
    a, b = promote_arrays("solve", (a, b), inexact=True)
    if assume_a != "pos":
        return jnp.linalg.solve(a, b)
    vectors = b.ndim == 1
    a, b, _ = _system("solve", a, b[:, None] if vectors else b)
    # The factor is constant: the derivative of a solve is that of its equation.
    c, lower = cho_factor(lax.stop_gradient(a), lower)
    x = lax.custom_linear_solve(
        lambda x: product(a, x),
        b,
        lambda _, right: _cho_solve(c, right, lower),
        lambda _, right: _cho_solve(jnp.conj(c), right, lower),
    )
    return _answer(x, vectors)


_TRANSPOSED = {0: (False, False), 1: (True, False), 2: (True, True)}


def solve_triangular(
    a: ArrayLike,
    b: ArrayLike,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    debug: bool | None = None,
    check_finite: bool = True,
) -> Array:
    """Solve a x = b for a triangular matrix, whose other triangle is not read.

    Args:
        a: matrices [..., n, n].
        b: right-hand sides [n] or [..., n, k].
        trans: 0 or "N" for a x = b, 1 or "T" for a^T x = b, 2 or "C" for a^H x = b.
        lower: whether `a` is lower triangular.
        unit_diagonal: whether its diagonal counts as ones.
        overwrite_b, debug, check_finite: SciPy's, of no effect.

    Returns:
        x, in the shape of `b` with the leading dimensions of both.

    Raises:
        ArgumentError: `trans` is none of these.

    >>> a = jnp.array([[2.0, 0.0], [1.0, 1.0]])
    >>> scipy.linalg.solve_triangular(a, jnp.array([2.0, 3.0]), lower=True)
    Array([1., 2.], dtype=float32)
    """
    way = "NTC".find(trans) if isinstance(trans, str) and trans else trans
    if way not in _TRANSPOSED:
        raise errors.ArgumentError(
            f"solve_triangular: trans {trans!r} is none of 0, 1, 2, 'N', 'T', 'C'\n"
            f"  at {where().describe()}"
        )
    transposed, conjugated = _TRANSPOSED[int(way)]
    a, b, vectors = _system("solve_triangular", a, b)
    x = lax.linalg.triangular_solve(
        a,
        b,
        left_side=True,
        lower=lower,
        transpose_a=transposed,
        conjugate_a=conjugated,
        unit_diagonal=unit_diagonal,
    )
    return _answer(x, vectors)


# ---- Sylvester's equation ----


def solve_sylvester(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, *, method: str = "schur", tol: float = 1e-8
) -> Array:
    """Solve A X + X B = C, by the algorithm of Bartels and Stewart (1972) or by eigenvectors.

    Differentiable in all three, by further such equations.

    Args:
        A: matrices [..., m, m].
        B: matrices [..., n, n].
        C: matrices [..., m, n].
        method: "schur", by LAPACK's Schur decompositions on the host; or "eigen", by eigenvectors,
            on the device, for matrices that have them all.
        tol: sums of an eigenvalue of `A` and one of `B` below it count as zero: there is no X.

    Returns:
        X[..., m, n]; NaN where there is none.

    Raises:
        ShapeError: the matrices do not fit each other.
        ArgumentError: `method` is none of these.

    >>> two = 2 * jnp.eye(2)
    >>> scipy.linalg.solve_sylvester(two, two, jnp.array([[4.0, 8.0], [0.0, 4.0]]))
    Array([[1., 2.],
           [0., 1.]], dtype=float32)
    """
    a, b, c = promote_arrays("solve_sylvester", (A, B, C), inexact=True)
    if method not in _SYLVESTER:
        raise errors.ArgumentError(
            f"solve_sylvester: method {method!r} is none of 'schur', 'eigen'\n"
            f"  at {where().describe()}"
        )
    m, n = (None, None) if c.ndim < 2 else c.shape[-2:]
    if m is None or a.shape[-2:] != (m, m) or b.shape[-2:] != (n, n):
        raise errors.ShapeError(
            f"solve_sylvester: {a.aval}, {b.aval} and {c.aval} do not fit: [..., m, m], "
            f"[..., n, n] and [..., m, n]\n  at {where().describe()}"
        )
    batch = jnp.broadcast_shapes(*[x.shape[:-2] for x in (a, b, c)])
    a, b, c = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b, c))
    # The solver's matrices are constant: the derivative of a solve is that of its equation.
    fixed = lax.stop_gradient(a), lax.stop_gradient(b)
    solver = _SYLVESTER[method]

    def solved(a: Array, b: Array, c: Array) -> Array:
        kind = dtypes.complex_of(c.dtype)
        x = solver(a.astype(kind), b.astype(kind), c.astype(kind), tol)
        return x if dtypes.is_complex(c.dtype) else jnp.real(x)

    return lax.custom_linear_solve(
        lambda x: product(a, x) + product(x, b),
        c,
        lambda _, right: solved(*fixed, right),
        lambda _, right: solved(transpose(fixed[0]), transpose(fixed[1]), right),
    )


def _without_zeros(sums: Array, x: Array, tol: float) -> Array:
    """`x`, or NaN where a sum of eigenvalues counts as zero."""
    zero = jnp.any(jnp.abs(sums) < tol, (-2, -1), keepdims=True)
    return jnp.where(zero, jnp.nan, x)


def _by_schur(a: Array, b: Array, c: Array, tol: float) -> Array:
    (r, u), (s, v) = lax.linalg.schur(a), lax.linalg.schur(b)
    right = product(adjoint(u), product(c, v))
    left, across = (jnp.diagonal(x, axis1=-2, axis2=-1) for x in (r, s))
    y = _triangular_sylvester(r, s, right)
    sums = left[..., :, None] + across[..., None, :]
    return _without_zeros(sums, product(u, product(y, adjoint(v))), tol)


def _triangular_sylvester(r: Array, s: Array, right: Array) -> Array:
    """y with r y + y s = right, for upper triangular r and s: column by column."""
    n = s.shape[-1]
    one = jnp.eye(r.shape[-1], dtype=r.dtype)

    def step(y: Array, j: Any) -> tuple[Array, None]:
        of_s = lax.dynamic_slice_in_dim(s, j, 1, -1)  # y is zero in columns yet to come
        column = lax.dynamic_slice_in_dim(right, j, 1, -1) - product(y, of_s)
        value = lax.dynamic_slice_in_dim(of_s, j, 1, -2)
        column = lax.linalg.triangular_solve(r + value * one, column, left_side=True)
        return jnp.where(jnp.arange(n) == j, column, y), None

    y, _ = lax.scan(step, jnp.zeros_like(right), jnp.arange(n))
    return y


def _by_eigenvectors(a: Array, b: Array, c: Array, tol: float) -> Array:
    (w, p), (z, q) = jnp.linalg.eig(a), jnp.linalg.eig(b)
    sums = w[..., :, None] + z[..., None, :]
    y = jnp.linalg.solve(p, product(c, q)) / sums
    x = transpose(jnp.linalg.solve(transpose(q), transpose(product(p, y))))
    return _without_zeros(sums, x, tol)


_SYLVESTER = {"schur": _by_schur, "eigen": _by_eigenvectors}
