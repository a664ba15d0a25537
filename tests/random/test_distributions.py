"""Distributions: against SciPy's distribution functions, JAX's samples, and exact derivatives."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.special as special
import scipy.stats as stats

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import random
from genesis_fn.transforms.autodiff.derivatives import grad, jvp
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.jitting import jit

N = 20_000

CONTINUOUS = {
    "cauchy": (lambda k: random.cauchy(k, (N,)), stats.cauchy()),
    "lognormal": (lambda k: random.lognormal(k, 0.7, (N,)), stats.lognorm(0.7)),
    "pareto": (lambda k: random.pareto(k, 2.5, (N,)), stats.pareto(2.5)),
    "rayleigh": (lambda k: random.rayleigh(k, 3.0, (N,)), stats.rayleigh(scale=3)),
    "weibull": (lambda k: random.weibull_min(k, 2.0, 1.5, (N,)), stats.weibull_min(1.5, scale=2)),
    "triangular": (lambda k: random.triangular(k, -1.0, 0.5, 2.0, (N,)), stats.triang(0.5, -1, 3)),
    "maxwell": (lambda k: random.maxwell(k, (N,)), stats.maxwell()),
    "wald": (lambda k: random.wald(k, 2.0, (N,)), stats.invgauss(2.0)),
    "wald-small": (lambda k: random.wald(k, 0.01, (N,)), stats.invgauss(0.01)),
    "gamma-0.1": (lambda k: random.gamma(k, 0.1, (N,)), stats.gamma(0.1)),
    "gamma-1": (lambda k: random.gamma(k, 1.0, (N,)), stats.gamma(1)),
    "gamma-30": (lambda k: random.gamma(k, 30.0, (N,)), stats.gamma(30)),
    "loggamma": (lambda k: random.loggamma(k, 0.05, (N,)), stats.loggamma(0.05)),
    "chisquare": (lambda k: random.chisquare(k, 5.0, (N,)), stats.chi2(5)),
    "f": (lambda k: random.f(k, 4.0, 9.0, (N,)), stats.f(4, 9)),
    "t": (lambda k: random.t(k, 3.0, (N,)), stats.t(3)),
    "beta": (lambda k: random.beta(k, 0.5, 2.0, (N,)), stats.beta(0.5, 2)),
    "generalized_normal": (lambda k: random.generalized_normal(k, 3.0, (N,)), stats.gennorm(3)),
    "laplace": (lambda k: random.laplace(k, (N,)), stats.laplace()),
    "logistic": (lambda k: random.logistic(k, (N,)), stats.logistic()),
    "exponential": (lambda k: random.exponential(k, (N,)), stats.expon()),
    "gumbel": (lambda k: random.gumbel(k, (N,)), stats.gumbel_r()),
    "truncated": (lambda k: random.truncated_normal(k, -1, 2, (N,)), stats.truncnorm(-1, 2)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_samples_follow_their_distribution(name):
    sample, distribution = CONTINUOUS[name]
    x = np.asarray(sample(random.key(7))).astype(np.float64)
    assert np.isfinite(x).all() and len(np.unique(x)) > N / 2
    assert stats.kstest(x, distribution.cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", ["gamma", "loggamma"])
def test_gamma_variates_of_threefry_are_those_of_jax(name):
    a = np.array([[0.05, 0.7, 1.0], [3.0, 40.0, 1e4]], np.float32)
    draw = lambda m, k: getattr(m, name)(k, a, (5, 2, 3))
    ours = draw(random, random.key(3, impl="threefry2x32"))
    theirs = draw(jax.random, jax.random.key(3, impl="threefry2x32"))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    keys = random.split(random.key(4, impl="threefry2x32"), 3)
    each = [np.asarray(random.gamma(k, 0.5, (2,))) for k in keys]
    np.testing.assert_allclose(vmap(lambda k: random.gamma(k, 0.5, (2,)))(keys), each, rtol=1e-6)
    limits = random.loggamma(
        random.key(5, impl="threefry2x32"), jnp.array([0.0, np.inf, -1.0, np.nan])
    )
    np.testing.assert_array_equal(limits, [-np.inf, np.inf, np.nan, np.nan])
    assert random.gamma(random.key(6, impl="threefry2x32"), 1.0, (0, 2)).shape == (0, 2)


@pytest.mark.parametrize("low, high", [(0, 70_000), (0, 10**6), (-(2**31), 2**31 - 1)])
def test_integers_of_a_wide_range_are_those_of_jax(low, high):
    ours = random.randint(random.key(3, impl="threefry2x32"), (50,), low, high)
    theirs = jax.random.randint(jax.random.key(3, impl="threefry2x32"), (50,), low, high)
    np.testing.assert_array_equal(ours, theirs)


COUNTS = {
    "poisson-0.3": (lambda k: random.poisson(k, 0.3, (N,)), stats.poisson(0.3)),
    "poisson-8": (lambda k: random.poisson(k, 8.0, (N,)), stats.poisson(8)),
    "poisson-40": (lambda k: random.poisson(k, 40.0, (N,)), stats.poisson(40)),
    "geometric": (lambda k: random.geometric(k, 0.2, (N,)), stats.geom(0.2)),
    "binomial-few": (lambda k: random.binomial(k, 9, 0.3, (N,)), stats.binom(9, 0.3)),
    "binomial-many": (lambda k: random.binomial(k, 100, 0.3, (N,)), stats.binom(100, 0.3)),
    "binomial-high": (lambda k: random.binomial(k, 60, 0.8, (N,)), stats.binom(60, 0.8)),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_follow_their_distribution(name):
    sample, distribution = COUNTS[name]
    x = np.asarray(sample(random.key(3))).astype(np.int64)
    low, high = int(distribution.ppf(1e-3)), int(distribution.ppf(1 - 1e-3))
    observed = [np.sum(x <= low), *[np.sum(x == k) for k in range(low + 1, high)]]
    expected = [distribution.cdf(low), *[distribution.pmf(k) for k in range(low + 1, high)]]
    observed, expected = np.append(observed, N - sum(observed)), np.append(expected, 0)
    expected[-1] = 1 - expected.sum()
    kept = expected * N >= 5
    merged = [np.append(v[kept], v[~kept].sum()) for v in (observed, expected * N)]
    keep = merged[1] > 0
    assert stats.chisquare(merged[0][keep], merged[1][keep]).pvalue > 1e-3


def test_counts_at_the_edges():
    key = random.key(0)
    assert np.asarray(random.poisson(key.copy(), jnp.zeros(5))).tolist() == [0] * 5
    counts = random.binomial(
        key.copy(), jnp.array([0.0, 10, 10, 10, -1]), jnp.array([0.5, 0, 1, jnp.nan, 0.5])
    )
    np.testing.assert_array_equal(counts, [0, 0, 10, np.nan, np.nan])
    assert np.asarray(random.geometric(key.copy(), jnp.ones(4))).tolist() == [1] * 4
    assert random.poisson(key.copy(), 1e6).dtype == np.int32


def test_vectors():
    key = random.key(5)
    cov = np.array([[2.0, 0.6, 0.1], [0.6, 1.0, -0.3], [0.1, -0.3, 0.5]], np.float32)
    mean = np.array([1.0, -2.0, 0.5], np.float32)
    for method in ("cholesky", "eigh", "svd"):
        x = np.asarray(random.multivariate_normal(key.copy(), mean, cov, (N,), method=method))
        np.testing.assert_allclose(x.mean(0), mean, atol=0.05)
        np.testing.assert_allclose(np.cov(x.T), cov, atol=0.07)
    alpha = np.array([0.5, 1.0, 4.0], np.float32)
    x = np.asarray(random.dirichlet(key.copy(), alpha, (N,)))
    np.testing.assert_allclose(x.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(x.mean(0), alpha / alpha.sum(), atol=0.01)
    assert stats.kstest(x[:, 0].astype(np.float64), stats.beta(0.5, 5.0).cdf).pvalue > 1e-3
    q = np.asarray(random.orthogonal(key.copy(), 4, (3,)))
    np.testing.assert_allclose(q @ q.swapaxes(-1, -2), np.tile(np.eye(4), (3, 1, 1)), atol=1e-5)
    assert random.orthogonal(key.copy(), 2, m=5).shape == (2, 5)
    x = np.asarray(random.ball(key.copy(), 3, shape=(N,))).astype(np.float64)
    radius = np.sqrt((x**2).sum(-1))
    assert stats.kstest(radius**3, stats.uniform().cdf).pvalue > 1e-3
    counts = np.asarray(
        random.multinomial(
            key.copy(), jnp.full((N,), 12.0), jnp.array([0.2, 0.5, 0.3]), shape=(N, 3)
        )
    )
    assert (counts.sum(-1) == 12).all()
    np.testing.assert_allclose(counts.mean(0), [2.4, 6, 3.6], atol=0.06)
    x = np.asarray(random.double_sided_maxwell(key.copy(), 1.0, 2.0, (N,)))
    assert (
        abs(np.mean(x) - 1) < 0.1 and abs(np.mean(np.abs(x - 1)) - 2 * stats.maxwell.mean()) < 0.1
    )


# ---- the same samples as JAX, where the algorithm is the same ----

SAME = {
    "cauchy": (lambda r, k: r.cauchy(k, (999,)), 2e-5),
    "lognormal": (lambda r, k: r.lognormal(k, 0.5, (999,)), 5e-6),
    "pareto": (lambda r, k: r.pareto(k, 2.0, (999,)), 1e-6),
    "rayleigh": (lambda r, k: r.rayleigh(k, 2.0, (999,)), 1e-6),
    "weibull": (lambda r, k: r.weibull_min(k, 2.0, 1.5, (999,)), 2e-6),
    "triangular": (lambda r, k: r.triangular(k, 0.0, 1.0, 3.0, (999,)), 1e-5),
    "maxwell": (lambda r, k: r.maxwell(k, (999,)), 5e-6),
    "double_sided_maxwell": (lambda r, k: r.double_sided_maxwell(k, 1.0, 2.0, (999,)), 2e-5),
    "geometric": (lambda r, k: r.geometric(k, 0.1, (999,)), 0),
    "poisson": (lambda r, k: r.poisson(k, 3.0, (999,)), 0),
    "poisson-large": (lambda r, k: r.poisson(k, 50.0, (999,)), 0),
    "binomial": (lambda r, k: r.binomial(k, 10.0, 0.3, (999,)), 0),
    "orthogonal": (lambda r, k: r.orthogonal(k, 4, (3,)), 1e-5),
    "multivariate_normal": (
        lambda r, k: r.multivariate_normal(
            k, np.ones(2, np.float32), np.array([[2, 1], [1, 2]], np.float32), (99,)
        ),
        1e-5,
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_threefry_gives_the_samples_of_jax(name):
    sample, tolerance = SAME[name]
    ours = np.asarray(sample(random, random.key(11, impl="threefry2x32")))
    theirs = np.asarray(sample(jax.random, jax.random.key(11, impl="threefry2x32")))
    if tolerance == 0:
        # Logarithms differ in the last bit, which rarely moves a count.
        assert np.mean(ours != theirs) < 0.004
    else:
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape


# ---- derivatives ----


def test_gamma_gradient_is_the_exact_one():
    from genesis_fn.random.gamma_variates import log_gamma_grad

    for a in (0.02, 0.5, 1.0, 4.0, 60.0, 3000.0, 1e5):
        z = stats.gamma.ppf([0.01, 0.3, 0.5, 0.8, 0.999], a)
        z = z[z > 1e-30]
        # dz/da = -(dF/da) / p, dF/da by differences of the regularised integral
        h = 1e-5 * a
        dF = (special.gammainc(a + h, z) - special.gammainc(a - h, z)) / (2 * h)
        expected = -dF / stats.gamma.pdf(z, a)
        got = np.asarray(log_gamma_grad(jnp.full(z.shape, a), jnp.asarray(np.log(z), jnp.float32)))
        np.testing.assert_allclose(got * z, expected, rtol=2e-5)


def test_gamma_moments_through_the_gradient():
    a = 2.5
    key = random.key(9)
    mean = lambda a: jnp.mean(random.gamma(key.copy(), jnp.full((N,), a)))
    assert abs(float(grad(mean)(a)) - 1) < 0.02  # E z = a
    square = lambda a: jnp.mean(random.gamma(key.copy(), jnp.full((N,), a)) ** 2)
    assert abs(float(grad(square)(a)) - (2 * a + 1)) < 0.15  # E z**2 = a (a + 1)
    _, tangent = jvp(mean, (a,), (1.0,))
    np.testing.assert_allclose(tangent, grad(mean)(a), rtol=1e-6)
    second = grad(grad(square))(a)
    assert abs(float(second) - 2) < 0.3
    b = lambda a: jnp.mean(random.beta(key.copy(), jnp.full((N,), a), 2.0))
    assert abs(float(grad(b)(a)) - 2 / (a + 2) ** 2) < 0.01
    np.testing.assert_allclose(jit(grad(mean))(a), grad(mean)(a), rtol=1e-6)


def test_samplers_under_jit_and_vmap():
    keys = random.split(random.key(2), 3)  # copied, to be drawn from again
    draw = lambda k: random.gamma(k, 0.7, (4,))
    rows = np.stack([np.asarray(draw(keys.copy()[i])) for i in range(3)])
    np.testing.assert_allclose(vmap(draw)(keys.copy()), rows, rtol=1e-6)
    np.testing.assert_allclose(jit(vmap(draw))(keys.copy()), rows, rtol=1e-6)
    counts = lambda k: random.poisson(k, jnp.array([2.0, 30.0]))
    rows = np.stack([np.asarray(counts(keys.copy()[i])) for i in range(3)])
    np.testing.assert_array_equal(vmap(counts)(keys.copy()), rows)


def test_dtypes_and_errors():
    key = random.key(0)
    for dtype in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64):
        for draw in (random.gamma, random.chisquare, random.t, random.lognormal, random.wald):
            x = draw(key.copy(), 2.0, (8,), dtype)
            assert x.dtype == np.dtype(dtype) and x.shape == (8,)
    with pytest.raises(ValueError, match="do not broadcast"):
        random.gamma(key.copy(), jnp.ones(3), (2,))
    with pytest.raises(TypeError, match="floating"):
        random.gamma(key.copy(), 1.0, (2,), jnp.int32)
    with pytest.raises(ValueError, match="no method"):
        random.multivariate_normal(key.copy(), jnp.zeros(2), jnp.eye(2), method="lu")
    assert random.key_dtype() is random.key(0).dtype and random.key_dtype().name == "key<philox>"
    assert np.isnan(np.asarray(random.gamma(key.copy(), -1.0)))


@pytest.mark.parametrize("call", [
    lambda k: random.gamma(k, np.inf), lambda k: random.loggamma(k, np.inf),
    lambda k: random.chisquare(k, np.inf), lambda k: random.binomial(k, np.inf, 1.0),
])  # fmt: skip
def test_infinite_parameters_end(call):
    assert float(call(random.key(0))) == np.inf


def test_orthogonal_in_16_bits():
    q = np.asarray(random.orthogonal(random.key(0), 4, dtype="float16"), np.float32)
    np.testing.assert_allclose(q @ q.T, np.eye(4), atol=1e-2)


@pytest.mark.parametrize("a", [1e-3, 0.3, 1.0, 4.0, 30.0, 1e5])
def test_approximate_gammas_follow_their_distribution(a):
    z = np.asarray(random.gamma(random.key(3), a, (20_000,), method="approximate"), np.float64)
    log_z = random.loggamma(random.key(3), a, (20_000,), method="approximate")
    np.testing.assert_allclose(np.exp(log_z), z, rtol=2e-5 * max(1, np.abs(log_z).max() / 10))
    assert stats.kstest(z[z > 0], stats.gamma(a).cdf).pvalue > 0.01 or a < 0.01
    assert abs(np.mean(np.asarray(log_z)) - special.digamma(a)) < 5 * np.std(log_z) / 141


def test_approximate_gammas_are_their_derivative():
    a = jnp.array([0.1, 1.0, 10.0, 300.0], "float64")
    f = lambda a: random.loggamma(random.key(0), a, dtype="float64", method="approximate")
    _, slope = jvp(f, (a,), (jnp.ones_like(a),))
    np.testing.assert_allclose(slope, (f(a * 1.0001) - f(a * 0.9999)) / (a * 2e-4), rtol=1e-5)


def test_approximate_gammas_are_their_quantiles():
    """The expansion's largest error, where it is worst, of the probability."""
    from genesis_fn.random.gamma_variates import _CUBE_ROOT, sum_of_powers

    x = np.linspace(-5.5, 5.5, 201)
    for a in (4.0, 5.0, 9.0, 1e3):
        root = sum_of_powers(a**-0.5, [sum_of_powers(x, c) for c in _CUBE_ROOT])
        assert root.min() > 0
        assert abs(stats.gamma(a).cdf(a * root**3) - stats.norm.cdf(x)).max() < 3e-5


