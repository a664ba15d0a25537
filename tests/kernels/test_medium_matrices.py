"""Kernels that hold matrices in registers of several warps, against NumPy and SciPy's LAPACK."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

from genesis_fn.kernels.linalg.medium.cholesky import MediumCholesky, plan_medium_cholesky
from genesis_fn.kernels.linalg.medium.lu import MediumLu, plan_medium_lu
from genesis_fn.kernels.linalg.medium.solve import MediumSolve, plan_medium_solve
from genesis_fn.kernels.linalg.medium.triangular import MediumTriangular, plan_medium_triangular
from tests.kernels.matrices import KINDS, close, lower_triangles, names, normal, positive, results
from tests.kernels.run import TARGET

# Of one slice of rows or two, columns that leave some warps without, and fill all.
SHAPES = [
    *((kind, 2, 3) for kind in KINDS),
    ("float32", 2, 33), ("float64", 1, 41), ("complex64", 1, 34), ("complex128", 1, 30),
]  # fmt: skip


def cholesky(x: np.ndarray) -> np.ndarray:
    spec = MediumCholesky(len(x), x.shape[-1], *names(x.dtype.name))
    return results(plan_medium_cholesky(spec, TARGET), [x], (x.shape, x.dtype))


def solve(a: np.ndarray, b: np.ndarray, transposed: bool = False) -> np.ndarray:
    spec = MediumSolve(len(a), *b.shape[1:], *names(a.dtype.name), transposed)
    return results(plan_medium_solve(spec, TARGET), [a, b], (b.shape, b.dtype))


def lu(x: np.ndarray) -> list[np.ndarray]:
    spec = MediumLu(len(x), x.shape[-1], *names(x.dtype.name))
    rows = (x.shape[:-1], np.int32)
    return results(plan_medium_lu(spec, TARGET), [x], (x.shape, x.dtype), rows, rows)


@pytest.mark.parametrize("kind, count, n", [*SHAPES, ("float32", 1, 64), ("complex128", 1, 36)])
def test_cholesky(kind, count, n):
    """Nothing but lower triangles is read."""
    x = positive(count, n, kind)
    close(cholesky(lower_triangles(x)), np.linalg.cholesky(x))


@pytest.mark.parametrize("kind", ["float32", "complex128"])
def test_failures_of_cholesky(kind):
    """NaN in the triangle of a matrix that fails, early or in its last row, or holds NaN."""
    x = np.stack([np.eye(6, dtype=kind)] * 4)
    x[1, 5, 5] = -1
    x[2, 1, 0] = np.nan
    x[3] = 0
    found = cholesky(x)
    np.testing.assert_array_equal(found[0], x[0])
    for failed in found[1:]:
        assert np.isnan(failed[np.tril_indices(6)]).all()
        np.testing.assert_array_equal(np.triu(failed, 1), 0)


@pytest.mark.parametrize("kind, count, n", [*SHAPES, ("complex64", 1, 64), ("complex128", 1, 36)])
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
    for columns in (1, 5):
        b = normal((count, n, columns), kind, 2)
        close(solve(a, b), np.linalg.solve(a, b))
        close(solve(a, b, transposed=True), np.linalg.solve(transposed, b))


def test_failures():
    """NaN of singular matrices, and of those that hold one; factors of the former stand."""
    x = np.stack([np.eye(6, dtype="float32")] * 4)
    x[1] = 1  # of rank one
    x[2, 1, 0] = np.nan
    x[3] = 0
    solved = solve(x, np.ones((4, 6, 2), "float32"))
    assert (solved[0] == 1).all() and np.isnan(solved[1:]).all()
    factors, pivots, order = lu(x)
    assert np.isnan(factors[2]).all()
    rank_one = np.eye(6) * 0
    rank_one[:, 0] = rank_one[0] = 1
    np.testing.assert_array_equal(factors[[0, 1, 3]], [np.eye(6), rank_one, np.zeros((6, 6))])
    np.testing.assert_array_equal(pivots[[0, 1, 3]], [range(6)] * 3)
    np.testing.assert_array_equal(np.sort(order), [range(6)] * 4)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_extremes(size):
    """Squares of complex pivots, which 32 bits do not hold."""
    a = (positive(2, 5, "complex64") * (1 + 1j) * size).astype("complex64")
    b = normal((2, 5, 1), "complex64", 4)
    close(solve(a, b) * size, np.linalg.solve(a.astype(complex), b) * size)


@pytest.mark.parametrize("conjugated", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_operations_of_triangles(lower, left, transposed, conjugated):
    triangular("complex64", 2, 9, 3, lower, left, transposed, conjugated)


@pytest.mark.parametrize(
    "kind, n, others, lower, left",
    [
        ("float32", 40, 70, True, True),  # more columns than a program takes
        ("float32", 33, 1, False, True),
        ("float64", 35, 66, False, False),
        ("complex128", 30, 4, True, False),
    ],
)
def test_triangular(kind, n, others, lower, left):
    triangular(kind, 1, n, others, lower, left)


def triangular(kind, count, n, others, lower, left, transposed=False, conjugated=False) -> None:
    """What stands in the other triangle is not used."""
    x = normal((count, n, n), kind, 5) / 4 + 2 * np.eye(n, dtype=kind)
    triangle = np.tril(x) if lower else np.triu(x)
    given = np.where(triangle == 0, np.nan, x).astype(kind)
    triangle = np.conj(triangle) if conjugated else triangle
    if transposed:
        given = np.ascontiguousarray(np.swapaxes(given, -1, -2))
    b = normal((count, n, others) if left else (count, others, n), kind, 6)
    spec = MediumTriangular(count, n, others, *names(kind), lower, transposed, conjugated, left)
    found = results(plan_medium_triangular(spec, TARGET), [given, b], (b.shape, b.dtype))
    close(triangle @ found if left else found @ np.swapaxes(triangle, -1, -2), b)


def test_too_large():
    for refused in (
        lambda: MediumCholesky(2, 65, "fp32"),
        lambda: MediumLu(2, 65, "fp32"),
        lambda: MediumSolve(2, 64, 200, "fp32"),
        lambda: MediumSolve(2, 64, 1, "fp64", True),
        lambda: MediumTriangular(2, 65, 1, "fp32"),
    ):
        with pytest.raises(ValueError, match="at most 64 rows, and 128 registers"):
            refused()
