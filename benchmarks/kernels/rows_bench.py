"""Row, scan, sort, scatter and convolution kernels against torch on one GPU.

    PYTHONPATH=. python benchmarks/kernels/rows_bench.py --out rows.json [--only softmax,sort]

Checks every result against torch, then times the kernel, torch eager and torch.compile: medians of
CUDA graph replays over rotated buffers. Rows already in the output file are skipped, so an
interrupted run goes on where it stopped. Needs torch with CUDA, and Triton.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
import torch._functorch.config
import torch.nn.functional as F
import triton
import triton.language as tl

sys.path.insert(0, str(Path(__file__).parent))
from torch_launch import TARGET, bound_plan, graph_time, rehearse, rehearsing

from genesis_fn.kernels.concat import Concatenate, plan_concatenate
from genesis_fn.kernels.conv import (
    convolution,
    input_gradient,
    kernel_gradient,
    plan_convolution,
)
from genesis_fn.kernels.cross_entropy import (
    CrossEntropy,
    plan_cross_entropy_backward,
    plan_cross_entropy_forward,
)
from genesis_fn.kernels.launch import Buf, Launch, Plan, Scalar
from genesis_fn.kernels.linear_cross_entropy import (
    LinearCrossEntropy,
    plan_linear_cross_entropy,
    product,
)
from genesis_fn.kernels.matmul import configs, plan_matmul
from genesis_fn.kernels.norm import Norm, plan_norm_backward, plan_norm_forward
from genesis_fn.kernels.pool import Window, plan_window, plan_window_gradient
from genesis_fn.kernels.radix_sort import RadixTile
from genesis_fn.kernels.random import RandomBits, plan_random_bits
from genesis_fn.kernels.scan import Scan, plan_scan
from genesis_fn.kernels.scatter import GatherRows, plan_embedding_gradient, plan_gather_rows
from genesis_fn.kernels.softmax import Softmax, plan_softmax_backward, plan_softmax_forward
from genesis_fn.kernels.sort import Sort, plan_sort
from genesis_fn.kernels.top_k import TopK, plan_top_k

L2_BYTES = 64 << 20
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int64: "i64", torch.int32: "i32"}

Tensors = list[torch.Tensor]


@dataclass
class Case:
    """One row of the table.

    `inputs()` makes fresh inputs; `ours(inputs)` returns (a function that runs the kernels, its
    outputs); `reference(*inputs)` returns the same outputs through torch. `traffic` is the bytes
    that must move at least, `flops` the work; `error` the largest accepted |ours - torch| over
    max |torch|, 0 for equality.
    """

    name: str
    inputs: Callable[[], Tensors]
    ours: Callable[[Tensors], tuple[Callable[[], None], Tensors]]
    reference: Callable[..., Sequence[torch.Tensor]]
    traffic: float = 0.0
    flops: float = 0.0
    error: float = 0.0
    compiles: bool = True
    big: bool = False  # only one copy fits, and torch is checked without keeping much
    variants: dict[str, Callable[[Tensors], tuple[Callable[[], None], Tensors]]] = field(
        default_factory=dict
    )


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal values made in pieces of the target type."""
    return torch.randn(shape, device="cuda", dtype=dtype)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An uninitialised CUDA tensor."""
    return torch.empty(shape, device="cuda", dtype=dtype)


def one_plan(plan: Plan, *outputs: Callable[[], torch.Tensor]) -> Callable:
    """`Case.ours` for a single plan."""

    def ours(inputs: Tensors) -> tuple[Callable[[], None], Tensors]:
        made = [make() for make in outputs]
        return bound_plan(plan, [*inputs, *made]), made

    return ours


def like(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    """A maker of outputs."""
    return lambda: empty(*shape, dtype=dtype)


def gradients(function: Callable, differentiated: int) -> Callable:
    """Forward and backward of `function`; the last input is the cotangent."""

    def run(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        leaves = [x.detach().requires_grad_() for x in inputs[:differentiated]]
        y = function(*leaves, *inputs[differentiated:-1])
        return [y.detach(), *torch.autograd.grad(y, leaves, inputs[-1])]

    return run


@triton.jit
def adamw_like_kernel(p, g, m, v, p_out, m_out, v_out, n, BLOCK: tl.constexpr):
    """The traffic of an AdamW step: four arrays in, three out."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = i < n
    gradient = tl.load(g + i, keep)
    first = 0.9 * tl.load(m + i, keep) + 0.1 * gradient
    second = 0.95 * tl.load(v + i, keep) + 0.05 * gradient * gradient
    parameter = tl.load(p + i, keep)
    step = first / (tl.sqrt(second) + 1e-8) + 0.1 * parameter
    tl.store(m_out + i, first, keep)
    tl.store(v_out + i, second, keep)
    tl.store(p_out + i, parameter - 1e-3 * step, keep)


