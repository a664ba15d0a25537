"""Reductions."""

from __future__ import annotations

from typing import Any

from genesis_fn.core.jaxpr import Eqn
from genesis_fn.core.primitive import bind
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.primitives.reductions.reduce import reduce_max_p, reduce_min_p, reduce_sum_p
from genesis_fn.transforms.batching.collectives import pmax, pmin
from genesis_fn.transforms.sharding.partition import Placed, partitions, placed

_EXTREMES = {reduce_max_p: pmax, reduce_min_p: pmin}


@partitions(reduce_sum_p, *_EXTREMES)
def _reduce(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Parts are reduced, then combined over the axes that divide a reduced dimension."""
    (x,), axes = operands, e.params["axes"]
    names = [n for i in axes for n in x.layout[i]]
    layout = tuple([at for i, at in enumerate(x.layout) if i not in axes])
    part = bind(e.prim, x.part, **e.params)
    if e.prim is reduce_sum_p:
        return placed(part, e, [layout], tuple(names))
    if names:
        part = _EXTREMES[e.prim](part, tuple(names))
    return placed(part, e, [layout])
