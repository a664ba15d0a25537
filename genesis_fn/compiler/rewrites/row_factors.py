"""Sums along rows of what is a number of the row times something: the number is multiplied with the
sum.

Where that number comes of other sums, as the gradient of a variance does, the sum had to wait for
them, and read its operands once more. Without it, it is made in the pass of the others: the
gradients of a norm that is written with a mean of squared differences take two passes over memory
instead of three.
"""

from __future__ import annotations

from genesis_fn.compiler.loop_ir.kernel import is_reduction, reduced_axes
from genesis_fn.compiler.options import enabled
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.reductions.reduce import reduce_sum_p
from genesis_fn.primitives.shape import broadcast_in_dim_p, reshape_p

_LARGE = 8 << 20  # bytes of rows that are worth the attempt


def row_factors(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with sums that need no longer wait for others."""
    if not enabled("row_factors") or not any([_is_candidate(e) for e in jaxpr.eqns]):
        return jaxpr
    producer = {o: e for e in jaxpr.eqns for o in e.outs}
    level = _levels(jaxpr)
    eqns = []
    for e in jaxpr.eqns:
        eqns += _factored(e, producer, level) if _is_candidate(e) else [e]
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _is_candidate(e: Eqn) -> bool:
    """Whether an equation is a sum of many numbers that are not rounded before they are added."""
    if e.prim is not reduce_sum_p or type(e.ins[0]) is not Var or e.numerics.precise:
        return False
    x = e.ins[0].aval
    return x.dtype in (dtypes.F32, dtypes.F64) and x.nbytes >= _LARGE and is_reduction(e)


def _levels(jaxpr: Jaxpr) -> dict[Var, int]:
    """How many large reductions each value needs one after the other."""
    level = dict.fromkeys(jaxpr.invars, 0)
    for e in jaxpr.eqns:
        most = max([level[i] for i in e.ins if type(i) is Var], default=0)
        reduces = is_reduction(e) and e.ins[0].aval.nbytes >= _LARGE
        level.update(dict.fromkeys(e.outs, most + reduces))
    return level


def _factored(e: Eqn, producer: dict[Var, Eqn], level: dict[Var, int]) -> list[Eqn]:
    """The equations of a sum: itself, or a sum of less and what that is multiplied with."""
    x, axes, (out,) = e.ins[0], reduced_axes(e), e.outs
    factors: list[Eqn] = []  # broadcasts
    negative = False
    while (made := producer.get(x)) is not None:
        if made.prim is ew.neg.prim:
            negative, x = not negative, made.ins[0]
            continue
        found = _waiting_factor(made, axes, producer, level) if made.prim is ew.mul.prim else None
        if found is None:
            break
        x, factor = found
        factors.append(factor)
    if not factors:
        return [e]
    total = Var(out.aval)
    eqns = [e.replace(ins=[x], outs=[total])]
    for factor in factors:
        spread = _along_kept(factor, axes, out.aval)
        product = Var(out.aval)
        (value,) = spread[-1].outs
        eqns += [
            *spread,
            e.replace(prim=ew.mul.prim, ins=[total, value], params={}, outs=[product]),
        ]
        total = product
    if negative:
        eqns.append(e.replace(prim=ew.neg.prim, ins=[total], params={}))
    else:
        eqns[-1] = eqns[-1].replace(outs=[out])
    return eqns


def _waiting_factor(
    e: Eqn, axes: tuple[int, ...], producer: dict[Var, Eqn], level: dict[Var, int]
) -> tuple[Var, Eqn] | None:
    """(the operand of a product that waits for fewer sums, the broadcast that makes the other one,
    the same along `axes`); None if there are no such two."""
    a, b = e.ins
    if type(a) is not Var or type(b) is not Var:
        return None
    for ready, waiting in ((a, b), (b, a)):
        made = producer.get(waiting)
        if made is not None and level[ready] < level[waiting] and _is_same_along(made, axes):
            return ready, made
    return None


def _is_same_along(e: Eqn, axes: tuple[int, ...]) -> bool:
    if e.prim is not broadcast_in_dim_p or type(e.ins[0]) is not Var:
        return False
    shape = e.ins[0].aval.shape
    return all([n == 1 or d not in axes for n, d in zip(shape, e.params["dims"], strict=True)])


def _along_kept(e: Eqn, axes: tuple[int, ...], kind: Aval) -> list[Eqn]:
    """The equations that broadcast the operand of `e` along the axes that a sum keeps."""
    (x,), dims = e.ins, e.params["dims"]
    ndim = len(e.params["shape"])
    number = {a: n for n, a in enumerate([a for a in range(ndim) if a not in axes])}
    left = [(n, number[d]) for n, d in zip(x.aval.shape, dims, strict=True) if d in number]
    row = Var(x.aval.update(tuple([n for n, _ in left])))
    params = {"shape": kind.shape, "dims": tuple([d for _, d in left])}
    return [
        e.replace(prim=reshape_p, ins=[x], params={"shape": row.aval.shape}, outs=[row]),
        e.replace(ins=[row], params=params, outs=[Var(kind)]),
    ]
