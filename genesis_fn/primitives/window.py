"""Reductions over sliding windows: sum, maximum, minimum, and any function.

The derivative of a maximum moves elements between a window's winner and its output: `window_offset`
finds the winner's place inside the window, `window_take` reads there, and `window_put` adds there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.dtypes import BOOL, I32
from genesis_fn.core.primitive import SCALARS, Primitive, bind, typeof
from genesis_fn.primitives import shape as shapes
from genesis_fn.primitives.conv import dilated, padtype_to_pads
from genesis_fn.primitives.conv_host import spread
from genesis_fn.primitives.define import (
    KINDS,
    SIGNED_STORAGE,
    TORCH_DTYPE,
    full,
    host_tensor,
    linear,
    move_batch,
    no_tangent,
)
from genesis_fn.primitives.elementwise import select
from genesis_fn.primitives.fold import monoid_of
from genesis_fn.primitives.reduce import extreme_over_nothing, flip_sign


class Window(NamedTuple):
    """A sliding window: one entry per dimension of the operand."""

    lengths: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]

    def outputs(self, shape: Sequence[int], name: str, x: Any) -> tuple[int, ...]:
        """The number of windows along each dimension. Raises ShapeError."""
        for words, values in zip(self._fields, self):
            if len(values) != len(shape):
                raise errors.ShapeError(
                    f"{name} of {x}: {words} {values} must have {len(shape)} entries"
                )
            if words != "padding" and any(v < 1 for v in values):  # pyright: ignore[reportOperatorIssue]
                raise errors.ShapeError(f"{name} of {x}: {words} {values} must be positive")
        return tuple(
            [
                max(0, (dilated(n, a) + low + high - dilated(k, b)) // s + 1)
                for n, k, s, (low, high), a, b in zip(shape, *self)
            ]
        )

    def batched(self, d: int) -> Window:
        """The window of an operand with one more dimension, at `d`."""

        def one(values: tuple, v: Any = 1) -> tuple:
            return (*values[:d], v, *values[d:])

        return Window(
            one(self.lengths), one(self.strides), one(self.padding, (0, 0)),
            one(self.base_dilation), one(self.window_dilation),
        )  # fmt: skip

    def backward(self, shape: Sequence[int], outputs: Sequence[int]) -> Window:
        """The window whose sums over an output's cotangent are the cotangent of the operand."""
        pads = []
        for n, m, k, s, (low, _), a, b in zip(shape, outputs, *self):
            before = dilated(k, b) - low - 1
            pads.append((before, dilated(n, a) + dilated(k, b) - 1 - dilated(m, s) - before))
        return Window(
            self.lengths, self.base_dilation, tuple(pads), self.strides, self.window_dilation
        )


# ---- on the CPU ----


def _prepared(x: torch.Tensor, window: Window, fill: Any) -> torch.Tensor:
    """`x` with its dilation and padding written out."""
    for i, a in enumerate(window.base_dilation):
        if a > 1 and x.shape[i] > 1:
            x = spread(x, i, a, fill)
    if any(v for pair in window.padding for v in pair):
        # Not torch's `pad`: its value passes through a double, which is no exact int64.
        pads = [v for pair in reversed(window.padding) for v in pair]
        x = torch.constant_pad_nd(x, pads, fill)
    return x


def _slices(x: torch.Tensor, axis: int, k: int, s: int, d: int, m: int) -> list[torch.Tensor]:
    """The elements that m windows along `axis` have at each of their k places."""
    index: list[Any] = [slice(None)] * x.ndim
    found = []
    for j in range(k):
        index[axis] = slice(j * d, j * d + (m - 1) * s + 1, s)
        found.append(x[tuple(index)])
    return found


def _separable(combine: Callable, window: Window, outputs: Sequence[int]) -> Callable:
    """Windows reduced one dimension after the other."""
    axes = [i for i, (k, s) in enumerate(zip(window.lengths, window.strides)) if k > 1 or s > 1]

    def run(x: torch.Tensor) -> torch.Tensor:
        for i in axes:
            x = functools.reduce(
                combine,
                _slices(x, i, window.lengths[i], window.strides[i], window.window_dilation[i],
                        outputs[i]),
            )  # fmt: skip
        return x

    return run


