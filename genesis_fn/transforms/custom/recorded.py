"""Custom calls in programs that are being recorded: function and rules staged, and kept.

What function and rules capture is hoisted to leading operands, one list for all of their programs,
so that a rule may close over traced values as long as those are not differentiated.
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
from genesis_fn.transforms.staging.stage import StageTrace, evaluate, share_captures, stage

_CAPACITY = 64  # recorded calls that one function keeps

# Which operands have a tangent, or which outputs a cotangent; None: all of them.
Mask = tuple[bool, ...] | None
# A program, and what it captured, its first inputs.
Staged = tuple[Jaxpr, list[Any]]


class Recorded(CustomCall):
    """A call whose rules are programs, which all take `consts` captured values first.

    They are, as far as there is a rule: [primals, tangents] -> [outputs, tangents]; primals ->
    [outputs, residuals], and [residuals, cotangents] -> cotangents of floating operands. Rules that
    tell zeros apart have programs for each choice of what is not zero; `stage_again` makes them
    when they are needed. A rule may call the very function that it belongs to, so its programs may
    refer to this object.
    """

    __slots__ = (
        "name",
        "forward",
        "reverse",
        "symbolic_zeros",
        "learned",
        "in_avals",
        "weak",
        "out_avals",
        "out_weak",
        "consts",
        "made",
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
        self.symbolic_zeros, self.learned = call.symbolic_zeros, call.learned
        self.in_avals, self.weak = in_avals, weak
        self.out_avals, self.out_weak = out_avals, out_weak
        self.consts = 0  # known with the rules' programs
        self.made: dict[tuple[Mask, Mask], list[Jaxpr]] = {}
        self.stage_again: Callable[[Mask, Mask], list[Jaxpr]] | None = None

    def rules(self, nonzero: Mask = None, cts: Mask = None) -> list[Jaxpr]:
        """The rules' programs where only some operands and outputs have derivatives."""
        key = (nonzero, cts) if self.symbolic_zeros else (None, None)
        if key not in self.made:
            assert self.stage_again is not None
            self.made[key] = self.stage_again(*key)
        return self.made[key]

    @property
    def programs(self) -> list[Jaxpr]:
        return [j for programs in self.made.values() for j in programs]

    def _nonzero(self, given: Sequence[bool]) -> tuple[bool, ...]:
        """What is not zero, of the arguments without the captured values."""
        if any(given[: self.consts]):
            raise errors.NotDifferentiableError(
                f"{self.name} closes over a value that is being differentiated; its derivative "
                f"rule cannot know of it\n  at {where().describe()}\n"
                "  pass the value as an argument, or wrap it in stop_gradient"
            )
        return tuple(given[self.consts :])

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
        *_, forward, _ = self.rules(mask)
        outs = bind(jit_p, *xs, jaxpr=forward)

        def pull(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            *_, backward = self.rules(mask, tuple([ct is not None for ct in cts]))
            dense = [instantiate(ct, k) for ct, k in zip(cts, self.out_avals, strict=True)]
            given = [False] * self.consts + [dtypes.is_inexact(k.dtype) for k in self.in_avals]
            return filled(given, bind(jit_p, *residuals, *dense, jaxpr=backward))

        return outs[:count], [*xs[: self.consts], *outs[count:]], pull

    def staged(self, call: CustomCall, nonzero: Mask = None, cts: Mask = None) -> list[Staged]:
        """The programs of `call`'s rules with what each captured. Raises TreeError or ShapeError
        where they do not fit the function's program."""
        jvp = [self._stage_jvp(call, nonzero)] if self.forward else []
        return jvp + (self._stage_vjp(call, nonzero, cts) if self.reverse else [])

    def _stage_jvp(self, call: CustomCall, nonzero: Mask) -> Staged:
        n = len(self.in_avals)

        def jvp(*xs: Any) -> list[Any]:
            with separate_tangents():
                outs, ts = call.jvp(xs[:n], _only(nonzero, xs[n:]))
            if call.learned != self.learned:
                what = f"returned structures {call.learned}, the function returns {self.learned}"
                raise call.owner.rule_error(errors.TreeError, "jvp", what)
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
            found = [typeof(o) for o in outs]
            if call.learned != self.learned or found != self.out_avals:
                what = (
                    f"returned {found} of structure {call.learned}, the function returns "
                    f"{self.out_avals} of structure {self.learned}"
                )
                raise call.owner.rule_error(errors.TreeError, "fwd", what)
            kept[:] = [r.weak for r in saved], pull
            return [*outs, *saved]

        forward = stage(fwd, self.in_avals, name=self.name, weak=self.weak)
        saved_weak, pull = kept
        n, saved = len(saved_weak), forward[0].out_avals[count:]

        def bwd(*xs: Any) -> list[Any]:
            return [ct for ct in pull(xs[:n], _only(cts, xs[n:])) if ct is not None]

        kinds, weak = [*saved, *self.out_avals], [*saved_weak, *self.out_weak]
        return [forward, stage(bwd, kinds, name=self.name, weak=weak)]


def _only(mask: Mask, xs: Sequence[Any]) -> list[Any]:
    """Tangents or cotangents, None for those that are zero."""
    return [x if m else None for x, m in zip(xs, mask or (True,) * len(xs))]


# What is known of a recorded call: the function's program, the call, what both captured.
Found = tuple[Jaxpr, Recorded, list[Any]]


class _RulesOf:
    """`with _RulesOf(key):` the rules of a call are being staged, again if it is `found`: a first
    pass only finds out what they capture, and whether they call the function."""

    def __init__(self, key: Any, found: Found | None = None) -> None:
        self.key, self.found, self.called = key, found, False

    def __enter__(self) -> _RulesOf:
        self.before, _staging.calls = _staging.calls, {**_staging.calls, self.key: self}
        return self

    def __exit__(self, *exc: Any) -> None:
        _staging.calls = self.before


class _Staging(threading.local):
    """The calls whose rules this thread is staging now: there a call of the same function is the
    program being made. To another thread it is a call like any other."""

    calls: Mapping[Any, _RulesOf] = {}


_staging = _Staging()


def _stage(
    trace: StageTrace, xs: Sequence[Any], *, call: CustomCall, jaxpr: Jaxpr | None
) -> list[Any] | None:
    """The outputs; None to record the operation as it stands."""
    if jaxpr is not None:
        return None
    if call.linear is not None:
        return None if trace.is_tape or not call.forward else call.fun(*xs)
    # A tape is there to be transposed: no further derivative will ask for the rules.
    return call.fun(*xs) if trace.is_tape else _record(call, xs)


custom_call_p.stage = _stage


def _record(call: CustomCall, xs: Sequence[Any]) -> list[Any]:
    """The outputs of a call recorded as an operation that holds programs: those kept from an
    earlier call, if nothing that they captured is a tracer."""
    key = id(call.owner), call.key(), trace_context_key()
    staging = _staging.calls.get(key)
    if staging is not None:
        staging.called = True
        if staging.found is None:
            return call.fun(*xs)
        found = staging.found
    else:
        known = call.owner.kept.get((key, call.owner.fingerprint()))
        found = known or _recorded(key, call, xs)
    jaxpr, recorded, consts = found
    call.learned = recorded.learned
    outs = user_call(custom_call_p, *consts, *xs, call=recorded, jaxpr=jaxpr)
    return with_weak_types(outs, recorded.out_weak)


def _recorded(key: tuple[Any, ...], call: CustomCall, xs: Sequence[Any]) -> Found:
    kinds, weak, out_weak = [typeof(x) for x in xs], [x.weak for x in xs], []

    def primal(*args: Any) -> list[Any]:
        outs = call.fun(*args)
        out_weak[:] = [o.weak for o in outs]
        return outs

    first = stage(primal, kinds, name=call.name, weak=weak)
    recorded = Recorded(call, kinds, weak, first[0].out_avals, out_weak)
    with _RulesOf(key) as staging:
        (jaxpr, *programs), consts = share_captures([first, *recorded.staged(call)])
    recorded.consts, found = len(consts), (jaxpr, recorded, consts)

    def again(nonzero: Mask = None, cts: Mask = None) -> list[Jaxpr]:
        with _RulesOf(key, found):
            return _laid_out(recorded.staged(call, nonzero, cts), consts, call.name)

    recorded.made[None, None] = again() if staging.called else programs
    if call.symbolic_zeros:
        recorded.stage_again = again
    # What the rules wrote while they were traced counts as it is now.
    fingerprint, kept = call.owner.fingerprint(), call.owner.kept
    if fingerprint is not None and not any(isinstance(x, Tracer) for x in consts):
        if len(kept) >= _CAPACITY:
            kept.clear()
        kept[key, fingerprint] = found
    return found


def _laid_out(
    staged: Sequence[tuple[Jaxpr, list[Any]]], consts: Sequence[Any], name: str
) -> list[Jaxpr]:
    """The programs of a second staging, taking `consts`, the captured values of the first.

    Constants that the rule makes (`jnp.arange(3)`) are other arrays at each staging: they are
    matched by value.
    """
    programs = []
    for jaxpr, captured in staged:
        first = [Var(typeof(c)) for c in consts]
        rename: dict[Any, Any] = {}
        for x, v in zip(captured, jaxpr.invars):
            found = [i for i, c in enumerate(consts) if c is x or _same(c, x)]
            if not found:
                raise errors.UnexpectedTracerError(
                    f"{name}: its rule captured other values when it was traced again; pass what "
                    f"changes as an argument\n  at {where().describe()}"
                )
            rename[v] = first[found[0]]
        here = lambda a: rename.get(a, a) if type(a) is Var else a
        eqns = [e.replace(ins=[here(a) for a in e.ins]) for e in jaxpr.eqns]
        rest = jaxpr.invars[len(captured) :]
        outs = [here(o) for o in jaxpr.outs]
        programs.append(Jaxpr([*first, *rest], eqns, outs, (), jaxpr.name))
    return programs


def _same(x: Any, y: Any) -> bool:
    """Whether two concrete arrays are equal bit for bit."""
    if isinstance(x, Tracer) or isinstance(y, Tracer) or x.sig is not y.sig:
        return False
    read = lambda a: a.device.backend.to_numpy(stored(a)).tobytes()
    return read(x) == read(y)
