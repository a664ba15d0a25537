"""Calls without jit, graphs and images."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.zoo_programs.program import (
    Function,
    Program,
    cross_entropy,
    dense,
    integers,
    layers,
    leaves,
    network,
    normal,
    uniform,
)

# ---- calls as they come ----


def training_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    params = layers(rng, s.width, s.hidden, s.hidden, 10)
    return params, normal(rng, s.batch, s.width), integers(rng, 10, s.batch)


def training(xp: Any, s: Any) -> Function:
    """Steps of training of a small network, every operation a call."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        return cross_entropy(xp, network(xp.nn.relu, params, x), y)

    def run(params: Any, x: Any, y: Any) -> Any:
        values = []
        for _ in range(s.steps):
            value, grads = xp.value_and_grad(loss)(params, x, y)
            params = xp.tree.map(lambda w, g: w - 0.1 * g, params, grads)
            values.append(value)
        return values, params

    return run


def torch_training(t: Any, s: Any) -> Function:
    def run(params: Any, x: Any, y: Any) -> Any:
        values, flat = [], [w.detach().clone().requires_grad_() for w in leaves(params)]
        labels = y.long()
        for _ in range(s.steps):
            pairs = [{"b": b, "w": w} for b, w in zip(flat[::2], flat[1::2])]
            value = t.F.cross_entropy(network(t.F.relu, pairs, x), labels)
            grads = t.torch.autograd.grad(value, flat)
            with t.torch.no_grad():
                flat = [(w - 0.1 * g).requires_grad_() for w, g in zip(flat, grads)]
            values.append(value.detach())
        return values, [w.detach() for w in flat]

    return run


def chain_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return normal(rng, s.count), normal(rng, s.count)


def chain(xp: Any, s: Any) -> Function:
    """Twenty-four elementwise operations, each a call."""

    def run(x: Any, y: Any) -> Any:
        for _ in range(4):
            x = xp.np.tanh(x * 0.9 + y) - 0.1
            y = xp.np.where(x > 0, y, 0.5 * y)
        return x, y

    return run


def torch_chain(t: Any, s: Any) -> Function:
    def run(x: Any, y: Any) -> Any:
        for _ in range(4):
            x = t.torch.tanh(x * 0.9 + y) - 0.1
            y = t.torch.where(x > 0, y, 0.5 * y)
        return x, y

    return run


def tables_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return normal(rng, s.rows, s.columns), uniform(rng, s.rows, low=0.1, high=1.0)


def tables(xp: Any, s: Any) -> Function:
    """Statistics of a small table, each a call."""

    def run(x: Any, weights: Any) -> Any:
        mean = xp.np.mean(x, axis=0)
        z = (x - mean) / xp.np.std(x, axis=0)
        weighted = xp.np.sum(z * weights[:, None], axis=0) / xp.np.sum(weights)
        return xp.np.max(z, axis=1), xp.np.argmax(z, axis=1), weighted, z.T @ z, xp.np.var(z)

    return run


def torch_tables(t: Any, s: Any) -> Function:
    def run(x: Any, weights: Any) -> Any:
        z = (x - x.mean(0)) / x.std(0, correction=0)
        weighted = (z * weights[:, None]).sum(0) / weights.sum()
        return z.amax(1), z.argmax(1).int(), weighted, z.T @ z, z.var(correction=0)

    return run


# ---- graphs ----


def messages_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    params = [
        {"message": dense(rng, s.width, s.width), "own": dense(rng, s.width, s.width)}
        for _ in range(s.layers)
    ]
    return (
        params,
        normal(rng, s.nodes, s.width),
        integers(rng, s.nodes, s.edges),
        integers(rng, s.nodes, s.edges),
    )


def messages(xp: Any, s: Any) -> Function:
    """Layers of messages along edges, summed at the nodes, the loss and its gradient."""

    def loss(params: Any, x: Any, sources: Any, targets: Any) -> Any:
        ones = xp.np.ones(s.edges, xp.np.float32)
        count = xp.ops.segment_sum(ones, targets, num_segments=s.nodes)
        for p in params:
            sent = xp.nn.relu(x @ p["message"]["w"] + p["message"]["b"])[sources]
            summed = xp.ops.segment_sum(sent, targets, num_segments=s.nodes)
            mean = summed / xp.np.maximum(count, 1)[:, None]
            x = xp.nn.relu(x @ p["own"]["w"] + p["own"]["b"] + mean)
        return xp.np.mean(xp.np.square(x))

    return xp.value_and_grad(loss)


