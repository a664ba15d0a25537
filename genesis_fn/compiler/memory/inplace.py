"""Results that may take the memory of an operand.

Of an equation these are updates, an operand with a part of it changed, and the carries of loops; of
a program, outputs of the type of a donated input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from genesis_fn.core.aval import Aval
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p


def updated_operand(e: Eqn, v: Var) -> Var | None:
    """The operand that result `v` of `e` may overwrite: what is updated, or the initial value of a
    loop's carry; None if there is none, or if `e` reads it as another operand, too."""
    at, k = e.prim.updates, list(e.outs).index(v)
    if e.prim is scan_p and k < e.params["carry"]:
        at = e.params["consts"] + k
    elif e.prim is while_p:
        at = e.params["cond_consts"] + e.params["body_consts"] + k
    elif e.prim is cond_p:
        # All branches must update the same operand; operand 0 is the index of the branch.
        sources = {_input(branch, k) for branch in e.params["branches"]}
        position = sources.pop()
        at = None if sources or position is None else 1 + position
    elif "updates" in e.params:  # of each result of a loop of rows
        at = e.params["updates"][k]
    if at is None:
        return None
    x = e.ins[at]
    read_once = type(x) is Var and sum([i is x for i in e.ins]) == 1
    return x if read_once and x.aval == v.aval else None


def origin(producer: Mapping[Var, Eqn], v: Var) -> Var:
    """The first value of the chain of updates that ends in `v`."""
    while (e := producer.get(v)) is not None:
        x = updated_operand(e, v)
        if x is None:
            return v
        v = x
    return v


def producers(jaxpr: Jaxpr) -> dict[Var, Eqn]:
    """The equation that computes each value."""
    return {o: e for e in jaxpr.eqns for o in e.outs}


def _input(branch: Jaxpr, k: int) -> int | None:
    """The input that output `k` is, or is updated from."""
    first = origin(producers(branch), branch.outs[k])
    return branch.invars.index(first) if first in branch.invars else None


def donations(program: Jaxpr, donated: Sequence[bool]) -> dict[int, int]:
    """{output: donated input whose memory it takes}: the input that it is or updates, else any free
    one of its type."""
    free: dict[Aval, list[int]] = {}
    position = {v: i for i, v in enumerate(program.invars)}
    for i, (v, d) in enumerate(zip(program.invars, donated)):
        if d and v.aval.nbytes:
            free.setdefault(v.aval, []).append(i)
    replaced: dict[int, int] = {}
    seen: set[Any] = set()
    producer = producers(program)
    # Inputs that are returned as they came go first: an update must not take their memory.
    for returned in (True, False):
        for k, v in enumerate(program.outs):
            i = position.get(origin(producer, v))
            if i is None or (v in position) != returned or v in seen:
                continue
            if i in free.get(v.aval, ()):
                free[v.aval].remove(i)
                replaced[k] = i
                seen.add(v)
    for k, v in enumerate(program.outs):
        if k not in replaced and v not in seen and v not in position and free.get(v.aval):
            replaced[k] = free[v.aval].pop(0)
            seen.add(v)
    return replaced
