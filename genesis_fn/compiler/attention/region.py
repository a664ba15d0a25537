"""The values around one product of queries and keys: what each of them is in an attention.

From the product on, every value is followed as a polynomial (`polynomials`) with logical axes
(`axes`), forward and backward pass alike. Values that are a multiple of the attention's output, or
of a cotangent of its operands, are its results. What is not understood stays an opaque symbol,
which is never wrong: the rewrite is only made if nothing else reads the scores.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from genesis_fn.compiler.attention import polynomials as poly
from genesis_fn.compiler.attention.axes import AxisMap, AxisTable, Run, Unmappable, members, unified
from genesis_fn.compiler.attention.masks import Condition, without_views
from genesis_fn.compiler.attention.polynomials import Monomial, Polynomial, Symbol
from genesis_fn.compiler.attention.product_rules import contraction, probability_cotangent
from genesis_fn.compiler.attention.softmax_rules import RULES
from genesis_fn.compiler.attention.values import (
    ARITHMETIC,
    FLOATS,
    MOST_TERMS,
    VIEWS,
    AttentionResult,
    Followed,
    OutputCotangent,
    ProgramIndex,
    after_view,
    before_view,
    length,
    multiple,
    operand_axes,
    single_symbol,
)
from genesis_fn.core import dtypes
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.jaxpr import Atom, Eqn, Var
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.dot_general import dot_general_p, free_dims
from genesis_fn.primitives.shape import broadcast_in_dim_p, reshape_p, transpose_p

_DEPTH = 12  # equations between a value and what it is made of outside
Signature = tuple[Var, AxisMap]


class ScoreRegion:
    """What is known of the values around the scores that equation `at` computes, whose keys are the
    right operand or the left one."""

    def __init__(self, index: ProgramIndex, at: int, keys_right: bool, table: AxisTable) -> None:
        self.index, self.at, self.table = index, at, table
        e = index.jaxpr.eqns[at]
        self.known: dict[Var, AxisMap] = {}
        self.env: dict[Var, Followed | None] = {}
        self.scores: Polynomial | None = None  # what the softmax is of
        self.value: Signature | None = None
        self.value_operand: Signature | None = None
        self.feature: Run = ()
        self.weighted: list[Eqn] = []  # products of probabilities and values
        self.transposed: list[Var] = []  # probabilities in products with cotangents
        self.factors: frozenset[Symbol] = frozenset()  # of the product, in the scores: masks
        self.results: list[AttentionResult] = []
        self.full_gradients: list[AttentionResult] = []
        self.cotangents: dict[Symbol, list[OutputCotangent]] = {}
        self.products: list[Eqn] = [e]
        x, y = e.ins
        (xc, yc), (xb, yb) = e.params["dimension_numbers"]
        size = e.outs[0].aval.shape
        batch = [table.run("batch", n, size[n]) for n in range(len(xb))]
        inner = [table.run("inner", n, x.aval.shape[d]) for n, d in enumerate(xc)]
        left = [table.run("left", d, x.aval.shape[d]) for d in free_dims(x.aval.ndim, (*xc, *xb))]
        right = [table.run("right", d, y.aval.shape[d]) for d in free_dims(y.aval.ndim, (*yc, *yb))]
        axes = tuple([*batch, *left, *right])
        queries, keys = (left, right) if keys_right else (right, left)
        self.batch, self.query, self.key = [members(tuple(r)) for r in (batch, queries, keys)]
        self.query_runs, self.key_runs, self.batch_runs = queries, keys, batch
        self.inner = [r for r in inner if r]
        operands = [
            (v, operand_axes(v.aval.ndim, c, b, inner, batch, free))
            for v, c, b, free in ((x, xc, xb, left), (y, yc, yb, right))
        ]
        self.query_operand, self.key_operand = operands if keys_right else operands[::-1]
        for v, a in operands:
            self.learn(v, a)
        self.q, self.k = self.signature(*self.query_operand), self.signature(*self.key_operand)
        self.product = Symbol("product", e.outs[0], members(axes))
        self.probability = Symbol("probability", None, self.product.depends)
        rows = self.batch | self.query
        self.row_total = Symbol("log_sum_exp", None, rows)
        self.env[e.outs[0]] = Followed(axes, poly.symbol(self.product))

    def follow(self) -> None:
        """Follow the scores through the program."""
        eqns, readers = self.index.jaxpr.eqns, self.index.readers
        todo: list[int] = []
        queued: set[int] = {self.at}

        def queue(v: Var) -> None:
            for n in readers.get(v, ()):
                if n not in queued:
                    queued.add(n)
                    heappush(todo, n)

        queue(eqns[self.at].outs[0])
        while todo:
            n = heappop(todo)
            e = eqns[n]
            if len(e.outs) != 1 or e.prim.effect:
                continue
            try:
                found = self.evaluated(e)
            except Unmappable:
                found = None
            if found is None or len(found.value) > MOST_TERMS:
                continue
            (out,) = e.outs
            if out.aval.dtype == dtypes.F64:
                continue
            given = [self.env[i] for i in e.ins if type(i) is Var and i in self.env]
            found.value = self._without_factors(found.value)
            found.settled |= frozenset[Symbol]().union(*[f.settled for f in given if f])
            self.settle(out, n, found)
            self.env[out] = found
            queue(out)

    def settle(self, out: Var, n: int, found: Followed) -> None:
        """Note a result of the attention, the first time that it has a dtype as narrow as the
        operands'; a bias has its own."""
        if self.scores is None or out.aval.dtype not in FLOATS:
            return
        gradient = self.score_gradient(found.value)
        if gradient is not None:
            factor, rows, of = gradient
            if not rows:
                self.full_gradients.append(
                    AttentionResult(out, n, "dbias", of, factor, found.axes, found.gates)
                )
            return
        single = single_symbol(found.value)
        if single is None or single[1] in found.settled:
            return
        factor, s = single
        if s.kind not in ("output", "dq", "dk", "dv", "dbias"):
            return
        if s.kind != "dbias" and out.aval.dtype.itemsize > self.operand_dtype().itemsize:
            return
        of = s if s.kind == "output" else s.key[0]
        self.results.append(AttentionResult(out, n, s.kind, of, factor, found.axes, found.gates))
        found.settled |= {s}

    def operand_dtype(self) -> Any:
        """The dtype that probabilities and values are multiplied in."""
        found = {x.aval.dtype for e in self.weighted for x in e.ins}
        if not found:
            # The output is not computed, as where the backward pass repeats the forward one.
            found = {x.aval.dtype for x in self.transposed}
            found |= {self.value[0].aval.dtype} if self.value is not None else set()
        return found.pop() if len(found) == 1 else dtypes.F32

    def learn(self, x: Var, axes: AxisMap) -> None:
        """Remember the axes of an operand, and of what it is a view of."""
        while x not in self.known:
            self.known[x] = axes
            e = self.index.producers.get(x)
            if e is None or e.prim not in (
                transpose_p,
                reshape_p,
                ew.convert_p,
                broadcast_in_dim_p,
            ):
                return
            (source,) = e.ins
            if type(source) is not Var:
                return
            try:
                axes = before_view(e, source, axes)
            except Unmappable:
                return
            x = source

    def axes_of(self, x: Var, depth: int = _DEPTH) -> AxisMap | None:
        """The axes of a value outside, if it is a view of one whose axes are known."""
        followed = self.env.get(x)
        if followed is not None:
            return followed.axes
        if x in self.known:
            return self.known[x]
        e = self.index.producers.get(x)
        if e is None or not depth or len(e.ins) != 1 or type(e.ins[0]) is not Var:
            return None
        if e.prim not in (transpose_p, reshape_p, ew.convert_p, broadcast_in_dim_p):
            return None
        inner = self.axes_of(e.ins[0], depth - 1)
        if inner is None:
            return None
        return after_view(e, inner)

    def signature(self, x: Var, axes: AxisMap) -> Signature:
        """The array that an operand is a view or a widening cast of, with its axes."""
        return without_views(x, axes, self.index.producers, upcasts=True)

    def outside(self, x: Var, axes: AxisMap, depth: int = _DEPTH) -> Followed:
        """A value that is combined with one of the region, by the axes of that one."""
        for guess in self._guesses(axes):
            try:
                found = self.made(x, guess, depth)
            except Unmappable:
                continue
            if found is not None:
                return found
        return self.opaque(x, self._guesses(axes)[-1])

    def _guesses(self, axes: AxisMap) -> list[AxisMap]:
        """`axes`, and with those that the other operand repeats as keys or as features. Axes that
        are combined have one name, so that a wrong guess finds nothing."""
        repeated = [d for d, r in enumerate(axes) if r and r[0].role == "any"]
        if len(repeated) != 1:
            return [axes]
        (d,) = repeated
        found = [axes]
        for run in (*self.key_runs, self.feature):
            if run and length(run) == length(axes[d]):
                found.append((*axes[:d], run, *axes[d + 1 :]))
        return found

    def opaque(self, x: Var, axes: AxisMap) -> Followed:
        """A value that is not taken apart, but for the number that a cotangent is multiplied by."""
        wide = bool(members(axes) & members((self.feature,)))
        given, factor = axes, 1.0
        while True:
            # A cotangent of the output is the same before and after a cast.
            x, axes = without_views(x, axes, self.index.producers, casts=wide)
            e = self.index.producers.get(x)
            found = multiple(e) if wide and e is not None else None
            if found is None:
                break
            x, factor = found[0], factor * found[1]
        outside = poly.symbol(Symbol("outside", (x, axes), members(axes)))
        return Followed(given, poly.scaled(outside, factor))

    def made(self, x: Var, axes: AxisMap, depth: int) -> Followed | None:
        """A value that is made of values of the region, or the cotangent of probabilities; else
        None."""
        followed = self.env.get(x)
        if followed is not None:
            return Followed(unified(followed.axes, axes), followed.value, followed.gates)
        e = self.index.producers.get(x)
        if e is None or not depth or len(e.outs) != 1 or x.aval.dtype == dtypes.F64:
            return None
        if e.prim is dot_general_p:
            return probability_cotangent(self, e, axes)
        if e.prim in VIEWS or (e.prim is ew.convert_p and dtypes.is_float(x.aval.dtype)):
            (source,) = e.ins
            if type(source) is not Var or not dtypes.is_float(source.aval.dtype):
                return None
            try:
                inner = self.made(source, before_view(e, source, axes), depth - 1)
            except Unmappable:
                return None
            return None if inner is None else Followed(axes, inner.value, inner.gates)
        combine = ARITHMETIC.get(e.prim)
        if combine is None:
            return None
        found = [self.made(i, axes, depth - 1) if type(i) is Var else None for i in e.ins]
        if all([f is None for f in found]):
            return None
        operands = [f or self.constant(i, axes) for f, i in zip(found, e.ins)]
        return combine(e, axes, operands)

    def constant(self, x: Atom, axes: AxisMap) -> Followed:
        """A number, or a value from outside."""
        return self.opaque(x, axes) if type(x) is Var else Followed(axes, poly.number(float(x)))

    def operands(self, e: Eqn) -> tuple[AxisMap, list[Followed]]:
        """(common axes, values) of the operands of an elementwise equation."""
        known = [self.env.get(i) if type(i) is Var else None for i in e.ins]
        axes: AxisMap | None = None
        for f in known:
            if f is not None:
                axes = f.axes if axes is None else unified(axes, f.axes)
        assert axes is not None
        for i in e.ins:
            # A value whose axes are known tells those that are repeated.
            if type(i) is Var and i not in self.env and (found := self.axes_of(i)) is not None:
                axes = unified(axes, found)
        result = []
        for f, i in zip(known, e.ins):
            if f is not None:
                result.append(Followed(axes, f.value, f.gates))
            elif type(i) is Var:
                result.append(self.outside(i, axes))
            else:
                result.append(Followed(axes, poly.number(float(i))))
        if any([a.role == "any" for a in members(axes)]):
            for f in result:
                axes = unified(axes, f.axes)
        return axes, result

    def evaluated(self, e: Eqn) -> Followed | None:
        """What an equation that reads the region computes; None if it is not followed."""
        if not any([self.env.get(i) is not None for i in e.ins if type(i) is Var]):
            return None
        rule = contraction if e.prim is dot_general_p else RULES.get(e.prim)
        if rule is not None:
            found = rule(self, e)
        elif e.prim in ARITHMETIC:
            axes, operands = self.operands(e)
            found = ARITHMETIC[e.prim](e, axes, operands)
        else:
            found = None
        if found is None and type(e.prim.lowering) is Elementwise:
            found = self.unknown(e)
        return found

    def unknown(self, e: Eqn) -> Followed | None:
        """A function of scores or of statistics of rows that is not a polynomial."""
        axes: AxisMap | None = None
        for i in e.ins:
            f = self.env.get(i) if type(i) is Var else None
            if f is not None:
                axes = f.axes if axes is None else unified(axes, f.axes)
        if axes is None or not members(axes) <= self.product.depends:
            return None
        (out,) = e.outs
        return Followed(axes, poly.symbol(Symbol("outside", (out, axes), members(axes))))

    def score_symbols(self, m: Monomial) -> set[Symbol]:
        """The symbols of a monomial that are of scores."""
        return {s for s, _ in m if s is self.product or s == self.product or s.kind == "masked"}

    def _without_factors(self, x: Polynomial) -> Polynomial:
        """Scores that are multiplied by a mask, x * mask - 1e10 * (1 - mask), as GPT-2's are: the
        mask is one wherever probabilities are not zero, which `scores` makes sure of."""
        if not self.factors or not any([s in self.factors for m in x for s, _ in m]):
            return x
        return poly.add(
            [
                {
                    frozenset([(s, n) for s, n in m if s not in self.factors])
                    if dict(m).get(self.probability, 0) > 0
                    else m: c
                }
                for m, c in x.items()
            ]
        )

    def conditions(self) -> frozenset[Condition]:
        """Those that the scores are masked by with `select`."""
        found: frozenset[Condition] = frozenset()
        todo = [self.scores or {}]
        while todo:
            for m in todo.pop():
                for s, _ in m:
                    if s.kind == "masked":
                        found |= s.key[0]
                        todo.append(dict(s.key[1]))
        return found

    def row_dot(self, of: Symbol) -> Symbol:
        """The sum over the keys of P * D, which is that over the features of output * cotangent."""
        return Symbol("row_dot", of, self.row_total.depends)

    def output(self) -> Symbol:
        """The output of the attention."""
        return Symbol("output", None, self.row_total.depends | members((self.feature,)))

    def score_gradient(self, x: Polynomial) -> tuple[float, Monomial, Symbol] | None:
        """(factor, statistics, cotangent) if x is factor * statistics * P * (D - row_dot)."""
        if len(x) != 2:
            return None
        for m, c in x.items():
            powers = dict(m)
            cotangent = [s for s in powers if s.kind == "cotangent"]
            if len(cotangent) != 1 or powers[cotangent[0]] != 1:
                continue
            if powers.get(self.probability) != 1:
                return None
            of = cotangent[0].key
            rows = frozenset([(s, n) for s, n in m if s not in (self.probability, cotangent[0])])
            other = poly.times(rows, frozenset([(self.probability, 1), (self.row_dot(of), 1)]))
            if poly.depends(rows) & self.key or other not in x or not poly.close(x[other], -c):
                return None
            return c, rows, of
        return None
