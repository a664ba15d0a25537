"""Random programs of steps that mostly stay apart: what is donated, updated, looped over and kept
shares memory, and must compute what the CPU computes."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.compiler.options import without

N = 8


def square(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 1.5, (N, N)).astype(np.float32)


def dot(a, b):
    return lax.dot(a, b, precision="highest") * (1 / N)


def looped(x, y):
    return lax.fori_loop(0, 3, lambda i, s: (dot(s[0], s[1]), gnp.cumsum(s[0], 0) * 0.2), (x, y))


def until(x, y):
    return lax.while_loop(
        lambda s: gnp.sum(s[0]) > 4.0, lambda s: (s[0] * 0.5, dot(s[1], s[1])), (gnp.abs(x), y)
    )


def scanned(x, y):
    def body(carry, row):
        return carry * 0.5 + dot(y, y), gnp.sort(row * gnp.sum(carry))

    return lax.scan(body, x, y)


def either(x, y):
    return lax.cond(
        x[0, 0] > y[0, 0],
        lambda a, b: (dot(a, b), b),
        lambda a, b: (gnp.cumsum(a, 1), dot(b, a)),
        x,
        y,
    )


# Mostly steps that do not fuse with each other, so that there is an order to choose.
STEPS: dict[str, Callable] = {
    "dot": lambda x, y: dot(x, y),
    "cumsum": lambda x, y: gnp.cumsum(x, 1) * 0.25 + y,
    "sort": lambda x, y: gnp.sort(x, axis=0),
    "add": lambda x, y: gnp.tanh(x) + y * 0.5,
    "column": lambda x, y: x - gnp.sum(y, 0) * 0.1,
    "checked": lambda x, y: y[gnp.argmax(x, axis=1)],
    "view": lambda x, y: gnp.concatenate([x[: N // 2], y[N // 2 :]], 0),
    "looped": lambda x, y: gnp.sum(gnp.stack(looped(x, y)), 0),
    "until": lambda x, y: until(x, y)[0] + y,
    "scanned": lambda x, y: scanned(x, y)[1],
    "either": lambda x, y: either(x, y)[0],
}


class RandomProgram:
    """Steps on earlier values; some values are results, some inputs are donated."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.inputs = [square(10 * seed + i) for i in range(3)]
        self.donated = [rng.random() < 0.6 for _ in self.inputs]
        # At most one loop or branch each: interpreting them takes long.
        names = rng.sample(list(STEPS), len(STEPS)) + rng.choices(list(STEPS)[:7], k=4)
        rng.shuffle(names)
        self.steps = [(name, rng.random(), rng.random()) for name in names[:11]]
        self.kept = [rng.random() < 0.5 for _ in self.steps]

    def __call__(self, *inputs):
        values = list(inputs)
        for name, a, b in self.steps:
            # Values of late: chains beside each other.
            recent = values[-5:]
            x, y = recent[int(a * len(recent))], recent[int(b * len(recent))]
            values.append(STEPS[name](x, y) * 0.5 + 0.25)
        made = values[len(inputs) :]
        results = [v for v, kept in zip(made, self.kept, strict=True) if kept]
        return [*results, made[-1], inputs[0]]


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed):
    program = RandomProgram(seed)
    # Passes that join steps leave fewer of them.
    with without(*["horizontal", "products", "grouped"] * (seed % 2)):
        programs.compare(program, *program.inputs, donated=program.donated)


def test_gradients_of_layers():
    """Weight gradients beside the chain of activations' gradients."""

    def loss(ws, x):
        for w in ws:
            x = gnp.tanh(dot(x, w)) + x
        return gnp.mean(x**2)

    f = g.value_and_grad(loss, argnums=(0, 1))
    with without("horizontal", "segments", "grouped"):
        programs.compare(f, [square(i) for i in range(4)], square(9))
    programs.compare(f, [square(i) for i in range(4)], square(9))


def test_in_place_updates():
    """Moments and parameters are read by the gradient and then overwritten."""

    def step(w, m, v, x):
        grad = gnp.cumsum(dot(x, w), 0)
        m = 0.9 * m + 0.1 * grad
        v = 0.9 * v + 0.1 * dot(grad, grad)
        return w - m / (gnp.sqrt(v) + 0.1), m, v, dot(w, x)

    args = [square(i) for i in range(4)]
    made = programs.compare(step, *args, donated=[True, True, True, False])
    assert len(made.replaced) == 3
