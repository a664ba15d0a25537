"""Steps over numbered buffers, captured into CUDA graphs and launched again and again.

Read from top to bottom, after *steps* (`steps.py`): *commands* (steps bound to addresses),
*segments* (commands captured into one graph, or run by the host), and the capture.

A program that needs no host computation is one graph, in which its steps form a chain, if the
driver has conditional nodes. Otherwise it is cut into segments that run one after the other:
graphs, host computations, and control flow whose predicate the host reads. Without conditional
nodes, loops of known length are unrolled.

Collectives are kernels of a communication library, captured into the graph on a second stream that
forks from the first and joins it again (`lower/overlap.py` says where). The bodies of conditional
nodes hold none, as they may need the host's help (proxies of a network): a
loop of known length around one is unrolled, and other control flow is the host's.

Programmatic launches: a kernel that follows a kernel may be started before its predecessor has
ended, and waits on the device (`griddepcontrol.wait`) before it touches memory. Waiting for one
predecessor is enough. The wait returns when the previous grid has ended and its memory is visible;
if that grid was started early too, it could not end before its own predecessor had; by induction
everything before it is complete.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from genesis_fn.backends.cpu.storage import host_tensor, host_view
from genesis_fn.backends.cuda.driver.communication import Communication, is_messages
from genesis_fn.backends.cuda.driver.driver import (
    Driver,
    GraphHandle,
    PredicateMode,
    PreparedLaunch,
    StreamHandle,
    captures,
)
from genesis_fn.backends.cuda.libraries import PreparedRoutine
from genesis_fn.backends.cuda.memory.pool import Block
from genesis_fn.backends.cuda.run.exchanges import Exchanges
from genesis_fn.backends.cuda.run.lane import Lane
from genesis_fn.backends.cuda.run.runtime import Runtime
from genesis_fn.backends.cuda.run.steps import (
    Collective,
    Collectives,
    Copy,
    ForLoop,
    HostStep,
    Join,
    SetInteger,
    Step,
    SubProgram,
    Switch,
    While,
    bodies,
    members,
)
from genesis_fn.kernels.plan import BufferArg, Descriptor, Launch, LibraryCall, Memset, Scalar

_LONGEST_UNROLLED = 4096
_SCRATCH_ALIGNMENT = 512


@dataclass(frozen=True, slots=True)
class BufferAddress:
    """The memory that a buffer of a program is bound to."""

    address: int
    bytes: int


class CapturedProgram:
    """A program bound to addresses. A launch runs its segments in order; `graphs` are the graphs
    among them, and `held` is kept alive. The caller serialises launches from several threads."""

    def __init__(
        self,
        driver: Driver,
        segments: list[_GraphSegment | _HostCmd | _LibraryCmd | _HostControlFlow],
        graphs: list[GraphHandle],
        held: Sequence[Any],
    ) -> None:
        self._driver, self._segments, self._graphs, self._held = driver, segments, graphs, held
        self._only = None
        if len(segments) == 1:
            only = segments[0]
            if isinstance(only, _GraphSegment) and only.exchanges is None:
                self._only = only.graph
        self._closed = False

    @property
    def segments(self) -> int:
        """How many graphs, host computations and host decisions a launch runs."""
        return len(self._segments)

    def launch(self) -> None:
        """Enqueues the program on the compute stream; waits for its host computations."""
        if self._only is not None:  # the common case: one graph
            self._driver.launch_graph(self._only, self._driver.compute)
            return
        if self._closed:
            raise RuntimeError("the executable is closed")
        for segment in self._segments:
            segment.launch()

    def close(self) -> None:
        """Destroys the graphs, none of which may be running."""
        for graph in self._graphs:
            self._driver.destroy_graph(graph)
        self._graphs.clear()
        self._segments.clear()
        self._only = None
        self._closed = True

    def __del__(self) -> None:
        if self._graphs:
            try:
                # `close` requires that nothing runs.
                self._driver.synchronize()
                self.close()
            except Exception:  # the driver is already shutting down
                return


def capture_program(
    device: Runtime,
    steps: Sequence[Step],
    buffers: Sequence[BufferAddress],
    owners: Sequence[Any] = (),
    conditional_nodes: bool | None = None,
    programmatic: bool = False,
) -> CapturedProgram:
    """Capture `steps` at the addresses of `buffers`; `owners` keeps that memory alive.

    `conditional_nodes`: whether control flow becomes conditional nodes (default: if the driver has
    them). `programmatic`: whether a kernel that follows a kernel may start early.
    """
    driver = device.driver
    # Tests pass False to run the host's way on a driver that has the nodes.
    if conditional_nodes is None:
        conditional_nodes = driver.info.target.conditional_nodes
    commands, scratch = _bind_steps(device, steps, buffers, programmatic)
    graphs: list[GraphHandle] = []
    try:
        segments = list(_segments(device, commands, conditional_nodes, graphs))
    except BaseException:
        for graph in graphs:
            driver.destroy_graph(graph)
        raise
    # A graph does not keep its kernels' modules loaded: the commands, which own them, must live as
    # long as the graph.
    return CapturedProgram(driver, segments, graphs, (commands, scratch, *owners))


class UncapturedSteps:
    """Kernels, copies and fills bound to addresses, to be enqueued one by one without a graph."""

    def __init__(
        self, device: Runtime, steps: Sequence[Step], buffers: Sequence[BufferAddress]
    ) -> None:
        self._driver = device.driver
        self._commands, self._scratch = _bind_steps(device, steps, buffers, False)

    def __len__(self) -> int:
        return len(self._commands)

    def launch(self, number: int) -> None:
        """Enqueue one of them on the compute stream."""
        _record(self._driver, self._commands[number : number + 1], self._driver.compute)


# ---- commands: steps with addresses in place of buffer numbers ----


@dataclass(slots=True)
class _LaunchCmd:
    """Launches a kernel. `prepared` is filled in once all launches of the program are known, so
    that they compile in parallel."""

    launch: Launch
    addresses: list[int]
    within: list[tuple[int, int]]  # the memory it may access: [first address, one past the last)
    prepared: PreparedLaunch | None = None


@dataclass(frozen=True, slots=True)
class _ClearCmd:
    """Sets bytes to zero."""

    address: int
    bytes: int

    def record(self, driver: Driver, stream: StreamHandle) -> None:
        driver.fill(self.address, 0, self.bytes, stream)


@dataclass(frozen=True, slots=True)
class _SetInt32Cmd:
    """Sets one int32."""

    address: int
    value: int

    def record(self, driver: Driver, stream: StreamHandle) -> None:
        driver.fill_words(self.address, self.value, 1, stream)


@dataclass(frozen=True, slots=True)
class _CopyCmd:
    """Copies bytes on the device."""

    destination: int
    source: int
    bytes: int

    def record(self, driver: Driver, stream: StreamHandle) -> None:
        driver.copy(self.destination, self.source, self.bytes, stream)


@dataclass(frozen=True, slots=True)
class _ConditionalCmd:
    """Control flow decided by device memory at `address`, as `mode` says:

    * "flag": run the only branch while the byte is not zero;
    * "count": increase the int32 by `many`, let those behind it be the numbers that follow, and run
      the only branch while it is less than `limit`;
    * "index": run the branch of `limit` that the int32 names.

    `first` runs before every decision.
    """

    mode: PredicateMode
    address: int
    limit: int
    first: tuple[_Command, ...]
    branches: tuple[tuple[_Command, ...], ...]
    many: int = 1

    def numbers(self, first: int) -> list[_SetInt32Cmd]:
        """What sets the numbers of the iterations that one run of the branch has."""
        return [_SetInt32Cmd(self.address + 4 * k, first + k) for k in range(self.many)]


@dataclass(frozen=True, slots=True)
class _Exchanged:
    """One collective: what is exchanged among whom, and where it is."""

    communicator: Any
    communication: Communication
    source: int
    destination: int


@dataclass(frozen=True, slots=True)
class _CollectiveCmd:
    """Exchanges memory with the processes of groups, all in one launch."""

    members: tuple[_Exchanged, ...]
    number: int | None = None

    def record(self, driver: Driver, stream: StreamHandle) -> None:
        with driver.one_launch() if len(self.members) > 1 else contextlib.nullcontext():
            for m in self.members:
                driver.exchange(m.communicator, m.communication, m.source, m.destination, stream)


@dataclass(frozen=True, slots=True)
class _JoinCmd:
    """Waits for a collective that runs on the second stream."""

    number: int

    def record(self, driver: Driver, stream: StreamHandle) -> None:
        """Nothing: without a second stream, collectives are in order."""


@dataclass(frozen=True, slots=True)
class _LibraryCmd:
    """Runs a library's routine. A graph refers to what it keeps on the device."""

    driver: Driver
    routine: PreparedRoutine
    addresses: tuple[int, ...]
    captured: bool

    def record(self, driver: Driver, stream: StreamHandle) -> None:
        self.routine.run(self.addresses, stream)

    def launch(self) -> None:
        """Enqueues it on the compute stream, between graphs."""
        self.routine.run(self.addresses, self.driver.compute)


