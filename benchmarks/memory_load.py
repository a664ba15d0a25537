"""Many programs of changing shapes, from several threads, near the memory limit, in one process.

    python benchmarks/memory_load.py --seconds 80

Programs with Fourier transforms, factorizations, sums by segment, products and complex numbers are
compiled side by side, so that their kernels are in the cache, and run one by one. Then all are
traced and run again from `--threads` threads, under a limit of about what these need at once
(`gf.cuda.set_memory_fraction`). Asserts that every result is what it was
alone, that memory in use ends where it began, that mapped memory stayed below the limit and goes
back to the GPU, and that plans and handles of libraries are as many as their caches keep. Exits
with 1 if a check fails. Without a GPU `--tiny` rehearses it on the interpreting driver.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("GENESIS_CUDA_DRIVER", "cuda")
os.environ["TRITON_INTERPRET"] = "01"[os.environ["GENESIS_CUDA_DRIVER"] == "interpret"]
os.environ["GENESIS_DEVICE"] = "cuda"

import numpy as np

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import errors, ops
from genesis_fn.backends.cuda.run.executable import CudaExecutable

MIB = 1 << 20
ROOM = 96 * MIB  # beside what programs need: pieces of the pool that are mapped as a whole
BOUND = 1e-4  # of the largest element: libraries may add up in another order
_COMPILING = 8
TRIES = 20  # of a program that finds no memory, as others have it

Program = tuple[Callable[..., Any], list[np.ndarray]]


# ---- programs: a seed's shapes and values ----


def transforms(rng: Any, scale: int) -> Program:
    """A filter between two transforms of rows, of any length."""
    rows, n = 64 // scale + 1, int(rng.integers(5000, 60000)) // scale
    x = rng.standard_normal((rows, n)).astype(np.float32)
    return lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * (0.5 + 0.1j), n=n) + jnp.abs(jnp.fft.fft(x)), [
        x
    ]


def planes(rng: Any, scale: int) -> Program:
    """Transforms along two axes."""
    m, n = (rng.integers(200, 1500, 2) // scale + 2).tolist()
    z = rng.standard_normal((4, m, n)) + 1j * rng.standard_normal((4, m, n))
    return lambda z: jnp.fft.ifft2(jnp.fft.fft2(z) * 2.0) - z, [z.astype(np.complex64)]


def solves(rng: Any, scale: int) -> Program:
    """A Cholesky factor, and solutions by it and by LU."""
    n, k = (rng.integers(100, 1200, 2) // scale + 2).tolist()
    a = rng.standard_normal((n, n)).astype(np.float32)
    b = rng.standard_normal((n, k)).astype(np.float32)

    def f(a: Any, b: Any) -> Any:
        matrix = a @ a.T / n + 2 * jnp.eye(n)
        return jnp.linalg.cholesky(matrix), jnp.linalg.solve(matrix, b)

    return f, [a, b]


def factors(rng: Any, scale: int) -> Program:
    """What is unique of factors of a batch of matrices."""
    batch, n = int(rng.integers(1, 6)), int(rng.integers(20, 160)) // scale + 2
    a = rng.standard_normal((batch, n, n)).astype(np.float32)

    def f(a: Any) -> Any:
        q, r = jnp.linalg.qr(a)
        return (
            q @ r,
            jnp.linalg.svd(a, compute_uv=False),
            jnp.linalg.eigvalsh(a + jnp.matrix_transpose(a)),
        )

    return f, [a]


def segments(rng: Any, scale: int) -> Program:
    """Rows added by segment, and read back."""
    # A rehearsal's rows are walked one by one.
    rows = int(rng.integers(10_000, 200_000)) // (scale * max(1, scale // 2))
    width = int(rng.integers(3, 70))
    count = rows // 10 + 1
    x = rng.standard_normal((rows, width)).astype(np.float32)
    ids = rng.integers(0, count, rows).astype(np.int32)
    return lambda x, ids: ops.segment_sum(x, ids, count)[ids] - x, [x, ids]


def products(rng: Any, scale: int) -> Program:
    """A chain of products and what stands between them."""
    m, k, n = (rng.integers(200, 3000, 3) // scale + 1).tolist()
    x = rng.standard_normal((m, k)).astype(np.float32)
    y = rng.standard_normal((k, n)).astype(np.float32)
    return lambda x, y: jnp.tanh(x @ y / k) @ y.T, [x, y]


def complexes(rng: Any, scale: int) -> Program:
    """Complex products and functions."""
    m, n = (rng.integers(200, 2500, 2) // scale + 1).tolist()
    z = (rng.standard_normal((m, n)) + 1j * rng.standard_normal((m, n))).astype(np.complex64)
    return lambda z: jnp.exp(1j * jnp.abs(z)) * (z @ jnp.conj(z.T) @ z) / (m * n), [z]


MAKERS = (transforms, planes, solves, factors, segments, products, complexes)


def program(seed: int, scale: int) -> Program:
    """The program of a seed."""
    return MAKERS[seed % len(MAKERS)](np.random.default_rng(seed), scale)


def results(seed: int, scale: int) -> list[np.ndarray]:
    """Its results, compiled and run now."""
    f, inputs = program(seed, scale)
    made = gf.jit(f)(*[jnp.asarray(x) for x in inputs])
    return [np.asarray(y) for y in gf.tree.leaves(made)]


def apart(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """The largest difference relative to a result's largest element."""
    gaps = [
        np.abs(g - w).max(initial=0) / max(np.abs(w).max(initial=0), 1e-30)
        for g, w in zip(found, wanted, strict=True)
    ]
    return float(np.max(gaps))


