"""Qwen2, Qwen2.5, Qwen3 and Qwen3-MoE: the decoder by their name."""

from __future__ import annotations

from genesis_fn.models.decoder import (
    decode_step as decode_step,
    extend as extend,
    extend_within as extend_within,
    forward as forward,
    head_weight as head_weight,
    hidden as hidden,
    init as init,
    init_cache as init_cache,
    loss as loss,
    loss_sum as loss_sum,
    prefill as prefill,
)
from genesis_fn.models.decoder_config import DecoderConfig
from genesis_fn.models.decoder_module import Decoder
from genesis_fn.models.presets import PRESETS as PRESETS

Qwen = Decoder
QwenConfig = DecoderConfig
