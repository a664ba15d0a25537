"""Qwen2, Qwen2.5 and Qwen3: a decoder as `init` and `forward` over a pytree of parameters.

RMSNorm before each block, rotary positions, grouped-query attention (with RMSNorm of queries and
keys in Qwen3, biases in Qwen2), a SwiGLU feed-forward, and tied embeddings in the small models.
Parameter paths are Hugging Face's names: `params["layers"][0]["self_attn"]["q_proj"]["weight"]` is
`model.layers.0.self_attn.q_proj.weight`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree, checkpoint, errors, vmap
from genesis_fn.extend import take_rows
from genesis_fn.lax import (
    dot_product_attention,
    dynamic_update_slice,
    linear_cross_entropy,
    rms_norm,
)
from genesis_fn.models.qwen_config import QwenConfig
from genesis_fn.nn import Module, gelu, linear, relu, silu
from genesis_fn.random import fold_in
from genesis_fn.transforms import assert_

PRESETS = {
    "qwen3-0.6b": QwenConfig(),
    "qwen3-1.7b": QwenConfig(hidden_size=2048, intermediate_size=6144),
    "qwen3-4b": QwenConfig(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36,
                           num_attention_heads=32),
    "qwen3-8b": QwenConfig(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
                           num_attention_heads=32, tie_word_embeddings=False),
    "qwen2.5-0.5b": QwenConfig(hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
                               num_attention_heads=14, num_key_value_heads=2, head_dim=64,
                               attention_bias=True, qk_norm=False,
                               max_position_embeddings=32768),
}  # fmt: skip


# ---- parameters ----


def init(key: Key, config: QwenConfig, dtype: DTypeLike = jnp.float32) -> dict[str, Any]:
    """Fresh parameters: normal weights of standard deviation `initializer_range`, unit norms."""
    c, d = config, config.head_dim
    q, kv = c.num_attention_heads * d, c.num_key_value_heads * d

    def weight(k: Key, rows: int, columns: int) -> dict[str, Any]:
        return {"weight": random.normal(k, (rows, columns), dtype) * c.initializer_range}

    def projection(k: Key, rows: int, columns: int, biased: bool) -> dict[str, Any]:
        p = weight(k, rows, columns)
        return {**p, "bias": jnp.zeros((rows,), dtype)} if biased else p

    def norm(n: int) -> dict[str, Any]:
        return {"weight": jnp.ones((n,), dtype)}

    def layer(k: Key) -> dict[str, Any]:
        attention = {
            "q_proj": projection(fold_in(k, "q_proj"), q, c.hidden_size, c.attention_bias),
            "k_proj": projection(fold_in(k, "k_proj"), kv, c.hidden_size, c.attention_bias),
            "v_proj": projection(fold_in(k, "v_proj"), kv, c.hidden_size, c.attention_bias),
            "o_proj": projection(fold_in(k, "o_proj"), c.hidden_size, q, c.output_bias),
        }
        if c.qk_norm:
            attention |= {"q_norm": norm(d), "k_norm": norm(d)}
        return {
            "input_layernorm": norm(c.hidden_size),
            "self_attn": attention,
            "post_attention_layernorm": norm(c.hidden_size),
            "mlp": {
                "gate_proj": weight(fold_in(k, "gate_proj"), c.intermediate_size, c.hidden_size),
                "up_proj": weight(fold_in(k, "up_proj"), c.intermediate_size, c.hidden_size),
                "down_proj": weight(fold_in(k, "down_proj"), c.hidden_size, c.intermediate_size),
            },
        }

    params = {
        "embed_tokens": weight(fold_in(key, "embed_tokens"), c.vocab_size, c.hidden_size),
        "layers": [layer(fold_in(fold_in(key, "layers"), i)) for i in range(c.num_hidden_layers)],
        "norm": norm(c.hidden_size),
    }
    if not c.tie_word_embeddings:
        params["lm_head"] = weight(fold_in(key, "lm_head"), c.vocab_size, c.hidden_size)
    return params


def head_weight(params: PyTree) -> Array:
    """The [vocabulary, hidden] weight of the output layer: its own, or the embedding's."""
    return params["lm_head" if "lm_head" in params else "embed_tokens"]["weight"]


# ---- the network ----


