"""Initializers: moments and bounds against jax.nn.initializers, exact equality under threefry."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn import random
from genesis_fn.core.configuration import config
from genesis_fn.nn import initializers

SCALED = [
    "glorot_uniform", "glorot_normal", "xavier_uniform", "xavier_normal", "lecun_uniform",
    "lecun_normal", "he_uniform", "he_normal", "kaiming_uniform", "kaiming_normal",
]  # fmt: skip


@pytest.mark.parametrize("name", [*SCALED, "normal", "uniform", "truncated_normal"])
def test_moments_and_values(name):
    ours, theirs = getattr(initializers, name)(), getattr(jax.nn.initializers, name)()
    shape = (3, 40, 120) if name in SCALED else (3, 4800)
    x = np.asarray(ours(random.key(0), shape))
    y = np.asarray(theirs(jax.random.key(0), shape))
    assert x.shape == y.shape and x.dtype == y.dtype
    scale = y.std()
    assert abs(x.mean() - y.mean()) < 0.05 * scale and abs(x.std() / scale - 1) < 0.03
    assert abs(np.abs(x).max() / np.abs(y).max() - 1) < 0.2
    same = np.asarray(ours(random.key(3, impl="threefry2x32"), shape))
    np.testing.assert_allclose(
        same, theirs(jax.random.key(3, impl="threefry2x32"), shape), rtol=1e-5, atol=1e-6 * scale
    )


@pytest.mark.parametrize("mode", ["fan_in", "fan_out", "fan_avg"])
@pytest.mark.parametrize("distribution", ["normal", "uniform", "truncated_normal"])
def test_variance_scaling(mode, distribution):
    both = {"in_axis": (0, 1), "out_axis": (1, 3)}  # axis 1 has two roles
    for axes in ({}, {"in_axis": (0, 1), "batch_axis": 2}, both, {"out_axis": -2}):
        shape = (4, 3, 2, 8)
        kwargs = {"scale": 2.0, "mode": mode, "distribution": distribution, **axes}
        ours = initializers.variance_scaling(**kwargs)(random.key(1, impl="threefry"), shape)
        theirs = jax.nn.initializers.variance_scaling(**kwargs)(jax.random.key(1), shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="two dimensions"):
        initializers.he_normal()(random.key(0), (3,))
    with pytest.raises(ValueError, match="mode is one of"):
        initializers.variance_scaling(1.0, "fan", "normal")(random.key(0), (2, 2))
    with pytest.raises(ValueError, match="unknown distribution"):
        initializers.variance_scaling(1.0, "fan_in", "cauchy")(random.key(0), (2, 2))


def test_constants_and_dtypes():
    assert np.asarray(initializers.zeros(random.key(0), (2, 3))).tolist() == [[0] * 3] * 2
    assert np.asarray(initializers.ones(random.key(0), (2,), jnp.bfloat16)).tolist() == [1, 1]
    assert np.asarray(initializers.constant(3.5)(random.key(0), (2,))).tolist() == [3.5, 3.5]
    for make in (initializers.normal(), initializers.he_uniform(), initializers.orthogonal()):
        assert make(random.key(0), (4, 4), jnp.bfloat16).dtype == jnp.bfloat16


@pytest.mark.parametrize("shape", [(5, 5), (3, 8), (8, 3), (2, 3, 12), (3, 4, 2)])
def test_orthogonal(shape):
    for axis in (-1, 0):
        x = np.asarray(initializers.orthogonal(2.0, axis)(random.key(2), shape))
        assert x.shape == shape
        m = np.moveaxis(x, axis, -1).reshape(-1, shape[axis])
        gram = m.T @ m if m.shape[0] >= m.shape[1] else m @ m.T
        np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float16", 2e-3), ("float64", 1e-12), ("complex64", 1e-5), ("complex128", 1e-12)],
)
def test_orthogonal_in_its_dtype(dtype, tolerance):
    for shape in ((8, 5), (5, 8)):
        x = initializers.orthogonal()(random.key(3), shape, dtype)
        assert x.dtype == dtype
        x = np.asarray(x).astype("complex128")
        x = x if shape[0] > shape[1] else x.T
        np.testing.assert_allclose(x.conj().T @ x, np.eye(5), atol=tolerance)
        assert np.any(x.imag) == dtype.startswith("complex")


def test_delta_orthogonal():
    x = np.array(initializers.delta_orthogonal()(random.key(1), (3, 5, 4, 6)))
    np.testing.assert_allclose(x[1, 2] @ x[1, 2].T, np.eye(4), atol=1e-5)
    x[1, 2] = 0
    assert not x.any()
    with pytest.raises(ValueError, match="does not fit"):
        initializers.delta_orthogonal()(random.key(1), (3, 6, 4))


def test_the_default_implementation_is_a_setting():
    with config.override(random_impl="threefry2x32"):
        x = initializers.normal()(random.key(5), (7,))
    np.testing.assert_array_equal(x, initializers.normal()(random.key(5, impl="threefry"), (7,)))
