"""Meshes: devices in a grid whose axes have names.

One process drives one device, so that a mesh of several devices spans as many processes. The
exception is the CPU, which may show several devices in one process (`GENESIS_CPU_DEVICES`): a mesh
of them is computed as one batched program.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from genesis_fn.core import device as devices_
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.errors import MeshError
from genesis_fn.core.sharding.world import world


class Mesh:
    """Devices in a grid with named axes. Meshes of equal devices and names are equal.

    Args:
        devices: array of devices, or nested lists of them, with a dimension for each name; each
            device once.
        axis_names: the names of the dimensions.

    Raises:
        MeshError: the names are not distinct, or not as many as the dimensions; a device is there
            twice.

    >>> mesh = gf.sharding.Mesh(np.array(gf.devices("cpu")[:1]), ("data",))
    >>> dict(mesh.shape)
    {'data': 1}
    """

    __slots__ = ("devices", "axis_names", "_key", "__dict__")

    def __init__(
        self, devices: Any, axis_names: Hashable | Sequence[Hashable], axis_types: object = None
    ) -> None:
        names = tuple(axis_names) if isinstance(axis_names, (tuple, list)) else (axis_names,)
        grid = np.array(devices, dtype=object)
        if grid.ndim != len(names):
            raise MeshError(
                f"Mesh: {grid.ndim} dimensions of devices and {len(names)} axis names "
                f"{names}\n  at {where().describe()}\n  give one name for each dimension"
            )
        if len(set(names)) != len(names) or any(n is None for n in names):
            raise MeshError(
                f"Mesh: axis names must be distinct and not None, got {names}\n"
                f"  at {where().describe()}"
            )
        flat = list(grid.flat)
        if len(set(flat)) != len(flat):
            raise MeshError(f"Mesh: a device is there twice: {flat}\n  at {where().describe()}")
        grid.flags.writeable = False
        self.devices, self.axis_names = grid, names
        self._key = tuple(flat), grid.shape, names

    def __eq__(self, other: object) -> bool:
        return type(other) is Mesh and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        axes = ", ".join(f"{n!r}: {s}" for n, s in self.shape.items())
        return f"Mesh({axes})"

    def __reduce__(self):
        return Mesh, (self.devices, self.axis_names)

    @property
    def shape(self) -> dict[Hashable, int]:
        """{axis name: number of devices along it}."""
        return dict(zip(self.axis_names, self.devices.shape))

    @property
    def axis_sizes(self) -> tuple[int, ...]:
        """The numbers of devices along the axes."""
        return self.devices.shape

    @property
    def size(self) -> int:
        """The number of devices."""
        return self.devices.size

    @property
    def empty(self) -> bool:
        """Whether there are no devices."""
        return not self.devices.size

    @functools.cached_property
    def local_devices(self) -> list[Device]:
        """The devices of this process."""
        return [d for d in self.devices.flat if d.process_index == world().rank]

    @property
    def is_multi_process(self) -> bool:
        """Whether devices of several processes are in the mesh."""
        return len(self.local_devices) < self.size

    @functools.cached_property
    def axes(self) -> dict[Hashable, MeshAxis]:
        """{axis name: axis}."""
        return {n: MeshAxis(self, i) for i, n in enumerate(self.axis_names)}

    @functools.cached_property
    def device(self) -> Device:
        """The device on which this process computes its part: the only one of its own, or one for
        all where one process shows several.

        Raises:
            MeshError: this process has no device in the mesh, or several that it cannot drive.
        """
        local = self.local_devices
        if len(local) == 1 and (self.size == 1 or self.is_multi_process):
            return local[0]
        if not local:
            raise MeshError(
                f"{self} has no device of this process, rank {world().rank} of {world().size}; its "
                f"devices are {list(self.devices.flat)}\n  every process that runs a program on a "
                "mesh has a device in it: make a mesh of all devices"
            )
        if self.is_multi_process or any(d.kind != "cpu" for d in local):
            raise MeshError(
                f"{self} has {len(local)} devices of one process, {local}; one process drives one "
                f"device\n  start as many processes: torchrun --nproc-per-node {len(local)} ..."
            )
        return local[0]

    @functools.cached_property
    def batched(self) -> bool:
        """Whether this process computes for all devices, as one batched program."""
        here = self.device  # raises where this process cannot compute on the mesh
        return here.kind == "cpu" and self.size > 1 and not self.is_multi_process

    @functools.cached_property
    def coordinates(self) -> tuple[int, ...]:
        """Where this process's device is in the grid."""
        at = list(self.devices.flat).index(self.device)
        return tuple(int(i) for i in np.unravel_index(at, self.devices.shape))

    def __enter__(self) -> Mesh:
        current.outer.append(current.mesh)
        current.mesh = self
        return self

    def __exit__(self, *exc: object) -> None:
        current.mesh = current.outer.pop()


