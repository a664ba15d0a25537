"""Dependency analysis: which outputs of a program may depend on the values of which inputs."""

from __future__ import annotations

from collections.abc import Sequence

from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var


def dependent(jaxpr: Jaxpr, given: Sequence[bool]) -> list[bool]:
    """For each output, whether its value may depend on any of the inputs marked in `given`.

    Calls, branches and scans are analysed; for other equations, every output depends on all inputs.
    """
    reached = {v for v, g in zip(jaxpr.invars, given, strict=True) if g}
    for e in jaxpr.eqns:
        ins = [type(i) is Var and i in reached for i in e.ins]
        if any(ins):
            reached.update(o for o, d in zip(e.outs, _outputs(e, ins), strict=True) if d)
    return [type(o) is Var and o in reached for o in jaxpr.outs]


def _outputs(e: Eqn, ins: list[bool]) -> list[bool]:
    if e.prim.depends is not None:
        return e.prim.depends(ins, **e.params)
    program = e.params[e.prim.program] if e.prim.program else None
    return [True] * len(e.outs) if program is None else dependent(program, ins)


def of_branches(ins: list[bool], *, branches: Sequence[Jaxpr]) -> list[bool]:
    """The rule of a cond or switch, whose first operand chooses the branch."""
    outs = [any(d) for d in zip(*[dependent(b, ins[1:]) for b in branches])]
    return [True] * len(outs) if ins[0] else outs


def of_loop(ins: list[bool], *, jaxpr: Jaxpr, consts: int, carry: int, **_: object) -> list[bool]:
    """The rule of a scan: the carry's dependencies grow until a fixed point."""
    body = jaxpr
    while True:
        outs = dependent(body, ins)
        grown = [a or b for a, b in zip(ins[consts : consts + carry], outs)]
        if grown == ins[consts : consts + carry]:
            return outs
        ins[consts : consts + carry] = grown
