"""Qwen folders made by transformers and trimmed by hand, caches that are too short, NaN scores, and
what `generate` is asked for: the right numbers, or an error that names what is wrong."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import torch

import genesis_fn.numpy as jnp
from genesis_fn import debug, io, models, nn, random
from genesis_fn.lax.fused.attention import dot_product_attention
from genesis_fn.models import generate, qwen, sample
from genesis_fn.transforms.autodiff.derivatives import grad, vjp
from genesis_fn.transforms.jitting import jit

# Each case traces a model anew, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::genesis_fn.errors.RecompilationWarning")

SIZES = dict(
    vocab_size=37, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
)  # fmt: skip
TOKENS = np.random.default_rng(0).integers(0, 37, (2, 9)).astype(np.int32)


def folder_of(path, version, **options):
    """A folder that transformers saved, with weights large enough to tell tokens apart."""
    import transformers

    sizes = {**SIZES, **({"head_dim": 8} if version == "Qwen3" else {}), **options}
    torch.manual_seed(3)
    config = getattr(transformers, f"{version}Config")(**sizes)
    model = getattr(transformers, f"{version}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    model.save_pretrained(path)
    return path


def logits_there(path, tokens=TOKENS):
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
    with torch.no_grad():
        return model.float().eval()(torch.from_numpy(tokens.astype(np.int64))).logits.numpy()


def logits_here(path, tokens=TOKENS):
    params, config = io.load_qwen(path)
    return np.asarray(qwen.forward(params, jnp.asarray(tokens), config))


def edit(path, *removed, **changes):
    """config.json with other fields; None as a value is a null."""
    file = path / "config.json"
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in values.items() if k not in removed}))


def agree(path):
    expected, ours = logits_there(path), logits_here(path)
    assert np.abs(ours - expected).max() <= 2e-5 * max(1, np.abs(expected).max())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """{version: a folder that transformers saved}."""
    return {v: folder_of(tmp_path_factory.mktemp(v), v) for v in ("Qwen2", "Qwen3")}


@pytest.fixture(params=["Qwen2", "Qwen3"])
def folder(request, saved, tmp_path):
    """A copy of such a folder, to be changed."""
    return shutil.copytree(saved[request.param], tmp_path / "model")


# ---- fields that are not honoured, and those that are absent ----

WINDOWS = dict(use_sliding_window=True, sliding_window=4, max_window_layers=0)
YARN = {"factor": 4.0, "original_max_position_embeddings": 8}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
REFUSED = {
    "longrope": (
        dict(rope_parameters={"rope_type": "longrope", "short_factor": [1], "long_factor": [2]}),
        "rope_parameters is of type 'longrope'",
    ),
    "longrope, older": (
        dict(rope_parameters=None, rope_theta=1e4, rope_scaling={"type": "longrope"}),
        "rope_scaling is of type 'longrope'",
    ),
    "yarn without a factor": (
        dict(rope_parameters={"rope_type": "yarn"}), "rope_parameters.factor is missing",
    ),
    "yarn of more": (
        dict(rope_parameters={"rope_type": "yarn", **YARN, "short_factor": [1.0]}),
        "rope_parameters.short_factor is",
    ),
    "llama3 upside down": (
        dict(rope_parameters={"rope_type": "llama3", **LLAMA3, "high_freq_factor": 0.5}),
        "rope_parameters.high_freq_factor is 0.5",
    ),
    "dynamic from another length": (
        dict(rope_parameters={
            "rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8,
        }), "original_max_position_embeddings of rope_parameters is 8",
    ),
    "two kinds": (
        dict(rope_scaling={"type": "yarn", "rope_type": "default"}),
        "rope_scaling is of type 'default' and of type 'yarn'",
    ),
    "two thetas": (dict(rope_theta=5e5), "rope_theta and rope_parameters.rope_theta.* disagree"),
    "two scalings": (
        dict(rope_scaling={"rope_type": "linear", "factor": 2.0}), "disagree",
    ),
    "per layer type": (
        dict(rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e4}}),
        "rope_parameters.full_attention",
    ),
    "windows that are off": (
        dict(layer_types=["full_attention", "sliding_attention"]),
        "layer_types has 'sliding_attention' for layer 1",
    ),
    "layer types": (
        dict(layer_types=["full_attention", "chunked_attention"]), "layer_types has 'chunked_att",
    ),
    "partly rotary": (dict(partial_rotary_factor=0.5), "partial_rotary_factor is 0.5"),
    "partly rotary inside": (
        dict(rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        "rope_parameters.partial_rotary_factor is 0.5",
    ),
    "mlp biases": (dict(mlp_bias=True), "mlp_bias is True"),
    "quantized": (dict(quantization_config={"bits": 4}), "quantization_config"),
    "dropout": (dict(attention_dropout=0.1), "attention_dropout is 0.1"),
    "an activation": (dict(hidden_act="prelu"), "hidden_act is 'prelu'"),
    "another field": (dict(logits_soft_cap=30.0), "logits_soft_cap is 30.0"),
    "another model": (dict(model_type="qwen2_moe"), "model_type is 'qwen2_moe'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_r02_a_field_that_is_not_honoured_is_refused(folder, name):
    changes, message = REFUSED[name]
    edit(folder, **changes)
    with pytest.raises(io.FileError, match=message) as error:
        io.load_qwen(folder)
    assert "config.json" in str(error.value) and str(error.value).count("\n") == 0


HONOURED = {
    "as saved": dict(),
    "linear": dict(rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 2e4}),
    "linear, older": dict(
        rope_parameters=None, rope_theta=2e4, rope_scaling={"type": "linear", "factor": 2.5}
    ),
    "both names": dict(rope_theta=1e4, rope_scaling={"type": "default", "rope_theta": 1e4}),
    "dynamic": dict(rope_parameters={"rope_type": "dynamic", "factor": 2.0}),
    "yarn": dict(rope_parameters={"rope_type": "yarn", **YARN, "rope_theta": 1e4}),
    "yarn, older": dict(rope_parameters=None, rope_scaling={"type": "yarn", **YARN}),
    "llama3": dict(rope_parameters=None, rope_scaling={
        "rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 8,
    }),
    "windows": {**WINDOWS, "layer_types": None},
    "layer types": {**WINDOWS, "layer_types": ["full_attention", "sliding_attention"]},
    "gelu": dict(hidden_act="gelu"),
    "gelu by tanh": dict(hidden_act="gelu_pytorch_tanh"),
    "relu": dict(hidden_act="relu"),
    "windows that are off": {**WINDOWS, "use_sliding_window": False, "layer_types": None},
    "eps": dict(rms_norm_eps=0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", HONOURED)
def test_r02_a_field_that_is_honoured_gives_the_same_logits(folder, name):
    edit(folder, **HONOURED[name])
    agree(folder)


def test_r02_biases_of_qwen3(tmp_path):
    folder = folder_of(tmp_path / "there", "Qwen3", attention_bias=True)
    agree(folder)
    params, config = io.load_qwen(folder)
    assert "bias" in params["layers"][0]["self_attn"]["o_proj"]
    io.save_qwen(tmp_path / "here", params, config)
    np.testing.assert_allclose(logits_there(tmp_path / "here"), logits_there(folder), atol=1e-5)
    assert (
        models.QwenConfig(**SIZES, head_dim=8, attention_bias=True).size
        == sum(x.size for x in io.safetensors.flat_names(params).values()) - 37 * 16
    )  # the sizes tie the embeddings, the folder does not


def test_r02_what_is_saved_is_what_was_computed(tmp_path):
    config = models.QwenConfig(
        **SIZES, head_dim=8, rope_scaling=nn.LinearScaling(3.0), rope_theta=1e3, hidden_act="gelu",
        rms_norm_eps=0.1,
    )  # fmt: skip
    params = qwen.init(random.key(0), config)
    io.save_qwen(tmp_path / "a", params, config)
    expected = np.asarray(qwen.forward(params, jnp.asarray(TOKENS), config))
    np.testing.assert_allclose(logits_there(tmp_path / "a"), expected, atol=1e-5)
    again, same = io.load_qwen(tmp_path / "a")
    assert same == config
    none = models.QwenConfig(**SIZES, head_dim=8, mlp_bias=True)
    with pytest.raises(ValueError, match=r"no config.json describes this.*llama: qk_norm is False"):
        io.save_qwen(tmp_path / "b", qwen.init(random.key(0), none), none)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("removed", [
    ("tie_word_embeddings",), ("rope_parameters",), ("rms_norm_eps", "hidden_act"),
    ("layer_types", "use_sliding_window", "sliding_window", "max_window_layers"),
])  # fmt: skip
def test_r03_absent_fields_mean_what_they_mean_to_transformers(folder, removed):
    edit(folder, *removed)
    agree(folder)


def test_r03_absent_heads(tmp_path):
    """Qwen3's heads have 128 places and there are 32 of keys where the file says nothing."""
    folder = folder_of(tmp_path / "a", "Qwen3", head_dim=128)
    edit(folder, "head_dim")
    agree(folder)
    edit(folder, "num_key_value_heads")
    with pytest.raises(io.FileError, match="num_key_value_heads is absent, which means 32"):
        io.load_qwen(folder)
    folder = folder_of(tmp_path / "b", "Qwen3", num_attention_heads=32, num_key_value_heads=32)
    edit(folder, "num_key_value_heads")
    agree(folder)


