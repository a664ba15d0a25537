"""Functions with rules of their own: one record, `CustomCall`, and one primitive, `custom_call`.

`custom_jvp`, `custom_vjp` and `custom_vmap` bind it, and what is linear with a transpose of its own
(`LinearCall`): the pullback of a `custom_vjp`, a checkpoint, a kernel. Every trace but one runs the
record's functions as Python, on the values that it has, so that Python sees them wherever they are
concrete. A trace that records a program has the function staged (`recorded.py`): the equation then
holds its program as `jaxpr`, for all that runs programs, and a record that closes over no traced
value, for all that differentiates, batches or transposes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import Primitive, bind, ctx, is_linear, typeof
from genesis_fn.primitives.factories import instantiate, move_batch
from genesis_fn.primitives.reductions.reduce import reduce_sum
from genesis_fn.transforms.batching.batch import (
    BatchTrace,
    BatchTracer,
    at_front,
    batch_jaxpr,
    resumed,
)
from genesis_fn.transforms.keys.key_uses import NOTHING, uses
from genesis_fn.transforms.staging.call import jit_p
from genesis_fn.transforms.staging.stage import StageTrace, stage_closed


class CustomCall:
    """A function on flat arrays with rules of its own.

    * `fun(*xs)`: the outputs.
    * `jvp(primals, tangents)`, if `forward`: (outputs, their tangents).
    * `fwd(nonzero, xs)`, if `reverse`: (outputs, residuals, pull), where `nonzero` says which
      operands have tangents; pull(residuals, cts) gives a cotangent for each operand, None for one
      that has no derivatives.
    * `pull(residuals, cts)` of a map that is linear in the operands after `linear` residuals: a
      cotangent for each of them.
    * `batch(size, which operands are batched, operands)`, where vmap is to use it: (outputs, which
      of them are batched), all batches in front.
    * `record(xs)`: the outputs in a program that is being recorded, and `key()` what tells recorded
      forms apart.
    * `learned`: what is known of the outputs after a run; `out_avals`: what those of a linear map
      are.

    A tangent or cotangent that is zero may be None wherever rules take or return one; with
    `symbolic` they are told apart.
    """

    __slots__ = ()

    name: str  # what messages call the function
    owner: Any = None  # the user's function, which keeps recorded calls
    learned: Any = None  # what is known of the outputs after a run
    out_avals: Sequence[Aval] = ()  # of a linear map
    forward = reverse = symbolic = False
    linear: int | None = None
    fun: Callable
    jvp: Callable
    fwd: Callable
    pull: Callable
    key: Callable
    record: Callable
    batch: Callable | None = None

    def programs_known(self) -> list[Jaxpr]:
        """The programs of rules, as far as there are any yet."""
        return []


class LinearCall(CustomCall):
    """A linear map of the operands after `linear` residuals, and its transpose: `push(*operands)`,
    None where only reverse mode is defined, and `pull(residuals, cts)`."""

    __slots__ = ("name", "linear", "forward", "out_avals", "push", "pull", "backward")

    def __init__(
        self, name: str, residuals: int, out_avals: Sequence[Aval], push: Callable | None,
        pull: Callable, backward: Sequence[Jaxpr] = (),
    ) -> None:  # fmt: skip
        self.name, self.linear, self.out_avals = name, residuals, tuple(out_avals)
        self.push, self.pull, self.backward = push, pull, list(backward)
        self.forward = push is not None

    def fun(self, *xs: Any) -> list[Any]:
        if self.push is None:
            raise no_forward_mode(self.name)
        return self.push(*xs)

    def programs_known(self) -> list[Jaxpr]:
        return self.backward


def no_forward_mode(name: str) -> Exception:
    """The error for forward mode of a function that has a rule for reverse mode only."""
    return errors.NotDifferentiableError(
        f"forward-mode differentiation of {name}, which defines only a reverse rule (defvjp)\n"
        f"  at {where().describe()}\n  define a forward rule too: {name}.def_jvp(...)"
    )


def linear_call(
    residuals: Sequence[Any], tangents: Sequence[Any], *, forward: Jaxpr | None, backward: Jaxpr,
    out_avals: Sequence[Aval], name: str,
) -> list[Any]:  # fmt: skip
    """The tangents of outputs by a linear map of `tangents`: the program `forward` ([residuals,
    tangents] -> outputs; None where only reverse mode is defined), whose transpose is `backward`
    ([residuals, output cotangents] -> tangents' cotangents)."""

    def pull(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        cts = [instantiate(ct, a) for ct, a in zip(cts, out_avals, strict=True)]
        return bind(jit_p, *residuals, *cts, jaxpr=backward)

    if forward is None and not (isinstance(ctx.trace, StageTrace) and ctx.trace.is_tape):
        raise no_forward_mode(name)
    call = LinearCall(name, len(residuals), out_avals, None, pull, [backward])
    outs = bind(custom_call_p, *residuals, *tangents, call=call, jaxpr=forward)
    return _floating(outs, out_avals)


def _floating(ts: Sequence[Any], kinds: Sequence[Aval]) -> list[Any]:
    """Tangents, None for outputs that have no derivatives."""
    return [t if dtypes.is_inexact(k.dtype) else None for t, k in zip(ts, kinds, strict=True)]


# ---- the primitive's rules ----


class _Custom(Primitive):
    """Not looked up by its parameters, which hold functions and what they close over."""

    __slots__ = ()

    def eager(self, args: tuple, params: dict[str, Any]) -> Any:
        return _run(*args, **params)

    def abstract(self, avals: tuple, params: dict[str, Any]) -> Any:
        return self.shape(*avals, **params)


def _shape(*avals: Aval, call: CustomCall, jaxpr: Jaxpr | None) -> list[Aval]:
    return list(call.out_avals if jaxpr is None else jaxpr.out_avals)


def _run(*xs: Any, call: CustomCall, jaxpr: Jaxpr | None) -> list[Any]:
    return call.fun(*xs) if jaxpr is None else bind(jit_p, *xs, jaxpr=jaxpr)


def _stage(
    trace: StageTrace, xs: Sequence[Any], *, call: CustomCall, jaxpr: Jaxpr | None
) -> list[Any] | None:
    """The outputs; None to record the operation as it stands."""
    if jaxpr is not None:
        return None
    if call.linear is not None:
        return None if trace.is_tape or not call.forward else call.fun(*xs)
    # A tape is there to be transposed: no further derivative will ask for the rules.
    return call.fun(*xs) if trace.is_tape else call.record(xs)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, call: CustomCall, jaxpr: Jaxpr | None
) -> tuple[list[Any], list[Any]]:
    if not call.forward:
        raise no_forward_mode(call.name)
    outs, ts = call.jvp(primals, tangents)
    return outs, _floating(ts, [typeof(o) for o in outs])


def _linearize(
    nonzero: Sequence[bool], *xs: Any, call: CustomCall, jaxpr: Jaxpr | None
) -> tuple[list[Any], Callable]:
    outs, saved, back = call.fwd(nonzero, xs)
    n, count, kinds = len(xs), len(saved), [typeof(o) for o in outs]
    moved = [i for i, x in enumerate(xs) if nonzero[i] and dtypes.is_inexact(typeof(x).dtype)]
    kept = [i for i, k in enumerate(kinds) if dtypes.is_inexact(k.dtype)]
    residuals = [*saved, *xs] if call.forward else saved

    # The two close over no value: residuals are operands.
    def push(*operands: Any) -> list[Any]:
        given = dict(zip(moved, operands[count + n :]))
        ts = call.jvp(operands[count : count + n], [given.get(i) for i in range(n)])[1]
        return [instantiate(ts[i], kinds[i]) for i in kept]

    def pull(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        given = dict(zip(kept, cts, strict=True))
        found = back(residuals[:count], [given.get(i) for i in range(len(kinds))])
        return [found[i] for i in moved]

    linear = LinearCall(
        call.name, len(residuals), [kinds[i] for i in kept], push if call.forward else None, pull,
        call.programs_known(),
    )  # fmt: skip
    avals = [typeof(x) for x in residuals] + [typeof(xs[i]) for i in moved]
    # On the tape of a program that is kept, the map has a program too.
    program = stage_closed(push, avals, call.name) if jaxpr is not None and call.forward else None

    def apply(*ts: Any) -> list[Any]:
        given = [ts[i] for i in moved]
        found = bind(custom_call_p, *residuals, *given, call=linear, jaxpr=program)
        back = dict(zip(kept, found))
        return [back.get(i) for i in range(len(kinds))]

    return outs, apply


def _transpose(
    cts: Sequence[Any], *operands: Any, call: CustomCall, jaxpr: Jaxpr | None
) -> list[Any]:
    n = call.linear
    if n is None:  # a call on tangents, which a rule may make of a function that is linear itself
        return jit_p.transpose(cts, *operands, jaxpr=jaxpr)  # pyright: ignore[reportOptionalCall]
    back = call.pull(operands[:n], cts)
    return [None] * n + [
        ct if is_linear(x) else None for ct, x in zip(back, operands[n:], strict=True)
    ]


def _batch(
    trace: BatchTrace, xs: Sequence[Any], dims: Sequence[int | None], *, call: CustomCall,
    jaxpr: Jaxpr | None,
) -> tuple[list[Any], Sequence[int | None]]:  # fmt: skip
    if jaxpr is None:  # what a function closes over may be batched too
        batched = Batched(call, trace, dims)
        outs = bind(custom_call_p, *xs, call=batched, jaxpr=None)
        return outs, batched.out_dims
    programs = [jaxpr, *call.programs_known()]
    if all(d is None for d in dims) and all(trace.axis_name not in j.axes for j in programs):
        outs = bind(custom_call_p, *xs, call=call, jaxpr=jaxpr)
        return outs, [None] * len(outs)
    size, given = trace.batch_size, [d is not None for d in dims]
    if call.batch is not None:
        outs, flags = call.batch(size, given, at_front(size, xs, dims))
        return outs, [0 if b else None for b in flags]
    every = (True,) * len(jaxpr.outs)
    program, _ = batch_jaxpr(jaxpr, size, tuple(given), every, trace.axis_name)
    own = BatchTrace(None, size, trace.axis_name)
    batched = Batched(call, own, [0 if b else None for b in given], [0] * len(every), closed=True)
    outs = bind(custom_call_p, *at_front(size, xs, dims), call=batched, jaxpr=program)
    return outs, batched.out_dims


custom_call_p = _Custom(
    "custom_call", _shape, multi=True, program="jaxpr", linearize=_linearize, jvp=_jvp,
    transpose=_transpose, batch=_batch,
)  # fmt: skip
custom_call_p.inline, custom_call_p.stage = _run, _stage
# A linear map belongs to a derivative: what it draws was drawn before.
custom_call_p.key_uses = lambda call, jaxpr: NOTHING if call.linear is not None else uses(jaxpr)


# ---- calls that traces make of calls ----


class Wrapped(CustomCall):
    """A call of which a trace hands a form of its own to the trace around it."""

    __slots__ = ("call", "name", "owner", "forward", "reverse", "symbolic", "linear")

    def __init__(self, call: CustomCall) -> None:
        self.call, self.name, self.owner = call, call.name, call.owner
        self.forward, self.reverse, self.symbolic = call.forward, call.reverse, call.symbolic
        self.linear = call.linear

    @property
    def learned(self) -> Any:
        return self.call.learned

    @learned.setter
    def learned(self, value: Any) -> None:
        self.call.learned = value

    def record(self, xs: Sequence[Any]) -> list[Any]:
        return self.owner.recorder.record(self, xs)

    def programs_known(self) -> list[Jaxpr]:
        return self.call.programs_known()


class Batched(Wrapped):
    """A call mapped over a batch by a trace of vmap, for the trace around that one. A `closed` one
    closes over nothing of that trace: each run has a trace of its own."""

    __slots__ = ("trace", "dims", "out_dims", "closed")

    def __init__(
        self, call: CustomCall, trace: BatchTrace, dims: Sequence[int | None],
        out_dims: Sequence[int | None] = (), closed: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(call)
        self.trace, self.dims, self.closed = trace, tuple(dims), closed
        self.out_dims = list(out_dims)  # known after a run

    @property
    def out_avals(self) -> list[Aval]:
        return [aval((self.trace.batch_size, *a.shape), a.dtype) for a in self.call.out_avals]

    @property
    def learned(self) -> tuple:
        """Where the outputs have their batch, beside what the call knows."""
        return self.out_dims, self.call.learned

    @learned.setter
    def learned(self, value: tuple) -> None:
        self.out_dims, self.call.learned = value

    def key(self) -> tuple:
        return self.trace.batch_size, self.trace.axis_name, self.dims, self.call.key()

    def _resumed(self) -> resumed:
        trace = self.trace
        return resumed(
            BatchTrace(None, trace.batch_size, trace.axis_name) if self.closed else trace
        )

    def _front(self, x: Any, d: int | None) -> Any:
        return move_batch(x, d, 0, self.trace.batch_size)

    def _whole(self, parts: Sequence[tuple[Any, int | None]]) -> list[Any]:
        """The outputs with their batch in front, where any argument has one: so all rules agree."""
        every = any(d is not None for d in self.dims)
        self.out_dims = [0 if every or d is not None else None for _, d in parts]
        return [x if d is None else self._front(x, e) for (x, e), d in zip(parts, self.out_dims)]

    def fun(self, *xs: Any) -> list[Any]:
        with self._resumed() as trace:
            outs = self.call.fun(*_mapped(trace, xs, self.dims))
        return self._whole([trace.split(o) for o in outs])

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        with self._resumed() as trace:
            outs, ts = self.call.jvp(
                _mapped(trace, primals, self.dims), _mapped(trace, tangents, self.dims)
            )
        outs = self._whole([trace.split(o) for o in outs])
        moved = [trace.split(t) for t in ts]
        for i, (_, d) in enumerate(moved):
            if d is not None and self.out_dims[i] is None:
                outs[i], self.out_dims[i] = self._front(outs[i], None), 0
        return outs, [
            t if o is None or t is None else self._front(t, d)
            for (t, d), o in zip(moved, self.out_dims)
        ]

    def fwd(
        self, nonzero: Sequence[bool], xs: Sequence[Any]
    ) -> tuple[list[Any], list[Any], Callable]:
        with self._resumed() as trace:
            outs, saved, pull = self.call.fwd(nonzero, _mapped(trace, xs, self.dims))
        outs = self._whole([trace.split(o) for o in outs])
        parts = [trace.split(r) for r in saved]
        saved_dims = [d for _, d in parts]
        back = lambda residuals, cts: self._pulled(pull, residuals, saved_dims, cts, self.dims)  # noqa: E731
        return outs, [r for r, _ in parts], back

    def pull(self, residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        n = len(residuals)
        return self._pulled(self.call.pull, residuals, self.dims[:n], cts, self.dims[n:])

    def _pulled(
        self, pull: Callable, residuals: Sequence[Any], saved_dims: Sequence[int | None],
        cts: Sequence[Any], dims: Sequence[int | None],
    ) -> list[Any]:  # fmt: skip
        """The cotangents of operands at `dims`, each laid out as its operand is; that of one shared
        by all examples is summed."""
        with self._resumed() as trace:
            back = pull(_mapped(trace, residuals, saved_dims), _mapped(trace, cts, self.out_dims))
        return [
            ct if ct is None else self._laid_out(*trace.split(ct), d)
            for ct, d in zip(back, dims, strict=True)
        ]

    def _laid_out(self, ct: Any, at: int | None, dim: int | None) -> Any:
        if dim is not None:
            return move_batch(ct, at, dim, self.trace.batch_size)
        return ct if at is None else reduce_sum(ct, (at,))


def _mapped(trace: BatchTrace, xs: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    return [x if d is None or x is None else BatchTracer(trace, x, d) for x, d in zip(xs, dims)]
