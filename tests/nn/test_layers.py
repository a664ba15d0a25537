"""Layers against torch's modules with the same weights: outputs, gradients, states, containers."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch

import genesis_fn.numpy as jnp
from genesis_fn import nn, random
from genesis_fn.core import tree
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.jitting import jit
from tests.public.names import exported

RNG = np.random.default_rng(0)


def array(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def load(module, params):
    """Copy parameters into a torch module of the same names."""
    with torch.no_grad():
        for name, p in params.items():
            getattr(module, name).copy_(torch.from_numpy(np.array(p)))
    return module


def check(layer, module, x, to=lambda x: x, back=lambda y: y, rtol=1e-5):
    """Outputs and gradients by the parameters and the input agree."""
    params = layer.init(random.key(0))
    load(module, params)
    t = torch.from_numpy(to(x).copy()).requires_grad_()
    expected = module(t)
    y = layer(params, jnp.asarray(x))
    np.testing.assert_allclose(y, back(expected.detach().numpy()), rtol=rtol, atol=rtol)
    weights = np.asarray(array(*y.shape))
    f = lambda p, x: jnp.sum(layer(p, x) * weights)
    dp, dx = grad(f, (0, 1))(params, jnp.asarray(x))
    (torch.from_numpy(to(weights).copy()) * expected).sum().backward()
    np.testing.assert_allclose(dx, back(t.grad.numpy()), rtol=1e-4, atol=1e-4)
    for name, g in dp.items():
        np.testing.assert_allclose(g, getattr(module, name).grad.numpy(), rtol=1e-4, atol=1e-3)


def test_linear():
    check(nn.Linear(5, 7), torch.nn.Linear(5, 7), array(2, 3, 5))
    check(nn.Linear(5, 7, bias=False), torch.nn.Linear(5, 7, bias=False), array(5))
    params = nn.Linear(400, 300).init(random.key(1))
    limit = 1 / np.sqrt(400)
    assert set(params) == {"weight", "bias"} and params["weight"].shape == (300, 400)
    assert np.abs(np.asarray(params["weight"])).max() <= limit
    assert abs(np.asarray(params["weight"]).std() / (limit / np.sqrt(3)) - 1) < 0.02


def test_norms():
    check(nn.LayerNorm(6), torch.nn.LayerNorm(6), array(2, 3, 6))
    check(nn.RMSNorm(6, eps=1e-5), torch.nn.RMSNorm(6, eps=1e-5), array(2, 3, 6))


def test_embedding():
    layer, module = nn.Embedding(9, 4), torch.nn.Embedding(9, 4)
    params = layer.init(random.key(0))
    load(module, params)
    ids = np.array([[0, 8, 3], [3, 3, 1]])
    np.testing.assert_array_equal(
        layer(params, jnp.asarray(ids)), module(torch.from_numpy(ids)).detach().numpy()
    )
    g = grad(lambda p: jnp.sum(layer(p, jnp.asarray(ids)) ** 3))(params)["weight"]
    (module(torch.from_numpy(ids)) ** 3).sum().backward()
    np.testing.assert_allclose(g, module.weight.grad.numpy(), rtol=1e-5)
    with pytest.raises(IndexError, match="9"):
        np.asarray(layer(params, jnp.array([9])))


@pytest.mark.parametrize("case", [
    dict(kernel=(3, 3)), dict(kernel=(3, 3), strides=(2, 2), padding="VALID"),
    dict(kernel=(3, 2), padding=((1, 2), (0, 1))), dict(kernel=(3, 3), dilation=(2, 2)),
    dict(kernel=(1, 1), bias=False), dict(kernel=(3, 3), groups=2), dict(kernel=(5,)),
])  # fmt: skip
def test_conv(case):
    n = len(case["kernel"])
    layer = nn.Conv(4, 6, **case)
    kind = {1: torch.nn.Conv1d, 2: torch.nn.Conv2d}[n]
    strides, dilation = case.get("strides", (1,) * n), case.get("dilation", (1,) * n)
    padding = case.get("padding", "SAME")

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = kind(
                4,
                6,
                case["kernel"],
                strides,
                0,
                dilation,
                case.get("groups", 1),
                bias=case.get("bias", True),
            )
            self.weight, self.bias = self.conv.weight, self.conv.bias

        def forward(self, x):
            pairs = padding
            if padding == "SAME":
                totals = [d * (k - 1) for k, d in zip(case["kernel"], dilation)]
                pairs = [(t // 2, t - t // 2) for t in totals]
            if pairs != "VALID":
                x = torch.nn.functional.pad(x, [p for pair in reversed(pairs) for p in pair])
            return self.conv(x)

    check(
        layer,
        Module(),
        array(2, *(9, 8)[:n], 4),
        lambda x: np.moveaxis(x, -1, 1),
        lambda y: np.moveaxis(y, 1, -1),
        rtol=1e-4,
    )


def test_batch_norm():
    layer, module = nn.BatchNorm(4), torch.nn.BatchNorm1d(4)
    params, state = layer.init(random.key(0)), layer.init_state()
    for _ in range(3):
        x = array(16, 4) * 2 + 1
        y, state = jit(lambda p, x, s: layer(p, x, state=s, train=True))(
            params, jnp.asarray(x), state
        )
        expected = module(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state["running_mean"], module.running_mean.numpy(), rtol=1e-5)
    np.testing.assert_allclose(state["running_var"], module.running_var.numpy(), rtol=1e-5)
    module.eval()
    y, same = layer(params, jnp.asarray(x), state=state)
    np.testing.assert_allclose(
        y, module(torch.from_numpy(x)).detach().numpy(), rtol=1e-4, atol=1e-5
    )
    assert same is state


def test_dropout():
    layer = nn.Dropout(0.25)
    x = jnp.ones((100, 200))
    np.testing.assert_array_equal(layer({}, x), x)
    y = np.asarray(layer({}, x, key=random.key(0), train=True))
    assert abs((y == 0).mean() - 0.25) < 0.01
    np.testing.assert_allclose(y[y != 0], 1 / 0.75, rtol=1e-6)
    again = layer({}, x, key=random.key(0), train=True)
    np.testing.assert_array_equal(again, y)
    g = grad(lambda x: jnp.sum(layer({}, x, key=random.key(0), train=True)))(x)
    np.testing.assert_allclose(g, y, rtol=1e-6)
    assert layer({}, x.astype(jnp.bfloat16), key=random.key(0), train=True).dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="needs key"):
        layer({}, x, train=True)


def test_activation():
    check(nn.Activation(nn.silu), torch.nn.SiLU(), array(3, 4))
    assert nn.Activation(nn.silu).init(random.key(0)) == {}


def test_containers():
    model = nn.Sequential(
        nn.Linear(6, 8),
        nn.BatchNorm(8),
        nn.gelu,
        nn.Dropout(0.5),
        nn.Residual(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    params, state = model.init(random.key(0)), model.init_state()
    assert len(params) == 7 and params[2] == {} and state[1] is not None and state[0] is None
    x = jnp.asarray(array(5, 6))
    y, new = model(params, x, state=state, key=random.key(1), train=True)
    assert y.shape == (5, 3)
    assert not np.array_equal(new[1]["running_mean"], state[1]["running_mean"])
    y1, _ = model(params, x, state=new)
    y2, _ = jit(lambda p, s, x: model(p, x, state=s))(params, new, x)
    np.testing.assert_allclose(y1, y2, rtol=1e-5, atol=1e-6)
    g = grad(lambda p: jnp.sum(model(p, x, state=new)[0] ** 2))(params)
    assert tree.structure(g) == tree.structure(params)
    assert all(np.isfinite(np.asarray(v)).all() for v in tree.leaves(g))
    assert hash(model) == hash(model) and "Residual" in repr(model)
    # Layers are values: a jitted function with one as a static argument is compiled once.
    assert nn.Linear(2, 3) == nn.Linear(2, 3) and nn.Linear(2, 3) != nn.Linear(2, 4)


def test_layers_of_many_members_by_vmap():
    layer = nn.Linear(3, 2)
    members = vmap(layer.init)(random.split(random.key(0), 4))
    x = jnp.asarray(array(5, 3))
    y = vmap(layer, (0, None))(members, x)
    for i in range(4):
        p = tree.map(lambda v: v[i], members)
        np.testing.assert_allclose(y[i], layer(p, x), rtol=1e-5, atol=1e-6)


def test_every_layer_is_compared():
    folder = Path(__file__).parent
    text = "".join(p.read_text(encoding="utf-8") for p in sorted(folder.glob("test_*.py")))
    for name in sorted(exported("nn")):
        layer = getattr(nn, name)
        if inspect.isclass(layer) and issubclass(layer, nn.Module) and layer is not nn.Module:
            assert f"nn.{name}(" in text, f"compare nn.{name} with torch's in {folder}"
