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
    """Random parameters: normal weights, unit norms, zero biases.

    Args:
        key: random key, of which each weight derives its own; or raw words.
        config: the hyperparameters; weights have standard deviation `initializer_range`.
        dtype: floating dtype of all parameters.

    Returns:
        A pytree under Hugging Face's names: `embed_tokens`, `layers` (a list), `norm`, and
        `lm_head` unless embeddings are tied.

    >>> config = QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> params["layers"][0]["self_attn"]["q_proj"]["weight"].shape
    (32, 32)
    """
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
    """The weight of the output layer: its own, or the embedding's where they are tied.

    Args:
        params: parameters, from `init` or `io.load_qwen`.

    Returns:
        An array [vocabulary, hidden].

    >>> config = QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> head_weight(params).shape
    (64, 32)
    """
    return params["lm_head" if "lm_head" in params else "embed_tokens"]["weight"]


# ---- the network ----


def rotary(positions: ArrayLike, config: QwenConfig) -> tuple[Array, Array]:
    """Cosines and sines of rotary positions.

        angle[t, i] = t * rope_theta**(-i / half) / rope_factor, i < half = head_dim / 2

    Source: Su et al., "RoFormer", 2021, in Hugging Face's layout: both halves of the last axis have
    the same angles.

    Args:
        positions: integers [..., T].
        config: `head_dim`, `rope_theta` and `rope_factor` are read.

    Returns:
        (cos, sin), float32 [..., T, 1, head_dim].

    >>> cos, sin = rotary(jnp.arange(5), QwenConfig(head_dim=8))
    >>> cos.shape
    (5, 1, 8)
    """
    half = config.head_dim // 2
    exponent = jnp.arange(half, dtype=jnp.float32) * (-math.log(config.rope_theta) / half)
    frequency = jnp.exp(exponent)
    if config.rope_factor != 1.0:
        frequency = frequency / config.rope_factor
    angle = jnp.astype(positions, jnp.float32)[..., None] * frequency
    angle = jnp.concatenate([angle, angle], -1)[..., None, :]
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotate queries or keys by their positions.

        x * cos + (-x2, x1) * sin, with x1 and x2 the halves of the last axis

    Args:
        x: queries or keys [..., T, heads, head_dim].
        cos, sin: from `rotary`.

    Returns:
        An array of the shape and dtype of `x`.

    >>> rotate(jnp.ones((5, 2, 8)), *rotary(jnp.arange(5), QwenConfig(head_dim=8))).shape
    (5, 2, 8)
    """
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
    visible: dict[str, Any],
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
        out = dot_product_attention(q, k, v, is_causal=True, **visible)
    else:
        cache = {
            "k": _write_cache(cache["k"], k, lengths),
            "v": _write_cache(cache["v"], v, lengths),
        }
        keys, values = jnp.astype(cache["k"], q.dtype), jnp.astype(cache["v"], q.dtype)
        out = dot_product_attention(q, keys, values, **visible)
    return _project(p["o_proj"], jnp.reshape(out, (*lead, -1))), cache


def _write_cache(buffer: Array, new: Array, lengths: Array) -> Array:
    """`buffer` [B, S, ...] with `new` [B, T, ...] written at each row's own length."""
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
    visible: dict[str, Any],
) -> tuple[Array, PyTree]:
    """(activations after one layer, its cache). `visible` holds the arguments of attention that say
    which keys a query may attend to."""
    eps = config.rms_norm_eps
    h = rms_norm(x, p["input_layernorm"]["weight"], eps=eps)
    a, cache = _attention(p["self_attn"], h, angles, config, cache, lengths, visible)
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
    """The activations after the last norm, which the output layer multiplies.

    Args:
        params: parameters, from `init` or `io.load_qwen`.
        tokens: int tokens [B, T].
        config: the hyperparameters.
        positions: rotary positions, integers [B, T] or [1, T]; None means 0 ... T - 1.
        mask: booleans that broadcast to [B, heads, T, T]: True where a query may attend to a key
            that is not after it; None masks nothing.
        remat: recompute each layer in the backward pass instead of keeping its activations.

    Returns:
        An array [B, T, hidden].

    >>> config = QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> hidden(params, jnp.array([[1, 2, 3]]), config).shape
    (1, 3, 32)
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
    """Logits of the next token at every position.

    Args:
        params: parameters, from `init` or `io.load_qwen`.
        tokens: int tokens [B, T], or [T] without a batch.
        config: the hyperparameters.
        positions: rotary positions, integers [B, T] or [1, T]; None means 0 ... T - 1.
        mask: booleans that broadcast to [B, heads, T, T]: True where a query may attend to a key
            that is not after it; None masks nothing.
        remat: recompute each layer in the backward pass instead of keeping its activations.

    Returns:
        An array [B, T, vocabulary], or [T, vocabulary].

    >>> config = QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> forward(params, jnp.array([1, 2, 3]), config).shape
    (3, 64)
    """
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
    """Mean cross-entropy in nats, without keeping the logits.

    Args:
        params: parameters, from `init` or `io.load_qwen`.
        tokens: int tokens [B, T].
        labels: int labels [B, T]; the label of a position is the token that follows it.
        config: the hyperparameters.
        ignore_index: label of positions that do not count.
        z_loss: weight of the penalty logsumexp(logits)**2 per position.
        remat: recompute each layer in the backward pass instead of keeping its activations.
        mask: as in `hidden`.

    Returns:
        A scalar.

    >>> config = QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> tokens = jnp.array([[1, 2, 3, 4]])
    >>> loss(params, tokens[:, :-1], tokens[:, 1:], config).shape
    ()
    """
    x = hidden(params, tokens, config, remat=remat, mask=mask)
    return linear_cross_entropy(
        x, head_weight(params), labels, ignore_index=ignore_index, z_loss=z_loss
    )


@dataclasses.dataclass(frozen=True)
class Qwen(Module):
    """The model as a layer: `Qwen(config)(params, tokens)` is `forward(params, tokens, config)`.

    A call takes the options of `forward` by name.

    Args:
        config: the hyperparameters.

    >>> model = Qwen(QwenConfig(64, 32, 64, 2, 4, 2, 8))
    >>> params = model.init(random.key(0))
    >>> model(params, jnp.array([[1, 2, 3]])).shape
    (1, 3, 64)
    """

    config: QwenConfig

    def init(self, key: Key) -> PyTree:
        return init(key, self.config)

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
        positions: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        remat: bool = False,
    ) -> Array:
        tokens: Array = jnp.asarray(x)
        return forward(params, tokens, self.config, positions=positions, mask=mask, remat=remat)


# ---- generation: the cache ----


def init_cache(
    config: QwenConfig, batch: int, capacity: int, dtype: DTypeLike = jnp.float32
) -> dict[str, Any]:
    """An empty cache of keys and values for decoding.

    Args:
        config: the hyperparameters.
        batch: number of rows, B.
        capacity: number of positions, prompt and continuation together.
        dtype: floating dtype of keys and values.

    Returns:
        {"layers": [{"k", "v"}: [B, capacity, kv heads, head_dim]], "lengths": int32 [B]}, with
        `lengths` the number of positions that are filled.

    Raises:
        DTypeError: `dtype` is not floating.

    >>> init_cache(QwenConfig(64, 32, 64, 2, 4, 2, 8), 1, 16)["layers"][0]["k"].shape
    (1, 16, 2, 8)
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
    """Logits after tokens that follow the cache's, and the cache with them.

    Args:
        params: parameters, from `init` or `io.load_qwen`.
        tokens: int tokens [B, T] that follow what the cache holds: the prompt in a prefill, one
            token in a decoding step.
        cache: from `init_cache` or an earlier call.
        config: the hyperparameters.
        counts: how many of the T tokens are real in each row, integers [B]; padding comes behind
            them. None means all.

    Returns:
        (logits [B, T, vocabulary], the cache with the tokens).

    Raises:
        ShapeError: the cache has fewer than T positions.
        AssertionFailed: a row has fewer than T positions left, when the program runs.

    >>> config = QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> logits, cache = extend(params, jnp.array([[1, 2, 3]]), init_cache(config, 1, 16), config)
    >>> logits.shape, cache["lengths"].tolist()
    ((1, 3, 64), [3])
    """
    capacity, t = cache["layers"][0]["k"].shape[1], tokens.shape[-1]
    message = f"extend: of the cache's {capacity} positions fewer than the {t} that follow are left"
    if t > capacity:
        raise errors.ShapeError(message)
    assert_(cache["lengths"] <= capacity - t, message)
    return extend_within(params, tokens, cache, config, counts)


