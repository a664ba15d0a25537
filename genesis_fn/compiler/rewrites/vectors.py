"""Products with vectors: of a matrix, as kernels of few rows have them, and of two vectors."""

from __future__ import annotations

import math
from typing import Any

from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.dot_general import dot_general_p, free_dims
from genesis_fn.primitives.elementwise import convert_p, mul
from genesis_fn.primitives.reductions.reduce import reduce_sum_p
from genesis_fn.primitives.shape import reshape_p, transpose_p


def vectors_left(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with products of which the right operand has one column as products of one row.

    Their time is that of reading the matrix: 200 products of 8,192 x 1,024 took 16.9 ms in tiles
    of one column, and take 1.6 as rows (value iteration on an H200).
    """
    if not any([_is_column(e) for e in jaxpr.eqns]):
        return jaxpr
    eqns = []
    for e in jaxpr.eqns:
        eqns += _turned(e) if _is_column(e) else [e]
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _is_column(e: Eqn) -> bool:
    if e.prim is not dot_general_p or not all([type(i) is Var for i in e.ins]):
        return False
    (contracted_l, contracted_r), (batch, _) = e.params["dimension_numbers"]
    if batch:
        return False
    lhs, rhs = e.ins
    rows = [lhs.aval.shape[i] for i in free_dims(lhs.aval.ndim, contracted_l)]
    columns = [rhs.aval.shape[i] for i in free_dims(rhs.aval.ndim, contracted_r)]
    return math.prod(columns) == 1 and math.prod(rows) > 2


def _turned(e: Eqn) -> list[Eqn]:
    (lhs, rhs), (out,) = e.ins, e.outs
    (contracted_l, contracted_r), batch = e.params["dimension_numbers"]
    params = {**e.params, "dimension_numbers": ((contracted_r, contracted_l), batch)}
    ones = rhs.aval.ndim - len(contracted_r)
    if not ones:
        return [e.replace(ins=[rhs, lhs], params=params)]
    shape = out.aval.shape
    turned = Var(out.aval.update((1,) * ones + shape[: len(shape) - ones]))
    return [
        e.replace(ins=[rhs, lhs], params=params, outs=(turned,)),
        Eqn(reshape_p, [turned], {"shape": shape}, (out,), e.where, e.backward, e.numerics),
    ]


def inner_products(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with products of two vectors, or of each pair of a batch, as sums of products.

    These fuse with what computes the vectors, and have as many programs as the vectors are long
    for: as a product of one row and one column, 4,096 elements took 50 us (H200).
    """
    if not any([_is_inner(e) for e in jaxpr.eqns]):
        return jaxpr
    eqns = []
    for e in jaxpr.eqns:
        eqns += _summed(e) if _is_inner(e) else [e]
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _is_inner(e: Eqn) -> bool:
    if e.prim is not dot_general_p or not all([type(i) is Var for i in e.ins]):
        return False
    kinds = [i.aval.dtype for i in (*e.ins, *e.outs)]
    if not all([dtypes.is_float(k) and not dtypes.is_complex(k) for k in kinds]):
        return False
    (_, _), (batch, _) = e.params["dimension_numbers"]
    pairs = math.prod([e.ins[0].aval.shape[i] for i in batch])
    return e.outs[0].aval.size == pairs and e.ins[0].aval.size > pairs


def _summed(e: Eqn) -> list[Eqn]:
    (out,) = e.outs
    contracted, batch = e.params["dimension_numbers"]
    kind = dtypes.F64 if out.aval.dtype == dtypes.F64 else dtypes.F32
    eqns: list[Eqn] = []

    def made(prim: Primitive, ins: list[Any], params: dict[str, Any], kind: Aval) -> Var:
        result = Var(kind)
        eqns.append(Eqn(prim, ins, params, (result,), e.where, e.backward, e.numerics))
        return result

    factors = []
    for x, over, pairs in zip(e.ins, contracted, batch):
        order = (*pairs, *over, *free_dims(x.aval.ndim, (*over, *pairs)))
        turned = x.aval.update(tuple([x.aval.shape[i] for i in order]))
        x = made(transpose_p, [x], {"permutation": order}, turned)
        shape = turned.shape[: len(pairs) + len(over)]
        x = made(reshape_p, [x], {"shape": shape}, x.aval.update(shape))
        if x.aval.dtype != kind:
            x = made(convert_p, [x], {"dtype": kind}, x.aval.update(dtype=kind))
        factors.append(x)
    product = made(mul.prim, factors, {}, factors[0].aval)
    pairs, rank = len(batch[0]), factors[0].aval.ndim
    shape = product.aval.shape[:pairs]
    total = made(reduce_sum_p, [product], {"axes": (*range(pairs, rank),)}, aval(shape, kind))
    if kind != out.aval.dtype:
        total = made(convert_p, [total], {"dtype": out.aval.dtype}, aval(shape, out.aval.dtype))
    eqns.append(
        Eqn(reshape_p, [total], {"shape": out.aval.shape}, (out,), e.where, e.backward, e.numerics)
    )
    return eqns
