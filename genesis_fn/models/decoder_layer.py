"""One layer of a decoder: attention and a feed-forward network, and what they attend to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, PyTree, dtypes, errors, lax
from genesis_fn.extend import typeof
from genesis_fn.lax import dot_product_attention, dynamic_update_slice, rms_norm
from genesis_fn.models.activations import ACTIVATIONS
from genesis_fn.models.decoder_config import DecoderConfig
from genesis_fn.nn import (
    RotaryEmbedding,
    apply_rotary,
    expert_mlp,
    linear,
    router_logits,
    top_k_routing,
    write_cache,
)


def rotary_angles(positions: ArrayLike, config: DecoderConfig) -> tuple[Array, Array]:
    """Cosines and sines of the rotary positions."""
    c = config
    return RotaryEmbedding(c.head_dim, c.rope_theta, scaling=c.rope_scaling).angles(positions)


def _project(p: dict[str, Any], x: Array) -> Array:
    y = linear(x, p["weight"])
    return y + p["bias"] if "bias" in p else y


def _attention(
    p: dict[str, Any],
    x: Array,
    angles: tuple[Array, Array],
    config: DecoderConfig,
    cache: PyTree,
    lengths: Array | None,
    visible: dict[str, Any],
    pick: Callable[[Array], Array],
    attention: Callable[..., Array],
) -> tuple[Array, PyTree]:
    c = config
    lead = x.shape[:-1]
    q = jnp.reshape(_project(p["q_proj"], x), (*lead, c.num_attention_heads, c.head_dim))
    k = jnp.reshape(_project(p["k_proj"], x), (*lead, c.num_key_value_heads, c.head_dim))
    v = jnp.reshape(_project(p["v_proj"], x), (*lead, c.num_key_value_heads, c.head_dim))
    if c.qk_norm:
        q = rms_norm(q, p["q_norm"]["weight"], eps=c.rms_norm_eps)
        k = rms_norm(k, p["k_norm"]["weight"], eps=c.rms_norm_eps)
    q, k = apply_rotary(q, *angles), apply_rotary(k, *angles)
    if cache is not None and lengths is not None:
        cache = {"k": write_cache(cache["k"], k, lengths), "v": write_cache(cache["v"], v, lengths)}
        k, v = jnp.astype(cache["k"], q.dtype), jnp.astype(cache["v"], q.dtype)
    elif cache is not None:
        cache = {"k": _first_in(cache["k"], k), "v": _first_in(cache["v"], v)}
    out = attention(q, k, v, **visible)
    return _project(p["o_proj"], pick(jnp.reshape(out, (*lead, -1)))), cache


def _first_in(buffer: Array, new: Array) -> Array:
    """`buffer` [B, capacity, ...] with `new` [B, T, ...] as its first positions."""
    return dynamic_update_slice(buffer, jnp.astype(new, buffer.dtype), (0,) * buffer.ndim)


def _feed_forward(p: dict[str, Any], x: Array, config: DecoderConfig) -> Array:
    activation = ACTIVATIONS[config.hidden_act]
    gated = activation(_project(p["gate_proj"], x)) * _project(p["up_proj"], x)
    return _project(p["down_proj"], gated)


def _experts(
    p: dict[str, Any], x: Array, config: DecoderConfig, mlp: Callable[..., Array]
) -> tuple[Array, tuple[Array, Array]]:
    """(the mixture's output, each token's probabilities of all experts and its chosen ones)."""
    rows = jnp.reshape(x, (-1, x.shape[-1]))
    logits = router_logits(rows, p["gate"]["weight"])
    weights, experts, probabilities = top_k_routing(
        logits, config.num_experts_per_tok, normalize=config.norm_topk_prob
    )
    y = mlp(rows, weights, experts, p["experts"], ACTIVATIONS[config.hidden_act])
    return jnp.reshape(y, x.shape), (probabilities, experts)


def every_position(x: Array) -> Array:
    """`x`: the activations of all positions are wanted."""
    return x


def run_layer(
    p: dict[str, Any],
    x: Array,
    angles: tuple[Array, Array],
    config: DecoderConfig,
    visible: dict[str, Any],
    cache: PyTree = None,
    lengths: Array | None = None,
    pick: Callable[[Array], Array] = every_position,
    attention: Callable[..., Array] = dot_product_attention,
    experts: Callable[..., Array] = expert_mlp,
    sequence: Any = None,
) -> tuple[Array, PyTree, tuple[Array, Array] | None]:
    """(activations after one layer, its cache, its routing if it has experts). `visible` holds the
    arguments of attention that say which keys a query may attend to: those of the cache, which has
    `lengths`, or those of `x` alone where an empty one is filled and they are None. `pick` takes
    from [B, T, n] the positions whose activations are wanted; all of them are keys. `attention` and
    `experts` compute what the functions do that are their defaults. `sequence` lays out what is
    between blocks, a `parallel.SequenceParallel` or None."""
    eps = config.rms_norm_eps
    enter, leave = between_blocks(sequence)
    h = enter(rms_norm(x, p["input_layernorm"]["weight"], eps=eps))
    a, cache = _attention(
        p["self_attn"], h, angles, config, cache, lengths, visible, pick, attention
    )
    x = pick(x) + leave(a)
    h = enter(rms_norm(x, p["post_attention_layernorm"]["weight"], eps=eps))
    if "experts" not in p["mlp"]:
        return x + leave(_feed_forward(p["mlp"], h, config)), cache, None
    y, routing = _experts(p["mlp"], h, config, experts)
    return x + leave(y), cache, routing


def between_blocks(sequence: Any) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """(what is done to what a block reads, to what it computed)."""
    as_it_is = lambda x: x
    return (as_it_is, as_it_is) if sequence is None else (sequence.enter, sequence.leave)


def layers_of(params: PyTree, config: DecoderConfig) -> Iterator[tuple[dict[str, Any], int | None]]:
    """Each layer's parameters and window. Raises ShapeError for parameters of another config."""
    _check_config(params, config)
    return zip(params["layers"], config.windows)


