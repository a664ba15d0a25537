"""What the inner loops of a nest stack: values that lie in memory while others are in registers.

A stack of an inner loop that the loop around stacks again, up to a result of the nest, is stored
straight into that result. One that the nest itself reads lies in a *scratch* buffer, written anew
whenever its loop runs. Each row has a place of its own there, also for what rows have in common, so
that no program of the kernel reads what another one writes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from genesis_fn.compiler.loop_ir.kernel import Infeasible
from genesis_fn.compiler.scans.parts import MOST_STACKED
from genesis_fn.core.aval import aval
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr, Index
from genesis_fn.core.jaxpr import Var


@dataclass(slots=True)
class Stack:
    """What a loop of `length` steps stacks: in a step that runs `block` row `step` of it, `values`
    by elements of the body's value `of`, or the whole `inner` stack of a loop in its body.

    `loop` is the instruction of the loop, once it is closed; `scratch` where reads find it.
    """

    length: int
    step: Expr
    block: int
    of: Var
    values: Mapping[tuple[int, ...], int] = field(default_factory=dict)
    inner: Stack | None = None
    loop: int = -1
    scratch: Scratch | None = None

    def levels(self) -> list[Stack]:
        """This stack, the one that it is a stack of, and so on: the last has `values`."""
        found = [self]
        while found[-1].inner is not None:
            found.append(found[-1].inner)
        return found


@dataclass(frozen=True, slots=True)
class Scratch:
    """The memory of a stack: along all steps' axes, then element by element, each of all rows
    (`row`: the one at hand) and of the `lanes` that it has, (name, size)."""

    buffer: Var
    row: Expr
    lanes: tuple[tuple[str, int], ...]

    def offset(self, steps: Sequence[Expr], element: int, names: Collection[str]) -> Expr:
        """Where element number `element` of a row's value of some steps lies, which has those
        lanes that are in `names`."""
        lanes = [ix.var(name, size) if name in names else ix.ZERO for name, size in self.lanes]
        whole: Index = (*steps, ix.const(element), self.row, *lanes)
        return ix.ravel(whole, self.buffer.aval.shape)


def scratch_of(stack: Stack, rows: int, lanes: Sequence[tuple[str, int]]) -> Scratch:
    """Memory for a stack of a nest of `rows`, whose values have `lanes`. Raises Infeasible."""
    levels = stack.levels()
    sizes = [n for _, n in lanes]
    shape = (*[s.length for s in levels], len(levels[-1].values), rows, *sizes)
    dtype = levels[-1].of.aval.dtype
    if math.prod(shape) * dtype.itemsize > MOST_STACKED:
        raise Infeasible
    return Scratch(Var(aval(shape, dtype)), ix.var("p", rows), tuple(lanes))
