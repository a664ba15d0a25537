"""Views of what is computed of inputs become views of the inputs, so that every value of a program
lies in its frame: `convert` and then `broadcast_in_dim` are the same the other way round."""

from __future__ import annotations

from typing import Any

from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, dead_code
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.shape import broadcast_in_dim_p, reshape_p

_VIEWS = frozenset((broadcast_in_dim_p, reshape_p))


def with_early_views(program: Jaxpr) -> Jaxpr:
    """The program with its broadcasts and reshapes in front of the elementwise operations whose
    results they take. Results of reductions stay as they are: there are fewer of them."""
    made: dict[Var, Eqn] = {}  # the equation of each value that is computed of inputs alone
    viewed: dict[Any, Var] = {}
    eqns: list[Eqn] = []
    of_inputs = set(program.invars)

    def view(x: Var, by: Eqn, out: Var | None = None) -> Var:
        """`x` in the view of equation `by`, as `out` if that is given."""
        key = (x, by.prim, *by.params.items())
        if out is None and key in viewed:
            return viewed[key]
        source, prim, params = made.get(x), by.prim, by.params
        result = out or Var(x.aval.update(tuple(params["shape"])))
        ins: list[Any] = [x]
        if source is not None and type(source.prim.lowering) is Elementwise:
            ins = [view(i, by) if type(i) is Var else i for i in source.ins]
            prim, params = source.prim, source.params
        add(prim, ins, params, result, by if source is None else source)
        viewed[key] = result
        return result

    def add(prim: Primitive, ins: list[Any], params: dict[str, Any], out: Var, like: Eqn) -> None:
        e = Eqn(prim, ins, params, [out], like.where, like.backward, like.numerics)
        eqns.append(e)
        made[out] = e
        of_inputs.add(out)

    for e in program.eqns:
        known = all([i in of_inputs for i in e.ins if type(i) is Var])
        if known and e.prim in _VIEWS:
            view(e.ins[0], e, e.outs[0])
            continue
        eqns.append(e)
        if known and (type(e.prim.lowering) is Elementwise or not e.ins):
            made[e.outs[0]] = e
            of_inputs.update(e.outs)
    live, _ = dead_code(eqns, program.outs)
    return Jaxpr(program.invars, live, program.outs, (), program.name)
