"""Patches of images, by one product, against torch's strided convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, random

SPACE = (6, 8, 4)
CONV = {1: torch.nn.Conv1d, 2: torch.nn.Conv2d, 3: torch.nn.Conv3d}


@pytest.mark.parametrize("patch, bias", [
    ((3,), True), (2, False), (2, True), ((3, 4), True), ((6, 8), True), ((2, 4, 1), True),
])  # fmt: skip
def test_patches_are_a_strided_convolution(patch: Any, bias: bool) -> None:
    layer = nn.PatchEmbedding(patch, 3, 5, bias=bias, dtype=jnp.float64)
    assert isinstance(layer.patch, tuple)
    sizes = layer.patch
    n = len(sizes)
    module = CONV[n](3, 5, sizes, sizes, bias=bias).double()
    params = layer.init(random.key(0))
    module.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in params.items()})
    x = np.random.default_rng(n).normal(size=(2, *SPACE[:n], 3))
    t = torch.from_numpy(np.moveaxis(x, -1, 1).copy()).requires_grad_()
    expected = module(t).flatten(2).transpose(1, 2)
    weights = np.random.default_rng(9).normal(size=expected.shape)
    (torch.from_numpy(weights) * expected).sum().backward()

    def loss(p: Any, v: Any) -> Any:
        y = layer(p, v)
        return jnp.sum(y * jnp.asarray(weights, "float64")), y

    run = gf.value_and_grad(loss, (0, 1), has_aux=True)
    for f in (run, gf.jit(run)):
        (_, y), (dp, dx) = f(params, jnp.asarray(x, "float64"))
        np.testing.assert_allclose(y, expected.detach(), rtol=1e-10, atol=1e-12)
        assert t.grad is not None
        np.testing.assert_allclose(dx, np.moveaxis(t.grad.numpy(), 1, -1), rtol=1e-10, atol=1e-12)
        for name, g in dp.items():
            np.testing.assert_allclose(g, module.get_parameter(name).grad, rtol=1e-10, atol=1e-12)


def test_a_patch_is_one_product() -> None:
    layer = nn.PatchEmbedding(4, 3, 8)
    params = layer.init(random.key(0))
    text = str(gf.make_jaxpr(layer)(params, jnp.ones((2, 8, 12, 3))))
    assert text.count("dot_general") == 1 and "conv" not in text
    over = gf.vmap(layer, (None, 0))(params, jnp.ones((3, 2, 8, 12, 3)))
    assert over.shape == (3, 2, 6, 8)


@pytest.mark.parametrize("call, words", [
    (lambda: nn.PatchEmbedding(0, 3, 8), "patch is 0"),
    (lambda: nn.PatchEmbedding((2, 2, 2, 2), 3, 8), "patch is (2, 2, 2, 2)"),
    (lambda: nn.PatchEmbedding(4, 3.0, 8), "features_in is 3.0"),  # type: ignore[arg-type]
    (
        lambda: nn.PatchEmbedding(4, 3, 8, bias=False)(
            {"weight": jnp.ones((8, 3, 4, 4))}, jnp.ones((1, 8, 9, 3))
        ),
        "whose axes [8, 9] are no multiples of [4, 4]",
    ),
])  # fmt: skip
def test_what_has_no_patches_is_refused(call: Any, words: str) -> None:
    with pytest.raises(gf.errors.ArgumentError) as error:
        call()
    assert words in str(error.value)
