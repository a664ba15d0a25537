"""Programs: ordered steps over numbered buffers, captured into graphs and relaunched.

Steps are launches, clears, copies, programs within programs, control flow decided by device
memory, and what the host computes. Where the driver has conditional nodes, a program in which the
host computes nothing is one graph, the chain of its steps. Else it is cut into parts that run one
after the other: graphs, computations of the host, and control flow whose predicate the host reads.
The host decides where it computes something inside, or where the driver has no conditional nodes;
loops of a known length are unrolled there.

With programmatic launches a kernel behind another kernel is started before that one has ended, and
waits on the device. That is all it needs to wait for: every kernel that is started early waits for
the whole of the one before it ahead of touching memory, so when a kernel has ended, everything that
it had to wait for has ended too, and its memory can be seen.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from genesis_fn.backends.cpu.storage import host_tensor, host_view
from genesis_fn.backends.cuda.driver.driver import Driver, Graph, PredicateMode, Prepared, Stream
from genesis_fn.backends.cuda.lowerings.call import HostCall
from genesis_fn.backends.cuda.memory.pool import Block
from genesis_fn.backends.cuda.run.runtime import Runtime
from genesis_fn.kernels.plan import BufferArg, Descriptor, Launch, Memset, Scalar


@dataclass(frozen=True, slots=True)
class Copy:
    """Copies `bytes` bytes between buffers; offsets are in bytes."""

    destination: int
    source: int
    bytes: int
    destination_offset: int = 0
    source_offset: int = 0


@dataclass(frozen=True, slots=True)
class SubProgram:
    """Steps with their own numbering: their buffer i is this program's `buffers[i]`, a buffer
    number and an offset in bytes. `reached` are buffers of this program that the steps find through
    addresses in memory."""

    steps: tuple[Step, ...]
    buffers: tuple[tuple[int, int], ...]
    reached: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class While:
    """Runs `condition`, and as long as the byte at `predicate` is not zero `body` and `condition`
    again."""

    condition: tuple[Step, ...]
    predicate: BufferArg
    body: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Switch:
    """Runs the branch that the int32 at `index`, clamped, names."""

    index: BufferArg
    branches: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True, slots=True)
class ForLoop:
    """Runs `body` `count` times; the int32 at `counter` holds 0, 1, ... meanwhile and `count`
    afterwards."""

    count: int
    counter: BufferArg
    body: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Host:
    """The host computes `call`: operands from buffers (None where the operand is a number),
    results into buffers."""

    call: HostCall
    reads: tuple[int | None, ...]
    writes: tuple[int, ...]


Step: TypeAlias = Launch | Memset | Copy | SubProgram | While | Switch | ForLoop | Host

_LONGEST_UNROLLED = 4096
_SCRATCH_ALIGNMENT = 512


def has_host(step: Step) -> bool:
    """Whether the host computes part of a step."""
    return isinstance(step, Host) or any(has_host(s) for body in _bodies(step) for s in body)


def _bodies(step: Step) -> tuple[tuple[Step, ...], ...]:
    if isinstance(step, While):
        return step.condition, step.body
    if isinstance(step, Switch):
        return step.branches
    return (step.body,) if isinstance(step, ForLoop) else ()


@dataclass(frozen=True, slots=True)
class Memory:
    """Where a buffer of a program is."""

    address: int
    bytes: int


class Executable:
    """A program bound to addresses, launched again and again: `parts` in turn, which launch
    `graphs`; `held` is kept alive. Launches from several threads are the caller's to serialise."""

    def __init__(
        self,
        driver: Driver,
        parts: list[_Graph | _Compute | _Driven],
        graphs: list[Graph],
        held: Sequence[Any],
    ) -> None:
        self._driver, self._parts, self._graphs, self._held = driver, parts, graphs, held
        self._only = graphs[0] if len(parts) == 1 and isinstance(parts[0], _Graph) else None
        self._closed = False

    @property
    def parts(self) -> int:
        """The number of graphs, computations and decisions of the host that a launch takes."""
        return len(self._parts)

    def launch(self) -> None:
        """Enqueues the program on the compute stream; waits for what the host takes part in."""
        if self._only is not None:
            self._driver.launch_graph(self._only, self._driver.compute)
            return
        if self._closed:
            raise RuntimeError("the executable is closed")
        for part in self._parts:
            part.launch()

    def close(self) -> None:
        """Destroys the graphs; nothing may be running."""
        for graph in self._graphs:
            self._driver.destroy_graph(graph)
        self._graphs.clear()
        self._parts.clear()
        self._only = None
        self._closed = True

    def __del__(self) -> None:
        if self._graphs:
            try:
                self._driver.synchronize()
                self.close()
            except Exception:  # the driver is already shutting down
                return


