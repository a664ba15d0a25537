"""How many registers the values of a row need."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from genesis_fn.compiler.row_loops.nest import RowNest, RowStep

_FREE = ("const", "index", "loop")  # are computed where they are used, or nothing


def most_alive(nest: RowNest) -> int:
    """How many elements of a row are alive at once, at most, with instructions in their order.

    What a loop reads stays until it is over, as what it carries does. A value that is loaded a step
    ahead is there twice.
    """
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    reads: list[tuple[int, int, int]] = []  # (now, block, value)
    now = -1

    def block(number: int, step: RowStep | None) -> None:
        nonlocal now
        for n in nest.blocks[number]:
            i = nest.instrs[n]
            if i.op == "loop":
                block(i.meta.block, i.meta)
            now += 1
            begins[n] = now
            reads.extend([(now, number, a) for a in i.operands()])
        now += 1
        reads.extend([(now, number, store.value) for store in nest.writes[number]])
        if step is not None:
            reads.extend([(now, number, n) for carried in step.carried for n in carried[1:]])
        ends[number] = now

    block(0, None)
    last: dict[int, int] = {}
    for at, number, n in reads:
        for inner in _blocks_within(nest, number, nest.block_of[n]):
            at = max(at, ends[inner])
        last[n] = max(last.get(n, 0), at)
    alive = [0] * (now + 2)
    for n, end in last.items():
        i = nest.instrs[n]
        if i.op not in _FREE:
            ahead = i.op in ("load", "read") and nest.block_of[n] > 0
            size = math.prod(map(nest.lanes.padded, nest.lanes.within(i.names)))
            size *= 2 if ahead else 1
            alive[begins[n]] += size
            alive[end + 1] -= size
    return max(itertools.accumulate(alive))


def _blocks_within(nest: RowNest, block: int, outer: int) -> Iterator[int]:
    """A block and those around it, up to `outer`: none of them, or all if it is not around."""
    while block not in (outer, 0):
        yield block
        block = nest.around[block]
