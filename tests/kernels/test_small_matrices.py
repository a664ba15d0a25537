"""Kernels that hold small matrices in registers, against NumPy and SciPy's LAPACK."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

from genesis_fn.kernels.linalg.small.cholesky import SmallCholesky, plan_small_cholesky
from genesis_fn.kernels.linalg.small.eigh import SmallEigh, plan_small_eigh
from genesis_fn.kernels.linalg.small.lu import SmallLu, plan_small_lu
from genesis_fn.kernels.linalg.small.panels import PanelCholesky, plan_panel_cholesky
from genesis_fn.kernels.linalg.small.qr import SmallQr, plan_small_qr
from genesis_fn.kernels.linalg.small.solve import SmallSolve, plan_small_solve
from genesis_fn.kernels.linalg.small.svd import SmallSvd, plan_small_svd
from genesis_fn.kernels.linalg.small.triangular import SmallTriangular, plan_small_triangular
from tests.kernels.matrices import KINDS, close, lower_triangles, names, normal, positive, results
from tests.kernels.run import TARGET

# Matrices of a warp that is full, or misses some; rows in lanes that are all taken, or not.
SHAPES = [
    *((kind, count, n) for kind in KINDS for count, n in ((35, 1), (17, 2), (3, 5), (5, 8))),
    ("float32", 4, 8),
    ("float32", 2, 32), ("float64", 2, 31), ("complex64", 2, 16), ("complex128", 1, 29),
]  # fmt: skip


def cholesky(x: np.ndarray) -> np.ndarray:
    spec = SmallCholesky(len(x), x.shape[-1], *names(x.dtype.name))
    return results(plan_small_cholesky(spec, TARGET), [x], (x.shape, x.dtype))


def solve(a: np.ndarray, b: np.ndarray, transposed: bool = False) -> np.ndarray:
    spec = SmallSolve(len(a), *b.shape[1:], *names(a.dtype.name), transposed)
    return results(plan_small_solve(spec, TARGET), [a, b], (b.shape, b.dtype))


def lu(x: np.ndarray) -> list[np.ndarray]:
    spec = SmallLu(len(x), x.shape[-1], *names(x.dtype.name))
    rows = (x.shape[:-1], np.int32)
    return results(plan_small_lu(spec, TARGET), [x], (x.shape, x.dtype), rows, rows)


def eigh(x: np.ndarray) -> list[np.ndarray]:
    spec = SmallEigh(len(x), x.shape[-1], *names(x.dtype.name))
    values = (x.shape[:-1], x.real.dtype)
    return results(plan_small_eigh(spec, TARGET), [x], (x.shape, x.dtype), values)


def qr(x: np.ndarray, full: bool = False) -> list[np.ndarray]:
    count, m, n = x.shape
    k = m if full else min(m, n)
    plan = plan_small_qr(SmallQr(count, m, n, *names(x.dtype.name), full), TARGET)
    return results(plan, [x], ((count, m, k), x.dtype), ((count, k, n), x.dtype))


def svd(x: np.ndarray, full: bool = False) -> list[np.ndarray]:
    count, m, n = x.shape
    k = min(m, n)
    plan = plan_small_svd(SmallSvd(count, m, n, *names(x.dtype.name), full=full), TARGET)
    shapes = (count, m, m if full else k), (count, n if full else k, n)
    return results(plan, [x], ((count, k), x.real.dtype), *[(y, x.dtype) for y in shapes])


def singular_values(x: np.ndarray) -> np.ndarray:
    count, m, n = x.shape
    plan = plan_small_svd(SmallSvd(count, m, n, *names(x.dtype.name), vectors=False), TARGET)
    return results(plan, [x], ((count, min(m, n)), x.real.dtype))


@pytest.mark.parametrize(
    "kind, count, n",
    [*SHAPES, ("float64", 2, 32), ("complex64", 2, 17), ("complex64", 1, 32)]
    + [("complex128", 2, 25), ("complex128", 1, 32)],
)
def test_cholesky(kind, count, n):
    """Of the lower triangle: whatever stands elsewhere is not read."""
    x = positive(count, n, kind)
    found = cholesky(lower_triangles(x))
    close(found, np.linalg.cholesky(x))
    np.testing.assert_array_equal(np.triu(found, 1), 0)


@pytest.mark.parametrize(
    "kind, n", [("float32", 7), ("float64", 20), ("complex64", 12), ("complex128", 19)]
)
def test_failures_of_cholesky(kind, n):
    """NaN of the matrices that fail, early or late; the others, in the same warp or not, are what
    they are without them."""
    x = positive(7, n, kind)
    x[1, n // 2, n // 2] = -1
    x[2, n - 1, 0] = np.nan
    x[4, n - 1, n - 1] = 0
    x[5, 0, 0] = np.nan
    good, failed = [0, 3, 6], [1, 2, 4, 5]
    found = cholesky(lower_triangles(x))
    close(found[good], np.linalg.cholesky(x[good]))
    assert np.isnan(found[failed][:, *np.tril_indices(n)]).all()
    np.testing.assert_array_equal(np.triu(found, 1), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_cholesky_of_an_infinity(kind):
    """As LAPACK's: one on the diagonal leaves the columns that are done, and zeros below itself."""
    x = positive(1, 6, kind)
    x[0, 3, 3] = np.inf
    found, want = cholesky(x), np.linalg.cholesky(x)
    assert found[0, 3, 3] == np.inf and want[0, 3, 3] == np.inf
    found[0, 3, 3] = want[0, 3, 3] = 1
    close(found, want)


