"""Rules of the simplifier for loops and branches: loop-invariant code motion, dead carries.

Bodies are simplified first (`simplified`), then rewritten together with what is outside: numbers
move in, invariant equations and results move out, dead results and carries go (`DCE_RULES`).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from genesis_fn.compiler.simplify.rewriter import (
    DCE_RULES,
    Rewriter,
    has_effect,
    live_equations,
    rewritten,
    rule,
    simplified,
)
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.jaxpr import Atom, Eqn, Jaxpr, Var, dead_code, memoized
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.elementwise import add, ge, gt, le, lt
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.shape import barrier_p, broadcast_in_dim_p, reshape_p
from genesis_fn.transforms.control_flow.associative import prefixes
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p
from genesis_fn.transforms.custom.fused_functions import fused_p

# A loop-invariant value of at most so many bytes may be live across the loop without freeing any.
_SMALL = 4096


# ---- scan ----


@rule(scan_p)
def _scan(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Atom] | None:
    body, consts, carry = simplified(params["jaxpr"], r.opaque), params["consts"], params["carry"]
    length = params["length"]
    ins = [r.array(i, v, e) for i, v in zip(ins, body.invars, strict=True)]
    # Without a step the carry is the result; with one there is no loop.
    if length == 0:
        ys = [r.full(_zero(o.aval), o, e)[0] for o in e.outs[carry:]]
        return [*ins[consts : consts + carry], *ys]
    if length == 1:
        return _inline_one_step(r, e, body, ins, consts + carry, carry)
    # Until nothing changes: a carry that became constant can make another one constant.
    loop = _Loop(r, e, body, ins, consts, carry)
    while loop.substitute():
        pass
    loop.decide(length)
    loop.hoist()
    return loop.result(params, carry)


def _zero(kind: Aval) -> Any:
    return (False, 0, 0.0, 0j)[dtypes.kind_rank(kind.dtype)]


def _inline_one_step(
    r: Rewriter, e: Eqn, body: Jaxpr, ins: list[Any], start: int, carry: int
) -> list[Atom]:
    rows = [
        r.apply(reshape_p, [x], {"shape": v.aval.shape}, e)[0]
        for x, v in zip(ins[start:], body.invars[start:])
    ]
    outs = r.inline(body, [*ins[:start], *rows], e)
    ys = [
        r.apply(reshape_p, [y], {"shape": o.aval.shape}, e)[0]
        for y, o in zip(outs[carry:], e.outs[carry:])
    ]
    return [*outs[:carry], *ys]


class _Loop:
    """A scan taken apart: its operands, paired with the body's variables for them.

    `consts` and `xs` hold (operand, variable), `carry` (position, initial value, variable, body
    output). `known` are the results that need no loop, by position.
    """

    def __init__(
        self, r: Rewriter, e: Eqn, body: Jaxpr, ins: list[Any], consts: int, carry: int
    ) -> None:
        self.r, self.e, self.body = r, e, body
        v, end = body.invars, consts + carry
        self.consts: list[tuple[Any, ...]] = list(zip(ins[:consts], v[:consts]))
        self.carry: list[tuple[Any, ...]] = list(
            zip(range(carry), ins[consts:end], v[consts:end], body.outs[:carry])
        )
        self.xs: list[tuple[Any, ...]] = list(zip(ins[end:], v[end:]))
        self.ys: list[Var] = body.outs[carry:]
        self.known: dict[int, Atom] = {}

    def variables(self) -> list[Var]:
        """The body's inputs."""
        return [v for _, v in self.consts] + [c[2] for c in self.carry] + [v for _, v in self.xs]

    def substitute(self) -> bool:
        """Turn unchanged carries into constants, move numbers inside, merge equal operands. Return
        whether anything changed."""
        env: dict[Var, Atom] = {}
        for i, x, v, out in self.carry:
            if out is v:
                self.known[i] = x
                self.consts.append((x, v))
        count = len(self.carry)
        self.carry = [c for c in self.carry if c[0] not in self.known]
        # As equations of the body, so that its constants are folded in the next rewrite.
        prelude = []
        numbers = [(x, v) for x, v in self.consts if x in self.r.const]
        for x, v in numbers:
            kind = v.aval
            fill = {"value": self.r.const[x], "shape": kind.shape, "dtype": kind.dtype}
            prelude.append(self.e.replace(prim=full_p, ins=[], params=fill, outs=(v,)))
        self.consts = _unique_operands([c for c in self.consts if c not in numbers], env)
        self.xs = _unique_operands(self.xs, env)
        if not (prelude or env or len(self.carry) < count):
            return False
        outs = [*(c[3] for c in self.carry), *self.ys]
        body = Jaxpr(self.variables(), [*prelude, *self.body.eqns], outs, (), self.body.name)
        self.body = rewritten(body, env, self.r.opaque)
        outs = self.body.outs
        self.carry = [(i, x, v, o) for (i, x, v, _), o in zip(self.carry, outs)]
        self.ys = outs[len(self.carry) :]
        return True

    def decide(self, length: int) -> None:
        """Decide the comparisons of a counter with numbers that come out the same in every step, as
        whether an index counts from the end."""
        made = {o: e for e in self.body.eqns for o in e.outs}
        ranges: dict[Any, tuple[int, int]] = {}
        for _, x, v, out in self.carry:
            first, e = self.r.const.get(x), made.get(out)
            if type(first) is not int or e is None or e.prim is not add.prim or v not in e.ins:
                continue
            step = next((i for i in e.ins if i is not v), None)
            if type(step) is int:
                ends = first, first + step * length  # what overflows goes around
                if all(
                    [
                        dtypes.iinfo(v.aval.dtype).min <= n <= dtypes.iinfo(v.aval.dtype).max
                        for n in ends
                    ]
                ):
                    ranges[v] = min(first, ends[1] - step), max(first, ends[1] - step)
        eqns = [_decided(e, ranges) for e in self.body.eqns] if ranges else self.body.eqns
        if any([a is not b for a, b in zip(eqns, self.body.eqns)]):
            body = Jaxpr(self.body.invars, eqns, self.body.outs, (), self.body.name)
            self.body = rewritten(body, {}, self.r.opaque)
            outs = self.body.outs
            self.carry = [(i, x, v, o) for (i, x, v, _), o in zip(self.carry, outs)]
            self.ys = outs[len(self.carry) :]

    def hoist(self) -> None:
        """Hoist loop-invariant equations whose results are small, or no larger than the constants
        that the loop then no longer reads."""
        moved = _hoistable(self.body, {v for _, v in self.consts})
        if not moved:
            return
        # Copied: the body may be the same program as another loop's.
        env: dict[Var, Atom] = {v: x for x, v in self.consts}
        self.r.run(moved, env, copy=True)
        gone = set(moved)
        left = [e for e in self.body.eqns if e not in gone]
        used = {i for e in left for i in e.ins} | set(self.body.outs)
        self.consts += [(env[o], o) for e in moved for o in e.outs]
        self.consts = [(x, v) for x, v in self.consts if v in used]
        self.body = Jaxpr(self.variables(), left, self.body.outs, (), self.body.name)

    def result(self, params: dict[Any, Any], count: int) -> list[Atom]:
        """The loop's results, the first `count` of them carries: known ones, and those of the
        remaining loop."""
        r, e, length, known = self.r, self.e, params["length"], self.known
        fixed = {v: x for x, v in self.consts}
        rows = {v: x for x, v in self.xs}
        # A stacked constant is a broadcast; a row of `xs` that comes out as it was is all of `xs`.
        for i, y in enumerate(self.ys, count):
            if y in fixed:
                kind = y.aval
                spread = {"shape": (length, *kind.shape), "dims": tuple(range(1, kind.ndim + 1))}
                known[i] = r.apply(broadcast_in_dim_p, [fixed[y]], spread, e)[0]
            elif y in rows:
                known[i] = rows[y]
        ys = [y for i, y in enumerate(self.ys, count) if i not in known]
        outs = [*(c[3] for c in self.carry), *ys]
        body = Jaxpr(
            self.variables(), live_equations(self.body.eqns, outs), outs, (), self.body.name
        )
        total = count + len(self.ys)
        positions = [i for i in range(total) if i not in known]
        if positions or body.effect:
            new = {
                **params,
                "jaxpr": body,
                "consts": len(self.consts),
                "carry": len(self.carry),
                "residuals": None,
            }
            operands = [x for x, _ in self.consts] + [c[1] for c in self.carry]
            operands += [x for x, _ in self.xs]
            made = r.make(scan_p, operands, new, e, e.outs if len(positions) == total else None)
            known.update(zip(positions, made))
        return [known[i] for i in range(total)]


