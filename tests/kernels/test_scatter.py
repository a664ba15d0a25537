"""Gather and scatter kernels against loops over rows, in Triton's interpreter."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from genesis_fn.backends.cuda.run.error_word import decode
from genesis_fn.kernels.indexing.scatter import (
    GatherRows,
    ScatterRows,
    plan_gather_rows,
    plan_scatter_rows,
)
from genesis_fn.kernels.sort import block_sort
from tests.kernels.run import TARGET, run_plan

TORCH = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp64": torch.float64,
    "i32": torch.int32,
    "i64": torch.int64,
    "i1": torch.bool,
    "u8": torch.uint8,
}
COMBINE = {
    "add": torch.add,
    "mul": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "set": lambda a, b: b,
}


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "i1", "i64"])
@pytest.mark.parametrize(("columns", "count"), [(1, 9), (40, 70), (2100, 3)])
def test_gather(dtype, columns, count):
    x = (torch.randn(11, columns) * 3).to(TORCH[dtype])
    index = torch.randint(0, 11, (count,), dtype=torch.int64)
    y = torch.empty(count, columns, dtype=x.dtype)
    plan = plan_gather_rows(GatherRows(11, columns, count, dtype, "i64"), TARGET)
    run_plan(plan, [x, index], [y])
    assert torch.equal(y, x[index])


@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_gather_out_of_range(mode):
    x, index = torch.randn(5, 6), torch.tensor([0, 7, -1, 4], dtype=torch.int32)
    y, error = torch.empty(4, 6), torch.zeros(1, dtype=torch.int64)
    plan = plan_gather_rows(GatherRows(5, 6, 4, "fp32", mode=mode, site=9), TARGET)
    run_plan(plan, [x, index], [y, error])
    # The largest code wins: -1 is all ones below the site.
    assert decode(error.item()) == (9, -1)
    outside = (x[4], x[0]) if mode == "clip" else (torch.zeros(6),) * 2
    assert torch.equal(y, torch.stack([x[0], *outside, x[4]]))


def reference(spec: ScatterRows, base, index, updates):
    out = base.double() if base.is_floating_point() else base.clone()
    for i, row in zip(index.tolist(), updates.to(out.dtype), strict=True):
        if spec.mode == "clip":
            i = min(max(i, 0), spec.rows - 1)
        if 0 <= i < spec.rows:
            out[i] = COMBINE[spec.operation](out[i], row)
    return out


def check(spec: ScatterRows, index: torch.Tensor) -> None:
    torch.manual_seed(0)
    shape = (spec.rows, spec.columns)
    updates = (torch.randn(spec.count, spec.columns) * 2).to(TORCH[spec.dtype])
    operand = (torch.randn(shape) * 2).to(TORCH[spec.dtype])
    base = torch.zeros_like(operand) if spec.base == "zeros" else operand
    out = operand.clone() if spec.base == "output" else torch.full_like(operand, 1)
    inputs = [operand] if spec.base == "operand" else []
    run_plan(plan_scatter_rows(spec, TARGET), [*inputs, index, updates], [out])
    want = reference(spec, base, index, updates)
    if not out.is_floating_point() or spec.operation in ("set", "min", "max"):
        assert torch.equal(out.to(want.dtype), want)
    else:
        tolerance = 1e-2 if spec.dtype == "bf16" else 1e-5
        torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("base", ["zeros", "operand", "output"])
@pytest.mark.parametrize("operation", list(COMBINE))
def test_operations_on_repeated_indices(operation, base):
    index = torch.randint(0, 7, (90,), dtype=torch.int32)
    index[20:60] = 3
    check(ScatterRows(7, 5, 90, "fp32", operation, base), index)


@pytest.mark.parametrize("operation", list(COMBINE))
def test_one_index_for_all_updates(operation):
    index = torch.full((300,), 2, dtype=torch.int32)
    check(ScatterRows(4, 3, 300, "fp64", operation, "operand"), index)


@pytest.mark.parametrize(
    "spec",
    [
        ScatterRows(300, 40, 100, "bf16"),
        ScatterRows(50, 33, 64, "fp32", index_dtype="i64"),
        ScatterRows(9, 1, 200, "i32", "add", "operand"),
        ScatterRows(9, 2, 40, "i1", "set", "operand"),
        ScatterRows(9, 2, 40, "u8", "max", "operand"),
        ScatterRows(9, 1100, 20, "fp32", mode="clip"),
        ScatterRows(1, 4, 40, "fp32", mode="drop"),
    ],
    ids=str,
)
def test_types_and_modes(spec):
    low = -spec.rows - 2 if spec.mode == "clip" else -2
    kind = TORCH[spec.index_dtype]
    check(spec, torch.randint(low, spec.rows + 3, (spec.count,), dtype=kind))


def test_many_updates_are_radix_sorted(monkeypatch):
    monkeypatch.setattr(block_sort, "BLOCK", 64)
    check(ScatterRows(1000, 4, 150, "fp32"), torch.randint(0, 1000, (150,), dtype=torch.int32))


@pytest.mark.parametrize("operation", ["add", "set"])
def test_unique_indices(operation):
    index = torch.randperm(20)[:12].to(torch.int32)
    check(ScatterRows(20, 6, 12, "fp32", operation, "operand", unique=True), index)


def test_nothing_to_scatter():
    out = torch.ones(3, 4)
    run_plan(
        plan_scatter_rows(ScatterRows(3, 4, 0, "fp32"), TARGET),
        [torch.empty(0, dtype=torch.int32), torch.empty(0, 4)],
        [out],
    )
    assert torch.equal(out, torch.zeros(3, 4))


def test_out_of_range_updates_are_reported():
    error, out = torch.zeros(1, dtype=torch.int64), torch.empty(3, 2)
    spec = ScatterRows(3, 2, 4, "fp32", site=12)
    index = torch.tensor([0, 2, 3, 1], dtype=torch.int32)
    run_plan(plan_scatter_rows(spec, TARGET), [index, torch.ones(4, 2)], [out, error])
    assert decode(error.item()) == (12, 3)
    assert torch.equal(out, torch.ones(3, 2))
