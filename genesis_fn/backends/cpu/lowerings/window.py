"""CPU lowerings of sliding windows: reductions, and gather and scatter at their extremes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from genesis_fn.backends.cpu.lower import lowers
from genesis_fn.backends.cpu.lowerings.conv import padded, spread
from genesis_fn.backends.cpu.storage import SIGNED_STORAGE, TORCH_DTYPE, ordered, summed
from genesis_fn.core.dtypes import extreme_over_nothing
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.conv import dilated
from genesis_fn.primitives.reductions import reduce_window as windows
from genesis_fn.primitives.reductions.reduce_window import Window


def _prepared(x: torch.Tensor, window: Window, fill: Any) -> torch.Tensor:
    """`x` with its dilation and padding written out."""
    for i, a in enumerate(window.base_dilation):
        if a > 1 and x.shape[i] > 1:
            x = spread(x, i, a, fill)
    if any(v for pair in window.padding for v in pair):
        x = padded(x, window.padding, fill)
    return x


def _slices(x: torch.Tensor, axis: int, k: int, s: int, d: int, m: int) -> list[torch.Tensor]:
    """The elements that m windows along `axis` have at each of their k taps."""
    index: list[Any] = [slice(None)] * x.ndim
    found = []
    for j in range(k):
        index[axis] = slice(j * d, j * d + (m - 1) * s + 1, s)
        found.append(x[tuple(index)])
    return found


def _separable(
    combine: Callable[..., Any], window: Window, outputs: Sequence[int]
) -> Callable[..., Any]:
    """Windows reduced one dimension after the other."""
    axes = [i for i, (k, s) in enumerate(zip(window.lengths, window.strides)) if k > 1 or s > 1]

    def run(x: torch.Tensor) -> torch.Tensor:
        for i in axes:
            x = functools.reduce(
                combine,
                _slices(
                    x,
                    i,
                    window.lengths[i],
                    window.strides[i],
                    window.window_dilation[i],
                    outputs[i],
                ),
            )
        return x

    return run


def _reduction(
    prim: Primitive,
    combine: Callable[..., Any],
    storage: Callable[..., Any],
    fill_of: Callable[..., Any],
) -> None:
    """Register windows reduced by `combine` in `storage(dtype)`: (to, from) what it computes in;
    `fill_of(dtype)` is what padding holds there."""

    @lowers(prim)
    def lower(avals: Sequence[Any], *, window: Window) -> Callable[..., Any]:
        x = avals[0]
        outputs = window.outputs(x.shape, "", x)
        to, back = storage(x.dtype)
        fill = fill_of(x.dtype)
        if 0 in outputs or x.size == 0:
            return lambda v: back(to(v).new_full(outputs, fill))
        reduce = _separable(combine, window, outputs)
        return lambda v: back(reduce(_prepared(to(v), window, fill)))


def _least(kind: Any) -> Any:
    return _stored_extreme(kind, True)


def _greatest(kind: Any) -> Any:
    return _stored_extreme(kind, False)


def _stored_extreme(kind: Any, greatest: bool) -> Any:
    """What a maximum (`greatest`) or minimum over nothing is, as `ordered` stores it."""
    if kind in SIGNED_STORAGE:
        limits = torch.iinfo(SIGNED_STORAGE[kind])
        return limits.min if greatest else limits.max
    return extreme_over_nothing(kind, greatest)


_reduction(windows.reduce_window_sum_p, torch.add, summed, lambda kind: 0)
_reduction(windows.reduce_window_max_p, torch.maximum, ordered, _least)
_reduction(windows.reduce_window_min_p, torch.minimum, ordered, _greatest)


def _places(x: torch.Tensor, window: Window, outputs: Sequence[int]) -> list[torch.Tensor]:
    """Views of prepared `x`: what the windows have at each tap, in row-major order."""
    views = [x]
    for i, (k, s, d, m) in enumerate(
        zip(window.lengths, window.strides, window.window_dilation, outputs)
    ):
        views = [part for v in views for part in _slices(v, i, k, s, d, m)]
    return views


def _inside(
    shape: Sequence[int], window: Window, outputs: Sequence[int]
) -> list[torch.Tensor] | None:
    """Where the windows have an element of the operand at each tap; None: everywhere.

    Padding equals the least element, but takes no part: a derivative would be lost there.
    """
    if not any([low > 0 or high > 0 for low, high in window.padding]) and set(
        window.base_dilation
    ) == {1}:
        return None
    # One element along axes that the windows do not move over, to which it broadcasts.
    whole = [(k, s, pair, a) == (1, 1, (0, 0), 1) for k, s, pair, a, _ in zip(*window)]
    ones = torch.ones([1 if w else n for n, w in zip(shape, whole)], dtype=torch.bool)
    return _places(_prepared(ones, window, False), window, outputs)


@lowers(windows.window_offset_p)
def _offset(avals: Sequence[Any], *, window: Window, greatest: bool) -> Callable[..., Any]:
    x = avals[0]
    outputs = window.outputs(x.shape, "window_offset", x)
    if 0 in outputs or x.size == 0:
        return lambda _: torch.zeros(outputs, dtype=torch.int32)
    load, _ = ordered(x.dtype)
    fill = _stored_extreme(x.dtype, greatest)
    reduce = _separable(torch.maximum if greatest else torch.minimum, window, outputs)
    inside = _inside(x.shape, window, outputs)

    def run(v: torch.Tensor) -> torch.Tensor:
        v = _prepared(load(v), window, fill)
        best = reduce(v)
        lost = best.isnan() if best.is_floating_point() else None
        if lost is not None and not bool(lost.any()):
            lost = None
        offset = torch.zeros(outputs, dtype=torch.int32)
        # Backwards, so that of equal extremes the first one stays.
        for j, part in reversed(list(enumerate(_places(v, window, outputs)))):
            wins = part == best
            if lost is not None:
                wins |= lost & part.isnan()
            if inside is not None:
                wins &= inside[j]
            offset.masked_fill_(wins, j)
        return offset

    return run


@lowers(windows.window_take_p)
def _take(avals: Sequence[Any], *, window: Window, shape: tuple[int, ...]) -> Callable[..., Any]:
    outputs, kind = avals[1].shape, avals[0].dtype
    if 0 in outputs or 0 in shape:
        return lambda x, offset: torch.zeros(outputs, dtype=torch.float32).to(TORCH_DTYPE[kind])
    load, store = summed(kind)

    def run(x: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        x = _prepared(load(x), window, 0)
        y = torch.zeros(outputs, dtype=x.dtype)
        for j, part in enumerate(_places(x, window, outputs)):
            y = torch.where(offset == j, part, y)
        return store(y)

    return run


@lowers(windows.window_put_p)
def _put(avals: Sequence[Any], *, window: Window, shape: tuple[int, ...]) -> Callable[..., Any]:
    outputs, kind = avals[1].shape, avals[0].dtype
    if 0 in outputs or 0 in shape:
        return lambda u, offset: torch.zeros(shape, dtype=torch.float32).to(TORCH_DTYPE[kind])
    load, store = summed(kind)
    spans = [
        dilated(n, a) + low + high
        for n, a, (low, high) in zip(shape, window.base_dilation, window.padding)
    ]
    crop = [(-low, -high) for low, high in window.padding]
    steps = tuple([slice(None, None, a) for a in window.base_dilation])

    def run(u: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        u = load(u)
        total = torch.zeros(spans, dtype=u.dtype)
        # For one offset within the window no two windows meet, so plain addition is safe.
        for j, part in enumerate(_places(total, window, outputs)):
            part += torch.where(offset == j, u, 0)
        return store(padded(total, crop)[steps])

    return run
