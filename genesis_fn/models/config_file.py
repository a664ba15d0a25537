"""The fields of a config.json, family by family, to those of `DecoderConfig` and back.

Every field of the file is honoured, known to have no effect, or refused by name; an absent field
has transformers' default. So a model computes what transformers computes, or loading fails.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from genesis_fn.extend import brief
from genesis_fn.models.field_checks import boolean, count, layer_count, optional, positive_int
from genesis_fn.models.rope_fields import ROPE_FIELDS, read_rope, written_rope

if TYPE_CHECKING:
    from genesis_fn.models.decoder_config import DecoderConfig


@dataclasses.dataclass(frozen=True)
class Family:
    """What one model_type computes, and what its config.json can say.

    Args:
        architecture: the class of transformers.
        qk_norm: whether queries and keys are normalised.
        biases: of attention: of queries, keys and values; of all four projections where
            `attention_bias` says so; or none.
        windows: which layers may have a sliding window: those that a rule or `layer_types` names,
            all where `use_sliding_window` switches it on, all where there is a `sliding_window`, or
            none.
        defaults: what absent fields mean, for each field that the family reads.
    """

    architecture: str
    qk_norm: bool
    biases: Literal["qkv", "chosen", "none"]
    windows: Literal["by layer", "switched", "all", "none"]
    defaults: dict[str, Any]


_COMMON = {
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu",
    "initializer_range": 0.02, "head_dim": None,
}  # fmt: skip
_EXPERTS = {
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    "norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": None,
    "router_aux_loss_coef": 0.001, "output_router_logits": False,
}  # fmt: skip
_QWEN = {**_COMMON, "max_position_embeddings": 32768}
# In the order in which they are tried for a model that several describe.
FAMILIES = {
    "qwen3": Family("Qwen3ForCausalLM", True, "chosen", "by layer", {
        **_QWEN, "num_key_value_heads": 32, "head_dim": 128, "attention_bias": False,
    }),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", True, "chosen", "switched", {
        **_QWEN, **_EXPERTS, "num_key_value_heads": 4, "attention_bias": False,
    }),
    "qwen2": Family("Qwen2ForCausalLM", False, "qkv", "by layer", {
        **_QWEN, "num_key_value_heads": 32,
    }),
    "llama": Family("LlamaForCausalLM", False, "chosen", "none", {
        **_COMMON, "num_key_value_heads": None, "max_position_embeddings": 2048,
        "attention_bias": False, "mlp_bias": False,
    }),
    "mistral": Family("MistralForCausalLM", False, "none", "all", {
        **_COMMON, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    }),
}  # fmt: skip
_REQUIRED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
)  # fmt: skip

# Fields that change no logits, whatever they hold: names, labels, tokens, what `generate` of
# transformers takes as defaults, and how its models return their results.
HARMLESS = frozenset((
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash",
    "_flash_attn_2_enabled", "_name_or_path",
    "architectures", "attn_implementation", "bad_words_ids", "begin_suppress_tokens",
    "bos_token_id", "diversity_penalty", "do_sample", "dtype", "early_stopping",
    "encoder_no_repeat_ngram_size", "eos_token_id", "experts_implementation",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "gradient_checkpointing", "id2label", "is_decoder", "is_llama_config",
    "keys_to_ignore_at_inference", "label2id", "length_penalty", "max_length", "max_new_tokens",
    "max_sequence_length", "min_length", "model_max_length", "name_or_path",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_labels", "num_return_sequences", "output_attentions", "output_hidden_states",
    "output_scores", "pad_token_id", "prefix", "pretraining_tp", "problem_type",
    "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "sep_token_id", "suppress_tokens", "task_specific_params", "temperature",
    "tie_last_hidden_states", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "typical_p", "unsloth_fixed",
    "unsloth_version", "use_cache",
))  # fmt: skip
# Fields that change logits or gradients unless they have one of these values. What a family reads
# itself is not held against them.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,), "attention_bias": (False, None), "attention_dropout": (0,),
    "chunk_size_feed_forward": (0,), "cross_attention_hidden_size": (None,),
    "is_encoder_decoder": (False,), "mlp_bias": (False, None), "partial_rotary_factor": (1, None),
    "per_layer_config": (None,), "pruned_heads": ({}, None), "qkv_bias": (False, None),
    "quantization_config": (None,), "rope_interleaved": (False, None),
    "shared_expert_intermediate_size": (0, None), "tie_encoder_decoder": (False,),
    "use_bfloat16": (False,), "use_mrope": (False, None), "use_qk_norm": (False, None),
}  # fmt: skip
_NEUTRAL_WITH_BIASES = {"attention_bias": (True,), "qkv_bias": (True,)}
_NEUTRAL_WITH_QK_NORM = {"use_qk_norm": (True, None)}
WINDOW_FIELDS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
_KINDS = ("full_attention", "sliding_attention")
_PASSED = HARMLESS | {"model_type", *ROPE_FIELDS, *WINDOW_FIELDS}  # or read by more than a name


# ---- reading ----


def read_fields(values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `DecoderConfig` that correspond to a file's fields.

    Raises ValueError naming a field that is missing, malformed or not honoured.
    """
    if not isinstance(values, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"it is {brief(values)}, expected an object")
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"model_type is {brief(model_type)}, expected one of {', '.join(map(repr, FAMILIES))}"
        )
    family = FAMILIES[model_type]
    fields = {**family.defaults, **_own_fields(values, family, model_type)}
    for name in _REQUIRED:
        positive_int(name, fields.get(name))
    layer_count("num_hidden_layers", fields["num_hidden_layers"])
    _fill_heads(fields, values)
    positive_int("max_position_embeddings", fields["max_position_embeddings"])
    fields["rope_theta"], fields["rope_scaling"] = read_rope(
        values, fields["max_position_embeddings"]
    )
    fields["sliding_window"], fields["layer_types"] = _read_windows(
        values, family, model_type, fields["num_hidden_layers"]
    )
    fields["qk_norm"] = family.qk_norm
    if family.biases == "qkv":
        fields["attention_bias"] = True
    elif not family.qk_norm and fields.get("attention_bias"):
        fields["output_bias"] = fields["attention_bias"]
    if "mlp_only_layers" in fields:
        fields["mlp_only_layers"] = _layer_numbers(fields["mlp_only_layers"])
    return fields


