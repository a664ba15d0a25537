"""Collectives: operations over a named axis: that of a mesh within `shard_map`, or the batch axis
of `vmap(..., axis_name=...)`.

The `BatchTrace` of the axis handles a collective whether or not its operand is batched there, as an
ordinary operation on the batch dimension. To a vmap over another axis it is an operation like any
other (`over_other`).

Along an axis of a mesh, `axis_name` of the primitive is the `MeshAxis`. There the type of a value
says whether it varies: a sum does not (`psum_invariant`), and its transpose is the change of a
value that is equal everywhere to one that may vary (`pvary`), whose transpose is that sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.backend.lowering import same
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import SCALARS, NamedAxis, Primitive, bind, ctx, typeof, with_weak
from genesis_fn.core.sharding.mesh import MeshAxis
from genesis_fn.core.types.annotations import Array
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.factories import PRIM, linear_rule, move_batch, no_tangent
from genesis_fn.primitives.indexing.indexing import dynamic_index_in_dim
from genesis_fn.primitives.reductions.reduce import reduce_max, reduce_min, reduce_sum
from genesis_fn.primitives.shape import expand_dims, index_in_dim, iota, reshape
from genesis_fn.transforms.keys.key_uses import UNCHANGED

Tree = TypeVar("Tree")
AxisName: TypeAlias = Hashable | Sequence[Hashable]


def _axis_of(axis_name: Hashable) -> NamedAxis:
    """A named axis. Raises NameError where nothing around has the name."""
    for axis in ctx.axes:
        if axis.name == axis_name:
            return axis
    known = ", ".join(repr(a.name) for a in ctx.axes) or "none"
    raise NameError(
        f"unbound axis name {axis_name!r}; the axes in scope are: {known}\n"
        f"  at {where(depth=4).describe()}\n  bind it by vmap(f, axis_name={axis_name!r}), or by "
        "shard_map over a mesh that has it"
    )


def axes_of(axis_name: AxisName) -> tuple[NamedAxis, ...]:
    """The axes that a name, or each of several names, stands for."""
    names = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    return tuple([_axis_of(n) for n in names])


def no_groups(groups: object) -> None:
    """Raise ValueError for JAX's `axis_index_groups`."""
    if groups is not None:
        raise ValueError(
            "axis_index_groups is not supported: give the groups an axis of their own, by a mesh "
            "or a vmap with two axes in place of this one"
        )


def _unchecked(axis: NamedAxis, y: Any) -> Any:
    """The result of a reduction as `shard_map(check_vma=False)` types it: like any other value."""
    return y if axis.checked else bind(pvary_p, y, axis_name=axis.axis)


def on_tree(f: Callable[[Any], Any], x: Any) -> Any:
    """`f` of each leaf, as an array but for Python numbers."""
    return tree.map(lambda leaf: f(leaf if type(leaf) in SCALARS else as_array(leaf)), x)


# ---- sums and extremes ----


def _over_axis(name: str, here: Callable[[int, Any, int | None], Any], **rules: Any) -> Primitive:
    """A collective whose result has the type of its operand and is equal for all examples. `here`
    computes it from (axis size, value, batch dimension or None)."""
    prim = Primitive(
        name, lambda x, *, axis_name: x, collective=True, reduces=True, updates=0, **rules
    )

    def batch(
        size: int,
        xs: Sequence[Any],
        dims: Sequence[int | None],
        *,
        axis_name: Any,
        over_other: bool = False,
    ) -> Any:
        if over_other:
            return bind(prim, xs[0], axis_name=axis_name), dims[0]
        return here(size, xs[0], dims[0]), None

    prim.batch = batch
    return prim


def _sum_here(size: int, x: Any, d: int | None) -> Any:
    if d is None:
        return ops.mul(x, float(size) if dtypes.is_inexact(typeof(x).dtype) else size)
    return reduce_sum(x, (d,))


psum_p = _over_axis("psum", _sum_here)
psum_p.linearize = linear_rule(psum_p)
# Every example's sum depends on every term, so each term gets the sum of all cotangents.
psum_p.transpose = lambda ct, x, *, axis_name: [bind(psum_p, ct, axis_name=axis_name)]

