"""Gather and scatter kernels against loops over rows, in Triton's interpreter."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from genesis_fn.backends.cuda.run.error_word import decode
from genesis_fn.kernels.indexing import scatter, sorted_runs
from genesis_fn.kernels.indexing.scatter import (
    GatherRows,
    ScatterRows,
    SortRows,
    plan_gather_rows,
    plan_scatter_rows,
    plan_sort_rows,
)
from genesis_fn.kernels.plan import Launch
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
    index = torch.full((100,), 2, dtype=torch.int32)
    check(ScatterRows(4, 3, 100, "fp64", operation, "operand"), index)


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


@pytest.mark.parametrize("how", [{}, {"unique": True}, {"sorted": True}])
def test_out_of_range_updates_are_reported(how):
    error, out = torch.zeros(1, dtype=torch.int64), torch.empty(3, 2)
    spec = ScatterRows(3, 2, 4, "fp32", site=12, **how)
    index = torch.tensor([0, 1, 2, 3] if how else [0, 2, 3, 1], dtype=torch.int32)
    run_plan(plan_scatter_rows(spec, TARGET), [index, torch.ones(4, 2)], [out, error])
    assert decode(error.item()) == (12, 3)
    assert torch.equal(out, torch.ones(3, 2))


# ---- the order of sums ----


def in_pieces(places: np.ndarray, values: np.ndarray, chunk: int) -> np.ndarray:
    """The sum of a run in the order that `sorted_runs` promises: `values` at `places` of a list are
    added one after another in each chunk of it, and so are the pieces, at the even place of their
    chunk, or at the odd one where the run begins in it."""
    while True:
        chunks, starts = np.unique(places // chunk, return_index=True)
        values = np.stack([np.add.accumulate(part, 0)[-1] for part in np.split(values, starts[1:])])
        if len(chunks) == 1:
            return values[0]
        places = 2 * chunks
        places[0] += 1
        chunk = sorted_runs.PIECES_CHUNK


@pytest.mark.parametrize(
    ("kind", "columns", "count", "base"),
    [
        ("random", 1, 400, "zeros"),
        ("random", 3, 300, "operand"),
        ("random", 40, 90, "zeros"),
        ("sorted", 2, 300, "zeros"),
        ("skewed", 1, 400, "operand"),
        ("skewed", 2, 300, "zeros"),
        ("one", 1, 700, "operand"),
        ("one", 2, 500, "zeros"),
    ],
)
def test_a_sum_has_the_order_that_the_indices_give(kind, columns, count, base):
    draw = np.random.default_rng(columns)
    rows = 50
    index = {
        "random": draw.integers(0, rows, count),
        "sorted": np.sort(draw.integers(0, rows, count)),
        "skewed": np.minimum(draw.zipf(1.3, count) - 1, rows - 1),
        "one": np.full(count, 7),
    }[kind].astype(np.int32)
    updates = (draw.standard_normal((count, columns)) * 100).astype(np.float32)
    start = (draw.standard_normal((rows, columns)) * 100).astype(np.float32)
    out = np.full((rows, columns), np.nan, np.float32)
    spec = ScatterRows(rows, columns, count, "fp32", base=base, sorted=kind == "sorted")
    given = [start, index, updates] if base == "operand" else [index, updates]
    run_plan(
        plan_scatter_rows(spec, TARGET), list(map(torch.from_numpy, given)), [torch.from_numpy(out)]
    )
    want = start.copy() if base == "operand" else np.zeros_like(out)
    order = np.argsort(index, kind="stable")
    for row in np.unique(index):
        places = np.flatnonzero(index[order] == row)
        values = updates[order[places]]
        values[0] += want[row]
        want[row] = in_pieces(places, values, sorted_runs.LEAST_CHUNK)
    np.testing.assert_array_equal(out, want)


def test_few_updates_are_added_one_after_another():
    draw = np.random.default_rng(3)
    index = draw.integers(0, 3, sorted_runs.LEAST_CHUNK).astype(np.int32)
    updates = draw.standard_normal((len(index), 5)).astype(np.float32)
    out = draw.standard_normal((3, 5)).astype(np.float32)
    want = out.copy()
    np.add.at(want, index, updates)
    spec = ScatterRows(3, 5, len(index), "fp32", base="output")
    run_plan(
        plan_scatter_rows(spec, TARGET),
        [torch.from_numpy(index), torch.from_numpy(updates)],
        [torch.from_numpy(out)],
    )
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("count", [900, 150_000])
def test_no_program_walks_a_long_run_alone(count):
    """All updates may go into one row: what a program reads has a bound all the same."""
    steps = plan_scatter_rows(ScatterRows(4000, 64, count, "fp32"), TARGET).steps
    walks = [
        step
        for step in steps
        if isinstance(step, Launch) and step.kernel is sorted_runs.walk_runs_kernel
    ]
    assert [w.constants["CHUNK"] <= sorted_runs.LARGEST_CHUNK for w in walks] == [True] * len(walks)
    assert walks[0].constants["COUNT"] == count and walks[-1].grid == (1, 1, 1)


# ---- what is added in any order ----


@pytest.mark.parametrize("base", ["zeros", "operand", "output"])
@pytest.mark.parametrize(
    ("dtype", "columns", "count"), [("fp32", 12, 300), ("fp64", 1, 90), ("bf16", 2, 1200)]
)
def test_sums_by_atomics(dtype, columns, count, base):
    torch.manual_seed(1)
    rows = 1200
    spec = ScatterRows(rows, columns, count, dtype, base=base, deterministic=False)
    index = torch.randint(-2, rows + 2, (count,), dtype=torch.int32)
    updates = torch.randn(count, columns).to(TORCH[dtype])
    start = torch.randn(rows, columns).to(TORCH[dtype])
    out = start.clone() if base == "output" else torch.empty_like(start)
    plan = plan_scatter_rows(spec, TARGET)
    assert not any(
        isinstance(s, Launch) and s.kernel is sorted_runs.walk_runs_kernel for s in plan.steps
    )
    run_plan(plan, [start, index, updates] if base == "operand" else [index, updates], [out])
    want = reference(spec, torch.zeros_like(start) if base == "zeros" else start, index, updates)
    # One rounding of bfloat16, and one of float32 for each of the few updates of a row.
    bound = {"bf16": 2.0**-8, "fp32": 2.0**-20, "fp64": 0.0}[dtype]
    torch.testing.assert_close(out.double(), want, rtol=bound, atol=bound)


@pytest.mark.parametrize("operation", ["add", "min", "max"])
@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_integers_have_one_result_in_every_order(dtype, operation):
    spec = ScatterRows(1100, 3, 500, dtype, operation, "operand")
    names = [s.kernel.__name__ for s in plan_scatter_rows(spec, TARGET).steps]
    assert names == ["copy_kernel", "scatter_unordered_kernel"]
    check(spec, torch.randint(-1, 300, (500,), dtype=torch.int32))


def test_few_rows_are_no_place_for_atomics():
    spec = ScatterRows(8, 4, 100, "i32")
    assert "walk_runs_kernel" in [
        s.kernel.__name__ for s in plan_scatter_rows(spec, TARGET).steps if isinstance(s, Launch)
    ]
    check(spec, torch.randint(0, 8, (100,), dtype=torch.int32))


# ---- promises, and updates of one element ----


@pytest.mark.parametrize("mode", ["drop", "clip"])
@pytest.mark.parametrize("operation", ["add", "set"])
def test_sorted_indices_need_no_sort(operation, mode):
    index = torch.sort(torch.randint(-4, 24, (120,), dtype=torch.int32)).values
    spec = ScatterRows(20, 3, 120, "fp32", operation, "operand", mode=mode, sorted=True)
    names = [s.kernel.__name__ for s in plan_scatter_rows(spec, TARGET).steps]
    assert set(names) == {"copy_kernel", "walk_runs_kernel"}
    check(spec, index)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "u8", "fp64"])
@pytest.mark.parametrize("many", [False, True])
def test_updates_of_one_element_are_sorted_with_their_rows(dtype, many, monkeypatch):
    if many:
        monkeypatch.setattr(block_sort, "BLOCK", 64)
    operation = "max" if dtype == "u8" else "add"
    spec = ScatterRows(40, 1, 150, dtype, operation, "operand")
    check(spec, torch.randint(-3, 43, (150,), dtype=torch.int32))


def test_a_negative_zero_added_to_zeros_is_zero():
    out = torch.ones(2, 3)
    index = torch.tensor([1], dtype=torch.int32)
    for unique in (False, True):
        spec = ScatterRows(2, 3, 1, "fp32", unique=unique)
        run_plan(plan_scatter_rows(spec, TARGET), [index, torch.full((1, 3), -0.0)], [out])
        assert not torch.signbit(out).any()


@pytest.mark.parametrize("block", [64, 1024])
def test_a_sort_of_rows_of_which_sums_take_the_result(block, monkeypatch):
    monkeypatch.setattr(block_sort, "BLOCK", block)
    index = torch.randint(-2, 33, (150,), dtype=torch.int32)
    entries = torch.empty(150, dtype=torch.int64)
    run_plan(plan_sort_rows(SortRows(30, 150), TARGET), [index], [entries])
    rows = torch.where((index < 0) | (index > 30), 30, index).long()
    order = torch.sort(rows, stable=True).indices
    assert torch.equal(entries, rows[order] << 32 | order)
    updates, out = torch.randn(150, 5), torch.empty(30, 5)
    spec = ScatterRows(30, 5, 150, "fp32", entries=True)
    run_plan(plan_scatter_rows(spec, TARGET), [entries, updates], [out])
    want = reference(spec, torch.zeros(30, 5), index, updates)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)


# ---- exact sums of few columns ----


def exact_sums(values: np.ndarray, index: np.ndarray, rows: int, how=None) -> np.ndarray:
    spec = ScatterRows(rows, values.shape[1], len(index), "fp32", **(how or {}))
    plan = plan_scatter_rows(spec, TARGET)
    assert "exact_sums_kernel" in [s.kernel.__name__ for s in plan.steps if isinstance(s, Launch)]
    out = np.full((rows, values.shape[1]), np.nan, np.float32)
    run_plan(plan, [torch.from_numpy(index), torch.from_numpy(values)], [torch.from_numpy(out)])
    return out


@pytest.mark.parametrize("columns", [1, 3])
def test_sums_of_few_columns_are_exact_and_rounded_once(columns):
    draw, rows, count = np.random.default_rng(columns), 1025, 4200
    index = draw.integers(-1, rows + 1, count).astype(np.int32)
    index[:400] = 5
    mantissas = draw.standard_normal((count, columns))
    values = np.ldexp(mantissas, draw.integers(-150, 120, (count, columns))).astype(np.float32)
    values[:300] = draw.standard_normal((300, columns))  # of these nothing is left in float32
    values[300:400:2] = 1e30
    values[301:400:2] = -1e30
    got = exact_sums(values, index, rows)
    for row in [5, *draw.integers(0, rows, 60)]:
        for column in range(columns):
            want = np.float32(math.fsum(values[index == row, column].tolist()))
            assert got[row, column].tobytes() == (want + np.float32(0)).tobytes()
    other = draw.permutation(count)
    assert exact_sums(values[other], index[other], rows).tobytes() == got.tobytes()


def test_exact_sums_of_infinities_and_zeros():
    index = np.arange(4200, dtype=np.int32) % 1050
    values = np.zeros((4200, 1), np.float32)
    values[[0, 1050], 0] = np.inf, 1.0
    values[[1, 1051], 0] = -np.inf, -np.inf
    values[[2, 1052], 0] = np.inf, -np.inf
    values[3], values[4::1050] = np.nan, -0.0
    got = exact_sums(values, index, 1050, {"mode": "clip"})[:, 0]
    assert got[0] == np.inf and got[1] == -np.inf and np.isnan(got[2:4]).all()
    assert not got[4:].any() and not np.signbit(got[4])


# ---- updates of which one counts ----


@pytest.mark.parametrize("base", ["zeros", "operand", "output"])
@pytest.mark.parametrize("mode", ["drop", "clip"])
@pytest.mark.parametrize(
    ("operation", "dtype"),
    [("set", "fp32"), ("set", "u8"), ("min", "fp32"), ("max", "bf16"), ("max", "fp64")],
)
def test_one_update_counts(operation, dtype, mode, base, monkeypatch):
    monkeypatch.setattr(block_sort, "BLOCK", 64)
    monkeypatch.setattr(scatter, "ATOMIC_ROWS", 8)
    for rows, columns, count in ((9, 5, 200), (30, 1, 70), (12, 1100, 65)):
        spec = ScatterRows(rows, columns, count, dtype, operation, base, mode=mode)
        kernels = [
            s.kernel.__name__
            for s in plan_scatter_rows(spec, TARGET).steps
            if isinstance(s, Launch)
        ]
        assert not {"radix_move_kernel", "walk_runs_kernel"} & {*kernels}
        check(spec, torch.randint(-4, rows + 4, (count,), dtype=torch.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("operation", ["min", "max"])
def test_extremes_of_values_that_are_not_finite(operation, dtype, monkeypatch):
    monkeypatch.setattr(block_sort, "BLOCK", 64)
    monkeypatch.setattr(scatter, "ATOMIC_ROWS", 8)
    name = next(k for k, v in TORCH.items() if v is dtype)
    ends = [math.inf, -math.inf, math.nan, -math.nan, 0.0, -0.0, 1e-39, -1e-39, 3.0, -3.0]
    updates = torch.tensor(ends * 7, dtype=dtype)[torch.randperm(70)][:, None]
    index = torch.randint(0, 20, (70,), dtype=torch.int32)
    base = torch.tensor(ends * 2, dtype=dtype)[:, None]
    out = torch.ones_like(base)
    spec = ScatterRows(20, 1, 70, name, operation, "operand")
    run_plan(plan_scatter_rows(spec, TARGET), [base, index, updates], [out])
    want = base.clone()
    for i, x in zip(index.tolist(), updates, strict=True):
        want[i] = COMBINE[operation](want[i], x)
    torch.testing.assert_close(out, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("operation", ["set", "max"])
def test_one_update_counts_and_its_index_is_checked(operation, monkeypatch):
    monkeypatch.setattr(block_sort, "BLOCK", 64)
    monkeypatch.setattr(scatter, "ATOMIC_ROWS", 8)
    index = torch.randint(0, 20, (90,), dtype=torch.int32)
    index[41] = 20
    out, error = torch.zeros(20, 2), torch.zeros(1, dtype=torch.int64)
    spec = ScatterRows(20, 2, 90, "fp32", operation, site=5)
    run_plan(plan_scatter_rows(spec, TARGET), [index, torch.randn(90, 2)], [out, error])
    assert decode(error.item()) == (5, 20)
