"""The functions of a decoder that generation calls, and its config's type.

A cache is made and extended by these functions alone. What else generation knows of it: it is a
pytree, `lengths` says how many positions of each row are filled, and the other leaves have the rows
as their first axis.
"""

from __future__ import annotations

from genesis_fn import DTypeLike, PyTree, dtypes
from genesis_fn.models import decoder
from genesis_fn.models.decoder_config import DecoderConfig

Config = DecoderConfig
init_cache = decoder.init_cache
prefill = decoder.prefill
extend_within = decoder.extend_within
head_weight = decoder.head_weight


def cache_dtype_of(params: PyTree, dtype: DTypeLike | None) -> DTypeLike:
    """The dtype of a cache: `dtype`, or that of the output layer's weight where it is None."""
    return dtypes.dtype(head_weight(params).dtype if dtype is None else dtype)
