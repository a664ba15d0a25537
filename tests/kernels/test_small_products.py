"""Small products: what is chosen for them, and that it computes what others do."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from genesis_fn.compiler.target import H200
from genesis_fn.kernels.matmul.matmul import Hooks, MatmulConfig, MatmulSpec, plan_matmul
from genesis_fn.kernels.matmul.tuning import chosen_config
from genesis_fn.kernels.plan import BufferArg, Launch
from tests.kernels.run import run_plan

FLOAT32 = dict.fromkeys(("lhs_dtype", "rhs_dtype", "out_dtype"), "fp32")
SCALED = Hooks("acc = acc * tl.load(scale + rn, mask=rn < N, other=0)", inputs=(("scale", "fp32"),))
SLICED = MatmulConfig("pointer", 16, 16, 64, 4, 3, slices=4)
rng = np.random.default_rng(3)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def result(
    spec: MatmulSpec, config: MatmulConfig | None, *inputs: torch.Tensor
) -> tuple[np.ndarray, np.ndarray, float]:
    """(what the plan computes of its stored operands, what NumPy does, the error allowed)."""
    dtype = inputs[0].dtype
    out = torch.full((*spec.batch, spec.m, spec.n), 7.0, dtype=dtype)
    run_plan(plan_matmul(spec, H200, config), inputs, [out])
    x, y = [v.double().numpy() for v in inputs[:2]]
    x = np.swapaxes(x, -1, -2) if spec.lhs_transposed else x
    y = np.swapaxes(y, -1, -2) if spec.rhs_transposed else y
    with np.errstate(invalid="ignore"):
        want = x @ y
    # TF32 has 10 bits, of each of two operands.
    relative = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}.get(dtype, 2.0**-22)
    if dtype == torch.float32 and spec.precision != "ieee":
        relative = 2.0**-10
    return out.double().numpy(), want, relative * 4 * np.sqrt(spec.k)


def operands(spec: MatmulSpec, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    x, y = drawn(*spec.batch, spec.m, spec.k, dtype=dtype), drawn(*spec.batch, spec.k, spec.n)
    x = x.mT.contiguous() if spec.lhs_transposed else x
    y = y.mT.contiguous() if spec.rhs_transposed else y
    return [x, y.to(dtype)]


@pytest.mark.parametrize("precision", ["default", "ieee"])
@pytest.mark.parametrize("layout", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(70, 64, 64), (61, 37, 509), (2, 64, 512), (1, 61, 500), (8, 77, 515), (7, 33, 1030),
     (130, 35, 5), (1, 1, 3)],
)  # fmt: skip
def test_small_products(m, n, k, layout, precision):
    left, right = layout
    spec = MatmulSpec(
        m, n, k, **FLOAT32, precision=precision, lhs_transposed=left, rhs_transposed=right
    )
    got, want, error = result(spec, None, *operands(spec))
    np.testing.assert_allclose(got, want, atol=error, rtol=error)


@pytest.mark.parametrize(
    "config",
    [
        SLICED,
        replace(SLICED, bk=32, slices=2, stages=1, split_k=2),
        MatmulConfig("gemv", 2, 8, 64, 2, 1),
        MatmulConfig("gemv", 4, 16, 256, 4, 1, 3),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_slices_and_rows_of_a_gemv(config, dtype):
    name = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    kinds = dict.fromkeys(FLOAT32, name)
    for k in (150, 7):
        spec = MatmulSpec(11, 37, k, (3,), **kinds, rhs_transposed=True)
        got, want, error = result(spec, config, *operands(spec, dtype))
        np.testing.assert_allclose(got, want, atol=error, rtol=error)
    epilogue = MatmulSpec(9, 20, 70, **kinds, hooks=SCALED)
    scale = drawn(20)
    got, want, error = result(epilogue, config, *operands(epilogue, dtype), scale)
    np.testing.assert_allclose(got, want * scale.numpy(), atol=3 * error, rtol=error)


@pytest.mark.parametrize("precision", ["default", "ieee"])
@pytest.mark.parametrize(("m", "n", "k"), [(6, 30, 515), (40, 30, 90), (2, 17, 300)])
def test_values_that_are_not_finite_reach_their_rows_and_columns_only(m, n, k, precision):
    spec = MatmulSpec(m, n, k, **FLOAT32, precision=precision)
    x, y = operands(spec)
    x[m - 1, k - 1], x[0, 0], y[k - 1, n - 1] = torch.inf, torch.nan, -torch.inf
    got, want, error = result(spec, None, x, y)
    np.testing.assert_allclose(got, want, atol=error, rtol=error)
    assert np.isfinite(got[1:-1, :-1]).all()


def test_sums_are_the_same_from_run_to_run():
    for m, n, k in ((8, 64, 1024), (64, 64, 512)):
        spec = MatmulSpec(m, n, k, **FLOAT32, precision="ieee" if n == 64 == m * 8 else "default")
        given = operands(spec)
        first, _, _ = result(spec, None, *given)
        second, _, _ = result(spec, None, *given)
        assert np.array_equal(first, second)


def launches(m: int, n: int, k: int, **more: Any) -> list[Launch]:
    plan = plan_matmul(MatmulSpec(m, n, k, **FLOAT32, **more), H200)
    return [step for step in plan.steps if isinstance(step, Launch)]


def programs(launch: Launch) -> int:
    return math.prod(launch.grid)


def test_small_products_have_many_programs_and_no_descriptors():
    sizes = {(512, 64, 64): 64, (2, 64, 512): 16, (8, 512, 512): 64, (64, 64, 512): 32}
    for (m, n, k), least in sizes.items():
        (only,) = launches(m, n, k)
        assert programs(only) >= least
        assert all(isinstance(a, BufferArg) for a in only.arguments.values())


@pytest.mark.parametrize("rows, columns, depth", [(1, 64, 1 << 16), (2, 48, 1 << 15)])
def test_few_columns_of_great_depth_are_shared_by_most_processors(rows, columns, depth):
    """A gemv, which computes its left operand, reads no matrix in a few programs."""
    hooks = Hooks(lhs="a = tl.load(h + rk_row)", inputs=(("h", "fp32"),))
    spec = MatmulSpec(rows, columns, depth, **FLOAT32, hooks=hooks)
    config = chosen_config(spec, H200)
    programs = math.ceil(columns / config.bn) * config.split_k
    assert config.family == "gemv" and 2 * programs >= H200.processors


def test_a_long_sum_is_cut_and_many_programs_add_its_parts():
    spec = MatmulSpec(8, 64, 4096, **FLOAT32, precision="ieee")
    config = chosen_config(spec, H200)
    # Each part's loads are all under way at once.
    assert config.family == "gemv"
    assert config.split_k * config.bk >= spec.k
    first, reduction = launches(8, 64, 4096, precision="ieee")
    assert programs(first) >= 32
    assert programs(reduction) >= 8


BF16, F32 = "bf16", "fp32"
LARGE = {
    (BF16, 16384, 3072, 1024, False, False): ("tma", 128, 256, 64, 8, 4, 1, 1),
    (BF16, 16384, 1024, 3072, False, True): ("tma", 128, 256, 64, 8, 4, 1, 1),
    (BF16, 1024, 3072, 16384, True, False): ("tma", 128, 128, 64, 4, 4, 2, 1),
    (BF16, 16384, 2048, 1024, False, True): ("tma", 128, 256, 64, 8, 4, 1, 1),
    (BF16, 16384, 151936, 1024, False, True): ("tma", 128, 256, 64, 8, 4, 1, 1),
    (BF16, 1, 1024, 1024, False, True): ("gemv", 1, 2, 1024, 2, 1, 1, 1),
    (BF16, 1, 6144, 1024, False, True): ("gemv", 1, 2, 1024, 2, 1, 1, 1),
    (BF16, 1, 151936, 1024, False, True): ("gemv", 1, 2, 1024, 2, 1, 1, 1),
    (BF16, 2, 2048, 1024, False, True): ("gemv", 2, 2, 1024, 2, 1, 1, 1),
    (BF16, 8, 1024, 1024, False, True): ("tma", 16, 64, 256, 4, 4, 1, 1),
    (BF16, 8, 2048, 1024, False, True): ("tma", 16, 64, 256, 4, 4, 1, 1),
    (BF16, 8, 1024, 3072, False, True): ("tma", 16, 64, 256, 4, 4, 4, 1),
    (BF16, 64, 1024, 2048, False, True): ("tma", 64, 32, 256, 4, 4, 1, 1),
    (BF16, 128, 1024, 1024, False, True): ("tma", 64, 128, 64, 4, 4, 1, 1),
    (BF16, 512, 3072, 1024, False, True): ("tma", 128, 128, 64, 4, 4, 1, 1),
    (F32, 4096, 4096, 4096, False, False): ("tma", 128, 256, 32, 8, 3, 1, 1),
    (F32, 2048, 1024, 1024, False, True): ("tma", 128, 128, 32, 4, 4, 1, 1),
    (F32, 64, 4096, 4096, False, False): ("tma", 64, 64, 64, 4, 6, 1, 1),
}


@pytest.mark.parametrize("product", LARGE, ids=str)
def test_products_of_models_are_chosen_as_they_were_measured(product):
    dtype, m, n, k, left, right = product
    kinds = dict.fromkeys(FLOAT32, dtype)
    spec = MatmulSpec(m, n, k, **kinds, lhs_transposed=left, rhs_transposed=right)
    c = chosen_config(spec, H200)
    assert (c.family, c.bm, c.bn, c.bk, c.warps, c.stages, c.split_k, c.slices) == LARGE[product]
