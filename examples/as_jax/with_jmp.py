"""jmp: a policy of dtypes, and a loss scale that grows and shrinks by what gradients are finite.

Everything is float32 here, so that the numbers can be compared closely; the loss overflows on
purpose at first, where steps are skipped. Runs on JAX, and unchanged by
`python -m genesis_fn.as_jax with_jmp.py`.
"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import jmp
from jax import random

keys = random.split(random.PRNGKey(2), 2)
x = random.normal(keys[0], (16, 3))
y = x @ random.normal(keys[1], (3,))
policy = jmp.get_policy("params=float32,compute=float32,output=float32")


@jax.jit
def step(w, scale):
    def loss(w):
        w, data = policy.cast_to_compute((w, x))
        value = policy.cast_to_output(jnp.mean((data @ w - y) ** 2))
        return scale.scale(value), value

    (_, value), grad = jax.value_and_grad(loss, has_aux=True)(w)
    grad = scale.unscale(grad)
    finite = jmp.all_finite(grad)
    w = jmp.select_tree(finite, w - 0.1 * grad, w)
    return w, scale.adjust(finite), value, finite


w, scale = jnp.zeros(3), jmp.DynamicLossScale(jnp.float32(2.0**126), period=12)
losses, scales, finites = [], [], []
for _ in range(20):
    w, scale, value, finite = step(w, scale)
    losses.append(float(value))
    scales.append(float(jnp.log2(scale.loss_scale)))
    finites.append(int(finite))
half = jmp.get_policy("half")  # what a policy casts, by dtype alone
casts = str(half.cast_to_param({"w": w, "n": jnp.arange(2)})["n"].dtype)
print(
    json.dumps({"losses": losses, "scales": scales, "finite": finites, "w": w.tolist(), "n": casts})
)
