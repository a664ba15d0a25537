"""The simplifier's passes over a program, and the tables of its rules.

The forward pass (`Rewriter`) rewrites equations by local rules and merges equal ones. The backward
pass removes dead code, flattens sums and folds transposes into products. Rules see operands
that are simplified already.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from genesis_fn.compiler.simplify.dedup_checks import drop_repeated_checks
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import ITSELF, Atom, Eqn, Jaxpr, Var, e_jaxprs
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.dot_general import dot_general_p, free_dims
from genesis_fn.primitives.elementwise import add_n, convert_p
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.ragged_dot import ragged_contraction_p
from genesis_fn.primitives.shape import barrier_p, transpose_p
from genesis_fn.transforms.batching.collectives import all_gather_invariant_p, all_gather_p
from genesis_fn.transforms.custom.fused_functions import fused_p

GATHERS = frozenset((all_gather_p, all_gather_invariant_p))
Rule = Callable[["Rewriter", Eqn, Primitive, list[Any], dict[Any, Any]], "list[Atom] | None"]
RULES: dict[Primitive | type, Rule] = {}
# How dead code elimination narrows a loop or branch: (equation, live variables) -> equation.
DCE_RULES: dict[Primitive, Callable[[Eqn, set[Any]], Eqn]] = {}


def rule(*of: Primitive | type) -> Callable[[Rule], Rule]:
    """Decorator: `f(rewriter, e, prim, operands, params)` returns what replaces the results of
    these primitives, or None to keep the equation.

    `e` is the equation of the program that is being rewritten. It has the source line and the avals
    of the results, but not always this primitive and these operands: another rule may have changed
    them. A rule of a class of lowerings serves primitives without a rule of their own.
    """

    def register(f: Rule) -> Rule:
        RULES.update(dict.fromkeys(of, f))
        return f

    return register


def is_fused(e: Eqn) -> bool:
    """Whether an equation is a call of a fused function, which a backend may have a kernel for.
    These calls stay opaque by default."""
    return e.prim is fused_p


def simplified(jaxpr: Jaxpr, opaque: Callable[[Eqn], bool]) -> Jaxpr:
    """`jaxpr` rewritten and without dead code, cached on it. A simplified program is its own
    result."""
    key = (simplified, opaque)
    found = jaxpr.cache.get(key)
    if found is None:
        found = jaxpr.cache[key] = rewritten(jaxpr, {}, opaque)
        # Not the program: a reference to itself would be garbage that waits for the collector.
        found.cache[key] = ITSELF
    return jaxpr if found is ITSELF else found


def rewritten(jaxpr: Jaxpr, env: dict[Var, Atom], opaque: Callable[[Eqn], bool]) -> Jaxpr:
    """`jaxpr` simplified, after its variables in `env` have been replaced."""
    pass_ = Rewriter(opaque)
    pass_.run(jaxpr.eqns, env, copy=False)
    outs = [env.get(o, o) for o in jaxpr.outs]
    eqns = flatten_sums(live_equations(pass_.eqns, outs), outs)
    eqns = drop_repeated_checks(fold_transposes(eqns, outs))
    return Jaxpr(jaxpr.invars, eqns, outs, jaxpr.labels, jaxpr.name)


class Rewriter:
    """The forward pass: the equations so far, and what is known of their results.

    `const[v]` is the number that every element of v has, `producer[v]` the equation that computes
    v, `seen` the results by what computes them. With `copying`, results get new variables: inlined
    equations may be rewritten here a second time.
    """

    __slots__ = ("eqns", "const", "producer", "seen", "opaque", "copying")

    def __init__(self, opaque: Callable[[Eqn], bool]) -> None:
        self.eqns: list[Eqn] = []
        self.const: dict[Var, Any] = {}
        self.producer: dict[Var, Eqn] = {}
        self.seen: dict[Any, Sequence[Var]] = {}
        self.opaque = opaque
        self.copying = False

    def run(self, eqns: Sequence[Eqn], env: dict[Var, Atom], copy: bool) -> None:
        """Rewrite `eqns` after `env` has replaced their variables. With `copy`, results get new
        variables: a called program may be called twice."""
        before, self.copying = self.copying, copy
        for e in eqns:
            ins = [env.get(i, i) if type(i) is Var else i for i in e.ins]
            # The name of the parameter that holds the program of a call.
            inner = e.prim.program
            if inner is not None and e.params[inner] is not None and not self.opaque(e):
                outs = self.inline(e.params[inner], ins, e)
            else:
                outs = self.apply(e.prim, ins, e.params, e, e.outs)
            # Only what changes: most variables stand for themselves.
            for o, new in zip(e.outs, outs, strict=True):
                if o is not new:
                    env[o] = new
        self.copying = before

    def inline(self, jaxpr: Jaxpr, ins: Sequence[Atom], at: Eqn) -> list[Atom]:
        """The outputs of `jaxpr` on `ins`, its equations inlined into this program."""
        env = {v: self.array(i, v, at) for v, i in zip(jaxpr.invars, ins, strict=True)}
        self.run(jaxpr.eqns, env, copy=True)
        return [env.get(o, o) for o in jaxpr.outs]

    def array(self, x: Atom, like: Var, at: Eqn) -> Var:
        """`x` as a variable: a Python scalar becomes an array of the aval of `like`."""
        return x if type(x) is Var else self.full(x, like, at)[0]

    def full(self, value: Any, like: Var, at: Eqn) -> list[Atom]:
        """An array of the aval of `like` whose elements are all `value`."""
        kind = like.aval
        params = {"value": value, "shape": kind.shape, "dtype": kind.dtype}
        return list(self.make(full_p, [], params, at))

    def apply(
        self,
        prim: Primitive,
        ins: list[Any],
        params: dict[Any, Any],
        at: Eqn,
        outs: Sequence[Var] | None = None,
    ) -> Sequence[Atom]:
        """The results of an equation after its rule: its replacement's, those of an equal earlier
        equation, or its own (`outs`, unless copying)."""
        if self.const and type(prim.lowering) is Elementwise and prim.lowering.scalars:
            ins = self._literals(ins, prim.lowering.scalars)
        rule_of = RULES.get(prim) or RULES.get(type(prim.lowering))
        if rule_of is not None:
            found = rule_of(self, at, prim, ins, params)
            if found is not None:
                return found
        return self.make(prim, ins, params, at, outs)

    def make(
        self,
        prim: Primitive,
        ins: list[Any],
        params: dict[Any, Any],
        at: Eqn,
        outs: Sequence[Var] | None = None,
    ) -> Sequence[Var]:
        """The results of an equation without applying a rule, shared with an equal earlier one."""
        key = None
        if not (prim.effect or prim is barrier_p):  # a barrier keeps equal computations apart
            # Equal numbers come of equal operations that are computed equally exactly.
            key = (
                prim, at.numerics, *map(_key, ins), *[(k, _key(v)) for k, v in params.items()]
            )  # fmt: skip
            if prim in GATHERS:  # what is gathered is dropped behind each use, and gathered anew
                key = (*key, at.where, at.backward)
            # Common subexpressions: equal primitive, operands and parameters.
            try:
                found = self.seen.get(key)
            except TypeError:  # an unhashable parameter
                key = found = None
            if found is not None:
                return found
        if outs is None or self.copying:
            avals = prim.abstract(tuple([i.aval if type(i) is Var else i for i in ins]), params)
            outs = [Var(a) for a in avals] if prim.multi else (Var(avals),)
        # The equation itself, if nothing changed: a simplified program shares its equations.
        same = outs is at.outs and params is at.params and prim is at.prim
        if same and len(ins) == len(at.ins) and all(map(operator.is_, ins, at.ins)):
            e = at
        else:
            e = Eqn(prim, ins, params, outs, at.where, at.backward, at.numerics)
        self.eqns.append(e)
        # Effects of sub-programs, which the primitive does not tell.
        if key is not None and not has_effect(e):
            self.seen[key] = outs
        for o in outs:
            self.producer[o] = e
        if prim is full_p:
            value = rounded(params["value"], params["dtype"])
            if value is not None:
                self.const[outs[0]] = value
        return outs

    def defining_eqn(self, x: Atom, prim: Primitive) -> Eqn | None:
        """The equation that computes `x`, if it is one of `prim`."""
        e = self.producer.get(x) if type(x) is Var else None
        return e if e is not None and e.prim is prim else None

    def _literals(self, ins: list[Any], positions: Sequence[int]) -> list[Any]:
        """`ins` with constant arrays at `positions` turned into numbers. One of them stays an
        array: it is where the result's shape comes from."""
        const = self.const
        if not any([i in const for i in ins if type(i) is Var]):
            return ins
        changed = [
            const[i] if p in positions and type(i) is Var and i in const else i
            for p, i in enumerate(ins)
        ]
        if not any([type(changed[p]) is Var for p in positions]):
            p = next(p for p in positions if type(ins[p]) is Var)
            changed[p] = ins[p]
        kept = next(changed[p] for p in positions if type(changed[p]) is Var)
        # Torch computes with none of the wide unsigned dtypes: their numbers stay arrays.
        return ins if kept.aval.dtype in dtypes.WIDE_UNSIGNED else changed


