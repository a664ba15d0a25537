"""Programs: ordered steps over numbered buffers, captured into one graph and relaunched.

Steps are launches, clears, copies, programs within programs, and control flow decided by device
memory. Where the driver has conditional nodes, the whole program is one graph. Where it has none,
loops of a known length are unrolled into the graph; what depends on values splits it, and the host
reads the predicate between the parts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from genesis_fn.backends.cuda.driver import Driver, Graph, Prepared, Stream
from genesis_fn.backends.cuda.memory import Block, Pool
from genesis_fn.kernels.launch import Buf, Clear, Launch


@dataclass(frozen=True, slots=True)
class Copy:
    """Copies `bytes` bytes between buffers; offsets are in bytes."""

    destination: int
    source: int
    bytes: int
    destination_offset: int = 0
    source_offset: int = 0


@dataclass(frozen=True, slots=True)
class Child:
    """Steps with their own numbering: their buffer i is this program's `buffers[i]`, a buffer
    number and an offset in bytes."""

    steps: tuple[Step, ...]
    buffers: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class While:
    """Runs `condition`, and as long as the byte at `predicate` is not zero `body` and `condition`
    again."""

    condition: tuple[Step, ...]
    predicate: Buf
    body: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class If:
    """Runs `then` if the byte at `predicate` is not zero, else `otherwise`."""

    predicate: Buf
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Switch:
    """Runs the branch that the int32 at `index`, clamped, names."""

    index: Buf
    branches: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Runs `body` `count` times; the int32 at `counter` holds 0, 1, ... meanwhile and `count`
    afterwards."""

    count: int
    counter: Buf
    body: tuple[Step, ...]


Step: TypeAlias = Launch | Clear | Copy | Child | While | If | Switch | Repeat

_LONGEST_UNROLLED = 4096


@dataclass(frozen=True, slots=True)
class Memory:
    """Where a buffer of a program is."""

    address: int
    bytes: int


class Executable:
    """A program bound to addresses, ready to be launched again and again.

    The memory behind `buffers` must stay where it is; `owners` keeps it alive. Launches of one
    executable from several threads are the caller's to serialise.
    """

    def __init__(
        self,
        driver: Driver,
        steps: Sequence[Step],
        buffers: Sequence[Memory],
        pool: Pool,
        owners: Sequence[Any] = (),
        conditional_nodes: bool | None = None,
    ) -> None:
        self._driver = driver
        self._owners = tuple(owners)
        if conditional_nodes is None:
            conditional_nodes = driver.info.conditional_nodes
        work = _bind(driver, steps, buffers)
        need = max((p.scratch_bytes for p in work.prepared), default=0)
        # Steps run one after another, so one piece of scratch memory serves all of them.
        self._scratch: Block | None = pool.alloc(need, "kernel scratch") if need else None
        scratch = self._scratch.address if self._scratch is not None else 0
        for prepared, addresses in zip(work.prepared, work.addresses, strict=True):
            prepared.bind(addresses, scratch)
        self._prepared = work.prepared
        self._parts: list[_Part] = []
        self._closed = False
        try:
            for part in _split(work.actions, conditional_nodes):
                self._parts.append(_Part(driver, part))
        except BaseException:
            self.close()
            raise
        self._only = self._parts[0].graph if len(self._parts) == 1 else None

    @property
    def parts(self) -> int:
        """The number of graphs and host decisions that a launch takes."""
        return len(self._parts)

    def launch(self, stream: Stream | None = None) -> None:
        """Enqueues the program on a stream (compute by default); with host decisions in it, waits
        for what they depend on."""
        stream = self._driver.compute if stream is None else stream
        if self._only is not None:
            self._driver.launch_graph(self._only, stream)
            return
        if self._closed:
            raise RuntimeError("the executable is closed")
        for part in self._parts:
            part.run(stream)

    def close(self) -> None:
        """Destroys the graphs; nothing may be running."""
        for part in self._parts:
            part.close()
        self._parts.clear()
        self._only = None
        self._closed = True

    def __del__(self) -> None:
        if getattr(self, "_parts", None):
            try:
                self._driver.synchronize()
                self.close()
            except Exception:  # the driver is already shutting down
                return


# Steps with addresses: what is left of buffer numbers after binding.


@dataclass(frozen=True, slots=True)
class _Run:
    prepared: Prepared


@dataclass(frozen=True, slots=True)
class _Zero:
    address: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Write:
    """Sets one int32."""

    address: int
    value: int


