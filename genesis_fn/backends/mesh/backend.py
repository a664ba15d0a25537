"""The backend of arrays that are laid out over a mesh.

Storage is that of this process's part, on its device. Where one process shows all devices of a mesh
(CPUs), it is the whole array, and a program computes all parts of it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from genesis_fn.backends.mesh.agreement import check_agreement
from genesis_fn.backends.mesh.executable import MeshExecutable
from genesis_fn.core import errors
from genesis_fn.core.array import ArrayImpl, Shard, from_numpy, keys_over, stored
from genesis_fn.core.aval import Aval, sig
from genesis_fn.core.backend.alone import as_set, compiled_alone
from genesis_fn.core.backend.backend import Backend
from genesis_fn.core.backend.executable import Executable
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import Primitive, bind
from genesis_fn.core.sharding.layout import (
    NamedSharding,
    check_shape,
    local_slices,
    part_shape,
    spec_of,
)
from genesis_fn.core.sharding.placement import Placement
from genesis_fn.core.types.extended import is_key
from genesis_fn.transforms.sharding import rules as _rules  # noqa: F401 # pyright: ignore[reportUnusedImport] - registers rules
from genesis_fn.transforms.sharding.constraint import sharding_constraint_p
from genesis_fn.transforms.sharding.local import batched, reduced_early, untyped
from genesis_fn.transforms.sharding.partitioner import partition


class MeshBackend(Backend):
    """Places are `NamedSharding`s, or the `Placement` of a program."""

    def device_count(self) -> int:
        """None: meshes are made of devices of other kinds."""
        return 0

    def eager(
        self, prim: Primitive, avals: Sequence[Any], params: dict[str, Any], device: Device
    ) -> Callable[..., Any]:
        """A function that runs one primitive, as a program."""
        compile = lambda program: self.compile(program, device)
        return as_set(prim, lambda: compiled_alone(compile, prim, avals, params))

    def compile(
        self,
        jaxpr: Jaxpr,
        device: Device,
        donated: Sequence[bool] = (),
        compiler: str | None = None,
    ) -> Executable:
        """An executable for a program on whole arrays: the partitioned program, compiled for this
        process's device."""
        placement = cast(Placement, device)
        mesh, home = placement.mesh, placement.mesh.device
        in_layouts = tuple(
            [
                ((),) * v.aval.ndim if s is None else s.over(v.aval.ndim)
                for v, s in zip(jaxpr.invars, placement.layouts, strict=True)
            ]
        )
        program, out_layouts = partition(jaxpr, mesh, in_layouts, (None,) * len(jaxpr.outs))
        local = reduced_early(untyped(program))
        if mesh.batched:
            local = batched(local, mesh, jaxpr.in_avals, in_layouts, out_layouts)
        local.labels = jaxpr.labels
        check_agreement(local, mesh)
        compiled = home.backend.compile(local, home, donated, compiler)
        sigs = [
            sig(a, cast(Device, NamedSharding(mesh, spec_of(at))))
            for a, at in zip(jaxpr.out_avals, out_layouts, strict=True)
        ]
        return MeshExecutable(compiled, mesh, sigs)

    # Arrays.

    def from_numpy(self, value: np.ndarray, aval: Aval, device: Device) -> Any:
        """Storage of this process's part of `value`."""
        sharding = cast(NamedSharding, device)
        mesh, home = sharding.mesh, sharding.mesh.device
        check_shape(aval.shape, mesh, sharding.layout, "the array")
        if mesh.batched:
            return home.backend.from_numpy(value, aval, home)
        part = np.asarray(value)[local_slices(aval.shape, sharding)]
        return home.backend.from_numpy(part, aval.update(part.shape), home)

    def to_numpy(self, array: ArrayImpl) -> np.ndarray:
        """The values, where this process has all of them."""
        sharding = cast(NamedSharding, array.sig.device)
        if not (sharding.mesh.batched or sharding.is_fully_replicated):
            raise errors.DeviceError(
                f"{array.aval} is laid out as {sharding.spec} over {sharding.mesh}, of which this "
                f"process has one part\n  at {where(depth=4).describe()}\n  gather it "
                "(gf.device_put(x, gf.NamedSharding(mesh, gf.P()))), or read "
                "x.addressable_shards[0].data"
            )
        part = part_array(array)
        return part.sig.device.backend.to_numpy(part)

    def copy(self, array: ArrayImpl, device: Device) -> ArrayImpl:
        """The array laid out otherwise over its mesh."""
        return bind(sharding_constraint_p, array, sharding=cast(NamedSharding, device))

    def shards(self, array: ArrayImpl) -> list[Shard]:
        """This process's part; all parts, as copies, where one process has them all."""
        sharding = cast(NamedSharding, array.sig.device)
        indices = sharding.devices_indices_map(array.shape)
        seen: list[tuple[slice, ...]] = []
        replica: dict[Device, int] = {}
        for d, index in indices.items():
            replica[d] = seen.count(index)
            seen.append(index)
        part = part_array(array)
        if not sharding.mesh.batched:
            home = sharding.mesh.device
            return [Shard(home, indices[home], replica[home], part)]
        values = sharding.mesh.device.backend.to_numpy(stored(part))
        return [
            Shard(d, index, replica[d], _of_kind(array, from_numpy(values[index], d)))
            for d, index in indices.items()
        ]

    def wait(self, array: ArrayImpl) -> None:
        """Return when this process's part is there."""
        part = part_array(array)
        part.sig.device.backend.wait(part)

    def start_read(self, array: ArrayImpl) -> Any:
        """Begin to copy this process's part to the host."""
        part = part_array(array)
        return part.sig.device.backend.start_read(part)


def _of_kind(array: ArrayImpl, numbers: ArrayImpl) -> ArrayImpl:
    """Numbers that are a part of `array`: its keys, where it is of keys."""
    if not is_key(array.dtype):
        return numbers
    return keys_over(numbers, array.aval.update(numbers.shape[:-1]))


def part_array(array: ArrayImpl) -> ArrayImpl:
    """This process's part, over the same memory; the whole array where one process has all."""
    sharding = cast(NamedSharding, array.sig.device)
    mesh, kind = sharding.mesh, array.sig.aval
    if not mesh.batched:
        kind = kind.update(part_shape(kind.shape, mesh, sharding.over(kind.ndim)))
    part = ArrayImpl(array.data, sig(kind, mesh.device, array.sig.dense, array.sig.weak))
    reading = getattr(array, "_reading", None)
    if reading is not None:
        part._reading = reading  # pyright: ignore[reportPrivateUsage]
    return part
