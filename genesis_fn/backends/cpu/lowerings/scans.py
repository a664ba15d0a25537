"""CPU lowerings of cumulative reductions and the linear recurrence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from genesis_fn.backends.cpu.lower import lowers
from genesis_fn.backends.cpu.storage import ordered, summed
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.reductions import cumulative


def _running(prim: Primitive, function: Callable[..., Any], storage: Callable[..., Any]) -> None:
    """Register torch's `function(x, axis)`; `storage(dtype)` is (to, from) what it computes in."""

    @lowers(prim, fresh=True)
    def lower(avals: Sequence[Any], *, axis: int, reverse: bool) -> Callable[..., Any]:
        if avals[0].size == 0:
            return lambda x: x.clone()
        to, back = storage(avals[0].dtype)
        if reverse:
            return lambda x: back(function(to(x).flip(axis), axis).flip(axis))
        return lambda x: back(function(to(x), axis))


_running(cumulative.cumsum_p, lambda x, axis: torch.cumsum(x, axis, dtype=x.dtype), summed)
_running(cumulative.cumprod_p, lambda x, axis: torch.cumprod(x, axis, dtype=x.dtype), summed)
_running(cumulative.cumlogsumexp_p, torch.logcumsumexp, summed)
_running(cumulative.cummax_p, lambda x, axis: torch.cummax(x, axis).values, ordered)
_running(cumulative.cummin_p, lambda x, axis: torch.cummin(x, axis).values, ordered)


@lowers(cumulative.linear_recurrence_p)
def _recurrence(avals: Sequence[Any], *, axis: int, reverse: bool) -> Callable[..., Any]:
    n = avals[0].shape[axis]
    to, back = summed(avals[0].dtype)
    lanes = avals[0].size // max(n, 1)
    steps = range(n - 1, -1, -1) if reverse else range(n)

    def few_lanes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        rows = []
        for coefficients, inputs in zip(a.reshape(n, -1).T.tolist(), b.reshape(n, -1).T.tolist()):
            h, row = 0.0, [0.0] * n
            for k in steps:
                h = coefficients[k] * h + inputs[k]
                row[k] = h
            rows.append(row)
        return torch.tensor(rows, dtype=b.dtype).T.reshape(b.shape)

    def many_lanes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.empty(b.shape, dtype=b.dtype)
        h = None
        for k in steps:
            torch.addcmul(b[k], a[k], h, out=out[k]) if h is not None else out[k].copy_(b[k])
            h = out[k]
        return out

    # Python numbers cost about 0.1 us a step and lane, a tensor operation 3 us a step.
    direct = few_lanes if lanes < 16 else many_lanes

    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if b.numel() == 0:
            return torch.empty_like(b)
        out = direct(to(a).movedim(axis, 0), to(b).movedim(axis, 0))
        return back(out.movedim(0, axis))

    return run
