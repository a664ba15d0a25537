"""JAX's `Primitive`: an operation that a program defines by JAX's rules, run by the library.

Its `impl` is what computes it, everywhere; what is registered for it in `jax.interpreters.ad` and
`jax.interpreters.batching` differentiates and batches it. Lowerings and rules for types are not
needed: a program of `impl` has both. Neither are transposes: those of that program are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core.aval import Aval
from genesis_fn.core.convert import as_array
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import bind, ctx, typeof
from genesis_fn.primitives.factories import move_batch
from genesis_fn.transforms.custom.custom_call import CustomCall, custom_call_p
from genesis_fn.transforms.staging.stage_trace import stage

# The rules that programs register: `jax.interpreters.ad` and `batching` show them.
primitive_jvps: dict[Any, Callable[..., Any]] = {}
primitive_transposes: dict[Any, Callable[..., Any]] = {}  # nothing reads them
primitive_batchers: dict[Any, Callable[..., Any]] = {}
axis_primitive_batchers: dict[Any, Callable[..., Any]] = {}


class Zero:
    """A tangent that is zero, in rules of JAX's."""

    def __init__(self, aval: Aval) -> None:
        self.aval = aval

    def __repr__(self) -> str:
        return f"Zero({self.aval})"


class PeerPrimitive:
    """An operation by its rules: `p.def_impl(f)`, then `p.bind(*arrays, **params)`."""

    multiple_results = False
    impl: Callable[..., Any] | None = None
    abstract_eval: Callable[..., Any] | None = None

    def __init__(self, name: str) -> None:
        self.name = name

    def def_impl(self, impl: Callable[..., Any]) -> Callable[..., Any]:
        """Set what computes the operation."""
        self.impl = impl
        return impl

    def def_abstract_eval(self, abstract_eval: Callable[..., Any]) -> Callable[..., Any]:
        """Keep what gives the types of its results."""
        self.abstract_eval = abstract_eval
        return abstract_eval

    def bind(self, *args: Any, **params: Any) -> Any:
        """Apply the operation. Raises NotImplementedError if it has no `impl`, or if a transform
        runs for which it has no rule."""
        impl = self.impl
        if impl is None:
            raise self.without("impl", "def_impl")
        if ctx.trace is None:
            return impl(*args, **params)
        xs = [as_array(x) for x in args]
        weak = [x.weak for x in xs]
        run = lambda *xs: self.listed(impl(*xs, **params))
        jaxpr, captured = stage(run, [typeof(x) for x in xs], name=self.name, weak=weak)
        call = _Call(self, params, jaxpr, len(captured))
        outs = bind(custom_call_p, *captured, *xs, call=call, jaxpr=jaxpr)
        return outs if self.multiple_results else outs[0]

    def listed(self, outs: Any) -> list[Any]:
        """The results of a rule, as a list also where there is one."""
        return list(outs) if self.multiple_results else [outs]

    def without(self, rule: str, how: str) -> NotImplementedError:
        """The error for a rule that is not there."""
        return NotImplementedError(f"the primitive {self.name} has no {rule}: set it by {how}")

    def __repr__(self) -> str:
        return self.name


class _Call(CustomCall):
    """A call of a primitive: `jaxpr` is the program of its `impl`, whose first `consts` inputs are
    values that `impl` closes over."""

    __slots__ = ("name", "prim", "params", "jaxpr", "consts")

    forward = True

    def __init__(
        self, prim: PeerPrimitive, params: dict[str, Any], jaxpr: Jaxpr, consts: int
    ) -> None:
        self.name, self.prim, self.params = prim.name, prim, params
        self.jaxpr, self.consts = jaxpr, consts

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Outputs and their tangents by the registered rule."""
        rule = primitive_jvps.get(self.prim)
        if rule is None:
            raise self.prim.without("derivative", "jax.interpreters.ad.primitive_jvps")
        self._check(any(t is not None for t in tangents[: self.consts]), "differentiated")
        primals, tangents = primals[self.consts :], tangents[self.consts :]
        dense = [Zero(typeof(x)) if t is None else t for x, t in zip(primals, tangents)]
        outs, ts = rule(tuple(primals), tuple(dense), **self.params)
        ts = [None if isinstance(t, Zero) else t for t in self.prim.listed(ts)]
        return [as_array(o) for o in self.prim.listed(outs)], ts

    def batch(
        self, size: int, batched: Sequence[bool], xs: Sequence[Any]
    ) -> tuple[list[Any], list[bool]]:
        """Outputs and which are batched, all at the front, by the registered rule."""
        self._check(any(batched[: self.consts]), "batched")
        dims = tuple(0 if b else None for b in batched[self.consts :])
        operands = tuple(xs[self.consts :])
        if self.prim in axis_primitive_batchers:
            rule = axis_primitive_batchers[self.prim]
            outs, at = rule(size, None, None, operands, dims, **self.params)
        elif self.prim in primitive_batchers:
            outs, at = primitive_batchers[self.prim](operands, dims, **self.params)
        else:
            raise self.prim.without("batching rule", "jax.interpreters.batching.primitive_batchers")
        pairs = list(zip(self.prim.listed(outs), self.prim.listed(at), strict=True))
        moved = [o if d is None else move_batch(as_array(o), d, 0, size) for o, d in pairs]
        return [as_array(o) for o in moved], [d is not None for _, d in pairs]

    def _check(self, found: bool, how: str) -> None:
        if found:
            raise NotImplementedError(
                f"the primitive {self.name} closes over a value that is being {how}; pass it to "
                "bind as an operand"
            )
