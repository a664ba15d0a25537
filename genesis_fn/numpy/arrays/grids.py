"""Ranges, grids, triangles and diagonals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import numpy as np

from genesis_fn.core import dtypes
from genesis_fn.core.array import Array, from_numpy
from genesis_fn.core.configuration import config
from genesis_fn.core.device import Device
from genesis_fn.core.primitive import SCALARS, Tracer
from genesis_fn.core.types.annotations import ArrayLike, DTypeLike, PyTree
from genesis_fn.lax.creation import asarray, shape_of, to_device
from genesis_fn.lax.promotion import (
    broadcast,
    broadcast_shapes,
    inexact_dtype,
    promote_arrays,
    result_type,
    value,
)
from genesis_fn.numpy.arrays.conversion import concrete, host
from genesis_fn.numpy.indexing.selection import nonzero
from genesis_fn.numpy.manipulation.shapes import atleast_1d, concatenate, stack
from genesis_fn.numpy.mathematics.composed import float_power, where
from genesis_fn.numpy.mathematics.ufuncs import add, divide, maximum, minimum, multiply, subtract
from genesis_fn.primitives import elementwise as p
from genesis_fn.primitives.factories import full, zeros as zeros_of
from genesis_fn.primitives.shape import (
    broadcasted_iota,
    canonical_axis,
    expand_dims,
    iota,
    transpose,
)


def _number(x: Any, use: str) -> Any:
    """A Python number for a bound that must be known while tracing."""
    if type(x) in SCALARS:
        return x
    if isinstance(x, Array):
        return host(concrete(x, use)).item()
    return np.asarray(x).item()


def arange(
    start: ArrayLike,
    stop: ArrayLike | None = None,
    step: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
    *,
    device: Device | str | None = None,
) -> Array:
    """[start, start + step, ...] up to and without `stop`; `arange(n)` counts from 0.

    The dtype is int32 for integers, float32 for floats. The bounds must be known while tracing.
    """
    if stop is None:
        start, stop = 0, start
    step = 1 if step is None else step
    # Reading a `start` or `step` under a derivative raises: it would lose the derivative. `stop`
    # only decides the length.
    bounds = [_number(start, "number"), _number(stop, "index"), _number(step, "number")]
    kinds = [x if hasattr(x, "dtype") else type(x) for x in (start, stop, step)]
    d = dtypes.dtype(dtype) if dtype is not None else result_type(*kinds)
    first, last, increment = bounds
    if any(isinstance(b, complex) for b in bounds):
        raise ValueError(f"arange takes real bounds, got {start}, {stop} and step {step}")
    if increment == 0:
        raise ZeroDivisionError("arange: step must not be 0")
    n = max(0, math.ceil((last - first) / increment))
    whole = all(float(b).is_integer() and abs(b) < 1 << 53 for b in bounds)
    if d == dtypes.BOOL or not whole:
        return to_device(from_numpy(np.arange(first, last, increment).astype(d)), device)
    exact = d if dtypes.is_integer(d) or d.itemsize >= 4 and n < 1 << 24 else dtypes.default_int()
    x = iota(exact, n)
    kind = int if dtypes.is_integer(exact) else float
    if increment != 1:
        x = multiply(x, kind(increment))
    if first != 0:
        x = add(x, kind(first))
    return to_device(p.convert(x, d), device)


@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: Literal[False] = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: Device | str | None = None,
) -> Array: ...


@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    *,
    retstep: Literal[True],
    dtype: DTypeLike | None = None,
    axis: int = 0,
    device: Device | str | None = None,
) -> tuple[Array, Array]: ...


@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: Device | str | None = None,
) -> PyTree: ...


def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: Device | str | None = None,
) -> PyTree:
    """`num` numbers evenly spaced from `start` to `stop`, along a new axis for array bounds."""
    if num < 0:
        raise ValueError(f"linspace: num must not be negative, got {num}")
    kinds = [x if hasattr(x, "dtype") else type(x) for x in (start, stop)]
    computed = inexact_dtype(result_type(*kinds))
    d = computed if dtype is None else dtypes.dtype(dtype)
    if all(isinstance(x, (int, float, complex, np.generic)) for x in (start, stop)):
        # Known numbers are divided in float64 and rounded once.
        points, gap = np.linspace(start, stop, num, endpoint, retstep=True)
        if dtypes.is_integer(d):
            points = np.floor(points)
        x = to_device(from_numpy(np.asarray(points).astype(d)), device)
        return (x, asarray(gap, computed)) if retstep else x
    low, high = promote_arrays("linspace", (start, stop), inexact=True)
    low, high = _pair(low, high)
    gaps = num - 1 if endpoint else num
    gap = divide(subtract(high, low), gaps) if gaps > 0 else full((), math.nan, computed)
    shape = (num, *low.aval.shape)
    with config.precisely():  # exactly 1 at the end
        t = p.div(broadcasted_iota(computed, shape, 0), float(max(gaps, 1)))
    # Both ends are exact: each is weighted by a factor that is exactly 1 there.
    x = add(multiply(low, p.sub(1.0, t)), multiply(high, t))
    if dtypes.is_integer(d):
        x = p.floor(x)
    x = p.convert(x, d)
    axis = canonical_axis(axis, x.ndim, "linspace")
    if axis:
        order = list(range(1, x.ndim))
        order.insert(axis, 0)
        x = transpose(x, order)
    return (x, gap) if retstep else x


def _pair(x: Any, y: Any) -> tuple[Any, Any]:
    shape = np.broadcast_shapes(x.aval.shape, y.aval.shape)
    return broadcast(x, shape), broadcast(y, shape)


def logspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    base: ArrayLike = 10.0,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Array:
    """base ** linspace(start, stop, num)."""
    exponents = linspace(start, stop, num, endpoint, axis=axis)
    x = float_power(base, exponents)
    return x if dtype is None else p.convert(x, dtypes.dtype(dtype))


def geomspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Array:
    """`num` numbers from `start` to `stop` with a constant ratio between neighbours."""
    low, high = promote_arrays("geomspace", (start, stop), inexact=True)
    if dtypes.is_complex(low.dtype):
        ratio = p.log(divide(high, low))
        first, logs = low, linspace(zeros_of(ratio.aval), ratio, num, endpoint, axis=axis)
    else:
        first = p.sign(low)
        logs = linspace(p.log(p.abs(low)), p.log(p.abs(high)), num, endpoint, axis=axis)
    if logs.ndim > 1:
        first = expand_dims(
            broadcast(first, broadcast_shapes(low.aval.shape, high.aval.shape)), axis
        )
    x = multiply(p.exp(logs), first)
    return x if dtype is None else p.convert(x, dtypes.dtype(dtype))


def eye(
    N: int,
    M: int | None = None,
    k: int = 0,
    dtype: DTypeLike | None = None,
    *,
    device: Device | str | None = None,
) -> Array:
    """The N x M matrix with ones on the k-th diagonal and zeros elsewhere, float32 by default."""
    shape = shape_of((N, N if M is None else M))
    d = dtypes.or_default_float(dtype)
    row, column = broadcasted_iota(dtypes.I32, shape, 0), broadcasted_iota(dtypes.I32, shape, 1)
    return to_device(p.convert(p.eq(add(row, _diagonal(k, shape)), column), d), device)


def _diagonal(k: Any, shape: tuple[int, ...]) -> Any:
    """The diagonal `k`, or the first one outside of a matrix of that shape: int32 holds it."""
    if not isinstance(k, Tracer) or k.concrete() is not None:
        return min(max(int(k), -shape[-2]), shape[-1])
    if k.ndim or not dtypes.is_integer(k.dtype):
        raise TypeError(f"the diagonal k must be an integer, got {k.aval}")
    return p.convert(minimum(maximum(k, -shape[-2]), shape[-1]), dtypes.I32)


def identity(n: int, dtype: DTypeLike | None = None) -> Array:
    """The n x n identity matrix."""
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike | None = None) -> Array:
    """The N x M matrix with ones at and below the k-th diagonal."""
    return p.convert(
        _lower(shape_of((N, N if M is None else M)), k),
        dtypes.default_float() if dtype is None else dtypes.dtype(dtype),
    )


def _lower(shape: tuple[int, ...], k: Any) -> Array:
    n = len(shape)
    row, column = [broadcasted_iota(dtypes.I32, shape, i) for i in (n - 2, n - 1)]
    return p.ge(add(row, _diagonal(k, shape)), column)


def tril(m: ArrayLike, k: int = 0) -> Array:
    """`m` with zeros above the k-th diagonal of its last two axes."""
    m = _matrix(m, "tril")
    return where(_lower(m.aval.shape, k), m, 0 if m.dtype != dtypes.BOOL else False)


def triu(m: ArrayLike, k: int = 0) -> Array:
    """`m` with zeros below the k-th diagonal of its last two axes."""
    m = _matrix(m, "triu")
    return where(_lower(m.aval.shape, k - 1), 0 if m.dtype != dtypes.BOOL else False, m)


def _matrix(m: Any, name: str) -> Array:
    m = value(m, name)
    if m.ndim < 2:
        raise ValueError(f"{name} takes at least 2 dimensions, got {m.aval}")
    return m


def meshgrid(
    *xi: ArrayLike, copy: bool = True, sparse: bool = False, indexing: str = "xy"
) -> list[Array]:
    """Grids of coordinates, one per vector; "xy" swaps the first two axes, "ij" does not."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f'meshgrid: indexing must be "xy" or "ij", got {indexing!r}')
    vectors = [value(x, "meshgrid") for x in xi]
    if any(v.ndim > 1 for v in vectors):
        raise ValueError("meshgrid takes vectors, got " + ", ".join(str(v.aval) for v in vectors))
    n = len(vectors)
    order = list(range(n))
    if indexing == "xy" and n >= 2:
        order[:2] = 1, 0
    sizes = [0] * n
    for axis, v in zip(order, vectors):
        sizes[axis] = v.size
    grids = []
    for axis, v in zip(order, vectors):
        shape = [1] * n
        shape[axis] = v.size
        grid = v.reshape(shape)
        grids.append(grid if sparse else broadcast(grid, tuple(sizes)))
    return grids


