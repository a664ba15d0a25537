"""fuse: which computations share a kernel.

Every value in memory starts with a kernel of its own. Kernels merge greedily, first along the
values that would save most traffic, then beside each other where they read the same buffer, as long
as one kernel over one domain can compute them and no other step lies between.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from genesis_fn.compiler.fusion.gemv_fusion import (
    FusedMatmul,
    differ_in_rhs_only,
    fits_epilogue,
    fits_prologue,
    fits_tiled_epilogue,
    gemv_sizes,
    is_tiled_matmul,
)
from genesis_fn.compiler.fusion.value_graph import (
    ValueGraph,
    build_value_graph,
    has_several_sources,
)
from genesis_fn.compiler.loop_ir.kernel import (
    Infeasible,
    IterationDomain,
    KernelIR,
    SliceStore,
    build_kernel,
    common_domain,
    is_reduction,
    iteration_domain,
    reduced_axes,
)
from genesis_fn.compiler.memory.inplace import updated_operand
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.simplify.rewriter import has_effect
from genesis_fn.compiler.target import Target
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var

_MAX_ROOTS = 24
_MAX_LOADS = 24
_MAX_INSTRUCTIONS = 256
_MIN_SHARED = 4096  # bytes of a common operand that are worth a merge
_MAX_DISTANCE = 400  # equations between kernels merged for a common operand: it lengthens lives


class FusionGroup:
    """A step: a generated kernel (`body`), or one opaque equation (`eqn`), a product perhaps with
    more in its kernel (`product`). `columns` are the roots of a crossed domain that have one value
    for each column."""

    __slots__ = (
        "eqn",
        "roots",
        "domain",
        "kernel",
        "lo",
        "hi",
        "reads",
        "writes",
        "matmul",
        "columns",
    )

    def __init__(
        self,
        roots: list[Var],
        domain: IterationDomain | None,
        kernel: KernelIR | None,
        eqn: Eqn | None,
        reads: dict[Var, int],
        lo: int,
        hi: int,
        matmul: FusedMatmul | None = None,
        columns: frozenset[Var] = frozenset(),
    ) -> None:
        self.roots, self.domain, self.kernel, self.eqn = roots, domain, kernel, eqn
        self.matmul, self.columns = matmul, columns
        self.reads, self.lo, self.hi = reads, lo, hi
        self.writes: list[Var] = list(roots)

    @property
    def traffic(self) -> int:
        """Bytes read and written."""
        return sum(self.reads.values()) + sum([v.aval.nbytes for v in self.writes])

    @property
    def operations(self) -> int:
        """Floating-point operations, about."""
        if self.kernel is None or self.domain is None:
            return 0
        total = 0
        for i in self.kernel.instrs:
            if i.op in ("map", "reduce"):
                rows = self.domain.kept if "p" in i.names else 1
                inner = self.domain.reduced if "r" in i.names or i.op == "reduce" else 1
                total += rows * inner
        return total


class Fusion:
    """The groups of a program, in order, and what they were made from."""

    def __init__(self, graph: ValueGraph, groups: list[FusionGroup]) -> None:
        self.graph, self.groups = graph, groups


def fuse_jaxpr(
    jaxpr: Jaxpr, target: Target, slice_stores: dict[Var, SliceStore] | None = None
) -> Fusion:
    """The steps that compute a simplified program on `target`. `placed` says which outputs are
    written into part of another buffer."""
    graph = build_value_graph(jaxpr, target)
    while True:
        state = _FusionState(graph, target, slice_stores or {})
        try:
            state.add_initial_groups()
            break
        except _TooLarge as large:
            graph.materialized.update(large.values)
    if enabled("products"):
        state.fuse_gemv_epilogues()
    state.fuse_into_consumers()
    state.fuse_siblings()
    if enabled("products"):
        state.fuse_gemv_prologues()
    if enabled("epilogues"):
        state.fuse_matmul_epilogues()
    return Fusion(graph, state.scheduled())


class _TooLarge(Exception):
    """A value takes too many instructions: `parts` of it must be in memory."""

    def __init__(self, values: list[Var]) -> None:
        super().__init__()
        self.values = values


class _FusionState:
    """Groups of steps that become kernels, merged two by two."""

    def __init__(
        self, graph: ValueGraph, target: Target, slice_stores: dict[Var, SliceStore]
    ) -> None:
        self.graph, self.target, self.slice_stores = graph, target, slice_stores
        self.groups: dict[int, FusionGroup] = {}
        self.owner: dict[Var, int] = {}
        self.readers: dict[Var, set[int]] = {}
        self.before: dict[int, set[int]] = {}  # order that no value asks for: effects
        self.after: dict[int, set[int]] = {}
        self._next = 0
        # A topological order of the steps, kept valid through merges, with gaps (-1).
        self._separate_passes = "opaque" in graph.kinds
        self.order: list[int] = []
        self.rank: dict[int, int] = {}

    def add_initial_groups(self) -> None:
        """Make a group of each step. Raises _TooLarge."""
        graph = self.graph
        last_effect: int | None = None
        for n, (e, kind) in enumerate(zip(graph.jaxpr.eqns, graph.kinds)):
            if kind == "opaque":
                reads = {}
                for v in e.ins:
                    if type(v) is Var:
                        reads[graph.memory(v)[0]] = graph.memory(v)[0].aval.nbytes
                g = self._add(FusionGroup(list(e.outs), None, None, e, reads, n, n))
                if has_effect(e):
                    if last_effect is not None:
                        self.before.setdefault(g, set()).add(last_effect)
                        self.after.setdefault(last_effect, set()).add(g)
                    last_effect = g
            else:
                for v in e.outs:
                    if v in graph.materialized:
                        domain = self._domain_of(v, e)
                        kernel = self._kernel_of(v, e, domain)
                        self._add(FusionGroup([v], domain, kernel, None, kernel.loads, n, n))
        self.order = list(self.groups)
        self.rank = {n: at for at, n in enumerate(self.order)}

    def _domain_of(self, v: Var, e: Eqn) -> IterationDomain:
        return (
            iteration_domain(e.ins[0].aval.shape, reduced_axes(e))
            if is_reduction(e)
            else iteration_domain(v.aval.shape)
        )

    def _kernel_of(self, v: Var, e: Eqn, domain: IterationDomain) -> KernelIR:
        """The kernel of one value."""
        try:
            return self._build([v], domain)
        except Infeasible:
            values: list[Var] = []
            todo = [i for i in e.ins if type(i) is Var]
            while todo:
                i = todo.pop()
                producer = self.graph.producer.get(i)
                if i in self.graph.materialized or producer is None:
                    continue
                if self.graph.kind[id(producer)] == "map" or has_several_sources(producer):
                    values.append(i)
                else:
                    todo += [j for j in producer.ins if type(j) is Var]
            if not values:
                raise
            raise _TooLarge(values) from None

    def _build(
        self,
        roots: list[Var],
        domain: IterationDomain,
        stored: Iterable[Var] | None = None,
        columns: frozenset[Var] = frozenset(),
    ) -> KernelIR:
        graph = self.graph
        kept = set(roots if stored is None else stored)
        max_instrs = 4 * _MAX_INSTRUCTIONS
        return build_kernel(
            graph.producer,
            graph.materialized,
            roots,
            domain,
            kept,
            self.slice_stores,
            max_instrs,
            columns,
        )

    def _add(self, group: FusionGroup) -> int:
        number = self._next
        self._next += 1
        self.groups[number] = group
        for v in group.roots:
            self.owner[v] = number
        for v in group.reads:
            self.readers.setdefault(v, set()).add(number)
        return number

    def _replace(self, a: int, b: int, group: FusionGroup, later: Sequence[int]) -> None:
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

    def _dependents_between(self, a: int, b: int) -> list[int] | None:
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

    def try_merge(self, a: int, b: int, max_distance: int | None = None) -> bool:
        """Merge steps a and b if that is possible and saves traffic."""
        x, y = self.groups[a], self.groups[b]
        if x.kernel is None or y.kernel is None or x.domain is None or y.domain is None:
            return False
        if len(x.roots) + len(y.roots) > _MAX_ROOTS:
            return False
        if self._in_backward(x) != self._in_backward(y):
            return False
        domain = common_domain(x.domain, y.domain)
        if domain is None:
            return False
        columns = _column_outputs(x, domain) | _column_outputs(y, domain)
        lo, hi = self._span(x, y, columns)
        if max_distance is not None and hi - lo > max_distance:
            return False
        if self.rank[a] > self.rank[b]:
            a, b = b, a
        later = self._dependents_between(a, b)
        if later is None:
            return False
        roots = sorted(x.roots + y.roots, key=self.graph.position.__getitem__)
        try:
            kernel = self._build(roots, domain, None, columns)
        except Infeasible:
            return False
        loads = kernel.loads
        if len(loads) > _MAX_LOADS or len(kernel.instrs) > _MAX_INSTRUCTIONS:
            return False
        if domain.wants_split(self.target) and any(
            i.level and "r" in i.names for i in kernel.instrs
        ):
            return False
        if sum(loads.values()) >= sum(x.reads.values()) + sum(y.reads.values()):
            return False
        self._replace(
            a, b, FusionGroup(roots, domain, kernel, None, loads, lo, hi, columns=columns), later
        )
        return True

    def _span(self, x: FusionGroup, y: FusionGroup, columns: frozenset[Var]) -> tuple[int, int]:
        """(first, last) equation of a merged step; what follows its folds does not count, as it
        reads little."""
        if not columns:
            return min(x.lo, y.lo), max(x.hi, y.hi)
        at = [
            self.graph.position[v]
            for v in (*x.roots, *y.roots)
            if v not in columns or is_reduction(self.graph.producer[v])
        ]
        return min(at), max(at)

    def _in_backward(self, g: FusionGroup) -> bool:
        """Whether a step is of a backward pass that stays apart from the forward pass: what
        the backward pass makes again would else be made, and held, from the forward pass on."""
        return self._separate_passes and any([self.graph.producer[v].backward for v in g.roots])

    def fuse_gemv_epilogues(self) -> None:
        """Let products of few rows do what alone reads their results."""
        for n, g in list(self.groups.items()):
            if n in self.groups and g.eqn is not None and g.matmul is None:
                if gemv_sizes(g.eqn) is not None:
                    self._fuse_gemv_epilogue(n)

    def _fuse_gemv_epilogue(self, n: int) -> None:
        members = [n]
        reader = self._only_reader(n)
        if reader is None:
            return
        y = self.groups[reader]
        assert y.kernel is not None and y.domain is not None
        for v in y.reads:
            other = self.owner.get(v)
            if other is not None and other != n and len(members) < 2:
                e = self.groups[other].eqn
                if e is None or gemv_sizes(e) is None or self._only_reader(other) != reader:
                    continue
                if differ_in_rhs_only(self._eqn(n), e):
                    members.append(other)
        members.sort(key=self.rank.__getitem__)
        eqns = [self._eqn(m) for m in members]
        values = [e.outs[0] for e in eqns]
        if not fits_epilogue(y.kernel, y.domain, values, y.roots[0]):
            return
        kernel, last = y.kernel, reader
        for k in range(len(members)):
            m, x = members[k], self.groups[members[k]]
            reads = {v: b for v, b in self.groups[last].reads.items() if v not in values}
            lo, hi = min(x.lo, y.lo), max(x.hi, y.hi)
            matmul = FusedMatmul(eqns, epilogue=kernel)
            group = FusionGroup(y.roots, None, None, eqns[0], reads | x.reads, lo, hi, matmul)
            if k + 1 < len(members):
                group.reads |= {v: v.aval.nbytes for v in values[k + 1 :]}
            # Nothing else reads the product, so nothing must come between.
            self._replace(m, last, group, [])
            last = self.owner[y.roots[0]]
            del self.owner[values[k]]

    def fuse_matmul_epilogues(self) -> None:
        """Let products in tiles do what alone reads their results, if it is pointwise."""
        for n, g in list(self.groups.items()):
            if g.eqn is None or g.matmul is not None or not is_tiled_matmul(g.eqn):
                continue
            (v,) = g.roots
            readers = self.readers.get(v, set())
            if len(readers) != 1 or v in self.graph.required:
                continue
            (r,) = readers
            y = self.groups[r]
            if y.kernel is None or y.domain is None:
                continue
            stored = self._stored(r)
            if any(u in self.slice_stores for u in stored):
                continue
            try:
                kernel = self._build(y.roots, y.domain, stored)
            except Infeasible:  # rows that reduce columns too
                continue
            if not fits_tiled_epilogue(kernel, y.domain, v, stored):
                continue
            reads = {u: size for u, size in kernel.loads.items() if u is not v}
            group = FusionGroup(
                stored,
                None,
                None,
                g.eqn,
                reads | g.reads,
                min(g.lo, y.lo),
                max(g.hi, y.hi),
                FusedMatmul([g.eqn], epilogue=kernel),
            )
            for u in y.roots:
                self.owner.pop(u, None)
            self._replace(n, r, group, [])
            self.owner.pop(v, None)

    def _eqn(self, n: int) -> Eqn:
        e = self.groups[n].eqn
        assert e is not None
        return e

    def _only_reader(self, n: int) -> int | None:
        """The generated kernel of one value that alone reads the result of a product."""
        (v,) = self.groups[n].roots
        readers = self.readers.get(v, set())
        if len(readers) != 1 or v in self.graph.required or self.groups[n].matmul is not None:
            return None
        (r,) = readers
        y = self.groups[r]
        if y.kernel is None or len(y.roots) != 1 or y.roots[0] in self.slice_stores:
            return None
        return None if self._in_backward(y) != self._in_backward(self.groups[n]) else r

    def fuse_gemv_prologues(self) -> None:
        """Let products of few rows make their left operands."""
        results = {self.graph.memory(v)[0] for v in self.graph.jaxpr.outs}
        for n, g in list(self.groups.items()):
            if g.kernel is None or g.domain is None or g.domain.row_column:
                continue
            stored = self._stored(n)
            readers = self.readers.get(stored[0], set()) - {n} if len(stored) == 1 else set()
            if not readers or stored[0] in results or stored[0] in self.slice_stores:
                continue
            (h,) = stored
            if (
                not all(self._accepts_prologue(r, h, g.domain) for r in readers)
                or g.kernel.counters
            ):
                continue
            kernel = self._build(g.roots, g.domain, stored)
            for r in readers:
                reader = self.groups[r]
                if reader.matmul is None:
                    reader.matmul = FusedMatmul([self._eqn(r)])
                reader.matmul.prologue = kernel
                del reader.reads[h]
                for v, size in kernel.loads.items():
                    reader.reads[v] = max(size, reader.reads.get(v, 0))
                    self.readers.setdefault(v, set()).add(r)
                reader.lo = min(reader.lo, g.lo)
            for v in g.reads:
                self.readers[v].discard(n)
            for v in g.roots:
                self.readers.pop(v, None)
                del self.owner[v]
            self.order[self.rank.pop(n)] = -1
            del self.groups[n]
        for g in self.groups.values():
            if g.eqn is not None and g.matmul is None and gemv_sizes(g.eqn) is not None:
                g.matmul = FusedMatmul([g.eqn])

    def _accepts_prologue(self, r: int, h: Var, domain: IterationDomain) -> bool:
        """Whether step r is a product that reads `h` as its whole left operand and no more."""
        g = self.groups[r]
        e = g.eqn
        if e is None or not fits_prologue(domain, e):
            return False
        x, y = e.ins
        epilogue = g.matmul.epilogue if g.matmul is not None else None
        if epilogue is not None and h in epilogue.loads:
            return False
        whole = self.graph.memory(x) == (h, 0) and x.aval.size == h.aval.size
        return whole and self.graph.memory(y)[0] is not h

    def _stored(self, n: int) -> list[Var]:
        """The roots of a step that others read."""
        return [
            v
            for v in self.groups[n].roots
            if v in self.graph.required or any(r != n for r in self.readers.get(v, ()))
        ]

    def fuse_into_consumers(self) -> None:
        """Merge makers with readers, the largest values first."""
        edges = []
        for v, n in self.owner.items():
            if self.groups[n].kernel is not None:
                edges.append((-v.aval.nbytes, self.graph.position[v], v))
        edges.sort(key=lambda each: each[:2])
        for _, _, v in edges:
            merged = True
            while merged:
                merged = False
                n = self.owner[v]
                for reader in sorted(self.readers.get(v, ()), key=lambda r: self.groups[r].lo):
                    if reader != n and self.try_merge(n, reader):
                        merged = True
                        break

    def fuse_siblings(self) -> None:
        """Merge independent steps that read one buffer."""
        values = sorted(self.readers, key=lambda v: -v.aval.nbytes)
        for v in values:
            if v.aval.nbytes < _MIN_SHARED:
                break
            merged = True
            while merged:
                merged = False
                near = [r for r in self.readers[v] if self.groups[r].kernel is not None]
                near.sort(key=lambda r: self.groups[r].lo)
                for a, b in zip(near, near[1:]):
                    if self.try_merge(a, b, _MAX_DISTANCE):
                        merged = True
                        break

    def scheduled(self) -> list[FusionGroup]:
        """The steps in order; values that only their own kernel reads stay in registers."""
        if enabled("in_place"):
            self._read_before_updates()
        order = list(self._topological_order())
        result = []
        for n in order:
            g = self.groups[n]
            if g.kernel is not None and g.domain is not None:
                stored = self._stored(n)
                g.kernel = self._build(g.roots, g.domain, stored, g.columns)
                g.reads = g.kernel.loads
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
            found = [updated_operand(g.eqn, v) for v in g.eqn.outs]
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

    def _topological_order(self) -> Iterator[int]:
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


def _column_outputs(g: FusionGroup, domain: IterationDomain) -> frozenset[Var]:
    """The roots of `g` that have one value for each column of a crossed domain `over`."""
    if g.columns or not domain.row_column or g.domain is None or g.domain.axes == domain.axes:
        return g.columns
    if g.domain.size == domain.reduced != domain.kept:
        return frozenset(g.roots)
    if g.domain.reduced == 1:
        return frozenset()
    return frozenset([v for v in g.roots if v.aval.size == g.domain.kept])
