"""The time of each kernel of a program, run one by one with events between them.

The device is kept busy with fills while the host enqueues, so that no kernel's time contains time
of the host's; the time of an event itself is measured and subtracted. A loop or a branch is
measured as a whole, as is a host computation.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from genesis_fn.backends.cuda.run.graph import BufferAddress, UncapturedSteps, capture_program
from genesis_fn.backends.cuda.run.runtime import Runtime
from genesis_fn.backends.cuda.run.steps import (
    Collective,
    Collectives,
    Copy,
    ForLoop,
    HostStep,
    Join,
    SetInteger,
    SubProgram,
    has_host,
)
from genesis_fn.compiler.target import Target
from genesis_fn.kernels.plan import Launch, LibraryCall, Memset

_HOLD_BYTES = 64 << 20
_HOLD_SECONDS = 15e-6  # what one fill of so many bytes takes at least
_HOST_SECONDS = 12e-6  # what enqueueing one piece takes at most
_EVENTS = 16


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """One kernel, copy, fill, loop or host computation; times are seconds from the start."""

    name: str
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """The kernels of one step of the program, with its traffic in bytes and its operations."""

    name: str
    lines: tuple[str, ...]
    traffic: int
    operations: int
    kernels: tuple[MeasuredKernel, ...]

    @property
    def seconds(self) -> float:
        """The time of all its kernels."""
        return sum([k.seconds for k in self.kernels])


@dataclass(frozen=True, slots=True)
class Measurements:
    """`seconds` of the whole program run as one graph, its steps in order, and the GPU."""

    seconds: float
    steps: tuple[MeasuredStep, ...]
    target: Target


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one measurement runs, and the number of the scheduled step that it belongs to."""

    name: str
    item: int
    run: Callable[[], None]
    on_device: bool


def measured(
    runtime: Runtime,
    items: Sequence[Any],
    memory: Sequence[BufferAddress],
    owners: Sequence[Any],
    repeats: int,
    restore: Callable[[], None],
) -> tuple[MeasuredStep, ...]:
    """The steps of a program, each kernel with the least time of `repeats` runs. Before each run
    `restore` enqueues what gives inputs that results overwrite their values back."""
    pieces = _pieces(runtime, items, memory, owners)
    runs = []
    for _ in range(repeats):
        restore()
        runs.append(_run(runtime, pieces))
    least = [min(times) for times in zip(*runs)]
    kernels: list[list[MeasuredKernel]] = [[] for _ in items]
    now = 0.0
    for piece, seconds in zip(pieces, least):
        kernels[piece.item].append(MeasuredKernel(piece.name, now, seconds))
        now += seconds
    return tuple([_described(item, tuple(ks)) for item, ks in zip(items, kernels) if ks])


def elapsed(runtime: Runtime, run: Callable[[], Any]) -> float:
    """Seconds on the device between the start and the end of what `run` enqueues."""
    driver = runtime.driver
    start, end = driver.new_event(timing=True), driver.new_event(timing=True)
    driver.record(start, driver.compute)
    run()
    driver.record(end, driver.compute)
    runtime.synchronize()
    seconds = driver.elapsed(start, end) * 1e-3
    driver.destroy_event(start)
    driver.destroy_event(end)
    return seconds


def _described(item: Any, kernels: tuple[MeasuredKernel, ...]) -> MeasuredStep:
    d = item.summary
    if d is None:
        moved = sum([2 * s.bytes for s in item.steps if isinstance(s, Copy)])
        return MeasuredStep("copy", (), moved, 0, kernels)
    return MeasuredStep(d.name, tuple(d.lines), d.traffic, d.operations, kernels)


def _pieces(
    runtime: Runtime, items: Sequence[Any], memory: Sequence[BufferAddress], owners: Sequence[Any]
) -> list[_Piece]:
    alone: list[Any] = []
    pieces: list[_Piece] = []
    for n, item in enumerate(items):
        for step in item.steps:
            inner = step.steps if isinstance(step, SubProgram) else (step,)
            for s in inner:
                number = len(alone)
                if isinstance(s, Join):  # one by one, steps are in order
                    continue
                one = replace(step, steps=(s,)) if isinstance(step, SubProgram) else s
                if isinstance(s, _ON_DEVICE) and not has_host(s):
                    run = lambda number=number: direct.launch(number)
                    alone.append(one)
                    pieces.append(_Piece(_name(s), n, run, True))
                else:
                    run = capture_program(runtime, [one], memory, owners).launch
                    pieces.append(_Piece(_name(s), n, run, False))
    direct = UncapturedSteps(runtime, alone, memory)
    assert len(direct) == len(alone)
    return pieces


_ON_DEVICE = Launch, LibraryCall, Memset, Copy, Collective, Collectives, SetInteger


def _name(step: Any) -> str:
    if isinstance(step, LibraryCall):
        return type(step.routine).__name__.lower()
    if isinstance(step, Launch):
        return getattr(step.kernel, "__name__", "") or getattr(step.kernel, "name", "kernel")
    names = {Memset: "fill", SetInteger: "fill", ForLoop: "repeat", HostStep: "host"}
    return names.get(type(step), type(step).__name__.lower())


def _run(runtime: Runtime, pieces: Sequence[_Piece]) -> list[float]:
    """Seconds of each piece in one run."""
    # Two events with nothing between them still take time: it is subtracted from each kernel's.
    idle = _event_seconds(runtime)
    times: list[float] = []
    n = 0
    while n < len(pieces):
        end = n
        while end < len(pieces) and pieces[end].on_device:
            end += 1
        if end > n:
            times += [max(t - idle, 0.0) for t in _gaps(runtime, [p.run for p in pieces[n:end]])]
            n = end
        else:
            runtime.synchronize()
            began = time.perf_counter()
            pieces[n].run()
            runtime.synchronize()
            times.append(time.perf_counter() - began)
            n += 1
    return times


def _gaps(runtime: Runtime, runs: Sequence[Callable[[], Any]]) -> list[float]:
    """The device's seconds for each of several pieces of work, enqueued one after another."""
    driver = runtime.driver
    events = [driver.new_event(timing=True) for _ in range(len(runs) + 1)]
    if not driver.info.target.interpreted:
        block = runtime.alloc(_HOLD_BYTES, "profiling")
        # The fills take longer than enqueueing all pieces, so the device never waits for the host.
        for _ in range(4 + int(len(runs) * _HOST_SECONDS / _HOLD_SECONDS)):
            driver.fill(block.address, 0, block.bytes, driver.compute)
    driver.record(events[0], driver.compute)
    for run, event in zip(runs, events[1:]):
        run()
        driver.record(event, driver.compute)
    runtime.synchronize()
    found = [driver.elapsed(a, b) * 1e-3 for a, b in zip(events, events[1:])]
    for event in events:
        driver.destroy_event(event)
    return found


def _event_seconds(runtime: Runtime) -> float:
    """What recording an event takes on the device."""
    return statistics.median(_gaps(runtime, [lambda: None] * _EVENTS))
