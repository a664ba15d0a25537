"""How an array is laid out over a mesh: which axes divide each of its dimensions."""

from __future__ import annotations

import abc
import functools
import itertools
import math
import threading
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from genesis_fn.core import device as devices_
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.errors import MeshError, ShardingError
from genesis_fn.core.sharding.mesh import Mesh, current

if TYPE_CHECKING:
    from genesis_fn.core.backend.backend import Backend

# The axes that divide each dimension, the first one most significant; as long as the shape.
Layout: TypeAlias = tuple[tuple[Hashable, ...], ...]


class PartitionSpec(tuple[Any, ...]):
    """Which mesh axes divide each dimension of an array.

    Args:
        partitions: for each dimension the name of an axis, a tuple of names (the first one varies
            slowest), or None where the dimension is whole. Dimensions without an entry are whole.

    >>> gf.P("data", None, ("model", "expert"))
    PartitionSpec('data', None, ('model', 'expert'))
    """

    __slots__ = ()

    def __new__(cls, *partitions: Any) -> PartitionSpec:
        for p in partitions:
            if isinstance(p, list):
                raise TypeError(f"PartitionSpec: {p!r} is a list; several axes are a tuple")
        return super().__new__(cls, [None if p == () else _one(p) for p in partitions])

    def __repr__(self) -> str:
        return f"PartitionSpec({', '.join(map(repr, self))})"

    def __reduce__(self):
        return PartitionSpec, tuple(self)


def _one(p: Any) -> Any:
    return p[0] if isinstance(p, tuple) and len(p) == 1 else p


P = PartitionSpec


def entries(spec: PartitionSpec) -> Layout:
    """The axes of each dimension that a spec has an entry for."""
    return tuple([() if p is None else p if isinstance(p, tuple) else (p,) for p in spec])


def spec_of(layout: Layout) -> PartitionSpec:
    """The shortest spec of a layout."""
    names: list[Any] = [None if not axes else axes for axes in layout]
    while names and names[-1] is None:
        names.pop()
    return PartitionSpec(*names)


