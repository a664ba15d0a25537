"""Fusion: which computations share a kernel.

Every materialized value starts as a kernel of its own. Kernels merge greedily: producers with their
consumers, the largest value first, then siblings that read the same buffer. A merge needs one
iteration domain in which all roots can be computed, must save traffic, and must not make a cycle.
Matrix products take neighbouring kernels as prologues and epilogues (`gemv_fusion`).

Read `value_graph` and `loop_ir/kernel.py` first: what is materialized, and what a kernel is.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from genesis_fn.compiler.fusion.gemv_fusion import (
    FusedMatmul,
    differ_in_rhs_only,
    few_row_sizes,
    fits_few_row_epilogue,
    fits_prologue,
    fits_tiled_epilogue,
    is_tiled_matmul,
    share_launch,
)
from genesis_fn.compiler.fusion.group import FusionGroup
from genesis_fn.compiler.fusion.matmul_grouping import grouped_eqn
from genesis_fn.compiler.fusion.recompute import recompute_stored
from genesis_fn.compiler.fusion.sum_fusion import (
    FusedSum,
    fits_updates,
    is_repeated,
    is_row_gather,
    loading,
)
from genesis_fn.compiler.fusion.value_graph import (
    ValueGraph,
    build_value_graph,
    has_several_sources,
)
from genesis_fn.compiler.loop_ir.domains import IterationDomain, common_domain, iteration_domain
from genesis_fn.compiler.loop_ir.kernel import (
    Infeasible,
    KernelIR,
    SliceStore,
    build_kernel,
    is_reduction,
    peak_live,
    reduced_axes,
)
from genesis_fn.compiler.loop_ir.layouts import points
from genesis_fn.compiler.memory.inplace import updated_operand
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.simplify.rewriter import has_effect
from genesis_fn.compiler.target import Target
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, e_jaxprs

# Limits of a merged kernel. The kernel of one value may take four times the instructions.
_MAX_ROOTS = 24
_MAX_LOADS = 24
_MAX_INSTRUCTIONS = 256
_MAX_LIVE = 104  # values at once of a long kernel: of one element a thread, with 16 warps at work
_MIN_SHARED = 4096  # bytes of a common operand that are worth a merge
_MAX_DISTANCE = 400  # equations between siblings: merging them lengthens live ranges


def _small_enough(kernel: KernelIR, target: Target) -> bool:
    """Whether a merged kernel may have so many instructions: one whose threads may have as few
    elements as registers allow has four times as many as one that holds rows."""
    if len(kernel.instrs) <= _MAX_INSTRUCTIONS:
        return True
    if _holds_rows(kernel.domain, target) or len(kernel.instrs) > 4 * _MAX_INSTRUCTIONS:
        return False
    return peak_live(kernel.instrs, kernel.stores) <= _MAX_LIVE


def _holds_rows(domain: IterationDomain, target: Target) -> bool:
    """Whether a kernel reduces whole rows, rather than parts of them or none."""
    return domain.reduced > 1 and not domain.wants_split(target)


class Fusion:
    """The groups of a program in the order in which they run, and the graph of its values."""

    def __init__(self, graph: ValueGraph, groups: list[FusionGroup]) -> None:
        self.graph, self.groups = graph, groups


def fuse_jaxpr(
    jaxpr: Jaxpr,
    target: Target,
    slice_stores: dict[Var, SliceStore] | None = None,
    takes_updates: Callable[[Eqn], bool] = lambda e: False,
) -> Fusion:
    """The steps that compute a simplified program on `target`. `slice_stores` says which outputs
    are written into a slice of another buffer, `takes_updates` which equations are sums by segment
    that can compute their first operand."""
    graph = build_value_graph(jaxpr, target, takes_updates)
    while True:
        state = _FusionState(graph, target, slice_stores or {})
        try:
            state.add_initial_groups()
            break
        except _TooLarge as large:
            # What is materialized decides every kernel, so start over.
            graph.materialized.update(large.values)
    # Before any merge, in which what a sum adds would get other readers.
    if enabled("sums"):
        state.fuse_updates(takes_updates)
    # An epilogue of few rows is a kernel of one value, so these come before any merge. A product
    # with an epilogue shares no launch: gates are worth that, which keep two results out of memory,
    # and single epilogues are not.
    if enabled("products"):
        state.fuse_few_row_epilogues(gated=True)
    if enabled("grouped"):
        state.share_few_row_launches()
    if enabled("products"):
        state.fuse_few_row_epilogues(gated=False)
    state.fuse_generated()
    # What kernels read is known now, and with it what each stored value costs.
    if enabled("recompute"):
        touched = recompute_stored(state)
        if touched:
            state.fuse_generated(touched)
    # A prologue such as a norm is one kernel, not two, only after its parts have merged.
    if enabled("products"):
        state.fuse_gemv_prologues()
    # Last, on kernels as merged: one with several results is an epilogue of tiles, too.
    if enabled("epilogues"):
        state.fuse_matmul_epilogues()
    return Fusion(graph, state.scheduled())


class _TooLarge(Exception):
    """The kernel of a value has too many instructions: `values` it reads must be materialized."""

    def __init__(self, values: list[Var]) -> None:
        super().__init__()
        self.values = values


class _FusionState:
    """The groups while they are merged two by two, numbered, with the dependences between them."""

    def __init__(
        self, graph: ValueGraph, target: Target, slice_stores: dict[Var, SliceStore]
    ) -> None:
        self.graph, self.target, self.slice_stores = graph, target, slice_stores
        self.groups: dict[int, FusionGroup] = {}
        self.owner: dict[Var, int] = {}
        self._results = {graph.memory(v)[0] for v in graph.jaxpr.outs}
        self.readers: dict[Var, set[int]] = {}
        # Dependences that no value carries: the order of effects, reads before overwriting.
        self.before: dict[int, set[int]] = {}
        self.after: dict[int, set[int]] = {}
        self._next = 0
        self._too_large: list[tuple[set[int], Var, Var]] = []  # steps, and a root of each
        # A program of generated kernels alone keeps nothing for its backward pass: see
        # _in_backward.
        self._opaque_until = list(itertools.accumulate([k == "opaque" for k in graph.kinds]))
        self._separate_passes = "opaque" in graph.kinds
        # A topological order of the steps, kept valid through merges, with gaps (-1): a merge
        # rewrites the span between its two steps only.
        self.order: list[int] = []
        self.rank: dict[int, int] = {}

    def add_initial_groups(self) -> None:
        """Make a group of each materialized value and of each opaque equation. Raises _TooLarge."""
        graph = self.graph
        last: dict[str, int] = {}
        known = set(graph.jaxpr.invars)  # what does not wait for a kernel that is not generated
        for n, (e, kind) in enumerate(zip(graph.jaxpr.eqns, graph.kinds)):
            of_inputs = all([i in known for i in e.ins if type(i) is Var])
            if kind == "opaque":
                reads = {}
                for v in e.ins:
                    if type(v) is Var:
                        reads[graph.memory(v)[0]] = graph.memory(v)[0].aval.nbytes
                g = self._add(FusionGroup(list(e.outs), None, None, e, reads, n, n))
                if has_effect(e) or _communicates(e):
                    # Gathers of parameters keep an order of their own: in one with the sums of
                    # gradients, a kernel could not merge with what waits for a gather behind it.
                    order = "inputs" if of_inputs and not has_effect(e) else "effects"
                    if order in last:
                        self.before.setdefault(g, set()).add(last[order])
                        self.after.setdefault(last[order], set()).add(g)
                    last[order] = g
            else:
                if of_inputs:
                    known.update(e.outs)
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
            else iteration_domain(points(e, v))
        )

    def _kernel_of(self, v: Var, e: Eqn, domain: IterationDomain) -> KernelIR:
        """The kernel of one value. Raises _TooLarge where it needs more instructions than allowed:
        the nearest computations beneath its views are what to materialize."""
        try:
            return self.build([v], domain)
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

    def build(
        self,
        roots: list[Var],
        domain: IterationDomain,
        stored: Iterable[Var] | None = None,
        columns: frozenset[Var] = frozenset(),
        begun: KernelIR | None = None,
    ) -> KernelIR:
        """The kernel that computes `roots`, of which `stored` go to memory; `begun` is that of the
        first of them. Raises Infeasible."""
        known, kept = self.graph, set(roots if stored is None else stored)
        return build_kernel(
            known.producer, known.materialized, roots, domain, kept, self.slice_stores,
            4 * _MAX_INSTRUCTIONS, columns, begun,
        )  # fmt: skip

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
        """Replace a and the later b by `group`, with `later`, the steps between them that depend on
        a, behind it."""
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

    def rebuild(self, number: int, group: FusionGroup | None) -> None:
        """Have another group, or none, in the place of one, in the same place of the order."""
        for v in self.groups[number].reads:
            self.readers[v].discard(number)
        if group is None:
            self.order[self.rank.pop(number)] = -1
            del self.groups[number]
            return
        self.groups[number] = group
        for v in group.reads:
            self.readers.setdefault(v, set()).add(number)

    def fits(self, kernel: KernelIR) -> bool:
        """Whether a merged kernel may be as large as this one."""
        return len(kernel.loads) <= _MAX_LOADS and _small_enough(kernel, self.target)

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
        """The steps between a and a later b that depend on a; None if b depends on one of them, as
        merging a and b would then make a cycle."""
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
        """Merge steps a and b if one kernel can compute both and that saves traffic."""
        x, y = self.groups[a], self.groups[b]
        if x.kernel is None or y.kernel is None or x.domain is None or y.domain is None:
            return False
        if self._in_backward(x) != self._in_backward(y) and not self._at_the_turn(x, y):
            return False
        domain = common_domain(x.domain, y.domain)
        if domain is None:
            return False
        if len(x.roots) + len(y.roots) > _MAX_ROOTS and not self._mostly_inside(a, b, domain):
            self._too_large.append(({a, b}, x.roots[0], y.roots[0]))
            return False
        columns = _column_outputs(x, domain) | _column_outputs(y, domain)
        lo, hi = self._span(x, y, columns)
        if max_distance is not None and hi - lo > max_distance and not self._at_the_turn(x, y):
            return False
        if self.rank[a] > self.rank[b]:
            a, b = b, a
        later = self._dependents_between(a, b)
        if later is None:
            return False
        # Program order, whatever the order of merges: equal layers then share generated kernels.
        roots = sorted(x.roots + y.roots, key=self.graph.position.__getitem__)
        try:
            begun = x.kernel if roots[0] in x.roots else y.kernel
            kernel = self.build(roots, domain, None, columns, begun)
        except Infeasible:
            return False
        loads = kernel.loads
        if not self.fits(kernel):
            self._too_large.append(({a, b}, x.roots[0], y.roots[0]))
            return False
        # A split row is reduced by two kernels: none of them can walk along it after its reduction.
        if domain.wants_split(self.target) and any(
            i.level and "r" in i.names for i in kernel.instrs
        ):
            return False
        # Saved are buffers that both read, and values of one that the other reads. Stores are not
        # counted: whether a root is stored is known at the end.
        if sum(loads.values()) >= sum(x.reads.values()) + sum(y.reads.values()):
            return False
        self._replace(
            a, b, FusionGroup(roots, domain, kernel, None, loads, lo, hi, columns=columns), later
        )
        return True

    def _mostly_inside(self, a: int, b: int, domain: IterationDomain) -> bool:
        """Whether two steps that hold no rows have few roots that anything but them reads, as a
        chain of operations and its derivatives have: the others stay in registers."""
        roots = self.groups[a].roots + self.groups[b].roots
        if len(roots) > 8 * _MAX_ROOTS or _holds_rows(domain, self.target):
            return False
        read = [v for v in roots if v in self.graph.required or self.readers.get(v, set()) - {a, b}]
        return len(read) <= _MAX_ROOTS

    def _span(self, x: FusionGroup, y: FusionGroup, columns: frozenset[Var]) -> tuple[int, int]:
        """(first, last) equation of a merged step. What depends on its column reductions does not
        count: it reads one value for each column, which is little."""
        if not columns:
            return min(x.lo, y.lo), max(x.hi, y.hi)
        at = [
            self.graph.position[v]
            for v in (*x.roots, *y.roots)
            if v not in columns or is_reduction(self.graph.producer[v])
        ]
        return min(at), max(at)

    def _in_backward(self, g: FusionGroup) -> bool:
        """Whether a step belongs to a backward pass that may not merge with the forward pass: what
        the backward pass recomputes would be computed, and live, from the forward pass on."""
        return self._separate_passes and any([self.graph.producer[v].backward for v in g.roots])

    def _at_the_turn(self, x: FusionGroup, y: FusionGroup) -> bool:
        """Whether only generated kernels lie between two steps, as between a loss and its first
        derivatives: what is merged there lives no longer than it did."""
        opaque = self._opaque_until
        first, last = sorted((min(x.hi, y.hi), max(x.lo, y.lo)))
        return opaque[last] == opaque[first]

    def fuse_updates(self, takes_updates: Callable[[Eqn], bool]) -> None:
        """Fuse what only a sum by segment reads into it: the elementwise kernel of its first
        operand, and the gathers of rows that this one reads, which it may also repeat."""
        for n, g in list(self.groups.items()):
            if g.eqn is None or not takes_updates(g.eqn):
                continue
            data = g.eqn.ins[0]
            v, offset = self.graph.memory(data)
            y = self.owner.get(v)
            if y is None or offset or v.aval.size != data.aval.size:
                continue
            if any(self.graph.memory(i)[0] is v for i in g.eqn.ins[1:]):
                continue
            x = self.groups[y]
            if is_row_gather(x.eqn):
                kernel = loading(v)
            elif x.kernel is not None and x.domain is not None and self._read_by(v, n):
                kernel = x.kernel
                if not fits_updates(kernel, x.domain, v):
                    continue
                n = self._absorb(y, n)
            else:
                continue
            fused = FusedSum.of(g.eqn, kernel)
            for u in kernel.loads:
                n = self._fuse_gather(fused, u, n)
            if fused.gathers or kernel is x.kernel:
                self.groups[n].sum = fused

    def _fuse_gather(self, fused: FusedSum, u: Var, n: int) -> int:
        """Have the sum, step n, read rows of a table instead of `u`, if this is a gather of them
        that it should do: the number of the sum's step then."""
        y = self.owner.get(u)
        e = None if y is None else self.groups[y].eqn
        if y is None or e is None or not is_row_gather(e):
            return n
        if self._read_by(u, n, any_pass=is_repeated(e)):
            fused.gathers[u] = e
            if e.params["mode"] == "check":
                fused.checks.append(e)
            return self._absorb(y, n)
        if is_repeated(e) and self.readers[u] != {n}:
            fused.gathers[u] = e
            g = self.groups[n]
            del g.reads[u]
            self.readers[u].discard(n)
            for v, size in self.groups[y].reads.items():
                g.reads[v] = max(size, g.reads.get(v, 0))
                self.readers.setdefault(v, set()).add(n)
        return n

    def _read_by(self, v: Var, n: int, any_pass: bool = False) -> bool:
        """Whether `v` is the only result of its step, and step n the only one that reads it, in the
        same pass unless `any_pass`."""
        y = self.owner[v]
        if self.readers.get(v, set()) != {n} or len(self.groups[y].roots) > 1:
            return False
        if v in self._results or v in self.slice_stores or y in self.before or y in self.after:
            return False
        return any_pass or self._in_backward(self.groups[y]) == self._in_backward(self.groups[n])

    def _absorb(self, y: int, n: int) -> int:
        """Make step y, whose result only step n reads, a part of that: the number of the step that
        replaces both."""
        x, g = self.groups[y], self.groups[n]
        (v,) = x.roots
        reads = {u: size for u, size in g.reads.items() if u is not v}
        for u, size in x.reads.items():
            reads[u] = max(size, reads.get(u, 0))
        lo, hi = min(x.lo, g.lo), max(x.hi, g.hi)
        # Nothing else reads the result, so no step between depends on it.
        self._replace(y, n, FusionGroup(g.roots, None, None, g.eqn, reads, lo, hi), [])
        del self.owner[v]
        return self.owner[g.roots[0]]

    def share_few_row_launches(self) -> None:
        """Make products of few rows of one left operand, as of queries, keys and values, one
        launch: none of them alone occupies the GPU, or takes longer than its launch."""
        if not self.target.descriptors:
            return
        for readers in list(self.readers.values()):
            left = [r for r in sorted(readers, key=self.rank.__getitem__) if self._is_few_rows(r)]
            while left:
                first, *left = left
                members = [self._eqn(first)]
                for r in list(left):
                    passes = {self._in_backward(self.groups[n]) for n in (first, r)}
                    if len(passes) > 1 or not share_launch(members[0], self._eqn(r)):
                        continue
                    later = self._dependents_between(first, r)
                    if later is None:
                        continue
                    left.remove(r)
                    members.append(self._eqn(r))
                    x, y = self.groups[first], self.groups[r]
                    roots, reads = x.roots + y.roots, x.reads | y.reads
                    lo, hi = min(x.lo, y.lo), max(x.hi, y.hi)
                    group = FusionGroup(roots, None, None, grouped_eqn(members), reads, lo, hi)
                    self._replace(first, r, group, later)
                    first = self.owner[roots[0]]

    def _is_few_rows(self, n: int) -> bool:
        """Whether step n is a product of few rows and nothing else."""
        g = self.groups[n]
        return g.eqn is not None and g.matmul is None and few_row_sizes(g.eqn) is not None

    def fuse_few_row_epilogues(self, gated: bool) -> None:
        """Fuse the only reader of a product of few rows into it as its epilogue; with `gated`, of
        two products at once."""
        for n in list(self.groups):
            if n in self.groups and self._is_few_rows(n):
                self._fuse_few_row_epilogue(n, gated)

    def _fuse_few_row_epilogue(self, n: int, gated: bool) -> None:
        members = [n]
        reader = self._only_reader(n)
        if reader is None:
            return
        y = self.groups[reader]
        assert y.kernel is not None and y.domain is not None
        # Two products of one left operand, such as gate and up projections, share an epilogue.
        for v in y.reads:
            other = self.owner.get(v)
            if other is not None and other != n and len(members) < 2:
                if not self._is_few_rows(other) or self._only_reader(other) != reader:
                    continue
                if differ_in_rhs_only(self._eqn(n), self._eqn(other)):
                    members.append(other)
        members.sort(key=self.rank.__getitem__)
        eqns = [self._eqn(m) for m in members]
        values = [e.outs[0] for e in eqns]
        if (len(members) > 1) != gated:
            return
        if not fits_few_row_epilogue(y.kernel, y.domain, eqns, y.roots[0]):
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
            # Nothing else reads the product, so no step between depends on it.
            self._replace(m, last, group, [])
            last = self.owner[y.roots[0]]
            del self.owner[values[k]]

    def fuse_matmul_epilogues(self) -> None:
        """Fuse the only reader of a tiled product into it as its epilogue, if it is pointwise."""
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
            # The offset of a slice store depends on a loop's counter; tiles have none.
            if any(u in self.slice_stores for u in stored):
                continue
            try:
                kernel = self.build(y.roots, y.domain, stored)
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
        """The kernel, of one value, that is the only reader of product n; None if there is none."""
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
        """Fuse the kernel that computes the left operand of products of few rows into them as their
        prologue. Each of their programs recomputes it, so all its readers must be such products."""
        for n, g in list(self.groups.items()):
            if g.kernel is None or g.domain is None or g.domain.row_column:
                continue
            stored = self._stored(n)
            readers = self.readers.get(stored[0], set()) - {n} if len(stored) == 1 else set()
            if not readers or stored[0] in self._results or stored[0] in self.slice_stores:
                continue
            (h,) = stored
            if (
                not all(self._accepts_prologue(r, h, g.domain) for r in readers)
                or g.kernel.counters
                or g.kernel.starts
            ):
                continue
            kernel = self.build(g.roots, g.domain, stored)
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
        for n, g in self.groups.items():
            if self._is_few_rows(n):
                g.matmul = FusedMatmul([self._eqn(n)])

    def _accepts_prologue(self, r: int, h: Var, domain: IterationDomain) -> bool:
        """Whether step r is a product that reads `h` as its whole left operand and nowhere else."""
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
        """The roots of a step that other steps, or the program's caller, read."""
        return [
            v
            for v in self.groups[n].roots
            if v in self.graph.required or any(r != n for r in self.readers.get(v, ()))
        ]

    def fuse_generated(self, along: Collection[Var] | None = None) -> None:
        """Merge generated kernels with each other, along some of the values that they share."""
        self.fuse_into_consumers(self.owner if along is None else along)
        self.fuse_siblings(self.readers if along is None else along)
        self.fuse_what_was_too_large()

    def fuse_into_consumers(self, along: Collection[Var]) -> None:
        """Merge producers with consumers, along the largest values first: greedy, by the traffic
        that a merge saves at most."""
        edges = []
        for v in along:
            if v in self.owner and self.groups[self.owner[v]].kernel is not None:
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

    def fuse_siblings(self, along: Collection[Var]) -> None:
        """Merge siblings: independent steps that read one buffer."""
        values = sorted([v for v in along if v in self.readers], key=lambda v: -v.aval.nbytes)
        for v in values:
            if v.aval.nbytes < _MIN_SHARED:
                break
            merged = True
            while merged:
                merged = False
                near = [r for r in self.readers[v] if self.groups[r].kernel is not None]
                near.sort(key=lambda r: self.groups[r].lo)
                # Neighbours in program order only: as many attempts as readers, not their square.
                for a, b in zip(near, near[1:]):
                    if self.try_merge(a, b, _MAX_DISTANCE):
                        merged = True
                        break

    def fuse_what_was_too_large(self) -> None:
        """Merge steps whose kernel would have been too large when it was tried, and no longer is:
        the values between two steps, which one of them stored for others, may be in neither."""
        while self._too_large:
            tried, self._too_large = self._too_large, []
            for steps, v, w in tried:
                now = self.owner[v], self.owner[w]
                x, y = [self.groups[n] for n in now]
                near = max(x.lo - y.hi, y.lo - x.hi) <= _MAX_DISTANCE
                if now[0] != now[1] and {*now} != steps and near:
                    self.try_merge(*now)

    def scheduled(self) -> list[FusionGroup]:
        """The steps in order. Values that only their own kernel reads stay in registers."""
        if enabled("in_place"):
            self._read_before_updates()
        order = list(self._topological_order())
        result = []
        for n in order:
            g = self.groups[n]
            if g.kernel is not None and g.domain is not None:
                stored = self._stored(n)
                # Built once more: roots that are not stored need no rounding to their dtype.
                g.kernel = self.build(g.roots, g.domain, stored, g.columns)
                g.reads = g.kernel.loads
                g.writes = stored
                if not stored:
                    continue
            result.append(g)
        return result

    def _read_before_updates(self) -> None:
        """Order the readers of a value before the step that may overwrite it, where that makes no
        cycle: with a reader left behind it, the update would need a copy."""
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
        """Whether step b depends on step a."""
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
        # Kahn's algorithm. Of the steps that are ready the one whose last equation comes first runs
        # next, which stays close to the order of the program.
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


def _communicates(e: Eqn) -> bool:
    """Whether an equation waits for other processes, which must be in the same order on all."""
    return bool(e.prim.collective and e.ins) or any([j.axes for j in e_jaxprs(e)])


def _column_outputs(g: FusionGroup, domain: IterationDomain) -> frozenset[Var]:
    """The roots of `g` that have one value for each column of a row-and-column `domain`."""
    if g.columns or not domain.row_column or g.domain is None or g.domain.axes == domain.axes:
        return g.columns
    # A pointwise step has one value for each column if its size says so. With as many rows as
    # columns it is taken for one of rows.
    if g.domain.size == domain.reduced != domain.kept:
        return frozenset(g.roots)
    if g.domain.reduced == 1:
        return frozenset()
    return frozenset([v for v in g.roots if v.aval.size == g.domain.kept])