def test_r03_an_output_layer_is_never_dropped(folder):
    edit(folder, tie_word_embeddings=True)
    with pytest.raises(io.FileError, match=r"tie_word_embeddings true, but lm_head\.weight is"):
        io.load_qwen(folder)
    file = folder / "model.safetensors"
    arrays = io.load_file(file)
    io.save_file({**arrays, "lm_head.weight": arrays["model.embed_tokens.weight"]}, file)
    agree(folder)
    edit(folder, tie_word_embeddings=False)
    io.save_file({n: x for n, x in arrays.items() if n != "lm_head.weight"}, file)
    with pytest.raises(io.FileError, match=r"missing lm_head\.weight"):
        io.load_qwen(folder)


def test_r03_quantized_weights_are_refused(folder):
    file = folder / "model.safetensors"
    arrays = io.load_file(file)
    name = "model.layers.0.mlp.up_proj.weight"
    for kind in ("int8", "float8_e4m3fn"):
        io.save_file({**arrays, name: jnp.zeros(arrays[name].shape, kind)}, file)
        with pytest.raises(io.FileError, match=f"up_proj.weight is of dtype {kind}"):
            io.load_qwen(folder)


# ---- a cache that is too short ----

CONFIG = models.QwenConfig(**SIZES, head_dim=8)
SHORT = "of the cache's 8 positions fewer than the {} that follow are left"


