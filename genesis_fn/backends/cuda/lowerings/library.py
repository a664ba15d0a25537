"""Primitives that libraries compute."""

from __future__ import annotations

from collections.abc import Callable

from genesis_fn.backends.cuda import libraries
from genesis_fn.backends.cuda.codegen.kernel_text import add_elements
from genesis_fn.backends.cuda.lowerings.call import RULES, Call, Lowered
from genesis_fn.core import dtypes
from genesis_fn.core.primitive import Primitive
from genesis_fn.kernels.language.dtypes import MEMORY, NAMES
from genesis_fn.kernels.plan import BufferArg
from genesis_fn.kernels.plan_builder import PlanBuilder

LIBRARY_RULES: set[Callable[[Call], Lowered | None]] = set()
"""Rules of primitives that libraries compute."""


def lowers_by_library(prim: Primitive) -> Callable[[Callable[[Call], Lowered]], object]:
    """Decorator: the function lowers a primitive on operands that have elements; where there are no
    libraries the host computes."""

    def register(rule: Callable[[Call], Lowered]) -> object:
        def lower(call: Call) -> Lowered:
            if not all([a.size for a in call.operands]):
                return _of_no_elements(call)
            return rule(call) if libraries.usable(call.target) else call.host()

        RULES[prim] = lower
        LIBRARY_RULES.add(lower)
        return rule

    return register


def _of_no_elements(call: Call) -> Lowered:
    """Results for a matrix without rows or columns that have elements all the same: the vectors of
    a QR or singular value decomposition are the identity, and rows that LU permutes stay."""
    builder = PlanBuilder(len(call.operands), len(call.outs))
    for number, out in enumerate(call.outs):
        if not out.size:
            continue
        columns = out.shape[-1]
        if dtypes.is_integer(out.dtype):
            kind, value, parts = out.dtype, f"i % {columns}", 1
        else:
            kind, parts = dtypes.real_of(out.dtype), 1 + dtypes.is_complex(out.dtype)
            at = f"(i // {parts})"
            value = (
                f"({at} % {columns} == {at} // {columns} % {out.shape[-2]}) & (i % {parts} == 0)"
            )
        lines = [f"tl.store(y + i, ({value}).to({MEMORY[kind]}), inside)"]
        buffers = {"y": BufferArg(len(call.operands) + number, NAMES[kind])}
        add_elements(builder, "of_no_elements", buffers, parts * out.size, lines)
    return builder.build()
