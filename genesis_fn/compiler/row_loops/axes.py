"""Which axes of a loop's values are its rows.

An axis is a *row* axis if every equation of the body passes it through one to one: element i of a
result comes from element i of the operands alone. The loop can then run for each row by itself,
whatever the other rows do. Axes that equations pass on to each other are one class (`AxisClasses`),
and a class of which one axis is contracted, reduced, sliced or otherwise mixed is none of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from genesis_fn.compiler.loop_ir import lookups
from genesis_fn.compiler.loop_ir.kernel import Infeasible, reduced_axes
from genesis_fn.compiler.loop_ir.known_places import by_index, known_place
from genesis_fn.compiler.loop_ir.updates import update_of
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr, Index
from genesis_fn.core.backend.lowering import Elementwise, Reduce, View
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.dot_general import dot_general_p, free_dims
from genesis_fn.primitives.indexing.gather import gather_p, take_rows_p
from genesis_fn.primitives.indexing.indexing import dynamic_slice_p, dynamic_update_slice_p
from genesis_fn.primitives.indexing.scatter import scatter_p
from genesis_fn.primitives.random_bits import key_hash_p, random_bits_p
from genesis_fn.primitives.reductions.reduce import reduce_or_p
from genesis_fn.primitives.shape import concatenate_p, copy_p
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p

Axis: TypeAlias = tuple[Var, int]


class AxisClasses:
    """Classes of axes, by union and find.

    `mixed` are axes whose elements meet each other, so that they are no rows; `moved` those whose
    elements change places as well (by slices, reversals, concatenations), which threads that hold
    one element each cannot do. With `parts` a slice of an axis, and a piece of a concatenated one,
    is none that moved: it has threads of its own, and only the longer axis must not be held by any.
    `producer` are the equations of values that are seen, `outer` those of values around the loop.
    """

    def __init__(self, parts: bool = False, outer: Mapping[Var, Eqn] | None = None) -> None:
        self.parts = parts
        self.producer: dict[Var, Eqn] = dict(outer or {})
        self.concatenations: list[Eqn] = []
        self._parent: dict[Axis, Axis] = {}
        self._mixed: set[Axis] = set()
        self._moved: set[Axis] = set()
        self.values: dict[Var, None] = {}  # in order of appearance
        self.known: set[Var] = set()  # by their index alone: any thread computes any element

    def find(self, axis: Axis) -> Axis:
        """The axis that stands for the class of `axis`."""
        parent = self._parent.setdefault(axis, axis)
        while parent != axis:
            # Halving keeps paths short.
            self._parent[axis] = self._parent[parent]
            axis, parent = parent, self._parent[parent]
        return axis

    def join(self, a: Axis, b: Axis) -> None:
        """Make one class of two axes of one length; axes of length 1 have no class."""
        if a[0].aval.shape[a[1]] == b[0].aval.shape[b[1]] != 1:
            self._parent[self.find(a)] = self.find(b)

    def join_all(self, a: Any, b: Any, shift_a: int = 0, shift_b: int = 0) -> None:
        """Join the axes of two values in order, from `shift_a` and `shift_b` on."""
        if type(a) is Var and type(b) is Var:
            self.values[a] = self.values[b] = None
            for i in range(min(a.aval.ndim - shift_a, b.aval.ndim - shift_b)):
                self.join((a, i + shift_a), (b, i + shift_b))

    def alias(self, x: Any, v: Var) -> None:
        """Relate a value and what a body that does not change it calls it."""
        self.join_all(x, v)
        self.producer[v] = Eqn(copy_p, [x], {}, (v,))

    def mix(self, axis: Axis, moved: bool = False) -> None:
        """Note that the elements along an axis meet each other."""
        if axis[0].aval.shape[axis[1]] != 1:
            self._mixed.add(axis)
            if moved:
                self._moved.add(axis)

    def settle(self) -> None:
        """Finish: a class that a value has on two axes meets itself."""
        for v in self.values:
            seen: set[Axis] = set()
            for i, n in enumerate(v.aval.shape):
                found = self.find((v, i))
                if found in seen and n != 1:
                    self._mixed.add(found)
                seen.add(found)
        self._mixed = {self.find(a) for a in self._mixed}
        self._moved = {self.find(a) for a in self._moved}

    def is_row(self, axis: Axis) -> bool:
        """Whether an axis, which is longer than 1, is one of rows."""
        return self.find(axis) not in self._mixed

    def is_moved(self, axis: Axis) -> bool:
        """Whether elements change places along an axis."""
        return self.find(axis) in self._moved


def walk(classes: AxisClasses, jaxpr: Jaxpr) -> None:
    """Relate the axes of all values of a body. Raises Infeasible at what rows cannot compute."""
    for v in (*jaxpr.invars, *jaxpr.outs):
        classes.values[v] = None
    for e in jaxpr.eqns:
        for v in (*e.ins, *e.outs):
            if type(v) is Var:
                classes.values[v] = None
        classes.producer.update(dict.fromkeys(e.outs, e))
        if by_index(e, classes.known):
            classes.known.update(e.outs)
            continue
        rule = _RULES.get(e.prim) or _RULES_OF_LOWERINGS.get(type(e.prim.lowering))
        if rule is None:
            raise Infeasible
        rule(classes, e)


def related_carry(
    classes: AxisClasses, body: Jaxpr, inits: Sequence[Any], carry: Sequence[Var], outs: Any
) -> None:
    """Relate what a loop carries: first values, the body's inputs and outputs, results."""
    for init, inner, out, result in zip(inits, carry, body.outs, outs):
        classes.join_all(init, inner)
        classes.join_all(out, inner)
        classes.join_all(result, inner)


