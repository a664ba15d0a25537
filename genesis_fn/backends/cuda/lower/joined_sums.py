"""Sums by segment that are added to each other become one sum of all their updates.

A table that is looked up at several places, as one of words whose neighbours and other words are
read, or one that is tied to another, has a sum by segment for each place as its gradient. Each of
them fills a table with zeros and sorts its ids, and their addition reads all of those tables.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from genesis_fn.backends.cuda.lower.fused_sums import takes_updates
from genesis_fn.backends.cuda.lowerings.indexing import scatter_of
from genesis_fn.compiler.fusion.sum_fusion import could_compute
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.rewrites.row_sums import appended
from genesis_fn.compiler.simplify.rewriter import use_counts
from genesis_fn.compiler.target import Target
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.kernels.indexing.scatter import MOST_UPDATES
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.indexing.constants import constant_p
from genesis_fn.primitives.indexing.scatter import segment_sum_p
from genesis_fn.primitives.shape import concatenate_p, reshape_p

_SUMS = (ew.add.prim, ew.add_n.prim)
_SORT = 3  # what a sort of few ids takes, a chain of launches, in starts of a kernel


def joined_sums(jaxpr: Jaxpr, target: Target) -> Jaxpr:
    """`jaxpr` with one sum by segment in the place of several that are added, where it is cheaper.

    The result is as exact as before: floats of 32 bits and more are added as often, 16-bit floats
    in float32 and rounded once. Sums by segment begin at 0, so that no sum is -0 before or after.
    """
    if not enabled("sums") or sum([e.prim is segment_sum_p for e in jaxpr.eqns]) < 2:
        return jaxpr
    joining = _Joining(jaxpr, target)
    for e in jaxpr.eqns:
        if e.prim not in _SUMS or not joining.take(e):
            joining.append(e)
    if not joining.gone:
        return jaxpr
    eqns = [e for e in joining.eqns if joining.gone.isdisjoint(e.outs)]
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


class _Joining:
    """The equations so far, what makes each value, and the values that nothing reads any more."""

    def __init__(self, jaxpr: Jaxpr, target: Target) -> None:
        self.target = target
        self.uses = use_counts(jaxpr.eqns, jaxpr.outs)
        self.eqns: list[Eqn] = []
        self.producer: dict[Any, Eqn] = {o: e for e in jaxpr.eqns for o in e.outs}
        self.gone: set[Var] = set()
        self.flat: dict[Var, Var] = {}  # ids as vectors, by what they were before
        self.ids: dict[tuple[Var, ...], Var] = {}  # several of these, so that their sort is shared
        # The sorts of sums that stay what they are, whatever is joined.
        taken = {
            id(self._member(e.ins[n]))
            for e in jaxpr.eqns
            if e.prim in _SUMS
            for at in self._joinable(e)
            for n in at
        }
        kept = [e for e in jaxpr.eqns if e.prim is segment_sum_p and id(e) not in taken]
        self.sorted = {self._sort_of(e) for e in kept}

    def append(self, e: Eqn) -> None:
        """Add an equation."""
        self.eqns.append(e)
        self.producer.update(dict.fromkeys(e.outs, e))

    def take(self, e: Eqn) -> bool:
        """Add an addition as one of fewer terms, if sums by segment among them can be joined."""
        joined = [at for at in self._joinable(e) if self._pays(e, at)]
        if not joined:
            return False
        terms: dict[int, Any] = dict(enumerate(e.ins))
        for at in joined:
            last = len(at) == len(terms)
            terms[at[0]] = self._joined(e, [e.ins[n] for n in at], e.outs[0] if last else None)
            for n in at[1:]:
                del terms[n]
        if len(terms) > 1:
            self.append(e.replace(ins=[*terms.values()]))
        return True

    def _joinable(self, e: Eqn) -> list[list[int]]:
        """The terms of an addition that are sums of one kind, by number."""
        found: dict[tuple[Any, ...], list[int]] = {}
        for n, v in enumerate(e.ins):
            if (below := self._sum_below(v)) is not None:
                found.setdefault(_kind(below[0]), []).append(n)
        return [at for at in found.values() if len(at) > 1]

    def _sum_below(self, v: Any) -> tuple[Eqn, list[Var]] | None:
        """(the sum that `v` is a reshape of, the values between that nothing else reads)."""
        path: list[Var] = []
        while type(v) is Var and self.uses.get(v) == 1 and v in self.producer:
            path.append(v)
            e = self.producer[v]
            if e.prim is not reshape_p:
                return (e, path) if e.prim is segment_sum_p and self._is_plain(e) else None
            (v,) = e.ins
        return None

    def _is_plain(self, e: Eqn) -> bool:
        """Whether a sum costs no less than a joined one for a reason that this one would lack."""
        data, ids = e.ins
        if type(data) is not Var or type(ids) is not Var or e.params["mode"] == "check":
            return False
        if data.aval.dtype == dtypes.BOOL or dtypes.is_unsigned(ids.aval.dtype):
            return False
        if 0 in (data.aval.size, ids.aval.size, e.outs[0].aval.size):
            return False
        # Of ids that are known, in order or apart nothing is sorted.
        if e.params["unique_indices"] or e.params["indices_are_sorted"]:
            return False
        source = self.producer.get(self._source(ids))
        return source is None or source.prim is not constant_p

    def _source(self, v: Var) -> Var:
        """What a reshaped array was before."""
        while v in self.producer and self.producer[v].prim is reshape_p:
            (v,) = self.producer[v].ins
        return v

    def _sort_of(self, e: Eqn) -> tuple[Any, ...]:
        """What sums that share a sort have in common."""
        ids, params = e.ins[1], e.params
        source = self._source(ids) if type(ids) is Var else ids
        return source, params["num_segments"], params["mode"] == "clip"

    def _pays(self, e: Eqn, at: Sequence[int]) -> bool:
        """Whether one sum in the place of several moves less."""
        sums = [self._member(e.ins[n]) for n in at]
        if sum([s.ins[1].aval.size for s in sums]) > MOST_UPDATES:
            return False
        # All but one table are neither filled nor read. The joined ids are a sort of their own.
        first = sums[0]
        saved = 2 * first.outs[0].aval.nbytes * (len(sums) - 1)
        if scatter_of(first.prim, [i.aval for i in first.ins], first.params).sorts:
            sorts = {self._sort_of(s) for s in sums}
            more = 1 - len(sorts - self.sorted)
            if len(sorts) == 1 and sorts <= self.sorted:
                more = 0
            saved -= _SORT * more * self.target.launch_bytes
        if saved < 0:
            return False
        data = [s.ins[0] for s in sums]
        computed = all([takes_updates(s) for s in sums])
        if computed and could_compute(data, self.producer):
            return True
        # What the kernel of the sum does not compute is written, and read.
        return saved >= 2 * sum([x.aval.nbytes for x in data])

    def _member(self, v: Any) -> Eqn:
        found = self._sum_below(v)
        assert found is not None
        return found[0]

    def _joined(self, e: Eqn, terms: Sequence[Any], out: Var | None) -> Var:
        """Add one sum for several, in the place of `e`: its result, which is `out` if given."""
        members = [found for v in terms if (found := self._sum_below(v)) is not None]
        for _, path in members:
            self.gone.update(path)
        sums = [s for s, _ in members]
        first, shape = sums[0], e.outs[0].aval.shape
        make = functools.partial(self._made, e)
        sources: list[Var] = []
        updates: list[Var] = []
        for s in sums:
            data, ids = s.ins
            source, count = self._source(ids), ids.aval.size
            if source not in self.flat:
                self.flat[source] = (
                    ids if ids.aval.ndim == 1 else make(reshape_p, ids, shape=(count,))
                )
            row = first.outs[0].aval.shape[1:]
            if data.aval.shape != (count, *row):
                data = make(reshape_p, data, shape=(count, *row))
            # 16-bit floats would be rounded before they are added.
            if source in sources and data.aval.dtype not in dtypes.NARROW:
                n = sources.index(source)
                updates[n] = make(ew.add.prim, updates[n], data)
            else:
                sources.append(source)
                updates.append(data)
        all_updates = (
            updates[0] if len(updates) == 1 else make(concatenate_p, *updates, dimension=0)
        )
        all_ids = self._joined_ids(e, tuple(sources))
        result = make(segment_sum_p, all_updates, all_ids, **first.params)
        if result.aval.shape != shape:
            self.uses[result] = 1
            result = make(reshape_p, result, shape=shape)
        if out is None:
            self.uses[result] = 1
            return result
        # The last equation gives the result of the addition.
        self.append(self.eqns.pop().replace(outs=(out,)))
        return out

    def _joined_ids(self, e: Eqn, sources: tuple[Var, ...]) -> Var:
        """The ids of several sums, one behind the other."""
        ids = [self.flat[s] for s in sources]
        if len(ids) == 1:
            return ids[0]
        if sources not in self.ids:
            wide = any([i.aval.dtype.itemsize == 8 for i in ids])
            kind = dtypes.I64 if wide else dtypes.I32
            make = functools.partial(self._made, e)
            ids = [i if i.aval.dtype == kind else make(ew.convert_p, i, dtype=kind) for i in ids]
            self.ids[sources] = make(concatenate_p, *ids, dimension=0)
        return self.ids[sources]

    def _made(self, e: Eqn, prim: Any, *ins: Var, **params: Any) -> Var:
        """The result of a new equation in the place of `e`."""
        out = appended(self.eqns, e, prim, *ins, **params)
        self.producer[out] = self.eqns[-1]
        return out


def _kind(e: Eqn) -> tuple[Any, ...]:
    """What sums that can be joined have in common."""
    params = e.params
    out = e.outs[0].aval
    return out.shape, out.dtype, params["mode"] == "clip", params["deterministic"]
