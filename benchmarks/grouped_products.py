"""The products of a mixture of experts, forward and backward, against PyTorch's on one GPU.

    python benchmarks/grouped_products.py --out benchmarks/results/grouped-products-h200.json
    python benchmarks/grouped_products.py --sweep --out sweep.json    # tiles, warps, stages, order

For each layer: y = x w_i^T, dx = dy w_i and dw_i = dy_i^T x_i, in bfloat16, of tokens that are
routed at random. `torch._grouped_mm` and a loop over experts, whose sizes the host knows, compute
the same; `--compile` gives the loop to torch.compile. All are captured in CUDA graphs; times are
medians. Every result is held to a product in float32. `--only` takes a part of a case's name.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "kernels"))

import torch
import triton
from jitted import difference, free, our_time
from torch_launch import TARGET, bound_plan, graph_time, rehearse

from genesis_fn import lax, numpy as jnp
from genesis_fn.kernels.matmul.ragged import (
    RaggedConfig,
    RaggedSpec,
    plan_ragged_contraction,
    plan_ragged_dot,
    ragged_contraction_configs,
    ragged_dot_configs,
)

ERROR = 1e-2  # of the largest element, in bfloat16
DRAWS = 3  # sets of operands: together larger than the L2 cache


@dataclass(frozen=True)
class Layer:
    """Tokens, each to `top_k` of the experts, whose weights are [experts, features_out, in]."""

    tokens: int
    top_k: int
    experts: int
    features_in: int
    features_out: int

    @property
    def rows(self) -> int:
        """Rows of all experts."""
        return self.tokens * self.top_k

    def sizes(self, seed: int) -> torch.Tensor:
        """Rows of each expert."""
        torch.manual_seed(seed)
        chosen = torch.rand(self.tokens, self.experts, device="cuda").topk(self.top_k).indices
        return torch.bincount(chosen.flatten(), minlength=self.experts).int()


LAYERS = {
    "qwen3-30b-a3b up": Layer(4096, 8, 128, 2048, 768),
    "qwen3-30b-a3b down": Layer(4096, 8, 128, 768, 2048),
    "8 experts": Layer(4096, 2, 8, 4096, 14336),
    "decode, 8 tokens": Layer(8, 8, 128, 2048, 768),
}
PRODUCTS = ("forward", "dx", "dw")


@dataclass(frozen=True)
class Case:
    """One product of a layer: operands (lhs, rhs) by its formula."""

    layer: str
    product: str

    @property
    def flops(self) -> float:
        shape = LAYERS[self.layer]
        return 2.0 * shape.rows * shape.features_in * shape.features_out

    def spec(self) -> RaggedSpec:
        """The product, as the library plans it."""
        shape = LAYERS[self.layer]
        rows, groups = shape.rows, shape.experts
        if self.product == "forward":
            return RaggedSpec(
                rows, shape.features_in, shape.features_out, groups, rhs_transposed=True
            )
        return RaggedSpec(rows, shape.features_out, shape.features_in, groups)

    def operands(self, seed: int) -> list[torch.Tensor]:
        """lhs, rhs and sizes."""
        spec, shape = self.spec(), LAYERS[self.layer]
        sizes = shape.sizes(seed)
        weights = (spec.groups, shape.features_out, shape.features_in)
        rhs = (spec.rows, spec.n) if self.product == "dw" else weights
        draw = lambda *of: torch.randn(of, device="cuda", dtype=torch.bfloat16)
        return [draw(spec.rows, spec.k), draw(*rhs), sizes]

    def result(self) -> torch.Tensor:
        """Memory for the result."""
        spec = self.spec()
        shape = (spec.groups, spec.k, spec.n) if self.product == "dw" else (spec.rows, spec.n)
        return torch.empty(shape, device="cuda", dtype=torch.bfloat16)

    def plan(self, config: RaggedConfig | None) -> Any:
        """The library's plan, by its own choice of a configuration or by this one."""
        door = plan_ragged_contraction if self.product == "dw" else plan_ragged_dot
        return door(self.spec(), TARGET, config)

    def ours(self, x: Any, w: Any, sizes: Any) -> Any:
        """The library's functions."""
        if self.product == "dw":
            numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
            return lax.ragged_dot_general(x, w, sizes, numbers)
        return lax.ragged_dot(x, jnp.swapaxes(w, 1, 2) if self.product == "forward" else w, sizes)

    def grouped_mm(self, x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """PyTorch's."""
        if self.product == "dw":
            return torch._grouped_mm(x.mT, w, ends)
        return torch._grouped_mm(x, w.mT if self.product == "forward" else w, ends)

    def loop(self, x: torch.Tensor, w: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        """A product for each expert, of sizes that the host knows."""
        rows = x.split(sizes)
        if self.product == "dw":
            return torch.stack([a.mT @ b for a, b in zip(rows, w.split(sizes))])
        turned = w.mT if self.product == "forward" else w
        return torch.cat([a @ b for a, b in zip(rows, turned)])


# ---- configurations worth a try ----


_ROWS = [  # of ragged dots: tile, warps, stages, residents
    (128, 256, 64, 8, 4, 1, ""), (128, 256, 64, 8, 4, 1, ""), (128, 256, 64, 8, 3, 0, ""),
    (256, 128, 64, 8, 4, 1, ""), (64, 256, 64, 4, 4, 1, ""),
    (64, 256, 64, 4, 2, 2, ""), (128, 128, 64, 4, 4, 1, ""), (128, 128, 64, 4, 4, 1, ""),
    (128, 128, 64, 4, 3, 2, "halves"), (128, 128, 64, 4, 2, 0, ""), (128, 128, 32, 4, 4, 2, ""),
    (128, 128, 64, 8, 4, 1, ""), (128, 128, 64, 8, 3, 2, "halves"),
    (64, 128, 64, 4, 3, 2, ""), (128, 128, 64, 8, 3, 0, "pointer"),
    (128, 128, 32, 4, 5, 2, ""), (128, 128, 32, 4, 6, 2, "halves"), (128, 128, 32, 8, 4, 2, ""),
]  # fmt: skip
_DEPTH = [  # of ragged contractions
    (128, 256, 64, 8, 3, 1, "flatten"), (128, 256, 64, 8, 3, 1, ""), (128, 256, 64, 8, 3, 0, ""),
    (128, 256, 32, 8, 4, 1, ""), (256, 128, 64, 8, 3, 1, ""), (256, 128, 64, 8, 3, 1, "flatten"),
    (128, 128, 64, 4, 3, 1, "flatten"), (128, 128, 64, 4, 2, 2, ""), (128, 128, 64, 4, 2, 0, ""),
    (128, 128, 32, 4, 4, 2, ""), (128, 128, 32, 4, 4, 0, ""), (128, 128, 64, 8, 2, 2, ""),
    (128, 128, 64, 8, 3, 0, "pointer"), (128, 128, 64, 4, 3, 0, "pointer"),
    (128, 128, 32, 4, 4, 0, "pointer"), (128, 256, 64, 8, 3, 1, "pointer"),
    (128, 128, 32, 4, 4, 2, "flatten"), (128, 128, 32, 4, 5, 2, "halves"),
]  # fmt: skip


def tried(case: Case) -> list[RaggedConfig]:
    """The library's menu, and its neighbours."""
    spec = case.spec()
    if spec.rows < 64 * spec.groups:
        found = ragged_dot_configs(spec, TARGET)
        return found + [replace(c, residents=r) for c in found for r in (1, 2)]
    tiles, menu = _ROWS, ragged_dot_configs
    if case.product == "dw":
        tiles, menu = _DEPTH, ragged_contraction_configs
    found = menu(spec, TARGET)
    for bm, bn, bk, warps, stages, residents, words in tiles:
        tma, flatten = "pointer" not in words, "flatten" in words
        parts = "halves" in words or (tma and bm * bn > 128 * 128)
        found.append(RaggedConfig(tma, bm, bn, bk, warps, stages, residents, flatten, parts))
    return list(dict.fromkeys(found))


def check(layer: str, product: str, config: RaggedConfig | None) -> float:
    """The error of a case over what is allowed; its kernels are compiled after this."""
    case = Case(layer, product)
    x, w, sizes = case.operands(0)
    out = case.result().fill_(math.nan)
    bound_plan(case.plan(config), [x, w, sizes, out])()
    torch.backends.cuda.matmul.allow_tf32 = True
    want = case.loop(x, w, sizes.tolist())  # bfloat16 operands, summed in float32
    return difference([out], [want]) / ERROR


Sets = list[list[torch.Tensor]]


def measured(case: Case, config: RaggedConfig | None, sets: Sets) -> float:
    """Seconds of the library's plan."""
    out = case.result()
    return graph_time([bound_plan(case.plan(config), [*xs, out]) for xs in sets])


def theirs(case: Case, compiled: bool, sets: Sets) -> dict[str, float | str]:
    """Seconds of PyTorch's ways."""
    ends = [sizes.cumsum(0).int() for _, _, sizes in sets]
    counts = [sizes.tolist() for _, _, sizes in sets]
    found: dict[str, float | str] = {}

    def timed(name: str, calls: list[Callable[[], Any]]) -> None:
        try:
            found[name] = graph_time(calls)
        except Exception as problem:
            found[f"{name}_error"] = str(problem).splitlines()[0][:200]

    timed(
        "grouped_mm_s",
        [lambda s=s, e=e: case.grouped_mm(s[0], s[1], e) for s, e in zip(sets, ends)],
    )
    loop = torch.compile(case.loop) if compiled else case.loop
    timed("loop_s", [lambda s=s, n=n: loop(s[0], s[1], n) for s, n in zip(sets, counts)])
    return found


def jitted(case: Case, sets: Sets) -> float:
    """Seconds of the public function under jit."""
    return our_time(case.ours, sets)


def shown(config: RaggedConfig) -> str:
    """A configuration in one word."""
    words = [
        "tma" if config.tma else "pointer",
        f"{config.bm}x{config.bn}x{config.bk}",
        f"w{config.warps} s{config.stages} r{config.residents}",
        *[name for name in ("flatten", "halves", "swap") if getattr(config, name)],
    ]
    return " ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--sweep", action="store_true", help="time the configurations worth it")
    parser.add_argument("--compile", action="store_true", help="give the loop to torch.compile")
    parser.add_argument("--only", default="", help="comma-separated parts of names")
    parser.add_argument("--budget", type=float, default=90, help="seconds in all")
    options = parser.parse_args()
    start = time.time()
    parts = options.only.split(",")
    cases = [Case(layer, product) for layer in LAYERS for product in PRODUCTS]
    cases = [c for c in cases if c.product == "forward" or not c.layer.startswith("decode")]
    cases = [c for c in cases if any(p in f"{c.layer} {c.product}" for p in parts)]
    todo = [
        (case.layer, case.product, config)
        for case in cases
        for config in ([None, *tried(case)] if options.sweep else [None])
    ]
    checked = rehearse(check, todo, 0.6 * options.budget)
    print(f"{len(checked)} of {len(todo)} checked in {time.time() - start:.0f} s", flush=True)
    rows = []
    for case in cases:
        row: dict[str, Any] = {**asdict(case), "flops": case.flops}
        errors = {c: e for (a, b, c), e in checked.items() if (a, b) == (case.layer, case.product)}
        bad = {
            ("default" if c is None else shown(c)): e
            for c, e in errors.items()
            if isinstance(e, str) or e > 1
        }
        row["failed"] = {
            name: e if isinstance(e, str) else f"wrong: {e}" for name, e in bad.items()
        }
        rate = lambda s: f"{s * 1e6:8.1f} us {case.flops / s / 1e12:5.0f} TFLOP/s"
        name = f"{case.layer} {case.product}"
        if time.time() - start > options.budget:
            print("out of time before", name)
            break
        sets = [case.operands(seed) for seed in range(DRAWS)]
        for what, problem in row["failed"].items():
            print(f"{name}: {what}: {problem[-300:]}")
        if "default" not in bad:
            row["ours_s"] = measured(case, None, sets)
            if not options.sweep:
                row["jitted_s"] = jitted(case, sets)
        row |= theirs(case, options.compile, sets)
        yard = min([row[k] for k in ("grouped_mm_s", "loop_s") if k in row], default=math.nan)
        line = [f"{name:32s}"]
        for key, label in (("ours_s", "ours"), ("jitted_s", "jit"), ("grouped_mm_s", "grouped_mm"),
                           ("loop_s", "loop")):  # fmt: skip
            line += [f"{label} {rate(row[key])}"] if key in row else []
        print(" | ".join(line), f"| x{yard / row.get('ours_s', math.nan):.2f}", flush=True)
        if options.sweep:
            times = {}
            for config, error in errors.items():
                if config is not None and not isinstance(error, str) and error <= 1:
                    if time.time() - start < options.budget:
                        times[shown(config)] = measured(case, config, sets)
            row["sweep"] = dict(sorted(times.items(), key=lambda item: item[1]))
            for what, seconds in list(row["sweep"].items())[:6]:
                print(f"    {what:40s} {rate(seconds)}", flush=True)
        del sets
        free()
        rows.append(row)
        document = {
            "device": torch.cuda.get_device_name(0),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "commit": os.environ.get("KERNEL_COMMIT"),
            "rows": rows,
        }
        Path(options.out).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
