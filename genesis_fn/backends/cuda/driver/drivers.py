"""Chooses the driver implementation, and opens it once per device."""

from __future__ import annotations

import os
import threading

from genesis_fn.backends.cuda.driver.driver import Driver, check_fork, opened
from genesis_fn.core.configuration import environment

_lock = threading.Lock()


def implementation() -> str:
    """ "cuda" or "interpret", from `GENESIS_CUDA_DRIVER`. Raises ValueError for anything else."""
    name = environment.text("GENESIS_CUDA_DRIVER") or "cuda"
    if name not in ("cuda", "interpret"):
        raise ValueError(f'GENESIS_CUDA_DRIVER must be "cuda" or "interpret", not {name!r}')
    return name


def device_count() -> int:
    """How many devices the chosen driver has; 0 if none can be used."""
    if implementation() == "interpret":
        from genesis_fn.backends.cuda.driver import interpret

        return interpret.device_count()
    try:
        from genesis_fn.backends.cuda.driver import cuda
    except ImportError:
        return 0
    return cuda.device_count()


def open_driver(index: int = 0) -> Driver:
    """The driver of device `index`, opened once a process."""
    check_fork()
    driver = opened.get(index)
    if driver is not None:
        return driver
    with _lock:
        if index not in opened:
            opened[index] = _open(index)
        return opened[index]


def _open(index: int) -> Driver:
    count = device_count()
    if not 0 <= index < count:
        raise ValueError(f"there is no device cuda:{index}: {count} found")
    if implementation() == "interpret":
        from genesis_fn.backends.cuda.driver.interpret import InterpretDriver

        return InterpretDriver(index)
    from genesis_fn.backends.cuda.driver.cuda import CudaDriver

    return CudaDriver(index)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)
