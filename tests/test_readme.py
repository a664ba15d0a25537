"""The README's examples run, one after the other, and print what it says."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_examples_print_what_they_say():
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    assert len(blocks) >= 10
    names: dict = {}
    for block in blocks:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(block, "README.md", "exec"), names)
        expected = re.findall(r"^#> (.*)$", block, re.M)
        assert said.getvalue().splitlines() == expected, block


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", re.sub(r"```.*?```", "", TEXT, flags=re.S)):
        # `tests/test_documents.py` looks for the anchor, here and in all pages.
        assert (ROOT / target.partition("#")[0]).exists(), target


def test_the_numbers_are_those_that_were_measured():
    """The tables of Qwen3-0.6B, and the sentence at the top, from the committed results."""
    results = ROOT / "benchmarks" / "results"
    train = json.loads((results / "train-h200.json").read_text())["rows"]
    prefill, *steps = [
        json.loads((results / f"qwen-{name}-h200.json").read_text())["rows"]
        for name in ("prefill", "decode", "decode-8", "decode-32")
    ]
    peers = "genesis_fn", "torch.compile", "jax", "torch"
    step = [f"{train[p]['step_ms']:.1f} ms" for p in peers]
    memory = [f"{train[p]['peak_GiB']:.1f}" for p in peers]
    first = [f"{train[p]['first_call_s']:.1f}" for p in peers]
    both = [f"{a}, {b} GiB" for a, b in zip(step, memory)]

    def cells(rows, names, digits):
        return [f"{rows[n]['ms']:.{d}f} ms" if n in rows else "-" for n, d in zip(names, digits)]

    names = "torch-compiled", "jax", "torch-eager"
    decoded = [cells(rows, ("ours-graph", *names), (3, 1, 3, 1)) for rows in steps]
    prompts = cells(prefill, ("ours", *names), (1, 1, 1, 1))
    for row in (both, [f"{s} s" for s in first], *decoded, prompts):
        assert f"| {' | '.join(row)} |" in TEXT
    top = (
        f"takes {step[0]} (torch.compile {step[1]}, JAX {step[2]}) and {memory[0]} GiB "
        f"({memory[1]}, {memory[2]}), and its first call {first[0]} s ({first[1]}, {first[2]})"
    )
    assert top in " ".join(TEXT.split())


def test_folders_and_experts_are_as_measured():
    results = ROOT / "benchmarks" / "results"
    folder = json.loads((results / "qwen-folder-h200.json").read_text())["rows"]
    rate = [
        f"{folder[f'load {n}']['bytes'] / folder[f'load {n}']['s'] / 1e9:.1f}"
        for n in ("ours", "safetensors", "transformers")
    ]
    first = [f"{1e3 * folder[f'first {n}']['s']:.1f}" for n in ("ours", "transformers")]
    experts = json.loads((results / "moe-layer-h200.json").read_text())["rows"]
    forward, both = [
        [f"{experts[n][key]:.2f}" for n in ("genesis_fn", "torch._grouped_mm")]
        for key in ("forward_ms", "forward_backward_ms")
    ]
    for said in (
        f"loads at {rate[0]} GB/s from the page cache (safetensors {rate[1]}, "
        f"transformers {rate[2]})",
        f"first token after {first[0]} ms (transformers {first[1]};",
        f"takes {forward[0]} ms forward and {both[0]} with gradients",
        f"under torch.compile {forward[1]} and {both[1]}",
    ):
        assert said in " ".join(TEXT.split())


@pytest.mark.parametrize("model", ["qwen3-0_6b", "qwen3-1_7b", "qwen3-4b"])
def test_steps_on_several_gpus_are_as_measured(model: str):
    results = ROOT / "benchmarks" / "results"

    def cell(count: int, way: str) -> str:
        rows = json.loads((results / f"parallel-{model}-{count}x-h200.json").read_text())["rows"]
        if way not in rows:
            return "-"
        step = rows[way]["step_ms"]
        if "one GPU" in rows:
            return f"{step:.1f} ms ({rows['one GPU']['step_ms'] / step:.2f})"
        return f"{step:.1f} ms, {rows[way]['peak_GiB']:.1f} GiB"

    of = model.replace("qwen", "Qwen").replace("_", ".").replace("b", "B")
    pairs = [("fully sharded", "fsdp", "FSDP2", "torch FSDP2")]
    if model == "qwen3-0_6b":
        pairs.append(("data parallel", "data", "DistributedDataParallel", "torch DDP"))
    for how, ours, peer, theirs in pairs:
        lines = [
            f"| {of}, {how} | {cell(2, ours)} | {cell(4, ours)} |",
            f"| the same by {peer} and torch.compile | {cell(2, theirs)} | {cell(4, theirs)} |",
        ]
        assert "\n".join(lines) in TEXT


def test_losses_agree_as_it_says():
    found = json.loads((ROOT / "benchmarks/results/losses-h200.json").read_text())
    losses = found["losses"]["float32"]
    apart = [
        abs(a - b)
        for other in ("cpu", "torch")
        for a, b in zip(losses["gpu"], losses[other], strict=True)
    ]
    assert len(losses["gpu"]) == 200 and max(apart) < 4e-6 and "within 4e-6" in TEXT


def test_the_picture_shows_the_floors_of_the_contract():
    import importlib.util

    spec = importlib.util.spec_from_file_location("draw_floors", ROOT / "docs" / "draw_floors.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    drawn = (ROOT / "docs" / "floors.svg").read_text(encoding="utf-8")
    for row in module.floors():
        for name in row:
            assert f"<!-- {name} -->" in drawn, f"{name}: run docs/draw_floors.py again"
