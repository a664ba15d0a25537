"""Reductions by pairing elements: the product, and any associative function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.backend.lowering import Reduce
from genesis_fn.core.primitive import bind, typeof
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.primitives.elementwise import add, mul
from genesis_fn.primitives.factories import PRIM, axes_except
from genesis_fn.primitives.reductions.reduce import (
    axes_in,
    reduce_and,
    reduce_max,
    reduce_min,
    reduce_or,
    reduce_sum,
    reduce_xor,
    reduced,
    reduction,
)
from genesis_fn.primitives.shape import reshape, slice as slice_, transpose

# ---- product ----


reduce_prod_p = reduction(
    "reduce_prod",
    "any",
    precision="high",
    lowering=Reduce("multiply", lambda kind: (True, 1, 1.0, 1.0)[dtypes.kind_rank(kind)]),
)


def _prod_linearize(nonzero: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
    def tangent(t: Any) -> Any:
        # The product rule up a binary tree: no division, so zeros among the factors are exact.
        def multiply(a: Any, b: Any) -> Any:
            return mul(a[0], b[0]), add(mul(a[1], b[0]), mul(b[1], a[0]))

        return fold((x, t), multiply, axes)[1] if typeof(x).size else None

    return bind(reduce_prod_p, x, axes=axes), tangent


reduce_prod_p.linearize = _prod_linearize


def reduce_prod(operand: Array, axes: Sequence[int]) -> Array:
    """The product over `axes`, in the dtype of `operand`; 16-bit floats multiply in float32."""
    axes = axes_in(axes, typeof(operand).ndim, "reduce_prod", operand)
    return bind(reduce_prod_p, operand, axes=axes) if axes else operand


def fold(xs: Sequence[Array], combine: Callable[..., Any], axes: Sequence[int]) -> list[Array]:
    """Combine `xs`, arrays of one shape, over non-empty `axes` pairwise, as a balanced tree.

    `combine(a, b)` takes and returns tuples of arrays; it must be associative and commutative.
    """
    shape = typeof(xs[0]).shape
    kept = axes_except(len(shape), axes)
    n = math.prod([shape[a] for a in axes])
    rest = tuple([shape[a] for a in kept])
    pieces = tuple([reshape(transpose(x, (*axes, *kept)), (n, *rest)) for x in xs])
    odd = []
    while n > 1:
        half = n // 2
        if n % 2:
            odd.append(tuple([_rows(p, n - 1, n) for p in pieces]))
        pieces = combine(
            tuple([_rows(p, 0, half) for p in pieces]),
            tuple([_rows(p, half, 2 * half) for p in pieces]),
        )
        n = half
    for last in odd:
        pieces = combine(pieces, last)
    return [reshape(p, rest) for p in pieces]


def _rows(x: Any, start: int, stop: int) -> Any:
    """x[start:stop]."""
    shape = typeof(x).shape
    if start == 0 and stop == shape[0]:
        return x
    return slice_(x, (start, *[0] * (len(shape) - 1)), (stop, *shape[1:]))


# ---- any associative function ----

# The reduction that repeats each binary primitive.
MONOIDS: dict[str, Callable[..., Any]] = {
    "add": reduce_sum, "mul": reduce_prod, "max": reduce_max, "min": reduce_min,
    "and": reduce_and, "or": reduce_or, "xor": reduce_xor,
}  # fmt: skip


def monoid_of(computation: Callable[..., Any]) -> str | None:
    """Return the name of the binary primitive that a function is, if it is one of MONOIDS."""
    name = getattr(getattr(computation, "prim", None), "name", None)
    return name if name in MONOIDS else None


def _is_of_reals(monoid: str) -> bool:
    return monoid in ("max", "min")


def reduce(
    operands: Array | Sequence[Array],
    init_values: ArrayLike | Sequence[ArrayLike],
    computation: Callable[..., Any],
    dimensions: Sequence[int],
) -> PyTree:
    """Reduce over `dimensions` by `computation`, associative and commutative, starting at
    `init_values`.

    `operands` is one array, or a tuple of arrays of one shape with a tuple of initial values: then
    `computation(a, b)` takes and returns tuples. add, mul, max, min, and, or, xor run as their own
    reductions.
    """
    several = isinstance(operands, (tuple, list))
    xs: tuple[Any, ...] = tuple(operands) if several else (operands,)
    inits: Any = init_values if several else (init_values,)
    axes = axes_in(dimensions, typeof(xs[0]).ndim, "reduce", xs[0])
    for x in xs[1:]:
        if typeof(x).shape != typeof(xs[0]).shape:
            raise errors.ShapeError(f"reduce: {typeof(xs[0])} and {typeof(x)} differ in shape")
    starts = [_start(i, x, axes) for i, x in zip(inits, xs)]
    if not axes or any(typeof(xs[0]).shape[a] == 0 for a in axes):
        results = xs if not axes else ()
    elif (
        not several
        and (monoid := monoid_of(computation))
        and not (_is_of_reals(monoid) and dtypes.is_complex(typeof(xs[0]).dtype))
    ):
        results = (MONOIDS[monoid](xs[0], axes),)
    else:
        combine = computation if several else lambda a, b: (computation(a[0], b[0]),)
        results = tuple(fold(xs, combine, axes))
    if not results:
        return tuple(starts) if several else starts[0]
    if several:
        return tuple(computation(tuple(starts), results))
    return computation(starts[0], results[0])


def _start(value: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """An initial value as an array of the result's shape."""
    aval = reduced(typeof(x), axes, "reduce")
    if hasattr(value, "aval"):
        if typeof(value).shape or typeof(value).dtype != aval.dtype:
            raise errors.ShapeError(
                f"reduce: the initial value {typeof(value)} must be a scalar of {aval.dtype.name}"
            )
        return bind(PRIM["broadcast_in_dim"], value, shape=aval.shape, dims=())
    return bind(PRIM["full"], value=value, shape=aval.shape, dtype=aval.dtype)
