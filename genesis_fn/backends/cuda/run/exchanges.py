"""Launches with collectives that have not ended yet: what tells a device that waits for another
process from one that computes.

A program with collectives never ends where another process does not come to them. Its kernels wait
on the device, and sooner or later the host waits for them. A thread that looks after the processes
asks `failed` now and then, and ends this one.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from typing import Any

from genesis_fn.backends.cuda.driver.driver import Driver, EventHandle
from genesis_fn.backends.cuda.driver.errors import CudaError
from genesis_fn.core.sharding.world import world

_KEPT = 64  # launches that are noted, where nobody asks

_all: list[Exchanges] = []


class Exchanges:
    """The launches with collectives on one device's compute stream."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pending: deque[EventHandle] = deque()
        self._spare: list[EventHandle] = []
        self._progress = 0.0
        self._lock = threading.Lock()

    def launched(self) -> None:
        """Note that a graph with collectives has just been enqueued."""
        watch = world().watch
        if watch is not None:
            watch.collectives += 1
        if len(self._pending) >= _KEPT:
            self.waiting()
        with self._lock:
            if self not in _all:
                _all.append(self)
            event = self._spare.pop() if self._spare else self._driver.new_event()
            self._driver.record(event, self._driver.compute)
            if not self._pending:
                self._progress = time.monotonic()
            self._pending.append(event)

    def waiting(self) -> float:
        """For how many seconds no launch has ended; 0 where none is under way."""
        with self._lock:
            self._forget_ended()
            return time.monotonic() - self._progress if self._pending else 0.0

    def under_way(self) -> bool:
        """Whether a launch has not ended."""
        with self._lock:
            self._forget_ended()
            return bool(self._pending)

    def _forget_ended(self) -> None:
        while self._pending and self._driver.done(self._pending[0]):
            self._spare.append(self._pending.popleft())
            self._progress = time.monotonic()


def under_way() -> bool:
    """Whether this process waits for others on a GPU that works."""
    try:
        return any([e.under_way() for e in _all])
    except CudaError:
        return False


def failed() -> str | None:
    """Why this process's collectives will not end, None if they may. Any thread may ask; it asks
    again within seconds, since an end that nobody saw is no progress."""
    nccl: Any = sys.modules.get("genesis_fn.backends.cuda.driver.nccl")
    found = nccl.failed() if nccl is not None else None
    if found is not None:
        return found
    limit = world().timeout
    try:
        late = any([e.waiting() > limit for e in _all])
    except CudaError as error:  # what a kernel did, which every call reports from then on
        return str(error)
    if late:
        return (
            f"a program on the GPU has waited for other processes for {limit:g} s, the timeout of "
            "distributed.initialize"
        )
    return None
