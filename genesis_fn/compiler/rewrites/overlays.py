"""Overlays: arrays of which an update at a known place replaces most.

As an update in place they would wait for the new part in memory, and where the old array is still
needed, as by a stencil that reads neighbours and writes all but the border, for a copy of it. An
overlay is an expression, which fuses with what computes the new part and what reads the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.compiler.fusion.value_graph import kind_of
from genesis_fn.compiler.options import enabled
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Index, IndexGuard
from genesis_fn.core.backend.lowering import Piece, View
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.indexing.indexing import dynamic_update_slice_p


def _pieces(k: int, at: Index, x: Aval, new: Aval, *, starts: Sequence[int]) -> list[Piece]:
    inner = tuple([ix.shift(i, -start) for i, start in zip(at, starts)])
    inside = [IndexGuard(i, 0, n) for i, n in zip(inner, new.shape)]
    return [(1, inner, inside), (0, at, ())]


overlay_p = Primitive(
    "overlay",
    lambda x, new, *, starts: x,
    lowering=View(_pieces, joins=True, shares=False),
    listed=False,
)
"""`x` with `new` in place of the part at `starts`: a primitive of the compiler's own programs."""


def overlays(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with updates that replace most of an array as overlays."""
    updates = [e for e in jaxpr.eqns if e.prim is dynamic_update_slice_p]
    if not updates or not enabled("overlays"):
        return jaxpr
    computed = {o for e in jaxpr.eqns if kind_of(e) in ("map", "view") for o in e.outs}
    eqns = [_overlay(e) if e in updates and _is_cheaper(e, computed) else e for e in jaxpr.eqns]
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _is_cheaper(e: Eqn, computed: set[Any]) -> bool:
    """Whether an overlay moves less than the update: it writes all of the array, and reads what is
    left of the old one; the update writes the new part twice and reads it once."""
    x, new, *starts = e.ins
    known = all([type(s) is not Var for s in starts])
    return known and new in computed and 4 * new.aval.size >= 3 * x.aval.size


def _overlay(e: Eqn) -> Eqn:
    x, new, *starts = e.ins
    room = [n - m for n, m in zip(x.aval.shape, new.aval.shape)]
    at = tuple([min(max(int(s), 0), most) for s, most in zip(starts, room)])
    return e.replace(prim=overlay_p, ins=[x, new], params={"starts": at})
