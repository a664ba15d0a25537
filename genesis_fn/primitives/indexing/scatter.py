"""Scatter: windows written, added, multiplied or compared into an array at positions that are
values, and its common case, sums over segments. A gather and an adding scatter are each other's
transposes.

Where windows overlap, a set keeps the last in row-major order of the batch dimensions; the others
combine all. Sums and products of 16-bit floats are taken in float32 and rounded once.

A sum is deterministic, or, with the parameter `deterministic=False`, may be taken in another order
in every run. What adds on behalf of a derivative does as the setting says where it is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.configuration import config
from genesis_fn.core.primitive import Primitive, bind, is_linear, typeof
from genesis_fn.core.types.annotations import Array
from genesis_fn.primitives.elementwise import convert, div, eq, neg, select
from genesis_fn.primitives.factories import (
    PRIM,
    describe,
    full,
    instantiate,
    move_batch,
    scale,
    zero_of,
    zeros,
)
from genesis_fn.primitives.indexing.gather import gather_p, shift_dims, take_rows, take_rows_p
from genesis_fn.primitives.indexing.gather_dims import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
    canonical,
    inverse,
    mode_name,
    window_sizes,
    windowed_shape,
)
from genesis_fn.primitives.shape import broadcast_in_dim, expand_dims, iota, reshape


def _in_fixed_order(deterministic: bool | None) -> bool:
    """Whether sums have one order: what is asked for, or for None the setting."""
    return config.current().deterministic if deterministic is None else bool(deterministic)


# ---- scatter ----


def _scatter_shape(
    operand: Aval,
    indices: Aval,
    updates: Aval,
    *,
    kind: str,
    dimension_numbers: ScatterDimensionNumbers,
    unique_indices: bool,
    indices_are_sorted: bool,
    deterministic: bool,
    mode: str,
) -> Aval:
    name = "scatter" if kind == "set" else f"scatter_{kind}"
    window = dimension_numbers.update_window_dims
    rank = max(indices.ndim - 1, 0) + len(window)
    if updates.ndim != rank or any(not 0 <= d < rank for d in window):
        raise errors.ShapeError(
            f"{name}: updates {updates} must have {rank} dimensions: those of the indices "
            f"{indices} but the last, and update_window_dims {window}"
        )
    if operand.dtype != updates.dtype:
        raise errors.DTypeError(f"{name}: dtypes differ: {describe((operand, updates))}")
    if kind != "set" and dtypes.is_key(operand.dtype):
        raise errors.DTypeError(
            f"{name} is not for random keys, got {describe((operand, updates))}; "
            f"{dtypes.KEY_REMEDY}"
        )
    if kind in ("min", "max") and dtypes.is_complex(operand.dtype):
        raise errors.DTypeError(f"{name} takes real numbers, got {operand}")
    _, inserted, _, batching, _ = dimension_numbers
    free = len([d for d in range(operand.ndim) if d not in inserted and d not in batching])
    if free != len(window):
        raise errors.ShapeError(
            f"{name}: {free} dimensions of {operand} are neither inserted nor batching, but "
            f"update_window_dims {window} has {len(window)}"
        )
    sizes = window_sizes(operand, updates, dimension_numbers)
    expected = windowed_shape(name, operand, indices, dimension_numbers, sizes)
    if expected != updates.shape:
        raise errors.ShapeError(
            f"{name}: updates {updates} must have shape {list(expected)} for indices {indices}"
        )
    return operand


def _read_back(
    x: Any, indices: Any, updates: Aval, numbers: ScatterDimensionNumbers, mode: str
) -> Any:
    """Gather what the scatter with these numbers wrote into `x`: zero for windows that were
    dropped."""
    return bind(
        gather_p,
        x,
        indices,
        dimension_numbers=inverse(numbers),
        slice_sizes=window_sizes(typeof(x), updates, numbers),
        unique_indices=False,
        indices_are_sorted=False,
        mode=mode,
        fill_value=0 if mode == "fill" else None,
    )


def _scatter_linearize(nonzero: Any, operand: Any, indices: Any, updates: Any, **params: Any):
    out = bind(scatter_p, operand, indices, updates, **params)
    rule = {"set": _set_tangent, "add": _add_tangent, "mul": _mul_tangent}.get(
        params["kind"], _extremum_tangent
    )
    tangent = rule(out, operand, indices, updates, params)

    def apply(tx: Any, _: Any, tu: Any) -> Any:
        return None if tx is None and tu is None else tangent(tx, tu)

    return out, apply


def _set_tangent(
    out: Any, x: Any, indices: Any, u: Any, params: dict[Any, Any]
) -> Callable[..., Any]:
    avals = typeof(x), typeof(u)
    return lambda tx, tu: bind(
        scatter_p, instantiate(tx, avals[0]), indices, instantiate(tu, avals[1]), **params
    )


def _add_tangent(
    out: Any, x: Any, indices: Any, u: Any, params: dict[Any, Any]
) -> Callable[..., Any]:
    aval = typeof(x)
    return lambda tx, tu: (
        tx if tu is None else bind(scatter_p, instantiate(tx, aval), indices, tu, **params)
    )


def _mul_tangent(
    out: Any, x: Any, indices: Any, u: Any, params: dict[Any, Any]
) -> Callable[..., Any]:
    """x' prod(u) + x sum_j u'_j prod(the other u at the position of j)."""
    kind, mode = typeof(x), params["mode"]
    summed = {**params, "kind": "add"}

    def others() -> Any:
        if _are_apart(indices, params):
            return _read_back(x, indices, typeof(u), params["dimension_numbers"], mode)
        # Divide the product of the nonzero factors by u_j, and count the zeros.
        zero = eq(u, 0)
        factors = select(zero, 1, u)
        product = bind(scatter_p, x, indices, factors, **params)
        count = bind(scatter_p, zeros(kind), indices, convert(zero, kind.dtype), **summed)
        product, count = [
            _read_back(v, indices, typeof(u), params["dimension_numbers"], mode)
            for v in (product, count)
        ]
        alone = eq(count, convert(zero, kind.dtype))
        return select(alone, div(product, factors), 0)

    def tangent(tx: Any, tu: Any) -> Any:
        first = None if tx is None else bind(scatter_p, tx, indices, u, **params)
        if tu is None:
            return first
        return bind(scatter_p, instantiate(first, kind), indices, scale(tu, others()), **summed)

    return tangent


def _extremum_tangent(
    out: Any, x: Any, indices: Any, u: Any, params: dict[Any, Any]
) -> Callable[..., Any]:
    """The tangents of the operand and the updates that equal the result, averaged."""
    kind, mode = typeof(x), params["mode"]
    numbers, summed = params["dimension_numbers"], {**params, "kind": "add"}

    def weights() -> tuple[Any, Any]:
        mine = convert(eq(x, out), kind.dtype)
        theirs = convert(eq(u, _read_back(out, indices, typeof(u), numbers, mode)), kind.dtype)
        count = bind(scatter_p, mine, indices, theirs, **summed)
        shares = _read_back(count, indices, typeof(u), numbers, mode)
        # A dropped window reads a share of 0, by which nothing may be divided.
        return div(mine, count), select(eq(shares, 0), 0, div(theirs, shares))

    def tangent(tx: Any, tu: Any) -> Any:
        keep, take = weights()
        first = zeros(kind) if tx is None else scale(tx, keep)
        return first if tu is None else bind(scatter_p, first, indices, scale(tu, take), **summed)

    return tangent


def _scatter_transpose(
    ct: Any, operand: Any, indices: Any, updates: Any, **params: Any
) -> list[Any]:
    kind, mode = params["kind"], params["mode"]
    numbers = params["dimension_numbers"]
    of_updates = updates.aval if is_linear(updates) else typeof(updates)
    back = None
    if is_linear(operand):
        if kind == "add":
            back = ct
        elif kind == "mul":
            back = bind(scatter_p, ct, indices, updates, **params)
        else:  # set: what was overwritten has no derivative
            back = bind(scatter_p, ct, indices, zeros(of_updates), **params)
    if not is_linear(updates):
        return [back, None, None]
    read = _read_back(ct, indices, of_updates, numbers, mode)
    # Overlapping windows overwrite each other: only the one that the result holds gets a cotangent.
    if kind == "set" and not _are_apart(indices, params):
        read = select(
            _surviving_updates(typeof(ct), indices, of_updates, params), read, zero_of(read)
        )
    return [back, None, read]


def _are_apart(indices: Any, params: dict[Any, Any]) -> bool:
    """Whether no two windows overlap: as promised, or since there is one for each operand."""
    batching = params["dimension_numbers"].scatter_indices_batching_dims
    counts = [n for i, n in enumerate(typeof(indices).shape[:-1]) if i not in batching]
    return params["unique_indices"] or math.prod(counts) == 1


def _surviving_updates(operand: Aval, indices: Any, updates: Aval, params: dict[Any, Any]) -> Any:
    """Which elements of the updates a set leaves in the result: scatter their ids and gather
    them."""
    window = params["dimension_numbers"].update_window_dims
    batch = [n for i, n in enumerate(updates.shape) if i not in window]
    count = math.prod(batch)
    id_type = dtypes.I32 if count < 2**31 else dtypes.I64
    positions = [i for i in range(updates.ndim) if i not in window]
    ids = broadcast_in_dim(reshape(iota(id_type, count), batch), updates.shape, positions)
    written = bind(scatter_p, full(operand.shape, -1, id_type), indices, ids, **params)
    return eq(
        ids, _read_back(written, indices, updates, params["dimension_numbers"], params["mode"])
    )


def _scatter_batch(
    size: int,
    xs: Sequence[Any],
    dims: Sequence[int | None],
    *,
    dimension_numbers: ScatterDimensionNumbers,
    **params: Any,
) -> Any:
    (operand, indices, updates), (operand_dim, indices_dim, updates_dim) = xs, dims
    window, inserted, mapped, batching, index_batching = dimension_numbers
    operand = move_batch(operand, operand_dim, 0, size)
    updates = move_batch(updates, updates_dim, 0, size)
    if indices_dim is None:
        numbers = ScatterDimensionNumbers(
            (0, *shift_dims(window)),
            shift_dims(inserted),
            shift_dims(mapped),
            shift_dims(batching),
            index_batching,
        )
    else:
        indices = move_batch(indices, indices_dim, 0, size)
        numbers = ScatterDimensionNumbers(
            shift_dims(window),
            shift_dims(inserted),
            shift_dims(mapped),
            (0, *shift_dims(batching)),
            (0, *shift_dims(index_batching)),
        )
        params.update(indices_are_sorted=False)
    return bind(scatter_p, operand, indices, updates, dimension_numbers=numbers, **params), 0


def _scatter_visits(
    operand: Aval, indices: Aval, updates: Aval, **params: Any
) -> tuple[Aval, list[Any]]:
    numbers = params["dimension_numbers"]
    sizes = window_sizes(operand, updates, numbers)
    return operand, [(d, sizes[d]) for d in numbers.scatter_dims_to_operand_dims]


scatter_p = Primitive(
    "scatter",
    _scatter_shape,
    linearize=_scatter_linearize,
    transpose=_scatter_transpose,
    batch=_scatter_batch,
    updates=0,
    visits=_scatter_visits,
    weak=slice(1),
    flops=lambda ins, outs, **_: ins[-1].size,
)
PRIM["scatter"] = scatter_p


def adds_rows(operand: Aval, indices: Aval, updates: Aval, params: dict[Any, Any]) -> bool:
    """Whether a scatter is `segment_sum` but for what it adds to: sums of whole rows along axis
    0."""
    numbers = params["dimension_numbers"]
    sizes = window_sizes(operand, updates, numbers)
    return params["kind"] == "add" and _reads_rows(
        operand, indices.shape[:-1], GatherDimensionNumbers(*inverse(numbers)), sizes
    )


def _reads_rows(
    operand: Aval, batch: Sequence[int], numbers: GatherDimensionNumbers, sizes: Sequence[int]
) -> bool:
    """Whether a gather is `take_rows`: whole rows along axis 0, last in the result."""
    positions = tuple(range(len(batch), len(batch) + operand.ndim - 1))
    rows = GatherDimensionNumbers(positions, (0,), (0,))
    return numbers == rows and tuple(sizes[1:]) == operand.shape[1:]


def _gather_transpose(ct: Any, operand: Any, indices: Any, **params: Any) -> list[Any]:
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    batch = typeof(indices).shape[:-1]
    if _reads_rows(operand.aval, batch, numbers, sizes):  # the transpose of take_rows
        rows = segment_sum(
            ct,
            reshape(indices, batch),
            operand.aval.shape[0],
            indices_are_sorted=params["indices_are_sorted"],
            unique_indices=params["unique_indices"],
            mode=params["mode"],
        )
        return [rows, None]
    return [
        bind(
            scatter_p,
            zeros(operand.aval),
            indices,
            ct,
            kind="add",
            dimension_numbers=inverse(numbers),
            unique_indices=params["unique_indices"],
            indices_are_sorted=params["indices_are_sorted"],
            deterministic=_in_fixed_order(None),
            mode=params["mode"],
        ),
        None,
    ]


gather_p.transpose = _gather_transpose  # here, since this module imports gather's


def _scatter_function(kind: str, doc: str) -> Callable[..., Any]:
    def call(
        operand: Any,
        scatter_indices: Any,
        updates: Any,
        dimension_numbers: ScatterDimensionNumbers,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        deterministic: bool | None = None,
        mode: str | GatherScatterMode | None = None,
    ) -> Any:
        return bind(
            scatter_p,
            operand,
            scatter_indices,
            updates,
            kind=kind,
            dimension_numbers=canonical(dimension_numbers),
            unique_indices=bool(unique_indices),
            indices_are_sorted=bool(indices_are_sorted),
            deterministic=_in_fixed_order(deterministic),
            mode=mode_name(mode),
        )

    call.__name__ = call.__qualname__ = "scatter" if kind == "set" else f"scatter_{kind}"
    call.__doc__ = (
        f"{doc}\n\n"
        "    `dimension_numbers` maps dimensions of windows and indices to those of the operand;\n"
        "    see ScatterDimensionNumbers.\n"
        "    `mode` says what an index out of bounds does; None drops its window.\n"
        "    `unique_indices` promises that no two windows overlap.\n"
        "    `deterministic` is of sums, None as the setting says: False allows another order in\n"
        "    every run.\n"
    )
    return call


scatter = _scatter_function(
    "set", "Return `operand` with the windows `updates` in place of its own values."
)
scatter_add = _scatter_function("add", "Return `operand` with the windows `updates` added.")
scatter_mul = _scatter_function("mul", "Return `operand` multiplied by the windows `updates`.")
scatter_min = _scatter_function("min", "Return the minimum of `operand` and the windows `updates`.")
scatter_max = _scatter_function("max", "Return the maximum of `operand` and the windows `updates`.")


def scatter_sub(
    operand: Array,
    scatter_indices: Array,
    updates: Array,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    deterministic: bool | None = None,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Return `operand` with the windows `updates` subtracted; arguments as in `scatter_add`."""
    return scatter_add(
        operand,
        scatter_indices,
        neg(updates),
        dimension_numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        deterministic=deterministic,
        mode=mode,
    )


