"""States that a program takes over and returns in the same memory, without touching each leaf.

A `Memory` that the last run returned has not moved, nobody else refers to it, and the program's
graph reads and writes it where it is: only the other inputs are looked at.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from genesis_fn.core.train_state import Memory

if TYPE_CHECKING:
    from genesis_fn.backends.cuda.executable import CudaExecutable


class Carry:
    """Runs a program whose inputs `inside` are the leaves of a state, updated in place, and come
    back as its results `results`. `sigs` are their signatures."""

    def __init__(self, program: CudaExecutable, inside: range, results: range) -> None:
        self._program, self._in, self._out = program, inside, results
        self.sigs = program.sigs[results.start : results.stop]
        self._last: weakref.ref[Memory] | None = None  # what the last run returned
        self._at: list[int] = []  # the other addresses that its graph belongs to
        self._graph: Any = None
        # The other results: the number of the other input that they are, and who makes them.
        beside = [k for k in range(len(program.sigs)) if k not in results]
        number = {i: n for n, i in enumerate(self._others(list(range(len(program.jaxpr.invars)))))}
        inputs = [program.from_input.get(program.scope.outputs[k]) for k in beside]
        self._returned = [None if i is None else number[i] for i in inputs]
        place = {k: n for n, k in enumerate(beside)}
        self._made = [([place[k] for k in ks], out) for ks, out in program.made]
        self._number = number

    def _others(self, inputs: list[Any]) -> list[Any]:
        return inputs[: self._in.start] + inputs[self._in.stop :]

    def run(self, state: Any, others: list[Any]) -> tuple[Memory, list[Any]]:
        """(the state's memory, storages of the other results) for a Memory, or for the leaves of a
        state, and the storages of the other inputs."""
        program, at = self._program, self._in.start
        if type(state) is Memory:
            if self._last is not None and self._last() is state:
                found = self._again(others)
                if found is not None:
                    return state, found
            buffers = [*others[:at], *state.storages, *others[at:]]
        else:
            buffers = [*others[:at], *[x.data for x in state], *others[at:]]
        results = program.run_list(buffers)
        memory = Memory(results[self._out.start : self._out.stop], self.sigs)
        with program.lock:
            self._last = weakref.ref(memory)
            addresses, self._graph = program.last
            self._at = self._others(addresses)
        return memory, results[: self._out.start] + results[self._out.stop :]

    def _again(self, others: list[Any]) -> list[Any] | None:
        """The other results of a run in the memory of the last one, or None where it needs another
        graph."""
        program = self._program
        addresses = [x.address for x in others]
        with program.lock:
            driver = program.runtime.driver
            for i, slot in program.slots.items():
                n = self._number[i]
                driver.copy(slot.address, addresses[n], others[n].bytes, driver.compute)
                addresses[n] = slot.address
            addresses += program.places()
            if addresses != self._at or program.last[1] is not self._graph:
                return None
            self._graph.launch()
            results: list[Any] = [None if n is None else others[n] for n in self._returned]
            for ks, out in self._made:
                data = program.handed_out(out)
                for k in ks:
                    results[k] = data
            return results


__all__ = ["Carry"]
