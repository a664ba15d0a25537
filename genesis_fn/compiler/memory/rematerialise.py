"""Rematerialisation: which forward values are saved for the backward pass, and which recomputed.

The cheapest set of saved values is a minimum cut between the source (inputs, and operations that
are not repeated) and the values that the backward pass uses; a value weighs its bytes. Values on
the sink's side are recomputed, next to their first use there. PyTorch's min-cut partitioner has the
same formulation; the costs here are those of this compiler's fusion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from genesis_fn.compiler.fusion.value_graph import kind_of, operations
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, dead_code
from genesis_fn.primitives.shape import barrier_p, broadcast_in_dim_p, reshape_p

_INFINITE = 1 << 62
_NEAR = 60  # equations within which uses share one recomputation
_FEW = 16 << 10  # bytes that all uses share, however far apart: statistics of a norm, say
_MAX_LEAVES = 8  # values that a recomputation may read
_MAX_READ = 3  # bytes that it may read, for each byte that it computes
_SMALL = 8 << 20  # bytes of a value of inputs only that is simply saved
_HEAVY = 40  # operations of one element that are not worth repeating
_REREAD_COST = 3  # traffic of recomputing an operand in a kernel of its own, in its bytes
_WORK = 8  # operations of one element of a small value that are not worth repeating
_TRAFFIC = 64  # what a byte that is moved weighs, where one that is held weighs 1
_NEARBY = 200  # equations around a use among which a kernel can share its recomputation


def rematerialise_jaxpr(jaxpr: Jaxpr, budget: int | None = None) -> Jaxpr:
    """`jaxpr` with forward values recomputed in the backward pass, where that saves traffic.

    `budget`: bytes that saved values may take; if the cut takes more, reductions and expensive
    operations are repeated too. The recomputation of `checkpoint` stays as it is: it is part of the
    backward pass already.
    """
    jaxpr = _mark_backward(jaxpr)
    backward = [e.backward for e in jaxpr.eqns]
    if not any(backward) or all(backward):
        return jaxpr
    forward = [e for e in jaxpr.eqns if not e.backward]
    producer: dict[Any, Eqn] = {o: e for e in forward for o in e.outs}
    used = {i for e in jaxpr.eqns if e.backward for i in e.ins if type(i) is Var and i in producer}
    if not used:
        return jaxpr
    saved = _min_cut(jaxpr, forward, producer, used, aggressive=False)
    if budget is not None and sum(v.aval.nbytes for v in saved) > budget:
        saved = _min_cut(jaxpr, forward, producer, used, aggressive=True)
    _save_expensive(jaxpr, forward, used, saved)
    recompute = used - saved
    return _with_recomputation(jaxpr, producer, saved) if recompute else jaxpr


def _mark_backward(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with every equation that depends on the backward pass marked as part of it."""
    in_backward: set[Any] = set()
    eqns = []
    for e in jaxpr.eqns:
        if not e.backward and any([type(i) is Var and i in in_backward for i in e.ins]):
            e = e.replace(backward=True)
        if e.backward:
            in_backward.update(e.outs)
        eqns.append(e)
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def is_recomputable(e: Eqn, aggressive: bool) -> bool:
    """Whether an equation may be computed twice; `aggressive`: whatever it costs."""
    if e.prim.effect or e.prim is barrier_p:
        return False
    kind = kind_of(e)
    if kind == "view":
        return True
    if kind == "reduce":
        return aggressive
    return kind == "map" and (aggressive or operations(e) < _HEAVY)