def torch_messages(t: Any, s: Any) -> Function:
    def loss(params: Any, x: Any, sources: Any, targets: Any) -> Any:
        sources, targets = sources.long(), targets.long()
        count = x.new_zeros(s.nodes).index_add(0, targets, x.new_ones(s.edges))
        for p in params:
            sent = t.F.relu(x @ p["message"]["w"] + p["message"]["b"])[sources]
            summed = t.torch.zeros_like(x).index_add(0, targets, sent)
            mean = summed / count.clamp(min=1)[:, None]
            x = t.F.relu(x @ p["own"]["w"] + p["own"]["b"] + mean)
        return x.square().mean()

    return t.value_and_grad(loss)


# ---- images ----


def smooth_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return (uniform(rng, s.batch, s.side, s.side),)


def smooth(xp: Any, s: Any) -> Function:
    """A bilateral filter: means of near places with near values."""

    def run(x: Any) -> Any:
        r = s.radius
        y = xp.np.pad(x, ((0, 0), (r, r), (r, r)), mode="edge")
        total, weights = xp.np.zeros_like(x), xp.np.zeros_like(x)
        for i in range(2 * r + 1):
            for j in range(2 * r + 1):
                near = y[:, i : i + s.side, j : j + s.side]
                far = ((i - r) ** 2 + (j - r) ** 2) / (2.0 * r * r)
                w = xp.np.exp(-far - xp.np.square(near - x) / 0.02)
                total, weights = total + w * near, weights + w
        return total / weights

    return run


def mandelbrot_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    x = np.linspace(-2, 0.6, s.side, dtype=np.float32)
    return x, np.linspace(-1.3, 1.3, s.side, dtype=np.float32)


def mandelbrot(xp: Any, s: Any) -> Function:
    """How many steps points stay near, on average of each row."""

    def run(a: Any, b: Any) -> Any:
        x, y = xp.np.meshgrid(a, b)

        def step(_: Any, state: Any) -> Any:
            u, v, count = state
            near = u * u + v * v <= 4
            new, other = u * u - v * v + x, 2 * u * v + y
            u, v = xp.np.where(near, new, u), xp.np.where(near, other, v)
            return u, v, count + near.astype(xp.np.int32)

        first = (xp.np.zeros_like(x), xp.np.zeros_like(x), xp.np.zeros(x.shape, xp.np.int32))
        count = xp.lax.fori_loop(0, s.steps, step, first)[2]
        return xp.np.mean(count.astype(xp.np.float32), axis=1)

    return run


PROGRAMS = (
    Program(
        "eager-training", "calls without jit", "10 steps of training of a small network",
        training, training_inputs, {"batch": 128, "width": 64, "hidden": 128, "steps": 10},
        {"batch": 4, "width": 5, "hidden": 8, "steps": 2}, 1e-2, jitted=False,
        torch=torch_training,
    ),
    Program(
        "eager-chain", "calls without jit", "24 elementwise operations on 2^20 numbers",
        chain, chain_inputs, {"count": 1 << 20}, {"count": 16}, jitted=False, torch=torch_chain,
    ),
    Program(
        "eager-statistics", "calls without jit", "statistics of a table of 128 x 64",
        tables, tables_inputs, {"rows": 128, "columns": 64}, {"rows": 6, "columns": 4}, 5e-3,
        jitted=False, torch=torch_tables,
    ),
    Program(
        "messages", "graphs", "2 layers of messages over 2^20 edges of 2^17 nodes, gradient",
        messages, messages_inputs,
        {"nodes": 1 << 17, "edges": 1 << 20, "width": 64, "layers": 2},
        {"nodes": 6, "edges": 15, "width": 4, "layers": 2}, 1e-2, scatters=True,
        torch=torch_messages,
    ),
    Program(
        "bilateral-filter", "images", "means over 7 x 7 places of 4 images of 1024^2",
        smooth, smooth_inputs, {"batch": 4, "side": 1024, "radius": 3},
        {"batch": 2, "side": 9, "radius": 1},
    ),
    Program(
        "mandelbrot", "images", "100 steps of 2048^2 points, with masks",
        mandelbrot, mandelbrot_inputs, {"side": 2048, "steps": 100}, {"side": 12, "steps": 6},
        1e-2,
    ),
)  # fmt: skip