# Along an axis of a mesh the sum is one value, with one cotangent.
psum_invariant_p = _over_axis("psum_invariant", _sum_here)
psum_invariant_p.linearize = linear_rule(psum_invariant_p)
psum_invariant_p.transpose = lambda ct, x, *, axis_name: [bind(pvary_p, ct, axis_name=axis_name)]


def _vary_batch(size: int, xs: Any, dims: Any, *, axis_name: Any, over_other: bool = False) -> Any:
    return bind(pvary_p, xs[0], axis_name=axis_name) if over_other else xs[0], dims[0]


pvary_p = Primitive(
    "pvary", lambda x, *, axis_name: x, collective=True, batch=_vary_batch, lowering=same()
)
pvary_p.linearize = linear_rule(pvary_p)
pvary_p.transpose = lambda ct, x, *, axis_name: [bind(psum_invariant_p, ct, axis_name=axis_name)]
pvary_p.key_uses = lambda **_: UNCHANGED
PRIM["pvary"] = pvary_p


def _first_batch(size: int, xs: Any, dims: Any, *, axis_name: Any, over_other: bool = False) -> Any:
    if over_other:
        return bind(assume_invariant_p, xs[0], axis_name=axis_name), dims[0]
    if dims[0] is None:
        return xs[0], None
    return index_in_dim(xs[0], 0, dims[0], keepdims=False), None


# A value of which the user says that it is equal along an axis: the first one counts. What the
# values are all made of gets the cotangent in equal parts.
assume_invariant_p = Primitive(
    "assume_invariant",
    lambda x, *, axis_name: x,
    collective=True,
    reduces=True,
    batch=_first_batch,
    lowering=same(),
)
assume_invariant_p.linearize = linear_rule(assume_invariant_p)
assume_invariant_p.key_uses = lambda **_: UNCHANGED
assume_invariant_p.transpose = lambda ct, x, *, axis_name: [
    bind(pvary_p, ops.div(ct, float(axis_name.size)), axis_name=axis_name)
]


def _sum_along(x: Any, axis: Hashable) -> Any:
    return bind(psum_invariant_p if type(axis) is MeshAxis else psum_p, x, axis_name=axis)


def _extreme(name: str, reduce: Callable[..., Any]) -> Primitive:
    prim = _over_axis(name, lambda size, x, d: x if d is None else reduce(x, (d,)))

    def linearize(nonzero: Any, x: Any, *, axis_name: Any) -> Any:
        y = bind(prim, x, axis_name=axis_name)

        def tangent(t: Any) -> Any:
            # Ties share the derivative evenly.
            chosen = ops.convert(ops.eq(x, y), typeof(t).dtype)
            count = _sum_along(chosen, axis_name)
            return _sum_along(ops.mul(t, ops.div(chosen, count)), axis_name)

        return y, tangent

    prim.linearize = linearize
    return prim


pmax_p, pmin_p = _extreme("pmax", reduce_max), _extreme("pmin", reduce_min)


def _reduced(prim: Primitive, x: Any, axis_name: Any) -> Any:
    axes = axes_of(axis_name)

    def one(leaf: Any) -> Any:
        leaf = as_array(leaf)
        for a in axes:
            leaf = _unchecked(a, bind(prim, leaf, axis_name=a.axis))
        return leaf

    return on_tree(one, x)


def psum(x: Tree, axis_name: AxisName, *, axis_index_groups: None = None) -> Tree:
    """Sum a value over a named axis: every example gets the sum.

    Args:
        x: pytree of arrays; a Python number is multiplied by the size of the axis, bools are
            counted.
        axis_name: name of the axis (`vmap(..., axis_name=...)`), or a sequence of names.
        axis_index_groups: None; groups are not supported.

    Returns:
        The sums, of the shapes of `x`.

    Raises:
        NameError: no enclosing `vmap` has the axis.

    >>> gf.vmap(lambda x: x / gf.lax.psum(x, "i"), axis_name="i")(jnp.array([1.0, 3.0]))
    Array([0.25, 0.75], dtype=float32)
    """
    no_groups(axis_index_groups)
    axes = axes_of(axis_name)

    def one(leaf: Any) -> Any:
        if type(leaf) in SCALARS:
            return leaf * math.prod(a.size for a in axes)
        if typeof(leaf).dtype == dtypes.BOOL:
            leaf = ops.convert(leaf, dtypes.I32)
        for a in axes:
            leaf = _unchecked(a, _sum_along(leaf, a.axis))
        return leaf

    return on_tree(one, x)


