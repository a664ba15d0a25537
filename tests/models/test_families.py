"""Qwen2, Qwen3, Qwen3-MoE, Llama and Mistral with every option, against transformers: logits,
generation token by token, gradients, and what their config.json mean."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.activations import ACT2CLS, ACT2FN

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import errors, io, models, nn, random, tree
from genesis_fn.models import decoder
from genesis_fn.models.activations import ACTIVATIONS

SIZES = dict(
    vocab_size=61, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, head_dim=8,
)  # fmt: skip
CLASSES = {
    "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe", "llama": "Llama",
    "mistral": "Mistral",
}  # fmt: skip
EXPERTS = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24)
WINDOW = dict(use_sliding_window=True, sliding_window=5)
MIXED = ["sliding_attention", "full_attention"]


def rope(**fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 1e4, **fields}}


LLAMA3 = rope(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)  # fmt: skip
YARN = rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
DYNAMIC = rope(rope_type="dynamic", factor=3.0)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {}),
    "qwen2, windows of the last layers": ("qwen2", {**WINDOW, "max_window_layers": 1}),
    "qwen2, yarn": ("qwen2", YARN),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3, windows by layer": ("qwen3", {**WINDOW, "layer_types": MIXED, "attention_bias": True}),
    "qwen3, dynamic": ("qwen3", {**DYNAMIC, "max_position_embeddings": 14}),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "norm_topk_prob": True}),
    "qwen3_moe, some dense, windows": ("qwen3_moe", {
        **EXPERTS, **WINDOW, "mlp_only_layers": [0], "attention_bias": True, "hidden_act": "gelu",
    }),
    "qwen3_moe, every second": ("qwen3_moe", {**EXPERTS, **YARN, "decoder_sparse_step": 2}),
    "llama": ("llama", {"num_key_value_heads": None, "rms_norm_eps": 1e-5, "head_dim": None}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True, **LLAMA3}),
    "llama, linear": ("llama", {**rope(rope_type="linear", factor=2.5), "hidden_act": "relu2"}),
    "mistral": ("mistral", {"sliding_window": 5}),
    "mistral, no window": ("mistral", {"sliding_window": None, "tie_word_embeddings": True}),
}  # fmt: skip
PROMPT, NEW = 12, 6
TOKENS = np.random.default_rng(0).integers(0, 61, (2, PROMPT + NEW)).astype(np.int32)


def config_there(family: str, **options: Any) -> Any:
    config = getattr(transformers, f"{CLASSES[family]}Config")(**copy.deepcopy(options))
    config._attn_implementation = config._experts_implementation = "eager"
    return config


def model_there(family: str, seed: int = 0, **options: Any) -> Any:
    """A random model of transformers, with weights large enough to tell tokens apart."""
    torch.manual_seed(seed)
    config = config_there(family, **{**SIZES, **options})
    model = getattr(transformers, f"{CLASSES[family]}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.add_(torch.randn_like(p) * (0.1 if "norm" in name else 0.2))
    return model


def logits_there(model: Any, tokens: np.ndarray, **options: Any) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(tokens.astype(np.int64)), **options).logits.numpy()


def near(ours: Any, expected: np.ndarray, tolerance: float = 1e-4) -> None:
    assert np.abs(np.asarray(ours) - expected).max() <= tolerance * max(1, np.abs(expected).max())


@dataclasses.dataclass
class Pair:
    """One model there and here."""

    name: str
    there: Any
    params: Any
    config: models.DecoderConfig
    whole: np.ndarray  # logits there of a prompt
    steps: np.ndarray  # and of each token that follows, with a cache, up to the last
    folder: Any


@pytest.fixture(params=CASES, scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    family, options = CASES[request.param]
    model = model_there(family, **options)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    params, config = io.load_model(folder)
    # The order counts: dynamic frequencies stay, in transformers, at the longest call so far.
    whole = logits_there(model, TOKENS[:, :PROMPT])
    with torch.no_grad():
        tokens = torch.from_numpy(TOKENS.astype(np.int64))
        out = model(tokens[:, :PROMPT], use_cache=True)
        steps = [out.logits[:, -1]]
        for i in range(PROMPT, PROMPT + NEW - 1):
            out = model(tokens[:, i : i + 1], past_key_values=out.past_key_values, use_cache=True)
            steps.append(out.logits[:, -1])
    return Pair(request.param, model, params, config, whole, torch.stack(steps, 1).numpy(), folder)


def test_logits(pair: Pair):
    tokens = jnp.asarray(TOKENS[:, :PROMPT])
    near(decoder.forward(pair.params, tokens, pair.config), pair.whole)
    near(models.Decoder(pair.config)(pair.params, tokens[0]), pair.whole[0])
    assert sum(x.size for x in tree.leaves(pair.params)) == pair.config.size
    made = gf.eval_shape(lambda: decoder.init(random.key(0), pair.config))
    assert tree.structure(made) == tree.structure(pair.params)
    assert [x.shape for x in tree.leaves(made)] == [x.shape for x in tree.leaves(pair.params)]


def test_tokens_one_by_one(pair: Pair):
    """Each step with a cache has transformers' logits, so that greedy tokens are equal, too."""
    params, config = pair.params, pair.config
    tokens = jnp.asarray(TOKENS)
    cache = decoder.init_cache(config, 2, PROMPT + NEW)
    logits, cache = decoder.prefill(params, tokens[:, :PROMPT], cache, config, last=True)
    steps = [np.asarray(logits)]
    for i in range(PROMPT, PROMPT + NEW - 1):
        logits, cache = decoder.decode_step(params, tokens[:, i], cache, config)
        steps.append(np.asarray(logits))
    near(np.stack(steps, 1), pair.steps)
    best, second = -np.sort(-pair.steps, -1)[..., :2].transpose(2, 0, 1)
    told_apart = best - second > 1e-3
    assert told_apart.mean() > 0.9
    ours, theirs = np.stack(steps, 1).argmax(-1), pair.steps.argmax(-1)
    np.testing.assert_array_equal(ours[told_apart], theirs[told_apart])


