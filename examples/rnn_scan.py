"""A gated recurrent network adds marked numbers: python examples/rnn_scan.py

The adding problem (Hochreiter and Schmidhuber, 1997): of a sequence of (number, mark), the sum of
the two marked numbers. One `scan` runs the cell over time; its gradient is a scan backwards.
"""

from __future__ import annotations

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, nn, optim

HIDDEN = 32


def init(key):
    """Parameters of a gated recurrent unit and a linear reading of its last state."""
    orthogonal, normal = nn.initializers.orthogonal(), nn.initializers.lecun_normal()
    return {
        "input": normal(key["input"], (2, 3 * HIDDEN)),
        "state": orthogonal(key["state"], (HIDDEN, 3 * HIDDEN)),
        "bias": jnp.zeros(3 * HIDDEN),
        "read": normal(key["read"], (HIDDEN, 1)),
    }


def cell(params, h, x):
    """The next state (Cho et al., 2014)."""
    from_x = x @ params["input"] + params["bias"]
    from_h = h @ params["state"]
    keep, reset = [
        nn.sigmoid(a + b) for a, b in zip(jnp.split(from_x, 3)[:2], jnp.split(from_h, 3)[:2])
    ]
    new = jnp.tanh(from_x[2 * HIDDEN :] + reset * from_h[2 * HIDDEN :])
    return keep * h + (1 - keep) * new


def predict(params, xs):
    """The prediction for one sequence [length, 2]."""
    h, _ = lax.scan(lambda h, x: (cell(params, h, x), None), jnp.zeros(HIDDEN), xs)
    return (h @ params["read"])[0]


def batch(key, size: int, length: int):
    """(sequences [size, length, 2], sums [size])."""
    numbers = gf.random.uniform(key["numbers"], (size, length))
    half = length // 2
    first = gf.random.randint(key["first"], (size,), 0, half)
    second = gf.random.randint(key["second"], (size,), half, length)
    marks = nn.one_hot(first, length) + nn.one_hot(second, length)
    return jnp.stack([numbers, marks], -1), jnp.sum(numbers * marks, -1)


def main(steps: int = 600, length: int = 20, seed: int = 0) -> float:
    """Train, and return the mean squared error on fresh sequences; guessing 1 gives 0.167."""
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(4e-3))

    def loss(params, xs, sums):
        return jnp.mean((gf.vmap(predict, in_axes=(None, 0))(params, xs) - sums) ** 2)

    @gf.jit
    def step(params, state, key):
        xs, sums = batch(key, 64, length)
        value, grads = gf.value_and_grad(loss)(params, xs, sums)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state, value

    key = gf.random.key(seed)
    params = init(key["init"])
    state = optimizer.init(params)
    for i in range(steps):
        params, state, value = step(params, state, key["batch", i])
        if (i + 1) % 100 == 0:
            print(f"step {i + 1}: squared error {float(value):.4f}")
    result = float(loss(params, *batch(key["test"], 500, length)))
    print(f"squared error on fresh sequences {result:.4f}")
    return result


if __name__ == "__main__":
    main()
