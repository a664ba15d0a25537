"""Convolutions, pooling, normalisation, dropout and patches on the CUDA path: values and gradients
as on the CPU, and nothing that the host computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import programs
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, random
from genesis_fn.backends.cuda.run.executable import CudaExecutable
from genesis_fn.backends.cuda.run.steps import has_host

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "conv1d": (nn.Conv1d(4, 6, 3, strides=2), (2, 7, 4)),
    "conv2d": (nn.Conv2d(4, 6, 3, dilation=2), (1, 6, 5, 4)),
    "conv3d": (nn.Conv3d(2, 3, 2), (1, 3, 4, 3, 2)),
    "transpose1d": (nn.ConvTranspose1d(4, 6, 3, strides=2, padding=1, groups=2), (2, 5, 4)),
    "transpose2d": (
        nn.ConvTranspose2d(4, 6, (3, 2), strides=(2, 3), padding=1, output_padding=1),
        (1, 4, 3, 4),
    ),
    "transpose3d": (nn.ConvTranspose3d(2, 3, 2, strides=2), (1, 2, 3, 2, 2)),
    "max_pool": (nn.MaxPool(3, 2, 1, ceil_mode=True), (2, 6, 5, 3)),
    "max_pool_dilated": (nn.MaxPool((2,), 1, 1, dilation=2), (2, 6, 3)),
    "avg_pool": (nn.AvgPool(3, 2, 1, ceil_mode=True), (2, 6, 5, 3)),
    "avg_pool_uncounted": (nn.AvgPool((2, 3), 1, "SAME", False, False), (2, 6, 5, 3)),
    "adaptive_avg": (nn.AdaptiveAvgPool((3, 4)), (2, 7, 6, 3)),
    "adaptive_max": (nn.AdaptiveMaxPool((3, 4)), (2, 7, 6, 3)),
    "global_avg": (nn.AdaptiveAvgPool(1), (2, 7, 6, 3)),
    "group_norm": (nn.GroupNorm(2, 4), (2, 3, 5, 4)),
    "instance_norm": (nn.InstanceNorm(4, affine=True), (2, 3, 5, 4)),
    "running_instance_norm": (nn.InstanceNorm(4, track_running_stats=True), (2, 3, 5, 4)),
    "batch_norm": (nn.BatchNorm(4), (2, 3, 5, 4)),
    "layer_norm": (nn.LayerNorm(4, bias=False), (2, 3, 4)),
    "plain_layer_norm": (nn.LayerNorm(4, affine=False), (2, 3, 4)),
    "dropout": (nn.Dropout(0.5, broadcast_dims=(1,)), (2, 3, 5, 4)),
    "channel_dropout": (nn.ChannelDropout(0.5), (2, 3, 5, 4)),
    "alpha_dropout": (nn.AlphaDropout(0.5), (2, 3, 5, 4)),
    "feature_alpha_dropout": (nn.FeatureAlphaDropout(0.5), (2, 3, 5, 4)),
    "drop_path": (nn.DropPath(0.5), (4, 3, 4)),
    "patches": (nn.PatchEmbedding((2, 3), 3, 5), (2, 4, 6, 3)),
}


def on_the_device(f: Callable[..., Any], *args: Any, tolerance: float) -> CudaExecutable:
    """Runs `f` on both backends; the host takes no part."""
    with gf.default_matmul_precision("highest"):
        executable = programs.compare(f, *args, tolerance=tolerance)
    assert not any(map(has_host, executable.schedule.steps)), executable.report()
    return executable


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-5), ("bfloat16", 4e-2)])
def test_layers_in_training(name: str, dtype: str, tolerance: float) -> None:
    """The output, the next state, and gradients by parameters and input."""
    layer, shape = LAYERS[name]
    cast = lambda v: np.asarray(jnp.asarray(v).astype(dtype))
    params = gf.tree.map(cast, layer.init(random.key(0)))
    state = gf.tree.map(np.asarray, layer.init_state())
    x = cast(np.random.default_rng(0).normal(size=shape).astype(np.float32))

    def step(params: Any, x: Any) -> Any:
        def run(p: Any, v: Any) -> Any:
            return layer(p, v, state=state, key=random.key(1), train=True)

        y, pull = gf.vjp(run, params, x)
        return y, pull(gf.tree.map(lambda v: (v * 0.5 + 1).astype(v.dtype), y))

    on_the_device(step, params, x, tolerance=tolerance)


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint8, np.bool_])
def test_pooling_of_integers(kind: Any) -> None:
    x = np.random.default_rng(0).integers(0, 2 if kind is np.bool_ else 100, (2, 7, 3)).astype(kind)
    on_the_device(lambda v: nn.MaxPool(3, 2, 1)({}, v), x, tolerance=0)
    on_the_device(lambda v: nn.AvgPool(3, 2, 1)({}, v), x, tolerance=1e-6)
    on_the_device(lambda v: nn.AdaptiveMaxPool(3)({}, v), x, tolerance=0)


def test_windows_of_minus_infinity_have_a_derivative() -> None:
    """Padding, of the same value and before them, took it."""
    x = np.full((1, 4, 4, 2), -np.inf, np.float32)
    weights = np.random.default_rng(0).normal(size=(1, 2, 2, 2)).astype(np.float32)
    f = lambda v: jnp.sum(nn.MaxPool(3, 2, 1)({}, v) * weights)
    on_the_device(gf.grad(f), x, tolerance=1e-6)
