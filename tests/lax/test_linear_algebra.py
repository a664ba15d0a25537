"""lax.linalg, scipy.linalg and options of numpy.linalg beyond the walk of tests/public: float64
against SciPy and JAX, derivatives against JAX and differences, edges, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import scipy.linalg as sp

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import errors, lax
from genesis_fn.lax.linalg import EighImplementation, EigImplementation, SvdAlgorithm
from genesis_fn.scipy import linalg

O = jnp.ones


def draw(shape: tuple[int, ...], seed: int = 0, kind: str = "float64") -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if kind.startswith("c") else x).astype(kind)


def ours(x: np.ndarray) -> gf.Array:
    return jnp.asarray(x, dtype=x.dtype)


def close(got: Any, want: Any, bound: float = 1e-10) -> None:
    a, b = gf.tree.leaves(got), jax.tree.leaves(want)
    assert len(a) == len(b)
    for x, y in zip(a, b):
        x, y = np.asarray(x), np.asarray(y)
        assert x.shape == y.shape
        np.testing.assert_allclose(
            x, y, rtol=bound, atol=bound * max(1.0, np.abs(y).max(initial=0))
        )


def agree_with_differences(f: Callable[..., Any], x: np.ndarray, bound: float = 1e-6) -> None:
    """The derivative of f: float64 or complex128 -> real scalar, along a direction and in reverse,
    is that of central differences."""
    t = draw(x.shape, 99, str(x.dtype))
    ahead, behind = (float(f(ours(x + s * 1e-6 * t))) for s in (1, -1))
    want = (ahead - behind) / 2e-6
    _, forward = gf.jvp(f, (ours(x),), (ours(t),))
    reverse = np.real(np.sum(np.asarray(gf.grad(f)(ours(x))) * t))
    np.testing.assert_allclose([float(forward), reverse], [want, want], rtol=bound, atol=bound)


def weighed(*xs: Any) -> Any:
    """A real number that depends on every element."""
    total = 0.0
    for x in xs:
        w = np.cos(np.arange(1, x.size + 1)).reshape(x.shape)
        total = total + jnp.sum(jnp.real(x) * w) + jnp.sum(jnp.imag(x) * w[::-1])
    return total


A, C = draw((5, 5)), draw((5, 5), 1, "complex128")
TALL, WIDE = draw((6, 4), 2), draw((4, 6), 3, "complex128")
POSITIVE = A @ A.T + np.eye(5)
HERMITIAN = C @ C.conj().T + np.eye(5)


# ---- values, against SciPy in float64 ----

SAME: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("cholesky", (POSITIVE,), {}), ("cholesky", (HERMITIAN,), {"lower": True}),
    ("hessenberg", (A,), {"calc_q": True}), ("hessenberg", (C,), {}),
    ("lu", (WIDE,), {}), ("lu", (TALL,), {"permute_l": True}),
    ("qr", (TALL,), {"mode": "economic", "pivoting": True}), ("qr", (WIDE,), {"pivoting": True}),
    ("qr_multiply", (TALL, draw((3, 6))), {}),
    ("qr_multiply", (TALL, draw((4,))), {"mode": "left"}),
    ("qr_multiply", (WIDE, draw((3, 4), 7, "complex128")), {"conjugate": True, "pivoting": True}),
    ("schur", (A,), {}), ("schur", (A,), {"output": "complex"}), ("schur", (C,), {}),
    ("rsf2csf", sp.schur(A), {}),
    ("polar", (TALL,), {}), ("polar", (TALL,), {"side": "left"}), ("polar", (WIDE,), {}),
    ("polar", (WIDE,), {"side": "left"}),
    ("eigh", (HERMITIAN, HERMITIAN.conj() + 2 * np.eye(5)), {"eigvals_only": True}),
    ("eigh_tridiagonal", (draw((6,)), draw((5,))), {"eigvals_only": True}),
    ("eigh_tridiagonal", (draw((6,)), draw((5,))),
     {"eigvals_only": True, "select": "i", "select_range": (1, 3)}),
    ("solve", (POSITIVE, TALL[:5]), {"assume_a": "pos"}),
    ("solve", (HERMITIAN, C), {"assume_a": "pos", "lower": True}),
    ("solve_sylvester", (A, draw((4, 4), 5), draw((5, 4), 6)), {}),
    ("solve_sylvester", (C, HERMITIAN, C), {}),
    ("expm", (A,), {}), ("expm", (40 * C,), {}), ("expm", (1e-9 * A,), {}),
    ("expm_frechet", (A, POSITIVE), {}), ("sqrtm", (POSITIVE + A,), {}), ("sqrtm", (C,), {}),
    ("funm", (C, lambda x: x * x * x - x), {}),
    ("block_diag", (A, C, np.ones(3)), {}), ("toeplitz", (C[0], C[1]), {}),
    ("toeplitz", (C[0],), {}),
    ("hankel", (A[0], C[1, :3]), {}), ("circulant", (C[0],), {}), ("leslie", (A[0], A[1, :4]), {}),
    ("companion", (A[0],), {}), ("fiedler", (A[0],), {}),
    *[("fiedler_companion", (np.arange(1.0, n + 1),), {}) for n in (2, 3, 4, 5, 8, 9)],
    *[("convolution_matrix", (draw((m,)), n), {"mode": mode})
      for m, n in ((2, 5), (5, 2), (4, 4)) for mode in ("full", "same", "valid")],
]  # fmt: skip


@pytest.mark.parametrize("name, args, options", SAME)
def test_values_are_scipys(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    want = getattr(sp, name)(*args, **options)
    given = [ours(x) if isinstance(x, np.ndarray) else x for x in args]
    got = getattr(linalg, name)(*given, **options)
    close(got, want, 1e-9)


@pytest.mark.parametrize("name", ["hilbert", "invhilbert", "pascal", "invpascal", "helmert", "dft"])
def test_matrices_of_a_size_are_scipys(name: str) -> None:
    for n in (1, 2, 5, 8):
        close(getattr(linalg, name)(n), getattr(sp, name)(n), 1e-6)


def test_matrices_of_a_size_have_options() -> None:
    assert linalg.hadamard(8).tolist() == sp.hadamard(8).tolist()
    assert linalg.helmert(3, full=True).shape == (3, 3)
    assert linalg.dft(3, dtype="complex128").dtype == np.complex128
    assert np.isinf(np.asarray(linalg.invhilbert(220))).any()  # beyond any float


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_pairs_of_hermitian_matrices(kind: int) -> None:
    b = HERMITIAN.conj() + 2 * np.eye(5)
    w, v = linalg.eigh(ours(np.tril(C) + np.tril(C, -1).conj().T), ours(b), type=kind)
    a = np.tril(C) + np.tril(C, -1).conj().T
    np.fill_diagonal(a, np.real(np.diag(a)))
    v, w = np.asarray(v), np.asarray(w)
    left, right = [(a @ v, b @ v * w), (a @ b @ v, v * w), (b @ a @ v, v * w)][kind - 1]
    close(left, right, 1e-9)
    close(w, sp.eigh(a, b, type=kind, eigvals_only=True))


def test_one_triangle_is_read() -> None:
    spoiled = np.tril(HERMITIAN) + np.triu(np.full((5, 5), 7.0), 1)
    close(linalg.eigh(ours(spoiled), eigvals_only=True), np.linalg.eigvalsh(HERMITIAN))
    close(linalg.cholesky(ours(spoiled), lower=True), np.linalg.cholesky(HERMITIAN))


def test_eigenvectors_of_a_tridiagonal_matrix() -> None:
    d, e = draw((6,)), draw((5,), 1, "complex128")
    whole = np.diag(d) + np.diag(e, 1) + np.diag(e.conj(), -1)
    w, v = linalg.eigh_tridiagonal(ours(d.astype(complex)), ours(e))
    close(whole @ np.asarray(v), np.asarray(v) * np.asarray(w))


def test_exponentials_beyond_max_squarings_are_nan() -> None:
    assert np.isnan(np.asarray(linalg.expm(1e9 * jnp.eye(2)))).all()
    assert np.isnan(np.asarray(linalg.expm(40 * jnp.eye(2), max_squarings=2))).all()
    assert linalg.expm(O((0, 0))).shape == (0, 0)


def test_what_has_no_root_or_image_is_nan() -> None:
    jordan = jnp.array([[0.0, 1.0], [0.0, 0.0]])
    assert np.isnan(np.asarray(linalg.sqrtm(jordan))).any()
    assert np.isnan(np.asarray(linalg.funm(jordan + jnp.eye(2), jnp.exp))).any()
    close(linalg.funm(ours(2 * np.eye(3)), jnp.exp), np.exp(2) * np.eye(3))
    value, error = linalg.funm(ours(A), jnp.sin, disp=False)
    close(value, sp.funm(A, np.sin), 1e-8)
    assert 0 < float(error) < 1e-10
    singular = linalg.solve_sylvester(ours(A), ours(-A), ours(A))
    assert np.isnan(np.asarray(singular)).all()


def test_decompositions_that_are_not_finite_are_nan() -> None:
    x = A.copy()
    x[1, 2] = np.inf
    t, q = lax.linalg.schur(ours(np.stack([x, A])))
    assert np.isnan(np.asarray(t[0])).all() and np.isnan(np.asarray(q[0])).all()
    close(t[1], sp.schur(A)[0])


@pytest.mark.parametrize("kind", ["float64", "complex128"])
def test_reflections_make_their_matrix_again(kind: str) -> None:
    a = draw((2, 6, 4), 4, kind)
    packed, taus = jnp.linalg.qr(ours(a), mode="raw")
    q = lax.linalg.householder_product(packed.mT, taus)
    close(np.asarray(q) @ np.triu(np.asarray(packed.mT))[:, :4], a)
    c = draw((2, 6, 3), 5, kind)
    thin = lax.linalg.ormqr(packed.mT, taus, ours(c), transpose=True)
    close(thin[:, :4], np.conj(np.swapaxes(np.asarray(q), -1, -2)) @ c)
    h = a @ np.conj(np.swapaxes(a, -1, -2))
    for lower in (True, False):
        _, d, e, _ = lax.linalg.tridiagonal(ours(h), lower=lower)
        values = [sp.eigh_tridiagonal(x, y, eigvals_only=True) for x, y in zip(d, e)]
        close(np.stack(values), np.linalg.eigvalsh(h))


def test_tridiagonal_systems() -> None:
    dl, d, du, b = draw((2, 6)), draw((2, 6), 1), draw((2, 6), 2), draw((2, 6, 3), 3)
    d[0, 0] = 0  # an exchange of rows
    whole = np.stack(
        [np.diag(d[i]) + np.diag(dl[i, 1:], -1) + np.diag(du[i, :-1], 1) for i in (0, 1)]
    )
    x = lax.linalg.tridiagonal_solve(*map(ours, (dl, d, du, b)))
    close(x, np.linalg.solve(whole, b), 1e-9)
    zero = jnp.zeros((2, 6), "float64").at[1].set(1.0)
    nothing = lax.linalg.tridiagonal_solve(0 * zero, zero, 0 * zero, ours(b))
    assert np.isnan(np.asarray(nothing[0])).all()
    close(nothing[1], b[1])
    perturbed = lax.linalg.tridiagonal_solve(
        0 * zero, zero, 0 * zero, ours(b), perturb_singular=True
    )
    assert np.isfinite(np.asarray(perturbed)).all()
    one = lax.linalg.tridiagonal_solve(O((1,)), 2 * O((1,)), O((1,)), 4 * O((1, 2)))
    assert one.tolist() == [[2.0, 2.0]]
    assert lax.linalg.tridiagonal_solve(O(0), O(0), O(0), O((0, 2))).shape == (0, 2)


def test_left_and_right_eigenvectors() -> None:
    for a in (A, C):
        w, left, right = map(np.asarray, lax.linalg.eig(ours(a)))
        close(a @ right, right * w)
        close(left.conj().T @ a, w[:, None] * left.conj().T)
        close(np.stack([np.linalg.norm(x, axis=0) for x in (left, right)]), np.ones((2, 5)))
        for v in (left, right):
            greatest = np.take_along_axis(v, np.abs(v).argmax(0)[None], 0)
            close(np.imag(greatest), np.zeros((1, 5)))


def test_cholesky_factors_after_an_update() -> None:
    r, w = np.linalg.cholesky(POSITIVE).T, draw((5,), 8)
    new = np.asarray(lax.linalg.cholesky_update(ours(r), ours(w)))
    close(new.T @ new, POSITIVE + np.outer(w, w))
    close(np.tril(new, -1), np.zeros((5, 5)))


def test_polar_iterations() -> None:
    u, _, count, converged = lax.linalg.qdwh(ours(TALL))
    close(np.asarray(u).T @ np.asarray(u), np.eye(4))
    assert bool(converged) and 1 <= int(count) <= 10
    assert not bool(lax.linalg.qdwh(ours(TALL), max_iterations=1)[3])
    part = lax.linalg.qdwh(ours(TALL), dynamic_shape=(5, 3))
    close(part[0][:5, :3], lax.linalg.qdwh(ours(TALL[:5, :3]))[0])
    assert part[1].shape == (4, 4) and not np.asarray(part[0][5:]).any()
    assert lax.linalg.qdwh(O((3, 0)))[0].shape == (3, 0)


# ---- derivatives ----

DERIVATIVES: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "hessenberg": (lambda a: weighed(*linalg.hessenberg(a, calc_q=True)), A),
    "complex hessenberg": (lambda a: weighed(*linalg.hessenberg(a, calc_q=True)), C),
    "tridiagonal": (lambda a: weighed(*lax.linalg.tridiagonal(a @ a.T)[1:3]), A),
    "householder_product": (
        lambda a: weighed(lax.linalg.householder_product(a, jnp.sin(a[0]))), TALL),
    "ormqr": (lambda a: weighed(lax.linalg.ormqr(a, jnp.sin(a[0]), a[:, :2])), TALL),
    "raw qr": (lambda a: weighed(*jnp.linalg.qr(a, "raw")), TALL),
    "pivoted qr": (lambda a: weighed(*linalg.qr(a, mode="economic", pivoting=True)[:2]), TALL),
    "r of a full qr": (lambda a: weighed(*linalg.qr(a, mode="r")), TALL),
    "schur": (lambda a: weighed(jnp.abs(linalg.schur(a, "complex")[0])), C),
    "schur vectors": (lambda a: weighed(jnp.abs(linalg.schur(a)[1])), C),
    "sqrtm": (lambda a: weighed(linalg.sqrtm(a)), POSITIVE + A),
    "sqrtm of a multiple of one": (lambda a: weighed(linalg.sqrtm(a)), 2 * np.eye(3)),
    "funm": (lambda a: weighed(linalg.funm(a, jnp.exp)), A),
    "solve_sylvester": (
        lambda a: weighed(linalg.solve_sylvester(a, a @ a, a + 1)), A + 3 * np.eye(5)),
    "solve_sylvester by eigenvectors": (
        lambda a: weighed(linalg.solve_sylvester(a, a @ a, a, method="eigen")), C + 3 * np.eye(5)),
    "polar": (lambda a: weighed(*linalg.polar(a)), TALL),
    "polar by svd": (lambda a: weighed(*linalg.polar(a, "left", method="svd")), WIDE),
    "polar of one": (lambda a: weighed(*linalg.polar(a)), np.eye(3)),
    "eigh_tridiagonal": (
        lambda a: weighed(linalg.eigh_tridiagonal(a[0], a[1, :-1], eigvals_only=True)), A),
    "eig": (lambda a: weighed(*lax.linalg.eig(a, enable_eigvec_derivs=True)), C),
    "cholesky_update": (lambda a: weighed(lax.linalg.cholesky_update(jnp.triu(a), a[0])), A),
    "eigh of a pair": (lambda a: weighed(linalg.eigh(a + a.T, a @ a.T, eigvals_only=True)), A),
    "svd of a hermitian": (lambda a: weighed(jnp.linalg.svd(a + a.T, hermitian=True).S), A),
    "solve": (
        lambda a: weighed(linalg.solve(a @ jnp.conj(a.T), a, assume_a="pos")), C + 3 * np.eye(5)),
    "complex tridiagonal_solve": (lambda a: weighed(lax.linalg.tridiagonal_solve(
        a[0], a[1], a[2], a)), C),
}  # fmt: skip


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_those_of_differences(name: str) -> None:
    agree_with_differences(*DERIVATIVES[name])


@pytest.mark.parametrize("name", ["sqrtm", "polar", "solve_sylvester", "expm", "solve"])
def test_second_derivatives_are_those_of_differences(name: str) -> None:
    f, x = DERIVATIVES[name] if name in DERIVATIVES else (lambda a: weighed(linalg.expm(a)), A)
    t = ours(draw(x.shape, 7, str(x.dtype)))
    agree_with_differences(lambda v: gf.jvp(f, (v,), (t,))[1], x, 1e-5)


def test_derivatives_of_eigenvectors_are_jaxs() -> None:
    a = C.astype("complex64")
    options = {"enable_eigvec_derivs": True}

    def loss(eig: Any, np_: Any) -> Callable[..., Any]:
        w = np.cos(np.arange(25)).reshape(5, 5)
        return lambda x: sum((np_.real(v) * w).sum() for v in eig(x, **options)[2:])

    got = gf.jvp(loss(lax.linalg.eig, jnp), (ours(a),), (ours(a.T.copy()),))[1]
    want = jax.jvp(loss(jax.lax.linalg.eig, jax.numpy), (a,), (a.T.copy(),))[1]
    close(got, want, 1e-4)


def test_a_real_schur_form_has_no_derivative() -> None:
    with pytest.raises(errors.NotDifferentiableError, match="schur_on_host"):
        gf.grad(lambda a: linalg.schur(a)[0].sum())(ours(A))


# ---- options of numpy.linalg ----


def test_hermitian_singular_values() -> None:
    h = C + C.conj().T
    u, s, vh = map(np.asarray, jnp.linalg.svd(ours(h), hermitian=True))
    close(s, np.linalg.svd(h, compute_uv=False))
    close((u * s) @ vh, h)
    part = jnp.linalg.svd(ours(h), hermitian=True, subset_by_index=(1, 3))
    close(part.S, s[1:3])
    close(jnp.linalg.svd(ours(TALL), False, subset_by_index=(0, 2)).S, sp.svdvals(TALL)[:2])


def test_bounds_of_a_rank_are_numpys() -> None:
    x = np.diag([10.0, 5.0, 1.0, 0.0])
    bounds: list[dict[str, Any]] = [
        {},
        {"tol": 2.0},
        {"tol": 0.2},
        {"rtol": 0.2},
        {"hermitian": True},
    ]
    for options in bounds:
        assert int(jnp.linalg.matrix_rank(ours(x), **options)) == np.linalg.matrix_rank(
            x, **options
        )


def test_residuals_as_numpy_gives_them() -> None:
    for a in (TALL, TALL.T.copy(), np.outer(TALL[:, 0], TALL[0])):
        b = draw((len(a), 2), 9)
        want = np.linalg.lstsq(a, b)
        got = jnp.linalg.lstsq(ours(a), ours(b), numpy_resid=True)
        assert got[1].shape == want[1].shape
        close(got[0], want[0], 1e-8)
        assert jnp.linalg.lstsq(ours(a), ours(b))[1].shape == (2,)


def test_square_roots_of_singular_matrices() -> None:
    """SciPy's versions differ: 1.18 has infinities."""
    close(linalg.sqrtm(ours(np.zeros((3, 3)))), np.zeros((3, 3)))
    close(linalg.sqrtm(ours(np.diag([0.0, 4.0, 0.0]))), np.diag([0.0, 2.0, 0.0]))


