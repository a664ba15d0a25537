"""scipy.interpolate: functions given on grids."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as onp

import genesis_fn.numpy as np
from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.promotion import inexact_value

_METHODS = ("linear", "nearest")


class RegularGridInterpolator:
    """Interpolates values on a rectangular grid, whose lines may have any distances.

    It is a pytree of the grid, the values and the value outside, so that it is an argument of
    compiled and differentiated functions.

    Args:
        points: N arrays, the coordinates of the grid's lines along each axis, increasing.
        values: what the function is on the grid, [n_1, ..., n_N, ...].
        method: "linear" or "nearest".
        bounds_error: must be False: what lies outside gets `fill_value`.
        fill_value: the value outside; with None the outermost cells are extended.

    Raises:
        ArgumentError: another method, `bounds_error`, or coordinates that do not increase.
        ShapeError: grid and values do not fit.
        DTypeError: `fill_value` does not fit the values' dtype.

    >>> from genesis_fn.scipy.interpolate import RegularGridInterpolator
    >>> f = RegularGridInterpolator(
    ...     (jnp.array([1.0, 2.0]), jnp.array([4.0, 6.0])), jnp.array([[10.0, 20.0], [30.0, 40.0]])
    ... )
    >>> f(jnp.array([[1.5, 5.0], [1.0, 7.0]]))
    Array([25., nan], dtype=float32)
    """

    grid: tuple[Array, ...]
    values: Array
    method: str
    bounds_error: bool
    fill_value: Array | None

    def __init__(
        self,
        points: Sequence[ArrayLike],
        values: ArrayLike,
        method: str = "linear",
        bounds_error: bool = False,
        fill_value: ArrayLike | None = onp.nan,
    ) -> None:
        if bounds_error:
            raise errors.ArgumentError(
                "RegularGridInterpolator: bounds_error=True would have to look at values, which "
                f"compiled programs cannot\n  at {where().describe()}\n"
                "  leave it out: points outside get fill_value"
            )
        self.method, self.bounds_error = _checked(method), False
        self.values = inexact_value(values, "RegularGridInterpolator")
        self.grid = tuple([np.asarray(p) for p in points])
        for i, line in enumerate(self.grid):
            _check_line(i, line, self.values)
        self.fill_value = None if fill_value is None else np.asarray(fill_value)
        if self.fill_value is not None and not (
            dtypes.is_complex(self.values.dtype) or not dtypes.is_complex(self.fill_value.dtype)
        ):
            raise errors.DTypeError(
                f"RegularGridInterpolator: fill_value {self.fill_value.aval} does not fit values "
                f"{self.values.aval}\n  at {where().describe()}"
            )

    def __call__(self, xi: ArrayLike | tuple[ArrayLike, ...], method: str | None = None) -> Array:
        """The values at points.

        Args:
            xi: points, [..., N], or a tuple of N arrays of coordinates, which are broadcast.
            method: another method than the interpolator's.

        Returns:
            The values, [...] and the axes that follow the grid's in `values`.

        Raises:
            ShapeError: the points have not N coordinates.
        """
        method = self.method if method is None else _checked(method)
        at = _coordinates(xi, len(self.grid))
        rest = (1,) * (self.values.ndim - len(self.grid))
        cells, parts, outside = [], [], np.zeros(at[0].shape, bool)
        for x, line in zip(at, self.grid):
            n = line.shape[0]
            cell = np.clip(np.searchsorted(line, x) - 1, 0, n - 2)
            low, high = line[cell], line[cell + 1]
            cells.append(cell)
            parts.append(((x - low) / (high - low)).reshape(*x.shape, *rest))
            outside = outside | (x < line[0]) | (x > line[-1])
        result = self._nearest(cells, parts) if method == "nearest" else self._linear(cells, parts)
        if self.fill_value is None:
            return result
        fill = self.fill_value.astype(result.dtype)
        return np.where(outside.reshape(*outside.shape, *rest), fill, result)

    def _nearest(self, cells: list[Array], parts: list[Array]) -> Array:
        points = [c + (t.reshape(c.shape) > 0.5).astype(c.dtype) for c, t in zip(cells, parts)]
        return self.values[tuple(points)]

    def _linear(self, cells: list[Array], parts: list[Array]) -> Array:
        total: Any = 0.0
        for corner in itertools.product((0, 1), repeat=len(cells)):
            weight: Any = 1.0
            for upper, t in zip(corner, parts):
                weight = weight * (t if upper else 1 - t)
            points = tuple([c + upper for c, upper in zip(cells, corner)])
            total = total + self.values[points] * weight
        return total


def _checked(method: str) -> str:
    if method not in _METHODS:
        raise errors.ArgumentError(
            f"RegularGridInterpolator: method {method!r} is none of {', '.join(_METHODS)}\n"
            f"  at {where().describe()}"
        )
    return method


def _check_line(axis: int, line: Array, values: Array) -> None:
    if axis >= values.ndim or line.shape != values.shape[axis : axis + 1] or line.shape[0] < 2:
        raise errors.ShapeError(
            f"RegularGridInterpolator: points[{axis}] is {line.aval}, which is not axis {axis} of "
            f"values {values.aval}, with two points at least\n  at {where().describe()}"
        )
    # Traced lines cannot be looked at.
    known = onp.asarray(line) if type(line) is ArrayImpl else onp.arange(2)
    if not (known[1:] > known[:-1]).all():
        raise errors.ArgumentError(
            f"RegularGridInterpolator: points[{axis}] does not increase\n"
            f"  at {where().describe()}\n  sort it, and the axis of the values with it"
        )


def _coordinates(xi: ArrayLike | tuple[ArrayLike, ...], n: int) -> list[Array]:
    """One array of coordinates for each axis."""
    if isinstance(xi, tuple) and len(xi) == 1:
        (xi,) = xi
    if isinstance(xi, tuple):
        found = np.broadcast_arrays(*[inexact_value(np.asarray(x)) for x in xi])
    else:
        points = inexact_value(np.asarray(xi))
        if points.ndim == 1:  # points on a line, or one point
            points = points.reshape(-1, 1) if n == 1 else points.reshape(1, -1)
        found = [points[..., i] for i in range(points.shape[-1])]
    if len(found) != n:
        raise errors.ShapeError(
            f"RegularGridInterpolator: points of {len(found)} coordinates on a grid of {n} axes\n"
            f"  at {where().describe()}"
        )
    return found


def _flatten(f: RegularGridInterpolator) -> tuple[Any, Any]:
    return (f.grid, f.values, f.fill_value), (f.method, f.bounds_error)


def _unflatten(static: Any, leaves: Any) -> RegularGridInterpolator:
    f = object.__new__(RegularGridInterpolator)  # what the leaves are now is not looked at
    f.grid, f.values, f.fill_value = leaves
    f.method, f.bounds_error = static
    return f


tree.register_node(RegularGridInterpolator, _flatten, _unflatten)
