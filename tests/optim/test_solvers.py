"""Eigenvalues, roots, least squares, second derivatives, noise: against JAX, SciPy and optax."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np
import optax
import pytest
import scipy.linalg
import scipy.optimize
import scipy.special

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import optim, random, tree
from genesis_fn.errors import ArgumentError, ShapeError


def _positive(n: int, seed: int = 0) -> np.ndarray:
    """A symmetric matrix whose eigenvalues are 1, 2, ..., n."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))
    return (q * np.arange(1.0, n + 1)) @ q.T


def test_power_iteration() -> None:
    a = _positive(4)
    values, vectors = np.linalg.eigh(a)
    for given in (a, -a):  # the largest magnitude, whatever its sign
        value, v = optim.power_iteration(jnp.asarray(given, "float64"), error_tolerance=1e-9)
        assert abs(float(value)) == pytest.approx(values[-1], rel=1e-9)
        assert float(value) * given[0, 0] > 0
        assert abs(float(np.asarray(v) @ vectors[:, -1])) == pytest.approx(1)
    v0 = np.float32([1, 2, 3, 4])
    for iterations in (0, 1, 3, 100):
        got = optim.power_iteration(jnp.asarray(a, "float32"), v0=v0, num_iters=iterations)
        want = optax.power_iteration(np.float32(a), v0=v0, num_iters=iterations)
        for p, q in zip(got, want, strict=True):
            np.testing.assert_allclose(np.asarray(p), np.asarray(q), rtol=1e-4, atol=1e-5)
    scaled = lambda t: {"w": 3.0 * t["w"], "b": -5.0 * t["b"]}
    value, v = gf.jit(lambda t: optim.power_iteration(scaled, v0=t))(
        {"w": jnp.ones(2), "b": jnp.ones(1)}
    )
    assert float(value) == pytest.approx(-5.0, rel=1e-4) and abs(float(v["b"][0])) > 0.99
    same = optim.power_iteration(jnp.asarray(a), key=random.key(0))
    assert float(optim.power_iteration(jnp.asarray(a))[0]) == float(same[0])
    hermitian = np.array([[2, 1j], [-1j, 2]])
    assert complex(optim.power_iteration(jnp.asarray(hermitian))[0]) == pytest.approx(3, abs=1e-4)
    with pytest.raises(ArgumentError, match="v0 is None"):
        optim.power_iteration(scaled)
    with pytest.raises(ShapeError, match="must be square"):
        optim.power_iteration(jnp.ones((2, 3)))


@pytest.mark.parametrize("p", [1, 2, 3, 4, 7, 8])
def test_matrix_inverse_pth_root(p: int) -> None:
    a = _positive(5, p)
    want = scipy.linalg.fractional_matrix_power(a, -1 / p)
    root, error = optim.matrix_inverse_pth_root(jnp.asarray(a, "float64"), p, 100, 0.0, 1e-12)
    np.testing.assert_allclose(np.asarray(root), want, rtol=1e-8, atol=1e-10)
    assert float(error) < 1e-9
    traced, _ = gf.jit(optim.matrix_inverse_pth_root)(jnp.asarray(a, "float32"), jnp.array(p))
    np.testing.assert_allclose(np.asarray(traced), want, rtol=1e-3, atol=1e-4)
    if p in (1, 2, 4, 8):  # the powers that optax has
        theirs, _ = optax.matrix_inverse_pth_root(jax.numpy.asarray(a, "float32"), p)
        np.testing.assert_allclose(np.asarray(traced), np.asarray(theirs), rtol=1e-3, atol=1e-4)


def test_roots_that_are_small_or_refused() -> None:
    root, error = optim.matrix_inverse_pth_root(jnp.array([[16.0]]), 4)
    assert float(root[0, 0]) == pytest.approx(0.5, rel=1e-5) and float(error) == 0
    root, _ = optim.matrix_inverse_pth_root(jnp.diag(jnp.array([4.0, 16.0], "bfloat16")), 2)
    assert str(root.dtype) == "bfloat16" and float(root[1, 1]) == pytest.approx(0.25, rel=1e-2)
    for p in (0, -2, 1.5):
        with pytest.raises(ArgumentError, match="positive integer"):
            optim.matrix_inverse_pth_root(jnp.eye(2), p)


