"""Norm kernels against float64 formulas, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from genesis_fn.kernels.rows.norm import Norm, plan_norm_backward, plan_norm_forward
from tests.kernels.run import TARGET, run_plan

TORCH = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
}
TOLERANCE = {"fp32": 2e-5, "bf16": 2e-2, "fp16": 3e-3, "fp64": 1e-12}


def reference(spec: Norm, x, weight, bias):
    center = x - x.mean(-1, keepdim=True) if spec.centered else x
    y = center / torch.sqrt((center * center).mean(-1, keepdim=True) + spec.epsilon)
    return y * weight if bias is None else y * weight + bias


CASES = [
    Norm(5, 64, "fp32", 1e-6, "fp32"),
    Norm(3, 100, "bf16", 1e-6, "bf16"),
    Norm(70, 48, "fp32", 1e-5, "fp32", "fp32"),
    Norm(4, 33, "fp16", 1e-5, "fp32", "fp32"),
    Norm(2, 17, "fp64", 1e-5, "fp64", "fp64"),
    Norm(3, 1, "fp32", 1e-5, "fp32"),
    Norm(2, 17000, "fp32", 1e-5, "fp32", "fp32"),
    Norm(2, 16500, "bf16", 1e-5, "bf16"),
    Norm(3, 9000, "fp32", 1e-5, "fp32", "fp32"),
]


@pytest.mark.parametrize("spec", CASES, ids=str)
def test_forward_and_backward(spec):
    torch.manual_seed(0)
    x = (torch.randn(spec.rows, spec.columns) + 3).to(TORCH[spec.dtype])
    dy = torch.randn(spec.rows, spec.columns).to(TORCH[spec.dtype])
    parameters = [
        torch.randn(spec.columns).to(TORCH[d]) for d in (spec.weight_dtype, spec.bias_dtype) if d
    ]
    statistic = torch.float64 if spec.dtype == "fp64" else torch.float32
    y = torch.empty_like(x)
    statistics = [torch.empty(spec.rows, dtype=statistic) for _ in range(1 + spec.centered)]
    run_plan(plan_norm_forward(spec, TARGET), [x, *parameters], [y, *statistics])
    bare = torch.empty_like(x)
    plan = plan_norm_forward(replace(spec, statistics=False), TARGET)
    run_plan(plan, [x, *parameters], [bare])

    exact = [t.double().requires_grad_() for t in (x, *parameters)]
    expected = reference(spec, *exact[:2], exact[2] if spec.bias_dtype else None)
    tolerance = TOLERANCE[spec.dtype]
    for got in (y, bare):
        torch.testing.assert_close(got.double(), expected.detach(), rtol=tolerance, atol=tolerance)

    gradients = [torch.empty_like(t) for t in (x, *parameters)]
    saved = [x, parameters[0], *statistics]
    run_plan(plan_norm_backward(spec, TARGET), [dy, *saved], gradients)
    for got, want in zip(gradients, torch.autograd.grad(expected, exact, dy.double()), strict=True):
        scale = max(1.0, want.abs().max().item())
        torch.testing.assert_close(got.double() / scale, want / scale, rtol=0, atol=tolerance)


def test_many_rows_per_program_are_all_summed():
    spec = Norm(2200, 512, "fp32", 1e-6, "fp32")
    torch.manual_seed(1)
    x, dy, w = torch.randn(2200, 512), torch.randn(2200, 512), torch.ones(512)
    rstd = torch.rsqrt((x * x).mean(-1) + 1e-6)
    dx, dw = torch.empty_like(x), torch.empty(512)
    run_plan(plan_norm_backward(spec, TARGET), [dy, x, w, rstd], [dx, dw])
    want = (dy.double() * x.double() * rstd.double()[:, None]).sum(0)
    torch.testing.assert_close(dw.double(), want, rtol=1e-5, atol=1e-4)
