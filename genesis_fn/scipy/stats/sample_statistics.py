"""Statistics of samples along an axis: the mode, ranks, the standard error of the mean."""

from __future__ import annotations

from typing import NamedTuple

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core import dtypes, errors
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.promotion import inexact_value, value
from genesis_fn.primitives.shape import canonical_axis


class ModeResult(NamedTuple):
    """The most frequent values, and how often they come."""

    mode: Array
    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]


def mode(
    a: ArrayLike, axis: int | None = 0, nan_policy: str = "propagate", keepdims: bool = False
) -> ModeResult:
    """The most frequent value along an axis; the smallest of several.

    Args:
        a: array of any shape.
        axis: that is reduced; None takes all values.
        nan_policy: "propagate" alone: NaN is a value like others, greater than they, as JAX has it.
        keepdims: whether the axis stays, with size 1.

    Returns:
        ModeResult(mode, count): the values, in the dtype of `a`, and how often they come, int32. Of
        no values the mode is NaN and the count 0, both floats.

    Raises:
        ValueError: another `nan_policy`.

    >>> gf.scipy.stats.mode(jnp.array([2, 4, 1, 1, 4, 2]))
    ModeResult(mode=Array(1, dtype=int32), count=Array(2, dtype=int32))
    """
    _check_nan_policy("mode", nan_policy, ("propagate",))
    x = np.atleast_1d(value(a, "mode"))
    dimensions = x.ndim
    if axis is None:
        x, last = x.reshape(-1), 0
    else:
        last = canonical_axis(axis, x.ndim, "mode")
    kept = tuple(s for i, s in enumerate(x.shape) if i != last)
    if x.shape[last] == 0:
        result = np.full(kept, np.nan, float), np.zeros(kept, float)
    else:
        ordered = np.sort(np.moveaxis(x, last, -1), axis=-1)
        index = np.arange(ordered.shape[-1], dtype=int)
        # How many equal values stand up to each: greatest at the end of the longest run.
        run = index - _starts_of_runs(ordered) + 1
        longest = np.argmax(run, axis=-1, keepdims=True)
        result = np.take_along_axis(ordered, longest, axis=-1)[..., 0], np.max(run, axis=-1)
    if keepdims:
        axes = tuple(range(dimensions)) if axis is None else (last,)
        result = np.expand_dims(result[0], axes), np.expand_dims(result[1], axes)
    return ModeResult(*result)


def rankdata(
    a: ArrayLike, method: str = "average", *, axis: int | None = None, nan_policy: str = "propagate"
) -> Array:
    """The ranks of values among all, from 1 on.

    Args:
        a: array of any shape.
        method: what rank equal values have: "average", "min" or "max" of the ranks that they take
            up together, "dense", as "min" but without gaps, or "ordinal", in the order in which
            they stand.
        axis: along which values are ranked; None ranks all, flat.
        nan_policy: "propagate" alone: where a NaN is among the values, all ranks are NaN.

    Returns:
        float32 ranks (float64 with `enable_x64`) of the shape of `a`, or flat for axis None.

    Raises:
        ValueError: another `method` or `nan_policy`.

    >>> gf.scipy.stats.rankdata(jnp.array([3.0, 1.0, 3.0, 2.0]))
    Array([3.5, 1. , 3.5, 2. ], dtype=float32)
    """
    _check_nan_policy("rankdata", nan_policy, ("propagate",))
    if method not in ("average", "min", "max", "dense", "ordinal"):
        raise errors.ArgumentError(
            f"rankdata: method is average, min, max, dense or ordinal, got {method!r}"
        )
    x = value(a, "rankdata")
    x, at = (x.reshape(-1), 0) if axis is None else (x, canonical_axis(axis, x.ndim, "rankdata"))
    x = np.moveaxis(x, at, -1)
    order = np.argsort(x, axis=-1)
    ordered = np.take_along_axis(x, order, axis=-1)
    ranks = _ranks_of_ordered(ordered, method).astype(float)
    # The inverse of the order puts each rank where its value stood.
    ranks = np.take_along_axis(ranks, np.argsort(order, axis=-1), axis=-1)
    ranks = np.where(np.any(np.isnan(x), axis=-1, keepdims=True), np.nan, ranks)
    return np.moveaxis(ranks, -1, at)


def _ranks_of_ordered(ordered: Array, method: str) -> Array:
    size = ordered.shape[-1]
    index = np.broadcast_to(np.arange(size, dtype=int), ordered.shape)
    if method == "ordinal":
        return index + 1
    starts = _starts_of_runs(ordered)
    if method == "dense":
        return np.cumsum(starts == index, axis=-1)
    first = starts + 1
    if method == "min":
        return first
    # A run ends where it starts in the values from behind.
    reverse = _starts_of_runs(np.flip(ordered, axis=-1))
    last = size - np.flip(reverse, axis=-1)
    return last if method == "max" else 0.5 * (first + last)


def _starts_of_runs(ordered: Array) -> Array:
    """For each of ordered values along the last axis, where the run of its equals starts."""
    before, after = ordered[..., :-1], ordered[..., 1:]
    changes = (before != after) & ~(np.isnan(before) & np.isnan(after))
    index = np.arange(1, ordered.shape[-1], dtype=int)
    starts = np.where(changes, index, 0)
    first = np.zeros((*ordered.shape[:-1], min(1, ordered.shape[-1])), int)
    return lax.cummax(np.concatenate([first, starts], axis=-1), axis=ordered.ndim - 1)


def sem(
    a: ArrayLike,
    axis: int | None = 0,
    ddof: int = 1,
    nan_policy: str = "propagate",
    *,
    keepdims: bool = False,
) -> Array:
    """The standard error of the mean along an axis.

        std(a, ddof) / sqrt(n)

    Args:
        a: array of any shape; integers become float32.
        axis: that is reduced; None takes all values.
        ddof: is subtracted from n in the divisor of the variance.
        nan_policy: "propagate", or "omit", which counts what is no NaN alone.
        keepdims: whether the axis stays, with size 1.

    Returns:
        Floats of the shape of `a` without the axis.

    Raises:
        ValueError: another `nan_policy`.

    >>> gf.scipy.stats.sem(jnp.array([1.0, 2.0, 4.0]))
    Array(0.8819172, dtype=float32)
    """
    _check_nan_policy("sem", nan_policy, ("propagate", "omit"))
    x = inexact_value(a, "sem")
    if nan_policy == "omit":
        count = np.sum(~np.isnan(x), axis, keepdims=keepdims)
        deviation = np.nanstd(x, axis, ddof=ddof, keepdims=keepdims)
        return deviation / np.sqrt(count.astype(dtypes.real_of(x.dtype)))
    size = x.size if axis is None else x.shape[canonical_axis(axis, x.ndim, "sem")]
    return np.std(x, axis, ddof=ddof, keepdims=keepdims) / size**0.5


def _check_nan_policy(name: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise errors.ArgumentError(
            f"{name}: nan_policy is {' or '.join(map(repr, known))}, got {given!r}; whether there "
            "are NaNs can be asked before, with jnp.isnan(a).any()"
        )
