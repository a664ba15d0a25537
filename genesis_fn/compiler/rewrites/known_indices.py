"""Gathers and scatters at indices that are known when the program is compiled.

A gather at indices that count is a slice. A scatter that writes most of an array, each element at
most once, is a gather from the updates at the inverse of its indices: nothing is sorted, and
nothing is filled with zeros first. Where sums meet, they become sums by segment of rows as long as
can be, in whose constant ids the sort is done already (`share_sorts`). What else is known spares
checks of the indices, and the sort of those that are all different.

A sum into zeros of a derivative keeps the sign of a zero that it adds nothing to, as sums of one
term do (`simplify`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from genesis_fn.compiler.known_values import KnownValues, is_zero
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.rewrites.one_per_row import one_per_row
from genesis_fn.compiler.rewrites.window_cells import (
    WindowCells,
    counts_of,
    placed_windows,
    run_of,
    window_cells,
)
from genesis_fn.compiler.simplify.rewriter import live_equations
from genesis_fn.core import dtypes
from genesis_fn.core.dtypes import BOOL, I32, I64
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.factories import full_p, zero
from genesis_fn.primitives.indexing.constants import MOST_CONSTANTS, constant_numbers, constant_p
from genesis_fn.primitives.indexing.gather import gather_p, take_rows_p
from genesis_fn.primitives.indexing.gather_dims import (
    GatherDimensionNumbers,
    ScatterDimensionNumbers,
)
from genesis_fn.primitives.indexing.scatter import scatter_p, segment_sum_p
from genesis_fn.primitives.shape import (
    broadcast_in_dim_p,
    concatenate_p,
    iota_p,
    reshape_p,
    rev_p,
    slice_p,
    transpose_p,
)

_FEW = 8  # cells for each update, beyond which a scatter into zeros stays one
_KEPT = 4  # elements for each one that is written, beyond which an array is updated in place


def known_indices(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with what is indexed by known numbers in cheaper forms."""
    if not any([e.prim in _RULES for e in jaxpr.eqns]) or not enabled("known_indices"):
        return jaxpr
    program = _Rewritten()
    new: dict[Any, Any] = {}
    for e in jaxpr.eqns:
        if any([type(i) is Var and i in new for i in e.ins]):
            e = e.replace(ins=[new.get(i, i) if type(i) is Var else i for i in e.ins])
        rule = _RULES.get(e.prim)
        found = None if rule is None else rule(program, e)
        if found is None:
            program.add(e)
        else:
            new[e.outs[0]] = found
    if not new:
        return jaxpr
    outs = [new.get(o, o) for o in jaxpr.outs]
    eqns = live_equations(program.eqns, outs)
    return Jaxpr(jaxpr.invars, eqns, outs, jaxpr.labels, jaxpr.name)


class _Rewritten:
    """The equations so far, and the values that they compute of no input."""

    def __init__(self) -> None:
        self.eqns: list[Eqn] = []
        self.values = KnownValues()

    def add(self, e: Eqn) -> None:
        """Append an equation."""
        self.eqns.append(e)
        self.values.producers.update(dict.fromkeys(e.outs, e))

    def make(self, prim: Primitive, ins: Sequence[Any], at: Eqn, **params: Any) -> Var:
        """The result of a new equation that stands for `at`."""
        avals = tuple([i.aval if type(i) is Var else i for i in ins])
        out = Var(prim.abstract(avals, params))
        self.add(Eqn(prim, list(ins), params, (out,), at.where, at.backward, at.numerics))
        return out

    def constant(self, values: np.ndarray, at: Eqn) -> Var:
        """An array of known numbers."""
        return self.make(constant_p, [], at, numbers=constant_numbers(values))

    def indices(self, x: Any) -> np.ndarray | None:
        """The values of indices, if they are known, few enough, and any."""
        if type(x) is not Var or not 0 < x.aval.size <= MOST_CONSTANTS:
            return None
        return self.values.of(x)

    def producer(self, x: Any) -> Eqn | None:
        """The equation that computes `x`."""
        return self.values.producers.get(x)

    def filling(self, x: Var) -> Any:
        """The number that every element of `x` is, or None."""
        e = self.producer(x)
        return e.params["value"] if e is not None and e.prim is full_p else None


def _reshaped(r: _Rewritten, x: Var, shape: Sequence[int], at: Eqn) -> Var:
    shape = tuple(shape)
    return x if x.aval.shape == shape else r.make(reshape_p, [x], at, shape=shape)


