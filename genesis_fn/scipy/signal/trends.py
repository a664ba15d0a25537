"""scipy.signal.detrend: signals without their trends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as onp

import genesis_fn.numpy as np
from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import from_numpy
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.promotion import inexact_value
from genesis_fn.primitives.shape import canonical_axis


def detrend(
    data: ArrayLike,
    axis: int = -1,
    type: str = "linear",
    bp: int | Sequence[int] | onp.ndarray = 0,
    overwrite_data: None = None,
) -> Array:
    """A signal without its mean, or without the lines that fit it best.

        y = x - mean(x) - t sum(t x) / sum(t^2),   t = times less their mean

    Args:
        data: the signal, real or complex.
        axis: the axis along which time goes.
        type: "linear", or "constant" for the mean alone.
        bp: positions, between which each part has a line of its own.
        overwrite_data: None: arrays are immutable.

    Returns:
        The signal without its trend, in its dtype; float32 of integers.

    Raises:
        ArgumentError: another `type`, positions outside of the signal, or `overwrite_data`.

    >>> from genesis_fn.scipy.signal import detrend
    >>> detrend(jnp.array([1.0, 4.0, 8.0, 8.0, 9.0])).round(3)
    Array([-1., 0., 2., 0., -1.], dtype=float32)
    """
    if overwrite_data is not None:
        raise errors.ArgumentError(
            f"detrend: overwrite_data: arrays are immutable\n  at {where().describe()}\n"
            "  leave it out and use the result"
        )
    if type not in ("linear", "constant"):
        raise errors.ArgumentError(
            f"detrend: type {type!r} is none of 'linear', 'constant'\n  at {where().describe()}"
        )
    x = inexact_value(np.asarray(data), "detrend")
    axis = canonical_axis(axis, x.ndim, "detrend")
    if type == "constant":
        return x - np.mean(x, axis, keepdims=True)
    n = x.shape[axis]
    ends = onp.unique(onp.concatenate([[0], onp.atleast_1d(bp), [n]]).astype(int))
    if ends[0] < 0 or ends[-1] > n:
        raise errors.ArgumentError(
            f"detrend: breakpoints {bp} outside of a signal of length {n}\n"
            f"  at {where().describe()}"
        )
    parts = np.split(np.moveaxis(x, axis, -1), ends[1:-1].tolist(), axis=-1)
    return np.moveaxis(np.concatenate([_without_line(p) for p in parts], -1), -1, axis)


def _without_line(x: Array) -> Array:
    n = x.shape[-1]
    times = onp.arange(n) - (n - 1) / 2
    scale = onp.sqrt(onp.square(times).sum()) if n > 1 else 1.0
    line = from_numpy((times / scale).astype(dtypes.real_of(x.dtype)))
    centred = x - np.mean(x, -1, keepdims=True)
    return centred - line * np.sum(line * centred, -1, keepdims=True)
