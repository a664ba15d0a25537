"""What one row of a loop computes, but for the loops: instructions in nested blocks.

Block 0 runs once, the block of a loop once for each of its steps. Axes that are none of rows are
unrolled, an instruction for each element, or are *lanes*: loop variables `r0`, `r1`, ... that run
along the second axis of a tile. A value has one lane at most. Instructions stand in the outermost
block that knows their operands, so that what does not change leaves its loop.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from genesis_fn.compiler.loop_ir.kernel import (
    Infeasible,
    Instr,
    IterationDomain,
    KernelIR,
    Literal,
    loop_slice_p,
    reduced_axes,
)
from genesis_fn.compiler.row_loops.axes import Axis
from genesis_fn.compiler.row_loops.bodies import classes_of
from genesis_fn.compiler.simplify.rewriter import has_effect
from genesis_fn.core import dtypes
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr, Guards, Index, IndexGuard
from genesis_fn.core.backend.lowering import Elementwise, Reduce, Source, View
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.dot_general import dot_general_p, free_dims
from genesis_fn.primitives.indexing.gather import take_rows_p
from genesis_fn.primitives.random_bits import key_hash_p, random_bits_p
from genesis_fn.primitives.shape import copy_p
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p

_MAX_INSTRUCTIONS = 1024
_MAX_UNROLLED = 64  # elements of a value, an instruction each
_MIN_LANES = 8  # elements that are a lane rather than unrolled
_MAX_LANES = 2048
# Operations of a product without tensor cores, of which Triton's tiles reach 0.5 TFLOP/s (H200): in
# the 8 us that it takes as steps of a graph.
_MOST_EXACT = 4 << 20
_HOISTED = 48  # loads that are made before the loops, and stay in registers


class RowElements(KernelIR):
    """Elements of a row's values, as instructions in blocks.

    * `blocks[b]`: the instructions of a block, in order; `around[b]` the block around it.
    * `lanes`: the sizes of the lanes by name.
    * `checks`: the lookups that check their indices.
    * `uneven`: some results lack an axis of rows that others have. All rows along it then compute
      the same; if it was made with `common` it is none of rows.

    Operations beyond those of `Instr`, with their `meta`:

    * "lookup", a row of a table: variable, offset, stride of rows, rows, mode, what is beyond, the
      number of its check in `checks` or -1
    * "matrix", a constant one: variable, offset in `k` and a lane, depth, lane
    * "dot", a tile times a matrix: the precision, lanes
    * "words", a block of random words of a key and a counter: (generator,); "word": which of them
    * those of loops: see `RowNest`
    """

    def __init__(
        self, e: Eqn, outer: dict[Var, Eqn], common: bool, width: int, parts: bool
    ) -> None:
        super().__init__({}, (), IterationDomain(()), (), _MAX_INSTRUCTIONS, ())
        self.outer = outer
        self.blocks: list[list[int]] = [[]]
        self.around = [0]
        self.block_of: list[int] = []
        self.depth = [0]
        self.lanes: dict[str, int] = {}
        self._lane_names: dict[Any, str] = {}
        self.common, self._width = common, width
        self._indices: dict[Axis, Sequence[Expr]] = {}
        self._home: dict[Var, int] = {}
        self._held: dict[Var, dict[tuple[int, ...], int]] = {}
        self._block_of_counter: dict[str, int] = {}
        self._here = 0
        self._speculative = False  # within a branch that may not be chosen
        self.checks: list[Eqn] = []
        self._hoisted = 0
        self._classes = classes_of(e, parts)
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
            math.prod([self.lanes[x] for x in i.names if x in self.lanes])
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
            found = self._indices[key] = self._indices_along(v.aval.shape[i], key)
        return found

    def _indices_along(self, n: int, axis: Axis) -> Sequence[Expr]:
        if n == 1:
            return (ix.ZERO,)
        found = self._classes.find(axis)
        if found in self._rows_at:
            return (self._rows_at[found],)
        if n < _MIN_LANES or self._classes.is_moved(axis):
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
                along = self._axis(x, dim) if type(x) is Var else map(ix.const, range(n))
                indices += [ix.shift(i, first) for i in along]
                first += n
            return indices
        return []

    def _elements_of(self, v: Var) -> Iterator[tuple[int, ...]]:
        """The elements of a value that a row has, as positions among the indices of each axis."""
        sizes = [len(self._axis(v, i)) for i in range(v.aval.ndim)]
        if math.prod(sizes) > _MAX_UNROLLED:
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
        if op in ("load", "matrix", "lookup") and block == 0 != self._here:
            if self._hoisted >= _HOISTED and op != "matrix":
                block = self._here
        if op == "lookup" and meta[-1] >= 0:
            # A loop that runs no step checks nothing.
            block = max(block, self._here, key=self.depth.__getitem__)
        key = (op, args, meta, dtype, block)
        found = self._seen.get(key)
        if found is not None:
            return found
        if op in ("load", "matrix", "lookup") and block == 0:
            self._hoisted += 1
        if op not in ("whole", "product"):  # rows of all members, as their names say
            for a in operands:
                names |= self.instrs[a].names - set(self._block_of_counter)
        if op == "reduce":
            names -= set(self.lanes)
        if op == "dot":
            names = frozenset(meta[1]) | (names - set(self.lanes))
        if len(names & set(self.lanes)) > (2 if op == "matrix" else 1):
            raise Infeasible
        self._seen[key] = self._append(Instr(op, args, meta, dtype, names, 0, eqn), block)
        return len(self.instrs) - 1

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
        return list(
            dict.fromkeys([i.meta[0] for i in self.instrs if i.op in ("load", "matrix", "lookup")])
        )

    def at(self, v: Var, at: Index, guards: Guards) -> int:
        """The instruction that gives element `at` of `v` where `guards` hold."""
        key = (v, at, guards)
        found = self._memo.get(key)
        if found is None or not self._visible(found):
            lanes = [x for e in at for x in e.names if x in self.lanes]
            if len(lanes) > 1:
                raise Infeasible  # a matrix, of one lane with itself perhaps
            found = self._memo[key] = self._at(v, at, guards)
        return found

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
            return self._held[v][self._held_key(v, at)]
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

    def _held_key(self, v: Var, at: Index) -> tuple[int, ...]:
        """Which element in registers has index `at`."""
        key = []
        for i, here in enumerate(at):
            indices = self._axis(v, i)
            if here not in indices:
                raise Infeasible
            key.append(indices.index(here))
        return tuple(key)

    def _adopt(self, eqns: Sequence[Eqn], block: int) -> None:
        for e in eqns:
            if has_effect(e):
                raise Infeasible
            for v in e.outs:
                self.producer[v] = e
                self._home[v] = block

    # ---- equations ----

    def _compute(self, v: Var, e: Eqn, at: Index, guards: Guards) -> int:
        if e.prim is dot_general_p:
            return self._dot(v, e, at, guards)
        if e.prim is random_bits_p:
            return self._random_bits(e, at, guards)
        if e.prim is key_hash_p:
            return self._key_hash(e, at, guards)
        if e.prim is take_rows_p:
            return self._lookup(e, at, guards)
        if e.prim is cond_p:
            return self._chosen(v, e, at, guards)
        lowering = e.prim.lowering
        if type(lowering) is Reduce and e.ins[0].aval.size:
            return self._row_reduction(v, e, lowering, at, guards)
        if type(lowering) not in (Elementwise, View, Source, Reduce):
            raise Infeasible
        if type(lowering) is Elementwise and lowering.triton is None:
            raise Infeasible
        return super()._compute(v, e, at, guards)

    def _counter(self, counter: Var, length: int, reverse: bool) -> Expr:
        here = ix.var(self.counters[counter], length)
        return ix.shift(ix.scale(here, -1), length - 1) if reverse else here

    def _row_reduction(self, v: Var, e: Eqn, how: Reduce, at: Index, guards: Guards) -> int:
        """Unrolled axes element by element, then the lane."""
        x, axes, kept = e.ins[0], reduced_axes(e), iter(at)
        _check_accumulates(x.aval.dtype, how)
        ranges = [self._axis(x, i) if i in axes else [next(kept)] for i in range(x.aval.ndim)]
        if math.prod(map(len, ranges)) > _MAX_UNROLLED:
            raise Infeasible
        elements = []
        for index in itertools.product(*ranges):
            lane = self._lane_of([index[i] for i in axes])
            if lane and how.position:
                raise Infeasible
            elements.append((lane, self.at(x, index, guards)))
        if how.position:
            return self._position([n for _, n in elements], how, v.aval.dtype)
        return self._combined(elements, how, e)

    def _combined(self, elements: Sequence[tuple[str, int]], how: Reduce, e: Eqn) -> int:
        """The reduction of `elements`, (lane along which one is reduced or "", instruction): those
        of a lane first, since what lies beside it counts once and not for each of its elements."""
        dtype = e.outs[0].aval.dtype
        both = lambda a, b: self._emit("combine", (a, b), (how,), dtype, eqn=e)
        totals: dict[str, int] = {}
        for lane, n in elements:
            totals[lane] = both(totals[lane], n) if lane in totals else n
        whole = [self._across(n, how, lane, e) if lane else n for lane, n in totals.items()]
        return functools.reduce(both, whole)

    def _across(self, n: int, how: Reduce, lane: str, e: Eqn) -> int:
        """The reduction of a value along its lane."""
        return self._emit("reduce", (n,), (how, lane), e.outs[0].aval.dtype, eqn=e)

    def _lane_of(self, index: Sequence[Expr]) -> str:
        """The lane along which an index of reduced axes lies, "" if along none; one at most."""
        found = {x for i in index for x in i.names if x in self.lanes}
        if len(found) > 1:
            raise Infeasible
        return "".join(found)

    def _position(self, elements: Sequence[int], how: Reduce, dtype: DType) -> int:
        """Where the first extreme is; NaN is one."""
        kind = self.instrs[elements[0]].dtype
        better_p = ops.gt if how.combine == "maximum" else ops.lt
        best = elements[0]
        found = self._emit("const", (), Literal(0), dtype)
        for k, x in enumerate(elements[1:], 1):
            better = self._map(better_p.prim, x, best, dtype=dtypes.BOOL)
            if dtypes.is_float(kind):
                nan = self._map(ops.ne.prim, x, x, dtype=dtypes.BOOL)
                known = self._map(ops.eq.prim, best, best, dtype=dtypes.BOOL)
                first = self._map(ops.bitwise_and.prim, nan, known, dtype=dtypes.BOOL)
                better = self._map(ops.bitwise_or.prim, better, first, dtype=dtypes.BOOL)
            here = self._emit("const", (), Literal(k), dtype)
            found = self._map(ops.select_p, better, here, found, dtype=dtype)
            best = self._map(ops.select_p, better, x, best, dtype=kind)
        return found

    def _dot(self, v: Var, e: Eqn, at: Index, guards: Guards) -> int:
        (lhs, rhs) = e.ins
        if type(lhs) is not Var or type(rhs) is not Var:
            raise Infeasible
        dtype = v.aval.dtype
        if dtypes.is_complex(dtype) or (dtypes.is_integer(dtype) and dtype.itemsize < 4):
            raise Infeasible
        numbers = e.params["dimension_numbers"]
        (contracted_l, contracted_r), (batch_l, batch_r) = numbers
        free_l = free_dims(lhs.aval.ndim, (*contracted_l, *batch_l))
        free_r = free_dims(rhs.aval.ndim, (*contracted_r, *batch_r))
        index = iter(at)
        index_l: list[Any] = [None] * lhs.aval.ndim
        index_r: list[Any] = [None] * rhs.aval.ndim
        for i, j in zip(batch_l, batch_r):
            index_l[i] = index_r[j] = next(index)
        for i in free_l:
            index_l[i] = next(index)
        for j in free_r:
            index_r[j] = next(index)
        ranges = [self._axis(lhs, i) for i in contracted_l]
        if math.prod(map(len, ranges)) > _MAX_UNROLLED:
            raise Infeasible
        along = {x for i in itertools.chain(*ranges) for x in i.names if x in self.lanes}
        lane = {x for i in at for x in i.names if x in self.lanes}
        if along and lane:
            if len(contracted_l) != 1 or len(along) != 1 or guards:
                raise Infeasible
            (name,) = along
            return self._tile_product(e, index_l, index_r, ranges[0], name, lane)
        products = []
        for ks in itertools.product(*ranges):
            for k, i, j in zip(ks, contracted_l, contracted_r):
                index_l[i] = index_r[j] = k
            a = self.at(lhs, tuple(index_l), guards)
            b = self.at(rhs, tuple(index_r), guards)
            product = self._emit("map", (a, b), (ops.mul.prim, (), False), dtype, eqn=e)
            products.append((self._lane_of(ks), product))
        if not products:
            raise Infeasible
        return self._combined(products, _SUM, e)

    def _tile_product(
        self,
        e: Eqn,
        index_l: list[Any],
        index_r: list[Any],
        pieces: Sequence[Expr],
        along: str,
        lane: Collection[str],
    ) -> int:
        """A tile of rows and a lane times a constant matrix of that lane and another: the sum over
        the `pieces` of the contracted axis, each a lane."""
        (lane_name,) = lane
        tile, tile_index, axis, matrix_at = self._sides(e, index_l, index_r, lane_name)
        if self._width or any([p.names != frozenset((along,)) for p in pieces]):
            raise Infeasible
        depth, width = self.lanes[along], self.lanes[lane_name]
        exact = tile.aval.dtype == dtypes.F32 and e.params["precision"] == "highest"
        if exact and 2 * self.rows * depth * len(pieces) * width > _MOST_EXACT:
            raise Infeasible
        if depth < 16 or width < 16 or depth * width > 128 * 128:
            raise Infeasible
        total = None
        for piece in pieces:
            tile_index[axis] = piece
            source, offset = matrix_at(ix.substitute(piece, along, ix.var("k", depth)))
            a = self.at(tile, tuple(tile_index), frozenset())
            if "p" not in self.instrs[a].names:
                raise Infeasible
            meta = source, offset, depth, lane_name
            m = self._emit("matrix", (), meta, source.aval.dtype, frozenset())
            dot = (e.params["precision"], (lane_name,))
            product = self._emit("dot", (a, m), dot, dtypes.F32, eqn=e)
            total = product if total is None else self._sum(total, product)
        assert total is not None
        return self._rounded(total, e.outs[0].aval.dtype)

    def _sum(self, a: int, b: int) -> int:
        return self._emit("map", (a, b), (ops.add.prim, (), False), self.instrs[a].dtype)

    def _rounded(self, n: int, dtype: DType) -> int:
        """A value in registers, which hold float32, with the precision of its dtype."""
        return self._emit("round", (n,), None, dtype) if dtype in dtypes.NARROW else n

    def _sides(
        self, e: Eqn, index_l: list[Any], index_r: list[Any], lane: str
    ) -> tuple[Var, list[Any], int, Callable[[Expr], tuple[Var, Expr]]]:
        """(the operand of a product that is a tile, its index, the contracted axis, a function from
        an index along it in `k` to the matrix in memory and an offset): the matrix is the operand
        with the result's lane."""
        (contracted_l, contracted_r), _ = e.params["dimension_numbers"]
        sides = [(e.ins[0], index_l, contracted_l), (e.ins[1], index_r, contracted_r)]
        has_lane = lambda index: any(i is not None and lane in i.names for i in index)
        if has_lane(index_l):
            sides.reverse()
        (tile, tile_index, (axis,)), (matrix, matrix_index, (matrix_axis,)) = sides
        if has_lane(tile_index) or matrix.aval.dtype != tile.aval.dtype:
            raise Infeasible
        kind = tile.aval.dtype
        if not dtypes.is_float(kind) or kind == dtypes.F64:
            raise Infeasible

        def matrix_at(k: Expr) -> tuple[Var, Expr]:
            matrix_index[matrix_axis] = k
            found = self._in_memory(matrix, tuple(matrix_index))
            if found is None:
                raise Infeasible
            source, index = found
            offset = ix.ravel(index, source.aval.shape)
            if offset.names != frozenset(("k", lane)):
                raise Infeasible
            return source, offset

        return tile, tile_index, axis, matrix_at

    def _in_memory(self, v: Var, at: Index, sliced: bool = False) -> tuple[Var, Index] | None:
        """(value in memory, index) of an element, through views, with `sliced` also slices of the
        loops around; None where something computes it."""
        while v not in self._held and not self._is_loop(v):
            e = self.producer.get(v) or self.outer.get(v)
            if e is None:
                return v, at
            view = e.prim.lowering
            if type(view) is not View or (e.prim is loop_slice_p and not sliced):
                return None
            if e.prim is loop_slice_p:
                step = self._counter(e.ins[1], e.params["length"], e.params["reverse"])
                v, at = e.ins[0], (step, *at)
                continue
            avals = [i.aval if type(i) is Var else i for i in e.ins]
            pieces = view.pieces(e.outs.index(v), at, *avals, **e.params)
            if len(pieces) != 1 or pieces[0][2] or type(e.ins[pieces[0][0]]) is not Var:
                return None
            v, at = e.ins[pieces[0][0]], pieces[0][1]
        return None

    # ---- lookups and branches ----

    def _lookup(self, e: Eqn, at: Index, guards: Guards) -> int:
        """A row of a table in memory, whose number the row has computed."""
        (table, indices), mode = e.ins, e.params["mode"]
        if indices.aval.dtype.itemsize > 4 or guards:
            raise Infeasible
        count = table.aval.shape[0]
        row, rest = at[: indices.aval.ndim], at[indices.aval.ndim :]
        found = self._in_memory(table, (ix.var("k", count), *rest))
        if found is None:
            raise Infeasible
        source, index = found
        offset = ix.ravel(index, source.aval.shape)
        strides = [n for atom, n in offset.terms.items() if atom.key[:2] == ("var", "k")]
        first = ix.substitute(offset, "k", ix.ZERO)
        if "k" in first.names or len(strides) > 1:
            raise Infeasible
        number = self.at(indices, row, guards)
        check = -1
        if mode == "check":
            if self._speculative:
                raise Infeasible  # what is not chosen must not be checked
            if e not in self.checks:
                self.checks.append(e)
            check = self.checks.index(e)
        stride = strides[0] if strides else 0
        meta = (source, first, stride, count, mode, e.params["fill_value"], check)
        return self._emit("lookup", (number,), meta, table.aval.dtype, first.names)

    def _chosen(self, v: Var, e: Eqn, at: Index, guards: Guards) -> int:
        """The result of the branch that is chosen, of all branches' results."""
        k, index = e.outs.index(v), e.ins[0]
        if type(index) is not Var:
            raise Infeasible
        block = self._home.get(v, 0)
        for branch in e.params["branches"]:
            if branch.invars and branch.invars[0] in self.producer:
                continue
            if any([x.prim in (scan_p, while_p) for x in branch.eqns]):
                raise Infeasible
            self._alias(branch.invars, e.ins[1:], block)
            self._adopt(branch.eqns, block)
        before, self._speculative = self._speculative, True
        results = [
            self.at(b.outs[k], at, guards)
            if type(b.outs[k]) is Var
            else self._emit("const", (), Literal(b.outs[k]), v.aval.dtype)
            for b in e.params["branches"]
        ]
        self._speculative = before
        number = self.at(index, (), guards)
        found = results[-1]
        for i in range(len(results) - 2, -1, -1):
            here = self._map(ops.le.prim, number, Literal(i), dtype=dtypes.BOOL)
            found = self._map(ops.select_p, here, results[i], found, dtype=v.aval.dtype)
        return found

    # ---- random words ----

    def _words(self, impl: str, key: tuple[int, int], counter: tuple[Any, ...], k: int) -> int:
        words = self._emit("words", (*key, *counter), (impl,), dtypes.U32)
        return self._emit("word", (words,), (k,), dtypes.U32)

    def _key(self, key: Var, at: Index, guards: Guards) -> tuple[int, int]:
        return (self.at(key, (*at, ix.ZERO), guards), self.at(key, (*at, ix.const(1)), guards))

    def _integer(self, e: Expr) -> Any:
        if not e.names:
            return Literal(e.const)
        return self._emit("index", (), e, dtypes.U32, e.names)

    def _random_bits(self, e: Eqn, at: Index, guards: Guards) -> int:
        p, key = e.params, e.ins[0]
        keys = key.aval.ndim - 1
        if p["width"] != 32 or math.prod(p["shape"]) >= 1 << 31:
            raise Infeasible
        words = self._key(key, at[:keys], guards)
        number = ix.ravel(at[keys:], tuple(p["shape"]))
        if p["impl"] != "philox":
            counter = (Literal(0), self._integer(number))
            a, b = [self._words(p["impl"], words, counter, k) for k in range(2)]
            return self._map(ops.bitwise_xor.prim, a, b, dtype=dtypes.U32)
        zeros = (Literal(0),) * 3
        block, which = ix.div(number, 4), ix.mod(number, 4)
        counter = (self._integer(block), *zeros)
        if not which.names:
            return self._words("philox", words, counter, which.const)
        found = self._words("philox", words, counter, 3)
        for k in (2, 1, 0):
            guard = frozenset((IndexGuard(which, k, k + 1),))
            other = self._words("philox", words, counter, k)
            found = self._emit("where", (other, found), guard, dtypes.U32, which.names)
        return found

    def _key_hash(self, e: Eqn, at: Index, guards: Guards) -> int:
        p, (key, data) = e.params, e.ins
        if at[-1].names:
            raise Infeasible
        words = self._key(key, at[: key.aval.ndim - 1], guards)
        d = self.at(data, at[:-1], guards) if type(data) is Var else Literal(data)
        if p["impl"] == "philox":
            counter = (d, Literal(0), Literal(0), Literal(p["tag"]))
        else:
            counter = (Literal(0), d)
        return self._words(p["impl"], words, counter, at[-1].const)

    def _alias(self, inner: Sequence[Var], outer: Sequence[Any], block: int) -> None:
        """Let a body's inputs be values from outside."""
        self._adopt([Eqn(copy_p, [x], {}, (v,)) for v, x in zip(inner, outer)], block)


_SUM = Reduce("add", lambda dtype: 0)


def _check_accumulates(dtype: DType, how: Reduce) -> None:
    """Refuse sums of integers that are narrower than registers."""
    wraps = dtypes.is_integer(dtype) and dtype.itemsize < 4
    if wraps and how.combine in ("add", "multiply"):
        raise Infeasible
