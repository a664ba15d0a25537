"""Qwen3 as a JAX user would write it: the twin that the benchmarks compare with."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.qwen_shape import SHAPE, Shape


def init(key: Any, s: Shape = SHAPE) -> dict[str, Any]:
    """Fresh parameters."""
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    shapes = {
        "q": (q, s.width),
        "k": (kv, s.width),
        "v": (kv, s.width),
        "o": (s.width, q),
        "gate": (s.inner, s.width),
        "up": (s.inner, s.width),
        "down": (s.width, s.inner),
    }

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
    """x / rms(x) * weight, computed in float32."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps) * weight
    return y.astype(x.dtype)


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Rotary positions."""
    half = x.shape[-1] // 2
    return x * cos + jnp.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def loss(
    params: dict[str, Any],
    tokens: Any,
    labels: Any,
    s: Shape = SHAPE,
    compute: Any = None,
    attention: Any = None,
) -> Any:
    """Mean cross-entropy; with `compute` the weights and activations have that dtype."""
    b, t = tokens.shape
    if compute is not None:
        params = jax.tree.map(lambda w: w.astype(compute), params)
    angle = jnp.arange(t)[:, None] * s.theta ** (jnp.arange(s.head_dim // 2) * (-2 / s.head_dim))
    angle = jnp.concatenate([angle, angle], -1)[:, None, :]
    x = params["embed"][tokens]
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    for p in params["layers"]:
        h = rms_norm(x, p["norm1"], s.eps)
        q = rms_norm((h @ p["q"].T).reshape(b, t, s.heads, s.head_dim), p["q_norm"], s.eps)
        k = rms_norm((h @ p["k"].T).reshape(b, t, s.kv_heads, s.head_dim), p["k_norm"], s.eps)
        v = (h @ p["v"].T).reshape(b, t, s.kv_heads, s.head_dim)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        a = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=attention)
        x = x + a.reshape(b, t, -1) @ p["o"].T
        h = rms_norm(x, p["norm2"], s.eps)
        x = x + (jax.nn.silu(h @ p["gate"].T) * (h @ p["up"].T)) @ p["down"].T
    logits = rms_norm(x, params["norm"], s.eps) @ params["embed"].T
    logits = logits.astype(jnp.float32)
    label = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - label).mean()


def adamw(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
    """One step of AdamW: (parameters, state)."""
    rate, decay, b1, b2, eps = 1e-3, 1e-4, 0.9, 0.999, 1e-8
    count, mu, nu = state
    count = count + 1
    mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, mu, grads)
    nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, nu, grads)
    c1, c2 = 1 - b1**count, 1 - b2**count

    def new(p: Any, m: Any, v: Any) -> Any:
        return p - rate * (m / c1 / (jnp.sqrt(v / c2) + eps) + decay * p)

    return jax.tree.map(new, params, mu, nu), (count, mu, nu)


def training_step(shape: Shape = SHAPE, compute: Any = None, attention: Any = None):
    """(step, params, state): a jitted AdamW step that donates params and state."""
    params = jax.jit(lambda: init(jax.random.key(0), shape))()
    zeros = lambda: jax.tree.map(jnp.zeros_like, params)

    def step(params: Any, state: Any, tokens: Any, labels: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, tokens, labels, shape, compute, attention)
        params, state = adamw(params, state, grads)
        return params, state, value

    return jax.jit(step, donate_argnums=(0, 1)), params, (jnp.zeros(()), zeros(), zeros())
