"""Scatters of one element to each row, such as the gradient of a cross-entropy at its labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from genesis_fn.compiler.rewrites.window_cells import run_of
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.primitives.indexing.gather_dims import ScatterDimensionNumbers
from genesis_fn.primitives.shape import concatenate_p


@dataclass(frozen=True, slots=True)
class OnePerRow:
    """A scatter that writes at most one element of each row of its operand.

    `along` is the operand's dimension that rows have; where in it the elements go is `at`, of the
    shape of the index vectors. `axes` are the axes of index vectors that lie along the operand's
    other dimensions, in their order; None for a dimension of one element.
    """

    along: int
    at: Var
    axes: tuple[int | None, ...]


def one_per_row(
    e: Eqn, producer: Callable[[Any], Eqn | None], known: Callable[[Any], np.ndarray | None]
) -> OnePerRow | None:
    """What a scatter is as one of an element to each row; None if it is none, or if an index out of
    bounds is an error or moved. `known` are the values of indices."""
    x, indices, updates = e.ins
    numbers: ScatterDimensionNumbers = e.params["dimension_numbers"]
    if e.params["mode"] not in ("fill", "promise_in_bounds") or numbers.update_window_dims:
        return None
    batch = indices.aval.shape[:-1]
    if updates.aval.shape != batch:
        return None
    axis_of: dict[int, int | None] = dict(
        zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims)
    )
    along, at = -1, None
    columns = _columns(indices, producer(indices))
    if columns is None or len(columns) != len(numbers.scatter_dims_to_operand_dims):
        return None
    for d, column in zip(numbers.scatter_dims_to_operand_dims, columns):
        values = known(column)
        if values is None:
            if at is not None:
                return None
            along, at = d, column
            continue
        run = run_of(values[..., 0])
        if run is None or run[1] or (run[0] is not None and run[2] != 1):
            return None
        axis_of[d] = run[0]
    if at is None or not _covers(axis_of, x.aval.shape, batch):
        return None
    others = [d for d in range(x.aval.ndim) if d != along]
    return OnePerRow(along, at, tuple([axis_of[d] for d in others]))


def _columns(indices: Var, e: Eqn | None) -> Sequence[Any] | None:
    """The components of index vectors, each an array of its own, or None."""
    if indices.aval.shape[-1] == 1:
        return [indices]
    last = indices.aval.ndim - 1
    if e is None or e.prim is not concatenate_p or e.params["dimension"] != last:
        return None
    return e.ins if all([type(i) is Var and i.aval.shape[-1] == 1 for i in e.ins]) else None


def _covers(axis_of: dict[int, int | None], shape: Sequence[int], batch: Sequence[int]) -> bool:
    """Whether the rows of an operand are those of the index vectors, each axis once."""
    used = [a for a in axis_of.values() if a is not None]
    if len({*used}) != len(used) or len(axis_of) != len(shape) - 1:
        return False
    lengths = all([shape[d] == (1 if a is None else batch[a]) for d, a in axis_of.items()])
    return lengths and all([n == 1 for a, n in enumerate(batch) if a not in used])
