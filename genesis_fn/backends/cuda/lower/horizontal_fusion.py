"""Horizontal fusion: launches that do not depend on each other become one.

Small kernels are limited not by bandwidth but by each launch waiting for the one before, so fewer
launches are faster even if they share no data. Two passes work on scheduled steps:

* Multi-tensor kernels: launches of one kernel on many tensors (optimizer updates, sums of squares)
  move to the last of them. Pointers come from a table in device memory, one row for each tensor;
  program axis 2 is the row.
* Combo kernels (Inductor's term): launches of different kernels (the products of query, key and
  value of a decoded token) move to the first of them. A range of program numbers belongs to each.

The pass is this late because matrix products, which gain most, have no loops that an earlier pass
could fuse, and because two kernels are known to be equal only once they are generated. It joins
their source texts (`codegen/source.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from genesis_fn.backends.cuda.codegen.source import combo_kernel, definition, multi_tensor_kernel
from genesis_fn.backends.cuda.lower.steps import BufferTable, ScheduledStep
from genesis_fn.backends.cuda.run.steps import SubProgram
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.expressions import PRELUDE
from genesis_fn.kernels.plan import BufferArg, Launch, Scalar

# Multi-tensor kernels:
_MOST_TENSORS = 512
# Combo kernels:
_TINY = 1 << 20  # a step with operands of so few bytes may run with another's number of warps
_MOST_KERNELS = 6
_WINDOW = 12  # following steps that are tried as members


def fuse_horizontally(
    items: list[ScheduledStep], table: BufferTable, fixed: set[int]
) -> list[ScheduledStep]:
    """`items` with independent launches fused; `table` gets the pointer tables. `fixed` are the
    buffers of inputs and targets: a step that only reads inputs may run early."""
    if not enabled("horizontal"):
        return items
    # Equal kernels first: one launch takes up to 512 of them, a combo kernel six launches.
    return _fuse_different_kernels(_fuse_same_kernel(_hoist(items, table, fixed), table), table)


@dataclass(slots=True)
class Accesses:
    """The buffers that steps read and write, as roots: views of one buffer count as it."""

    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)

    @staticmethod
    def by(item: ScheduledStep, table: BufferTable) -> Accesses:
        """The accesses of one item."""
        return Accesses({table.root(b) for b in item.reads}, {table.root(b) for b in item.writes})

    def commutes_with(self, other: Accesses) -> bool:
        """Whether the steps may be exchanged with others: no write meets a read or a write."""
        return (
            self.writes.isdisjoint(other.reads)
            and self.writes.isdisjoint(other.writes)
            and self.reads.isdisjoint(other.writes)
        )

    def add(self, other: Accesses) -> None:
        """Add the accesses of another step."""
        self.reads |= other.reads
        self.writes |= other.writes


def _merged(
    at: ScheduledStep, members: Sequence[ScheduledStep], child: SubProgram
) -> ScheduledStep:
    """The item that does the work of all members, at the position of `at`."""
    return replace(
        at,
        steps=[child],
        reads=[b for item in members for b in item.reads],
        writes=[b for item in members for b in item.writes],
        scratch=[b for item in members for b in item.scratch],
        launch=None,
    )


# ---- multi-tensor kernels ----


def _fuse_same_kernel(items: list[ScheduledStep], table: BufferTable) -> list[ScheduledStep]:
    """`items` with launches of equal kernels fused at the position of the last of a batch.

    Members move *back*, so each must commute with everything between itself and the last one: a
    step that does not commute with a batch's accesses closes it.
    """
    last: dict[Any, _Batch] = {}
    batches: list[_Batch] = []
    for n, item in enumerate(items):
        accesses = Accesses.by(item, table)
        key = _kernel_key(item, table.target)
        for batch in batches:
            if batch.open and not batch.accesses.commutes_with(accesses):
                batch.open = False
        if key is None:
            continue
        mine = last.get(key)
        if mine is None or not mine.open or len(mine.members) == _MOST_TENSORS:
            mine = last[key] = _Batch()
            batches.append(mine)
        mine.members.append(n)
        mine.accesses.add(accesses)
    result: list[ScheduledStep | None] = list(items)
    for batch in batches:
        if len(batch.members) > 1:
            result[batch.members[-1]] = _multi_tensor_step([items[n] for n in batch.members], table)
            for n in batch.members[:-1]:
                result[n] = None
    return [item for item in result if item is not None]


@dataclass(slots=True)
class _Batch:
    """Items with equal kernels, by position. An open batch takes further members."""

    members: list[int] = field(default_factory=list)
    accesses: Accesses = field(default_factory=Accesses)
    open: bool = True


def _hoist(items: list[ScheduledStep], table: BufferTable, fixed: set[int]) -> list[ScheduledStep]:
    """`items` with steps that depend on inputs only moved ahead, to the first one with an equal
    kernel: later writes to those inputs would otherwise keep their batch apart."""
    written: set[int] = set()
    groups: dict[Any, list[ScheduledStep]] = {}
    key_of: dict[int, Any] = {}
    for n, item in enumerate(items):
        accesses = Accesses.by(item, table)
        early = accesses.reads <= fixed and accesses.reads.isdisjoint(written)
        key = (
            _kernel_key(item, table.target) if early and accesses.writes.isdisjoint(fixed) else None
        )
        written |= accesses.writes
        if key is not None:
            groups.setdefault(key, []).append(item)
            key_of[n] = key
    result: list[ScheduledStep] = []
    for n, item in enumerate(items):
        if n not in key_of:
            result.append(item)
        else:
            result += groups.pop(key_of[n], ())
    return result


def _kernel_key(item: ScheduledStep, target: Target) -> Any:
    """Equal for two items that one kernel can compute; None for an item that is not one generated
    launch, or moves so many bytes that its launch does not matter."""
    launch = item.launch
    if launch is None or item.traffic > 2 * target.launch_bytes:
        return None
    return launch.kernel, launch.grid, launch.num_warps, tuple(launch.arguments.items())


def _multi_tensor_step(items: Sequence[ScheduledStep], table: BufferTable) -> ScheduledStep:
    children = [item.steps[0] for item in items]
    rows = [[b for b, _ in c.buffers] for c in children if isinstance(c, SubProgram)]
    width = len(rows[0])
    # The executable fills the table in when it binds buffers to addresses.
    pointers = table.new(8 * width * len(rows))
    table.pointers[pointers] = rows
    launch = items[0].launch
    assert launch is not None
    kernel = multi_tensor_kernel(launch.kernel, launch.arguments, width)
    grid, arguments = (*launch.grid[:2], len(rows)), {"table": BufferArg(0, "i64")}
    launch = replace(launch, kernel=kernel, grid=grid, arguments=arguments)
    # The launch's only argument is the table, so what it reaches through it is stated here.
    reached = [b for item in items for b in (*item.reads, *item.writes, *item.scratch)]
    made = _merged(items[-1], items, SubProgram((launch,), ((pointers, 0),), tuple(reached)))
    kept = made.summary
    if kept is not None:
        gone = [item.summary for item in items[:-1] if item.summary is not None]
        table.summaries[:] = [d for d in table.summaries if not any(d is x for x in gone)]
        kept.traffic += sum(d.traffic for d in gone)
        kept.operations += sum(d.operations for d in gone)
        kept.name = f"{len(items)} x {kept.name}"
        kept.sources = [kernel.text.removeprefix(PRELUDE)]
    return made


# ---- combo kernels ----


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An item of one small launch, with its kernel's definition and the bytes it accesses."""

    item: ScheduledStep
    launch: Launch
    definition: str
    bytes: int


