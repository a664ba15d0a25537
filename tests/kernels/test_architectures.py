"""Hand-written kernels compile for every supported capability, within its shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SHARED_LIMIT = {80: 166912, 89: 101376, 100: 232448, 120: 101376}


@pytest.mark.parametrize("arch", list(SHARED_LIMIT))
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
    assert ("float8" in used) == (arch >= 89)
    for name, launches in used.items():
        for launch in launches:
            assert launch["shared"] <= SHARED_LIMIT[arch], (name, launch)
