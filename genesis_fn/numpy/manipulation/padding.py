"""pad: borders of constants, edges, reflections, ramps and statistics."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from genesis_fn.core import dtypes
from genesis_fn.core.array import Array
from genesis_fn.core.primitive import with_weak
from genesis_fn.core.types.annotations import ArrayLike
from genesis_fn.lax.creation import asarray
from genesis_fn.lax.promotion import broadcast, scalar_as, value
from genesis_fn.numpy.arrays.grids import linspace
from genesis_fn.numpy.manipulation.rearrange import kept
from genesis_fn.numpy.manipulation.shapes import concatenate, flip, ndim
from genesis_fn.numpy.mathematics import reductions, statistics
from genesis_fn.numpy.mathematics.ufuncs import rint
from genesis_fn.primitives import shape as p
from genesis_fn.primitives.elementwise import convert
from genesis_fn.primitives.shape import canonical_axis


def pad(
    array: ArrayLike,
    pad_width: ArrayLike | Sequence[Any] | dict[int, Any],
    mode: str | Callable[..., Any] = "constant",
    **kwargs: Any,
) -> Array:
    """`array` with borders of widths `pad_width`: an int, a pair, or a pair per axis.

    Modes: constant (constant_values=), edge, reflect, symmetric (reflect_type=), wrap, linear_ramp
    (end_values=), maximum, mean, median, minimum (stat_length=), empty; or a function, which gives
    each vector(vector, its pair of widths, axis, kwargs) along each axis that zeros pad.
    """
    x = value(array, "pad")
    return with_weak(_padded(x, pad_width, mode, kwargs), x.weak)


def _padded(x: Any, pad_width: Any, mode: Any, kwargs: dict[str, Any]) -> Array:
    widths = _pairs(pad_width, x.ndim, "pad_width")
    if any(w < 0 for pair in widths for w in pair):
        raise ValueError(f"pad: widths must not be negative, got {widths}")
    widths = [(operator.index(a), operator.index(b)) for a, b in widths]
    if callable(mode):
        wide: Any = p.pad(x, scalar_as(0, x.dtype), [(low, high, 0) for low, high in widths])
        for axis, width in enumerate(widths):
            extra: Any = (width, axis, kwargs)
            wide = statistics.apply_along_axis(mode, axis, wide, *extra)
        return wide
    allowed = _PAD_OPTIONS.get(mode)
    if allowed is None:
        raise ValueError(f"pad: unknown mode {mode!r}; there are {', '.join(_PAD_OPTIONS)}")
    for name in kwargs:
        if name not in allowed:
            raise ValueError(f"pad: mode {mode!r} takes no {name}=")
    if mode in ("constant", "empty"):
        return _pad_constant(x, widths, kwargs.get("constant_values", 0))
    for axis, (before, after) in enumerate(widths):
        if before or after:
            x = _pad_axis(x, axis, before, after, mode, kwargs)
    return x


_PAD_OPTIONS: dict[str, tuple[str, ...]] = {
    "constant": ("constant_values",), "empty": (), "edge": (), "wrap": (),
    "reflect": ("reflect_type",), "symmetric": ("reflect_type",), "linear_ramp": ("end_values",),
    "maximum": ("stat_length",), "mean": ("stat_length",), "median": ("stat_length",),
    "minimum": ("stat_length",),
}  # fmt: skip


def _pairs(given: Any, n: int, name: str) -> list[tuple[Any, Any]]:
    """A (before, after) pair per axis."""
    if isinstance(given, dict):
        pairs = [(0, 0)] * n
        for axis, w in given.items():
            pairs[canonical_axis(axis, n, "pad")] = (w, w) if ndim(w) == 0 else tuple(w)
        return pairs
    if isinstance(given, Array) and given.ndim == 0:
        return [(given, given)] * n
    if not isinstance(given, (list, tuple)):
        given = np.asarray(given).tolist()
    if not isinstance(given, (list, tuple)):
        return [(given, given)] * n
    entries = list(given)
    if all(ndim(e) == 0 for e in entries) and len(entries) in (1, 2):
        return [(entries[0], entries[-1])] * n
    if len(entries) == 1:
        entries *= n
    if len(entries) != n:
        raise ValueError(f"pad: {name} has {len(entries)} entries for {n} axes")
    return [(e, e) if ndim(e) == 0 else (e[0], e[-1]) for e in entries]


def _pad_constant(x: Any, widths: list[tuple[int, int]], given: Any) -> Array:
    fills = _pairs(given, x.ndim, "constant_values")
    first = fills[0][0] if fills else 0
    if all(v is first or (not hasattr(v, "aval") and v == first) for pair in fills for v in pair):
        return p.pad(x, _fill(first, x), [(a, b, 0) for a, b in widths])
    for axis, ((before, after), (low, high)) in enumerate(zip(widths, fills)):
        config = [(0, 0, 0)] * x.ndim
        config[axis] = (before, 0, 0)
        x = p.pad(x, _fill(low, x), config)
        config[axis] = (0, after, 0)
        x = p.pad(x, _fill(high, x), config)
    return x


def _fill(v: Any, x: Array) -> ArrayLike:
    if isinstance(v, Array):
        return convert(v, x.dtype)
    if isinstance(v, np.generic):
        v = v.item()
    if type(v) is complex and not dtypes.is_complex(x.dtype):
        v = v.real
    return scalar_as(v, x.dtype)


def _pad_axis(
    x: Any, axis: int, before: int, after: int, mode: str, options: dict[str, Any]
) -> Array:
    n = x.aval.shape[axis]
    if mode in ("linear_ramp", "maximum", "mean", "median", "minimum"):
        return _pad_computed(x, axis, before, after, mode, options)
    if n == 0:
        raise ValueError(f"pad: axis {axis} of {x.aval} is empty, so mode {mode!r} has no values")
    if options.get("reflect_type", "even") != "even":
        return _pad_odd(x, axis, before, after, mode)
    numpy_mode: Any = mode
    positions = np.pad(np.arange(n), (before, after), mode=numpy_mode)
    if mode == "edge":
        first, last = p.slice_in_dim(x, 0, 1, axis=axis), p.slice_in_dim(x, n - 1, n, axis=axis)
        parts = [_repeated(first, before, axis), x, _repeated(last, after, axis)]
        return p.concatenate([part for part in parts if part.aval.shape[axis]], axis)
    runs = _runs(positions)
    if len(runs) > _MOST_PARTS:
        return kept(x, positions, axis)
    return p.concatenate([_run(x, axis, *ends) for ends in runs], axis)


_MOST_PARTS = 8  # of a concatenation; more are gathered


def _runs(positions: np.ndarray) -> list[tuple[int, int]]:
    """The (first, last) positions of runs in which each is one more, or one less, than the one
    before it."""
    runs: list[list[int]] = []
    for i in positions.tolist():
        if runs and len(runs[-1]) == 1 and abs(i - runs[-1][-1]) == 1:
            runs[-1].append(i)
        elif runs and len(runs[-1]) > 1 and i - runs[-1][-1] == runs[-1][1] - runs[-1][0]:
            runs[-1].append(i)
        else:
            runs.append([i])
    return [(run[0], run[-1]) for run in runs]


def _run(x: Any, axis: int, first: int, last: int) -> Any:
    """The elements of `x` from one position to another, in this order."""
    if first == 0 and last == x.aval.shape[axis] - 1:
        return x
    low, high = min(first, last), max(first, last)
    part = p.slice_in_dim(x, low, high + 1, axis=axis)
    return part if first <= last else flip(part, axis)


def _repeated(x: Any, count: int, axis: int) -> Array:
    shape = list(x.aval.shape)
    shape[axis] = count
    return broadcast(x, tuple(shape))


def _pad_odd(x: Any, axis: int, before: int, after: int, mode: str) -> Array:
    # 2 * edge - mirrored, in rounds where the border is wider than the array.
    while before or after:
        n = x.aval.shape[axis]
        skip = 1 if mode == "reflect" else 0
        widest = max(n - skip, 1)
        low, high = min(before, widest), min(after, widest)
        first, last = p.slice_in_dim(x, 0, 1, axis=axis), p.slice_in_dim(x, n - 1, n, axis=axis)
        if n == 1:
            left, right = _repeated(first, low, axis), _repeated(last, high, axis)
        else:
            mirrored = flip(x, axis)
            left = 2 * first - p.slice_in_dim(mirrored, n - skip - low, n - skip, axis=axis)
            right = 2 * last - p.slice_in_dim(mirrored, skip, skip + high, axis=axis)
        x = concatenate([left, x, right], axis)
        before, after = before - low, after - high
    return x


def _pad_computed(
    x: Any, axis: int, before: int, after: int, mode: str, options: dict[str, Any]
) -> Array:

    n = x.aval.shape[axis]
    edges = (p.slice_in_dim(x, 0, 1, axis=axis), p.slice_in_dim(x, n - 1, n, axis=axis))
    parts = []
    for side, (width, edge) in enumerate(zip((before, after), edges)):
        if mode == "linear_ramp":
            end = _pairs(options.get("end_values", 0), x.ndim, "end_values")[axis][side]
            ramp = linspace(
                p.squeeze(asarray(end, x.dtype) + edge * 0, (axis,)),
                p.squeeze(edge, (axis,)),
                width,
                endpoint=False,
                dtype=x.dtype,
                axis=axis,
            )
            parts.append(ramp if side == 0 else flip(ramp, axis))
            continue
        length = options.get("stat_length")
        length = n if length is None else _pairs(length, x.ndim, "stat_length")[axis][side]
        length = min(n, n if length is None else length)
        window = (
            p.slice_in_dim(x, 0, length, axis=axis)
            if side == 0
            else p.slice_in_dim(x, n - length, n, axis=axis)
        )
        statistic = _statistic(mode)(window, axis=axis, keepdims=True)
        if dtypes.is_integer(x.dtype) and mode in ("mean", "median"):
            statistic = rint(statistic)
        parts.append(_repeated(convert(statistic, x.dtype), width, axis))
    return concatenate([parts[0], x, parts[1]], axis)


def _statistic(mode: str) -> Callable[..., Any]:
    return {
        "maximum": reductions.max,
        "minimum": reductions.min,
        "mean": reductions.mean,
        "median": statistics.median,
    }[mode]
