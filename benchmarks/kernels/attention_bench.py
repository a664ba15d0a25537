"""Attention kernels on a GPU: every option checked against torch, every configuration timed.

    python -m benchmarks.kernels.attention_bench [--out results.json] [--only check|speed|decode]

Peers are torch's scaled_dot_product_attention with its cuDNN and FlashAttention backends, timed in
the same run. Times are medians of CUDA-graph replays over rotated inputs; the table comes last.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.kernels.torch_launch import bound_plan, graph_time, rehearse, run_plan_torch
from genesis_fn.kernels.attention import forward_configs, plan_attention_forward
from genesis_fn.kernels.attention_backward import (
    BackwardConfig,
    backward_configs,
    plan_attention_backward,
)
from genesis_fn.kernels.attention_decode import plan_attention_decode
from genesis_fn.kernels.attention_spec import AttentionSpec
from genesis_fn.kernels.attention_specialized import (
    plan_attention_specialized,
    serves_specialized,
)
from genesis_fn.kernels.attention_specialized_backward import (
    plan_attention_backward_specialized,
    serves_specialized_backward,
)
from genesis_fn.kernels.attention_specialized_dkdv import DkdvConfig
from genesis_fn.kernels.launch import Plan
from tests.kernels.attention_reference import (
    TORCH,
    attention_reference,
    random_inputs,
    reference_gradients,
)

TOLERANCE = {"fp32": 2e-5, "bf16": 1.5e-2, "fp16": 2e-3}
ROTATION = 3

BASE = AttentionSpec(2, 4, 2, 300, 300, 128, causal=True)
LONG = {"q_len": 257, "kv_len": 321}
CHECKS = {
    "causal": BASE,
    "full": replace(BASE, causal=False),
    "d64": replace(BASE, head_dim=64),
    "d256": replace(BASE, head_dim=256),
    "fp16": replace(BASE, dtype="fp16"),
    "fp32": replace(BASE, dtype="fp32"),
    "fp32_tf32x3": replace(BASE, dtype="fp32", precision="tf32x3", head_dim=64),
    "d80": replace(BASE, head_dim=80),
    "d200_v48": replace(BASE, head_dim=200, value_dim=48),
    "d256_fp32": replace(BASE, head_dim=256, dtype="fp32"),
    "cross": replace(BASE, **LONG),
    "cross_full": replace(BASE, causal=False, **LONG),
    "align_end": replace(BASE, align="end", q_len=65, kv_lengths=True),
    "window": replace(BASE, window=(70, None)),
    "window_both": replace(BASE, causal=False, window=(30, 90)),
    "window_blind": replace(BASE, causal=False, window=(10, 10), kv_len=120),
    "mask": replace(BASE, mask=(2, 1, 300, 300)),
    "mask_keys": replace(BASE, mask=(2, 1, 1, 300), causal=False),
    "segments": replace(BASE, segment_ids=True),
    "lengths": replace(BASE, q_lengths=True, kv_lengths=True, batch=4),
    "softcap": replace(BASE, softcap=5.0),
    "dropout": replace(BASE, dropout=0.2),
    "bias": replace(BASE, bias=(1, 4, 300, 300)),
    "bias_keys": replace(BASE, bias=(2, 1, 1, 300), causal=False),
    "bias_bf16": replace(BASE, bias=(1, 4, 300, 300), bias_dtype="bf16"),
    "negative_scale": replace(BASE, scale=-0.1),
    "everything": replace(
        BASE, **LONG, window=(90, None), bias=(1, 4, 257, 321), mask=(2, 1, 257, 321),
        segment_ids=True, q_lengths=True, kv_lengths=True, softcap=3.0, dropout=0.2,
    ),
}  # fmt: skip

SHAPES = [
    AttentionSpec(8, 16, 8, 2048, 2048, 128, causal=True),
    AttentionSpec(4, 16, 16, 4096, 4096, 128, causal=True),
    AttentionSpec(2, 16, 16, 8192, 8192, 128, causal=True),
    AttentionSpec(8, 16, 16, 2048, 2048, 64, causal=True),
]


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Distance over the norm of what is wanted (at least 1); NaN counts as infinitely far."""
    distance = (found.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1.0)
    return float(torch.nan_to_num(distance, nan=float("inf")))


