"""Mixture of experts as one program: the CPU's outputs, gradients and state."""

from __future__ import annotations

from typing import Any

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import nn, random, tree
from genesis_fn.transforms.jitting import jit


@pytest.mark.parametrize(("tokens", "dtype", "tolerance"), [
    (1, gnp.float32, 2e-5), (20, gnp.float32, 2e-5), (20, gnp.bfloat16, 3e-2),
])  # fmt: skip
def test_mixture_of_experts(tokens: int, dtype: Any, tolerance: float) -> None:
    layer = nn.MoE(16, 24, experts=5, top_k=2, shared_hidden=8, shared_gate=True, dtype=dtype)
    rng = np.random.default_rng(0)
    params = jit(lambda: layer.init(random.key(3)))()
    x = rng.normal(size=(tokens, 16)).astype(np.float32)
    weights = rng.normal(size=(tokens, 16)).astype(np.float32)

    def loss(params: Any, x: Any) -> Any:
        y, state = layer(params, x.astype(dtype), state=layer.init_state())
        total = gnp.sum(y.astype(gnp.float32) * weights)
        return total + state["balance_loss"] + 0.1 * state["z_loss"], (y, state)

    def f(params: Any, x: Any) -> Any:
        return tree.leaves(g.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, x))

    with g.default_matmul_precision("float32"):
        programs.compare(f, params, x, tolerance=tolerance)
