"""GMRES: the least residual over Krylov subspaces, whose bases Arnoldi's process makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core.types.annotations import Array
from genesis_fn.scipy.sparse.iterations import Matvec, norm_squared

# (A, M A's preconditioner, x, preconditioned residual, tolerance inside, restart) -> better x
Restart = Callable[[Matvec, Matvec, Array, Array, Array, int], Array]


def gmres(
    A: Matvec, b: Array, x0: Array, M: Matvec, outer: Array, inner: Array, maxiter: Array,
    restart: int, cycle: Restart,
) -> Array:  # fmt: skip
    """x with |M (b - A x)| <= `outer`, by at most `maxiter` cycles of `restart` steps each.

    Source: Saad and Schultz (1986), "GMRES: a generalized minimal residual algorithm for solving
    nonsymmetric linear systems"; preconditioned from the left.
    """

    def unsolved(state: Any) -> Array:
        _, r, k = state
        return (norm_squared(r) > outer * outer) & (k < maxiter)

    def step(state: Any) -> Any:
        x, r, k = state
        x = cycle(A, M, x, r, inner, restart)
        return x, M(b - A(x)), k + 1

    start = (x0, M(b - A(x0)), np.zeros((), maxiter.dtype))
    return lax.while_loop(unsolved, step, start)[0]


def _extended(A: Matvec, M: Matvec, basis: Array, k: Array) -> tuple[Array, Array, Array]:
    """(the basis with row k + 1, coefficients of M A basis[k] in it, whether nothing was left).

    Twice orthogonalized against all rows at once, which is enough: Giraud, Langou, Rozložník and
    van den Eshof (2005), "Rounding error analysis of the classical Gram-Schmidt process".
    """
    w = M(A(basis[k]))
    size = np.sqrt(norm_squared(w))
    h = np.zeros(basis.shape[0], w.dtype)
    for _ in range(2):
        part = np.matmul(np.conj(basis), w, precision="highest")
        w = w - np.matmul(part, basis, precision="highest")
        h = h + part
    rest = np.sqrt(norm_squared(w))
    exhausted = rest <= np.finfo(w.dtype).eps * size
    rest = np.where(exhausted, 0.0, rest)
    unit = np.where(exhausted, 0.0, w / np.where(exhausted, 1.0, rest).astype(w.dtype))
    return basis.at[k + 1].set(unit), h.at[k + 1].set(rest.astype(w.dtype)), exhausted


def _first_row(r: Array, restart: int) -> tuple[Array, Array]:
    """(a basis with the direction of `r` in row 0, the length of `r`)."""
    size = np.sqrt(norm_squared(r))
    unit = r / np.where(size > 0, size, 1.0).astype(r.dtype)
    return np.zeros((restart + 1, r.shape[0]), r.dtype).at[0].set(unit), size


def batched(A: Matvec, M: Matvec, x: Array, r: Array, inner: Array, restart: int) -> Array:
    """All steps of a cycle, and one least squares problem at their end."""

    def more(state: Any) -> Array:
        _, _, exhausted, k = state
        return (k < restart) & ~exhausted

    def step(state: Any) -> Any:
        basis, columns, _, k = state
        basis, h, exhausted = _extended(A, M, basis, k)
        return basis, columns.at[k].set(h), exhausted, k + 1

    basis, size = _first_row(r, restart)
    # Columns that are not reached are independent, and of no weight.
    columns = np.eye(restart, restart + 1, 1, dtype=r.dtype)
    start = (basis, columns, np.zeros((), bool), np.zeros((), "int32"))
    basis, columns, _, k = lax.while_loop(more, step, start)
    unreached = np.arange(restart)[:, None] >= k
    columns = np.where(unreached, np.eye(restart, restart + 1, 1, dtype=r.dtype), columns)
    q, triangle = np.linalg.qr(columns.T)
    y = lax.linalg.triangular_solve(
        triangle, (np.conj(q[0]) * size.astype(r.dtype))[:, None], left_side=True
    )[:, 0]
    return x + np.matmul(np.where(np.arange(restart) < k, y, 0.0), basis[:-1], precision="highest")


def incremental(A: Matvec, M: Matvec, x: Array, r: Array, inner: Array, restart: int) -> Array:
    """Steps until the residual is within `inner`, which their QR factorization tells at each."""

    def more(state: Any) -> Array:
        _, turned, _, exhausted, k = state
        return (k < restart) & ~exhausted & (size * np.abs(turned[k, 0]) > inner)

    def step(state: Any) -> Any:
        basis, turned, triangle, _, k = state
        basis, h, exhausted = _extended(A, M, basis, k)
        column = np.matmul(turned, h, precision="highest")
        # A rotation of rows k and k + 1 takes the entry below the diagonal away.
        a, c = column[k], column[k + 1]
        length = np.sqrt(np.abs(a) ** 2 + np.abs(c) ** 2).astype(r.dtype)
        some = length != 0
        cosine = np.where(some, a / np.where(some, length, 1.0), 1.0)
        sine = np.where(some, c / np.where(some, length, 1.0), 0.0)
        upper, lower = turned[k], turned[k + 1]
        turned = turned.at[k].set(np.conj(cosine) * upper + np.conj(sine) * lower)
        turned = turned.at[k + 1].set(cosine * lower - sine * upper)
        column = np.where(np.arange(restart + 1) < k, column, 0.0).at[k].set(length)
        return basis, turned, triangle.at[:, k].set(column[:-1]), exhausted, k + 1

    basis, size = _first_row(r, restart)
    start = (basis, np.eye(restart + 1, dtype=r.dtype), np.eye(restart, dtype=r.dtype))
    start = (*start, np.zeros((), bool), np.zeros((), "int32"))
    basis, turned, triangle, _, k = lax.while_loop(more, step, start)
    reached = np.arange(restart) < k
    right = np.where(reached, turned[:-1, 0], 0.0) * size.astype(r.dtype)
    # A zero on the diagonal: A does not map onto its Krylov space, and the step has no weight.
    diagonal = np.diagonal(triangle)
    lost = diagonal == 0
    triangle = triangle + np.diag(np.where(lost, 1.0, 0.0).astype(r.dtype))
    y = lax.linalg.triangular_solve(triangle, np.where(lost, 0.0, right)[:, None], left_side=True)
    return x + np.matmul(y[:, 0], basis[:-1], precision="highest")
