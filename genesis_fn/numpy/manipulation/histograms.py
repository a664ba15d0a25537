"""Histograms of points in several dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from genesis_fn.core import errors
from genesis_fn.core.diagnostics.source_info import where as user_line
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.creation import asarray
from genesis_fn.lax.promotion import inexact_dtype, promote_arrays, result_type, strong
from genesis_fn.numpy.arrays.grids import ix_
from genesis_fn.numpy.manipulation.sets import bincount, histogram_bin_edges
from genesis_fn.numpy.manipulation.shapes import reshape, stack
from genesis_fn.numpy.manipulation.sorting import searchsorted
from genesis_fn.numpy.mathematics.composed import isnan, where
from genesis_fn.numpy.mathematics.reductions import sum as sum_over
from genesis_fn.numpy.mathematics.statistics import diff
from genesis_fn.primitives.elementwise import convert

Bins = int | ArrayLike | Sequence[Any]
Ranges = Sequence[Any] | None


def _fitted(xs: Sequence[Array]) -> list[Array]:
    """Points, edges and weights in one floating dtype, whatever theirs are."""
    d = inexact_dtype(result_type(*xs))
    return [convert(x, d) for x in xs]


def histogramdd(
    sample: ArrayLike | Sequence[Any],
    bins: Bins = 10,
    range: Ranges = None,
    weights: ArrayLike | Sequence[Any] | None = None,
    density: bool | None = None,
) -> tuple[Array, list[Array]]:
    """How many points fall in each bin of a grid; the last bin of an axis is closed.

    Args:
        sample: [n, d] points.
        bins: the number of bins, or for each dimension a number or a vector of edges.
        range: for each dimension a pair of limits, or None for from the least to the greatest.
        weights: [n] what each point counts, by default 1.
        density: whether the result is divided by its sum and by the bins' volumes.

    Returns:
        (histogram, list of edges): integers without weights and density, else floats.

    Raises:
        ShapeError: for shapes, bins or ranges that do not fit.

    >>> histogramdd(jnp.array([[0.1, 0.1], [0.9, 0.2]]), bins=2, range=[(0, 1), (0, 1)])[0]
    Array([[1, 0],
           [1, 0]], dtype=int32)
    """
    given = [asarray(v) for v in (sample, weights) if v is not None]
    points, *scales = _fitted(given)
    if points.ndim != 2 or any(w.aval.shape != points.aval.shape[:1] for w in scales):
        _refuse("points [n, d] and weights [n]", ", ".join([str(v.aval) for v in given]))
    d = points.aval.shape[1]
    if range is not None and (len(range) != d or any(r is not None and len(r) != 2 for r in range)):
        _refuse(f"{d} pairs or None for range", str(range))
    each: list[Any] = list(bins) if _is_sequence(bins) else [bins] * d  # pyright: ignore[reportArgumentType]
    if len(each) != d:
        _refuse(f"bins for each of {d} dimensions", f"{len(each)}")
    edges, flat, outside = [], 0, isnan(points[:, 0])
    for i, count in enumerate(each):
        x = points[:, i]
        e = histogram_bin_edges(x, count, None if range is None else range[i])
        x, e = _fitted([x, e])
        index = searchsorted(e, x, side="right") - 1
        index = where(x == e[-1], e.size - 2, index)
        outside = outside | (x < e[0]) | (x > e[-1]) | isnan(x)
        flat = flat * (e.size - 1) + index
        edges.append(e)
    counts = [e.size - 1 for e in edges]
    total = math.prod(counts)
    weighed = scales[0] if scales else None
    found = bincount(where(outside, total, flat), weighed, length=total)
    found = reshape(found, counts)
    if density:
        found = found.astype(points.dtype)
        found = found / sum_over(found)
        for widths in ix_(*[diff(e) for e in edges]):
            found = found / widths
    return strong(found), edges


def _is_sequence(bins: Any) -> bool:
    return isinstance(bins, list | tuple) or getattr(bins, "ndim", 0) > 0


def _refuse(takes: str, got: str) -> None:
    raise errors.ShapeError(
        f"histogramdd takes {takes}, got {got}\n  at {user_line(depth=3).describe()}"
    )


def histogram2d(
    x: ArrayLike | Sequence[Any],
    y: ArrayLike | Sequence[Any],
    bins: Bins = 10,
    range: Ranges = None,
    weights: ArrayLike | Sequence[Any] | None = None,
    density: bool | None = None,
) -> tuple[Array, Array, Array]:
    """How many points fall in each bin of a grid in the plane; the last bin of an axis is closed.

    Args:
        x: [n] abscissas.
        y: [n] ordinates.
        bins: the number of bins, a vector of edges, or a pair of such.
        range: a pair of pairs of limits, by default from the least to the greatest.
        weights: [n] what each point counts, by default 1.
        density: whether the result is divided by its sum and by the bins' areas.

    Returns:
        (histogram with the bins of `x` in rows, edges of x, edges of y).

    >>> histogram2d(jnp.array([0.1, 0.9]), jnp.array([0.1, 0.2]), 2, [(0, 1), (0, 1)])[0]
    Array([[1, 0],
           [1, 0]], dtype=int32)
    """
    if _is_sequence(bins) and len(bins) not in (1, 2):  # pyright: ignore[reportArgumentType]
        bins = [asarray(bins)] * 2
    points = stack(promote_arrays("histogram2d", [asarray(x), asarray(y)]), 1)
    found, (of_x, of_y) = histogramdd(points, bins, range, weights, density)
    return found, of_x, of_y
