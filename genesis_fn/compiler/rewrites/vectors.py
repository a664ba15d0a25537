"""Products with vectors: of a matrix, as kernels of few rows have them, and of two vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from genesis_fn.compiler.fusion.value_graph import kind_of
from genesis_fn.compiler.loop_ir.lookups import is_lookup
from genesis_fn.compiler.rewrites.row_sums import appended
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.dot_general import dot_general_p, free_dims
from genesis_fn.primitives.elementwise import convert_p, mul
from genesis_fn.primitives.reductions.reduce import reduce_sum_p
from genesis_fn.primitives.shape import broadcast_in_dim_p, reshape_p, transpose_p

# Elements of a small matrix, which a program of a product of few rows would be started for, and
# how many of them are a batch.
_SMALL, _PAIRS = 4096, 64


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
    """`jaxpr` with products of two vectors, or of each pair of a batch, as sums of products, and
    those of a batch of vectors with small matrices that kernels look up or compute.

    These fuse with what computes the operands, and have as many programs as the vectors are long
    for: as a product of one row and one column, 4,096 elements took 50 us (H200).
    """
    producer = {o: e for e in jaxpr.eqns for o in e.outs}
    eqns: list[Eqn] = []
    for e in jaxpr.eqns:
        if _is_inner(e):
            eqns += _summed(e)
        elif (matrix := _small_matrix(e, producer)) is not None:
            eqns += _weighed(e, matrix)
        else:
            eqns.append(e)
    if len(eqns) == len(jaxpr.eqns):
        return jaxpr
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _is_real_product(e: Eqn) -> bool:
    if e.prim is not dot_general_p or not all([type(i) is Var for i in e.ins]):
        return False
    kinds = [i.aval.dtype for i in (*e.ins, *e.outs)]
    return all([dtypes.is_float(k) and not dtypes.is_complex(k) for k in kinds])


def _is_inner(e: Eqn) -> bool:
    if not _is_real_product(e):
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


def _small_matrix(e: Eqn, producer: Mapping[Any, Eqn]) -> int | None:
    """Which operand of a product is a batch of small matrices that are looked up or computed, where
    the other one has a vector for each; None of other products."""
    if not _is_real_product(e):
        return None
    contracted, batch = e.params["dimension_numbers"]
    pairs = math.prod([e.ins[0].aval.shape[i] for i in batch[0]])
    depth = math.prod([e.ins[0].aval.shape[i] for i in contracted[0]])
    for matrix in (0, 1):
        x, vector = e.ins[matrix], e.ins[1 - matrix]
        made = producer.get(x)
        if made is None or pairs < _PAIRS or x.aval.size > _SMALL * pairs or depth < 2:
            continue
        read = is_lookup(made) or kind_of(made) == "map"
        if read and vector.aval.size == pairs * depth and x.aval.size > pairs * depth:
            return matrix
    return None


def _weighed(e: Eqn, matrix: int) -> list[Eqn]:
    """A product of vectors and matrices as the matrices' elements times those of the vectors,
    summed: operand `matrix` keeps the order of its dimensions."""
    (out,) = e.outs
    contracted, batch = e.params["dimension_numbers"]
    kind = dtypes.F64 if out.aval.dtype == dtypes.F64 else dtypes.F32
    eqns: list[Eqn] = []

    def made(prim: Primitive, *ins: Var, **params: Any) -> Var:
        return appended(eqns, e, prim, *ins, **params)

    def wide(x: Var) -> Var:
        return x if x.aval.dtype == kind else made(convert_p, x, dtype=kind)

    x, vector = wide(e.ins[matrix]), wide(e.ins[1 - matrix])
    # The vector's dimensions in the order of those of the matrix that they go along.
    along = dict(
        zip((*batch[matrix], *contracted[matrix]), (*batch[1 - matrix], *contracted[1 - matrix]))
    )
    order = [along[d] for d in sorted(along)]
    ones = [d for d in range(vector.aval.ndim) if d not in order]
    turned = made(transpose_p, vector, permutation=(*order, *ones))
    turned = made(reshape_p, turned, shape=turned.aval.shape[: len(order)])
    spread = made(broadcast_in_dim_p, turned, shape=x.aval.shape, dims=tuple(sorted(along)))
    total = made(reduce_sum_p, made(mul.prim, x, spread), axes=tuple(sorted(contracted[matrix])))
    kept = [d for d in range(x.aval.ndim) if d not in contracted[matrix]]
    first = [kept.index(d) for d in batch[matrix]]
    rest = [n for n in range(len(kept)) if n not in first]
    total = made(transpose_p, total, permutation=(*first, *rest))
    if kind != out.aval.dtype:
        total = made(convert_p, total, dtype=out.aval.dtype)
    made(reshape_p, total, shape=out.aval.shape)
    return [*eqns[:-1], eqns[-1].replace(outs=(out,))]