class _HostCmd:
    """Copies operands to the host, calls the CPU's function, and copies results back."""

    def __init__(self, device: Runtime, step: HostStep, memory: Sequence[BufferAddress]) -> None:
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
        """Waits for the operands, computes, and enqueues the copies of the results."""
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


_Command: TypeAlias = (
    _LaunchCmd
    | _LibraryCmd
    | _ClearCmd
    | _SetInt32Cmd
    | _CopyCmd
    | _CollectiveCmd
    | _JoinCmd
    | _ConditionalCmd
    | _HostCmd
)


def _bind_steps(
    device: Runtime, steps: Sequence[Step], buffers: Sequence[BufferAddress], programmatic: bool
) -> tuple[tuple[_Command, ...], Block | None]:
    """(the commands of `steps` at the addresses of `buffers`, scratch memory of their kernels)."""
    runs: list[_LaunchCmd] = []
    commands = _commands(device, steps, buffers, (), runs)
    wanted = [_started_early(r.launch) if programmatic else r.launch for r in runs]
    made = device.driver.prepare(wanted)
    need = max((p.scratch_bytes for p in made), default=0)
    # Kernels of one program never overlap in what they do, so they share one scratch block.
    need = -(-need // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT
    held = device.alloc(need, "kernel scratch") if need else None
    # A recorded launch copies its parameters: addresses must be bound before the capture, and
    # stay what they are in the graph.
    for run, prepared in zip(runs, made, strict=True):
        scratch = held.address if held is not None and prepared.scratch_bytes else 0
        if scratch:
            run.within.append((scratch, scratch + need))
        prepared.bind(run.addresses, scratch, run.within)
        run.prepared = prepared
    return commands, held


def _started_early(launch: Launch) -> Launch:
    """The launch as a programmatic one. A kernel that can do something before it waits for its
    predecessor (load weights that nothing writes) has constants EARLY, EARLY_0, ... to enable it.
    """
    if launch.cooperative:
        return launch  # its programs must all run at once, which waits for its predecessor anyway
    told = {name: True for name in launch.constants if name.startswith("EARLY")}
    return replace(launch, programmatic=True, constants={**launch.constants, **told})


def _commands(
    device: Runtime,
    steps: Sequence[Step],
    memory: Sequence[BufferAddress],
    reached: tuple[BufferAddress, ...],
    runs: list[_LaunchCmd],
) -> tuple[_Command, ...]:
    """The commands of `steps`; their launches are appended to `runs`. `reached`: memory that they
    access through tables of pointers."""
    commands: list[_Command] = []
    addresses = [m.address for m in memory]

    def address_of(buffer: BufferArg, size: int) -> int:
        if buffer.offset + size > memory[buffer.index].bytes:
            raise ValueError(f"{buffer} lies outside its {memory[buffer.index].bytes} bytes")
        return memory[buffer.index].address + buffer.offset

    for step in steps:
        if isinstance(step, Launch):
            # Bounds that a driver may check; the interpreter does, where a GPU might not fault.
            touched = [*[memory[b] for b in _arguments(step)], *reached]
            within = [(m.address, m.address + m.bytes) for m in touched]
            runs.append(_LaunchCmd(step, addresses, within))
            commands.append(runs[-1])
        elif isinstance(step, LibraryCall):
            found = tuple([address_of(b, 0) for b in step.buffers])
            routine = device.driver.routine(step.routine)
            commands.append(_LibraryCmd(device.driver, routine, found, step.routine.captured))
        elif isinstance(step, Memset):
            held = memory[step.buffer]
            commands.append(_ClearCmd(held.address, held.bytes))
        elif isinstance(step, Copy):
            target = address_of(
                BufferArg(step.destination, "u8", step.destination_offset), step.bytes
            )
            source = address_of(BufferArg(step.source, "u8", step.source_offset), step.bytes)
            commands.append(_CopyCmd(target, source, step.bytes))
        elif isinstance(step, SubProgram):
            inner = [
                BufferAddress(memory[index].address + offset, memory[index].bytes - offset)
                for index, offset in step.buffers
            ]
            found = (*reached, *[memory[b] for b in step.reached])
            commands += _commands(device, step.steps, inner, found, runs)
        elif isinstance(step, HostStep):
            commands.append(_HostCmd(device, step, memory))
        elif isinstance(step, (Collective, Collectives)):
            number = step.number if isinstance(step, Collectives) else None
            found = tuple([_exchanged(device, m, addresses) for m in members(step)])
            commands.append(_CollectiveCmd(found, number))
        elif isinstance(step, Join):
            commands.append(_JoinCmd(step.number))
        elif isinstance(step, SetInteger):
            commands.append(_SetInt32Cmd(addresses[step.destination], step.value))
        else:
            inner = [_commands(device, body, memory, reached, runs) for body in bodies(step)]
            commands += _conditional(step, inner, address_of)
    return tuple(commands)


def _exchanged(device: Runtime, step: Collective, addresses: Sequence[int]) -> _Exchanged:
    # Communicators are made in the order of the program, which is the same on every process.
    communication, groups = step.exchange.communication, step.exchange.groups
    communicator = device.driver.communicator(groups, is_messages(communication))
    source, destination = addresses[step.source], addresses[step.destination]
    return _Exchanged(communicator, communication, source, destination)


def _arguments(launch: Launch) -> list[int]:
    """The numbers of the buffers that a launch takes."""
    given = [a.buffer if isinstance(a, Descriptor) else a for a in launch.arguments.values()]
    return [b.index for b in given if not isinstance(b, Scalar)]


def _conditional(
    step: While | Switch | ForLoop,
    bodies: list[tuple[_Command, ...]],
    address_of: Callable[[BufferArg, int], int],
) -> list[_Command]:
    if isinstance(step, While):
        return [_ConditionalCmd("flag", address_of(step.predicate, 1), 2, bodies[0], (bodies[1],))]
    if isinstance(step, Switch):
        return [_ConditionalCmd("index", address_of(step.index, 4), len(bodies), (), tuple(bodies))]
    # The counter is device memory, which the body's kernels read.
    counter = address_of(step.counter, 4 * step.many)
    # Each decision increases the counter before it compares, so the first iteration sees zero.
    return [
        _SetInt32Cmd(counter, -step.many),
        _ConditionalCmd("count", counter, step.count, (), (bodies[0],), step.many),
    ]


# ---- segments: graphs, and what the host does between them ----


def _segments(
    device: Runtime,
    commands: Sequence[_Command],
    conditional_nodes: bool,
    graphs: list[GraphHandle],
) -> Iterator[_GraphSegment | _HostCmd | _LibraryCmd | _HostControlFlow]:
    """Cut commands into as few segments as possible; their graphs are appended to `graphs`."""
    # A chain, without edges for what is independent: graphs with two lanes took 169.5 ms a training
    # step instead of 166.3, since the kernels of a chain follow each other without a gap and
    # kernels that run side by side disturb each other (docs/experiments.md).
    run: list[_Command] = []

    def recorded() -> Iterator[_GraphSegment]:
        if run:
            graphs.append(_capture(device.driver, run))
            noted = device.exchanges if any(map(_exchanges, run)) else None
            yield _GraphSegment(device.driver, graphs[-1], noted)
            run.clear()

    for command in _unrolled(commands, conditional_nodes):
        if not _involves_host(command, conditional_nodes):
            run.append(command)
            continue
        yield from recorded()
        if isinstance(command, _ConditionalCmd):
            first, *branches = [
                list(_segments(device, body, conditional_nodes, graphs))
                for body in (command.first, *command.branches)
            ]
            yield _HostControlFlow(device, command, first, branches)
        elif isinstance(command, (_HostCmd, _LibraryCmd)):
            yield command
    yield from recorded()


def _involves_host(command: _Command, conditional_nodes: bool) -> bool:
    """Whether a command contains a host computation, or control flow that the host decides."""
    if isinstance(command, _ConditionalCmd):
        return not conditional_nodes or _needs_host(command)
    return _runs_alone(command)


def _runs_alone(command: _Command) -> bool:
    """Whether a command is what no graph may contain."""
    return isinstance(command, _HostCmd) or (
        isinstance(command, _LibraryCmd) and not command.captured
    )


def _exchanges(command: _Command) -> bool:
    """Whether a command is a collective or contains one."""
    if isinstance(command, _ConditionalCmd):
        return any([_exchanges(a) for b in (command.first, *command.branches) for a in b])
    return isinstance(command, _CollectiveCmd)


def _needs_host(command: _ConditionalCmd) -> bool:
    """Whether the bodies of a conditional contain what no conditional node can."""
    return any(
        [
            _needs_host(a)
            if isinstance(a, _ConditionalCmd)
            else _runs_alone(a) or isinstance(a, _CollectiveCmd)
            for body in (command.first, *command.branches)
            for a in body
        ]
    )


def _unrolled(commands: Sequence[_Command], conditional_nodes: bool) -> Iterator[_Command]:
    """The commands with short loops of known length unrolled, where their bodies are straight-line
    device code: with conditional nodes those around collectives, without them all."""
    for command in commands:
        if not (isinstance(command, _ConditionalCmd) and command.mode == "count") or (
            conditional_nodes and not _needs_host(command)
        ):
            yield command
            continue
        body = list(_unrolled(command.branches[0], conditional_nodes))
        # Unrolled, the loop stays in one graph; otherwise the host launches every iteration.
        if len(body) * command.limit // command.many > _LONGEST_UNROLLED or any(
            [_involves_host(a, conditional_nodes) for a in body]
        ):
            yield command
            continue
        for i in range(0, command.limit, command.many):
            yield from command.numbers(i)
            yield from body
        yield from command.numbers(command.limit)


