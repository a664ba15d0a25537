"""Polynomials, windows, bits, histograms of points, text files: against JAX and NumPy."""

from __future__ import annotations

import doctest
import importlib
import tempfile

import jax
import jax.numpy as theirs
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import errors


def same(mine, want, rtol: float = 2e-5) -> None:
    for x, y in zip(gf.tree.leaves(mine), jax.tree.leaves(want), strict=True):
        assert str(x.dtype) == str(y.dtype)
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("p", [[1, -6, 11, -6], [0, 0, 2, -4], [3], [0, 0], [1.0, 0.0, 1.0]])
@pytest.mark.parametrize("strip", [True, False])
def test_roots(p: list[float], strip: bool) -> None:
    p = np.array(p, np.float32)
    want = np.sort_complex(np.asarray(theirs.roots(p, strip_zeros=strip)))
    for f in (jnp.roots, *([] if strip else [gf.jit(jnp.roots, static_argnames="strip_zeros")])):
        got = np.sort_complex(np.asarray(f(p, strip_zeros=strip)))
        assert got.dtype == np.complex64
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_roots_of_a_traced_polynomial_need_a_number() -> None:
    with pytest.raises(errors.ConcretizationTypeError, match="strip_zeros=False"):
        gf.jit(jnp.roots)(jnp.array([1.0, 2.0]))