def has_effect(e: Eqn) -> bool:
    """Whether an equation has a side effect, in itself or in a program that it runs."""
    return e.prim.effect or any([j.effect for j in e_jaxprs(e)])


def _key(x: Any) -> Any:
    """`x` as part of a key, in which numbers of two types, and zeros of two signs, differ."""
    kind = type(x)
    if kind is Var or kind is str or kind is tuple:
        return x
    if kind is float or kind is complex:
        return (kind, repr(x))
    return (kind, x)


PYTHON_TYPES = (bool, int, float, complex)


def rounded(value: Any, kind: DType) -> Any:
    """A Python number rounded to dtype `kind`; None if it does not fit."""
    try:
        held = np.asarray(value).astype(kind) if dtypes.is_float(kind) else np.asarray(value, kind)
    except (OverflowError, TypeError, ValueError):
        return None
    return PYTHON_TYPES[dtypes.kind_rank(kind)](held)


# ---- the backward pass ----


def live_equations(eqns: Sequence[Eqn], outs: Sequence[Var]) -> list[Eqn]:
    """The equations that `outs` or effects depend on; loops and branches lose dead results."""
    live: set[Any] = set(outs)
    kept = []
    for e in reversed(eqns):
        if not live.isdisjoint(e.outs) or has_effect(e):
            trim = DCE_RULES.get(e.prim)
            if trim is not None and not live.issuperset(e.outs):
                e = trim(e, live)
            live.update([i for i in e.ins if type(i) is Var])
            kept.append(e)
    kept.reverse()
    return kept