def forward_tensors(spec: AttentionSpec, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Inputs and fresh outputs of the forward plan, in order."""
    q = inputs["q"]
    out = torch.full(
        (spec.batch, spec.q_len, spec.q_heads, spec.v_dim), 7.0, dtype=q.dtype, device=q.device
    )
    lse = torch.full((spec.batch, spec.q_heads, spec.q_len), 7.0, device=q.device)
    return [*inputs.values(), out, lse]


def backward_tensors(
    inputs: dict[str, torch.Tensor], out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor
) -> list[torch.Tensor]:
    """Inputs and fresh outputs of the backward plan, in order."""
    q, k, v, *options = inputs.values()
    leaves = [q, k, v] + ([inputs["bias"]] if "bias" in inputs else [])
    return [q, k, v, out, lse, dout, *options, *(torch.full_like(x, 7.0) for x in leaves)]


def check(spec: AttentionSpec) -> dict[str, float]:
    """Errors of forward and gradients against float64, for the default configuration."""
    inputs = random_inputs(spec, device="cuda")
    dout = torch.randn(
        spec.batch, spec.q_len, spec.q_heads, spec.v_dim, device="cuda", dtype=TORCH[spec.dtype]
    )
    wanted = reference_gradients(spec, inputs, dout)
    tensors = forward_tensors(spec, inputs)
    run_plan_torch(plan_attention_forward(spec), tensors)
    out, lse = tensors[-2:]
    live = wanted["lse"] > -1e30
    found = {"out": error(out, wanted["out"]), "lse": error(lse[live], wanted["lse"][live])}
    found["blind"] = float((live != (lse > -1e30)).sum())
    if serves_specialized(spec):
        again = forward_tensors(spec, inputs)
        run_plan_torch(plan_attention_specialized(spec), again)
        found["specialized"] = error(again[-2], wanted["out"])
        found["specialized_lse"] = error(again[-1], wanted["lse"])
    runs = []
    for _ in range(2):
        given = backward_tensors(inputs, out, lse, dout)
        run_plan_torch(plan_attention_backward(spec), given)
        runs.append(given[6 + len(inputs) - 3 :])
    names = ["dq", "dk", "dv", "dbias"][: len(runs[0])]
    found |= {n: error(x, wanted[n]) for n, x in zip(names, runs[0], strict=True)}
    if serves_specialized_backward(spec):
        for i, config in enumerate(DKDV):
            given = backward_tensors(inputs, out, lse, dout)
            stages = 2 + i % 2
            plan = plan_attention_backward_specialized(spec, stages=stages, dkdv=config)
            run_plan_torch(plan, given)
            for name, x in zip(("dq", "dk", "dv"), given[-3:], strict=True):
                found[f"specialized_{name}_{i}"] = error(x, wanted[name])
    same = all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    return found | {"nondeterministic": float(not same)}


def eager_milliseconds(call: Callable[[], Any], repeats: int = 15) -> float:
    """Median time of one call outside a graph, for peers that cannot be captured."""
    warm = time.perf_counter() + 0.05
    while time.perf_counter() < warm:
        call()
        torch.cuda.synchronize()
    return _median(call, repeats)


def _median(call: Callable[[], Any], repeats: int) -> float:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def plan_milliseconds(plan: Plan, rotated: list[list[torch.Tensor]]) -> float | str:
    """Median time of a plan over rotated inputs, or the error that it raised."""
    try:
        return 1e3 * graph_time([bound_plan(plan, t) for t in rotated])
    except Exception as problem:  # a configuration that does not fit is a result, not a failure
        torch.cuda.synchronize()
        return f"{type(problem).__name__}: {str(problem)[:120]}"


def peer(spec: AttentionSpec, backend: SDPBackend) -> tuple[float, float]:
    """(forward, backward) milliseconds of torch's attention on contiguous [B, N, T, H] arrays."""
    shape = (spec.batch, spec.q_heads, spec.q_len, spec.head_dim)
    shape_kv = (spec.batch, spec.kv_heads, spec.kv_len, spec.head_dim)
    q, k, v = (
        torch.randn(s, device="cuda", dtype=TORCH[spec.dtype], requires_grad=True)
        for s in (shape, shape_kv, shape_kv)
    )
    gqa = spec.group > 1
    with sdpa_kernel(backend):

        def attend() -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)

        out = attend()
        dout = torch.randn_like(out)
        forward = eager_milliseconds(attend)
        backward = eager_milliseconds(
            lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
        )
    return forward, backward


def label(config: Any) -> str:
    """A configuration in a few characters."""
    name = f"{config.block_m}x{config.block_n} w{config.num_warps} s{config.num_stages}"
    if config.section:
        name += f" sec{config.section}"
    if config.registers:
        name += f" r{config.registers}"
    return name


