"""Integers that follow from their index alone, or from a loop's counter: known places in arrays."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping

from genesis_fn.compiler.loop_ir import lookups
from genesis_fn.compiler.loop_ir.domains import IterationDomain
from genesis_fn.compiler.loop_ir.kernel import Infeasible, KernelIR
from genesis_fn.core import dtypes
from genesis_fn.core.backend.index import Expr, Index
from genesis_fn.core.backend.lowering import Elementwise, Source, View
from genesis_fn.core.jaxpr import Eqn, Var

_MOST_STEPS = 64  # instructions of an index that is looked for


def by_index(e: Eqn, known: Collection[Var]) -> bool:
    """Whether the elements of an equation's results follow from their index alone, where those of
    the values `known` do."""
    ins = [i for i in e.ins if type(i) is Var]
    kind = type(e.prim.lowering)
    return kind is Source or (kind in (Elementwise, View) and all([i in known for i in ins]))


def is_exact(e: Eqn) -> bool:
    """Whether an equation gives integers or booleans only."""
    kinds = [v.aval.dtype for v in e.outs]
    return all([dtypes.is_integer(d) or d == dtypes.BOOL for d in kinds])


def known_place(producer: dict[Var, Eqn], v: Var, at: Index) -> Expr | None:
    """Element `at` of an integer value as an expression in that index, and in the counters of loops
    whose slices `producer` has; None if it is none."""
    kernel = KernelIR(producer, _Unknown(producer), IterationDomain(()), (), _MOST_STEPS, ())
    try:
        return lookups.known_index(kernel.instrs, kernel.at(v, at, frozenset()))
    except Infeasible:
        return None


class _Unknown(Container[Var]):
    """The values that no equation computes element by element."""

    def __init__(self, producer: Mapping[Var, Eqn]) -> None:
        self._producer = producer

    def __contains__(self, v: object) -> bool:
        e = self._producer.get(v) if type(v) is Var else None
        return e is None or type(e.prim.lowering) not in (Elementwise, View, Source)