def pmean(x: Tree, axis_name: AxisName, *, axis_index_groups: None = None) -> Tree:
    """Average a value over a named axis: every example gets the mean.

    Args:
        x: pytree of arrays; integers give float32.
        axis_name: name of the axis (`vmap(..., axis_name=...)`), or a sequence of names.
        axis_index_groups: None; groups are not supported.

    Returns:
        The means, of the shapes of `x`.

    Raises:
        NameError: no enclosing `vmap` has the axis.

    >>> gf.vmap(lambda x: x - gf.lax.pmean(x, "i"), axis_name="i")(jnp.array([1.0, 3.0]))
    Array([-1.,  1.], dtype=float32)
    """
    no_groups(axis_index_groups)
    count = math.prod(a.size for a in axes_of(axis_name))

    def one(leaf: Any) -> Any:
        leaf = as_array(leaf)
        if not dtypes.is_inexact(typeof(leaf).dtype):
            leaf = with_weak(ops.convert(leaf, dtypes.inexact_of(leaf.dtype)), leaf.weak)
        return ops.div(psum(leaf, axis_name), float(count))

    return on_tree(one, x)


def pmax(x: Tree, axis_name: AxisName, *, axis_index_groups: None = None) -> Tree:
    """The greatest value over a named axis, elementwise; ties share the derivative evenly.

    Args:
        x: pytree of arrays.
        axis_name: name of the axis (`vmap(..., axis_name=...)`), or a sequence of names.
        axis_index_groups: None; groups are not supported.

    Returns:
        The maxima, of the shapes and dtypes of `x`; the same for every example.

    Raises:
        NameError: no enclosing `vmap` has the axis.

    >>> gf.vmap(lambda x: gf.lax.pmax(x, "i"), axis_name="i")(jnp.array([1.0, 3.0]))
    Array([3., 3.], dtype=float32)
    """
    no_groups(axis_index_groups)
    return _reduced(pmax_p, x, axis_name)


def pmin(x: Tree, axis_name: AxisName, *, axis_index_groups: None = None) -> Tree:
    """The least value over a named axis, elementwise; ties share the derivative evenly.

    Args:
        x: pytree of arrays.
        axis_name: name of the axis (`vmap(..., axis_name=...)`), or a sequence of names.
        axis_index_groups: None; groups are not supported.

    Returns:
        The minima, of the shapes and dtypes of `x`; the same for every example.

    Raises:
        NameError: no enclosing `vmap` has the axis.

    >>> gf.vmap(lambda x: gf.lax.pmin(x, "i"), axis_name="i")(jnp.array([1.0, 3.0]))
    Array([1., 1.], dtype=float32)
    """
    no_groups(axis_index_groups)
    return _reduced(pmin_p, x, axis_name)


# ---- gathering and scattering ----


def _gather_shape(x: Aval, *, axis_name: Any, axis: int, size: int) -> Aval:
    return aval((*x.shape[:axis], size, *x.shape[axis:]), x.dtype)


def _gather_batch(
    n: int,
    xs: Sequence[Any],
    dims: Sequence[Any],
    *,
    axis: int,
    over_other: bool = False,
    **params: Any,
) -> Any:
    if over_other:
        x = move_batch(xs[0], dims[0], 0, n)
        return bind(all_gather_p, x, axis=axis + 1, **params), 0
    return move_batch(xs[0], dims[0], axis, n), None


