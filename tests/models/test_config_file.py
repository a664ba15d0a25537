"""Every field of a config.json of every family: what transformers makes of it, or one error that
names file and field."""

from __future__ import annotations

import copy
import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import transformers

from genesis_fn import io, models, nn
from genesis_fn.models import config_file
from genesis_fn.models.rope_fields import ROPE_FIELDS

CLASSES = {
    "qwen2": "Qwen2Config", "qwen3": "Qwen3Config", "qwen3_moe": "Qwen3MoeConfig",
    "llama": "LlamaConfig", "mistral": "MistralConfig",
}  # fmt: skip
FAMILIES = pytest.mark.parametrize("family", CLASSES)
SIZES = dict(
    vocab_size=64, hidden_size=64, intermediate_size=48, num_hidden_layers=3,
    num_attention_heads=32,
)  # fmt: skip
# What transformers calls what its models hold and no field of a file says.
HELD = {"transformers_version", "model_type", "num_local_experts"}


def config_there(family: str, **options: Any) -> Any:
    return getattr(transformers, CLASSES[family])(**copy.deepcopy({**SIZES, **options}))


def config_here(family: str, **options: Any) -> models.DecoderConfig:
    return models.DecoderConfig.from_dict({"model_type": family, **SIZES, **options})


@FAMILIES
def test_every_field_of_transformers_is_known(family: str):
    there = config_there(family)
    names = {f.name for f in dataclasses.fields(there)} | {*there.to_dict()}
    read = {*config_file.FAMILIES[family].defaults, *SIZES, *ROPE_FIELDS}
    known = read | {*config_file.WINDOW_FIELDS} | config_file.HARMLESS | {*config_file.NEUTRAL}
    assert names - known <= HELD, "neither honoured, neutral nor harmless"
    assert not read & config_file.HARMLESS
    assert not {*config_file.WINDOW_FIELDS} & (config_file.HARMLESS | {*config_file.NEUTRAL})


@FAMILIES
def test_absent_fields_are_transformers_defaults(family: str):
    there, here = config_there(family), config_here(family)
    honoured = [*SIZES, *config_file.FAMILIES[family].defaults]
    for name in honoured:
        if hasattr(there, name) or name != "head_dim":  # Qwen2's class has none
            ours = getattr(here, name)
            assert getattr(there, name) == (list(ours) if isinstance(ours, tuple) else ours), name
    assert here.head_dim == (128 if family == "qwen3" else 2)
    assert here.rope_theta == there.rope_parameters["rope_theta"] and here.rope_scaling is None
    assert here.windows == (4096 if family == "mistral" else None,) * 3
    written = config_file.written_fields(here)
    assert models.DecoderConfig.from_dict(json.loads(json.dumps(written))) == here
    assert models.DecoderConfig.from_dict(there.to_dict()) == here
    assert models.DecoderConfig.from_dict(there.to_diff_dict()) == here
    again = getattr(transformers, CLASSES[family])(**written)
    for name in honoured:
        if hasattr(there, name):
            assert getattr(again, name) == getattr(there, name), name