def adamw_plan(n: int, block: int, warps: int) -> Plan:
    """p, g, m, v -> p, m, v, in place."""
    names = ("p", "g", "m", "v", "p_out", "m_out", "v_out")
    arguments = {name: Buf(i, "fp32") for i, name in enumerate(names)} | {"n": Scalar(n)}
    launch = Launch(
        adamw_like_kernel, (-(-n // block), 1, 1), arguments, {"BLOCK": block}, num_warps=warps
    )
    return Plan(4, 3, (launch,))


@triton.jit
def copy_kernel(x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i))


def copy_plan(n: int, block: int, warps: int) -> Plan:
    """x -> a copy, by a pointwise kernel; blocks divide n."""
    arguments = {"x": Buf(0, "fp32"), "y": Buf(1, "fp32")}
    launch = Launch(copy_kernel, (n // block, 1, 1), arguments, {"BLOCK": block}, num_warps=warps)
    return Plan(1, 1, (launch,))


def copy_bandwidth_cases() -> list[Case]:
    """What a copy reaches on this machine, and a pointwise kernel of an optimizer's traffic."""
    n = 1 << 27

    def adamw(p, g, m, v):
        first, second = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        return [p - 1e-3 * (first / (second.sqrt() + 1e-8) + 0.1 * p), first, second]

    made = [like((n,))] * 3
    return [
        Case(
            "pointwise copy 2 GiB fp32",
            lambda: [randn(4 * n)],
            one_plan(copy_plan(4 * n, 1024, 4), like((4 * n,))),
            lambda x: [torch.mul(x, 1.0)],
            traffic=32 * n,
            compiles=False,
        ),
        Case(
            "AdamW-like step 2^27 fp32",
            lambda: [randn(n), randn(n), randn(n), randn(n).abs()],
            one_plan(adamw_plan(n, 512, 4), *made),
            adamw,
            traffic=28 * n,
            error=1e-5,
            variants={
                f"block {block} warps {warps}": one_plan(adamw_plan(n, block, warps), *made)
                for block, warps in ((512, 4), (1024, 4), (1024, 8), (2048, 8))
            },
        ),
    ]


TILES = {
    128: [(r, 128, w) for r, w in ((8, 1), (16, 2), (16, 4), (32, 4))],
    1024: [(r, 1024, w) for r, w in ((1, 1), (1, 2), (2, 2), (4, 4), (8, 4))],
    4096: [(r, 4096, w) for r, w in ((1, 4), (1, 8), (1, 16), (1, 32))],
    8192: [(r, 8192, w) for r, w in ((1, 4), (1, 8), (1, 16))],
}
"""(rows, columns, warps) of the tiles tried for each row length."""


BACKWARD_TILES = {
    128: [(32, 128, 8), (64, 128, 8), (64, 128, 4)],
    1024: [(4, 1024, 8), (8, 1024, 8), (8, 1024, 4)],
    4096: [(1, 4096, 8), (2, 4096, 8), (2, 4096, 16)],
}


def tile_label(tile: tuple[int, int, int]) -> str:
    return f"tile {tile[0]}x{tile[1]} w{tile[2]}"


def softmax_cases() -> list[Case]:
    cases = []
    for n, dtype in ((8192, torch.float32), (8192, torch.bfloat16)):
        name, size = NAMES[dtype], torch.empty((), dtype=dtype).element_size()
        for kind, function in (
            ("softmax", lambda x: [torch.softmax(x, -1)]),
            ("logsumexp", lambda x: [torch.logsumexp(x, -1)]),
        ):
            out = (n, n) if kind == "softmax" else (n,)
            cases.append(
                Case(
                    f"{kind} {n}^2 {name}",
                    lambda n=n, dtype=dtype: [randn(n, n, dtype=dtype)],
                    one_plan(plan_softmax_forward(Softmax(n, n, name, kind)), like(out, dtype)),
                    function,
                    traffic=size * n * n * (2 if kind == "softmax" else 1),
                    error=1e-5 if dtype == torch.float32 else 1e-2,
                    variants={
                        tile_label(t): one_plan(
                            plan_softmax_forward(Softmax(n, n, name, kind), t), like(out, dtype)
                        )
                        for t in TILES[n]
                    },
                )
            )

        def both(inputs: Tensors, n=n, name=name, dtype=dtype, tile=None):
            x, dy = inputs
            spec = Softmax(n, n, name)
            y, dx = empty(n, n, dtype=dtype), empty(n, n, dtype=dtype)
            first = bound_plan(plan_softmax_forward(spec), [x, y])
            second = bound_plan(plan_softmax_backward(spec, tile), [dy, y, dx])
            return lambda: (first(), second()), [y, dx]

        cases.append(
            Case(
                f"softmax fwd+bwd {n}^2 {name}",
                lambda n=n, dtype=dtype: [randn(n, n, dtype=dtype), randn(n, n, dtype=dtype)],
                both,
                gradients(lambda x: torch.softmax(x, -1), 1),
                traffic=size * n * n * 5,
                error=1e-5 if dtype == torch.float32 else 2e-2,
                variants={tile_label(t): partial(both, tile=t) for t in TILES[n]},
            )
        )
    spec = Softmax(4096, 151936, "bf16", "logsumexp", "fp32")
    cases.append(
        Case(
            "logsumexp 4096x151936 bf16",
            lambda: [randn(4096, 151936, dtype=torch.bfloat16)],
            one_plan(plan_softmax_forward(spec), like((4096,))),
            lambda x: [torch.logsumexp(x.float(), -1)],
            traffic=2 * 4096 * 151936,
            error=1e-5,
            big=True,
        )
    )
    return cases


def norm_cases() -> list[Case]:
    cases = []
    for kind, rows, columns, dtype in (
        ("layer", 4096, 4096, torch.float32),
        ("rms", 16384, 1024, torch.bfloat16),
        ("rms", 262144, 128, torch.bfloat16),
    ):
        name, size = NAMES[dtype], torch.empty((), dtype=dtype).element_size()
        layer = kind == "layer"
        spec = Norm(rows, columns, name, kind, 1e-6, name, name if layer else None)

        def inputs(rows=rows, columns=columns, dtype=dtype, layer=layer):
            weights = [randn(columns, dtype=dtype) for _ in range(1 + layer)]
            return [randn(rows, columns, dtype=dtype), *weights]

        def function(x, w, b=None, layer=layer, columns=columns):
            if layer:
                return F.layer_norm(x, (columns,), w, b, 1e-6)
            return F.rms_norm(x, (columns,), w, 1e-6)

        def both(given: Tensors, spec=spec, layer=layer, tile=None, programs=None):
            *primal, dy = given
            y, dx = torch.empty_like(dy), torch.empty_like(dy)
            statistics_ = [empty(spec.rows) for _ in range(1 + layer)]
            dweights = [torch.empty_like(w) for w in primal[1:]]
            first = bound_plan(plan_norm_forward(spec), [*primal, y, *statistics_])
            second = bound_plan(
                plan_norm_backward(spec, tile, programs),
                [dy, *primal[:2], *statistics_, dx, *dweights],
            )
            return lambda: (first(), second()), [y, dx, *dweights]

        label = f"{kind} norm {rows}x{columns} {name}"
        error = 1e-4 if dtype == torch.float32 else 2e-2
        cases.append(
            Case(
                label,
                inputs,
                one_plan(
                    plan_norm_forward(spec, save_statistics=False), like((rows, columns), dtype)
                ),
                lambda *xs, function=function: [function(*xs)],
                traffic=2 * size * rows * columns,
                error=error,
                variants={
                    tile_label(t): one_plan(
                        plan_norm_forward(spec, save_statistics=False, tile=t),
                        like((rows, columns), dtype),
                    )
                    for t in TILES[columns]
                },
            )
        )
        cases.append(
            Case(
                label.replace("norm", "norm fwd+bwd"),
                lambda inputs=inputs: [*(xs := inputs()), torch.randn_like(xs[0])],
                both,
                gradients(function, 2 + layer),
                traffic=5 * size * rows * columns,
                error=error,
                variants={
                    f"{tile_label(t)}, {n} programs": partial(both, tile=t, programs=n)
                    for t in BACKWARD_TILES[columns]
                    for n in (132, 264)
                },
            )
        )
    return cases


def cross_entropy_cases() -> list[Case]:
    rows, classes = 16384, 151936
    spec = CrossEntropy(rows, classes, "bf16", "i64", ignore_index=-100)
    size = 2 * rows * classes

    def inputs() -> Tensors:
        labels = torch.randint(0, classes, (rows,), device="cuda")
        labels[::7] = -100
        return [randn(rows, classes, dtype=torch.bfloat16), labels]

    def forward(given: Tensors):
        loss = empty(1)
        return bound_plan(plan_cross_entropy_forward(spec), [*given, loss, empty(rows)]), [loss]

    def both(given: Tensors):
        logits, labels, cotangent = given
        loss, lse, dlogits = empty(1), empty(rows), torch.empty_like(logits)
        first = bound_plan(plan_cross_entropy_forward(spec), [logits, labels, loss, lse])
        second = bound_plan(
            plan_cross_entropy_backward(spec), [logits, labels, lse, cotangent, dlogits]
        )
        return lambda: (first(), second()), [loss, dlogits]

    def function(logits, labels):
        return F.cross_entropy(logits.float(), labels).reshape(1)

    return [
        Case(
            "cross-entropy 16384x151936 bf16",
            inputs,
            forward,
            lambda x, y: [function(x, y)],
            traffic=size,
            error=1e-5,
            big=True,
        ),
        Case(
            "cross-entropy fwd+bwd 16384x151936 bf16",
            lambda: [*inputs(), torch.ones(1, device="cuda")],
            both,
            lambda x, labels, g: gradients(lambda a, b: function(a, b), 1)(x, labels, g),
            traffic=3 * size,
            error=2e-2,
            big=True,
        ),
    ]


def linear_cross_entropy_cases() -> list[Case]:
    rows, features, classes = 16384, 1024, 151936

    def spec_of(chunk: int | None) -> LinearCrossEntropy:
        loss = CrossEntropy(rows, classes, "bf16", "i64", ignore_index=-100)
        return LinearCrossEntropy(loss, features, chunk_rows=chunk)

    def inputs() -> Tensors:
        labels = torch.randint(0, classes, (rows,), device="cuda")
        labels[::7] = -100
        weight = randn(classes, features, dtype=torch.bfloat16) * 0.03
        return [randn(rows, features, dtype=torch.bfloat16), weight, labels]

    def ours(given: Tensors, chunk=None, warps=None, tuned=True):
        spec = spec_of(chunk)
        chosen = tuned_products(spec) if tuned else {}
        outputs = [empty(1), torch.empty_like(given[0]), torch.empty_like(given[1])]
        plan = plan_linear_cross_entropy(spec, TARGET, chosen, warps)
        return bound_plan(plan, [*given, *outputs]), outputs

    def reference(x, w, labels):
        x, w = (t.detach().requires_grad_() for t in (x, w))
        loss = F.cross_entropy((x @ w.T).float(), labels)
        return [loss.detach().reshape(1), *torch.autograd.grad(loss, (x, w))]

    variants = {"default products": lambda g: ours(g, tuned=False)}
    for warps in (8, 16):
        variants[f"row kernel of {warps} warps"] = lambda g, warps=warps: ours(g, None, warps)
    for chunk in (2048, 8192):
        variants[f"chunks of {chunk}"] = lambda g, chunk=chunk: ours(g, chunk)
    return [
        Case(
            "linear+cross-entropy fwd+bwd 16384x1024x151936 bf16",
            inputs,
            ours,
            reference,
            flops=6 * rows * features * classes,
            error=3e-2,
            big=True,
            variants=variants,
        )
    ]


_TUNED: dict[tuple[int, ...], dict] = {}


def tuned_products(spec: LinearCrossEntropy) -> dict:
    """The fastest configuration of each product of the first chunk, timed once for each size."""
    rows = spec.chunks[0][1]
    if (rows,) in _TUNED:
        return _TUNED[(rows,)]
    chosen = {}
    logits = randn(rows, spec.stride, dtype=torch.bfloat16)
    x = randn(rows, spec.features, dtype=torch.bfloat16)
    w = randn(spec.loss.classes, spec.features, dtype=torch.bfloat16)
    dw = torch.zeros(w.shape, device="cuda")
    tensors = {"logits": [x, w, logits], "dx": [logits, w, torch.empty_like(x)]}
    tensors["dweight"] = [logits, x, dw]
    for name, given in tensors.items():
        matmul = product(spec, name, rows, accumulate=name == "dweight")
        times = {}
        for config in configs(matmul, TARGET)[:6]:
            try:
                plan = plan_matmul(matmul, TARGET, config)
                times[config] = graph_time([bound_plan(plan, given)], 5)
            except Exception as error:
                print(f"  {name} {config}: {error}", file=sys.stderr)
        chosen[name] = min(times, key=times.__getitem__)
        rate = 2 * rows * spec.features * spec.loss.classes / times[chosen[name]] / 1e12
        print(f"  {name}: {rate:.0f} TFLOP/s with {chosen[name]}", flush=True)
    _TUNED[(rows,)] = chosen
    return chosen


CAT_TILES = [(128, 1), (128, 4), (256, 2), (256, 4), (512, 2), (512, 4), (1024, 4)]


def copy_cases() -> list[Case]:
    cases = []
    for count, axis in ((2, 0), (2, 1), (3, 0), (3, 1)):
        shapes = ((4096, 4096),) * count
        out = [4096, 4096]
        out[axis] *= count
        cases.append(
            Case(
                f"cat of {count} axis {axis} 4096^2 fp32",
                lambda count=count: [randn(4096, 4096) for _ in range(count)],
                one_plan(plan_concatenate(Concatenate(shapes, axis, "fp32")), like(out)),
                lambda *xs, axis=axis: [torch.cat(xs, axis)],
                traffic=2 * 4 * count * 4096**2,
                variants={
                    f"tile {tile} w{warps}": one_plan(
                        plan_concatenate(Concatenate(shapes, axis, "fp32"), tile, warps), like(out)
                    )
                    for tile, warps in CAT_TILES
                },
            )
        )
    shapes = ((64, 512, 768), (64, 128, 768), (64, 300, 768))
    cases.append(
        Case(
            "cat of 3 middle axis 64x(512,128,300)x768 bf16",
            lambda: [randn(*s, dtype=torch.bfloat16) for s in shapes],
            one_plan(
                plan_concatenate(Concatenate(shapes, 1, "bf16")),
                like((64, 940, 768), torch.bfloat16),
            ),
            lambda *xs: [torch.cat(xs, 1)],
            traffic=4 * 64 * 940 * 768,
            variants={
                f"tile {tile} w{warps}": one_plan(
                    plan_concatenate(Concatenate(shapes, 1, "bf16"), tile, warps),
                    like((64, 940, 768), torch.bfloat16),
                )
                for tile, warps in CAT_TILES
            },
        )
    )
    rows, columns, count = 151936, 1024, 16384
    cases.append(
        Case(
            "embedding lookup 16384 of 151936x1024 bf16",
            lambda: [
                randn(rows, columns, dtype=torch.bfloat16),
                torch.randint(0, rows, (count,), device="cuda"),
            ],
            one_plan(
                plan_gather_rows(GatherRows(rows, columns, count, "bf16", "i64")),
                like((count, columns), torch.bfloat16),
            ),
            lambda table, tokens: [F.embedding(tokens, table)],
            traffic=4 * count * columns,
            variants={
                f"tile {tile[0]}x{tile[1]} w{tile[2]}": one_plan(
                    plan_gather_rows(GatherRows(rows, columns, count, "bf16", "i64"), tile),
                    like((count, columns), torch.bfloat16),
                )
                for tile in ((1, 1024, 1), (1, 1024, 4), (2, 1024, 2), (4, 1024, 4), (8, 1024, 8))
            },
        )
    )
    for label, spread in (("", rows), (" of 100 tokens", 100), (" of one token", 1)):
        cases.append(
            Case(
                f"embedding gradient 16384 to 151936x1024 bf16{label}",
                lambda spread=spread: [
                    torch.randint(0, spread, (count,), device="cuda"),
                    randn(count, columns, dtype=torch.bfloat16),
                ],
                one_plan(
                    plan_embedding_gradient(rows, columns, count, "bf16", index_dtype="i64"),
                    like((rows, columns), torch.bfloat16),
                ),
                lambda tokens, dy: [
                    torch.ops.aten.embedding_dense_backward(dy, tokens, rows, -1, False)
                ],
                traffic=2 * (rows + count) * columns,
                error=2e-2,
            )
        )
    return cases


def scan_and_sort_cases() -> list[Case]:
    n = 1 << 24
    cases = [
        Case(
            "cumsum 2^24 fp32",
            lambda: [randn(n)],
            one_plan(plan_scan(Scan(1, n, 1, "fp32")), like((n,))),
            lambda x: [x.cumsum(0)],
            traffic=8 * n,
            error=1e-4,
        ),
        Case(
            "cumsum rows 8192^2 fp32",
            lambda: [randn(8192, 8192)],
            one_plan(plan_scan(Scan(8192, 8192, 1, "fp32")), like((8192, 8192))),
            lambda x: [x.cumsum(1)],
            traffic=8 * 8192**2,
            error=1e-4,
        ),
        Case(
            "cumsum columns 8192^2 fp32",
            lambda: [randn(8192, 8192)],
            one_plan(plan_scan(Scan(1, 8192, 8192, "fp32")), like((8192, 8192))),
            lambda x: [x.cumsum(0)],
            traffic=8 * 8192**2,
            error=1e-4,
        ),
        Case(
            "cummax rows 4096^2 fp32",
            lambda: [randn(4096, 4096)],
            one_plan(plan_scan(Scan(4096, 4096, 1, "fp32", "max")), like((4096, 4096))),
            lambda x: [x.cummax(1).values],
            traffic=8 * 4096**2,
        ),
        Case(
            "random bits 2^26",
            lambda: [torch.tensor([1, 2], device="cuda", dtype=torch.int32)],
            one_plan(plan_random_bits(RandomBits(1, 1 << 26)), like((1 << 26,), torch.int32)),
            lambda key: [torch.empty(1 << 26, device="cuda", dtype=torch.int32).random_()],
            traffic=4 << 26,
            error=float("inf"),
            compiles=False,
        ),
    ]
    for rows, length in ((1, n), (1, 1 << 20), (4096, 1024), (64, 16384)):

        def sorts(tile=None, warps=None, rows=rows, length=length):
            plan = plan_sort(Sort(rows, length, ("fp32",), indices="i64"), tile, warps)
            return one_plan(plan, like((rows, length)), like((rows, length), torch.int64))

        tiles = [RadixTile(1024, 1, ranks) for ranks in ("ballot", "match", "sort")]
        variants = {f"ranks by {tile.ranks}": sorts(tile) for tile in tiles}
        if length <= 2048:
            variants = {f"{warps} warps": sorts(warps=warps) for warps in (2, 4, 8)}
        cases.append(
            Case(
                f"sort {rows}x{length} fp32",
                lambda rows=rows, length=length: [randn(rows, length)],
                sorts(),
                lambda x: list(torch.sort(x, dim=-1, stable=True)),
                traffic=16 * rows * length,
                compiles=False,
                variants=variants,
            )
        )
    for rows, length, k in ((64, 151936, 50), (1, 151936, 50), (4096, 1024, 8)):
        cases.append(
            Case(
                f"top {k} of {rows}x{length} fp32",
                # Distinct values: torch does not say which of equal ones it takes.
                lambda rows=rows, length=length: [
                    torch.rand(rows, length, device="cuda").argsort(-1).float()
                ],
                one_plan(
                    plan_top_k(TopK(rows, length, k, "fp32", "i64")),
                    like((rows, k)),
                    like((rows, k), torch.int64),
                ),
                lambda x, k=k: list(torch.topk(x, k)),
                traffic=4 * rows * length,
                compiles=False,
            )
        )
    return cases


def convolution_cases() -> list[Case]:
    cases, half = [], torch.bfloat16
    for n, size, c, o, k, s in ((32, 56, 64, 64, 3, 1), (32, 28, 256, 512, 1, 2)):
        pad = k // 2
        spec = convolution(
            (n, size, size, c),
            (o, k, k, c),
            layout="NHWC",
            kernel_layout="OHWI",
            strides=(s, s),
            padding=((pad, pad), (pad, pad)),
            dtype="bf16",
        )
        out = (n, *spec.out_spatial[1:], o)

        def arrays(n=n, size=size, c=c, o=o, k=k, out=out):
            x = randn(n, size, size, c, dtype=half)
            return x, randn(o, k, k, c, dtype=half), randn(*out, dtype=half)

        # The same memory, seen as torch's channels-last tensors.
        def last(t: torch.Tensor) -> torch.Tensor:
            return t.permute(0, 3, 1, 2)

        def gradient(dy, x, w, mask, s=s, pad=pad):
            return torch.ops.aten.convolution_backward(
                last(dy), last(x), last(w), None, [s, s], [pad, pad], [1, 1], False, [0, 0], 1, mask
            )

        label = f"{n}x{size}^2x{c} to {o}, {k}x{k}/{s} bf16"
        flops = 2 * spec.rows * spec.depth * o
        for what, plan, shape, chosen, function in (
            (
                "conv",
                spec,
                out,
                (0, 1),
                lambda x, w, s=s, pad=pad: [F.conv2d(last(x), last(w), None, s, pad)],
            ),
            (
                "conv input gradient",
                input_gradient(spec),
                (n, size, size, c),
                (2, 1),
                lambda dy, w, f=gradient, shape=(n, size, size, c): [
                    f(dy, empty(*shape, dtype=half), w, [True, False, False])[0]
                ],
            ),
            (
                "conv kernel gradient",
                kernel_gradient(spec),
                (o, k, k, c),
                (0, 2),
                lambda x, dy, f=gradient, shape=(o, k, k, c): [
                    f(dy, x, empty(*shape, dtype=half), [False, True, False])[1]
                ],
            ),
        ):
            cases.append(
                Case(
                    f"{what} {label}",
                    lambda arrays=arrays, chosen=chosen: [arrays()[i] for i in chosen],
                    one_plan(plan_convolution(plan), like(shape, half)),
                    lambda *xs, function=function: [y.permute(0, 2, 3, 1) for y in function(*xs)],
                    flops=flops,
                    error=2e-2,
                    compiles=False,
                )
            )
    planes, size = 32 * 64, 112
    window = Window(
        planes,
        (1, size, size),
        1,
        (1, 3, 3),
        "fp32",
        strides=(1, 2, 2),
        padding=((0, 0), (1, 1), (1, 1)),
    )
    small = (32, 64, 56, 56)

    def pooled(inputs: Tensors):
        x, dy = inputs
        y, chosen, dx = empty(*small), empty(*small, dtype=torch.int32), torch.empty_like(x)
        first = bound_plan(plan_window(window, save=True), [x, y, chosen])
        second = bound_plan(plan_window_gradient(window), [dy, chosen, dx])
        return lambda: (first(), second()), [y, dx]

    cases.append(
        Case(
            "max pool fwd+bwd 32x64x112^2, 3x3/2 fp32",
            lambda: [randn(32, 64, size, size), randn(*small)],
            pooled,
            gradients(lambda x: F.max_pool2d(x, 3, 2, 1), 1),
            traffic=4 * planes * (2 * size**2 + 4 * 56**2),
            error=1e-5,
        )
    )
    return cases


def event_time(call: Callable[[], object], repeats: int = 15) -> float:
    """Median seconds of one call between events, for what a graph cannot capture."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def torch_time(function: Callable, sets: Sequence[Tensors]) -> float:
    """Seconds of one call of a torch function over rotated inputs."""
    calls = [lambda xs=xs: function(*xs) for xs in sets]
    try:
        return graph_time(calls)
    except RuntimeError:
        torch.cuda.synchronize()
        return event_time(calls[0])


def difference(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """The largest |got - want| / max |want| over the outputs; NaN counts as infinite."""
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape:
            raise ValueError(f"shapes {tuple(a.shape)} and {tuple(b.shape)} differ")
        top, most = 0.0, 1e-30
        for x, y in zip(a.reshape(-1).split(1 << 28), b.reshape(-1).split(1 << 28), strict=True):
            x, y = x.double(), y.double()
            top = max(top, (x - y).abs().max().item())
            most = max(most, y.abs().max().item())
        worst = max(worst, float("inf") if top != top else top / most)
    return worst


def measure(case: Case, compiled: bool) -> dict:
    """The case's row: error against torch, times in microseconds, rates, peak memory."""
    torch.manual_seed(0)
    first = case.inputs()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    call, outputs = case.ours(first)
    call()
    torch.cuda.synchronize()
    row: dict = {"name": case.name}
    row["ours_bytes"] = torch.cuda.max_memory_allocated() - held
    if not (case.big and rehearsing()):
        row["error"] = difference(outputs, case.reference(*first))
        row["ok"] = row["error"] <= case.error
    size = sum(t.nbytes for t in (*first, *outputs))
    sets = [first]
    while not (case.big or rehearsing()) and len(sets) < 8 and len(sets) * size < 3 * L2_BYTES:
        sets.append(case.inputs())
    calls = [call, *(case.ours(xs)[0] for xs in sets[1:])]
    row["ours_us"] = 1e6 * graph_time(calls)
    row["variants_us"] = {}
    checked = [] if case.big or not case.variants else case.reference(*first)
    for name, variant in case.variants.items():
        try:
            made = [variant(xs) for xs in sets]
            made[0][0]()
            torch.cuda.synchronize()
            if not case.big and not difference(made[0][1], checked) <= case.error:
                row["variants_us"][name] = "WRONG"
                continue
            others = [call for call, _ in made]
            row["variants_us"][name] = 1e6 * graph_time(others, 7)
        except Exception as error:
            row["variants_us"][name] = repr(error)[:200]
        others = made = None
        free()
    checked = None
    calls = call = outputs = None
    free()
    if case.big and rehearsing():
        return row
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    row["eager_us"] = 1e6 * torch_time(case.reference, sets)
    row["eager_bytes"] = torch.cuda.max_memory_allocated() - held
    free()
    if compiled and case.compiles:
        torch._dynamo.reset()
        function = torch.compile(case.reference)
        function(*first)
        free()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        function(*first)
        torch.cuda.synchronize()
        row["compile_bytes"] = torch.cuda.max_memory_allocated() - held
        row["compile_us"] = 1e6 * torch_time(function, sets)
    best = min(v for k, v in row.items() if k in ("eager_us", "compile_us"))
    row["ratio"] = best / row["ours_us"]
    if case.traffic:
        row["gb_per_s"] = case.traffic / row["ours_us"] / 1e3
    if case.flops:
        row["tflop_per_s"] = case.flops / row["ours_us"] / 1e6
    return row


def rehearse_case(name: str, compiled: bool) -> dict:
    """The case's errors, without times."""
    torch._functorch.config.donated_buffer = False
    return measure(next(case for case in all_cases() if case.name == name), compiled)


def all_cases() -> list[Case]:
    """Every row of the table."""
    return [
        *copy_bandwidth_cases(),
        *softmax_cases(),
        *norm_cases(),
        *cross_entropy_cases(),
        *linear_cross_entropy_cases(),
        *copy_cases(),
        *scan_and_sort_cases(),
        *convolution_cases(),
    ]


def free() -> None:
    """Give cached memory back, so that peaks and big cases do not meet."""
    gc.collect()
    torch.cuda.empty_cache()


def line(row: dict) -> str:
    """One line of the table."""
    if "failed" in row:
        return f"{row['name']:<56} FAILED {row['failed'][-120:]}"
    rate = f"{row['gb_per_s']:.0f} GB/s" if "gb_per_s" in row else f"{row['tflop_per_s']:.0f} TF/s"
    compiled = f"{row['compile_us']:.1f}" if "compile_us" in row else "-"
    return (
        f"{row['name']:<56} {row['ours_us']:>10.1f} {row['eager_us']:>10.1f} {compiled:>10} "
        f"{row['ratio']:>6.2f} {rate:>10} {row['error']:>8.1e} {'ok' if row['ok'] else 'WRONG'}"
    )


def main() -> None:
    """Measure the chosen cases and print the table last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("rows.json"))
    parser.add_argument("--only", default="", help="comma-separated parts of names")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--budget", type=float, default=240, help="seconds, about, in all")
    arguments = parser.parse_args()
    torch._functorch.config.donated_buffer = False
    report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    report |= {"triton": triton.__version__, "commit": os.environ.get("KERNEL_COMMIT"), "rows": []}
    if arguments.out.exists():
        report["rows"] = json.loads(arguments.out.read_text())["rows"]
    done = {row["name"] for row in report["rows"] if "failed" not in row}
    report["rows"] = [row for row in report["rows"] if row["name"] in done]
    wanted = [part for part in arguments.only.split(",") if part]
    cases = [
        case
        for case in all_cases()
        if case.name not in done and (not wanted or any(part in case.name for part in wanted))
    ]
    compiled = not arguments.no_compile
    rehearsed = rehearse(rehearse_case, [(c.name, compiled) for c in cases], arguments.budget / 2)
    for case in cases:
        row = rehearsed.get((case.name, compiled), "not rehearsed")
        if isinstance(row, str):
            report["rows"].append({"name": case.name, "failed": row})
            print(line(report["rows"][-1]), flush=True)
            continue
        try:
            row = measure(case, compiled)
        except Exception as error:
            traceback.print_exc()
            row = {"name": case.name, "failed": repr(error)}
        free()
        report["rows"].append(row)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
        print(line(row), flush=True)
    print(f"\n{'us':<56} {'ours':>10} {'eager':>10} {'compile':>10} {'ratio':>6}")
    for row in report["rows"]:
        print(line(row))
        for name, value in row.get("variants_us", {}).items():
            print(f"    {name}: {value if isinstance(value, str) else round(value, 1)}")
        if row.get("compile_bytes") and row["name"].startswith("linear"):
            gib = {k: round(row[k] / 2**30, 2) for k in row if k.endswith("_bytes")}
            print(f"    peak GiB: {gib}")


if __name__ == "__main__":
    main()
