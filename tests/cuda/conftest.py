"""Triton chooses between compiler and interpreter when it is imported, so this folder runs in a
process of its own on the CPU; there, everything runs on the interpreting driver. With
`GENESIS_DEVICE=cuda` (see `tests/conftest.py`) it runs with the rest.

Arrays are made on the CPU unless a test asks for a GPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if os.environ.get("GENESIS_CUDA_DRIVER") != "cuda":
    os.environ["GENESIS_CUDA_DRIVER"] = "interpret"
    if os.environ.get("GENESIS_KERNELS") != "compiled":
        os.environ["TRITON_INTERPRET"] = "1"
    os.environ.setdefault("GENESIS_INTERPRET_DEVICES", "2")

sys.path.insert(0, str(Path(__file__).parent))

import pytest

from genesis_fn.backends.cuda.codegen import launches
from genesis_fn.compiler.loop_ir.kernel import KernelIR
from genesis_fn.compiler.row_loops import row_loops
from genesis_fn.compiler.row_loops.nest import RowNest
from genesis_fn.core.device import cpu, using_device
from genesis_fn.core.jaxpr import Eqn


@pytest.fixture(autouse=True)
def arrays_on_the_cpu() -> Iterator[None]:
    """The default device of these tests."""
    with using_device(cpu()):
        yield


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[KernelIR]:
    """The kernels that are generated."""
    found: list[KernelIR] = []
    before = launches.generate

    def generate(body: KernelIR, *args: Any) -> launches.GeneratedKernels:
        found.append(body)
        return before(body, *args)

    monkeypatch.setattr(launches, "generate", generate)
    return found


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> list[RowNest]:
    """The nests that become kernels of loops of rows."""
    found: list[RowNest] = []
    once = row_loops._row_loop

    def noted(*args: Any) -> list[Eqn]:
        eqns = once(*args)
        found.extend(e.params["nest"] for e in eqns if e.prim is row_loops.row_loop_p)
        return eqns

    monkeypatch.setattr(row_loops, "_row_loop", noted)
    return found
