"""Steps over numbered buffers: what the compiler schedules, and `graph.py` captures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from genesis_fn.backends.cuda.lowerings.call import Exchange, HostCall
from genesis_fn.kernels.plan import BufferArg, Launch, LibraryCall, Memset


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
    """Steps with a numbering of their own: buffer i of theirs is `buffers[i]` of the program around
    them, as (buffer number, offset in bytes). `reached` are buffers that the steps access through
    addresses stored in memory (tables of pointers)."""

    steps: tuple[Step, ...]
    buffers: tuple[tuple[int, int], ...]
    reached: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class While:
    """Runs `condition`; while the byte at `predicate` is not zero, runs `body` and `condition`."""

    condition: tuple[Step, ...]
    predicate: BufferArg
    body: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Switch:
    """Runs branch number `index`, an int32 that is clamped to the branches there are."""

    index: BufferArg
    branches: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True, slots=True)
class ForLoop:
    """Runs `count` iterations, of which `body` has `many` and `count` is a multiple. The int32 at
    `counter` is the number of the first of them, those behind it are the numbers that follow; in
    the end it is `count`."""

    count: int
    counter: BufferArg
    body: tuple[Step, ...]
    many: int = 1


@dataclass(frozen=True, slots=True)
class HostStep:
    """The host computes `call`: it reads operands from buffers (None for an operand that is a
    number) and writes results to buffers."""

    call: HostCall
    reads: tuple[int | None, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Collective:
    """The processes of a group exchange: each reads its operand from buffer `source`, and gets its
    result in buffer `destination`, which may be the same. `name` is what errors call it."""

    exchange: Exchange
    source: int
    destination: int
    name: str


@dataclass(frozen=True, slots=True)
class Collectives:
    """Several of them in one launch, which runs on until the `Join` of its number."""

    members: tuple[Collective, ...]
    number: int


@dataclass(frozen=True, slots=True)
class Join:
    """Waits for the collectives of that number."""

    number: int


@dataclass(frozen=True, slots=True)
class SetInteger:
    """Sets the int32 in buffer `destination`."""

    destination: int
    value: int


Step: TypeAlias = (
    Launch
    | LibraryCall
    | Memset
    | Copy
    | SubProgram
    | While
    | Switch
    | ForLoop
    | HostStep
    | Collective
    | Collectives
    | Join
    | SetInteger
)


def has_host(step: Step) -> bool:
    """Whether a step contains a host computation, a library's routine that no graph may contain, or
    a collective under the host's control flow."""
    if isinstance(step, SubProgram):
        return any(map(has_host, step.steps))
    if isinstance(step, LibraryCall):
        return not step.routine.captured
    inner = [s for body in bodies(step) for s in body]
    return isinstance(step, HostStep) or any(
        has_host(s) or isinstance(s, (Collective, Collectives)) for s in inner
    )


def launches(steps: Iterable[Step]) -> int:
    """How many nodes of a graph steps are, those of loops and branches counted once."""
    count = 0
    for step in steps:
        if isinstance(step, SubProgram):
            count += launches(step.steps)
        else:
            count += 1 + sum([launches(body) for body in bodies(step)])
    return count


def renumbered(step: Step, by: Mapping[int, int]) -> Step:
    """`step` with other buffers in place of those in `by`. Launches and calls of libraries stand in
    subprograms, whose own numbers stay."""

    def at(b: int) -> int:
        return by.get(b, b)

    def argument(a: BufferArg) -> BufferArg:
        return replace(a, index=at(a.index))

    moved = [tuple([renumbered(s, by) for s in body]) for body in bodies(step)]
    match step:
        case SubProgram():
            buffers = tuple([(at(b), offset) for b, offset in step.buffers])
            return replace(step, buffers=buffers, reached=tuple(map(at, step.reached)))
        case While():
            predicate = argument(step.predicate)
            return replace(step, condition=moved[0], predicate=predicate, body=moved[1])
        case Switch():
            return replace(step, index=argument(step.index), branches=tuple(moved))
        case ForLoop():
            return replace(step, counter=argument(step.counter), body=moved[0])
        case HostStep():
            reads = tuple([None if b is None else at(b) for b in step.reads])
            return replace(step, reads=reads, writes=tuple(map(at, step.writes)))
        case Copy() | Collective():
            return replace(step, destination=at(step.destination), source=at(step.source))
        case Collectives():
            members = [
                replace(m, destination=at(m.destination), source=at(m.source)) for m in step.members
            ]
            return replace(step, members=tuple(members))
        case Memset():
            return replace(step, buffer=at(step.buffer))
        case SetInteger():
            return replace(step, destination=at(step.destination))
        case _:
            return step


def exchanged_buffers(steps: Sequence[Step]) -> Iterator[int]:
    """The buffers that collectives read, those within control flow too."""
    for step in steps:
        if isinstance(step, (Collective, Collectives)):
            yield from [m.source for m in members(step)]
        elif isinstance(step, SubProgram):
            yield from [step.buffers[b][0] for b in exchanged_buffers(step.steps)]
        for body in bodies(step):
            yield from exchanged_buffers(body)


def members(step: Collective | Collectives) -> tuple[Collective, ...]:
    """The collectives of one launch."""
    return step.members if isinstance(step, Collectives) else (step,)


def bodies(step: Step) -> tuple[tuple[Step, ...], ...]:
    """The steps within control flow, by condition, body or branch."""
    if isinstance(step, While):
        return step.condition, step.body
    if isinstance(step, Switch):
        return step.branches
    return (step.body,) if isinstance(step, ForLoop) else ()
