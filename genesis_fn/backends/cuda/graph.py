"""Programs: ordered steps over numbered buffers, captured into one graph and relaunched.

Steps are launches, clears, copies, programs within programs, and control flow decided by device
memory. Where the driver has conditional nodes, the whole program is one graph. Where it has none,
loops of a known length are unrolled into the graph; what depends on values splits it, and the host
reads the predicate between the parts.

With one lane a graph is the chain of its steps. With more, a step waits for those alone whose
memory it touches (`hazards`), and as many steps as there are lanes may run at once.

With programmatic launches a kernel that waits for one other kernel is started before that one has
ended, and waits on the device. That is all it needs to wait for: every kernel that is started early
waits for the whole of the one before it ahead of touching memory, so when a kernel has ended,
everything that it had to wait for has ended too, and its memory can be seen.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from genesis_fn.backends.cuda.driver import (
    Condition,
    ConditionalKind,
    Driver,
    Graph,
    PredicateMode,
    Prepared,
    Recorded,
    Stream,
)
from genesis_fn.backends.cuda.hazards import Range, Touched, predecessors, union
from genesis_fn.backends.cuda.memory import Block, Pool
from genesis_fn.kernels.launch import Buf, Clear, Descriptor, Launch, Scalar


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
    number and an offset in bytes.

    Of them those in `written` are written (None: any may be), the others only read, or written in
    a way that needs no order. `reads` and `writes` are buffers of this program that the steps reach
    through addresses in memory.
    """

    steps: tuple[Step, ...]
    buffers: tuple[tuple[int, int], ...]
    written: tuple[int, ...] | None = None
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()


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
_SCRATCH_ALIGNMENT = 512
_SCRATCHES = 4  # pieces of scratch memory for each lane, so that it seldom orders launches


@dataclass(frozen=True, slots=True)
class Memory:
    """Where a buffer of a program is."""

    address: int
    bytes: int

    @property
    def range(self) -> Range:
        """[first address, address after the last)."""
        return self.address, self.address + self.bytes


@dataclass(frozen=True, slots=True)
class Overlap:
    """What of a program may run at once: up to `lanes` steps, and with `programmatic` the start of
    a kernel beside the end of the one before it."""

    lanes: int = 1
    programmatic: bool = False


_NO_OVERLAP = Overlap()


def _started_early(launch: Launch) -> Launch:
    """The launch as one that may start while the one before it ends; kernels that do something
    before they wait for that one are told so by constants called EARLY, EARLY_0, ..."""
    told = {name: True for name in launch.constants if name.startswith("EARLY")}
    return replace(launch, programmatic=True, constants={**launch.constants, **told})


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
        overlap: Overlap = _NO_OVERLAP,
    ) -> None:
        self._driver = driver
        self._owners = tuple(owners)
        if conditional_nodes is None:
            conditional_nodes = driver.info.target.conditional_nodes
        # Launches own the modules with their code, which a graph does not keep from being unloaded.
        actions, self._launches, self._scratch = _bound(driver, steps, buffers, pool, overlap)
        self._parts: list[_Part] = []
        self._closed = False
        try:
            for part in _split(actions, conditional_nodes):
                self._parts.append(_Part(driver, part, overlap.lanes))
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


class Direct:
    """Kernels, copies and fills bound to addresses and enqueued one by one, without a graph."""

    def __init__(
        self, driver: Driver, steps: Sequence[Step], buffers: Sequence[Memory], pool: Pool
    ) -> None:
        self._driver = driver
        bound = _bound(driver, steps, buffers, pool, _NO_OVERLAP)
        self._actions, _, self._scratch = bound

    def __len__(self) -> int:
        return len(self._actions)

    def launch(self, number: int) -> None:
        """Enqueue one of them on the compute stream."""
        action = self._actions[number]
        if not (isinstance(action, _Run) and action.empty):
            action.record(self._driver, self._driver.compute, 1)  # type: ignore[union-attr]


# Steps with addresses: what is left of buffer numbers after binding.


