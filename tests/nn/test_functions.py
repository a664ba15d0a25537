"""Activations and row functions against jax.nn: values, gradients, dtypes, options."""

from __future__ import annotations

import jax
import jax.numpy as xnp
import numpy as np
import pytest
import scipy.special

import genesis_fn.numpy as jnp
from genesis_fn import nn
from genesis_fn.errors import ArgumentError
from genesis_fn.transforms.autodiff.derivatives import grad, jvp
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.jitting import jit
from tests.support.xla import as_shipped

ELEMENTWISE = [
    "relu", "relu6", "sigmoid", "silu", "swish", "gelu", "softplus", "soft_sign", "log_sigmoid",
    "leaky_relu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "elu", "celu", "selu",
    "glu", "squareplus", "mish", "tanh", "identity", "sparse_plus", "sparse_sigmoid", "softmax",
    "log_softmax", "logsumexp", "standardize",
]  # fmt: skip

X = (
    np.concatenate(
        [np.random.default_rng(0).normal(size=22) * 3, [0, 1, -1, 3, -3, 6, -6, 30, -30, 90]]
    )
    .astype(np.float32)
    .reshape(4, 8)
)


def close(ours, theirs, **tolerance):
    tolerance = {"rtol": 2e-6, "atol": 2e-6, **tolerance}
    assert str(ours.dtype) == str(theirs.dtype) and ours.shape == theirs.shape
    np.testing.assert_allclose(
        np.asarray(ours).astype(np.float64), np.asarray(theirs).astype(np.float64), **tolerance
    )


