"""The names of `jax.core` that have a meaning here."""

from __future__ import annotations

from typing import Any

from jax._src.core import (
    AbstractValue as AbstractValue,
    ShapedArray as ShapedArray,
    Trace as Trace,
    Tracer as Tracer,
    eval_jaxpr as eval_jaxpr,
    get_aval as get_aval,
    mapped_aval as mapped_aval,
    unmapped_aval as unmapped_aval,
)

from genesis_fn.transforms.staging.tracing import (
    ensure_compile_time_eval as ensure_compile_time_eval,
)

Atom = Value = Any
