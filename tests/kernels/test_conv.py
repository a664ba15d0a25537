"""Convolution kernels against torch in float64, in Triton's interpreter."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
import torch.nn.functional as F

from genesis_fn.kernels.conv import (
    convolution,
    input_gradient,
    kernel_gradient,
    plan_convolution,
)
from tests.kernels.run import run_plan

TORCH = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
}
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 3e-3, "fp64": 1e-12}
FUNCTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def reference(x, w, strides, padding, lhs_dilation, rhs_dilation, groups):
    """x is [N, C, spatial...], w [O, I, spatial...], both float64."""
    rank = x.dim() - 2
    for axis, d in enumerate(lhs_dilation):
        shape = list(x.shape)
        shape[2 + axis] = (shape[2 + axis] - 1) * d + 1
        wide = x.new_zeros(shape)
        places = torch.arange(0, shape[2 + axis], d)
        x = wide.index_copy(2 + axis, places, x)
    flat = [p for pair in reversed(padding) for p in pair]
    x = F.pad(x, flat)
    return FUNCTIONS[rank](x, w, stride=strides, dilation=rhs_dilation, groups=groups)


CASES = [
    # spatial, kernel, channels in/out, groups, strides, padding, lhs and rhs dilation
    ((9,), (3,), 4, 6, 1, (1,), ((1, 1),), (1,), (1,)),
    ((9,), (4,), 4, 6, 2, (2,), ((2, 0),), (1,), (2,)),
    ((7, 8), (3, 3), 5, 7, 1, (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1)),
    ((7, 8), (3, 2), 6, 4, 2, (2, 3), ((1, 2), (0, 1)), (1, 1), (2, 1)),
    ((5, 4), (3, 3), 3, 2, 1, (1, 2), ((2, 2), (1, 3)), (2, 3), (1, 1)),
    ((6, 6), (1, 1), 8, 8, 8, (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1)),
    ((6, 7), (3, 3), 2, 3, 1, (1, 1), ((-1, 0), (1, -1)), (1, 1), (1, 1)),
    ((4, 5, 6), (2, 3, 2), 2, 3, 1, (1, 2, 1), ((1, 0), (1, 1), (0, 1)), (1, 1, 1), (1, 1, 2)),
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_convolution_and_both_gradients(case):
    spatial, kernel, c, o, groups, strides, padding, lhs_dilation, rhs_dilation = case
    torch.manual_seed(0)
    x, w = torch.randn(2, c, *spatial), torch.randn(o, c // groups, *kernel)
    exact = [t.double().requires_grad_() for t in (x, w)]
    want = reference(*exact, strides, padding, lhs_dilation, rhs_dilation, groups)
    names = "DHW"[3 - len(spatial) :]
    spec = convolution(
        x.shape,
        w.shape,
        layout="NC" + names,
        kernel_layout="OI" + names,
        strides=strides,
        padding=padding,
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        groups=groups,
        dtype="fp32",
        precision="ieee",
    )
    assert spec.out_spatial[3 - len(spatial) :] == tuple(want.shape[2:])
    y = torch.empty(want.shape)
    run_plan(plan_convolution(spec), [x, w], [y])
    torch.testing.assert_close(y.double(), want.detach(), rtol=1e-5, atol=1e-5)

    dy = torch.randn(want.shape)
    dx, dw = torch.full_like(x, 9.0), torch.full_like(w, 9.0)
    run_plan(plan_convolution(input_gradient(spec)), [dy, w], [dx])
    run_plan(plan_convolution(kernel_gradient(spec)), [x, dy], [dw])
    for got, exactly in zip((dx, dw), torch.autograd.grad(want, exact, dy.double()), strict=True):
        torch.testing.assert_close(got.double(), exactly, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", list(TORCH))
def test_types_and_channels_last(dtype):
    torch.manual_seed(0)
    x = torch.randn(2, 6, 5, 4).to(TORCH[dtype])
    w = torch.randn(3, 3, 4, 5).to(TORCH[dtype])
    spec = convolution(
        x.shape,
        w.shape,
        layout="NHWC",
        kernel_layout="HWIO",
        padding=((1, 1), (1, 1)),
        dtype=dtype,
        precision="ieee",
    )
    y = torch.empty(2, 6, 5, 5, dtype=x.dtype)
    run_plan(plan_convolution(spec), [x, w], [y])
    want = F.conv2d(x.double().permute(0, 3, 1, 2), w.double().permute(3, 2, 0, 1), padding=1)
    scale = want.abs().max()
    torch.testing.assert_close(
        y.double() / scale, want.permute(0, 2, 3, 1) / scale, rtol=0, atol=TOLERANCE[dtype]
    )
    dy, dw = torch.randn(y.shape).to(x.dtype), torch.empty_like(w)
    run_plan(plan_convolution(kernel_gradient(spec)), [x, dy], [dw])
    x_image, dy_image = (t.double().permute(0, 3, 1, 2) for t in (x, dy))
    want = torch.nn.grad.conv2d_weight(x_image, (5, 4, 3, 3), dy_image, padding=1)
    scale = want.abs().max()
    torch.testing.assert_close(
        dw.double() / scale, want.permute(2, 3, 1, 0) / scale, rtol=0, atol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("last", [False, True])
def test_long_sums_are_split(last):
    torch.manual_seed(0)
    x, w, dy = torch.randn(8, 3, 12, 12), torch.randn(4, 3, 3, 3), torch.randn(8, 4, 10, 10)
    want = torch.nn.grad.conv2d_weight(x.double(), w.shape, dy.double())
    layouts = {}
    if last:
        x, w, dy = (t.permute(0, 2, 3, 1).contiguous() for t in (x, w, dy))
        layouts = {"layout": "NHWC", "kernel_layout": "OHWI"}
    spec = convolution(x.shape, w.shape, dtype="fp32", precision="ieee", **layouts)
    plan = plan_convolution(kernel_gradient(spec))
    assert len(plan.steps) == 3
    dw = torch.empty_like(w)
    run_plan(plan, [x, dy], [dw])
    got = dw.permute(0, 3, 1, 2) if last else dw
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4)


def test_channels_that_do_not_fit():
    with pytest.raises(ValueError, match="channels"):
        convolution((1, 3, 4, 4), (2, 2, 3, 3))
