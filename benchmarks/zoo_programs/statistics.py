"""Bayesian inference, finance and clusters."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.zoo_programs.program import Function, Program, key, normal, seed, uniform

# ---- chains ----


def regression_inputs(rng: np.random.Generator, rows: int, width: int) -> tuple[Any, Any]:
    x = normal(rng, rows, width)
    odds = 1 / (1 + np.exp(-x @ normal(rng, width, scale=width**-0.5)))
    return x, (rng.random(rows) < odds).astype(np.float32)


def hamiltonian_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return *regression_inputs(rng, s.rows, s.width), normal(rng, s.chains, s.width), seed()


def hamiltonian(xp: Any, s: Any) -> Function:
    """Hamiltonian Monte Carlo of a logistic regression: the mean of all draws, and how many were
    accepted."""

    def run(x: Any, y: Any, first: Any, seed: Any) -> Any:
        def density(w: Any) -> Any:
            logits = w @ x.T
            likelihood = xp.np.sum(y * logits - xp.nn.softplus(logits), axis=-1)
            return likelihood - 0.5 * xp.np.sum(w * w, axis=-1)

        gradient = xp.grad(lambda w: xp.np.sum(density(w)))

        def leap(_: Any, state: Any) -> Any:
            w, p = state
            p = p + 0.5 * s.step * gradient(w)
            w = w + s.step * p
            return w, p + 0.5 * s.step * gradient(w)

        def draw(w: Any, now: Any) -> Any:
            a, b = xp.random.split(now)
            p = xp.random.normal(a, w.shape)
            new, q = xp.lax.fori_loop(0, s.leaps, leap, (w, p))
            change = density(new) - density(w) + 0.5 * xp.np.sum(p * p - q * q, axis=-1)
            taken = xp.np.log(xp.random.uniform(b, change.shape)) < change
            w = xp.np.where(taken[:, None], new, w)
            return w, (xp.np.mean(w, axis=0), xp.np.mean(taken.astype(xp.np.float32)))

        steps = xp.random.split(key(xp, seed), s.draws)
        _, (means, rates) = xp.lax.scan(draw, first, steps)
        return xp.np.mean(means, axis=0), xp.np.mean(rates)

    return run


def metropolis_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return normal(rng, s.chains, 2), seed()


def metropolis(xp: Any, s: Any) -> Function:
    """Random walks over a density like a banana: their means and squares."""

    def density(x: Any) -> Any:
        a, b = x[:, 0], x[:, 1]
        return -0.5 * a * a - 2 * xp.np.square(b - a * a)

    def run(first: Any, seed: Any) -> Any:
        start = key(xp, seed)

        def step(i: Any, state: Any) -> Any:
            x, level = state
            a, b = xp.random.split(xp.random.fold_in(start, i))
            new = x + 0.5 * xp.random.normal(a, x.shape)
            found = density(new)
            taken = xp.np.log(xp.random.uniform(b, level.shape)) < found - level
            return xp.np.where(taken[:, None], new, x), xp.np.where(taken, found, level)

        x, level = xp.lax.fori_loop(0, s.steps, step, (first, density(first)))
        return xp.np.mean(x, axis=0), xp.np.mean(x * x, axis=0), xp.np.mean(level)

    return run


def variational_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return *regression_inputs(rng, s.rows, s.width), seed()


def variational(xp: Any, s: Any) -> Function:
    """A normal distribution fitted to the posterior of a logistic regression, by Adam."""

    def run(x: Any, y: Any, seed: Any) -> Any:
        def loss(p: Any, now: Any) -> Any:
            noise = xp.random.normal(now, (s.samples, s.width))
            w = p["mean"] + xp.np.exp(p["log_std"]) * noise
            logits = w @ x.T
            likelihood = xp.np.sum(y * logits - xp.nn.softplus(logits), axis=-1)
            prior = -0.5 * xp.np.sum(w * w, axis=-1)
            return -(xp.np.mean(likelihood + prior) + xp.np.sum(p["log_std"])) / s.rows

        def step(carry: Any, now: Any) -> Any:
            p, m, v, count = carry
            value, g = xp.value_and_grad(loss)(p, now)
            count = count + 1
            m = xp.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = xp.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
            rate = 0.02 * xp.np.sqrt(1 - 0.999**count) / (1 - 0.9**count)
            p = xp.tree.map(lambda p, m, v: p - rate * m / (xp.np.sqrt(v) + 1e-5), p, m, v)
            return (p, m, v, count), value

        zero = xp.np.zeros(s.width, xp.np.float32)
        first, none = {"mean": zero, "log_std": zero - 1}, {"mean": zero, "log_std": zero}
        count = xp.np.zeros((), xp.np.float32)
        steps = xp.random.split(key(xp, seed), s.steps)
        (p, *_), values = xp.lax.scan(step, (first, none, none, count), steps)
        return p, values

    return run


# ---- time series ----


def kalman_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    a = np.eye(s.states, dtype=np.float32) + 0.1 * np.eye(s.states, k=1, dtype=np.float32)
    h = normal(rng, s.seen, s.states)
    return 0.98 * a, h, normal(rng, s.steps, s.batch, s.seen)


def kalman(xp: Any, s: Any) -> Function:
    """Filtered states of a batch of series, and their likelihoods."""

    def run(a: Any, h: Any, series: Any) -> Any:
        unit, seen = xp.np.eye(s.states), xp.np.eye(s.seen)

        def step(carry: Any, y: Any) -> Any:
            x, p = carry
            x, p = a @ x, a @ p @ a.T + 0.1 * unit
            error, spread = y - h @ x, h @ p @ h.T + 0.5 * seen
            gain = xp.np.linalg.solve(spread, h @ p).T
            likelihood = -0.5 * (
                error @ xp.np.linalg.solve(spread, error) + xp.np.linalg.slogdet(spread)[1]
            )
            return (x + gain @ error, (unit - gain @ h) @ p), likelihood

        def series_of(ys: Any) -> Any:
            first = (xp.np.zeros(s.states, xp.np.float32), unit)
            (x, _), likelihoods = xp.lax.scan(step, first, ys)
            return x, xp.np.sum(likelihoods)

        return xp.vmap(series_of, in_axes=1)(series)

    return run


def particles_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return normal(rng, s.filters, s.steps), seed()


def particles(xp: Any, s: Any) -> Function:
    """Likelihoods of a model of volatility, by particles that are drawn anew at every step."""

    def one(series: Any, start: Any) -> Any:
        def step(carry: Any, now: Any) -> Any:
            x, (y, use) = carry, now
            a, b = xp.random.split(use)
            x = 0.95 * x + 0.3 * xp.random.normal(a, x.shape)
            logs = -0.5 * (y * y * xp.np.exp(-x) + x)
            top = xp.np.max(logs)
            weights = xp.np.exp(logs - top)
            total = xp.np.cumsum(weights)
            places = (xp.np.arange(s.count) + xp.random.uniform(b)) / s.count * total[-1]
            chosen = xp.np.searchsorted(total, places)
            x = x[xp.np.clip(chosen, 0, s.count - 1)]
            return x, top + xp.np.log(xp.np.mean(weights))

        first = xp.np.zeros(s.count, xp.np.float32)
        return xp.np.sum(xp.lax.scan(step, first, (series, xp.random.split(start, s.steps)))[1])

    def run(series: Any, seed: Any) -> Any:
        return xp.vmap(one)(series, xp.random.split(key(xp, seed), s.filters))

    return run


def markov_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    logs = normal(rng, s.states, s.states)
    logs = logs - np.log(np.exp(logs).sum(-1, keepdims=True))
    return logs.astype(np.float32), normal(rng, s.steps, s.batch, s.states)


def markov(xp: Any, s: Any) -> Function:
    """Likelihoods of a hidden Markov model, and their gradient."""

    def loss(moves: Any, seen: Any) -> Any:
        def step(alpha: Any, now: Any) -> Any:
            alpha = xp.special.logsumexp(alpha[:, :, None] + moves, axis=1)
            return alpha + now, None

        alpha, _ = xp.lax.scan(step, seen[0], seen[1:])
        return xp.np.mean(xp.special.logsumexp(alpha, axis=-1))

    return xp.value_and_grad(loss)


# ---- finance ----


def option_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return np.asarray(100, np.float32), np.asarray(0.2, np.float32), seed()


def asian_option(xp: Any, s: Any) -> Function:
    """The price of an option on the mean of a path, by random paths."""

    def run(spot: Any, volatility: Any, seed: Any) -> Any:
        start, span = key(xp, seed), 1 / s.steps

        def step(i: Any, state: Any) -> Any:
            log, total = state
            noise = xp.random.normal(xp.random.fold_in(start, i), (s.paths,))
            drift = (0.03 - 0.5 * volatility * volatility) * span
            log = log + drift + volatility * span**0.5 * noise
            return log, total + spot * xp.np.exp(log)

        zero = xp.np.zeros(s.paths, xp.np.float32)
        _, total = xp.lax.fori_loop(0, s.steps, step, (zero, zero))
        gains = xp.np.maximum(total / s.steps - 100, 0) * float(np.exp(-0.03))
        return xp.np.mean(gains), xp.np.std(gains)

    return run


def greeks_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return (
        uniform(rng, s.count, low=80, high=120),
        uniform(rng, s.count, low=80, high=120),
        uniform(rng, s.count, low=0.1, high=2),
        uniform(rng, s.count, low=0.1, high=0.4),
    )


def greeks(xp: Any, s: Any) -> Function:
    """Black and Scholes's prices, their derivatives, and the second one to the spot."""

    def price(spot: Any, strike: Any, years: Any, volatility: Any) -> Any:
        root = volatility * xp.np.sqrt(years)
        a = (xp.np.log(spot / strike) + (0.02 + 0.5 * volatility * volatility) * years) / root
        below = lambda x: 0.5 * (1 + xp.lax.erf(x * 0.5**0.5))
        return spot * below(a) - strike * xp.np.exp(-0.02 * years) * below(a - root)

    def one(*operands: Any) -> Any:
        first = xp.value_and_grad(price, argnums=(0, 2, 3))(*operands)
        return first, xp.grad(xp.grad(price))(*operands)

    return xp.vmap(one)


