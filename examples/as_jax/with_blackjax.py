"""blackjax: a Bayesian regression, by the No-U-Turn sampler and by Hamiltonian Monte Carlo.

Runs on JAX, and unchanged by `python -m genesis_fn.as_jax with_blackjax.py`.
"""

from __future__ import annotations

import json

import blackjax
import jax
import jax.numpy as jnp
from jax import random

keys = random.split(random.PRNGKey(3), 3)
x = random.normal(keys[0], (20, 2))
y = x @ jnp.array([1.0, -2.0]) + 0.3 * random.normal(keys[1], (20,))


def log_density(w):
    return -0.5 * jnp.sum((y - x @ w) ** 2) / 0.09 - 0.5 * jnp.sum(w**2)


nuts = blackjax.nuts(log_density, step_size=0.05, inverse_mass_matrix=jnp.ones(2))
state, step = nuts.init(jnp.zeros(2)), jax.jit(nuts.step)
positions, steps = [], []
for key in random.split(keys[2], 8):
    state, info = step(key, state)
    positions.append(state.position.tolist())
    steps.append(int(info.num_integration_steps))

hmc = blackjax.hmc(
    log_density, step_size=0.05, inverse_mass_matrix=jnp.ones(2), num_integration_steps=5
)


def one(state, key):
    state, info = hmc.step(key, state)
    return state, (state.position, info.acceptance_rate)


_, (chain, rates) = jax.lax.scan(one, hmc.init(jnp.zeros(2)), random.split(keys[2], 12))
print(json.dumps({
    "nuts": positions, "integration_steps": steps, "hmc": chain.tolist(), "rates": rates.tolist(),
}))  # fmt: skip
