"""Decoding a small Qwen as one program: the CPU's tokens, a cache that stays in place, few launches
for each layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import random
from genesis_fn.models import qwen
from genesis_fn.models.sampling import generate
from genesis_fn.transforms.jit import jit

CONFIG = qwen.QwenConfig(
    vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=1e4,
    initializer_range=0.3,
)  # fmt: skip


def weights(config: qwen.QwenConfig, dtype: Any) -> Any:
    return jit(lambda: qwen.init(random.key(3), config, dtype))()


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("dtype", [gnp.float32, gnp.bfloat16], ids=["float32", "bfloat16"])
def test_generation_is_one_program(batch: int, dtype: Any) -> None:
    tokens = np.random.default_rng(0).integers(0, 48, (batch, 3)).astype(np.int32)

    def f(params: Any, tokens: Any) -> Any:
        return generate(params, tokens, CONFIG, max_new_tokens=3, cache_dtype=dtype)

    with g.default_matmul_precision("float32"):
        executable = programs.compare(f, weights(CONFIG, dtype), tokens)
    assert {graph.parts for graph in executable._graphs.values()} == {1}
