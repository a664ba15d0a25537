"""Sorting, searching in sorted arrays, partial sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.primitive import with_weak
from genesis_fn.core.types.annotations import Array, ArrayLike, DTypeLike
from genesis_fn.lax.promotion import promote_arrays, strong, value
from genesis_fn.numpy.manipulation.shapes import on_axis
from genesis_fn.numpy.mathematics.ufuncs import real
from genesis_fn.primitives import elementwise as p, sort as sorts
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.indexing.gather import take_rows
from genesis_fn.primitives.shape import broadcasted_iota, canonical_axis, rev


def sort(
    a: ArrayLike,
    axis: int | None = -1,
    *,
    kind: None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
) -> Array:
    """`a` in ascending order along `axis` (flattened for None); NaN is last."""
    _no_kind("sort", kind, order)
    a, axis = on_axis("sort", a, axis)
    x = sorts.sort(a, axis, bool(stable))
    return rev(x, (axis,)) if descending else x


def argsort(
    a: ArrayLike,
    axis: int | None = -1,
    *,
    kind: None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
    dtype: DTypeLike | None = None,
) -> Array:
    """The positions that sort `a` along `axis`, int32 (int64 with `enable_x64`) or of an integer
    `dtype`; ties keep their order."""
    _no_kind("argsort", kind, order)
    if dtype is not None:
        d = dtypes.dtype(dtype)
        if not dtypes.is_integer(d):
            raise errors.DTypeError(f"argsort: positions are integers, got dtype {d}")
        found = argsort(a, axis, stable=stable, descending=descending)
        if found.size and max(found.aval.shape) - 1 > dtypes.iinfo(d).max:
            raise errors.DTypeError(f"argsort: {d} holds no positions in {found.aval}")
        return p.convert(found, d)
    a, axis = on_axis("argsort", a, axis)
    if not descending:
        return p.convert(sorts.argsort(a, axis, bool(stable)), dtypes.default_int())
    # Sorting the reversed array and reversing keeps ties in their order.
    n = a.aval.shape[axis]
    found = p.sub(n - 1, rev(sorts.argsort(rev(a, (axis,)), axis, True), (axis,)))
    return p.convert(found, dtypes.default_int())


def _no_kind(name: str, kind: Any, order: Any) -> None:
    if kind is not None or order is not None:
        raise ValueError(f"{name}: kind= and order= are not used; the order is always stable")


def sort_complex(a: ArrayLike) -> Array:
    """`a` sorted by real, then imaginary part, as complex numbers."""
    a = sort(a)
    return strong(p.convert(a, dtypes.complex_of(a.dtype)))


def lexsort(keys: Array | Sequence[ArrayLike], axis: int = -1) -> Array:
    """The positions that sort by the last of `keys`, ties by the one before, and so on."""
    ks = [value(k, "lexsort") for k in keys]
    if not ks:
        raise TypeError("lexsort needs at least one key")
    axis = canonical_axis(axis, ks[0].ndim, "lexsort") if ks[0].ndim else 0
    if not ks[0].ndim:
        return full((), 0, dtypes.default_int())
    positions = broadcasted_iota(dtypes.default_int(), ks[0].aval.shape, axis)
    return sorts.sort([*ks[::-1], positions], axis, True, num_keys=len(ks))[-1]


def partition(a: ArrayLike, kth: int, axis: int = -1) -> Array:
    """`a` arranged along `axis` so that element `kth` is where sorting would put it."""
    a = value(a, "partition")
    axis = canonical_axis(axis, a.ndim, "partition")
    canonical_axis(kth, a.aval.shape[axis], "partition")
    return sorts.sort(a, axis)


def argpartition(a: ArrayLike, kth: int, axis: int = -1) -> Array:
    """The positions that `partition` would take the elements from."""
    a = value(a, "argpartition")
    axis = canonical_axis(axis, a.ndim, "argpartition")
    canonical_axis(kth, a.aval.shape[axis], "argpartition")
    return with_weak(sorts.argsort(a, axis), a.weak)


def searchsorted(
    a: ArrayLike,
    v: ArrayLike,
    side: str = "left",
    sorter: ArrayLike | None = None,
    *,
    method: str = "scan",
) -> Array:
    """Where elements of `v` would be inserted in the sorted vector `a`, as int32.

    "left" inserts before equal elements, "right" after. NaN sorts last.
    """
    if side not in ("left", "right"):
        raise ValueError(f'searchsorted: side must be "left" or "right", got {side!r}')
    a, v = promote_arrays("searchsorted", (a, v))
    if a.ndim != 1:
        raise ValueError(f"searchsorted: a must be a vector, got {a.aval}")
    if sorter is not None:
        a = a[sorter]
    n = a.size
    low = full(v.aval.shape, 0, dtypes.I32)
    if not n:
        return low
    high = full(v.aval.shape, n, dtypes.I32)
    flat = v
    # Halving the interval [low, high) finds the position in log2(n + 1) steps.
    for _ in range(math.ceil(math.log2(n + 1))):
        middle = p.shift_right_arithmetic(p.add(low, high), 1)
        found = _at(a, p.min(middle, n - 1))
        go_right = _before(found, flat, side == "right")
        go_right = p.bitwise_and(go_right, p.lt(middle, high))
        low = p.select(go_right, p.add(middle, 1), low)
        high = p.select(go_right, high, middle)
    return low


def _at(a: Any, index: Any) -> Array:
    return take_rows(a, index, mode="promise_in_bounds")


def _before(x: Any, y: Any, or_equal: bool) -> Array:
    """x < y (or x <= y) as sorting has it: NaN last, complex by real, then imaginary part."""
    if dtypes.is_complex(x.aval.dtype):
        tie = p.eq(real(x), real(y))
        less = p.lt(real(x), real(y))
        rest = (p.le if or_equal else p.lt)(p.imag(x), p.imag(y))
        return p.bitwise_or(less, p.bitwise_and(tie, rest))
    less = (p.le if or_equal else p.lt)(x, y)
    if not dtypes.is_inexact(x.aval.dtype):
        return less
    nan_y = p.ne(y, y)
    return p.bitwise_or(less, nan_y if or_equal else p.bitwise_and(nan_y, p.eq(x, x)))
