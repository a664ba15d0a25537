"""Particles, fields on grids, and ordinary differential equations."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.zoo_programs.program import Function, Program, layers, network, normal, uniform

# ---- particles ----


def bodies_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return normal(rng, s.count, 3), uniform(rng, s.count, low=0.5, high=1.5)


def bodies(xp: Any, s: Any) -> Function:
    """The energy of softened gravity between all pairs, and the forces."""

    def energy(x: Any, mass: Any) -> Any:
        apart = x[:, None, :] - x[None, :, :]
        square = xp.np.sum(apart * apart, axis=-1)
        return -0.5 * xp.np.sum(mass[:, None] * mass / xp.np.sqrt(square + 0.01)) / s.count

    return xp.value_and_grad(energy)


def torch_bodies(t: Any, s: Any) -> Function:
    def energy(x: Any, mass: Any) -> Any:
        square = (x[:, None, :] - x[None, :, :]).square().sum(-1)
        return -0.5 * (mass[:, None] * mass / (square + 0.01).sqrt()).sum() / s.count

    return t.value_and_grad(energy)


# ---- fields ----


def relaxation_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return normal(rng, s.side, s.side), normal(rng, s.side, s.side, scale=0.1)


def relaxation(xp: Any, s: Any) -> Function:
    """Poisson's equation on a torus by Jacobi's sweeps, neighbours by `roll`."""

    def run(u: Any, f: Any) -> Any:
        def sweep(_: Any, u: Any) -> Any:
            rows = xp.np.roll(u, 1, 0) + xp.np.roll(u, -1, 0)
            return 0.25 * (rows + xp.np.roll(u, 1, 1) + xp.np.roll(u, -1, 1) - f)

        return xp.lax.fori_loop(0, s.steps, sweep, u)

    return run


def torch_relaxation(t: Any, s: Any) -> Function:
    roll = t.torch.roll

    def sweep(u: Any, f: Any) -> Any:
        return 0.25 * (roll(u, 1, 0) + roll(u, -1, 0) + roll(u, 1, 1) + roll(u, -1, 1) - f)

    compiled = t.compile(sweep)

    def run(u: Any, f: Any) -> Any:
        for _ in range(s.steps):
            u = compiled(u, f)
        return u

    return run


def wave_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    x = np.linspace(-1, 1, s.side, dtype=np.float32)
    bump = np.exp(-40 * (x[:, None] ** 2 + (x - 0.2) ** 2))
    return bump.astype(np.float32), uniform(rng, s.side, s.side, low=0.1, high=0.4)


def wave(xp: Any, s: Any) -> Function:
    """The wave equation with a speed that varies, by slices of the inner part."""

    def run(u: Any, c: Any) -> Any:
        def step(_: Any, state: Any) -> Any:
            before, u = state
            inner = u[1:-1, 1:-1]
            around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * inner
            new = 2 * inner - before[1:-1, 1:-1] + c[1:-1, 1:-1] * around
            return u, u.at[1:-1, 1:-1].set(new)

        return xp.lax.fori_loop(0, s.steps, step, (u, u))[1]

    return run


def gray_scott_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    u = np.ones((s.grids, s.side, s.side), np.float32)
    v = uniform(rng, s.grids, s.side, s.side, high=0.3)
    feed = np.linspace(0.03, 0.06, s.grids, dtype=np.float32)
    return u, v, feed, np.linspace(0.055, 0.065, s.grids, dtype=np.float32)


def gray_scott(xp: Any, s: Any) -> Function:
    """Two substances that react and diffuse, on grids of other rates each, padded around."""

    def spread(x: Any) -> Any:
        y = xp.np.pad(x, 1, mode="wrap")
        return y[:-2, 1:-1] + y[2:, 1:-1] + y[1:-1, :-2] + y[1:-1, 2:] - 4 * x

    def grid(u: Any, v: Any, feed: Any, kill: Any) -> Any:
        def step(_: Any, state: Any) -> Any:
            u, v = state
            made = u * v * v
            new = u + 0.16 * spread(u) - made + feed * (1 - u)
            return new, v + 0.08 * spread(v) + made - (feed + kill) * v

        return xp.lax.fori_loop(0, s.steps, step, (u, v))

    return xp.vmap(grid)


def vortices_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    waves = np.fft.fftfreq(s.side, 1 / s.side)
    square = waves[:, None] ** 2 + waves**2
    field = np.fft.fft2(rng.standard_normal((s.side, s.side))) * np.exp(-square / 32)
    field = np.real(np.fft.ifft2(field))
    return (field / np.std(field)).astype(np.float32), waves.astype(np.float32)


def vortices(xp: Any, s: Any) -> Function:
    """Steps of the vorticity of a flow in two dimensions, in Fourier space."""

    def run(field: Any, waves: Any) -> Any:
        kx, ky = waves[:, None], waves[None, :]
        square = kx * kx + ky * ky
        inverse = 1 / xp.np.where(square == 0, 1.0, square)
        kept = (xp.np.abs(kx) < s.side / 3) & (xp.np.abs(ky) < s.side / 3)
        real = lambda x: xp.np.real(xp.np.fft.ifft2(x))

        def rate(w: Any) -> Any:
            stream = w * inverse
            across = real(1j * ky * stream) * real(1j * kx * w)
            along = real(1j * kx * stream) * real(1j * ky * w)
            change = xp.np.where(kept, xp.np.fft.fft2(across - along), 0)
            return -change - 1e-3 * square * w

        def step(w: Any, _: Any) -> Any:
            half = w + 0.5 * s.step * rate(w)
            w = w + s.step * rate(half)
            return w, xp.np.mean(xp.np.square(xp.np.abs(w))) / float(s.side) ** 4

        w, energies = xp.lax.scan(step, xp.np.fft.fft2(field), None, length=s.steps)
        return real(w), energies

    return run


# ---- ordinary differential equations ----


def predators_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return uniform(rng, s.count, 4, low=0.5, high=1.0), uniform(rng, s.count, 2, low=0.5, high=2.0)


def runge_kutta(rate: Function, y: Any, step: float) -> Any:
    """A step of the classical method."""
    a = rate(y)
    b = rate(y + 0.5 * step * a)
    c = rate(y + 0.5 * step * b)
    d = rate(y + step * c)
    return y + step / 6 * (a + 2 * b + 2 * c + d)


def predators(xp: Any, s: Any) -> Function:
    """Lotka and Volterra's equations of many rates."""

    def solve(rates: Any, first: Any) -> Any:
        a, b, c, d = rates

        def rate(y: Any) -> Any:
            prey, others = y
            return xp.np.stack([a * prey - b * prey * others, d * prey * others - c * others])

        step = lambda y, _: (runge_kutta(rate, y, 0.01), None)
        return xp.lax.scan(step, first, None, length=s.steps)[0]

    return xp.vmap(solve)


