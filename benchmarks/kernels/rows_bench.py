"""Norms, softmax, losses, copies, scans, sorts and convolutions of the library, as users call them
under jit, against torch and torch.compile on one GPU.

    python benchmarks/kernels/rows_bench.py --out rows.json [--only norm] [--budget 120] [--quick]

Every result is compared with torch's. Rows already in the output file are kept, so that an
interrupted run goes on where it stopped; `--quick` leaves torch.compile and the longest cases out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch._functorch.config
import torch.nn.functional as F
import triton
from jitted import Tensors, difference, free, our_time, results, sets_of, their_time
from torch_launch import rehearse

import genesis_fn as gf
import genesis_fn.numpy as gnp
from genesis_fn import lax, nn, optim, random

F32, BF16 = torch.float32, torch.bfloat16


@dataclass
class Case:
    """One row of the table: the same function of `inputs()`, ours and torch's.

    `traffic` is the bytes that must move at least, `flops` the work; `error` the largest accepted
    |ours - torch| over max |torch|, 0 for equality, None where values are not compared.
    """

    name: str
    inputs: Callable[[], Tensors]
    ours: Callable[..., Any]
    reference: Callable[..., Sequence[torch.Tensor]]
    traffic: float = 0.0
    flops: float = 0.0
    error: float | None = 0.0
    compiles: bool = True
    big: bool = False  # takes tens of gigabytes


def randn(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    """Normal values."""
    return torch.randn(shape, device="cuda", dtype=dtype)


def gradients(function: Callable, differentiated: int) -> Callable:
    """torch's forward and backward of `function`; the last input is the cotangent."""

    def run(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        leaves = [x.detach().requires_grad_() for x in inputs[:differentiated]]
        y = function(*leaves, *inputs[differentiated:-1])
        return [y.detach(), *torch.autograd.grad(y, leaves, inputs[-1])]

    return run


def our_gradients(function: Callable, differentiated: int) -> Callable:
    """The library's forward and backward, alike."""

    def run(*inputs: Any) -> Any:
        rest = inputs[differentiated:-1]
        y, pull = gf.vjp(lambda *xs: function(*xs, *rest), *inputs[:differentiated])
        return y, *pull(inputs[-1])

    return run


def pointwise_cases() -> list[Case]:
    """What a copy reaches on this machine, and the traffic of an optimizer."""
    n = 1 << 27

    def adamw(sqrt: Callable) -> Callable:
        def run(p, g, m, v):
            first, second = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
            return [p - 1e-3 * (first / (sqrt(second) + 1e-8) + 0.1 * p), first, second]

        return run

    return [
        Case(
            "pointwise copy 2 GiB fp32",
            lambda: [randn(4 * n)],
            lambda x: x + 1,
            lambda x: [x + 1],
            traffic=32 * n,
            compiles=False,
            big=True,
        ),
        Case(
            "AdamW-like step 2^27 fp32",
            lambda: [randn(n), randn(n), randn(n), randn(n).abs()],
            adamw(gnp.sqrt),
            adamw(torch.sqrt),
            traffic=28 * n,
            error=1e-5,
            big=True,
        ),
    ]


def softmax_cases() -> list[Case]:
    found, n = [], 8192
    for dtype, name, error in ((F32, "fp32", 1e-5), (BF16, "bf16", 2e-2)):
        size = dtype.itemsize
        found += [
            Case(
                f"softmax {n}^2 {name}",
                lambda d=dtype: [randn(n, n, dtype=d)],
                lambda x: nn.softmax(x, -1),
                lambda x: [torch.softmax(x, -1)],
                traffic=2 * size * n * n,
                error=error,
            ),
            Case(
                f"logsumexp {n}^2 {name}",
                lambda d=dtype: [randn(n, n, dtype=d)],
                lambda x: nn.logsumexp(x, -1),
                lambda x: [torch.logsumexp(x, -1)],
                traffic=size * n * n,
                error=error,
            ),
            Case(
                f"softmax fwd+bwd {n}^2 {name}",
                lambda d=dtype: [randn(n, n, dtype=d), randn(n, n, dtype=d)],
                our_gradients(lambda x: nn.softmax(x, -1), 1),
                gradients(lambda x: torch.softmax(x, -1), 1),
                traffic=5 * size * n * n,
                error=error,
            ),
        ]
    found.append(
        Case(
            "logsumexp 4096x151936 bf16",
            lambda: [randn(4096, 151936, dtype=BF16)],
            lambda x: nn.logsumexp(x, -1),
            lambda x: [torch.logsumexp(x.float(), -1).bfloat16()],
            traffic=2 * 4096 * 151936,
            error=1e-2,
            big=True,
        )
    )
    return found


def norm_cases() -> list[Case]:
    found = []
    for kind, rows, columns, dtype, name in (
        ("layer", 4096, 4096, F32, "fp32"),
        ("rms", 16384, 1024, BF16, "bf16"),
        ("rms", 262144, 128, BF16, "bf16"),
    ):
        layer, size = kind == "layer", dtype.itemsize
        module = nn.LayerNorm(columns, 1e-6) if layer else nn.RMSNorm(columns, 1e-6)

        def inputs(rows=rows, columns=columns, dtype=dtype, layer=layer):
            weights = [randn(columns, dtype=dtype) for _ in range(1 + layer)]
            return [randn(rows, columns, dtype=dtype), *weights]

        def function(x, *weights, module=module):
            return module(dict(zip(("weight", "bias"), weights, strict=False)), x)

        def reference(x, w, b=None, layer=layer, columns=columns):
            if layer:
                return F.layer_norm(x, (columns,), w, b, 1e-6)
            return F.rms_norm(x, (columns,), w, 1e-6)

        error = 1e-5 if dtype == F32 else 2e-2
        label = f"{kind} norm {rows}x{columns} {name}"
        found += [
            Case(
                label,
                inputs,
                function,
                lambda *xs, f=reference: [f(*xs)],
                traffic=2 * size * rows * columns,
                error=error,
            ),
            Case(
                label.replace("norm", "norm fwd+bwd"),
                lambda inputs=inputs: [*(xs := inputs()), torch.randn_like(xs[0])],
                our_gradients(function, 2 + layer),
                gradients(reference, 2 + layer),
                traffic=5 * size * rows * columns,
                error=error,
            ),
        ]
    return found


def loss_cases() -> list[Case]:
    rows, features, classes = 16384, 1024, 151936

    def labels() -> torch.Tensor:
        return torch.randint(0, classes, (rows,), device="cuda")

    def logits() -> Tensors:
        return [randn(rows, classes, dtype=BF16), labels()]

    def ours(x, y):
        return optim.softmax_cross_entropy_with_integer_labels(x.astype("float32"), y).mean()

    def function(x, y):
        return F.cross_entropy(x.float(), y)

    def linear() -> Tensors:
        weight = randn(classes, features, dtype=BF16) * 0.03
        return [randn(rows, features, dtype=BF16), weight, labels()]

    def ours_linear(x, w, y):
        loss, grads = gf.value_and_grad(nn.linear_cross_entropy, (0, 1))(x, w, y)
        return loss, *grads

    def reference_linear(x, w, y):
        x, w = (t.detach().requires_grad_() for t in (x, w))
        loss = F.cross_entropy((x @ w.T).float(), y)
        return [loss.detach(), *torch.autograd.grad(loss, (x, w))]

    size = 2 * rows * classes
    return [
        Case(
            "cross-entropy 16384x151936 bf16",
            logits,
            ours,
            lambda x, y: [function(x, y)],
            traffic=size,
            error=1e-5,
            big=True,
        ),
        Case(
            "cross-entropy fwd+bwd 16384x151936 bf16",
            lambda: [*logits(), torch.ones((), device="cuda")],
            our_gradients(ours, 1),
            gradients(function, 1),
            traffic=3 * size,
            error=2e-2,
            big=True,
        ),
        Case(
            "linear+cross-entropy fwd+bwd 16384x1024x151936 bf16",
            linear,
            ours_linear,
            reference_linear,
            flops=6 * rows * features * classes,
            error=3e-2,
            big=True,
        ),
    ]


def copy_cases() -> list[Case]:
    found = []
    for count, axis in ((2, 0), (2, 1), (3, 0), (3, 1)):
        found.append(
            Case(
                f"cat of {count} axis {axis} 4096^2 fp32",
                lambda c=count: [randn(4096, 4096) for _ in range(c)],
                lambda *xs, a=axis: gnp.concatenate(xs, a),
                lambda *xs, a=axis: [torch.cat(xs, a)],
                traffic=8 * count * 4096**2,
            )
        )
    parts = (512, 128, 300)
    found.append(
        Case(
            "cat of 3 middle axis 64x(512,128,300)x768 bf16",
            lambda: [randn(64, n, 768, dtype=BF16) for n in parts],
            lambda *xs: gnp.concatenate(xs, 1),
            lambda *xs: [torch.cat(xs, 1)],
            traffic=4 * 64 * 768 * sum(parts),
        )
    )
    rows, columns, count = 151936, 1024, 16384
    found.append(
        Case(
            f"embedding lookup {count} of {rows}x{columns} bf16",
            lambda: [
                randn(rows, columns, dtype=BF16),
                torch.randint(rows, (count,), device="cuda"),
            ],
            lambda table, tokens: table[tokens],
            lambda table, tokens: [F.embedding(tokens, table)],
            traffic=4 * count * columns,
        )
    )

    def embedded(tokens, dy):
        table = gnp.zeros((rows, columns), "bfloat16")
        return gf.vjp(lambda table: table[tokens], table)[1](dy)

    for kind, most in (("", rows), (" of 100 tokens", 100), (" of one token", 1)):
        found.append(
            Case(
                f"embedding gradient {count} to {rows}x{columns} bf16{kind}",
                lambda most=most: [
                    torch.randint(most, (count,), device="cuda"),
                    randn(count, columns, dtype=BF16),
                ],
                embedded,
                lambda tokens, dy: [
                    torch.ops.aten.embedding_dense_backward(dy, tokens, rows, -1, False)
                ],
                traffic=2 * columns * (count + rows),
                error=2e-2,
            )
        )
    return found


def scan_and_sort_cases() -> list[Case]:
    found = []
    for name, shape, axis in (
        ("cumsum 2^24 fp32", (1 << 24,), 0),
        ("cumsum rows 8192^2 fp32", (8192, 8192), 1),
        ("cumsum columns 8192^2 fp32", (8192, 8192), 0),
    ):
        found.append(
            Case(
                name,
                lambda s=shape: [randn(*s)],
                lambda x, a=axis: gnp.cumsum(x, a),
                lambda x, a=axis: [torch.cumsum(x, a)],
                traffic=8 * torch.Size(shape).numel(),
                error=1e-4,
                compiles=False,
            )
        )
    found += [
        Case(
            "cummax rows 4096^2 fp32",
            lambda: [randn(4096, 4096)],
            lambda x: lax.cummax(x, 1),
            lambda x: [torch.cummax(x, 1).values],
            traffic=8 * 4096**2,
            compiles=False,
        ),
        Case(
            "random bits 2^26",
            lambda: [torch.randint(1 << 30, (2,), device="cuda").int()],
            lambda k: random.bits(random.wrap_key_data(k.astype("uint32")), (1 << 26,)),
            lambda k: [torch.empty(1 << 26, dtype=torch.int32, device="cuda").random_()],
            traffic=4 << 26,
            error=None,
            compiles=False,
        ),
    ]
    for rows, length in ((1, 1 << 24), (1, 1 << 20), (4096, 1024), (64, 16384)):

        def sort(x):
            places = lax.broadcasted_iota("int32", x.shape, 1)
            return lax.sort((x, places), dimension=1, num_keys=1)

        found.append(
            Case(
                f"sort {rows}x{length} fp32",
                lambda s=(rows, length): [randn(*s)],
                sort,
                lambda x: list(torch.sort(x, dim=-1, stable=True)),
                traffic=16 * rows * length,
                compiles=False,
            )
        )
    for rows, length, k in ((64, 151936, 50), (1, 151936, 50), (4096, 1024, 8)):
        found.append(
            Case(
                f"top {k} of {rows}x{length} fp32",
                # Distinct values: torch does not say which of equal ones it takes.
                lambda s=(rows, length): [torch.rand(s, device="cuda").argsort(-1).float()],
                lambda x, k=k: lax.top_k(x, k),
                lambda x, k=k: list(torch.topk(x, k)),
                traffic=4 * rows * length,
                compiles=False,
            )
        )
    return found


def window_cases() -> list[Case]:
    found = []
    layouts = ("NHWC", "OHWI", "NHWC")
    for n, size, c, o, k, s in ((32, 56, 64, 64, 3, 1), (32, 28, 256, 512, 1, 2)):
        pad, small = k // 2, size // s

        # The same memory, seen as torch's channels-last tensors.
        def last(t: torch.Tensor) -> torch.Tensor:
            return t.permute(0, 3, 1, 2)

        def ours(x, w, s=s, pad=pad):
            padding = ((pad, pad), (pad, pad))
            return lax.conv_general_dilated(x, w, (s, s), padding, dimension_numbers=layouts)

        def gradient(dy, x, w, mask, s=s, pad=pad):
            return torch.ops.aten.convolution_backward(
                last(dy), last(x), last(w), None, [s, s], [pad, pad], [1, 1], False, [0, 0], 1, mask
            )

        def arrays(n=n, size=size, small=small, c=c, o=o, k=k):
            shapes = ((n, size, size, c), (o, k, k, c), (n, small, small, o))
            return [randn(*shape, dtype=BF16) for shape in shapes]

        flops = 2 * n * small**2 * k * k * c * o
        for what, mine, function in (
            (
                "conv",
                lambda x, w, dy, f=ours: f(x, w),
                lambda x, w, dy, s=s, pad=pad: F.conv2d(last(x), last(w), None, s, pad),
            ),
            (
                "conv input gradient",
                lambda x, w, dy, f=ours: gf.vjp(lambda x: f(x, w), x)[1](dy),
                lambda x, w, dy, f=gradient: f(dy, x, w, [True, False, False])[0],
            ),
            (
                "conv kernel gradient",
                lambda x, w, dy, f=ours: gf.vjp(lambda w: f(x, w), w)[1](dy),
                lambda x, w, dy, f=gradient: f(dy, x, w, [False, True, False])[1],
            ),
        ):
            found.append(
                Case(
                    f"{what} {n}x{size}^2x{c} to {o}, {k}x{k}/{s} bf16",
                    arrays,
                    mine,
                    lambda *xs, f=function: [f(*xs).permute(0, 2, 3, 1)],
                    flops=flops,
                    error=2e-2,
                    compiles=False,
                )
            )

    def pooled(x):
        padding = ((0, 0), (0, 0), (1, 1), (1, 1))
        return lax.reduce_window(x, -gnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), padding)

    planes = 32 * 64
    found.append(
        Case(
            "max pool fwd+bwd 32x64x112^2, 3x3/2 fp32",
            lambda: [randn(32, 64, 112, 112), randn(32, 64, 56, 56)],
            our_gradients(pooled, 1),
            gradients(lambda x: F.max_pool2d(x, 3, 2, 1), 1),
            traffic=4 * planes * (2 * 112**2 + 4 * 56**2),
            error=1e-5,
        )
    )
    return found