def _window_torch(combine: Callable, fill_of: Callable) -> Callable:
    """The lowering of a window reduction; `fill_of(dtype)` is what padding holds."""

    def lower(avals: Sequence[Any], *, window: Window) -> Callable:
        x = avals[0]
        outputs = window.outputs(x.shape, "", x)
        load, store = _comparable(x.dtype) if combine is not torch.add else _summable(x.dtype)
        fill = fill_of(x.dtype)
        nothing = full_torch(outputs, fill, x.dtype)
        if 0 in outputs or x.size == 0:
            return lambda _: nothing.clone()
        if combine is not torch.add:
            fill = _stored_fill(x.dtype, fill)
        reduce = _separable(combine, window, outputs)
        return lambda v: store(reduce(_prepared(load(v), window, fill)))

    return lower


def full_torch(shape: Sequence[int], value: Any, kind: Any) -> torch.Tensor:
    """A tensor of one value in the storage of dtype `kind`."""
    return host_tensor(np.full(shape, value, kind), kind)


def _stored_fill(kind: Any, fill: Any) -> Any:
    """The least or greatest value of an unsigned dtype, as `_comparable` stores it."""
    if kind not in SIGNED_STORAGE:
        return fill
    limits = torch.iinfo(SIGNED_STORAGE[kind])
    return limits.min if fill == 0 else limits.max


def _summable(kind: Any) -> tuple[Callable, Callable]:
    """(to, from) a dtype in which torch adds `kind`; narrow floats in float32."""
    if dtypes.is_float(kind) and kind.itemsize < 4:
        stored = TORCH_DTYPE[kind]
        return torch.Tensor.float, lambda x: x.to(stored)
    return lambda x: x, lambda x: x


def _comparable(kind: Any) -> tuple[Callable, Callable]:
    """(to, from) a dtype that torch pads and compares as `kind`."""
    if kind in SIGNED_STORAGE:
        flip = flip_sign(kind)
        return flip, flip
    if kind == BOOL:
        return lambda x: x.to(torch.uint8), lambda x: x != 0
    return _summable(kind)


# ---- sum ----


def _window_shape(name: str, kinds: str) -> Callable[..., Aval]:
    accepts, words = KINDS[kinds]

    def shape(x: Aval, *, window: Window) -> Aval:
        if not accepts(x.dtype):
            raise errors.DTypeError(f"{name} takes {words}, got {x}")
        return x.update(window.outputs(x.shape, name, x))

    return shape


def _window_sum(x: Any, window: Window) -> Any:
    return bind(reduce_window_sum_p, x, window=window)


reduce_window_sum_p = linear(
    "reduce_window_sum", _window_shape("reduce_window_sum", "number"),
    transpose=lambda ct, x, *, window: _window_sum(
        ct, window.backward(x.shape, typeof(ct).shape)
    ),
    batch=lambda size, x, d, *, window: (_window_sum(x, window.batched(d)), d),
    torch_for=_window_torch(torch.add, lambda kind: 0),
    precision="high",
)  # fmt: skip


# ---- the winner of each window ----


def _offset_shape(x: Aval, *, window: Window, greatest: bool) -> Aval:
    return x.update(window.outputs(x.shape, "window_offset", x), I32)


def _places(x: torch.Tensor, window: Window, outputs: Sequence[int]) -> list[torch.Tensor]:
    """Views of prepared `x`: what the windows have at each place, in row-major order."""
    views = [x]
    for i, (k, s, d, m) in enumerate(
        zip(window.lengths, window.strides, window.window_dilation, outputs)
    ):
        views = [part for v in views for part in _slices(v, i, k, s, d, m)]
    return views


def _offset_torch(avals: Sequence[Any], *, window: Window, greatest: bool) -> Callable:
    x = avals[0]
    outputs = window.outputs(x.shape, "window_offset", x)
    if 0 in outputs or x.size == 0:
        return lambda _: torch.zeros(outputs, dtype=torch.int32)
    load, _ = _comparable(x.dtype)
    fill = _stored_fill(x.dtype, extreme_over_nothing(x.dtype, greatest))
    reduce = _separable(torch.maximum if greatest else torch.minimum, window, outputs)

    def run(v: torch.Tensor) -> torch.Tensor:
        v = _prepared(load(v), window, fill)
        best = reduce(v)
        lost = best.isnan() if best.is_floating_point() else None
        if lost is not None and not bool(lost.any()):
            lost = None
        offset = torch.zeros(outputs, dtype=torch.int32)
        # Backwards, so that the first of equal winners is what remains.
        for j, part in reversed(list(enumerate(_places(v, window, outputs)))):
            wins = part == best
            if lost is not None:
                wins |= lost & part.isnan()
            offset.masked_fill_(wins, j)
        return offset

    return run


