"""The functions of a decoder that generation calls, and its config's type.

A cache is made and extended by these functions alone. What else generation knows of it: it is a
pytree, `lengths` says how many positions of each row are filled, and the other leaves have the rows
as their first axis.
"""

from __future__ import annotations

import math
from typing import Any

from genesis_fn import DTypeLike, PyTree, dtypes
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import brief
from genesis_fn.models import decoder
from genesis_fn.models.decoder_config import DecoderConfig
from genesis_fn.nn import DynamicScaling

Config = DecoderConfig
init_cache = decoder.init_cache
prefill = decoder.prefill
extend_within = decoder.extend_within
head_weight = decoder.head_weight


def check_model(caller: str, params: PyTree, config: Any) -> None:
    """Raise ArgumentError where a call is given something else for a decoder."""
    if not isinstance(config, Config):
        raise ArgumentError(
            f"{caller}: config is {brief(config)}, a {type(config).__name__}, expected a "
            "DecoderConfig, as of models.QwenConfig or io.load_model"
        )
    try:
        head_weight(params)
    except (TypeError, KeyError, IndexError, AttributeError):
        raise ArgumentError(
            f"{caller}: params, a {type(params).__name__}, are not those of a decoder, as of "
            "qwen.init or io.load_model"
        ) from None


def lasting_length(config: Config) -> float:
    """The most tokens of a text whose keys stay what they are when the text gets longer: dynamic
    scaling changes the frequencies of all positions with each token behind the trained context."""
    scaling = config.rope_scaling
    if isinstance(scaling, DynamicScaling):
        return scaling.original_max_position_embeddings
    return math.inf


def cache_dtype_of(params: PyTree, dtype: DTypeLike | None) -> DTypeLike:
    """The dtype of a cache: `dtype`, or that of the output layer's weight where it is None."""
    return dtypes.dtype(head_weight(params).dtype if dtype is None else dtype)
