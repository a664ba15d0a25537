"""A mixture of experts at the size of a Qwen3-30B-A3B layer, beside PyTorch with the same weights.

    python benchmarks/moe_layer.py --out benchmarks/results

128 experts of which a token has 8, 4096 tokens of 2048 features, 768 hidden features; parameters,
input and gradients in bfloat16, the router's logits in float32. Forward alone, and forward and
backward by input and all parameters. PyTorch runs under torch.compile: transformers' block and a
layer on `torch._grouped_mm`, which is written here. Times are medians of streams of calls.
Outputs and gradients are held to a loop over experts in float32; exits with 1 where this library's
are off by more than bfloat16 explains. Writes moe-layer-DEVICE.json. `--tokens 1` is a step of
decoding.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # few kernels are compiled

import numpy as np
import torch
import torch.nn.functional as F
from results_file import Results, parser, short

import genesis_fn as gf
from genesis_fn import nn
from genesis_fn.core.array import from_numpy
from genesis_fn.core.dtypes import BF16

SAMPLES, SAMPLE_SECONDS = 10, 0.05
NAMES = ("x", "gate", "gate_proj", "up_proj", "down_proj")  # the inputs, in this order everywhere
# Of the largest element. Three products in a row are rounded to 8 bits each.
BOUND = 3e-2
GAP = 0.02  # between logits; they are rounded by up to 0.008 in bfloat16


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of layer and batch."""

    experts: int = 128
    top_k: int = 8
    tokens: int = 4096
    features: int = 2048
    hidden: int = 768


TINY = Size(16, 2, 64, 64, 32)


