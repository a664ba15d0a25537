"""Samplers: the numbers of jax.random under threefry, the statistics of philox."""

from __future__ import annotations

import jax
import jax.numpy as xnp
import numpy as np
import pytest
import scipy.stats as stats

import genesis_fn.numpy as jnp
from genesis_fn import random
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.jitting import jit

# Equal in every bit: nothing but integer arithmetic and exact float operations.
EXACT = {
    "bits-8": lambda r, n, k: r.bits(k, (37,), n.uint8),
    "bits-16": lambda r, n, k: r.bits(k, (37,), n.uint16),
    "bits-32": lambda r, n, k: r.bits(k, (5, 7), n.uint32),
    "uniform": lambda r, n, k: r.uniform(k, (101,)),
    "uniform-f16": lambda r, n, k: r.uniform(k, (101,), n.float16),
    "uniform-bf16": lambda r, n, k: r.uniform(k, (101,), n.bfloat16),
    "bernoulli": lambda r, n, k: r.bernoulli(k, 0.3, (101,)),
    "bernoulli-array": lambda r, n, k: r.bernoulli(k, n.linspace(0.0, 1.0, 64)),
    "randint": lambda r, n, k: r.randint(k, (101,), -5, 1000),
    "randint-full": lambda r, n, k: r.randint(k, (101,), 0, 256, n.uint8),
    "randint-arrays": lambda r, n, k: r.randint(k, (3,), n.array([0, 5, -9]), n.array([2, 6, 90])),
    "rademacher": lambda r, n, k: r.rademacher(k, (101,)),
    "permutation": lambda r, n, k: r.permutation(k, 50),
    "permutation-rows": lambda r, n, k: r.permutation(k, n.arange(12).reshape(6, 2)),
    "permutation-columns": lambda r, n, k: r.permutation(k, n.arange(12).reshape(6, 2), 1),
    "permutation-independent": lambda r, n, k: r.permutation(
        k, n.arange(12).reshape(6, 2), 0, independent=True
    ),
    "choice": lambda r, n, k: r.choice(k, 50, (20,)),
    "choice-once": lambda r, n, k: r.choice(k, 50, (20,), replace=False),
    "choice-array": lambda r, n, k: r.choice(k, n.arange(30).reshape(3, 10), (4,), axis=1),
    "choice-p": lambda r, n, k: r.choice(k, 4, (50,), p=n.array([0.1, 0.2, 0.3, 0.4])),
    "choice-p-once": lambda r, n, k: r.choice(
        k, 4, (3,), replace=False, p=n.array([0.1, 0.2, 0.3, 0.4])
    ),
    "categorical": lambda r, n, k: r.categorical(k, n.arange(12.0).reshape(3, 4)),
    "categorical-axis": lambda r, n, k: r.categorical(k, n.arange(12.0).reshape(3, 4), 0, (5, 4)),
    "categorical-once": lambda r, n, k: r.categorical(
        k, n.arange(12.0).reshape(3, 4), shape=(2, 3), replace=False
    ),
    "split": lambda r, n, k: r.key_data(r.split(k, 5)),
    "split-shape": lambda r, n, k: r.key_data(r.split(k, (2, 3))),
    "fold_in": lambda r, n, k: r.key_data(r.fold_in(k, 123456)),
}

# Equal up to how logarithms and inverse error functions are rounded.
CLOSE = {
    # XLA contracts the product and the sum to one rounding.
    "uniform-range": lambda r, n, k: r.uniform(k, (101,), n.float32, -2.5, 7.0),
    "normal": lambda r, n, k: r.normal(k, (101,)),
    "truncated": lambda r, n, k: r.truncated_normal(k, -2, 2, (101,)),
    "exponential": lambda r, n, k: r.exponential(k, (101,)),
    "gumbel": lambda r, n, k: r.gumbel(k, (101,)),
    "laplace": lambda r, n, k: r.laplace(k, (101,)),
    "logistic": lambda r, n, k: r.logistic(k, (101,)),
    "normal-complex": lambda r, n, k: r.normal(k, (101,), n.complex64),
}


