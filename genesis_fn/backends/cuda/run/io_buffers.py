"""Where the inputs and the results of a compiled program lie from one run to the next, and the
graphs for that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from genesis_fn.backends.cuda.memory.pool import Block
from genesis_fn.backends.cuda.run.graph import Executable
from genesis_fn.backends.cuda.run.runtime import Runtime

_SMALL_INPUT = 4 << 20  # inputs that are copied instead of captured again
_SMALL_OUTPUT = 1 << 20  # outputs that are copied out
_MOST_GRAPHS = 6
_MOST_MISSES = 24  # captures after which outputs that keep moving are copied instead


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


class IOBuffers:
    """What a program keeps from one run to the next; hold `lock` to read or write it.

    `updated[k]` is the input whose memory result k is, or None; `made` holds the memories of the
    other results, each with their numbers. `slots` are copies of inputs that keep moving, `graph`
    is that of the last run and `addresses` what it belongs to: of the inputs, then of what is made.
    `moves` counts how often it changed. `capture` makes a graph for addresses; a few are kept.
    """

    __slots__ = (
        "runtime",
        "site",
        "donated",
        "updated",
        "made",
        "capture",
        "slots",
        "addresses",
        "graph",
        "moves",
        "lock",
        "graphs",
        "_misses",
    )

    def __init__(
        self,
        runtime: Runtime,
        site: str,
        donated: Sequence[bool],
        updated: Sequence[int | None],
        made: Sequence[tuple[list[int], Output]],
        capture: Callable[[Sequence[int]], Executable],
    ) -> None:
        self.runtime, self.site, self.donated = runtime, site, donated
        self.updated, self.made, self.capture = updated, made, capture
        self.slots: dict[int, Block] = {}
        self.addresses: list[int] = []
        self.graph: Executable | None = None
        self.moves = 0
        self.lock = threading.Lock()
        self.graphs: dict[tuple[int, ...], Executable] = {}
        self._misses = 0

    def renewed(self) -> list[int]:
        """The addresses of what is made, in memory that nobody else reads."""
        for _, out in self.made:
            out.renew(self.runtime, self.site)
        return [out.address for _, out in self.made]

    def move(self, buffers: list[Any], addresses: list[int]) -> None:
        """Make `graph` the one for the inputs at these addresses, some of which new slots'
        replace."""
        self.moves += 1
        made = [out.address for _, out in self.made]
        key = (*addresses, *made)
        if key not in self.graphs:
            self._settle(buffers, addresses)
            key = (*addresses, *made)
        if key not in self.graphs:
            self._forget()
            self.graphs[key] = self.capture(key)
        self.addresses, self.graph = list(key), self.graphs[key]

    def _settle(self, buffers: list[Any], addresses: list[int]) -> None:
        """Inputs that keep moving get a place of their own, outputs theirs after many moves."""
        full = len(self.graphs) >= _MOST_GRAPHS
        driver = self.runtime.driver
        for i, known in enumerate(zip(*self.graphs) if self.graphs else ()):
            if i == len(addresses):
                break
            moved = i not in self.slots and not self.donated[i] and addresses[i] not in known
            size = buffers[i].bytes
            if moved and size and (size <= _SMALL_INPUT or full):
                slot = self.slots[i] = self.runtime.alloc(size, self.site)
                driver.copy(slot.address, addresses[i], size, driver.compute)
                addresses[i] = slot.address
        self._misses += 1
        if self._misses > _MOST_MISSES:
            for _, out in self.made:
                out.copied = True

    def _forget(self) -> None:
        """Drop graphs that cannot be used any more, or one where there are many."""
        graphs, slots = self.graphs, self.slots
        stale = [k for k in graphs if any([k[i] != s.address for i, s in slots.items()])]
        if not stale and len(graphs) >= _MOST_GRAPHS:
            stale = [next(iter(graphs))]
        self.graph = None
        for k in stale:
            # Destroying a graph waits for the device.
            del graphs[k]


class Rerun:
    """Runs a program again on the graph of its last run, given some of its inputs, for some of its
    results: the other inputs and results are where that run had them. For holders of the lock.
    """

    __slots__ = ("_places", "_number", "_returned", "_made", "_moves", "_at")

    def __init__(self, places: IOBuffers, inputs: Sequence[int], results: Sequence[int]) -> None:
        self._places = places
        self._number = {i: n for n, i in enumerate(inputs)}
        # Results that are inputs' memory are picked; places of the others are filled after that.
        self._returned = picker([self._number.get(places.updated[k] or 0, 0) for k in results])
        at = {k: n for n, k in enumerate(results)}
        self._made = [([at[k] for k in ks], out) for ks, out in places.made]
        self._moves = -1  # of the places, when the last run was the one that is repeated
        self._at: list[int] = []  # the addresses that its graph belongs to

    def follow(self) -> None:
        """Repeat the last run."""
        places = self._places
        self._moves = places.moves
        made = places.addresses[len(places.addresses) - len(places.made) :]
        self._at = [places.addresses[i] for i in self._number] + made

    def run(self, buffers: list[Any], addresses: list[int]) -> list[Any] | None:
        """The results' memory; None where these inputs, whose addresses are replaced by those of
        slots, need another graph."""
        places = self._places
        driver = places.runtime.driver
        for i, slot in places.slots.items():
            n = self._number[i]
            driver.copy(slot.address, addresses[n], buffers[n].bytes, driver.compute)
            addresses[n] = slot.address
        addresses += places.renewed()
        if addresses != self._at or places.moves != self._moves:
            del addresses[len(buffers) :]
            return None
        return self.launched(buffers)

    def launched(self, buffers: list[Any]) -> list[Any]:
        """The results' memory, after launching the graph."""
        places = self._places
        assert places.graph is not None
        places.graph.launch()
        results = self._returned(buffers)
        for ks, out in self._made:
            data = out.handed_out(places.runtime, places.site)
            for k in ks:
                results[k] = data
        return results


def picker(indices: Sequence[int]) -> Callable[[list[Any]], list[Any]]:
    """A function from a list to the list of its elements at `indices`."""
    if len(indices) < 2:
        return lambda xs: [xs[i] if xs else None for i in indices]
    if list(indices) == list(range(indices[0], indices[-1] + 1)):
        run = slice(indices[0], indices[-1] + 1)
        return lambda xs: xs[run] if xs else [None] * len(indices)
    pick = itemgetter(*indices)
    return lambda xs: list(pick(xs)) if xs else [None] * len(indices)
