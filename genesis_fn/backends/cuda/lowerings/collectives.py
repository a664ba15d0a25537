"""Collectives along an axis of a mesh, in the form of `compiler/simplify/collectives.py`: what is
exchanged is contiguous, and of a dtype that can be added."""

from __future__ import annotations

import numpy as np

from genesis_fn.backends.cuda.driver.communication import (
    REDUCED,
    AllGather,
    AllReduce,
    AllToAll,
    Permute,
    ReduceScatter,
    Reduction,
)
from genesis_fn.backends.cuda.lowerings.call import Call, Constant, Exchange, Lowered, lowers
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.errors import BackendError
from genesis_fn.core.sharding.mesh import MeshAxis
from genesis_fn.kernels.language.dtypes import NAMES
from genesis_fn.transforms.batching.collectives import (
    all_gather_invariant_p,
    all_gather_p,
    axis_index_p,
    pmax_p,
    pmin_p,
    psum_invariant_p,
    psum_p,
    psum_scatter_p,
)
from genesis_fn.transforms.batching.exchanges import all_to_all_p, partners, ppermute_p


@lowers(psum_p, psum_invariant_p, reduction="sum")
@lowers(pmax_p, reduction="maximum")
@lowers(pmin_p, reduction="minimum")
def _all_reduce(call: Call, reduction: Reduction) -> Lowered:
    return Exchange(_groups(call), AllReduce(*_elements(call, call.out, reduction), reduction))


@lowers(psum_scatter_p)
def _reduce_scatter(call: Call) -> Lowered:
    _first(call, call.params["axis"])
    return Exchange(_groups(call), ReduceScatter(*_elements(call, call.out, "sum"), "sum"))


@lowers(all_gather_p, all_gather_invariant_p)
def _all_gather(call: Call) -> Lowered:
    _first(call, call.params["axis"])
    return Exchange(_groups(call), AllGather(call.operands[0].nbytes))


@lowers(all_to_all_p)
def _all_to_all(call: Call) -> Lowered:
    _first(call, call.params["split"])
    _first(call, call.params["concat"])
    return Exchange(_groups(call), AllToAll(call.out.nbytes // call.params["size"]))


@lowers(ppermute_p)
def _permute(call: Call) -> Lowered:
    receiver, sender = partners(call.params["perm"], _axis(call).position)
    return Exchange(_groups(call), Permute(call.out.nbytes, receiver, sender))


@lowers(axis_index_p)
def _index(call: Call) -> Lowered:
    return Constant(_axis(call).position)


def _axis(call: Call) -> MeshAxis:
    axis = call.params["axis_name"]
    if type(axis) is not MeshAxis:
        raise BackendError(f"{call.prim.name}: {axis!r} is no axis of a mesh")
    return axis


def _first(call: Call, dimension: int) -> None:
    if dimension:
        raise BackendError(f"{call.prim.name} along dimension {dimension}: the program must be in "
                           "the form of `contiguous_collectives`")  # fmt: skip


def _groups(call: Call) -> tuple[tuple[int, ...], ...]:
    """All groups along the axis, the same on every process: they split together."""
    axis = _axis(call)
    ranks = np.vectorize(lambda d: d.process_index, otypes=[int])(axis.mesh.devices)
    rows = np.moveaxis(ranks, axis.dimension, -1).reshape(-1, axis.size)
    return tuple([tuple(row) for row in rows.tolist()])


def _elements(call: Call, kind: Aval, reduction: Reduction) -> tuple[int, str]:
    """(how many elements are reduced, the name of their dtype in plans)."""
    name = NAMES[kind.dtype]
    if kind.dtype == dtypes.BOOL and reduction != "sum":
        name = "u8"
    if name not in REDUCED:
        raise BackendError(f"{call.prim.name} of {kind} has no lowering on CUDA")
    return kind.size, name
