"""The zoo of programs: every one runs on this library and on JAX, and gives the same."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

import genesis_fn as g
from benchmarks.zoo_programs import NAMED, PROGRAMS
from benchmarks.zoo_programs.program import Program, leaves, mapped, names, torch_names
from benchmarks.zoo_programs.report import chart, difference, geometric_mean, table

PACKAGES = {"genesis": g, "jax": jax}


class Wide:
    """NumPy's names with float32 for bfloat16: roundings are not what is compared."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, "float32" if name == "bfloat16" else name)


def results(program: Program, library: str, wide: bool) -> list[np.ndarray]:
    """What a program gives with small sizes; bfloat16 as float32."""
    xp = names(library)
    if wide:
        xp.np = Wide(xp.np)
    made = program.make(xp, program.size(True))
    operands = mapped(PACKAGES[library].device_put, program.operands(True))
    out = leaves((xp.jit(made) if program.jitted else made)(*operands))
    return [np.asarray(x, np.float32 if x.dtype == xp.np.bfloat16 else None) for x in out]


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_gives_what_jax_gives(name: str) -> None:
    program = PROGRAMS[name]
    assert {str(x.dtype) for x in leaves(program.operands(True))} <= {"float32", "int32"}
    wanted = results(program, "jax", True)
    assert wanted and all(np.isfinite(x).all() for x in wanted)
    assert any(np.ptp(x) > 0 if x.size > 1 else x.item() != 0 for x in wanted)
    ours = results(program, "genesis", True)
    assert [x.dtype for x in ours] == [x.dtype for x in wanted]
    assert difference(ours, wanted) < min(program.bound, 1e-3)
    rounded = results(program, "genesis", False)
    assert difference(rounded, wanted) < program.bound
    if program.torch is not None:
        twin = program.torch(torch_names(False), program.size(True))
        operands = mapped(lambda x: torch.from_numpy(x.copy()), program.operands(True))
        found = [x.float().numpy() for x in leaves(twin(*operands))]
        assert difference(found, wanted) < program.bound


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_sizes_of_the_table_fit_together(name: str) -> None:
    program, found = PROGRAMS[name], []
    operands = program.operands(False)
    for library, package in PACKAGES.items():
        shapes = mapped(lambda x: package.ShapeDtypeStruct(x.shape, x.dtype), operands)
        out = package.eval_shape(program.make(names(library), program.size(False)), *shapes)
        found.append([(tuple(x.shape), str(x.dtype)) for x in leaves(out)])
    assert found[0] == found[1]


def test_the_list_has_what_it_must() -> None:
    assert len(PROGRAMS) >= 40 and tuple(PROGRAMS)[: len(NAMED)] == NAMED
    assert len({p.field for p in PROGRAMS.values()}) >= 12
    assert sum(p.torch is not None for p in PROGRAMS.values()) >= 12
    assert sum(not p.jitted for p in PROGRAMS.values()) >= 3
    sizes = {name: vars(PROGRAMS[name].size(False)) for name in NAMED}
    assert sizes["gpt2"] == sizes["gpt2-written-out"]
    for name, said in {
        "gpt2": {"batch": 8, "length": 1024, "layers": 12, "width": 768},
        "vit": {"batch": 64, "patch": 16, "width": 768},
        "resnet50": {"batch": 64, "stages": (3, 4, 6, 3)},
        "lstm": {"steps": 512},
        "unet-block": {"batch": 16, "image": 64, "width": 256},
        "pairwise-forces": {"count": 8192},
        "rollout": {"worlds": 4096, "steps": 200},
        "rollout-gradient": {"worlds": 4096, "steps": 200},
        "relaxation": {"side": 4096, "steps": 100},
        "linear-recurrence": {"batch": 8, "steps": 4096, "width": 512},
    }.items():
        assert sizes[name].items() >= said.items(), name


