"""Takes what a loop only accumulates, or reports, over its rows out of the loop.

The gradient of weights that all rows share is a sum over steps and rows, and so is a mean that each
step reports. Neither is read by the steps that follow: rows need not wait for each other. A carry
`c + sum_rows(x)` becomes a sum of each row by itself, or where that is too large for registers the
stack of the operands, and what is left of the sum runs after the loop. Out of an inner loop it goes
to the loop around, and out of that one as its own sums do.
"""

from __future__ import annotations

import math
from typing import Any

from genesis_fn.compiler.loop_ir.kernel import reduced_axes
from genesis_fn.compiler.scans.parts import MOST_STACKED, ScanBody, ScanChanges
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.backend.lowering import Elementwise, Reduce
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.primitives.dot_general import dot_general_p, free_dims
from genesis_fn.primitives.elementwise import add, add_n, convert_p, mul
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.reductions.reduce import reduce_sum_p
from genesis_fn.primitives.shape import broadcast_in_dim_p, reshape_p, transpose_p
from genesis_fn.transforms.control_flow.scanning import scan_p

_IN_REGISTERS = 512  # numbers of a row's accumulator
_NARROW_SIDE = 8  # of them along one of two axes: the others are lanes


def without_accumulations(e: Eqn) -> tuple[list[Eqn], Eqn, list[Eqn]] | None:
    """(equations ahead, the scan, equations behind) in place of a scan; None if it has no sum over
    rows that only its results need."""
    body, changes = ScanBody(_without_inner(e)), ScanChanges()
    p, jaxpr = e.params, body.jaxpr
    consts, count = p["consts"], p["carry"]
    # First what is stacked anyway, for sums that read it.
    for y, whole in zip(jaxpr.outs[count:], e.outs[count:]):
        if not _is_constant(body, changes, y, whole) and not _reports(body, changes, y, whole):
            changes.ys.append((y, whole))
    for k in range(count):
        v, out = jaxpr.invars[consts + k], jaxpr.outs[k]
        if not _accumulates(body, changes, e.ins[consts + k], v, out, e.outs[k]):
            changes.carry.append((e.ins[consts + k], v, out, e.outs[k]))
    if not changes.changed:
        return None
    return changes.applied(body)


def _without_inner(e: Eqn) -> Eqn:
    """A scan in whose body the sums of inner scans run behind those."""
    jaxpr, eqns = e.params["jaxpr"], []
    for x in jaxpr.eqns:
        parts = without_accumulations(x) if x.prim is scan_p else None
        eqns += [x] if parts is None else [*parts[0], parts[1], *parts[2]]
    if len(eqns) == len(jaxpr.eqns):
        return e
    inner = Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)
    return e.replace(params={**e.params, "jaxpr": inner})


# ---- sums that a loop carries ----


def _accumulates(
    body: ScanBody, changes: ScanChanges, init: Any, v: Var, out: Any, result: Var
) -> bool:
    """Take the carry `v`, which is `out` after a step, out of the loop if it is a sum over rows."""
    sums = carried_sums(body, v, out)
    made = [_row_sums(body, changes, e, body.producer[out].where) for e, _ in sums]
    if not sums or None in made:
        return False
    summed_behind(changes, init, list(zip(made, sums)), result, body.producer[out].where)
    changes.changed = True
    return True


_SUMMED = (dtypes.F32, dtypes.F64)


def carried_sums(
    body: ScanBody, v: Var, out: Any, narrow: bool = False
) -> list[tuple[Eqn, list[Eqn]]]:
    """(a sum or product, views of it) that are added to the carry `v`, which is `out` after a step;
    none if `out` is anything else, or something reads what is summed. With `narrow` also sums of
    narrow floats, and what is cast from them."""
    terms = [t for t in _terms(body, out) if not _is_zero(body, t)]
    if terms.count(v) != 1 or body.uses.get(v) != 1:
        return []
    if v.aval.dtype not in _SUMMED and not (narrow and v.aval.dtype in dtypes.NARROW):
        return []
    sums = [_sum_over(body, t, narrow) for t in terms if t is not v]
    found = [s for s in sums if s is not None]
    return found if len(found) == len(sums) else []


