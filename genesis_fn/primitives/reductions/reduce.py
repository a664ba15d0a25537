"""Reductions over axes: sum, maximum, minimum, logic, argmax and argmin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend.lowering import Reduce
from genesis_fn.core.dtypes import BOOL, DType
from genesis_fn.core.primitive import Primitive, bind, typeof
from genesis_fn.core.types.annotations import Array, DTypeLike
from genesis_fn.primitives.elementwise import convert, div, eq, scale
from genesis_fn.primitives.factories import (
    DTYPE_CLASSES,
    PRIM,
    axes_except,
    each_operand,
    linear,
    move_batch,
    no_tangent,
)


def reduced(x: Aval, axes: Sequence[int], name: str) -> Aval:
    """Return the aval without `axes`. Raises ShapeError for axes that do not exist."""
    if len(set(axes)) != len(axes) or any(not 0 <= a < x.ndim for a in axes):
        raise errors.ShapeError(f"{name}: axes {list(axes)} do not fit {x}")
    return x.update(tuple([n for i, n in enumerate(x.shape) if i not in axes]))


def axis_in(axis: SupportsIndex, ndim: int, name: str, x: Array) -> int:
    """Count `axis` from the front. Raises ShapeError if `x` has no such axis."""
    if not isinstance(axis, (int, np.integer)) or not -ndim <= axis < ndim:
        raise errors.ShapeError(f"{name}: axis {axis} does not fit {typeof(x)}")
    return int(axis) % ndim


def axes_in(axes: int | Sequence[int], ndim: int, name: str, x: Array) -> tuple[int, ...]:
    """Count `axes` (an int or several) from the front."""
    several = (axes,) if isinstance(axes, (int, np.integer)) else axes
    return tuple([axis_in(a, ndim, name, x) for a in several])


def shifted(size: int, x: Array, d: int, axes: Sequence[int]) -> tuple[Array, tuple[int, ...]]:
    """Move the batch to the front: (operand, axes shifted past it)."""
    return move_batch(x, d, 0, size), tuple([a + 1 for a in axes])


def _spread(y: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """Repeat `y`, a reduction of something like `x` over `axes`, to the shape of `x`."""
    shape = typeof(x).shape
    return bind(PRIM["broadcast_in_dim"], y, shape=shape, dims=axes_except(len(shape), axes))


# ---- sum ----


def _sum_transpose(ct: Any, x: Aval, *, axes: tuple[int, ...]) -> Any:
    kept = axes_except(x.ndim, axes)
    return bind(PRIM["broadcast_in_dim"], ct, shape=x.shape, dims=kept)


def _sum_batch(size: int, x: Any, d: int, *, axes: tuple[int, ...]) -> Any:
    x, axes = shifted(size, x, d, axes)
    return reduce_sum(x, axes), 0


reduce_sum_p = linear(
    "reduce_sum",
    lambda x, *, axes: reduced(x, axes, "reduce_sum"),
    transpose=_sum_transpose,
    batch=_sum_batch,
    precision="high",
    flops=each_operand,
    lowering=Reduce("add", lambda kind: (False, 0, 0.0, 0.0)[dtypes.kind_rank(kind)]),
)
PRIM["reduce_sum"] = reduce_sum_p


def reduce_sum(x: Array, axes: Sequence[int]) -> Array:
    """The sum over `axes`, in the dtype of `x`; 16-bit floats are accumulated in float32."""
    axes = tuple(axes)
    return bind(reduce_sum_p, x, axes=axes) if axes else x


# ---- the others ----


def reduction(
    name: str, accepts: str, lowering: Reduce | None, precision: str = "follow"
) -> Primitive:
    """Define a primitive that reduces one operand over `axes`, in its dtype."""

    def shape(x: Aval, *, axes: tuple[int, ...]) -> Aval:
        admits, words = DTYPE_CLASSES[accepts]
        if not admits(x.dtype):
            raise errors.DTypeError(f"{name} takes {words}, got {x}")
        return reduced(x, axes, name)

    prim = Primitive(name, shape, flops=each_operand, precision=precision, lowering=lowering)

    def batch(size: int, xs: Sequence[Any], dims: Sequence[Any], *, axes: tuple[int, ...]) -> Any:
        x, axes = shifted(size, xs[0], dims[0], axes)
        return bind(prim, x, axes=axes), 0

    prim.batch = batch
    prim.linearize = no_tangent(prim)
    return prim


def _extreme_of(greatest: bool, position: bool = False) -> Reduce:
    return Reduce(
        "maximum" if greatest else "minimum",
        lambda kind: dtypes.extreme_over_nothing(kind, greatest),
        position=position,
    )


def _extreme(name: str, greatest: bool) -> Primitive:
    prim = reduction(name, "ordered", _extreme_of(greatest))
    prim.bounded = True

    def linearize(nonzero: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
        y = bind(prim, x, axes=axes)

        def tangent(t: Any) -> Any:
            # Elements that tie for the extreme share its derivative evenly.
            at = convert(eq(x, _spread(y, x, axes)), typeof(x).dtype)
            return div(reduce_sum(scale(t, at), axes), reduce_sum(at, axes))

        return y, tangent

    prim.linearize = linearize
    return prim


reduce_max_p = _extreme("reduce_max", greatest=True)
reduce_min_p = _extreme("reduce_min", greatest=False)


def reduce_max(operand: Array, axes: Sequence[int]) -> Array:
    """The maximum over `axes`; NaN if one is there. Over nothing: the dtype's least value."""
    axes = axes_in(axes, typeof(operand).ndim, "reduce_max", operand)
    return bind(reduce_max_p, operand, axes=axes) if axes else operand