def all_cases() -> list[Case]:
    """Every row of the table."""
    return [
        *pointwise_cases(),
        *softmax_cases(),
        *norm_cases(),
        *loss_cases(),
        *copy_cases(),
        *scan_and_sort_cases(),
        *window_cases(),
    ]


def compiled(case: Case) -> Callable:
    """The reference under torch.compile."""
    torch._functorch.config.donated_buffer = False
    torch._dynamo.reset()
    return torch.compile(case.reference)


def check(name: str, compiles: bool) -> float | None:
    """A case's error, where it has one; its kernels are compiled after this."""
    torch.manual_seed(0)
    case = next(case for case in all_cases() if case.name == name)
    inputs = case.inputs()
    error = None
    found = results(lambda *xs: case.ours(*xs), inputs)
    if case.error is not None:
        error = difference(found, case.reference(*inputs))
    del found
    our_time(case.ours, [inputs])
    if compiles and case.compiles:
        compiled(case)(*inputs)
    free()
    return error


def measure(case: Case, compiles: bool) -> dict[str, Any]:
    """The case's times in microseconds, rates, and the peak of memory beside its inputs."""
    sets = sets_of(case.inputs, 1 if case.big else 8)
    row: dict[str, Any] = {"name": case.name}
    row["ours_us"] = 1e6 * our_time(case.ours, sets)
    gf.cuda.empty_cache()
    gf.cuda.reset_peak()
    held = gf.cuda.memory_allocated()
    results(case.ours, sets[0])
    row["ours_bytes"] = gf.cuda.max_memory_allocated() - held
    free()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    case.reference(*sets[0])
    row["eager_bytes"] = torch.cuda.max_memory_allocated() - held
    row["eager_us"] = 1e6 * their_time(case.reference, sets)
    free()
    if compiles and case.compiles:
        row["compile_us"] = 1e6 * their_time(compiled(case), sets)
    best = min(v for k, v in row.items() if k in ("eager_us", "compile_us"))
    row["ratio"] = best / row["ours_us"]
    if case.traffic:
        row["gb_per_s"] = case.traffic / row["ours_us"] / 1e3
    if case.flops:
        row["tflop_per_s"] = case.flops / row["ours_us"] / 1e6
    return row


