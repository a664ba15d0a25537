"""Cumulative reductions and the linear recurrence, along any axis."""

from __future__ import annotations

import math

from genesis_fn.backends.cuda.codegen.kernel_text import indented, source_kernel
from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, lowers
from genesis_fn.backends.cuda.lowerings.elementwise import add_convert, converted
from genesis_fn.core import dtypes
from genesis_fn.kernels.language.dtypes import NAMES
from genesis_fn.kernels.language.expressions import loaded, register, stored
from genesis_fn.kernels.plan import Scalar
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv, next_power_of_two
from genesis_fn.kernels.rows.scan import Scan, plan_scan
from genesis_fn.primitives.reductions.cumulative import (
    cumlogsumexp_p,
    cummax_p,
    cummin_p,
    cumprod_p,
    cumsum_p,
    linear_recurrence_p,
)


@lowers(cumsum_p, operation="add")
@lowers(cumprod_p, operation="mul")
@lowers(cummax_p, operation="max")
@lowers(cummin_p, operation="min")
@lowers(cumlogsumexp_p, operation="logaddexp")
def _cumulative(call: Call, operation: str) -> Lowered:
    x, axis = call.operands[0], call.params["axis"]
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    if x.size == 0:
        return PlanBuilder(1, 1).build()
    kind = "u8" if x.dtype == dtypes.BOOL else NAMES[x.dtype]
    eight_bits = x.dtype in (dtypes.F8E4, dtypes.F8E5)
    plan = plan_scan(
        Scan(
            outer,
            x.shape[axis],
            inner,
            "fp32" if eight_bits else kind,
            operation,
            call.params["reverse"],
        ),
        call.target,
    )
    if not eight_bits:
        return plan
    builder = PlanBuilder(1, 1)
    held = builder.workspace(x.size, "fp32")
    builder.include(plan, [converted(builder, call.read(0), x, dtypes.F32), held])
    add_convert(builder, held, x.update(dtype=dtypes.F32), call.write(), x.dtype)
    return builder.build()


@lowers(linear_recurrence_p)
def _recurrence(call: Call) -> Lowered:
    """Tiles of [time, lane], scanned in registers, with a carry from one tile to the next."""
    x, axis = call.operands[1], call.params["axis"]
    length = x.shape[axis]
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    builder = PlanBuilder(2, 1)
    if x.size == 0:
        return builder.build()
    kind, value = x.dtype, register(x.dtype)
    step = "length - 1 - t" if call.params["reverse"] else "t"
    body = [
        "lane = tl.program_id(0) * BL + tl.arange(0, BL)",
        "exists = lane < lanes",
        "wide = lane.to(tl.int64)",
        "base = (wide // inner) * inner * length + wide % inner",
        f"carry = tl.zeros((BL,), {value})",
        "row = tl.arange(0, BT)",
        "for t0 in range(0, length, BT):",
        "    t = t0 + row",
        "    here = (t < length)[:, None] & exists[None, :]",
        f"    at = base[None, :] + ({step}).to(tl.int64)[:, None] * inner",
        f"    u = {loaded('tl.load(a + at, here)', kind)}",
        f"    v = {loaded('tl.load(b + at, here)', kind)}",
        # The first row takes the carry in; rows beyond the end leave it alone.
        "    first = (row == 0)[:, None] & (t > 0)[:, None]",
        "    v = tl.where(first, v + u * carry[None, :], v)",
        "    v = tl.where(here, v, tl.zeros_like(v))",
        "    u = tl.where(here, u, tl.zeros_like(u) + 1)",
        "    product, h = tl.associative_scan((u, v), 0, recur)",
        f"    tl.store(y + at, {stored('h', kind)}, here)",
        "    carry = tl.sum(tl.where((row == BT - 1)[:, None], h, tl.zeros_like(h)), 0)",
    ]
    names = "a, b, y, lanes, inner, length, BL: tl.constexpr, BT: tl.constexpr"
    lanes = outer * inner
    bl = min(64, next_power_of_two(lanes))
    bt = min(64, max(2, next_power_of_two(length)))
    arguments = {
        "a": call.read(0),
        "b": call.read(1),
        "y": call.write(),
        "lanes": Scalar(lanes),
        "inner": Scalar(inner),
        "length": Scalar(length),
    }
    kernel = source_kernel("linear_recurrence", names, indented(body))
    builder.launch(kernel, (cdiv(lanes, bl),), arguments, {"BL": bl, "BT": bt})
    return builder.build()
