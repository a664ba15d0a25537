"""Reductions that leave NaN out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from genesis_fn.core import dtypes
from genesis_fn.core.types.annotations import Array, ArrayLike, Axis, DTypeLike
from genesis_fn.lax.promotion import inexact_dtype, promote_arrays, strong, value
from genesis_fn.numpy.manipulation.shapes import broadcast_to
from genesis_fn.numpy.mathematics import reductions as r
from genesis_fn.numpy.mathematics.composed import isnan, where, where as _chosen
from genesis_fn.numpy.mathematics.ufuncs import (
    greater,
    logical_and,
    logical_not,
    real,
    sqrt,
    subtract,
)
from genesis_fn.primitives import elementwise as p


def _filled(a: Any, otherwise: float) -> Array:
    """`a` with NaN replaced."""
    a = value(a)
    return where(isnan(a), otherwise, a) if dtypes.is_inexact(a.dtype) else a


def nansum(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """The sum over `axis`, NaN counting as 0."""
    return r.sum(_filled(a, 0.0), axis, dtype, out, keepdims, initial, where)


def nanprod(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """The product over `axis`, NaN counting as 1."""
    return r.prod(_filled(a, 1.0), axis, dtype, out, keepdims, initial, where)


def nancumsum(
    a: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None
) -> Array:
    """`cumsum` with NaN counting as 0."""
    return r.cumsum(_filled(a, 0.0), axis, dtype, out)


def nancumprod(
    a: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None
) -> Array:
    """`cumprod` with NaN counting as 1."""
    return r.cumprod(_filled(a, 1.0), axis, dtype, out)


def _extreme(
    reduce: Callable[..., Any],
    worst: float,
    a: Any,
    axis: Any,
    out: None,
    keepdims: bool,
    initial: Any,
    where_: Any,
) -> Array:
    a = value(a)
    x = reduce(_filled(a, worst), axis, out, keepdims, initial, where_)
    if not dtypes.is_inexact(a.dtype) or initial is not None:
        return x
    return where(r.all(isnan(a), axis, keepdims=keepdims), math.nan, x)


def nanmax(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """The maximum over `axis` of what is not NaN; NaN where all is."""
    return _extreme(r.max, -math.inf, a, axis, out, keepdims, initial, where)


def nanmin(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """The minimum over `axis` of what is not NaN; NaN where all is."""
    return _extreme(r.min, math.inf, a, axis, out, keepdims, initial, where)


def nanargmax(
    a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None
) -> Array:
    """The position of the maximum of what is not NaN; -1 where all is NaN."""
    a = value(a)
    x = r.argmax(_filled(a, -math.inf), axis, out, keepdims)
    return where(r.all(isnan(a), axis, keepdims=bool(keepdims)), -1, x)


def nanargmin(
    a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None
) -> Array:
    """The position of the minimum of what is not NaN; -1 where all is NaN."""
    a = value(a)
    x = r.argmin(_filled(a, math.inf), axis, out, keepdims)
    return where(r.all(isnan(a), axis, keepdims=bool(keepdims)), -1, x)


def _present(name: str, a: Any, mask: Any) -> Array:
    there = logical_not(isnan(a))
    if mask is None:
        return there
    mask = r.selection(mask, there.aval.shape, name)
    return logical_and(broadcast_to(there, mask.aval.shape), mask)


def nanmean(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    where: ArrayLike | None = None,
) -> Array:
    """The mean over `axis` of what is not NaN."""
    (a,) = promote_arrays("nanmean", (value(a),), inexact=True)
    return r.mean(a, axis, dtype, out, keepdims, where=_present("nanmean", a, where))


def nanvar(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
) -> Array:
    """The variance over `axis` of what is not NaN; NaN where too few elements are left. `mean` is
    the mean where it is known, with the reduced axes kept."""
    (a,) = promote_arrays("nanvar", (value(a),), inexact=True)
    if (
        dtype is not None
        and dtypes.is_complex(a.dtype)
        and not dtypes.is_complex(dtypes.dtype(dtype))
    ):
        raise ValueError("nanvar: a complex array needs a complex dtype")
    mask = _present("nanvar", a, where)
    d = inexact_dtype(a.dtype) if dtype is None else dtypes.dtype(dtype)
    # Masked elements become 0 before the squares: a NaN times a cotangent of 0 would be NaN.
    wide = _chosen(mask, p.convert(a, dtypes.F32 if d.itemsize < 4 else d), 0)
    if mean is None:
        center = r.mean(wide, axis, keepdims=True, where=mask)
    else:
        center = p.convert(value(mean), wide.dtype)
    centered = subtract(wide, center)
    if dtypes.is_complex(centered.dtype):
        squares = p.square(p.real(centered)) + p.square(p.imag(centered))
    else:
        squares = p.square(centered)
    shape = squares.aval.shape
    count = r.sum(broadcast_to(mask, shape), axis, dtypes.I32, keepdims=keepdims)
    total = r.sum(squares, axis, keepdims=keepdims, where=mask)
    # Without a degree of freedom the result is NaN with derivatives of 0, as in JAX.
    degrees = subtract(p.convert(count, total.dtype), ddof)
    left = greater(degrees, 0)
    variance = _chosen(left, total / _chosen(left, degrees, 1), math.nan)
    variance = p.convert(variance, dtypes.real_of(d))
    return strong(variance if dtype is None else p.convert(variance, d))


def nanstd(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
) -> Array:
    """The standard deviation over `axis` of what is not NaN, around `mean` where it is given."""
    variance = nanvar(a, axis, dtype, out, ddof, keepdims, where, mean)
    return p.convert(sqrt(real(variance)), variance.dtype)