def _transposed(r: _Rewritten, x: Var, order: Sequence[int], at: Eqn) -> Var:
    order = tuple(order)
    if order == tuple(range(len(order))):
        return x
    return r.make(transpose_p, [x], at, permutation=order)


def _index_type(n: int) -> Any:
    return I32 if n < 2**31 else I64


# ---- gathers ----


def _gather(r: _Rewritten, e: Eqn) -> Var | None:
    x, indices = e.ins
    values = r.indices(indices)
    if values is None or type(x) is not Var or not e.outs[0].aval.size:
        return None
    rows = e.prim is take_rows_p
    if rows:
        values = values[..., None]
        window = tuple(range(indices.aval.ndim, e.outs[0].aval.ndim))
        numbers, sizes = GatherDimensionNumbers(window, (0,), (0,)), (1, *x.aval.shape[1:])
    else:
        numbers, sizes = e.params["dimension_numbers"], e.params["slice_sizes"]
    mode = e.params["mode"]
    starts, inside = placed_windows(values, x.aval.shape, numbers.start_index_map, sizes, mode)
    if not inside.all():
        return None
    found = _as_slice(r, e, x, starts, numbers, sizes)
    if found is not None:
        return found
    known = r.producer(indices)
    if mode == "promise_in_bounds" and known is not None and known.prim is constant_p:
        return None
    kind = _index_type(max(x.aval.shape))
    held = None if rows else _counted_indices(r, e, starts, kind)
    if held is None:
        held = r.constant((starts[..., 0] if rows else starts).astype(kind), e)
    params = {**e.params, "mode": "promise_in_bounds", "fill_value": None}
    return r.make(e.prim, [x, held], e, **params)


def _counted_indices(r: _Rewritten, e: Eqn, starts: np.ndarray, kind: Any) -> Var | None:
    """Index vectors that count as arithmetic, by which kernels read plainly, or None."""
    batch = starts.shape[:-1]
    columns: list[Var] = []
    for k in range(starts.shape[-1]):
        found = counts_of(starts[..., k])
        if found is None:
            return None
        first, steps = found
        total = r.make(full_p, [], e, value=first, shape=batch, dtype=kind)
        for d, step in enumerate(steps):
            if step:
                count = r.make(iota_p, [], e, dtype=kind, shape=batch, dimension=d)
                total = r.make(ew.add.prim, [total, r.make(ew.mul.prim, [count, step], e)], e)
        columns.append(_reshaped(r, total, (*batch, 1), e))
    if len(columns) == 1:
        return columns[0]
    return r.make(concatenate_p, columns, e, dimension=len(batch)) if columns else None


def _as_slice(
    r: _Rewritten,
    e: Eqn,
    x: Var,
    starts: np.ndarray,
    numbers: GatherDimensionNumbers,
    sizes: Sequence[int],
) -> Var | None:
    """A gather as a slice: indices along an axis of the operand count along one of the batch."""
    offset, collapsed, mapped, batching, _ = numbers
    batch = starts.shape[:-1]
    if batching:
        return None
    first, steps = [0] * x.aval.ndim, [1] * x.aval.ndim
    count, along = [*sizes], dict[int, int]()  # the operand's axis along each one of the batch
    for k, d in enumerate(mapped):
        run = run_of(starts[..., k])
        if run is None:
            return None
        axis, first[d], step = run
        if axis is None:
            continue
        if sizes[d] != 1 or axis in along:
            return None
        along[axis], steps[d], count[d] = d, step, batch[axis]
    if any([n > 1 and axis not in along for axis, n in enumerate(batch)]):
        return None
    back = [d for d in range(x.aval.ndim) if steps[d] < 0]
    low = [i + (n - 1) * s if s < 0 else i for i, n, s in zip(first, count, steps)]
    strides = [abs(s) for s in steps]
    limit = [i + (n - 1) * s + 1 for i, n, s in zip(low, count, strides)]
    if tuple(count) != x.aval.shape or any(s != 1 for s in strides):
        params = {"start": tuple(low), "limit": tuple(limit), "strides": tuple(strides)}
        x = r.make(slice_p, [x], e, **params)
    if back:
        x = r.make(rev_p, [x], e, dimensions=tuple(back))
    # The axes of the slice in the order of the result's, and then those of length 1 that it lacks.
    windows = iter([d for d in range(len(sizes)) if d not in collapsed])
    axes = iter(range(len(batch)))
    moving = set(along.values())
    order: list[int] = []
    for i in range(e.outs[0].aval.ndim):
        d = next(windows) if i in offset else along.get(next(axes))
        if d is not None and not (i in offset and d in moving):
            order.append(d)
    order += [d for d in range(len(sizes)) if d not in order]
    return _reshaped(r, _transposed(r, x, order, e), e.outs[0].aval.shape, e)


