"""Reductions over sliding windows: sum, maximum, minimum, and any function.

The derivative of a maximum moves elements between a window's extreme element and its output:
`window_offset` finds the position of that element inside the window, `window_take` reads there, and
`window_put` adds there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.dtypes import BOOL, I32, extreme_over_nothing
from genesis_fn.core.primitive import SCALARS, Primitive, bind, typeof
from genesis_fn.core.types.annotations import Array, Scalar
from genesis_fn.primitives import shape as shapes
from genesis_fn.primitives.conv import dilated, padtype_to_pads
from genesis_fn.primitives.elementwise import select
from genesis_fn.primitives.factories import DTYPE_CLASSES, full, linear, move_batch, no_tangent
from genesis_fn.primitives.reductions.reduce_generic import monoid_of


class Window(NamedTuple):
    """A sliding window: one entry per dimension of the operand."""

    lengths: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]

    def outputs(self, shape: Sequence[int], name: str, x: Aval) -> tuple[int, ...]:
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

        def one(values: tuple[Any, ...], v: Any = 1) -> tuple[Any, ...]:
            return (*values[:d], v, *values[d:])

        return Window(
            one(self.lengths),
            one(self.strides),
            one(self.padding, (0, 0)),
            one(self.base_dilation),
            one(self.window_dilation),
        )

    def backward(self, shape: Sequence[int], outputs: Sequence[int]) -> Window:
        """The window whose sums over an output's cotangent are the cotangent of the operand."""
        pads = []
        for n, m, k, s, (low, _), a, b in zip(shape, outputs, *self):
            before = dilated(k, b) - low - 1
            pads.append((before, dilated(n, a) + dilated(k, b) - 1 - dilated(m, s) - before))
        return Window(
            self.lengths, self.base_dilation, tuple(pads), self.strides, self.window_dilation
        )


# ---- sum ----


def _window_shape(name: str, accepts: str) -> Callable[..., Aval]:
    admits, words = DTYPE_CLASSES[accepts]

    def shape(x: Aval, *, window: Window) -> Aval:
        if not admits(x.dtype):
            raise errors.DTypeError(f"{name} takes {words}, got {x}")
        return x.update(window.outputs(x.shape, name, x))

    return shape


def _flops(ins: Sequence[Aval], outs: Sequence[Aval], *, window: Window) -> float:
    return outs[0].size * math.prod(window.lengths)


def _window_sum(x: Any, window: Window) -> Any:
    return bind(reduce_window_sum_p, x, window=window)


reduce_window_sum_p = linear(
    "reduce_window_sum",
    _window_shape("reduce_window_sum", "number"),
    flops=_flops,
    transpose=lambda ct, x, *, window: _window_sum(ct, window.backward(x.shape, typeof(ct).shape)),
    batch=lambda size, x, d, *, window: (_window_sum(x, window.batched(d)), d),
    precision="high",
)


# ---- the extreme element of each window ----


def _offset_shape(x: Aval, *, window: Window, greatest: bool) -> Aval:
    if dtypes.is_complex(x.dtype):
        raise errors.DTypeError(f"window_offset takes real numbers or booleans, got {x}")
    return x.update(window.outputs(x.shape, "window_offset", x), I32)


window_offset_p = Primitive("window_offset", _offset_shape, weak=None)
window_offset_p.linearize = no_tangent(window_offset_p)
window_offset_p.batch = lambda size, xs, dims, *, window, greatest: (
    bind(window_offset_p, xs[0], window=window.batched(dims[0]), greatest=greatest),
    dims[0],
)


def _moving(name: str, result: Callable[..., Any]) -> Primitive:
    """Define a primitive, linear in its first operand, that moves elements to or from these
    positions."""
    prim = Primitive(name, result)

    def linearize(nonzero: Any, x: Any, offset: Any, **params: Any) -> Any:
        return (
            bind(prim, x, offset, **params),
            lambda t, _: None if t is None else bind(prim, t, offset, **params),
        )

    def batch(
        size: int, xs: Sequence[Any], dims: Sequence[Any], *, window: Window, shape: tuple[Any, ...]
    ) -> Any:
        x, offset = [move_batch(v, d, 0, size) for v, d in zip(xs, dims)]
        return bind(prim, x, offset, window=window.batched(0), shape=(size, *shape)), 0

    prim.linearize, prim.batch = linearize, batch
    return prim


window_take_p = _moving("window_take", lambda x, offset, *, window, shape: x.update(offset.shape))
window_put_p = _moving("window_put", lambda u, offset, *, window, shape: u.update(shape))
window_take_p.transpose = lambda ct, x, offset, **params: [
    bind(window_put_p, ct, offset, **params),
    None,
]
window_put_p.transpose = lambda ct, u, offset, **params: [
    bind(window_take_p, ct, offset, **params),
    None,
]


