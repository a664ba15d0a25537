"""Collectives of the library, captured into a program's graph, beside torch.distributed's.

    torchrun --nproc-per-node 2 -m benchmarks.collectives --out benchmarks/results

Both sides run on the same GPUs in the same run, several collectives in a row, each on memory of its
own: the library's in one program, which puts small ones into one launch as any program does,
torch's captured into one CUDA graph, and torch's one by one. A
size is that of the largest buffer. Microseconds are those of one collective, the median of blocks
of launches between two waits. Results are compared with torch's on random numbers.

torch's communicator is made first, with NCCL's own choice of algorithms; the library's adds in
rings (`NCCL_ALGO` in the environment decides for both). Without a GPU `--tiny` rehearses with gloo
on the interpreting driver.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import genesis_fn as gf
from benchmarks.results_file import Results, parser, short
from genesis_fn.backends.cuda.run.steps import Join
from genesis_fn.core.aval import aval
from genesis_fn.core.primitive import bind
from genesis_fn.core.sharding.mesh import MeshAxis, make_mesh
from genesis_fn.primitives.shape import reshape, slice_in_dim
from genesis_fn.transforms.batching import collectives as col, exchanges
from genesis_fn.transforms.staging.stage_trace import stage_closed

MIB = 1 << 20
SIZES = (1, 16, 64, 1137)  # MiB; the last one is the gradient of Qwen3-0.6B in bfloat16
SHIFT = 64  # elements between the operands of two collectives
BLOCKS = 9


class Case:
    """A collective on both sides: `ours(x, axis)` and `torchs(out, x)`, on operands of `given` and
    results of `made` elements of float32."""

    def __init__(
        self,
        ours: Callable[[Any, MeshAxis], Any],
        torchs: Callable[[torch.Tensor, torch.Tensor], object],
        given: int,
        made: int,
    ) -> None:
        self.ours, self.torchs, self.given, self.made = ours, torchs, given, made


def all_reduce(out: torch.Tensor, x: torch.Tensor) -> None:
    """torch's sum is in place."""
    dist.all_reduce(out)


def reduce_scatter(out: torch.Tensor, x: torch.Tensor) -> None:
    """What gloo lacks is a sum of which a part is taken."""
    if x.is_cuda:
        dist.reduce_scatter_tensor(out, x)
    else:
        whole = x.clone()
        dist.all_reduce(whole)
        out.copy_(whole.view(-1, out.numel())[dist.get_rank()])


def cases(n: int, world: int) -> dict[str, Case]:
    """The collectives on buffers of at most `n` elements."""
    part = n // world
    rows = lambda x: reshape(x, (world, part))
    return {
        "all-reduce": Case(
            lambda x, axis: bind(col.psum_invariant_p, x, axis_name=axis), all_reduce, n, n
        ),
        "all-gather": Case(
            lambda x, axis: bind(col.all_gather_p, x, axis_name=axis, axis=0, size=world),
            dist.all_gather_into_tensor,
            part,
            n,
        ),
        "reduce-scatter": Case(
            lambda x, axis: bind(col.psum_scatter_p, rows(x), axis_name=axis, axis=0, size=world),
            reduce_scatter,
            n,
            part,
        ),
        "all-to-all": Case(
            lambda x, axis: bind(
                exchanges.all_to_all_p, rows(x), axis_name=axis, split=0, concat=0, size=world
            ),
            dist.all_to_all_single,
            n,
            n,
        ),
    }


def wait() -> None:
    """Until the GPU is idle."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def microseconds(run: Callable[[], object], each: int, seconds: float) -> float:
    """The median time of one of the `each` collectives of `run`, on the slowest process."""
    run()
    wait()
    dist.barrier()
    began = time.perf_counter()
    run()
    wait()
    launches = torch.tensor([max(1, int(seconds / (time.perf_counter() - began)))])
    launches = launches.to(DEVICE)
    dist.broadcast(launches, 0)
    times = []
    for _ in range(BLOCKS):
        dist.barrier()
        wait()
        began = time.perf_counter()
        for _ in range(int(launches)):
            run()
        wait()
        took = torch.tensor([time.perf_counter() - began], dtype=torch.float64).to(DEVICE)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        times.append(float(took) / int(launches) / each * 1e6)
    return statistics.median(times)


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """A CUDA graph of what `run` enqueues."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def program(case: Case, axis: MeshAxis, count: int) -> Any:
    """The library's program of `count` collectives, compiled."""
    here, size = gf.local_devices()[0], case.given + SHIFT * count

    def several(x: Any) -> list[Any]:
        parts = [slice_in_dim(x, SHIFT * i, SHIFT * i + case.given) for i in range(count)]
        return [case.ours(part, axis) for part in parts]

    jaxpr = stage_closed(several, [aval((size,), gf.numpy.dtype("float32"))], "collectives")
    return here.backend.compile(jaxpr, here)


