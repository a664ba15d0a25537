"""A small vision transformer, its layers one `scan`: python examples/vit_digits.py

The blocks' parameters are stacked along a leading axis by `vmap(init)`, so that the program has one
block however deep the model is; `checkpoint` recomputes it in the backward pass.
"""

from __future__ import annotations

import numpy as np
from mlp_digits import data

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, nn, optim

WIDTH, HEADS, DEPTH = 48, 4, 3
NORM, PROJECT = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
WIDEN, NARROW = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
PATCH, HEAD = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 10)


def init_block(key):
    """The parameters of one block."""
    layers = {
        "norm1": NORM,
        "q": PROJECT,
        "k": PROJECT,
        "v": PROJECT,
        "out": PROJECT,
        "norm2": NORM,
        "widen": WIDEN,
        "narrow": NARROW,
    }
    return {name: layer.init(key[name]) for name, layer in layers.items()}


def block(p, x):
    """Attention and a feed-forward network, each after a norm and added to its input."""
    h = NORM(p["norm1"], x)
    q, k, v = [PROJECT(p[n], h).reshape(*x.shape[:2], HEADS, -1) for n in "qkv"]
    x = x + PROJECT(p["out"], nn.dot_product_attention(q, k, v).reshape(x.shape))
    h = NORM(p["norm2"], x)
    return x + NARROW(p["narrow"], nn.gelu(WIDEN(p["widen"], h)))


def init(key):
    """All parameters; those of the blocks have a leading axis of length DEPTH."""
    return {
        "patch": PATCH.init(key["patch"]),
        "position": gf.random.normal(key["position"], (16, WIDTH)) * 0.02,
        "blocks": gf.vmap(init_block)(gf.random.split(key["blocks"], DEPTH)),
        "norm": NORM.init(key["norm"]),
        "head": HEAD.init(key["head"]),
    }


def forward(params, images):
    """Logits [batch, 10] of images [batch, 8, 8], cut into 16 patches of 2 x 2."""
    patches = images.reshape(-1, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(-1, 16, 4)
    x = PATCH(params["patch"], patches) + params["position"]
    step = gf.checkpoint(block)
    x, _ = lax.scan(lambda x, p: (step(p, x), None), x, params["blocks"])
    return HEAD(params["head"], NORM(params["norm"], jnp.mean(x, 1)))


def main(steps: int = 300, batch: int = 64, seed: int = 0) -> float:
    """Train, and return the accuracy on the test images."""
    x_train, y_train, x_test, y_test = data()
    x_train, x_test = [x.reshape(-1, 8, 8) for x in (x_train, x_test)]
    optimizer = optim.adamw(
        optim.warmup_cosine_decay_schedule(0.0, 3e-3, max(steps // 10, 1), steps)
    )

    @gf.jit
    def step(params, state, x, y):
        def loss(params):
            logits = forward(params, x)
            return jnp.mean(optim.softmax_cross_entropy_with_integer_labels(logits, y))

        value, grads = gf.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state, value

    params = init(gf.random.key(seed))
    state = optimizer.init(params)
    rng = np.random.default_rng(seed)
    for i in range(steps):
        rows = rng.choice(len(x_train), batch, replace=False)
        params, state, value = step(params, state, x_train[rows], y_train[rows])
        if (i + 1) % 50 == 0:
            print(f"step {i + 1}: loss {float(value):.3f}")
    result = float(jnp.mean(jnp.argmax(forward(params, jnp.asarray(x_test)), -1) == y_test))
    print(f"test accuracy {result:.3f}")
    return result


if __name__ == "__main__":
    main()
