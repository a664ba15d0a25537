"""Whether the cache of a model fits into memory, asked before anything is generated."""

from __future__ import annotations

from genesis_fn.cli.language_model.opening import LanguageModel
from genesis_fn.core import tree
from genesis_fn.models.generation import causal_model
from genesis_fn.models.generation.prompts import bucket
from genesis_fn.training.memory.available import available
from genesis_fn.transforms import eval_shape


def check_cache(model: LanguageModel, rows: int, capacity: int, asked: str) -> None:
    """Refuse a cache that is larger than the memory. Some systems promise memory that they have
    not, and end the process when it is used.

    Args:
        model: the model.
        rows: texts that are continued at once.
        capacity: tokens of each.
        asked: the option that decides it, for the message: "--capacity 4096".

    Raises:
        MemoryError: names `asked`, and the bytes.
    """
    dtype = causal_model.cache_dtype_of(model.params, None)
    cache = eval_shape(lambda: causal_model.init_cache(model.config, rows, bucket(capacity), dtype))
    needed = sum(leaf.nbytes for leaf in tree.leaves(cache))
    if needed > (there := available()):
        raise MemoryError(
            f"{asked}: a cache for {capacity:,} tokens takes {needed:,} bytes, and the "
            f"memory has {there:,.0f}: give less"
        )
