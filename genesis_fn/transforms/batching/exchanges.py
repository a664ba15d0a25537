"""Exchanges over a named axis: values go from each position along it to others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import Primitive, bind, typeof
from genesis_fn.primitives.factories import linear_rule, move_batch, zeros
from genesis_fn.primitives.shape import concatenate, reshape, slice_in_dim, transpose
from genesis_fn.transforms.batching.collectives import (
    AxisName,
    axes_of,
    axis_in,
    merged,
    no_groups,
    on_tree,
    split_among,
)

Tree = TypeVar("Tree")


def _exchange_shape(x: Aval, *, axis_name: Any, split: int, concat: int, size: int) -> Aval:
    rest = [n for i, n in enumerate(x.shape) if i != split]
    rest.insert(concat, size)
    return aval(tuple(rest), x.dtype)


def _exchange_batch(
    n: int,
    xs: Sequence[Any],
    dims: Sequence[Any],
    *,
    axis_name: Any,
    split: int,
    concat: int,
    size: int,
    over_other: bool = False,
) -> Any:
    x = move_batch(xs[0], dims[0], 0, n)
    if over_other:
        params = {"axis_name": axis_name, "split": split + 1, "concat": concat + 1, "size": size}
        return bind(all_to_all_p, x, **params), 0
    # The split dimension becomes the batch, and the batch the new dimension.
    order = [i for i in range(1, typeof(x).ndim) if i != split + 1]
    order.insert(concat, 0)
    return transpose(x, (split + 1, *order)), 0


all_to_all_p = Primitive("all_to_all", _exchange_shape, collective=True, batch=_exchange_batch)
all_to_all_p.linearize = linear_rule(all_to_all_p)
all_to_all_p.transpose = lambda ct, x, *, axis_name, split, concat, size: [
    bind(all_to_all_p, ct, axis_name=axis_name, split=concat, concat=split, size=size)
]


def all_to_all(
    x: Tree,
    axis_name: AxisName,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: None = None,
    tiled: bool = False,
) -> Tree:
    """Exchange slices among the examples: example i gets slice i of every example.

    Args:
        x: pytree of arrays.
        axis_name: name of the axis (`vmap(..., axis_name=...)`), or a sequence of names.
        split_axis: the dimension of `x` whose slices go to the examples.
        concat_axis: where the slices received go in the result.
        axis_index_groups: None; groups are not supported.
        tiled: whether blocks are exchanged and concatenated along `concat_axis`; else the size of
            `split_axis` must be that of the named axis, and slices are stacked.

    Returns:
        The slices received, in the order of the axis.

    Raises:
        NameError: no enclosing `vmap` has the axis.
        ShapeError: a dimension does not exist or cannot be divided so.

    >>> x = jnp.array([[1.0, 2.0], [10.0, 20.0]])
    >>> gf.vmap(lambda x: gf.lax.all_to_all(x, "i", 0, 0), axis_name="i")(x)
    Array([[ 1., 10.],
           [ 2., 20.]], dtype=float32)
    """
    no_groups(axis_index_groups)
    axes = axes_of(axis_name)
    sizes = [a.size for a in axes]

    def one(leaf: Any) -> Any:
        leaf = as_array(leaf)
        ndim = typeof(leaf).ndim
        split = axis_in(split_axis, ndim, "all_to_all", leaf)
        concat = axis_in(concat_axis, ndim, "all_to_all", leaf)
        leaf = split_among(leaf, split, sizes, tiled, "all_to_all")
        to = concat if len(axes) == 1 else 0
        for a in reversed(axes):  # several axes come to the front, the last one first
            at = split + len(axes) - 1
            leaf = bind(all_to_all_p, leaf, axis_name=a.axis, split=at, concat=to, size=a.size)
        if len(axes) > 1:
            shape = typeof(leaf).shape[len(axes) :]
            order = [*range(1, concat + 1), 0, *range(concat + 1, len(shape) + 1)]
            leaf = transpose(reshape(leaf, (math.prod(sizes), *shape)), order)
        return merged(leaf, concat) if tiled else leaf

    return on_tree(one, x)


def _permute_batch(
    n: int,
    xs: Sequence[Any],
    dims: Sequence[Any],
    *,
    axis_name: Any,
    perm: tuple[Any, ...],
    over_other: bool = False,
) -> Any:
    if over_other:
        return bind(ppermute_p, xs[0], axis_name=axis_name, perm=perm), dims[0]
    x = move_batch(xs[0], dims[0], 0, n)
    source = {dst: src for src, dst in perm}
    rows = [
        slice_in_dim(x, source[i], source[i] + 1, axis=0)
        if i in source
        else zeros(aval((1, *typeof(x).shape[1:]), typeof(x).dtype))
        for i in range(n)
    ]
    return concatenate(rows, 0), 0


ppermute_p = Primitive(
    "ppermute", lambda x, *, axis_name, perm: x, collective=True, batch=_permute_batch
)
ppermute_p.linearize = linear_rule(ppermute_p)
ppermute_p.transpose = lambda ct, x, *, axis_name, perm: [
    bind(ppermute_p, ct, axis_name=axis_name, perm=tuple([(d, s) for s, d in perm]))
]


def partners(perm: Sequence[tuple[int, int]], here: int) -> tuple[int | None, int | None]:
    """(where the position `here` sends, from where it gets) by pairs of source and destination."""
    to = next((d for s, d in perm if s == here), None)
    return to, next((s for s, d in perm if d == here), None)


def ppermute(x: Tree, axis_name: AxisName, perm: Sequence[tuple[int, int]]) -> Tree:
    """Send values along a named axis, by pairs of source and destination.

    Args:
        x: pytree of arrays.
        axis_name: name of the axis (`vmap(..., axis_name=...)`).
        perm: pairs (source, destination) of positions; each is named at most once on its side.

    Returns:
        What each example receives; zeros for an example that is no destination.

    Raises:
        NameError: no enclosing `vmap` has the axis.
        ValueError: a position is outside the axis or named twice, or there are several names.

    >>> shift = lambda x: gf.lax.ppermute(x, "i", [(0, 1), (1, 2)])
    >>> gf.vmap(shift, axis_name="i")(jnp.array([1.0, 2.0, 3.0]))
    Array([0., 1., 2.], dtype=float32)
    """
    axes = axes_of(axis_name)
    if len(axes) != 1:
        raise ValueError(
            f"ppermute takes one axis name, got {axis_name!r}\n  at {where().describe()}\n"
            "  permute along one axis after the other"
        )
    ((_, size, axis, _),) = axes
    pairs = tuple([(int(s), int(d)) for s, d in perm])
    for side in zip(*pairs):
        if len(set(side)) != len(side) or not all(0 <= i < size for i in side):
            raise ValueError(
                f"ppermute: {list(pairs)} must name each source and each destination at most once, "
                f"from 0 to {size - 1}\n  at {where().describe()}"
            )
    return on_tree(lambda leaf: bind(ppermute_p, as_array(leaf), axis_name=axis, perm=pairs), x)


def pshuffle(x: Tree, axis_name: AxisName, perm: Sequence[int]) -> Tree:
    """Permute the values along a named axis: example i gets the value of example `perm[i]`.

    Args:
        x: pytree of arrays.
        axis_name: name of the axis (`vmap(..., axis_name=...)`).
        perm: a permutation of the positions 0 ... size - 1.

    Returns:
        What each example receives, of the shapes of `x`.

    Raises:
        NameError: no enclosing `vmap` has the axis.
        ValueError: `perm` is no permutation of the positions, or there are several names.

    >>> reverse = lambda x: gf.lax.pshuffle(x, "i", [2, 1, 0])
    >>> gf.vmap(reverse, axis_name="i")(jnp.array([1.0, 2.0, 3.0]))
    Array([3., 2., 1.], dtype=float32)
    """
    axes, sources = axes_of(axis_name), [int(s) for s in perm]
    if len(axes) == 1 and sorted(sources) != [*range(axes[0].size)]:
        raise ValueError(
            f"pshuffle: {sources} is no permutation of 0 to {axes[0].size - 1}\n"
            f"  at {where().describe()}"
        )
    return ppermute(x, axis_name, [(s, d) for d, s in enumerate(sources)])


def pswapaxes(x: Tree, axis_name: AxisName, axis: int) -> Tree:
    """Exchange a dimension with a named axis: a transposition across examples.

    Args:
        x: pytree of arrays.
        axis_name: name of the axis (`vmap(..., axis_name=...)`).
        axis: the dimension of `x`, of the size of the named axis.

    Returns:
        The transposed values, of the shapes of `x`.

    Raises:
        NameError: no enclosing `vmap` has the axis.
        ShapeError: the dimension does not exist or is of another size.

    >>> x = jnp.array([[1.0, 2.0], [10.0, 20.0]])
    >>> gf.vmap(lambda x: gf.lax.pswapaxes(x, "i", 0), axis_name="i")(x)
    Array([[ 1., 10.],
           [ 2., 20.]], dtype=float32)
    """
    return all_to_all(x, axis_name, axis, axis)