def captured(
    device: Runtime,
    steps: Sequence[Step],
    buffers: Sequence[Memory],
    owners: Sequence[Any] = (),
    conditional_nodes: bool | None = None,
    programmatic: bool = False,
) -> Executable:
    """The program of these steps at the addresses of `buffers`, whose memory must stay where it is;
    `owners` keeps it alive. `conditional_nodes` says whether graphs decide (by default if the
    driver has nodes for that), `programmatic` whether kernels behind kernels start early."""
    driver = device.driver
    if conditional_nodes is None:
        conditional_nodes = driver.info.target.conditional_nodes
    actions, scratch = _bound(device, steps, buffers, programmatic)
    graphs: list[Graph] = []
    try:
        parts = list(_parts(device, actions, conditional_nodes, graphs))
    except BaseException:
        for graph in graphs:
            driver.destroy_graph(graph)
        raise
    # Actions own the modules with their code, which a graph does not keep from being unloaded.
    return Executable(driver, parts, graphs, (actions, scratch, *owners))


class Direct:
    """Kernels, copies and fills bound to addresses and enqueued one by one, without a graph."""

    def __init__(self, device: Runtime, steps: Sequence[Step], buffers: Sequence[Memory]) -> None:
        self._driver = device.driver
        self._actions, self._scratch = _bound(device, steps, buffers, False)

    def __len__(self) -> int:
        return len(self._actions)

    def launch(self, number: int) -> None:
        """Enqueue one of them on the compute stream."""
        _record(self._driver, self._actions[number : number + 1], self._driver.compute)


# Actions: steps with addresses in place of buffer numbers.


@dataclass(slots=True)
class _Run:
    """A launch, prepared once all of the program's are known."""

    launch: Launch
    addresses: list[int]
    within: list[tuple[int, int]]  # all that it touches: [first address, address after the last)
    prepared: Prepared | None = None


@dataclass(frozen=True, slots=True)
class _Zero:
    """Clears bytes."""

    address: int
    bytes: int

    def record(self, driver: Driver, stream: Stream) -> None:
        driver.fill(self.address, 0, self.bytes, stream)


@dataclass(frozen=True, slots=True)
class _Write:
    """Sets one int32."""

    address: int
    value: int

    def record(self, driver: Driver, stream: Stream) -> None:
        driver.fill_words(self.address, self.value, 1, stream)


@dataclass(frozen=True, slots=True)
class _Move:
    """Copies bytes on the device."""

    destination: int
    source: int
    bytes: int

    def record(self, driver: Driver, stream: Stream) -> None:
        driver.copy(self.destination, self.source, self.bytes, stream)


@dataclass(frozen=True, slots=True)
class _Decide:
    """Control flow decided by what is at `address`, read as `mode` says: "flag" (a byte) runs the
    only branch again and again until it is zero, "count" (an int32, increased first) until it is
    `limit`, and "index" (an int32) runs one of `limit` branches. `first` runs before every
    decision."""

    mode: PredicateMode
    address: int
    limit: int
    first: tuple[_Action, ...]
    branches: tuple[tuple[_Action, ...], ...]


class _Compute:
    """Operands to the host, the CPU's function, results back."""

    def __init__(self, device: Runtime, step: Host, memory: Sequence[Memory]) -> None:
        call = step.call
        found = call.prim.abstract(call.avals, call.params)
        outs = list(found) if call.prim.multi else [found]
        self._device, self._function = device, call.function()
        self._operands = [
            (a, None if b is None else memory[b].address)
            for a, b in zip(call.avals, step.reads, strict=True)
        ]
        self._results = [(a, memory[b].address) for a, b in zip(outs, step.writes, strict=True)]

    def launch(self) -> None:
        """Waits for the operands, and enqueues the results' way back."""
        device, operands = self._device, []
        for a, address in self._operands:
            if address is None:
                operands.append(a)
                continue
            value = np.empty(a.shape, a.dtype)
            if value.nbytes:
                device.read(value.ctypes.data, address, value.nbytes)
            operands.append(host_tensor(value, a.dtype))
        for y, (a, address) in zip(self._function(*operands), self._results, strict=True):
            value = np.ascontiguousarray(host_view(y, a.dtype))
            if value.nbytes:
                device.staging.to_device(address, value.ctypes.data, value.nbytes)


_Action: TypeAlias = _Run | _Zero | _Write | _Move | _Decide | _Compute


