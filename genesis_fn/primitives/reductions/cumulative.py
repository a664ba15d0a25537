"""Cumulative reductions along one axis, and the linear recurrence that their derivatives are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.primitive import SCALARS, Primitive, bind, is_linear, typeof
from genesis_fn.core.types.annotations import Array
from genesis_fn.primitives import shape as shapes
from genesis_fn.primitives.elementwise import add, convert, div, eq, exp, select, sub
from genesis_fn.primitives.factories import (
    DTYPE_CLASSES,
    each_operand,
    full,
    linear,
    move_batch,
    scale,
)
from genesis_fn.primitives.reductions.reduce import axis_in


def _same_shape(name: str, accepts: str) -> Callable[..., Aval]:
    admits, words = DTYPE_CLASSES[accepts]

    def shape(x: Aval, *, axis: int, reverse: bool) -> Aval:
        if not admits(x.dtype):
            raise errors.DTypeError(f"{name} takes {words}, got {x}")
        if not 0 <= axis < x.ndim:
            raise errors.ShapeError(f"{name}: axis {axis} does not fit {x}")
        return x

    return shape


def _along(prim: Primitive) -> Callable[..., Any]:
    """The batching rule of operations along `axis` of operands of one shape."""

    def batch(
        size: int, xs: Sequence[Any], dims: Sequence[Any], *, axis: int, **params: Any
    ) -> Any:
        d = next(d for d in dims if d is not None)
        moved = [x if type(x) in SCALARS else move_batch(x, k, d, size) for x, k in zip(xs, dims)]
        return bind(prim, *moved, axis=axis + (axis >= d), **params), d

    return batch


# ---- cumsum ----

cumsum_p = linear(
    "cumsum",
    _same_shape("cumsum", "number"),
    transpose=lambda ct, x, *, axis, reverse: cumsum(ct, axis, not reverse),
    batch=lambda size, x, d, *, axis, reverse: (cumsum(x, axis + (axis >= d), reverse), d),
    precision="high",
    flops=each_operand,
)


def cumsum(operand: Array, axis: int = 0, reverse: bool = False) -> Array:
    """The sum of each element and those before it (`reverse`: after it) along `axis`."""
    axis = axis_in(axis, typeof(operand).ndim, "cumsum", operand)
    return bind(cumsum_p, operand, axis=axis, reverse=bool(reverse))


# ---- linear recurrence ----


def _recurrence_shape(a: Aval, b: Aval, *, axis: int, reverse: bool) -> Aval:
    if a != b:
        raise errors.ShapeError(f"linear_recurrence: coefficients {a} and inputs {b} must agree")
    if not dtypes.is_inexact(a.dtype) or not 0 <= axis < a.ndim:
        raise errors.ShapeError(f"linear_recurrence takes floats with an axis {axis}, got {a}")
    return a


def _shift(x: Any, axis: int, reverse: bool, fill: Any = None) -> Any:
    """Move x by one position along `axis` (backwards if `reverse`); zeros, or `fill`, move in."""
    aval = typeof(x)
    n = aval.shape[axis]
    value = (0.0 if not dtypes.is_complex(aval.dtype) else 0j) if fill is None else fill
    edge = full([1 if i == axis else m for i, m in enumerate(aval.shape)], value, aval.dtype)
    if n <= 1:
        return edge if n else x
    if reverse:
        return shapes.concatenate([shapes.slice_in_dim(x, 1, n, 1, axis), edge], axis)
    return shapes.concatenate([edge, shapes.slice_in_dim(x, 0, n - 1, 1, axis)], axis)


def _recurrence_linearize(nonzero: Any, a: Any, b: Any, *, axis: int, reverse: bool) -> Any:
    h = linear_recurrence(a, b, axis, reverse)

    def tangent(ta: Any, tb: Any) -> Any:
        # dh_k = a_k dh_{k-1} + (da_k h_{k-1} + db_k): the same recurrence with another input.
        driven = None if ta is None else scale(ta, _shift(h, axis, reverse))
        inputs = tb if driven is None else driven if tb is None else add(driven, tb)
        return linear_recurrence(a, inputs, axis, reverse)

    return h, tangent


def _recurrence_transpose(ct: Any, a: Any, b: Any, *, axis: int, reverse: bool) -> list[Any]:
    if is_linear(a):
        raise errors.NotDifferentiableError("linear_recurrence is not linear in its coefficients")
    # g_k = ct_k + a_{k+1} g_{k+1}: the recurrence runs the other way.
    return [None, linear_recurrence(_shift(a, axis, not reverse), ct, axis, not reverse)]


linear_recurrence_p = Primitive(
    "linear_recurrence",
    _recurrence_shape,
    linearize=_recurrence_linearize,
    transpose=_recurrence_transpose,
    precision="high",
)
linear_recurrence_p.batch = _along(linear_recurrence_p)


def linear_recurrence(a: Array, b: Array, axis: int = 0, reverse: bool = False) -> Array:
    """h along `axis` with h_k = a_k h_{k-1} + b_k and h_{-1} = 0 (`reverse`: from the far end).

    a and b have one shape and floating dtype. Linear in b; differentiable in both, to any order.
    """
    axis = axis_in(axis, typeof(b).ndim, "linear_recurrence", b)
    return bind(linear_recurrence_p, a, b, axis=axis, reverse=bool(reverse))


# ---- cumprod ----

cumprod_p = Primitive(
    "cumprod", _same_shape("cumprod", "number"), precision="high", flops=each_operand
)
cumprod_p.batch = _along(cumprod_p)


def _cumprod_linearize(nonzero: Any, x: Any, *, axis: int, reverse: bool) -> Any:
    y = bind(cumprod_p, x, axis=axis, reverse=reverse)

    def tangent(t: Any) -> Any:
        # dy_k = x_k dy_{k-1} + y_{k-1} dx_k: no division, so zeros are exact.
        before = _shift(y, axis, reverse, _one(typeof(x).dtype))
        return linear_recurrence(x, scale(t, before), axis, reverse)

    return y, tangent


def _one(dtype: Any) -> Any:
    return 1 + 0j if dtypes.is_complex(dtype) else 1.0


cumprod_p.linearize = _cumprod_linearize


def cumprod(operand: Array, axis: int = 0, reverse: bool = False) -> Array:
    """The product of each element and those before it (`reverse`: after it) along `axis`."""
    axis = axis_in(axis, typeof(operand).ndim, "cumprod", operand)
    return bind(cumprod_p, operand, axis=axis, reverse=bool(reverse))


# ---- cummax, cummin ----


def _extreme(name: str) -> Primitive:
    prim = Primitive(name, _same_shape(name, "ordered"), flops=each_operand)
    prim.batch = _along(prim)

    def linearize(nonzero: Any, x: Any, *, axis: int, reverse: bool) -> Any:
        y = bind(prim, x, axis=axis, reverse=reverse)

        def tangent(t: Any) -> Any:
            # The sum of the tangents of all elements so far that equal the extreme, over their
            # number: ties share evenly, as in reduce_max.
            dtype = typeof(x).dtype
            here = convert(eq(x, y), dtype)
            kept = convert(eq(y, _shift(y, axis, reverse, math.nan)), dtype)
            total = linear_recurrence(kept, scale(t, here), axis, reverse)
            return div(total, linear_recurrence(kept, here, axis, reverse))

        return y, tangent

    prim.linearize = linearize
    return prim


cummax_p = _extreme("cummax")
cummin_p = _extreme("cummin")


def cummax(operand: Array, axis: int = 0, reverse: bool = False) -> Array:
    """The maximum of each element and those before it (`reverse`: after); NaN once one is met."""
    axis = axis_in(axis, typeof(operand).ndim, "cummax", operand)
    return bind(cummax_p, operand, axis=axis, reverse=bool(reverse))


def cummin(operand: Array, axis: int = 0, reverse: bool = False) -> Array:
    """The minimum of each element and those before it (`reverse`: after); NaN once one is met."""
    axis = axis_in(axis, typeof(operand).ndim, "cummin", operand)
    return bind(cummin_p, operand, axis=axis, reverse=bool(reverse))


# ---- cumlogsumexp ----

cumlogsumexp_p = Primitive(
    "cumlogsumexp",
    _same_shape("cumlogsumexp", "float"),
    precision="high",
    flops=each_operand,
    transcendental=True,
)
cumlogsumexp_p.batch = _along(cumlogsumexp_p)


def _cumlogsumexp_linearize(nonzero: Any, x: Any, *, axis: int, reverse: bool) -> Any:
    y = bind(cumlogsumexp_p, x, axis=axis, reverse=reverse)

    def tangent(t: Any) -> Any:
        # dy_k = e^(y_{k-1} - y_k) dy_{k-1} + e^(x_k - y_k) dx_k: weights in [0, 1] that sum to 1.
        before = _shift(y, axis, reverse, -math.inf)
        none_yet = eq(y, -math.inf)  # -inf - -inf is NaN
        weight = lambda v: select(none_yet, 0.0, exp(sub(v, y)))
        return linear_recurrence(weight(before), scale(t, weight(x)), axis, reverse)

    return y, tangent


cumlogsumexp_p.linearize = _cumlogsumexp_linearize


def cumlogsumexp(operand: Array, axis: int = 0, reverse: bool = False) -> Array:
    """log of the sum of the exponentials of each element and those before it (`reverse`: after)."""
    axis = axis_in(axis, typeof(operand).ndim, "cumlogsumexp", operand)
    return bind(cumlogsumexp_p, operand, axis=axis, reverse=bool(reverse))