# ---- the load ----


class Load:
    """What threads have in common: the seeds that are left, and what they found."""

    def __init__(self, wanted: dict[int, list[np.ndarray]], scale: int, end: float) -> None:
        self.wanted, self.scale, self.end = wanted, scale, end
        self.lock, self.left = threading.Lock(), iter(list(wanted) * 1000)
        self.ran, self.refused, self.worst = 0, 0, 0.0
        self.failures: list[str] = []

    def work(self) -> None:
        """Run programs until the time is over."""
        while time.monotonic() < self.end:
            with self.lock:
                seed = next(self.left)
            try:
                gap = apart(self.retried(seed), self.wanted[seed])
            except Exception as error:
                self.failures.append(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
                continue
            with self.lock:
                self.ran += 1
                self.worst = max(self.worst, gap)
            if not gap <= BOUND:
                self.failures.append(
                    f"seed {seed} ({MAKERS[seed % len(MAKERS)].__name__}): {gap:.1e}"
                )

    def retried(self, seed: int) -> list[np.ndarray]:
        """The results of a program, once there is memory for it."""
        for _ in range(TRIES):
            try:
                return results(seed, self.scale)
            except errors.OutOfMemoryError:
                with self.lock:
                    self.refused += 1
            time.sleep(0.05)
        return results(seed, self.scale)


def compiled(count: int, scale: int, end: float) -> tuple[list[int], list[str]]:
    """(the seeds below `count` whose kernels were compiled in time, by threads of `_COMPILING`;
    what failed)."""
    lock, seeds, done, failures = threading.Lock(), iter(range(count)), [], []

    def work() -> None:
        while time.monotonic() < end:
            with lock:
                seed = next(seeds, None)
            if seed is None:
                return
            try:
                results(seed, scale)
            except Exception as error:
                failures.append(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
            else:
                done.append(seed)

    threads = [threading.Thread(target=work) for _ in range(_COMPILING)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(done), failures


def settled() -> dict[str, int | float]:
    """Statistics of the pool once nothing refers to programs and results any more."""
    gf.clear_caches()
    gc.collect()
    gf.cuda.synchronize()
    gf.cuda.empty_cache()
    return gf.cuda.memory_stats()


def kept() -> dict[str, tuple[int, int]]:
    """(how many there are, how many there may be) of compiled programs, and of libraries' plans and
    handles where NVIDIA's are used."""
    alive = [type(x) for x in gc.get_objects()]
    counts = {"programs": (alive.count(CudaExecutable), 0)}
    if os.environ["GENESIS_CUDA_DRIVER"] == "cuda":
        from genesis_fn.backends.cuda.libraries import nvidia, transforms

        counts["transforms' plans"] = len(transforms._plans), transforms.MOST_PLANS
        counts["handles"] = alive.count(nvidia._Handles), 1  # the main thread's
        scratch = nvidia.scratch.cache_info()
        counts["scratch sizes"] = scratch.currsize, scratch.maxsize or 0
    return counts


def main() -> int:
    """Run, print what was found, check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=80)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--programs", type=int, default=210)
    parser.add_argument("--tiny", action="store_true", help="sizes divided by 40")
    args = parser.parse_args()
    scale, began = 40 if args.tiny else 1, time.monotonic()
    for seed in range(len(MAKERS)):
        results(seed, scale)
    start, free = settled(), gf.cuda.mem_get_info()[0]
    total = gf.cuda.mem_get_info()[1]
    seeds, failures = compiled(args.programs, scale, began + 0.45 * args.seconds)
    settled()
    wanted, peaks = {}, [0]
    for seed in seeds:
        if time.monotonic() - began > 0.65 * args.seconds and len(wanted) >= len(MAKERS):
            break
        gf.cuda.reset_peak()
        wanted[seed] = results(seed, scale)
        peaks.append(gf.cuda.max_memory_allocated() - int(start["in_use"]))
    settled()
    # As much as the largest program needs, and what the other threads' need on the whole.
    need = max(peaks) + (args.threads - 1) * int(np.mean(peaks))
    limit = int(start["mapped"]) + need + ROOM
    gf.cuda.set_memory_fraction(min(1.0, limit / total))
    gf.cuda.reset_peak()
    load = Load(wanted, scale, began + 0.95 * args.seconds)
    load.failures += failures
    threads = [threading.Thread(target=load.work) for _ in range(args.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    during = gf.cuda.memory_stats()
    del threads
    end = settled()
    gf.cuda.set_memory_fraction(1.0)
    outside = free - gf.cuda.mem_get_info()[0]
    counts = kept()
    checks = {
        f"{load.ran} runs of {len(wanted)} programs, results as alone (worst {load.worst:.1e})": (
            not load.failures and load.ran >= min(len(wanted), args.threads)
        ),
        f"in use {end['in_use']} bytes, {start['in_use']} at the start": (
            end["in_use"] == start["in_use"]
        ),
        f"mapped {during['peak_mapped'] / MIB:.0f} MiB at most, the limit is {limit / MIB:.0f}": (
            during["peak_mapped"] <= limit
        ),
        f"in use {during['peak'] / MIB:.0f} MiB at most, {load.refused} refusals tried again": True,
        f"mapped {end['mapped'] / MIB:.0f} MiB in the end, {start['mapped'] / MIB:.0f} before": (
            end["mapped"] <= start["mapped"] + ROOM
        ),
        f"{outside / MIB:.0f} MiB of the GPU less free than at the start": outside <= 512 * MIB,
    }
    for name, (count, most) in counts.items():
        checks[f"{count} {name}, {most} at most"] = count <= most
    for what, holds in checks.items():
        print(f"{'ok' if holds else 'FAILED':7}{what}")
    for failure in load.failures[:20]:
        print(f"       {failure}")
    verdict = "all hold" if all(checks.values()) else "FAILED"
    print(f"memory load: {verdict}, {time.monotonic() - began:.0f} s")
    return int(not all(checks.values()))


if __name__ == "__main__":
    sys.exit(main())
