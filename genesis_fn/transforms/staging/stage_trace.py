"""Staging: run a function on tracers and record its operations as a program (`Jaxpr`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import errors
from genesis_fn.core.array import ArrayImpl, Deleted
from genesis_fn.core.aval import Aval
from genesis_fn.core.configuration import config
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.dtypes import DType, scalar_dtype
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, check, dead_code, memoized, output_error
from genesis_fn.core.primitive import (
    SCALARS,
    Primitive,
    Trace,
    Tracer,
    bind,
    ctx,
    gives_weak,
    located,
    running,
)
from genesis_fn.core.types.annotations import Array, Scalar
from genesis_fn.primitives.factories import full


class StageTracer(Tracer):
    """A value of a program being recorded: the result of `eqn`, or an argument if that is None."""

    __slots__ = ("variable", "eqn")
    owner: StageTrace

    def __init__(self, trace: StageTrace, var: Var, eqn: Eqn | None = None, weak: bool = False):
        # Narrower than a Tracer's: never assigned anew.
        self.owner = trace  # pyright: ignore[reportIncompatibleVariableOverride]
        self.aval, self.variable, self.eqn, self.weak = var.aval, var, eqn, weak

    def with_weak_type(self, weak: bool) -> StageTracer:
        return StageTracer(self.owner, self.variable, self.eqn, weak)

    def label(self) -> str:
        trace = self.owner
        if self.eqn is not None or self.variable not in trace.invars:
            return ""
        position = trace.invars.index(self.variable)
        return trace.labels[position] if position < len(trace.labels) else ""

    def origin(self) -> str:
        """The line that made this value, or the argument that it is."""
        if self.eqn is not None:
            return self.eqn.where.describe() if self.eqn.where else "an unknown line"
        function, label = self.owner.name, self.label()
        if label:
            return f"argument {label} of {function or 'the function'}"
        return f"an argument of {function or 'the traced function'}"

    def arguments(self) -> list[str]:
        """The arguments of the traced function that this value depends on."""
        made_by = {o: e for e in self.owner.eqns for o in e.outs}
        reached, todo, seen = set(), [self.variable], set()
        while todo:
            v = todo.pop()
            if v in seen:
                continue
            seen.add(v)
            if v in made_by:
                todo.extend(i for i in made_by[v].ins if type(i) is Var)
            else:
                reached.add(v)
        return [
            self.owner.labels[i] if i < len(self.owner.labels) else f"argument {i}"
            for i, v in enumerate(self.owner.invars)
            if v in reached
        ]


class StageTrace(Trace):
    """Records equations. Arrays and tracers from outside that it uses become captured inputs."""

    __slots__ = ("eqns", "invars", "labels", "captured", "vars_of", "is_tape", "repeated")

    def __init__(self, name: str = "", labels: Sequence[str] = (), tape: bool = False) -> None:
        super().__init__(name)
        self.labels = labels
        self.is_tape = tape  # records tangents, to be transposed
        self.repeated = False  # whether it is a loop's body
        self.eqns: list[Eqn] = []
        self.invars: list[Var] = []
        self.captured: list[tuple[Var, Any]] = []  # keeps values alive, whose ids are keys below
        self.vars_of: dict[int, Var] = {}

    def argument(self, aval: Aval, weak: bool = False) -> StageTracer:
        """A new input."""
        v = Var(aval)
        self.invars.append(v)
        return StageTracer(self, v, None, weak)

    def atom(self, x: Any) -> Any:
        """The operand for `x` in this program: a Var, or a Python scalar itself."""
        if type(x) is StageTracer and x.owner is self:
            return x.variable
        if type(x) in SCALARS:
            return x
        var = self.vars_of.get(id(x))
        if var is None:
            var = self.vars_of[id(x)] = self._capture(x)
        return var

    def _capture(self, x: Any) -> Var:
        if isinstance(x, Tracer):
            if not x.owner.alive:
                raise x.owner.leaked(x)
        elif type(x) is not ArrayImpl:
            raise TypeError(f"operations take arrays and Python numbers, got {x!r}")
        elif isinstance(x.data, Deleted):
            raise x.data.error()
        v = Var(x.aval)
        self.captured.append((v, x))
        return v

    def process(self, prim: Primitive, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        if prim.stage is not None:
            staged = prim.stage(self, args, **params)
            if staged is not None:
                return staged
        ins = []
        for a in args:
            if type(a) is StageTracer and a.owner is self:
                ins.append(a.variable)
            elif type(a) in SCALARS:
                ins.append(a)
            else:
                ins.append(self.atom(a))
        try:
            out = prim.abstract(tuple([i.aval if type(i) is Var else i for i in ins]), params)
        except Exception as error:
            raise located(error) from None
        line = ctx.line  # that of the equation being transformed, if there is one
        if line is None:
            line = where(ctx.scope)
        if prim.multi:
            outs = [Var(a) for a in out]
            eqn = Eqn(prim, ins, params, outs, line, ctx.backward)
            self.eqns.append(eqn)
            return [StageTracer(self, v, eqn) for v in outs]
        v = Var(out)
        eqn = Eqn(prim, ins, params, (v,), line, ctx.backward)
        self.eqns.append(eqn)
        return StageTracer(self, v, eqn, gives_weak(prim, args, out))

    def finish(self, outs: Sequence[Any], keep_captures: bool = False) -> tuple[Jaxpr, list[Any]]:
        """End the trace: (program with captured inputs first, the captured values). Dead equations
        are dropped, and captures that only they use unless `keep_captures`."""
        out_atoms = []
        for o in outs:
            atom = self.atom(o)
            if type(atom) is not Var:  # a Python scalar: outputs are variables
                with running(self):
                    atom = full((), atom, scalar_type(atom)).variable  # pyright: ignore[reportAttributeAccessIssue]
            out_atoms.append(atom)
        self.alive = False
        eqns, live = dead_code(self.eqns, out_atoms)
        captured = [(v, x) for v, x in self.captured if keep_captures or v in live]
        labels = [*(f"captured {v.aval}" for v, _ in captured), *self.labels]
        jaxpr = Jaxpr([*(v for v, _ in captured), *self.invars], eqns, out_atoms, labels, self.name)
        if config.current().check_types:
            check(jaxpr)
        return jaxpr, [x for _, x in captured]


def is_recorded() -> bool:
    """Whether an operation without operands becomes part of a program, and not of a loop's body,
    where it would be computed in each iteration."""
    trace = ctx.trace
    while trace is not None and not isinstance(trace, StageTrace):
        trace = getattr(trace, "parent", None)
    return trace is not None and not trace.repeated


def scalar_type(x: Scalar) -> DType:
    """The dtype of a Python scalar where no array decides it."""
    return scalar_dtype(type(x))


def stage(
    f: Callable[..., Sequence[Any]],
    avals: Sequence[Aval],
    *,
    name: str = "",
    labels: Sequence[str] = (),
    weak: Sequence[bool] | None = None,
    repeated: bool = False,
) -> tuple[Jaxpr, list[Any]]:
    """(program of `f`, captured values). `f` takes and returns flat lists of arrays; `repeated`
    says that it is the body of a loop."""
    trace = StageTrace(name, labels)
    trace.repeated = repeated
    args = [trace.argument(a, w) for a, w in zip(avals, weak or itertools.repeat(False))]
    before, line = ctx.backward, ctx.line
    ctx.line = None  # operations of a user's function get the line that they are called from
    try:
        with running(trace):
            outs = f(*args)
            for o in outs:
                if not (isinstance(o, Tracer) or type(o) is ArrayImpl or type(o) in SCALARS):
                    raise output_error(o, name)
        return trace.finish(outs)
    finally:
        trace.alive = False
        ctx.backward, ctx.line = before, line


def share_captures(staged: Sequence[tuple[Jaxpr, list[Any]]]) -> tuple[list[Jaxpr], list[Any]]:
    """(programs that all take the same captured values first, those values): branches of a cond
    take the same operands."""
    values: list[Any] = []
    at: dict[int, int] = {}
    for _, captured in staged:
        for x in captured:
            if id(x) not in at:
                at[id(x)] = len(values)
                values.append(x)
    programs = []
    for jaxpr, captured in staged:
        own = {at[id(x)]: v for x, v in zip(captured, jaxpr.invars)}
        first = [own[i] if i in own else Var(x.aval) for i, x in enumerate(values)]
        rest = jaxpr.invars[len(captured) :]
        programs.append(Jaxpr([*first, *rest], jaxpr.eqns, jaxpr.outs, (), jaxpr.name))
    return programs, values


def stage_closed(f: Callable[..., Sequence[Any]], avals: Sequence[Aval], name: str = "") -> Jaxpr:
    """The program of a function that must capture nothing, as those of program transforms."""
    jaxpr, captured = stage(f, avals, name=name)
    if captured:
        raise errors.UnexpectedTracerError(
            f"internal: a program transform captured {captured!r}; please report this"
        )
    return jaxpr


def evaluate(jaxpr: Jaxpr, *args: Array | Scalar) -> list[Any]:
    """The outputs of a program on `args`, every equation bound again under the current trace."""
    env: dict[Var, Any] = dict(zip(jaxpr.invars, args, strict=True))
    before = ctx.line
    try:
        for e in jaxpr.eqns:
            ctx.line = e.where  # equations made from this one keep its line, and its numerics
            ins = [env[i] if type(i) is Var else i for i in e.ins]
            with config.computing(e.numerics):
                outs = bind(e.prim, *ins, **e.params)
            if e.prim.multi:
                env.update(zip(e.outs, outs))
            else:
                env[e.outs[0]] = outs
    finally:
        ctx.line = before
    return [env[o] for o in jaxpr.outs]


@memoized
def inlined(jaxpr: Jaxpr) -> Jaxpr:
    """The program with calls of programs (`jit`) inlined."""
    if not any(e.prim.plain for e in jaxpr.eqns):
        return jaxpr
    eqns: list[Eqn] = []
    rename: dict[Var, Any] = {}
    _inline(jaxpr, rename, eqns, copy=False)
    outs = [rename.get(o, o) for o in jaxpr.outs]
    return Jaxpr(jaxpr.invars, eqns, outs, jaxpr.labels, jaxpr.name)


def _inline(
    jaxpr: Jaxpr, rename: dict[Var, Any], eqns: list[Eqn], copy: bool, backward: bool = False
) -> None:
    """Append the equations of `jaxpr`; `rename` maps its variables to the caller's. A called
    program is copied to new variables, since it may be called twice, and belongs to the backward
    pass if its call does."""
    for e in jaxpr.eqns:
        ins = [rename.get(i, i) if type(i) is Var else i for i in e.ins]
        if not e.prim.plain:
            outs = e.outs
            if copy:
                outs = [Var(o.aval) for o in e.outs]
                rename.update(zip(e.outs, outs))
            if backward and not e.backward:
                e = e.replace(backward=True)
            eqns.append(e.replace(ins=ins, outs=outs) if ins != e.ins or outs is not e.outs else e)
            continue
        inner = e.params["jaxpr"]
        names = dict(zip(inner.invars, ins))
        _inline(inner, names, eqns, True, backward or e.backward)
        rename.update((o, names.get(i, i)) for o, i in zip(e.outs, inner.outs))
