"""Routines of cuFFT, cuSOLVER and cuBLAS in the current context.

A thread has handles of its own. All memory that depends on the size of a problem is the caller's: a
handle's workspace is replaced by it.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from genesis_fn.backends.cuda.driver.driver import captures
from genesis_fn.backends.cuda.driver.errors import CudaError
from genesis_fn.backends.cuda.libraries import loading, transforms
from genesis_fn.backends.cuda.libraries.loading import COMPLEX, DEFAULT_STREAM, REAL, Libraries
from genesis_fn.kernels import routines as r

_BLAS_WORKSPACE = 4 << 20
_LETTER = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
_TYPE = {"float32": 0, "float64": 1, "complex64": 4, "complex128": 5}  # cudaDataType
_OPERATION = {"N": 0, "T": 1, "C": 2}
_LOWER, _UPPER = 0, 1
_VECTORS = 1  # of enumerations that say whether vectors are computed
_ONE = {k: np.ones(1, k) for k in _LETTER}
_ZERO = {k: np.zeros(1, k) for k in _LETTER}

R = TypeVar("R", bound=r.Routine)


class _Handles:
    """A thread's handles of one device: cuSOLVER's with its parameters, and cuBLAS's."""

    def __init__(self) -> None:
        self._libraries, self._retired = loading.libraries(), loading.retired
        self.solver = self._libraries.solver.create()
        self.parameters = self._libraries.solver.create_params()
        self.jacobi = self._libraries.solver.create_gesvdj_info()
        self.eigen_jacobi = self._libraries.solver.create_syevj_info()
        self.blas = self._libraries.blas.create()

    def __del__(self) -> None:
        if hasattr(self, "blas"):
            solver, blas = self._libraries.solver, self._libraries.blas
            self._retired.extend(
                [
                    (solver.destroy_gesvdj_info, self.jacobi),
                    (solver.destroy_syevj_info, self.eigen_jacobi),
                    (solver.destroy_params, self.parameters),
                    (solver.destroy, self.solver),
                    (blas.destroy, self.blas),
                ]
            )


class _Thread(threading.local):
    """The handles of a thread, by context."""

    def __init__(self) -> None:
        self.handles: dict[int, _Handles] = {}


_thread = _Thread()


def _handles() -> _Handles:
    context = loading.context()
    found = _thread.handles.get(context)
    if found is None:
        found = _thread.handles[context] = _Handles()
    return found


# ---- running a routine ----


class LibraryRoutine:
    """A routine on the current device."""

    def __init__(self, routine: r.Routine) -> None:
        self._routine = routine
        self._plan = transforms.plan(routine) if isinstance(routine, r.Fft) else None
        self._used: set[_Handles] = set()
        self._host: list[Any] = []

    def run(self, addresses: Sequence[int], stream: Any) -> None:
        """Enqueue it, at the addresses of its buffers; scratch memory is last. Raises CudaError."""
        try:
            with captures:  # streams and memory are those of a handle or plan, not of the call
                if self._plan is None:
                    self._solve(list(addresses), int(stream))
                else:
                    assert isinstance(self._routine, r.Fft)
                    self._plan.run(self._routine, addresses, int(stream))
        except CudaError:
            raise
        except Exception as error:  # each library's bindings have a type of their own
            raise CudaError(f"{self._routine}", type(error).__name__, str(error)) from error

    def _solve(self, addresses: list[int], stream: int) -> None:
        libraries, handles = loading.libraries(), _handles()
        self._used.add(handles)
        libraries.solver.set_stream(handles.solver, stream)
        libraries.blas.set_stream(handles.blas, stream)
        call = _Call(libraries, handles, addresses, scratch(self._routine), self._host)
        try:
            _RUNS[type(self._routine)](self._routine, call)
        finally:
            # A stream of a capture ends with it, and questions about sizes look at the handle's.
            libraries.solver.set_stream(handles.solver, DEFAULT_STREAM)
            libraries.blas.set_stream(handles.blas, DEFAULT_STREAM)