def buffers(case: Case, x: torch.Tensor, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(result, operand) of each of torch's collectives."""
    parts = [x[SHIFT * i :][: case.given] for i in range(count)]
    in_place = case.torchs is all_reduce
    return [(p.clone() if in_place else x.new_empty(case.made), p) for p in parts]


def error(case: Case, found: list[Any], x: torch.Tensor) -> float:
    """The greatest difference from torch's results, relative to the greatest element."""
    worst = 0.0
    for y, (wanted, operand) in zip(found, buffers(case, x, len(found)), strict=True):
        case.torchs(wanted, operand)
        ours = torch.from_dlpack(y) if x.is_cuda else torch.tensor(gf.device_get(y))
        worst = max(worst, float((ours.reshape(-1) - wanted).abs().max() / wanted.abs().max()))
    return worst


def measure(case: Case, axis: MeshAxis, count: int, seconds: float) -> dict[str, Any]:
    """The times of one case, `count` collectives in a row; the results agree."""
    torch.manual_seed(dist.get_rank())
    x = torch.randn(case.given + SHIFT * count, device=DEVICE)
    wait()
    run = program(case, axis, count)
    # In the library's memory: an operand in another one's is copied there at every call.
    array = gf.device_put(x.cpu().numpy(), run.sigs[0].device)
    steps = [step for step in run.schedule.steps if not isinstance(step, Join)]
    assert sum([len(step.members) for step in steps]) == count, steps
    found = run(array)
    wait()  # two communicators at once may wait for each other
    row: dict[str, Any] = {"error": error(case, found, x)}
    assert row["error"] < 1e-6, f"results differ by {row['error']}"
    row["library_us"] = microseconds(lambda: run(array), count, seconds)
    pairs = buffers(case, x, count)

    def torchs() -> None:
        for out, operand in pairs:
            case.torchs(out, operand)

    if x.is_cuda:
        row["torch_graph_us"] = microseconds(captured(torchs), count, seconds)
    row["torch_eager_us"] = microseconds(torchs, count, seconds)
    row["ratio"] = row["library_us"] / row.get("torch_graph_us", row["torch_eager_us"])
    return row


def table(rows: dict[str, Any]) -> str:
    """The rows for people."""
    lines = [
        "| collective | MiB | library us | torch, graph us | torch, eager us | GB/s | ratio |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for name, r in rows.items():
        kind, size = name.split()
        graph = f"{r['torch_graph_us']:.1f}" if "torch_graph_us" in r else "-"
        lines.append(
            f"| {kind} | {size} | {r['library_us']:.1f} | {graph} | {r['torch_eager_us']:.1f} | "
            f"{float(size) * MIB / r['library_us'] / 1e3:.0f} | {r['ratio']:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure everything; rank 0 prints and writes."""
    options = parser(__doc__)
    options.add_argument("--sizes", type=float, nargs="*", default=SIZES, help="MiB")
    options.add_argument("--seconds", type=float, default=0.3, help="of one block of launches")
    chosen = options.parse_args()
    sizes, seconds = ([0.0625], 0.001) if chosen.tiny else (chosen.sizes, chosen.seconds)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl", device_id=torch.device(DEVICE))
    else:
        dist.init_process_group("gloo")
    dist.barrier()
    gf.distributed.initialize()
    world, rank = gf.process_count(), gf.process_index()
    axis = make_mesh((world,), ("i",)).axes["i"]
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "an interpreter"
    results = Results(Path(chosen.out) / f"collectives-{world}x-{short(name)}", True)
    results.about |= {
        "world": world,
        "nccl": list(torch.cuda.nccl.version()) if torch.cuda.is_available() else None,
        "algorithms": os.environ.get("NCCL_ALGO", "torch: NCCL's choice; library: rings"),
        "dtype": "float32",
    }
    for size in sizes:
        n = int(size * MIB) // 4
        count = 2 if chosen.tiny else 20 if size < 64 else 4
        for kind in cases(n, world):
            row = measure(cases(n, world)[kind], axis, count, seconds)
            if rank == 0:
                results.add(f"{kind} {size:g}", row)
    if rank == 0:
        kinds = [f"{k} {s:g}" for k in cases(1, 1) for s in sizes]
        results.write_table(f"Collectives on {world} GPUs", table(results.in_order(kinds)))
    dist.barrier()
    dist.destroy_process_group()
    gf.distributed.shutdown()


DEVICE = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"

if __name__ == "__main__":
    main()