PUBLISHED: dict[str, dict[str, Any]] = {
    "qwen3_moe": dict(  # Qwen3-Coder-30B-A3B
        attention_bias=False, attention_dropout=0.0, decoder_sparse_step=1, head_dim=128,
        hidden_size=2048, intermediate_size=5472, max_position_embeddings=262144,
        max_window_layers=28, mlp_only_layers=[], moe_intermediate_size=768, norm_topk_prob=True,
        num_attention_heads=32, num_experts=128, num_experts_per_tok=8, num_hidden_layers=48,
        num_key_value_heads=4, output_router_logits=False, qkv_bias=False, rope_scaling=None,
        rope_theta=10000000, router_aux_loss_coef=0.0, shared_expert_intermediate_size=0,
        sliding_window=None, use_qk_norm=True, use_sliding_window=False, vocab_size=151936,
    ),
    "llama": dict(  # the first conversions of LLaMA-7B
        architectures=["LLaMAForCausalLM"], hidden_size=4096, intermediate_size=11008,
        initializer_range=0.02, max_sequence_length=2048, num_attention_heads=32,
        num_hidden_layers=32, pad_token_id=-1, rms_norm_eps=1e-6, torch_dtype="float16",
        use_cache=True, vocab_size=32000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", PUBLISHED)
def test_published_files_with_fields_that_transformers_does_not_read(family: str):
    values = PUBLISHED[family]
    there = getattr(transformers, CLASSES[family])(**copy.deepcopy(values))
    here = models.DecoderConfig.from_dict({"model_type": family, **values})
    assert here == models.DecoderConfig.from_dict(there.to_dict())
    for name in (*SIZES, "num_key_value_heads", "head_dim", "max_position_embeddings"):
        assert getattr(here, name) == getattr(there, name)


@pytest.mark.parametrize(("family", "field", "value"), [
    ("qwen3_moe", "shared_expert_intermediate_size", 512), ("qwen3", "use_qk_norm", False),
    ("llama", "use_qk_norm", True), ("qwen2", "qkv_bias", False), ("qwen3", "qkv_bias", True),
])  # fmt: skip
def test_what_no_model_of_a_family_computes(family: str, field: str, value: Any):
    with pytest.raises(ValueError, match=f"{field} is {value}, which this library does not honour"):
        config_here(family, **{field: value})


# ---- hostile values ----

# No field of any family may be one of these.
BAD: list[Any] = [
    "\ud800x",
    float("nan"),
    -1,
    10**400,
    [[["a"]]],
    {"a": {"b": 1}},
    -0.5,
    "9" * 5000,
]
SOME: list[Any] = [
    None, True, False, 0, 1, 1e9, 10**9, 2**31, 2**63, "", "1", [], {}, [10**9],
    ["full_attention"], float("inf"), [None], [True], {"rope_type": "yarn"},
]  # fmt: skip


def read_file(folder: pathlib.Path, values: dict[str, Any]) -> models.DecoderConfig | str:
    """The config of a file, or the text of its one error."""
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    try:
        return models.DecoderConfig.from_file(folder)
    except io.FileError as error:
        text = str(error)
        assert text.startswith(f"{path}: config: ") and "\n" not in text and len(text) < 2000
        return text.removeprefix(f"{path}: config: ")


@FAMILIES
def test_bad_values_of_every_field(family: str, tmp_path: pathlib.Path):
    values = {"model_type": family, **SIZES}
    defaults = config_file.FAMILIES[family].defaults
    fields = {*values, *defaults, *config_file.WINDOW_FIELDS, *ROPE_FIELDS, *config_file.NEUTRAL}
    for field in sorted(fields):
        for value in BAD:
            found = read_file(tmp_path, {**values, field: value})
            assert isinstance(found, str) and field in found, (field, value, found)
        for value in SOME:
            found = read_file(tmp_path, {**values, field: value})
            if isinstance(found, models.DecoderConfig):
                assert models.DecoderConfig.from_dict(found.to_dict()) == found
                assert found.size < 2**62 and hash(found) == hash(found)
    for field in ("logits_soft_cap", "x" * 5000, "", "\ud800"):
        found = read_file(tmp_path, {**values, field: 1})
        assert isinstance(found, str) and "does not know" in found


@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "yarn", "llama3"])
def test_bad_values_of_rotary_fields(kind: str, tmp_path: pathlib.Path):
    good = {"rope_type": kind, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    names = {"default": 1, "linear": 2, "dynamic": 2, "yarn": 2, "llama3": 4}[kind]
    good = dict([*good.items()][:names])
    fields = [
        *good, "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
        "mscale", "mscale_all_dim", "truncate", "short_factor", "rope_theta", "type",
        "partial_rotary_factor", "full_attention", "mrope_section",
    ]  # fmt: skip
    for name in ("rope_scaling", "rope_parameters"):
        plain = {"model_type": "llama", **SIZES, "head_dim": 8, name: good}
        config = read_file(tmp_path, plain)
        assert isinstance(config, models.DecoderConfig)
        assert (config.rope_scaling is None) == (kind == "default")
        for field in fields:
            for value in BAD:
                found = read_file(tmp_path, {**plain, name: {**good, field: value}})
                assert isinstance(found, str) and (f"{name}" in found), (field, value, found)
            for value in SOME:
                found = read_file(tmp_path, {**plain, name: {**good, field: value}})
                if isinstance(found, models.DecoderConfig):
                    positions = np.arange(4)
                    layer = nn.RotaryEmbedding(
                        8, base=found.rope_theta, scaling=found.rope_scaling
                    )  # as long heads as the frequencies need
                    assert all(np.isfinite(x).all() for x in layer.angles(positions))
            if field in good and field != "rope_type":
                less = {k: v for k, v in good.items() if k != field}
                found = read_file(tmp_path, {**plain, name: less})
                assert isinstance(found, str) and f"{name}.{field} is missing" in found


@pytest.mark.parametrize(("family", "fields", "message"), [
    ("qwen3", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
    ("qwen3_moe", {"num_experts": 10**9}, "num_experts is 1000000000"),
    ("qwen3_moe", {"num_experts": 4}, "num_experts_per_tok is 8, more than num_experts, 4"),
    ("qwen3_moe", {"num_experts": 4, "num_local_experts": 8}, "num_local_experts disagree"),
    ("qwen3_moe", {"hidden_size": 2**30, "moe_intermediate_size": 2**31 - 1},
     "parameters, more than any model has"),
    ("qwen3", {"vocab_size": None}, "vocab_size is None"),
    ("qwen2", {"attention_bias": False}, "attention_bias is False"),
    ("mistral", {"attention_bias": True}, "attention_bias is True"),
    ("mistral", {"use_sliding_window": False}, "use_sliding_window is False, but a mistral"),
    ("mistral", {"layer_types": ["full_attention"] * 3}, "layer_types has 'full_attention'"),
    ("mistral", {"mlp_bias": True}, "mlp_bias is True"),
    ("llama", {"sliding_window": 4}, "sliding_window is 4, but a llama has none"),
    ("llama", {"use_sliding_window": True}, "use_sliding_window is True, but a llama"),
    ("llama", {"hidden_size": 65, "head_dim": 2}, "hidden_size is a multiple"),
    ("llama", {"num_experts": 4}, "num_experts is 4, a field that this library does not know"),
    ("qwen3_moe", {"use_sliding_window": True, "layer_types": ["full_attention"] * 3},
     "layer_types has 'full_attention' for layer 0, but"),
    ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "layer_types has 'sliding_attention'"),
    ("qwen3", {"layer_types": ["full_attention"]}, "expected one for each of 3 layers"),
    ("llama", {"head_dim": 2, "rope_scaling": {"type": "dynamic", "factor": 2}}, "head_dim 2 is"),
    ("qwen3", {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 2e4}}, "rope_theta.* disagree"),
    ("llama", {"original_max_position_embeddings": 8, "rope_scaling": {
        "type": "yarn", "factor": 2, "original_max_position_embeddings": 16}}, "disagree"),
    ("qwen3", {"mlp_only_layers": [1]}, "mlp_only_layers is .1., a field that"),
    ("qwen3_moe", {"mlp_only_layers": "01"}, "mlp_only_layers is '01', expected a list"),
])  # fmt: skip
def test_fields_that_do_not_go_together(family: str, fields: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        config_here(family, **fields)


@pytest.mark.parametrize(("fields", "message"), [
    ({"rope_scaling": 2.0}, "rope_scaling is 2.0, expected one such as nn.LinearScaling"),
    ({"sliding_window": 0}, "sliding_window is 0, expected 1 to"),
    ({"layer_types": ["full_attention"]}, r"layer_types is \['full_attention'\], expected a tuple"),
    ({"layer_types": ("full",), "num_hidden_layers": 1}, "layer_types is 'full', expected one of"),
    ({"layer_types": ("sliding_attention",), "num_hidden_layers": 1}, "but sliding_window is None"),
    ({"mlp_only_layers": [1]}, "mlp_only_layers is .*, expected a tuple of layers"),
    ({"mlp_only_layers": (1.0,)}, "mlp_only_layers is 1.0, expected an integer"),
    ({"model_type": "gpt2"}, "model_type is 'gpt2', expected one of qwen3"),
    ({"output_bias": 1}, "output_bias is 1, expected true or false"),
])  # fmt: skip
def test_arguments_are_checked(fields: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        models.DecoderConfig(**fields)


@pytest.mark.parametrize(("fields", "message"), [
    ({"mlp_bias": True}, "qwen3: mlp_bias is False; .*llama: qk_norm is False"),
    ({"qk_norm": False, "sliding_window": 4, "layer_types": ("sliding_attention",) * 27 + (
        "full_attention",)}, "mistral: layer_types is None"),
    ({"qk_norm": False, "model_type": "qwen3"}, r"\(qwen3: qk_norm is True\)"),
    ({"num_experts": 8, "model_type": "qwen3"}, r"\(qwen3: num_experts is 0\)"),
    ({"rope_scaling": nn.NTKScaling(2.0)}, "rope_scaling is NTKScaling.*no config.json"),
    ({"rope_scaling": nn.DynamicScaling(2.0, 16)}, "max_position_embeddings, 40960"),
])  # fmt: skip
def test_models_that_no_file_describes(fields: dict[str, Any], message: str):
    config = models.DecoderConfig(**fields)
    with pytest.raises(ValueError, match=message):
        config.to_dict()


def test_numbers_of_any_length_are_refused_by_name():
    """Python itself writes none of more than 4300 digits."""
    for value in (10**5000, -(10**5000), [10**5000]):
        with pytest.raises(ValueError, match="hidden_size is <.* too many digits>"):
            models.DecoderConfig.from_dict(
                {"model_type": "qwen3", "vocab_size": 8, "hidden_size": value}
            )