@pytest.mark.parametrize("name", ["softplus", "log_sigmoid", "squareplus", "gelu", "silu", "mish"])
def test_smooth_functions_have_a_curvature_at_zero(name):
    for x in (0.0, -0.0, 0.5):
        want = float(jax.grad(jax.grad(getattr(jax.nn, name)))(x))
        np.testing.assert_allclose(float(grad(grad(getattr(nn, name)))(x)), want, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_function(name, dtype):
    f, g = getattr(nn, name), getattr(jax.nn, name)
    x = X if dtype == "float32" else X.clip(-8, 8)
    ours, theirs = jnp.asarray(x, dtype), xnp.asarray(x, dtype)
    if dtype == "float32":
        close(f(ours), g(theirs))
    else:
        # Each rounds at its own places; both are near the float32 value.
        exact = np.asarray(g(xnp.asarray(theirs, xnp.float32)), np.float64)
        y = f(ours)
        assert str(y.dtype) == dtype
        rtol = {"float16": 4e-3, "bfloat16": 3e-2}[dtype]
        np.testing.assert_allclose(np.asarray(y).astype(np.float64), exact, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_gradient(name):
    f, g = getattr(nn, name), getattr(jax.nn, name)
    weights = np.random.default_rng(1).normal(size=np.shape(g(xnp.asarray(X)))).astype(np.float32)
    ours = grad(lambda x: jnp.sum(f(x) * weights))(jnp.asarray(X))
    theirs = as_shipped(jax.grad(lambda x: xnp.sum(g(x) * weights)))(X)
    assert np.isfinite(np.asarray(ours)).all()
    close(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "name", ["silu", "gelu", "softplus", "elu", "mish", "softmax", "logsumexp"]
)
def test_second_derivative_jit_and_vmap(name):
    f, g = getattr(nn, name), getattr(jax.nn, name)
    x = X.clip(-6, 6) + np.float32(0.1)  # away from kinks
    ours = lambda x: jnp.sum(f(x) ** 2)
    theirs = lambda x: xnp.sum(g(x) ** 2)
    twice = grad(lambda x: jnp.sum(grad(ours)(x) ** 2))
    expected = jax.grad(lambda x: xnp.sum(jax.grad(theirs)(x) ** 2))(xnp.asarray(x))
    close(twice(jnp.asarray(x)), expected, rtol=1e-3, atol=1e-3)
    close(jit(twice)(jnp.asarray(x)), expected, rtol=1e-3, atol=1e-3)
    rows = np.stack([np.asarray(f(jnp.asarray(r))) for r in x])
    np.testing.assert_allclose(vmap(f)(jnp.asarray(x)), rows, rtol=1e-6, atol=1e-6)
    _, t = jvp(ours, (jnp.asarray(x),), (jnp.ones_like(jnp.asarray(x)),))
    np.testing.assert_allclose(t, jnp.sum(grad(ours)(jnp.asarray(x))), rtol=1e-4, atol=1e-5)


def test_parameters_of_activations():
    x, y = jnp.asarray(X), xnp.asarray(X)
    close(nn.gelu(x, approximate=False), jax.nn.gelu(y, approximate=False), atol=1e-5)
    close(nn.leaky_relu(x, 0.3), jax.nn.leaky_relu(y, 0.3))
    close(nn.elu(x, 0.5), jax.nn.elu(y, 0.5))
    close(nn.celu(x, 0.5), jax.nn.celu(y, 0.5))
    close(nn.squareplus(x, 1.0), jax.nn.squareplus(y, 1.0))
    close(nn.glu(x, 0), jax.nn.glu(y, 0))
    positive = np.float32([1e-6, 1e-3, 0.5, np.log(2), 0.7, 1, 5, 40])
    close(nn.log1mexp(jnp.asarray(positive)), jax.nn.log1mexp(xnp.asarray(positive)))
    close(
        vmap(grad(nn.log1mexp))(jnp.asarray(positive)),
        jax.vmap(jax.grad(jax.nn.log1mexp))(xnp.asarray(positive)),
        rtol=1e-5,
    )


def test_kinks_have_the_derivatives_of_jax():
    at = np.float32([-3, -1, 0, 1, 3, 6])
    for name in ("relu", "relu6", "hard_tanh", "leaky_relu", "elu", "hard_sigmoid", "sparse_plus"):
        ours = vmap(grad(getattr(nn, name)))(jnp.asarray(at))
        close(ours, jax.vmap(jax.grad(getattr(jax.nn, name)))(xnp.asarray(at)), rtol=1e-5)


def test_extremes_stay_finite():
    big = jnp.array([-1e4, -200.0, 0.0, 200.0, 1e4])
    for name in ("softplus", "log_sigmoid", "sigmoid", "silu", "elu", "celu", "selu", "mish"):
        f = getattr(nn, name)
        assert np.isfinite(np.asarray(f(big))).all(), name
        assert np.isfinite(np.asarray(vmap(grad(f))(big))).all(), name
    assert np.isfinite(np.asarray(nn.softmax(big))).all()


@pytest.mark.parametrize("axis", [-1, 0, 1, (0, 2), (1, -1), None])
def test_rows_over_any_axes(axis):
    x = np.random.default_rng(2).normal(size=(3, 4, 5)).astype(np.float32) * 5
    a, b = jnp.asarray(x), xnp.asarray(x)
    mask = np.random.default_rng(3).random((3, 4, 5)) > 0.3
    for name in ("softmax", "log_softmax"):
        f, g = getattr(nn, name), getattr(jax.nn, name)
        close(f(a, axis), g(b, axis), rtol=1e-5, atol=1e-6)
        close(f(a, axis, where=mask), g(b, axis, where=mask), rtol=1e-5, atol=1e-6)
        ours = grad(lambda x: jnp.sum(jnp.where(mask, f(x, axis, where=mask), 0.0) ** 2))(a)
        theirs = jax.grad(lambda x: xnp.sum(xnp.where(mask, g(x, axis, where=mask), 0.0) ** 2))(b)
        close(ours, theirs, rtol=1e-4, atol=1e-5)
    for keep in (False, True):
        close(nn.logsumexp(a, axis, keepdims=keep), jax.nn.logsumexp(b, axis, keepdims=keep))
        close(
            nn.logsumexp(a, axis, keepdims=keep, where=mask),
            jax.nn.logsumexp(b, axis, keepdims=keep, where=mask),
        )
        close(
            nn.logmeanexp(a, axis, keepdims=keep),
            jax.nn.logmeanexp(b, axis, keepdims=keep),
            atol=1e-5,
        )
    weights = np.random.default_rng(4).normal(size=(3, 4, 5)).astype(np.float32)
    for ours, theirs in zip(
        nn.logsumexp(a, axis, weights, return_sign=True),
        jax.nn.logsumexp(b, axis, weights, return_sign=True),
    ):
        close(ours, theirs, rtol=1e-4, atol=1e-5)
    close(nn.standardize(a, axis), jax.nn.standardize(b, axis), rtol=1e-4, atol=1e-5)
    # The mean square minus the squared mean cancels where a row has one number: hence the epsilon.
    close(
        nn.standardize(a, axis, where=mask, epsilon=1.0),
        jax.nn.standardize(b, axis, where=mask, epsilon=1.0),
        rtol=1e-4,
        atol=1e-5,
    )


def test_rows_that_are_masked_or_infinite():
    x = jnp.array([[1.0, 2.0], [-jnp.inf, -jnp.inf], [jnp.inf, 0.0]])
    y = xnp.asarray(np.asarray(x))
    exact = scipy.special.logsumexp(np.asarray(x, np.float64), -1)
    np.testing.assert_array_equal(nn.logsumexp(x, -1), exact.astype(np.float32))
    mask = np.array([[True, False], [False, False], [True, True]])
    p = np.asarray(nn.softmax(x[:2], where=mask[:2]))
    np.testing.assert_array_equal(p, jax.nn.softmax(y[:2], where=mask[:2]))
    g = np.asarray(grad(lambda x: nn.logsumexp(x))(jnp.array([-jnp.inf, -jnp.inf])))
    assert not np.isnan(g).any()


@pytest.mark.parametrize("f", [nn.logsumexp, nn.logmeanexp])
def test_a_nan_is_one_in_the_derivative_of_its_row(f):
    """That of the others was exp(x), a number without meaning."""
    x = np.array([[1.0, np.nan, 2.0], [-np.inf, -np.inf, -np.inf], [3.0, -np.inf, 4.0]], np.float32)
    for run in (grad(lambda x: jnp.sum(f(x, -1))), jit(grad(lambda x: jnp.sum(f(x, -1))))):
        g = np.asarray(run(jnp.asarray(x)))
        assert np.isnan(g[0]).all()
        np.testing.assert_array_equal(g[1], 0)
        e = np.exp([-1.0, -np.inf, 0.0])
        np.testing.assert_allclose(g[2], e / e.sum(), rtol=1e-6)


def test_one_hot():
    labels = np.array([[0, 3], [-1, 7]])
    for kwargs in ({}, {"axis": 0}, {"axis": 1}, {"dtype": "bfloat16"}, {"dtype": "int32"}):
        theirs = jax.nn.one_hot(labels, 5, **{"dtype": xnp.float32, **kwargs})
        close(nn.one_hot(jnp.asarray(labels), 5, **kwargs), theirs, rtol=0, atol=0)


def test_integers_become_floats():
    x = jnp.arange(-3, 4)
    assert nn.sigmoid(x).dtype == nn.softmax(x).dtype == jnp.float32
    assert nn.relu(x).dtype == jnp.int32


@pytest.mark.parametrize("call", [
    lambda x: nn.softmax(x, 2), lambda x: nn.softmax(x, -3), lambda x: nn.log_softmax(x, (0, 2)),
    lambda x: nn.logsumexp(x, 2), lambda x: nn.one_hot(x[0], 4, axis=2),
    lambda x: jnp.linspace(x[0], x[1], 3, axis=2), lambda x: vmap(jnp.sin, out_axes=2)(x),
    lambda x: nn.initializers.variance_scaling(1.0, "fan_in", "normal", 2)(x, (2, 3)),
])  # fmt: skip
def test_axes_that_do_not_exist(call):
    with pytest.raises(ValueError, match="does not exist in 2 dimensions"):
        call(jnp.ones((2, 3)))


def test_variances_of_standardize() -> None:
    """Of rows far from 0, where the mean square has lost the variance."""
    rows = np.random.default_rng(2).normal(size=(64, 8)) * 1e-2 + 400
    x = jnp.asarray(rows, "float32")
    assert np.isfinite(np.asarray(nn.standardize(x))).all()
    exact = np.asarray(x).astype(np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True) + 1e-5)
    got = np.asarray(nn.standardize(x, algorithm="stable"))
    np.testing.assert_allclose(got, exact, atol=0.02)
    with pytest.raises(ArgumentError, match="'exact'"):
        nn.standardize(x, algorithm="exact")