def test_cache_is_the_same_as_no_cache(pair: Pair):
    if isinstance(pair.config.rope_scaling, nn.DynamicScaling):
        pytest.skip("keys stay as they were rotated when the sequence was shorter")
    model, tokens = models.Decoder(pair.config), jnp.asarray(TOKENS)
    whole = np.asarray(model(pair.params, tokens))
    state, parts = model.init_state(batch=2, capacity=PROMPT + NEW), []
    for begin, end in ((0, 7), (7, 8), (8, 11), (11, PROMPT + NEW)):
        logits, state = model(pair.params, tokens[:, begin:end], state=state)
        parts.append(np.asarray(logits))
    near(np.concatenate(parts, 1), whole, 2e-5)


def test_ragged_rows(pair: Pair):
    """Padding may hold anything, and a row is as it is alone."""
    params, config = pair.params, pair.config
    counts, more = np.array([PROMPT, 4]), np.array([0, 3])
    padded = np.where(np.arange(PROMPT) < counts[:, None], TOKENS[:, :PROMPT], 10**6 - 10**7)
    then = np.where(np.arange(3) < more[:, None], TOKENS[:, 4:7], 10**8)
    every = decoder.forward(params, jnp.asarray(padded), config, counts=counts)
    cache = decoder.init_cache(config, 2, 20)
    first, cache = decoder.extend(params, jnp.asarray(padded), cache, config, counts, last=True)
    second, cache = decoder.extend(params, jnp.asarray(then), cache, config, more)
    assert np.asarray(cache["lengths"]).tolist() == [12, 7]
    alone = np.asarray(decoder.forward(params, jnp.asarray(TOKENS[1, :7]), config))
    near(np.asarray(every)[1, :4], alone[:4], 2e-5)
    near(np.asarray(first), np.stack([pair.whole[0, -1], alone[3]]))
    near(np.asarray(second)[1], alone[4:], 2e-5)
    last, _ = decoder.decode_step(params, jnp.asarray(TOKENS[:, 7]), cache, config)
    alone = decoder.forward(params, jnp.asarray(TOKENS[1, :8]), config)
    near(np.asarray(last)[1], np.asarray(alone)[-1], 2e-5)


def test_folders_both_ways(pair: Pair, tmp_path: Any):
    io.save_model(tmp_path, pair.params, pair.config)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert again.config.model_type == CASES[pair.name][0]
    near(logits_there(again.float().eval(), TOKENS[:, :PROMPT]), pair.whole, 1e-5)
    assert models.DecoderConfig.from_file(tmp_path) == pair.config
    assert models.DecoderConfig.from_dict(json.loads(json.dumps(pair.config.to_dict()))) == (
        pair.config
    )
    assert hash(pair.config) == hash(dataclasses.replace(pair.config))


