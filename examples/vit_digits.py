"""A small vision transformer, its blocks one `scan`: python examples/vit_digits.py

The blocks' parameters are stacked along a leading axis by `vmap(init)`, so that the program has one
block however deep the model is; `checkpoint` recomputes it in the backward pass.

Source: Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at
Scale", 2020.
"""

from __future__ import annotations

import numpy as np
from mlp_digits import data

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, nn, optim

WIDTH, HEADS, DEPTH = 48, 4, 3
PATCHES = nn.PatchEmbedding(2, features_in=1, features=WIDTH)
BLOCK = nn.Sequential(
    nn.Residual(nn.Sequential(nn.LayerNorm(WIDTH), nn.MultiHeadAttention(WIDTH, HEADS))),
    nn.Residual(nn.Sequential(nn.LayerNorm(WIDTH), nn.MLP(WIDTH, 2 * WIDTH))),
)
NORM, HEAD = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)


def init(key):
    """All parameters; those of the blocks have a leading axis of length DEPTH."""
    return {
        "patches": PATCHES.init(key["patches"]),
        "positions": gf.random.normal(key["positions"], (16, WIDTH)) * 0.5,
        "blocks": gf.vmap(BLOCK.init)(gf.random.split(key["blocks"], DEPTH)),
        "norm": NORM.init(key["norm"]),
        "head": HEAD.init(key["head"]),
    }


def forward(params, images):
    """Logits [batch, 10] of images [batch, 8, 8, 1], cut into 16 patches of 2 x 2."""
    x = PATCHES(params["patches"], images) + params["positions"]
    block = gf.checkpoint(BLOCK)
    x, _ = lax.scan(lambda x, p: (block(p, x), None), x, params["blocks"])
    return HEAD(params["head"], jnp.mean(NORM(params["norm"], x), 1))


def main(steps: int = 300, batch: int = 64, seed: int = 0) -> float:
    """Train, and return the accuracy on the test images."""
    x_train, y_train, x_test, y_test = data()
    x_train, x_test = [x.reshape(-1, 8, 8, 1) for x in (x_train, x_test)]
    optimizer = optim.adamw(
        optim.warmup_cosine_decay_schedule(0.0, 3e-3, max(steps // 10, 1), steps)
    )

    @gf.jit
    def step(params, state, x, y):
        def loss(params):
            return nn.cross_entropy(forward(params, x), y)

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
