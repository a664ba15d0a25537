"""What one row of a loop computes, but for the loops: the instructions of equations."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from genesis_fn.compiler.loop_ir import lookups
from genesis_fn.compiler.loop_ir.intervals import interval_of
from genesis_fn.compiler.loop_ir.kernel import Infeasible, Literal, loop_slice_p, reduced_axes
from genesis_fn.compiler.loop_ir.lookups import Start
from genesis_fn.compiler.loop_ir.updates import UPDATES, combine_of, update_of
from genesis_fn.compiler.row_loops.elements import MAX_UNROLLED, RowElements
from genesis_fn.core import dtypes
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr, Guards, Index, IndexGuard
from genesis_fn.core.backend.lowering import Elementwise, Reduce, Source, View
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.dot_general import dot_general_p, free_dims
from genesis_fn.primitives.indexing.gather import fill_value
from genesis_fn.primitives.random_bits import key_hash_p, random_bits_p
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p

# Operations of a product without tensor cores, of which Triton's tiles reach 0.5 TFLOP/s (H200): in
# the 8 us that it takes as steps of a graph.
_MOST_EXACT = 4 << 20
_MOST_SUMS = 4 << 20  # operations of a product that is written out as products and their sum
# Elements that are compared with a place in each step: an estimate of what takes as long as an
# update in a graph, about 3 us.
_MOST_COMPARED = 16 << 20


class RowEquations(RowElements):
    """Instructions of the equations of a loop's body: reductions within a row, small products,
    lookups, branches and random words, beside what any kernel computes."""

    def _compute(self, v: Var, e: Eqn, at: Index, guards: Guards) -> int:
        if e.prim is dot_general_p:
            return self._dot(v, e, at, guards)
        if e.prim is random_bits_p:
            return self._random_bits(e, at, guards)
        if e.prim is key_hash_p:
            return self._key_hash(e, at, guards)
        if lookups.is_lookup(e):
            return self._lookup(e, at, guards)
        if e.prim in UPDATES:
            return self._updated(v, e, at, guards)
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
        reduced = dict(zip(axes, self._ranges(x, axes, at, guards)))
        ranges = [reduced[i] if i in axes else [next(kept)] for i in range(x.aval.ndim)]
        if math.prod(map(len, ranges)) > MAX_UNROLLED:
            raise Infeasible
        indices = list(itertools.product(*ranges))
        along = [[index[i] for i in axes] for index in indices]
        elements = [
            (self._lanes_of(i), self.at(x, index, guards)) for i, index in zip(along, indices)
        ]
        if not how.position:
            return self._combined(elements, how, e, v.aval.dtype)
        if not any([lanes for lanes, _ in elements]):
            return self._position([n for _, n in elements], how, v.aval.dtype)
        sizes = tuple([x.aval.shape[i] for i in axes])
        numbers = [ix.ravel(tuple(i), sizes) for i in along]
        return self._position_along(elements, numbers, how, e)

    def _combined(
        self, elements: Sequence[tuple[tuple[str, ...], int]], how: Reduce, e: Eqn, dtype: DType
    ) -> int:
        """The reduction of `elements`, (lanes along which one is reduced, instruction): those of
        a lane first, since what lies beside it counts once and not for each of its elements."""
        both = lambda a, b: self._emit("combine", (a, b), (how,), dtype, eqn=e)
        totals: dict[tuple[str, ...], int] = {}
        for lanes, n in elements:
            totals[lanes] = both(totals[lanes], n) if lanes in totals else n
        whole = []
        for lanes, n in totals.items():
            for lane in lanes:
                n = self._across(n, how, lane, e, dtype)
            whole.append(n)
        return functools.reduce(both, whole)

    def _across(self, n: int, how: Reduce, lane: str, e: Eqn, dtype: DType) -> int:
        """The reduction of a value along its lane."""
        return self._emit("reduce", (n,), (how, lane), dtype, eqn=e)

    def _lanes_of(self, index: Sequence[Expr]) -> tuple[str, ...]:
        """The lanes along which an index of reduced axes lies, the last axis of a tile first."""
        return tuple(self.lanes.within({x for i in index for x in i.names})[::-1])

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

    def _position_along(
        self,
        elements: Sequence[tuple[tuple[str, ...], int]],
        numbers: Sequence[Expr],
        how: Reduce,
        e: Eqn,
    ) -> int:
        """Where the first extreme is, of elements with these numbers some of which are lanes: the
        least number of those that equal the extreme; NaN is one."""
        kind, dtype = self.instrs[elements[0][1]].dtype, e.outs[0].aval.dtype
        extreme = self._combined(elements, Reduce(how.combine, how.identity), e, kind)
        hits = []
        for (lanes, n), number in zip(elements, numbers):
            hit = self._map(ops.eq.prim, n, extreme, dtype=dtypes.BOOL)
            if dtypes.is_float(kind):
                nan = self._map(ops.ne.prim, n, n, dtype=dtypes.BOOL)
                hit = self._map(ops.bitwise_or.prim, hit, nan, dtype=dtypes.BOOL)
            here = self._emit("index", (), number, dtype, number.names)
            none = Literal(dtypes.iinfo(dtype).max)
            hits.append((lanes, self._map(ops.select_p, hit, here, none, dtype=dtype)))
        return self._combined(hits, _LEAST, e, dtype)

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
        pieces = [self._untwinned(self._axis(lhs, i)) for i in contracted_l]
        if math.prod(map(len, pieces)) > MAX_UNROLLED:
            raise Infeasible
        along = set().union(*[self.lanes.within(i.names) for i in itertools.chain(*pieces)])
        lanes = set().union(*[self.lanes.within(i.names) for i in at])
        if along and lanes:
            if len(pieces) == 1 and len(lanes) == 1 and not guards:
                found = self._tile_product(e, list(index_l), list(index_r), pieces[0], lanes)
                if found is not None:
                    return found
            operations = 2 * self.rows * math.prod(map(len, pieces))
            if operations * self.lanes.elements(along) * self.lanes.elements(lanes) > _MOST_SUMS:
                raise Infeasible
        ranges = self._ranges(lhs, contracted_l, at, guards)
        products = []
        for ks in itertools.product(*ranges):
            for k, i, j in zip(ks, contracted_l, contracted_r):
                index_l[i] = index_r[j] = k
            a = self.at(lhs, tuple(index_l), guards)
            b = self.at(rhs, tuple(index_r), guards)
            product = self._emit("map", (a, b), (ops.mul.prim, (), False), dtype, eqn=e)
            products.append((self._lanes_of(ks), product))
        if not products:
            raise Infeasible
        return self._combined(products, _SUM, e, dtype)

    def _tile_product(
        self,
        e: Eqn,
        index_l: list[Any],
        index_r: list[Any],
        pieces: Sequence[Expr],
        lanes: Collection[str],
    ) -> int | None:
        """A tile of rows and a lane times a constant matrix of that lane and another: the sum over
        the `pieces` of the contracted axis, each a lane. None if the operands are no such things,
        or too small."""
        (lane_name,) = lanes
        sides = self._sides(e, index_l, index_r, lane_name)
        along = pieces[0].names
        if sides is None or self._width or len(along) != 1:
            return None
        tile, tile_index, axis, matrix_at = sides
        (name,) = along
        if any([p.names != along for p in pieces]):
            return None
        depth, width = self.lanes[name], self.lanes[lane_name]
        exact = tile.aval.dtype == dtypes.F32 and e.params["precision"] == "highest"
        if exact and 2 * self.rows * depth * len(pieces) * width > _MOST_EXACT:
            raise Infeasible
        if depth < 16 or width < 16:
            return None
        if depth * width > 128 * 128:
            raise Infeasible
        total = None
        for piece in pieces:
            tile_index[axis] = piece
            matrix = matrix_at(ix.substitute(piece, name, ix.var("k", depth)))
            if matrix is None:
                raise Infeasible
            source, offset = matrix
            a = self.at(tile, tuple(tile_index), frozenset())
            if "p" not in self.instrs[a].names:
                raise Infeasible
            meta = source, offset, depth, lane_name, name
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
    ) -> tuple[Var, list[Any], int, Callable[[Expr], tuple[Var, Expr] | None]] | None:
        """(the operand of a product that is a tile, its index, the contracted axis, a function from
        an index along it in `k` to the matrix in memory and an offset): the matrix is the operand
        with the result's lane. None if there is none that all rows have in common."""
        (contracted_l, contracted_r), _ = e.params["dimension_numbers"]
        sides = [(e.ins[0], index_l, contracted_l), (e.ins[1], index_r, contracted_r)]
        has_lane = lambda index: any(i is not None and lane in i.names for i in index)
        if has_lane(index_l):
            sides.reverse()
        (tile, tile_index, (axis,)), (matrix, matrix_index, (matrix_axis,)) = sides
        kind = tile.aval.dtype
        if has_lane(tile_index) or matrix.aval.dtype != kind:
            return None
        if not dtypes.is_float(kind) or kind == dtypes.F64:
            return None

        def matrix_at(k: Expr) -> tuple[Var, Expr] | None:
            matrix_index[matrix_axis] = k
            found = self._in_memory(matrix, tuple(matrix_index))
            if found is None:
                return None
            source, index = found
            offset = ix.ravel(index, source.aval.shape)
            return (source, offset) if offset.names == frozenset(("k", lane)) else None

        whole = matrix_at(ix.var("k", matrix.aval.shape[matrix_axis]))
        return None if whole is None else (tile, tile_index, axis, matrix_at)

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
        """An element of an array at places that the row has computed."""
        if guards:
            raise Infeasible
        window, mode, dtype = lookups.window_of(e, at), lookups.mode_of(e), e.outs[0].aval.dtype
        index, computed = list(window.index), []
        for k, start in enumerate(window.starts):
            if type(start.value) is int:
                index[start.d] = ix.add(index[start.d], start.number)
                continue
            n = self._component(start)
            first = lookups.known_index(self.instrs, n)
            if first is not None and start.has(first):
                index[start.d] = ix.add(index[start.d], first)
            else:
                computed.append((start, n, k))
        if not computed:
            return self.at(e.ins[0], tuple(index), guards)
        full = list(index)
        for start, _, k in computed:
            full[start.d] = ix.add(index[start.d], ix.var(f"k{k}", start.count))
        found = self._in_memory(e.ins[0], tuple(full), sliced=True)
        if found is None:
            return self._selected(e, index, computed)
        source, inside = found
        offset, strides = ix.ravel(inside, source.aval.shape), []
        for _, _, k in computed:
            terms = [n for atom, n in offset.terms.items() if atom.key[:2] == ("var", f"k{k}")]
            offset = ix.substitute(offset, f"k{k}", ix.ZERO)
            if len(terms) > 1 or f"k{k}" in offset.names:
                raise Infeasible
            strides.append(sum(terms))
        numbers = tuple([n for _, n, _ in computed])
        counts = tuple([start.count for start, _, _ in computed])
        checks = tuple([self._check_of(e, k, n, start.count) for start, n, k in computed])
        beyond = fill_value(e.params["fill_value"], dtype) if mode == "fill" else None
        meta = (source, offset, tuple(strides), counts, mode, beyond, checks)
        return self._emit("lookup", numbers, meta, dtype, offset.names)

    def _selected(
        self, e: Eqn, index: list[Expr], computed: Sequence[tuple[Start, int, int]]
    ) -> int:
        """An element of an array in registers: the greatest of the one at the places that the row
        has `computed`, (start, instruction, component), and of nothing at all others."""
        table, fits, wanted = e.ins[0], [], {}
        for start, n, k in computed:
            if lookups.mode_of(e) == "fill":
                fits += [
                    self._compared(ops.ge.prim, n, 0),
                    self._compared(ops.lt.prim, n, start.count),
                ]
            n = self._within(e, start, n, k)
            if index[start.d].names or index[start.d].const:
                kind = self.instrs[n].dtype
                n = self._map(ops.add.prim, n, self._number(index[start.d], kind), dtype=kind)
            wanted[start.d] = n
        others = tuple([x for d, x in enumerate(index) if d not in wanted])
        names = frozenset().union(*[self.instrs[n].names for n in wanted.values()])
        ranges = self._ranges(table, wanted, others, frozenset(), names)
        along = [piece for pieces in ranges for piece in pieces[:1]]
        if math.prod(map(len, ranges)) > MAX_UNROLLED or self._compares(along) > _MOST_COMPARED:
            raise Infeasible
        elements, how = [], None
        for pieces in itertools.product(*ranges):
            for d, piece in zip(wanted, pieces):
                index[d] = piece
            hit = self._hit(pieces, tuple(wanted.values()))
            alone, how = self._alone(hit, self.at(table, tuple(index), frozenset()))
            elements.append((self._lanes_of(pieces), alone))
        assert how is not None
        dtype = e.outs[0].aval.dtype
        found = self._combined(elements, how, e, dtype)
        for fit in fits:
            other = Literal(fill_value(e.params["fill_value"], dtype))
            found = self._map(ops.select_p, fit, found, other, dtype=dtype)
        return found

    def _updated(self, v: Var, e: Eqn, at: Index, guards: Guards) -> int:
        """An element of what an update makes of an array: changed if it lies at the places that
        the row has computed."""
        update = None if guards else update_of(self._classes.producer, e, at)
        dtype = v.aval.dtype
        if update is None or self._compares(at) > _MOST_COMPARED:
            raise Infeasible
        before = self.at(e.ins[0], at, guards)
        value = self.at(update.value, update.index, guards)
        combine = combine_of(e.params.get("kind", "set"))
        if combine is not None and dtype == dtypes.BOOL:
            raise Infeasible  # which operations of numbers have no booleans for
        if combine is not None:
            value = self._rounded(self._map(combine, before, value, dtype=dtype), dtype)
        wanted = []
        for start in update.starts:
            if type(start.value) is int:
                wanted.append(self._number(start.number, dtypes.I32))
            else:
                component = start.index[-1].const if start.index else 0
                wanted.append(self._within(e, start, self._component(start), component))
        if not wanted:
            return value
        hit = self._hit([at[start.d] for start in update.starts], wanted)
        return self._map(ops.select_p, hit, value, before, dtype=dtype)

    def _compares(self, index: Sequence[Expr]) -> int:
        """The elements that all rows have at an index along lanes."""
        return self.rows * self.lanes.elements({x for i in index for x in i.names})

    def _component(self, start: Start) -> int:
        """Where a window begins along a dimension, as a number that holds all of its places."""
        n = self._start(start, frozenset())
        if start.count <= dtypes.iinfo(self.instrs[n].dtype).max:
            return n
        kind = dtypes.I32 if start.count < 1 << 31 else dtypes.I64
        return self._emit("map", (n,), (ops.convert_p, (("dtype", kind),), False), kind)

    def _number(self, e: Expr, kind: DType) -> int:
        """An index as a number."""
        return self._emit("index", (), e, kind, e.names)

    def _compared(self, comparison: Primitive, n: int, other: int) -> int:
        return self._map(comparison, n, Literal(other), dtype=dtypes.BOOL)

    def _hit(self, index: Sequence[Expr], wanted: Sequence[int]) -> int:
        """Whether an element at an index is `wanted`, numbers along as many axes."""
        found = None
        for here, n in zip(index, wanted):
            number = self._number(here, self.instrs[n].dtype)
            hit = self._map(ops.eq.prim, number, n, dtype=dtypes.BOOL)
            if found is not None:
                hit = self._map(ops.bitwise_and.prim, found, hit, dtype=dtypes.BOOL)
            found = hit
        assert found is not None
        return found

    def _within(self, e: Eqn, start: Start, n: int, k: int) -> int:
        """Component k of a place, instruction n: checked, or held within the array, as the mode of
        a lookup or an update says."""
        check, kind = self._check_of(e, k, n, start.count), self.instrs[n].dtype
        if check is not None:
            return self._emit("checked", (n,), (start.count, check), kind)
        if lookups.mode_of(e) == "clip":
            n = self._map(ops.max.prim, n, Literal(0), dtype=kind)
            n = self._map(ops.min.prim, n, Literal(start.count - 1), dtype=kind)
        return n

    def _check_of(self, e: Eqn, k: int, n: int, count: int) -> tuple[int, int] | None:
        """The check of component k of a lookup's, or an update's, places, instruction n: None if it
        needs none."""
        if lookups.mode_of(e) != "check":
            return None
        limits = interval_of(self.instrs, n)
        if limits is not None and 0 <= limits[0] and limits[1] < count:
            return None
        if self._speculative:
            raise Infeasible  # what is not chosen must not be checked
        if e not in self.checks:
            self.checks.append(e)
        return self.checks.index(e), k

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


_SUM = Reduce("add", lambda dtype: 0)
_LEAST = Reduce("minimum", lambda dtype: dtypes.iinfo(dtype).max)


def _check_accumulates(dtype: DType, how: Reduce) -> None:
    """Refuse sums of integers that are narrower than registers."""
    wraps = dtypes.is_integer(dtype) and dtype.itemsize < 4
    if wraps and how.combine in ("add", "multiply"):
        raise Infeasible
