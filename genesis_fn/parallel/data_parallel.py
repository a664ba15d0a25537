"""Data parallelism: every device takes its rows of the batch.

Parameters that are whole on every device have one gradient, the sum of what the devices' rows give;
the partitioner takes it where the gradient is used.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from genesis_fn.core import errors, tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.sharding.arrays import make_array_from_process_local_data
from genesis_fn.core.sharding.layout import NamedSharding, PartitionSpec
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.transforms.staging.device_placement import device_put


def batch_sharding(mesh: Mesh, axis: Hashable | Sequence[Hashable] = "data") -> NamedSharding:
    """How a batch is laid out: its first dimension divided among the devices along an axis.

    Args:
        mesh: the devices.
        axis: name of the axis, or names of several (the first one varies slowest).

    Returns:
        The sharding.

    >>> mesh = gf.make_mesh((1,), ("data",))
    >>> parallel.batch_sharding(mesh).spec
    PartitionSpec('data')
    """
    names = tuple(axis) if isinstance(axis, (tuple, list)) else axis
    return NamedSharding(mesh, PartitionSpec(names))


def data(
    batch: Any, mesh: Mesh, axis: Hashable | Sequence[Hashable] = "data", *, local: bool = False
) -> Any:
    """Lay a batch out: each device gets its rows.

    Args:
        batch: pytree of arrays [rows, ...].
        mesh: the devices.
        axis: name of the axis among whose devices rows are divided, or names of several.
        local: whether `batch` is this process's rows only, as a loader gives that reads its part of
            the data; else every process gives the whole batch.

    Returns:
        The batch as arrays over the mesh.

    Raises:
        ShardingError: the axis does not divide the rows.

    >>> mesh = gf.make_mesh((1,), ("data",))
    >>> parallel.data({"x": jnp.ones((4, 2))}, mesh)["x"].sharding.spec
    PartitionSpec('data')
    """
    sharding = batch_sharding(mesh, axis)
    for path, x in zip(tree.paths(batch), tree.leaves(batch)):
        if not as_array(x).shape:
            raise errors.ShardingError(
                f"data: batch{path} is a scalar, which has no rows to divide; give it apart"
            )
    if local and mesh.is_multi_process:
        return tree.map(lambda x: make_array_from_process_local_data(sharding, x), batch)
    return device_put(batch, sharding)
