"""Mistakes with layers: each message names the layer, the parameter by its path, both shapes, the
user's line and the remedy, in at most six lines."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn
from genesis_fn.nn import Module


def message(call: Callable[[], Any]) -> str:
    with pytest.raises(gf.errors.ArgumentError) as error:
        call()
    text = str(error.value)
    assert len(text.splitlines()) <= 6 and "test_layers.py:" in text, text
    return text


# A layer, an input that it takes, inputs that it does not with what is said of them.
LAYERS: dict[str, tuple[Module, tuple[int, ...], dict[tuple[int, ...], str]]] = {
    "Linear": (nn.Linear(4, 2), (3, 4), {
        (3, 5): "the input is f32[3,5], but has to be [..., 4]",
        (): "the input is f32[], but has to be [..., 4]",
        (3, 4, 7): "move them there with jnp.moveaxis(x, 1, -1)"}),
    "RMSNorm": (nn.RMSNorm(4), (3, 4), {(3, 1): "the input is f32[3,1], but has to be [..., 4]"}),
    "LayerNorm": (nn.LayerNorm(4), (3, 4), {(4, 3): "the input is f32[4,3]"}),
    "BatchNorm": (nn.BatchNorm(4), (3, 4), {(3, 5): "but has to be [..., 4]"}),
    "Conv": (nn.Conv(3, 4), (2, 8, 8, 3), {
        (2, 3, 8, 8): "jnp.moveaxis(x, 1, -1)",
        (8, 8, 3): "the input is f32[8,8,3], but has to be [batch, H, W, 3]"}),
    "Conv1d": (nn.Conv1d(3, 4), (2, 8, 3), {(2, 8, 8, 3): "but has to be [batch, W, 3]"}),
    "Conv2d": (nn.Conv2d(3, 4), (2, 8, 8, 3), {(2, 8, 3): "but has to be [batch, H, W, 3]"}),
    "Conv3d": (nn.Conv3d(3, 4), (2, 4, 4, 4, 3), {
        (2, 8, 8, 3): "but has to be [batch, D, H, W, 3]"}),
    "ConvTranspose": (nn.ConvTranspose(3, 4, strides=2, padding=4), (2, 8, 8, 3), {
        (2, 3, 8, 8): "jnp.moveaxis(x, 1, -1)",
        (1, 3, 8, 3): "of which the output has lengths [-1, 9]"}),
    "ConvTranspose1d": (nn.ConvTranspose1d(3, 4), (2, 8, 3), {
        (2, 8, 8, 3): "but has to be [batch, W, 3]"}),
    "ConvTranspose2d": (nn.ConvTranspose2d(3, 4), (2, 8, 8, 3), {
        (2, 8, 3): "but has to be [batch, H, W, 3]"}),
    "ConvTranspose3d": (nn.ConvTranspose3d(3, 4), (2, 4, 4, 4, 3), {
        (2, 8, 8, 3): "but has to be [batch, D, H, W, 3]"}),
    "PatchEmbedding": (nn.PatchEmbedding(4, 3, 2), (2, 8, 8, 3), {
        (2, 8, 3): "but has to be [batch, H, W, 3]",
        (2, 8, 9, 3): "whose axes [8, 9] are no multiples of [4, 4]"}),
    "GroupNorm": (nn.GroupNorm(2, 4), (3, 4), {
        (3, 5): "but has to be [..., 4]", (4,): "but has to be [batch, ..., 4]"}),
    "InstanceNorm": (nn.InstanceNorm(4), (3, 5, 4), {
        (3, 5, 5): "but has to be [..., 4]", (3, 4): "but has to be [batch, *space, 4]",
        (3, 1, 4): "1 element for each mean"}),
    "AvgPool": (nn.AvgPool((2, 2)), (1, 4, 4, 3), {
        (4, 4, 3): "but has to be [batch, H, W, features]",
        (1, 4, 1, 3): "its window is 2 long along an axis of 1 of the input"}),
    "MaxPool": (nn.MaxPool(2), (1, 4, 4, 3), {
        (4, 3): "but has to be [batch, W, features]",
        (1, 1, 4, 3): "its window is 2 long along an axis of 1 of the input"}),
    "AdaptiveAvgPool": (nn.AdaptiveAvgPool((2, 2)), (1, 4, 5, 3), {
        (4, 4, 3): "but has to be [batch, H, W, features]",
        (1, 0, 4, 3): "bins of no elements"}),
    "AdaptiveMaxPool": (nn.AdaptiveMaxPool(2), (1, 4, 5, 3), {
        (4,): "but has to be [batch, W, features]", (1, 0, 4, 3): "bins of no elements"}),
    "ChannelDropout": (nn.ChannelDropout(), (3, 4), {(4,): "[batch, *space, features]"}),
    "FeatureAlphaDropout": (nn.FeatureAlphaDropout(), (3, 4), {(4,): "[batch, *space, features]"}),
    "DropPath": (nn.DropPath(), (3, 4), {(): "but has to be [batch, ...]"}),
    "Embedding": (nn.Embedding(5, 2), (), {(3,): "the input is f32[3], but has to be integers"}),
    "Flatten": (nn.Flatten(), (2, 3), {(): "the input is f32[], but has to be [batch, ...]"}),
    "Sequential": (nn.Sequential(nn.relu, nn.Linear(4, 2)), (3, 4), {
        (3, 5): "Linear(4, 2): the input is f32[3,5]"}),
    "Residual": (nn.Residual(nn.Linear(4, 4)), (3, 4), {(3, 5): "Linear(4, 4): the input is f32"}),
    "RNNCell": (nn.RNNCell(4, 2), (4,), {(5,): "the input is f32[5], but has to be [..., 4]"}),
    "LSTMCell": (nn.LSTMCell(4, 2), (4,), {(): "the input is f32[], but has to be [..., 4]"}),
    "GRUCell": (nn.GRUCell(4, 2), (4,), {
        (3, 4): "state['hidden'] is f32[2], but has to be [3, 2]"}),
    "RNN": (nn.RNN(nn.GRUCell(4, 2)), (3, 4), {(4,): "but has to be [batch, time, 4]"}),
    "LSTM": (nn.LSTM(4, 2), (3, 4), {
        (4,): "but has to be [batch, time, 4]", (3, 5): "but has to be [..., 4]",
        (2, 3, 4): "state = layer.init_state(batch=2)"}),
    "GRU": (nn.GRU(4, 2), (3, 4), {(3, 5): "the input is f32[3,5], but has to be [..., 4]"}),
    "SelectiveSSM": (nn.SelectiveSSM(4, 2), (3, 4), {(4,): "has to be [batch, time, 4]"}),
    "MLP": (nn.MLP(4, 2), (3, 4), {(3, 5): "the input is f32[3,5], but has to be [..., 4]"}),
    "GatedMLP": (nn.GatedMLP(4, 2), (3, 4), {(3, 5): "but has to be [..., 4]"}),
    "SwiGLU": (nn.SwiGLU(4, 2), (3, 4), {(3, 5): "but has to be [..., 4]"}),
    "MoE": (nn.MoE(4, 2, 3, 2), (3, 4), {(3, 5): "but has to be [..., 4]"}),
    "MultiHeadAttention": (nn.MultiHeadAttention(4, 2), (2, 3, 4), {
        (2, 3, 5): "but has to be [..., 4]", (3, 4): "but has to be [batch, T, 4]"}),
    "RotaryEmbedding": (nn.RotaryEmbedding(4), (3, 2, 4), {
        (3, 2, 5): "but has to be [..., T, heads, 4]", (2, 4): "but has to be [..., T, heads, 4]"}),
    "WeightNorm": (nn.WeightNorm(nn.Linear(4, 2)), (3, 4), {
        (3, 5): "Linear(4, 2): the input is f32[3,5]"}),
    "SpectralNorm": (nn.SpectralNorm(nn.Linear(4, 2)), (3, 4), {
        (3, 5): "Linear(4, 2): the input is f32[3,5]"}),
    "Tied": (
        nn.Tied(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), {"1.weight": "0.weight"}), (3, 4),
        {(3, 5): "Linear(4, 4): the input is f32[3,5]"}),
}  # fmt: skip
# Without parameters, and of any input.
PLAIN = {"Dropout", "AlphaDropout", "Activation", "Module"}
# Their parameters are none, or those of other layers.
OF_OTHERS = {
    "Flatten", "InstanceNorm", "AvgPool", "MaxPool", "AdaptiveAvgPool", "AdaptiveMaxPool",
    "ChannelDropout", "FeatureAlphaDropout", "DropPath", "Sequential", "Residual", "RNN", "LSTM",
    "GRU", "SelectiveSSM", "WeightNorm", "SpectralNorm", "Tied", "MLP", "GatedMLP", "SwiGLU", "MoE",
    "MultiHeadAttention", "RotaryEmbedding",
}  # fmt: skip


def test_every_layer_is_in_the_table() -> None:
    layers = {n for n, v in vars(nn).items() if inspect.isclass(v) and issubclass(v, Module)}
    assert layers == {*LAYERS, *PLAIN}


def given(name: str) -> tuple[Module, Any, Any]:
    layer, shape, _ = LAYERS[name]
    x = jnp.zeros(shape, "int32") if name == "Embedding" else jnp.ones(shape)
    return layer, layer.init(gf.random.key(3)), x


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_inputs(name: str) -> None:
    layer, params, x = given(name)
    state = layer.init_state(batch=())
    call = lambda p, v: layer(p, v, state=state)
    call(params, x)
    for shape, words in LAYERS[name][2].items():
        for f in (call, gf.jit(call)):
            text = message(lambda: f(params, jnp.ones(shape)))
            assert words in text and f"{name}(" in text or "Linear(" in text, text


@pytest.mark.parametrize("name", sorted(set(LAYERS) - OF_OTHERS))
def test_parameters(name: str) -> None:
    layer, params, x = given(name)
    for key, value in params.items():
        shape = list(value.shape)
        left = {k: v for k, v in params.items() if k != key}
        text = message(lambda: layer(left, x))
        assert f"params[{key!r}] of shape {shape} is wanted, but params has the keys" in text
        assert f"{name}(" in text and "params = layer.init(key)" in text
        wrong = {**params, key: jnp.ones((*shape, 2))}
        kind = str(jnp.ones((*shape, 2)).aval)
        text = message(lambda: layer(wrong, x))
        assert f"params[{key!r}] is {kind}, but has to be {shape}" in text
    assert "but params is None" in message(lambda: layer(None, x))
    assert "but params is of type Array" in message(lambda: layer(x, params))
    assert "but params is of type list" in message(lambda: layer([params], x))


def test_paths_in_containers() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.relu, nn.Sequential(nn.Residual(nn.Linear(3, 3))))
    params = net.init(gf.random.key(0))
    x = jnp.ones((2, 4))
    inner = {"weight": params[2][0]["weight"]}
    text = message(lambda: net([*params[:2], [inner]], x))
    assert "Linear(3, 3): params[2][0]['bias'] of shape [3] is wanted" in text
    inner = {**params[2][0], "bias": jnp.ones(5)}
    text = message(lambda: net([*params[:2], [inner]], x))
    assert "params[2][0]['bias'] is f32[5], but has to be [3]" in text
    for wrong in (params[:2], [*params, {}], None, {"weight": x}):
        text = message(lambda: net(wrong, x))
        assert "one entry for each of the 3 layers" in text and "layer.init(key)" in text


def test_states() -> None:
    layer, params, x = given("BatchNorm")
    for state in ({"running_mean": jnp.zeros(4)}, {}):
        text = message(lambda: layer(params, x, state=state))
        assert "of shape [4] is wanted, but state has the keys" in text
        assert "layer.init_state()" in text
    net = nn.Sequential(nn.BatchNorm(4), nn.relu)
    text = message(lambda: net(net.init(gf.random.key(0)), x, state=[None]))
    assert "state has to be a list with one entry for each of the 2 layers" in text


def test_arguments() -> None:
    for rate in (1.5, -0.1, float("nan")):
        assert f"rate is {rate}, but it is a probability" in message(lambda: nn.Dropout(rate))
    x = jnp.ones(7)
    assert "needs key=" in message(lambda: nn.Dropout(0.5)({}, x, train=True))
    nothing = nn.Dropout(1.0)
    drop = lambda v: nothing({}, v, key=gf.random.key(1), train=True).sum()
    np.testing.assert_array_equal(gf.grad(drop)(x), np.zeros(7))
    counts: tuple[Any, ...] = (3.5, "3", None, -1)
    for count in counts:
        text = message(lambda: nn.one_hot(jnp.arange(3), count))
        assert "num_classes" in text and repr(count) in text