_ADD_N = add_n.prim
FEW_ROWS = 64  # of a product that takes as long as reading its right operand


def flatten_sums(eqns: list[Eqn], outs: Sequence[Var]) -> list[Eqn]:
    """`eqns` with every `add_n` whose only reader is another `add_n` merged into that one."""
    sums: dict[Any, Eqn] = {e.outs[0]: e for e in eqns if e.prim is _ADD_N}
    if len(sums) < 2:
        return eqns
    uses = use_counts(eqns, outs)
    merged: set[Any] = set()
    result = []
    for e in eqns:
        inner = [i for i in e.ins if i in sums and uses[i] == 1] if e.prim is _ADD_N else ()
        if inner:
            merged.update(inner)
            ins = [j for i in e.ins for j in (sums[i].ins if i in inner else (i,))]
            # Remembered, so that a chain of sums becomes one in one walk.
            e = sums[e.outs[0]] = e.replace(ins=ins)
        result.append(e)
    return [e for e in result if merged.isdisjoint(e.outs)]


def fold_transposes(eqns: list[Eqn], outs: Sequence[Var]) -> list[Eqn]:
    """`eqns` with transposes of products folded into them, through casts: a product whose only
    reader is a transpose writes in the transposed order, as the gradient of `x @ w.T` by `w`
    does."""
    if not any([e.prim is transpose_p for e in eqns]):
        return eqns
    uses = use_counts(eqns, outs)
    followed = (*_WRITES_IN_ORDER, convert_p)
    position = {e.outs[0]: n for n, e in enumerate(eqns) if e.prim in followed}
    result: list[Eqn | None] = [*eqns]
    for n, e in enumerate(eqns):
        if e.prim is not transpose_p:
            continue
        path = [n]  # the equations from the transpose to the product
        while True:
            (x,) = eqns[path[-1]].ins
            if x not in position or uses[x] != 1:
                break
            path.append(position[x])
            if eqns[path[-1]].prim in _WRITES_IN_ORDER:
                _reorder(result, path)
                break
    return [e for e in result if e is not None]


