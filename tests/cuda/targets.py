"""The programs that every target plans, compiles and runs: one of each family of kernels, small."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.backends.cuda.lower.steps import BufferTable, keeps_fused
from genesis_fn.backends.cuda.pipeline import schedule
from genesis_fn.backends.cuda.run.steps import ForLoop, SubProgram, Switch, While
from genesis_fn.compiler.memory.rematerialise import rematerialise_jaxpr
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import Target
from genesis_fn.core import dtypes, tree
from genesis_fn.core.aval import aval
from genesis_fn.kernels.plan import Launch
from genesis_fn.lax.fused.attention import dot_product_attention
from genesis_fn.lax.fused.cross_entropy import cross_entropy_last, linear_cross_entropy
from genesis_fn.lax.fused.norms import layer_norm, rms_norm
from genesis_fn.nn.layers.dense import linear
from genesis_fn.transforms.keys.words import physical
from genesis_fn.transforms.staging.stage_trace import stage

BF16, F32, F64, I32 = dtypes.BF16, dtypes.F32, dtypes.F64, dtypes.I32
F8E4, F8E5 = dtypes.F8E4, dtypes.F8E5


def values(shape: Sequence[int], kind: Any = F32, seed: int = 0) -> np.ndarray:
    """Numbers about one, or small integers."""
    rng = np.random.default_rng(seed)
    if np.dtype(kind).kind in "iu":
        return rng.integers(0, 7, shape).astype(kind)
    return rng.normal(size=shape).astype(kind)


def gradient(f: Callable) -> Callable:
    """The derivatives of the sum of a function's results."""
    return lambda *xs: g.vjp(f, *xs)[1](f(*xs))


def attention(q, k, v):
    return dot_product_attention(q, k, v, is_causal=True)


def gate(x, scale, a, b):
    h = rms_norm(x, scale, eps=1e-6)
    return lax.logistic(linear(h, a)) * linear(h, b)


def conv(x, w):
    return lax.conv(x, w, (1, 1), "SAME", precision="highest")


def loop_of_rows(w, b, u, x):
    """A small network in a loop, and its gradient."""

    def loss(w, b, u):
        def step(s, _):
            h = gnp.tanh(gnp.tanh(s @ w + b) @ u)
            s = s * 0.9 + gnp.stack([gnp.sum(h, 1), s[:, 0], s[:, 1], gnp.max(h, 1)], 1) * 0.1
            return s, gnp.mean(s)

        return gnp.sum(lax.scan(step, x, None, length=3)[1])

    return g.value_and_grad(loss, (0, 1, 2))(w, b, u)


HEADS = [((1, 40, 4, 64), BF16), ((1, 40, 2, 64), BF16), ((1, 40, 2, 64), BF16)]
CACHE = [((1, 1, 4, 64), BF16), ((1, 1024, 2, 64), BF16), ((1, 1024, 2, 64), BF16)]

# name: (function, operands as (shape, dtype), tolerance)
PROGRAMS: dict[str, tuple[Callable, list, float]] = {
    "elementwise": (lambda x, y: (gnp.tanh(x) * y + 1, x < y), [((7, 33), F32)] * 2, 2e-6),
    "views": (lambda x: gnp.transpose(x, (1, 0, 2))[::2] + 1, [((4, 70, 6), BF16)], 0.0),
    "rows": (lambda x: (gnp.sum(x, -1), gnp.argmax(x, -1)), [((5, 3000), F32)], 2e-4),
    "columns": (lambda x: (gnp.max(x, 0), gnp.sum(x, 0)), [((2000, 33), F32)], 2e-4),
    "bf16 product": (gnp.matmul, [((128, 64), BF16), ((64, 96), BF16)], 2e-2),
    "products": (
        lambda x, y, v: (gnp.matmul(x.T, y), gnp.matmul(x.T, v) + gnp.matmul(y.T, v)),
        [((512, 128), BF16)] * 3, 2e-1,
    ),
    "fp32 product": (gnp.matmul, [((70, 64), F32), ((64, 72), F32)], 5e-2),
    "fp64 product": (gnp.matmul, [((33, 20), F64), ((20, 17), F64)], 1e-12),
    "gate of one row": (
        gate, [((1, 64), F32), ((64,), F32), ((96, 64), F32), ((96, 64), F32)], 2e-5,
    ),
    "attention": (attention, HEADS, 2e-2),
    "attention backward": (gradient(attention), HEADS, 4e-2),
    "decoding": (attention, CACHE, 2e-2),
    "norms": (
        gradient(lambda x, w: rms_norm(layer_norm(x, w, w, eps=1e-5), w, eps=1e-6)),
        [((300, 64), F32), ((64,), F32)], 2e-3,
    ),
    "cross-entropy": (
        gradient(cross_entropy_last), [((20, 300), F32), ((20,), I32)], 2e-5,
    ),
    "linear cross-entropy": (
        lambda x, w, y: g.value_and_grad(linear_cross_entropy, (0, 1))(x, w, y),
        [((24, 32), F32), ((130, 32), F32), ((24,), I32)], 5e-3,
    ),
    "sort": (lambda x: (gnp.sort(x, -1), gnp.argsort(x, -1)), [((3, 50), F32)], 0.0),
    "top k": (lambda x: lax.top_k(x, 3), [((3, 70), F32)], 0.0),
    "scan": (lambda x: gnp.cumsum(x, -1), [((3, 2100), F32)], 2e-4),
    "convolution": (gradient(conv), [((2, 8, 9, 9), F32), ((8, 8, 3, 3), F32)], 5e-4),
    "gather": (lambda x, i: x[i], [((9, 33), BF16), ((20,), I32)], 0.0),
    "scatter": (
        lambda x, i, u: x.at[i].add(u), [((9, 33), F32), ((20,), I32), ((20, 33), F32)], 2e-6,
    ),
    "loop": (
        lambda x: lax.fori_loop(0, 3, lambda i, c: gnp.tanh(c) + i, x), [((5, 40), F32)], 2e-6,
    ),
    "loop of rows": (
        loop_of_rows, [((4, 64), F32), ((64,), F32), ((64, 64), F32), ((40, 4), F32)], 5e-3,
    ),
    "loop until rows are done": (
        g.vmap(lambda x: lax.while_loop(lambda c: c > 1.0, lambda c: c * 0.7 - 0.1, x * x + 2)),
        [((300,), F32)], 2e-6,
    ),
    "branches": (
        lambda x: lax.cond(gnp.sum(x) > 0, lambda y: y * 2, lambda y: y - 1, x),
        [((5, 40), F32)], 0.0,
    ),
    "random bits": (
        lambda x: x + g.random.uniform(g.random.key(3), (50,)), [((50,), F32)], 2e-6,
    ),
    "8-bit floats": (
        lambda x, y: (x.astype(F32) * 2, (x.astype(F32) + 1).astype(F8E5), x[1:], gnp.matmul(x, y)),
        [((40, 48), F8E4), ((48, 32), F8E4)], 7e-2,
    ),
}  # fmt: skip


