"""The memory pool of a device: free lists by exact size, in front of a coalescing address space.

A freed block goes to the free list of its size and serves the next request of that size. Small
blocks are cut from slabs of one size, large ones from an address space that grows on demand.
Nothing is allocated before it is asked for.

Stream order: all of the library's work runs on one compute stream, so a freed block may be reused
at once, while work that uses it is still queued: whatever uses it next is queued behind that. A
block that another stream uses (an export) waits for that stream's event.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from genesis_fn.backends.cuda.driver.driver import Driver, EventHandle
from genesis_fn.backends.cuda.driver.errors import (
    DeviceMemoryExhausted,
    ForkedProcessError,
    OutOfMemory,
)
from genesis_fn.backends.cuda.memory.address_space import AddressSpace
from genesis_fn.core.configuration.gc_pause import no_collection

SMALL = 1 << 20
_MEDIUM = 256 << 20
_POLL_DEFERRED = 64


def _size_classes() -> list[int]:
    """The size class of every count of 512-byte units: 512 * {4, 5, 6, 7} * 2^k / 4."""
    steps = sorted({512 * q << k >> 2 for q in (4, 5, 6, 7) for k in range(12)} | {SMALL})
    sizes = [s for s in steps if s % 512 == 0 and s <= SMALL]
    table, index = [sizes[0]], 0
    for units in range(1, SMALL // 512 + 1):
        while sizes[index] < units * 512:
            index += 1
        table.append(sizes[index])
    return table


_ROUNDED = _size_classes()


class ForeignOwner:
    """The owner of imported memory: another library's object that keeps it alive."""

    __slots__ = ("__weakref__", "driver", "held")

    def __init__(self, driver: Driver, held: Any) -> None:
        self.driver = driver
        self.held = held


