"""Custom calls in programs that are being recorded: function and rules staged, and kept.

What function and rules capture is hoisted to leading operands, one list for all of their programs,
so that a rule may close over traced values as long as those are not differentiated.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import stored
from genesis_fn.core.aval import Aval
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.jaxpr import Jaxpr, Var
from genesis_fn.core.primitive import Tracer, bind, marked, surroundings, typeof
from genesis_fn.primitives.factories import filled, instantiate
from genesis_fn.transforms.autodiff.linearize import keeping_apart
from genesis_fn.transforms.custom.custom_call import CustomCall, custom_call_p
from genesis_fn.transforms.keys.key_uses import user_call
from genesis_fn.transforms.staging.call import jit_p
from genesis_fn.transforms.staging.stage import evaluate, share_captures, stage

_CAPACITY = 64  # recorded calls of one function

# Which operands have a tangent, or which outputs a cotangent; None: all of them.
Mask = tuple[bool, ...] | None


class RulePrograms(NamedTuple):
    """The programs of a call's rules: (primals, tangents) -> (outputs, tangents); primals ->
    (outputs, residuals); (residuals, cotangents) -> cotangents of floating operands."""

    jvp: Jaxpr | None = None
    fwd: Jaxpr | None = None
    bwd: Jaxpr | None = None


class Recorded(CustomCall):
    """A call whose rules are programs, which all take `consts` captured values first.

    Rules that tell zeros apart have programs for each choice of what is not zero; `stage_rules`
    makes them when they are needed. A rule may call the very function that it belongs to, so its
    programs may refer to this object.
    """

    __slots__ = (
        "name", "forward", "reverse", "symbolic", "consts", "kinds", "out_kinds", "learned", "weak",
        "made", "stage_rules",
    )  # fmt: skip

    def __init__(
        self, call: CustomCall, consts: int, kinds: Sequence[Aval], out_kinds: Sequence[Aval],
        weak: Sequence[bool], stage_rules: Callable[[Mask, Mask], RulePrograms] | None = None,
    ) -> None:  # fmt: skip
        self.name, self.forward, self.reverse = call.name, call.forward, call.reverse
        self.symbolic, self.learned, self.consts = call.symbolic, call.learned, consts
        self.kinds, self.out_kinds, self.weak = tuple(kinds), tuple(out_kinds), list(weak)
        self.made: dict[tuple[Mask, Mask], RulePrograms] = {}
        self.stage_rules = stage_rules

    def programs(self, nonzero: Mask = None, cts: Mask = None) -> RulePrograms:
        """The rules' programs where only some operands and outputs have derivatives."""
        key = (nonzero, cts) if self.symbolic else (None, None)
        if key not in self.made:
            assert self.stage_rules is not None
            self.made[key] = self.stage_rules(*key)
        return self.made[key]

    def programs_known(self) -> list[Jaxpr]:
        return [j for programs in self.made.values() for j in programs if j is not None]

    def _given(self, given: Sequence[bool]) -> tuple[bool, ...]:
        """What is not zero, of the arguments without the captured values."""
        if any(given[: self.consts]):
            raise errors.NotDifferentiableError(
                f"{self.name} closes over a value that is being differentiated; its derivative "
                f"rule cannot know of it\n  at {where().describe()}\n"
                "  pass the value as an argument, or wrap it in stop_gradient"
            )
        return tuple(given[self.consts :])

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        program = self.programs(self._given([t is not None for t in tangents])).jvp
        assert program is not None
        dense = [instantiate(t, k) for t, k in zip(tangents[self.consts :], self.kinds)]
        outs = evaluate(program, *primals, *dense)
        count = len(self.out_kinds)
        return outs[:count], outs[count:]

    def fwd(
        self, nonzero: Sequence[bool], xs: Sequence[Any]
    ) -> tuple[list[Any], list[Any], Callable]:
        mask, count = self._given(nonzero), len(self.out_kinds)
        outs = bind(jit_p, *xs, jaxpr=self.programs(mask).fwd)

        def pull(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            bwd = self.programs(mask, tuple([ct is not None for ct in cts])).bwd
            dense = [instantiate(ct, k) for ct, k in zip(cts, self.out_kinds, strict=True)]
            given = [False] * self.consts + [dtypes.is_inexact(k.dtype) for k in self.kinds]
            return filled(given, bind(jit_p, *residuals, *dense, jaxpr=bwd))

        return outs[:count], [*xs[: self.consts], *outs[count:]], pull


class _Pending:
    """A call whose rules are being staged; `found` is known after a first pass."""

    def __init__(self, found: Any = None) -> None:
        self.called = False  # whether a rule calls the function
        self.found: tuple[Jaxpr, Recorded, list[Any]] | None = found


class _Active(threading.local):
    """Calls whose rules this thread is staging now: there a call of the same function is the
    program being made. To another thread it is a call like any other."""

    def __init__(self) -> None:
        self.calls: dict[Any, _Pending] = {}


class Recorder:
    """The recorded calls of one function."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kept: dict[Any, tuple[Jaxpr, Recorded, list[Any]]] = {}
        self.active = _Active()

    def clear(self) -> None:
        """Forget everything: there are other rules."""
        with self.lock:
            self.kept.clear()

    def record(self, call: CustomCall, xs: Sequence[Any]) -> list[Any]:
        """The outputs of a call recorded as an operation that holds programs: those kept from an
        earlier call, if nothing that they captured is a tracer."""
        key = call.key(), surroundings()
        pending = self.active.calls.get(key)
        if pending is not None:
            pending.called = True
            if pending.found is None:  # the first pass only finds out what is captured
                return call.fun(*xs)
            found = pending.found
        else:
            does = call.owner.does()
            with self.lock:
                found = self.kept.get((key, does))
            found = found or self._staged(key, call, xs)
        jaxpr, recorded, consts = found
        call.learned = recorded.learned
        outs = user_call(custom_call_p, *consts, *xs, call=recorded, jaxpr=jaxpr)
        return marked(outs, recorded.weak)

    def _staged(
        self, key: Any, call: CustomCall, xs: Sequence[Any]
    ) -> tuple[Jaxpr, Recorded, list[Any]]:
        out_weak: list[bool] = []

        def primal(*args: Any) -> list[Any]:
            outs = call.fun(*args)
            out_weak[:] = [o.weak for o in outs]
            return outs

        weak = [x.weak for x in xs]
        first = stage(primal, [typeof(x) for x in xs], name=call.name, weak=weak)
        rules = _Rules(call, [typeof(x) for x in xs], weak, first[0].out_avals, out_weak)
        with self._staging(key, _Pending()) as pending:
            programs, consts = share_captures([first, *rules.staged()])
            recorded = Recorded(call, len(consts), rules.kinds, rules.out_kinds, out_weak)
            found = programs[0], recorded, consts
            if pending.called:
                pending.found = found
                programs[1:] = _laid_out(rules.staged(), consts, call.name)
        recorded.made[None, None] = rules.programs(programs[1:])
        if call.symbolic:
            recorded.stage_rules = lambda nonzero, cts: self._again(key, rules, found, nonzero, cts)
        does = call.owner.does()  # what the rules wrote while they were traced counts as it is now
        if does is not None and not any(isinstance(x, Tracer) for x in consts):
            with self.lock:
                if len(self.kept) >= _CAPACITY:
                    self.kept.clear()
                self.kept[key, does] = found
        return found

    def _again(
        self, key: Any, rules: _Rules, found: tuple, nonzero: Mask, cts: Mask
    ) -> RulePrograms:
        """The rules' programs where only some operands and outputs have derivatives."""
        with self._staging(key, _Pending(found)):
            return rules.programs(_laid_out(rules.staged(nonzero, cts), found[2], rules.call.name))

    @contextlib.contextmanager
    def _staging(self, key: Any, pending: _Pending) -> Iterator[_Pending]:
        before = self.active.calls
        self.active.calls = {**before, key: pending}
        try:
            yield pending
        finally:
            self.active.calls = before


class _Rules:
    """The rules of a call, to be staged and held against its function's program."""

    __slots__ = ("call", "kinds", "weak", "out_kinds", "out_weak", "learned")

    def __init__(
        self, call: CustomCall, kinds: list[Aval], weak: list[bool], out_kinds: list[Aval],
        out_weak: list[bool],
    ) -> None:  # fmt: skip
        self.call, self.kinds, self.weak = call, kinds, weak
        self.out_kinds, self.out_weak, self.learned = out_kinds, out_weak, call.learned

    def staged(self, nonzero: Mask = None, cts: Mask = None) -> list[tuple[Jaxpr, list]]:
        """The rules' programs with what each captured, in the order of `programs`. Raises TreeError
        or ShapeError where they do not fit the function's program."""
        jvp = [self._jvp(nonzero)] if self.call.forward else []
        return jvp + (self._vjp(nonzero, cts) if self.call.reverse else [])

    def programs(self, staged: Sequence[Jaxpr]) -> RulePrograms:
        """What `staged` made, by name."""
        return RulePrograms(*staged) if self.call.forward else RulePrograms(None, *staged)

    def _jvp(self, nonzero: Mask) -> tuple[Jaxpr, list]:
        n = len(self.kinds)
        given = nonzero or (True,) * n

        def body(*xs: Any) -> list[Any]:
            with keeping_apart():
                outs, ts = self.call.jvp(xs[:n], [t if g else None for t, g in zip(xs[n:], given)])
            self._check(outs)
            return [*outs, *(instantiate(t, k) for t, k in zip(ts, self.out_kinds))]

        return stage(body, self.kinds * 2, name=self.call.name, weak=self.weak * 2)

    def _vjp(self, nonzero: Mask, cts: Mask) -> list[tuple[Jaxpr, list]]:
        kept: list[Any] = []

        call, name, count = self.call, self.call.name, len(self.out_kinds)

        def fwd(*xs: Any) -> list[Any]:
            outs, saved, pull = call.fwd(nonzero or (True,) * len(xs), xs)
            found = [typeof(o) for o in outs]
            if call.learned != self.learned or found != self.out_kinds:
                raise errors.TreeError(
                    f"the fwd rule of {name} returned {found} of structure {call.learned}, the "
                    f"function returns {self.out_kinds} of structure {self.learned}"
                    f"{call.owner.place_of('fwd')}"
                )
            kept[:] = [r.weak for r in saved], pull
            return [*outs, *saved]

        def bwd(*xs: Any) -> list[Any]:
            given = cts or (True,) * count
            back = pull(xs[:n], [ct if g else None for ct, g in zip(xs[n:], given)])
            return [ct for ct in back if ct is not None]

        forward, captured = stage(fwd, self.kinds, name=name, weak=self.weak)
        saved_weak, pull = kept
        saved = forward.out_avals[count:]
        n = len(saved)
        backward = stage(
            bwd, [*saved, *self.out_kinds], name=name, weak=[*saved_weak, *self.out_weak]
        )
        return [(forward, captured), backward]

    def _check(self, outs: Sequence[Any]) -> None:
        """Raise TreeError or ShapeError for outputs of a jvp rule unlike the function's."""
        call = self.call
        if call.learned != self.learned:
            raise errors.TreeError(
                f"the jvp rule of {call.name} returned structures {call.learned}, the function "
                f"returns {self.learned}{call.owner.place_of('rule')}"
            )
        for o, kind in zip(outs, self.out_kinds, strict=True):
            if typeof(o) is not kind:
                raise call.owner.unexpected(o, kind)


def _laid_out(
    staged: Sequence[tuple[Jaxpr, list]], consts: Sequence[Any], name: str
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
    read = lambda a: a.device.backend.to_numpy(stored(a)).tobytes()  # noqa: E731
    return read(x) == read(y)
