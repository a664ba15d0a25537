"""Programs of FFT, linear algebra, complex numbers and sums by segment: this library and JAX.

    python benchmarks/numeric_programs.py --out benchmarks/results

One source for both. Times are medians of streams of calls; values are held to each other. Where a
program sums by segment, ours runs twice: in the order of the rows, as by default, and with
`deterministic=False`, as JAX does. Writes numeric-programs-DEVICE.json and a table.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

import jax
import jax.scipy.linalg
import numpy as np
import torch
from operators import per_call
from results_file import Results, parser, short

import genesis_fn as gf
from genesis_fn.core.array import from_numpy

OURS = SimpleNamespace(
    np=gf.numpy, lax=gf.lax, grad=gf.grad, value_and_grad=gf.value_and_grad, jit=gf.jit,
    segment_sum=gf.ops.segment_sum,
    solve_triangular=lambda a, b: gf.lax.linalg.triangular_solve(
        a, b, left_side=True, lower=True
    ),
)  # fmt: skip
JAX = SimpleNamespace(
    np=jax.numpy, lax=jax.lax, grad=jax.grad, value_and_grad=jax.value_and_grad, jit=jax.jit,
    segment_sum=jax.ops.segment_sum,
    solve_triangular=lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """`make(module)` is a function of the operands; `bound` is how far results may be apart, over
    the largest number."""

    name: str
    operands: Callable[[np.random.Generator], list[np.ndarray]]
    make: Callable[[Any], Callable[..., Any]]
    bound: float = 1e-4
    sums_by_segment: bool = False


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Float32 numbers."""
    return rng.standard_normal(shape, np.float32)


def fft_filter(m: Any) -> Callable[..., Any]:
    """Low-pass filtering of a stack of images."""
    return lambda x, h: m.np.fft.ifft2(m.np.fft.fft2(x) * h)


def iteration(m: Any) -> Callable[..., Any]:
    """The magnitude after 50 steps of z = z^2 + c."""

    def run(c: Any) -> Any:
        z = m.lax.fori_loop(0, 50, lambda i, z: z * z * 0.5 + c, c * 0)
        return m.np.abs(z)

    return run


def gaussian_process(m: Any) -> Callable[..., Any]:
    """The log marginal likelihood of a Gaussian process, and its gradient."""

    def likelihood(p: Any, x: Any, y: Any) -> Any:
        scale, noise, amplitude = p[0], p[1], p[2]
        square = m.np.sum(x * x, -1)
        cross = m.np.matmul(x, x.T, precision="highest")
        distance = square[:, None] + square[None, :] - 2 * cross
        kernel = amplitude * m.np.exp(-distance / (2 * scale * scale))
        lower = m.np.linalg.cholesky(kernel + noise * m.np.eye(x.shape[0], dtype=x.dtype))
        z = m.solve_triangular(lower, y[:, None])
        return -0.5 * m.np.sum(z * z) - m.np.sum(m.np.log(m.np.diagonal(lower)))

    return m.value_and_grad(likelihood)


def spectra(m: Any) -> Callable[..., Any]:
    """Eigenvalues, singular values and R of three matrices."""

    def run(a: Any, b: Any) -> Any:
        w, v = m.np.linalg.eigh(a)
        u, s, vh = m.np.linalg.svd(b, full_matrices=False)
        q, r = m.np.linalg.qr(b)
        # What does not depend on signs.
        return w, s, m.np.abs(r), m.np.abs(v[:, 0]), m.np.abs(u[:, 0] * vh[0])

    return run


def divisions(m: Any) -> Callable[..., Any]:
    """A chain with 24 divisions, and its derivative."""

    def chain(x: Any) -> Any:
        for k in range(1, 25):
            x = x / (1 + k * 0.01 * x * x) + 0.1
        return m.np.sum(x)

    return m.value_and_grad(chain)


def graph_convolution(m: Any) -> Callable[..., Any]:
    """A layer of messages over edges, its loss and gradients."""

    def loss(w: Any, x: Any, source: Any, target: Any) -> Any:
        h = m.np.matmul(x, w)
        summed = m.segment_sum(h[source], target, num_segments=x.shape[0])
        return m.np.mean(m.np.tanh(summed) ** 2)

    return m.value_and_grad(loss)