def line(row: dict[str, Any]) -> str:
    """One line of the table."""
    if "failed" in row:
        return f"{row['name']:<56} FAILED {row['failed'][-200:]}"
    rate = f"{row['gb_per_s']:.0f} GB/s" if "gb_per_s" in row else f"{row['tflop_per_s']:.0f} TF/s"
    peer = f"{row['compile_us']:.1f}" if "compile_us" in row else "-"
    error = "-" if row["error"] is None else f"{row['error']:.1e}"
    return (
        f"{row['name']:<56} {row['ours_us']:>10.1f} {row['eager_us']:>10.1f} {peer:>10} "
        f"{row['ratio']:>6.2f} {rate:>10} {error:>8} {'ok' if row['ok'] else 'WRONG'}"
    )


def main() -> None:
    """Measure the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("rows.json"))
    parser.add_argument("--only", default="", help="comma-separated parts of names")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--quick", action="store_true", help="no torch.compile, no huge cases")
    parser.add_argument("--budget", type=float, default=110, help="seconds, about, in all")
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": os.environ.get("KERNEL_COMMIT"),
        "rows": [],
    }
    if arguments.out.exists():
        report["rows"] = json.loads(arguments.out.read_text())["rows"]
    report["rows"] = [row for row in report["rows"] if "failed" not in row]
    done = {row["name"] for row in report["rows"]}
    wanted = [part for part in arguments.only.split(",") if part]
    cases = [
        case
        for case in all_cases()
        if case.name not in done
        and (not wanted or any(part in case.name for part in wanted))
        and not (arguments.quick and case.big)
    ]
    compiles = not (arguments.no_compile or arguments.quick)
    start = time.time()
    # The huge ones one at a time, so that they find room.
    small = [(c.name, compiles) for c in cases if not c.big]
    checked = rehearse(check, small, 0.5 * arguments.budget)
    huge = [(c.name, compiles) for c in cases if c.big]
    checked |= rehearse(check, huge, 0.3 * arguments.budget, 2)
    print(f"{len(checked)} of {len(cases)} cases checked in {time.time() - start:.0f} s")
    for case in cases:
        if time.time() - start > arguments.budget:
            print("out of time before", case.name)
            break
        error = checked.get((case.name, compiles), "not rehearsed")
        try:
            if isinstance(error, str):
                raise RuntimeError(error)
            row = measure(case, compiles) | {"error": error}
            row["ok"] = error is None or error <= case.error
        except Exception as problem:
            row = {"name": case.name, "failed": f"{type(problem).__name__}: {problem}"[:600]}
        free()
        report["rows"].append(row)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
        print(line(row), flush=True)


if __name__ == "__main__":
    main()