class MeshAxis:
    """An axis of a mesh: what a collective runs along. Equal axes of equal meshes are equal."""

    __slots__ = ("mesh", "dimension", "name", "size", "_hash", "__dict__")

    def __init__(self, mesh: Mesh, dimension: int) -> None:
        self.mesh, self.dimension = mesh, dimension
        self.name, self.size = mesh.axis_names[dimension], mesh.devices.shape[dimension]
        self._hash = hash((mesh, dimension))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(other) is MeshAxis
            and self.dimension == other.dimension
            and self.mesh == other.mesh
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return str(self.name)

    @functools.cached_property
    def ranks(self) -> tuple[int, ...]:
        """The processes that this one meets along the axis, itself among them, in order."""
        index: list[Any] = list(self.mesh.coordinates)
        index[self.dimension] = slice(None)
        return tuple(d.process_index for d in self.mesh.devices[tuple(index)])

    @property
    def position(self) -> int:
        """The place of this process along the axis."""
        return self.mesh.coordinates[self.dimension]


def make_mesh(
    axis_shapes: Sequence[int],
    axis_names: Sequence[Hashable],
    axis_types: object = None,
    *,
    devices: Sequence[Device] | None = None,
) -> Mesh:
    """A mesh of the first devices there are, in the order of their processes: neighbours along the
    last axis are nearest to each other.

    Args:
        axis_shapes: number of devices along each axis.
        axis_names: the names of the axes.
        axis_types: for JAX's callers; ignored.
        devices: the devices to take; None for `gf.devices()`.

    Returns:
        The `Mesh`.

    Raises:
        MeshError: there are fewer devices than the mesh has places.

    >>> gf.make_mesh((1,), ("data",))
    Mesh('data': 1)
    """
    found = list(devices_.devices() if devices is None else devices)
    shape = tuple([int(n) for n in axis_shapes])
    names = tuple(axis_names) if isinstance(axis_names, (tuple, list)) else (axis_names,)
    count = math.prod(shape)
    if len(shape) != len(names) or any(n < 1 for n in shape):
        raise MeshError(
            f"make_mesh: {shape} for the axes {names}; give one positive size for each name\n"
            f"  at {where().describe()}"
        )
    if count > len(found):
        raise MeshError(
            f"make_mesh: {shape} needs {count} devices, there are {len(found)}: {found}\n"
            f"  at {where().describe()}\n  start more processes (torchrun --nproc-per-node {count} "
            f"...), or show more CPU devices (GENESIS_CPU_DEVICES={count})"
        )
    grid = np.empty(count, object)
    grid[:] = found[:count]
    return Mesh(grid.reshape(shape), names)


class Current(threading.local):
    """What `with mesh:` and `set_mesh` made current in this thread."""

    mesh: Mesh | None = None  # part of `trace_context_key`

    def __init__(self) -> None:
        self.outer: list[Mesh | None] = []  # those that blocks of `with mesh:` make current again


current = Current()


class set_mesh:
    """Make a mesh current in this thread: from here on, or for the block of a `with` statement.

    A current mesh is what `shard_map` without `mesh=` runs on, and what a PartitionSpec is over
    where a sharding is expected.

    Args:
        mesh: the mesh; None for none.

    >>> mesh = gf.make_mesh((1,), ("data",))
    >>> with gf.set_mesh(mesh):
    ...     gf.device_put(jnp.ones(2), gf.P("data")).sharding.spec
    PartitionSpec('data')
    """

    def __init__(self, mesh: Mesh | None) -> None:
        if mesh is not None and type(mesh) is not Mesh:
            raise TypeError(f"set_mesh takes a Mesh, got {mesh!r}\n  at {where().describe()}")
        self.before = current.mesh
        self.mesh = current.mesh = mesh

    def __enter__(self) -> Mesh | None:
        return self.mesh

    def __exit__(self, *exc: object) -> None:
        current.mesh = self.before
