"""The state of each device in this process, made when the device is first used."""

from __future__ import annotations

import os
import threading

from genesis_fn.backends.cuda.driver.driver import Driver, check_fork
from genesis_fn.backends.cuda.driver.drivers import open_driver
from genesis_fn.backends.cuda.memory.pool import Block, Pool
from genesis_fn.backends.cuda.memory.staging import Staging
from genesis_fn.backends.cuda.memory.uploads import Uploads
from genesis_fn.backends.cuda.run.error_word import ErrorWords
from genesis_fn.backends.cuda.run.exchanges import Exchanges


class Runtime:
    """A device: its driver, memory pool, host copies, error words and collectives."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.pool = Pool(driver)
        self.staging = Staging(driver)
        self.uploads = Uploads(driver)
        self.errors = ErrorWords(driver)
        self.exchanges = Exchanges(driver)

    def alloc(self, size: int, site: object = None) -> Block:
        """A block of the device's pool."""
        return self.pool.alloc(size, site)

    def read(self, host: int, source: int, size: int) -> None:
        """Copies to a host address after all queued work; raises the errors that work reported."""
        self.staging.to_host(host, source, size)
        self.errors.raise_if_set()

    def synchronize(self) -> None:
        """Waits for all queued work; raises the errors it reported."""
        self.driver.synchronize()
        self.errors.raise_if_set()

    def copy_to(self, other: Runtime, block: Block, site: object = None) -> Block:
        """A copy of a block on another device, ordered with both compute streams."""
        result = other.pool.alloc(block.bytes, site)
        # The other pool may have taken the block from work that is still queued there, and the copy
        # runs on this device's stream: it must wait for that work.
        _order(other.driver, self.driver)
        self.driver.copy_peer(
            result.address, block.address, block.bytes, other.driver, self.driver.compute
        )
        _order(self.driver, other.driver)
        return result


def _order(first: Driver, then: Driver) -> None:
    """Makes `then`'s compute stream wait for what is queued on `first`'s."""
    event = first.new_event()
    first.record(event, first.compute)
    then.wait(then.compute, event)
    first.destroy_event(event)


_runtimes: dict[int, Runtime] = {}
_of_parent: dict[int, Runtime] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    # The parent's contexts cannot be used in the child, and destructors must not run on them.
    global _runtimes, _of_parent
    _of_parent, _runtimes = _runtimes, {}


os.register_at_fork(after_in_child=_after_fork)


def device_runtime(device: int = 0) -> Runtime:
    """The runtime of device `device`; ValueError if there is none."""
    found = _runtimes.get(device)
    if found is None:
        check_fork()
        with _lock:
            found = _runtimes.get(device)
            if found is None:
                found = _runtimes[device] = Runtime(open_driver(device))
    return found
