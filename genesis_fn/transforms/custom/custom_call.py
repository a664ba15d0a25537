"""Functions with rules of their own: one record, `CustomCall`, and one primitive, `custom_call`.

`custom_jvp`, `custom_vjp` and `custom_vmap` bind it, and so does every linear map with a transpose
of its own (`LinearCall`): the pullback of a `custom_vjp`, a checkpoint, a kernel.

A trace that records a program has the function and its rules staged (`recorded.py`): the equation
then holds the function's program as `jaxpr`, for everything that runs programs, and a record that
closes over no traced value, for everything that differentiates, batches or transposes them. Every
other trace runs the record's functions as Python, on its own values, so that the user's Python sees
concrete values wherever there are any.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
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
from genesis_fn.transforms.staging.stage_trace import StageTrace, stage_closed


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
      of them are batched), all with the batch as leading axis.
    * `key()`: what distinguishes the recordings that `owner` keeps.
    * `output_info`: what a run shows of the outputs, such as their structure.

    A tangent or cotangent that is zero may be None wherever rules take or return one; with
    `symbolic_zeros` the rules distinguish zeros.
    """

    __slots__ = ()

    name: str  # what messages call the function
    owner: Any = None  # the user's function
    output_info: Any = None
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
    """A map that is linear in the operands after `linear` residuals, and its transpose.

    `push(*operands)` is the map, None where only reverse mode is defined; `pull(residuals, cts)` is
    its transpose, which runs `programs`.
    """

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
        """Return the tangents of the outputs, by the program `jaxpr` if there is one."""
        return _floating(bind(custom_call_p, *operands, call=self, jaxpr=jaxpr), self.out_avals)


def no_forward_mode(name: str) -> Exception:
    """The error for forward mode of a function that has only a reverse rule."""
    return errors.NotDifferentiableError(
        f"forward-mode differentiation of {name}, which defines only a reverse rule (defvjp)\n"
        f"  at {where().describe()}\n  define a forward rule too: {name}.def_jvp(...)"
    )


