"""Pooling over windows and over adaptive bins, channels last."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, Key, PyTree, dtypes, lax
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import real_of
from genesis_fn.nn.module import Module, check_fields, is_count, layer_error, shown, wide_dtype
from genesis_fn.nn.windows import Pairs, padding_pairs, per_axis, window_lengths

_NAMES = ("SAME", "SAME_LOWER", "VALID")


# ---- windows ----


@dataclasses.dataclass(frozen=True)
class _Windows:
    """Sliding windows over the spatial axes of an array [..., *space, features].

    `padding` counts as input in means that count padding; `beyond` are elements after it, which
    only the last window reaches and nothing counts.
    """

    lengths: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: Pairs
    beyond: tuple[int, ...]

    def reduce(self, x: Array, start: float, combine: Callable[..., Any]) -> Array:
        """`combine` over each window; padding takes no part."""
        lead = x.ndim - 1 - len(self.lengths)

        def whole(values: Sequence[Any], other: Any) -> tuple[Any, ...]:
            return (*[other] * lead, *values, other)

        pads = [(low, high + more) for (low, high), more in zip(self.padding, self.beyond)]
        return lax.reduce_window(
            x,
            start,
            combine,
            whole(self.lengths, 1),
            whole(self.strides, 1),
            whole(pads, (0, 0)),
            None,
            whole(self.dilation, 1),
        )


def _refusal(layer: Module | str, text: str) -> ArgumentError:
    """The error of a layer or of a function, by its name."""
    if isinstance(layer, str):
        return ArgumentError(f"{layer}: {text}")
    return layer_error(layer, "", text)


def _windows(
    layer: Module | str,
    x: Array,
    lengths: tuple[int, ...],
    strides: tuple[int, ...],
    dilation: tuple[int, ...],
    padding: str | Pairs,
    ceil_mode: bool,
) -> _Windows:
    """The windows over the axes before the last of `x`; raises ArgumentError for one without an
    element of `x`, whose maximum or mean would be of nothing."""
    n = len(lengths)
    if x.ndim < n + 1:
        wanted = f"[..., {', '.join('DHW'[3 - n :])}, features]"
        raise _refusal(layer, f"the input is {shown(x)}, but has to be {wanted}")
    space = x.shape[-1 - n : -1]
    spans = [d * (k - 1) + 1 for k, d in zip(lengths, dilation)]
    if isinstance(padding, str):
        padding = tuple(lax.padtype_to_pads(space, spans, strides, padding))
    beyond = [0] * n
    for i, (m, k, d, s, span) in enumerate(zip(space, lengths, dilation, strides, spans)):
        low, high = padding[i]
        if m + low + high < span:
            text = f"its window is {span} long along an axis of {m} of the input, {shown(x)}"
            raise _refusal(layer, f"{text}\n  give longer input, a shorter window, or padding")
        if ceil_mode:
            last = -(-(m + low + high - span) // s)
            # As in PyTorch: no window begins in the padding after the input.
            last -= last * s >= m + low
            beyond[i] = max(0, last * s + span - (m + low + high))
        if not _holds_input(m, k, d, s, (low, high + beyond[i])):
            text = f"a window holds padding {(low, high)} alone, and nothing of the {m} elements"
            remedy = f"pad less than the {span} elements that a window spans"
            raise _refusal(layer, f"{text} of an axis of the input, {shown(x)}\n  {remedy}")
    return _Windows(lengths, strides, dilation, padding, tuple(beyond))


@functools.cache
def _holds_input(n: int, k: int, d: int, s: int, pads: tuple[int, int]) -> bool:
    """Whether each window along an axis of length `n` has an element of it."""
    if min(pads) < 0:
        return False
    starts = np.arange(-pads[0], n + pads[1] - d * (k - 1), s)
    taps = starts[:, None] + d * np.arange(k)
    return bool(((taps >= 0) & (taps < n)).any(1).all())


@functools.cache
def _counts(
    n: int, k: int, s: int, pads: tuple[int, int], beyond: int, count_include_pad: bool
) -> np.ndarray:
    """How many elements of an axis of length `n` each window counts."""
    low, high = pads
    starts = np.arange(-low, n + high + beyond - k + 1, s)
    first, end = (-low, n + high) if count_include_pad else (0, n)
    return np.minimum(starts + k, end) - np.maximum(starts, first)


def _least(x: Array) -> float:
    """The least value of a dtype, which a maximum starts at."""
    if x.dtype == dtypes.bool_:
        return False
    if dtypes.is_integer(x.dtype):
        return int(dtypes.iinfo(x.dtype).min)
    # It has no infinity.
    return float(dtypes.finfo(x.dtype).min) if x.dtype == dtypes.float8_e4m3fn else -math.inf


def _maximum(x: Array, windows: _Windows) -> Array:
    return windows.reduce(x, _least(x), lax.max)


def _mean(x: Array, windows: _Windows, count_include_pad: bool) -> Array:
    wide = wide_dtype(x.dtype)
    # A sum of 16-bit floats overflows or is rounded before it is divided.
    total = windows.reduce(jnp.astype(x, wide), 0, lax.add)
    n = len(windows.lengths)
    facts = zip(
        x.shape[-1 - n : -1], windows.lengths, windows.strides, windows.padding, windows.beyond
    )
    counts = [_counts(*fact, count_include_pad) for fact in facts]
    if all([(c == c[0]).all() for c in counts]):
        mean = total / math.prod([int(c[0]) for c in counts])
    else:
        whole = functools.reduce(np.multiply.outer, counts)[..., None]
        mean = total / whole.astype(real_of(wide))
    return jnp.astype(mean, x.dtype) if dtypes.is_inexact(x.dtype) else mean


def max_pool(
    x: ArrayLike,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
) -> Array:
    """The maximum of each window, NaN where it has one.

    Padding takes no part. Of equal maxima the first in row-major order has the derivative, as in
    PyTorch and JAX.

    Args:
        x: array [..., *space, features] of any real dtype.
        window_shape: length of the window along each spatial axis, 1 to 3 integers.
        strides: step along each spatial axis; None means 1, unlike in the layer `MaxPool`.
        padding: "VALID", "SAME", "SAME_LOWER", or a (low, high) pair for each spatial axis.

    Returns:
        An array [..., *windows, features] of the dtype of `x`.

    Raises:
        ArgumentError: an argument does not fit the spatial axes, or a window has no element of `x`.

    >>> nn.max_pool(jnp.array([[1.0], [3.0], [2.0]]), (2,))
    Array([[3.],
           [3.]], dtype=float32)
    """
    array, windows = _given("max_pool", x, window_shape, strides, padding)
    return _maximum(array, windows)


def avg_pool(
    x: ArrayLike,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    count_include_pad: bool = True,
) -> Array:
    """The mean of each window; 16-bit floats are added in float32.

    Args:
        x: array [..., *space, features] of any dtype.
        window_shape: length of the window along each spatial axis, 1 to 3 integers.
        strides: step along each spatial axis; None means 1, unlike in the layer `AvgPool`.
        padding: "VALID", "SAME", "SAME_LOWER", or a (low, high) pair for each spatial axis.
        count_include_pad: whether padding counts, as zeros.

    Returns:
        An array [..., *windows, features] of the dtype of `x`; float32 for integers.

    Raises:
        ArgumentError: an argument does not fit the spatial axes, or a window has no element of `x`.

    >>> nn.avg_pool(jnp.array([[1.0], [3.0], [2.0]]), (2,))
    Array([[2. ],
           [2.5]], dtype=float32)
    """
    array, windows = _given("avg_pool", x, window_shape, strides, padding)
    return _mean(array, windows, count_include_pad)


def _given(
    name: str,
    x: ArrayLike,
    window_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: str | Sequence[tuple[int, int]],
) -> tuple[Array, _Windows]:
    lengths = window_lengths(name, "window_shape", window_shape, None, least=1)
    n = len(lengths)
    steps = per_axis(name, "strides", 1 if strides is None else strides, n, "window_shape")
    pads = padding_pairs(name, padding, n, "window_shape", _NAMES)
    array = jnp.asarray(x)
    return array, _windows(name, array, lengths, steps, (1,) * n, pads, False)


def _check_window(layer: MaxPool | AvgPool) -> None:
    """Raise ArgumentError for fields that do not fit each other, and make lists tuples."""
    check_fields(layer)
    window: Any = layer.window
    if not is_count(window):
        window = window_lengths(layer, "window", window, None, least=1)
        object.__setattr__(layer, "window", window)
    n = len(window) if isinstance(window, tuple) else 1
    _fields(layer, n)
    for name in ("strides", "dilation"):
        if isinstance(getattr(layer, name, None), list):
            object.__setattr__(layer, name, tuple(getattr(layer, name)))
    if not isinstance(layer.padding, (str, int)):
        object.__setattr__(layer, "padding", padding_pairs(layer, layer.padding, n, "window", ()))


def _fields(
    layer: MaxPool | AvgPool, n: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str | Pairs]:
    """Lengths, strides, dilation and padding for each of `n` axes."""
    lengths = window_lengths(layer, "window", layer.window, n, least=1)
    strides = lengths if layer.strides is None else layer.strides
    dilation = layer.dilation if isinstance(layer, MaxPool) else 1
    return (
        lengths,
        per_axis(layer, "strides", strides, n, "window"),
        per_axis(layer, "dilation", dilation, n, "window"),
        padding_pairs(layer, layer.padding, n, "window", _NAMES),
    )


def _spatial(layer: Module, x: ArrayLike, sizes: Any) -> tuple[Array, int]:
    """The input [batch, *space, features] and the number of its spatial axes: as many as `sizes`
    has, or all where it is one for all."""
    array = jnp.asarray(x)
    n = len(sizes) if isinstance(sizes, tuple) else max(1, min(array.ndim - 2, 3))
    if array.ndim != n + 2:
        wanted = f"[batch, {', '.join('DHW'[3 - n :])}, features]"
        raise layer_error(layer, "", f"the input is {shown(x)}, but has to be {wanted}")
    return array, n


@dataclasses.dataclass(frozen=True)
class MaxPool(Module):
    """The maximum of each window over 1 to 3 axes, channels last; NaN where a window has one.

    Input [batch, *space, features]. Padding takes no part. Of equal maxima the first in row-major
    order has the derivative, as in PyTorch and JAX.

    Args:
        window: length of the window along each spatial axis, 1 to 3 integers; or one for all
            spatial axes of the input.
        strides: step along each spatial axis, or one for all; None means `window`, as in PyTorch.
        padding: "VALID", "SAME", "SAME_LOWER", a (low, high) pair for each spatial axis, or one
            number for all sides.
        dilation: step between the window's elements along each spatial axis, or one for all.
        ceil_mode: whether a last window may reach beyond the padding, as in PyTorch: the number of
            windows is rounded up, where the last one begins in the input.

    Raises:
        ArgumentError: a field does not fit the axes of `window`; or, in a call, a window has no
            element of the input.

    >>> nn.MaxPool(2)({}, jnp.ones((1, 8, 6, 3))).shape
    (1, 4, 3, 3)
    """

    window: int | Sequence[int]
    strides: int | tuple[int, ...] | None = None
    padding: str | int | Sequence[tuple[int, int]] = "VALID"
    dilation: int | tuple[int, ...] = 1
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        _check_window(self)

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        array, n = _spatial(self, x, self.window)
        return _maximum(array, _windows(self, array, *_fields(self, n), self.ceil_mode))


@dataclasses.dataclass(frozen=True)
class AvgPool(Module):
    """The mean of each window over 1 to 3 axes, channels last; 16-bit floats are added in float32.

    Input [batch, *space, features]; integers become float32.

    Args:
        window: length of the window along each spatial axis, 1 to 3 integers; or one for all
            spatial axes of the input.
        strides: step along each spatial axis, or one for all; None means `window`, as in PyTorch.
        padding: "VALID", "SAME", "SAME_LOWER", a (low, high) pair for each spatial axis, or one
            number for all sides.
        ceil_mode: whether a last window may reach beyond the padding, as in PyTorch: the number of
            windows is rounded up, where the last one begins in the input. What lies beyond never
            counts.
        count_include_pad: whether padding counts, as zeros.

    Raises:
        ArgumentError: a field does not fit the axes of `window`; or, in a call, a window has no
            element of the input.

    >>> nn.AvgPool((2, 3))({}, jnp.ones((1, 8, 6, 3))).shape
    (1, 4, 2, 3)
    """

    window: int | Sequence[int]
    strides: int | tuple[int, ...] | None = None
    padding: str | int | Sequence[tuple[int, int]] = "VALID"
    ceil_mode: bool = False
    count_include_pad: bool = True

    def __post_init__(self) -> None:
        _check_window(self)

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        array, n = _spatial(self, x, self.window)
        windows = _windows(self, array, *_fields(self, n), self.ceil_mode)
        return _mean(array, windows, self.count_include_pad)


# ---- bins: of n elements, bin i of m has those from floor(i n / m) to ceil((i + 1) n / m) ----


def _in_bins(x: Array, axis: int, m: int, reduce: Callable[[Array, int], Array]) -> Array:
    """`reduce` over each of the m bins of an axis."""
    # Bins repeat after the greatest common divisor: one reduction serves all repetitions.
    times = math.gcd(x.shape[axis], m)
    n, m = x.shape[axis] // times, m // times
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    x = jnp.reshape(x, (*before, times, n, *after))
    bins = [(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
    parts = [reduce(lax.slice_in_dim(x, a, b, axis=axis + 1), axis + 1) for a, b in bins]
    y = parts[0] if m == 1 else jnp.stack(parts, axis + 1)
    return jnp.reshape(y, (*before, times * m, *after))


def _check_output(layer: AdaptiveAvgPool | AdaptiveMaxPool) -> None:
    output: Any = layer.output
    sizes = output if isinstance(output, (tuple, list)) else (output,)
    if not 1 <= len(sizes) <= 3 or not all([k is None or (is_count(k) and k) for k in sizes]):
        raise ArgumentError(
            f"{type(layer).__name__}: output is {output!r:.60}, but is a positive number of bins, "
            "or one for each of 1 to 3 spatial axes, where None keeps the axis"
        )
    if isinstance(output, list):
        object.__setattr__(layer, "output", tuple(output))


def _adaptive(
    layer: AdaptiveAvgPool | AdaptiveMaxPool, x: ArrayLike, reduce: Callable[[Array, int], Array]
) -> Array:
    output: Any = layer.output
    array, n = _spatial(layer, x, output)
    sizes = output if isinstance(output, tuple) else (output,) * n
    if 0 in array.shape[1:-1]:
        raise layer_error(layer, "", f"the input is {shown(x)}: bins of no elements")
    # The last axis first: of equal maxima, the first in row-major order is found.
    for axis in range(n, 0, -1):
        if sizes[axis - 1] not in (None, array.shape[axis]):
            array = _in_bins(array, axis, sizes[axis - 1], reduce)
    return array


@dataclasses.dataclass(frozen=True)
class AdaptiveAvgPool(Module):
    """The means of as many bins as the output has, over 1 to 3 axes, channels last.

    Along an axis of n elements, bin i of m has those from floor(i * n / m) to
    ceil((i + 1) * n / m), as in PyTorch: bins may overlap and differ by one element. Input
    [batch, *space, features]; 16-bit floats are added in float32, integers become float32.

    Args:
        output: number of bins along each spatial axis, 1 to 3 integers, or one for all spatial
            axes of the input; None keeps an axis.

    Raises:
        ArgumentError: `output` is no such number; or, in a call, the input has other axes.

    >>> nn.AdaptiveAvgPool((7, None))({}, jnp.ones((1, 10, 6, 3))).shape
    (1, 7, 6, 3)
    """

    output: int | None | Sequence[int | None]

    def __post_init__(self) -> None:
        _check_output(self)

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        array = jnp.asarray(x)
        y = _adaptive(self, jnp.astype(array, wide_dtype(array.dtype)), jnp.mean)
        return jnp.astype(y, array.dtype) if dtypes.is_inexact(array.dtype) else y


def _greatest(x: Array, axis: int) -> Array:
    """The maximum over an axis, whose derivative goes to the first of equal ones."""
    whole = tuple([n if i == axis else 1 for i, n in enumerate(x.shape)])
    y = lax.reduce_window(x, _least(x), lax.max, whole)
    return jnp.squeeze(y, axis)


@dataclasses.dataclass(frozen=True)
class AdaptiveMaxPool(Module):
    """The maxima of as many bins as the output has, over 1 to 3 axes, channels last.

    Bins are those of `AdaptiveAvgPool`. Of equal maxima the first in row-major order has the
    derivative, as in PyTorch.

    Args:
        output: number of bins along each spatial axis, 1 to 3 integers, or one for all spatial
            axes of the input; None keeps an axis.

    Raises:
        ArgumentError: `output` is no such number; or, in a call, the input has other axes.

    >>> nn.AdaptiveMaxPool(1)({}, jnp.ones((1, 10, 6, 3))).shape
    (1, 1, 1, 3)
    """

    output: int | None | Sequence[int | None]

    def __post_init__(self) -> None:
        _check_output(self)

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        return _adaptive(self, x, _greatest)
