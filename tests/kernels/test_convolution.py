"""Convolutions by their plans against torch's in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from genesis_fn.compiler.target import H200
from genesis_fn.kernels.matmul.conv import Convolution, plan_convolution
from genesis_fn.kernels.plan import Launch
from tests.kernels.run import TARGET, run_plan

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
BOUND = {"fp64": 1e-13, "fp32": 1e-5, "bf16": 2e-2}


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    return tuple([math.prod(shape[i + 1 :]) for i in range(len(shape))])


def spec_of(
    lhs: tuple[int, ...], rhs: tuple[int, ...], groups: int, dtype: str, **options: Any
) -> Convolution:
    """The spec of lhs [n, channels, h, w] and rhs [out channels, channels of a group, h, w], both
    row-major; `stride`, `padding` and `dilation` are those of both axes."""
    stride, padding, dilation = (options.get(n, d) for n, d in OPTIONS.items())
    n, channels, out_channels = lhs[0], lhs[1] // groups, rhs[0] // groups
    span = [x + 2 * padding - dilation * (k - 1) for x, k in zip(lhs[2:], rhs[2:])]
    size = [(s - 1) // stride + 1 for s in span]
    lhs_shape = (n, groups, channels, 1, *lhs[2:])
    rhs_shape = (groups, out_channels, channels, 1, *rhs[2:])
    out_shape = (n, groups, out_channels, 1, *size)
    return Convolution(
        batch=n,
        groups=groups,
        in_channels=channels,
        out_channels=out_channels,
        lhs_spatial=lhs_shape[3:],
        rhs_spatial=rhs_shape[3:],
        out_spatial=out_shape[3:],
        lhs_strides=strides_of(lhs_shape),
        rhs_strides=strides_of(rhs_shape),
        out_strides=strides_of(out_shape),
        strides=(1, stride, stride),
        padding=(0, padding, padding),
        rhs_dilation=(1, dilation, dilation),
        dtype=dtype,
        precision="ieee" if dtype == "fp32" else "default",
    )


OPTIONS = {"stride": 1, "padding": 0, "dilation": 1}
CASES = [
    ((2, 3, 7, 6), (4, 3, 3, 3), 1, {"padding": 1}),
    ((2, 4, 9, 8), (6, 2, 3, 2), 2, {"stride": 2}),
    ((1, 4, 9, 9), (4, 1, 3, 3), 4, {"dilation": 2, "padding": 2}),
    ((3, 5, 1, 1), (7, 5, 1, 1), 1, {}),
    ((1, 40, 6, 6), (2, 40, 5, 5), 1, {}),  # a long sum over few outputs is split
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lhs, rhs, groups, options", CASES)
def test_convolution(
    lhs: tuple[int, ...], rhs: tuple[int, ...], groups: int, options: dict[str, int], dtype: str
) -> None:
    generator = torch.Generator().manual_seed(sum(lhs) + groups)
    x, w = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(DTYPES[dtype])
        for shape in (lhs, rhs)
    )
    want = torch.nn.functional.conv2d(x.double(), w.double(), groups=groups, **options)
    spec = spec_of(lhs, rhs, groups, dtype, **options)
    out = torch.full(want.shape, math.nan, dtype=DTYPES[dtype])
    run_plan(plan_convolution(spec, TARGET), [x, w], [out])
    scale = math.sqrt(math.prod(rhs[1:]))
    assert ((out.double() - want).abs().max() / scale).item() < BOUND[dtype]


FOLDED = [
    # An input, a kernel, groups, options, and how many positions share a row.
    ((2, 1, 1, 70), (1, 1, 1, 9), 1, {}, 16),
    ((2, 1, 2, 300), (1, 1, 1, 129), 1, {"padding": 4}, 128),
    ((2, 3, 7, 21), (3, 3, 3, 3), 1, {"padding": 1}, 4),
    ((2, 4, 5, 33), (4, 2, 2, 4), 2, {}, 8),
]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("lhs, rhs, groups, options, places", FOLDED)
def test_neighbours_of_few_channels_share_a_row(
    lhs: tuple[int, ...],
    rhs: tuple[int, ...],
    groups: int,
    options: dict[str, int],
    places: int,
    dtype: str,
) -> None:
    generator = torch.Generator().manual_seed(sum(lhs) + groups)
    x, w = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(DTYPES[dtype])
        for shape in (lhs, rhs)
    )
    want = torch.nn.functional.conv2d(x.double(), w.double(), groups=groups, **options)
    spec = spec_of(lhs, rhs, groups, dtype, **options)
    # On a small GPU, of which a small problem fills the processors.
    plan = plan_convolution(spec, replace(TARGET, processors=1))
    (launch,) = plan.steps
    assert isinstance(launch, Launch) and launch.constants["FOLD"] == places
    out = torch.full(want.shape, math.nan, dtype=DTYPES[dtype])
    run_plan(plan, [x, w], [out])
    scale = math.sqrt(math.prod(rhs[1:]))
    assert ((out.double() - want).abs().max() / scale).item() < BOUND[dtype]


@pytest.mark.parametrize(
    "options, dtype", [({"stride": 2}, "bf16"), ({"dilation": 2}, "bf16"), ({}, "fp64")]
)
def test_what_shares_no_row(options: dict[str, int], dtype: str) -> None:
    spec = spec_of((2, 3, 9, 40), (3, 3, 3, 3), 1, dtype, **options)
    (launch,) = plan_convolution(spec, replace(TARGET, processors=1)).steps
    assert isinstance(launch, Launch) and launch.constants["FOLD"] == 1


def test_a_long_sum_over_few_outputs_is_split() -> None:
    lhs, rhs, groups, options = CASES[-1]
    plan = plan_convolution(spec_of(lhs, rhs, groups, "fp32", **options), H200)
    assert plan.workspaces, "partial sums"
