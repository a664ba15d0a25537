"""Products by groups of rows through Triton's interpreter against float64 loops over the groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from genesis_fn.compiler.target import H200, OF_ARCHITECTURE
from genesis_fn.kernels.matmul.ragged import (
    RaggedConfig,
    RaggedSpec,
    plan_ragged_contraction,
    plan_ragged_dot,
    ragged_contraction_configs,
    ragged_dot_configs,
)
from genesis_fn.kernels.plan import Descriptor, Launch
from tests.kernels.run import run_plan

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
# Of the largest element: of operands that are summed so, and of a result that is rounded so.
SUMMED = {"fp64": 1e-13, "fp32": 2e-3, "fp16": 1e-5, "bf16": 1e-5}  # float32 is cut to tf32
ROUNDED = {"fp64": 1e-13, "fp32": 1e-6, "fp16": 1e-3, "bf16": 1e-2}
FEW = replace(H200, processors=3)
TMA = RaggedConfig(True, 16, 32, 16)
POINTER = RaggedConfig(False, 16, 32, 16)


def draw(shape: tuple[int, ...], dtype: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DTYPES[dtype])


def ranges(sizes: torch.Tensor, rows: int) -> Iterator[tuple[int, int]]:
    """Each group's first row and end: negative sizes are none, and rows end where they end."""
    at = 0
    for size in sizes.tolist():
        end = min(at + max(size, 0), rows)
        yield at, end
        at = end


def dot(spec: RaggedSpec, sizes: torch.Tensor, config: RaggedConfig | None) -> None:
    """Hold the plan of a ragged dot to a loop; sizes are [batch, groups]."""
    inner = (spec.n, spec.k) if spec.rhs_transposed else (spec.k, spec.n)
    lead = () if spec.rhs_shared else (spec.batch,)
    x = draw((spec.batch, spec.rows, spec.k), spec.lhs_dtype, 0)
    w = draw((*lead, spec.groups, *inner), spec.rhs_dtype, 1)
    out = torch.full((spec.batch, spec.rows, spec.n), torch.nan, dtype=DTYPES[spec.out_dtype])
    run_plan(plan_ragged_dot(spec, FEW, config), [x, w, sizes], [out])
    want = torch.zeros_like(out, dtype=torch.float64)
    for b in range(spec.batch):
        for i, (first, end) in enumerate(ranges(sizes[b], spec.rows)):
            matrix = (w if spec.rhs_shared else w[b])[i].double()
            matrix = matrix.mT if spec.rhs_transposed else matrix
            want[b, first:end] = x[b, first:end].double() @ matrix
    close(out, want, spec)


def contraction(spec: RaggedSpec, sizes: torch.Tensor, config: RaggedConfig | None) -> None:
    """Hold the plan of a ragged contraction to a loop."""
    x = draw((spec.batch, spec.rows, spec.k), spec.lhs_dtype, 0)
    y = draw((spec.batch, spec.rows, spec.n), spec.rhs_dtype, 1)
    # Rows of other groups are read with a group's own, but never multiplied.
    strange = sum(max(n, 0) for n in sizes[0].tolist())
    x[0, strange:], y[0, strange:] = torch.inf, torch.nan
    shape = (spec.batch, spec.groups, spec.k, spec.n)
    out = torch.full(shape, torch.nan, dtype=DTYPES[spec.out_dtype])
    run_plan(plan_ragged_contraction(spec, FEW, config), [x, y, sizes], [out])
    want = torch.zeros_like(out, dtype=torch.float64)
    for b in range(spec.batch):
        for i, (first, end) in enumerate(ranges(sizes[b], spec.rows)):
            want[b, i] = x[b, first:end].double().mT @ y[b, first:end].double()
    close(out, want, spec)


def close(got: torch.Tensor, want: torch.Tensor, spec: RaggedSpec) -> None:
    assert got.isfinite().all(), "every element is written"
    error = (got.double() - want).abs().max() / want.abs().max().clamp(min=1.0)
    assert error <= SUMMED[spec.operand_dtype] + ROUNDED[spec.out_dtype], error


SIZES = torch.tensor([[17, 0, 40, 1, 33]], dtype=torch.int32)  # of 100 rows


