"""Programs planned, compiled and run for GPUs of five architectures; values against the CPU's."""

from __future__ import annotations

import programs
import pytest
from targets import PROGRAMS, QUICK, operands

from genesis_fn.backends.cuda import driver
from genesis_fn.backends.cuda.driver_interpret import InterpretDriver
from genesis_fn.compiler.target import OF_ARCHITECTURE
from genesis_fn.core.device import Device, cuda

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
