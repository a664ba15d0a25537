"""Compiles a few hand-written kernels for one compute capability and prints what they use.

    python tests/kernels/compile_architectures.py 80

The plans are those that a backend on such a device would choose. Needs no GPU, and a process of its
own, because Triton is either interpreting or compiling.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from genesis_fn.compiler.target import OF_ARCHITECTURE, Target
from genesis_fn.kernels.attention.decode import decode_plan
from genesis_fn.kernels.attention.select import plan_attention, plan_attention_backward
from genesis_fn.kernels.attention.spec import AttentionSpec
from genesis_fn.kernels.indexing.scatter import ScatterRows, plan_scatter_rows
from genesis_fn.kernels.matmul.grouped import plan_grouped_matmul
from genesis_fn.kernels.matmul.matmul import Hooks, MatmulSpec, plan_matmul
from genesis_fn.kernels.matmul.ragged import RaggedSpec, plan_ragged_contraction, plan_ragged_dot
from genesis_fn.kernels.plan import Launch, Plan
from genesis_fn.kernels.rows.norm import Norm, plan_norm_forward
from genesis_fn.kernels.rows.scan import Scan, plan_scan
from genesis_fn.kernels.rows.softmax import Softmax, plan_softmax_forward
from genesis_fn.kernels.sort.sort import Sort, plan_sort
from genesis_fn.kernels.sort.top_k import TopK, plan_top_k
from tests.kernels.compile_only import compile_plan


def plans(target: Target) -> dict[str, Plan]:
    """One plan of each family, as chosen for the GPU."""
    attention = AttentionSpec(2, 8, 4, 1024, 1024, 128, causal=True)
    fp32 = {"lhs_dtype": "fp32", "rhs_dtype": "fp32", "out_dtype": "fp32"}
    products = {
        "bf16": MatmulSpec(4096, 4096, 4096),
        "tf32, k not contiguous": MatmulSpec(1024, 1024, 1024, **fp32),
        "few rows": MatmulSpec(32, 4096, 1024, rhs_transposed=True),
        "few rows, gated": MatmulSpec(
            32, 3072, 1024, rhs_transposed=True, gated=True, hooks=Hooks("acc = acc * acc1")
        ),
        "few rows, float32": MatmulSpec(8, 4096, 1024, rhs_transposed=True, **fp32),
    }
    if target.float8:
        float8 = {"lhs_dtype": "fp8e4nv", "rhs_dtype": "fp8e4nv", "rhs_transposed": True}
        products["float8"] = MatmulSpec(1024, 1024, 1024, **float8)
    chosen = {name: plan_matmul(spec, target) for name, spec in products.items()}
    chosen["few rows, several matrices"] = plan_grouped_matmul(
        [MatmulSpec(8, n, 1024, rhs_transposed=True) for n in (2048, 1024, 1024)], target
    )
    experts = RaggedSpec(4096, 1024, 768, 16, rhs_transposed=True)
    chosen["ragged dot"] = plan_ragged_dot(experts, target)
    chosen["ragged dot, few rows"] = plan_ragged_dot(replace(experts, rows=64), target)
    chosen["ragged contraction"] = plan_ragged_contraction(experts, target)
    for dtype in ("fp32", "fp64"):
        wide = replace(experts, lhs_dtype=dtype, rhs_dtype=dtype, out_dtype=dtype)
        chosen[f"ragged dot, {dtype}"] = plan_ragged_dot(wide, target)
        chosen[f"ragged contraction, {dtype}"] = plan_ragged_contraction(wide, target)
    for deterministic in (True, False):
        sums = ScatterRows(4096, 64, 1 << 12, "fp32", deterministic=deterministic)
        chosen[f"segment sum, {deterministic=}"] = plan_scatter_rows(sums, target)
    chosen["sort"] = plan_sort(Sort(1, 1 << 16, ("fp32", "i32")), target)
    chosen["top k"] = plan_top_k(TopK(64, 151936, 50, "bf16"), target)
    chosen["norm"] = plan_norm_forward(Norm(4096, 1024, "bf16", 1e-6, "bf16"), target)
    chosen["softmax"] = plan_softmax_forward(Softmax(4096, 4096, "bf16"), target)
    chosen["scan"] = plan_scan(Scan(64, 4096, 1, "fp32"), target)
    chosen["attention"] = plan_attention(attention, target)
    cached = AttentionSpec(target.processors, 16, 8, 1, 2048, 128, kv_lengths=True)
    for name, batch in (("one split", cached.batch), ("splits", 1)):
        chosen[f"attention, {name}"] = decode_plan(replace(cached, batch=batch), target)
    grouped = replace(cached, q_heads=64, return_lse=False)
    chosen["attention, tensor cores"] = decode_plan(grouped, target)
    chosen["attention backward"] = plan_attention_backward(attention, target)
    packed = replace(attention, segments="shared")
    chosen["attention in segments"] = plan_attention(packed, target)
    chosen["attention in segments, backward"] = plan_attention_backward(packed, target)
    return chosen


def first_of_each(plan: Plan) -> Plan:
    """The plan without launches of a kernel that an earlier one has."""
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    kept = {step.kernel.__name__: step for step in reversed(launches)}
    return Plan(plan.inputs, plan.outputs, tuple(kept.values()), plan.workspaces)


if __name__ == "__main__":
    gpu = OF_ARCHITECTURE[int(sys.argv[1])]
    used = {name: compile_plan(first_of_each(plan), gpu) for name, plan in plans(gpu).items()}
    print(json.dumps(used))
