"""Arguments that few programs use, against JAX's."""

from __future__ import annotations

import io

import jax
import jax.numpy as theirs
import numpy as np
import pytest
import scipy.stats

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import errors, lax, nn, random
from genesis_fn.random import samplers


def same(mine, want, rtol: float = 1e-5) -> None:
    assert str(mine.dtype) == str(want.dtype)
    np.testing.assert_allclose(np.asarray(mine), np.asarray(want), rtol=rtol, atol=1e-6)


RNG = np.random.default_rng(11)
X = RNG.normal(size=(3, 4)).astype(np.float32)
INDEX = np.array([[0, 2], [-1, 1], [3, -4]])


@pytest.mark.parametrize("mode", ["clip", "fill", "one_hot"])
@pytest.mark.parametrize("wrap", [None, True, False])
def test_take_along_axis(mode: str, wrap: bool | None) -> None:
    # None wraps in these modes; JAX from 0.11 on does not.
    want = theirs.take_along_axis(X, INDEX, 1, mode, wrap_negative_indices=wrap is not False)
    run = lambda x, i: jnp.take_along_axis(x, i, 1, mode, wrap_negative_indices=wrap)
    same(run(X, INDEX), want)
    same(gf.jit(run)(X, INDEX), want)


def test_one_hot_indices_of_booleans_other_axes_and_derivatives() -> None:
    where = np.array([[1, 0, 2, 7]])
    for x in (X > 0, X):
        want = theirs.take_along_axis(x, where, 0, "one_hot")
        same(jnp.take_along_axis(x, where, 0, "one_hot"), want)
    f = lambda n, x: (n.take_along_axis(x, where, 0, "one_hot") ** 2).sum()
    same(gf.grad(lambda x: f(jnp, x))(jnp.asarray(X)), jax.grad(lambda x: f(theirs, x))(X))


def test_covariances_in_another_dtype() -> None:
    for name in ("cov", "corrcoef"):
        mine, want = getattr(jnp, name), getattr(theirs, name)
        same(mine(X, dtype="float16"), want(X, dtype="float16"), 4e-3)
        with pytest.raises(ValueError, match="dtype"):
            mine(X, dtype="int32")


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1), (1, 0)])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["quantile", "nanquantile", "percentile", "nanpercentile"])
def test_quantiles_with_weights(name: str, axis, keepdims: bool) -> None:
    rng = np.random.default_rng(5)
    a = rng.normal(size=(4, 5)).astype(np.float32)
    if name.startswith("nan"):
        a[1, 2] = np.nan
    w = rng.integers(0, 4, (4, 5)).astype(np.float32)
    q = np.float32([0.11, 0.31, 0.57, 1.0]) * (100 if "percentile" in name else 1)
    options = {"axis": axis, "method": "inverted_cdf", "keepdims": keepdims}
    for weights in (w, None):
        want = getattr(np, name)(a, q, weights=weights, **options)
        f = lambda a, q: getattr(jnp, name)(a, q, weights=weights, **options)
        np.testing.assert_allclose(f(a, q), want, rtol=1e-6)
        np.testing.assert_allclose(gf.jit(f)(a, q), want, rtol=1e-6)
        np.testing.assert_allclose(f(a, float(q[1])), want[1], rtol=1e-6)


def test_weights_of_an_axis_and_what_is_refused() -> None:
    w = np.float32([1, 2, 0, 3])
    mine = jnp.quantile(X, 0.4, 1, method="inverted_cdf", weights=w)
    np.testing.assert_allclose(mine, np.quantile(X, 0.4, 1, method="inverted_cdf", weights=w))
    assert np.isnan(jnp.quantile(X, 0.4, 1, method="inverted_cdf", weights=-w)).all()
    with pytest.raises(ValueError, match="inverted_cdf"):
        jnp.quantile(X, 0.4, 1, weights=w)
    with pytest.raises(errors.ShapeError, match="weights"):
        jnp.quantile(X, 0.4, method="inverted_cdf", weights=w)


def test_deviations_around_a_known_mean() -> None:
    x = X.copy()
    x[0, 1] = np.nan
    mean = np.nanmean(x, 1, keepdims=True) + 0.5
    for name in ("nanvar", "nanstd"):
        want = getattr(theirs, name)(x, 1, mean=mean)
        same(getattr(jnp, name)(x, 1, mean=mean), want)


