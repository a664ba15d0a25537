"""Products of few rows with what stands before and after them: a norm, a residual, a gate.

Such a product (of one token, say) takes as long as reading its right operand, and every kernel
around it costs a launch that waits for the one before. What makes its left operand is computed
again by each of its programs, and what is done to its result before anything else reads it is done
before it is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from genesis_fn.compiler.kernel import Body, Domain
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Eqn, Var

MOST_ROWS = 8
_LONGEST_ROW = 8192  # of a left operand that is made again by each program
_MOST_COLUMNS = 16384  # of a product whose programs all make their left operand again
_DTYPES = (dtypes.BF16, dtypes.F16, dtypes.F32)


@dataclass(slots=True)
class Product:
    """`eqns` are one dot_general, or two with the same left operand. `prologue` computes the left
    operand, `epilogue` the stored value, for which the products' results are loads."""

    eqns: list[Eqn]
    prologue: Body | None = None
    epilogue: Body | None = None


def sizes(e: Eqn) -> tuple[int, int, int] | None:
    """(rows, columns, depth) of a product of few rows of a dense left operand, else None."""
    if e.prim.name != "dot_general":
        return None
    x, y = e.ins
    (xc, yc), batch = e.params["dimension_numbers"]
    if type(x) is not Var or type(y) is not Var or batch != ((), ()):
        return None
    x, y = x.aval, y.aval
    if tuple(xc) != (x.ndim - 1,) or len(yc) != 1 or y.ndim != 2 or 0 in (x.size, y.size):
        return None
    if any(a.dtype not in _DTYPES for a in (x, y, e.outs[0].aval)):
        return None
    k = x.shape[-1]
    rows = x.size // k
    return (rows, y.size // k, k) if rows <= MOST_ROWS else None


def alike(a: Eqn, b: Eqn) -> bool:
    """Whether two products differ in their right operands only."""
    kinds = [(e.ins[1].aval, e.outs[0].aval, tuple(e.params.items())) for e in (a, b)]
    return a.ins[0] is b.ins[0] and kinds[0] == kinds[1]


def follows(body: Body, over: Domain, values: list[Var], result: Var) -> bool:
    """Whether a pointwise kernel can run on the tiles of the products `values`: it reads them
    element for element."""
    if result.aval.dtype not in _DTYPES or body.counters:
        return False
    if over.reduced > 1 or any(v.aval.size != over.size for v in values):
        return False
    here = over.position()
    return all(
        i.meta[1] == here and not i.meta[2]
        for i in body.instrs
        if i.op == "load" and i.meta[0] in values
    )


def precedes(over: Domain, e: Eqn) -> bool:
    """Whether a kernel over this domain can make the left operand of a product in its place."""
    found = sizes(e)
    if found is None:
        return False
    rows, columns, k = found
    if k > _LONGEST_ROW or columns > _MOST_COLUMNS:
        return False
    if over.reduced == 1:
        return over.size == rows * k
    return over.inner and (over.kept, over.reduced) == (rows, k)


__all__ = ["MOST_ROWS", "Product", "alike", "follows", "precedes", "sizes"]
