"""What follows from the layout of parameters: that of gradients, and that of optimizer states."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from genesis_fn.core import tree
from genesis_fn.core.sharding.layout import NamedSharding, PartitionSpec
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.transforms.sharding.constraint import with_sharding_constraint
from genesis_fn.transforms.staging.tracing import eval_shape

F = TypeVar("F", bound=Callable[..., Any])


def laid_out(loss: F, shardings: Any) -> F:
    """A loss whose parameters are laid out so, and with them their gradients: these are reduced
    straight into the parts.

    Args:
        loss: function of (params, ...).
        shardings: of the parameters: a pytree of NamedShardings that is a prefix of them.

    Returns:
        A function with the signature of `loss`.

    >>> mesh = gf.make_mesh((1,), ("data",))
    >>> params = {"w": jnp.ones((128, 64))}
    >>> loss = parallel.laid_out(lambda p, x: (x @ p["w"]).sum(), parallel.fsdp(params, mesh))
    >>> gf.grad(loss)(params, jnp.ones((2, 128)))["w"].sharding.spec
    PartitionSpec('data')
    """

    @functools.wraps(loss)
    def on_parts(params: Any, *args: Any, **kwargs: Any) -> Any:
        return loss(with_sharding_constraint(params, shardings), *args, **kwargs)

    return on_parts  # pyright: ignore[reportReturnType]


def state_shardings(init: Callable[..., Any], params: Any, shardings: Any) -> Any:
    """How the state of an optimizer is laid out: what is for a parameter, as the parameter.

    Args:
        init: the optimizer's `init`, a function of the parameters.
        params: pytree of arrays or ShapeDtypeStructs.
        shardings: of the parameters.

    Returns:
        A pytree of NamedShardings for the state: a leaf whose path ends in that of a parameter, and
        whose shape is that of the parameter, is laid out as it is; others are whole.

    >>> mesh = gf.make_mesh((1,), ("data",))
    >>> params = {"w": jnp.ones((128, 64))}
    >>> tx = optim.adam(1e-3)
    >>> shardings = parallel.state_shardings(tx.init, params, parallel.fsdp(params, mesh))
    >>> state = gf.jit(tx.init, out_shardings=shardings)(params)
    >>> {x.sharding.spec for x in gf.tree.leaves(state)} == {gf.P("data"), gf.P()}
    True
    """
    flat: list[Any] = tree.broadcast_prefix(shardings, params)
    known = {
        (path[-n:], tuple(x.shape)): s
        for (path, x), s in zip(_paths(params), flat, strict=True)
        for n in [len(path)]
    }
    lengths = sorted({len(path) for path, _ in known}, reverse=True)
    mesh = next(s.mesh for s in flat)
    state = eval_shape(init, params)

    def of(path: tuple[str, ...], shape: tuple[int, ...]) -> NamedSharding:
        for n in lengths:
            found = known.get((path[len(path) - n :], shape))
            if found is not None:
                return found
        return replicated(mesh)

    leaves = [of(path, tuple(x.shape)) for path, x in _paths(state)]
    return tree.unflatten(tree.structure(state), leaves)


def _paths(x: Any) -> list[tuple[tuple[str, ...], Any]]:
    return [
        (tuple([tree.keystr((key,)) for key in path]), leaf)
        for path, leaf in tree.leaves_with_path(x)
    ]


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of arrays that are whole on every device.

    Args:
        mesh: the devices.

    Returns:
        The sharding.

    >>> mesh = gf.make_mesh((1,), ("data",))
    >>> parallel.replicated(mesh).is_fully_replicated
    True
    """
    return NamedSharding(mesh, PartitionSpec())
