"""Sorts the ids of several sums by segment once, and ids that are known while compiling.

The sums of a forward pass and of its gradient often have the same ids, and sorting them takes about
as long as adding in their order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from genesis_fn.backends.cuda.lowerings.indexing import ordered_sum_p, scatter_of, sort_rows_p
from genesis_fn.compiler.options import enabled
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.primitives.indexing.constants import constant_numbers, constant_p
from genesis_fn.primitives.indexing.scatter import segment_sum_p
from genesis_fn.primitives.shape import reshape_p


def share_sorts(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr`, in which sums that would sort the same ids into as many segments take the result of
    one sort, made where the first of them is, or a constant."""
    if not enabled("sums"):
        return jaxpr
    source: dict[Any, Any] = {}  # what a reshaped array was before
    known: dict[Any, np.ndarray] = {}
    sums: dict[tuple[Any, ...], list[Eqn]] = {}
    for e in jaxpr.eqns:
        if e.prim is constant_p:
            known[e.outs[0]] = e.params["numbers"].array
        elif e.prim is reshape_p:
            source[e.outs[0]] = source.get(e.ins[0], e.ins[0])
        elif e.prim is segment_sum_p and _sorts(e):
            ids = source.get(e.ins[1], e.ins[1])
            key = ids, e.params["num_segments"], e.params["mode"] == "clip"
            sums.setdefault(key, []).append(e)
    worth = {key for key, found in sums.items() if len(found) > 1 or key[0] in known}
    shared = {id(e): key for key in worth for e in sums[key]}
    if not shared:
        return jaxpr
    eqns: list[Eqn] = []
    orders: dict[tuple[Any, ...], Var] = {}
    for e in jaxpr.eqns:
        key = shared.get(id(e))
        if key is not None:
            data, ids = e.ins
            rows = e.params["num_segments"]
            if key not in orders:
                if key[0] in known:
                    entries = sorted_entries(known[key[0]], rows, e.params["mode"] == "clip")
                    prim, ins, params = constant_p, [], {"numbers": constant_numbers(entries)}
                else:
                    prim, ins = sort_rows_p, [ids]
                    params = {"rows": rows, "mode": e.params["mode"]}
                found = prim.abstract(tuple([i.aval for i in ins]), params)
                orders[key] = order = Var(found)
                eqns.append(e.replace(prim=prim, ins=ins, params=params, outs=[order]))
            params = {"num_segments": rows, "axes": ids.aval.ndim}
            e = e.replace(prim=ordered_sum_p, ins=[data, orders[key]], params=params)
        eqns.append(e)
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def sorted_entries(ids: np.ndarray, rows: int, clip: bool) -> np.ndarray:
    """What `sort_rows_p` makes of ids: `row << 32 | number`, ascending; dropped ones come last."""
    row = ids.reshape(-1).astype(np.int64)
    row = np.clip(row, 0, rows - 1) if clip else np.where((row < 0) | (row >= rows), rows, row)
    number = np.argsort(row, kind="stable")
    return (row[number] << 32) | number


def _sorts(e: Eqn) -> bool:
    """Whether a sum sorts its ids, and does no more with them."""
    data, ids = e.ins
    if type(data) is not Var or type(ids) is not Var or e.params["mode"] == "check":
        return False
    if 0 in (data.aval.size, ids.aval.size, e.outs[0].aval.size):
        return False
    if dtypes.is_unsigned(ids.aval.dtype):
        return False
    return scatter_of(e.prim, (data.aval, ids.aval), e.params).sorts
