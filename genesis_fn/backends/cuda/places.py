"""Where the inputs and the results of a compiled program lie, from one run to the next."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from genesis_fn.backends.cuda.memory import Block
from genesis_fn.backends.cuda.runtime import Runtime

_SMALL_OUTPUT = 1 << 20  # outputs that are copied out


class Output:
    """An output's memory. What is small or `copied` stays and is copied out; other memory is handed
    out itself, and the next run gets new memory (the same, if the caller has dropped it)."""

    __slots__ = ("bytes", "block", "copied")

    def __init__(self, size: int) -> None:
        self.bytes = size
        self.block: Block | None = None
        self.copied = size <= _SMALL_OUTPUT

    @property
    def address(self) -> int:
        """Where the next run writes."""
        return self.block.address if self.block is not None else 0

    def renew(self, device: Runtime, site: str) -> None:
        """Make sure that there is memory that nobody else reads."""
        if self.block is None:
            self.block = device.alloc(max(self.bytes, 1), site)

    def handed_out(self, device: Runtime, site: str) -> Block:
        """A block with the result, the caller's own."""
        block = self.block
        assert block is not None
        if not self.copied:
            self.block = None
            return block
        copy = device.alloc(max(self.bytes, 1), site)
        if self.bytes:
            driver = device.driver
            driver.copy(copy.address, block.address, self.bytes, driver.compute)
        return copy


class Places:
    """What a program keeps from one run to the next; hold `lock` to read or write it.

    `updated[k]` is the input whose memory result k is, or None; `made` holds the memories of the
    other results, each with their numbers. `slots` are copies of inputs that keep moving, and
    `last` is the graph of the last run after the addresses that it belongs to: of the inputs, then
    of what is made.
    """

    __slots__ = ("runtime", "site", "updated", "made", "slots", "last", "lock")

    def __init__(
        self,
        runtime: Runtime,
        site: str,
        updated: Sequence[int | None],
        made: Sequence[tuple[list[int], Output]],
    ) -> None:
        self.runtime, self.site = runtime, site
        self.updated, self.made = updated, made
        self.slots: dict[int, Block] = {}
        self.last: tuple[list[int], Any] = [], None
        self.lock = threading.Lock()

    def renewed(self) -> list[int]:
        """The addresses of what is made, in memory that nobody else reads."""
        for _, out in self.made:
            out.renew(self.runtime, self.site)
        return [out.address for _, out in self.made]

    def handed_out(self, out: Output) -> Block:
        """The memory of a result, the caller's own."""
        return out.handed_out(self.runtime, self.site)


__all__ = ["Output", "Places"]