def _decided(e: Eqn, ranges: dict[Any, tuple[int, int]]) -> Eqn:
    """A comparison as its result, where the ranges of counters tell that."""
    if e.prim not in _COMPARISONS:
        return e
    x, y = [ranges.get(i) if type(i) is Var else (i, i) for i in e.ins]
    if x is None or y is None or type(x[0]) is not int or type(y[0]) is not int:
        return e
    compare = _COMPARISONS[e.prim]
    found = {compare(a, b) for a in x for b in y}
    if len(found) > 1:
        return e
    params = {"value": found.pop(), "shape": e.outs[0].aval.shape, "dtype": dtypes.BOOL}
    return e.replace(prim=full_p, ins=[], params=params)


# Of ordered ranges: what holds for all pairs of ends holds between them.
_COMPARISONS = {
    lt.prim: operator.lt, le.prim: operator.le, gt.prim: operator.gt, ge.prim: operator.ge,
}  # fmt: skip


def _unique_operands(
    pairs: Sequence[tuple[Any, ...]], env: dict[Var, Atom]
) -> list[tuple[Any, ...]]:
    """`pairs` of (operand, variable) with each operand once; `env` gets the variables that replace
    the others."""
    first: dict[Atom, Var] = {}
    for x, v in pairs:
        known = first.setdefault(x, v)
        if known is not v:
            env[v] = known
    return list(first.items())


