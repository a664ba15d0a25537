"""Cumulative reductions, along any axis."""

from __future__ import annotations

import math

from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, lowers
from genesis_fn.backends.cuda.lowerings.elementwise import add_convert, converted
from genesis_fn.core import dtypes
from genesis_fn.kernels.language.dtypes import NAMES
from genesis_fn.kernels.plan_builder import PlanBuilder
from genesis_fn.kernels.rows.scan import Scan, plan_scan
from genesis_fn.primitives.reductions.cumulative import (
    cumlogsumexp_p,
    cummax_p,
    cummin_p,
    cumprod_p,
    cumsum_p,
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
