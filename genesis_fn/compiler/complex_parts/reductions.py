"""Reductions, scans, sorts and windows of complex numbers: sums of each part, products as those of
pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.compiler.complex_parts.arithmetic import multiplied
from genesis_fn.compiler.complex_parts.values import (
    Complex,
    by_part,
    constant,
    of_parts,
    on_parts,
    pair,
)
from genesis_fn.core.primitive import Primitive, bind, typeof
from genesis_fn.primitives import shape
from genesis_fn.primitives.elementwise import add
from genesis_fn.primitives.reductions.cumulative import cumprod_p, cumsum_p, linear_recurrence_p
from genesis_fn.primitives.reductions.reduce import reduce_sum_p, reduced
from genesis_fn.primitives.reductions.reduce_generic import fold, reduce_prod_p
from genesis_fn.primitives.reductions.reduce_window import (
    reduce_window_sum_p,
    window_put_p,
    window_take_p,
)
from genesis_fn.primitives.sort import sort_p

on_parts(reduce_sum_p, cumsum_p, reduce_window_sum_p, window_take_p, window_put_p)(by_part)


@on_parts(reduce_prod_p)
def _prod(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    re, im = pair(xs[0])
    axes = params["axes"]
    if not typeof(re).size:
        kind = reduced(typeof(re), axes, prim.name)
        return of_parts(constant(kind, 1.0), constant(kind, 0.0))
    combine: Any = multiplied
    return of_parts(*fold((re, im), combine, axes))


# ---- scans ----


@on_parts(cumprod_p)
def _cumprod(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    return of_parts(*_prefixes(pair(xs[0]), multiplied, (1.0, 0.0), **params))


@on_parts(linear_recurrence_p)
def _recurrence(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    """h -> a h + b, of which two in a row are a a' and a' b + b'."""

    def after(first: Sequence[Any], then: Sequence[Any]) -> tuple[Any, ...]:
        a, b, c, d = (*first[:2],), (*first[2:],), (*then[:2],), (*then[2:],)
        moved = multiplied((c[0], c[1]), (b[0], b[1]))
        grown = multiplied((c[0], c[1]), (a[0], a[1]))
        return (*grown, add(moved[0], d[0]), add(moved[1], d[1]))

    values = (*pair(xs[0]), *pair(xs[1]))
    return of_parts(*_prefixes(values, after, (1.0, 0.0, 0.0, 0.0), **params)[2:])


def _prefixes(
    values: Sequence[Any],
    combine: Callable[..., Sequence[Any]],
    identity: Sequence[float],
    *,
    axis: int,
    reverse: bool,
) -> Sequence[Any]:
    """All prefixes along an axis, combined: log n steps, in each of which every element combines
    with the one that is 1, 2, 4, ... before it. Each step is one elementwise kernel.

    Source: Hillis and Steele, "Data parallel algorithms", 1986.
    """
    n, distance = typeof(values[0]).shape[axis], 1
    while distance < n:
        shift = (-distance, distance, 0) if reverse else (distance, -distance, 0)
        config = [shift if d == axis else (0, 0, 0) for d in range(typeof(values[0]).ndim)]
        before = [shape.pad(v, one, config) for v, one in zip(values, identity, strict=True)]
        values = combine(before, values)
        distance *= 2
    return values


# ---- sorts ----


@on_parts(sort_p)
def _sort(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """By real, then imaginary part: a complex key is two."""
    flat = [v for x in xs for v in (x.parts if type(x) is Complex else (x,))]
    keys = sum([2 if type(x) is Complex else 1 for x in xs[: params["num_keys"]]])
    done = iter(bind(prim, *flat, **params | {"num_keys": keys}))
    return [of_parts(next(done), next(done)) if type(x) is Complex else next(done) for x in xs]
