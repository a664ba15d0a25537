"""The hyperparameters of a Qwen model, and reading them from a config.json.

Every field of the file is honoured, known to have no effect, or refused by name; an absent field
has transformers' default. So a model computes what transformers computes, or loading fails.
"""

from __future__ import annotations

import dataclasses
import numbers
import os
import sys
from typing import Any

from genesis_fn.errors import FileError
from genesis_fn.extend import brief, read_json

_LARGEST_FILE = 1 << 20  # bytes; a real config.json has some thousand
_LARGEST_SIZE = 2**31 - 1
_MOST_LAYERS = 10_000

ACTIVATIONS = ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")


@dataclasses.dataclass(frozen=True)
class QwenConfig:
    """The hyperparameters, under the names of Hugging Face's config.json.
    Args:
        vocab_size: number of tokens.
        hidden_size: length of the activations.
        intermediate_size: length inside the feed-forward layers.
        num_hidden_layers: number of layers.
        num_attention_heads: number of query heads; a multiple of `num_key_value_heads`.
        num_key_value_heads: number of key and value heads.
        head_dim: length of a head, even.
        rope_theta: base of the rotary frequencies.
        rms_norm_eps: added to mean squares in the norms.
        tie_word_embeddings: whether the output layer shares the embedding's weight.
        max_position_embeddings: the longest sequence that the model is meant for; nothing reads it.
        initializer_range: standard deviation of random weights.
        attention_bias: whether queries, keys and values have biases, and in Qwen3 the output of
            attention too.
        qk_norm: whether queries and keys are normalised: True in Qwen3, False in Qwen2.
        hidden_act: activation of the feed-forward layers, one of `ACTIVATIONS`.
        rope_factor: divides positions (linear scaling).

    Raises:
        ValueError: a field has a value that no model can have; the message names the field.

    >>> QwenConfig(num_hidden_layers=2).size
    187045376
    """

    vocab_size: int = 151936
    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_hidden_layers: int = 28
    num_attention_heads: int = 16
    num_key_value_heads: int = 8
    head_dim: int = 128
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    max_position_embeddings: int = 40960
    initializer_range: float = 0.02
    attention_bias: bool = False
    qk_norm: bool = True
    hidden_act: str = "silu"
    rope_factor: float = 1.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _CHECKS[field.type](field.name, getattr(self, field.name))
        if self.num_hidden_layers > _MOST_LAYERS:
            raise ValueError(
                f"num_hidden_layers is {self.num_hidden_layers}, expected at most {_MOST_LAYERS}"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} must be even for rotary positions")
        for name in ("rope_theta", "rope_factor"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected a positive number")
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(
                f"hidden_act is {brief(self.hidden_act)}, expected one of {', '.join(ACTIVATIONS)}"
            )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> QwenConfig:
        """From the contents of a config.json.

        Raises ValueError naming a field that is missing, malformed or not honoured.
        """
        model_type = values.get("model_type")
        if model_type not in ("qwen2", "qwen3"):
            raise ValueError(
                f"config: model_type is {brief(model_type)}, expected 'qwen2' or 'qwen3'"
            )
        try:
            return cls(**_fields(values, model_type))
        except ValueError as error:
            raise ValueError(f"config: {error}") from None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> QwenConfig:
        """From a config.json, or a folder with one. Raises FileError naming file and field."""
        path = os.fspath(path)
        if os.path.isdir(path):
            path = os.path.join(path, "config.json")
        values = read_json(path, _LARGEST_FILE)
        try:
            return cls.from_dict(values)
        except ValueError as error:
            raise FileError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """The contents of a config.json. Raises ValueError for a model that transformers lacks."""
        model_type = "qwen3" if self.qk_norm else "qwen2"
        if model_type == "qwen2" and not self.attention_bias:
            raise ValueError(
                "attention without biases and without norms of queries and keys is neither Qwen2 "
                "nor Qwen3: no config.json describes it"
            )
        values = dataclasses.asdict(self)
        del values["qk_norm"]
        factor = values.pop("rope_factor")
        if model_type == "qwen2":
            del values["attention_bias"]  # always there
        if factor != 1.0:
            values["rope_scaling"] = {"rope_type": "linear", "factor": factor}
        architectures = [f"{model_type.capitalize()}ForCausalLM"]
        return {"model_type": model_type, "architectures": architectures, **values}

    @property
    def output_bias(self) -> bool:
        """Whether the last projection of attention has a bias: in Qwen3 with `attention_bias`."""
        return self.attention_bias and self.qk_norm

    @property
    def size(self) -> int:
        """The number of parameters."""
        h, d = self.hidden_size, self.head_dim
        q, kv = self.num_attention_heads * d, self.num_key_value_heads * d
        layer = h * (q + 2 * kv) + q * h + 3 * h * self.intermediate_size + 2 * h
        layer += 2 * d if self.qk_norm else 0
        layer += q + 2 * kv if self.attention_bias else 0
        layer += h if self.output_bias else 0
        tables = self.vocab_size * h * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * layer + tables + h


# ---- one field ----


def _positive_int(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"{name} is {brief(value)}, expected an integer")
    if not 1 <= int(value) <= _LARGEST_SIZE:
        raise ValueError(f"{name} is {brief(value)}, expected 1 to {_LARGEST_SIZE}")


def _number(name: str, value: Any) -> None:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{name} is {brief(value)}, expected a finite number, not negative")


def _bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {brief(value)}, expected true or false")


def _string(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {brief(value)}, expected a string")


_CHECKS: dict[Any, Any] = {"int": _positive_int, "float": _number, "bool": _bool, "str": _string}


# ---- the fields of a file ----

# transformers' defaults for absent fields.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {"head_dim": 128, "attention_bias": False},
}
for _defaults in _DEFAULTS.values():
    _defaults.update(
        num_key_value_heads=32,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        hidden_act="silu",
        max_position_embeddings=32768,
        initializer_range=0.02,
    )
_THETA = 1e4  # transformers' for an absent rope_theta
_REQUIRED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
)  # fmt: skip

