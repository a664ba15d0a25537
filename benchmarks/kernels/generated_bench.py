"""Times each distinct generated kernel of the Qwen3-0.6B training step on one GPU.

    python benchmarks/kernels/generated_bench.py --out benchmarks/results/kernel-generated-h200.json

Prints for each kernel how often the step runs it, microseconds, bytes, GB/s and its share of the
bandwidth of a large copy in the same run; then the sum over the step. Kernels run in a CUDA graph
over buffers that together exceed the L2 cache. Under a minute of device time. `--without crossed`
plans without a pass of the compiler (`compiler/options.py`), `--plan` lists kernels and bytes only,
and needs no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch_launch import TARGET

import genesis_fn as gf
from genesis_fn import random
from genesis_fn.backends.cuda.codegen import generate
from genesis_fn.backends.cuda.lower.steps import keeps_fused
from genesis_fn.compiler.fusion.fuse import fuse_jaxpr
from genesis_fn.compiler.fusion.group import FusionGroup
from genesis_fn.compiler.memory.rematerialise import rematerialise_jaxpr
from genesis_fn.compiler.options import without
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.kernels.plan import BufferArg, Launch, Plan
from genesis_fn.models import qwen

_ROTATED = 160 << 20  # bytes that the buffers of one kernel's calls exceed together
_MOST_CALLS = 48


@dataclasses.dataclass(slots=True)
class Kernel:
    """A distinct launch: its buffers' bytes in the order of `order`, its traffic in bytes, how
    often the step runs it."""

    launch: Launch
    sizes: list[int]
    traffic: int
    what: str
    count: int = 0


def program(layers: int, batch: int, length: int) -> Jaxpr:
    """The training step as the CUDA backend fuses it; nothing is computed."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from qwen_train import make_step

    config = dataclasses.replace(qwen.PRESETS["qwen3-0.6b"], num_hidden_layers=layers)
    optimizer, step = make_step(config, "bfloat16")
    params = gf.eval_shape(lambda: qwen.init(random.key(0), config))
    state = gf.eval_shape(optimizer.init, params)
    tokens = gf.ShapeDtypeStruct((batch, length + 1), "int32")
    return rematerialise_jaxpr(
        simplify_jaxpr(step.trace(params, state, tokens).jaxpr, keeps_fused(TARGET))
    )


def kernels(jaxpr: Jaxpr) -> list[Kernel]:
    """The distinct generated kernels of a program, in order of first use."""
    found: dict[Any, Kernel] = {}
    for group in fuse_jaxpr(jaxpr, TARGET).groups:
        if group.kernel is None:
            continue
        for launch, sizes, traffic in _launches(group):
            key = launch.kernel.text, launch.grid, launch.num_warps
            if key not in found:
                primitives = [i.eqn.prim.name for i in group.kernel.instrs if i.eqn is not None]
                what = "+".join(dict.fromkeys(primitives)) or "copy"
                found[key] = Kernel(launch, sizes, traffic, what)
            found[key].count += 1
    return list(found.values())


def _launches(group: FusionGroup) -> Iterator[tuple[Launch, list[int], int]]:
    made = generate(group.kernel, TARGET)  # type: ignore[arg-type]
    sizes = [v.aval.nbytes for v in (*made.reads, *made.writes)]
    sizes += [w.bytes for w in made.plan.workspaces]
    for n, step in enumerate(made.plan.steps):
        assert isinstance(step, Launch)
        order: dict[int, int] = {}
        arguments = {}
        for name, a in step.arguments.items():
            assert isinstance(a, BufferArg)
            arguments[name] = dataclasses.replace(a, index=order.setdefault(a.index, len(order)))
        used = [sizes[k] for k in order]
        step = dataclasses.replace(step, arguments=arguments)
        yield step, used, sum(used) if n else group.traffic


def measure(found: list[Kernel]) -> dict[str, Any]:
    """The seconds of each kernel, and of a copy of 1 GiB."""
    import torch
    from torch_launch import TORCH_DTYPES, bound_plan, graph_time

    pair = [torch.empty(1 << 28, device="cuda").uniform_() for _ in range(2)]
    copy = 2 * pair[0].nbytes / graph_time([lambda: pair[0].copy_(pair[1])])
    pair.clear()
    rows = []
    for k in found:
        kinds = {a.index: a.dtype for a in k.launch.arguments.values() if isinstance(a, BufferArg)}
        launch = dataclasses.replace(k.launch, kernel=k.launch.kernel.function)
        calls = []
        copies = min(_MOST_CALLS, max(1, -(-_ROTATED // max(1, sum(k.sizes)))))
        for _ in range(copies):
            tensors = []
            for index, size in enumerate(k.sizes):
                dtype = TORCH_DTYPES[kinds[index]]
                t = torch.ones(max(1, size // dtype.itemsize), dtype=dtype, device="cuda")
                # Ordinary numbers: exact division and roots take longer for the others.
                tensors.append(t.uniform_(0.5, 1.5) if dtype.is_floating_point else t)
            calls.append(bound_plan(Plan(len(tensors), 0, (launch,)), tensors))
        rows.append({"seconds": graph_time(calls)})
        del calls, tensors
        torch.cuda.empty_cache()
    return {"copy_bytes_per_s": copy, "rows": rows}


def main() -> None:
    """Parse, plan, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--without", default="", help="passes that do not run, with commas")
    parser.add_argument("--plan", action="store_true", help="list kernels and bytes only")
    parser.add_argument("--source", action="store_true", help="print the kernels' text too")
    parser.add_argument("--out")
    args = parser.parse_args()
    with without(*filter(None, args.without.split(","))):
        found = kernels(program(args.layers, args.batch, args.length))
    began = time.perf_counter()
    measured = None if args.plan else measure(found)
    copy = measured["copy_bytes_per_s"] if measured else 4.28e12
    print(
        f"{'kernel':<10} {'grid':<16} {'warps':>5} {'times':>5} {'MB':>9} {'us':>8} {'GB/s':>6} "
        f"{'of copy':>7}  what"
    )
    records, total, least = [], 0.0, 0.0
    for n, k in enumerate(found):
        seconds = measured["rows"][n]["seconds"] if measured else k.traffic / copy
        total += k.count * seconds
        least += k.count * k.traffic / copy
        share = k.traffic / seconds / copy if seconds else 0.0
        rate = k.traffic / max(seconds, 1e-9) / 1e9
        print(
            f"{k.launch.kernel.name:<10} {k.launch.grid!s:<16} {k.launch.num_warps:>5} "
            f"{k.count:>5} {k.traffic / 1e6:>9.2f} {seconds * 1e6:>8.1f} {rate:>6.0f} "
            f"{share:>7.0%}  {k.what[:60]}"
        )
        if args.source:
            print(k.launch.kernel.text.split("@triton.jit\n")[-1])
        records.append(
            {
                "name": k.launch.kernel.name,
                "grid": k.launch.grid,
                "warps": k.launch.num_warps,
                "count": k.count,
                "bytes": k.traffic,
                "seconds": seconds,
                "of_copy": share,
                "what": k.what,
            }
        )
    print(
        f"{len(found)} kernels, {total * 1e3:.2f} ms a step one by one; {least * 1e3:.2f} ms at "
        f"the {copy / 1e9:.0f} GB/s of a copy"
    )
    if args.out:
        result: dict[str, Any] = {"copy_bytes_per_s": copy, "rows": records, "total_s": total}
        with suppress(ImportError, RuntimeError):
            import torch

            result |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        result |= {
            "commit": os.environ.get("COMMIT", "unknown"),
            "measured_in_s": time.perf_counter() - began,
        }
        Path(args.out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
