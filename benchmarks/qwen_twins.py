"""Qwen3-0.6B for generation, three times with the same weights: the library's, in PyTorch, in JAX.

Each has `step`, the greedy tokens after one more position of every row, and `prefill`, those after
whole prompts, whose keys and values it keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

POOL, SCALE = (1 << 24) - 3, 0.02


def sizes(layers: int) -> dict[str, Any]:
    """The model: Qwen3-0.6B with this many layers."""
    return dict(
        vocab=151936,
        width=1024,
        inner=3072,
        layers=layers,
        heads=16,
        kv_heads=8,
        dim=128,
        theta=1e6,
        eps=1e-6,
    )


def fields(s: dict[str, Any]) -> dict[str, Any]:
    """The model in the words of Hugging Face's config.json."""
    return dict(
        vocab_size=s["vocab"],
        hidden_size=s["width"],
        intermediate_size=s["inner"],
        num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"],
        num_key_value_heads=s["kv_heads"],
        head_dim=s["dim"],
        rope_theta=s["theta"],
        tie_word_embeddings=True,
    )


def weights(s: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """(name, float32 array) of every parameter: the same numbers in every process.

    Matrices are pieces of one pool of normal numbers, each from another place on.
    """
    pool = np.random.default_rng(0).standard_normal(POOL, np.float32) * np.float32(SCALE)
    at = 0

    def piece(*shape: int) -> np.ndarray:
        nonlocal at
        count, at = math.prod(shape), (at + 7919 * 1009) % POOL
        return np.resize(np.concatenate([pool[at:], pool[:at]]), count).reshape(shape)

    w, q, kv = s["width"], s["heads"] * s["dim"], s["kv_heads"] * s["dim"]
    shapes = {
        "self_attn.q_proj": (q, w),
        "self_attn.k_proj": (kv, w),
        "self_attn.v_proj": (kv, w),
        "self_attn.o_proj": (w, q),
        "mlp.gate_proj": (s["inner"], w),
        "mlp.up_proj": (s["inner"], w),
        "mlp.down_proj": (w, s["inner"]),
    }
    norms = {
        "input_layernorm": w,
        "post_attention_layernorm": w,
        "self_attn.q_norm": s["dim"],
        "self_attn.k_norm": s["dim"],
    }
    yield "embed_tokens", piece(s["vocab"], w)
    for i in range(s["layers"]):
        for name, shape in shapes.items():
            yield f"layers.{i}.{name}", piece(*shape)
        for name, n in norms.items():
            yield f"layers.{i}.{name}", 1 + piece(n)
    yield "norm", 1 + piece(w)


def nested(flat: Iterator[tuple[str, Any]], layers: int) -> dict[str, Any]:
    """The parameters as the library's model has them."""
    params: dict[str, Any] = {"layers": [{} for _ in range(layers)]}
    for name, value in flat:
        here: Any = params
        *parts, last = name.split(".")
        for part in parts:
            here = here[int(part)] if part.isdigit() else here.setdefault(part, {})
        here[last] = {"weight": value}
    return params


# ---- ours ----


class Ours:
    """The library's model, its parameters on the default device."""

    def __init__(self, s: dict[str, Any], capacity: int, dtype: str, batch: int = 1) -> None:
        import genesis_fn.numpy as jnp
        from genesis_fn.models import qwen

        self.jnp, self.qwen, self.capacity, self.batch = jnp, qwen, capacity, batch
        self.dtype = jnp.dtype(dtype)
        self.config = qwen.QwenConfig(**fields(s))
        flat = ((n, jnp.asarray(x).astype(self.dtype)) for n, x in weights(s))
        self.params = nested(flat, s["layers"])

    def step(self, params: Any, token: Any, cache: Any) -> tuple[Any, Any]:
        """(the tokens after `token` [B], the cache with it)."""
        logits, cache = self.qwen.decode_step(params, token, cache, self.config)
        return self.jnp.argmax(logits, -1).astype(self.jnp.int32), cache

    def prefill(self, params: Any, tokens: Any, cache: Any) -> tuple[Any, Any]:
        """(the tokens after the prompts [B, T], the cache with them)."""
        logits, cache = self.qwen.prefill(params, tokens, cache, self.config, last=True)
        return self.jnp.argmax(logits, -1).astype(self.jnp.int32), cache

    def cache(self, context: int) -> Any:
        """A cache with `context` positions taken by random numbers."""
        import genesis_fn as gf

        made = self.qwen.init_cache(self.config, self.batch, self.capacity, self.dtype)
        key = gf.random.key(0)
        layers = [
            {n: gf.random.normal(key[i][n], x.shape, x.dtype) for n, x in layer.items()}
            for i, layer in enumerate(made["layers"])
        ]
        return made | {"layers": layers, "lengths": self.lengths(context)}

    def lengths(self, context: int) -> Any:
        """`context` for every row."""
        return self.jnp.full((self.batch,), context, self.jnp.int32)

    def start(self) -> Any:
        """The first tokens."""
        return self.jnp.asarray(np.arange(1, self.batch + 1, dtype=np.int32))


# ---- PyTorch ----


class Torch:
    """The model in PyTorch, with a cache that is written in place."""

    def __init__(
        self, s: dict[str, Any], capacity: int, dtype: str, device: str, batch: int = 1
    ) -> None:
        import torch

        self.torch, self.s = torch, s
        kind = getattr(torch, dtype)
        flat = ((n, torch.from_numpy(x).to(device, kind)) for n, x in weights(s))
        self.params = nested(flat, s["layers"])
        # A tensor each: `torch.compile` copies all of a tensor of which a part is written.
        shape = (batch, s["kv_heads"], capacity, s["dim"])
        draw = lambda: torch.randn(shape, dtype=kind, device=device)
        self.cache = [(draw(), draw()) for _ in range(s["layers"])]
        self.places = torch.arange(capacity, device=device)
        # As of a module's parameters and buffers: a CUDA graph reads and writes them where they
        # are, where it would copy the others in and refuse those that are written.
        for x in torch.utils._pytree.tree_leaves((self.params, self.cache, self.places)):
            torch._dynamo.mark_static_address(x)

    def norm(self, x: Any, p: Any) -> Any:
        """RMSNorm over the last axis, in float32 inside."""
        wide = x.float()
        wide = wide * self.torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.s["eps"])
        return (wide * p["weight"].float()).to(x.dtype)

    def step(self, token: Any, position: Any) -> Any:
        """The tokens after `token` [B] at `position` [1]."""
        seen = (self.places <= position)[None, None, None]
        return self.run(token[:, None], position, {"attn_mask": seen})

    def prefill(self, tokens: Any) -> Any:
        """The tokens after the prompts [B, T]."""
        return self.run(tokens, self.places[: tokens.shape[1]], {"is_causal": True})

    def run(self, tokens: Any, positions: Any, visible: dict[str, Any]) -> Any:
        """The tokens after `tokens` [B, T] at `positions` [T]."""
        torch, s = self.torch, self.s
        functional = torch.nn.functional
        b, t = tokens.shape
        half = s["dim"] // 2
        rates = torch.exp(torch.arange(half, device=tokens.device) * (-math.log(s["theta"]) / half))
        angle = positions.float()[:, None] * rates
        angle = torch.cat([angle, angle], -1)[:, None]
        cos, sin = angle.cos(), angle.sin()

        def rotate(x: Any) -> Any:
            turned = torch.cat([-x[..., half:], x[..., :half]], -1)
            return (x * cos + turned * sin).to(x.dtype)

        x = self.params["embed_tokens"]["weight"][tokens]
        for i, p in enumerate(self.params["layers"]):
            a = p["self_attn"]
            h = self.norm(x, p["input_layernorm"])
            q, k, v = [
                functional.linear(h, a[f"{n}_proj"]["weight"]).view(b, t, -1, s["dim"])
                for n in "qkv"
            ]
            q, k = rotate(self.norm(q, a["q_norm"])), rotate(self.norm(k, a["k_norm"]))
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            keys, values = self.cache[i]
            keys.index_copy_(2, positions, k)
            values.index_copy_(2, positions, v)
            k, v = (k, v) if "is_causal" in visible else (keys, values)
            o = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **visible)
            o = o.transpose(1, 2).reshape(b, t, -1)
            x = x + functional.linear(o, a["o_proj"]["weight"])
            h = self.norm(x, p["post_attention_layernorm"])
            m = {n: w["weight"] for n, w in p["mlp"].items()}
            gate = functional.silu(functional.linear(h, m["gate_proj"]))
            x = x + functional.linear(gate * functional.linear(h, m["up_proj"]), m["down_proj"])
        x = self.norm(x[:, -1], self.params["norm"])
        return functional.linear(x, self.params["embed_tokens"]["weight"]).argmax(-1)