@dataclass(frozen=True, slots=True)
class _HostControlFlow:
    """Control flow for which the host reads the predicate, and so waits for the device."""

    device: Runtime
    decision: _ConditionalCmd
    first: list[Any]
    branches: list[list[Any]]

    def launch(self) -> None:
        """Runs the segments of the branches that the predicate chooses."""
        decision, driver = self.decision, self.device.driver
        if decision.mode == "count":
            for i in range(0, decision.limit + 1, decision.many):
                for number in decision.numbers(i):
                    driver.fill_words(number.address, number.value, 1, driver.compute)
                if i < decision.limit:
                    self._run(self.branches[0])
        elif decision.mode == "index":
            chosen = self._read(4)
            self._run(self.branches[min(max(chosen, 0), decision.limit - 1)])
        else:
            self._run(self.first)
            while self._read(1):
                self._run(self.branches[0])
                self._run(self.first)

    def _run(self, segments: Sequence[Any]) -> None:
        for segment in segments:
            segment.launch()

    def _read(self, size: int) -> int:
        value = ctypes.create_string_buffer(size)
        self.device.read(ctypes.addressof(value), self.decision.address, size)
        return int.from_bytes(value.raw, "little", signed=True)


@dataclass(frozen=True, slots=True)
class _GraphSegment:
    """A captured graph; `exchanges` notes the launches of one with collectives. The host may wait
    for them before the program is launched as a whole."""

    driver: Driver
    graph: GraphHandle
    exchanges: Exchanges | None

    def launch(self) -> None:
        """Enqueues the graph on the compute stream."""
        self.driver.launch_graph(self.graph, self.driver.compute)
        if self.exchanges is not None:
            self.exchanges.launched()