@pytest.mark.parametrize("config", [TMA, POINTER], ids=["tma", "pointer"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_products_by_groups(dtype, turned, config):
    spec = RaggedSpec(100, 48, 40, 5, 1, dtype, dtype, dtype)
    dot(replace(spec, rhs_transposed=turned), SIZES, config)
    if turned:
        contraction(spec, SIZES, config)


@pytest.mark.parametrize("options", [
    {"flatten": True}, {"halves": True}, {"residents": 0}, {"swap": True}, {"residents": 2},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("config", [TMA, POINTER], ids=["tma", "pointer"])
def test_every_way_through_the_tiles(config, options):
    spec = RaggedSpec(100, 48, 40, 5)
    dot(spec, SIZES, replace(config, **options))
    if "swap" not in options:
        contraction(spec, SIZES, replace(config, **options))


@pytest.mark.parametrize("sizes", [
    [0, 0, 0, 0, 0], [100, 0, 0, 0, 0], [0, 0, 0, 0, 100], [20, 20, 20, 20, 20],
    [-5, 60, -1, 70, 3], [2**31 - 1, 2**31 - 1, 1, 0, 0],
], ids=str)  # fmt: skip
def test_sizes_are_data(sizes):
    """Groups may be empty, leave rows over, and claim more rows than there are."""
    spec = RaggedSpec(100, 16, 24, 5)
    given = torch.tensor([sizes], dtype=torch.int32)
    dot(spec, given, TMA)
    if min(sizes) == 0 and sum(sizes) <= 100:
        contraction(spec, given, TMA)


@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "i64", "u32"])
def test_dtypes_of_sizes(dtype):
    kinds = {
        "i8": torch.int8, "u8": torch.uint8, "i16": torch.int16, "i64": torch.int64,
        "u32": torch.int32,
    }  # fmt: skip
    spec = RaggedSpec(100, 16, 16, 5, sizes_dtype=dtype)
    dot(spec, SIZES.to(kinds[dtype]), TMA)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("config", [TMA, POINTER], ids=["tma", "pointer"])
def test_batches(config, shared):
    sizes = torch.tensor([[9, 0, 21], [40, 3, 0]], dtype=torch.int32)
    spec = RaggedSpec(50, 24, 40, 3, 2)
    dot(replace(spec, rhs_shared=shared), sizes, config)
    if shared:
        contraction(spec, sizes, config)


@pytest.mark.parametrize(("lhs", "rhs", "out"), [
    ("bf16", "bf16", "fp32"), ("bf16", "fp32", "bf16"), ("fp32", "bf16", "fp32"),
    ("bf16", "fp16", "fp32"), ("fp64", "fp64", "fp64"), ("fp64", "fp64", "fp32"),
])  # fmt: skip
def test_dtypes(lhs, rhs, out):
    spec = RaggedSpec(70, 13, 11, 3, 1, lhs, rhs, out)
    sizes = torch.tensor([[30, 0, 37]], dtype=torch.int32)
    dot(spec, sizes, None)
    contraction(spec, sizes, None)


def test_configurations_of_every_target():
    """Doors have a configuration for every GPU, dtype and number of rows, that fits its memory."""
    for target in OF_ARCHITECTURE.values():
        for dtype in ("bf16", "fp32", "fp64"):
            for rows, n in ((16, 512), (4096, 24), (32768, 768)):
                spec = RaggedSpec(rows, 256, n, 16, 1, dtype, dtype, dtype)
                for menu in (ragged_dot_configs, ragged_contraction_configs):
                    assert all(c.tma <= target.descriptors for c in menu(spec, target))
                plan_ragged_dot(spec, target)
                plan_ragged_contraction(spec, target)


def test_weights_are_read_as_they_lie():
    """By TMA, of both layouts, without a workspace."""
    for turned in (False, True):
        spec = RaggedSpec(4096, 256, 512, 8, rhs_transposed=turned)
        plan = plan_ragged_dot(spec, H200)
        (launch,) = plan.steps
        assert isinstance(launch, Launch) and not plan.workspaces
        rhs = launch.arguments["rhs"]
        assert isinstance(rhs, Descriptor)
        assert rhs.shape == ((8, 512, 256) if turned else (8, 256, 512))


@pytest.mark.parametrize(("fields", "message"), [
    ({"groups": 0}, "a group"), ({"lhs_dtype": "fp8e5"}, "lhs_dtype"),
    ({"lhs_dtype": "i32"}, "both operands"), ({"lhs_dtype": "fp64"}, "both operands"),
    ({"precision": "exact"}, "precision"),
])  # fmt: skip
def test_refusals(fields, message):
    with pytest.raises(ValueError, match=message):
        replace(RaggedSpec(8, 8, 8, 2), **fields)