def _bound(
    driver: Driver, steps: Sequence[Step], buffers: Sequence[Memory], pool: Pool, overlap: Overlap
) -> tuple[tuple[_Action, ...], Sequence[Prepared], Block | None]:
    """(the steps at the addresses of `buffers`, their launches, the scratch memory of those)."""
    launches: list[_Bound] = []
    _collect(steps, list(buffers), _OUTERMOST, launches)
    wanted = [b.launch for b in launches]
    if overlap.programmatic:
        wanted = [_started_early(launch) for launch in wanted]
    made = driver.prepare(wanted)
    need = max((p.scratch_bytes for p in made), default=0)
    need = -(-need // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT
    # Steps of a chain share one piece of scratch memory.
    pieces = 1 if overlap.lanes == 1 else overlap.lanes * _SCRATCHES
    held = pool.alloc(pieces * need, "kernel scratch") if need else None
    runs: list[_Action] = []
    for n, (bound, prepared) in enumerate(zip(launches, made, strict=True)):
        scratch, touched = 0, bound.touched
        if held is not None and prepared.scratch_bytes:
            scratch = held.address + n % pieces * need
            touched = union([touched, Touched((), ((scratch, scratch + need),))])
        prepared.bind(bound.addresses, scratch, (*bound.touched.reads, *bound.touched.writes))
        runs.append(_Run(prepared, touched, 0 in bound.launch.grid))
    return _actions(steps, list(buffers), iter(runs)), made, held


@dataclass(frozen=True, slots=True)
class _Run:
    """A prepared launch."""

    prepared: Prepared
    touched: Touched
    empty: bool = False  # no programs: nothing is recorded

    def record(self, driver: Driver, stream: Stream, lanes: int) -> None:
        self.prepared.launch(stream, early=False)

    def record_after_kernel(self, stream: Stream) -> None:
        """As `record`, where all that this one waits for is a kernel."""
        self.prepared.launch(stream)


@dataclass(frozen=True, slots=True)
class _Zero:
    """Clears bytes."""

    address: int
    bytes: int

    @property
    def touched(self) -> Touched:
        return Touched((), ((self.address, self.address + self.bytes),))

    def record(self, driver: Driver, stream: Stream, lanes: int) -> None:
        driver.fill(self.address, 0, self.bytes, stream)


@dataclass(frozen=True, slots=True)
class _Write:
    """Sets one int32."""

    address: int
    value: int

    @property
    def touched(self) -> Touched:
        return Touched((), ((self.address, self.address + 4),))

    def record(self, driver: Driver, stream: Stream, lanes: int) -> None:
        driver.fill_words(self.address, self.value, 1, stream)


@dataclass(frozen=True, slots=True)
class _Move:
    """Copies bytes on the device."""

    destination: int
    source: int
    bytes: int

    @property
    def touched(self) -> Touched:
        read = (self.source, self.source + self.bytes)
        return Touched((read,), ((self.destination, self.destination + self.bytes),))

    def record(self, driver: Driver, stream: Stream, lanes: int) -> None:
        driver.copy(self.destination, self.source, self.bytes, stream)


@dataclass(frozen=True, slots=True)
class _Decide:
    """Control flow: `kind` is "while", "if", "switch" or "repeat"; `first` runs before every
    decision."""

    kind: str
    address: int
    limit: int
    first: tuple[_Action, ...]
    branches: tuple[tuple[_Action, ...], ...]

    @property
    def predicate(self) -> Touched:
        """What a decision itself touches."""
        place = (self.address, self.address + (1 if self.kind in ("while", "if") else 4))
        return Touched((place,), (place,) if self.kind == "repeat" else ())

    @property
    def touched(self) -> Touched:
        inner = [a.touched for body in (self.first, *self.branches) for a in body]
        return union([self.predicate, *inner])


_Action: TypeAlias = _Run | _Zero | _Write | _Move | _Decide


@dataclass(frozen=True, slots=True)
class _Bound:
    """A launch with the addresses of its buffers and the memory that it touches."""

    launch: Launch
    addresses: list[int]
    touched: Touched


_OUTERMOST = Child((), ())


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
    steps: Sequence[Step], memory: list[Memory], within: Child, launches: list[_Bound]
) -> None:
    """Append the launches in `steps`, whose buffers are those of `within`, at `memory`."""
    where = [m.address for m in memory]
    for step in steps:
        if isinstance(step, Launch):
            launches.append(_Bound(step, where, _touched(step, memory, within)))
        elif isinstance(step, Child):
            inner: list[_Bound] = []
            _collect(step.steps, _child_memory(step, memory), step, inner)
            reached = Touched(
                tuple([memory[b].range for b in step.reads]),
                tuple([memory[b].range for b in step.writes]),
            )
            launches += [replace(b, touched=union([b.touched, reached])) for b in inner]
        else:
            for body in _inner(step):
                _collect(body, memory, within, launches)


def _touched(launch: Launch, memory: Sequence[Memory], within: Child) -> Touched:
    reads, writes = [], []
    for argument in launch.arguments.values():
        buffer = argument.buffer if isinstance(argument, Descriptor) else argument
        if not isinstance(buffer, Scalar):
            write = within.written is None or buffer.index in within.written
            (writes if write else reads).append(memory[buffer.index].range)
    return Touched(tuple(reads), tuple(writes))


def _child_memory(step: Child, memory: list[Memory]) -> list[Memory]:
    return [
        Memory(memory[index].address + offset, memory[index].bytes - offset)
        for index, offset in step.buffers
    ]


