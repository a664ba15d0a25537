"""A pytest plugin that runs the kernel tests on a GPU instead of in Triton's interpreter.

    PYTHONPATH=. python -m pytest -p benchmarks.kernels.on_gpu tests/kernels

Plans given to `genesis_fn.kernels.interpret.run_plan` run through Triton's launcher, with outputs
and workspaces that start as garbage where the interpreter's do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

os.environ["TRITON_INTERPRET"] = "0"

import torch

import genesis_fn.kernels.interpret as interpret
from benchmarks.kernels.torch_launch import bound_plan
from genesis_fn.kernels.launch import Plan


def run_plan(plan: Plan, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Fills `outputs`, host tensors, with the plan's results on the GPU."""
    held = [_on_gpu(x) for x in (*inputs, *outputs)]
    bound_plan(plan, held)()
    torch.cuda.synchronize()
    for result, device in zip(outputs, held[plan.inputs :], strict=True):
        if result.numel():
            size = result.numel() * result.itemsize
            result.view(-1).view(torch.uint8).copy_(device[:size])


def _on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    size = tensor.numel() * tensor.itemsize
    held = torch.empty(max(size, 16), dtype=torch.uint8, device="cuda")
    if size:
        held[:size].copy_(tensor.reshape(-1).view(torch.uint8))
    return held


interpret.run_plan = run_plan
