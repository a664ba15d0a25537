"""What dropout layers zero: elements, channels, examples; their means and variances, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, random

SHAPE = (40, 5, 6, 30)
# A layer of a rate, and the shape of its mask for SHAPE.
LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "elements": (nn.Dropout, SHAPE),
    "broadcast": (lambda rate: nn.Dropout(rate, broadcast_dims=(1, -2)), (40, 1, 1, 30)),
    "channels": (lambda rate: nn.ChannelDropout(rate), (40, 1, 1, 30)),
    "alpha": (lambda rate: nn.AlphaDropout(rate), SHAPE),
    "feature alpha": (lambda rate: nn.FeatureAlphaDropout(rate), (40, 1, 1, 30)),
    "examples": (lambda rate: nn.DropPath(rate), (40, 1, 1, 1)),
}
ALPHA = {"alpha", "feature alpha"}


def dropped(layer: Any, x: Any, seed: int = 0) -> Any:
    return layer({}, x, key=random.key(seed), train=True)


def coefficients(rate: float) -> tuple[float, float, float]:
    """(a, b, what dropped elements become) of alpha dropout, from its definition: they keep the
    mean 0 and the variance 1 of selu's output."""
    s = float(torch.nn.functional.selu(torch.tensor(-1e9, dtype=torch.float64)))
    mean, square = rate * s, (1 - rate) + rate * s * s  # of what is kept or set
    a = (square - mean**2) ** -0.5
    return a, -a * mean, a * s - a * mean


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("rate", [0.3, 0.8])
def test_what_is_dropped_and_what_is_kept(name: str, rate: float) -> None:
    make, mask_shape = LAYERS[name]
    layer = make(rate)
    x = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    a, b, gone = coefficients(rate) if name in ALPHA else (1 / (1 - rate), 0.0, 0.0)
    y = np.asarray(dropped(layer, x))
    lost = np.isclose(y, gone, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(y, np.where(lost, gone, a * x + b), rtol=1e-4, atol=1e-5)
    # Together along the axes over which the mask repeats.
    corner = tuple([slice(0, 1) if m == 1 else slice(None) for m in mask_shape])
    mask = lost[corner]
    np.testing.assert_array_equal(lost, np.broadcast_to(mask, SHAPE))
    shares = [dropped(layer, x, seed) for seed in range(20)] if mask.size < 100 else [y]
    share = np.mean([np.isclose(np.asarray(v)[corner], gone, rtol=1e-5, atol=1e-7) for v in shares])
    n = mask.size * len(shares)
    assert abs(share - rate) < 5 * np.sqrt(rate * (1 - rate) / n)


@pytest.mark.parametrize("name", LAYERS)
def test_keys_modes_and_transforms(name: str) -> None:
    layer = LAYERS[name][0](0.4)
    x = jnp.asarray(np.random.default_rng(2).normal(size=SHAPE).astype(np.float32))
    y = dropped(layer, x)
    np.testing.assert_array_equal(y, dropped(layer, x))
    assert not np.array_equal(y, dropped(layer, x, seed=1))
    np.testing.assert_array_equal(layer({}, x), x)
    np.testing.assert_array_equal(layer({}, x, key=random.key(0)), x)
    assert layer.init(random.key(0)) == {} and layer.init_state() is None
    jitted = gf.jit(lambda v: dropped(layer, v))(x)
    np.testing.assert_allclose(jitted, y, rtol=1e-6, atol=1e-6)
    keys = random.split(random.key(5), 2)
    two = gf.vmap(lambda k, v: layer({}, v, key=k, train=True))(keys.copy(), jnp.stack([x, x]))
    for i in range(2):
        one = layer({}, x, key=keys[i], train=True)
        np.testing.assert_allclose(two[i], one, rtol=1e-6, atol=1e-6)
    # The derivative is that of a line where an element is kept, and 0 elsewhere.
    dx = gf.grad(lambda v: jnp.sum(dropped(layer, v)))(x)
    slope = dropped(layer, x + 1) - y
    np.testing.assert_allclose(dx, slope, rtol=1e-4, atol=1e-5)
    assert set(np.unique(np.asarray(dx) > 0)) == {False, True}
    with pytest.raises(gf.errors.ArgumentError, match="in training it needs key="):
        layer({}, x, train=True)


@pytest.mark.parametrize("name", LAYERS)
def test_extreme_rates_and_traced_rates(name: str) -> None:
    make = LAYERS[name][0]
    x = jnp.asarray(np.random.default_rng(3).normal(size=(4, 3, 3, 5)).astype(np.float32))
    np.testing.assert_array_equal(dropped(make(0.0), x), x)
    np.testing.assert_array_equal(dropped(make(1.0), x), np.zeros(x.shape))
    for dtype in ("float32", "bfloat16", "float16"):
        v = x.astype(dtype)
        assert dropped(make(0.5), v).dtype == dtype
        traced = gf.jit(lambda rate, v: dropped(make(rate), v))
        for rate in (0.0, 0.25, 1.0):
            y = traced(rate, v)
            assert y.dtype == dtype
            step = float(jnp.finfo(dtype).eps)
            expected = dropped(make(rate), v).astype("float32")
            np.testing.assert_allclose(y.astype("float32"), expected, rtol=4 * step, atol=4 * step)
        whole = gf.grad(lambda v: jnp.sum(traced(1.0, v).astype("float32")))(v)
        np.testing.assert_array_equal(whole.astype("float32"), np.zeros(x.shape))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_alpha_dropout_keeps_mean_and_variance(rate: float) -> None:
    x = np.random.default_rng(4).normal(size=(1000, 1000)).astype(np.float32)
    y = np.asarray(dropped(nn.AlphaDropout(rate), x), np.float64)
    assert abs(y.mean()) < 0.01 and abs(y.var() - 1) < 0.01
    torch.manual_seed(0)
    theirs = torch.nn.AlphaDropout(rate)(torch.from_numpy(x)).double()
    assert abs(theirs.mean() - y.mean()) < 0.01 and abs(theirs.var() - y.var()) < 0.01
    # Of which elements become what, torch agrees.
    gone = coefficients(rate)[2]
    assert np.isclose(theirs.numpy(), gone, rtol=1e-5).mean() == pytest.approx(rate, abs=0.01)


def test_examples_without_an_axis_of_space() -> None:
    """[batch, features]: a channel is an element."""
    x = jnp.ones((50, 40))
    y = np.asarray(dropped(nn.ChannelDropout(0.5), x))
    assert 0.4 < (y == 0).mean() < 0.6 and not (y[0] == y[1]).all()
    rows = np.asarray(dropped(nn.DropPath(0.5), x))
    assert ((rows == 0).all(1) | (rows == 2).all(1)).all() and 10 < (rows[:, 0] == 0).sum() < 40


def test_stochastic_depth_of_a_residual_block() -> None:
    block = nn.Residual(nn.Sequential(nn.Linear(4, 4), nn.DropPath(0.5)))
    params = block.init(random.key(0))
    x = jnp.asarray(np.random.default_rng(5).normal(size=(64, 4)).astype(np.float32))
    branch = nn.Linear(4, 4)(params[0], x)
    y = np.asarray(block(params, x, key=random.key(1), train=True))
    skipped = (y == np.asarray(x)).all(1)
    assert 15 < skipped.sum() < 49
    np.testing.assert_allclose(y[~skipped], (x + 2 * branch)[~skipped], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(block(params, x), x + branch, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [
    nn.Dropout, nn.ChannelDropout, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.DropPath,
])  # fmt: skip
def test_a_rate_that_is_no_probability_is_refused(kind: Any) -> None:
    for rate in (-0.1, 1.1, float("nan")):
        with pytest.raises(gf.errors.ArgumentError, match=f"{kind.__name__}: rate is {rate}"):
            kind(rate)


def test_axes_of_broadcast_dims_are_there() -> None:
    layer = nn.Dropout(0.5, broadcast_dims=(2,))
    assert hash(layer) == hash(nn.Dropout(0.5, broadcast_dims=[2]))
    with pytest.raises(gf.errors.ArgumentError, match=r"has an axis that the input of shape \[3"):
        dropped(layer, jnp.ones((3, 4)))
    wrong: Any = 1
    with pytest.raises(gf.errors.ArgumentError, match=r"broadcast_dims=\(1,\)"):
        nn.Dropout(0.5, broadcast_dims=wrong)