all_gather_p = Primitive("all_gather", _gather_shape, collective=True, batch=_gather_batch)
all_gather_p.linearize = linear_rule(all_gather_p)
all_gather_p.transpose = lambda ct, x, **params: [bind(psum_scatter_p, ct, **params)]


all_gather_invariant_p = Primitive(
    "all_gather_invariant", _gather_shape, collective=True, reduces=True
)


def _gather_invariant_batch(
    n: int, xs: Any, dims: Any, *, axis: int, over_other: bool = False, **params: Any
) -> Any:
    if over_other:
        x = move_batch(xs[0], dims[0], 0, n)
        return bind(all_gather_invariant_p, x, axis=axis + 1, **params), 0
    return move_batch(xs[0], dims[0], axis, n), None


def _gather_invariant_transpose(
    ct: Any, x: Any, *, axis_name: Any, axis: int, size: int
) -> list[Any]:
    """Each device's slice of the one cotangent."""
    at = bind(axis_index_p, axis_name=axis_name)
    return [dynamic_index_in_dim(ct, at, axis, keepdims=False)]


all_gather_invariant_p.batch = _gather_invariant_batch
all_gather_invariant_p.linearize = linear_rule(all_gather_invariant_p)
all_gather_invariant_p.transpose = _gather_invariant_transpose


def _scatter_shape(x: Aval, *, axis_name: Any, axis: int, size: int) -> Aval:
    return aval((*x.shape[:axis], *x.shape[axis + 1 :]), x.dtype)


def _scatter_batch(
    n: int,
    xs: Sequence[Any],
    dims: Sequence[Any],
    *,
    axis: int,
    over_other: bool = False,
    **params: Any,
) -> Any:
    if over_other:
        x = move_batch(xs[0], dims[0], 0, n)
        return bind(psum_scatter_p, x, axis=axis + 1, **params), 0
    return _sum_here(n, xs[0], dims[0]), axis


psum_scatter_p = Primitive("psum_scatter", _scatter_shape, collective=True, batch=_scatter_batch)
psum_scatter_p.linearize = linear_rule(psum_scatter_p)
psum_scatter_p.transpose = lambda ct, x, **params: [bind(all_gather_p, ct, **params)]


def axis_in(axis: int, ndim: int, what: str, x: Any) -> int:
    """`axis` as a dimension from 0 on. Raises ShapeError where there is none."""
    if not -ndim <= axis < ndim:
        raise errors.ShapeError(
            f"{what}: dimension {axis} does not exist in {typeof(x)}\n"
            f"  at {where(depth=4).describe()}"
        )
    return axis % ndim


def merged(x: Any, axis: int) -> Any:
    """`x` with dimensions `axis` and `axis + 1` merged to one."""
    s = typeof(x).shape
    return reshape(x, (*s[:axis], s[axis] * s[axis + 1], *s[axis + 2 :]))


