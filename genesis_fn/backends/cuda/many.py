"""Alike and independent steps as one launch over many tensors: optimizer updates, sums of squares.

The kernels' pointers come from a table in device memory, one row for each tensor; program axis 2 is
the row. A step moves to the place of the last one like it, if nothing in between stands in the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from genesis_fn.backends.cuda.codegen.source import kernel
from genesis_fn.backends.cuda.graph import Child
from genesis_fn.kernels.dtypes import DTYPES, MEMORY
from genesis_fn.kernels.expressions import PRELUDE
from genesis_fn.kernels.launch import Buf, Launch

_SMALL = 32 << 20  # bytes that a step moves; longer ones gain nothing from sharing a launch
_MOST = 512


def merged_alike(items: list[Any], table: Any, fixed: set[int]) -> list[Any]:
    """`items` with batches of alike steps joined; `table` gets the tables of addresses. `fixed` are
    the buffers from outside: what reads only those may run early."""
    root = table.root
    items = _hoisted(items, table, fixed)
    last: dict[Any, _Batch] = {}
    batches: list[_Batch] = []
    for n, item in enumerate(items):
        reads, writes = {root(b) for b in item.reads}, {root(b) for b in item.writes}
        key = _key(item)
        mine = last.get(key) if key is not None else None
        for batch in batches:
            if batch.open and batch.stands_in_the_way(reads, writes):
                batch.open = False
        if key is None:
            continue
        if mine is None or not mine.open or len(mine.members) == _MOST:
            mine = last[key] = _Batch()
            batches.append(mine)
        mine.members.append(n)
        mine.reads |= reads
        mine.writes |= writes
    result: list[Any] = list(items)
    for batch in batches:
        if len(batch.members) > 1:
            chosen = [items[n] for n in batch.members]
            result[batch.members[-1]] = _joined(chosen, table)
            for n in batch.members[:-1]:
                result[n] = None
    return [item for item in result if item is not None]


def _hoisted(items: list[Any], table: Any, fixed: set[int]) -> list[Any]:
    """`items` with those that read inputs only next to the first one like them."""
    root = table.root
    written: set[int] = set()
    groups: dict[Any, list[Any]] = {}
    place: dict[int, Any] = {}
    for n, item in enumerate(items):
        reads, writes = {root(b) for b in item.reads}, {root(b) for b in item.writes}
        early = reads <= fixed and reads.isdisjoint(written) and writes.isdisjoint(fixed)
        key = _key(item) if early else None
        written |= writes
        if key is not None:
            groups.setdefault(key, []).append(item)
            place[n] = key
    result: list[Any] = []
    done: set[Any] = set()
    for n, item in enumerate(items):
        key = place.get(n)
        if key is None:
            result.append(item)
        elif key not in done:
            done.add(key)
            result += groups[key]
    return result


class _Batch:
    """Alike steps, which wait for the place of the last one while the batch is open."""

    def __init__(self) -> None:
        self.members: list[int] = []
        self.reads: set[int] = set()
        self.writes: set[int] = set()
        self.open = True

    def stands_in_the_way(self, reads: set[int], writes: set[int]) -> bool:
        """Whether a later step with these reads and writes must come after the batch."""
        return not (
            self.writes.isdisjoint(reads)
            and self.writes.isdisjoint(writes)
            and self.reads.isdisjoint(writes)
        )


def _key(item: Any) -> Any:
    """What two steps share if one kernel can do both; None for a step that shares nothing."""
    plan = item.plan
    if plan is None or item.traffic > _SMALL:
        return None
    return (plan.inputs, plan.outputs, plan.workspaces, *[
        (s.kernel, s.grid, s.num_warps, tuple(s.arguments.items())) for s in plan.steps
    ])  # fmt: skip


def _joined(items: Sequence[Any], table: Any) -> Any:
    first = items[0]
    rows = [[b for b, _ in item.steps[0].buffers] for item in items]
    width = len(rows[0])
    pointers = table.new(8 * width * len(rows))
    table.pointers[pointers] = rows
    steps = tuple([_many(s, width, len(rows)) for s in first.plan.steps])
    reads = [b for item in items for b in item.reads]
    writes = [b for item in items for b in item.writes]
    scratch = [b for item in items for b in item.scratch]
    child = Child(steps, ((pointers, 0),), (*reads, *writes, *scratch))
    joined = replace(
        items[-1], steps=[child], reads=reads, writes=writes, scratch=scratch, plan=None
    )
    kept = joined.described
    if kept is not None:
        gone = [item.described for item in items[:-1]]
        table.described[:] = [d for d in table.described if not any(d is x for x in gone)]
        kept.traffic += sum(d.traffic for d in gone)
        kept.operations += sum(d.operations for d in gone)
        kept.name = f"{len(items)} x {kept.name}"
        kept.sources = [s.kernel.text.removeprefix(PRELUDE) for s in steps]
    return joined


def _many(launch: Launch, width: int, count: int) -> Launch:
    """The launch with its pointers taken from row `program_id(2)` of a table."""
    head, body = launch.kernel.text.removeprefix(PRELUDE).split("\n", 1)
    lines = [f"    row = table + tl.program_id(2) * {width}\n"]
    for name, argument in launch.arguments.items():
        kind = MEMORY[DTYPES[argument.dtype]]  # type: ignore[union-attr]
        place = f"tl.multiple_of(tl.load(row + {argument.index}), 16)"  # type: ignore[union-attr]
        lines.append(f"    {name} = {place}.to(tl.pointer_type({kind}))\n")
    name = head.removeprefix("def ").split("(", 1)[0]
    function = kernel(f"{name}_of_many", "table", "".join(lines) + body)
    grid = (*launch.grid[:2], count)
    return replace(launch, kernel=function, grid=grid, arguments={"table": Buf(0, "i64")})


__all__ = ["merged_alike"]