@pytest.mark.parametrize("lam", [0.5, 6.9, 7.0, 20.0, 300.0, 1e6])
def test_approximate_poisson_counts_are_the_quantiles(lam):
    """The counts of normals at 200 000 probabilities against the exact distribution function."""
    from genesis_fn.random.counts import poisson_of_normal

    u = (np.arange(200_000) + 0.5) / 200_000
    z = jnp.asarray(stats.norm.ppf(u), "float64")
    count = np.asarray(poisson_of_normal(z, jnp.full_like(z, lam)))
    assert (np.diff(count) >= 0).all() and count[0] >= 0
    ends = np.flatnonzero(np.diff(count))
    found = (ends + 1) / 200_000  # Pr[count <= c] for the counts before a jump
    assert abs(found - stats.poisson(lam).cdf(count[ends])).max() < 1e-4


def test_methods_of_samplers():
    key = lambda: random.key(5)
    x = random.beta(key(), 0.5, 2.0, (20_000,), method="approximate")
    assert stats.kstest(np.asarray(x), stats.beta(0.5, 2.0).cdf).pvalue > 0.01
    x = random.chisquare(key(), 3.0, (20_000,), method="approximate")
    assert stats.kstest(np.asarray(x), stats.chi2(3.0).cdf).pvalue > 0.01
    lam = jnp.array([-1.0, 0.0, np.nan, 3.0])
    assert random.poisson(key(), lam, method="approximate").tolist()[:3] == [-1, 0, -1]
    for draw in (random.gamma, random.loggamma, random.chisquare, random.poisson):
        np.testing.assert_array_equal(draw(key(), 2.0), draw(key(), 2.0, method="exact"))
        with pytest.raises(ValueError, match="method"):
            draw(key(), 2.0, method="other")
    with pytest.raises(ValueError, match="method"):
        random.beta(key(), 2.0, 2.0, method="other")


def test_batches_of_classes_broadcast():
    """JAX's numbers, for every place of the classes."""
    with gf.default_prng_impl("threefry2x32"):
        for batch in ((3, 4), (1, 4), (3, 1), (1, 1)):
            for axis in range(3):
                logits = np.random.default_rng(0).normal(size=(*batch[:axis], 5, *batch[axis:]))
                logits = logits.astype(np.float32)
                for shape in ((3, 4), (2, 3, 4)):
                    want = jax.random.categorical(jax.random.key(1), logits, axis, shape)
                    got = random.categorical(random.key(1), logits, axis, shape)
                    np.testing.assert_array_equal(got, want)
    with pytest.raises(ValueError, match="broadcasts"):
        random.categorical(random.key(0), np.zeros((2, 5)), shape=(3,))
