"""Reductions and cumulative functions, with `dtype=`, `where=`, `initial=` and `keepdims=`."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.dtypes import BOOL, DType
from genesis_fn.core.primitive import with_weak
from genesis_fn.core.types.annotations import Array, ArrayLike, Axis, DTypeLike, PyTree
from genesis_fn.lax.creation import asarray
from genesis_fn.lax.promotion import broadcast_shapes, inexact_dtype, promote_arrays, strong, value
from genesis_fn.numpy.manipulation.shapes import broadcast_to, concatenate, on_axis
from genesis_fn.numpy.mathematics.composed import isnan, where as choose
from genesis_fn.numpy.mathematics.ufuncs import (
    add,
    divide,
    greater,
    logical_and,
    logical_or,
    maximum,
    minimum,
    multiply,
    real,
    sqrt,
    subtract,
    truth,
)
from genesis_fn.primitives import elementwise as p
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.reductions import complex_order, cumulative as cumulatives, reduce as r
from genesis_fn.primitives.reductions.reduce_generic import reduce_prod
from genesis_fn.primitives.shape import canonical_axes, canonical_axis, reshape, transpose
from genesis_fn.transforms.staging.one_call import as_one_call


def reduced_axes(axis: Axis, ndim: int, name: str) -> tuple[int, ...]:
    """The axes to reduce over, counted from the front; all of them for None."""
    if axis is None:
        return tuple(range(ndim))
    return canonical_axes(tuple(axis) if isinstance(axis, list) else axis, ndim, name)


def _kept(x: Any, a: Any, axes: Sequence[int], keepdims: bool) -> Array:
    """The reduction `x` of `a`, with the reduced axes of length 1 if `keepdims`."""
    if not keepdims:
        return x
    return reshape(x, [1 if i in axes else n for i, n in enumerate(a.aval.shape)])


def selection(where: ArrayLike, shape: Sequence[int], name: str) -> Array:
    """The mask that `where=` gives, in the shape that it and an operand's broadcast to. Raises
    ValueError for one that is not boolean."""
    mask = value(where, name)
    if mask.aval.dtype != BOOL:
        raise errors.DTypeError(f"{name}: where= must be a boolean array, got {mask.aval}")
    return broadcast_to(mask, broadcast_shapes(shape, mask.aval.shape))


def _masked(name: str, a: Any, where: Any, otherwise: Any) -> Array:
    """`a` where `where` selects it, else the reduction's neutral value."""
    if where is None:
        return a
    mask = selection(where, a.aval.shape, name)
    shape = mask.aval.shape
    return choose(mask, broadcast_to(a, shape), full(shape, otherwise, a.aval.dtype))


def _initial(name: str, initial: Any, d: DType) -> Array:
    """The value that a reduction starts from, as an array. Raises ValueError if it has axes."""
    x = asarray(initial, d)
    if x.ndim:
        raise errors.ShapeError(f"{name}: initial= must be a scalar, got {x.aval}")
    return x


def _limits(d: DType) -> tuple[Any, Any]:
    """(least, greatest) value of a dtype, as Python numbers."""
    if d == BOOL:
        return False, True
    if dtypes.is_float(d):
        has_infinity = d != dtypes.F8E4
        bound = math.inf if has_infinity else float(dtypes.finfo(d).max)
        return -bound, bound
    info = dtypes.iinfo(d)
    return int(info.min), int(info.max)


def _no_out(out: None, name: str) -> None:
    if out is not None:
        raise TypeError(f"{name}: arrays are immutable, so there is no out=; use the result")


def accumulated(d: DType, promote_integers: bool = True) -> DType:
    """The dtype in which integers of dtype `d` are summed: at least as wide as the default."""
    if d == BOOL:
        return dtypes.default_int()
    if promote_integers and dtypes.is_integer(d):
        wide = dtypes.default_uint() if dtypes.is_unsigned(d) else dtypes.default_int()
        return wide if d.itemsize < wide.itemsize else d
    return d


# ---- sums and products ----


def _fold(
    name: str,
    reduce: Callable[..., Any],
    combine: Callable[..., Any],
    neutral: int,
    a: Any,
    axis: Any,
    dtype: Any,
    keepdims: bool,
    initial: Any,
    where: Any,
    promote_integers: bool,
) -> Array:
    a = value(a, name)
    if dtype is None:
        d = accumulated(a.aval.dtype, promote_integers)
    else:
        d = dtypes.dtype(dtype)
    narrow = dtypes.is_float(d) and d.itemsize < 4 and initial is not None
    a = p.convert(a, dtypes.F32 if narrow else d)
    a = _masked(name, a, where, _number(neutral, a.aval.dtype))
    axes = reduced_axes(axis, a.ndim, name)
    x = _kept(reduce(a, axes), a, axes, keepdims)
    if initial is not None:
        x = combine(x, _initial(name, initial, x.aval.dtype))
    return strong(p.convert(x, d))


