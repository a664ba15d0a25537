"""Compiled programs: graphs captured over an arena, launched on arrays.

Inputs are read where they are: a graph belongs to the addresses it was captured with. Where an
input moves, it is copied to a place that does not if it is small, and else another graph is
captured for the new addresses; a few are kept. Donated inputs are updated in place. An output that
is still held when the program runs again keeps its memory: the run gets other memory for it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from operator import itemgetter
from sys import getrefcount
from typing import Any

import numpy as np

from genesis_fn.backends.cuda.carry import Carry
from genesis_fn.backends.cuda.graph import Executable as Launched, Memory, has_host
from genesis_fn.backends.cuda.measure import (
    Measurements,
    elapsed,
    measured,
)
from genesis_fn.backends.cuda.memory import Block
from genesis_fn.backends.cuda.places import Output, Places
from genesis_fn.backends.cuda.runtime import Runtime, runtime
from genesis_fn.backends.cuda.steps import Scope, Table, check_error, prepared
from genesis_fn.compiler.plan import ALIGNMENT
from genesis_fn.compiler.rematerialise import rematerialise
from genesis_fn.compiler.updates import makers, origin
from genesis_fn.core import config
from genesis_fn.core.array import Array, live
from genesis_fn.core.aval import Aval, sig
from genesis_fn.core.device import Device
from genesis_fn.core.errors import BackendError
from genesis_fn.core.executable import Executable
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.transforms.words import physical

_SMALL_INPUT = 4 << 20  # inputs that are copied instead of captured again
_MOST_GRAPHS = 6
_MOST_MISSES = 24  # captures after which outputs that keep moving are copied instead


def _references_alone() -> int:
    """What counting the references of memory gives that one Array, the list of inputs, and the list
    of those that are taken hold."""
    array = [object()]
    inputs = [array[0]]
    taken = inputs[:]
    return next(map(getrefcount, taken))


_ALONE = _references_alone()


class CudaExecutable(Executable):
    """A program on one device; storage is a buffer of the library's own memory."""

    def __init__(
        self,
        jaxpr: Jaxpr,
        device: Device,
        donated: Sequence[bool] = (),
        memory_budget: int | None = None,
    ) -> None:
        self.jaxpr, self.device = jaxpr, device
        self.runtime: Runtime = runtime(device.index)
        target = self.runtime.driver.info.target
        program = rematerialise(prepared(jaxpr, target), memory_budget)
        self.program = program
        donated = tuple(donated) or (False,) * len(jaxpr.invars)
        table = self.table = Table(target)
        inputs = [table.new(v.aval.nbytes) for v in program.invars]
        self._inputs = inputs
        self.replaced = _donations(program, donated)
        taken = set(self.replaced.values())
        self._taken = sorted(taken)
        table.steady = {b for i, b in enumerate(inputs) if i not in taken}
        self.unused_donations = [
            (i, f"no output is left that is {v.aval}")
            for i, (v, d) in enumerate(zip(program.invars, donated))
            if d and i not in taken
        ]
        targets = [
            inputs[self.replaced[k]] if k in self.replaced else None
            for k in range(len(program.outs))
        ]
        self.scope = Scope(table, program, inputs, targets)
        self._donated = donated
        self._programmatic = config.current().programmatic_launch
        self._outputs = self.scope.outputs
        self.sigs = [sig(a, device) for a in jaxpr.out_avals]
        self._graphs: dict[tuple[int, ...], Launched] = {}
        self._arena: Block | None = None
        self._misses = 0
        self._word = self._error_word()
        site = f"outputs of {jaxpr.name or 'a program'}"
        self._site = site
        number = {b: i for i, b in enumerate(inputs)}
        updated = [number.get(b) for b in self._outputs]
        # Results that are inputs' memory are picked; places of the others are filled after a run.
        self._updated = _picker([i or 0 for i in updated])
        self._held: dict[int, Output] = {}
        for b, a in zip(self._outputs, jaxpr.out_avals):
            if b not in number and b not in self._held:
                self._held[b] = Output(a.nbytes)
        made = [
            ([k for k, b in enumerate(self._outputs) if b == held], out)
            for held, out in self._held.items()
        ]
        self._places = Places(self.runtime, site, updated, made)
        # Inputs that are overwritten: which, what all their references sum up to where nobody else
        # has any, and whose they must be: parts of other memory and imports are others' too.
        self._pick_taken = _picker(self._taken)
        self._alone = _ALONE * len(self._taken)
        self._owners = [self.runtime.pool] * len(self._taken)

    def _error_word(self) -> int:
        """The address of the program's error word; 0 where nothing is checked."""
        if self.table.word is None:
            return 0
        table, jaxpr = self.table, self.jaxpr
        describe = lambda site, index: check_error(table, jaxpr, site, index)  # noqa: E731
        return self.runtime.errors.register(self, describe)

    def __call__(self, *args: Array) -> list[Array]:
        try:
            return [Array(b, s) for b, s in zip(self.run([a.data for a in args]), self.sigs)]
        except AttributeError:
            for a in args:
                live(a)
            raise

    def run(self, buffers: list[Any]) -> list[Any]:
        """The memory of the results, given that of the inputs. Raises AttributeError for memory
        that is gone."""
        addresses = [b.address for b in buffers]
        with self._places.lock:
            return self._run(buffers, addresses)

    def carry(self, first_in: int, first_out: int, count: int) -> Carry | None:
        """How to run with `count` inputs that are updated in place as one, and nothing else is;
        None where that is not so."""
        inside = range(first_in, first_in + count)
        updated = self._places.updated
        results = range(first_out, first_out + count)
        beside = [i for k, i in enumerate(updated) if k not in results]
        if updated[first_out : first_out + count] != list(inside) or set(beside) & set(inside):
            return None
        if not set(self._taken) <= set(inside):
            return None
        sigs = self.sigs[first_out : first_out + count]
        return Carry(self._places, self.run, inside, results, sigs)

    def _run(self, buffers: list[Any], addresses: list[int]) -> list[Any]:
        places, driver = self._places, self.runtime.driver
        if self._taken:
            taken = self._pick_taken(buffers)
            alone = sum(map(getrefcount, taken)) == self._alone
            if not alone or [b.owner for b in taken] != self._owners:
                self._copy_shared(buffers, taken, addresses)
            del taken
        for i, slot in places.slots.items():
            driver.copy(slot.address, addresses[i], buffers[i].bytes, driver.compute)
            addresses[i] = slot.address
        addresses += places.renewed()
        if addresses == places.last[0]:
            graph = places.last[1]
        else:
            del addresses[len(buffers) :]
            graph = self._graph(buffers, addresses)
        graph.launch()
        results = self._updated(buffers)
        for ks, out in places.made:
            data = places.handed_out(out)
            for k in ks:
                results[k] = data
        return results

    def _copy_shared(self, buffers: list[Any], taken: list[Any], addresses: list[int]) -> None:
        """Give the program a copy of donated memory that somebody else may see."""
        driver = self.runtime.driver
        counts = list(map(getrefcount, taken))
        for i, count in zip(self._taken, counts, strict=True):
            if count > _ALONE or buffers[i].owner is not self.runtime.pool:
                copy = self.runtime.alloc(buffers[i].bytes, self._site)
                driver.copy(copy.address, addresses[i], copy.bytes, driver.compute)
                buffers[i], addresses[i] = copy, copy.address

    def _graph(self, buffers: list[Any], addresses: list[int]) -> Any:
        """The graph for these addresses, which is remembered as the last one."""
        key = (*addresses, *[out.address for out in self._held.values()])
        graph = self._graphs.get(key)
        if graph is None:
            key, graph = self._bind(buffers, addresses)
        self._places.last = list(key), graph
        return graph

    def _bind(self, buffers: list[Any], addresses: list[int]) -> tuple[tuple[int, ...], Any]:
        """A graph for these addresses; inputs that keep moving get a place of their own."""
        slots, driver = self._places.slots, self.runtime.driver
        if self._graphs:
            known = list(zip(*[k[: len(addresses)] for k in self._graphs]))
            for i, a in enumerate(addresses):
                moved = i not in slots and not self._donated[i] and a not in known[i]
                size = buffers[i].bytes
                if moved and size and (size <= _SMALL_INPUT or len(self._graphs) >= _MOST_GRAPHS):
                    slot = slots[i] = self.runtime.alloc(size, self._site)
                    driver.copy(slot.address, a, size, driver.compute)
                    addresses[i] = slot.address
        self._misses += 1
        if self._misses > _MOST_MISSES:
            for out in self._held.values():
                out.copied = True
        key = (*addresses, *[out.address for out in self._held.values()])
        found = self._graphs.get(key)
        if found is not None:
            return key, found
        if slots or len(self._graphs) >= _MOST_GRAPHS:
            stale = [
                k for k in self._graphs
                if any(k[i] != s.address for i, s in slots.items())
            ]  # fmt: skip
            stale = stale or [next(iter(self._graphs))] * (len(self._graphs) >= _MOST_GRAPHS)
            for k in stale:
                # Destroying a graph waits for the device.
                del self._graphs[k]
            self._places.last = [], None
        graph = self._graphs[key] = self._captured(addresses)
        return key, graph

    def _captured(self, addresses: Sequence[int]) -> Launched:
        memory, owners = self._placed(addresses)
        return Launched(
            self.runtime, self.scope.steps, memory, owners, programmatic=self._programmatic
        )

    def _placed(self, addresses: Sequence[int]) -> tuple[list[Memory], list[Any]]:
        """(where each buffer is, with the inputs at these addresses; what keeps it alive)."""
        if self._arena is None:
            # Between the pieces of a program that the host takes part in, others may run.
            pieces = any(map(has_host, self.scope.steps))
            pieces = pieces or not self.runtime.driver.info.target.conditional_nodes
            self._arena = arena(self.runtime, self.scope.arena, shared=not pieces)
        table = self.table
        base = {b: a for b, a in zip(self._inputs, addresses)}
        base |= {b: out.address for b, out in self._held.items()}
        base[self.scope.base] = self._arena.address if self._arena is not None else 0
        if table.word is not None:
            base[table.word] = self._word
        owners: list[Any] = [self._arena]
        for b in table.pointers:
            owners.append(self.runtime.alloc(table.bytes[b], self._site))
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

    # What people see.

    def measure(self, args: Sequence[Array], repeats: int) -> tuple[list[Array], Measurements]:
        """(the results, the time of each kernel); donated arguments stay as they are."""
        results = self(*[self._copied(a) for a in args])
        with self._places.lock:
            given = [self._copied(a) for a in args]
            self._places.renewed()
            memory, owners = self._placed([a.data.address for a in given])
            steps = measured(self.runtime, self.scope.items, memory, owners, repeats)
        seconds = []
        for _ in range(repeats):
            given = [self._copied(a) for a in args]
            seconds.append(elapsed(self.runtime, lambda given=given: self(*given)))
        return results, Measurements(min(seconds), steps, self.table.target)

    def _copied(self, array: Array) -> Array:
        data = self.runtime.alloc(array.data.bytes, self._site)
        driver = self.runtime.driver
        driver.copy(data.address, array.data.address, data.bytes, driver.compute)
        return Array(data, array.sig)

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
        table = self.table
        outputs = sum(table.bytes[b] for b in self._held)
        lines += [
            f"{len(self.table.described)} steps, {total * 1e6:.1f} us at the roofline "
            f"({limit.bandwidth / 1e12:.1f} TB/s, {limit.operations / 1e12:.0f} TFLOP/s; "
            "loop bodies counted once)",
            f"memory: inputs {_mb(sum(table.bytes[b] for b in self._inputs))}, outputs "
            f"{_mb(outputs)}, updated in place {len(self.replaced)}, arena {_mb(self.scope.arena)}",
        ]
        return "\n".join(lines)

    def memory_analysis(self) -> dict[str, int]:
        """Bytes of arguments, outputs, temporaries, and of outputs that replace arguments."""
        table = self.table
        arguments = sum([table.bytes[b] for b in self._inputs])
        outputs = sum([a.nbytes for a in self.jaxpr.out_avals])
        aliased = sum([table.bytes[self._inputs[i]] for i in self.replaced.values()])
        return {
            "argument_size_in_bytes": arguments,
            "output_size_in_bytes": outputs,
            "alias_size_in_bytes": aliased,
            "temp_size_in_bytes": self.scope.arena,
            "peak_memory_in_bytes": arguments + outputs - aliased + self.scope.arena,
        }


