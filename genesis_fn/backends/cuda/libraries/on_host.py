"""Routines of libraries on the interpreting driver: torch computes in the "device's" memory, in the
layouts of `kernels/routines.py`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from genesis_fn.kernels import routines as r

_TORCH = {
    "float32": torch.float32, "float64": torch.float64, "complex64": torch.complex64,
    "complex128": torch.complex128,
}  # fmt: skip
_REAL = {"float32": "float32", "float64": "float64", "complex64": "float32"}
_REAL["complex128"] = "float64"
_COMPLEX = {"float32": "complex64", "float64": "complex128"}

R = TypeVar("R", bound=r.Routine)


class HostRoutine:
    """A routine on host memory."""

    def __init__(self, routine: r.Routine) -> None:
        self._routine = routine

    def run(self, addresses: Sequence[int], stream: Any) -> None:
        """Enqueue it, at the addresses of its buffers; scratch memory is last."""
        run, routine = _RUNS[type(self._routine)], self._routine
        stream.enqueue(lambda: run(routine, *addresses[:-1]))


_RUNS: dict[type, Callable[..., None]] = {}


def _runs(kind: type[R]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(run: Callable[..., None]) -> Callable[..., None]:
        _RUNS[kind] = run
        return run

    return register


def _memory(address: int, shape: Sequence[int], kind: str) -> torch.Tensor:
    """Row-major memory as a tensor."""
    dtype = _TORCH.get(kind) or getattr(torch, kind)
    size = dtype.itemsize
    for n in shape:
        size *= n
    raw = torch.frombuffer((ctypes.c_uint8 * max(size, 1)).from_address(address), dtype=torch.uint8)
    return raw[:size].view(dtype).view(*shape)


def _matrices(
    address: int, rows: int, columns: int, kind: str, batch: int, table: bool = True
) -> Any:
    """Column-major matrices: one after another, or where a table says."""
    if batch > 1 and table:
        addresses = _memory(address, (batch,), "int64").tolist()
        return [_memory(p, (columns, rows), kind).mT for p in addresses]
    return list(_memory(address, (batch, columns, rows), kind).mT)


@_runs(r.Fft)
def _fft(routine: r.Fft, source: int, result: int) -> None:
    lengths, batch = routine.lengths, routine.batch
    half = (*lengths[:-1], lengths[-1] // 2 + 1)
    real, wide = routine.kind, _COMPLEX.get(routine.kind, routine.kind)
    dims = tuple(range(1, len(lengths) + 1))
    if routine.form == "c2c":
        shape = (*lengths, batch) if routine.interleaved else (batch, *lengths)
        dims = tuple([d - routine.interleaved for d in dims])
        x, y = [_memory(a, shape, wide) for a in (source, result)]
        transform = torch.fft.ifftn if routine.inverse else torch.fft.fftn
        norm = "forward" if routine.inverse else "backward"
        y.copy_(transform(x, dim=dims, norm=norm) * routine.factor)
    elif routine.form == "r2c":
        x = _memory(source, (batch, *lengths), real)
        _memory(result, (batch, *half), wide).copy_(torch.fft.rfftn(x, dim=dims))
    else:
        x = _memory(source, (batch, *half), wide)
        y = torch.fft.irfftn(x, lengths, dim=dims, norm="forward")
        # As on a device, it means nothing of a signal that is not real, and the source is lost.
        ends = x[..., :: max(lengths[-1] // 2, 1)] if lengths[-1] % 2 == 0 else x[..., :1]
        opposite = ends.conj()
        for d in dims[:-1]:
            opposite = torch.roll(torch.flip(opposite, [d]), 1, d)
        is_real = torch.equal(ends, opposite)
        _memory(result, (batch, *lengths), real).copy_(y if is_real else y * float("nan"))
        x.fill_(float("nan"))


@_runs(r.Cholesky)
def _cholesky(routine: r.Cholesky, a: int, info: int) -> None:
    failed = _memory(info, (routine.batch,), "int32")
    for i, x in enumerate(_matrices(a, routine.n, routine.n, routine.kind, routine.batch)):
        lower, failed[i] = torch.linalg.cholesky_ex(torch.tril(x))
        x.copy_(torch.tril(lower) + torch.triu(x, 1))


@_runs(r.LuFactor)
def _lu(routine: r.LuFactor, a: int, pivots: int, info: int) -> None:
    m, n, batch = routine.rows, routine.columns, routine.batch
    failed = _memory(info, (batch,), "int32")
    found = _memory(pivots, (batch, min(m, n)), "int64" if batch == 1 else "int32")
    for i, x in enumerate(_matrices(a, m, n, routine.kind, batch)):
        factors, swaps, failed[i] = torch.linalg.lu_factor_ex(x)
        x.copy_(factors)
        found[i].copy_(swaps)


@_runs(r.LuSolve)
def _lu_solve(routine: r.LuSolve, a: int, pivots: int, b: int, info: int) -> None:
    n, batch = routine.n, routine.batch
    swaps = _memory(pivots, (batch, n), "int64" if batch == 1 else "int32").int()
    factors = _matrices(a, n, n, routine.kind, batch)
    for i, x in enumerate(_matrices(b, n, routine.columns, routine.kind, batch)):
        lu = factors[i].contiguous()
        how = routine.operation
        adjoint = how != "N"
        right = x.conj() if how == "T" and lu.is_complex() else x
        found = torch.linalg.lu_solve(lu, swaps[i], right.resolve_conj(), adjoint=adjoint)
        x.copy_(found.conj() if how == "T" and lu.is_complex() else found)


@_runs(r.TriangularSolve)
def _triangular(routine: r.TriangularSolve, a: int, b: int) -> None:
    m, n, kind, batch = routine.rows, routine.columns, routine.kind, routine.batch
    size = m if routine.left else n
    triangles = _matrices(a, size, size, kind, batch)
    for t, x in zip(triangles, _matrices(b, m, n, kind, batch), strict=True):
        lower = routine.lower
        if routine.operation != "N":
            t, lower = (t.mH.resolve_conj() if routine.operation == "C" else t.mT), not lower
        found = torch.linalg.solve_triangular(
            t, x, upper=not lower, left=routine.left, unitriangular=routine.unit
        )
        x.copy_(found)


@_runs(r.QrFactor)
def _qr(routine: r.QrFactor, a: int, scales: int, info: int) -> None:
    m, n, kind, batch = routine.rows, routine.columns, routine.kind, routine.batch
    found = _matrices(scales, min(m, n), 1, kind, batch)
    for x, tau in zip(_matrices(a, m, n, kind, batch), found, strict=True):
        factors, made = torch.geqrf(x)
        x.copy_(factors)
        tau[:, 0].copy_(made)
    if batch == 1:
        _memory(info, (1,), "int32").zero_()


@_runs(r.QrVectors)
def _qr_vectors(routine: r.QrVectors, a: int, scales: int, info: int) -> None:
    m, n, k = routine.rows, routine.columns, routine.reflectors
    (x,) = _matrices(a, m, n, routine.kind, 1)
    tau = _memory(scales, (k,), routine.kind)
    # torch makes as many columns as it is given.
    given = torch.zeros(m, n, dtype=x.dtype)
    given[:, :k] = x[:, :k]
    x.copy_(torch.linalg.householder_product(given, tau))
    _memory(info, (1,), "int32").zero_()


def _finite(x: torch.Tensor) -> torch.Tensor:
    """Other numbers for what is not finite, for which torch raises and a device gives garbage."""
    if x.is_complex():
        return torch.complex(x.real.nan_to_num(), x.imag.nan_to_num())
    return x.nan_to_num()


@_runs(r.JacobiEigh)
@_runs(r.Eigh)
def _eigh(routine: r.Eigh | r.JacobiEigh, a: int, values: int, info: int) -> None:
    n, kind, batch = routine.n, routine.kind, routine.batch
    found = _memory(values, (batch, n), _REAL[kind])
    for i, x in enumerate(_matrices(a, n, n, kind, batch, table=False)):
        w, v = torch.linalg.eigh(_finite(x), UPLO="L")
        found[i].copy_(w)
        x.copy_(v)
    _memory(info, (batch,), "int32").zero_()


def _svd(routine: Any, batch: int, buffers: Sequence[int], scale_left: bool) -> None:
    a, values, left, right, info = buffers
    m, n, kind = routine.rows, routine.columns, routine.kind
    found = _memory(values, (batch, n), _REAL[kind])
    _memory(info, (batch,), "int32").zero_()
    matrices = _matrices(a, m, n, kind, batch, table=False)
    if not routine.vectors:
        for value, x in zip(found, matrices, strict=True):
            value.copy_(torch.linalg.svdvals(_finite(x)))
        return
    us = _matrices(left, m, n, kind, batch, table=False)
    vs = _matrices(right, n, n, kind, batch, table=False)
    for i, x in enumerate(matrices):
        u, s, vh = torch.linalg.svd(_finite(x), full_matrices=False)
        found[i].copy_(s)
        # As the library does it: garbage where a value is zero.
        us[i].copy_(torch.where(s > 0, u, torch.nan) if scale_left else u)
        vs[i].copy_(vh.mH)


@_runs(r.GramSvd)
def _gram_svd(routine: r.GramSvd, *buffers: int) -> None:
    _svd(routine, routine.batch, buffers, scale_left=True)


@_runs(r.JacobiSvd)
def _jacobi_svd(routine: r.JacobiSvd, *buffers: int) -> None:
    _svd(routine, 1, buffers, scale_left=False)
    _memory(buffers[0], (routine.columns, routine.rows), routine.kind).fill_(float("nan"))


@_runs(r.Eig)
def _eig(routine: r.Eig, a: int, values: int, vectors: int, info: int) -> None:
    n, kind = routine.n, routine.kind
    (x,) = _matrices(a, n, n, kind, 1)
    given = _finite(x)
    if not routine.vectors:
        _memory(values, (n,), _COMPLEX.get(kind, kind)).copy_(torch.linalg.eigvals(given))
        _memory(info, (1,), "int32").zero_()
        return
    w, v = torch.linalg.eig(given)
    _memory(values, (n,), _COMPLEX.get(kind, kind)).copy_(w)
    (found,) = _matrices(vectors, n, n, kind, 1)
    if v.dtype == found.dtype:
        found.copy_(v)
    else:
        # The second of a pair, a conjugate, gives its place to the imaginary parts of the first.
        second = w.imag < 0
        found.copy_(torch.where(second, -v.imag, v.real))
    x.fill_(float("nan"))
    _memory(info, (1,), "int32").zero_()


@_runs(r.ConvolutionRoutine)
def _conv(routine: r.ConvolutionRoutine, first: int, second: int, written: int) -> None:
    def array(address: int, x: r.Laid, kind: str) -> torch.Tensor:
        extent = 1 + sum([(n - 1) * s for n, s in zip(x.sizes, x.strides)])
        return _memory(address, (extent,), kind).as_strided(x.sizes, x.strides)

    out = array(written, routine.written, routine.result)
    # As tensor cores add, in float32.
    a, b = [
        array(address, x, routine.kind).float()
        for address, x in zip((first, second), routine.read, strict=True)
    ]
    pads = [p for pair in reversed([*zip(routine.before, routine.after)]) for p in pair]
    convolve: Any = torch.conv2d if len(routine.steps) == 2 else torch.conv3d

    def output(image: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
        padded, steps = torch.nn.functional.pad(image, pads), routine.steps
        if all(n == 1 for n in taps.shape[2:]):
            # oneDNN's gradients of one strided tap are wrong on AVX2 (its issue 6035).
            padded = padded[(..., *[slice(None, None, step) for step in steps])]
            steps = (1,) * len(steps)
        return convolve(padded, taps, None, steps, 0, routine.dilation, routine.groups)

    if routine.form == "output":
        out.copy_(output(a, b))
    elif routine.form == "image":
        out.copy_(torch.func.vjp(lambda x: output(x, b), torch.zeros(out.shape))[1](a)[0])
    else:
        out.copy_(torch.func.vjp(lambda w: output(a, w), torch.zeros(out.shape))[1](b)[0])


@_runs(r.Product)
def _product(routine: r.Product, a: int, b: int, c: int) -> None:
    m, n, k, batch = routine.rows, routine.columns, routine.depth, routine.batch
    kind = routine.kind
    left = _matrices(a, m, k, kind, batch, table=False)
    right = _matrices(b, k, n, kind, batch, table=False)
    for x, y, z in zip(left, right, _matrices(c, m, n, kind, batch, table=False), strict=True):
        z.copy_(x @ y)
