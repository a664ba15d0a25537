"""Primitives that the host computes, and users' Triton kernels."""

from __future__ import annotations

from typing import Any

from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, lowers
from genesis_fn.kernels.plan import Argument, Launch, Memset, Plan, Scalar
from genesis_fn.transforms.custom.ffi import torch_call_p, triton_call_p

_OPTIONS = {"num_warps": 4, "num_stages": 3}


@lowers(torch_call_p)
def _on_host(call: Call) -> Lowered:
    return call.host()


@lowers(triton_call_p)
def _triton_call(call: Call) -> Lowered:
    """The user's kernel on pointers to operands and to results, which are zeros at first."""
    params = call.params
    kernel, named = params["kernel"], dict(params["constants"])
    blocks: Any = params["grid"](named) if callable(params["grid"]) else params["grid"]
    x, y, z = (*((blocks,) if isinstance(blocks, int) else blocks), 1, 1)[:3]
    options = {name: named.pop(name, value) for name, value in _OPTIONS.items()}
    fixed = dict(params["scalars"])
    reads = iter([call.read(i) for i in range(len(call.operands))])
    count = len(fixed) + len(call.operands)
    given: list[Argument] = [_number(fixed[i]) if i in fixed else next(reads) for i in range(count)]
    writes = [call.write(i) for i in range(len(call.outs))]
    free = [name for name in kernel.arg_names if name not in named]
    arguments = dict(zip(free, [*given, *writes]))
    launch = Launch(kernel, (x, y, z), arguments, named, **options)
    return Plan(len(call.operands), len(call.outs), (*[Memset(b.index) for b in writes], launch))


def _number(value: Any) -> Scalar:
    if type(value) is float:
        return Scalar(value, "fp32")
    return Scalar(int(value), "i32" if -(2**31) <= value < 2**31 else "i64")
