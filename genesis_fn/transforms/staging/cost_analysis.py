"""What a program costs before it runs: floating-point operations, bytes, peak memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.core.aval import Aval
from genesis_fn.core.backend.lowering import Source, View
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, e_jaxprs, memoized
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p
from genesis_fn.transforms.custom.fused_functions import fused_p


def _avals(atoms: Sequence[Any]) -> list[Aval]:
    return [v.aval for v in atoms if type(v) is Var]


def _bytes(atoms: Sequence[Any]) -> int:
    return sum(a.nbytes for a in _avals(atoms))


def equation_flops(e: Eqn) -> float:
    """The floating-point operations of a first-order equation (2 for a multiply-add)."""
    ins, outs = _avals(e.ins), _avals(e.outs)
    if e.prim.flops is not None:
        return e.prim.flops(ins, outs, **e.params)
    if type(e.prim.lowering) in (View, Source) or e.prim.effect:
        return 0
    return sum(o.size for o in outs)


def shares_memory(e: Eqn) -> bool:
    """Whether the results are memory of the first operand."""
    return type(e.prim.lowering) is View and e.prim.lowering.shares


class _Count:
    """Sums over a program."""

    def __init__(self) -> None:
        self.flops = self.transcendentals = self.moved = 0.0
        self.unbounded = 0

    def add(self, other: _Count, times: int) -> None:
        self.flops += times * other.flops
        self.transcendentals += times * other.transcendentals
        self.moved += times * other.moved
        self.unbounded += other.unbounded


def counted_programs(e: Eqn) -> list[tuple[Jaxpr, int]]:
    """The sub-programs of an equation that count, with how often each: of a cond the most expensive
    branch, of a scan its body as often as it runs, of a while loop one step."""
    inner = list(e_jaxprs(e))
    if e.prim is cond_p:
        return [(max(inner, key=lambda j: (_count(j).flops, _count(j).moved)), 1)]
    return [(j, e.params["length"] if e.prim is scan_p else 1) for j in inner]


@memoized
def _count(jaxpr: Jaxpr) -> _Count:
    total = _Count()
    for e in jaxpr.eqns:
        inner = counted_programs(e)
        if inner:
            for j, times in inner:
                total.add(_count(j), times)
            total.unbounded += e.prim is while_p
        else:
            n = equation_flops(e)
            total.flops += n
            total.transcendentals += n if e.prim.transcendental else 0
            if not shares_memory(e):
                total.moved += _bytes(e.ins) + _bytes(e.outs)
    return total


def cost(jaxpr: Jaxpr) -> dict[str, float]:
    """Floating-point operations and bytes of a program.

    "bytes accessed" is what any execution must move: inputs read and outputs written once; "bytes
    accessed unfused" sums every equation's. A cond counts as its most expensive branch, a while
    loop as one step ("while loops" says how many there are).
    """
    total = _count(jaxpr)
    result = {
        "flops": float(total.flops),
        "transcendentals": float(total.transcendentals),
        "bytes accessed": float(_bytes(jaxpr.invars) + _bytes(list(dict.fromkeys(jaxpr.outs)))),
        "bytes accessed unfused": float(total.moved),
    }
    if total.unbounded:
        result["while loops"] = float(total.unbounded)
    return result


@memoized
def _temporary(jaxpr: Jaxpr) -> int:
    """The peak bytes of values that are neither inputs nor outputs, run in order and freed at their
    last use; views share the memory of what they show."""
    owner: dict[Var, Var] = {v: v for v in jaxpr.invars}
    for e in jaxpr.eqns:
        for o in e.outs:
            source = e.ins[0] if e.ins and shares_memory(e) else None
            owner[o] = owner[source] if type(source) is Var else o
    last: dict[Var, int] = {}
    for n, e in enumerate(jaxpr.eqns):
        for v in (*e.ins, *e.outs):
            if type(v) is Var:
                last[owner[v]] = n
    kept = {*jaxpr.invars, *(owner[o] for o in jaxpr.outs)}
    ends: dict[int, list[Var]] = {}
    for v, n in last.items():
        ends.setdefault(n, []).append(v)
    now = peak = 0
    for n, e in enumerate(jaxpr.eqns):
        now += sum(o.aval.nbytes for o in e.outs if owner[o] is o and o not in kept)
        inside = max([_inner_peak(e, j) for j in e_jaxprs(e)], default=0)
        peak = max(peak, now + inside)
        now -= sum(v.aval.nbytes for v in ends.get(n, ()) if v not in kept)
    return peak


def _inner_peak(e: Eqn, j: Jaxpr) -> int:
    """Temporary bytes of a sub-program; a loop's step also makes its outputs anew. A fused function
    is one operation: its program says what it computes, not what it holds."""
    if e.prim is fused_p:
        return 0
    return _temporary(j) + (_bytes(j.outs) if e.prim in (scan_p, while_p) else 0)


def memory(jaxpr: Jaxpr) -> dict[str, int]:
    """Bytes of a program's arguments, outputs, and the peak of what lives between them.

    Values are freed after their last use and views share memory; fusion and in-place updates need
    less.
    """
    arguments = _bytes(jaxpr.invars)
    outputs = _bytes([o for o in dict.fromkeys(jaxpr.outs) if o not in set(jaxpr.invars)])
    temporary = _temporary(jaxpr)
    return {
        "argument_size_in_bytes": arguments,
        "output_size_in_bytes": outputs,
        "temp_size_in_bytes": temporary,
        "peak_memory_in_bytes": arguments + outputs + temporary,
    }
