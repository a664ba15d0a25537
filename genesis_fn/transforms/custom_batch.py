"""custom_vmap: a function with a batching rule of the user's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import errors, tree
from genesis_fn.core.aval import Aval
from genesis_fn.core.convert import as_array
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import Primitive, bind, typeof
from genesis_fn.primitives.define import instantiate, move_batch
from genesis_fn.transforms.batch import at_front
from genesis_fn.transforms.call import jit_p, jvp_call, linearize_call
from genesis_fn.transforms.copies import Copied
from genesis_fn.transforms.flat import FlatFunction, flatten_arrays, missing, name_of
from genesis_fn.transforms.key_uses import user_call
from genesis_fn.transforms.linearize import jvp_flat, jvp_jaxpr
from genesis_fn.transforms.stage import stage


class _Rule:
    """A batching rule of the user's with the structures that it works on."""

    __slots__ = ("f", "in_tree", "out_tree", "consts", "name")

    def __init__(self, f: Callable, in_tree: Any, out_tree: Any, consts: int, name: str) -> None:
        self.f, self.in_tree, self.out_tree = f, in_tree, out_tree
        self.consts, self.name = consts, name

    def changed(self, change: Callable[[Callable], Callable]) -> _Rule:
        """The rule with another function."""
        return _Rule(change(self.f), self.in_tree, self.out_tree, self.consts, self.name)

    def __call__(
        self, size: int, batched: Sequence[bool], xs: Sequence[Any]
    ) -> tuple[list[Any], list[bool]]:
        """(outputs, which of them are batched), flat."""
        in_batched = tree.unflatten(self.in_tree, batched)
        result = self.f(size, list(in_batched), *tree.unflatten(self.in_tree, xs))
        if not (isinstance(result, tuple) and len(result) == 2):
            raise errors.TreeError(
                f"the vmap rule of {self.name} must return (output, which outputs are batched)"
                f"{missing(result)}"
            )
        outs, found = tree.flatten(result[0])
        if found != self.out_tree:
            raise errors.TreeError(
                f"the vmap rule of {self.name} returned structure {found}, the function returns "
                f"{self.out_tree}"
            )
        return outs, tree.broadcast_prefix(result[1], result[0])


class _Forward:
    """The batching rule of a function's jvp: the jvp of its batching rule. `moved` says which
    arguments have a tangent, `found` which outputs."""

    __slots__ = ("rule", "moved", "found", "consts")

    def __init__(self, rule: Any, moved: tuple[bool, ...], found: tuple[bool, ...]) -> None:
        self.rule, self.moved, self.found, self.consts = rule, moved, found, rule.consts

    def changed(self, change: Callable[[Callable], Callable]) -> _Forward:
        return _Forward(self.rule.changed(change), self.moved, self.found)

    def __call__(
        self, size: int, batched: Sequence[bool], xs: Sequence[Any]
    ) -> tuple[list[Any], list[bool]]:
        count, primals, tangents, either = len(self.moved), [], [], []
        given = iter(zip(xs[count:], batched[count:]))
        for x, b, m in zip(xs, batched, self.moved):
            t, t_batched = next(given) if m else (None, b)
            either.append(b or t_batched)
            primals.append(x if b == either[-1] else move_batch(x, None, 0, size))
            repeated = m and t_batched != either[-1]
            tangents.append(move_batch(t, None, 0, size) if repeated else t)
        flags: list[bool] = []

        def outputs(*args: Any) -> list[Any]:
            outs, flags[:] = self.rule(size, either, args)
            return [as_array(o) for o in outs]

        outs, ts = jvp_flat(outputs, primals, tangents)
        dense = [instantiate(t, typeof(o)) for t, o, f in zip(ts, outs, self.found) if f]
        return [*outs, *dense], [*flags, *(b for b, f in zip(flags, self.found) if f)]


def _shape(*avals: Aval, jaxpr: Jaxpr, rule: Any) -> list[Aval]:
    return jaxpr.out_avals


