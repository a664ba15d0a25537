"""The kernels' gates as a Markdown table, from the JSON files of `run_all.sh`.

    python benchmarks/kernels/table.py benchmarks/results > benchmarks/results/kernels-h200.md

Rows of a file `...-again-h200.json`, timed later, replace those of the file that it lies beside.
A row's ratio is the best peer's time over ours: the time of the public function under jit. Rows of
older files also have a search over configurations, whose best has a column of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

GATES = {
    "8192^3": 0.97,
    "4096^3": 0.97,
    "qkv 16384x4096x1024": 0.97,
    "down 16384x1024x3072": 0.97,
    "gate-up 16384x6144x1024": 0.97,
    "dW down 1024x3072x16384": 0.97,
    "dW gate-up 1024x6144x16384": 0.97,
    "grouped dW of a layer, bf16": 0.97,
    "grouped dW of a layer, accumulating fp32": 0.97,
}
UNGATED_ROWS = ("pointwise copy", "embedding", "conv", "max pool", "random", "cumsum", "cummax")


def verdict(ratio: float, gate: float) -> str:
    """ "met", or by how much it was missed."""
    return "met" if ratio >= gate else f"**missed** by {100 * (1 - ratio / gate):.1f} %"


def matmul_lines(report: dict[str, Any]) -> list[str]:
    lines = [
        "| product | cuBLAS us | ours us | ratio | best of search | gate |",
        "|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        if "failed" in row or "cublas_s" not in row:
            reason = row.get("failed") or row["cublas_error"]
            lines.append(f"| {row['case']} | failed | | | | {reason[:60]} |")
            continue
        searched = [c["seconds"] for c in row.get("configs", ()) if c.get("ok")]
        peer, ours = row["cublas_s"], row.get("ours_s") or row["configs"][0]["seconds"]
        best = f"{peer / min(searched):.3f}" if searched else "-"
        decode = row["case"].startswith("decode")
        gate = GATES.get(row["case"], 0.97 if decode else None)
        text = f"0.97: {verdict(peer / ours, gate)}" if gate else "-"
        lines.append(
            f"| {row['case']} | {1e6 * peer:.1f} | {1e6 * ours:.1f} | {peer / ours:.3f} | {best} "
            f"| {text} |"
        )
    return lines


def attention_lines(report: dict[str, Any]) -> list[str]:
    lines = [
        "| shape | pass | cuDNN TFLOP/s | flash | ours | ratio | ratio of the best | gate |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report["speed"]:
        for number, which in enumerate(("forward", "backward")):
            cudnn, ours = row["cudnn_ms"][number], row["ours_ms"][number]
            best = fastest_attention(row, which)
            gate = 1.0 if which == "backward" and "T2048" in row["spec"] else 0.85
            text = f"{gate}: {verdict(cudnn / ours, gate)}" if "D128" in row["spec"] else "-"
            flash = row["flash"][number] if "flash_ms" in row else "failed"
            rates = f"{row['cudnn'][number]} | {flash} | {row['ours'][number]}"
            lines.append(
                f"| {row['spec']} | {which} | {rates} | {cudnn / ours:.3f} "
                f"| {f'{cudnn / best:.3f}' if best else '-'} | {text} |"
            )
    return lines


def fastest_attention(row: dict[str, Any], which: str) -> float | None:
    """Milliseconds of the fastest configurations of a pass, where a search timed them."""
    times = row.get("forward" if which == "forward" else "backward_passes")
    if times is None:
        return None
    parts = ("",) if which == "forward" else ("delta", "dkdv", "dq")
    return sum(
        min(t for n, t in times.items() if n.startswith(part) and not isinstance(t, str))
        for part in parts
    )


def row_lines(report: dict[str, Any]) -> list[str]:
    copy = next(r for r in report["rows"] if r["name"].startswith("pointwise copy"))
    bandwidth = copy["gb_per_s"] * max(1.0, copy["ours_us"] / copy["eager_us"])
    lines = [
        "| kernel | ours us | eager us | compiled us | ratio | best of search | of copy | gate |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        if "failed" in row:
            lines.append(f"| {row['name']} | failed | | | | | | {row['failed'][:60]} |")
            continue
        peer = min(row[k] for k in ("eager_us", "compile_us") if k in row)
        tried = [x for x in row.get("variants_us", {}).values() if not isinstance(x, str)]
        best = f"{peer / min([row['ours_us'], *tried]):.3f}" if tried else "-"
        share = f"{100 * row['gb_per_s'] / bandwidth:.0f} %" if "gb_per_s" in row else "-"
        compiled = f"{row['compile_us']:.1f}" if "compile_us" in row else "-"
        gated = not row["name"].startswith(UNGATED_ROWS)
        lines.append(
            f"| {row['name']} | {row['ours_us']:.1f} | {row['eager_us']:.1f} | {compiled} "
            f"| {row['ratio']:.3f} | {best} | {share} "
            f"| {verdict(row['ratio'], 1.0) if gated else '-'} |"
        )
    return lines


def with_later(rows: list[dict[str, Any]], later: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, each replaced by the one of the same name in `later`; new ones come last."""
    name = "case" if "case" in rows[0] else "name"
    found = {row[name]: row for row in later if "failed" not in row}
    kept = [found.pop(row[name], row) for row in rows]
    return [*kept, *found.values()]


def main() -> None:
    """Prints the tables of the folder given."""
    folder = Path(sys.argv[1])

    def read(name: str) -> dict[str, Any]:
        report = json.loads((folder / f"{name}-h200.json").read_text())
        again = folder / f"{name}-again-h200.json"
        if again.exists():
            later = json.loads(again.read_text())
            report["rows"] = with_later(report["rows"], later["rows"])
            print(f"{len(later['rows'])} rows of {name} are of commit {later['commit']}.\n")
        return report

    print("# Hand-written kernels and the CUDA runtime on one H200\n")
    matmul, attention, rows = (read(f"kernel-{n}") for n in ("matmul", "attention", "rows"))
    runtime, checks = read("runtime"), read("kernel-attention-checks")["check"]
    print(
        f"Commit {matmul['commit']}, {matmul['device']}, torch {matmul['torch']}, "
        f"Triton {matmul['triton']}, CUDA {matmul['cuda']}. Ratios are the peer's time over ours, "
        "medians of graph replays over rotated inputs after 30 ms of warm-up.\n"
    )
    good = sum(c["verdict"] == "ok" for c in checks.values())
    passed = sum(c["ok"] for c in runtime["checks"].values())
    wrong = sum(not row.get("ok", True) for row in (*matmul["rows"], *rows["rows"]))
    print(f"Right: {good} of {len(checks)} attention checks, {passed} of {len(runtime['checks'])} ")
    print(f"runtime checks; {wrong} wrong products or rows.\n")
    for title, lines in (
        ("Matrix products", matmul_lines(matmul)),
        (f"Attention, bf16 causal (commit {attention['commit']})", attention_lines(attention)),
        ("Rows, copies, scans, sorts, convolutions", row_lines(rows)),
    ):
        print(f"## {title}\n\n" + "\n".join(lines) + "\n")
    notes = folder / "kernels-h200-notes.md"
    if notes.exists():
        print(notes.read_text(), end="")


if __name__ == "__main__":
    main()