def positive(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Well conditioned symmetric matrices."""
    x = normal(rng, *shape)
    return (x @ np.swapaxes(x, -1, -2) / shape[-1] + 2 * np.eye(shape[-1])).astype(np.float32)


def complexes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Complex64 numbers."""
    return normal(rng, *shape) + 1j * normal(rng, *shape)


def bounded(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Complex64 numbers of the unit disc."""
    z = complexes(rng, *shape)
    return (z / (1 + np.abs(z))).astype(np.complex64)


PROGRAMS = (
    Program(
        "FFT filter 8 x 2048^2",
        lambda rng: [complexes(rng, 8, 2048, 2048), complexes(rng, 2048, 2048)],
        fft_filter,
    ),
    Program(
        "complex iteration 2048^2, 50 steps",
        lambda rng: [0.4 * bounded(rng, 2048, 2048)],
        iteration,
        1e-3,
    ),
    Program(
        "Gaussian process of 2048 points, gradient",
        lambda rng: [
            np.array([1.0, 0.5, 1.0], np.float32),
            normal(rng, 2048, 4),
            normal(rng, 2048),
        ],
        gaussian_process,
        2e-3,
    ),
    Program(
        "4096 solves of 32 x 32",
        lambda rng: [positive(rng, 4096, 32, 32), normal(rng, 4096, 32, 1)],
        lambda m: m.np.linalg.solve,
    ),
    Program(
        "eigh + svd + qr of 512",
        lambda rng: [positive(rng, 512, 512), normal(rng, 512, 512)],
        spectra,
        1e-2,
    ),
    Program("24 divisions of 2^22, gradient", lambda rng: [normal(rng, 1 << 22)], divisions),
    Program(
        "graph convolution, 2^21 edges, 2^18 nodes of 64",
        lambda rng: [
            normal(rng, 64, 64) * 0.1,
            normal(rng, 1 << 18, 64),
            rng.integers(0, 1 << 18, 1 << 21, np.int32),
            rng.integers(0, 1 << 18, 1 << 21, np.int32),
        ],
        graph_convolution,
        2e-2,
        sums_by_segment=True,
    ),
)


def flat(tree: Any) -> list[Any]:
    """The arrays of a result."""
    return [y for x in tree for y in flat(x)] if isinstance(tree, (tuple, list)) else [tree]


def measure(program: Program) -> dict[str, Any]:
    """One row of the table."""
    values = program.operands(np.random.default_rng(0))
    here, there = [from_numpy(v) for v in values], [jax.device_put(v) for v in values]
    ours, theirs = gf.jit(program.make(OURS)), jax.jit(program.make(JAX))
    mine = [np.asarray(y) for y in flat(ours(*here))]
    want = [np.asarray(y) for y in flat(theirs(*there))]
    off = max(float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-30)) for x, y in zip(mine, want))
    wait = lambda out: flat(out)[0].block_until_ready()
    result: dict[str, Any] = {"off": off, "agrees": off < program.bound, "seconds": {}}
    result["seconds"]["genesis_fn"] = per_call(lambda: ours(*here), wait)
    if program.sums_by_segment:
        with gf.deterministic(False):
            free = gf.jit(program.make(OURS))
            result["seconds"]["deterministic=False"] = per_call(lambda: free(*here), wait)
    result["seconds"]["jax"] = per_call(lambda: theirs(*there), wait)
    profile = gf.profiler.profile(ours)(*here)
    result["slowest"] = [(line.primitive, line.calls, line.seconds) for line in profile.lines[:8]]
    gf.clear_caches()
    jax.clear_caches()
    return result


def table(found: dict[str, Any]) -> str:
    """The rows as Markdown, in milliseconds."""
    lines = ["| program | genesis_fn | JAX | over JAX |", "| --- | --- | --- | --- |"]
    for name, row in found.items():
        t = row["seconds"]
        wrong = "" if row["agrees"] else f" (APART by {row['off']:.1e})"
        for system in [s for s in t if s != "jax"]:
            label = name if system == "genesis_fn" else f"{name}, {system}"
            ms = [f"{x * 1e3:.3f}" for x in (t[system], t["jax"])]
            lines.append(f"| {label}{wrong} | {' | '.join(ms)} | {t['jax'] / t[system]:.2f} |")
    return "\n".join(lines)


def main() -> int:
    """Measure what is missing, write and print the table; 1 if a result was wrong."""
    options = parser(__doc__)
    options.add_argument("--only", default="", help="programs whose names contain this")
    args = options.parse_args()
    name = torch.cuda.get_device_name()
    results = Results(Path(args.out) / f"numeric-programs-{short(name)}", args.redo)
    for program in PROGRAMS:
        if program.name not in results.rows and args.only in program.name:
            results.measure(program.name, lambda program=program: measure(program))
    found = results.in_order([p.name for p in PROGRAMS])
    results.write_table(f"Numeric programs, {name}; milliseconds", table(found))
    return int(not all(r["agrees"] for r in found.values()))


if __name__ == "__main__":
    sys.exit(main())
