"""CPU lowerings of higher-order primitives: calls, loops and branches over compiled programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from genesis_fn.backends.cpu.compile import tensor_function, tensor_program
from genesis_fn.backends.cpu.lower import computes, fused_function, lowers, with_params
from genesis_fn.backends.cpu.storage import TORCH_DTYPE
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.transforms.autodiff.checkpointing import checkpoint_p, name_p
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p, stacked
from genesis_fn.transforms.custom.custom_call import custom_call_p
from genesis_fn.transforms.custom.fused_functions import Fused, fused_p
from genesis_fn.transforms.staging.call import jit_p, region_p, wide_p


@lowers(jit_p, region_p, wide_p, checkpoint_p, custom_call_p)
def _call(avals: Sequence[Any], *, jaxpr: Jaxpr, **_: Any) -> Callable[..., Any]:
    return tensor_function(jaxpr)


@computes(name_p)
def _name(x: torch.Tensor, *, name: str) -> torch.Tensor:
    return x


@lowers(fused_p)
def _fused(
    avals: Sequence[Any], *, op: Fused[..., Any], static: tuple[Any, ...], jaxpr: Jaxpr
) -> Callable[..., Any]:
    found = fused_function(op, avals, static)
    return tensor_function(jaxpr) if found is None else with_params(found.compute, dict(static))


def _steps(body: Jaxpr, before: int, carry: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(the body for the first iteration, for further ones) of a loop whose carry follows `before`
    other operands.

    From the second iteration on, a carry that the body allocated itself is dead after the body has
    read it, so further iterations may overwrite it. That of the first one is the caller's.
    """
    first = tensor_program(body)
    owned = [i < carry and first.owned[i] for i in range(len(body.outs))]
    if not any(owned):
        return first.run, first.run
    rest = len(body.invars) - before - carry
    donated = (*[False] * before, *owned[:carry], *[False] * rest)
    further = tensor_program(body, donated)
    # With donation, results may alias that did not without: every owned carry must stay so.
    if any(mine and not still for mine, still in zip(owned, further.owned)):
        return first.run, first.run
    return first.run, further.run


@lowers(scan_p)
def _scan(
    avals: Sequence[Any],
    *,
    jaxpr: Jaxpr,
    consts: int,
    carry: int,
    length: int,
    reverse: bool,
    **_: Any,
) -> Callable[..., Any]:
    first, further = _steps(jaxpr, consts, carry)
    ys = [(stacked(a, length).shape, TORCH_DTYPE[a.dtype]) for a in jaxpr.out_avals[carry:]]
    order = range(length - 1, -1, -1) if reverse else range(length)
    start = consts + carry

    def run(*xs: torch.Tensor) -> list[torch.Tensor]:
        fixed, state, rows = xs[:consts], xs[consts:start], [x.unbind(0) for x in xs[start:]]
        outs = [torch.empty(shape, dtype=dtype) for shape, dtype in ys]
        stacks = [out.unbind(0) for out in outs]
        step = first
        for i in order:
            new = step(*fixed, *state, *[row[i] for row in rows])
            step = further
            state = new[:carry]
            for stack, y in zip(stacks, new[carry:]):
                stack[i].copy_(y)
        return [*state, *outs]

    return run


@lowers(while_p)
def _while(
    avals: Sequence[Any], *, cond: Jaxpr, body: Jaxpr, cond_consts: int, body_consts: int
) -> Callable[..., Any]:
    test = tensor_function(cond)
    first, further = _steps(body, body_consts, len(body.outs))
    start = cond_consts + body_consts

    def run(*xs: torch.Tensor) -> list[torch.Tensor]:
        for_test, for_body, state = xs[:cond_consts], xs[cond_consts:start], list(xs[start:])
        step = first
        while test(*for_test, *state)[0]:
            state = step(*for_body, *state)
            step = further
        return state

    return run


@lowers(cond_p)
def _cond(avals: Sequence[Any], *, branches: tuple[Jaxpr, ...]) -> Callable[..., Any]:
    functions = [tensor_function(b) for b in branches]
    last = len(functions) - 1

    def run(index: torch.Tensor, *xs: torch.Tensor) -> list[torch.Tensor]:
        return functions[min(max(int(index), 0), last)](*xs)

    return run
