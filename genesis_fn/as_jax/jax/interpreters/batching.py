"""The names of JAX's batching that libraries import."""

from __future__ import annotations

from genesis_fn.as_jax.primitives import (
    axis_primitive_batchers as axis_primitive_batchers,
    primitive_batchers as primitive_batchers,
)

not_mapped = None
