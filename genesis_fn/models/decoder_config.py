"""The hyperparameters of a decoder: Qwen2, Qwen3, Qwen3-MoE, Llama or Mistral."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from genesis_fn.errors import FileError
from genesis_fn.extend import brief, read_json
from genesis_fn.models import config_file, field_checks as check
from genesis_fn.models.activations import ACTIVATIONS
from genesis_fn.nn import DynamicScaling, NTKScaling, RotaryScaling

_LARGEST_FILE = 1 << 20  # bytes; a real config.json has some thousand
# Parameters; no array of a model then has more elements than an index of 64 bits counts.
_MOST_PARAMETERS = 2**62


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
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
        max_position_embeddings: the longest sequence that the model is meant for; no computation
            reads it, a file's scaling of positions does.
        initializer_range: standard deviation of random weights.
        attention_bias: whether queries, keys and values have biases.
        qk_norm: whether queries and keys are normalised, as in Qwen3.
        hidden_act: activation of the feed-forward layers, one of transformers' that have no
            parameters.
        rope_scaling: how the rotary frequencies are stretched: `nn.LinearScaling`,
            `nn.DynamicScaling`, `nn.YarnScaling`, `nn.Llama3Scaling` or another `RotaryScaling`.
        output_bias: whether the output of attention has a bias; None means where `attention_bias`
            and `qk_norm` are set, as in Qwen3 and not in Qwen2. Llama's has one as the others do.
        mlp_bias: whether the feed-forward layers have biases.
        sliding_window: how many keys a query attends to, the last of them its own; None means all.
        layer_types: "sliding_attention" or "full_attention" for each layer; None means that
            `sliding_window` holds in all of them.
        num_experts: number of experts of a feed-forward layer; 0 makes all layers dense.
        num_experts_per_tok: number of experts of a token.
        moe_intermediate_size: length inside an expert.
        norm_topk_prob: whether the weights of a token's experts sum to 1.
        decoder_sparse_step: every so manyth layer has experts.
        mlp_only_layers: layers that are dense all the same, counted from 0.
        output_router_logits: whether `loss` adds `router_aux_loss_coef` times the load-balancing
            loss of the experts, which transformers' name for the switch does not say.
        router_aux_loss_coef: see `output_router_logits`.
        model_type: the family whose config.json `to_dict` writes; None means the first that
            describes the model, of qwen3, qwen3_moe, qwen2, llama and mistral.

    Raises:
        ValueError: a field has a value that no model can have; the message names the field.

    >>> DecoderConfig(num_hidden_layers=2).size
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
    rope_scaling: RotaryScaling | None = None
    output_bias: bool | None = None
    mlp_bias: bool = False
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    num_experts: int = 0
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 768
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()
    output_router_logits: bool = False
    router_aux_loss_coef: float = 0.001
    model_type: str | None = None

    def __post_init__(self) -> None:
        for name, checked in _CHECKS.items():
            checked(name, getattr(self, name))
        self._check_attention()
        self._check_layer_types()
        self._check_experts()
        if self.size > _MOST_PARAMETERS:
            raise ValueError(
                f"vocab_size, hidden_size, intermediate_size and the other sizes make "
                f"{self.size:.1e} parameters, more than any model has"
            )

    def _check_attention(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} must be even for rotary positions")
        if self.rope_scaling is not None and not callable(
            getattr(self.rope_scaling, "frequencies", None)
        ):
            raise ValueError(
                f"rope_scaling is {brief(self.rope_scaling)}, expected one such as "
                "nn.LinearScaling(2.0)"
            )
        if isinstance(self.rope_scaling, DynamicScaling | NTKScaling) and self.head_dim == 2:
            raise ValueError(f"head_dim 2 is too short for rope_scaling {self.rope_scaling}")

    def _check_layer_types(self) -> None:
        if self.layer_types is None:
            return
        kinds = ("sliding_attention", "full_attention")
        if not isinstance(self.layer_types, tuple) or len(self.layer_types) != (  # pyright: ignore[reportUnnecessaryIsInstance]
            self.num_hidden_layers
        ):
            raise ValueError(
                f"layer_types is {brief(self.layer_types)}, expected a tuple of one for each of "
                f"{self.num_hidden_layers} layers"
            )
        for kind in self.layer_types:
            check.one_of("layer_types", kind, kinds)
        if self.sliding_window is None and "sliding_attention" in self.layer_types:
            raise ValueError("layer_types has 'sliding_attention', but sliding_window is None")

    def _check_experts(self) -> None:
        if not isinstance(self.mlp_only_layers, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"mlp_only_layers is {brief(self.mlp_only_layers)}, expected a tuple of layers"
            )
        for layer in self.mlp_only_layers:
            check.count("mlp_only_layers", layer)
        if self.num_experts and self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"num_experts_per_tok is {self.num_experts_per_tok}, more than num_experts, "
                f"{self.num_experts}"
            )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DecoderConfig:
        """From the contents of a config.json.

        Raises ValueError naming a field that is missing, malformed or not honoured.
        """
        try:
            config = cls(**config_file.read_fields(values))
            named = dataclasses.replace(config, model_type=values["model_type"])
            family = config_file.family_of(named)  # raises where the family has no such model
            return config if config_file.family_of(config) == family else named
        except ValueError as error:
            raise ValueError(f"config: {error}") from None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> DecoderConfig:
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
        return config_file.written_fields(self)

    @property
    def has_output_bias(self) -> bool:
        """Whether the last projection of attention has a bias."""
        if self.output_bias is None:
            return self.attention_bias and self.qk_norm
        return self.output_bias

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Of each layer, how many keys a query attends to; None for all."""
        if self.layer_types is None:
            return (self.sliding_window,) * self.num_hidden_layers
        sliding = [kind == "sliding_attention" for kind in self.layer_types]
        return tuple([self.sliding_window if s else None for s in sliding])

    @property
    def sparse_layers(self) -> tuple[bool, ...]:
        """Of each layer, whether it has experts."""
        dense, step = {*self.mlp_only_layers}, self.decoder_sparse_step
        places = range(self.num_hidden_layers)
        return tuple(
            [self.num_experts > 0 and i not in dense and not (i + 1) % step for i in places]
        )

    @property
    def size(self) -> int:
        """The number of parameters."""
        h, d = self.hidden_size, self.head_dim
        q, kv = self.num_attention_heads * d, self.num_key_value_heads * d
        layer = h * (q + 2 * kv) + q * h + 2 * h
        layer += 2 * d if self.qk_norm else 0
        layer += q + 2 * kv if self.attention_bias else 0
        layer += h if self.has_output_bias else 0
        dense = 3 * h * self.intermediate_size
        dense += 2 * self.intermediate_size + h if self.mlp_bias else 0
        sparse = self.num_experts * (h + 3 * h * self.moe_intermediate_size)
        with_experts = sum(self.sparse_layers)
        without = self.num_hidden_layers - with_experts
        tables = self.vocab_size * h * (1 if self.tie_word_embeddings else 2)
        blocks = self.num_hidden_layers * layer + with_experts * sparse + without * dense
        return blocks + tables + h


