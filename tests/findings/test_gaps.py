"""Values and slopes at the edges: degrees of freedom that are differentiated, singular matrices,
huge parameters of the gamma, beta and zeta functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as J
import numpy as np
import pytest
import scipy.special as ss
import scipy.stats

import genesis_fn as gf
import genesis_fn.numpy as jnp
import genesis_fn.scipy.special as gs

nan, inf = np.nan, np.inf


def both(f: Callable[[Any, Any], Any], text: str = "") -> None:
    """f(library, its numpy) beside f(jax, jax.numpy)."""
    for g, w in zip(gf.tree.leaves(f(gf, jnp)), jax.tree.leaves(f(jax, J)), strict=True):
        g, w = np.asarray(g), np.asarray(w)
        assert (g.dtype, g.shape) == (w.dtype, w.shape), text
        np.testing.assert_allclose(g, w, rtol=1e-5, equal_nan=True, err_msg=text)


@pytest.mark.parametrize("name", ["var", "std", "nanvar", "nanstd"])
def test_a15_degrees_of_freedom_as_a_traced_value(name: str) -> None:
    x = np.array([[1.0, 2.0, 4.0], [3.0, 7.0, 5.0]], np.float32)
    some = np.array([0.0, 1.0, 2.5, 6.0, 7.0], np.float32)
    # By the degrees and by the elements at once, for all degrees at once.
    f = lambda N, v, d, axis: getattr(N, name)(v, axis=axis, ddof=d).sum()
    for axis in (None, 0, 1):
        both(
            lambda F, N: F.jit(
                F.vmap(F.value_and_grad(lambda v, d: f(N, v, d, axis), (0, 1)), (None, 0))
            )(N.asarray(x), N.asarray(some)),
            f"{name} over {axis}",
        )
    both(lambda F, N: F.grad(lambda d: f(N, N.asarray(x), d, None))(1.0))
    if not name.startswith("nan"):
        both(lambda F, N: F.grad(lambda d: getattr(N, name)(N.asarray(x), correction=d))(1.0))


def test_a13_slopes_of_the_logarithm_of_a_determinant_of_one() -> None:
    for value in (0.0, -2.0, 3.0):
        at = np.full((2, 1, 1), value, np.float32)
        for part in (0, 1):
            both(
                lambda F, N: F.grad(lambda v: N.linalg.slogdet(v)[part].sum())(N.asarray(at)),
                f"{value}, {part}",
            )
    both(lambda F, N: F.grad(F.grad(lambda v: N.linalg.slogdet(v[None, None])[1]))(2.0))


BIG = (0.3, 1.5, 10.0, 150.0, 201.0, 1e3, 1e5, 1e6, 1e10, 1e20, 1e300)
RELATIVE = (0.0, 1e-3, 0.5, 0.9, 0.95, 0.999, 1.0, 1.001, 1.05, 1.15, 3.0, 30.0, inf)


@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_a11_incomplete_gamma_of_huge_arguments(name: str) -> None:
    a, r = [v.ravel() for v in np.meshgrid(BIG, RELATIVE)]
    with np.errstate(over="ignore"):
        x = a * r
    want = getattr(ss, name)(a, x)
    f = getattr(gs, name)
    got = np.asarray(f(jnp.asarray(a, "float64"), jnp.asarray(x, "float64")))
    scale = 1e-11 + 3e-16 * np.where(want < 1e-3, a, 0)  # tails: exp of a sum of terms of size a
    seen = want > 1e-290
    assert (np.abs(got - want)[seen] <= (scale * np.abs(want))[seen]).all()
    assert (got[~seen] <= 1e-290).all()
    # Deviations in units of a standard one: a normal distribution (SciPy's tail is off).
    for size in (1e10, 1e20):
        z = np.array([-5.0, -1.0, 0.0, 1.0, 5.0])
        at = jnp.asarray(size + z * np.sqrt(size), "float64")
        sign = 1 if name == "gammainc" else -1
        got = f(jnp.asarray(np.full(5, size), "float64"), at)
        np.testing.assert_allclose(got, ss.ndtr(sign * z), rtol=1e-3)
    # The form for kernels, in float32 too.
    keep = (a < 1e30) & np.isfinite(x)
    half = [v[keep].astype(np.float32) for v in (a, x)]
    wide = getattr(ss, name)(*[v.astype(np.float64) for v in half])
    from_kernel = getattr(gf.lax.special, {"gammainc": "_igamma", "gammaincc": "_igammac"}[name])
    got = np.asarray(from_kernel.reference(*map(jnp.asarray, half)))
    near = np.abs(half[1] / half[0] - 1) < 0.1
    np.testing.assert_allclose(got[near], wide[near], rtol=3e-5, atol=1e-6)


def test_a11_slopes_of_gamma_variates() -> None:
    """By finite differences of the quantile: also where the fraction ends, at integers."""
    a = np.array([1.0, 1.0, 2.0, 3.0, 1.5, 20.0, 150.0, 300.0, 1e3, 300.0, 5e3, 250.0])
    x = np.array([3.0, 30.0, 6.0, 9.5, 0.2, 15.0, 170.0, 295.0, 1010.0, 200.0, 5.2e3, 310.0])
    upper = x > a
    tail = np.where(upper, ss.gammaincc(a, x), ss.gammainc(a, x))
    h = 1e-4 * np.sqrt(a)
    quantile = lambda b: np.where(
        upper, scipy.stats.gamma.isf(tail, b), scipy.stats.gamma.ppf(tail, b)
    )
    want = (quantile(a + h) - quantile(a - h)) / (2 * h)
    for kind, bound in (("float64", 2e-6), ("float32", 3e-4)):
        got = gf.lax.random_gamma_grad(jnp.asarray(a, kind), jnp.asarray(x, kind))
        np.testing.assert_allclose(got, want, rtol=bound)


def test_a11_slopes_of_betainc_by_its_parameters() -> None:
    cases = (
        (2.5, 1.0, 0.2),
        (2.5, 2.0, 0.2),
        (1.0, 1.0, 0.3),
        (1.0, 4.0, 0.6),
        (4.0, 5.5, 0.4),
        (200.0, 3.0, 0.98),
    )
    a, b, x = np.array(cases).T
    h = 1e-5
    given = [jnp.asarray(v, "float64") for v in (a, b, x)]
    by_a = (ss.betainc(a + h, b, x) - ss.betainc(a - h, b, x)) / (2 * h)
    by_b = (ss.betainc(a, b + h, x) - ss.betainc(a, b - h, x)) / (2 * h)
    got = gf.grad(lambda a, b: gs.betainc(a, b, given[2]).sum(), (0, 1))(*given[:2])
    np.testing.assert_allclose(got[0], by_a, rtol=1e-7)
    np.testing.assert_allclose(got[1], by_b, rtol=1e-7)


def test_a11_a_fraction_that_does_not_converge_is_no_value() -> None:
    far = [jnp.asarray(v, "float64") for v in (1e12, 1e12 + 1e4)]
    assert np.isnan(gf.lax.special.upper_fraction(*far))


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_a11_zeta_of_huge_arguments(kind: str) -> None:
    s = [1.0, 1.5, 2.0, 10.0, 50.0, 200.0, 1e10, 1e30, inf]
    q = [1.0, 1.5, 2.0, 30.0, 1e7, 1e9, 1e20, 1e30, inf]
    s, q = [v.ravel().astype(kind) for v in np.meshgrid(s, q)]
    want = ss.zeta(s.astype(np.float64), q.astype(np.float64))
    want = np.where(np.isnan(want), 0.0, want)  # of huge s SciPy's is NaN: q^-s is 0
    tiny = np.finfo(kind).tiny
    forms = (gs.zeta, gf.jit(gs.zeta), gf.lax.special._zeta.reference)
    for f, bound in zip(forms, (1e-13, 1e-13, 1e-11)):
        got = np.asarray(f(jnp.asarray(s, kind), jnp.asarray(q, kind))).astype(np.float64)
        bound = max(bound, 3e-5 if kind == "float32" else 0)
        close = np.isclose(got, want, bound, 0) | (np.abs(got) <= tiny) & (want <= tiny)
        assert close.all(), (s[~close], q[~close], got[~close], want[~close])


def test_a11_bessel_function_of_numpy() -> None:
    x = np.array([-700.0, -60.0, -50.5, -49.5, -3.75, 0.0, 1e-9, 0.5, 3.8, 20.0, 50.0, 90.0, 705.0])
    np.testing.assert_allclose(jnp.i0(jnp.asarray(x, "float64")), ss.i0(x), rtol=1e-13)
    single = x[np.abs(x) < 88].astype(np.float32)
    np.testing.assert_allclose(jnp.i0(single), ss.i0(single.astype(np.float64)), rtol=1e-5)
    assert np.isinf(jnp.i0(inf)) and np.isnan(jnp.i0(nan))
    # I0'' at 0 is 1/2; JAX's 0 is that of |x|.
    assert gf.grad(jnp.i0)(0.0) == 0 and abs(gf.grad(gf.grad(jnp.i0))(0.0) - 0.5) < 1e-6
