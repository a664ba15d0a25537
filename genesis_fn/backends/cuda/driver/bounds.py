"""Bounds checks for Triton's interpreter: a kernel that accesses memory outside of its buffers
raises.

The interpreter itself would read and write any host memory that an address points to, where a GPU
faults (or does not).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from genesis_fn.backends.cuda.driver.errors import CudaError

_ACCESSES = {"create_masked_load": 1, "create_masked_store": 2, "create_atomic_rmw": 3}
_kernel: tuple[str, np.ndarray, np.ndarray] | None = None  # name, starts, ends of what is allowed


@contextlib.contextmanager
def checked(name: str, ranges: Sequence[tuple[int, int]]) -> Generator[None]:
    """Check the accesses of kernel `name` while the context is entered: those outside of `ranges`,
    each [first address, one past the last), raise CudaError. Without ranges nothing is checked. One
    kernel at a time."""
    global _kernel
    _watch()
    _kernel = (name, *_joined(ranges)) if ranges else None
    try:
        yield
    except Exception as error:
        # The interpreter wraps what happens in a kernel.
        if isinstance(error.__cause__, CudaError):
            raise error.__cause__ from None
        raise
    finally:
        _kernel = None


def _joined(ranges: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    merged: list[list[int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return np.array([m[0] for m in merged], np.int64), np.array([m[1] for m in merged], np.int64)


def _check(pointers: Any, mask: Any) -> None:
    assert _kernel is not None
    name, starts, ends = _kernel
    chosen = np.broadcast_to(np.asarray(mask.data, bool), np.shape(pointers.data))
    addresses = np.asarray(pointers.data).astype(np.int64)[chosen]
    if not addresses.size:
        return
    size = max(pointers.get_element_ty().primitive_bitwidth // 8, 1)
    at = np.searchsorted(starts, addresses, "right") - 1
    bad = (at < 0) | (addresses + size > ends[at])
    if bad.any():
        address = int(addresses[bad][0])
        near = int(ends[max(int(at[bad][0]), 0)])
        raise CudaError(
            f"kernel {name}",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            f"{int(bad.sum())} of {addresses.size} accesses are outside of its buffers, the first "
            f"{address - near} bytes after the end of one",
        )


@functools.cache
def _watch() -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    def watched(access: Callable[..., Any], mask: int) -> Callable[..., Any]:
        @functools.wraps(access)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _kernel is not None:
                pointers = args[0] if mask < 3 else args[1]
                given = args[mask] if mask < len(args) else kwargs["mask"]
                _check(pointers, given)
            return access(self, *args, **kwargs)

        return call

    for name, mask in _ACCESSES.items():
        setattr(InterpreterBuilder, name, watched(getattr(InterpreterBuilder, name), mask))
