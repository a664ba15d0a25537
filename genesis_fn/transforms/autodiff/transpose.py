"""Reverse mode: run a linear program backwards, from output cotangents to input cotangents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.core import errors
from genesis_fn.core.configuration import config
from genesis_fn.core.jaxpr import Jaxpr, Var, memoized
from genesis_fn.core.primitive import LinearOperand, bind, ctx
from genesis_fn.primitives.elementwise import total
from genesis_fn.primitives.factories import filled, instantiate
from genesis_fn.transforms.staging.stage_trace import stage_closed


def transpose_flat(jaxpr: Jaxpr, operands: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
    """The cotangents of a program's linear inputs, from those of its outputs; None is zero.

    `operands` holds a `LinearOperand` for each linear input and the values of the others, whose
    entry in the result is None. Equations that depend on no linear input are run as they are: they
    recompute values that linearize rules did not save.
    """
    before, line = ctx.backward, ctx.line
    ctx.backward = True
    try:
        return _transpose(jaxpr, operands, cts)
    finally:
        ctx.backward, ctx.line = before, line


def _transpose(jaxpr: Jaxpr, operands: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
    env: dict[Var, Any] = {}
    linear: set[Var] = set()
    for v, x in zip(jaxpr.invars, operands, strict=True):
        if type(x) is LinearOperand:
            linear.add(v)
        else:
            env[v] = x
    backwards = []
    for e in jaxpr.eqns:
        if linear.isdisjoint(e.ins):
            ctx.line = e.where
            with config.computing(e.numerics):
                outs = bind(e.prim, *[env[i] if type(i) is Var else i for i in e.ins], **e.params)
            env.update(zip(e.outs, outs if e.prim.multi else (outs,)))
        else:
            linear.update(e.outs)
            backwards.append(e)
    # All cotangents of a variable are collected and added in one n-ary sum, which is rounded once:
    # when its equation is reached, all its uses are behind.
    pending: dict[Var, list[Any]] = {}
    for o, ct in zip(jaxpr.outs, cts, strict=True):
        if ct is not None and o in linear:
            pending.setdefault(o, []).append(ct)
    for e in reversed(backwards):
        received = [pending.pop(o, None) for o in e.outs]
        if not any(received):  # no output matters: the equation is skipped, not run on zeros
            continue
        ctx.line = e.where
        sums = [None if r is None else total(r) for r in received]
        if e.prim.transpose is None:
            raise errors.NotDifferentiableError(
                f"{e.prim.name} cannot be differentiated in reverse mode (it has no transpose)\n"
                f"  at {e.where.describe() if e.where else 'an unknown line'}"
            )
        operands = [
            (LinearOperand(i.aval) if i in linear else env[i]) if type(i) is Var else i
            for i in e.ins
        ]
        with config.computing(e.numerics):
            back = e.prim.transpose(sums if e.prim.multi else sums[0], *operands, **e.params)
        for i, ct in zip(e.ins, back, strict=True):
            if ct is not None and type(i) is Var and i in linear:
                pending.setdefault(i, []).append(ct)
    return [total(r) if v in linear and (r := pending.get(v)) else None for v in jaxpr.invars]


@memoized
def transpose_jaxpr(jaxpr: Jaxpr, linear: tuple[bool, ...], nonzero: tuple[bool, ...]) -> Jaxpr:
    """The program [non-linear inputs, nonzero cotangents] -> [cotangent of every linear input]."""
    avals = jaxpr.in_avals

    def f(*args: Any) -> list[Any]:
        rest = iter(args)
        operands = [
            LinearOperand(a) if n else next(rest) for a, n in zip(avals, linear, strict=True)
        ]
        cts = filled(nonzero, rest)
        back = transpose_flat(jaxpr, operands, cts)
        return [instantiate(ct, a) for ct, a, n in zip(back, avals, linear) if n]

    in_avals = [a for a, n in zip(avals, linear) if not n]
    in_avals += [a for a, n in zip(jaxpr.out_avals, nonzero, strict=True) if n]
    return stage_closed(f, in_avals, jaxpr.name)
