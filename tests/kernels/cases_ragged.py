"""Products by groups of rows whose registers, spills and shared memory are held to ceilings."""

from __future__ import annotations

from genesis_fn.compiler.target import H200
from genesis_fn.kernels.matmul.ragged import RaggedSpec, plan_ragged_contraction, plan_ragged_dot
from genesis_fn.kernels.plan import Plan


def cases() -> dict[str, Plan]:
    """Plans by name: the default configuration of one product of each kind."""
    up = RaggedSpec(32768, 2048, 768, 128, rhs_transposed=True)
    single = {"lhs_dtype": "fp32", "rhs_dtype": "fp32", "out_dtype": "fp32"}
    double = {"lhs_dtype": "fp64", "rhs_dtype": "fp64", "out_dtype": "fp64"}
    plans = {}
    for name, spec in {
        "bf16, weights [n, k]": up,
        "bf16, weights [k, n]": RaggedSpec(32768, 768, 2048, 128),
        "bf16, few rows": RaggedSpec(64, 2048, 768, 128, rhs_transposed=True),
        "bf16, 32 rows each": RaggedSpec(4096, 2048, 768, 128, rhs_transposed=True),
        "bf16, odd sizes": RaggedSpec(4095, 1001, 767, 8),
        "fp32": RaggedSpec(8192, 1024, 1024, 8, **single),
        "fp32 tf32x3": RaggedSpec(8192, 1024, 1024, 8, **single, precision="tf32x3"),
        "fp32 ieee": RaggedSpec(8192, 1024, 1024, 8, **single, precision="ieee"),
        "fp64": RaggedSpec(8192, 1024, 1024, 8, **double),
        "mixed": RaggedSpec(8192, 1024, 1024, 8, 1, "fp32", "bf16", "bf16"),
        "of a batch": RaggedSpec(2048, 512, 1024, 8, 4, rhs_shared=True),
    }.items():
        plans[f"dot, {name}"] = plan_ragged_dot(spec, H200)
    for name, spec in {
        "bf16": RaggedSpec(32768, 768, 2048, 128),
        "bf16, float32 sums": RaggedSpec(32768, 768, 2048, 128, out_dtype="fp32"),
        "bf16, odd sizes": RaggedSpec(4095, 1001, 767, 8),
        "fp32": RaggedSpec(8192, 1024, 1024, 8, **single),
        "fp64": RaggedSpec(8192, 1024, 1024, 8, **double),
    }.items():
        plans[f"contraction, {name}"] = plan_ragged_contraction(spec, H200)
    return plans
