"""WeightNorm, SpectralNorm and Tied against torch's parametrizations and tied modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import parametrizations

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, optim, random, tree

RNG = np.random.default_rng(0)


def array(*shape: int) -> Any:
    return jnp.asarray(RNG.normal(size=shape).astype(np.float32))


def tensor(x: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(x))


def near(got: Any, want: Any, rtol: float = 1e-4) -> None:
    want = want.detach().numpy() if isinstance(want, torch.Tensor) else want
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-5)


def refused(call: Any) -> str:
    with pytest.raises(gf.errors.ArgumentError) as error:
        call()
    assert len(str(error.value).splitlines()) <= 6
    return str(error.value)


# ---- weight norm ----


@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_weight_norm(axis: int | None) -> None:
    layer = nn.WeightNorm(nn.Linear(3, 4), axis=axis)
    params, x, scale = layer.init(random.key(0)), array(5, 3), array(5, 4)
    near(layer(params, x), nn.Linear(3, 4)(nn.Linear(3, 4).init(random.key(0)), x))
    params["weight"] = tree.map(lambda v: array(*v.shape), params["weight"])
    # In torch's -1 stands for None.
    module = parametrizations.weight_norm(torch.nn.Linear(3, 4), dim=1 if axis == -1 else axis)
    parts = module.parametrizations["weight"]
    assert tuple(parts.original0.shape) == params["weight"]["g"].shape
    with torch.no_grad():
        parts.original0.copy_(tensor(params["weight"]["g"]))
        parts.original1.copy_(tensor(params["weight"]["v"]))
        module.bias.copy_(tensor(params["bias"]))
    want = module(tensor(x))
    near(gf.jit(layer)(params, x), want)
    (want * tensor(scale)).sum().backward()
    slope = gf.grad(lambda p: jnp.sum(layer(p, x) * scale))(params)
    near(slope["weight"]["g"], parts.original0.grad)
    near(slope["weight"]["v"], parts.original1.grad)
    near(slope["bias"], module.bias.grad)


def test_weight_norm_of_a_convolution_and_of_recurrent_layers() -> None:
    layer = nn.WeightNorm(nn.Conv(3, 4, (2, 2)))
    params, x = layer.init(random.key(0)), array(1, 5, 5, 3)
    assert params["weight"]["g"].shape == (4, 1, 1, 1)
    near(layer(params, x), nn.Conv(3, 4, (2, 2))(nn.Conv(3, 4, (2, 2)).init(random.key(0)), x))

    inner = nn.LSTM(3, 4, layers=2)
    layer = nn.WeightNorm(nn.WeightNorm(inner, "1.weight_ih"), "0.weight_hh")
    params, x = layer.init(random.key(0)), array(2, 5, 3)
    assert tree.map(jnp.shape, params[1]["weight_ih"]) == {"g": (16, 1), "v": (16, 4)}
    assert tree.map(jnp.shape, params[0]["weight_hh"]) == {"g": (16, 1), "v": (16, 4)}
    near(layer(params, x), inner(inner.init(random.key(0)), x))
    y, state = layer(params, x, state=layer.init_state(batch=2), lengths=[5, 2])
    plain, _ = inner(inner.init(random.key(0)), x, state=state, lengths=[5, 2])
    assert y.shape == plain.shape and tree.structure(state) == tree.structure(
        inner.init_state(batch=2)
    )


# ---- spectral norm ----


def largest(weight: Any) -> float:
    matrix = np.asarray(weight, np.float64).reshape(weight.shape[0], -1)
    return float(np.linalg.svd(matrix, compute_uv=False)[0])


@pytest.mark.parametrize("steps", [1, 3])
def test_spectral_norm(steps: int) -> None:
    inner = nn.Linear(5, 4)
    layer = nn.SpectralNorm(inner, steps=steps)
    params, x, scale = layer.init(random.key(0)), array(6, 5), array(6, 4)
    tree.map(np.testing.assert_array_equal, params, inner.init(random.key(0)))
    module = torch.nn.Linear(5, 4)
    with torch.no_grad():
        module.weight.copy_(tensor(params["weight"]))
        module.bias.copy_(tensor(params["bias"]))
    module = parametrizations.spectral_norm(module, n_power_iterations=steps)
    held = module.parametrizations["weight"][0]
    vectors = [v / np.linalg.norm(v) for v in (RNG.normal(size=4), RNG.normal(size=5))]
    u, v = [vector.astype(np.float32) for vector in vectors]
    with torch.no_grad():
        held._u.copy_(torch.from_numpy(u))
        held._v.copy_(torch.from_numpy(v))
    state = {"u": jnp.asarray(u), "v": jnp.asarray(v), "layer": None}
    apply = gf.jit(lambda p, x, s, train: layer(p, x, state=s, train=train), static_argnums=3)
    for train in (True, True, False, True):
        module.train(train)
        module.zero_grad()
        want = module(tensor(x))
        slope = gf.grad(lambda p: jnp.sum(layer(p, x, state=state, train=train)[0] * scale))(params)
        y, state = apply(params, x, state, train)
        near(y, want)
        near(state["u"], held._u)
        near(state["v"], held._v)
        (want * tensor(scale)).sum().backward()
        near(slope["weight"], module.parametrizations["weight"].original.grad)
        near(slope["bias"], module.bias.grad)


def test_a_fresh_spectral_norm_has_converged() -> None:
    """As torch's has, whose constructor iterates; here the first call does, whatever `train`."""
    weight = array(8, 6) * jnp.array([8.0, 2.0, 1.0, 1.0, 1.0, 1.0])  # a gap after the first
    layer = nn.SpectralNorm(nn.Linear(6, 8, bias=False))
    state = layer.init_state()
    y, new = layer({"weight": weight}, jnp.eye(6), state=state)
    assert abs(largest(y.T) - 1) < 1e-4
    near(y.T, np.asarray(weight) / largest(weight), rtol=1e-3)
    again, same = layer({"weight": weight}, jnp.eye(6), state=new)
    near(again, y)
    for name in ("u", "v"):
        np.testing.assert_array_equal(same[name], new[name])