@pytest.mark.parametrize("seed", [0, 42, 2**40 + 3, -1])
@pytest.mark.parametrize("name", EXACT)
def test_threefry_is_bit_equal_to_jax(name, seed):
    if seed > 2**32 and name != "uniform":
        pytest.skip("one sampler is enough for a long seed")
    with jax.enable_x64(seed > 2**32):
        theirs_key = jax.random.key(seed, impl="threefry2x32")
    with jax.enable_x64(False):
        theirs = np.asarray(EXACT[name](jax.random, xnp, theirs_key))
    ours = np.asarray(EXACT[name](random, jnp, random.key(seed, impl="threefry2x32")))
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", CLOSE)
def test_threefry_is_close_to_jax(name):
    theirs = CLOSE[name](jax.random, xnp, jax.random.key(5, impl="threefry2x32"))
    ours = CLOSE[name](random, jnp, random.key(5, impl="threefry2x32"))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_philox_uniform(dtype):
    x = np.asarray(random.uniform(random.key(1), (40_000,), dtype)).astype(np.float64)
    assert x.min() >= 0 and x.max() < 1
    # A coarse type has ties at multiples of its step; halfway between them the values are uniform.
    step = {"bfloat16": 2.0**-7, "float16": 2.0**-10}.get(dtype, 0)
    jittered = x + step * np.random.default_rng(0).random(x.shape)
    assert stats.kstest(jittered, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_philox_normal(dtype):
    x = np.asarray(random.normal(random.key(2), (40_000,), dtype)).astype(np.float64)
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02
    assert abs(stats.kurtosis(x)) < 0.1 and np.abs(x).max() > 3.5
    if dtype.startswith("float32"):
        assert stats.kstest(x, "norm").pvalue > 1e-3


def test_philox_keys_are_independent():
    x = np.asarray(vmap(lambda k: random.normal(k, (2000,)))(random.split(random.key(0), 30)))
    c = np.corrcoef(x)
    assert np.abs(c - np.eye(30)).max() < 0.11
    y = np.stack([random.normal(random.fold_in(random.key(0), i), (2000,)) for i in range(10)])
    assert np.abs(np.corrcoef(np.concatenate([x, y])) - np.eye(40)).max() < 0.11


def test_philox_choices_and_classes():
    counts = np.bincount(np.asarray(random.randint(random.key(4), (30_000,), 0, 7)))
    assert stats.chisquare(counts).pvalue > 1e-3
    # JAX's 8-bit draws favour some values by half; these do not.
    for low in (-100, jnp.asarray(-100)):
        draws = np.asarray(random.randint(random.key(4), (100_000,), low, 100, jnp.int8))
        assert stats.chisquare(np.bincount(draws.astype(int) + 100)).pvalue > 1e-3
    logits = jnp.log(jnp.array([0.1, 0.2, 0.7]))
    counts = np.bincount(np.asarray(random.categorical(random.key(5), logits, shape=(30_000,))))
    assert stats.chisquare(counts, [3000, 6000, 21000]).pvalue > 1e-3
    orders = np.asarray(vmap(lambda k: random.permutation(k, 3))(random.split(random.key(6), 6000)))
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6 and stats.chisquare(counts).pvalue > 1e-3


def test_samples_are_the_same_in_every_transform():
    key = random.key(3)
    draw = lambda k: random.normal(k, (5,))
    plain = np.asarray(draw(key.copy()))
    np.testing.assert_array_equal(jit(draw)(key.copy()), plain)
    keys = random.split(key.copy(), 4)
    rows = np.stack([np.asarray(draw(keys[i])) for i in range(4)])
    np.testing.assert_array_equal(vmap(draw)(keys.copy()), rows)
    np.testing.assert_array_equal(jit(vmap(draw))(keys.copy()), rows)
    _, scanned = scan(lambda c, k: (c, draw(k)), 0, keys.copy())
    np.testing.assert_array_equal(scanned, rows)

    # A chain of keys through a scan's carry is the chain in Python.
    def step(k, _):
        k, sub = random.split(k)
        return k, random.uniform(sub)

    _, chained = scan(step, key.copy(), None, length=3)
    k, expected = key.copy(), []
    for _ in range(3):
        k, u = step(k, None)
        expected.append(float(u))
    np.testing.assert_array_equal(np.asarray(chained), np.float32(expected))


def test_gradients_pass_through_parameters_and_not_through_keys():
    key = random.key(0)
    f = lambda low: jnp.sum(random.uniform(key.copy(), (10,), minval=low, maxval=2.0))
    u = np.asarray(random.uniform(key.copy(), (10,)))
    np.testing.assert_allclose(grad(f)(0.5), (1 - u).sum(), rtol=1e-5)


def test_errors():
    key = random.key(0)
    with pytest.raises(TypeError, match="floating"):
        random.normal(key.copy(), (2,), jnp.int32)
    with pytest.raises(TypeError, match="unsigned"):
        random.bits(key.copy(), (2,), jnp.int32)
    with pytest.raises(ValueError, match="takes one key"):
        random.normal(random.split(key.copy()), (2,))
    with pytest.raises(ValueError, match="without replacement"):
        random.choice(key.copy(), 3, (4,), replace=False)
    with pytest.raises(ValueError, match="nothing to draw"):
        random.choice(key.copy(), 0, (4,))
    with pytest.raises(ValueError, match="batch shape"):
        random.categorical(key.copy(), jnp.zeros((3, 4)), shape=(5,))
    with pytest.raises(TypeError, match="expected a random key"):
        random.normal(0, (2,))


@pytest.mark.parametrize("call", [
    lambda k: random.permutation(k, jnp.ones((3, 2)), 2),
    lambda k: random.permutation(k, jnp.ones((3, 2)), -3, independent=True),
    lambda k: random.categorical(k, jnp.ones((3, 2)), 2),
    lambda k: random.choice(k, jnp.ones((3, 2)), (2,), axis=2),
])  # fmt: skip
def test_axes_that_do_not_exist(call):
    with pytest.raises(ValueError, match="does not exist in 2 dimensions"):
        call(random.key(0))


def test_shapes_and_populations_that_do_not_exist():
    for sampler in (random.normal, random.uniform, random.bits, random.rademacher):
        with pytest.raises(ValueError, match="negative lengths"):
            sampler(random.key(0), (2, -1))
    for sampler in (random.permutation, random.choice):
        with pytest.raises(TypeError, match="an integer n or an array"):
            sampler(random.key(0), 3.5)


def test_bounds_give_the_shape():
    drawn = random.uniform(random.key(0), minval=jnp.array([0.0, 5.0]), maxval=6.0)
    assert drawn.shape == (2,) and float(drawn[1]) >= 5.0
    assert random.choice(random.key(0), jnp.array(4), (3,)).shape == (3,)
    assert set(np.asarray(random.choice(random.key(0), 3, (20,), p=jnp.array([0, 1, 0])))) == {1}
