"""Samples, vectors, entropy, kernel estimates, operands and errors of `scipy.stats`."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import random
from genesis_fn.core import errors
from genesis_fn.scipy import stats
from tests.scipy.distributions import ALL, CONTINUOUS, DISCRETE, functions, module

RNG = np.random.default_rng(7)
TIES = RNG.integers(0, 5, (9, 4)).astype("float32")


SCIPY: Any = scipy.stats  # its stubs lack what it takes


def same(got: Any, want: Any, rtol: float = 1e-9) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=rtol, atol=1e-12)


def test_modules_are_imported_as_those_of_scipy() -> None:
    import genesis_fn.scipy.stats.norm
    from genesis_fn.scipy.stats import norm

    assert genesis_fn.scipy.stats.norm is norm is stats.norm
    assert float(norm.logpdf(1.0, 0.5, 2.0)) == pytest.approx(scipy.stats.norm.logpdf(1, 0.5, 2))


@pytest.mark.parametrize("name", ALL)
def test_functions_are_those_of_jax(name: str) -> None:
    theirs = vars(importlib.import_module(f"jax.scipy.stats.{name}"))
    assert {*functions(name)} == {n for n, f in theirs.items() if n[0] != "_" and callable(f)}


# ---- operands ----


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["norm", "gamma", "beta", "binom", "poisson", "vonmises"])
def test_narrow_floats_are_rounded_once(name: str, dtype: str) -> None:
    x = jnp.array([0.25, 0.5, 0.75] if name not in DISCRETE else [0.0, 1.0, 3.0], dtype)
    shapes = {"gamma": (1.5,), "beta": (2.0, 3.0), "binom": (5.0, 0.5), "poisson": (1.5,),
              "vonmises": (1.5,)}.get(name, ())  # fmt: skip
    for function in functions(name):
        if function == "entropy":
            continue
        f = getattr(module(name), function)
        got = f(x, *[jnp.asarray(s, dtype) for s in shapes])
        want = f(x.astype("float32"), *shapes).astype(dtype)
        assert str(got.dtype) == dtype
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_dtypes_are_those_that_operands_have_together() -> None:
    logpdf = stats.norm.logpdf
    assert str(logpdf(1, 2, 3).dtype) == str(logpdf(jnp.arange(3)).dtype) == "float32"
    assert str(logpdf(np.float32(1), 0, 1.5).dtype) == "float32"
    assert str(logpdf(jnp.float64(1), jnp.arange(3), 1).dtype) == "float64"
    assert str(logpdf(jnp.ones(2, "bfloat16"), 0, 1).dtype) == "bfloat16"
    assert stats.gamma.pdf(jnp.ones((3, 1)), jnp.ones(4)).shape == (3, 4)


@pytest.mark.parametrize("name", [*CONTINUOUS, "poisson", "multivariate_normal", "dirichlet"])
def test_complex_operands_and_lists_are_refused_by_name(name: str) -> None:
    function = functions(name)[0]
    f = getattr(module(name), function)
    others = {"beta": (1.0, 1.0), "truncnorm": (0.0, 1.0), "multivariate_normal": (0.0, 1.0),
              "dirichlet": (np.ones(2),)}.get(name, (1.0,))  # fmt: skip
    with pytest.raises(TypeError, match=f"{name}.{function} takes real numbers"):
        f(jnp.array([0.5 + 1j, 0.5]), *others)
    with pytest.raises(TypeError, match=f"{name}.{function} takes arrays and numbers"):
        f([0.5, 0.5], *others)


def test_operands_may_be_rounded_at_the_ends_of_the_support() -> None:
    """x is compared with loc + scale, which (x - loc) / scale need not give as 1."""
    loc = jnp.float64(np.linspace(0.1, 0.9, 50))
    scale = jnp.float64(np.linspace(0.3, 1.7, 50))
    same(stats.uniform.pdf(loc + scale, loc, scale), 1 / np.asarray(scale))
    assert jnp.isfinite(stats.beta.logpdf(loc + scale, 2.0, 1.0, loc, scale)).all()
    same(stats.pareto.cdf(loc + scale, 2.0, loc, scale), np.zeros(50))


def test_tails_do_not_underflow_in_float32() -> None:
    """Where JAX has the logarithm of 0."""
    far = np.float32(200.0)
    same(stats.norm.logsf(far), scipy.stats.norm.logsf(200.0), 1e-5)
    same(stats.gumbel_r.logsf(far), -200.0, 1e-6)
    same(stats.gumbel_l.logcdf(-far), -200.0, 1e-6)
    same(stats.truncnorm.logpdf(np.float32(31.0), 30.0, 32.0),
         scipy.stats.truncnorm.logpdf(31.0, 30.0, 32.0), 1e-4)  # fmt: skip
    same(stats.t.logpdf(np.float32(1.0), 1e6), scipy.stats.t.logpdf(1.0, 1e6), 1e-5)
    n, k = 20000, 10000
    same(stats.binom.logpmf(k, n, 0.5), scipy.stats.binom.logpmf(k, n, 0.5), 1e-3)


# ---- vectors ----


@pytest.mark.parametrize("rows", [4, 3])
def test_dirichlet_as_in_scipy(rows: int) -> None:
    alpha = np.array([0.5, 1.0, 2.5, 4.0])
    x = RNG.dirichlet(alpha, 6).T[:rows]
    for name in ("logpdf", "pdf"):
        want = getattr(scipy.stats.dirichlet, name)(x, alpha)
        same(getattr(stats.dirichlet, name)(jnp.float64(x), jnp.float64(alpha)), want)
    off = jnp.float64(np.array([[0.5, 0.6, -0.1, 0.3], [0.6, 0.4, 1.1, np.nan], [0.5, 0, 0, 0.4]]))
    got = np.asarray(stats.dirichlet.logpdf(off, jnp.ones(3, "float64")))
    same(got, [-np.inf, np.log(2.0), -np.inf, np.nan])
    assert np.isnan(float(stats.dirichlet.pdf(x[:, 0], -alpha)))


def test_points_of_many_entries_are_on_the_simplex_in_float32() -> None:
    alpha = jnp.ones(4000)
    drawn = random.dirichlet(random.key(0), alpha, (20,)).T
    assert jnp.isfinite(stats.dirichlet.logpdf(drawn, alpha)).all()
    assert jnp.isneginf(stats.dirichlet.logpdf(1.1 * drawn, alpha)).all()


def test_dirichlet_names_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="alpha has one dimension"):
        stats.dirichlet.pdf(jnp.ones(2), jnp.ones((2, 2)))
    with pytest.raises(ValueError, match="as many entries as alpha or one fewer"):
        stats.dirichlet.logpdf(jnp.ones(2), jnp.ones(4))


def test_multinomial_as_in_scipy() -> None:
    p = np.array([0.2, 0.3, 0.5])
    x = np.array([[1, 2, 3], [6, 0, 0], [1, 1, 1], [-1, 4, 3], [0, 0, 6]])
    for name in ("logpmf", "pmf"):
        want = getattr(scipy.stats.multinomial, name)(x, 6, p)
        same(getattr(stats.multinomial, name)(x, 6, jnp.float64(p)), want)
    slopes = gf.grad(lambda p: jnp.sum(stats.multinomial.pmf(x, 6, p)))(jnp.float64(p))
    with jax.enable_x64(True):
        one = lambda p: sum(jax.scipy.stats.multinomial.pmf(row, 6, p) for row in x)
        same(slopes, jax.grad(one)(jax.numpy.asarray(p)))
    assert str(stats.multinomial.pmf(x[0], 6, jnp.bfloat16(p)).dtype) == "bfloat16"
    many = stats.multinomial.logpmf(np.array([300, 301]), 601, jnp.array([0.5, 0.5], "bfloat16"))
    assert jnp.isfinite(many)
    with pytest.raises(TypeError, match="takes integers for x"):
        stats.multinomial.pmf(jnp.ones(3), 3, p)
    assert np.isnan(float(stats.multinomial.pmf(x[0], 6, np.array([-0.2, 0.7, 0.5]))))


MEAN, COV = (
    np.array([0.5, -1.0, 2.0]),
    np.array([[2.0, 0.3, 0.1], [0.3, 1.0, -0.2], [0.1, -0.2, 3]]),
)


@pytest.mark.parametrize("name", ["logpdf", "pdf"])
def test_multivariate_normal_as_in_scipy_and_jax(name: str) -> None:
    f, theirs = getattr(stats.multivariate_normal, name), scipy.stats.multivariate_normal
    x = RNG.normal(size=(4, 5, 3))
    same(f(*map(jnp.float64, (x, MEAN, COV))), getattr(theirs, name)(x, MEAN, COV))
    same(f(*map(jnp.float64, (x, MEAN, 1.7))), getattr(theirs, name)(x, MEAN, 1.7))
    same(f(*map(jnp.float64, (x, 0.3, 1.7))), getattr(scipy.stats.norm, name)(x, 0.3, 1.7**0.5))
    several = np.stack([COV, 2 * COV, 3 * COV, COV])[:, None]
    operands = (x, x[:, :1] + 1.0, several)
    which = (0, 1, 2)
    slopes = gf.grad(lambda *v: jnp.sum(f(*v)), which)(*map(jnp.float64, operands))
    with jax.enable_x64(True):
        g = getattr(jax.scipy.stats.multivariate_normal, name)
        there = list(map(jax.numpy.asarray, operands))
        same(f(*map(jnp.float64, operands)), g(*there))
        for mine, want in zip(slopes, jax.grad(lambda *v: g(*v).sum(), which)(*there)):
            same(mine, want, 1e-7)


def test_multivariate_normal_names_what_does_not_fit() -> None:
    f = stats.multivariate_normal.logpdf
    with pytest.raises(ValueError, match=r"cov is a number or \[..., n, n\]"):
        f(jnp.ones(3), jnp.ones(3), jnp.eye(2))
    with pytest.raises(ValueError, match="takes no allow_singular"):
        f(jnp.ones(3), jnp.ones(3), jnp.eye(3), allow_singular=True)  # pyright: ignore
    assert np.isnan(float(f(jnp.ones(2), jnp.zeros(2), -jnp.eye(2))))


# ---- entropy ----


def test_entropy_of_poisson_distributions() -> None:
    mu = np.array([1e-6, 0.3, 2.0, 9.9, 10.1, 60.0, 99.9, 100.1, 400.0])
    k = np.arange(1500)[:, None]
    logs = scipy.stats.poisson.logpmf(k, mu)
    want = -np.sum(np.exp(logs) * logs, axis=0)
    same(stats.poisson.entropy(jnp.float64(mu)), want, 1e-9)
    slope = gf.grad(lambda m: jnp.sum(stats.poisson.entropy(m)))(jnp.float64(mu))
    steps = [stats.poisson.entropy(jnp.float64(mu * (1 + s))) for s in (1e-6, -1e-6)]
    same(slope[1:], ((steps[0] - steps[1]) / (2e-6 * mu))[1:], 1e-4)
    assert stats.poisson.entropy(jnp.ones(3), jnp.zeros((2, 1))).shape == (2, 3)
    np.testing.assert_array_equal(stats.poisson.entropy(jnp.array([0.0, -1.0])), [0.0, np.nan])


# ---- samples ----


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_mode_and_sem_as_in_scipy(axis: int | None, keepdims: bool) -> None:
    for x in (TIES, TIES.astype("int32")):
        got, want = (stats.mode(x, axis, keepdims=keepdims), SCIPY.mode(x, axis, keepdims=keepdims))
        same(got.mode, want.mode)
        same(got.count, want.count)
        assert got.mode.dtype == x.dtype and got.count.dtype == np.int32
    same(stats.sem(jnp.float64(TIES), axis, keepdims=keepdims),
         SCIPY.sem(TIES.astype("float64"), axis, keepdims=keepdims))  # fmt: skip
    missing = np.where(TIES == 2, np.nan, TIES).astype("float64")
    same(stats.sem(jnp.float64(missing), axis, 0, "omit"),
         SCIPY.sem(missing, axis, 0, nan_policy="omit"))  # fmt: skip


def test_mode_of_nan_and_of_nothing_as_in_jax() -> None:
    nan = np.nan
    samples = [nan, 1, nan, 1, nan], [1, 1, nan, nan], np.zeros((0, 3)), 3.0
    for x in (np.asarray(s, "float32") for s in samples):
        got, want = stats.mode(x), jax.scipy.stats.mode(x)
        np.testing.assert_array_equal(got.mode, want.mode)
        np.testing.assert_array_equal(got.count, want.count)
        assert str(got.count.dtype) == str(want.count.dtype)


@pytest.mark.parametrize("method", ["average", "min", "max", "dense", "ordinal"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_ranks_as_in_scipy(method: str, axis: int | None) -> None:
    x = TIES.copy()
    for y in (x, x.astype("int32"), x[:1], x[:0]):
        got, want = stats.rankdata(y, method, axis=axis), scipy.stats.rankdata(y, method, axis=axis)
        assert got.shape == (want.shape if axis is not None else (y.size,))
        same(got, want)
        assert got.dtype == np.float32
    x[2, 1] = np.nan
    same(gf.jit(lambda v: stats.rankdata(v, method, axis=axis))(x),
         scipy.stats.rankdata(x, method, axis=axis))  # fmt: skip


def test_options_that_are_not_there_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="mode: nan_policy is 'propagate', got 'omit'"):
        stats.mode(TIES, nan_policy="omit")
    with pytest.raises(ValueError, match="rankdata: nan_policy"):
        stats.rankdata(TIES, nan_policy="raise")
    with pytest.raises(ValueError, match="sem: nan_policy is 'propagate' or 'omit'"):
        stats.sem(TIES, nan_policy="raise")
    with pytest.raises(ValueError, match="rankdata: method"):
        stats.rankdata(TIES, "median")


# ---- kernel estimates ----

POINTS = RNG.normal(size=(2, 40)) * np.array([[1.0], [3.0]])
WEIGHTS = RNG.uniform(0.1, 1.0, 40)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("bw_method", [None, "silverman", 0.4, lambda kde: kde.neff**-0.2])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
def test_kernel_estimates_as_in_scipy(d: int, bw_method: Any, weights: Any) -> None:
    data, x = POINTS[:d], RNG.normal(size=(d, 7))
    wide = lambda v: None if v is None else jnp.float64(v)
    mine = stats.gaussian_kde(jnp.float64(data), bw_method, wide(weights))
    theirs = scipy.stats.gaussian_kde(data, bw_method, weights)
    assert (mine.d, mine.n) == (theirs.d, theirs.n)
    for name in ("neff", "covariance", "inv_cov", "weights", "dataset"):
        same(getattr(mine, name), getattr(theirs, name))
    same(mine(jnp.float64(x)), theirs(x))
    same(gf.jit(lambda k, v: k.logpdf(v))(mine, jnp.float64(x)), theirs.logpdf(x))
    same(mine.pdf(jnp.float64(x[:, 0])), theirs.pdf(x[:, 0]))
    mean, cov = np.zeros(d) + 0.3, np.eye(d) * 0.7
    same(mine.integrate_gaussian(jnp.float64(mean), jnp.float64(cov)),
         theirs.integrate_gaussian(mean, cov))  # fmt: skip
    same(mine.integrate_kde(stats.gaussian_kde(jnp.float64(data[:, :9]))),
         theirs.integrate_kde(scipy.stats.gaussian_kde(data[:, :9])))  # fmt: skip
    if d == 1:
        for ends in ((-0.5, 1.5), (6.0, np.inf)):
            same(mine.integrate_box_1d(*ends), theirs.integrate_box_1d(*ends), 1e-6)


def test_samples_of_a_kernel_estimate() -> None:
    kde = stats.gaussian_kde(np.float32(POINTS), weights=np.float32(WEIGHTS))
    drawn = np.asarray(kde.resample(random.key(3), (3000,)))
    assert drawn.shape == (2, 3000) and kde.resample(random.key(1)).shape == (2,)
    assert kde.resample(random.key(1), (4, 5)).shape == (2, 4, 5)
    mean = POINTS @ (WEIGHTS / WEIGHTS.sum())
    np.testing.assert_allclose(drawn.mean(1), mean, atol=0.3)
    whole = np.cov(POINTS, aweights=WEIGHTS, ddof=0) + np.asarray(kde.covariance)
    np.testing.assert_allclose(np.cov(drawn), whole, atol=0.15 * whole.max())


def test_a_density_that_underflows_has_a_logarithm() -> None:
    kde = stats.gaussian_kde(np.array([0.0, 1.0, 2.0], "float32"))
    assert float(kde.logpdf(np.float32(100.0))[0]) < -1000
    slope = gf.grad(lambda x: kde.logpdf(x)[0])(np.float32(100.0))
    assert np.isfinite(float(slope)) and float(slope) < 0


def test_what_no_kernel_estimate_is_made_of() -> None:
    make = stats.gaussian_kde
    with pytest.raises(TypeError, match="takes real points"):
        make(jnp.ones(3) * 1j)
    with pytest.raises(ValueError, match="of two values or more"):
        make(jnp.ones(1))
    with pytest.raises(ValueError, match="weights are"):
        make(jnp.arange(3.0), weights=jnp.ones(4))
    with pytest.raises(ValueError, match="bw_method is"):
        make(jnp.arange(3.0), "scot")
    plane, line = make(np.float32(POINTS)), make(jnp.arange(3.0))
    with pytest.raises(ValueError, match="points are"):
        plane(jnp.ones((3, 2)))
    with pytest.raises(ValueError, match="2 dimensions and of 1"):
        plane.integrate_kde(line)
    with pytest.raises(ValueError, match="mean is"):
        plane.integrate_gaussian(jnp.ones(3), jnp.eye(3))
    with pytest.raises(ValueError, match="between two numbers"):
        plane.integrate_box_1d(0.0, 1.0)
    for refused in (lambda: line.set_bandwidth(0.2), lambda: line.integrate_box(0.0, 1.0)):
        with pytest.raises(errors.ArgumentError, match="gaussian_kde"):
            refused()
