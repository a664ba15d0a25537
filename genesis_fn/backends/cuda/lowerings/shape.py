"""Views, copies, padding, concatenation and constants, outside of fused kernels.

A result that can share its operand's memory does. Anything else is a copy between strided views,
with run-time sizes, so that few kernels serve all shapes.
"""

from __future__ import annotations

import math

from genesis_fn.backends.cuda.codegen.kernel_text import add_copy, add_elements, collapsed
from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, Views, lowers
from genesis_fn.backends.cuda.lowerings.elementwise import run_time_scalar
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.lowering import View
from genesis_fn.core.dtypes import DType
from genesis_fn.kernels.indexing.concat import Concatenate, plan_concatenate
from genesis_fn.kernels.language.expressions import register, stored
from genesis_fn.kernels.plan import BufferArg, Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder, dense
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.shape import concatenate_p, iota_p, pad_p

ALIGNMENT = 16


@lowers(View)
def _view(call: Call) -> Lowered:
    """Results that share their operands' memory if they are all dense there, else copies."""
    view = call.prim.lowering
    assert type(view) is View
    builder = PlanBuilder(len(call.operands), len(call.outs))
    sources, shared = [], view.shares
    for k, out in enumerate(call.outs):
        operand, strides, first = _strided(call, view, k)
        _, (steps,) = collapsed(out.shape, strides)
        start = first * out.dtype.itemsize if out.size else 0
        sources.append((call.number(operand), start))
        shared = shared and not start % ALIGNMENT and (steps in ([1], []) or not out.size)
        if out.size:
            read, write = call.read(operand, True), call.write(k, True)
            add_copy(builder, read, write, out.shape, strides, None, first)
    return Views(tuple(sources)) if shared else builder.build()


def _strided(call: Call, view: View, k: int) -> tuple[int, list[int], int]:
    """(the operand that result k is a view of, the view's strides, its first element)."""
    at = tuple([ix.var(f"i{d}", n) for d, n in enumerate(call.outs[k].shape)])
    ((operand, index, _),) = view.pieces(k, at, *call.avals, **call.params)
    offset = ix.ravel(index, call.avals[operand].shape)
    steps = {atom.key[1]: step for atom, step in offset.terms.items()}
    return operand, [steps.get(f"i{d}", 0) for d in range(len(at))], offset.const


@lowers(concatenate_p)
def _concatenate(call: Call) -> Lowered:
    shapes = tuple([a.shape for a in call.operands])
    raw = call.write(0, True).dtype
    return plan_concatenate(Concatenate(shapes, call.params["dimension"], raw), call.target)


@lowers(pad_p)
def _pad(call: Call) -> Lowered:
    x, value = call.avals
    out = call.out
    builder = PlanBuilder(len(call.operands), 1)
    if type(value) is Aval:
        add_elements(
            builder,
            "fill_from",
            {"x": call.read(1, True), "y": call.write(0, True)},
            out.size,
            ["tl.store(y + i, tl.load(x + i * 0, inside), inside)"],
        )
    else:
        add_fill(builder, call.write(0), out.size, value, out.dtype)
    read, write = dense(x.shape), dense(out.shape)
    shape, first, offset, steps = [], 0, 0, []
    for d, (n, m, (low, _, interior)) in enumerate(zip(x.shape, out.shape, call.params["config"])):
        step = interior + 1
        start = max(0, -(low // step)) if low < 0 else 0
        end = max(start, min(n, (m - 1 - low) // step + 1))
        shape.append(end - start)
        first += start * read[d]
        offset += (low + start * step) * write[d]
        steps.append(step * write[d])
    if 0 not in shape:
        add_copy(
            builder, call.read(0, True), call.write(0, True), shape, read, steps, first, offset
        )
    return builder.build()


def add_fill(
    builder: PlanBuilder, target: BufferArg, count: int, value: bool | int | float, kind: DType
) -> None:
    """Append target[:] = a Python number."""
    scalar, text = run_time_scalar(value, kind)
    line = f"tl.store(y + i, {stored('v', kind)}, inside)"
    lines = [f"v = tl.broadcast_to({text.format('s')}, (BLOCK,))", line]
    add_elements(builder, "fill", {"y": target}, count, lines, scalars={"s": scalar})


@lowers(full_p)
def _full(call: Call) -> Lowered:
    builder = PlanBuilder(0, 1)
    add_fill(builder, call.write(), call.out.size, call.params["value"], call.out.dtype)
    return builder.build()


@lowers(iota_p)
def _iota(call: Call) -> Lowered:
    out, axis = call.out, call.params["dimension"]
    inner = math.prod(out.shape[axis + 1 :])
    kind = out.dtype
    value = f"((i // inner) % n).to({register(kind)})"
    if dtypes.is_float(kind):
        value = f"((i // inner) % n).to(tl.float64).to({register(kind)})"
    builder = PlanBuilder(0, 1)
    add_elements(
        builder,
        "iota",
        {"y": call.write()},
        out.size,
        [f"tl.store(y + i, {stored(value, kind)}, inside)"],
        scalars={"inner": Scalar(max(inner, 1)), "n": Scalar(max(out.shape[axis], 1))},
    )
    return builder.build()
