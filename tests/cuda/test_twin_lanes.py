"""Loops whose rows have matrices: values with two lanes, along two axes of a program's tile."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import programs
import pytest
from programs import run

import genesis_fn as g
from tests.support.fuzz_loops import LoopCase

NAMES = "lax", "random", "vmap", "grad", "nn", "tree", "value_and_grad"
OURS, JAX = [
    SimpleNamespace(np=m.numpy, logsumexp=logsumexp, **{name: getattr(m, name) for name in NAMES})
    for m, logsumexp in ((g, g.nn.logsumexp), (jax, jax.scipy.special.logsumexp))
]


def normal(*shape: int, seed: int = 0, scale: float = 0.5) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


# ---- programs, of a library's names ----


def markov(xp: Any) -> Callable:
    """The likelihood of a hidden Markov model: states before and after a step."""

    def loss(moves: Any, seen: Any) -> Any:
        def step(alpha: Any, now: Any) -> Any:
            return xp.logsumexp(alpha[:, :, None] + moves, axis=1) + now, None

        alpha, _ = xp.lax.scan(step, seen[0], seen[1:])
        return xp.np.mean(xp.logsumexp(alpha, axis=-1))

    return loss


def markov_gradient(xp: Any) -> Callable:
    return lambda moves, seen: xp.value_and_grad(markov(xp), argnums=(0, 1))(moves, seen)


def viterbi(xp: Any) -> Callable:
    """The best states of a path, forward with their positions and back along them."""

    def run(moves: Any, seen: Any) -> Any:
        def forward(score: Any, now: Any) -> Any:
            each = score[:, :, None] + moves
            return xp.np.max(each, axis=1) + now, xp.np.argmax(each, axis=1)

        return xp.lax.scan(forward, seen[0], seen[1:])

    return run


def known(xp: Any) -> Callable:
    """A matrix that its index gives, whatever its axes were before, beside lanes."""

    def run(x: Any) -> Any:
        table = xp.np.arange(400.0).reshape(20, 20) * 0.01
        step = lambda _, c: xp.logsumexp(c[:, :, None] + table, axis=1) - 3.0
        return xp.lax.fori_loop(0, 4, step, x)

    return run


def fast_weights(xp: Any) -> Callable:
    """A matrix of each row that outer products change and vectors read, from both sides."""

    def run(q: Any, k: Any, v: Any) -> Any:
        def step(state: Any, now: Any) -> Any:
            q, k, v = now
            state = 0.9 * state + k[:, :, None] * v[:, None, :]
            back = xp.np.einsum("bij,bj->bi", state, v)
            return state, (xp.np.einsum("bi,bij->bj", q, state), back)

        start = xp.np.zeros((q.shape[1], q.shape[2], v.shape[2]))
        return xp.lax.scan(step, start, (q, k, v))

    return run


def delta_rule(xp: Any) -> Callable:
    """Fast weights that take back what a key has read before, and their gradients."""

    def loss(q: Any, k: Any, v: Any) -> Any:
        def step(state: Any, now: Any) -> Any:
            q, k, v = now
            old = xp.np.sum(state * k[:, :, None], axis=1)
            state = state + k[:, :, None] * (v - old)[:, None, :]
            return state, xp.np.sum(state * q[:, :, None], axis=1)

        start = xp.np.zeros((q.shape[1], q.shape[2], v.shape[2]))
        return xp.np.sum(xp.np.sin(xp.lax.scan(step, start, (q, k, v))[1]))

    return xp.grad(loss, argnums=(0, 1, 2))


def symmetric(xp: Any) -> Callable:
    """A matrix that is added to itself turned."""

    def run(x: Any) -> Any:
        def step(_: Any, c: Any) -> Any:
            return 0.4 * (c + xp.np.swapaxes(c, 1, 2)) + xp.np.tanh(c) * 0.1

        return xp.lax.fori_loop(0, 3, step, x)

    return run


def power_iteration(xp: Any) -> Callable:
    """Products of a matrix of each row and a vector, from the left and from the right."""

    def run(a: Any, x: Any) -> Any:
        def step(_: Any, c: Any) -> Any:
            x = xp.np.einsum("ij,j->i", a, c)
            x = xp.np.einsum("ji,j->i", a, x)
            return x / xp.np.sqrt(xp.np.sum(x * x) + 1e-6)

        return xp.lax.fori_loop(0, 4, step, x)

    return lambda a, x: xp.vmap(run)(a, x)


def power_gradient(xp: Any) -> Callable:
    loss = lambda a, x: xp.np.sum(xp.np.sin(power_iteration(xp)(a, x)))
    return xp.grad(loss, argnums=(0, 1))


def bodies(xp: Any) -> Callable:
    """Particles of each row that attract each other, in three dimensions."""

    def run(x: Any, v: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            x, v = c
            apart = x[None, :, :] - x[:, None, :]
            near = xp.np.sum(apart * apart, axis=-1) + 0.1
            v = v + 0.01 * xp.np.sum(apart / near[:, :, None] ** 1.5, axis=1)
            return (x + 0.01 * v, v), xp.np.sum(v * v)

        return xp.lax.scan(step, (x, v), None, length=4)

    return xp.vmap(run)


def bodies_gradient(xp: Any) -> Callable:
    def loss(x: Any, v: Any) -> Any:
        (x, _), energies = bodies(xp)(x, v)
        return xp.np.sum(xp.np.sin(x)) + xp.np.sum(energies)

    return xp.grad(loss, argnums=(0, 1))


def sinkhorn(xp: Any) -> Callable:
    """Balanced until every example has converged: a while loop, masses of two lengths."""

    def run(cost: Any, a: Any, b: Any) -> Any:
        def going(c: Any) -> Any:
            return (c[2] > 1e-4) & (c[3] < 20)

        def step(c: Any) -> Any:
            f, h, _, count = c
            new = a - xp.logsumexp(h[None, :] - cost, axis=1)
            h = b - xp.logsumexp(new[:, None] - cost, axis=0)
            return new, h, xp.np.max(xp.np.abs(new - f)), count + 1

        f, h, _, count = xp.lax.while_loop(going, step, (a * 0.0, b * 0.0, 1.0, 0))
        return f, h, count

    return xp.vmap(run, in_axes=(0, 0, 0))


def best(xp: Any) -> Callable:
    """The first of equal extremes, and the first NaN, of rows whose elements are lanes."""

    def run(x: Any) -> Any:
        def step(c: Any, now: Any) -> Any:
            both = xp.np.maximum(c * 0.5, now)
            return both, (xp.np.argmax(both, axis=1), xp.np.argmin(now, axis=1))

        return xp.lax.scan(step, x[0], x)

    return run


def ties() -> np.ndarray:
    x = np.round(normal(4, 9, 80, seed=3) * 4) / 4
    x[1, 2, 5] = x[2, 3, 20] = x[2, 3, 7] = np.nan
    return x


PROGRAMS: dict[str, tuple[Callable, tuple[Any, ...], int, float]] = {
    "markov": (markov, (normal(20, 20), normal(6, 5, 20, seed=1)), 1, 2e-5),
    "markov-16": (markov, (normal(16, 16), normal(6, 37, 16, seed=1)), 1, 2e-5),
    "markov-gradient": (markov_gradient, (normal(20, 20), normal(6, 5, 20, seed=1)), 2, 5e-5),
    "viterbi": (viterbi, (normal(12, 12), normal(6, 5, 12, seed=1)), 1, 2e-5),
    "known": (known, (normal(5, 20),), 1, 2e-5),
    "fast-weights": (
        fast_weights,
        (normal(5, 7, 16), normal(5, 7, 16, seed=1), normal(5, 7, 24, seed=2)), 1, 2e-5,
    ),
    "delta-rule": (
        delta_rule,
        (normal(4, 3, 12), normal(4, 3, 12, seed=1), normal(4, 3, 8, seed=2)), 2, 5e-5,
    ),
    "symmetric": (symmetric, (normal(3, 18, 18),), 1, 2e-5),
    "power-iteration": (power_iteration, (normal(5, 16, 16), normal(5, 16, seed=1)), 1, 5e-5),
    "power-iteration-gradient": (
        power_gradient, (normal(5, 16, 16), normal(5, 16, seed=1)), 2, 1e-4,
    ),
    "bodies": (bodies, (normal(5, 12, 3), normal(5, 12, 3, seed=1)), 1, 5e-5),
    "bodies-gradient": (bodies_gradient, (normal(3, 9, 3), normal(3, 9, 3, seed=1)), 2, 1e-4),
    "sinkhorn": (
        sinkhorn,
        (np.abs(normal(6, 12, 20)), normal(6, 12, seed=1), normal(6, 20, seed=2)), 1, 5e-5,
    ),
    "best": (best, (ties(),), 1, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, loops: list[Any]) -> None:
    make, args, count, tolerance = PROGRAMS[name]
    with g.default_matmul_precision("highest"):
        got = run(make(OURS), *args)
    with jax.default_matmul_precision("highest"):
        want = [np.asarray(x) for x in jax.tree.leaves(make(JAX)(*args))]
    assert len(loops) == count and all([nest.rows > 1 for nest in loops])
    assert name == "best" or any([nest.lanes.twins for nest in loops])
    for x, y in zip(got, want, strict=True):
        x, y = x.astype(np.float64), y.astype(np.float64)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * np.nanmax(np.abs(y)))


@pytest.mark.parametrize(
    "seed", [1, 4, 7, 21, *[pytest.param(n, marks=pytest.mark.slow) for n in range(30, 60)]]
)
def test_random_loops_of_pairs(seed: int) -> None:
    """Against the CPU: XLA's makes NaN of some of their gradients."""
    case = LoopCase(seed, pairs=True)
    with g.default_matmul_precision("highest"):
        got = run(case.function(OURS), *case.inputs)
        want = programs.on_cpu(*programs.traced(case.function(OURS), *case.inputs))
    for x, y in zip(got, want, strict=True):
        scale = max(1.0, float(np.abs(y).max()))
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-4 * scale)