window_offset_p = Primitive("window_offset", _offset_shape, torch_for=_offset_torch, weak=None)
window_offset_p.linearize = no_tangent(window_offset_p)
window_offset_p.batch = lambda size, xs, dims, *, window, greatest: (
    bind(window_offset_p, xs[0], window=window.batched(dims[0]), greatest=greatest),
    dims[0],
)


def _take_torch(avals: Sequence[Any], *, window: Window, shape: tuple[int, ...]) -> Callable:
    outputs, kind = avals[1].shape, avals[0].dtype
    if 0 in outputs or 0 in shape:
        return lambda x, offset: torch.zeros(outputs, dtype=torch.float32).to(TORCH_DTYPE[kind])
    load, store = _summable(kind)

    def run(x: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        x = _prepared(load(x), window, 0)
        y = torch.zeros(outputs, dtype=x.dtype)
        for j, part in enumerate(_places(x, window, outputs)):
            y = torch.where(offset == j, part, y)
        return store(y)

    return run


def _put_torch(avals: Sequence[Any], *, window: Window, shape: tuple[int, ...]) -> Callable:
    outputs, kind = avals[1].shape, avals[0].dtype
    if 0 in outputs or 0 in shape:
        return lambda u, offset: torch.zeros(shape, dtype=torch.float32).to(TORCH_DTYPE[kind])
    load, store = _summable(kind)
    spans = [
        dilated(n, a) + low + high
        for n, a, (low, high) in zip(shape, window.base_dilation, window.padding)
    ]
    crop = [v for low, high in reversed(window.padding) for v in (-low, -high)]
    steps = tuple([slice(None, None, a) for a in window.base_dilation])

    def run(u: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        u = load(u)
        total = torch.zeros(spans, dtype=u.dtype)
        # One place at a time: there no two windows meet, so this is no scatter.
        for j, part in enumerate(_places(total, window, outputs)):
            part += torch.where(offset == j, u, 0)
        if any(crop):
            total = torch.constant_pad_nd(total, crop, 0)
        return store(total[steps])

    return run


def _moving(name: str, result: Callable, lower: Callable) -> Primitive:
    """A primitive, linear in its first operand, that moves elements to or from the winners."""
    prim = Primitive(name, result, torch_for=lower)

    def linearize(nonzero: Any, x: Any, offset: Any, **params: Any) -> Any:
        return (
            bind(prim, x, offset, **params),
            lambda t, _: None if t is None else bind(prim, t, offset, **params),
        )

    def batch(size: int, xs: Sequence, dims: Sequence, *, window: Window, shape: tuple) -> Any:
        x, offset = [move_batch(v, d, 0, size) for v, d in zip(xs, dims)]
        return bind(prim, x, offset, window=window.batched(0), shape=(size, *shape)), 0

    prim.linearize, prim.batch = linearize, batch
    return prim


window_take_p = _moving(
    "window_take", lambda x, offset, *, window, shape: x.update(offset.shape), _take_torch
)
window_put_p = _moving(
    "window_put", lambda u, offset, *, window, shape: u.update(shape), _put_torch
)
window_take_p.transpose = lambda ct, x, offset, **params: [
    bind(window_put_p, ct, offset, **params), None,
]  # fmt: skip
window_put_p.transpose = lambda ct, u, offset, **params: [
    bind(window_take_p, ct, offset, **params), None,
]  # fmt: skip


# ---- maximum, minimum ----


def _extreme(name: str, combine: Callable, greatest: bool) -> Primitive:
    prim = Primitive(
        name, _window_shape(name, "ordered"),
        torch_for=_window_torch(combine, lambda kind: extreme_over_nothing(kind, greatest)),
    )  # fmt: skip
    prim.batch = lambda size, xs, dims, *, window: (
        bind(prim, xs[0], window=window.batched(dims[0])),
        dims[0],
    )

    def linearize(nonzero: Any, x: Any, *, window: Window) -> Any:
        offset = bind(window_offset_p, x, window=window, greatest=greatest)
        shape = typeof(x).shape
        return (
            bind(prim, x, window=window),
            lambda t: bind(window_take_p, t, offset, window=window, shape=shape),
        )

    prim.linearize = linearize
    return prim


reduce_window_max_p = _extreme("reduce_window_max", torch.maximum, True)
reduce_window_min_p = _extreme("reduce_window_min", torch.minimum, False)

_PRIMITIVES = {
    "add": reduce_window_sum_p, "max": reduce_window_max_p, "min": reduce_window_min_p,
}  # fmt: skip


# ---- what is called ----


def window_of(
    operand: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Window:
    """The Window of these arguments; "SAME" and "VALID" become pairs."""
    shape = typeof(operand).shape
    some = lambda values: (1,) * len(shape) if values is None else tuple(map(int, values))  # noqa: E731
    lengths, strides = some(window_dimensions), some(window_strides)
    a, b = some(base_dilation), some(window_dilation)
    if isinstance(padding, str):
        spans = [dilated(k, d) for k, d in zip(lengths, b)]
        padding = padtype_to_pads(
            [dilated(n, d) for n, d in zip(shape, a)], spans, strides, padding
        )
    pairs = tuple([(int(low), int(high)) for low, high in padding])
    return Window(lengths, strides, pairs, a, b)


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """`computation` repeated over every window of `operand`, starting at `init_value`.

    Padding and dilation gaps take no part. add, max and min are one operation; any other function
    is applied once per place in the window.
    """
    window = window_of(
        operand, window_dimensions, window_strides, padding, base_dilation, window_dilation
    )
    kind = typeof(operand)
    outputs = window.outputs(kind.shape, "reduce_window", kind)
    name = monoid_of(computation)
    start = init_value
    if type(start) in SCALARS:
        start = full((), start, kind.dtype)
    start = shapes.broadcast_in_dim(start, outputs, ())
    if name in _PRIMITIVES:
        result = bind(_PRIMITIVES[name], operand, window=window)
        same = _is_identity(name, init_value, kind.dtype)
        return result if same else computation(start, result)
    one = lambda a, b: [computation(a[0], b[0])]
    return _place_by_place([operand], [start], one, window)[0]


def reduce_windows(
    operands: Sequence[Any], init_values: Sequence[Any], computation: Callable, *options: Any
) -> list[Any]:
    """`reduce_window` of several operands of one shape: `computation` takes and returns lists."""
    window = window_of(operands[0], *options)
    kinds = [typeof(x) for x in operands]
    if any(k.shape != kinds[0].shape for k in kinds):
        raise errors.ShapeError(f"reduce_window: operands of different shapes, {kinds}")
    outputs = window.outputs(kinds[0].shape, "reduce_window", kinds[0])
    starts = [full((), v, k.dtype) if type(v) in SCALARS else v for v, k in zip(init_values, kinds)]
    starts = [shapes.broadcast_in_dim(v, outputs, ()) for v in starts]
    return _place_by_place(operands, starts, computation, window)


def _place_by_place(
    operands: Sequence[Any], starts: list[Any], computation: Callable, window: Window
) -> list[Any]:
    """`computation` applied once per place in the window, to all windows at a time."""
    outputs, shape = typeof(starts[0]).shape, typeof(operands[0]).shape
    if 0 in outputs:
        return starts
    config = [(low, high, a - 1) for (low, high), a in zip(window.padding, window.base_dilation)]
    gaps = any(v for entry in config for v in entry)
    xs, real = list(operands), None
    if gaps:
        xs = [shapes.pad(x, full((), 0, typeof(x).dtype), config) for x in xs]
        real = shapes.pad(full(shape, True, BOOL), full((), False, BOOL), config)
    results = starts
    for place in itertools.product(*map(range, window.lengths)):
        first = [j * d for j, d in zip(place, window.window_dilation)]
        last = [b + (m - 1) * s + 1 for b, m, s in zip(first, outputs, window.strides)]
        combined = computation(results, [shapes.slice(x, first, last, window.strides) for x in xs])
        if gaps:
            inside = shapes.slice(real, first, last, window.strides)
            combined = [select(inside, c, r) for c, r in zip(combined, results)]
        results = list(combined)
    return results


def _is_identity(name: str, value: Any, kind: Any) -> bool:
    if type(value) not in SCALARS:
        return False
    return value == (0 if name == "add" else extreme_over_nothing(kind, name == "max"))


def reduce_window_sum(operand: Any, *args: Any, **kwargs: Any) -> Any:
    """The sum over every window; arguments as in `window_of`."""
    return _window_sum(operand, window_of(operand, *args, **kwargs))


def reduce_window_max(operand: Any, *args: Any, **kwargs: Any) -> Any:
    """The maximum over every window; arguments as in `window_of`. Padding never wins."""
    return bind(reduce_window_max_p, operand, window=window_of(operand, *args, **kwargs))


def reduce_window_min(operand: Any, *args: Any, **kwargs: Any) -> Any:
    """The minimum over every window; arguments as in `window_of`. Padding never wins."""
    return bind(reduce_window_min_p, operand, window=window_of(operand, *args, **kwargs))
