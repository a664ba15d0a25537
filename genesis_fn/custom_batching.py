"""Functions with batching rules of their own."""

from genesis_fn.transforms.custom.batching import custom_vmap, sequential_vmap

__all__ = ["custom_vmap", "sequential_vmap"]
