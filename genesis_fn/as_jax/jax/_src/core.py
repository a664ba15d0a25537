"""The names of JAX's core that libraries import."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from genesis_fn.as_jax.primitives import PeerPrimitive as Primitive
from genesis_fn.as_jax.stubs import stub
from genesis_fn.core.aval import (
    AbstractValue as AbstractValue,
    Aval as Aval,
    ShapedArray as ShapedArray,
    aval,
)
from genesis_fn.core.primitive import (
    Trace as Trace,
    Tracer as Tracer,
    ctx,
    install_array_methods,
    typeof as get_aval,
)
from genesis_fn.transforms.staging.tracing import eval_jaxpr as eval_jaxpr

Effect = stub("jax.core.Effect")


class OpaqueTraceState:
    """Which transforms run, as libraries compare it to find values that were leaked."""

    def __init__(self) -> None:
        self.trace = ctx.trace

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueTraceState) and self.trace is other.trace

    def __hash__(self) -> int:
        return id(self.trace)


def get_opaque_trace_state(convention: str = "") -> OpaqueTraceState:
    """What to compare later, to know whether the same transforms run."""
    return OpaqueTraceState()


def trace_state_clean() -> bool:
    """Whether no transform runs."""
    return ctx.trace is None


def jaxpr_as_fun(closed_jaxpr: Any) -> Callable[..., Any]:
    """A program as a function of its inputs."""
    return lambda *args: eval_jaxpr(closed_jaxpr.jaxpr, closed_jaxpr.consts, *args)


def mapped_aval(size: int, axis: int | None, of: Aval) -> Aval:
    """The aval of one element along an axis."""
    shape = of.shape if axis is None else of.shape[:axis] + of.shape[axis + 1 :]
    return aval(shape, of.dtype)


def unmapped_aval(size: int, axis: int | None, of: Aval) -> Aval:
    """The aval of `size` elements along a new axis."""
    shape = of.shape if axis is None else (*of.shape[:axis], size, *of.shape[axis:])
    return aval(shape, of.dtype)


take_current_trace = stub("jax.core.take_current_trace")
set_current_trace = stub("jax.core.set_current_trace")


def find_top_trace(values: Iterable[Any] = ()) -> Trace | None:
    """The transform that runs."""
    return ctx.trace


# JAX's names of what a tracer belongs to.
install_array_methods({"_trace": property(lambda tracer: tracer.owner)}, tracer_only=True)
Trace.main = property(lambda trace: trace)
