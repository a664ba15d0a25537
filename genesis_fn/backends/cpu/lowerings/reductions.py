"""CPU lowerings of reductions over axes, argmax and argmin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from genesis_fn.backends.cpu.lower import lowers
from genesis_fn.backends.cpu.storage import (
    NARROW_FLOATS,
    TORCH_DTYPE,
    full,
    in_order,
    ordered,
    summed,
    through_numpy,
)
from genesis_fn.core.dtypes import BOOL, DType, extreme_over_nothing
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.reductions import reduce
from genesis_fn.primitives.reductions.reduce_generic import reduce_prod_p


@lowers(reduce.reduce_sum_p, fresh=True)
def _sum(avals: Sequence[Any], *, axes: tuple[int, ...]) -> Callable[..., Any]:
    kind = avals[0].dtype
    stored = TORCH_DTYPE[kind]
    if kind in NARROW_FLOATS:
        return lambda x: x.float().sum(axes).to(stored)
    if kind == BOOL:
        return lambda x: x.any(axes[0]) if len(axes) == 1 else x.sum(axes) != 0
    return lambda x: torch.sum(x, axes, dtype=stored)


@lowers(reduce_prod_p, fresh=True)
def _prod(avals: Sequence[Any], *, axes: tuple[int, ...]) -> Callable[..., Any]:
    kind = avals[0].dtype
    if kind == BOOL:
        return lambda x: torch.all(x, axes)
    to, back = summed(kind)

    def run(x: torch.Tensor) -> torch.Tensor:
        x = to(x)
        for a in sorted(axes, reverse=True):
            x = torch.prod(x, a, dtype=x.dtype)
        return back(x)

    return run


def _extreme(prim: Primitive, function: Callable[..., Any], greatest: bool) -> None:
    @lowers(prim, fresh=True)
    def lower(avals: Sequence[Any], *, axes: tuple[int, ...]) -> Callable[..., Any]:
        x = avals[0]
        if x.size == 0:
            nothing = extreme_over_nothing(x.dtype, greatest)
            result = full(reduce.reduced(x, axes, "").shape, nothing, x.dtype)
            return lambda _: result.clone()
        return in_order(x.dtype, lambda v: function(v, axes))


_extreme(reduce.reduce_max_p, torch.amax, greatest=True)
_extreme(reduce.reduce_min_p, torch.amin, greatest=False)


def _logic(prim: Primitive, on_bool: Callable[..., Any], ufunc: np.ufunc) -> None:
    @lowers(prim)
    def lower(avals: Sequence[Any], *, axes: tuple[int, ...]) -> Callable[..., Any]:
        kind = avals[0].dtype
        if kind == BOOL:
            return lambda x: on_bool(x, axes)
        return through_numpy(lambda x: ufunc.reduce(x, axes), kind)


_logic(reduce.reduce_and_p, torch.all, np.bitwise_and)
_logic(reduce.reduce_or_p, torch.any, np.bitwise_or)
_logic(reduce.reduce_xor_p, lambda x, axes: x.sum(axes) % 2 != 0, np.bitwise_xor)


def _position(prim: Primitive, function: Callable[..., Any]) -> None:
    @lowers(prim, fresh=True)
    def lower(avals: Sequence[Any], *, axis: int, index_dtype: DType) -> Callable[..., Any]:
        stored = TORCH_DTYPE[index_dtype]
        result = reduce.reduced(avals[0], (axis,), "")
        if result.size == 0:
            return lambda v: torch.empty(result.shape, dtype=stored)
        to, _ = ordered(avals[0].dtype)
        return lambda v: function(to(v), axis).to(stored)


_position(reduce.argmax_p, torch.argmax)
_position(reduce.argmin_p, torch.argmin)
