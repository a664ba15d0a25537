"""Products that add few terms, as multiplications and additions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.dot_general import dot_general_p, free_dims
from genesis_fn.primitives.elementwise import add, convert_p, mul
from genesis_fn.primitives.shape import broadcast_in_dim_p, reshape_p, slice_p, transpose_p

_MOST_TERMS = 4  # tensor cores multiply 8 at once: half of their work would be zeros


def shallow_products(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with products of a contracted axis of few elements written out.

    They take as long as writing the result, and fuse with what reads it: 512 x 2 by 2 x 64 took
    2.0 us on an H200, twice what any kernel takes.
    """
    if not any([_is_shallow(e) for e in jaxpr.eqns]):
        return jaxpr
    eqns = []
    for e in jaxpr.eqns:
        eqns += _written_out(e) if _is_shallow(e) else [e]
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _is_shallow(e: Eqn) -> bool:
    if e.prim is not dot_general_p or not all([type(i) is Var for i in e.ins]):
        return False
    (contracted, _), _ = e.params["dimension_numbers"]
    terms = math.prod([e.ins[0].aval.shape[i] for i in contracted])
    return 0 < terms <= _MOST_TERMS and _terms_dtype(e) is not None


def _terms_dtype(e: Eqn) -> DType | None:
    """What terms are computed in: float32 or float64, or the integers of the result; None for
    operands of other kinds, or of several."""
    kinds = [x.aval.dtype for x in (*e.ins, *e.outs)]
    if all([dtypes.is_float(k) and not dtypes.is_complex(k) for k in kinds]):
        return dtypes.F64 if dtypes.F64 in kinds else dtypes.F32
    return kinds[-1] if all([dtypes.is_integer(k) for k in kinds]) else None


def _written_out(e: Eqn) -> list[Eqn]:
    (out,) = e.outs
    contracted, batch = e.params["dimension_numbers"]
    kind = _terms_dtype(e)
    assert kind is not None
    eqns: list[Eqn] = []

    def made(prim: Primitive, ins: Sequence[Any], kind: Aval, **params: Any) -> Var:
        result = Var(kind)
        eqns.append(Eqn(prim, [*ins], params, (result,), e.where, e.backward, e.numerics))
        return result

    pairs, shape = len(batch[0]), out.aval.shape
    free = [free_dims(x.aval.ndim, (*c, *b)) for x, c, b in zip(e.ins, contracted, batch)]
    # Of the result, the dimensions of the left operand's elements and of the right one's.
    lefts = (*range(pairs + len(free[0])),)
    rights = (*range(pairs), *range(pairs + len(free[0]), len(shape)))
    factors: list[list[Var]] = []
    for x, over, paired, rest, dims in zip(e.ins, contracted, batch, free, (lefts, rights)):
        order = (*over, *paired, *rest)
        sizes = [x.aval.shape[i] for i in order]
        x = made(transpose_p, [x], x.aval.update(tuple(sizes)), permutation=order)
        kept, terms = (*sizes[len(over) :],), math.prod(sizes[: len(over)])
        x = made(reshape_p, [x], x.aval.update((terms, *kept)), shape=(terms, *kept))
        spread = []
        for i in range(terms):
            ends = {"start": (i, *[0] * len(kept)), "limit": (i + 1, *kept)}
            term = made(slice_p, [x], x.aval.update((1, *kept)), strides=(1,) * x.aval.ndim, **ends)
            term = made(reshape_p, [term], x.aval.update(kept), shape=kept)
            if x.aval.dtype != kind:
                term = made(convert_p, [term], term.aval.update(dtype=kind), dtype=kind)
            wide = term.aval.update(shape)
            spread.append(made(broadcast_in_dim_p, [term], wide, shape=shape, dims=dims))
        factors.append(spread)
    products = [made(mul.prim, pair, pair[0].aval) for pair in zip(*factors)]
    total = products[0]
    for product in products[1:]:
        total = made(add.prim, [total, product], product.aval)
    if out.aval.dtype != kind:
        total = made(convert_p, [total], out.aval, dtype=out.aval.dtype)
    eqns.append(Eqn(reshape_p, [total], {"shape": shape}, (out,), e.where, e.backward, e.numerics))
    return eqns