DKDV = [
    *(DkdvConfig(section=n) for n in (0, 2, 4, 8, 16, 32)),
    DkdvConfig(stages=3, section=8),
    *(DkdvConfig(unrolled=True, drain=True, section=n) for n in (0, 4, 8, 16)),
    DkdvConfig(overlap=True, unrolled=True, drain=True, section=0),
    DkdvConfig(32, 4, overlap=True, unrolled=True, drain=True, section=0),
    DkdvConfig(32, 4, overlap=True, unrolled=True),
]


def dkdv_label(config: DkdvConfig) -> str:
    """A specialised dK/dV configuration in a few characters."""
    text = f"dkdv specialized q{config.block_q} s{config.stages} sec{config.section}"
    text += " overlap" * config.overlap + " unrolled" * config.unrolled
    return text + " drain" * config.drain


def forward_plans(spec: AttentionSpec) -> dict[str, Plan]:
    """Every forward plan worth timing, by a label."""
    base = forward_configs(spec)
    swept = base + [replace(base[0], section=n) for n in (1, 4, 16)]
    plans = {label(c): plan_attention_forward(spec, c) for c in swept}
    stages = [(2, 0), (2, 1), (2, 4), (2, 16), *(((3, 0),) * (spec.v_dim < 128))]
    return plans | {
        f"specialized s{s} sec{section}": plan_attention_specialized(
            spec, stages=s, section=section
        )
        for s, section in stages
    }


def backward_plans(spec: AttentionSpec) -> dict[str, Plan]:
    """Each backward pass alone, in every configuration, by a label."""
    plans: dict[str, Plan] = {}
    for which, step in (("delta", 0), ("dkdv", 1), ("dq", 2)):
        for config in backward_configs(spec) if step else backward_configs(spec)[:1]:
            plan = plan_attention_backward(spec, config)
            tile = config.dq if which == "dq" else config.dkdv
            name = "delta" if which == "delta" else f"{which} {label(tile)}"
            plans[name] = replace(plan, steps=(plan.steps[step],))
    for stages, section in ((2, 0), (3, 0), (2, 4), (3, 4), (3, 8), (3, 16)):
        plan = plan_attention_backward_specialized(spec, stages=stages, section=section)
        plans[f"dq specialized s{stages} sec{section}"] = replace(plan, steps=(plan.steps[2],))
    for config in DKDV:
        plan = plan_attention_backward_specialized(spec, dkdv=config)
        plans[dkdv_label(config)] = replace(plan, steps=(plan.steps[1],))
    return plans


def rehearse_check(name: str) -> dict[str, Any]:
    """The errors of one check, or what went wrong."""
    try:
        return check(CHECKS[name])
    except Exception as problem:
        return {"failed": f"{type(problem).__name__}: {str(problem)[:300]}"}


def rehearse_plan(shape: int, which: str, name: str) -> float | str:
    """Runs one plan of a shape once: compiles it, and shows whether it ends."""
    spec = SHAPES[shape]
    inputs = random_inputs(spec, device="cuda")
    tensors = forward_tensors(spec, inputs)
    if which == "forward":
        return plan_milliseconds(forward_plans(spec)[name], [tensors])
    out, lse = tensors[-2:]
    given = backward_tensors(inputs, out, lse, torch.randn_like(out))
    return plan_milliseconds(backward_plans(spec)[name], [given])


