"""Index vectors: of diagonals and triangles, and between flat and many-dimensional positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from genesis_fn.core import dtypes
from genesis_fn.core.array import Array
from genesis_fn.core.primitive import Tracer
from genesis_fn.core.types.annotations import ArrayLike, DTypeLike, ShapeLike
from genesis_fn.lax.creation import asarray, index_array, shape_of
from genesis_fn.lax.promotion import promote_arrays
from genesis_fn.numpy.arrays.conversion import concrete, host
from genesis_fn.numpy.indexing.selection import nonzero
from genesis_fn.numpy.mathematics.composed import remainder, where
from genesis_fn.numpy.mathematics.ufuncs import add, maximum, minimum, multiply
from genesis_fn.primitives import elementwise as p
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.shape import iota


def _vectors(found: Sequence[np.ndarray]) -> tuple[Array, ...]:
    return tuple([index_array(i.astype(dtypes.default_int())) for i in found])


def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """The indices of the main diagonal of an array with `ndim` axes of length n."""
    return (iota(dtypes.default_int(), n),) * ndim


def diag_indices_from(arr: Array | np.ndarray) -> tuple[Array, ...]:
    """The indices of the main diagonal of `arr`, whose axes have one length."""
    if arr.ndim < 2 or len(set(arr.shape)) != 1:
        raise ValueError(f"diag_indices_from takes arrays with axes of one length, got {arr.shape}")
    return diag_indices(arr.shape[0], arr.ndim)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, ...]:
    """The indices at and below the k-th diagonal of an n x m matrix, row by row."""
    return _vectors(np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, ...]:
    """The indices at and above the k-th diagonal of an n x m matrix, row by row."""
    return _vectors(np.triu_indices(n, k, m))


def tril_indices_from(arr: Array | np.ndarray, k: int = 0) -> tuple[Array, ...]:
    """`tril_indices` for the matrix `arr`."""
    return tril_indices(arr.shape[-2], k, arr.shape[-1])


def triu_indices_from(arr: Array | np.ndarray, k: int = 0) -> tuple[Array, ...]:
    """`triu_indices` for the matrix `arr`."""
    return triu_indices(arr.shape[-2], k, arr.shape[-1])


def mask_indices(
    n: int, mask_func: Callable[..., Any], k: int = 0, *, size: int | None = None
) -> tuple[Array, ...]:
    """The indices where `mask_func(ones((n, n)), k)` is not zero."""
    return nonzero(mask_func(full((n, n), 1.0, dtypes.default_float()), k), size=size)


def unravel_index(
    indices: ArrayLike | Sequence[Any], shape: ShapeLike | Array
) -> tuple[Array, ...]:
    """Flat positions as one index array per axis of `shape`; those outside are clamped."""
    indices = asarray(indices)
    lengths = _lengths(shape)
    size = math.prod(lengths)
    # Negative positions count from the end.
    flat = where(indices < 0, add(indices, size), indices)
    flat = minimum(maximum(flat, 0), _at_least(size - 1, 0))
    result = []
    for n in reversed(lengths):
        result.append(remainder(flat, _at_least(n, 1)))
        flat = flat // _at_least(n, 1)
    return tuple(result[::-1])


def _lengths(shape: Any) -> Sequence[Any]:
    """The lengths of axes: Python integers where they are known."""
    if isinstance(shape, Tracer) and shape.concrete() is None:
        return [shape[i] for i in range(shape.shape[0])] if shape.ndim else [shape]
    if isinstance(shape, (tuple, list)) and any(isinstance(n, Tracer) for n in shape):
        return shape
    return shape_of(cast(ShapeLike, shape))


def _at_least(x: Any, low: int) -> Any:
    return max(x, low) if type(x) is int else maximum(x, low)


def ravel_multi_index(
    multi_index: Sequence[Any],
    dims: ShapeLike,
    mode: str = "raise",
    order: str = "C",
    *,
    dtype: DTypeLike | None = None,
) -> Array:
    """Index arrays, one per axis, as flat positions in an array of shape `dims`.

    Mode "raise" checks values that are known; "clip" and "wrap" bring them in range, "ignore" takes
    them as they are. Positions are int32, or of `dtype`, an integer dtype that holds all of them.
    """
    lengths = shape_of(dims)
    if len(multi_index) != len(lengths):
        raise ValueError(f"ravel_multi_index: {len(multi_index)} indices for {len(lengths)} axes")
    if mode not in ("raise", "clip", "wrap", "ignore"):
        raise ValueError(
            f"ravel_multi_index: mode {mode!r} is none of 'raise', 'clip', 'wrap', 'ignore'"
        )
    d = None if dtype is None else dtypes.dtype(dtype)
    if d is not None and not dtypes.is_integer(d):
        raise ValueError(f"ravel_multi_index: positions are integers, got dtype {d}")
    if d is not None and math.prod(lengths) - 1 > dtypes.iinfo(d).max:
        raise ValueError(
            f"ravel_multi_index: {d} holds no positions in {lengths}; give a wider dtype"
        )
    parts = []
    for x, n in zip(
        promote_arrays("ravel_multi_index", [asarray(i) for i in multi_index]), lengths
    ):
        if mode == "raise":
            _check(x, n)
        elif mode == "clip":
            x = minimum(maximum(x, 0), n - 1)
        elif mode == "wrap":
            x = remainder(x, n)
        parts.append(x if d is None else p.convert(x, d))
    strides = [math.prod(lengths[i + 1 :]) for i in range(len(lengths))]
    if order == "F":
        strides = [math.prod(lengths[:i]) for i in range(len(lengths))]
    total: Any = None
    for x, s in zip(parts, strides):
        term = multiply(x, s)
        total = term if total is None else add(total, term)
    return total


def _check(x: Any, n: int) -> None:
    known = concrete(x, "index") if isinstance(x, Array) else x
    values = host(known)
    if values.size and (values.min() < 0 or values.max() >= n):
        raise ValueError(f"ravel_multi_index: an index outside [0, {n})")
