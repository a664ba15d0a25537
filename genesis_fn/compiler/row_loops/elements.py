"""The elements of a row of a loop: instructions in nested blocks, and their axes.

Block 0 runs once, the block of a loop once for each of its steps. Axes that are none of rows are
unrolled, an instruction for each element, or are *lanes*: loop variables `r0`, `r1`, ... that run
along the second axis of a tile, or their twins along the third (`lanes`). A value has one each at
most. Instructions stand in the outermost block that knows their operands, so that what does not
change leaves its loop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from genesis_fn.compiler.loop_ir.domains import IterationDomain
from genesis_fn.compiler.loop_ir.kernel import Infeasible, Instr, KernelIR, Literal
from genesis_fn.compiler.row_loops.axes import Axis
from genesis_fn.compiler.row_loops.bodies import classes_of
from genesis_fn.compiler.row_loops.lanes import SECOND, THIRD, Lanes
from genesis_fn.compiler.simplify.rewriter import has_effect
from genesis_fn.core import dtypes
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr, Guards, Index
from genesis_fn.core.backend.lowering import Elementwise, Reduce, Source, View
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.shape import copy_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p

_MAX_INSTRUCTIONS = 1024
MAX_UNROLLED = 64  # elements of a value, an instruction each
_MIN_LANES = 8  # elements that are a lane rather than unrolled
_MAX_LANES = 2048
_MAX_TILE = 128 * 128  # elements of a row's value with two lanes
# Elements of a lane that change places. A gather takes as many shuffles as the square of those that
# a thread has: of 129 elements, 512 steps took longer than in a graph, and 15 s to compile.
_MOST_GATHERED = 128
_HOISTED = 48  # loads that are made before the loops, and stay in registers
READS = ("load", "matrix", "lookup")  # operations that read a value in memory
_ONE = 512  # elements of a row that count as one of these


class RowElements(KernelIR):
    """Elements of a row's values, as instructions in blocks.

    * `blocks[b]`: the instructions of a block, in order; `around[b]` the block around it.
    * `lanes`: the sizes of the lanes by name.
    * `checks`: the lookups that check their indices.
    * `uneven`: some results lack an axis of rows that others have. All rows along it then compute
      the same; if it was made with `common` it is none of rows.

    Operations beyond those of `Instr`, with their `meta`:

    * "lookup" at the places that are its operands: variable, offset of the first, the stride and
      the number of places of each operand, mode, what is beyond, and of each operand its check,
      (number in `checks`, component of an index), or None
    * "checked": an index, its operand, of which is noted whether it is one of so many places:
      (places, check)
    * "matrix", a constant one: variable, offset in `k` and a lane, depth, lane,
      the lane that it is multiplied along
    * "dot", a tile times a matrix: the precision, lanes
    * "turn": a value whose lanes are those of its operand along the tile's other axis
    * "gather" of elements along a lane, if made with `gathers`: the index of each, the lane
    * "words", a block of random words of a key and a counter: (generator,); "word": which of them
    * those of loops: see `RowNest`
    """

    def __init__(
        self, e: Eqn, outer: dict[Var, Eqn], common: bool, width: int, parts: bool, gathers: bool
    ) -> None:
        super().__init__({}, (), IterationDomain(()), (), _MAX_INSTRUCTIONS, ())
        self.outer = outer
        self.blocks: list[list[int]] = [[]]
        self.around = [0]
        self.block_of: list[int] = []
        self.depth = [0]
        self.lanes = Lanes()
        self._lane_names: dict[Any, str] = {}
        self.common, self._width, self._gathers = common, width, gathers
        self._indices: dict[Axis, Sequence[Expr]] = {}
        self._home: dict[Var, int] = {}
        self._held: dict[Var, dict[tuple[int, ...], int]] = {}
        self._block_of_counter: dict[str, int] = {}
        self._here = 0
        self._speculative = False  # within a branch that may not be chosen
        self.checks: list[Eqn] = []
        self._hoisted = 0
        self._classes = classes_of(e, parts, outer)
        self._find_rows(e, common)

    def _enter(self, e: Eqn) -> None:
        """Make the loop of an equation: what it gives is then held."""
        raise Infeasible

    # ---- axes ----

    def _find_rows(self, e: Eqn, common: bool) -> None:
        """Number the row classes of the results: those of the value with most of them first, in its
        order, so that rows are neighbours in memory as its elements are. If `common`, those that
        all results have which have any."""
        found = [
            {
                self._classes.find((v, i)): n
                for i, n in enumerate(v.aval.shape)
                if n != 1 and self._classes.is_row((v, i))
            }
            for v in e.outs
        ]
        order: dict[Any, int] = {}
        for rows in sorted(found, key=len, reverse=True):
            order |= {c: n for c, n in rows.items() if c not in order}
        shared = [c for c in order if all(c in rows for rows in found if rows)]
        self.uneven = len(shared) < len(order)
        if common:
            order = {c: order[c] for c in shared}
        sizes = tuple(order.values())
        self.rows = math.prod(sizes)
        at = ix.unravel(ix.var("p", self.rows), sizes)
        self._rows_at = dict(zip(order, at))

    @property
    def work(self) -> int:
        """The instructions of a step of all rows, an element of a lane each."""
        each = [
            self.lanes.elements(i.names)
            for i, block in zip(self.instrs, self.block_of)
            if block and i.op not in ("const", "carried", "after")
        ]
        return self.rows * sum(each)

    def _axis(self, v: Var, i: int) -> Sequence[Expr]:
        """The indices along an axis of a value that a row has: the row's, or those of the axis's
        unrolled elements, each a number or, of lanes, an expression in their variable."""
        key = v, i
        found = self._indices.get(key)
        if found is None:
            found = self._indices_along(v.aval.shape[i], key)
            if self._has_lane(found):
                before = sum([self._has_lane(self._axis(v, j)) for j in range(i)])
                if before > 1:
                    raise Infeasible
                found = self._turned_indices(found) if before else found
            self._indices[key] = found
        return found

    def _has_lane(self, indices: Sequence[Expr]) -> bool:
        return bool(self.lanes.within(indices[0].names))

    def _turned_indices(self, indices: Sequence[Expr]) -> Sequence[Expr]:
        """The same elements along the tile's other axis."""
        return [self.lanes.turned(e) for e in indices]

    def _untwinned(self, indices: Sequence[Expr]) -> Sequence[Expr]:
        """The same elements along the tile's second axis."""
        lanes = self.lanes.within(indices[0].names)
        third = lanes and self.lanes.axis(lanes[0]) == THIRD
        return self._turned_indices(indices) if third else indices

    def _ranges(
        self, x: Var, axes: Collection[int], at: Index, guards: Guards, others: Collection[str] = ()
    ) -> list[Sequence[Expr]]:
        """The indices along axes that are reduced where the others are at `at`: lanes among them
        run along axes of the tile that no other one runs along, of these and of `others`."""
        names = {n for e in (*at, *[g.expr for g in guards]) for n in e.names}.union(others)
        taken = {self.lanes.axis(n) for n in self.lanes.within(names)}
        found = []
        for i in axes:
            along = self._untwinned(self._axis(x, i))
            if self._has_lane(along):
                if SECOND in taken:
                    along = self._turned_indices(along)
                (axis,) = {self.lanes.axis(n) for n in self.lanes.within(along[0].names)}
                if axis in taken:
                    raise Infeasible
                taken.add(axis)
            found.append(along)
        return found

    def _indices_along(self, n: int, axis: Axis) -> Sequence[Expr]:
        if n == 1:
            return (ix.ZERO,)
        found = self._classes.find(axis)
        if found in self._rows_at:
            return (self._rows_at[found],)
        if n < _MIN_LANES or (self._classes.is_moved(axis) and not self._gathers):
            return self._pieces_along(found) or [ix.const(k) for k in range(n)]
        # A thread has several elements of a row where that leaves threads enough.
        width = math.gcd(n, self._width) if self._width else n
        if width == 1:
            return [ix.const(k) for k in range(n)]
        lane = ix.var(self._lane(found, n, width), width)
        return [ix.shift(lane, k) for k in range(0, n, width)]

    def _lane(self, found: Axis, n: int, width: int) -> str:
        """The lane of a class of axes of length `n`, of which a tile has `width` elements."""
        if width > _MAX_LANES:
            raise Infeasible
        name = self._lane_names.setdefault(found, f"r{len(self._lane_names)}")
        self.lanes[name] = width
        return name

    def _pieces_along(self, found: Axis) -> list[Expr]:
        """The indices along a concatenated axis, those of its pieces one after the other; none if
        no concatenation makes the class `found`, or its pieces are those of more than one."""
        if not self._classes.parts:
            return []
        for e in self._classes.concatenations:
            dim, first, indices = e.params["dimension"], 0, []
            if self._classes.find((e.outs[0], dim)) != found:
                continue
            for x in e.ins:
                n = x.aval.shape[dim]
                along = (
                    self._untwinned(self._axis(x, dim))
                    if type(x) is Var
                    else [ix.const(k) for k in range(n)]
                )
                indices += [ix.shift(i, first) for i in along]
                first += n
            return indices
        return []

    def _elements_of(self, v: Var) -> Iterator[tuple[int, ...]]:
        """The elements of a value that a row has, as positions among the indices of each axis."""
        sizes = [len(self._axis(v, i)) for i in range(v.aval.ndim)]
        if math.prod(sizes) > MAX_UNROLLED:
            raise Infeasible
        return itertools.product(*map(range, sizes))

    def _index(self, v: Var, element: Sequence[int]) -> Index:
        """The whole index of an element of a row."""
        return tuple([self._axis(v, i)[k] for i, k in enumerate(element)])

    def _names_of(self, v: Var) -> frozenset[str]:
        """The loop variables that a value in registers may depend on."""
        return frozenset().union(*[self._axis(v, i)[0].names for i in range(v.aval.ndim)])

    # ---- instructions ----

    def _emit(
        self,
        op: str,
        args: tuple[Any, ...],
        meta: Any,
        dtype: DType,
        names: frozenset[str] = frozenset(),
        eqn: Eqn | None = None,
    ) -> int:
        operands = [a for a in args if type(a) is int]
        block = max(
            [self.block_of[a] for a in operands]
            + [self._block_of_counter[x] for x in names if x in self._block_of_counter]
            + [0],
            key=self.depth.__getitem__,
        )
        if op in READS and block == 0 != self._here:
            if self._hoisted >= _HOISTED and op != "matrix":
                block = self._here
        if op == "checked" or (op == "lookup" and any(meta[-1])):
            # A loop that runs no step checks nothing.
            block = max(block, self._here, key=self.depth.__getitem__)
        key = (op, args, meta, dtype, block)
        found = self._seen.get(key)
        if found is not None:
            return found
        if op in READS and block == 0:
            self._hoisted += self._registers(names)
        if op not in ("whole", "product"):  # rows of all members, as their names say
            for a in operands:
                names |= self.instrs[a].names - set(self._block_of_counter)
        if op == "reduce":
            names -= {meta[1]}
        if op == "dot":
            names = frozenset(meta[1]) | (names - set(self.lanes))
        if op == "gather":
            names = (names - {meta[1]}) | meta[0].names
        if op == "turn":
            names = frozenset([self.lanes.twin(x) if x in self.lanes else x for x in names])
        self._check_lanes(names)
        self._seen[key] = self._append(Instr(op, args, meta, dtype, names, 0, eqn), block)
        return len(self.instrs) - 1

    def _check_lanes(self, names: Collection[str]) -> None:
        """Refuse values with more lanes than a tile has axes, and too large ones."""
        axes = [self.lanes.axis(x) for x in self.lanes.within(names)]
        if len(set(axes)) < len(axes) or self.lanes.elements(names) > _MAX_TILE:
            raise Infeasible

    def _registers(self, names: Collection[str]) -> int:
        """How many values of one lane at most a value counts for."""
        return (
            max(1, self.lanes.elements(names) // _ONE) if len(self.lanes.within(names)) > 1 else 1
        )

    def _append(self, instr: Instr, block: int) -> int:
        if len(self.instrs) >= self.max_instrs or instr.dtype.name.startswith("float8"):
            raise Infeasible
        self.instrs.append(instr)
        self.block_of.append(block)
        self.blocks[block].append(len(self.instrs) - 1)
        return len(self.instrs) - 1

    def of(self, op: str) -> list[int]:
        """The numbers of the instructions of an operation."""
        return [n for n, i in enumerate(self.instrs) if i.op == op]

    def operands(self) -> list[Var]:
        """The values in memory that it reads."""
        return list(dict.fromkeys([i.meta[0] for i in self.instrs if i.op in READS]))

    def at(self, v: Var, at: Index, guards: Guards) -> int:
        """The instruction that gives element `at` of `v` where `guards` hold."""
        # Of one element what guards hold for is that one.
        at = tuple([ix.ZERO if n == 1 else e for e, n in zip(at, v.aval.shape)])
        key = (v, at, guards)
        found = self._memo.get(key)
        if found is None or not self._visible(found):
            axes = [self.lanes.axis(x) for e in at for x in self.lanes.within(e.names)]
            computed = self._is_computed(v)
            if len(set(axes)) < len(axes):
                # A diagonal, or one axis as two: what is in memory or in other axes has those.
                if computed and not self._is_elementwise(v):
                    raise Infeasible
                computed = False
            moved = self._moved_axis(v, at) if computed and self._gathers else None
            if axes == [THIRD] and computed:
                # Once, along the axis where all values with one lane are.
                found = self._turned(self.at(v, *self.lanes.turned_at(at, guards)))
            elif moved is not None:
                found = self._gathered(v, at, moved)
            else:
                found = self._at(v, at, guards)
            self._memo[key] = found
        return found

    def _is_elementwise(self, v: Var) -> bool:
        return v in self.producer and type(self.producer[v].prim.lowering) is Elementwise

    def _is_computed(self, v: Var) -> bool:
        """Whether a value is none in memory, moved or known by its index."""
        if v in self._held or self._is_loop(v):
            return True
        return v in self.producer and type(self.producer[v].prim.lowering) not in (View, Source)

    def _moved_axis(self, v: Var, at: Index) -> int | None:
        """The first axis of a value in registers along which `at` is none of their indices."""
        for i, e in enumerate(at):
            along = self._axis(v, i)
            if self._has_lane(along) and e not in along and self.lanes.turned(e) not in along:
                return i
        return None

    def _gathered(self, v: Var, at: Index, i: int) -> int:
        """A value in registers at an index that moves its elements along axis `i`. All of them are
        there, so that what guards the index need not."""
        here, lanes = at[i], self.lanes.within(at[i].names)
        others = (*at[:i], *at[i + 1 :])
        taken = {self.lanes.axis(x) for e in others for x in self.lanes.within(e.names)}
        axis = self.lanes.axis(lanes[0]) if lanes else THIRD if SECOND in taken else SECOND
        indices = self._untwinned(self._axis(v, i))
        if len(indices) != 1:
            raise Infeasible
        (along,) = self._turned_indices(indices) if axis == THIRD else indices
        n = self.at(v, (*at[:i], along, *at[i + 1 :]), frozenset())
        (lane,) = self.lanes.within(along.names)
        if lane not in self.instrs[n].names:
            return n  # the same for all elements
        if not lanes:
            return self._element(n, along, here, lane)
        if max(self.lanes[lane], self.lanes[lanes[0]]) > _MOST_GATHERED:
            raise Infeasible
        # Triton fails to lay out an index that is longer or shorter than what it is of.
        self.lanes.pad_alike(lanes[0], lane)
        return self._emit("gather", (n,), (here, lane), self.instrs[n].dtype, here.names)

    def _element(self, n: int, along: Expr, here: Expr, lane: str) -> int:
        """The element of a value at one place along a lane: the greatest of it and of nothing."""
        number = self._emit("index", (), along, dtypes.I32, along.names)
        wanted = self._emit("index", (), here, dtypes.I32, here.names)
        alone, how = self._alone(self._map(ops.eq.prim, number, wanted, dtype=dtypes.BOOL), n)
        return self._emit("reduce", (alone,), (how, lane), self.instrs[n].dtype)

    def _alone(self, hit: int, n: int) -> tuple[int, Reduce]:
        """(a value where `hit` holds and nothing elsewhere, the reduction that finds it there)."""
        dtype = self.instrs[n].dtype
        if dtypes.is_complex(dtype):
            raise Infeasible
        if dtype == dtypes.BOOL:
            return self._map(ops.bitwise_and.prim, hit, n, dtype=dtype), _ANY
        least = Literal(dtypes.extreme_over_nothing(dtype, True))
        return self._map(ops.select_p, hit, n, least, dtype=dtype), _GREATEST

    def _turned(self, n: int) -> int:
        """The value of an instruction along the tile's other axis."""
        i = self.instrs[n]
        if not self.lanes.within(i.names):
            return n
        return i.args[0] if i.op == "turn" else self._emit("turn", (n,), None, i.dtype)

    def _visible(self, n: int) -> bool:
        """Whether the present block, or one around it, holds instruction n."""
        block, here = self.block_of[n], self._here
        while here != block and here:
            here = self.around[here]
        return here == block

    def _at(self, v: Var, at: Index, guards: Guards) -> int:
        if v in self._held or self._is_loop(v):
            if v not in self._held:
                self._enter(self.producer[v])
            return self._of_held(v, at)
        if v in self.producer:
            return self._compute(v, self.producer[v], at, guards)
        e = self.outer.get(v)
        if e is not None:
            # What is known by its index, or only moved, is not worth its place in memory.
            return self._compute(v, e, at, guards)
        offset = ix.ravel(at, v.aval.shape)
        names = offset.names.union(*[g.expr.names for g in guards])
        return self._emit("load", (), (v, offset, guards), v.aval.dtype, names)

    def _is_loop(self, v: Var) -> bool:
        return v in self.producer and self.producer[v].prim in (scan_p, while_p)

    def _of_held(self, v: Var, at: Index) -> int:
        """The instruction of what is in registers, turned where its axes are asked for in another
        order."""
        key = self._held_key(v, at)
        if key is not None:
            return self._held[v][key]
        key = self._held_key(v, self.lanes.turned_at(at, frozenset())[0])
        if key is None:
            raise Infeasible
        return self._turned(self._held[v][key])

    def _held_key(self, v: Var, at: Index) -> tuple[int, ...] | None:
        """Which element in registers has index `at`."""
        key = []
        for i, here in enumerate(at):
            indices = self._axis(v, i)
            if here not in indices:
                return None
            key.append(indices.index(here))
        return tuple(key)

    def _adopt(self, eqns: Sequence[Eqn], block: int) -> None:
        for e in eqns:
            if has_effect(e):
                raise Infeasible
            for v in e.outs:
                self.producer[v] = e
                self._home[v] = block

    def _alias(self, inner: Sequence[Var], outer: Sequence[Any], block: int) -> None:
        """Let a body's inputs be values from outside."""
        self._adopt([Eqn(copy_p, [x], {}, (v,)) for v, x in zip(inner, outer)], block)


_ANY = Reduce("bit_or", lambda dtype: False)
_GREATEST = Reduce("maximum", lambda dtype: dtypes.extreme_over_nothing(dtype, True))