# ---- JAX ----


class Jax:
    """The model in JAX; the rows of a batch have one position for all."""

    def __init__(self, s: dict[str, Any], capacity: int, batch: int = 1) -> None:
        import jax
        import jax.numpy as jnp

        self.s, self.capacity, self.batch = s, capacity, batch
        flat = ((n, jnp.asarray(x).astype(jnp.bfloat16)) for n, x in weights(s))
        self.params = nested(flat, s["layers"])
        self.fused = "cudnn" if jax.default_backend() == "gpu" else None

    def cache(self) -> Any:
        """Random keys and values of every layer."""
        import jax
        import jax.numpy as jnp

        s = self.s
        shape = (self.batch, self.capacity, s["kv_heads"], s["dim"])
        draw = lambda i: jax.random.normal(jax.random.key(i), shape, jnp.bfloat16)
        return [(draw(2 * i), draw(2 * i + 1)) for i in range(s["layers"])]

    def step(self, params: Any, token: Any, cache: Any, position: Any) -> Any:
        """(the tokens after `token` [B] at `position`, the cache with it)."""
        return self.run(params, token[:, None], cache, position)

    def prefill(self, params: Any, tokens: Any, cache: Any) -> Any:
        """(the tokens after the prompts [B, T], the cache with them)."""
        return self.run(params, tokens, cache, 0)

    def run(self, params: Any, tokens: Any, cache: Any, start: Any) -> Any:
        """(the tokens after `tokens` [B, T] from position `start` on, the cache with them)."""
        import jax
        import jax.numpy as jnp

        s, (b, t) = self.s, tokens.shape
        half = s["dim"] // 2
        rates = jnp.exp(jnp.arange(half) * (-math.log(s["theta"]) / half))
        angle = (start + jnp.arange(t)).astype(jnp.float32)[:, None] * rates
        angle = jnp.concatenate([angle, angle], -1)[:, None]
        cos, sin = jnp.cos(angle), jnp.sin(angle)

        def norm(x: Any, p: Any) -> Any:
            wide = x.astype(jnp.float32)
            wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + s["eps"])
            return (wide * p["weight"].astype(jnp.float32)).astype(x.dtype)

        def rotate(x: Any) -> Any:
            turned = jnp.concatenate([-x[..., half:], x[..., :half]], -1)
            return (x * cos + turned * sin).astype(x.dtype)

        x = params["embed_tokens"]["weight"][tokens]
        kept = []
        for p, (keys, values) in zip(params["layers"], cache):
            a = p["self_attn"]
            h = norm(x, p["input_layernorm"])
            q, k, v = [(h @ a[f"{n}_proj"]["weight"].T).reshape(b, t, -1, s["dim"]) for n in "qkv"]
            q, k = rotate(norm(q, a["q_norm"])), rotate(norm(k, a["k_norm"]))
            keys = jax.lax.dynamic_update_slice(keys, k, (0, start, 0, 0))
            values = jax.lax.dynamic_update_slice(values, v, (0, start, 0, 0))
            kept.append((keys, values))
            if t == 1:
                lengths = jnp.full((b,), start + 1)
                o = jax.nn.dot_product_attention(q, keys, values, key_value_seq_lengths=lengths)
            else:
                o = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=self.fused)
            x = x + o.reshape(b, t, -1) @ a["o_proj"]["weight"].T
            h = norm(x, p["post_attention_layernorm"])
            m = {n: w["weight"].T for n, w in p["mlp"].items()}
            gate = jax.nn.silu(h @ m["gate_proj"])
            x = x + (gate * (h @ m["up_proj"])) @ m["down_proj"]
        logits = norm(x[:, -1], params["norm"]) @ params["embed_tokens"]["weight"].T
        return jnp.argmax(logits, -1).astype(jnp.int32), kept
