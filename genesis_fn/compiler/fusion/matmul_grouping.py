"""Matrix products that are better computed together (`group_matmuls`).

* Sums of products become one product whose sum over k runs through several pairs of operands: the
  gradient of a layer's input is one of them, and its terms never reach memory.
* A cast of a product to float32 that must be in memory, as sums over processes need it, is what the
  product's kernel stores.
* Products with too few tiles to fill the GPU, weight gradients above all, share a launch. They wait
  for each other, which lengthens the live ranges of their operands a little.

`docs/cuda.md` has what both save in a training step.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from genesis_fn.compiler.fusion.value_graph import kind_of
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.simplify.rewriter import has_effect, use_counts
from genesis_fn.compiler.target import Target
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.dot_general import dot_general_p
from genesis_fn.primitives.elementwise import add, add_n, convert_p
from genesis_fn.primitives.shape import reshape_p

_TILE = 128, 256
# Utilisation is the share of whole waves of tiles, one for each multiprocessor, that has work.
_BUSY = 0.9  # a product that utilises so much keeps a launch of its own
_FILLED = 0.95  # a launch that utilises so much takes no more products
_MIN_WAVES = 2
_MIN_DEPTH = 512  # a shorter sum is over too soon to be worth waiting for others
_MAX_MATMULS = 12
_MAX_HELD = 1 << 30  # bytes of operands that waiting products keep alive
_MIN_ROWS = 128


class _GroupedMatmul(Primitive):
    """The primitive of several matrix products in one equation."""

    __slots__ = ()

    def abstract(self, avals: tuple[Any, ...], params: dict[str, Any]) -> list[Any]:
        # Not remembered: the parameters of `dots` have no hash.
        return self.shape(*avals, **params)


def _flops(ins: Sequence[Aval], outs: Sequence[Aval], *, dots: Any, sums: Any, avals: Any) -> float:
    flops = dot_general_p.flops
    assert flops is not None
    pairs = [(i, o) for terms, o in zip(sums, outs) for i in terms]
    return sum([flops(ins[2 * i : 2 * i + 2], [o], **dots[i]) for i, o in pairs])


grouped_matmul_p = _GroupedMatmul(
    "products",
    lambda *operands, dots, sums, avals: list(avals),
    multi=True,
    listed=False,
    flops=_flops,
)
"""Matrix products in one launch: a primitive of the compiler's own programs.

Operands are the pairs of `dots` (parameters of `dot_general`) in turn; result i is the sum of the
dots numbered in `sums[i]`, rounded once, to the dtype of these dots, and stored as `avals[i]`.
"""


def group_matmuls(jaxpr: Jaxpr, target: Target) -> Jaxpr:
    """`jaxpr` with products grouped where that is faster. Only for GPUs whose kernels read tiles
    through descriptors: those alone run through several pairs of operands."""
    if not target.descriptors or not any([e.prim is dot_general_p for e in jaxpr.eqns]):
        return jaxpr
    if enabled("segments"):
        jaxpr = _fuse_sums(jaxpr)
    if enabled("stored_casts"):
        jaxpr = _store_casts(jaxpr)
    return (
        _with_shared_launches(jaxpr, _shared_launches(jaxpr, target.processors))
        if enabled("grouped")
        else jaxpr
    )


# ---- sizes ----


def _dots(e: Eqn) -> Sequence[dict[str, Any]]:
    return e.params["dots"] if e.prim is grouped_matmul_p else (e.params,)


def _sizes(e: Eqn) -> tuple[int, int, int]:
    """(rows, columns, depth) of a product without batch axes."""
    m = n = k = 0
    for i, p in enumerate(_dots(e)):
        x, y = e.ins[2 * i : 2 * i + 2]
        (xc, _), _ = p["dimension_numbers"]
        inner = math.prod([x.aval.shape[d] for d in xc])
        m, n, k = x.aval.size // max(inner, 1), y.aval.size // max(inner, 1), k + inner
    return m, n, k


def _is_plain_matmul(e: Eqn) -> bool:
    """Whether an equation is one product, or sum of products, of two 16-bit matrices."""
    if e.prim is dot_general_p:
        if e.params["dimension_numbers"][1][0]:
            return False
    elif e.prim is not grouped_matmul_p or len(e.outs) > 1:
        return False
    operands = all([type(i) is Var and i.aval.dtype in (dtypes.BF16, dtypes.F16) for i in e.ins])
    return operands and all([i.aval.size > 0 for i in e.ins])


def _tiles(e: Eqn) -> int:
    m, n, _ = _sizes(e)
    return -(-m // _TILE[0]) * -(-n // _TILE[1])


def _utilisation(tiles: int, processors: int) -> float:
    """The share of the multiprocessors that so many tiles occupy, over whole waves."""
    return tiles / (-(-tiles // processors) * processors)


def _operand_types(e: Eqn) -> Any:
    precision = {p["precision"] for p in _dots(e)}
    kinds = {i.aval.dtype for i in e.ins}
    if len(precision) > 1 or len(kinds) > 1:
        return None
    return kinds.pop(), e.outs[0].aval.dtype, precision.pop()


# ---- sums ----


def _fuse_sums(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with sums of products that nothing else reads as one product each.

    The terms are added in the float32 accumulator and their sum is rounded to 16 bits once, where
    each term was before.
    """
    producer = {o: e for e in jaxpr.eqns for o in e.outs}
    uses: dict[Var, int] = {}
    for v in (*jaxpr.outs, *[i for e in jaxpr.eqns for i in e.ins if type(i) is Var]):
        uses[v] = uses.get(v, 0) + 1
    gone: set[Eqn] = set()
    new: dict[Eqn, list[Eqn]] = {}
    # The outermost sum first: it takes the terms of the sums inside it.
    for e in reversed(jaxpr.eqns):
        if e in gone or not _is_sum(e):
            continue
        terms: list[Eqn] = []
        rest: list[Var] = []
        absorbed: list[Eqn] = []
        for x in e.ins:
            for path, d, y in _terms_of(x, producer, uses):
                if d is None or (terms and not _same_accumulator(terms[0], d)):
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


