"""Changing shapes: reshaping, moving axes, joining, splitting, tiling."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, cast, overload

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import Array
from genesis_fn.core.types.annotations import ArrayLike, Axis, DTypeLike, ShapeLike
from genesis_fn.lax import structural
from genesis_fn.lax.creation import asarray, shape_of
from genesis_fn.lax.promotion import broadcast, broadcast_shapes, value
from genesis_fn.numpy.arrays.creation import zeros
from genesis_fn.numpy.mathematics.ufuncs import located
from genesis_fn.primitives import shape as p
from genesis_fn.primitives.elementwise import convert
from genesis_fn.primitives.shape import canonical_axes, canonical_axis, rev


def shape(a: ArrayLike | Sequence[Any]) -> tuple[int, ...]:
    """The lengths of the dimensions of `a`."""
    own = getattr(a, "shape", None)
    return np.shape(cast(Any, a)) if own is None else tuple(own)


def ndim(a: ArrayLike | Sequence[Any]) -> int:
    """The number of dimensions of `a`."""
    return len(shape(a))


def size(a: ArrayLike | Sequence[Any], axis: Axis = None) -> int:
    """The number of elements of `a`, or its length along `axis` (or several)."""
    lengths = shape(a)
    if axis is None:
        return math.prod(lengths)
    return math.prod(lengths[i] for i in canonical_axes(axis, len(lengths), "size"))


# ---- reshaping ----


def reshape(
    a: ArrayLike, shape: ShapeLike | None = None, order: str = "C", *, copy: bool | None = None
) -> Array:
    """`a` with the same elements and another shape; one length may be -1.

    `order` "F" reads and writes with the first axis fastest. Raises ShapeError where sizes differ.
    """
    a = value(a, "reshape")
    if shape is None:
        raise TypeError("reshape needs a shape")
    new = _completed(a, shape)
    if order == "C":
        return p.reshape(a, new)
    if order != "F":
        raise ValueError(f'reshape: order must be "C" or "F", got {order!r}')
    reversed_axes = transpose(a)
    return transpose(p.reshape(reversed_axes, new[::-1]))


def _completed(a: Any, given: Any) -> tuple[int, ...]:
    # An array without axes has `__len__` too.
    many = isinstance(given, (tuple, list)) or (
        getattr(given, "ndim", 0) == 1 if hasattr(given, "ndim") else hasattr(given, "__len__")
    )
    new = [operator.index(n) for n in given] if many else [operator.index(given)]  # pyright: ignore[reportArgumentType]
    known = math.prod(n for n in new if n != -1)
    if new.count(-1) > 1 or any(n < -1 for n in new):
        raise located(
            errors.ShapeError(f"reshape: {new} may have one -1 and no other negative length")
        )
    if -1 in new and known and a.size % known == 0:
        new[new.index(-1)] = a.size // known
    elif -1 in new or known != a.size:
        raise located(
            errors.ShapeError(f"reshape: {a.aval} has {a.size} elements, which {new} cannot hold")
        )
    return tuple(new)


def ravel(a: ArrayLike, order: str = "C") -> Array:
    """`a` as a vector."""
    return reshape(a, (-1,) if size(a) else (0,), order)


def on_axis(name: str, a: ArrayLike, axis: int | None) -> tuple[Array, int]:
    """What the function `name` works on: `a`, flattened where `axis` is None, and the axis counted
    from the front."""
    a = value(a, name)
    if axis is None:
        a, axis = ravel(a), 0
    return a, canonical_axis(axis, a.ndim, name)


def squeeze(a: ArrayLike, axis: Axis = None) -> Array:
    """`a` without its dimensions of length 1, or without those of `axis`."""
    a = value(a, "squeeze")
    if axis is None:
        axis = tuple([i for i, n in enumerate(a.aval.shape) if n == 1])
    return p.squeeze(a, axis)


def expand_dims(a: ArrayLike, axis: int | Sequence[int]) -> Array:
    """`a` with new dimensions of length 1 at the positions `axis` of the result."""
    return p.expand_dims(value(a, "expand_dims"), axis)


@overload
def atleast_1d(ary: ArrayLike | Sequence[Any], /) -> Array: ...


@overload
def atleast_1d(
    ary: ArrayLike | Sequence[Any],
    second: ArrayLike | Sequence[Any],
    /,
    *arys: ArrayLike | Sequence[Any],
) -> list[Array]: ...


def atleast_1d(*arys: ArrayLike | Sequence[Any]) -> Array | list[Array]:
    """Each array with at least one dimension."""
    return _each([p.reshape(x, (1,)) if x.ndim == 0 else x for x in map(asarray, arys)])


@overload
def atleast_2d(ary: ArrayLike | Sequence[Any], /) -> Array: ...


@overload
def atleast_2d(
    ary: ArrayLike | Sequence[Any],
    second: ArrayLike | Sequence[Any],
    /,
    *arys: ArrayLike | Sequence[Any],
) -> list[Array]: ...


def atleast_2d(*arys: ArrayLike | Sequence[Any]) -> Array | list[Array]:
    """Each array with at least two dimensions, new ones in front."""
    return _each([front_axes(x, 2) for x in map(asarray, arys)])


@overload
def atleast_3d(ary: ArrayLike | Sequence[Any], /) -> Array: ...


@overload
def atleast_3d(
    ary: ArrayLike | Sequence[Any],
    second: ArrayLike | Sequence[Any],
    /,
    *arys: ArrayLike | Sequence[Any],
) -> list[Array]: ...


def atleast_3d(*arys: ArrayLike | Sequence[Any]) -> Array | list[Array]:
    """Each array with at least three dimensions: a vector lies along the middle one."""
    return _each(
        [
            p.reshape(x, (*x.shape, 1))
            if x.ndim == 2
            else p.reshape(x, (1, x.size, 1))
            if x.ndim < 2
            else x
            for x in map(asarray, arys)
        ]
    )


def front_axes(x: Array, n: int) -> Array:
    """`x` with leading axes of length one up to `n` dimensions."""
    return p.reshape(x, (1,) * (n - x.ndim) + x.aval.shape) if x.ndim < n else x


def _each(results: list[Array]) -> Array | list[Array]:
    return results[0] if len(results) == 1 else results


# ---- axes ----


def transpose(a: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """`a` with axes reversed, or with axis i of the result being axis `axes[i]`."""
    a = value(a, "transpose")
    if axes is None:
        return p.transpose(a, range(a.ndim)[::-1])
    axes = canonical_axes(tuple(axes), a.ndim, "transpose")
    if len(axes) != a.ndim:
        raise located(
            errors.ShapeError(f"transpose: {list(axes)} does not name all axes of {a.aval}")
        )
    return p.transpose(a, axes)


permute_dims = transpose


def matrix_transpose(x: ArrayLike, /) -> Array:
    """`x` with its last two axes exchanged."""
    x = value(x, "matrix_transpose")
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose takes at least 2 dimensions, got {x.aval}")
    return swapaxes(x, -1, -2)


def swapaxes(a: ArrayLike, axis1: int, axis2: int) -> Array:
    """`a` with two axes exchanged."""
    a = value(a, "swapaxes")
    i, j = [canonical_axis(x, a.ndim, "swapaxes") for x in (axis1, axis2)]
    order = list(range(a.ndim))
    order[i], order[j] = order[j], order[i]
    return p.transpose(a, order)


def moveaxis(a: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """`a` with axes `source` moved to positions `destination`; the others keep their order."""
    a = value(a, "moveaxis")
    sources = canonical_axes(source, a.ndim, "moveaxis")
    targets = canonical_axes(destination, a.ndim, "moveaxis")
    if len(sources) != len(targets):
        raise ValueError(f"moveaxis: {len(sources)} sources but {len(targets)} destinations")
    order = [i for i in range(a.ndim) if i not in sources]
    for target, origin in sorted(zip(targets, sources)):
        order.insert(target, origin)
    return p.transpose(a, order)


def rollaxis(a: ArrayLike, axis: int, start: int = 0) -> Array:
    """`a` with `axis` moved in front of axis `start`."""
    n = ndim(a)
    axis = canonical_axis(axis, n, "rollaxis")
    start = start + n if start < 0 else start
    return moveaxis(a, axis, start - 1 if axis < start else start)


def flip(m: ArrayLike, axis: Axis = None) -> Array:
    """`m` with the order of elements reversed along `axis`, or along all axes."""
    m = value(m, "flip")
    return rev(m, range(m.ndim) if axis is None else canonical_axes(axis, m.ndim, "flip"))


def fliplr(m: ArrayLike) -> Array:
    """`m` reversed along its second axis."""
    return flip(m, 1)


def flipud(m: ArrayLike) -> Array:
    """`m` reversed along its first axis."""
    return flip(m, 0)


def rot90(m: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """`m` turned by 90 degrees k times, from the first of `axes` towards the second."""
    m = value(m, "rot90")
    a, b = canonical_axes(axes, m.ndim, "rot90")
    k %= 4
    if k == 0:
        return m
    if k == 2:
        return rev(m, (a, b))
    return swapaxes(rev(m, (b,)), a, b) if k == 1 else rev(swapaxes(m, a, b), (b,))


# ---- broadcasting ----


def broadcast_to(array: ArrayLike, shape: ShapeLike) -> Array:
    """`array` repeated to `shape`. Raises ShapeError where it does not broadcast to it."""
    x, new = value(array, "broadcast_to"), shape_of(shape)
    own = x.aval.shape
    fits = len(own) <= len(new) and all(n in (1, m) for n, m in zip(own[::-1], new[::-1]))
    if not fits:
        raise located(
            errors.ShapeError(f"broadcast_to: {x.aval} does not broadcast to {list(new)}")
        )
    return broadcast(x, new)


def broadcast_arrays(*args: ArrayLike) -> list[Array]:
    """The arrays repeated to their common shape, dtypes unchanged."""
    xs = [value(a, "broadcast_arrays") for a in args]
    shape = broadcast_shapes(*[x.aval.shape for x in xs])
    return [broadcast(x, shape) for x in xs]


# ---- joining ----


def concatenate(
    arrays: ArrayLike | Sequence[Any], axis: int | None = 0, dtype: DTypeLike | None = None
) -> Array:
    """Arrays joined along an existing axis, in their common dtype; axis None flattens them."""
    xs = structural.arrays_of(arrays, "concatenate")
    if axis is None:
        xs, axis = [ravel(x) for x in xs], 0
    if xs[0].ndim == 0:
        raise ValueError("concatenate: scalars cannot be joined; use stack")
    if dtype is not None:
        d = dtypes.dtype(dtype)
        xs = [convert(x, d) for x in xs]
    try:
        return p.concatenate(xs, canonical_axis(axis, xs[0].ndim, "concatenate"))
    except errors.ShapeError as error:
        raise located(error) from None


concat = concatenate


def stack(
    arrays: ArrayLike | Sequence[Any],
    axis: int = 0,
    out: None = None,
    dtype: DTypeLike | None = None,
) -> Array:
    """Arrays of one shape joined along a new axis."""
    xs = structural.arrays_of(arrays, "stack")
    for x in xs:
        if x.aval.shape != xs[0].aval.shape:
            raise located(errors.ShapeError(f"stack: shapes differ: {xs[0].aval} and {x.aval}"))
    axis = canonical_axis(axis, xs[0].ndim + 1, "stack")
    return concatenate([p.expand_dims(x, axis) for x in xs], axis, dtype)


def vstack(tup: ArrayLike | Sequence[Any], dtype: DTypeLike | None = None) -> Array:
    """Arrays joined along the first axis, vectors as rows."""
    return concatenate([front_axes(x, 2) for x in structural.arrays_of(tup, "vstack")], 0, dtype)


row_stack = vstack


def hstack(tup: ArrayLike | Sequence[Any], dtype: DTypeLike | None = None) -> Array:
    """Arrays joined along the second axis; vectors along their only one."""
    xs = [front_axes(x, 1) for x in structural.arrays_of(tup, "hstack")]
    return concatenate(xs, 0 if xs[0].ndim == 1 else 1, dtype)


def dstack(tup: ArrayLike | Sequence[Any], dtype: DTypeLike | None = None) -> Array:
    """Arrays joined along the third axis."""
    return concatenate([atleast_3d(x) for x in structural.arrays_of(tup, "dstack")], 2, dtype)


def column_stack(tup: ArrayLike | Sequence[Any]) -> Array:
    """Vectors as columns, and matrices, joined along the second axis."""
    xs = structural.arrays_of(tup, "column_stack")
    return concatenate([p.reshape(x, (x.size, 1)) if x.ndim < 2 else x for x in xs], 1)


def append(
    arr: ArrayLike | Sequence[Any], values: ArrayLike | Sequence[Any], axis: int | None = None
) -> Array:
    """`arr` with `values` joined at its end along `axis`; None flattens both."""
    return concatenate([asarray(arr), asarray(values)], axis)


def block(arrays: ArrayLike | Sequence[Any]) -> Array:
    """An array assembled from nested lists of blocks, innermost lists along the last axis."""

    def assemble(part: Any, depth: int, total: int) -> Array:
        if not isinstance(part, list):
            return front_axes(asarray(part), total)
        return concatenate(
            [assemble(x, depth + 1, total) for x in part], axis=depth - _depth(arrays)
        )

    total = max(_depth(arrays), *[ndim(x) for x in _blocks(arrays)])
    return assemble(arrays, 0, total)


def _depth(arrays: Any) -> int:
    return 1 + max(_depth(x) for x in arrays) if isinstance(arrays, list) else 0


def _blocks(arrays: Any) -> list[Array]:
    return (
        [b for x in arrays for b in _blocks(x)] if isinstance(arrays, list) else [asarray(arrays)]
    )


# ---- splitting ----


def split(
    ary: ArrayLike, indices_or_sections: int | Sequence[int] | ArrayLike, axis: int = 0
) -> list[Array]:
    """`ary` cut along `axis` into equal sections, or before each of the given indices."""
    x = value(ary, "split")
    axis = canonical_axis(axis, x.ndim, "split")
    n = x.aval.shape[axis]
    if not isinstance(indices_or_sections, (tuple, list)) and not ndim(indices_or_sections):
        sections = operator.index(cast(int, indices_or_sections))
        if sections <= 0 or n % sections:
            raise located(
                errors.ShapeError(f"split: axis {axis} of {x.aval} does not divide into {sections}")
            )
        return p.split(x, (n // sections,) * sections, axis)
    return _split_at(x, indices_or_sections, axis)


def _split_at(x: Any, positions: Any, axis: int) -> list[Array]:
    n = x.aval.shape[axis]
    cuts = [slice(None, operator.index(i)).indices(n)[1] for i in positions]
    bounds = [0, *cuts, n]
    if bounds == sorted(bounds):
        return p.split(x, [b - a for a, b in zip(bounds, bounds[1:])], axis)
    return [
        p.slice_in_dim(x, a, max(a, b), axis=axis) for a, b in zip(bounds, bounds[1:])
    ]  # decreasing indices give empty parts


def array_split(
    ary: ArrayLike, indices_or_sections: int | Sequence[int] | ArrayLike, axis: int = 0
) -> list[Array]:
    """Like `split`, but sections may differ by one in length."""
    x = value(ary, "array_split")
    axis = canonical_axis(axis, x.ndim, "array_split")
    if isinstance(indices_or_sections, (tuple, list)) or ndim(indices_or_sections):
        return _split_at(x, indices_or_sections, axis)
    sections = operator.index(cast(int, indices_or_sections))
    if sections <= 0:
        raise ValueError(f"array_split: the number of sections must be positive, got {sections}")
    least, extra = divmod(x.aval.shape[axis], sections)
    return p.split(x, [least + (i < extra) for i in range(sections)], axis)


def vsplit(ary: ArrayLike, indices_or_sections: int | Sequence[int] | ArrayLike) -> list[Array]:
    """`split` along the first axis."""
    return split(ary, indices_or_sections, 0)


def hsplit(ary: ArrayLike, indices_or_sections: int | Sequence[int] | ArrayLike) -> list[Array]:
    """`split` along the second axis; of a vector, along its only one."""
    return split(ary, indices_or_sections, 0 if ndim(ary) == 1 else 1)


def dsplit(ary: ArrayLike, indices_or_sections: int | Sequence[int] | ArrayLike) -> list[Array]:
    """`split` along the third axis."""
    return split(ary, indices_or_sections, 2)


def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The slices of `x` along `axis`, without that axis."""
    return structural.unstack(value(x, "unstack"), axis)


# ---- repeating ----


def tile(A: ArrayLike, reps: ShapeLike) -> Array:
    """`A` laid side by side `reps[i]` times along each axis i; missing leading axes are added."""
    x = value(A, "tile")
    counts = shape_of(reps)
    counts = (1,) * (x.ndim - len(counts)) + counts
    return p.tile(front_axes(x, len(counts)), counts)


def resize(a: ArrayLike, new_shape: ShapeLike) -> Array:
    """The elements of `a`, repeated or cut to fill `new_shape`."""
    new = shape_of(new_shape)
    flat, n = ravel(a), math.prod(new)
    if not flat.size:
        return zeros(new, flat.dtype)
    copies = -(-n // flat.size)
    return p.reshape(p.slice(p.tile(flat, (copies,)), (0,), (n,)), new)
