"""Adapters beside PEFT's: opened by it, opened of it, the same numbers, gradients and training."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import io, models, nn, optim
from genesis_fn.errors import ArgumentError, FileError
from genesis_fn.models import decoder

pytest.importorskip("peft")

QWEN3 = models.DecoderConfig(
    vocab_size=97, hidden_size=32, intermediate_size=40, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, tie_word_embeddings=False,
    max_position_embeddings=64, initializer_range=0.3,
)  # fmt: skip
QWEN2 = models.DecoderConfig(
    vocab_size=97, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, qk_norm=False, attention_bias=True,
    max_position_embeddings=64, initializer_range=0.3,
)  # fmt: skip
MOE = models.DecoderConfig(
    vocab_size=97, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2,
    moe_intermediate_size=16, max_position_embeddings=64, initializer_range=0.3,
)  # fmt: skip
CASES = {
    "two": (QWEN3, {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"]}),
    "all": (QWEN3, {"r": 3, "lora_alpha": 8, "target_modules": "all-linear"}),
    "rslora": (QWEN3, {"r": 4, "use_rslora": True, "target_modules": ["down_proj"]}),
    "dora": (QWEN3, {"r": 4, "use_dora": True, "target_modules": ["q_proj", "up_proj"]}),
    "regex": (QWEN3, {"r": 2, "target_modules": r"model\.layers\.[02]\.mlp\.\w+_proj"}),
    "head": (QWEN3, {"r": 2, "target_modules": ["lm_head", "o_proj"]}),
    "patterns": (QWEN3, {
        "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "k_proj"],
        "rank_pattern": {"q_proj": 5}, "alpha_pattern": {r"layers\.1\.self_attn\.k_proj": 9},
    }),
    "some": (QWEN3, {
        "r": 2, "target_modules": ["q_proj", "gate_proj"], "layers_to_transform": [1],
        "exclude_modules": ["gate_proj"],
    }),
    "biases": (QWEN2, {"r": 3, "use_dora": True, "target_modules": ["q_proj", "k_proj"]}),
    "experts": (MOE, {"r": 3, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}),
}  # fmt: skip


def base(tmp_path, config):
    """(our parameters, their model of them)."""
    from transformers import AutoModelForCausalLM

    dtype = (
        "float32" if config.num_experts else "float64"
    )  # their experts are multiplied in no other
    params = decoder.init(random.key(3), config)
    io.save_model(tmp_path / "base", params, config)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=getattr(torch, dtype))
    return io.load_model(tmp_path / "base", dtype=dtype)[0], model


def tokens(seed=0, shape=(2, 9)):
    return np.random.default_rng(seed).integers(0, 97, shape).astype(np.int32)


def randomized(adapters, seed=1):
    """Adapters that change something."""
    rng = np.random.default_rng(seed)
    noise = lambda x: x + jnp.asarray(rng.normal(0, 0.1, x.shape), x.dtype)
    return gf.tree.map(noise, adapters)


def theirs_with(model, fields):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **fields))


@pytest.mark.parametrize("name", [*CASES, "all of a mixture"])
def test_an_adapter_of_ours_is_peft_s(tmp_path, name):
    from peft import PeftModel

    # Of a mixture, PEFT would take "all-linear" for the experts too.
    config, fields = CASES.get(name, (MOE, {"r": 3, "target_modules": "all-linear"}))
    params, model = base(tmp_path, config)
    settings = nn.lora.LoraConfig(**fields)
    dtype = params["norm"]["weight"].dtype
    adapters = randomized(nn.lora.init(random.key(1), params, settings, dtype=dtype))
    io.save_adapter(tmp_path / "ours", adapters, settings, base_model="base")
    opened = PeftModel.from_pretrained(model, str(tmp_path / "ours"))
    assert not [n for n in opened.state_dict() if "lora" in n and n.endswith("base_layer")]
    x = tokens()
    wanted = opened(torch.tensor(x)).logits.detach().numpy()
    found = decoder.forward(nn.lora.apply(params, adapters, settings), x, config)
    # Their positions are float32, whatever the model is.
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5)
    plain = np.asarray(decoder.forward(params, x, config))
    assert np.abs(plain - wanted).max() > 1e-2
    merged = nn.lora.merge(params, adapters, settings)
    np.testing.assert_allclose(decoder.forward(merged, x, config), wanted, rtol=1e-5, atol=2e-5)
    joined = opened.merge_and_unload()(torch.tensor(x)).logits.detach().numpy()
    np.testing.assert_allclose(joined, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_an_adapter_of_peft_is_ours(tmp_path, name):
    config, fields = CASES[name]
    params, model = base(tmp_path, config)
    torch.manual_seed(5)
    adapted = theirs_with(model, fields).to(model.dtype)
    with torch.no_grad():
        for n, p in adapted.named_parameters():
            if "lora" in n:
                p += 0.1 * torch.randn_like(p)
    adapted.save_pretrained(str(tmp_path / "theirs"))
    adapters, settings = io.load_adapter(tmp_path / "theirs", params)
    x = tokens(1)
    found = decoder.forward(nn.lora.apply(params, adapters, settings), x, config)
    wanted = adapted(torch.tensor(x)).logits.detach().numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5)
    # There and back: PEFT's arrays and fields, as we write them.
    io.save_adapter(tmp_path / "again", adapters, settings)
    again, same = io.load_adapter(tmp_path / "again", params, dtype="float32")
    assert same == settings
    assert {x.dtype for x in gf.tree.leaves(again)} == {jnp.dtype("float32")}
    saved = [io.load_file(tmp_path / n / "adapter_model.safetensors") for n in ("theirs", "again")]
    base_layer = {n for n in saved[0] if n.endswith("lm_head.base_layer.weight")}
    assert saved[0].keys() - base_layer == saved[1].keys()


@pytest.mark.parametrize("name", ["all", "dora", "head"])
def test_training_is_peft_s(tmp_path, name):
    """Gradients of the first step and the parameters after twenty."""
    config, fields = CASES[name]
    params, model = base(tmp_path, config)
    adapted = theirs_with(model, fields).double()
    adapted.save_pretrained(str(tmp_path / "theirs"))
    adapters, settings = io.load_adapter(tmp_path / "theirs", params)
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=1e-2)

    def loss(adapters, x):
        full = nn.lora.apply(params, adapters, settings)
        return decoder.loss(full, x[:, :-1], x[:, 1:], config)

    tx = optim.adamw(1e-2, weight_decay=1e-2)
    state = tx.init(adapters)
    gradient = gf.jit(gf.value_and_grad(loss))
    for i in range(20):
        x = tokens(i, (4, 12))
        value, grads = gradient(adapters, x)
        wanted = adapted(torch.tensor(x), labels=torch.tensor(x).long()).loss
        optimizer.zero_grad()
        wanted.backward()
        assert abs(float(value) - float(wanted.detach())) < 1e-5
        named = {n: p for n, p in adapted.named_parameters() if p.requires_grad}
        for path, own in nn.lora.layers(grads):
            for kind, g in own.items():
                (p,) = [p for n, p in named.items() if f".{path}.{kind}" in n]
                # Adam's first steps divide by the gradient's size, whatever that is.
                scale = max(np.abs(p.grad.numpy()).max(), 1e-6)
                np.testing.assert_allclose(g, p.grad.numpy(), atol=1e-4 * scale)
        optimizer.step()
        updates, state = tx.update(grads, state, adapters)
        adapters = optim.apply_updates(adapters, updates)


def test_a_gradient_of_adapters_makes_none_of_the_weights():
    config = QWEN3
    params = decoder.init(random.key(0), config)
    settings = nn.lora.LoraConfig(r=3)
    adapters = nn.lora.init(random.key(1), params, settings)
    sizes = {tuple(x.shape) for x in gf.tree.leaves(params) if x.ndim == 2}
    sizes |= {s[::-1] for s in sizes}

    def loss(adapters, x):
        full = nn.lora.apply(params, adapters, settings)
        return decoder.loss(full, x[:, :-1], x[:, 1:], config)

    text = str(gf.make_jaxpr(gf.grad(loss))(adapters, tokens(0, (5, 12))))
    for rows, columns in sizes - {(97, 32), (32, 97)}:
        assert f"f32[{rows},{columns}] = dot_general" not in text
    assert "dot_general" in text


def test_drawn_as_peft_draws_them():
    params = {"up": {"weight": jnp.zeros((64, 400))}}
    draw = lambda **o: nn.lora.init(random.key(0), params, nn.lora.LoraConfig(r=16, **o))["up"]
    a, b = draw()["lora_A"], draw()["lora_B"]
    assert float(jnp.abs(a).max()) <= 0.05 and float(jnp.abs(a).max()) > 0.0499
    assert abs(float(a.std()) - 0.05 / 3**0.5) < 1e-3 and not np.asarray(b).any()
    gaussian = draw(init_lora_weights="gaussian")
    assert abs(float(gaussian["lora_A"].std()) - 1 / 16) < 2e-3
    both = draw(init_lora_weights=False)["lora_B"]
    assert 0.24 < float(jnp.abs(both).max()) <= 0.25


def test_dropout_is_the_adapter_s_alone():
    layer = nn.Linear(400, 8, bias=False)
    params = {"up": layer.init(random.key(0))}
    settings = nn.lora.LoraConfig(r=4, lora_dropout=0.25, init_lora_weights=False)
    adapters = nn.lora.init(random.key(1), params, settings)
    x = random.normal(random.key(2), (3, 400))
    of = lambda key: layer(nn.lora.apply(params, adapters, settings, key=key)["up"], x)
    assert np.array_equal(of(random.key(4)), of(random.key(4)))
    assert not np.array_equal(of(random.key(4)), of(random.key(5)))
    mean = sum(of(k) for k in random.split(random.key(6), 400)) / 400
    full = of(None)
    spread = np.abs(np.asarray(full - layer(params["up"], x))).max()
    assert np.abs(np.asarray(mean - full)).max() < 0.25 * spread
    # None of the layer itself: adapters of zeros change nothing, whatever is dropped.
    zero = gf.tree.map(jnp.zeros_like, adapters)
    dropped = layer(nn.lora.apply(params, zero, settings, key=random.key(4))["up"], x)
    np.testing.assert_array_equal(dropped, layer(params["up"], x))


def test_adapted_parameters_are_parameters():
    """Under jit, vmap, checkpoint and mixed precision, and in generation."""
    config = QWEN3
    params = decoder.init(random.key(0), config)
    settings = nn.lora.LoraConfig(r=2, use_dora=True, init_lora_weights=False)
    adapters = nn.lora.init(random.key(1), params, settings)
    x = jnp.asarray(tokens())
    plain = decoder.forward(nn.lora.merge(params, adapters, settings), x, config)
    forward = lambda a, **o: decoder.forward(nn.lora.apply(params, a, settings), x, config, **o)
    np.testing.assert_allclose(gf.jit(forward)(adapters), plain, atol=1e-4)
    np.testing.assert_allclose(forward(adapters, remat=True), plain, atol=1e-4)
    several = gf.tree.map(lambda *xs: jnp.stack(xs), adapters, adapters)
    np.testing.assert_allclose(gf.vmap(forward)(several)[1], plain, atol=1e-4)
    half = gf.amp(forward, "bfloat16")(adapters)
    assert half.dtype == jnp.float32 and 0 < float(jnp.abs(half - plain).max()) < 0.5
    ours = models.generate(nn.lora.apply(params, adapters, settings), x, config, max_new_tokens=4)
    merged = nn.lora.merge(params, adapters, settings)
    assert ours[0].tolist() == models.generate(merged, x, config, max_new_tokens=4)[0].tolist()


@pytest.mark.parametrize("change, message", [
    ({"peft_type": "IA3"}, "peft_type is 'IA3', only LORA"), ({"bias": "all"}, "bias is 'all'"),
    ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]"),
    ({"fan_in_fan_out": True}, "fan_in_fan_out is True"), ({"r": "8"}, "r is '8'"),
    ({"r": 0}, "rank is a positive integer"), ({"target_modules": None}, "target_modules is miss"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
    ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters"),
    ({"of_a_later_version": 3}, "of_a_later_version is 3"), ({"lora_bias": True}, "lora_bias"),
    ({"target_modules": "("}, "target_modules is no regular expression"),
])  # fmt: skip
def test_what_is_not_computed_is_refused_by_name(tmp_path, change, message):
    params = decoder.init(random.key(0), QWEN3)
    settings = nn.lora.LoraConfig(r=2, target_modules=("q_proj",))
    io.save_adapter(tmp_path / "a", nn.lora.init(random.key(1), params, settings), settings)
    path = tmp_path / "a" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FileError, match=rf"adapter_config.json: .*({message})"):
        io.load_adapter(tmp_path / "a", params)


def test_arrays_that_do_not_fit_are_named(tmp_path):
    params = decoder.init(random.key(0), QWEN3)
    settings = nn.lora.LoraConfig(r=2, target_modules=("q_proj",))
    adapters = nn.lora.init(random.key(1), params, settings)
    io.save_adapter(tmp_path / "a", adapters, settings)
    file = tmp_path / "a" / "adapter_model.safetensors"
    whole = io.load_file(file)
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
    for change, message in (
        ({name: None}, f"missing {name}"), ({"other": jnp.ones(2)}, "unexpected other"),
        ({name: jnp.ones((2, 5))}, r"has shape \[2, 5\], the model asks for \[2, 32\]"),
        ({name: jnp.ones((2, 32), "int32")}, "is of dtype int32"),
    ):  # fmt: skip
        io.save_file({k: v for k, v in (whole | change).items() if v is not None}, file)
        with pytest.raises(FileError, match=message):
            io.load_adapter(tmp_path / "a", params)
    file.write_bytes(b"\x00" * 20)
    with pytest.raises(FileError, match=r"adapter_model.safetensors"):
        io.load_adapter(tmp_path / "a", params)
    os.unlink(file)
    (tmp_path / "a" / "adapter_model.bin").touch()
    with pytest.raises(FileError, match="pickles run code"):
        io.load_adapter(tmp_path / "a", params)
    for other in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(FileError, match="adapter"):
            io.load_adapter(other, params)


def test_layers_that_cannot_be_adapted_are_refused(tmp_path):
    params = decoder.init(random.key(0), MOE)
    for names, message in (
        (("q_porj",), "name no linear layer; there are .*q_proj"), (("embed_tokens",), "tables"),
        (("gate",), "routers"), (r".*\.experts", "name no linear layer"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            nn.lora.init(random.key(0), params, nn.lora.LoraConfig(target_modules=names))
    settings = nn.lora.LoraConfig(r=2, target_modules=("q_proj",))
    adapters = nn.lora.init(random.key(1), params, settings)
    short = {**adapters, "layers": [*adapters["layers"], adapters["layers"][0]]}
    with pytest.raises(ArgumentError, match=r"adapter of layers\.2"):
        nn.lora.apply(params, short, settings)
    other = decoder.init(random.key(0), QWEN2)
    wide = gf.tree.map(lambda x: jnp.ones((x.shape[0], x.shape[1] + 1)), adapters)
    with pytest.raises(ArgumentError, match=r"lora_A of layers\.0\.self_attn\.q_proj has shape"):
        nn.lora.apply(other, wide, settings)
    with pytest.raises(ArgumentError, match="there are no adapters"):
        io.save_adapter(tmp_path / "a", {}, settings)
