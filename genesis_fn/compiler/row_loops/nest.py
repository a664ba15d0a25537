"""The IR of a loop that runs for each row by itself: `RowEquations`, and loops in loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from genesis_fn.compiler.loop_ir.kernel import Infeasible, Instr, Literal, loop_slice_p
from genesis_fn.compiler.row_loops.axes import row_predicate
from genesis_fn.compiler.row_loops.bodies import fresh_eqn
from genesis_fn.compiler.row_loops.elements import READS
from genesis_fn.compiler.row_loops.equations import RowEquations
from genesis_fn.compiler.row_loops.stacks import PROGRAM, Scratch, Stack, is_view, scratch_of
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr, Guards, Index, IndexGuard
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
    where `by_row`, and the loop of a program goes on while it holds for one of its rows. Of a loop
    that `shares` other threads of its program read what it stacks, when it is over.
    """

    block: int
    carried: list[tuple[int, int, int]] = field(default_factory=list)
    counter: str = ""
    length: int = 0
    predicate: int | None = None
    by_row: bool = False
    shares: bool = False


@dataclass(frozen=True, slots=True)
class RowStore:
    """A value that goes to memory, at an offset of `target` where `guards` hold."""

    target: Var
    offset: Expr
    value: int
    guards: Guards


class RowNest(RowEquations):
    """The instructions of one loop equation, for `rows` rows: `writes[b]` are the stores of block
    b, `results` the values that the equation gives, `scratch` those that only the nest reads.

    Operations of loops, with their `meta`: "loop": a `RowStep`; "carried": a loop's value of the
    step; "after": that when it is over; "read", of what the loop that is its operand has stacked:
    (variable, offset, guards). `waiting` are those that are at hand when a loop of their block is
    over.
    """

    waiting = frozenset(("after", "read"))

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
        self.scratch: list[Var] = []
        self._stacks: dict[Var, Stack] = {}
        self._adopt([e], 0)
        if e.prim is scan_p:
            for v, stack in zip(e.outs[e.params["carry"] :], self._scan(e)):
                self._store(v, stack)
        else:
            self._while(e)
        count = len(e.outs) if e.prim is while_p else e.params["carry"]
        for v in e.outs[:count]:
            for element in self._elements_of(v):
                self._write(v, v, self._index(v, element), self._held[v][element], 0)
        self.results = list(e.outs)
        firsts = e.ins[-count:] if e.prim is while_p else e.ins[e.params["consts"] :]
        self._firsts = dict(zip(e.outs[:count], firsts))
        used = [i.names for i in self.instrs]
        used += [s.offset.names for stores in self.writes for s in stores]
        self.lanes.keep(frozenset().union(*used))

    def overwritten(self, v: Var) -> Var | None:
        """The operand in whose memory result `v` may be: the first value of what a loop carries, of
        which rows read what they write, ahead of all loops, and nothing else."""
        x = self._firsts.get(v)
        stores = [s for s in self.writes[0] if s.target is v]
        if type(x) is not Var or x.aval != v.aval or not stores or any([s.guards for s in stores]):
            return None
        reads = [n for n, i in enumerate(self.instrs) if i.op in READS and i.meta[0] is x]
        own = {s.offset for s in stores}
        apart = [
            n
            for n in reads
            if self.instrs[n].op != "load" or self.block_of[n] or self.instrs[n].meta[1] not in own
        ]
        return x if reads and not apart else None

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
            self._stacks.update(zip(e.outs[e.params["carry"] :], self._scan(e)))
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
                if not self.instrs[first].names - set(self._block_of_counter) <= names:
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
    ) -> int:
        """End a loop: the next values of what it carries, its instruction, and its results. The
        instruction is returned."""
        counters = set(self._block_of_counter)
        for k, (n, (first, here, _)) in enumerate(zip(nexts, step.carried, strict=True)):
            if not self.instrs[n].names - counters <= self.instrs[here].names:
                raise Infeasible
            step.carried[k] = first, here, n
        number = self._append(Instr("loop", (), step, dtypes.I32, frozenset(), 0), self._here)
        results = iter(step.carried)
        for out, v in zip(outs, carry):
            held = {}
            for element in self._elements_of(v):
                _, here, _ = next(results)
                instr = Instr("after", (here,), None, v.aval.dtype, self.instrs[here].names, 0)
                held[element] = self._append(instr, self._here)
            self._held[out] = held
        return number

    def _nexts(self, outs: Sequence[Any], carry: Sequence[Var]) -> list[int]:
        """The instructions of the next values of what a loop carries."""
        return [
            self._of(out, v, element)
            for out, v in zip(outs, carry)
            for element in self._elements_of(v)
        ]

    def _write(self, v: Var, target: Var, at: Index, n: int, block: int) -> None:
        """Store an element of `v` as the one at index `at` of a result."""
        offset = ix.ravel(at, target.aval.shape)
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

    def _scan(self, e: Eqn) -> list[Stack]:
        """Make a scan's loop; what it stacks is returned, and not stored yet."""
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
        stacks = [self._stack(v, length, step_at) for v in body.outs[p["carry"] :]]
        nexts = [
            self._rounded(n, self.instrs[n].dtype)
            for n in self._nexts(body.outs[: p["carry"]], carry)
        ]
        self._here = around
        number = self._close(step, nexts, carry, e.outs[: p["carry"]])
        for stack in stacks:
            stack.loop = number
        return stacks

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
        if self._waits(step.predicate, block):
            raise Infeasible  # it is decided twice, ahead of the loop and at each step's end
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

    def _waits(self, n: int, block: int) -> bool:
        """Whether an instruction needs one of `waiting` in a block."""
        found: set[int] = set()
        todo = [n]
        while todo:
            n = todo.pop()
            if n not in found and self.block_of[n] == block:
                found.add(n)
                todo += self.instrs[n].operands()
        return any([self.instrs[n].op in self.waiting for n in found])

    # ---- stacks of inner loops ----

    def _stack(self, v: Any, length: int, step: Expr) -> Stack:
        """What a loop, whose block is the present one, stacks of its body's value `v`."""
        if type(v) is not Var:
            raise Infeasible
        views, whole = [], v
        while whole in self.producer and is_view(self.producer[whole]):
            views.append(self.producer[whole])
            whole = views[-1].ins[0]
        if self._is_stack(whole) and self._home[whole] == self._here:
            inner = self._stacked(whole)
            return Stack(length, step, self._here, v, inner=inner, views=views[::-1])
        values = {element: self._of(v, v, element) for element in self._elements_of(v)}
        return Stack(length, step, self._here, v, values)

    def _is_stack(self, v: Var) -> bool:
        e = self.producer.get(v)
        return e is not None and e.prim is scan_p and v in e.outs[e.params["carry"] :]

    def _stacked(self, v: Var) -> Stack:
        """The stack that an inner loop gives as `v`."""
        if v not in self._stacks:
            self._enter(self.producer[v])
        return self._stacks[v]

    def _store(self, target: Var, stack: Stack) -> None:
        """Store a stack as a result."""
        last = stack.levels()[-1]
        for element, n in last.values.items():
            at = stack.place(self._index(last.of, element))
            self._write(last.of, target, at, n, last.block)

    def _keep(self, stack: Stack) -> Scratch:
        """Store a stack where reads find it."""
        levels = stack.levels()
        last, steps = levels[-1], [s.step for s in levels]
        names = {x for element in last.values for x in self._names_at(last.of, element)}
        lanes = [(x, n) for x, n in self.lanes.items() if x in names]
        scratch = stack.scratch = scratch_of(stack, self.rows, "p" in names, lanes)
        for k, (element, n) in enumerate(last.values.items()):
            offset = scratch.offset(steps, k, self._names_at(last.of, element))
            self.writes[last.block].append(RowStore(scratch.buffer, offset, n, frozenset()))
        self.scratch.append(scratch.buffer)
        self.instrs[stack.loop].meta.shares = True
        return scratch

    def _names_at(self, v: Var, element: tuple[int, ...]) -> frozenset[str]:
        """The loop variables of an element's index."""
        return frozenset().union(*[i.names for i in self._index(v, element)])

    def _is_computed(self, v: Var) -> bool:
        return not self._is_stack(v) and super()._is_computed(v)

    def _at(self, v: Var, at: Index, guards: Guards) -> int:
        if not self._is_stack(v):
            return super()._at(v, at, guards)
        stack = self._stacked(v)
        scratch = stack.scratch or self._keep(stack)
        last = stack.levels()[-1]
        steps, index = stack.steps_and_index(at)
        element = self._held_key(last.of, index)
        if element is None:
            raise Infeasible
        k = list(last.values).index(element)
        offset = scratch.offset(steps, k, self._names_at(last.of, element))
        names = (offset.names - {PROGRAM}).union(*[g.expr.names for g in guards])
        # After the loop in its block, or in that of a reader's loop: as an operand says.
        meta = scratch.buffer, offset, guards
        return self._emit("read", (stack.loop,), meta, v.aval.dtype, names)
