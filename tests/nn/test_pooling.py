"""Pooling against torch's: every size, stride, padding and dtype; ties and infinities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn

F = torch.nn.functional
SPACE = (7, 9, 5)
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ADAPTIVE_AVG = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
ADAPTIVE_MAX = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def given(x: np.ndarray) -> Any:
    """An array of the same dtype: 64 bits stay."""
    return jnp.asarray(x, x.dtype)


def check(layer: Any, function: Any, x: np.ndarray) -> None:
    """Output and gradient are those of torch's function, eager and under jit."""
    t = torch.from_numpy(np.moveaxis(x, -1, 1).copy()).requires_grad_()
    expected = function(t)
    weights = np.random.default_rng(1).normal(size=expected.shape)
    (torch.from_numpy(weights) * expected).sum().backward()
    assert t.grad is not None
    weights = np.moveaxis(weights, 1, -1)

    def loss(v: Any) -> Any:
        y = layer({}, v)
        return jnp.sum(y * given(weights)), y

    def run(v: Any) -> Any:
        (_, y), dx = gf.value_and_grad(loss, has_aux=True)(v)
        return y, dx

    for f in (run, gf.jit(run)):
        y, dx = f(given(x))
        np.testing.assert_allclose(y, np.moveaxis(expected.detach().numpy(), 1, -1), rtol=1e-12)
        np.testing.assert_allclose(dx, np.moveaxis(t.grad.numpy(), 1, -1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("window, options", [
    ((2,), {}), ((3,), dict(strides=1, padding=1)), ((3,), dict(strides=4, ceil_mode=True)),
    ((3, 2), {}), ((3, 2), dict(strides=(2, 1), padding=1)),
    ((3, 4), dict(strides=2, padding=1, ceil_mode=True)),
    ((2, 3), dict(strides=3, ceil_mode=True)),
    ((3, 2, 2), dict(strides=2, padding=1)), ((2, 3, 2), dict(strides=3, ceil_mode=True)),
])  # fmt: skip
def test_windows_are_torchs(window: Any, options: dict[str, Any]) -> None:
    n = len(window)
    x = drawn(2, *SPACE[:n], 3)
    theirs = {{"strides": "stride"}.get(k, k): v for k, v in options.items()}
    check(nn.MaxPool(window, **options), lambda t: MAX[n](t, window, **theirs), x)
    for counted in (True, False):
        check(
            nn.AvgPool(window, count_include_pad=counted, **options),
            lambda t: AVG[n](t, window, count_include_pad=counted, **theirs),
            x,
        )


@pytest.mark.parametrize("n", [1, 2, 3])
def test_one_number_for_all_axes_and_dilation(n: int) -> None:
    x = drawn(2, *SPACE[:n], 3)
    check(nn.MaxPool(2), lambda t: MAX[n](t, 2), x)
    check(
        nn.MaxPool(2, 2, 1, dilation=2, ceil_mode=True),
        lambda t: MAX[n](t, 2, 2, 1, dilation=2, ceil_mode=True),
        x,
    )
    layer = nn.MaxPool(2, dilation=2, strides=1)
    assert hash(layer) == hash(nn.MaxPool(2, 1, dilation=2)) and layer != nn.MaxPool(2)


def test_ties_go_to_the_first_as_in_torch() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, (2, 9, 8, 4)).astype(np.float64)
    check(nn.MaxPool((3, 3), 2, 1), lambda t: F.max_pool2d(t, 3, 2, 1), x)
    check(nn.AdaptiveMaxPool((4, 5)), lambda t: F.adaptive_max_pool2d(t, (4, 5)), x)
    infinite = rng.choice([-np.inf, np.inf, 1.0], x.shape, p=[0.7, 0.1, 0.2])
    check(nn.MaxPool((3, 3), 2, 1), lambda t: F.max_pool2d(t, 3, 2, 1), infinite)
    check(nn.AdaptiveMaxPool((4, 5)), lambda t: F.adaptive_max_pool2d(t, (4, 5)), infinite)


def test_a_window_with_nan_is_nan() -> None:
    """Its derivative goes to the first one; torch's to the last."""
    x = np.random.default_rng(0).choice([-np.inf, np.nan, 1.0, 2.0], (2, 9, 8, 4)).astype("f")
    t = torch.from_numpy(np.moveaxis(x, -1, 1).copy())
    for layer, expected in (
        (nn.MaxPool((3, 3), 2, 1), F.max_pool2d(t, 3, 2, 1)),
        (nn.AdaptiveMaxPool((4, 5)), F.adaptive_max_pool2d(t, (4, 5))),
    ):
        np.testing.assert_array_equal(layer({}, x), np.moveaxis(expected.numpy(), 1, -1))
    row = jnp.array([1.0, np.nan, np.nan, 2.0])[:, None]
    dx = gf.grad(lambda v: jnp.sum(nn.max_pool(v, (4,))))(row)
    assert dx[:, 0].tolist() == [0, 1, 0, 0]


def test_windows_of_minus_infinity_have_a_derivative() -> None:
    """Padding, of the same value and before them, took it."""
    x = np.full((1, 4, 4, 2), -np.inf)
    check(nn.MaxPool((3, 3), 2, 1), lambda t: F.max_pool2d(t, 3, 2, 1), x)
    check(nn.MaxPool((2,), 2, 1), lambda t: F.max_pool1d(t, 2, 2, 1), x[0])
    dx = gf.grad(lambda v: jnp.max(nn.max_pool(v, (3,), padding="SAME")))(jnp.full((1, 1), -np.inf))
    assert dx.tolist() == [[1.0]]


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64", "bool"])
def test_integers(dtype: str) -> None:
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = np.random.default_rng(0).choice(np.array([low, high, 1], dtype), (2, 5, 3))
    y = nn.MaxPool(3, 2, 1)({}, given(x))
    padded = np.concatenate([x[:, :1], x, x[:, -1:]], 1)  # what is there already changes nothing
    expected = np.stack([padded[:, i : i + 3].max(1) for i in (0, 2, 4)], 1)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, expected)
    whole = nn.AdaptiveMaxPool(1)({}, given(x))
    np.testing.assert_array_equal(whole, x.max(1, keepdims=True))
    small = (x.astype(np.int64) % 100).astype(dtype)
    mean = nn.AvgPool(5)({}, given(small))
    assert mean.dtype == jnp.float32
    np.testing.assert_allclose(mean[:, 0], small.astype(np.float64).mean(1), rtol=1e-6)


