"""Steps over numbered buffers: what the compiler schedules, and `graph.py` captures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    """Runs `body` `count` times. The int32 at `counter` is the iteration's number, and `count` in
    the end."""

    count: int
    counter: BufferArg
    body: tuple[Step, ...]


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
