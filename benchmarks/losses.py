"""Losses of a small Qwen over 200 steps: GPU, CPU and PyTorch from the same start on the same data.

    python benchmarks/losses.py --out benchmarks/results/losses-h200.json

In float32 (products of full precision) and under the bfloat16 policy, with AdamW and gradient
clipping. At every step each pair must agree: within 1e-3 in float32, 2e-2 under bfloat16. Exits
with 1 where one does not. Without a GPU, CPU and PyTorch are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from benchmarks.qwen_shape import Shape
from benchmarks.qwen_torch import Qwen
from genesis_fn import io, optim
from genesis_fn.core import tree
from genesis_fn.models import qwen
from genesis_fn.transforms.precision.autocast import amp

SHAPES = {
    "small": Shape(4, 128, 384, 4, 2, 64, 512, 128, 8),
    "tiny": Shape(2, 32, 64, 2, 1, 16, 64, 16, 2),
}
BOUNDS = {"float32": 1e-3, "bfloat16": 2e-2}
RATE, DECAY, CLIP = 1e-3, 0.1, 1.0


def language(shape: Shape, steps: int) -> np.ndarray:
    """Batches [steps, batch, length + 1] in which most tokens follow from the two before them."""
    rng = np.random.default_rng(1)
    table = rng.integers(0, shape.vocabulary, (shape.vocabulary, 3))
    tokens = rng.integers(0, shape.vocabulary, (steps, shape.batch, shape.length + 1))
    for t in range(2, shape.length + 1):
        follow = table[tokens[..., t - 1], tokens[..., t - 2] % 3]
        tokens[..., t] = np.where(rng.random(follow.shape) < 0.9, follow, tokens[..., t])
    return tokens.astype(np.int32)


def start(shape: Shape) -> Qwen:
    """The PyTorch model that all runs begin with."""
    torch.manual_seed(0)
    return Qwen(shape)


def torch_losses(shape: Shape, tokens: np.ndarray, compute: str) -> list[float]:
    """PyTorch, on the CPU."""
    model = start(shape)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, (0.9, 0.95), 1e-8, weight_decay=DECAY)
    losses = []
    for batch in torch.from_numpy(tokens.astype(np.int64)):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=compute == "bfloat16"):
            loss = model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def our_losses(shape: Shape, tokens: np.ndarray, compute: str) -> list[float]:
    """This library, on the default device."""
    config = qwen.QwenConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rope_theta=shape.theta,
        rms_norm_eps=shape.eps,
    )
    given = start(shape).state_dict()
    shapes = qwen.init(gf.random.key(0), config)
    names = [io.huggingface.hf_name(n) for n in io.safetensors.flat_names(shapes)]
    values = [
        given[n.replace(".self_attn.", ".").replace(".mlp.", ".").removeprefix("model.")]
        for n in names
    ]
    leaves = [jnp.asarray(v.numpy()) for v in values]
    params = tree.unflatten(tree.structure(shapes), leaves)
    optimizer = optim.chain(
        optim.clip_by_global_norm(CLIP), optim.adamw(RATE, 0.9, 0.95, 1e-8, weight_decay=DECAY)
    )

    def loss(params: Any, batch: Any) -> Any:
        return qwen.loss(params, batch[:, :-1], batch[:, 1:], config)

    computed = loss if compute == "float32" else amp(loss, compute)

    def step(params: Any, state: Any, batch: Any) -> tuple[Any, Any, Any]:
        value, grads = gf.value_and_grad(computed)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state, value

    step = gf.jit(step, donate_argnums=(0, 1))
    state, losses = optimizer.init(params), []
    for batch in tokens:
        params, state, value = step(params, state, jnp.asarray(batch))
        losses.append(value)
    return [float(x) for x in losses]


def main() -> int:
    """Run, compare, print, write; 1 if two runs differ by more than the bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--out")
    args = parser.parse_args()
    shape, places = SHAPES[args.shape], {"cpu": gf.cpu()}
    if gf.cuda.device_count():
        places["gpu"] = gf.cuda(0)
    tokens = language(shape, args.steps)
    result: dict[str, Any] = {"shape": vars(shape), "steps": args.steps}
    result["device"] = gf.cuda.get_device_name() if "gpu" in places else "cpu"
    result["commit"] = os.environ.get("COMMIT", "unknown")
    result |= {"torch": torch.__version__, "losses": {}, "largest_difference": {}}
    failed = False
    for compute, bound in BOUNDS.items():
        runs: dict[str, list[float]] = {}
        began = time.perf_counter()
        with gf.default_matmul_precision("highest"):
            for name, place in places.items():
                with gf.default_device(place):
                    runs[name] = our_losses(shape, tokens, compute)
        runs["torch"] = torch_losses(shape, tokens, compute)
        result["losses"][compute] = runs
        names = list(runs)
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                gap = np.abs(np.subtract(runs[a], runs[b]))
                ok = bool(gap.max() <= bound)
                failed |= not ok
                result["largest_difference"][f"{compute} {a} {b}"] = float(gap.max())
                print(
                    f"{compute:9} {a} and {b}: largest difference {gap.max():.2e} at step "
                    f"{gap.argmax()}, bound {bound:.0e}: {'ok' if ok else 'FAILED'}"
                )
        first, last = runs["torch"][0], np.mean(runs["torch"][-10:])
        print(f"{compute:9} loss {first:.3f} -> {last:.3f}, {time.perf_counter() - began:.1f} s")
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
