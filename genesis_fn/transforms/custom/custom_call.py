"""Functions with rules of their own: one record, `CustomCall`, and one primitive, `custom_call`.

`custom_jvp`, `custom_vjp` and `custom_vmap` bind it, and what is linear with a transpose of its own
(`LinearCall`): the pullback of a `custom_vjp`, a checkpoint, a kernel. Every trace but one runs the
record's functions as Python, on the values that it has, so that Python sees them wherever they are
concrete. A trace that records a program has the function staged (`recorded.py`): the equation then
holds its program as `jaxpr`, for all that runs programs, and a record that closes over no traced
value, for all that differentiates, batches or transposes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.jaxpr import Jaxpr, Var, dead_code, memoized
from genesis_fn.core.primitive import Primitive, bind, ctx, is_linear, typeof
from genesis_fn.core.types.annotations import Array
from genesis_fn.primitives.factories import filled, instantiate, move_batch
from genesis_fn.primitives.reductions.reduce import reduce_sum
from genesis_fn.transforms.autodiff.linearize import jvp_jaxpr
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
    * `key()`: what tells apart the recorded forms that `owner` keeps.
    * `learned`: what is known of the outputs after a run; `out_avals`: what those of a linear map
      are; `programs`: those of rules, as far as there are any yet.

    A tangent or cotangent that is zero may be None wherever rules take or return one; with
    `symbolic_zeros` they are told apart.
    """

    __slots__ = ()

    name: str  # what messages call the function
    owner: Any = None  # the user's function
    learned: Any = None  # what is known of the outputs after a run
    out_avals: Sequence[Aval] = ()  # of a linear map
    forward = reverse = symbolic_zeros = False
    linear: int | None = None
    fun: Callable[..., Any]
    jvp: Callable[..., Any]
    fwd: Callable[..., Any]
    pull: Callable[..., Any]
    key: Callable[..., Any]
    batch: Callable[..., Any] | None = None

    @property
    def programs(self) -> Sequence[Jaxpr]:
        """The programs of the rules that have been staged so far."""
        return ()


class LinearCall(CustomCall):
    """A linear map of the operands after `linear` residuals, and its transpose: `push(*operands)`,
    None where only reverse mode is defined, and `pull(residuals, cts)`, which runs `programs`."""

    __slots__ = ("name", "linear", "forward", "out_avals", "push", "pull", "_programs")

    def __init__(
        self,
        name: str,
        residuals: int,
        out_avals: Sequence[Aval],
        push: Callable[..., Any] | None,
        pull: Callable[..., Any],
        programs: Sequence[Jaxpr] = (),
    ) -> None:
        self.name, self.linear, self.out_avals = name, residuals, tuple(out_avals)
        self.push, self.pull, self._programs = push, pull, programs
        self.forward = push is not None

    @property
    def programs(self) -> Sequence[Jaxpr]:
        return self._programs

    def fun(self, *xs: Array) -> list[Array]:
        if self.push is None:
            raise no_forward_mode(self.name)
        return self.push(*xs)

    def apply(self, operands: Sequence[Any], jaxpr: Jaxpr | None) -> list[Any]:
        """The tangents of outputs, by the program `jaxpr` where there is one."""
        return _floating(bind(custom_call_p, *operands, call=self, jaxpr=jaxpr), self.out_avals)


def no_forward_mode(name: str) -> Exception:
    """The error for forward mode of a function that has a rule for reverse mode only."""
    return errors.NotDifferentiableError(
        f"forward-mode differentiation of {name}, which defines only a reverse rule (defvjp)\n"
        f"  at {where().describe()}\n  define a forward rule too: {name}.def_jvp(...)"
    )


