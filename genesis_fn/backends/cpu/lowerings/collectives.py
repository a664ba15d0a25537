"""CPU lowerings of collectives along an axis of a mesh: bytes go through gloo, sums and extremes
are computed here, in the order of the ranks, so that all processes get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from genesis_fn.backends.cpu.lower import lowers
from genesis_fn.backends.cpu.process_groups import group
from genesis_fn.backends.cpu.storage import TORCH_DTYPE, ordered, summed
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import Primitive
from genesis_fn.core.sharding.mesh import MeshAxis
from genesis_fn.transforms.batching import collectives, exchanges

# Up to so many bytes from all processes together, a reduction gathers everything: one exchange,
# where shares of it would take two.
_GATHERED = 1 << 16

Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes [n], row-major."""
    return x.contiguous().reshape(-1).view(torch.uint8)


def _of_bytes(x: torch.Tensor, stored: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    return x.reshape(-1).view(stored).reshape(shape)


def _exchanged(x: torch.Tensor, axis: int, axis_name: MeshAxis, prim: Primitive) -> torch.Tensor:
    """The slices [size, ...] that all processes have along an axis for this one."""
    parts = x.movedim(axis, 0)
    rows = _bytes(parts).reshape(axis_name.size, -1)
    return _of_bytes(group(axis_name.ranks).all_to_all(rows, prim.name), x.dtype, parts.shape)


def _folded(kind: DType, combine: Combine) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that combines the rows of a tensor, the first one first; floats narrower than
    float32 are combined as such, and rounded once."""
    to, back = summed(kind) if combine is torch.add else ordered(kind)

    def run(rows: torch.Tensor) -> torch.Tensor:
        first, *rest = [to(row) for row in rows]
        for row in rest:
            first = combine(first, row)
        return back(first)

    return run


def _reduction(prim: Primitive, combine: Combine) -> None:
    @lowers(prim, fresh=True)
    def lower(avals: Sequence[Aval], *, axis_name: MeshAxis) -> Callable[..., Any]:
        (x,), size = avals, axis_name.size
        if size == 1:
            return torch.clone
        fold, what = _folded(x.dtype, combine), prim.name
        stored = TORCH_DTYPE[x.dtype]
        bytes_ = -(-x.size // size) * x.dtype.itemsize  # of a process's share
        ranks = axis_name.ranks

        def small(y: torch.Tensor) -> torch.Tensor:
            rows = group(ranks).all_gather(_bytes(y), what)
            return fold(_of_bytes(rows, stored, (size, *y.shape)))

        def large(y: torch.Tensor) -> torch.Tensor:
            given = _bytes(y)
            padded = torch.nn.functional.pad(given, (0, size * bytes_ - given.numel()))
            shares = group(ranks).all_to_all(padded.view(size, bytes_), what)
            mine = fold(_of_bytes(shares, stored, (size, -1)))
            whole = group(ranks).all_gather(_bytes(mine), what).reshape(-1)[: given.numel()]
            whole = whole.clone() if padded.numel() > given.numel() else whole
            return _of_bytes(whole, stored, y.shape)

        return small if x.nbytes * size <= _GATHERED else large


_reduction(collectives.psum_p, torch.add)
_reduction(collectives.psum_invariant_p, torch.add)
_reduction(collectives.pmax_p, torch.maximum)
_reduction(collectives.pmin_p, torch.minimum)


def _gathering(prim: Primitive) -> None:
    @lowers(prim, fresh=True)
    def lower(
        avals: Sequence[Aval], *, axis_name: MeshAxis, axis: int, size: int
    ) -> Callable[..., Any]:
        stored, ranks = TORCH_DTYPE[avals[0].dtype], axis_name.ranks

        def run(x: torch.Tensor) -> torch.Tensor:
            rows = group(ranks).all_gather(_bytes(x), prim.name)
            return _fresh(_of_bytes(rows, stored, (size, *x.shape)).movedim(0, axis), x)

        return run


_gathering(collectives.all_gather_p)
_gathering(collectives.all_gather_invariant_p)


@lowers(collectives.psum_scatter_p, fresh=True)
def _psum_scatter(
    avals: Sequence[Aval], *, axis_name: MeshAxis, axis: int, size: int
) -> Callable[..., Any]:
    fold = _folded(avals[0].dtype, torch.add)
    return lambda x: _fresh(fold(_exchanged(x, axis, axis_name, collectives.psum_scatter_p)), x)


@lowers(exchanges.all_to_all_p, fresh=True)
def _all_to_all(
    avals: Sequence[Aval], *, axis_name: MeshAxis, split: int, concat: int, size: int
) -> Callable[..., Any]:
    def run(x: torch.Tensor) -> torch.Tensor:
        return _fresh(_exchanged(x, split, axis_name, exchanges.all_to_all_p).movedim(0, concat), x)

    return run


@lowers(exchanges.ppermute_p, fresh=True)
def _permute(
    avals: Sequence[Aval], *, axis_name: MeshAxis, perm: tuple[tuple[int, int], ...]
) -> Callable[..., Any]:
    stored, ranks = TORCH_DTYPE[avals[0].dtype], axis_name.ranks
    to, source = exchanges.partners(perm, axis_name.position)

    def run(x: torch.Tensor) -> torch.Tensor:
        got = group(ranks).send(_bytes(x), to, source, exchanges.ppermute_p.name)
        if got is None:
            return torch.zeros(x.shape, dtype=stored)
        return _fresh(_of_bytes(got, stored, x.shape), x)

    return run


@lowers(collectives.axis_index_p, fresh=True)
def _axis_index(avals: Sequence[Aval], *, axis_name: MeshAxis) -> Callable[..., Any]:
    position, stored = axis_name.position, TORCH_DTYPE[dtypes.I32]
    return lambda: torch.tensor(position, dtype=stored)


def _fresh(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`y` as row-major memory of its own, where it may be that of the operand: a group of one
    exchanges nothing."""
    y = y.contiguous()
    return y.clone() if y.data_ptr() == x.data_ptr() else y


# The primitives in which processes wait for each other.
MEETINGS = frozenset(
    {
        collectives.psum_p,
        collectives.psum_invariant_p,
        collectives.pmax_p,
        collectives.pmin_p,
        collectives.all_gather_p,
        collectives.all_gather_invariant_p,
        collectives.psum_scatter_p,
        exchanges.all_to_all_p,
        exchanges.ppermute_p,
    }
)
