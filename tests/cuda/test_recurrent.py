"""Recurrent and state-space layers, and reparametrised weights, on a GPU: values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import programs
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, random

rng = np.random.default_rng(0)
LENGTHS = np.array([4, 2], np.int32)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


LAYERS: dict[str, tuple[nn.Module, dict[str, Any]]] = {
    "LSTM": (nn.LSTM(3, 4, bidirectional=True), {"lengths": LENGTHS}),
    "GRU": (nn.GRU(3, 4), {}),
    "RNN": (nn.RNN(nn.RNNCell(3, 4), reverse=True), {"lengths": LENGTHS}),
    "SelectiveSSM": (nn.SelectiveSSM(3, state_size=2), {}),
    "SpectralNorm": (nn.SpectralNorm(nn.Linear(3, 4)), {"train": True}),
    "WeightNorm": (nn.WeightNorm(nn.Linear(3, 4)), {}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_values_states_and_gradients(name: str) -> None:
    layer, options = LAYERS[name]
    params, state = layer.init(random.key(0)), layer.init_state(batch=2)
    x = normal(2, 4, 3)

    def loss(params: Any, x: Any, state: Any) -> Any:
        result = layer(params, x, state=state, **options)
        y, new = (result, None) if state is None else result
        return jnp.sum(jnp.sin(y)), (y, new)

    @gf.default_matmul_precision("float32")
    def f(params: Any, x: Any, state: Any) -> Any:
        return gf.value_and_grad(loss, (0, 1), has_aux=True)(params, x, state)

    programs.compare(f, params, x, state, tolerance=5e-5)


def test_tied_weights() -> None:
    model = nn.Tied(
        nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)), {"1.weight": "0.weight"}
    )
    ids = np.array([1, 6, 1], np.int32)
    params = model.init(random.key(0))

    @gf.default_matmul_precision("float32")
    def loss(params: Any, ids: Any) -> Any:
        return jnp.sum(jnp.sin(model(params, ids)))

    programs.compare(gf.value_and_grad(loss), params, ids)
