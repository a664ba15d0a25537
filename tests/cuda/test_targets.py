"""Programs planned, compiled and run for GPUs of five architectures; values against the CPU's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import programs
import pytest
from targets import PROGRAMS, QUICK, launches, operands

from genesis_fn.backends.cuda import driver
from genesis_fn.backends.cuda.compile import is_gluon
from genesis_fn.backends.cuda.driver_interpret import InterpretDriver
from genesis_fn.compiler.target import OF_ARCHITECTURE
from genesis_fn.core.device import Device, cuda
from genesis_fn.kernels.launch import Buf, Descriptor

FOLDER = Path(__file__).parent

pytestmark = pytest.mark.interpreted


@pytest.fixture(params=OF_ARCHITECTURE)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    """An interpreting device whose target is a GPU of one architecture, which is its number."""
    index = request.param
    monkeypatch.setenv("GENESIS_INTERPRET_DEVICES", str(max(OF_ARCHITECTURE) + 1))
    if index not in driver.opened:
        driver.opened[index] = InterpretDriver(index, target=OF_ARCHITECTURE[index])
    return cuda(index)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PROGRAMS]
)
def test_programs_run(name: str, device: Device) -> None:
    f, _, tolerance = PROGRAMS[name]
    programs.compare(f, *operands(name), tolerance=tolerance, place=device)


@pytest.mark.parametrize("architecture", OF_ARCHITECTURE)
@pytest.mark.parametrize("name", PROGRAMS)
def test_plans_use_what_the_target_has(name: str, architecture: int) -> None:
    target = OF_ARCHITECTURE[architecture]
    for launch in launches(name, target):
        arguments = launch.arguments.values()
        if not target.descriptors:
            assert not any(isinstance(a, Descriptor) for a in arguments)
        if not target.warp_groups:
            assert not is_gluon(launch.kernel)
        if not target.programmatic_launch:
            assert not launch.programmatic
        if not target.float8:
            assert not any(isinstance(a, Buf) and a.dtype.startswith("fp8") for a in arguments)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", OF_ARCHITECTURE)
def test_programs_compile(architecture: int) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(FOLDER.parents[1]), environment.get("PYTHONPATH", "")]
    )
    result = subprocess.run(
        [sys.executable, str(FOLDER / "compile_targets.py"), str(architecture)],
        env=environment, capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    records = json.loads(result.stdout.splitlines()[-1])
    assert {r["case"] for r in records} == set(PROGRAMS)
    for record in records:
        assert record["shared"] <= OF_ARCHITECTURE[architecture].shared_memory, record
