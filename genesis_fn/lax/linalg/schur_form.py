"""The Schur decomposition, by LAPACK on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.lax.linalg.matrices import adjoint, as_dtype, positions, product, square
from genesis_fn.primitives import elementwise as ops, linalg, shape as shapes
from genesis_fn.primitives.indexing.indexing import dynamic_index_in_dim
from genesis_fn.primitives.reductions.reduce import reduce_sum
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.custom.callback import pure_callback
from genesis_fn.transforms.custom.derivative_rules import custom_jvp
from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct


def schur(
    x: ArrayLike,
    *,
    compute_schur_vectors: bool = True,
    sort_eig_vals: bool = False,
    select_callable: Callable[..., Any] | None = None,
) -> PyTree:
    """x = Q T Q^H with unitary Q and triangular T, computed by LAPACK on the host.

    Of real matrices T is real too, and has blocks of 2 x 2 on its diagonal for pairs of complex
    eigenvalues. The decomposition of complex matrices with distinct eigenvalues has a derivative,
    at which Q^H dQ has a diagonal of zeros: the phase of a column is free.

    Args:
        x: matrices [..., n, n], float32, float64 or complex.
        compute_schur_vectors: whether Q is wanted.
        sort_eig_vals, select_callable: False and None; other orders are not there.

    Returns:
        (T, Q), each [..., n, n], or [T]; NaN where x is not finite.

    Raises:
        ShapeError, DTypeError: `x` holds no square matrices, or of another dtype.
        ArgumentError: an order of eigenvalues is asked for.
        NotDifferentiableError: the form of a real matrix is differentiated.

    >>> t, q = lax.linalg.schur(jnp.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> jnp.diag(t), jnp.allclose(q @ t @ q.T, jnp.array([[2.0, 1.0], [1.0, 2.0]]), atol=1e-5)
    (Array([3., 1.], dtype=float32), Array(True, dtype=bool))
    """
    x = square("schur", x)
    if sort_eig_vals or select_callable is not None:
        raise errors.ArgumentError(
            "schur: eigenvalues stand in the order of LAPACK's QR iteration; pass "
            f"sort_eig_vals=False and select_callable=None\n  at {where().describe()}"
        )
    t, q = _complex_form(x) if dtypes.is_complex(x.aval.dtype) else _decomposed(x)
    return (t, q) if compute_schur_vectors else [t]


def schur_on_host(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(T, Q) by LAPACK; its name is what an error says that has no derivative."""
    from scipy.linalg import schur as by_lapack

    x = np.asarray(x)
    t, q = np.full_like(x, np.nan), np.full_like(x, np.nan)
    if not x.size:
        return t, q
    for at in np.ndindex(*x.shape[:-2]):
        if np.isfinite(x[at]).all():
            try:
                kind = "complex" if x.dtype.kind == "c" else "real"
                t[at], q[at] = by_lapack(x[at], kind)[:2]
            except np.linalg.LinAlgError:  # the iteration did not converge: NaN says so
                continue
    return t, q


def _decomposed(x: Array) -> tuple[Array, Array]:
    kind = ShapeDtypeStruct(x.aval.shape, x.aval.dtype)
    found: PyTree = pure_callback(schur_on_host, (kind, kind), x, vmap_method="broadcast_all")
    return found


@custom_jvp
def _complex_form(x: Array) -> tuple[Array, Array]:
    return _decomposed(x)


@_complex_form.defjvp
def _complex_rule(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> Any:
    """dT = M + T W - W T is triangular for M = Q^H dx Q and skew W = Q^H dQ = L - L^H. What is
    above the diagonal of W does not reach below that of T W - W T, so L alone makes it zero there:
    in the basis of T's eigenvectors, which is triangular too, an equation for each element."""
    (x,), (dx,) = primals, tangents
    t, q = _complex_form(x)
    m = product(adjoint(q), product(as_dtype(dx, x), q))
    v = _triangular_eigenvectors(t)
    inner = product(linalg.triangular_solve(v, m, left_side=True, unit_diagonal=True), v)
    w = _diagonal(t)
    below = positions(t, -2) > positions(t, -1)
    gaps = w[..., None, :] - w[..., :, None]
    inner = ops.select(below, inner / ops.select(below, gaps, 1), 0)
    lower = linalg.triangular_solve(v, product(v, inner), left_side=False, unit_diagonal=True)
    lower = linalg.tril(lower, -1)
    skew = lower - adjoint(lower)
    dt = linalg.triu(m + product(t, skew) - product(skew, t))
    return (t, q), (dt, product(q, skew))


def _diagonal(x: Array) -> Array:
    at = positions(x, -1) == positions(x, -2)
    return reduce_sum(ops.select(at, x, 0), (x.ndim - 1,))


def _triangular_eigenvectors(t: Array) -> Array:
    """Eigenvectors of upper triangular matrices, as a unit upper triangular matrix."""
    n, row, column = t.aval.shape[-1], positions(t, -2), positions(t, -1)
    w = _diagonal(t)

    def step(_: None, j: Any) -> tuple[None, Array]:
        value = dynamic_index_in_dim(w, j, w.ndim - 1, keepdims=True)[..., None]
        right = -dynamic_index_in_dim(t, j, t.ndim - 1, keepdims=False)
        k = positions(right, -1)
        right = ops.select(k < j, right, as_dtype(k == j, right))
        one = as_dtype(row == column, t)
        shifted = ops.select((row < j) & (column < j), t - value * one, one)
        return None, linalg.triangular_solve(shifted, right, left_side=True)

    if not t.size:
        return t
    _, columns = scan(step, None, shapes.broadcasted_iota(dtypes.I32, (n,), 0))
    return shapes.transpose(columns, (*range(1, t.ndim), 0))
