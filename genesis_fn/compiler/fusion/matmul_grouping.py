"""contractions: products of matrices that are better computed together.

* Sums of products become one product whose sum over k runs through several pairs of operands: the
  gradient of a layer's input is one of them, and its terms never reach memory.
* Products with too few tiles to keep the machine busy, weight gradients above all, share a launch.
  They wait for each other, which keeps their operands alive a little longer.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.simplify.rewriter import has_effect
from genesis_fn.compiler.target import Target
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.dot_general import dot_general_p
from genesis_fn.primitives.elementwise import add, add_n, convert_p

_TILE = 128, 256
_BUSY = 0.9  # a product that uses so much of the machine needs no company
_FILLED = 0.95  # a launch that uses so much takes no more products
_LEAST_WAVES = 2
_LEAST_DEPTH = 512  # a short sum is over before it is worth to wait for others
_MOST_PRODUCTS = 12
_MOST_HELD = 1 << 30  # bytes that are kept alive by products that wait
_LEAST_ROWS = 128


class _Products(Primitive):
    """Several matrix products as one equation."""

    __slots__ = ()

    def abstract(self, avals: tuple[Any, ...], params: dict[str, Any]) -> list[Any]:
        # Not remembered: the parameters of `dots` have no hash.
        return self.shape(*avals, **params)


def _flops(ins: Sequence[Aval], outs: Sequence[Aval], *, dots: Any, sums: Any, avals: Any) -> float:
    flops = dot_general_p.flops
    assert flops is not None
    pairs = [(i, o) for terms, o in zip(sums, outs) for i in terms]
    return sum([flops(ins[2 * i : 2 * i + 2], [o], **dots[i]) for i, o in pairs])


GROUPED = _Products(
    "products",
    lambda *operands, dots, sums, avals: list(avals),
    multi=True,
    listed=False,
    flops=_flops,
)
"""Matrix products in one launch: an operation of the compiler's own programs.

