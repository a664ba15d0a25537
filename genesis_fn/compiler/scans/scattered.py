"""Takes arrays out of what a scan carries to which its steps add at places that they compute.

Where no step reads what it adds to, all steps add at once, behind the loop: one sort of all places
instead of one a step. That is what a loop that counts does, and what the gradients of tables are in
which a loop looks up rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from genesis_fn.compiler.scans.parts import ScanBody, ScanChanges
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.primitives.elementwise import add, add_n
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.indexing.scatter import scatter_p, segment_sum_p

_MOST_BYTES = 1 << 29  # of what all steps add, which is stacked


def scattered(body: ScanBody, changes: ScanChanges, carry: tuple[Any, Var, Any, Var]) -> bool:
    """Take a carry, (first value, body's input, body's output, result), out of a scan if its steps
    only add to it, at places of their own."""
    init, v, out, result = carry
    found = _scatters(body, v, out)
    if not found or len({_kind(e) for e, _ in found}) > 1:
        return False
    moved = {i for e, _ in found for i in e.ins[-2:]}
    new = [i for i in moved if not _is_number(body, i) and not changes.is_stacked(body, i)]
    if sum([i.aval.nbytes for i in new]) * body.length > _MOST_BYTES:
        return False
    for e, added in found:
        wholes = [_stack(body, changes, i) for i in e.ins[-2:]]
        given = result if e is found[-1][0] else Var(v.aval)
        if e.prim is scatter_p and not added:
            changes.behind.append(_of_all_steps(e, [init, *wholes], given))
        else:
            zeros, made = Var(v.aval), Var(v.aval)
            if e.prim is scatter_p:
                changes.behind.append(body.producer[e.ins[0]].replace(outs=(zeros,)))
                wholes = [zeros, *wholes]
            changes.behind.append(_of_all_steps(e, wholes, made))
            changes.behind.append(Eqn(add.prim, [init, made], {}, (given,), e.where))
        init = given
    changes.changed = True
    return True


def _is_number(body: ScanBody, v: Var) -> bool:
    """Whether all elements of a value are one number."""
    e = body.produced(v)
    return e is not None and e.prim is full_p


def _stack(body: ScanBody, changes: ScanChanges, v: Var) -> Any:
    if not _is_number(body, v):
        return changes.stacked(body, v)
    whole = Var(v.aval.update((body.length, *v.aval.shape)))
    e = body.producer[v]
    params = {**e.params, "shape": whole.aval.shape}
    changes.behind.append(e.replace(params=params, outs=(whole,)))
    return whole


def _kind(e: Eqn) -> str:
    return e.params["kind"] if e.prim is scatter_p else "add"


def _of_all_steps(e: Eqn, ins: Sequence[Any], out: Var) -> Eqn:
    """A scatter or sum by segment of the stacks of what one of each step has."""
    params = {**e.params, "unique_indices": False, "indices_are_sorted": False}
    if e.prim is scatter_p:
        numbers = e.params["dimension_numbers"]
        params["dimension_numbers"] = numbers._replace(
            update_window_dims=tuple([i + 1 for i in numbers.update_window_dims]),
            scatter_indices_batching_dims=tuple(
                [i + 1 for i in numbers.scatter_indices_batching_dims]
            ),
        )
    return e.replace(ins=list(ins), params=params, outs=(out,))


def _scatters(body: ScanBody, v: Var, out: Any) -> list[tuple[Eqn, bool]]:
    """(what adds to a carry from its begin in a step, `v`, to its end, `out`, and whether it is
    first added to zeros), in the order of the step; none if something else is done with it."""
    found: list[tuple[Eqn, bool]] = []
    while out is not v:
        e = body.produced(out)
        if e is None or body.uses.get(out) != 1:
            return []
        if e.prim is scatter_p and e.params["kind"] != "set":
            made, out = [(e, False)], e.ins[0]
        elif e.prim in (add.prim, add_n.prim):
            terms = [body.produced(i) for i in e.ins]
            added = [t for i, t in zip(e.ins, terms) if _is_sum(body, i, t)]
            before = [i for i, t in zip(e.ins, terms) if not _is_sum(body, i, t)]
            if len(before) != 1:
                return []
            made, out = [(t, True) for t in added if t is not None], before[0]
        else:
            return []
        if not all([_moves(body, t) for t, _ in made]):
            return []
        found += made[::-1]
    return found[::-1] if body.uses.get(v) == 1 else []


def _is_sum(body: ScanBody, i: Any, e: Eqn | None) -> bool:
    """Whether a term of a sum is rows added to zeros, which nothing else reads."""
    if e is None or body.uses.get(i) != 1:
        return False
    if e.prim is segment_sum_p:
        return True
    zeros = body.produced(e.ins[0]) if e.prim is scatter_p and _kind(e) == "add" else None
    return zeros is not None and zeros.prim is full_p and zeros.params["value"] == 0


def _moves(body: ScanBody, e: Eqn) -> bool:
    """Whether a scatter is of values of the step, at places of the step, which are few enough to
    be sorted together."""
    updates, indices = (e.ins if e.prim is segment_sum_p else e.ins[:0:-1])[:2]
    if type(updates) is not Var or type(indices) is not Var:
        return False
    if indices in body.consts or updates in body.consts:
        return False
    return body.length * math.prod(indices.aval.shape) < 1 << 31
