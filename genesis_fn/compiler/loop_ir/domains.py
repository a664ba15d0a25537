"""The iteration domains of generated kernels.

A domain is a shape, some of whose axes are reduced. Loop variable `p` runs over the kept axes and
`r` over the reduced ones, each in row-major order; a pointwise kernel has no `r`.

A domain of rows may be `row_column`: its kernel then also reduces over `p`, each column by itself
("column_reduce"), as the backward pass of a norm does. What depends on a column reduction has one
value for each column and is computed when all rows are done.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.target import Target
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr

_MIN_ROWS = 256  # of a row-and-column domain
_MIN_ROW, _MAX_ROW = 32, 8192


@dataclass(frozen=True, slots=True)
class IterationDomain:
    """The iteration space as (size, whether reduced) of each axis, in canonical form: neighbours
    differ in whether they are reduced, sizes are above 1."""

    axes: tuple[tuple[int, bool], ...]
    row_column: bool = False

    @property
    def kept(self) -> int:
        """The number of values of `p`."""
        return math.prod([n for n, reduced in self.axes if not reduced])

    @property
    def reduced(self) -> int:
        """The number of values of `r`; 1 for a pointwise domain."""
        return math.prod([n for n, reduced in self.axes if reduced])

    @property
    def size(self) -> int:
        """The number of points."""
        return math.prod([n for n, _ in self.axes])

    @property
    def inner(self) -> bool:
        """Whether the innermost axis is a reduced one."""
        return bool(self.axes) and self.axes[-1][1]

    def wants_split(self, target: Target) -> bool:
        """Whether rows are too few to occupy the GPU, so that each is reduced in several parts."""
        # A second kernel adds the parts, which only long rows of much data are worth. A row of
        # neighbours up to `_MAX_ROW` would have a single part: one is two chunks of 4,096 at least.
        least = _MAX_ROW + 1 if self.inner else 1024
        if self.row_column or self.reduced < least or self.size < 1 << 15:
            return False
        return (self.kept if self.inner else -(-self.kept // 64)) < 2 * target.processors

    def position(self) -> Expr:
        """The row-major position of a point."""
        p = iter(
            ix.unravel(parallel_index(self.kept), tuple([n for n, red in self.axes if not red]))
        )
        r = iter(
            ix.unravel(reduction_index(self.reduced), tuple([n for n, red in self.axes if red]))
        )
        index = tuple([next(r) if red else next(p) for _, red in self.axes])
        return ix.ravel(index, tuple([n for n, _ in self.axes]))


def parallel_index(size: int) -> Expr:
    """The variable over kept axes."""
    return ix.var("p", size)


def reduction_index(size: int) -> Expr:
    """The variable over reduced axes."""
    return ix.var("r", size)


def iteration_domain(shape: Sequence[int], axes: Collection[int] = ()) -> IterationDomain:
    """The domain of a shape of which `axes` are reduced."""
    # Canonical, so that shapes that a reshape turns into each other have equal domains.
    merged: list[list[Any]] = []
    for i, n in enumerate(shape):
        if n == 1:
            continue
        if merged and merged[-1][1] == (i in axes):
            merged[-1][0] *= n
        else:
            merged.append([n, i in axes])
    return IterationDomain(tuple([(n, red) for n, red in merged]))


def common_domain(a: IterationDomain, b: IterationDomain) -> IterationDomain | None:
    """The domain in which the roots of both can be computed, None if there is none."""
    if a == b:
        return a
    if a.reduced > 1 and b.reduced > 1:
        # Of two reductions, one may run along rows and the other down the columns of the same
        # matrix: a row-and-column kernel reads it once.
        for rows, other in ((a, b), (b, a)):
            if rows.axes == other.axes:
                return rows if rows.row_column else other
            if rows.inner and row_column_domain(other) == replace(rows, row_column=True):
                return row_column_domain(other)
        return None
    # Unequal pointwise domains differ in size: both are one flat axis.
    if a.reduced == 1 and b.reduced == 1:
        return None
    # A pointwise root runs in a reduction's loops over all points, or once for each result.
    loop, flat = (a, b) if a.reduced > 1 else (b, a)
    sizes = (loop.size, loop.kept, loop.reduced) if loop.row_column else (loop.size, loop.kept)
    return loop if flat.size in sizes else None


def row_column_domain(columns: IterationDomain) -> IterationDomain | None:
    """The row-and-column domain for a reduction over the leading axis (`columns`), None if its rows
    are too few, or too long to stay on chip."""
    if len(columns.axes) != 2 or columns.inner or columns.reduced < _MIN_ROWS:
        return None
    if not enabled("row_column_reduce"):
        return None
    if not _MIN_ROW <= columns.kept <= _MAX_ROW:
        return None
    return IterationDomain(((columns.reduced, False), (columns.kept, True)), row_column=True)
