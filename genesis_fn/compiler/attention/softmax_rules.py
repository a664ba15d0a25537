"""Rules of elementwise operations and reductions: masks, the softmax and its derivative."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from genesis_fn.compiler.attention import polynomials as poly
from genesis_fn.compiler.attention.axes import AxisMap, LogicalAxis, members
from genesis_fn.compiler.attention.masks import LOWEST_SCORE, Condition, conjuncts
from genesis_fn.compiler.attention.polynomials import Monomial, Polynomial, Symbol
from genesis_fn.compiler.attention.values import (
    FLOATS,
    VIEWS,
    Followed,
    after_view,
    single_symbol,
    truth_of,
)
from genesis_fn.compiler.simplify.rewriter import rounded
from genesis_fn.core.jaxpr import Atom, Eqn, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.reductions.reduce import reduce_max_p, reduce_sum_p

if TYPE_CHECKING:
    from genesis_fn.compiler.attention.region import ScoreRegion

Rule = Callable[["ScoreRegion", Eqn], "Followed | None"]


def view(region: ScoreRegion, e: Eqn) -> Followed | None:
    """A view has the value of its operand."""
    f = region.env[e.ins[0]]
    assert f is not None
    return Followed(after_view(e, f.axes), f.value, f.gates)


def cast(region: ScoreRegion, e: Eqn) -> Followed | None:
    """A cast between floats, whose rounding is not followed."""
    f, kind = region.env[e.ins[0]], e.params["dtype"]
    masks = [s.key[2] for m in f.value for s, _ in m if s.kind == "masked"] if f else []
    if kind not in FLOATS or any([rounded(fill, kind) == -math.inf != fill for fill in masks]):
        return None  # a number in a mask's place that becomes infinite
    return Followed(f.axes, f.value, f.gates) if f and kind in FLOATS else None


def exponential(region: ScoreRegion, e: Eqn) -> Followed | None:
    """exp(scores + statistic) is the probabilities times exp(statistic + log-sum-exp)."""
    f = region.env[e.ins[0]]
    assert f is not None
    keyed = {m: c for m, c in f.value.items() if poly.depends(m) & region.key}
    rows = {m: c for m, c in f.value.items() if m not in keyed}
    if not keyed:
        return _power_of_e(region, f.axes, f.value)
    if not any([s in region.score_symbols(m) for m in keyed for s, _ in m]) or f.gates:
        return None
    if region.scores is None:
        region.scores = keyed
        with_product = [m for m in keyed if region.product in dict(m)]
        region.factors = frozenset([s for m in with_product for s, _ in m]) - {region.product}
    elif poly.add([keyed, poly.scaled(region.scores, -1.0)]):
        return None
    shift = poly.add([rows, poly.symbol(region.row_total)])
    factor = _power_of_e(region, f.axes, shift).value
    return Followed(f.axes, poly.multiply(factor, poly.symbol(region.probability)))


def _power_of_e(region: ScoreRegion, axes: AxisMap, x: Polynomial) -> Followed:
    if not x:
        return Followed(axes, poly.number(1.0))
    on = frozenset[LogicalAxis]().union(*map(poly.depends, x))
    return Followed(axes, poly.symbol(Symbol("exp", poly.frozen(x), on)))


def logarithm(region: ScoreRegion, e: Eqn) -> Followed | None:
    """The logarithm of a power of e."""
    f = region.env[e.ins[0]]
    assert f is not None
    single = single_symbol(f.value)
    if single is None or single[0] != 1.0 or single[1].kind != "exp":
        return None
    return Followed(f.axes, dict(single[1].key))


def power(region: ScoreRegion, e: Eqn) -> Followed | None:
    """A reciprocal, or a square."""
    f, n = region.env[e.ins[0]], e.params["y"]
    assert f is not None
    if n == -1:
        found = _reciprocal(region, f.value)
        return None if found is None else Followed(f.axes, found, f.gates)
    if n == 2 and len(f.value) == 1:
        return Followed(f.axes, poly.multiply(f.value, f.value), f.gates)
    return None


def _reciprocal(region: ScoreRegion, x: Polynomial) -> Polynomial | None:
    if any([poly.depends(m) & (region.key | members((region.feature,))) for m in x]):
        return None
    return poly.inverse(x)


def quotient(region: ScoreRegion, e: Eqn) -> Followed | None:
    """A quotient by a statistic of the row."""
    axes, (x, y) = region.operands(e)
    under = _reciprocal(region, y.value)
    if under is None:
        return None
    return Followed(axes, poly.multiply(x.value, under), x.gates | y.gates)


def select(region: ScoreRegion, e: Eqn) -> Followed | None:
    """A mask of scores, the same mask again, or a choice by what a statistic is."""
    c, x, y = e.ins
    condition = region.env.get(c)
    if condition is not None:
        # Whether a statistic is finite, which it is wherever the result is not NaN anyway.
        truth = truth_of(condition.value)
        return None if truth is None else followed(region, x if truth else y)
    first, second = [region.env.get(i) if type(i) is Var else None for i in (x, y)]
    if (first is None) == (second is None):
        return None
    f, other, negated = (first, y, False) if first is not None else (second, x, True)
    assert f is not None
    if type(other) is Var or any([a.role == "any" for a in members(f.axes)]):
        return None
    conditions = frozenset(conjuncts(c, f.axes, region.index.producers, negated))
    if other == 0:
        if not _zero_where_masked(region, f.value, conditions):
            return None
        return Followed(f.axes, f.value, f.gates | conditions)
    other = rounded(other, e.outs[0].aval.dtype)
    if not other <= LOWEST_SCORE or region.scores is not None:
        return None
    if not any([region.score_symbols(m) for m in f.value]):
        return None
    key = (conditions, poly.frozen(f.value), float(other))
    masked = Symbol("masked", key, region.product.depends)
    return Followed(f.axes, poly.symbol(masked))


def followed(region: ScoreRegion, x: Atom) -> Followed | None:
    """What is known of a value of the region."""
    f = region.env.get(x) if type(x) is Var else None
    if f is not None:
        return Followed(f.axes, f.value, f.gates)
    return None


def _zero_where_masked(
    region: ScoreRegion, x: Polynomial, conditions: frozenset[Condition]
) -> bool:
    """Whether selecting by `conditions` only repeats the mask of the scores."""
    if region.scores is None or not all([dict(m).get(region.probability, 0) > 0 for m in x]):
        return False
    return conditions <= region.conditions()


def comparison(region: ScoreRegion, e: Eqn) -> Followed | None:
    """|x| == inf of a statistic is false, wherever the result is not NaN anyway."""
    x, y = e.ins
    inner = region.index.producers.get(x) if type(x) is Var else None
    infinite = type(y) is float and math.isinf(y)
    if infinite and inner is not None and inner.prim is ew.abs.prim:
        f = region.env.get(inner.ins[0])
        if f is not None and _is_statistic(region, f.value):
            return Followed(f.axes, {poly.ONE: 0.0})
    return None


def finite(region: ScoreRegion, e: Eqn) -> Followed | None:
    """A statistic is finite, wherever the result is not NaN anyway."""
    f = region.env[e.ins[0]]
    assert f is not None
    return Followed(f.axes, poly.number(1.0)) if _is_statistic(region, f.value) else None


def _is_statistic(region: ScoreRegion, x: Polynomial) -> bool:
    """Whether it is the maximum or the log-sum-exp of a row's scores."""
    single = single_symbol(x)
    if single is None or single[0] != 1.0:
        return False
    s = single[1]
    return s == region.row_total or (s.kind == "maximum" and s.key[0] is not None)


