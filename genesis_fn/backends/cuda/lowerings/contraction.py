"""dot_general: products of matrices whose layouts are strides, so that nothing is transposed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from genesis_fn.backends.cuda.codegen.kernel_text import add_copy, collapsed
from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, lowers
from genesis_fn.backends.cuda.lowerings.conv import PRECISION
from genesis_fn.backends.cuda.lowerings.elementwise import converted
from genesis_fn.backends.cuda.lowerings.shape import add_fill
from genesis_fn.compiler.fusion.matmul_grouping import grouped_matmul_p
from genesis_fn.compiler.loop_ir.layouts import pitched_product_p
from genesis_fn.core.aval import Aval
from genesis_fn.kernels.language.dtypes import NAMES, as_number, float_operands
from genesis_fn.kernels.matmul.grouped import plan_grouped_matmul
from genesis_fn.kernels.matmul.matmul import plan_matmul
from genesis_fn.kernels.matmul.spec import MatmulSpec, Segment
from genesis_fn.kernels.plan import BufferArg
from genesis_fn.kernels.plan_builder import PlanBuilder, dense
from genesis_fn.primitives.dot_general import dot_general_p

Strides: TypeAlias = tuple[int, ...]
Axes: TypeAlias = tuple[list[int], list[int], list[int]]


@dataclass(frozen=True, slots=True)
class ProductOperand:
    """An operand of a product: its shape, and its strides in memory, where rows may lie apart."""

    shape: tuple[int, ...]
    steps: Strides


def product_operands(call: Call) -> list[ProductOperand]:
    """The operands of a product as it sees them."""
    held = [x.shape for x in call.operands]
    shapes = call.params.get("shapes", held)
    return [ProductOperand(tuple(s), tuple(dense(x))) for s, x in zip(shapes, held, strict=True)]


def operand_strides(
    x: ProductOperand, batch: Sequence[int], rows: Sequence[int], columns: Sequence[int]
) -> Strides | None:
    """The strides (batch axes, rows, columns) of an operand seen as matrices, or None where its
    rows or columns are several axes that do not lie at one stride."""
    found = [x.steps[d] for d in batch]
    for axes in (rows, columns):
        _, (strides,) = collapsed([x.shape[d] for d in axes], [x.steps[d] for d in axes])
        if len(strides) > 1:
            return None
        found.append(strides[0] if strides else 1)
    return tuple(found)


def matrix_axes(call: Call) -> tuple[Axes, Axes]:
    """The axes of each operand that are batch, rows and columns."""
    x, y = product_operands(call)
    (xc, yc), (xb, yb) = call.params["dimension_numbers"]
    # The contraction runs in the order in which one of the operands has it in memory.
    pairs = sorted(zip(xc, yc))
    if operand_strides(y, yb, [j for _, j in pairs], []) is None:
        pairs = sorted(zip(xc, yc), key=lambda pair: pair[1])
    xc, yc = [i for i, _ in pairs], [j for _, j in pairs]
    xf = [d for d in range(len(x.shape)) if d not in (*xc, *xb)]
    yf = [d for d in range(len(y.shape)) if d not in (*yc, *yb)]
    return ([*xb], xf, xc), ([*yb], yc, yf)


def matmul_spec(call: Call) -> tuple[MatmulSpec, tuple[bool, bool]]:
    """(the product, which operands must first be copied to [batch, rows, columns])."""
    x, y = product_operands(call)
    (xb, xf, xc), (yb, yc, yf) = matrix_axes(call)
    m = math.prod([x.shape[d] for d in xf])
    n = math.prod([y.shape[d] for d in yf])
    k = math.prod([x.shape[d] for d in xc])
    batch = tuple([x.shape[d] for d in xb])
    left, right = operand_strides(x, xb, xf, xc), operand_strides(y, yb, yc, yf)
    copies = left is None, right is None
    # Batch axes that lie alike everywhere are one axis; those of length 1 are none.
    out = dense((*batch, m, call.params.get("pitch") or n))
    a = left or dense((*batch, m, k))
    b = right or dense((*batch, k, n))
    count = len(batch)
    sizes, (sa, sb, so) = collapsed(batch, a[:count], b[:count], out[:count])
    spec = MatmulSpec(
        m,
        n,
        k,
        tuple(sizes),
        *[NAMES[as_number(kind.dtype)] for kind in call.operands],
        out_dtype=NAMES[call.out.dtype],
        lhs_strides=(*sa, *a[count:]),
        rhs_strides=(*sb, *b[count:]),
        out_strides=(*so, *out[count:]),
        precision=PRECISION[call.params["precision"]],
    )
    return spec, copies


@lowers(dot_general_p, pitched_product_p)
def _dot_general(call: Call) -> Lowered:
    x, y = call.operands
    builder = PlanBuilder(2, 1)
    if 0 in (call.out.size, x.size, y.size):
        add_fill(builder, call.write(), call.out.size, 0, call.out.dtype)
        return builder.build()
    call, sources = _in_floats(builder, call)
    spec, copies = matmul_spec(call)
    operands = _matrices(builder, call, copies, sources)
    # Booleans are read as bytes.
    kinds = spec.lhs_dtype, spec.rhs_dtype
    operands = [replace(b, dtype=kind) for b, kind in zip(operands, kinds)]
    builder.include(plan_matmul(spec, call.target), [*operands, call.write()])
    return builder.build()


def _in_floats(builder: PlanBuilder, call: Call) -> tuple[Call, list[BufferArg]]:
    """The product and its operands' buffers, integers converted where floats multiply them."""
    x, y = call.operands
    sources = [call.read(0), call.read(1)]
    (contracted, _), _ = call.params["dimension_numbers"]
    terms = math.prod([x.shape[d] for d in contracted])
    kind = float_operands(x.dtype, y.dtype, call.out.dtype, terms)
    if kind is None:
        return call, sources
    sources = [converted(builder, b, a, kind) for b, a in zip(sources, (x, y))]
    params = {**call.params, "precision": "highest", "preferred_element_type": call.out.dtype}
    kinds = x.update(dtype=kind), y.update(dtype=kind)
    return replace(call, avals=kinds, params=params), sources


