"""Row, scan, sort, scatter, convolution and window kernels, as training and inference use them."""

from __future__ import annotations

import genesis_fn as g
from genesis_fn import lax
from genesis_fn.compiler.target import H200
from genesis_fn.core import dtypes
from genesis_fn.kernels.indexing.concat import Concatenate, plan_concatenate
from genesis_fn.kernels.indexing.scatter import (
    GatherRows,
    ScatterRows,
    plan_gather_rows,
    plan_scatter_rows,
)
from genesis_fn.kernels.language.dtypes import NAMES
from genesis_fn.kernels.plan import Launch, Plan
from genesis_fn.kernels.random import RandomBits, plan_random_bits
from genesis_fn.kernels.rows.cross_entropy import (
    CrossEntropy,
    plan_cross_entropy_backward,
    plan_cross_entropy_forward,
)
from genesis_fn.kernels.rows.linear_cross_entropy import (
    LinearCrossEntropy,
    plan_linear_cross_entropy,
)
from genesis_fn.kernels.rows.norm import Norm, plan_norm_backward, plan_norm_forward
from genesis_fn.kernels.rows.scan import Scan, plan_scan
from genesis_fn.kernels.rows.softmax import Softmax, plan_softmax_backward, plan_softmax_forward
from genesis_fn.kernels.sort.sort import Sort, plan_sort
from genesis_fn.kernels.sort.top_k import TopK, plan_top_k
from tests.kernels.planned import plans_of


