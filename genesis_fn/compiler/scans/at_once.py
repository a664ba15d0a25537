"""Scans that carry nothing: their steps need not follow each other, and run at once."""

from __future__ import annotations

from genesis_fn.compiler.loop_ir.lookups import is_lookup
from genesis_fn.compiler.simplify.rewriter import has_effect
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.core.backend.lowering import Elementwise, Reduce, Source, View
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.shape import copy_p
from genesis_fn.transforms.batching.batch import batch_jaxpr

_MOST_BYTES = 1 << 28  # of all that a scan computes: steps in turn take less memory


def at_once(e: Eqn) -> list[Eqn] | None:
    """The body of a scan that carries nothing, on whole stacks; None where the steps may be there
    for what they leave out of memory, or run other loops."""
    p, body = e.params, e.params["jaxpr"]
    if p["carry"] or not p["length"] or not all([_fuses(x) for x in body.eqns]):
        return None
    if p["length"] * sum([v.aval.nbytes for x in body.eqns for v in x.outs]) > _MOST_BYTES:
        return None
    steps = [i >= p["consts"] for i in range(len(e.ins))]
    made, _ = batch_jaxpr(body, p["length"], tuple(steps), (True,) * len(e.outs))
    made = simplify_jaxpr(made)
    env = dict(zip(made.invars, e.ins))
    eqns = [
        x.replace(ins=[env.get(i, i) if type(i) is Var else i for i in x.ins], backward=e.backward)
        for x in made.eqns
    ]
    for o, whole in zip(made.outs, e.outs):
        if type(o) is Var:
            eqns.append(Eqn(copy_p, [env.get(o, o)], {}, (whole,), e.where, e.backward))
        else:
            filled = {"value": o, "shape": whole.aval.shape, "dtype": whole.aval.dtype}
            eqns.append(Eqn(full_p, [], filled, (whole,), e.where, e.backward))
    return eqns


def _fuses(e: Eqn) -> bool:
    kind = type(e.prim.lowering)
    return not has_effect(e) and (kind in (Elementwise, View, Source, Reduce) or is_lookup(e))
