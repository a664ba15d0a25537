"""Compiled programs: graphs captured over an arena, launched on arrays.

Inputs are read where they are: a graph belongs to the addresses it was captured with. Where an
input moves, it is copied to a place that does not if it is small, and else another graph is
captured for the new addresses; a few are kept. Donated inputs are updated in place. An output that
is still held when the program runs again keeps its memory: the run gets other memory for it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from sys import getrefcount
from typing import Any

import numpy as np

from genesis_fn.backends.cuda.lower.steps import BufferTable, Schedule
from genesis_fn.backends.cuda.memory.pool import Block
from genesis_fn.backends.cuda.run.donated_state import Carry
from genesis_fn.backends.cuda.run.graph import Executable as Launched, Memory, captured, has_host
from genesis_fn.backends.cuda.run.io_buffers import IOBuffers, Rerun, picker
from genesis_fn.backends.cuda.run.profile import Measurements, elapsed, measured
from genesis_fn.backends.cuda.run.runtime import Runtime
from genesis_fn.compiler.memory.memory_plan import ALIGNMENT
from genesis_fn.core.array import ArrayImpl, live
from genesis_fn.core.aval import Signature
from genesis_fn.core.backend.executable import Executable
from genesis_fn.core.jaxpr import Jaxpr


def _references_alone() -> int:
    """What counting the references of memory gives that one Array, the list of inputs, and the list
    of those that are taken hold."""
    array = [object()]
    inputs = [array[0]]
    taken = inputs[:]
    return next(map(getrefcount, taken))


_ALONE = _references_alone()


class Binding:
    """A program's steps, and the memory that they have wherever its inputs and results lie.

    `bound` are the buffers that get their addresses from outside: inputs, then results that are no
    input's memory. `word` is the address of the program's error word, if it has one.
    """

    def __init__(
        self,
        runtime: Runtime,
        table: BufferTable,
        schedule: Schedule,
        bound: Sequence[int],
        site: str,
        programmatic: bool,
    ) -> None:
        self.runtime, self.table, self.schedule = runtime, table, schedule
        self.bound, self.site, self.programmatic = bound, site, programmatic
        self.word = 0
        self._arena: Block | None = None

    def capture(self, addresses: Sequence[int]) -> Launched:
        """The program as graphs, with `bound` at these addresses."""
        memory, owners = self.memory(addresses)
        return captured(
            self.runtime, self.schedule.steps, memory, owners, programmatic=self.programmatic
        )

    def memory(self, addresses: Sequence[int]) -> tuple[list[Memory], list[Any]]:
        """(where each buffer is, with `bound` at these addresses; what keeps it alive)."""
        if self._arena is None:
            # Between the pieces of a program that the host takes part in, others may run.
            pieces = any(map(has_host, self.schedule.steps))
            pieces = pieces or not self.runtime.driver.info.target.conditional_nodes
            self._arena = arena(self.runtime, self.schedule.arena, shared=not pieces)
        table = self.table
        base = dict(zip(self.bound, addresses, strict=True))
        base[self.schedule.base] = self._arena.address if self._arena is not None else 0
        if table.word is not None:
            base[table.word] = self.word
        owners: list[Any] = [self._arena]
        for b in table.pointers:
            owners.append(self.runtime.alloc(table.bytes[b], self.site))
            base[b] = owners[-1].address
        memory = []
        for b, size in enumerate(table.bytes):
            at, offset = b, 0
            while at in table.place:
                at, more = table.place[at]
                offset += more
            memory.append(Memory(base.get(at, 0) + offset, size))
        for b, rows in table.pointers.items():
            values = np.array([[memory[x].address for x in row] for row in rows], np.int64)
            self.runtime.staging.to_device(base[b], values.ctypes.data, values.nbytes)
        return memory, owners


class CudaExecutable(Executable):
    """A program on one device; storage is a buffer of the library's own memory. `replaced` are the
    inputs whose memory results take, by result."""

    def __init__(
        self,
        program: Jaxpr,
        binding: Binding,
        places: IOBuffers,
        sigs: Sequence[Signature],
        replaced: Mapping[int, int],
        unused_donations: Sequence[tuple[int, str]],
    ) -> None:
        self.program, self.binding, self.sigs = program, binding, sigs
        self.runtime, self.table, self.schedule = binding.runtime, binding.table, binding.schedule
        self.places, self.replaced = places, replaced
        self.unused_donations = unused_donations
        self._all = Rerun(places, range(len(places.donated)), range(len(places.updated)))
        # Inputs that are overwritten: which, what all their references sum up to where nobody else
        # has any, and whose they must be: parts of other memory and imports are others' too.
        self._taken = sorted({*replaced.values()})
        self._pick_taken = picker(self._taken)
        self._alone = _ALONE * len(self._taken)
        self._owners = [self.runtime.pool] * len(self._taken)

    def __call__(self, *args: ArrayImpl) -> list[ArrayImpl]:
        try:
            return [ArrayImpl(b, s) for b, s in zip(self.run([a.data for a in args]), self.sigs)]
        except AttributeError:
            for a in args:
                live(a)
            raise

    def run(self, storages: list[Any]) -> list[Any]:
        """The memory of the results, given that of the inputs. Raises AttributeError for memory
        that is gone."""
        addresses = [b.address for b in storages]
        places = self.places
        with places.lock:
            if self._taken:
                taken = self._pick_taken(storages)
                alone = sum(map(getrefcount, taken)) == self._alone
                if not alone or [b.owner for b in taken] != self._owners:
                    self._copy_shared(storages, taken, addresses)
                del taken
            results = self._all.run(storages, addresses)
            if results is None:
                places.move(storages, addresses)
                self._all.follow()
                results = self._all.launched(storages)
            return results

    def _copy_shared(self, buffers: list[Any], taken: list[Any], addresses: list[int]) -> None:
        """Give the program a copy of donated memory that somebody else may see."""
        driver = self.runtime.driver
        counts = list(map(getrefcount, taken))
        for i, count in zip(self._taken, counts, strict=True):
            if count > _ALONE or buffers[i].owner is not self.runtime.pool:
                copy = self.runtime.alloc(buffers[i].bytes, self.binding.site)
                driver.copy(copy.address, addresses[i], copy.bytes, driver.compute)
                buffers[i], addresses[i] = copy, copy.address

    def carry(self, first_in: int, first_out: int, count: int) -> Carry | None:
        """How to run with `count` inputs that are updated in place as one, and nothing else is;
        None where that is not so."""
        inside = range(first_in, first_in + count)
        updated = self.places.updated
        results = range(first_out, first_out + count)
        beside = [i for k, i in enumerate(updated) if k not in results]
        if updated[first_out : first_out + count] != list(inside) or set(beside) & set(inside):
            return None
        if not set(self._taken) <= set(inside):
            return None
        sigs = self.sigs[first_out : first_out + count]
        return Carry(self.places, self.run, inside, results, sigs)

    # What people see.

    def measure(
        self, args: Sequence[ArrayImpl], repeats: int
    ) -> tuple[list[ArrayImpl], Measurements]:
        """(the results, the time of each kernel); donated arguments stay as they are."""
        results = self(*[self._copied(a) for a in args])
        with self.places.lock:
            given = [self._copied(a) for a in args]
            addresses = [a.data.address for a in given] + self.places.renewed()
            memory, owners = self.binding.memory(addresses)
            steps = measured(self.runtime, self.schedule.items, memory, owners, repeats)
        seconds = []
        for _ in range(repeats):
            given = [self._copied(a) for a in args]
            seconds.append(elapsed(self.runtime, lambda given=given: self(*given)))
        return results, Measurements(min(seconds), steps, self.table.target)

    def _copied(self, array: ArrayImpl) -> ArrayImpl:
        data = self.runtime.alloc(array.data.bytes, self.binding.site)
        driver = self.runtime.driver
        driver.copy(data.address, array.data.address, data.bytes, driver.compute)
        return ArrayImpl(data, array.sig)

    def as_text(self) -> str:
        """The program, its groups, the generated source and the memory plan."""
        kernels = dict.fromkeys(s for d in self.table.described for s in d.sources if "\n" in s)
        return "\n\n".join([repr(self.program), self.report(), *kernels])

    def report(self) -> str:
        """The steps with bytes, operations and time at the roofline; the memory plan."""
        lines = ["step                                      MB    GFLOP       us  lines"]
        total, limit = 0.0, self.table.target
        for d in self.table.described:
            seconds = limit.seconds(d.traffic, d.operations)
            total += seconds
            name = "  " * d.depth + d.name
            lines.append(
                f"{name[:36]:<36} {d.traffic / 1e6:>8.2f} {d.operations / 1e9:>8.3f} "
                f"{seconds * 1e6:>8.1f}  {'; '.join(d.lines[:2])}"
            )
        inputs = sum([v.aval.nbytes for v in self.program.invars])
        outputs = sum([out.bytes for _, out in self.places.made])
        lines += [
            f"{len(self.table.described)} steps, {total * 1e6:.1f} us at the roofline "
            f"({limit.bandwidth / 1e12:.1f} TB/s, {limit.operations / 1e12:.0f} TFLOP/s; "
            "loop bodies counted once)",
            f"memory: inputs {_mb(inputs)}, outputs {_mb(outputs)}, updated in place "
            f"{len(self.replaced)}, arena {_mb(self.schedule.arena)}",
        ]
        return "\n".join(lines)

    def memory_analysis(self) -> dict[str, int]:
        """Bytes of arguments, outputs, temporaries, and of outputs that replace arguments."""
        inputs = [v.aval.nbytes for v in self.program.invars]
        arguments, aliased = sum(inputs), sum([inputs[i] for i in self.replaced.values()])
        outputs = sum([a.nbytes for a in self.program.out_avals])
        return {
            "argument_size_in_bytes": arguments,
            "output_size_in_bytes": outputs,
            "alias_size_in_bytes": aliased,
            "temp_size_in_bytes": self.schedule.arena,
            "peak_memory_in_bytes": arguments + outputs - aliased + self.schedule.arena,
        }


def _mb(size: int) -> str:
    return f"{size / 1e6:.2f} MB"


_arenas: dict[int, Callable[[], Block | None]] = {}
_arena_lock = threading.Lock()


def arena(device: Runtime, size: int, shared: bool = True) -> Block | None:
    """Memory for the temporaries of a program.

    Programs that are one graph share it: one stream runs them one after another, so none needs what
    another left there.
    """
    if not size:
        return None
    if not shared:
        return device.alloc(-(-size // ALIGNMENT) * ALIGNMENT, "temporaries of a program")
    index = device.driver.info.index
    with _arena_lock:
        held = _arenas[index]() if index in _arenas else None
        if held is None or held.bytes < size or held.driver is not device.driver:
            held = device.alloc(-(-size // ALIGNMENT) * ALIGNMENT, "temporaries of programs")
            _arenas[index] = weakref.ref(held)
        return held
