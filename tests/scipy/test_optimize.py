"""Minima against JAX's and SciPy's, in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.scipy.optimize import minimize


def rosenbrock(x, xp=jnp):
    return xp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def himmelblau(x, xp=jnp):
    return (x[0] ** 2 + x[1] - 11) ** 2 + (x[0] + x[1] ** 2 - 7) ** 2


def matyas(x, xp=jnp):
    return 0.26 * (x[0] ** 2 + x[1] ** 2) - 0.48 * x[0] * x[1]


CASES = [(rosenbrock, [0.0, 0.0]), (himmelblau, [1.0, 1.0]), (matyas, [5.0, 4.0])]


@pytest.mark.parametrize("method", ["BFGS", "l-bfgs-experimental-do-not-rely-on-this"])
@pytest.mark.parametrize("f, start", CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_as_in_scipy(f, start: list[float], method: str) -> None:
    options = {"gtol": 1e-8} if method == "BFGS" else {"gtol": 1e-8, "ftol": 0.0}
    found = minimize(f, jnp.asarray(start, "float64"), method=method, options=options)
    want = scipy.optimize.minimize(lambda x: f(x, np), start, method="BFGS", tol=1e-8)
    assert bool(found.success) and int(found.status) == 0
    np.testing.assert_allclose(found.x, want.x, atol=1e-5)
    np.testing.assert_allclose(found.fun, f(np.asarray(found.x), np), atol=1e-12)
    np.testing.assert_allclose(found.jac, np.zeros(2), atol=1e-5)
    assert 0 < int(found.nit) <= int(found.nfev) < 60
    assert (found.hess_inv is None) == (method != "BFGS")


def test_the_inverse_hessian_of_a_parabola() -> None:
    scales = jnp.array([2.0, 8.0])
    found = minimize(lambda x: jnp.sum(scales * x**2) / 2, jnp.array([1.0, 1.0]), method="BFGS")
    np.testing.assert_allclose(found.hess_inv, np.diag([0.5, 0.125]), atol=1e-3)


def test_batches_wait_for_the_slowest() -> None:
    starts = jnp.array([[1.0, 2.0], [-3.0, 4.0], [0.0, 0.0]])

    def solve(x, a):
        return minimize(lambda v, a: jnp.sum((v - a) ** 2 + (v - a) ** 4), x, (a,), method="BFGS").x

    found = gf.jit(gf.vmap(solve))(starts, starts[::-1] + 0.5)
    np.testing.assert_allclose(found, starts[::-1] + 0.5, atol=1e-3)


def test_complex_numbers() -> None:
    target = jnp.asarray([1j, 2 + 0.5j], "complex128")
    start = jnp.asarray([1 + 1j, 2 - 1j], "complex128")
    found = minimize(lambda z: jnp.sum(jnp.abs(z - target) ** 2), start, method="L-BFGS")
    np.testing.assert_allclose(found.x, target, atol=1e-6)
    with pytest.raises(gf.errors.DTypeError, match="use L-BFGS"):
        minimize(lambda z: jnp.sum(jnp.abs(z)), start, method="BFGS")


@pytest.mark.parametrize("method, status", [("BFGS", 1), ("L-BFGS", 1)])
def test_the_limit_of_steps(method: str, status: int) -> None:
    found = minimize(rosenbrock, jnp.zeros(2), method=method, options={"maxiter": 2})
    assert not bool(found.success) and int(found.status) == status


def test_a_function_without_a_minimum_ends() -> None:
    found = minimize(lambda x: -jnp.sum(jnp.exp(x)), jnp.ones(2), method="BFGS")
    assert not bool(found.success) and int(found.status) > 0


def test_values_that_are_not_there_are_stepped_back_from() -> None:
    # A logarithm of what is negative is NaN, beyond x = 1, where the first step goes.
    barrier = lambda x: jnp.sum(-40 * x - jnp.log(1 - x))
    found = minimize(barrier, jnp.zeros(1, "float64"), method="BFGS")
    np.testing.assert_allclose(found.x, [1 - 1 / 40], atol=1e-6)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: minimize(jnp.sum, jnp.ones(2), method="Nelder-Mead"), "method 'Nelder-Mead'"),
        (lambda: minimize(jnp.sum, jnp.ones(2), 3.0, method="BFGS"), "args is a tuple"),
        (lambda: minimize(jnp.sum, jnp.ones((2, 2)), method="BFGS"), "x0 is a vector"),
        (lambda: minimize(jnp.sin, jnp.ones(2), method="BFGS"), "fun returns a number"),
        (lambda: minimize(jnp.sum, jnp.ones(2), method="BFGS", options={"maxfun": 2}),
         "no option 'maxfun'"),
    ],
)  # fmt: skip
def test_refusals(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_reverse_mode_is_refused() -> None:
    best = lambda a: minimize(lambda x: jnp.sum((x - a) ** 2), a * 2, method="BFGS").fun
    with pytest.raises(gf.errors.NotDifferentiableError, match="while loop"):
        gf.grad(best)(jnp.ones(2))


def test_functions_much_steeper_than_the_identity() -> None:
    """In float32, where the inverse Hessian is far below the identity that it starts from."""
    for scale in (1e2, 1e4):
        found = minimize(lambda x: scale**2 * jnp.mean((x - 3) ** 2), jnp.ones(2), method="BFGS",
                         options={"gtol": 1e-3 * scale**2})  # fmt: skip
        np.testing.assert_allclose(found.x, 3.0, rtol=1e-2)
        assert found.nit < 20
