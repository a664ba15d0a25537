"""Operations that move dimensions: their divisions move along."""

from __future__ import annotations

from typing import Any

from genesis_fn.core.jaxpr import Eqn
from genesis_fn.core.primitive import bind
from genesis_fn.core.sharding.layout import Layout, part_shape, parts
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.shape import (
    broadcast_in_dim_p,
    concatenate_p,
    copy_p,
    iota_p,
    pad_p,
    reshape_p,
    rev_p,
    slice_p,
    split_p,
    transpose_p,
)
from genesis_fn.transforms.batching.collectives import axis_index
from genesis_fn.transforms.sharding.partitioner import Placed, moved, partitions, placed
from genesis_fn.transforms.sharding.rules.letters import Divided, by_letters, untouched


@partitions(full_p)
def _full(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Of the size of a part, where a part is wanted."""

    def made(layout: Layout) -> Placed:
        shape = part_shape(e.outs[0].aval.shape, mesh, layout)
        part = bind(full_p, **{**e.params, "shape": shape})
        return Placed(part, layout, e.outs[0].aval, remade=made)

    return [made(((),) * e.outs[0].aval.ndim)]


@partitions(iota_p)
def _iota(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """A part counts from where it begins."""
    p = e.params

    def made(layout: Layout) -> Placed:
        shape, axes = part_shape(p["shape"], mesh, layout), layout[p["dimension"]]
        part = bind(iota_p, **{**p, "shape": shape})
        if axes:
            start = ops.mul(axis_index(axes), shape[p["dimension"]])
            start = bind(broadcast_in_dim_p, ops.convert(start, p["dtype"]), shape=shape, dims=())
            part = ops.add(part, start)
        return Placed(part, layout, e.outs[0].aval, remade=made)

    return [made(((),) * len(p["shape"]))]


@partitions(transpose_p, puts_off=True)
def _transpose(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    (x,) = operands
    order = e.params["permutation"]

    def made(layout: Layout) -> Placed:
        wanted = tuple([layout[order.index(i)] for i in range(len(order))])
        return _transpose(mesh, e, [moved(x, mesh, wanted)])[0]

    layout = tuple([x.layout[i] for i in order])
    part = bind(e.prim, x.part, **e.params)
    return placed(part, e, [layout], x.due, None if x.remade is None or x.due else made)


@partitions(broadcast_in_dim_p)
def _broadcast(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """What is repeated is laid out before it is repeated, while it is small."""
    (x,) = operands
    shape, dims = e.params["shape"], e.params["dims"]
    repeats = [x.aval.shape[i] != shape[d] for i, d in enumerate(dims)]

    def made(layout: Layout) -> Placed:
        wanted = tuple([() if r else layout[d] for r, d in zip(repeats, dims)])
        small = moved(x, mesh, wanted).part
        part = bind(e.prim, small, shape=part_shape(shape, mesh, layout), dims=dims)
        return Placed(part, layout, e.outs[0].aval, remade=made)

    own: list[Any] = [()] * len(shape)
    for i, d in enumerate(dims):
        own[d] = () if repeats[i] else x.layout[i]
    first = made(tuple(own))
    if x.remade is None and not any(repeats) and len(dims) == len(shape):
        first.remade = None
    return [first]


@partitions(reshape_p, puts_off=True)
def _reshape(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """A dimension stays divided where it is the first of those that it is merged or split into."""
    (x,) = operands
    old, new = x.aval.shape, e.outs[0].aval.shape
    kept = _through(mesh, old, new, x.layout)[0]
    if x.layout != kept:
        x = moved(x, mesh, kept)

    def made(layout: Layout) -> Placed:
        back = _through(mesh, new, old, layout)[1]
        return _reshape(mesh, e, [moved(x, mesh, back)])[0]

    layout = _through(mesh, old, new, x.layout)[1]
    part = bind(e.prim, x.part, shape=part_shape(new, mesh, layout))
    return placed(part, e, [layout], x.due, None if x.remade is None or x.due else made)


def _through(
    mesh: Mesh, old: tuple[int, ...], new: tuple[int, ...], given: Layout
) -> tuple[Layout, Layout]:
    """(what of the layout of `old` can stay in a reshape, the layout of `new`)."""
    kept: list[Any] = [()] * len(old)
    layout: list[Any] = [()] * len(new)
    for olds, news in _groups(old, new):
        axes = given[olds[0]]
        while axes and new[news[0]] % parts(mesh, axes):
            axes = axes[:-1]
        kept[olds[0]], layout[news[0]] = axes, axes
    return tuple(kept), tuple(layout)


def _groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """The dimensions before and after a reshape, in groups of equal size that follow each other;
    dimensions of length 1 stay out of the front of a group."""
    groups, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        while i < len(old) and old[i] == 1:
            i += 1
        while j < len(new) and new[j] == 1:
            j += 1
        if i == len(old) or j == len(new):
            break
        olds, news = [i], [j]
        a, b, i, j = old[i], new[j], i + 1, j + 1
        while a != b:
            if a < b and i < len(old):
                olds.append(i)
                a, i = a * old[i], i + 1
            elif j < len(new):
                news.append(j)
                b, j = b * new[j], j + 1
            else:
                return groups
        groups.append((olds, news))
    return groups


# ---- what touches some dimensions, which are whole then, and leaves the others as they are ----


@partitions(slice_p)
def _slice(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    (x,), p = operands, e.params
    bounds = list(zip(x.aval.shape, p["start"], p["limit"], p["strides"]))
    at = untouched(x.aval.ndim, [i for i, b in enumerate(bounds) if b != (b[0], 0, b[0], 1)])

    def of_parts(divided: Divided) -> dict[str, Any]:
        limits = [n // parts(mesh, divided.get(i, ())) for i, n in enumerate(p["limit"])]
        return {"limit": tuple(limits)}

    return by_letters(mesh, e, operands, [at], [at], of_parts)


@partitions(pad_p)
def _pad(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    touched = [i for i, each in enumerate(e.params["config"]) if any(each)]
    at = untouched(operands[0].aval.ndim, touched)
    return by_letters(mesh, e, operands, [at, []], [at])


@partitions(concatenate_p)
def _concatenate(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    at = untouched(operands[0].aval.ndim, [e.params["dimension"]])
    return by_letters(mesh, e, operands, [at] * len(operands), [at])


@partitions(split_p)
def _split(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    at = untouched(operands[0].aval.ndim, [e.params["axis"]])
    return by_letters(mesh, e, operands, [at], [at] * len(e.outs))


@partitions(rev_p)
def _rev(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    at = untouched(operands[0].aval.ndim, e.params["dimensions"])
    return by_letters(mesh, e, operands, [at], [at])


@partitions(copy_p)
def _copy(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    (x,) = operands
    return placed(bind(e.prim, x.part), e, [x.layout])
