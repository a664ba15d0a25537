"""Attention on a GPU: every option checked against torch, and what a user gets timed by its peers.

    python benchmarks/kernels/attention_bench.py [--out results.json] [--quick] [--search]
                                                 [--only check|speed|packed|decode]

"ours" is `nn.dot_product_attention` under `jit`, and the pullback of its `vjp` under `jit`. Peers
are torch's scaled_dot_product_attention with its cuDNN and FlashAttention backends, forward and
through autograd. All are timed alike: events around calls on inputs in rotation, which the device
begins when the host has enqueued them all. A decoded token is one of a chain of calls that need
each other. In packed rows, of texts that do not attend to each other, the peer is torch's compiled
flex_attention with a mask of blocks. `--search` adds the kernels in every configuration. The table
comes last.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.nn.functional as F
from jitted import array_time, our_time, ours
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch_launch import TARGET, bound_plan, graph_time, rehearse, replay_time, run_plan_torch

import genesis_fn as gf
from benchmarks.results_file import surroundings
from genesis_fn import nn
from genesis_fn.kernels.attention.backward import backward_configs, general_backward_plan
from genesis_fn.kernels.attention.decode import DecodeConfig, decode_plan, vector_config
from genesis_fn.kernels.attention.forward import forward_configs, general_plan
from genesis_fn.kernels.attention.select import plan_attention, plan_attention_backward
from genesis_fn.kernels.attention.spec import AttentionSpec
from genesis_fn.kernels.attention.specialized import serves_specialized, specialized_plan
from genesis_fn.kernels.attention.specialized_dq import (
    serves_specialized_backward,
    specialized_backward_plan,
)
from genesis_fn.kernels.plan import Plan
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
    "window": replace(BASE, window=(70, None)),
    "window_both": replace(BASE, causal=False, window=(30, 90)),
    "window_fully_masked": replace(BASE, causal=False, window=(10, 10), kv_len=120),
    "mask": replace(BASE, mask=(2, 1, 300, 300)),
    "mask_keys": replace(BASE, mask=(2, 1, 1, 300), causal=False),
    "lengths": replace(BASE, kv_lengths=True, batch=4),
    "softcap": replace(BASE, softcap=5.0),
    "bias": replace(BASE, bias=(1, 4, 300, 300)),
    "bias_keys": replace(BASE, bias=(2, 1, 1, 300), causal=False),
    "bias_bf16": replace(BASE, bias=(1, 4, 300, 300), bias_dtype="bf16"),
    "negative_scale": replace(BASE, scale=-0.1),
    "segments": replace(BASE, segments="shared", batch=4),
    "segments_d64": replace(BASE, segments="shared", batch=4, head_dim=64),
    "segments_fp32": replace(BASE, segments="shared", batch=4, dtype="fp32"),
    "segments_window": replace(BASE, segments="shared", batch=4, causal=False, window=(70, 20)),
    "segments_cross": replace(BASE, segments="separate", batch=4, causal=False, **LONG),
    "everything": replace(
        BASE, **LONG, window=(90, None), bias=(1, 4, 257, 321), mask=(2, 1, 257, 321),
        kv_lengths=True, segments="separate", softcap=3.0,
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
    """Errors against float64 of the chosen kernels, and of the general ones where these differ."""
    inputs = random_inputs(spec, device="cuda")
    dout = torch.randn(
        spec.batch, spec.q_len, spec.q_heads, spec.v_dim, device="cuda", dtype=TORCH[spec.dtype]
    )
    wanted = reference_gradients(spec, inputs, dout)
    live = wanted["lse"] > -1e30
    found: dict[str, float] = {}
    forwards = {"": plan_attention(spec, TARGET)}
    if serves_specialized(spec, TARGET):
        forwards["general_"] = general_plan(spec, TARGET)
    for name, plan in forwards.items():
        tensors = forward_tensors(spec, inputs)
        run_plan_torch(plan, tensors)
        out, lse = tensors[-2:]
        found[f"{name}out"] = error(out, wanted["out"])
        found[f"{name}lse"] = error(lse[live], wanted["lse"][live])
        found["fully_masked"] = float((live != (lse > -1e30)).sum())
    backwards = {"": plan_attention_backward(spec, TARGET)}
    if serves_specialized_backward(spec, TARGET):
        backwards["general_"] = general_backward_plan(spec, TARGET)
    for name, plan in backwards.items():
        runs = []
        for _ in range(2):
            given = backward_tensors(inputs, out, lse, dout)
            run_plan_torch(plan, given)
            runs.append(given[plan.inputs :])
        for result, x in zip(("dq", "dk", "dv", "dbias"), runs[0], strict=False):
            found[name + result] = error(x, wanted[result])
        same = all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
        found["nondeterministic"] = max(found.get("nondeterministic", 0.0), float(not same))
    return found


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
    rotated = [
        [
            torch.randn(s, device="cuda", dtype=TORCH[spec.dtype], requires_grad=True)
            for s in (shape, shape_kv, shape_kv)
        ]
        for _ in range(ROTATION)
    ]

    def attend() -> list[torch.Tensor]:
        return [
            F.scaled_dot_product_attention(*x, is_causal=spec.causal, enable_gqa=spec.group > 1)
            for x in rotated
        ]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with sdpa_kernel(backend), torch.cuda.stream(stream):
        outs = attend()
        couts = [torch.randn_like(x) for x in outs]

        def pull() -> None:
            for x, out, ct in zip(rotated, outs, couts, strict=True):
                torch.autograd.grad(out, x, ct, retain_graph=True)

        seconds = [replay_time(run, stream) / ROTATION for run in (attend, pull)]
    return 1e3 * seconds[0], 1e3 * seconds[1]


def packed_ids(batch: int, length: int, text: int, seed: int) -> torch.Tensor:
    """int32 [batch, length]: rows of texts of `text` tokens on average."""
    g = torch.Generator().manual_seed(seed)
    return (torch.rand(batch, length, generator=g) < 1 / text).int().cumsum(1).int().cuda()


def packed(spec: AttentionSpec, text: int) -> dict[str, Any]:
    """[forward, backward] milliseconds in rows of several texts, and torch's flex_attention's."""
    ids = packed_ids(spec.batch, spec.q_len, text, 7)
    times, errors = public(replace(spec, segments="shared"), ids)
    try:
        flex = flex_peer(spec, ids)
    except Exception as problem:
        flex = f"{type(problem).__name__}: {str(problem)[:120]}"
    texts = f"texts of {text}" if text < spec.q_len else "one text a row"
    row = {"spec": f"{describe(spec)}, {texts}", "ours_ms": times, "errors": errors}
    return row | {"flex_ms": flex}


def flex_peer(spec: AttentionSpec, ids: torch.Tensor) -> list[float]:
    """[forward, backward] milliseconds of torch's compiled flex_attention with a mask of blocks,
    without the time that making the mask takes."""
    b, n, kv, t, d = spec.batch, spec.q_heads, spec.kv_heads, spec.q_len, spec.head_dim

    def within(entry: Any, head: Any, i: Any, j: Any) -> Any:
        return (ids[entry, i] == ids[entry, j]) & (i >= j)

    blocks = create_block_mask(within, b, None, t, t, device="cuda")
    flex = torch.compile(flex_attention)
    rotated = [
        [
            torch.randn(b, h, t, d, device="cuda", dtype=TORCH[spec.dtype], requires_grad=True)
            for h in (n, kv, kv)
        ]
        for _ in range(ROTATION)
    ]

    def attend() -> list[Any]:
        return [flex(*x, block_mask=blocks, enable_gqa=n != kv) for x in rotated]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        outs = attend()
        couts = [torch.randn_like(x) for x in outs]

        def pull() -> None:
            for x, out, ct in zip(rotated, outs, couts, strict=True):
                torch.autograd.grad(out, x, ct, retain_graph=True)

        seconds = [replay_time(run, stream) / ROTATION for run in (attend, pull)]
    return [1e3 * x for x in seconds]


def public(spec: AttentionSpec, ids: torch.Tensor | None = None) -> tuple[list[float], list[float]]:
    """(forward, backward) milliseconds of the public function under `jit`, and their errors; in
    the segments `ids`, where they are given."""
    segments = None if ids is None else ours([ids])[0]

    def attend(q: Any, k: Any, v: Any) -> Any:
        return nn.dot_product_attention(q, k, v, is_causal=spec.causal, segment_ids=segments)

    rotated = [random_inputs(spec, seed, device="cuda") for seed in range(ROTATION)]
    if ids is not None:
        rotated = [x | {"q_segments": ids} for x in rotated]
    sets = [[x[n] for n in ("q", "k", "v")] for x in rotated]
    couts = [torch.randn_like(x["q"]) for x in rotated]
    torch.cuda.synchronize()
    forward = our_time(attend, sets)
    both = gf.jit(lambda q, k, v: gf.vjp(attend, q, k, v))
    pulled = [(both(*ours(x))[1], ours(ct)) for x, ct in zip(sets, couts, strict=True)]
    pull = lambda pullback, ct: pullback(ct)
    backward = array_time(pull, pulled)
    gradients = gf.jit(pull)(*pulled[0])
    group = spec.group
    wanted, _ = attention_slice(spec, rotated[0])
    out = torch.from_dlpack(gf.jit(attend)(*ours(sets[0])))
    dq, dk, dv = (torch.from_dlpack(x) for x in gradients)
    gf.cuda.synchronize()
    found = (dq[:1, :, :group], dk[:1, :, :1], dv[:1, :, :1])
    slices = backward_slice(spec, rotated[0], couts[0])
    wrong = max(error(a, b) for a, b in zip(found, slices, strict=True))
    return [1e3 * forward, 1e3 * backward], [error(out[:1, :, :group], wanted), wrong]


def label(config: Any) -> str:
    """A configuration in a few characters."""
    name = f"{config.block_m}x{config.block_n} w{config.num_warps} s{config.num_stages}"
    if config.head_group:
        name += f" sec{config.head_group}"
    if config.registers:
        name += f" r{config.registers}"
    return name


def forward_plans(spec: AttentionSpec) -> dict[str, Plan]:
    """Every forward plan worth timing, by a label."""
    base = forward_configs(spec, TARGET)
    swept = base + [replace(base[0], head_group=n) for n in (1, 4, 16)]
    plans = {label(c): general_plan(spec, TARGET, c) for c in swept}
    if serves_specialized(spec, TARGET):
        for n in (1, 4, 16):
            plans[f"specialized s2 sec{n}"] = specialized_plan(spec, head_group=n)
    return plans


def backward_plans(spec: AttentionSpec) -> dict[str, Plan]:
    """Each backward pass alone, in every configuration, by a label."""
    plans: dict[str, Plan] = {}
    for which, step in (("delta", 0), ("dkdv", 1), ("dq", 2)):
        for config in (
            backward_configs(spec, TARGET) if step else backward_configs(spec, TARGET)[:1]
        ):
            plan = general_backward_plan(spec, TARGET, config)
            tile = config.dq if which == "dq" else config.dkdv
            name = "delta" if which == "delta" else f"{which} {label(tile)}"
            plans[name] = replace(plan, steps=(plan.steps[step],))
    if serves_specialized_backward(spec, TARGET):
        for stages, head_group in ((2, 4), (3, 4), (3, 8), (3, 16)):
            plan = specialized_backward_plan(spec, stages=stages, head_group=head_group)
            plans[f"dq specialized s{stages} sec{head_group}"] = replace(plan, steps=plan.steps[2:])
        for stages, head_group in ((2, 2), (2, 4), (2, 8), (2, 16), (3, 4), (3, 8)):
            plan = specialized_backward_plan(spec, dkdv_stages=stages, dkdv_head_group=head_group)
            plans[f"dkdv specialized s{stages} sec{head_group}"] = replace(
                plan, steps=plan.steps[1:2]
            )
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


def speed(spec: AttentionSpec) -> dict[str, Any]:
    """TFLOP/s and milliseconds, forward and backward, of the public function and of its peers."""
    row: dict[str, Any] = {"spec": describe(spec)}

    def add(name: str, times: Sequence[float]) -> None:
        row[f"{name}_ms"] = list(times)
        work = (spec.flops, 2.5 * spec.flops)
        row[name] = [round(w / t / 1e9) for w, t in zip(work, times, strict=True)]

    times, row["errors"] = public(spec)
    add("ours", times)
    for name, backend in (
        ("cudnn", SDPBackend.CUDNN_ATTENTION),
        ("flash", SDPBackend.FLASH_ATTENTION),
    ):
        try:
            add(name, peer(spec, backend))
        except RuntimeError as problem:
            row[name] = str(problem)[:120]
    return row


def search(shape: int, rehearsed: dict[tuple, Any]) -> dict[str, Any]:
    """Milliseconds of every forward plan, and of each backward pass alone, by replayed graphs."""
    spec = SHAPES[shape]
    rotated = [random_inputs(spec, seed, device="cuda") for seed in range(ROTATION)]
    tensors = [forward_tensors(spec, inputs) for inputs in rotated]
    for t in tensors:
        run_plan_torch(plan_attention(spec, TARGET), t)
    given = [
        backward_tensors(inputs, t[-2], t[-1], torch.randn_like(t[-2]))
        for inputs, t in zip(rotated, tensors, strict=True)
    ]

    def timed(which: str, name: str, plan: Plan, arrays: list) -> float | str:
        problem = rehearsed.get((shape, which, name), "not rehearsed")
        return problem if isinstance(problem, str) else plan_milliseconds(plan, arrays)

    forward = {n: timed("forward", n, p, tensors) for n, p in forward_plans(spec).items()}
    backward = {n: timed("backward", n, p, given) for n, p in backward_plans(spec).items()}
    return {"forward": forward, "backward_passes": backward}


def fastest(times: dict[str, Any], prefix: str = "") -> tuple[float, str]:
    """(milliseconds, label) of the fastest configuration whose label begins so."""
    right = {n: t for n, t in times.items() if n.startswith(prefix) and not isinstance(t, str)}
    name = min(right, key=lambda n: right[n])
    return right[name], name


def attention_slice(
    spec: AttentionSpec, inputs: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of the first batch entry's first key head, in float32."""
    small = replace(spec, batch=1, q_heads=spec.group, kv_heads=1)
    part = {"q": inputs["q"][:1, :, : spec.group].float()}
    part |= {name: inputs[name][:1, :, :1].float() for name in ("k", "v")}
    part |= {name: inputs[name][:1] for name in ("q_segments",) if name in inputs}
    return attention_reference(small, part)


