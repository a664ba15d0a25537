"""A multilayer perceptron learns handwritten digits: python examples/mlp_digits.py"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, optim


def data(seed: int = 0) -> tuple[np.ndarray, ...]:
    """(training images, labels, test images, labels): 8 x 8 pixels in [0, 1], flat."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    x = (digits.data[order] / 16).astype(np.float32)
    y = digits.target[order].astype(np.int32)
    return x[:1500], y[:1500], x[1500:], y[1500:]


def main(steps: int = 600, batch: int = 100, seed: int = 0) -> float:
    """Train, and return the accuracy on the test images."""
    x_train, y_train, x_test, y_test = data()
    model = nn.Sequential(
        nn.Linear(64, 128), nn.relu, nn.Dropout(0.2), nn.Linear(128, 64), nn.relu, nn.Linear(64, 10)
    )
    optimizer = optim.chain(
        optim.clip_by_global_norm(1.0),
        optim.adamw(optim.warmup_cosine_decay_schedule(0.0, 3e-3, max(steps // 10, 1), steps)),
    )

    @gf.jit
    def step(params, state, key, x, y):
        def loss(params):
            return nn.cross_entropy(model(params, x, key=key, train=True), y)

        value, grads = gf.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state, value

    @gf.jit
    def accuracy(params, x, y):
        return jnp.mean(jnp.argmax(model(params, x), -1) == y)

    key = gf.random.key(seed)
    params = model.init(key["init"])
    state = optimizer.init(params)
    rng = np.random.default_rng(seed)
    for i in range(steps):
        rows = rng.choice(len(x_train), batch, replace=False)
        params, state, value = step(params, state, key["dropout", i], x_train[rows], y_train[rows])
        if (i + 1) % 100 == 0:
            print(f"step {i + 1}: loss {float(value):.3f}")
    result = float(accuracy(params, x_test, y_test))
    print(f"test accuracy {result:.3f}")
    return result


if __name__ == "__main__":
    main()