def _own_fields(values: dict[str, Any], family: Family, model_type: str) -> dict[str, Any]:
    """The fields that `family` reads by themselves; every other one must be known."""
    neutral = {**NEUTRAL, **(_NEUTRAL_WITH_BIASES if family.biases == "qkv" else {})}
    neutral |= _NEUTRAL_WITH_QK_NORM if family.qk_norm else {}
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if name in family.defaults or name in _REQUIRED:
            fields[name] = value
        elif name == "num_local_experts" and "num_experts" in family.defaults:
            continue
        elif name in neutral:
            allowed = [v for v in neutral[name] if isinstance(value, bool) == isinstance(v, bool)]
            if value not in allowed:
                expected = " or ".join(map(repr, neutral[name]))
                raise ValueError(
                    f"{name} is {brief(value)}, which this library does not honour in a "
                    f"{model_type}; expected {expected}"
                )
        elif name not in _PASSED:
            raise ValueError(
                f"{brief(name)[1:-1]} is {brief(value)}, a field that this library does not know"
            )
    if "num_experts" in family.defaults and "num_local_experts" in values:
        # transformers writes the second name for the first.
        experts = values["num_local_experts"]
        if fields.setdefault("num_experts", experts) != experts:
            raise ValueError("num_experts and num_local_experts disagree")
    return fields


def _fill_heads(fields: dict[str, Any], values: dict[str, Any]) -> None:
    """The heads of keys and their length where the file has none."""
    heads, key_heads = fields["num_attention_heads"], fields["num_key_value_heads"]
    if key_heads is None:
        fields["num_key_value_heads"] = heads
    elif "num_key_value_heads" not in values and heads % key_heads:
        raise ValueError(
            f"num_key_value_heads is absent, which means {key_heads}, and {heads} attention heads "
            "are no multiple of it"
        )
    if fields["head_dim"] is None:
        fields["head_dim"] = fields["hidden_size"] // heads


def _layer_numbers(value: Any) -> tuple[Any, ...]:
    if value is not None and not isinstance(value, list):
        raise ValueError(f"mlp_only_layers is {brief(value)}, expected a list of layers")
    return tuple(value or ())