@pytest.fixture(scope="module")
def params():
    return qwen.init(random.key(1), CONFIG)


@pytest.mark.parametrize("run", ["eager", "jit"])
def test_r04_a_cache_that_is_too_short_raises(params, run):
    tokens = jnp.asarray(TOKENS)
    wrap = (lambda f: f) if run == "eager" else lambda f: jit(f, static_argnames="config")
    extend, step = wrap(qwen.extend), wrap(qwen.decode_step)
    _, cache = extend(params, tokens[:, :6], qwen.init_cache(CONFIG, 2, 8), config=CONFIG)
    with pytest.raises(AssertionError, match=SHORT.format(4)):
        np.asarray(extend(params, tokens[:, :4], cache, config=CONFIG)[0])
    logits, full = extend(params, tokens[:, 6:8], cache, config=CONFIG)
    whole = np.asarray(qwen.forward(params, tokens[:, :8], CONFIG))
    np.testing.assert_allclose(logits, whole[:, 6:], atol=1e-4)
    with pytest.raises(AssertionError, match=SHORT.format(1)):
        np.asarray(step(params, tokens[:, 8], full, config=CONFIG)[0])
    with pytest.raises(ValueError, match=SHORT.format(9)):
        extend(params, tokens, qwen.init_cache(CONFIG, 2, 8), config=CONFIG)
    # One row without room is enough, and the others are named innocent.
    ragged = {**cache, "lengths": jnp.array([3, 7])}
    with pytest.raises(AssertionError, match=r"first at element \(1,\)"):
        np.asarray(extend(params, tokens[:, :2], ragged, config=CONFIG)[0])


def test_r04_generation_fills_its_cache_to_the_last_position(params):
    for lengths in (None, [9, 2]):
        out, ends = generate(
            params, TOKENS, CONFIG, max_new_tokens=5, lengths=lengths and np.array(lengths)
        )
        for row, n in enumerate(lengths or [9, 9]):
            tokens = TOKENS[row, :n].tolist()
            for _ in range(5):  # greedily, without a cache
                logits = qwen.forward(params, jnp.asarray(tokens), CONFIG)
                tokens.append(int(np.asarray(logits)[-1].argmax()))
            assert np.asarray(out)[row, : n + 5].tolist() == tokens and int(ends[row]) == n + 5


# ---- scores that are NaN ----