def test_what_is_asked_for_is_what_runs() -> None:
    x = gf.device_put(ours(HERMITIAN), gf.cpu())
    close(lax.linalg.svd(x, algorithm=SvdAlgorithm.DIVIDE_AND_CONQUER, compute_uv=False),
          sp.svdvals(HERMITIAN))  # fmt: skip
    close(lax.linalg.eigh(x, implementation=EighImplementation.QR, subset_by_index=(1, 3))[1],
          np.linalg.eigvalsh(HERMITIAN)[1:3])  # fmt: skip
    assert len(lax.linalg.eig(x, implementation=EigImplementation.LAPACK)) == 3
    with pytest.raises(ValueError, match="is not what runs on cpu"):
        lax.linalg.svd(x, algorithm=SvdAlgorithm.POLAR)
    with pytest.raises(ValueError, match="is not what runs on cpu"):
        lax.linalg.eigh(x, implementation=EighImplementation.JACOBI)
    with pytest.raises(ValueError, match="is not what runs on cpu"):
        lax.linalg.eig(x, implementation=EigImplementation.CUSOLVER)


MIDDLE: Any = (0, 1)
REFUSALS: list[tuple[Callable[[], Any], str]] = [
    (lambda: lax.linalg.qr(O((2, 2)), use_magma=True), "use_magma=True"),
    (lambda: lax.linalg.eig(O((2, 2)), use_magma=True), "use_magma=True"),
    (lambda: lax.linalg.svd(O((2, 2)), subset_by_index=(0, 1)), "full_matrices=False"),
    (lambda: lax.linalg.svd(O((2, 2)), subset_by_index=(1, 3)), "is no range in the 2 values"),
    (lambda: jnp.linalg.matrix_rank(O((2, 2)), 1.0, tol=1.0), "not both"),
    (lambda: lax.linalg.schur(O((2, 3))), "schur takes square matrices"),
    (lambda: lax.linalg.schur(O((2, 2), "bfloat16")), "convert it with .astype"),
    (lambda: lax.linalg.schur(O((2, 2)), sort_eig_vals=True), "sort_eig_vals=False"),
    (lambda: lax.linalg.hessenberg(O((0, 0))), "at least one row"),
    (lambda: lax.linalg.householder_product(O((2, 3)), O(2)), "as many rows as columns"),
    (lambda: lax.linalg.householder_product(O((3, 2)), O(3)), "do not fit reflections"),
    (lambda: lax.linalg.ormqr(O((3, 2)), O(2), O((2, 3))), "do not fit .* with left=True"),
    (lambda: lax.linalg.ormqr(O((3, 2)), O(2), O((3, 3), "float64")), "operands of one dtype"),
    (lambda: lax.linalg.tridiagonal_solve(O(3), O(3), O(2), O((3, 1))), "do not fit right-hand"),
    (lambda: lax.linalg.cholesky_update(O((2, 2)), O(3)), "does not fit the factor"),
    (lambda: lax.linalg.cholesky_update(ours(C), ours(C[0])), "takes real factors"),
    (lambda: lax.linalg.symmetric_product(O((2, 3)), O((3, 3))), "times its transpose"),
    (lambda: lax.linalg.lu_pivots_to_permutation(O(2), 3), "vectors of int32"),
    (lambda: lax.linalg.lu_pivots_to_permutation(jnp.arange(3), 2), "3 exchanges"),
    (lambda: lax.linalg.qdwh(O((2, 3))), "as many rows as columns"),
    (lambda: lax.linalg.qdwh(O((3, 2)), dynamic_shape=(4, 2)), "is no part of"),
    (lambda: linalg.eigh(O((2, 2)), eigvals=MIDDLE), "index the result"),
    (lambda: linalg.eigh(O((2, 2)), O((2, 2)), type=4), "type 4 is none of"),
    (lambda: linalg.eigh(O((2, 2)), O((3, 3))), "differ"),
    (lambda: linalg.eigh_tridiagonal(O(3), O(3)), "do not fit"),
    (lambda: linalg.eigh_tridiagonal(O(3), O(2, "float64")), "one dtype"),
    (lambda: linalg.eigh_tridiagonal(O(3), O(2), select="v"), "select 'v' is none of"),
    (lambda: linalg.eigh_tridiagonal(O(3), O(2), select="i"), "needs select_range"),
    (lambda: linalg.eigh_tridiagonal(O(3), O(2), select="i", select_range=(1, 3)), "no range"),
    (lambda: linalg.polar(O(3)), "polar takes matrices"),
    (lambda: linalg.polar(O((2, 2)), "top"), "side 'top' is none of"),
    (lambda: linalg.polar(O((2, 2)), method="newton"), "method 'newton' is none of"),
    (lambda: linalg.qr(O((2, 2)), mode="raw"), "mode 'raw' is none of"),
    (lambda: linalg.qr_multiply(O((3, 2)), O((2, 2))), "does not fit Q of 3 rows"),
    (lambda: linalg.qr_multiply(O((3, 2)), O((2, 2)), "top"), "mode 'top' is none of"),
    (lambda: linalg.schur(O((2, 2)), "both"), "output 'both' is none of"),
    (lambda: linalg.rsf2csf(O((2, 2)), O((3, 3))), "differ in size"),
    (lambda: linalg.cho_solve((O((2, 2)), True), O(3)), "differ in rows"),
    (lambda: linalg.lu_solve((O((2, 2)), jnp.arange(2)), O(2), 3), "trans 3 is none of"),
    (lambda: linalg.solve(O((2, 2)), O(2), assume_a="banded"), "assume_a 'banded' is none of"),
    (lambda: linalg.solve_triangular(O((2, 2)), O(2), "H"), "trans 'H' is none of"),
    (lambda: linalg.solve_triangular(O((2, 3)), O(2)), "takes square matrices"),
    (lambda: linalg.solve_sylvester(O((2, 2)), O((2, 2)), O((2, 3))), "do not fit"),
    (lambda: linalg.solve_sylvester(O((2, 2)), O((2, 2)), O((2, 2)), method="lu"), "'lu' is none"),
    (lambda: linalg.expm(O((2, 3))), "expm takes square matrices"),
    (lambda: linalg.expm_frechet(O((2, 2)), O((3, 3))), "differ"),
    (lambda: linalg.sqrtm(O((2, 2)), 2), "blocksize 2"),
    (lambda: linalg.funm(O((2, 2, 2)), jnp.exp), "takes one matrix"),
    (lambda: linalg.block_diag(O((2, 2, 2))), "as argument 0"),
    (lambda: linalg.hankel(1.0), "got a scalar"),
    (lambda: linalg.leslie(O(3), O(3)), "do not fit"),
    (lambda: linalg.companion(O(1)), "at least two coefficients"),
    (lambda: linalg.fiedler_companion(O(0)), "at least one coefficient"),
    (lambda: linalg.convolution_matrix(O(2), 0), "n must be at least 1"),
    (lambda: linalg.convolution_matrix(O(2), 2, "half"), "mode 'half' is none of"),
    (lambda: linalg.convolution_matrix(O(0), 2), "at least one element"),
    (lambda: linalg.pascal(3, "left"), "kind 'left' is none of"),
    (lambda: linalg.hadamard(6), "power of 2"), (lambda: linalg.helmert(0), "at least 1"),
    (lambda: linalg.dft(3, "half"), "scale 'half' is none of"),
    (lambda: linalg.dft(3, dtype="float32"), "takes a complex dtype"),
]  # fmt: skip


