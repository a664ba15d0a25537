"""Programs of a loop as `nest` takes them: copies of its own, and the classes of their axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genesis_fn.compiler.row_loops.axes import AxisClasses, related_carry, walk
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.transforms.control_flow.scanning import scan_p


def fresh_eqn(e: Eqn, env: dict[Var, Any]) -> Eqn:
    """A copy of an equation over `env`, whose programs share no variable with others."""
    params = {}
    for name, value in e.params.items():
        if type(value) is Jaxpr:
            params[name] = _fresh(value)
        elif type(value) is tuple and value and type(value[0]) is Jaxpr:
            params[name] = tuple([_fresh(j) for j in value])
        else:
            params[name] = value
    ins = [env.get(i, i) if type(i) is Var else i for i in e.ins]
    return e.replace(ins=ins, params=params)


def _fresh(jaxpr: Jaxpr) -> Jaxpr:
    env: dict[Var, Any] = {v: Var(v.aval) for v in jaxpr.invars}
    eqns = []
    for e in jaxpr.eqns:
        made = fresh_eqn(e, env)
        made.outs = tuple([Var(v.aval) for v in e.outs])
        env.update(zip(e.outs, made.outs))
        eqns.append(made)
    outs = [env[o] if type(o) is Var else o for o in jaxpr.outs]
    return Jaxpr([env[v] for v in jaxpr.invars], eqns, outs, (), jaxpr.name)


def classes_of(e: Eqn, parts: bool, outer: Mapping[Var, Eqn]) -> AxisClasses:
    """The axis classes of the values of a loop; `outer` are equations around it."""
    classes = AxisClasses(parts, outer)
    p = e.params
    if e.prim is scan_p:
        body, consts, end = p["jaxpr"], p["consts"], p["consts"] + p["carry"]
        for x, v in zip(e.ins[:consts], body.invars):
            classes.alias(x, v)
        related_carry(classes, body, e.ins[consts:end], body.invars[consts:end], e.outs)
        stacked = [*zip(e.ins[end:], body.invars[end:])]
        stacked += zip(e.outs[p["carry"] :], body.outs[p["carry"] :])
        for whole, row in stacked:
            classes.mix((whole, 0), moved=True)
            classes.join_all(whole, row, 1)
        walk(classes, body)
    else:
        walk(classes, Jaxpr([], [e], [], (), ""))
    classes.settle()
    return classes
