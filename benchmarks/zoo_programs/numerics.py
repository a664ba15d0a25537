"""Linear algebra, optimisation and signals."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.zoo_programs.program import Function, Program, layers, network, normal, uniform

# ---- linear algebra ----


def positive(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Well conditioned symmetric matrices."""
    x = normal(rng, *shape)
    return x @ np.swapaxes(x, -1, -2) / np.float32(shape[-1]) + 0.5 * np.eye(
        shape[-1], dtype=np.float32
    )


def gradients_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return positive(rng, s.side, s.side), normal(rng, s.side)


def conjugate_gradients(xp: Any, s: Any) -> Function:
    """The solution of A x = b, until it is good enough."""

    def run(a: Any, b: Any) -> Any:
        def going(state: Any) -> Any:
            _, _, _, square, count = state
            return (square > 1e-10 * xp.np.dot(b, b)) & (count < s.most)

        def step(state: Any) -> Any:
            x, r, p, square, count = state
            ap = a @ p
            length = square / xp.np.dot(p, ap)
            x, r = x + length * p, r - length * ap
            new = xp.np.dot(r, r)
            return x, r, r + new / square * p, new, count + 1

        first = (xp.np.zeros_like(b), b, b, xp.np.dot(b, b), 0)
        return xp.lax.while_loop(going, step, first)[0]

    return run


def solves_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return positive(rng, s.count, s.side, s.side), normal(rng, s.count, s.side, 1)


def solves(xp: Any, s: Any) -> Function:
    """Cholesky factors of many small matrices, and what they solve."""

    def run(a: Any, b: Any) -> Any:
        lower = xp.np.linalg.cholesky(a)
        x = xp.linalg.cho_solve((lower, True), b)
        return x, xp.np.sum(xp.np.log(xp.np.diagonal(lower, axis1=-2, axis2=-1)), -1)

    return run


def torch_solves(t: Any, s: Any) -> Function:
    def run(a: Any, b: Any) -> Any:
        lower = t.torch.linalg.cholesky(a)
        logs = lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return t.torch.cholesky_solve(b, lower), logs

    return t.compile(run)


def orthogonal_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return (normal(rng, s.rows, s.columns),)


def orthogonal(xp: Any, s: Any) -> Function:
    """Gram and Schmidt's columns, one after the other, as they were written down."""

    def run(a: Any) -> Any:
        def column(i: Any, q: Any) -> Any:
            v = a[:, i]
            v = v - q @ (q.T @ v)
            v = v - q @ (q.T @ v)
            return q.at[:, i].set(v / xp.np.sqrt(xp.np.sum(v * v)))

        q = xp.lax.fori_loop(0, s.columns, column, xp.np.zeros_like(a))
        return q, q.T @ a

    return run


def softmax_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return normal(rng, s.rows, s.width), normal(rng, s.width, s.columns, scale=s.width**-0.5)


def softmax(xp: Any, s: Any) -> Function:
    """The softmax of a product of matrices, in bfloat16."""

    def run(x: Any, w: Any) -> Any:
        half = xp.np.bfloat16
        logits = x.astype(half) @ w.astype(half)
        return xp.nn.softmax(logits.astype(xp.np.float32), axis=-1).astype(half)

    return run


def torch_softmax(t: Any, s: Any) -> Function:
    run = lambda x, w: t.torch.softmax((x.bfloat16() @ w.bfloat16()).float(), -1).bfloat16()
    return t.compile(run)


# ---- optimisation ----


def orbits_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return uniform(rng, s.count, high=0.95), uniform(rng, s.count, low=0.05, high=3.1)


