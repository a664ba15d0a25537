"""One small instance of every exported layer, for the tests that hold for all of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn import nn, random


@dataclasses.dataclass(frozen=True)
class Row:
    """A layer and an input of it: a shape of floats, or an array."""

    layer: nn.Module
    x: tuple[int, ...] | np.ndarray
    sizes: tuple[tuple[str, int], ...] = ()
    """Sizes for `init_state`, if the layer's state needs some."""
    random: bool = False
    """Whether the output with `train=True` depends on the key."""
    batched: bool = True
    """Whether the first axis is a batch whose rows do not see each other."""
    wide: bool = False
    """Whether some parameters stay float32 where the layer's dtype is narrower."""

    def input(self) -> Any:
        if isinstance(self.x, np.ndarray):
            return jnp.asarray(self.x)
        return jnp.asarray(np.random.default_rng(5).normal(size=self.x).astype(np.float32))

    def params(self) -> Any:
        return self.layer.init(random.key(0))

    def state(self) -> Any:
        return self.layer.init_state(**dict(self.sizes))


CACHE = (("batch", 2), ("capacity", 6))
TOKENS = np.array([[1, 4, 0], [8, 8, 2]])

BATCH = (("batch", 2),)

ROWS = {
    "Activation": Row(nn.Activation(nn.silu), (2, 3)),
    "AdaptiveAvgPool": Row(nn.AdaptiveAvgPool((2, 3)), (2, 5, 7, 2)),
    "AdaptiveMaxPool": Row(nn.AdaptiveMaxPool(2), (2, 5, 4, 2)),
    "AlphaDropout": Row(nn.AlphaDropout(0.5), (4, 8), random=True),
    "AvgPool": Row(nn.AvgPool(2, padding=1, count_include_pad=False), (2, 5, 4, 2)),
    "BatchNorm": Row(nn.BatchNorm(3), (4, 3), batched=False),
    "ChannelDropout": Row(nn.ChannelDropout(0.5), (4, 3, 8), random=True),
    "Conv": Row(nn.Conv(2, 3, (3, 2)), (2, 4, 5, 2)),
    "Conv1d": Row(nn.Conv1d(2, 3, 3), (2, 5, 2)),
    "Conv2d": Row(nn.Conv2d(2, 4, 3, groups=2), (2, 4, 5, 2)),
    "Conv3d": Row(nn.Conv3d(2, 3, 2), (2, 3, 3, 4, 2)),
    "ConvTranspose": Row(nn.ConvTranspose(2, 3, (3, 2), strides=2), (2, 3, 4, 2)),
    "ConvTranspose1d": Row(nn.ConvTranspose1d(2, 3, 3, strides=2, padding=1), (2, 4, 2)),
    "ConvTranspose2d": Row(nn.ConvTranspose2d(4, 2, 3, groups=2), (2, 3, 4, 4)),
    "ConvTranspose3d": Row(nn.ConvTranspose3d(2, 3, 2), (2, 2, 3, 3, 2)),
    "DropPath": Row(nn.DropPath(0.5), (16, 3), random=True),
    "Dropout": Row(nn.Dropout(0.5), (4, 8), random=True),
    "Embedding": Row(nn.Embedding(9, 4), TOKENS),
    "FeatureAlphaDropout": Row(nn.FeatureAlphaDropout(0.5), (4, 3, 8), random=True),
    "Flatten": Row(nn.Flatten(), (2, 3, 4)),
    "GRU": Row(nn.GRU(3, 4, layers=2, bidirectional=True, dropout=0.3), (2, 5, 3), BATCH, True),
    "GRUCell": Row(nn.GRUCell(3, 4), (2, 3), BATCH),
    "GatedMLP": Row(nn.GatedMLP(4, 6, nn.gelu, bias=True), (2, 4)),
    "GroupNorm": Row(nn.GroupNorm(2, 4), (2, 5, 4)),
    "InstanceNorm": Row(nn.InstanceNorm(3, affine=True), (2, 5, 3)),
    "LSTM": Row(nn.LSTM(3, 4, layers=2, dropout=0.3), (2, 5, 3), BATCH, True),
    "LSTMCell": Row(nn.LSTMCell(3, 4), (2, 3), BATCH),
    "LayerNorm": Row(nn.LayerNorm(6), (2, 6)),
    "Linear": Row(nn.Linear(3, 4), (2, 3)),
    "MLP": Row(nn.MLP(4, 6, dropout=0.3), (3, 4), random=True),
    "MaxPool": Row(nn.MaxPool((2, 3), padding=1), (2, 5, 6, 2)),
    "MoE": Row(nn.MoE(4, 6, experts=4, top_k=2, shared_hidden=3, shared_gate=True), (5, 4)),
    "MultiHeadAttention": Row(
        nn.MultiHeadAttention(16, 2, 1, causal=True, rotary=nn.RotaryEmbedding(8), dropout=0.2),
        (2, 5, 16),
        CACHE,
        random=True,
    ),
    "PatchEmbedding": Row(nn.PatchEmbedding(2, 3, 5), (2, 4, 6, 3)),
    "RMSNorm": Row(nn.RMSNorm(6), (2, 6)),
    "RNN": Row(nn.RNN(nn.GRUCell(3, 4), reverse=True), (2, 5, 3), BATCH),
    "RNNCell": Row(nn.RNNCell(3, 4), (2, 3), BATCH),
    "Residual": Row(nn.Residual(nn.Linear(4, 4)), (2, 4)),
    "RotaryEmbedding": Row(nn.RotaryEmbedding(8), (2, 3, 2, 8)),
    "SelectiveSSM": Row(nn.SelectiveSSM(4, state_size=3), (2, 5, 4), BATCH, wide=True),
    "Sequential": Row(
        nn.Sequential(norm=nn.BatchNorm(4), up=nn.Linear(4, 6), drop=nn.Dropout(0.3)),
        (3, 4),
        random=True,
        batched=False,
    ),
    "SpectralNorm": Row(nn.SpectralNorm(nn.Linear(4, 3)), (2, 4)),
    "SwiGLU": Row(nn.SwiGLU(4, 6), (2, 4)),
    "Tied": Row(
        nn.Tied(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), {"1.weight": "0.weight"}), (2, 4)
    ),
    "WeightNorm": Row(nn.WeightNorm(nn.Linear(4, 3)), (2, 4)),
}