@dataclass(frozen=True, slots=True)
class _Move:
    destination: int
    source: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Decide:
    """Control flow: `kind` is "while", "if", "switch" or "repeat"; `first` runs before every
    decision."""

    kind: str
    address: int
    limit: int
    first: tuple[_Action, ...]
    branches: tuple[tuple[_Action, ...], ...]


_Action: TypeAlias = _Run | _Zero | _Write | _Move | _Decide


@dataclass(slots=True)
class _Work:
    actions: tuple[_Action, ...]
    prepared: Sequence[Prepared]
    addresses: list[list[int]]


def _bind(driver: Driver, steps: Sequence[Step], buffers: Sequence[Memory]) -> _Work:
    launches: list[Launch] = []
    addresses: list[list[int]] = []
    _collect(steps, list(buffers), launches, addresses)
    prepared = driver.prepare(launches)
    queue = iter(prepared)
    return _Work(_actions(steps, list(buffers), queue), prepared, addresses)


def _inner(step: Step) -> tuple[tuple[Step, ...], ...]:
    """The bodies of a step, in the order in which their launches are numbered."""
    if isinstance(step, While):
        return step.condition, step.body
    if isinstance(step, If):
        return step.then, step.otherwise
    if isinstance(step, Switch):
        return step.branches
    if isinstance(step, Repeat):
        return (step.body,)
    return ()


def _collect(
    steps: Sequence[Step],
    memory: list[Memory],
    launches: list[Launch],
    addresses: list[list[int]],
) -> None:
    where = [m.address for m in memory]
    for step in steps:
        if isinstance(step, Launch):
            launches.append(step)
            addresses.append(where)
        elif isinstance(step, Child):
            _collect(step.steps, _child_memory(step, memory), launches, addresses)
        else:
            for body in _inner(step):
                _collect(body, memory, launches, addresses)


def _child_memory(step: Child, memory: list[Memory]) -> list[Memory]:
    return [
        Memory(memory[index].address + offset, memory[index].bytes - offset)
        for index, offset in step.buffers
    ]


def _actions(
    steps: Sequence[Step], memory: list[Memory], queue: Iterator[Prepared]
) -> tuple[_Action, ...]:
    actions: list[_Action] = []

    def place(buffer: Buf, size: int) -> int:
        if buffer.offset + size > memory[buffer.index].bytes:
            raise ValueError(f"{buffer} lies outside its {memory[buffer.index].bytes} bytes")
        return memory[buffer.index].address + buffer.offset

    for step in steps:
        if isinstance(step, Launch):
            actions.append(_Run(next(queue)))
        elif isinstance(step, Clear):
            held = memory[step.buffer]
            actions.append(_Zero(held.address, held.bytes))
        elif isinstance(step, Copy):
            target = place(Buf(step.destination, "u8", step.destination_offset), step.bytes)
            source = place(Buf(step.source, "u8", step.source_offset), step.bytes)
            actions.append(_Move(target, source, step.bytes))
        elif isinstance(step, Child):
            actions += _actions(step.steps, _child_memory(step, memory), queue)
        else:
            bodies = [_actions(body, memory, queue) for body in _inner(step)]
            actions += _decision(step, bodies, place)
    return tuple(actions)


def _decision(
    step: While | If | Switch | Repeat,
    bodies: list[tuple[_Action, ...]],
    place: Callable[[Buf, int], int],
) -> list[_Action]:
    if isinstance(step, While):
        return [_Decide("while", place(step.predicate, 1), 0, bodies[0], (bodies[1],))]
    if isinstance(step, If):
        return [_Decide("if", place(step.predicate, 1), 0, (), tuple(bodies))]
    if isinstance(step, Switch):
        return [_Decide("switch", place(step.index, 4), len(bodies), (), tuple(bodies))]
    counter = place(step.counter, 4)
    # Every decision increases the counter first, so the first iteration sees zero.
    return [_Write(counter, -1), _Decide("repeat", counter, step.count, (), (bodies[0],))]


def _split(
    actions: Sequence[_Action], conditional_nodes: bool
) -> Iterator[list[_Action] | _Decide]:
    """Runs of actions that one graph can hold, and the decisions left to the host."""
    if conditional_nodes:
        yield list(actions)
        return
    run: list[_Action] = []
    for action in _unrolled(actions):
        if isinstance(action, _Decide):
            if run:
                yield run
            yield action
            run = []
        else:
            run.append(action)
    if run:
        yield run