def _capture(driver: Driver, commands: Sequence[_Command]) -> GraphHandle:
    # Not on the compute stream: what other threads enqueue there would be captured too.
    stream = driver.new_stream()
    lane = Lane(driver, stream) if any(map(_exchanges, commands)) else None
    try:
        with captures:
            driver.begin_capture(stream)
            try:
                _record(driver, commands, stream, lane=lane)
                if lane is not None:
                    lane.join_all()
            except BaseException:
                driver.abandon_capture(stream)
                raise
            return driver.end_capture(stream, urgency=lane is not None)
    finally:
        if lane is not None:
            lane.close()
        driver.destroy_stream(stream)


def _record(
    driver: Driver,
    commands: Sequence[_Command],
    stream: StreamHandle,
    behind_kernel: bool = False,
    lane: Lane | None = None,
) -> bool:
    """Enqueues the commands on a stream in order, collectives on the other one of `lane`. Returns
    whether the last one is a kernel: only then may the next kernel start early."""
    for command in commands:
        if isinstance(command, _LaunchCmd):
            if 0 not in command.launch.grid:  # an empty grid is an error to the driver
                assert command.prepared is not None
                command.prepared.launch(stream, early=behind_kernel)
                behind_kernel = True
        elif isinstance(command, _ConditionalCmd):
            _record_conditional(driver, command, stream, behind_kernel)
            behind_kernel = False
        elif lane is not None and isinstance(command, _CollectiveCmd):
            record = functools.partial(command.record, driver)
            lane.start(command.number, record)  # the next kernel still follows the last one
            behind_kernel = behind_kernel and command.number is not None
        elif lane is not None and isinstance(command, _JoinCmd):
            lane.join(command.number)
            behind_kernel = False
        else:
            assert not isinstance(command, _HostCmd)
            command.record(driver, stream)
            behind_kernel = False
    return behind_kernel


def _record_conditional(
    driver: Driver, decision: _ConditionalCmd, stream: StreamHandle, behind_kernel: bool
) -> None:
    """Records the kernel that sets the condition, then the conditional node and its bodies."""
    # A while node tests its condition before the first iteration too, so it is set both ahead of
    # the node and at the end of the body.
    condition = driver.new_condition(stream)
    loop = decision.mode != "index"

    def decide(stream: StreamHandle, behind_kernel: bool) -> None:
        _record(driver, decision.first, stream, behind_kernel)
        driver.set_condition(
            stream, condition, decision.address, decision.mode, decision.limit, decision.many
        )

    decide(stream, behind_kernel)
    branches = decision.branches
    kind = "while" if loop else "switch"
    streams = driver.add_conditional(stream, condition, kind, len(branches))
    ended = 0
    try:
        for body, inner in zip(branches, streams, strict=True):
            last = _record(driver, body, inner)
            if loop:  # the body of a while node sets the condition for its next iteration
                decide(inner, last)
            driver.end_branch(inner)
            ended += 1
    except BaseException:
        for inner in streams[ended:]:
            driver.abandon_capture(inner)
            driver.destroy_stream(inner)
        raise
