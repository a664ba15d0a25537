"""Prefill with Qwen3-0.6B on one GPU, bfloat16: milliseconds from prompts to their first tokens.

    python benchmarks/qwen_prefill.py --out benchmarks/results

32 prompts of 512 random tokens. Every row computes the logits of the last positions only, and
writes the keys and values of all layers. Rows: ours, PyTorch eager and compiled, JAX with cuDNN's
attention, transformers with SDPA and a static cache, eager and compiled. Each is a process of its
own. Times are medians of calls that end with the tokens on the host. Writes
qwen-prefill-DEVICE.json and .md.
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

from qwen_twins import Jax, Ours, Torch, fields, sizes, weights
from results_file import Results, parser, short

REPEATS = 10
PEERS = ("torch-compiled", "jax", "transformers-compiled", "transformers", "torch-eager")


def prompts(s: dict[str, Any], batch: int, length: int) -> np.ndarray:
    """Random tokens, the same in every process."""
    return np.random.default_rng(1).integers(0, s["vocab"], (batch, length)).astype(np.int32)


def timed(call: Callable[[], Any]) -> dict[str, Any]:
    """The median milliseconds of `call`, whose result is tokens on the host."""
    began = time.perf_counter()
    tokens = call()
    first = time.perf_counter() - began
    times = []
    for _ in range(REPEATS + 2):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    found = np.asarray(tokens).tolist()
    return {"ms": 1e3 * statistics.median(times[2:]), "first_call_s": first, "tokens": found}


def ours(s: dict[str, Any], tokens: np.ndarray, capacity: int) -> dict[str, Any]:
    """The library's model."""
    import genesis_fn as gf

    model = Ours(s, capacity, "bfloat16", len(tokens))
    prefill = gf.jit(model.prefill, donate_argnames=("cache",))
    cache, given = model.cache(0), model.jnp.asarray(tokens)

    def call() -> Any:
        nonlocal cache
        cache = cache | {"lengths": model.lengths(0)}
        out, cache = prefill(model.params, given, cache)
        return np.asarray(out)

    return timed(call)


def jax_row(s: dict[str, Any], tokens: np.ndarray, capacity: int) -> dict[str, Any]:
    """JAX, its cache donated."""
    import jax
    import jax.numpy as jnp

    model = Jax(s, capacity, len(tokens))
    prefill = jax.jit(model.prefill, donate_argnums=2)
    cache, given = model.cache(), jnp.asarray(tokens)

    def call() -> Any:
        nonlocal cache
        out, cache = prefill(model.params, given, cache)
        return np.asarray(out)

    return timed(call)


def torch_row(
    s: dict[str, Any], tokens: np.ndarray, capacity: int, compiled: bool
) -> dict[str, Any]:
    """The twin in PyTorch."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Torch(s, capacity, "bfloat16", device, len(tokens))
    prefill = torch.compile(model.prefill) if compiled else model.prefill
    given = torch.from_numpy(tokens.astype(np.int64)).to(device)
    with torch.inference_mode():
        return timed(lambda: prefill(given).tolist())


def transformers_model(s: dict[str, Any], device: str) -> Any:
    """transformers' model with the same weights, bfloat16."""
    import torch
    import transformers

    config = transformers.Qwen3Config(**fields(s), attn_implementation="sdpa", dtype=torch.bfloat16)
    with torch.device(device):
        model = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).eval()
    own = dict(model.model.named_parameters())
    with torch.no_grad():
        for name, x in weights(s):
            own[f"{name}.weight"].copy_(torch.from_numpy(x))
    return model


def transformers_row(
    s: dict[str, Any], tokens: np.ndarray, capacity: int, compiled: bool
) -> dict[str, Any]:
    """transformers' model and static cache."""
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers_model(s, device)
    cache = transformers.StaticCache(config=model.config, max_cache_len=capacity)
    given = torch.from_numpy(tokens.astype(np.int64)).to(device)
    forward = torch.compile(model.forward) if compiled else model.forward

    def call() -> Any:
        cache.reset()
        logits = forward(
            input_ids=given, past_key_values=cache, use_cache=True, logits_to_keep=1
        ).logits
        return logits[:, -1].argmax(-1).tolist()

    with torch.inference_mode():
        return timed(call)


def measure(row: str, args: argparse.Namespace) -> dict[str, Any]:
    """One row, in this process."""
    s = sizes(args.layers)
    given = s, prompts(s, args.batch, args.length), args.capacity
    if row == "ours":
        return ours(*given)
    if row == "jax":
        return jax_row(*given)
    run = transformers_row if row.startswith("transformers") else torch_row
    return run(*given, row.endswith("compiled"))


def main() -> None:
    """Measure every row; write JSON and markdown."""
    options = parser(__doc__)
    options.add_argument("--rows", default=",".join(("ours", *PEERS)))
    options.add_argument("--row", help="measure this one here and print it")
    options.add_argument("--limit", type=float, default=150, help="seconds for one row")
    for name, value in (("layers", 28), ("batch", 32), ("length", 512), ("capacity", 1024)):
        options.add_argument(f"--{name}", type=int, default=value)
    args = options.parse_args()
    if args.tiny:
        args.layers, args.batch, args.length, args.capacity = 1, 2, 16, 32
    if args.row:
        print(json.dumps(measure(args.row, args)))
        return
    import torch

    device = short(torch.cuda.get_device_name()) if torch.cuda.is_available() else "cpu"
    results = Results(Path(args.out) / f"qwen-prefill-{device}", args.redo)

    def row(name: str) -> dict[str, Any]:
        command = [sys.executable, __file__, "--row", name]
        for key in ("layers", "batch", "length", "capacity"):
            command += [f"--{key}", str(getattr(args, key))]
        env = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=args.limit)
        if run.returncode:
            raise RuntimeError(run.stderr[-300:])
        return json.loads(run.stdout.splitlines()[-1])

    for name in args.rows.split(","):
        results.measure(name, lambda name=name: row(name))
    own = results.rows.get("ours")
    peers = [results.rows[n]["ms"] for n in PEERS if n in results.rows]
    lines = ["| row | ms | first call, s | tokens equal to ours |", "| --- | --- | --- | --- |"]
    for name, found in results.in_order(["ours", *PEERS]).items():
        same = own and sum(a == b for a, b in zip(found["tokens"], own["tokens"]))
        lines.append(
            f"| {name} | {found['ms']:.2f} | {found['first_call_s']:.1f} | {same} of {args.batch} |"
        )
    if own and peers:
        lines.append(f"\nThe best peer takes {min(peers) / own['ms']:.3f} times as long as ours.")
    title = f"Qwen3-0.6B, prefill of {args.batch} x {args.length} tokens, bfloat16, {device}"
    results.write_table(title, "\n".join(lines))


if __name__ == "__main__":
    main()
