"""Takes what a loop only accumulates, or reports, over its rows out of the loop.

The gradient of weights that all rows share is a sum over steps and rows, and so is a mean that each
step reports. Neither is read by the steps that follow: rows need not wait for each other. A carry
`c + sum_rows(x)` becomes a sum of each row by itself, or where that is too large for registers the
stack of the operands, and what is left of the sum runs after the loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from genesis_fn.compiler.loop_ir.kernel import reduced_axes
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.backend.lowering import Elementwise, Reduce
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.primitives.dot_general import dot_general_p, free_dims
from genesis_fn.primitives.elementwise import add, add_n, convert_p, mul
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.reductions.reduce import reduce_sum_p
from genesis_fn.primitives.shape import broadcast_in_dim_p, reshape_p, transpose_p

_IN_REGISTERS = 512  # numbers of a row's accumulator
_NARROW_SIDE = 8  # of them along one of two axes: the others are lanes
_MOST_STACKED = 1 << 31  # bytes


@dataclass(slots=True)
class _Changes:
    """What becomes of a scan: equations ahead of it, in its body and behind it; `carry` (first
    value, body's input, body's output, result), `ys` (body's output, result)."""

    ahead: list[Eqn] = field(default_factory=list)
    body: list[Eqn] = field(default_factory=list)
    behind: list[Eqn] = field(default_factory=list)
    carry: list[tuple[Any, Var, Any, Var]] = field(default_factory=list)
    ys: list[tuple[Any, Var]] = field(default_factory=list)
    changed: bool = False


class _Body:
    """A scan's body with its def-use information."""

    def __init__(self, e: Eqn) -> None:
        p = e.params
        self.e, self.jaxpr, self.length = e, p["jaxpr"], p["length"]
        end = p["consts"] + p["carry"]
        self.xs = dict(zip(self.jaxpr.invars[end:], e.ins[end:]))
        self.producer = {v: x for x in self.jaxpr.eqns for v in x.outs}
        self.uses: dict[Any, int] = {}
        for x in self.jaxpr.eqns:
            for i in x.ins:
                self.uses[i] = self.uses.get(i, 0) + 1
        for o in self.jaxpr.outs:
            self.uses[o] = self.uses.get(o, 0) + 1

    def stacked(self, v: Var, changes: _Changes) -> Any:
        """All values of `v`, one for each step: an operand of the scan, or a new result."""
        if v in self.xs:
            return self.xs[v]
        whole = Var(v.aval.update((self.length, *v.aval.shape)))
        changes.ys.append((v, whole))
        return whole


def without_accumulations(e: Eqn) -> tuple[list[Eqn], Eqn, list[Eqn]] | None:
    """(equations ahead, the scan, equations behind) in place of a scan; None if it has no sum over
    rows that only its results need."""
    body, changes = _Body(e), _Changes()
    p, jaxpr = e.params, e.params["jaxpr"]
    consts, count = p["consts"], p["carry"]
    for k in range(count):
        v, out = jaxpr.invars[consts + k], jaxpr.outs[k]
        if not _accumulates(body, changes, e.ins[consts + k], v, out, e.outs[k]):
            changes.carry.append((e.ins[consts + k], v, out, e.outs[k]))
    for y, whole in zip(jaxpr.outs[count:], e.outs[count:]):
        if not _reports(body, changes, y, whole):
            changes.ys.append((y, whole))
    if not changes.changed:
        return None
    outs = [c[2] for c in changes.carry] + [y for y, _ in changes.ys]
    invars = jaxpr.invars[:consts] + [c[1] for c in changes.carry]
    invars += jaxpr.invars[consts + count :]
    inner = Jaxpr(invars, _live([*jaxpr.eqns, *changes.body], outs), outs, (), jaxpr.name)
    ins = [*e.ins[:consts], *[c[0] for c in changes.carry], *e.ins[consts + count :]]
    params = {**p, "jaxpr": inner, "carry": len(changes.carry), "residuals": None}
    results = [c[3] for c in changes.carry] + [w for _, w in changes.ys]
    scan = e.replace(ins=ins, params=params, outs=tuple(results))
    return changes.ahead, scan, changes.behind


def _live(eqns: Sequence[Eqn], outs: Sequence[Any]) -> list[Eqn]:
    needed = set(outs)
    kept = []
    for e in reversed(eqns):
        if any(v in needed for v in e.outs):
            needed.update(i for i in e.ins if type(i) is Var)
            kept.append(e)
    return kept[::-1]


# ---- sums that a loop carries ----


def _accumulates(body: _Body, changes: _Changes, init: Any, v: Var, out: Any, result: Var) -> bool:
    """Take the carry `v`, which is `out` after a step, out of the loop if it is a sum over rows."""
    terms = _terms(body, out)
    if terms.count(v) != 1 or body.uses.get(v) != 1 or v.aval.dtype not in _SUMMED:
        return False
    sums = [_sum_over(body, t) for t in terms if t is not v]
    found = [s for s in sums if s is not None]
    if not found or len(found) < len(sums):
        return False
    where = body.producer[out].where
    total = init
    for source, views in found:
        made = _row_sums(body, changes, source, where)
        if made is None:
            return False
        for view in views:
            moved = Var(view.outs[0].aval)
            changes.behind.append(view.replace(ins=[made], outs=(moved,)))
            made = moved
        summed = result if source is found[-1][0] else Var(v.aval)
        changes.behind.append(Eqn(add.prim, [total, made], {}, (summed,), where))
        total = summed
    changes.changed = True
    return True


_SUMMED = (dtypes.F32, dtypes.F64)


def _terms(body: _Body, v: Any) -> list[Any]:
    """What a value is the sum of, as far as nothing else reads a part of it."""
    e = body.producer.get(v) if type(v) is Var else None
    if e is None or e.prim not in (add.prim, add_n.prim) or body.uses[v] != 1:
        return [v]
    return [t for i in e.ins for t in _terms(body, i)]


def _sum_over(body: _Body, v: Any) -> tuple[Eqn, list[Eqn]] | None:
    """(the sum or product that `v` is a view of, the views in the order of the program)."""
    views: list[Eqn] = []
    while type(v) is Var:
        e = body.producer.get(v)
        if e is None or body.uses[v] != 1:
            return None
        if e.prim is reduce_sum_p or e.prim is dot_general_p:
            both = all([type(i) is Var for i in e.ins])
            return (e, views[::-1]) if both and v.aval.dtype in _SUMMED else None
        if e.prim not in (reshape_p, transpose_p):
            return None
        views.append(e)
        v = e.ins[0]
    return None


def _row_sums(body: _Body, changes: _Changes, e: Eqn, where: Any) -> Var | None:
    """The sum over all steps of a sum or product of a step, computed after the loop."""
    if e.prim is reduce_sum_p:
        x = e.ins[0]
        return (
            _summed(body, changes, x, reduced_axes(e), where) if x.aval.dtype in _SUMMED else None
        )
    lhs, rhs = e.ins
    numbers = e.params["dimension_numbers"]
    (contracted_l, contracted_r), (batch_l, batch_r) = numbers
    free_l = free_dims(lhs.aval.ndim, (*contracted_l, *batch_l))
    free_r = free_dims(rhs.aval.ndim, (*contracted_r, *batch_r))
    sides = [
        math.prod([x.aval.shape[i] for i in free]) for x, free in ((lhs, free_l), (rhs, free_r))
    ]
    out = e.outs[0].aval
    if min(sides) <= _NARROW_SIDE and math.prod(sides) <= _IN_REGISTERS:
        x, axes = _written_out(changes, e, lhs, rhs, free_l, free_r, out, where)
        return _summed(body, changes, x, axes, where)
    size = sum([x.aval.nbytes for x in (lhs, rhs) if x not in body.xs])
    if size * body.length > _MOST_STACKED:
        return None
    wholes = [body.stacked(x, changes) for x in (lhs, rhs)]
    up = lambda axes: tuple([i + 1 for i in axes])
    contracted = (0, *up(contracted_l)), (0, *up(contracted_r))
    made = Var(out)
    params = {**e.params, "dimension_numbers": (contracted, (up(batch_l), up(batch_r)))}
    changes.behind.append(e.replace(ins=wholes, params=params, outs=(made,)))
    return made


def _written_out(
    changes: _Changes, e: Eqn, lhs: Var, rhs: Var, free_l: Any, free_r: Any, out: Aval, where: Any
) -> tuple[Var, tuple[int, ...]]:
    """(the products of a contraction, before they are summed, the axes that are)."""
    (contracted_l, contracted_r), (batch_l, batch_r) = e.params["dimension_numbers"]
    shape = [lhs.aval.shape[i] for i in (*contracted_l, *batch_l, *free_l)]
    shape += [rhs.aval.shape[i] for i in free_r]
    c, b, f = len(contracted_l), len(batch_l), len(free_l)
    factors = []
    for x, order, free_at in (
        (lhs, (*contracted_l, *batch_l, *free_l), c + b),
        (rhs, (*contracted_r, *batch_r, *free_r), c + b + f),
    ):
        at = [*range(c + b), *range(free_at, free_at + len(order) - c - b)]
        turned = Var(x.aval.update(tuple([x.aval.shape[i] for i in order])))
        changes.body.append(Eqn(transpose_p, [x], {"permutation": tuple(order)}, (turned,), where))
        if x.aval.dtype != out.dtype:
            cast = Var(turned.aval.update(dtype=out.dtype))
            changes.body.append(Eqn(convert_p, [turned], {"dtype": out.dtype}, (cast,), where))
            turned = cast
        spread = Var(aval(tuple(shape), out.dtype))
        params = {"shape": tuple(shape), "dims": tuple(at)}
        changes.body.append(Eqn(broadcast_in_dim_p, [turned], params, (spread,), where))
        factors.append(spread)
    product = Var(aval(tuple(shape), out.dtype))
    changes.body.append(Eqn(mul.prim, factors, {}, (product,), where))
    return product, tuple(range(c))


def _summed(body: _Body, changes: _Changes, x: Var, axes: tuple[int, ...], where: Any) -> Var:
    """The sum over all steps of `x`, and then over its `axes`: each element is summed by itself in
    the loop."""
    first, inner, after, whole = [Var(x.aval) for _ in range(4)]
    fill = {"value": 0.0, "shape": x.aval.shape, "dtype": x.aval.dtype}
    changes.ahead.append(Eqn(full_p, [], fill, (first,), where))
    changes.body.append(Eqn(add.prim, [inner, x], {}, (after,), where))
    changes.carry.append((first, inner, after, whole))
    kept = tuple([n for i, n in enumerate(x.aval.shape) if i not in axes])
    made = Var(x.aval.update(kept))
    changes.behind.append(Eqn(reduce_sum_p, [whole], {"axes": tuple(axes)}, (made,), where))
    return made


# ---- results of each step ----


def _reports(body: _Body, changes: _Changes, y: Any, whole: Var) -> bool:
    """Take a result of each step out of the loop if it is computed from a reduction of rows, which
    nothing else reads."""
    chain: list[Eqn] = []
    v = y
    while True:
        e = body.producer.get(v) if type(v) is Var else None
        if e is None or body.uses[v] != 1:
            return False
        arrays = [i for i in e.ins if type(i) is Var]
        if type(e.prim.lowering) is Reduce and not e.prim.lowering.position:
            break
        if type(e.prim.lowering) is not Elementwise or len(arrays) != 1:
            return False
        chain.append(e)
        v = arrays[0]
    x = e.ins[0]
    axes = tuple([i + 1 for i in reduced_axes(e)])
    grows = x.aval.nbytes - whole.aval.nbytes // body.length
    if "axes" not in e.params or grows * body.length > _MOST_STACKED:
        return False
    stack = body.stacked(x, changes)
    last = Var(v.aval.update((body.length, *v.aval.shape))) if chain else whole
    changes.behind.append(e.replace(ins=[stack], params={**e.params, "axes": axes}, outs=(last,)))
    for k, step in enumerate(reversed(chain)):
        shape = (body.length, *step.outs[0].aval.shape)
        made = whole if k == len(chain) - 1 else Var(step.outs[0].aval.update(shape))
        ins = [last if type(i) is Var else i for i in step.ins]
        changes.behind.append(step.replace(ins=ins, outs=(made,)))
        last = made
    changes.changed = True
    return True
