"""Zero-copy exchange with torch, CuPy and JAX: DLPack both ways, `__cuda_array_interface__` out.

Each side works on its own streams, so every exchange is ordered by events:

* Export: the consumer's stream waits for the work queued on the compute stream. When the consumer
  releases the memory, the pool reuses it only after the work queued on the consumer's stream.
* Import: the producer makes our compute stream wait for its work (`__dlpack__(stream=...)`). We
  release the memory to it only after our queued work.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from genesis_fn.backends.cuda.driver.driver import Driver, EventHandle
from genesis_fn.backends.cuda.memory.pool import Block, Buffer, ForeignOwner
from genesis_fn.core import dtypes
from genesis_fn.kernels.plan_builder import dense

# DLPack: (type code, bits) of each dtype, by its name.
_CODE_OF_KIND = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_CODE = {dtypes.BF16: 4, dtypes.F8E4: 10, dtypes.F8E5: 12}
_CODES = {
    d.name: (_CODE[d] if d in _CODE else _CODE_OF_KIND[d.kind], 8 * d.itemsize) for d in dtypes.ALL
}
_NAMES = {code: name for name, code in _CODES.items()}
_TYPESTR = {d.name: d.str for d in dtypes.ALL if d not in _CODE}
_CUDA_KINDS = (2, 13)
_READ_ONLY = 1


class _DLDevice(ctypes.Structure):
    """DLDevice."""

    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _DLDataType(ctypes.Structure):
    """DLDataType."""

    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLManagedTensor(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class _DLManagedTensorVersioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
# These take the capsule's address, not the object: a destructor gets a capsule without references,
# which a Python reference would bring back to life.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)
_PLAIN, _PLAIN_USED = b"dltensor", b"used_dltensor"
_VERSION, _VERSION_USED = b"dltensor_versioned", b"used_dltensor_versioned"

_exported: dict[int, Callable[[], None]] = {}


@_Deleter
def _delete(address: int) -> None:
    release = _exported.pop(address, None)
    if release is not None:
        release()


@_Destructor
def _destroy_capsule(capsule: int) -> None:
    for name in (_PLAIN, _VERSION):
        if _is_valid(capsule, name):  # a consumer renames the capsule that it takes
            _delete(_pointer(capsule, name))


@dataclass(frozen=True, slots=True)
class ImportedArray:
    """Another library's array. `strides` count elements, `dtype` is a name of NumPy's."""

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


def dlpack_device(buffer: Buffer) -> tuple[int, int]:
    """(device type, index) for `__dlpack_device__`."""
    info = buffer.driver.info
    return info.kind, info.index if info.kind in _CUDA_KINDS else 0


def to_dlpack(
    buffer: Buffer,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: str,
    *,
    offset: int = 0,
    stream: int | None = None,
    max_version: tuple[int, int] | None = None,
    read_only: bool = True,
) -> Any:
    """A DLPack capsule over part of a buffer, which stays alive until the consumer releases it.

    `strides` count elements, `offset` bytes. `stream` is the consumer's, as `__dlpack__` gets it:
    None or 1 its legacy default stream, 2 the per-thread one, -1 for no synchronisation. Without
    `max_version` of at least (1, 0) the capsule cannot say that it is read-only.
    """
    if dtype not in _CODES:
        raise TypeError(f"DLPack has no {dtype}")
    # Order the consumer's stream behind the work that writes the array.
    driver = buffer.driver
    consumer = _consumer_stream(driver, stream)
    if consumer is not None:
        event = driver.new_event()
        driver.record(event, driver.compute)
        driver.wait(consumer, event)
        driver.destroy_event(event)
    versioned = max_version is not None and max_version[0] >= 1
    managed: Any = _DLManagedTensorVersioned() if versioned else _DLManagedTensor()
    rank = len(shape)
    sizes, steps = (ctypes.c_int64 * rank)(*shape), (ctypes.c_int64 * rank)(*strides)
    tensor = managed.tensor
    kind, index = dlpack_device(buffer)
    tensor.data = buffer.address + offset
    tensor.device.kind, tensor.device.index = kind, index
    tensor.ndim = rank
    tensor.dtype.code, tensor.dtype.bits = _CODES[dtype]
    tensor.dtype.lanes = 1
    tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _delete
    if versioned:
        managed.major, managed.minor = 1, 0
        managed.flags = _READ_ONLY if read_only else 0
    address = ctypes.addressof(managed)
    # What the capsule points to must outlive it; `_exported` holds it until the deleter runs, in
    # whichever thread the consumer calls it.
    held: list[Any] = [managed, sizes, steps, buffer]

    def release() -> None:
        if consumer is not None and isinstance(buffer, Block):
            after = driver.new_event()
            driver.record(after, consumer)
            buffer.hold_until(after)
        held.clear()

    _exported[address] = release
    name = _VERSION if versioned else _PLAIN
    return _new_capsule(address, name, ctypes.cast(_destroy_capsule, ctypes.c_void_p))


def from_dlpack(array: Any, driver: Driver) -> ImportedArray:
    """The array of any object with `__dlpack__`, on this driver's device, without a copy.

    Raises ValueError if the array is on another device.
    """
    release_finished()
    kind, index = (int(n) for n in array.__dlpack_device__())
    on_device = kind in _CUDA_KINDS
    if on_device != (driver.info.kind in _CUDA_KINDS) or (on_device and index != driver.info.index):
        raise ValueError(
            f"the array is on DLPack device ({kind}, {index}), not on cuda:{driver.info.index}"
        )
    # The producer makes this stream wait for its own work on the array.
    stream = driver.stream_handle(driver.compute) if on_device else None
    try:
        capsule = array.__dlpack__(stream=stream, max_version=(1, 0))
    except (TypeError, BufferError):  # an older producer
        capsule = array.__dlpack__(stream=stream) if on_device else array.__dlpack__()
    address = id(capsule)
    if _is_valid(address, _VERSION):
        managed: Any = _DLManagedTensorVersioned.from_address(_pointer(address, _VERSION))
        if managed.major > 1:
            raise ValueError(f"DLPack version {managed.major}.{managed.minor} is not understood")
        _set_name(address, _VERSION_USED)
    elif _is_valid(address, _PLAIN):
        managed = _DLManagedTensor.from_address(_pointer(address, _PLAIN))
        _set_name(address, _PLAIN_USED)
    else:
        raise TypeError(f"{type(array).__name__}.__dlpack__ returned no DLPack capsule")

    def release() -> None:
        if managed.deleter:
            managed.deleter(ctypes.addressof(managed))

    keeper = ForeignOwner(driver, managed)
    weakref.finalize(keeper, _release_after_work, driver, release).atexit = False
    tensor = managed.tensor
    name = _NAMES.get((tensor.dtype.code, tensor.dtype.bits))
    if name is None or tensor.dtype.lanes != 1:
        raise TypeError(f"DLPack type {tensor.dtype.code, tensor.dtype.bits} is not supported")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
    else:
        strides = dense(shape)
    start = (tensor.data or 0) + tensor.byte_offset
    size = _extent(shape, strides) * (_CODES[name][1] // 8)
    return ImportedArray(Buffer(start, size, keeper), shape, strides, name)


def to_cuda_array_interface(
    buffer: Buffer,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: str,
    *,
    offset: int = 0,
    read_only: bool = True,
) -> dict[str, Any]:
    """The `__cuda_array_interface__` (version 3) of part of a buffer; `strides` count elements.

    The consumer orders itself after the stream that is named there. Its object must hold ours.
    """
    if dtype not in _TYPESTR:
        raise TypeError(f"__cuda_array_interface__ has no {dtype}; use DLPack")
    item = _CODES[dtype][1] // 8
    driver = buffer.driver
    empty = 0 in shape
    return {
        "shape": tuple(shape),
        "typestr": _TYPESTR[dtype],
        "data": (0 if empty else buffer.address + offset, read_only),
        "strides": tuple(item * s for s in strides),
        "version": 3,
        "stream": driver.stream_handle(driver.compute),
    }


# Imported memory without an owner here, until our queued work on it is done: the driver, an event
# recorded behind that work, and what releases the memory.

_awaiting_release: list[tuple[Driver, EventHandle, Callable[[], None]]] = []
_lock = threading.RLock()


def _release_after_work(driver: Driver, release: Callable[[], None]) -> None:
    # A finalizer must not wait for the device: the memory is released at a later exchange, once the
    # event is done.
    event = driver.new_event()
    driver.record(event, driver.compute)
    with _lock:
        _awaiting_release.append((driver, event, release))
    release_finished()


def release_finished() -> None:
    """Release imported memory whose last use on the device is over."""
    with _lock:
        over = [entry for entry in _awaiting_release if entry[0].done(entry[1])]
        _awaiting_release[:] = [entry for entry in _awaiting_release if entry not in over]
    for driver, event, release in over:
        driver.destroy_event(event)
        release()


def _consumer_stream(driver: Driver, stream: int | None) -> Any | None:
    if driver.info.kind not in _CUDA_KINDS or stream == -1:
        return None
    if stream == 0:
        raise ValueError("DLPack stream 0 is ambiguous: pass 1, 2 or a stream handle")
    return driver.foreign_stream(1 if stream is None else stream)


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The elements from the first to the last one, inclusive."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
