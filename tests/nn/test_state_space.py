"""SelectiveSSM against a loop in NumPy, transformers' Mamba block, and itself in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, random, tree

RNG = np.random.default_rng(0)
LAYER = nn.SelectiveSSM(6, state_size=3, time_step_rank=2)


def array(*shape: int) -> Any:
    return jnp.asarray(RNG.normal(size=shape).astype(np.float32))


def near(got: Any, want: Any, rtol: float = 1e-4) -> None:
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-5)


def drawn(layer: nn.Module) -> Any:
    """Parameters that are all different, unlike fresh ones."""
    params = layer.init(random.key(0))
    return tree.map(lambda x: x + 0.3 * array(*x.shape), params)


def recurrence(params: Any, x: Any, state: Any) -> tuple[np.ndarray, np.ndarray]:
    """The formula, step by step and feature by feature, in float64."""
    p = tree.map(lambda v: np.asarray(v, np.float64), params)
    x, state = np.asarray(x, np.float64), np.array(state, np.float64)
    rank = p["dt_proj"]["weight"].shape[1]
    size = p["A_log"].shape[1]
    y = np.zeros_like(x)
    for row in range(x.shape[0]):
        for t in range(x.shape[1]):
            v = p["x_proj"]["weight"] @ x[row, t]
            d, b, c = v[:rank], v[rank : rank + size], v[rank + size :]
            dt = np.log1p(np.exp(p["dt_proj"]["weight"] @ d + p["dt_proj"]["bias"]))
            for i in range(x.shape[2]):
                decay = np.exp(-dt[i] * np.exp(p["A_log"][i]))
                state[row, i] = decay * state[row, i] + dt[i] * b * x[row, t, i]
                y[row, t, i] = state[row, i] @ c + p["D"][i] * x[row, t, i]
    return y, state


def test_against_the_formula() -> None:
    params, x, state = drawn(LAYER), array(2, 7, 6), {"ssm": array(2, 6, 3)}
    want, end = recurrence(params, x, state["ssm"])
    y, last = LAYER(params, x, state=state)
    near(y, want)
    near(last["ssm"], end)
    near(LAYER(params, x), recurrence(params, x, np.zeros((2, 6, 3)))[0])
    params, x, state = tree.map(lambda v: v.astype("float64"), (params, x, state))
    y, last = LAYER(params, x, state=state)
    assert str(y.dtype) == str(last["ssm"].dtype) == "float64"
    np.testing.assert_allclose(y, want, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(last["ssm"], end, rtol=1e-11, atol=1e-12)


def test_gradients_are_those_of_the_formula() -> None:
    params, x, state = drawn(LAYER), array(1, 3, 6), {"ssm": array(1, 6, 3)}
    weights = [np.asarray(array(1, 3, 6)), np.asarray(array(1, 6, 3))]

    def loss(params: Any, x: Any, state: Any) -> Any:
        y, last = LAYER(params, x, state=state)
        return jnp.sum(y * weights[0]) + jnp.sum(last["ssm"] * weights[1])

    got = gf.jit(gf.grad(loss, (0, 1, 2)))(params, x, state)
    given = tree.map(lambda v: np.array(v, np.float64), (params, x, state))

    def value(args: Any) -> float:
        y, last = recurrence(args[0], args[1], args[2]["ssm"])
        return float((y * weights[0]).sum() + (last * weights[1]).sum())

    for slope, v in zip(tree.leaves(got), tree.leaves(given), strict=True):
        want = np.zeros_like(v)
        for at in np.ndindex(v.shape):
            kept = v[at]
            ends = []
            for shift in (1e-5, -1e-5):
                v[at] = kept + shift
                ends.append(value(given))
            v[at] = kept
            want[at] = (ends[0] - ends[1]) / 2e-5
        near(slope, want, rtol=5e-4)


@pytest.mark.parametrize("parts", [(1,) * 7, (3, 4), (6, 1)], ids=str)
def test_a_sequence_may_come_in_parts(parts: tuple[int, ...]) -> None:
    params, x = drawn(LAYER), array(2, 7, 6)
    whole, end = LAYER(params, x, state=LAYER.init_state(batch=2))
    advance = gf.jit(lambda p, x, s: LAYER(p, x, state=s))
    state, found, at = LAYER.init_state(batch=2), [], 0
    for n in parts:
        y, state = advance(params, x[:, at : at + n], state)
        found.append(y)
        at += n
    near(jnp.concatenate(found, 1), whole)
    near(state["ssm"], end["ssm"])
    near(whole, LAYER(params, x))


def test_against_the_block_of_transformers() -> None:
    """The block is projections, a convolution and a gate around this layer."""
    mamba = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    config = mamba.MambaConfig(
        hidden_size=8, state_size=4, intermediate_size=16, time_step_rank=3, num_hidden_layers=1,
        use_mambapy=False, vocab_size=10,
    )  # fmt: skip
    torch.manual_seed(0)
    block = mamba.MambaMixer(config, layer_idx=0).eval()
    width = block.intermediate_size
    layer = nn.SelectiveSSM(width, state_size=4, time_step_rank=3)
    weights = {n: jnp.asarray(p.detach().numpy()) for n, p in block.named_parameters()}
    names = ("x_proj.weight", "dt_proj.weight", "dt_proj.bias", "A_log", "D")
    flat = {n: weights.pop(n) for n in names}
    params = {"x_proj": {}, "dt_proj": {}, "A_log": flat.pop("A_log"), "D": flat.pop("D")}
    for name, x in flat.items():
        part, _, last = name.partition(".")
        params[part][last] = x
    assert tree.map(jnp.shape, params) == tree.map(jnp.shape, layer.init(random.key(0)))

    def ours(params: Any, weights: Any, x: Any) -> Any:
        v, gate = jnp.split(x @ weights["in_proj.weight"].T, 2, -1)
        kernel, n = weights["conv1d.weight"], config.conv_kernel
        padded = jnp.pad(v, ((0, 0), (n - 1, 0), (0, 0)))
        taps = [padded[:, i : i + x.shape[1]] * kernel[:, 0, i] for i in range(n)]
        v = nn.silu(sum(taps) + weights["conv1d.bias"])
        return (layer(params, v) * nn.silu(gate)) @ weights["out_proj.weight"].T

    x, scale = array(2, 9, 8), array(2, 9, 8)
    t = torch.from_numpy(np.array(x)).requires_grad_()
    want = block(t)
    near(ours(params, weights, x), want.detach().numpy())
    (want * torch.from_numpy(np.array(scale))).sum().backward()
    loss = lambda p, w, x: jnp.sum(ours(p, w, x) * scale)
    dp, dw, dx = gf.jit(gf.grad(loss, (0, 1, 2)))(params, weights, x)
    near(dx, t.grad.numpy(), rtol=1e-3)
    slopes = {n: p.grad.numpy() for n, p in block.named_parameters()}
    for name in names:
        part, _, last = name.partition(".")
        near(dp[part][last] if last else dp[part], slopes[name], rtol=1e-3)
    for name, slope in dw.items():
        near(slope, slopes[name], rtol=1e-3)


def test_fresh_parameters() -> None:
    layer = nn.SelectiveSSM(64)
    params = layer.init(random.key(0))
    assert params["x_proj"]["weight"].shape == (4 + 32, 64)
    assert params["dt_proj"]["weight"].shape == (64, 4)
    near(jnp.exp(params["A_log"]), np.tile(np.arange(1, 17), (64, 1)))
    np.testing.assert_array_equal(params["D"], 1)
    steps = np.log1p(np.exp(np.asarray(params["dt_proj"]["bias"], np.float64)))
    assert 0.001 <= steps.min() < 0.003 and 0.03 < steps.max() <= 0.1001
    assert abs(np.log(steps).mean() - np.log(0.01)) < 0.6


def test_transforms_and_containers() -> None:
    params, x = drawn(LAYER), array(2, 4, 6)
    y = LAYER(params, x)
    near(gf.vmap(lambda x: LAYER(params, x))(x), y)
    near(LAYER(params, x[0], state=LAYER.init_state(batch=()))[0], y[0])
    near(LAYER(params, x[None])[0], y)
    assert LAYER(params, x[:, :0]).shape == (2, 0, 6)
    loss = lambda x: jnp.sum(jnp.sin(LAYER(params, x)))
    slope = lambda x: jnp.sum(gf.grad(loss)(x) ** 2)
    gf.test_util.check_grads(slope, (x[:1, :2],), order=1, rtol=0.02)
    model = nn.Sequential(
        up=nn.Linear(6, 6), ssm=nn.Residual(LAYER), mix=nn.Sequential(nn.LSTM(6, 5), nn.relu)
    )
    own, state = model.init(random.key(0)), model.init_state(batch=2)
    y, end = gf.jit(lambda p, x, s: model(p, x, state=s))(own, x, state)
    first, state = model(own, x[:, :1], state=state)
    rest, state = model(own, x[:, 1:], state=state)
    near(jnp.concatenate([first, rest], 1), y)
    tree.map(near, state, end)
    near(model(own, x), y)


def test_dtypes() -> None:
    layer = nn.SelectiveSSM(6, state_size=3, dtype=jnp.bfloat16)
    params, x, state = layer.init(random.key(0)), array(2, 5, 6), layer.init_state(batch=2)
    assert str(params["x_proj"]["weight"].dtype) == "bfloat16"
    assert str(params["A_log"].dtype) == str(state["ssm"].dtype) == "float32"
    y, state = layer(params, x.astype(jnp.bfloat16), state=state)
    assert str(y.dtype) == "bfloat16" and str(state["ssm"].dtype) == "float32"
    wide = tree.map(lambda p: p.astype(jnp.float32), params)
    want = nn.SelectiveSSM(6, state_size=3)(wide, x)
    np.testing.assert_allclose(y.astype(jnp.float32), want, rtol=0.05, atol=0.05)


def test_refusals() -> None:
    params, x = LAYER.init(random.key(0)), array(2, 5, 6)
    cases: list[tuple[Any, str]] = [
        (lambda: nn.SelectiveSSM(6.0), "features is 6.0"),  # pyright: ignore[reportArgumentType]
        (lambda: nn.SelectiveSSM(6, -1), "state_size is -1"),
        (lambda: nn.SelectiveSSM(6, time_step_rank=-2), "time_step_rank is -2"),
        (lambda: LAYER(params, x[0, 0]), "one step is [batch, 1, 6]"),
        (lambda: LAYER(params, array(2, 5, 7)), "has to be [..., 6]"),
        (lambda: LAYER(params, x, state={}), "state = layer.init_state(batch=2)"),
        (lambda: LAYER(params, x, state=LAYER.init_state(batch=3)), "has to be [2, 6, 3]"),
        (lambda: LAYER({**params, "D": x}, x), "params['D'] is f32[2,5,6]"),
        (lambda: LAYER({**params, "x_proj": {}}, x), "params['x_proj']['weight'] of shape [8, 6]"),
        (lambda: LAYER({**params, "dt_proj": None}, x), "params['dt_proj']['weight'] of shape"),
    ]
    for call, words in cases:
        with pytest.raises(gf.errors.ArgumentError) as error:
            call()
        assert words in str(error.value)
