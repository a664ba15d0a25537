"""Devices by JAX's names, copies of arrays to and from them, and waiting for results."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from genesis_fn.core import device as devices_, tree
from genesis_fn.core.array import Array, ArrayImpl, from_numpy, like, live, stored
from genesis_fn.core.configuration import transfer_guard
from genesis_fn.core.configuration.settings import device_of
from genesis_fn.core.convert import as_array
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import Tracer, bind
from genesis_fn.core.sharding.layout import (
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
    as_sharding,
)
from genesis_fn.core.sharding.world import world
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.core.types.extended import is_key
from genesis_fn.transforms.sharding.constraint import (
    sharding_constraint_p,
    with_sharding_constraint,
)

Tree = TypeVar("Tree")


def devices(backend: str | None = None) -> list[Device]:
    """All devices of a backend ("cpu", "gpu" or "cuda"), or of the default device's: those of all
    processes, in the order of the processes."""
    return devices_.devices(backend)


def local_devices(
    process_index: int | None = None, backend: str | None = None, host_id: int | None = None
) -> list[Device]:
    """The devices of this process, or of the process with this index.

    Raises ValueError where there is no such process.
    """
    index = host_id if process_index is None else process_index
    if index is None:
        return devices_.local_devices(backend)
    if not 0 <= index < world().size:
        raise ValueError(
            f"local_devices: there is no process {index}; the {world().size} processes are "
            f"numbered from 0 to {world().size - 1}\n  at {where().describe()}"
        )
    return [d for d in devices_.devices(backend) if d.process_index == index]


def device_count(backend: str | None = None) -> int:
    """The number of devices of a backend, over all processes."""
    return len(devices_.devices(backend))


def local_device_count(backend: str | None = None) -> int:
    """The number of devices of a backend in this process."""
    return len(devices_.local_devices(backend))


def process_index() -> int:
    """The rank of this process among those that compute together.

    Returns:
        The rank, from 0 on; 0 but for processes that met by `distributed.initialize()`.

    >>> gf.process_index()
    0
    """
    return world().rank


def process_count() -> int:
    """The number of processes that compute together.

    Returns:
        The number; 1 but for processes that met by `distributed.initialize()`.

    >>> gf.process_count()
    1
    """
    return world().size


def process_indices() -> list[int]:
    """The ranks of the processes that compute together: `[0, ..., process_count() - 1]`.

    Returns:
        The ranks.

    >>> gf.process_indices()
    [0]
    """
    return list(range(world().size))


host_id, host_count, host_ids = process_index, process_count, process_indices  # JAX's older names


def default_backend() -> str:
    """ "cpu" or "gpu": the backend of the default device, to which new arrays go."""
    return {"cuda": "gpu"}.get(devices_.default_device().kind, devices_.default_device().kind)


def device_put(
    x: PyTree,
    device: Device | Sharding | str | PyTree = None,
    *,
    src: object = None,
    donate: bool = False,
    may_alias: bool | None = None,
) -> PyTree:
    """Copy a pytree's leaves to a device, as arrays.

    Arrays that are there already are returned as they are; traced values stay where the program
    runs.

    Args:
        x: pytree of arrays, numbers, ndarrays.
        device: a Device, its name ("cpu", "cuda:1"), a sharding (a PartitionSpec is one over the
            current mesh), or a pytree of them that is a prefix of `x`; None leaves arrays where
            they are and puts the rest on the default device. Under a NamedSharding every process
            gives the same whole value, and keeps its part.
        src: for JAX's callers; ignored.
        donate: whether to delete the arrays that were copied, whose memory is free then.
        may_alias: for JAX's callers; ignored.

    Returns:
        `x` with arrays on `device`.

    >>> gf.device_put([1.0, np.ones(2, "float32")], "cpu")
    [Array(1., dtype=float32), Array([1., 1.], dtype=float32)]
    """
    leaves, treedef = tree.flatten(x)
    if device is None or isinstance(device, (Device, Sharding, PartitionSpec, str)):
        places: Sequence[Any] = [_place(device)] * len(leaves)
    else:
        places = [_place(d) for d in tree.broadcast_prefix(device, x)]
    with transfer_guard.asked_for():
        return tree.unflatten(treedef, [_put(v, p, donate) for v, p in zip(leaves, places)])


def _place(given: Any) -> Any:
    """The Device or NamedSharding that a caller means."""
    given = as_sharding(given, "device_put")
    if type(given) is SingleDeviceSharding:
        return next(iter(given.device_set))
    return given if type(given) is NamedSharding else device_of(given)


def _put(x: Any, where: Any, donate: Any) -> Any:
    if isinstance(x, Tracer) and type(where) is NamedSharding:
        return with_sharding_constraint(x, where)
    if type(x) is not ArrayImpl:
        return as_array(x, device=where)
    if where is None or x.device is where:
        return live(x)
    moved = move_over(x, where) if "mesh" in (x.device.kind, where.kind) else move(x, where)
    if donate is True:
        x.delete()
    return moved


def move(x: ArrayImpl, where: Device) -> ArrayImpl:
    """A copy of `x` on another device."""
    backend = live(x).device.backend
    # Arrays on CPU are in host memory.
    direction = {"cpu": "host_to_device"}.get(x.device.kind, "device_to_device")
    direction = "device_to_host" if where.kind == "cpu" else direction
    if direction != "host_to_device":  # `from_numpy` checks that one
        transfer_guard.check(direction, x.aval, x.device)
    if where.kind == x.device.kind:
        return backend.copy(x, where)
    return like(x, from_numpy(backend.to_numpy(stored(x)), where, x.weak))


def move_over(x: ArrayImpl, where: Any) -> ArrayImpl:
    """A copy of `x` that is laid out over a mesh, or that was."""
    here: Any = live(x).device
    backend = here.backend
    if type(where) is NamedSharding:
        same = here.mesh == where.mesh if type(here) is NamedSharding else here is where.home
        if same:
            return bind(sharding_constraint_p, x, sharding=where)
    place: Any = where
    return like(x, from_numpy(backend.to_numpy(stored(x)), place, x.weak))


def device_get(x: PyTree) -> PyTree:
    """Copy a pytree's arrays to the host, as NumPy arrays.

    Args:
        x: pytree; leaves that are no arrays stay as they are, and so do random keys, which NumPy
            cannot hold.

    Returns:
        `x` with ndarrays; those that share memory with an array on CPU are read-only.

    >>> gf.device_get({"w": jnp.arange(3)})
    {'w': array([0, 1, 2], dtype=int32)}
    """
    is_copied = lambda v: isinstance(v, Array) and not is_key(v.dtype)
    with transfer_guard.asked_for():
        return tree.map(lambda v: np.asarray(v) if is_copied(v) else v, x)


def block_until_ready(x: Tree) -> Tree:
    """Wait until every array in a pytree is computed: for timing, since on a GPU calls return
    earlier.

    Args:
        x: pytree of arrays and other leaves.

    Returns:
        `x`.

    >>> gf.block_until_ready(jnp.ones(2) + 1.0)
    Array([2., 2.], dtype=float32)
    """
    for v in tree.leaves(x):
        if type(v) is ArrayImpl:
            v.block_until_ready()
    return x


def effects_barrier() -> None:
    """Wait until every callback and print of the programs that were started has run.

    It waits for all work that is queued on the devices of this process: a call may return before a
    GPU is done. On the CPU everything has run by then.

    Raises:
        AssertionFailed, IndexOutOfRange, ...: what queued programs found.

    >>> gf.jit(lambda x: gf.debug.print("x is {}", x))(1.0)
    x is 1.0
    >>> gf.effects_barrier()
    """
    for d in devices_.used_devices():
        d.backend.synchronize(d)


def live_arrays(platform: str | None = None) -> list[ArrayImpl]:
    """Every array of the process whose memory is still held: for finding what keeps memory alive.

    Args:
        platform: "cpu", "gpu" or "cuda" for arrays on such devices alone; None for all.

    Returns:
        The arrays, in no order.

    >>> x = jnp.ones(5)
    >>> any(y is x for y in gf.live_arrays("cpu"))
    True
    """
    wanted = {"gpu": "cuda"}.get(platform or "", platform)
    return [
        x
        for x in gc.get_objects()
        if type(x) is ArrayImpl and not x.is_deleted() and wanted in (None, x.device.kind)
    ]
