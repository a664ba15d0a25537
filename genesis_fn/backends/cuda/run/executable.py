"""The executables of the CUDA backend: programs as graphs, launched on arrays.

A graph contains the addresses that it was captured with, so inputs are read where they are while
they do not move. An input at a new address is copied to a fixed slot if it is small; otherwise
another graph is captured for the new addresses, and a few graphs are kept (`io_buffers.py`).
Donated inputs are updated in place. An output that the caller still holds keeps its memory: the
next run allocates another buffer for it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from sys import getrefcount
from typing import Any

import numpy as np

from genesis_fn.backends.cuda.lower.steps import BufferTable, Schedule
from genesis_fn.backends.cuda.memory.pool import Block, Buffer
from genesis_fn.backends.cuda.run.donated_state import DonatedState
from genesis_fn.backends.cuda.run.graph import BufferAddress, CapturedProgram, capture_program
from genesis_fn.backends.cuda.run.io_buffers import GraphReplay, IOBuffers, picker
from genesis_fn.backends.cuda.run.profile import Measurements, elapsed, measured
from genesis_fn.backends.cuda.run.runtime import Runtime
from genesis_fn.backends.cuda.run.steps import has_host
from genesis_fn.compiler.memory.memory_plan import ALIGNMENT
from genesis_fn.core.array import ArrayImpl, live
from genesis_fn.core.aval import Signature
from genesis_fn.core.backend.executable import Executable
from genesis_fn.core.jaxpr import Jaxpr


def _references_alone() -> int:
    """The reference count of a buffer that nobody but one Array, the list of inputs and the list of
    donated inputs refers to, as `map(getrefcount, ...)` sees it."""
    array = [object()]
    inputs = [array[0]]
    taken = inputs[:]
    return next(map(getrefcount, taken))


_ALONE = _references_alone()


class ProgramBinding:
    """Binds a program's steps to addresses: the arena, tables of pointers and the error word, which
    do not depend on the call, and the inputs and outputs, which do.

    `bound` are the buffers whose addresses a call brings: inputs, then outputs that do not take an
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
        self._contents: dict[int, Block] = {}

    def capture(self, addresses: Sequence[int]) -> CapturedProgram:
        """Capture the program with `bound` at these addresses."""
        memory, owners = self.memory(addresses)
        return capture_program(
            self.runtime, self.schedule.steps, memory, owners, programmatic=self.programmatic
        )

    def memory(self, addresses: Sequence[int]) -> tuple[list[BufferAddress], list[Any]]:
        """(the address of each buffer, given those of `bound`; what keeps the memory alive)."""
        if self._arena is None:
            # The shared arena is only safe for a program that is one graph: between the segments of
            # a program with host computations, another program may run and write over it.
            pieces = any(map(has_host, self.schedule.steps))
            pieces = pieces or not self.runtime.driver.info.target.conditional_nodes
            self._arena = arena(self.runtime, self.schedule.arena, shared=not pieces)
        table = self.table
        base = dict(zip(self.bound, addresses, strict=True))
        base[self.schedule.base] = self._arena.address if self._arena is not None else 0
        if table.error_word is not None:
            base[table.error_word] = self.word
        owners: list[Any] = [self._arena]
        for b, numbers in table.contents.items():
            owners.append(self._held(b, numbers.array))
            base[b] = owners[-1].address
        for b in table.pointers:
            owners.append(self.runtime.alloc(table.bytes[b], self.site))
            base[b] = owners[-1].address
        # Follow each buffer to its root: what is part of a part has the sum of the offsets.
        memory = []
        for b, size in enumerate(table.bytes):
            at, offset = b, 0
            while at in table.parent:
                at, more = table.parent[at]
                offset += more
            memory.append(BufferAddress(base.get(at, 0) + offset, size))
        for b, rows in table.pointers.items():
            # Written in stream order, before any launch of the graph that reads the table.
            values = np.array([[memory[x].address for x in row] for row in rows], np.int64)
            self.runtime.staging.to_device(base[b], values.ctypes.data, values.nbytes)
        return memory, owners

    def _held(self, b: int, values: np.ndarray) -> Block:
        """The memory of a buffer of the table's `contents`, which is written once."""
        if b not in self._contents:
            block = self._contents[b] = self.runtime.alloc(self.table.bytes[b], self.site)
            self.runtime.staging.to_device(block.address, values.ctypes.data, values.nbytes)
        return self._contents[b]


