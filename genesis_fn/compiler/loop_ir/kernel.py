"""The IR of a generated kernel: instructions over an iteration domain.

`build_kernel` walks back from a kernel's roots. Materialized values become loads at the index at
which they are needed, views only change that index, and everything else is computed in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass
from typing import Any

from genesis_fn.compiler.loop_ir import lookups
from genesis_fn.compiler.loop_ir.domains import (
    IterationDomain,
    iteration_domain,
    parallel_index,
    reduction_index,
    row_column_domain,
)
from genesis_fn.compiler.loop_ir.intervals import interval_of, only_case
from genesis_fn.compiler.loop_ir.layouts import element_offsets, points
from genesis_fn.compiler.loop_ir.lookups import Start
from genesis_fn.compiler.options import enabled
from genesis_fn.core import dtypes
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr, Guards, Index, IndexGuard
from genesis_fn.core.backend.lowering import Piece, Reduce, Source, View
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.elementwise import (
    add,
    bitwise_and,
    convert_p,
    ge,
    integer_pow_p,
    lt,
    mul,
    neg,
    select_p,
    sub,
)
from genesis_fn.primitives.indexing.gather import fill_value
from genesis_fn.primitives.reductions.reduce import reduce_sum_p

loop_slice_p = Primitive(
    "loop_slice",
    lambda x, counter, *, length, reverse: x.update(x.shape[1:]),
    lowering=View(lambda k, at, x, counter, **_: [(0, (ix.ZERO, *at), ())], shares=False),
    listed=False,
)
"""x[counter], or x[length - 1 - counter]: a primitive of the compiler's own programs."""

_MOSTLY = 0.75  # of the places of a load: reading all of them moves little more, and needs no mask


class Infeasible(Exception):
    """One kernel over this domain cannot compute the roots."""


class Literal:
    """A Python number as an operand. Equality is that of types and texts: 0.0 is not -0.0."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash((type(self.value), repr(self.value)))

    def __eq__(self, other: object) -> bool:
        return type(other) is Literal and repr(other.value) == repr(self.value)


class Instr:
    """One instruction of a kernel; `args` are the numbers of its operands' instructions.

    `op` is one of, with its `meta`:

    * "load": (variable, offset, guards); zero where a guard does not hold
    * "index": an index expression; "const": a `Literal`
    * "map": (primitive, parameters, whether it is `precise`), an elementwise operation
    * "where": guards; the first operand where they hold, else the second
    * "round": to the dtype that the value has in memory
    * "start": (variable, count, check, guards), where a lookup's window begins: its operand, held
      within 0 .. count - 1, is what the variable stands for in expressions. `check`: the equation
      and the component that flag one out of bounds, where `guards` hold; else None
    * "reduce" along `r`, "column_reduce" along `p`, "combine" two elements: the `Reduce`

    What refers to a start has it as its last operands, too.

    `names` are the loop variables that the result depends on, `level` is how many reductions along
    `r` it went through, its own included. `after_column_reduce`: it went through a column
    reduction. `approximate`: all users round the result to a narrow dtype, so that it need not be
    exact.
    """

    __slots__ = (
        "op",
        "args",
        "meta",
        "dtype",
        "names",
        "level",
        "eqn",
        "after_column_reduce",
        "approximate",
    )

    def __init__(
        self,
        op: str,
        args: tuple[Any, ...],
        meta: Any,
        dtype: DType,
        names: frozenset[str],
        level: int,
        eqn: Eqn | None = None,
        after_column_reduce: bool = False,
        approximate: bool = False,
    ) -> None:
        self.op, self.args, self.meta, self.dtype = op, args, meta, dtype
        self.names, self.level, self.eqn = names, level, eqn
        self.after_column_reduce, self.approximate = after_column_reduce, approximate

    def copy(self) -> Instr:
        """One that can be marked by itself."""
        return Instr(*[getattr(self, name) for name in self.__slots__])

    def operands(self) -> list[int]:
        """The instructions that this one uses."""
        return [a for a in self.args if type(a) is int]


@dataclass(frozen=True, slots=True)
class SliceStore:
    """A root that is written into a slice of the buffer of `target`: element i at offset
    i + size * step, where step is the value of a loop's counter (`reverse`: length - 1 - value)."""

    target: Var
    counter: Var
    length: int
    reverse: bool