def row_predicate(cond: Jaxpr) -> tuple[Var, Eqn | None]:
    """(what a while loop goes on by, the equation that says whether any row does): the condition of
    a batched loop asks whether any example goes on."""
    out = cond.outs[0]
    last = next((e for e in cond.eqns if out in e.outs), None)
    if last is not None and last.prim is reduce_or_p:
        if len(reduced_axes(last)) == last.ins[0].aval.ndim:
            return last.ins[0], last
    return out, None


# ---- rules ----


def _elementwise(c: AxisClasses, e: Eqn) -> None:
    (out,) = e.outs
    for i in e.ins:
        if type(i) is Var:
            if i.aval.shape != out.aval.shape:
                raise Infeasible
            c.join_all(i, out)


def _view(c: AxisClasses, e: Eqn) -> None:
    view = e.prim.lowering
    assert type(view) is View
    avals = [i.aval if type(i) is Var else i for i in e.ins]
    if e.prim is concatenate_p:
        c.concatenations.append(e)
    for k, out in enumerate(e.outs):
        at = _element_of(out)
        for operand, index, conditions in view.pieces(k, at, *avals, **e.params):
            x = e.ins[operand]
            for g in conditions:
                for i in _positions(frozenset() if g.always else g.expr.names):
                    c.mix((out, i), moved=True)
            if type(x) is not Var:
                continue
            for j, here in enumerate(index):
                _relate(c, (x, j), here, out, at)


def _element_of(out: Var) -> Index:
    """The index of an element of a result, a variable along each axis."""
    return tuple([ix.var(f"a{i}", n) for i, n in enumerate(out.aval.shape)])


def _relate(c: AxisClasses, axis: Axis, here: Expr, out: Var, at: Index) -> None:
    """Relate an axis of an operand, of which element `at` of a result has the one at `here`."""
    n = axis[0].aval.shape[axis[1]]
    same = [i for i in _positions(here.names) if here == at[i]]
    if same and n == out.aval.shape[same[0]]:
        c.join(axis, (out, same[0]))
    elif n != 1:
        shifted = c.parts and any([here.terms == a.terms for a in at])
        longest = max([n, *[out.aval.shape[i] for i in _positions(here.names)]])
        c.mix(axis, moved=not shifted or n == longest)
        for i in _positions(here.names):
            c.mix((out, i), moved=not shifted or out.aval.shape[i] == longest)


def _positions(names: frozenset[str]) -> Iterator[int]:
    return (int(x[1:]) for x in names)


def _reduce(c: AxisClasses, e: Eqn) -> None:
    x, (out,), axes = e.ins[0], e.outs, reduced_axes(e)
    assert type(e.prim.lowering) is Reduce
    kept = iter(range(out.aval.ndim))
    for i in range(x.aval.ndim):
        if i in axes:
            c.mix((x, i), moved=e.prim.lowering.position)
        else:
            c.join((x, i), (out, next(kept)))


def _dot_general(c: AxisClasses, e: Eqn) -> None:
    (lhs, rhs), (out,) = e.ins, e.outs
    if type(lhs) is not Var or type(rhs) is not Var:
        raise Infeasible
    ((contracted_l, contracted_r), (batch_l, batch_r)) = e.params["dimension_numbers"]
    for i, j in zip(contracted_l, contracted_r):
        c.mix((lhs, i))
        c.mix((rhs, j))
        c.join((lhs, i), (rhs, j))
    at = 0
    for i, j in zip(batch_l, batch_r):
        c.join((lhs, i), (out, at))
        c.join((rhs, j), (out, at))
        at += 1
    for x, side in ((lhs, (contracted_l, batch_l)), (rhs, (contracted_r, batch_r))):
        for i in free_dims(x.aval.ndim, (*side[0], *side[1])):
            c.join((x, i), (out, at))
            at += 1