def cases() -> dict[str, Plan]:
    """One plan for each kernel and each branch of it that compiles differently."""
    plans: dict[str, Plan] = {}
    for spec in (
        Norm(16384, 1024, "bf16", 1e-6, "fp32"),
        Norm(4096, 8192, "bf16", 1e-5, "fp32", "fp32"),
        Norm(64, 50000, "bf16", 1e-5, "fp32", "fp32"),
        Norm(64, 500, "fp64", 1e-5, "fp64", "fp64"),
    ):
        name = f"{'layer' if spec.centered else 'rms'} norm {spec.columns} {spec.dtype}"
        plans[name] = plan_norm_forward(spec, H200)
        plans[f"{name} backward"] = plan_norm_backward(spec, H200)
    for spec in (
        Softmax(8192, 8192, "fp32"),
        Softmax(8192, 16384, "bf16", "log_softmax"),
        Softmax(64, 151936, "bf16"),
        Softmax(64, 151936, "bf16", "logsumexp"),
    ):
        name = f"{spec.kind} {spec.columns} {spec.dtype}"
        plans[name] = plan_softmax_forward(spec, H200)
        plans[f"{name} backward"] = plan_softmax_backward(spec, H200)
    options = {"ignore_index": -100, "label_smoothing": 0.1, "z_loss": 1e-4, "site": 1}
    for spec in (
        CrossEntropy(16384, 151936, "bf16"),
        CrossEntropy(16384, 151936, "bf16", soft_cap=30.0, **options),
        CrossEntropy(16384, 16384, "bf16", soft_cap=30.0, **options),
    ):
        name = f"cross-entropy {spec.classes}{' all options' if spec.site else ''}"
        plans[name] = plan_cross_entropy_forward(spec, H200)
        plans[f"{name} backward"] = plan_cross_entropy_backward(spec, H200)
    linear = LinearCrossEntropy(CrossEntropy(8192, 151936, "bf16", ignore_index=-100), 1024)
    plan = plan_linear_cross_entropy(linear, H200)
    # One row kernel: the products have ceilings of their own.
    kept = [
        step
        for step in plan.steps
        if isinstance(step, Launch) and step.kernel.__name__ == "cross_entropy_looped_kernel"
    ]
    plans["linear cross-entropy"] = Plan(plan.inputs, plan.outputs, tuple(kept[:1]))
    for classes in (151936, 1000):
        loss = CrossEntropy(4096, classes, "bf16", class_weights=True, soft_cap=30.0, **options)
        linear = LinearCrossEntropy(loss, 1024, "sum", row_weights=True)
        plan = plan_linear_cross_entropy(linear, H200)
        kept = [
            step
            for step in plan.steps
            if isinstance(step, Launch) and "matmul" not in step.kernel.__name__
        ]
        plans[f"linear cross-entropy weighted {classes}"] = Plan(
            plan.inputs, plan.outputs, tuple(kept)
        )

    plans["random bits"] = plan_random_bits(RandomBits(1, 1 << 24), H200)
    plans["cumsum"] = plan_scan(Scan(1, 1 << 24, 1, "fp32"), H200)
    plans["cummax rows"] = plan_scan(Scan(4096, 4096, 1, "fp32", "max", True), H200)
    plans["cumlogsumexp middle"] = plan_scan(Scan(16, 4096, 512, "fp32", "logaddexp"), H200)
    plans["sort long"] = _once(plan_sort(Sort(1, 1 << 22, ("fp32", "bf16")), H200))
    plans["sort long i64"] = _once(plan_sort(Sort(1, 1 << 22, ("i64",)), H200))
    plans["sort short"] = plan_sort(Sort(4096, 1024, ("fp32", "i32")), H200)
    plans["sort bf16"] = plan_sort(Sort(4096, 512, ("bf16",)), H200)
    plans["top k"] = plan_top_k(TopK(8, 151936, 50, "fp32"), H200)
    plans["top k of many rows"] = _once(plan_top_k(TopK(64, 151936, 50, "bf16"), H200))
    plans["gather"] = plan_gather_rows(GatherRows(151936, 1024, 16384, "bf16", site=1), H200)
    plans["embedding gradient"] = plan_scatter_rows(ScatterRows(151936, 1024, 2048, "fp32"), H200)
    # Once what every pass and level repeats.
    plans["segment sum"] = _once(plan_scatter_rows(ScatterRows(1 << 18, 64, 1 << 21, "fp32"), H200))
    plans["bincount"] = _once(plan_scatter_rows(ScatterRows(1 << 9, 1, 1 << 20, "bf16"), H200))
    plans["exact sums"] = plan_scatter_rows(ScatterRows(1 << 18, 1, 1 << 24, "fp32"), H200)
    plans["segment sum by atomics"] = plan_scatter_rows(
        ScatterRows(1 << 18, 64, 1 << 21, "bf16", deterministic=False), H200
    )
    plans["scatter max"] = plan_scatter_rows(
        ScatterRows(1000, 64, 1000, "bf16", "max", "operand", site=1), H200
    )
    plans["scatter unique"] = plan_scatter_rows(
        ScatterRows(1000, 64, 1000, "bf16", "set", "operand", unique=True), H200
    )
    for axis in (0, 1):
        spec = Concatenate(((4096, 4096),) * 3, axis, "fp32")
        plans[f"concatenate axis {axis}"] = plan_concatenate(spec, H200)
    plans["concatenate narrow"] = plan_concatenate(
        Concatenate(((4096, 3), (4096, 2)), 1, "fp32"), H200
    )
    for dtype in (dtypes.BF16, dtypes.F32):

        def convolution(x, w):
            layouts = ("NHWC", "HWIO", "NHWC")
            padding = ((1, 1), (1, 1))
            return lax.conv_general_dilated(x, w, (2, 2), padding, dimension_numbers=layouts)

        def gradients(x, w):
            return g.vjp(convolution, x, w)[1](convolution(x, w))

        kinds = [((32, 56, 56, 64), dtype), ((3, 3, 64, 128), dtype)]
        names = ("", " kernel gradient", " input gradient")
        found = plans_of("conv_general_dilated", gradients, kinds, H200)
        for name, plan in zip(names, found, strict=True):
            plans[f"convolution {NAMES[dtype]}{name}"] = plan
    return plans


def _once(plan: Plan) -> Plan:
    """The plan without launches of a kernel that an earlier one already compiles."""
    steps, seen = [], set()
    for step in plan.steps:
        if isinstance(step, Launch):
            key = (step.kernel.__name__, *map(str, step.constants.items()))
            if key not in seen:
                seen.add(key)
                steps.append(step)
    return Plan(plan.inputs, plan.outputs, tuple(steps), plan.workspaces)