class KernelIR:
    """The instructions of a kernel over `domain`; `build_kernel` makes them.

    `producer[v]` is the equation that computes v, `materialized` are the values in memory, `stored`
    the roots that are written to memory, `columns` those with one value for each column of a
    row-and-column domain. `max_instrs` bounds the instructions, and with it the time that is spent
    on merges that come to nothing. `checks` are the lookups that check their starts, `starts` the
    instructions by the variables that stand for them.
    """

    def __init__(
        self,
        producer: dict[Var, Eqn],
        materialized: Container[Var],
        domain: IterationDomain,
        stored: Collection[Var],
        max_instrs: int,
        columns: Collection[Var],
    ) -> None:
        self.producer, self.materialized, self.domain = producer, materialized, domain
        self.stored, self.max_instrs, self.columns = stored, max_instrs, columns
        self.instrs: list[Instr] = []
        self.counters: dict[Var, str] = {}
        self.checks: list[Eqn] = []
        self.starts: dict[str, int] = {}
        self._seen: dict[Any, int] = {}
        self._memo: dict[Any, int] = {}
        # y - x, once and twice, where x - y is known: its square is the same number, as that of the
        # distance from the other end.
        self._reversed: dict[tuple[Any, ...], int] = {}
        self._rows = parallel_index(domain.kept)
        self._whole = domain.position()
        self.root_offsets: dict[Var, Expr] = {}
        self._values: dict[Var, list[int] | None] = {}
        self.stores: list[tuple[Var, Expr, int]] = []

    def continued(
        self, roots: Sequence[Var], stored: Collection[Var], columns: Collection[Var]
    ) -> KernelIR | None:
        """A copy to which those of `roots` that it lacks can be added; None where the kernel of all
        of them is another from its beginning on."""
        mine, lacking = self.root_offsets, {*roots[len(self.root_offsets) :]}
        if [*mine] != roots[: len(mine)]:
            return None
        for now, then in ((self.stored, stored), (self.columns, columns)):
            if {*now} != {v for v in then if v in mine}:
                return None
        # What it loads and the other roots compute is a value of the kernel of all.
        if any([i.op == "load" and i.meta[0] in lacking for i in self.instrs]):
            return None
        other = KernelIR(
            self.producer, self.materialized, self.domain, stored, self.max_instrs, columns
        )
        for name in (
            "counters", "checks", "starts", "_seen", "_memo", "_reversed", "root_offsets",
            "_values", "stores",
        ):  # fmt: skip
            setattr(other, name, getattr(self, name).copy())
        other.instrs = [i.copy() for i in self.instrs]
        return other

    def store(self, v: Var, slice_store: SliceStore | None) -> None:
        """Compute a result, and write it to memory if it is stored there."""
        values = self._root(v)
        if v not in self.stored:
            return
        target, first = v, ix.ZERO
        if slice_store is not None:
            step = self._counter(slice_store.counter, slice_store.length, slice_store.reverse)
            target = slice_store.target
            first = ix.scale(step, v.aval.size)
        for value, offset in zip(values, self._elements(v), strict=True):
            if self.instrs[value].after_column_reduce and v not in self.columns:
                raise Infeasible
            self.stores.append((target, ix.add(offset, first), value))

    def _elements(self, v: Var) -> list[Expr]:
        """The offsets in its buffer of the elements that root `v` has at a point: one, but for
        interleaved values."""
        return element_offsets(self.producer[v], v, self.root_offsets[v])

    def shape(self) -> tuple[list[Var], Any]:
        """(the materialized values that it refers to, everything else of it as a key): kernels of
        equal keys differ in those values only, which come in the same order."""
        # Values count by their first appearance, so that kernels of equal layers have equal keys.
        number: dict[Var, int] = {}

        def known(v: Var) -> tuple[int, Any]:
            return number.setdefault(v, len(number)), v.aval

        def meta(i: Instr) -> Any:
            if i.op == "load":
                return (known(i.meta[0]), *i.meta[1:])
            return repr(i.meta) if i.op == "map" else i.meta  # 0.0 and -0.0 are equal

        instrs = tuple(
            [
                (
                    i.op,
                    i.args,
                    meta(i),
                    i.dtype,
                    i.names,
                    i.level,
                    i.after_column_reduce,
                    i.approximate,
                )
                for i in self.instrs
            ]
        )
        stores = tuple([(known(v), offset, n) for v, offset, n in self.stores])
        counters = tuple([(known(v), name) for v, name in self.counters.items()])
        return list(number), (self.domain, instrs, stores, counters)

    @property
    def loads(self) -> dict[Var, int]:
        """The buffers that are read, and how many bytes of each at most."""
        # Distinct elements: a load is repeated from the cache along variables it does not use.
        read: dict[Var, int] = {}
        for i in self.instrs:
            if i.op == "load":
                v = i.meta[0]
                points = math.prod(
                    [
                        self.domain.kept if n == "p" else self.domain.reduced
                        for n in i.names
                        if n in ("p", "r")
                    ]
                )
                # Every second element (a part of packed complex numbers) comes with its neighbours.
                spread = 2 if math.gcd(*i.meta[1].terms.values()) == 2 else 1
                size = min(points * spread * v.aval.dtype.itemsize, v.aval.nbytes)
                read[v] = min(v.aval.nbytes, read.get(v, 0) + size)
        return read

    def root_offset(self, v: Var) -> Expr:
        """The position of root `v`'s point (p, r) among those at which it has elements. Raises
        Infeasible."""
        e, domain = self.producer[v], self.domain
        size = math.prod(points(e, v))
        if v in self.columns:
            if is_reduction(e):
                if (
                    row_column_domain(iteration_domain(e.ins[0].aval.shape, reduced_axes(e)))
                    != domain
                ):
                    raise Infeasible
            elif size != domain.reduced:
                raise Infeasible
            return reduction_index(domain.reduced)
        if is_reduction(e):
            if iteration_domain(e.ins[0].aval.shape, reduced_axes(e)).axes != domain.axes:
                raise Infeasible
            return self._rows
        if size == self.domain.size:
            return self._whole
        if size == self.domain.kept:
            return self._rows
        raise Infeasible

    def _root(self, v: Var) -> list[int]:
        """The instructions that give the elements that root `v` has at a point."""
        found = self._values.get(v)
        if found is None:
            if v in self._values:  # being computed already
                raise Infeasible
            self._values[v] = None
            e = self.producer[v]
            if is_reduction(e):
                found = [self._reduce(v, e)]
            else:
                found = [
                    self._compute(v, e, ix.unravel(offset, v.aval.shape), frozenset())
                    for offset in self._elements(v)
                ]
            if v in self.stored and v.aval.dtype in dtypes.NARROW:
                # Registers hold float32: what is stored and what is used from here on must agree.
                found = [self._emit("round", (n,), None, v.aval.dtype) for n in found]
            self._values[v] = found
        return found

    def _emit(
        self,
        op: str,
        args: tuple[Any, ...],
        meta: Any,
        dtype: DType,
        names: frozenset[str] = frozenset(),
        eqn: Eqn | None = None,
    ) -> int:
        if self.starts and not names.isdisjoint(self.starts):
            # A start is an operand, which has the loop variables that it depends on.
            args = (*args, *sorted([self.starts[x] for x in names if x in self.starts]))
            names = frozenset([x for x in names if x not in self.starts])
        # Value numbering: a common subexpression is one instruction.
        key = (op, args, meta, dtype)
        found = self._seen.get(key)
        if found is not None:
            return found
        level = 0
        for a in args:
            if type(a) is int:
                names |= self.instrs[a].names
                level = max(level, self.instrs[a].level)
        after_column_reduce = any(
            [type(a) is int and self.instrs[a].after_column_reduce for a in args]
        )
        if op == "reduce":
            # Its result has no `r`: an instruction that has one again is in another loop.
            names, level = names - {"r"}, level + 1
        # The rows are over when a column reduction is done: what follows cannot run along them.
        if after_column_reduce and (op in ("reduce", "column_reduce") or "p" in names):
            raise Infeasible
        if op == "column_reduce":
            names, after_column_reduce = frozenset("r"), True
        if len(self.instrs) >= self.max_instrs:
            raise Infeasible
        self.instrs.append(Instr(op, args, meta, dtype, names, level, eqn, after_column_reduce))
        self._seen[key] = len(self.instrs) - 1
        return len(self.instrs) - 1

    def at(self, v: Var, at: Index, guards: Guards) -> int:
        """The instruction that gives element `at` of `v` where `guards` hold."""
        # Guards are part of the key: they mask the loads, so that no index is out of range.
        key = (v, at, guards)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._at(v, at, guards)
        return found

    def _at(self, v: Var, at: Index, guards: Guards) -> int:
        if v in self.root_offsets:
            # Of another root the registers hold the element of this point and no other.
            elements, here = self._elements(v), ix.ravel(at, v.aval.shape)
            if here not in elements:
                raise Infeasible
            return self._root(v)[elements.index(here)]
        if v in self.materialized:
            offset = ix.ravel(at, v.aval.shape)
            if 0 <= offset.lo and offset.hi < v.aval.size and ix.share(guards) >= _MOSTLY:
                guards = frozenset()  # what is read elsewhere is an element, too, and not used
            names = offset.names.union(*[g.expr.names for g in guards])
            return self._emit("load", (), (v, offset, guards), v.aval.dtype, names)
        return self._compute(v, self.producer[v], at, guards)

    def _reduce(self, v: Var, e: Eqn) -> int:
        x, axes = e.ins[0], reduced_axes(e)
        shape = x.aval.shape
        column = v in self.columns
        if column and _reduce(e).position:
            raise Infeasible
        kept = tuple([n for i, n in enumerate(shape) if i not in axes])
        gone = tuple([n for i, n in enumerate(shape) if i in axes])
        across, along = self._rows, reduction_index(self.domain.reduced)
        if column:
            across, along = along, across
        p = iter(ix.unravel(across, kept))
        r = iter(ix.unravel(along, gone))
        # The operand's element at the point (p, r).
        index = tuple([next(r) if i in axes else next(p) for i in range(len(shape))])
        arg = self.at(x, index, frozenset())
        op = "column_reduce" if column else "reduce"
        columns = not self.domain.inner and enabled("row_factors")
        if columns and op == "reduce" and e.prim is reduce_sum_p:
            arg, outside, negative = self._without_row_factors(arg)
            n = self._emit(op, (arg,), (_reduce(e),), v.aval.dtype, eqn=e)
            for factor in outside:
                n = self._map(mul.prim, n, factor, dtype=v.aval.dtype)
            return self._map(neg.prim, n, dtype=v.aval.dtype) if negative else n
        return self._emit(op, (arg,), (_reduce(e),), v.aval.dtype, eqn=e)

    def _without_row_factors(self, n: int) -> tuple[int, list[int | Literal], bool]:
        """(instruction n without the factors that are the same along `r`, those, whether it is
        negated besides): sums that differ in these are one sum.

        Sums for columns hold an accumulator for each element of a tile. The four that the gradients
        of a norm take are two, and a loop has a third of the instructions less.
        """
        inside: list[int] = []
        outside: list[int | Literal] = []
        negative = False
        todo: list[int | Literal] = [n]
        while todo:
            k = todo.pop()
            if isinstance(k, Literal):
                outside.append(k)
                continue
            i = self.instrs[k]
            exact = i.op == "map" and i.dtype in (dtypes.F32, dtypes.F64) and not i.meta[2]
            if "r" not in i.names:
                outside.append(k)
            elif exact and i.meta[0] is neg.prim:
                negative = not negative
                todo.append(i.args[0])
            elif exact and i.meta[0] is mul.prim:
                todo += reversed(i.args)
            else:
                inside.append(k)
        if not inside or not (outside or negative):
            return n, [], False
        first, *rest = inside
        for k in rest:
            first = self._map(mul.prim, first, k, dtype=self.instrs[n].dtype)
        return first, outside, negative

    def _compute(self, v: Var, e: Eqn, at: Index, guards: Guards) -> int:
        lowering = e.prim.lowering
        if type(lowering) is View:
            return self._view(v, e, lowering, at, guards)
        if type(lowering) is Source:
            # An iota is arithmetic on the index, a full array a number.
            here = lowering.value(at, **e.params)
            if type(here) is Expr:
                return self._emit("index", (), here, v.aval.dtype, here.names)
            return self._emit("const", (), Literal(here), v.aval.dtype)
        if type(lowering) is Reduce:
            return self._short_reduction(v, e, at, guards)
        if lowering is None:
            return self._looked_up(v, e, at, guards)
        args = tuple([self.at(i, at, guards) if type(i) is Var else Literal(i) for i in e.ins])
        if e.prim is select_p and type(only := only_case(self.instrs, args)) is int:
            return only
        # Division and the like differ by how exactly they are computed: they are no common
        # subexpression then.
        meta = (e.prim, tuple(e.params.items()), e.numerics.precise)
        if args in self._reversed and e.prim in (mul.prim, integer_pow_p):
            args = self._square_of(args, e)
        n = self._emit("map", args, meta, v.aval.dtype, eqn=e)
        if e.prim is sub.prim:
            other = self._seen.get(("map", args[::-1], meta, v.aval.dtype))
            if other is not None and other < n:
                self._reversed[n, n] = self._reversed[n,] = other
        return n

    def _square_of(self, args: tuple[Any, ...], e: Eqn) -> tuple[Any, ...]:
        """The operands of a square, of `args` or of what differs from it in sign only."""
        if e.prim is integer_pow_p and e.params["y"] % 2:
            return args
        return (self._reversed[args],) * len(args)

    def _short_reduction(self, v: Var, e: Eqn, at: Index, guards: Guards) -> int:
        """A reduction over no element, or over one, which needs no loop."""
        if is_reduction(e):
            raise Infeasible
        x, kept = e.ins[0], iter(at)
        if _reduce(e).position:
            return self._emit("const", (), Literal(0), v.aval.dtype)
        if not x.aval.size:
            return self._emit("const", (), Literal(_reduce(e).identity(x.aval.dtype)), v.aval.dtype)
        axes = reduced_axes(e)
        index = tuple([ix.ZERO if i in axes else next(kept) for i in range(x.aval.ndim)])
        return self.at(x, index, guards)

    def _looked_up(self, v: Var, e: Eqn, at: Index, guards: Guards) -> int:
        """The element of a gather, a row of a table or a dynamic slice."""
        window, fill = lookups.window_of(e, at), lookups.mode_of(e) == "fill"
        index = list(window.index)
        fits: list[int] = []
        checked: list[int] = []
        for k, start in enumerate(window.starts):
            first, n = self._first(e, k, start, guards, checked)
            index[start.d] = ix.add(index[start.d], first)
            if fill and n is not None:
                limit = Literal(start.count)
                fits.append(self._map(ge.prim, n, Literal(0), dtype=dtypes.BOOL))
                if start.count <= dtypes.iinfo(self.instrs[n].dtype).max:
                    fits.append(self._map(lt.prim, n, limit, dtype=dtypes.BOOL))
        value = self.at(e.ins[0], tuple(index), guards)
        if checked:
            value = self._depending(value, checked)
        if not fits:
            return value
        condition = fits[0]
        for n in fits[1:]:
            condition = self._map(bitwise_and.prim, condition, n, dtype=dtypes.BOOL)
        other = Literal(fill_value(e.params["fill_value"], v.aval.dtype))
        return self._map(select_p, condition, value, other, dtype=v.aval.dtype)

    def _depending(self, value: int, starts: Sequence[int]) -> int:
        """`value` as what depends on starts: an element of a broadcast array may not, and a kernel
        computes, and checks, what its results depend on."""
        below, todo = set[int](), [value]
        while todo:
            n = todo.pop()
            if n not in below:
                below.add(n)
                todo += self.instrs[n].operands()
        for n in sorted({*starts} - below):
            here = self._map(ge.prim, n, Literal(0), dtype=dtypes.BOOL)
            value = self._map(select_p, here, value, value, dtype=self.instrs[value].dtype)
        return value

    def _first(
        self, e: Eqn, k: int, start: Start, guards: Guards, checked: list[int]
    ) -> tuple[Expr, int | None]:
        """(where component k of a lookup's window begins, the instruction that has computed it if
        that may be out of bounds). Starts that are to be checked are added to `checked`."""
        if type(start.value) is int:
            return start.number, None
        n = self._start(start, guards)
        known = lookups.known_index(self.instrs, n)
        if known is not None and start.has(known):
            return known, None
        check, limits = None, interval_of(self.instrs, n)
        fits = limits is not None and 0 <= limits[0] and limits[1] < start.count
        if lookups.mode_of(e) == "check" and not fits:
            if e not in self.checks:
                self.checks.append(e)
            check = self.checks.index(e), k
        meta = start.count, check, guards if check else frozenset()
        key = "start", n, *meta
        if key not in self._memo:
            name, wide = lookups.start_name(len(self.starts)), start.count > 2**31
            names = frozenset().union(*[g.expr.names for g in meta[-1]])
            kind = dtypes.I64 if wide else dtypes.I32
            self._memo[key] = self._emit("start", (n,), (name, *meta), kind, names)
            self.starts[name] = self._memo[key]
        if check:
            checked.append(self._memo[key])
        name = self.instrs[self._memo[key]].meta[0]
        return ix.var(name, start.count), None if fits else n

    def _start(self, start: Start, guards: Guards) -> int:
        """The instruction of where a window begins, as a program has computed it."""
        assert type(start.value) is Var
        n = self.at(start.value, start.index, guards)
        kind = self.instrs[n].dtype
        if start.wraps and not dtypes.is_unsigned(kind):
            if start.length > dtypes.iinfo(kind).max:
                kind = dtypes.I32 if start.length < 2**31 else dtypes.I64
                n = self._emit("map", (n,), (convert_p, (("dtype", kind),), False), kind)
            wrapped = self._map(add.prim, n, Literal(start.length), dtype=kind)
            below = self._map(lt.prim, n, Literal(0), dtype=dtypes.BOOL)
            n = self._map(select_p, below, wrapped, n, dtype=kind)
        return n

    def _map(self, prim: Primitive, *args: int | Literal, dtype: DType) -> int:
        return self._emit("map", args, (prim, (), False), dtype)

    def _counter(self, counter: Var, length: int, reverse: bool) -> Expr:
        name = self.counters.setdefault(counter, f"step{len(self.counters)}")
        here = ix.var(name, length)
        return ix.shift(ix.scale(here, -1), length - 1) if reverse else here

    def _view(self, v: Var, e: Eqn, view: View, at: Index, guards: Guards) -> int:
        if e.prim is loop_slice_p:
            # Its second operand, the counter, is a loop variable and no array.
            row = self._counter(e.ins[1], e.params["length"], e.params["reverse"])
            return self.at(e.ins[0], (row, *at), guards)
        avals = [i.aval if type(i) is Var else i for i in e.ins]
        pieces = view.pieces(e.outs.index(v), at, *avals, **e.params)
        # Without those that no element here is of: the last one is read under no condition.
        if len(pieces) > 1:
            pieces = [p for p in pieces if ix.holding(p[2]) is not None] or pieces[-1:]
        return self._pieces(e, pieces, 0, guards, v.aval.dtype)

    def _pieces(self, e: Eqn, pieces: Sequence[Piece], k: int, guards: Guards, dtype: DType) -> int:
        """The element of pieces k and later of a view where `guards` hold: the first piece whose
        conditions hold has it, the last one needs no test."""
        operand, index, conditions = pieces[k]
        x = e.ins[operand]

        def inside(held: Guards) -> int:
            if type(x) is Var:
                return self.at(x, index, held)
            return self._emit("const", (), Literal(x), dtype)

        if k == len(pieces) - 1:
            held = ix.holding(conditions)
            if held is None:  # the other pieces have all elements, and this one's index is no place
                return self._emit("const", (), Literal(0), dtype)
            return inside(guards | held)
        rest = lambda: self._pieces(e, pieces, k + 1, guards, dtype)
        return self._select(conditions, guards, inside, rest, dtype)

    def _select(
        self,
        conditions: Sequence[IndexGuard],
        guards: Guards,
        inside: Callable[..., Any],
        outside: Callable[..., Any],
        dtype: DType,
    ) -> int:
        """`inside(guards)` where the conditions hold, else `outside()`."""
        # Decided at compile time where the bounds of the index decide it.
        held = ix.holding(conditions)
        if held is None:
            return outside()
        if not held - guards:
            return inside(guards)
        value = inside(guards | held)
        names = frozenset().union(*[g.expr.names for g in held])
        return self._emit("where", (value, outside()), held, dtype, names)


