"""What one generated kernel computes: instructions over rows `p` of elements `r`, and stores.

Pointwise kernels have one axis only, `p`; reductions run along `r`, column reductions along `p`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from genesis_fn.compiler.loop_ir.kernel import Instr
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.core.backend.index import Expr
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Var
from genesis_fn.kernels.language.expressions import expression, instructions

SITES = 8  # of the error word, for one equation: one for each index component that is checked
INT32 = 2**31 - 1  # the largest offset in 32 bits, whose arithmetic is cheaper


@dataclass(frozen=True, slots=True)
class PartialResult:
    """Workspace `number`: the partial results [splits, rows] of a reduction, in `dtype`."""

    number: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class ErrorWord:
    """The word of the program that a start out of bounds raises."""

    dtype: DType = dtypes.I64


Pointee: TypeAlias = Var | PartialResult | ErrorWord  # what a kernel's pointer is to
Store: TypeAlias = tuple[Var, Expr, int]  # what is written, at which offset, the instruction


@dataclass(slots=True)
class Loops:
    """The instructions and stores of one kernel.

    `p` takes `rows` values and `r` `depth` values; `inner` says that `r` runs along the fastest
    axis in memory. `counters` are the loop counters of scans around it, by name, `sites` those of
    the lookups that check their starts.
    """

    rows: int
    depth: int
    inner: bool
    instrs: list[Instr]
    stores: list[Store]
    counters: dict[Var, str]
    sites: Sequence[int] = ()
    largest: int = 8  # bytes of the widest register type

    def __post_init__(self) -> None:
        self.largest = max([dtypes.widened(i.dtype).itemsize for i in self.instrs], default=4)

    def computed(self) -> bool:
        """Whether the elements of rows are neither read nor stored, and reduced in one pass."""
        whole = {"p", "r"}
        for i in self.instrs:
            if (i.op == "load" and i.names >= whole) or (i.level and "r" in i.names):
                return False
        levels = [self.instrs[i.args[0]].level for i in self.instrs if i.op == "reduce"]
        return (
            bool(levels)
            and not any(levels)
            and not any(["r" in e.names for _, e, _ in self.stores])
        )

    def instructions(self) -> int:
        """About how many machine instructions one element takes."""
        size = 0
        for i in self.instrs:
            text = map_text(self.instrs, i, ["x"] * len(i.args)) if i.op == "map" else ""
            size += instructions(text, i.dtype)
        return size

    def of(self, op: str) -> list[int]:
        """The numbers of the instructions of an operation."""
        return [n for n, i in enumerate(self.instrs) if i.op == op]

    def accumulator(self, n: int) -> DType:
        """The dtype in which reduction n, along `r` or `p`, accumulates."""
        return accumulator(self.instrs[self.instrs[n].args[0]].dtype)

    def partial_results(self, op: str) -> dict[int, list[PartialResult]]:
        """The partial results of each reduction of op `op`: its accumulator, and for an argmax or
        argmin the positions."""
        count = itertools.count()
        found = {}
        for n in self.of(op):
            kinds = [self.accumulator(n)]
            if self.instrs[n].meta[0].position:
                kinds.append(self.instrs[n].dtype)
            found[n] = [PartialResult(next(count), kind) for kind in kinds]
        return found

    def streams(self, n: int) -> bool:
        """Whether instruction n is a load that reads new memory with every row."""
        i = self.instrs[n]
        if i.op != "load" or "p" not in i.names or i.args:
            return False
        target, _, guards = i.meta
        # Rows under a condition (a padded or concatenated part) may not be read at all.
        if any("p" in g.expr.names for g in guards):
            return False
        # A smaller array is read again by other rows, from the cache.
        points = self.rows * (self.depth if "r" in i.names else 1)
        return target.aval.size >= points


def map_text(instrs: Sequence[Instr], i: Instr, names: Sequence[str]) -> str:
    """The text of an elementwise instruction whose operands have these names."""
    operands = [aval((), instrs[a].dtype) if type(a) is int else a.value for a in i.args]
    prim, params, precise = i.meta
    return expression(prim, names, operands, dict(params), precise, i.approximate)


def accumulator(d: DType) -> DType:
    """The dtype in which reductions of dtype `d` accumulate."""
    d = dtypes.widened(d)
    if d == dtypes.BOOL or (dtypes.is_integer(d) and d.itemsize < 4):
        return dtypes.U32 if d.kind == "u" else dtypes.I32
    return d


def dtype_of(target: Pointee) -> DType:
    """The dtype of what is loaded or stored."""
    return target.aval.dtype if isinstance(target, Var) else target.dtype


def needed(
    instrs: Sequence[Instr], roots: Sequence[int], stop: str = "", made: Collection[int] = ()
) -> list[int]:
    """The instructions that `roots` depend on, themselves included, in order. The walk ends at
    instructions of op `stop`; those in `made` are left out."""
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
