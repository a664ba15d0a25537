"""Rotations: concatenations of the two parts of one array in the other order, as `roll` makes.

Each element of a rotation is one load at an index modulo the length. As a concatenation it is two
loads, each under a condition, and a choice between them: a step of relaxation with four rotations
had nine loads where it now has five (docs/cuda.md, "Generated kernels").
"""

from __future__ import annotations

import math

from genesis_fn.compiler.options import enabled
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Index
from genesis_fn.core.backend.lowering import moved
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.shape import concatenate_p, slice_p, split_p

_SEGMENTS = 4  # equal parts that `reindex` computes side by side, sharing loads: better than this


def _rotated_index(at: Index, x: Aval, *, axis: int, begin: int) -> Index:
    here = ix.mod(ix.shift(at[axis], begin), x.shape[axis])
    return (*at[:axis], here, *at[axis + 1 :])


rotate_p = Primitive(
    "rotate",
    lambda x, *, axis, begin: x,
    lowering=moved(_rotated_index, shares=False),
    listed=False,
)
"""x with element `begin` of an axis first: a primitive of the compiler's own programs."""


def rotations(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with concatenations that rotate an array as rotations."""
    pairs = [e for e in jaxpr.eqns if e.prim is concatenate_p and len(e.ins) == 2]
    if not pairs or not enabled("rotations"):
        return jaxpr
    producer = {o: e for e in jaxpr.eqns if e.prim in (split_p, slice_p) for o in e.outs}
    found = {id(e): rotated for e in pairs if (rotated := _rotation(e, producer)) is not None}
    if not found:
        return jaxpr
    eqns = [found.get(id(e), e) for e in jaxpr.eqns]
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _rotation(e: Eqn, producer: dict[Var, Eqn]) -> Eqn | None:
    """The rotation that a concatenation is, or None."""
    axis = e.params["dimension"]
    front, back = [_part(i, axis, producer) if type(i) is Var else None for i in e.ins]
    if front is None or back is None:
        return None
    (x, begin, end), (y, first, last) = front, back
    n = x.aval.shape[axis]
    if x is not y or (first, last, end) != (0, begin, n) or not 0 < begin < n:
        return None
    if math.gcd(begin, n) * _SEGMENTS >= n:
        return None
    return e.replace(prim=rotate_p, ins=[x], params={"axis": axis, "begin": begin})


def _part(v: Var, axis: int, producer: dict[Var, Eqn]) -> tuple[Var, int, int] | None:
    """(x, begin, end) where `v` is these elements of `x` along an axis, and all along others."""
    e = producer.get(v)
    if e is None or type(e.ins[0]) is not Var:
        return None
    x = e.ins[0]
    if e.prim is split_p:
        if e.params["axis"] != axis:
            return None
        begin = sum(e.params["sizes"][: e.outs.index(v)])
        return x, begin, begin + v.aval.shape[axis]
    start, limit = e.params["start"], e.params["limit"]
    for d, n in enumerate(x.aval.shape):
        if e.params["strides"][d] != 1 or (d != axis and (start[d], limit[d]) != (0, n)):
            return None
    return x, start[axis], limit[axis]
