"""Programs on complex numbers as programs on their parts: the form that a GPU compiles.

The result of `represented` has no complex value. Its complex inputs and outputs are packed, and so
are the operands and results of steps on complex arrays (`steps`); what else is complex is a pair,
and the programs of loops, branches and calls take pairs (`flat_program`). Rules are registered in
the modules of their families (`values.on_parts`); a primitive without one, as a decomposition or a
callback, is such a step.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

from genesis_fn.compiler.complex_parts.steps import on_packed
from genesis_fn.compiler.complex_parts.values import RULES, Complex, packed_aval, part_aval
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.configuration import config
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, jaxprs_in, memoized
from genesis_fn.core.primitive import Primitive, ctx, running
from genesis_fn.transforms.staging.stage_trace import StageTrace, StageTracer

_MODULES = (
    "arithmetic", "functions", "structure", "indexing", "reductions", "products", "programs",
    "collectives", "transforms",
)  # fmt: skip


@functools.cache
def _load() -> None:
    # Here, not on top: programs call `flat_program`.
    for module in _MODULES:
        importlib.import_module(f"genesis_fn.compiler.complex_parts.{module}")


def _is_complex(x: Any) -> bool:
    return type(x) is Var and dtypes.is_complex(x.aval.dtype)


@memoized
def _mentions_complex(jaxpr: Jaxpr) -> tuple[bool]:
    return (any(map(_is_complex, jaxpr.invars)) or any(map(_touches_complex, jaxpr.eqns)),)


def _touches_complex(e: Eqn) -> bool:
    if any(map(_is_complex, e.ins)) or any(map(_is_complex, e.outs)):
        return True
    return any(_mentions_complex(j)[0] for j in jaxprs_in(e.params))


def has_parts(prim: Primitive) -> bool:
    """Whether a primitive has a form on the parts of complex numbers."""
    _load()
    return prim in RULES


def uses_parts(prim: Primitive, avals: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether an operation on these operands is done to parts of complex numbers."""
    if not has_parts(prim):
        return False
    found = prim.abstract(tuple(avals), params)
    kinds = [a for a in (*avals, *(found if prim.multi else [found])) if type(a) is Aval]
    return any([dtypes.is_complex(a.dtype) for a in kinds])


@memoized
def represented(jaxpr: Jaxpr) -> Jaxpr:
    """The program on parts, with packed inputs and outputs in place of complex ones; the program
    itself if there are none."""
    return _represented(jaxpr, packed=True) if _mentions_complex(jaxpr)[0] else jaxpr


@memoized
def flat_program(jaxpr: Jaxpr) -> Jaxpr:
    """The program on parts, with two real inputs or outputs in place of each complex one."""
    return _represented(jaxpr, packed=False) if _mentions_complex(jaxpr)[0] else jaxpr


def before_parts(jaxpr: Jaxpr, e: Eqn) -> tuple[Eqn, str] | None:
    """The equation on complex numbers that `e`, of the program on parts, was made from, and what
    people call its first operand: for messages. None where `e` is on real values in both."""
    for old in jaxpr.eqns:
        if old.prim is e.prim and old.where == e.where and any(map(_is_complex, old.ins[:1])):
            kind = old.ins[0].aval
            if e.ins[0].aval in (packed_aval(kind), part_aval(kind)):
                return old, jaxpr.label_of(old.ins[0])
        for inner in jaxprs_in(old.params):
            if found := before_parts(inner, e):
                return found
    return None


def _represented(jaxpr: Jaxpr, packed: bool) -> Jaxpr:
    _load()
    trace = StageTrace(jaxpr.name, jaxpr.labels if packed else ())
    env: dict[Var, Any] = {}
    for v in jaxpr.invars:
        env[v] = _input(trace, v, packed)
    # New equations get the line of the old one, and belong to a backward pass if it does.
    before = ctx.line, ctx.backward
    try:
        with running(trace):
            for e in jaxpr.eqns:
                xs = [env[i] if type(i) is Var else i for i in e.ins]
                ctx.line, ctx.backward = e.where, e.backward
                with config.computing(e.numerics):
                    env.update(zip(e.outs, _equation(trace, e, xs), strict=True))
            outs: list[Any] = []
            for o in jaxpr.outs:
                x = env[o]
                outs += [x] if type(x) is not Complex else [x.packed] if packed else [*x.parts]
        program, captured = trace.finish(outs)
    finally:
        ctx.line, ctx.backward = before
        trace.alive = False
    assert not captured, "the representation of a program captures nothing"
    return program


def _input(trace: StageTrace, v: Var, packed: bool) -> Any:
    if not _is_complex(v):
        trace.invars.append(v)
        return StageTracer(trace, v)
    if packed:
        return Complex(v.aval, packed=trace.argument(packed_aval(v.aval)))
    part = part_aval(v.aval)
    return Complex(v.aval, (trace.argument(part), trace.argument(part)))


def _equation(trace: StageTrace, e: Eqn, xs: Sequence[Any]) -> list[Any]:
    """The results of an equation on represented operands."""
    if not _touches_complex(e):
        # It keeps its output variables, so that only the operands are replaced.
        ins = [x.variable if type(x) is StageTracer else x for x in xs]
        e = e.replace(ins=ins)
        trace.eqns.append(e)
        return [StageTracer(trace, v, e) for v in e.outs]
    rule = RULES.get(e.prim)
    if rule is None:
        avals = [i.aval if type(i) is Var else i for i in e.ins]
        outs = on_packed(e.prim, xs, e.params, avals)
    else:
        outs = rule(e.prim, xs, e.params)
    return list(outs) if e.prim.multi else [outs]
