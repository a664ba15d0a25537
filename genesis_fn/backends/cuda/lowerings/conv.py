"""Convolutions of any layout, as strides: a library's, or the implicit matrix product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from genesis_fn.backends.cuda import libraries
from genesis_fn.backends.cuda.codegen.kernel_text import add_copy, collapsed
from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, lowers
from genesis_fn.backends.cuda.lowerings.elementwise import add_convert, converted
from genesis_fn.backends.cuda.lowerings.shape import add_fill
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.simplify.convolutions import Layout, turned_conv_p
from genesis_fn.compiler.target import Target
from genesis_fn.core import dtypes
from genesis_fn.core.configuration import config
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Eqn
from genesis_fn.kernels.language.dtypes import NAMES, as_number
from genesis_fn.kernels.matmul.conv import Convolution, plan_convolution
from genesis_fn.kernels.matmul.library_conv import LibraryConvolution
from genesis_fn.kernels.plan import BufferArg
from genesis_fn.kernels.plan_builder import PlanBuilder, dense
from genesis_fn.primitives.conv import conv_p

PRECISION = {"default": "default", "tf32": "tf32", "tf32x3": "tf32x3", "highest": "ieee"}


@lowers(conv_p)
def _convolution(call: Call) -> Lowered:
    return _planned(call, turned=False)


@lowers(turned_conv_p)
def _turned_convolution(call: Call) -> Lowered:
    return _planned(call, turned=True)


def _planned(call: Call, turned: bool) -> Lowered:
    """The plan of a convolution; `turned`: of a filter whose taps are in reversed order."""
    x, w = call.operands
    builder = PlanBuilder(2, 1)
    if 0 in (call.out.size, x.size, w.size):
        add_fill(builder, call.write(), call.out.size, 0, call.out.dtype)
        return builder.build()
    kind, precision = _multiplied_in(call)
    lhs = converted(builder, call.read(0), x, kind)
    rhs = converted(builder, call.read(1), w, kind)
    number = NAMES[as_number(kind)]  # booleans are read as bytes
    lhs, rhs = replace(lhs, dtype=number), replace(rhs, dtype=number)
    out_kind = call.out.dtype
    narrow = out_kind in (dtypes.F8E4, dtypes.F8E5)
    made = dtypes.F32 if narrow else out_kind
    spec = _spec(call, number, NAMES[made], precision)
    if narrow:
        held = builder.workspace(call.out.size, "fp32")
        _add(builder, spec, [lhs, rhs, held], call, turned)
        add_convert(builder, held, call.out.update(dtype=made), call.write(), out_kind)
    else:
        _add(builder, spec, [lhs, rhs, call.write()], call, turned)
    return builder.build()


def _add(
    builder: PlanBuilder, spec: Convolution, buffers: Sequence[BufferArg], call: Call, turned: bool
) -> None:
    """Append a convolution of these operands and result, by whatever is fastest."""
    target = call.target
    chosen = _by_library(spec, target, turned)
    lhs, rhs, out = buffers
    if chosen is None:
        if turned:
            shape, steps = call.operands[1].shape, dense(call.operands[1].shape)
            taps = call.params["dimension_numbers"][1][2:]
            first = sum([(shape[d] - 1) * steps[d] for d in taps])
            steps = [-s if d in taps else s for d, s in enumerate(steps)]
            held = builder.workspace(math.prod(shape), rhs.dtype)
            add_copy(builder, rhs, held, shape, steps, None, first)
            rhs = held
        builder.include(plan_convolution(spec, target), [lhs, rhs, out])
        return
    routine, (shape, strides, first) = chosen.routine, chosen.filter_view(turned)
    scratch, written = libraries.scratch(routine, target), out
    if collapsed(shape, strides)[1] not in ([[1]], [[]]):
        held = builder.workspace(math.prod(shape), (out if routine.form == "filter" else rhs).dtype)
        if routine.form == "filter":
            written = held
        else:
            add_copy(builder, rhs, held, shape, strides, None, first)
            rhs = held
    builder.call(routine, [lhs, rhs, written], scratch)
    if written is not out:
        add_copy(builder, written, out, shape, dense(shape), strides)


def _by_library(spec: Convolution, target: Target, turned: bool) -> LibraryConvolution | None:
    """A convolution as a library's routine; None where our kernel computes it."""
    found = LibraryConvolution.of(spec, config.current().deterministic, turned)
    if found is None or not enabled("library_convolutions") or not found.pays(target):
        return None
    return found if libraries.convolves(found.routine, target) else None