Operands are the pairs of `dots` (parameters of `dot_general`) in turn; result i is the sum of the
dots numbered in `sums[i]`, with aval `avals[i]`, and is rounded once.
"""


def group_matmuls(jaxpr: Jaxpr, target: Target) -> Jaxpr:
    """`jaxpr` with products that gain from it joined: the kernels that run through several operands
    read them through descriptors."""
    if not target.descriptors or not any([e.prim is dot_general_p for e in jaxpr.eqns]):
        return jaxpr
    if enabled("segments"):
        jaxpr = _summed(jaxpr)
    return _joined(jaxpr, _batches(jaxpr, target.processors)) if enabled("grouped") else jaxpr


# ---- sizes ----


def _dots(e: Eqn) -> Sequence[dict[str, Any]]:
    return e.params["dots"] if e.prim is GROUPED else (e.params,)


def _sizes(e: Eqn) -> tuple[int, int, int]:
    """(rows, columns, depth) of a product without batch axes."""
    m = n = k = 0
    for i, p in enumerate(_dots(e)):
        x, y = e.ins[2 * i : 2 * i + 2]
        (xc, _), _ = p["dimension_numbers"]
        inner = math.prod([x.aval.shape[d] for d in xc])
        m, n, k = x.aval.size // max(inner, 1), y.aval.size // max(inner, 1), k + inner
    return m, n, k


def _plain(e: Eqn) -> bool:
    """Whether an equation is one product, or sum of products, of two 16-bit matrices."""
    if e.prim is dot_general_p:
        if e.params["dimension_numbers"][1][0]:
            return False
    elif e.prim is not GROUPED or len(e.outs) > 1:
        return False
    operands = all([type(i) is Var and i.aval.dtype in (dtypes.BF16, dtypes.F16) for i in e.ins])
    return operands and all([i.aval.size > 0 for i in e.ins])


def _tiles(e: Eqn) -> int:
    m, n, _ = _sizes(e)
    return -(-m // _TILE[0]) * -(-n // _TILE[1])


def _use(tiles: int, processors: int) -> float:
    """The share of the machine that so many tiles keep busy."""
    return tiles / (-(-tiles // processors) * processors)


def _type(e: Eqn) -> Any:
    precision = {p["precision"] for p in _dots(e)}
    kinds = {i.aval.dtype for i in e.ins}
    if len(precision) > 1 or len(kinds) > 1:
        return None
    return kinds.pop(), e.outs[0].aval.dtype, precision.pop()


# ---- sums ----


def _summed(jaxpr: Jaxpr) -> Jaxpr:
    """Sums whose terms are products that nothing else reads, as one product each.

    The terms are 16-bit values, added in float32. Their sum is rounded to 16 bits once: no more
    than the terms were.
    """
    made = {o: e for e in jaxpr.eqns for o in e.outs}
    uses: dict[Var, int] = {}
    for v in (*jaxpr.outs, *[i for e in jaxpr.eqns for i in e.ins if type(i) is Var]):
        uses[v] = uses.get(v, 0) + 1
    gone: set[Eqn] = set()
    new: dict[Eqn, list[Eqn]] = {}
    for e in reversed(jaxpr.eqns):
        if e in gone or not _is_sum(e):
            continue
        terms: list[Eqn] = []
        rest: list[Var] = []
        absorbed: list[Eqn] = []
        for x in e.ins:
            for path, d, y in _below(x, made, uses):
                if d is None or (terms and not _addable(terms[0], d)):
                    rest.append(y)
                else:
                    terms.append(d)
                    absorbed += path
        if len(terms) > 1 and len(rest) <= 1:
            gone.update(terms, absorbed)
            new[e] = _sum_of(e, terms, rest)
    if not new:
        return jaxpr
    eqns = [x for e in jaxpr.eqns if e not in gone for x in new.get(e, (e,))]
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _is_sum(e: Eqn) -> bool:
    return (e.prim is add_n.prim or e.prim is add.prim) and all([type(i) is Var for i in e.ins])


def _below(
    x: Var, made: dict[Var, Eqn], uses: dict[Var, int]
) -> list[tuple[list[Eqn], Eqn | None, Var]]:
    """The terms that `x` is the sum of: (equations between, product or None, value) of each. Only
    what nothing else reads is looked into."""
    path: list[Eqn] = []
    y = x
    while uses[y] == 1 and (e := made.get(y)) is not None:
        if e.prim is dot_general_p:
            rows = _sizes(e)[0] if _plain(e) else 0
            return [(path, e if rows >= _LEAST_ROWS else None, x)]
        if _is_sum(e) and not path:
            inner = [t for i in e.ins for t in _below(i, made, uses)]
            if sum([d is None for _, d, _ in inner]) <= 1:
                return [([*p, e], d, v) for p, d, v in inner]
        if e.prim is not convert_p or type(e.ins[0]) is not Var:
            break
        if not dtypes.is_float(y.aval.dtype) or y.aval.nbytes < e.ins[0].aval.nbytes:
            break
        path.append(e)
        y = e.ins[0]
    return [([], None, x)]


def _addable(a: Eqn, b: Eqn) -> bool:
    """Whether two products can share an accumulator: same shape, types and layouts."""
    alike = a.outs[0].aval == b.outs[0].aval and _type(a) == _type(b) and _type(a) is not None
    return alike and _layout(a) == _layout(b)


def _layout(e: Eqn) -> tuple[bool, ...]:
    """For each operand, whether its contracted axes are its last."""
    (xc, yc), _ = e.params["dimension_numbers"]
    return tuple(
        [
            sorted(axes) == list(range(x.aval.ndim - len(axes), x.aval.ndim))
            for x, axes in zip(e.ins, (xc, yc))
        ]
    )


def _sum_of(e: Eqn, terms: list[Eqn], rest: list[Var]) -> list[Eqn]:
    """The sum `e` as a product, a cast, and an addition of what is no product."""
    (out,) = e.outs
    narrow = terms[0].outs[0].aval
    params = {
        "dots": tuple([t.params for t in terms]),
        "sums": (tuple(range(len(terms))),),
        "avals": (narrow,),
    }
    whole = Var(narrow)
    eqns = [Eqn(GROUPED, [i for t in terms for i in t.ins], params, (whole,), e.where, e.backward)]
    alone = not rest
    wide = whole
    if narrow.dtype != out.aval.dtype:
        wide = out if alone else Var(out.aval)
        eqns.append(
            Eqn(convert_p, [whole], {"dtype": out.aval.dtype}, (wide,), e.where, e.backward)
        )
    elif alone:
        eqns[0] = eqns[0].replace(outs=(out,))
    if rest:
        eqns.append(Eqn(e.prim, [wide, *rest], e.params, (out,), e.where, e.backward))
    return eqns


# ---- groups ----


@dataclass(slots=True)
class _Batch:
    """Independent products that wait for each other: `after` are the values that need one."""

    processors: int
    members: list[Eqn] = field(default_factory=list)
    after: set[Var] = field(default_factory=set)
    tiles: int = 0
    held: int = 0

    def takes(self, e: Eqn) -> bool:
        """Whether `e` may join."""
        full = len(self.members) == _MOST_PRODUCTS or self.held > _MOST_HELD
        waves = self.tiles / self.processors
        full = full or (waves >= _LEAST_WAVES and _use(self.tiles, self.processors) >= _FILLED)
        return not full and self.after.isdisjoint(e.ins)

    def add(self, e: Eqn) -> None:
        """Let `e` join."""
        self.members.append(e)
        self.tiles += _tiles(e)
        self.held += sum([i.aval.nbytes for i in set(e.ins)])
        self.after.update(e.outs)


def _waiting(e: Eqn, processors: int) -> Any:
    """What products share that may wait for each other; None for one that fills the machine."""
    if not _plain(e) or _type(e) is None:
        return None
    m, n, k = _sizes(e)
    if min(m, n) < _LEAST_ROWS or k < _LEAST_DEPTH or _use(_tiles(e), processors) >= _BUSY:
        return None
    return _type(e)


def _batches(jaxpr: Jaxpr, processors: int) -> list[_Batch]:
    """Products that may wait for each other, in batches that can be computed at the place of their
    last."""
    result: list[_Batch] = []
    last: dict[Any, _Batch] = {}
    for e in jaxpr.eqns:
        for b in last.values():
            if not b.after.isdisjoint(e.ins):
                b.after.update(e.outs)
        key = _waiting(e, processors)
        if key is None:
            continue
        batch = last.get(key)
        if batch is None or not batch.takes(e):
            batch = last[key] = _Batch(processors)
            result.append(batch)
        batch.add(e)
    return [b for b in result if len(b.members) > 1]


def _joined(jaxpr: Jaxpr, batches: Sequence[_Batch]) -> Jaxpr:
    """The program with each batch as one equation, in an order that this allows."""
    while batches:
        eqns = _ordered(jaxpr, batches)
        if eqns is not None:
            return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)
        batches = batches[:-1]  # two of them wait for each other
    return jaxpr


def _ordered(jaxpr: Jaxpr, batches: Iterable[_Batch]) -> list[Eqn] | None:
    of: dict[Eqn, Eqn] = {}
    for b in batches:
        of.update(dict.fromkeys(b.members, _launch(b.members)))
    place: dict[Eqn, int] = {}
    for n, e in enumerate(jaxpr.eqns):
        place[of.get(e, e)] = n  # a batch comes where its last member was
    made = {o: e for e in place for o in e.outs}
    needs = {e: {made[i] for i in e.ins if type(i) is Var and i in made} for e in place}
    effects = [e for e in place if has_effect(e)]
    for a, b in zip(effects, effects[1:]):
        needs[b].add(a)
    users: dict[Eqn, list[Eqn]] = {}
    waiting = {}
    for e, before in needs.items():
        waiting[e] = len(before)
        for p in before:
            users.setdefault(p, []).append(e)
    heap = [place[e] for e, count in waiting.items() if not count]
    at = {n: e for e, n in place.items()}
    heapq.heapify(heap)
    result = []
    while heap:
        e = at[heapq.heappop(heap)]
        result.append(e)
        for u in users.get(e, ()):
            waiting[u] -= 1
            if not waiting[u]:
                heapq.heappush(heap, place[u])
    return result if len(result) == len(place) else None


def _launch(members: Sequence[Eqn]) -> Eqn:
    dots, sums, ins, outs = [], [], [], []
    for e in members:
        own = _dots(e)
        sums.append(tuple(range(len(dots), len(dots) + len(own))))
        dots += own
        ins += e.ins
        outs += e.outs
    params = {"dots": tuple(dots), "sums": tuple(sums), "avals": tuple([o.aval for o in outs])}
    last = members[-1]
    return Eqn(GROUPED, ins, params, outs, last.where, any([e.backward for e in members]))
