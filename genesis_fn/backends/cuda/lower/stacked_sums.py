"""Sums by segment of several tables become one sum of a table that has the rows of all.

A sum of few updates is a chain of short launches: those of a sort, and walks over the sorted list.
The gradients of several tables, as of words and of their neighbours, are one such chain so, at
other rows of one array; what reads them reads its part of that.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from genesis_fn.backends.cuda.lower.fused_sums import takes_updates
from genesis_fn.backends.cuda.lowerings.indexing import scatter_of
from genesis_fn.compiler.fusion.sum_fusion import could_compute
from genesis_fn.compiler.fusion.value_graph import kind_of
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.rewrites.row_sums import appended
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.kernels.plan_builder import INT32_MAX
from genesis_fn.kernels.sort.sort import Sort
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.indexing.constants import constant_p
from genesis_fn.primitives.indexing.scatter import segment_sum_p
from genesis_fn.primitives.shape import concatenate_p, reshape_p, slice_p

_MOST_UPDATES = 1 << 19  # beyond, launches take longer than they take to start
_ALIGNED = 16  # rows: each part begins where vectors of its elements may


@dataclass(slots=True)
class _Stack:
    """Sums that can be one, the equations that they are, and the first that reads one of them."""

    kind: tuple[Any, ...]
    members: list[Eqn] = field(default_factory=list)
    until: float = math.inf


def stacked_sums(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with one sum by segment for several of alike rows that do not wait for each other."""
    if not enabled("sums") or sum([e.prim is segment_sum_p for e in jaxpr.eqns]) < 2:
        return jaxpr
    stacks = [s for s in _stacks(jaxpr) if len(s.members) > 1]
    if not stacks:
        return jaxpr
    last = {id(s.members[-1]): s for s in stacks}
    earlier = {id(e) for s in stacks for e in s.members[:-1]}
    eqns: list[Eqn] = []
    for e in jaxpr.eqns:
        if id(e) in last:
            _add(eqns, last[id(e)].members)
        elif id(e) not in earlier:
            eqns.append(e)
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _stacks(jaxpr: Jaxpr) -> list[_Stack]:
    """The sums of a program that kernels alone read, by what they have in common."""
    producer = {o: e for e in jaxpr.eqns for o in e.outs}
    read, opaque = _reads(jaxpr)
    known = {_source(e.outs[0], producer) for e in jaxpr.eqns if e.prim is constant_p}
    sums = [(n, e) for n, e in enumerate(jaxpr.eqns) if e.prim is segment_sum_p]
    ids = [_source(e.ins[1], producer) for _, e in sums]
    found: list[_Stack] = []
    for n, e in sums:
        source = _source(e.ins[1], producer)
        # A sort that several sums share stays theirs.
        shared = source in known or ids.count(source) > 1
        if shared or e.outs[0] in opaque or not _is_short(e):
            continue
        kind = _kind(e)
        open_to = [
            s for s in found if s.kind == kind and n < s.until and _fits([*s.members, e], producer)
        ]
        stack = open_to[0] if open_to else _Stack(kind)
        if not open_to:
            found.append(stack)
        stack.members.append(e)
        stack.until = min(stack.until, read.get(e.outs[0], math.inf))
    return found


def _reads(jaxpr: Jaxpr) -> tuple[dict[Any, int], set[Any]]:
    """(the first equation that reads each value, the values that something other than generated
    kernels reads)."""
    read: dict[Any, int] = {}
    opaque: set[Any] = set(jaxpr.outs)
    for n in reversed(range(len(jaxpr.eqns))):
        e = jaxpr.eqns[n]
        kind = kind_of(e)
        if kind == "opaque" or (kind == "view" and not opaque.isdisjoint(e.outs)):
            opaque.update(e.ins)
        for v in e.ins:
            read[v] = n
    return read, opaque


