"""Operations that move dimensions: their divisions move along."""

from __future__ import annotations

from typing import Any

from genesis_fn.core.jaxpr import Eqn
from genesis_fn.core.primitive import bind
from genesis_fn.core.sharding.layout import part_shape, parts
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.primitives.shape import broadcast_in_dim_p, reshape_p, transpose_p
from genesis_fn.transforms.sharding.partition import Placed, moved, partitions, placed


@partitions(transpose_p, puts_off=True)
def _transpose(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    (x,) = operands
    layout = tuple([x.layout[i] for i in e.params["permutation"]])
    return placed(bind(e.prim, x.part, **e.params), e, [layout], x.due)


@partitions(broadcast_in_dim_p)
def _broadcast(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    (x,) = operands
    shape, dims = e.params["shape"], e.params["dims"]
    layout: list[Any] = [()] * len(shape)
    for i, d in enumerate(dims):
        layout[d] = x.layout[i] if x.aval.shape[i] == shape[d] else ()
    kept = tuple([layout[d] for d in dims])
    x = moved(x, mesh, kept)
    part = bind(e.prim, x.part, shape=part_shape(shape, mesh, tuple(layout)), dims=dims)
    return placed(part, e, [tuple(layout)])


@partitions(reshape_p)
def _reshape(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """A dimension stays divided where it is the first of those that it is merged or split into."""
    (x,) = operands
    old, new = x.aval.shape, e.outs[0].aval.shape
    kept: list[Any] = [()] * len(old)
    layout: list[Any] = [()] * len(new)
    for olds, news in _groups(old, new):
        axes = x.layout[olds[0]] if olds else ()
        if axes and news and not new[news[0]] % parts(mesh, axes):
            kept[olds[0]], layout[news[0]] = axes, axes
    x = moved(x, mesh, tuple(kept))
    part = bind(e.prim, x.part, shape=part_shape(new, mesh, tuple(layout)))
    return placed(part, e, [tuple(layout)])


def _groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """The dimensions before and after a reshape, in groups of equal size that follow each other;
    dimensions of length 1 stay out of the front of a group."""
    groups, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        olds, news, a, b = [], [], 1, 1
        while i < len(old) and old[i] == 1:
            i += 1
        while j < len(new) and new[j] == 1:
            j += 1
        if i == len(old) or j == len(new):
            break
        olds.append(i)
        news.append(j)
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
