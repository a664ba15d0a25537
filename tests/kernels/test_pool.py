"""Window reductions and their gradients against torch, in Triton's interpreter."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
import torch.nn.functional as F

from genesis_fn.kernels.pool import Window, plan_window, plan_window_gradient
from tests.kernels.run import run_plan


def spec_2d(n, size, k, s, p, d=1, **options):
    return Window(
        n,
        (1, *size),
        1,
        (1, k, k),
        "fp32",
        strides=(1, s, s),
        padding=((0, 0), (p, p), (p, p)),
        dilation=(1, d, d),
        **options,
    )


@pytest.mark.parametrize(("k", "s", "p", "d"), [(2, 2, 0, 1), (3, 1, 1, 1), (3, 2, 1, 2)])
@pytest.mark.parametrize("saved", [True, False])
def test_max_pool_and_its_gradient(k, s, p, d, saved):
    torch.manual_seed(0)
    # Few distinct values: ties must go to the first.
    x = torch.randint(0, 5, (1, 6, 9, 8)).float().requires_grad_()
    want = F.max_pool2d(x, k, s, p, d)
    spec = spec_2d(6, (9, 8), k, s, p, d)
    assert spec.out_spatial == (1, *want.shape[2:])
    y, chosen = torch.empty(want.shape), torch.empty(want.shape, dtype=torch.int32)
    run_plan(plan_window(spec, save=True), [x.detach()], [y, chosen])
    assert torch.equal(y, want)
    dy, dx = torch.randn(want.shape), torch.empty(x.shape)
    second = chosen if saved else x.detach()
    run_plan(plan_window_gradient(spec, saved=saved), [dy, second], [dx])
    torch.testing.assert_close(dx, torch.autograd.grad(want, x, dy)[0])


@pytest.mark.parametrize("average", ["all", "valid"])
@pytest.mark.parametrize(("k", "s", "p"), [(2, 2, 0), (3, 2, 1), (4, 3, 2)])
def test_average_pool_and_its_gradient(k, s, p, average):
    torch.manual_seed(0)
    x = torch.randn(1, 3, 9, 8, requires_grad=True)
    want = F.avg_pool2d(x, k, s, p, count_include_pad=average == "all")
    spec = spec_2d(3, (9, 8), k, s, p, operation="add", average=average)
    y, dy, dx = torch.empty(want.shape), torch.randn(want.shape), torch.empty(x.shape)
    run_plan(plan_window(spec), [x.detach()], [y])
    torch.testing.assert_close(y, want.detach())
    run_plan(plan_window_gradient(spec), [dy], [dx])
    torch.testing.assert_close(dx, torch.autograd.grad(want, x, dy)[0])


def test_three_axes_channels_last():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 6, 4, 3)
    spec = Window(2, (5, 6, 4), 3, (2, 3, 2), "fp32", strides=(2, 1, 2))
    want = F.max_pool3d(x.permute(0, 4, 1, 2, 3), (2, 3, 2), (2, 1, 2)).permute(0, 2, 3, 4, 1)
    y = torch.empty(want.shape)
    run_plan(plan_window(spec), [x], [y])
    assert torch.equal(y, want)


@pytest.mark.parametrize(
    ("dtype", "operation"),
    [
        (torch.int32, "min"),
        (torch.uint8, "max"),
        (torch.int64, "add"),
        (torch.bfloat16, "max"),
        (torch.float64, "add"),
    ],
)
def test_types_and_base_dilation(dtype, operation):
    torch.manual_seed(0)
    name = {
        torch.int32: "i32",
        torch.uint8: "u8",
        torch.int64: "i64",
        torch.bfloat16: "bf16",
        torch.float64: "fp64",
    }[dtype]
    x = (torch.rand(2, 7) * 100).to(dtype)
    spec = Window(
        2,
        (1, 1, 7),
        1,
        (1, 1, 3),
        name,
        operation,
        padding=((0, 0), (0, 0), (1, 2)),
        base_dilation=(1, 1, 2),
    )
    y = torch.empty(2, spec.out_spatial[2], dtype=dtype)
    run_plan(plan_window(spec), [x], [y])
    spread = {2 * i: x[:, i] for i in range(7)}
    function = {"max": max, "min": min, "add": sum}[operation]
    for p in range(spec.out_spatial[2]):
        taps = [spread[q] for q in (p - 1, p, p + 1) if q in spread]
        for row in range(2):
            assert y[row, p].item() == function(t[row].item() for t in taps)


def test_nan_and_empty_windows():
    x = torch.tensor([[1.0, float("nan"), 2.0, float("-inf")]])
    spec = Window(1, (1, 1, 4), 1, (1, 1, 1), "fp32", padding=((0, 0), (0, 0), (1, 0)))
    y, chosen = torch.empty(1, 5), torch.empty(1, 5, dtype=torch.int32)
    run_plan(plan_window(spec, save=True), [x], [y, chosen])
    assert y[0, 0] == float("-inf") and torch.isnan(y[0, 2]) and y[0, 3] == 2.0
    assert chosen.tolist() == [[-1, 0, 0, 0, 0]]
    two = Window(1, (1, 1, 4), 1, (1, 1, 2), "fp32")
    y = torch.empty(1, 3)
    run_plan(plan_window(two), [x], [y])
    assert torch.isnan(y[0, :2]).all() and y[0, 2] == 2.0


def test_options_that_make_no_sense():
    with pytest.raises(ValueError, match="averaged"):
        spec_2d(1, (4, 4), 2, 2, 0, average="all")
    with pytest.raises(ValueError, match="nothing to save"):
        plan_window(spec_2d(1, (4, 4), 2, 2, 0, operation="add"), save=True)