@pytest.mark.parametrize("n", [34, 72])
def test_cholesky_in_panels(n):
    """Of more rows than lanes; NaN of the matrix that fails."""
    x = positive(2, n, "float32")
    x[1, n - 2, n - 2] = -1
    given = (np.tril(x) + np.triu(np.full_like(x, np.nan), 1)).astype("float32")
    spec = PanelCholesky(2, n)
    found = results(plan_panel_cholesky(spec, TARGET), [given], (x.shape, x.dtype))
    close(found[0], np.linalg.cholesky(x[0]))
    assert np.isnan(found[1][np.tril_indices(n)]).all()
    np.testing.assert_array_equal(np.triu(found, 1), 0)


@pytest.mark.parametrize("kind, count, n", SHAPES)
def test_lu(kind, count, n):
    """LAPACK's pivots, factors and what they are factors of."""
    x = normal((count, n, n), kind, 1)
    factors, pivots, order = lu(x)
    lower = np.tril(factors, -1) + np.eye(n, dtype=kind)
    close(lower @ np.triu(factors), np.take_along_axis(x, order[..., None], -2))
    for m in range(count):
        want, swaps = scipy.linalg.lu_factor(x[m])
        assert pivots[m].tolist() == swaps.tolist()
        assert np.abs(factors[m] - want).max() <= 1e4 * np.finfo(kind).eps * np.abs(want).max()