def split_among(x: Any, axis: int, sizes: Sequence[int], tiled: bool, what: str) -> Any:
    """`x` with dimension `axis` split into one for each named axis, and one for the block if
    `tiled`."""
    s, size = typeof(x).shape, math.prod(sizes)
    if s[axis] % size if tiled else s[axis] != size:
        wanted = "be a multiple of" if tiled else "equal"
        raise errors.ShapeError(
            f"{what}: dimension {axis} of {typeof(x)} must {wanted} the axis size {size}\n"
            f"  at {where(depth=5).describe()}"
        )
    block = (s[axis] // size,) if tiled else ()
    return reshape(x, (*s[:axis], *sizes, *block, *s[axis + 1 :]))


def all_gather(
    x: Tree,
    axis_name: AxisName,
    *,
    axis_index_groups: None = None,
    axis: int = 0,
    tiled: bool = False,
) -> Tree:
    """Give every example the values of all examples.

    Args:
        x: pytree of arrays.
        axis_name: name of the axis (`vmap(..., axis_name=...)`), or a sequence of names.
        axis_index_groups: None; groups are not supported.
        axis: where the examples go in the result.
        tiled: whether to concatenate along the existing `axis` instead of stacking along a new one.

    Returns:
        The values, in the order of the axis: one dimension more than `x`, or as many if `tiled`.

    Raises:
        NameError: no enclosing `vmap` has the axis.
        ShapeError: `axis` does not exist.

    >>> gf.vmap(lambda x: gf.lax.all_gather(x, "i"), axis_name="i")(jnp.array([1.0, 3.0]))
    Array([[1., 3.],
           [1., 3.]], dtype=float32)
    """
    no_groups(axis_index_groups)
    return _gathered(all_gather_p, x, axis_name, axis, tiled, "all_gather")


def _gathered(
    prim: Primitive, x: Any, axis_name: AxisName, axis: int, tiled: bool, what: str
) -> Any:
    axes = axes_of(axis_name)

    def one(leaf: Any) -> Any:
        leaf = as_array(leaf)
        at = axis_in(axis, typeof(leaf).ndim + (not tiled), what, leaf)
        if not tiled:
            leaf = expand_dims(leaf, (at,))
        for a in reversed(axes):
            leaf = merged(bind(prim, leaf, axis_name=a.axis, axis=at, size=a.size), at)
            if prim is all_gather_invariant_p:
                leaf = _unchecked(a, leaf)
        return leaf

    return on_tree(one, x)


def all_gather_invariant(
    x: Tree, axis_name: AxisName, *, axis: int = 0, tiled: bool = False
) -> Tree:
    """Give every device the values of all devices along an axis of a mesh: as `all_gather`, and the
    type of the result says that it is equal everywhere, so that `shard_map` may return it whole.

    Args:
        x: pytree of arrays.
        axis_name: name of the axis of the mesh, or a sequence of names.
        axis: where the devices go in the result.
        tiled: whether to concatenate along the existing `axis` instead of stacking along a new one.

    Returns:
        The values, in the order of the axis.

    Raises:
        NameError: no enclosing `shard_map` has the axis.
        ShapeError: `axis` does not exist.

    >>> mesh = gf.make_mesh((1,), ("i",))
    >>> whole = lambda x: gf.lax.all_gather_invariant(x, "i", tiled=True)
    >>> gf.shard_map(whole, mesh=mesh, in_specs=gf.P("i"), out_specs=gf.P())(jnp.arange(2))
    Array([0, 1], dtype=int32)
    """
    for a in axes_of(axis_name):
        if type(a.axis) is not MeshAxis:
            raise ValueError(
                f"all_gather_invariant: {a.name!r} is an axis of vmap\n  at {where().describe()}\n"
                "  use all_gather"
            )
    return _gathered(all_gather_invariant_p, x, axis_name, axis, tiled, "all_gather_invariant")


def psum_scatter(
    x: Tree,
    axis_name: AxisName,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: None = None,
    tiled: bool = False,
) -> Tree:
    """Sum a value over a named axis and give each example its slice of the sum.

    Args:
        x: pytree of arrays.
        axis_name: name of the axis (`vmap(..., axis_name=...)`), or a sequence of names.
        scatter_dimension: the dimension of `x` that is divided among the examples.
        axis_index_groups: None; groups are not supported.
        tiled: whether an example gets a block of the dimension, whose size must be a multiple of
            the axis size; else the dimension has the axis size, and an example gets one index of
            it.

    Returns:
        The slices: without the dimension, or with 1/size of it if `tiled`.

    Raises:
        NameError: no enclosing `vmap` has the axis.
        ShapeError: the dimension does not exist or cannot be divided so.

    >>> x = jnp.array([[1.0, 2.0], [10.0, 20.0]])
    >>> gf.vmap(lambda x: gf.lax.psum_scatter(x, "i"), axis_name="i")(x)
    Array([11., 22.], dtype=float32)
    """
    no_groups(axis_index_groups)
    axes = axes_of(axis_name)
    sizes = [a.size for a in axes]

    def one(leaf: Any) -> Any:
        leaf = as_array(leaf)
        at = axis_in(scatter_dimension, typeof(leaf).ndim, "psum_scatter", leaf)
        leaf = split_among(leaf, at, sizes, tiled, "psum_scatter")
        for a in axes:
            leaf = bind(psum_scatter_p, leaf, axis_name=a.axis, axis=at, size=a.size)
        return leaf

    return on_tree(one, x)


# ---- positions ----


def _index_batch(
    n: int, xs: Sequence[Any], dims: Sequence[Any], *, axis_name: Any, over_other: bool = False
) -> Any:
    return iota(dtypes.I32, n), 0


axis_index_p = Primitive(
    "axis_index", lambda *, axis_name: aval((), dtypes.I32), collective=True, batch=_index_batch
)
axis_index_p.linearize = no_tangent(axis_index_p)


def axis_index(axis_name: AxisName) -> Array:
    """The position of this example along a named axis.

    Args:
        axis_name: name of the axis (`vmap(..., axis_name=...)`), or a sequence of names, of which
            the last one varies fastest.

    Returns:
        The position, int32 [].

    Raises:
        NameError: no enclosing `vmap` has the axis.

    >>> gf.vmap(lambda x: x * gf.lax.axis_index("i"), axis_name="i")(jnp.ones(3))
    Array([0., 1., 2.], dtype=float32)
    """
    index: Any = None
    for a in axes_of(axis_name):
        here = bind(axis_index_p, axis_name=a.axis)
        index = here if index is None else ops.add(ops.mul(index, a.size), here)
    return index


def axis_size(axis_name: AxisName) -> int:
    """The size of a named axis, or the product of several.

    Args:
        axis_name: name of the axis (`vmap(..., axis_name=...)`), or a sequence of names.

    Returns:
        The size, a Python int.

    Raises:
        NameError: no enclosing `vmap` has the axis.

    >>> gf.vmap(lambda x: x / gf.lax.axis_size("i"), axis_name="i")(jnp.ones(2))
    Array([0.5, 0.5], dtype=float32)
    """
    return math.prod(a.size for a in axes_of(axis_name))


def pvary(x: Tree, axis_name: AxisName) -> Tree:
    """Take a value that is equal along axes of a mesh as one that may vary along them.

    Operations do this with operands by themselves; it is for where the type must be said before,
    as for the first carry of a loop. The derivative is the sum over the axes.

    Args:
        x: pytree of arrays.
        axis_name: name of an axis of the mesh, or a sequence of names.

    Returns:
        The same values.

    Raises:
        NameError: no enclosing `shard_map` has the axis.

    >>> mesh = gf.make_mesh((1,), ("i",))
    >>> f = gf.shard_map(
    ...     lambda x: gf.lax.pvary(x, "i"), mesh=mesh, in_specs=gf.P(), out_specs=gf.P("i")
    ... )
    >>> f(jnp.ones(2))
    Array([1., 1.], dtype=float32)
    """
    axes = [a for a in axes_of(axis_name) if type(a.axis) is MeshAxis]

    def one(leaf: Any) -> Any:
        leaf = as_array(leaf)
        for a in axes:
            if a.name not in typeof(leaf).varying:
                leaf = bind(pvary_p, leaf, axis_name=a.axis)
        return leaf

    return on_tree(one, x)


def pcast(x: Tree, axis_name: AxisName, *, to: Literal["varying"]) -> Tree:
    """`pvary`, by JAX's later name: `pcast(x, "i", to="varying")`.

    Args:
        x: pytree of arrays.
        axis_name: name of an axis of the mesh, or a sequence of names.
        to: "varying".

    Returns:
        The same values.

    Raises:
        ValueError: `to` is something else.

    >>> mesh = gf.make_mesh((1,), ("i",))
    >>> cast = lambda x: gf.lax.pcast(x, "i", to="varying")
    >>> gf.shard_map(cast, mesh=mesh, in_specs=gf.P(), out_specs=gf.P("i"))(jnp.ones(2))
    Array([1., 1.], dtype=float32)
    """
    if to != "varying":
        raise ValueError(
            f'pcast: to={to!r}; values are cast to "varying"; one that varies becomes equal by a '
            f"reduction: psum, pmean, pmax or all_gather_invariant\n  at {where().describe()}"
        )
    return pvary(x, axis_name)
