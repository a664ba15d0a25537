"""Plans of sums by segment that compute what they add.

Instructions of the fused kernel become lines of the kernels of `kernels/indexing`, at the number of
an update and a column. A gather that is fused as well reads its index and then the row there; the
check of its indices is a small kernel of its own, once for each index.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from genesis_fn.backends.cuda.codegen.kernel_text import add_elements
from genesis_fn.backends.cuda.codegen.loops import SITES, is_wide
from genesis_fn.backends.cuda.codegen.tiling import Tiling
from genesis_fn.backends.cuda.lower.fused_matmul import InlinedKernel
from genesis_fn.backends.cuda.lowerings.indexing import index_lines, ordered_sum_p, scatter_of
from genesis_fn.compiler.fusion.sum_fusion import FusedSum
from genesis_fn.compiler.target import Target
from genesis_fn.core import dtypes
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr, IndexGuard
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.kernels.indexing.computed_updates import ComputedUpdates
from genesis_fn.kernels.indexing.scatter import plan_scatter_rows
from genesis_fn.kernels.language.dtypes import NAMES
from genesis_fn.kernels.language.expressions import literal, loaded
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import PlanBuilder
from genesis_fn.primitives.indexing.gather import fill_value
from genesis_fn.primitives.indexing.scatter import segment_sum_p

_SECTOR = 32  # bytes that memory moves at least


def takes_updates(e: Eqn) -> bool:
    """Whether an equation is a sum by segment whose kernel computes what it adds, and should."""
    if e.prim not in (segment_sum_p, ordered_sum_p):
        return False
    data, ids = e.ins
    if type(data) is not Var or type(ids) is not Var:
        return False
    if 0 in (data.aval.size, ids.aval.size, e.outs[0].aval.size):
        return False
    if data.aval.dtype == dtypes.BOOL or data.aval.dtype.itemsize < 2:
        return False
    if dtypes.is_unsigned(ids.aval.dtype):
        return False
    # A list that is sorted is walked in the order of rows, in which what was beside each other in
    # memory is not; short updates are better sorted with their ids.
    spec = scatter_of(e.prim, (data.aval, ids.aval), e.params)
    scattered = spec.entries or spec.sorts
    return not scattered or spec.columns * data.aval.dtype.itemsize >= _SECTOR


def plan_fused_sum(fused: FusedSum, sites: Sequence[int], target: Target) -> tuple[Plan, list[Var]]:
    """(the plan of the sum, the values of its inputs). `sites` are those of its `checks`, for which
    the error word is one more output."""
    e = fused.eqn
    data, ids = e.ins
    spec = scatter_of(e.prim, (data.aval, ids.aval), e.params)
    text = _UpdatesText(fused, spec.columns)
    carried = text.carriable() if spec.sorts else None
    updates = text.updates(carried)
    operands = [ids, *text.inputs.values()]
    if carried is not None:
        operands.append(carried)
    checks = fused.checks
    builder = PlanBuilder(len(operands), 1 + bool(checks))
    out = BufferArg(len(operands), NAMES[e.outs[0].aval.dtype])
    for check, site in zip(checks, sites, strict=True):
        indices = check.ins[1]
        position = 0 if check is e else next(n for n, v in enumerate(operands) if v is indices)
        rows = e.params["num_segments"] if check is e else check.ins[0].aval.shape[0]
        bad = f"inside & ((v < 0) | (v >= {rows}))"
        add_elements(
            builder,
            "check_rows",
            {
                "x": BufferArg(position, NAMES[indices.aval.dtype]),
                "error": BufferArg(out.index + 1, "i64"),
            },
            indices.aval.size,
            [
                *index_lines("x", "i", indices.aval.dtype, "v"),
                f"flag_error(error, {bad}, v, {site * SITES})",
            ],
        )
    given = [BufferArg(n, NAMES[v.aval.dtype]) for n, v in enumerate(operands)]
    plan = plan_scatter_rows(replace(spec, updates=updates), target)
    builder.include(plan, [*given, out])
    return builder.build(), operands


class _UpdatesText(InlinedKernel):
    """The lines of `ComputedUpdates`. What does not depend on the column has one column."""

    def __init__(self, fused: FusedSum, columns: int) -> None:
        tiling = Tiling("tiled", (1, 1, 1), 1, 1, columns)
        super().__init__(fused.updates, "u", tiling, {})
        body, self.fused = fused.updates, fused
        self.rows = body.domain.size // columns
        self.tiled = ix.add(ix.scale(ix.var("i", self.rows), columns), ix.var("j", columns))
        self.carried: Var | None = None
        self.root = body.stores[0][2]
        self._gathers: dict[tuple[Eqn, str, frozenset[IndexGuard]], tuple[str, str]] = {}

    def carriable(self) -> Var | None:
        """The indices that all gathers have in common, if nothing else depends on the number of an
        update; else None."""
        found: set[Var] = set()
        for n in self.loops.instrs:
            guards = n.meta if n.op == "where" else n.meta[2] if n.op == "load" else ()
            used = {x for g in guards for x in self.untiled(g.expr).names}
            if n.op == "index":
                used |= self.untiled(n.meta).names
            elif n.op == "load":
                at, gather = self.untiled(n.meta[1]), self.fused.gathers.get(n.meta[0])
                if gather is not None:
                    columns = math.prod(gather.ins[0].aval.shape[1:])
                    if ix.div(at, columns) != ix.var("i", self.rows):
                        return None
                    found.add(gather.ins[1])
                    at = ix.mod(at, columns)
                used |= at.names
            if "i" in used:
                return None
        if len(found) != 1:
            return None
        (indices,) = found
        return indices if indices.aval.dtype.itemsize == 4 else None

    def updates(self, carried: Var | None) -> ComputedUpdates:
        """All lines, and the pointers that they use, with `carried` indices as `i`."""
        self.carried = carried
        self.wide_names()
        for n in range(len(self.loops.instrs)):
            self.emit(n)
        value = self.value[self.root]
        # Loads are 0 already where they are not wanted.
        if self.loops.instrs[self.root].op != "load" or "tl.where" in self.lines[-1]:
            value = f"tl.where(wanted, {value}, {literal(0, self.loops.instrs[self.root].dtype)})"
        self.line(f"value = {value}")
        types = tuple([(name, NAMES[v.aval.dtype]) for name, v in self.inputs.items()])
        kind = NAMES[carried.aval.dtype] if carried is not None else ""
        return ComputedUpdates(tuple(self.lines), types, kind)

    def mask(self, names: Collection[str], guards: Collection[IndexGuard] = ()) -> str:
        """The mask, with the axes of `names` only."""
        axes = "inside" if "j" in names else "wanted"
        return " & ".join([axes, *sorted([self.condition(g) for g in guards])])

    def get(
        self, target: Any, offset: Expr, names: Collection[str], guards: Collection[IndexGuard]
    ) -> str:
        """The text of a load, at the row that is gathered where the value is one of a table."""
        at = self.untiled(offset)
        used = at.names.union(*[self.untiled(g.expr).names for g in guards])
        gather = self.fused.gathers.get(target)
        if gather is not None:
            return self._gathered(gather, at, used, guards)
        if not used:
            return f"tl.load({self.pointer(target, False)} + {at.const})"
        zero = "0.0" if dtypes.is_float(target.aval.dtype) else "0"
        access = f"{self.pointer(target, False)} + ({self._text(at)})"
        return f"tl.load({access}, {self.mask(used, guards)}, other={zero})"

    def _text(self, at: Expr) -> str:
        """An offset; all loads of a row have its axis."""
        text = at.text("_wide" if is_wide(at) else "")
        return text if "i" in at.names else f"{text} + i * 0"

    def _gathered(
        self, gather: Eqn, at: Expr, used: frozenset[str], guards: Collection[IndexGuard]
    ) -> str:
        """The text of an element of a gather's result at offset `at`."""
        table, indices = gather.ins
        rows, columns = table.aval.shape[0], math.prod(table.aval.shape[1:])
        row, column = ix.div(at, columns), ix.mod(at, columns)
        fills = gather.params["mode"] == "fill"
        # Of several arrays that are joined each has its own part of the numbers of updates.
        held = frozenset([g for g in guards if self.untiled(g.expr).names <= row.names])
        key = gather, self._text(row), held
        if key not in self._gathers:
            name = f"row{len(self._gathers)}"
            if self.carried is None:
                pointer = self.pointer(indices, False)
                condition = self.mask(row.names, held)
                self.line(f"{name} = tl.load({pointer} + ({key[1]}), {condition}, other=0)")
            else:
                self.line(f"{name} = i")
            self.line(f"{name} = {name}.to(tl.int64)")
            self.line(f"{name}_fits = ({name} >= 0) & ({name} < {rows})")
            self.line(f"{name} = tl.minimum(tl.maximum({name}, 0), {rows - 1})")
            self._gathers[key] = name, f"{name}_fits"
        name, fits = self._gathers[key]
        names = used | row.names
        mask = self.mask(names, guards)
        kind = table.aval.dtype
        zero = "0.0" if dtypes.is_float(kind) else "0"
        address = f"{self.pointer(table, False)} + ({name} * {columns} + {column.text()})"
        if not fills:
            return f"tl.load({address}, {mask}, other={zero})"
        text = f"tl.load({address}, {mask} & {fits}, other={zero})"
        value = fill_value(gather.params["fill_value"], kind)
        if value == 0 and str(value)[0] != "-":
            return text
        # `literal` is a value in registers; the load is widened behind this.
        return f"tl.where({fits}, {loaded(text, kind)}, {literal(value, kind)})"