@pytest.mark.parametrize("kind, count, n", SHAPES)
def test_solve(kind, count, n):
    """Of matrices whose pivots are somewhere, and their transposes."""
    a = np.roll(positive(count, n, kind), n // 2, -1)
    transposed = np.swapaxes(a, -1, -2)
    for columns in (1,) if n > 16 else (1, 3):
        b = normal((count, n, columns), kind, 2)
        close(solve(a, b), np.linalg.solve(a, b))
        close(solve(a, b, transposed=True), np.linalg.solve(transposed, b))


@pytest.mark.parametrize(
    "kind, count, n, others, lower, left",
    [
        ("float32", 2, 32, 3, True, True),
        ("float32", 3, 20, 35, False, True),  # more columns than a program takes
        ("float64", 5, 9, 40, True, False),
        ("complex64", 3, 8, 17, True, False),
        ("complex128", 3, 11, 2, False, True),
    ],
)
def test_triangular(kind, count, n, others, lower, left):
    """Other operations, whose triangles and sides these kernels get, are tested by lowerings."""
    x = normal((count, n, n), kind, 5) / 4 + 2 * np.eye(n, dtype=kind)
    triangle = np.tril(x) if lower else np.triu(x)
    given = np.where(triangle == 0, np.nan, x).astype(kind)
    b = normal((count, n, others) if left else (count, others, n), kind, 6)
    spec = SmallTriangular(count, n, others, *names(kind), lower=lower, left=left)
    found = results(plan_small_triangular(spec, TARGET), [given, b], (b.shape, b.dtype))
    close(triangle @ found if left else found @ np.swapaxes(triangle, -1, -2), b)


@pytest.mark.parametrize(
    "kind, count, m, n, full",
    [(k, c, m, n, f) for k in KINDS for c, m, n, f in ((35, 1, 1, False), (9, 3, 4, False))]
    + [(k, 5, 4, 3, f) for k in ("float32", "complex128") for f in (False, True)]
    + [("float32", 2, 32, 32, False), ("float64", 2, 11, 20, True), ("complex64", 3, 13, 9, True)]
    + [("complex128", 1, 27, 32, False)],
)
def test_qr(kind, count, m, n, full):
    """LAPACK's factors with its signs, of columns whose squares are out of range, too."""
    x = normal((count, m, n), kind, 9)
    x[0, :, 0] *= 1e-30
    x[-1, :, -1] *= 1e30
    q, r = qr(x, full)
    size = np.abs(x).max(-2, keepdims=True)
    close(q @ (r / size), x / size)
    close(
        np.conj(np.swapaxes(q, -1, -2)) @ q,
        np.broadcast_to(np.eye(q.shape[-1]), q[:, 0, 0].shape + (q.shape[-1],) * 2),
    )
    np.testing.assert_array_equal(np.tril(r, -1), 0)
    for m in range(count):
        want = scipy.linalg.qr(
            x[m].astype(np.result_type(kind, "f8")), mode="full" if full else "economic"
        )
        close(q[m], want[0])
        close(r[m] / size[m], want[1] / size[m])


@pytest.mark.parametrize("kind", KINDS)
def test_qr_of_special_matrices(kind):
    """Zero, triangular, of rank one, and NaN, which stays in its matrix."""
    x = np.stack([np.zeros((4, 4)), -np.triu(np.ones((4, 4))), np.ones((4, 4)), np.eye(4)])
    x = x.astype(kind)
    x[3, 2, 1] = np.nan
    q, r = qr(x)
    np.testing.assert_array_equal(q[:2], np.stack([np.eye(4)] * 2))
    np.testing.assert_array_equal(r[:2], x[:2])
    close(q[2] @ r[2], x[2])
    close(np.conj(q[2].T) @ q[2], np.eye(4))
    assert np.isnan(q[3]).all() and np.isnan(r[3][np.triu_indices(4)]).all()
    ones = normal((1, 6, 1), kind, 12) @ np.ones((1, 1, 6), kind)  # whose remainders vanish
    q, r = qr(ones)
    close(q @ r, ones)
    close(np.conj(q[0].T) @ q[0], np.eye(6))


def holds_eigh(x: np.ndarray, given: np.ndarray) -> None:
    """Values by LAPACK's in double precision, vectors by their definition."""
    eps = 32 * np.finfo(x.dtype).eps
    for matrix, vectors, values in zip(x, *eigh(given)):
        bound = eps * max(1e-300, np.abs(matrix).max())
        wide = matrix.astype("complex128" if x.dtype.kind == "c" else "float64")
        assert np.abs(values - np.linalg.eigvalsh(wide)).max() <= bound
        assert np.abs((vectors * values) @ np.conj(vectors.T) - matrix).max() <= bound
        assert np.abs(np.conj(vectors.T) @ vectors - np.eye(len(matrix))).max() <= eps


@pytest.mark.parametrize(
    "kind, count, n",
    [(k, c, n) for k in KINDS for c, n in ((35, 1), (17, 2), (9, 3))]
    + [("float32", 5, 8), ("float64", 2, 12), ("complex64", 3, 5), ("complex128", 1, 7)]
    + [("float64", 1, 19), ("complex64", 1, 17)],
)
def test_eigh(kind, count, n):
    """Of the lower triangle, whose diagonal is real."""
    x = normal((count, n, n), kind, 7)
    x = (x + np.conj(np.swapaxes(x, -1, -2))).astype(kind)
    holds_eigh(x, (np.tril(x) + np.triu(np.full_like(x, np.nan), 1)).astype(kind))


@pytest.mark.parametrize("kind", ["float32", "complex64"])
def test_eigh_of_special_matrices(kind):
    """Diagonal, zero, of equal eigenvalues, of rank one, with clusters, and of any size."""
    n = 6
    q = np.linalg.qr(normal((n, n), kind, 8).astype("complex128" if kind[0] == "c" else "float64"))[
        0
    ]
    of = lambda *w: (q * np.array(w)) @ np.conj(q.T)
    spread = of(1, -1, 1e-4, 1e-4, 1 + 1e-6, -1)
    x = np.stack(
        [np.diag([3.0, 1, 2, -4, 0, 1]), np.zeros((n, n)), np.eye(n), of(2, 2, 2, -1, -1, -1),
         np.ones((n, n)), spread, of(0, 0, 0, 0, 0, 5), 1e30 * spread, 1e-30 * spread]
    )  # fmt: skip
    x = x.astype(kind)
    x = np.tril(x, -1) + np.conj(np.swapaxes(np.tril(x, -1), -1, -2)) + x.real * np.eye(n)
    holds_eigh(x.astype(kind), x.astype(kind))


@pytest.mark.parametrize("flaw", [np.nan, np.inf])
def test_eigh_of_what_is_not_finite(flaw):
    """NaN, of this matrix and not of its neighbours."""
    x = np.stack([np.diag([2.0, 1, 3]).astype("float32")] * 3)
    x[1, 2, 0] = flaw
    vectors, values = eigh(x)
    assert np.isnan(vectors[1]).all() and np.isnan(values[1]).all()
    np.testing.assert_array_equal(values[[0, 2]], [[1, 2, 3]] * 2)
    np.testing.assert_array_equal(np.abs(vectors[0]), np.eye(3)[[1, 0, 2]].T)


def holds_svd(x: np.ndarray, full: bool = False) -> None:
    """Values by LAPACK's in double precision, vectors by their definition."""
    k, eps = min(x.shape[1:]), 16 * np.finfo(x.dtype).eps
    alone = singular_values(x)
    for matrix, s, u, vh, only in zip(x, *svd(x, full), alone):
        wide = matrix.astype("complex128" if x.dtype.kind == "c" else "float64")
        size = np.abs(wide).max() or 1.0
        assert np.abs(s - np.linalg.svd(wide, compute_uv=False)).max() <= eps / 2 * max(size, s[0])
        assert (
            np.abs((u[:, :k] * (s / size)) @ vh[:k] - wide / size).max() <= eps * len(wide) ** 0.5
        )
        for vectors in (np.conj(u.T), vh):
            distance = vectors @ np.conj(vectors.T) - np.eye(len(vectors))
            assert np.abs(distance).max() <= eps
        np.testing.assert_array_equal(only, s)


@pytest.mark.parametrize(
    "kind, count, m, n, full",
    [(k, c, m, n, False) for k in KINDS for c, m, n in ((35, 1, 1), (17, 2, 2), (5, 3, 5))]
    + [(k, 3, m, n, True) for k in ("float32", "complex128") for m, n in ((4, 3), (3, 4))]
    + [("float32", 5, 8, 8, False), ("float32", 1, 3, 20, False), ("float64", 2, 11, 10, False)]
    + [("float64", 1, 32, 7, False), ("complex64", 1, 6, 18, False), ("complex128", 1, 17, 5, True)]
    + [("complex64", 3, 6, 5, False)],
)
def test_svd(kind, count, m, n, full):
    holds_svd(normal((count, m, n), kind, 10), full)


@pytest.mark.parametrize("kind", ["float32", "complex64"])
def test_svd_of_special_matrices(kind):
    """Diagonal, zero, of equal values, of rank one and half, with clusters, and of any size."""
    n = 6
    wide = "complex128" if kind[0] == "c" else "float64"
    left, right = np.linalg.qr(normal((2, n, n), kind, 11).astype(wide))[0]
    of = lambda *s: (left * np.array(s)) @ np.conj(right.T)
    spread = of(1, 1e-4, 3, 1e-4, 1 + 1e-6, 1)
    x = np.stack(
        [np.diag([3.0, 1, 2, -4, 0, 1]), np.zeros((n, n)), np.eye(n), of(2, 2, 2, 2, 2, 2),
         np.ones((n, n)), of(1, 0, 2, 3, 0, 0), spread, of(1e-8, 1e-6, 1e-4, 1e-2, 1, 1e2),
         1e37 * spread, 1e-35 * spread,
         np.triu(np.ones((n, n))) - 2 * np.eye(n)]
    )  # fmt: skip
    holds_svd(x.astype(kind))
    holds_svd(x[:, :, :4].astype(kind), full=True)


@pytest.mark.parametrize("flaw", [np.nan, np.inf])
@pytest.mark.parametrize("shape", [(3, 2), (2, 3)])
def test_svd_of_what_is_not_finite(shape, flaw):
    """NaN, of this matrix and not of its neighbours."""
    x = np.stack([np.eye(*shape) * [[3], [4], [0]][: shape[0]]] * 3).astype("float32")
    x[1, 1, 0] = flaw
    for found in (*svd(x, full=True), singular_values(x)):
        assert np.isnan(found[1]).all() and np.isfinite(found[[0, 2]]).all()
    np.testing.assert_array_equal(svd(x)[0][[0, 2]], [[4, 3]] * 2)


@pytest.mark.parametrize("kind", KINDS)
def test_pivots_of_equals(kind):
    """The first of the largest by LAPACK's measure, in the order of rows after exchanges."""
    entries = [1, -1, 1j, (1 + 1j) / 2, 0] if kind[0] == "c" else [1, -1, 0]
    x = np.random.default_rng(3).choice(entries, (16, 4, 4)).astype(kind)
    x += 2 * np.eye(4, k=-1).astype(kind)  # not singular in most cases
    factors, pivots, order = lu(x)
    for m in range(len(x)):
        lapack = scipy.linalg.get_lapack_funcs("getrf", (x[m],))
        want, swaps, _ = lapack(x[m])
        assert pivots[m].tolist() == swaps.tolist()
        close(factors[m], want)
        rows = list(range(4))
        for i, j in enumerate(swaps):
            rows[i], rows[j] = rows[j], rows[i]
        assert rows == order[m].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_failures(kind):
    """NaN of the whole matrix that fails, and not of its neighbours in the warp."""
    eye = np.broadcast_to(np.eye(3, dtype=kind), (4, 3, 3)).copy()
    x = eye.copy()
    x[1, 2, 2] = -1
    x[2, 1, 0] = np.nan
    x[3] = 0
    found = cholesky(x)
    np.testing.assert_array_equal(found[0], eye[0])
    for m in (1, 2, 3):
        assert np.isnan(found[m][np.tril_indices(3)]).all()
        np.testing.assert_array_equal(np.triu(found[m], 1), 0)
    x[1] = 1  # of rank one
    solved = solve(x, np.ones((4, 3, 2), kind))
    assert (solved[0] == 1).all() and np.isnan(solved[1:]).all()
    factors, pivots, order = lu(x)
    assert np.isnan(factors[2]).all() and np.isfinite(factors[[0, 1, 3]]).all()
    np.testing.assert_array_equal(factors[1], [[1, 1, 1], [1, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(factors[3], 0)
    np.testing.assert_array_equal(pivots[[0, 1, 3]], [[0, 1, 2]] * 3)
    np.testing.assert_array_equal(np.sort(order), [[0, 1, 2]] * 4)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_extremes(size):
    """Squares of complex pivots, which 32 bits do not hold."""
    a = (positive(2, 3, "complex64") * (1 + 1j) * size).astype("complex64")
    b = normal((2, 3, 1), "complex64", 4)
    close(solve(a, b) * size, np.linalg.solve(a.astype(complex), b) * size)
    factors, _, _ = lu(a)
    want = np.stack([scipy.linalg.lu_factor(x)[0] for x in a.astype(complex)])
    close(np.tril(factors, -1), np.tril(want, -1))
    close(np.triu(factors) / size, np.triu(want) / size)


def test_too_large():
    for refused in (
        lambda: SmallCholesky(2, 33, "fp32"),
        lambda: SmallLu(2, 33, "fp32"),
        lambda: SmallSolve(2, 33, 1, "fp32"),
        lambda: SmallSolve(2, 3, 33, "fp32"),
        lambda: SmallSolve(2, 3, 17, "fp32", True),
        lambda: SmallTriangular(2, 33, 1, "fp32"),
        lambda: SmallEigh(2, 33, "fp32"),
        lambda: SmallQr(2, 3, 33, "fp32"),
        lambda: SmallSvd(2, 33, 3, "fp32"),
    ):
        with pytest.raises(ValueError, match="at most 32 rows"):
            refused()
    with pytest.raises(ValueError, match="at most 128 rows"):
        PanelCholesky(2, 129)
