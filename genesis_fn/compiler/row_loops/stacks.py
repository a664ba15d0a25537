"""What the inner loops of a nest stack: values that lie in memory while others are in registers.

A stack of an inner loop that the loop around stacks again, up to a result of the nest, is stored
straight into that result. One that the nest itself reads lies in a *scratch* buffer, written anew
whenever its loop runs. Each row has a place of its own there, also for what some rows have in
common, and each program for what all have, so that none reads what another one writes.
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
from genesis_fn.core.backend.lowering import View
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.primitives.shape import reshape_p, transpose_p

PROGRAM = "program"  # the variable of a program's number
_MORE, _LITTLE = 4, 1 << 26  # times the bytes of an array of the stack, and bytes of any


@dataclass(slots=True)
class Stack:
    """What a loop of `length` steps stacks: in a step that runs `block` row `step` of it, `values`
    by elements of the body's value `of`, or `views` of the whole `inner` stack of a loop in its
    body.

    `loop` is the instruction of the loop, once it is closed; `scratch` where reads find it.
    """

    length: int
    step: Expr
    block: int
    of: Var
    values: Mapping[tuple[int, ...], int] = field(default_factory=dict)
    inner: Stack | None = None
    views: Sequence[Eqn] = ()
    loop: int = -1
    scratch: Scratch | None = None

    def levels(self) -> list[Stack]:
        """This stack, the one that it is a stack of, and so on: the last has `values`."""
        found: list[Stack] = [self]
        while found[-1].inner is not None:
            found.append(found[-1].inner)
        return found

    def place(self, index: Index) -> Index:
        """Where an element of the last level's value lies in this stack in the steps at hand."""
        if self.inner is not None:
            index = self.inner.place(index)
            for e in self.views:
                index = _viewed(e, index)
        return (self.step, *index)

    def steps_and_index(self, at: Index) -> tuple[Index, Index]:
        """(the steps of all levels, the index in the last level's value) of an element."""
        if self.inner is None:
            return at[:1], at[1:]
        index = at[1:]
        for e in reversed(self.views):
            view = e.prim.lowering
            assert type(view) is View
            ((_, index, _),) = view.pieces(0, index, e.ins[0].aval, **e.params)
        steps, index = self.inner.steps_and_index(index)
        return (*at[:1], *steps), index


def is_view(e: Eqn) -> bool:
    """Whether an equation gives each element of an array another index and no more."""
    return e.prim in (reshape_p, transpose_p) and type(e.ins[0]) is Var


def _viewed(e: Eqn, index: Index) -> Index:
    """The index in a view of the element at `index` of its operand."""
    if e.prim is transpose_p:
        return tuple([index[d] for d in e.params["permutation"]])
    return ix.unravel(ix.ravel(index, e.ins[0].aval.shape), e.outs[0].aval.shape)


@dataclass(frozen=True, slots=True)
class Scratch:
    """The memory of a stack: along all steps' axes, then element by element, each of all rows or
    programs (`row`: the one at hand) and of the `lanes` that it has, (name, size)."""

    buffer: Var
    row: Expr
    lanes: tuple[tuple[str, int], ...]

    def offset(self, steps: Sequence[Expr], element: int, names: Collection[str]) -> Expr:
        """Where element number `element` of a row's value of some steps lies, which has those
        lanes that are in `names`."""
        lanes = [ix.var(name, size) if name in names else ix.ZERO for name, size in self.lanes]
        whole: Index = (*steps, ix.const(element), self.row, *lanes)
        return ix.ravel(whole, self.buffer.aval.shape)


def scratch_of(
    stack: Stack, rows: int, has_rows: bool, lanes: Sequence[tuple[str, int]]
) -> Scratch:
    """Memory for a stack of a nest of `rows`, of which there are more than programs. Raises
    Infeasible."""
    levels = stack.levels()
    sizes = [n for _, n in lanes]
    shape = (*[s.length for s in levels], len(levels[-1].values), rows, *sizes)
    itemsize = levels[-1].of.aval.dtype.itemsize
    own = math.prod([s.length for s in levels]) * levels[-1].of.aval.nbytes
    # What few rows have in common takes more than as an array.
    if math.prod(shape) * itemsize > min(MOST_STACKED, max(_MORE * own, _LITTLE)):
        raise Infeasible
    row = ix.var("p" if has_rows else PROGRAM, rows)
    return Scratch(Var(aval(shape, levels[-1].of.aval.dtype)), row, tuple(lanes))
