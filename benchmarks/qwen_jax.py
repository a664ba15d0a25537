"""The small Qwen of `cpu.py` as a JAX and optax user would write it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.qwen_shape import SHAPE, Shape


def init(key: Any, s: Shape = SHAPE) -> dict[str, Any]:
    """Fresh parameters."""
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    shapes = {
        "q": (q, s.width), "k": (kv, s.width), "v": (kv, s.width), "o": (s.width, q),
        "gate": (s.inner, s.width), "up": (s.inner, s.width), "down": (s.width, s.inner),
    }  # fmt: skip

    def layer(key: Any) -> dict[str, Any]:
        keys = jax.random.split(key, len(shapes))
        p = {n: 0.02 * jax.random.normal(k, d) for (n, d), k in zip(shapes.items(), keys)}
        norms = {"norm1": s.width, "norm2": s.width, "q_norm": s.head_dim, "k_norm": s.head_dim}
        return p | {n: jnp.ones(d) for n, d in norms.items()}

    first, *rest = jax.random.split(key, s.layers + 1)
    return {
        "embed": 0.02 * jax.random.normal(first, (s.vocabulary, s.width)),
        "layers": [layer(k) for k in rest],
        "norm": jnp.ones(s.width),
    }


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """x / rms(x) * weight."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Rotary positions."""
    half = x.shape[-1] // 2
    return x * cos + jnp.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def loss(params: dict[str, Any], tokens: Any, labels: Any, s: Shape = SHAPE) -> Any:
    """Mean cross-entropy."""
    b, t = tokens.shape
    angle = jnp.arange(t)[:, None] * s.theta ** (jnp.arange(s.head_dim // 2) * (-2 / s.head_dim))
    angle = jnp.concatenate([angle, angle], -1)[:, None, :]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    x = params["embed"][tokens]
    for p in params["layers"]:
        h = rms_norm(x, p["norm1"], s.eps)
        q = rms_norm((h @ p["q"].T).reshape(b, t, s.heads, s.head_dim), p["q_norm"], s.eps)
        k = rms_norm((h @ p["k"].T).reshape(b, t, s.kv_heads, s.head_dim), p["k_norm"], s.eps)
        v = (h @ p["v"].T).reshape(b, t, s.kv_heads, s.head_dim)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        a = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + a.reshape(b, t, -1) @ p["o"].T
        h = rms_norm(x, p["norm2"], s.eps)
        x = x + (jax.nn.silu(h @ p["gate"].T) * (h @ p["up"].T)) @ p["down"].T
    logits = rms_norm(x, params["norm"], s.eps) @ params["embed"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def training_step():
    """(step, params, state): a jitted AdamW step that donates params and state."""
    tx = optax.adamw(1e-3, weight_decay=1e-4)
    params = init(jax.random.key(0))

    def step(params: Any, state: Any, tokens: Any, labels: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, tokens, labels)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return jax.jit(step, donate_argnums=(0, 1)), params, tx.init(params)
