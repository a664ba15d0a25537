"""The IR of a loop that runs for each row by itself: `RowEquations`, and loops in loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from genesis_fn.compiler.loop_ir.kernel import Infeasible, Instr, Literal, loop_slice_p
from genesis_fn.compiler.row_loops.axes import row_predicate
from genesis_fn.compiler.row_loops.bodies import fresh_eqn
from genesis_fn.compiler.row_loops.equations import RowEquations
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr, Guards, IndexGuard
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.primitives import elementwise as ops
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p

_MAX_CARRIED = 96  # elements that a row carries from step to step


@dataclass(slots=True)
class RowStep:
    """A loop: its block runs `length` times, or while `predicate` holds.

    `carried` are (instruction of the first value, the "carried" instruction, instruction of the
    next value). `counter` is the variable that counts a scan's steps. A `predicate` is of the row
    where `by_row`, and the loop of a program goes on while it holds for one of its rows.
    """

    block: int
    carried: list[tuple[int, int, int]] = field(default_factory=list)
    counter: str = ""
    length: int = 0
    predicate: int | None = None
    by_row: bool = False


@dataclass(frozen=True, slots=True)
class RowStore:
    """A value that goes to memory, at an offset of `target` where `guards` hold."""

    target: Var
    offset: Expr
    value: int
    guards: Guards


class RowNest(RowEquations):
    """The instructions of one loop equation, for `rows` rows: `writes[b]` are the stores of block
    b, `results` the values that the equation gives.

    Operations of loops, with their `meta`: "loop": a `RowStep`; "carried": a loop's value of the
    step; "after": that when it is over.
    """

    def __init__(
        self,
        e: Eqn,
        outer: dict[Var, Eqn],
        common: bool = False,
        width: int = 0,
        parts: bool = False,
        gathers: bool = False,
    ) -> None:
        e = fresh_eqn(e, {})
        super().__init__(e, outer, common, width, parts, gathers)
        self.writes: list[list[RowStore]] = [[]]
        self._adopt([e], 0)
        if e.prim is scan_p:
            self._scan(e, e.outs[e.params["carry"] :])
        else:
            self._while(e)
        count = len(e.outs) if e.prim is while_p else e.params["carry"]
        for v in e.outs[:count]:
            for element in self._elements_of(v):
                self._write(v, v, element, self._held[v][element], 0)
        self.results = list(e.outs)
        used = [i.names for i in self.instrs]
        used += [s.offset.names for stores in self.writes for s in stores]
        self.lanes.keep(frozenset().union(*used))

    def matrix_bytes(self) -> int:
        """The shared memory that constant matrices take."""
        found = [self.instrs[n] for n in self.of("matrix")]
        padded = self.lanes.padded
        return sum([padded(i.meta[3]) * padded(i.meta[4]) * i.dtype.itemsize for i in found])

    # ---- loops ----

    def _enter(self, e: Eqn) -> None:
        """Make the loop of an equation, in the block where the equation stands."""
        before, self._here = self._here, self._home[e.outs[0]]
        if e.prim is scan_p:
            self._scan(e, ())
        else:
            self._while(e)
        self._here = before

    def _open(self, counter: Var | None = None) -> int:
        block = len(self.blocks)
        self.blocks.append([])
        self.writes.append([])
        self.depth.append(self.depth[self._here] + 1)
        self.around.append(self._here)
        if counter is not None:
            self.counters[counter] = f"t{len(self.counters)}"
            self._block_of_counter[self.counters[counter]] = block
        return block

    def _carry(self, step: RowStep, inits: Sequence[Any], carry: Sequence[Var]) -> None:
        """The instructions of what a loop carries."""
        for init, v in zip(inits, carry):
            names, held = self._names_of(v), {}
            self._check_lanes(names)
            for element in self._elements_of(v):
                first = self._of(init, v, element)
                n = self._append(
                    Instr("carried", (), (step.block, len(step.carried)), v.aval.dtype, names, 0),
                    step.block,
                )
                step.carried.append((first, n, -1))
                held[element] = n
                if not self.instrs[first].names <= names:
                    raise Infeasible
            self._held[v] = held
        if sum([self._registers(self.instrs[n].names) for _, n, _ in step.carried]) > _MAX_CARRIED:
            raise Infeasible

    def _of(self, x: Any, v: Var, element: tuple[int, ...]) -> int:
        """The instruction of an element of `x`, a value of v's shape or a number."""
        if type(x) is not Var:
            return self._emit("const", (), Literal(x), v.aval.dtype)
        return self.at(x, self._index(v, element), frozenset())

    def _close(
        self, step: RowStep, nexts: Sequence[int], carry: Sequence[Var], outs: Sequence[Var]
    ) -> None:
        """End a loop: the next values of what it carries, its instruction, and its results."""
        counters = set(self._block_of_counter)
        for k, (n, (first, here, _)) in enumerate(zip(nexts, step.carried, strict=True)):
            if not self.instrs[n].names - counters <= self.instrs[here].names:
                raise Infeasible
            step.carried[k] = first, here, n
        self._append(Instr("loop", (), step, dtypes.I32, frozenset(), 0), self._here)
        results = iter(step.carried)
        for out, v in zip(outs, carry):
            held = {}
            for element in self._elements_of(v):
                _, here, _ = next(results)
                instr = Instr("after", (here,), None, v.aval.dtype, self.instrs[here].names, 0)
                held[element] = self._append(instr, self._here)
            self._held[out] = held

    def _nexts(self, outs: Sequence[Any], carry: Sequence[Var]) -> list[int]:
        """The instructions of the next values of what a loop carries."""
        return [
            self._of(out, v, element)
            for out, v in zip(outs, carry)
            for element in self._elements_of(v)
        ]

    def _write(
        self,
        v: Var,
        target: Var,
        element: tuple[int, ...],
        n: int,
        block: int,
        step: Expr | None = None,
    ) -> None:
        """Store an element of `v`; `step`: in that row of `target`, a stack of values like it."""
        index = self._index(v, element)
        whole = index if step is None else (step, *index)
        offset = ix.ravel(whole, target.aval.shape)
        # Of rows that have one value in common the first stores it.
        mine = {self._classes.find((v, i)) for i, size in enumerate(v.aval.shape) if size != 1}
        once = [IndexGuard(e, 0, 1) for c, e in self._rows_at.items() if c not in mine]
        self.writes[block].append(RowStore(target, offset, n, frozenset(once)))

    def _keeps(self, n: int, predicate: int, here: int) -> bool:
        """Whether instruction n is `here` where the predicate does not hold."""
        i = self.instrs[n]
        if n == here:
            return True
        chosen = i.op == "map" and i.meta[0] is ops.select_p
        return chosen and i.args[0] == predicate and i.args[2] == here

    def _scan(self, e: Eqn, stacks: Sequence[Var]) -> None:
        p, body = e.params, e.params["jaxpr"]
        consts, end = p["consts"], p["consts"] + p["carry"]
        carry, length = body.invars[consts:end], p["length"]
        counter = Var(aval((), dtypes.I32))
        block = self._open(counter)
        step = RowStep(block, counter=self.counters[counter], length=length)
        self._alias(body.invars[:consts], e.ins[:consts], 0)
        self._carry(step, e.ins[consts:end], carry)
        where = {"length": length, "reverse": p["reverse"]}
        rows = [
            Eqn(loop_slice_p, [x, counter], where, (v,), e.where)
            for x, v in zip(e.ins[end:], body.invars[end:])
        ]
        self._adopt([*rows, *body.eqns], block)
        around, self._here = self._here, block
        step_at = self._counter(counter, length, p["reverse"])
        for out, stack in zip(body.outs[p["carry"] :], stacks):
            for element in self._elements_of(out):
                n = self._of(out, out, element)
                self._write(out, stack, element, n, block, step_at)
        nexts = [
            self._rounded(n, self.instrs[n].dtype)
            for n in self._nexts(body.outs[: p["carry"]], carry)
        ]
        self._here = around
        self._close(step, nexts, carry, e.outs[: p["carry"]])

    def _while(self, e: Eqn) -> None:
        p, cond, body = e.params, e.params["cond"], e.params["body"]
        a, b = p["cond_consts"], p["body_consts"]
        carry = body.invars[b:]
        block = self._open()
        step = RowStep(block)
        self._alias(cond.invars[:a], e.ins[:a], 0)
        self._alias(body.invars[:b], e.ins[a : a + b], 0)
        self._alias(cond.invars[a:], carry, block)
        self._carry(step, e.ins[a + b :], carry)
        test, any_row = row_predicate(cond)
        self._adopt([x for x in cond.eqns if x is not any_row], block)
        self._adopt(body.eqns, block)
        around, self._here = self._here, block
        elements = list(self._elements_of(test))
        if len(elements) != 1:
            raise Infeasible
        element = elements[0]
        step.predicate = self._of(test, test, element)
        names = self.instrs[step.predicate].names
        step.by_row = any_row is not None
        if self.lanes.within(names) or (names and not step.by_row):
            raise Infeasible
        nexts = self._nexts(body.outs, carry)
        # A row that is done must keep its values while others of its program go on.
        for n, (_, here, _) in zip(nexts, step.carried):
            if step.by_row and not self._keeps(n, step.predicate, here):
                raise Infeasible
        nexts = [self._rounded(n, self.instrs[n].dtype) for n in nexts]
        self._here = around
        self._close(step, nexts, carry, e.outs)
