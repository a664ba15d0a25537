"""Prologues and epilogues of matrix products: a norm before, a residual or a gate after them.

A product of few rows (of one decoded token, say) takes as long as reading its right operand, and
every kernel around it costs a launch that waits for the one before. Its prologue, which computes
the left operand, is repeated by each of its programs; its epilogue works on the result before that
is stored. Products of many rows, which are computed in tiles, take epilogues only.
"""

from __future__ import annotations

from dataclasses import dataclass

from genesis_fn.compiler.loop_ir.kernel import IterationDomain, KernelIR
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.primitives.dot_general import dot_general_p

MAX_ROWS = 8  # of a gemv kernel: each has an accumulator in registers
# Each program repeats the prologue: it must be short, and the programs few.
_MAX_ROW = 8192
_MAX_COLUMNS = 16384
_MIN_TILED_ROWS = 128
_MAX_TILES = 3  # that an epilogue reads, the product's among them, or writes: all in registers
_DTYPES = (dtypes.BF16, dtypes.F16, dtypes.F32)


@dataclass(slots=True)
class FusedMatmul:
    """`eqns`, one dot_general or two with the same left operand, with what is fused into them.
    `prologue` computes the left operand; `epilogue` computes what is stored, and loads the
    products' results."""

    eqns: list[Eqn]
    prologue: KernelIR | None = None
    epilogue: KernelIR | None = None


def gemv_sizes(e: Eqn) -> tuple[int, int, int] | None:
    """(rows, columns, depth) of a product of few rows of a dense left operand; None of any
    other."""
    if e.prim is not dot_general_p:
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
    # The left operand's last axis is contracted, so that all others together are its rows.
    k = x.shape[-1]
    rows = x.size // k
    return (rows, y.size // k, k) if rows <= MAX_ROWS else None


def differ_in_rhs_only(a: Eqn, b: Eqn) -> bool:
    """Whether two products differ in their right operands only."""
    kinds = [(e.ins[1].aval, e.outs[0].aval, tuple(e.params.items())) for e in (a, b)]
    return a.ins[0] is b.ins[0] and kinds[0] == kinds[1]


def fits_epilogue(
    kernel: KernelIR, domain: IterationDomain, values: list[Var], result: Var
) -> bool:
    """Whether a pointwise kernel can be the epilogue of the products `values`: it reads them
    element for element."""
    if result.aval.dtype not in _DTYPES or kernel.counters:
        return False
    if domain.reduced > 1 or any(v.aval.size != domain.size for v in values):
        return False
    here = domain.position()
    return all(
        i.meta[1] == here and not i.meta[2]
        for i in kernel.instrs
        if i.op == "load" and i.meta[0] in values
    )


def is_tiled_matmul(e: Eqn) -> bool:
    """Whether an equation is a product of 16-bit operands, the right one a matrix, with enough rows
    to be computed in tiles on tensor cores."""
    if e.prim is not dot_general_p or e.params["dimension_numbers"][1] != ((), ()):
        return False
    x, y = e.ins
    if type(x) is not Var or type(y) is not Var or y.aval.ndim != 2 or not x.aval.ndim:
        return False
    (xc, _), _ = e.params["dimension_numbers"]
    if tuple(xc) != (x.aval.ndim - 1,) or not x.aval.size or not y.aval.size:
        return False
    narrow = all(a.dtype in (dtypes.BF16, dtypes.F16) for a in (x.aval, y.aval, e.outs[0].aval))
    return narrow and x.aval.size // x.aval.shape[-1] >= _MIN_TILED_ROWS


def fits_tiled_epilogue(
    kernel: KernelIR, domain: IterationDomain, value: Var, results: list[Var]
) -> bool:
    """Whether a pointwise kernel can be the epilogue of the tiled product `value`: it reads and
    writes all its arrays element for element, and few of them, since a tile of each is in
    registers. (In subtiles of 32 columns three of them do not spill on an H200, wider ones do.)"""
    if domain.size >= 2**31 or not 0 < len(results) <= _MAX_TILES or len(kernel.instrs) > 64:
        return False
    if not all(fits_epilogue(kernel, domain, [value], v) for v in results):
        return False
    here = domain.position()
    loads = [i for i in kernel.instrs if i.op == "load"]
    dense = all(i.meta[1] == here and not i.meta[2] for i in loads)
    dense = dense and all(offset == here for _, offset, _ in kernel.stores)
    return dense and len({i.meta[0] for i in loads}) <= _MAX_TILES


def fits_prologue(domain: IterationDomain, e: Eqn) -> bool:
    """Whether a kernel over this domain can be the prologue of product `e`."""
    found = gemv_sizes(e)
    if found is None:
        return False
    rows, columns, k = found
    if k > _MAX_ROW or columns > _MAX_COLUMNS:
        return False
    # Pointwise, or with a reduction along each row as in a norm.
    if domain.reduced == 1:
        return domain.size == rows * k
    return domain.inner and (domain.kept, domain.reduced) == (rows, k)
