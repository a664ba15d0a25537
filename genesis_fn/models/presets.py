"""The hyperparameters of published models, by name."""

from __future__ import annotations

import functools

from genesis_fn.models.decoder_config import DecoderConfig
from genesis_fn.nn import Llama3Scaling

# Llama and Mistral, of 32 layers and heads.
_llama = functools.partial(
    DecoderConfig,
    num_hidden_layers=32,
    num_attention_heads=32,
    qk_norm=False,
    tie_word_embeddings=False,
    rms_norm_eps=1e-5,
)

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
                                  max_position_embeddings=32768, attention_bias=True,
                                  qk_norm=False),
    "llama-2-7b": _llama(32000, 4096, 11008, num_key_value_heads=32, rope_theta=1e4,
                         max_position_embeddings=4096),
    "llama-3.1-8b": _llama(128256, 4096, 14336, rope_theta=5e5, max_position_embeddings=131072,
                           rope_scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192)),
    "mistral-7b": _llama(32000, 4096, 14336, rope_theta=1e4, max_position_embeddings=32768,
                         sliding_window=4096),
}  # fmt: skip
