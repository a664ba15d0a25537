"""Which layer or parameters the equations of a program belong to.

A value is known by the parameters that it is computed of, if it is computed of nothing else: views
and casts of a weight, a product of two of them. The equation that brings it together with data is
the one that uses these parameters. Sub-programs are followed; what a scan does counts as often as
it runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from genesis_fn.core.aval import Aval
from genesis_fn.core.backend.lowering import View
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.primitives.elementwise import convert_p
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p
from genesis_fn.transforms.custom.fused_functions import fused_p
from genesis_fn.transforms.jitting.aot import Traced
from genesis_fn.transforms.staging.cost_analysis import (
    cost,
    counted_programs,
    equation_flops,
    shares_memory,
)

# The numbers of the parameters that a value is computed of, if of nothing but constants besides;
# None of data.
_Origin = frozenset[int] | None
_CONSTANT: _Origin = frozenset()


@dataclass(frozen=True)
class Work:
    """What one equation does, all of its runs together: for which scope, with which parameters."""

    scope: str
    parameters: frozenset[int]
    flops: float
    products: float  # of these, in matrix products and convolutions
    nbytes: int  # of results that are memory of their own
    operation: str
    uses_data: bool
    data: tuple[Var, ...]  # the operands that are no parameters, as they were before views
    inputs: tuple[Aval, ...]
    outputs: tuple[Var, ...]


def attribute(
    traced: Traced[Any, Any], groups: Sequence[Hashable], scope_of: Callable[[str], str]
) -> list[Work]:
    """What the equations of a program do, in order.

    Args:
        traced: the program; what it captured counts as constants.
        groups: for each array among its arguments, the group of parameters that it belongs to, or
            None for data. A fused function uses the parameters of one group together.
        scope_of: gives for the scope of an equation the part of it that callers care about.
    """
    walk = _Walk(scope_of, groups)
    captured = [_CONSTANT] * len(traced.program.captured)
    origins = [None if g is None else frozenset([i]) for i, g in enumerate(groups)]
    walk.run(traced.jaxpr, [*captured, *origins], "", 1, True)
    return walk.work


class _Walk:
    """Walks a program and the programs in it; `work` is what was recorded."""

    def __init__(self, scope_of: Callable[[str], str], groups: Sequence[Hashable]) -> None:
        self.scope_of, self.groups = scope_of, groups
        self.work: list[Work] = []
        self._before_views: dict[Var, Var] = {}
        self._first_scope: dict[int, str] = {}

    def run(
        self, jaxpr: Jaxpr, origins: Sequence[_Origin], scope: str, times: int, record: bool
    ) -> list[_Origin]:
        """The origins of the outputs by those of the inputs, the work recorded if `record`."""
        # A program that was traced for an earlier call carries that call's scopes.
        own = self._first_scope.setdefault(id(jaxpr), scope) == scope
        known: dict[Var, _Origin] = dict(zip(jaxpr.invars, origins, strict=True))
        for e in jaxpr.eqns:
            ins = [known[a] if type(a) is Var else _CONSTANT for a in e.ins]
            inner = self.scope_of(e.where.scope) if own and e.where is not None else scope
            inside = inner if inner.startswith(scope) else scope
            if self._is_followed(e, ins):
                outs = self._follow(e, ins, inside, times, record)
            else:
                outs = [_union(ins)] * len(e.outs)
                if record:
                    self._record(e, ins, inside, times)
            known.update(zip(e.outs, outs, strict=True))
        return [known[o] for o in jaxpr.outs]

    def _is_followed(self, e: Eqn, ins: Sequence[_Origin]) -> bool:
        if e.prim is fused_p:
            return len({self.groups[i] for o in ins for i in o or ()}) > 1
        return type(e.params.get(e.prim.program or "")) is Jaxpr or e.prim in (
            scan_p,
            cond_p,
            while_p,
        )

    def _follow(
        self, e: Eqn, ins: list[_Origin], scope: str, times: int, record: bool
    ) -> list[_Origin]:
        """`run` for the programs of an equation, each with its part of the operands."""
        call = functools.partial(self._call, scope=scope, record=record)
        if e.prim is cond_p:
            counted = counted_programs(e)[0][0]
            branches = [
                call(j, e.ins[1:], ins[1:], times=times if j is counted else 0)
                for j in e.params["branches"]
            ]
            return [_union([ins[0], *outs]) for outs in zip(*branches)]
        if e.prim is scan_p:
            body, consts, carry = e.params["jaxpr"], e.params["consts"], e.params["carry"]
            self._settle(body, ins, slice(consts, consts + carry), scope)
            return call(body, e.ins, ins, times=times * e.params["length"])
        if e.prim is while_p:
            a, b, stop = e.params["cond_consts"], e.params["body_consts"], e.params["cond"]
            inner = ins[a:]
            self._settle(e.params["body"], inner, slice(b, None), scope)
            call(stop, [*e.ins[:a], *e.ins[a + b :]], [*ins[:a], *inner[b:]], times=times)
            return call(e.params["body"], e.ins[a:], inner, times=times)
        program: Jaxpr = e.params[e.prim.program or ""]
        outs = call(program, e.ins, ins, times=times)
        for inside, outside in zip(program.outs, e.outs):
            self._before_views[outside] = self._origin_of_view(inside)
        return outs

    def _settle(self, body: Jaxpr, ins: list[_Origin], carry: slice, scope: str) -> None:
        """Let the carry's origins in `ins` be those of every step."""
        count = len(range(*carry.indices(len(ins))))
        while True:
            outs = self.run(body, ins, scope, 0, False)[:count]
            joined = [_union(pair) for pair in zip(ins[carry], outs)]
            if joined == ins[carry]:
                return
            ins[carry] = joined

    def _call(
        self,
        jaxpr: Jaxpr,
        operands: Sequence[Any],
        ins: Sequence[_Origin],
        scope: str,
        times: int,
        record: bool,
    ) -> list[_Origin]:
        for inside, outside in zip(jaxpr.invars, operands):
            if type(outside) is Var:
                self._before_views[inside] = self._origin_of_view(outside)
        return self.run(jaxpr, ins, scope, times, record)

    def _origin_of_view(self, v: Var) -> Var:
        return self._before_views.get(v, v)

    def _record(self, e: Eqn, ins: Sequence[_Origin], scope: str, times: int) -> None:
        atoms = [a for a in e.ins if type(a) is Var]
        if (type(e.prim.lowering) is View or e.prim is convert_p) and len(atoms) == 1:
            self._before_views.update((o, self._origin_of_view(atoms[0])) for o in e.outs)
        flops = times * _flops_of(e)
        data = [a for a, o in zip(e.ins, ins) if o is None and type(a) is Var]
        self.work.append(
            Work(
                scope,
                frozenset[int]().union(*[o for o in ins if o]),
                flops,
                times * _product_flops(e),
                0 if shares_memory(e) else times * sum(o.aval.nbytes for o in e.outs),
                e.params["op"].name if e.prim is fused_p else e.prim.name,
                bool(data),
                tuple([self._origin_of_view(a) for a in data]),
                tuple([a.aval for a in data]),
                tuple(e.outs),
            )
        )


def _union(origins: Sequence[_Origin] | Iterator[_Origin]) -> _Origin:
    result = frozenset[int]()
    for o in origins:
        if o is None:
            return None
        result |= o
    return result


def _flops_of(e: Eqn) -> float:
    programs = counted_programs(e)
    if not programs:
        return equation_flops(e)
    return sum(times * cost(j)["flops"] for j, times in programs)


def _product_flops(e: Eqn) -> float:
    """The operations of an equation in matrix products and convolutions: what `amp` runs in low
    precision."""
    programs = counted_programs(e)
    if programs:
        return sum(times * sum(_product_flops(i) for i in j.eqns) for j, times in programs)
    return equation_flops(e) if e.prim.precision == "low" else 0
