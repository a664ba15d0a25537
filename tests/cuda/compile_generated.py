"""Compiles a corpus of generated kernels for one architecture; prints a JSON record of each.

Run as a program: the compiler needs a process in which Triton does not interpret.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable

os.environ.pop("TRITON_INTERPRET", None)
os.environ["GENESIS_DEVICE"] = "cpu"

import numpy as np

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.backends.cuda.codegen import generate
from genesis_fn.backends.cuda.lower.fused_matmul import plan_few_rows
from genesis_fn.compiler.complex_parts.represent import represented
from genesis_fn.compiler.fusion.fuse import fuse_jaxpr
from genesis_fn.compiler.memory.rematerialise import rematerialise_jaxpr
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import OF_ARCHITECTURE
from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import aval
from genesis_fn.core.primitive import PRIMITIVES, bind
from genesis_fn.nn.layers.dense import linear
from genesis_fn.transforms.staging.stage_trace import stage
from tests.kernels.compile_only import compile_launch
from tests.kernels.planned import has_expression
from tests.primitives.specials import BINARY, UNARY

BF16, F32, F16, I32, C64 = dtypes.BF16, dtypes.F32, dtypes.F16, dtypes.I32, dtypes.C64


def rms_norm(x, w):
    y = x.astype(gnp.float32)
    y = y * lax.rsqrt(gnp.mean(y * y, -1, keepdims=True) + 1e-6)
    return (y * w).astype(x.dtype)


def rope(x, cos, sin):
    half = x.shape[-1] // 2
    turned = gnp.concatenate([-x[..., half:], x[..., :half]], -1)
    return (x * cos + turned * sin).astype(x.dtype)


def softmax(x):
    x = x.astype(gnp.float32)
    e = gnp.exp(x - gnp.max(x, -1, keepdims=True))
    return e / gnp.sum(e, -1, keepdims=True)


def adamw(p, m, v, gradient):
    gradient = gradient.astype(gnp.float32)
    m, v = m * 0.9 + gradient * 0.1, v * 0.95 + gradient * gradient * 0.05
    return p - 3e-4 * (m / (gnp.sqrt(v) + 1e-8) + 0.1 * p), m, v


def gradient(f):
    return lambda *xs: g.vjp(f, *xs)[1](f(*xs))


def gate(x, scale, a, b):
    h = rms_norm(x, scale)
    return lax.logistic(linear(h, a)) * linear(h, b)


CORPUS = {
    "gate": (gate, [((1, 1024), F32), ((1024,), F32), ((3072, 1024), F32), ((3072, 1024), F32)]),
    "cast": (lambda x: x.astype(gnp.bfloat16), [((4096, 3072), F32)]),
    "swiglu": (lambda a, b: a * lax.logistic(a) * b, [((16384, 3072), BF16)] * 2),
    "swiglu backward": (
        gradient(lambda a, b: a * lax.logistic(a) * b), [((4096, 3072), BF16)] * 2,
    ),
    "rms norm": (rms_norm, [((16384, 1024), BF16), ((1024,), F32)]),
    "rms norm backward": (gradient(rms_norm), [((16384, 1024), BF16), ((1024,), F32)]),
    "rope": (rope, [((4, 2048, 16, 128), BF16), ((2048, 1, 128), F32), ((2048, 1, 128), F32)]),
    "softmax": (softmax, [((4096, 2048), BF16)]),
    "long softmax": (softmax, [((512, 151936), BF16)]),
    "transpose": (lambda x: gnp.transpose(x) * 2, [((4096, 1024), BF16)]),
    "heads": (lambda x: gnp.transpose(x, (0, 2, 1, 3)) + 1, [((4, 2048, 16, 128), BF16)]),
    "column sum": (lambda x: gnp.sum(x, 0), [((16384, 1024), BF16)]),
    "full sum": (lambda x: gnp.sum(x * x), [((4096, 4096), F32)]),
    "argmax": (lambda x: gnp.argmax(x, -1), [((64, 151936), F32)]),
    "adamw": (adamw, [((1024, 3072), F32)] * 3 + [((1024, 3072), BF16)]),
    "large": (lambda x: gnp.sum(x * 2, -1), [((16384, 151936), BF16)]),
    "bias gradient": (gradient(lambda x, b: gnp.tanh(x + b)), [((4096, 512), F16), ((512,), F16)]),
    "complex": (lambda z, w: gnp.abs(z * w) * gnp.conj(z) + w, [((2048, 2048), C64)] * 2),
    "integers": (
        lambda x: (x // 3, x % 7, x << 2, x > 0), [((999,), I32)],
    ),
}  # fmt: skip


def chain(step):
    """24 steps, and their derivatives."""

    def whole(x, ct):
        y, pull = g.vjp(lambda x: functools.reduce(lambda y, _: step(y), range(24), x), x)
        return y, *pull(ct)

    return whole, [((1 << 22,), F32)] * 2


# Long pointwise kernels, each the whole chain: elements a thread are as many as fit.
CHAINS = {
    "division": chain(lambda x: x / (1 + x * x)),
    "logarithm": chain(lambda x: gnp.log(x * x + 1.5)),
    "error function": chain(lambda x: lax.erf(x) + 0.1),
    "sine": chain(lambda x: gnp.sin(x) * 1.1),
}


def every(kind: np.dtype) -> tuple[Callable, list]:
    """A program of every elementwise primitive that takes operands of one dtype."""
    prims = []
    for name in (*UNARY, *BINARY):
        prim, count = PRIMITIVES[name], 1 if name in UNARY else 2
        if has_expression(prim):
            with contextlib.suppress(errors.DTypeError, errors.ShapeError):
                prim.shape(*[aval((64,), kind)] * count)
                prims.append((prim, count))
    return lambda *xs: [bind(p, *xs[:n]) for p, n in prims], [((64,), kind)] * 2


def main(architecture: int, *kinds_of_all: str) -> None:
    """Compile every program of the corpus, "chains", or of all elementwise primitives of the dtypes
    named."""
    records, target = [], OF_ARCHITECTURE[architecture]
    if kinds_of_all == ("chains",):
        programs = CHAINS
    else:
        programs = {f"every {k}": every(np.dtype(k)) for k in kinds_of_all} or CORPUS
    for name, (f, kinds) in programs.items():
        jaxpr, _ = stage(lambda *xs: g.tree.leaves(f(*xs)), [aval(s, d) for s, d in kinds])
        program = rematerialise_jaxpr(simplify_jaxpr(represented(jaxpr)))
        for group in fuse_jaxpr(program, target).groups:
            if group.matmul is not None:
                plan, _ = plan_few_rows(group.matmul, group.writes[0], False, target)
            elif group.kernel is not None:
                plan = generate(group.kernel, target).plan
            else:
                continue
            for launch in plan.steps:
                records.append({"case": name, **compile_launch(launch, target)})
    print(json.dumps(records))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
