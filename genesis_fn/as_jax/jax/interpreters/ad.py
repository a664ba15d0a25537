"""The names of JAX's derivatives that libraries import."""

from __future__ import annotations

from genesis_fn.as_jax.primitives import (
    Zero as Zero,
    primitive_jvps as primitive_jvps,
    primitive_transposes as primitive_transposes,
)
from genesis_fn.as_jax.stubs import stub
from genesis_fn.transforms.autodiff.linearize import LinearizeTracer as JVPTracer

UndefinedPrimal = stub("jax.interpreters.ad.UndefinedPrimal")
instantiate_zeros = stub("jax.interpreters.ad.instantiate_zeros")
