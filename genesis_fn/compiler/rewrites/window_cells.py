"""Where the windows of a gather or scatter lie whose indices are known when it is compiled.

The dimensions of an operand in which windows move, or which they do not take whole, are its cells;
an update is a number of the grid of index vectors and of the elements of a window along cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from genesis_fn.core.aval import Aval
from genesis_fn.primitives.indexing.gather_dims import ScatterDimensionNumbers, window_sizes


@dataclass(frozen=True, slots=True)
class WindowCells:
    """What a scatter with known indices writes where.

    * `dims`: the operand's dimensions that are cells, in order; `whole`, the others.
    * `grid`: the updates' dimensions that number updates, in the order in which they are written.
    * `cell`: the cell that each update of the grid goes to, flat, -1 if it is dropped.
    """

    dims: tuple[int, ...]
    whole: tuple[int, ...]
    grid: tuple[int, ...]
    shape: tuple[int, ...]
    cell: np.ndarray

    @property
    def count(self) -> int:
        """The number of cells."""
        return math.prod(self.shape)

    @property
    def is_unique(self) -> bool:
        """Whether no two updates go to one cell."""
        kept = self.cell[self.cell >= 0]
        return np.unique(kept).size == kept.size

    def last_update(self) -> np.ndarray:
        """The last update that goes to each cell, [*shape], -1 where there is none."""
        found = np.full(self.count, -1, np.int64)
        kept = np.flatnonzero(self.cell >= 0)
        np.maximum.at(found, self.cell.reshape(-1)[kept], kept)
        return found.reshape(self.shape)


def placed_windows(
    indices: np.ndarray,
    shape: Sequence[int],
    mapped: Sequence[int],
    sizes: Sequence[int],
    mode: str,
) -> tuple[np.ndarray, np.ndarray]:
    """(index vectors, which of them have their window inside of an operand of `shape`), in mode
    "clip" moved inside."""
    bounds = np.array([shape[d] - sizes[d] for d in mapped], np.int64)
    # Of uint64, what int64 does not hold is out of bounds as well.
    big = np.iinfo(np.int64).max
    wide = np.minimum(indices, big).astype(np.int64) if indices.dtype == np.uint64 else indices
    wide = wide.astype(np.int64)
    if mode == "clip":
        wide = np.clip(wide, 0, bounds)
    return wide, np.asarray(((wide >= 0) & (wide <= bounds)).all(-1))


def window_cells(
    operand: Aval,
    indices: np.ndarray,
    updates: Aval,
    numbers: ScatterDimensionNumbers,
    mode: str,
    most: int,
) -> WindowCells | None:
    """The cells of a scatter; None if an index out of bounds is an error or undefined, or if there
    are more than `most` of them, or of updates."""
    window, inserted, mapped, batching, index_batching = numbers
    sizes = window_sizes(operand, updates, numbers)
    starts, inside = placed_windows(indices, operand.shape, mapped, sizes, mode)
    if mode in ("check", "promise_in_bounds") and not inside.all():
        return None
    moving = [d for d in range(operand.ndim) if d not in inserted and d not in batching]
    at = dict(zip(moving, window, strict=True))  # the updates' dimension of each of the operand
    whole = tuple([d for d in moving if sizes[d] == operand.shape[d]])
    dims = tuple([d for d in range(operand.ndim) if d not in whole])
    batch = [d for d in range(updates.ndim) if d not in window]
    within = [d for d in dims if d in at]
    grid = (*batch, *[at[d] for d in within])
    lengths = [updates.shape[d] for d in grid]
    shape = tuple([operand.shape[d] for d in dims])
    if max(math.prod(lengths), math.prod(shape)) > most:
        return None
    cell = np.zeros(lengths, np.int64)
    for d, n in zip(dims, shape):
        part = np.zeros((1,) * len(grid), np.int64)
        if d in mapped:
            start = starts[..., mapped.index(d)]
            part = part + start.reshape(start.shape + (1,) * len(within))
        if d in batching:
            part = part + _counted(index_batching[batching.index(d)], lengths)
        if d in within:
            part = part + _counted(len(batch) + within.index(d), lengths)
        cell = cell * n + part
    kept = np.broadcast_to(inside.reshape(inside.shape + (1,) * len(within)), lengths)
    return WindowCells(dims, whole, grid, shape, np.where(kept, cell, -1))


def _counted(axis: int, lengths: Sequence[int]) -> np.ndarray:
    shape = [n if i == axis else 1 for i, n in enumerate(lengths)]
    return np.arange(lengths[axis]).reshape(shape)


def counts_of(values: np.ndarray) -> tuple[int, Sequence[int]] | None:
    """(first, steps along the axes) of values that count along several axes at once, as those of
    overlapping frames; None of others."""
    first, steps = int(values.flat[0]), []
    for axis, n in enumerate(values.shape):
        at = tuple([1 if d == axis else 0 for d in range(values.ndim)])
        steps.append(int(values[at]) - first if n > 1 else 0)
    expected = first + sum([s * _counted(d, values.shape) for d, s in enumerate(steps) if s])
    return (first, steps) if (values == expected).all() else None


def run_of(values: np.ndarray) -> tuple[int | None, int, int] | None:
    """(axis, first, step) of values that count along one axis, (None, value, 0) of equal ones; None
    of others."""
    first = int(values.flat[0])
    if (values == first).all():
        return None, first, 0
    for axis, n in enumerate(values.shape):
        if n > 1:
            line = values[tuple([slice(None) if d == axis else 0 for d in range(values.ndim)])]
            step = int(line[1]) - first
            if step:
                expected = first + step * _counted(axis, values.shape)
                return (axis, first, step) if (values == expected).all() else None
    return None
