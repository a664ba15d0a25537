"""Compiles a plan's kernels without a GPU and reports what they use: the ceilings tests hold."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton

from genesis_fn.backends.cuda.binaries.compile import request
from genesis_fn.backends.cuda.binaries.triton_compile import compiled_by_triton
from genesis_fn.compiler.target import Target
from genesis_fn.kernels.plan import Launch, Plan


def compile_plan(plan: Plan, target: Target) -> list[dict[str, Any]]:
    """One record {name, registers, spills, shared, warps} for each launch of the plan, in order.

    `spills` is the local memory of one thread in bytes. Nothing touches a driver; the process must
    not have `TRITON_INTERPRET` set.
    """
    return [compile_launch(step, target) for step in plan.steps if isinstance(step, Launch)]


def compile_launch(launch: Launch, target: Target) -> dict[str, Any]:
    """The resources of one compiled launch: {name, registers, spills, shared, warps}."""
    compiled = compiled_by_triton(request(launch, target))
    usage = _cubin_usage(compiled.asm["cubin"])
    return {
        "name": compiled.metadata.name,
        "registers": usage["REG"],
        "spills": usage["STACK"] + usage["LOCAL"],
        "shared": compiled.metadata.shared,
        "warps": compiled.metadata.num_warps,
    }


def _cubin_usage(cubin: bytes) -> dict[str, int]:
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(folder / "cuobjdump"), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    fields = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", text))
    if "REG" not in fields:
        raise RuntimeError(f"cuobjdump reported no usage: {text!r}")
    return {name: int(value) for name, value in fields.items()}
