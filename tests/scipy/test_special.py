"""Special functions in double precision against SciPy's, over wide ranges and at edges."""

from __future__ import annotations

import doctest
import importlib
import math
from collections.abc import Callable

import jax
import numpy as np
import pytest
import scipy.special as ss

import genesis_fn as gf
import genesis_fn.numpy as jnp
import genesis_fn.scipy.special as gs
from genesis_fn import errors, lax

INF, NAN = math.inf, math.nan


def rng() -> np.random.Generator:
    return np.random.default_rng(17)


def wide(count: int = 300) -> np.ndarray:
    """Numbers of all sizes, of both signs, and edges."""
    r = rng()
    x = np.concatenate([10.0 ** r.uniform(-12, 6, count), r.uniform(0, 10, count),
                        r.uniform(0, 60, count)])  # fmt: skip
    return np.concatenate([x, -x, [0.0, -0.0, INF, -INF, NAN]])


def call(name: str, *xs: np.ndarray) -> np.ndarray:
    return np.asarray(getattr(gs, name)(*[jnp.asarray(x, x.dtype) for x in xs]))


ONE = {"erfcx": 1e-14, "dawsn": 3e-14, "exp1": 3e-14, "expi": 1e-12, "loggamma": 1e-12}


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_number(name: str) -> None:
    x = wide()
    np.testing.assert_allclose(call(name, x), getattr(ss, name)(x), rtol=ONE[name], atol=1e-15)


def test_spence_gammasgn_and_pairs() -> None:
    x = wide()
    finite = x[~np.isposinf(x)]
    np.testing.assert_allclose(call("spence", finite), ss.spence(finite), rtol=1e-13, atol=1e-15)
    small = x[~(np.abs(x) > 1e6)]
    np.testing.assert_array_equal(call("gammasgn", small), ss.gammasgn(small))
    for name, bound in (("fresnel", 1e-10), ("sici", 1e-13)):
        got = getattr(gs, name)(jnp.asarray(x, "float64"))
        for mine, want in zip(got, getattr(ss, name)(x), strict=True):
            np.testing.assert_allclose(mine, want, rtol=1e-10, atol=bound)


def test_wofz_has_the_digits_of_each_part() -> None:
    r = rng()
    z = [r.uniform(-1, 1, 800) * 10.0 ** r.uniform(-3, 3, 800) for _ in range(2)]
    z = z[0] + 1j * z[1]
    got, want = call("wofz", z), ss.wofz(z)
    np.testing.assert_allclose(got.real, want.real, rtol=1e-11)
    np.testing.assert_allclose(got.imag, want.imag, rtol=1e-11)
    ends = np.array([INF, -INF, NAN, 0.0])
    np.testing.assert_allclose(call("wofz", ends), ss.wofz(ends))


def test_loggamma_is_the_principal_branch() -> None:
    r = rng()
    z = r.uniform(-30, 12, 800) + 1j * r.uniform(-9, 9, 800)
    np.testing.assert_allclose(call("loggamma", z), ss.loggamma(z), rtol=1e-12, atol=1e-13)
    cut = np.array([complex(-2.5, 0.0), complex(-2.5, -0.0), complex(-3.0, 0.0)])
    np.testing.assert_allclose(call("loggamma", cut)[:2], ss.loggamma(cut)[:2], rtol=1e-13)
    assert np.isposinf(call("loggamma", cut)[2].real)


