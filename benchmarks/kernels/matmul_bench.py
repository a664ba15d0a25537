"""Matrix products against cuBLAS on one GPU: checks every result, times every configuration.

    PYTHONPATH=. python benchmarks/kernels/matmul_bench.py --out r.json [--only dW] [--budget 500]

Needs torch with CUDA, and Triton. Cases already in the output file are skipped, so an interrupted
run goes on where it stopped. Prints one line for each case: cuBLAS's rate, those of the best and of
the default configuration, and their ratios to the first. Times are medians of CUDA graph replays
over rotated buffers.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import triton
from torch_launch import TARGET, TORCH_DTYPES, bound_plan, graph_time, rehearse

from genesis_fn.kernels.launch import Plan
from genesis_fn.kernels.matmul import Config, Epilogue, MatmulSpec, configs, plan_matmul
from genesis_fn.kernels.matmul_grouped import grouped_configs, plan_grouped_matmul

L2_BYTES = 64 << 20
# Tensor cores cut, not round, when they add in float32: about 1e-5 over 16384 terms.
RELATIVE_ERROR = {"bf16": 4e-3, "fp16": 6e-4, "fp32": 2e-5, "fp64": 1e-13, "i32": 0.0}
PRECISION_ERROR = {"default": 1.5e-3, "tf32": 1.5e-3, "tf32x3": 1e-5, "ieee": 2e-6}


@dataclass(frozen=True)
class Case:
    """One row of the table: a product, or a group of products in one launch."""

    name: str
    specs: tuple[MatmulSpec, ...]

    @property
    def flops(self) -> float:
        """Floating-point operations of the case."""
        return sum(2 * s.batches * s.m * s.n * s.k * (1 + s.gated) for s in self.specs)

    def configs(self) -> list[Config]:
        """The configurations to time, the default first."""
        if len(self.specs) > 1:
            menu = grouped_configs(self.specs, TARGET)[:4]
            return menu + [replace(menu[0], group=group) for group in (16, 32)]
        spec = self.specs[0]
        menu = [*configs(spec, TARGET)]
        if spec.m <= 64:
            return menu
        return menu[:6] + [replace(menu[0], group=group) for group in (4, 16)]

    def plan(self, config: Config) -> Plan:
        """The plan with one configuration."""
        if len(self.specs) > 1:
            return plan_grouped_matmul(self.specs, TARGET, config)
        return plan_matmul(self.specs[0], TARGET, config)


def cases() -> list[Case]:
    """The shapes of a Qwen3-0.6B training step of 16384 tokens, of decoding, and of each family."""
    t, d, q, kv, f, vocabulary = 16384, 1024, 2048, 1024, 3072, 151936
    nt = {"rhs_transposed": True}
    dw = {"lhs_transposed": True}
    single = {
        "8192^3": {"m": 8192, "n": 8192, "k": 8192},
        "4096^3": {"m": 4096, "n": 4096, "k": 4096},
        "qkv 16384x4096x1024": {"m": t, "n": 4096, "k": d, **nt},
        "down 16384x1024x3072": {"m": t, "n": d, "k": f, **nt},
        "gate-up 16384x6144x1024": {"m": t, "n": 2 * f, "k": d, **nt},
        "o 16384x1024x2048": {"m": t, "n": d, "k": q, **nt},
        "dX gate-up 16384x1024x6144": {"m": t, "n": d, "k": 2 * f},
        "dX down 16384x3072x1024": {"m": t, "n": f, "k": d},
        "dW down 1024x3072x16384": {"m": d, "n": f, "k": t, **dw},
        "dW gate-up 1024x6144x16384": {"m": d, "n": 2 * f, "k": t, **dw},
        "dW o 1024x2048x16384 fp32": {"m": d, "n": q, "k": t, "out_dtype": "fp32", **dw},
        "dW down accumulating fp32": {
            "m": d,
            "n": f,
            "k": t,
            "out_dtype": "fp32",
            "accumulate": True,
            **dw,
        },
        "head 4096x151936x1024": {"m": 4096, "n": vocabulary, "k": d, **nt},
        "head dW 151936x1024x4096": {"m": vocabulary, "n": d, "k": 4096, **dw},
        "swiglu 16384x3072x1024": {
            "m": t,
            "n": f,
            "k": d,
            "epilogue": Epilogue(activation="silu", gating="separate"),
            **nt,
        },
        "swiglu, one weight": {
            "m": t,
            "n": f,
            "k": d,
            "epilogue": Epilogue(activation="silu", gating="packed", gate_offset=f * d),
            **nt,
        },
        "down + residual": {"m": t, "n": d, "k": f, "epilogue": Epilogue(residual="bf16"), **nt},
        "bias + gelu 8192x4096x1024": {
            "m": 8192,
            "n": 4096,
            "k": d,
            "epilogue": Epilogue(bias="col", activation="gelu_tanh"),
            **nt,
        },
        "batched 64x1024x1024x128": {"m": 1024, "n": 1024, "k": 128, "batch": (64,), **nt},
        "batched 64x1024x128x1024": {"m": 1024, "n": 128, "k": 1024, "batch": (64,)},
        "NN 4096^3 fp16": {"m": 4096, "n": 4096, "k": 4096, **_all("fp16")},
        "TT 4096^3": {"m": 4096, "n": 4096, "k": 4096, **nt, **dw},
        "odd 4095x4097x4093": {"m": 4095, "n": 4097, "k": 4093},
        "tf32 4096^3": {"m": 4096, "n": 4096, "k": 4096, **_all("fp32"), **nt},
        "tf32 NN 4096^3": {"m": 4096, "n": 4096, "k": 4096, **_all("fp32")},
        "tf32x3 2048^3": {
            "m": 2048,
            "n": 2048,
            "k": 2048,
            "precision": "tf32x3",
            **_all("fp32"),
            **nt,
        },
        "ieee 2048^3": {"m": 2048, "n": 2048, "k": 2048, "precision": "ieee", **_all("fp32")},
        "fp64 2048^3": {"m": 2048, "n": 2048, "k": 2048, **_all("fp64")},
        "fp8 8192^3": {"m": 8192, "n": 8192, "k": 8192, **_all("fp8e4nv"), "out_dtype": "bf16"}
        | nt,
        "int8 4096^3": {"m": 4096, "n": 4096, "k": 4096, **_all("i8"), "out_dtype": "i32", **nt},
    }
    for m in (1, 2, 4, 8, 16, 32, 64):
        single |= {
            f"decode {m} qkv 4096x1024": {"m": m, "n": 4096, "k": d, **nt},
            f"decode {m} down 1024x3072": {"m": m, "n": d, "k": f, **nt},
            f"decode {m} swiglu 3072x1024": {
                "m": m,
                "n": f,
                "k": d,
                "epilogue": Epilogue(activation="silu", gating="separate"),
                **nt,
            },
        }
    single |= {
        "decode 1 head 151936x1024": {"m": 1, "n": vocabulary, "k": d, "out_dtype": "fp32", **nt},
        "decode 16 head 151936x1024": {"m": 16, "n": vocabulary, "k": d, **nt},
        "decode 1 [k, n] 4096x4096": {"m": 1, "n": 4096, "k": 4096},
    }
    table = [Case(name, (MatmulSpec(**fields),)) for name, fields in single.items()]
    layer = [(d, q), (d, kv), (d, kv), (q, d), (d, f), (d, f), (f, d)]
    for out in ("bf16", "fp32"):
        specs = tuple(
            MatmulSpec(m=m, n=n, k=t, out_dtype=out, accumulate=out == "fp32", **dw)
            for m, n in layer
        )
        kind = "accumulating " if out == "fp32" else ""
        table.append(Case(f"grouped dW of a layer, {kind}{out}", specs))
    return table


def _all(dtype: str) -> dict[str, str]:
    return {"lhs_dtype": dtype, "rhs_dtype": dtype, "out_dtype": dtype}


# ---- operands and references ----


def draw(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Random contents of one operand."""
    if dtype.startswith("i"):
        return torch.randint(-8, 8, shape, device="cuda").to(TORCH_DTYPES[dtype])
    wide = torch.float64 if dtype == "fp64" else torch.float32
    return torch.randn(shape, device="cuda", dtype=wide).to(TORCH_DTYPES[dtype])


