"""Runs a plan on host memory through Triton's interpreter, for tests without a GPU.

`TRITON_INTERPRET=1` must be in the environment before the kernels are imported: Triton reads it
when it decorates a function.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from triton.runtime.interpreter import InterpretedFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from genesis_fn.kernels.launch import Argument, Buf, Clear, Descriptor, Launch, Plan, Scalar

_TORCH = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
}
_ALIGNMENT = 256


def run_plan(plan: Plan, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Fills `outputs` with the plan's results from `inputs`.

    All are contiguous host tensors. Outputs keep their contents until a step writes them, so a plan
    that accumulates sees what the caller put there. Workspaces start as a pattern of garbage.
    """
    if len(inputs) != plan.inputs or len(outputs) != plan.outputs:
        raise ValueError(
            f"the plan takes {plan.inputs} inputs and {plan.outputs} outputs, "
            f"got {len(inputs)} and {len(outputs)}"
        )
    for tensor in (*inputs, *outputs):
        if not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise ValueError("the interpreter runs on contiguous host tensors")
    storage = [_aligned_copy(x) for x in (*inputs, *outputs)]
    storage += [_garbage(w.bytes) for w in plan.workspaces]
    for step in plan.steps:
        if isinstance(step, Clear):
            storage[step.buffer].zero_()
        else:
            _run(step, storage)
    for result, held in zip(outputs, storage[plan.inputs :], strict=False):
        if result.numel():
            result.view(-1).view(torch.uint8).copy_(held[: result.numel() * result.itemsize])


def _run(launch: Launch, storage: list[torch.Tensor]) -> None:
    if not isinstance(launch.kernel, InterpretedFunction):
        raise RuntimeError(
            f"{launch.kernel} was decorated for the compiler: set TRITON_INTERPRET=1 before "
            "importing the kernels"
        )
    if 0 in launch.grid:
        return
    arguments = {name: _argument(a, storage) for name, a in launch.arguments.items()}
    launch.kernel[launch.grid](**arguments, **launch.constants)


def _argument(argument: Argument, storage: list[torch.Tensor]) -> object:
    if isinstance(argument, Scalar):
        return argument.value
    if isinstance(argument, Buf):
        return _pointer(argument, storage)
    assert isinstance(argument, Descriptor)
    return TensorDescriptor(
        _pointer(argument.buffer, storage),
        list(argument.shape),
        list(argument.strides),
        list(argument.block),
    )


def _pointer(buffer: Buf, storage: list[torch.Tensor]) -> torch.Tensor:
    dtype = _TORCH[buffer.dtype]
    raw = storage[buffer.index][buffer.offset :]
    if raw.data_ptr() % dtype.itemsize:
        raise ValueError(f"offset {buffer.offset} of buffer {buffer.index} is not a {buffer.dtype}")
    return raw[: raw.numel() // dtype.itemsize * dtype.itemsize].view(dtype)


def _aligned_copy(tensor: torch.Tensor) -> torch.Tensor:
    held = _allocate(tensor.numel() * tensor.itemsize)
    if tensor.numel():
        held[: tensor.numel() * tensor.itemsize].copy_(tensor.reshape(-1).view(torch.uint8))
    return held


def _garbage(size: int) -> torch.Tensor:
    return _allocate(size).fill_(0xFF)


def _allocate(size: int) -> torch.Tensor:
    raw = torch.empty(size + 2 * _ALIGNMENT, dtype=torch.uint8)
    start = -raw.data_ptr() % _ALIGNMENT
    # A storage of its own: the interpreter copies whole storages in and out of a launch.
    return raw[start : start + max(size, 16)]
