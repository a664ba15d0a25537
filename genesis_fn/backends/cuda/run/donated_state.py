"""States that a program takes over and returns in the same memory, without touching each leaf.

A `Memory` that the last run returned has not moved, nobody else refers to it, and the program's
graph reads and writes it where it is: only the other inputs are looked at.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.backends.cuda.run.io_buffers import IOBuffers, Rerun
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import Signature
from genesis_fn.core.train_state import Memory


class Carry:
    """Runs a program whose inputs `inside` are the leaves of a state, updated in place, and come
    back as its results `results`. `sigs` are their signatures; `run` is how the program runs
    otherwise, storages in and out."""

    def __init__(
        self,
        places: IOBuffers,
        run: Callable[[list[Any]], list[Any]],
        inside: range,
        results: range,
        sigs: Sequence[Signature],
    ) -> None:
        self._places, self._run = places, run
        self._in, self._out, self.sigs = inside, results, sigs
        self._last: weakref.ref[Memory] | None = None  # what the last run returned
        self._others = Rerun(
            places,
            [i for i in range(len(places.donated)) if i not in inside],
            [k for k in range(len(places.updated)) if k not in results],
        )

    def run(self, state: Memory | list[ArrayImpl], others: list[Any]) -> tuple[Memory, list[Any]]:
        """(the state's memory, storages of the other results) for a Memory, or for the leaves of a
        state, and the storages of the other inputs."""
        places, at = self._places, self._in.start
        if isinstance(state, Memory):
            if self._last is not None and self._last() is state:
                with places.lock:
                    found = self._others.run(others, [x.address for x in others])
                if found is not None:
                    return state, found
            buffers = [*others[:at], *state.storages, *others[at:]]
        else:
            buffers = [*others[:at], *[x.data for x in state], *others[at:]]
        results = self._run(buffers)
        memory = Memory(results[self._out.start : self._out.stop], self.sigs)
        with places.lock:
            self._last = weakref.ref(memory)
            self._others.follow()
        return memory, results[: self._out.start] + results[self._out.stop :]
