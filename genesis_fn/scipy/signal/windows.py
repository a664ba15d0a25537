"""Segments of signals under a window."""

from __future__ import annotations

import operator
import warnings
from typing import Any, TypeAlias

import numpy as onp

import genesis_fn.numpy as np
from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import from_numpy
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike

Window: TypeAlias = str | tuple[Any, ...] | ArrayLike


def length_of(name: str, what: str, value: Any) -> int:
    """A length that the user gave, at least 1, as a Python int."""
    try:
        found = operator.index(value)
    except TypeError:
        raise errors.ArgumentError(
            f"{name}: {what} is an integer, got {value!r:.60}\n  at {where().describe()}"
        ) from None
    if found < 1:
        raise errors.ArgumentError(
            f"{name}: {what} is positive, got {found}\n  at {where().describe()}"
        )
    return found


def overlap_of(name: str, noverlap: Any, nperseg: int) -> int:
    """How many samples neighbouring segments share; half of them by default."""
    if noverlap is None:
        return nperseg // 2
    found = operator.index(noverlap)
    if not 0 <= found < nperseg:
        raise errors.ArgumentError(
            f"{name}: noverlap is from 0 to nperseg - 1 = {nperseg - 1}, got {found}\n"
            f"  at {where().describe()}"
        )
    return found


def fft_length_of(name: str, nfft: Any, nperseg: int) -> int:
    """The length of the transforms; that of the segments by default."""
    found = nperseg if nfft is None else length_of(name, "nfft", nfft)
    if found < nperseg:
        raise errors.ArgumentError(
            f"{name}: nfft {found} is less than nperseg {nperseg}\n  at {where().describe()}"
        )
    return found


def window_of(name: str, window: Window, nperseg: int | None, dtype: Any) -> Array:
    """The window's values, [nperseg], of a real dtype."""
    if isinstance(window, (str, tuple)):
        assert nperseg is not None
        if window == "hann":  # periodic
            angles = onp.arange(nperseg) * (onp.pi / nperseg)
            values = onp.square(onp.sin(angles)) if nperseg > 1 else onp.ones(1)
        else:
            from scipy.signal import get_window  # slow to import

            values = get_window(window, nperseg)
        return from_numpy(onp.asarray(values).astype(dtypes.real_of(dtype)))
    kind = dtypes.complex_of if np.iscomplexobj(window) else dtypes.real_of
    values = np.asarray(window, kind(dtypes.real_of(dtype)))
    if values.ndim != 1 or values.shape[0] == 0:
        raise errors.ShapeError(
            f"{name}: a window is a vector, got {values.aval}\n  at {where().describe()}"
        )
    if nperseg is not None and nperseg != values.shape[0]:
        raise errors.ShapeError(
            f"{name}: the window has length {values.shape[0]}, and nperseg is {nperseg}\n"
            f"  at {where().describe()}"
        )
    return values


def window_within(
    name: str, window: Window, nperseg: Any, length: int, dtype: Any
) -> tuple[Array, int]:
    """(window, nperseg) for a signal of `length`."""
    n = None if nperseg is None else length_of(name, "nperseg", nperseg)
    if isinstance(window, (str, tuple)):
        n = length if n is None else n
        if n > length:
            warnings.warn(
                f"{name}: nperseg {n} is greater than the signal's length {length}, which is taken",
                stacklevel=4,
            )
            n = length
    found = window_of(name, window, n, dtype)
    if found.shape[0] > length:
        raise errors.ShapeError(
            f"{name}: the window, {found.aval}, is longer than the signal, {length}\n"
            f"  at {where().describe()}"
        )
    return found, found.shape[0]


def segments_of(x: Array, nperseg: int, step: int) -> Array:
    """Overlapping segments of the last axis, [..., segments, nperseg]."""
    count = (x.shape[-1] - nperseg) // step + 1
    # Arithmetic, not an array: kernels see that it is a view of overlapping segments.
    positions = step * np.arange(count, dtype=np.int32)[:, None] + np.arange(
        nperseg, dtype=np.int32
    )
    return np.take(x, positions, axis=-1)


def overlapped_sum(x: Array, step: int) -> Array:
    """The transpose of `segments_of`: segments [..., segments, n] added up where they lie."""
    count, n = x.shape[-2:]
    blocks = -(-n // step)
    padding = [(0, 0)] * (x.ndim - 1) + [(0, blocks * step - n)]
    x = np.pad(x, padding).reshape(*x.shape[:-1], blocks, step)
    # Block b of segment s is block s + b of the sum.
    total: Any = 0
    for b in range(blocks):
        around = [(0, 0)] * (x.ndim - 3) + [(b, blocks - 1 - b), (0, 0)]
        total = total + np.pad(x[..., b, :], around)
    total = total.reshape(*total.shape[:-2], (count + blocks - 1) * step)
    return total[..., : step * (count - 1) + n]
