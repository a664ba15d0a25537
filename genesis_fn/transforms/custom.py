"""custom_jvp and custom_vjp: functions with derivative rules of the user's.

A derivative runs the rules as they are, in Python (`inline.py`). Where a program is being recorded,
function and rules are staged, and what they capture is hoisted to leading operands. A rule may
close over traced values as long as those are not differentiated.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.array import stored
from genesis_fn.core.aval import Aval
from genesis_fn.core.convert import as_array, is_value
from genesis_fn.core.jaxpr import Jaxpr, Var, memoized
from genesis_fn.core.primitive import Primitive, Tracer, bind, ctx, marked, surroundings, typeof
from genesis_fn.core.source import Where, is_internal, where
from genesis_fn.core.static import NotStatic, aux_key, is_array, meaning
from genesis_fn.primitives.define import instantiate, move_batch, zeros
from genesis_fn.transforms.batch import batch_jaxpr
from genesis_fn.transforms.call import jit_p, linear_call
from genesis_fn.transforms.copies import Copied
from genesis_fn.transforms.flat import FlatFunction, as_taken, flatten_arrays, missing, name_of
from genesis_fn.transforms.inline import custom_jvp_call_p, custom_vjp_call_p, forward_rule
from genesis_fn.transforms.key_uses import user_call
from genesis_fn.transforms.linearize import keeping_apart
from genesis_fn.transforms.stage import evaluate, share_captures, stage, stage_closed


def _shape(*avals: Aval, jaxpr: Jaxpr, **_: Any) -> list[Aval]:
    return jaxpr.out_avals


def _refuse_captured(nonzero: Sequence[bool], consts: int, name: str) -> None:
    if any(nonzero[:consts]):
        raise errors.NotDifferentiableError(
            f"{name} closes over a value that is being differentiated; its derivative rule cannot "
            f"know of it\n  at {where().describe()}\n"
            "  pass the value as an argument, or wrap it in stop_gradient"
        )


# Which arguments have a tangent; None: all of them.
Perturbed = tuple[bool, ...] | None


class SymbolicZero:
    """A tangent or cotangent that is zero, with the aval that it would have as an array: what rules
    get that were given with `symbolic_zeros=True`, and may return."""

    __slots__ = ("aval",)

    def __init__(self, aval: Aval) -> None:
        self.aval = aval

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value that has this derivative."""
        return self.aval.shape

    @property
    def dtype(self) -> dtypes.DType:
        """Its dtype."""
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        """The number of its dimensions."""
        return self.aval.ndim

    @property
    def size(self) -> int:
        """The number of its elements."""
        return self.aval.size

    def __repr__(self) -> str:
        return f"SymbolicZero({self.aval})"


class CustomVJPPrimal:
    """An argument of a fwd rule that was given with `symbolic_zeros=True`: its `value`, and whether
    it is `perturbed`, that is whether a derivative by it is asked for."""

    __slots__ = ("value", "perturbed")

    def __init__(self, value: Any, perturbed: bool) -> None:
        self.value, self.perturbed = value, perturbed

    def __repr__(self) -> str:
        return f"CustomVJPPrimal({self.value!r}, perturbed={self.perturbed})"


def zero_from_primal(val: Any, symbolic_zeros: bool = False) -> Any:
    """The zero tangent of a value, as an array or a SymbolicZero."""
    kind = typeof(as_array(val))
    return SymbolicZero(kind) if symbolic_zeros else zeros(kind)


def _symbolic(ts: Sequence[Any], kinds: Sequence[Aval]) -> list[Any]:
    return [SymbolicZero(k) if t is None else t for t, k in zip(ts, kinds, strict=True)]


class Rules:
    """The programs of a custom derivative, made when they are first needed: a rule may call the
    very function that it belongs to, so its programs may refer to this object."""

    __slots__ = ("make", "made", "batches", "symbolic")

    def __init__(
        self, make: Callable[[Perturbed], tuple] | None = None, symbolic: bool = False
    ) -> None:
        self.make, self.symbolic = make, symbolic
        self.made: dict[Perturbed, tuple] = {}
        self.batches: dict[Any, Rules] = {}

    def programs(self, perturbed: Perturbed = None) -> tuple:
        """(rule,) of a custom_jvp, (fwd, bwd, rule or None) of a custom_vjp. Symbolic rules have
        programs of their own for each choice of arguments that have tangents (None: all)."""
        key = perturbed if self.symbolic else None
        if key not in self.made:
            assert self.make is not None
            self.made[key] = self.make(key)
        return self.made[key]

    def batched(self, key: Any, make: Callable[[Perturbed], tuple]) -> Rules:
        """The rules over a batch, one object per key."""
        if key not in self.batches:
            self.batches[key] = Rules(make, self.symbolic)
        return self.batches[key]