def torch_greeks(t: Any, s: Any) -> Function:
    def price(spot: Any, strike: Any, years: Any, volatility: Any) -> Any:
        root = volatility * years.sqrt()
        a = ((spot / strike).log() + (0.02 + 0.5 * volatility * volatility) * years) / root
        below = lambda x: 0.5 * (1 + t.torch.erf(x * 0.5**0.5))
        return spot * below(a) - strike * (-0.02 * years).exp() * below(a - root)

    func = t.torch.func

    def one(*operands: Any) -> Any:
        grads, value = func.grad_and_value(price, argnums=(0, 2, 3))(*operands)
        return (value, grads), func.grad(func.grad(price))(*operands)

    return t.compile(func.vmap(one))


# ---- clusters ----


def clusters_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    centres = normal(rng, s.clusters, s.width, scale=4.0)
    points = centres[rng.integers(0, s.clusters, s.count)] + normal(rng, s.count, s.width)
    return points, centres + normal(rng, s.clusters, s.width)


def clusters(xp: Any, s: Any) -> Function:
    """Lloyd's algorithm as it is tried out: a loop in Python around calls of the library."""

    def run(points: Any, centres: Any) -> Any:
        for _ in range(s.rounds):
            square = xp.np.sum(centres * centres, axis=1)
            nearest = xp.np.argmin(square - 2 * points @ centres.T, axis=1)
            member = xp.nn.one_hot(nearest, s.clusters)
            centres = (member.T @ points) / xp.np.maximum(xp.np.sum(member, 0), 1)[:, None]
        return centres

    return run


