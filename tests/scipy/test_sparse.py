"""Iterative solvers: solutions, derivatives, pytrees, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.scipy.sparse.linalg import bicgstab, cg, gmres

METHODS = {
    "cg": (cg, {}),
    "bicgstab": (bicgstab, {}),
    "gmres": (gmres, {"restart": 3}),
    "incremental": (gmres, {"solve_method": "incremental"}),
}


def system(name: str, dtype: str, n: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    draw = lambda *shape: (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(
        dtype
    ) if dtype == "complex128" else rng.normal(size=shape)  # fmt: skip
    a, b = draw(n, n), draw(n)
    return (a @ a.conj().T + n * np.eye(n) if name == "cg" else a + 6 * np.eye(n)), b


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", METHODS)
def test_solutions(name: str, dtype: str) -> None:
    f, options = METHODS[name]
    a, b = system(name, dtype)
    A, B = jnp.asarray(a, dtype), jnp.asarray(b, dtype)
    M = jnp.asarray(np.diag(1 / np.diag(a)), dtype)
    for more in ({}, {"M": M}, {"x0": 0.1 * B}):
        x, _ = f(A, B, tol=1e-12, **options, **more)
        np.testing.assert_allclose(a @ np.asarray(x), b, atol=1e-8)


@pytest.mark.parametrize("name", METHODS)
def test_derivatives_are_those_of_a_direct_solution(name: str) -> None:
    f, options = METHODS[name]
    a, b = system(name, "float64", 4)
    A, B = jnp.asarray(a, "float64"), jnp.asarray(b, "float64")
    # Preconditioned by what only suits A, not its transpose.
    M = jnp.asarray(np.linalg.inv(a) + 0.01 * np.eye(4), "float64")

    def iterated(A, B):
        return jnp.sum(jnp.cos(f(A, B, tol=1e-12, M=M, **options)[0]))

    def direct(A, B):
        return jnp.sum(jnp.cos(jnp.linalg.solve(A, B)))

    for found, want in zip(gf.grad(iterated, (0, 1))(A, B), gf.grad(direct, (0, 1))(A, B)):
        np.testing.assert_allclose(found, want, atol=1e-8)
    found = gf.jvp(iterated, (A, B), (A, B))[1]
    np.testing.assert_allclose(found, gf.jvp(direct, (A, B), (A, B))[1], atol=1e-8)


def test_second_derivatives() -> None:
    A = jnp.asarray([[4.0, 1.0], [1.0, 3.0]], "float64")
    total = lambda s: cg(lambda x: s * (A @ x), jnp.ones(2, "float64"), tol=1e-12)[0].sum()
    want = 2 * np.linalg.solve(np.asarray(A), np.ones(2)).sum() / 8
    np.testing.assert_allclose(gf.hessian(total)(jnp.asarray(2.0, "float64")), want, rtol=1e-8)


def test_pytrees_batches_and_traced_options() -> None:
    A = jnp.array([[4.0, 1.0], [1.0, 3.0]])
    b = {"x": jnp.array([1.0, 2.0]), "y": (jnp.ones(3),)}
    action = lambda t: {"x": A @ t["x"], "y": (2 * t["y"][0],)}
    for f in (cg, bicgstab, gmres):
        x, _ = f(action, b, M=lambda t: gf.tree.map(lambda v: v / 2, t))
        np.testing.assert_allclose(A @ x["x"], b["x"], atol=1e-4)
        np.testing.assert_allclose(x["y"][0], np.full(3, 0.5), atol=1e-5)
    many = jnp.array([[1.0, 2.0], [30.0, -1.0], [0.0, 0.0]])
    found = gf.vmap(lambda b: bicgstab(A, b)[0])(many)
    np.testing.assert_allclose(np.asarray(found) @ np.asarray(A), many, atol=1e-3)
    # A tolerance and a bound that are traced are one value to all the rules.
    compiled = gf.jit(gf.grad(lambda A, tol, n: cg(A, b["x"], tol=tol, maxiter=n)[0].sum()))
    eager = gf.grad(lambda A: cg(A, b["x"], tol=1e-6)[0].sum())(A)
    np.testing.assert_allclose(compiled(A, 1e-6, 9), eager, atol=1e-5)


@pytest.mark.parametrize("method", ["batched", "incremental"])
def test_a_krylov_space_that_ends_early(method: str) -> None:
    # b is an eigenvector: the first step has the solution, and no second direction is there.
    x, info = gmres(jnp.diag(jnp.array([2.0, 3.0, 5.0])), jnp.array([0.0, 6.0, 0.0]),
                    solve_method=method)  # fmt: skip
    np.testing.assert_allclose(x, [0, 2, 0], atol=1e-6)
    assert int(info) == 0
    zero, _ = gmres(jnp.eye(3), jnp.zeros(3), solve_method=method)
    np.testing.assert_array_equal(zero, np.zeros(3))


def test_few_steps_give_what_they_found() -> None:
    a, b = system("cg", "float64")
    errors = [
        np.linalg.norm(a @ np.asarray(cg(jnp.asarray(a, "float64"), b, maxiter=n)[0]) - b)
        for n in (1, 3, 6)
    ]
    assert errors[0] > errors[1] > errors[2]


B = jnp.ones(2)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: cg(jnp.ones((2, 3)), B), "square matrix"),
        (lambda: cg("A", B), "matrix or a function, got str"),
        (lambda: cg(lambda x: x[:1], B), r"A returned float32\[1\]"),
        (lambda: bicgstab(lambda x: (x, x), B), "another structure"),
        (lambda: cg(jnp.eye(2), B, M=jnp.eye(3)), "inner dimensions"),
        (lambda: cg(jnp.eye(2), B, x0=jnp.ones(3)), "x0 has"),
        (lambda: cg(jnp.eye(2), B, x0=[B]), "x0 has another structure"),
        (lambda: cg(lambda x: x, [B, B * 1j]), "real and complex"),
        (lambda: gmres(jnp.eye(2), B, solve_method="all"), "solve_method 'all'"),
        (lambda: gmres(jnp.eye(2), B, restart=0), "restart is positive"),
    ],
)
def test_refusals(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
