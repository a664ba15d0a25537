"""Views, copies, padding, concatenation and sources, outside of fused kernels.

What can share its operand's memory does; everything else is a copy between strided views whose
sizes are run-time numbers, so that few kernels serve all shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, Views, lowers
from genesis_fn.backends.cuda.lowerings.elementwise import run_time_scalar
from genesis_fn.backends.cuda.lowerings.text import add_copy, add_elements, collapsed, dense
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.dtypes import DType
from genesis_fn.kernels.concat import Concatenate, plan_concatenate
from genesis_fn.kernels.expressions import register, stored
from genesis_fn.kernels.launch import Buf, Scalar
from genesis_fn.kernels.planning import PlanBuilder

ALIGNMENT = 16


def view_plan(call: Call, strides: Sequence[int], first: int = 0) -> Lowered:
    """The only result as a view of operand 0: its memory if dense there, else a copy."""
    x, out = call.operands[0], call.out
    sizes, (steps,) = collapsed(out.shape, strides)
    start = first * x.dtype.itemsize
    if out.size == 0 or (steps in ([1], []) and start % ALIGNMENT == 0):
        return Views(((0, start if out.size else 0),))
    builder = PlanBuilder(1, 1)
    add_copy(builder, call.read(0, True), call.write(0, True), out.shape, strides, None, first)
    return builder.build()


@lowers("broadcast_in_dim")
def _broadcast(call: Call) -> Lowered:
    x = call.operands[0]
    strides = [0] * call.out.ndim
    for n, d, s in zip(x.shape, call.params["dims"], dense(x.shape)):
        strides[d] = s if n == call.out.shape[d] else 0
    return view_plan(call, strides)


@lowers("transpose")
def _transpose(call: Call) -> Lowered:
    strides = dense(call.operands[0].shape)
    return view_plan(call, [strides[p] for p in call.params["permutation"]])


@lowers("slice")
def _slice(call: Call) -> Lowered:
    strides = dense(call.operands[0].shape)
    first = sum([a * s for a, s in zip(call.params["start"], strides)])
    return view_plan(call, [s * step for s, step in zip(strides, call.params["strides"])], first)


@lowers("rev")
def _rev(call: Call) -> Lowered:
    shape, axes = call.out.shape, call.params["dimensions"]
    strides = dense(shape)
    first = sum([(n - 1) * s for d, (n, s) in enumerate(zip(shape, strides)) if d in axes])
    if call.out.size == 0:
        return Views(((0, 0),))
    return view_plan(call, [-s if d in axes else s for d, s in enumerate(strides)], first)


@lowers("split")
def _split(call: Call) -> Lowered:
    x, axis = call.operands[0], call.params["axis"]
    strides, ends = dense(x.shape), np.cumsum([0, *call.params["sizes"]]).tolist()
    starts = [e * strides[axis] for e in ends[:-1]]
    size = x.dtype.itemsize
    if math.prod(x.shape[:axis]) == 1 and all(s * size % ALIGNMENT == 0 for s in starts):
        return Views(tuple([(0, s * size if o.size else 0) for s, o in zip(starts, call.outs)]))
    builder = PlanBuilder(1, len(call.outs))
    for k, (start, out) in enumerate(zip(starts, call.outs)):
        if out.size:
            add_copy(
                builder, call.read(0, True), call.write(k, True), out.shape, strides, None, start
            )
    return builder.build()


@lowers("concatenate")
def _concatenate(call: Call) -> Lowered:
    shapes = tuple([a.shape for a in call.operands])
    raw = call.write(0, True).dtype
    return plan_concatenate(Concatenate(shapes, call.params["dimension"], raw), call.target)


@lowers("pad")
def _pad(call: Call) -> Lowered:
    x, value = call.avals
    out = call.out
    builder = PlanBuilder(len(call.operands), 1)
    if type(value) is Aval:
        add_elements(
            builder, "fill_from", {"x": call.read(1, True), "y": call.write(0, True)}, out.size,
            ["tl.store(y + i, tl.load(x + i * 0, inside), inside)"],
        )  # fmt: skip
    else:
        add_fill(builder, call.write(0), out.size, value, out.dtype)
    read, write = dense(x.shape), dense(out.shape)
    shape, first, place, steps = [], 0, 0, []
    for d, (n, m, (low, _, interior)) in enumerate(zip(x.shape, out.shape, call.params["config"])):
        step = interior + 1
        start = max(0, -(low // step)) if low < 0 else 0
        end = max(start, min(n, (m - 1 - low) // step + 1))
        shape.append(end - start)
        first += start * read[d]
        place += (low + start * step) * write[d]
        steps.append(step * write[d])
    if 0 not in shape:
        add_copy(builder, call.read(0, True), call.write(0, True), shape, read, steps, first, place)
    return builder.build()


def add_fill(builder: PlanBuilder, target: Buf, count: int, value: Any, kind: DType) -> None:
    """Append target[:] = a Python number."""
    scalar, text = run_time_scalar(value, kind)
    line = f"tl.store(y + i, {stored('v', kind)}, inside)"
    lines = [f"v = tl.broadcast_to({text.format('s')}, (BLOCK,))", line]
    add_elements(builder, "fill", {"y": target}, count, lines, scalars={"s": scalar})


@lowers("full")
def _full(call: Call) -> Lowered:
    builder = PlanBuilder(0, 1)
    add_fill(builder, call.write(), call.out.size, call.params["value"], call.out.dtype)
    return builder.build()


@lowers("iota")
def _iota(call: Call) -> Lowered:
    out, axis = call.out, call.params["dimension"]
    inner = math.prod(out.shape[axis + 1 :])
    kind = out.dtype
    value = f"((i // inner) % n).to({register(kind)})"
    if dtypes.is_float(kind):
        value = f"((i // inner) % n).to(tl.float64).to({register(kind)})"
    builder = PlanBuilder(0, 1)
    add_elements(
        builder, "iota", {"y": call.write()}, out.size,
        [f"tl.store(y + i, {stored(value, kind)}, inside)"],
        scalars={"inner": Scalar(max(inner, 1)), "n": Scalar(max(out.shape[axis], 1))},
    )  # fmt: skip
    return builder.build()


@lowers("copy")
def _copy(call: Call) -> Lowered:
    builder = PlanBuilder(1, 1)
    shape = (call.out.size,)
    add_copy(builder, call.read(0, True), call.write(0, True), shape, (1,))
    return builder.build()
