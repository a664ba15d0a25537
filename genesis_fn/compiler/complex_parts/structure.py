"""Views, copies and concatenations of complex numbers: of each part, which changes indices only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.compiler.complex_parts.values import Complex, by_part, of_parts, on_parts
from genesis_fn.core.primitive import Primitive, bind
from genesis_fn.primitives import shape
from genesis_fn.transforms.sharding.constraint import sharding_constraint_p

on_parts(
    shape.broadcast_in_dim_p, shape.reshape_p, shape.transpose_p, shape.slice_p, shape.rev_p,
    shape.pad_p, shape.concatenate_p, shape.split_p, sharding_constraint_p,
)(by_part)  # fmt: skip


@on_parts(shape.barrier_p)
def _barrier(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    flat = [v for x in xs for v in (x.parts if type(x) is Complex else (x,))]
    passed = iter(bind(prim, *flat, **params))
    return [
        of_parts(next(passed), next(passed)) if type(x) is Complex else next(passed) for x in xs
    ]
