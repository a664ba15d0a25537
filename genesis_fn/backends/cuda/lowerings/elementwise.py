"""Elementwise primitives, one at a time: kernels with run-time sizes and run-time scalars."""

from __future__ import annotations

import struct
from dataclasses import replace

from genesis_fn.backends.cuda.codegen.kernel_text import add_elements
from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, Views, lowers
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.dtypes import DType
from genesis_fn.kernels.language.dtypes import MEMORY, NAMES
from genesis_fn.kernels.language.expressions import expression, loaded, stored
from genesis_fn.kernels.plan import BufferArg, Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder
from genesis_fn.primitives.elementwise import bitcast_p, convert_p


def run_time_scalar(value: bool | int | float, kind: DType) -> tuple[Scalar, str]:
    """(a number to pass, text that makes it a register value of `kind` from `{0}`)."""
    if kind == dtypes.BOOL:
        return Scalar(int(bool(value)), "i32"), "({0} != 0)"
    if dtypes.is_integer(kind):
        wrapped = (int(value) + (1 << 63)) % (1 << 64) - (1 << 63)
        return Scalar(wrapped, "i64"), f"{{0}}.to({MEMORY[kind]})"
    if kind == dtypes.F64:
        (bits,) = struct.unpack("<q", struct.pack("<d", float(value)))
        return Scalar(bits, "i64"), "{0}.to(tl.int64).to(tl.float64, bitcast=True)"
    return Scalar(float(value), "fp32"), "tl.full((), {0}, tl.float32)"


@lowers(Elementwise)
def lower_elementwise(call: Call) -> Lowered:
    """One kernel for each (primitive, dtypes, which operands are scalars), for all sizes."""
    kind = call.operands[-1].dtype
    lines, names, buffers, scalars = [], [], {}, {}
    for position, a in enumerate(call.avals):
        name = f"v{position}"
        names.append(name)
        if type(a) is Aval:
            buffers[f"x{position}"] = call.read(position)
            value = loaded(f"tl.load(x{position} + i, inside)", a.dtype)
        else:
            scalar, text = run_time_scalar(a, kind)
            scalars[f"s{position}"] = scalar
            value = text.format(f"s{position}")
        lines.append(f"{name} = {value}")
    stand_ins = [a if type(a) is Aval else call.operands[-1] for a in call.avals]
    result = expression(call.prim, names, stand_ins, call.params, call.numerics.precise)
    lines.append(f"tl.store(y + i, {stored(result, call.out.dtype)}, inside)")
    buffers["y"] = call.write()
    builder = PlanBuilder(len(call.operands), 1)
    name = f"{call.prim.name}_elements"
    add_elements(builder, name, buffers, call.out.size, lines, scalars=scalars)
    return builder.build()


def add_convert(
    builder: PlanBuilder, source: BufferArg, kind: Aval, target: BufferArg, dtype: DType
) -> None:
    """Append target = source, of aval `kind`, in another dtype."""
    value = expression(convert_p, ["v0"], [kind], {"dtype": dtype}, precise=True)
    lines = [
        f"v0 = {loaded('tl.load(x0 + i, inside)', kind.dtype)}",
        f"tl.store(y + i, {stored(value, dtype)}, inside)",
    ]
    buffers = {
        "x0": replace(source, dtype=NAMES[kind.dtype]),
        "y": replace(target, dtype=NAMES[dtype]),
    }
    add_elements(builder, f"{convert_p.name}_elements", buffers, kind.size, lines)


def converted(builder: PlanBuilder, source: BufferArg, kind: Aval, dtype: DType) -> BufferArg:
    """`source`, of aval `kind`, as a buffer of elements of `dtype`, through a workspace."""
    if kind.dtype == dtype:
        return source
    held = builder.workspace(max(kind.size, 1), NAMES[dtype])
    add_convert(builder, source, kind, held, dtype)
    return held


@lowers(bitcast_p)
def _bitcast(call: Call) -> Lowered:
    # A byte that becomes a boolean must be 0 or 1.
    if call.out.dtype == dtypes.BOOL and call.avals[0].dtype != dtypes.BOOL:
        return lower_elementwise(call)
    return Views(((0, 0),))
