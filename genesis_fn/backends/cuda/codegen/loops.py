"""What one generated kernel computes: instructions over rows `p` of elements `r`, and stores."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from genesis_fn.compiler.loop_ir.kernel import Instr
from genesis_fn.core import dtypes
from genesis_fn.core.backend.index import Expr
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Var

INT32 = 2**31 - 1  # the largest offset that takes 32 bits


@dataclass(frozen=True, slots=True)
class Part:
    """A workspace of partial results: number `number`, [parts, rows] of `dtype`."""

    number: int
    dtype: DType


Pointee: TypeAlias = Var | Part  # what a kernel's pointer is to
Store: TypeAlias = tuple[Var, Expr, int]  # what is written, at which offset, the instruction


@dataclass(slots=True)
class Loops:
    """A kernel's instructions and stores; what one Triton function computes. There are `rows`
    values of `p` and `depth` of `r`, which is the variable of the fastest axis if `inner`."""

    rows: int
    depth: int
    inner: bool
    instrs: list[Instr]
    stores: list[Store]
    counters: dict[Var, str]
    largest: int = 8  # bytes of the widest register type

    def __post_init__(self) -> None:
        self.largest = max([dtypes.widened(i.dtype).itemsize for i in self.instrs], default=4)

    def of(self, op: str) -> list[int]:
        """The instructions of an operation."""
        return [n for n, i in enumerate(self.instrs) if i.op == op]

    def accumulator(self, n: int) -> DType:
        """The dtype that reduction or fold n is kept in."""
        return accumulator(self.instrs[self.instrs[n].args[0]].dtype)

    def parts(self, op: str) -> dict[int, list[Part]]:
        """What each reduction or fold leaves behind in parts: extremes with their positions, sums
        and the like."""
        count = itertools.count()
        found = {}
        for n in self.of(op):
            kinds = [self.accumulator(n)]
            if self.instrs[n].meta[0].position:
                kinds.append(self.instrs[n].dtype)
            found[n] = [Part(next(count), kind) for kind in kinds]
        return found

    def streams(self, n: int) -> bool:
        """Whether instruction n is a load that brings new memory with every row."""
        i = self.instrs[n]
        if i.op != "load" or "p" not in i.names:
            return False
        target, _, guards = i.meta
        if any("p" in g.expr.names for g in guards):
            return False
        points = self.rows * (self.depth if "r" in i.names else 1)
        return target.aval.size >= points


def accumulator(d: DType) -> DType:
    """The dtype that reductions of dtype `d` are kept in."""
    d = dtypes.widened(d)
    if d == dtypes.BOOL or (dtypes.is_integer(d) and d.itemsize < 4):
        return dtypes.U32 if d.kind == "u" else dtypes.I32
    return d


def dtype_of(target: Pointee) -> DType:
    """The dtype of what is loaded or stored: of a value in memory, or of a `Part`."""
    return target.dtype if isinstance(target, Part) else target.aval.dtype


def needed(
    instrs: Sequence[Instr], roots: Sequence[int], stop: str = "", made: Collection[int] = ()
) -> list[int]:
    """The instructions that `roots` take, themselves included, in order; those of op `stop` end the
    walk, and what is `made` is left out."""
    found: set[int] = set()
    todo = list(roots)
    while todo:
        n = todo.pop()
        if n not in found and n not in made:
            found.add(n)
            if instrs[n].op != stop:
                todo.extend(instrs[n].operands())
    return sorted(found)


def is_wide(e: Expr) -> bool:
    """Whether an offset needs 64 bits."""
    return max(abs(e.lo), abs(e.hi)) > INT32