def rotary(positions: ArrayLike, config: QwenConfig) -> tuple[Array, Array]:
    """(cos, sin), float32 [..., T, 1, head_dim], of int positions [..., T]."""
    half = config.head_dim // 2
    exponent = jnp.arange(half, dtype=jnp.float32) * (-math.log(config.rope_theta) / half)
    frequency = jnp.exp(exponent)
    if config.rope_factor != 1.0:
        frequency = frequency / config.rope_factor
    angle = jnp.astype(positions, jnp.float32)[..., None] * frequency
    angle = jnp.concatenate([angle, angle], -1)[..., None, :]
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Queries or keys [..., T, heads, head_dim] turned by their positions (Su et al., 2021)."""
    half = x.shape[-1] // 2
    turned = jnp.concatenate([-x[..., half:], x[..., :half]], -1)
    return jnp.astype(x * cos + turned * sin, x.dtype)


def _project(p: dict[str, Any], x: Array) -> Array:
    y = linear(x, p["weight"])
    return y + p["bias"] if "bias" in p else y


def _attention(
    p: dict[str, Any],
    x: Array,
    angles: tuple[Array, Array],
    config: QwenConfig,
    cache: PyTree,
    lengths: Any,
    seen: dict[str, Any],
) -> tuple[Array, PyTree]:
    c = config
    lead = x.shape[:-1]
    q = jnp.reshape(_project(p["q_proj"], x), (*lead, c.num_attention_heads, c.head_dim))
    k = jnp.reshape(_project(p["k_proj"], x), (*lead, c.num_key_value_heads, c.head_dim))
    v = jnp.reshape(_project(p["v_proj"], x), (*lead, c.num_key_value_heads, c.head_dim))
    if c.qk_norm:
        q = rms_norm(q, p["q_norm"]["weight"], eps=c.rms_norm_eps)
        k = rms_norm(k, p["k_norm"]["weight"], eps=c.rms_norm_eps)
    q, k = rotate(q, *angles), rotate(k, *angles)
    if cache is None:
        out = dot_product_attention(q, k, v, is_causal=True, **seen)
    else:
        cache = {"k": _written(cache["k"], k, lengths), "v": _written(cache["v"], v, lengths)}
        keys, values = jnp.astype(cache["k"], q.dtype), jnp.astype(cache["v"], q.dtype)
        out = dot_product_attention(q, keys, values, **seen)
    return _project(p["o_proj"], jnp.reshape(out, (*lead, -1))), cache


def _written(buffer: Array, new: Array, lengths: Array) -> Array:
    """`buffer` [B, S, ...] with `new` [B, T, ...] put at each row's own length."""
    zeros = (0,) * (buffer.ndim - 2)
    return vmap(lambda b, n, at: dynamic_update_slice(b, n, (at, *zeros)))(
        buffer, jnp.astype(new, buffer.dtype), lengths
    )


_ACTIVATIONS = {
    "silu": silu, "swish": silu, "relu": relu, "gelu": functools.partial(gelu, approximate=False),
    "gelu_new": gelu, "gelu_pytorch_tanh": gelu,
}  # fmt: skip


def _feed_forward(p: dict[str, Any], x: Array, config: QwenConfig) -> Array:
    activation = _ACTIVATIONS[config.hidden_act]
    gated = activation(linear(x, p["gate_proj"]["weight"])) * linear(x, p["up_proj"]["weight"])
    return linear(gated, p["down_proj"]["weight"])


def _layer(
    p: dict[str, Any],
    x: Array,
    angles: tuple[Array, Array],
    config: QwenConfig,
    cache: PyTree,
    lengths: Any,
    seen: dict[str, Any],
) -> tuple[Array, PyTree]:
    """(x after one layer, its cache); `seen` says what a query may attend to."""
    eps = config.rms_norm_eps
    h = rms_norm(x, p["input_layernorm"]["weight"], eps=eps)
    a, cache = _attention(p["self_attn"], h, angles, config, cache, lengths, seen)
    x = x + a
    h = rms_norm(x, p["post_attention_layernorm"]["weight"], eps=eps)
    return x + _feed_forward(p["mlp"], h, config), cache


def hidden(
    params: PyTree,
    tokens: Array,
    config: QwenConfig,
    *,
    positions: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    remat: bool = False,
) -> Array:
    """[B, T, hidden] after the last norm, for int tokens [B, T].

    `mask` (boolean, broadcast to [B, heads, T, T]) is applied besides causality; `remat` recomputes
    each layer in the backward pass.
    """
    x = take_rows(params["embed_tokens"]["weight"], tokens)
    angles = rotary(
        jnp.arange(tokens.shape[-1])[None, :] if positions is None else positions, config
    )

    def block(p: dict[str, Any], h: Array, angles: tuple[Array, Array]) -> Array:
        return _layer(p, h, angles, config, None, None, {"mask": mask})[0]

    run = checkpoint(block) if remat else block
    for p in params["layers"]:
        x = run(p, x, angles)
    return rms_norm(x, params["norm"]["weight"], eps=config.rms_norm_eps)