def linear_call(
    residuals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    forward: Jaxpr | None,
    backward: Jaxpr,
    out_avals: Sequence[Aval],
    name: str,
) -> list[Any]:
    """The tangents of outputs by a linear map of `tangents`: the program `forward` ([residuals,
    tangents] -> outputs; None where only reverse mode is defined), whose transpose is `backward`
    ([residuals, output cotangents] -> tangents' cotangents)."""

    def pull(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        cts = [instantiate(ct, a) for ct, a in zip(cts, out_avals, strict=True)]
        return bind(jit_p, *residuals, *cts, jaxpr=backward)

    if forward is None and not (isinstance(ctx.trace, StageTrace) and ctx.trace.is_tape):
        raise no_forward_mode(name)
    call = LinearCall(name, len(residuals), out_avals, None, pull, [backward])
    return call.apply([*residuals, *tangents], forward)


@memoized
def push_program(jaxpr: Jaxpr, saved: tuple[Aval, ...], nonzero: tuple[bool, ...]) -> Jaxpr:
    """[inputs, saved values, nonzero tangents] -> output tangents: a `forward` for `linear_call`,
    the derivative of a program that does not look at what is saved for the transpose."""
    count = len(jaxpr.invars)
    program, _ = jvp_jaxpr(jaxpr, nonzero, (True,) * len(jaxpr.outs))
    inputs, tangents = program.invars[:count], program.invars[count:]
    outs = program.outs[len(jaxpr.outs) :]
    eqns, _ = dead_code(program.eqns, outs)
    return Jaxpr([*inputs, *map(Var, saved), *tangents], eqns, outs, (), jaxpr.name)


def _floating(ts: Sequence[Any], kinds: Sequence[Aval]) -> list[Any]:
    """Tangents, None for outputs that have no derivatives."""
    return [t if dtypes.is_inexact(k.dtype) else None for t, k in zip(ts, kinds, strict=True)]


# ---- the primitive's rules ----


class _Custom(Primitive):
    """Not looked up by its parameters, which hold functions and what they close over."""

    __slots__ = ()

    def eager(self, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        return _run(*args, **params)

    def abstract(self, avals: tuple[Any, ...], params: dict[str, Any]) -> Any:
        return self.shape(*avals, **params)


def _shape(*avals: Aval, call: CustomCall, jaxpr: Jaxpr | None) -> list[Aval]:
    return list(call.out_avals if jaxpr is None else jaxpr.out_avals)


def _run(*xs: Any, call: CustomCall, jaxpr: Jaxpr | None) -> list[Any]:
    return call.fun(*xs) if jaxpr is None else bind(jit_p, *xs, jaxpr=jaxpr)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, call: CustomCall, jaxpr: Jaxpr | None
) -> tuple[list[Any], list[Any]]:
    if not call.forward:
        raise no_forward_mode(call.name)
    outs, ts = call.jvp(primals, tangents)
    return outs, _floating(ts, [typeof(o) for o in outs])


def _linearize(
    nonzero: Sequence[bool], *xs: Any, call: CustomCall, jaxpr: Jaxpr | None
) -> tuple[list[Any], Callable[..., Any]]:
    outs, saved, back = call.fwd(nonzero, xs)
    n, count, kinds = len(xs), len(saved), [typeof(o) for o in outs]
    perturbed = [m and dtypes.is_inexact(typeof(x).dtype) for m, x in zip(nonzero, xs)]
    residuals = [*saved, *xs] if call.forward else saved

    # The two close over no value: residuals are operands.
    def push(*operands: Any) -> list[Any]:
        primals, tangents = operands[count : count + n], filled(perturbed, operands[count + n :])
        ts = call.jvp(primals, tangents)[1]
        return [instantiate(t, k) for t, k in zip(ts, kinds)]

    def pull(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        return [ct for ct, m in zip(back(residuals[:count], cts), perturbed) if m]

    linear = LinearCall(
        call.name, len(residuals), kinds, push if call.forward else None, pull, call.programs
    )
    avals = [typeof(x) for x in (*residuals, *(x for x, m in zip(xs, perturbed) if m))]
    # On the tape of a program that is kept, the map has a program too.
    program = stage_closed(push, avals, call.name) if jaxpr is not None and call.forward else None
    return outs, lambda *ts: linear.apply(
        [*residuals, *(t for t, m in zip(ts, perturbed) if m)], program
    )


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
    trace: BatchTrace,
    xs: Sequence[Any],
    dims: Sequence[int | None],
    *,
    call: CustomCall,
    jaxpr: Jaxpr | None,
) -> tuple[list[Any], Sequence[int | None]]:
    if jaxpr is None:  # what a function closes over may be batched too
        batched = Batched(call, trace, dims)
        outs = bind(custom_call_p, *xs, call=batched, jaxpr=None)
        return outs, batched.out_dims(outs)
    programs = [jaxpr, *call.programs]
    if all(d is None for d in dims) and all(trace.axis_name not in j.axes for j in programs):
        outs = bind(custom_call_p, *xs, call=call, jaxpr=jaxpr)
        return outs, [None] * len(outs)
    size, given = trace.batch_size, tuple([d is not None for d in dims])
    xs = at_front(size, xs, dims)
    if call.batch is not None:
        outs, flags = call.batch(size, given, xs)
        return outs, [0 if b else None for b in flags]
    program, _ = batch_jaxpr(jaxpr, size, given, (True,) * len(jaxpr.outs), trace.axis_name)
    batched = Batched(call, trace, [0 if b else None for b in given], closed=True)
    outs = bind(custom_call_p, *xs, call=batched, jaxpr=program)
    return outs, batched.out_dims(outs)


custom_call_p = _Custom(
    "custom_call",
    _shape,
    multi=True,
    program="jaxpr",
    linearize=_linearize,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
)
custom_call_p.inline = _run
# A linear map belongs to a derivative: what it draws was drawn before.
custom_call_p.key_uses = lambda call, jaxpr: NOTHING if call.linear is not None else uses(jaxpr)


# ---- calls that traces make of calls ----


class Wrapped(CustomCall):
    """A call of which a trace hands a form of its own to the trace around it."""

    __slots__ = ("call", "name", "owner", "forward", "reverse", "symbolic_zeros", "linear")

    def __init__(self, call: CustomCall) -> None:
        self.call, self.name, self.owner = call, call.name, call.owner
        self.forward, self.reverse, self.linear = call.forward, call.reverse, call.linear
        self.symbolic_zeros = call.symbolic_zeros

    @property
    def learned(self) -> Any:
        return self.call.learned

    @learned.setter
    def learned(self, value: Any) -> None:
        self.call.learned = value

    @property
    def programs(self) -> Sequence[Jaxpr]:
        return self.call.programs


class Batched(Wrapped):
    """A call mapped over a batch by a trace of vmap, for the trace around that one. A `closed` one
    closes over nothing of that trace: each run has a trace of its own.

    All outputs have the batch in front, or none: a cotangent that is that of all examples must not
    meet one of each, since those of operands that examples share are summed.
    """

    __slots__ = ("size", "axis_name", "trace", "dims", "batched", "out_avals")

    def __init__(
        self, call: CustomCall, trace: BatchTrace, dims: Sequence[int | None], closed: bool = False
    ) -> None:
        super().__init__(call)
        self.size, self.axis_name, self.dims = trace.batch_size, trace.axis_name, tuple(dims)
        self.out_avals = [aval((self.size, *a.shape), a.dtype) for a in call.out_avals]
        self.trace = None if closed else trace
        # Whether outputs are: where an operand is, or a run shows it of what is closed over.
        self.batched = closed or call.linear is not None or any(d is not None for d in dims)

    @property
    def learned(self) -> tuple[Any, ...]:
        """Whether outputs are batched, beside what the call knows."""
        return self.batched, self.call.learned

    @learned.setter
    def learned(self, value: tuple[Any, ...]) -> None:
        self.batched, self.call.learned = value

    def key(self) -> tuple[Any, ...]:
        return self.size, self.axis_name, self.dims, self.call.key()

    def _running(self) -> resumed:
        return resumed(self.trace or BatchTrace(None, self.size, self.axis_name))

    def out_dims(self, outs: Sequence[Any]) -> list[int | None]:
        """Where outputs have their batch, once that is known."""
        return [0 if self.batched else None] * len(outs)

    def _in_front(self, trace: BatchTrace, outs: Sequence[Any]) -> list[Any]:
        parts = [trace.split(x) for x in outs]
        self.batched = self.batched or any(d is not None for _, d in parts)
        if not self.batched:
            return list(outs)
        return [x if x is None else move_batch(x, d, 0, self.size) for x, d in parts]

    def fun(self, *xs: Array) -> list[Array]:
        with self._running() as trace:
            outs = self.call.fun(*_mapped(trace, xs, self.dims))
        return self._in_front(trace, outs)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        with self._running() as trace:
            outs, ts = self.call.jvp(
                _mapped(trace, primals, self.dims), _mapped(trace, tangents, self.dims)
            )
        both = self._in_front(trace, [*outs, *ts])
        return both[: len(outs)], both[len(outs) :]

    def fwd(
        self, nonzero: Sequence[bool], xs: Sequence[Any]
    ) -> tuple[list[Any], list[Any], Callable[..., Any]]:
        with self._running() as trace:
            outs, saved, pull = self.call.fwd(nonzero, _mapped(trace, xs, self.dims))
        parts = [trace.split(r) for r in saved]
        back = functools.partial(self._pulled, pull, [d for _, d in parts], self.dims)
        return self._in_front(trace, outs), [r for r, _ in parts], back

    def pull(self, residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        n = len(residuals)
        return self._pulled(self.call.pull, self.dims[:n], self.dims[n:], residuals, cts)

    def _pulled(
        self,
        pull: Callable[..., Any],
        saved_dims: Sequence[int | None],
        dims: Sequence[int | None],
        residuals: Sequence[Any],
        cts: Sequence[Any],
    ) -> list[Any]:
        """The cotangents of operands at `dims`, each laid out as its operand is; that of one shared
        by all examples is summed."""
        with self._running() as trace:
            cts = _mapped(trace, cts, self.out_dims(cts))
            back = pull(_mapped(trace, residuals, saved_dims), cts)
        return [
            ct if ct is None else self._laid_out(*trace.split(ct), d)
            for ct, d in zip(back, dims, strict=True)
        ]

    def _laid_out(self, ct: Any, at: int | None, dim: int | None) -> Any:
        if dim is not None:
            return move_batch(ct, at, dim, self.size)
        if at is not None and not self.batched:
            raise errors.NotDifferentiableError(
                f"the bwd rule of {self.name} closes over a value that is being batched, of which "
                f"its outputs know nothing\n  at {where().describe()}\n"
                "  pass the value as an argument"
            )
        return ct if at is None else reduce_sum(ct, (at,))


def _mapped(trace: BatchTrace, xs: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    return [x if d is None or x is None else BatchTracer(trace, x, d) for x, d in zip(xs, dims)]
