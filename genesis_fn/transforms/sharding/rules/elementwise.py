"""Elementwise operations: operands are divided alike."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from genesis_fn.core import dtypes
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.jaxpr import Eqn
from genesis_fn.core.primitive import bind, typeof
from genesis_fn.core.sharding.layout import Layout
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.primitives.elementwise import (
    add,
    add_n,
    bitcast_p,
    convert_p,
    div,
    eq,
    mul,
    neg,
    polygamma_p,
    select,
    select_p,
    stop_gradient_p,
    sub,
)
from genesis_fn.primitives.factories import zero_of
from genesis_fn.primitives.shape import barrier_p, broadcast_in_dim
from genesis_fn.transforms.autodiff.checkpointing import name_p
from genesis_fn.transforms.batching.collectives import axis_index
from genesis_fn.transforms.sharding.partitioner import (
    BY_LOWERING,
    Placed,
    divided_further,
    local,
    most_divided,
    moved,
    partitions,
    placed,
    settle,
    whole,
)
from genesis_fn.transforms.sharding.rules.letters import by_letters, untouched


@partitions(select_p, stop_gradient_p, name_p, polygamma_p)
def _elementwise(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    shape = e.outs[0].aval.shape
    arrays = [x for x in operands if type(x) is Placed and x.aval.shape == shape]
    layout = most_divided(mesh, arrays) if arrays else ((),) * len(shape)

    def made(layout: Layout) -> Placed:
        xs = []
        for x in operands:
            if type(x) is Placed:
                x = moved(x, mesh, layout) if x.aval.shape == shape else whole(x, mesh)
            xs.append(local(x))
        return placed(bind(e.prim, *xs, **e.params), e, [layout])[0]

    result = made(layout)
    if arrays and all(x.remade is not None for x in arrays):
        result.remade = made
    return [result]


@partitions(bitcast_p)
def _bitcast(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    (x,), y = operands, e.outs[0].aval
    ndim = max(x.aval.ndim, y.ndim)
    at = untouched(ndim, [] if x.aval.ndim == y.ndim else [ndim - 1])
    return by_letters(mesh, e, operands, [at[: x.aval.ndim]], [at[: y.ndim]])


@partitions(add.prim, sub.prim, add_n.prim, puts_off=True)
def _sum(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """A sum of sums that are due is due, over the axes of all: along those that are not its own, a
    term counts on the first device alone. So does what is made anew at will, as zeros are, and one
    number. Terms are divided as the one that is most divided. Where there is an operand of another
    kind, sums are taken."""
    putting_off = [x for x in operands if type(x) is Placed and x.due]
    if not putting_off or not all(map(_takes_part, operands)):
        return _elementwise(mesh, e, operands)
    layout = most_divided(mesh, putting_off)
    alike: dict[int, Placed] = {}
    for x in putting_off:
        divided = divided_further(x, mesh, layout)
        if divided is None:
            return _elementwise(mesh, e, operands)
        alike[id(x)] = divided
    operands = [alike.get(id(x), x) for x in operands]
    putting_off = list(alike.values())
    due = tuple(dict.fromkeys([n for x in putting_off for n in x.due]))
    xs = [x if x.due else moved(x, mesh, layout) for x in operands]
    terms = [on_the_first(x.part, [n for n in due if n not in x.due]) for x in xs]
    return placed(bind(e.prim, *terms, **e.params), e, [layout], due)


def _takes_part(x: Any) -> bool:
    return type(x) is Placed and bool(x.due or x.remade is not None or x.aval.size == 1)


def on_the_first(x: Any, axes: Sequence[Hashable]) -> Any:
    """`x` on the first device along these axes, zeros on others."""
    if not axes:
        return x
    first = broadcast_in_dim(eq(axis_index(tuple(axes)), 0), typeof(x).shape, ())
    return select(first, x, zero_of(x))


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
    """A multiple of a sum that is due, by a number or what is made of one, is due. A product with
    other values is not: the sum would be taken for each of several."""
    due = [i for i, x in enumerate(operands) if type(x) is Placed and x.due]
    numerator = due == [0] or (due == [1] and e.prim is mul.prim)
    if numerator and type(operands[1 - due[0]]) is Placed:
        numerator = operands[1 - due[0]].remade is not None
    if not numerator or not dtypes.is_inexact(e.outs[0].aval.dtype):
        for i in due:
            settle(operands[i])
        return _elementwise(mesh, e, operands)
    (i,) = due
    x, other = operands[i], operands[1 - i]
    if type(other) is Placed:
        other = moved(other, mesh, x.layout)
    pair = [x.part, local(other)]
    return placed(bind(e.prim, *(pair if i == 0 else pair[::-1]), **e.params), e, [x.layout], x.due)


@partitions(barrier_p)
def _each_as_it_is(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    outs = bind(e.prim, *map(local, operands), **e.params)
    return placed(outs, e, [x.layout for x in operands])


BY_LOWERING[Elementwise] = _elementwise
