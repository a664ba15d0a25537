"""CPU lowerings of dense decompositions and solves."""

from __future__ import annotations

import torch

from genesis_fn.backends.cpu.lower import computes
from genesis_fn.primitives import linalg


@computes(linalg.cholesky_p)
def _cholesky(x: torch.Tensor) -> torch.Tensor:
    factor, info = torch.linalg.cholesky_ex(x)
    failed = info != 0
    if failed.any():
        factor = factor.masked_fill_(failed[..., None, None], float("nan")).tril_()
    return factor


@computes(linalg.triangular_solve_p)
def _triangular(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
) -> torch.Tensor:
    a = a.conj().resolve_conj() if conjugate_a else a
    if transpose_a:
        a, lower = a.mT, not lower
    return torch.linalg.solve_triangular(
        a, b, upper=not lower, left=left_side, unitriangular=unit_diagonal
    )


@computes(linalg.solve_p)
def _solve(a: torch.Tensor, b: torch.Tensor, *, transpose_a: bool) -> torch.Tensor:
    x, info = torch.linalg.solve_ex(a.mT if transpose_a else a, b)
    failed = info != 0
    return x.masked_fill(failed[..., None, None], float("nan")) if failed.any() else x


@computes(linalg.lu_p)
def _lu(x: torch.Tensor) -> list[torch.Tensor]:
    m, n = x.shape[-2:]
    if x.numel() == 0:
        order = torch.arange(m, dtype=torch.int32).expand(*x.shape[:-2], m).clone()
        return [x.clone(), torch.zeros(*x.shape[:-2], min(m, n), dtype=torch.int32), order]
    factors, pivots, _ = torch.linalg.lu_factor_ex(x)
    pivots = pivots - 1
    order = torch.arange(m).expand(*x.shape[:-2], m).clone()
    flat, swaps = order.view(-1, m), pivots.reshape(-1, pivots.shape[-1]).tolist()
    for row, swap in zip(flat, swaps):
        permuted = row.tolist()
        for i, j in enumerate(swap):
            permuted[i], permuted[j] = permuted[j], permuted[i]
        row.copy_(torch.tensor(permuted))
    return [factors, pivots.to(torch.int32), order.to(torch.int32)]


def _finite(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(matrices with zeros in place of those that are not finite, for which torch raises; which
    these are)."""
    failed = ~x.isfinite().all(-1).all(-1)
    return (x.masked_fill(failed[..., None, None], 0) if failed.any() else x), failed


def _failing(results: list[torch.Tensor], failed: torch.Tensor) -> list[torch.Tensor]:
    """The results with NaN for those matrices."""
    if not failed.any():
        return results
    extra = [(...,) + (None,) * (y.ndim - failed.ndim) for y in results]
    return [y.masked_fill(failed[e], torch.nan) for y, e in zip(results, extra)]


@computes(linalg.qr_p)
def _qr(x: torch.Tensor, *, full_matrices: bool) -> list[torch.Tensor]:
    return list(torch.linalg.qr(x, "complete" if full_matrices else "reduced"))


@computes(linalg.eigh_p)
def _eigh(x: torch.Tensor) -> list[torch.Tensor]:
    x, failed = _finite(x)
    w, v = torch.linalg.eigh(x, UPLO="L")
    return _failing([v, w], failed)


@computes(linalg.eig_p)
def _eig(x: torch.Tensor, *, compute_vectors: bool) -> list[torch.Tensor]:
    x, failed = _finite(x)
    if not compute_vectors:
        return _failing([torch.linalg.eigvals(x)], failed)
    return _failing(list(torch.linalg.eig(x)), failed)


@computes(linalg.svd_p)
def _svd(x: torch.Tensor, *, full_matrices: bool, compute_uv: bool) -> list[torch.Tensor]:
    x, failed = _finite(x)
    if not compute_uv:
        return _failing([torch.linalg.svdvals(x)], failed)
    u, s, vh = torch.linalg.svd(x, full_matrices=full_matrices)
    return _failing([s, u, vh], failed)
