"""Errors of the float32 functions on a GPU, over all float32 numbers, in both modes.

    python benchmarks/numerics.py --out benchmarks/results/numerics-h200.json [--every 1]

An error is the distance, in units in the last place, from the correctly rounded result to the one
returned, as in CUDA's own table; the correctly rounded one comes from float64 by torch, on the
same device where torch has CUDA. Functions of one operand are evaluated at every `--every`-th of
the 2**32 bit patterns, those of two at 2**28 pairs of patterns. Exits with 1 where an error
exceeds its bound. `docs/write_numerics.py` makes docs/numerics.md of the results.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from benchmarks.results_file import surroundings
from genesis_fn import lax

CHUNK = 1 << 24
PAIRS = 1 << 28
WRONG = 1 << 31  # the error where a result is NaN and should not be, or the other way round


@dataclass(frozen=True)
class Function:
    """A float32 function of `operands`, its reference in float64, and the most units in the last
    place that it may be off: by default, and under `precise`. `within` bounds its operands: CUDA
    documents the bound there alone. `tiny`: subnormal results may be zero."""

    ours: Callable[..., Any]
    reference: Callable[..., torch.Tensor]
    bound: int
    precise: int
    operands: int = 1
    within: tuple[float, float] | None = None
    tiny: bool = False


# Bounds: of division, square root and reciprocal those of div.full.f32 and sqrt.approx.f32 in the
# PTX ISA, of all others what the CUDA Programming Guide documents for the function of CUDA's
# library that computes them (section "Mathematical Functions", single precision).
FUNCTIONS = {
    "div": Function(lambda x, y: x / y, lambda x, y: x / y, 2, 0, operands=2),
    "reciprocal": Function(lambda x: 1 / x, lambda x: 1 / x, 2, 0),
    "integer_pow[y=-1]": Function(lax.reciprocal, torch.reciprocal, 2, 0),
    "sqrt": Function(jnp.sqrt, torch.sqrt, 2, 0),
    "rsqrt": Function(lax.rsqrt, torch.rsqrt, 2, 2),
    "exp": Function(jnp.exp, torch.exp, 2, 2),
    "exp2": Function(jnp.exp2, torch.exp2, 2, 2),
    "log": Function(jnp.log, torch.log, 1, 1),
    "log2": Function(jnp.log2, torch.log2, 2, 2),
    "sin": Function(jnp.sin, torch.sin, 2, 2),
    "cos": Function(jnp.cos, torch.cos, 2, 2),
    "tanh": Function(jnp.tanh, torch.tanh, 2, 2),
    "erf": Function(lax.erf, torch.erf, 2, 2),
    "expm1": Function(jnp.expm1, torch.expm1, 1, 1),
    "log1p": Function(jnp.log1p, torch.log1p, 1, 1),
    "cbrt": Function(jnp.cbrt, lambda x: x.sign() * x.abs() ** (1 / 3), 1, 1),
    "logistic": Function(lax.logistic, torch.sigmoid, 4, 3, tiny=True),
    "tan": Function(jnp.tan, torch.tan, 4, 4),
    "asin": Function(jnp.arcsin, torch.asin, 2, 2),
    "acos": Function(jnp.arccos, torch.acos, 2, 2),
    "atan": Function(jnp.arctan, torch.atan, 2, 2),
    "atan2": Function(jnp.arctan2, torch.atan2, 3, 3, operands=2),
    "sinh": Function(jnp.sinh, torch.sinh, 3, 3),
    "cosh": Function(jnp.cosh, torch.cosh, 2, 2),
    "asinh": Function(jnp.arcsinh, torch.asinh, 3, 3),
    "acosh": Function(jnp.arccosh, torch.acosh, 4, 4),
    "atanh": Function(jnp.arctanh, torch.atanh, 3, 3),
    "erfc": Function(lax.erfc, torch.erfc, 4, 4),
    "erf_inv": Function(lax.erf_inv, torch.erfinv, 2, 2),
    "lgamma": Function(lax.lgamma, torch.lgamma, 6, 6, within=(-2.264, float("inf"))),
    "pow": Function(jnp.power, torch.pow, 4, 4, operands=2),
    "rem": Function(lax.rem, torch.fmod, 0, 0, operands=2),
}


def ordered(x: torch.Tensor) -> torch.Tensor:
    """The position of each float32 among all, as integers: neighbours differ by one."""
    bits = x.contiguous().view(torch.int32).to(torch.int64)
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def errors(f: Function, got: torch.Tensor, operands: list[torch.Tensor]) -> torch.Tensor:
    """The error of each result, in units in the last place."""
    want = f.reference(*[x.double() for x in operands]).float()
    wrong = want.isnan() != got.isnan()
    distance = (ordered(got) - ordered(want)).abs()
    distance = torch.where(want.isnan(), 0, distance)
    distance = torch.where(wrong, WRONG, distance)
    if f.tiny:
        distance = torch.where((want.abs() < 2.0**-126) & (got == 0), 0, distance)
    if f.within is not None:
        low, high = f.within
        (x,) = operands
        distance = torch.where((x >= low) & (x <= high), distance, 0)
    return distance


def patterns(f: Function, every: int, pairs: int, device: str) -> Iterator[list[torch.Tensor]]:
    """The operands, chunk by chunk: as bit patterns in order, or drawn in pairs."""
    if f.operands == 1:
        for start in range(-(1 << 31), 1 << 31, CHUNK * every):
            stop = min(start + CHUNK * every, 1 << 31)
            bits = torch.arange(start, stop, every, dtype=torch.int64, device=device)
            yield [bits.to(torch.int32).view(torch.float32)]
        return
    generator = torch.Generator(device).manual_seed(0)
    size = min(CHUNK, pairs)
    for _ in range(pairs // size):
        drawn = torch.randint(-(1 << 31), 1 << 31, (2, size), generator=generator, device=device)
        yield [*drawn.to(torch.int32).view(torch.float32)]


def measured(f: Function, precise: bool, every: int, pairs: int, device: str) -> dict[str, Any]:
    """{"error": the largest error, "at": the operands of it}."""
    run = gf.jit(f.ours, precise=precise)
    most, at = -1, [0.0] * f.operands
    for operands in patterns(f, every, pairs, device):
        if device == "cuda":
            got = torch.from_dlpack(run(*[jnp.from_dlpack(x) for x in operands]))
        else:  # PyTorch without CUDA: through the host, to the library's default device
            got = torch.from_numpy(np.array(run(*[jnp.asarray(x.numpy()) for x in operands])))
        distance = errors(f, got, operands)
        n = int(distance.argmax())
        if int(distance[n]) > most:
            most, at = int(distance[n]), [float(x[n]) for x in operands]
    return {"error": most, "at": [float(np.float32(x)).hex() for x in at]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--every", type=int, default=1, help="of bit patterns, each so many-th one")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--only", nargs="*", choices=FUNCTIONS)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results: dict[str, Any] = {"surroundings": surroundings(), "every": options.every}
    results |= {"pairs": options.pairs, "place": str(jnp.zeros(1).device), "functions": {}}
    print(f"{results['place']}, references on {device}", flush=True)
    failed = False
    for name in options.only or FUNCTIONS:
        f = FUNCTIONS[name]
        row = {}
        for mode, bound in (("default", f.bound), ("precise", f.precise)):
            precise = mode == "precise"
            row[mode] = measured(f, precise, options.every, options.pairs, device)
            wrong = row[mode]["error"] > bound
            failed |= wrong
            text = f"{name:18} {mode:8} {row[mode]['error']:12} of {bound} at {row[mode]['at']}"
            print(text + (" TOO LARGE" if wrong else ""), flush=True)
        results["functions"][name] = row
        if options.out:
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
