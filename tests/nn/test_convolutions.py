"""Convolutions over a set number of axes and transposed ones, against torch's and JAX's."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, random

SPACE = (5, 6, 4)
TRANSPOSED = {
    1: torch.nn.ConvTranspose1d, 2: torch.nn.ConvTranspose2d, 3: torch.nn.ConvTranspose3d
}  # fmt: skip


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def given(x: np.ndarray) -> Any:
    """An array of the same dtype: 64 bits stay."""
    return jnp.asarray(x, x.dtype)


def first(x: np.ndarray) -> torch.Tensor:
    """Channels first, as torch has them."""
    return torch.from_numpy(np.moveaxis(x, -1, 1).copy())


def last(x: torch.Tensor) -> np.ndarray:
    return np.moveaxis(x.detach().numpy(), 1, -1)


def outputs_and_gradients(layer: Any, params: Any, x: np.ndarray, weights: np.ndarray) -> Any:
    """The layer's output, and the gradients of its sum, weighted, by parameters and input."""

    def loss(p: Any, v: Any) -> Any:
        y = layer(p, v)
        return jnp.sum(y * given(weights)), y

    (_, y), (dp, dx) = gf.value_and_grad(loss, (0, 1), has_aux=True)(params, given(x))
    return y, dp, dx


@pytest.mark.parametrize("case", [
    dict(kernel=(4,), strides=2, padding=1),
    dict(kernel=(3,), padding=0, dilation=2, bias=False),
    dict(kernel=(2,), strides=4, padding=0),
    dict(kernel=(4, 3), strides=2, padding=1),
    dict(kernel=(3, 3), strides=(2, 3), padding=1, output_padding=(1, 2), groups=2),
    dict(kernel=(3, 2), strides=1, padding=0, output_padding=1, dilation=(2, 3), groups=4),
    dict(kernel=(1, 1), strides=2, padding=0, output_padding=1),
    dict(kernel=(2, 3, 2), strides=(2, 1, 3), padding=0, groups=4, dilation=(1, 2, 1)),
])  # fmt: skip
def test_transposed_convolution(case: dict[str, Any]) -> None:
    n = len(case["kernel"])
    layer = nn.ConvTranspose(4, 8, dtype=jnp.float64, **case)
    names = {"kernel": "kernel_size", "strides": "stride"}
    module = TRANSPOSED[n](4, 8, **{names.get(k, k): v for k, v in case.items()}).double()
    params = layer.init(random.key(n))
    assert {k: v.shape for k, v in params.items()} == {
        k: (*v.shape,) for k, v in module.state_dict().items()
    }
    module.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in params.items()})
    x = drawn(2, *SPACE[:n], 4)
    t = first(x).requires_grad_()
    expected = module(t)
    weights = drawn(*last(expected).shape)
    (first(weights) * expected).sum().backward()
    for run in (outputs_and_gradients, gf.jit(outputs_and_gradients, static_argnums=0)):
        y, dp, dx = run(layer, params, given(x), given(weights))
        np.testing.assert_allclose(y, last(expected), rtol=1e-10, atol=1e-12)
        assert t.grad is not None
        np.testing.assert_allclose(dx, last(t.grad), rtol=1e-10, atol=1e-12)
        for name, g in dp.items():
            theirs = module.get_parameter(name).grad
            np.testing.assert_allclose(g, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("kernel, strides, dilation", [
    ((3,), (2,), (1,)), ((2,), (3,), (1,)), ((4, 3), (1, 2), (1, 1)), ((3, 1), (2, 3), (2, 1)),
])  # fmt: skip
def test_named_padding_is_jax(padding: str, kernel: Any, strides: Any, dilation: Any) -> None:
    n = len(kernel)
    layer = nn.ConvTranspose(3, 5, kernel, strides, padding, dilation=dilation, dtype="float64")
    params = layer.init(random.key(0))
    x = drawn(2, *SPACE[:n], 3)
    with jax.enable_x64(True):
        space = "HW"[:n]
        expected = jax.lax.conv_transpose(
            x,
            np.asarray(params["weight"]),
            strides,
            padding,
            dilation,
            (f"N{space}C", f"OI{space}", f"N{space}C"),
            transpose_kernel=True,
        )
        expected = np.asarray(expected) + np.asarray(params["bias"])
    y = layer(params, given(x))
    if padding == "SAME":
        assert y.shape[1:-1] == tuple([m * s for m, s in zip(SPACE, strides)])
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)


def test_it_is_the_gradient_of_a_convolution_of_the_same_weight() -> None:
    """With strides that do not divide, which `output_padding` makes up for."""
    forward = nn.Conv2d(4, 6, 3, strides=2, padding=1, groups=2, bias=False, dtype="float64")
    back = nn.ConvTranspose2d(
        6, 4, 3, strides=2, padding=1, output_padding=1, groups=2, bias=False, dtype="float64"
    )
    params = forward.init(random.key(3))
    x = given(drawn(2, 8, 6, 4))
    y, pull = gf.vjp(lambda v: forward(params, v), x)
    ct = given(drawn(*y.shape))
    np.testing.assert_allclose(back(params, ct), pull(ct)[0], rtol=1e-10, atol=1e-12)


