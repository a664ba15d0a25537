"""fuse: which computations share a kernel.

Every value in memory starts with a kernel of its own. Kernels merge greedily, first along the
values that would save most traffic, then beside each other where they read the same buffer, as long
as one kernel over one domain can compute them and no other step lies between.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from genesis_fn.compiler.graph import Graph
from genesis_fn.compiler.kernel import (
    Body,
    Domain,
    Infeasible,
    Placement,
    domain,
    is_reduction,
    joined,
    reduced_axes,
)
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.updates import updated
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var

_MOST_ROOTS = 24
_MOST_LOADS = 24
_MOST_INSTRUCTIONS = 256
_LEAST_SHARED = 4096  # bytes of a common operand that are worth a merge
_FARTHEST = 400  # equations between kernels merged for a common operand: it lengthens lives


class Group:
    """A step: a generated kernel (`body`), or one opaque equation (`eqn`)."""

    __slots__ = ("eqn", "roots", "over", "body", "lo", "hi", "reads", "writes")

    def __init__(
        self, roots: list[Var], over: Domain | None, body: Body | None, eqn: Eqn | None,
        reads: dict[Var, int], lo: int, hi: int,
    ) -> None:  # fmt: skip
        self.roots, self.over, self.body, self.eqn = roots, over, body, eqn
        self.reads, self.lo, self.hi = reads, lo, hi
        self.writes: list[Var] = list(roots)

    @property
    def traffic(self) -> int:
        """Bytes read and written."""
        return sum(self.reads.values()) + sum([v.aval.nbytes for v in self.writes])

    @property
    def operations(self) -> int:
        """Floating-point operations, about."""
        if self.body is None or self.over is None:
            return 0
        total = 0
        for i in self.body.instrs:
            if i.op in ("map", "reduce"):
                rows = self.over.kept if "p" in i.names else 1
                inner = self.over.reduced if "r" in i.names or i.op == "reduce" else 1
                total += rows * inner
        return total


class Fusion:
    """The groups of a program, in order, and what they were made from."""

    def __init__(self, graph: Graph, groups: list[Group]) -> None:
        self.graph, self.groups = graph, groups


def fuse(jaxpr: Jaxpr, placed: dict[Var, Placement] | None = None) -> Fusion:
    """The steps that compute a simplified program. `placed` says which outputs are written into
    part of another buffer."""
    graph = Graph(jaxpr)
    while True:
        try:
            merging = _Merging(graph, placed or {})
            break
        except _TooLarge as large:
            graph.real.update(large.parts)
    merging.along_values()
    merging.beside()
    return Fusion(graph, merging.finished())


class _TooLarge(Exception):
    """A value takes too many instructions: `parts` of it must be in memory."""

    def __init__(self, parts: list[Var]) -> None:
        super().__init__()
        self.parts = parts


class _Merging:
    def __init__(self, graph: Graph, placed: dict[Var, Placement]) -> None:
        self.graph, self.placed = graph, placed
        self.groups: dict[int, Group] = {}
        self.owner: dict[Var, int] = {}
        self.readers: dict[Var, set[int]] = {}
        self.before: dict[int, set[int]] = {}  # order that no value asks for: effects
        self.after: dict[int, set[int]] = {}
        self._next = 0
        # A topological order of the steps, kept valid through merges, with gaps (-1).
        self._passes = "opaque" in graph.kinds
        self.order: list[int] = []
        self.rank: dict[int, int] = {}
        last_effect: int | None = None
        for n, (e, kind) in enumerate(zip(graph.jaxpr.eqns, graph.kinds)):
            if kind == "opaque":
                reads = {}
                for v in e.ins:
                    if type(v) is Var:
                        reads[graph.memory(v)[0]] = graph.memory(v)[0].aval.nbytes
                g = self._add(Group(list(e.outs), None, None, e, reads, n, n))
                if has_effect(e):
                    if last_effect is not None:
                        self.before.setdefault(g, set()).add(last_effect)
                        self.after.setdefault(last_effect, set()).add(g)
                    last_effect = g
            else:
                for v in e.outs:
                    if v in graph.real:
                        over = self._domain(v, e)
                        body = self._single(v, e, over)
                        self._add(Group([v], over, body, None, body.loads, n, n))
        self.order = list(self.groups)
        self.rank = {n: at for at, n in enumerate(self.order)}

    def _domain(self, v: Var, e: Eqn) -> Domain:
        return (
            domain(e.ins[0].aval.shape, reduced_axes(e))
            if is_reduction(e)
            else domain(v.aval.shape)
        )

    def _single(self, v: Var, e: Eqn, over: Domain) -> Body:
        """The kernel of one value."""
        try:
            return self._body([v], over)
        except Infeasible:
            parts: list[Var] = []
            todo = [i for i in e.ins if type(i) is Var]
            while todo:
                i = todo.pop()
                made = self.graph.made.get(i)
                if i in self.graph.real or made is None:
                    continue
                if self.graph.kind[id(made)] == "map" or made.prim.name in ("pad", "concatenate"):
                    parts.append(i)
                else:
                    todo += [j for j in made.ins if type(j) is Var]
            if not parts:
                raise
            raise _TooLarge(parts) from None

    def _body(self, roots: list[Var], over: Domain, stored: Iterable[Var] | None = None) -> Body:
        graph = self.graph
        kept = set(roots if stored is None else stored)
        return Body(graph.made, graph.real, roots, over, kept, self.placed, 4 * _MOST_INSTRUCTIONS)

    def _add(self, group: Group) -> int:
        number = self._next
        self._next += 1
        self.groups[number] = group
        for v in group.roots:
            self.owner[v] = number
        for v in group.reads:
            self.readers.setdefault(v, set()).add(number)
        return number

    def _replace(self, a: int, b: int, group: Group, later: Sequence[int]) -> None:
        """Put `group` in the place of a and the later b, before the steps `later` between them."""
        first, last = self.rank[a], self.rank[b]
        for n in (a, b):
            for v in self.groups[n].reads:
                self.readers[v].discard(n)
            del self.groups[n], self.rank[n]
        new = self._add(group)
        moved = set(later)
        between = [n for n in self.order[first : last + 1] if n in self.groups]
        between = [n for n in between if n not in moved] + [new, *later]
        between += [-1] * (last + 1 - first - len(between))
        self.order[first : last + 1] = between
        for at, n in enumerate(between, first):
            if n >= 0:
                self.rank[n] = at

    def preds(self, n: int) -> set[int]:
        """The steps that must come before step n."""
        found = {self.owner[v] for v in self.groups[n].reads if v in self.owner}
        return (found | self.before.get(n, set())) - {n}

    def succs(self, n: int) -> set[int]:
        """The steps that must come after step n."""
        found = set(self.after.get(n, ()))
        for v in self.groups[n].roots:
            found |= self.readers.get(v, set())
        found.discard(n)
        return found

    def _after(self, a: int, b: int) -> list[int] | None:
        """The steps between a and a later b that must come after a; None if b must come after one
        of them."""
        rank, limit = self.rank, self.rank[b]
        todo = [s for s in self.succs(a) if s != b and rank[s] < limit]
        seen = set(todo)
        while todo:
            for s in self.succs(todo.pop()):
                if s == b:
                    return None
                if s not in seen and rank[s] < limit:
                    seen.add(s)
                    todo.append(s)
        return sorted(seen, key=rank.__getitem__)

    def merge(self, a: int, b: int, farthest: int | None = None) -> bool:
        """Merge steps a and b if that is possible and saves traffic."""
        x, y = self.groups[a], self.groups[b]
        if x.body is None or y.body is None or x.over is None or y.over is None:
            return False
        if len(x.roots) + len(y.roots) > _MOST_ROOTS:
            return False
        lo, hi = min(x.lo, y.lo), max(x.hi, y.hi)
        if farthest is not None and hi - lo > farthest:
            return False
        if self._apart(x) != self._apart(y):
            return False
        over = joined(x.over, y.over)
        if over is None:
            return False
        if self.rank[a] > self.rank[b]:
            a, b = b, a
        later = self._after(a, b)
        if later is None:
            return False
        roots = sorted(x.roots + y.roots, key=self.graph.position.__getitem__)
        try:
            body = self._body(roots, over)
        except Infeasible:
            return False
        loads = body.loads
        if len(loads) > _MOST_LOADS or len(body.instrs) > _MOST_INSTRUCTIONS:
            return False
        if over.wants_split and any(i.level and "r" in i.names for i in body.instrs):
            return False
        if sum(loads.values()) >= sum(x.reads.values()) + sum(y.reads.values()):
            return False
        self._replace(a, b, Group(roots, over, body, None, loads, lo, hi), later)
        return True

    def _apart(self, g: Group) -> bool:
        """Whether a step is of a backward pass that stays apart from the forward pass: what
        the backward pass makes again would else be made, and held, from the forward pass on."""
        return self._passes and any([self.graph.made[v].backward for v in g.roots])

    def along_values(self) -> None:
        """Merge makers with readers, the largest values first."""
        edges = []
        for v, n in self.owner.items():
            if self.groups[n].body is not None:
                edges.append((-v.aval.nbytes, self.graph.position[v], v))
        edges.sort(key=lambda each: each[:2])
        for _, _, v in edges:
            again = True
            while again:
                again = False
                n = self.owner[v]
                for reader in sorted(self.readers.get(v, ()), key=lambda r: self.groups[r].lo):
                    if reader != n and self.merge(n, reader):
                        again = True
                        break

    def beside(self) -> None:
        """Merge independent steps that read one buffer."""
        values = sorted(self.readers, key=lambda v: -v.aval.nbytes)
        for v in values:
            if v.aval.nbytes < _LEAST_SHARED:
                break
            again = True
            while again:
                again = False
                near = sorted(self.readers[v], key=lambda r: self.groups[r].lo)
                for a, b in zip(near, near[1:]):
                    if self.merge(a, b, _FARTHEST):
                        again = True
                        break

    def finished(self) -> list[Group]:
        """The steps in order; values that only their own kernel reads stay in registers."""
        if enabled("in_place"):
            self._read_before_updates()
        order = list(self._ordered())
        result = []
        for n in order:
            g = self.groups[n]
            if g.body is not None and g.over is not None:
                stored = [
                    v for v in g.roots
                    if v in self.graph.required or any(r != n for r in self.readers.get(v, ()))
                ]  # fmt: skip
                g.body = self._body(g.roots, g.over, stored)
                g.reads = g.body.loads
                g.writes = stored
                if not stored:
                    continue
            result.append(g)
        return result

    def _read_before_updates(self) -> None:
        """Let what reads a value come before the step that may overwrite it, where it can."""
        for n, g in self.groups.items():
            if g.eqn is None:
                continue
            found = [updated(g.eqn, v) for v in g.eqn.outs]
            for u in {self.graph.memory(x)[0] for x in found if x is not None}:
                for reader in self.readers[u] - {n}:
                    if not self._reaches(n, reader):
                        self.before.setdefault(n, set()).add(reader)
                        self.after.setdefault(reader, set()).add(n)

    def _reaches(self, a: int, b: int) -> bool:
        """Whether step b must come after step a."""
        seen, todo = {a}, [a]
        while todo:
            for s in self.succs(todo.pop()):
                if s == b:
                    return True
                if s not in seen:
                    seen.add(s)
                    todo.append(s)
        return False

    def _ordered(self) -> Iterator[int]:
        waiting = {n: len(self.preds(n)) for n in self.groups}
        ready = [(self.groups[n].hi, n) for n, count in waiting.items() if not count]
        heapq.heapify(ready)
        left = len(waiting)
        while ready:
            _, n = heapq.heappop(ready)
            left -= 1
            yield n
            for s in self.succs(n):
                waiting[s] -= 1
                if not waiting[s]:
                    heapq.heappush(ready, (self.groups[s].hi, s))
        if left:
            raise AssertionError(f"{left} steps of the program wait for each other")


def has_effect(e: Eqn) -> bool:
    """Whether an equation has a side effect, in itself or in a program that it runs."""
    from genesis_fn.core.jaxpr import e_jaxprs

    return e.prim.effect or any(j.effect for j in e_jaxprs(e))


__all__ = ["Fusion", "Group", "fuse", "has_effect"]