def test_positions_in_a_dtype() -> None:
    index, dims = (np.array([1, 2]), np.array([3, 0])), (3, 4)
    got = jnp.ravel_multi_index(index, dims, dtype="uint8")
    same(got, theirs.ravel_multi_index(index, dims, dtype="uint8"))
    ignored = jnp.ravel_multi_index((np.array([5]), np.array([9])), dims, mode="ignore")
    np.testing.assert_array_equal(ignored, [29])
    with pytest.raises(ValueError, match="wider"):
        jnp.ravel_multi_index(index, (300, 4), dtype="uint8")
    with pytest.raises(ValueError, match="integers"):
        jnp.ravel_multi_index(index, dims, dtype="float32")
    for options in ({"dtype": "int8"}, {"dtype": "uint16", "descending": True}):
        same(jnp.argsort(X, **options), theirs.argsort(X, **options))
    with pytest.raises(errors.DTypeError, match="no positions"):
        jnp.argsort(jnp.zeros(300), dtype="int8")


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 1), ()])
@pytest.mark.parametrize("trim", ["fb", "f", "b"])
def test_zeros_trimmed_along_axes(axis, trim: str) -> None:
    x = np.zeros((5, 6), np.int32)
    x[1, 2:4], x[3, 3] = 1, 2
    for given in (x, np.zeros_like(x)):
        want = theirs.trim_zeros(given, trim, axis)
        np.testing.assert_array_equal(jnp.trim_zeros(given, trim, axis), want)


def test_no_pickles_are_read() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    file.seek(0)
    with pytest.raises(errors.ArgumentError, match="pickles"):
        jnp.load(file, allow_pickle=True)
    with pytest.raises(ValueError, match="pickle"):
        jnp.load(file)


@pytest.mark.parametrize("mode", ["low", "high", "highest"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_gumbel_noise_of_more_digits(mode: str, dtype: str) -> None:
    x = np.asarray(random.gumbel(random.key(4), (20_000,), dtype, mode).astype("float64"))
    assert np.isfinite(x).all()
    uniform = np.exp(-np.exp(-x))
    assert scipy.stats.kstest(uniform, "uniform").statistic < (
        0.02 if dtype != "bfloat16" else 0.06
    )


def test_the_modes_refine_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    low = random.gumbel(random.key(1), (400_000,), "float16")
    high = random.gumbel(random.key(1), (400_000,), "float16", mode="high")
    assert float(low.max()) < 8.5 < float(high.max())  # -log(2^-11), and 400000 draws reach 12
    word = jnp.array([[0, 2**32 - 1], [1, 2**32 - 1]], "uint32")
    monkeypatch.setattr(samplers, "bits", lambda *_: word)
    ends = random.gumbel(random.key(2), (2,), mode="highest")
    small = [1.5 * 2.0**-64, 0.5 * 2.0**-64]
    want = [-np.log(small[0]), -np.log(-np.log(small[1]))]
    np.testing.assert_allclose(ends, want, rtol=1e-6)


def test_rare_events_and_classes() -> None:
    assert int(random.bernoulli(random.key(6), 1e-9, (1_000_000,), mode="high").sum()) < 3
    # Steps of float16 are 2^-10: without the second draw the probability would be 0 or twice 2^-10.
    p = jnp.asarray(3e-4, "float16")
    count = int(random.bernoulli(random.key(7), p, (200_000,), mode="high").sum())
    assert abs(count - 60) < 40
    for mode in ("low", "high", "highest"):
        logits = jnp.log(jnp.array([0.2, 0.8]))
        drawn = random.categorical(random.key(5), logits, shape=(4000,), mode=mode)
        assert abs(float(drawn.mean()) - 0.8) < 0.03
    for f in (random.gumbel, random.bernoulli):
        with pytest.raises(ValueError, match="mode 'most'"):
            f(random.key(4), mode="most")


def test_arguments_of_lax() -> None:
    x = jnp.asarray(X, "bfloat16")
    got = lax.mul(x, x, out_dtype="float32")
    same(got, lax.mul(x.astype("float32"), x.astype("float32")))
    np.testing.assert_array_equal(lax.exp(X, accuracy=None), lax.exp(X))
    with pytest.raises(errors.ArgumentError, match="is no lax.AccuracyMode"):
        lax.tanh(X, accuracy="highest")


@pytest.mark.parametrize("padding", ["SAME", "VALID", [(1, 0), (2, 1)]])
@pytest.mark.parametrize("dilation", [None, (2, 1)])
def test_padding_of_the_convolution_whose_gradient_it_is(padding, dilation) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(1, 4, 5, 2)).astype(np.float32)
    w = rng.normal(size=(3, 4, 2, 3)).astype(np.float32)
    options = {"strides": (2, 1), "padding": padding, "rhs_dilation": dilation}
    options["use_consistent_padding"] = True
    theirs_of = {**options, "padding": padding if isinstance(padding, str) else tuple(padding)}
    same(lax.conv_transpose(x, w, **options), jax.lax.conv_transpose(x, w, **theirs_of), 1e-4)


def test_variance_by_the_geometric_mean() -> None:
    init = nn.initializers.variance_scaling(2.0, "fan_geo_avg", "normal")
    assert abs(float(init(random.key(1), (80, 245)).var()) * 140 - 2) < 0.1
