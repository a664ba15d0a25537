"""checkify: checks that give an error value instead of raising, with the names of
jax.experimental.checkify.

`checkify(f)` returns a function of (error, output). The program of `f` is recorded and run again
with an error carried along: `_run` walks its equations, `_checked` makes the same of a program
within an equation. An error is a number, 0 for none and else which check failed first, with the
values that its message shows. Checks whose values have equal types share their room.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import genesis_fn.numpy as jnp
from genesis_fn import lax
from genesis_fn.core import dtypes, tree
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend.lowering import Source, View
from genesis_fn.core.configuration import config
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.errors import CheckFailed
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, dead_code, memoized
from genesis_fn.core.primitive import bind, ctx, no_flops, typeof
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.experimental.error_values import (
    BadIndex,
    Error as Error,
    FailedCondition,
    NanResult,
    ZeroDivisor,
    check_error as check_error,
    init_error as init_error,
)
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.factories import zeros
from genesis_fn.primitives.indexing.gather import gather_p
from genesis_fn.primitives.indexing.indexing import dynamic_slice_p, dynamic_update_slice_p
from genesis_fn.primitives.indexing.scatter import scatter_p, segment_sum_p
from genesis_fn.primitives.sort import sort_p, top_k_p
from genesis_fn.transforms.autodiff.checkpointing import checkpoint_p, without_effects
from genesis_fn.transforms.batching.batch import batch_jaxpr
from genesis_fn.transforms.batching.predicated_checks import has_checks
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p
from genesis_fn.transforms.custom.callback import (
    Formatted,
    HostFunction,
    check_format,
    split_arrays,
)
from genesis_fn.transforms.custom.custom_call import CustomCall, Wrapped, custom_call_p
from genesis_fn.transforms.custom.fused_functions import fused_p
from genesis_fn.transforms.debugging.assertions import assert_p
from genesis_fn.transforms.sharding.shard_mapping import shard_map_p
from genesis_fn.transforms.staging.api_util import FlatFunction, name_of
from genesis_fn.transforms.staging.call import jit_p, region_p, wide_p
from genesis_fn.transforms.staging.stage_trace import evaluate, stage, stage_closed

P = ParamSpec("P")
R = TypeVar("R")
JaxRuntimeError = CheckFailed  # JAX's name


class ErrorCategory(enum.Enum):
    """What a check looks for: a false condition, NaNs, indices out of range, divisions by zero."""

    USER = enum.auto()
    NAN = enum.auto()
    INDEX = enum.auto()
    DIV = enum.auto()


user_checks = frozenset({ErrorCategory.USER})
nan_checks = frozenset({ErrorCategory.NAN})
index_checks = frozenset({ErrorCategory.INDEX})
div_checks = frozenset({ErrorCategory.DIV})
float_checks = nan_checks | div_checks
automatic_checks = float_checks | index_checks
all_checks = automatic_checks | user_checks


# ---- programs ----


Slot = tuple[Aval, ...]  # the types of the values that a message shows


class _State:
    """The error of a program while it runs: the number of the check that failed first, the values
    of each slot, and the checks met so far, numbered from 1 on."""

    def __init__(self) -> None:
        self.code: Any = None  # no check so far
        self.payloads: dict[Slot, list[Any]] = {}
        self.sites: list[tuple[Any, Slot]] = []

    def fail(self, failed: Array, site: Any, values: Sequence[Array] = ()) -> None:
        """Take a check into account, with what its message shows."""
        values = [ops.stop_gradient(v) for v in values]
        slot = tuple([typeof(v) for v in values])
        self.join(ops.convert(failed, dtypes.I32), {slot: values}, [(site, slot)])

    def join(
        self, code: Array, payloads: dict[Slot, list[Any]], sites: Sequence[tuple[Any, Slot]]
    ) -> None:
        """Take the error of a part of the program into account, which counts if it is the first."""
        offset = len(self.sites)
        self.sites += sites
        if self.code is None:
            self.code, self.payloads = code, payloads
            return
        earlier = self.code > 0
        later = jnp.where(code > 0, code + offset, 0)
        self.code = jnp.where(earlier, self.code, later)
        for slot, values in payloads.items():
            known = self.payloads.get(slot)
            if known is not None:
                values = [_either(earlier, a, b) for a, b in zip(known, values, strict=True)]
            self.payloads[slot] = values

    def flat(self, slots: Sequence[Slot]) -> list[Any]:
        """The code, and the values of each of `slots`."""
        values = [self.payloads.get(s) or [zeros(a) for a in s] for s in slots]
        return [_none() if self.code is None else self.code, *(v for vs in values for v in vs)]

    def error(self) -> Error:
        """The error as a value."""
        slots = [*self.payloads]
        sites = tuple([(site, slots.index(slot)) for site, slot in self.sites])
        return Error(self.code, tuple(map(tuple, self.payloads.values())), sites)


def _none() -> Array:
    return lax.full((), 0, dtypes.I32)


def _either(pred: Array, x: Array, y: Array) -> Array:
    """`x` where a scalar is true, else `y`."""
    return ops.select(lax.broadcast(pred, typeof(x).shape), x, y)


def _unflat(flat: Sequence[Any], slots: Sequence[Slot]) -> tuple[Any, dict[Slot, list[Any]]]:
    """(code, values by slot) of what `_State.flat` gave."""
    code, *rest = flat
    values = iter(rest)
    return code, {s: [next(values) for _ in s] for s in slots}


@dataclasses.dataclass(frozen=True)
class _Checked:
    """A program that returns its error behind its outputs, as `_State.flat` lays it out; none where
    it has no checks. `count` is the number of outputs without it."""

    program: Jaxpr
    count: int
    slots: tuple[Slot, ...]
    sites: tuple[tuple[Any, Slot], ...]

    def outputs(self, state: _State, outs: Sequence[Any]) -> list[Any]:
        """The outputs of a run, whose error `state` takes into account."""
        if self.sites:
            state.join(*_unflat(outs[self.count :], self.slots), self.sites)
        return list(outs[: self.count])

    def run(self, state: _State, *xs: Any) -> list[Any]:
        """Run the program as a part of another one."""
        return self.outputs(state, evaluate(self.program, *xs))

    @property
    def error_avals(self) -> list[Aval]:
        """The types of the error behind the outputs."""
        return self.program.out_avals[self.count :]


Errors = frozenset[ErrorCategory]


@memoized
def _checked(jaxpr: Jaxpr, errors: Errors) -> _Checked:
    return _staged(lambda state, *xs: _run(jaxpr, errors, state, xs), jaxpr.in_avals, jaxpr.name)


def _staged(f: Callable[..., list[Any]], avals: Sequence[Aval], name: str) -> _Checked:
    """The program of `f(state, *xs)`."""
    made: list[Any] = []

    def flat(*xs: Any) -> list[Any]:
        state = _State()
        outs = f(state, *xs)
        made[:] = len(outs), tuple(state.payloads), tuple(state.sites)
        return [*outs, *(state.flat(made[1]) if state.sites else [])]

    program = stage_closed(flat, avals, name)
    return _Checked(program, *made)


def _run(jaxpr: Jaxpr, errors: Errors, state: _State, xs: Sequence[Any]) -> list[Any]:
    """The outputs of a program on `xs`, with its checks as `state`."""
    env: dict[Any, Any] = dict(zip(jaxpr.invars, xs, strict=True))
    before = ctx.line
    try:
        for e in jaxpr.eqns:
            ctx.line = e.where
            ins = [env[i] if type(i) is Var else i for i in e.ins]
            with config.computing(e.numerics):
                outs = _RULES.get(e.prim, _plain)(state, errors, e, ins)
                env.update(zip(e.outs, outs, strict=True))
                if ErrorCategory.NAN in errors and _computes(e):
                    _check_nans(state, e, outs)
    finally:
        ctx.line = before
    return [env[o] for o in jaxpr.outs]


def _line(e: Eqn) -> str:
    return "an unknown line" if e.where is None else e.where.describe()


def _bound(e: Eqn, ins: Sequence[Any], **changes: Any) -> list[Any]:
    outs = bind(e.prim, *ins, **{**e.params, **changes})
    return list(outs) if e.prim.multi else [outs]


def _plain(state: _State, errors: Errors, e: Eqn, ins: Sequence[Any]) -> list[Any]:
    """An operation that runs no programs: checked where it takes an index."""
    if e.params.get("mode") in ("check", "promise_in_bounds") and ErrorCategory.INDEX in errors:
        assert e.prim.visits is not None, e.prim
        avals = [typeof(x) if type(i) is Var else x for i, x in zip(e.ins, ins)]
        kind, windows = e.prim.visits(*avals, **e.params)
        indices = as_array(ins[1])
        if e.prim not in (gather_p, scatter_p):  # these have an axis of components
            indices = lax.expand_dims(indices, (typeof(indices).ndim,))
        _check_indices(state, e, indices, kind, windows)
        # Out of range, reads are of the nearest element and writes are dropped.
        drops = e.prim in (scatter_p, segment_sum_p)
        return _bound(e, ins, mode="fill" if drops else "clip")
    return _bound(e, ins)


def _check_indices(
    state: _State, e: Eqn, indices: Array, kind: Aval, windows: Sequence[tuple[int, int]]
) -> None:
    """Check that windows of an array of type `kind` start in range; `windows` are (axis, size) of
    the components along the last axis of `indices`."""
    if not math.prod(typeof(indices).shape):
        return
    wide = ops.convert(indices, dtypes.I64)
    parts = [lax.index_in_dim(wide, j, -1, keepdims=False) for j in range(len(windows))]
    outside = [(p < 0) | (p > kind.shape[axis] - size) for p, (axis, size) in zip(parts, windows)]
    bad = jnp.stack(outside, -1)
    at = jnp.argmax(jnp.ravel(bad))
    index = lax.dynamic_index_in_dim(jnp.ravel(wide), at, 0, keepdims=False)
    axis = lax.full((), windows[0][0], dtypes.I32)
    for j, (other, _) in enumerate(windows[1:], 1):
        axis = jnp.where(at % len(windows) == j, other, axis)
    state.fail(jnp.any(bad), BadIndex(kind.shape, _line(e)), [index, axis])


def _slice(state: _State, errors: Errors, e: Eqn, ins: Sequence[Any]) -> list[Any]:
    if ErrorCategory.INDEX in errors:
        kind = typeof(ins[0])
        updates = e.prim is dynamic_update_slice_p
        sizes = typeof(ins[1]).shape if updates else e.params["slice_sizes"]
        starts = [ops.convert(as_array(s), dtypes.I64) for s in ins[1 + updates :]]
        if starts:
            _check_indices(state, e, jnp.stack(starts), kind, list(enumerate(sizes)))
    return _bound(e, ins)


def _divide(state: _State, errors: Errors, e: Eqn, ins: Sequence[Any]) -> list[Any]:
    if ErrorCategory.DIV in errors:
        state.fail(jnp.any(as_array(ins[1]) == 0), ZeroDivisor(_line(e)))
    return _bound(e, ins)


# What passes a NaN on that it was given, and makes none.
_PASSING = frozenset((
    ops.neg.prim, ops.abs.prim, ops.max.prim, ops.min.prim, ops.sign.prim, ops.floor.prim,
    ops.ceil.prim, ops.conj.prim, sort_p, top_k_p,
))  # fmt: skip


def _computes(e: Eqn) -> bool:
    """Whether an operation may make a NaN itself; what runs programs is looked into instead."""
    moves = e.prim.flops is no_flops or type(e.prim.lowering) in (View, Source)
    return not (moves or e.prim in _PASSING or e.prim in _RUNNING)


def _check_nans(state: _State, e: Eqn, outs: Sequence[Any]) -> None:
    floats = [x for x in outs if dtypes.is_inexact(typeof(x).dtype)]
    if floats:
        found = functools.reduce(ops.bitwise_or, [jnp.any(ops.ne(x, x)) for x in floats])
        state.fail(found, NanResult(str(e.prim), _line(e)))


def _assert(state: _State, errors: Errors, e: Eqn, ins: Sequence[Any]) -> list[Any]:
    function, lead = e.params["function"], e.params["lead"]
    if ErrorCategory.USER not in errors:
        # As in JAX, `check` then checks nothing. The library's own assertions still raise.
        return [] if type(function.f) is _Check else _bound(e, ins)
    pred, *values = ins
    shape = typeof(pred).shape
    if not math.prod(shape):
        return []
    failed = jnp.ravel(ops.bitwise_not(pred))
    at = jnp.argmax(failed)
    if lead:
        example = at // math.prod(shape[lead:])
        stacked = [lax.collapse(v, 0, lead) for v in values]
        values = [lax.dynamic_index_in_dim(v, example, 0, keepdims=False) for v in stacked]
    site = FailedCondition(function, shape, lead, e.params["line"])
    state.fail(jnp.any(failed), site, [at, *values])
    return []


# ---- programs within equations ----


def _call(state: _State, errors: Errors, e: Eqn, ins: Sequence[Any]) -> list[Any]:
    inner = _checked(e.params["jaxpr"], errors)
    return inner.outputs(state, _bound(e, ins, jaxpr=inner.program))


def _fused(state: _State, errors: Errors, e: Eqn, ins: Sequence[Any]) -> list[Any]:
    """A fused function is one operation, but where an index of it is checked."""
    program = e.params["jaxpr"]
    if ErrorCategory.INDEX in errors and has_checks(program):
        return _call(state, errors, e.replace(prim=jit_p, params={"jaxpr": program}), ins)
    outs = _bound(e, ins)
    if ErrorCategory.NAN in errors:
        _check_nans(state, e, outs)
    return outs


def _cond(state: _State, errors: Errors, e: Eqn, ins: Sequence[Any]) -> list[Any]:
    branches = e.params["branches"]
    programs, count, slots, sites = _checked_branches(branches[0], branches, errors)
    found = _Checked(programs[0], count, slots, sites)
    return found.outputs(state, _bound(e, ins, branches=programs))


@memoized
def _checked_branches(
    _: Jaxpr, branches: tuple[Jaxpr, ...], errors: Errors
) -> tuple[tuple[Jaxpr, ...], int, tuple[Slot, ...], tuple[Any, ...]]:
    """(programs with errors of one form, number of outputs, slots, checks of all branches)."""
    found = [_checked(b, errors) for b in branches]
    slots = tuple(dict.fromkeys(s for b in found for s in b.slots))
    sites = tuple([s for b in found for s in b.sites])
    if not sites:
        return tuple([b.program for b in found]), found[0].count, (), ()
    programs, offset = [], 0

    def branch(b: _Checked, offset: int, *xs: Any) -> list[Any]:
        state = _State()
        outs = b.run(state, *xs)
        code, *values = state.flat(slots)
        return [*outs, jnp.where(code > 0, code + offset, 0), *values]

    for b in found:
        f = functools.partial(branch, b, offset)
        programs.append(stage_closed(f, b.program.in_avals, b.program.name))
        offset += len(b.sites)
    return tuple(programs), found[0].count, slots, sites


def _scan(state: _State, errors: Errors, e: Eqn, ins: Sequence[Any]) -> list[Any]:
    consts, carry = e.params["consts"], e.params["carry"]
    found = _checked(e.params["jaxpr"], errors)
    if not found.sites:
        return _bound(e, ins, jaxpr=found.program)
    n = len(found.error_avals)
    start = [zeros(a) for a in found.error_avals]
    outs = _bound(
        e,
        [*ins[:consts], *start, *ins[consts:]],
        jaxpr=_scan_body(e.params["jaxpr"], errors, consts),
        carry=carry + n,
    )
    state.join(*_unflat(outs[:n], found.slots), found.sites)
    return outs[n:]


@memoized
def _scan_body(jaxpr: Jaxpr, errors: Errors, consts: int) -> Jaxpr:
    """[constants, error, carry, slices] -> [error, carry, ys]."""
    found = _checked(jaxpr, errors)
    n = len(found.error_avals)

    def body(*xs: Any) -> list[Any]:
        before = xs[consts : consts + n]
        outs = evaluate(found.program, *xs[:consts], *xs[consts + n :])
        return [*_first(before, outs[found.count :]), *outs[: found.count]]

    avals = [*jaxpr.in_avals[:consts], *found.error_avals, *jaxpr.in_avals[consts:]]
    return stage_closed(body, avals, jaxpr.name)


def _first(before: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """The error of a loop after a step: the one from before, if there is one."""
    return [_either(before[0] > 0, x, y) for x, y in zip(before, new, strict=True)]


def _while(state: _State, errors: Errors, e: Eqn, ins: Sequence[Any]) -> list[Any]:
    """The condition is checked before the first step, and with each step for the next one."""
    a, b = e.params["cond_consts"], e.params["body_consts"]
    test = _checked(e.params["cond"], errors)
    test.run(state, *ins[:a], *ins[a + b :])
    step, cond, body = _while_programs(e.params["body"], e.params["cond"], errors, a, b)
    start = [zeros(k) for k in step.error_avals]
    n = len(start)
    outs = _bound(
        e,
        [*ins[:a], *ins[:a], *ins[a : a + b], *start, *ins[a + b :]],
        cond=cond,
        body=body,
        body_consts=a + b,
    )
    if step.sites:
        state.join(*_unflat(outs[:n], step.slots), step.sites)
    return outs[n:]


@memoized
def _while_programs(
    body: Jaxpr, cond: Jaxpr, errors: Errors, a: int, b: int
) -> tuple[_Checked, Jaxpr, Jaxpr]:
    """(a step with its error, the loop's condition, its body), which carry the error in front."""
    test, new = _checked(cond, errors), _checked(body, errors)

    def step(state: _State, *xs: Any) -> list[Any]:
        outs = new.run(state, *xs[a:])
        if test.sites:
            test.run(state, *xs[:a], *outs)
        return outs

    fixed, moving = [*cond.in_avals[:a], *body.in_avals[:b]], body.in_avals[b:]
    found = _staged(step, [*fixed, *moving], body.name)
    n = len(found.error_avals)

    def loop_body(*xs: Any) -> list[Any]:
        before = xs[a + b : a + b + n]
        outs = evaluate(found.program, *xs[: a + b], *xs[a + b + n :])
        return [*_first(before, outs[found.count :]), *outs[: found.count]] if n else outs

    def loop_test(*xs: Any) -> list[Any]:
        return evaluate(test.program, *xs[:a], *xs[a + n :])[:1]

    carried = [*found.error_avals, *moving]
    return (
        found,
        stage_closed(loop_test, [*cond.in_avals[:a], *carried], cond.name),
        stage_closed(loop_body, [*fixed, *carried], body.name),
    )


class _WithError(Wrapped):
    """A call of a function with rules that returns its error, too: what its program gives at the
    same operands. What the rules check on the way forward is left out, as the error says it; what
    they check on the way back raises."""

    __slots__ = ("checked", "errors")

    def __init__(self, call: CustomCall, checked: _Checked, errors: Errors) -> None:
        super().__init__(call)
        self.checked, self.errors = checked, errors

    @property
    def batch(self) -> Callable[..., Any] | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The user's batching rule, where there is one."""
        return None if self.call.batch is None else self._batch

    def _errors(self) -> Jaxpr:
        """[operands] -> error, without what else happens."""
        program = without_effects(self.checked.program)
        outs = program.outs[self.checked.count :]
        return Jaxpr(program.invars, program.eqns, outs, (), program.name)

    def _unchecked(self, rule: Callable[..., Any], *args: Any) -> Any:
        """`rule(*args)` without its checks; arguments and results are lists of values or None."""
        leaves, in_tree = tree.flatten(args)
        flat = FlatFunction(rule, in_tree)
        program = stage_closed(flat, [typeof(x) for x in leaves], self.name)
        found = _checked(program, self.errors)
        outs = found.program.outs[: found.count]
        eqns, _ = dead_code(found.program.eqns, outs)
        return flat.output(
            evaluate(Jaxpr(found.program.invars, eqns, outs, (), self.name), *leaves)
        )

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        rule = lambda xs, ts: tuple(map(list, self.call.jvp(xs, ts)))
        outs, ts = self._unchecked(rule, list(primals), list(tangents))
        error = evaluate(self._errors(), *primals)
        return [*outs, *error], [*ts, *[None] * len(error)]

    def fwd(
        self, nonzero: Sequence[bool], xs: Sequence[Any]
    ) -> tuple[list[Any], list[Any], Callable[..., Any]]:
        pulls: list[Callable[..., Any]] = []

        def forward(ys: list[Any]) -> Any:
            outs, saved, pull = self.call.fwd(nonzero, ys)
            pulls[:] = [pull]
            return list(outs), list(saved)

        outs, saved = self._unchecked(forward, list(xs))
        (pull,), count = pulls, len(outs)
        error = evaluate(self._errors(), *xs)
        return [*outs, *error], saved, lambda residuals, cts: pull(residuals, cts[:count])

    def _batch(
        self, size: int, batched: Sequence[bool], xs: Sequence[Any]
    ) -> tuple[list[Any], list[bool]]:
        assert self.call.batch is not None
        outs, flags = self.call.batch(size, batched, xs)
        all_of_them = (True,) * len(self.checked.error_avals)
        program, _ = batch_jaxpr(self._errors(), size, tuple(batched), all_of_them, None)
        return [*outs, *evaluate(program, *xs)], [*flags, *all_of_them]


def _custom(state: _State, errors: Errors, e: Eqn, ins: Sequence[Any]) -> list[Any]:
    call = e.params["call"]
    if call.linear is not None:  # a part of a derivative
        return _bound(e, ins)
    found = _checked(e.params["jaxpr"], errors)
    with_error = _WithError(call, found, errors) if found.sites else call
    return found.outputs(state, _bound(e, ins, jaxpr=found.program, call=with_error))


def _shard_map(state: _State, errors: Errors, e: Eqn, ins: Sequence[Any]) -> list[Any]:
    if _checked(e.params["jaxpr"], errors).sites:
        raise ValueError(
            f"checkify does not look into shard_map, whose devices would have an error each\n"
            f"  at {_line(e)}\n  checkify the function that shard_map runs, and return its error"
        )
    return _bound(e, ins)


_RULES: dict[Any, Callable[..., list[Any]]] = {
    assert_p: _assert, ops.div.prim: _divide,
    dynamic_slice_p: _slice, dynamic_update_slice_p: _slice,
    jit_p: _call, region_p: _call, wide_p: _call, checkpoint_p: _call, fused_p: _fused,
    cond_p: _cond, scan_p: _scan, while_p: _while, custom_call_p: _custom,
    shard_map_p: _shard_map,
}  # fmt: skip
_RUNNING = frozenset((
    jit_p, region_p, wide_p, checkpoint_p, fused_p, cond_p, scan_p, while_p, custom_call_p,
    shard_map_p,
))  # fmt: skip


# ---- what users call ----


def checkify(
    f: Callable[P, R], errors: frozenset[ErrorCategory] = user_checks
) -> Callable[P, tuple[Error, R]]:
    """Make a function that returns (error, output): the first check in it that failed, and what it
    returns all the same.

    The result may be jitted, mapped (an error for each example), differentiated, and called in
    loops and branches. Where a check failed, indices out of range read the nearest element and
    write nothing. `clip`, `fill` and `drop` are ways to index out of range, and no errors. Under
    `vmap` within `f` the first example that failed is reported; float checks then also see the
    branches and steps of examples that are discarded.

    Args:
        f: function of any arguments that returns a pytree of arrays.
        errors: what is checked, a union of these sets: `user_checks`, by `check`, `debug_check`,
            `check_error` and `debug.assert_`; `nan_checks`, an operation gives a NaN; `div_checks`,
            a divisor is zero; `index_checks`; `float_checks`, `automatic_checks`, `all_checks`.

    Returns:
        The function, with the parameters of `f`.

    Raises:
        ValueError: `errors` holds something else, or there are checks within `shard_map`.

    >>> safe = gf.jit(checkify.checkify(jnp.log, errors=checkify.float_checks))
    >>> err, out = safe(-1.0)
    >>> print(err.get())
    nan generated by primitive: log.
    ...
    >>> err, out = safe(1.0)
    >>> err.get() is None
    True
    """
    if not isinstance(errors, (set, frozenset)) or not errors <= all_checks:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(
            f"checkify: errors is a union of sets as checkify.user_checks, got {errors!r:.80}\n"
            f"  at {where().describe()}"
        )
    enabled = frozenset(errors)

    @functools.wraps(f)
    def checked_fun(*args: P.args, **kwargs: P.kwargs) -> tuple[Error, R]:
        # Arguments are closed over: Python values among them stay what they are.
        flat = FlatFunction(lambda: f(*args, **kwargs), tree.structure(()))
        before, ctx.checked = ctx.checked, True
        try:
            jaxpr, captured = stage(flat, (), name=name_of(f))
        finally:
            ctx.checked = before
        state = _State()
        outs = _run(jaxpr, enabled, state, captured)
        return state.error(), flat.called(outs)

    return checked_fun


class _Check(Formatted):
    """The message of a `check`."""

    __slots__ = ()
    error = CheckFailed

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        return f"{super().__call__(*args, **kwargs)} (`check` failed)"


def check(
    pred: ArrayLike, msg: str, *fmt_args: PyTree, debug: bool = False, **fmt_kwargs: PyTree
) -> None:
    """Check a condition: one that is false is the error of the function that `checkify` made, and
    raises CheckFailed, a ValueError, in a program that is run without it.

    Args:
        pred: boolean scalar.
        msg: format string with a field for each of the further arguments.
        *fmt_args, **fmt_kwargs: pytrees that the message's fields name.
        debug: whether to check nothing without `checkify`.

    Raises:
        TypeError: `pred` is no boolean scalar.
        ValueError: fields of `msg` and arguments do not fit each other.

    >>> def inverse(x):
    ...     checkify.check(x != 0, "x is {x}", x=x)
    ...     return 1 / x
    >>> err, _ = gf.jit(checkify.checkify(inverse))(0.0)
    >>> err.throw()
    Traceback (most recent call last):
        ...
    genesis_fn.core.errors.CheckFailed: x is 0.0 (`check` failed)
    ...
    """
    condition: Array = as_array(pred)
    kind = typeof(condition)
    if kind.shape != () or kind.dtype != dtypes.BOOL:
        raise TypeError(
            f"check takes a boolean scalar, got {kind}\n  at {where().describe()}\n"
            "  of an array say jnp.all(...)"
        )
    check_format(msg, fmt_args, fmt_kwargs, "checkify.check(x > 0, 'x = {x}', x=x)")
    if debug and not ctx.checked:
        return
    arrays, fixed, in_tree = split_arrays(fmt_args, fmt_kwargs)
    function = HostFunction(_Check(msg), in_tree, fixed, None)
    bind(assert_p, condition, *arrays, function=function, line=where().describe(), lead=0)


def debug_check(pred: ArrayLike, msg: str, *fmt_args: PyTree, **fmt_kwargs: PyTree) -> None:
    """Check a condition under `checkify`; without it nothing is checked.

    Args:
        pred: boolean scalar.
        msg: format string with a field for each of the further arguments.
        *fmt_args, **fmt_kwargs: pytrees that the message's fields name.

    Raises:
        TypeError, ValueError: as of `check`.

    >>> checkify.debug_check(False, "never shown")
    >>> err, _ = checkify.checkify(lambda: checkify.debug_check(False, "shown"))()
    >>> print(err.get())
    shown (`check` failed)
    ...
    """
    check(pred, msg, *fmt_args, debug=True, **fmt_kwargs)
