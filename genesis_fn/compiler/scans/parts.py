"""A scan taken apart: what its body defines and reads, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from genesis_fn.compiler.simplify.rewriter import has_effect
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var

MOST_STACKED = 1 << 31  # bytes of a value's stack, one for each step


class ScanBody:
    """A scan's body with its def-use information. `xs` are the stacks of the body's inputs."""

    def __init__(self, e: Eqn) -> None:
        p = e.params
        self.e, self.jaxpr, self.length = e, p["jaxpr"], p["length"]
        end = p["consts"] + p["carry"]
        self.consts = dict(zip(self.jaxpr.invars[: p["consts"]], e.ins))
        self.xs = dict(zip(self.jaxpr.invars[end:], e.ins[end:]))
        self.producer = {v: x for x in self.jaxpr.eqns for v in x.outs}
        self.uses: dict[Any, int] = {}
        self.readers: dict[Any, list[Eqn]] = {}
        for x in self.jaxpr.eqns:
            for i in dict.fromkeys(x.ins):
                self.readers.setdefault(i, []).append(x)
            for i in x.ins:
                self.uses[i] = self.uses.get(i, 0) + 1
        for o in self.jaxpr.outs:
            self.uses[o] = self.uses.get(o, 0) + 1

    def produced(self, v: Any) -> Eqn | None:
        """The equation that gives `v`, if it is a value of the body."""
        return self.producer.get(v) if type(v) is Var else None


@dataclass(slots=True)
class ScanChanges:
    """What becomes of a scan: equations ahead of it, first in its body (`prelude`) and last, and
    behind it; `carry` (first value, body's input, body's output, result), `ys` (body's output,
    result), `xs` (operand, body's input) that are new, what stands in the place of equations of the
    body (`instead`)."""

    ahead: list[Eqn] = field(default_factory=list)
    prelude: list[Eqn] = field(default_factory=list)
    body: list[Eqn] = field(default_factory=list)
    behind: list[Eqn] = field(default_factory=list)
    carry: list[tuple[Any, Var, Any, Var]] = field(default_factory=list)
    ys: list[tuple[Any, Var]] = field(default_factory=list)
    xs: list[tuple[Var, Var]] = field(default_factory=list)
    instead: dict[Eqn, list[Eqn]] = field(default_factory=dict)
    changed: bool = False

    def stacked(self, body: ScanBody, v: Var) -> Any:
        """All values of `v`, one for each step: an operand of the scan, or a result."""
        if v in body.xs:
            return body.xs[v]
        for y, whole in self.ys:
            if y is v:
                return whole
        whole = Var(v.aval.update((body.length, *v.aval.shape)))
        self.ys.append((v, whole))
        return whole

    def is_stacked(self, body: ScanBody, v: Any) -> bool:
        """Whether there is a stack of the values of `v`."""
        return v in body.xs or any([y is v for y, _ in self.ys])

    def give(self, result: Var) -> None:
        """Have the last equation behind the scan give one of its results."""
        self.behind.append(self.behind.pop().replace(outs=(result,)))

    def applied(self, body: ScanBody) -> tuple[list[Eqn], Eqn, list[Eqn]]:
        """(equations ahead, the scan, equations behind)."""
        e, jaxpr = body.e, body.jaxpr
        p = e.params
        consts, end = p["consts"], p["consts"] + p["carry"]
        outs = [c[2] for c in self.carry] + [y for y, _ in self.ys]
        kept = [y for x in jaxpr.eqns for y in self.instead.get(x, [x])]
        eqns = _live([*self.prelude, *kept, *self.body], outs)
        read = {i for x in eqns for i in x.ins}.union(outs)
        xs = [*zip(e.ins[end:], jaxpr.invars[end:])] + [x for x in self.xs if x[1] in read]
        invars = [*jaxpr.invars[:consts], *[c[1] for c in self.carry], *[v for _, v in xs]]
        inner = Jaxpr(invars, eqns, outs, (), jaxpr.name)
        ins = [*e.ins[:consts], *[c[0] for c in self.carry], *[x for x, _ in xs]]
        params = {**p, "jaxpr": inner, "carry": len(self.carry), "residuals": None}
        results = [c[3] for c in self.carry] + [w for _, w in self.ys]
        # What leaves a loop stays in its pass.
        ahead, behind = [
            [x.replace(backward=e.backward) for x in eqns] for eqns in (self.ahead, self.behind)
        ]
        return ahead, e.replace(ins=ins, params=params, outs=tuple(results)), behind


def _live(eqns: Sequence[Eqn], outs: Sequence[Any]) -> list[Eqn]:
    needed = set(outs)
    kept = []
    for e in reversed(eqns):
        if has_effect(e) or any(v in needed for v in e.outs):
            needed.update(i for i in e.ins if type(i) is Var)
            kept.append(e)
    return kept[::-1]
