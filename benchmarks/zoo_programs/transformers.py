"""Transformers: of text and of images, decoding, experts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.zoo_programs.program import (
    Function,
    Program,
    cross_entropy,
    dense,
    halved,
    integers,
    normal,
)


def norm_weights(width: int) -> dict[str, np.ndarray]:
    return {"b": np.zeros(width, np.float32), "w": np.ones(width, np.float32)}


def block_weights(rng: np.random.Generator, width: int) -> dict[str, Any]:
    return {
        "norm1": norm_weights(width),
        "qkv": dense(rng, width, 3 * width),
        "out": dense(rng, width, width),
        "norm2": norm_weights(width),
        "up": dense(rng, width, 4 * width),
        "down": dense(rng, 4 * width, width),
    }


def layer_norm(xp: Any, p: Any, x: Any) -> Any:
    """In float32, as training code has it."""
    y = x.astype(xp.np.float32)
    mean = xp.np.mean(y, -1, keepdims=True)
    var = xp.np.var(y, -1, keepdims=True)
    return ((y - mean) * xp.lax.rsqrt(var + 1e-5) * p["w"] + p["b"]).astype(x.dtype)


def linear(p: Any, x: Any) -> Any:
    return x @ p["w"] + p["b"]


def fused(xp: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Attention by the library's function."""
    return xp.nn.dot_product_attention(q, k, v, is_causal=causal)


