"""Where arrays are: devices by JAX's names, copies to and from them, waiting."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis_fn.core import device as devices_, tree
from genesis_fn.core.array import Array, ArrayImpl, from_numpy, like, live, stored
from genesis_fn.core.configuration import transfer_guard
from genesis_fn.core.configuration.settings import device_of
from genesis_fn.core.convert import as_array
from genesis_fn.core.device import Device
from genesis_fn.core.types.extended import is_key


def devices(backend: str | None = None) -> list[Device]:
    """All devices of a kind ("cpu", "gpu" or "cuda"), or of the default device's kind."""
    return devices_.devices(backend)


def local_devices(
    process_index: int | None = None, backend: str | None = None, host_id: int | None = None
) -> list[Device]:
    """The devices of this process: all of them."""
    return devices_.devices(backend)


def device_count(backend: str | None = None) -> int:
    """How many devices of a kind there are."""
    return len(devices_.devices(backend))


local_device_count = device_count


def process_index() -> int:
    """The rank of this process: 0."""
    return 0


def process_count() -> int:
    """How many processes work together: 1."""
    return 1


def default_backend() -> str:
    """ "cpu" or "gpu": what kind of device new arrays go to."""
    return {"cuda": "gpu"}.get(devices_.default_device().kind, devices_.default_device().kind)


def device_put(
    x: Any, device: Any = None, *, src: Any = None, donate: Any = False, may_alias: Any = None
) -> Any:
    """A pytree's leaves as arrays on `device` (a Device, its name, or a prefix tree of them).

    Arrays that are there already are returned as they are; traced values stay where the program
    runs. `donate=True` gives the memory of what is copied up.
    """
    leaves, treedef = tree.flatten(x)
    if device is None or isinstance(device, (Device, str)):
        places: Sequence[Any] = [device_of(device)] * len(leaves)
    else:
        places = [device_of(d) for d in tree.broadcast_prefix(device, x)]
    with transfer_guard.asked_for():
        return tree.unflatten(treedef, [_put(v, p, donate) for v, p in zip(leaves, places)])


def _put(x: Any, where: Device | None, donate: Any) -> Any:
    if type(x) is not ArrayImpl:
        return as_array(x, device=where)
    if where is None or x.device is where:
        return live(x)
    moved = move(x, where)
    if donate is True:
        x.delete()
    return moved


def move(x: ArrayImpl, where: Device) -> ArrayImpl:
    """A copy of `x` on another device."""
    backend = live(x).device.backend
    # The CPU's arrays are the host's own.
    direction = {"cpu": "host_to_device"}.get(x.device.kind, "device_to_device")
    direction = "device_to_host" if where.kind == "cpu" else direction
    if direction != "host_to_device":  # that is checked where it is made
        transfer_guard.check(direction, x.aval, x.device)
    if where.kind == x.device.kind:
        return backend.copy(x, where)
    return like(x, from_numpy(backend.to_numpy(stored(x)), where, x.weak))


def device_get(x: Any) -> Any:
    """A pytree's arrays as NumPy arrays on the host (read-only where they share memory); random
    keys, of which NumPy knows nothing, stay arrays."""
    asked = lambda v: isinstance(v, Array) and not is_key(v.dtype)
    with transfer_guard.asked_for():
        return tree.map(lambda v: np.asarray(v) if asked(v) else v, x)


def block_until_ready(x: Any) -> Any:
    """`x`, once every array in the pytree is computed."""
    for v in tree.leaves(x):
        if type(v) is ArrayImpl:
            v.block_until_ready()
    return x


def live_arrays(platform: str | None = None) -> list[ArrayImpl]:
    """Every array of the process whose memory is held, on devices of `platform` if given."""
    kind = {"gpu": "cuda"}.get(platform or "", platform)
    return [
        x
        for x in gc.get_objects()
        if type(x) is ArrayImpl and not x.is_deleted() and kind in (None, x.device.kind)
    ]
