"""Fully sharded data parallelism: parameters, gradients and optimizer states are divided among the
devices that divide the batch.

A parameter is gathered where it is used and dropped behind it; its gradient is reduced straight
into the parts (`psum_scatter`), and the optimizer updates parts. Source: Rajbhandari et al., "ZeRO:
memory optimizations toward training trillion parameter models", 2020; Zhao et al., "PyTorch FSDP:
experiences on scaling fully sharded data parallel", 2023.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from genesis_fn.core import tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.sharding.layout import Layout, NamedSharding, PartitionSpec, parts, spec_of
from genesis_fn.core.sharding.mesh import Mesh


def fsdp(
    params: Any, mesh: Mesh, axis: Hashable = "data", *, base: Any = None, min_size: int = 4096
) -> Any:
    """How parameters are laid out: each divided along its largest dimension that the axis divides.

    Args:
        params: pytree of arrays or ShapeDtypeStructs.
        mesh: the devices.
        axis: name of the axis, which divides the batch too.
        base: shardings by which parameters are divided already, as `tensor` gives; a dimension may
            be divided further. None: by none.
        min_size: parameters of fewer elements stay whole: gathering them costs more than they hold.

    Returns:
        A pytree of NamedShardings, for `device_put`, `jit` and `laid_out`.

    Raises:
        ShardingError: the mesh has no such axis.

    >>> mesh = gf.make_mesh((1,), ("data",))
    >>> parallel.fsdp({"w": jnp.ones((128, 64)), "b": jnp.ones(64)}, mesh)["w"].spec
    PartitionSpec('data')
    """
    NamedSharding(mesh, PartitionSpec(axis))  # raises for an axis that is not there
    leaves, treedef = tree.flatten(params)
    given = [None] * len(leaves) if base is None else tree.broadcast_prefix(base, params)
    return tree.unflatten(
        treedef, [_divided(_shape(x), mesh, axis, b, min_size) for x, b in zip(leaves, given)]
    )


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(x.shape) if hasattr(x, "shape") else as_array(x).shape


def _divided(
    shape: tuple[int, ...], mesh: Mesh, axis: Hashable, base: NamedSharding | None, min_size: int
) -> NamedSharding:
    layout: Layout = ((),) * len(shape) if base is None else base.over(len(shape))
    held = [n // parts(mesh, axes) for n, axes in zip(shape, layout)]
    size = 1
    for n in held:
        size *= n
    fits = [i for i, n in enumerate(held) if n % mesh.shape[axis] == 0 and n > 1]
    if not fits or size < min_size:
        return NamedSharding(mesh, spec_of(layout))
    # The first of the largest ones: parts of a leading dimension are contiguous.
    chosen = max(fits, key=lambda i: held[i])
    return NamedSharding(
        mesh, spec_of(tuple([(*a, axis) if i == chosen else a for i, a in enumerate(layout)]))
    )
