"""The hyperparameters of published models, by name."""

from __future__ import annotations

from genesis_fn.models.decoder_config import DecoderConfig
from genesis_fn.nn import Llama3Scaling

_QWEN25 = dict(attention_bias=True, qk_norm=False)
_LLAMA = dict(qk_norm=False, tie_word_embeddings=False, rms_norm_eps=1e-5)

PRESETS: dict[str, DecoderConfig] = {
    "qwen3-0.6b": DecoderConfig(),
    "qwen3-1.7b": DecoderConfig(hidden_size=2048, intermediate_size=6144),
    "qwen3-4b": DecoderConfig(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36,
                              num_attention_heads=32),
    "qwen3-8b": DecoderConfig(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
                              num_attention_heads=32, tie_word_embeddings=False),
    "qwen3-30b-a3b": DecoderConfig(hidden_size=2048, intermediate_size=6144, num_hidden_layers=48,
                                   num_attention_heads=32, num_key_value_heads=4,
                                   tie_word_embeddings=False, num_experts=128,
                                   norm_topk_prob=True),
    "qwen2.5-0.5b": DecoderConfig(hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
                                  num_attention_heads=14, num_key_value_heads=2, head_dim=64,
                                  max_position_embeddings=32768, **_QWEN25),
    "llama-2-7b": DecoderConfig(32000, 4096, 11008, 32, 32, 32, rope_theta=1e4,
                                max_position_embeddings=4096, **_LLAMA),
    "llama-3.1-8b": DecoderConfig(128256, 4096, 14336, 32, 32, 8, rope_theta=5e5,
                                  max_position_embeddings=131072,
                                  rope_scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192), **_LLAMA),
    "mistral-7b": DecoderConfig(32000, 4096, 14336, 32, 32, 8, rope_theta=1e4,
                                max_position_embeddings=32768, sliding_window=4096, **_LLAMA),
}  # fmt: skip
