"""Hand-written kernels compile for every supported capability, within its shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from genesis_fn.compiler.target import OF_ARCHITECTURE

FOLDER = Path(__file__).parent


# 100 differs most from 90, which the ceilings compile; `make test-slow` compiles the others. 80 is
# 89 without 8-bit floats and with more shared memory, 120 is 89 with the early starts of 100
# (docs/hardware.md). That plans ask for nothing that a GPU lacks is tested of all
# (tests/cuda/test_targets.py).
@pytest.mark.parametrize(
    "arch", [100, *[pytest.param(n, marks=pytest.mark.slow) for n in (80, 89, 120)]]
)
def test_kernels_compile_for(arch):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(FOLDER.parents[1]), environment.get("PYTHONPATH", "")]
    )
    command = [sys.executable, str(FOLDER / "compile_architectures.py"), str(arch)]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    used = json.loads(result.stdout.splitlines()[-1])
    assert ("float8" in used) == OF_ARCHITECTURE[arch].float8
    for name, launches in used.items():
        for launch in launches:
            assert launch["shared"] <= OF_ARCHITECTURE[arch].shared_memory, (name, launch)
