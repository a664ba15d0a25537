"""The values around one product of queries and keys: what each of them is in an attention.

From the product on, every value is followed as a polynomial (`polynomials`) with logical axes
(`axes`), forward and backward pass alike. Values that are a multiple of the attention's output, or
of a cotangent of its operands, are its results. What is not understood stays an opaque symbol,
which is never wrong: the rewrite is only made if nothing else reads the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from genesis_fn.compiler.attention import polynomials as poly
from genesis_fn.compiler.attention.axes import (
    AxisMap,
    AxisTable,
    LogicalAxis,
    Run,
    Unmappable,
    before_broadcast,
    before_transpose,
    broadcast,
    members,
    permuted,
    reshaped,
    unified,
)
from genesis_fn.compiler.attention.masks import (
    LOWEST_SCORE,
    Condition,
    Producers,
    conjuncts,
    without_views,
)
from genesis_fn.compiler.attention.polynomials import Monomial, Polynomial, Symbol
from genesis_fn.core import dtypes
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.jaxpr import Atom, Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.dot_general import dot_general_p, free_dims
from genesis_fn.primitives.reductions.reduce import reduce_max_p, reduce_sum_p
from genesis_fn.primitives.shape import broadcast_in_dim_p, reshape_p, transpose_p

FLOATS = (dtypes.BF16, dtypes.F16, dtypes.F32)
_MOST_TERMS = 12  # of a polynomial that is followed
_DEPTH = 12  # equations between a value and what it is made of outside
Signature = tuple[Var, AxisMap]


@dataclass(slots=True)
class Followed:
    """A value of the region: `gates` are conditions without which it is zero, `settled` the results
    that it is computed from."""

    axes: AxisMap
    value: Polynomial
    gates: frozenset[Condition] = frozenset()
    settled: frozenset[Symbol] = frozenset()


@dataclass(frozen=True, slots=True)
class AttentionResult:
    """A variable that is `factor` times the output ("output") or a cotangent ("dq", "dk", "dv",
    "dbias") of the attention, of the cotangent of the output that `of` names."""

    var: Var
    at: int
    kind: str
    of: Symbol
    factor: float
    axes: AxisMap
    gates: frozenset[Condition]


@dataclass(frozen=True, slots=True)
class OutputCotangent:
    """A variable that is `factor` times a cotangent of the output."""

    var: Var
    axes: AxisMap
    factor: float


@dataclass(slots=True)
class ProgramIndex:
    """A program's equations by what they compute and what they read."""

    jaxpr: Jaxpr
    producers: Producers = field(default_factory=dict)
    position: dict[Var, int] = field(default_factory=dict)
    readers: dict[Var, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for n, e in enumerate(self.jaxpr.eqns):
            for o in e.outs:
                self.producers[o], self.position[o] = e, n
            for i in e.ins:
                if type(i) is Var:
                    self.readers.setdefault(i, []).append(n)


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

    # ---- the walk ----

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
            if found is None or len(found.value) > _MOST_TERMS:
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
        single = _single(found.value)
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
        found = found or {x.aval.dtype for x in self.transposed}
        if not found and self.value_operand is not None:
            found = {self.value_operand[0].aval.dtype}
        return found.pop() if len(found) == 1 else dtypes.F32

    # ---- axes of operands ----

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
                axes = _before(e, source, axes)
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
        return _after(e, inner)

    def signature(self, x: Var, axes: AxisMap) -> Signature:
        """The array that an operand is a view or a widening cast of, with its axes."""
        return without_views(x, axes, self.index.producers, upcasts=True)

    # ---- values from outside ----

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
            if run and _length(run) == _length(axes[d]):
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
            multiple = _multiple(e) if wide and e is not None else None
            if multiple is None:
                break
            x, factor = multiple[0], factor * multiple[1]
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
            return self.probability_cotangent(e, axes)
        if e.prim in _VIEWS or (e.prim is ew.convert_p and dtypes.is_float(x.aval.dtype)):
            (source,) = e.ins
            if type(source) is not Var or not dtypes.is_float(source.aval.dtype):
                return None
            try:
                inner = self.made(source, _before(e, source, axes), depth - 1)
            except Unmappable:
                return None
            return None if inner is None else Followed(axes, inner.value, inner.gates)
        combine = _ARITHMETIC.get(e.prim)
        if combine is None:
            return None
        found = [self.made(i, axes, depth - 1) if type(i) is Var else None for i in e.ins]
        if all([f is None for f in found]):
            return None
        operands = [f or self.constant(i, axes) for f, i in zip(found, e.ins)]
        return combine(e, axes, operands)

    def constant(self, x: Atom, axes: AxisMap) -> Followed:
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

    # ---- rules ----

    def evaluated(self, e: Eqn) -> Followed | None:
        """What an equation that reads the region computes; None if it is not followed."""
        if not any([self.env.get(i) is not None for i in e.ins if type(i) is Var]):
            return None
        rule = _RULES.get(e.prim)
        if rule is not None:
            found = rule(self, e)
        elif e.prim in _ARITHMETIC:
            axes, operands = self.operands(e)
            found = _ARITHMETIC[e.prim](e, axes, operands)
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

    def view(self, e: Eqn) -> Followed | None:
        f = self.env[e.ins[0]]
        assert f is not None
        return Followed(_after(e, f.axes), f.value, f.gates)

    def cast(self, e: Eqn) -> Followed | None:
        f, kind = self.env[e.ins[0]], e.params["dtype"]
        return Followed(f.axes, f.value, f.gates) if f and kind in FLOATS else None

    def exponential(self, e: Eqn) -> Followed | None:
        """exp(scores + statistic) is the probabilities times exp(statistic + log-sum-exp)."""
        f = self.env[e.ins[0]]
        assert f is not None
        keyed = {m: c for m, c in f.value.items() if poly.depends(m) & self.key}
        rows = {m: c for m, c in f.value.items() if m not in keyed}
        if not keyed:
            return self._power_of_e(f.axes, f.value)
        if not any([s in self._score_symbols(m) for m in keyed for s, _ in m]) or f.gates:
            return None
        if self.scores is None:
            self.scores = keyed
            with_product = [m for m in keyed if self.product in dict(m)]
            self.factors = frozenset([s for m in with_product for s, _ in m]) - {self.product}
        elif poly.add([keyed, poly.scaled(self.scores, -1.0)]):
            return None
        shift = poly.add([rows, poly.symbol(self.row_total)])
        factor = self._power_of_e(f.axes, shift).value
        return Followed(f.axes, poly.multiply(factor, poly.symbol(self.probability)))

    def _score_symbols(self, m: Monomial) -> set[Symbol]:
        return {s for s, _ in m if s is self.product or s == self.product or s.kind == "masked"}

    def _power_of_e(self, axes: AxisMap, x: Polynomial) -> Followed:
        if not x:
            return Followed(axes, poly.number(1.0))
        on = frozenset[LogicalAxis]().union(*map(poly.depends, x))
        return Followed(axes, poly.symbol(Symbol("exp", poly.frozen(x), on)))

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

    def logarithm(self, e: Eqn) -> Followed | None:
        f = self.env[e.ins[0]]
        assert f is not None
        single = _single(f.value)
        if single is None or single[0] != 1.0 or single[1].kind != "exp":
            return None
        return Followed(f.axes, dict(single[1].key))

    def power(self, e: Eqn) -> Followed | None:
        f, n = self.env[e.ins[0]], e.params["y"]
        assert f is not None
        if n == -1:
            found = self._reciprocal(f.value)
            return None if found is None else Followed(f.axes, found, f.gates)
        if n == 2 and len(f.value) == 1:
            return Followed(f.axes, poly.multiply(f.value, f.value), f.gates)
        return None

    def _reciprocal(self, x: Polynomial) -> Polynomial | None:
        if any([poly.depends(m) & (self.key | members((self.feature,))) for m in x]):
            return None
        return poly.inverse(x)

    def quotient(self, e: Eqn) -> Followed | None:
        axes, (x, y) = self.operands(e)
        under = self._reciprocal(y.value)
        if under is None:
            return None
        return Followed(axes, poly.multiply(x.value, under), x.gates | y.gates)

    def select(self, e: Eqn) -> Followed | None:
        c, x, y = e.ins
        condition = self.env.get(c)
        if condition is not None:
            # Whether a statistic is finite, which it is wherever the result is not NaN anyway.
            truth = _truth(condition.value)
            return None if truth is None else self.followed(x if truth else y)
        first, second = [self.env.get(i) if type(i) is Var else None for i in (x, y)]
        if (first is None) == (second is None):
            return None
        f, other, negated = (first, y, False) if first is not None else (second, x, True)
        assert f is not None
        if type(other) is Var or any([a.role == "any" for a in members(f.axes)]):
            return None
        conditions = frozenset(conjuncts(c, f.axes, self.index.producers, negated))
        if other == 0:
            if not self._zero_where_masked(f.value, conditions):
                return None
            return Followed(f.axes, f.value, f.gates | conditions)
        if not other <= LOWEST_SCORE or self.scores is not None:
            return None
        if not any([self._score_symbols(m) for m in f.value]):
            return None
        key = (conditions, poly.frozen(f.value), float(other))
        masked = Symbol("masked", key, self.product.depends)
        return Followed(f.axes, poly.symbol(masked))

    def followed(self, x: Atom) -> Followed | None:
        """What is known of a value of the region."""
        f = self.env.get(x) if type(x) is Var else None
        if f is not None:
            return Followed(f.axes, f.value, f.gates)
        return None

    def _zero_where_masked(self, x: Polynomial, conditions: frozenset[Condition]) -> bool:
        """Whether selecting by `conditions` only repeats the mask of the scores."""
        if self.scores is None or not all([dict(m).get(self.probability, 0) > 0 for m in x]):
            return False
        return conditions <= self.conditions()

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

    def comparison(self, e: Eqn) -> Followed | None:
        """|x| == inf of a statistic is false, wherever the result is not NaN anyway."""
        x, y = e.ins
        inner = self.index.producers.get(x) if type(x) is Var else None
        infinite = type(y) is float and math.isinf(y)
        if infinite and inner is not None and inner.prim is ew.abs.prim:
            f = self.env.get(inner.ins[0])
            if f is not None and self._is_statistic(f.value):
                return Followed(f.axes, {poly.ONE: 0.0})
        return None

    def finite(self, e: Eqn) -> Followed | None:
        f = self.env[e.ins[0]]
        assert f is not None
        return Followed(f.axes, poly.number(1.0)) if self._is_statistic(f.value) else None

    def _is_statistic(self, x: Polynomial) -> bool:
        """Whether it is the maximum or the log-sum-exp of a row's scores."""
        single = _single(x)
        if single is None or single[0] != 1.0:
            return False
        s = single[1]
        return s == self.row_total or (s.kind == "maximum" and s.key[0] is not None)

    def maximum(self, e: Eqn) -> Followed | None:
        f = self.env[e.ins[0]]
        assert f is not None
        gone = members(tuple([f.axes[d] for d in e.params["axes"]]))
        if gone != self.key:
            return None
        keyed = [m for m in f.value if self._score_symbols(m)]
        rest = tuple([r for d, r in enumerate(f.axes) if d not in e.params["axes"]])
        key = (poly.frozen(f.value) if keyed else None, e.outs[0])
        return Followed(rest, poly.symbol(Symbol("maximum", key, members(rest))))

    def total(self, e: Eqn) -> Followed | None:
        """Sums: over keys a statistic, over features the rows' d, over others a bias's gradient."""
        f, axes = self.env[e.ins[0]], e.params["axes"]
        assert f is not None
        gone = members(tuple([f.axes[d] for d in axes]))
        rest = tuple([r for d, r in enumerate(f.axes) if d not in axes])
        if gone == self.key:
            sums = [self._over_keys(m, c, f) for m, c in f.value.items()]
            return Followed(rest, poly.add(sums))
        if gone and gone == members((self.feature,)):
            sums = [self._over_features(m, c) for m, c in f.value.items()]
            return None if None in sums else Followed(rest, poly.add([s for s in sums if s]))
        if not gone or not gone <= self.product.depends:
            return None
        single = _single(f.value)
        if single is not None and single[1].kind in ("dk", "dv") and gone <= self.batch:
            # Of keys or values that were repeated for the heads that share them.
            left = members(rest)
            found = Symbol(single[1].kind, (single[1].key[0], left), left)
            return Followed(rest, poly.scaled(poly.symbol(found), single[0]), f.gates)
        gradient = self.score_gradient(f.value)
        if gradient is not None:
            factor, rows, of = gradient
            if rows:
                return None
            left = members(rest)
            found = Symbol("dbias", (of, left), left)
            return Followed(rest, poly.scaled(poly.symbol(found), factor), f.gates)
        if single is not None and single[1].kind == "dbias":
            of, left = single[1].key
            found = Symbol("dbias", (of, left - gone), left - gone)
            return Followed(rest, poly.scaled(poly.symbol(found), single[0]), f.gates)
        return None

    def _over_keys(self, m: Monomial, c: float, f: Followed) -> Polynomial:
        rows = frozenset([(s, n) for s, n in m if not s.depends & self.key])
        keyed = dict(m - rows)
        if not keyed:
            return {rows: c * math.prod([a.size for a in self.key])}
        if keyed == {self.probability: 1} and not f.gates:
            return {rows: c}
        cotangent = [s for s in keyed if s.kind == "cotangent"]
        if len(cotangent) == 1 and keyed == {self.probability: 1, cotangent[0]: 1}:
            return poly.multiply({rows: c}, poly.symbol(self.row_dot(cotangent[0].key)))
        opaque = Symbol("sum", (frozenset(keyed.items()), f.gates), self.row_total.depends)
        return poly.multiply({rows: c}, poly.symbol(opaque))

    def row_dot(self, of: Symbol) -> Symbol:
        """The sum over the keys of P * D, which is that over the features of output * cotangent."""
        return Symbol("row_dot", of, self.row_total.depends)

    def _over_features(self, m: Monomial, c: float) -> Polynomial | None:
        features = members((self.feature,))
        rows = frozenset([(s, n) for s, n in m if not s.depends & features])
        wide = dict(m - rows)
        output = self.output()
        if not features or wide.pop(output, 0) not in (1, 2):
            return None
        if not wide and dict(m)[output] == 2:
            return poly.multiply({rows: c}, poly.symbol(self.row_dot(output)))
        if len(wide) != 1 or dict(m)[output] != 1:
            return None
        ((s, n),) = wide.items()
        if n != 1 or s.kind != "outside":
            return None
        return poly.multiply({rows: c}, poly.symbol(self.row_dot(s)))

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

    # ---- products ----

    def contraction(self, e: Eqn) -> Followed | None:
        if self.scores is None:
            return None
        (x, y), numbers = e.ins, e.params["dimension_numbers"]
        (xc, yc), (xb, yb) = numbers
        sides = [(x, xc, xb), (y, yc, yb)]
        maps = [self.axes_of(v) for v, _, _ in sides]
        # The probabilities, or their gradient, are the operand with axes of keys.
        whole = [a is not None and members(a) == self.product.depends for a in maps]
        if not any(whole):
            if None in maps:
                return None
            free = [
                tuple([a[d] for d in free_dims(len(a), (*c, *b))])
                for a, (_, c, b) in zip(maps, sides)
                if a is not None
            ]
            batch = tuple([maps[0][d] for d in xb]) if maps[0] is not None else ()
            return self.probability_cotangent(e, (*batch, *free[0], *free[1]))
        side = whole.index(True)
        (w, wc, wb), (o, oc, ob) = sides[side], sides[1 - side]
        p = self.env.get(w)
        if p is None or any(whole) == all(whole):
            return None
        gone = members(tuple([p.axes[d] for d in wc]))
        batch = [p.axes[d] for d in wb]
        inner = [p.axes[d] for d in wc]
        gradient = self.score_gradient(p.value)
        # Queries, keys and values may be one array: which one is meant, its use says.
        axes = maps[1 - side]
        if gradient is None:
            axes = self._by_pairing(o, oc, ob, inner, batch) or axes
        elif len(self.inner) == len(free_dims(o.aval.ndim, (*oc, *ob))) == 1:
            axes = operand_axes(o.aval.ndim, oc, ob, inner, batch, self.inner)
        if axes is None or [axes[d] for d in oc] != inner or [axes[d] for d in ob] != batch:
            return None
        if members(tuple(batch)) != self.batch:
            return None
        free = [p.axes[d] for d in free_dims(len(p.axes), (*wc, *wb))]
        beyond = [axes[d] for d in free_dims(len(axes), (*oc, *ob))]
        result = tuple([*batch, *free, *beyond] if side == 0 else [*batch, *beyond, *free])
        found: Polynomial | None = None
        if gone == self.key and gradient is not None:
            factor, rows, of = gradient
            if self.signature(o, axes) == self.k:
                made = Symbol("dq", (of,), members(result))
                found = poly.multiply({rows: factor}, poly.symbol(made))
        elif gone == self.key:
            found = self._output(p.value, o, axes, beyond)
            if found is not None:
                self.weighted.append(e)
        elif gone == self.query and gradient is not None:
            factor, rows, of = gradient
            if not rows and self.signature(o, axes) == self.q:
                found = poly.scaled(poly.symbol(Symbol("dk", (of,), members(result))), factor)
        elif gone == self.query:
            found = self._value_cotangent(p.value, o, axes, result)
            if found is not None:
                self.transposed.append(w)
        if found is None:
            return None
        self.products.append(e)
        return Followed(result, found, p.gates)

    def _by_pairing(
        self,
        x: Var,
        contracted: Sequence[int],
        batched: Sequence[int],
        inner: Sequence[Run],
        batch: Sequence[Run],
    ) -> AxisMap | None:
        """The axes of an operand of which only one is not paired: the features."""
        free = free_dims(x.aval.ndim, (*contracted, *batched))
        if len(free) != 1:
            return None
        size = x.aval.shape[free[0]]
        if not self.feature:
            self.feature = self.table.run("feature", 0, size)
        if size != _length(self.feature):
            return None
        return operand_axes(x.aval.ndim, contracted, batched, inner, batch, [self.feature])

    def _output(
        self, p: Polynomial, v: Var, axes: AxisMap, free: Sequence[Run]
    ) -> Polynomial | None:
        if len(p) != 1 or list(free) != [self.feature] or not self.feature:
            return None
        ((m, c),) = p.items()
        powers = dict(m)
        if powers.pop(self.probability, 0) != 1 or not self._takes_value(v, axes):
            return None
        rows = frozenset(powers.items())
        if poly.depends(rows) & self.key:
            return None
        return poly.multiply({rows: c}, poly.symbol(self.output()))

    def _takes_value(self, v: Var, axes: AxisMap) -> bool:
        """Whether an operand is the values; the first one is."""
        found = self.signature(v, axes)
        if self.value is None:
            self.value, self.value_operand = found, (v, axes)
            self.learn(v, axes)
        return self.value == found

    def _cotangent(self, g: Var, axes: AxisMap) -> tuple[float, Monomial, Symbol] | None:
        """(factor, statistics, symbol) of a cotangent of the output."""
        f = self.outside(g, axes)
        if len(f.value) != 1 or f.gates:
            return None
        ((m, c),) = f.value.items()
        wide = [(s, n) for s, n in m if s.depends & members((self.feature,))]
        if len(wide) != 1 or wide[0][1] != 1 or wide[0][0].kind not in ("outside", "output"):
            return None
        rows = m - {wide[0]}
        if poly.depends(rows) & self.key:
            return None
        of = wide[0][0]
        self.learn(g, axes)
        if of.kind == "outside":
            self.learn(of.key[0], of.key[1])
        if not rows:
            noted = self.cotangents.setdefault(of, [])
            if all([n.var is not g for n in noted]):
                noted.append(OutputCotangent(g, axes, c))
        if of.kind == "outside" and all([n.factor != 1.0 for n in self.cotangents.get(of, [])]):
            self.cotangents.setdefault(of, []).append(OutputCotangent(of.key[0], of.key[1], 1.0))
        return c, rows, of

    def probability_cotangent(self, e: Eqn, axes: AxisMap) -> Followed | None:
        """D, the product of a cotangent of the output and the values; None if it is another
        product."""
        if members(axes) != self.product.depends:
            return None
        (x, y), ((xc, yc), (xb, yb)) = e.ins, e.params["dimension_numbers"]
        batch, rest = list(axes[: len(xb)]), axes[len(xb) :]
        count = len(free_dims(x.aval.ndim, (*xc, *xb)))
        frees = [list(rest[:count]), list(rest[count:])]
        keyed = [members(tuple(f)) == self.key for f in frees]
        if members(tuple(batch)) != self.batch or keyed.count(True) != 1:
            return None
        side = keyed.index(True)
        sides = [(x, xc, xb), (y, yc, yb)]
        (v, vc, vb), (g, gc, gb) = sides[side], sides[1 - side]
        if len(vc) != 1 or members(tuple(frees[1 - side])) != self.query:
            return None
        size = v.aval.shape[vc[0]]
        if not self.feature:
            self.feature = self.table.run("feature", 0, size)
        if size != _length(self.feature):
            return None
        inner = [self.feature]
        value_axes = operand_axes(v.aval.ndim, vc, vb, inner, batch, frees[side])
        axes_of_g = operand_axes(g.aval.ndim, gc, gb, inner, batch, frees[1 - side])
        if not self.feature or not self._takes_value(v, value_axes):
            return None
        found = self._cotangent(g, axes_of_g)
        if found is None:
            return None
        factor, rows, of = found
        if e not in self.products:
            self.products.append(e)
        cotangent = Symbol("cotangent", of, self.product.depends)
        return Followed(axes, poly.multiply({rows: factor}, poly.symbol(cotangent)))

    def _value_cotangent(
        self, p: Polynomial, g: Var, axes: AxisMap, result: AxisMap
    ) -> Polynomial | None:
        if len(p) != 1:
            return None
        ((m, c),) = p.items()
        powers = dict(m)
        if powers.pop(self.probability, 0) != 1:
            return None
        found = self._cotangent(g, axes)
        if found is None:
            return None
        factor, rows, of = found
        if poly.times(frozenset(powers.items()), rows) != poly.ONE:
            return None
        made = Symbol("dv", (of,), members(result))
        return poly.scaled(poly.symbol(made), c * factor)


def operand_axes(
    ndim: int,
    contracted: Sequence[int],
    batched: Sequence[int],
    inner: Sequence[Run],
    batch: Sequence[Run],
    free: Sequence[Run],
) -> AxisMap:
    """The axes of a product's operand, by those of its parts."""
    found: list[Run] = [()] * ndim
    for dims, runs in (
        (contracted, inner), (batched, batch), (free_dims(ndim, (*contracted, *batched)), free)
    ):  # fmt: skip
        for d, run in zip(dims, runs, strict=True):
            found[d] = run
    return tuple(found)


def _before(e: Eqn, source: Var, axes: AxisMap) -> AxisMap:
    """The axes of the operand of a view or cast, by those of the result."""
    if e.prim is transpose_p:
        return before_transpose(axes, e.params["permutation"])
    if e.prim is reshape_p:
        return reshaped(axes, source.aval.shape)
    if e.prim is broadcast_in_dim_p:
        return before_broadcast(axes, source.aval.shape, e.params["dims"])
    return axes


def _after(e: Eqn, axes: AxisMap) -> AxisMap:
    """The axes of the result of a view or cast, by those of the operand."""
    if e.prim is transpose_p:
        return permuted(axes, e.params["permutation"])
    if e.prim is reshape_p:
        return reshaped(axes, e.outs[0].aval.shape)
    if e.prim is broadcast_in_dim_p:
        return broadcast(axes, e.params["shape"], e.params["dims"])
    return axes


def _length(run: Run) -> int:
    return math.prod([a.size for a in run])


def _multiple(e: Eqn) -> tuple[Var, float] | None:
    """(operand, number) if an equation multiplies an array by a number other than zero."""
    if e.prim is ew.neg.prim and type(e.ins[0]) is Var:
        return e.ins[0], -1.0
    if e.prim not in (ew.mul.prim, ew.div.prim):
        return None
    x, y = e.ins
    if type(x) is not Var and e.prim is ew.mul.prim:
        x, y = y, x
    if type(x) is not Var or type(y) is Var or not y or not math.isfinite(y):
        return None
    return x, float(y) if e.prim is ew.mul.prim else 1.0 / y


def _single(x: Polynomial) -> tuple[float, Symbol] | None:
    """(factor, symbol) of a multiple of one symbol."""
    if len(x) != 1:
        return None
    ((m, c),) = x.items()
    if len(m) != 1:
        return None
    ((s, n),) = m
    return (c, s) if n == 1 else None


def _truth(x: Polynomial) -> bool | None:
    """The value of a condition, if it is known."""
    return x[poly.ONE] != 0 if x.keys() == {poly.ONE} else None


# ---- rules by primitive ----

Rule = Callable[[ScoreRegion, Eqn], "Followed | None"]
Combine = Callable[[Eqn, AxisMap, Sequence[Followed]], "Followed | None"]


def _gates(operands: Sequence[Followed], product: bool) -> frozenset[Condition]:
    """A product is zero where one factor is, a sum where all terms are."""
    found = [f.gates for f in operands if f.value or product]
    if not found:
        return frozenset()
    return found[0].union(*found[1:]) if product else found[0].intersection(*found[1:])


def _sum(e: Eqn, axes: AxisMap, operands: Sequence[Followed]) -> Followed:
    return Followed(axes, poly.add([f.value for f in operands]), _gates(operands, False))


def _difference(e: Eqn, axes: AxisMap, operands: Sequence[Followed]) -> Followed:
    x, y = operands
    value = poly.add([x.value, poly.scaled(y.value, -1.0)])
    return Followed(axes, value, _gates(operands, False))


def _product(e: Eqn, axes: AxisMap, operands: Sequence[Followed]) -> Followed | None:
    x, y = operands
    if len(x.value) * len(y.value) > _MOST_TERMS:
        return None
    return Followed(axes, poly.multiply(x.value, y.value), _gates(operands, True))


def _opposite(e: Eqn, axes: AxisMap, operands: Sequence[Followed]) -> Followed:
    (x,) = operands
    return Followed(axes, poly.scaled(x.value, -1.0), x.gates)


def _ratio(e: Eqn, axes: AxisMap, operands: Sequence[Followed]) -> Followed | None:
    x, y = operands
    single = y.value.keys() == {poly.ONE} or all([s.kind == "exp" for m in y.value for s, _ in m])
    under = poly.inverse(y.value) if single else None
    return None if under is None else Followed(axes, poly.multiply(x.value, under), x.gates)


_ARITHMETIC: dict[Primitive, Combine] = {
    ew.add.prim: _sum,
    ew.add_n.prim: _sum,
    ew.sub.prim: _difference,
    ew.mul.prim: _product,
    ew.safe_mul.prim: _product,
    ew.neg.prim: _opposite,
    ew.div.prim: _ratio,
}
_VIEWS = (transpose_p, reshape_p, broadcast_in_dim_p)
_RULES: dict[Primitive, Rule] = {
    **dict.fromkeys(_VIEWS, ScoreRegion.view),
    ew.convert_p: ScoreRegion.cast,
    ew.div.prim: ScoreRegion.quotient,
    ew.exp.prim: ScoreRegion.exponential,
    ew.log.prim: ScoreRegion.logarithm,
    ew.integer_pow_p: ScoreRegion.power,
    ew.select_p: ScoreRegion.select,
    ew.eq.prim: ScoreRegion.comparison,
    ew.is_finite.prim: ScoreRegion.finite,
    reduce_max_p: ScoreRegion.maximum,
    reduce_sum_p: ScoreRegion.total,
    dot_general_p: ScoreRegion.contraction,
}