def _terms_of(
    x: Var, producer: dict[Var, Eqn], uses: dict[Var, int]
) -> list[tuple[list[Eqn], Eqn | None, Var]]:
    """The terms that `x` is the sum of: (equations between, product or None, value) of each. It
    stops at values that something else reads, which must be computed anyway."""
    path: list[Eqn] = []
    y = x
    while uses[y] == 1 and (e := producer.get(y)) is not None:
        if e.prim is dot_general_p:
            rows = _sizes(e)[0] if _is_plain_matmul(e) else 0
            return [(path, e if rows >= _MIN_ROWS else None, x)]
        if _is_sum(e) and not path:
            inner = [t for i in e.ins for t in _terms_of(i, producer, uses)]
            if sum([d is None for _, d, _ in inner]) <= 1:
                return [([*p, e], d, v) for p, d, v in inner]
        if e.prim is not convert_p or type(e.ins[0]) is not Var:
            break
        # A cast that does not narrow is part of the sum.
        if not dtypes.is_float(y.aval.dtype) or y.aval.nbytes < e.ins[0].aval.nbytes:
            break
        path.append(e)
        y = e.ins[0]
    return [([], None, x)]


def _same_accumulator(a: Eqn, b: Eqn) -> bool:
    """Whether two products can share an accumulator: same shape, types and layouts."""
    alike = (
        a.outs[0].aval == b.outs[0].aval
        and _operand_types(a) == _operand_types(b)
        and _operand_types(a) is not None
    )
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
    """The sum `e` as a grouped product, a cast, and an addition of the rest that is no product."""
    (out,) = e.outs
    narrow = terms[0].outs[0].aval
    params = {
        "dots": tuple([t.params for t in terms]),
        "sums": (tuple(range(len(terms))),),
        "avals": (narrow,),
    }
    whole = Var(narrow)
    eqns = [
        e.replace(
            prim=grouped_matmul_p,
            ins=[i for t in terms for i in t.ins],
            params=params,
            outs=(whole,),
        )
    ]
    alone = not rest
    wide = whole
    if narrow.dtype != out.aval.dtype:
        wide = out if alone else Var(out.aval)
        eqns.append(
            e.replace(prim=convert_p, ins=[whole], params={"dtype": out.aval.dtype}, outs=(wide,))
        )
    elif alone:
        eqns[0] = eqns[0].replace(outs=(out,))
    if rest:
        eqns.append(e.replace(ins=[wide, *rest], outs=(out,)))
    return eqns


# ---- casts ----