@pytest.mark.parametrize(
    "dtype, tolerance", [("bfloat16", 2**-8), ("float16", 2**-11), ("float8_e4m3fn", 2**-4)]
)
def test_means_of_half_precision_are_added_in_float32(dtype: str, tolerance: float) -> None:
    x = (100 + 30 * drawn(1, 64, 64, 2)).astype(np.float32)
    half = jnp.asarray(x).astype(dtype)
    exact = np.asarray(half.astype("float64")).mean((1, 2), keepdims=True)
    for layer in (nn.AvgPool(64), nn.AdaptiveAvgPool(1)):
        y = layer({}, half)
        assert y.dtype == half.dtype
        np.testing.assert_allclose(y.astype("float64"), exact, rtol=tolerance)


@pytest.mark.parametrize("n, output", [
    (1, 3), (1, 7), (1, 10), (2, (1, 1)), (2, (3, 6)), (2, (5, None)), (2, (14, 2)), (2, (7, 9)),
    (3, (2, 4, 7)), (3, 2),
])  # fmt: skip
def test_adaptive_bins_are_torchs(n: int, output: Any) -> None:
    x = drawn(2, *SPACE[:n], 3)
    check(nn.AdaptiveAvgPool(output), lambda t: ADAPTIVE_AVG[n](t, output), x)
    check(nn.AdaptiveMaxPool(output), lambda t: ADAPTIVE_MAX[n](t, output), x)