def _batch(
    size: int, xs: Sequence[Any], dims: Sequence[Any], *, jaxpr: Jaxpr, rule: Any,
    axis_name: Any = None,
) -> Any:  # fmt: skip
    if any(d is not None for d in dims[: rule.consts]):
        raise errors.GenesisError(
            f"the custom_vmap function {jaxpr.name} closes over a value that is being batched; "
            "pass it as an argument"
        )
    moved = at_front(size, xs[rule.consts :], dims[rule.consts :])
    outs, flags = rule(size, [d is not None for d in dims[rule.consts :]], moved)
    return outs, [0 if b else None for b in flags]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Jaxpr, rule: Any) -> Any:
    moved = tuple([t is not None for t in tangents])
    if any(moved[: rule.consts]):  # the rule knows nothing of what the function closes over
        return jvp_call(primals, tangents, jaxpr, jit_p)
    program, found = jvp_jaxpr(jaxpr, moved, (False,) * len(jaxpr.outs))
    forward = _Forward(rule, moved[rule.consts :], found)
    given = [t for t in tangents if t is not None]
    outs = bind(custom_vmap_p, *primals, *given, jaxpr=program, rule=forward)
    rest = iter(outs[len(found) :])
    return outs[: len(found)], [next(rest) if f else None for f in found]


custom_vmap_p = Primitive(
    "custom_vmap", _shape, multi=True, program="jaxpr", batch=_batch,
    linearize=lambda nonzero, *xs, jaxpr, rule: linearize_call(nonzero, xs, jaxpr, jit_p),
    jvp=_jvp,
)  # fmt: skip


class custom_vmap(Copied):
    """A function whose batching is given by `def_vmap(rule)`.

    `rule(axis_size, in_batched, *args)` gets the arguments with their batch in front (where
    `in_batched` says so) and returns (output, which outputs are batched). A derivative of the
    batched function is that of the rule, and so is a batched `jvp`; a batched reverse-mode
    derivative, which JAX refuses, is that of the function.
    """

    def __init__(self, fun: Callable) -> None:
        functools.update_wrapper(self, fun)
        self.fun, self.rule = fun, None

    def _parts(self) -> tuple[Callable, tuple]:
        return _remade, (self.fun, self.rule)

    def def_vmap(self, rule: Callable) -> Callable:
        """Set the batching rule; usable as a decorator."""
        self.rule = rule
        return rule

    def __call__(self, *args: Any) -> Any:
        if self.rule is None:
            raise ValueError(f"{name_of(self.fun)}: no batching rule was given by def_vmap")
        leaves, in_tree, weak = flatten_arrays(args, f"an argument of {name_of(self.fun)}: ")
        flat = FlatFunction(self.fun, in_tree)
        jaxpr, captured = stage(flat, [x.aval for x in leaves], name=name_of(self.fun), weak=weak)
        rule = _Rule(self.rule, in_tree, flat.out_tree, len(captured), jaxpr.name)
        return flat.called(user_call(custom_vmap_p, *captured, *leaves, jaxpr=jaxpr, rule=rule))


def _remade(fun: Callable, rule: Callable | None) -> custom_vmap:
    made = custom_vmap(fun)
    made.rule = rule
    return made


def sequential_vmap(fun: Callable) -> custom_vmap:
    """`fun`, which vmap runs one example after the other."""
    from genesis_fn.transforms.loops import map as map_

    wrapped = custom_vmap(fun)

    @wrapped.def_vmap
    def rule(size: int, in_batched: list, *args: Any) -> tuple:
        leaves, treedef = tree.flatten(args)
        flags = tree.leaves(tuple(in_batched))
        rows = [x for x, b in zip(leaves, flags) if b]

        def one(row: list) -> Any:
            given = iter(row)
            return fun(*tree.unflatten(
                treedef, [next(given) if b else x for x, b in zip(leaves, flags)]
            ))  # fmt: skip

        return map_(one, rows), True

    return wrapped


__all__ = ["custom_vmap", "custom_vmap_p", "sequential_vmap"]
