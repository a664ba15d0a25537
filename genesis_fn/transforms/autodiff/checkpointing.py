"""checkpoint: save little in the forward pass, recompute in the backward pass.

The forward pass runs the program and saves its inputs and what the policy selects. The backward
pass linearizes the program again, with the saved values substituted, so that what leads to them
alone is not computed a second time. Forward mode differentiates the program as it is.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend.lowering import same
from genesis_fn.core.configuration import config
from genesis_fn.core.convert import as_array, is_value
from genesis_fn.core.diagnostics.traceback import boundary
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, dead_code, e_jaxprs, memoized
from genesis_fn.core.primitive import LinearOperand, Primitive, bind, ctx, running, typeof
from genesis_fn.primitives.conv import conv_p
from genesis_fn.primitives.dot_general import dot_general_p
from genesis_fn.primitives.factories import instantiate, linear_rule
from genesis_fn.primitives.ragged_dot import ragged_contraction_p, ragged_dot_p
from genesis_fn.primitives.shape import optimization_barrier
from genesis_fn.transforms.autodiff.linearize import LinearizeTrace, LinearizeTracer
from genesis_fn.transforms.autodiff.transpose import transpose_flat
from genesis_fn.transforms.custom.custom_call import (
    CustomCall,
    custom_call_p,
    linear_call,
    push_program,
)
from genesis_fn.transforms.keys.key_uses import user_call
from genesis_fn.transforms.staging.api_util import (
    FlatFunction,
    Static,
    as_taken,
    flatten_arrays,
    labels_of,
    name_of,
)
from genesis_fn.transforms.staging.call import batch_call, jit_p, jvp_call
from genesis_fn.transforms.staging.stage_trace import StageTrace, inlined, stage, stage_closed

P = ParamSpec("P")
R = TypeVar("R")
Tree = TypeVar("Tree")


@memoized
def _forward(jaxpr: Jaxpr, policy: Callable[..., Any] | None) -> tuple[Jaxpr, tuple[Var, ...]]:
    """(program that also returns the values that the policy saves, their variables)."""
    program = _ruled(jaxpr)
    if policy is None:
        return program, ()
    saved = []
    for e in jaxpr.eqns:
        avals = [i.aval if type(i) is Var else i for i in e.ins]
        if policy(e.prim, *avals, **e.params):
            saved += [o for o in e.outs if dtypes.is_inexact(o.aval.dtype)]
    outs = [*jaxpr.outs, *saved]
    return Jaxpr(jaxpr.invars, program.eqns, outs, jaxpr.labels, jaxpr.name), tuple(saved)


@memoized
def _ruled(jaxpr: Jaxpr) -> Jaxpr:
    """The program with each `custom_vjp` replaced by its forward rule, as reverse mode runs it. A
    second derivative differentiates the forward rule, not the function."""
    eqns = []
    for e in jaxpr.eqns:
        if e.prim is custom_call_p and e.params["call"].reverse:
            fwd = functools.partial(_primal, e.params["call"])
            with config.computing(e.numerics):
                program = stage_closed(fwd, [i.aval for i in e.ins], e.params["call"].name)
            e = e.replace(prim=jit_p, params={"jaxpr": program})
        elif any(True for _ in e_jaxprs(e)):
            params = {k: _mapped(_ruled, v) for k, v in e.params.items()}
            if any(params[k] is not v for k, v in e.params.items()):
                e = e.replace(params=params)
        eqns.append(e)
    if all(map(operator.is_, eqns, jaxpr.eqns)):
        return jaxpr
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _primal(call: CustomCall, *xs: Any) -> list[Any]:
    """The outputs of a custom function, computed by its forward rule."""
    return call.fwd((False,) * len(xs), xs)[0]


def _mapped(f: Callable[..., Any], value: Any) -> Any:
    """A parameter of an equation with `f` applied to each program in it."""
    if type(value) is Jaxpr:
        return f(value)
    if type(value) is tuple and any(type(v) is Jaxpr for v in value):
        return tuple([_mapped(f, v) for v in value])
    return value


@memoized
def _backward(jaxpr: Jaxpr, saved: tuple[Var, ...], nonzero: tuple[bool, ...]) -> Jaxpr:
    """[inputs, saved values, output cotangents] -> cotangents of the nonzero inputs."""
    count, is_saved = len(jaxpr.invars), set(saved)
    # Effects happened in the forward pass; the recomputation must not repeat them.
    eqns = [e for e in dead_code(_pure(jaxpr.eqns), jaxpr.outs)[0]]

    def f(*args: Any) -> list[Any]:
        # The barrier keeps compilers from merging the recomputation with the first computation,
        # whose intermediate values would stay alive.
        inputs = optimization_barrier(args[:count]) if count else []
        known = dict(zip(saved, args[count : count + len(saved)]))
        cts = args[count + len(saved) :]
        tape = StageTrace(jaxpr.name, tape=True)
        trace = LinearizeTrace(ctx.trace, tape, jaxpr.name)
        env: dict[Var, Any] = {
            v: LinearizeTracer(trace, x, tape.argument(v.aval)) if n else x
            for v, x, n in zip(jaxpr.invars, inputs, nonzero)
        }
        with running(trace):
            for e in eqns:
                ctx.line = e.where
                ins = [env[i] if type(i) is Var else i for i in e.ins]
                with config.computing(e.numerics):
                    outs = bind(e.prim, *ins, **e.params)
                for o, x in zip(e.outs, outs if e.prim.multi else (outs,)):
                    if o in is_saved:  # the saved primal; the recomputed one is dead code then
                        t = trace.split(x)[1]
                        x = known[o] if t is None else LinearizeTracer(trace, known[o], t)
                    env[o] = x
        pairs = [trace.split(env[o]) for o in jaxpr.outs]
        linear, residuals = tape.finish([t for _, t in pairs if t is not None])
        used = [ct for ct, (_, t) in zip(cts, pairs) if t is not None]
        operands = [*residuals, *(LinearOperand(v.aval) for v in linear.invars[len(residuals) :])]
        back = transpose_flat(linear, operands, used)[len(residuals) :]
        wanted = [v.aval for v, n in zip(jaxpr.invars, nonzero) if n]
        return [instantiate(ct, a) for ct, a in zip(back, wanted)]

    avals = [*jaxpr.in_avals, *(v.aval for v in saved), *jaxpr.out_avals]
    before, ctx.backward = ctx.backward, True
    try:
        return stage_closed(f, avals, jaxpr.name)
    finally:
        ctx.backward = before


def _pure(eqns: Sequence[Eqn]) -> list[Eqn]:
    """The equations without those that only have an effect, at any depth."""
    return [
        e.replace(params={k: _mapped(without_effects, v) for k, v in e.params.items()})
        if any(j.effect for j in e_jaxprs(e))
        else e
        for e in eqns
        if not (e.prim.effect and not e.outs)
    ]


@memoized
def without_effects(jaxpr: Jaxpr) -> Jaxpr:
    """The program without equations that only have effects."""
    return Jaxpr(jaxpr.invars, _pure(jaxpr.eqns), jaxpr.outs, jaxpr.labels, jaxpr.name)


def _forward_mode(jaxpr: Jaxpr, saved: tuple[Var, ...], nonzero: tuple[bool, ...]) -> Jaxpr | None:
    """[inputs, saved values, nonzero tangents] -> output tangents; None for a program with a rule
    that has no forward mode, since reverse mode works without."""
    try:
        return push_program(without_effects(jaxpr), tuple([v.aval for v in saved]), nonzero)
    except errors.NotDifferentiableError:
        return None


def _reverse_mode(
    jaxpr: Jaxpr, saved: tuple[Var, ...], nonzero: tuple[bool, ...]
) -> Jaxpr | errors.NotDifferentiableError:
    """The backward program; for a program without one, as of a while loop, the error that says why,
    since forward mode works without."""
    try:
        return _backward(jaxpr, saved, nonzero)
    except errors.NotDifferentiableError as error:
        return error


def _linearize(
    nonzero: Sequence[bool], *xs: Any, jaxpr: Jaxpr, policy: Callable[..., Any] | None
) -> Any:
    jaxpr, mask, count = inlined(jaxpr), tuple(nonzero), len(jaxpr.outs)
    program, saved = _forward(jaxpr, policy)
    # A checkpoint again, so that a derivative of the derivative recomputes too.
    outs = bind(checkpoint_p, *xs, jaxpr=program, policy=policy)
    primals, kept = outs[:count], outs[count:]
    out_avals = tuple([typeof(o) for o in primals])

    def apply(*ts: Any) -> list[Any]:
        return linear_call(
            [*xs, *kept],
            [t for t in ts if t is not None],
            forward=_forward_mode(jaxpr, saved, mask),
            backward=_reverse_mode(jaxpr, saved, mask),
            out_avals=out_avals,
            name=jaxpr.name,
        )

    return primals, apply


def _batch(
    size: int,
    xs: Sequence[Any],
    dims: Sequence[Any],
    *,
    jaxpr: Jaxpr,
    policy: Any,
    axis_name: Any = None,
) -> Any:
    return batch_call(size, xs, dims, jaxpr, axis_name, checkpoint_p, policy=policy)


def _shape(*avals: Aval, jaxpr: Jaxpr, policy: Any) -> list[Aval]:
    return jaxpr.out_avals


checkpoint_p = Primitive(
    "checkpoint",
    _shape,
    multi=True,
    program="jaxpr",
    linearize=_linearize,
    batch=_batch,
    jvp=lambda primals, tangents, *, jaxpr, policy: jvp_call(primals, tangents, jaxpr),
)
checkpoint_p.takes = lambda *, jaxpr, **_: jaxpr.in_avals


@overload
def checkpoint(
    fun: Callable[P, R],
    *,
    policy: Callable[..., bool] | None = None,
    prevent_cse: bool = True,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Callable[P, R]: ...
@overload
def checkpoint(
    fun: None = None,
    *,
    policy: Callable[..., bool] | None = None,
    prevent_cse: bool = True,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def checkpoint(
    fun: Callable[..., Any] | None = None,
    *,
    policy: Callable[..., bool] | None = None,
    prevent_cse: bool = True,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Callable[..., Any]:
    """Recompute the intermediate values of a function in the backward pass instead of saving them.

    The gradient is the same; memory goes down from all intermediate values to the arguments of
    `fun` and what `policy` saves, for about one more forward pass of time. `remat` is another name
    of it.

    Source: Chen et al., "Training deep nets with sublinear memory cost", 2016.

    Args:
        fun: function of pytrees, a layer say; None to get a decorator with these options.
        policy: says which results to save all the same, by the operation that computes them:
            `policy(primitive, *avals, **params)` -> bool; see `checkpoint_policies`. None saves
            none.
        prevent_cse: for JAX's callers; recomputation is always kept from being merged with the
            first computation.
        static_argnums: positions of arguments that stay Python values; negative ones count from
            the end. Leaves that are no arrays, at the top of an argument, do so anyway.
        static_argnames: names of further ones, where a call passes them by name.

    Returns:
        A function with the signature of `fun`, or a decorator that makes one.

    >>> layer = gf.checkpoint(lambda w, x: jnp.tanh(w * x))
    >>> gf.grad(layer)(0.0, 2.0)
    Array(2., dtype=float32)
    >>> saved = gf.checkpoint_policies.dots_saveable
    >>> block = gf.checkpoint(lambda w, x: jnp.sin(x @ w), policy=saved)
    >>> block(jnp.zeros((2, 2)), jnp.ones((1, 2)))
    Array([[0., 0.]], dtype=float32)
    """
    if fun is None:
        return functools.partial(
            checkpoint,
            policy=policy,
            prevent_cse=prevent_cse,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
        )
    names = {static_argnames} if isinstance(static_argnames, str) else {*static_argnames}
    positions = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)

    @boundary(fun)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if ctx.trace is None:  # not differentiated: nothing would be saved
            return fun(*as_taken(args), **as_taken(kwargs))
        static = {p + len(args) if p < 0 else p for p in positions}
        # Leaves that are no arrays may stay Python values: a call is traced anew each time, so they
        # need not be keys of anything.
        args = tuple(
            [
                Static(a) if i in static or (not is_value(a) and tree.structure(a).is_leaf()) else a
                for i, a in enumerate(args)
            ]
        )
        kwargs = {k: Static(v) if k in names else v for k, v in kwargs.items()}
        labels = functools.partial(labels_of, fun, args, kwargs)
        leaves, in_tree, weak = flatten_arrays(
            (args, kwargs), f"an argument of {name_of(fun)}: ", labels
        )
        flat = FlatFunction(lambda a, k: fun(*a, **k), in_tree)
        jaxpr, captured = stage(
            flat, [typeof(x) for x in leaves], name=name_of(fun), weak=weak, labels=labels()
        )
        # Captured values are operands, so that they get their gradients.
        outs = user_call(checkpoint_p, *captured, *leaves, jaxpr=jaxpr, policy=policy)
        return flat.called(outs)

    return checkpointed


remat = checkpoint

name_p = Primitive("name", lambda x, *, name: x, lowering=same())
name_p.batch = lambda size, xs, dims, *, name: (bind(name_p, xs[0], name=name), dims[0])
name_p.linearize = linear_rule(name_p)
name_p.transpose = lambda ct, x, *, name: [ct]


def checkpoint_name(x: Tree, name: str) -> Tree:
    """Give a value a name, by which checkpoint policies may save it.

    Args:
        x: pytree of arrays.
        name: the name, for `checkpoint_policies.save_only_these_names` and its relatives.

    Returns:
        `x` with the same values.

    >>> keep = gf.checkpoint_policies.save_only_these_names("scores")
    >>> f = gf.checkpoint(lambda x: jnp.sin(gf.checkpoint_name(x * x, "scores")), policy=keep)
    >>> gf.grad(f)(0.0)
    Array(0., dtype=float32)
    """
    return tree.map(lambda v: bind(name_p, as_array(v), name=name), x)


class checkpoint_policies:
    """What `checkpoint` saves besides the arguments: predicates on (primitive, operand avals,
    parameters) of an operation.
    """

    @staticmethod
    def everything_saveable(prim: Primitive, *_: object, **__: object) -> bool:
        """Save all: no recomputation."""
        return True

    @staticmethod
    def nothing_saveable(prim: Primitive, *_: object, **__: object) -> bool:
        """Save inputs only (the default)."""
        return False

    @staticmethod
    def dots_saveable(prim: Primitive, *_: object, **__: object) -> bool:
        """Save the results of matrix products and convolutions."""
        return prim in (dot_general_p, ragged_dot_p, ragged_contraction_p, conv_p)

    checkpoint_dots = dots_saveable

    @staticmethod
    def dots_with_no_batch_dims_saveable(prim: Primitive, *_: object, **params: Any) -> bool:
        """Save the results of matrix products without batch dimensions: weights times
        activations."""
        if prim is ragged_dot_p:
            return True
        return prim is dot_general_p and not params["dimension_numbers"][1][0]

    checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable

    @staticmethod
    def save_only_these_names(*names: str) -> Callable[..., bool]:
        """Save the values marked by `checkpoint_name` with one of `names`."""
        return _NamePolicy(frozenset(names), True)

    @staticmethod
    def save_any_names_but_these(*names: str) -> Callable[..., bool]:
        """Save the values marked by `checkpoint_name` with any other name."""
        return _NamePolicy(frozenset(names), False)

    @staticmethod
    def save_anything_except_these_names(*names: str) -> Callable[..., bool]:
        """Save everything except the values with these names."""
        return _ExceptPolicy(frozenset(names))

    @staticmethod
    def save_from_both_policies(
        first: Callable[..., bool], second: Callable[..., bool]
    ) -> Callable[..., bool]:
        """Save what either policy saves."""
        return _EitherPolicy(first, second)


class _Policy(tuple[Any, ...]):
    """A policy that compares by its arguments: equal policies share programs, which are memoized by
    policy."""

    def __new__(cls, *parts: Any):
        return super().__new__(cls, parts)


class _NamePolicy(_Policy):
    """Saves the named values that are (or are not) among the names."""

    def __call__(self, prim: Primitive, *_: Any, **params: Any) -> bool:
        return prim is name_p and (params["name"] in self[0]) == self[1]


class _ExceptPolicy(_Policy):
    """Saves everything but the named values among the names."""

    def __call__(self, prim: Primitive, *_: Any, **params: Any) -> bool:
        return prim is not name_p or params["name"] not in self[0]


class _EitherPolicy(_Policy):
    """Saves what any of its policies saves."""

    def __call__(self, prim: Primitive, *avals: Any, **params: Any) -> bool:
        return any(p(prim, *avals, **params) for p in self)
