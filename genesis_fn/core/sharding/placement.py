"""Where the inputs of one program on a mesh are, which decides what each device's part of it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from genesis_fn.core import device as devices_
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.errors import DeviceError
from genesis_fn.core.sharding.layout import NamedSharding
from genesis_fn.core.sharding.mesh import Mesh

if TYPE_CHECKING:
    from genesis_fn.core.backend.backend import Backend


class Placement:
    """The device of a program on a mesh: the layout of each input, None for one that is whole.
    Equal placements are equal: they are keys of executables."""

    __slots__ = ("mesh", "layouts", "_key")

    kind = "mesh"
    index = 0

    def __init__(self, mesh: Mesh, layouts: Sequence[NamedSharding | None]) -> None:
        self.mesh, self.layouts = mesh, tuple(layouts)
        self._key = mesh, self.layouts

    def __eq__(self, other: object) -> bool:
        return type(other) is Placement and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"{self.mesh} with {[s and s.spec for s in self.layouts]}"

    @property
    def home(self) -> Device:
        """Where numbers go: this process's device."""
        return self.mesh.device

    @property
    def backend(self) -> Backend:
        """What runs programs on meshes."""
        return devices_.backend("mesh")


def placement_of(devices: Sequence[Any], mesh: Mesh | None, what: str) -> Placement | None:
    """The placement of inputs that are on `devices`, in a program that refers to `mesh`; None where
    neither is about a mesh. Raises DeviceError for two meshes, or a device outside of the mesh."""
    shardings = [d if type(d) is NamedSharding else None for d in devices]
    meshes = list(dict.fromkeys([s.mesh for s in shardings if s is not None]))
    over = mesh or (meshes[0] if meshes else None)
    if over is None:
        return None
    for other in meshes:
        if other != over:
            raise DeviceError(
                f"{what}: arrays on two meshes, {over} and {other}\n  at {where().describe()}\n"
                "  move one with device_put(x, NamedSharding(mesh, spec))"
            )
    for d, s in zip(devices, shardings):
        if s is None and d not in (None, over.device) and not (over.batched and d.kind == "cpu"):
            raise DeviceError(
                f"{what}: operands on two devices, {d} and {over} on {over.device}\n"
                f"  at {where().describe()}\n"
                "  move one with device_put(x, NamedSharding(mesh, spec))"
            )
    return Placement(over, shardings)