def orbits(xp: Any, s: Any) -> Function:
    """Kepler's equation by Newton's method, for each row until it is solved."""

    def one(eccentricity: Any, anomaly: Any) -> Any:
        error = lambda x: x - eccentricity * xp.np.sin(x) - anomaly

        def going(state: Any) -> Any:
            x, count = state
            return (xp.np.abs(error(x)) > 1e-5) & (count < 50)

        def step(state: Any) -> Any:
            x, count = state
            value, slope = xp.value_and_grad(error)(x)
            return x - value / slope, count + 1

        return xp.lax.while_loop(going, step, (xp.np.pi + 0 * anomaly, 0))[0]

    return xp.vmap(one)


def adam_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    x = uniform(rng, s.batch, 2, low=-1.0)
    y = np.sin(3 * x[:, :1]) * x[:, 1:]
    return layers(rng, 2, s.hidden, s.hidden, 1), x, y.astype(np.float32)


def adam(xp: Any, s: Any) -> Function:
    """Steps of training of a small network, all in one scan."""

    def run(params: Any, x: Any, y: Any) -> Any:
        loss = lambda p: xp.np.mean(xp.np.square(network(xp.np.tanh, p, x) - y))

        def step(carry: Any, _: Any) -> Any:
            p, m, v, count = carry
            value, g = xp.value_and_grad(loss)(p)
            count = count + 1
            m = xp.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = xp.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
            rate = 1e-3 * xp.np.sqrt(1 - 0.999**count) / (1 - 0.9**count)
            p = xp.tree.map(lambda p, m, v: p - rate * m / (xp.np.sqrt(v) + 1e-4), p, m, v)
            return (p, m, v, count), value

        zeros = xp.tree.map(xp.np.zeros_like, params)
        first = (params, zeros, zeros, xp.np.zeros((), xp.np.float32))
        (p, *_), values = xp.lax.scan(step, first, None, length=s.steps)
        return p, values

    return run


def transport_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return normal(rng, s.count, 3), normal(rng, s.count, 3) + np.float32(0.5)


def transport(xp: Any, s: Any) -> Function:
    """Sinkhorn's sweeps between two clouds of points, in logarithms."""

    def run(x: Any, y: Any) -> Any:
        apart = x[:, None, :] - y[None, :, :]
        cost = xp.np.sum(apart * apart, -1)
        level = float(np.log(s.count))

        def sweep(_: Any, state: Any) -> Any:
            f, g = state
            f = -s.scale * (xp.special.logsumexp((g - cost) / s.scale, axis=1) - level)
            g = -s.scale * (xp.special.logsumexp((f[:, None] - cost) / s.scale, axis=0) - level)
            return f, g

        zero = xp.np.zeros(s.count, xp.np.float32)
        f, g = xp.lax.fori_loop(0, s.sweeps, sweep, (zero, zero))
        return f, g, xp.np.mean(f) + xp.np.mean(g)

    return run


def torch_transport(t: Any, s: Any) -> Function:
    def sweep(f: Any, g: Any, cost: Any) -> Any:
        level = float(np.log(s.count))
        f = -s.scale * (t.torch.logsumexp((g - cost) / s.scale, 1) - level)
        return f, -s.scale * (t.torch.logsumexp((f[:, None] - cost) / s.scale, 0) - level)

    compiled = t.compile(sweep)

    def run(x: Any, y: Any) -> Any:
        cost = (x[:, None, :] - y[None, :, :]).square().sum(-1)
        f = g = x.new_zeros(s.count)
        for _ in range(s.sweeps):
            f, g = compiled(f, g, cost)
        return f, g, f.mean() + g.mean()

    return run


# ---- signals ----


def filter_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    taps = np.sinc(np.linspace(-4, 4, s.taps)) * np.hamming(s.taps)
    return normal(rng, s.batch, s.samples), (taps / taps.sum()).astype(np.float32)


def filtered(xp: Any, s: Any) -> Function:
    """Signals with a filter of many taps."""
    one = lambda x, taps: xp.np.convolve(x, taps, mode="same")
    return xp.vmap(one, in_axes=(0, None))


