"""What a kind of device offers to the library: the protocol that every backend implements."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from genesis_fn.core.errors import BackendError

if TYPE_CHECKING:
    from genesis_fn.core.array import ArrayImpl, Shard
    from genesis_fn.core.aval import Aval
    from genesis_fn.core.backend.executable import Executable
    from genesis_fn.core.device import Device
    from genesis_fn.core.jaxpr import Jaxpr
    from genesis_fn.core.primitive import Primitive


class Backend(Protocol):
    """A kind of device. Backends derive from this class: members with a body below refuse, by name,
    what a backend need not have. Storage (`Array.data`) is opaque to everybody else."""

    @abc.abstractmethod
    def device_count(self) -> int:
        """How many devices of this kind can be used."""
        ...

    @abc.abstractmethod
    def eager(
        self, prim: Primitive, avals: Sequence[Any], params: dict[str, Any], device: Device
    ) -> Callable[..., Any]:
        """A function that runs one primitive on arrays of these avals (None marks a scalar)."""
        ...

    joins_operations: bool = False
    """Whether the backend has `in_one`: calls of its devices cost more than what a small operation
    computes."""

    def in_one(self, jaxpr: Jaxpr, device: Device, weak: bool) -> Callable[..., Any] | None:
        """A function of arrays that gives the only result of a small program, weak or not, with one
        call of the device; None where its operations had better be called one by one."""
        raise BackendError(f"the {device.kind} backend joins no operations")

    @abc.abstractmethod
    def compile(
        self,
        jaxpr: Jaxpr,
        device: Device,
        donated: Sequence[bool] = (),
        compiler: str | None = None,
    ) -> Executable:
        """An executable for a whole program; `donated` marks inputs that it may reuse, `compiler`
        asks for another compiler than the backend's own."""
        ...

    @abc.abstractmethod
    def from_numpy(self, value: np.ndarray, aval: Aval, device: Device) -> Any:
        """Storage that holds a copy of `value`."""
        ...

    def adopt(self, value: np.ndarray, aval: Aval, device: Device) -> Any:
        """Storage of the values of `value`, over its memory perhaps: nobody writes to it again."""
        return self.from_numpy(value, aval, device)

    def from_bytes(
        self, sources: Sequence[tuple[Aval, Callable[[memoryview, int], object]]], device: Device
    ) -> Sequence[Any]:
        """Storage for each of `sources`, which are (aval, read): `read(memory, start)` fills
        `memory` with the bytes from `start` on. Several threads may call it, for one piece each."""
        values = [np.empty(aval.shape, aval.dtype) for aval, _ in sources]
        for value, (_, read) in zip(values, sources, strict=True):
            read(value.reshape(-1).view(np.uint8).data, 0)
        return [self.from_numpy(x, aval, device) for x, (aval, _) in zip(values, sources)]

    @abc.abstractmethod
    def to_numpy(self, array: ArrayImpl) -> np.ndarray:
        """The array's values on the host; waits for them."""
        ...

    @abc.abstractmethod
    def wait(self, array: ArrayImpl) -> None:
        """Return once the array's values are there; raise what its computation raised."""
        ...

    def synchronize(self, device: Device) -> None:
        """Return once all work that was queued on the device is done; raise what it raised. A
        backend whose calls return when they are done has nothing to wait for."""

    def start_read(self, array: ArrayImpl) -> Any:
        """Begin to copy an array's values to the host. What this returns is the array's `_reading`,
        which `to_numpy` ends; None where there is nothing to begin."""
        return None

    def copy(self, array: ArrayImpl, device: Device) -> ArrayImpl:
        """The array on another device of this kind."""
        raise BackendError(f"the {device.kind} backend does not copy to another of its devices")

    def shards(self, array: ArrayImpl) -> list[Shard]:
        """The parts of an array that this process holds, where devices hold parts."""
        raise BackendError(f"the {array.device.kind} backend keeps arrays whole")

    # Exchange with other libraries.

    def from_dlpack(self, x: Any, device: Device, copy: bool | None = None) -> ArrayImpl:
        """An array over the memory of another library's array, which is on this kind of device."""
        raise BackendError(f"the {device.kind} backend takes no arrays of other libraries")

    def to_dlpack(self, array: ArrayImpl, **options: Any) -> Any:
        """The DLPack capsule of an array; it shares the memory."""
        raise BackendError(f"the {array.device.kind} backend has no DLPack form of arrays")

    def dlpack_device(self, array: ArrayImpl) -> tuple[int, int]:
        """(device type, index) by DLPack's numbering, of the memory that `to_dlpack` exports."""
        raise BackendError(f"the {array.device.kind} backend has no DLPack form of arrays")

    def cuda_array_interface(self, array: ArrayImpl) -> dict[str, Any]:
        """The `__cuda_array_interface__` of an array, read-only."""
        raise AttributeError(f"{array.aval} on {array.device} has no __cuda_array_interface__")
