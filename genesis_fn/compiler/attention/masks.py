"""Masks: which of them are known when a program is compiled, and what those are.

A mask is known by its values, not by how it is written: `tril`, comparisons of `iota` and slices of
a larger mask are computed with NumPy and compared with a band.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from genesis_fn.compiler.simplify.rewriter import rounded
from genesis_fn.core import dtypes
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.jaxpr import Atom, Eqn, Var
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.shape import broadcast_in_dim_p, iota_p, reshape_p, slice_p, transpose_p

# Elements of a mask that are computed while compiling: queries times keys, 8192 of each.
MOST_ELEMENTS = 1 << 26
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


class KnownValues:
    """The values of what depends on no input, computed with NumPy; None for anything else."""

    __slots__ = ("producers", "found", "remembered")

    def __init__(self) -> None:
        self.producers: Producers = {}
        self.found: dict[Var, np.ndarray | None] = {}
        self.remembered: dict[Any, Any] = {}

    def once(self, key: Any, compute: Callable[[], Any]) -> Any:
        """What was computed of these values before: layers share masks, which are large."""
        if key not in self.remembered:
            self.remembered[key] = compute()
        return self.remembered[key]

    def of(self, x: Var) -> np.ndarray | None:
        """The value of `x`, or None."""
        if x not in self.found:
            self.found[x] = None  # while its operands are computed
            e = self.producers.get(x)
            if e is not None and x.aval.size <= MOST_ELEMENTS and len(e.outs) == 1:
                self.found[x] = self._computed(e, x)
        return self.found[x]

    def _computed(self, e: Eqn, x: Var) -> np.ndarray | None:
        kind, shape, params = x.aval.dtype, x.aval.shape, e.params
        if e.prim is full_p:
            return np.broadcast_to(np.asarray(params["value"]).astype(kind), shape)
        if e.prim is iota_p:
            d = params["dimension"]
            counted = np.arange(shape[d]).astype(kind)
            return np.broadcast_to(
                np.expand_dims(counted, [i for i in range(len(shape)) if i != d]), shape
            )
        operands = [self._operand(i, e) for i in e.ins]
        if not operands or any([o is None for o in operands]):
            return None
        xs: list[Any] = operands
        if e.prim is broadcast_in_dim_p:
            inner = [1] * len(shape)
            for d, n in zip(params["dims"], xs[0].shape, strict=True):
                inner[d] = n
            return np.broadcast_to(xs[0].reshape(inner), shape)
        if e.prim is reshape_p:
            return xs[0].reshape(shape)
        if e.prim is transpose_p:
            return xs[0].transpose(params["permutation"])
        if e.prim is slice_p:
            bounds = zip(params["start"], params["limit"], params["strides"])
            return xs[0][tuple([slice(a, b, s) for a, b, s in bounds])]
        if e.prim is ew.convert_p:
            lossy = (
                dtypes.is_inexact(xs[0].dtype) and not dtypes.is_float(kind) and kind != dtypes.BOOL
            )
            return None if lossy else xs[0].astype(kind)
        if e.prim is ew.select_p:
            return np.where(*xs).astype(kind)
        lowering = e.prim.lowering
        if type(lowering) is not Elementwise or lowering.fold is None or params:
            return None
        with np.errstate(all="ignore"):
            return np.asarray(lowering.fold(*xs)).astype(kind)

    def _operand(self, x: Atom, e: Eqn) -> np.ndarray | None:
        if type(x) is Var:
            return self.of(x)
        # A Python number has the dtype of the arrays beside it.
        kinds = [i.aval.dtype for i in e.ins[e.prim is ew.select_p :] if type(i) is Var]
        kind = kinds[0] if kinds else e.outs[0].aval.dtype
        value = rounded(x, kind)
        return None if value is None else np.asarray(value).astype(kind)


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