def forward(
    params: PyTree,
    tokens: Array,
    config: QwenConfig,
    *,
    positions: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    remat: bool = False,
) -> Array:
    """Logits [B, T, vocabulary] of int tokens [B, T] (or [T], then without the batch axis)."""
    if tokens.ndim == 1:
        return forward(params, tokens[None], config, positions=positions, mask=mask, remat=remat)[0]
    x = hidden(params, tokens, config, positions=positions, mask=mask, remat=remat)
    return linear(x, head_weight(params))


def loss(
    params: PyTree,
    tokens: Array,
    labels: Array,
    config: QwenConfig,
    *,
    ignore_index: int | None = None,
    z_loss: float = 0.0,
    remat: bool = False,
    mask: ArrayLike | None = None,
) -> Array:
    """Mean cross-entropy in nats of int labels [B, T] after tokens [B, T]; no logits are kept."""
    x = hidden(params, tokens, config, remat=remat, mask=mask)
    return linear_cross_entropy(
        x, head_weight(params), labels, ignore_index=ignore_index, z_loss=z_loss
    )


@dataclasses.dataclass(frozen=True)
class Qwen(Module):
    """The model as a layer: `Qwen(config)(params, tokens)` is `forward(params, tokens, config)`."""

    config: QwenConfig

    def init(self, key: Key) -> PyTree:
        return init(key, self.config)

    def __call__(self, params: PyTree, x: ArrayLike, **_: object) -> Array:
        return forward(params, jnp.asarray(x), self.config)


# ---- generation: the cache ----


def init_cache(
    config: QwenConfig, batch: int, capacity: int, dtype: DTypeLike = jnp.float32
) -> dict[str, Any]:
    """An empty cache of keys and values for `capacity` positions, `lengths` [B] of them filled.

    Raises DTypeError for a `dtype` that is no float's.
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        raise errors.DTypeError(f"init_cache: keys and values are floats, not {dtype}")
    shape = (batch, capacity, config.num_key_value_heads, config.head_dim)
    return {
        "layers": [
            {"k": jnp.zeros(shape, dtype), "v": jnp.zeros(shape, dtype)}
            for _ in range(config.num_hidden_layers)
        ],
        "lengths": jnp.zeros((batch,), jnp.int32),
    }


def extend(
    params: PyTree,
    tokens: Array,
    cache: PyTree,
    config: QwenConfig,
    counts: ArrayLike | None = None,
) -> tuple[Array, PyTree]:
    """(logits [B, T, vocabulary], cache) after tokens [B, T] that follow what the cache holds.

    `counts` [B] says how many of the T tokens are real in each row (the rest is padding behind);
    T is 1 for a decoding step, the prompt's length for a prefill. Raises where a row has no room
    for T more positions: ShapeError where the cache has not that many at all, AssertionFailed when
    the program runs.
    """
    capacity, t = cache["layers"][0]["k"].shape[1], tokens.shape[-1]
    short = f"extend: of the cache's {capacity} positions fewer than the {t} that follow are left"
    if t > capacity:
        raise errors.ShapeError(short)
    assert_(cache["lengths"] <= capacity - t, short)
    return extend_within(params, tokens, cache, config, counts)


def extend_within(
    params: PyTree,
    tokens: Array,
    cache: PyTree,
    config: QwenConfig,
    counts: ArrayLike | None = None,
) -> tuple[Array, PyTree]:
    """`extend` for a caller who knows that the cache is long enough: nothing is checked."""
    b, t = tokens.shape
    lengths = cache["lengths"]
    capacity = cache["layers"][0]["k"].shape[1]
    positions = lengths[:, None] + jnp.arange(t)[None, :]
    # A query sees the keys up to its own position; what lies beyond is empty or padding.
    if t == 1:
        seen = {"key_value_seq_lengths": lengths + 1}
    else:
        keys = jnp.arange(capacity)[None, None, None, :]
        seen = {"mask": keys <= positions[:, None, :, None]}
    x = take_rows(params["embed_tokens"]["weight"], tokens)
    angles = rotary(positions, config)
    layers = []
    for p, layer_cache in zip(params["layers"], cache["layers"], strict=True):
        x, new = _layer(p, x, angles, config, layer_cache, lengths, seen)
        layers.append(new)
    x = rms_norm(x, params["norm"]["weight"], eps=config.rms_norm_eps)
    counts = jnp.full((b,), t, jnp.int32) if counts is None else counts
    return linear(x, head_weight(params)), {"layers": layers, "lengths": lengths + counts}


prefill = extend


def decode_step(
    params: PyTree, token: Array, cache: PyTree, config: QwenConfig
) -> tuple[Array, PyTree]:
    """(logits [B, vocabulary], cache) after one token [B] per row."""
    logits, cache = extend(params, token[:, None], cache, config)
    return logits[:, 0], cache