def adaptive_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return uniform(rng, s.count, low=0.5, high=4.0), normal(rng, s.count, 2)


def adaptive(xp: Any, s: Any) -> Function:
    """Van der Pol's oscillators with steps as large as an error of 1e-4 allows."""

    def solve(stiffness: Any, first: Any) -> Any:
        def rate(y: Any) -> Any:
            return xp.np.stack([y[1], stiffness * (1 - y[0] * y[0]) * y[1] - y[0]])

        def going(state: Any) -> Any:
            return state[0] < s.end

        def step(state: Any) -> Any:
            at, size, y = state
            size = xp.np.minimum(size, s.end - at)
            a = rate(y)
            b = rate(y + 0.5 * size * a)
            c = rate(y + 0.75 * size * b)
            new = y + size * (2 * a + 3 * b + 4 * c) / 9
            d = rate(new)
            error = size * (-5 * a / 72 + b / 12 + c / 9 - d / 8)
            ratio = xp.np.max(xp.np.abs(error)) / 1e-4
            taken = ratio <= 1
            factor = xp.np.clip(0.9 * (ratio + 1e-10) ** (-1 / 3), 0.2, 5.0)
            at = xp.np.where(taken, at + size, at)
            return at, size * factor, xp.np.where(taken, new, y)

        zero = xp.np.zeros((), xp.np.float32)
        return xp.lax.while_loop(going, step, (zero, zero + 0.01, first))[2]

    return xp.vmap(solve)


def neural_ode_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    params = layers(rng, s.width, s.hidden, s.width)
    return params, normal(rng, s.batch, s.width), normal(rng, s.batch, s.width)


def neural_ode(xp: Any, s: Any) -> Function:
    """A network as the rate of change: how far from a target it leads, and the gradient."""

    def loss(params: Any, x: Any, target: Any) -> Any:
        rate = lambda y: xp.np.tanh(network(xp.np.tanh, params, y))
        step = lambda y, _: (runge_kutta(rate, y, 1 / s.steps), None)
        y, _ = xp.lax.scan(step, x, None, length=s.steps)
        return xp.np.mean(xp.np.square(y - target))

    return xp.value_and_grad(loss)


PROGRAMS = (
    Program(
        "pairwise-forces", "particles", "gravity between 8192 bodies, energy and forces",
        bodies, bodies_inputs, {"count": 8192}, {"count": 12}, torch=torch_bodies,
    ),
    Program(
        "relaxation", "partial differential equations", "100 sweeps over 4096^2 points by roll",
        relaxation, relaxation_inputs, {"side": 4096, "steps": 100}, {"side": 12, "steps": 5},
        torch=torch_relaxation,
    ),
    Program(
        "waves", "partial differential equations", "200 steps of waves on 2048^2 by slices",
        wave, wave_inputs, {"side": 2048, "steps": 200}, {"side": 12, "steps": 5},
    ),
    Program(
        "gray-scott", "partial differential equations", "200 steps of 16 grids of 256^2, vmap",
        gray_scott, gray_scott_inputs, {"grids": 16, "side": 256, "steps": 200},
        {"grids": 2, "side": 8, "steps": 5},
    ),
    Program(
        "vortices", "partial differential equations", "a flow of 512^2 in Fourier space, 20 steps",
        vortices, vortices_inputs, {"side": 512, "steps": 20, "step": 1e-3},
        {"side": 16, "steps": 3, "step": 1e-3},
    ),
    Program(
        "predators", "ordinary differential equations", "65536 systems, 1000 steps, vmap of scan",
        predators, predators_inputs, {"count": 65536, "steps": 1000}, {"count": 5, "steps": 8},
    ),
    Program(
        "adaptive-steps", "ordinary differential equations",
        "4096 oscillators with steps of their own, vmap of while_loop",
        adaptive, adaptive_inputs, {"count": 4096, "end": 10.0}, {"count": 5, "end": 1.0}, 1e-2,
    ),
    Program(
        "neural-ode", "ordinary differential equations", "a network as a rate, and its gradient",
        neural_ode, neural_ode_inputs, {"batch": 1024, "width": 32, "hidden": 128, "steps": 20},
        {"batch": 3, "width": 4, "hidden": 8, "steps": 3}, 1e-2,
    ),
)  # fmt: skip
