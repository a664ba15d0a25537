"""A program as fusion sees it: the producer and uses of each value, which values alias another's
memory, which are materialized and which are computed where they are needed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from genesis_fn.compiler.loop_ir.kernel import is_reduction
from genesis_fn.compiler.loop_ir.lookups import is_lookup, is_of_rows, mode_of, window_of
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.target import Target
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.lowering import Elementwise, Reduce, Source, View
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.primitives.indexing.gather import gather_p, take_rows_p
from genesis_fn.primitives.shape import (
    broadcast_in_dim_p,
    concatenate_p,
    reshape_p,
    rev_p,
    transpose_p,
)

T = TypeVar("T")

# Beyond these a value is materialized, so that the kernels of its readers stay small.
_MAX_OPERATIONS = 96
_TINY, _FEW_OPERATIONS = 32, 32  # bytes and operations of a value that is not worth a launch
_MAX_LEAVES = 12  # materialized values that it is computed from
_MAX_SOURCES = 8  # operands of a concatenation that is computed where it is read
# An array with so many times the bytes of what it is computed from, as one of all pairs, is not
# held in memory for a time that arithmetic takes twice: it may take more operations.
_COMPUTED, _MAX_COMPUTED = 8, 256
_BROADCAST = 24  # operations of a value that are not repeated for each copy that a broadcast makes
_FEW, _REPEATED = 4096, 1024  # numbers, and copies of each, that are worth a kernel of their own
_WHOLE = frozenset((broadcast_in_dim_p, concatenate_p, reshape_p, rev_p, transpose_p))  # views
_SECTOR = 32  # bytes that memory moves at least
_ALIGNED = 16  # bytes; kernels assume it of every buffer (`kernels.plan.Plan`)


def operations(e: Eqn) -> int:
    """The cost of one element of the result, in additions."""
    lowering = e.prim.lowering
    if lowering is None:  # a lookup, which holds its starts within bounds
        return 2 * e.ins[1].aval.shape[-1] if e.prim is gather_p else 2
    if type(lowering) is Elementwise:
        return lowering.cost
    if has_several_sources(e):
        return 2 * len(e.ins)  # each operand is read under a condition of its own
    return 0 if type(lowering) in (View, Source) else 1


def has_several_sources(e: Eqn) -> bool:
    """Whether an equation is a view of several operands."""
    return type(e.prim.lowering) is View and e.prim.lowering.joins


def kind_of(e: Eqn) -> str:
    """ "view", "reduce", "map" (elementwise) or "opaque"."""
    lowering = e.prim.lowering
    if lowering is None:
        return "opaque"
    if type(lowering) is View:
        return "opaque" if lowering.joins and len(e.ins) > _MAX_SOURCES else "view"
    if type(lowering) is Reduce:
        return "reduce" if is_reduction(e) else "map"
    if type(lowering) is Source:
        return "map"
    assert type(lowering) is Elementwise
    shape = e.outs[0].aval.shape
    pointwise = all([type(i) is not Var or i.aval.shape == shape for i in e.ins])
    return "map" if pointwise and lowering.triton is not None else "opaque"


def _union(sets: Sequence[frozenset[T]]) -> frozenset[T]:
    return sets[0] if len(sets) == 1 else frozenset().union(*sets)


def _is_done_once(x: Aval, o: Aval, done: float, target: Target) -> bool:
    """Whether so many operations are done once for each element of `x`, which is broadcast to `o`,
    and not for each copy."""
    if done >= _BROADCAST:
        return o.size >= 8 * x.size
    # A mean or a scale of few rows, if its copies take longer than a kernel that stores it.
    start = target.launch_bytes / target.bandwidth
    return (
        x.size <= _FEW
        and o.size >= _REPEATED * x.size
        and done * o.size >= start * target.additions
    )


def _is_stored_for_lookup(e: Eqn, done: float, target: Target) -> bool:
    """Whether what a lookup reads is rather stored than computed, by so many operations, for each
    element that is looked up."""
    stored = 2 * e.ins[0].aval.nbytes / target.bandwidth
    return done * e.outs[0].aval.size / target.additions > stored


def _sectors(e: Eqn) -> int:
    """How many times the bytes of its result a lookup reads."""
    operand = e.ins[0].aval
    at = tuple([ix.ZERO] * e.outs[0].aval.ndim)
    last = max([s.d for s in window_of(e, at).starts], default=0)
    run = math.prod(operand.shape[last + 1 :]) * operand.dtype.itemsize
    return max(1, _SECTOR // run)


def _lacking(e: Eqn, target: Target) -> bool:
    """Whether an equation has a value that kernels of the target cannot hold."""
    return any([target.lacks(v.aval.dtype) for v in (*e.ins, *e.outs) if type(v) is Var])


def lookups_in_kernels(
    jaxpr: Jaxpr, kinds: Sequence[str], takes_updates: Callable[[Eqn], bool]
) -> tuple[list[int], list[int]]:
    """The equations that look elements up in generated kernels, and those that one kernel may do if
    nothing else reads their rows in the end (`recompute`).

    Rows that something else reads, or several computations, are gathered by the kernel of rows: as
    a part of a norm and of a sum, those of an embedding would keep both from being parts of matrix
    products. (Rows shorter than a sector of memory are none of an embedding.) Those that a sum by
    segment reads are gathered by that (`takes_updates`). A lookup that checks its starts stays a
    step where a view of it drops elements: a kernel checks what it reads.
    """
    if not enabled("lookups"):
        return [], []
    # From the last equation on: what reads each value, through views and elementwise operations.
    opaque, partly, added = set(jaxpr.outs), set[Var](), set[Var]()
    uses = Counter([i for e in jaxpr.eqns for i in {*e.ins} if type(i) is Var])
    found: list[int] = []
    merging: list[int] = []
    for n in reversed(range(len(jaxpr.eqns))):
        e, kind = jaxpr.eqns[n], kinds[n]
        operands = [i for i in e.ins if type(i) is Var]
        if kind == "opaque" and is_lookup(e):
            (o,) = e.outs
            rows = is_of_rows(e) and (o in opaque or (uses[o] > 1 and _sectors(e) == 1))
            summed = e.prim is take_rows_p and o in added
            partial = o in partly
            fits = not (partial and mode_of(e) == "check")
            if fits and not rows and not summed:
                found.append(n)
                partly.update(operands if partial else operands[:1])
                continue
            if fits and o not in opaque:
                merging.append(n)
        if kind == "opaque":
            opaque.update(operands)
            if takes_updates(e):
                added.update(operands[:1])
        elif kind != "reduce":
            if kind == "view" and not opaque.isdisjoint(e.outs):
                opaque.update(operands)
            if not partly.isdisjoint(e.outs) or (kind == "view" and e.prim not in _WHOLE):
                partly.update(operands)
            if not added.isdisjoint(e.outs):
                added.update(operands)
    return found, merging


def build_value_graph(
    jaxpr: Jaxpr, target: Target, takes_updates: Callable[[Eqn], bool] = lambda e: False
) -> ValueGraph:
    """The value graph of a program that runs on `target`; `takes_updates` as of `fuse_jaxpr`."""
    kinds = ["opaque" if _lacking(e, target) else kind_of(e) for e in jaxpr.eqns]
    found, merging = lookups_in_kernels(jaxpr, kinds, takes_updates)
    for n in found:
        if not _lacking(jaxpr.eqns[n], target):
            kinds[n] = "map"
    graph = ValueGraph(jaxpr, kinds)
    graph.gathers.update([jaxpr.eqns[n] for n in merging if not _lacking(jaxpr.eqns[n], target)])
    for v in jaxpr.outs:
        graph.require(v, whole=True)
    for e, kind in zip(jaxpr.eqns, graph.kinds):
        if kind == "opaque":
            graph.materialized.update(e.outs)
            for v in e.ins:
                if type(v) is Var:
                    graph.require(v)
    graph.count_uses()
    graph.choose_materialized(target)
    return graph


class ValueGraph:
    """A program with its def-use information.

    `producer[v]` is the equation that computes v and `position[v]` that equation's index;
    `alias[v] = (u, offset)` says that v is u's memory from byte `offset` on. `materialized` are the
    values in memory, `required` those that something outside of generated kernels reads; `leaves`
    has what a value that is materialized by choice is computed from. `kinds` are the results of
    `kind_of`, by equation; `gathers` the steps that a generated kernel could do.
    """

    def __init__(self, jaxpr: Jaxpr, kinds: Sequence[str]) -> None:
        self.jaxpr, self.kinds = jaxpr, kinds
        self.producer: dict[Var, Eqn] = {}
        self.position: dict[Var, int] = {}
        self.uses: dict[Var, int] = {}
        self.alias: dict[Var, tuple[Var, int]] = {}
        self.materialized: set[Var] = set(jaxpr.invars)
        self.required: set[Var] = set()
        self.leaves: dict[Var, set[Var]] = {}
        self.gathers: set[Eqn] = set()
        for n, e in enumerate(jaxpr.eqns):
            for o in e.outs:
                self.producer[o] = e
                self.position[o] = n
        self.kind = {id(e): k for e, k in zip(jaxpr.eqns, kinds)}

    def memory(self, v: Var) -> tuple[Var, int]:
        """The value whose buffer holds `v`, and the byte at which it starts there."""
        offset = 0
        while v in self.alias:
            v, more = self.alias[v]
            offset += more
        return v, offset

    def require(self, v: Var, whole: bool = False) -> None:
        """Materialize `v`, or what it aliases; `whole`: as a buffer with nothing else in it."""
        total = 0
        # Through views that only rename memory: a reshape or a slice of whole rows costs nothing.
        while v not in self.alias:
            found = self._same_memory(v, whole)
            if found is None or (total + found[1]) % _ALIGNED or found[0].aval.size == 0:
                break
            self.alias[v] = found
            v, offset = found
            total += offset
        v, _ = self.memory(v)
        self.materialized.add(v)
        self.required.add(v)

    def _same_memory(self, v: Var, whole: bool) -> tuple[Var, int] | None:
        """(u, offset in bytes) where `v` is a contiguous range of `u`, else None."""
        e = self.producer.get(v)
        if e is None or v in self.materialized:
            return None
        view = e.prim.lowering
        if type(view) is not View or not view.shares or self.kind[id(e)] != "view":
            return None
        at = ix.unravel(ix.var("p", v.aval.size), v.aval.shape)
        avals = [i.aval if type(i) is Var else i for i in e.ins]
        ((operand, index, _),) = view.pieces(e.outs.index(v), at, *avals, **e.params)
        x = e.ins[operand]
        if type(x) is not Var or (whole and x.aval.size != v.aval.size):
            return None
        offset_of_v = ix.ravel(index, x.aval.shape)
        if ix.shift(offset_of_v, -offset_of_v.const) != ix.var("p", v.aval.size):
            return None
        return x, offset_of_v.const * x.aval.dtype.itemsize

    def _reshaped(self, v: Var) -> Var:
        """The value that `v` is a reshape of, or `v`."""
        while v not in self.materialized and self.producer[v].prim is reshape_p:
            (v,) = self.producer[v].ins
        return v

    def count_uses(self) -> None:
        """Count the computations that read each value, seen through views."""
        # From the last equation on: a view's uses are known before they become its operands'.
        direct: dict[Var, int] = dict.fromkeys(self.jaxpr.outs, 1)
        for e, kind in zip(reversed(self.jaxpr.eqns), reversed(self.kinds)):
            if kind == "view":
                for o in e.outs:
                    through = 1 if o in self.materialized else direct.get(o, 0)
                    for i in e.ins:
                        if type(i) is Var:
                            direct[i] = direct.get(i, 0) + through
            else:
                for i in {i for i in e.ins if type(i) is Var}:
                    direct[i] = direct.get(i, 0) + 1
        self.uses = direct

    def choose_materialized(self, target: Target) -> None:
        """Choose the values to materialize.

        A value with several readers is materialized if that takes less time than computing it for
        each; one with a single reader if the reader would grow too large. Which of them share a
        kernel is not known yet: `recompute` looks at the kernels as merged.
        """
        # What v is computed from: (materialized value, the view that it is seen through), and the
        # equations that do, views that move elements standing for all that is below them. Of two
        # views of one value other elements are needed: these are read, and computed, for each.
        below: dict[Var, frozenset[tuple[Var, int]]] = {}
        steps: dict[Var, frozenset[int]] = {}
        cost = [float(operations(e)) for e in self.jaxpr.eqns]
        most = [0.0] * len(cost)  # the operations of equation n, those that it shares twice

        for n, (e, kind) in enumerate(zip(self.jaxpr.eqns, self.kinds)):
            if kind == "reduce":
                self.materialized.update(e.outs)
                continue
            if kind == "opaque":
                continue
            operands = [i for i in e.ins if type(i) is Var]
            if e.prim.lowering is None:
                x = operands[0]
                done = sum([cost[k] for k in steps.get(x, ())])
                if x not in self.materialized and _is_stored_for_lookup(e, done, target):
                    self.materialized.add(x)
            virtual = [i for i in operands if i not in self.materialized]
            leaves = _union([below[i] for i in virtual])
            if len(virtual) < len(operands):
                leaves |= {(i, -1) for i in operands if i in self.materialized}
            if e.prim.lowering is None:
                # Other elements of the operand, each in a sector of its own where none is next to
                # it.
                read = below[operands[0]] if operands[0] in virtual else {(operands[0], -1)}
                views = [n + k * len(cost) for k in range(_sectors(e))]
                leaves = (leaves - read) | {(u, view) for u, _ in read for view in views}
            work = _union([steps[i] for i in virtual])
            most[n] = cost[n] + sum([most[self.position[i]] for i in virtual])
            if e.prim is broadcast_in_dim_p and virtual:
                x, o = self._reshaped(operands[0]), e.outs[0]
                done = min(most[n], sum([cost[k] for k in work]))
                computed = x not in self.materialized and self.kind[id(self.producer[x])] == "map"
                if computed and _is_done_once(x.aval, o.aval, done, target):
                    self.materialized.add(x)
                    leaves, work, most[n] = frozenset(((x, -1),)), frozenset(), 0.0
            if kind == "view" and e.prim is not reshape_p:
                cost[n] += sum([cost[k] for k in work])
                if e.prim is broadcast_in_dim_p and operands:
                    # Once for each row, where a row is what is repeated.
                    cost[n] *= operands[0].aval.size / max(e.outs[0].aval.size, 1)
                else:
                    leaves = frozenset([(u, n) for u, _ in leaves])
                work, most[n] = frozenset(), cost[n]
            if cost[n]:
                work |= {n}
            for o in e.outs:
                below[o], steps[o] = leaves, work
                if o in self.materialized or (kind == "view" and not has_several_sources(e)):
                    continue
                # Most values have one reader, and are computed from little.
                if (
                    self.uses.get(o, 0) > 1
                    or most[n] > _MAX_OPERATIONS
                    or len(leaves) > _MAX_LEAVES
                ) and self._is_stored(o, leaves, sum([cost[k] for k in work]), target):
                    self.materialized.add(o)
                    self.leaves[o] = {u for u, _ in leaves}

    def _is_stored(
        self, v: Var, leaves: Collection[tuple[Var, int]], done: float, target: Target
    ) -> bool:
        """Whether to materialize `v`, which `done` operations compute of each element of
        `leaves`."""
        size = v.aval.nbytes
        views = Counter([u for u, _ in leaves])
        # A broadcast leaf is read from the cache: it counts no more than the result.
        read = sum([min(u.aval.nbytes, count * size) for u, count in views.items()])
        if read * _COMPUTED <= size:
            return done > _MAX_COMPUTED
        if done > _MAX_OPERATIONS or len(views) > _MAX_LEAVES:
            return True
        users = self.uses.get(v, 0)
        if users < 2 or not done or (size <= _TINY and done <= _FEW_OPERATIONS):
            return False
        # One reader computes it where it is stored: it is written, and read by the others. These
        # would read the leaves instead, and compute meanwhile.
        stored = users * size / target.bandwidth
        again = max(read / target.bandwidth, done * v.aval.size / target.additions)
        return (users - 1) * again >= stored
