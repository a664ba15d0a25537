"""Prologues and epilogues of matrix products: a norm before, a residual or a gate after them.

A product of few rows (of decoded tokens, say) takes as long as reading its right operand, and
every kernel around it costs a launch that waits for the one before. Its epilogue works on the
result before that is stored. With a row or two, which is a gemv, it has a prologue, too, which
computes the left operand and is repeated by each of its programs. Products of many rows take
epilogues that read nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from genesis_fn.compiler.loop_ir.domains import IterationDomain
from genesis_fn.compiler.loop_ir.kernel import KernelIR
from genesis_fn.compiler.loop_ir.layouts import pitched_product_p
from genesis_fn.compiler.simplify.rewriter import FEW_ROWS
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.primitives.dot_general import dot_general_p

# From three rows on, tensor cores' tiles read the right operand faster than a gemv, and descriptors
# read the left one. (A step of Qwen3-0.6B with 8 rows: 2.95 ms with prologues, 1.85 without.)
GEMV_ROWS = 2
# Each program repeats the prologue: it must be short, and the programs few.
_MAX_ROW = 8192
_MAX_COLUMNS = 16384
_MIN_TILED_ROWS = 128
# Tiles that an epilogue of few rows reads, the product's among them, or that a tiled one writes.
_MAX_TILES = 3
_DTYPES = (dtypes.BF16, dtypes.F16, dtypes.F32)


@dataclass(slots=True)
class FusedMatmul:
    """`eqns`, one dot_general or two with the same left operand, with what is fused into them.
    `prologue` computes the left operand; `epilogue` computes what is stored, and loads the
    products' results."""

    eqns: list[Eqn]
    prologue: KernelIR | None = None
    epilogue: KernelIR | None = None


def few_row_sizes(e: Eqn) -> tuple[int, int, int] | None:
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
    return (rows, y.size // k, k) if rows <= FEW_ROWS else None


def differ_in_rhs_only(a: Eqn, b: Eqn) -> bool:
    """Whether two products differ in their right operands only."""
    kinds = [(e.ins[1].aval, e.outs[0].aval, tuple(e.params.items())) for e in (a, b)]
    return a.ins[0] is b.ins[0] and kinds[0] == kinds[1]


def share_launch(a: Eqn, b: Eqn) -> bool:
    """Whether two products of few rows are tiles of one launch: of one left operand, of 16 bits,
    and alike but for their columns. (Gemvs share theirs as any small kernels do.)"""
    sizes = [few_row_sizes(e) for e in (a, b)]
    if a.ins[0] is not b.ins[0] or a.params != b.params:
        return False
    if any(x is None or x[0] <= GEMV_ROWS or x[1] > _MAX_COLUMNS for x in sizes):
        return False
    kinds = [[x.aval.dtype for x in (*e.ins, *e.outs)] for e in (a, b)]
    return kinds[0] == kinds[1] and all(k in (dtypes.BF16, dtypes.F16) for k in kinds[0])


def fits_few_row_epilogue(
    kernel: KernelIR, domain: IterationDomain, eqns: list[Eqn], result: Var
) -> bool:
    """Whether a pointwise kernel can be the epilogue of products of few rows."""
    sizes = few_row_sizes(eqns[0])
    values = [e.outs[0] for e in eqns]
    if sizes is None or not fits_epilogue(kernel, domain, values, result):
        return False
    others = {i.meta[0] for i in kernel.instrs if i.op == "load"} - {*values}
    return sizes[0] <= GEMV_ROWS or (len(others) < _MAX_TILES and len(kernel.instrs) <= 64)


def fits_epilogue(
    kernel: KernelIR, domain: IterationDomain, values: list[Var], result: Var
) -> bool:
    """Whether a pointwise kernel can be the epilogue of the products `values`: it reads them
    element for element."""
    if result.aval.dtype not in _DTYPES or kernel.counters or kernel.starts:
        return False
    if len({target for target, _, _ in kernel.stores}) < len(kernel.stores):
        return False  # it interleaves values: an element of the product makes several of its result
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
    if e.prim is not dot_general_p and (e.prim is not pitched_product_p or e.params["pitch"]):
        return False
    if e.params["dimension_numbers"][1] != ((), ()):
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
    """Whether a pointwise kernel can be the epilogue of the tiled product `value`: it reads nothing
    else, and writes few arrays, element for element, since a tile of each is in registers. (In
    subtiles of 32 columns three of them do not spill on an H200, wider ones do.)

    Tensor cores wait for what an epilogue reads. Of 16384 x 3072 x 1024 on an H200, in us, with
    a kernel behind it and with an epilogue: relu 196 and 154, a residual 218 and 230, the
    derivative of silu(gate) * up 268 and 335.
    """
    if domain.size >= 2**31 or not 0 < len(results) <= _MAX_TILES or len(kernel.instrs) > 64:
        return False
    if not all(fits_epilogue(kernel, domain, [value], v) for v in results):
        return False
    here = domain.position()
    alone = all(i.meta[0] is value for i in kernel.instrs if i.op == "load")
    return alone and all(offset == here for _, offset, _ in kernel.stores)


def fits_prologue(domain: IterationDomain, e: Eqn) -> bool:
    """Whether a kernel over this domain can be the prologue of product `e`."""
    found = few_row_sizes(e)
    if found is None:
        return False
    rows, columns, k = found
    if rows > GEMV_ROWS or k > _MAX_ROW or columns > _MAX_COLUMNS:
        return False
    # Pointwise, or with a reduction along each row as in a norm.
    if domain.reduced == 1:
        return domain.size == rows * k
    return domain.inner and (domain.kept, domain.reduced) == (rows, k)
