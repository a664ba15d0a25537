"""Functional updates: `x.at[index].set(v)` and its relatives, by selects, copies and scatters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where as user_line
from genesis_fn.core.primitive import SCALARS, Tracer, with_weak
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.creation import asarray
from genesis_fn.lax.promotion import broadcast, scalar_as, value
from genesis_fn.numpy.arrays.conversion import host
from genesis_fn.numpy.indexing.index_expressions import (
    Indexer,
    bad_index,
    box_of,
    checked_mode,
    explained,
    is_boolean_scalar,
    numbers_for,
    plan_for,
    take_indexed,
    vectors_of,
    with_axes,
    without_others,
    without_wrapping,
)
from genesis_fn.numpy.manipulation.shapes import broadcast_to
from genesis_fn.numpy.mathematics.composed import power, where
from genesis_fn.numpy.mathematics.ufuncs import add, divide, maximum, minimum, multiply
from genesis_fn.primitives import elementwise as p
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.indexing.gather_dims import (
    GatherDimensionNumbers,
    GatherScatterMode,
    inverse,
)
from genesis_fn.primitives.indexing.indexing import dynamic_update_slice
from genesis_fn.primitives.indexing.scatter import (
    scatter,
    scatter_add,
    scatter_max,
    scatter_min,
    scatter_mul,
)
from genesis_fn.primitives.reductions.reduce import reduce_max
from genesis_fn.primitives.shape import concatenate, iota, reshape, rev, transpose
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.control_flow.loops import while_loop


class At:
    """`x.at`: index it, then `.set`, `.add`, `.get`, ... for a new array with that part changed."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getitem__(self, index: Any) -> Update:
        return Update(self.array, index)

    def __repr__(self) -> str:
        return f"At({self.array!r})"


_SCATTER: dict[str, Callable[..., Any]] = {
    "set": scatter, "add": scatter_add, "mul": scatter_mul, "min": scatter_min, "max": scatter_max,
}  # fmt: skip
_COMBINE: dict[str, Callable[..., Any]] = {
    "set": lambda old, new: new, "add": add, "mul": multiply, "min": minimum, "max": maximum,
}  # fmt: skip


class UpdateOptions(TypedDict, total=False):
    """Keyword arguments that the methods of `x.at[index]` share."""

    mode: str | GatherScatterMode | None
    indices_are_sorted: bool
    unique_indices: bool
    out_sharding: None
    wrap_negative_indices: bool


class SumOptions(UpdateOptions, total=False):
    """Keyword arguments of the methods that add."""

    deterministic: bool | None