def test_a_mean_of_a_bin_does_not_see_other_bins() -> None:
    x = np.array([1.0, np.inf, 2.0, 3.0, np.nan, 4.0, 5.0])[None, :, None].astype(np.float32)
    y = nn.AdaptiveAvgPool(7)({}, x)
    np.testing.assert_array_equal(y, x)
    y = nn.AdaptiveAvgPool(3)({}, x)[0, :, 0]
    expected = F.adaptive_avg_pool1d(torch.from_numpy(x[..., 0]), 3)[0]
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_functions_take_any_leading_axes() -> None:
    """Their strides are 1 where none are given."""
    x = drawn(2, 3, 6, 5, 4).astype(np.float32)
    t = torch.from_numpy(np.moveaxis(x, -1, 2).reshape(6, 4, 6, 5).copy())
    back = lambda y: np.moveaxis(y.numpy().reshape(2, 3, 4, *y.shape[2:]), 2, -1)
    np.testing.assert_array_equal(nn.max_pool(x, (2, 3)), back(F.max_pool2d(t, (2, 3), 1)))
    np.testing.assert_allclose(
        nn.avg_pool(x, (2, 3), (2, 1)), back(F.avg_pool2d(t, (2, 3), (2, 1))), rtol=1e-6, atol=1e-6
    )
    np.testing.assert_allclose(
        nn.avg_pool(x, (2, 3), padding=[(0, 0), (1, 1)], count_include_pad=False),
        back(F.avg_pool2d(t, (2, 3), 1, (0, 1), count_include_pad=False)),
        rtol=1e-6,
        atol=1e-6,
    )
    np.testing.assert_array_equal(nn.max_pool(x[0, 0], (2, 3)), nn.max_pool(x, (2, 3))[0, 0])
    assert nn.max_pool(x, (3, 3), (2, 2), "SAME").shape == (2, 3, 3, 3, 4)
    over_batch = gf.vmap(lambda v: nn.max_pool(v, (2, 3)))(given(x))
    np.testing.assert_array_equal(over_batch, nn.max_pool(x, (2, 3)))


def test_same_padding_counts_or_not() -> None:
    x = np.ones((1, 5, 1), np.float32)
    y = nn.avg_pool(x, (3,), (2,), "SAME")
    np.testing.assert_allclose(y[0, :, 0], [2 / 3, 1, 2 / 3], rtol=1e-6)
    y = nn.avg_pool(x, (3,), (2,), "SAME", count_include_pad=False)
    np.testing.assert_allclose(y[0, :, 0], [1, 1, 1])


IMAGE = np.ones((1, 4, 4, 2))


@pytest.mark.parametrize("call, words", [
    (lambda: nn.MaxPool(0), "MaxPool: window is 0"),
    (lambda: nn.AvgPool((2, 2, 2, 2)), "AvgPool: window is (2, 2, 2, 2)"),
    (lambda: nn.MaxPool((2, 2), strides=(1,)), "MaxPool: strides is (1,)"),
    (lambda: nn.MaxPool((2, 2), strides=0), "strides is 0"),
    (lambda: nn.MaxPool((2, 2), dilation=(1, 0)), "dilation is (1, 0)"),
    (lambda: nn.MaxPool((2, 2), padding=-1), "padding is -1"),
    (lambda: nn.MaxPool((2, 2), padding="full"), "padding is 'full'"),
    (lambda: nn.AvgPool(2, ceil_mode=1), "ceil_mode is 1"),  # type: ignore[arg-type]
    (lambda: nn.MaxPool(3, padding=3)({}, IMAGE), "a window holds padding (3, 3) alone"),
    (lambda: nn.MaxPool((3, 3), padding=[(1, 1), (-1, 1)])({}, IMAGE), "holds padding (-1, 1)"),
    (lambda: nn.AvgPool(5)({}, IMAGE), "its window is 5 long along an axis of 4"),
    (lambda: nn.max_pool(IMAGE, (5, 1)), "max_pool: its window is 5 long"),
    (lambda: nn.max_pool(IMAGE, 2), "max_pool: window_shape is 2"),  # type: ignore[arg-type]
    (lambda: nn.avg_pool(IMAGE[0, 0], (2, 2)), "has to be [..., H, W, features]"),
    (lambda: nn.avg_pool(IMAGE, (2, 2), (1,)), "avg_pool: strides is (1,)"),
    (lambda: nn.AdaptiveAvgPool(0), "AdaptiveAvgPool: output is 0"),
    (lambda: nn.AdaptiveMaxPool((1, 2, 3, 4)), "output is (1, 2, 3, 4)"),
    (lambda: nn.AdaptiveMaxPool((1.5,)), "output is (1.5,)"),  # type: ignore[arg-type]
    (lambda: nn.AdaptiveMaxPool((1,))({}, IMAGE), "has to be [batch, W, features]"),
])  # fmt: skip
def test_what_cannot_be_pooled_is_refused(call: Any, words: str) -> None:
    with pytest.raises(gf.errors.ArgumentError) as error:
        call()
    assert words in str(error.value)
