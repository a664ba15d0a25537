"""Bytes that threads fill pinned memory with, on their way to a device: those of files, above all.

Several threads fill parts of a ring at once, and the parts are sent in order as they are done: the
host holds no more of the bytes than the ring.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from genesis_fn.backends.cuda.driver.driver import Driver
from genesis_fn.backends.cuda.memory.staging import Ring

_RING = 64 << 20
_PART = 8 << 20  # bytes that one thread fills at a time; with 2 MiB handing over takes a third
_SMALL = 64 << 10  # bytes that are filled at once: a thread would take longer to begin
_THREADS = min(8, max(4, os.cpu_count() or 4))

Fill: TypeAlias = Callable[[memoryview, int], object]
"""`fill(memory, start)` fills `memory` with the bytes from `start` on."""


class _Part(NamedTuple):
    """A part of the ring that is being filled, and where it goes."""

    position: int
    address: int
    size: int
    destination: int
    filled: concurrent.futures.Future[object] | None


class Uploads:
    """Uploads to one device. May be called from any thread; one upload runs at a time."""

    def __init__(self, driver: Driver, ring_bytes: int = _RING) -> None:
        self._ring = Ring(driver, ring_bytes)
        self._part = min(_PART, ring_bytes // 4)
        self._lock = threading.Lock()
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "uploads")

    def write(self, jobs: Iterable[tuple[int, int, Fill]]) -> None:
        """Writes to device memory, in order of the compute stream.

        Jobs are (address on the device, number of bytes, what provides them), which several
        threads ask for pieces at once. What a fill raises is raised here, when no thread fills
        memory any more.
        """
        waiting: deque[_Part] = deque()
        with self._lock:
            try:
                for destination, size, fill in jobs:
                    for start in range(0, size, self._part):
                        n = min(self._part, size - start)
                        self._make_room(waiting, n)
                        waiting.append(self._begin(destination + start, start, n, fill))
                while waiting:
                    self._send(waiting)
            finally:
                concurrent.futures.wait([p.filled for p in waiting if p.filled is not None])

    def _make_room(self, waiting: deque[_Part], size: int) -> None:
        """Send what lies where the next part will."""
        low = self._ring.position(size)
        while any(p.position < low + size and low < p.position + p.size for p in waiting):
            self._send(waiting)

    def _begin(self, destination: int, start: int, size: int, fill: Fill) -> _Part:
        position, address = self._ring.position(size), self._ring.take(size)
        memory = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        filled = None
        if size <= _SMALL:
            fill(memory, start)
        else:
            filled = self._threads.submit(fill, memory, start)
        return _Part(position, address, size, destination, filled)

    def _send(self, waiting: deque[_Part]) -> None:
        part = waiting[0]
        if part.filled is not None:
            part.filled.result()
        waiting.popleft()
        self._ring.send(part.destination, part.address, part.size)