def _two() -> dict[str, tuple[np.ndarray, np.ndarray, float]]:
    r = rng()
    h = r.uniform(-12, 12, 600) * 10.0 ** r.uniform(-2, 0.3, 600)
    a = r.normal(size=600) * 10.0 ** r.uniform(-3, 3, 600)
    n = r.integers(0, 60, 600).astype(float)
    x = np.concatenate([10.0 ** r.uniform(-8, 3, 300), r.uniform(0, 5, 300)])
    positive, power = r.uniform(0, 50, 600), r.normal(size=600) * 10.0 ** r.uniform(-6, 1, 600)
    things, taken = r.uniform(0, 80, 600), r.uniform(0, 60, 600)
    z, m = r.uniform(-20, 20, 600), np.concatenate([r.uniform(-8, 8, 500), r.integers(-5, 9, 100)])
    edge = np.concatenate
    return {
        "owens_t": (edge([h, [0, INF, 1, NAN, 1, -2, 0, INF]]),
                    edge([a, [1, 1, INF, 1, -INF, 3, INF, INF]]), 1e-12),
        "expn": (edge([n, [0, 0, 1, 1, 2, 2, -1, 3, 3, 2, 20000]]),
                 edge([x, [0, 1, 0, -1, 0, -1, 1, INF, NAN, INF, 1]]), 4e-13),
        "boxcox": (edge([positive, [0, 0, -1, 1, 2, 0]]), edge([power, [1, -1, 2, 0, 0, 0]]),
                   1e-13),
        "boxcox1p": (edge([positive, [-1, -2, 1]]), edge([power, [1, 1, 0]]), 1e-13),
        "comb": (edge([things, [5, 5, -1, 3, 5.5, 0, 10, -3.5]]),
                 edge([taken, [2, 6, 2, -1, 2, 0, 3.5, 2]]), 1e-12),
        "poch": (edge([z, [-3, -3, -3, 2, -2.5, 0.5, 0, -1]]),
                 edge([m, [2, 4, 0, -3, 2, -1.5, 0, -1]]), 1e-11),
    }  # fmt: skip


@pytest.mark.parametrize("name", _two())
def test_functions_of_two_numbers(name: str) -> None:
    x, y, bound = _two()[name]
    want = getattr(ss, name)(x.astype(int) if name == "expn" else x, y)
    np.testing.assert_allclose(call(name, x, y), want, rtol=bound, atol=1e-300)


def test_combinations_are_whole_and_may_repeat() -> None:
    n, k = np.meshgrid(np.arange(0.0, 45.0), np.arange(0.0, 30.0))
    want = [math.comb(int(i), int(j)) for i, j in zip(n.flat, k.flat)]
    np.testing.assert_array_equal(call("comb", n, k), np.reshape(want, n.shape))
    got = np.asarray(gs.comb(jnp.asarray(n[:, :9], "float64"), k[:, :9], repetition=True))
    np.testing.assert_allclose(got, ss.comb(n[:, :9], k[:, :9], repetition=True), rtol=1e-13)


def test_poch_keeps_the_digits_of_large_numbers() -> None:
    z = jnp.asarray(10.0 ** rng().uniform(2, 9, 50), "float64")
    np.testing.assert_allclose(gs.poch(z, 0.5) * gs.poch(z + 0.5, 0.5), z, rtol=1e-14)
    np.testing.assert_allclose(gs.poch(z, -0.5) * gs.poch(z - 0.5, 0.5), 1.0, rtol=1e-14)


def test_bernoulli_and_multigammaln() -> None:
    np.testing.assert_allclose(gs.bernoulli(40), ss.bernoulli(40), rtol=2e-7)
    for n in range(4):
        np.testing.assert_allclose(gs.bernoulli(n), jax.scipy.special.bernoulli(n), rtol=2e-7)
    with pytest.raises(ValueError, match="counts from 0"):
        gs.bernoulli(-1)
    a = rng().uniform(3, 50, 50)
    got = gs.multigammaln(jnp.asarray(a, "float64"), 5)
    np.testing.assert_allclose(got, ss.multigammaln(a, 5), rtol=1e-14)


@pytest.mark.parametrize("v", [0, 1, 5, 40])
def test_bessel_functions_of_whole_order(v: int) -> None:
    r = rng()
    x = np.concatenate([r.uniform(-120, 120, 200), 10.0 ** r.uniform(-5, 5, 100), [0.0, NAN]])
    want = ss.jv(np.arange(v + 1)[:, None], x)
    got = np.asarray(gs.bessel_jn(jnp.asarray(x, "float64"), v=v))
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
    small = np.abs(x) < 1
    np.testing.assert_allclose(got[:, small], want[:, small], rtol=1e-12, atol=1e-300)
    f = lambda x: jnp.sum(gs.bessel_jn(x, v=v))
    for at in (0.7, 40.0):
        slope = gf.grad(f)(jnp.asarray(at, "float64"))
        np.testing.assert_allclose(slope, ss.jvp(np.arange(v + 1), at).sum(), rtol=1e-11)
        curve = gf.jit(gf.grad(gf.grad(f)))(jnp.asarray(at, "float64"))
        np.testing.assert_allclose(curve, ss.jvp(np.arange(v + 1), at, 2).sum(), rtol=1e-10)


