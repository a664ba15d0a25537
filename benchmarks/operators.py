"""Operators on one device: torch eager, torch.compile, JAX and this library's jit, in one run.

    python benchmarks/operators.py --out benchmarks/results --budget 120 [--dtype bfloat16]

Times are medians of streams of calls, what a caller pays per call: on small shapes the host's
time, on large ones the device's. Every result is held to torch's. Rows are written as they come,
and those already in the file are skipped, so that an interrupted run goes on where it stopped;
`--redo` starts over. Writes operators-DTYPE-DEVICE.json, a Markdown table and a chart.
Float32 products use TF32 everywhere.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # one kernel at a time is wanted

import jax
import numpy as np
import torch
import torch.nn.functional as F
from results_file import Results, parser, short

import genesis_fn as gf
from genesis_fn.core import dtypes
from genesis_fn.core.array import from_numpy

SYSTEMS = ("torch", "torch.compile", "jax", "genesis_fn")
SAMPLES, SAMPLE_SECONDS = 10, 4e-3
# Speed of Genesis, the object-oriented framework, over PyTorch, as it was published.
PUBLISHED = {
    "add 4096x4096": 1.02, "matmul 4096x4096 4096x4096": 0.95, "sum axis 1 4096x4096": 0.87,
    "softmax 8192x8192": 1.15, "layer_norm 4096x4096": 1.08, "attention 32x1024x1024": 0.92,
    "cat axis 0 1024x1024": 0.02, "logsumexp 4096x4096": 0.02, "broadcast 1024x1024": 0.04,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """`ours` is a function of (numpy module, nn module, arrays), for JAX and this library alike."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    torch: Callable
    ours: Callable
    operations: float = 0.0


def size(shape: tuple[int, ...]) -> str:
    """1024x768."""
    return "x".join(map(str, shape))


def rows() -> list[Row]:
    """The headline shapes first, then elementwise, joins, reductions and products."""
    found: list[Row] = []

    def row(name: str, f: Callable, g: Callable, *shapes: tuple, operations: float = 0.0) -> None:
        found.append(
            Row(f"{name} {' '.join(map(size, dict.fromkeys(shapes)))}", shapes, f, g, operations)
        )

    def product(m: int, k: int, n: int) -> None:
        found.append(
            Row(
                f"matmul {m}x{k} {k}x{n}",
                ((m, k), (k, n)),
                torch.matmul,
                lambda np, nn, x, y: x @ y,
                2.0 * m * k * n,
            )
        )

    big = (4096, 4096)
    row("add", torch.add, lambda np, nn, x, y: x + y, big, big)
    product(4096, 4096, 4096)
    row(
        "softmax", lambda x: torch.softmax(x, -1), lambda np, nn, x: nn.softmax(x, -1), (8192, 8192)
    )
    row(
        "layer_norm",
        lambda x: F.layer_norm(x, x.shape[-1:]),
        lambda np, nn, x: nn.standardize(x, -1, epsilon=1e-5),
        big,
    )
    heads = (32, 1024, 16, 64)
    found.append(
        Row(
            "attention 32x1024x1024",
            (heads,) * 3,
            lambda q, k, v: F.scaled_dot_product_attention(
                *[x.transpose(1, 2) for x in (q, k, v)]
            ).transpose(1, 2),
            lambda np, nn, q, k, v: nn.dot_product_attention(q, k, v),
            4.0 * 32 * 16 * 1024**2 * 64,
        )
    )
    row("logsumexp", lambda x: torch.logsumexp(x, -1), lambda np, nn, x: nn.logsumexp(x, -1), big)
    for axis in (0, 1):
        row(f"sum axis {axis}", lambda x, a=axis: x.sum(a), lambda np, nn, x, a=axis: x.sum(a), big)
        row(
            f"max axis {axis}", lambda x, a=axis: x.amax(a), lambda np, nn, x, a=axis: x.max(a), big
        )
    row("mean all", lambda x: x.mean(), lambda np, nn, x: x.mean(), big)
    for shape in ((256, 256), (1024, 1024), (4096, 1024)):
        for axis in (0, 1):
            row(
                f"cat axis {axis}",
                lambda x, y, z, a=axis: torch.cat([x, y, z], a),
                lambda np, nn, x, y, z, a=axis: np.concatenate([x, y, z], a),
                shape,
                shape,
                shape,
            )
        row(
            "stack axis 1",
            lambda x, y: torch.stack([x, y], 1),
            lambda np, nn, x, y: np.stack([x, y], 1),
            shape,
            shape,
        )
        row(
            "broadcast",
            lambda x: x.expand(3, *x.shape).contiguous(),
            lambda np, nn, x: np.broadcast_to(x, (3, *x.shape)) + 0,
            shape,
        )
    for shape in (
        (256, 256),
        (512, 512),
        (1024, 1024),
        (2048, 2048),
        (4096, 1024),
        (32, 32, 32),
        (64, 64, 64),
    ):
        row("exp", torch.exp, lambda np, nn, x: np.exp(x), shape)
        row("gelu", F.gelu, lambda np, nn, x: nn.gelu(x, approximate=False), shape)
    for shape in ((1024, 1024), (4096, 4096)):
        row("silu", F.silu, lambda np, nn, x: nn.silu(x), shape)
        row(
            "chain",
            lambda x, y: torch.tanh(x * 1.5 + y).clamp(-0.5, 0.5) * y,
            lambda np, nn, x, y: np.clip(np.tanh(x * 1.5 + y), -0.5, 0.5) * y,
            shape,
            shape,
        )
        row(
            "where",
            lambda x, y: torch.where(x > y, x, y * 2),
            lambda np, nn, x, y: np.where(x > y, x, y * 2),
            shape,
            shape,
        )
    for m, k in (
        (512, 768),
        (768, 2304),
        (768, 3072),
        (3072, 768),
        (896, 896),
        (896, 2688),
        (896, 4864),
        (4864, 896),
        (896, 151936),
        (2048, 896),
        (2048, 151936),
    ):
        product(m, k, min(m, 4096))
    return found