def _hoistable(body: Jaxpr, consts: set[Var]) -> list[Eqn]:
    """The loop-invariant equations whose hoisting costs no memory."""
    if not consts:
        return []
    uses: dict[Any, int] = {}
    for e in body.eqns:
        for i in set(e.ins):
            uses[i] = uses.get(i, 0) + 1
    for o in body.outs:
        uses[o] = uses.get(o, 0) + 1
    outside = set(consts)
    moved = []
    for e in body.eqns:
        arrays = {i for i in e.ins if type(i) is Var}
        if not arrays or not arrays <= outside or e.prim is barrier_p or has_effect(e):
            continue
        size = sum([o.aval.nbytes for o in e.outs])
        freed = sum([i.aval.nbytes for i in arrays if uses[i] == 1])
        if size <= max(freed, _SMALL):
            moved.append(e)
            outside.update(e.outs)
            for i in arrays:
                uses[i] -= 1
    return moved


def _trim_scan(e: Eqn, live: set[Any]) -> Eqn:
    """The scan without dead results: those that nothing reads, and carries that feed no live
    one."""
    p = e.params
    body, consts, carry = p["jaxpr"], p["consts"], p["carry"]
    keep = [o in live for o in e.outs]
    # A fixed point: a carry that a live result reads is live, and so is what that carry reads.
    while True:
        inner, needed = pruned(body, tuple(keep))
        grown = [k or n for k, n in zip(keep[:carry], needed[consts : consts + carry])]
        if grown == keep[:carry]:
            break
        keep[:carry] = grown
    kept = [*needed[:consts], *keep[:carry], *needed[consts + carry :]]
    inner = Jaxpr(
        [v for v, k in zip(body.invars, kept) if k], inner.eqns, inner.outs, (), body.name
    )
    params = {
        **p,
        "jaxpr": inner,
        "consts": sum(kept[:consts]),
        "carry": sum(keep[:carry]),
        "residuals": None,
    }
    return e.replace(
        ins=[i for i, k in zip(e.ins, kept) if k],
        params=params,
        outs=[o for o, k in zip(e.outs, keep) if k],
    )


@memoized
def pruned(jaxpr: Jaxpr, keep: tuple[bool, ...]) -> tuple[Jaxpr, list[bool]]:
    """(the program with the outputs in `keep` only, which inputs it reads)."""
    outs = [o for o, k in zip(jaxpr.outs, keep, strict=True) if k]
    eqns = live_equations(jaxpr.eqns, outs)
    read = {i for e in eqns for i in e.ins} | set(outs)
    program = Jaxpr(jaxpr.invars, eqns, outs, jaxpr.labels, jaxpr.name)
    return program, [v in read for v in jaxpr.invars]


# ---- while ----


@rule(while_p)
def _while(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Atom] | None:
    cond, body = simplified(params["cond"], r.opaque), simplified(params["body"], r.opaque)
    a, b = params["cond_consts"], params["body_consts"]
    like = [*cond.invars[:a], *body.invars]
    ins = [r.array(i, v, e) for i, v in zip(ins, like, strict=True)]
    start = a + b
    # Carries that the body returns as they came become constants of both programs.
    fixed = [i for i, o in enumerate(body.outs) if o is body.invars[b + i]]
    moving = [i for i in range(len(body.outs)) if i not in fixed]
    c_in, b_in = cond.invars, body.invars
    cond = Jaxpr(
        [*c_in[:a], *(c_in[a + i] for i in fixed), *(c_in[a + i] for i in moving)],
        cond.eqns,
        cond.outs,
        (),
        cond.name,
    )
    body = Jaxpr(
        [*b_in[:b], *(b_in[b + i] for i in fixed), *(b_in[b + i] for i in moving)],
        body.eqns,
        [body.outs[i] for i in moving],
        (),
        body.name,
    )
    unchanging = [ins[start + i] for i in fixed]
    operands = [
        *ins[:a],
        *unchanging,
        *ins[a:start],
        *unchanging,
        *(ins[start + i] for i in moving),
    ]
    new = {"cond": cond, "body": body, "cond_consts": a + len(fixed), "body_consts": b + len(fixed)}
    results = dict(zip(fixed, unchanging))
    # A loop without a moving value runs never or forever: leave that to the loop.
    outs = r.make(while_p, operands, new, e, None if fixed else e.outs)
    results.update(zip(moving, outs))
    return [results[i] for i in range(len(results))]


