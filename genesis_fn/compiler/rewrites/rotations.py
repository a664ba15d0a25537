"""Rotations: concatenations of parts of one array that go around its end, as `roll` makes of two
and padding by what is on the other side of three.

Each element of a rotation is one load at an index modulo the length. As a concatenation it is a
load of each part, each under a condition, and choices between them: a step of relaxation with four
rotations had nine loads where it now has five (docs/cuda.md, "Generated kernels").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from genesis_fn.compiler.options import enabled
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Index
from genesis_fn.core.backend.lowering import moved
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.shape import concatenate_p, slice_p, split_p

_SEGMENTS = 4  # equal parts that `reindex` computes side by side, sharing loads: better than this


def _rotated_shape(x: Aval, *, axis: int, begin: int, size: int) -> Aval:
    return x.update((*x.shape[:axis], size, *x.shape[axis + 1 :]))


def _rotated_index(at: Index, x: Aval, *, axis: int, begin: int, size: int) -> Index:
    here = ix.mod(ix.shift(at[axis], begin), x.shape[axis])
    return (*at[:axis], here, *at[axis + 1 :])


rotate_p = Primitive(
    "rotate", _rotated_shape, lowering=moved(_rotated_index, shares=False), listed=False
)
"""`size` elements of x along an axis, around its end, from element `begin` on: a primitive of the
compiler's own programs."""


def rotations(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with concatenations that rotate an array as rotations."""
    joined = [e for e in jaxpr.eqns if e.prim is concatenate_p and len(e.ins) > 1]
    if not joined or not enabled("rotations"):
        return jaxpr
    producer = {o: e for e in jaxpr.eqns if e.prim in (split_p, slice_p) for o in e.outs}
    found = {id(e): rotated for e in joined if (rotated := _rotation(e, producer)) is not None}
    if not found:
        return jaxpr
    eqns = [found.get(id(e), e) for e in jaxpr.eqns]
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _rotation(e: Eqn, producer: dict[Var, Eqn]) -> Eqn | None:
    """The rotation that a concatenation is, or None."""
    axis = e.params["dimension"]
    parts = [[*_parts(i, axis, producer)] for i in e.ins if type(i) is Var]
    if len(parts) < len(e.ins):
        return None
    for x, begin, _ in parts[0]:
        ranges = [(a, b) for part in parts for y, a, b in part if y is x]
        if len(ranges) == len(parts) and _goes_around(ranges, x.aval.shape[axis]):
            n, size = x.aval.shape[axis], e.outs[0].aval.shape[axis]
            if size == n and math.gcd(begin, n) * _SEGMENTS >= n:
                return None
            params = {"axis": axis, "begin": begin, "size": size}
            return e.replace(prim=rotate_p, ins=[x], params=params)
    return None


def _goes_around(ranges: Sequence[tuple[int, int]], n: int) -> bool:
    """Whether each range of 0 .. n - 1 follows the one before it around the end."""
    return all([end == n and first == 0 for (_, end), (first, _) in zip(ranges, ranges[1:])])


def _parts(v: Var, axis: int, producer: dict[Var, Eqn]) -> Iterator[tuple[Var, int, int]]:
    """What `v` is as elements `begin` to `end` of a value along an axis: of itself, and of what it
    is sliced from."""
    yield v, 0, v.aval.shape[axis]
    part = _part(v, axis, producer)
    if part is not None:
        yield part


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
