"""Index checks that are made twice: an operation and its derivative visit the same places.

Both check, since either may be all that is left of them. Where both are left, the one of the
backward pass need not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.primitives.gather import gather_p, take_rows_p
from genesis_fn.primitives.scatter import scatter_p, segment_sum_p
from genesis_fn.primitives.shape import reshape_p
from genesis_fn.primitives.windows import window_sizes


def checked_once(eqns: list[Eqn]) -> list[Eqn]:
    """`eqns`, in which the backward pass does not check indices that have been checked before."""
    if sum([e.params.get("mode") == "check" for e in eqns]) < 2:
        return eqns
    source: dict[Any, Any] = {}  # of what was reshaped
    known: set[Any] = set()
    result = []
    for e in eqns:
        if e.prim is reshape_p:
            source[e.outs[0]] = source.get(e.ins[0], e.ins[0])
        elif e.params.get("mode") == "check":
            check = _check(e, source)
            if e.backward and check in known:
                e = e.replace(params=_unchecked(e))
            known.add(check)
        result.append(e)
    return result


def _check(e: Eqn, source: dict[Any, Any]) -> tuple[Any, Sequence[int]]:
    """(the indices, the greatest that each component of an index may be)."""
    operand, indices = e.ins[:2]
    shape = operand.aval.shape
    if e.prim is segment_sum_p:
        bounds = [e.params["num_segments"] - 1]
    elif e.prim is take_rows_p:
        bounds = [shape[0] - 1]
    elif e.prim is gather_p:
        sizes = e.params["slice_sizes"]
        bounds = [shape[d] - sizes[d] for d in e.params["dimension_numbers"].start_index_map]
    else:
        assert e.prim is scatter_p, e
        numbers = e.params["dimension_numbers"]
        sizes = window_sizes(operand.aval, e.ins[2].aval, numbers)
        bounds = [shape[d] - sizes[d] for d in numbers.scatter_dims_to_operand_dims]
    if len(bounds) == 1 and type(indices) is Var:  # the shape of the indices does not matter
        indices = source.get(indices, indices)
    return indices, tuple(bounds)


def _unchecked(e: Eqn) -> dict[str, Any]:
    """The parameters with which nothing is read or written out of range."""
    fill = {"fill_value": 0} if "fill_value" in e.params else {}
    return {**e.params, "mode": "fill", **fill}


__all__ = ["checked_once"]
