"""Arrays over meshes, made of what each process has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from genesis_fn.core.array import ArrayImpl, from_numpy, live
from genesis_fn.core.aval import aval, sig
from genesis_fn.core.convert import as_array
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.errors import ShardingError
from genesis_fn.core.sharding.layout import NamedSharding, local_slices, parts


def _named(sharding: Any, what: str) -> NamedSharding:
    if type(sharding) is not NamedSharding:
        raise TypeError(
            f"{what} takes a NamedSharding, got {sharding!r}\n  at {where().describe()}"
        )
    return sharding


def make_array_from_callback(
    shape: Sequence[int],
    sharding: NamedSharding,
    data_callback: Callable[[tuple[slice, ...]], Any],
    dtype: Any = None,
) -> ArrayImpl:
    """An array over a mesh, each device's part of which a function gives.

    Args:
        shape: of the whole array.
        sharding: how it is laid out.
        data_callback: function of the slices of the whole array that a device holds, which returns
            their values; called for the devices of this process.
        dtype: of the array; None for that of the values.

    Returns:
        The array.

    Raises:
        ShardingError: the shape cannot be laid out so, or a part has another shape than its slices.

    >>> mesh = gf.make_mesh((1,), ("data",))
    >>> values = np.arange(4)
    >>> rows = gf.NamedSharding(mesh, gf.P("data"))
    >>> gf.make_array_from_callback((4,), rows, lambda index: values[index])
    Array([0, 1, 2, 3], dtype=int32)
    """
    sharding = _named(sharding, "make_array_from_callback")
    shape = tuple(shape)
    indices = sharding.addressable_devices_indices_map(shape)
    part = sharding.shard_shape(shape)
    found = {}
    for d, index in indices.items():
        value = np.asarray(as_array(data_callback(index), dtype))
        if value.shape != part:
            raise ShardingError(
                f"make_array_from_callback: the part {index} of an array {list(shape)} has shape "
                f"{list(part)}, the function returned {list(value.shape)}"
            )
        found[d] = value
    return _assembled(shape, sharding, found)


def _assembled(
    shape: tuple[int, ...], sharding: NamedSharding, found: dict[Device, np.ndarray]
) -> ArrayImpl:
    mesh, home = sharding.mesh, sharding.mesh.device
    first = next(iter(found.values()))
    kind = aval(shape, first.dtype)
    if mesh.batched:
        value = np.empty(shape, first.dtype)
        for d, index in sharding.devices_indices_map(shape).items():
            value[index] = found[d]
        return from_numpy(value, cast(Device, sharding))
    part = from_numpy(found[home], home)
    return ArrayImpl(part.data, sig(kind, cast(Device, sharding)))


def make_array_from_process_local_data(
    sharding: NamedSharding, local_data: Any, global_shape: Sequence[int] | None = None
) -> ArrayImpl:
    """An array over a mesh of what each process has: its rows of a batch, say.

    Args:
        sharding: how the whole array is laid out.
        local_data: the values of this process's part: an ndarray or array.
        global_shape: of the whole array; None: that of parts like this one put together.

    Returns:
        The array.

    Raises:
        ShardingError: `local_data` is no part of an array of that shape.

    >>> mesh = gf.make_mesh((1,), ("data",))
    >>> rows = gf.NamedSharding(mesh, gf.P("data"))
    >>> gf.make_array_from_process_local_data(rows, np.ones(2, "float32"))
    Array([1., 1.], dtype=float32)
    """
    sharding = _named(sharding, "make_array_from_process_local_data")
    mesh, value = sharding.mesh, np.asarray(as_array(local_data))
    whole = mesh.batched or not mesh.is_multi_process
    if global_shape is None:
        scale = [1 if whole else parts(mesh, axes) for axes in sharding.over(value.ndim)]
        global_shape = [n * k for n, k in zip(value.shape, scale)]
    shape = tuple(global_shape)
    part = shape if whole else sharding.shard_shape(shape)
    if value.shape == shape and not whole:
        value = value[local_slices(shape, sharding)]
    if value.shape != part:
        raise ShardingError(
            f"make_array_from_process_local_data: this process's part of an array {list(shape)} "
            f"laid out as {sharding.spec} over {mesh} has shape {list(part)}, got "
            f"{list(value.shape)}"
        )
    if mesh.batched:
        return from_numpy(value, cast(Device, sharding))
    return _assembled(shape, sharding, {mesh.device: value})


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: NamedSharding, arrays: Sequence[ArrayImpl], *, dtype: Any = None
) -> ArrayImpl:
    """An array over a mesh of arrays that are its parts, each on its device.

    Args:
        shape: of the whole array.
        sharding: how it is laid out.
        arrays: the parts on the devices of this process, one for each, in the order of
            `sharding.addressable_devices_indices_map`.
        dtype: for JAX's callers; that of the parts.

    Returns:
        The array.

    Raises:
        ShardingError: parts are missing, or have another shape or device than they must.

    >>> mesh = gf.make_mesh((1,), ("data",))
    >>> rows = gf.NamedSharding(mesh, gf.P("data"))
    >>> gf.make_array_from_single_device_arrays((2,), rows, [jnp.ones(2)])
    Array([1., 1.], dtype=float32)
    """
    sharding = _named(sharding, "make_array_from_single_device_arrays")
    shape = tuple(shape)
    indices = sharding.addressable_devices_indices_map(shape)
    part, on = sharding.shard_shape(shape), {live(x).device: x for x in arrays}
    if set(on) != set(indices) or any(x.shape != part for x in arrays):
        raise ShardingError(
            f"make_array_from_single_device_arrays: an array {list(shape)} laid out as "
            f"{sharding.spec} has parts {list(part)} on {list(indices)}, got "
            + ", ".join(f"{x.aval} on {x.device}" for x in arrays)
        )
    home = sharding.mesh.device
    if not sharding.mesh.batched:
        x = on[home]
        return ArrayImpl(x.data, sig(x.aval.update(shape), cast(Device, sharding)))
    return _assembled(shape, sharding, {d: np.asarray(x) for d, x in on.items()})
