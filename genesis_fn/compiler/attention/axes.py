"""Logical axes: what each axis of an array is in an attention, however the array is laid out.

The scores are a product of queries and keys. Their axes are numbered once, as batch, left and right
axes of that product; an array axis is then a run of such logical axes. Transposes permute runs,
reshapes join and cut them, so that every layout of the same values is told by its runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias


class LogicalAxis(NamedTuple):
    """A part of an axis: of the scores ("batch", "left", "right"), of what queries and keys are
    contracted over ("inner"), or of values ("feature"). "any" repeats elements: it is whatever axis
    it is combined with."""

    role: str
    number: int
    part: int
    size: int


Run: TypeAlias = tuple[LogicalAxis, ...]  # of one array axis, major first; () has length 1
AxisMap: TypeAlias = tuple[Run, ...]


class Unmappable(Exception):
    """The array cannot be told by logical axes."""


class Split(Exception):
    """A reshape cuts a logical axis: its first part has `outer` elements."""

    def __init__(self, axis: LogicalAxis, outer: int) -> None:
        super().__init__(axis, outer)
        self.axis, self.outer = axis, outer


_ANONYMOUS = itertools.count()


def anonymous(size: int) -> Run:
    """The run of an axis along which elements are repeated."""
    return () if size == 1 else (LogicalAxis("any", next(_ANONYMOUS), 0, size),)


class AxisTable:
    """The logical axes of one attention, cut into parts as reshapes need them."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: dict[tuple[str, int], list[int]] = {}

    def run(self, role: str, index: int, size: int) -> Run:
        """The run of a whole axis."""
        if size == 1:
            return ()
        sizes = self.parts.get((role, index), [size])
        return tuple([LogicalAxis(role, index, p, n) for p, n in enumerate(sizes)])

    def cut(self, split: Split) -> None:
        """Cut an axis; what was made of it before is void."""
        axis = split.axis
        sizes = self.parts.setdefault((axis.role, axis.number), [axis.size])
        sizes[axis.part : axis.part + 1] = [split.outer, axis.size // split.outer]


def members(axes: AxisMap) -> frozenset[LogicalAxis]:
    """All logical axes of an array."""
    return frozenset(itertools.chain.from_iterable(axes))


def permuted(axes: AxisMap, order: Sequence[int]) -> AxisMap:
    """The axes of a transpose."""
    return tuple([axes[d] for d in order])


def before_transpose(axes: AxisMap, order: Sequence[int]) -> AxisMap:
    """The axes of what was transposed into `axes`."""
    found: list[Run] = [()] * len(order)
    for run, d in zip(axes, order, strict=True):
        found[d] = run
    return tuple(found)


def reshaped(axes: AxisMap, shape: Sequence[int]) -> AxisMap:
    """The axes of a reshape. Raises Split where it cuts a logical axis, Unmappable where it cuts
    across."""
    rest = list(itertools.chain.from_iterable(axes))
    result: list[Run] = []
    for length in shape:
        run: list[LogicalAxis] = []
        wanted = length
        while wanted > 1:
            if not rest:
                raise Unmappable
            axis = rest.pop(0)
            if wanted % axis.size == 0:
                run.append(axis)
                wanted //= axis.size
            elif axis.size % wanted == 0:
                if axis.role != "any":
                    raise Split(axis, wanted)
                run += anonymous(wanted)
                rest[:0] = anonymous(axis.size // wanted)
                wanted = 1
            else:
                raise Unmappable
        result.append(tuple(run))
    if rest:
        raise Unmappable
    return tuple(result)


def broadcast(axes: AxisMap, shape: Sequence[int], dims: Sequence[int]) -> AxisMap:
    """The axes of a broadcast: what is repeated is anonymous."""
    found = {d: run for d, run in zip(dims, axes, strict=True)}
    return tuple(
        [
            found[d] if d in found and (found[d] or n == 1) else anonymous(n)
            for d, n in enumerate(shape)
        ]
    )


def before_broadcast(axes: AxisMap, shape: Sequence[int], dims: Sequence[int]) -> AxisMap:
    """The axes of an array of `shape` that was broadcast into `axes`."""
    return tuple([() if n == 1 else axes[d] for n, d in zip(shape, dims, strict=True)])


def unified(x: AxisMap, y: AxisMap) -> AxisMap:
    """The axes of two arrays that are combined element by element. Raises Unmappable if they are
    not the same axes."""
    if len(x) != len(y):
        raise Unmappable
    return tuple([_same_run(a, b) for a, b in zip(x, y)])


def _same_run(x: Run, y: Run) -> Run:
    if x == y:
        return x
    for a, b in ((x, y), (y, x)):
        whole = len(a) == 1 and a[0].role == "any"
        if whole and math.prod([axis.size for axis in b]) == a[0].size:
            return b
    if len(x) != len(y) or any([a.size != b.size for a, b in zip(x, y)]):
        raise Unmappable
    if any([a != b and "any" not in (a.role, b.role) for a, b in zip(x, y)]):
        raise Unmappable
    return tuple([b if a.role == "any" else a for a, b in zip(x, y)])