@pytest.mark.parametrize(("dtype", "size", "causal"), [
    ("float32", 1, True), ("float32", 4, False), ("float32", 15, True), ("float32", 33, True),
    ("float64", 3, True), ("float64", 8, False),
])  # fmt: skip
def test_r05_attention_keeps_nan(dtype, size, causal):
    import jax

    rng = np.random.default_rng(size)
    q, k, v = (rng.normal(size=(1, size, n, 8)).astype(dtype) for n in (4, 2, 2))
    last, first = q.copy(), k.copy()
    last[0, -1, 1, 3], first[0, 0, :, 2] = np.nan, np.nan
    ct = rng.normal(size=q.shape).astype(dtype)
    cases = [(q * np.nan, k, v), (q, k * np.nan, v), (last, k, v), (q, first, v), (0 * q, 0 * k, v)]

    def ours(*xs):
        return dot_product_attention(*xs, is_causal=causal)

    @jit
    def ours_with_gradients(ct, *xs):
        out, back = vjp(ours, *xs)
        return out, *back(ct)

    @jax.jit
    def theirs_with_gradients(ct, *xs):
        out, back = jax.vjp(lambda *xs: jax.nn.dot_product_attention(*xs, is_causal=causal), *xs)
        return out, *back(ct)

    for case in cases:
        arrays = [jnp.asarray(x, dtype=dtype) for x in case]
        with jax.enable_x64(True):
            expected = [np.asarray(x) for x in theirs_with_gradients(ct, *case)]
        found = ours_with_gradients(jnp.asarray(ct, dtype=dtype), *arrays)
        for x, e in zip((ours(*arrays), *found), (expected[0], *expected)):
            np.testing.assert_allclose(x, e, atol=2e-5)


def test_r05_a_row_that_sees_nothing_is_as_before():
    q, k, v = (random.normal(random.key(i), (2, 5, 1, 8)) for i in range(3))
    out = dot_product_attention(q, k, v, mask=jnp.zeros((2, 1, 5, 5), bool))
    expected = np.broadcast_to(np.asarray(v).mean(1, keepdims=True), v.shape)
    np.testing.assert_allclose(out, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["q_proj", "k_proj"])
def test_r05_nan_weights_make_a_nan_loss(params, name):
    weights = params["layers"][0]["self_attn"]
    bad = {**weights, name: {"weight": weights[name]["weight"] * jnp.nan}}
    bad = {**params, "layers": [{**params["layers"][0], "self_attn": bad}, params["layers"][1]]}
    tokens = jnp.asarray(TOKENS)

    def loss(p):
        return qwen.loss(p, tokens[:, :-1], tokens[:, 1:], CONFIG)

    assert math.isnan(float(loss(bad))) and math.isnan(float(jit(loss)(bad)))
    assert np.isnan(np.asarray(grad(loss)(bad)["layers"][0]["self_attn"][name]["weight"])).any()


def test_r05_nan_trace_sees_attention():
    q = jnp.ones((1, 4, 1, 8))

    @jit
    def f(x):
        return dot_product_attention(q * jnp.log(x), q, q, is_causal=True)

    with debug.nan_trace(), pytest.raises(FloatingPointError, match="log"):
        f(jnp.asarray(-1.0))


# ---- what `generate` and `sample` are asked for ----


def test_r21_several_ends(params):
    free = np.asarray(generate(params, TOKENS, CONFIG, max_new_tokens=10)[0])
    ends = [int(free[0, 12]), int(free[1, 15])]
    for eos in (ends, tuple(ends), [*ends, ends[0]], [np.int64(e) for e in ends]):
        out, lengths = generate(params, TOKENS, CONFIG, max_new_tokens=10, eos=eos)
        for row, end in enumerate(np.asarray(lengths)):
            new = free[row, 9:].tolist()
            stop = min(new.index(e) for e in ends if e in new) + 1
            assert (
                end == 9 + stop and np.asarray(out)[row, :end].tolist() == free[row, :end].tolist()
            )
            assert not np.asarray(out)[row, end:].any()
    assert np.array_equal(generate(params, TOKENS, CONFIG, max_new_tokens=10, eos=[])[0], free)


