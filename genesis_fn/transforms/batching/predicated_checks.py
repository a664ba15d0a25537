"""Checks (assertions, index bounds) in programs that also run for examples that are not active.

A batched cond runs both branches for every example, and a batched while loop runs until its last
example is done; a check must not fail for an example whose result is discarded. `guarded(program)`
takes an additional first operand: whether the example is active. Where it is not, a checked index
is replaced by 0, which is always in range, and an asserted condition by True; so the checks
themselves, their messages and lines stay unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import dtypes, tree
from genesis_fn.core.aval import aval
from genesis_fn.core.backend.lowering import Source, View
from genesis_fn.core.convert import as_array
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, e_jaxprs, memoized
from genesis_fn.core.primitive import Primitive, typeof
from genesis_fn.primitives.elementwise import convert_p, div, mul, select, select_p
from genesis_fn.primitives.factories import move_batch
from genesis_fn.primitives.reductions.reduce import reduce_or
from genesis_fn.primitives.shape import broadcast_in_dim, broadcast_in_dim_p, reshape_p
from genesis_fn.transforms.control_flow.scanning import scan_p
from genesis_fn.transforms.custom.custom_call import CustomCall, Wrapped, custom_call_p
from genesis_fn.transforms.custom.fused_functions import fused_p
from genesis_fn.transforms.debugging.assertions import assert_p
from genesis_fn.transforms.staging.api_util import FlatFunction
from genesis_fn.transforms.staging.call import jit_p
from genesis_fn.transforms.staging.stage_trace import evaluate, stage, stage_closed

ACTIVE = aval((), dtypes.BOOL)

# Parameters that count the leading operands of a sub-program; `guarded` adds one to them.
_COUNTS = ("consts", "cond_consts", "body_consts")


def _if_active_batch(
    size: int, xs: Sequence[Any], dims: Sequence[int | None], *, otherwise: Any
) -> Any:
    (active, x), (active_dim, dim) = xs, dims
    if dim is None:  # one value for all examples counts if any of them is active
        return _select(reduce_or(active, (active_dim,)), x, otherwise), None  # pyright: ignore[reportArgumentType]
    if active_dim is not None:
        active = move_batch(active, active_dim, 0, size)
    return _select(active, move_batch(x, dim, 0, size), otherwise), 0


def _select(active: Any, x: Any, otherwise: Any) -> Any:
    shape = typeof(x).shape
    return select(broadcast_in_dim(active, shape, tuple(range(typeof(active).ndim))), x, otherwise)


# `select(active, x, otherwise)`. It has no lowering: it occurs in programs that are about to be
# batched, and its batching rule replaces it.
if_active_p = Primitive("if_active", lambda active, x, *, otherwise: x, batch=_if_active_batch)


@memoized
def has_checks(jaxpr: Jaxpr) -> bool:
    """Whether anything in the program, at any depth, may raise for its values."""
    return _has_checks(jaxpr, set())


def _has_checks(jaxpr: Jaxpr, seen: set[int]) -> bool:
    if id(jaxpr) in seen:
        return False
    seen.add(id(jaxpr))
    return any(_checks(e, seen) for e in jaxpr.eqns)


def _checks(e: Eqn, seen: set[int]) -> bool:
    if e.prim is assert_p or e.params.get("mode") == "check":
        return True
    if e.prim is fused_p and any(map(_is_index, e.ins)):
        return True
    rules = e.params["call"].programs if e.prim is custom_call_p else []
    return any(_has_checks(j, seen) for j in [*e_jaxprs(e), *rules])


def _is_index(x: Any) -> bool:
    return type(x) is Var and dtypes.is_integer(x.aval.dtype)


@memoized
def may_be_infinite(jaxpr: Jaxpr) -> bool:
    """Whether a derivative of the program may be infinite or NaN for some operands."""
    return any(not _is_bounded(e) for e in jaxpr.eqns)


def _is_bounded(e: Eqn) -> bool:
    if e.prim in (mul.prim, div.prim):
        # By a number. A product's derivatives are not bounded otherwise: one factor may be infinite
        # where the other has a tangent.
        factor = e.ins[1] if e.prim is div.prim or type(e.ins[0]) is Var else e.ins[0]
        return type(factor) is not Var and 0 < abs(factor) < math.inf
    if e.prim.plain or "branches" in e.params:
        return not any(may_be_infinite(j) for j in e_jaxprs(e))
    if e.prim.bounded or type(e.prim.lowering) in (View, Source):
        return True
    return not any(dtypes.is_inexact(o.aval.dtype) for o in e.outs)


@memoized
def guarded(jaxpr: Jaxpr) -> Jaxpr:
    """[whether active, operands] -> outputs: the program with checks only where it is active."""
    active = Var(ACTIVE)
    eqns: list[Eqn] = []
    for e in jaxpr.eqns:
        eqns += _guarded_eqn(e, active) if _checks(e, set()) else [e]
    return Jaxpr([active, *jaxpr.invars], eqns, jaxpr.outs, (), jaxpr.name)


def _guarded_eqn(e: Eqn, active: Var) -> list[Eqn]:
    prim, params = e.prim, e.params
    if prim is assert_p:
        return _replaced(e, active, {0: True})
    if params.get("mode") == "check":  # gather, scatter, take_rows, segment_sum
        return _replaced(e, active, {1: 0})
    if prim is fused_p:
        # As one operation it cannot take `active`: either zeros for its index operands satisfy all
        # its checks, or it is taken apart into a call.
        if not _passes_at_zero(params["jaxpr"]):
            call = {"jaxpr": guarded(params["jaxpr"])}
            return [e.replace(prim=jit_p, ins=[active, *e.ins], params=call)]
        return _replaced(e, active, {i: 0 for i, x in enumerate(e.ins) if _is_index(x)})
    if prim is custom_call_p and params["call"].batch is not None:
        # A user's batching rule takes no further operand: its checks are dropped instead.
        return [e.replace(params=_without_checks(e))]
    new = {k: v + 1 if k in _COUNTS else _guarded_param(v) for k, v in params.items()}
    ins = prim.guard(e.ins, active, **params) if prim.guard is not None else [active, *e.ins]
    if prim is scan_p and params["residuals"] is not None:
        fixed, moving = params["residuals"]
        new["residuals"] = (fixed + 1, moving)
    elif prim is custom_call_p:
        new["call"] = _Guarded(params["call"])
    return [e.replace(ins=ins, params=new)]


@memoized
def _passes_at_zero(jaxpr: Jaxpr) -> bool:
    """Whether every check of a fused function is on an index that is 0 if its integer operands are,
    such as a label: then these are replaced by 0, and it stays one operation."""
    zero = {v for v in jaxpr.invars if _is_index(v)}
    for e in jaxpr.eqns:
        if _checks(e, set()) and not (e.params.get("mode") == "check" and e.ins[1] in zero):
            return False
        values = e.ins[1:] if e.prim is select_p else e.ins
        if e.prim in _ZERO_AT_ZERO and all(i in zero if type(i) is Var else i == 0 for i in values):
            zero.update(e.outs)
    return True


# Operations that map zeros to zeros; `select`, whatever its condition.
_ZERO_AT_ZERO = frozenset((select_p, convert_p, reshape_p, broadcast_in_dim_p))


class _Guarded(Wrapped):
    """A custom call with a further first operand, whether it is active; the checks in its rules are
    guarded by it."""

    __slots__ = ()

    def __init__(self, call: CustomCall) -> None:
        super().__init__(call)
        self.linear = None if call.linear is None else call.linear + 1

    def _run(self, f: Callable[..., Any], active: Any, *args: Any) -> Any:
        """Run `f(*args)` with guarded checks; arguments and results are lists of values or None."""
        leaves, in_tree = tree.flatten(args)
        flat = FlatFunction(f, in_tree)
        program = stage_closed(flat, [typeof(x) for x in leaves], self.name)
        return flat.output(evaluate(guarded(program), active, *leaves))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        active, *xs = primals
        return self._run(self.call.jvp, active, xs, list(tangents[1:]))

    def fwd(
        self, nonzero: Sequence[bool], xs: Sequence[Any]
    ) -> tuple[list[Any], list[Any], Callable[..., Any]]:
        pulls: list[Callable[..., Any]] = []

        def forward(ys: list[Any]) -> Any:
            outs, saved, pull = self.call.fwd(nonzero[1:], ys)
            pulls[:] = [pull]
            return list(outs), list(saved)

        active, *rest = xs
        outs, saved = self._run(forward, active, rest)
        (pull,) = pulls
        back = lambda residuals, cts: [
            None,
            *self._run(pull, residuals[0], list(residuals[1:]), list(cts)),
        ]
        return outs, [active, *saved], back

    def pull(self, residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        return self._run(self.call.pull, residuals[0], list(residuals[1:]), list(cts))


def _guarded_param(value: Any) -> Any:
    if type(value) is tuple:
        return tuple([_guarded_param(v) for v in value])
    return guarded(value) if type(value) is Jaxpr else value


def _replaced(e: Eqn, active: Var, otherwise: dict[int, Any]) -> list[Eqn]:
    """`e` with some operands replaced by the constants `otherwise` where it is not active."""
    before, ins = [], list(e.ins)
    for i, constant in otherwise.items():
        if type(ins[i]) is Var:
            ins[i] = Var(ins[i].aval)
            operands, params = (active, e.ins[i]), {"otherwise": constant}
            before.append(
                Eqn(if_active_p, operands, params, (ins[i],), e.where, e.backward, e.numerics)
            )
    return [*before, e.replace(ins=ins)]


def _without_checks(e: Eqn) -> dict[str, Any]:
    """The parameters of a custom_vmap call whose function and batching rule check nothing."""
    jaxpr, call = unchecked(e.params["jaxpr"]), e.params["call"]

    def rule(size: int, batched: Sequence[bool], xs: Sequence[Any]) -> tuple[list[Any], list[bool]]:
        flags: list[bool] = []

        def flat(*ys: Any) -> list[Any]:
            outs, flags[:] = call.rule(size, batched, ys)
            return [as_array(x) for x in outs]

        program, captured = stage(flat, [typeof(x) for x in xs], name=jaxpr.name)
        return evaluate(unchecked(program), *captured, *xs), flags

    return {"jaxpr": jaxpr, "call": call.changed(jaxpr, rule)}


@memoized
def unchecked(jaxpr: Jaxpr) -> Jaxpr:
    """The program with index checks turned to clamping, and without assertions."""

    def change(value: Any) -> Any:
        if type(value) is tuple:
            return tuple([change(v) for v in value])
        return unchecked(value) if type(value) is Jaxpr else value

    eqns = []
    for e in jaxpr.eqns:
        if e.prim is not assert_p:
            params = {k: change(v) for k, v in e.params.items()}
            if params.get("mode") == "check":
                params["mode"] = "clip"
            eqns.append(e.replace(params=params))
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)
