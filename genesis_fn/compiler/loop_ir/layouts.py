"""How the results of generated kernels lie in memory where that is not row by row.

Descriptors, through which matrix products read their operands fastest, want rows that begin at
multiples of 16 bytes. Such rows lie apart: `pitched_p` is the primitive of an array that is stored
so, `pitched_product_p` that of a product that reads and writes such arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.core.aval import Aval
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr
from genesis_fn.core.backend.lowering import View
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.dot_general import dot_general_p

pitched_p = Primitive(
    "pitched",
    lambda x, *, pitch: x.update((*x.shape[:-1], pitch)),
    lowering=View(lambda k, at, x, *, pitch: [(0, at, ())], shares=False),
    listed=False,
)
"""x with `pitch` elements from each row to the next: a primitive of the compiler's own programs.
The elements that it has more than x are any numbers, on which nothing may depend."""


def _product_shape(*avals: Aval, shapes: Any, pitch: int, **params: Any) -> Aval:
    seen = tuple([x.update(shape) for x, shape in zip(avals, shapes)])
    out = dot_general_p.abstract(seen, params)
    return out.update((*out.shape[:-1], pitch)) if pitch else out


def _product_flops(
    ins: Sequence[Aval], outs: Sequence[Aval], *, shapes: Any, pitch: int, **params: Any
) -> float:
    seen = [x.update(shape) for x, shape in zip(ins, shapes)]
    assert dot_general_p.flops is not None
    return dot_general_p.flops(seen, [dot_general_p.abstract(tuple(seen), params)], **params)


pitched_product_p = Primitive("pitched_product", _product_shape, listed=False, flops=_product_flops)
"""`dot_general` of operands of `shapes`, whose rows may lie further apart in memory; so do those of
the result, `pitch` elements from one to the next, unless that is 0."""


def interleaved(e: Eqn) -> int:
    """How many elements of its result an equation makes at a point: one for each operand that it
    interleaves, else one."""
    view = e.prim.lowering
    return len(e.ins) if type(view) is View and view.interleaves else 1


def points(e: Eqn, v: Var) -> tuple[int, ...]:
    """The shape of the points at which an equation that is no reduction makes its result `v`."""
    if e.prim is pitched_p:
        return e.ins[0].aval.shape
    return v.aval.shape if interleaved(e) == 1 else v.aval.shape[:-1]


def element_offsets(e: Eqn, v: Var, point: Expr) -> list[Expr]:
    """The offsets in its buffer of the elements that an equation's result `v` has at a point."""
    if e.prim is pitched_p:
        return [ix.ravel(ix.unravel(point, points(e, v)), v.aval.shape)]
    n = interleaved(e)
    return [ix.shift(ix.scale(point, n), k) for k in range(n)]
