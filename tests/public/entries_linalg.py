"""Entries of `genesis_fn.scipy.linalg`, and of what `lax.linalg` has beside decompositions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.public.agree import E, Entry, Operand
from tests.public.entries_numpy import DEFINITE, REGULAR, each

TALL = Operand((4, 3), "s", values=lambda rng: rng.uniform(-1, 1, (4, 3)) + 3 * np.eye(4, 3))
SIDES = Operand((3, 2), "s")
WITH_TRIANGLE = Operand((3, 3), "sc", values=lambda rng: rng.uniform(-1, 1, (3, 3)) + 3 * np.eye(3))
# Eigenvalues are 1, 3 and 6, with something above and little below.
APART = Operand(
    (3, 3), "s", values=lambda rng: np.diag([1.0, 3.0, 6.0]) + 0.3 * rng.uniform(-1, 1, (3, 3))
)
COMPLEX_APART = Operand(
    (3, 3), "c", values=lambda rng: np.diag([1.0, 3j, 6.0]) + 0.3 * rng.uniform(-1, 1, (3, 3))
)
MAIN = Operand((4,), "sc", 3.0, 4.0)
BESIDE = Operand((4,), "sc", -1.0, 1.0)
REFLECTIONS = Operand((4, 3), "s", -1.0, 1.0)
FACTORS = Operand((3,), "s", 0.5, 1.5)
PIVOTS = Operand((3,), "i", values=lambda rng: rng.integers(np.arange(3), 4))
VECTOR = Operand((4,), "sc")
ANY_VECTOR = Operand((4,), "fic")
LEADING = Operand((4,), "s", 0.5, 2.0)

LAX_LINALG_MORE: dict[str, list[Entry]] = {
    **each("eig",
        E(APART, call=lambda f, a: f(a, compute_left_eigenvectors=False,
                                     compute_right_eigenvectors=False)),
        E(COMPLEX_APART, call=lambda f, a: [abs(x) for x in f(a, enable_eigvec_derivs=True)],
          grad=False)),
    **each("hessenberg", E(APART)),
    **each("tridiagonal", E(DEFINITE), E(DEFINITE, call=lambda f, a: f(a, lower=False))),
    **each("householder_product", E(REFLECTIONS, FACTORS)),
    **each("ormqr", E(REFLECTIONS, FACTORS, Operand((4, 2), "s")),
           E(REFLECTIONS, FACTORS, Operand((2, 4), "s"), call=lambda f, *xs: f(
               *xs, left=False, transpose=True))),
    **each("schur", E(APART, grad=False),
           E(COMPLEX_APART, call=lambda f, a: f(a, compute_schur_vectors=False))),
    **each("qdwh", E(TALL, call=lambda f, a: f(a)[:2])),
    **each("tridiagonal_solve", E(BESIDE, MAIN, BESIDE, Operand((4, 2), "sc")),
           E(BESIDE, MAIN, BESIDE, Operand((4, 2), "sc"), call=lambda f, *xs: f(
               *xs, perturb_singular=True))),
    **each("cholesky_update", E(REGULAR, Operand((3,), "s"), call=lambda f, r, w: f(
        r * np.triu(np.ones((3, 3), np.float32)), w))),
    **each("symmetric_product", E(SIDES, DEFINITE, call=lambda f, a, c: f(
        a, c, alpha=2.0, beta=0.5, symmetrize_output=True))),
    **each("lu_pivots_to_permutation", E(
        PIVOTS, call=lambda f, p: f(p.astype("int32"), 4), numbers=False)),
}  # fmt: skip


def _size(call: Any) -> Entry:
    return E(call=call)


SCIPY_LINALG: dict[str, list[Entry]] = {
    **each("cholesky", E(DEFINITE), E(DEFINITE, call=lambda f, a: f(a, lower=True))),
    **each("cho_factor", E(DEFINITE, call=lambda f, a: f(a)[0])),
    **each("cho_solve", E(WITH_TRIANGLE, SIDES, call=lambda f, c, b: f((c, False), b)),
           E(WITH_TRIANGLE, SIDES, call=lambda f, c, b: f((c, True), b))),
    **each("det inv", E(REGULAR)), **each("lu", E(REGULAR), E(TALL)),
    **each("lu_factor", E(REGULAR)),
    **each("lu_solve", *[E(WITH_TRIANGLE, SIDES, call=lambda f, a, b, t=t: f(
        (a, np.array([1, 2, 2], np.int32)), b, trans=t)) for t in (0, 1, 2)]),
    **each("eigh", E(DEFINITE, call=lambda f, a: f(a, eigvals_only=True)),
           E(DEFINITE, DEFINITE, call=lambda f, a, b: f(a, b, eigvals_only=True), peer=False)),
    **each("eigh_tridiagonal", E(MAIN, Operand((3,), "sc", 1.0, 2.0), call=lambda f, d, e: f(
        d, e, eigvals_only=True))),
    **each("hessenberg", E(APART, call=lambda f, a: f(a, calc_q=True))),
    **each("polar", E(TALL), E(TALL, call=lambda f, a: f(a, method="svd"))),
    **each("qr", E(REGULAR), E(TALL, call=lambda f, a: f(a, mode="economic", pivoting=True)),
           E(TALL, call=lambda f, a: f(a, mode="r"))),
    **each("qr_multiply", E(TALL, Operand((2, 4), "s")), E(TALL, SIDES, call=lambda f, a, c: f(
        a, c, mode="left", pivoting=True, conjugate=True))),
    **each("schur", E(APART, grad=False), E(COMPLEX_APART, call=lambda f, a: f(a)[0])),
    **each("rsf2csf", E(Operand((3, 3), "s", values=lambda rng: np.array(
        [[1, 2, 3], [-1, 1, 2], [0, 0, 4]]) + np.triu(rng.uniform(0, 0.1, (3, 3)), 2)), REGULAR)),
    **each("svd", E(REGULAR, call=lambda f, a: f(a, compute_uv=False))),
    **each("solve", E(WITH_TRIANGLE, SIDES),
           E(DEFINITE, SIDES, call=lambda f, a, b: f(a, b, assume_a="pos"))),
    **each("solve_triangular", *[E(WITH_TRIANGLE, SIDES, call=lambda f, a, b, t=t: f(
        a, b, trans=t, lower=True)) for t in (0, "T", "C")]),
    **each("solve_sylvester", *[E(APART, Operand((2, 2), "s", values=lambda rng: np.diag(
        [1.0, 2.0]) + 0.2 * rng.uniform(-1, 1, (2, 2))), SIDES, call=lambda f, a, b, c, m=m: f(
        a, b, c, method=m)) for m in ("schur", "eigen")]),
    **each("expm", E(Operand((3, 3), "sc")), E(Operand((3, 3), "s", -9.0, 9.0)),
           E(Operand((3, 3), "s", values=lambda rng: np.triu(rng.uniform(-1, 1, (3, 3)))),
             call=lambda f, a: f(a, upper_triangular=True))),
    **each("expm_frechet", E(Operand((3, 3), "s"), Operand((3, 3), "s"))),
    **each("sqrtm", E(APART)),
    **each("funm", E(APART, call=lambda f, a: f(a, lambda x: x * x * x))),
    **each("block_diag", E(Operand((2, 3), "fic"), Operand((3,), "fic"))),
    **each("toeplitz hankel", E(ANY_VECTOR), E(ANY_VECTOR, Operand((3,), "fic"))),
    **each("circulant", E(ANY_VECTOR)), **each("fiedler", E(Operand((4,), "fi"))),
    **each("leslie", E(ANY_VECTOR, Operand((3,), "fic"))),
    **each("companion fiedler_companion", E(LEADING)),
    **each("convolution_matrix", *[E(ANY_VECTOR, call=lambda f, a, m=m: f(a, 3, m)) for m in (
        "full", "same", "valid")]),
    **each("hilbert invhilbert helmert", _size(lambda f: f(4))),
    **each("pascal invpascal", *[_size(lambda f, k=k: f(4, k)) for k in (None, "lower", "upper")]),
    **each("hadamard", _size(lambda f: f(8))),
    **each("dft", *[_size(lambda f, s=s: f(5, s)) for s in (None, "sqrtn", "n")]),
}  # fmt: skip
