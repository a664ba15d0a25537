"""Which results of an equation are an operand with a part of it changed: they may take its
memory."""

from __future__ import annotations

from collections.abc import Mapping

from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var

UPDATES = frozenset(("dynamic_update_slice", "scatter"))
"""Primitives whose result is their first operand with a part of it changed."""


def updated(e: Eqn, v: Var) -> Var | None:
    """The operand that result `v` of `e` may overwrite: what is updated, or the start of a loop's
    carry; None if there is none, or if `e` reads it in another place too."""
    name, k = e.prim.name, list(e.outs).index(v)
    at: int | None = None
    if name in UPDATES:
        at = 0
    elif name == "scan" and k < e.params["carry"]:
        at = e.params["consts"] + k
    elif name == "while":
        at = e.params["cond_consts"] + e.params["body_consts"] + k
    elif name == "cond":
        found = {_input(branch, k) for branch in e.params["branches"]}
        place = found.pop()
        at = None if found or place is None else 1 + place
    if at is None:
        return None
    x = e.ins[at]
    alone = type(x) is Var and sum([i is x for i in e.ins]) == 1
    return x if alone and x.aval == v.aval else None


def origin(made: Mapping[Var, Eqn], v: Var) -> Var:
    """The first value of the chain of updates that `v` is the last of."""
    while (e := made.get(v)) is not None:
        x = updated(e, v)
        if x is None:
            return v
        v = x
    return v


def makers(jaxpr: Jaxpr) -> dict[Var, Eqn]:
    """The equation that makes each value."""
    return {o: e for e in jaxpr.eqns for o in e.outs}


def _input(branch: Jaxpr, k: int) -> int | None:
    """The input that output `k` is, or is updated from."""
    first = origin(makers(branch), branch.outs[k])
    return branch.invars.index(first) if first in branch.invars else None


__all__ = ["UPDATES", "makers", "origin", "updated"]
