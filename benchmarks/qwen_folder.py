"""Qwen3-0.6B from a folder, bfloat16: loading in GB/s, and the time to the first token.

    python benchmarks/qwen_folder.py --out benchmarks/results

A folder of random weights in Hugging Face's format, in shards, lies in a temporary place. Loading
is timed until every array is on the device, with the files in the page cache: ours, safetensors
into torch, transformers' `from_pretrained`. The time to the first token is that of a prompt of 512
random tokens, from its tokens on the host to the first token on the host: once more in a process
that has generated before, and in a new process, with its start, imports and loading. Ours is
`models.stream`, transformers' is `generate(max_new_tokens=1)`. Each row is a process of its own.
Medians. Writes qwen-folder-DEVICE.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from qwen_twins import fields, nested, sizes, weights
from results_file import Results, parser, short

REPEATS = 5
LOADING = ("ours", "safetensors", "transformers")
FIRST_TOKEN = ("ours", "transformers")


def written(folder: str, s: dict[str, Any]) -> int:
    """Write the model, in shards; its number of bytes."""
    import genesis_fn as gf
    import genesis_fn.numpy as jnp
    from genesis_fn import io, models

    config = models.QwenConfig(**fields(s))
    with gf.default_device("cpu"):
        flat = ((n, jnp.asarray(x).astype(jnp.bfloat16)) for n, x in weights(s))
        io.save_model(folder, nested(flat, s["layers"]), config, max_shard_size="400MB")
    return sum(f.stat().st_size for f in Path(folder).glob("*.safetensors"))


def timed(call: Callable[[], Any]) -> dict[str, Any]:
    """The median seconds of `call`, after one call."""
    began = time.perf_counter()
    call()
    times, first = [], time.perf_counter() - began
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return {"s": statistics.median(times), "first_s": first}


# ---- loading ----


def load_ours(folder: str) -> dict[str, Any]:
    """`io.load_model`, onto the default device."""
    import genesis_fn as gf
    from genesis_fn import io

    def call() -> None:
        params, _ = io.load_model(folder)
        gf.block_until_ready(params)

    return timed(call)


def load_safetensors(folder: str) -> dict[str, Any]:
    """Every shard by safetensors' own loader, onto torch's device."""
    import torch
    from safetensors.torch import load_file

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def call() -> None:
        arrays = [load_file(f, device=device) for f in sorted(Path(folder).glob("*.safetensors"))]
        if device == "cuda":
            torch.cuda.synchronize()
        else:  # they are maps of the files until somebody reads them
            [x.clone() for shard in arrays for x in shard.values()]

    return timed(call)


def load_transformers(folder: str) -> dict[str, Any]:
    """transformers' model, onto torch's device."""
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def call() -> None:
        transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, device_map=device if device == "cuda" else None
        )
        if device == "cuda":
            torch.cuda.synchronize()

    return timed(call)


# ---- the first token ----


def prompt(s: dict[str, Any], length: int) -> list[int]:
    """Random tokens."""
    return np.random.default_rng(1).integers(0, s["vocab"], length).tolist()


def first_ours(folder: str, tokens: list[int]) -> dict[str, Any]:
    """The first item of `models.stream`."""
    from genesis_fn import io, models

    params, config = io.load_model(folder)
    given = models.GenerationConfig(max_new_tokens=64)

    def call() -> int:
        found = models.stream(params, tokens, config, generation=given)
        token = next(iter(found)).token
        found.close()
        return token

    token = call()
    since = time.time() - float(os.environ["BEGAN"])
    return timed(call) | {"since_start_s": since, "token": token}


def first_transformers(folder: str, tokens: list[int]) -> dict[str, Any]:
    """`generate(max_new_tokens=1)`."""
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, device_map=device if device == "cuda" else None
    ).eval()

    def call() -> int:
        given = torch.tensor([tokens], device=device)
        mask = torch.ones_like(given)
        out = model.generate(
            given, attention_mask=mask, max_new_tokens=1, do_sample=False, pad_token_id=0
        )
        return int(out[0, -1])

    with torch.inference_mode():
        token = call()
        since = time.time() - float(os.environ["BEGAN"])
        return timed(call) | {"since_start_s": since, "token": token}


# ---- rows ----


def measure(row: str, args: argparse.Namespace) -> dict[str, Any]:
    """One row, in this process."""
    kind, name = row.split()
    if kind == "load":
        run = {
            "ours": load_ours, "safetensors": load_safetensors, "transformers": load_transformers
        }[name]  # fmt: skip
        return run(args.folder)
    tokens = prompt(sizes(args.layers), args.length)
    return (first_ours if name == "ours" else first_transformers)(args.folder, tokens)


def table(results: Results, size: int) -> str:
    """The rows as markdown."""
    lines = ["| loading | s | GB/s | first call, s |", "| --- | --- | --- | --- |"]
    for name in LOADING:
        if row := results.rows.get(f"load {name}"):
            rate = size / row["s"] / 1e9
            lines.append(f"| {name} | {row['s']:.3f} | {rate:.2f} | {row['first_s']:.2f} |")
    lines += ["", "| first token | ms | in a new process, s |", "| --- | --- | --- |"]
    for name in FIRST_TOKEN:
        if row := results.rows.get(f"first {name}"):
            lines.append(f"| {name} | {1e3 * row['s']:.2f} | {row['since_start_s']:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure every row; write JSON and markdown."""
    options = parser(__doc__)
    options.add_argument("--row", help="measure this one here and print it")
    options.add_argument("--folder", help="the model's folder, of --row")
    options.add_argument("--limit", type=float, default=120, help="seconds for one row")
    options.add_argument("--layers", type=int, default=28)
    options.add_argument("--length", type=int, default=512, help="tokens of the prompt")
    args = options.parse_args()
    if args.tiny:
        args.layers, args.length = 1, 16
    if args.row:
        print(json.dumps(measure(args.row, args)))
        return
    import torch

    device = short(torch.cuda.get_device_name()) if torch.cuda.is_available() else "cpu"
    results = Results(Path(args.out) / f"qwen-folder-{device}", args.redo)
    with tempfile.TemporaryDirectory() as folder:
        size = written(folder, sizes(args.layers))

        def row(name: str) -> dict[str, Any]:
            command = [sys.executable, __file__, "--row", name, "--folder", folder]
            command += ["--layers", str(args.layers), "--length", str(args.length)]
            env = os.environ | {"BEGAN": str(time.time())}
            run = subprocess.run(
                command, capture_output=True, text=True, env=env, timeout=args.limit
            )
            if run.returncode:
                raise RuntimeError(run.stderr[-300:])
            return json.loads(run.stdout.splitlines()[-1]) | {"bytes": size}

        for name in [f"load {n}" for n in LOADING] + [f"first {n}" for n in FIRST_TOKEN]:
            results.measure(name, lambda name=name: row(name))
    title = f"Qwen3-0.6B from a folder of {size / 1e9:.2f} GB, bfloat16, {device}"
    results.write_table(title, table(results, size))


if __name__ == "__main__":
    main()
