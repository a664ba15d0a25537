"""Rules of products: the output of an attention, and the cotangents of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from genesis_fn.compiler.attention import polynomials as poly
from genesis_fn.compiler.attention.axes import AxisMap, Run, members
from genesis_fn.compiler.attention.polynomials import Monomial, Polynomial, Symbol
from genesis_fn.compiler.attention.values import Followed, OutputCotangent, length, operand_axes
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.primitives.dot_general import free_dims

if TYPE_CHECKING:
    from genesis_fn.compiler.attention.region import ScoreRegion


def contraction(region: ScoreRegion, e: Eqn) -> Followed | None:
    """A product with probabilities or their gradient: the output, or a cotangent of an operand."""
    if region.scores is None:
        return None
    (x, y), numbers = e.ins, e.params["dimension_numbers"]
    (xc, yc), (xb, yb) = numbers
    sides = [(x, xc, xb), (y, yc, yb)]
    maps = [region.axes_of(v) for v, _, _ in sides]
    # The probabilities, or their gradient, are the operand with axes of keys.
    whole = [a is not None and members(a) == region.product.depends for a in maps]
    if not any(whole):
        if None in maps:
            return None
        free = [
            tuple([a[d] for d in free_dims(len(a), (*c, *b))])
            for a, (_, c, b) in zip(maps, sides)
            if a is not None
        ]
        batch = tuple([maps[0][d] for d in xb]) if maps[0] is not None else ()
        return probability_cotangent(region, e, (*batch, *free[0], *free[1]))
    side = whole.index(True)
    (w, wc, wb), (o, oc, ob) = sides[side], sides[1 - side]
    p = region.env.get(w)
    if p is None or any(whole) == all(whole):
        return None
    gone = members(tuple([p.axes[d] for d in wc]))
    batch = [p.axes[d] for d in wb]
    inner = [p.axes[d] for d in wc]
    gradient = region.score_gradient(p.value)
    # Queries, keys and values may be one array: which one is meant, its use says.
    axes = maps[1 - side]
    if gradient is None:
        axes = _by_pairing(region, o, oc, ob, inner, batch) or axes
    elif len(region.inner) == len(free_dims(o.aval.ndim, (*oc, *ob))) == 1:
        axes = operand_axes(o.aval.ndim, oc, ob, inner, batch, region.inner)
    if axes is None or [axes[d] for d in oc] != inner or [axes[d] for d in ob] != batch:
        return None
    if members(tuple(batch)) != region.batch:
        return None
    free = [p.axes[d] for d in free_dims(len(p.axes), (*wc, *wb))]
    beyond = [axes[d] for d in free_dims(len(axes), (*oc, *ob))]
    result = tuple([*batch, *free, *beyond] if side == 0 else [*batch, *beyond, *free])
    found: Polynomial | None = None
    if gone == region.key and gradient is not None:
        factor, rows, of = gradient
        if region.signature(o, axes) == region.k:
            made = Symbol("dq", (of,), members(result))
            found = poly.multiply({rows: factor}, poly.symbol(made))
    elif gone == region.key:
        found = _output(region, p.value, o, axes, beyond)
        if found is not None:
            region.weighted.append(e)
    elif gone == region.query and gradient is not None:
        factor, rows, of = gradient
        if not rows and region.signature(o, axes) == region.q:
            found = poly.scaled(poly.symbol(Symbol("dk", (of,), members(result))), factor)
    elif gone == region.query:
        found = _value_cotangent(region, p.value, o, axes, result)
        if found is not None:
            region.transposed.append(w)
    if found is None:
        return None
    region.products.append(e)
    return Followed(result, found, p.gates)


def _by_pairing(
    region: ScoreRegion,
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
    if not region.feature:
        region.feature = region.table.run("feature", 0, size)
    if size != length(region.feature):
        return None
    return operand_axes(x.aval.ndim, contracted, batched, inner, batch, [region.feature])


def _output(
    region: ScoreRegion, p: Polynomial, v: Var, axes: AxisMap, free: Sequence[Run]
) -> Polynomial | None:
    if len(p) != 1 or list(free) != [region.feature] or not region.feature:
        return None
    ((m, c),) = p.items()
    powers = dict(m)
    if powers.pop(region.probability, 0) != 1 or not _takes_value(region, v, axes):
        return None
    rows = frozenset(powers.items())
    if poly.depends(rows) & region.key:
        return None
    return poly.multiply({rows: c}, poly.symbol(region.output()))


def _takes_value(region: ScoreRegion, v: Var, axes: AxisMap) -> bool:
    """Whether an operand is the values; the first one is."""
    found = region.signature(v, axes)
    if region.value is None:
        region.value, region.value_operand = found, (v, axes)
        region.learn(v, axes)
    return region.value == found


def _cotangent(region: ScoreRegion, g: Var, axes: AxisMap) -> tuple[float, Monomial, Symbol] | None:
    """(factor, statistics, symbol) of a cotangent of the output."""
    f = region.outside(g, axes)
    if len(f.value) != 1 or f.gates:
        return None
    ((m, c),) = f.value.items()
    wide = [(s, n) for s, n in m if s.depends & members((region.feature,))]
    if len(wide) != 1 or wide[0][1] != 1 or wide[0][0].kind not in ("outside", "output"):
        return None
    rows = m - {wide[0]}
    if poly.depends(rows) & region.key:
        return None
    of = wide[0][0]
    region.learn(g, axes)
    if of.kind == "outside":
        region.learn(of.key[0], of.key[1])
    if not rows:
        noted = region.cotangents.setdefault(of, [])
        if all([n.var is not g for n in noted]):
            noted.append(OutputCotangent(g, axes, c))
    if of.kind == "outside" and all([n.factor != 1.0 for n in region.cotangents.get(of, [])]):
        region.cotangents.setdefault(of, []).append(OutputCotangent(of.key[0], of.key[1], 1.0))
    return c, rows, of


def probability_cotangent(region: ScoreRegion, e: Eqn, axes: AxisMap) -> Followed | None:
    """D, the product of a cotangent of the output and the values; None if it is another
    product."""
    if members(axes) != region.product.depends:
        return None
    (x, y), ((xc, yc), (xb, yb)) = e.ins, e.params["dimension_numbers"]
    batch, rest = list(axes[: len(xb)]), axes[len(xb) :]
    count = len(free_dims(x.aval.ndim, (*xc, *xb)))
    frees = [list(rest[:count]), list(rest[count:])]
    keyed = [members(tuple(f)) == region.key for f in frees]
    if members(tuple(batch)) != region.batch or keyed.count(True) != 1:
        return None
    side = keyed.index(True)
    sides = [(x, xc, xb), (y, yc, yb)]
    (v, vc, vb), (g, gc, gb) = sides[side], sides[1 - side]
    if len(vc) != 1 or members(tuple(frees[1 - side])) != region.query:
        return None
    size = v.aval.shape[vc[0]]
    if not region.feature:
        region.feature = region.table.run("feature", 0, size)
    if size != length(region.feature):
        return None
    inner = [region.feature]
    value_axes = operand_axes(v.aval.ndim, vc, vb, inner, batch, frees[side])
    axes_of_g = operand_axes(g.aval.ndim, gc, gb, inner, batch, frees[1 - side])
    if not region.feature or not _takes_value(region, v, value_axes):
        return None
    found = _cotangent(region, g, axes_of_g)
    if found is None:
        return None
    factor, rows, of = found
    if e not in region.products:
        region.products.append(e)
    cotangent = Symbol("cotangent", of, region.product.depends)
    return Followed(axes, poly.multiply({rows: factor}, poly.symbol(cotangent)))


def _value_cotangent(
    region: ScoreRegion, p: Polynomial, g: Var, axes: AxisMap, result: AxisMap
) -> Polynomial | None:
    if len(p) != 1:
        return None
    ((m, c),) = p.items()
    powers = dict(m)
    if powers.pop(region.probability, 0) != 1:
        return None
    found = _cotangent(region, g, axes)
    if found is None:
        return None
    factor, rows, of = found
    if poly.times(frozenset(powers.items()), rows) != poly.ONE:
        return None
    made = Symbol("dv", (of,), members(result))
    return poly.scaled(poly.symbol(made), c * factor)
