"""Copies between host and device, staged through pinned memory.

Host arrays are in pageable memory, which a device cannot read by itself. Copies to the device go
through a ring buffer of pinned memory, so they return before they are done and the host array may
change at once. Copies to the host go through pinned blocks.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque

from genesis_fn.backends.cuda.driver.driver import Driver, EventHandle

_RING = 32 << 20
_CHUNK = 8 << 20
_ALIGN = 256


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


class Ring:
    """Pinned memory of which parts are filled and copied to the device, one after another.

    A part is taken from `position` on, filled, and sent; the ring knows what copies still read.
    """

    def __init__(self, driver: Driver, size: int) -> None:
        self.size = size
        self._driver = driver
        self._start: int | None = None
        self._head = 0
        # Parts that copies still read, oldest first: (start, end, event).
        self._busy: deque[tuple[int, int, EventHandle]] = deque()
        self._events: list[EventHandle] = []

    def position(self, size: int) -> int:
        """Where the next part of so many bytes begins."""
        start = -(-self._head // _ALIGN) * _ALIGN
        return start if start + size <= self.size else 0  # a part must be contiguous

    def take(self, size: int) -> int:
        """The address of the next part, once no copy reads it."""
        if self._start is None:
            self._start = self._driver.pin(self.size)
        start = self.position(size)
        end = start + size
        while self._busy and any(low < end and start < high for low, high, _ in self._busy):
            _, _, event = self._busy.popleft()
            self._driver.wait_host(event)
            self._events.append(event)
        self._head = end
        while self._busy and self._driver.done(self._busy[0][2]):
            self._events.append(self._busy.popleft()[2])
        return self._start + start

    def send(self, destination: int, address: int, size: int) -> None:
        """Copy a part that was taken at `address` to the device, in order of the compute stream."""
        assert self._start is not None
        driver, start = self._driver, address - self._start
        driver.copy(destination, address, size, driver.compute)
        event = self._events.pop() if self._events else driver.new_event()
        driver.record(event, driver.compute)
        self._busy.append((start, start + size, event))


class Staging:
    """Host copies of one device. Every method may be called from any thread."""

    def __init__(self, driver: Driver, ring_bytes: int = _RING) -> None:
        self._driver = driver
        self._chunk = min(_CHUNK, ring_bytes // 4)
        self._ring = Ring(driver, ring_bytes)
        self._lock = threading.Lock()
        self.pinned = PinnedMemory(driver)

    def to_device(self, destination: int, host: int, size: int) -> None:
        """Copies `size` bytes from a host address, in order of the compute stream.

        The host memory has been read when this returns.
        """
        with self._lock:
            for offset in range(0, size, self._chunk):
                part = min(self._chunk, size - offset)
                address = self._ring.take(part)
                ctypes.memmove(address, host + offset, part)
                self._ring.send(destination + offset, address, part)

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


def _power_of_two(size: int) -> int:
    return max(256, 1 << (size - 1).bit_length()) if size > 1 else 256
