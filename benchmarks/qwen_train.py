"""A Qwen3-0.6B training step on one GPU: B x S tokens, float32 parameters, bfloat16 policy, AdamW.

    python benchmarks/qwen_train.py --out qwen-train.json

Prints and writes trace and compile times, the median step, tokens/s, model FLOP utilisation and
peak memory. `--layers` shortens the model, `--check` compares the first losses with the CPU's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import time
from typing import Any

import numpy as np

import genesis_fn as gf
import genesis_fn.cuda as memory
from genesis_fn import optim, random
from genesis_fn.models import qwen
from genesis_fn.transforms.precision.autocast import amp

PEAK = 989e12  # dense bfloat16 of an H100 or H200, FLOP/s
BLOCK = 4  # steps between two waits


def flops(config: qwen.QwenConfig, batch: int, length: int) -> float:
    """Floating-point operations of a training step: six per weight and token, and causal
    attention."""
    tokens = batch * length
    weights = config.size  # the embedding is also the output layer
    width = config.num_attention_heads * config.head_dim
    attention = 6 * config.num_hidden_layers * width * length * tokens
    return 6 * weights * tokens + attention


def make_step(config: qwen.QwenConfig, compute: str) -> tuple[Any, Any]:
    """(optimizer, jitted step)."""
    optimizer = optim.adamw(3e-4, weight_decay=0.1)

    def loss(params: Any, tokens: Any) -> Any:
        return qwen.loss(params, tokens[:, :-1], tokens[:, 1:], config)

    def step(params: Any, state: Any, tokens: Any) -> tuple[Any, Any, Any]:
        value, grads = gf.value_and_grad(amp(loss, compute))(params, tokens)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state, value

    return optimizer, gf.jit(step, donate_argnames=("params", "state"))


def run(config: qwen.QwenConfig, batch: int, length: int, compute: str, steps: int) -> dict:
    """The figures of one configuration on the default device."""
    optimizer, step = make_step(config, compute)
    began = time.perf_counter()
    params = gf.jit(lambda: qwen.init(random.key(0), config))()
    state = optimizer.init(params)
    made = time.perf_counter() - began
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, config.vocab_size, (batch, length + 1), np.int32) for _ in range(4)]
    began = time.perf_counter()
    step.lower(params, state, rows[0])
    traced = time.perf_counter() - began
    began = time.perf_counter()
    params, state, value = step(params, state, rows[0])
    losses = [float(value)]
    first = time.perf_counter() - began
    for i in range(2):
        params, state, value = step(params, state, rows[(i + 1) % 4])
        losses.append(float(value))
    # Steps follow each other without a wait; the loss of a block is read at its end.
    times = []
    for block in range(steps):
        began = time.perf_counter()
        for i in range(BLOCK):
            params, state, value = step(params, state, rows[(block + i) % 4])
        losses.append(float(value))
        times.append((time.perf_counter() - began) / BLOCK)
    seconds = statistics.median(times)
    result = {
        "parameters": config.size,
        "batch": batch,
        "length": length,
        "compute": compute,
        "init_s": made,
        "trace_s": traced,
        "first_call_s": first,
        "step_ms": seconds * 1e3,
        "tokens_per_s": batch * length / seconds,
        "mfu": flops(config, batch, length) / seconds / PEAK,
        "losses": losses[:6],
    }
    if gf.default_backend() != "cpu":
        result["peak_GiB"] = memory.max_memory_allocated() / 2**30
        result["reserved_GiB"] = memory.memory_reserved() / 2**30
    return result


def commit() -> str:
    """The commit that is measured."""
    try:
        return subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("COMMIT", "unknown")


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--compute", default="bfloat16")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--check", action="store_true", help="compare the losses with the CPU's")
    parser.add_argument("--out")
    args = parser.parse_args()
    config = dataclasses.replace(
        qwen.PRESETS["qwen3-0.6b"], num_hidden_layers=args.layers, vocab_size=args.vocab
    )
    result = run(config, args.batch, args.length, args.compute, args.steps)
    if args.check:
        with gf.default_device(gf.devices("cpu")[0]):
            other = run(config, args.batch, args.length, args.compute, args.steps)
        result["cpu_losses"] = other["losses"]
        result["largest_difference"] = float(
            np.abs(np.subtract(result["losses"], other["losses"])).max()
        )
    result |= {"device": str(gf.devices()[0]), "commit": commit()}
    for name, value in result.items():
        print(f"{name:20} {value}")
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