def _mb(size: int) -> str:
    return f"{size / 1e6:.2f} MB"


def _picker(indices: Sequence[int]) -> Callable[[list[Any]], list[Any]]:
    """A function from a list to the list of its elements at `indices`."""
    if len(indices) < 2:
        return lambda xs: [xs[i] if xs else None for i in indices]
    if list(indices) == list(range(indices[0], indices[-1] + 1)):
        run = slice(indices[0], indices[-1] + 1)
        return lambda xs: xs[run] if xs else [None] * len(indices)
    pick = itemgetter(*indices)
    return lambda xs: list(pick(xs)) if xs else [None] * len(indices)


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


def _donations(program: Jaxpr, donated: Sequence[bool]) -> dict[int, int]:
    """{output: donated input whose memory it takes}: the input that it is or that it updates, or
    one of its type."""
    free: dict[Aval, list[int]] = {}
    place = {v: i for i, v in enumerate(program.invars)}
    for i, (v, d) in enumerate(zip(program.invars, donated)):
        if d and v.aval.nbytes:
            free.setdefault(v.aval, []).append(i)
    replaced: dict[int, int] = {}
    seen: set[Any] = set()
    made = makers(program)
    for returned in (True, False):  # what is returned as it came, then what is updated
        for k, v in enumerate(program.outs):
            i = place.get(origin(made, v))
            if i is None or (v in place) != returned or v in seen:
                continue
            if i in free.get(v.aval, ()):
                free[v.aval].remove(i)
                replaced[k] = i
                seen.add(v)
    for k, v in enumerate(program.outs):
        if k not in replaced and v not in seen and v not in place and free.get(v.aval):
            replaced[k] = free[v.aval].pop(0)
            seen.add(v)
    return replaced


def compile_jaxpr(
    jaxpr: Jaxpr,
    device: Device,
    donated: Sequence[bool] = (),
    memory_budget: int | None = None,
    compiler: str | None = None,
) -> CudaExecutable:
    """An executable for `jaxpr`; `donated` marks inputs whose memory outputs may take. Raises
    BackendError for a `compiler`: programs for a GPU have the library's own."""
    if compiler is not None:
        raise BackendError(
            f"compiler={compiler!r} is for the CPU, and the program runs on {device}; leave it "
            "out, or move the arguments with device_put(x, cpu())"
        )
    executable = CudaExecutable(physical(jaxpr), device, donated, memory_budget)
    executable.sigs = [sig(a, device) for a in jaxpr.out_avals]
    return executable


__all__ = ["CudaExecutable", "arena", "compile_jaxpr"]
