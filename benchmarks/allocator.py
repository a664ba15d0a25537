"""The memory pool against torch's caching allocator in seven scenarios, on one GPU.

    python benchmarks/allocator.py --out benchmarks/results

S1 same size, S2 a cycle of one size, S3 large blocks, S4 the tensors of a transformer's step, S5
random sizes while 85 % of the device is held, S6 batches of varying size, S7 gradient accumulation.
Times are wall-clock nanoseconds for one allocation and its release, medians of ten runs after a
first one whose time stands beside them; the peers are `torch.empty` and torch's allocator called
by itself. Reserved over peak live bytes, and calls of the driver, are counted in the same runs.
Rows that the file holds are not measured again unless `--redo`. Writes allocator-DEVICE.json, a
table and a chart. Without a GPU `--tiny` rehearses this library's side on the interpreting driver,
with sizes divided by 1024.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from results_file import Results, parser, short

from genesis_fn.backends.cuda.driver.drivers import device_count
from genesis_fn.backends.cuda.memory.pool import Pool
from genesis_fn.backends.cuda.memory.report import memory_stats
from genesis_fn.backends.cuda.run.runtime import device_runtime

MIB = 1 << 20
REPEATS = 10
TINY = 1024  # what sizes are divided by in a rehearsal
TINY_DEVICE = 256 * MIB  # what a rehearsal may hold
# Speed of Genesis, the object-oriented framework, over PyTorch, as it was published.
PUBLISHED = {"S1": 1.43, "S3": 3.92, "S4": 1.89, "S5": 4.83, "S6": 0.83}

Alloc = Callable[[int], Any]


# ---- scenarios: each says how often it called `alloc(bytes)`; a dropped result is free ----


def same_size(alloc: Alloc) -> int:
    """One size a thousand times, for five sizes."""
    for elements in (1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20):
        for _ in range(1000):
            alloc(4 * elements)
    return 5000


def cycle(alloc: Alloc) -> int:
    """A matrix of 1024 x 1024, twenty times."""
    for _ in range(20):
        alloc(4 * 1024 * 1024)
    return 20


def large(alloc: Alloc) -> int:
    """1 to 512 MiB."""
    for mib in (1, 4, 16, 64, 256, 512):
        alloc(mib * MIB)
    return 6


def _transformer_sizes() -> list[int]:
    choose = random.Random(4)
    sizes = [choose.randrange(4, 129) * MIB for _ in range(58)]
    return [*sizes, 2048 * 10000 * 4, 8192 * 10000 * 4]


TRANSFORMER = _transformer_sizes()


def transformer(alloc: Alloc) -> int:
    """Sixty tensors in forward order, freed in reverse, ten steps."""
    for _ in range(10):
        held = [alloc(size) for size in TRANSFORMER]
        while held:
            held.pop()
    return 10 * len(TRANSFORMER)


def pressure(alloc: Alloc) -> int:
    """Random sizes of 1 to 64 MiB, sixty of them held; `measure` holds most of the device."""
    choose, held = random.Random(5), []
    for _ in range(600):
        held.append(alloc(choose.randrange(1 * MIB, 64 * MIB)))
        while len(held) > 60:
            held.pop(choose.randrange(len(held)))
    return 600


BATCHES = [random.Random(i).choice((8, 16, 24, 32, 48, 64)) for i in range(1000)]


def variable(alloc: Alloc) -> int:
    """Batches of 8 to 64 times 512 x 768 in random order."""
    for batch in BATCHES:
        alloc(batch * 512 * 768 * 4)
    return len(BATCHES)


def accumulation(alloc: Alloc) -> int:
    """Gradients that stay, and eight micro-steps of activations and gradients."""
    gradients = [alloc(size) for size in TRANSFORMER[:30]]
    count = len(gradients)
    for _ in range(8):
        activations = [alloc(size // 2) for size in TRANSFORMER[:30]]
        for size in TRANSFORMER[:30]:
            alloc(size)  # this micro-step's gradient, added to the one that stays
            activations.pop()
        count += 60
    return count


SCENARIOS: dict[str, Callable[[Alloc], int]] = {
    "S1": same_size, "S2": cycle, "S3": large, "S4": transformer, "S5": pressure, "S6": variable,
    "S7": accumulation,
}  # fmt: skip


# ---- measuring ----


def times(scenario: Callable[[Alloc], int], alloc: Alloc) -> dict[str, float]:
    """Milliseconds of a first run, then nanoseconds an allocation."""
    began = time.perf_counter()
    scenario(alloc)
    first = time.perf_counter() - began
    found = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        count = scenario(alloc)
        found.append((time.perf_counter() - began) / count)
    return {"first_ms": 1e3 * first, "ns": 1e9 * statistics.median(found)}


def held(alloc: Alloc, size: int) -> list[Any]:
    """So many bytes, in pieces of 1 GiB or less."""
    piece = min(size, 1 << 30)
    return [alloc(piece) for _ in range(size // piece if piece else 0)]


def ours(name: str, tiny: bool) -> dict[str, Any]:
    """One scenario on a pool of its own."""
    driver = device_runtime(0).driver
    device_runtime(0).pool.empty_cache()
    pool = Pool(driver)
    total = driver.info.total_memory
    if tiny:
        pool.set_memory_fraction(min(1.0, TINY_DEVICE / total))
        total = min(total, TINY_DEVICE)
    kept = held(pool.alloc, int(0.85 * total) if name == "S5" else 0)
    alloc: Alloc = pool.alloc if not tiny else lambda size: pool.alloc(size // TINY)
    row: dict[str, Any] = times(SCENARIOS[name], alloc)
    stats = memory_stats(pool)
    row |= {
        "driver_calls": stats["driver_calls"],
        "hit_rate": stats["hits"] / stats["allocations"],
        "reserved_over_live": stats["peak_mapped"] / stats["peak"],
    }
    kept.clear()
    pool.close()
    return row


def torch_peers(name: str) -> dict[str, dict[str, Any]]:
    """The scenario with `torch.empty`, and with torch's allocator by itself."""
    import torch

    class Raw:
        __slots__ = ("address",)

        def __init__(self, size: int) -> None:
            self.address = torch.cuda.caching_allocator_alloc(size)

        def __del__(self) -> None:
            torch.cuda.caching_allocator_delete(self.address)

    total = torch.cuda.get_device_properties(0).total_memory
    empty = lambda size: torch.empty(size >> 2, device="cuda")
    rows: dict[str, dict[str, Any]] = {}
    for label, alloc in (("torch.empty", empty), ("torch allocator", Raw)):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        calls = torch.cuda.memory_stats().get("num_device_alloc", 0)
        kept = held(alloc, int(0.85 * total) if name == "S5" else 0)
        row: dict[str, Any] = times(SCENARIOS[name], alloc)
        stats = torch.cuda.memory_stats()
        peak = max(stats["allocated_bytes.all.peak"], 1)
        row |= {
            "driver_calls": stats.get("num_device_alloc", 0) - calls,
            "reserved_over_live": stats["reserved_bytes.all.peak"] / peak,
        }
        rows[label] = row
        kept.clear()
    torch.cuda.empty_cache()
    return rows