# ---- sums over segments ----


def _segment_shape(
    data: Aval,
    segment_ids: Aval,
    *,
    num_segments: int,
    indices_are_sorted: bool,
    unique_indices: bool,
    deterministic: bool,
    mode: str,
) -> Aval:
    if not dtypes.is_integer(segment_ids.dtype):
        raise errors.DTypeError(f"segment_sum: segment ids must be integers, got {segment_ids}")
    if data.shape[: segment_ids.ndim] != segment_ids.shape:
        raise errors.ShapeError(
            f"segment_sum: data {data} must start with the dimensions of the ids {segment_ids}"
        )
    if num_segments < 0:
        raise errors.ShapeError(f"segment_sum: num_segments {num_segments} must not be negative")
    return data.update((num_segments, *data.shape[segment_ids.ndim :]))


def _segment_linearize(nonzero: Any, data: Any, segment_ids: Any, **params: Any) -> Any:
    out = bind(segment_sum_p, data, segment_ids, **params)
    return out, lambda t, _: None if t is None else bind(segment_sum_p, t, segment_ids, **params)


def _segment_batch(
    size: int,
    xs: Sequence[Any],
    dims: Sequence[int | None],
    *,
    num_segments: int,
    indices_are_sorted: bool,
    **params: Any,
) -> Any:
    (data, ids), (data_dim, ids_dim) = xs, dims
    if ids_dim is None:
        data = move_batch(data, data_dim, len(typeof(ids).shape), size)
        return segment_sum(
            data, ids, num_segments, indices_are_sorted=indices_are_sorted, **params
        ), 1
    data, ids = move_batch(data, data_dim, 0, size), move_batch(ids, ids_dim, 0, size)
    kind, count = typeof(data), len(typeof(ids).shape)
    result = kind.update((size, num_segments, *kind.shape[count:]))
    if not num_segments:
        return zeros(result), 0
    numbers = ScatterDimensionNumbers(tuple(range(count, kind.ndim)), (1,), (1,), (0,), (0,))
    return scatter_add(zeros(result), expand_dims(ids, (-1,)), data, numbers, **params), 0


