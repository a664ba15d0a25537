"""The processes that compute together, as this one knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class World:
    """`size` processes, of which this is number `rank`, and number `local_rank` on its machine.

    They met in `store`, a key-value store that all of them reach (None in a world of one), and give
    each other up after `timeout` seconds.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    timeout: float = 600.0
    store: Any = None


_world = World()


def world() -> World:
    """The world that this process is in: one of its own, until `distributed.initialize()`."""
    return _world


def enter_world(new: World) -> None:
    """Make `new` the world of this process."""
    global _world
    _world = new