def _min_cut(
    jaxpr: Jaxpr, forward: Sequence[Eqn], producer: dict[Any, Eqn], used: set[Var], aggressive: bool
) -> set[Var]:
    """The forward values to save: those whose edge from `inside` to `outside` the cut crosses."""
    # Each value is split into two nodes, so that the cut through it costs its bytes once, however
    # many equations use it.
    flow = _FlowNetwork()
    source, sink = flow.node(), flow.node()
    inside: dict[Var, int] = {}
    outside: dict[Var, int] = {}
    free = set(jaxpr.invars)
    kept = set(jaxpr.outs)
    in_memory, recompute = _opaque_operands(jaxpr, producer) if not aggressive else (set(), {})
    # What depends on no input, such as the angles of rotations, is saved if it is small and took
    # work.
    input_free: set[Any] = set()
    # Only what leads to a used value matters.
    relevant: set[Var] = set()
    todo = list(used)
    while todo:
        v = todo.pop()
        if v in relevant or v in free:
            continue
        relevant.add(v)
        e = producer[v]
        if is_recomputable(e, aggressive):
            todo += [i for i in e.ins if type(i) is Var]
    for e in forward:
        if all([type(i) is not Var or i in input_free for i in e.ins]):
            input_free.update(e.outs)
        for v in e.outs:
            if v not in relevant:
                continue
            inside[v], outside[v] = flow.node(), flow.node()
            # An output is in memory anyway and costs a read only. A value that would otherwise stay
            # in registers costs a write as well, so it weighs twice.
            size = max(v.aval.nbytes, 1)
            stored = v in in_memory or not _fuses_away(e)
            traffic = size // 2 if v in kept else size if stored else 2 * size
            # Of equal traffic, what takes less memory: a sum of products and not its terms.
            held = 0 if v in kept else size
            flow.edge(inside[v], outside[v], max(_TRAFFIC * traffic + held, 1))
            costly_constant = v in input_free and operations(e) >= _WORK and v.aval.nbytes <= _SMALL
            if costly_constant or not is_recomputable(e, aggressive):
                flow.edge(source, inside[v], _INFINITE)
                continue
            if v in recompute:
                flow.edge(source, inside[v], _TRAFFIC * recompute[v])
            for i in e.ins:
                if type(i) is Var and i in outside:
                    flow.edge(outside[i], inside[v], _INFINITE)
            if not any(type(i) is Var and i in outside for i in e.ins):
                # It needs inputs only: free to recompute, unless that reads more than it holds
                # (parameters in 16 bits, say) or it is small.
                read = sum([i.aval.nbytes for i in e.ins if type(i) is Var])
                if v.aval.nbytes < max(read, _SMALL) and kind_of(e) == "map":
                    flow.edge(source, inside[v], _INFINITE)
    for v in used:
        if v in outside:
            flow.edge(outside[v], sink, _INFINITE)
    reached = flow.source_side(source, sink)
    return {v for v in inside if inside[v] in reached and outside[v] not in reached}


def _opaque_operands(jaxpr: Jaxpr, producer: dict[Any, Eqn]) -> tuple[set[Any], dict[Any, int]]:
    """(operands of the forward pass's opaque equations, which are in memory anyway; the cost in
    bytes of recomputing each operand of the backward pass's).

    Such an operand is materialized by its recomputation. That is all it costs if a kernel of the
    backward pass reads what it is computed from at about that time anyway; if that kernel waits for
    the opaque equation, it is read once more. Measured for the rotated queries and keys of
    attention: recomputing them took 207 MB of traffic a layer.
    """
    base: dict[Any, Any] = {}
    in_memory: set[Any] = set()
    first_use: dict[Any, int] = {}
    gradients: set[Any] = set()
    for n, e in enumerate(jaxpr.eqns):
        kind = kind_of(e)
        operands = [i for i in e.ins if type(i) is Var]
        if e.prim is reshape_p:
            base[e.outs[0]] = base.get(operands[0], operands[0])
        if e.backward and (kind == "opaque" or not gradients.isdisjoint(operands)):
            gradients.update(e.outs)
        for i in operands if kind == "opaque" else ():
            if not e.backward:
                in_memory |= {i, base.get(i, i)}
            elif i in producer:
                first_use.setdefault(i, n)
    in_memory |= {o for o, v in base.items() if v in in_memory}
    recompute = {}
    for v, n in first_use.items():
        if v in in_memory and is_recomputable(producer[v], False):
            cost = 1 if _reads_are_shared(jaxpr, producer, v, n, gradients) else _REREAD_COST
            recompute[v] = cost * v.aval.nbytes
    return in_memory, recompute


def _reads_are_shared(
    jaxpr: Jaxpr, producer: dict[Any, Eqn], v: Any, at: int, gradients: set[Any]
) -> bool:
    """Whether a kernel of the backward pass near equation `at`, which needs `v` in memory, reads
    what `v` is computed from together with a gradient, and does not depend on that equation."""
    cone, todo = set(), [v]
    while todo and len(cone) < 4 * _MAX_LEAVES:
        u = todo.pop()
        if u in cone or (u in producer and producer[u].prim is broadcast_in_dim_p):
            continue  # small: reading it costs little
        cone.add(u)
        if u in producer and is_recomputable(producer[u], False):
            todo += [
                i for i in producer[u].ins if type(i) is Var and 2 * i.aval.size >= v.aval.size
            ]
    after: set[Any] = set(jaxpr.eqns[at].outs)
    for e in jaxpr.eqns[max(0, at - _NEARBY) : at + _NEARBY]:
        operands = [i for i in e.ins if type(i) is Var]
        if not e.backward:
            continue
        if not after.isdisjoint(operands):
            after.update(e.outs)
        elif kind_of(e) != "opaque" and not cone.isdisjoint(operands):
            if not gradients.isdisjoint(operands):
                return True
            cone.update(e.outs)
    return False