class Sharding(abc.ABC):
    """How an array is laid out over devices: a `SingleDeviceSharding` or a `NamedSharding`."""

    __slots__ = ()

    @property
    @abc.abstractmethod
    def device_set(self) -> set[Device]:
        """The devices that hold parts."""
        ...

    @property
    @abc.abstractmethod
    def addressable_devices(self) -> set[Device]:
        """Those of this process."""
        ...

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process holds all parts."""
        return self.addressable_devices == self.device_set

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole array."""
        return len(self.device_set) == 1

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of one part."""
        return tuple(global_shape)

    def devices_indices_map(self, global_shape: Sequence[int]) -> dict[Device, tuple[slice, ...]]:
        """{device: the slices of the whole array that it holds}."""
        return {d: tuple(slice(None) for _ in global_shape) for d in self.device_set}

    def addressable_devices_indices_map(
        self, global_shape: Sequence[int]
    ) -> dict[Device, tuple[slice, ...]]:
        """The entries of `devices_indices_map` for the devices of this process."""
        return {
            d: index
            for d, index in self.devices_indices_map(global_shape).items()
            if d in self.addressable_devices
        }

    def is_equivalent_to(self, other: Sharding, ndim: int) -> bool:
        """Whether both put the same parts of arrays with `ndim` dimensions on the same devices."""
        return self == other


class SingleDeviceSharding(Sharding):
    """An array that is whole on one device.

    >>> gf.sharding.SingleDeviceSharding(gf.cpu())
    SingleDeviceSharding(device=cpu())
    """

    __slots__ = ("_device",)

    def __init__(self, device: Device) -> None:
        self._device = device

    def __eq__(self, other: object) -> bool:
        return type(other) is SingleDeviceSharding and other._device is self._device

    def __hash__(self) -> int:
        return hash(self._device)

    def __repr__(self) -> str:
        return f"SingleDeviceSharding(device={self._device})"

    @property
    def device_set(self) -> set[Device]:
        return {self._device}

    @property
    def addressable_devices(self) -> set[Device]:
        return {self._device}


_made: dict[Any, NamedSharding] = {}
_lock = threading.Lock()


class NamedSharding(Sharding):
    """An array that is laid out over a mesh.

    There is one object for each mesh and layout. An array has it as its `device`: it has what a
    device has for programs (`kind`, `backend`).

    Args:
        mesh: the devices.
        spec: which axes of the mesh divide each dimension; None for none.

    Raises:
        ShardingError: the spec names an axis that the mesh does not have, or one twice.

    >>> mesh = gf.make_mesh((1,), ("data",))
    >>> gf.NamedSharding(mesh, gf.P("data"))
    NamedSharding(mesh=Mesh('data': 1), spec=PartitionSpec('data'))
    """

    __slots__ = ("mesh", "spec", "layout", "sigs", "__weakref__")

    kind = "mesh"
    index = 0

    mesh: Mesh
    spec: PartitionSpec
    layout: (
        Layout  # of the dimensions that the spec has an entry for, without whole ones at the end
    )
    sigs: dict[Any, Any]

    def __new__(
        cls, mesh: Mesh, spec: PartitionSpec | None = None, *, memory_kind: str | None = None
    ) -> NamedSharding:
        if memory_kind not in (None, "device"):
            raise ShardingError(
                f"NamedSharding: memory_kind={memory_kind!r}; arrays are in the memory of their "
                f"devices: pass None\n  at {where().describe()}"
            )
        if type(mesh) is not Mesh:
            raise TypeError(f"NamedSharding takes a Mesh, got {mesh!r}")
        if spec is None:
            spec = PartitionSpec()
        if type(spec) is not PartitionSpec:
            raise TypeError(f"NamedSharding takes a PartitionSpec, got {spec!r}")
        layout = entries(spec)
        _check_axes(layout, mesh, spec)
        spec = spec_of(layout)
        key = mesh, spec
        with _lock:
            found = _made.get(key)
            if found is None:
                found = _made[key] = super().__new__(cls)
                found.mesh, found.spec, found.layout, found.sigs = mesh, spec, entries(spec), {}
        return found

    def __repr__(self) -> str:
        return f"NamedSharding(mesh={self.mesh}, spec={self.spec})"

    def __reduce__(self):
        return NamedSharding, (self.mesh, self.spec)

    @property
    def backend(self) -> Backend:
        """What runs programs on meshes."""
        return devices_.backend("mesh")

    @property
    def home(self) -> Device:
        """Where new arrays go beside one that is laid out so: this process's device."""
        return self.mesh.device

    @property
    def platform(self) -> str:
        """The kind of the devices: "cpu" or "cuda"."""
        return self.mesh.device.kind

    @property
    def memory_kind(self) -> str:
        """Where parts are: "device"."""
        return "device"

    @property
    def device_set(self) -> set[Device]:
        return set(self.mesh.devices.flat)

    @property
    def addressable_devices(self) -> set[Device]:
        return set(self.mesh.local_devices)

    @property
    def is_fully_replicated(self) -> bool:
        sizes = self.mesh.shape
        return all(sizes[n] == 1 for axes in self.layout for n in axes)

    def over(self, ndim: int) -> Layout:
        """The layout of arrays with `ndim` dimensions."""
        return (*self.layout[:ndim], *((),) * (ndim - len(self.layout)))

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        check_shape(tuple(global_shape), self.mesh, self.layout, "the array")
        return part_shape(tuple(global_shape), self.mesh, self.over(len(global_shape)))

    def devices_indices_map(self, global_shape: Sequence[int]) -> dict[Device, tuple[slice, ...]]:
        part = self.shard_shape(global_shape)
        return {
            d: _slices(part, tuple(global_shape), self, coordinates)
            for coordinates, d in _grid(self.mesh)
        }

    def is_equivalent_to(self, other: Sharding, ndim: int) -> bool:
        if not isinstance(other, NamedSharding):
            return False
        return self.mesh == other.mesh and self.over(ndim) == other.over(ndim)


