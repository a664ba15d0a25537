"""Updates of sums by segment that the kernel of the sum computes: elementwise, of rows that are
gathered.

A message along each edge of a graph is a row of a table times a number. Written to memory and read
again, messages take longer than the gather and the sum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from genesis_fn.compiler.fusion.value_graph import kind_of
from genesis_fn.compiler.loop_ir.domains import IterationDomain, iteration_domain, parallel_index
from genesis_fn.compiler.loop_ir.kernel import Instr, KernelIR
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.primitives.indexing.gather import take_rows_p

# A walk over sorted rows has eight updates in its text, whose loads are in registers at once.
_MAX_INSTRUCTIONS = 48
_MAX_READS = 6


@dataclass(slots=True)
class FusedSum:
    """`eqn`, a sum whose first operand is what `updates` computes; of the values that those load,
    `gathers` are rows of tables, which it reads there. `checks` are those whose indices are to be
    checked: the sum, and the gathers that nothing else makes."""

    eqn: Eqn
    updates: KernelIR
    gathers: dict[Var, Eqn]
    checks: list[Eqn]

    @classmethod
    def of(cls, e: Eqn, updates: KernelIR) -> FusedSum:
        """A sum of these updates, which gathers nothing yet."""
        return cls(e, updates, {}, [e] if e.params.get("mode") == "check" else [])


def is_row_gather(e: Eqn | None) -> bool:
    """Whether an equation is a gather of rows that the kernel of a sum can do."""
    if e is None or e.prim is not take_rows_p:
        return False
    table, indices = e.ins
    if type(table) is not Var or type(indices) is not Var or not e.outs[0].aval.size:
        return False
    return table.aval.dtype != dtypes.BOOL and not dtypes.is_unsigned(indices.aval.dtype)


def is_repeated(e: Eqn) -> bool:
    """Whether a sum repeats a gather of rows whose result others read: its table is much smaller
    than that."""
    return 2 * e.ins[0].aval.nbytes <= e.outs[0].aval.nbytes


def fits_updates(kernel: KernelIR, domain: IterationDomain, data: Var) -> bool:
    """Whether a kernel computes the updates `data` element for element, and is short enough."""
    if domain.reduced > 1 or domain.size != data.aval.size or kernel.counters or kernel.starts:
        return False
    if len(kernel.stores) != 1 or len(kernel.instrs) > _MAX_INSTRUCTIONS:
        return False
    ((target, offset, _),) = kernel.stores
    return target is data and offset == domain.position() and len(kernel.loads) <= _MAX_READS


def could_compute(data: Collection[Var], producer: Mapping[Var, Eqn]) -> bool:
    """Whether a sum of all `data` would compute it, however much of that is stored: few values and
    few steps lie below."""
    seen, todo, reads, steps = {*data}, [*data], 0, 0
    while todo:
        v = todo.pop()
        e = producer.get(v)
        kind = "opaque" if e is None else kind_of(e)
        if e is None or kind not in ("map", "view"):
            reads += 1
            continue
        steps += kind == "map"
        new = [i for i in e.ins if type(i) is Var and i not in seen]
        seen.update(new)
        todo += new
    # Of each of several arrays an element is read under a condition, which is a step as well.
    return reads <= _MAX_READS and 2 * len(data) + reads + steps <= _MAX_INSTRUCTIONS


def loading(v: Var) -> KernelIR:
    """The kernel of updates that are what is loaded of `v`."""
    domain = iteration_domain(v.aval.shape)
    kernel = KernelIR({}, (), domain, (v,), 1, ())
    here = parallel_index(v.aval.size)
    kernel.instrs = [Instr("load", (), (v, here, frozenset()), v.aval.dtype, here.names, 0)]
    kernel.stores = [(v, here, 0)]
    return kernel