def measure(name: str, tiny: bool) -> dict[str, Any]:
    """One scenario, every system."""
    gc.collect()
    return {"genesis_fn": ours(name, tiny)} | ({} if tiny else torch_peers(name))


# ---- showing ----


def table(found: dict[str, Any]) -> str:
    """The rows as Markdown; Genesis's published speed over PyTorch beside ours."""
    lines = [
        "| scenario | genesis_fn | torch.empty | torch allocator | over torch.empty | "
        "Genesis over torch | reserved / peak live, ours and torch's | driver calls |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in found.items():
        mine, peer = row["genesis_fn"], row.get("torch.empty")
        ns = [
            f"{row[s]['ns']:.0f} ns" if s in row else "-"
            for s in ("genesis_fn", "torch.empty", "torch allocator")
        ]
        ratio = f"{peer['ns'] / mine['ns']:.2f}" if peer else "-"
        reserved = [f"{r['reserved_over_live']:.2f}" for r in (mine, peer) if r]
        calls = [str(r["driver_calls"]) for r in (mine, peer) if r]
        what = SCENARIOS[name].__name__.replace("_", " ")
        lines.append(
            f"| {name} {what} | {' | '.join(ns)} | {ratio} | {PUBLISHED.get(name, '')} | "
            f"{', '.join(reserved)} | {', '.join(calls)} |"
        )
    return "\n".join(lines)


def draw(found: dict[str, Any], axes: Any) -> None:
    """Nanoseconds by scenario and system, as bars."""
    systems = ("genesis_fn", "torch.empty", "torch allocator")
    for k, (system, color) in enumerate(zip(systems, ("#4878a8", "#e8a33d", "#9a9a9a"))):
        shown = [(i, row[system]["ns"]) for i, row in enumerate(found.values()) if system in row]
        axes.bar(
            [i + 0.27 * (k - 1) for i, _ in shown],
            [ns for _, ns in shown],
            width=0.25,
            color=color,
            label=system,
        )
    axes.set_yscale("log")
    axes.set_xticks(range(len(found)), list(found))
    axes.set_ylabel("ns an allocation and release")


def main() -> int:
    """Measure the rows that are missing; write and print the table; 1 if one failed."""
    options = parser(__doc__)
    options.add_argument("--only", default=",".join(SCENARIOS), help="scenarios, by commas")
    args = options.parse_args()
    if not args.tiny and (device_count() == 0 or os.environ.get("GENESIS_CUDA_DRIVER")):
        options.error("no GPU is usable here; --tiny with GENESIS_CUDA_DRIVER=interpret rehearses")
    place = "tiny" if args.tiny else short(device_runtime(0).driver.info.name)
    results = Results(Path(args.out) / f"allocator-{place}", args.redo)
    missing = [name for name in args.only.split(",") if name not in results.rows]
    measured = [results.measure(name, lambda: measure(name, args.tiny)) for name in missing]
    found = results.in_order(list(SCENARIOS))
    title = f"Allocators, {results.about['device']}, torch {results.about['versions']['torch']}"
    results.write_table(title, table(found))
    with results.chart(title, (8, 3.5)) as axes:
        draw(found, axes)
    return int(not all(measured))


if __name__ == "__main__":
    sys.exit(main())