@pytest.mark.parametrize("use, message", REFUSALS, ids=[r[1] for r in REFUSALS])
def test_refusals(use: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        use()


def test_stacks_of_vectors_are_told_from_matrices() -> None:
    a = np.stack([A, POSITIVE])
    with pytest.warns(FutureWarning, match="count as vectors"):
        x = linalg.solve_triangular(ours(a), ours(TALL[:2, :1] + np.ones((2, 5))))
    assert x.shape == (2, 5)
    factors = linalg.lu_factor(ours(a))
    close(linalg.lu_solve(factors, ours(C[:, :2])), np.linalg.solve(a, C[:, :2]), 1e-8)


def test_a_scan_of_a_rule_is_transposed_whatever_else_it_reads() -> None:
    """It carries a counter and reads positions and matrices, in which it is not linear."""
    matrices = draw((4, 3, 3), 3, "float32")

    def linear(x: Any) -> Any:
        def step(carry: Any, m: Any) -> Any:
            i, y = carry
            y = m @ y * i + jnp.where(jnp.arange(3) == i, x, 0)
            return (i + 1, y), y.sum()

        (_, y), sums = lax.scan(step, (jnp.float32(1), x), ours(matrices))
        return y, sums

    cts = (jnp.ones(3), jnp.arange(4.0))
    (want,) = gf.vjp(linear, jnp.ones(3))[1](cts)
    turned = gf.linear_transpose(linear, jnp.ones(3))
    close(turned(cts), (want,), 1e-5)
    close(gf.jit(turned)(cts), (want,), 1e-5)
    rule = gf.custom_jvp(lambda x: linear(x)[0])
    rule.defjvp(lambda primals, tangents: (linear(*primals)[0], linear(*tangents)[0]))
    close(gf.grad(lambda x: rule(x).sum())(jnp.ones(3)),
          gf.grad(lambda x: linear(x)[0].sum())(jnp.ones(3)), 1e-5)  # fmt: skip
