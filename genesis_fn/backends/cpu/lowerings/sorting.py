"""CPU lowerings of sort and top_k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from genesis_fn.backends.cpu.lower import lowers
from genesis_fn.backends.cpu.storage import NARROW_FLOATS, moved, ordered
from genesis_fn.core import dtypes
from genesis_fn.primitives.sort import sort_p, top_k_p

# Below this length a full stable sort is as fast as a selection.
_SHORT = 512


@lowers(sort_p)
def _sort(
    avals: Sequence[Any], *, dimension: int, is_stable: bool, num_keys: int
) -> Callable[..., list[Any]]:
    kind = avals[0].dtype
    if len(avals) == 1 and kind not in NARROW_FLOATS and not dtypes.is_complex(kind):
        to, back = ordered(kind)
        return lambda x: [back(torch.sort(to(x), dim=dimension, stable=is_stable).values)]
    taken = [moved(a.dtype, lambda x, order: x.gather(dimension, order)) for a in avals]

    def run(*xs: torch.Tensor) -> list[torch.Tensor]:
        keys: list[torch.Tensor] = []
        for x, a in zip(xs[:num_keys], avals):
            if dtypes.is_complex(a.dtype):  # by real part, then imaginary part
                keys.extend((x.real, x.imag))
            else:
                keys.append(ordered(a.dtype)[0](x))
        # Stable sorts from the least key up.
        order = torch.sort(keys[-1], dim=dimension, stable=True).indices
        for key in reversed(keys[:-1]):
            step = torch.sort(key.gather(dimension, order), dim=dimension, stable=True).indices
            order = order.gather(dimension, step)
        return [take(x, order) for take, x in zip(taken, xs)]

    return run


@lowers(top_k_p)
def _top_k(avals: Sequence[Any], *, k: int, axis: int) -> Callable[..., list[Any]]:
    kind, n = avals[0].dtype, avals[0].shape[axis]
    comparable, _ = ordered(kind)

    def by_sorting(x: torch.Tensor) -> torch.Tensor:
        return torch.sort(x, dim=axis, descending=True, stable=True).indices.narrow(axis, 0, k)

    def by_selection(x: torch.Tensor) -> torch.Tensor:
        # torch.topk does not say which of equal elements it takes. If the k-th value has no equal
        # outside, the set is right, and sorting it by position and then value makes it stable.
        values, index = torch.topk(x, k, dim=axis)
        least = values.narrow(axis, k - 1, 1)
        candidates = x >= least
        if x.is_floating_point():
            candidates |= x.isnan()
            if bool(least.isnan().any()):
                return by_sorting(x)
        if int(candidates.sum()) != values.numel():
            return by_sorting(x)
        index = index.sort(dim=axis).values
        order = torch.sort(x.gather(axis, index), dim=axis, descending=True, stable=True).indices
        return index.gather(axis, order)

    choose = by_sorting if n <= _SHORT or 4 * k > n or k == 0 else by_selection
    take = moved(kind, lambda x, index: x.gather(axis, index))

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        index = choose(comparable(x))
        return [take(x, index), index.to(torch.int32)]

    return run
