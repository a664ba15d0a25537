"""Sorting: `sort` of several operands by keys, `argsort`, `top_k`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, overload

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.dtypes import I32
from genesis_fn.core.primitive import Primitive, bind, typeof, with_weak
from genesis_fn.core.types.annotations import Array
from genesis_fn.primitives import shape as shapes
from genesis_fn.primitives.factories import axes_except, describe, move_batch
from genesis_fn.primitives.indexing.gather import gather
from genesis_fn.primitives.indexing.gather_dims import GatherDimensionNumbers
from genesis_fn.primitives.reductions.reduce import axis_in

# ---- the derivative of a permutation ----


def take_along(x: Array, index: Array, axis: int) -> Array:
    """Return x[..., index[..., i, ...], ...]: elements of `x` at distinct positions (int32) on
    `axis`."""
    n = typeof(x).ndim
    others = axes_except(n, (axis,))
    numbers = GatherDimensionNumbers((), (axis,), (axis,), others, others)
    return gather(
        x,
        shapes.expand_dims(index, n),
        numbers,
        (1,) * n,
        unique_indices=True,
        mode="promise_in_bounds",
    )


# ---- sort ----


def _comparisons(ins: Sequence[Aval], outs: Sequence[Aval], **_: Any) -> float:
    return ins[0].size * max(math.log2((ins[0].shape[-1:] or (1,))[0] + 1), 1)


def _sort_shape(*xs: Aval, dimension: int, is_stable: bool, num_keys: int) -> list[Aval]:
    if not xs or any(x.shape != xs[0].shape for x in xs):
        raise errors.ShapeError(f"sort: operands must have one shape, got {describe(xs)}")
    if not 0 <= dimension < xs[0].ndim:
        raise errors.ShapeError(f"sort: dimension {dimension} does not fit {xs[0]}")
    if not 1 <= num_keys <= len(xs):
        raise errors.ShapeError(f"sort: num_keys is {num_keys}, but there are {len(xs)} operands")
    return list(xs)


sort_p = Primitive("sort", _sort_shape, multi=True, flops=_comparisons)


def _sort_linearize(nonzero: Any, *xs: Any, dimension: int, **params: Any) -> Any:
    # The permutation comes along as one more operand.
    shape = typeof(xs[0]).shape
    positions = shapes.broadcasted_iota(I32, shape, dimension)
    *ys, order = bind(sort_p, *xs, positions, dimension=dimension, **params)

    def tangent(*ts: Any) -> list[Any]:
        return [None if t is None else take_along(t, order, dimension) for t in ts]

    return ys, tangent


def _sort_batch(
    size: int, xs: Sequence[Any], dims: Sequence[Any], *, dimension: int, **params: Any
) -> Any:
    d = next(d for d in dims if d is not None)
    moved = [move_batch(x, k, d, size) for x, k in zip(xs, dims)]
    ys = bind(sort_p, *moved, dimension=dimension + (dimension >= d), **params)
    return ys, [d] * len(ys)


sort_p.linearize, sort_p.batch = _sort_linearize, _sort_batch


@overload
def sort(
    operand: Array, dimension: int = -1, is_stable: bool = True, num_keys: int = 1
) -> Array: ...
@overload
def sort(
    operand: Sequence[Array], dimension: int = -1, is_stable: bool = True, num_keys: int = 1
) -> tuple[Array, ...]: ...
def sort(
    operand: Array | Sequence[Array], dimension: int = -1, is_stable: bool = True, num_keys: int = 1
) -> Array | tuple[Array, ...]:
    """Sort `operand`, or a list of arrays permuted alike, in ascending order along `dimension`.

    The first `num_keys` arrays are compared, one after the other. NaN is last, and -0.0 equals 0.0;
    complex numbers are ordered by real, then imaginary part. Raises ShapeError.
    """
    several = isinstance(operand, (tuple, list))
    xs: list[Any] = list(operand) if several else [operand]
    if not xs:
        raise errors.ShapeError("sort: there is no operand")
    dimension = axis_in(dimension, typeof(xs[0]).ndim, "sort", xs[0])
    ys = bind(sort_p, *xs, dimension=dimension, is_stable=bool(is_stable), num_keys=num_keys)
    ys = [with_weak(y, x.weak) for x, y in zip(xs, ys)]
    return tuple(ys) if several else ys[0]


def argsort(operand: Array, dimension: int = -1, is_stable: bool = True) -> Array:
    """Return the int32 positions that sort `operand` along `dimension`."""
    aval = typeof(operand)
    dimension = axis_in(dimension, aval.ndim, "argsort", operand)
    positions = shapes.broadcasted_iota(I32, aval.shape, dimension)
    return sort((operand, positions), dimension, is_stable)[1]


# ---- top_k ----


def _top_k_shape(x: Aval, *, k: int, axis: int) -> list[Aval]:
    if dtypes.is_complex(x.dtype):
        raise errors.DTypeError(f"top_k takes real numbers or booleans, got {x}")
    if not 0 <= axis < x.ndim:
        raise errors.ShapeError(f"top_k: axis {axis} does not fit {x}")
    if not 0 <= k <= x.shape[axis]:
        raise errors.ShapeError(
            f"top_k: k is {k}, but axis {axis} of {x} has {x.shape[axis]} elements"
        )
    if x.shape[axis] > dtypes.iinfo(I32).max:
        raise errors.ShapeError(f"top_k: positions along axis {axis} of {x} do not fit int32")
    result = x.update((*x.shape[:axis], k, *x.shape[axis + 1 :]))
    return [result, result.update(dtype=I32)]


top_k_p = Primitive("top_k", _top_k_shape, multi=True, flops=_comparisons)


def _top_k_linearize(nonzero: Any, x: Any, *, k: int, axis: int) -> Any:
    values, index = bind(top_k_p, x, k=k, axis=axis)
    return [values, index], lambda t: [take_along(t, index, axis), None]


def _top_k_batch(size: int, xs: Sequence[Any], dims: Sequence[Any], *, k: int, axis: int) -> Any:
    d = dims[0]
    return bind(top_k_p, xs[0], k=k, axis=axis + (axis >= d)), [d, d]


top_k_p.linearize, top_k_p.batch = _top_k_linearize, _top_k_batch


def top_k(operand: Array, k: int, *, axis: int = -1) -> tuple[Array, Array]:
    """(the k greatest elements along `axis` in descending order, their int32 positions).

    Of equal elements the earlier comes first; NaN is greatest. Raises ShapeError if k is too large.
    """
    axis = axis_in(axis, typeof(operand).ndim, "top_k", operand)
    values, index = bind(top_k_p, operand, k=int(k), axis=axis)
    return with_weak(values, operand.weak), with_weak(index, operand.weak)