# ---- scatters ----


def _scatter(r: _Rewritten, e: Eqn) -> Var | None:
    x, indices, updates = e.ins
    if type(x) is not Var or type(indices) is not Var or type(updates) is not Var:
        return None
    if not updates.aval.size or not x.aval.size:
        return None
    values = r.indices(indices)
    if values is None:
        return _as_comparison(r, e, x, updates)
    numbers, mode = e.params["dimension_numbers"], e.params["mode"]
    cells = window_cells(x.aval, values, updates.aval, numbers, mode, MOST_CONSTANTS)
    if cells is None or not cells.grid:
        return None
    kind = e.params["kind"]
    unique = cells.is_unique
    found = None
    if unique or kind == "set":
        found = _as_gather(r, e, x, updates, cells, kind)
    elif kind == "add" and e.params["deterministic"] and dtypes.is_float(x.aval.dtype):
        found = _as_segments(r, e, x, updates, cells)
    if found is not None or not unique or e.params["unique_indices"]:
        return found
    return r.make(e.prim, e.ins, e, **{**e.params, "unique_indices": True})


def _as_comparison(r: _Rewritten, e: Eqn, x: Var, updates: Var) -> Var | None:
    """A scatter of one element to each row of an array that is filled with a number, as a choice
    between the two: it fuses, so that the array is never stored where a kernel reads it."""
    kind, filled, out = e.params["kind"], r.filling(x), e.outs[0].aval
    into_zeros = kind == "add" and is_zero(filled)
    if not into_zeros and (kind != "set" or filled is None) or updates.aval.size == 1:
        return None
    if out.dtype == BOOL and kind != "set":
        return None
    found = one_per_row(e, r.producer, r.indices)
    if found is None:
        return None
    others = [d for d in range(out.ndim) if d != found.along]
    axes = [a for a in found.axes if a is not None]
    dims = tuple([d for d, a in zip(others, found.axes) if a is not None])

    def spread(v: Var) -> Var:
        """An array of one number for each row, along the rows."""
        shape = updates.aval.shape
        kept = sorted(axes)
        v = _reshaped(r, v, [shape[a] for a in kept], e)
        v = _transposed(r, v, [kept.index(a) for a in axes], e)
        return r.make(broadcast_in_dim_p, [v], e, shape=out.shape, dims=dims)

    at, length = found.at, out.shape[found.along]
    if length - 1 > dtypes.iinfo(at.aval.dtype).max:
        at = r.make(ew.convert_p, [at], e, dtype=_index_type(length))
    here = r.make(iota_p, [], e, dtype=at.aval.dtype, shape=out.shape, dimension=found.along)
    chosen = r.make(ew.eq.prim, [here, spread(at)], e)
    number = zero(out.dtype) if into_zeros else filled
    read = r.make(ew.select_p, [chosen, spread(updates), number], e)
    if into_zeros and not e.backward and dtypes.is_float(out.dtype):
        return r.make(ew.add.prim, [read, 0.0], e)  # 0 + -0 is 0
    return read


def _segment_sum(r: _Rewritten, e: Eqn) -> Var | None:
    data, ids = e.ins
    values, out = r.indices(ids), e.outs[0].aval
    if values is None or type(data) is not Var or not data.aval.size or not out.size:
        return None
    window = tuple(range(ids.aval.ndim, data.aval.ndim))
    numbers = ScatterDimensionNumbers(window, (0,), (0,))
    mode = e.params["mode"]
    cells = window_cells(out, values[..., None], data.aval, numbers, mode, MOST_CONSTANTS)
    if cells is None:
        return None
    if cells.is_unique and cells.grid:
        found = _as_gather(r, e, None, data, cells, "add")
        if found is not None:
            return found
    known = r.producer(ids)
    if mode == "fill" and known is not None and known.prim is constant_p:
        return None
    return _summed(r, e, data, cells)