def _bound(
    device: Runtime, steps: Sequence[Step], buffers: Sequence[Memory], programmatic: bool
) -> tuple[tuple[_Action, ...], Block | None]:
    """(the steps at the addresses of `buffers`, the scratch memory of their launches)."""
    runs: list[_Run] = []
    actions = _actions(device, steps, buffers, (), runs)
    wanted = [_started_early(r.launch) if programmatic else r.launch for r in runs]
    made = device.driver.prepare(wanted)
    need = max((p.scratch_bytes for p in made), default=0)
    # One piece for all: they run one after the other.
    need = -(-need // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT
    held = device.alloc(need, "kernel scratch") if need else None
    for run, prepared in zip(runs, made, strict=True):
        scratch = held.address if held is not None and prepared.scratch_bytes else 0
        if scratch:
            run.within.append((scratch, scratch + need))
        prepared.bind(run.addresses, scratch, run.within)
        run.prepared = prepared
    return actions, held


def _started_early(launch: Launch) -> Launch:
    """The launch as one that may start while the one before it ends; kernels that do something
    before they wait for that one are told so by constants called EARLY, EARLY_0, ..."""
    told = {name: True for name in launch.constants if name.startswith("EARLY")}
    return replace(launch, programmatic=True, constants={**launch.constants, **told})


def _actions(
    device: Runtime,
    steps: Sequence[Step],
    memory: Sequence[Memory],
    reached: tuple[Memory, ...],
    runs: list[_Run],
) -> tuple[_Action, ...]:
    """The steps as actions, their launches appended to `runs`; `reached` is memory that they find
    through addresses in memory."""
    actions: list[_Action] = []
    addresses = [m.address for m in memory]

    def place(buffer: BufferArg, size: int) -> int:
        if buffer.offset + size > memory[buffer.index].bytes:
            raise ValueError(f"{buffer} lies outside its {memory[buffer.index].bytes} bytes")
        return memory[buffer.index].address + buffer.offset

    for step in steps:
        if isinstance(step, Launch):
            touched = [*[memory[b] for b in _arguments(step)], *reached]
            within = [(m.address, m.address + m.bytes) for m in touched]
            runs.append(_Run(step, addresses, within))
            actions.append(runs[-1])
        elif isinstance(step, Memset):
            held = memory[step.buffer]
            actions.append(_Zero(held.address, held.bytes))
        elif isinstance(step, Copy):
            target = place(BufferArg(step.destination, "u8", step.destination_offset), step.bytes)
            source = place(BufferArg(step.source, "u8", step.source_offset), step.bytes)
            actions.append(_Move(target, source, step.bytes))
        elif isinstance(step, SubProgram):
            inner = [
                Memory(memory[index].address + offset, memory[index].bytes - offset)
                for index, offset in step.buffers
            ]
            found = (*reached, *[memory[b] for b in step.reached])
            actions += _actions(device, step.steps, inner, found, runs)
        elif isinstance(step, Host):
            actions.append(_Compute(device, step, memory))
        else:
            bodies = [_actions(device, body, memory, reached, runs) for body in _bodies(step)]
            actions += _decision(step, bodies, place)
    return tuple(actions)


def _arguments(launch: Launch) -> list[int]:
    """The numbers of the buffers that a launch is given."""
    given = [a.buffer if isinstance(a, Descriptor) else a for a in launch.arguments.values()]
    return [b.index for b in given if not isinstance(b, Scalar)]


def _decision(
    step: While | Switch | ForLoop,
    bodies: list[tuple[_Action, ...]],
    place: Callable[[BufferArg, int], int],
) -> list[_Action]:
    if isinstance(step, While):
        return [_Decide("flag", place(step.predicate, 1), 2, bodies[0], (bodies[1],))]
    if isinstance(step, Switch):
        return [_Decide("index", place(step.index, 4), len(bodies), (), tuple(bodies))]
    counter = place(step.counter, 4)
    # Every decision increases the counter first, so the first iteration sees zero.
    return [_Write(counter, -1), _Decide("count", counter, step.count, (), (bodies[0],))]


# Parts: graphs, and what the host does between them.


def _parts(
    device: Runtime, actions: Sequence[_Action], conditional_nodes: bool, graphs: list[Graph]
) -> Iterator[_Graph | _Compute | _Driven]:
    """As few parts as hold the actions; the graphs among them are appended to `graphs`."""
    run: list[_Action] = []

    def recorded() -> Iterator[_Graph]:
        if run:
            graphs.append(_capture(device.driver, run))
            yield _Graph(device.driver, graphs[-1])
            run.clear()

    for action in actions if conditional_nodes else _unrolled(actions):
        if not _needs_host(action, conditional_nodes):
            run.append(action)
            continue
        yield from recorded()
        if isinstance(action, _Decide):
            first, *branches = [
                list(_parts(device, body, conditional_nodes, graphs))
                for body in (action.first, *action.branches)
            ]
            yield _Driven(device, action, first, branches)
        elif isinstance(action, _Compute):
            yield action
    yield from recorded()


def _needs_host(action: _Action, conditional_nodes: bool) -> bool:
    """Whether the host computes something in an action, or decides it."""
    if isinstance(action, _Decide):
        bodies = (action.first, *action.branches)
        return not conditional_nodes or any([_needs_host(a, True) for b in bodies for a in b])
    return isinstance(action, _Compute)


def _unrolled(actions: Sequence[_Action]) -> Iterator[_Action]:
    """The actions with short loops of known length, in which nothing is decided, laid out."""
    for action in actions:
        if not (isinstance(action, _Decide) and action.mode == "count"):
            yield action
            continue
        body = list(_unrolled(action.branches[0]))
        if len(body) * action.limit > _LONGEST_UNROLLED or any(
            isinstance(a, (_Decide, _Compute)) for a in body
        ):
            yield action
            continue
        for i in range(action.limit):
            yield _Write(action.address, i)
            yield from body
        yield _Write(action.address, action.limit)


@dataclass(frozen=True, slots=True)
class _Driven:
    """Control flow decided by the host, which reads the predicate."""

    device: Runtime
    decision: _Decide
    first: list[Any]
    branches: list[list[Any]]

    def launch(self) -> None:
        """Runs the parts inside as the predicate says."""
        decision, driver = self.decision, self.device.driver
        if decision.mode == "count":
            for i in range(decision.limit):
                driver.fill_words(decision.address, i, 1, driver.compute)
                self._run(self.branches[0])
            driver.fill_words(decision.address, decision.limit, 1, driver.compute)
        elif decision.mode == "index":
            chosen = self._read(4)
            self._run(self.branches[min(max(chosen, 0), decision.limit - 1)])
        else:
            self._run(self.first)
            while self._read(1):
                self._run(self.branches[0])
                self._run(self.first)

    def _run(self, parts: Sequence[Any]) -> None:
        for part in parts:
            part.launch()

    def _read(self, size: int) -> int:
        place = ctypes.create_string_buffer(size)
        self.device.read(ctypes.addressof(place), self.decision.address, size)
        return int.from_bytes(place.raw, "little", signed=True)


@dataclass(frozen=True, slots=True)
class _Graph:
    """Actions that are one graph."""

    driver: Driver
    graph: Graph

    def launch(self) -> None:
        """Enqueues the graph on the compute stream."""
        self.driver.launch_graph(self.graph, self.driver.compute)


def _capture(driver: Driver, actions: Sequence[_Action]) -> Graph:
    # A stream of its own: other threads may enqueue on the compute stream meanwhile.
    stream = driver.new_stream()
    try:
        driver.begin_capture(stream)
        try:
            _record(driver, actions, stream)
        except BaseException:
            driver.abandon_capture(stream)
            raise
        return driver.end_capture(stream)
    finally:
        driver.destroy_stream(stream)


def _record(
    driver: Driver, actions: Sequence[_Action], stream: Stream, behind_kernel: bool = False
) -> bool:
    """Enqueues the actions on a stream one behind the other; whether a kernel is the last of them,
    so that another one may start early."""
    for action in actions:
        if isinstance(action, _Run):
            if 0 not in action.launch.grid:  # else there are no programs
                assert action.prepared is not None
                action.prepared.launch(stream, early=behind_kernel)
                behind_kernel = True
        elif isinstance(action, _Decide):
            _record_decision(driver, action, stream, behind_kernel)
            behind_kernel = False
        else:
            assert not isinstance(action, _Compute)
            action.record(driver, stream)
            behind_kernel = False
    return behind_kernel


def _record_decision(
    driver: Driver, decision: _Decide, stream: Stream, behind_kernel: bool
) -> None:
    """Records what sets the condition of a decision, and the conditional node with its bodies."""
    condition = driver.new_condition(stream)
    loop = decision.mode != "index"

    def decide(stream: Stream, behind_kernel: bool) -> None:
        _record(driver, decision.first, stream, behind_kernel)
        driver.set_condition(stream, condition, decision.address, decision.mode, decision.limit)

    decide(stream, behind_kernel)
    branches = decision.branches
    kind = "while" if loop else "switch"
    streams = driver.add_conditional(stream, condition, kind, len(branches))
    ended = 0
    try:
        for body, inner in zip(branches, streams, strict=True):
            last = _record(driver, body, inner)
            if loop:
                decide(inner, last)
            driver.end_branch(inner)
            ended += 1
    except BaseException:
        for inner in streams[ended:]:
            driver.abandon_capture(inner)
            driver.destroy_stream(inner)
        raise
