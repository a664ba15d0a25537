"""optax: a small perceptron, trained by AdamW with a schedule and clipped gradients.

Runs on JAX, and unchanged by `python -m genesis_fn.as_jax with_optax.py`.
"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import optax
from jax import random

keys = random.split(random.PRNGKey(0), 4)
x = random.normal(keys[0], (32, 4))
y = jnp.sin(x @ random.normal(keys[1], (4, 2)))
params = {
    "hidden": random.normal(keys[2], (4, 16)) / 2,
    "out": random.normal(keys[3], (16, 2)) / 4,
    "bias": jnp.zeros(2),
}
schedule = optax.warmup_cosine_decay_schedule(0.0, 0.05, 5, 20)
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=1e-3))


def loss(params):
    out = jnp.tanh(x @ params["hidden"]) @ params["out"] + params["bias"]
    return optax.huber_loss(out, y).mean()


@jax.jit
def step(params, state):
    value, grads = jax.value_and_grad(loss)(params)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


state, losses = tx.init(params), []
for _ in range(20):
    params, state, value = step(params, state)
    losses.append(float(value))
final = {name: params[name].ravel().tolist() for name in sorted(params)}
print(json.dumps({"losses": losses, "params": final}))