@dataclass(frozen=True, slots=True)
class _Call:
    """What a run of a routine has: libraries and handles, the addresses of its buffers, the bytes
    of its scratch memory, and a list that keeps host memory for as long as a graph may."""

    libraries: Libraries
    handles: _Handles
    addresses: list[int]
    scratch: int
    host: list[Any]

    def solver(self, name: str, *arguments: Any) -> Any:
        """Call a function of cuSOLVER."""
        return getattr(self.libraries.solver, name)(self.handles.solver, *arguments)

    def blas(self, name: str, *arguments: Any) -> Any:
        """Call a function of cuBLAS, on the scratch memory."""
        blas = self.libraries.blas
        # A new stream has taken the workspace away.
        blas.set_workspace(self.handles.blas, self.addresses[-1], self.scratch)
        return getattr(blas, name)(self.handles.blas, *arguments)

    def general(self, name: str, sizes: tuple[int, int], *arguments: Any, last: Any = ()) -> None:
        """Call a function of cuSOLVER's interface for all types: with its scratch memory, of
        `sizes` on the device and on the host."""
        held = (ctypes.c_char * max(sizes[1], 1))()
        self.host[:] = [held]
        scratch = (self.addresses[-1], sizes[0], ctypes.addressof(held), sizes[1])
        info = self.addresses[-2]
        self.solver(name, self.handles.parameters, *arguments, *scratch, info, *last)


_RUNS: dict[type, Callable[[Any, _Call], None]] = {}
_SCRATCH: dict[type, Callable[[Any, Libraries, _Handles], int]] = {}


def _runs(kind: type[R]) -> Callable[[Callable[[R, _Call], None]], Callable[[R, _Call], None]]:
    def register(run: Callable[[R, _Call], None]) -> Callable[[R, _Call], None]:
        _RUNS[kind] = run
        return run

    return register


def _wants(
    *kinds: type[R],
) -> Callable[[Callable[[R, Libraries, _Handles], int]], Callable[[R, Libraries, _Handles], int]]:
    def register(
        size: Callable[[R, Libraries, _Handles], int],
    ) -> Callable[[R, Libraries, _Handles], int]:
        _SCRATCH.update(dict.fromkeys(kinds, size))
        return size

    return register


@functools.lru_cache(4096)
def scratch(routine: r.Routine) -> int:
    """The bytes of scratch memory that a routine wants on the device."""
    with loading.planning():
        return _SCRATCH[type(routine)](routine, loading.libraries(), _handles())


@_wants(r.Fft)
def _fft_scratch(routine: r.Fft, libraries: Libraries, handles: _Handles) -> int:
    return transforms.plan(routine).scratch


@_wants(r.TriangularSolve, r.Product, r.QrFactor, r.LuFactor, r.LuSolve, r.Cholesky)
def _small_scratch(routine: Any, libraries: Libraries, handles: _Handles) -> int:
    return max(_BLAS_WORKSPACE, _factor_sizes(routine)[0])


# Sizes are asked when a program is planned, and known to its runs.
_sizes = functools.lru_cache(4096)


@_sizes
def _factor_sizes(routine: Any) -> tuple[int, int]:
    """(bytes on the device, bytes on the host) of a factorization of one matrix; of others none."""
    libraries, handles = loading.libraries(), _handles()
    if routine.batch > 1 or isinstance(routine, (r.TriangularSolve, r.Product, r.LuSolve)):
        return 0, 0
    solver, kind = libraries.solver, _TYPE[routine.kind]
    common = handles.solver, handles.parameters
    if isinstance(routine, r.Cholesky):
        n = routine.n
        return solver.xpotrf_buffer_size(*common, _LOWER, n, kind, 0, n, kind)
    m, n = routine.rows, routine.columns
    if isinstance(routine, r.LuFactor):
        return solver.xgetrf_buffer_size(*common, m, n, kind, 0, m, kind)
    return solver.xgeqrf_buffer_size(*common, m, n, kind, 0, m, kind, 0, kind)


@_runs(r.Cholesky)
def _cholesky(routine: r.Cholesky, call: _Call) -> None:
    a, info, _ = call.addresses
    n, kind = routine.n, _TYPE[routine.kind]
    if routine.batch > 1:
        name = f"{_LETTER[routine.kind]}potrf_batched"
        call.solver(name, _LOWER, n, a, n, info, routine.batch)
        return
    call.general("xpotrf", _factor_sizes(routine), _LOWER, n, kind, a, n, kind)


@_runs(r.LuFactor)
def _lu(routine: r.LuFactor, call: _Call) -> None:
    a, pivots, info, _ = call.addresses
    m, n, kind = routine.rows, routine.columns, _TYPE[routine.kind]
    if routine.batch > 1:
        call.blas(f"{_LETTER[routine.kind]}getrf_batched", n, a, n, pivots, info, routine.batch)
        return
    call.general("xgetrf", _factor_sizes(routine), m, n, kind, a, m, pivots, kind)