def convolution_layout(target: Target, e: Eqn) -> Layout:
    """Who computes an equation, a convolution, on a target, and what it wants laid."""
    avals = tuple([x.aval for x in e.ins])
    call = Call(e.prim, avals, e.params, target, numerics=e.numerics)
    if 0 in (call.out.size, *[a.size for a in avals]):
        return "as it is"
    kind, precision = _multiplied_in(call)
    spec = _spec(call, NAMES[as_number(kind)], NAMES[call.out.dtype], precision)
    if _by_library(spec, target, e.prim is turned_conv_p) is not None:
        return "library"
    return "filter" if target.contiguous_depth and spec.lays_filter else "as it is"


def _multiplied_in(call: Call) -> tuple[DType, str]:
    """(the dtype that both operands become, the precision of their products)."""
    x, w = call.operands
    if not dtypes.is_float(x.dtype):
        if not dtypes.is_float(call.out.dtype):
            return x.dtype, "ieee"
        return (dtypes.F64 if call.out.dtype == dtypes.F64 else dtypes.F32), "ieee"
    kind = x.dtype if x.dtype == w.dtype else dtypes.promote_types(x.dtype, w.dtype)
    if call.out.dtype == dtypes.F64:
        kind = dtypes.F64
    elif kind in (dtypes.F8E4, dtypes.F8E5):
        kind = dtypes.BF16
    return kind, PRECISION[call.params["precision"]]


def _spec(call: Call, kind: str, out_kind: str, precision: str) -> Convolution:
    x, w = call.operands
    params = call.params
    lhs, rhs, out = params["dimension_numbers"]
    at_x, at_w, at_y = dense(x.shape), dense(w.shape), dense(call.out.shape)
    features, batches = params["feature_group_count"], params["batch_group_count"]
    groups = features * batches
    batch = x.shape[lhs[0]] // batches
    in_channels, out_channels = w.shape[rhs[1]], w.shape[rhs[0]] // groups
    # Groups run over features or over parts of the batch; over outputs' features in either case.
    group_step = batch * at_x[lhs[0]] if batches > 1 else in_channels * at_x[lhs[1]]

    def triple(values: Sequence[int], missing: int) -> tuple[int, int, int]:
        depth, height, width = (*(missing,) * (3 - len(values)), *values)
        return depth, height, width

    return Convolution(
        batch,
        groups,
        in_channels,
        out_channels,
        triple([x.shape[d] for d in lhs[2:]], 1),
        triple([w.shape[d] for d in rhs[2:]], 1),
        triple([call.out.shape[d] for d in out[2:]], 1),
        (at_x[lhs[0]], group_step, at_x[lhs[1]], *triple([at_x[d] for d in lhs[2:]], 0)),
        (
            at_w[rhs[0]] * out_channels,
            at_w[rhs[0]],
            at_w[rhs[1]],
            *triple([at_w[d] for d in rhs[2:]], 0),
        ),
        (
            at_y[out[0]],
            at_y[out[1]] * out_channels,
            at_y[out[1]],
            *triple([at_y[d] for d in out[2:]], 0),
        ),
        triple(params["window_strides"], 1),
        triple([low for low, _ in params["padding"]], 0),
        triple(params["lhs_dilation"], 1),
        triple(params["rhs_dilation"], 1),
        dtype=kind,
        out_dtype=out_kind,
        precision=precision,
    )
