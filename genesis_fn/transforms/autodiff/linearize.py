"""Derivatives: one linearize rule per primitive serves forward and reverse mode.

A `LinearizeTrace` runs primal values under its parent and tangents under its *tape*. If the tape is
the parent, that is forward mode; if it is a new `StageTrace`, the tangents become a linear program,
which `transpose.py` runs backwards. So reverse mode needs no partial evaluation of a joint program.
A tangent of `None` is zero: operations on it are never made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.jaxpr import Jaxpr, memoized
from genesis_fn.core.primitive import (
    CallSite,
    Primitive,
    Trace,
    Tracer,
    bind,
    ctx,
    running,
    typeof,
    with_weak,
)
from genesis_fn.core.types.annotations import Array
from genesis_fn.primitives.factories import filled, zeros
from genesis_fn.transforms.staging.dependency import dependent
from genesis_fn.transforms.staging.stage_trace import (
    StageTrace,
    StageTracer,
    evaluate,
    stage_closed,
)


class LinearizeTracer(Tracer):
    """A value with a tangent."""

    __slots__ = ("primal", "tangent")
    owner: LinearizeTrace

    def __init__(self, trace: LinearizeTrace, primal: Any, tangent: Any):
        # Narrower than a Tracer's: never assigned anew.
        self.owner = trace  # pyright: ignore[reportIncompatibleVariableOverride]
        self.primal, self.tangent = primal, tangent
        self.aval, self.weak = primal.aval, primal.weak

    def with_weak_type(self, weak: bool) -> LinearizeTracer:
        return LinearizeTracer(self.owner, with_weak(self.primal, weak), self.tangent)

    def concrete(self) -> Any:
        """The primal's Array, where the derivative is taken eagerly."""
        return self.primal.concrete() if isinstance(self.primal, Tracer) else self.primal

    def carrier(self) -> Tracer | None:
        if dtypes.is_inexact(self.aval.dtype):
            return self
        return self.primal.carrier() if isinstance(self.primal, Tracer) else None

    def nearby(self) -> Any:
        return self.primal.nearby() if isinstance(self.primal, Tracer) else self.primal

    def origin(self) -> str:
        tape = self.owner.tape
        if type(self.tangent) is StageTracer and self.tangent.owner is tape:
            made_by = self.tangent.eqn
            if made_by is not None and made_by.where is not None:
                return made_by.where.describe()
        if isinstance(self.primal, Tracer):
            return self.primal.origin()
        called = self.owner.called
        return super().origin() if called is None else called.origin(self.primal)


class separate_tangents:
    """`with separate_tangents():` forward mode makes operations that compute values or tangents,
    not both, where that can be."""

    __slots__ = ("before",)

    def __enter__(self) -> None:
        self.before, ctx.apart = ctx.apart, True

    def __exit__(self, *exc: Any) -> None:
        ctx.apart = self.before


