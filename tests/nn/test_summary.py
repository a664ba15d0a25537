"""`nn.summary`: its numbers are torch's, its rows those of the layers and groups of parameters."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import errors, models, nn, random, tree


def shape(*sizes: int, dtype: str = "float32") -> gf.ShapeDtypeStruct:
    return gf.ShapeDtypeStruct(sizes, dtype)


def summary_of(model: nn.Module, x: Any, **options: Any) -> Any:
    return nn.summary(model, gf.eval_shape(model.init, random.key(0)), x, **options)


def rows_of(summary: Any) -> dict[str, Any]:
    return {r.path: r for r in summary.rows}


def of_torch(model: torch.nn.Module, x: torch.Tensor) -> tuple[int, int]:
    """(parameters, FLOPs in products) by torch."""
    with FlopCounterMode(display=False) as counter:
        model(x)
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops()


def test_an_mlp_is_as_torch_counts_it():
    ours = summary_of(nn.Sequential(nn.Linear(20, 30), nn.relu, nn.Linear(30, 7)), shape(5, 20))
    theirs = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 7))
    assert (ours.parameters, ours.product_flops) == of_torch(theirs, torch.ones(5, 20))
    assert ours.parameter_bytes == 4 * ours.parameters
    rows = rows_of(ours)
    assert list(rows) == ["", "0", "1", "2"]
    assert rows["0"].flops == 2 * 5 * 20 * 30 + 5 * 30 and rows["0"].count == 20 * 30 + 30
    assert [str(a) for a in rows["1"].inputs + rows["1"].outputs] == ["f32[5,30]"] * 2
    assert rows["1"].parameters == {} and rows["1"].flops > 0
    assert {k: a.shape for k, a in rows["2"].parameters.items()} == {
        "2.weight": (7, 30), "2.bias": (7,)
    }  # fmt: skip


def test_a_cnn_is_as_torch_counts_it():
    model = nn.Sequential(
        nn.Conv(3, 8, (3, 3)), nn.BatchNorm(8), nn.relu, nn.Flatten(), nn.Linear(8 * 6 * 6, 4)
    )
    state = model.init_state()
    ours = summary_of(model, shape(2, 6, 6, 3), state=state)
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding="same"), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(8 * 6 * 6, 4),
    )  # fmt: skip
    assert (ours.parameters, ours.product_flops) == of_torch(theirs, torch.ones(2, 3, 6, 6))
    assert ours.state_bytes == sum(x.nbytes for x in tree.leaves(state))
    assert str(rows_of(ours)["1"].outputs[0]) == "f32[2,6,6,8]"


@pytest.mark.parametrize("options", [
    {"strides": 1, "padding": 1},
    {"strides": 2, "padding": 1},
    {"strides": (3, 2), "padding": 0, "groups": 2},
    {"strides": 3, "padding": 0, "dilation": 2, "output_padding": 2},
])  # fmt: skip
def test_transposed_convolutions_are_as_torch_counts_them(options: dict[str, Any]):
    """The zeros between elements were counted: a factor of the strides."""
    named = {"stride" if k == "strides" else k: v for k, v in options.items()}
    theirs: Any = torch.nn.ConvTranspose2d(4, 6, 3, **named)
    ours = summary_of(nn.ConvTranspose2d(4, 6, 3, **options), shape(2, 5, 5, 4))
    assert (ours.parameters, ours.product_flops) == of_torch(theirs, torch.ones(2, 4, 5, 5))


def test_derivatives_of_strided_convolutions_cost_what_they_do():
    """By the input it is a transposed convolution of as many products."""
    layer = nn.Conv2d(4, 6, 3, strides=2, padding=0)

    def derivative(params: Any, x: Any) -> Any:
        return gf.value_and_grad(lambda x: jnp.sum(layer(params, x) ** 2))(x)

    ours = nn.summary(derivative, layer.init(random.key(0)), jnp.ones((2, 7, 7, 4)))
    x = torch.ones(2, 4, 7, 7, requires_grad=True)
    module = torch.nn.Conv2d(4, 6, 3, 2).requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        module(x).square().sum().backward()
    assert ours.product_flops == counter.get_total_flops() == 2 * 2 * 2 * 3 * 3 * 6 * 4 * 9


CONFIG = models.QwenConfig(64, 32, 48, 3, 4, 2, 8)


def qwen_of_transformers() -> torch.nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    c = CONFIG
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=c.vocab_size, hidden_size=c.hidden_size,
            intermediate_size=c.intermediate_size, num_hidden_layers=c.num_hidden_layers,
            num_attention_heads=c.num_attention_heads, num_key_value_heads=c.num_key_value_heads,
            head_dim=c.head_dim, tie_word_embeddings=True, attn_implementation="eager",
        )
    )  # fmt: skip


@pytest.mark.parametrize("remat", [False, True])
def test_a_qwen_is_as_torch_counts_it_with_a_row_for_each_group(remat: bool):
    ours = summary_of(models.Qwen(CONFIG), shape(2, 16, dtype="int32"), remat=remat)
    theirs = qwen_of_transformers()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        theirs(torch.zeros(2, 16, dtype=torch.int64))
    # Rotary angles are a product with the positions in transformers, an elementwise one here.
    of_angles = 2 * 16 * CONFIG.head_dim // 2
    assert ours.parameters == sum(p.numel() for p in theirs.parameters())
    difference = counter.get_total_flops() - ours.product_flops
    assert 0 <= difference <= 2 * of_angles
    rows = rows_of(ours)
    q = rows["layers.0.self_attn.q_proj"]
    assert q.flops == 2 * 2 * 16 * 32 * 32 and [a.shape for a in q.outputs] == [(2, 16, 32)]
    assert [a.shape for a in q.inputs] == [(2, 16, 32)]
    assert [a.shape for a in rows["embed_tokens"].outputs] == [(2, 16, 32), (2, 16, 64)]
    assert rows["layers.2.mlp"].flops == 3 * 2 * 2 * 16 * 32 * 48
    text = repr(ours)
    assert "layers.0..2" in text and "layers.1" not in text and "layers.0.mlp.down_proj" in text
    assert max(map(len, text.splitlines())) <= 120


class Block(nn.Module):
    """A transformer block with layers in its fields."""

    def __init__(self, features: int, heads: int) -> None:
        self.heads = heads
        self.norms = (nn.LayerNorm(features), nn.LayerNorm(features))
        self.qkv = nn.Linear(features, 3 * features)
        self.out = nn.Linear(features, features)
        self.mlp = nn.Sequential(
            up=nn.Linear(features, 4 * features),
            gelu=nn.gelu,
            down=nn.Linear(4 * features, features),
        )

    def init(self, key: Any) -> Any:
        k = random.split(key, 5)
        return {
            "norms": [n.init(key) for n, key in zip(self.norms, k)],
            "qkv": self.qkv.init(k[2]),
            "out": self.out.init(k[3]),
            "mlp": self.mlp.init(k[4]),
        }

    def __call__(self, params: Any, x: Any, **_: Any) -> Any:
        b, t, d = x.shape
        qkv = self.qkv(params["qkv"], self.norms[0](params["norms"][0], x))
        q, k, v = [
            qkv[..., i * d : (i + 1) * d].reshape(b, t, self.heads, d // self.heads)
            for i in range(3)
        ]
        a = nn.dot_product_attention(q, k, v).reshape(b, t, d)
        x = x + self.out(params["out"], a)
        return x + self.mlp(params["mlp"], self.norms[1](params["norms"][1], x))


def test_a_transformer_block_is_as_torch_counts_it():
    block = Block(16, 2)
    ours = summary_of(block, shape(3, 7, 16))
    theirs = torch.nn.TransformerEncoderLayer(16, 2, 64, batch_first=True, activation="gelu")
    count, _ = of_torch(theirs, torch.ones(3, 7, 16))
    products = 2 * 3 * 7 * 16 * (3 * 16 + 16 + 2 * 64) + 2 * 2 * 3 * 2 * 7 * 7 * 8
    assert (ours.parameters, ours.product_flops) == (count, products)
    rows = rows_of(ours)
    assert [p for p in rows if p.count(".") == 1] == [
        "norms.0",
        "norms.1",
        "mlp.up",
        "mlp.gelu",
        "mlp.down",
    ]
    assert rows["qkv"].flops == 2 * 21 * 16 * 48 + 21 * 48
    inside = sum(rows[p].flops for p in ("norms.0", "norms.1", "qkv", "out", "mlp"))
    assert rows[""].flops == ours.flops > inside > products - 2 * 2 * 3 * 2 * 7 * 7 * 8


def test_flops_are_those_of_the_traced_program():
    model = nn.Sequential(nn.Linear(4, 6), nn.gelu, nn.Residual(nn.Linear(6, 6)), nn.softmax)
    params, x = model.init(random.key(0)), jnp.ones((3, 4))
    ours = nn.summary(model, params, x)
    assert ours.flops == gf.jit(model).trace(params, x).cost_analysis()["flops"]
    assert ours.rows[0].flops == ours.flops
    residual = rows_of(ours)["2"]
    assert residual.flops == rows_of(ours)["2.layer"].flops + 3 * 6  # the sum is its own


@dataclasses.dataclass(frozen=True)
class Scanned(nn.Module):
    """One layer, its parameters stacked, in a scan with checkpoints; then a nested head."""

    layer: nn.Module
    depth: int

    def init(self, key: Any) -> Any:
        first, second = random.split(key)
        stacked = gf.vmap(self.layer.init)(random.split(first, self.depth))
        return {"layers": stacked, "head": {"weight": random.normal(second, (3, 4))}}

    def __call__(self, params: Any, x: Any, **_: Any) -> Any:
        def step(h: Any, p: Any) -> Any:
            return gf.checkpoint(self.layer)(p, h), None

        h, _ = gf.lax.scan(step, x, params["layers"])
        # A cast, a view and a nested jit lie between the weight and its use.
        weight = jnp.astype(params["head"]["weight"], "float32")
        return gf.jit(lambda w, h: h @ w)(weight.T, h)


def test_a_scanned_layer_counts_as_often_as_it_runs():
    ours = summary_of(Scanned(nn.Linear(4, 4, bias=False), 5), shape(2, 4))
    rows = rows_of(ours)
    assert rows["layer"].flops == 5 * 2 * 2 * 4 * 4 and rows["layer"].count == 5 * 4 * 4
    assert rows["head"].flops == 2 * 2 * 4 * 3
    assert [a.shape for a in rows["head"].inputs + rows["head"].outputs] == [(2, 4), (2, 3)]
    assert ours.parameters == rows["layer"].count + rows["head"].count


@gf.jit
def shared_function(x: Any) -> Any:
    return x * x + 1.0


class Around(nn.Module):
    """Calls a jitted function that its layer has called before."""

    def __init__(self) -> None:
        self.inner = nn.Activation(shared_function)

    def __call__(self, params: Any, x: Any, **_: Any) -> Any:
        return shared_function(self.inner(params, x))


def test_a_jitted_function_counts_for_each_of_its_callers():
    for _ in range(2):  # its program is kept with the scope of the first call
        rows = rows_of(summary_of(Around(), shape(5)))
        assert rows["inner"].flops == 10 and rows[""].flops == 20


def test_vmapped_members_and_functions():
    layer = nn.Linear(3, 2)
    members = gf.eval_shape(gf.vmap(layer.init), random.split(random.key(0), 4))

    class Members(nn.Module):
        def __init__(self) -> None:
            self.member = layer

        def __call__(self, params: Any, x: Any, **_: Any) -> Any:
            return gf.vmap(self.member, (0, None))(params, x)

    rows = rows_of(nn.summary(Members(), members, shape(5, 3)))
    assert rows["member"].flops == 4 * (2 * 5 * 3 * 2 + 5 * 2) and rows["member"].count == 4 * 8

    def function(params: Any, x: Any) -> Any:
        return x @ params["a"]["w"] + params["a"]["b"]

    params = {"a": {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}}
    rows = rows_of(nn.summary(function, params, shape(5, 3)))
    assert rows["a"].flops == 2 * 5 * 3 * 2 + 10
    assert [a.shape for a in rows["a"].outputs] == [(5, 2)]


def test_depth_folds_and_options_reach_the_call():
    deep = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.relu) for _ in range(6)])
    whole, folded = summary_of(deep, shape(1, 4)), summary_of(deep, shape(1, 4), depth=1)
    assert [r.path for r in folded.rows] == ["", *"012345"]
    assert folded.rows[1:] == tuple(r for r in whole.rows if r.level == 1)
    assert "0..5" in repr(whole) and "6 alike" in repr(whole) and "<table" in whole._repr_html_()
    drop = nn.Sequential(nn.Dropout(0.5))
    quiet = nn.summary(drop, drop.init(random.key(0)), shape(3))
    noisy = nn.summary(drop, drop.init(random.key(0)), shape(3), key=random.key(1), train=True)
    assert quiet.flops == 0 < noisy.flops


def test_nothing_is_computed_and_the_model_is_as_it_was():
    model = nn.Sequential(nn.Linear(10**6, 10**6))  # 4 TB of parameters
    before = dict(vars(model))
    assert summary_of(model, shape(1, 10**6)).parameters == 10**12 + 10**6
    assert vars(model) == before and type(model.layers[0]) is nn.Linear


def test_bytes_of_activations_are_those_of_results():
    ours = summary_of(
        nn.Sequential(nn.Linear(4, 8, bias=False), jnp.sin, jnp.cos, jnp.tanh), shape(2, 4)
    )
    assert ours.activation_bytes == 4 * 2 * 8 * 4
    # Operand and result of an operation, and the call's output, whose memory is there throughout.
    assert ours.peak_bytes == 3 * 2 * 8 * 4


def test_shapes_stand_for_arrays_in_options_and_state():
    """They reached the call as they were, and flags did not."""
    layer = nn.MultiHeadAttention(8, 2, context_features=6)
    options = {"context": shape(2, 5, 6), "mask": shape(3, 5, dtype="bool")}
    found = summary_of(layer, shape(2, 3, 8), **options)
    given = {k: jnp.ones(a.shape, a.dtype) for k, a in options.items()}
    assert found.flops == summary_of(layer, jnp.ones((2, 3, 8)), **given).flops
    rows = rows_of(found)
    assert [a.shape for a in rows[""].inputs] == [(2, 3, 8), (2, 5, 6), (3, 5)]
    assert [a.shape for a in rows["k_proj"].inputs + rows["k_proj"].outputs] == [
        (2, 5, 6),
        (2, 5, 8),
    ]
    products = 2 * 2 * (3 * 8 * 8 * 2 + 5 * 6 * 8 * 2) + 2 * 2 * 2 * 2 * 3 * 5 * 4
    assert found.product_flops == products

    layer = nn.MultiHeadAttention(8, 2, causal=True)
    state = gf.eval_shape(lambda: layer.init_state(batch=2, capacity=6))
    assert summary_of(layer, shape(2, 1, 8), state=state).state_bytes == 2 * 4 * 2 * 6 * 8 + 8

    def model(p: Any, x: Any, *, double: bool, times: int) -> Any:
        return x @ p if double and times == 2 else x

    assert nn.summary(model, shape(3, 4), shape(2, 3), double=True, times=2).flops == 2 * 2 * 3 * 4


@pytest.mark.parametrize("layer", [
    nn.MultiHeadAttention(16, 2, causal=True), nn.LayerNorm(16), nn.RMSNorm(16), nn.SwiGLU(16, 48),
])  # fmt: skip
def test_peak_is_no_more_than_all_activations(layer: nn.Module):
    """Of fused functions it was that of their definitions: all scores of attention at once."""
    short, long = [summary_of(layer, shape(1, n, 16)) for n in (64, 128)]
    assert 0 < short.peak_bytes <= short.activation_bytes
    assert long.peak_bytes == 2 * short.peak_bytes


def test_errors():
    model = nn.Sequential(nn.Linear(4, 8))
    params = model.init(random.key(0))
    with pytest.raises(errors.ArgumentError, match="Linear.*the input is") as ours:
        nn.summary(model, params, shape(2, 5))
    with pytest.raises(errors.ArgumentError) as plain:
        model(params, jnp.ones((2, 5)))
    assert str(ours.value).splitlines()[0] == str(plain.value).splitlines()[0]
    with pytest.raises(errors.ArgumentError, match="summary takes a layer"):
        nn.summary(nn.Linear, params, shape(2, 4))  # pyright: ignore
    with pytest.raises(errors.ArgumentError, match="depth is -1"):
        nn.summary(model, params, shape(2, 4), depth=-1)
    norm = nn.Sequential(nn.BatchNorm(4))
    with pytest.raises(errors.ArgumentError, match="state= is missing"):
        summary_of(norm, shape(2, 4))


def test_a_layer_that_is_not_called_says_so():
    class Idle(nn.Module):
        def __init__(self) -> None:
            self.used, self.idle = nn.Linear(3, 3), nn.Linear(3, 3)

        def init(self, key: Any) -> Any:
            return {"used": self.used.init(key), "idle": self.idle.init(key.copy())}

        def __call__(self, params: Any, x: Any, **_: Any) -> Any:
            return self.used(params["used"], x)

    ours = summary_of(Idle(), shape(2, 3))
    assert "(not called)" in repr(ours) and ours.parameters == 24
    assert np.isclose(rows_of(ours)["used"].flops, 2 * 2 * 9 + 6)
