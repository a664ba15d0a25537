"""Flattening: users' functions take pytrees, the core transforms functions of flat lists."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.array import ArrayImpl, offers_array
from genesis_fn.core.convert import as_array, is_value
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import Tracer, default_device_of, with_weak_types
from genesis_fn.core.types.annotations import PyTree


def name_of(f: Callable[..., Any]) -> str:
    """The name of a function in messages."""
    return getattr(f, "__name__", None) or type(f).__name__


def labels_of(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> list[Any]:
    """The name of each leaf of a call's arguments in messages, `params['w']`: by the parameter
    names of the function if it has code."""
    inner = inspect.unwrap(fun)
    code = getattr(inner, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    names = names[isinstance(inner, types.MethodType) :]
    labels = []
    for i, a in enumerate(args):
        name = names[i] if i < len(names) else str(i)
        labels += [f"{name}{p}" for p in tree.paths(a)]
    kwargs = kwargs or {}
    return labels + [f"{k}{p}" for k in sorted(kwargs) for p in tree.paths(kwargs[k])]


def flatten_arrays(
    value: PyTree, what: str, labels: Callable[[], Sequence[str]] | None = None
) -> tuple[list[Any], tree.PyTreeDef, list[bool]]:
    """(leaves as arrays, structure, which of them are weak). Raises TypeError by path, or by what
    `labels()` calls the leaf."""
    leaves, treedef = tree.flatten(value)
    if not all(type(x) is ArrayImpl or isinstance(x, Tracer) for x in leaves):
        for i, x in enumerate(leaves):
            if not is_value(x):
                name = (labels or functools.partial(tree.paths, value))()[i]
                raise TypeError(
                    f"{what}{name} is {x!r:.60} of type {type(x).__name__}, not an array or a "
                    f"number\n  at {where().describe()}\n"
                    "  leave it out, for example by functools.partial; jit takes others, and vmap "
                    "does with in_axes=None"
                )
        with default_device_of(leaves):
            leaves = [as_array(x) for x in leaves]
    return leaves, treedef, [x.weak for x in leaves]


def missing(out: object) -> str:
    """The line of a message for a function that returned None by mistake, else ""."""
    return "\n  it returned None: is a return missing?" if out is None else ""


def flatten_output(out: PyTree, name: str) -> tuple[list[Any], tree.PyTreeDef]:
    """(leaves as arrays, structure) of what the function `name` returned. Raises TreeError by
    path."""
    leaves, treedef = tree.flatten(out)
    if all([type(x) is ArrayImpl or isinstance(x, Tracer) for x in leaves]):
        return leaves, treedef
    if any([_is_float0(x) for x in leaves]):
        leaves, treedef = tree.flatten(tree.map(_without_float0, out))
    for i, x in enumerate(leaves):
        if not is_value(x):
            raise errors.TreeError(
                f"{name} returned {x!r:.80} of type {type(x).__name__} at "
                f"{tree.paths(out)[i] or 'the top'}\n  at {where().describe()}\n"
                "  transformed functions return pytrees of arrays and numbers"
            )
    return [as_array(x) for x in leaves], treedef


class Static:
    """Wraps an argument that is not traced: a pytree node without leaves, whose value is part of
    the structure; unflattening unwraps it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


# Unflattening gives the value itself, not a Static.
tree.register_node(Static, lambda x: ((), x.value), lambda value, _: value)


class _NoTangent:
    """Stands for a NumPy array of dtype float0, which says that a value has no derivative: a pytree
    node without leaves."""

    __slots__ = ("shape",)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


def _no_tangents(shape: Any, _: Any) -> Any:
    return np.zeros(shape, dtypes.FLOAT0)


tree.register_node(_NoTangent, lambda x: ((), x.shape), _no_tangents)


def _is_float0(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == dtypes.FLOAT0


def _without_float0(x: Any) -> Any:
    return _NoTangent(x.shape) if _is_float0(x) else x


def as_taken(value: PyTree) -> PyTree:
    """The pytree with arrays of other libraries (torch tensors, say) converted to this library's,
    for a function that is called without tracing."""
    leaves, treedef = tree.flatten(value)
    if not any(offers_array(type(x)) for x in leaves):
        return value
    return tree.unflatten(treedef, [as_array(x) if offers_array(type(x)) else x for x in leaves])


class FlatFunction:
    """`f` as a function of flat leaves that returns flat leaves; `out_tree` is known after a call.

    With `has_aux`, `f` returns (output, aux): the leaves of aux follow the first `out_count`, in
    the structure `aux_tree`. Leaves of aux that are no arrays cannot be traced: `asides` keeps them
    by position. `weak` says which outputs are weakly typed.
    """

    __slots__ = (
        "f",
        "in_tree",
        "has_aux",
        "out_tree",
        "aux_tree",
        "out_count",
        "asides",
        "kwargs",
        "weak",
    )

    def __init__(
        self,
        f: Callable[..., Any],
        in_tree: tree.PyTreeDef,
        *,
        has_aux: bool = False,
        kwargs: Any = None,
    ) -> None:
        self.f, self.in_tree, self.has_aux, self.kwargs = f, in_tree, has_aux, kwargs or {}
        self.asides: list[Any] = []

    def __call__(self, *leaves: Any) -> list[Any]:
        outs = self._outputs(leaves)
        self.weak = [x.weak for x in outs]
        return outs

    def _outputs(self, leaves: Sequence[Any]) -> list[Any]:
        out = self.f(*tree.unflatten(self.in_tree, leaves), **self.kwargs)
        if not self.has_aux:
            return self._main(out)
        if not (isinstance(out, tuple) and len(out) == 2):
            raise errors.TreeError(
                f"{name_of(self.f)} must return (output, aux) when has_aux=True, got {out!r:.80}\n"
                f"  at {where().describe()}{missing(out)}"
            )
        aux, self.aux_tree = tree.flatten(out[1])
        self.asides = [None if is_value(x) else (x,) for x in aux]
        return self._main(out[0]) + [as_array(x) for x in aux if is_value(x)]

    def _main(self, out: Any) -> list[Any]:
        flat, self.out_tree = flatten_output(out, name_of(self.f))
        self.out_count = len(flat)
        return flat

    def output(self, leaves: Sequence[Any]) -> PyTree:
        """The pytree of the main output."""
        return tree.unflatten(self.out_tree, leaves[: self.out_count])

    def called(self, leaves: Sequence[Any]) -> PyTree:
        """The pytree of a call's results, weakly typed where the function's own results are."""
        return self.output(with_weak_types(leaves[: self.out_count], self.weak[: self.out_count]))

    def aux(self, leaves: Sequence[Any]) -> PyTree:
        """The pytree of the auxiliary output, from the leaves after the main one's."""
        rest = iter(leaves[self.out_count :])
        return tree.unflatten(
            self.aux_tree, [next(rest) if aside is None else aside[0] for aside in self.asides]
        )
