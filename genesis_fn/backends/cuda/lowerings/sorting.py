"""Sort and top_k along any axis: rows are copied to be contiguous, sorted, and copied back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from genesis_fn.backends.cuda.codegen.kernel_text import add_copy
from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, lowers
from genesis_fn.core.aval import Aval
from genesis_fn.kernels.language.dtypes import NAMES
from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import PlanBuilder, dense
from genesis_fn.kernels.sort.sort import Sort, plan_sort
from genesis_fn.kernels.sort.top_k import TopK, plan_top_k
from genesis_fn.primitives.sort import sort_p, top_k_p


def along_last(call: Call, axis: int, plan: Callable[[int, int], Plan]) -> Lowered:
    """`plan(rows, length)`, on rows, for an axis that may not be last."""
    x = call.operands[0]
    length = x.shape[axis]
    rows = math.prod([n for d, n in enumerate(x.shape) if d != axis])
    inner = plan(rows, length)
    if math.prod(x.shape[axis + 1 :]) == 1:
        return inner
    count, results = len(call.operands), len(call.outs)
    builder = PlanBuilder(count, results)
    held = [_copied(builder, BufferArg(i, _raw(a)), a, axis) for i, a in enumerate(call.operands)]
    made = [builder.workspace(max(a.size, 1), _raw(a)) for a in call.outs]
    builder.include(inner, [*held, *made])
    for k, (source, a) in enumerate(zip(made, call.outs)):
        order = _moved(a.ndim, axis)
        shape, strides = [a.shape[d] for d in order], dense(a.shape)
        if a.size:
            add_copy(
                builder,
                source,
                BufferArg(count + k, _raw(a)),
                shape,
                dense(shape),
                [strides[d] for d in order],
            )
    return builder.build()


def _copied(builder: PlanBuilder, source: BufferArg, kind: Aval, axis: int) -> BufferArg:
    order = _moved(kind.ndim, axis)
    strides = dense(kind.shape)
    held = builder.workspace(max(kind.size, 1), source.dtype)
    if kind.size:
        shape = [kind.shape[d] for d in order]
        add_copy(builder, source, held, shape, [strides[d] for d in order])
    return held


def _moved(ndim: int, axis: int) -> Sequence[int]:
    return [*[d for d in range(ndim) if d != axis], axis]


def _raw(kind: Aval) -> str:
    return f"i{8 * ITEMSIZE[NAMES[kind.dtype]]}"


@lowers(sort_p)
def _sort(call: Call) -> Lowered:
    kinds = tuple([NAMES[a.dtype] for a in call.operands])
    keys = call.params["num_keys"]
    return along_last(
        call,
        call.params["dimension"],
        lambda rows, length: plan_sort(Sort(rows, length, kinds, keys), call.target),
    )


@lowers(top_k_p)
def _top_k(call: Call) -> Lowered:
    kind, k = NAMES[call.operands[0].dtype], call.params["k"]
    return along_last(
        call,
        call.params["axis"],
        lambda rows, length: plan_top_k(TopK(rows, length, k, kind), call.target),
    )