# ---- custom_jvp ----


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Jaxpr, rules: Rules, consts: int
) -> Any:
    _refuse_captured([t is not None for t in tangents], consts, jaxpr.name)
    (rule,) = rules.programs(tuple([t is not None for t in tangents[consts:]]))
    count = len(jaxpr.outs)

    def apply(primals: Sequence[Any], given: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        outs = evaluate(rule, *primals, *given)
        return outs[:count], outs[count:]

    return forward_rule(primals, tangents, apply, consts)


def _jvp_batch(
    size: int, xs: Sequence[Any], dims: Sequence[Any], *, jaxpr: Jaxpr, rules: Rules, consts: int,
    axis_name: Any = None,
) -> Any:  # fmt: skip
    moved, batched = _all_batched(size, xs, dims, consts)
    every = (True,) * len(jaxpr.outs)
    primal, _ = batch_jaxpr(jaxpr, size, batched, every, axis_name)

    def make(perturbed: Perturbed) -> tuple:
        (rule,) = rules.programs(perturbed)
        mask = batched + batched[consts:]
        return (batch_jaxpr(rule, size, mask, every * 2, axis_name)[0],)

    new = rules.batched((size, batched, axis_name), make)
    outs = bind(custom_jvp_p, *moved, jaxpr=primal, rules=new, consts=consts)
    return outs, [0] * len(outs)


def _all_batched(
    size: int, xs: Sequence[Any], dims: Sequence[Any], consts: int
) -> tuple[list[Any], tuple[bool, ...]]:
    """Operands with the batch in front; every argument batched, so that rules see one layout."""
    moved = [
        x if i < consts and d is None else move_batch(x, d, 0, size)
        for i, (x, d) in enumerate(zip(xs, dims))
    ]
    batched = tuple([d is not None or i >= consts for i, d in enumerate(dims)])
    return moved, batched


def _transpose(
    cts: Sequence[Any], *operands: Any, jaxpr: Jaxpr, rules: Rules, consts: int
) -> list[Any]:
    """Of a call on tangents, which a rule may make of a function that is linear itself."""
    assert jit_p.transpose is not None
    return jit_p.transpose(cts, *operands, jaxpr=jaxpr)


custom_jvp_p = Primitive(
    "custom_jvp",
    _shape,
    multi=True,
    program="jaxpr",
    jvp=_jvp,
    transpose=_transpose,
    batch=_jvp_batch,
)


# ---- custom_vjp ----


def _vjp_linearize(
    nonzero: Sequence[bool], *xs: Any, jaxpr: Jaxpr, rules: Rules, consts: int
) -> Any:
    _refuse_captured(nonzero, consts, jaxpr.name)
    fwd, bwd, rule = rules.programs(tuple(nonzero[consts:]))
    count = len(jaxpr.outs)
    outs = bind(jit_p, *xs, jaxpr=fwd)
    primals, saved = outs[:count], outs[count:]
    diff = [i for i in range(consts, len(xs)) if dtypes.is_inexact(typeof(xs[i]).dtype)]
    n_saved = len(saved)
    if rule is None:
        residuals, forward, backward = [*xs[:consts], *saved], None, bwd
    else:
        residuals = [*xs, *saved]
        forward, backward = _with_saved(rule, bwd, consts, len(xs), n_saved, count)
    kinds = tuple([typeof(o) for o in primals])

    def apply(*ts: Any) -> list[Any]:
        given = [instantiate(ts[i], typeof(xs[i])) for i in diff]
        back = linear_call(
            residuals, given, forward=forward, backward=backward, out_avals=kinds, name=jaxpr.name
        )
        return [t if dtypes.is_inexact(k.dtype) else None for t, k in zip(back, kinds)]

    return primals, apply


@memoized
def _with_saved(
    rule: Jaxpr, bwd: Jaxpr, consts: int, n: int, saved: int, outs: int
) -> tuple[Jaxpr, Jaxpr]:
    """Forward and backward programs that both take [constants, arguments, saved] first."""
    avals = rule.in_avals[:n]
    kept = bwd.in_avals[consts : consts + saved]
    diff = [i for i in range(consts, n) if dtypes.is_inexact(avals[i].dtype)]

    def forward(*args: Any) -> list[Any]:
        primals, given = args[:n], dict(zip(diff, args[n + saved :]))
        ts = [given[i] if i in given else zeros(avals[i]) for i in range(consts, n)]
        return evaluate(rule, *primals, *ts)[outs:]

    def backward(*args: Any) -> list[Any]:
        return evaluate(bwd, *args[:consts], *args[n:])

    first = [*avals, *kept]
    return (
        stage_closed(forward, [*first, *(avals[i] for i in diff)], rule.name),
        stage_closed(backward, [*first, *bwd.in_avals[consts + saved :]], bwd.name),
    )


def _vjp_batch(
    size: int, xs: Sequence[Any], dims: Sequence[Any], *, jaxpr: Jaxpr, rules: Rules, consts: int,
    axis_name: Any = None,
) -> Any:  # fmt: skip
    moved, batched = _all_batched(size, xs, dims, consts)
    count = len(jaxpr.outs)
    every = (True,) * count
    primal, _ = batch_jaxpr(jaxpr, size, batched, every, axis_name)

    def make(perturbed: Perturbed) -> tuple:
        fwd, bwd, rule = rules.programs(perturbed)
        saved = (True,) * (len(fwd.outs) - count)
        fwd, _ = batch_jaxpr(fwd, size, batched, every + saved, axis_name)
        mask = batched[:consts] + saved + every
        bwd, _ = batch_jaxpr(bwd, size, mask, (True,) * len(bwd.outs), axis_name)
        if rule is not None:
            rule, _ = batch_jaxpr(rule, size, batched + batched[consts:], every * 2, axis_name)
        return fwd, bwd, rule

    new = rules.batched((size, batched, axis_name), make)
    outs = bind(custom_vjp_p, *moved, jaxpr=primal, rules=new, consts=consts)
    return outs, [0] * count


custom_vjp_p = Primitive(
    "custom_vjp", _shape, multi=True, program="jaxpr", linearize=_vjp_linearize,
    transpose=_transpose, batch=_vjp_batch,
)  # fmt: skip


# ---- what users call ----


class Call:
    """A call of a custom function on flat arrays (see `inline.py`). `learned` is the structure of
    its output, known after a run."""

    __slots__ = (
        "owner", "static", "values", "in_tree", "kinds", "weak", "learned", "perturbed",
    )  # fmt: skip

    def __init__(
        self, owner: Any, static: list[int], values: tuple, in_tree: Any, xs: Sequence[Any]
    ) -> None:
        self.owner, self.static, self.values, self.in_tree = owner, static, values, in_tree
        self.kinds = tuple([typeof(x) for x in xs])
        self.weak = tuple([x.weak for x in xs])
        self.learned: Any = None
        self.perturbed: Perturbed = None

    @property
    def symbolic(self) -> bool:
        """Whether its rules tell zeros apart."""
        return self.owner.symbolic

    @property
    def name(self) -> str:
        return self.owner.name

    @property
    def forward(self) -> bool:
        """Whether there is a rule for forward mode."""
        return self.owner.rule is not None

    def key(self) -> tuple:
        """What tells staged programs of the call apart."""
        return self.kinds, self.weak, self.in_tree, tuple(self.static), aux_key(self.values)[0]

    def staged(self, prim: Primitive, xs: Sequence[Any]) -> list[Any]:
        return self.owner.staged_call(prim, self, xs)

    def _arguments(self, xs: Sequence[Any]) -> list[Any]:
        return self.owner.join(self.static, self.values, tree.unflatten(self.in_tree, xs))

    def _flat(self, value: Any) -> tuple[list[Any], Any]:
        """(leaves as arrays, structure) of what one of the user's functions returned."""
        flat = FlatFunction(lambda: value, _NOTHING)
        flat.f.__name__ = self.name
        return flat(), flat.out_tree

    def fun(self, *xs: Any) -> list[Any]:
        outs, self.learned = self._flat(self.owner.fun(*self._arguments(xs)))
        return outs

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        given = tuple(tree.unflatten(self.in_tree, primals))
        if self.symbolic:
            tangents = _symbolic(tangents, self.kinds)
        moved = tuple(tree.unflatten(self.in_tree, tangents))
        out = self.owner.rule(*self.values, given, moved)
        if not (isinstance(out, tuple) and len(out) == 2):
            raise errors.TreeError(
                f"the jvp rule of {self.name} must return (output, tangent), got {out!r:.80}"
                f"\n  at {where().describe()}{_rule_at(self.owner.rule)}{missing(out)}"
            )
        outs, self.learned = self._flat(out[0])
        ts, t_tree = self._flat(tree.map(_dense, out[1]))
        if t_tree != self.learned:
            raise errors.TreeError(
                f"the jvp rule of {self.name} returned a tangent of another structure than its "
                f"output: {tree.first_difference(*out, 'the output')}"
                f"\n  at {where().describe()}{_rule_at(self.owner.rule)}"
            )
        ts = [
            t if dtypes.is_inexact(typeof(o).dtype) or t.shape != o.shape else zeros(typeof(o))
            for t, o in zip(ts, outs)
        ]
        for t, o in zip(ts, outs):
            if typeof(t) is not typeof(o):
                raise _unexpected(self.name, t, typeof(o), self.owner.rule)
        return outs, ts

    def fwd(self, *xs: Any) -> tuple[list[Any], list[Any], Callable]:
        given: Sequence[Any] = xs
        if self.symbolic:
            perturbed = self.perturbed or (True,) * len(xs)
            given = [
                CustomVJPPrimal(x, p and dtypes.is_inexact(k.dtype))
                for x, p, k in zip(xs, perturbed, self.kinds, strict=True)
            ]
        out = self.owner.fwd(*self._arguments(given))
        if not (isinstance(out, tuple) and len(out) == 2):
            raise errors.TreeError(
                f"the fwd rule of {self.name} must return (output, residuals), got {out!r:.80}"
                f"\n  at {where().describe()}{_rule_at(self.owner.fwd)}{missing(out)}"
            )
        outs, out_tree = self._flat(out[0])
        saved, saved_tree = self._flat(out[1])
        self.learned = out_tree
        out_kinds = [typeof(o) for o in outs]

        def backward(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            if self.symbolic:
                cts = _symbolic(cts, out_kinds)
            res, ct = tree.unflatten(saved_tree, residuals), tree.unflatten(out_tree, cts)
            return self.owner.cotangents(
                self.owner.bwd(*self.values, res, ct), self.static, self.in_tree, self.kinds
            )

        return outs, saved, backward


_NOTHING = tree.structure(())


def _dense(t: Any) -> Any:
    """A tangent that a rule returned, as an array."""
    if type(t) is SymbolicZero:
        return zeros(t.aval)
    return np.zeros(t.shape, np.int32) if getattr(t, "dtype", None) == dtypes.FLOAT0 else t


def _unexpected(name: str, x: Any, kind: Aval, rule: Any) -> Exception:
    return errors.ShapeError(
        f"the jvp rule of {name} returned {typeof(x)} where {kind} is expected\n"
        f"  at {where().describe()}{_rule_at(rule)}"
    )


def _rule_at(rule: Any) -> str:
    """The line of a message that says where a rule is written."""
    code = getattr(inspect.unwrap(rule), "__code__", None)
    if code is None or is_internal(code):
        return ""
    return f"\n  the rule is at {Where(code, code.co_firstlineno).describe()}"


_PROGRAMS = {custom_jvp_call_p: custom_jvp_p, custom_vjp_call_p: custom_vjp_p}


class _Active(threading.local):
    """Calls whose rules this thread is staging now: there a call of the same function is the
    program being made. To another thread it is a call like any other."""

    def __init__(self) -> None:
        self.calls: dict[Any, dict[str, Any]] = {}


# What a copy keeps of a function with rules, beside the function.
_KEPT = ("static", "rule", "fwd", "bwd", "symbolic")


class _Custom(Copied):
    """What the two decorators share: which arguments are static, and staging with a memory."""

    rule: Callable | None  # of forward mode
    symbolic = False  # whether the rules tell zeros apart
    # The rules' programs with what they captured, checked against the function's program.
    stage_rules: Callable[..., list[tuple[Jaxpr, list]]]

    def __init__(self, fun: Callable, static: Sequence[int], static_names: Sequence[str]) -> None:
        functools.update_wrapper(self, fun)  # pyright: ignore[reportArgumentType]
        self.fun, self.name = fun, name_of(fun)
        try:
            self.signature: inspect.Signature | None = inspect.signature(fun)
        except (TypeError, ValueError):
            self.signature = None
        names = list(self.signature.parameters) if self.signature else []
        for n in static_names:
            if n not in names:
                raise ValueError(f"static_argnames: {self.name} has no argument {n!r}")
        self.static = {*static, *(names.index(n) for n in static_names)}
        self.staged: dict[Any, Any] = {}
        self.active = _Active()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)  # pyright: ignore[reportArgumentType]

    def positional(self, args: tuple, kwargs: dict[str, Any]) -> tuple:
        """All arguments by position, defaults filled in."""
        if not kwargs and self.signature is None:
            return args
        assert self.signature is not None, f"{self.name} takes positional arguments only"
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.kwargs:
            raise TypeError(
                f"{self.name} has a custom derivative and takes no keyword-only arguments: "
                f"{sorted(bound.kwargs)}"
            )
        return bound.args

    def split(self, args: tuple) -> tuple[list[int], tuple, tuple]:
        """(positions of static arguments, static values, the others)."""
        static = [
            i for i, a in enumerate(args)
            if i in self.static or not all(is_value(x) for x in tree.leaves(a))
        ]  # fmt: skip
        for i in static:
            try:
                if is_array(args[i]) or isinstance(args[i], (list, dict, set, bytearray)):
                    raise NotStatic(args[i], "neither arrays nor hashable")
                hash(aux_key(args[i])[0])
            except TypeError:
                raise TypeError(
                    f"argument {i} of {self.name} is {args[i]!r:.60}, neither arrays nor hashable\n"
                    f"  at {where().describe()}"
                ) from None
        rest = tuple([a for i, a in enumerate(args) if i not in static])
        return static, tuple([args[i] for i in static]), rest

    def join(self, static: Sequence[int], values: Sequence[Any], rest: Sequence[Any]) -> list[Any]:
        """All arguments in order again."""
        given, others = dict(zip(static, values)), iter(rest)
        count = len(static) + len(rest)
        return [given[i] if i in given else next(others) for i in range(count)]

    def call(self, prim: Primitive, args: tuple) -> Any:
        """The outputs, by way of the current trace."""
        static, values, rest = self.split(args)
        leaves, in_tree, _ = flatten_arrays(rest, f"an argument of {self.name}: ")
        call = Call(self, static, values, in_tree, leaves)
        outs = bind(prim, *leaves, call=call)
        return tree.unflatten(call.learned, outs)

    def staged_call(self, prim: Primitive, call: Any, xs: Sequence[Any]) -> list[Any]:
        """A call recorded as an operation that holds programs: those kept from an earlier call, if
        nothing that they captured is a tracer."""
        key = (call.key(), surroundings())
        if (state := self.active.calls.get(key)) is not None:
            state["called"] = True
            if "consts" not in state:  # the first pass only finds out what is captured
                return call.fun(*xs)
            found, consts = state["found"], state["consts"]
        elif (kept := self.staged.get((key, self._does()))) is not None:
            found, consts = kept
        else:
            found, consts = self._stage(key, call, xs)
        jaxpr, rules, weak, call.learned = found
        outs = user_call(
            _PROGRAMS[prim], *consts, *xs, jaxpr=jaxpr, rules=rules, consts=len(consts)
        )
        return marked(outs, weak)

    def _stage(self, key: tuple, call: Any, xs: Sequence[Any]) -> tuple:
        kinds, weak = [typeof(x) for x in xs], [x.weak for x in xs]
        out_weak: list[bool] = []

        def primal(*args: Any) -> list[Any]:
            outs = call.fun(*args)
            out_weak[:] = [o.weak for o in outs]
            return outs

        first = stage(primal, kinds, name=self.name, weak=weak)
        learned = call.learned
        rules = Rules(symbolic=self.symbolic)
        call.perturbed = None
        state: dict[str, Any] = {"called": False}
        self.active.calls[key] = state
        try:
            more = (call, kinds, weak, first[0], learned, out_weak)
            staged = [first, *self.stage_rules(*more)]
            programs, consts = share_captures(staged)
            if state["called"]:
                state["found"], state["consts"] = (programs[0], rules, out_weak, learned), consts
                staged = [first, *self.stage_rules(*more)]
                programs = _laid_out(staged, consts, self.name)
        finally:
            del self.active.calls[key]
        rules.made[None] = _padded(programs[1:])
        found = (programs[0], rules, out_weak, learned)
        if self.symbolic:
            rules.make = functools.partial(self._again, key, more, found, consts)
        does = self._does()  # what the rules wrote while they were traced counts as it is now
        if does is not None and not any(isinstance(x, Tracer) for x in consts):
            if len(self.staged) >= 64:
                self.staged.clear()
            self.staged[key, does] = found, consts
        return found, consts

    def _again(
        self, key: tuple, more: tuple, found: tuple, consts: list[Any], perturbed: Perturbed
    ) -> tuple:
        """The rules' programs where only some arguments are perturbed."""
        call, before = more[0], self.active.calls.get(key)
        self.active.calls[key] = {"called": False, "found": found, "consts": consts}
        call.perturbed = perturbed
        try:
            return _padded(_laid_out(self.stage_rules(*more), consts, self.name))
        finally:
            call.perturbed = None
            del self.active.calls[key]
            if before is not None:
                self.active.calls[key] = before

    def _staged_jvp(
        self, call: Any, kinds: list[Aval], weak: list[bool], jaxpr: Jaxpr, learned: Any
    ) -> tuple[Jaxpr, list]:
        n = len(kinds)

        def body(*xs: Any) -> list[Any]:
            with keeping_apart():
                ts = xs[n:]
                if call.symbolic and call.perturbed is not None:
                    ts = [t if p else None for t, p in zip(ts, call.perturbed)]
                outs, ts = call.jvp(xs[:n], ts)
            if call.learned != learned:
                raise errors.TreeError(
                    f"the jvp rule of {self.name} returned structures {call.learned}, the function "
                    f"returns {learned}"
                    f"\n  at {where().describe()}{_rule_at(self.rule)}"
                )
            for o, kind in zip(outs, jaxpr.out_avals, strict=True):
                if typeof(o) is not kind:
                    raise _unexpected(self.name, o, kind, self.rule)
            return [*outs, *ts]

        return stage(body, kinds * 2, name=self.name, weak=weak * 2)

    def _does(self) -> tuple | None:
        """What the function and its rules do now, with all that they read; None where that cannot
        be told, so that no program may be kept."""
        rules = (self.fun, self.rule, getattr(self, "fwd", None), getattr(self, "bwd", None))
        known = [meaning(f) for f in rules]
        if any(m is None for m in known):
            return None
        return tuple([m.key for m in known if m is not None])

    def _parts(self) -> tuple[Callable, tuple]:
        made = {k: v for k, v in vars(self).items() if k in _KEPT}
        return _remade, (type(self), self.fun, made)

    def argument(self, i: int) -> str:
        """The name of an argument, for messages."""
        names = list(self.signature.parameters) if self.signature else []
        return repr(names[i]) if i < len(names) else str(i)


def _remade(kind: type, fun: Callable, parts: dict[str, Any]) -> Any:
    """A function with rules, of its parts."""
    made = kind(fun)
    vars(made).update(parts)
    return made


def _padded(programs: Sequence[Jaxpr]) -> tuple:
    """The programs of `Rules`: a custom_vjp without a rule for forward mode has None for it."""
    return (*programs, None) if len(programs) == 2 else tuple(programs)


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


class custom_jvp(_Custom):
    """A function whose derivative is the rule given by `defjvp(rule)`.

    `rule(primals, tangents)` returns (output, output tangent), linear in the tangents; with
    `nondiff_argnums`, those arguments come first. Reverse mode transposes the rule.
    """

    def __init__(
        self, fun: Callable, nondiff_argnums: Sequence[int] = (), *,
        static_argnames: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(fun, nondiff_argnums, static_argnames)
        self.rule: Callable | None = None

    def defjvp(self, rule: Callable, symbolic_zeros: bool = False) -> Callable:
        """Set the rule; usable as a decorator. With `symbolic_zeros` it gets a SymbolicZero for a
        tangent that is zero, and may return one."""
        self.rule, self.symbolic = rule, symbolic_zeros
        self.staged.clear()
        return rule

    def_jvp = defjvp

    def defjvps(self, *rules: Callable | None) -> None:
        """Set one rule per argument: `rule(tangent, output, *args)`; None where it is zero."""

        def rule(primals: tuple, tangents: tuple) -> tuple:
            out = self(*primals)
            terms = [r(t, out, *primals) for r, t in zip(rules, tangents) if r is not None]
            total = tree.map(lambda o: zeros(typeof(o)), out)
            for term in terms:
                total = tree.map(lambda a, b: bind(_add(), a, b), total, term)
            return out, total

        self.defjvp(rule)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.rule is None:
            raise errors.NotDifferentiableError(
                f"{self.name}: no rule was given by defjvp\n  at {where().describe()}"
            )
        args = self.positional(args, kwargs)
        if ctx.trace is None:
            return self.fun(*as_taken(args))
        return self.call(custom_jvp_call_p, args)

    def stage_rules(
        self, call: Any, kinds: list[Aval], weak: list[bool], jaxpr: Jaxpr, learned: Any,
        out_weak: list[bool],
    ) -> list[tuple[Jaxpr, list]]:  # fmt: skip
        """The rules' programs with what they captured; TreeError or ShapeError where they do not
        fit the function's program."""
        return [self._staged_jvp(call, kinds, weak, jaxpr, learned)]


def _add() -> Primitive:
    from genesis_fn.primitives.define import PRIM

    return PRIM["add"]


class custom_vjp(_Custom):
    """A function whose reverse-mode derivative is given by `defvjp(fwd, bwd)`.

    `fwd(*args)` returns (output, residuals); `bwd(residuals, ct)` a tuple with one cotangent per
    argument, None for none. With `nondiff_argnums` (or `static_argnames`) those arguments are
    Python values and come first in `bwd`. `def_jvp(rule)` adds forward mode.
    """

    def __init__(
        self, fun: Callable, nondiff_argnums: Sequence[int] = (), *,
        static_argnames: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(fun, nondiff_argnums, static_argnames)
        self.fwd: Callable | None = None
        self.bwd: Callable | None = None
        self.rule: Callable | None = None

    def defvjp(
        self, fwd: Callable, bwd: Callable, symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:  # fmt: skip
        """Set the forward and backward rules. With `symbolic_zeros`, `fwd` gets objects with
        `.value` and `.perturbed` for its arguments' leaves, and `bwd` may get a SymbolicZero for a
        cotangent and return one. (In recorded programs, as under `jit`, cotangents are arrays.)
        `optimize_remat` changes nothing: what nothing needs is always left out.
        """
        self.fwd, self.bwd, self.symbolic = fwd, bwd, symbolic_zeros
        self.staged.clear()

    def def_fwd(self, fwd: Callable) -> Callable:
        """Set the forward rule; usable as a decorator."""
        self.fwd = fwd
        self.staged.clear()
        return fwd

    def def_bwd(self, bwd: Callable) -> Callable:
        """Set the backward rule; usable as a decorator."""
        self.bwd = bwd
        self.staged.clear()
        return bwd

    def def_jvp(self, rule: Callable) -> Callable:
        """Set a forward-mode rule `rule(primals, tangents)`; usable as a decorator."""
        self.rule = rule
        self.staged.clear()
        return rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.fwd is None or self.bwd is None:
            raise errors.NotDifferentiableError(
                f"{self.name}: no rules were given by defvjp\n  at {where().describe()}"
            )
        args = self.positional(args, kwargs)
        if ctx.trace is None:
            return self.fun(*as_taken(args))
        return self.call(custom_vjp_call_p, args)

    def stage_rules(
        self, call: Any, kinds: list[Aval], weak: list[bool], jaxpr: Jaxpr, learned: Any,
        out_weak: list[bool],
    ) -> list[tuple[Jaxpr, list]]:  # fmt: skip
        """The rules' programs with what they captured; TreeError or ShapeError where they do not
        fit the function's program."""
        count = len(jaxpr.outs)
        kept: list[Any] = []

        def fwd(*xs: Any) -> list[Any]:
            outs, saved, backward = call.fwd(*xs)
            found = [typeof(o) for o in outs]
            if call.learned != learned or found != jaxpr.out_avals:
                raise errors.TreeError(
                    f"the fwd rule of {self.name} returned {found} of structure {call.learned}, "
                    f"the function returns {jaxpr.out_avals} of structure {learned}"
                    f"\n  at {where().describe()}{_rule_at(self.fwd)}"
                )
            kept[:] = [r.weak for r in saved], backward
            return [*outs, *saved]

        forward, captured = stage(fwd, kinds, name=self.name, weak=weak)
        saved, (saved_weak, backward) = forward.out_avals[count:], kept
        n = len(saved)
        staged = [(forward, captured), stage(
            lambda *xs: backward(xs[:n], xs[n:]), [*saved, *jaxpr.out_avals], name=self.name,
            weak=[*saved_weak, *out_weak],
        )]  # fmt: skip
        if call.forward:
            staged.append(self._staged_jvp(call, kinds, weak, jaxpr, learned))
        return staged

    def cotangents(self, back: Any, static: Sequence[int], in_tree: Any, kinds: tuple) -> list[Any]:
        """One cotangent per differentiable leaf, checked against the arguments."""
        skeleton = tree.unflatten(in_tree, kinds)
        if not isinstance(back, (tuple, list)) or len(back) != len(skeleton):
            raise errors.TreeError(
                f"the bwd rule of {self.name} must return a tuple of {len(skeleton)} cotangents, "
                f"got {back!r:.80}"
                f"\n  at {where().describe()}{_rule_at(self.bwd)}{missing(back)}"
            )
        positions = [i for i in range(len(static) + len(skeleton)) if i not in static]
        result = []
        for i, ct, argument in zip(positions, back, skeleton):
            try:
                given = tree.leaves_or_none(ct, tree.structure(argument))
            except errors.TreeError:
                raise errors.TreeError(
                    f"the bwd rule of {self.name} returned a cotangent of another structure for "
                    f"argument {self.argument(i)}: {tree.first_difference(argument, ct)}"
                    f"\n  at {where().describe()}{_rule_at(self.bwd)}"
                ) from None
            expected = tree.leaves(argument)
            for g, kind, path in zip(given, expected, tree.paths(argument)):
                if not dtypes.is_inexact(kind.dtype):
                    continue
                if type(g) is SymbolicZero:
                    g = None
                if g is not None and not is_value(g):
                    raise TypeError(
                        f"the bwd rule of {self.name} returned {g!r:.60} of type "
                        f"{type(g).__name__} for argument {self.argument(i)}{path and ' at '}{path}"
                        f"\n  at {where().describe()}{_rule_at(self.bwd)}"
                    )
                g = instantiate(g, kind) if g is None else as_array(g)
                if typeof(g) is not kind:
                    raise errors.ShapeError(
                        f"the bwd rule of {self.name} returned {typeof(g)} for argument "
                        f"{self.argument(i)}{path and ' at '}{path}, which is {kind}\n"
                        f"  at {where().describe()}{_rule_at(self.bwd)}\n"
                        "  a cotangent has the shape and dtype of its argument, or is None for zero"
                    )
                result.append(g)
        return result


def custom_gradient(fun: Callable) -> custom_vjp:
    """A function from one that returns (output, vjp): JAX's `custom_gradient`."""

    def primal(*args: Any) -> Any:
        return fun(*args)[0]

    functools.update_wrapper(primal, fun)
    wrapped = custom_vjp(primal)

    def fwd(*args: Any) -> Any:
        return fun(*args)[0], args

    def bwd(args: Any, ct: Any) -> tuple:
        back = fun(*args)[1](ct)
        return back if isinstance(back, tuple) else (back,)

    wrapped.defvjp(fwd, bwd)
    return wrapped
