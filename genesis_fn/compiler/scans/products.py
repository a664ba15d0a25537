"""Takes products with constants, and sums of products, out of scans.

A step of few rows reads a whole matrix to multiply them, or reads and writes a whole matrix to add
their product to it. Outside of the loop one product has the rows of all steps. What that costs is
the stack of what goes in or comes out: a product leaves the loop where the stack is fewer bytes
than the matrix. Of a recurrent network these are the products of its inputs, and all gradients of
its weights.
"""

from __future__ import annotations

from typing import Any

from genesis_fn.compiler.loop_ir.kernel import reduced_axes
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.scans.accumulations import (
    carried_sums,
    product_behind,
    summed_behind,
    unstacked_bytes,
)
from genesis_fn.compiler.scans.parts import MOST_STACKED, ScanBody, ScanChanges
from genesis_fn.core.aval import Aval
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.primitives.dot_general import dot_general_p, free_dims
from genesis_fn.primitives.elementwise import convert_p
from genesis_fn.primitives.reductions.reduce import reduce_sum_p
from genesis_fn.primitives.shape import transpose_p
from genesis_fn.transforms.control_flow.scanning import scan_p


def products_outside(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with its scans' products outside of them, where that takes fewer bytes."""
    if not enabled("loop_products") or not any(e.prim is scan_p for e in jaxpr.eqns):
        return jaxpr
    eqns = []
    for e in jaxpr.eqns:
        eqns += _outside(e) if e.prim is scan_p else [e]
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _outside(e: Eqn) -> list[Eqn]:
    body, changes = ScanBody(e), ScanChanges()
    p, jaxpr = e.params, body.jaxpr
    consts, count = p["consts"], p["carry"]
    ys = list(zip(jaxpr.outs[count:], e.outs[count:]))
    found = [_product_of_step(body, y) for y, _ in ys]
    for x in jaxpr.eqns:
        if x.prim is dot_general_p and x not in found:
            _ahead(body, changes, x)
    # First what is stacked anyway: stacks of it cost nothing.
    changes.ys += [pair for pair, product in zip(ys, found) if product is None]
    for (y, whole), product in zip(ys, found):
        if product is not None and not _behind(body, changes, product, whole):
            changes.ys.append((y, whole))
    for k in range(count):
        v, out, init = jaxpr.invars[consts + k], jaxpr.outs[k], e.ins[consts + k]
        if not _accumulated(body, changes, init, v, out, e.outs[k]):
            changes.carry.append((init, v, out, e.outs[k]))
    if not changes.changed:
        return [e]
    ahead, scan, behind = changes.applied(body)
    return [*ahead, scan, *behind]


def _sides(e: Eqn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of a product's operands that its result has, without those of a batch."""
    (contracted_l, contracted_r), (batch_l, batch_r) = e.params["dimension_numbers"]
    return (
        free_dims(e.ins[0].aval.ndim, (*contracted_l, *batch_l)),
        free_dims(e.ins[1].aval.ndim, (*contracted_r, *batch_r)),
    )


def _with_constant(body: ScanBody, e: Eqn) -> int | None:
    """Which operand of a product without a batch changes with the step, if the other does not."""
    if not all([type(i) is Var for i in e.ins]) or any(e.params["dimension_numbers"][1]):
        return None
    constant = [i in body.consts for i in e.ins]
    return constant.index(False) if sum(constant) == 1 else None


def _pays(body: ScanBody, stack: Aval, matrix: Aval) -> bool:
    """Whether a stack, written and read once, is fewer bytes than a constant matrix."""
    return 2 * stack.nbytes <= matrix.nbytes and stack.nbytes * body.length <= MOST_STACKED


# ---- ahead: products of what comes into a step ----


def _ahead(body: ScanBody, changes: ScanChanges, e: Eqn) -> None:
    """Multiply slices of `xs` by a constant ahead of the loop."""
    side = _with_constant(body, e)
    if side is None:
        return
    x, out = e.ins[side], e.outs[0]
    cast = body.produced(x)
    source = cast.ins[0] if cast is not None and cast.prim is convert_p else x
    if source not in body.xs or not _pays(body, out.aval, e.ins[1 - side].aval):
        return
    whole = body.xs[source]
    if cast is not None:
        raised = Var(whole.aval.update(dtype=x.aval.dtype))
        changes.ahead.append(cast.replace(ins=[whole], outs=(raised,)))
        whole = raised
    made, axes = _of_all_steps(body, changes.ahead, e, side, whole)
    if axes is None:
        changes.xs.append((made, out))
    else:
        row = Var(made.aval.update(made.aval.shape[1:]))
        changes.xs.append((made, row))
        changes.prelude.append(
            Eqn(transpose_p, [row], {"permutation": axes}, (out,), e.where, e.backward, e.numerics)
        )
    changes.instead[e] = []
    changes.changed = True


def _of_all_steps(
    body: ScanBody, eqns: list[Eqn], e: Eqn, side: int, whole: Any
) -> tuple[Var, tuple[int, ...] | None]:
    """(the products of all steps, whose operand `side` is `whole`; how a step's axes are turned
    into those of the product `e`, if they are not in its order)."""
    contracted, _ = e.params["dimension_numbers"]
    numbers = tuple([i + 1 for i in contracted[side]]), contracted[1 - side]
    params = {**e.params, "dimension_numbers": (numbers, ((), ()))}
    free = _sides(e)
    shape = [e.ins[s].aval.shape[i] for s in (side, 1 - side) for i in free[s]]
    made = Var(e.outs[0].aval.update((body.length, *shape)))
    eqns.append(e.replace(ins=[whole, body.consts[e.ins[1 - side]]], params=params, outs=(made,)))
    if side == 0 or not free[0] or not free[1]:
        return made, None
    first = len(free[1])
    return made, (*range(first, len(shape)), *range(first))


# ---- behind: products that only come out of a step, and sums of products ----


def _product_of_step(body: ScanBody, y: Any) -> Eqn | None:
    """The product with a constant that gives the result `y`, which no step reads."""
    e = body.produced(y)
    if e is None or e.prim is not dot_general_p or body.uses[y] != 1:
        return None
    return e if _with_constant(body, e) is not None else None


def _behind(body: ScanBody, changes: ScanChanges, e: Eqn, whole: Var) -> bool:
    """Multiply the stack of a product's operand behind the loop."""
    side = _with_constant(body, e)
    assert side is not None
    x = e.ins[side]
    if not changes.is_stacked(body, x) and not _pays(body, x.aval, e.ins[1 - side].aval):
        return False
    made, axes = _of_all_steps(body, changes.behind, e, side, changes.stacked(body, x))
    if axes is None:
        changes.behind[-1].outs = (whole,)
    else:
        order = {"permutation": (0, *[i + 1 for i in axes])}
        changes.behind.append(
            Eqn(transpose_p, [made], order, (whole,), e.where, e.backward, e.numerics)
        )
    changes.changed = True
    return True


def _accumulated(
    body: ScanBody, changes: ScanChanges, init: Any, v: Var, out: Any, result: Var
) -> bool:
    """Take a carry that only sums products over rows out of the loop."""
    # Narrow floats, too: one product rounds once what a loop would round at every step.
    sums = carried_sums(body, v, out, narrow=True)
    products = [e for e, _ in sums if e.prim is dot_general_p]
    for e in products:
        extra = 2 * unstacked_bytes(body, changes, e)
        if extra > 2 * e.outs[0].aval.nbytes or extra * body.length > 2 * MOST_STACKED:
            return False
    # A sum over rows alone reads more than it writes.
    stacked = {x for e in products for x in e.ins}
    plain = [e.ins[0] for e, _ in sums if e.prim is reduce_sum_p]
    if not sums or not all([x in stacked or changes.is_stacked(body, x) for x in plain]):
        return False
    made = [_sum_behind(body, changes, e, v.aval.dtype) for e, _ in sums]
    where = body.producer[out].where
    summed_behind(changes, init, list(zip(made, sums)), result, where)
    changes.changed = True
    return True


def _sum_behind(body: ScanBody, changes: ScanChanges, e: Eqn, kind: DType) -> Var:
    if e.prim is dot_general_p:
        return product_behind(body, changes, e, kind)
    axes = (0, *[i + 1 for i in reduced_axes(e)])
    stack = changes.stacked(body, e.ins[0])
    if stack.aval.dtype != kind:
        cast = Var(stack.aval.update(dtype=kind))
        changes.behind.append(
            Eqn(convert_p, [stack], {"dtype": kind}, (cast,), e.where, e.backward, e.numerics)
        )
        stack = cast
    made = Var(e.outs[0].aval.update(dtype=kind))
    changes.behind.append(e.replace(ins=[stack], params={**e.params, "axes": axes}, outs=(made,)))
    return made
