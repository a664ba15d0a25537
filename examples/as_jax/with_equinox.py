"""equinox: modules that are pytrees, with a convolution, attention and dropout, and an ensemble.

Runs on JAX, and unchanged by `python -m genesis_fn.as_jax with_equinox.py`.
"""

from __future__ import annotations

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import random


class Network(eqx.Module):
    """Classifies one image: patches by a convolution, attention over them, a perceptron."""

    patches: eqx.nn.Conv2d
    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout
    out: eqx.nn.Linear

    def __init__(self, key):
        k = random.split(key, 4)
        self.patches = eqx.nn.Conv2d(1, 8, 2, stride=2, key=k[0])
        self.norm = eqx.nn.LayerNorm(8)
        self.attention = eqx.nn.MultiheadAttention(2, 8, key=k[1])
        self.mlp = eqx.nn.MLP(8, 8, 16, 1, activation=jax.nn.gelu, key=k[2])
        self.dropout = eqx.nn.Dropout(0.1)
        self.out = eqx.nn.Linear(8, 4, key=k[3])

    def __call__(self, image, key):
        x = self.patches(image).reshape(8, -1).T
        x = x + self.attention(*[jax.vmap(self.norm)(x)] * 3)
        x = x + eqx.filter_checkpoint(jax.vmap(self.mlp))(x)
        x = eqx.error_if(x, jnp.any(jnp.isnan(x)), "an activation is NaN")
        return self.out(self.dropout(x.mean(0), key=key))


keys = random.split(random.PRNGKey(7), 4)
images, labels = random.normal(keys[0], (4, 1, 4, 4)), jnp.arange(4)
models = eqx.filter_vmap(Network)(random.split(keys[1], 2))  # two networks, as one
tx = optax.sgd(0.1, momentum=0.9)


@eqx.filter_value_and_grad
def loss(model, key):
    logits = jax.vmap(model)(images, random.split(key, 4))
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@eqx.filter_jit
def step(models, state, key):
    values, grads = eqx.filter_vmap(loss, in_axes=(eqx.if_array(0), None))(models, key)
    updates, state = tx.update(grads, state)
    return eqx.apply_updates(models, updates), state, values


state, losses = tx.init(eqx.filter(models, eqx.is_array)), []
for key in random.split(keys[2], 20):
    models, state, values = step(models, state, key)
    losses.append(values.tolist())
sums = [float(jnp.abs(v).sum()) for v in jax.tree.leaves(eqx.filter(models, eqx.is_array))]
first = jax.tree.map(lambda v: v[0] if eqx.is_array(v) else v, models)
still = eqx.nn.inference_mode(first)
tangent = eqx.filter_jvp(lambda v: still(v, keys[3]), (images[0],), (images[1],))
print(json.dumps({"losses": losses, "sums": sums, "jvp": [t.tolist() for t in tangent]}))
