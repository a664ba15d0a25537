"""Programs planned, compiled and run for GPUs of five architectures; values against the CPU's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import programs
import pytest
from targets import F8E4, F32, PROGRAMS, QUICK, launches, operands, values
from test_every_primitive import accepted, cases

import genesis_fn as g
from genesis_fn.backends.cuda.binaries.triton_compile import is_gluon
from genesis_fn.backends.cuda.driver import driver
from genesis_fn.backends.cuda.driver.interpret import InterpretDriver
from genesis_fn.backends.cuda.lowerings import plan_for
from genesis_fn.compiler.target import OF_ARCHITECTURE, Target
from genesis_fn.core.aval import aval
from genesis_fn.core.device import Device, cpu, cuda
from genesis_fn.core.primitive import PRIMITIVES
from genesis_fn.kernels.plan import BufferArg, Descriptor, Launch, Plan

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
        assert_only_what_it_has(launch, target)


@pytest.mark.parametrize("architecture", OF_ARCHITECTURE)
def test_every_primitive_is_planned(architecture: int) -> None:
    target = OF_ARCHITECTURE[architecture]
    for name, given in cases().items():
        prim = PRIMITIVES[name]
        for args, params in given:
            if not accepted(prim, args, params):
                continue
            avals = [aval(x.shape, x.dtype) if hasattr(x, "shape") else x for x in args]
            plan = plan_for(prim, avals, params, target)
            for step in plan.steps if type(plan) is Plan else ():
                if isinstance(step, Launch):
                    assert_only_what_it_has(step, target)


def assert_only_what_it_has(launch: Launch, target: Target) -> None:
    """Asserts that a launch uses no feature that the GPU lacks."""
    arguments = launch.arguments.values()
    if not target.descriptors:
        assert not any(isinstance(a, Descriptor) for a in arguments)
    if not target.warp_groups:
        assert not is_gluon(launch.kernel)
    if not target.programmatic_launch:
        assert not launch.programmatic
    if not target.float8:
        assert not any(isinstance(a, BufferArg) and a.dtype.startswith("fp8") for a in arguments)


def test_operations_alone(device: Device) -> None:
    """Eager operations, on 8-bit floats above all: the host computes what a GPU lacks."""
    x = values((40,), F8E4)
    here, there = g.device_put(x, cpu()), g.device_put(x, device)
    for f in (lambda v: v + v, lambda v: v.astype(F32) * 3, lambda v: v[3:], lambda v: v.sum()):
        want, got = f(here), f(there)
        assert got.device == device
        np.testing.assert_array_equal(np.asarray(got, F32), np.asarray(want, F32))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", OF_ARCHITECTURE)
def test_programs_compile(architecture: int) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(FOLDER.parents[1]), environment.get("PYTHONPATH", "")]
    )
    result = subprocess.run(
        [sys.executable, str(FOLDER / "compile_targets.py"), str(architecture)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    records = json.loads(result.stdout.splitlines()[-1])
    assert {r["case"] for r in records} == set(PROGRAMS)
    for record in records:
        assert record["shared"] <= OF_ARCHITECTURE[architecture].shared_memory, record