def maximum(region: ScoreRegion, e: Eqn) -> Followed | None:
    """The maximum of a row."""
    f = region.env[e.ins[0]]
    assert f is not None
    gone = members(tuple([f.axes[d] for d in e.params["axes"]]))
    if gone != region.key:
        return None
    keyed = [m for m in f.value if region.score_symbols(m)]
    rest = tuple([r for d, r in enumerate(f.axes) if d not in e.params["axes"]])
    key = (poly.frozen(f.value) if keyed else None, e.outs[0])
    return Followed(rest, poly.symbol(Symbol("maximum", key, members(rest))))


def total(region: ScoreRegion, e: Eqn) -> Followed | None:
    """Sums: over keys a statistic, over features the rows' d, over others a bias's gradient."""
    f, axes = region.env[e.ins[0]], e.params["axes"]
    assert f is not None
    gone = members(tuple([f.axes[d] for d in axes]))
    rest = tuple([r for d, r in enumerate(f.axes) if d not in axes])
    if gone == region.key:
        sums = [_over_keys(region, m, c, f) for m, c in f.value.items()]
        return Followed(rest, poly.add(sums))
    if gone and gone == members((region.feature,)):
        sums = [_over_features(region, m, c) for m, c in f.value.items()]
        return None if None in sums else Followed(rest, poly.add([s for s in sums if s]))
    if not gone or not gone <= region.product.depends:
        return None
    single = single_symbol(f.value)
    if single is not None and single[1].kind in ("dk", "dv") and gone <= region.batch:
        # Of keys or values that were repeated for the heads that share them.
        left = members(rest)
        found = Symbol(single[1].kind, (single[1].key[0], left), left)
        return Followed(rest, poly.scaled(poly.symbol(found), single[0]), f.gates)
    gradient = region.score_gradient(f.value)
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


def _over_keys(region: ScoreRegion, m: Monomial, c: float, f: Followed) -> Polynomial:
    rows = frozenset([(s, n) for s, n in m if not s.depends & region.key])
    keyed = dict(m - rows)
    if not keyed:
        return {rows: c * math.prod([a.size for a in region.key])}
    if keyed == {region.probability: 1} and not f.gates:
        return {rows: c}
    cotangent = [s for s in keyed if s.kind == "cotangent"]
    if len(cotangent) == 1 and keyed == {region.probability: 1, cotangent[0]: 1}:
        return poly.multiply({rows: c}, poly.symbol(region.row_dot(cotangent[0].key)))
    opaque = Symbol("sum", (frozenset(keyed.items()), f.gates), region.row_total.depends)
    return poly.multiply({rows: c}, poly.symbol(opaque))


def _over_features(region: ScoreRegion, m: Monomial, c: float) -> Polynomial | None:
    features = members((region.feature,))
    rows = frozenset([(s, n) for s, n in m if not s.depends & features])
    wide = dict(m - rows)
    output = region.output()
    if not features or wide.pop(output, 0) not in (1, 2):
        return None
    if not wide and dict(m)[output] == 2:
        return poly.multiply({rows: c}, poly.symbol(region.row_dot(output)))
    if len(wide) != 1 or dict(m)[output] != 1:
        return None
    ((s, n),) = wide.items()
    if n != 1 or s.kind != "outside":
        return None
    return poly.multiply({rows: c}, poly.symbol(region.row_dot(s)))


RULES: dict[Primitive, Rule] = {
    **dict.fromkeys(VIEWS, view),
    ew.convert_p: cast,
    ew.div.prim: quotient,
    ew.exp.prim: exponential,
    ew.log.prim: logarithm,
    ew.integer_pow_p: power,
    ew.select_p: select,
    ew.eq.prim: comparison,
    ew.is_finite.prim: finite,
    reduce_max_p: maximum,
    reduce_sum_p: total,
}
