"""A GPT, from its attention to its sampler, learns the bytes of source text: python examples/gpt.py

The text is the standard library of the Python that runs this. Training and sampling share one
forward pass over a cache of keys and values: training fills it with a whole window at once, the
sampler goes on with one byte at a time. The blocks' parameters are stacked, so that the program has
one block, which `scan` runs.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import data, lax, nn, optim

BYTES, WIDTH, HEADS, DEPTH, LENGTH = 256, 128, 4, 4, 256
BYTE, ROTARY = nn.Embedding(BYTES, WIDTH), nn.RotaryEmbedding(WIDTH // HEADS)
QKV, PROJECT = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
NORM, MLP, HEAD = nn.LayerNorm(WIDTH), nn.MLP(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, BYTES, bias=False)
BLOCK = {"norm1": NORM, "qkv": QKV, "project": PROJECT, "norm2": NORM, "mlp": MLP}


def init(key):
    """All parameters; those of the blocks have a leading axis of length DEPTH."""
    block = lambda key: {name: layer.init(key[name]) for name, layer in BLOCK.items()}
    layers = {"byte": BYTE, "norm": NORM, "head": HEAD}
    return {name: layer.init(key[name]) for name, layer in layers.items()} | {
        "blocks": gf.vmap(block)(gf.random.split(key["blocks"], DEPTH))
    }


def empty_cache(batch: int, capacity: int):
    """Room for the keys and the values of every block."""
    return (jnp.zeros((DEPTH, batch, capacity, HEADS, WIDTH // HEADS)),) * 2


def attention(p, x, cache, start):
    """x [batch, T, WIDTH], at positions from `start` on, attends to what is not after it."""
    q, k, v = jnp.split(QKV(p["qkv"], x).reshape(*x.shape[:2], 3 * HEADS, -1), 3, 2)
    queries = start + jnp.arange(x.shape[1])
    q, k = [ROTARY({}, h, positions=queries) for h in (q, k)]
    cache = [lax.dynamic_update_slice(c, new, (0, start, 0, 0)) for c, new in zip(cache, (k, v))]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, cache[0]) / math.sqrt(WIDTH // HEADS)
    keys = jnp.arange(scores.shape[-1])
    weights = nn.softmax(jnp.where(keys <= queries[:, None], scores, -jnp.inf))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, cache[1])
    return PROJECT(p["project"], mixed.reshape(x.shape)), tuple(cache)


def forward(params, tokens, cache, start=0):
    """Logits [batch, T, BYTES] of what follows each of `tokens` [batch, T], and the cache."""

    def block(x, layer):
        p, cache = layer
        attended, cache = attention(p, NORM(p["norm1"], x), cache, start)
        x = x + attended
        return x + MLP(p["mlp"], NORM(p["norm2"], x)), cache

    x, cache = lax.scan(block, BYTE(params["byte"], tokens), (params["blocks"], cache))
    return HEAD(params["head"], NORM(params["norm"], x)), cache


@gf.jit
def loss(params, windows):
    """Nats per byte, of windows [batch, T + 1]."""
    logits, _ = forward(params, windows[:, :-1], empty_cache(len(windows), windows.shape[1] - 1))
    return nn.cross_entropy(logits, windows[:, 1:])


@gf.jit
def sample(params, key, prompt, temperature=0.8):
    """`prompt` [T], gone on with until there are LENGTH bytes."""
    logits, cache = forward(params, prompt[None], empty_cache(1, LENGTH))

    def step(carry, at):
        logits, cache = carry
        token = gf.random.categorical(key[at], logits / temperature)
        logits, cache = forward(params, token[None, None], cache, at)
        return (logits[0, -1], cache), token

    _, tokens = lax.scan(step, (logits[0, -1], cache), jnp.arange(len(prompt), LENGTH))
    return jnp.concatenate([prompt, tokens])


def read(limit: int = 4_000_000) -> tuple[np.ndarray, np.ndarray]:
    """(bytes to train on, bytes of other files to test on)."""
    files = data.split_files(data.text_files(data.standard_library(), ".py"))
    texts = ["".join(data.read_texts(part, limit)) for part in files]
    return tuple([np.frombuffer(text.encode(), np.uint8) for text in texts])


def main(steps: int = 500, batch: int = 8, length: int = LENGTH, seed: int = 0) -> float:
    """Train, print a sample, and return how many nats per byte the loss on other files lies below
    the entropy of single bytes."""
    train, test = read()
    optimizer = optim.chain(
        optim.clip_by_global_norm(1.0),
        optim.adamw(optim.warmup_cosine_decay_schedule(0.0, 3e-3, max(steps // 10, 1), steps)),
    )

    def step(params, state, windows):
        value, grads = gf.value_and_grad(loss)(params, windows)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state, value

    step = gf.jit(step, donate_argnums=(0, 1))
    key = gf.random.key(seed)
    params = init(key["init"])
    state = optimizer.init(params)
    windows = data.TokenWindows(train, length, batch, seed)
    for i in range(steps):
        params, state, value = step(params, state, windows[i])
        if (i + 1) % 50 == 0:
            print(f"step {i + 1}: loss {float(value):.3f} nats per byte")

    held_out = list(data.TokenWindows(test, length, batch).in_order(20))
    result = float(np.mean([float(loss(params, w)) for w in held_out]))
    entropy = data.unigram_entropy(np.ravel(held_out))
    print(f"loss on other files {result:.3f}, entropy of single bytes {entropy:.3f}")
    prompt = np.frombuffer(b"    def __init__(self", np.uint8).astype(np.int32)
    text = np.asarray(sample(params, key["sample"], prompt)).astype(np.uint8)
    print(text.tobytes().decode(errors="replace"))
    return entropy - result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    for option in ("--steps", "--batch", "--length", "--seed"):
        parser.add_argument(option, type=int)
    main(**vars(parser.parse_args()))