def _number(x: int, d: DType) -> Any:
    return (bool, int, float, complex)[dtypes.kind_rank(d)](x)


@as_one_call
def sum(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
    promote_integers: bool = True,
) -> Array:
    """The sum over `axis` (an int, several, or all for None).

    Booleans and integers below 32 bits are summed in 32 bits; 16-bit floats accumulate in float32.
    `where` selects elements; `initial` is added.
    """
    _no_out(out, "sum")
    return _fold(
        "sum", r.reduce_sum, add, 0, a, axis, dtype, keepdims, initial, where, promote_integers
    )


@as_one_call
def prod(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
    promote_integers: bool = True,
) -> Array:
    """The product over `axis`; dtypes as in `sum`."""
    _no_out(out, "prod")
    return _fold(
        "prod", reduce_prod, multiply, 1, a, axis, dtype, keepdims, initial, where, promote_integers
    )


def _wide(d: DType) -> DType:
    """The dtype to compute a mean in: 16-bit floats in float32."""
    return dtypes.F32 if dtypes.is_float(d) and d.itemsize < 4 else d


def _count(name: str, a: Any, axes: Sequence[int], where: Any, keepdims: bool, d: DType) -> Any:
    """How many elements a reduction takes in: a number, or an array of dtype `d` with `where`."""
    if where is None:
        return math.prod(a.aval.shape[i] for i in axes)
    mask = selection(where, a.aval.shape, name)
    return p.convert(sum(mask, axes, dtypes.I32, keepdims=keepdims), d)


