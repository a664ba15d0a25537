"""Indexing as NumPy defines it: how an index is read, and the views and gathers that it becomes.

Integers, slices, None and Ellipsis become views. Integer arrays, masks and traced scalars become
one gather. Out of bounds raises IndexError unless `mode=` says otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import Array, ArrayImpl, from_numpy, offers_array
from genesis_fn.core.diagnostics.source_info import where as user_line
from genesis_fn.core.primitive import Tracer, ctx
from genesis_fn.core.types.annotations import ArrayLike
from genesis_fn.core.types.extended import KeyType, is_key
from genesis_fn.lax.creation import asarray, index_array
from genesis_fn.lax.promotion import broadcast, broadcast_shapes, scalar_as
from genesis_fn.numpy.arrays.conversion import arguments, concrete, host
from genesis_fn.primitives import elementwise as p
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.indexing.gather import gather, take_rows
from genesis_fn.primitives.indexing.gather_dims import (
    GatherDimensionNumbers,
    GatherScatterMode,
    mode_name,
)
from genesis_fn.primitives.shape import (
    concatenate,
    reshape,
    rev,
    slice as slice_box,
    slice_in_dim,
    squeeze,
)
from genesis_fn.transforms.staging.one_call import as_one_call


class Indexer(NamedTuple):
    """How an index acts on an array: a static box, then arrays of indices along some axes.

    * `slices`: (start, stop, step) per axis of the array, step of either sign; ints have length 1.
    * `squeezed`: the axes that static integers remove.
    * `arrays`: (axis, index array) pairs; axes count after squeezing.
    * `position`: where the dimensions of the broadcast index arrays go among the remaining axes.
    * `shape`: the shape of the whole result, with new axes.
    """

    slices: tuple[tuple[int, int, int], ...]
    squeezed: tuple[int, ...]
    arrays: tuple[tuple[int, Any], ...]
    position: int
    shape: tuple[int, ...]
    original: tuple[int, ...]  # the operand's axis of each index array


# ---- reading an index ----


def getitem(x: Array, index: Any) -> Array:
    """x[index]."""
    if is_key(x.aval.dtype) and KeyType.index is not None:
        return KeyType.index(x, index)
    return element_or_part(x, index)


def element_or_part(x: Array, index: Any) -> Array:
    """x[index] by NumPy's rules, for random keys too."""
    if type(index) is int:
        shape = x.aval.shape
        if shape:
            n = shape[0]
            if not -n <= index < n:
                raise _outside(index, 0, x)
            i = index + n if index < 0 else index
            return squeeze(slice_in_dim(x, i, i + 1), (0,))
    return take_indexed(x, index, "check", None, False, False)


def _outside(index: int, axis: int, x: Any) -> errors.IndexOutOfRange:
    found = errors.IndexOutOfRange.at(index, axis, x.aval)
    return errors.IndexOutOfRange(
        f"{found}\n  at {user_line(depth=4).describe()}", axis, x.aval.shape[axis], index
    )


def bad_index(what: str) -> IndexError:
    """The error for a bad index, with the user's line."""
    return IndexError(f"{what}\n  at {user_line(depth=4).describe()}")


def take_indexed(
    x: Array, index: Any, mode: str, fill_value: ArrayLike | None, is_sorted: bool, unique: bool
) -> Array:
    """x[index] with gather's options."""
    index = without_others(index)
    entries = index if isinstance(index, tuple) else (index,)
    if any([is_boolean_scalar(e) for e in entries]):
        x, index = with_axes(x, entries)
    plan = plan_for(x, index, mode)
    box = box_of(x, plan)
    if plan.arrays:
        box = gathered(x, box, plan, mode, fill_value, is_sorted, unique)
    return reshape(box, plan.shape)


# Types of entries that are no arrays of other libraries, without asking them.
_OWN = frozenset((int, slice, type(None), type(Ellipsis), bool, list, ArrayImpl))


def without_others(index: Any) -> Any:
    """The index with arrays of other libraries as arrays: torch's tensors have an `__index__`,
    which would read one of a single element as an integer, whatever its shape."""
    entries = index if isinstance(index, tuple) else (index,)
    if not any([type(e) not in _OWN and offers_array(type(e)) for e in entries]):
        return index
    return tuple([asarray(e) if offers_array(type(e)) else e for e in entries])


