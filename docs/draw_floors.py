"""Draws docs/floors.svg, the floors of the library: python docs/draw_floors.py

The floors are those of the contract in pyproject.toml, which lint-imports checks: a module imports
from its own floor and those below it.
"""

from __future__ import annotations

import pathlib
import sys
import tomllib

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = pathlib.Path(__file__).parent.parent
WHAT = {
    "cli": "genesis-fn demo, chat, generate, info",
    "data": "text, tokenizers, token windows",
    "distributed": "processes that meet, barriers, exchanges of values",
    "io": "safetensors, checkpoints, Hugging Face folders",
    "models": "Qwen2 and Qwen3, sampling",
    "parallel": "layouts over a mesh, ring attention, experts, pipeline",
    "image": "resizing",
    "scipy": "special functions",
    "amp": "dtype policies, loss scaling",
    "nn": "layers, activations",
    "optim": "optimizers, schedules, losses",
    "random": "keys, samplers, Generator",
    "extend": "for authors of primitives, kernels, backends",
    "lax": "operations as functions, attention, norms",
    "numpy": "the NumPy namespace and array methods",
    "backends": "cpu: torch;  cuda: cuda-python",
    "kernels": "Triton kernels",
    "compiler": "simplification, fusion, plans",
    "transforms": "grad, vmap, jit, scan, checkpoint, custom rules",
    "primitives": "one definition each: shape, derivative, batching, lowering",
    "core": "arrays, dtypes, programs, pytrees, errors",
}
COLOURS = {
    "what you write with": "#dbe7f3",
    "what runs it": "#efe3cf",
    "what it is made of": "#dcead9",
}


def floors() -> list[list[str]]:
    """The layers of the contract, from the top."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contract["contracts"][0]["layers"]
    return [[m.strip().removeprefix("genesis_fn.") for m in row.split("|")] for row in layers]


def colour(name: str) -> str:
    """The colour of a floor's part of the house."""
    if name in ("backends", "kernels", "compiler"):
        return COLOURS["what runs it"]
    if name in ("transforms", "primitives", "core"):
        return COLOURS["what it is made of"]
    return COLOURS["what you write with"]


def main(path: str | pathlib.Path = ROOT / "docs" / "floors.svg") -> int:
    """Draw the picture. Returns the number of floors."""
    rows = floors()
    matplotlib.rcParams.update({"svg.hashsalt": "floors", "font.family": "DejaVu Sans"})
    figure, axes = plt.subplots(figsize=(8.4, 0.56 * len(rows) + 0.5), layout="constrained")
    for i, row in enumerate(rows):
        bottom, width = len(rows) - 1 - i, 10 / len(row)
        for j, name in enumerate(row):
            box = (j * width + 0.04, bottom + 0.06), width - 0.08, 0.88
            axes.add_patch(plt.Rectangle(*box, facecolor=colour(name), edgecolor="#555555"))
            many = len(row) > 1
            axes.text(
                j * width + 0.2,
                bottom + (0.68 if many else 0.5),
                name,
                va="center",
                fontsize=10,
                weight="bold",
            )
            axes.text(
                j * width + (0.2 if many else 2.0),
                bottom + (0.3 if many else 0.5),
                WHAT.get(name, ""),
                va="center",
                fontsize=8.5,
                color="#333333",
            )
    axes.set(xlim=(0, 10), ylim=(0, len(rows)))
    axes.axis("off")
    handles = [
        plt.Rectangle((0, 0), 1, 1, facecolor=c, edgecolor="#555555") for c in COLOURS.values()
    ]
    figure.legend(
        handles, list(COLOURS), loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
    figure.savefig(path, metadata={"Date": None} if str(path).endswith("svg") else None)
    plt.close(figure)
    return len(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