def _store_casts(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with widened products that other steps need in memory stored as such.

    Where a generated kernel reads the cast it stays: that kernel widens the 16 bits for nothing.
    So does that of a product of few rows or columns, whose epilogue it is.
    """
    uses = use_counts(jaxpr.eqns, jaxpr.outs)
    product = {
        e.outs[0]: e for e in jaxpr.eqns if _is_plain_matmul(e) and min(_sizes(e)[:2]) >= _MIN_ROWS
    }
    casts: dict[Any, Eqn] = {}  # by the value, and by each of its reshapes
    for e in jaxpr.eqns:
        if e.prim is convert_p and _widens(e) and e.ins[0] in product and uses[e.ins[0]] == 1:
            casts[e.outs[0]] = e
        elif e.prim is reshape_p and e.ins[0] in casts:
            casts[e.outs[0]] = casts[e.ins[0]]
    read_in_kernels = {
        casts[i]
        for e in jaxpr.eqns
        if kind_of(e) != "opaque" and e.prim is not reshape_p
        for i in e.ins
        if i in casts
    }
    stored: dict[Eqn, Eqn | None] = {}
    for cast in {*casts.values()} - read_in_kernels:
        e = grouped_eqn([product[cast.ins[0]]])
        wide = {**e.params, "avals": (cast.outs[0].aval,)}
        stored |= {product[cast.ins[0]]: e.replace(outs=cast.outs, params=wide), cast: None}
    if not stored:
        return jaxpr
    eqns = [x for e in jaxpr.eqns for x in [stored.get(e, e)] if x is not None]
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _widens(e: Eqn) -> bool:
    narrow, wide = e.ins[0].aval.dtype, e.outs[0].aval.dtype
    return wide == dtypes.F32 and narrow in (dtypes.BF16, dtypes.F16)


# ---- shared launches ----


@dataclass(slots=True)
class _SharedLaunch:
    """Independent products that wait for each other. `dependents` are the values that depend on
    one of them, which no later member may read."""

    processors: int
    members: list[Eqn] = field(default_factory=list)
    dependents: set[Var] = field(default_factory=set)
    tiles: int = 0
    held: int = 0

    def accepts(self, e: Eqn) -> bool:
        """Whether `e` may become a member."""
        full = len(self.members) == _MAX_MATMULS or self.held > _MAX_HELD
        waves = self.tiles / self.processors
        full = full or (
            waves >= _MIN_WAVES and _utilisation(self.tiles, self.processors) >= _FILLED
        )
        return not full and self.dependents.isdisjoint(e.ins)

    def add(self, e: Eqn) -> None:
        """Make `e` a member."""
        self.members.append(e)
        self.tiles += _tiles(e)
        self.held += sum([i.aval.nbytes for i in set(e.ins)])
        self.dependents.update(e.outs)


def _sharing_key(e: Eqn, processors: int) -> Any:
    """The key that products of a shared launch agree in; None for one that fills the GPU alone."""
    if not _is_plain_matmul(e) or _operand_types(e) is None:
        return None
    m, n, k = _sizes(e)
    if min(m, n) < _MIN_ROWS or k < _MIN_DEPTH or _utilisation(_tiles(e), processors) >= _BUSY:
        return None
    return _operand_types(e)


def _shared_launches(jaxpr: Jaxpr, processors: int) -> list[_SharedLaunch]:
    """The shared launches of a program: each can run at the position of its last member."""
    result: list[_SharedLaunch] = []
    last: dict[Any, _SharedLaunch] = {}
    for e in jaxpr.eqns:
        for b in last.values():
            if not b.dependents.isdisjoint(e.ins):
                b.dependents.update(e.outs)
        key = _sharing_key(e, processors)
        if key is None:
            continue
        launch = last.get(key)
        if launch is None or not launch.accepts(e):
            launch = last[key] = _SharedLaunch(processors)
            result.append(launch)
        launch.add(e)
    return [b for b in result if len(b.members) > 1]


def _with_shared_launches(jaxpr: Jaxpr, launches: Sequence[_SharedLaunch]) -> Jaxpr:
    """The program with each shared launch as one equation, in an order that allows it."""
    while launches:
        eqns = _reordered(jaxpr, launches)
        if eqns is not None:
            return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)
        launches = launches[:-1]  # two of them depend on each other: a cycle
    return jaxpr


def _reordered(jaxpr: Jaxpr, launches: Iterable[_SharedLaunch]) -> list[Eqn] | None:
    of: dict[Eqn, Eqn] = {}
    for b in launches:
        of.update(dict.fromkeys(b.members, grouped_eqn(b.members)))
    position: dict[Eqn, int] = {}
    for n, e in enumerate(jaxpr.eqns):
        position[of.get(e, e)] = n  # a launch comes where its last member was
    producer = {o: e for e in position for o in e.outs}
    needs = {e: {producer[i] for i in e.ins if type(i) is Var and i in producer} for e in position}
    effects = [e for e in position if has_effect(e)]
    for a, b in zip(effects, effects[1:]):
        needs[b].add(a)
    users: dict[Eqn, list[Eqn]] = {}
    waiting = {}
    for e, before in needs.items():
        waiting[e] = len(before)
        for p in before:
            users.setdefault(p, []).append(e)
    heap = [position[e] for e, count in waiting.items() if not count]
    at = {n: e for e, n in position.items()}
    heapq.heapify(heap)
    result = []
    while heap:
        e = at[heapq.heappop(heap)]
        result.append(e)
        for u in users.get(e, ()):
            waiting[u] -= 1
            if not waiting[u]:
                heapq.heappush(heap, position[u])
    return result if len(result) == len(position) else None


def grouped_eqn(members: Sequence[Eqn]) -> Eqn:
    """The equation that computes all of `members`, each a product or a sum of several."""
    dots, sums, ins, outs = [], [], [], []
    for e in members:
        own = _dots(e)
        sums.append(tuple(range(len(dots), len(dots) + len(own))))
        dots += own
        ins += e.ins
        outs += e.outs
    params = {"dots": tuple(dots), "sums": tuple(sums), "avals": tuple([o.aval for o in outs])}
    backward = any([e.backward for e in members])
    return members[-1].replace(
        prim=grouped_matmul_p, ins=ins, params=params, outs=outs, backward=backward
    )
