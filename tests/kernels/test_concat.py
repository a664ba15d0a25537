"""Concatenation against torch, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from genesis_fn.kernels.indexing.concat import Concatenate, plan_concatenate
from tests.kernels.run import TARGET, run_plan

TORCH = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "i1": torch.bool,
    "u8": torch.uint8,
    "i64": torch.int64,
    "fp64": torch.float64,
}


def check(shapes, axis, dtype):
    xs = [(torch.randn(s) * 3).to(TORCH[dtype]) for s in shapes]
    want = torch.cat(xs, axis)
    out = torch.empty_like(want)
    plan = plan_concatenate(Concatenate(tuple(shapes), axis, dtype), TARGET)
    run_plan(plan, xs, [out])
    assert torch.equal(out, want)
    return plan


@pytest.mark.parametrize("dtype", list(TORCH))
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_each_axis_and_type(axis, dtype):
    shapes = [[3, 5, 4], [3, 5, 4], [3, 5, 4]]
    shapes[1][axis] = 2
    shapes[2][axis] = 9
    check([tuple(s) for s in shapes], axis, dtype)


@pytest.mark.parametrize(
    ("shapes", "axis"),
    [
        ([(40, 300), (40, 77)], 1),
        ([(3, 5000), (2, 5000)], 0),
        ([(9000,), (1,), (3,)], 0),
        ([(70, 16), (70, 1)], 1),
        ([(4, 0), (4, 3)], 1),
        ([(2, 6)], 1),
    ],
)
def test_sizes(shapes, axis):
    plan = check(shapes, axis, "fp32")
    assert len(plan.steps) == 1


@pytest.mark.parametrize("width", [3, 40])
def test_more_operands_than_one_launch_takes(width):
    plan = check([(5, width + i) for i in range(11)], 1, "fp32")
    assert len(plan.steps) == 2


def test_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match="differ"):
        Concatenate(((2, 3), (3, 3)), 1, "fp32")