def _trim_while(e: Eqn, live: set[Any]) -> Eqn:
    p = e.params
    cond, body, a, b = p["cond"], p["body"], p["cond_consts"], p["body_consts"]
    _, test_reads = pruned(cond, (True,))
    # As in `_trim_scan`; what the condition reads is live, too.
    keep = [o in live or t for o, t in zip(e.outs, test_reads[a:])]
    while True:
        inner, needed = pruned(body, tuple(keep))
        grown = [k or n for k, n in zip(keep, needed[b:])]
        if grown == keep:
            break
        keep = grown
    test = Jaxpr(
        [
            *(v for v, t in zip(cond.invars[:a], test_reads) if t),
            *(v for v, k in zip(cond.invars[a:], keep) if k),
        ],
        cond.eqns,
        cond.outs,
        (),
        cond.name,
    )
    kept = [*needed[:b], *keep]
    inner = Jaxpr(
        [v for v, k in zip(body.invars, kept) if k], inner.eqns, inner.outs, (), body.name
    )
    mask = [*test_reads[:a], *kept]
    params = {
        "cond": test,
        "body": inner,
        "cond_consts": sum(test_reads[:a]),
        "body_consts": sum(needed[:b]),
    }
    return e.replace(
        ins=[i for i, k in zip(e.ins, mask) if k],
        params=params,
        outs=[o for o, k in zip(e.outs, keep) if k],
    )


# ---- cond ----


@rule(cond_p)
def _cond(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Atom] | None:
    index, *operands = ins
    branches = params["branches"]
    chosen = r.const.get(index) if type(index) is Var else index
    operands = [r.array(x, v, e) for x, v in zip(operands, branches[0].invars)]
    if chosen is not None or len(branches) == 1:
        # An index out of range is clamped, as at run time.
        at = 0 if chosen is None else min(max(int(chosen), 0), len(branches) - 1)
        return r.inline(branches[at], operands, e)
    branches = tuple([simplified(b, r.opaque) for b in branches])
    # A result that every branch returns from the same operand is that operand.
    passed: dict[int, Atom] = {}
    for i in range(len(e.outs)):
        positions = {b.invars.index(b.outs[i]) if b.outs[i] in b.invars else -1 for b in branches}
        if len(positions) == 1 and -1 not in positions:
            passed[i] = operands[positions.pop()]
    keep = [i for i in range(len(e.outs)) if i not in passed]
    if not keep and not any(b.effect for b in branches):
        return [passed[i] for i in range(len(e.outs))]
    mask = tuple([i not in passed for i in range(len(e.outs))])
    if passed:
        branches = tuple([pruned(b, mask)[0] for b in branches])
    outs = r.make(
        cond_p,
        [r.array(index, index, e) if type(index) is Var else index, *operands],
        {"branches": branches},
        e,
        None if passed else e.outs,
    )
    passed.update(zip(keep, outs))
    return [passed[i] for i in range(len(e.outs))]


def _trim_cond(e: Eqn, live: set[Any]) -> Eqn:
    keep = tuple([o in live for o in e.outs])
    results = [pruned(b, keep) for b in e.params["branches"]]
    # Branches have the same inputs: one goes if no branch reads it.
    reads = [any(column) for column in zip(*[r[1] for r in results])]
    branches = tuple(
        [
            Jaxpr([v for v, n in zip(b.invars, reads) if n], b.eqns, b.outs, (), b.name)
            for b, _ in results
        ]
    )
    ins = [e.ins[0], *(i for i, n in zip(e.ins[1:], reads) if n)]
    outs = [o for o, k in zip(e.outs, keep) if k]
    return e.replace(ins=ins, params={"branches": branches}, outs=outs)


# ---- fused functions ----


def _trim_fused(e: Eqn, live: set[Any]) -> Eqn:
    """A scan of several arrays, of which some results are not wanted."""
    if e.params["op"] is not prefixes:
        return e
    static, body = dict(e.params["static"]), e.params["jaxpr"]
    keep = [i for i, o in enumerate(e.outs) if o in live]
    static["kept"] = tuple([static["kept"][i] for i in keep])
    outs = [body.outs[i] for i in keep]
    program = Jaxpr(body.invars, dead_code(body.eqns, outs)[0], outs, (), body.name)
    params = e.params | {"static": tuple(sorted(static.items())), "jaxpr": program}
    return e.replace(params=params, outs=[e.outs[i] for i in keep])


DCE_RULES.update(
    {scan_p: _trim_scan, while_p: _trim_while, cond_p: _trim_cond, fused_p: _trim_fused}
)
