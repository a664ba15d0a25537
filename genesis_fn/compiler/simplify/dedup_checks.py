"""Redundant index checks: an operation and its derivative access the same indices.

Both check them, since dead code elimination may leave only one of the two. Where both are left, the
check of the backward pass is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.primitives.shape import reshape_p


def drop_repeated_checks(eqns: list[Eqn]) -> list[Eqn]:
    """`eqns`, of which the backward pass does not check indices that were checked before."""
    if sum([e.params.get("mode") == "check" for e in eqns]) < 2:
        return eqns
    source: dict[Any, Any] = {}  # what a reshaped array was before
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
    """(the indices, the largest valid value of each component of an index): equal checks are equal
    pairs."""
    assert e.prim.visits is not None, e
    array, windows = e.prim.visits(*[getattr(i, "aval", i) for i in e.ins], **e.params)
    bounds = [array.shape[axis] - size for axis, size in windows]
    indices = e.ins[1]
    if len(bounds) == 1 and type(indices) is Var:  # the shape of the indices does not matter
        indices = source.get(indices, indices)
    return indices, tuple(bounds)


def _unchecked(e: Eqn) -> dict[str, Any]:
    """The parameters of the same access without its check. Nothing is out of range, so that the
    mode only has to be a safe one."""
    fill = {"fill_value": 0} if "fill_value" in e.params else {}
    return {**e.params, "mode": "fill", **fill}