def torch_clusters(t: Any, s: Any) -> Function:
    def run(points: Any, centres: Any) -> Any:
        for _ in range(s.rounds):
            nearest = ((centres * centres).sum(1) - 2 * points @ centres.T).argmin(1)
            member = t.F.one_hot(nearest, s.clusters).float()
            centres = (member.T @ points) / member.sum(0).clamp(min=1)[:, None]
        return centres

    return run


PROGRAMS = (
    Program(
        "k-means", "clusters", "10 rounds over 131072 points of 32 numbers, without jit",
        clusters, clusters_inputs, {"count": 131072, "width": 32, "clusters": 64, "rounds": 10},
        {"count": 40, "width": 3, "clusters": 4, "rounds": 3}, jitted=False, precision="highest",
        torch=torch_clusters,
    ),
    Program(
        "hamiltonian", "Bayesian inference", "Hamiltonian Monte Carlo with 2048 chains",
        hamiltonian, hamiltonian_inputs,
        {"chains": 2048, "rows": 256, "width": 32, "leaps": 10, "draws": 50, "step": 0.05},
        {"chains": 3, "rows": 8, "width": 3, "leaps": 3, "draws": 4}, 5e-2, precision="highest",
    ),
    Program(
        "metropolis", "Bayesian inference", "65536 random walks of 500 steps",
        metropolis, metropolis_inputs, {"chains": 65536, "steps": 500}, {"chains": 5, "steps": 6},
        2e-2,
    ),
    Program(
        "variational", "Bayesian inference", "200 steps of variational inference, Adam in a scan",
        variational, variational_inputs,
        {"rows": 4096, "width": 64, "samples": 8, "steps": 200},
        {"rows": 9, "width": 3, "samples": 2, "steps": 4}, 1e-2, precision="highest",
    ),
    Program(
        "kalman", "Bayesian inference", "Kalman filters of 1024 series of 256 steps, vmap of scan",
        kalman, kalman_inputs, {"batch": 1024, "steps": 256, "states": 4, "seen": 2},
        {"batch": 3, "steps": 5, "states": 4, "seen": 2}, 1e-2, precision="highest",
    ),
    Program(
        "particle-filter", "Bayesian inference", "64 filters of 1024 particles for 100 steps",
        particles, particles_inputs, {"filters": 64, "count": 1024, "steps": 100},
        {"filters": 2, "count": 8, "steps": 4}, 2e-2,
    ),
    Program(
        "hidden-markov", "Bayesian inference", "a hidden Markov model of 64 states, gradient",
        markov, markov_inputs, {"batch": 128, "steps": 256, "states": 64},
        {"batch": 2, "steps": 5, "states": 4}, 1e-2,
    ),
    Program(
        "asian-option", "finance", "2^20 random paths of 64 steps",
        asian_option, option_inputs, {"paths": 1 << 20, "steps": 64}, {"paths": 64, "steps": 4},
    ),
    Program(
        "greeks", "finance", "derivatives of 2^20 prices of options, vmap of grad",
        greeks, greeks_inputs, {"count": 1 << 20}, {"count": 16}, 2e-3, torch=torch_greeks,
    ),
)  # fmt: skip
