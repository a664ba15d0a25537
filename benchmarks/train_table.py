"""The training step of Qwen3-0.6B beside PyTorch and JAX, each in a process of its own on one GPU.

    python benchmarks/train_table.py --out benchmarks/results/train-h200

writes OUT.json after every row, so that an interrupted run goes on where it stopped, and OUT.md.
Float32 parameters, bfloat16 policy, AdamW, 8 x 2048 random tokens; steps follow each other without
a wait, the median of blocks of four is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

BLOCK = 4
ROWS = ("genesis_fn", "torch.compile", "torch", "jax")


def blocks(step: Callable[[int], Any], wait: Callable[[Any], float], count: int) -> dict[str, Any]:
    """First call, median step time and first losses of `step(i)`, whose result `wait` reads."""
    began = time.perf_counter()
    losses = [wait(step(0))]
    first = time.perf_counter() - began
    losses += [wait(step(i)) for i in (1, 2)]
    times = []
    for n in range(count):
        began = time.perf_counter()
        for i in range(BLOCK):
            value = step(n + i)
        losses.append(wait(value))
        times.append((time.perf_counter() - began) / BLOCK)
    return {"first_call_s": first, "step_ms": statistics.median(times) * 1e3, "losses": losses}


def rows_of_tokens(batch: int, length: int, vocabulary: int) -> list[np.ndarray]:
    """Four batches of random tokens, one longer than the model reads."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, vocabulary, (batch, length + 1), np.int32) for _ in range(4)]


def genesis(count: int) -> dict[str, Any]:
    """This library."""
    from benchmarks.qwen_train import run
    from genesis_fn.models import qwen

    r = run(qwen.PRESETS["qwen3-0.6b"], 8, 2048, "bfloat16", count)
    names = ("first_call_s", "step_ms", "losses", "trace_s", "mfu")
    return {k: r[k] for k in names} | {"peak_GiB": r["peak_GiB"]}


def pytorch(count: int, compiled: bool) -> dict[str, Any]:
    """PyTorch under autocast with the fused AdamW."""
    import torch

    from benchmarks.qwen_shape import QWEN3_0_6B as shape
    from benchmarks.qwen_torch import training_step

    torch.set_float32_matmul_precision("high")
    step = training_step(compiled, True, shape, "cuda", torch.bfloat16)
    data = [
        torch.from_numpy(r).long().cuda()
        for r in rows_of_tokens(shape.batch, shape.length, shape.vocabulary)
    ]
    result = blocks(
        lambda i: step(data[i % 4][:, :-1].contiguous(), data[i % 4][:, 1:].contiguous()),
        float,
        count,
    )
    return result | {"peak_GiB": torch.cuda.max_memory_allocated() / 2**30}


def jax(count: int) -> dict[str, Any]:
    """JAX with cuDNN's attention."""
    import jax
    import jax.numpy as jnp

    from benchmarks.qwen_jax import training_step
    from benchmarks.qwen_shape import QWEN3_0_6B as shape

    step, *held = training_step(shape, jnp.bfloat16, "cudnn")
    data = [jnp.asarray(r) for r in rows_of_tokens(shape.batch, shape.length, shape.vocabulary)]

    def one(i: int) -> Any:
        held[0], held[1], value = step(*held, data[i % 4][:, :-1], data[i % 4][:, 1:])
        return value

    result = blocks(one, float, count)
    stats = jax.local_devices()[0].memory_stats() or {}
    return result | {"peak_GiB": stats.get("peak_bytes_in_use", 0) / 2**30}


def measure(row: str, count: int) -> dict[str, Any]:
    """One row, in this process."""
    if row == "genesis_fn":
        return genesis(count)
    return jax(count) if row == "jax" else pytorch(count, row == "torch.compile")


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The rows as Markdown."""
    ours = rows.get("genesis_fn", {}).get("step_ms")
    lines = [
        "| contender | step | tokens/s | ours is faster by | peak memory | first call |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, r in rows.items():
        ratio = f"{r['step_ms'] / ours:.3f}" if ours else ""
        lines.append(
            f"| {name} | {r['step_ms']:.1f} ms | {8 * 2048e3 / r['step_ms']:,.0f} | {ratio} | "
            f"{r['peak_GiB']:.1f} GiB | {r['first_call_s']:.1f} s |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is missing, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="train")
    parser.add_argument("--rows", nargs="*", default=ROWS)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--row", help="measure one row in this process and print it")
    args = parser.parse_args()
    if args.row:
        print(json.dumps(measure(args.row, args.blocks)))
        return
    result: dict[str, Any] = {"rows": {}}
    if os.path.exists(args.out + ".json"):
        with open(args.out + ".json", encoding="utf-8") as f:
            result = json.load(f)
    for row in args.rows:
        if row in result["rows"]:
            continue
        command = [sys.executable, "-m", "benchmarks.train_table", "--row", row]
        made = subprocess.run(
            [*command, "--blocks", str(args.blocks)], stdout=subprocess.PIPE, text=True
        )
        if made.returncode:
            print(f"{row}: failed with {made.returncode}", file=sys.stderr)
            continue
        result["rows"][row] = json.loads(made.stdout.splitlines()[-1])
        result |= environment()
        with open(args.out + ".json", "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)
    text = table(result["rows"])
    with open(args.out + ".md", "w", encoding="utf-8") as f:
        f.write(
            f"Qwen3-0.6B, 8 x 2048 tokens, one training step. {result.get('device')}, commit "
            f"{str(result.get('commit'))[:10]}.\n\n{text}"
        )
    print(text)


def environment() -> dict[str, Any]:
    """Device, versions, commit."""
    import importlib.metadata

    import torch

    from benchmarks.qwen_train import commit

    names = ("torch", "triton", "jax", "numpy")
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "versions": {n: importlib.metadata.version(n) for n in names},
        "commit": commit(),
    }


if __name__ == "__main__":
    main()
