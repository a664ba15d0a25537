"""Which buffers hold the carry of a loop in each iteration.

A body that reads its carry in more places than it writes, as a stencil does, cannot write the new
one over the old. It writes to another buffer, which the next iteration reads, and so on in turns:
nothing is copied. A step of relaxation on 4096 x 4096 points copied as much as it computed with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from genesis_fn.backends.cuda.run.steps import Copy, Step, SubProgram, bodies, renumbered

if TYPE_CHECKING:
    from genesis_fn.backends.cuda.lower.steps import BufferTable

MOST_TURNS = 16  # iterations until a carry is where it was; one that takes longer is copied


@dataclass(frozen=True, slots=True)
class CarryTurns:
    """`into[b]`: the buffer of the iteration before which is buffer b of an iteration, of all those
    that change places."""

    into: Mapping[int, int]

    @property
    def period(self) -> int:
        """The number of iterations after which every buffer is itself again."""
        return math.lcm(*[len(c) for c in self._cycles()])

    def after(self, iterations: int) -> dict[int, int]:
        """The buffer that stands in the place of each one after so many iterations, which may be
        negative."""
        return {c[k]: c[(k + iterations) % len(c)] for c in self._cycles() for k in range(len(c))}

    def _cycles(self) -> list[list[int]]:
        cycles, seen = [], set()
        for first in self.into:
            if first not in seen:
                cycle = [first]
                while (b := self.into[cycle[-1]]) != first:
                    cycle.append(b)
                seen.update(cycle)
                cycles.append(cycle)
        return cycles


def carry_turns(carry: Sequence[int], results: Sequence[int]) -> CarryTurns | None:
    """The turns of a loop whose body finds its carry in one buffer each and leaves it in another;
    None if they take too long to come round."""
    into = {b: r for b, r in zip(carry, results, strict=True) if b != r}
    # A chain that ends in a new buffer goes on at its beginning: that buffer is written next.
    for first in set(into) - set(into.values()):
        last = into[first]
        while last in into:
            last = into[last]
        into[last] = first
    turns = CarryTurns(into)
    return turns if turns.period <= MOST_TURNS else None


def elsewhere(steps: Sequence[Step], table: BufferTable, by: Mapping[int, int]) -> list[Step]:
    """`steps` with other buffers in place of those in `by`. Parts of these move with them; so do
    the addresses in tables of pointers, which become other tables."""
    changed = dict(by)
    for b in list(table.parent):
        at, offset = b, 0
        while at not in by and at in table.parent:
            at, more = table.parent[at]
            offset += more
        if at in by and at != b:
            changed[b] = table.view(by[at], offset, table.bytes[b])
    for p in set(_pointer_tables(steps, table)):
        rows = [[changed.get(b, b) for b in row] for row in table.pointers[p]]
        if rows != table.pointers[p]:
            changed[p] = table.new(table.bytes[p])
            table.pointers[changed[p]] = rows
    return [renumbered(step, changed) for step in steps]


def _pointer_tables(steps: Sequence[Step], table: BufferTable) -> Iterator[int]:
    for step in steps:
        if isinstance(step, SubProgram):
            yield from [b for b, _ in step.buffers if b in table.pointers]
        for body in bodies(step):
            yield from _pointer_tables(body, table)


def parallel_copies(
    moves: Sequence[tuple[int, int, int]], table: BufferTable
) -> tuple[list[Copy], list[int]]:
    """(copies, new buffers) that make the `moves`, each (destination, source, bytes), at once: a
    source that is overwritten, as where `(x, y)` becomes `(y, x)`, is kept in a buffer first."""
    overwritten = {table.root(destination) for destination, _, size in moves if size}
    saved, copies = [], []
    for destination, source, size in moves:
        if not size:
            continue
        if table.root(source) in overwritten:
            saved.append(Copy(table.new(size), source, size))
            source = saved[-1].destination
        copies.append(Copy(destination, source, size))
    return saved + copies, [copy.destination for copy in saved]
