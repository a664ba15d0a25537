"""Copies between host and device, staged through pinned memory.

Host arrays are in pageable memory, which a device cannot read by itself. Copies to the device go
through a ring buffer of pinned memory, so they return before they are done and the host array may
change at once. Copies to the host go through pinned blocks.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable

from genesis_fn.backends.cuda.driver.driver import Driver, EventHandle

_RING = 32 << 20
_CHUNK = 8 << 20
_ALIGN = 256
# One thread fills memory more slowly than the bus to the device empties it.
_READERS = min(8, max(4, os.cpu_count() or 4))
_PIECE = 1 << 20  # bytes that are worth a thread


class PinnedMemory:
    """Pinned host blocks by power-of-two size, kept for reuse."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._free: dict[int, list[int]] = {}
        self._lock = threading.Lock()
        self.bytes = 0

    def take(self, size: int) -> int:
        """The address of a block of at least `size` bytes."""
        rounded = _power_of_two(size)
        with self._lock:
            blocks = self._free.setdefault(rounded, [])
            if blocks:
                return blocks.pop()
            self.bytes += rounded
        return self._driver.pin(rounded)

    def give(self, address: int, size: int) -> None:
        """Returns a block taken for `size` bytes; nothing may be copying with it."""
        with self._lock:
            self._free[_power_of_two(size)].append(address)

    def trim(self) -> None:
        """Unpins the blocks that are not in use."""
        with self._lock:
            held, self._free = self._free, {}
            self.bytes -= sum(size * len(blocks) for size, blocks in held.items())
        for blocks in held.values():
            for address in blocks:
                self._driver.unpin(address)


class PendingRead:
    """A copy from device to pinned memory that is under way."""

    def __init__(self, pinned: PinnedMemory, driver: Driver, source: int, size: int) -> None:
        self._pinned = pinned
        self._driver = driver
        self._address = pinned.take(size)
        self._event = driver.new_event()
        self.size = size
        driver.copy(self._address, source, size, driver.compute)
        driver.record(self._event, driver.compute)

    @property
    def done(self) -> bool:
        """Whether `into` would return at once."""
        return self._driver.done(self._event)

    def into(self, host: int) -> None:
        """Waits for the copy and writes its bytes at a host address."""
        self._driver.wait_host(self._event)
        ctypes.memmove(host, self._address, self.size)

    def __del__(self) -> None:
        if hasattr(self, "_event"):
            # The block may serve another copy only when this one is over.
            self._driver.wait_host(self._event)
            self._driver.destroy_event(self._event)
            self._pinned.give(self._address, self.size)


class Staging:
    """Host copies of one device. Every method may be called from any thread."""

    def __init__(self, driver: Driver, ring_bytes: int = _RING) -> None:
        self._driver = driver
        self._size = ring_bytes
        self._chunk = min(_CHUNK, ring_bytes // 4)
        self._ring: int | None = None
        self._head = 0
        # Parts of the ring that copies still read, oldest first: (start, end, event).
        self._busy: deque[tuple[int, int, EventHandle]] = deque()
        self._events: list[EventHandle] = []
        self._lock = threading.Lock()
        self._readers = concurrent.futures.ThreadPoolExecutor(_READERS, "staging")
        self.pinned = PinnedMemory(driver)

    def to_device(self, destination: int, host: int, size: int) -> None:
        """Copies `size` bytes from a host address, in order of the compute stream.

        The host memory has been read when this returns.
        """

        self.write(
            destination, size, lambda at, start, count: ctypes.memmove(at, host + start, count)
        )

    def write(self, destination: int, size: int, fill: Callable[[int, int, int], object]) -> None:
        """Copies `size` bytes to the device, in order of the compute stream.

        `fill(address, start, count)` puts those from `start` on at a host address; it is called for
        one piece after another, for several at once perhaps.
        """
        driver = self._driver
        for offset in range(0, size, self._chunk):
            part = min(self._chunk, size - offset)
            # Between chunks other threads have their turn: a read from a disk may take long.
            with self._lock:
                start = self._take(part)
                assert self._ring is not None
                # The part is free: `_take` has waited for the copy that read it last.
                self._fill(self._ring + start, offset, part, fill)
                driver.copy(destination + offset, self._ring + start, part, driver.compute)
                event = self._events.pop() if self._events else driver.new_event()
                driver.record(event, driver.compute)
                self._busy.append((start, start + part, event))

    def _fill(
        self, address: int, start: int, size: int, fill: Callable[[int, int, int], object]
    ) -> None:
        if size < 2 * _PIECE:
            fill(address, start, size)
            return
        piece = max(_PIECE, -(-size // _READERS))
        running = [
            self._readers.submit(fill, address + at, start + at, min(piece, size - at))
            for at in range(0, size, piece)
        ]
        concurrent.futures.wait(running)  # all, so that none fills a part that others take
        for done in running:
            done.result()

    def to_host(self, host: int, source: int, size: int) -> None:
        """Copies `size` bytes to a host address, after the work queued so far, and waits."""
        reads: deque[tuple[PendingRead, int]] = deque()
        for offset in range(0, size, self._chunk):
            read = self.read(source + offset, min(self._chunk, size - offset))
            reads.append((read, offset))
            # Two chunks are copied by the device while the host empties the oldest one.
            if len(reads) > 2:
                first, at = reads.popleft()
                first.into(host + at)
        for read, at in reads:
            read.into(host + at)

    def read(self, source: int, size: int) -> PendingRead:
        """Starts a copy to the host in compute order, and returns before it is done."""
        return PendingRead(self.pinned, self._driver, source, size)

    def _take(self, size: int) -> int:
        """The start of `size` bytes of the ring that no copy uses, waiting for old copies."""
        if self._ring is None:
            self._ring = self._driver.pin(self._size)
        start = -(-self._head // _ALIGN) * _ALIGN
        if start + size > self._size:
            start = 0  # a part must be contiguous
        end = start + size
        while self._busy and any(low < end and start < high for low, high, _ in self._busy):
            _, _, event = self._busy.popleft()
            self._driver.wait_host(event)
            self._events.append(event)
        self._head = end
        while self._busy and self._driver.done(self._busy[0][2]):
            self._events.append(self._busy.popleft()[2])
        return start


def _power_of_two(size: int) -> int:
    return max(256, 1 << (size - 1).bit_length()) if size > 1 else 256
