"""CPU lowerings of user code: host callbacks, assertions, torch functions, and Triton kernels
(through Triton's interpreter)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from genesis_fn.backends.cpu.lower import lowers
from genesis_fn.backends.cpu.storage import TORCH_DTYPE, host_tensor, host_view
from genesis_fn.core import errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.convert import of_torch
from genesis_fn.core.primitive import running
from genesis_fn.transforms.custom.callback import (
    HostFunction,
    debug_callback_p,
    io_callback_p,
    pure_callback_p,
)
from genesis_fn.transforms.custom.ffi import torch_call_p, torch_type, triton_call_p
from genesis_fn.transforms.debugging.assertions import assert_p, failure
from genesis_fn.transforms.staging.api_util import name_of


def _host(x: Any, kind: Any) -> np.ndarray:
    """A copy of an operand: the callback may keep it, and the program may reuse its memory."""
    return np.array(host_view(x, kind.dtype)) if type(kind) is Aval else np.asarray(x)


@lowers(pure_callback_p, io_callback_p, debug_callback_p)
def _callback(
    avals: Sequence[Any], *, function: HostFunction, out_avals: Sequence[Aval] = (), **_: Any
) -> Callable[..., Any]:
    kinds = list(avals)

    def run(*xs: Any) -> list[torch.Tensor]:
        with running(None):
            outs = function.run([_host(x, k) for x, k in zip(xs, kinds, strict=True)], out_avals)
        return [host_tensor(np.array(y), a.dtype) for y, a in zip(outs, out_avals, strict=True)]

    return run


@lowers(assert_p)
def _assert(
    avals: Sequence[Any], *, function: HostFunction, line: str, lead: int
) -> Callable[..., Any]:
    kinds = list(avals)

    def run(pred: torch.Tensor, *xs: Any) -> list[torch.Tensor]:
        if not bool(pred.all()):
            values = [_host(x, k) for x, k in zip((pred, *xs), kinds, strict=True)]
            found = failure(values, function, line, lead)
            assert found is not None
            raise found
        return []

    return run


@lowers(torch_call_p)
def _torch_call(
    avals: Sequence[Aval], *, f: Callable[..., Any], out_avals: tuple[Aval, ...]
) -> Callable[..., Any]:
    def run(*xs: torch.Tensor) -> list[torch.Tensor]:
        given = [x.view(torch_type(a.dtype)) for x, a in zip(xs, avals)]
        versions = [x._version for x in given]
        with torch.no_grad():
            outs = f(*given)
        for i, (x, v) in enumerate(zip(given, versions)):
            if x._version != v:
                raise errors.GenesisError(
                    f"torch_call: {name_of(f)} changed its argument {i} in place; arrays are "
                    "immutable, clone it first"
                )
        memory = {x.untyped_storage().data_ptr() for x in given}
        result = []
        for o, a in zip(outs, out_avals, strict=True):
            if tuple(o.shape) != a.shape or of_torch(o.dtype) != a.dtype:
                raise errors.ShapeError(
                    f"torch_call: {name_of(f)} returned {o.dtype} {tuple(o.shape)}, expected {a}"
                )
            o = o.detach()
            if o.untyped_storage().data_ptr() in memory:
                o = o.clone()
            result.append(o.view(TORCH_DTYPE[a.dtype]))
        return result

    return run


@lowers(triton_call_p)
def _triton_call(
    avals: Sequence[Any],
    *,
    kernel: Any,
    grid: int | Sequence[int] | Callable[[dict[str, Any]], int | Sequence[int]],
    out_avals: tuple[Aval, ...],
    constants: tuple[Any, ...],
    scalars: tuple[Any, ...],
    kinds: tuple[Any, ...],
) -> Callable[..., Any]:
    if type(kernel).__name__ != "InterpretedFunction":
        raise errors.BackendError(
            f"triton_call: {name_of(kernel)} on a CPU needs Triton's interpreter: set the "
            "environment variable TRITON_INTERPRET=1 before the kernel is defined"
        )
    named = dict(constants)
    programs = grid(named) if callable(grid) else grid
    blocks = (programs,) if isinstance(programs, int) else tuple(programs)

    def run(*xs: torch.Tensor) -> list[torch.Tensor]:
        outs = [torch.zeros(a.shape, dtype=torch_type(a.dtype)) for a in out_avals]
        given = [x.contiguous().view(torch_type(a.dtype)) for x, a in zip(xs, avals)]
        fixed, rest = dict(scalars), iter(given)
        operands = [fixed[i] if i in fixed else next(rest) for i in range(len(fixed) + len(given))]
        kernel[blocks](*operands, *outs, **named)
        return [o.view(TORCH_DTYPE[a.dtype]) for o, a in zip(outs, out_avals)]

    return run
