"""Sums by segment. Those that have the same ids, as in a forward pass and its gradient, share the
sort of them: a step of its own, of which `ordered_sum_p` takes the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from genesis_fn.backends.cuda.codegen.kernel_text import add_elements
from genesis_fn.backends.cuda.lowerings.call import SITES, Call, Lowered, lowers
from genesis_fn.backends.cuda.lowerings.indexing import index_lines
from genesis_fn.backends.cuda.lowerings.shape import add_fill
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.primitive import Primitive
from genesis_fn.kernels.indexing.scatter import (
    ScatterRows,
    SortRows,
    plan_scatter_rows,
    plan_sort_rows,
)
from genesis_fn.kernels.language.dtypes import NAMES
from genesis_fn.kernels.plan import BufferArg
from genesis_fn.kernels.plan_builder import PlanBuilder
from genesis_fn.primitives.indexing.scatter import segment_sum_p

sort_rows_p = Primitive(
    "sort_rows", lambda ids, *, rows, mode: Aval((ids.size,), dtypes.I64), listed=False
)
"""The order in which a sum into `rows` segments adds what has these ids: `SortRows`."""

ordered_sum_p = Primitive(
    "ordered_sum",
    lambda data, order, *, num_segments, axes: data.update((num_segments, *data.shape[axes:])),
    flops=lambda ins, outs, **_: ins[0].size,
    listed=False,
)
"""`segment_sum` of data whose first `axes` axes are those of the ids, in the order of `sort_rows`
instead of the ids."""


def scatter_of(
    prim: Primitive, avals: Sequence[Aval], params: dict[str, Any], site: int = 0
) -> ScatterRows:
    """The scatter that a sum of `segment_sum_p` or `ordered_sum_p` is; unsigned ids as int64."""
    data, ids = avals
    if prim is ordered_sum_p:
        columns = math.prod(data.shape[params["axes"] :])
        spec = ScatterRows(
            params["num_segments"], columns, ids.size, NAMES[data.dtype], entries=True
        )
    else:
        spec = ScatterRows(
            params["num_segments"],
            math.prod(data.shape[ids.ndim :]),
            ids.size,
            NAMES[data.dtype],
            index_dtype="i64" if dtypes.is_unsigned(ids.dtype) else NAMES[ids.dtype],
            mode="clip" if params["mode"] == "clip" else "drop",
            unique=params["unique_indices"],
            sorted=params["indices_are_sorted"],
            deterministic=params["deterministic"],
            site=site,
        )
    # Booleans as bytes: adding is taking the maximum.
    return replace(spec, dtype="u8", operation="max") if data.dtype == dtypes.BOOL else spec


@lowers(segment_sum_p)
def _segment_sum(call: Call) -> Lowered:
    data, ids = call.operands
    checked = call.params["mode"] == "check"
    count = ids.size
    builder = PlanBuilder(2, 1 + checked)
    if 0 in (call.out.size, count):
        add_fill(builder, call.write(), call.out.size, 0, call.out.dtype)
        return builder.build()
    index = call.read(1)
    if dtypes.is_unsigned(ids.dtype):
        # As int64, so that nothing wraps into the range.
        index = builder.workspace(count, "i64")
        add_elements(
            builder,
            "widen",
            {"x": call.read(1), "y": index},
            count,
            [*index_lines("x", "i", ids.dtype, "v"), "tl.store(y + i, v, inside)"],
        )
    spec = scatter_of(call.prim, (data, ids), call.params, call.site * SITES if checked else 0)
    held, out = [BufferArg(b.index, spec.dtype) for b in (call.read(0), call.write())]
    buffers = [index, held, out, *([BufferArg(3, "i64")] if checked else [])]
    builder.include(plan_scatter_rows(spec, call.target), buffers)
    return builder.build()


@lowers(sort_rows_p)
def _sort_rows(call: Call) -> Lowered:
    (ids,) = call.operands
    mode = "clip" if call.params["mode"] == "clip" else "drop"
    spec = SortRows(call.params["rows"], ids.size, NAMES[ids.dtype], mode)
    return plan_sort_rows(spec, call.target)


@lowers(ordered_sum_p)
def _ordered_sum(call: Call) -> Lowered:
    builder = PlanBuilder(2, 1)
    plan = plan_scatter_rows(scatter_of(call.prim, call.operands, call.params), call.target)
    builder.include(plan, [call.read(1), call.read(0), call.write()])
    return builder.build()
