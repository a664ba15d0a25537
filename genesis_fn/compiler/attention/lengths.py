"""The pass: masks that say how many keys count become those numbers.

Decoding compares the positions of a cache with a counter, `arange(keys) <= at`. The kernels read no
key beyond a length, but all that a mask hides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from genesis_fn.compiler.attention.axes import AxisMap, AxisTable, Run, Split, members
from genesis_fn.compiler.attention.masks import Condition, conjuncts, without_views
from genesis_fn.compiler.known_values import KnownValues
from genesis_fn.core import dtypes, tree
from genesis_fn.core.jaxpr import Atom, Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.shape import broadcast_in_dim_p, reshape_p
from genesis_fn.transforms.custom.fused_functions import FUSED, fused_p

# Comparisons by what they say if the operands change sides, and what their opposite says.
_SWAPPED = {
    ew.le.prim: ew.ge.prim, ew.ge.prim: ew.le.prim, ew.lt.prim: ew.gt.prim, ew.gt.prim: ew.lt.prim,
}  # fmt: skip
_OPPOSITE = {
    ew.le.prim: ew.gt.prim, ew.gt.prim: ew.le.prim, ew.lt.prim: ew.ge.prim, ew.ge.prim: ew.lt.prim,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KeyLimit:
    """The keys count whose number, from `first` on, is below `limit`, or, if `inclusive`, equal.
    `limit`, of integers, has one element or one for each batch entry."""

    limit: Var
    first: int
    inclusive: bool


def masks_as_lengths(
    jaxpr: Jaxpr, values: KnownValues, keeps: Callable[[Eqn], bool]
) -> Jaxpr | None:
    """`jaxpr` with lengths for such masks of attentions without a backward pass, or None; `keeps`
    is as in `fuse_attention`."""
    attentions = [e for e in jaxpr.eqns if _has_only_a_mask(e)]
    if not attentions:
        return None
    values.producers = {o: e for e in jaxpr.eqns for o in e.outs}
    found = {id(e): _with_lengths(e, values, keeps) for e in attentions}
    if not any(found.values()):
        return None
    eqns = [new for e in jaxpr.eqns for new in found.get(id(e)) or (e,)]
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _has_only_a_mask(e: Eqn) -> bool:
    if e.prim is not fused_p or e.params["op"] is not FUSED["attention"]:
        return False
    _, mask, lengths, *_ = dict(e.params["static"])["has"]
    return mask and not lengths


def _with_lengths(e: Eqn, values: KnownValues, keeps: Callable[[Eqn], bool]) -> list[Eqn] | None:
    """The equations that compute attention `e` by lengths, or None."""
    static = dict(e.params["static"])
    bias, _, _, *segments = static["has"]
    batch, keys = e.ins[1].aval.shape[:2]
    limits = _key_limits(e.ins[3 + bias], batch, keys, values)
    if limits is None:
        return None
    made: list[Eqn] = []

    def make(prim: Primitive, ins: Sequence[Atom], **params: Any) -> Var:
        avals = tuple([i.aval if type(i) is Var else i for i in ins])
        out = Var(prim.abstract(avals, params))
        made.append(Eqn(prim, ins, params, [out], e.where, e.backward, e.numerics))
        return out

    def length(limit: KeyLimit) -> Var:
        x = make(reshape_p, [limit.limit], shape=() if limit.limit.aval.size == 1 else (batch,))
        # Bounded first: what is near the ends of the dtype must not wrap around.
        least = limit.first - limit.inclusive
        x = make(ew.min.prim, [make(ew.max.prim, [x, least]), least + keys])
        x = make(ew.sub.prim, [x, least]) if least else x
        x = x if x.aval.dtype == dtypes.I32 else make(ew.convert_p, [x], dtype=dtypes.I32)
        return x if x.aval.ndim else make(broadcast_in_dim_p, [x], shape=(batch,), dims=())

    both = lambda x, y: make(ew.min.prim, [x, y])
    lengths = functools.reduce(both, [length(limit) for limit in limits])
    has = (bias, False, True, *segments)
    given = tuple(sorted({**static, "has": has}.items()))
    ins = [*e.ins[: 3 + bias], lengths, *e.ins[4 + bias :]]
    op = e.params["op"]
    program = op.program(tuple([i.aval for i in ins]), tree.flatten(tuple(ins))[1], given)
    new = e.replace(ins=ins, params={"op": op, "static": given, "jaxpr": program})
    return [*made, new] if keeps(new) else None


def _key_limits(mask: Var, batch: int, keys: int, values: KnownValues) -> list[KeyLimit] | None:
    """The limits that hold together where `mask` [batch, heads, queries, keys] does, or None."""
    if mask.aval.shape[3] != keys or mask.aval.shape[1:3] != (1, 1) or keys == 1:
        return None
    table = AxisTable()
    of_batch, of_keys = table.run("batch", 0, batch), table.run("right", 0, keys)
    axes: AxisMap = (of_batch if mask.aval.shape[0] > 1 else (), (), (), of_keys)
    found = []
    try:
        for condition in conjuncts(mask, axes, values.producers):
            limit = _key_limit(condition, of_batch, of_keys, values)
            if limit is None:
                return None
            found.append(limit)
    except Split:
        return None
    return found


def _key_limit(
    condition: Condition, of_batch: Run, of_keys: Run, values: KnownValues
) -> KeyLimit | None:
    e = values.producers.get(condition.var)
    if e is None or e.prim not in _SWAPPED or not all([type(i) is Var for i in e.ins]):
        return None
    prim = _OPPOSITE[e.prim] if condition.negated else e.prim
    x, y = [without_views(i, condition.axes, values.producers) for i in e.ins]
    for keys, limit, says in ((x, y, prim), (y, x, _SWAPPED[prim])):
        if says not in (ew.le.prim, ew.lt.prim):
            continue
        if members(keys[1]) != frozenset(of_keys) or not members(limit[1]) <= set(of_batch):
            continue
        first = _first(values.of(keys[0]))
        kind = limit[0].aval.dtype
        if first is None or kind not in (dtypes.I32, dtypes.I64):
            continue
        return KeyLimit(limit[0], first, says is ew.le.prim)
    return None


def _first(positions: np.ndarray | None) -> int | None:
    """The first of consecutive numbers, none of which is near the ends of their dtype."""
    if positions is None:
        return None
    flat = positions.reshape(-1)
    first = int(flat[0])
    if abs(first) > 1 << 30 or (flat != first + np.arange(flat.size)).any():
        return None
    return first
