"""What is JAX's alone among the names of `jax`."""

from __future__ import annotations

from typing import Any

import jax.version as version
from jax._src.config import config as config, context

from genesis_fn.as_jax.stubs import stub
from genesis_fn.core.sharding.layout import P as P

__version__ = version.__version__
__version_info__ = version.__version_info__

allow_f16_reductions = context("jax_allow_f16_reductions")
array_garbage_collection_guard = context("jax_array_garbage_collection_guard")
check_tracer_leaks = context("jax_check_tracer_leaks")
debug_key_reuse = context("jax_debug_key_reuse")
enable_custom_prng = context("jax_enable_custom_prng")
legacy_prng_key = context("jax_legacy_prng_key")
no_execution = context("jax_no_execution")
softmax_custom_jvp = context("jax_softmax_custom_jvp")
thread_guard = context("jax_thread_guard")
threefry_partitionable = context("jax_threefry_partitionable")

Ref = stub("jax.Ref", "values that a function takes and returns")
new_ref = stub("jax.new_ref", "values that a function takes and returns")


class ds:
    """A slice of `size` elements from `start` on; indexing refuses it by name."""

    def __init__(self, start: Any, size: int) -> None:
        self.start, self.size = start, size


def pmap(fun: Any, *args: Any, **kwargs: Any) -> Any:
    """A function that refuses to be called."""
    return _Pmapped()


class _Pmapped:
    """What `pmap` returns."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        stub("jax.pmap", "jax.shard_map over a mesh, or jax.vmap")()
