"""Group, instance, layer and batch normalisation against torch's, and in half precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, random


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(1.0, 2.0, size=shape)


def given(x: np.ndarray) -> Any:
    """An array of the same dtype: 64 bits stay."""
    return jnp.asarray(x, x.dtype)


def first(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.moveaxis(x, -1, 1).copy())


def last(x: torch.Tensor) -> np.ndarray:
    return np.moveaxis(x.detach().numpy(), 1, -1)


def shifted(params: Any) -> Any:
    """Other parameters than ones and zeros."""
    return {k: v + given(drawn(*v.shape)) / 4 for k, v in params.items()}


def check(layer: Any, module: Any, x: np.ndarray, to: Any = first, back: Any = last) -> None:
    """Outputs and gradients agree in float64, eager and under jit."""
    params = shifted(layer.init(random.key(0)))
    module = module.double()
    assert set(params) == {k for k, _ in module.named_parameters()}
    module.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in params.items()})
    t = to(x).requires_grad_()
    expected = module(t)
    weights = drawn(*x.shape)
    (to(weights) * expected).sum().backward()

    def loss(p: Any, v: Any) -> Any:
        y = layer(p, v)
        return jnp.sum(y * given(weights)), y

    run = gf.value_and_grad(loss, (0, 1), has_aux=True)
    for f in (run, gf.jit(run)):
        (_, y), (dp, dx) = f(params, given(x))
        np.testing.assert_allclose(y, back(expected), rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(dx, back(t.grad), rtol=1e-8, atol=1e-9)
        for name, g in dp.items():
            theirs = module.get_parameter(name).grad
            np.testing.assert_allclose(g, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("space", [(), (5,), (4, 3), (2, 3, 4)])
def test_group_norm(space: tuple[int, ...]) -> None:
    x = drawn(3, *space, 6)
    for groups in (1, 2, 3):
        check(nn.GroupNorm(groups, 6, dtype="float64"), torch.nn.GroupNorm(groups, 6), x)
    plain = torch.nn.GroupNorm(2, 6, eps=0.1, affine=False)
    check(nn.GroupNorm(2, 6, eps=0.1, affine=False), plain, x)


INSTANCE = {
    1: torch.nn.InstanceNorm1d, 2: torch.nn.InstanceNorm2d, 3: torch.nn.InstanceNorm3d
}  # fmt: skip


@pytest.mark.parametrize("space", [(5,), (4, 3), (2, 3, 4)])
def test_instance_norm(space: tuple[int, ...]) -> None:
    x, kind = drawn(3, *space, 6), INSTANCE[len(space)]
    check(nn.InstanceNorm(6), kind(6), x)
    layer = nn.InstanceNorm(6, eps=1e-3, affine=True, dtype="float64")
    check(layer, kind(6, eps=1e-3, affine=True), x)
    assert layer.init_state() is None


def test_running_statistics_of_instances() -> None:
    layer = nn.InstanceNorm(4, momentum=0.3, affine=True, track_running_stats=True)
    module = torch.nn.InstanceNorm2d(4, momentum=0.3, affine=True, track_running_stats=True)
    params, state = layer.init(random.key(0)), layer.init_state()
    step = gf.jit(lambda p, v, s: layer(p, v, state=s, train=True))
    for i in range(3):
        x = (drawn(3, 5, 3, 4) * (i + 1)).astype(np.float32)
        y, state = step(params, x, state)
        np.testing.assert_allclose(y, last(module(first(x))), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state["running_mean"], module.running_mean, rtol=1e-5)
    np.testing.assert_allclose(state["running_var"], module.running_var, rtol=1e-5)
    module.eval()
    y, same = layer(params, x, state=state)
    assert same is state
    np.testing.assert_allclose(y, last(module(first(x))), rtol=1e-4, atol=1e-5)
    with pytest.raises(gf.errors.ArgumentError, match="state= is missing"):
        layer(params, x)


def test_layer_norm_without_bias_or_without_parameters() -> None:
    x = drawn(3, 5, 6)
    as_it_is, numpy = lambda v: torch.from_numpy(v.copy()), lambda t: t.detach().numpy()
    for options in ({"bias": False}, {"affine": False}, {}):
        theirs = {"affine": "elementwise_affine"}
        module = torch.nn.LayerNorm(6, **{theirs.get(k, k): v for k, v in options.items()})
        check(nn.LayerNorm(6, dtype="float64", **options), module, x, as_it_is, numpy)
    with pytest.raises(gf.errors.ArgumentError, match="dtype=jnp"):
        nn.LayerNorm(6, 1e-5, "bfloat16")  # type: ignore[arg-type]


def layers() -> dict[str, Any]:
    return {
        "batch": nn.BatchNorm(8),
        "group": nn.GroupNorm(2, 8),
        "instance": nn.InstanceNorm(8),
        "layer": nn.LayerNorm(8),
    }


@pytest.mark.parametrize("name", layers())
@pytest.mark.parametrize("dtype, step", [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_statistics_of_half_precision_are_of_float32(name: str, dtype: str, step: float) -> None:
    """Far from 0, where a variance of 16-bit differences and a 16-bit mean have few digits. Batch
    normalisation returned float32 and rounded its statistics."""
    layer = layers()[name]
    x = given(drawn(4, 16, 16, 8).astype(np.float32) * 2 + 60).astype(dtype)
    params, state = layer.init(random.key(0)), layer.init_state()
    call = lambda v: layer(params, v, state=state, train=True)
    y, wide = call(x), call(x.astype("float32"))
    if state is not None:
        (y, new), (wide, of_wide) = y, wide
        for k, v in new.items():
            assert v.dtype == jnp.float32
            np.testing.assert_allclose(v, of_wide[k], rtol=1e-5)
    assert y.dtype == x.dtype
    np.testing.assert_allclose(y.astype("float32"), wide, rtol=step, atol=1e-4)


def test_a_float64_batch_keeps_the_dtype_of_the_state() -> None:
    """It became float64, which a loop that carries the state refuses."""
    layer = nn.BatchNorm(3)
    _, state = layer({"weight": jnp.ones(3), "bias": jnp.zeros(3)}, given(drawn(4, 3)),
                     state=layer.init_state(), train=True)  # fmt: skip
    assert {v.dtype for v in state.values()} == {np.dtype("float32")}


@pytest.mark.parametrize("train", [False, True])
def test_batch_norm_without_parameters(train: bool) -> None:
    layer, module = nn.BatchNorm(3, affine=False), torch.nn.BatchNorm2d(3, affine=False).double()
    x = drawn(4, 5, 2, 3)
    module.train(train)
    expected = module(first(x))
    assert layer.init(random.key(0)) == {}
    y, state = layer({}, given(x), state=layer.init_state(), train=train)
    np.testing.assert_allclose(y, last(expected), rtol=1e-6, atol=1e-6)
    for name, value in state.items():
        np.testing.assert_allclose(value, module.get_buffer(name), rtol=1e-5)


def test_no_features() -> None:
    """Batch norm divided by their number."""
    for layer in (nn.BatchNorm(0), nn.GroupNorm(1, 0), nn.LayerNorm(0), nn.RMSNorm(0)):
        params, state = layer.init(random.key(0)), layer.init_state()
        y: Any = layer(params, jnp.ones((3, 0)), state=state, train=True)
        assert (y if state is None else y[0]).shape == (3, 0)


def test_batches_by_vmap() -> None:
    x = given(drawn(3, 4, 5, 6).astype(np.float32))
    for layer in (nn.GroupNorm(3, 6), nn.InstanceNorm(6)):
        params = layer.init(random.key(0))
        y = gf.vmap(layer, (None, 0))(params, x)
        np.testing.assert_allclose(y[1], layer(params, x[1]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make, words", [
    (lambda: nn.GroupNorm(4, 6), "groups=4 has to divide features=6"),
    (lambda: nn.GroupNorm(0, 6), "groups=0 has to divide"),
    (lambda: nn.GroupNorm(2.0, 6), "groups is 2.0"),  # type: ignore[arg-type]
    (lambda: nn.InstanceNorm(4, affine=1), "affine is 1"),  # type: ignore[arg-type]
    (lambda: nn.GroupNorm(2, 4)({}, jnp.ones((3, 4))), "params['weight'] of shape [4] is wanted"),
    (lambda: nn.InstanceNorm(4)({}, jnp.ones((3, 5, 4), "complex64")), "has to be real"),
])  # fmt: skip
def test_what_cannot_be_normalised_is_refused(make: Any, words: str) -> None:
    with pytest.raises(gf.errors.ArgumentError) as error:
        make()
    assert words in str(error.value)