WRONG = {
    "eos": (dict(eos=99), ValueError, "eos 99 is no token of a vocabulary of 37"),
    "an eos": (dict(eos=[1, -1]), ValueError, "eos -1 is no token"),
    "no token": (dict(eos="</s>"), TypeError, "str"),
    "nan": (dict(temperature=math.nan), ValueError, "temperature nan must be finite"),
    "infinite": (dict(temperature=math.inf), ValueError, "temperature inf must be finite"),
    "negative": (dict(temperature=-0.5), ValueError, "temperature -0.5 must be finite and not neg"),
    "top_k": (dict(top_k=0), ValueError, "top_k 0 must not be below 1"),
    "half a token": (dict(top_k=1.5), TypeError, "float"),
    "top_p": (dict(top_p=0.0), ValueError, r"top_p must lie in \(0, 1\]"),
    "above one": (dict(top_p=1.01), ValueError, r"top_p must lie in \(0, 1\]"),
    "top_p nan": (dict(top_p=math.nan), ValueError, r"top_p must lie in \(0, 1\]"),
    "fewer": (dict(max_new_tokens=-1), ValueError, "max_new_tokens -1 must not be negative"),
    "no prompt": (dict(lengths=[0, 9]), AssertionError, "lengths must lie in 1 to 9.*element .0,."),
    "too long": (dict(lengths=[9, 10]), AssertionError, "lengths must lie in 1 to 9.*element .1,."),
    "float lengths": (dict(lengths=[1.0, 2.0]), ValueError, "must be .2. integers"),
    "one length": (dict(lengths=3), ValueError, "must be .2. integers"),
    "one row": (dict(tokens=TOKENS[0]), ValueError, r"must be \[batch, length\]"),
    "no tokens": (dict(tokens=TOKENS[:, :0]), ValueError, "at least one token a row"),
    "float tokens": (dict(tokens=TOKENS / 2), TypeError, "must be integers"),
    "an integer cache": (dict(cache_dtype="int32"), TypeError, "keys and values are floats"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_r21_settings_out_of_range_are_named(params, name):
    options, kind, message = WRONG[name]
    tokens = options.get("tokens", TOKENS)
    rest = {"max_new_tokens": 2, **{k: v for k, v in options.items() if k != "tokens"}}
    with pytest.raises(kind, match=message):
        np.asarray(generate(params, tokens, CONFIG, **rest)[0])


DRAWS = [
    dict(temperature=0.0), dict(temperature=1.0), dict(temperature=1.0, top_k=3),
    dict(temperature=1.0, top_p=0.5), dict(temperature=1.0, top_k=3, top_p=0.5),
    dict(temperature=1e-9),
]  # fmt: skip


@pytest.mark.parametrize("options", DRAWS, ids=str)
def test_r21_logits_without_a_number_raise(options):
    rows = np.random.default_rng(0).normal(size=(3, 11)).astype(np.float32)
    some, none = rows.copy(), rows.copy()
    some[1, 4], none[2] = np.nan, -np.inf
    draw = jit(lambda x: sample(random.key(0), x, **options))
    for bad in (some, rows * np.nan, none):
        with pytest.raises(AssertionError, match="the logits are NaN, or all of a row are -inf"):
            np.asarray(draw(bad))
        with pytest.raises(AssertionError, match="sample: the logits are NaN"):
            np.asarray(sample(random.key(0), jnp.asarray(bad), **options))
    rows[:, :10] = -np.inf
    assert np.asarray(draw(rows)).tolist() == [10, 10, 10]


def test_r21_nan_weights_raise_in_generate(params):
    bad = {**params, "norm": {"weight": params["norm"]["weight"] * jnp.nan}}
    with pytest.raises(AssertionError, match="the logits are NaN"):
        np.asarray(generate(bad, TOKENS, CONFIG, max_new_tokens=2)[0])


@pytest.mark.parametrize("temperature", [1e-5, 1e-40, 5e-324])
@pytest.mark.parametrize("more", [{}, {"top_k": 5}, {"top_p": 0.9}], ids=str)
def test_r21_a_temperature_near_zero_takes_the_most_likely(temperature, more):
    rows = np.random.default_rng(0).normal(size=(50, 11)).astype(np.float32) * 30
    drawn = sample(random.key(0), jnp.asarray(rows), temperature=temperature, **more)
    np.testing.assert_array_equal(drawn, rows.argmax(-1))
    tie = jnp.asarray(np.float32([[3.0, 7.0, 7.0]] * 400))
    counts = np.bincount(np.asarray(sample(random.key(1), tie, temperature=temperature)))
    assert counts[0] == 0 and min(counts[1:]) > 150
