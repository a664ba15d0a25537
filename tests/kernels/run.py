"""Runs plans where the tests run: in Triton's interpreter, in a model of a GPU, or on a GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

if os.environ.setdefault("TRITON_INTERPRET", "1") == "1":
    os.environ["GENESIS_CUDA_DRIVER"] = "interpret"

import torch

from genesis_fn.backends.cuda.run.runtime import device_runtime
from genesis_fn.compiler.target import H200
from genesis_fn.kernels.language.language import INTERPRETED
from genesis_fn.kernels.plan import Launch, LibraryCall, Plan
from tests.support import compiled

_GARBAGE = 0xFF
TARGET = replace(H200, interpreted=INTERPRETED, libraries=True)
"""What the tests plan for."""


def allocate(size: int) -> Any:
    """A block of device memory with an `address`; tools that watch accesses put their own here."""
    return device_runtime(0).alloc(max(size, 16))


def run_plan(plan: Plan, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Fills `outputs`, contiguous host tensors, with the plan's results from `inputs`.

    Outputs keep their contents until a step writes them; workspaces start as garbage.
    """
    if compiled.CHOSEN:
        bytes_ = [x.reshape(-1).view(torch.uint8).numpy() for x in (*inputs, *outputs)]
        compiled.run_plan(plan, bytes_)
        return
    place = device_runtime(0)
    driver = place.driver
    sizes = [x.numel() * x.itemsize for x in (*inputs, *outputs)]
    blocks = [allocate(size) for size in sizes]
    for block, size, tensor in zip(blocks, sizes, (*inputs, *outputs), strict=True):
        if size:
            place.staging.to_device(block.address, tensor.data_ptr(), size)
    for workspace in plan.workspaces:
        sizes.append(workspace.bytes)
        blocks.append(allocate(workspace.bytes))
        driver.fill(blocks[-1].address, _GARBAGE, workspace.bytes, driver.compute)
    launches = [step for step in plan.steps if isinstance(step, Launch) and 0 not in step.grid]
    scratch: list[Any] = []
    prepared = dict(zip(map(id, launches), driver.prepare(launches), strict=True))
    for step in plan.steps:
        if isinstance(step, LibraryCall):
            places = [blocks[b.index].address + b.offset for b in step.buffers]
            driver.routine(step.routine).run(places, driver.compute)
        elif not isinstance(step, Launch):
            driver.fill(blocks[step.buffer].address, 0, sizes[step.buffer], driver.compute)
        elif launch := prepared.get(id(step)):
            scratch.append(allocate(launch.scratch_bytes) if launch.scratch_bytes else None)
            launch.bind([b.address for b in blocks], scratch[-1].address if scratch[-1] else 0)
            launch.launch(driver.compute)
    driver.synchronize()
    after = slice(plan.inputs, plan.inputs + plan.outputs)
    for tensor, block, size in zip(outputs, blocks[after], sizes[after], strict=True):
        if size:
            place.read(tensor.data_ptr(), block.address, size)
