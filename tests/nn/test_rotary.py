"""Rotary positions against transformers' and against rotations of complex numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

import genesis_fn.numpy as jnp
from genesis_fn import grad, jit, nn, vmap
from genesis_fn.errors import ArgumentError, DTypeError

SCALINGS = {
    "default": (None, {"rope_type": "default"}),
    "linear": (nn.LinearScaling(4.0), {"rope_type": "linear", "factor": 4.0}),
    "dynamic": (
        nn.DynamicScaling(2.0, original_max_position_embeddings=32),
        {"rope_type": "dynamic", "factor": 2.0},
    ),
    "yarn": (
        nn.YarnScaling(4.0, original_max_position_embeddings=32),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    ),
    "yarn, all options": (
        nn.YarnScaling(8.0, 64, 16.0, 2.0, mscale=1.0, mscale_all_dim=0.5, truncate=False),
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64,
         "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5,
         "truncate": False},
    ),
    "yarn, attention factor": (
        nn.YarnScaling(8.0, 64, attention_factor=1.25),
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64,
         "attention_factor": 1.25},
    ),
    "llama3": (
        nn.Llama3Scaling(8.0, 1.0, 4.0, 32),
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 32},
    ),
}  # fmt: skip


@pytest.mark.parametrize("length", [20, 100])
@pytest.mark.parametrize("name", SCALINGS)
def test_scalings_against_transformers(name: str, length: int):
    scaling, parameters = SCALINGS[name]
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=32,
        rope_parameters={"rope_theta": 5000.0, **parameters},
    )
    rng = np.random.default_rng(0)
    q = rng.normal(size=(2, length, 4, 16)).astype(np.float32)
    positions = np.stack([np.arange(length), np.arange(length) // 2])
    heads_first = torch.from_numpy(q).transpose(1, 2).requires_grad_()
    cos, sin = LlamaRotaryEmbedding(config)(heads_first, torch.from_numpy(positions))
    expected, _ = apply_rotary_pos_emb(heads_first, heads_first, cos, sin)

    layer = nn.RotaryEmbedding(16, 5000.0, scaling=scaling)
    f = lambda q: layer({}, q, positions=positions)
    expected_values = expected.detach().transpose(1, 2).numpy()
    np.testing.assert_allclose(f(jnp.asarray(q)), expected_values, atol=2e-5)
    np.testing.assert_allclose(jit(f)(jnp.asarray(q)), expected_values, atol=2e-5)
    weights = rng.normal(size=q.shape).astype(np.float32)
    (expected * torch.from_numpy(weights).transpose(1, 2)).sum().backward()
    found = grad(lambda q: jnp.sum(f(q) * weights))(jnp.asarray(q))
    np.testing.assert_allclose(found, heads_first.grad.transpose(1, 2).numpy(), atol=2e-5)


def complex_rotation(x: np.ndarray, base: float, pairs: list[tuple[int, int]]) -> np.ndarray:
    """`x` [T, heads, size] in float64 with each pair of elements as a turned complex number."""
    out = x.astype(np.float64).copy()
    for i, (a, b) in enumerate(pairs):
        angle = np.arange(len(x))[:, None] * float(base) ** (-2 * i / (2 * len(pairs)))
        turned = (out[..., a] + 1j * out[..., b]) * np.exp(1j * angle)
        out[..., a], out[..., b] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotated", [None, 8])
def test_pairs_are_complex_numbers(interleaved: bool, rotated: int | None):
    size = rotated or 12
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + size // 2) for i in range(size // 2)]
    x = np.random.default_rng(1).normal(size=(7, 3, 12)).astype(np.float32)
    layer = nn.RotaryEmbedding(12, 100.0, rotated=rotated, interleaved=interleaved)
    np.testing.assert_allclose(layer({}, x), complex_rotation(x, 100.0, pairs), atol=1e-5)
    assert layer({}, jnp.asarray(x, jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("interleaved", [False, True])
def test_products_see_distances_alone(interleaved: bool):
    rng = np.random.default_rng(2)
    q, k = rng.normal(size=(2, 1, 1, 16)).astype(np.float32)
    layer = nn.RotaryEmbedding(16, interleaved=interleaved)
    products = []
    for shift in (0, 5, 90):
        a = layer({}, q, positions=jnp.array([shift + 11]))
        b = layer({}, k, positions=jnp.array([shift + 3]))
        products.append(float(jnp.sum(a * b)))
    np.testing.assert_allclose(products, products[0], rtol=1e-4)


def test_ntk_keeps_the_fastest_and_divides_the_slowest():
    plain, _ = nn.LinearScaling(1.0).frequencies(10000.0, 64, 1)
    scaled, factor = nn.NTKScaling(4.0).frequencies(10000.0, 64, 1)
    assert factor == 1.0
    np.testing.assert_allclose(plain, 10000.0 ** (-np.arange(32) / 32), rtol=1e-12)
    np.testing.assert_allclose(scaled[0], plain[0], rtol=1e-12)
    np.testing.assert_allclose(scaled[-1], plain[-1] / 4, rtol=1e-12)
    # A dynamic scaling of twice the trained length has grown by its factor's rule.
    dynamic, _ = nn.DynamicScaling(4.0, 100).frequencies(10000.0, 64, 200)
    same, _ = nn.NTKScaling(4.0 * 2 - 3).frequencies(10000.0, 64, 1)
    np.testing.assert_allclose(dynamic, same, rtol=1e-5)


def test_batched_and_far_positions():
    layer = nn.RotaryEmbedding(8)
    x = jnp.asarray(np.random.default_rng(3).normal(size=(3, 5, 2, 8)), jnp.float32)
    each = vmap(lambda x: layer({}, x))(x)
    np.testing.assert_allclose(each, layer({}, x), atol=1e-6)
    # Angles of far positions: float32 frequencies, as in every peer, are off by position * 2**-24.
    cos, sin = layer.angles(jnp.array([100_000]))
    exact = 100_000 * 10000.0 ** (-np.arange(4) / 4)
    np.testing.assert_allclose(cos[0, 0, :4], np.cos(exact), atol=2e-2)
    np.testing.assert_allclose(sin[0, 0, 4:], np.sin(exact), atol=2e-2)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: nn.RotaryEmbedding(7), "even number"),
    (lambda: nn.RotaryEmbedding(8, rotated=10), "at most head_dim"),
    (lambda: nn.RotaryEmbedding(8, 0.0), "base is 0.0"),
    (lambda: nn.RotaryEmbedding(8, "large"), "base is 'large'"),
    (lambda: nn.RotaryEmbedding(8, scaling="linear"), "scaling=nn.LinearScaling"),
    (lambda: nn.YarnScaling(2.0, 64, mscale="large"), "mscale is 'large'"),
    (lambda: nn.LinearScaling(0.0), "factor is 0.0"),
    (lambda: nn.NTKScaling(float("nan")), "factor is nan"),
    (lambda: nn.DynamicScaling(2.0, 0), "original_max_position_embeddings is 0"),
    (lambda: nn.YarnScaling(2.0, 64, attention_factor=-1.0), "attention_factor is -1.0"),
    (lambda: nn.Llama3Scaling(8.0, 4.0, 1.0, 64), "high_freq_factor is 1.0"),
    (lambda: nn.RotaryEmbedding(8)({}, jnp.ones((2, 8))), r"\[..., T, heads, 8\]"),
    (lambda: nn.RotaryEmbedding(8).angles(jnp.ones(3)), "have to be integers"),
    (lambda: nn.apply_rotary(jnp.ones((5, 2, 4)), *nn.RotaryEmbedding(8).angles(jnp.arange(5))),
     "cos and sin rotate 8"),
    (lambda: nn.RotaryEmbedding(2, scaling=nn.NTKScaling(2.0)).angles(jnp.arange(2)),
     "more than one pair"),
])  # fmt: skip
def test_refusals(make, message: str):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_integers_are_not_rotated():
    """They were, and rounded towards zero."""
    with pytest.raises(DTypeError, match=r"x is i32\[3,1,4\]"):
        nn.RotaryEmbedding(4)({}, jnp.ones((3, 1, 4), jnp.int32))
