"""The tables of the zoo: values that are held to each other, times for people, a chart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo_programs import PROGRAMS
from benchmarks.zoo_programs.measuring import SIDES, UNORDERED, paths

PEERS = ("jax", "torch")
TITLES = {"genesis": "ours", UNORDERED: "ours, deterministic=False", "jax": "JAX", "torch": "torch"}


def difference(values: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """The largest difference over the largest magnitude, of the worst array. An array that is small
    beside the others counts as a hundredth of the largest."""
    if [x.shape for x in values] != [y.shape for y in expected]:
        return math.inf
    wide = lambda x: x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    top = max((float(np.abs(wide(y)).max(initial=0)) for y in expected), default=0.0)
    worst = 0.0
    for x, y in zip(map(wide, values), map(wide, expected)):
        size = max(float(np.abs(y).max(initial=0)), 1e-2 * top, 1e-30)
        off = float(np.abs(x - y).max(initial=0)) / size
        worst = off if math.isnan(off) else max(worst, off)
        if math.isnan(worst):
            return math.inf
    return worst


def collected(folder: Path) -> dict[str, Any]:
    """{program: what is known of it} of what lies in the folder, values compared to JAX's."""
    rows: dict[str, Any] = {}
    for name, program in PROGRAMS.items():
        sides: dict[str, Any] = {}
        values: dict[str, list[np.ndarray]] = {}
        for side in SIDES:
            row_path, values_path = paths(folder, side, name)
            if not row_path.exists():
                continue
            sides[side] = json.loads(row_path.read_text())
            if "failed" not in sides[side]:
                with np.load(values_path) as file:
                    values[side] = [file[key] for key in file.files]
        for side in values:
            if side != "jax" and "jax" in values:
                off = difference(values[side], values["jax"])
                # JSON has no infinity.
                sides[side]["off"] = off if math.isfinite(off) else None
                sides[side]["agrees"] = off < program.bound
        if sides:
            rows[name] = {
                "field": program.field,
                "about": program.about,
                "bound": program.bound,
                "jitted": program.jitted,
                "precision": program.precision,
                "scatters": program.scatters,
                "sides": sides,
            }
    return rows


# ---- ratios ----


def time_of(row: dict[str, Any], side: str) -> float | None:
    """Milliseconds of a side, None if it failed or was not run."""
    return row["sides"].get(side, {}).get("ms")


def over_jax(row: dict[str, Any], ours: str = "genesis") -> float | None:
    """JAX's time over ours."""
    mine, theirs = time_of(row, ours), time_of(row, "jax")
    return theirs / mine if mine and theirs else None


def over_best(row: dict[str, Any], ours: str = "genesis") -> float | None:
    """The best peer's time over ours."""
    mine = time_of(row, ours)
    theirs = [t for t in (time_of(row, p) for p in PEERS) if t]
    return min(theirs) / mine if mine and theirs else None


def geometric_mean(ratios: Iterable[float | None]) -> tuple[float, int]:
    """(the mean of those there are, how many), NaN of none."""
    logs = [math.log(r) for r in ratios if r]
    return (math.exp(sum(logs) / len(logs)) if logs else math.nan), len(logs)


# ---- for people ----


def cell(value: float | None, form: str = ".2f") -> str:
    """A number, or a dash."""
    return "-" if value is None else format(value, form)


def ratio_cell(ratio: float | None) -> str:
    """A ratio; two digits of a small one."""
    return cell(ratio, ".2f" if ratio is None or ratio >= 0.1 else ".2g")


def values_cell(sides: dict[str, Any], ours: str) -> str:
    """Whether a side's values and torch's are JAX's."""
    said = []
    for side in (ours, "torch"):
        found = sides.get(side, {})
        if "agrees" in found and not found["agrees"]:
            off = "" if found["off"] is None else f" by {found['off']:.0e}"
            said.append(f"{TITLES[side].partition(',')[0]} APART{off}")
    if said:
        return ", ".join(said)
    return "agree" if sides.get(ours, {}).get("agrees") else "-"


