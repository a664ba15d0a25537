"""Collectives on complex numbers: on packed values, since sums treat both parts alike and all
others move bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.compiler.complex_parts.values import Complex, of_packed, on_parts
from genesis_fn.core.errors import BackendError
from genesis_fn.core.primitive import Primitive, bind, ctx
from genesis_fn.transforms.batching import collectives, exchanges


@on_parts(
    collectives.psum_p,
    collectives.psum_invariant_p,
    collectives.psum_scatter_p,
    collectives.pvary_p,
    collectives.assume_invariant_p,
    collectives.all_gather_p,
    collectives.all_gather_invariant_p,
    exchanges.all_to_all_p,
    exchanges.ppermute_p,
)
def _exchanged(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    return of_packed(bind(prim, xs[0].packed, **params))


@on_parts(collectives.pmax_p, collectives.pmin_p)
def _extreme(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Any:
    raise BackendError(f"{prim.name} of {xs[0].aval}: complex numbers have no order, at {ctx.line}")
