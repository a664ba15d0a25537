"""vmap: axes and sizes of the arguments are checked here, `batch.vmap_flat` does the work."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ParamSpec, TypeVar

from genesis_fn.core import errors, tree
from genesis_fn.core.convert import is_value
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.diagnostics.traceback import boundary
from genesis_fn.core.primitive import CallSite, default_device_of, typeof
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.transforms.batching.batch import vmap_flat
from genesis_fn.transforms.staging.api_util import FlatFunction, flatten_arrays, labels_of, name_of

P = ParamSpec("P")
R = TypeVar("R")


def vmap(
    fun: Callable[P, R],
    in_axes: int | Sequence[PyTree] | None = 0,
    out_axes: PyTree = 0,
    axis_name: Hashable = None,
    axis_size: int | None = None,
) -> Callable[P, R]:
    """Turn a function of one example into a function of a batch.

    Each operation runs once for the whole batch, by its batching rule: there is no loop. Calls
    nest, and compose with `grad` and `jit` in any order.

    Args:
        fun: function of one example: of pytrees of arrays.
        in_axes: which axis of each argument is the batch: an int or None (shared by all examples)
            for all positional arguments, or a tuple with an entry for each: an int, None, or a
            pytree of them that is a prefix of the argument. Keyword arguments use axis 0.
        out_axes: where the batch goes in the outputs: an int or a pytree prefix of the output;
            None for an output that is the same for all examples.
        axis_name: name of the batch axis, for collectives such as `psum` inside of `fun`.
        axis_size: size of the batch; needed only where nothing is mapped.

    Returns:
        A function with the parameters of `fun`, of arrays with one axis more.

    Raises:
        ValueError: the mapped axes differ in size or do not exist; when called.
        TreeError: `in_axes` or `out_axes` is no prefix of the values; when called.
        TypeError: `in_axes` is neither an int, None, a tuple nor a list.

    >>> dot = lambda w, x: jnp.sum(w * x)
    >>> gf.vmap(dot, in_axes=(None, 0))(jnp.array([1.0, 2.0]), jnp.ones((3, 2)))
    Array([3., 3., 3.], dtype=float32)
    >>> gf.vmap(gf.grad(dot), in_axes=(None, 0))(jnp.zeros(2), jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    Array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    if isinstance(in_axes, bool) or not isinstance(in_axes, (int, tuple, list, type(None))):
        raise TypeError(
            f"vmap: in_axes must be an int, None, or a tuple per argument, got {in_axes!r}"
        )

    @boundary(fun)
    def mapped(*args: P.args, **kwargs: P.kwargs) -> Any:
        axes = tuple(in_axes) if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
        if len(axes) != len(args):
            raise ValueError(
                f"vmap of {name_of(fun)}: in_axes has {len(axes)} entries for {len(args)} "
                f"positional arguments\n  at {where().describe()}"
            )
        values = (args, kwargs)
        dims: list[int | None] = []
        for i, (axis, arg) in enumerate(zip(axes, args)):
            try:
                dims += tree.broadcast_prefix(axis, arg)
            except errors.TreeError as error:
                raise errors.TreeError(f"vmap: in_axes for argument {i}: {error}") from None
        leaves, in_tree = tree.flatten(values)
        dims += [0] * (len(leaves) - len(dims))
        # Arguments with in_axes=None may be anything, as strings or functions: they bypass the
        # trace.
        aside = {
            i: x for i, (x, d) in enumerate(zip(leaves, dims)) if d is None and not is_value(x)
        }
        blank = tree.unflatten(in_tree, [None if i in aside else x for i, x in enumerate(leaves)])
        arrays, _, _ = flatten_arrays(
            blank, f"an argument of {name_of(fun)}: ", lambda: labels_of(fun, *blank)
        )
        rest = iter(arrays)
        leaves = [aside[i] if i in aside else next(rest) for i in range(len(leaves))]
        dims = [_checked(x, i, dims, values, fun) for i, x in enumerate(leaves)]
        size = _size(leaves, dims, axis_size, values, fun)

        def call(*xs: Any) -> Any:
            rest = iter(xs)
            filled = [aside[i] if i in aside else next(rest) for i in range(len(leaves))]
            a, k = tree.unflatten(in_tree, filled)
            return fun(*a, **k)  # pyright: ignore[reportCallIssue]  # arguments of P, unflattened

        flat = FlatFunction(call, tree.structure(tuple(arrays)))
        functools.update_wrapper(flat.f, fun)

        def out_dims(outs: list[Any]) -> list[int | None]:
            skeleton = tree.unflatten(flat.out_tree, outs)
            try:
                return tree.broadcast_prefix(out_axes, skeleton)
            except errors.TreeError as error:
                raise errors.TreeError(f"vmap: out_axes: {error}") from None

        with default_device_of(arrays):
            called = CallSite("vmap", name_of(fun), arrays, lambda: labels_of(fun, *blank))
            dims = [d for i, d in enumerate(dims) if i not in aside]
            outs = vmap_flat(flat, size, arrays, dims, out_dims, axis_name, called)
        return flat.output(outs)

    return mapped


def _paths(values: tuple[Any, ...]) -> list[str]:
    args, kwargs = values
    named = [f"argument {i}{p}" for i, a in enumerate(args) for p in tree.paths(a)]
    return named + [f"keyword{p}" for p in tree.paths(kwargs)]


def _checked(
    x: Any, i: int, dims: list[Any], values: tuple[Any, ...], fun: Callable[..., Any]
) -> int | None:
    """The mapped axis of the i-th leaf as a nonnegative int, or None."""
    d = dims[i]
    if d is None:
        return None
    shape = typeof(x).shape
    if not isinstance(d, int):
        raise TypeError(f"vmap: an entry of in_axes is {d!r}; axes are ints or None")
    if not -len(shape) <= d < len(shape):
        remedy = "" if shape else _sharing(values, i, dims)
        raise ValueError(
            f"vmap: axis {d} does not exist in argument {labels_of(fun, *values)[i]} of "
            f"{name_of(fun)}, {typeof(x)}\n  at {where().describe()}{remedy}"
        )
    return d % len(shape)


def _sharing(values: tuple[Any, ...], i: int, dims: list[Any]) -> str:
    """The line of an error message that shows the `in_axes` that share the i-th leaf."""
    args = values[0]
    if i >= len(tree.leaves(args)):
        return "\n  give it by functools.partial to share it"
    new = [None if k == i else d for k, d in enumerate(dims[: len(tree.leaves(args))])]
    if all(d is None for d in new):
        return "\n  it has no axis to map over"
    entries, at = [], 0
    for a in args:
        part = new[at : at + len(tree.leaves(a))]
        at += len(part)
        entry = part[0] if len(set(part)) == 1 else tree.unflatten(tree.structure(a), part)
        entries.append("..." if len(repr(entry)) > 60 else repr(entry))
    return f"\n  pass in_axes=({', '.join(entries)}{',' * (len(entries) == 1)}) to share it"


def _size(
    leaves: list[Any],
    dims: list[Any],
    axis_size: int | None,
    values: tuple[Any, ...],
    fun: Callable[..., Any],
) -> int:
    sizes = {typeof(x).shape[d] for x, d in zip(leaves, dims) if d is not None}
    if axis_size is not None:
        sizes.add(axis_size)
    if len(sizes) == 1:
        return sizes.pop()
    if not sizes:
        raise ValueError(
            f"vmap of {name_of(fun)} needs at least one mapped argument, or axis_size=\n"
            f"  at {where().describe()}"
        )
    rows = [
        f"{p}: {typeof(x)} has {typeof(x).shape[d]} along axis {d}"
        for p, x, d in zip(_paths(values), leaves, dims)
        if d is not None
    ]
    shown = rows[:3] + ([f"and {len(rows) - 3} more"] if len(rows) > 3 else [])
    raise ValueError(
        f"vmap of {name_of(fun)}: mapped axes have different sizes {sorted(sizes)}\n  "
        + "\n  ".join(shown)
        + f"\n  at {where().describe()}"
    )
