"""flax.linen: a small transformer over patches, with scanned and rematerialized layers.

Runs on JAX, and unchanged by `python -m genesis_fn.as_jax with_flax.py`.
"""

from __future__ import annotations

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from flax.traverse_util import flatten_dict
from jax import random


class Block(nn.Module):
    """Attention and a perceptron, each on a normalized input and added to it."""

    training: bool

    @nn.compact
    def __call__(self, x, _):
        y = nn.LayerNorm()(x)
        x = x + nn.SelfAttention(num_heads=2, use_bias=False)(
            y, mask=nn.make_causal_mask(x[..., 0])
        )
        y = nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x))))
        return x + nn.Dropout(0.1, deterministic=not self.training)(y), None


class Network(nn.Module):
    """Patches by a convolution, two blocks, and three heads of which the mean is taken."""

    @nn.compact
    def __call__(self, images, training):
        x = nn.Conv(8, (2, 2), strides=(2, 2), use_bias=False)(images)
        x = nn.BatchNorm(use_running_average=not training, momentum=0.9)(x)
        x = x.reshape(x.shape[0], -1, 8)
        layers = nn.scan(
            nn.remat(Block, prevent_cse=False), variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True}, length=2,
        )  # fmt: skip
        x, _ = layers(training)(x, None)
        heads = nn.vmap(
            nn.Dense, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None,
            axis_size=3,
        )  # fmt: skip
        return heads(4)(x.mean(1)).mean(0)


class State(TrainState):
    """Parameters and what batch normalization has seen."""

    batch_stats: dict


keys = random.split(random.PRNGKey(6), 4)
images, labels = random.normal(keys[0], (4, 4, 4, 1)), jnp.arange(4)
network = Network()
variables = network.init({"params": keys[1], "dropout": keys[2]}, images, True)
state = State.create(
    apply_fn=network.apply, params=variables["params"], tx=optax.sgd(0.1, momentum=0.9),
    batch_stats=variables["batch_stats"],
)  # fmt: skip


@jax.jit
def step(state, key):
    def loss(params):
        logits, new = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats}, images, True,
            mutable=["batch_stats"], rngs={"dropout": key},
        )  # fmt: skip
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), new

    (value, new), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=new["batch_stats"]), value


losses = []
for key in random.split(keys[3], 20):
    state, value = step(state, key)
    losses.append(float(value))
final = {"params": state.params, "batch_stats": state.batch_stats}
sums = {"/".join(path): float(jnp.abs(v).sum()) for path, v in flatten_dict(final).items()}
logits = network.apply(final, images, False)
print(json.dumps({
    "losses": losses, "sums": dict(sorted(sums.items())), "logits": logits.tolist(),
}))  # fmt: skip
