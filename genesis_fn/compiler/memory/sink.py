"""Sinking: equations move down to their first use, where that shortens live ranges.

Derivative rules compute much of what the backward pass needs at its start, and each such value is
then live until the backward pass comes to its layer.
"""

from __future__ import annotations

from collections.abc import Iterable

from genesis_fn.compiler.simplify.rewriter import has_effect
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var


def sink_equations(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` in another order of equations: one whose results are no smaller than the operands
    that it would keep alive runs just before its first consumer. Equations with effects stay."""
    eqns = jaxpr.eqns
    end = len(eqns)
    first: dict[Var, int] = dict.fromkeys(jaxpr.outs, end)
    last: dict[Var, int] = dict.fromkeys([*jaxpr.outs, *jaxpr.invars], end)
    position = list(range(end))
    # From the end, so that consumers have moved before their producers are looked at.
    for n in range(end - 1, -1, -1):
        e = eqns[n]
        arrays = {i for i in e.ins if type(i) is Var}
        use = min([first.get(o, n) for o in e.outs], default=n)
        if n + 1 < use and not has_effect(e):
            produced = _size(e.outs)
            kept = _size([i for i in arrays if last.get(i, -1) < use])
            # Where it makes no difference, the producers of its operands may gain by moving too.
            if produced > kept or (produced == kept and use < end):
                position[n] = use
        for i in arrays:
            first[i] = min(first.get(i, end), position[n])
            last[i] = max(last.get(i, -1), position[n])
    order = sorted(range(end), key=lambda n: (position[n], n))
    moved: list[Eqn] = [eqns[n] for n in order]
    return Jaxpr(jaxpr.invars, moved, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _size(values: Iterable[Var]) -> int:
    return sum([v.aval.nbytes for v in values])