def _activation(name: str, value: Any) -> None:
    check.one_of(name, value, tuple(ACTIVATIONS))


def _family(name: str, value: Any) -> None:
    check.one_of(name, value, tuple(config_file.FAMILIES))


_CHECKS: dict[str, check.Check] = {
    "vocab_size": check.positive_int, "hidden_size": check.positive_int,
    "intermediate_size": check.positive_int, "num_hidden_layers": check.layer_count,
    "num_attention_heads": check.positive_int, "num_key_value_heads": check.positive_int,
    "head_dim": check.positive_int, "rope_theta": check.base, "rms_norm_eps": check.number,
    "tie_word_embeddings": check.boolean, "max_position_embeddings": check.positive_int,
    "initializer_range": check.number, "attention_bias": check.boolean, "qk_norm": check.boolean,
    "hidden_act": _activation, "output_bias": check.optional(check.boolean),
    "mlp_bias": check.boolean, "sliding_window": check.optional(check.positive_int),
    "num_experts": check.expert_count, "num_experts_per_tok": check.positive_int,
    "moe_intermediate_size": check.positive_int, "norm_topk_prob": check.boolean,
    "decoder_sparse_step": check.positive_int, "output_router_logits": check.boolean,
    "router_aux_loss_coef": check.number, "model_type": check.optional(_family),
}  # fmt: skip
