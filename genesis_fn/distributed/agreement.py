"""What processes decide together: what one of them found, and whether all of them succeeded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from genesis_fn.core.errors import DistributedError, said
from genesis_fn.core.sharding.world import world
from genesis_fn.distributed.synchronization import exchanged

T = TypeVar("T")


class FailedElsewhere(DistributedError):
    """Another process failed, which says why itself. `rank` is its number."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(f"rank {rank}: {why}")
        self.rank, self.why = rank, why


def from_first(make: Callable[[], T], what: str) -> T:
    """What a function gives in the first process, as JSON has it, to all.

    Raises what it raises there, and FailedElsewhere in the others.

    >>> from genesis_fn.distributed.agreement import from_first
    >>> from_first(lambda: [1, 2], "numbers")
    [1, 2]
    """
    if world().size == 1:
        return make()
    if world().rank == 0:
        return together(make, what)
    return together(lambda: None, what, first=True)  # pyright: ignore[reportReturnType]


def together(work: Callable[[], T], what: str, *, first: bool = False) -> T:
    """What a function gives here, when all processes have run theirs: an error of one is one of
    all. With `first`, what it gave the first process.

    Raises the error of this process, or FailedElsewhere.
    """
    if world().size == 1:
        return work()
    value: Any = None
    failed: Exception | None = None
    try:
        value = work()
    except Exception as error:
        failed = error
    told = {"error": None if failed is None else line_of(failed), "value": None}
    if world().rank == 0 and failed is None:
        told["value"] = _plain(value)
    everyone = [json.loads(text) for text in exchanged(json.dumps(told).encode(), what)]
    if failed is not None:
        raise failed
    for rank, other in enumerate(everyone):
        if other["error"] is not None:
            raise FailedElsewhere(rank, other["error"])
    return everyone[0]["value"] if first else value


def _plain(value: Any) -> Any:
    """A value, where JSON has it; others are not given to other processes."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return None
    return value


def line_of(error: BaseException) -> str:
    """The message of an error as one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    lines = [line.strip() for line in said(error).splitlines()]
    return "; ".join(filter(None, lines)) or type(error).__name__
