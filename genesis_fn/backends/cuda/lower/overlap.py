"""Overlap: collectives run on a stream of their own, beside the kernels that need nothing of them.

A collective starts as early as its operand is there, and the compute stream waits for it as late as
its result is needed (`Join`). What makes the operand of a gather (the cast of a parameter's part)
moves ahead with it, and what takes the result of a reduction that cannot have ended by then (the
update of the parameter whose gradient comes last) moves to the end, if nothing needs it earlier.
Two limits keep memory: what is gathered ahead of its use, and what waits to be reduced, may take
`_AHEAD` bytes, which is a layer of a large model or a few of a small. Small ones of one kind that
can start together are one launch, which costs what several hundred kilobytes do. The order of
collectives follows from the program alone, and is the same on every process.

Collectives hold a fifth of the processors while they run. Persistent kernels that run then give
theirs up now and then (`Launch.in_rounds`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from genesis_fn.backends.cuda.driver.communication import AllGather
from genesis_fn.backends.cuda.lower.horizontal_fusion import Accesses
from genesis_fn.backends.cuda.lower.steps import BufferTable, ScheduledStep, StepSummary
from genesis_fn.backends.cuda.run.steps import Collective, Collectives, Join, Step, SubProgram
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.target import Target
from genesis_fn.kernels.plan import Launch, Memset

_AHEAD = 400 << 20
_TOGETHER = 100 << 20  # bytes that one launch sends: 25 took 166.4 ms a step, 100 163.0


@dataclass(slots=True)
class _Exchange:
    """The collective of item `at`: it starts before item `start`, and has ended before item
    `join`. `maker` is the item that makes its operand, if that starts before `start` too."""

    at: int
    step: Collective
    bytes: int
    sent: int
    seconds: float  # at most: a process sends no more than it reads and writes
    start: int = 0
    join: int = 0
    maker: int | None = None

    @property
    def gathers(self) -> bool:
        """Whether its result is larger than its operand."""
        return isinstance(self.step.exchange.communication, AllGather)


def overlap_collectives(items: list[ScheduledStep], table: BufferTable) -> list[ScheduledStep]:
    """`items` in another order: collectives where they start, and joins where they must have
    ended."""
    found = [
        _Exchange(n, step, size, table.bytes[step.source], size / table.target.link)
        for n, item in enumerate(items)
        for size in [_bytes(item, table)]
        for step in item.steps[-1:]
        if isinstance(step, Collective)
    ]
    if not found or not enabled("overlap"):
        return items
    work = [0.0, *accumulate([_seconds(item, table.target) for item in items])]
    late = _find_windows(items, found, table, work)
    _limit_gathers([x for x in found if x.gathers])
    _limit_reductions([x for x in found if not x.gathers])
    merged = _merged(items, _grouped(found, work), late)
    return _sharing_processors(merged, found, table.target)


def _find_windows(
    items: Sequence[ScheduledStep],
    found: Sequence[_Exchange],
    table: BufferTable,
    work: Sequence[float],
) -> list[int]:
    """How far each collective may move: to behind the last step before it that it does not commute
    with, and as far as the first one after it. Returns the items that move to the end. `work[n]` is
    how many seconds items before `n` take at least."""
    accesses = [Accesses.by(item, table) for item in items]
    exchanged = {x.at for x in found}
    moves = [n not in exchanged and _fills(items[n].steps) for n in range(len(items))]
    near, fresh = _conflicts(accesses, range(len(items)))
    before = [max(n, default=-1) for n in near]
    near_after, _ = _conflicts(accesses, range(len(items) - 1, -1, -1))
    after = [min(n, default=len(items)) for n in near_after]
    late: list[int] = []
    for x in found:
        x.start, x.join = before[x.at] + 1, after[x.at]
        maker = before[x.at]
        # A maker of fresh memory, from what nobody sent: nothing but its operands keeps it back.
        if x.gathers and maker >= 0 and moves[maker] and fresh[maker] and fresh[x.at]:
            if near[maker].isdisjoint(exchanged):
                x.start = max({before[maker], *near[x.at]} - {maker}) + 1
                x.maker = maker
        while not x.gathers and x.join < len(items) and moves[x.join]:
            if x.join not in late:
                done = work[x.join] - work[x.start]
                if after[x.join] < len(items) or done >= x.seconds:
                    break
                late.append(x.join)
            meets = (n for n in range(x.join + 1, len(items))
                     if not accesses[n].commutes_with(accesses[x.at]))  # fmt: skip
            x.join = next(meets, len(items))
    return late


def _conflicts(
    accesses: Sequence[Accesses], order: Iterable[int]
) -> tuple[list[set[int]], list[bool]]:
    """For each item, of those before it in `order` that it does not commute with, the nearest for
    each buffer; and whether none has touched what it writes."""
    read: dict[int, int] = {}
    written: dict[int, int] = {}
    near: list[set[int]] = [set()] * len(accesses)
    fresh = [True] * len(accesses)
    for n in order:
        reads, writes = accesses[n].reads, accesses[n].writes
        near[n] = {written[b] for b in reads | writes if b in written}
        near[n] |= {read[b] for b in writes if b in read}
        fresh[n] = writes.isdisjoint(read) and writes.isdisjoint(written)
        read.update(dict.fromkeys(reads, n))
        written.update(dict.fromkeys(writes, n))
    return near, fresh


def _fills(steps: Sequence[Step]) -> bool:
    """Whether steps do nothing but fill buffers, so that only these fix their place."""
    return all(
        [_fills(s.steps) if isinstance(s, SubProgram) else isinstance(s, Launch | Memset)
         for s in steps]
    )  # fmt: skip


def _seconds(item: ScheduledStep, target: Target) -> float:
    summary = item.summary
    return target.seconds(summary.traffic, summary.operations) if summary else 0.0


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


def _grouped(found: Sequence[_Exchange], work: Sequence[float]) -> list[list[_Exchange]]:
    """The collectives that are one launch, in the order in which they start: those of one kind
    among the same processes, if none needs to have ended before another one can start, and none is
    waited for longer because of others."""
    groups: list[list[_Exchange]] = []
    open_groups: dict[Any, list[_Exchange]] = {}
    for x in sorted(found, key=lambda x: (x.start, x.at)):
        exchange = x.step.exchange
        key = type(exchange.communication), exchange.groups
        group = open_groups.get(key, [])
        fits = sum([y.sent for y in group]) + x.sent <= _TOGETHER
        joins = {y.join for y in (*group, x)}
        ends = sum([y.seconds for y in (*group, x)])
        fits = fits and (len(joins) == 1 or work[min(joins)] - work[x.start] >= ends)
        if not group or not fits or x.start >= min(joins):
            group = open_groups[key] = []
            groups.append(group)
        group.append(x)
    return sorted(groups, key=lambda g: (g[-1].start, g[-1].at))


def _merged(
    items: list[ScheduledStep], groups: Sequence[list[_Exchange]], late: Sequence[int]
) -> list[ScheduledStep]:
    starts: dict[int, list[int]] = {}
    joins: dict[int, list[int]] = {}
    makers: dict[int, list[int]] = {}  # by group
    moved = {x.at for group in groups for x in group} | {*late}
    for number, group in enumerate(groups):
        start = group[-1].start
        starts.setdefault(start, []).append(number)
        joins.setdefault(min([x.join for x in group]), []).append(number)
        found = {x.maker for x in group if x.maker is not None and x.maker >= start} - moved
        makers[number] = sorted(found)
        moved |= found
    result: list[ScheduledStep] = []
    for n in range(len(items) + 1):
        for number in starts.get(n, ()):
            result += [items[m] for m in makers[number]]
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
    return result + [items[n] for n in late]


def _sharing_processors(
    items: list[ScheduledStep], found: Sequence[_Exchange], target: Target
) -> list[ScheduledStep]:
    """`items` with kernels that run beside collectives launched for it: both streams are followed
    by what each step takes at least."""
    seconds = {id(x.step): x.seconds for x in found}
    now = ended = 0.0
    ends: dict[int, float] = {}
    result: list[ScheduledStep] = []
    for item in items:
        step = item.steps[-1]
        if isinstance(step, Collectives):
            ended = max(now, ended) + sum([seconds[id(member)] for member in step.members])
            ends[step.number] = ended
        elif isinstance(step, Join):
            now = max(now, ends[step.number])
        else:
            if ended > now:
                item = replace(item, steps=[_in_rounds(s) for s in item.steps])
            now += _seconds(item, target)
        result.append(item)
    return result


def _in_rounds(step: Step) -> Step:
    if isinstance(step, Launch):
        return step.in_rounds()
    if isinstance(step, SubProgram):
        return replace(step, steps=tuple([_in_rounds(s) for s in step.steps]))
    return step


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
