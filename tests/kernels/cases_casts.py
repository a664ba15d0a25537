"""`cast` between every two element types, which Triton has no conversion for in each case."""

from __future__ import annotations

from genesis_fn.kernels.language.element_types import ITEMSIZE, TRITON_NAMES
from genesis_fn.kernels.language.source import kernel_from_source
from genesis_fn.kernels.matmul.source import kernel_text
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import PlanBuilder


def cases() -> dict[str, Plan]:
    """One kernel for each type, which stores its elements as every other one."""
    return {dtype: casts_plan(dtype) for dtype in ITEMSIZE}


def casts_plan(dtype: str) -> Plan:
    """Casts 64 elements of a type to all types."""
    targets = list(ITEMSIZE)
    builder = PlanBuilder(1, len(targets))
    lines = ["at = tl.arange(0, 64)", "value = tl.load(x + at)"]
    for target in targets:
        lines.append(f"tl.store(to_{target} + at, cast(value, tl.{TRITON_NAMES[target]}))")
    names = ["x", *(f"to_{target}" for target in targets)]
    buffers = {
        name: BufferArg(i, kind)
        for i, (name, kind) in enumerate(zip(names, [dtype, *targets], strict=True))
    }
    kernel = kernel_from_source(kernel_text("casts", names, lines))
    builder.launch(kernel, (1,), buffers, {}, num_warps=1)
    return builder.build()
