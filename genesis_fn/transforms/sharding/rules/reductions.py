"""Reductions, sorting, and what computes along one dimension."""

from __future__ import annotations

from typing import Any

from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Eqn
from genesis_fn.core.primitive import bind
from genesis_fn.core.sharding.layout import part_shape
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.primitives.elementwise import convert
from genesis_fn.primitives.fft import fft_p
from genesis_fn.primitives.reductions.cumulative import (
    cumlogsumexp_p,
    cummax_p,
    cummin_p,
    cumprod_p,
    cumsum_p,
    linear_recurrence_p,
)
from genesis_fn.primitives.reductions.reduce import (
    argmax_p,
    argmin_p,
    reduce_and_p,
    reduce_max_p,
    reduce_min_p,
    reduce_or_p,
    reduce_sum_p,
    reduce_xor_p,
)
from genesis_fn.primitives.reductions.reduce_generic import reduce_prod_p
from genesis_fn.primitives.reductions.reduce_window import (
    reduce_window_max_p,
    reduce_window_min_p,
    reduce_window_sum_p,
    window_offset_p,
    window_put_p,
    window_take_p,
)
from genesis_fn.primitives.sort import sort_p, top_k_p
from genesis_fn.transforms.batching.collectives import pmax, pmin
from genesis_fn.transforms.sharding.partitioner import Placed, partitions, placed
from genesis_fn.transforms.sharding.rules.letters import Divided, by_letters, layout_of, untouched

# Of parts, and along the axes of the mesh. Of booleans, "and" is the least and "or" the greatest.
_EXTREMES = {reduce_max_p: pmax, reduce_min_p: pmin, reduce_or_p: pmax, reduce_and_p: pmin}


@partitions(reduce_sum_p, puts_off=True)
def _sum(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Parts are summed; the sum over the axes that divide a summed dimension is due."""
    (x,), axes = operands, e.params["axes"]
    names = [n for i in axes for n in x.layout[i]]
    layout = tuple([at for i, at in enumerate(x.layout) if i not in axes])
    return placed(bind(e.prim, x.part, **e.params), e, [layout], (*x.due, *names))


@partitions(*_EXTREMES)
def _extreme(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Parts are reduced, then combined over the axes that divide a reduced dimension."""
    (x,), axes = operands, e.params["axes"]
    names = tuple([n for i in axes for n in x.layout[i]])
    logical = e.prim in (reduce_or_p, reduce_and_p)
    if names and logical and x.aval.dtype != dtypes.BOOL:
        return _other(mesh, e, operands)
    layout = tuple([at for i, at in enumerate(x.layout) if i not in axes])
    part = bind(e.prim, x.part, **e.params)
    if names and logical:
        part = convert(_EXTREMES[e.prim](convert(part, dtypes.I32), names), dtypes.BOOL)
    elif names:
        part = _EXTREMES[e.prim](part, names)
    return placed(part, e, [layout])


@partitions(reduce_prod_p, reduce_xor_p)
def _other(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    return _over(mesh, e, operands, e.params["axes"])


@partitions(argmax_p, argmin_p)
def _position(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    return _over(mesh, e, operands, (e.params["axis"],))


def _over(mesh: Mesh, e: Eqn, operands: list[Any], axes: tuple[int, ...]) -> list[Placed]:
    """Dimensions that are reduced are whole."""
    at = untouched(operands[0].aval.ndim, axes)
    return by_letters(mesh, e, operands, [at], [[n for n in at if n is not None]])


@partitions(cumsum_p, cumprod_p, cummax_p, cummin_p, cumlogsumexp_p, linear_recurrence_p)
def _along_axis(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    return _along(mesh, e, operands, e.params["axis"])


@partitions(sort_p)
def _sort(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    return _along(mesh, e, operands, e.params["dimension"])


@partitions(top_k_p)
def _top_k(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    return _along(mesh, e, operands, e.params["axis"])


@partitions(fft_p)
def _fft(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    ndim = operands[0].aval.ndim
    return _along(mesh, e, operands, *range(ndim - len(e.params["fft_lengths"]), ndim))


def _along(mesh: Mesh, e: Eqn, operands: list[Any], *axes: int) -> list[Placed]:
    """Dimensions along which elements meet each other are whole."""
    at = untouched(e.outs[0].aval.ndim, axes)
    return by_letters(mesh, e, operands, [at] * len(operands), [at] * len(e.outs))


@partitions(
    reduce_window_sum_p,
    reduce_window_max_p,
    reduce_window_min_p,
    window_offset_p,
    window_take_p,
    window_put_p,
)
def _windows(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Divided along dimensions in which a window is one element."""
    window = e.params["window"]
    touched = [i for i, each in enumerate(zip(*window)) if each != (1, 1, (0, 0), 1, 1)]
    at = untouched(operands[0].aval.ndim, touched)

    def of_parts(divided: Divided) -> dict[str, Any]:
        if "shape" not in e.params:
            return {}
        shape = e.params["shape"]
        return {"shape": part_shape(shape, mesh, layout_of(shape, at, divided))}

    return by_letters(mesh, e, operands, [at] * len(operands), [at], of_parts)