def written_out(xp: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Attention as it is taught: products, a mask, a softmax in float32."""
    scores = xp.np.einsum("btnh,bsnh->bnts", q, k).astype(xp.np.float32) / math.sqrt(q.shape[-1])
    if causal:
        mask = xp.np.tril(xp.np.ones((q.shape[1], k.shape[1]), bool))
        scores = xp.np.where(mask, scores, -1e9)
    weights = xp.nn.softmax(scores, axis=-1).astype(v.dtype)
    return xp.np.einsum("bnts,bsnh->btnh", weights, v)


def block(xp: Any, p: Any, x: Any, heads: int, attention: Function, causal: bool) -> Any:
    """One layer: attention and a network, each added to what came in."""
    batch, length, width = x.shape
    qkv = linear(p["qkv"], layer_norm(xp, p["norm1"], x))
    q, k, v = [
        y.reshape(batch, length, heads, width // heads) for y in xp.np.split(qkv, 3, axis=-1)
    ]
    x = x + linear(p["out"], attention(xp, q, k, v, causal).reshape(x.shape))
    return x + linear(
        p["down"], xp.nn.gelu(linear(p["up"], layer_norm(xp, p["norm2"], x)), approximate=True)
    )


# ---- GPT-2 ----


def gpt2_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    params = {
        "words": normal(rng, s.words, s.width, scale=0.02),
        "places": normal(rng, s.length, s.width, scale=0.02),
        "blocks": [block_weights(rng, s.width) for _ in range(s.layers)],
        "norm": norm_weights(s.width),
    }
    return params, integers(rng, s.words, s.batch, s.length + 1)


def gpt2(attention: Function) -> Function:
    """The loss of the next token and its gradient, computed in bfloat16."""

    def make(xp: Any, s: Any) -> Function:
        def loss(params: Any, tokens: Any) -> Any:
            p = halved(xp, params)
            x = p["words"][tokens[:, :-1]] + p["places"]
            for layer in p["blocks"]:
                x = block(xp, layer, x, s.heads, attention, True)
            logits = layer_norm(xp, p["norm"], x) @ p["words"].T
            return cross_entropy(xp, logits.astype(xp.np.float32), tokens[:, 1:])

        return xp.value_and_grad(loss)

    return make


def torch_block(t: Any, p: Any, x: Any, heads: int, attention: Function, causal: bool) -> Any:
    batch, length, width = x.shape
    norm = lambda p, x: t.F.layer_norm(x, (width,), p["w"], p["b"])
    qkv = linear(p["qkv"], norm(p["norm1"], x)).chunk(3, -1)
    q, k, v = [y.view(batch, length, heads, width // heads).transpose(1, 2) for y in qkv]
    y = attention(t, q, k, v, causal).transpose(1, 2).reshape(x.shape)
    x = x + linear(p["out"], y)
    y = t.F.gelu(linear(p["up"], norm(p["norm2"], x)), approximate="tanh")
    return x + linear(p["down"], y)


def torch_fused(t: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
    return t.F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def torch_written_out(t: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
    if causal:
        length = q.shape[-2]
        mask = t.torch.ones(length, length, dtype=t.torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~mask, -1e9)
    return t.torch.softmax(scores, -1).to(v.dtype) @ v


def torch_half(tree: Any) -> Any:
    """The tree in bfloat16."""
    if isinstance(tree, dict):
        return {k: torch_half(x) for k, x in tree.items()}
    return [torch_half(x) for x in tree] if isinstance(tree, list) else tree.bfloat16()


def torch_gpt2(attention: Function) -> Function:
    def make(t: Any, s: Any) -> Function:
        def loss(params: Any, tokens: Any) -> Any:
            p = torch_half(params)
            tokens = tokens.long()
            x = p["words"][tokens[:, :-1]] + p["places"]
            for layer in p["blocks"]:
                x = torch_block(t, layer, x, s.heads, attention, True)
            x = t.F.layer_norm(x, (s.width,), p["norm"]["w"], p["norm"]["b"])
            logits = (x @ p["words"].T).float()
            return t.F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

        return t.value_and_grad(loss)

    return make


GPT2 = {"batch": 8, "length": 1024, "width": 768, "layers": 12, "heads": 12, "words": 50257}
TINY_GPT2 = {"batch": 2, "length": 16, "width": 32, "layers": 2, "heads": 2, "words": 61}


# ---- a vision transformer ----


def vit_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    count = (s.image // s.patch) ** 2
    params = {
        "patches": dense(rng, s.patch * s.patch * 3, s.width),
        "class": normal(rng, 1, 1, s.width, scale=0.02),
        "places": normal(rng, count + 1, s.width, scale=0.02),
        "blocks": [block_weights(rng, s.width) for _ in range(s.layers)],
        "norm": norm_weights(s.width),
        "head": dense(rng, s.width, s.classes),
    }
    images = normal(rng, s.batch, s.image, s.image, 3)
    return params, images, integers(rng, s.classes, s.batch)


def patches(x: Any, s: Any) -> Any:
    """Images as rows of their patches, [N, patches, numbers]."""
    n, side = s.image // s.patch, s.patch
    axes = x.reshape(s.batch, n, side, n, side, 3)
    return axes.swapaxes(2, 3).reshape(s.batch, n * n, side * side * 3)


def vit(xp: Any, s: Any) -> Function:
    def loss(params: Any, images: Any, labels: Any) -> Any:
        p = halved(xp, params)
        x = linear(p["patches"], patches(images.astype(xp.np.bfloat16), s))
        first = xp.np.broadcast_to(p["class"], (s.batch, 1, s.width))
        x = xp.np.concatenate([first, x], axis=1) + p["places"]
        for layer in p["blocks"]:
            x = block(xp, layer, x, s.heads, fused, False)
        logits = linear(p["head"], layer_norm(xp, p["norm"], x)[:, 0])
        return cross_entropy(xp, logits.astype(xp.np.float32), labels)

    return xp.value_and_grad(loss)


def torch_vit(t: Any, s: Any) -> Function:
    def loss(params: Any, images: Any, labels: Any) -> Any:
        p = torch_half(params)
        x = linear(p["patches"], patches(images.bfloat16(), s))
        x = t.torch.cat([p["class"].expand(s.batch, 1, s.width), x], 1) + p["places"]
        for layer in p["blocks"]:
            x = torch_block(t, layer, x, s.heads, torch_fused, False)
        x = t.F.layer_norm(x, (s.width,), p["norm"]["w"], p["norm"]["b"])
        return t.F.cross_entropy(linear(p["head"], x[:, 0]).float(), labels.long())

    return t.value_and_grad(loss)


# ---- decoding, and experts ----


def decode_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    params = {
        "words": normal(rng, s.words, s.width, scale=0.3),
        "blocks": [block_weights(rng, s.width) for _ in range(s.layers)],
        "norm": norm_weights(s.width),
    }
    return params, integers(rng, s.words, s.steps, s.batch)


def decode(xp: Any, s: Any) -> Function:
    """Steps of one token each, with the keys and values of earlier ones kept."""
    size = s.width // s.heads

    def layer(p: Any, x: Any, keys: Any, values: Any, at: Any) -> Any:
        qkv = linear(p["qkv"], layer_norm(xp, p["norm1"], x))
        q, k, v = [y.reshape(s.batch, 1, s.heads, size) for y in xp.np.split(qkv, 3, axis=-1)]
        keys = xp.lax.dynamic_update_slice(keys, k, (0, at, 0, 0))
        values = xp.lax.dynamic_update_slice(values, v, (0, at, 0, 0))
        seen = (xp.np.arange(s.steps) <= at)[None, None, None, :]
        y = xp.nn.dot_product_attention(q, keys, values, mask=seen)
        x = x + linear(p["out"], y.reshape(s.batch, s.width))
        y = xp.nn.gelu(linear(p["up"], layer_norm(xp, p["norm2"], x)), approximate=True)
        return x + linear(p["down"], y), keys, values

    def run(params: Any, tokens: Any) -> Any:
        def step(carry: Any, now: Any) -> Any:
            caches, (at, token) = carry, now
            x, kept = params["words"][token], []
            for p, (keys, values) in zip(params["blocks"], caches):
                x, keys, values = layer(p, x, keys, values, at)
                kept.append((keys, values))
            logits = layer_norm(xp, params["norm"], x) @ params["words"].T
            return kept, xp.np.max(logits, axis=-1)

        empty = xp.np.zeros((s.batch, s.steps, s.heads, size), xp.np.float32)
        caches = [(empty, empty) for _ in range(s.layers)]
        return xp.lax.scan(step, caches, (xp.np.arange(s.steps), tokens))[1]

    return run


def experts_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    params = {
        "gate": normal(rng, s.width, s.experts, scale=s.width**-0.5),
        "up": normal(rng, s.experts, s.width, s.hidden, scale=s.width**-0.5),
        "down": normal(rng, s.experts, s.hidden, s.width, scale=s.hidden**-0.5),
    }
    return params, normal(rng, s.tokens, s.width)


def experts(xp: Any, s: Any) -> Function:
    """A mixture of experts that computes all of them, weighted by the softmax of their scores."""

    def loss(params: Any, x: Any) -> Any:
        p, x = halved(xp, params), x.astype(xp.np.bfloat16)
        weights = xp.nn.softmax((x @ p["gate"]).astype(xp.np.float32), axis=-1)
        hidden = xp.nn.silu(xp.np.einsum("td,edh->teh", x, p["up"]))
        hidden = hidden * weights[..., None].astype(x.dtype)
        y = x + xp.np.einsum("teh,ehd->td", hidden, p["down"])
        return xp.np.mean(xp.np.square(y.astype(xp.np.float32)))

    return xp.value_and_grad(loss)


def torch_experts(t: Any, s: Any) -> Function:
    def loss(params: Any, x: Any) -> Any:
        p, x = torch_half(params), x.bfloat16()
        weights = t.torch.softmax((x @ p["gate"]).float(), -1)
        hidden = t.F.silu(t.torch.einsum("td,edh->teh", x, p["up"]))
        hidden = hidden * weights[..., None].to(x.dtype)
        y = x + t.torch.einsum("teh,ehd->td", hidden, p["down"])
        return y.float().square().mean()

    return t.value_and_grad(loss)


PROGRAMS = (
    Program(
        "gpt2", "transformers", "GPT-2 small with fused attention, loss and gradient, bfloat16",
        gpt2(fused), gpt2_inputs, GPT2, TINY_GPT2, 1e-1, scatters=True,
        torch=torch_gpt2(torch_fused),
    ),
    Program(
        "vit", "transformers", "ViT-B/16, loss and gradient, bfloat16", vit, vit_inputs,
        {"batch": 64, "image": 224, "patch": 16, "width": 768, "layers": 12, "heads": 12,
         "classes": 1000},
        {"batch": 2, "image": 16, "patch": 8, "width": 32, "layers": 2, "heads": 2, "classes": 7},
        1e-1, torch=torch_vit,
    ),
    Program(
        "gpt2-written-out", "transformers",
        "GPT-2 small with attention written out, loss and gradient, bfloat16",
        gpt2(written_out), gpt2_inputs, GPT2, TINY_GPT2, 1e-1, scatters=True,
        torch=torch_gpt2(torch_written_out),
    ),
    Program(
        "decode", "transformers", "decoding by a small transformer, 8 rows, 256 tokens",
        decode, decode_inputs,
        {"batch": 8, "steps": 256, "width": 512, "layers": 6, "heads": 8, "words": 8192},
        {"batch": 2, "steps": 8, "width": 16, "layers": 2, "heads": 2, "words": 31}, 2e-2,
    ),
    Program(
        "experts", "transformers", "a dense mixture of 8 experts, gradient, bfloat16",
        experts, experts_inputs,
        {"tokens": 4096, "width": 1024, "hidden": 2048, "experts": 8},
        {"tokens": 16, "width": 8, "hidden": 16, "experts": 4}, 1e-1, torch=torch_experts,
    ),
)  # fmt: skip
