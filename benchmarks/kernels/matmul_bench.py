"""Matrix products of the library, as users call them under jit, against cuBLAS on one GPU.

    python benchmarks/kernels/matmul_bench.py --out r.json [--only dW] [--budget 120] [--quick]

Needs torch with CUDA, and Triton. Cases already in the output file are skipped, so an interrupted
run goes on where it stopped; `--quick` takes the large products and a few of each other kind. Every
result is checked. cuBLAS computes the bare products, whatever the case adds to them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import triton
from jitted import Tensors, difference, free, our_time, results, sets_of, their_time
from torch_launch import rehearse

import genesis_fn.numpy as gnp
from genesis_fn import nn

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
F8, I8 = torch.float8_e4m3fn, torch.int8
# Of the largest element. Tensor cores cut, not round, when they add in float32.
ERROR = {BF16: 2e-2, F16: 3e-3, F32: 1e-4, F64: 1e-12, torch.int32: 0.0}
PRECISION_ERROR = {None: 2e-2, "tf32x3": 1e-4, "highest": 1e-5}


@dataclass(frozen=True)
class Case:
    """One row of the table: `ours` of its inputs, and the bare products of pairs of them."""

    name: str
    inputs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    ours: Callable
    bare: Callable[..., list[torch.Tensor]]
    reference: Callable[..., list[torch.Tensor]]
    flops: float
    precision: str | None = None
    error: float | None = None

    def draw(self) -> list[torch.Tensor]:
        """Random inputs."""
        return [_draw(shape, dtype) for shape, dtype in self.inputs]


def _draw(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype == I8:
        return torch.randint(-8, 8, shape, device="cuda").to(I8)
    wide = F64 if dtype == F64 else F32
    return torch.randn(shape, device="cuda", dtype=wide).to(dtype)


def product(
    m: int,
    n: int,
    k: int,
    layout: str = "NN",
    dtype: torch.dtype = BF16,
    out: str | None = None,
    batch: int | None = None,
    precision: str | None = None,
) -> dict[str, Any]:
    """The fields of a plain product; a "T" means that an operand is stored the other way round."""
    lead = () if batch is None else (batch,)
    left = (*lead, k, m) if layout[0] == "T" else (*lead, m, k)
    right = (*lead, n, k) if layout[1] == "T" else (*lead, k, n)

    def turned(x: Any, y: Any) -> tuple[Any, Any]:
        return x.mT if layout[0] == "T" else x, y.mT if layout[1] == "T" else y

    def ours(x: Any, y: Any) -> Any:
        x, y = turned(x, y)
        return gnp.matmul(x, y, precision=precision, preferred_element_type=out)

    def bare(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        x, y = turned(x, y)
        torch.backends.cuda.matmul.allow_tf32 = precision is None
        if dtype == F8:
            one = torch.ones((), device="cuda")
            return [torch._scaled_mm(x, y, one, one, out_dtype=BF16)]
        return [torch._int_mm(x, y) if dtype == I8 else torch.matmul(x, y)]

    def reference(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [exact(*turned(x, y))]

    return {
        "inputs": ((left, dtype), (right, dtype)),
        "ours": ours,
        "bare": bare,
        "reference": reference,
        "flops": 2 * (batch or 1) * m * n * k,
        "precision": precision,
    }


def exact(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The product in float32, or in float64 where that is what is wanted."""
    wide = F64 if x.dtype in (F32, F64, I8) else F32
    torch.backends.cuda.matmul.allow_tf32 = False
    return x.to(wide) @ y.to(wide)