def _random_bits(c: AxisClasses, e: Eqn) -> None:
    (key,), (out,) = e.ins, e.outs
    c.join_all(key, out)
    c.mix((key, key.aval.ndim - 1), moved=True)


def _key_hash(c: AxisClasses, e: Eqn) -> None:
    (key, data), (out,) = e.ins, e.outs
    for i in range(key.aval.ndim - 1):
        c.join((key, i), (out, i))
    c.mix((key, key.aval.ndim - 1), moved=True)
    c.mix((out, out.aval.ndim - 1), moved=True)
    c.join_all(data, out)


def _lookup(c: AxisClasses, e: Eqn) -> None:
    if not lookups.is_lookup(e):
        raise Infeasible
    table, (out,) = e.ins[0], e.outs
    at = _element_of(out)
    window = lookups.window_of(e, at)
    index: list[Expr | None] = list(window.index)
    for start in window.starts:
        if type(start.value) is Var:
            for j, here in enumerate(start.index):
                _relate(c, (start.value, j), here, out, at)
            first = known_place(c.producer, start.value, start.index)
        else:
            first = start.number
        if first is None or not start.has(first):
            index[start.d] = None
        else:
            index[start.d] = ix.add(window.index[start.d], first)
    for j, here in enumerate(index):
        if here is None:
            c.mix((table, j), moved=True)
        else:
            _relate(c, (table, j), here, out, at)


def _update(c: AxisClasses, e: Eqn) -> None:
    """Each element compares its own place with the one that is updated: none meets another."""
    (out,) = e.outs
    at = _element_of(out)
    found = update_of(c.producer, e, at)
    if found is None or type(e.ins[0]) is not Var:
        raise Infeasible
    c.join_all(e.ins[0], out)
    for j, here in enumerate(found.index):
        _relate(c, (found.value, j), here, out, at)
    for start in found.starts:
        if type(start.value) is Var:
            for j, here in enumerate(start.index):
                _relate(c, (start.value, j), here, out, at)


def _scan(c: AxisClasses, e: Eqn) -> None:
    p, body = e.params, e.params["jaxpr"]
    consts, end = p["consts"], p["consts"] + p["carry"]
    for x, v in zip(e.ins[:consts], body.invars):
        c.alias(x, v)
    related_carry(c, body, e.ins[consts:end], body.invars[consts:end], e.outs)
    stacked = [*zip(e.ins[end:], body.invars[end:])]
    stacked += zip(e.outs[p["carry"] :], body.outs[p["carry"] :])
    for x, v in stacked:
        if type(x) is Var:
            c.mix((x, 0), moved=True)
        c.join_all(x, v, 1)
    walk(c, body)


def _while(c: AxisClasses, e: Eqn) -> None:
    p, cond, body = e.params, e.params["cond"], e.params["body"]
    a, b = p["cond_consts"], p["body_consts"]
    for x, v in zip(e.ins[:a], cond.invars):
        c.alias(x, v)
    for x, v in zip(e.ins[a : a + b], body.invars):
        c.alias(x, v)
    for v, w in zip(cond.invars[a:], body.invars[b:]):
        c.join_all(v, w)
    related_carry(c, body, e.ins[a + b :], body.invars[b:], e.outs)
    _, any_row = row_predicate(cond)
    walk(c, Jaxpr(cond.invars, [x for x in cond.eqns if x is not any_row], [], (), ""))
    walk(c, body)


def _cond(c: AxisClasses, e: Eqn) -> None:
    for branch in e.params["branches"]:
        for x, v in zip(e.ins[1:], branch.invars):
            c.alias(x, v)
        for x, v in zip(e.outs, branch.outs):
            c.join_all(x, v)
        walk(c, branch)


_RULES: dict[Primitive, Callable[[AxisClasses, Eqn], None]] = {
    dot_general_p: _dot_general, random_bits_p: _random_bits, key_hash_p: _key_hash,
    take_rows_p: _lookup, gather_p: _lookup, dynamic_slice_p: _lookup,
    scatter_p: _update, dynamic_update_slice_p: _update,
    scan_p: _scan, while_p: _while, cond_p: _cond,
}  # fmt: skip
_RULES_OF_LOWERINGS: dict[Any, Callable[[AxisClasses, Eqn], None]] = {
    Elementwise: _elementwise, View: _view, Reduce: _reduce,
}  # fmt: skip
