"""scipy.ndimage: values between the points of a grid."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.promotion import inexact_value


def _mirrored(index: Array, n: int) -> Array:
    """Reflected about the centres of the outer points: period 2 (n - 1)."""
    if n == 1:
        return np.zeros_like(index)
    return (n - 1) - np.abs(index % (2 * n - 2) - (n - 1))


def _reflected(index: Array, n: int) -> Array:
    """Reflected about the edges of the outer points, which repeat: period 2 n."""
    index = index % (2 * n)
    return np.minimum(index, 2 * n - 1 - index)


_MODES: dict[str, Callable[[Array, int], Array]] = {
    "constant": lambda index, n: np.clip(index, 0, n - 1),
    "nearest": lambda index, n: np.clip(index, 0, n - 1),
    "wrap": lambda index, n: index % n,
    "mirror": _mirrored,
    "reflect": _reflected,
}


def _neighbours(coordinate: Array, order: int) -> list[tuple[Array, ArrayLike]]:
    """The points that a coordinate lies between, with their weights."""
    if order == 0:
        return [(lax.round(coordinate).astype("int32"), 1)]
    low = np.floor(coordinate)
    part = coordinate - low
    index = low.astype("int32")
    return [(index, 1 - part), (index + 1, part)]


def map_coordinates(
    input: ArrayLike,
    coordinates: Sequence[ArrayLike],
    order: int,
    mode: str = "constant",
    cval: ArrayLike = 0.0,
) -> Array:
    """Values of an array at coordinates between its points.

    Args:
        input: values on a grid of N dimensions.
        coordinates: N arrays of one shape, in units of points: where to read.
        order: 0 for the nearest point, 1 for linear interpolation.
        mode: what lies outside: "constant" (`cval`), "nearest", "wrap" (SciPy's "grid-wrap"),
            "mirror" (about the outer points) or "reflect" (about their edges). "constant" is
            SciPy's "grid-constant": points outside take part in the interpolation.
        cval: the value outside, with "constant".

    Returns:
        The values, of the coordinates' shape and the input's dtype; of integers, rounded.

    Raises:
        ShapeError: there are not N coordinates.
        UnsupportedError: another order or mode.

    >>> from genesis_fn.scipy.ndimage import map_coordinates
    >>> grid = jnp.arange(12.0).reshape(3, 4)
    >>> map_coordinates(grid, [jnp.array([0.5, 1.5]), jnp.array([1.5, 2.5])], order=1)
    Array([3.5, 8.5], dtype=float32)
    """
    x = np.asarray(input)
    if len(coordinates) != x.ndim:
        raise errors.ShapeError(
            f"map_coordinates: {len(coordinates)} coordinates for {x.aval}\n"
            f"  at {where().describe()}"
        )
    if mode not in _MODES:
        raise errors.UnsupportedError(
            f"map_coordinates: mode {mode!r} is none of {', '.join(_MODES)}\n"
            f"  at {where().describe()}"
        )
    if order not in (0, 1):
        raise errors.UnsupportedError(
            f"map_coordinates: order {order!r} is neither 0 (nearest) nor 1 (linear)\n"
            f"  at {where().describe()}"
        )
    if x.ndim == 0:
        return x
    fill = np.asarray(cval, x.dtype)
    along_axes = [
        [
            (_MODES[mode](index, n), (index >= 0) & (index < n), weight)
            for index, weight in _neighbours(inexact_value(np.asarray(c)), order)
        ]
        for c, n in zip(coordinates, x.shape)
    ]
    terms = []
    for corner in itertools.product(*along_axes):
        indices, inside, weights = zip(*corner)
        found = x[indices]
        if mode == "constant":
            found = np.where(functools.reduce(operator.and_, inside), found, fill)
        terms.append(functools.reduce(operator.mul, weights) * found)
    total = functools.reduce(operator.add, terms)
    if not dtypes.is_inexact(x.dtype) and dtypes.is_inexact(total.dtype):
        total = lax.round(total)
    return total.astype(x.dtype)