def test_spectral_norm_of_convolutions_other_axes_and_stateful_layers() -> None:
    layer = nn.SpectralNorm(nn.Conv(3, 4, (2, 2)), steps=30)
    params, state, x = layer.init(random.key(0)), layer.init_state(), array(1, 5, 5, 3)
    y, _ = layer(params, x, state=state, train=True)
    divided = {**params, "weight": params["weight"] / largest(params["weight"])}
    near(y, nn.Conv(3, 4, (2, 2))(divided, x), rtol=1e-3)

    layer = nn.SpectralNorm(nn.Linear(5, 4), steps=30, axis=-1)
    params, state, x = layer.init(random.key(0)), layer.init_state(), array(2, 5)
    assert state["u"].shape == (5,) and state["v"].shape == (4,)
    y, _ = layer(params, x, state=state, train=True)
    divided = {**params, "weight": params["weight"] / largest(params["weight"])}
    near(y, nn.Linear(5, 4)(divided, x), rtol=1e-3)

    model = nn.Sequential(
        first=nn.SpectralNorm(nn.Linear(3, 4)),
        rest=nn.SpectralNorm(nn.Sequential(nn.BatchNorm(4), nn.LSTM(4, 4)), "1.0.weight_hh"),
        last=nn.Residual(nn.SpectralNorm(nn.Linear(4, 4))),
    )
    params, state, x = model.init(random.key(0)), model.init_state(batch=2), array(2, 5, 3)
    assert state["rest"]["u"].shape == (16,) and state["rest"]["layer"][1][0]["cell"].shape[0] == 2
    step = gf.jit(lambda p, x, s: model(p, x, state=s, train=True))
    y, new = step(params, x, state)
    assert tree.map(gf.typeof, new) == tree.map(gf.typeof, state)
    y, newer = step(params, x, new)
    for a, b in zip(tree.leaves(new["rest"]["layer"]), tree.leaves(newer["rest"]["layer"])):
        assert not np.array_equal(a, b)
    assert "state= is missing" in refused(lambda: model(params, x))


def test_spectral_norm_under_transforms() -> None:
    layer = nn.SpectralNorm(nn.Linear(3, 4))
    params, x = layer.init(random.key(0)), array(2, 3)
    _, state = layer(params, x, state=layer.init_state())
    members = gf.vmap(layer.init)(random.split(random.key(0), 3))
    fresh = tree.map(lambda v: jnp.stack([v, v, v]), layer.init_state())
    y, new = gf.vmap(lambda p, s: layer(p, x, state=s, train=True))(members, fresh)
    one = tree.map(lambda v: v[1], members)
    want, last = layer(one, x, state=layer.init_state(), train=True)
    near(y[1], want)
    near(new["v"][1], last["v"])
    loss = lambda p: jnp.sum(jnp.sin(layer(p, x, state=state)[0]))
    gf.test_util.check_grads(loss, (params,), order=2, rtol=0.02)
    # u and v have no derivatives.
    for train in (False, True):
        f = lambda s: jnp.sum(layer(params, x, state={**s, "layer": None}, train=train)[0])
        slope = gf.grad(f)({"u": state["u"], "v": state["v"]})
        np.testing.assert_array_equal(slope["u"], 0)
        np.testing.assert_array_equal(slope["v"], 0)


