"""Collectives over the axes that a function computes over itself, among axes that it does not."""

from __future__ import annotations

from typing import Any

from genesis_fn.core.jaxpr import Eqn
from genesis_fn.core.primitive import bind
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.transforms.batching.collectives import (
    all_gather_invariant_p,
    all_gather_p,
    assume_invariant_p,
    pmax_p,
    pmin_p,
    psum_invariant_p,
    psum_scatter_p,
    pvary_p,
)
from genesis_fn.transforms.batching.exchanges import all_to_all_p, ppermute_p
from genesis_fn.transforms.sharding.partitioner import Placed, moved, partitions, placed


@partitions(psum_invariant_p, pmax_p, pmin_p, pvary_p, assume_invariant_p, ppermute_p)
def _over_own_axis(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    (x,) = operands
    return placed(bind(e.prim, x.part, **e.params), e, [x.layout])


@partitions(all_gather_p, all_gather_invariant_p)
def _gathered(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    (x,), at = operands, e.params["axis"]
    layout = (*x.layout[:at], (), *x.layout[at:])
    return placed(bind(e.prim, x.part, **e.params), e, [layout])


@partitions(psum_scatter_p, all_to_all_p)
def _scattered(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """The dimension that is divided among the devices is whole along the other axes."""
    (x,) = operands
    at = e.params["axis" if e.prim is psum_scatter_p else "split"]
    x = moved(x, mesh, (*x.layout[:at], (), *x.layout[at + 1 :]))
    layout = [axes for i, axes in enumerate(x.layout) if i != at]
    if e.prim is all_to_all_p:
        layout.insert(e.params["concat"], ())
    return placed(bind(e.prim, x.part, **e.params), e, [tuple(layout)])