def linear_call(
    residuals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    forward: Jaxpr | None,
    backward: Jaxpr | errors.NotDifferentiableError,
    out_avals: Sequence[Aval],
    name: str,
) -> list[Any]:
    """Apply a linear map with a transpose of its own to `tangents`.

    `forward` is the program of the map, [residuals, tangents] -> outputs, or None where only
    reverse mode is defined; `backward` that of its transpose, [residuals, output cotangents] ->
    cotangents of the tangents, or the error to raise where it is asked for.
    """

    def pull(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        if isinstance(backward, Exception):
            raise backward.with_traceback(None)
        cts = [instantiate(ct, a) for ct, a in zip(cts, out_avals, strict=True)]
        return bind(jit_p, *residuals, *cts, jaxpr=backward)

    if forward is None and not (isinstance(ctx.trace, StageTrace) and ctx.trace.is_tape):
        raise no_forward_mode(name)
    programs = [] if isinstance(backward, Exception) else [backward]
    call = LinearCall(name, len(residuals), out_avals, None, pull, programs)
    return call.apply([*residuals, *tangents], forward)


@memoized
def push_program(jaxpr: Jaxpr, saved: tuple[Aval, ...], nonzero: tuple[bool, ...]) -> Jaxpr:
    """Make a `forward` for `linear_call`: [inputs, saved values, nonzero tangents] -> output
    tangents.

    It is the derivative of `jaxpr`, which does not read the values that are saved for the
    transpose.
    """
    count = len(jaxpr.invars)
    program, _ = jvp_jaxpr(jaxpr, nonzero, (True,) * len(jaxpr.outs))
    inputs, tangents = program.invars[:count], program.invars[count:]
    outs = program.outs[len(jaxpr.outs) :]
    eqns, _ = dead_code(program.eqns, outs)
    return Jaxpr([*inputs, *map(Var, saved), *tangents], eqns, outs, (), jaxpr.name)


def _floating(ts: Sequence[Any], avals: Sequence[Aval]) -> list[Any]:
    """The tangents, None for outputs that have no derivatives."""
    return [t if dtypes.is_inexact(k.dtype) else None for t, k in zip(ts, avals, strict=True)]


# ---- the primitive's rules ----


class _Custom(Primitive):
    """Eager calls run `call` directly: parameters that hold functions, and what they close over,
    are no keys of a cache."""

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
    n, count, out_avals = len(xs), len(saved), [typeof(o) for o in outs]
    perturbed = [m and dtypes.is_inexact(typeof(x).dtype) for m, x in zip(nonzero, xs)]
    residuals = [*saved, *xs] if call.forward else saved

    # `push` and `pull` take the residuals as operands, so that the tape sees all that they read.
    def push(*operands: Any) -> list[Any]:
        primals, tangents = operands[count : count + n], filled(perturbed, operands[count + n :])
        ts = call.jvp(primals, tangents)[1]
        return [instantiate(t, k) for t, k in zip(ts, out_avals)]

    def pull(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        return [ct for ct, m in zip(back(residuals[:count], cts), perturbed) if m]

    linear = LinearCall(
        call.name, len(residuals), out_avals, push if call.forward else None, pull, call.programs
    )
    avals = [typeof(x) for x in (*residuals, *(x for x, m in zip(xs, perturbed) if m))]
    # A recorded call lies in a program that is kept, so its linear map must be a program as well.
    program = stage_closed(push, avals, call.name) if jaxpr is not None and call.forward else None
    return outs, lambda *ts: linear.apply(
        [*residuals, *(t for t, m in zip(ts, perturbed) if m)], program
    )


def _transpose(
    cts: Sequence[Any], *operands: Any, call: CustomCall, jaxpr: Jaxpr | None
) -> list[Any]:
    n = call.linear
    if n is None:  # a derivative rule called a linear function, with rules of its own, on tangents
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
    if jaxpr is None:  # not recorded: the function runs under this trace, batched captures and all
        batched = Batched(call, trace, dims)
        outs = bind(custom_call_p, *xs, call=batched, jaxpr=None)
        return outs, batched.out_dims(outs)
    programs = [jaxpr, *call.programs]
    if all(d is None for d in dims) and all(trace.axis_name not in j.axes for j in programs):
        outs = bind(custom_call_p, *xs, call=call, jaxpr=jaxpr)
        return outs, [None] * len(outs)
    size, batched_in = trace.batch_size, tuple([d is not None for d in dims])
    xs = at_front(size, xs, dims)
    if call.batch is not None:
        outs, flags = call.batch(size, batched_in, xs)
        return outs, [0 if b else None for b in flags]
    program, _ = batch_jaxpr(jaxpr, size, batched_in, (True,) * len(jaxpr.outs), trace.axis_name)
    batched = Batched(call, trace, [0 if b else None for b in batched_in], closed=True)
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
custom_call_p.takes = lambda *, call, jaxpr: None if jaxpr is None else jaxpr.in_avals
# A linear map belongs to a derivative: the forward pass has marked the keys that it draws from.
custom_call_p.key_uses = lambda call, jaxpr: NOTHING if call.linear is not None else uses(jaxpr)


# ---- calls that a trace passes on to the trace around it ----


class Wrapped(CustomCall):
    """A call that a trace passes on to the trace around it, in a form of its own."""

    __slots__ = ("call", "name", "owner", "forward", "reverse", "symbolic_zeros", "linear")

    def __init__(self, call: CustomCall) -> None:
        self.call, self.name, self.owner = call, call.name, call.owner
        self.forward, self.reverse, self.linear = call.forward, call.reverse, call.linear
        self.symbolic_zeros = call.symbolic_zeros

    @property
    def output_info(self) -> Any:
        return self.call.output_info

    @output_info.setter
    def output_info(self, value: Any) -> None:
        self.call.output_info = value

    @property
    def programs(self) -> Sequence[Jaxpr]:
        return self.call.programs


class Batched(Wrapped):
    """A call mapped over a batch, which a vmap trace passes on to the trace around it.

    A `closed` one closes over no value of that vmap: each run has a trace of its own.

    All outputs have the batch as leading axis, or none has: cotangents of operands that all
    examples share are summed over the batch, so that one that is shared must not be added to one
    per example.
    """

    __slots__ = ("size", "axis_name", "trace", "dims", "batched", "out_avals")

    def __init__(
        self, call: CustomCall, trace: BatchTrace, dims: Sequence[int | None], closed: bool = False
    ) -> None:
        super().__init__(call)
        self.size, self.axis_name, self.dims = trace.batch_size, trace.axis_name, tuple(dims)
        self.out_avals = [a.update((self.size, *a.shape)) for a in call.out_avals]
        self.trace = None if closed else trace
        # Whether outputs are batched: if an operand is, or if a run shows that a captured value is.
        self.batched = closed or call.linear is not None or any(d is not None for d in dims)

    @property
    def output_info(self) -> tuple[Any, ...]:
        """(whether outputs are batched, what the inner call knows)."""
        return self.batched, self.call.output_info

    @output_info.setter
    def output_info(self, value: tuple[Any, ...]) -> None:
        """(whether outputs are batched, what the inner call knows)."""
        self.batched, self.call.output_info = value

    def key(self) -> tuple[Any, ...]:
        return self.size, self.axis_name, self.dims, self.call.key()

    def _running(self) -> resumed:
        return resumed(self.trace or BatchTrace(None, self.size, self.axis_name))

    def out_dims(self, outs: Sequence[Any]) -> list[int | None]:
        """The batch dimensions of the outputs; known after a run."""
        return [0 if self.batched else None] * len(outs)

    def _batch_leading(self, trace: BatchTrace, outs: Sequence[Any]) -> list[Any]:
        split_outs = [trace.split(x) for x in outs]
        self.batched = self.batched or any(d is not None for _, d in split_outs)
        if not self.batched:
            return list(outs)
        return [x if x is None else move_batch(x, d, 0, self.size) for x, d in split_outs]

    def fun(self, *xs: Array) -> list[Array]:
        with self._running() as trace:
            outs = self.call.fun(*_tracers(trace, xs, self.dims))
        return self._batch_leading(trace, outs)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        with self._running() as trace:
            outs, ts = self.call.jvp(
                _tracers(trace, primals, self.dims), _tracers(trace, tangents, self.dims)
            )
        both = self._batch_leading(trace, [*outs, *ts])
        return both[: len(outs)], both[len(outs) :]

    def fwd(
        self, nonzero: Sequence[bool], xs: Sequence[Any]
    ) -> tuple[list[Any], list[Any], Callable[..., Any]]:
        with self._running() as trace:
            outs, saved, pull = self.call.fwd(nonzero, _tracers(trace, xs, self.dims))
        split_residuals = [trace.split(r) for r in saved]
        back = functools.partial(self._pull_with, pull, [d for _, d in split_residuals], self.dims)
        return self._batch_leading(trace, outs), [r for r, _ in split_residuals], back

    def pull(self, residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        n = len(residuals)
        return self._pull_with(self.call.pull, self.dims[:n], self.dims[n:], residuals, cts)

    def _pull_with(
        self,
        pull: Callable[..., Any],
        saved_dims: Sequence[int | None],
        dims: Sequence[int | None],
        residuals: Sequence[Any],
        cts: Sequence[Any],
    ) -> list[Any]:
        """Pull cotangents back to operands with batch dimensions `dims`.

        Each cotangent is laid out as its operand; that of an operand that examples share is summed.
        """
        with self._running() as trace:
            cts = _tracers(trace, cts, self.out_dims(cts))
            back = pull(_tracers(trace, residuals, saved_dims), cts)
        return [
            ct if ct is None else self._like_operand(*trace.split(ct), d)
            for ct, d in zip(back, dims, strict=True)
        ]

    def _like_operand(self, ct: Any, at: int | None, dim: int | None) -> Any:
        if dim is not None:
            return move_batch(ct, at, dim, self.size)
        if at is not None and not self.batched:
            raise errors.NotDifferentiableError(
                f"the bwd rule of {self.name} closes over a value that is being batched, of which "
                f"its outputs know nothing\n  at {where().describe()}\n"
                "  pass the value as an argument"
            )
        return ct if at is None else reduce_sum(ct, (at,))


def _tracers(trace: BatchTrace, xs: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    return [x if d is None or x is None else BatchTracer(trace, x, d) for x, d in zip(xs, dims)]