def test_nnls() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(8, 4)), rng.normal(size=(8, 3))
    x = optim.nnls(jnp.asarray(a, "float64"), jnp.asarray(b, "float64"), 3000)
    for k in range(3):
        want, _ = scipy.optimize.nnls(a, b[:, k])
        np.testing.assert_allclose(np.asarray(x[:, k]), want, atol=1e-8)
    a32, b32 = a.astype(np.float32), b[:, 0].astype(np.float32)
    for options in ({}, {"L": np.float32(30.0)}, {"unroll": True}):
        f = lambda a, lib, o=options: lib.nnls(a, b32, 10, **o).sum()
        got, slope = gf.value_and_grad(lambda a: f(a, optim))(jnp.asarray(a32))
        want, their_slope = jax.value_and_grad(lambda a: f(a, optax))(jax.numpy.asarray(a32))
        assert float(got) == pytest.approx(float(want), rel=1e-4)
        np.testing.assert_allclose(np.asarray(slope), np.asarray(their_slope), rtol=1e-3, atol=1e-4)
    assert optim.nnls(jnp.zeros((3, 2)), jnp.ones(3), 5).tolist() == [0.0, 0.0]
    with pytest.raises(ShapeError, match=r"nnls takes A \[m, n\]"):
        optim.nnls(jnp.ones((3, 2)), jnp.ones(2), 5)


def test_second_order() -> None:
    rng = np.random.default_rng(8)
    p = {
        "w": rng.normal(size=(2, 3)).astype(np.float32),
        "b": rng.normal(size=2).astype(np.float32),
    }
    x, y = rng.normal(size=3).astype(np.float32), rng.normal(size=2).astype(np.float32)
    v = rng.normal(size=8).astype(np.float32)

    def loss(np_: Any) -> Any:
        return lambda p, x, y: np_.sum((np_.tanh(p["w"] @ x + p["b"]) - y) ** 2)

    ours = tree.map(jnp.asarray, p)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optax means to drop them
        theirs = optax.second_order
        pairs = [
            (optim.second_order.hvp(loss(jnp), v, ours, x, y),
             theirs.hvp(loss(jax.numpy), v, p, x, y)),
            (optim.second_order.hessian_diag(loss(jnp), ours, x, y),
             theirs.hessian_diag(loss(jax.numpy), p, x, y)),
            (optim.second_order.fisher_diag(loss(jnp), ours, x, y),
             theirs.fisher_diag(loss(jax.numpy), p, x, y)),
        ]  # fmt: skip
    # A tree is one vector in the order of its leaves: `b` before `w` in JAX, as made here.
    got = [{k: np.asarray(z) for k, z in pairs[0][0].items()}]
    assert {*got[0]} == {"w", "b"}
    flat = jax.flatten_util.ravel_pytree
    order = np.asarray(gf.flatten_util.ravel_pytree(ours)[0])
    assert sorted(order.tolist()) == sorted(np.asarray(flat(p)[0]).tolist())
    unravel = lambda z: {
        k: np.asarray(q) for k, q in gf.flatten_util.ravel_pytree(ours)[1](z).items()
    }
    for mine, want in pairs[1:]:
        want = flat(p)[1](want)
        for k, z in unravel(mine).items():
            np.testing.assert_allclose(z, np.asarray(want[k]), rtol=1e-4, atol=1e-5)
    hessian = jax.hessian(lambda z: loss(jax.numpy)(flat(p)[1](z), x, y))(flat(p)[0])
    direction = flat(unravel(jnp.asarray(v)))[0]
    want = flat(p)[1](hessian @ direction)
    for k, z in got[0].items():
        np.testing.assert_allclose(z, np.asarray(want[k]), rtol=1e-3, atol=1e-4)


