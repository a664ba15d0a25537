"""Functions with batching rules of their own."""

from genesis_fn.transforms.custom.batching import (
    custom_vmap as custom_vmap,
    sequential_vmap as sequential_vmap,
)
