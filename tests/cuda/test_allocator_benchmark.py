"""The allocator's benchmark, rehearsed: its scenarios run, and an interrupted run goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import programs
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_scenarios_run_and_rows_are_kept(monkeypatch, tmp_path) -> None:
    if "interpreter" not in programs.device_runtime(0).driver.info.name:
        pytest.skip("the rehearsal is for the interpreting driver; a GPU runs the benchmark")
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import allocator

    run = ["allocator.py", "--tiny", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*run, "--only", "S1,S5"])
    assert allocator.main() == 0
    path = tmp_path / "allocator-tiny.json"
    first = json.loads(path.read_text())
    assert list(first["rows"]) == ["S1", "S5"] and first["commit"] and first["versions"]["torch"]
    monkeypatch.setattr(sys, "argv", run)
    assert allocator.main() == 0
    rows = json.loads(path.read_text())["rows"]
    assert {n: rows[n] for n in ("S1", "S5")} == first["rows"]  # not measured again
    assert sorted(rows) == list(allocator.SCENARIOS)
    for row in rows.values():
        found = row["genesis_fn"]
        assert found["ns"] > 0 and found["reserved_over_live"] >= 1 and found["driver_calls"] > 0
    assert rows["S5"]["genesis_fn"]["reserved_over_live"] < 1.2  # held memory leaves little room
    table = path.with_suffix(".md").read_text()
    assert table.count("| S") == 7 and "| 4.83 |" in table
    assert path.with_suffix(".png").stat().st_size > 1000