def indices(
    dimensions: Sequence[int], dtype: DTypeLike | None = None, sparse: bool = False
) -> Array | tuple[Array, ...]:
    """The index grids of a shape, stacked along a new first axis (a tuple if `sparse`)."""
    shape = shape_of(dimensions)
    d = dtypes.default_int() if dtype is None else dtypes.dtype(dtype)
    if sparse:
        return tuple(
            [
                iota(d, n).reshape([n if i == j else 1 for j in range(len(shape))])
                for i, n in enumerate(shape)
            ]
        )
    if not shape:
        return p.convert(from_numpy(np.zeros((0,))), d)
    return concatenate(
        [expand_dims(broadcasted_iota(d, shape, i), 0) for i in range(len(shape))], 0
    )


def fromfunction(
    function: Callable[..., Any], shape: Sequence[int], *, dtype: DTypeLike = float, **kwargs: Any
) -> Any:
    """`function` of the index grids of `shape`, one per dimension."""
    return function(*indices(shape_of(shape), dtype=dtype), **kwargs)


def ix_(*args: ArrayLike | Sequence[Any]) -> tuple[Array, ...]:
    """Index vectors reshaped so that together they select the cross product of their positions."""
    n, result = len(args), []
    for i, a in enumerate(args):
        a = asarray(a)
        if a.ndim != 1:
            raise ValueError(f"ix_ takes vectors, got {a.aval}")
        if a.dtype == dtypes.BOOL:
            (a,) = nonzero(a)
        result.append(a.reshape([a.size if i == j else 1 for j in range(n)]))
    return tuple(result)


