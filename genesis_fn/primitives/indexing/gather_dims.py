"""Windows of an array at positions that are values: the geometry that gather and scatter share.

A gather reads, and a scatter writes, one window of the operand per index vector. Their dimension
numbers are JAX's, and mirror images: a `ScatterDimensionNumbers` describes the gather that reads
back what the scatter wrote.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.primitives.shape import ints


class GatherDimensionNumbers(NamedTuple):
    """How dimensions of operand, indices and result of a gather correspond.

    The last dimension of the indices holds index vectors; the others are batch dimensions.

    * `offset_dims`: the result's dimensions that run within a window, ascending.
    * `collapsed_slice_dims`: operand dimensions, of window length 1, left out of the result.
    * `start_index_map`: the operand dimension that each component of an index vector is for.
    * `operand_batching_dims`: operand dimensions that run along with the batch dimensions
      `start_indices_batching_dims` of the indices, and have window length 1.
    """

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()


class ScatterDimensionNumbers(NamedTuple):
    """How dimensions of operand, indices and updates of a scatter correspond.

    The fields are those of GatherDimensionNumbers, in order, with the updates as the result.
    """

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()


Numbers = GatherDimensionNumbers | ScatterDimensionNumbers


class GatherScatterMode(enum.Enum):
    """What happens to an index whose window does not lie inside the operand.

    CLIP moves the window inside. FILL_OR_DROP reads a fill value, and does not write. CHECK raises
    IndexError. PROMISE_IN_BOUNDS leaves the result undefined.
    """

    CLIP = "clip"
    FILL_OR_DROP = "fill"
    PROMISE_IN_BOUNDS = "promise_in_bounds"
    CHECK = "check"

    @staticmethod
    def from_any(mode: str | GatherScatterMode | None) -> GatherScatterMode:
        """Return the mode of a name; None means fill or drop."""
        if isinstance(mode, GatherScatterMode):
            return mode
        if mode is None or mode == "drop":
            return GatherScatterMode.FILL_OR_DROP
        try:
            return GatherScatterMode(mode)
        except ValueError:
            raise ValueError(
                f"mode {mode!r} is none of 'clip', 'fill', 'drop', 'promise_in_bounds', 'check'"
            ) from None


def mode_name(mode: str | GatherScatterMode | None) -> str:
    """Return the mode as primitives keep it: "clip", "fill", "promise_in_bounds" or "check"."""
    return GatherScatterMode.from_any(mode).value


def canonical(numbers: Numbers) -> Numbers:
    """Convert dimension numbers to tuples of plain ints."""
    return type(numbers)(*[ints(field) for field in numbers])


def inverse(numbers: Numbers) -> Numbers:
    """Return the scatter that writes what a gather reads, or the gather that reads what it
    writes."""
    other = (
        ScatterDimensionNumbers
        if type(numbers) is GatherDimensionNumbers
        else GatherDimensionNumbers
    )
    return other(*numbers)


def window_sizes(operand: Aval, updates: Aval, numbers: Numbers) -> tuple[int, ...]:
    """Read the window's length along every operand dimension off the updates of a scatter."""
    window, inserted, _, batching, _ = numbers
    lengths = iter([updates.shape[d] for d in window])
    return tuple(
        [
            min(n, 1) if d in batching else 1 if d in inserted else next(lengths)
            for d, n in enumerate(operand.shape)
        ]
    )


def windowed_shape(
    name: str, operand: Aval, indices: Aval, numbers: Numbers, sizes: Sequence[int]
) -> tuple[int, ...]:
    """Compute the shape of a gather's result. Raises ShapeError or DTypeError for what does not
    fit."""
    window, collapsed, mapped, batching, index_batching = numbers
    names = numbers._fields

    def require(holds: bool, text: str) -> None:
        if not holds:
            raise errors.ShapeError(
                f"{name}: {text}\n  operand {operand}, indices {indices}, {numbers}"
            )

    if not dtypes.is_integer(indices.dtype):
        raise errors.DTypeError(f"{name}: indices must be integers, got {indices}")
    require(indices.ndim > 0, "indices need a last dimension that holds index vectors")
    batch = indices.shape[:-1]
    rank = len(batch) + len(window)
    for dims, label, limit in (
        (window, names[0], rank),
        (collapsed, names[1], operand.ndim),
        (mapped, names[2], operand.ndim),
        (batching, names[3], operand.ndim),
        (index_batching, names[4], len(batch)),
    ):
        require(all(0 <= d < limit for d in dims), f"{label} {dims} must lie in [0, {limit})")
        require(len(set(dims)) == len(dims), f"{label} {dims} must not repeat a dimension")
    for dims, label in ((window, names[0]), (collapsed, names[1]), (batching, names[3])):
        require(list(dims) == sorted(dims), f"{label} {dims} must be ascending")
    require(
        len(mapped) == indices.shape[-1],
        f"{names[2]} {mapped} must have one entry for each of the {indices.shape[-1]} components "
        "of an index vector",
    )
    for dims, label in ((collapsed, names[1]), (mapped, names[2])):
        require(set(dims).isdisjoint(batching), f"{label} {dims} and {names[3]} {batching} overlap")
    require(
        [operand.shape[d] for d in batching] == [batch[d] for d in index_batching],
        f"dimensions {batching} of the operand must be as long as dimensions {index_batching} "
        "of the indices",
    )
    require(
        len(sizes) == operand.ndim,
        f"windows need a length for each of {operand.ndim} dimensions, got {tuple(sizes)}",
    )
    require(
        operand.ndim == len(window) + len(collapsed) + len(batching),
        f"each of the {operand.ndim} operand dimensions must be one of {len(window)} window "
        f"dimensions, {len(collapsed)} {names[1]} and {len(batching)} {names[3]}",
    )
    for d, (n, length) in enumerate(zip(operand.shape, sizes)):
        require(
            0 <= length <= n or 0 in batch,
            f"a window of length {length} does not fit dimension {d} of length {n}",
        )
        require(length == 1 or d not in collapsed, f"window length {length} along {names[1]} {d}")
        require(length <= 1 or d not in batching, f"window length {length} along {names[3]} {d}")
    kept = iter([n for d, n in enumerate(sizes) if d not in collapsed and d not in batching])
    rest = iter(batch)
    return tuple([next(kept) if i in window else next(rest) for i in range(rank)])
