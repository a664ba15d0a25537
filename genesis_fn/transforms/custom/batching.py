"""custom_vmap and sequential_vmap: functions with a batching rule of the user's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

from genesis_fn.core import errors, tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import bind, ctx, typeof
from genesis_fn.primitives.factories import filled, instantiate, move_batch
from genesis_fn.transforms.autodiff.linearize import jvp_flat, jvp_jaxpr
from genesis_fn.transforms.control_flow.scanning import map_sequentially
from genesis_fn.transforms.custom.custom_call import CustomCall, custom_call_p
from genesis_fn.transforms.custom.derivative_rules import (
    CustomFunction,
    F,
    P,
    R,
    by_position,
    signature_of,
)
from genesis_fn.transforms.keys.key_uses import user_call
from genesis_fn.transforms.sharding.varying import matched
from genesis_fn.transforms.staging.api_util import FlatFunction, flatten_arrays, missing
from genesis_fn.transforms.staging.call import jit_p
from genesis_fn.transforms.staging.stage_trace import stage


class _Vmapped(CustomCall):
    """A custom call with a batching rule. The rule is flat, and does not take the `consts` captured
    values."""

    __slots__ = ("name", "jaxpr", "consts", "rule")

    forward = True

    def __init__(self, jaxpr: Jaxpr, consts: int, rule: Callable[..., Any]) -> None:
        self.name, self.jaxpr, self.consts, self.rule = jaxpr.name, jaxpr, consts, rule

    def changed(self, jaxpr: Jaxpr, rule: Callable[..., Any]) -> _Vmapped:
        """Return the call with another program and rule."""
        return _Vmapped(jaxpr, self.consts, rule)

    def batch(
        self, size: int, batched: Sequence[bool], xs: Sequence[Any]
    ) -> tuple[list[Any], list[bool]]:
        if any(batched[: self.consts]):
            raise errors.GenesisError(
                f"the custom_vmap function {self.name} closes over a value that is being batched; "
                "pass it as an argument"
            )
        return self.rule(size, batched[self.consts :], xs[self.consts :])

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        perturbed = tuple([t is not None for t in tangents])
        program, nonzero_outs = jvp_jaxpr(self.jaxpr, perturbed, (False,) * len(self.jaxpr.outs))
        operands = [*primals, *(t for t in tangents if t is not None)]
        if any(perturbed[: self.consts]):  # the rule cannot see what the function closes over
            outs = bind(jit_p, *operands, jaxpr=program)
        else:
            rule = functools.partial(
                _forward_rule, self.rule, perturbed[self.consts :], nonzero_outs
            )
            call = _Vmapped(program, self.consts, rule)
            outs = bind(custom_call_p, *operands, call=call, jaxpr=program)
        return outs[: len(nonzero_outs)], filled(nonzero_outs, outs[len(nonzero_outs) :])


def _flat_rule(
    f: Callable[..., Any],
    in_tree: Any,
    out_tree: Any,
    name: str,
    size: int,
    batched: Sequence[bool],
    xs: Sequence[Any],
) -> tuple[list[Any], list[bool]]:
    """Apply the user's batching rule to flat arrays: (outputs, which of them are batched)."""
    result = f(size, list(tree.unflatten(in_tree, batched)), *tree.unflatten(in_tree, xs))
    if not (isinstance(result, tuple) and len(result) == 2):
        raise errors.TreeError(
            f"the vmap rule of {name} must return (output, which outputs are batched)"
            f"{missing(result)}"
        )
    outs, structure = tree.flatten(result[0])
    if structure != out_tree:
        raise errors.TreeError(
            f"the vmap rule of {name} returned structure {structure}, the function returns "
            f"{out_tree}"
        )
    return outs, tree.broadcast_prefix(result[1], result[0])


