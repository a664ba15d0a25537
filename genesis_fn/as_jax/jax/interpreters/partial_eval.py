"""JAX's partial evaluation: which outputs of a function are known without some of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.linear_util import WrappedFun

from genesis_fn.core.aval import Aval
from genesis_fn.core.jaxpr import Jaxpr, Var, dead_code
from genesis_fn.transforms.staging.stage_trace import evaluate, inlined, stage


class PartialVal(tuple[Any, Any]):
    """A value that is known, (None, value), or of which only the aval is, (aval, None)."""

    def __new__(cls, pair: tuple[Any, Any]) -> PartialVal:
        return super().__new__(cls, pair)

    @classmethod
    def known(cls, const: Any) -> PartialVal:
        """One that is known."""
        return cls((None, const))

    @classmethod
    def unknown(cls, aval: Aval) -> PartialVal:
        """One of which the aval is known."""
        return cls((aval, None))

    def is_known(self) -> bool:
        """Whether the value is known."""
        return self[0] is None


def trace_to_jaxpr_nounits(
    fun: WrappedFun, pvals: Sequence[PartialVal], instantiate: bool | Sequence[bool] = False
) -> tuple[Jaxpr, list[PartialVal], list[Any]]:
    """(program, what is known of the outputs, captured values): the program has captured values and
    unknown inputs as its inputs, and all outputs. An output that needs no unknown input is known,
    unless `instantiate` says otherwise."""

    def of_unknown(*xs: Any) -> list[Any]:
        rest = iter(xs)
        return fun.call_wrapped(*[p[1] if p.is_known() else next(rest) for p in pvals])

    jaxpr, consts = stage(of_unknown, [p[0] for p in pvals if not p.is_known()])
    jaxpr = inlined(jaxpr)  # so that a call which takes an unknown input has outputs of both kinds
    unknown = {*jaxpr.invars[len(consts) :]}
    for e in jaxpr.eqns:
        if any(type(i) is Var and i in unknown for i in e.ins):
            unknown.update(e.outs)
    kept = instantiate if isinstance(instantiate, Sequence) else [instantiate] * len(jaxpr.outs)
    known = [o for o, k in zip(jaxpr.outs, kept, strict=True) if o not in unknown and not k]
    eqns, _ = dead_code(jaxpr.eqns, known)
    program = Jaxpr(jaxpr.invars[: len(consts)], eqns, known, (), jaxpr.name)
    values = dict(zip(known, evaluate(program, *consts)))
    found = [
        PartialVal.known(values[o]) if o in values else PartialVal.unknown(o.aval)
        for o in jaxpr.outs
    ]
    return jaxpr, found, consts
