"""The CPU lowering of products by groups of rows: one torch product for each group that has any."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from genesis_fn.backends.cpu.lower import lowers
from genesis_fn.backends.cpu.lowerings.contraction import compute_dtype, from_compute, to_compute
from genesis_fn.backends.cpu.storage import TORCH_DTYPE
from genesis_fn.primitives.ragged_dot import ragged_contraction_p, ragged_dot_p

Cast = Callable[[torch.Tensor], torch.Tensor]


def _casts(avals: Sequence[Any], out: Any, terms: int) -> tuple[torch.dtype, Cast, Cast, Cast]:
    """The dtype to multiply in, and the casts of both operands and of the result."""
    x, y, _ = avals
    target = compute_dtype((x.dtype, y.dtype), out.dtype, terms)
    if target is None:  # integers wrap: the width of the result decides
        target = TORCH_DTYPE[out.dtype]
    loads = to_compute(x.dtype, target), to_compute(y.dtype, target)
    return target, *loads, from_compute(target, out.dtype)


def _row_ranges(sizes: torch.Tensor, rows: int) -> Iterator[tuple[int, int, int]]:
    """(group, first row, end) of each group that has rows."""
    ends = [min(e, rows) for e in itertools.accumulate(max(n, 0) for n in sizes.tolist())]
    for group, (first, end) in enumerate(zip([0, *ends], ends)):
        if end > first:
            yield group, first, end


def _row_masks(sizes: torch.Tensor, rows: int) -> Iterator[torch.Tensor]:
    """[rows, 1] for each group: which rows are its own. For graphs, which have no branch."""
    ends = sizes.clamp(min=0).cumsum(0)
    row = torch.arange(rows)[:, None]
    first: Any = 0
    for end in ends.unbind():
        yield (row >= first) & (row < end)
        first = end


@lowers(ragged_dot_p, fresh=True)
def _ragged_dot(avals: Sequence[Any], **params: Any) -> Callable[..., torch.Tensor]:
    x, w, sizes = avals
    out = ragged_dot_p.abstract((x, w, sizes), params)
    target, load_x, load_w, store = _casts(avals, out, x.shape[-1])
    load_sizes = to_compute(sizes.dtype, torch.int64)
    turned, rows = params["rhs_transposed"], x.shape[-2]

    def one(a: torch.Tensor, b: torch.Tensor, counts: torch.Tensor, y: torch.Tensor) -> None:
        # The matrices of groups without rows are never read.
        matrix = lambda group: load_w(b[group].mT if turned else b[group])
        if get_proxy_mode() is not None:
            for group, mine in enumerate(_row_masks(counts, rows)):
                y.copy_(torch.where(mine, a @ matrix(group), y))
            return
        for group, first, end in _row_ranges(counts, rows):
            torch.mm(a[first:end], matrix(group), out=y[first:end])

    def run(a: torch.Tensor, b: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        y, a, counts = torch.zeros(out.shape, dtype=target), load_x(a), load_sizes(counts)
        if counts.ndim == 1:
            one(a, b, counts, y)
            return store(y)
        for i in range(counts.shape[0]):
            one(a[i], b if b.ndim == 3 else b[i], counts[i], y[i])
        return store(y)

    return run


@lowers(ragged_contraction_p, fresh=True)
def _ragged_contraction(avals: Sequence[Any], **params: Any) -> Callable[..., torch.Tensor]:
    x, _, sizes = avals
    out = ragged_contraction_p.abstract(tuple(avals), params)
    target, load_x, load_y, store = _casts(avals, out, x.shape[-2])
    load_sizes = to_compute(sizes.dtype, torch.int64)
    rows = x.shape[-2]

    def one(a: torch.Tensor, b: torch.Tensor, counts: torch.Tensor, z: torch.Tensor) -> None:
        if get_proxy_mode() is not None:
            for group, mine in enumerate(_row_masks(counts, rows)):
                z[group].copy_(torch.where(mine, a, 0).mT @ torch.where(mine, b, 0))
            return
        for group, first, end in _row_ranges(counts, rows):
            torch.mm(a[first:end].mT, b[first:end], out=z[group])

    def run(a: torch.Tensor, b: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        z = torch.zeros(out.shape, dtype=target)
        a, b, counts = load_x(a), load_y(b), load_sizes(counts)
        if counts.ndim == 1:
            one(a, b, counts, z)
            return store(z)
        for i in range(counts.shape[0]):
            one(a[i], b[i], counts[i], z[i])
        return store(z)

    return run