@pytest.mark.parametrize("columns", [None, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_fits(columns: int | None, weighted: bool) -> None:
    rng = np.random.default_rng(3)
    x = np.linspace(-1, 1, 12).astype(np.float32)
    y = rng.normal(size=(12,) if columns is None else (12, columns)).astype(np.float32)
    w = rng.uniform(0.5, 2, 12).astype(np.float32) if weighted else None
    for options in ({}, {"full": True}, {"cov": True}, {"cov": "unscaled"}):
        want = theirs.polyfit(x, y, 2, w=w, **options)
        same(jnp.polyfit(x, y, 2, w=w, **options), want, 1e-4)
    same(gf.jit(lambda x, y: jnp.polyfit(x, y, 2, w=w))(x, y), theirs.polyfit(x, y, 2, w=w), 1e-4)


def test_fits_that_are_refused() -> None:
    x = jnp.arange(3.0)
    with pytest.raises(errors.ArgumentError, match="more points"):
        jnp.polyfit(x, x, 2, cov=True)
    with pytest.raises(errors.ArgumentError, match="negative"):
        jnp.polyfit(x, x, -1)
    with pytest.raises(errors.ShapeError, match="polyfit takes"):
        jnp.polyfit(x, jnp.arange(4.0), 1)


def test_polynomials_trimmed_divided_and_integrated() -> None:
    a, b = np.float32([0, 0, 1, 2]), np.float32([0, 3, 4])
    same(jnp.polymul(a, b, trim_leading_zeros=True), theirs.polymul(a, b, trim_leading_zeros=True))
    u, v = np.float32([1, 5, 6]), np.float32([1, 2])
    same(jnp.polydiv(u, v), theirs.polydiv(u, v))
    quotient, rest = jnp.polydiv(u, v, trim_leading_zeros=True)
    assert rest.shape == (0,) and quotient.shape == (2,)
    same(jnp.polydiv(v, u), theirs.polydiv(v, u))
    for m, k in ((0, None), (1, 2.0), (3, None), (3, np.float32([1, 2, 3])), (2, [5])):
        given = None if k is None else np.asarray(k, np.float32)
        same(jnp.polyint(a, m, given), theirs.polyint(a, m, given))
    for m in (0, 1, 3, 4):
        same(jnp.polyder(a, m), theirs.polyder(a, m))
    assert jnp.polyder(a, 9).shape == (0,)
    matrix = np.float32([[2, 1], [0, 3]])
    same(jnp.poly(matrix), theirs.poly(matrix), 1e-4)
    with pytest.raises(errors.ShapeError, match="k is one number or 3"):
        jnp.polyint(a, 3, jnp.array([1.0, 2.0]))
    with pytest.raises(errors.ArgumentError, match="negative"):
        jnp.polyder(a, -1)


def test_windows() -> None:
    for name in ("bartlett", "blackman", "hamming", "hanning"):
        for m in (0, 1, 2, 9, 10):
            same(getattr(jnp, name)(m), getattr(theirs, name)(m), 1e-6)
        with pytest.raises(errors.ArgumentError, match="M >= 0"):
            getattr(jnp, name)(-1)
    for m in (0, 1, 2, 9):
        np.testing.assert_allclose(jnp.kaiser(m, 8.6), np.kaiser(m, 8.6), rtol=2e-5, atol=1e-6)
    assert np.isfinite(gf.grad(lambda b: jnp.kaiser(7, b).sum())(8.6))


@pytest.mark.parametrize("bitorder", ["big", "little"])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_bits(bitorder: str, axis: int | None) -> None:
    x = np.random.default_rng(1).integers(0, 2, (11, 9))
    packed = jnp.packbits(x, axis, bitorder)
    np.testing.assert_array_equal(packed, np.packbits(x, axis, bitorder))
    for count in (None, 7, 100, -3):
        got = jnp.unpackbits(packed, axis, count, bitorder)
        np.testing.assert_array_equal(got, np.unpackbits(np.asarray(packed), axis, count, bitorder))
    with pytest.raises(errors.DTypeError, match="uint8"):
        jnp.unpackbits(x)
    with pytest.raises(errors.DTypeError, match="integers or booleans"):
        jnp.packbits(x + 0.5)
    with pytest.raises(errors.ArgumentError, match="bitorder"):
        jnp.packbits(x, bitorder="middle")


def test_histograms_of_points() -> None:
    rng = np.random.default_rng(8)
    points = rng.normal(size=(200, 3)).astype(np.float32)
    w = rng.uniform(size=200).astype(np.float32)
    edges = [np.float32([-1, 0, 1]), np.float32([-2, 0.5, 2]), 3]
    limits = [(-1, 1), None, (-2, 2)]
    for options in ({"bins": 4}, {"bins": edges}, {"bins": (2, 3, 4), "range": limits},
                    {"weights": w}, {"density": True},
                    {"weights": w, "density": True}):  # fmt: skip
        same(jnp.histogramdd(points, **options), theirs.histogramdd(points, **options))
    x, y = points[:, 0], points[:, 1]
    for bins in (5, [3, 4], np.float32([-2, -1, 0, 3])):
        same(jnp.histogram2d(x, y, bins), theirs.histogram2d(x, y, bins))
    points[3, 1] = np.nan
    found, _ = jnp.histogramdd(points, 4, [(-9, 9)] * 3)
    assert int(found.sum()) == 199
    with pytest.raises(errors.ShapeError, match="each of 3 dimensions"):
        jnp.histogramdd(points, [2, 3])
    with pytest.raises(errors.ShapeError, match="range"):
        jnp.histogramdd(points, 4, [(0, 1)])


def test_texts_files_and_print_options() -> None:
    with tempfile.NamedTemporaryFile() as file:
        np.arange(4, dtype=np.float32).tofile(file.name)
        np.testing.assert_array_equal(jnp.fromfile(file.name, "float32", offset=4), [1, 2, 3])
    np.testing.assert_array_equal(jnp.fromstring("1.5,2", sep=","), [1.5, 2.0])
    before = jnp.get_printoptions()
    with jnp.printoptions(precision=2):
        assert repr(jnp.array([1.23456])) == "Array([1.23], dtype=float32)"
    assert jnp.get_printoptions() == before


def test_paths_of_contractions() -> None:
    shapes = (3, 40), (40, 5), (5, 2)
    xs = [np.ones(s, np.float32) for s in shapes]
    for optimize in ("auto", "optimal", "greedy", True, False):
        mine, _ = jnp.einsum_path("ij,jk,kl", *xs, optimize=optimize)
        want, _ = theirs.einsum_path("ij,jk,kl", *xs, optimize=optimize)
        assert mine == [tuple(step) for step in want]
    path, _ = jnp.einsum_path("...ij,jk", xs[0][None], xs[1])
    assert path == [(0, 1)]
    result = jnp.einsum("ij,jk,kl", *xs, optimize=mine)
    np.testing.assert_allclose(result, np.einsum("ij,jk,kl", *xs))


@pytest.mark.parametrize("module", ["mathematics.polynomials", "mathematics.windows", "universal",
                                    "manipulation.bits", "manipulation.histograms",
                                    "arrays.creation"])  # fmt: skip
def test_examples(module: str) -> None:
    found = importlib.import_module(f"genesis_fn.numpy.{module}")
    outcome = doctest.testmod(found, extraglobs={"jnp": jnp})
    assert outcome.failed == 0 and outcome.attempted
