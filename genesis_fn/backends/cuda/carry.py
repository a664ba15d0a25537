"""States that a program takes over and returns in the same memory, without touching each leaf.

A `Memory` that the last run returned has not moved, nobody else refers to it, and the program's
graph reads and writes it where it is: only the other inputs are looked at.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.backends.cuda.places import Places
from genesis_fn.core.aval import Sig
from genesis_fn.core.train_state import Memory


class Carry:
    """Runs a program whose inputs `inside` are the leaves of a state, updated in place, and come
    back as its results `results`. `sigs` are their signatures; `run` is how the program runs
    otherwise, storages in and out."""

    def __init__(
        self,
        places: Places,
        run: Callable[[list[Any]], list[Any]],
        inside: range,
        results: range,
        sigs: Sequence[Sig],
    ) -> None:
        self._places, self._run = places, run
        self._in, self._out, self.sigs = inside, results, sigs
        self._last: weakref.ref[Memory] | None = None  # what the last run returned
        self._at: list[int] = []  # the other addresses that its graph belongs to
        self._graph: Any = None
        # The other results: the number of the other input that they are, and who makes them.
        beside = [k for k in range(len(places.updated)) if k not in results]
        updated = [places.updated[k] for k in beside]
        self._returned = [None if i is None else self._number(i) for i in updated]
        place = {k: n for n, k in enumerate(beside)}
        self._made = [([place[k] for k in ks], out) for ks, out in places.made]

    def _others(self, inputs: list[Any]) -> list[Any]:
        return inputs[: self._in.start] + inputs[self._in.stop :]

    def _number(self, i: int) -> int:
        """Which of the others input i is."""
        return i if i < self._in.start else i - len(self._in)

    def run(self, state: Any, others: list[Any]) -> tuple[Memory, list[Any]]:
        """(the state's memory, storages of the other results) for a Memory, or for the leaves of a
        state, and the storages of the other inputs."""
        places, at = self._places, self._in.start
        if type(state) is Memory:
            if self._last is not None and self._last() is state:
                found = self._again(others)
                if found is not None:
                    return state, found
            buffers = [*others[:at], *state.storages, *others[at:]]
        else:
            buffers = [*others[:at], *[x.data for x in state], *others[at:]]
        results = self._run(buffers)
        memory = Memory(results[self._out.start : self._out.stop], self.sigs)
        with places.lock:
            self._last = weakref.ref(memory)
            addresses, self._graph = places.last
            self._at = self._others(addresses)
        return memory, results[: self._out.start] + results[self._out.stop :]

    def _again(self, others: list[Any]) -> list[Any] | None:
        """The other results of a run in the memory of the last one, or None where it needs another
        graph."""
        places = self._places
        addresses = [x.address for x in others]
        with places.lock:
            driver = places.runtime.driver
            for i, slot in places.slots.items():
                n = self._number(i)
                driver.copy(slot.address, addresses[n], others[n].bytes, driver.compute)
                addresses[n] = slot.address
            addresses += places.renewed()
            if addresses != self._at or places.last[1] is not self._graph:
                return None
            self._graph.launch()
            results: list[Any] = [None if n is None else others[n] for n in self._returned]
            for ks, out in self._made:
                data = places.handed_out(out)
                for k in ks:
                    results[k] = data
            return results


__all__ = ["Carry"]