def build_kernel(
    producer: dict[Var, Eqn],
    materialized: Collection[Var],
    roots: Sequence[Var],
    domain: IterationDomain,
    stored: Collection[Var],
    slice_stores: dict[Var, SliceStore],
    max_instrs: int,
    columns: Collection[Var],
    begun: KernelIR | None = None,
) -> KernelIR:
    """The kernel over `domain` that computes `roots`; those in `slice_stores` are written into a
    slice of another value's buffer. `begun` is the kernel of the first of the roots, if there is
    one, from which this one goes on where it can. Raises Infeasible."""
    kernel = None
    if begun is not None and begun.domain == domain:
        kernel = begun.continued(roots, stored, columns)
    if kernel is None:
        kernel = KernelIR(producer, materialized, domain, stored, max_instrs, columns)
    roots = roots[len(kernel.root_offsets) :]
    # All offsets first: a root that reads another one needs to know which element is at hand.
    for v in roots:
        kernel.root_offsets[v] = kernel.root_offset(v)
    for v in roots:
        kernel.store(v, slice_stores.get(v))
    mark_approximate(kernel.instrs, kernel.stores)
    return kernel


def mark_approximate(instrs: Sequence[Instr], stores: Sequence[tuple[Any, Expr, int]]) -> None:
    """Mark the instructions whose users all round them to a narrow dtype in the end: the device's
    approximate functions are good enough for those."""
    exact = {n for target, _, n in stores if target.aval.dtype not in dtypes.NARROW}
    # Users come after their operands, so that one walk from the end sees all of them.
    for n in range(len(instrs) - 1, -1, -1):
        i = instrs[n]
        narrowed = i.op == "round" or (i.op == "map" and i.dtype in dtypes.NARROW)
        i.approximate = n not in exact
        # An integer or a comparison passes no tolerance on to its operands.
        if not narrowed and not (i.approximate and dtypes.is_float(i.dtype)):
            exact.update(i.operands())


