"""Products by groups of rows, of operands as they lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, lowers
from genesis_fn.backends.cuda.lowerings.conv import PRECISION
from genesis_fn.backends.cuda.lowerings.elementwise import add_convert, converted
from genesis_fn.backends.cuda.lowerings.integers import as_number
from genesis_fn.backends.cuda.lowerings.shape import add_fill
from genesis_fn.compiler.target import Target
from genesis_fn.core import dtypes
from genesis_fn.core.dtypes import DType
from genesis_fn.kernels.language.dtypes import NAMES
from genesis_fn.kernels.matmul.ragged import RaggedSpec, plan_ragged_contraction, plan_ragged_dot
from genesis_fn.kernels.plan import Plan
from genesis_fn.kernels.plan_builder import PlanBuilder
from genesis_fn.primitives.ragged_dot import ragged_contraction_p, ragged_dot_p


@lowers(ragged_dot_p)
def _ragged_dot(call: Call) -> Lowered:
    x, w, sizes = call.operands
    return _planned(
        call,
        plan_ragged_dot,
        k=x.shape[-1],
        n=call.out.shape[-1],
        rhs_transposed=call.params["rhs_transposed"],
        rhs_shared=w.ndim == 3 and sizes.ndim == 2,
    )


@lowers(ragged_contraction_p)
def _ragged_contraction(call: Call) -> Lowered:
    x, y, _ = call.operands
    return _planned(call, plan_ragged_contraction, k=x.shape[-1], n=y.shape[-1])


def _planned(
    call: Call,
    plan: Callable[[RaggedSpec, Target], Plan],
    *,
    k: int,
    n: int,
    rhs_transposed: bool = False,
    rhs_shared: bool = False,
) -> Lowered:
    x, y, sizes = call.operands
    out, groups = call.out, sizes.shape[-1]
    builder = PlanBuilder(3, 1)
    if 0 in (x.size, y.size, out.size):
        add_fill(builder, call.write(), out.size, 0, out.dtype)
        return builder.build()
    left, right = _met(x.dtype, y.dtype, out.dtype)
    narrow = out.dtype in (dtypes.F8E4, dtypes.F8E5)
    made = dtypes.F32 if narrow else out.dtype
    spec = RaggedSpec(
        x.shape[-2],
        k,
        n,
        groups,
        sizes.shape[0] if sizes.ndim == 2 else 1,
        NAMES[as_number(left)],
        NAMES[as_number(right)],
        NAMES[made],
        NAMES[sizes.dtype],
        rhs_transposed,
        rhs_shared,
        PRECISION[call.params["precision"]] if dtypes.is_float(x.dtype) else "ieee",
    )
    operands = [
        replace(converted(builder, call.read(i), a, kind), dtype=NAMES[as_number(kind)])
        for i, (a, kind) in enumerate(((x, left), (y, right)))
    ]
    result = call.write() if made == out.dtype else builder.workspace(out.size, NAMES[made])
    builder.include(plan(spec, call.target), [*operands, call.read(2), result])
    if made != out.dtype:
        add_convert(builder, result, out.update(dtype=made), call.write(), out.dtype)
    return builder.build()


def _met(x: DType, y: DType, out: DType) -> tuple[DType, DType]:
    """The dtypes that operands are read in: kernels take floats of 16 and 32 bits together, and
    integers of any two types."""
    if not dtypes.is_float(x):
        if not dtypes.is_float(out):
            return x, y
        x = y = dtypes.F32
    if dtypes.F64 in (x, y, out):
        return dtypes.F64, dtypes.F64
    wide = lambda d: dtypes.BF16 if d.itemsize == 1 else d
    return wide(x), wide(y)