OPTIONS: dict[str, Any] = {"strides": 2, "padding": 1, "groups": 2}
# Each with the same in `Conv` or `ConvTranspose`, and torch's.
OF_AXES = [
    (nn.Conv1d(4, 6, 3, **OPTIONS), nn.Conv, torch.nn.Conv1d),
    (nn.Conv2d(4, 6, 3, **OPTIONS), nn.Conv, torch.nn.Conv2d),
    (nn.Conv3d(4, 6, 3, **OPTIONS), nn.Conv, torch.nn.Conv3d),
    (nn.ConvTranspose1d(4, 6, 3, **OPTIONS), nn.ConvTranspose, torch.nn.ConvTranspose1d),
    (nn.ConvTranspose2d(4, 6, 3, **OPTIONS), nn.ConvTranspose, torch.nn.ConvTranspose2d),
    (nn.ConvTranspose3d(4, 6, 3, **OPTIONS), nn.ConvTranspose, torch.nn.ConvTranspose3d),
]


@pytest.mark.parametrize("layer, any_axes, theirs", OF_AXES, ids=[c[2].__name__ for c in OF_AXES])
def test_layers_of_a_set_number_of_axes(layer: Any, any_axes: Any, theirs: Any) -> None:
    """An integer serves as the kernel, and they compute what torch's and the general ones do."""
    kind, n = type(layer), len(layer.kernel)
    x = drawn(2, *SPACE[:n], 4).astype(np.float32)
    assert layer == kind(4, 6, (3,) * n, **OPTIONS) == kind(4, 6, [3] * n, **OPTIONS)
    assert kind(4, 6).kernel == (3,) * n
    params = layer.init(random.key(1))
    module = theirs(4, 6, 3, stride=2, padding=1, groups=2)
    module.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in params.items()})
    y = layer(params, x)
    np.testing.assert_allclose(y, last(module(first(x))), rtol=1e-4, atol=1e-5)
    general = any_axes(4, 6, (3,) * n, **OPTIONS)
    np.testing.assert_array_equal(y, general(general.init(random.key(1)), x))
    jitted = gf.jit(lambda f, p, v: f(p, v), static_argnums=0)
    np.testing.assert_allclose(jitted(layer, params, x), y, rtol=1e-5, atol=1e-6)
    wrong: Any
    for wrong in ((3,) * (n + 1), (), 3.0, "3", True):
        with pytest.raises(gf.errors.ArgumentError, match=f"{kind.__name__}: kernel is"):
            kind(4, 6, wrong)


def test_many_weights_by_vmap() -> None:
    layer = nn.ConvTranspose1d(4, 6, 3, strides=2, padding=1, groups=2)
    params = gf.vmap(layer.init)(random.split(random.key(0), 3))
    x = jnp.asarray(drawn(3, 2, 5, 4).astype(np.float32))
    y = gf.vmap(layer)(params, x)
    shared = gf.vmap(layer, (0, None))(params, x[0])
    for i in range(3):
        one = {k: v[i] for k, v in params.items()}
        np.testing.assert_allclose(y[i], layer(one, x[i]), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(shared[i], layer(one, x[0]), rtol=1e-5, atol=1e-6)


def test_half_precision_keeps_its_dtype() -> None:
    layer = nn.ConvTranspose2d(4, 6, 3, dtype="bfloat16")
    params = layer.init(random.key(0))
    x = drawn(1, 4, 4, 4).astype(np.float32)
    y = layer(params, jnp.asarray(x).astype("bfloat16"))
    wide = nn.ConvTranspose2d(4, 6, 3)(gf.tree.map(lambda v: v.astype("float32"), params), x)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype("float32"), wide, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("options, words", [
    ({"output_padding": 1}, "give padding as numbers"),
    ({"output_padding": 2, "padding": 1, "strides": 2}, "has to be less than strides=(2, 2)"),
    ({"output_padding": -1, "padding": 1}, "output_padding is -1"),
    ({"output_padding": (1,), "padding": 1}, "output_padding is (1,)"),
    ({"padding": "SAME_LOWER"}, "padding is 'SAME_LOWER', but is a name (SAME, VALID)"),
    ({"padding": "full"}, "padding is 'full'"),
    ({"padding": -1}, "padding is -1"),
    ({"strides": 0}, "strides is 0"),
    ({"strides": (2,)}, "strides is (2,)"),
    ({"dilation": (1, 2, 3)}, "dilation is (1, 2, 3)"),
    ({"groups": 3}, "groups=3 has to divide features_in=4"),
    ({"kernel": (0, 3)}, "kernel is (0, 3)"),
])  # fmt: skip
def test_transposed_convolutions_are_refused_when_they_are_made(options: Any, words: str) -> None:
    with pytest.raises(gf.errors.ArgumentError) as error:
        nn.ConvTranspose(4, 8, **options)
    assert words in str(error.value) and str(error.value).startswith("ConvTranspose: ")


def test_a_name_of_padding_that_is_none_is_refused_by_convolutions() -> None:
    """It was refused by the first call, without the layer's name."""
    with pytest.raises(gf.errors.ArgumentError, match="Conv: padding is 'full'"):
        nn.Conv(4, 8, padding="full")
    assert nn.Conv(4, 8, padding="same") == nn.Conv(4, 8)


def test_numbers_of_numpy_are_numbers() -> None:
    """A NumPy integer as strides raised a TypeError."""
    two: Any = np.int64(2)
    assert nn.Conv(4, 8, strides=two, padding=two) == nn.Conv(4, 8, strides=2, padding=2)