def vander(x: ArrayLike, N: int | None = None, increasing: bool = False) -> Array:
    """The matrix of powers of the vector x, N columns, highest power first unless `increasing`."""
    x = value(x, "vander")
    if x.ndim != 1:
        raise ValueError(f"vander takes a vector, got {x.aval}")
    n = x.size if N is None else N
    if n < 0:
        raise ValueError(f"vander: N must not be negative, got {n}")
    columns = [full((x.size,), (1.0 if dtypes.is_float(x.dtype) else 1), x.dtype)]
    for _ in range(n - 1):
        columns.append(multiply(columns[-1], x))
    columns = columns[:n] if increasing else columns[:n][::-1]
    return stack(columns, 1) if columns else zeros_of(x.aval.update((x.size, 0)))


# ---- index tricks ----


class _IndexExpression:
    """`s_[1:2, ...]`: the index itself; `index_exp` always gives a tuple."""

    def __init__(self, always_tuple: bool) -> None:
        self.always_tuple = always_tuple

    def __getitem__(self, index: Any) -> Any:
        return (index,) if self.always_tuple and not isinstance(index, tuple) else index


s_, index_exp = _IndexExpression(False), _IndexExpression(True)


def _span(key: slice) -> Any:
    start = 0 if key.start is None else key.start
    if isinstance(key.step, complex):
        return linspace(start, key.stop, int(abs(key.step)))
    return arange(start, key.stop, key.step)


class _Grid:
    """`mgrid[0:3, 0:1:5j]`: dense or open grids from slices; an imaginary step counts points."""

    def __init__(self, sparse: bool) -> None:
        self.sparse = sparse

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return _span(key)
        if not key:
            return [] if self.sparse else full((0,), 0, dtypes.default_int())
        vectors = promote_arrays("mgrid", [_span(k) for k in key])
        grids = meshgrid(*vectors, sparse=self.sparse, indexing="ij")
        if self.sparse:
            return grids
        return stack(grids)


mgrid, ogrid = _Grid(False), _Grid(True)


class _Concatenator:
    """`r_[1:4, 0, x]`: slices, numbers and arrays joined along the first (`r_`) or last axis."""

    def __init__(self, columns: bool) -> None:
        self.columns = columns

    def __getitem__(self, key: Any) -> Any:
        parts = []
        for k in key if isinstance(key, tuple) else (key,):
            if isinstance(k, str):
                raise ValueError(f"directives such as {k!r} are not understood here; use stack")
            part = _span(k) if isinstance(k, slice) else atleast_1d(asarray(k))
            parts.append(part[:, None] if self.columns and part.ndim == 1 else part)
        return concatenate(parts, -1 if self.columns else 0)


r_, c_ = _Concatenator(False), _Concatenator(True)