def without_wrapping(index: Any, mode: str) -> Any:
    """The index for `wrap_negative_indices=False`: negative numbers are out of bounds, below."""
    entries = index if isinstance(index, tuple) else (index,)
    outside = 0 if mode == "clip" else dtypes.iinfo(dtypes.I32).max

    def entry(e: Any) -> Any:
        if e is None or e is Ellipsis or isinstance(e, (slice, bool, np.bool_)):
            return e
        if isinstance(e, int):
            return e if e >= 0 else outside
        numbers = asarray(e)
        if not dtypes.is_integer(numbers.dtype) or numbers.dtype.kind == "u":
            return e
        wide = p.convert(numbers, dtypes.promote_types(numbers.dtype, dtypes.I32))
        return p.select(p.lt(wide, 0), full(wide.shape, outside, wide.dtype), wide)

    return tuple(map(entry, entries))


def is_boolean_scalar(entry: Any) -> bool:
    """Whether an index is True, False, or a boolean scalar whose value is known."""
    if isinstance(entry, Tracer) and entry.concrete() is None:
        return False
    return isinstance(entry, bool) or (
        getattr(entry, "ndim", None) == 0 and getattr(entry, "dtype", None) == np.bool_
    )


def with_axes(x: Array, entries: tuple[Any, ...]) -> tuple[Array, tuple[Any, ...]]:
    """`x` with a new axis for each boolean scalar of an index, of which an index array then takes
    the one element or none."""
    shape, result, axis = list(x.aval.shape), list(entries), 0
    for i, entry in enumerate(entries):
        if entry is Ellipsis:
            axis = len(shape) - sum([_axes_of(e) for e in entries[i + 1 :]])
        elif is_boolean_scalar(entry):
            shape.insert(axis, 1)
            result[i] = from_numpy(np.zeros(int(bool(entry)), np.int32))
            axis += 1
        else:
            axis += _axes_of(entry)
    return reshape(x, shape), tuple(result)


def box_of(x: Array, plan: Indexer) -> Array:
    """The static part of an index: slices, reversed axes, integers."""
    shape = x.aval.shape
    if any(s != (0, n, 1) for s, n in zip(plan.slices, shape)):
        starts, stops, steps, flipped = [], [], [], []
        for axis, (start, stop, step) in enumerate(plan.slices):
            count = len(range(start, stop, step))
            if step < 0:
                # The same elements from the other end, then reversed.
                start, step = start + (count - 1) * step, -step
                flipped.append(axis)
            starts.append(start if count else 0)
            stops.append(starts[-1] + (count - 1) * step + 1 if count else 0)
            steps.append(step)
        x = slice_box(x, starts, stops, None if all(s == 1 for s in steps) else steps)
        x = rev(x, flipped) if flipped else x
    return squeeze(x, plan.squeezed) if plan.squeezed else x


def plan_for(x: Array, index: Any, mode: str = "check") -> Indexer:
    """The plan of an index of `x`. Raises IndexError for what does not fit."""
    shape = x.aval.shape
    entries = _entries(index if isinstance(index, tuple) else (index,), x)
    slices: list[tuple[int, int, int]] = []
    squeezed: list[int] = []
    arrays: list[tuple[int, Any]] = []
    kinds: list[Any] = []  # per entry: "new", "point", an array's position, or an axis' length
    axis = 0
    for entry in entries:
        if entry is None:
            kinds.append("new")
            continue
        n = shape[axis]
        if type(entry) is slice:
            start, stop, step = _slice_bounds(entry, n)
            slices.append((start, stop, step))
            kinds.append(len(range(start, stop, step)))
        elif type(entry) is int:
            if not -n <= entry < n:
                if mode == "check" or n == 0:
                    raise _outside(entry, axis, x)
                arrays.append((axis, from_numpy(np.asarray(entry, np.int32))))
                slices.append((0, n, 1))
                kinds.append("array")
                axis += 1
                continue
            i = entry + n if entry < 0 else entry
            slices.append((i, i + 1, 1))
            squeezed.append(axis)
            kinds.append("point")
        else:
            slices.append((0, n, 1))
            arrays.append((axis, entry))
            kinds.append("array")
        axis += 1
    batch: tuple[int, ...] = ()
    if arrays:
        try:
            batch = broadcast_shapes(*[a.aval.shape for _, a in arrays])
        except errors.ShapeError:
            shown = ", ".join(str(a.aval) for _, a in arrays)
            raise bad_index(f"index arrays {shown} do not broadcast to one shape") from None
    position, result = _layout(kinds, batch)
    moved = tuple([(a - sum(s < a for s in squeezed), i) for a, i in arrays])
    return Indexer(
        tuple(slices), tuple(squeezed), moved, position, result, tuple([a for a, _ in arrays])
    )


