"""Linear algebra against JAX, and where JAX defines no derivative against differences."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from genesis_fn.core import errors
from genesis_fn.primitives import linalg
from genesis_fn.primitives.dot_general import batch_matmul
from genesis_fn.primitives.elementwise import add, imag
from tests.primitives.check import (
    assert_same,
    check,
    check_batched,
    check_numeric,
    check_staged,
    check_value,
    random,
    to_array,
    to_numpy,
)

KINDS = [np.float64, np.complex128]


def positive(shape, kind=np.float64, seed=0):
    x = random(shape, kind, seed)
    return x @ np.conj(np.swapaxes(x, -1, -2)) + 2 * np.eye(shape[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_cholesky(kind):
    x = positive((2, 4, 4), kind)
    examples = [[positive((2, 4, 4), kind, s)] for s in range(3)]
    check(linalg.cholesky, jax.lax.linalg.cholesky, x, examples=examples, tolerance=1e-9)


def test_cholesky_of_what_has_none_is_nan():
    x = np.stack([np.eye(3), -np.eye(3)])
    out = to_numpy(linalg.cholesky(to_array(x)))
    assert np.isnan(out[1][np.tril_indices(3)]).all()
    assert_same(out[0], np.eye(3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left_side", [False, True])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
def test_triangular_solve(kind, left_side, lower, transpose_a):
    a = random((2, 3, 3), kind) + 3 * np.eye(3)
    b = random((2, 3, 4) if left_side else (2, 4, 3), kind, seed=1)
    options = dict(left_side=left_side, lower=lower, transpose_a=transpose_a)
    if kind is np.complex128:
        options["conjugate_a"] = transpose_a
    examples = [[a + 0.1 * i, b + i] for i in range(3)]
    check(
        functools.partial(linalg.triangular_solve, **options),
        functools.partial(jax.lax.linalg.triangular_solve, **options),
        a,
        b,
        examples=examples,
        tolerance=1e-9,
        order=2 if left_side != lower else 1,
        batch=kind is np.float64,
    )


def test_triangular_solve_with_a_unit_diagonal_and_a_vector():
    a, b = random((3, 3)), random((3,), seed=1)
    for lower in (False, True):
        options = dict(left_side=True, lower=lower, unit_diagonal=True)
        check(
            functools.partial(linalg.triangular_solve, **options),
            functools.partial(jax.lax.linalg.triangular_solve, **options),
            a,
            b,
            batch=False,
        )


@pytest.mark.parametrize("kind", KINDS)
def test_solve(kind):
    a = random((2, 3, 3), kind) + 3 * np.eye(3)
    b = random((2, 3, 2), kind, seed=1)
    examples = [[a + 0.1 * i, b + i] for i in range(3)]
    check(linalg.solve, jax.numpy.linalg.solve, a, b, examples=examples, tolerance=1e-9)
    check(linalg.solve, jax.numpy.linalg.solve, a[0], b[0, :, 0], batch=False, tolerance=1e-9)
    assert np.isnan(to_numpy(linalg.solve(to_array(np.zeros((2, 2))), to_array(np.ones(2))))).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (2, 3, 5), (1, 1)])
def test_lu(kind, shape):
    # Far from where pivots change.
    x = random(shape, kind)
    examples = [[random(shape, kind, s)] for s in range(3)]
    check(linalg.lu, jax.lax.linalg.lu, x, examples=examples, tolerance=1e-8)
    _, _, order = linalg.lu(to_array(x))
    assert sorted(to_numpy(order).reshape(-1, shape[-2])[0]) == list(range(shape[-2]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3)])
def test_qr(kind, shape):
    f = functools.partial(linalg.qr, full_matrices=False)
    reference = functools.partial(jax.lax.linalg.qr, full_matrices=False)
    x = random(shape, kind)
    check(f, reference, x, batch=False, tolerance=1e-8)
    check_batched(f, x, examples=[[random(shape, kind, s)] for s in range(3)])
    if kind is np.float64:
        check_numeric(f, x)


def test_full_and_wide_qr():
    for shape in ((2, 5, 3), (3, 5)):
        check_value(linalg.qr, jax.lax.linalg.qr, random(shape))
        check_staged(linalg.qr, random(shape))
    product = lambda x: batch_matmul(*linalg.qr(x, full_matrices=False))
    x = random((2, 5, 3))
    check(product, lambda v: v + 0, x, tolerance=1e-9)
    with pytest.raises(errors.NotDifferentiableError, match="qr has no derivative for f64"):
        check_numeric(linalg.qr, x)


@pytest.mark.parametrize("kind", KINDS)
def test_eigh(kind):
    x = positive((2, 4, 4), kind)
    examples = [[positive((2, 4, 4), kind, s)] for s in range(3)]
    check(
        lambda v: linalg.eigh(v)[1],
        lambda v: jax.lax.linalg.eigh(v)[1],
        x,
        examples=examples,
        tolerance=1e-8,
    )

    def rebuilt(v, w, mm):  # V (w V^H): does not depend on the eigenvectors' phases
        return mm(v * w[..., None, :], v.conj().swapaxes(-1, -2))

    def squared(x):
        v, w = linalg.eigh(x)
        spread = linalg._like(linalg._by_column(w, v.aval.shape), v.aval.dtype)
        scaled = linalg.mul(v, linalg.mul(spread, spread))
        return batch_matmul(scaled, linalg._h(v))

    def jax_squared(x):
        v, w = jax.lax.linalg.eigh(x)
        return rebuilt(v, w * w, jax.numpy.matmul)

    check(squared, jax_squared, x, examples=examples, tolerance=1e-8)
    if kind is np.float64:
        check_numeric(linalg.eigh, x)


@pytest.mark.parametrize("kind", KINDS)
def test_eig(kind):
    """Values against LAPACK's, and what does not depend on the order and phase of vectors: powers
    of the matrix, whose derivatives are those of products."""
    x = random((2, 4, 4), kind)
    w, v = (np.asarray(y) for y in linalg.eig(to_array(x)))
    np.testing.assert_allclose(x @ v, v * w[..., None, :], atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(v, axis=-2), 1, atol=1e-12)
    for one, other in zip(x, w):
        found, want = np.sort_complex(other), np.sort_complex(np.linalg.eigvals(one))
        np.testing.assert_allclose(found, want, atol=1e-12)

    def squared(x):
        w, v = linalg.eig(x)
        spread = linalg._by_column(w, v.aval.shape)
        scaled = linalg.mul(v, linalg.mul(spread, spread))
        product = linalg.solve(linalg._t(v), linalg._t(scaled))  # (V W^2 V^-1)^T
        return linalg._t(product)

    def jax_squared(x):
        return jax.lax.convert_element_type(jax.numpy.matmul(x, x), np.complex128)

    examples = [[random((2, 4, 4), kind, s)] for s in range(3)]
    check(squared, jax_squared, x, examples=examples, tolerance=1e-8)
    if kind is np.float64:
        for part in (linalg.real, imag):
            check_numeric(lambda x: part(linalg.eig(x, compute_vectors=False)[0]), x[0])


def test_eigh_reads_one_triangle():
    x = random((3, 3))
    for lower in (False, True):
        sym = np.tril(x) + np.tril(x, -1).T if lower else np.triu(x) + np.triu(x, 1).T
        w = linalg.eigh(to_array(x), lower=lower, symmetrize_input=False)[1]
        assert_same(w, np.linalg.eigvalsh(sym))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 3), (2, 5, 3), (2, 3, 4)])
def test_svd(kind, shape):
    x = random(shape, kind)
    examples = [[random(shape, kind, s)] for s in range(3)]
    values = lambda v: jax.lax.linalg.svd(v, compute_uv=False)
    check(linalg.svdvals, values, x, examples=examples, tolerance=1e-7)

    def polar(x):  # U V^H: does not depend on the phases that U and V share
        u, s, vh = linalg.svd(x, full_matrices=False)
        return add(batch_matmul(u, vh), x)

    def jax_polar(x):
        u, s, vh = jax.lax.linalg.svd(x, full_matrices=False)
        return jax.numpy.matmul(u, vh) + x

    check(polar, jax_polar, x, examples=examples, tolerance=1e-7)
    check_staged(linalg.svd, x)
    if kind is np.float64:
        check_numeric(functools.partial(linalg.svd, full_matrices=False), x)
    check_value(linalg.svd, jax.lax.linalg.svd, x)


def test_full_svd_has_no_derivative():
    with pytest.raises(errors.NotDifferentiableError, match="svd of f64.* full_matrices=True"):
        check_numeric(linalg.svd, random((4, 2)))


def test_single_precision():
    x = positive((3, 3)).astype(np.float32)
    check_value(linalg.cholesky, jax.lax.linalg.cholesky, x)
    check_value(linalg.svdvals, lambda v: jax.lax.linalg.svd(v, compute_uv=False), x)
    check_value(linalg.solve, jax.numpy.linalg.solve, x, random((3, 2), np.float32))


def test_errors():
    with pytest.raises(errors.ShapeError, match=r"cholesky takes square matrices .* f64\[2,3\]"):
        linalg.cholesky(to_array(random((2, 3))))
    with pytest.raises(errors.ShapeError, match=r"lu takes matrices .* got f64\[3\]"):
        linalg.lu(to_array(random((3,))))
    with pytest.raises(errors.DTypeError, match="svd takes float32, float64 or complex"):
        linalg.svd(to_array(random((3, 3), np.float16)))
    with pytest.raises(errors.ShapeError, match=r"solve: f64\[3,3\] does not fit f64\[2,2\]"):
        linalg.solve(to_array(random((3, 3))), to_array(random((2, 2))))
    with pytest.raises(errors.ShapeError, match="triangular_solve: .* on the right does not fit"):
        linalg.triangular_solve(to_array(random((3, 3))), to_array(random((3, 2))))