def _forward_rule(
    rule: Callable[..., Any],
    perturbed: Sequence[bool],
    nonzero_outs: Sequence[bool],
    size: int,
    batched: Sequence[bool],
    xs: Sequence[Any],
) -> tuple[list[Any], list[bool]]:
    """The batching rule of a function's jvp: the jvp of its batching rule.

    `perturbed` says which arguments have a tangent, `nonzero_outs` which outputs.
    """
    count = len(perturbed)
    ts, ts_batched = filled(perturbed, xs[count:]), filled(perturbed, batched[count:])
    either = [b or bool(t) for b, t in zip(batched, ts_batched)]

    def whole(xs: Sequence[Any], batched: Sequence[bool | None]) -> list[Any]:
        return [
            move_batch(x, None, 0, size) if e and b is False else x
            for x, b, e in zip(xs, batched, either)
        ]

    flags: list[bool] = []

    def outputs(*args: Any) -> list[Any]:
        outs, flags[:] = rule(size, either, args)
        return [as_array(o) for o in outs]

    outs, ts = jvp_flat(outputs, whole(xs, batched), whole(ts, ts_batched))
    dense = [instantiate(t, typeof(o)) for t, o, f in zip(ts, outs, nonzero_outs) if f]
    return [*outs, *dense], [*flags, *(b for b, f in zip(flags, nonzero_outs) if f)]


class custom_vmap(CustomFunction[P, R]):
    """A function with a batching rule of the user's, given by `def_vmap`.

        rule(axis_size, in_batched, *args) -> (output, out_batched)

    The rule gets the arguments with their batch as leading axis where `in_batched`, a list of a
    pytree of bools for each argument, says so. `out_batched` is a pytree of bools, or one for all.
    Derivatives of a batched call are those of the rule. (A reverse-mode derivative that is batched
    is that of the function; JAX refuses it.)

    Args:
        fun: function of pytrees of arrays, without keyword-only arguments. The rule gets all of
            them by position.

    >>> from genesis_fn.custom_batching import custom_vmap
    >>> @custom_vmap
    ... def double(x):
    ...     return 2 * x
    >>> @double.def_vmap
    ... def rule(axis_size, in_batched, xs):
    ...     return 2 * xs, in_batched[0]
    >>> gf.vmap(double)(jnp.arange(3))
    Array([0, 2, 4], dtype=int32)
    """

    rules = ("rule",)
    rule: Callable[..., Any] | None = None

    def def_vmap(self, rule: F) -> F:
        """Set the batching rule; usable as a decorator."""
        self.rule = rule
        return rule

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs:
            what = f"{self.name} has a custom batching rule and"
            given = by_position(signature_of(self.fun), args, kwargs, what)
            return self._called(*given)
        return self._called(*args)

    def _called(self, *args: Any) -> R:
        if self.rule is None:
            raise errors.MissingRuleError(
                f"{self.name}: no batching rule was given by def_vmap\n  at {where().describe()}"
            )
        leaves, in_tree, weak = flatten_arrays(args, f"an argument of {self.name}: ")
        if ctx.match is not None:
            leaves = matched(leaves)
        flat = FlatFunction(self.fun, in_tree)
        jaxpr, captured = stage(flat, [x.aval for x in leaves], name=self.name, weak=weak)
        rule = functools.partial(_flat_rule, self.rule, in_tree, flat.out_tree, self.name)
        call = _Vmapped(jaxpr, len(captured), rule)
        return flat.called(user_call(custom_call_p, *captured, *leaves, call=call, jaxpr=jaxpr))


def sequential_vmap(fun: Callable[P, R]) -> custom_vmap[P, R]:
    """Make `vmap` of a function run one example after the other, as a loop.

    Args:
        fun: function of pytrees of arrays, with positional arguments only.

    Returns:
        `fun` with that batching rule.

    >>> gf.vmap(sequential_vmap(jnp.sum))(jnp.ones((2, 3)))
    Array([3., 3.], dtype=float32)
    """
    wrapped, call = custom_vmap(fun), cast(Callable[..., Any], fun)

    @wrapped.def_vmap
    def rule(size: int, in_batched: list[Any], *args: Any) -> tuple[Any, ...]:
        leaves, treedef = tree.flatten(args)
        dims = [0 if b else None for b in tree.leaves(in_batched)]
        return map_sequentially(
            lambda *xs: call(*tree.unflatten(treedef, xs)), size, leaves, dims
        ), True

    return wrapped