def drawn(size: Size, device: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    """(inputs by `NAMES`, the cotangent of the output), bfloat16."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(scale: float, *shape: int) -> torch.Tensor:
        x = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        return (scale * x).bfloat16()

    e, f, h = size.experts, size.features, size.hidden
    gate = normal(f**-0.5, e, f)
    # Tokens whose last expert a rounded logit would exchange have no result to compare.
    x = normal(1.0, 2 * size.tokens + 64, f)
    best = torch.topk(F.linear(x.float(), gate.float()), size.top_k + 1, -1).values
    x = x[best[:, -2] - best[:, -1] > GAP][: size.tokens]
    assert len(x) == size.tokens
    weights = [
        normal(f**-0.5, e, h, f), normal(f**-0.5, e, h, f), normal(h**-0.5, e, f, h)
    ]  # fmt: skip
    return [x, gate, *weights], normal(1.0, size.tokens, f)


# ---- PyTorch ----


def routed(x: torch.Tensor, gate: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, experts) [T, k], from logits in float32."""
    p = torch.softmax(F.linear(x.float(), gate.float()), -1)
    weights, experts = torch.topk(p, k, -1)
    return weights / weights.sum(-1, keepdim=True), experts


def by_groups(
    x: torch.Tensor, gate: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, k: int
) -> torch.Tensor:
    """The layer on `torch._grouped_mm`, gate and up as one product."""
    weights, experts = routed(x, gate, k)
    order = torch.argsort(experts.reshape(-1), stable=True)
    numbers = torch.arange(len(gate), device=x.device)
    ends = torch.searchsorted(experts.reshape(-1)[order], numbers, right=True).int()
    rows = x[order // k]
    first, second = torch._grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
    share = weights.reshape(-1)[order][:, None]
    h = (F.silu(first) * second * share).to(x.dtype)
    out = torch._grouped_mm(h, down.transpose(1, 2), offs=ends)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
    return out[back].view(len(x), k, -1).sum(1)


def transformers_block(size: Size) -> Callable[..., torch.Tensor]:
    """transformers' own block as a function of the arguments of `by_groups`."""
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    config = Qwen3MoeConfig(
        hidden_size=size.features,
        moe_intermediate_size=size.hidden,
        num_experts=size.experts,
        num_experts_per_tok=size.top_k,
        norm_topk_prob=True,
    )
    config._experts_implementation = "grouped_mm"
    with torch.device("meta"):
        block = Qwen3MoeSparseMoeBlock(config)
    wanted = {"gate.weight", "experts.gate_up_proj", "experts.down_proj"}
    if {n for n, _ in block.named_parameters()} != wanted:
        raise RuntimeError("transformers' block has other parameters: this needs version 5")

    def run(
        x: torch.Tensor, gate: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, k: int
    ) -> torch.Tensor:
        given = {
            "gate.weight": gate, "experts.gate_up_proj": gate_up, "experts.down_proj": down
        }  # fmt: skip
        y = torch.func.functional_call(block, given, (x[None],))
        return (y[0] if isinstance(y, tuple) else y)[0]

    return run


def reference(inputs: Sequence[torch.Tensor], ct: torch.Tensor, k: int) -> list[torch.Tensor]:
    """The output and the gradients in float32, one expert after the other."""
    leaves = [v.float().requires_grad_() for v in inputs]
    x, gate, gate_proj, up_proj, down_proj = leaves
    weights, experts = routed(x, gate, k)
    y = torch.zeros_like(x)
    for e in range(len(gate)):
        token, place = torch.where(experts == e)
        h = F.silu(x[token] @ gate_proj[e].T) * (x[token] @ up_proj[e].T)
        y = y.index_add(0, token, weights[token, place, None] * (h @ down_proj[e].T))
    gradients = torch.autograd.grad(y, leaves, ct.float())
    return [y.detach(), *gradients]


# ---- measuring ----


def per_call(run: Callable[[], Any], wait: Callable[[Any], None]) -> float:
    """Seconds of one call in a stream of calls: the median of several streams."""

    def stream(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            out = run()
        wait(out)
        return time.perf_counter() - began

    wait(run())
    count = max(1, int(SAMPLE_SECONDS / max(stream(3) / 3, 1e-6)))
    return statistics.median(stream(count) for _ in range(SAMPLES)) / count


def errors(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> dict[str, float]:
    """The largest difference of output and gradients over the largest element."""
    return {
        name: float((a.float() - b).abs().max() / b.abs().max())
        for name, a, b in zip(("y", *NAMES), got, wanted, strict=True)
    }


def measure_torch(
    layer: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], ct: torch.Tensor, k: int
) -> tuple[dict[str, float], list[torch.Tensor]]:
    """(seconds, output and gradients) of a layer under torch.compile."""
    x, gate, gate_proj, up_proj, down = inputs
    leaves = [
        v.detach().requires_grad_() for v in (x, gate, torch.cat([gate_proj, up_proj], 1), down)
    ]
    compiled = torch.compile(layer, dynamic=False)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return compiled(*leaves, k)

    def both() -> tuple[torch.Tensor, ...]:
        y = compiled(*leaves, k)
        return y, *torch.autograd.grad(y, leaves, ct)

    wait = lambda out: torch.cuda.synchronize() if x.is_cuda else None
    seconds = {"forward": per_call(forward, wait), "forward_backward": per_call(both, wait)}
    y, dx, d_gate, d_gate_up, d_down = [v.detach() for v in both()]
    h = gate_proj.shape[1]
    return seconds, [y, dx, d_gate, d_gate_up[:, :h], d_gate_up[:, h:], d_down]


def measure_ours(
    size: Size, inputs: Sequence[torch.Tensor], ct: torch.Tensor
) -> tuple[dict[str, float], list[torch.Tensor]]:
    """(seconds, output and gradients) of `nn.MoE` under jit."""
    layer = nn.MoE(size.features, size.hidden, size.experts, size.top_k, dtype="bfloat16")
    here = [from_numpy(v.cpu().view(torch.int16).numpy().view(BF16)) for v in (*inputs, ct)]
    params = {
        "gate": {"weight": here[1]},
        "experts": {n: {"weight": v} for n, v in zip(NAMES[2:], here[2:5])},
    }
    forward = gf.jit(lambda p, x: layer(p, x))

    def with_gradients(p: Any, x: Any, ct: Any) -> Any:
        y, pull = gf.vjp(layer, p, x)
        return y, *pull(ct)

    both = gf.jit(with_gradients)
    seconds = {
        "forward": per_call(lambda: forward(params, here[0]), lambda y: y.block_until_ready()),
        "forward_backward": per_call(
            lambda: both(params, here[0], here[5]), lambda out: out[0].block_until_ready()
        ),
    }
    y, d_params, dx = both(params, here[0], here[5])
    of_experts = [d_params["experts"][n]["weight"] for n in NAMES[2:]]
    outs = [y, dx, d_params["gate"]["weight"], *of_experts]
    bits = [torch.from_numpy(np.array(v).view(np.int16)) for v in outs]
    return seconds, [v.view(torch.bfloat16).to(ct.device) for v in bits]


def row(
    seconds: dict[str, float],
    got: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
    size: Size,
) -> dict[str, Any]:
    """A row of the table: milliseconds, TFLOP/s, and how far off the results are."""
    products = 6.0 * size.tokens * size.top_k * size.features * size.hidden
    found: dict[str, Any] = {f"{name}_ms": 1e3 * t for name, t in seconds.items()}
    found["forward_TFLOPs"] = products / seconds["forward"] / 1e12
    found["forward_backward_TFLOPs"] = 3 * products / seconds["forward_backward"] / 1e12
    found["errors"] = errors(got, wanted)
    return found


def table(rows: dict[str, Any]) -> str:
    """The rows as Markdown."""
    lines = [
        "| | forward | forward and backward | TFLOP/s | largest error |",
        "|---|---|---|---|---|",
    ]
    for name, r in rows.items():
        worst = max(r["errors"].values())
        lines.append(
            f"| {name} | {r['forward_ms']:.3f} ms | {r['forward_backward_ms']:.3f} ms | "
            f"{r['forward_TFLOPs']:.0f}, {r['forward_backward_TFLOPs']:.0f} | {worst:.1e} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure, compare, write, print; 1 if this library's results are wrong."""
    options = parser(__doc__)
    options.add_argument("--tokens", type=int, help="number of tokens; 1 is a step of decoding")
    args = options.parse_args()
    size = TINY if args.tiny else Size()
    if args.tokens:
        size = dataclasses.replace(size, tokens=args.tokens)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")  # exact here: operands have the bits of bfloat16
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    place = short(name) if device == "cuda" else "cpu"
    ending = ("-tiny" * args.tiny) + (f"-{args.tokens}" if args.tokens else "")
    results = Results(Path(args.out) / f"moe-layer-{place}{ending}", redo=True)
    results.about |= {"device": name, "dtype": "bfloat16", "size": dataclasses.asdict(size)}
    inputs, ct = drawn(size, device)
    wanted = reference(inputs, ct, size.top_k)
    layers = {
        "torch._grouped_mm": lambda: by_groups, "transformers": lambda: transformers_block(size)
    }  # fmt: skip
    with gf.default_device(gf.cuda(0) if device == "cuda" else gf.cpu()):
        measured = results.measure(
            "genesis_fn", lambda: row(*measure_ours(size, inputs, ct), wanted, size)
        )
    for system, make in layers.items():
        results.measure(
            system,
            lambda make=make: row(*measure_torch(make(), inputs, ct, size.top_k), wanted, size),
        )
    rows = results.rows
    results.write_table(f"A mixture of experts: {name}, bfloat16, {size}", table(rows))
    worst = max(rows["genesis_fn"]["errors"].values()) if measured else float("inf")
    peers = [r["forward_backward_ms"] for n, r in rows.items() if n != "genesis_fn"]
    if measured and peers:
        ratio = min(peers) / rows["genesis_fn"]["forward_backward_ms"]
        print(f"forward and backward: {ratio:.2f} times the speed of the faster of PyTorch's")
    print(f"largest error {worst:.1e}, bound {BOUND:.0e}: {'ok' if worst <= BOUND else 'WRONG'}")
    return int(worst > BOUND)


if __name__ == "__main__":
    sys.exit(main())