def test_greedy_generation():
    """The whole loop, compiled, of a model with windows and experts."""
    model = model_there("qwen3_moe", **EXPERTS, **WINDOW)
    out = model.generate(
        torch.from_numpy(TOKENS[:, :PROMPT].astype(np.int64)), max_new_tokens=NEW, do_sample=False,
        attention_mask=torch.ones((2, PROMPT), dtype=torch.long), pad_token_id=0,
        eos_token_id=None, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    top = torch.stack(out.logits, 1).topk(2).values
    assert (top[..., 0] - top[..., 1]).min() > 1e-3
    config = models.DecoderConfig.from_dict(model.config.to_dict())
    params = params_of(model, config)
    tokens, _ = models.generate(params, jnp.asarray(TOKENS[:, :PROMPT]), config, max_new_tokens=NEW)
    np.testing.assert_array_equal(tokens, out.sequences.numpy())


# ---- experts ----


def params_of(model: Any, config: models.DecoderConfig, read: Any = lambda p: p.detach()) -> Any:
    """The parameters of a model with experts, or of each what `read` makes of it."""
    found = {n.removeprefix("model."): read(p).numpy() for n, p in model.named_parameters()}
    shapes = gf.eval_shape(lambda: decoder.init(random.key(0), config))
    leaves = []
    for path in io.safetensors.flat_names(shapes):
        fused = path.replace(".weight", "")
        if ".experts." not in path:
            leaves.append(found[path])
        elif "down_proj" in path:
            leaves.append(found[fused])
        else:
            gate, up = np.split(found[fused.rpartition(".")[0] + ".gate_up_proj"], 2, 1)
            leaves.append(gate if "gate_proj" in path else up)
    return tree.unflatten(tree.structure(shapes), [jnp.asarray(x) for x in leaves])


def test_gradients_through_experts():
    """Of the loss with the balance of all layers' experts, as transformers adds it."""
    model = model_there(
        "qwen3_moe", **EXPERTS, output_router_logits=True, router_aux_loss_coef=0.3,
        norm_topk_prob=True,
    )  # fmt: skip
    config = models.DecoderConfig.from_dict(model.config.to_dict())
    params = params_of(model, config)
    tokens = torch.from_numpy(TOKENS.astype(np.int64))
    expected = model(tokens, labels=tokens).loss
    expected.backward()

    def loss(params: Any) -> Any:
        inputs, labels = jnp.asarray(TOKENS), jnp.asarray(np.roll(TOKENS, -1, 1))
        labels = labels.at[:, -1].set(-100)
        return decoder.loss(params, inputs, labels, config, ignore_index=-100, remat=True)

    value, grads = gf.value_and_grad(loss)(params)
    assert abs(float(value) - expected.item()) < 1e-4
    theirs = params_of(model, config, read=lambda p: p.grad)
    for path, ours, there in zip(tree.paths(grads), tree.leaves(grads), tree.leaves(theirs)):
        scale = max(1e-3, float(np.abs(np.asarray(there)).max()))
        assert np.abs(np.asarray(ours) - np.asarray(there)).max() < 1e-3 * scale, path
    plain = dataclasses.replace(config, output_router_logits=False)
    plain_loss = decoder.loss(params, jnp.asarray(TOKENS), jnp.asarray(TOKENS), plain)
    both = decoder.loss(params, jnp.asarray(TOKENS), jnp.asarray(TOKENS), config)
    with torch.no_grad():
        aux = model(tokens).aux_loss.item()
    assert abs(float(both) - float(plain_loss) - 0.3 * aux) < 1e-4


# ---- single options ----


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str):
    x = np.linspace(-12, 12, 97, dtype=np.float32)
    expected = ACT2FN[name](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ACTIVATIONS[name](jnp.asarray(x)), expected, atol=2e-6, rtol=2e-6)


def test_all_activations_without_parameters_are_there():
    assert ACTIVATIONS.keys() == ACT2CLS.keys() - {"prelu", "xielu"}


