"""Training steps of Qwen3 on several GPUs, beside PyTorch's DDP and FSDP2 with torch.compile.

    python -m benchmarks.parallel_table --gpus 2 --out benchmarks/results

Every row is a launch of its own under torchrun, on the same GPUs in the same run: one GPU alone,
data parallel and fully sharded, of the library and of PyTorch; and the library's tensor parallelism
of as many tokens, with the activations between blocks divided by positions. Float32 parameters,
bfloat16 compute, AdamW, 8 x 2048 random tokens a GPU; steps follow each other without a wait, the
median of blocks of four counts. Efficiency is tokens/s over N times those of the library on one
GPU. Runs on any number of GPUs; without one, `--tiny` rehearses on CPUs through gloo.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results_file import Results, parser, short
from benchmarks.train_table import blocks

MODELS = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b")
ROWS = ("one GPU", "data", "fsdp", "tensor", "torch one GPU", "torch DDP", "torch FSDP2")
TINY = {"layers": 2, "batch": 2, "length": 32}


def shape_of(model: str, tiny: bool) -> Any:
    """(the library's config, the peers' shape, batch a GPU, length)."""
    import dataclasses

    from benchmarks.qwen_shape import QWEN3_0_6B
    from genesis_fn.models import qwen

    config = qwen.PRESETS[model]
    batch, length = QWEN3_0_6B.batch, QWEN3_0_6B.length
    if tiny:
        batch, length = TINY["batch"], TINY["length"]
        config = dataclasses.replace(
            config, vocab_size=256, hidden_size=64, intermediate_size=128,
            num_hidden_layers=TINY["layers"], num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, layer_types=None,
        )  # fmt: skip
    shape = dataclasses.replace(
        QWEN3_0_6B, vocabulary=config.vocab_size, width=config.hidden_size,
        inner=config.intermediate_size, layers=config.num_hidden_layers,
        heads=config.num_attention_heads, kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim, batch=batch, length=length,
    )  # fmt: skip
    return config, shape, batch, length


def tokens_of(rank: int, batch: int, length: int, vocabulary: int) -> list[np.ndarray]:
    """Four batches of a rank's own random tokens, one longer than the model reads."""
    rng = np.random.default_rng(rank)
    return [rng.integers(0, vocabulary, (batch, length + 1), np.int32) for _ in range(4)]


def genesis(model: str, how: str, count: int, tiny: bool) -> dict[str, Any]:
    """This library: alone on each GPU, or over a mesh of all."""
    import genesis_fn as gf
    from genesis_fn import optim, parallel, random
    from genesis_fn.models import qwen
    from genesis_fn.transforms.precision.autocast import amp

    config, _, batch, length = shape_of(model, tiny)
    if how != "one GPU":
        gf.distributed.initialize()
    gpus = gf.device_count() if how != "one GPU" else 1
    mesh = gf.make_mesh((gpus,), ("model" if how == "tensor" else "data",))
    sequence = parallel.SequenceParallel(mesh) if how == "tensor" else None
    optimizer = optim.adamw(3e-4, weight_decay=0.1)
    whole = gf.eval_shape(lambda: qwen.init(random.key(0), config))
    if how == "fsdp":
        shardings = parallel.fsdp(whole, mesh)
    elif how == "tensor":
        shardings = parallel.tensor(whole, mesh)
    else:
        shardings = gf.tree.map(lambda _: parallel.replicated(mesh), whole)

    def loss(params: Any, tokens: Any) -> Any:
        return qwen.loss(params, tokens[:, :-1], tokens[:, 1:], config, sequence=sequence)

    loss = parallel.laid_out(loss, shardings)

    @functools.partial(gf.jit, donate_argnames=("params", "state"))
    def step(params: Any, state: Any, tokens: Any) -> Any:
        value, grads = gf.value_and_grad(amp(loss, "bfloat16"))(params, tokens)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state, value

    params = gf.jit(lambda: qwen.init(random.key(0), config), out_shardings=shardings)()
    states = parallel.state_shardings(optimizer.init, params, shardings)
    state = gf.jit(optimizer.init, out_shardings=states)(params)
    held: list[Any] = [params, state]
    del params, state
    if how == "tensor":
        every = [tokens_of(rank, batch, length, config.vocab_size) for rank in range(gpus)]
        rows = parallel.replicated(mesh)
        data = [gf.device_put(np.concatenate(parts), rows) for parts in zip(*every)]
    else:
        own = tokens_of(gf.process_index(), batch, length, config.vocab_size)
        data = [parallel.data(t, mesh, local=True) for t in own]

    def one(i: int) -> Any:
        *held[:], value = step(*held, data[i % 4])
        return value

    result = blocks(one, float, count)
    peak = 0.0
    if gf.devices()[0].kind == "cuda" and not tiny:
        peak = gf.cuda.max_memory_allocated() / 2**30
    return result | {"peak_GiB": peak}


