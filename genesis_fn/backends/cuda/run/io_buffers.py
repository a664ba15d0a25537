"""The addresses of a compiled program's inputs and outputs from one run to the next, and the graphs
captured for them.

A call whose addresses are those of the last call replays its graph (`GraphReplay`). Any other call
goes through `IOBuffers.rebind`, which finds or captures the graph for its addresses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from genesis_fn.backends.cuda.memory.pool import Block
from genesis_fn.backends.cuda.run.graph import CapturedProgram
from genesis_fn.backends.cuda.run.runtime import Runtime

_SMALL_INPUT = 4 << 20  # an input of at most so many bytes that moves is copied to a slot
_SMALL_OUTPUT = 1 << 20  # an output of at most so many bytes is copied out of a fixed buffer
_MOST_GRAPHS = 6
_MOST_MISSES = 24  # calls with new addresses after which all outputs are copied out


class OutputBuffer:
    """The memory that a program writes an output to.

    If `copied` (small outputs are), the buffer is fixed and the caller gets a copy. Otherwise the
    caller gets the buffer itself and the next run allocates another one; the pool hands out the
    same address again if the caller has dropped its array by then.
    """

    __slots__ = ("bytes", "block", "copied")

    def __init__(self, size: int) -> None:
        self.bytes = size
        self.block: Block | None = None
        self.copied = size <= _SMALL_OUTPUT

    @property
    def address(self) -> int:
        """The address that the next run writes to."""
        return self.block.address if self.block is not None else 0

    def allocate(self, device: Runtime, site: str) -> None:
        """Make sure that there is a buffer that nobody else reads."""
        if self.block is None:
            self.block = device.alloc(max(self.bytes, 1), site)

    def hand_out(self, device: Runtime, site: str, copies: list[tuple[int, int, int]]) -> Block:
        """A block with the result, for the caller to own; the copy that makes it so, if it takes
        one, is added to `copies`: (destination, source, bytes)."""
        block = self.block
        assert block is not None
        if not self.copied:
            self.block = None
            return block
        copy = device.alloc(max(self.bytes, 1), site)
        if self.bytes:
            copies.append((copy.address, block.address, self.bytes))
        return copy


class IOBuffers:
    """What a program keeps from one run to the next. Its owner holds `lock` to read or write it.

    * `updated[k]`: the input whose memory result k takes, or None.
    * `outputs`: the buffers of the other results, each with the numbers of its results; `_alike`
      those of one size, which callers get and give back.
    * `slots`: fixed buffers for inputs that keep moving, by input.
    * `graph`, `addresses`: the graph of the last run and its key (inputs, then outputs).
    * `graphs`: a few graphs, by key; `capture` makes one.
    * `version`: counts the changes of `graph`.
    """

    __slots__ = (
        "runtime",
        "site",
        "donated",
        "updated",
        "outputs",
        "capture",
        "slots",
        "addresses",
        "graph",
        "version",
        "lock",
        "graphs",
        "_alike",
        "_misses",
    )

    def __init__(
        self,
        runtime: Runtime,
        site: str,
        donated: Sequence[bool],
        updated: Sequence[int | None],
        made: Sequence[tuple[list[int], OutputBuffer]],
        capture: Callable[[Sequence[int]], CapturedProgram],
    ) -> None:
        self.runtime, self.site, self.donated = runtime, site, donated
        self.updated, self.outputs, self.capture = updated, made, capture
        self.slots: dict[int, Block] = {}
        self.addresses: list[int] = []
        self.graph: CapturedProgram | None = None
        self.version = 0
        self.lock = threading.Lock()
        self.graphs: dict[tuple[int, ...], CapturedProgram] = {}
        self._misses = 0
        sizes: dict[int, list[OutputBuffer]] = {}
        for _, out in made:
            if not out.copied:
                sizes.setdefault(out.bytes, []).append(out)
        self._alike = [group for group in sizes.values() if len(group) > 1]

    def allocate_outputs(self) -> list[int]:
        """The addresses of the outputs, in memory that nobody else reads."""
        for _, out in self.outputs:
            out.allocate(self.runtime, self.site)
        # The pool gives out again what callers gave back, in an order of theirs: gradients of equal
        # layers would change places on every call, and each order need a graph of its own.
        for group in self._alike:
            blocks = sorted([out.block for out in group], key=_address)
            for out, block in zip(group, blocks):
                out.block = block
        return [out.address for _, out in self.outputs]

    def rebind(self, buffers: list[Any], addresses: list[int]) -> None:
        """Set `graph` to the one for inputs at these addresses, in which new slots replace some."""
        self.version += 1
        made = [out.address for _, out in self.outputs]
        key = (*addresses, *made)
        if key not in self.graphs:
            # Slots change addresses, and with them the key: perhaps to one that is known.
            self._stabilise(buffers, addresses)
            key = (*addresses, *made)
        if key not in self.graphs:
            self._evict()
            self.graphs[key] = self.capture(key)
        self.addresses, self.graph = list(key), self.graphs[key]

    def _stabilise(self, buffers: list[Any], addresses: list[int]) -> None:
        """Give inputs that move a slot, and fix all outputs after many calls with new addresses, so
        that such calls need no further graph."""
        # An input has moved if no graph was captured with its address. Large inputs are copied only
        # once there is no room for another graph.
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
            for _, out in self.outputs:
                out.copied = True

    def _evict(self) -> None:
        """Drop the graphs that a new slot made unreachable, else the oldest one of many."""
        graphs, slots = self.graphs, self.slots
        stale = [k for k in graphs if any([k[i] != s.address for i, s in slots.items()])]
        if not stale and len(graphs) >= _MOST_GRAPHS:
            stale = [next(iter(graphs))]
        self.graph = None
        for k in stale:
            # Dropping a graph waits for the device (`CapturedProgram.__del__`).
            del graphs[k]


def _address(block: Block | None) -> int:
    assert block is not None
    return block.address


class GraphReplay:
    """Replays the graph of the last run, if nothing has moved: the fast path of a call.

    It takes some of the program's inputs and gives some of its results; the others (a donated
    state) are where the last run had them. The caller holds the lock.
    """

    __slots__ = ("_io", "_number", "_returned", "_made", "_version", "_at")

    def __init__(self, io: IOBuffers, inputs: Sequence[int], results: Sequence[int]) -> None:
        self._io = io
        self._number = {i: n for n, i in enumerate(inputs)}
        # One `itemgetter` call picks the results that are inputs' memory. The entries of the other
        # results are arbitrary until `launch` fills them in.
        self._returned = picker([self._number.get(io.updated[k] or 0, 0) for k in results])
        at = {k: n for n, k in enumerate(results)}
        self._made = [([at[k] for k in ks], out) for ks, out in io.outputs]
        self._version = -1  # `io.version` at the run that is replayed
        self._at: list[int] = []  # the addresses of that run

    def remember(self) -> None:
        """Make the last run the one that is replayed."""
        io = self._io
        self._version = io.version
        made = io.addresses[len(io.addresses) - len(io.outputs) :]
        self._at = [io.addresses[i] for i in self._number] + made

    def run(self, buffers: list[Any], addresses: list[int]) -> list[Any] | None:
        """The buffers of the results; None if these inputs need another graph. `addresses` of
        inputs with slots become those of the slots."""
        io = self._io
        if io.slots:
            copies: list[tuple[int, int, int]] = []
            for i, slot in io.slots.items():
                n = self._number[i]
                copies.append((slot.address, addresses[n], buffers[n].bytes))
                addresses[n] = slot.address
            # In stream order: the last launch, which reads the slots, is ahead of these copies.
            driver = io.runtime.driver
            driver.copy_several(copies, driver.compute)
        # An output that the caller still holds has another address now: the key differs, and
        # `rebind` captures or finds another graph.
        addresses += io.allocate_outputs()
        if addresses != self._at or io.version != self._version:
            del addresses[len(buffers) :]
            return None
        return self.launch(buffers)

    def launch(self, buffers: list[Any]) -> list[Any]:
        """Launch the graph; the buffers of the results."""
        io = self._io
        assert io.graph is not None
        io.graph.launch()
        results = self._returned(buffers)
        copies: list[tuple[int, int, int]] = []
        for ks, out in self._made:
            data = out.hand_out(io.runtime, io.site, copies)
            for k in ks:
                results[k] = data
        if copies:
            driver = io.runtime.driver
            driver.copy_several(copies, driver.compute)
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