@lowers(grouped_matmul_p)
def _products(call: Call) -> Lowered:
    """What `compiler/fusion/matmul_grouping.py` joins: products in one launch, results that are
    sums of several."""
    dots, sums = call.params["dots"], call.params["sums"]
    specs, operands = [], []
    builder = PlanBuilder(len(call.operands), len(sums))
    for number, terms in enumerate(sums):
        pieces = []
        for i in terms:
            kinds = call.operands[2 * i : 2 * i + 2]
            wanted, own = call.outs[number].dtype, dot_general_p.abstract(kinds, dots[i]).dtype
            params = {**dots[i], "preferred_element_type": wanted}
            one = Call(dot_general_p, kinds, params, call.target, numerics=call.numerics)
            spec, copies = matmul_spec(one)
            pieces.append(spec if own == wanted else replace(spec, rounded=NAMES[own]))
            operands += _matrices(builder, one, copies, [call.read(2 * i), call.read(2 * i + 1)])
        specs.append(replace(pieces[0], segments=tuple(map(_segment, pieces[1:]))))
    results = [call.write(i) for i in range(len(sums))]
    builder.include(plan_grouped_matmul(specs, call.target), [*operands, *results])
    return builder.build()


def _segment(spec: MatmulSpec) -> Segment:
    """A product as a further one of another's accumulator; it has no batch axes."""
    assert spec.lhs_strides is not None and spec.rhs_strides is not None
    (lhs_row, lhs_depth), (rhs_depth, rhs_column) = spec.lhs_strides, spec.rhs_strides
    return Segment(spec.k, (lhs_row, lhs_depth), (rhs_depth, rhs_column))


def _matrices(
    builder: PlanBuilder, call: Call, copies: Sequence[bool], sources: Sequence[BufferArg]
) -> list[BufferArg]:
    """The operands of a product; copies of them, [batch, rows, columns], where `copies` says so."""
    return [
        _packed(builder, kind, x, source, [*batch, *rows, *columns]) if copied else source
        for kind, x, (batch, rows, columns), source, copied in zip(
            call.operands, product_operands(call), matrix_axes(call), sources, copies
        )
    ]


def _packed(
    builder: PlanBuilder, kind: Aval, x: ProductOperand, source: BufferArg, order: Sequence[int]
) -> BufferArg:
    raw = f"i{8 * kind.dtype.itemsize}"
    held = builder.workspace(math.prod(x.shape), raw)
    shape = [x.shape[d] for d in order]
    add_copy(builder, replace(source, dtype=raw), held, shape, [x.steps[d] for d in order])
    return replace(held, dtype=source.dtype)