def _layout(kinds: Sequence[Any], batch: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """(where the index arrays' dimensions go among the kept axes, the shape of the result)."""
    advanced = [i for i, k in enumerate(kinds) if k in ("array", "point")] if batch else []
    together = not advanced or advanced[-1] - advanced[0] + 1 == len(advanced)
    first = advanced[0] if advanced and together else -1
    position = sum(type(k) is int for k in kinds[:first]) if first > 0 else 0
    result: list[int] = [] if first >= 0 else list(batch)
    for i, k in enumerate(kinds):
        if i == first:
            result += batch
        if k == "new":
            result.append(1)
        elif type(k) is int:
            result.append(k)
    return position, tuple(result)


def _entries(index: tuple[Any, ...], x: Any) -> list[Any]:
    """The index's entries, one per axis of `x` (and None for new axes): slices, ints, arrays."""
    shape = x.aval.shape
    parsed: list[Any] = []
    consumed, ellipsis = 0, None
    for entry in index:
        if entry is None:
            parsed.append(None)
            continue
        if entry is Ellipsis:
            if ellipsis is not None:
                raise bad_index("an index can only have one ellipsis (...)")
            ellipsis = len(parsed)
            continue
        if type(entry) is slice or type(entry) is int:
            parsed.append(entry)
            consumed += 1
            continue
        found = _array_entry(entry, shape, consumed, ellipsis is not None, index, x)
        parsed += found
        consumed += len(found)
    missing = len(shape) - consumed
    if missing < 0:
        raise bad_index(f"{consumed} indices for {x.aval}, which has {len(shape)} axes")
    at = len(parsed) if ellipsis is None else ellipsis
    parsed[at:at] = [slice(None)] * missing
    return parsed


def _listed(entry: Sequence[Any]) -> Array:
    """A list of positions as an array. Raises TypeError for booleans, which are easily taken for
    positions, and for what is meant as a tuple."""
    if not len(entry):
        return from_numpy(np.zeros((0,), np.int32))
    try:
        found = index_array(entry)
    except (TypeError, ValueError):
        found = None
    if found is None or found.aval.dtype == dtypes.BOOL:
        instead = "x[tuple(i)]" if found is None else "x[jnp.array(i)]"
        raise TypeError(
            f"the {type(entry).__name__} {entry!r:.60} is no index; write {instead}\n"
            f"  at {user_line(depth=6).describe()}"
        )
    return found


def _array_entry(
    entry: Any,
    shape: tuple[Any, ...],
    consumed: int,
    after_ellipsis: bool,
    index: tuple[Any, ...],
    x: Any,
) -> list[Any]:
    """An entry that is a number, a list, an ndarray, an array or a tracer, as ints and arrays."""
    if isinstance(entry, (list, tuple)):
        entry = _listed(entry)
    if isinstance(entry, np.integer):
        return [int(entry)]
    if isinstance(entry, (bool, np.bool_)):
        raise bad_index(
            "a boolean scalar is not an index; use x[None] for a new axis, or where(...)"
        )
    if isinstance(entry, np.ndarray) and entry.dtype == np.bool_:
        return _mask_positions(entry, shape, consumed, after_ellipsis, index, x)
    if isinstance(entry, np.ndarray):
        entry = index_array(entry)
    if not isinstance(entry, Array):
        if hasattr(entry, "__genesis_array__"):
            entry = asarray(entry)
        elif hasattr(entry, "__index__"):
            return [operator.index(entry)]
        else:
            raise TypeError(
                f"{entry!r} of type {type(entry).__name__} is not an index: use integers, slices, "
                "None, ... and arrays of integers or booleans"
                f"\n  at {user_line(depth=4).describe()}"
            )
    d = entry.aval.dtype
    if d == dtypes.BOOL:
        if isinstance(entry, Tracer) and entry.concrete() is None:
            raise _traced_mask(entry)
        mask = host(concrete(entry, "index"))
        return _mask_positions(mask, shape, consumed, after_ellipsis, index, x)
    if not dtypes.is_integer(d):
        raise bad_index(f"an index must have an integer or boolean dtype, got {entry.aval}")
    if type(entry) is ArrayImpl and not entry.aval.shape and entry.sig.device.kind == "cpu":
        i, n = int(host(entry)), shape[consumed] if consumed < len(shape) else 0
        # Out of range in a program being traced, the error is raised when the program runs.
        if ctx.trace is None or after_ellipsis or -n <= i < n:
            return [i]
    return [p.convert(entry, dtypes.I32) if d.itemsize < 4 else entry]


def _traced_mask(mask: Tracer) -> errors.NonConcreteBooleanIndexError:
    names = arguments(mask)
    depends = f"\n  depends on {', '.join(names[:4])}" if names else ""
    return errors.NonConcreteBooleanIndexError(
        f"a traced boolean mask {mask.aval} as an index: the result's shape would depend on values"
        f"\n  made at {mask.origin()}{depends}\n  used at {user_line(depth=5).describe()}\n"
        "  use jnp.where(mask, x, other), x.at[mask].set(scalar), or jnp.nonzero(mask, size=n)"
    )


def _mask_positions(
    mask: np.ndarray,
    shape: tuple[Any, ...],
    consumed: int,
    after_ellipsis: bool,
    index: tuple[Any, ...],
    x: Any,
) -> list[Any]:
    if not mask.ndim:
        raise bad_index(
            "a boolean scalar is not an index; use x[None] for a new axis, or where(...)"
        )
    if after_ellipsis:
        consumed = len(shape) - sum(_axes_of(e) for e in index[_position(index, mask) :])
    expected = shape[consumed : consumed + mask.ndim]
    # As in NumPy, a mask may have no elements along an axis: it then selects nothing.
    if len(expected) < mask.ndim or any(m not in (0, n) for m, n in zip(mask.shape, expected)):
        raise bad_index(
            f"a boolean index of shape {list(mask.shape)} does not fit axes {consumed} to "
            f"{consumed + mask.ndim - 1} of {x.aval}"
        )
    return [index_array(i.astype(np.int32)) for i in np.nonzero(mask)]


def _position(index: tuple[Any, ...], mask: np.ndarray) -> int:
    for i, e in enumerate(index):
        if e is mask or (getattr(e, "dtype", None) == np.bool_ and tuple(e.shape) == mask.shape):
            return i
    return len(index) - 1


def _axes_of(entry: Any) -> int:
    """How many axes an index entry consumes."""
    if entry is None or entry is Ellipsis or isinstance(entry, bool):
        return 0
    return len(entry.shape) if getattr(entry, "dtype", None) == np.bool_ else 1


def _slice_bounds(entry: slice, n: int) -> tuple[int, int, int]:
    if entry == slice(None):
        return 0, n, 1
    for bound in (entry.start, entry.stop, entry.step):
        if isinstance(bound, Tracer) and bound.concrete() is None:
            raise errors.TracerIntegerConversionError(
                f"a slice with the traced bound {bound.aval}: the length must be known\n"
                f"  made at {bound.origin()}\n  used at {user_line(depth=4).describe()}\n"
                "  use lax.dynamic_slice_in_dim(x, start, length), or mask with jnp.where"
            )
    start, stop, step = entry.indices(n)
    if step < 0:
        return start, stop, step
    return start, max(start, stop), step


# ---- gather ----


@as_one_call
def _wrapped(i: Any, n: int, mode: str) -> Array:
    """Index arrays with negative entries counted from the end.

    An entry below -n stays as it is, so that its error tells the user's index; where the error
    comes at once, `explained` knows what was added.
    """
    d = i.aval.dtype
    if dtypes.is_unsigned(d):
        return i
    negative = p.lt(i, 0)
    if mode == "check" and not _fails_at_once(i) and n <= dtypes.iinfo(d).max:
        negative = p.bitwise_and(negative, p.ge(i, -n))
    return p.select(negative, p.add(i, n), i)


@as_one_call
def _column(i: Any, n: int, mode: str, kind: dtypes.DType, batch: tuple[int, ...]) -> Array:
    """Index arrays as one of several that stand side by side: [*batch, 1]."""
    return reshape(broadcast(p.convert(_wrapped(i, n, mode), kind), batch), (*batch, 1))


def _fails_at_once(x: Any) -> bool:
    """Whether an index out of range raises in the call that uses it: eagerly, on the CPU."""
    return ctx.trace is None and x.device.platform == "cpu"


def vectors_of(
    box: Array, plan: Indexer, mode: str
) -> tuple[Array, tuple[int, ...], tuple[int, ...]]:
    """(index vectors [*batch, K], the axes they index, the batch shape)."""
    axes = tuple([a for a, _ in plan.arrays])
    parts = [i for _, i in plan.arrays]
    wide = max([i.aval.dtype for i in parts], key=lambda d: (d.itemsize, d.kind == "i"))
    mixed = len({i.aval.dtype for i in parts}) > 1
    target = dtypes.I64 if mixed and wide.itemsize == 8 or wide == dtypes.U32 and mixed else wide
    batch = broadcast_shapes(*[i.aval.shape for i in parts])
    columns = [_column(i, box.aval.shape[a], mode, target, batch) for a, i in plan.arrays]
    vectors = columns[0] if len(columns) == 1 else concatenate(columns, len(batch))
    return vectors, axes, batch


def numbers_for(
    box: Array, axes: Sequence[int], batch: Sequence[int], position: int
) -> tuple[GatherDimensionNumbers, list[int]]:
    """Dimension numbers and slice sizes of a gather from `box` at indices into `axes`.

    The `batch` dimensions of the indices come out at `position`.
    """
    ndim = box.ndim - len(axes) + len(batch)
    window = tuple([i for i in range(ndim) if not position <= i < position + len(batch)])
    sizes = [1 if a in axes else n for a, n in enumerate(box.aval.shape)]
    return GatherDimensionNumbers(window, tuple(sorted(axes)), tuple(axes)), sizes


def gathered(
    x: Array,
    box: Array,
    plan: Indexer,
    mode: str,
    fill_value: ArrayLike | None,
    is_sorted: bool,
    unique: bool,
) -> Array:
    """The elements of `box` at the index arrays of `plan`; `x` is what the user indexed."""
    shape = box.aval.shape
    for a, i in plan.arrays:
        if shape[a] == 0 and i.size and mode == "check":
            raise bad_index(f"an index into axis {a} of {x.aval}, which is empty")
    try:
        if len(plan.arrays) == 1 and plan.arrays[0][0] == 0 and plan.position == 0 and shape[0]:
            index = _wrapped(plan.arrays[0][1], shape[0], mode)
            return take_rows(box, index, mode=mode, fill_value=fill_value)
        vectors, axes, batch = vectors_of(box, plan, mode)
        if any(shape[a] == 0 for a in axes):
            return _nothing(box, axes, batch, plan.position, fill_value)
        numbers, sizes = numbers_for(box, axes, batch, plan.position)
        return gather(
            box,
            vectors,
            numbers,
            sizes,
            mode=mode,
            fill_value=fill_value,
            indices_are_sorted=is_sorted,
            unique_indices=unique,
        )
    except errors.IndexOutOfRange as error:
        raise explained(error, x, plan) from None


def _nothing(
    box: Any, axes: Sequence[int], batch: Sequence[int], position: int, fill: Any
) -> Array:
    """What indexing an empty axis gives where nothing is checked."""
    kept = [n for a, n in enumerate(box.aval.shape) if a not in axes]
    shape = (*kept[:position], *batch, *kept[position:])
    d = box.dtype
    return full(shape, scalar_as(0 if fill is None else fill, d), d)


def explained(error: errors.IndexOutOfRange, x: Array, plan: Indexer) -> Exception:
    """The error in terms of the user's index and array, with the user's line."""
    if error.axis is None or error.index is None:
        return error
    axis = error.axis
    for (moved, _), origin in zip(plan.arrays, plan.original):
        if moved == error.axis:
            axis = origin
    wrapped = error.index < 0 and _fails_at_once(x)
    return _outside(error.index - x.aval.shape[axis] if wrapped else error.index, axis, x)


def checked_mode(mode: str | GatherScatterMode | None) -> str:
    """The mode's name; None checks."""
    return "check" if mode is None else mode_name(mode)
