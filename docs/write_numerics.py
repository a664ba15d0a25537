"""Writes numerics.md from the measurements: `python docs/write_numerics.py`.

The bounds are those of `benchmarks/numerics.py`. `results/numerics-model.json` has the errors of
the compiled code on a model of the machine, `results/numerics-h200.json`, where it exists, those of
a GPU over all numbers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.numerics import FUNCTIONS

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"

HEAD = """# How exactly a GPU computes

Written by `docs/write_numerics.py` from measurements; do not edit.

Errors of float32 functions on a GPU, in units in the last place: the distance from the
correctly rounded result to the one returned, 0 where they are equal, as CUDA's own table has
it. By default division, square root and reciprocal are the machine's approximations, good to 2
units over the whole range, as XLA and Inductor have them. Under `precise` they are correctly
rounded, as on a CPU, for some ten times the instructions:

```python
exact = gf.jit(lambda x: x / 3.0, precise=True)
with gf.precise():
    y = jnp.sqrt(jnp.float32(2.0))
print(exact(jnp.float32(1.0)), y)
#> 0.33333334 1.4142135
```

What is recorded under `precise` stays so: in derivatives, in functions that inline it, and in a
program that is compiled later. A jitted function without the argument follows the setting where
it is called; `jit(f, precise=False)` does not. `GENESIS_PRECISE=1` is the setting of a process.
On a CPU nothing changes: torch's division and roots are correctly rounded anyway.

`x / x` may be less than 1 by default, and `floor(x / y)` one too small: `jnp.floor_divide`,
`jnp.round`, the ends of `jnp.linspace` and the staircases of schedules divide correctly rounded in
both modes.

All other functions are those of CUDA's library in both modes, and keep subnormal numbers. Their
bounds are the ones that the CUDA Programming Guide documents; `logistic` is 1 / (1 + exp(-x)),
whose results below 2**-126 may be zero. What is not in the table is exact (sums and products of
two numbers, comparisons, rounding, signs), computed from functions of the table (`log10`,
`logaddexp`, losses), or has no bound (`digamma`, `polygamma`, whole powers: a product of some
factors). float64 is CUDA's in both modes. 16- and 8-bit floats are computed in float32 with
approximations that their own rounding hides. Kernels written by hand (attention, cross-
entropies, softmax and norms called by themselves) have tests of their own, and do not change
under `precise`.

| function | bound | {first} | bound, precise | {second} |
| --- | --- | --- | --- | --- |
"""


def _read(name: str) -> dict[str, Any]:
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def numerics() -> str:
    """The document."""
    device, model = _read("numerics-h200.json"), _read("numerics-model.json")
    if device:
        name, every = device["surroundings"]["device"].split(",")[0], device["every"]
        over = "all" if every == 1 else f"every {every}th"
        first, second = f"measured, {name}", "measured, precise"
    else:
        name, over, first, second = "", "", "of the compiled code", "of the compiled code, precise"
    text = HEAD.replace("{first}", first).replace("{second}", second)
    for function, f in FUNCTIONS.items():
        row = device["functions"].get(function) if device else None
        if row is not None:
            errors = [row[mode]["error"] for mode in ("default", "precise")]
        else:
            errors = ["" if device else model.get(function, "")] * 2
        where = "" if f.within is None else f", of operands above {f.within[0]}"
        text += f"| `{function}`{where} | {f.bound} | {errors[0]} | {f.precise} | {errors[1]} |\n"
    if device:
        text += f"\nFunctions of one operand at {over} of 2\\*\\*32 numbers, "
        text += f"of two at {device['pairs']:,} pairs.\n"
    else:
        text += (
            "\nThe compiled code ran on a model of PTX (`tests/cuda/compile_numerics.py`), in\n"
            "which the machine's approximations are rounded correctly; on a GPU\n"
            "`benchmarks/numerics.py` measures.\n"
        )
    return text


if __name__ == "__main__":
    Path(__file__).with_name("numerics.md").write_text(numerics(), encoding="utf-8")
