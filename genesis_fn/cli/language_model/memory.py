"""Whether the cache of a model fits into memory, asked before anything is generated."""

from __future__ import annotations

import math
import os

from genesis_fn import cuda
from genesis_fn.cli.language_model.opening import LanguageModel
from genesis_fn.core import tree
from genesis_fn.core.device import default_device
from genesis_fn.models.generation import causal_model
from genesis_fn.models.generation.prompts import bucket
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


def available() -> float:
    """The bytes that the device can give: of a computer those that are free or can be freed, of a
    GPU all, as what is free there may be held by this process; infinite where nothing says it."""
    device = default_device()
    if device.kind == "cuda":
        return cuda.mem_get_info(device)[1]
    try:
        with open("/proc/meminfo", encoding="ascii") as f:
            for line in f:
                name, _, value = line.partition(":")
                if name == "MemAvailable":
                    return int(value.split()[0]) << 10
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return math.inf
