"""The array: immutable values on one device, and what arrays and tracers have in common."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from genesis_fn.core import device as devices, dtypes, errors
from genesis_fn.core.aval import Aval, Described, Signature, aval, sig
from genesis_fn.core.configuration import transfer_guard
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.sharding.layout import Sharding, sharding_of
from genesis_fn.core.types.extended import is_key

if TYPE_CHECKING:
    from genesis_fn.core.types.array_interface import ArrayInterface
else:
    ArrayInterface = Described


class Array(ArrayInterface):
    """What arrays and tracers share: metadata here, operators and methods from `numpy/`."""

    __slots__ = ()
    # NumPy arrays leave `np_array * x` to x; NumPy's functions take x by its `__array__`.
    __array_priority__ = 1000

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.aval.dtype.itemsize

    def on_device_size_in_bytes(self) -> int:
        """The bytes that the values take: `nbytes`."""
        return self.aval.nbytes

    # What concerns memory: as traced values have it, which have none; ArrayImpl has its own.

    def devices(self) -> set[devices.Device]:
        """The set of devices that hold the values; of a traced value where it is known."""
        return {self.device}

    def block_until_ready(self) -> Array:
        """This array, once its values are computed; a traced value at once."""
        return self

    @property
    def sharding(self) -> Sharding:
        """How the values are laid out over devices; of a traced value where it is known."""
        return sharding_of(self.device)

    @property
    def committed(self) -> bool:
        """Whether the values stay where they are: of arrays on meshes True."""
        return self.device.kind == "mesh"

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process has all values."""
        return self.sharding.is_fully_addressable

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device has all values."""
        return self.sharding.is_fully_replicated

    def copy_to_host_async(self) -> None:
        """Begin to copy the values to the host, so that reading them later waits for what was
        queued before this call, and not for what follows it. Of a traced value nothing.

        >>> x = jnp.ones(3)
        >>> x.copy_to_host_async()
        >>> float(x[0])
        1.0
        """

    def is_deleted(self) -> bool:
        """Whether the memory was donated or deleted; False of a traced value."""
        return False

    def delete(self) -> None:
        """Give the memory up now; refused by a traced value, which has none."""
        raise TypeError(
            f"delete: {self!r} has no memory of its own; delete arrays outside of the function\n"
            f"  at {where(depth=3).describe()}"
        )

    if not TYPE_CHECKING:  # a checker reports `x[i] = v` at its line

        def __setitem__(self, index: Any, value: Any) -> None:
            raise TypeError(
                "arrays are immutable: instead of x[i] = v write x = x.at[i].set(v)\n"
                f"  at {where(depth=3).describe()}"
            )


class ArrayImpl(Array):
    """An immutable array on one device. `data` is its backend's storage: on the CPU a tensor.
    `_reading`, where it is set, is a copy to the host that was begun."""

    __slots__ = ("data", "sig", "_reading", "__weakref__")

    def __init__(self, data: Any, sig: Signature) -> None:
        self.data: Any = data
        self.sig = sig

    @property
    def aval(self) -> Aval:  # type: ignore[override]
        """Shape and dtype."""
        return self.sig.aval

    @property
    def weak(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the array comes of Python scalars only, so that its dtype yields to others'."""
        return self.sig.weak

    @property
    def weak_type(self) -> bool:
        """`weak`, by JAX's name."""
        return self.sig.weak

    @property
    def device(self) -> devices.Device:
        """The device that holds the values."""
        return self.sig.device

    def devices(self) -> set[devices.Device]:
        """The set of devices that hold the values."""
        return self.sharding.device_set

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts that this process holds, one for each of its devices.

        >>> [s.data for s in jnp.arange(2).addressable_shards]
        [Array([0, 1], dtype=int32)]
        """
        where = live(self).sig.device
        if where.kind == "mesh":
            return where.backend.shards(self)
        whole = tuple([slice(None)] * len(self.sig.aval.shape))
        return [Shard(where, whole, 0, self)]

    def addressable_data(self, index: int) -> ArrayImpl:
        """The data of one of the parts that this process holds."""
        return self.addressable_shards[index].data

    def is_deleted(self) -> bool:
        """Whether the memory was donated or deleted."""
        return isinstance(self.data, Deleted)

    def delete(self) -> None:
        """Give the memory up now; later use raises DonatedError."""
        self.data = Deleted(f"deleted at {where(depth=3).describe()}", self.sig.aval)

    def block_until_ready(self) -> ArrayImpl:
        """This array, once its values are computed."""
        live(self).sig.device.backend.wait(self)
        return self

    def copy_to_host_async(self) -> None:
        """Begin to copy the values to the host, so that reading them later waits for what was
        queued before this call, and not for what follows it."""
        self._reading = live(self).sig.device.backend.start_read(self)

    def __hash__(self) -> int:
        raise TypeError("arrays are not hashable, their values may be large; key by id() or name")


ArrayImpl.__name__ = "Array"  # as users and messages call it


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """The part of an array that one device holds: `index` are the slices of the whole that it is,
    `replica_id` numbers the devices that hold the same part, `data` is the part as an array on
    `device`."""

    device: devices.Device
    index: tuple[slice, ...]
    replica_id: int
    data: ArrayImpl


class Deleted:
    """Stands in an Array for storage that is gone, and says why."""

    __slots__ = ("why", "aval")

    def __init__(self, why: str, aval: Aval) -> None:
        self.why, self.aval = why, aval

    def error(self) -> errors.DonatedError:
        """What any use raises."""
        return errors.DonatedError(
            f"an array {self.aval} was used after its memory was given up: {self.why}\n"
            f"  used at {where(depth=4).describe()}\n  use the value that the call returned"
        )


def live(array: ArrayImpl) -> ArrayImpl:
    """`array`, unless its memory was donated: then DonatedError."""
    if isinstance(array.data, Deleted):
        raise array.data.error()
    return array


_offers: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def offers_array(kind: type) -> bool:
    """Whether instances of a class of another library say that they are arrays: by `__array__`,
    DLPack or `__jax_array__`."""
    found = _offers.get(kind)
    if found is None:
        found = _offers[kind] = not issubclass(kind, (type, Array, np.ndarray, np.generic)) and (
            any(hasattr(kind, n) for n in ("__array__", "__jax_array__", "__dlpack__"))
        )
    return found


def from_numpy(
    value: np.ndarray, device: devices.Device | None = None, weak: bool = False, copy: bool = True
) -> ArrayImpl:
    """An Array with a copy of a NumPy array's values, its dtype kept.

    Without `copy` it may be an Array over the same memory, which nobody writes to again.
    """
    device = device or devices.default_device()
    array_aval = aval_of(value)
    if device.kind != "cpu":
        transfer_guard.check("host_to_device", array_aval, device)
    store = device.backend.from_numpy if copy else device.backend.adopt
    data = store(value, array_aval, device)
    return ArrayImpl(data, sig(array_aval, device, True, weak))


def from_bytes(
    sources: Sequence[tuple[Aval, Callable[[memoryview, int], object]]], device: devices.Device
) -> list[ArrayImpl]:
    """An Array for each of `sources`, which are (aval, read): `read(memory, start)` fills `memory`
    with the bytes from `start` on. Several threads may call it, for one piece each."""
    if device.kind != "cpu":
        for array_aval, _ in sources:
            transfer_guard.check("host_to_device", array_aval, device)
    stored = device.backend.from_bytes(sources, device)
    return [ArrayImpl(x, sig(a, device, True)) for x, (a, _) in zip(stored, sources, strict=True)]


def stored(x: ArrayImpl) -> ArrayImpl:
    """`x` as numbers: an array of keys as its words."""
    return words_of(x) if is_key(x.sig.aval.dtype) else x


def words_of(keys: ArrayImpl) -> ArrayImpl:
    """The words of an array of keys, uint32[..., 2], over its own memory."""
    s = live(keys).sig
    return ArrayImpl(keys.data, sig(s.aval.physical, s.device, s.dense))


def keys_over(words: ArrayImpl, keys_aval: Aval) -> ArrayImpl:
    """The array of keys with this aval, over the memory of its words."""
    s = words.sig
    return ArrayImpl(words.data, sig(keys_aval, s.device, s.dense))


def like(x: ArrayImpl, numbers: ArrayImpl) -> ArrayImpl:
    """Numbers that `stored` gave of `x`, as what `x` is: keys, where it is keys."""
    return keys_over(numbers, x.sig.aval) if is_key(x.sig.aval.dtype) else numbers


def aval_of(value: np.ndarray) -> Aval:
    """The aval of a NumPy array. Raises DTypeError for a dtype outside the library's list."""
    return aval(tuple(value.shape), dtypes.dtype(value.dtype))