# ---- tied weights ----


def tied() -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(
        embed=nn.Embedding(7, 4),
        body=nn.Sequential(nn.LSTM(4, 4), nn.RMSNorm(4)),
        head=nn.Linear(4, 7, bias=False),
    )
    return model, nn.Tied(model, {"head.weight": "embed.weight"})


def test_tied_weights() -> None:
    plain, model = tied()
    params, ids = model.init(random.key(0)), jnp.array([[1, 6, 1], [0, 2, 3]])
    assert (
        params["head"] == {}
        and len(tree.leaves(params)) == len(tree.leaves(plain.init(random.key(0)))) - 1
    )
    full = {**params, "head": {"weight": params["embed"]["weight"]}}
    near(gf.jit(model)(params, ids), plain(full, ids))
    # Gradients of both uses add up.
    loss = lambda f: lambda p: jnp.sum(jnp.sin(f(p, ids)))
    slope, both = gf.grad(loss(model))(params), gf.grad(loss(plain))(full)
    near(slope["embed"]["weight"], both["embed"]["weight"] + both["head"]["weight"])
    tree.map(near, slope["body"], both["body"])
    # State goes through, and what is optimised has one array.
    y, state = model(params, ids[:, :2], state=model.init_state(batch=2))
    z, _ = model(params, ids[:, 2:], state=state)
    near(jnp.concatenate([y, z], 1), model(params, ids))
    tx = optim.sgd(0.1)
    updates, _ = tx.update(slope, tx.init(params), params)
    assert tree.structure(optim.apply_updates(params, updates)) == tree.structure(params)


def test_tied_weights_are_torchs() -> None:
    model = nn.Tied(
        nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7)),
        {"2.weight": "0.weight"},
    )
    params, ids = model.init(random.key(0)), jnp.array([1, 6, 1])
    assert set(params[2]) == {"bias"}
    peer = torch.nn.Sequential(
        torch.nn.Embedding(7, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 7)
    )
    with torch.no_grad():
        peer[0].weight.copy_(tensor(params[0]["weight"]))
        peer[1].weight.copy_(tensor(params[1]["weight"]))
        peer[1].bias.copy_(tensor(params[1]["bias"]))
        peer[2].bias.copy_(tensor(params[2]["bias"]))
    peer[2].weight = peer[0].weight
    want = peer(torch.tensor([1, 6, 1]))
    near(model(params, ids), want)
    torch.sin(want).sum().backward()
    slope = gf.grad(lambda p: jnp.sum(jnp.sin(model(p, ids))))(params)
    near(slope[0]["weight"], peer[0].weight.grad)
    near(slope[2]["bias"], peer[2].bias.grad)


def test_whole_layers_are_tied() -> None:
    block = nn.Residual(nn.Linear(4, 4))
    model = nn.Tied(nn.Sequential(block, nn.relu, block, block), {"2": "0", "3": "0"})
    params, x = model.init(random.key(0)), array(2, 4)
    assert params[2] is None and params[3] is None and len(tree.leaves(params)) == 2
    want = x
    for i in range(3):
        want = block(params[0], want)
        want = nn.relu(want) if i == 0 else want
    near(gf.jit(model)(params, x), want)
    gf.test_util.check_grads(lambda p: model(p, x), (params,), order=2, rtol=0.02)
    members = gf.vmap(model.init)(random.split(random.key(0), 3))
    near(gf.vmap(model, (0, None))(members, x)[2], model(tree.map(lambda v: v[2], members), x))