def swiglu(m: int, f: int, d: int, one_weight: bool = False) -> dict[str, Any]:
    """silu(x @ gate) * (x @ up), of two weights or of both in one."""
    weights = (((2 * f, d), BF16),) if one_weight else (((f, d), BF16),) * 2

    def parts(weights: Any, split: Callable) -> Any:
        return split(weights[0]) if one_weight else weights

    def ours(x: Any, *weights: Any) -> Any:
        if one_weight:
            a, b = gnp.split(x @ weights[0].T, 2, -1)
        else:
            a, b = [x @ w.T for w in weights]
        return nn.silu(a) * b

    def reference(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
        a, b = parts(weights, lambda w: w.chunk(2))
        return [torch.nn.functional.silu(exact(x, a.T)) * exact(x, b.T)]

    return {
        "inputs": (((m, d), BF16), *weights),
        "ours": ours,
        "bare": lambda x, *ws: [x @ w.T for w in ws],
        "reference": reference,
        "flops": 4 * m * f * d,
    }


def gradients(layer: list[tuple[int, int]], t: int, wide: bool) -> dict[str, Any]:
    """The weight gradients x.T @ dy of a layer's products, or their sums with what is held."""

    def ours(*xs: Any) -> list[Any]:
        made = []
        for i in range(len(layer)):
            x, dy, *held = xs[i * (2 + wide) : (i + 1) * (2 + wide)]
            out = gnp.matmul(x.T, dy, preferred_element_type="float32" if wide else None)
            made.append(held[0] + out if wide else out)
        return made

    def bare(*xs: torch.Tensor) -> list[torch.Tensor]:
        step = 2 + wide
        return [xs[i].T @ xs[i + 1] for i in range(0, step * len(layer), step)]

    def reference(*xs: torch.Tensor) -> list[torch.Tensor]:
        step = 2 + wide
        return [
            exact(xs[i].T, xs[i + 1]) + (xs[i + 2] if wide else 0)
            for i in range(0, step * len(layer), step)
        ]

    inputs = []
    for m, n in layer:
        inputs += [((t, m), BF16), ((t, n), BF16)] + [((m, n), F32)] * wide
    return {
        "inputs": tuple(inputs),
        "ours": ours,
        "bare": bare,
        "reference": reference,
        "flops": sum(2 * m * n * t for m, n in layer),
    }


def cases() -> list[Case]:
    """The shapes of a Qwen3-0.6B training step of 16384 tokens, of decoding, and of each family."""
    t, d, q, kv, f, vocabulary = 16384, 1024, 2048, 1024, 3072, 151936
    table: dict[str, dict[str, Any]] = {
        "8192^3": product(8192, 8192, 8192),
        "4096^3": product(4096, 4096, 4096),
        "qkv 16384x4096x1024": product(t, 4096, d, "NT"),
        "down 16384x1024x3072": product(t, d, f, "NT"),
        "gate-up 16384x6144x1024": product(t, 2 * f, d, "NT"),
        "o 16384x1024x2048": product(t, d, q, "NT"),
        "dX gate-up 16384x1024x6144": product(t, d, 2 * f),
        "dX down 16384x3072x1024": product(t, f, d),
        "dW down 1024x3072x16384": product(d, f, t, "TN"),
        "dW gate-up 1024x6144x16384": product(d, 2 * f, t, "TN"),
        "dW o 1024x2048x16384 fp32": product(d, q, t, "TN", out="float32"),
        "dW down accumulating fp32": gradients([(d, f)], t, True),
        "head 4096x151936x1024": product(4096, vocabulary, d, "NT"),
        "head dW 151936x1024x4096": product(vocabulary, d, 4096, "TN"),
        "swiglu 16384x3072x1024": swiglu(t, f, d),
        "swiglu, one weight": swiglu(t, f, d, one_weight=True),
    }
    plain = product(t, d, f, "NT")
    table["down + residual"] = {
        **plain,
        "inputs": (*plain["inputs"], ((t, d), BF16)),
        "ours": lambda x, w, r: x @ w.T + r,
        "bare": lambda x, w, r: [x @ w.T],
        "reference": lambda x, w, r: [exact(x, w.T) + r],
    }
    plain = product(8192, 4096, d, "NT")
    gelu = torch.nn.functional.gelu
    table["bias + gelu 8192x4096x1024"] = {
        **plain,
        "inputs": (*plain["inputs"], ((4096,), F32)),
        "ours": lambda x, w, b: nn.gelu(
            gnp.matmul(x, w.T, preferred_element_type="float32") + b
        ).astype("bfloat16"),
        "bare": lambda x, w, b: [x @ w.T],
        "reference": lambda x, w, b: [gelu(exact(x, w.T) + b, approximate="tanh")],
    }
    table |= {
        "batched 64x1024x1024x128": product(1024, 1024, 128, "NT", batch=64),
        "batched 64x1024x128x1024": product(1024, 128, 1024, batch=64),
        "NN 4096^3 fp16": product(4096, 4096, 4096, dtype=F16),
        "TT 4096^3": product(4096, 4096, 4096, "TT"),
        "odd 4095x4097x4093": product(4095, 4097, 4093),
        "tf32 4096^3": product(4096, 4096, 4096, "NT", F32),
        "tf32 NN 4096^3": product(4096, 4096, 4096, dtype=F32),
        "tf32x3 2048^3": product(2048, 2048, 2048, "NT", F32, precision="tf32x3"),
        "ieee 2048^3": product(2048, 2048, 2048, dtype=F32, precision="highest"),
        "fp64 2048^3": product(2048, 2048, 2048, dtype=F64),
        "fp8 8192^3": product(8192, 8192, 8192, "NT", F8, "bfloat16"),
        "int8 4096^3": product(4096, 4096, 4096, "NT", I8, "int32"),
    }
    for m in (1, 2, 4, 8, 16, 32, 64):
        table |= {
            f"decode {m} qkv 4096x1024": product(m, 4096, d, "NT"),
            f"decode {m} down 1024x3072": product(m, d, f, "NT"),
            f"decode {m} swiglu 3072x1024": swiglu(m, f, d),
        }
    table |= {
        "decode 1 head 151936x1024": product(1, vocabulary, d, "NT", out="float32"),
        "decode 16 head 151936x1024": product(16, vocabulary, d, "NT"),
        "decode 1 [k, n] 4096x4096": product(1, 4096, 4096),
    }
    layer = [(d, q), (d, kv), (d, kv), (q, d), (d, f), (d, f), (f, d)]
    table["grouped dW of a layer, bf16"] = gradients(layer, t, False)
    table["grouped dW of a layer, accumulating fp32"] = gradients(layer, t, True)
    return [Case(name, **fields) for name, fields in table.items()]


QUICK = (
    "8192^3", "4096^3", "qkv 16384", "down 16384", "gate-up 16384", "dW down 1024", "dW gate-up",
    "swiglu 16384", "tf32 4096", "grouped dW of a layer, bf16", "decode 1 ", "decode 16 ",
)  # fmt: skip


def check(name: str) -> float:
    """The error of a case over what is allowed; its kernels are compiled after this."""
    torch.manual_seed(0)
    case = next(case for case in cases() if case.name == name)
    inputs: Tensors = case.draw()
    got = results(lambda *xs: case.ours(*xs), inputs)
    allowed = PRECISION_ERROR[case.precision]
    allowed = max(ERROR[got[0].dtype], allowed if case.inputs[0][1] == F32 else 0.0)
    if case.inputs[0][1] == F8:
        allowed = max(allowed, 2e-2)
    error = difference(got, case.reference(*inputs))
    our_time(case.ours, [inputs])
    free()
    return error / allowed if allowed else (0.0 if error == 0 else math.inf)


def measure(case: Case) -> dict[str, Any]:
    """The times of a case."""
    sets = sets_of(case.draw)
    row: dict[str, Any] = {"case": case.name, "flops": case.flops, "sets": len(sets)}
    row["bytes"] = sum(t.nbytes for t in sets[0])
    row["ours_s"] = our_time(case.ours, sets)
    try:
        row["cublas_s"] = their_time(case.bare, sets)
    except RuntimeError as problem:
        row["cublas_error"] = str(problem).splitlines()[0][:200]
    return row


def line_of(row: dict[str, Any]) -> str:
    """The table's line of a case: rates for large products, microseconds for small ones."""
    if "failed" in row:
        return f"{row['case']:42s} FAILED {row['failed'][-200:]}"

    def rate(s: float) -> str:
        return f"{s * 1e6:7.1f}us" if row["flops"] < 2e10 else f"{row['flops'] / s / 1e12:7.0f}  "

    yard = row.get("cublas_s", math.nan)
    right = "" if row["ok"] else f" WRONG by {row['error']:.2g}"
    return (
        f"{row['case']:42s} cublas {rate(yard)} ours {rate(row['ours_s'])} "
        f"x{yard / row['ours_s']:.3f}{right}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", default="", help="comma-separated parts of names")
    parser.add_argument("--budget", type=float, default=110, help="seconds in all")
    parser.add_argument("--quick", action="store_true", help="a third of the cases")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    options = parser.parse_args()
    parts = options.only.split(",") if options.only else QUICK if options.quick else ("",)
    rows = []
    if Path(options.out).exists():
        rows = [r for r in json.loads(Path(options.out).read_text())["rows"] if "failed" not in r]
    done = {row["case"] for row in rows}
    chosen = [case for case in cases() if any(part in case.name for part in parts)]
    chosen = [case for case in chosen if case.name not in done]
    if options.list:
        print("\n".join(case.name for case in chosen))
        return
    start = time.time()
    checked = rehearse(check, [(case.name,) for case in chosen], 0.6 * options.budget)
    print(f"{len(checked)} of {len(chosen)} cases checked in {time.time() - start:.0f} s")
    for case in chosen:
        if time.time() - start > options.budget:
            print("out of time before", case.name)
            break
        torch.manual_seed(0)
        error = checked.get((case.name,), "not rehearsed")
        try:
            if isinstance(error, str):
                raise RuntimeError(error)
            row = measure(case) | {"error": error, "ok": error <= 1}
        except Exception as problem:
            row = {"case": case.name, "failed": f"{type(problem).__name__}: {problem}"[:600]}
        free()
        rows.append(row)
        print(line_of(row), flush=True)
        document = {
            "device": torch.cuda.get_device_name(0),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "commit": os.environ.get("KERNEL_COMMIT"),
            "rows": rows,
        }
        Path(options.out).write_text(json.dumps(document, indent=1) + "\n")
    wrong = [row["case"] for row in rows if not row.get("ok")]
    print(f"{len(rows)} cases, {len(wrong)} wrong: {wrong}")


if __name__ == "__main__":
    main()
