"""How precisely lax computes, where it is asked: dot algorithms and accuracies; and the order of
complex numbers. Against JAX, and float64."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, nn

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(5, 7)).astype(np.float32), RNG.normal(size=(7, 3)).astype(np.float32)
EXACT = X.astype(np.float64) @ Y
PRESETS = list(lax.DotAlgorithmPreset)
# Bits of the operands that an algorithm keeps.
BITS = {"F16_F16": 11, "BF16_BF16_BF16": 8, "BF16_BF16_F32": 8, "BF16_BF16_F32_X3": 16,
        "BF16_BF16_F32_X6": 22, "BF16_BF16_F32_X9": 22, "TF32_TF32_F32": 11}  # fmt: skip


def test_the_presets_are_those_of_jax():
    assert [str(a) for a in PRESETS] == [str(a) for a in jax.lax.DotAlgorithmPreset]
    assert repr(PRESETS[0]) == repr(jax.lax.DotAlgorithmPreset.DEFAULT)
    assert lax.DotAlgorithm._fields == jax.lax.DotAlgorithm._fields
    assert str(lax.Precision.HIGHEST) == str(jax.lax.Precision.HIGHEST)


@pytest.mark.parametrize("preset", PRESETS, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_preset_rounds_no_more_than_it_says(preset: Any, dtype: str):
    x, y = jnp.asarray(X, dtype), jnp.asarray(Y, dtype)
    if "F8" in preset.name:
        with pytest.raises(ValueError, match=r"8-bit floats, got f(16|32)\[5,7\]"):
            lax.dot(x, y, precision=preset)
        return
    out = lax.dot(x, y, precision=preset)
    wide = lax.dot(x, y, precision=preset.name, preferred_element_type="float32")
    assert out.dtype == dtype and wide.dtype == "float32"
    assert gf.jit(lambda x, y: lax.dot(x, y, precision=preset))(x, y).dtype == dtype
    if dtype == "float32":
        bits = max((n for k, n in BITS.items() if preset.name.startswith(k)), default=22)
        scale = np.abs(X).astype(np.float64) @ np.abs(Y)
        assert np.max(np.abs(np.asarray(wide, np.float64) - EXACT) / scale) < 2.0 ** (1 - bits)


def test_operands_are_rounded_to_the_precision_type():
    rounded = [np.asarray(jnp.asarray(v).astype("bfloat16").astype("float64")) for v in (X, Y)]
    out = lax.dot(X, Y, precision=lax.DotAlgorithmPreset.BF16_BF16_F32)
    np.testing.assert_allclose(out, rounded[0] @ rounded[1], rtol=1e-5, atol=1e-6)
    own = lax.DotAlgorithm("bfloat16", "float32", "float32")
    np.testing.assert_allclose(
        lax.dot(X, Y, precision=own), rounded[0] @ Y.astype(np.float64), rtol=1e-5, atol=1e-6
    )
    grad = gf.grad(lambda x: jnp.sum(lax.dot(x, jnp.asarray(Y), precision=own)))(jnp.asarray(X))
    assert grad.shape == X.shape and grad.dtype == "float32"


def test_eight_bit_floats_and_what_no_one_computes():
    x = jnp.asarray(X).astype("float8_e4m3fn")
    out = lax.dot(x, x.T, precision="ANY_F8_ANY_F8_F32", preferred_element_type="float32")
    wide = np.asarray(x.astype("float64"))
    np.testing.assert_allclose(out, wide @ wide.T, rtol=1e-6)
    for bad in (lax.DotAlgorithm("float32", "float32", "float16"),
                lax.DotAlgorithm("float16", "float16", "float32", 2, 2, 3),
                lax.DotAlgorithm("int8", "int8", "int32")):  # fmt: skip
        with pytest.raises(ValueError, match="The dot algorithm 'DotAlgorithm"):
            lax.dot(X, Y, precision=bad)
    with pytest.raises(ValueError, match="real operands"):
        lax.dot(X * 1j, Y * 1j, precision="F32_F32_F32")
    with pytest.raises(ValueError, match="F32_F32_F33"):
        lax.dot(X, Y, precision="F32_F32_F33")


FUNCTIONS = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log1p": np.log1p,
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt, "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "tanh": np.tanh, "logistic": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_functions_are_as_accurate_as_tolerance_may_ask(name: str, dtype: str):
    x = np.abs(RNG.normal(size=4000)) * np.repeat([1e-3, 1, 5, 30], 1000)
    x = jnp.asarray(x, dtype)
    f = getattr(lax, name)
    for run in (f, gf.jit(f)):
        got = np.asarray(run(x).astype("float64"))
        with np.errstate(over="ignore"):
            want = FUNCTIONS[name](np.asarray(x, np.float64))
        info = jnp.finfo(dtype)
        fits = (np.abs(want) < float(info.max)) & (np.abs(want) > float(info.tiny))
        error = np.abs(got - want)[fits] / (np.abs(want)[fits] * float(info.eps))
        assert error.max() <= 4
    for accuracy in (None, lax.AccuracyMode.HIGHEST, lax.Tolerance(ulps=4),
                     lax.Tolerance(rtol=4 * float(info.eps))):  # fmt: skip
        assert f(x, accuracy=accuracy).dtype == dtype
    for accuracy in (lax.Tolerance(ulps=1), lax.Tolerance(atol=1e-3), "highest"):
        with pytest.raises(ValueError, match=f"{name}: "):
            f(x, accuracy=accuracy)
    with pytest.raises(ValueError):
        lax.Tolerance()
    with pytest.raises(ValueError):
        lax.Tolerance(atol=-1.0)


def _whole(*shape: int) -> Any:
    """Complex numbers with many equal parts."""
    parts = RNG.integers(-2, 3, (2, *shape))
    return (parts[0] + 1j * parts[1]).astype(np.complex64)


def test_extremes_of_complex_numbers():
    x, y = _whole(4, 6), _whole(4, 6)
    for name in ("max", "min"):
        ours, theirs = getattr(lax, name), getattr(jax.lax, name)
        for f in (ours, gf.jit(ours)):
            np.testing.assert_array_equal(f(x, y), theirs(x, y))
        np.testing.assert_array_equal(ours(x, 1 + 1j), theirs(x, np.complex64(1 + 1j)))
        start = np.complex64(-np.inf if name == "max" else np.inf)
        for axes in ((0,), (1,), (0, 1)):
            want = getattr(jax.lax, f"reduce_{name}")(x, axes)
            np.testing.assert_array_equal(getattr(lax, f"reduce_{name}")(x, axes), want)
            np.testing.assert_array_equal(lax.reduce(x, start, ours, axes), want)
        for axis, reverse in itertools.product((0, 1), (False, True)):
            want = getattr(jax.lax, f"cum{name}")(x, axis, reverse)
            np.testing.assert_array_equal(getattr(lax, f"cum{name}")(x, axis, reverse), want)
    x[1, 2] = np.nan
    assert np.isnan(lax.reduce_max(x, (0,))).tolist() == np.isnan(np.max(x, 0)).tolist()


def test_what_lax_refuses():
    with pytest.raises(ValueError, match="padding_value is a scalar"):
        lax.pad(np.zeros(2), np.zeros(2), [(0, 0, 0)])
    with pytest.raises(ValueError, match="initial value is a scalar"):
        lax.reduce(np.ones(3), np.ones(3), lax.add, (0,))
    with pytest.raises(TypeError, match="initial value is a scalar"):
        lax.reduce_window(np.ones((4, 4)), np.zeros(1), lax.max, (2, 2))
    with pytest.raises(ValueError, match="differ in structure"):
        lax.reduce({"x": np.ones(3)}, {"y": 0.0}, lambda a, b: a, (0,))
    with pytest.raises(ValueError, match=r"pair for each spatial dimension, got \(3, 3\)"):
        lax.conv_general_dilated(np.ones((1, 1, 4, 4)), np.ones((1, 1, 2, 2)), (1, 1), (3, 3))
    with pytest.raises(ValueError, match="do not fit int32"):
        gf.eval_shape(lambda x: lax.top_k(x, 2), gf.ShapeDtypeStruct((2**31 + 1,), "bfloat16"))
    for shape in ((-1,), "hello"):
        with pytest.raises(TypeError):
            lax.broadcast_shapes(shape)
    assert all(type(n) is int for pair in lax.padtype_to_pads(
        np.array([7, 7]), np.array([3, 3]), np.array([2, 2]), "SAME") for n in pair)  # fmt: skip


def test_a_convolution_mapped_over_nothing():
    x, w = np.ones((0, 1, 2, 6, 7), np.float32), np.ones((0, 3, 2, 1, 2), np.float32)
    conv = lambda m: lambda x, w: m.conv(x, w, (1, 1), "VALID")
    assert gf.vmap(conv(lax))(x, w).shape == jax.vmap(conv(jax.lax))(x, w).shape
    assert gf.vmap(conv(lax), (0, None))(x, w[:1].reshape(0, 2, 1, 2)).shape[0] == 0


def test_products_of_block_scaled_matrices():
    x, y = RNG.normal(size=(2, 3, 8)), RNG.normal(size=(2, 5, 8))
    a, b = RNG.normal(size=(2, 3, 2)), RNG.normal(size=(2, 5, 4))
    want = np.einsum("bmk,bnk->bmn", x * np.repeat(a, 4, -1), y * np.repeat(b, 2, -1))
    operands = [v.astype(np.float32) for v in (x, y, a, b)]
    np.testing.assert_allclose(nn.scaled_matmul(*operands), want, rtol=1e-4, atol=1e-5)
    assert nn.scaled_matmul(*operands, preferred_element_type="bfloat16").dtype == "bfloat16"
    for bad in ((x[0], y, a, b), (x[:, :, :4], y, a, b), (x, y, a[:, :, :1].repeat(3, 2), b)):
        with pytest.raises(ValueError, match="scaled_"):
            nn.scaled_matmul(*bad)
