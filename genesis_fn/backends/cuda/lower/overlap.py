"""Overlap: collectives run on a stream of their own, beside the kernels that need nothing of them.

A collective starts as early as its operand is there, and the compute stream waits for it as late as
its result is needed (`Join`). Two limits keep memory: what is gathered ahead of its use, and what
waits to be reduced, may take `_AHEAD` bytes, which is a layer of a large model or a few of a small.
Small ones of one kind that can start together are one launch, which costs what several hundred
kilobytes do. The order of collectives follows from the program alone, and is the same on every
process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from genesis_fn.backends.cuda.driver.communication import AllGather
from genesis_fn.backends.cuda.lower.horizontal_fusion import Accesses
from genesis_fn.backends.cuda.lower.steps import BufferTable, ScheduledStep, StepSummary
from genesis_fn.backends.cuda.run.graph import Collective, Collectives, Join
from genesis_fn.compiler.options import enabled

_AHEAD = 400 << 20
_TOGETHER = 100 << 20  # bytes that one launch sends: 25 took 166.4 ms a step, 100 163.0


@dataclass(slots=True)
class _Exchange:
    """The collective of item `at`: it starts before item `start`, and has ended before item
    `join`."""

    at: int
    step: Collective
    bytes: int
    sent: int
    start: int = 0
    join: int = 0

    @property
    def gathers(self) -> bool:
        """Whether its result is larger than its operand."""
        return isinstance(self.step.exchange.communication, AllGather)


def overlap_collectives(items: list[ScheduledStep], table: BufferTable) -> list[ScheduledStep]:
    """`items` in another order: collectives where they start, and joins where they must have
    ended."""
    found = [
        _Exchange(n, step, _bytes(item, table), table.bytes[step.source])
        for n, item in enumerate(items)
        for step in item.steps[-1:]
        if isinstance(step, Collective)
    ]
    if not found or not enabled("overlap"):
        return items
    _find_windows(items, found, table)
    _limit_gathers([x for x in found if x.gathers])
    _limit_reductions([x for x in found if not x.gathers])
    return _merged(items, _grouped(found))


def _find_windows(
    items: Sequence[ScheduledStep], found: Sequence[_Exchange], table: BufferTable
) -> None:
    """How far each collective may move: to behind the last step before it that it does not commute
    with, and as far as the first one after it."""
    accesses = [Accesses.by(item, table) for item in items]
    exchange = {x.at: x for x in found}

    def nearest(order: Iterable[int], beyond: int) -> dict[int, int]:
        """For each collective the nearest such step, of those that come before it in `order`."""
        read: dict[int, int] = {}
        written: dict[int, int] = {}
        result = {}
        near = max if beyond < 0 else min
        for n in order:
            if n in exchange:
                touched = [written.get(b, beyond) for b in accesses[n].reads | accesses[n].writes]
                touched += [read.get(b, beyond) for b in accesses[n].writes]
                result[n] = near(touched, default=beyond)
            read.update(dict.fromkeys(accesses[n].reads, n))
            written.update(dict.fromkeys(accesses[n].writes, n))
        return result

    before = nearest(range(len(items)), -1)
    after = nearest(range(len(items) - 1, -1, -1), len(items))
    for x in found:
        x.start, x.join = before[x.at] + 1, after[x.at]


def _bytes(item: ScheduledStep, table: BufferTable) -> int:
    return sum([table.bytes[b] for b in {*item.reads, *item.writes}])


def _limit_gathers(gathers: Sequence[_Exchange]) -> None:
    """Start a gather when those before it that are not yet used leave room for it."""
    for k, x in enumerate(gathers):
        held, j = x.bytes, k - 1
        while j >= 0 and held + gathers[j].bytes <= _AHEAD:
            held += gathers[j].bytes
            j -= 1
        if j >= 0:
            x.start = max(x.start, min(gathers[j].join, x.at))


def _limit_reductions(reductions: Sequence[_Exchange]) -> None:
    """Wait for a reduction when those that have started since take more than is allowed: its
    operand is free then."""
    for k, x in enumerate(reductions):
        held = 0
        for y in reductions[k + 1 :]:
            held += y.bytes
            if held > _AHEAD:
                x.join = min(x.join, max(y.start, x.at + 1))
                break


def _grouped(found: Sequence[_Exchange]) -> list[list[_Exchange]]:
    """The collectives that are one launch, in the order in which they start: those of one kind
    among the same processes, if none needs to have ended before another one can start."""
    groups: list[list[_Exchange]] = []
    open_groups: dict[Any, list[_Exchange]] = {}
    for x in sorted(found, key=lambda x: (x.start, x.at)):
        exchange = x.step.exchange
        key = type(exchange.communication), exchange.groups
        group = open_groups.get(key, [])
        fits = sum([y.sent for y in group]) + x.sent <= _TOGETHER
        if not group or not fits or x.start >= min([y.join for y in (*group, x)]):
            group = open_groups[key] = []
            groups.append(group)
        group.append(x)
    return sorted(groups, key=lambda g: (g[-1].start, g[-1].at))


def _merged(items: list[ScheduledStep], groups: Sequence[list[_Exchange]]) -> list[ScheduledStep]:
    starts: dict[int, list[int]] = {}
    joins: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        starts.setdefault(group[-1].start, []).append(number)
        joins.setdefault(min([x.join for x in group]), []).append(number)
    moved = {x.at for group in groups for x in group}
    result: list[ScheduledStep] = []
    for n in range(len(items) + 1):
        for number in joins.get(n, ()):
            reads, writes = _touched(items, groups[number])
            result.append(ScheduledStep([Join(number)], reads, writes))
        for number in starts.get(n, ()):
            group = groups[number]
            reads, writes = _touched(items, group)
            before = [s for x in group for s in items[x.at].steps[:-1]]
            steps = [*before, Collectives(tuple([x.step for x in group]), number)]
            summary = _summary([items[x.at].summary for x in group])
            result.append(ScheduledStep(steps, reads, writes, summary=summary))
        if n < len(items) and n not in moved:
            result.append(items[n])
    return result


def _summary(of: Sequence[StepSummary | None]) -> StepSummary | None:
    """What reports say of several collectives: the name of one, the traffic of all."""
    known = [s for s in of if s is not None]
    if not known:
        return None
    lines = list(dict.fromkeys([line for s in known for line in s.lines]))
    return replace(known[0], traffic=sum([s.traffic for s in known]), lines=lines)


def _touched(
    items: Sequence[ScheduledStep], group: Sequence[_Exchange]
) -> tuple[list[int], list[int]]:
    """The buffers that a group reads and writes."""
    of = [items[x.at] for x in group]
    return [b for item in of for b in item.reads], [b for item in of for b in item.writes]
