"""Absorbs casts into fused functions whose kernels compute in float32 whatever they read.

`loss(logits.astype("float32"), labels)` would write the logits a second time, twice as wide, and
read them back, and so would its gradient: for the vocabulary of a language model that is most of
the time of the loss.
"""

from __future__ import annotations

from collections.abc import Sequence

from genesis_fn.backends.cuda.lowerings import kernel_of, plan_for
from genesis_fn.compiler.simplify.rewriter import live_equations, use_counts
from genesis_fn.compiler.simplify.rules import can_represent
from genesis_fn.compiler.target import Target
from genesis_fn.core.dtypes import F32
from genesis_fn.core.jaxpr import Atom, Eqn, Jaxpr, Var
from genesis_fn.primitives.elementwise import convert_p
from genesis_fn.transforms.custom.fused_functions import fused_p


def absorb_casts(jaxpr: Jaxpr, target: Target) -> Jaxpr:
    """`jaxpr` with widening casts of operands, and narrowing casts of results that nothing else
    reads, moved into the fused functions whose kernels take `casts` and support the dtypes."""
    if not any(map(_takes_casts, jaxpr.eqns)):
        return jaxpr
    uses = use_counts(jaxpr.eqns, jaxpr.outs)
    source: dict[Var, Var] = {}
    after: dict[Var, Eqn] = {}
    for e in [e for e in jaxpr.eqns if e.prim is convert_p]:
        (x,), (y,) = e.ins, e.outs
        if y.aval.dtype == F32 and can_represent(F32, x.aval.dtype):
            source[y] = x
        elif x.aval.dtype == F32 and can_represent(F32, y.aval.dtype) and uses[x] == 1:
            after[x] = e
    eqns: list[Eqn] = []
    done: set[Eqn] = set()
    for e in jaxpr.eqns:
        if e in done:
            continue
        if _takes_casts(e):
            ins = [source.get(x, x) if type(x) is Var else x for x in e.ins]
            following = [after[o] for o in e.outs if o in after]
            results = {f.ins[0]: f.outs[0] for f in following}
            for outs, gone in (([results.get(o, o) for o in e.outs], following), (e.outs, [])):
                found = _with_casts(e, ins, outs, uses)
                if found is not None and _planned(found, target):
                    e = found
                    done.update(gone)
                    break
        eqns.append(e)
    return Jaxpr(
        jaxpr.invars, live_equations(eqns, jaxpr.outs), jaxpr.outs, jaxpr.labels, jaxpr.name
    )


def _takes_casts(e: Eqn) -> bool:
    known = kernel_of(e.params["op"]) if e.prim is fused_p else None
    return known is not None and known.casts


def _planned(e: Eqn, target: Target) -> bool:
    return (
        plan_for(e.prim, [x.aval for x in e.ins], e.params, target, numerics=e.numerics) is not None
    )


def _with_casts(
    e: Eqn, ins: Sequence[Atom], outs: Sequence[Var], uses: dict[Var, int]
) -> Eqn | None:
    """The call on `ins` for `outs`, which may differ in dtype. None if nothing differs, or if a
    result that is one of its operands is read (its dtype would change)."""
    body = e.params["jaxpr"]
    if all([x is y for x, y in zip((*ins, *outs), (*e.ins, *e.outs))]):
        return None
    given = set(body.invars)
    if any([o in given and uses.get(v) for o, v in zip(body.outs, e.outs)]):
        return None
    invars, eqns, results, kept = [], [], [], []
    for v, x, new in zip(body.invars, e.ins, ins, strict=True):
        invars.append(v if new is x else Var(new.aval))
        if new is not x:
            eqns.append(Eqn(convert_p, [invars[-1]], {"dtype": v.aval.dtype}, [v]))
    eqns += body.eqns
    for o, v, new in zip(body.outs, e.outs, outs, strict=True):
        if o in given:
            continue
        results.append(o if new is v else Var(new.aval))
        if new is not v:
            eqns.append(Eqn(convert_p, [o], {"dtype": new.aval.dtype}, [results[-1]]))
        kept.append(new)
    program = Jaxpr(invars, eqns, results, body.labels, body.name)
    return e.replace(ins=ins, outs=kept, params={**e.params, "jaxpr": program})