def _as_gather(
    r: _Rewritten, e: Eqn, x: Var | None, updates: Var, cells: WindowCells, kind: str
) -> Var | None:
    """A scatter into `x`, None for zeros, as a gather from the updates; None where it would write
    much more than the scatter."""
    out = e.outs[0].aval
    filled = 0 if x is None else r.filling(x)
    into_zeros = kind == "add" and is_zero(filled)
    filling = into_zeros or (kind == "set" and filled is not None)
    if cells.cell.size * _FEW < cells.count if filling else updates.aval.size * _KEPT < out.size:
        return None
    if out.dtype == BOOL and kind != "set":
        return None
    last = cells.last_update()
    hit = last >= 0
    everywhere = bool(hit.all())
    number = 0 if into_zeros else filled if filling else None
    read = _read_updates(r, e, updates, cells, last, number)
    if into_zeros and not e.backward and dtypes.is_float(out.dtype):
        return r.make(ew.add.prim, [read, 0.0], e)  # 0 + -0 is 0
    if filling:
        return read
    assert x is not None
    combined = read if kind == "set" else r.make(getattr(ew, kind).prim, [x, read], e)
    if everywhere:
        return combined
    known = r.constant(hit, e)
    chosen = r.make(broadcast_in_dim_p, [known], e, shape=out.shape, dims=cells.dims)
    return r.make(ew.select_p, [chosen, combined, x], e)


def _read_updates(
    r: _Rewritten, e: Eqn, updates: Var, cells: WindowCells, last: np.ndarray, number: Any
) -> Var:
    """For each element of the operand the update at `last`, and `number` where there is none (any
    update, if it is None)."""
    grid, missing = cells.grid, last < 0
    lengths = [updates.aval.shape[d] for d in grid]
    positions = np.where(missing, 0, last)
    if grid == tuple(range(grid[0], grid[0] + len(grid))):  # one index for all of the grid
        shape = updates.aval.shape
        total = math.prod(lengths)
        shape = (*shape[: grid[0]], total, *shape[grid[-1] + 1 :])
        updates, grid, lengths = _reshaped(r, updates, shape, e), grid[:1], [total]
    vectors = np.stack(np.unravel_index(positions, lengths), -1)
    fills = number is not None and bool(missing.any())
    if fills:
        vectors[missing, 0] = lengths[0]  # out of bounds
    numbers = GatherDimensionNumbers(cells.whole, tuple(sorted(grid)), tuple(grid))
    sizes = tuple([1 if d in grid else n for d, n in enumerate(updates.aval.shape)])
    return r.make(
        gather_p,
        [updates, r.constant(vectors.astype(_index_type(max(lengths) + 1)), e)],
        e,
        dimension_numbers=numbers,
        slice_sizes=sizes,
        unique_indices=not fills and not bool(missing.any()),
        indices_are_sorted=False,
        mode="fill" if fills else "promise_in_bounds",
        fill_value=number if fills else None,
    )


def _as_segments(r: _Rewritten, e: Eqn, x: Var, updates: Var, cells: WindowCells) -> Var | None:
    """A sum of floats in which windows meet as a sum by segment: rows are the dimensions that
    windows take whole, which the updates have last then."""
    zeros = is_zero(r.filling(x))
    if not cells.whole or not zeros and (x.aval.dtype.itemsize < 4 or _writes_little(x, updates)):
        return None
    lengths = [updates.aval.shape[d] for d in cells.grid]
    rest = [d for d in range(updates.aval.ndim) if d not in cells.grid]
    rows = _transposed(r, updates, (*cells.grid, *rest), e)
    rows = _reshaped(r, rows, (*lengths, *[updates.aval.shape[d] for d in rest]), e)
    summed = _summed(r, e, rows, cells)
    summed = _reshaped(r, summed, (*cells.shape, *summed.aval.shape[1:]), e)
    dims = (*cells.dims, *cells.whole)
    summed = _transposed(r, summed, [dims.index(d) for d in range(len(dims))], e)
    return summed if zeros else r.make(ew.add.prim, [x, summed], e)


def _writes_little(x: Var, updates: Var) -> bool:
    return updates.aval.size * _KEPT < x.aval.size


def _summed(r: _Rewritten, e: Eqn, data: Var, cells: WindowCells) -> Var:
    """The sums of the rows that go to each cell. Dropped rows have an id beyond the last."""
    ids = np.where(cells.cell < 0, cells.count, cells.cell)
    flat = ids.reshape(-1)
    return r.make(
        segment_sum_p,
        [data, r.constant(ids.astype(_index_type(cells.count + 1)), e)],
        e,
        num_segments=cells.count,
        indices_are_sorted=bool((flat[1:] >= flat[:-1]).all()),
        unique_indices=cells.is_unique,
        deterministic=e.params["deterministic"],
        mode="fill",
    )


_RULES: dict[Primitive, Callable[[_Rewritten, Eqn], Var | None]] = {
    gather_p: _gather, take_rows_p: _gather, scatter_p: _scatter, segment_sum_p: _segment_sum,
}  # fmt: skip