# Fields that change no logits, whatever they hold: names, labels, tokens, what `generate` of
# transformers takes as defaults, and how its models return their results.
_IGNORED_FIELDS = frozenset((
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path",
    "architectures", "bos_token_id", "do_sample", "dtype", "eos_token_id", "finetuning_task",
    "id2label", "is_decoder", "keys_to_ignore_at_inference", "label2id", "length_penalty",
    "max_length", "max_new_tokens", "min_length", "num_beams", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_scores", "pad_token_id", "prefix",
    "problem_type", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "sep_token_id", "task_specific_params", "temperature", "tokenizer_class", "top_k", "top_p",
    "torch_dtype", "torchscript", "transformers_version", "unsloth_fixed", "unsloth_version",
    "use_cache",
))  # fmt: skip
# Fields that change logits or gradients unless they have one of these values.
_NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,), "attention_dropout": (0,), "chunk_size_feed_forward": (0,),
    "cross_attention_hidden_size": (None,), "is_encoder_decoder": (False,),
    "mlp_bias": (False, None), "partial_rotary_factor": (1, None), "pruned_heads": ({}, None),
    "quantization_config": (None,), "tie_encoder_decoder": (False,), "use_bfloat16": (False,),
    "use_mrope": (False, None), "use_sliding_window": (False, None),
}  # fmt: skip
# Read only by layers with a sliding window, which `use_sliding_window` and `layer_types` rule out.
_WINDOW_FIELDS = ("sliding_window", "max_window_layers")


