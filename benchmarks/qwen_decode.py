"""Greedy decoding with Qwen3-0.6B on one GPU, bfloat16: milliseconds a step.

    python benchmarks/qwen_decode.py --out benchmarks/results/qwen-decode-h200.json

Rows: ours with the whole loop in one graph (the difference of two lengths) and as a Python loop of
jitted steps, the same with programmatic launches, PyTorch eager, PyTorch compiled with
"reduce-overhead", JAX with the loop inside jit. Every row is a process of its own, written as soon
as it is measured; rows that the file holds already are not measured again. `check` generates with
float32 weights and compares ours with PyTorch's tokens. `--rows` chooses (`--rows ours-graph,check`
leaves the peers out), `--context` is how much of the cache is filled before, with random keys, and
`--batch` how many rows are decoded together (a file for each: `qwen-decode-8-h200.json`).
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

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from qwen_twins import Jax, Ours, Torch, sizes
from results_file import surroundings

ROWS = {
    "ours-graph": {},
    "ours-graph-programmatic": {"GENESIS_PROGRAMMATIC_LAUNCH": "1"},
    "ours-steps": {},
    "check": {},
    "jax": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    "torch-eager": {},
    "torch-compiled": {},
}
SHORT, LONG, REPEATS, CHECKED = 16, 112, 10, 24


# ---- milliseconds ----


def lengths_time(run: Callable[[int], float]) -> dict[str, Any]:
    """Milliseconds a step of a loop that `run` gives a length and that takes so many seconds: the
    difference of two lengths, so that what a call costs is not in it."""
    first = run(LONG)
    times: dict[int, list[float]] = {SHORT: [], LONG: []}
    for _ in range(REPEATS + 2):
        for n, found in times.items():
            found.append(run(n))
    spent = {n: statistics.median(found[2:]) for n, found in times.items()}
    return {
        "ms": 1e3 * (spent[LONG] - spent[SHORT]) / (LONG - SHORT),
        "first_call_s": first,
        "call_ms": {n: 1e3 * t for n, t in spent.items()},
    }


def loop_time(step: Callable[[], None], wait: Callable[[], Any]) -> dict[str, Any]:
    """The median milliseconds of a step in REPEATS blocks of steps, and the first call's time."""
    began = time.perf_counter()
    step()
    wait()
    first = time.perf_counter() - began
    for _ in range(4):
        step()
    wait()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(8):
            step()
        wait()
        times.append((time.perf_counter() - began) / 8)
    return {"ms": 1e3 * statistics.median(times), "first_call_s": first}


def many_steps(ours: Ours) -> Callable[..., Any]:
    """The jitted loop (params, token, cache, count) -> (token, cache, tokens [B, LONG])."""
    import genesis_fn as gf
    from genesis_fn.lax import while_loop

    jnp = ours.jnp

    def many(params: Any, token: Any, cache: Any, count: Any) -> Any:
        def advance(state: Any) -> Any:
            n, token, cache, out = state
            token, cache = ours.step(params, token, cache)
            out = jnp.where(jnp.arange(LONG) == n, token[:, None], out)
            return n + 1, token, cache, out

        start = jnp.asarray(0), token, cache, jnp.zeros((ours.batch, LONG), jnp.int32)
        _, token, cache, out = while_loop(lambda s: s[0] < count, advance, start)
        return token, cache, out

    return gf.jit(many, donate_argnames=("cache",))


def ours_graph(s: dict[str, Any], capacity: int, context: int, batch: int) -> dict[str, Any]:
    """Ours, the loop in one graph."""
    ours = Ours(s, capacity, "bfloat16", batch)
    loop, cache, token = many_steps(ours), ours.cache(context), ours.start()
    counts = {n: ours.jnp.asarray(np.array(n, np.int32)) for n in (SHORT, LONG)}

    def run(n: int) -> float:
        nonlocal cache
        cache = cache | {"lengths": ours.lengths(context)}
        cache["lengths"].block_until_ready()
        began = time.perf_counter()
        out, cache, _ = loop(ours.params, token, cache, counts[n])
        np.asarray(out)
        return time.perf_counter() - began

    return lengths_time(run)


def ours_steps(s: dict[str, Any], capacity: int, context: int, batch: int) -> dict[str, Any]:
    """Ours, a Python loop of jitted steps."""
    import genesis_fn as gf

    ours = Ours(s, capacity, "bfloat16", batch)
    step = gf.jit(ours.step, donate_argnames=("cache",))
    state = [ours.start(), ours.cache(context)]

    def one() -> None:
        state[:] = step(ours.params, *state)

    return loop_time(one, lambda: np.asarray(state[0]))