ROPES: dict[str, dict[str, Any]] = {
    "theta": {"rope_theta": 5e5},
    "no theta": {},
    "newer": rope(rope_type="default"),
    "empty": {"rope_scaling": {}, "rope_theta": 3e4},
    "linear, older": {"rope_theta": 2e4, "rope_scaling": {"type": "linear", "factor": 4}},
    "dynamic, older": {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "dynamic": {**DYNAMIC, "max_position_embeddings": 40},
    "yarn": YARN,
    "yarn, older": {"rope_scaling": {"type": "yarn", "factor": 4.0, "finetuned": True}},
    "yarn, original outside": {
        "original_max_position_embeddings": 32,
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
    },
    "yarn, factor by lengths": rope(
        rope_type="yarn", factor=None, original_max_position_embeddings=16),
    "yarn, attention factor": rope(
        rope_type="yarn", factor=8.0, attention_factor=0.7, beta_fast=8, beta_slow=2,
        original_max_position_embeddings=16),
    "yarn, mscale": rope(
        rope_type="yarn", factor=8.0, mscale=0.7, mscale_all_dim=1.3, truncate=False,
        original_max_position_embeddings=16),
    "yarn, one mscale": rope(rope_type="yarn", factor=8.0, mscale=0.7, mscale_all_dim=0),
    "llama3": LLAMA3,
    "llama3, older": {"rope_theta": 5e5, "rope_scaling": LLAMA3["rope_parameters"] | {
        "rope_theta": 5e5, "original_max_position_embeddings": 32}},
}  # fmt: skip


@pytest.mark.parametrize("name", ROPES)
def test_rotary_positions(name: str):
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    options = {**SIZES, "head_dim": 32, **ROPES[name]}
    there = config_there("llama", **options)
    positions = torch.arange(60)[None]
    cos, sin = LlamaRotaryEmbedding(there)(torch.ones(1), positions)
    for values in (options, there.to_dict()):  # as in the file, and as transformers writes it
        config = models.DecoderConfig.from_dict({"model_type": "llama", **values})
        layer = nn.RotaryEmbedding(config.head_dim, config.rope_theta, scaling=config.rope_scaling)
        ours = layer.angles(jnp.arange(60)[None])
        for x, expected in zip(ours, (cos, sin)):
            np.testing.assert_allclose(np.asarray(x)[:, :, 0], expected.numpy(), atol=2e-5)


WINDOWS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2, off": ("qwen2", {"use_sliding_window": False, "sliding_window": 4}),
    "qwen2, on": ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}),
    "qwen2, no layer": ("qwen2", {"use_sliding_window": True}),
    "qwen3, null": ("qwen3", {"use_sliding_window": True, "sliding_window": None}),
    "qwen3, all": ("qwen3", {**WINDOW, "max_window_layers": 0}),
    "qwen3, types before the rule": ("qwen3", {
        **WINDOW, "max_window_layers": 1, "layer_types": MIXED}),
    "qwen3_moe, off": ("qwen3_moe", {"sliding_window": 4}),
    "qwen3_moe, no rule": ("qwen3_moe", {**WINDOW, "max_window_layers": 2}),
    "mistral, absent": ("mistral", {}),
    "mistral, null": ("mistral", {"sliding_window": None}),
    "llama": ("llama", {"layer_types": ["full_attention"] * 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
def test_which_layers_have_a_window(name: str):
    family, options = WINDOWS[name]
    there = config_there(family, **SIZES, **options)
    window = getattr(there, "sliding_window", None)
    expected = [window] * 2
    if family in ("qwen2", "qwen3"):
        expected = [window if t == "sliding_attention" else None for t in there.layer_types]
    config = models.DecoderConfig.from_dict({"model_type": family, **SIZES, **options})
    assert list(config.windows) == expected
    assert models.DecoderConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("step", ["forward", "decode"])
def test_layers_without_a_window_need_no_mask(step: str):
    """A window as long as the tokens or the cache costs nothing, neither does none."""
    plain = models.DecoderConfig(**{**SIZES, "num_hidden_layers": 1})
    params = gf.eval_shape(lambda: decoder.init(random.key(0), plain))

    def program(window: int | None) -> str:
        config = dataclasses.replace(plain, sliding_window=window)

        def run(params: Any) -> Any:
            if step == "forward":
                return decoder.forward(params, jnp.zeros((2, 16), jnp.int32), config)
            cache = decoder.init_cache(config, 2, 16)
            tokens = jnp.zeros((2, 1), jnp.int32)
            return decoder.extend_within(params, tokens, cache, config)[0]

        return str(gf.make_jaxpr(run)(params))

    # Whether attention has a bias, a mask and lengths; it has no segments.
    forward, decode, decode_near = (f"(has,({','.join(x)},False,False))" for x in (
        ("False", "False", "False"), ("False", "False", "True"), ("False", "True", "True"),
    ))  # fmt: skip
    full, near = (forward, forward) if step == "forward" else (decode, decode_near)
    assert program(None).count(full) == 1 and program(None) == program(16)
    assert program(5).count(near) == 1
    assert program(5).count("(window,(4,0))") == (step == "forward")


def test_sizes_of_presets():
    assert {name: models.PRESETS[name].size for name in models.PRESETS} == {
        "qwen3-0.6b": 596_049_920, "qwen3-1.7b": 1_720_574_976, "qwen3-4b": 4_022_468_096,
        "qwen3-8b": 8_190_735_360, "qwen3-30b-a3b": 30_532_122_624, "qwen2.5-0.5b": 494_032_768,
        "llama-2-7b": 6_738_415_616, "llama-3.1-8b": 8_030_261_248, "mistral-7b": 7_241_732_096,
    }  # fmt: skip
    assert {name: models.PRESETS[name].to_dict()["model_type"] for name in models.PRESETS} == {
        name: "qwen3_moe" if "a3b" in name else name.partition("-")[0].replace(".5", "")
        for name in models.PRESETS
    }


def test_parameters_of_another_config_are_named():
    config = models.DecoderConfig(**SIZES)
    params = decoder.init(random.key(0), config)
    fewer = dataclasses.replace(config, num_hidden_layers=1)
    with pytest.raises(ValueError, match="of 2 layers, but the config has num_hidden_layers 1"):
        decoder.forward(params, jnp.asarray(TOKENS), fewer)
    with pytest.raises(ValueError, match=r"counts i32\[3\] must be \[2\] integers"):
        decoder.forward(params, jnp.asarray(TOKENS), config, counts=jnp.array([1, 2, 3]))
    model = models.Decoder(config)
    state = model.init_state(batch=2, capacity=20)
    with pytest.raises(AssertionError, match="counts must lie in 0 to 18"):
        logits, _ = model(params, jnp.asarray(TOKENS), state=state, counts=jnp.array([21, 3]))
        np.asarray(logits)
    with pytest.raises(ValueError, match="positions=, mask= and remat= are for calls without"):
        model(params, jnp.asarray(TOKENS), state=state, remat=True)


# ---- arguments that do not belong together ----


def small(**fields):
    return models.DecoderConfig(61, 32, 48, 2, 4, 2, 8, **fields)


@pytest.mark.parametrize("fields", [
    dict(qk_norm=False), dict(attention_bias=True), dict(attention_bias=True, output_bias=False),
    dict(output_bias=True), dict(mlp_bias=True), dict(tie_word_embeddings=False),
    dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
    dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, mlp_only_layers=(1,)),
], ids=lambda fields: " ".join(fields))  # fmt: skip
def test_parameters_of_another_config_are_refused(fields):
    """Either way round: what would be computed is a model that neither config describes."""
    plain, other = small(), small(**fields)
    tokens = jnp.asarray([[1, 2, 3]])
    for config, wrong in ((plain, other), (other, plain)):
        params = decoder.init(random.key(0), config)
        cache = decoder.init_cache(config, 1, 8)
        decoder.forward(params, tokens, config)
        for call in (
            lambda: decoder.forward(params, tokens, wrong),
            lambda: decoder.extend(params, tokens, cache, wrong),
        ):
            with pytest.raises(errors.ShapeError, match="another config"):
                call()


def test_caches_and_tokens_of_other_shapes_are_refused():
    config = small()
    params, tokens = decoder.init(random.key(0), config), jnp.asarray([[1, 2, 3]])
    made = lambda rows: decoder.init_cache(config, rows, 8)
    fewer = dataclasses.replace(config, num_hidden_layers=1)
    wider = dataclasses.replace(config, head_dim=16)
    for read in (decoder.prefill, decoder.extend):
        for cache in (made(3), decoder.init_cache(fewer, 1, 8), decoder.init_cache(wider, 1, 8)):
            with pytest.raises(errors.ShapeError, match="need a cache of 2 layers"):
                read(params, tokens, cache, config)
        for wrong in (tokens[0], tokens[:, :0], tokens[:0], jnp.asarray(3)):
            with pytest.raises(errors.ShapeError, match=f"{read.__name__}: tokens"):
                read(params, wrong, made(1), config)
        with pytest.raises(errors.DTypeError, match=f"{read.__name__}: tokens"):
            read(params, tokens * 1.0, made(1), config)
        logits, _ = read(params, [[1, 2, 3]], made(1), config)  # lists and NumPy arrays are tokens
        np.testing.assert_allclose(
            logits, decoder.forward(params, np.asarray(tokens), config), atol=1e-5
        )
    with pytest.raises(errors.ShapeError, match="'layers' and 'embed_tokens' are wanted"):
        decoder.forward({"w": tokens}, tokens, config)
