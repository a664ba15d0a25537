"""The shapes of the models that the benchmarks train."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of model and batch."""

    layers: int = 4
    width: int = 256
    inner: int = 768
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    vocabulary: int = 4096
    length: int = 256
    batch: int = 4
    eps: float = 1e-6
    theta: float = 1e6


SHAPE = Shape()
# Qwen3-0.6B at 8 x 2048 tokens.
QWEN3_0_6B = Shape(28, 1024, 3072, 16, 8, 128, 151936, 2048, 8)