def speed(shape: int, rehearsed: dict[tuple, Any]) -> dict[str, Any]:
    """Times of the peers, of every forward plan, and of each backward pass alone."""
    spec = SHAPES[shape]
    flops = spec.flops
    row: dict[str, Any] = {"spec": describe(spec)}
    for name, backend in (
        ("cudnn", SDPBackend.CUDNN_ATTENTION),
        ("flash", SDPBackend.FLASH_ATTENTION),
    ):
        try:
            times = peer(spec, backend)
            row[name] = [round(flops * f / t / 1e9) for f, t in zip((1, 2.5), times, strict=True)]
            row[f"{name}_ms"] = times
        except RuntimeError as problem:
            row[name] = str(problem)[:120]
    rotated = [random_inputs(spec, seed, device="cuda") for seed in range(ROTATION)]
    tensors = [forward_tensors(spec, inputs) for inputs in rotated]
    wanted, _ = attention_slice(spec, rotated[0])

    def timed(which: str, name: str, plan: Plan, given: list) -> float | str:
        problem = rehearsed.get((shape, which, name), "not rehearsed")
        return problem if isinstance(problem, str) else plan_milliseconds(plan, given)

    forward: dict[str, Any] = {}
    for name, plan in forward_plans(spec).items():
        for t in tensors:
            t[-2].fill_(7.0)
        taken = timed("forward", name, plan, tensors)
        wrong = error(tensors[0][-2][:1, :, : spec.group], wanted)
        forward[name] = [
            taken if isinstance(taken, str) else round(flops / taken / 1e9), taken, wrong
        ]  # fmt: skip
    row["forward"] = forward
    plan = plan_attention_forward(spec)
    for t in tensors:
        run_plan_torch(plan, t)
    couts = [torch.randn_like(t[-2]) for t in tensors]
    given = [
        backward_tensors(inputs, t[-2], t[-1], c)
        for inputs, t, c in zip(rotated, tensors, couts, strict=True)
    ]
    row["backward_passes"] = {
        name: timed("backward", name, plan, given) for name, plan in backward_plans(spec).items()
    }
    best = best_backward(spec, row["backward_passes"])
    specialized = min(
        (n for n in row["backward_passes"] if n.startswith("dq specialized")),
        key=lambda n: (isinstance(t := row["backward_passes"][n], str), t),
    )
    stages, section = (int("".join(filter(str.isdigit, x))) for x in specialized.split()[2:])
    plans = {"backward": plan_attention_backward(spec, best)}
    if not isinstance(row["backward_passes"][specialized], str):
        plans["backward_specialized_dq"] = plan_attention_backward_specialized(
            spec, best, stages=stages, section=section
        )
    chosen_dkdv = min(
        DKDV,
        key=lambda c: (isinstance(t := row["backward_passes"][dkdv_label(c)], str), t),
    )
    if not isinstance(row["backward_passes"][dkdv_label(chosen_dkdv)], str):
        plans["backward_specialized"] = plan_attention_backward_specialized(
            spec, best, stages=stages, section=section, dkdv=chosen_dkdv
        )
    slices = backward_slice(spec, rotated[0], couts[0])
    for name, plan in plans.items():
        for t in given:
            for x in t[-3:]:
                x.fill_(7.0)
        taken = plan_milliseconds(plan, given)
        parts = (
            given[0][-3][:1, :, : spec.group],
            given[0][-2][:1, :, :1],
            given[0][-1][:1, :, :1],
        )
        wrong = max(error(a, b) for a, b in zip(parts, slices, strict=True))
        rate = taken if isinstance(taken, str) else round(2.5 * flops / taken / 1e9)
        chosen = label(best.dq) if name == "backward" else specialized
        first = f"dkdv {label(best.dkdv)}"
        if name == "backward_specialized":
            first = dkdv_label(chosen_dkdv)
        row[name] = [rate, taken, wrong, f"{first}, {chosen}"]
    return row


def best_backward(spec: AttentionSpec, passes: dict[str, Any]) -> BackwardConfig:
    """The fastest pair of passes."""
    configs = backward_configs(spec)

    def seconds(which: str, config: Any) -> float:
        value = passes[f"{which} {label(config)}"]
        return float("inf") if isinstance(value, str) else value

    return BackwardConfig(
        min((c.dkdv for c in configs), key=lambda c: seconds("dkdv", c)),
        min((c.dq for c in configs), key=lambda c: seconds("dq", c)),
    )


def attention_slice(
    spec: AttentionSpec, inputs: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of the first batch entry's first key head, in float32."""
    small = replace(spec, batch=1, q_heads=spec.group, kv_heads=1)
    part = {"q": inputs["q"][:1, :, : spec.group].float()}
    part |= {name: inputs[name][:1, :, :1].float() for name in ("k", "v")}
    return attention_reference(small, part)


def backward_slice(
    spec: AttentionSpec, inputs: dict[str, torch.Tensor], dout: torch.Tensor
) -> list[torch.Tensor]:
    """(dq, dk, dv) of the first batch entry's first key head."""
    small = replace(spec, batch=1, q_heads=spec.group, kv_heads=1)
    part = {"q": inputs["q"][:1, :, : spec.group]}
    part |= {name: inputs[name][:1, :, :1] for name in ("k", "v")}
    found = reference_gradients(small, part, dout[:1, :, : spec.group])
    return [found[name] for name in ("dq", "dk", "dv")]


def decode(spec: AttentionSpec) -> dict[str, Any]:
    """Microseconds of decode attention by number of splits, against torch's attention."""
    row: dict[str, Any] = {"spec": describe(spec)}
    rotated = [random_inputs(spec, seed, device="cuda") for seed in range(ROTATION)]
    for inputs in rotated:
        inputs["kv_lengths"].fill_(spec.kv_len - 1)
    tensors = [forward_tensors(spec, inputs) for inputs in rotated]
    wide = {n: x.double() if x.is_floating_point() else x for n, x in rotated[0].items()}
    wanted, _ = attention_reference(spec, wide)
    for splits, block_n in itertools.product((None, 4, 8, 16, 32), (32, 64, 128)):
        plan = plan_attention_decode(spec, splits=splits, block_n=block_n)
        taken = plan_milliseconds(plan, tensors * 4)
        row[f"splits {splits} x{block_n}"] = [
            taken if isinstance(taken, str) else round(1000 * taken, 2),
            error(tensors[0][-2], wanted),
        ]
    q, k, v = (rotated[0][n].transpose(1, 2).contiguous() for n in ("q", "k", "v"))
    row["torch"] = round(
        1e6 * graph_time([lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)] * 8),
        2,
    )
    return row


