"""Which of the values that kernels store are rather computed again where they are read.

What is materialized is chosen before kernels merge, by an estimate. Once they have merged, what a
value costs is known: the bytes that its own kernel and each reader move and the operations that
they take, with the value in memory and without. A kernel takes as long as the slower of the two,
since arithmetic goes on while memory moves.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from genesis_fn.compiler.fusion.group import FusionGroup
from genesis_fn.compiler.fusion.matmul_grouping import grouped_matmul_p
from genesis_fn.compiler.fusion.value_graph import ValueGraph
from genesis_fn.compiler.loop_ir.domains import IterationDomain
from genesis_fn.compiler.loop_ir.kernel import Infeasible, KernelIR, SliceStore
from genesis_fn.compiler.loop_ir.layouts import pitched_product_p
from genesis_fn.compiler.target import Target
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.jaxpr import Var
from genesis_fn.primitives.dot_general import dot_general_p

_ROW = 256  # bytes of a row of a table that are read at random in the time of those in order
_PRODUCTS = (dot_general_p, grouped_matmul_p, pitched_product_p)


class Merged(Protocol):
    """The steps of a program while they are merged, as `fuse` has them."""

    graph: ValueGraph
    target: Target
    slice_stores: dict[Var, SliceStore]
    groups: dict[int, FusionGroup]
    owner: dict[Var, int]
    readers: dict[Var, set[int]]
    rank: dict[int, int]
    before: dict[int, set[int]]
    after: dict[int, set[int]]

    def build(
        self,
        roots: list[Var],
        domain: IterationDomain,
        stored: Collection[Var] | None = None,
        columns: frozenset[Var] = frozenset(),
    ) -> KernelIR:
        """The kernel that computes `roots`. Raises Infeasible."""
        ...

    def fits(self, kernel: KernelIR) -> bool:
        """Whether a merged kernel may be as large as this one."""
        ...

    def rebuild(self, number: int, group: FusionGroup | None) -> None:
        """Have another group, or none, in the place of one."""
        ...


def work(kernel: KernelIR) -> float:
    """The operations of a kernel, in additions."""
    domain, total = kernel.domain, 0
    # Once for each value of the loop variables that an instruction depends on.
    count = lambda names: (
        (domain.kept if "p" in names else 1) * (domain.reduced if "r" in names else 1)
    )
    for i in kernel.instrs:
        if i.op in ("load", "where"):
            guards = i.meta[2] if i.op == "load" else i.meta
            total += count(i.names) + sum([count(g.expr.names) for g in guards])
        elif i.op == "map":
            how = i.eqn.prim.lowering if i.eqn is not None else None
            total += (how.cost if type(how) is Elementwise else 1) * count(i.names)
        elif i.op in ("reduce", "column_reduce", "combine"):
            total += count(i.names | {"r"} if i.op == "reduce" else i.names | {"p"})
    return total


def recompute_stored(state: Merged) -> list[Var]:
    """Compute stored values where they are read, where that takes less time: the values that the
    kernels which have changed read and compute."""
    # Less than a quarter of what memory moves while a kernel starts is not worth the attempt.
    least = state.target.launch_bytes // 4
    values = [v for v in state.owner if v.aval.nbytes >= least and _is_optional(state, v)]
    values.sort(key=lambda v: (-v.aval.nbytes, state.graph.position[v]))
    touched: dict[Var, None] = {}
    for v in values:
        if not _may_save(state, v):
            continue
        found = _without(state, v)
        if found is not None:
            for number, group in found.items():
                state.rebuild(number, group)
                if group is not None:
                    touched.update(dict.fromkeys([*group.reads, *group.roots]))
            del state.owner[v]
    return list(touched)


def _may_save(state: Merged, v: Var) -> bool:
    """Whether fewer bytes may be moved without `v`, as far as can be told before kernels are
    built: what the readers read in its place."""
    readers, own = state.readers[v] - {state.owner[v]}, state.groups[state.owner[v]]
    leaves = state.graph.leaves.get(v, ())
    # A kernel that computes nothing else reads nothing without it.
    more = -sum(own.reads.values()) if own.roots == [v] else 0
    for m in readers:
        here = state.groups[m].reads
        more += sum([min(u.aval.nbytes, v.aval.nbytes) for u in leaves if u not in here])
    return more < v.aval.nbytes * (1 + len(readers))


def _is_optional(state: Merged, v: Var) -> bool:
    """Whether a value is stored for other generated kernels only, and can be computed by them."""
    graph, n = state.graph, state.owner[v]
    if v in graph.required or v in state.slice_stores:
        return False
    readers = state.readers.get(v, set()) - {n}
    if not readers or any([state.groups[r].kernel is None for r in readers]):
        return False
    if state.groups[n].kernel is None:
        alone = n not in state.before and n not in state.after
        if not alone or state.groups[n].eqn not in graph.gathers:
            return False
        # Of several kernels each has rows to look up, and is no part of a product.
        table = graph.producer[v].ins[0].aval
        row = table.nbytes // table.shape[0]
        return len(readers) == 1 or (
            row >= _ROW and not any([_meets_product(state, r) for r in readers])
        )
    return graph.kind[id(graph.producer[v])] in ("map", "view")


def _meets_product(state: Merged, n: int) -> bool:
    """Whether a product reads what step n computes, or step n what a product does."""
    near = {r for v in state.groups[n].roots for r in state.readers.get(v, ())}
    near |= {state.owner[v] for v in state.groups[n].reads if v in state.owner}
    eqns = [state.groups[m].eqn for m in near]
    return any([e is not None and e.prim in _PRODUCTS for e in eqns])


def _without(state: Merged, v: Var) -> dict[int, FusionGroup | None] | None:
    """The groups of v's kernel and its readers with v in none of them; None if they take longer, or
    keep more in memory than v takes."""
    graph, n = state.graph, state.owner[v]
    readers = sorted(state.readers[v] - {n}, key=state.rank.__getitem__)
    graph.materialized.discard(v)
    groups: dict[int, FusionGroup | None] = {}
    try:
        for m in (n, *readers):
            g = state.groups[m]
            roots = [u for u in g.roots if u is not v]
            if not roots:
                groups[m] = None
                continue
            assert g.domain is not None
            kernel = state.build(roots, g.domain, None, g.columns - {v})
            if not state.fits(kernel):
                break
            groups[m] = FusionGroup(
                roots, g.domain, kernel, None, kernel.loads, g.lo, g.hi, columns=g.columns - {v}
            )
        else:
            if _is_faster(state, v, groups):
                return groups
    except Infeasible:
        pass
    graph.materialized.add(v)
    return None


def _is_faster(state: Merged, v: Var, groups: dict[int, FusionGroup | None]) -> bool:
    before = after = 0.0
    held = 0  # bytes that live longer
    for m, g in groups.items():
        old = state.groups[m]
        before += _seconds(state, old, [u for u in old.roots if _is_stored(state, u, m, {})])
        if g is None:
            continue
        after += _seconds(state, g, [u for u in g.roots if _is_stored(state, u, m, groups)])
        held += sum(
            [u.aval.nbytes for u in g.reads if u not in old.reads and not _lives(state, u, m)]
        )
    # What only v was for goes with it: its operands wait for the reader, which is near.
    alone = groups[state.owner[v]] is None
    return after < 0.99 * before and held <= v.aval.nbytes * (1 + alone)


def _seconds(state: Merged, g: FusionGroup, stored: Collection[Var]) -> float:
    traffic = sum(g.reads.values()) + sum([u.aval.nbytes for u in stored])
    if g.kernel is None:  # a gather of rows, which it reads and writes, at its own launch
        rows = sum([u.aval.nbytes for u in g.roots])
        return (2 * rows + state.target.launch_bytes) / state.target.bandwidth
    return max(traffic / state.target.bandwidth, work(g.kernel) / state.target.additions)


def _is_stored(state: Merged, u: Var, n: int, groups: dict[int, FusionGroup | None]) -> bool:
    """Whether group n stores its root `u`, with `groups` in the place of some."""
    if u in state.graph.required:
        return True
    if any([g is not None and m != n and u in g.reads for m, g in groups.items()]):
        return True
    return any([m != n and m not in groups for m in state.readers.get(u, ())])


def _lives(state: Merged, u: Var, n: int) -> bool:
    """Whether a value is in memory at step n whatever this reads."""
    if u in state.graph.required or u not in state.owner:
        return True
    return any([state.rank[m] >= state.rank[n] for m in state.readers.get(u, ())])