def torch_filtered(t: Any, s: Any) -> Function:
    run = lambda x, taps: t.F.conv1d(x[:, None], taps.flip(0)[None, None], padding="same")[:, 0]
    return t.compile(run)


def biquad_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    poles = np.array([0.2, 0.4, 0.2, -1.2, 0.5], np.float32)
    return normal(rng, s.batch, s.samples), poles


def biquad(xp: Any, s: Any) -> Function:
    """A recursive filter, sample after sample."""

    def run(x: Any, poles: Any) -> Any:
        def step(state: Any, now: Any) -> Any:
            first, second = state
            y = poles[0] * now + first
            first = poles[1] * now - poles[3] * y + second
            return (first, poles[2] * now - poles[4] * y), y

        zero = xp.np.zeros(s.batch, xp.np.float32)
        return xp.lax.scan(step, (zero, zero), x.T)[1].T

    return run


def stft_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return (normal(rng, s.batch, s.samples),)


def stft(xp: Any, s: Any) -> Function:
    """Power in time and frequency, by the library's transform of short windows."""

    def run(x: Any) -> Any:
        z = xp.signal.stft(x, nperseg=s.window)[2]
        return xp.np.log(xp.np.square(xp.np.real(z)) + xp.np.square(xp.np.imag(z)) + 1e-6)

    return run


PROGRAMS = (
    Program(
        "conjugate-gradients", "linear algebra", "A x = b of 4096 unknowns, while_loop",
        conjugate_gradients, gradients_inputs, {"side": 4096, "most": 100},
        {"side": 12}, precision="highest",
    ),
    Program(
        "small-solves", "linear algebra", "Cholesky solves of 8192 matrices of 16 x 16",
        solves, solves_inputs, {"count": 8192, "side": 16}, {"count": 3, "side": 4},
        precision="highest", torch=torch_solves,
    ),
    Program(
        "gram-schmidt", "linear algebra", "256 columns of 4096, one after the other",
        orthogonal, orthogonal_inputs, {"rows": 4096, "columns": 256}, {"rows": 12, "columns": 4},
        precision="highest",
    ),
    Program(
        "softmax-of-product", "linear algebra", "softmax of 8192 x 16384 products, bfloat16",
        softmax, softmax_inputs, {"rows": 8192, "width": 1024, "columns": 16384},
        {"rows": 5, "width": 8, "columns": 16}, 2e-2, torch=torch_softmax,
    ),
    Program(
        "orbits", "optimisation", "Newton's method for 2^20 rows, vmap of while_loop",
        orbits, orbits_inputs, {"count": 1 << 20}, {"count": 16},
    ),
    Program(
        "adam-in-scan", "optimisation", "500 steps of Adam for a small network in one scan",
        adam, adam_inputs, {"batch": 512, "hidden": 64, "steps": 500},
        {"batch": 5, "hidden": 4, "steps": 4}, 2e-2,
    ),
    Program(
        "transport", "optimisation", "50 sweeps of Sinkhorn's algorithm between 2048 points",
        transport, transport_inputs, {"count": 2048, "sweeps": 50, "scale": 0.05},
        {"count": 9, "sweeps": 4}, torch=torch_transport,
    ),
    Program(
        "fir-filter", "signals", "129 taps over 64 signals of 65536, vmap of convolve",
        filtered, filter_inputs, {"batch": 64, "samples": 65536, "taps": 129},
        {"batch": 2, "samples": 24, "taps": 5}, 2e-3, torch=torch_filtered,
    ),
    Program(
        "iir-filter", "signals", "a recursive filter over 1024 signals of 4096, scan",
        biquad, biquad_inputs, {"batch": 1024, "samples": 4096}, {"batch": 2, "samples": 12},
    ),
    Program(
        "stft", "signals", "short-time Fourier transforms of 64 signals of 2^17",
        stft, stft_inputs, {"batch": 64, "samples": 1 << 17, "window": 512},
        {"batch": 2, "samples": 100, "window": 16},
    ),
)  # fmt: skip
