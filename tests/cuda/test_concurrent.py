"""Graphs with several lanes: their nodes run in arbitrary orders that the edges allow, and must
compute what the chain of steps computes, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.backends.cuda.executable import CudaExecutable
from genesis_fn.backends.cuda.runtime import runtime
from genesis_fn.compiler.options import without
from genesis_fn.core import config, errors
from genesis_fn.core.device import using_device

N = 8
WIDE = 4  # lanes


@pytest.fixture
def driver() -> Iterator:
    """The driver; if it is the interpreting one, its order of nodes is put back afterwards."""
    found = runtime(0).driver
    yield found
    found.shuffle = None


def run(executable: CudaExecutable, inputs) -> list[bytes]:
    return [programs.get(x).tobytes() for x in executable(*map(programs.put, inputs))]


def check(driver, f: Callable, *args, donated=(), orders: int = 3) -> CudaExecutable:
    """Compares the orders that wide graphs allow with the chain's results."""
    jaxpr, inputs = programs.traced(f, *args)
    if donated:  # captured values come first
        donated = [*[False] * (len(inputs) - len(donated)), *donated]
    expected = run(programs.compile_jaxpr(jaxpr, programs.PLACE, donated=donated), inputs)
    with config.override(graph_lanes=WIDE):
        wide = programs.compile_jaxpr(jaxpr, programs.PLACE, donated=donated)
    for seed in range(orders):
        driver.shuffle = random.Random(seed)
        assert run(wide, inputs) == expected, f"order {seed}"
    driver.shuffle = None
    return wide


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
        x[0, 0] > y[0, 0], lambda a, b: (dot(a, b), b), lambda a, b: (gnp.cumsum(a, 1), dot(b, a)),
        x, y,
    )  # fmt: skip


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
def test_random_programs(driver, seed):
    program = RandomProgram(seed)
    # Passes that join steps leave less to order.
    with without(*["beside", "products", "grouped"] * (seed % 2)):
        check(driver, program, *program.inputs, donated=program.donated)


def test_gradients_of_layers(driver):
    """Weight gradients beside the chain of activations' gradients."""

    def loss(ws, x):
        for w in ws:
            x = gnp.tanh(dot(x, w)) + x
        return gnp.mean(x**2)

    f = g.value_and_grad(loss, argnums=(0, 1))
    with without("beside", "segments", "grouped"):
        check(driver, f, [square(i) for i in range(4)], square(9))
    check(driver, f, [square(i) for i in range(4)], square(9))


def test_in_place_updates(driver):
    """Moments and parameters are read by the gradient and then overwritten."""

    def step(w, m, v, x):
        grad = gnp.cumsum(dot(x, w), 0)
        m = 0.9 * m + 0.1 * grad
        v = 0.9 * v + 0.1 * dot(grad, grad)
        return w - m / (gnp.sqrt(v) + 0.1), m, v, dot(w, x)

    args = [square(i) for i in range(4)]
    wide = check(driver, step, *args, donated=[True, True, True, False], orders=8)
    assert len(wide.replaced) == 3


@pytest.mark.interpreted
def test_steps_do_overlap(driver):
    """Independent products have no path between them."""
    with config.override(graph_lanes=WIDE), without("beside", "grouped"):
        products = lambda *xs: [gnp.cumsum(dot(x, x), 0) for x in xs]
        jaxpr, inputs = programs.traced(products, *[square(i) for i in range(WIDE)])
        wide = programs.compile_jaxpr(jaxpr, programs.PLACE)
    run(wide, inputs)
    (made,) = wide._graphs.values()
    assert sum(not before for before in made._only.after) == WIDE


@pytest.mark.interpreted
def test_a_missing_edge_is_found(driver, monkeypatch):
    """The orders tried here would show a step that is said to touch less than it does."""
    from genesis_fn.backends.cuda import graph
    from genesis_fn.backends.cuda.hazards import Touched

    found = graph.predecessors
    blind = lambda touched, lanes: found([Touched(t.reads, ()) for t in touched], lanes)
    monkeypatch.setattr(graph, "predecessors", blind)
    with pytest.raises(AssertionError, match="order"):
        check(driver, lambda x, y: gnp.cumsum(dot(gnp.sort(x), y), 0), square(0), square(1))


def test_failed_checks_are_reported(driver):
    with using_device(programs.PLACE), config.override(graph_lanes=WIDE):
        f = g.jit(lambda x, i, j: (x[i] + 1, x[j] + 2))
        x = gnp.array(square(0)[0])
        driver.shuffle = random.Random(0)
        a, b = f(x, gnp.array(3), gnp.array(5))
        np.testing.assert_allclose([float(a), float(b)], np.asarray(x)[[3, 5]] + [1, 2])
        with pytest.raises(errors.IndexOutOfRange):
            np.asarray(f(x, gnp.array(3), gnp.array(99))[0])


def test_lanes_are_a_number_of_steps():
    with pytest.raises(ValueError, match="1 to 32"):
        g.config.update("graph_lanes", 0)
    with pytest.raises(ValueError, match="1 to 32"):
        g.config.update("graph_lanes", "2")
    assert g.config.graph_lanes == 1
