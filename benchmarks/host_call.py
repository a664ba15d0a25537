"""What the host does for a jitted training step with 936 small leaves in and out, updated in place:
this library with plain dicts and with a TrainState, JAX, torch.compile. On the default device.

    python benchmarks/host_call.py --out benchmarks/results/host-call-h200.json

Each row runs in a process of its own. Calls follow each other without a wait; the wait after a
block is not counted. On a CPU the calls compute too, so there the rows show more than the host's
part; `--stub` (with GENESIS_CUDA_DRIVER=interpret TRITON_INTERPRET=1) leaves the launches of this
library's graphs out and shows its host part without a GPU. `loop_us` is a fixed loop of Python on
the same core: where others use that core, it is longer, and the row with it.
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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

LAYERS, TENSORS = 39, 8  # 312 parameters, and two moments of each
SHAPE = (4,)
ROWS = ("dicts", "train-state", "jax", "torch.compile")
CALLS = 20


def parameters(make: Callable[[], Any]) -> dict[str, Any]:
    """A model's parameters as nested containers."""
    return {"layers": [{f"w{k}": make() for k in range(TENSORS)} for _ in range(LAYERS)]}


def step(map_: Callable, state: Any, x: Any) -> tuple[Any, Any, Any]:
    """An update of (parameters, moments, moments) that reads and writes every leaf once."""
    params, m, v = state
    m = map_(lambda m: 0.9 * m + x, m)
    v = map_(lambda v: 0.99 * v + x * x, v)
    return map_(lambda p, m: p - 0.1 * m, params, m), m, v


def loop_us() -> float:
    """Least time of 5000 additions of Python, in microseconds."""
    least = float("inf")
    for _ in range(30):
        began, total = time.perf_counter(), 0
        for i in range(5000):
            total += i
        least = min(least, time.perf_counter() - began)
    return least * 1e6


def timed(call: Callable[[], Any], wait: Callable[[Any], Any], blocks: int) -> dict[str, float]:
    """First call in seconds, then microseconds a call, median of blocks: by the clock, and of the
    thread's own time, which other processes on the machine do not lengthen."""
    began = time.perf_counter()
    wait(call())
    first = time.perf_counter() - began
    for _ in range(5):
        wait(call())
    clock, thread = [], []
    for _ in range(blocks):
        began, used = time.perf_counter(), time.thread_time()
        for _ in range(CALLS):
            result = call()
        clock.append((time.perf_counter() - began) / CALLS)
        thread.append((time.thread_time() - used) / CALLS)
        wait(result)
    return {
        "loop_us": loop_us(),
        "first_call_s": first,
        "call_us": statistics.median(clock) * 1e6,
        "thread_us": statistics.median(thread) * 1e6,
        "fastest_us": min(clock) * 1e6,
    }


def genesis(blocks: int, train_state: bool, stub: bool) -> dict[str, float]:
    """This library."""
    import genesis_fn as gf
    import genesis_fn.numpy as gnp

    if stub:
        gf.config.update("default_device", "cuda")
    make = lambda: gnp.ones(SHAPE)
    x = make()
    parts = [parameters(make) for _ in range(3)]
    state: Any = gf.TrainState(params=parts[0], m=parts[1], v=parts[2]) if train_state else parts

    if train_state:

        def update(s: Any, x: Any) -> Any:
            params, m, v = step(gf.tree.map, (s.params, s.m, s.v), x)
            return s.replace(params=params, m=m, v=v), x.sum()
    else:

        def update(s: Any, x: Any) -> Any:
            return list(step(gf.tree.map, s, x)), x.sum()

    jitted = gf.jit(update, donate_argnums=0)

    def call() -> Any:
        nonlocal state
        state, loss = jitted(state, x)
        return loss

    if stub:
        from genesis_fn.backends.cuda.run.graph import CapturedProgram

        call()
        CapturedProgram.launch = lambda self, stream=None: None
    return timed(call, float, blocks)


def jax(blocks: int) -> dict[str, float]:
    """JAX, with donation."""
    import jax
    import jax.numpy as jnp

    make = lambda: jnp.ones(SHAPE)
    x = make()
    state: Any = tuple(parameters(make) for _ in range(3))
    update = lambda s, x: (step(jax.tree.map, s, x), x.sum())
    jitted = jax.jit(update, donate_argnums=0)

    def call() -> Any:
        nonlocal state
        state, loss = jitted(state, x)
        return loss

    return timed(call, float, blocks)


def torch_compile(blocks: int) -> dict[str, float]:
    """torch.compile over foreach operations on flat lists, updated in place."""
    import torch

    place = "cuda" if torch.cuda.is_available() else "cpu"
    count = LAYERS * TENSORS
    make = lambda: [torch.ones(SHAPE, device=place) for _ in range(count)]
    params, m, v = make(), make(), make()
    x = torch.ones((), device=place)

    def update(params: Any, m: Any, v: Any, x: Any) -> Any:
        torch._foreach_mul_(m, 0.9)
        torch._foreach_add_(m, x)
        torch._foreach_mul_(v, 0.99)
        torch._foreach_add_(v, x)
        torch._foreach_add_(params, m, alpha=-0.1)
        return x.sum()

    compiled = torch.compile(update)
    with torch.no_grad():
        return timed(lambda: compiled(params, m, v, x), float, blocks)


def measure(row: str, blocks: int, stub: bool) -> dict[str, float]:
    """One row in this process."""
    if row == "jax":
        return jax(blocks)
    if row == "torch.compile":
        return torch_compile(blocks)
    return genesis(blocks, row == "train-state", stub)


def table(rows: dict[str, Any]) -> str:
    """The rows as text."""
    names = ("call_us", "thread_us", "fastest_us", "first_call_s", "loop_us")
    lines = [f"{'row':<14}" + "".join(f"{n:>14}" for n in names)]
    for row, found in rows.items():
        values = "".join(f"{found[n]:14.1f}" for n in names) if "error" not in found else ""
        lines.append(f"{row:<14}{values}{found.get('error', '')}")
    return "\n".join(lines)


def main() -> None:
    """Run the rows, each in a process of its own; print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--stub", action="store_true")
    parser.add_argument("--worker")
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measure(args.worker, args.blocks, args.stub)))
        return
    rows: dict[str, Any] = {}
    for row in args.rows.split(","):
        done = subprocess.run(
            [sys.executable, __file__, "--worker", row, "--blocks", str(args.blocks)]
            + ["--stub"] * args.stub,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
            rows[row] = {"error": last}
        else:
            rows[row] = json.loads(done.stdout.strip().splitlines()[-1])
        if args.out:
            Path(args.out).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
