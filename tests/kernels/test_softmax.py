"""Softmax kernels against float64 formulas, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from genesis_fn.kernels.rows.softmax import (
    KINDS,
    Softmax,
    plan_softmax_backward,
    plan_softmax_forward,
)
from tests.kernels.run import TARGET, run_plan

TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
TOLERANCE = {"fp32": 3e-6, "bf16": 2e-2, "fp64": 1e-13}
FUNCTIONS = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [(5, 40, "fp32"), (70, 128, "bf16"), (2, 7, "fp64"), (2, 17001, "fp32"), (2, 20000, "bf16")],
)
def test_forward_and_backward(kind, rows, columns, dtype):
    torch.manual_seed(0)
    spec = Softmax(rows, columns, dtype, kind)
    x = (5 * torch.randn(rows, columns)).to(TORCH[dtype])
    exact = x.double().requires_grad_()
    expected = FUNCTIONS[kind](exact)
    y = torch.empty(expected.shape, dtype=x.dtype)
    run_plan(plan_softmax_forward(spec, TARGET), [x], [y])
    tolerance = TOLERANCE[dtype] * max(1.0, expected.abs().max().item() / 4)
    torch.testing.assert_close(y.double(), expected.detach(), rtol=tolerance, atol=tolerance)

    dy = torch.randn(y.shape).to(x.dtype)
    dx = torch.empty_like(x)
    saved = [x, y] if kind == "logsumexp" else [y]
    run_plan(plan_softmax_backward(spec, TARGET), [dy, *saved], [dx])
    (want,) = torch.autograd.grad(expected, exact, dy.double())
    # log_softmax multiplies each rounding error by the row's sum of cotangents.
    scale = max(1.0, dy.double().sum(-1).abs().max().item() if columns > 1 else 1.0)
    torch.testing.assert_close(dx.double(), want, rtol=8 * tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("columns", [64, 17000])
def test_infinities(columns):
    x = torch.zeros(3, columns)
    x[0, 1:] = float("-inf")
    x[1, :] = float("-inf")
    x[2, 5] = float("inf")
    y = torch.empty(3)
    run_plan(plan_softmax_forward(Softmax(3, columns, "fp32", "logsumexp"), TARGET), [x], [y])
    assert y.tolist() == [0.0, float("-inf"), float("inf")]
    x[2, 5] = y[2] = float("nan")
    dx = torch.empty_like(x)
    backward = plan_softmax_backward(Softmax(3, columns, "fp32", "logsumexp"), TARGET)
    run_plan(backward, [torch.ones(3), x, y], [dx])
    assert dx[0].tolist() == [1.0] + [0.0] * (columns - 1)
    assert (dx[1] == 0).all() and dx[2].isnan().all()
    p = torch.empty_like(x)
    run_plan(plan_softmax_forward(Softmax(3, columns, "fp32"), TARGET), [x], [p])
    assert p[0].tolist() == [1.0] + [0.0] * (columns - 1)