def tiny(row: Row) -> Row:
    """The row at sizes for a rehearsal."""
    limit = lambda s: tuple([min(n, 16) for n in s])
    return Row(row.name, tuple(map(limit, row.shapes)), row.torch, row.ours, row.operations)


def per_call(run: Callable[[], Any], wait: Callable[[Any], None]) -> float:
    """Seconds of one call in a stream of calls: the median of several streams."""
    wait(run())
    count, seconds = 1, 0.0
    while seconds < SAMPLE_SECONDS and count < 4096:
        count *= 2
        seconds = stream(run, wait, count)
    return statistics.median(stream(run, wait, count) for _ in range(SAMPLES)) / count


def stream(run: Callable[[], Any], wait: Callable[[Any], None], count: int) -> float:
    """Seconds of so many calls."""
    began = time.perf_counter()
    for _ in range(count):
        out = run()
    wait(out)
    return time.perf_counter() - began


def measure(row: Row, dtype: str, device: str) -> dict[str, Any]:
    """One row of the table: seconds by system, and what this library's result is off by."""
    kind = dtypes.dtype(dtype)
    drawn = np.random.default_rng(0).standard_normal(1_000_003, np.float32).astype(kind)
    values = [np.resize(np.roll(drawn, i), s) for i, s in enumerate(row.shapes)]
    on_torch = [
        torch.from_numpy(v.astype(np.float32)).to(device, getattr(torch, dtype)) for v in values
    ]
    on_jax = [jax.device_put(v) for v in values]
    here = [from_numpy(v) for v in values]
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    compiled = torch.compile(row.torch, dynamic=False)
    by_jax = jax.jit(lambda *xs: row.ours(jax.numpy, _JaxNN, *xs))
    by_us = gf.jit(lambda *xs: row.ours(gf.numpy, gf.nn, *xs))
    runs = {
        "torch": (lambda: row.torch(*on_torch), lambda out: sync()),
        "torch.compile": (lambda: compiled(*on_torch), lambda out: sync()),
        "jax": (lambda: by_jax(*on_jax), lambda out: out.block_until_ready()),
        "genesis_fn": (lambda: by_us(*here), lambda out: out.block_until_ready()),
    }
    expected = row.torch(*[x.double() if dtype == "float32" else x.float() for x in on_torch])
    expected = expected.double().cpu().numpy()
    got = np.asarray(by_us(*here)).astype(np.float64)
    scale = max(np.abs(expected).max(initial=0.0), 1e-6)
    moved = sum(v.nbytes for v in values) + got.size * kind.itemsize
    result: dict[str, Any] = {
        "shapes": row.shapes,
        "error": float(np.abs(got - expected).max(initial=0.0) / scale),
        "bytes": moved,
        "operations": row.operations,
        "seconds": {},
        "problems": {},
    }
    # Two bits fewer than the mantissa of a product's operands.
    bound = 4e-3 if dtype == "float32" and row.operations else 1e-5 if dtype == "float32" else 3e-2
    result["agrees"] = result["error"] <= bound
    for name, (run, wait) in runs.items():
        try:
            with torch.no_grad():
                result["seconds"][name] = per_call(run, wait)
        except Exception as error:
            result["problems"][name] = f"{type(error).__name__}: {error}"[:300]
    torch._dynamo.reset()
    gf.clear_caches()
    jax.clear_caches()
    return result


