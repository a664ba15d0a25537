"""chex: a state in a dataclass, checked shapes and types, and checks inside a compiled step.

Runs on JAX, and unchanged by `python -m genesis_fn.as_jax with_chex.py`.
"""

from __future__ import annotations

import json

import chex
import jax
import jax.numpy as jnp
from jax import random


@chex.dataclass
class State:
    """Weights and their momentum."""

    w: chex.Array
    momentum: chex.Array


keys = random.split(random.PRNGKey(1), 2)
x = random.normal(keys[0], (32, 3))
y = x @ random.normal(keys[1], (3,))


@jax.jit
@chex.assert_max_traces(n=1)
def step(state: State) -> tuple[State, chex.Array]:
    chex.assert_shape([state.w, state.momentum], (3,))
    chex.assert_type(state.w, jnp.float32)
    value, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(state.w)
    chex.assert_rank([value, grad], [0, 1])
    momentum = 0.9 * state.momentum + grad
    return state.replace(w=state.w - 0.05 * momentum, momentum=momentum), value


checked = chex.chexify(jax.jit(lambda v: (chex.assert_tree_all_finite(v), v)[1]), async_check=False)
state, losses = State(w=jnp.zeros(3), momentum=jnp.zeros(3)), []
for _ in range(20):
    state, value = step(state)
    losses.append(float(checked(value)))
refused = 0
for wrong in (jnp.zeros(4), jnp.zeros(3, "int32")):
    try:
        chex.assert_trees_all_equal_shapes_and_dtypes(state.w, wrong)
    except AssertionError:
        refused += 1
try:
    checked(jnp.nan * value)
except Exception:
    refused += 1
chex.assert_trees_all_close(state, jax.tree.map(lambda v: v + 1e-9, state))
print(json.dumps({"losses": losses, "w": state.w.tolist(), "refused": refused}))