def _read_windows(
    values: dict[str, Any], family: Family, model_type: str, layers: int
) -> tuple[int | None, tuple[str, ...] | None]:
    """(`sliding_window`, `layer_types`) of `DecoderConfig`: no kinds where all layers are alike.

    Raises ValueError for fields that are malformed, or say what the family does not compute.
    """
    window = values.get("sliding_window", None if family.windows == "none" else 4096)
    optional(positive_int)("sliding_window", window)
    switch = values.get("use_sliding_window")
    optional(boolean)("use_sliding_window", switch)
    first = values.get("max_window_layers", 28)
    optional(count)("max_window_layers", first)
    kinds = _checked_kinds(values.get("layer_types"), layers)
    if family.windows in ("by layer", "switched") and not switch:
        window = None
    if family.windows == "none" and window is not None:
        raise ValueError(f"sliding_window is {window}, but a {model_type} has none; expected null")
    if family.windows in ("all", "none") and switch not in (None, window is not None):
        raise ValueError(
            f"use_sliding_window is {switch}, but a {model_type} does not read it and its "
            f"sliding_window is {window}"
        )
    computed = [_KINDS[window is not None]] * layers
    if family.windows == "by layer" and window is not None:
        if first is None:
            raise ValueError("max_window_layers is None, expected an integer")
        computed = [_KINDS[i >= first] for i in range(layers)] if kinds is None else kinds
    if kinds is not None and kinds != computed:
        place = next(i for i in range(layers) if kinds[i] != computed[i])
        raise ValueError(
            f"layer_types has {kinds[place]!r} for layer {place}, but by the other fields a "
            f"{model_type} computes {computed[place]!r} there"
        )
    if "sliding_attention" not in computed:
        return None, None
    return window, None if "full_attention" not in computed else tuple(computed)


def _checked_kinds(kinds: Any, layers: int) -> list[str] | None:
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ValueError(f"layer_types is {brief(kinds)}, expected one for each of {layers} layers")
    other = next((k for k in kinds if k not in _KINDS), None)
    if other is not None:
        raise ValueError(
            f"layer_types has {brief(other)}, which this library does not honour; it computes "
            f"{' and '.join(map(repr, _KINDS))}"
        )
    return kinds


# ---- writing ----


def family_of(config: DecoderConfig) -> str:
    """The model_type whose config.json describes a model: `config.model_type`, or the first.

    Raises ValueError where there is none, and says what each lacks.
    """
    names = FAMILIES if config.model_type is None else (config.model_type,)
    reasons = {name: _lacking(FAMILIES[name], config) for name in names}
    for name, reason in reasons.items():
        if not reason:
            return name
    listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise ValueError(f"no config.json describes this model ({listed})")


def _lacking(family: Family, config: DecoderConfig) -> str:
    """What of a model a family does not compute; "" for one that it does."""
    biases = {
        "qkv": (True, False), "none": (False, False),
        "chosen": (config.attention_bias, config.attention_bias),
    }[family.biases]  # fmt: skip
    if config.qk_norm != family.qk_norm:
        return f"qk_norm is {family.qk_norm}"
    if (config.attention_bias, config.has_output_bias) != biases:
        return f"attention_bias and output_bias are {biases[0]} and {biases[1]}"
    if config.mlp_bias and "mlp_bias" not in family.defaults:
        return "mlp_bias is False"
    if config.num_experts and "num_experts" not in family.defaults:
        return "num_experts is 0"
    if config.sliding_window is not None and family.windows == "none":
        return "sliding_window is None"
    if config.layer_types is not None and family.windows != "by layer":
        return "layer_types is None"
    if family is FAMILIES["llama"] and config.hidden_size % config.num_attention_heads:
        return "hidden_size is a multiple of num_attention_heads"
    return ""


def written_fields(config: DecoderConfig) -> dict[str, Any]:
    """The contents of a config.json that `read_fields` reads as `config`."""
    model_type = family_of(config)
    family = FAMILIES[model_type]
    names = [*_REQUIRED, *family.defaults]
    values: dict[str, Any] = {name: getattr(config, name) for name in names}
    if "mlp_only_layers" in values:
        values["mlp_only_layers"] = list(config.mlp_only_layers)
    rope = written_rope(config.rope_theta, config.rope_scaling, config.max_position_embeddings)
    return {
        "model_type": model_type,
        "architectures": [family.architecture],
        **values,
        **rope,
        **_written_windows(config, family),
    }


def _written_windows(config: DecoderConfig, family: Family) -> dict[str, Any]:
    window, layers = config.sliding_window, config.num_hidden_layers
    if family.windows == "all":
        return {"sliding_window": window}
    if window is None:
        return {}
    fields: dict[str, Any] = {"use_sliding_window": True, "sliding_window": window}
    if family.windows == "by layer":
        kinds = ["sliding_attention"] * layers if config.layer_types is None else config.layer_types
        fields["layer_types"] = list(kinds)
        full = kinds.index("sliding_attention")
        if "full_attention" not in kinds[full:]:  # as programs without layer_types say it
            fields["max_window_layers"] = full
    return fields