def _grid(mesh: Mesh) -> list[tuple[tuple[int, ...], Device]]:
    places = itertools.product(*map(range, mesh.devices.shape))
    return [(at, mesh.devices[at]) for at in places]


def _slices(
    part: tuple[int, ...],
    shape: tuple[int, ...],
    sharding: NamedSharding,
    coordinates: tuple[int, ...],
) -> tuple[slice, ...]:
    """What the device at these coordinates holds."""
    at = dict(zip(sharding.mesh.axis_names, coordinates))
    sizes, result = sharding.mesh.shape, []
    for n, axes in zip(part, sharding.over(len(shape))):
        position = functools.reduce(lambda i, name: i * sizes[name] + at[name], axes, 0)
        result.append(slice(position * n, (position + 1) * n) if axes else slice(None))
    return tuple(result)


def local_slices(shape: tuple[int, ...], sharding: NamedSharding) -> tuple[slice, ...]:
    """The slices of an array of this shape that this process's device holds."""
    part = sharding.shard_shape(shape)
    return _slices(part, shape, sharding, sharding.mesh.coordinates)


def _check_axes(layout: Layout, mesh: Mesh, spec: PartitionSpec) -> None:
    seen: set[Hashable] = set()
    for axes in layout:
        for name in axes:
            if name not in mesh.axis_names:
                raise ShardingError(
                    f"{spec} names the axis {name!r}, but the mesh has "
                    f"{', '.join(map(repr, mesh.axis_names))}\n  at {where(depth=4).describe()}"
                )
            if name in seen:
                raise ShardingError(
                    f"{spec} names the axis {name!r} twice: an axis divides one dimension\n"
                    f"  at {where(depth=4).describe()}"
                )
            seen.add(name)


def parts(mesh: Mesh, axes: Sequence[Hashable]) -> int:
    """How many parts these axes make of a dimension."""
    sizes = mesh.shape
    return math.prod([sizes[n] for n in axes])


def part_shape(shape: tuple[int, ...], mesh: Mesh, layout: Layout) -> tuple[int, ...]:
    """The shape of one part of an array of `shape`."""
    return tuple([n // parts(mesh, axes) for n, axes in zip(shape, layout, strict=True)])


def part_of(whole: Aval, mesh: Mesh, layout: Layout) -> Aval:
    """The aval of one part of an array of this aval: it varies over the axes of its layout."""
    varying = whole.varying.union(*layout)
    return aval(part_shape(whole.shape, mesh, layout), whole.dtype, varying)


def check_shape(shape: tuple[int, ...], mesh: Mesh, layout: Layout, what: str) -> None:
    """Raise ShardingError unless an array of `shape` can be laid out so."""
    if len(layout) > len(shape):
        raise ShardingError(
            f"{what} has {len(shape)} dimensions, {list(shape)}, but {spec_of(layout)} is for at "
            f"least {len(layout)}\n  at {where(depth=4).describe()}"
        )
    for i, (n, axes) in enumerate(zip(shape, layout)):
        count = parts(mesh, axes)
        if n % count:
            named = " x ".join(f"{a!r} of {mesh.shape[a]}" for a in axes)
            raise ShardingError(
                f"dimension {i} of {what}, {list(shape)}, has {n} elements, which {named} does not "
                f"divide\n  at {where(depth=4).describe()}\n  pad it to a multiple of {count}, or "
                "lay it out along another dimension"
            )


def as_sharding(given: Any, what: str) -> Any:
    """A sharding given as a NamedSharding, or as a PartitionSpec over the current mesh."""
    if isinstance(given, PartitionSpec):
        mesh = current.mesh
        if mesh is None:
            raise MeshError(
                f"{what}: {given} needs a mesh\n  at {where(depth=4).describe()}\n  pass "
                "NamedSharding(mesh, spec), or make a mesh current: with mesh:"
            )
        return NamedSharding(mesh, given)
    return given


def sharding_of(where: Any) -> Sharding:
    """The sharding of arrays whose `device` is this."""
    return where if isinstance(where, NamedSharding) else SingleDeviceSharding(where)
