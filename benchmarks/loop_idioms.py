"""Loops as people write them with `.at[]` and counters: this library and JAX.

    python benchmarks/loop_idioms.py --out benchmarks/results [--only ring]

One source for both. Times are medians of streams of calls, first calls those of one process with no
compiled code on disk; values are held to each other. Writes loop-idioms-DEVICE.json and a table.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
os.environ["GENESIS_CACHE_DIR"] = tempfile.mkdtemp()

import jax
import numpy as np
from operators import per_call
from results_file import Results, parser, short

import genesis_fn as gf

NAMES = "lax", "vmap", "grad", "jit", "tree", "device_put", "block_until_ready"
OURS, JAX = [
    SimpleNamespace(np=m.numpy, **{name: getattr(m, name) for name in NAMES}) for m in (gf, jax)
]


@dataclass(frozen=True)
class Program:
    """`make(module)` is a function of `operands`; `bound` is how far results may be apart, over the
    largest number."""

    name: str
    make: Callable[[Any], Callable[..., Any]]
    operands: tuple[np.ndarray, ...]
    bound: float = 1e-4


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def below(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, n, shape).astype(np.int32)


# ---- arrays that steps write in order ----


def trajectory(m: Any) -> Callable[..., Any]:
    """A damped pendulum that is driven, all of its states."""

    def run(x: Any) -> Any:
        def step(i: Any, out: Any) -> Any:
            a, v = out[i]
            force = m.np.sin(0.01 * i) - m.np.sin(a) - 0.2 * v
            return out.at[i + 1].set(m.np.stack([a + 0.01 * v, v + 0.01 * force]))

        return m.lax.fori_loop(0, 500, step, m.np.zeros((501, 2), "float32").at[0].set(x))

    return run


def sweeps(m: Any) -> Callable[..., Any]:
    """Gauss-Seidel sweeps over a line."""

    def run(u: Any, b: Any) -> Any:
        relax = lambda i, u: u.at[i].set(0.5 * (u[i - 1] + u[i + 1] - b[i]))
        sweep = lambda _, u: m.lax.fori_loop(1, u.shape[0] - 1, relax, u)
        return m.lax.fori_loop(0, 4, sweep, u)

    return run


def tridiagonal(m: Any) -> Callable[..., Any]:
    """The Thomas algorithm."""

    def run(a: Any, b: Any, c: Any, d: Any) -> Any:
        n, zeros = d.shape[0], m.np.zeros_like(d)

        def ahead(i: Any, state: Any) -> Any:
            p, q = state
            w = b[i] - a[i] * p[i - 1]
            return p.at[i].set(c[i] / w), q.at[i].set((d[i] - a[i] * q[i - 1]) / w)

        first = zeros.at[0].set(c[0] / b[0]), zeros.at[0].set(d[0] / b[0])
        p, q = m.lax.fori_loop(1, n, ahead, first)
        back = lambda k, x: x.at[n - 2 - k].set(q[n - 2 - k] - p[n - 2 - k] * x[n - 1 - k])
        return m.lax.fori_loop(0, n - 1, back, zeros.at[n - 1].set(q[n - 1]))

    return run


def trajectory_gradient(m: Any) -> Callable[..., Any]:
    def loss(x: Any, ts: Any) -> Any:
        out = m.np.zeros((101, *x.shape), "float32").at[0].set(x)
        step = lambda i, out: out.at[i + 1].set(out[i] + 0.01 * m.np.sin(out[i] * ts[i]))
        return m.np.sum(m.lax.fori_loop(0, 100, step, out) ** 2)

    return m.grad(loss, argnums=(0, 1))


# ---- tables that each example changes ----


def learner(m: Any) -> Callable[..., Any]:
    """Tabular Q-learning on walks."""

    def one(q: Any, s: Any, goes: Any, worth: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            (q, s), (go, reward) = carry, x
            a = m.np.argmax(q[s] + 0.1 * reward)
            after = (s * 2 + a + go) % q.shape[0]
            error = reward + 0.9 * m.np.max(q[after]) - q[s, a]
            return (q.at[s, a].add(0.5 * error), after), error

        return m.lax.scan(step, (q, s), (goes, worth))

    return m.vmap(one)


def bandit(m: Any) -> Callable[..., Any]:
    def one(counts: Any, sums: Any, rewards: Any) -> Any:
        def step(carry: Any, reward: Any) -> Any:
            counts, sums = carry
            arm = m.np.argmax(sums / counts + 1.0 / m.np.sqrt(counts))
            return (counts.at[arm].add(1.0), sums.at[arm].add(reward[arm])), arm

        return m.lax.scan(step, (counts, sums), rewards)

    return m.vmap(one)


def ring(m: Any) -> Callable[..., Any]:
    """A delay line."""

    def one(buffer: Any, xs: Any) -> Any:
        n = buffer.shape[0]

        def step(carry: Any, x: Any) -> Any:
            buffer, i = carry
            y = x + 0.5 * buffer[i % n]
            return (buffer.at[i % n].set(y), i + 1), y

        return m.lax.scan(step, (buffer, 0), xs)

    return m.vmap(one)


def until_zero(m: Any) -> Callable[..., Any]:
    """Walks that write down where they have been, until they come to 0."""

    def one(leads: Any, s: Any) -> Any:
        going = lambda c: (c[0] > 0) & (c[1] < 32)
        step = lambda c: (leads[c[0]], c[1] + 1, c[2].at[c[1]].set(c[0]))
        return m.lax.while_loop(going, step, (s, 0, m.np.zeros(32, "int32")))

    return m.vmap(one)


def edit_distance(m: Any) -> Callable[..., Any]:
    def one(a: Any, b: Any) -> Any:
        def row(before: Any, x: Any) -> Any:
            def column(left: Any, at: Any) -> Any:
                above, corner, y = at
                least = m.np.minimum(m.np.minimum(above, left) + 1, corner + (y != x))
                return least, least

            first = before[0] + 1
            _, rest = m.lax.scan(column, first, (before[1:], before[:-1], b))
            return m.np.concatenate([first[None], rest]), None

        return m.lax.scan(row, m.np.arange(b.shape[0] + 1, dtype="int32"), a)[0][-1]

    return m.vmap(one)


# ---- what steps only add to ----


def counts(m: Any) -> Callable[..., Any]:
    step = lambda found, word: (found.at[word].add(1.0), None)
    return lambda found, words: m.lax.scan(step, found, words)[0]


def embedded(m: Any) -> Callable[..., Any]:
    """The gradient of a recurrent network that looks up rows of a table."""

    def loss(table: Any, h: Any, w: Any, words: Any) -> Any:
        step = lambda h, word: (m.np.tanh(h @ w + table[word]), None)
        return m.np.mean(m.lax.scan(step, h, words)[0] ** 2)

    return m.grad(loss, argnums=(0, 2))


MANY = 4096
PROGRAMS = [
    Program("trajectory of a pendulum, 500 steps", trajectory, (normal(2),)),
    Program(
        "trajectories of 4096 pendulums, 500 steps",
        lambda m: m.vmap(trajectory(m)),
        (normal(MANY, 2),),
    ),
    Program("4 Gauss-Seidel sweeps of 256", sweeps, (normal(256), 0.01 * normal(256, seed=1))),
    Program(
        "4 Gauss-Seidel sweeps of 1024 x 256",
        lambda m: m.vmap(sweeps(m)),
        (normal(1024, 256), 0.01 * normal(1024, 256, seed=1)),
    ),
    Program(
        "Thomas algorithm, 4096 x 128",
        lambda m: m.vmap(tridiagonal(m)),
        (
            0.1 * normal(MANY, 128),
            4 + 0.1 * normal(MANY, 128, seed=1),
            0.1 * normal(MANY, 128, seed=2),
            normal(MANY, 128, seed=3),
        ),
    ),
    Program(
        "gradient of 1024 trajectories, 100 steps",
        trajectory_gradient,
        (normal(1024), normal(100, 1024, seed=1)),
    ),
    Program(
        "Q-learning of 4096, 16 states, 4 actions, 200 steps",
        learner,
        (
            normal(MANY, 16, 4),
            below(16, MANY),
            below(3, MANY, 200, seed=1),
            normal(MANY, 200, seed=2),
        ),
    ),
    Program(
        "bandits of 4096, 10 arms, 200 steps",
        bandit,
        (np.ones((MANY, 10), np.float32), normal(MANY, 10), normal(MANY, 200, 10, seed=1)),
    ),
    Program("delay lines of 4096 x 32, 300 steps", ring, (normal(MANY, 32), normal(MANY, 300))),
    Program("walks of 4096 that end", until_zero, (below(16, MANY, 16), below(16, MANY, seed=1))),
    Program(
        "edit distances of 512 pairs of 48",
        edit_distance,
        (below(4, 512, 48), below(4, 512, 48, seed=1)),
    ),
    Program("counts of 20,000 words", counts, (np.zeros(1000, np.float32), below(1000, 20_000))),
    Program(
        "counts of 1024 x 200 words",
        lambda m: m.vmap(counts(m)),
        (np.zeros((1024, 100), np.float32), below(100, 1024, 200)),
    ),
    Program(
        "gradient of a recurrent network with a table",
        embedded,
        (
            0.1 * normal(5000, 64),
            normal(128, 64, seed=1),
            0.1 * normal(64, 64, seed=2),
            below(5000, 50, 128),
        ),
        bound=2e-2,
    ),
]


def side(m: Any, program: Program) -> tuple[float, float, list[np.ndarray]]:
    """(seconds of a call, of the first one, results) with one library."""
    operands, f = [m.device_put(x) for x in program.operands], m.jit(program.make(m))
    m.block_until_ready(operands)
    began = time.perf_counter()
    results = m.block_until_ready(f(*operands))
    first = time.perf_counter() - began
    return (
        per_call(lambda: f(*operands), m.block_until_ready),
        first,
        [np.asarray(x) for x in m.tree.leaves(results)],
    )


def measure(program: Program) -> dict[str, Any]:
    """One row of the table."""
    ours, first, mine = side(OURS, program)
    theirs, first_of_jax, want = side(JAX, program)
    off = max(
        float(np.abs(x - y.astype(np.float64)).max() / max(np.abs(y).max(), 1e-30))
        for x, y in zip(mine, want, strict=True)
    )
    gf.clear_caches()
    jax.clear_caches()
    return {
        "off": off, "agrees": off < program.bound,
        "seconds": {"genesis_fn": ours, "jax": theirs},
        "first": {"genesis_fn": first, "jax": first_of_jax},
    }  # fmt: skip


def table(found: dict[str, Any]) -> str:
    """The rows as Markdown, in milliseconds; first calls in seconds."""
    lines = [
        "| program | genesis_fn | JAX | over JAX | first call, s (genesis_fn, JAX) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, row in found.items():
        wrong = "" if row["agrees"] else f" (APART by {row['off']:.1e})"
        ours, theirs = row["seconds"]["genesis_fn"], row["seconds"]["jax"]
        first = ", ".join([f"{x:.2f}" for x in row["first"].values()])
        lines.append(
            f"| {name}{wrong} | {ours * 1e3:.3f} | {theirs * 1e3:.3f} | {theirs / ours:.1f} | "
            f"{first} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure what is missing, write and print the table; 1 if a result was wrong."""
    options = parser(__doc__)
    options.add_argument("--only", default="", help="programs whose names contain this")
    args = options.parse_args()
    name = jax.devices()[0].device_kind
    results = Results(Path(args.out) / f"loop-idioms-{short(name)}", args.redo)
    # Start both libraries, their devices and the processes that compile.
    for m in (OURS, JAX):
        m.block_until_ready(m.jit(m.np.cos)(m.device_put(normal(64))))
    for program in PROGRAMS:
        if program.name not in results.rows and args.only in program.name:
            results.measure(program.name, lambda program=program: measure(program))
    found = results.in_order([p.name for p in PROGRAMS])
    results.write_table(f"Loops with `.at[]` and counters, {name}; milliseconds", table(found))
    return int(not all(r["agrees"] for r in found.values()))


if __name__ == "__main__":
    sys.exit(main())
