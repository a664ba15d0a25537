"""Masks: which of them are known when a program is compiled, and what those are.

A mask is known by its values, not by how it is written: `tril`, comparisons of `iota` and slices of
a larger mask are computed with NumPy and compared with a band.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from genesis_fn.compiler.attention.axes import (
    AxisMap,
    Unmappable,
    before_broadcast,
    before_transpose,
    reshaped,
)
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.shape import broadcast_in_dim_p, reshape_p, transpose_p

# The logit of a masked key is at most this: its probability is zero beside any score that a model
# computes. GPT-2's own is -1e4.
LOWEST_SCORE = -1e4

Producers = dict[Any, Eqn]


@dataclass(frozen=True, slots=True)
class Condition:
    """Booleans that say where scores count: a value of the program, its axes, and whether it says
    the opposite."""

    var: Var
    axes: AxisMap
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """Query i sees the keys i - left ... i + right; None is unbounded."""

    left: int | None
    right: int | None

    def __and__(self, other: Band) -> Band:
        bound = lambda x, y: x if y is None else y if x is None else min(x, y)
        return Band(bound(self.left, other.left), bound(self.right, other.right))


def without_views(
    x: Var, axes: AxisMap, producers: Producers, upcasts: bool = False, casts: bool = False
) -> tuple[Var, AxisMap]:
    """The array that `x` is a view of, and its axes; with `upcasts`, before casts that lose
    nothing; with `casts`, before any cast of floats."""
    while True:
        e = producers.get(x)
        source = None if e is None or not e.ins else e.ins[0]
        if e is None or type(source) is not Var:
            return x, axes
        try:
            if e.prim is transpose_p:
                axes = before_transpose(axes, e.params["permutation"])
            elif e.prim is reshape_p:
                axes = reshaped(axes, source.aval.shape)
            elif e.prim is broadcast_in_dim_p:
                axes = before_broadcast(axes, source.aval.shape, e.params["dims"])
            elif e.prim is not ew.convert_p or not (
                (upcasts and _widens(source, x)) or (casts and _of_floats(source, x))
            ):
                return x, axes
        except Unmappable:
            return x, axes
        x = source


def _widens(x: Var, y: Var) -> bool:
    narrow, wide = x.aval.dtype, y.aval.dtype
    return wide == dtypes.F32 and narrow in (dtypes.BF16, dtypes.F16)


def _of_floats(x: Var, y: Var) -> bool:
    return {x.aval.dtype, y.aval.dtype} <= {dtypes.BF16, dtypes.F16, dtypes.F32}


def conjuncts(
    x: Var, axes: AxisMap, producers: Producers, negated: bool = False
) -> Iterator[Condition]:
    """The conditions that hold together where `x` holds, or where it does not."""
    x, axes = without_views(x, axes, producers)
    e = producers.get(x)
    if e is not None and e.prim is ew.bitwise_not.prim and type(e.ins[0]) is Var:
        yield from conjuncts(e.ins[0], axes, producers, not negated)
        return
    # not (a or b) is (not a) and (not b)
    joined = (ew.bitwise_or if negated else ew.bitwise_and).prim
    if e is not None and e.prim is joined and all([type(i) is Var for i in e.ins]):
        for i in e.ins:
            yield from conjuncts(i, axes, producers, negated)
        return
    yield Condition(x, axes, negated)


def band_of(seen: np.ndarray) -> Band | None:
    """The band that booleans [queries, keys] are, if every query sees a key."""
    rows, columns = np.arange(seen.shape[0]), seen.shape[1]
    if not seen.any(1).all():
        return None
    first = seen.argmax(1)
    last = columns - 1 - seen[:, ::-1].argmax(1)
    if (seen.sum(1) != last - first + 1).any():
        return None
    right = _bound(last - rows, last < columns - 1, columns - 1 - rows)
    left = _bound(rows - first, first > 0, rows)
    if right is False or left is False:
        return None
    return Band(left, right)


def _bound(offset: np.ndarray, inside: np.ndarray, reach: np.ndarray) -> int | None | bool:
    """The offset of the band's edge in rows whose edge lies inside of the keys; False if there are
    several, or if other rows would end earlier than they do."""
    if not inside.any():
        return None
    found = set(offset[inside].tolist())
    bound = int(found.pop())
    if found or bound < 0 or (reach[~inside] > bound).any():
        return False
    return bound