def buffers(spec: MatmulSpec) -> list[torch.Tensor]:
    """The spec's inputs, then its output."""
    lhs = (spec.k, spec.m) if spec.lhs_transposed else (spec.m, spec.k)
    rhs = (spec.n, spec.k) if spec.rhs_transposed else (spec.k, spec.n)
    tensors = [draw((*spec.batch, *lhs), spec.lhs_dtype)]
    separate = spec.epilogue.gating == "separate"
    if spec.epilogue.gating == "packed":
        rhs = (2 * rhs[0], rhs[1])
    tensors += [draw((*spec.batch, *rhs), spec.rhs_dtype) for _ in range(1 + separate)]
    epilogue, out = spec.epilogue, (*spec.batch, spec.m, spec.n)
    if epilogue.bias:
        tensors.append(draw((spec.m if epilogue.bias == "row" else spec.n,), epilogue.bias_dtype))
    if epilogue.residual:
        tensors.append(draw(out, epilogue.residual))
    return [*tensors, torch.ones(out, device="cuda", dtype=TORCH_DTYPES[spec.out_dtype])]


def views(spec: MatmulSpec, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The left operand and the right ones as [..., m, k] and [..., k, n]."""
    lhs = tensors[0].mT if spec.lhs_transposed else tensors[0]
    separate = spec.epilogue.gating == "separate"
    rights = tensors[1 : 2 + separate]
    if spec.epilogue.gating == "packed":
        rights = list(rights[0].chunk(2))
    return lhs, [r.mT if spec.rhs_transposed else r for r in rights]


def reference(spec: MatmulSpec, tensors: list[torch.Tensor]) -> torch.Tensor:
    """The result in float32 (float64 for float64, float32 with exact products and integers)."""
    exact = {"fp64", "i8"} & {spec.lhs_dtype} or spec.lhs_dtype == "fp32"
    wide = torch.float64 if exact else torch.float32
    lhs, rights = views(spec, tensors)
    first, *gate = [lhs.to(wide) @ r.to(wide) for r in rights]
    epilogue = spec.epilogue
    rest = tensors[2 + (epilogue.gating == "separate") : -1]
    if epilogue.bias:
        bias = rest.pop(0).to(wide)
        first += bias[:, None] if epilogue.bias == "row" else bias
    if epilogue.activation == "silu":
        first = torch.nn.functional.silu(first)
    elif epilogue.activation == "gelu_tanh":
        first = torch.nn.functional.gelu(first, approximate="tanh")
    if gate:
        first *= gate[0]
    if epilogue.residual:
        first += rest.pop(0).to(wide)
    return first + 1 if spec.accumulate else first


def error_of(spec: MatmulSpec, got: torch.Tensor, want: torch.Tensor) -> float:
    """The relative Frobenius error, in units of what is allowed (<= 1 is right)."""
    error = (got.to(want.dtype) - want).norm() / want.norm()
    allowed = RELATIVE_ERROR[spec.out_dtype]
    if spec.lhs_dtype == "fp32":
        allowed = PRECISION_ERROR[spec.precision]
    if spec.lhs_dtype == "fp8e4nv":
        # Tensor cores keep about 14 bits between promotions to float32.
        allowed = max(allowed, 5e-3)
    worst = (got.to(want.dtype) - want).abs().max() / want.abs().max()
    if allowed == 0:
        return 0.0 if error == 0 else math.inf
    return max(float(error) / allowed, float(worst) / (20 * allowed))


def yardstick(spec: MatmulSpec, tensors: list[torch.Tensor]) -> Callable[[], object]:
    """cuBLAS's call for the bare product(s), through torch."""
    lhs, rights = views(spec, tensors)
    torch.backends.cuda.matmul.allow_tf32 = spec.precision != "ieee"
    if spec.lhs_dtype == "fp8e4nv":
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(lhs, rights[0], one, one, out_dtype=torch.bfloat16)
    if spec.lhs_dtype == "i8":
        return lambda: torch._int_mm(lhs, rights[0])
    outs = [torch.empty_like(tensors[-1], dtype=lhs.dtype) for _ in rights]
    return lambda: [torch.matmul(lhs, r, out=o) for r, o in zip(rights, outs, strict=True)]


# ---- measurement ----


def measure(case: Case, deadline: float, rehearsed: dict[tuple, dict | str]) -> dict:
    """Times every configuration of a case that was right when it was rehearsed."""
    sets = [[buffers(s) for s in case.specs]]
    size = sum(t.nbytes for group in sets[0] for t in group)
    copies = min(40, max(1, math.ceil(2 * L2_BYTES / size))) if size < 2 * L2_BYTES else 1
    sets += [[buffers(s) for s in case.specs] for _ in range(copies - 1)]
    row: dict = {"case": case.name, "flops": case.flops, "bytes": size, "configs": []}
    yards = [
        _in_turn([yardstick(s, g) for s, g in zip(case.specs, one, strict=True)]) for one in sets
    ]
    try:
        row["cublas_s"] = graph_time(yards)
    except RuntimeError as problem:
        row["cublas_error"] = str(problem).splitlines()[0][:200]
    torch.backends.cuda.matmul.allow_tf32 = False
    for i, config in enumerate(case.configs()):
        if time.time() > deadline and row["configs"]:
            break
        result = rehearsed.get((case.name, i), "not rehearsed")
        if isinstance(result, str):
            result = {"config": asdict(config), "ok": False, "problem": result}
        if result["ok"]:
            plan = case.plan(config)
            calls = [bound_plan(plan, _flat(case, one)) for one in sets]
            result["seconds"] = graph_time(calls)
        row["configs"].append(result)
    good = [c for c in row["configs"] if c.get("ok")]
    row["best"] = min(good, key=lambda c: c["seconds"]) if good else None
    return row


def _in_turn(calls: list[Callable[[], object]]) -> Callable[[], object]:
    return lambda: [call() for call in calls]


@functools.lru_cache(1)
def _prepared(name: str) -> tuple[Case, list, list]:
    """A case, one set of its buffers and what the products should be."""
    torch.manual_seed(0)
    case = next(case for case in cases() if case.name == name)
    groups = [buffers(s) for s in case.specs]
    return case, groups, [reference(s, g) for s, g in zip(case.specs, groups, strict=True)]


def check(name: str, index: int) -> dict:
    """Runs one configuration of a case once and compares it with the reference."""
    case, groups, wants = _prepared(name)
    config = case.configs()[index]
    result: dict = {"config": asdict(config)}
    try:
        for group in groups:
            group[-1].fill_(1)
        bound_plan(case.plan(config), _flat(case, groups))()
        torch.cuda.synchronize()
        errors = [
            error_of(s, group[-1], want)
            for s, group, want in zip(case.specs, groups, wants, strict=True)
        ]
        result |= {"error": max(errors), "ok": max(errors) <= 1}
    except Exception as problem:
        result |= {"ok": False, "problem": f"{type(problem).__name__}: {problem}"[:300]}
    return result


def _flat(case: Case, groups: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [t for g in groups for t in g[:-1]] + [g[-1] for g in groups]


def line_of(row: dict) -> str:
    """The table's line of a case: rates for large products, microseconds for small ones."""
    small = row["flops"] < 2e10
    rate = (
        (lambda s: f"{s * 1e6:7.1f}us")
        if small
        else (lambda s: f"{row['flops'] / s / 1e12:7.0f}  ")
    )
    yard = row.get("cublas_s", math.nan)
    best, default = row["best"], row["configs"][0]
    text = f"{row['case']:34s} cublas {rate(yard)}"
    if best:
        text += f" best {rate(best['seconds'])} x{yard / best['seconds']:.3f}"
    if default.get("ok"):
        text += f" default {rate(default['seconds'])} x{yard / default['seconds']:.3f}"
    if best:
        c = best["config"]
        text += f" {c['family']} {c['bm']}x{c['bn']}x{c['bk']} w{c['warps']} s{c['stages']}"
        text += (
            f" split{c['split_k']} group{c['group']}"
            + " halves" * c["halves"]
            + " swap" * c["swap"]
        )
        text += f" {row['bytes'] / best['seconds'] / 1e12:.2f}TB/s" * small
    for c in row["configs"]:
        if not c.get("ok"):
            text += f"\n    WRONG {c['config']} {c.get('error')} {c.get('problem', '')}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", default="", help="comma-separated parts of names")
    parser.add_argument("--budget", type=float, default=540, help="seconds in all")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    options = parser.parse_args()
    parts = options.only.split(",")
    rows = []
    if Path(options.out).exists():
        rows = json.loads(Path(options.out).read_text())["rows"]
    done = {row["case"] for row in rows}
    chosen = [case for case in cases() if any(part in case.name for part in parts)]
    chosen = [case for case in chosen if case.name not in done]
    if options.list:
        print("\n".join(case.name for case in chosen))
        return
    start = time.time()
    items = [(case.name, i) for case in chosen for i in range(len(case.configs()))]
    rehearsed = rehearse(check, items, 0.6 * options.budget)
    print(f"{len(rehearsed)} of {len(items)} configurations in {time.time() - start:.0f} s")
    for case in chosen:
        if time.time() - start > options.budget:
            print("out of time before", case.name)
            break
        torch.manual_seed(0)
        row = measure(case, start + options.budget, rehearsed)
        torch.cuda.empty_cache()
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
        Path(options.out).write_text(json.dumps(document, indent=1))
    wrong = [row["case"] for row in rows if not all(c.get("ok") for c in row["configs"])]
    print(f"{len(rows)} cases, {len(wrong)} with a wrong configuration: {wrong}")


if __name__ == "__main__":
    main()