def table(rows: dict[str, Any]) -> str:
    """The rows as Markdown; what failed, and geometric means, below."""
    columns = [
        "program", "field", "ours, ms", "JAX, ms", "torch, ms", "JAX / ours", "best peer / ours",
        "first call, s (ours, JAX, torch)", "memory, GiB (ours, JAX, torch)", "values",
    ]  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    failed: list[str] = []
    for name, row in rows.items():
        sides = row["sides"]
        for ours in ("genesis", UNORDERED):
            if ours == UNORDERED and ours not in sides:
                continue
            shown = [sides.get(side, {}) for side in (ours, "jax", "torch")]
            times = ["failed" if "failed" in s else cell(s.get("ms"), ".3f") for s in shown]
            starts = ", ".join([cell(s.get("first_s")) for s in shown])
            peaks = [s.get("peak_bytes") for s in shown]
            memory = ", ".join([cell(p and p / 2**30) for p in peaks])
            label = name if ours == "genesis" else f"{name}, deterministic=False"
            ratios = [ratio_cell(f(row, ours)) for f in (over_jax, over_best)]
            values = values_cell(sides, ours)
            cells = [label, row["field"], *times, *ratios, starts, memory, values]
            lines.append(f"| {' | '.join(cells)} |")
        for side, found in sides.items():
            if "failed" in found:
                said = " ".join(found["failed"].split())[:300]
                failed.append(f"* {name}, {TITLES[side]}: {said}")
    lines += ["", *summary(rows)]
    return "\n".join([*lines, *(["", "Failed:", "", *failed] if failed else [])])


def summary(rows: dict[str, Any]) -> list[str]:
    """Geometric means and counts, as items of a list."""
    free = lambda row: UNORDERED if time_of(row, UNORDERED) else "genesis"
    kinds = {
        "JAX / ours": [over_jax(r) for r in rows.values()],
        "best peer / ours": [over_best(r) for r in rows.values()],
        "JAX / ours, deterministic=False where rows are added": [
            over_jax(r, free(r)) for r in rows.values()
        ],
        "best peer / ours, deterministic=False where rows are added": [
            over_best(r, free(r)) for r in rows.values()
        ],
    }
    found = []
    for kind, ratios in kinds.items():
        mean, count = geometric_mean(ratios)
        ahead = sum(1 for r in ratios if r and r >= 1)
        text = f"{mean:.2f} over {count} programs, {ahead} of them at 1 or above"
        found.append(f"* geometric mean of {kind}: {text}")
    return found


def chart(rows: dict[str, Any], title: str) -> str:
    """JAX's time over ours as bars on a logarithmic scale, an SVG picture."""
    ratios = {name: r for name, row in rows.items() if (r := over_jax(row))}
    ordered = sorted(ratios.items(), key=lambda item: -item[1])
    left, width, height, top = 190, 520, 15, 52
    most = max([abs(math.log2(r)) for r in ratios.values()], default=1.0)
    span = max(1, math.ceil(most))
    at = lambda ratio: left + width * (math.log2(ratio) + span) / (2 * span)
    bottom = top + height * len(ordered)
    size = f'width="{left + width + 60}" height="{bottom + 30}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="20" font-size="14">{escape(title)}</text>',
        f'<text x="{left}" y="38">time of JAX / our time: to the right of 1 ours is faster</text>',
    ]
    for power in range(-span, span + 1):
        x, label = at(2.0**power), f"{2**power}" if power >= 0 else f"1/{2**-power}"
        color = "#444" if power == 0 else "#ddd"
        lines.append(f'<path d="M{x:.1f} {top}V{bottom}" stroke="{color}"/>')
        lines.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{label}</text>')
    for i, (name, ratio) in enumerate(ordered):
        y, a, b = top + height * i, *sorted((at(1.0), at(ratio)))
        color = "#2a7de1" if ratio >= 1 else "#d9822b"
        shape = f'x="{a:.1f}" y="{y + 2}" width="{b - a:.1f}" height="{height - 4}"'
        lines.append(f'<text x="{left - 8}" y="{y + 11}" text-anchor="end">{escape(name)}</text>')
        lines.append(f'<rect {shape} fill="{color}"/>')
        lines.append(f'<text x="{left + width + 8}" y="{y + 11}">{ratio:.2f}</text>')
    return "\n".join([*lines, "</svg>", ""])
