"""The names of `jax.extend.core` that libraries import."""

from __future__ import annotations

from jax._src.core import (
    Effect as Effect,
    Primitive as Primitive,
    find_top_trace as find_top_trace,
    get_opaque_trace_state as get_opaque_trace_state,
    jaxpr_as_fun as jaxpr_as_fun,
    mapped_aval as mapped_aval,
    set_current_trace as set_current_trace,
    take_current_trace as take_current_trace,
    unmapped_aval as unmapped_aval,
)

from genesis_fn.as_jax.stubs import stub
from genesis_fn.core.jaxpr import Eqn as JaxprEqn, Jaxpr as Jaxpr, Var as Var

ClosedJaxpr = Jaxpr  # what a program captured is among its inputs
Literal = stub("jax.extend.core.Literal", "operands of an equation that are Python numbers")
DropVar = stub("jax.extend.core.DropVar")
TraceTag = stub("jax.extend.core.TraceTag")
