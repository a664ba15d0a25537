"""Horizontal fusion: launches that do not wait for each other become one.

What limits small kernels is not bandwidth but one launch waiting for the one before, so fewer
launches are faster even if nothing is shared. Two passes join what has been scheduled:

* Launches of one kernel on many tensors (optimizer updates, sums of squares) move to the last of
  them. Pointers come from a table in device memory, a row for each tensor: program axis 2.
* Launches of different kernels (the products of query, key and value of a decoded token) move to
  the first of them, and each program finds from its number whose work it does.

Loops cannot be joined any earlier: products, which are what most needs company, have none, and that
kernels are alike is known once each is generated. So texts are joined, in `codegen/source.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from genesis_fn.backends.cuda.codegen.source import definition, joint_kernel, multi_tensor_kernel
from genesis_fn.backends.cuda.lower.steps import BufferTable, ScheduledStep
from genesis_fn.backends.cuda.run.graph import SubProgram
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.expressions import PRELUDE
from genesis_fn.kernels.plan import BufferArg, Launch, Scalar

# Of one kernel:
_MOST_TENSORS = 512
# Of different kernels:
_TINY = 1 << 20  # bytes of the operands of a step whose number of warps does not matter
_MOST_KERNELS = 6
_WINDOW = 12  # steps that are looked at for company


def fuse_horizontally(
    items: list[ScheduledStep], table: BufferTable, fixed: set[int]
) -> list[ScheduledStep]:
    """`items` with launches joined that may run at once; `table` gets the tables of addresses.
    `fixed` are the buffers from outside: what reads only those may run early."""
    if not enabled("horizontal"):
        return items
    return _different(_alike(_hoisted(items, table, fixed), table), table)


@dataclass(slots=True)
class _Touched:
    """The roots of the buffers that steps read and write."""

    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)

    @staticmethod
    def by(item: ScheduledStep, table: BufferTable) -> _Touched:
        """What one item touches."""
        return _Touched({table.root(b) for b in item.reads}, {table.root(b) for b in item.writes})

    def apart(self, other: _Touched) -> bool:
        """Whether these steps and others may change places."""
        return (
            self.writes.isdisjoint(other.reads)
            and self.writes.isdisjoint(other.writes)
            and self.reads.isdisjoint(other.writes)
        )

    def add(self, other: _Touched) -> None:
        """Count another step in."""
        self.reads |= other.reads
        self.writes |= other.writes


def _of_all(
    at: ScheduledStep, members: Sequence[ScheduledStep], child: SubProgram
) -> ScheduledStep:
    """The item that does the work of all members, in the place of one of them."""
    return replace(
        at,
        steps=[child],
        reads=[b for item in members for b in item.reads],
        writes=[b for item in members for b in item.writes],
        scratch=[b for item in members for b in item.scratch],
        launch=None,
    )


# Launches of one kernel.


def _alike(items: list[ScheduledStep], table: BufferTable) -> list[ScheduledStep]:
    """`items` with batches of alike steps joined at the place of the last, unless something between
    them is in the way."""
    last: dict[Any, _Batch] = {}
    batches: list[_Batch] = []
    for n, item in enumerate(items):
        touched = _Touched.by(item, table)
        key = _key(item, table.target)
        for batch in batches:
            if batch.open and not batch.touched.apart(touched):
                batch.open = False
        if key is None:
            continue
        mine = last.get(key)
        if mine is None or not mine.open or len(mine.members) == _MOST_TENSORS:
            mine = last[key] = _Batch()
            batches.append(mine)
        mine.members.append(n)
        mine.touched.add(touched)
    result: list[ScheduledStep | None] = list(items)
    for batch in batches:
        if len(batch.members) > 1:
            result[batch.members[-1]] = _over_tensors([items[n] for n in batch.members], table)
            for n in batch.members[:-1]:
                result[n] = None
    return [item for item in result if item is not None]


@dataclass(slots=True)
class _Batch:
    """Alike steps, which wait for the place of the last one while the batch is open."""

    members: list[int] = field(default_factory=list)
    touched: _Touched = field(default_factory=_Touched)
    open: bool = True


def _hoisted(
    items: list[ScheduledStep], table: BufferTable, fixed: set[int]
) -> list[ScheduledStep]:
    """`items` with those that read inputs only next to the first one like them."""
    written: set[int] = set()
    groups: dict[Any, list[ScheduledStep]] = {}
    place: dict[int, Any] = {}
    for n, item in enumerate(items):
        touched = _Touched.by(item, table)
        early = touched.reads <= fixed and touched.reads.isdisjoint(written)
        key = _key(item, table.target) if early and touched.writes.isdisjoint(fixed) else None
        written |= touched.writes
        if key is not None:
            groups.setdefault(key, []).append(item)
            place[n] = key
    result: list[ScheduledStep] = []
    for n, item in enumerate(items):
        if n not in place:
            result.append(item)
        else:
            result += groups.pop(place[n], ())
    return result


def _key(item: ScheduledStep, target: Target) -> Any:
    """What two steps share if one kernel can do both; None for a step that shares nothing, or moves
    (reads and writes) too much to gain."""
    launch = item.launch
    if launch is None or item.traffic > 2 * target.launch_bytes:
        return None
    return launch.kernel, launch.grid, launch.num_warps, tuple(launch.arguments.items())


def _over_tensors(items: Sequence[ScheduledStep], table: BufferTable) -> ScheduledStep:
    children = [item.steps[0] for item in items]
    rows = [[b for b, _ in c.buffers] for c in children if isinstance(c, SubProgram)]
    width = len(rows[0])
    pointers = table.new(8 * width * len(rows))
    table.pointers[pointers] = rows
    launch = items[0].launch
    assert launch is not None
    kernel = multi_tensor_kernel(launch.kernel, launch.arguments, width)
    grid, arguments = (*launch.grid[:2], len(rows)), {"table": BufferArg(0, "i64")}
    launch = replace(launch, kernel=kernel, grid=grid, arguments=arguments)
    reached = [b for item in items for b in (*item.reads, *item.writes, *item.scratch)]
    made = _of_all(items[-1], items, SubProgram((launch,), ((pointers, 0),), tuple(reached)))
    kept = made.described
    if kept is not None:
        gone = [item.described for item in items[:-1] if item.described is not None]
        table.described[:] = [d for d in table.described if not any(d is x for x in gone)]
        kept.traffic += sum(d.traffic for d in gone)
        kept.operations += sum(d.operations for d in gone)
        kept.name = f"{len(items)} x {kept.name}"
        kept.sources = [kernel.text.removeprefix(PRELUDE)]
    return made


# Launches of different kernels.


@dataclass(frozen=True, slots=True)
class _Small:
    """An item of one launch that may share it: the kernel's definition, the bytes it touches."""

    item: ScheduledStep
    launch: Launch
    definition: str
    bytes: int