@_runs(r.LuSolve)
def _lu_solve(routine: r.LuSolve, call: _Call) -> None:
    a, pivots, b, info, _ = call.addresses
    n, columns, kind = routine.n, routine.columns, _TYPE[routine.kind]
    operation = _OPERATION[routine.operation]
    if routine.batch > 1:
        checked = np.zeros(1, np.int32)  # of the arguments, on the host
        call.blas(
            f"{_LETTER[routine.kind]}getrs_batched",
            operation, n, columns, a, n, pivots, b, n, checked.ctypes.data, routine.batch,
        )  # fmt: skip
        return
    parameters = call.handles.parameters
    call.solver("xgetrs", parameters, operation, n, columns, kind, a, n, pivots, kind, b, n, info)


@_runs(r.TriangularSolve)
def _triangular(routine: r.TriangularSolve, call: _Call) -> None:
    a, b, _ = call.addresses
    m, n, letter = routine.rows, routine.columns, _LETTER[routine.kind]
    leading = max(m if routine.left else n, 1)
    how = (
        0 if routine.left else 1,
        _LOWER if routine.lower else _UPPER,
        _OPERATION[routine.operation],
        int(routine.unit),
    )
    operands = m, n, _ONE[routine.kind].ctypes.data, a, leading, b, m
    if routine.batch > 1:
        call.blas(f"{letter}trsm_batched", *how, *operands, routine.batch)
    else:
        call.blas(f"{letter}trsm", *how, *operands)


@_runs(r.QrFactor)
def _qr(routine: r.QrFactor, call: _Call) -> None:
    a, scales, *_ = call.addresses
    m, n, kind = routine.rows, routine.columns, _TYPE[routine.kind]
    if routine.batch > 1:
        checked = np.zeros(1, np.int32)
        name = f"{_LETTER[routine.kind]}geqrf_batched"
        call.blas(name, m, n, a, m, scales, checked.ctypes.data, routine.batch)
        return
    call.general("xgeqrf", _factor_sizes(routine), m, n, kind, a, m, kind, scales, kind)


def _vectors_name(kind: str) -> str:
    """LAPACK's name of the function that makes Q of reflectors."""
    return f"{_LETTER[kind]}{'orgqr' if kind.startswith('f') else 'ungqr'}"


@_wants(r.QrVectors)
def _qr_vectors_scratch(routine: r.QrVectors, libraries: Libraries, handles: _Handles) -> int:
    size = getattr(libraries.solver, f"{_vectors_name(routine.kind)}_buffer_size")
    m, n, k = routine.rows, routine.columns, routine.reflectors
    return size(handles.solver, m, n, k, 0, m, 0) * np.dtype(routine.kind).itemsize


@_runs(r.QrVectors)
def _qr_vectors(routine: r.QrVectors, call: _Call) -> None:
    a, scales, info, work = call.addresses
    m, n, k = routine.rows, routine.columns, routine.reflectors
    elements = call.scratch // np.dtype(routine.kind).itemsize
    call.solver(_vectors_name(routine.kind), m, n, k, a, m, scales, work, elements, info)


@_sizes
def _eigh_sizes(routine: r.Eigh) -> tuple[int, int]:
    libraries, handles = loading.libraries(), _handles()
    n, kind, real = routine.n, _TYPE[routine.kind], REAL[routine.kind]
    what = handles.solver, handles.parameters, _VECTORS, _LOWER, n, kind, 0, n, real, 0, kind
    if routine.captured:
        return libraries.solver.xsyev_batched_buffer_size(*what, routine.batch)
    return libraries.solver.xsyevd_buffer_size(*what)


@_wants(r.Eigh)
def _eigh_scratch(routine: r.Eigh, libraries: Libraries, handles: _Handles) -> int:
    return _eigh_sizes(routine)[0]


@_runs(r.Eigh)
def _eigh(routine: r.Eigh, call: _Call) -> None:
    a, values, _, _ = call.addresses
    n, kind, real = routine.n, _TYPE[routine.kind], REAL[routine.kind]
    what = _VECTORS, _LOWER, n, kind, a, n, real, values, kind
    if routine.captured:
        call.general("xsyev_batched", _eigh_sizes(routine), *what, last=(routine.batch,))
    else:
        call.general("xsyevd", _eigh_sizes(routine), *what)


def _eigh_name(kind: str) -> str:
    return f"{_LETTER[kind]}{'syevj' if kind.startswith('f') else 'heevj'}_batched"


@_wants(r.JacobiEigh)
def _jacobi_eigh_scratch(routine: r.JacobiEigh, libraries: Libraries, handles: _Handles) -> int:
    size = getattr(libraries.solver, f"{_eigh_name(routine.kind)}_buffer_size")
    n = routine.n
    elements = size(
        handles.solver, _VECTORS, _LOWER, n, 0, n, 0, handles.eigen_jacobi, routine.batch
    )
    return elements * np.dtype(routine.kind).itemsize