def _check_config(params: PyTree, config: DecoderConfig) -> None:
    """Raise ShapeError for parameters of another config, which would be computed as a model that
    neither is."""
    if not isinstance(params, dict) or not {"layers", "embed_tokens"} <= params.keys():
        keys = isinstance(params, dict)
        found = f"has the keys {list(params)}" if keys else f"is a {type(params).__name__}"
        raise errors.ShapeError(
            f"params: 'layers' and 'embed_tokens' are wanted, but it {found}\n"
            "  decoder.init(key, config) or io.load_model(folder) makes them"
        )
    count, tied = len(params["layers"]), config.tie_word_embeddings
    if count != config.num_hidden_layers:
        raise _of_another_config(f"are of {count} layers", "num_hidden_layers", config)
    if tied == ("lm_head" in params):
        text = f"have {'an' if tied else 'no'} lm_head"
        raise _of_another_config(text, "tie_word_embeddings", config)
    for p, sparse in zip(params["layers"], config.sparse_layers):
        attention, mlp = p["self_attn"], p["mlp"]
        gate, output = mlp.get("gate_proj", ()), config.has_output_bias
        for field, name, there, wanted in (
            ("qk_norm", "q_norm", "q_norm" in attention, config.qk_norm),
            ("attention_bias", "q_proj.bias", "bias" in attention["q_proj"], config.attention_bias),
            ("has_output_bias", "o_proj.bias", "bias" in attention["o_proj"], output),
            ("num_experts", "experts", "experts" in mlp, sparse),
            ("mlp_bias", "gate_proj.bias", "bias" in gate, config.mlp_bias and not sparse),
        ):
            if there != wanted:
                text = f"have a layer {'with' if there else 'without'} {name}"
                raise _of_another_config(text, field, config)


def _of_another_config(text: str, field: str, config: DecoderConfig) -> errors.ShapeError:
    return errors.ShapeError(
        f"the parameters {text}, but the config has {field} {getattr(config, field)}: they are of "
        "another config"
    )


# ---- what a query attends to ----


def within_segments(ids: Array, shape: tuple[int, ...]) -> Array:
    """The positions [B, T] within each run of one id. Raises ShapeError."""
    aval = typeof(ids)
    if aval.shape != shape or not dtypes.is_integer(aval.dtype):
        raise errors.ShapeError(
            f"decoder: segment_ids {aval} must be integers {list(shape)}, one for each token"
        )
    at = jnp.arange(shape[1], dtype=jnp.int32)[None, :]
    begins = jnp.concatenate([jnp.ones_like(ids[:, :1], bool), ids[:, 1:] != ids[:, :-1]], axis=1)
    start = lax.cummax(jnp.where(begins, at, 0), axis=1)
    return at - start


def visible_within(t: int, window: int | None) -> dict[str, Any]:
    """The arguments of attention of `t` tokens to themselves: to none that follow, and to at most
    `window` of them."""
    if window is None or window >= t:
        return {"is_causal": True}
    return {"is_causal": True, "local_window_size": (window - 1, 0)}


def visible_in_cache(
    positions: Array, lengths: Array, capacity: int, window: int | None
) -> dict[str, Any]:
    """The arguments of attention that say which keys of a cache each query attends to: those up to
    its own position, at most `window` of them. Later ones are empty or padding."""
    keys, places = jnp.arange(capacity)[None, None, None, :], positions[:, None, :, None]
    near = None if window is None or window >= capacity else keys > places - window
    if positions.shape[1] == 1:
        return {"key_value_seq_lengths": lengths + 1, "mask": near}
    seen = keys <= places
    return {"mask": seen if near is None else seen & near}