def _unrolled(actions: Sequence[_Action]) -> Iterator[_Action]:
    for action in actions:
        if not (isinstance(action, _Decide) and action.kind == "repeat"):
            yield action
            continue
        body = list(_unrolled(action.branches[0]))
        if len(body) * action.limit > _LONGEST_UNROLLED or any(
            isinstance(a, _Decide) for a in body
        ):
            yield action
            continue
        for i in range(action.limit):
            yield _Write(action.address, i)
            yield from body
        yield _Write(action.address, action.limit)


class _Part:
    """One graph, or one decision that the host makes."""

    def __init__(self, driver: Driver, content: list[_Action] | _Decide) -> None:
        self._driver = driver
        self.graph: Graph | None = None
        self._decision: _Decide | None = None
        self._first: list[_Part] = []
        self._branches: list[list[_Part]] = []
        if isinstance(content, _Decide):
            self._decision = content
            self._first = [_Part(driver, p) for p in _split(content.first, False)]
            self._branches = [
                [_Part(driver, p) for p in _split(branch, False)] for branch in content.branches
            ]
        else:
            self.graph = _capture(driver, content)

    def run(self, stream: Stream) -> None:
        if self._decision is None:
            self._driver.launch_graph(self.graph, stream)
            return
        decision = self._decision
        if decision.kind == "repeat":
            for i in range(decision.limit):
                self._driver.fill_words(decision.address, i, 1, stream)
                self._run_branch(0, stream)
            self._driver.fill_words(decision.address, decision.limit, 1, stream)
        elif decision.kind == "switch":
            chosen = self._read(decision.address, 4, stream)
            self._run_branch(min(max(chosen, 0), decision.limit - 1), stream)
        elif decision.kind == "if":
            self._run_branch(int(self._read(decision.address, 1, stream) == 0), stream)
        else:
            while True:
                for part in self._first:
                    part.run(stream)
                if self._read(decision.address, 1, stream) == 0:
                    return
                self._run_branch(0, stream)

    def _run_branch(self, chosen: int, stream: Stream) -> None:
        for part in self._branches[chosen]:
            part.run(stream)

    def _read(self, address: int, size: int, stream: Stream) -> int:
        place = ctypes.create_string_buffer(size)
        self._driver.copy(ctypes.addressof(place), address, size, stream)
        self._driver.synchronize(stream)
        return int.from_bytes(place.raw, "little", signed=True)

    def close(self) -> None:
        if self.graph is not None:
            self._driver.destroy_graph(self.graph)
            self.graph = None
        for part in [*self._first, *(p for branch in self._branches for p in branch)]:
            part.close()


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


def _record(driver: Driver, actions: Sequence[_Action], stream: Stream) -> None:
    for action in actions:
        if isinstance(action, _Run):
            action.prepared.launch(stream)
        elif isinstance(action, _Zero):
            driver.fill(action.address, 0, action.bytes, stream)
        elif isinstance(action, _Write):
            driver.fill_words(action.address, action.value, 1, stream)
        elif isinstance(action, _Move):
            driver.copy(action.destination, action.source, action.bytes, stream)
        else:
            _record_decision(driver, action, stream)


def _record_decision(driver: Driver, decision: _Decide, stream: Stream) -> None:
    loops = decision.kind in ("while", "repeat")
    condition = driver.new_condition(stream)

    def decide(on: Stream) -> None:
        _record(driver, decision.first, on)
        if decision.kind == "repeat":
            driver.set_condition(on, condition, decision.address, "count", decision.limit)
        elif decision.kind == "switch":
            driver.set_condition(on, condition, decision.address, "index", decision.limit)
        else:
            driver.set_condition(on, condition, decision.address, "flag", 2)

    decide(stream)
    branches = list(decision.branches)
    if decision.kind == "if" and not branches[1]:
        branches.pop()
    kind = "while" if loops else decision.kind
    assert kind in ("while", "if", "switch")
    streams = driver.add_conditional(stream, condition, kind, len(branches))
    ended = 0
    try:
        for body, inner in zip(branches, streams, strict=True):
            _record(driver, body, inner)
            if loops:
                decide(inner)
            driver.end_branch(inner)
            ended += 1
    except BaseException:
        for inner in streams[ended:]:
            driver.abandon_capture(inner)
            driver.destroy_stream(inner)
        raise