def peak_live(instrs: Sequence[Instr], stores: Sequence[tuple[Any, Expr, int]]) -> int:
    """The most values, in words of 32 bits, that are alive at once, for one element, where
    instructions run in order and results are stored as soon as they are computed."""
    last = {n: n for n, i in enumerate(instrs) if i.op not in ("const", "index")}
    for n, i in enumerate(instrs):
        last.update((a, n) for a in i.operands() if a in last)
    # A value is alive from the instruction that makes it to the last one that uses it.
    ends: dict[int, int] = {}
    live = most = 0
    for n, i in enumerate(instrs):
        live -= ends.pop(n, 0)
        if n in last:
            words = max(1, i.dtype.itemsize // 4)
            live += words
            ends[last[n]] = ends.get(last[n], 0) + words
            most = max(most, live)
        live -= ends.pop(n, 0)
    return most


def is_reduction(e: Eqn) -> bool:
    """Whether an equation is a reduction that needs a loop."""
    if type(e.prim.lowering) is not Reduce or not e.ins[0].aval.size:
        return False
    return any(e.ins[0].aval.shape[a] > 1 for a in reduced_axes(e))


def reduced_axes(e: Eqn) -> tuple[int, ...]:
    """The axes that a reduction reduces, in order."""
    return tuple(sorted(e.params["axes"])) if "axes" in e.params else (e.params["axis"],)


def _reduce(e: Eqn) -> Reduce:
    assert type(e.prim.lowering) is Reduce
    return e.prim.lowering
