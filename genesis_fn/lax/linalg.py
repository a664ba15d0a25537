"""lax.linalg: matrix decompositions and triangular solves."""

from __future__ import annotations

from typing import Literal as _Literal, overload as _overload

from genesis_fn.core.types.annotations import (
    Array as _Array,
    ArrayLike as _ArrayLike,
    PyTree as _PyTree,
)
from genesis_fn.lax.operands import array as _array
from genesis_fn.primitives import linalg as _linalg


def cholesky(x: _ArrayLike, *, symmetrize_input: bool = True) -> _Array:
    """The lower triangular L with L L^H = x, of Hermitian positive definite x[..., n, n].

    NaN where a matrix is not positive definite. With `symmetrize_input`, (x + x^H) / 2 is factored;
    else the lower triangle is read.
    """
    return _linalg.cholesky(_array(x), symmetrize_input=symmetrize_input)


def eigh(
    x: _ArrayLike, *, lower: bool = True, symmetrize_input: bool = True
) -> tuple[_Array, _Array]:
    """(eigenvectors as columns, eigenvalues ascending) of Hermitian x[..., n, n].

    With `symmetrize_input`, of (x + x^H) / 2; else one triangle is read.
    """
    return _linalg.eigh(_array(x), lower=lower, symmetrize_input=symmetrize_input)


def lu(x: _ArrayLike) -> tuple[_Array, _Array, _Array]:
    """(packed factors, pivots, permutation) with x[permutation] = L U, by partial pivoting.

    The factors hold U above L, whose unit diagonal is left out; row i was exchanged with pivots[i].
    """
    return _linalg.lu(_array(x))


def qr(x: _ArrayLike, *, full_matrices: bool = True) -> tuple[_Array, _Array]:
    """(Q, R) with x = Q R, Q's columns orthonormal and R upper triangular."""
    return _linalg.qr(_array(x), full_matrices=full_matrices)


@_overload
def svd(
    x: _ArrayLike, *, full_matrices: bool = True, compute_uv: _Literal[True] = True
) -> tuple[_Array, _Array, _Array]: ...


@_overload
def svd(x: _ArrayLike, *, full_matrices: bool = True, compute_uv: _Literal[False]) -> _Array: ...


@_overload
def svd(x: _ArrayLike, *, full_matrices: bool = True, compute_uv: bool) -> _PyTree: ...


def svd(x: _ArrayLike, *, full_matrices: bool = True, compute_uv: bool = True) -> _PyTree:
    """(U, s, V^H) with x = U diag(s) V^H, s descending; s alone without `compute_uv`."""
    return _linalg.svd(_array(x), full_matrices=full_matrices, compute_uv=compute_uv)


def triangular_solve(
    a: _ArrayLike,
    b: _ArrayLike,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> _Array:
    """Solve op(a) X = b (`left_side`) or X op(a) = b for X, with triangular a[..., n, n].

    op transposes with `transpose_a` and conjugates with `conjugate_a`; the other triangle of `a` is
    not read.
    """
    return _linalg.triangular_solve(
        _array(a),
        _array(b),
        left_side=left_side,
        lower=lower,
        transpose_a=transpose_a,
        conjugate_a=conjugate_a,
        unit_diagonal=unit_diagonal,
    )