class _JaxNN:
    """jax.nn, with logsumexp where the rows look for it."""

    softmax, standardize, gelu, silu = (
        jax.nn.softmax,
        jax.nn.standardize,
        jax.nn.gelu,
        jax.nn.silu,
    )
    logsumexp = staticmethod(jax.nn.logsumexp)

    @staticmethod
    def dot_product_attention(q: Any, k: Any, v: Any) -> Any:
        cudnn = q.dtype != np.float32 and jax.default_backend() == "gpu"
        return jax.nn.dot_product_attention(q, k, v, implementation="cudnn" if cudnn else None)


def table(found: dict[str, Any]) -> str:
    """The rows as Markdown: microseconds, and speed over torch eager and over the best peer."""
    lines = [
        "| operator | torch | torch.compile | JAX | genesis_fn | over torch | over the best | "
        "GB/s or TFLOP/s | Genesis over torch |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in found.items():
        times = row["seconds"]
        cells = [f"{times[s] * 1e6:.1f} us" if s in times else "-" for s in SYSTEMS]
        ours, rate, ratio, best = times.get("genesis_fn"), "-", "-", "-"
        if ours:
            rate = (
                f"{row['operations'] / ours / 1e12:.0f} T"
                if row["operations"]
                else f"{row['bytes'] / ours / 1e9:.0f} G"
            )
            peers = [t for s, t in times.items() if s != "genesis_fn"]
            ratio = f"{times['torch'] / ours:.2f}" if "torch" in times else "-"
            best = f"{min(peers) / ours:.2f}" if peers else "-"
        wrong = "" if row["agrees"] else " (WRONG)"
        published = PUBLISHED.get(name, "")
        lines.append(
            f"| {name}{wrong} | " + " | ".join(cells) + f" | {ratio} | {best} | {rate} | "
            f"{published} |"
        )
    return "\n".join(lines)


def draw(shown: list[tuple[str, dict[str, float]]], axes: Any) -> None:
    """Speed of this library over torch eager and over the best peer, as bars."""
    for offset, label, color, value in (
        (0.2, "over torch eager", "#4878a8", lambda t: t["torch"] / t["genesis_fn"]),
        (
            -0.2,
            "over the best of all three",
            "#e8a33d",
            lambda t: min(v for s, v in t.items() if s != "genesis_fn") / t["genesis_fn"],
        ),
    ):
        places = [len(shown) - i + offset for i in range(len(shown))]
        axes.barh(places, [value(t) for _, t in shown], height=0.38, color=color, label=label)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks([len(shown) - i for i in range(len(shown))], [n for n, _ in shown])
    axes.tick_params(axis="y", labelsize=6)
    axes.set_xlabel("speed of genesis_fn over a peer")


def main() -> int:
    """Measure what is missing, write and print the table; 1 if a result was wrong."""
    options = parser(__doc__)
    options.add_argument("--budget", type=float, default=120, help="seconds")
    options.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    options.add_argument("--only", default="", help="rows whose names contain this")
    args = options.parse_args()
    began = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    place = short(name) if device == "cuda" else "cpu"
    stem = Path(args.out) / f"operators-{args.dtype}-{place}{'-tiny' * args.tiny}"
    results = Results(stem, args.redo)
    results.about |= {"device": name, "dtype": args.dtype}
    left = 0
    with gf.default_device(gf.cuda(0) if device == "cuda" else gf.cpu()):
        for row in rows():
            if row.name in results.rows or args.only not in row.name:
                continue
            if time.monotonic() - began > args.budget:
                left += 1
                continue
            row = tiny(row) if args.tiny else row
            left += not results.measure(row.name, lambda: measure(row, args.dtype, device))
    found = results.in_order([r.name for r in rows()])
    versions = results.about["versions"]
    title = f"{name}, {args.dtype}, torch {versions['torch']}, jax {versions['jax']}"
    results.write_table(f"Operators: {title}", table(found))
    drawn = [(n, r["seconds"]) for n, r in found.items() if set(r["seconds"]) >= {*SYSTEMS[::3]}]
    with results.chart(title, (9, 1 + 0.24 * len(drawn))) as axes:
        draw(drawn, axes)
    wrong = [n for n, r in found.items() if not r["agrees"]]
    for n, r in found.items():
        for system, problem in r["problems"].items():
            print(f"{n}, {system}: {problem[:160]}")
    print(f"{len(found)} rows, {left} left, {len(wrong)} wrong: {', '.join(wrong)}")
    return int(bool(wrong or left))


if __name__ == "__main__":
    sys.exit(main())
