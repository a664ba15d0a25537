"""Which of a program's steps must wait for which: the edges of its graph.

Steps are given in an order in which they may run one after another. A step comes after another one
if one of them writes bytes that the other reads or writes; that includes memory that a later value
reuses. Steps are dealt to a number of lanes, each a chain, so that at most that many run at once.
Edges that follow from others are left out: for every step the last step of each lane that comes
before it is known, and with it everything earlier in that lane.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]  # addresses [start, stop)

_BANDWIDTH = 4e12  # bytes a second, of a recent data-centre GPU
_START = 2e-6  # seconds before a kernel has work on the whole device
# A lane is changed for a gain of more than this: an edge between lanes costs about a microsecond.
_SWITCH = 1.5e-6


@dataclass(frozen=True, slots=True)
class Touched:
    """The memory that a step reads and writes; empty ranges are allowed."""

    reads: tuple[Range, ...] = ()
    writes: tuple[Range, ...] = ()

    @property
    def seconds(self) -> float:
        """About how long the step takes: only compared with other steps."""
        return _START + sum([b - a for a, b in (*self.reads, *self.writes)]) / _BANDWIDTH


def union(parts: Sequence[Touched]) -> Touched:
    """What several steps touch, as one."""
    return Touched(
        _joined([r for p in parts for r in p.reads]), _joined([r for p in parts for r in p.writes])
    )


def _joined(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """The same bytes in as few ranges as possible."""
    result: list[Range] = []
    for start, stop in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = result[-1][0], max(stop, result[-1][1])
        elif start < stop:
            result.append((start, stop))
    return tuple(result)


def predecessors(steps: Sequence[Touched], lanes: int) -> list[tuple[int, ...]]:
    """For each step the earlier steps that it must wait for itself, latest first."""
    if lanes < 1:
        raise ValueError(f"a graph has at least one lane, not {lanes}")
    if lanes == 1:
        return [(n - 1,) if n else () for n in range(len(steps))]
    history = _History()
    lane_of: list[int] = []
    clocks: list[list[int]] = []
    finish: list[float] = []
    tails = [-1] * lanes
    result: list[tuple[int, ...]] = []
    for n, step in enumerate(steps):
        found = history.before(step)
        ready = max([finish[p] for p in found], default=0.0)
        lane = _lane(found, ready, tails, finish)
        tail = tails[lane]
        if tail >= 0:
            found.add(tail)
            ready = max(ready, finish[tail])
        clock = [-1] * lanes
        needed = []
        for p in sorted(found, reverse=True):
            if clock[lane_of[p]] < p:
                needed.append(p)
                clock = [max(a, b) for a, b in zip(clock, clocks[p])]
        clock[lane] = n
        history.note(step, n, lane)
        lane_of.append(lane)
        clocks.append(clock)
        finish.append(ready + step.seconds)
        tails[lane] = n
        result.append(tuple(needed))
    return result


def _lane(found: set[int], ready: float, tails: Sequence[int], finish: Sequence[float]) -> int:
    """The lane in which a step starts soonest, with a bias to one that it continues."""

    def cost(lane: int) -> tuple[float, float]:
        tail = tails[lane]
        end = finish[tail] if tail >= 0 else 0.0
        # Of lanes that are as good, the one that has been idle for the shortest time.
        return max(ready, end) + _SWITCH * (tail not in found), -end

    return min(range(len(tails)), key=cost)


@dataclass(slots=True)
class _Bytes:
    """What happened to a range of bytes: its last writer, and by lane the last reader since."""

    writer: int
    readers: dict[int, int]


class _History:
    """What happened to all memory so far: ranges without a gap, each from its start to the next
    one's."""

    def __init__(self) -> None:
        self._starts = [-(1 << 70)]
        self._bytes = [_Bytes(-1, {})]

    def before(self, step: Touched) -> set[int]:
        """The steps so far that a step must come after."""
        found: set[int] = set()
        for r in step.reads:
            found.update([b.writer for b in self._within(r)])
        for r in step.writes:
            for b in self._within(r):
                found.add(b.writer)
                found.update(b.readers.values())
        found.discard(-1)
        return found

    def note(self, step: Touched, n: int, lane: int) -> None:
        """Remember that step `n` in `lane` has run."""
        for start, stop in step.reads:
            if start < stop:
                first, last = self._cut(start), self._cut(stop)
                for b in self._bytes[first:last]:
                    b.readers[lane] = n
        for start, stop in step.writes:
            if start < stop:
                first, last = self._cut(start), self._cut(stop)
                self._starts[first:last] = [start]
                self._bytes[first:last] = [_Bytes(n, {})]

    def _within(self, r: Range) -> list[_Bytes]:
        start, stop = r
        if start >= stop:
            return []
        return self._bytes[bisect_right(self._starts, start) - 1 : bisect_left(self._starts, stop)]

    def _cut(self, at: int) -> int:
        """The number of the range that starts at `at`, after one was split there if need be."""
        k = bisect_left(self._starts, at)
        if k == len(self._starts) or self._starts[k] != at:
            held = self._bytes[k - 1]
            self._starts.insert(k, at)
            self._bytes.insert(k, _Bytes(held.writer, dict(held.readers)))
        return k


__all__ = ["Range", "Touched", "predecessors", "union"]