def _save_expensive(jaxpr: Jaxpr, forward: Sequence[Eqn], used: set[Var], saved: set[Var]) -> None:
    """Add to `saved` the values whose recomputation would read much, such as the sums of a residual
    stream."""
    needed: set[Any] = set()
    for e in reversed(forward):
        if any(o in used or o in needed for o in e.outs) and not saved.issuperset(e.outs):
            needed.update([i for i in e.ins if type(i) is Var])
    needed |= used
    inputs = set(jaxpr.invars)
    leaves: dict[Any, frozenset[Any]] = {}
    for e in forward:
        below: frozenset[Any] = frozenset()
        for i in e.ins:
            if type(i) is Var:
                direct = i in saved or i in inputs or i not in leaves
                below |= frozenset((i,)) if direct else leaves[i]
        for o in e.outs:
            leaves[o] = below
            if o not in needed or o in saved or kind_of(e) == "view":
                continue
            read = sum([min(v.aval.nbytes, 2 * o.aval.nbytes) for v in below])
            if len(below) > _MAX_LEAVES or read > _MAX_READ * o.aval.nbytes and len(below) > 2:
                saved.add(o)


def _fuses_away(e: Eqn) -> bool:
    return kind_of(e) in ("map", "view")


def _with_recomputation(jaxpr: Jaxpr, producer: dict[Any, Eqn], saved: set[Var]) -> Jaxpr:
    """The program with values that are not saved recomputed before their uses in the backward pass.
    A recomputation serves uses within `_NEAR` equations: further apart it would be live as long as
    a saved value, which matters of all but small ones."""
    eqns: list[Eqn] = []
    copies: dict[Var, tuple[int, Var]] = {}

    def recompute(v: Any, at: int, where_read: Any) -> Any:
        if type(v) is not Var or v not in producer or v in saved:
            return v
        found = copies.get(v)
        if found is not None and (at - found[0] <= _NEAR or v.aval.nbytes <= _FEW):
            return found[1]
        e = producer[v]
        if not is_recomputable(e, True):
            return v
        ins = [recompute(i, at, where_read) for i in e.ins]
        outs = [Var(o.aval) for o in e.outs]
        eqns.append(e.replace(ins=ins, outs=outs, backward=True))
        for o, new in zip(e.outs, outs):
            copies[o] = at, new
        return copies[v][1]

    for n, e in enumerate(jaxpr.eqns):
        if e.backward:
            ins = [recompute(i, n, e.where) for i in e.ins]
            if any(a is not b for a, b in zip(ins, e.ins)):
                e = e.replace(ins=ins)
        eqns.append(e)
    kept, _ = dead_code(eqns, jaxpr.outs)
    return Jaxpr(jaxpr.invars, kept, jaxpr.outs, jaxpr.labels, jaxpr.name)


class _FlowNetwork:
    """A flow network; Dinic's algorithm for the minimum cut ("Algorithm for solution of a problem
    of maximum flow in networks with power estimation", 1970)."""

    def __init__(self) -> None:
        # By node the numbers of its edges. Edge k and its reverse are k and k ^ 1.
        self.edges: list[list[int]] = []
        self.to: list[int] = []
        self.residual: list[int] = []

    def node(self) -> int:
        """A new node."""
        self.edges.append([])
        return len(self.edges) - 1

    def edge(self, a: int, b: int, capacity: int) -> None:
        """An edge from a to b, and its reverse."""
        for start, end, residual in ((a, b, capacity), (b, a, 0)):
            self.edges[start].append(len(self.to))
            self.to.append(end)
            self.residual.append(residual)

    def source_side(self, source: int, sink: int) -> set[int]:
        """The nodes on the source's side of a minimum cut."""
        while True:
            level = self._levels(source)
            if sink not in level:
                return set(level)
            position = [0] * len(self.edges)
            while self._push(source, sink, level, position):
                pass

    def _levels(self, source: int) -> dict[int, int]:
        level = {source: 0}
        queue = deque((source,))
        while queue:
            n = queue.popleft()
            for k in self.edges[n]:
                if self.residual[k] and self.to[k] not in level:
                    level[self.to[k]] = level[n] + 1
                    queue.append(self.to[k])
        return level

    def _push(self, source: int, sink: int, level: dict[int, int], position: list[int]) -> bool:
        """Send flow along one path of increasing level; False if there is none left."""
        path: list[int] = []
        n = source
        while n != sink:
            while position[n] < len(self.edges[n]):
                k = self.edges[n][position[n]]
                if self.residual[k] and level.get(self.to[k]) == level[n] + 1:
                    break
                position[n] += 1
            else:
                if n == source:
                    return False
                k = path.pop()
                n = self.to[k ^ 1]
                position[n] += 1
                continue
            path.append(k)
            n = self.to[k]
        amount = min(self.residual[k] for k in path)
        for k in path:
            self.residual[k] -= amount
            self.residual[k ^ 1] += amount
        return True
