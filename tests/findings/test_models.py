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
from genesis_fn import debug, io, models, random
from genesis_fn.lax.attention import dot_product_attention
from genesis_fn.models import qwen
from genesis_fn.models.sampling import generate, sample
from genesis_fn.transforms.grad import grad, vjp
from genesis_fn.transforms.jit import jit

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
REFUSED = {
    "dynamic": (dict(rope_parameters={"rope_type": "dynamic", "factor": 2.0}), "rope_parameters"),
    "dynamic, older": (
        dict(rope_parameters=None, rope_theta=1e4, rope_scaling={"type": "dynamic", "factor": 2.0}),
        "rope_scaling is of type 'dynamic'",
    ),
    "yarn": (dict(rope_parameters={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8,
        "rope_theta": 1e4,
    }), "rope_parameters is of type 'yarn'"),
    "yarn, older": (dict(rope_parameters=None, rope_scaling={
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8,
    }), "rope_scaling is of type 'yarn'"),
    "llama3": (dict(rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8,
    }), "rope_scaling is of type 'llama3'"),
    "two kinds": (
        dict(rope_scaling={"type": "yarn", "rope_type": "default"}), "rope_scaling is of type 'yarn'"
    ),
    "two thetas": (dict(rope_theta=5e5), "rope_theta and rope_parameters.rope_theta.* disagree"),
    "two scalings": (
        dict(rope_scaling={"rope_type": "linear", "factor": 2.0}), "disagree",
    ),
    "per layer type": (
        dict(rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e4}}),
        "rope_parameters.full_attention",
    ),
    "windows": ({**WINDOWS, "layer_types": None}, "use_sliding_window is True"),
    "layer types": (
        dict(layer_types=["full_attention", "sliding_attention"]), "layer_types has 'sliding_att",
    ),
    "partly rotary": (dict(partial_rotary_factor=0.5), "partial_rotary_factor is 0.5"),
    "partly rotary inside": (
        dict(rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        "rope_parameters.partial_rotary_factor is 0.5",
    ),
    "mlp biases": (dict(mlp_bias=True), "mlp_bias is True"),
    "quantized": (dict(quantization_config={"bits": 4}), "quantization_config"),
    "dropout": (dict(attention_dropout=0.1), "attention_dropout is 0.1"),
    "an activation": (dict(hidden_act="mish"), "hidden_act is 'mish'"),
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
    "gelu": dict(hidden_act="gelu"),
    "gelu by tanh": dict(hidden_act="gelu_pytorch_tanh"),
    "relu": dict(hidden_act="relu"),
    "windows that are off": {**WINDOWS, "use_sliding_window": False, "layer_types": None},
    "eps": dict(rms_norm_eps=0.5),
}


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
        **SIZES, head_dim=8, rope_factor=3.0, rope_theta=1e3, hidden_act="gelu", rms_norm_eps=0.1
    )
    params = qwen.init(random.key(0), config)
    io.save_qwen(tmp_path / "a", params, config)
    expected = np.asarray(qwen.forward(params, jnp.asarray(TOKENS), config))
    np.testing.assert_allclose(logits_there(tmp_path / "a"), expected, atol=1e-5)
    again, same = io.load_qwen(tmp_path / "a")
    assert same == config
    neither = models.QwenConfig(**SIZES, head_dim=8, qk_norm=False)
    with pytest.raises(ValueError, match="neither Qwen2 nor Qwen3"):
        io.save_qwen(tmp_path / "b", qwen.init(random.key(0), neither), neither)
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