QUICK = (
    "elementwise", "rows", "bf16 product", "fp32 product", "attention", "attention backward",
    "norms", "cross-entropy", "top k", "scan", "convolution", "gather", "scatter", "8-bit floats",
)  # fmt: skip
"""Those that the tests always run; the others take longer."""


_WIDE = [((2, 1024, 16, 128), BF16), ((2, 1024, 8, 128), BF16), ((2, 1024, 8, 128), BF16)]

# The operands that programs are compiled for, where other kernels serve larger ones.
LARGE: dict[str, list] = {
    "elementwise": [((4096, 3072), F32)] * 2,
    "views": [((256, 512, 128), BF16)],
    "rows": [((64, 151936), F32)],
    "columns": [((16384, 1024), F32)],
    "bf16 product": [((4096, 4096), BF16)] * 2,
    "products": [((16384, 1024), BF16)] * 3,
    "fp32 product": [((1024, 1024), F32)] * 2,
    "fp64 product": [((1024, 1024), F64)] * 2,
    "gate of one row": [((1, 1024), F32), ((1024,), F32), ((3072, 1024), F32), ((3072, 1024), F32)],
    "attention": _WIDE,
    "attention backward": _WIDE,
    "decoding": [((1, 1, 16, 128), BF16), ((1, 4096, 8, 128), BF16), ((1, 4096, 8, 128), BF16)],
    "norms": [((16384, 1024), F32), ((1024,), F32)],
    "cross-entropy": [((4096, 151936), F32), ((4096,), I32)],
    "linear cross-entropy": [((4096, 1024), BF16), ((151936, 1024), BF16), ((4096,), I32)],
    "sort": [((3, 65536), F32)],
    "top k": [((64, 151936), F32)],
    "scan": [((64, 4096), F32)],
    "convolution": [((8, 64, 56, 56), F32), ((64, 64, 3, 3), F32)],
    "gather": [((151936, 1024), BF16), ((4096,), I32)],
    "scatter": [((1000, 64), F32), ((512,), I32), ((512, 64), F32)],
    "8-bit floats": [((1024, 1024), F8E4)] * 2,
}


def operands(name: str) -> list[np.ndarray]:
    """Arrays for one of the programs."""
    return [values(shape, kind, i) for i, (shape, kind) in enumerate(PROGRAMS[name][1])]


def launches(name: str, target: Target) -> list[Launch]:
    """The kernels of a program as it is planned for a GPU, with operands of real sizes."""
    f, small, _ = PROGRAMS[name]
    avals = [aval(shape, kind) for shape, kind in LARGE.get(name, small)]
    jaxpr, captured = stage(lambda *xs: tree.leaves(f(*xs)), avals)
    program = rematerialise_jaxpr(simplify_jaxpr(physical(jaxpr), keeps_fused(target)))
    table = BufferTable(target)
    inputs = [table.new(v.aval.nbytes) for v in program.invars]
    return list(_launches(schedule(table, program, inputs, [None] * len(program.outs)).steps))


def _launches(steps: Sequence[Any]) -> Iterator[Launch]:
    for step in steps:
        if isinstance(step, Launch):
            yield step
        elif isinstance(step, SubProgram):
            yield from _launches(step.steps)
        elif isinstance(step, ForLoop):
            yield from _launches(step.body)
        elif isinstance(step, While):
            yield from _launches((*step.condition, *step.body))
        elif isinstance(step, Switch):
            yield from _launches([s for branch in step.branches for s in branch])
