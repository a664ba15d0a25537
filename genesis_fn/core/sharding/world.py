"""The processes that compute together, as this one knows them."""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.errors import DistributedError

NEWS = 2.0
"""Seconds in which a watch learns that a process is gone."""
_LONGEST_PAUSE = 0.2  # seconds between two looks into the store


class WorldWatch(Protocol):
    """What looks after the other processes of a world, and tells them of this one."""

    step: int | None
    """The step that this process is at, where its program says so."""

    collectives: int
    """How many collectives this process has begun."""

    @abc.abstractmethod
    def lost(self, seconds: float) -> str:
        """Which process is gone, waiting for the news; "" where none is known to be."""
        ...

    @abc.abstractmethod
    def behind(self) -> str:
        """Which processes have begun fewer collectives than this one; "" where none is known."""
        ...

    @abc.abstractmethod
    def failing(self, reason: str) -> None:
        """Note that this process is about to end by itself, with a message of its own."""
        ...


@dataclass(frozen=True, slots=True)
class World:
    """`size` processes, of which this is number `rank`, and number `local_rank` on its machine.

    They met in `store`, a key-value store that all of them reach (None in a world of one), and give
    each other up after `timeout` seconds. `watch` tells who is gone. `direct` is whether every
    process can let the others map the memory of its GPU.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    timeout: float = 600.0
    store: Any = None
    watch: WorldWatch | None = None
    direct: bool = False


def await_keys(
    store: Any, keys: Sequence[str], seconds: float, meanwhile: Callable[[], object] | None = None
) -> list[str]:
    """Wait until a store has all `keys`; those that it has not after so many seconds.

    It asks again and again, since a signal, Ctrl-C, is not seen while the store blocks. `meanwhile`
    is called between. Raises DistributedError where a process is gone.
    """
    end, pause, here = time.monotonic() + seconds, 0.001, world()
    while not store.check(list(keys)):
        if here.watch is not None and (lost := here.watch.lost(0.0)):
            raise gave_up(here.rank, here.size, lost, here.watch)
        if time.monotonic() > end:
            return [k for k in keys if not store.check([k])]
        if meanwhile is not None:
            meanwhile()
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return []


def arrive(where: str, ranks: Sequence[int], said: str = "") -> list[int]:
    """Say at a place of the store that this process has come there, and wait for all `ranks`; those
    that did not come within the world's timeout."""
    here = world()
    here.store.set(f"{where}/{here.rank}", said)
    late = await_keys(here.store, [f"{where}/{r}" for r in ranks], here.timeout)
    return [int(key.rpartition("/")[2]) for key in late]


def gave_up(rank: int, size: int, lost: str, watch: WorldWatch) -> DistributedError:
    """The error of a process that waits no more, as `lost` says."""
    # A thread of the library's own knows no line of the user's.
    mine = threading.current_thread() is threading.main_thread()
    line = f"\n  at {where().describe()}" if mine else ""
    message = (
        f"rank {rank} of {size} gave up on the others: {lost}{line}\n  look at its last messages"
    )
    watch.failing(message)
    return DistributedError(message)


_world = World()


def world() -> World:
    """The world that this process is in: one of its own, until `distributed.initialize()`."""
    return _world


def enter_world(new: World) -> None:
    """Make `new` the world of this process."""
    global _world
    _world = new