def _fuse_different_kernels(
    items: Sequence[ScheduledStep], table: BufferTable
) -> list[ScheduledStep]:
    """`items` with small steps fused into an earlier one that they do not depend on.

    Members move *forward* to the first one, so each must commute with everything in between.
    """
    small = [_candidate(item, table) for item in items]
    accesses = [Accesses.by(item, table) for item in items]
    taken: set[int] = set()
    result: list[ScheduledStep] = []
    for n, item in enumerate(items):
        first = small[n]
        if n in taken or first is None:
            result += [] if n in taken else [item]
            continue
        members = [first]
        # Accesses of the members and of all that lies between: copies, since they grow.
        between = Accesses({*accesses[n].reads}, {*accesses[n].writes})
        for m in range(n + 1, min(n + 1 + _WINDOW, len(items))):
            other = small[m]
            if m in taken or len(members) == _MOST_KERNELS:
                continue
            if (
                other is not None
                and _compatible(first, other)
                and _fits([x.launch for x in (*members, other)], table.target)
                and between.commutes_with(accesses[m])
            ):
                members.append(other)
                taken.add(m)
            # Later candidates must pass this step too, whether it stays or moves.
            between.add(accesses[m])
        result.append(_combo_step(members) if len(members) > 1 else item)
    return result