def test_spherical_harmonics() -> None:
    r = rng()
    n = r.integers(0, 40, 300)
    m = np.array([r.integers(-k - 1, k + 2) for k in n])
    theta, phi = r.uniform(0, np.pi, 300), r.uniform(0, 6.28, 300)
    got = gs.sph_harm_y(n, m, jnp.asarray(theta, "float64"), jnp.asarray(phi, "float64"))
    np.testing.assert_allclose(got, ss.sph_harm_y(n, m, theta, phi), atol=1e-13)
    f = lambda special, cos: (
        lambda t: (special(3, 1, t, 0.3) if cos else special(3, 1, 0.3, t)).real
    )
    mine = gf.grad(lambda t: jnp.real(gs.sph_harm_y(3, 1, t, 0.3)))(0.5)
    step = 1e-5
    want = f(ss.sph_harm_y, True)
    np.testing.assert_allclose(mine, (want(0.5 + step) - want(0.5 - step)) / (2 * step), rtol=1e-5)
    assert np.isfinite(gf.grad(lambda t: jnp.real(gs.sph_harm_y(2, 2, t, 0.3)))(0.0))
    with pytest.raises(errors.ConcretizationTypeError, match="n_max"):
        gf.jit(gs.sph_harm_y)(jnp.array([2]), jnp.array([1]), 0.1, 0.2)
    with pytest.raises(ValueError, match="diff_n"):
        gs.sph_harm_y(1, 0, 0.1, 0.2, diff_n=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(errors.DTypeError, match="integers for m"):
        gs.sph_harm_y(1, 0.5, 0.1, 0.2)


def test_kummers_function() -> None:
    r = rng()
    a, b = r.uniform(-4, 8, 500), r.uniform(0.1, 8, 500)
    x = np.concatenate([r.uniform(-30, 30, 200), r.uniform(-3, 3, 200), r.uniform(-600, 600, 100)])
    np.testing.assert_allclose(call("hyp1f1", a, b, x), ss.hyp1f1(a, b, x), rtol=1e-11)
    edges = [[1, -2, 1, 1, -2, -3, 0.5], [-1, -3, 0, 2, -1, -3, 0.5], [1, 1, 1, INF, 1, -2, -1e3]]
    edges = [np.array(e, float) for e in edges]
    np.testing.assert_allclose(call("hyp1f1", *edges), ss.hyp1f1(*edges), atol=1e-300)


def test_gauss_function() -> None:
    r = rng()
    a, b, c = r.uniform(-3, 5, 900), r.uniform(-3, 5, 900), r.uniform(0.2, 8, 900)
    x = np.concatenate([r.uniform(-1, 1, 300), 1 - 10.0 ** r.uniform(-9, -1, 300),
                        -(10.0 ** r.uniform(-2, 3, 300))])  # fmt: skip
    got, want = call("hyp2f1", a, b, c, x), ss.hyp2f1(a, b, c, x)
    np.testing.assert_allclose(got, want, rtol=1e-10)
    # Where c - a - b is whole, logarithms join the powers of 1 - x.
    a, b = r.integers(1, 4, 200) * 1.0, r.integers(1, 4, 200) * 0.5
    c, x = np.maximum(a + b + r.integers(-1, 3, 200), 0.5), 1 - 10.0 ** r.uniform(-6, -1, 200)
    np.testing.assert_allclose(call("hyp2f1", a, b, c, x), ss.hyp2f1(a, b, c, x), rtol=1e-12)
    edges = [[1, 1, 1, -2, 1, 1, 2, -2, 0.5], [1, 1, 1, 1, 2, 2, 3, 0.5, 0.5],
             [2, 2, -1, 3, 3, 5, 2, -3, 1], [1, 2, 0.5, 3, -5, 1, 1, 0.5, 1]]  # fmt: skip
    edges = [np.array(e, float) for e in edges]
    np.testing.assert_allclose(call("hyp2f1", *edges), ss.hyp2f1(*edges))


POINTS = [
    ("erfcx", 1.3), ("erfcx", 12.0), ("erfcx", -1.0), ("dawsn", 0.7), ("dawsn", -20.0),
    ("exp1", 1.3), ("expi", -1.3), ("expi", 3.0), ("spence", 0.3), ("spence", 1.5),
    ("spence", 5.0), ("owens_t", 1.2, 2.0), ("owens_t", -0.4, 0.3), ("poch", 2.3, 1.5),
    ("poch", -2.3, 2.0), ("comb", 7.3, 2.5), ("boxcox", 2.0, 0.0), ("boxcox", 2.0, 0.7),
    ("boxcox", 3.0, -2.0), ("boxcox1p", 0.2, 0.3), ("hyp1f1", 1.2, 2.3, 1.5),
    ("hyp1f1", 1.2, 2.3, -3.5), ("hyp1f1", -2.0, 2.3, 0.5), ("hyp1f1", 1.2, 2.3, 100.0),
    ("hyp2f1", 1.2, 0.7, 2.5, 0.4), ("hyp2f1", 1.2, 0.7, 2.5, 0.93), ("loggamma", 3.2),
    ("hyp2f1", 1.2, 0.7, 2.5, -3.0), ("hyp2f1", -2.0, 0.7, 2.5, 0.3),
]  # fmt: skip


def central(f: Callable[..., float], xs: tuple[float, ...], i: int, step: float) -> float:
    move = lambda d: f(*[x + d if k == i else x for k, x in enumerate(xs)])
    return (move(step) - move(-step)) / (2 * step)


@pytest.mark.parametrize("name, xs", [(name, xs) for name, *xs in POINTS])
def test_derivatives(name: str, xs: list[float]) -> None:
    f, peer = getattr(gs, name), getattr(ss, name)
    wanted = [central(peer, tuple(xs), i, 1e-5) for i in range(len(xs))]
    given = [jnp.asarray(x, "float64") for x in xs]
    numbers = tuple(range(len(xs)))
    for slopes in (gf.grad(f, argnums=numbers), gf.jit(gf.grad(f, argnums=numbers))):
        np.testing.assert_allclose(slopes(*given), wanted, rtol=1e-6, atol=1e-7)
    # Twice in reverse by the last argument: the parameters' loops are not differentiated.
    last = lambda x: f(*given[:-1], x)
    slope = lambda *ys: float(
        gf.grad(f, argnums=len(xs) - 1)(*[jnp.asarray(y, "float64") for y in ys])
    )
    curve = central(slope, tuple(xs), len(xs) - 1, 1e-4)
    np.testing.assert_allclose(gf.grad(gf.grad(last))(given[-1]), curve, rtol=1e-5, atol=1e-6)


def test_derivatives_of_the_rest() -> None:
    x = jnp.asarray(0.7, "float64")
    np.testing.assert_allclose(gf.grad(lambda x: gs.expn(3, x))(x), -ss.expn(2, 0.7), rtol=1e-13)
    curve = gf.jit(gf.grad(gf.grad(lambda x: gs.expn(3, x))))
    np.testing.assert_allclose(curve(x), ss.expn(1, 0.7), rtol=1e-13)
    z = jnp.asarray(0.4 + 9j, "complex128")
    _, slope = gf.jvp(gs.wofz, (z,), (jnp.ones_like(z),))
    want = -2 * (0.4 + 9j) * ss.wofz(0.4 + 9j) + 2j / math.sqrt(math.pi)
    np.testing.assert_allclose(slope, want, rtol=1e-11)
    for i, want in enumerate((np.sin(np.pi / 2 * 4.84), np.cos(np.pi / 2 * 4.84))):
        got = gf.grad(lambda x: gs.fresnel(x)[i])(jnp.asarray(2.2, "float64"))
        np.testing.assert_allclose(got, want, rtol=1e-13)
    for i, want in enumerate((np.sin(2.2) / 2.2, np.cos(2.2) / 2.2)):
        got = gf.grad(lambda x: gs.sici(x)[i])(jnp.asarray(2.2, "float64"))
        np.testing.assert_allclose(got, want, rtol=1e-13)
    a, x = jnp.asarray([0.5, 3.0, 250.0], "float64"), jnp.asarray([0.4, 5.0, 255.0], "float64")
    slope = (ss.gammainc(a + 1e-5, x) - ss.gammainc(np.asarray(a) - 1e-5, x)) / 2e-5
    np.testing.assert_allclose(lax.igamma_grad_a(a, x), slope, rtol=1e-6)


def test_operands_that_are_refused() -> None:
    z = jnp.asarray(1 + 1j)
    for f in (gs.dawsn, gs.exp1, gs.expi, gs.spence, gs.gammasgn, gs.fresnel, gs.sici):
        with pytest.raises(errors.DTypeError, match="real numbers"):
            f(z)
    for f in (gs.poch, gs.comb, gs.owens_t, gs.boxcox, gs.expn):
        with pytest.raises(errors.DTypeError, match="real numbers"):
            f(z, 1.0)
    assert np.isnan(gs.expn(1.5, 1.0))


@pytest.mark.parametrize("name", ["erfcx", "dawsn", "expi", "spence", "exp1"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32"])
def test_narrow_floats_and_integers(name: str, dtype: str) -> None:
    x = jnp.asarray([1.0, 2.0, 3.0], dtype)
    y = getattr(gs, name)(x)
    assert str(y.dtype) == ("float32" if dtype == "int32" else dtype)
    bound = {"float16": 1e-3, "bfloat16": 8e-3, "int32": 3e-6}[dtype]
    want = getattr(ss, name)(np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(np.asarray(y, np.float64), want, rtol=bound)


@pytest.mark.parametrize("module", ["error_functions", "exponential_integrals", "gamma_functions",
                                    "combinatorics", "normal", "logarithms", "bessel", "harmonics",
                                    "hypergeometric"])  # fmt: skip
def test_examples(module: str) -> None:
    found = importlib.import_module(f"genesis_fn.scipy.special.{module}")
    outcome = doctest.testmod(found, extraglobs={"jnp": jnp})
    assert outcome.failed == 0 and outcome.attempted


def test_faddeeva_function_everywhere_in_float32() -> None:
    """Every height and place between the regions that have a formula of their own."""
    x = np.linspace(-9, 30, 4001, dtype=np.float32)
    want = ss.erfcx(x.astype(np.float64))
    np.testing.assert_allclose(gs.erfcx(jnp.asarray(x)), want, rtol=2e-5)
    z = (x[::20, None] + 1j * np.linspace(-8, 12, 301, dtype=np.float32)).astype(np.complex64)
    want = ss.wofz(z.astype(np.complex128))
    fits = np.isfinite(want) & (abs(want) < 1e36)
    np.testing.assert_allclose(np.asarray(gs.wofz(jnp.asarray(z)))[fits], want[fits], rtol=1e-4)
    np.testing.assert_allclose(gs.erfcx(jnp.asarray(z[::9].T)), ss.erfcx(z[::9].T), rtol=1e-4)


def test_gamma_of_complex_poles() -> None:
    z = np.array([0, -1, -2, -5, 0.5, -0.5, 2 - 1j], np.complex64)
    np.testing.assert_allclose(gs.gamma(jnp.asarray(z)), ss.gamma(z), rtol=1e-5)


def test_harmonics_at_angles_outside_of_the_sphere() -> None:
    theta = np.linspace(-4.0, 5.0, 13)
    for n, m in ((1, 1), (3, -1), (4, 2), (5, -5)):
        want = ss.sph_harm_y(n, m, theta, 0.3)
        got = gs.sph_harm_y(jnp.asarray(n), jnp.asarray(m), jnp.asarray(theta, "float64"), 0.3)
        np.testing.assert_allclose(got, want, atol=1e-6)