@as_one_call
def mean(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """The mean over `axis`, float32 for integers; 16-bit floats are averaged in float32."""
    _no_out(out, "mean")
    a = value(a, "mean")
    d = inexact_dtype(a.aval.dtype) if dtype is None else dtypes.dtype(dtype)
    computed = inexact_dtype(_wide(d))
    axes = reduced_axes(axis, a.ndim, "mean")
    # reduce_sum accumulates 16-bit floats in float32 by itself; only its rounded result would lose.
    n = _count("mean", a, axes, where, keepdims, computed)
    total = sum(p.convert(a, computed), axes, keepdims=keepdims, where=where)
    return strong(p.convert(divide(total, float(n) if isinstance(n, int) else n), d))


@overload
def average(
    a: ArrayLike,
    axis: Axis = None,
    weights: ArrayLike | None = None,
    returned: Literal[False] = False,
    keepdims: bool = False,
) -> Array: ...


@overload
def average(
    a: ArrayLike,
    axis: Axis = None,
    weights: ArrayLike | None = None,
    *,
    returned: Literal[True],
    keepdims: bool = False,
) -> tuple[Array, Array]: ...


@overload
def average(
    a: ArrayLike,
    axis: Axis = None,
    weights: ArrayLike | None = None,
    returned: bool = False,
    keepdims: bool = False,
) -> PyTree: ...


def average(
    a: ArrayLike,
    axis: Axis = None,
    weights: ArrayLike | None = None,
    returned: bool = False,
    keepdims: bool = False,
) -> PyTree:
    """The mean over `axis` weighted by `weights`; with `returned`, (mean, sum of weights)."""
    a = value(a, "average")
    if weights is None:
        x = mean(a, axis, keepdims=keepdims)
        if not returned:
            return x
        n = a.size // builtins.max(x.size, 1) if a.size else 0
        return x, full(x.aval.shape, float(n), x.aval.dtype)
    a, w = promote_arrays("average", (a, value(weights)), inexact=True)
    if a.aval.shape != w.aval.shape:
        axes = reduced_axes(axis, a.ndim, "average")
        if axis is None:
            raise TypeError(
                f"average: weights {w.aval} differ in shape from {a.aval}: name an axis"
            )
        if w.aval.shape != tuple([a.aval.shape[i] for i in axes]):
            raise errors.ShapeError(f"average: weights {w.aval} do not fit axes {axes} of {a.aval}")
        order = sorted(range(len(axes)), key=axes.__getitem__)
        w = transpose(w, order)
        w = broadcast_to(
            reshape(w, [n if i in axes else 1 for i, n in enumerate(a.aval.shape)]), a.aval.shape
        )
    total = sum(w, axis, keepdims=keepdims)
    x = divide(sum(multiply(a, w), axis, keepdims=keepdims), total)
    return (x, total) if returned else x


@as_one_call
def var(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
    correction: float | None = None,
    mean: ArrayLike | None = None,
) -> Array:
    """The variance over `axis`: the mean of |a - mean|**2, divided by n - ddof instead of n."""
    _no_out(out, "var")
    a = value(a, "var")
    if correction is not None:
        if ddof:
            raise ValueError("var: give ddof or correction, not both")
        ddof = correction
    d = inexact_dtype(a.aval.dtype) if dtype is None else dtypes.dtype(dtype)
    if dtype is not None and dtypes.is_complex(a.aval.dtype) and not dtypes.is_complex(d):
        raise ValueError("var: a complex array needs a complex dtype")
    computed = inexact_dtype(_wide(d))
    axes = reduced_axes(axis, a.ndim, "var")
    n = _count("var", a, axes, where, keepdims, dtypes.real_of(computed))
    a = p.convert(a, computed)
    center = _mean_kept(a, axes, where) if mean is None else p.convert(value(mean), computed)
    centered = subtract(a, center)
    if dtypes.is_complex(computed):
        squares = add(p.square(p.real(centered)), p.square(p.imag(centered)))
    else:
        squares = p.square(centered)
    total = sum(squares, axes, keepdims=keepdims, where=where)
    result = _over_degrees(total, n, ddof)
    if dtype is None:
        return strong(p.convert(result, dtypes.real_of(d)))
    if not dtypes.is_inexact(d):  # an integer dtype was requested: a weak float, as in JAX
        return with_weak(result, True)
    return strong(p.convert(result, d))


def _over_degrees(total: Any, n: Any, ddof: Any) -> Any:
    """total / (n - ddof), and NaN where no degree of freedom is left."""
    if isinstance(n, int) and isinstance(ddof, (int, float, np.number, np.ndarray)):
        return divide(total, float(n - ddof) if n > ddof else math.nan)
    n = subtract(n, ddof)
    return choose(greater(n, 0), divide(total, n), math.nan)


def _mean_kept(a: Array, axes: Sequence[int], where: ArrayLike | None) -> Array:
    """The mean over `axes`, which are kept."""
    return mean(a, tuple(axes), keepdims=True, where=where)


@as_one_call
def std(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
    correction: float | None = None,
    mean: ArrayLike | None = None,
) -> Array:
    """The standard deviation over `axis`: the square root of `var`."""
    _no_out(out, "std")
    a = value(a, "std")
    d = inexact_dtype(a.aval.dtype) if dtype is None else dtypes.dtype(dtype)
    wide = _wide(d)
    variance = var(
        a, axis, wide, None, ddof, keepdims, where=where, correction=correction, mean=mean
    )
    x = sqrt(real(variance))
    return strong(p.convert(x, dtypes.real_of(d) if dtype is None else d))


# ---- extremes ----


def _extreme(
    name: str,
    reduce: Callable[..., Any],
    combine: Callable[..., Any],
    worst: int,
    a: Any,
    axis: Any,
    keepdims: bool,
    initial: Any,
    where: Any,
) -> Array:
    a = value(a, name)
    if where is not None and initial is None:
        raise ValueError(f"{name}: where= needs initial=, the result where nothing is selected")
    axes = reduced_axes(axis, a.ndim, name)
    if initial is None and not math.prod(a.aval.shape[i] for i in axes):
        raise ValueError(f"{name} of nothing: {a.aval} over axes {list(axes)} needs initial=")
    d = a.aval.dtype
    whole = dtypes.is_complex(d)
    bound = _limits(dtypes.real_of(d) if whole else d)[worst]
    a = _masked(name, a, where, complex(bound, bound) if whole else bound)
    x = complex_order.reduced(not worst, a, axes) if whole else reduce(a, axes)
    x = strong(_kept(x, a, axes, keepdims))
    return x if initial is None else combine(x, _initial(name, initial, d))


@as_one_call
def max(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """The maximum over `axis`; NaN where one is. Raises ValueError for none without `initial`."""
    _no_out(out, "max")
    return _extreme("max", r.reduce_max, maximum, 0, a, axis, keepdims, initial, where)


@as_one_call
def min(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """The minimum over `axis`; NaN where one is. Raises ValueError for none without `initial`."""
    _no_out(out, "min")
    return _extreme("min", r.reduce_min, minimum, 1, a, axis, keepdims, initial, where)


amax, amin = max, min


def ptp(a: ArrayLike, axis: Axis = None, out: None = None, keepdims: bool = False) -> Array:
    """max - min over `axis`."""
    _no_out(out, "ptp")
    return subtract(max(a, axis, keepdims=keepdims), min(a, axis, keepdims=keepdims))


# ---- logic ----


def _logic(
    name: str,
    reduce: Callable[..., Any],
    combine: Callable[..., Any],
    neutral: bool,
    a: Any,
    axis: Any,
    keepdims: bool,
    where: Any,
) -> Array:
    a = _masked(name, truth(value(a, name)), where, neutral)
    axes = reduced_axes(axis, a.ndim, name)
    return strong(_kept(reduce(a, axes), a, axes, keepdims))


@as_one_call
def all(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Whether all elements over `axis` are nonzero."""
    _no_out(out, "all")
    return _logic("all", r.reduce_and, logical_and, True, a, axis, keepdims, where)


@as_one_call
def any(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Whether an element over `axis` is nonzero."""
    _no_out(out, "any")
    return _logic("any", r.reduce_or, logical_or, False, a, axis, keepdims, where)


def count_nonzero(a: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """How many elements over `axis` are not zero, as int32 (int64 with `enable_x64`)."""
    return sum(truth(value(a, "count_nonzero")), axis, keepdims=keepdims)


# ---- positions of extremes ----


def _position(name: str, find: Callable[..., Any], a: Any, axis: Any, keepdims: Any) -> Array:
    original = value(a, name)
    a, axis = on_axis(name, original, axis)
    if a.aval.shape[axis] == 0:
        raise ValueError(f"{name} of nothing: axis {axis} of {a.aval} is empty")
    if dtypes.is_complex(a.aval.dtype):
        best = (max if name == "argmax" else min)(a, axis, keepdims=True)
        hit = p.eq(a, broadcast_to(best, a.aval.shape))
        x = r.argmax(p.bitwise_or(hit, isnan(a)), axis, dtypes.default_int())
    else:
        x = find(a, axis, dtypes.default_int())
    if not keepdims:
        return x
    lengths = [1] * original.ndim if a is not original else list(a.aval.shape)
    if a is original:
        lengths[axis] = 1
    return reshape(x, lengths)


@as_one_call
def argmax(
    a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None
) -> Array:
    """The first position of the maximum along `axis` (flattened for None), as int32 (int64 with
    `enable_x64`)."""
    _no_out(out, "argmax")
    return _position("argmax", r.argmax, a, axis, keepdims)


@as_one_call
def argmin(
    a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None
) -> Array:
    """The first position of the minimum along `axis` (flattened for None), as int32 (int64 with
    `enable_x64`)."""
    _no_out(out, "argmin")
    return _position("argmin", r.argmin, a, axis, keepdims)


# ---- cumulative ----


def _cumulative(name: str, run: Callable[..., Any], a: Any, axis: Any, dtype: Any) -> Array:
    a, axis = on_axis(name, a, axis)
    if dtype is not None:
        d = dtypes.dtype(dtype)
    else:
        d = accumulated(a.aval.dtype, promote_integers=False)
    if d == BOOL:  # whether any, or all, so far
        wide = run(p.convert(truth(a), dtypes.I32), axis)
        return strong(p.ne(wide, 0))
    return strong(run(p.convert(a, d), axis))


def cumsum(
    a: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None
) -> Array:
    """The sums of each element and those before it along `axis` (flattened for None)."""
    _no_out(out, "cumsum")
    return _cumulative("cumsum", cumulatives.cumsum, a, axis, dtype)


def cumprod(
    a: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None
) -> Array:
    """The products of each element and those before it along `axis` (flattened for None)."""
    _no_out(out, "cumprod")
    return _cumulative("cumprod", cumulatives.cumprod, a, axis, dtype)


def _with_initial(
    name: str,
    run: Callable[..., Any],
    first: int,
    x: Any,
    axis: Any,
    dtype: Any,
    include_initial: bool,
) -> Array:
    x = value(x, name)
    if x.ndim == 0:
        raise ValueError(f"{name} needs at least one dimension")
    if axis is None:
        if x.ndim > 1:
            raise ValueError(f"{name}: name the axis of {x.aval}")
        axis = 0
    y = run(x, axis, accumulated(x.aval.dtype) if dtype is None else dtype)
    if not include_initial:
        return y
    shape = list(y.aval.shape)
    shape[canonical_axis(axis, y.ndim, name)] = 1
    return concatenate([full(tuple(shape), _number(first, y.aval.dtype), y.aval.dtype), y], axis)


def cumulative_sum(
    x: ArrayLike,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Array:
    """`cumsum` of the array API: with `include_initial`, a zero comes first."""
    return _with_initial("cumulative_sum", cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: ArrayLike,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Array:
    """`cumprod` of the array API: with `include_initial`, a one comes first."""
    return _with_initial("cumulative_prod", cumprod, 1, x, axis, dtype, include_initial)