def _candidate(item: ScheduledStep, table: BufferTable) -> _Candidate | None:
    """`item` as a candidate: one small launch on a one-dimensional grid whose kernel is text."""
    if (
        item.alone
        or len(item.steps) != 1
        or type(item.steps[0]) is not SubProgram
        or len(item.steps[0].steps) != 1
    ):
        return None
    (launch,) = item.steps[0].steps
    if type(launch) is not Launch or launch.grid[1:] != (1, 1):
        return None
    if launch.max_registers is not None or table.error_word in item.writes:
        return None
    if any(type(a) not in (BufferArg, Scalar) for a in launch.arguments.values()):
        return None
    # Buffers that are both read and written do not count: an in-place update accesses few bytes.
    size = sum([table.bytes[b] for b in {*item.reads} ^ {*item.writes}])
    if item.launch is not None and item.summary is not None:
        # What memory moves while a generated kernel computes: pairs are much work on few bytes.
        work = item.summary.operations / table.target.additions
        size = max(size, int(work * table.target.bandwidth))
    text = definition(launch.kernel) if size <= table.target.launch_bytes else None
    return None if text is None else _Candidate(item, launch, text, size)


def _compatible(one: _Candidate, other: _Candidate) -> bool:
    """Whether two kernels may be fused."""
    a, b = one.launch, other.launch
    # A kernel waits for its predecessor either in its source (EARLY) or at its very start
    # (programmatic): a fused one cannot do both.
    if a.programmatic != b.programmatic or ("EARLY" in a.constants) != ("EARLY" in b.constants):
        return False
    alike = (a.num_warps, a.num_stages) == (b.num_warps, b.num_stages)
    return alike or max(one.bytes, other.bytes) <= _TINY


def _fits(launches: Sequence[Launch], target: Target) -> bool:
    """Whether the products among the launches have room in one kernel.

    Triton gives each of their loops shared memory of its own, of as many stages as the kernel has.
    """
    products = [launch for launch in launches if launch.shared]
    stages = {launch.num_stages for launch in products}
    return len(stages) < 2 and sum([x.shared for x in products]) <= target.shared_memory


def _combo_step(members: Sequence[_Candidate]) -> ScheduledStep:
    launches = [x.launch for x in members]
    texts, grids = tuple([x.definition for x in members]), tuple([x.grid[0] for x in launches])
    function, order = combo_kernel(texts, grids)
    arguments: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    buffers: list[tuple[int, int]] = []
    for k, x in enumerate(members):
        for name, argument in x.launch.arguments.items():
            if type(argument) is BufferArg:
                argument = replace(argument, index=argument.index + len(buffers))
            arguments[f"{name}_{k}"] = argument
        constants |= {f"{name}_{k}": value for name, value in x.launch.constants.items()}
        (child,) = x.item.steps
        assert type(child) is SubProgram
        buffers += child.buffers
    # Members with another number of warps are tiny (`_compatible`): the largest serves all.
    products = [x for x in launches if x.shared]
    launch = replace(
        launches[0],
        kernel=function,
        grid=(sum(grids), 1, 1),
        arguments={name: arguments[name] for name in order if name in arguments},
        constants=constants,
        num_warps=max([x.num_warps for x in launches]),
        num_stages=max([x.num_stages for x in products or launches]),
        shared=sum([x.shared for x in products]),
    )
    items = [x.item for x in members]
    made = _merged(items[0], items, SubProgram((launch,), tuple(buffers)))
    # The table keeps the members' summaries; a profile, which times the launch, has one for all.
    kept = [item.summary for item in items if item.summary is not None]
    if kept:
        made.summary = replace(
            kept[0],
            name=" & ".join(dict.fromkeys([d.name for d in kept])),
            traffic=sum([d.traffic for d in kept]),
            operations=sum([d.operations for d in kept]),
            lines=list(dict.fromkeys([line for d in kept for line in d.lines])),
        )
    return made
