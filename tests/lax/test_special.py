"""Special functions against SciPy and JAX: values, derivatives, and both of their forms."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.special as scipy_special

import genesis_fn.lax as lax
import genesis_fn.scipy.special as special
from genesis_fn.core import errors
from genesis_fn.core.array import from_numpy as ours
from genesis_fn.lax import special as forms
from genesis_fn.transforms.autodiff.derivatives import grad, jvp
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.jitting import jit

RNG = np.random.default_rng(0)
A, B, X = [RNG.gamma(0.5, 20, 200) + 1e-3 for _ in range(3)]
U, Z = RNG.uniform(0, 1, 200), RNG.normal(size=200) * 30
S, Q = 1.05 + RNG.gamma(1, 4, 200), RNG.gamma(1, 5, 200) + 0.05
SIGNED = np.concatenate([Z, [0.0, 1e-8, -1e-8, 49.9, 50.1, 700.0]])

# name, form over primitives, SciPy's function, operands
CASES = [
    ("igamma", forms._igamma, scipy_special.gammainc, (A, X)),
    ("igammac", forms._igammac, scipy_special.gammaincc, (A, X)),
    ("betainc", forms._betainc, scipy_special.betainc, (A, B, U)),
    ("bessel_i0e", forms._i0e, scipy_special.i0e, (SIGNED,)),
    ("bessel_i1e", forms._i1e, scipy_special.i1e, (SIGNED,)),
    ("zeta", forms._zeta, scipy_special.zeta, (S, Q)),
]
BOUND = {"float32": 3e-4, "float64": 1e-10}


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("name, form, reference, operands", CASES, ids=[c[0] for c in CASES])
def test_values(name, form, reference, operands, dtype):
    xs = [x.astype(dtype) for x in operands]
    want = reference(*[x.astype("float64") for x in xs])
    for f in (getattr(lax, name), jit(getattr(lax, name)), form.reference):
        got = np.asarray(f(*map(ours, xs)))
        assert got.dtype == dtype
        np.testing.assert_allclose(got, want, rtol=BOUND[dtype], atol=BOUND[dtype] / 10)
    halves = [ours(x[:9].astype("float16")) for x in xs]
    assert getattr(lax, name)(*halves).dtype == np.float16


EDGES = np.array([-1.0, -0.0, 0.0, 0.5, 1.0, 2.0, np.inf, np.nan])


@pytest.mark.parametrize("name", ["igamma", "igammac", "betainc"])
def test_edges(name):
    """Where an operand is 0, negative, infinite or NaN, both forms say what SciPy says."""
    count, reference = {
        "igamma": (2, scipy_special.gammainc),
        "igammac": (2, scipy_special.gammaincc),
        "betainc": (3, scipy_special.betainc),
    }[name]
    grid = [g.ravel() for g in np.meshgrid(*[EDGES] * count)]
    keep = np.isfinite(grid[0]) & np.isfinite(grid[1]) if count == 3 else np.isfinite(grid[0])
    keep &= (grid[0] != 0) if count == 2 else (grid[0] > 0) & (grid[1] > 0)
    grid = [g[keep] for g in grid]
    form = {"igamma": forms._igamma, "igammac": forms._igammac, "betainc": forms._betainc}[name]
    for f in (getattr(lax, name), form.reference):
        np.testing.assert_allclose(np.asarray(f(*map(ours, grid))), reference(*grid), atol=1e-12)


@pytest.mark.parametrize("name, operands", [
    ("igamma", (A, X)), ("igammac", (A, X)), ("bessel_i0e", (Z,)), ("bessel_i1e", (SIGNED[:202],)),
])  # fmt: skip
def test_derivatives_against_jax(name, operands):
    f, reference = getattr(lax, name), getattr(jax.lax, name)
    with jax.enable_x64(True):
        for i in range(len(operands)):
            want = jax.grad(lambda *xs: reference(*xs).sum(), i)(*operands)
            got = grad(lambda *xs: f(*xs).sum(), i)(*map(ours, operands))
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name, operands", [
    ("betainc", (A[:40] / 4, B[:40] / 4, U[:40])), ("zeta", (S[:40], Q[:40])),
])  # fmt: skip
def test_derivatives_against_differences(name, operands):
    f = getattr(scipy_special, name)
    for i, x in enumerate(operands):
        h = 1e-6 * np.minimum(x, 1 - x if name == "betainc" and i == 2 else np.inf)
        at = lambda step: f(*[v + step if k == i else v for k, v in enumerate(operands)])
        want = (at(h) - at(-h)) / (2 * h)
        mine = getattr(lax, name)
        got = grad(lambda *xs: mine(*xs).sum(), i)(*map(ours, operands))
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-7)
        ones = [
            ours(np.ones_like(v) if k == i else np.zeros_like(v)) for k, v in enumerate(operands)
        ]
        _, tangent = jvp(mine, tuple(map(ours, operands)), tuple(ones))
        np.testing.assert_allclose(np.asarray(tangent), np.asarray(got), rtol=1e-10)


def test_random_gamma_grad():
    with jax.enable_x64(True):
        want = np.asarray(jax.lax.random_gamma_grad(A, X))
    got = np.asarray(lax.random_gamma_grad(ours(A), ours(X)))
    np.testing.assert_allclose(got, want, rtol=1e-10)
    single = [ours(v.astype("float32")) for v in (A, X)]
    np.testing.assert_allclose(np.asarray(lax.random_gamma_grad(*single)), want, rtol=1e-2)


def test_vmap():
    a, x = A[:12].reshape(3, 4), X[:12].reshape(3, 4)
    got = vmap(vmap(lax.igamma), in_axes=(0, None))(ours(a), ours(x[0]))
    np.testing.assert_allclose(np.asarray(got), scipy_special.gammainc(a, x[0]), rtol=1e-9)
    slopes = vmap(grad(lax.igamma, 1))(ours(A), ours(X))
    with jax.enable_x64(True):
        want = jax.vmap(jax.grad(jax.lax.igamma, 1))(A, X)
    np.testing.assert_allclose(np.asarray(slopes), np.asarray(want), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("name, operands", [
    ("gammainc", (A, X)), ("gammaincc", (2.0, X)), ("betainc", (A, 3, U)), ("zeta", (S,)),
    ("zeta", (S, 2.0)), ("i0", (Z / 3,)), ("i1", (Z / 3,)), ("i0e", (Z,)), ("i1e", (Z,)),
])  # fmt: skip
def test_scipys_names(name, operands):
    got = getattr(special, name)(*[ours(x) if type(x) is np.ndarray else x for x in operands])
    want = getattr(scipy_special, name)(*operands)
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-9, atol=1e-11)


def test_integers_are_refused():
    with pytest.raises(errors.DTypeError, match="igamma takes floats"):
        lax.igamma(ours(np.ones(2, np.int32)), ours(np.ones(2, np.int32)))


def test_softmax_is_over_all_axes_by_default():
    x = np.random.default_rng(5).normal(size=(2, 3)).astype(np.float32)
    for name in ("softmax", "log_softmax", "logsumexp"):
        mine, theirs = getattr(special, name), getattr(jax.scipy.special, name)
        np.testing.assert_allclose(mine(ours(x)), theirs(x), rtol=1e-5)
        np.testing.assert_allclose(mine(ours(x), axis=0), theirs(x, axis=0), rtol=1e-5)


@pytest.mark.parametrize("f", [lax.igamma, lax.igammac])
def test_incomplete_gamma_functions_of_nothing_do_not_depend_on_the_shape(f):
    """At x = 0, where the density of shapes below 1 is infinite, too."""
    slope = grad(lambda a: f(a, 0.0))
    assert [float(slope(a)) for a in (0.4, 1.0, 3.0)] == [0.0, 0.0, 0.0]
    of_both = grad(lambda a, x: f(a, x), argnums=(0, 1))
    assert float(of_both(0.4, 0.0)[0]) == 0.0


def test_densities_at_the_ends_of_exponential_and_uniform_distributions():
    """The derivatives of P(1, x) at 0, and of I_x(1, b) and I_x(a, 1) at 0 and 1: 0^0 is 1."""
    assert float(grad(lambda x: lax.igamma(1.0, x))(0.0)) == 1.0
    assert float(grad(lambda x: lax.igammac(1.0, x))(0.0)) == -1.0
    for b in (1.0, 2.0):
        np.testing.assert_allclose(grad(lambda x, b=b: lax.betainc(1.0, b, x))(0.0), b, rtol=1e-5)
        np.testing.assert_allclose(grad(lambda x, b=b: lax.betainc(b, 1.0, x))(1.0), b, rtol=1e-5)