def test_wrappers_hold_each_other() -> None:
    """A normed embedding, whose table is the head, too: one g and one v."""
    model = nn.Sequential(embed=nn.Embedding(7, 4), head=nn.Linear(4, 7, bias=False))
    layer = nn.WeightNorm(nn.Tied(model, {"head.weight": "embed.weight"}), "embed.weight")
    params, ids = layer.init(random.key(0)), jnp.array([1, 6])
    assert tree.map(jnp.shape, params) == {
        "embed": {"weight": {"g": (7, 1), "v": (7, 4)}}, "head": {},
    }  # fmt: skip
    table = params["embed"]["weight"]["v"]
    near(layer(params, ids), np.asarray(table)[[1, 6]] @ np.asarray(table).T)
    assert hash(layer) == hash(layer) and layer != nn.Tied(model, {"head": "embed"})
    same = nn.Tied(model, (("head.weight", "embed.weight"),))
    assert same == nn.Tied(model, {"head.weight": "embed.weight"})


def test_attend() -> None:
    layer = nn.Embedding(7, 4)
    params, x, scale = layer.init(random.key(0)), array(2, 3, 4), array(2, 3, 7)
    near(layer.attend(params, x), np.asarray(x) @ np.asarray(params["weight"]).T)
    slope = gf.grad(lambda p: jnp.sum(layer.attend(p, x) * scale))(params)["weight"]
    near(slope, np.einsum("btv,btf->vf", scale, x))
    assert "has to be [..., 4]" in refused(lambda: layer.attend(params, array(2, 3)))
    assert "params['weight'] of shape [7, 4]" in refused(lambda: layer.attend({}, x))


def test_wrappers_are_refused_when_they_are_made() -> None:
    wrong: Any
    for wrong in (nn.WeightNorm, nn.SpectralNorm):
        assert "takes a layer, got <function relu" in refused(lambda: wrong(nn.relu))
        assert "name is 0, but is a parameter's path" in refused(lambda: wrong(nn.Linear(2, 2), 0))
    linear = nn.Linear(2, 2)
    wrong = nn.Tied
    assert "Tied takes a layer" in refused(lambda: wrong(nn.Linear, {"a": "b"}))
    for ties in ({}, "a", {"a": 1}, [("a", "b", "c")], None):
        assert "dict of paths, targets to sources" in refused(lambda: wrong(linear, ties))
    for ties in ({"a": "a"}, {"a": "b", "b": "c"}, {"a.b": "a"}, [("a", "b"), ("a", "c")]):
        assert "is a target, which" in refused(lambda: wrong(linear, ties))
    for steps in (0, -1, 1.0):
        assert f"steps is {steps}" in refused(lambda: nn.SpectralNorm(linear, steps=steps))  # pyright: ignore[reportArgumentType]


def test_calls_of_wrappers_are_refused() -> None:
    x, linear = array(2, 4), nn.Linear(4, 4)
    model = nn.Sequential(linear, nn.relu)
    params = linear.init(random.key(0))
    init = lambda layer: layer.init(random.key(0))
    cases: list[tuple[Any, str]] = [
        (lambda: init(nn.WeightNorm(linear, "wieght")),
         "no parameter is at 'wieght': params has the keys ['weight', 'bias']"),
        (lambda: init(nn.WeightNorm(model, "2.weight")), "params is a list of 2"),
        (lambda: init(nn.WeightNorm(model, "-1.weight")), "params is a list of 2"),
        (lambda: init(nn.WeightNorm(model, "0.weight.x")),
         "params at '0.weight' is of type Array"),
        (lambda: nn.WeightNorm(linear)(params, x), "params at 'weight' is of type Array"),
        (lambda: init(nn.WeightNorm(linear, axis=2)), "which has no axis 2"),
        (lambda: nn.WeightNorm(linear)({**params, "weight": {"g": x, "v": params["weight"]}}, x),
         "'g'] is f32[2,4], but has to be [4, 1]"),
        (lambda: init(nn.SpectralNorm(linear, "bias")), "has to be a matrix"),
        (lambda: nn.SpectralNorm(linear)(params, x), "state= is missing"),
        (lambda: nn.SpectralNorm(linear)(params, x, state={}), "state['u'] of shape [4]"),
        (lambda: init(nn.Tied(linear, {"weight": "wait"})), "no parameter is at 'wait'"),
        (lambda: init(nn.Tied(linear, {"bias": "weight"})),
         "'bias' is f32[4], but its source, 'weight', is f32[4,4]"),
        (lambda: nn.Tied(model, {"0.bias": "0.weight"})([params, {}], x),
         "'0.bias' is in params, but is '0.weight', to which it is tied"),
    ]  # fmt: skip
    for call, words in cases:
        assert words in refused(call)
    with pytest.raises(TypeError, match="tain"):
        nn.WeightNorm(linear)(init(nn.WeightNorm(linear)), x, tain=True)
