"""What the launches of a program's graph cost: the Qwen3-0.6B training step as a chain of kernels
and with programmatic launches, each setting in a process of its own on one GPU.

    python benchmarks/graph_gap.py --out benchmarks/results/graph-gap-h200.json

Prints for each setting the median step with steps back to back, the summed time of its kernels, the
time in which at least one of them ran, and what the step takes beyond that. Kernel times come from
CUPTI through torch's profiler, where torch has CUDA. `--settings` chooses, `--layers` shortens the
model.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

BLOCK = 4  # steps between two waits
PROFILED = 3
SETTINGS = {"chain": {}, "chain+pdl": {"GENESIS_PROGRAMMATIC_LAUNCH": "1"}}


def measure(layers: int, batch: int, length: int, blocks: int) -> dict[str, Any]:
    """The figures of the setting that this process was started with."""
    from qwen_train import make_step

    import genesis_fn as gf
    from genesis_fn import random
    from genesis_fn.models import qwen

    config = dataclasses.replace(qwen.PRESETS["qwen3-0.6b"], num_hidden_layers=layers)
    optimizer, step = make_step(config, "bfloat16")
    params = gf.jit(lambda: qwen.init(random.key(0), config))()
    state = optimizer.init(params)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, config.vocab_size, (batch, length + 1), np.int32)
    losses = []

    def steps(count: int) -> float:
        nonlocal params, state
        began = time.perf_counter()
        for _ in range(count):
            params, state, value = step(params, state, tokens)
        losses.append(float(value))
        return (time.perf_counter() - began) / count

    first = steps(1)
    steps(2)
    wall = statistics.median([steps(BLOCK) for _ in range(blocks)])
    return {
        "step_ms": wall * 1e3,
        "first_call_s": first,
        "loss": losses[1],
        **kernel_times(lambda: steps(PROFILED), PROFILED),
    }


def kernel_times(run: Any, count: int) -> dict[str, Any]:
    """Per step of the `count` that `run` makes: kernels, their summed milliseconds, and the
    milliseconds in which any ran; nothing without a torch that has CUDA."""
    try:
        import torch

        if not torch.cuda.is_available():
            return {}
    except ImportError:
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        run()
    spans = sorted(
        (e.time_range.start, e.time_range.end)
        for e in recorded.events()
        if e.device_type == torch.autograd.DeviceType.CUDA
    )
    busy = end = 0.0
    for start, stop in spans:
        busy += max(stop - max(start, end), 0.0)
        end = max(end, stop)
    return {
        "kernels": len(spans) / count,
        "kernel_ms": sum(stop - start for start, stop in spans) / count / 1e3,
        "busy_ms": busy / count / 1e3,
    }


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The rows as text."""
    names = ("step_ms", "kernel_ms", "busy_ms", "kernels", "first_call_s", "loss")
    lines = [f"{'setting':<14}" + "".join(f"{n:>14}" for n in (*names, "wall - busy"))]
    for setting, row in rows.items():
        if "error" in row:
            lines.append(f"{setting:<14} {row['error']}")
            continue
        values = [row.get(n) for n in names]
        gap = row["step_ms"] - row["busy_ms"] if "busy_ms" in row else None
        shown = [f"{v:14.3f}" if v is not None else f"{'-':>14}" for v in (*values, gap)]
        lines.append(f"{setting:<14}" + "".join(shown))
    return "\n".join(lines)


def main() -> None:
    """Run every setting in a process of its own, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--out")
    args = parser.parse_args()
    shape = (args.layers, args.batch, args.length, args.blocks)
    if args.worker:
        print(json.dumps(measure(*shape)))
        return
    rows: dict[str, dict[str, Any]] = {}
    options = ["--layers", "--batch", "--length", "--blocks"]
    given = [str(x) for pair in zip(options, shape, strict=True) for x in pair]
    for setting in args.settings.split(","):
        done = subprocess.run(
            [sys.executable, __file__, "--worker", *given],
            env=os.environ | SETTINGS[setting],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.stderr.write(done.stderr)
            last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
            rows[setting] = {"error": last}
        else:
            rows[setting] = json.loads(done.stdout.strip().splitlines()[-1])
        print(table({setting: rows[setting]}), flush=True)
        if args.out:
            Path(args.out).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