def summed_behind(
    changes: ScanChanges,
    init: Any,
    sums: list[tuple[Any, tuple[Eqn, list[Eqn]]]],
    result: Var,
    where: Any,
) -> None:
    """Add `sums`, (value, (what it is the sum of, views of it)), to a carry's first value."""
    total = init
    for k, (made, (_, views)) in enumerate(sums):
        for view in views:
            moved = Var(view.outs[0].aval.update(dtype=result.aval.dtype))
            changes.behind.append(view.replace(ins=[made], outs=(moved,)))
            made = moved
        summed = result if k == len(sums) - 1 else Var(result.aval)
        changes.behind.append(Eqn(add.prim, [total, made], {}, (summed,), where))
        total = summed


def _terms(body: ScanBody, v: Any) -> list[Any]:
    """What a value is the sum of, as far as nothing else reads a part of it."""
    e = body.produced(v)
    if e is None or e.prim not in (add.prim, add_n.prim) or body.uses[v] != 1:
        return [v]
    return [t for i in e.ins for t in _terms(body, i)]


def _is_zero(body: ScanBody, v: Any) -> bool:
    """Whether a value of the body is zeros, as those that an inner loop begins to add to."""
    e = body.produced(v)
    return e is not None and e.prim is full_p and e.params["value"] == 0


def _sum_over(body: ScanBody, v: Any, narrow: bool) -> tuple[Eqn, list[Eqn]] | None:
    """(the sum or product that `v` is a view of, the views in the order of the program)."""
    views: list[Eqn] = []
    while type(v) is Var:
        e = body.producer.get(v)
        if e is None or body.uses[v] != 1:
            return None
        if e.prim is reduce_sum_p or e.prim is dot_general_p:
            both = all([type(i) is Var for i in e.ins])
            floats = v.aval.dtype in _SUMMED or (narrow and v.aval.dtype in dtypes.NARROW)
            return (e, views[::-1]) if both and floats else None
        if e.prim is not convert_p or not narrow:
            if e.prim not in (reshape_p, transpose_p):
                return None
            views.append(e)
        v = e.ins[0]
    return None


def _row_sums(body: ScanBody, changes: ScanChanges, e: Eqn, where: Any) -> Var | None:
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
    if unstacked_bytes(body, changes, e) * body.length > MOST_STACKED:
        return None
    return product_behind(body, changes, e, out.dtype)


def unstacked_bytes(body: ScanBody, changes: ScanChanges, e: Eqn) -> int:
    """The bytes of a step's operands that are not stacked anyway."""
    return sum([x.aval.nbytes for x in set(e.ins) if not changes.is_stacked(body, x)])


def product_behind(body: ScanBody, changes: ScanChanges, e: Eqn, kind: DType) -> Var:
    """The sum over all steps of a product, of dtype `kind`, of stacks of its operands."""
    wholes = [changes.stacked(body, x) for x in e.ins]
    (contracted_l, contracted_r), (batch_l, batch_r) = e.params["dimension_numbers"]
    up = lambda axes: tuple([i + 1 for i in axes])
    contracted = (0, *up(contracted_l)), (0, *up(contracted_r))
    made = Var(e.outs[0].aval.update(dtype=kind))
    params = {**e.params, "dimension_numbers": (contracted, (up(batch_l), up(batch_r)))}
    if kind != e.outs[0].aval.dtype:
        params["preferred_element_type"] = kind
    changes.behind.append(e.replace(ins=wholes, params=params, outs=(made,)))
    return made


def _written_out(
    changes: ScanChanges,
    e: Eqn,
    lhs: Var,
    rhs: Var,
    free_l: Any,
    free_r: Any,
    out: Aval,
    where: Any,
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


def _summed(body: ScanBody, changes: ScanChanges, x: Var, axes: tuple[int, ...], where: Any) -> Var:
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


def _is_constant(body: ScanBody, changes: ScanChanges, y: Any, whole: Var) -> bool:
    """Take a result that is one number in all steps out of the loop."""
    e = body.produced(y)
    if e is None or e.prim is not full_p:
        return False
    params = {**e.params, "shape": whole.aval.shape}
    changes.behind.append(e.replace(params=params, outs=(whole,)))
    changes.changed = True
    return True


def _reports(body: ScanBody, changes: ScanChanges, y: Any, whole: Var) -> bool:
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
    if "axes" not in e.params or grows * body.length > MOST_STACKED:
        return False
    stack = changes.stacked(body, x)
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