def reduce_min(operand: Array, axes: Sequence[int]) -> Array:
    """The minimum over `axes`; NaN if one is there. Over nothing: the dtype's greatest value."""
    axes = axes_in(axes, typeof(operand).ndim, "reduce_min", operand)
    return bind(reduce_min_p, operand, axes=axes) if axes else operand


# ---- and, or, xor ----


reduce_and_p = reduction(
    "reduce_and", "bits", Reduce("bit_and", lambda kind: True if kind == BOOL else ~0)
)
reduce_or_p = reduction(
    "reduce_or", "bits", Reduce("bit_or", lambda kind: False if kind == BOOL else 0)
)
reduce_xor_p = reduction(
    "reduce_xor", "bits", Reduce("bit_xor", lambda kind: False if kind == BOOL else 0)
)


def reduce_and(operand: Array, axes: Sequence[int]) -> Array:
    """The bitwise (of booleans: logical) and over `axes`."""
    axes = axes_in(axes, typeof(operand).ndim, "reduce_and", operand)
    return bind(reduce_and_p, operand, axes=axes) if axes else operand


def reduce_or(operand: Array, axes: Sequence[int]) -> Array:
    """The bitwise (of booleans: logical) or over `axes`."""
    axes = axes_in(axes, typeof(operand).ndim, "reduce_or", operand)
    return bind(reduce_or_p, operand, axes=axes) if axes else operand


def reduce_xor(operand: Array, axes: Sequence[int]) -> Array:
    """The bitwise (of booleans: logical) exclusive or over `axes`."""
    axes = axes_in(axes, typeof(operand).ndim, "reduce_xor", operand)
    return bind(reduce_xor_p, operand, axes=axes) if axes else operand


# ---- argmax, argmin ----


def _position(name: str, greatest: bool) -> Primitive:
    def shape(x: Aval, *, axis: int, index_dtype: DType) -> Aval:
        if not DTYPE_CLASSES["ordered"][0](x.dtype):
            raise errors.DTypeError(f"{name} takes real numbers or booleans, got {x}")
        if not dtypes.is_integer(index_dtype):
            raise errors.DTypeError(
                f"{name}: index_dtype must be an integer type, got {index_dtype}"
            )
        result = reduced(x, (axis,), name)
        if x.shape[axis] == 0:
            raise errors.ShapeError(f"{name}: axis {axis} of {x} has no elements")
        return result.update(dtype=index_dtype)

    lowering = _extreme_of(greatest, position=True)
    prim = Primitive(name, shape, lowering=lowering, flops=each_operand, weak=None)

    def batch(
        size: int, xs: Sequence[Any], dims: Sequence[Any], *, axis: int, index_dtype: DType
    ) -> Any:
        x = move_batch(xs[0], dims[0], 0, size)
        return bind(prim, x, axis=axis + 1, index_dtype=index_dtype), 0

    prim.batch = batch
    prim.linearize = no_tangent(prim)
    return prim


argmax_p = _position("argmax", greatest=True)
argmin_p = _position("argmin", greatest=False)


def argmax(operand: Array, axis: int, index_dtype: DTypeLike = dtypes.I32) -> Array:
    """The first position of the maximum along `axis`, or of the first NaN."""
    axis = axis_in(axis, typeof(operand).ndim, "argmax", operand)
    return bind(argmax_p, operand, axis=axis, index_dtype=dtypes.dtype(index_dtype))


def argmin(operand: Array, axis: int, index_dtype: DTypeLike = dtypes.I32) -> Array:
    """The first position of the minimum along `axis`, or of the first NaN."""
    axis = axis_in(axis, typeof(operand).ndim, "argmin", operand)
    return bind(argmin_p, operand, axis=axis, index_dtype=dtypes.dtype(index_dtype))