def _different(items: Sequence[ScheduledStep], table: BufferTable) -> list[ScheduledStep]:
    """`items` with small steps joined to an earlier one that they do not depend on."""
    small = [_small(item, table) for item in items]
    touched = [_Touched.by(item, table) for item in items]
    taken: set[int] = set()
    result: list[ScheduledStep] = []
    for n, item in enumerate(items):
        first = small[n]
        if n in taken or first is None:
            result += [] if n in taken else [item]
            continue
        members = [first]
        between = _Touched({*touched[n].reads}, {*touched[n].writes})
        for m in range(n + 1, min(n + 1 + _WINDOW, len(items))):
            other = small[m]
            if m in taken or len(members) == _MOST_KERNELS:
                continue
            if other is not None and _fit(first, other) and between.apart(touched[m]):
                members.append(other)
                taken.add(m)
            # What stays in its place is in the way of what follows, as the members are.
            between.add(touched[m])
        result.append(_in_one_grid(members) if len(members) > 1 else item)
    return result


def _small(item: ScheduledStep, table: BufferTable) -> _Small | None:
    """An item that may share its launch, whose latency matters."""
    if (
        len(item.steps) != 1
        or type(item.steps[0]) is not SubProgram
        or len(item.steps[0].steps) != 1
    ):
        return None
    (launch,) = item.steps[0].steps
    if type(launch) is not Launch or launch.grid[1:] != (1, 1):
        return None
    if launch.max_registers is not None or table.word in item.writes:
        return None
    if any(type(a) not in (BufferArg, Scalar) for a in launch.arguments.values()):
        return None
    # Of what it updates in place it touches little.
    size = sum([table.bytes[b] for b in {*item.reads} ^ {*item.writes}])
    text = definition(launch.kernel) if size <= table.target.launch_bytes else None
    return None if text is None else _Small(item, launch, text, size)


def _fit(one: _Small, other: _Small) -> bool:
    """Whether two kernels may be parts of one."""
    a, b = one.launch, other.launch
    # Either all parts of a kernel wait for the one before it, or it is made to at its start.
    if a.programmatic != b.programmatic or ("EARLY" in a.constants) != ("EARLY" in b.constants):
        return False
    alike = (a.num_warps, a.num_stages) == (b.num_warps, b.num_stages)
    return alike or max(one.bytes, other.bytes) <= _TINY


def _in_one_grid(members: Sequence[_Small]) -> ScheduledStep:
    launches = [x.launch for x in members]
    texts, grids = tuple([x.definition for x in members]), tuple([x.grid[0] for x in launches])
    function, order = joint_kernel(texts, grids)
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
    launch = replace(
        launches[0],
        kernel=function,
        grid=(sum(grids), 1, 1),
        arguments={name: arguments[name] for name in order if name in arguments},
        constants=constants,
        num_warps=max([x.num_warps for x in launches]),
        num_stages=max([x.num_stages for x in launches]),
    )
    items = [x.item for x in members]
    return _of_all(items[0], items, SubProgram((launch,), tuple(buffers)))
