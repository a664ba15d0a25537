"""NVIDIA's libraries through the bindings of nvmath-python, and when they may be called.

Work in flight and graphs refer to what a handle or a plan has on the device, so whatever enqueued
with one keeps it alive.
"""

from __future__ import annotations

import functools
import warnings
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as cu  # pyright: ignore[reportAttributeAccessIssue]

from genesis_fn.backends.cuda.driver.driver import captures, opened
from genesis_fn.backends.cuda.driver.errors import CudaError
from genesis_fn.core.errors import BackendError

_OLDEST_SOLVER = 11705  # of CUDA 12.9, as cuda-bindings: Xgeev and XsyevBatched
DEFAULT_STREAM = 0
# cudaDataType
REAL = {"float32": 0, "float64": 1, "complex64": 0, "complex128": 1}
COMPLEX = {"float32": 4, "float64": 5, "complex64": 4, "complex128": 5}


@dataclass(frozen=True, slots=True)
class Libraries:
    """The modules of the bindings."""

    fft: Any
    solver: Any
    blas: Any


@functools.cache
def loaded() -> Libraries | None:
    """The libraries; None, after a warning, where a package is missing. Raises BackendError where
    one is too old."""
    try:
        from nvmath.bindings import cublas, cufft, cusolver, cusolverDn

        version = cusolver.get_version()
        cufft.get_version()
    except Exception as error:  # the bindings raise several types where a library is missing
        warnings.warn(
            "Fourier transforms and linear algebra run on the host, since NVIDIA's libraries or "
            f"their bindings are missing ({type(error).__name__}: {error})\n  pip install "
            "nvmath-python, and nvidia-cufft, nvidia-cusolver and nvidia-cublas for your CUDA",
            stacklevel=2,
        )
        return None
    missing = [n for n in ("xgeev", "xsyev_batched") if not hasattr(cusolverDn, n)]
    if version < _OLDEST_SOLVER or missing:
        wrong = f"nvmath-python lacks {missing[0]}" if missing else f"cuSOLVER is of {version}"
        raise BackendError(
            f"linear algebra on the GPU: {wrong}; it needs cuSOLVER {_OLDEST_SOLVER} (CUDA 12.9) "
            "or later, and its bindings\n  pip install --upgrade nvmath-python nvidia-cusolver"
        )
    return Libraries(cufft, cusolverDn, cublas)


def libraries() -> Libraries:
    """The libraries, where there are some."""
    found = loaded()
    assert found is not None, "plans call libraries only where they are"
    return found


def context() -> int:
    """The current context; where a thread has none yet, that of the first device that is open."""
    code, current = cu.cuCtxGetCurrent()
    if code == cu.CUresult.CUDA_SUCCESS and not int(current):
        driver: Any = next(iter(opened.values()))
        driver.activate()
        code, current = cu.cuCtxGetCurrent()
    if code != cu.CUresult.CUDA_SUCCESS:
        raise CudaError("asking for the current context", code.name)
    return int(current)


# Destructors of what nothing refers to any more. The collector may find that while a thread
# captures, which freeing memory would break: the next thread that plans calls them.
retired: deque[tuple[Callable[[Any], object], Any]] = deque()


@contextmanager
def planning() -> Generator[None]:
    """Around what calls libraries for no stream: while no thread captures."""
    with captures:
        while retired:
            destroy, handle = retired.popleft()
            destroy(handle)
        yield
