"""The names of JAX's core that libraries import."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.as_jax.stubs import stub
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval as Aval, aval
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import Trace as Trace, Tracer as Tracer, ctx, typeof as get_aval
from genesis_fn.core.types.annotations import DTypeLike
from genesis_fn.transforms.staging.stage_trace import evaluate


class _OfAvals(type):
    """The kind of a class whose instances are avals."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Aval)


class ShapedArray(metaclass=_OfAvals):
    """The type of an array: `ShapedArray(shape, dtype)` is the library's `Aval`."""

    def __new__(cls, shape: Sequence[int], dtype: DTypeLike, weak_type: bool = False) -> Aval:
        return aval(tuple(shape), dtypes.dtype(dtype))


AbstractValue = Aval
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


class Primitive:
    """An operation that a library defines by rules. The rules are kept; `bind` refuses."""

    multiple_results = False

    def __init__(self, name: str) -> None:
        self.name = name

    def def_impl(self, impl: Callable[..., Any]) -> Callable[..., Any]:
        """Keep what computes the operation."""
        self.impl = impl
        return impl

    def def_abstract_eval(self, abstract_eval: Callable[..., Any]) -> Callable[..., Any]:
        """Keep what gives the types of its results."""
        self.abstract_eval = abstract_eval
        return abstract_eval

    def bind(self, *args: Any, **params: Any) -> Any:
        """Refuses: rules of JAX's primitives are not the library's."""
        stub(f"{self.name}.bind", "genesis_fn.extend.Primitive, or jax.custom_jvp")()

    def __repr__(self) -> str:
        return self.name


def jaxpr_as_fun(closed_jaxpr: Jaxpr) -> Callable[..., Any]:
    """A program as a function of its inputs."""
    return lambda *args: eval_jaxpr(closed_jaxpr, (), *args)


def eval_jaxpr(jaxpr: Jaxpr, consts: Any, *args: Any) -> list[Any]:
    """The outputs of a program."""
    return evaluate(jaxpr, *consts, *args)


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