def extend_within(
    params: PyTree,
    tokens: Array,
    cache: PyTree,
    config: QwenConfig,
    counts: ArrayLike | None = None,
    *,
    last: bool = False,
) -> tuple[Array, PyTree]:
    """`extend` for a caller who knows that the cache has room: nothing is checked.

    Args:
        params: parameters, from `init` or `io.load_qwen`.
        tokens: int tokens [B, T] that follow what the cache holds: the prompt in a prefill, one
            token in a decoding step.
        cache: from `init_cache` or an earlier call.
        config: the hyperparameters.
        counts: how many of the T tokens are real in each row, integers [B]; padding comes behind
            them. None means all.
        last: compute the logits of each row's last real position only.

    Returns:
        (logits [B, T, vocabulary], or [B, vocabulary] with `last`; the cache with the tokens).

    >>> config = QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> cache = init_cache(config, 1, 16)
    >>> logits, cache = extend_within(params, jnp.array([[1, 2, 3]]), cache, config)
    >>> logits.shape
    (1, 3, 64)
    """
    b, t = tokens.shape
    lengths = cache["lengths"]
    capacity = cache["layers"][0]["k"].shape[1]
    positions = lengths[:, None] + jnp.arange(t)[None, :]
    # A query attends to keys up to its own position; later ones are empty or padding.
    if t == 1:
        visible = {"key_value_seq_lengths": lengths + 1}
    else:
        keys = jnp.arange(capacity)[None, None, None, :]
        visible = {"mask": keys <= positions[:, None, :, None]}
    x = take_rows(params["embed_tokens"]["weight"], tokens)
    angles = rotary(positions, config)
    layers = []
    for p, layer_cache in zip(params["layers"], cache["layers"], strict=True):
        x, new = _layer(p, x, angles, config, layer_cache, lengths, visible)
        layers.append(new)
    x = rms_norm(x, params["norm"]["weight"], eps=config.rms_norm_eps)
    counts = jnp.full((b,), t, jnp.int32) if counts is None else counts
    if last:  # clipped, so that a count out of range fails the caller's check, not this indexing
        at = jnp.asarray(counts)[:, None, None] - 1
        x = jnp.take_along_axis(x, at, axis=1, mode="clip")[:, 0]
    return linear(x, head_weight(params)), {"layers": layers, "lengths": lengths + counts}


prefill = extend


def decode_step(
    params: PyTree, token: Array, cache: PyTree, config: QwenConfig
) -> tuple[Array, PyTree]:
    """Logits after one more token per row, and the cache with it.

    Args:
        params: parameters, from `init` or `io.load_qwen`.
        token: int tokens [B].
        cache: from `init_cache` or an earlier call.
        config: the hyperparameters.

    Returns:
        (logits [B, vocabulary], the cache with the tokens).

    Raises:
        AssertionFailed: a row's cache is full, when the program runs.

    >>> config = QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> logits, cache = decode_step(params, jnp.array([1]), init_cache(config, 1, 16), config)
    >>> logits.shape
    (1, 64)
    """
    logits, cache = extend(params, token[:, None], cache, config)
    return logits[:, 0], cache
