"""Slices, gathers and scatters at positions that are values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Eqn
from genesis_fn.core.primitive import bind, typeof
from genesis_fn.core.sharding.layout import Layout, part_shape, parts
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.indexing.constants import constant_p
from genesis_fn.primitives.indexing.gather import gather_p, take_rows, take_rows_p
from genesis_fn.primitives.indexing.indexing import dynamic_slice_p, dynamic_update_slice_p
from genesis_fn.primitives.indexing.scatter import scatter_p, segment_sum_p
from genesis_fn.primitives.shape import broadcast_in_dim, iota
from genesis_fn.transforms.batching.collectives import axis_index
from genesis_fn.transforms.sharding.partitioner import Placed, moved, partitions, placed
from genesis_fn.transforms.sharding.rules.elementwise import on_the_first
from genesis_fn.transforms.sharding.rules.letters import (
    Divided,
    Letters,
    by_letters,
    divisions,
    layout_of,
    untouched,
)

# ---- constants ----


@partitions(constant_p)
def _constant(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Every device has all of it."""
    return placed(bind(constant_p, **e.params), e, [((),) * e.outs[0].aval.ndim])


# ---- slices ----


@partitions(dynamic_slice_p)
def _slice(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """A dimension that the slice takes whole is divided as it is: its start is 0, whatever is
    said."""
    x, sizes = operands[0], e.params["slice_sizes"]
    at = _taken_whole(x.aval.shape, sizes)

    def of_parts(divided: Divided) -> dict[str, Any]:
        return {"slice_sizes": part_shape(sizes, mesh, layout_of(sizes, at, divided))}

    return by_letters(mesh, e, operands, [at, *[()] * len(operands[1:])], [at], of_parts)


@partitions(dynamic_update_slice_p)
def _update(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    x, update = operands[:2]
    at = _taken_whole(x.aval.shape, update.aval.shape)
    return by_letters(mesh, e, operands, [at, at, *[()] * len(operands[2:])], [at])


def _taken_whole(shape: tuple[int, ...], sizes: tuple[int, ...]) -> Letters:
    return untouched(len(shape), [i for i, (n, m) in enumerate(zip(shape, sizes)) if n != m])


# ---- windows ----


def _window_letters(e: Eqn, sizes: tuple[int, ...]) -> tuple[list[Hashable], ...]:
    """The letters of operand, indices and windows: a window dimension that is taken whole, and the
    batch dimensions of the indices."""
    operand, indices = [i.aval for i in e.ins[:2]]
    window, collapsed, mapped, batching, index_batching = e.params["dimension_numbers"]
    of_indices: list[Hashable] = [("batch", i) for i in range(indices.ndim - 1)]
    of_operand: list[Hashable] = [None] * operand.ndim
    for d, i in zip(batching, index_batching):
        of_operand[d] = of_indices[i]
    free = [d for d in range(operand.ndim) if d not in (*collapsed, *batching)]
    for d in free:
        if sizes[d] == operand.shape[d] and d not in mapped:
            of_operand[d] = ("window", d)
    within, rest = iter([of_operand[d] for d in free]), iter(of_indices)
    ndim = len(of_indices) + len(window)
    of_windows = [next(within) if i in window else next(rest) for i in range(ndim)]
    return of_operand, [*of_indices, None], of_windows


@partitions(gather_p)
def _gather(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    sizes = e.params["slice_sizes"]
    x, indices, windows = _window_letters(e, sizes)

    def of_parts(divided: Divided) -> dict[str, Any]:
        lengths = [n // parts(mesh, divided.get(at, ())) if n > 1 else n for n, at in zip(sizes, x)]
        return {"slice_sizes": tuple(lengths)}

    return by_letters(mesh, e, operands, [x, indices], [windows], of_parts)


@partitions(scatter_p)
def _scatter(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Windows that are added may be divided among devices: the first one adds to the operand,
    others to zeros, and the sum is due. Otherwise every device writes all windows."""
    operand, _, updates = [i.aval for i in e.ins]
    numbers = e.params["dimension_numbers"]
    window, inserted, _, batching, index_batching = numbers
    lengths = iter([updates.shape[d] for d in window])
    sizes = [1 if d in (*inserted, *batching) else next(lengths) for d in range(operand.ndim)]
    x, indices, windows = _window_letters(e, tuple(sizes))
    unshared = {("batch", i) for i in range(len(indices) - 1) if i not in index_batching}
    if e.params["kind"] != "add":
        indices = [None if at in unshared else at for at in indices]
        windows = [None if at in unshared else at for at in windows]
        return by_letters(mesh, e, operands, [x, indices, windows], [x])
    order = sorted(unshared)
    divided = divisions(mesh, operands, [x, indices, windows], order)
    if not any(divided.get(at) for at in unshared):
        return by_letters(mesh, e, operands, [x, indices, windows], [x])
    base = operands[0]
    layout = layout_of(operand.shape, x, divided)
    axes = tuple([n for at in order for n in divided.get(at, ())])
    own = on_the_first(moved(base, mesh, layout).part, axes)
    operands = [Placed(own, layout, operand), *operands[1:]]
    return by_letters(mesh, e, operands, [x, indices, windows], [x], first=order)


# ---- rows of a table ----


@partitions(take_rows_p)
def _take(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """A table whose rows are divided is gathered. One that is larger than the rows taken is not:
    each device takes the rows that it has, and zeros for others, and the sum is due. Where the
    table's axes divide the indices too, every device takes rows for all, and the sums are
    scattered."""
    table, indices = operands
    columns: Letters = [("column", i) for i in range(1, table.aval.ndim)]
    places: Letters = [("place", i) for i in range(indices.aval.ndim)]
    split = table.layout[0]
    taken = {n for axes in indices.layout for n in axes}
    others = [n for n in taken if n not in split]
    rows = e.outs[0].aval.size // parts(mesh, others)
    # Rows for all are written by every device, then sent: twice the bytes of a table's.
    larger = table.aval.size > (rows if taken.isdisjoint(split) else 2 * rows)
    fills = e.params["mode"] == "fill" and e.params["fill_value"] != 0
    if not split or not larger or fills or not (taken.isdisjoint(split) or taken >= {*split}):
        ins = [[None, *columns], places]
        return by_letters(mesh, e, operands, ins, [[*places, *columns]], first=places)
    ins = [["row", *columns], places]
    apart = tuple([tuple([n for n in axes if n in others]) for axes in indices.layout])
    pair = [table, moved(indices, mesh, apart)]
    (result,) = _of_rows_held(mesh, e, pair, ins, [*places, *columns])
    if taken.isdisjoint(split):
        return [result]
    return [moved(result, mesh, (*indices.layout, *result.layout[indices.aval.ndim :]))]


def _of_rows_held(
    mesh: Mesh, e: Eqn, operands: list[Any], ins: Sequence[Letters], out: Letters
) -> list[Placed]:
    table, indices = operands
    divided = divisions(mesh, operands, ins, first=[*ins[1], "row"])
    table, indices = [
        moved(x, mesh, layout_of(x.aval.shape, at, divided)) for x, at in zip(operands, ins)
    ]
    count, axes = table.aval.shape[0], divided["row"]
    own = count // parts(mesh, axes)
    chosen = indices.part
    if e.params["mode"] == "clip":
        chosen = ops.max(ops.min(_signed(chosen), count - 1), 0)
    elif e.params["mode"] == "check":  # against the whole table, of which every device has a part
        chosen = take_rows(iota(dtypes.I32 if count < 2**31 else dtypes.I64, count), chosen)
    here = _shifted(chosen, axes, own)
    part = bind(take_rows_p, table.part, here, mode="fill", fill_value=0)
    return placed(part, e, [layout_of(e.outs[0].aval.shape, out, divided)], axes)


def _shifted(indices: Any, axes: tuple[Hashable, ...], own: int) -> Any:
    """Indices counted from the first of the `own` rows that this device holds; -1 for others."""
    indices = _signed(indices)
    start = ops.convert(ops.mul(axis_index(axes), own), typeof(indices).dtype)
    here = ops.sub(indices, broadcast_in_dim(start, typeof(indices).shape, ()))
    inside = ops.bitwise_and(ops.ge(here, 0), ops.lt(here, own))
    return ops.select(inside, here, -1)


def _signed(indices: Any) -> Any:
    """Indices in a type that has -1 and every position."""
    wide = typeof(indices).dtype.itemsize == 8
    return ops.convert(indices, dtypes.I64 if wide else dtypes.I32)


@partitions(segment_sum_p)
def _segments(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Rows that are divided are summed by each device, and the sum is due. Where a part of the
    segments is wanted, a device sums those rows alone that belong to them."""
    data, ids = operands
    rows = ids.aval.ndim
    places: Letters = [("place", i) for i in range(rows)]
    columns: Letters = [("column", i) for i in range(rows, data.aval.ndim)]
    ins, out = [[*places, *columns], places], [None, *columns]
    (result,) = by_letters(mesh, e, operands, ins, [out], first=places)
    result.remade = _part_of_segments(mesh, e, operands, ins, result)
    return [result]


def _part_of_segments(
    mesh: Mesh, e: Eqn, operands: list[Any], ins: Sequence[Letters], result: Placed
) -> Callable[[Layout], Placed | None]:
    def made(wanted: Layout) -> Placed | None:
        count, taken = e.params["num_segments"], {n for at in result.layout for n in at}
        axes = tuple([n for n in wanted[0] if n not in (*taken, *result.due)])
        if not axes or axes != wanted[0] or count % parts(mesh, axes):
            return None
        divided = divisions(mesh, operands, ins, first=ins[1])
        data, ids = [
            moved(x, mesh, layout_of(x.aval.shape, at, divided)).part
            for x, at in zip(operands, ins)
        ]
        own = count // parts(mesh, axes)
        here = _shifted(ids, axes, own)
        changed = {
            "num_segments": own,
            "indices_are_sorted": False,
            "unique_indices": False,
            "mode": "fill",
        }
        part = bind(segment_sum_p, data, here, **{**e.params, **changed})
        return Placed(part, (axes, *result.layout[1:]), result.aval, result.due)

    return made
