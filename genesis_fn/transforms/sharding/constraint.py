"""How a value within a program is laid out: `with_sharding_constraint`, `reshard`."""

from __future__ import annotations

from typing import Any, TypeVar

from genesis_fn.core import errors, tree
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend.lowering import same
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import Primitive, bind, ctx, typeof
from genesis_fn.core.sharding.layout import (
    NamedSharding,
    Sharding,
    as_sharding,
    check_shape,
    spec_of,
)
from genesis_fn.primitives.factories import linear_rule
from genesis_fn.transforms.keys.key_uses import UNCHANGED

Tree = TypeVar("Tree")


# `cotangent` is how the cotangent is laid out, as the value if it is None.


def _shape(x: Aval, *, sharding: NamedSharding, cotangent: NamedSharding | None = None) -> Aval:
    check_shape(x.shape, sharding.mesh, sharding.layout, f"with_sharding_constraint: {x}")
    return x


sharding_constraint_p = Primitive("sharding_constraint", _shape, lowering=same())
sharding_constraint_p.linearize = linear_rule(sharding_constraint_p)


def _transpose(
    ct: Any, x: Any, *, sharding: NamedSharding, cotangent: NamedSharding | None = None
) -> list[Any]:
    return [constrained(ct, cotangent or sharding, cotangent and sharding)]


sharding_constraint_p.transpose = _transpose
sharding_constraint_p.key_uses = lambda **_: UNCHANGED


def _batch(
    size: int,
    xs: Any,
    dims: Any,
    *,
    sharding: NamedSharding,
    cotangent: NamedSharding | None = None,
) -> Any:
    at, ndim = dims[0], typeof(xs[0]).ndim

    def wider(of: NamedSharding) -> NamedSharding:
        layout = of.over(ndim - 1)
        return NamedSharding(of.mesh, spec_of((*layout[:at], (), *layout[at:])))

    return constrained(xs[0], wider(sharding), cotangent and wider(cotangent)), at


sharding_constraint_p.batch = _batch


def with_sharding_constraint(x: Tree, shardings: Any) -> Tree:
    """Lay values out over a mesh, within a program or outside.

    Args:
        x: pytree of arrays.
        shardings: a NamedSharding for each array, or a PartitionSpec over the current mesh: a
            pytree of them that is a prefix of `x`. None leaves arrays as they are.

    Returns:
        The same values, laid out so.

    Raises:
        ShardingError: an array cannot be laid out so.
        MeshError: within `shard_map`, where values are parts already.

    >>> mesh = gf.make_mesh((1,), ("data",))
    >>> rows = gf.NamedSharding(mesh, gf.P("data"))
    >>> gf.lax.with_sharding_constraint(jnp.ones(2), rows).sharding.spec
    PartitionSpec('data')
    """
    kept = tree.map(lambda s: ... if s is None else s, shardings, is_leaf=lambda s: s is None)
    given = tree.broadcast_prefix(kept, x)
    leaves, treedef = tree.flatten(x)
    return tree.unflatten(treedef, [_constrained(v, s) for v, s in zip(leaves, given)])


def _constrained(x: Any, given: Any) -> Any:
    if given is ...:
        return x
    sharding = as_sharding(given, "with_sharding_constraint")
    if type(sharding) is not NamedSharding:
        if isinstance(sharding, Sharding) and ctx.trace is not None:
            return as_array(x)  # one device: that of the program
        raise TypeError(
            f"with_sharding_constraint takes NamedShardings and PartitionSpecs, got {given!r}\n"
            f"  at {where().describe()}"
        )
    if ctx.match is not None:
        raise errors.MeshError(
            f"with_sharding_constraint({sharding.spec}) within shard_map, where values are parts\n"
            f"  at {where().describe()}\n  communicate by lax.all_gather and its relatives"
        )
    return constrained(as_array(x), sharding)


def constrained(x: Any, sharding: NamedSharding, cotangent: NamedSharding | None = None) -> Any:
    """An array laid out so, and its cotangent as `cotangent` says, as the array if that is None."""
    other = {} if cotangent is None else {"cotangent": cotangent}
    return bind(sharding_constraint_p, x, sharding=sharding, **other)


def reshard(xs: Tree, out_shardings: Any) -> Tree:
    """`with_sharding_constraint`, by JAX's other name.

    Args:
        xs: pytree of arrays.
        out_shardings: a NamedSharding or PartitionSpec for each array: a prefix of `xs`.

    Returns:
        The same values, laid out so.

    >>> mesh = gf.make_mesh((1,), ("data",))
    >>> gf.sharding.reshard(jnp.ones(2), gf.NamedSharding(mesh, gf.P())).sharding.spec
    PartitionSpec()
    """
    return with_sharding_constraint(xs, out_shardings)