def _fields(values: dict[str, Any], model_type: str) -> dict[str, Any]:
    """The arguments of `QwenConfig` that correspond to a file's fields."""
    known = {f.name for f in dataclasses.fields(QwenConfig)} - {"qk_norm", "rope_factor"}
    fields = {**_DEFAULTS[model_type], "qk_norm": model_type == "qwen3"}
    for name, value in values.items():
        if name in known:
            fields[name] = value
        elif name in _NEUTRAL_VALUES:
            if not any(
                value == v and isinstance(value, bool) == isinstance(v, bool)
                for v in _NEUTRAL_VALUES[name]
            ):
                raise ValueError(f"{name} is {brief(value)}, which this library does not honour")
        elif name not in (
            *_IGNORED_FIELDS,
            *_WINDOW_FIELDS,
            *_ROPE_FIELDS,
            "layer_types",
            "model_type",
        ):
            raise ValueError(f"{name} is {brief(value)}, a field that this library does not know")
    for name in _REQUIRED:
        _positive_int(name, values.get(name))
    heads = fields["num_attention_heads"]
    if "num_key_value_heads" not in values and heads % fields["num_key_value_heads"]:
        raise ValueError(
            f"num_key_value_heads is absent, which means {fields['num_key_value_heads']}, and "
            f"{heads} attention heads are no multiple of it"
        )
    if fields["num_key_value_heads"] is None:
        fields["num_key_value_heads"] = heads
    if fields.get("head_dim") is None:
        fields["head_dim"] = fields["hidden_size"] // heads
    if model_type == "qwen2":
        if fields.get("attention_bias", True) is not True:
            raise ValueError(
                f"attention_bias is {brief(fields['attention_bias'])}, but every Qwen2 has biases"
            )
        fields["attention_bias"] = True
    _check_layer_types(values.get("layer_types"), fields["num_hidden_layers"])
    fields["rope_theta"], fields["rope_factor"] = _rope(values)
    return fields


def _check_layer_types(types: Any, layers: int) -> None:
    if types is None:
        return
    if not isinstance(types, list) or len(types) != layers:
        raise ValueError(f"layer_types is {brief(types)}, expected one for each of {layers} layers")
    other = next((t for t in types if t != "full_attention"), None)
    if other is not None:
        raise ValueError(
            f"layer_types has {brief(other)}, which this library does not honour; it computes "
            "'full_attention'"
        )


# ---- rotary positions ----

_ROPE_FIELDS = ("rope_theta", "rope_scaling", "rope_parameters")


def _rope(values: dict[str, Any]) -> tuple[float, float]:
    """(theta, factor of linear scaling) by the older names, `rope_theta` with `rope_scaling`, and
    by the newer, `rope_parameters`. Other types of scaling are refused."""
    found = {n: values[n] for n in ("rope_scaling", "rope_parameters") if values.get(n) is not None}
    thetas = {}
    if values.get("rope_theta") is not None:
        thetas["rope_theta"] = values["rope_theta"]
    factors = {}
    for name, table in found.items():
        if not isinstance(table, dict):
            raise ValueError(f"{name} is {brief(table)}, expected an object")
        table = {k: v for k, v in table.items() if v is not None}
        rope_types = [table.pop(k) for k in ("rope_type", "type") if k in table]
        rope_type = rope_types[0] if rope_types else "default"
        if any(k != rope_type for k in rope_types) or rope_type not in ("default", "linear"):
            refused = rope_types[-1] if rope_type == "default" else rope_type
            raise ValueError(
                f"{name} is of type {brief(refused)}, which this library does not honour; it "
                "computes 'default' and 'linear'"
            )
        if "rope_theta" in table:
            thetas[f"{name}.rope_theta"] = table.pop("rope_theta")
        if rope_type == "linear":
            if "factor" not in table:
                raise ValueError(f"{name}.factor is missing, which type 'linear' needs")
            factors[name] = table.pop("factor")
            _number(f"{name}.factor", factors[name])
        if table.get("partial_rotary_factor") == 1:
            del table["partial_rotary_factor"]
        for other, value in table.items():
            raise ValueError(
                f"{name}.{brief(other)[1:-1]} is {brief(value)}, which this library does not honour"
            )
    for name, theta in thetas.items():
        _number(name, theta)
    if (
        len({*thetas.values()}) > 1
        or (factors and len(factors) != len(found))
        or (len({*factors.values()}) > 1)
    ):
        raise ValueError(f"{' and '.join({**thetas, **found})} disagree")
    return float(next(iter(thetas.values()), _THETA)), float(next(iter(factors.values()), 1.0))
