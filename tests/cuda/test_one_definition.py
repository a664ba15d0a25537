"""One call defines an elementwise primitive, for both devices and every transform."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn.core import dtypes
from genesis_fn.core.device import Device, cpu, cuda, using_device
from genesis_fn.primitives.elementwise import abs as abs_, add, div, mul
from genesis_fn.primitives.factories import elementwise

X = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
Y = X / (1 + np.abs(X))
DERIVATIVE = 1 / (1 + np.abs(X)) ** 2


@pytest.fixture
def softsign() -> Callable:
    """x / (1 + |x|), as a new primitive."""

    def derivative(y, x):
        length = add(abs_(x), 1)
        return div(1, mul(length, length))

    return elementwise(
        "test_softsign",
        [derivative],
        accepts="float",
        precision="high",
        torch=torch.nn.functional.softsign,
        triton="{0} / (1 + tl.abs({0}))",
        cost=8,
    )


@pytest.fixture(params=[cpu(), cuda()], ids=str)
def device(request) -> Iterator[Device]:
    with using_device(request.param):
        yield request.param


def close(got, want, device, tolerance=1e-6):
    assert got.device is device
    np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=tolerance, atol=tolerance)


def test_eager(softsign, device):
    close(softsign(gnp.asarray(X)), Y, device)


def test_compiled_in_one_kernel_with_its_neighbours(softsign, device):
    f = g.jit(lambda x: softsign(x * 2).sum(-1))
    close(f(gnp.asarray(X)), (2 * X / (1 + np.abs(2 * X))).sum(-1), device, 1e-5)
    if device is cuda():
        text = f.lower(gnp.asarray(X)).compile().as_text()
        assert text.count("tl.abs") == 1


def test_differentiated_both_ways(softsign, device):
    x = gnp.asarray(X)
    close(g.grad(lambda x: softsign(x).sum())(x), DERIVATIVE, device)
    close(g.jit(g.grad(lambda x: softsign(x).sum()))(x), DERIVATIVE, device)
    close(g.jvp(softsign, (x,), (x,))[1], X * DERIVATIVE, device)


def test_batched(softsign, device):
    close(g.vmap(softsign, in_axes=1, out_axes=1)(gnp.asarray(X)), Y, device)
    close(g.jit(g.vmap(softsign))(gnp.asarray(X)), Y, device)


def test_in_float32_under_mixed_precision(softsign, device):
    x = gnp.asarray(X, gnp.bfloat16)
    y = g.jit(g.amp(lambda x: softsign(x)))(x)
    assert y.dtype == dtypes.BF16
    wide = np.asarray(x, np.float32)
    close(y, wide / (1 + np.abs(wide)), device, 1e-2)
