"""Sums by segment on a GPU: graph convolution, segment sums, variants of the walk.

    PYTHONPATH=. python .gpu/segments_gpu.py        # from the tree's root
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
sys.path.insert(0, str(Path("benchmarks").resolve()))

import numpy as np
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.compiler.options import without
from genesis_fn.core.array import from_numpy
from genesis_fn.kernels.indexing import exact_sums, sorted_runs

try:
    import jax
    from numeric_programs import JAX, OURS, PROGRAMS, flat
    from operators import per_call
except Exception:
    traceback.print_exc()
    sys.exit(1)

print(torch.cuda.get_device_name(), "torch", torch.__version__, "jax", jax.__version__)
import triton

print("triton", triton.__version__)
wait = lambda out: flat(out)[0].block_until_ready()


def row(name, run):
    try:
        print(f"{name:58s} {run()}", flush=True)
    except Exception as error:  # a row that fails must not end the script
        print(f"{name:58s} FAILED {type(error).__name__}: {str(error)[:300]}", flush=True)
        traceback.print_exc()


def ms(f, args):
    return per_call(lambda: f(*args), wait) * 1e3


def same_bits(f, args):
    first = [np.asarray(y).tobytes() for y in flat(f(*args))]
    return all([np.asarray(y).tobytes() for y in flat(f(*args))] == first for _ in range(4))


def profile(f, args, most=12):
    found = gf.profiler.profile(f)(*args)
    for line in sorted(found.lines, key=lambda x: -x.seconds)[:most]:
        print(f"      {line.seconds * 1e3:8.3f} ms  {line.calls:3d}x  {line.primitive}")


# ---- the segment sums ----
rng = np.random.default_rng(0)
NODES = 1 << 18


def exact(data, ids, rows):
    out = np.zeros((rows, data.shape[1]))
    for c in range(data.shape[1]):
        out[:, c] = np.bincount(ids, data[:, c].astype(np.float64), minlength=rows)
    return out


def segment_row(name, count, columns, ids, rows=NODES, **how):
    data = rng.standard_normal((count, columns), np.float32)
    want = exact(data, ids, rows) if columns <= 8 else None
    if want is None:
        want = np.zeros((rows, columns))
        part = rng.permutation(columns)[:2]
        want[:, part] = exact(data[:, part], ids, rows)
    mine, there = [from_numpy(v) for v in (data, ids)], [jax.device_put(v) for v in (data, ids)]
    theirs = jax.jit(lambda x, i: jax.ops.segment_sum(x, i, rows, **how))
    other = ms(theirs, there)
    for deterministic in (True, False):
        f = gf.jit(
            lambda x, i: gf.ops.segment_sum(x, i, rows, deterministic=deterministic, **how)
        )

        def one(f=f, deterministic=deterministic):
            got = np.asarray(f(*mine)).astype(np.float64)
            columns_ = range(columns) if columns <= 8 else part
            off = max(np.abs(got[:, c] - want[:, c]).max() for c in columns_)
            bits = same_bits(f, mine)
            t = ms(f, mine)
            return f"{t:8.3f} ms  JAX {other:6.3f}  x{other / t:5.2f}  off {off:.1e}  same bits {bits}"

        row(f"{name} {'ordered' if deterministic else 'atomics'}", one)
        if deterministic:
            row("    kernels", lambda f=f: profile(f, mine, 8) or "")
    gf.clear_caches()


E = 1 << 21
target = rng.integers(0, NODES, E, np.int32)
TABLE = [
    ("2^21 x 64 into 2^18", E, 64, target, {}),
    ("2^21 x 64 into 2^18, sorted", E, 64, np.sort(target), {"indices_are_sorted": True}),
    ("2^24 x 1 into 2^18", 1 << 24, 1, rng.integers(0, NODES, 1 << 24, np.int32), {}),
    ("2^24 x 1 into 2^18, zipf 1.3", 1 << 24, 1,
     np.minimum(rng.zipf(1.3, 1 << 24) - 1, NODES - 1).astype(np.int32), {}),
    ("2^24 x 1 into 2^18, all to one", 1 << 24, 1, np.full(1 << 24, 7, np.int32), {}),
    ("2^22 x 4 into 2^18", 1 << 22, 4, rng.integers(0, NODES, 1 << 22, np.int32), {}),
    ("2^20 x 1 into 2^18", 1 << 20, 1, rng.integers(0, NODES, 1 << 20, np.int32), {}),
    ("2^22 x 8 into 2^18", 1 << 22, 8, rng.integers(0, NODES, 1 << 22, np.int32), {}),
]  # fmt: skip
for name, count, columns, ids, how in TABLE:
    try:
        segment_row(name, count, columns, ids, **how)
    except Exception:
        print(name, "FAILED")
        traceback.print_exc()

# exact_sums.MOST_COLUMNS / LEAST_UPDATES: the same shapes by a sort
print("\nby a sort instead of exact sums (exact_sums.MOST_COLUMNS = 0)")
kept, exact_sums.MOST_COLUMNS = exact_sums.MOST_COLUMNS, 0
gf.clear_caches()
for name, count, columns, ids, how in TABLE[2:7]:
    data = from_numpy(rng.standard_normal((count, columns), np.float32))
    f = gf.jit(lambda x, i: gf.ops.segment_sum(x, i, NODES))
    row(f"  {name}", lambda: f"{ms(f, [data, from_numpy(ids)]):8.3f} ms")
    gf.clear_caches()
exact_sums.MOST_COLUMNS = 8
print("exact sums of 8 columns (exact_sums.MOST_COLUMNS = 8)")
name, count, columns, ids, how = TABLE[7]
data = from_numpy(rng.standard_normal((count, columns), np.float32))
f = gf.jit(lambda x, i: gf.ops.segment_sum(x, i, NODES))
row(f"  {name}", lambda: f"{ms(f, [data, from_numpy(ids)]):8.3f} ms")
exact_sums.MOST_COLUMNS = kept
gf.clear_caches()

# ---- graph convolution ----
print()
program = next(p for p in PROGRAMS if p.name.startswith("graph convolution"))
values = program.operands(np.random.default_rng(0))
here, there = [from_numpy(v) for v in values], [jax.device_put(v) for v in values]


def weighted(m):
    def loss(w, x, weights, source, target):
        h = m.np.matmul(x, w)
        summed = m.segment_sum(h[source] * weights[:, None], target, num_segments=x.shape[0])
        return m.np.mean(m.np.tanh(summed) ** 2)

    return loss


def forward(m):
    def run(w, x, source, target):
        h = m.np.matmul(x, w)
        return m.segment_sum(h[source], target, num_segments=x.shape[0])

    return run


def convolution(name, make, mine, yours, grad):
    theirs = jax.jit(make(JAX) if grad is None else jax.value_and_grad(make(JAX), grad))
    try:
        other = ms(theirs, yours)
        want = [np.asarray(y) for y in flat(theirs(*yours))]
    except Exception as error:
        print("JAX FAILED", error)
        other, want = float("nan"), None
    for label, deterministic, off in (
        ("default", True, ()), ("deterministic=False", False, ()),
        ("default, without sums", True, ("sums",)),
    ):  # fmt: skip
        gf.clear_caches()
        with gf.deterministic(deterministic), without(*off) if off else nullcontext():
            f = gf.jit(make(OURS) if grad is None else gf.value_and_grad(make(OURS), grad))

            def one():
                got = [np.asarray(y) for y in flat(f(*mine))]
                apart = max(
                    float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))
                    for a, b in zip(got, want)
                )
                bits = same_bits(f, mine)
                t = ms(f, mine)
                return f"{t:8.3f} ms  JAX {other:6.3f}  x{other / t:5.2f}  apart {apart:.1e}  same bits {bits}"

            row(f"{name}, {label}", one)
            row("    kernels", lambda: profile(f, mine) or "")


convolution("graph convolution, forward", forward, here, there, None)
# value_and_grad is in the program's own function
convolution("graph convolution, gradient", lambda m: program.make(m), here, there, None)
weights = rng.standard_normal(1 << 21, np.float32)
mine = [*here[:2], from_numpy(weights), *here[2:]]
yours = [*there[:2], jax.device_put(weights), *there[2:]]
convolution("weighted, gradient of w", weighted, mine, yours, 0)
convolution("weighted, gradient of w, weights, x", weighted, mine, yours, (0, 1, 2))

# ---- variants of the walk: constants sorted_runs._tile (chunks, columns, warps), LARGEST_CHUNK ----
print("\nvariants of the walk, 2^21 x 64 into 2^18: random, sorted, graph convolution with gradient")
data = from_numpy(rng.standard_normal((E, 64), np.float32))
ids, ordered = from_numpy(target), from_numpy(np.sort(target))
own, largest = sorted_runs._tile, sorted_runs.LARGEST_CHUNK
for chunk in (32, 64, 128):
    for tile in ((1, 64, 1), (2, 64, 2), (4, 64, 4), (2, 64, 1), (8, 64, 4)):
        sorted_runs.LARGEST_CHUNK = chunk
        sorted_runs._tile = lambda columns, size, tile=tile: tile if columns == 64 else own(columns, size)

        def one():
            gf.clear_caches()
            a = gf.jit(lambda x, i: gf.ops.segment_sum(x, i, NODES))
            b = gf.jit(lambda x, i: gf.ops.segment_sum(x, i, NODES, indices_are_sorted=True))
            c = gf.jit(program.make(OURS))
            times = [ms(a, [data, ids]), ms(b, [data, ordered]), ms(c, here)]
            return "  ".join(f"{t:7.3f}" for t in times)

        row(f"  chunk {chunk}, tile {tile}", one)
sorted_runs._tile, sorted_runs.LARGEST_CHUNK = own, largest
