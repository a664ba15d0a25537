"""Iterations that solve A x = b on vectors, with A and the preconditioner M as functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core.types.annotations import Array

Matvec = Callable[[Array], Array]


def dot(x: Array, y: Array) -> Array:
    """x^H y, in full precision."""
    return np.vdot(x, y, precision="highest")


def norm_squared(x: Array) -> Array:
    """x^H x, as a real number."""
    return np.real(dot(x, x))


def conjugate_gradient(
    A: Matvec, b: Array, x0: Array, M: Matvec, limit: Array, maxiter: Array
) -> Array:
    """x with |b - A x|^2 <= `limit`, for Hermitian positive definite A and M.

    Source: Hestenes and Stiefel (1952), "Methods of conjugate gradients for solving linear
    systems"; with M, Saad (2003), "Iterative methods for sparse linear systems", algorithm 9.1.
    """

    def unsolved(state: Any) -> Array:
        _, r, _, _, k = state
        return (norm_squared(r) > limit) & (k < maxiter)

    def step(state: Any) -> Any:
        x, r, p, gamma, k = state
        image = A(p)
        alpha = (gamma / np.real(dot(p, image))).astype(b.dtype)
        x, r = x + alpha * p, r - alpha * image
        z = M(r)
        updated = np.real(dot(r, z))
        return x, r, z + (updated / gamma).astype(b.dtype) * p, updated, k + 1

    r = b - A(x0)
    z = M(r)
    start = (x0, r, z, np.real(dot(r, z)), np.zeros((), maxiter.dtype))
    return lax.while_loop(unsolved, step, start)[0]


def bicgstab(A: Matvec, b: Array, x0: Array, M: Matvec, limit: Array, maxiter: Array) -> Array:
    """x with |b - A x|^2 <= `limit`. It stops where the method breaks down, with what it has.

    Source: van der Vorst (1992), "Bi-CGSTAB: a fast and smoothly converging variant of Bi-CG".
    """

    def unsolved(state: Any) -> Array:
        *_, squared, broken, k = state
        return (squared > limit) & ~broken & (k < maxiter)

    def step(state: Any) -> Any:
        x, r, p, v, rho, alpha, omega, _, _, k = state
        updated = dot(shadow, r)
        p = r + (updated / rho) * (alpha / omega) * (p - omega * v)
        half = M(p)
        v = A(half)
        alpha = updated / dot(shadow, v)
        s = r - alpha * v
        found = norm_squared(s) <= limit  # before the second half of the step
        other = M(s)
        t = A(other)
        omega = np.where(found, 0.0, dot(t, s) / dot(t, t)).astype(b.dtype)
        x = np.where(found, x + alpha * half, x + alpha * half + omega * other)
        r = np.where(found, s, s - omega * t)
        broken = ~found & ((updated == 0) | (alpha == 0) | (omega == 0))
        return x, r, p, v, updated, alpha, omega, norm_squared(r), broken, k + 1

    shadow = r = b - A(x0)
    one, none = np.ones((), b.dtype), np.zeros_like(b)
    start = (x0, r, none, none, one, one, one, norm_squared(r))
    count = np.zeros((), maxiter.dtype)
    return lax.while_loop(unsolved, step, (*start, np.zeros((), bool), count))[0]
