"""Random parameters of a decoder."""

from __future__ import annotations

from typing import Any

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import DTypeLike, Key
from genesis_fn.models.decoder_config import DecoderConfig


def init(key: Key, config: DecoderConfig, dtype: DTypeLike = jnp.float32) -> dict[str, Any]:
    """Random parameters: normal weights, unit norms, zero biases.

    Args:
        key: random key, of which each weight derives its own; or raw words.
        config: the hyperparameters; weights have standard deviation `initializer_range`.
        dtype: floating dtype of all parameters.

    Returns:
        A pytree under Hugging Face's names: `embed_tokens`, `layers` (a list), `norm`, and
        `lm_head` unless embeddings are tied.

    >>> config = DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> params["layers"][0]["self_attn"]["q_proj"]["weight"].shape
    (32, 32)
    """
    layers = [
        init_layer(random.fold_in(random.fold_in(key, "layers"), i), config, dtype, has_experts)
        for i, has_experts in enumerate(config.sparse_layers)
    ]
    return with_layers(init_around(key, config, dtype), layers)


def with_layers(around: dict[str, Any], layers: list[Any]) -> dict[str, Any]:
    """All parameters, in the order in which they are used."""
    return {"embed_tokens": around["embed_tokens"], "layers": layers, **around}


def init_around(key: Key, config: DecoderConfig, dtype: DTypeLike) -> dict[str, Any]:
    """The parameters that are no layer's."""

    def table(name: str) -> dict[str, Any]:
        shape = config.vocab_size, config.hidden_size
        return _weight(random.fold_in(key, name), config, dtype, *shape)

    around = {"embed_tokens": table("embed_tokens"), "norm": _norm(config.hidden_size, dtype)}
    return around if config.tie_word_embeddings else {**around, "lm_head": table("lm_head")}


def init_layer(
    key: Key, config: DecoderConfig, dtype: DTypeLike, has_experts: bool
) -> dict[str, Any]:
    """The parameters of a layer."""
    c, d = config, config.head_dim
    q, kv = c.num_attention_heads * d, c.num_key_value_heads * d

    def projection(name: str, rows: int, columns: int, biased: bool) -> dict[str, Any]:
        p = _weight(random.fold_in(key, name), c, dtype, rows, columns)
        return {**p, "bias": jnp.zeros((rows,), dtype)} if biased else p

    attention = {
        "q_proj": projection("q_proj", q, c.hidden_size, c.attention_bias),
        "k_proj": projection("k_proj", kv, c.hidden_size, c.attention_bias),
        "v_proj": projection("v_proj", kv, c.hidden_size, c.attention_bias),
        "o_proj": projection("o_proj", c.hidden_size, q, c.has_output_bias),
    }
    if c.qk_norm:
        attention |= {"q_norm": _norm(d, dtype), "k_norm": _norm(d, dtype)}
    inner, outer = c.intermediate_size, c.hidden_size
    return {
        "input_layernorm": _norm(c.hidden_size, dtype),
        "self_attn": attention,
        "post_attention_layernorm": _norm(c.hidden_size, dtype),
        "mlp": _experts(key, c, dtype)
        if has_experts
        else {
            "gate_proj": projection("gate_proj", inner, outer, c.mlp_bias),
            "up_proj": projection("up_proj", inner, outer, c.mlp_bias),
            "down_proj": projection("down_proj", outer, inner, c.mlp_bias),
        },
    }


def _experts(key: Key, config: DecoderConfig, dtype: DTypeLike) -> dict[str, Any]:
    number, inner = config.num_experts, config.moe_intermediate_size
    outer = config.hidden_size
    shapes = {
        "gate_proj": (number, inner, outer),
        "up_proj": (number, inner, outer),
        "down_proj": (number, outer, inner),
    }
    return {
        "gate": _weight(random.fold_in(key, "gate"), config, dtype, number, outer),
        "experts": {
            name: _weight(random.fold_in(key, name), config, dtype, *shape)
            for name, shape in shapes.items()
        },
    }


def _weight(key: Key, config: DecoderConfig, dtype: DTypeLike, *shape: int) -> dict[str, Any]:
    return {"weight": random.normal(key, shape, dtype) * config.initializer_range}


def _norm(n: int, dtype: DTypeLike) -> dict[str, Any]:
    return {"weight": jnp.ones((n,), dtype)}