def test_scale_gradient() -> None:
    x = {"w": np.float32([1.0, -2.0]), "i": np.array([3])}
    y = optim.scale_gradient(x, 0.5)
    assert y["w"].tolist() == [1.0, -2.0] and str(y["i"].dtype) == "int32"
    for scale in (0.0, 1.0, -0.5, 3.0):
        f = lambda lib: lambda w: (lib.scale_gradient({"w": w}, scale)["w"] ** 3).sum()
        got, want = gf.grad(f(optim))(jnp.asarray(x["w"])), jax.grad(f(optax))(x["w"])
        np.testing.assert_allclose(np.asarray(got), np.asarray(want))
    _, tangent = gf.jvp(lambda w: optim.scale_gradient(w, 0.5), (jnp.ones(2),), (jnp.ones(2),))
    assert tangent.tolist() == [0.5, 0.5]
    both = gf.jit(gf.grad(lambda w, s: optim.scale_gradient(w, s).sum(), (0, 1)))
    by_w, by_scale = both(jnp.ones(2), jnp.array(0.25))
    assert by_w.tolist() == [0.25, 0.25] and float(by_scale) == 0
    z = gf.grad(lambda w: (optim.scale_gradient(w, 0.5) * 1j).imag.sum())(jnp.ones(1, "complex64"))
    assert z.tolist() == [0.5]


def test_multi_normal() -> None:
    mine = optim.multi_normal(jnp.array([1.0, -1.0]), jnp.array([0.0, 1.0]))
    theirs = optax.multi_normal(np.float32([1.0, -1.0]), np.float32([0.0, 1.0]))
    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    np.testing.assert_allclose(np.asarray(mine.log_prob(x)), theirs.log_prob(x), rtol=1e-5)
    for p, q in zip(mine.params, theirs.params, strict=True):
        np.testing.assert_array_equal(np.asarray(p), np.asarray(q))
    draws = np.asarray(mine.sample((20000,), random.key(1)))
    np.testing.assert_allclose(draws.mean(0), [1.0, -1.0], atol=0.1)
    np.testing.assert_allclose(draws.std(0), [1.0, np.e], rtol=0.05)
    wide = optim.multi_normal(0.0, jnp.zeros((2, 3)))
    assert wide.log_prob(jnp.zeros((4, 2, 3))).shape == (4,) and mine.log_scale.tolist() == [0, 1]


class Fixed:
    """Noise that is the same whatever the key, so that both libraries have one sample of it."""

    def sample(self, key: Any, sample_shape: Any = (), dtype: Any = float) -> Any:
        return np.float32([0.3, -1.1, 0.7])

    def log_prob(self, inputs: Any) -> Any:
        return -0.5 * inputs**2 + 0.1 * inputs


