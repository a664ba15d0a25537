"""custom_vmap: a function with a batching rule of the user's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import errors, tree
from genesis_fn.core.aval import Aval
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import Primitive
from genesis_fn.transforms.batch import at_front
from genesis_fn.transforms.call import jit_p, jvp_call, linearize_call
from genesis_fn.transforms.flat import FlatFunction, flatten_arrays, name_of
from genesis_fn.transforms.key_uses import user_call
from genesis_fn.transforms.stage import stage


class _Rule:
    """A batching rule with the structures that it works on."""

    __slots__ = ("f", "in_tree", "out_tree", "consts")

    def __init__(self, f: Callable, in_tree: Any, out_tree: Any, consts: int) -> None:
        self.f, self.in_tree, self.out_tree, self.consts = f, in_tree, out_tree, consts


def _shape(*avals: Aval, jaxpr: Jaxpr, rule: _Rule) -> list[Aval]:
    return jaxpr.out_avals


def _batch(
    size: int, xs: Sequence[Any], dims: Sequence[Any], *, jaxpr: Jaxpr, rule: _Rule,
    axis_name: Any = None,
) -> Any:  # fmt: skip
    if any(d is not None for d in dims[: rule.consts]):
        raise errors.GenesisError(
            f"the custom_vmap function {jaxpr.name} closes over a value that is being batched; "
            "pass it as an argument"
        )
    moved = at_front(size, xs[rule.consts :], dims[rule.consts :])
    args = tree.unflatten(rule.in_tree, moved)
    in_batched = tree.unflatten(rule.in_tree, [d is not None for d in dims[rule.consts :]])
    result = rule.f(size, list(in_batched), *args)
    if not (isinstance(result, tuple) and len(result) == 2):
        raise errors.TreeError(
            f"the vmap rule of {jaxpr.name} must return (output, which outputs are batched)"
        )
    outs, found = tree.flatten(result[0])
    if found != rule.out_tree:
        raise errors.TreeError(
            f"the vmap rule of {jaxpr.name} returned structure {found}, the function returns "
            f"{rule.out_tree}"
        )
    flags = tree.broadcast_prefix(result[1], result[0])
    return outs, [0 if b else None for b in flags]


custom_vmap_p = Primitive(
    "custom_vmap", _shape, multi=True, batch=_batch,
    linearize=lambda nonzero, *xs, jaxpr, rule: linearize_call(nonzero, xs, jaxpr, jit_p),
    jvp=lambda primals, tangents, *, jaxpr, rule: jvp_call(primals, tangents, jaxpr, jit_p),
)  # fmt: skip


class custom_vmap:
    """A function whose batching is given by `def_vmap(rule)`.

    `rule(axis_size, in_batched, *args)` gets the arguments with their batch in front (where
    `in_batched` says so) and returns (output, which outputs are batched). Derivatives are those of
    the function, batched as usual.
    """

    def __init__(self, fun: Callable) -> None:
        functools.update_wrapper(self, fun)
        self.fun, self.rule = fun, None

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
        rule = _Rule(self.rule, in_tree, flat.out_tree, len(captured))
        return flat.called(user_call(custom_vmap_p, *captured, *leaves, jaxpr=jaxpr, rule=rule))


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
