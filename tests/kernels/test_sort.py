"""Sorting kernels against NumPy's stable sorts, in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from genesis_fn.kernels.sort import block_sort, radix_sort, top_k
from genesis_fn.kernels.sort.sort import Sort, plan_sort
from genesis_fn.kernels.sort.top_k import TopK, plan_top_k
from tests.kernels.run import TARGET, run_plan

TORCH = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8e5": torch.float8_e5m2,
    "fp8e4nv": torch.float8_e4m3fn,
    "i1": torch.bool,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i16": torch.int16,
    "u16": torch.uint16,
    "i32": torch.int32,
    "u32": torch.uint32,
    "i64": torch.int64,
    "u64": torch.uint64,
}
FLOATS = ("fp64", "fp32", "bf16", "fp16", "fp8e5", "fp8e4nv")


def random_values(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Values with many ties and, for floats, NaNs of both signs, infinities and zeros."""
    g = torch.Generator().manual_seed(0)
    if dtype not in FLOATS:
        kind = TORCH[dtype]
        low, high = (0, 2) if dtype == "i1" else (torch.iinfo(kind).min, torch.iinfo(kind).max)
        x = torch.randint(max(low, -(2**62)), min(high, 2**62), shape, generator=g)
        ties = torch.rand(shape, generator=g) < 0.5
        return torch.where(ties, x % 5, x).to(kind)
    x = (torch.randn(shape, generator=g) * 4).round() / 2
    x = torch.where(x == 0, torch.where(torch.rand(shape, generator=g) < 0.5, 0.0, -0.0), x)
    x.view(-1)[:: max(1, x.numel() // 7)] = float("nan")
    x.view(-1)[1 :: max(2, x.numel() // 5)] = -float("nan")
    if dtype != "fp8e4nv":
        x.view(-1)[2 :: max(3, x.numel() // 4)] = float("inf")
        x.view(-1)[3 :: max(4, x.numel() // 3)] = -float("inf")
    return x.to(TORCH[dtype])


def bits(x: torch.Tensor) -> np.ndarray:
    raw = x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize])
    return raw.numpy()


def order_of(x: torch.Tensor, descending: bool = False) -> np.ndarray:
    """The stable permutation; NumPy's argsort is stable and puts NaN last, with -0 equal to 0."""
    values = x.double().numpy() if x.is_floating_point() else x.numpy()
    if not descending:
        return np.argsort(values, axis=-1, kind="stable")
    reverse = np.argsort(values[..., ::-1], axis=-1, kind="stable")
    return values.shape[-1] - 1 - reverse[..., ::-1]


@pytest.fixture
def small_tiles(monkeypatch):
    """Rows longer than 64 take the paths of long rows."""
    monkeypatch.setattr(block_sort, "BLOCK", 64)
    if TARGET.interpreted:  # compiled, a tile is what the votes of one warp rank
        monkeypatch.setattr(radix_sort, "RADIX_BLOCK", 64)


def sorted_with_places(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows in order, and where each element was."""
    dtype = next(name for name, kind in TORCH.items() if kind == x.dtype)
    places = torch.arange(x.shape[1], dtype=torch.int32).expand(x.shape).contiguous()
    y, order = torch.empty_like(x), torch.empty_like(places)
    run_plan(plan_sort(Sort(*x.shape, (dtype, "i32")), TARGET), [x, places], [y, order])
    return y, order


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("length", [1, 33, 90])
@pytest.mark.parametrize("dtype", list(TORCH))
def test_sorts_of_every_type(dtype, length):
    x = random_values(dtype, (2 if length < 64 else 1, length))
    y, order = sorted_with_places(x)
    np.testing.assert_array_equal(order.numpy(), order_of(x))
    np.testing.assert_array_equal(bits(y), np.take_along_axis(bits(x), order_of(x), -1))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("length", [50, 130])
def test_sort_returns_the_bits_of_its_input(length):
    x = random_values("fp32", (2, length))
    y = torch.empty_like(x)
    run_plan(plan_sort(Sort(2, length, ("fp32",)), TARGET), [x], [y])
    np.testing.assert_array_equal(bits(y), np.take_along_axis(bits(x), order_of(x), -1))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("length", [60, 100])
def test_several_keys_and_a_payload(length):
    g = torch.Generator().manual_seed(1)
    a = torch.randint(0, 4, (2, length), generator=g).to(torch.int8)
    b = torch.randint(0, 3, (2, length), generator=g).to(torch.int16)
    c = torch.randn(2, length, generator=g).to(torch.bfloat16)
    outputs = [torch.empty_like(x) for x in (a, b, c)]
    spec = Sort(2, length, ("i8", "i16", "bf16"), num_keys=2)
    run_plan(plan_sort(spec, TARGET), [a, b, c], outputs)
    for row in range(2):
        order = np.lexsort((b[row].numpy(), a[row].numpy()))
        for x, y in zip((a, b, c), outputs, strict=True):
            np.testing.assert_array_equal(bits(y[row]), bits(x[row])[order])


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(
    ("length", "k", "dtype"),
    [(40, 5, "fp32"), (40, 40, "bf16"), (400, 7, "fp32"), (300, 4, "fp64"), (130, 50, "i8")],
)
def test_top_k(length, k, dtype):
    x = random_values(dtype, (2, length))
    values, indices = torch.empty(2, k, dtype=x.dtype), torch.empty(2, k, dtype=torch.int32)
    run_plan(plan_top_k(TopK(2, length, k, dtype), TARGET), [x], [values, indices])
    order = order_of(x, descending=True)[:, :k]
    np.testing.assert_array_equal(indices.numpy(), order)
    np.testing.assert_array_equal(bits(values), np.take_along_axis(bits(x), order, -1))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", list(TORCH))
def test_top_k_by_the_maxima_of_groups(dtype, monkeypatch):
    monkeypatch.setattr(top_k, "MANY_TILES", 0)
    length, k = (4099, 3) if dtype == "fp32" else (601, 5)
    x = random_values(dtype, (2, length))
    x[1] = x[1, 0]
    plan = plan_top_k(TopK(2, length, k, dtype), TARGET)
    kernels = [step.kernel.__name__ for step in plan.steps]
    assert kernels.count("group_maxima_kernel") == 2
    values, indices = torch.empty(2, k, dtype=x.dtype), torch.empty(2, k, dtype=torch.int32)
    run_plan(plan, [x], [values, indices])
    order = order_of(x, descending=True)[:, :k]
    np.testing.assert_array_equal(indices.numpy(), order)
    np.testing.assert_array_equal(bits(values), np.take_along_axis(bits(x), order, -1))


@pytest.mark.usefixtures("small_tiles")
def test_top_k_where_the_last_tile_is_shorter_than_k():
    x = torch.arange(131, dtype=torch.float32).reshape(1, -1)
    values, indices = torch.empty(1, 9), torch.empty(1, 9, dtype=torch.int32)
    run_plan(plan_top_k(TopK(1, 131, 9, "fp32"), TARGET), [x], [values, indices])
    assert indices.tolist() == [list(range(130, 121, -1))]


def test_a_row_of_the_real_tile_size():
    x = random_values("bf16", (1, 300))
    _, order = sorted_with_places(x)
    np.testing.assert_array_equal(order.numpy(), order_of(x))


def test_nothing_to_sort():
    empty = torch.empty(0, 5)
    run_plan(plan_sort(Sort(0, 5, ("fp32",)), TARGET), [empty], [torch.empty(0, 5)])
    with pytest.raises(ValueError, match="keys"):
        Sort(1, 4, ("fp32",), num_keys=2)