@pytest.mark.parametrize("baseline", [True, False])
def test_perturbed_functions_have_the_derivatives_of_optax(baseline: bool) -> None:
    x = np.float32([0.2, -0.5, 1.0])

    def smoothed(lib: Any, key: Any) -> Any:
        np_ = jnp if lib is optim else jax.numpy
        fun = lambda t: {"a": (t["x"] > 0) * 2.0, "b": np_.max(t["x"])}
        f = lib.perturbations.make_perturbed_fun(fun, 2, 0.5, Fixed(), use_baseline=baseline)

        def total(x: Any) -> Any:
            out = f(key.copy() if lib is optim else key, {"x": x})
            return (out["a"] * np_.arange(3)).sum() + 3.0 * out["b"]

        return total

    mine, theirs = smoothed(optim, random.key(0)), smoothed(optax, jax.random.key(0))
    assert float(mine(jnp.asarray(x))) == pytest.approx(float(theirs(x)), rel=1e-5)
    np.testing.assert_allclose(
        np.asarray(gf.grad(mine)(jnp.asarray(x))), jax.grad(theirs)(x), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        np.asarray(gf.hessian(mine)(jnp.asarray(x))), jax.hessian(theirs)(x), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("noise", [optim.perturbations.Gumbel(), optim.perturbations.Normal()])
def test_perturbed_derivatives_are_those_of_the_mean(noise: Any) -> None:
    # E exp(sigma z) is known: the smoothed function is exp(x) times it, and its own derivative.
    sigma = 0.2
    factor = np.exp(sigma**2 / 2)
    if isinstance(noise, optim.perturbations.Gumbel):
        factor = scipy.special.gamma(1 - sigma)
    f = optim.perturbations.make_perturbed_fun(jnp.exp, 20000, sigma, noise)
    value, slope = gf.jit(gf.value_and_grad(f, argnums=1))(random.key(2), jnp.array(0.3))
    assert float(value) == pytest.approx(np.exp(0.3) * factor, rel=0.01)
    assert float(slope) == pytest.approx(np.exp(0.3) * factor, rel=0.1)
    draws = np.asarray(noise.sample(random.key(5), (50000,), "float32"))
    assert draws.dtype == np.float32
    grid = np.linspace(-6, 14, 4001)
    density = np.exp(np.asarray(noise.log_prob(jnp.asarray(grid, "float64"))))
    mean = (density * grid).sum() / density.sum()
    assert draws.mean() == pytest.approx(mean, abs=0.03)


def test_random_trees() -> None:
    target = {"w": np.zeros((2, 3), np.float32), "b": jnp.zeros(4, "bfloat16"), "none": None}
    keys = optim.tree.split_key_like(random.key(3), target)
    words = {tuple(random.key_data(k).tolist()) for k in tree.leaves(keys)}
    assert tree.structure(keys) == tree.structure(target) and len(words) == 2
    noise = optim.tree.random_like(random.key(3), target)
    assert noise["w"].shape == (2, 3) and str(noise["b"].dtype) == "bfloat16"
    np.testing.assert_array_equal(
        np.asarray(noise["w"]), np.asarray(random.normal(keys["w"], (2, 3)))
    )
    uniform = optim.tree.random_like(random.key(3), target, random.uniform, "float64")
    assert str(uniform["w"].dtype) == "float64" and 0 <= float(uniform["b"].min())
    assert (
        optim.tree.random_like(random.key(0), {})
        == {}
        == optim.tree.split_key_like(random.key(0), {})
    )
    state = optim.add_noise(0.1, 0.5, seed=4).init(jnp.zeros(2))
    plain = optim.tree.unwrap_random_key_data(state)
    assert isinstance(plain, optim.AddNoiseState) and plain.rng_key.tolist() == [0, 4]
    assert plain.count is state.count


def test_states_that_keep_nothing_have_their_names() -> None:
    p = jnp.ones(2)
    for tx, name in (
        (optim.clip(1.0), "ClipState"),
        (optim.adaptive_grad_clip(1.0), "AdaptiveGradClipState"),
        (optim.add_decayed_weights(0.1), "AddDecayedWeightsState"),
        (optim.keep_params_nonnegative(), "NonNegativeParamsState"),
        (optim.scale_by_trust_ratio(), "ScaleByTrustRatioState"),
        (optim.scale(2.0), "ScaleState"),
    ):
        assert isinstance(tx.init(p), getattr(optim, name))
        # optax's too have no class of their own.
        assert getattr(optax, name) is optax.EmptyState
    assert optim.init_empty_state(p) == optim.EmptyState()
    assert optim.inject_stateful_hyperparams is optim.inject_hyperparams


def test_all_of_optax_has_a_name_here() -> None:
    elsewhere = {"contrib", "experimental", "microbatch", "microbatching", "tree_utils"}
    names = {n for n in dir(optax) if not n.startswith("_")} - elsewhere
    assert {n for n in names if not hasattr(optim, n)} == set()
    for part in ("tree", "projections", "perturbations", "assignment", "second_order"):
        theirs = {n for n in dir(getattr(optax, part)) if not n.startswith("_")}
        assert {n for n in theirs if not hasattr(getattr(optim, part), n)} == set()


def test_arguments_by_name() -> None:
    p, g = jnp.ones(2), jnp.array([3.0, 4.0])
    for tx in (optim.adam(0.1), optim.clip(1.0), optim.lbfgs(linesearch=None), optim.sgd(0.1),
               optim.masked(optim.sgd(0.1), True), optim.inject_hyperparams(optim.sgd)(0.1),
               optim.named_chain(("sgd", optim.sgd(0.1)))):  # fmt: skip
        named, _ = tx.update(updates=g, state=tx.init(params=p), params=p)
        np.testing.assert_array_equal(np.asarray(named), np.asarray(tx.update(g, tx.init(p), p)[0]))
