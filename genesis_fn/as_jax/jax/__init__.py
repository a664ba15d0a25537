"""What is JAX's alone among the names of `jax`."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import jax.version as version
from jax._src.config import config as config, context

from genesis_fn.as_jax.integer_tangents import (
    grad as grad,
    jvp as jvp,
    linearize as linearize,
    value_and_grad as value_and_grad,
    vjp as vjp,
)
from genesis_fn.as_jax.stubs import stub
from genesis_fn.core import tree as _tree
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


class Slice(NamedTuple):
    """`size` elements from `start` on, `stride` apart; indexing refuses it by name."""

    start: Any
    size: Any
    stride: int = 1


def ds(start: Any, size: Any = None, stride: int | None = None) -> Slice | slice:
    """A slice of `size` elements from `start` on: from 0 on where one number is given, which is
    the size; None is all of an axis."""
    if start is None and size is None:
        return slice(None, None, stride)
    if size is None:
        start, size = 0, start
    return Slice(0 if start is None else start, size, 1 if stride is None else stride)


class CompilerEffortLevel(enum.Enum):
    """How hard XLA tries; there is one level here."""

    UNKNOWN, O0, O1, O2, O3 = -1, 0, 1, 2, 3


def copy_to_host_async(x: Any) -> Any:
    """Start the copies of arrays that have one to start, and return `x`."""
    for leaf in _tree.leaves(x):
        start = getattr(leaf, "copy_to_host_async", None)
        if start is not None:
            start()
    return x


def pmap(fun: Any, *args: Any, **kwargs: Any) -> Any:
    """A function that refuses to be called."""
    return _Pmapped()


class _Pmapped:
    """What `pmap` returns."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        stub("jax.pmap", "jax.shard_map over a mesh, or jax.vmap")()