class Update:
    """`x.at[index]`. Every method takes `mode=` ("check", "drop", "fill", "clip",
    "promise_in_bounds"), `indices_are_sorted=` and `unique_indices=`."""

    __slots__ = ("array", "index")

    def __init__(self, array: Any, index: Any) -> None:
        self.array, self.index = array, without_others(index)

    def get(
        self,
        *,
        mode: str | GatherScatterMode | None = None,
        fill_value: ArrayLike | None = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """x[index]; mode "fill" reads `fill_value` (NaN, ...) out of bounds."""
        if mode is None and fill_value is not None:
            mode = "fill"
        how = checked_mode(mode)
        return take_indexed(
            self.array,
            self.index if wrap_negative_indices else without_wrapping(self.index, how),
            how,
            fill_value,
            indices_are_sorted,
            unique_indices,
        )

    def set(self, values: ArrayLike, **options: Unpack[UpdateOptions]) -> Array:
        """x with x[index] = values. Of duplicate indices the last wins."""
        return _updated(self.array, self.index, values, "set", **options)

    def add(self, values: ArrayLike, **options: Unpack[SumOptions]) -> Array:
        """x with x[index] += values, duplicates included.

        `deterministic=False` allows another order of the sums in every run; None is as the setting
        `deterministic` says.
        """
        return _updated(self.array, self.index, values, "add", **options)

    def subtract(self, values: ArrayLike, **options: Unpack[SumOptions]) -> Array:
        """x with x[index] -= values, duplicates included; `deterministic` as in `add`."""
        changes = _cast(values, self.array)
        negated = -changes if type(changes) in SCALARS else p.neg(changes)
        return self.add(negated, **options)

    def multiply(self, values: ArrayLike, **options: Unpack[UpdateOptions]) -> Array:
        """x with x[index] *= values, duplicates included."""
        return _updated(self.array, self.index, values, "mul", **options)

    sub, mul = subtract, multiply

    def divide(self, values: ArrayLike, **options: Unpack[UpdateOptions]) -> Array:
        """x with x[index] /= values, duplicates included."""
        x = self.array
        one = scalar_as(1, x.dtype)
        factors = Update(full(x.aval.shape, one, x.dtype), self.index).multiply(values, **options)
        return divide(x, factors)

    div = divide

    def power(self, values: ArrayLike, **options: Unpack[UpdateOptions]) -> Array:
        """x with x[index] **= values, duplicates included."""
        x = self.array
        one = scalar_as(1, x.dtype)
        exponents = Update(full(x.aval.shape, one, x.dtype), self.index)
        return p.convert(power(x, exponents.multiply(values, **options)), x.dtype)

    def min(self, values: ArrayLike, **options: Unpack[UpdateOptions]) -> Array:
        """x with x[index] = minimum(x[index], values)."""
        return _updated(self.array, self.index, values, "min", **options)

    def max(self, values: ArrayLike, **options: Unpack[UpdateOptions]) -> Array:
        """x with x[index] = maximum(x[index], values)."""
        return _updated(self.array, self.index, values, "max", **options)

    def apply(self, func: Callable[[Any], Any], **options: Unpack[UpdateOptions]) -> Array:
        """x with x[index] = func(x[index]), elementwise: `func` maps one element to one, and is
        applied as often as an element is indexed.

        Where indices are traced and may repeat, this loops as often as the most frequent one: give
        `unique_indices=True` for derivatives in reverse mode.
        """
        x, mode = value(self.array), options.get("mode")
        how = checked_mode(mode)
        fill = 0 if how == "fill" else None

        def read(v: Any) -> Array:
            return take_indexed(v, self.index, how, fill, False, False)

        def applied(v: Any, more: Any = None) -> Array:
            part = read(v)
            new = _elementwise(func, part)
            new = new if more is None else where(more, new, part)
            return Update(v, self.index).set(new, **options)

        entries = self.index if isinstance(self.index, tuple) else (self.index,)
        if any([is_boolean_scalar(e) for e in entries]):
            longer, index = with_axes(x, entries)
            return reshape(Update(longer, index).apply(func, **options), x.aval.shape)
        plan = plan_for(x, self.index, how)
        y = applied(x)
        if options.get("unique_indices") or all(i.size == 1 for _, i in plan.arrays):
            return y
        counts = Update(full(x.aval.shape, 0, dtypes.I32), self.index).add(1, **options)
        known = counts.concrete() if isinstance(counts, Tracer) else counts
        often = read(counts)
        if known is not None:
            for i in range(1, int(np.max(host(known), initial=0))):
                y = applied(y, p.gt(often, i))
            return y
        most = reduce_max(counts, tuple(range(x.ndim)))

        def once(state: tuple[Any, ...]) -> tuple[Any, ...]:
            i, v = state
            return p.add(i, 1), applied(v, p.gt(often, broadcast(i, often.aval.shape)))

        start = full((), 1, dtypes.I32)
        return while_loop(lambda state: p.lt(state[0], most), once, (start, y))[1]


def _elementwise(func: Callable[[Any], Any], x: Any) -> Array:
    """`func` of each element of `x`, in the dtype of `x`."""
    if not x.size:
        return x
    y = vmap(func)(reshape(x, (x.size,)))
    if getattr(y, "shape", None) != (x.size,):
        raise errors.ShapeError(
            f"apply: the function must map one element to one, and made {y.aval} of {x.size} "
            f"elements\n  at {user_line(depth=4).describe()}"
        )
    return p.convert(reshape(y, x.aval.shape), x.dtype)


def _cast(values: Any, x: Any) -> Any:
    """Values in the dtype of the array they go into."""
    if type(values) in SCALARS:
        d = x.dtype
        if not dtypes.is_complex(d) and type(values) is complex:
            raise errors.DTypeError(f"complex values do not fit {x.aval}; use .astype(complex)")
        return scalar_as(values, d)
    if getattr(values, "dtype", None) == x.dtype:  # a 64-bit NumPy value, as it is
        return asarray(values, x.dtype)
    return p.convert(
        value(values) if not isinstance(values, (list, tuple)) else asarray(values), x.dtype
    )


def _updated(x: Any, index: Any, values: Any, kind: str, **options: Unpack[SumOptions]) -> Array:
    """`x` updated: weak if `x` is, whatever the values are."""
    x = value(x)
    return with_weak(_changed(x, index, values, kind, **options), x.weak)


def _changed(
    x: Any,
    index: Any,
    values: Any,
    kind: str,
    *,
    mode: Any = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    deterministic: bool | None = None,
    out_sharding: None = None,
    wrap_negative_indices: bool = True,
) -> Array:
    x = value(x)
    if not wrap_negative_indices:
        index = without_wrapping(index, checked_mode(mode))
    entries = index if isinstance(index, tuple) else (index,)
    if any([is_boolean_scalar(e) for e in entries]):
        longer, index = with_axes(x, entries)
        changed = _updated(
            longer,
            index,
            values,
            kind,
            mode=mode,
            indices_are_sorted=indices_are_sorted,
            unique_indices=unique_indices,
            deterministic=deterministic,
        )
        return reshape(changed, x.aval.shape)
    values = _cast(values, x)
    masked = _by_mask(x, index, values, kind)
    if masked is not None:
        return masked
    how = checked_mode(mode)
    plan = plan_for(x, index, how)
    if type(values) in SCALARS:
        values = full((), values, x.dtype)
    own = values.aval.shape
    if len(own) > len(plan.shape):  # NumPy assigns values with extra leading axes of length 1
        extra = len(own) - len(plan.shape)
        if all(n == 1 for n in own[:extra]):
            values = reshape(values, own[extra:])
    try:
        values = broadcast_to(values, plan.shape)
    except errors.ShapeError:
        raise errors.ShapeError(
            f"values {values.aval} do not broadcast to the indexed part, {list(plan.shape)} of "
            f"{x.aval}\n  at {user_line(depth=4).describe()}"
        ) from None
    if not plan.arrays:
        return _box_updated(x, plan, values, kind)
    box = box_of(x, plan)
    whole = box is x
    vectors, axes, batch = vectors_of(box, plan, how)
    for a, i in plan.arrays:
        if box.aval.shape[a] == 0:
            if i.size and how == "check":
                raise bad_index(f"an index into axis {a} of {x.aval}, which is empty")
            return x
    numbers, _ = numbers_for(box, axes, batch, plan.position)
    kept = [n for a, n in enumerate(box.aval.shape) if a not in axes]
    values = reshape(values, (*kept[: plan.position], *batch, *kept[plan.position :]))
    box_dtype = x.dtype
    if box_dtype == dtypes.BOOL:
        kind = {"add": "max", "mul": "min"}.get(kind, kind)
    try:
        result = _SCATTER[kind](
            box,
            vectors,
            values,
            inverse(numbers),
            mode=how,
            indices_are_sorted=indices_are_sorted,
            unique_indices=unique_indices,
            deterministic=deterministic,
        )
    except errors.IndexOutOfRange as error:
        raise explained(error, x, plan) from None
    return result if whole else _restored(x, plan, result)


def _by_mask(x: Any, index: Any, values: Any, kind: str) -> Any:
    """The update under a boolean mask over leading axes, where the values do not depend on which
    elements are selected: a select, for traced masks too. None where that does not apply."""
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    if getattr(index, "dtype", None) != np.bool_ or not getattr(index, "ndim", 0):
        return None
    mask: Any = index
    n, shape = mask.ndim, x.aval.shape
    if tuple(mask.shape) != shape[:n]:
        return None
    if type(values) not in SCALARS and values.ndim > x.ndim - n:
        return None
    mask = broadcast(reshape(value(mask), (*shape[:n], *(1,) * (x.ndim - n))), shape)
    return where(mask, _COMBINE[kind](x, values), x)


def _box_updated(x: Any, plan: Indexer, values: Any, kind: str) -> Array:
    """The update of a static part."""
    if kind != "set":
        part = reshape(box_of(x, plan), plan.shape)
        values = _COMBINE[kind](part, values)
    inner = [1 if a in plan.squeezed else len(range(*s)) for a, s in enumerate(plan.slices)]
    return _restored(x, plan, reshape(values, inner))


def _restored(x: Any, plan: Indexer, part: Any) -> Array:
    """`x` with the static part of a plan replaced."""
    lengths = [len(range(*s)) for s in plan.slices]
    part = reshape(part, lengths)
    if tuple(lengths) == x.aval.shape and all(s[2] == 1 for s in plan.slices):
        return part
    if 0 in lengths:
        return x
    flipped = [a for a, s in enumerate(plan.slices) if s[2] < 0]
    part = rev(part, flipped) if flipped else part
    starts, steps = [], []
    for start, stop, step in plan.slices:
        count = len(range(start, stop, step))
        starts.append(start if step > 0 else start + (count - 1) * step)
        steps.append(abs(step) if count > 1 else 1)
    strided = [a for a, s in enumerate(steps) if s != 1]
    if strided:
        # One index per kept element of the strided axes; whole windows along the others.
        grids = [p.add(p.mul(iota(dtypes.I32, lengths[a]), steps[a]), starts[a]) for a in strided]
        inner = list(x.aval.shape)
        rest = [a for a in range(x.ndim) if a not in strided]
        if any(lengths[a] != inner[a] for a in rest):
            # Forwards along every axis: `part` is reversed already.
            kept = [
                (0, n, 1) if a in strided else (starts[a], starts[a] + lengths[a], 1)
                for a, n in enumerate(inner)
            ]
            box = Indexer(tuple(kept), (), (), 0, (), ())
            return _restored(x, box, _strided_set(box_of(x, box), grids, strided, part))
        return _strided_set(x, grids, strided, part)
    return dynamic_update_slice(x, part, starts)


def _strided_set(x: Any, grids: Sequence[Any], axes: Sequence[int], part: Any) -> Array:
    k = len(axes)
    batch = tuple([g.size for g in grids])
    columns = [
        reshape(
            broadcast(reshape(g, [batch[j] if j == i else 1 for j in range(k)]), batch), (*batch, 1)
        )
        for i, g in enumerate(grids)
    ]
    vectors = columns[0] if k == 1 else concatenate(columns, k)
    rest = [a for a in range(x.ndim) if a not in axes]
    numbers = GatherDimensionNumbers(tuple(range(k, x.ndim)), tuple(axes), tuple(axes))
    return scatter(
        x,
        vectors,
        transpose(part, [*axes, *rest]),
        inverse(numbers),
        mode="promise_in_bounds",
        unique_indices=True,
        indices_are_sorted=True,
    )