# ---- maximum, minimum ----


def _extreme(name: str, greatest: bool) -> Primitive:
    prim = Primitive(name, _window_shape(name, "ordered"), flops=_flops)
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


reduce_window_max_p = _extreme("reduce_window_max", True)
reduce_window_min_p = _extreme("reduce_window_min", False)

_PRIMITIVES = {
    "add": reduce_window_sum_p, "max": reduce_window_max_p, "min": reduce_window_min_p,
}  # fmt: skip


# ---- what is called ----


def window_of(
    operand: Array,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Window:
    """Make the Window of these arguments; "SAME" and "VALID" become pairs."""
    shape = typeof(operand).shape
    some = lambda values: (1,) * len(shape) if values is None else tuple(map(int, values))
    lengths, strides = some(window_dimensions), some(window_strides)
    a, b = some(base_dilation), some(window_dilation)
    if isinstance(padding, str):
        spans = [dilated(k, d) for k, d in zip(lengths, b)]
        # Of the operand's shape before its dilation, as in JAX.
        padding = padtype_to_pads(shape, spans, strides, padding)
    pairs = tuple([(int(low), int(high)) for low, high in padding])
    return Window(lengths, strides, pairs, a, b)


def reduce_window(
    operand: Array,
    init_value: Array | Scalar,
    computation: Callable[..., Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Array:
    """Reduce every window of `operand` by `computation`, starting at `init_value`.

    Padding and dilation gaps take no part. add, max and min are one operation; any other function
    is applied once per offset in the window.
    """
    window = window_of(
        operand, window_dimensions, window_strides, padding, base_dilation, window_dilation
    )
    aval = typeof(operand)
    outputs = window.outputs(aval.shape, "reduce_window", aval)
    name = monoid_of(computation)
    start: Any = init_value
    if type(start) in SCALARS:
        start = full((), start, aval.dtype)
    start = shapes.broadcast_in_dim(start, outputs, ())
    if name in _PRIMITIVES:
        result = bind(_PRIMITIVES[name], operand, window=window)
        same = _is_identity(name, init_value, aval.dtype)
        return result if same else computation(start, result)
    one = lambda a, b: [computation(a[0], b[0])]
    return _fold_windows([operand], [start], one, window)[0]


def reduce_windows(
    operands: Sequence[Array],
    init_values: Sequence[Array | Scalar],
    computation: Callable[..., Any],
    *options: Any,
) -> list[Array]:
    """Apply `reduce_window` to several operands of one shape; `computation` takes and returns
    lists."""
    window = window_of(operands[0], *options)
    avals = [typeof(x) for x in operands]
    if any(k.shape != avals[0].shape for k in avals):
        raise errors.ShapeError(f"reduce_window: operands of different shapes, {avals}")
    outputs = window.outputs(avals[0].shape, "reduce_window", avals[0])
    values: list[Any] = list(init_values)
    starts = [full((), v, k.dtype) if type(v) in SCALARS else v for v, k in zip(values, avals)]
    starts = [shapes.broadcast_in_dim(v, outputs, ()) for v in starts]
    return _fold_windows(operands, starts, computation, window)


def _fold_windows(
    operands: Sequence[Any], starts: list[Any], computation: Callable[..., Any], window: Window
) -> list[Any]:
    """Apply `computation` once per offset in the window, to all windows at a time."""
    outputs, shape = typeof(starts[0]).shape, typeof(operands[0]).shape
    if 0 in outputs:
        return starts
    config = [(low, high, a - 1) for (low, high), a in zip(window.padding, window.base_dilation)]
    # Padding and gaps are filled with zeros, and what they contribute is masked out again.
    gaps = any(v for entry in config for v in entry)
    xs, inside_operand = list(operands), None
    if gaps:
        xs = [shapes.pad(x, full((), 0, typeof(x).dtype), config) for x in xs]
        inside_operand = shapes.pad(full(shape, True, BOOL), full((), False, BOOL), config)
    results = starts
    for offset in itertools.product(*map(range, window.lengths)):
        first = [j * d for j, d in zip(offset, window.window_dilation)]
        last = [b + (m - 1) * s + 1 for b, m, s in zip(first, outputs, window.strides)]
        combined = computation(results, [shapes.slice(x, first, last, window.strides) for x in xs])
        if inside_operand is not None:
            inside = shapes.slice(inside_operand, first, last, window.strides)
            combined = [select(inside, c, r) for c, r in zip(combined, results)]
        results = list(combined)
    return results


def _is_identity(name: str, value: Any, dtype: Any) -> bool:
    if type(value) not in SCALARS:
        return False
    return value == (0 if name == "add" else extreme_over_nothing(dtype, name == "max"))
