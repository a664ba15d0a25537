"""The time of each kernel of a program: its steps one by one, with events between them.

The device is kept busy with fills while the host enqueues, so that a step's time does not contain
the host's; the time that an event itself takes is measured and taken off. A loop or branch is one
piece, as is what the host computes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from genesis_fn.backends.cuda.run.graph import Copy, Direct, ForLoop, Memory, SubProgram, captured
from genesis_fn.backends.cuda.run.runtime import Runtime
from genesis_fn.compiler.target import Target
from genesis_fn.kernels.plan import Launch, Memset

_HOLD_BYTES = 64 << 20
_HOLD_SECONDS = 15e-6  # what one fill of so many bytes takes at least
_HOST_SECONDS = 12e-6  # what enqueueing one piece takes at most
_EVENTS = 16


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel, copy, fill, loop or host computation; times are seconds from the start."""

    name: str
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """The kernels of one step of the program, with its traffic in bytes and its operations."""

    name: str
    lines: tuple[str, ...]
    traffic: int
    operations: int
    kernels: tuple[Kernel, ...]

    @property
    def seconds(self) -> float:
        """The time of all its kernels."""
        return sum([k.seconds for k in self.kernels])


@dataclass(frozen=True, slots=True)
class Measurements:
    """`seconds` of the whole program as it runs, its steps in order, and the GPU that it ran on."""

    seconds: float
    steps: tuple[Step, ...]
    target: Target


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one measurement runs, and the item of the program that it belongs to."""

    name: str
    item: int
    run: Callable[[], None]
    on_device: bool


def measured(
    place: Runtime,
    items: Sequence[Any],
    memory: Sequence[Memory],
    owners: Sequence[Any],
    repeats: int,
) -> tuple[Step, ...]:
    """The steps of a program, each kernel with the least time of `repeats` runs."""
    pieces = _pieces(place, items, memory, owners)
    least = [min(times) for times in zip(*[_run(place, pieces) for _ in range(repeats)])]
    kernels: list[list[Kernel]] = [[] for _ in items]
    now = 0.0
    for piece, seconds in zip(pieces, least):
        kernels[piece.item].append(Kernel(piece.name, now, seconds))
        now += seconds
    return tuple([_described(item, tuple(ks)) for item, ks in zip(items, kernels) if ks])


def elapsed(place: Runtime, run: Callable[[], Any]) -> float:
    """Seconds of the device between the start and the end of what `run` enqueues."""
    driver = place.driver
    start, end = driver.new_event(timing=True), driver.new_event(timing=True)
    driver.record(start, driver.compute)
    run()
    driver.record(end, driver.compute)
    place.synchronize()
    seconds = driver.elapsed(start, end) * 1e-3
    driver.destroy_event(start)
    driver.destroy_event(end)
    return seconds


def _described(item: Any, kernels: tuple[Kernel, ...]) -> Step:
    d = item.described
    if d is None:
        moved = sum([2 * s.bytes for s in item.steps if isinstance(s, Copy)])
        return Step("copy", (), moved, 0, kernels)
    return Step(d.name, tuple(d.lines), d.traffic, d.operations, kernels)


def _pieces(
    place: Runtime, items: Sequence[Any], memory: Sequence[Memory], owners: Sequence[Any]
) -> list[_Piece]:
    alone: list[Any] = []
    pieces: list[_Piece] = []
    for n, item in enumerate(items):
        for step in item.steps:
            inner = step.steps if isinstance(step, SubProgram) else (step,)
            for s in inner:
                number = len(alone)
                if isinstance(s, (Launch, Memset, Copy)):
                    run = lambda number=number: direct.launch(number)
                    alone.append(replace(step, steps=(s,)) if isinstance(step, SubProgram) else s)
                    pieces.append(_Piece(_name(s), n, run, True))
                else:
                    run = captured(place, [s], memory, owners).launch
                    pieces.append(_Piece(_name(s), n, run, False))
    direct = Direct(place, alone, memory)
    assert len(direct) == len(alone)
    return pieces


def _name(step: Any) -> str:
    if isinstance(step, Launch):
        return getattr(step.kernel, "__name__", "") or getattr(step.kernel, "name", "kernel")
    return {Memset: "fill", ForLoop: "repeat"}.get(type(step), type(step).__name__.lower())


def _run(place: Runtime, pieces: Sequence[_Piece]) -> list[float]:
    """Seconds of each piece in one run."""
    idle = _event_seconds(place)
    times: list[float] = []
    n = 0
    while n < len(pieces):
        end = n
        while end < len(pieces) and pieces[end].on_device:
            end += 1
        if end > n:
            times += [max(t - idle, 0.0) for t in _gaps(place, [p.run for p in pieces[n:end]])]
            n = end
        else:
            place.synchronize()
            began = time.perf_counter()
            pieces[n].run()
            place.synchronize()
            times.append(time.perf_counter() - began)
            n += 1
    return times


def _gaps(place: Runtime, runs: Sequence[Callable[[], Any]]) -> list[float]:
    """The device's seconds for each of several pieces of work, enqueued one after another."""
    driver = place.driver
    events = [driver.new_event(timing=True) for _ in range(len(runs) + 1)]
    if not driver.info.target.interpreted:
        block = place.alloc(_HOLD_BYTES, "profiling")
        for _ in range(4 + int(len(runs) * _HOST_SECONDS / _HOLD_SECONDS)):
            driver.fill(block.address, 0, block.bytes, driver.compute)
    driver.record(events[0], driver.compute)
    for run, event in zip(runs, events[1:]):
        run()
        driver.record(event, driver.compute)
    place.synchronize()
    found = [driver.elapsed(a, b) * 1e-3 for a, b in zip(events, events[1:])]
    for event in events:
        driver.destroy_event(event)
    return found


def _event_seconds(place: Runtime) -> float:
    """What recording an event takes on the device."""
    return statistics.median(_gaps(place, [lambda: None] * _EVENTS))
