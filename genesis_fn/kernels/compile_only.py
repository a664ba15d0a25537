"""Compiles a plan's kernels without a GPU and reports what they use: the ceilings tests hold."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language import NVMMASharedLayout

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language import TYPES
from genesis_fn.kernels.launch import Argument, Buf, Descriptor, Launch, Plan, Scalar


def compile_plan(plan: Plan, target: Target) -> list[dict[str, Any]]:
    """One record {name, registers, spills, shared, warps} for each launch of the plan, in order.

    `spills` is the local memory of one thread in bytes. Nothing touches a driver; the process must
    not have `TRITON_INTERPRET` set.
    """
    return [compile_launch(step, target) for step in plan.steps if isinstance(step, Launch)]


def compile_launch(launch: Launch, target: Target) -> dict[str, Any]:
    """The resources of one compiled launch: {name, registers, spills, shared, warps}."""
    compiled = compiled_kernel(launch, target)
    usage = _cubin_usage(compiled.asm["cubin"])
    return {
        "name": launch.kernel.__name__,
        "registers": usage["REG"],
        "spills": usage["STACK"] + usage["LOCAL"],
        "shared": compiled.metadata.shared,
        "warps": compiled.metadata.num_warps,
    }


def compiled_kernel(launch: Launch, target: Target) -> Any:
    """Triton's compiled kernel of a launch; its `asm` holds ttgir, ptx and cubin."""
    names = list(launch.kernel.arg_names)
    given = {*launch.arguments, *launch.constants}
    if given != set(names):
        raise ValueError(f"{launch.kernel.__name__} takes {names}, the launch gives {given}")
    signature, attributes = {}, {}
    for i, name in enumerate(names):
        if name in launch.constants:
            signature[name] = "constexpr"
            continue
        argument = launch.arguments[name]
        signature[name] = _signature(argument, launch.kernel.is_gluon())
        if _divisible(argument):
            attributes[(i,)] = [["tt.divisibility", 16]]
    constants = {(names.index(name),): value for name, value in launch.constants.items()}
    kind = GluonASTSource if launch.kernel.is_gluon() else ASTSource
    source = kind(launch.kernel, signature, constants, attributes)
    machine = GPUTarget("cuda", target.architecture, 32)
    return triton.compile(source, target=machine, options=launch.options)


def _signature(argument: Argument, gluon: bool) -> str:
    if isinstance(argument, Buf):
        return "*" + argument.dtype
    if isinstance(argument, Descriptor):
        tile = f"{argument.buffer.dtype}[{','.join(map(str, argument.block))}]"
        return f"tensordesc<{tile},{tile_layout(argument)!r}>" if gluon else f"tensordesc<{tile}>"
    return argument.dtype


def tile_layout(argument: Descriptor) -> NVMMASharedLayout:
    """The shared-memory layout of a descriptor's tile in a Gluon kernel: its default one."""
    dtype = TYPES[argument.buffer.dtype]
    return NVMMASharedLayout.get_default_for(list(argument.block), dtype)


def _divisible(argument: Argument) -> bool:
    if isinstance(argument, Buf):
        return argument.offset % 16 == 0
    return (
        isinstance(argument, Scalar)
        and isinstance(argument.value, int)
        and not (argument.value % 16)
    )


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