def describe(spec: AttentionSpec) -> str:
    """The shape in a few characters."""
    return (
        f"B{spec.batch} H{spec.q_heads} KV{spec.kv_heads} T{spec.q_len} S{spec.kv_len} "
        f"D{spec.head_dim} {spec.dtype}"
    )


def main() -> None:
    """Runs the parts asked for, writes JSON after each row, and prints the table last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    parser.add_argument("--only", choices=("check", "speed", "decode"))
    parser.add_argument("--names", default="", help="the checks to run, with commas between")
    parser.add_argument("--budget", type=float, default=160, help="seconds, about, of a part")
    given = parser.parse_args()
    torch.manual_seed(0)
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": os.environ.get("KERNEL_COMMIT"),
        "check": {}, "speed": [], "decode": [],
    }  # fmt: skip
    table: list[str] = []

    def save() -> None:
        if given.out:
            with open(given.out, "w") as file:
                json.dump(results, file, indent=1)

    if given.only in (None, "check"):
        chosen = {n: s for n, s in CHECKS.items() if not given.names or n in given.names.split(",")}
        ended = rehearse(rehearse_check, [(name,) for name in chosen], given.budget)
        for name, spec in chosen.items():
            found = ended.get((name,), "did not run")
            if isinstance(found, str):
                found = {"failed": found}
            limits = {"blind": 0.0, "nondeterministic": 0.0, "failed": -1.0}
            bad = {
                n: e
                for n, e in found.items()
                if isinstance(e, str) or e > limits.get(n, TOLERANCE[spec.dtype])
            }
            verdict = "ok" if not bad else f"WRONG {bad}"
            results["check"][name] = {"verdict": verdict, **found}
            print(f"check {name}: {verdict}", flush=True)
        save()
        good = sum(x["verdict"] == "ok" for x in results["check"].values())
        table.append(f"checks: {good} of {len(chosen)} ok")
    if given.only in (None, "speed"):
        items = [
            (shape, which, name)
            for shape, spec in enumerate(SHAPES)
            for which, plans in (("forward", forward_plans), ("backward", backward_plans))
            for name in plans(spec)
        ]
        rehearsed = rehearse(rehearse_plan, items, given.budget / 2)
        for shape in range(len(SHAPES)):
            row = speed(shape, rehearsed)
            results["speed"].append(row)
            print(json.dumps(row), flush=True)
            save()
            timed = {n: x for n, x in row["forward"].items() if not isinstance(x[0], str)}
            best = max(timed, key=lambda n: timed[n][0])
            table.append(
                f"{row['spec']}: cuDNN {row['cudnn']} flash {row['flash']} | "
                f"forward {timed[best][0]} ({best}, err {timed[best][2]:.1e}) "
                f"backward {row['backward']}, specialized dq {row.get('backward_specialized_dq')}, "
                f"specialized {row.get('backward_specialized')}"
            )
    if given.only in (None, "decode"):
        for batch in (1, 16):
            row = decode(AttentionSpec(batch, 16, 8, 1, 2048, 128, kv_lengths=True))
            results["decode"].append(row)
            save()
            timed = {
                n: x[0] for n, x in row.items() if isinstance(x, list) and not isinstance(x[0], str)
            }
            best = min(timed, key=lambda n: timed[n])
            table.append(f"decode {row['spec']}: {timed[best]} us ({best}), torch {row['torch']}")
    print("\n".join(table), flush=True)


if __name__ == "__main__":
    main()
