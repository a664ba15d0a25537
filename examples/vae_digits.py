"""A variational autoencoder of handwritten digits: python examples/vae_digits.py --plot digits.png

A pixel is a count from 0 to 16, so that its likelihood is binomial and bounds are in nats per
image. On test images there is a tighter bound beside the ELBO, of many draws for each image.

Sources: Kingma and Welling, "Auto-Encoding Variational Bayes", 2013; Burda, Grosse and
Salakhutdinov, "Importance Weighted Autoencoders", 2015.
"""

from __future__ import annotations

import argparse

import numpy as np
from mlp_digits import data

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, optim
from genesis_fn.scipy.special import gammaln

LEVELS, LATENT = 16, 8
ENCODER = nn.Sequential(
    nn.Conv(1, 32, strides=2),
    nn.silu,
    nn.Conv(32, 64, strides=2),
    nn.silu,
    nn.Flatten(),
    nn.Linear(256, 2 * LATENT),
)
DECODER = nn.Sequential(
    nn.Linear(LATENT, 256),
    nn.silu,
    lambda x: x.reshape(-1, 2, 2, 64),
    nn.ConvTranspose(64, 32, strides=2),
    nn.silu,
    nn.ConvTranspose(32, 1, strides=2),
)


def encode(params, images):
    """Mean and log variance [batch, LATENT] of the code of images [batch, 8, 8, 1]."""
    return jnp.split(ENCODER(params["encoder"], images / LEVELS), 2, -1)


def kl(mean, log_variance):
    """Divergence [batch] of normal codes [batch, LATENT] from the standard normal, in nats."""
    return 0.5 * jnp.sum(mean**2 + jnp.exp(log_variance) - 1 - log_variance, -1)


def log_likelihood(logits, counts):
    """Binomial log probability [batch] of images of counts up to LEVELS."""
    ways = gammaln(LEVELS + 1.0) - gammaln(counts + 1.0) - gammaln(LEVELS - counts + 1.0)
    each = ways + counts * nn.log_sigmoid(logits) + (LEVELS - counts) * nn.log_sigmoid(-logits)
    return jnp.sum(each, (1, 2, 3))


def elbo(params, key, images):
    """A bound [batch] below the log likelihood of images, by one code of each."""
    mean, log_variance = encode(params, images)
    code = mean + jnp.exp(0.5 * log_variance) * gf.random.normal(key, mean.shape)
    return log_likelihood(DECODER(params["decoder"], code), images) - kl(mean, log_variance)


def importance_bound(params, key, images, draws: int = 100):
    """A tighter bound [batch], by the mean weight of `draws` codes of each image."""
    mean, log_variance = encode(params, images)

    def log_weight(key):
        noise = gf.random.normal(key, mean.shape)
        code = mean + jnp.exp(0.5 * log_variance) * noise
        # Normal densities at the code, without the constant that both have: prior, and posterior.
        prior, posterior = -0.5 * code**2, -0.5 * (noise**2 + log_variance)
        likelihood = log_likelihood(DECODER(params["decoder"], code), images)
        return likelihood + jnp.sum(prior - posterior, -1)

    return nn.logmeanexp(gf.vmap(log_weight)(gf.random.split(key, draws)), axis=0)


def independent(train, test):
    """Log likelihood [batch] of test images if pixels were independent of each other."""
    p = (jnp.sum(train, 0) + 1) / (LEVELS * len(train) + 2)
    return log_likelihood(jnp.log(p) - jnp.log1p(-p), test)


def main(steps: int = 2000, batch: int = 100, seed: int = 0, plot: str | None = None) -> float:
    """Train, and return how many nats per test image the ELBO is above independent pixels."""
    x_train, _, x_test, _ = data()
    x_train, x_test = [np.round(x * LEVELS).reshape(-1, 8, 8, 1) for x in (x_train, x_test)]
    optimizer = optim.adam(optim.cosine_decay_schedule(3e-3, steps))

    def step(params, state, key, images):
        loss = lambda params: -jnp.mean(elbo(params, key, images))
        value, grads = gf.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state, value

    step = gf.jit(step, donate_argnums=(0, 1))
    key = gf.random.key(seed)
    params = {"encoder": ENCODER.init(key["encoder"]), "decoder": DECODER.init(key["decoder"])}
    state = optimizer.init(params)
    rng = np.random.default_rng(seed)
    for i in range(steps):
        rows = rng.choice(len(x_train), batch, replace=False)
        params, state, value = step(params, state, key["code", i], x_train[rows])
        if (i + 1) % 500 == 0:
            print(f"step {i + 1}: ELBO {-float(value):.1f} nats per image")

    bound = float(jnp.mean(gf.jit(elbo)(params, key["elbo"], x_test)))
    tighter = float(jnp.mean(gf.jit(importance_bound)(params, key["importance"], x_test)))
    plain = float(jnp.mean(independent(x_train, x_test)))
    divergence = float(jnp.mean(kl(*encode(params, x_test))))
    print(f"test images: ELBO {bound:.1f}, of which the divergence of codes is {-divergence:.1f}")
    print(f"importance-weighted bound {tighter:.1f}, with independent pixels {plain:.1f}")
    if plot:
        draw(params, key["samples"], x_test[:16], plot)
    return bound - plain


def draw(params, key, images, file: str) -> None:
    """Write a picture: a row of images, what is left of them in their codes, and samples."""
    import matplotlib.pyplot as plt

    decoded = nn.sigmoid(DECODER(params["decoder"], encode(params, images)[0]))
    samples = nn.sigmoid(DECODER(params["decoder"], gf.random.normal(key, (64, LATENT))))
    rows = jnp.concatenate([images / LEVELS, decoded, samples]).reshape(6, 16, 8, 8)
    rows = jnp.pad(rows, ((0, 0), (0, 0), (1, 1), (1, 1))).transpose(0, 2, 1, 3)
    plt.imsave(file, np.asarray(rows).reshape(60, 160).repeat(4, 0).repeat(4, 1), cmap="gray_r")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    for option in ("--steps", "--batch", "--seed"):
        parser.add_argument(option, type=int)
    parser.add_argument("--plot", metavar="FILE", help="write images and samples to a PNG file")
    main(**vars(parser.parse_args()))
