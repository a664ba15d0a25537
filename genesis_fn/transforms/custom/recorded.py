"""Custom calls in programs that are being recorded: the function and its rules, staged and kept.

What function and rules capture becomes the leading operands, one list for all of their programs, so
that a rule may close over traced values as long as these are not differentiated.

`_stage` decides what a recording trace does with a call; `_record` makes the equation; `_recorded`
stages function and rules; `Recorded` is the call that the equation holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import stored
from genesis_fn.core.aval import Aval
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.jaxpr import Jaxpr, Var
from genesis_fn.core.primitive import Tracer, bind, trace_context_key, typeof, with_weak_types
from genesis_fn.primitives.factories import filled, instantiate
from genesis_fn.transforms.autodiff.linearize import separate_tangents
from genesis_fn.transforms.custom.custom_call import CustomCall, custom_call_p
from genesis_fn.transforms.keys.key_uses import user_call
from genesis_fn.transforms.staging.call import jit_p
from genesis_fn.transforms.staging.stage_trace import (
    StageTrace,
    StageTracer,
    evaluate,
    share_captures,
    stage,
)

_CAPACITY = 64  # recordings that one function keeps; all are dropped when there are more

# Which operands have a tangent, or which outputs a cotangent; None: all of them.
Mask = tuple[bool, ...] | None
# A program, and what it captured, its first inputs.
Staged = tuple[Jaxpr, list[Any]]


class Recorded(CustomCall):
    """A call whose rules are programs, which all take the `consts` captured values first.

    The programs, as far as there are rules: [primals, tangents] -> [outputs, tangents]; primals ->
    [outputs, residuals], and [residuals, cotangents] -> cotangents of floating operands. Rules that
    distinguish zeros have programs for each mask of what is nonzero, which `stage_again` makes when
    they are needed; the mask of cotangents is known on the way back alone, so that there is no
    backward program without one. A rule may call the very function that it belongs to, so its
    programs may refer to this object.
    """

    __slots__ = (
        "name",
        "forward",
        "reverse",
        "symbolic_zeros",
        "output_info",
        "in_avals",
        "weak",
        "out_avals",
        "out_weak",
        "consts",
        "programs_by_mask",
        "stage_again",
    )

    def __init__(
        self,
        call: CustomCall,
        in_avals: list[Aval],
        weak: list[bool],
        out_avals: list[Aval],
        out_weak: list[bool],
    ) -> None:
        self.name, self.forward, self.reverse = call.name, call.forward, call.reverse
        self.symbolic_zeros, self.output_info = call.symbolic_zeros, call.output_info
        self.in_avals, self.weak = in_avals, weak
        self.out_avals, self.out_weak = out_avals, out_weak
        self.consts = 0  # set once the rules are staged
        self.programs_by_mask: dict[tuple[Mask, Mask], list[Jaxpr]] = {}
        self.stage_again: Callable[[Mask, Mask], list[Jaxpr]] | None = None

    def rules(self, nonzero: Mask = None, cts: Mask = None) -> list[Jaxpr]:
        """The rules' programs for derivatives of these operands and outputs only."""
        key = (nonzero, cts) if self.symbolic_zeros else (None, None)
        if key not in self.programs_by_mask:
            assert self.stage_again is not None
            self.programs_by_mask[key] = self.stage_again(*key)
        return self.programs_by_mask[key]

    @property
    def programs(self) -> list[Jaxpr]:
        return [j for programs in self.programs_by_mask.values() for j in programs]

    def _nonzero(self, mask: Sequence[bool]) -> tuple[bool, ...]:
        """Drop the captured values from the mask of what is differentiated. Raises
        NotDifferentiableError if one of them is."""
        if any(mask[: self.consts]):
            raise errors.ClosedOverError(
                f"{self.name} closes over a value that is being differentiated; its derivative "
                f"rule cannot know of it\n  at {where().describe()}\n"
                "  pass the value as an argument, or wrap it in stop_gradient"
            )
        return tuple(mask[self.consts :])

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        program, *_ = self.rules(self._nonzero([t is not None for t in tangents]))
        dense = [instantiate(t, k) for t, k in zip(tangents[self.consts :], self.in_avals)]
        outs = evaluate(program, *primals, *dense)
        count = len(self.out_avals)
        return outs[:count], outs[count:]

    def fwd(
        self, nonzero: Sequence[bool], xs: Sequence[Any]
    ) -> tuple[list[Any], list[Any], Callable[..., Any]]:
        mask, count = self._nonzero(nonzero), len(self.out_avals)
        forward = self.rules(mask)[int(self.forward)]
        outs = bind(jit_p, *xs, jaxpr=forward)

        def pull(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            *_, backward = self.rules(mask, tuple([ct is not None for ct in cts]))
            dense = [instantiate(ct, k) for ct, k in zip(cts, self.out_avals, strict=True)]
            floating = [False] * self.consts + [dtypes.is_inexact(k.dtype) for k in self.in_avals]
            return filled(floating, bind(jit_p, *residuals, *dense, jaxpr=backward))

        return outs[:count], [*xs[: self.consts], *outs[count:]], pull

    def staged(self, call: CustomCall, nonzero: Mask = None, cts: Mask = None) -> list[Staged]:
        """Stage the rules of `call`: programs, and what each captured. Without masks it stages all
        of them, for derivatives of everything. Raises TreeError or ShapeError where they do not
        fit the function's program."""
        jvp = [self._stage_jvp(call, nonzero)] if self.forward else []
        return jvp + (self._stage_vjp(call, nonzero, cts) if self.reverse else [])

    def _stage_jvp(self, call: CustomCall, nonzero: Mask) -> Staged:
        n = len(self.in_avals)

        def jvp(*xs: Any) -> list[Any]:
            with separate_tangents():
                outs, ts = call.jvp(xs[:n], _masked(nonzero, xs[n:]))
            if call.output_info != self.output_info:
                what = (
                    f"returned structures {call.output_info}, the function returns "
                    f"{self.output_info}"
                )
                raise call.owner.rule_error(errors.TreeError, "jvp", what)
            outs = [instantiate(o, k) for o, k in zip(outs, self.out_avals, strict=True)]
            for found, kind in zip(map(typeof, outs), self.out_avals, strict=True):
                if found is not kind:
                    what = f"returned {found} where {kind} is expected"
                    raise call.owner.rule_error(errors.ShapeError, "jvp", what)
            return [*outs, *(instantiate(t, k) for t, k in zip(ts, self.out_avals))]

        return stage(jvp, self.in_avals * 2, name=self.name, weak=self.weak * 2)

    def _stage_vjp(self, call: CustomCall, nonzero: Mask, cts: Mask) -> list[Staged]:
        count, kept = len(self.out_avals), []

        def fwd(*xs: Any) -> list[Any]:
            outs, saved, pull = call.fwd(nonzero or (True,) * len(xs), xs)
            outs = [instantiate(o, k) for o, k in zip(outs, self.out_avals)]
            found = [typeof(o) for o in outs]
            if call.output_info != self.output_info or found != self.out_avals:
                what = (
                    f"returned {found} of structure {call.output_info}, the function returns "
                    f"{self.out_avals} of structure {self.output_info}"
                )
                raise call.owner.rule_error(errors.TreeError, "fwd", what)
            kept[:] = [r.weak for r in saved], pull
            return [*outs, *saved]

        forward = stage(fwd, self.in_avals, name=self.name, weak=self.weak)
        saved_weak, pull = kept
        n, saved = len(saved_weak), forward[0].out_avals[count:]

        def bwd(*xs: Any) -> list[Any]:
            return [ct for ct in pull(xs[:n], _masked(cts, xs[n:])) if ct is not None]

        if cts is None and nonzero is not None:
            return [forward]
        avals, weak = [*saved, *self.out_avals], [*saved_weak, *self.out_weak]
        return [forward, stage(bwd, avals, name=self.name, weak=weak)]


def _masked(mask: Mask, xs: Sequence[Any]) -> list[Any]:
    """Tangents or cotangents, None for those that are zero."""
    return [x if m else None for x, m in zip(xs, mask or (True,) * len(xs))]


# A recorded call: the function's program, the call with its rules, what both captured.
Recording = tuple[Jaxpr, Recorded, list[Any]]


class _StagingRules:
    """`with _StagingRules(key):` the rules of a call are being staged: a call of the same function
    inside them refers to the program that is being made.

    The first pass has no `recording`: it finds out what the rules capture, and whether they call
    the function; then they are staged again with one.
    """

    def __init__(self, key: Any, recording: Recording | None = None) -> None:
        self.key, self.recording, self.called = key, recording, False

    def __enter__(self) -> _StagingRules:
        self.before, _staging.calls = _staging.calls, {**_staging.calls, self.key: self}
        return self

    def __exit__(self, *exc: Any) -> None:
        _staging.calls = self.before


class _Staging(threading.local):
    """The calls whose rules this thread is staging. To another thread such a call is a call like
    any other."""

    calls: Mapping[Any, _StagingRules] = {}


_staging = _Staging()


def _stage(
    trace: StageTrace, xs: Sequence[Any], *, call: CustomCall, jaxpr: Jaxpr | None
) -> list[Any] | None:
    """Return the outputs of a call on a recording trace; None to record the operation as it is."""
    if jaxpr is not None:
        return None
    if call.linear is not None:
        return None if trace.is_tape or not call.forward else call.fun(*xs)
    # A tape is only transposed: no further derivative will need the rules, so they are not staged.
    return call.fun(*xs) if trace.is_tape else _record(call, xs)


custom_call_p.stage = _stage


def _record(call: CustomCall, xs: Sequence[Any]) -> list[Any]:
    """Record a call as an operation that holds programs, and return the outputs.

    Programs of an earlier call are used again if nothing that they captured is a tracer.
    """
    key = id(call.owner), call.key(), trace_context_key()
    staging = _staging.calls.get(key)
    if staging is not None:
        staging.called = True
        if staging.recording is None:
            return call.fun(*xs)
        recording = staging.recording
    else:
        known = call.owner.kept.get((key, call.owner.fingerprint()))
        recording = known or _recorded(key, call, xs)
    jaxpr, recorded, consts = recording
    call.output_info = recorded.output_info
    outs = user_call(custom_call_p, *consts, *xs, call=recorded, jaxpr=jaxpr)
    return with_weak_types(outs, recorded.out_weak)


def _recorded(key: tuple[Any, ...], call: CustomCall, xs: Sequence[Any]) -> Recording:
    """Stage the function and its rules, and keep the recording if it closes over no tracer."""
    avals, weak, out_weak = [typeof(x) for x in xs], [x.weak for x in xs], []

    def primal(*args: Any) -> list[Any]:
        outs = call.fun(*args)
        out_weak[:] = [o.weak for o in outs]
        return outs

    first = stage(primal, avals, name=call.name, weak=weak)
    recorded = Recorded(call, avals, weak, first[0].out_avals, out_weak)
    with _StagingRules(key) as staging:
        rules = []
        try:
            if any(dtypes.is_inexact(a.dtype) for a in avals):
                rules = recorded.staged(call)
        except Exception as error:
            # A rule that tells zeros apart may refuse that nothing is zero, and one that cannot be
            # used here may not be needed: what they raise is left until a derivative asks for it.
            if not (call.symbolic_zeros or isinstance(error, errors.NotDifferentiableError)):
                raise
        (jaxpr, *programs), consts = share_captures([first, *rules])
    recorded.consts, recording = len(consts), (jaxpr, recorded, consts)

    def restage(nonzero: Mask = None, cts: Mask = None) -> list[Jaxpr]:
        with _StagingRules(key, recording):
            return _laid_out(recorded.staged(call, nonzero, cts), consts, call.name)

    if programs:
        recorded.programs_by_mask[None, None] = restage() if staging.called else programs
    if call.symbolic_zeros or not programs:
        recorded.stage_again = restage
    # Taken after the tracing: rules may have changed what they read, a cache or a counter.
    fingerprint, kept = call.owner.fingerprint(), call.owner.kept
    if fingerprint is not None and not any(isinstance(x, Tracer) for x in consts):
        if len(kept) >= _CAPACITY:
            kept.clear()
        kept[key, fingerprint] = recording
    return recording


def _laid_out(
    staged: Sequence[tuple[Jaxpr, list[Any]]], consts: Sequence[Any], name: str
) -> list[Jaxpr]:
    """Make the programs of a second staging take `consts`, the captured values of the first.

    Constants that the rule makes (`jnp.arange(3)`) are other arrays at each staging: they are
    matched by value.
    """
    programs = []
    for jaxpr, captured in staged:
        first = [Var(typeof(c)) for c in consts]
        rename: dict[Any, Any] = {}
        for x, v in zip(captured, jaxpr.invars):
            positions = [i for i, c in enumerate(consts) if _is_same(c, x) or _equal_bits(c, x)]
            if not positions:
                raise errors.UnexpectedTracerError(
                    f"{name}: its rule captured other values when it was traced again; pass what "
                    f"changes as an argument\n  at {where().describe()}"
                )
            rename[v] = first[positions[0]]
        renamed = lambda a: rename.get(a, a) if type(a) is Var else a
        eqns = [e.replace(ins=[renamed(a) for a in e.ins]) for e in jaxpr.eqns]
        rest = jaxpr.invars[len(captured) :]
        outs = [renamed(o) for o in jaxpr.outs]
        programs.append(Jaxpr([*first, *rest], eqns, outs, (), jaxpr.name))
    return programs


def _is_same(x: Any, y: Any) -> bool:
    """Whether two captured values are one: a traced one may be two objects, one of them weak."""
    if isinstance(x, StageTracer) and isinstance(y, StageTracer):
        return x.owner is y.owner and x.variable is y.variable
    return x is y


def _equal_bits(x: Any, y: Any) -> bool:
    """Whether two concrete arrays are equal bit for bit."""
    if isinstance(x, Tracer) or isinstance(y, Tracer) or x.sig is not y.sig:
        return False
    read = lambda a: a.device.backend.to_numpy(stored(a)).tobytes()
    return read(x) == read(y)