def _source(v: Any, producer: Mapping[Any, Eqn]) -> Any:
    """What a reshaped array was before."""
    while v in producer and producer[v].prim is reshape_p:
        (v,) = producer[v].ins
    return v


def _kind(e: Eqn) -> tuple[Any, ...]:
    """What sums that can be one have in common."""
    out = e.outs[0].aval
    return out.shape[1:], out.dtype, e.params["deterministic"], e.backward


def _is_short(e: Eqn) -> bool:
    """Whether a sum sorts few ids, and computes what it adds."""
    data, ids = e.ins
    if type(data) is not Var or type(ids) is not Var or e.params["mode"] == "check":
        return False
    if not takes_updates(e) or ids.aval.size > _MOST_UPDATES:
        return False
    return scatter_of(e.prim, (data.aval, ids.aval), e.params).sorts


def _fits(members: Sequence[Eqn], producer: Mapping[Any, Eqn]) -> bool:
    """Whether one sum is no more than a chain of launches, and computes all that is added."""
    counts = [e.ins[1].aval.size for e in members]
    if sum(counts) > _MOST_UPDATES or _offsets(members)[-1] >= INT32_MAX:
        return False
    each, all_of_them = [Sort(1, n, ("i32",)) for n in (max(counts), sum(counts))]
    if each.in_one_program and not all_of_them.in_one_program:
        return False
    return could_compute([e.ins[0] for e in members], producer)


def _offsets(members: Sequence[Eqn]) -> list[int]:
    """The row at which the part of each sum begins, and the number of all rows."""
    found = [0]
    for e in members:
        rows = e.params["num_segments"]
        found.append(found[-1] + rows + -rows % _ALIGNED)
    return found


def _add(eqns: list[Eqn], members: Sequence[Eqn]) -> None:
    """Append one sum, in the place of the last of these, and the part of it that each is."""
    first, at = members[0], members[-1]
    make = functools.partial(appended, eqns, at)
    offsets = _offsets(members)
    row = first.outs[0].aval.shape[1:]
    updates, numbers = [], []
    for e, offset in zip(members, offsets):
        data, ids = e.ins
        count = ids.aval.size
        if data.aval.shape != (count, *row):
            data = make(reshape_p, data, shape=(count, *row))
        updates.append(data)
        numbers.append(_numbered(eqns, at, e, offset))
    data = make(concatenate_p, *updates, dimension=0)
    ids = make(concatenate_p, *numbers, dimension=0)
    params = {**first.params, "num_segments": offsets[-1], "mode": "fill"}
    total = make(segment_sum_p, data, ids, **params)
    rest = (0,) * len(row)
    for e, offset in zip(members, offsets):
        ends = {"start": (offset, *rest), "limit": (offset + e.params["num_segments"], *row)}
        make(slice_p, total, strides=(1,) * (1 + len(row)), **ends)
        eqns.append(eqns.pop().replace(outs=e.outs))


def _numbered(eqns: list[Eqn], at: Eqn, e: Eqn, offset: int) -> Var:
    """The rows that the ids of a sum are of all, -1 where it drops them."""
    make = functools.partial(appended, eqns, at)
    ids, rows = e.ins[1], e.params["num_segments"]
    if ids.aval.ndim != 1:
        ids = make(reshape_p, ids, shape=(ids.aval.size,))
    if ids.aval.dtype.itemsize < 4:
        ids = make(ew.convert_p, ids, dtype=dtypes.I32)
    if e.params["mode"] == "clip":
        ids = make(ew.min.prim, make(ew.max.prim, ids, 0), rows - 1)
        ids = make(ew.add.prim, ids, offset) if offset else ids
    else:
        inside = make(ew.bitwise_and.prim, make(ew.ge.prim, ids, 0), make(ew.lt.prim, ids, rows))
        ids = make(ew.select_p, inside, make(ew.add.prim, ids, offset) if offset else ids, -1)
    return ids if ids.aval.dtype == dtypes.I32 else make(ew.convert_p, ids, dtype=dtypes.I32)