@_runs(r.JacobiEigh)
def _jacobi_eigh(routine: r.JacobiEigh, call: _Call) -> None:
    a, values, info, scratch = call.addresses
    elements = call.scratch // np.dtype(routine.kind).itemsize
    n = routine.n
    call.solver(
        _eigh_name(routine.kind), _VECTORS, _LOWER, n, a, n, values, scratch, elements, info,
        call.handles.eigen_jacobi, routine.batch,
    )  # fmt: skip


def _gram_arguments(
    routine: r.GramSvd, a: int = 0, values: int = 0, u: int = 0, v: int = 0
) -> tuple[int, ...]:
    m, n = routine.rows, routine.columns
    wanted = int(routine.vectors)
    return wanted, n, m, n, a, m, m * n, values, n, u, m, m * n, v, n, n * n


@_wants(r.GramSvd)
def _gram_scratch(routine: r.GramSvd, libraries: Libraries, handles: _Handles) -> int:
    size = getattr(libraries.solver, f"{_LETTER[routine.kind]}gesvda_strided_batched_buffer_size")
    elements = size(handles.solver, *_gram_arguments(routine), routine.batch)
    return elements * np.dtype(routine.kind).itemsize


@_runs(r.GramSvd)
def _gram_svd(routine: r.GramSvd, call: _Call) -> None:
    *buffers, info, scratch = call.addresses
    elements = call.scratch // np.dtype(routine.kind).itemsize
    name = f"{_LETTER[routine.kind]}gesvda_strided_batched"
    no_residual = 0
    call.solver(
        name, *_gram_arguments(routine, *buffers), scratch, elements, info, no_residual,
        routine.batch,
    )  # fmt: skip


def _jacobi_arguments(
    routine: r.JacobiSvd, a: int = 0, values: int = 0, u: int = 0, v: int = 0
) -> tuple[int, ...]:
    m, n = routine.rows, routine.columns
    thin = 1
    return int(routine.vectors), thin, m, n, a, m, values, u, m, v, n


@_wants(r.JacobiSvd)
def _jacobi_scratch(routine: r.JacobiSvd, libraries: Libraries, handles: _Handles) -> int:
    size = getattr(libraries.solver, f"{_LETTER[routine.kind]}gesvdj_buffer_size")
    elements = size(handles.solver, *_jacobi_arguments(routine), handles.jacobi)
    return elements * np.dtype(routine.kind).itemsize


@_runs(r.JacobiSvd)
def _jacobi_svd(routine: r.JacobiSvd, call: _Call) -> None:
    *buffers, info, scratch = call.addresses
    elements = call.scratch // np.dtype(routine.kind).itemsize
    name = f"{_LETTER[routine.kind]}gesvdj"
    what = _jacobi_arguments(routine, *buffers)
    call.solver(name, *what, scratch, elements, info, call.handles.jacobi)


def _eig_arguments(
    routine: r.Eig, a: int = 0, values: int = 0, vectors: int = 0
) -> tuple[int, ...]:
    n, kind = routine.n, _TYPE[routine.kind]
    without = 0
    left = kind, 0, n
    right = kind, vectors, n
    wanted, values_kind = int(routine.vectors), COMPLEX[routine.kind]
    return without, wanted, n, kind, a, n, values_kind, values, *left, *right, kind


@_sizes
def _eig_sizes(routine: r.Eig) -> tuple[int, int]:
    libraries, handles = loading.libraries(), _handles()
    size = libraries.solver.xgeev_buffer_size
    return size(handles.solver, handles.parameters, *_eig_arguments(routine))


@_wants(r.Eig)
def _eig_scratch(routine: r.Eig, libraries: Libraries, handles: _Handles) -> int:
    return _eig_sizes(routine)[0]


@_runs(r.Eig)
def _eig(routine: r.Eig, call: _Call) -> None:
    call.general("xgeev", _eig_sizes(routine), *_eig_arguments(routine, *call.addresses[:3]))


@_runs(r.Product)
def _product(routine: r.Product, call: _Call) -> None:
    a, b, c, _ = call.addresses
    m, n, k = routine.rows, routine.columns, routine.depth
    one, zero = _ONE[routine.kind].ctypes.data, _ZERO[routine.kind].ctypes.data
    name = f"{_LETTER[routine.kind]}gemm_strided_batched"
    call.blas(name, 0, 0, m, n, k, one, a, m, m * k, b, k, k * n, zero, c, m, m * n, routine.batch)