class Buffer:
    """`bytes` bytes of device memory at `address`, alive as long as `owner` is held.

    The owner is a `Pool` for the library's own blocks, a `ForeignOwner` for imported memory.
    """

    __slots__ = ("__weakref__", "address", "bytes", "owner")

    def __init__(self, address: int, size: int, owner: Any) -> None:
        self.address = address
        self.bytes = size
        self.owner = owner

    @property
    def driver(self) -> Driver:
        """The device's driver."""
        return self.owner.driver

    @property
    def device(self) -> int:
        """The device's index."""
        return self.owner.driver.info.index

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.bytes} bytes at {self.address:#x} cuda:{self.device}>"


class Block(Buffer):
    """A buffer of a pool, returned to it when the last reference is dropped."""

    __slots__ = ()

    def hold_until(self, event: EventHandle) -> None:
        """Keeps the memory from reuse until `event`, recorded on another stream, is complete.

        The pool takes ownership of the event.
        """
        self.owner._held.setdefault(self.address, []).append(event)

    def __del__(self) -> None:
        # A destructor may run in any thread, and inside the allocator itself (the garbage
        # collector), so it takes no lock: `deque.append` is atomic, and the next allocation drains.
        self.owner._pending.append(self.address)


class Pool:
    """All memory that the library holds on one device.

    Up to `fraction` of the device's memory may be mapped. Up to `slack` bytes, or a tenth of the
    peak, stay in free lists before they are coalesced to serve requests of other sizes.
    """

    def __init__(self, driver: Driver, fraction: float = 1.0, slack: int | None = None) -> None:
        total = driver.info.total_memory
        self.driver = driver
        self.slack = total // 64 if slack is None else slack
        self.limit = 0
        # Counters, for reports.
        self.in_use = 0
        self.peak = 0
        self.peak_mapped = 0
        self.hits = 0
        self.misses = 0
        self.retries = 0
        # Bound methods, since a `with` statement costs as much as the rest of an allocation. The
        # lock is re-entrant because a destructor run by the garbage collector may allocate.
        self.lock: Any = threading.RLock()
        self._acquire: Callable[[], Any] = self.lock.acquire
        self._release: Callable[[], None] = self.lock.release
        self.free_lists: dict[int, list[int]] = {}
        self.live: dict[int, tuple[int, int, Any]] = {}
        self._pending: deque[int] = deque()
        self._held: dict[int, list[EventHandle]] = {}
        self._deferred: list[tuple[int, list[EventHandle]]] = []
        self.slabs: dict[int, int] = {}
        whole = driver.info.shared
        self.small_space = AddressSpace(driver, total, 2 << 20, whole)
        self.large_space = AddressSpace(driver, 2 * total, 32 << 20, whole)
        self.set_memory_fraction(fraction)
        _pools.add(self)

    def alloc(self, size: int, site: object = None) -> Block:
        """A block of at least `size` bytes, aligned to 512; contents are undefined.

        `site` (its `str` is shown) says in reports which user line holds the memory. Raises
        `OutOfMemory` after every way to find room has failed.
        """
        # `rounded`, inlined: this is the path of every eager operation.
        if size <= SMALL:
            if size < 0:
                raise ValueError(f"cannot allocate {size} bytes")
            rounded = _ROUNDED[(size + 511) >> 9]
        elif size <= _MEDIUM:
            step = 1 << (size - 1).bit_length() - 5
            rounded = (size + step - 1) & -step
        else:
            rounded = (size + 0x1FFFFF) & -0x200000
        self._acquire()
        try:
            if self._pending:
                self._drain()
            try:
                address = self.free_lists[rounded].pop()
                self.hits += 1
            except (KeyError, IndexError):
                address = self._find(rounded)
            if address is not None:
                self.live[address] = (size, rounded, site)
                self.in_use = used = self.in_use + rounded
                if used > self.peak:
                    self.peak = used
                return Block(address, size, self)
        finally:
            self._release()
        self._make_room(rounded, size)
        return self.alloc(size, site)

    def rounded(self, size: int) -> int:
        """The bytes that a request of `size` takes."""
        if size <= SMALL:
            return _ROUNDED[(size + 511) >> 9]
        # Sixteen sizes an octave, so that blocks of nearly the same size serve each other.
        step = 1 << (size - 1).bit_length() - 5 if size <= _MEDIUM else 2 << 20
        return -(-size // step) * step

    def set_memory_fraction(self, fraction: float) -> None:
        """Limits mapped memory to a share of the device's, in (0, 1]."""
        if not 0 < fraction <= 1:
            raise ValueError(f"the memory fraction must be in (0, 1], not {fraction}")
        self.limit = int(fraction * self.driver.info.total_memory)

    def empty_cache(self) -> int:
        """Returns unused memory to the device; the result is the number of bytes returned."""
        with self.lock, no_collection():
            self._reclaim(wait=True)
            return self._unmap()

    def largest_sites(self, count: int) -> list[tuple[int, int, str]]:
        """(bytes, blocks, site) of the sites that hold most, largest first."""
        with self.lock:
            held = list(self.live.values())
        sizes: Counter[str] = Counter()
        blocks: Counter[str] = Counter()
        for _, rounded, site in held:
            name = "an unnamed place" if site is None else str(site)
            sizes[name] += rounded
            blocks[name] += 1
        return [(size, blocks[name], name) for name, size in sizes.most_common(count)]

    def close(self) -> None:
        """Returns all memory and addresses; RuntimeError if a block is still held."""
        with self.lock, no_collection():
            self._reclaim(wait=True)
            if self.live:
                raise RuntimeError(f"{len(self.live)} blocks of the pool are still held")
            self.driver.synchronize()
            for space in (self.large_space, self.small_space):
                space.close()

    @property
    def mapped(self) -> int:
        """Bytes of physical memory held, in use or not."""
        return self.small_space.mapped + self.large_space.mapped

    @property
    def driver_calls(self) -> int:
        """Calls that mapped, unmapped or reserved memory so far."""
        return self.small_space.driver_calls + self.large_space.driver_calls

    def reset_peak(self) -> None:
        """Makes the peaks start from what is in use now."""
        with self.lock:
            self.peak, self.peak_mapped = self.in_use, self.mapped

    def refuse(self) -> None:
        """Make every use of the pool raise ForkedProcessError, in the child of a fork."""
        lock = _ForkedLock()
        self.lock, self._acquire, self._release = lock, lock.acquire, lock.release

    def reclaim(self) -> None:
        """Takes back blocks that destructors or other streams have freed meanwhile."""
        with self.lock, no_collection():
            self._drain()
            self._poll(wait=False)

    def _find(self, rounded: int) -> int | None:
        """Memory for a block whose free list is empty; None if other blocks must be freed first."""
        # No garbage collection here: a destructor could allocate in the middle of a change.
        collects = gc.isenabled()
        gc.disable()
        try:
            self.misses += 1
            if self._deferred:
                self._poll(wait=False)
            blocks = self.free_lists.get(rounded)
            if blocks is None:
                blocks = self.free_lists[rounded] = []
            elif blocks:
                return blocks.pop()
            if rounded <= SMALL:
                return blocks.pop() if self._refill(rounded, blocks) else None
            address = self.large_space.take(rounded)
            if address is not None:
                return address
            # Coalescing throws exact sizes away, which training steps ask for again and again: only
            # when the cache has grown beyond its slack.
            if self.mapped - self.in_use + rounded > max(self.slack, self.peak // 10):
                self._flush_large()
                address = self.large_space.take(rounded)
                if address is not None:
                    return address
            if self._grow(self.large_space, rounded):
                return self.large_space.take(rounded)
            return None
        finally:
            if collects:
                gc.enable()

    def _refill(self, rounded: int, blocks: list[int]) -> bool:
        """Cut a new slab into blocks of one size."""
        size = slab_bytes(rounded)
        start = self.small_space.take(size)
        if start is None:
            if not self._grow(self.small_space, size):
                return False
            start = self.small_space.take(size)
            assert start is not None
        self.slabs[start] = rounded
        count = size // rounded
        # Reversed: `pop` hands out ascending addresses.
        blocks.extend(start + i * rounded for i in reversed(range(count)))
        return True

    def _grow(self, space: AddressSpace, size: int) -> bool:
        try:
            return space.grow(size, self.limit - self.mapped)
        except DeviceMemoryExhausted:
            return False
        finally:
            self.peak_mapped = max(self.peak_mapped, self.mapped)

    def _make_room(self, rounded: int, size: int) -> None:
        """Tries, in order of cost, to make the request fit: coalesce free blocks, collect garbage,
        remap scattered free memory. Raises OutOfMemory if nothing helps."""
        with self.lock:
            self.retries += 1
            self.misses -= 1  # `alloc` tries again, and counts again
        if self._fits(rounded):
            return
        gc.collect()  # blocks in reference cycles
        if self._fits(rounded):
            return
        if self._remapped(rounded):
            return
        raise self._out_of_memory(size)

    def _fits(self, rounded: int) -> bool:
        """Whether the request fits after all free blocks have been coalesced."""
        with self.lock, no_collection():
            self._reclaim(wait=True)
            space, need = self._space_for(rounded)
            return space.largest_free >= need or self._grow(space, need)

    def _remapped(self, rounded: int) -> bool:
        """Whether the request fits after free physical memory is mapped at contiguous addresses."""
        with self.lock, no_collection():
            space, need = self._space_for(rounded)
            # Virtual memory management: physical pieces that are free anywhere are unmapped, and
            # others created behind one contiguous run of addresses.
            self._unmap()
            return self._grow(space, need)

    def _space_for(self, rounded: int) -> tuple[AddressSpace, int]:
        if rounded <= SMALL:
            return self.small_space, slab_bytes(rounded)
        return self.large_space, rounded

    def _unmap(self) -> int:
        # A freed block is only free in stream order: queued work may still use its memory.
        self.driver.synchronize()
        return self.large_space.unmap_free() + self.small_space.unmap_free()

    def _reclaim(self, wait: bool) -> None:
        self._drain()
        self._poll(wait)
        self._flush_large()
        self._flush_slabs()

    def _drain(self) -> None:
        pending, held, live, exact = self._pending, self._held, self.live, self.free_lists
        while pending:
            address = pending.popleft()
            if held and address in held:  # another stream may still use it
                self._deferred.append((address, held.pop(address)))
                continue
            rounded = live.pop(address)[1]
            exact[rounded].append(address)
            self.in_use -= rounded
        if len(self._deferred) > _POLL_DEFERRED:
            self._poll(wait=False)

    def _return(self, address: int) -> None:
        rounded = self.live.pop(address)[1]
        self.free_lists[rounded].append(address)
        self.in_use -= rounded

    def _poll(self, wait: bool) -> None:
        driver, still = self.driver, []
        for address, events in self._deferred:
            if wait:
                for event in events:
                    driver.wait_host(event)
            elif not all(map(driver.done, events)):
                still.append((address, events))
                continue
            for event in events:
                driver.destroy_event(event)
            self._return(address)
        self._deferred = still

    def _flush_large(self) -> None:
        give = self.large_space.give
        for rounded, blocks in self.free_lists.items():
            if rounded > SMALL:
                for address in blocks:
                    give(address, rounded)
                blocks.clear()

    def _flush_slabs(self) -> None:
        """Return slabs without a block in use to the small address space."""
        starts = sorted(self.slabs)
        free: dict[int, int] = {}
        for rounded, blocks in self.free_lists.items():
            if rounded <= SMALL:
                for address in blocks:
                    slab = starts[bisect_right(starts, address) - 1]
                    free[slab] = free.get(slab, 0) + 1
        empty = {s for s, n in free.items() if n == slab_bytes(self.slabs[s]) // self.slabs[s]}
        for rounded in {self.slabs[slab] for slab in empty}:
            self.free_lists[rounded][:] = [
                address
                for address in self.free_lists[rounded]
                if starts[bisect_right(starts, address) - 1] not in empty
            ]
        for slab in empty:
            self.small_space.give(slab, slab_bytes(self.slabs.pop(slab)))

    def _out_of_memory(self, size: int) -> OutOfMemory:
        with self.lock:
            return OutOfMemory(
                device=self.driver.info.index,
                requested=size,
                in_use=self.in_use,
                cached=self.mapped - self.in_use,
                largest_free=max(self.large_space.largest_free, self.small_space.largest_free),
                mapped=self.mapped,
                limit=self.limit,
                free_on_device=self.driver.memory_info()[0],
                sites=self.largest_sites(10),
            )


def slab_bytes(rounded: int) -> int:
    """The bytes of a slab of blocks of one size: 64 KiB to 2 MiB, at most 16 blocks above."""
    return min(2 << 20, max(64 << 10, -(-16 * rounded // 65536) * 65536))


class _ForkedLock:
    """The lock of a pool in a forked child, where CUDA cannot be used: acquiring it raises."""

    def __enter__(self) -> None:
        raise ForkedProcessError

    def __exit__(self, *_: object) -> None:
        return None

    def acquire(self) -> None:
        raise ForkedProcessError

    def release(self) -> None:
        return None


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in _pools:
        pool.refuse()


os.register_at_fork(after_in_child=_after_fork)
