"""Which outputs of a program may depend on the values of which inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var


def dependent(jaxpr: Jaxpr, given: Sequence[bool]) -> list[bool]:
    """For each output, whether any of the `given` inputs may decide its value.

    Calls, branches and scans are looked into; of other equations every output depends on all
    inputs.
    """
    found = {v for v, g in zip(jaxpr.invars, given, strict=True) if g}
    for e in jaxpr.eqns:
        ins = [type(i) is Var and i in found for i in e.ins]
        if any(ins):
            found.update(o for o, d in zip(e.outs, _outputs(e, ins), strict=True) if d)
    return [type(o) is Var and o in found for o in jaxpr.outs]


def _outputs(e: Eqn, ins: list[bool]) -> list[bool]:
    program: Any = e.params.get("jaxpr")
    if e.prim.name == "scan":
        return _of_loop(program, ins, e.params["consts"], e.params["carry"])
    if isinstance(program, Jaxpr) and len(program.invars) == len(ins):
        return dependent(program, ins)
    branches = e.params.get("branches")
    if branches and not ins[0]:
        return [any(d) for d in zip(*[dependent(b, ins[1:]) for b in branches])]
    return [True] * len(e.outs)


def _of_loop(body: Jaxpr, ins: list[bool], consts: int, carry: int) -> list[bool]:
    while True:
        outs = dependent(body, ins)
        grown = [a or b for a, b in zip(ins[consts : consts + carry], outs)]
        if grown == ins[consts : consts + carry]:
            return outs
        ins[consts : consts + carry] = grown
