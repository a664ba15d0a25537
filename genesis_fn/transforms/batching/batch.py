"""vmap: a `BatchTrace` carries each value with the position of its batch dimension."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from genesis_fn.core import errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.jaxpr import Jaxpr, jaxprs_in, memoized
from genesis_fn.core.primitive import (
    CallSite,
    NamedAxis,
    Primitive,
    Trace,
    Tracer,
    bind,
    ctx,
    running,
    typeof,
    with_weak,
)
from genesis_fn.primitives.factories import move_batch
from genesis_fn.primitives.shape import canonical_axis
from genesis_fn.transforms.staging.stage_trace import evaluate, stage_closed


class BatchTracer(Tracer):
    """One example of a batched value: `value` has the batch at dimension `dim`."""

    __slots__ = ("value", "batch_dim")
    owner: BatchTrace

    def __init__(self, trace: BatchTrace, value: Any, dim: int) -> None:
        whole = value.aval
        # Narrower than a Tracer's: never assigned anew.
        self.owner = trace  # pyright: ignore[reportIncompatibleVariableOverride]
        self.value, self.batch_dim, self.weak = value, dim, value.weak
        self.aval = whole.update((*whole.shape[:dim], *whole.shape[dim + 1 :]))

    def with_weak_type(self, weak: bool) -> BatchTracer:
        return BatchTracer(self.owner, with_weak(self.value, weak), self.batch_dim)

    def nearby(self) -> Any:
        return self.value.nearby() if isinstance(self.value, Tracer) else self.value

    def origin(self) -> str:
        if isinstance(self.value, Tracer):
            return self.value.origin()
        called = self.owner.called
        return super().origin() if called is None else called.origin(self.value)


class BatchTrace(Trace):
    """Applies batching rules; their operations run under `parent`."""

    __slots__ = ("parent", "batch_size", "axis_name")

    def __init__(
        self, parent: Trace | None, size: int, axis_name: Any = None, called: CallSite | None = None
    ) -> None:
        super().__init__("vmap", called)
        self.parent, self.batch_size, self.axis_name = parent, size, axis_name

    def split(self, x: Any) -> tuple[Any, int | None]:
        """(value, batch dimension or None)."""
        if type(x) is BatchTracer and x.owner is self:
            return x.value, x.batch_dim
        return x, None

    def process(self, prim: Primitive, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        values, dims, batched = [], [], False
        for a in args:
            if type(a) is BatchTracer and a.owner is self:
                values.append(a.value)
                dims.append(a.batch_dim)
                batched = True
            else:
                values.append(a)
                dims.append(None)
        ctx.trace = self.parent
        try:
            if prim.stage is not None:
                # A custom function runs even if no operand is batched: it may close over a value
                # that is.
                out, d = prim.batch(self, values, dims, **params)  # pyright: ignore[reportOptionalCall]
            elif self.axis_name is not None and self._names(prim, params):
                # Handled even if no operand is batched: `axis_index` differs between examples, and
                # a sum over equal values is a product by the size.
                if prim.collective:
                    out, d = prim.batch(self.batch_size, values, dims, **params)  # pyright: ignore[reportOptionalCall]
                else:
                    out, d = prim.batch(  # pyright: ignore[reportOptionalCall]
                        self.batch_size, values, dims, **params, axis_name=self.axis_name
                    )
            elif not batched:  # the same for all examples: computed once, without a batch
                return bind(prim, *values, **params)
            elif prim.batch is None:
                raise errors.NotDifferentiableError(
                    f"{prim.name} has no batching rule\n  at {where().describe()}"
                )
            elif prim.collective:  # over another axis: an ordinary operation on this one
                out, d = prim.batch(self.batch_size, values, dims, **params, over_other=True)
            else:
                out, d = prim.batch(self.batch_size, values, dims, **params)
        finally:
            ctx.trace = self
        if prim.multi:
            return [o if i is None else BatchTracer(self, o, i) for o, i in zip(out, d)]
        return out if d is None else BatchTracer(self, out, d)

    def _names(self, prim: Primitive, params: dict[str, Any]) -> bool:
        """Whether the operation refers to this trace's named axis."""
        if prim.collective:
            return params["axis_name"] == self.axis_name
        return any(self.axis_name in j.axes for j in jaxprs_in(params))


