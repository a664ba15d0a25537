"""A diffusion model draws the digit that it is asked for: python examples/diffusion_digits.py

A network learns to tell the noise in images that were mixed with it. The sampler is a `scan` from
noise alone to an image, with a slowly moving average of the parameters. What it draws is judged by
the nearest image of the training data: is it of the digit that was asked for?

Sources: Ho, Jain and Abbeel, "Denoising Diffusion Probabilistic Models", 2020; Nichol and Dhariwal,
"Improved Denoising Diffusion Probabilistic Models", 2021, for the variance of the sampler's steps.
"""

from __future__ import annotations

import argparse

import numpy as np
from mlp_digits import data

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, nn, optim, tree

STEPS, PIXELS, WIDTH, DEPTH = 200, 64, 256, 4
BETA = np.linspace(5e-4, 0.1, STEPS, dtype=np.float32)  # variance of the noise of each step
ALPHA_BAR = np.cumprod(1 - BETA)  # what is left of the image's variance after it

IMAGE, LABEL, TIME = nn.Linear(PIXELS, WIDTH), nn.Embedding(10, WIDTH), nn.Embedding(STEPS, WIDTH)
NORM, MLP, NOISE = nn.LayerNorm(WIDTH), nn.MLP(WIDTH, WIDTH, nn.silu), nn.Linear(WIDTH, PIXELS)


def init(key):
    """All parameters; those of the blocks have a leading axis of length DEPTH."""
    layers = {"image": IMAGE, "label": LABEL, "time": TIME, "norm": NORM, "noise": NOISE}
    block = lambda key: {"norm": NORM.init(key["norm"]), "mlp": MLP.init(key["mlp"])}
    return {name: layer.init(key[name]) for name, layer in layers.items()} | {
        "blocks": gf.vmap(block)(gf.random.split(key["blocks"], DEPTH))
    }


def predict(params, x, step, labels):
    """The noise in x [batch, PIXELS] after `step` [batch], of images of `labels` [batch]."""
    condition = TIME(params["time"], step) + LABEL(params["label"], labels)

    def block(h, p):
        return h + MLP(p["mlp"], nn.silu(NORM(p["norm"], h) + condition)), None

    h, _ = lax.scan(block, IMAGE(params["image"], x), params["blocks"])
    return NOISE(params["noise"], NORM(params["norm"], h))


def diffuse(x, noise, step):
    """Images x [batch, PIXELS] as they are after `step` [batch], mixed with standard normal noise.

    Each step makes sqrt(1 - beta) x + sqrt(beta) noise; this is all of them at once.
    """
    alpha_bar = jnp.asarray(ALPHA_BAR)[step][:, None]
    return jnp.sqrt(alpha_bar) * x + jnp.sqrt(1 - alpha_bar) * noise


def sample(noise_of, key, shape):
    """Images of `shape`: noise, of which each step takes some of `noise_of(x, step)` away."""

    def undo(x, step):
        beta, alpha_bar = jnp.asarray(BETA)[step], jnp.asarray(ALPHA_BAR)[step]
        mean = (x - beta / jnp.sqrt(1 - alpha_bar) * noise_of(x, step)) / jnp.sqrt(1 - beta)
        variance = beta * (1 - alpha_bar / (1 - beta)) / (1 - alpha_bar)  # 0 in the last step
        return mean + jnp.sqrt(variance) * gf.random.normal(key[step], shape), None

    start = gf.random.normal(key["start"], shape)
    return lax.scan(undo, start, jnp.arange(STEPS), reverse=True)[0]


@gf.jit
def nearest(x, known, labels):
    """(label of the nearest of `known` [m, PIXELS], its distance) of each of x [n, PIXELS]."""
    distances = jnp.linalg.norm(x[:, None] - known, axis=-1)
    return labels[jnp.argmin(distances, -1)], jnp.min(distances, -1)


def main(steps: int = 3000, batch: int = 128, seed: int = 0, plot: str | None = None) -> float:
    """Train, draw digits, and return the share of them that look like what was asked for."""
    x_train, y_train, x_test, y_test = data()
    x_train, x_test = 2 * x_train - 1, 2 * x_test - 1
    optimizer = optim.adam(optim.cosine_decay_schedule(2e-3, steps))

    def step(params, average, state, key, x, labels):
        at = gf.random.randint(key["step"], labels.shape, 0, STEPS)
        noise = gf.random.normal(key["noise"], x.shape)

        def loss(params):
            return jnp.mean((predict(params, diffuse(x, noise, at), at, labels) - noise) ** 2)

        value, grads = gf.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        params = optim.apply_updates(params, updates)
        return params, optim.incremental_update(params, average, 0.01), state, value

    step = gf.jit(step, donate_argnums=(0, 1, 2))
    key = gf.random.key(seed)
    params = init(key["init"])
    average, state = tree.map(jnp.copy, params), optimizer.init(params)
    rng = np.random.default_rng(seed)
    for i in range(steps):
        rows = rng.choice(len(x_train), batch, replace=False)
        params, average, state, value = step(
            params, average, state, key["train", i], x_train[rows], y_train[rows]
        )
        if (i + 1) % 500 == 0:
            print(f"step {i + 1}: squared error of the noise {float(value):.3f}")

    wanted = np.repeat(np.arange(10), 40)
    noise_of = lambda x, step: predict(average, x, jnp.full(len(x), step), wanted)
    drawn = gf.jit(lambda key: sample(noise_of, key, (len(wanted), PIXELS)))(key["sample"])
    results = []
    for name, images, labels in ("samples", drawn, wanted), ("test images", x_test, y_test):
        found, distance = nearest(images, x_train, y_train)
        results.append(float(jnp.mean(found == labels)))
        print(
            f"{name}: {results[-1]:.1%} are nearest to a training image of their digit, "
            f"{float(jnp.mean(distance)):.2f} away"
        )
    if plot:
        draw(np.asarray(drawn), plot)
    return results[0]


def draw(images, file: str) -> None:
    """Write a picture with a row of each digit."""
    import matplotlib.pyplot as plt

    tiles = images.reshape(10, -1, 8, 8)[:, :20]
    tiles = np.pad(tiles, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-1)
    picture = tiles.transpose(0, 2, 1, 3).reshape(100, 200)
    plt.imsave(file, picture.repeat(4, 0).repeat(4, 1), cmap="gray_r", vmin=-1, vmax=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    for option in ("--steps", "--batch", "--seed"):
        parser.add_argument(option, type=int)
    parser.add_argument("--plot", metavar="FILE", help="write samples to a PNG file")
    main(**vars(parser.parse_args()))