def _segment_transpose(ct: Any, data: Any, segment_ids: Any, **params: Any) -> list[Any]:
    if not params["num_segments"]:
        return [zeros(data.aval), None]
    return [take_rows(ct, segment_ids, mode=params["mode"], fill_value=0), None]


segment_sum_p = Primitive(
    "segment_sum",
    _segment_shape,
    linearize=_segment_linearize,
    transpose=_segment_transpose,
    batch=_segment_batch,
    visits=lambda data, ids, **params: (_segment_shape(data, ids, **params), [(0, 1)]),
    weak=slice(1),
    flops=lambda ins, outs, **_: ins[0].size,
)
PRIM["segment_sum"] = segment_sum_p


def segment_sum(
    data: Array,
    segment_ids: Array,
    num_segments: int,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    deterministic: bool | None = None,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Sum data[i] over all i with segment_ids[i] == s, for each s < num_segments.

    `segment_ids` may have several dimensions, the first ones of `data`. 16-bit floats are added in
    float32. Modes as in `scatter`: None drops what belongs to no segment. `deterministic=False`
    allows another order of the sums in every run; None is as the setting says.
    """
    return bind(
        segment_sum_p,
        data,
        segment_ids,
        num_segments=int(num_segments),
        indices_are_sorted=bool(indices_are_sorted),
        unique_indices=bool(unique_indices),
        deterministic=_in_fixed_order(deterministic),
        mode=mode_name(mode),
    )


take_rows_p.transpose = lambda ct, table, indices, *, mode, fill_value: [
    segment_sum(ct, indices, table.aval.shape[0], mode=mode),
    None,
]
