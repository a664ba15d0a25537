"""Reduced losses and their gradients on the interpreted GPU, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn
from genesis_fn.core.device import cpu, cuda, using_device

LABELS = [0, 5, -100, 2]
LOSSES: dict[str, Callable[..., Any]] = {
    "cross_entropy": lambda x, y, p, m: nn.cross_entropy(
        x, jnp.array(LABELS), weight=p[0], label_smoothing=0.1, ignore_index=-100, where=m),
    "nll": lambda x, y, p, m: nn.nll_loss(nn.log_softmax(x), jnp.array(LABELS), ignore_index=-100),
    "bce": lambda x, y, p, m: nn.binary_cross_entropy(nn.sigmoid(x), p),
    "logits": lambda x, y, p, m: nn.binary_cross_entropy_with_logits(x, p, pos_weight=p[0]),
    "smooth_l1": lambda x, y, p, m: nn.smooth_l1_loss(x, y, beta=0.5, where=m[:, None]),
    "kl_div": lambda x, y, p, m: nn.kl_div(nn.log_softmax(x), p, reduction="batchmean"),
    "triplet": lambda x, y, p, m: nn.triplet_margin_loss(x, y, p, p=3.0, swap=True),
    "cosine": lambda x, y, p, m: nn.cosine_embedding_loss(x, y, jnp.array([1, -1, 1, -1])),
    "info_nce": lambda x, y, p, m: nn.info_nce(x, y, symmetric=True, where=m),
    "gaussian": lambda x, y, p, m: nn.gaussian_nll_loss(x, y, p),
    "poisson": lambda x, y, p, m: nn.poisson_nll_loss(x, 5 * p, full=True),
    "ctc": lambda x, y, p, m: nn.ctc_loss(
        nn.log_softmax(x)[:, None], jnp.array([[1, 2]]), jnp.array([4]), jnp.array([2])),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 4, 6)).astype(np.float32)
    operands = x, y, rng.random((4, 6), np.float32), np.array([True, True, True, False])
    found = []
    for device in (cpu(), cuda()):
        with using_device(device):
            with gf.default_matmul_precision("float32"):
                run = gf.jit(gf.value_and_grad(LOSSES[name]))
                found.append([np.asarray(v) for v in run(*map(jnp.asarray, operands))])
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
