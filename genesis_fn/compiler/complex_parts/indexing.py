"""Gathers, scatters and slices at positions that are values.

Of a packed operand the window takes both parts, which lie side by side; of a pair each part is an
operation of its own, so that the carries of loops are updated in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.compiler.complex_parts.arithmetic import multiplied
from genesis_fn.compiler.complex_parts.values import Complex, of_packed, of_parts, on_parts, pair
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.primitive import Primitive, bind, typeof
from genesis_fn.primitives import elementwise as ops, shape
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.indexing.gather import gather_p, take_rows_p
from genesis_fn.primitives.indexing.gather_dims import (
    GatherDimensionNumbers,
    Numbers,
    ScatterDimensionNumbers,
    inverse,
    window_sizes,
)
from genesis_fn.primitives.indexing.indexing import dynamic_slice_p, dynamic_update_slice_p
from genesis_fn.primitives.indexing.scatter import scatter_p, segment_sum_p
from genesis_fn.primitives.reductions.cumulative import cummax_p
from genesis_fn.primitives.reductions.reduce import reduce_max_p
from genesis_fn.primitives.sort import sort_p
from genesis_fn.transforms.control_flow.loops import while_loop


def _with_parts(numbers: Numbers, rank: int) -> Any:
    """The dimension numbers of windows that take the axis of parts whole; `rank` is that of the
    result of the gather, or of the updates."""
    return type(numbers)((*numbers[0], rank), *numbers[1:])


# ---- reading ----


@on_parts(gather_p)
def _gather(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    operand, indices = xs
    if not operand.is_packed or params["fill_value"] is not None:
        return _filled(prim, xs, params)
    rank = prim.abstract((operand.aval, typeof(indices)), params).ndim
    numbers = _with_parts(params["dimension_numbers"], rank)
    sizes = (*params["slice_sizes"], 2)
    changed = {"dimension_numbers": numbers, "slice_sizes": sizes}
    return of_packed(bind(prim, operand.packed, indices, **params | changed))


def _filled(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    """The operation on each part, with the parts of a fill value."""
    (re, im), indices = xs[0].parts, xs[1]
    fill = params["fill_value"]
    values = (fill, fill) if fill is None else pair(fill)
    # By default what is out of range is NaN in both parts.
    return of_parts(
        *[
            bind(prim, v, indices, **params | {"fill_value": f})
            for v, f in zip((re, im), values, strict=True)
        ]
    )


@on_parts(take_rows_p)
def _take_rows(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    if not xs[0].is_packed or params["fill_value"] not in (None, 0):
        return _filled(prim, xs, params)
    return of_packed(bind(prim, xs[0].packed, xs[1], **params))


@on_parts(dynamic_slice_p)
def _dynamic_slice(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    x, *starts = xs
    if x.is_packed:
        sizes = (*params["slice_sizes"], 2)
        return of_packed(bind(prim, x.packed, *starts, 0, slice_sizes=sizes))
    return of_parts(*[bind(prim, v, *starts, **params) for v in x.parts])


# ---- writing ----


@on_parts(dynamic_update_slice_p)
def _dynamic_update_slice(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    x, u, *starts = xs
    if x.is_packed:
        return of_packed(bind(prim, x.packed, u.packed, *starts, 0))
    return of_parts(*[bind(prim, a, b, *starts) for a, b in zip(x.parts, u.parts)])


@on_parts(segment_sum_p)
def _segment_sum(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    return of_packed(bind(prim, xs[0].packed, xs[1], **params))


@on_parts(scatter_p)
def _scatter(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    operand, indices, updates = xs
    if params["kind"] == "mul":
        return _scattered_products(operand, indices, updates, params)
    if not operand.is_packed:
        parts = zip(operand.parts, updates.parts)
        return of_parts(*[bind(prim, a, indices, b, **params) for a, b in parts])
    numbers = _with_parts(params["dimension_numbers"], updates.aval.ndim)
    changed = {**params, "dimension_numbers": numbers}
    return of_packed(bind(prim, operand.packed, indices, updates.packed, **changed))


def _scattered_products(
    operand: Complex, indices: Any, updates: Complex, params: dict[str, Any]
) -> Complex:
    """The operand times the updates. Updates of one element form a queue; each round multiplies
    every element by the next of its queue, and there are as many rounds as the longest has."""
    kind, count = operand.aval, updates.aval.size
    if not count or not kind.size:
        return of_parts(*operand.parts)
    targets = _targets(kind, updates.aval, indices, params)
    number = _turns(targets)
    flat = lambda v, n: shape.reshape(v, (n,))
    u = [flat(v, count) for v in updates.parts]
    start = [flat(v, kind.size) for v in operand.parts]
    each = ScatterDimensionNumbers((), (0,), (0,))
    fixed = {"unique_indices": True, "indices_are_sorted": False, "mode": "fill"}
    at = shape.reshape(targets, (count, 1))

    def more(state: tuple[Any, ...]) -> Any:
        return ops.lt(state[0], state[1])

    def one(state: tuple[Any, ...]) -> tuple[Any, ...]:
        turn, last, *z = state
        now = ops.eq(number, shape.broadcast_in_dim(turn, (count,), ()))
        here = ops.select(shape.reshape(now, (count, 1)), at, -1)
        old = [_read(v, at) for v in z]
        new = multiplied((old[0], old[1]), (u[0], u[1]))
        written = [
            bind(scatter_p, v, here, w, kind="set", dimension_numbers=each, **fixed)
            for v, w in zip(z, new, strict=True)
        ]
        return (ops.add(turn, 1), last, *written)

    longest = bind(reduce_max_p, number, axes=(0,))
    first = full((), 0, dtypes.I32)
    _, _, *z = while_loop(more, one, (first, ops.add(longest, 1), *start))
    return of_parts(*[shape.reshape(v, kind.shape) for v in z])


def _read(v: Any, at: Any) -> Any:
    return bind(
        gather_p,
        v,
        at,
        dimension_numbers=GatherDimensionNumbers((), (0,), (0,)),
        slice_sizes=(1,),
        unique_indices=False,
        indices_are_sorted=False,
        mode="clip",
        fill_value=None,
    )


def _targets(kind: Aval, updates: Aval, indices: Any, params: dict[str, Any]) -> Any:
    """The position in the flattened operand that each element of the updates goes to, int32 (or
    int64 where it must); -1 for what is dropped."""
    dtype = dtypes.I32 if kind.size < 1 << 31 else dtypes.I64
    positions = shape.reshape(shape.iota(dtype, kind.size), kind.shape)
    numbers, mode = params["dimension_numbers"], params["mode"]
    found = bind(
        gather_p,
        positions,
        indices,
        dimension_numbers=inverse(numbers),
        slice_sizes=window_sizes(kind, updates, numbers),
        unique_indices=False,
        indices_are_sorted=False,
        mode=mode,
        fill_value=-1 if mode == "fill" else None,
    )
    return shape.reshape(found, (updates.size,))


def _turns(targets: Any) -> Any:
    """How many earlier elements have the same target, for each element (int32)."""
    (count,) = typeof(targets).shape
    position = shape.iota(dtypes.I32, count)
    ordered, order = bind(sort_p, targets, position, dimension=0, is_stable=True, num_keys=1)
    before = shape.pad(ordered, -2, [(1, -1, 0)])
    begins = ops.select(ops.ne(ordered, before), position, 0)
    first = bind(cummax_p, begins, axis=0, reverse=False)
    back = bind(sort_p, order, ops.sub(position, first), dimension=0, is_stable=True, num_keys=1)
    return back[1]