def pytorch(model: str, how: str, count: int, tiny: bool) -> dict[str, Any]:
    """PyTorch: the twin compiled, alone, under DDP, or with its layers under fully_shard."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks.qwen_torch import Qwen

    _, shape, batch, length = shape_of(model, tiny)
    rank, device = int(os.environ.get("LOCAL_RANK", 0)), "cpu" if tiny else "cuda"
    if not tiny:
        torch.cuda.set_device(rank)
    dist.init_process_group("gloo" if tiny else "nccl")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    with torch.device(device):
        network: Any = Qwen(shape)
    mixed = how != "torch FSDP2"
    if how == "torch FSDP2":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in network.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(network, mp_policy=policy)
    elif how == "torch DDP":
        network = DistributedDataParallel(
            network, device_ids=None if tiny else [rank], gradient_as_bucket_view=True
        )
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=3e-4, weight_decay=0.1, fused=None if tiny else True
    )
    run = network if tiny else torch.compile(network)
    data = [
        torch.from_numpy(t).long().to(device)
        for t in tokens_of(dist.get_rank(), batch, length, shape.vocabulary)
    ]

    def one(i: int) -> torch.Tensor:
        tokens = data[i % 4]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=mixed):
            value = run(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        value.backward()
        optimizer.step()
        return value.detach()

    result = blocks(one, float, count)
    peak = 0.0 if tiny else torch.cuda.max_memory_allocated() / 2**30
    dist.destroy_process_group()
    return result | {"peak_GiB": peak}


def measure(model: str, row: str, count: int, tiny: bool) -> None:
    """One row in this process; the first rank prints it."""
    began = time.perf_counter()
    of = pytorch if row.startswith("torch") else genesis
    result = of(model, row, count, tiny) | {"seconds": time.perf_counter() - began}
    if os.environ.get("RANK", "0") == "0":
        print("ROW " + json.dumps(result), flush=True)


def launched(model: str, row: str, gpus: int, count: int, tiny: bool) -> dict[str, Any]:
    """One row, by torchrun."""
    alone = row.endswith("one GPU")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(1 if alone else gpus), "-m", "benchmarks.parallel_table",
        "--model", model, "--row", row, "--blocks", str(count), *["--tiny"] * tiny,
    ]  # fmt: skip
    made = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    found = [line for line in made.stdout.splitlines() if line.startswith("ROW ")]
    if made.returncode or not found:
        raise RuntimeError(f"torchrun ended with {made.returncode}")
    return json.loads(found[-1][4:])


def table(rows: dict[str, Any], gpus: int, tokens: int) -> str:
    """The rows of one model as Markdown."""
    alone = rows.get("one GPU", {}).get("step_ms")
    lines = [
        "| way | step | tokens/s | of linear | peak a GPU | first call |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, r in rows.items():
        count = 1 if name.endswith("one GPU") else gpus
        linear = f"{alone / r['step_ms']:.3f}" if alone else ""
        lines.append(
            f"| {name} | {r['step_ms']:.1f} ms | {count * tokens * 1e3 / r['step_ms']:,.0f} | "
            f"{linear} | {r['peak_GiB']:.1f} GiB | {r['first_call_s']:.1f} s |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, write, print."""
    options: argparse.ArgumentParser = parser(__doc__)
    options.add_argument("--gpus", type=int, default=2)
    options.add_argument("--model", choices=MODELS, default=MODELS[0])
    options.add_argument("--rows", nargs="*", default=ROWS, choices=ROWS)
    options.add_argument("--blocks", type=int, default=4)
    options.add_argument("--row", help="measure one row in this process and print it")
    args = options.parse_args()
    if args.row:
        measure(args.model, args.row, args.blocks, args.tiny)
        return
    # Without a dot, behind which a suffix would begin.
    stem = f"parallel-{args.model.replace('.', '_')}-{args.gpus}x"
    results = Results(Path(args.out) / stem, args.redo)
    one: Callable[[str], dict[str, Any]] = lambda row: launched(
        args.model, row, args.gpus, args.blocks, args.tiny
    )
    for row in args.rows:
        if row not in results.rows:
            results.measure(row, functools.partial(one, row))
    _, _, batch, length = shape_of(args.model, args.tiny)
    device = "CPU" if args.tiny else short(results.about["device"]).rstrip(",").upper()
    results.write_table(
        f"{args.model} on {args.gpus} {device}, {batch} x {length} tokens a GPU",
        table(results.in_order(list(ROWS)), args.gpus, batch * length),
    )


if __name__ == "__main__":
    main()
