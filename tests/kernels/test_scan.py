"""Cumulative kernels against torch in float64, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from genesis_fn.kernels.plan import Launch
from genesis_fn.kernels.rows.scan import OPERATIONS, Scan, plan_scan
from tests.kernels.run import TARGET, run_plan

TORCH = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp64": torch.float64,
    "i32": torch.int32,
    "i64": torch.int64,
    "i8": torch.int8,
    "u8": torch.uint8,
}
FUNCTIONS = {
    "add": lambda x: x.cumsum(1),
    "mul": lambda x: x.cumprod(1),
    "max": lambda x: x.cummax(1).values,
    "min": lambda x: x.cummin(1).values,
    "logaddexp": lambda x: x.logcumsumexp(1),
}


def reference(spec: Scan, x: torch.Tensor) -> torch.Tensor:
    wide = x.double() if x.is_floating_point() else x.long()
    wide = wide.flip(1) if spec.reverse else wide
    y = FUNCTIONS[spec.operation](wide)
    return (y.flip(1) if spec.reverse else y).to(x.dtype)


def run(spec: Scan, x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    run_plan(plan_scan(spec, TARGET), [x], [y])
    return y


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("shape", [(3, 37, 1), (2, 21, 5)])
def test_short_lines(operation, shape, reverse):
    torch.manual_seed(0)
    spec = Scan(*shape, "fp32", operation, reverse)
    x = torch.randn(shape)
    torch.testing.assert_close(run(spec, x), reference(spec, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "spec",
    [
        Scan(1, 30001, 1, "fp32"),
        Scan(2, 11000, 1, "fp32", "add", True),
        Scan(1, 11000, 1, "i32", "max"),
        Scan(1, 300, 40, "fp64", "add", True),
        Scan(70, 2100, 1, "i64"),
    ],
    ids=str,
)
def test_long_lines(spec):
    torch.manual_seed(0)
    x = torch.randn(spec.outer, spec.length, spec.inner) * 100
    x = x.to(TORCH[spec.dtype])
    tolerance = {"rtol": 1e-5, "atol": 2e-2} if spec.dtype == "fp32" else {"rtol": 0, "atol": 1e-9}
    torch.testing.assert_close(run(spec, x), reference(spec, x), **tolerance)


def test_long_line_is_cut_into_chunks():
    plan = plan_scan(Scan(1, 30001, 1, "fp32"), TARGET)
    kernels = [s for s in plan.steps if isinstance(s, Launch)]
    assert [k.constants["REDUCE"] for k in kernels] == [True, False]
    assert kernels[0].grid[1] == 15


@pytest.mark.parametrize("dtype", ["i8", "u8", "i64", "bf16"])
@pytest.mark.parametrize("operation", ["add", "mul", "max", "min"])
def test_types(dtype, operation):
    torch.manual_seed(0)
    spec = Scan(2, 40, 1, dtype, operation)
    x = (torch.rand(2, 40, 1) * 2 + 0.1).to(TORCH[dtype])
    x = x if dtype == "bf16" else torch.randint(0, 100, (2, 40, 1)).to(TORCH[dtype])
    torch.testing.assert_close(run(spec, x), reference(spec, x), rtol=8e-3, atol=0)


@pytest.mark.parametrize("operation", ["max", "min", "add", "logaddexp"])
def test_nan_and_infinity(operation):
    spec = Scan(1, 6, 1, "fp32", operation)
    inf = float("inf")
    x = torch.tensor([-inf, -inf, 1.0, 2.0, float("nan"), 0.0]).reshape(1, 6, 1)
    torch.testing.assert_close(run(spec, x), reference(spec, x), equal_nan=True)
    x = torch.tensor([0.0, inf, 1.0, inf, 2.0, 3.0]).reshape(1, 6, 1)
    torch.testing.assert_close(run(spec, x), reference(spec, x), equal_nan=True)
