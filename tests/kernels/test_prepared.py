"""Copies of float32 operands with k contiguous, and products of them, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from genesis_fn.compiler.target import H200, OF_ARCHITECTURE
from genesis_fn.kernels.matmul.matmul import MatmulConfig, MatmulSpec, configs, plan_matmul
from genesis_fn.kernels.matmul.operand_layout import add_prepared, copies
from genesis_fn.kernels.plan import BufferArg
from genesis_fn.kernels.plan_builder import PlanBuilder
from tests.kernels.run import run_plan

TMA = MatmulConfig("tma", 32, 32, 32, 4, 2, prepared=True)
FP32 = {"lhs_dtype": "fp32", "rhs_dtype": "fp32", "out_dtype": "fp32"}


def draw(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def multiply(spec: MatmulSpec, lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    out = torch.full((*spec.batch, spec.m, spec.n), 7.0)
    run_plan(plan_matmul(spec, replace(H200, processors=4), TMA), [lhs, rhs], [out])
    return out


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
@pytest.mark.parametrize("lhs_transposed", [False, True])
@pytest.mark.parametrize("rhs_transposed", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 64), (71, 36, 68), (40, 33, 37)])
def test_products_of_copies(precision, lhs_transposed, rhs_transposed, m, n, k):
    spec = MatmulSpec(m, n, k, precision=precision, **FP32)
    spec = replace(spec, lhs_transposed=lhs_transposed, rhs_transposed=rhs_transposed)
    if k % 4 and precision == "tf32" and not (copies(spec, "lhs") and copies(spec, "rhs")):
        pytest.skip("an operand that is read as it is cannot have a descriptor")
    lhs = draw((k, m) if lhs_transposed else (m, k), 0)
    rhs = draw((n, k) if rhs_transposed else (k, n), 1)
    left, right = (lhs.mT if lhs_transposed else lhs), (rhs.mT if rhs_transposed else rhs)
    # tf32 cuts each operand to eleven bits.
    worst = 3e-5 if precision == "tf32x3" else 2.0**-9 * (left.abs() @ right.abs()).max()
    want = (left.double() @ right.double()).float()
    torch.testing.assert_close(multiply(spec, lhs, rhs), want, rtol=3e-6, atol=float(worst))


def test_batches_that_repeat_an_operand():
    spec = MatmulSpec(
        24,
        40,
        32,
        (2, 3),
        lhs_strides=(0, 24 * 32, 32, 1),
        rhs_strides=(32 * 40, 0, 40, 1),
        precision="tf32x3",
        **FP32,
    )
    lhs, rhs = draw((3, 24, 32), 2), draw((2 * 32, 40), 3)
    want = torch.einsum("bmk,akn->abmn", lhs, rhs.reshape(2, 32, 40))
    torch.testing.assert_close(multiply(spec, lhs, rhs), want, rtol=3e-6, atol=3e-5)


def test_parts_fit_tf32_and_add_up():
    spec = MatmulSpec(64, 16, 40, precision="tf32x3", **FP32)
    x = draw((64, 40), 4) * torch.exp(10 * draw((64, 40), 5))
    builder = PlanBuilder(1, 1)
    copied = add_prepared(builder, spec, "lhs")
    plan = builder.build()
    step = plan.steps[0]
    step = replace(step, arguments={**step.arguments, "y": BufferArg(1, copied.dtype)})
    out = torch.empty(64, 3, 64)
    run_plan(replace(plan, steps=(step,), workspaces=()), [x], [out])
    assert not (out.view(torch.int32) & 0x1FFF).any()
    assert not out[:, :, 40:].any()
    low, shown, high = out[:, :, :40].double().unbind(1)
    assert torch.equal(shown, high)
    assert ((low + high - x.double()).abs() <= x.double().abs() * 2.0**-21).all()


def test_infinities_and_nans_stay_what_they_are():
    spec = MatmulSpec(32, 32, 32, precision="tf32x3", **FP32)
    lhs, rhs = torch.ones(32, 32), torch.full((32, 32), 1.5)
    lhs[0, 3], lhs[1, 4], rhs[5, 6] = float("inf"), float("nan"), -float("inf")
    torch.testing.assert_close(multiply(spec, lhs, rhs), lhs @ rhs, equal_nan=True)


def test_the_menu_copies_where_hopper_needs_it():
    square = MatmulSpec(4096, 4096, 4096, **FP32)
    assert configs(square, H200)[0].prepared
    assert not configs(replace(square, rhs_transposed=True), H200)[0].prepared
    assert configs(replace(square, rhs_transposed=True, precision="tf32x3"), H200)[0].prepared
    assert not any(c.prepared for c in configs(square, OF_ARCHITECTURE[80]))
    assert not any(c.prepared for c in configs(replace(square, precision="ieee"), H200))
