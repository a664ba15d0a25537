"""A convolutional network with batch normalisation: python examples/cnn_digits.py

Layers with running state take it and return it; `value_and_grad(..., has_aux=True)` carries it out.
"""

from __future__ import annotations

import numpy as np
from mlp_digits import data

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, optim

MODEL = nn.Sequential(
    nn.Conv(1, 16),
    nn.BatchNorm(16),
    nn.relu,
    nn.MaxPool(2),
    nn.Conv(16, 32),
    nn.BatchNorm(32),
    nn.relu,
    nn.MaxPool(2),
    nn.Flatten(),
    nn.Linear(128, 10),
)


def main(steps: int = 200, batch: int = 64, seed: int = 0) -> float:
    """Train, and return the accuracy on the test images."""
    x_train, y_train, x_test, y_test = data()
    x_train, x_test = [x.reshape(-1, 8, 8, 1) for x in (x_train, x_test)]
    optimizer = optim.adam(2e-3)

    def loss(params, running, x, y):
        logits, running = MODEL(params, x, state=running, train=True)
        return nn.cross_entropy(logits, y), running

    def step(params, running, state, x, y):
        (value, running), grads = gf.value_and_grad(loss, has_aux=True)(params, running, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), running, state, value

    step = gf.jit(step, donate_argnums=(0, 1, 2))
    params, running = MODEL.init(gf.random.key(seed)), MODEL.init_state()
    state = optimizer.init(params)
    rng = np.random.default_rng(seed)
    for i in range(steps):
        rows = rng.choice(len(x_train), batch, replace=False)
        params, running, state, value = step(params, running, state, x_train[rows], y_train[rows])
        if (i + 1) % 50 == 0:
            print(f"step {i + 1}: loss {float(value):.3f}")
    logits, _ = MODEL(params, jnp.asarray(x_test), state=running)
    result = float(jnp.mean(jnp.argmax(logits, -1) == y_test))
    print(f"test accuracy {result:.3f}")
    return result


if __name__ == "__main__":
    main()
