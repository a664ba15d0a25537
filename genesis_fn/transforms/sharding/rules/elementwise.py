"""Elementwise operations: operands are divided alike."""

from __future__ import annotations

from typing import Any

from genesis_fn.core import dtypes
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.jaxpr import Eqn
from genesis_fn.core.primitive import bind
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.primitives.elementwise import (
    add,
    add_n,
    convert_p,
    div,
    mul,
    neg,
    select_p,
    stop_gradient_p,
    sub,
)
from genesis_fn.primitives.shape import barrier_p
from genesis_fn.transforms.autodiff.checkpointing import name_p
from genesis_fn.transforms.sharding.partition import (
    BY_LOWERING,
    Placed,
    local,
    most_divided,
    moved,
    on_every_device,
    partitions,
    placed,
    settle,
    whole,
)


@partitions(select_p, stop_gradient_p, name_p)
def _elementwise(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    if all(type(x) is not Placed or x.is_whole for x in operands):
        return on_every_device(mesh, e, operands)
    shape = e.outs[0].aval.shape
    layout = most_divided(
        mesh, [x for x in operands if type(x) is Placed and x.aval.shape == shape]
    )
    xs = []
    for x in operands:
        if type(x) is Placed:
            x = moved(x, mesh, layout) if x.aval.shape == shape else whole(x, mesh)
        xs.append(local(x))
    return placed(bind(e.prim, *xs, **e.params), e, [layout])


@partitions(add.prim, sub.prim, add_n.prim, puts_off=True)
def _sum(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """A sum of sums that are due over the same axes is due over them. Where another operand is
    divided, the sum is taken so."""
    dues = {x.due if type(x) is Placed else () for x in operands}
    alike = {x.layout if type(x) is Placed else () for x in operands}
    if len(dues) == 1 and len(alike) == 1:
        (due,), (layout,) = dues, alike
        return placed(bind(e.prim, *map(local, operands), **e.params), e, [layout], due)
    return _elementwise(mesh, e, operands)


@partitions(neg.prim, convert_p, puts_off=True)
def _same_number(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """A sum that is due stays due where its terms are cast to floats of 32 bits or more."""
    (x,) = operands
    to = e.outs[0].aval.dtype
    if x.due and not (
        dtypes.is_inexact(to) and to.itemsize >= 4 and dtypes.is_inexact(x.aval.dtype)
    ):
        settle(x)
    return placed(bind(e.prim, x.part, **e.params), e, [x.layout], x.due)


@partitions(mul.prim, div.prim, puts_off=True)
def _scaled(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """A multiple of a sum that is due is due."""
    due = [i for i, x in enumerate(operands) if type(x) is Placed and x.due]
    numerator = due == [0] or (due == [1] and e.prim is mul.prim)
    if not numerator or not dtypes.is_inexact(e.outs[0].aval.dtype):
        for i in due:
            settle(operands[i])
        return _elementwise(mesh, e, operands)
    (i,) = due
    x, other = operands[i], operands[1 - i]
    if type(other) is Placed and other.aval.shape == x.aval.shape:
        other = moved(other, mesh, x.layout)
    pair = [x.part, local(other)]
    return placed(bind(e.prim, *(pair if i == 0 else pair[::-1]), **e.params), e, [x.layout], x.due)


@partitions(barrier_p)
def _each_as_it_is(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    outs = bind(e.prim, *map(local, operands), **e.params)
    return placed(outs, e, [x.layout for x in operands])


BY_LOWERING[Elementwise] = _elementwise
