"""Every kernel compiles for sm_90 within its recorded registers, spills and shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

from genesis_fn.compiler.target import H200

FOLDER = Path(__file__).parent
FAMILIES = sorted(p.stem.removeprefix("cases_") for p in FOLDER.glob("cases_*.py"))
RECORDED_WITH = "3.9"  # the release of Triton that the ceilings are of


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_stay_under_their_ceilings(family):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(FOLDER.parents[1]), environment.get("PYTHONPATH", "")]
    )
    command = [sys.executable, "-m", "tests.kernels.compile_cases", family]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    used = json.loads(result.stdout.splitlines()[-1])
    recorded = json.loads((FOLDER / "ceilings.json").read_text())
    held = {name: v for name, v in recorded.items() if name.startswith(f"{family}: ")}
    assert set(used) == set(held), "record the new cases: compile_cases.py FAMILY --record"
    recorded_release = triton.__version__.startswith(RECORDED_WITH)
    for name, now in used.items():
        assert now["shared"] <= H200.shared_memory, (name, now)
        if not recorded_release:
            continue  # other releases allocate registers otherwise
        assert now["shared"] <= held[name]["shared"], (name, now)
        assert now["registers"] <= held[name]["registers"], (name, now)
        assert now["spills"] <= held[name]["spills"], (name, now)