def test_programs_do_not_know_who_runs_them() -> None:
    """Nor do they import a library: the names that they use are handed to them."""
    folder = Path(__file__).parents[2] / "benchmarks" / "zoo_programs"
    modules = {sys.modules[p.make.__module__] for p in PROGRAMS.values()}
    paths = [Path(str(m.__file__)) for m in modules]
    assert len(paths) >= 5 and all(p.parent == folder for p in paths)
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert not any(w in text for w in ("genesis", "import jax", "import torch")), path


def test_values_are_compared_by_the_largest_number() -> None:
    x = [np.array([1.0, -4.0], np.float32), np.array([1e-3], np.float32)]
    y = [np.array([1.0, -4.2], np.float32), np.array([2e-3], np.float32)]
    assert difference(x, x) == 0.0
    # The second is small beside the first: held to a hundredth of the largest number.
    assert difference(y, x) == pytest.approx(0.05, rel=1e-5)
    assert difference(x[:1], x) == difference([x[0] * np.nan, x[1]], x) == float("inf")
    assert geometric_mean([2.0, None, 0.5]) == (1.0, 2)


def side(ms: float, first: float, **more: Any) -> dict[str, Any]:
    return {"ms": ms, "first_s": first, "peak_bytes": 3 << 29, "agrees": True, "off": 1e-6} | more


ROWS = {
    "gpt2": {
        "field": "transformers",
        "sides": {
            "genesis": side(50.0, 8.0),
            "genesis-unordered": side(40.0, 8.5),
            "jax": side(100.0, 30.0),
            "torch": side(60.0, 55.0, peak_bytes=None),
        },
    },
    "lstm": {
        "field": "recurrent networks",
        "sides": {
            "genesis": side(8.0, 2.0, agrees=False, off=0.25),
            "jax": side(4.0, 3.0),
            "torch": {"failed": "RuntimeError: no such\nthing"},
        },
    },
}  # fmt: skip


def test_the_table() -> None:
    lines = table(ROWS).splitlines()
    head = "| gpt2 | transformers | 50.000 | 100.000 | 60.000 | 2.00 | 1.20 | 8.00, 30.00, 55.00 |"
    assert lines[2] == f"{head} 1.50, 1.50, - | agree |"
    assert lines[3].startswith("| gpt2, deterministic=False | transformers | 40.000 | 100.000 |")
    assert lines[4] == (
        "| lstm | recurrent networks | 8.000 | 4.000 | failed | 0.50 | 0.50 | 2.00, 3.00, - |"
        " 1.50, 1.50, - | ours APART by 2e-01 |"
    )
    assert {line.count("|") for line in lines[:5]} == {11}
    assert "* geometric mean of JAX / ours: 1.00 over 2 programs, 1 of them at 1 or above" in lines
    assert "* lstm, torch: RuntimeError: no such thing" in lines
    assert table({}).startswith("| program |")


def test_the_chart_is_a_picture() -> None:
    picture = xml.etree.ElementTree.fromstring(chart(ROWS, "A & B"))
    said = [x.text for x in picture.iter() if x.tag.endswith("text")]
    assert {"gpt2", "lstm", "2.00", "0.50", "A & B"} <= set(said)
    assert chart({}, "nothing").startswith("<svg")


@pytest.mark.slow
def test_the_runner_measures_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "zoo.py"
    command = [sys.executable, str(script), "--tiny", "--out", str(tmp_path), "--sides"]
    command += ["genesis,jax", "--only", "factorisation", "orbits"]
    first = subprocess.run(command, capture_output=True, text=True)
    assert first.returncode == 0, first.stdout + first.stderr
    rows = json.loads((tmp_path / "zoo-tiny.json").read_text())["rows"]
    assert set(rows["factorisation"]["sides"]) == {"genesis", "genesis-unordered", "jax"}
    assert all(s["ms"] > 0 for row in rows.values() for s in row["sides"].values())
    assert (tmp_path / "zoo-tiny.svg").exists() and "| orbits |" in first.stdout
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0 and "genesis: " not in again.stdout
    short = subprocess.run(
        [*command, "--again", "--limit", "0.001"], capture_output=True, text=True
    )
    assert short.returncode == 1 and "took longer" in (tmp_path / "zoo-tiny.md").read_text()
