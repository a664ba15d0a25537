"""The order of complex numbers: by real part, then by imaginary part, as NumPy and JAX have it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core.primitive import SCALARS
from genesis_fn.core.types.annotations import Array
from genesis_fn.primitives import elementwise as p
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.reductions import reduce as r
from genesis_fn.primitives.shape import broadcast_in_dim, canonical_axis, reshape


def _ordered(strictly: Callable[..., Any], last: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """The comparison whose real parts differ `strictly`, or are equal and the imaginary `last`."""

    def compare(x: Any, y: Any) -> Array:
        (a, b), (c, d) = _parts(x), _parts(y)
        return p.bitwise_or(strictly(a, c), p.bitwise_and(p.eq(a, c), last(b, d)))

    return compare


def _parts(x: Any) -> tuple[Any, Any]:
    return (x.real, x.imag) if type(x) in SCALARS else (p.real(x), p.imag(x))


def _chosen(before: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Of two complex numbers the one that comes first by `before`; the first that is NaN."""

    def choose(x: Any, y: Any) -> Array:
        first = before(x, y)
        if type(x) not in SCALARS:
            first = p.bitwise_or(first, p.ne(x, x))
        elif x != x:
            return full(y.aval.shape, x, y.aval.dtype)
        if type(y) not in SCALARS:
            first = p.bitwise_and(first, p.bitwise_or(p.eq(y, y), p.ne(x, x)))
        elif y != y:
            first = p.ne(x, x)
        return p.select(first, x, y)

    return choose


less, less_equal = _ordered(p.lt, p.lt), _ordered(p.lt, p.le)
greater, greater_equal = _ordered(p.gt, p.gt), _ordered(p.gt, p.ge)
maximum, minimum = _chosen(greater_equal), _chosen(less_equal)


def reduced(greatest: bool, a: Array, axes: Sequence[int]) -> Array:
    """The greatest, or the least, over `axes`; NaN if one is there. Over nothing the bound of the
    other end, in both parts."""
    axes = tuple([canonical_axis(i, a.ndim, "max" if greatest else "min") for i in axes])
    reduce, bound = (r.reduce_max, -math.inf) if greatest else (r.reduce_min, math.inf)
    if not axes:
        return a
    if not math.prod([a.aval.shape[i] for i in axes]):
        kept = [n for i, n in enumerate(a.aval.shape) if i not in axes]
        return full(tuple(kept), complex(bound, bound), a.aval.dtype)
    real, imag = p.real(a), p.imag(a)
    kind = real.aval.dtype
    nan = full(real.aval.shape, math.nan, kind)
    best = reduce(p.select(p.ne(a, a), nan, real), axes)
    shape = tuple([1 if i in axes else n for i, n in enumerate(a.aval.shape)])
    wide = broadcast_in_dim(reshape(best, shape), a.aval.shape, range(a.ndim))
    ends = full(real.aval.shape, bound, kind)
    last = reduce(p.select(p.eq(real, wide), imag, ends), axes)
    last = p.select(p.ne(best, best), full(last.aval.shape, math.nan, kind), last)
    return p.complex_(best, last)