def torch_time(
    s: dict[str, Any], capacity: int, context: int, batch: int, compiled: bool
) -> dict[str, Any]:
    """PyTorch's steps."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Torch(s, capacity, "bfloat16", device, batch)
    step = torch.compile(model.step, mode="reduce-overhead") if compiled else model.step
    position = torch.tensor([context], device=device)
    token = torch.arange(1, batch + 1, device=device)

    def one() -> None:
        nonlocal token
        token = step(token, position).clone()
        position.add_(1)

    with torch.inference_mode():
        return loop_time(one, lambda: token.tolist())


def jax_time(s: dict[str, Any], capacity: int, context: int, batch: int) -> dict[str, Any]:
    """JAX, the loop inside jit."""
    import jax
    import jax.numpy as jnp

    model = Jax(s, capacity, batch)

    def many(params: Any, token: Any, cache: Any, count: Any) -> Any:
        def advance(n: Any, state: Any) -> Any:
            token, cache = state
            return model.step(params, token, cache, context + n)

        return jax.lax.fori_loop(0, count, advance, (token, cache))

    loop = jax.jit(many, donate_argnums=2)
    cache, token = model.cache(), jnp.arange(1, batch + 1, dtype=jnp.int32)

    def run(n: int) -> float:
        nonlocal cache
        began = time.perf_counter()
        out, cache = loop(model.params, token, cache, n)
        out.block_until_ready()
        return time.perf_counter() - began

    return lengths_time(run)


# ---- the same tokens ----


def check(s: dict[str, Any]) -> dict[str, Any]:
    """Greedy tokens of ours and of PyTorch, both in float32 throughout."""
    import torch

    import genesis_fn as gf

    with gf.default_matmul_precision("float32"):
        ours = Ours(s, 256, "float32")
        count = ours.jnp.asarray(np.array(CHECKED, np.int32))
        out = many_steps(ours)(ours.params, ours.start(), ours.cache(0), count)[2]
        got = np.asarray(out)[0, :CHECKED].tolist()
    del ours
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    model = Torch(s, 256, "float32", device)
    token, want = torch.tensor([1], device=device), []
    with torch.inference_mode():
        for n in range(CHECKED):
            token = model.step(token, torch.tensor([n], device=device))
            want.append(int(token))
    return {"tokens_equal": got == want, "ours": got, "torch": want}


# ---- rows ----


def measure(row: str, args: argparse.Namespace) -> dict[str, Any]:
    """One row, in this process."""
    s = sizes(args.layers)
    if row == "check":
        return check(s)
    if row == "jax":
        return jax_time(s, args.capacity, args.context, args.batch)
    if row.startswith("torch"):
        return torch_time(s, args.capacity, args.context, args.batch, row == "torch-compiled")
    run = ours_steps if row == "ours-steps" else ours_graph
    return run(s, args.capacity, args.context, args.batch)


def table(result: dict[str, Any]) -> str:
    """The rows as markdown."""
    about = result["surroundings"]
    shape = result["shape"]
    lines = [
        f"Qwen3-0.6B greedy decode, batch {shape['batch']}, bfloat16, {shape['layers']} layers, "
        f"cache of {shape['capacity']}, {shape['context']} positions filled, on "
        f"{about['device']}, commit {about['commit'][:10]}.",
        "",
        "| row | ms a step | first call, s |",
        "| --- | --- | --- |",
    ]
    for name, row in result["rows"].items():
        if "ms" in row:
            lines.append(f"| {name} | {row['ms']:.3f} | {row['first_call_s']:.1f} |")
        elif "tokens_equal" in row:
            equal = "equal" if row["tokens_equal"] else "DIFFERENT"
            lines.append(f"| {CHECKED} float32 tokens, ours and PyTorch | {equal} | |")
        else:
            lines.append(f"| {name} | {row['error'].splitlines()[-1][:80]} | |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the rows that are missing, one process each; write JSON and markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--capacity", type=int, default=2048)
    parser.add_argument("--context", type=int, default=1900)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120, help="seconds for one row")
    parser.add_argument("--out")
    parser.add_argument("--row", help="measure this one here and print it")
    args = parser.parse_args()
    if args.context + LONG > args.capacity:
        parser.error(f"--context {args.context} leaves no room for {LONG} tokens")
    if args.row:
        print(json.dumps(measure(args.row, args)))
        return
    result: dict[str, Any] = {"rows": {}}
    if args.out and os.path.exists(args.out):
        with open(args.out, encoding="utf-8") as f:
            result = json.load(f)
    result["surroundings"] = surroundings()
    result["shape"] = {k: getattr(args, k) for k in ("layers", "capacity", "context", "batch")}
    for row in args.rows.split(","):
        if "error" not in result["rows"].get(row, {"error": None}):
            continue
        command = [sys.executable, __file__, "--row", row]
        command += [x for k, v in result["shape"].items() for x in (f"--{k}", str(v))]
        try:
            run = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env=os.environ | ROWS[row],
                check=False,
                timeout=args.limit,
            )
            found = json.loads(run.stdout.splitlines()[-1]) if run.returncode == 0 else {}
            result["rows"][row] = found or {"error": run.stderr[-2000:] or "no output"}
        except subprocess.TimeoutExpired:
            result["rows"][row] = {"error": f"took longer than {args.limit} s"}
        if args.out:
            os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
            with open(args.out, "w", encoding="utf-8") as f:
                json.dump(result, f, indent=1)
            Path(args.out).with_suffix(".md").write_text(table(result), encoding="utf-8")
        print(row, result["rows"][row], flush=True)
    print(table(result))


if __name__ == "__main__":
    main()