def _actions(
    steps: Sequence[Step], memory: list[Memory], queue: Iterator[_Action]
) -> tuple[_Action, ...]:
    actions: list[_Action] = []

    def place(buffer: Buf, size: int) -> int:
        if buffer.offset + size > memory[buffer.index].bytes:
            raise ValueError(f"{buffer} lies outside its {memory[buffer.index].bytes} bytes")
        return memory[buffer.index].address + buffer.offset

    for step in steps:
        if isinstance(step, Launch):
            actions.append(next(queue))
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

    def __init__(self, driver: Driver, content: list[_Action] | _Decide, lanes: int) -> None:
        self._driver = driver
        self.graph: Graph | None = None
        self._decision: _Decide | None = None
        self._first: list[_Part] = []
        self._branches: list[list[_Part]] = []
        if isinstance(content, _Decide):
            self._decision = content
            self._first = [_Part(driver, p, lanes) for p in _split(content.first, False)]
            self._branches = [
                [_Part(driver, p, lanes) for p in _split(branch, False)]
                for branch in content.branches
            ]
        else:
            self.graph = _capture(driver, content, lanes)

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


def _capture(driver: Driver, actions: Sequence[_Action], lanes: int) -> Graph:
    # A stream of its own: other threads may enqueue on the compute stream meanwhile.
    stream = driver.new_stream()
    try:
        driver.begin_capture(stream)
        try:
            _record(driver, actions, stream, lanes)
        except BaseException:
            driver.abandon_capture(stream)
            raise
        return driver.end_capture(stream)
    finally:
        driver.destroy_stream(stream)


@dataclass(frozen=True, slots=True)
class _Set:
    """Sets the condition of a decision from device memory."""

    condition: Condition
    mode: PredicateMode
    address: int
    limit: int
    touched: Touched

    def record(self, driver: Driver, stream: Stream, lanes: int) -> None:
        driver.set_condition(stream, self.condition, self.address, self.mode, self.limit)


@dataclass(frozen=True, slots=True)
class _Branch:
    """The conditional node: runs one of the bodies, or one again and again."""

    condition: Condition
    kind: ConditionalKind
    bodies: list[list[_Node]]
    touched: Touched

    def record(self, driver: Driver, stream: Stream, lanes: int) -> None:
        streams = driver.add_conditional(stream, self.condition, self.kind, len(self.bodies))
        ended = 0
        try:
            for body, inner in zip(self.bodies, streams, strict=True):
                _record(driver, body, inner, lanes)
                driver.end_branch(inner)
                ended += 1
        except BaseException:
            for inner in streams[ended:]:
                driver.abandon_capture(inner)
                driver.destroy_stream(inner)
            raise


_Node: TypeAlias = _Action | _Set | _Branch


def _record(driver: Driver, actions: Sequence[_Node], stream: Stream, lanes: int) -> None:
    """Records the actions on a capturing stream, each behind those that it must wait for."""
    nodes: list[_Node] = []
    for action in actions:
        if not (isinstance(action, _Run) and action.empty):
            nodes += _decided(driver, action, stream) if isinstance(action, _Decide) else [action]
    made: list[Recorded] = []
    for n, before in enumerate(predecessors([node.touched for node in nodes], lanes)):
        node = nodes[n]
        if lanes > 1:
            driver.record_after(stream, [made[p] for p in before])
        if isinstance(node, _Run) and len(before) == 1 and isinstance(nodes[before[0]], _Run):
            node.record_after_kernel(stream)
        else:
            node.record(driver, stream, lanes)  # type: ignore[union-attr]
        if lanes > 1:
            made.append(driver.recorded(stream))


def _decided(driver: Driver, decision: _Decide, stream: Stream) -> list[_Node]:
    """A decision as nodes: what sets its condition, and the node with the bodies."""
    condition = driver.new_condition(stream)
    modes: dict[str, PredicateMode] = {"repeat": "count", "switch": "index"}
    mode = modes.get(decision.kind, "flag")
    limit = 2 if mode == "flag" else decision.limit
    # The node comes after what sets its condition, as if it read bytes that only that one writes.
    number = 2 * next(_conditions)
    token = ((-number, 1 - number),)
    test = union([decision.predicate, Touched((), token)])
    setter = _Set(condition, mode, decision.address, limit, test)
    bodies: list[list[_Node]] = [list(branch) for branch in decision.branches]
    if decision.kind in ("while", "repeat"):
        kind: ConditionalKind = "while"
        bodies = [[*bodies[0], *decision.first, setter]]
    else:
        kind = "if" if decision.kind == "if" else "switch"
    if kind == "if" and not bodies[1]:
        bodies.pop()
    nodes: list[_Node] = []
    for action in decision.first:
        nodes += _decided(driver, action, stream) if isinstance(action, _Decide) else [action]
    branch = _Branch(condition, kind, bodies, union([decision.touched, Touched(token, ())]))
    return [*nodes, setter, branch]


_conditions = itertools.count(1)
