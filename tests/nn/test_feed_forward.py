"""MLP, GatedMLP and SwiGLU against transformers' and torch's blocks with the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import CLIPTextConfig, Qwen3Config
from transformers.models.clip.modeling_clip import CLIPMLP
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

import genesis_fn.numpy as jnp
from genesis_fn import jit, nn, random, tree, vjp, vmap
from genesis_fn.errors import ArgumentError
from genesis_fn.test_util import check_grads

F, H = 6, 10


def array(seed: int, *shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def qwen3(act: str) -> Any:
    return Qwen3MLP(Qwen3Config(hidden_size=F, intermediate_size=H, hidden_act=act))


def clip(act: str) -> Any:
    config = CLIPTextConfig(
        hidden_size=F, intermediate_size=H, hidden_act=act, num_attention_heads=2
    )
    return CLIPMLP(config)


def gated_with_bias() -> Any:
    block = qwen3("relu")
    for name, n_in, n_out in (("gate_proj", F, H), ("up_proj", F, H), ("down_proj", H, F)):
        setattr(block, name, torch.nn.Linear(n_in, n_out))
    return block


def exact_gelu(x: Any) -> Any:
    return nn.gelu(x, approximate=False)


CASES = {
    "SwiGLU": (lambda: nn.SwiGLU(F, H), lambda: qwen3("silu")),
    "GatedMLP": (lambda: nn.GatedMLP(F, H), lambda: qwen3("silu")),
    "GatedMLP, gelu": (lambda: nn.GatedMLP(F, H, exact_gelu), lambda: qwen3("gelu")),
    "GatedMLP, bias": (lambda: nn.GatedMLP(F, H, nn.relu, bias=True), gated_with_bias),
    "MLP": (lambda: nn.MLP(F, H), lambda: clip("gelu_new")),
    "MLP, relu": (lambda: nn.MLP(F, H, nn.relu), lambda: clip("relu")),
}


@pytest.mark.parametrize("name", CASES)
def test_blocks_of_transformers(name: str) -> None:
    layer, block = [make() for make in CASES[name]]
    params = layer.init(random.key(0))
    modules = dict(block.named_parameters())
    ours = lambda params: {
        tree.keystr(path, simple=True, separator="."): np.array(p)
        for path, p in tree.leaves_with_path(params)
    }
    assert ours(params).keys() == modules.keys()
    with torch.no_grad():
        for n, p in ours(params).items():
            modules[n].copy_(torch.from_numpy(p))
    x, ct = array(1, 2, 3, F), array(2, 2, 3, F)
    t = torch.from_numpy(np.array(x)).requires_grad_()
    expected = block(t)
    (expected * torch.from_numpy(np.array(ct))).sum().backward()
    for run in (layer, jit(layer), vmap(layer, (None, 0))):
        y, pull = vjp(run, params, x)
        np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
        d_params, dx = pull(ct)
        np.testing.assert_allclose(dx, t.grad.numpy(), rtol=1e-4, atol=1e-5)
        for n, g in ours(d_params).items():
            np.testing.assert_allclose(g, modules[n].grad.numpy(), rtol=1e-4, atol=1e-5)
    check_grads(lambda x: layer(params, x), (x[0],), order=2, atol=2e-2, rtol=2e-2)


def test_dropout_is_of_the_hidden_features() -> None:
    layer = nn.MLP(F, 2000, nn.relu, dropout=0.25)
    params, x = layer.init(random.key(0)), array(1, F)
    np.testing.assert_array_equal(layer(params, x), nn.MLP(F, 2000, nn.relu)(params, x))
    h = np.asarray(nn.relu(nn.Linear(F, 2000)(params["fc1"], x)))
    # Columns of the second weight that are a one each show what was kept.
    shown = {**params, "fc2": {"weight": jnp.eye(F, 2000), "bias": jnp.zeros(F)}}
    kept = np.stack([
        layer(shown, x, key=random.key(i), train=True) for i in range(200)
    ])  # fmt: skip
    alive = h[:F] > 0
    assert alive.any()
    np.testing.assert_allclose(
        np.where(kept[:, alive] == 0, h[:F][alive] / 0.75, kept[:, alive]),
        np.broadcast_to(h[:F][alive] / 0.75, kept[:, alive].shape),
        rtol=1e-5,
    )
    assert abs((kept[:, alive] == 0).mean() - 0.25) < 0.08
    with pytest.raises(ArgumentError, match="needs key="):
        layer(params, x, train=True)
    with pytest.raises(ArgumentError, match="probability"):
        nn.MLP(F, H, dropout=2.0)


def test_layers_are_values() -> None:
    assert nn.SwiGLU(F, H) == nn.SwiGLU(F, H) != nn.SwiGLU(F, H, True)
    assert nn.SwiGLU(F, H).activation is nn.silu
    with pytest.raises(TypeError, match="activation"):
        nn.SwiGLU(F, H, activation=nn.relu)  # pyright: ignore[reportCallIssue]
    low = nn.SwiGLU(F, H, dtype=jnp.bfloat16)
    assert {p.dtype.name for p in tree.leaves(low.init(random.key(0)))} == {"bfloat16"}


def test_what_they_cannot_use_is_refused() -> None:
    def refused(call: Any) -> str:
        with pytest.raises(ArgumentError) as error:
            call()
        return str(error.value)

    wrong: Any = "silu"
    assert "activation=nn.silu" in refused(lambda: nn.GatedMLP(F, H, wrong))
    assert "activation is 'silu'" in refused(lambda: nn.MLP(F, H, wrong))
    wrong = -1
    for make in (nn.MLP, nn.GatedMLP, nn.SwiGLU):
        assert "hidden is -1" in refused(lambda make=make: make(F, wrong))
        layer = make(F, H)
        params = layer.init(random.key(0))
        assert f"features={F}" in refused(lambda: layer(params, jnp.ones((2, 5))))
        name, kept = next(iter(params)), dict(list(params.items())[1:])
        assert f"params[{name!r}] is wanted" in refused(lambda: layer(kept, jnp.ones((2, F))))
        other = {**params, name: {"weight": jnp.ones((3, F)), "bias": jnp.ones(H)}}
        text = refused(lambda: layer(other, jnp.ones((2, F))))
        assert f"params[{name!r}]['weight'] is f32[3,6], but has to be [10, 6]" in text
        assert "type NoneType" in refused(lambda: layer(None, jnp.ones((2, F))))