def backward_slice(
    spec: AttentionSpec, inputs: dict[str, torch.Tensor], dout: torch.Tensor
) -> list[torch.Tensor]:
    """(dq, dk, dv) of the first batch entry's first key head."""
    small = replace(spec, batch=1, q_heads=spec.group, kv_heads=1)
    part = {"q": inputs["q"][:1, :, : spec.group]}
    part |= {name: inputs[name][:1, :, :1] for name in ("k", "v")}
    part |= {name: inputs[name][:1] for name in ("q_segments",) if name in inputs}
    found = reference_gradients(small, part, dout[:1, :, : spec.group])
    return [found[name] for name in ("dq", "dk", "dv")]


def decode(spec: AttentionSpec, configurations: bool) -> dict[str, Any]:
    """Microseconds of one of a chain of calls, each on what the one before gave as its queries."""
    row: dict[str, Any] = {"spec": describe(spec)}
    rotated = [random_inputs(spec, seed, device="cuda") for seed in range(ROTATION)]
    for inputs in rotated:
        inputs["kv_lengths"].fill_(spec.kv_len - 1)
    links = 8 * ROTATION
    torch.cuda.synchronize()
    start = ours(rotated[0]["q"])
    caches = [ours([x[n] for n in ("k", "v", "kv_lengths")]) for x in rotated]

    @gf.jit
    def chain(q: Any, caches: Any) -> list[Any]:
        outs = [q]
        for i in range(links):
            k, v, lengths = caches[i % ROTATION]
            outs.append(nn.dot_product_attention(outs[-1], k, v, key_value_seq_lengths=lengths))
        return [outs[1], outs[-1]]

    first = torch.from_dlpack(chain(start, caches)[0])
    gf.cuda.synchronize()
    stream = torch.cuda.ExternalStream(gf.cuda.current_stream().handle)
    taken = replay_time(lambda: chain(start, caches), stream)
    wide = {n: x.double() if x.is_floating_point() else x for n, x in rotated[0].items()}
    wanted, _ = attention_reference(spec, wide)
    row["ours"] = [round(1e6 * taken / links, 2), error(first, wanted)]
    heads_first = [[x[n].transpose(1, 2).contiguous() for n in ("q", "k", "v")] for x in rotated]

    def torch_chain() -> torch.Tensor:
        q = heads_first[0][0]
        for i in range(links):
            _, k, v = heads_first[i % ROTATION]
            q = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return q

    row["torch"] = round(1e6 * graph_time([torch_chain]) / links, 2)
    if configurations:
        tensors = [forward_tensors(spec, inputs) for inputs in rotated]
        configs = [*[DecodeConfig(n, 4) for n in (32, 64, 128)], vector_config(spec)]
        for splits, config in itertools.product((None, 4, 8, 16, 32), configs):
            plan = decode_plan(spec, TARGET, splits=splits, config=config)
            time_ = plan_milliseconds(plan, tensors * 4)
            row[f"splits {splits} {config}"] = [
                time_ if isinstance(time_, str) else round(1000 * time_, 2),
                error(tensors[0][-2], wanted),
            ]
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
    parser.add_argument("--only", choices=("check", "speed", "packed", "decode"))
    parser.add_argument("--names", default="", help="the checks to run, with commas between")
    parser.add_argument("--budget", type=float, default=160, help="seconds, about, of a part")
    parser.add_argument("--quick", action="store_true", help="fewer checks, shapes and rounds")
    parser.add_argument("--search", action="store_true", help="time every configuration, too")
    given = parser.parse_args()
    torch.manual_seed(0)
    checks = list(CHECKS)[: 4 if given.quick else None]
    shapes = range(2 if given.quick else len(SHAPES))
    parts = {"check": {}, "speed": [], "packed": [], "decode": []}
    results: dict[str, Any] = surroundings() | parts
    table: list[str] = []

    def save() -> None:
        if given.out:
            with open(given.out, "w") as file:
                json.dump(results, file, indent=1)

    if given.only in (None, "check"):
        names = given.names.split(",") if given.names else checks
        chosen = {n: CHECKS[n] for n in names}
        ended = rehearse(rehearse_check, [(name,) for name in chosen], given.budget)
        for name, spec in chosen.items():
            found = ended.get((name,), "did not run")
            if isinstance(found, str):
                found = {"failed": found}
            limits = {"fully_masked": 0.0, "nondeterministic": 0.0, "failed": -1.0}
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
        for shape in shapes:
            row = speed(SHAPES[shape])
            results["speed"].append(row)
            save()
            line = f"{row['spec']}: ours {row['ours']} cuDNN {row['cudnn']} flash {row['flash']}"
            table.append(f"{line} errors {[f'{e:.1e}' for e in row['errors']]}")
            print(table[-1], flush=True)
    if given.only in (None, "packed"):
        for text in (256, 1024, 1 << 30):
            row = packed(SHAPES[0], text)
            results["packed"].append(row)
            save()
            table.append(f"{row['spec']}: ours {row['ours_ms']} ms, flex {row['flex_ms']}")
            print(table[-1], row["errors"], flush=True)
    if given.search and given.only in (None, "speed"):
        items = [
            (shape, which, name)
            for shape in shapes
            for which, plans in (("forward", forward_plans), ("backward", backward_plans))
            for name in plans(SHAPES[shape])
        ]
        rehearsed = rehearse(rehearse_plan, items, given.budget / 2)
        for shape in shapes:
            row = results["speed"][shape]
            row |= search(shape, rehearsed)
            save()
            best = [fastest(row["forward"])]
            best += [fastest(row["backward_passes"], n) for n in ("dkdv", "dq")]
            table.append(f"{row['spec']}, fastest configurations: {best}")
    if given.only in (None, "decode"):
        for batch in (1, 16):
            spec = AttentionSpec(batch, 16, 8, 1, 2048, 128, kv_lengths=True)
            row = decode(spec, given.search)
            results["decode"].append(row)
            save()
            table.append(f"decode {row['spec']}: ours {row['ours']} us, torch {row['torch']}")
    print("\n".join(table), flush=True)


if __name__ == "__main__":
    main()