class SplitTrace(Trace):
    """Runs operations that depend on a tangent on `tape` and all others under `parent`: linearizes
    a jvp rule, which computes values and tangents together."""

    __slots__ = ("parent", "tape")

    def __init__(self, parent: Trace | None, tape: StageTrace) -> None:
        super().__init__("a derivative rule", at_once=parent is None or parent.at_once)
        self.parent, self.tape = parent, tape

    def holds(self, x: object) -> bool:
        """Whether `x` is a value of the tape."""
        return type(x) is StageTracer and x.owner is self.tape

    def process(self, prim: Primitive, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        tangential = any(map(self.holds, args))
        # Calls that compute both are split too: on the tape as a whole, their primal outputs would
        # count as tangents.
        if tangential and prim.stage is not None and params["call"].linear is None:
            return prim.inline(*args, **params)  # pyright: ignore[reportOptionalCall]
        if tangential and prim.plain:
            program = params["jaxpr"]
            if not all(dependent(program, list(map(self.holds, args)))):
                return evaluate(program, *args)
        ctx.trace = self.tape if tangential else self.parent
        try:
            return bind(prim, *args, **params)
        finally:
            ctx.trace = self


class LinearizeTrace(Trace):
    """Computes primals under `parent` and tangents under `tape`."""

    __slots__ = ("parent", "tape", "rule", "calling")

    def __init__(
        self,
        parent: Trace | None,
        tape: Trace | None,
        name: str = "",
        called: CallSite | None = None,
    ) -> None:
        at_once = parent is None or parent.at_once
        super().__init__(name or "a derivative", called, at_once)
        self.parent, self.tape = parent, tape
        # A derivative taken inside of a rule that is being split: its tangents must split as well.
        self.rule = parent if tape is parent and type(parent) is SplitTrace else None
        self.calling = ""  # name of the custom function that runs now

    def split(self, x: Any) -> tuple[Any, Any]:
        """(primal, tangent or None) of a value."""
        if type(x) is LinearizeTracer and x.owner is self:
            return x.primal, x.tangent
        return x, None

    def process(self, prim: Primitive, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        primals, tangents, nonzero = [], [], False
        for a in args:
            if type(a) is LinearizeTracer and a.owner is self:
                primals.append(a.primal)
                tangents.append(a.tangent)
                nonzero = True
            else:
                primals.append(a)
                tangents.append(None)
        linearize, before = prim.linearize, self.calling
        if prim.stage is not None:  # a custom call
            call = params["call"]
            if nonzero and call.linear is not None:
                # Linear in its tangents, not in its residuals: differentiate its operations.
                return prim.inline(*args, **params)  # pyright: ignore[reportOptionalCall]
            linearize = linearize if call.reverse else None
            # Its rules run on primals, below this trace. A tracer of this trace met there was
            # closed over, and its tangent would be lost: `leaked` reports it while `calling` is
            # set.
            self.alive, self.calling = False, call.name
        ctx.trace = self.parent
        try:
            if not nonzero:
                return bind(prim, *primals, **params)
            if prim.jvp is not None and self.tape is self.parent:
                # Forward mode. In a rule that is split, now or when its program is, the value and
                # the tangent must come from separate operations.
                if self.rule is not None:
                    apart = any(map(self.rule.holds, tangents))
                else:
                    apart = ctx.apart and prim.stage is None
                pair = self._separately(linearize, primals, tangents, params) if apart else None
                if pair is None:
                    pair = prim.jvp(primals, tangents, **params)
                return self._wrap(prim, *pair)
            if prim.jvp is not None and linearize is None:  # reverse mode of a custom_jvp
                out, t = self._split(prim, primals, tangents, params)
                return self._wrap(prim, out, t)
            if linearize is None:
                raise errors.NotDifferentiableError(
                    f"{prim.name} has no derivative\n  at {where().describe()}\n"
                    "  wrap its operand in stop_gradient(...) if none is wanted"
                )
            out, tangent = linearize([t is not None for t in tangents], *primals, **params)
            ctx.trace = self.tape
            t = tangent(*tangents)
        finally:
            ctx.trace = self
            if prim.stage is not None:
                self.calling = before
                self.alive = not before
        return self._wrap(prim, out, t)

    def _separately(
        self,
        linearize: Callable[..., Any] | None,
        primals: list[Any],
        tangents: list[Any],
        params: dict[str, Any],
    ) -> tuple[Any, Any] | None:
        """(value, tangent), computed by separate operations; None where that is impossible, as for
        a while loop, whose derivative may still be one of the rule's values."""
        if linearize is None:
            return None
        try:
            out, tangent = linearize([t is not None for t in tangents], *primals, **params)
        except errors.NotDifferentiableError:
            return None
        return out, tangent(*tangents)

    def _split(
        self, prim: Primitive, primals: list[Any], tangents: list[Any], params: dict[str, Any]
    ) -> tuple[list[Any], list[Any]]:
        """The result of the forward-mode rule, with its operations on tangents on the tape."""
        ctx.trace = split = SplitTrace(self.parent, self.tape)  # pyright: ignore[reportArgumentType]
        with separate_tangents():
            out, t = prim.jvp(primals, tangents, **params)  # pyright: ignore[reportOptionalCall]
        if any(map(split.holds, out)):
            raise errors.NotDifferentiableError(
                f"the jvp rule of {params.get('call', params.get('jaxpr')).name} computes its "  # pyright: ignore[reportOptionalMemberAccess]
                f"primal output from tangents\n  at {where().describe()}"
            )
        return out, [u if split.holds(u) else None for u in t]

    def ended(self) -> bool:
        return not (self.alive or self.calling or ctx.backward)

    def leaked(self, tracer: Tracer) -> Exception:
        """The error for a leaked tracer, or for one that the rule that runs now closes over."""
        if not self.calling and not ctx.backward:
            return super().leaked(tracer)
        return errors.ClosedOverError(
            f"{self.calling or 'a derivative rule'} closes over a value that is being "
            f"differentiated; its derivative rule cannot know of it\n  at {where().describe()}\n"
            "  pass the value as an argument, or wrap it in stop_gradient"
        )

    def _wrap(self, prim: Primitive, out: Any, t: Any) -> Any:
        if prim.multi:
            return [o if u is None else LinearizeTracer(self, o, u) for o, u in zip(out, t)]
        return out if t is None else LinearizeTracer(self, out, t)


def jvp_flat(
    f: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    called: CallSite | None = None,
) -> tuple[list[Any], list[Any]]:
    """Forward mode: (outputs, their tangents) of a flat function; a None tangent is zero."""
    parent = ctx.trace
    trace = LinearizeTrace(parent, parent, called=called)
    try:
        with running(trace):
            outs = f(
                *[
                    p if t is None else LinearizeTracer(trace, p, t)
                    for p, t in zip(primals, tangents, strict=True)
                ]
            )
        pairs = [trace.split(o) for o in outs]
    finally:
        trace.alive = False
    return [p for p, _ in pairs], [t for _, t in pairs]


def linearize_flat(
    f: Callable[..., Any],
    primals: Sequence[Any],
    nonzero: Sequence[bool],
    called: CallSite | None = None,
) -> tuple[list[Any], list[bool], Jaxpr, list[Any]]:
    """(outputs, which of them have a tangent, linear program, residuals) of a flat function at a
    point.

    The program maps [residuals, tangents of the `nonzero` inputs] to the nonzero output tangents.
    """
    tape = StageTrace("the linear program", tape=True)
    trace = LinearizeTrace(ctx.trace, tape, called=called)
    args = [
        LinearizeTracer(trace, p, tape.argument(typeof(p))) if n else p
        for p, n in zip(primals, nonzero, strict=True)
    ]
    try:
        with running(trace):
            outs = f(*args)
        pairs = [trace.split(o) for o in outs]
        jaxpr, residuals = tape.finish([t for _, t in pairs if t is not None])
    finally:
        trace.alive = tape.alive = False
    return [p for p, _ in pairs], [t is not None for _, t in pairs], jaxpr, residuals


def differentiable(x: Array) -> bool:
    """Whether a value's dtype carries derivatives."""
    return dtypes.is_inexact(typeof(x).dtype)


@memoized
def linearize_jaxpr(
    jaxpr: Jaxpr, nonzero: tuple[bool, ...], instantiate: tuple[bool, ...]
) -> tuple[Jaxpr, Jaxpr, tuple[bool, ...], int]:
    """(forward, tangent program, nonzero outputs, number of residuals) of a program.

    forward: inputs -> [outputs, residuals]; tangent: [residuals, nonzero tangents] -> [nonzero
    output tangents]. Outputs marked in `instantiate` get a tangent even where it is zero.
    """
    forward = StageTrace(jaxpr.name, jaxpr.labels)
    tape = StageTrace(jaxpr.name, tape=True)
    trace = LinearizeTrace(forward, tape)
    primals = [forward.argument(a) for a in jaxpr.in_avals]
    args = [
        LinearizeTracer(trace, p, tape.argument(p.aval)) if n else p
        for p, n in zip(primals, nonzero, strict=True)
    ]
    try:
        with running(trace):
            outs = evaluate(jaxpr, *args)
        pairs = [trace.split(o) for o in outs]
        with running(tape):
            tangents = [
                zeros(typeof(p)) if t is None and i else t
                for (p, t), i in zip(pairs, instantiate, strict=True)
            ]
        tangent, residuals = tape.finish([t for t in tangents if t is not None])
        program, captured = forward.finish([*(p for p, _ in pairs), *residuals])
    finally:
        trace.alive = tape.alive = forward.alive = False
    assert not captured, captured
    return program, tangent, tuple(t is not None for t in tangents), len(residuals)


@memoized
def jvp_jaxpr(
    jaxpr: Jaxpr, nonzero: tuple[bool, ...], instantiate: tuple[bool, ...]
) -> tuple[Jaxpr, tuple[bool, ...]]:
    """(program, nonzero outputs): [inputs, nonzero tangents] -> [outputs, nonzero output
    tangents]."""
    count = len(jaxpr.invars)
    out_nonzero: list[tuple[bool, ...]] = []  # known while tracing

    def f(*args: Any) -> list[Any]:
        primals, tangents = args[:count], filled(nonzero, args[count:])
        outs, out_tangents = jvp_flat(lambda *xs: evaluate(jaxpr, *xs), primals, tangents)
        out_tangents = [
            zeros(typeof(o)) if t is None and i else t
            for o, t, i in zip(outs, out_tangents, instantiate, strict=True)
        ]
        out_nonzero.append(tuple(t is not None for t in out_tangents))
        return [*outs, *(t for t in out_tangents if t is not None)]

    avals = [*jaxpr.in_avals, *(a for a, n in zip(jaxpr.in_avals, nonzero) if n)]
    program = stage_closed(f, avals, jaxpr.name)
    return program, out_nonzero[-1]
