"""Window functions, which taper a signal towards its ends."""

from __future__ import annotations

import math
import operator

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where as user_line
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.creation import asarray
from genesis_fn.lax.promotion import strong
from genesis_fn.numpy.arrays.grids import arange
from genesis_fn.numpy.mathematics.composed import i0
from genesis_fn.numpy.mathematics.ufuncs import absolute, cos, maximum, sqrt, square
from genesis_fn.primitives.factories import full


def _positions(M: int, name: str) -> Array | None:
    """0, 1, ..., M - 1, or None where a window has one point at most."""
    count = operator.index(M)
    if count < 0:
        raise errors.ArgumentError(
            f"{name} has M >= 0 points, got {count}\n  at {user_line().describe()}"
        )
    return arange(count, dtype=dtypes.default_float()) if count > 1 else None


def _cosines(M: int, name: str, *weights: float) -> Array:
    """The sum of weights[k] cos(2 pi k n / (M - 1))."""
    n = _positions(M, name)
    if n is None:
        return full((M,), 1.0, dtypes.default_float())
    total = weights[0]
    for k, w in enumerate(weights[1:], 1):
        total = total + w * cos(n * (2 * math.pi * k / (M - 1)))
    return strong(asarray(total))


def bartlett(M: int) -> Array:
    """Bartlett's window, a triangle that is 0 at both ends.

    Args:
        M: the number of points.

    Returns:
        A vector [M] of float32; ones for M = 1.

    >>> bartlett(5)
    Array([0. , 0.5, 1. , 0.5, 0. ], dtype=float32)
    """
    n = _positions(M, "bartlett")
    if n is None:
        return full((M,), 1.0, dtypes.default_float())
    return strong(1.0 - absolute(2.0 * n + (1.0 - M)) / (M - 1.0))


def blackman(M: int) -> Array:
    """Blackman's window: 0.42 - 0.5 cos(2 pi n / (M - 1)) + 0.08 cos(4 pi n / (M - 1)).

    Args:
        M: the number of points.

    Returns:
        A vector [M] of float32; ones for M = 1.

    >>> blackman(5).shape
    (5,)
    """
    return _cosines(M, "blackman", 0.42, -0.5, 0.08)


def hamming(M: int) -> Array:
    """Hamming's window: 0.54 - 0.46 cos(2 pi n / (M - 1)).

    Args:
        M: the number of points.

    Returns:
        A vector [M] of float32; ones for M = 1.

    >>> [round(float(w), 2) for w in hamming(3)]
    [0.08, 1.0, 0.08]
    """
    return _cosines(M, "hamming", 0.54, -0.46)


def hanning(M: int) -> Array:
    """Von Hann's window: 0.5 - 0.5 cos(2 pi n / (M - 1)).

    Args:
        M: the number of points.

    Returns:
        A vector [M] of float32; ones for M = 1.

    >>> hanning(3)
    Array([0., 1., 0.], dtype=float32)
    """
    return _cosines(M, "hanning", 0.5, -0.5)


def kaiser(M: int, beta: ArrayLike) -> Array:
    """Kaiser's window: I_0(beta sqrt(1 - (2 n / (M - 1) - 1)^2)) / I_0(beta).

    Args:
        M: the number of points.
        beta: how steeply it falls: 0 is a rectangle.

    Returns:
        A vector [M] of floats; ones for M = 1.

    >>> kaiser(3, 0.0)
    Array([1., 1., 1.], dtype=float32)
    """
    n = _positions(M, "kaiser")
    if n is None:
        return full((M,), 1.0, dtypes.default_float())
    away = n * (2.0 / (M - 1)) - 1.0
    # The square root has no derivative at the ends, where it is 0, and needs none: n is constant.
    return i0(beta * sqrt(maximum(1.0 - square(away), 0.0))) / i0(beta)
