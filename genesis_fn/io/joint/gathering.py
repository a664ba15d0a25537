"""Arrays that several processes hold parts of, as their files need them."""

from __future__ import annotations

from typing import Any

import numpy as np

from genesis_fn.core import tree
from genesis_fn.core.array import from_numpy
from genesis_fn.core.configuration import transfer_guard
from genesis_fn.core.sharding.arrays import make_array_from_single_device_arrays
from genesis_fn.core.sharding.layout import NamedSharding, PartitionSpec, local_slices
from genesis_fn.core.sharding.world import world
from genesis_fn.core.types.annotations import Array, PyTree
from genesis_fn.transforms.staging.device_placement import device_put


def sharding_over_processes(x: Any) -> NamedSharding | None:
    """How an array, or what stands for one, is laid out over several processes; None where one
    process has all of it."""
    sharding = getattr(x, "device", None)
    if type(sharding) is NamedSharding and sharding.mesh.is_multi_process:
        return sharding
    return None


def is_shared(state: PyTree) -> bool:
    """Whether several processes hold an array of a pytree together."""
    return any(sharding_over_processes(x) is not None for x in tree.leaves(state))


def whole(x: Any) -> np.ndarray:
    """The values of an array. Where several processes hold it, all of them call this, and each has
    the whole of it for as long as it keeps it."""
    sharding = sharding_over_processes(x)
    if sharding is not None:
        x = device_put(x, NamedSharding(sharding.mesh, PartitionSpec()))
    with transfer_guard.asked_for():
        return np.asarray(x, order="C")


def writes(state: PyTree) -> bool:
    """Whether this process writes the file of a pytree that is gathered: the first one, where
    several hold it."""
    return world().rank == 0 or not is_shared(state)


def laid_out(x: Any, sharding: NamedSharding) -> Array:
    """An array over a mesh of values that have a shape and give slices; this process reads those
    alone that it holds."""
    mesh, shape = sharding.mesh, tuple(x.shape)
    if mesh.batched:
        return from_numpy(np.asarray(x[...]), sharding)  # pyright: ignore[reportArgumentType]
    part = from_numpy(np.asarray(x[local_slices(shape, sharding)]), mesh.device)
    return make_array_from_single_device_arrays(shape, sharding, [part])
