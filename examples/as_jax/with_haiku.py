"""dm-haiku: a convolution, batch normalization, an LSTM and attention, trained together.

Runs on JAX, and unchanged by `python -m genesis_fn.as_jax with_haiku.py`.
"""

from __future__ import annotations

import json

import haiku as hk
import jax
import jax.numpy as jnp
from jax import random

keys = random.split(random.PRNGKey(5), 3)
images = random.normal(keys[0], (2, 5, 6, 6, 1))  # two films of five images
labels = jnp.array([0, 2])


def network(films, is_training):
    batch, length = films.shape[:2]
    x = films.reshape(-1, *films.shape[2:])
    x = jax.nn.relu(hk.Conv2D(4, 3, stride=2, with_bias=False)(x))
    x = hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)(x, is_training)
    x = hk.Linear(8)(hk.Flatten()(x)).reshape(batch, length, 8)
    core = hk.LSTM(8)
    x, _ = hk.dynamic_unroll(core, x.swapaxes(0, 1), core.initial_state(batch))
    x = x.swapaxes(0, 1)
    x = x + hk.MultiHeadAttention(2, 4, w_init=hk.initializers.VarianceScaling(1.0))(x, x, x)
    x = hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)
    block = hk.Linear(8)
    x, _ = hk.scan(lambda v, _: (v + jnp.tanh(block(v)), None), x.mean(1), None, length=2)
    x = hk.dropout(hk.next_rng_key(), 0.1, hk.remat(hk.Linear(8))(x))
    return hk.vmap(hk.Linear(3), split_rng=False)(x)


net = hk.transform_with_state(network)
params, state = net.init(keys[1], images, True)


@jax.jit
def step(params, state, key):
    def loss(params):
        logits, new = net.apply(params, state, key, images, True)
        chosen = jax.nn.log_softmax(logits)[jnp.arange(2), labels]
        return -chosen.mean(), new

    (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), new, value


losses = []
for key in random.split(keys[2], 20):
    params, state, value = step(params, state, key)
    losses.append(float(value))


def flat(tree):
    return {f"{m}/{n}": float(jnp.abs(v).sum()) for m, n, v in hk.data_structures.traverse(tree)}


logits, _ = net.apply(params, state, keys[0], images, False)
print(json.dumps({
    "losses": losses, "params": dict(sorted(flat(params).items())),
    "state": dict(sorted(flat(state).items())), "logits": logits.tolist(),
}))  # fmt: skip