class CudaExecutable(Executable):
    """A program on one device; storage is a `Buffer`. `replaced[k]` is the donated input whose
    memory result k takes; `exchanged` are the inputs that collectives read where they are."""

    def __init__(
        self,
        program: Jaxpr,
        binding: ProgramBinding,
        io: IOBuffers,
        sigs: Sequence[Signature],
        replaced: Mapping[int, int],
        unused_donations: Sequence[tuple[int, str]],
        exchanged: Sequence[int] = (),
    ) -> None:
        self.program, self.binding, self.sigs = program, binding, sigs
        self.runtime, self.table, self.schedule = binding.runtime, binding.table, binding.schedule
        self.io, self.replaced = io, replaced
        self.unused_donations = unused_donations
        self._all = GraphReplay(io, range(len(io.donated)), range(len(io.updated)))
        # Inputs that are overwritten, the sum of their reference counts if nothing else sees them,
        # and the owner that each must have: views and imports share memory with something else.
        # One sum for all leaves, since every call computes it (docs/cuda.md, "A call").
        self._taken = sorted({*replaced.values()})
        self._pick_taken = picker(self._taken)
        self._alone = _ALONE * len(self._taken)
        self._owners = [self.runtime.pool] * len(self._taken)
        # Of the others, those that must not be another library's (docs/cuda.md, "Several
        # processes").
        self._exchanged = [i for i in exchanged if i not in self._taken]
        self._pick_exchanged = picker(self._exchanged)
        self._exchanged_owners = [self.runtime.pool] * len(self._exchanged)

    def __call__(self, *args: ArrayImpl) -> list[ArrayImpl]:
        try:
            return [ArrayImpl(b, s) for b, s in zip(self.run([a.data for a in args]), self.sigs)]
        except AttributeError:
            for a in args:
                live(a)
            raise

    def run(self, storages: list[Any]) -> list[Any]:
        """The buffers of the results, given those of the inputs. Raises AttributeError for an input
        that was deleted."""
        addresses = [b.address for b in storages]
        io = self.io
        with io.lock:
            # `taken` holds one reference itself, which `_ALONE` counts.
            if self._taken:
                taken = self._pick_taken(storages)
                alone = sum(map(getrefcount, taken)) == self._alone
                if not alone or [b.owner for b in taken] != self._owners:
                    self._copy_shared(storages, taken, addresses)
                del taken
            if self._exchanged:
                read = self._pick_exchanged(storages)
                if [b.owner for b in read] != self._exchanged_owners:
                    self._copy_imported(storages, addresses)
            results = self._all.run(storages, addresses)
            if results is None:
                io.rebind(storages, addresses)
                self._all.remember()
                results = self._all.launch(storages)
            return results

    def _copy_shared(self, buffers: list[Any], taken: list[Any], addresses: list[int]) -> None:
        """Replace donated inputs that something else can see by copies, in `buffers` and
        `addresses`."""
        counts = list(map(getrefcount, taken))
        for i, count in zip(self._taken, counts, strict=True):
            if count > _ALONE or buffers[i].owner is not self.runtime.pool:
                self._move(i, buffers, addresses)

    def _copy_imported(self, buffers: list[Any], addresses: list[int]) -> None:
        """Replace inputs of collectives that are in another library's memory by copies."""
        for i in self._exchanged:
            owner = buffers[i].owner
            while isinstance(owner, Buffer):  # of a part
                owner = owner.owner
            if owner is not self.runtime.pool:
                self._move(i, buffers, addresses)

    def _move(self, i: int, buffers: list[Any], addresses: list[int]) -> None:
        """Replace an input by a copy, which is ahead of the program on the compute stream."""
        driver = self.runtime.driver
        copy = self.runtime.alloc(buffers[i].bytes, self.binding.site)
        driver.copy(copy.address, addresses[i], copy.bytes, driver.compute)
        buffers[i], addresses[i] = copy, copy.address

    def carry(self, first_in: int, first_out: int, count: int) -> DonatedState | None:
        """How to run with `count` inputs as one state; None unless these inputs, and no others, are
        updated in place."""
        inside = range(first_in, first_in + count)
        updated = self.io.updated
        results = range(first_out, first_out + count)
        others = [i for k, i in enumerate(updated) if k not in results]
        # The state's leaves are updated in place, in order, and nothing else is: then no leaf ever
        # moves, and the state as one object stands for all addresses.
        if updated[first_out : first_out + count] != list(inside) or set(others) & set(inside):
            return None
        if not set(self._taken) <= set(inside):
            return None
        sigs = self.sigs[first_out : first_out + count]
        return DonatedState(self.io, self.run, inside, results, sigs)

    # Reports.

    def measure(
        self, args: Sequence[ArrayImpl], repeats: int
    ) -> tuple[list[ArrayImpl], Measurements]:
        """(the results, the time of each kernel); donated arguments are copied first."""
        results = self(*[self._copied(a) for a in args])
        with self.io.lock:
            given = [self._copied(a) for a in args]
            addresses = [a.data.address for a in given] + self.io.allocate_outputs()
            memory, owners = self.binding.memory(addresses)

            def restore() -> None:
                for i in self.replaced.values():
                    self._copy(args[i], given[i].data)

            items = self.schedule.items
            steps = measured(self.runtime, items, memory, owners, repeats, restore)
        seconds = []
        for _ in range(repeats):
            given = [self._copied(a) for a in args]
            seconds.append(elapsed(self.runtime, lambda given=given: self(*given)))
        return results, Measurements(min(seconds), steps, self.table.target)

    def _copied(self, array: ArrayImpl) -> ArrayImpl:
        data = self.runtime.alloc(array.data.bytes, self.binding.site)
        self._copy(array, data)
        return ArrayImpl(data, array.sig)

    def _copy(self, array: ArrayImpl, to: Buffer) -> None:
        driver = self.runtime.driver
        driver.copy(to.address, array.data.address, to.bytes, driver.compute)

    def as_text(self) -> str:
        """The program, its steps with the memory plan, and the source of generated kernels."""
        kernels = dict.fromkeys(s for d in self.table.summaries for s in d.sources if "\n" in s)
        return "\n\n".join([repr(self.program), self.report(), *kernels])

    def report(self) -> str:
        """A table of the steps (bytes, operations, time at the roofline) and the memory plan."""
        lines = ["step                                      MB    GFLOP       us  lines"]
        total, limit = 0.0, self.table.target
        for d in self.table.summaries:
            seconds = limit.seconds(d.traffic, d.operations)
            total += seconds
            name = "  " * d.depth + d.name
            lines.append(
                f"{name[:36]:<36} {d.traffic / 1e6:>8.2f} {d.operations / 1e9:>8.3f} "
                f"{seconds * 1e6:>8.1f}  {'; '.join(d.lines[:2])}"
            )
        inputs = sum([v.aval.nbytes for v in self.program.invars])
        outputs = sum([out.bytes for _, out in self.io.outputs])
        lines += [
            f"{len(self.table.summaries)} steps, {total * 1e6:.1f} us at the roofline "
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

    Programs that are one graph share an arena: the compute stream runs them one after the other,
    and none reads what another left there. It grows by replacement; programs that were captured
    over a smaller one keep that one alive.
    """
    if not size:
        return None
    if not shared:
        return device.alloc(-(-size // ALIGNMENT) * ALIGNMENT, "temporaries of a program")
    # Weakly held: the arena goes with the last program that was captured over it.
    index = device.driver.info.index
    with _arena_lock:
        held = _arenas[index]() if index in _arenas else None
        if held is None or held.bytes < size or held.driver is not device.driver:
            held = device.alloc(-(-size // ALIGNMENT) * ALIGNMENT, "temporaries of programs")
            _arenas[index] = weakref.ref(held)
        return held
