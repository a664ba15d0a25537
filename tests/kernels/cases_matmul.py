"""Matrix products whose registers, spills and shared memory are held to recorded ceilings."""

from __future__ import annotations

from dataclasses import replace

from genesis_fn.compiler.target import H200
from genesis_fn.kernels.matmul.grouped import plan_grouped_matmul
from genesis_fn.kernels.matmul.matmul import Hooks, MatmulConfig, MatmulSpec, plan_matmul
from genesis_fn.kernels.matmul.spec import Segment
from genesis_fn.kernels.plan import Plan


def cases() -> dict[str, Plan]:
    """Plans by name: the default configuration of one product of each kind."""
    square = {"m": 4096, "n": 4096, "k": 4096}
    swiglu = {"gated": True, "hooks": Hooks("acc = acc * logistic(acc) * acc1")}
    specs = {
        f"bf16 {'T' if a else 'N'}{'T' if b else 'N'}": {
            **square,
            "lhs_transposed": a,
            "rhs_transposed": b,
        }
        for a in (False, True)
        for b in (False, True)
    }
    for dtype, out in [("fp32", "fp32"), ("fp64", "fp64"), ("fp8e4nv", "bf16"), ("i8", "i32")]:
        fields = {"lhs_dtype": dtype, "rhs_dtype": dtype, "out_dtype": out}
        specs[f"{dtype} NT"] = {**square, **fields, "rhs_transposed": True}
    for dtypes in [("fp8e4nv", "fp8e5", "fp64"), ("fp64", "fp8e5", "fp8e4nv")]:
        fields = dict(zip(("lhs_dtype", "rhs_dtype", "out_dtype"), dtypes, strict=True))
        specs[" ".join(dtypes)] = {"m": 128, "n": 128, "k": 64, **fields}
    fp32 = {"lhs_dtype": "fp32", "rhs_dtype": "fp32", "out_dtype": "fp32"}
    specs |= {
        "fp32 tf32x3": {**square, **fp32, "precision": "tf32x3"},
        "fp32 NN": {**square, **fp32},
        "fp32 ieee": {**square, **fp32, "precision": "ieee"},
        "i32": {**square, "lhs_dtype": "i32", "rhs_dtype": "i32", "out_dtype": "i32"},
        "batched": {**square, "batch": (8,)},
        "odd sizes": {"m": 4097, "n": 4095, "k": 4093},
        "64-bit offsets": {"m": 16384, "n": 151937, "k": 1024},
        "residual": {**square, "residual": "bf16"},
        "weight gradient, split": {"m": 1024, "n": 3072, "k": 16384, "lhs_transposed": True},
        "accumulating": {**square, "out_dtype": "fp32", "accumulate": True},
        "one row": {"m": 1, "n": 4096, "k": 1024, "rhs_transposed": True},
        "eight rows": {"m": 8, "n": 4096, "k": 1024, "rhs_transposed": True},
        "one row, gated": {"m": 1, "n": 3072, "k": 1024, "rhs_transposed": True, **swiglu},
        "32 rows": {"m": 32, "n": 4096, "k": 1024, "rhs_transposed": True},
        "32 rows, gated": {"m": 32, "n": 3072, "k": 1024, "rhs_transposed": True, **swiglu},
        "16 rows, split": {"m": 16, "n": 1024, "k": 3072, "rhs_transposed": True},
    }
    plans = {name: plan_matmul(MatmulSpec(**fields), H200) for name, fields in specs.items()}
    float8 = {"lhs_dtype": "fp8e4nv", "rhs_dtype": "fp8e4nv", "rhs_transposed": True}
    deep = MatmulConfig("tma", 128, 128, 256, 8, 3)
    plans["fp8e4nv deep tiles"] = plan_matmul(MatmulSpec(**square, **float8), H200, deep)
    hooks = Hooks(
        setup="scale = tl.load(rms + rm)",
        lhs="a = up(tl.load(x + rm * 1024 + rk_row)) * scale",
        inputs=(("rms", "fp32"), ("x", "bf16")),
    )
    plans["norm as prologue"] = plan_matmul(MatmulSpec(m=1, n=4096, k=1024, hooks=hooks), H200)
    layer = [(1024, 2048), (1024, 1024), (2048, 1024), (1024, 3072), (3072, 1024)]
    plans["grouped weight gradients"] = plan_grouped_matmul(
        [MatmulSpec(m=m, n=n, k=16384, lhs_transposed=True) for m, n in layer], H200
    )
    plans["8 rows times queries, keys and values"] = plan_grouped_matmul(
        [MatmulSpec(m=8, n=n, k=1024, rhs_transposed=True) for n in (2048, 1024, 1024)], H200
    )
    # Beside a kernel that takes processors.
    for name in ("bf16 NT", "grouped weight gradients"):
        steps = tuple([step.in_rounds() for step in plans[name].steps])
        plans[f"{name}, in rounds"] = replace(plans[name], steps=steps)
    # The backward pass of silu(gate) * up, done to the tiles of the product that it needs.
    lines = """p = rm * 3072 + rn
g = up(tl.load(gate + p, inside, other=0.0))
u = up(tl.load(second + p, inside, other=0.0))
s = logistic(g)
d = up(narrow(acc, tl.bfloat16))
tl.store(dup + p, narrow(d * g * s, tl.bfloat16), inside)
tl.store(dgate + p, narrow(d * u * (s + g * s * (1 - s)), tl.bfloat16), inside)
acc = g * s * u"""
    gated = Hooks(
        epilogue=lines,
        inputs=(("gate", "bf16"), ("second", "bf16")),
        outputs=(("dup", "bf16"), ("dgate", "bf16")),
    )
    plans["gated backward"] = plan_matmul(MatmulSpec(16384, 3072, 1024, hooks=gated), H200)
    # Low-rank adapters, forward, and the gradient of the wide one.
    plans["16384 rows, 8 columns"] = plan_matmul(
        MatmulSpec(16384, 8, 3072, rhs_transposed=True, hooks=Hooks(epilogue="acc = acc * 2.0")),
        H200,
    )
    plans["3072 rows, 8 columns"] = plan_matmul(
        MatmulSpec(3072, 8, 16384, lhs_transposed=True), H200
    )
    # The gradients of the inputs of gate and up, and of queries, keys and values.
    for name, depths in [("two segments", (3072, 3072)), ("three segments", (2048, 1024, 1024))]:
        more = tuple(Segment(k, (k, 1), (1024, 1)) for k in depths[1:])
        plans[name] = plan_matmul(MatmulSpec(16384, 1024, depths[0], segments=more), H200)
    return plans