class resumed:
    """`with resumed(trace):` makes a batch trace current again, for a function of it that another
    trace runs, or that runs after it ended: its tracers are alive again, and its operations run
    under the trace that was current."""

    __slots__ = ("trace", "before", "axis")

    def __init__(self, trace: BatchTrace) -> None:
        self.trace, self.axis = trace, named_axis(trace.axis_name, trace.batch_size)

    def __enter__(self) -> BatchTrace:
        self.before = self.trace.parent, self.trace.alive
        self.trace.parent, self.trace.alive = ctx.trace, True
        ctx.trace = self.trace
        self.axis.__enter__()
        return self.trace

    def __exit__(self, *exc: Any) -> None:
        self.axis.__exit__(*exc)
        ctx.trace = self.trace.parent
        self.trace.parent, self.trace.alive = self.before


class named_axis:
    """`with named_axis(name, size):` collectives inside may refer to the axis."""

    __slots__ = ("entry", "before")

    def __init__(self, name: Any, size: int) -> None:
        self.entry = () if name is None else (NamedAxis(name, size, name),)

    def __enter__(self) -> None:
        self.before = ctx.axes
        # An inner axis hides an outer one of the same name.
        hidden = [a.name for a in self.entry]
        ctx.axes = (*(a for a in self.before if a.name not in hidden), *self.entry)

    def __exit__(self, *exc: Any) -> None:
        ctx.axes = self.before


def vmap_flat(
    f: Callable[..., Any],
    size: int,
    values: Sequence[Any],
    dims: Sequence[int | None],
    out_dims: Callable[[list[Any]], Sequence[int | None]] | int = 0,
    axis_name: Hashable = None,
    called: CallSite | None = None,
) -> list[Any]:
    """The outputs of `f` mapped over the batch. `out_dims` says where the batch goes in them; it
    may be a function of the outputs."""
    trace = BatchTrace(ctx.trace, size, axis_name, called)
    try:
        with running(trace), named_axis(axis_name, size):
            outs = f(
                *[
                    v if d is None else BatchTracer(trace, v, d)
                    for v, d in zip(values, dims, strict=True)
                ]
            )
        wanted = out_dims(outs) if callable(out_dims) else [out_dims] * len(outs)
        result = []
        for o, axis in zip(outs, wanted, strict=True):
            value, dim = trace.split(o)
            if axis is None and dim is not None:
                raise ValueError(
                    "vmap: out_axes is None for an output that differs between examples, "
                    f"{typeof(o)}\n  at {where().describe()}"
                )
            if axis is None:
                result.append(value)
            else:
                ndim = value.ndim + (dim is None)
                axis = canonical_axis(axis, ndim, f"vmap: out_axes of an output {value.aval}")
                result.append(move_batch(value, dim, axis, size))
    finally:
        trace.alive = False
    return result


@memoized
def batch_jaxpr(
    jaxpr: Jaxpr,
    size: int,
    batched: tuple[bool, ...],
    force: tuple[bool, ...],
    axis_name: Hashable = None,
) -> tuple[Jaxpr, tuple[bool, ...]]:
    """(program over batches at dimension 0, which outputs are batched); outputs marked in `force`
    are broadcast if they are not, as the carry of a loop must be."""
    out_batched: list[tuple[bool, ...]] = []  # known while tracing

    def f(*args: Any) -> list[Any]:
        trace = BatchTrace(ctx.trace, size, axis_name)
        with running(trace), named_axis(axis_name, size):
            outs = evaluate(
                jaxpr,
                *[BatchTracer(trace, v, 0) if b else v for v, b in zip(args, batched, strict=True)],
            )
        result, flags = [], []
        for o, forced in zip(outs, force, strict=True):
            value, dim = trace.split(o)
            flags.append(dim is not None or forced)
            result.append(move_batch(value, dim, 0, size) if flags[-1] else value)
        out_batched.append(tuple(flags))
        return result

    avals = [a.update((size, *a.shape)) if b else a for a, b in zip(jaxpr.in_avals, batched)]
    program = stage_closed(f, avals, jaxpr.name)
    return program, out_batched[-1]


def at_front(size: int, xs: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    """The operands with their batch moved to dimension 0; unbatched ones unchanged."""
    return [x if d is None else move_batch(x, d, 0, size) for x, d in zip(xs, dims)]