def _reorder(eqns: list[Eqn | None], path: Sequence[int]) -> None:
    """Fold the transpose at the start of `path` into the product at its end, if the product can
    write in that order."""
    transpose, *casts, product = [eqns[n] for n in path]
    assert transpose is not None and product is not None
    order = transpose.params["permutation"]
    reordered = _WRITES_IN_ORDER[product.prim](product, order)
    if reordered is None:
        return
    ins, params = reordered
    eqns[path[0]] = None
    for n, e in zip(reversed(path[1:]), (product, *reversed(casts)), strict=True):
        assert e is not None
        shape, kind = e.outs[0].aval.shape, e.outs[0].aval.dtype
        last = n == path[1]
        made = transpose.outs if last else (Var(aval(tuple([shape[d] for d in order]), kind)),)
        eqns[n] = e.replace(ins=ins, params=params if e is product else e.params, outs=made)
        ins = [*made]


def _product_in_order(
    product: Eqn, order: Sequence[int]
) -> tuple[list[Any], dict[str, Any]] | None:
    """Operands and parameters of a product that writes in `order`, if it can: batch dimensions
    first, then those of one operand and of the other.

    A product of few rows is not swapped into one of few columns: it reads its right operand at the
    memory's rate, which the other does not (4 rows of 4096 by 4096 on an H200: 12.2 and 18.8 us),
    and its result is small.
    """
    x, y = product.ins
    (xc, yc), (xb, yb) = product.params["dimension_numbers"]
    batch, left = len(xb), len(free_dims(x.aval.ndim, (*xc, *xb)))
    front, rest = order[:batch], [*order[batch:]]
    straight = [*range(batch, len(order))]
    swapped = straight[left:] + straight[:left]
    if sorted(front) != [*range(batch)] or rest not in (straight, swapped):
        return None
    shape = product.outs[0].aval.shape[batch:]
    rows, columns = math.prod(shape[:left]), math.prod(shape[left:])
    if rest == swapped != straight and 1 < rows <= FEW_ROWS < columns:
        return None
    xb, yb = tuple([xb[d] for d in front]), tuple([yb[d] for d in front])
    ins, numbers = [x, y], ((xc, yc), (xb, yb))
    if rest == swapped:
        ins, numbers = [y, x], ((yc, xc), (yb, xb))
    return ins, {**product.params, "dimension_numbers": numbers}


def _contraction_in_order(
    product: Eqn, order: Sequence[int]
) -> tuple[list[Any], dict[str, Any]] | None:
    """The same of a product of the rows of each group, which swaps with its operands."""
    x, y, sizes = product.ins
    last = len(order) - 1
    if tuple(order) != (*range(last - 1), last, last - 1):
        return None
    return [y, x, sizes], product.params


# How a product writes its result in another order: (operands, parameters), or None if it cannot.
_WRITES_IN_ORDER = {dot_general_p: _product_in_order, ragged_contraction_p: _contraction_in_order}


def use_counts(eqns: Sequence[Eqn], outs: Sequence[Var]) -> dict[Any, int]:
    """The number of reads of each operand. Results of the program count twice, so that they are
    never taken for a value with a single reader."""
    uses: dict[Any, int] = dict.fromkeys(outs, 2)
    for e in eqns:
        for i in e.ins:
            uses[i] = uses.get(i, 0) + 1
    return uses
